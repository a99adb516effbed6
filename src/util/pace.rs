//! Background work that lets go of its core now and then.
//!
//! A thread that computes keeps its core for as long as the scheduler lets it, some milliseconds even at a low
//! priority (on Linux, nice values do not count between processes of different sessions), and whoever answers a client
//! waits behind it where cores are few. A moment's sleep hands the core over at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::alloc::heaps;

/// Nobody is answered by this process.
static ALONE: AtomicBool = AtomicBool::new(false);

/// From now on nothing pauses: this process serves nobody.
pub fn serve_nobody() {
    ALONE.store(true, Ordering::Relaxed);
}

/// The longest piece of work between two moments.
const WORK: Duration = Duration::from_micros(300);
/// A moment; the system's timers make some 50 µs of it.
const MOMENT: Duration = Duration::from_nanos(1);

/// Of what the disk is asked in long pieces, so many times as long is left to others.
const REST: u32 = 4;
/// What takes less is none.
const PIECE: Duration = Duration::from_micros(100);

/// Does a piece of work that keeps the disk or the file system from others, and leaves it to them for some times as long.
pub fn at_times<R>(piece: impl FnOnce() -> R) -> R {
    let began = Instant::now();
    let result = piece();
    let took = began.elapsed();
    if took >= PIECE && !ALONE.load(Ordering::Relaxed) {
        std::thread::sleep(took * REST);
    }
    result
}

/// How long a thread has worked without a pause.
#[derive(Debug)]
pub struct Pace {
    since: Instant,
}

impl Pace {
    /// Work that begins now.
    pub fn new() -> Self {
        Pace { since: Instant::now() }
    }

    /// A step of the work is done: pauses if it is time to, and tells of what it has freed. The caller holds no lock.
    pub fn step(&mut self) {
        heaps::tell_owners();
        if !ALONE.load(Ordering::Relaxed) && self.since.elapsed() >= WORK {
            std::thread::sleep(MOMENT);
            self.since = Instant::now();
        }
    }
}

impl Default for Pace {
    fn default() -> Self {
        Pace::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_worked_long_pauses_and_begins_anew() {
        let start = Instant::now();
        let mut pace = Pace { since: start };
        std::thread::sleep(WORK);
        pace.step();
        assert!(pace.since > start + WORK);
    }
}
