//! What other threads bring to a thread that serves many.
//!
//! A task that is woken from elsewhere waits in a queue of the runtime, of which a busy thread takes one entry in a few dozen
//! turns. Here all that has come is taken at once, with one wake-up.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Something to be done on the thread.
pub type Brought = Box<dyn FnOnce() + Send>;

/// What was brought and is not taken yet, in the order in which it came. Bounded by what the thread has asked for.
#[derive(Default)]
pub struct Inbox {
    brought: Mutex<Vec<Brought>>,
    /// Spares the lock.
    any: AtomicBool,
    wake: Notify,
}

impl Inbox {
    /// Leaves something to be done. From any thread.
    pub fn put(&self, brought: Brought) {
        let mut all = self.brought.lock();
        all.push(brought);
        self.any.store(true, Ordering::Release);
        let first = all.len() == 1;
        drop(all);
        if first {
            self.wake.notify_one();
        }
    }

    /// Does what has come by now; how much that was.
    #[inline]
    pub fn empty(&self) -> usize {
        if !self.any.load(Ordering::Relaxed) {
            return 0;
        }
        let all = {
            let mut all = self.brought.lock();
            self.any.store(false, Ordering::Relaxed);
            std::mem::take(&mut *all)
        };
        let count = all.len();
        all.into_iter().for_each(|brought| brought());
        count
    }

    /// Does what comes, whenever the thread has a turn for it.
    pub async fn keep_empty(&self) {
        loop {
            self.wake.notified().await;
            self.empty();
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// All that has come is done in one go, in its order, what comes meanwhile next time.
    #[test]
    fn what_was_brought_is_taken_at_once() {
        let inbox = Arc::new(Inbox::default());
        let done = Arc::new(Mutex::new(Vec::new()));
        for n in 0..5 {
            let (again, done) = (inbox.clone(), done.clone());
            inbox.put(Box::new(move || {
                done.lock().push(n);
                let done = done.clone();
                again.put(Box::new(move || done.lock().push(n + 10)));
            }));
        }
        assert_eq!((inbox.empty(), inbox.empty(), inbox.empty()), (5, 5, 0));
        assert_eq!(*done.lock(), [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]);
    }

    /// Whoever sleeps is woken, however the bringers meet the taker.
    #[test]
    fn nothing_stays_behind() {
        const EACH: usize = 2000;
        let (inbox, done) = (Arc::new(Inbox::default()), Arc::new(AtomicUsize::new(0)));
        let bring = |_| {
            let (inbox, done) = (inbox.clone(), done.clone());
            std::thread::spawn(move || {
                for _ in 0..EACH {
                    let done = done.clone();
                    inbox.put(Box::new(move || _ = done.fetch_add(1, Ordering::Relaxed)));
                }
            })
        };
        let bringers: Vec<_> = (0..3).map(bring).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let all = async {
                while done.load(Ordering::Relaxed) < 3 * EACH {
                    inbox.wake.notified().await;
                    inbox.empty();
                }
            };
            tokio::time::timeout(std::time::Duration::from_secs(60), all).await.unwrap();
        });
        bringers.into_iter().for_each(|bringer| bringer.join().unwrap());
    }
}
