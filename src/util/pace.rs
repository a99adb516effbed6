//! Background work that lets go of its core now and then.
//!
//! A thread that computes keeps its core for as long as the scheduler lets it, some milliseconds even at a low
//! priority (on Linux, nice values do not count between processes of different sessions), and whoever answers a client
//! waits behind it where cores are few. A moment's sleep hands the core over at once.

use std::time::{Duration, Instant};

/// The longest piece of work between two moments.
const WORK: Duration = Duration::from_micros(300);
/// A moment; the system's timers make some 50 µs of it.
const MOMENT: Duration = Duration::from_nanos(1);
/// Steps between two looks at the clock.
const STEPS: u32 = 16;

/// How long a thread has worked without a pause.
#[derive(Debug)]
pub struct Pace {
    since: Instant,
    steps: u32,
}

impl Pace {
    /// Work that begins now.
    pub fn new() -> Self {
        Pace { since: Instant::now(), steps: 0 }
    }

    /// A step of the work, a few µs long at most, is done: pauses if it is time to. The caller holds no lock.
    pub fn step(&mut self) {
        self.steps += 1;
        if self.steps >= STEPS {
            self.long_step();
        }
    }

    /// Like [`Pace::step`] after a step that may have taken longer.
    pub fn long_step(&mut self) {
        self.steps = 0;
        if self.since.elapsed() >= WORK {
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
    fn it_pauses_when_it_has_worked_long_and_looks_after_some_steps() {
        let start = Instant::now();
        let mut pace = Pace { since: start, steps: 0 };
        std::thread::sleep(WORK);
        for _ in 1..STEPS {
            pace.step();
        }
        assert_eq!(pace.since, start);
        pace.step();
        assert!(pace.since > start + WORK);

        let start = pace.since;
        std::thread::sleep(WORK);
        pace.long_step();
        assert!(pace.since > start + WORK);
    }
}
