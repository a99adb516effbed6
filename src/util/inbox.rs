//! What other threads bring to a thread that serves many.
//!
//! A task that is woken from elsewhere waits in a queue of the runtime, of which a busy thread takes one entry in a few dozen
//! turns. Here all that has come is taken at once, with one wake-up.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// What was brought and is not taken yet, in the order in which it came. Bounded by what the thread has asked for.
pub struct Inbox<T> {
    brought: Mutex<Vec<T>>,
    /// The room of what was taken before, so that bringers make none that the taker frees: both would wait for one heap.
    room: Mutex<Vec<T>>,
    /// Spares the lock.
    any: AtomicBool,
    wake: Notify,
}

/// Room that is kept for so many.
const KEPT: usize = 1024;

impl<T> Default for Inbox<T> {
    fn default() -> Self {
        Inbox { brought: Mutex::default(), room: Mutex::default(), any: AtomicBool::default(), wake: Notify::default() }
    }
}

impl<T> Inbox<T> {
    /// Leaves something. From any thread.
    pub fn put(&self, brought: T) {
        let mut all = self.brought.lock();
        all.push(brought);
        self.any.store(true, Ordering::Release);
        let first = all.len() == 1;
        drop(all);
        if first {
            self.wake.notify_one();
        }
    }

    /// Takes what has come by now; how much that was.
    #[inline]
    pub fn empty(&self, take: impl FnMut(T)) -> usize {
        if !self.any.load(Ordering::Relaxed) {
            return 0;
        }
        let mut all = std::mem::take(&mut *self.room.lock());
        {
            let mut brought = self.brought.lock();
            self.any.store(false, Ordering::Relaxed);
            std::mem::swap(&mut *brought, &mut all);
        }
        let count = all.len();
        all.drain(..).for_each(take);
        all.shrink_to(KEPT);
        *self.room.lock() = all;
        count
    }

    /// Takes what comes, whenever the thread has a turn for it.
    pub async fn keep_empty(&self, mut take: impl FnMut(T)) {
        loop {
            self.wake.notified().await;
            self.empty(&mut take);
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// All that has come is done in one go, in its order, what comes meanwhile next time.
    #[test]
    fn what_was_brought_is_taken_at_once() {
        let (inbox, mut done) = (Inbox::default(), Vec::new());
        (0..5).for_each(|n| inbox.put(n));
        let mut take = || {
            inbox.empty(|n| {
                done.push(n);
                if n < 10 {
                    inbox.put(n + 10);
                }
            })
        };
        assert_eq!((take(), take(), take()), (5, 5, 0));
        assert_eq!(done, [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]);
    }

    /// Room for few goes to and fro, that for many is given back.
    #[test]
    fn room_is_kept_and_bounded() {
        let inbox = Inbox::default();
        let rooms = |inbox: &Inbox<usize>| [inbox.room.lock().capacity(), inbox.brought.lock().capacity()];
        for (brought, most) in [(100, 200), (10 * KEPT, KEPT), (1, KEPT), (1, KEPT)] {
            (0..brought).for_each(|n| inbox.put(n));
            assert_eq!(inbox.empty(|_| ()), brought);
            assert!(rooms(&inbox)[0] >= brought.min(KEPT) && rooms(&inbox)[0] <= most, "{:?}", rooms(&inbox));
        }
        let before = rooms(&inbox);
        for _ in 0..2 {
            inbox.put(1);
            inbox.empty(|_| ());
        }
        assert_eq!(rooms(&inbox), before);
    }

    /// Whoever sleeps is woken, however the bringers meet the taker.
    #[test]
    fn nothing_stays_behind() {
        const EACH: usize = 2000;
        let inbox = Arc::new(Inbox::default());
        let bring = |_| {
            let inbox = inbox.clone();
            std::thread::spawn(move || (0..EACH).for_each(|n| inbox.put(n)))
        };
        let bringers: Vec<_> = (0..3).map(bring).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let all = async {
                let mut done = 0;
                while done < 3 * EACH {
                    inbox.wake.notified().await;
                    done += inbox.empty(|_| ());
                }
            };
            tokio::time::timeout(std::time::Duration::from_secs(60), all).await.unwrap();
        });
        bringers.into_iter().for_each(|bringer| bringer.join().unwrap());
    }
}
