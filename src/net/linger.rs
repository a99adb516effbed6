//! Whether a thread that has nothing left to do looks on for a little before it sleeps.
//!
//! To put a thread to sleep and to wake it takes time of its core, of the core of whoever wakes it, and of all who wait for it.
//! Where the next request comes soon it is cheaper to look on; where it does not, looking on is wasted. Which of the two it is
//! is learned as it goes, as a credit in nanoseconds:
//!
//! | a look ends | credit |
//! |---|---|
//! | with a request that came meanwhile | [`WORTH`] more, less what the look took |
//! | with one that was there at once: to sleep would have cost nothing | [`AT_ONCE`] less |
//! | with none, after [`LINGER`] | that much less |
//!
//! The thread looks on as long as there is credit. If there is none, it is given [some](TRIED) once in so many reads, to learn
//! whether it would pay by now: peers that are answered sooner may come again sooner, and so a single look tells little. Where
//! others need the core it ends by itself: what they would send does not come meanwhile.

use std::time::Duration;

/// The longest look: about what a peer takes to come again that was itself asleep.
pub(super) const LINGER: Duration = Duration::from_micros(25);

/// What it costs this thread and its peer to have it sleep and be woken.
const WORTH: u64 = 20_000;
/// What a look costs that was not needed. They cost little, but they would go on while there is more to do than time.
const AT_ONCE: u64 = 8_000;
/// The most that is had: what has paid for long is given up after some that did not.
const MOST: u64 = 400_000;
/// What is spent on a try, and reads between two of them.
const TRIED: u64 = 200_000;
const TRY_EVERY: u32 = 1024;

/// How a look has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// Something came after so many nanoseconds.
    Found(u64),
    /// Something was there at once.
    AtOnce,
    /// Nothing came.
    Missed,
}

/// What a thread has learned.
#[derive(Debug, Default)]
pub(super) struct Linger {
    /// Nanoseconds.
    credit: u64,
    /// Reads since credit was last given.
    reads: u32,
    /// It is wanted (`busy-poll`), whether it pays or not.
    pub(super) always: bool,
}

impl Linger {
    /// Nothing is known as yet.
    pub(super) fn new(always: bool) -> Linger {
        Linger { always, ..Linger::default() }
    }

    /// Counts a read; whether the thread is to look on when it has nothing left to do.
    #[inline]
    pub(super) fn reads(&mut self) -> bool {
        self.reads += 1;
        if self.credit == 0 && self.reads >= TRY_EVERY {
            self.credit = TRIED;
        }
        if self.credit > 0 {
            self.reads = 0;
        }
        self.credit > 0 || self.always
    }

    /// Learns of a look; whether to look on after what it has found.
    pub(super) fn learn(&mut self, look: Look) -> bool {
        self.credit = match look {
            Look::Found(ns) => MOST.min((self.credit + WORTH).saturating_sub(ns)),
            Look::AtOnce => self.credit.saturating_sub(AT_ONCE),
            Look::Missed => self.credit.saturating_sub(LINGER.as_nanos() as u64),
        };
        look != Look::Missed && (self.credit > 0 || self.always)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads until the thread looks on; the looks that are then spent if all of them end like this.
    fn spent(linger: &mut Linger, look: Look, most: u32) -> u32 {
        for looks in 0..most {
            if !linger.reads() {
                return looks;
            }
            linger.learn(look);
        }
        most
    }

    fn reads_until_tried(linger: &mut Linger) -> u32 {
        (1..).find(|_| linger.reads()).unwrap_or_default()
    }

    #[test]
    fn who_is_asked_seldom_sleeps_but_for_a_few_looks_in_a_thousand_reads() {
        let mut linger = Linger::new(false);
        for _ in 0..3 {
            assert!(reads_until_tried(&mut linger) >= TRY_EVERY - 1);
            assert!(spent(&mut linger, Look::Missed, 100) <= 8);
        }
    }

    #[test]
    fn who_is_asked_again_soon_looks_on_until_that_ends() {
        let mut linger = Linger::new(false);
        reads_until_tried(&mut linger);
        assert_eq!(spent(&mut linger, Look::Found(5_000), 10_000), 10_000);
        assert_eq!(spent(&mut linger, Look::Missed, 100), 16, "not at the first that finds nothing");
        assert!(reads_until_tried(&mut linger) >= TRY_EVERY - 1);
    }

    /// By what they take: looks that find something late are worth less than none.
    #[test]
    fn looks_that_take_longer_than_a_sleep_costs_are_given_up() {
        for (ns, pays) in [(WORTH - 1000, true), (WORTH + 1000, false)] {
            let mut linger = Linger::new(false);
            reads_until_tried(&mut linger);
            assert_eq!(spent(&mut linger, Look::Found(ns), 10_000) == 10_000, pays, "{ns}");
        }
    }

    #[test]
    fn who_has_more_to_do_than_time_does_not_look_on() {
        let mut linger = Linger::new(false);
        reads_until_tried(&mut linger);
        assert!(spent(&mut linger, Look::AtOnce, 1000) <= 25);
    }

    #[test]
    fn busy_poll_looks_on_whether_it_pays_or_not() {
        let mut linger = Linger::new(true);
        for look in [Look::AtOnce, Look::Found(1)] {
            assert!(linger.reads() && linger.learn(look), "{look:?}");
        }
        assert!(linger.reads() && !linger.learn(Look::Missed), "it sleeps until it is asked again");
    }
}
