//! A thread that sleeps until there is work, or until it is time.
//!
//! A channel's wait spins and yields a dozen times before it sleeps, in the hope that something comes. Who sleeps out its time
//! again and again would pay for that at each turn, and have others' threads interrupted by it.

use std::sync::OnceLock;
use std::sync::atomic::{Ordering, fence};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Calls one thread. Work is put where that looks before the bell is rung, so that none is slept over.
#[derive(Debug, Default)]
pub struct Bell(OnceLock<Thread>);

impl Bell {
    /// The thread that runs this is the one to be called, from now on and for good. It looks for work afterwards.
    pub fn answer(&self) {
        if self.0.set(std::thread::current()).is_err() {
            unreachable!("a bell is answered by one thread");
        }
        // Whoever rings and does not see this has put its work where the next look finds it.
        fence(Ordering::SeqCst);
    }

    /// Wakes it, or has it not fall asleep next.
    pub fn ring(&self) {
        fence(Ordering::SeqCst);
        if let Some(thread) = self.0.get() {
            thread.unpark();
        }
    }
}

/// Sleeps until the thread's bell rings, or until then. It may come back sooner.
pub fn sleep_until(end: Instant) {
    let left = end.saturating_duration_since(Instant::now());
    if left > Duration::ZERO {
        std::thread::park_timeout(left);
    }
}

/// Sleeps until the thread's bell rings. It may come back sooner.
pub fn sleep() {
    std::thread::park();
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn one_ring_a_piece_is_enough() {
        const PIECES: u32 = 1000;
        let (bell, put, done) = (Arc::new(Bell::default()), Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        bell.ring();
        let work = {
            let (bell, put, done) = (bell.clone(), put.clone(), done.clone());
            move || {
                bell.answer();
                while done.load(Ordering::SeqCst) < PIECES {
                    match done.load(Ordering::SeqCst) < put.load(Ordering::SeqCst) {
                        true => _ = done.fetch_add(1, Ordering::SeqCst),
                        false => sleep(),
                    }
                }
            }
        };
        let (worker, began) = (std::thread::spawn(work), Instant::now());
        while bell.0.get().is_none() {
            std::thread::yield_now();
        }
        for piece in 1..=PIECES {
            put.store(piece, Ordering::SeqCst);
            bell.ring();
            while done.load(Ordering::SeqCst) < piece {
                assert!(began.elapsed().as_secs() < 60, "it sleeps over piece {piece}");
                std::thread::yield_now();
            }
        }
        worker.join().unwrap();
    }
}
