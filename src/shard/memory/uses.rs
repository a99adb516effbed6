//! How lately or how often an object was used: the 16 bits that it has for that.
//!
//! | kept | upper byte | lower byte |
//! |---|---|---|
//! | when it was last used (the default) | second, modulo 65,536 | |
//! | how often it is used, of late, while a policy asks for that | minute of the last use, modulo 256 | a counter that grows like a logarithm |
//!
//! The counter is Redis's: use adds to it the less likely the higher it is, and every `lfu-decay-time` minutes without use take
//! one off. Either is written by who looks an object up, where it changes. When it changes what is kept, what there is
//! is read as the other until the next use.
//!
//! An object that comes from the store knows nothing of earlier uses: 0.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::shard::memory::object::{Kind, Object};
use crate::util::splitmix;

/// The counter of a new object, so that it is not the first to go.
const NEW: u8 = 5;

/// What the counter of an object grows and shrinks by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frequency {
    /// The higher, the more uses it takes (`lfu-log-factor`).
    pub log_factor: u32,
    /// Minutes without use that take one off; 0 for never (`lfu-decay-time`).
    pub decay_minutes: u32,
}

/// What is kept of uses, by all shards; in one number: whether that is how often, and by what.
#[derive(Debug, Default)]
pub struct Uses(AtomicU64);

/// Directives are below 2³¹.
const COUNTS: u64 = 1 << 63;

fn minute(now_ms: u64) -> u8 {
    (now_ms / 60_000) as u8
}

impl Uses {
    /// Keeps from now on how often, by this, or when.
    pub fn keep(&self, frequency: Option<Frequency>) {
        let bits = |f: Frequency| COUNTS | u64::from(f.log_factor) << 32 | u64::from(f.decay_minutes);
        self.0.store(frequency.map_or(0, bits), Ordering::Relaxed);
    }

    /// What counters grow and shrink by; `None` while it is kept when objects were used.
    #[inline]
    pub fn frequency(&self) -> Option<Frequency> {
        let bits = self.0.load(Ordering::Relaxed);
        let part = |shift: u32| (bits >> shift) as u32 & !(1 << 31);
        (bits & COUNTS != 0).then(|| Frequency { log_factor: part(32), decay_minutes: part(0) })
    }

    /// Notes that an object is used; what was known of that before, where uses are counted and this one was. `chance` is any
    /// number that is seldom the same.
    #[inline]
    pub fn note(&self, object: &mut Object, now_ms: u64, chance: u64) -> Option<u16> {
        if object.used == (now_ms / 1000) as u16 { None } else { self.note_later(object, now_ms, chance) }
    }

    #[inline(never)]
    fn note_later(&self, object: &mut Object, now_ms: u64, chance: u64) -> Option<u16> {
        let used = match object.kind {
            Kind::Absent => self.of_new(now_ms),
            _ => self.after_use(object.used, now_ms, chance),
        };
        let before = std::mem::replace(&mut object.used, used);
        (used != before && self.frequency().is_some()).then_some(before)
    }

    /// What is kept of an object after another use. `chance` is any number that is seldom the same.
    #[inline]
    pub fn after_use(&self, used: u16, now_ms: u64, chance: u64) -> u16 {
        match self.frequency() {
            None => (now_ms / 1000) as u16,
            Some(frequency) => frequency.after_use(used, now_ms, chance),
        }
    }

    /// What is kept of an object that has just been made.
    pub fn of_new(&self, now_ms: u64) -> u16 {
        match self.frequency() {
            None => (now_ms / 1000) as u16,
            Some(_) => Frequency::kept(NEW, now_ms),
        }
    }
}

impl Frequency {
    fn kept(count: u8, now_ms: u64) -> u16 {
        u16::from_be_bytes([minute(now_ms), count])
    }

    #[cold]
    fn after_use(self, used: u16, now_ms: u64, mut chance: u64) -> u16 {
        let count = if used == 0 { NEW } else { self.count(used, now_ms) };
        let above = u64::from(count.saturating_sub(NEW)) * u64::from(self.log_factor) + 1;
        let grows = splitmix::next(&mut chance).is_multiple_of(above);
        Frequency::kept(count.saturating_add(grows.into()), now_ms)
    }

    /// The counter as it is at this time.
    pub fn count(self, used: u16, now_ms: u64) -> u8 {
        let [since, count] = used.to_be_bytes();
        let minutes = minute(now_ms).wrapping_sub(since);
        let periods = u32::from(minutes).checked_div(self.decay_minutes).unwrap_or(0);
        count.saturating_sub(periods as u8)
    }

    /// What is kept of an object whose counter is to be this.
    pub fn of_count(count: u8, now_ms: u64) -> u16 {
        Frequency::kept(count, now_ms)
    }
}

/// Seconds since an object was last used, while that is kept; 0 if it was not since it has come from the store.
pub fn idle_s(used: u16, now_ms: u64) -> u16 {
    if used == 0 { 0 } else { ((now_ms / 1000) as u16).wrapping_sub(used) }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::shard::keyspace::walk::tests::engine;

    const MINUTE: u64 = 60_000;

    fn used(uses: &Uses, mut used: u16, times: u64, now_ms: u64) -> u16 {
        (0..times).for_each(|n| used = uses.after_use(used, now_ms, n));
        used
    }

    #[test]
    fn the_second_of_the_last_use_is_kept_unless_uses_are_counted() {
        let uses = Uses::default();
        assert_eq!(uses.frequency(), None);
        assert_eq!((uses.of_new(70_000_000), uses.after_use(9, 70_000_000, 1)), (4464, 4464));
        assert_eq!(idle_s(4464, 70_005_000), 5);
        let most = Frequency { log_factor: i32::MAX as u32, decay_minutes: i32::MAX as u32 };
        uses.keep(Some(most));
        assert_eq!(uses.frequency(), Some(most));
        uses.keep(None);
        assert_eq!(uses.frequency(), None);
    }

    /// Who says that it was longer ago hears of as much as is kept.
    #[test]
    fn no_key_seems_to_have_been_used_later_than_was_said() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let (engine, now_ms) = (engine(dir.path(), 1), 1_000_000_000);
        for (said_s, kept_s) in [(7, 7), (65_535, 65_535), (65_536, 65_535), (70_000, 65_535), (u64::MAX, 65_535)] {
            let idle = engine.transact(&[0], now_ms, |txn| {
                let at = txn.put_string(0, b"key", b"value", 0)?;
                txn.set_idle(at, said_s);
                Ok(idle_s(txn.object(at).used, now_ms))
            });
            assert_eq!(idle.unwrap(), kept_s, "{said_s} s");
        }
    }

    /// As the table in Redis's redis.conf says of its counter, by factor and uses.
    #[test]
    fn the_counter_grows_like_a_logarithm() {
        for (log_factor, times, expected) in [
            (0, 100, 100..=110),
            (0, 1000, 255..=255),
            (1, 1000, 40..=60),
            (10, 1000, 15..=26),
            (10, 100_000, 125..=165),
        ] {
            let uses = Uses::default();
            let frequency = Frequency { log_factor, decay_minutes: 1 };
            uses.keep(Some(frequency));
            let count = frequency.count(used(&uses, uses.of_new(0), times, 0), 0);
            assert!(expected.contains(&count), "factor {log_factor}, {times} uses: {count}");
        }
    }

    #[test]
    fn time_without_use_takes_off() {
        let uses = Uses::default();
        let by = |decay_minutes| Frequency { log_factor: 10, decay_minutes };
        let hot = Frequency::of_count(100, MINUTE);
        assert_eq!([1, 2, 0].map(|decay| by(decay).count(hot, 31 * MINUTE)), [70, 85, 100]);
        assert_eq!(by(1).count(hot, 151 * MINUTE), 0);
        // Minutes are counted up to 255, and from 0 again.
        assert_eq!(by(1).count(Frequency::of_count(100, 250 * MINUTE), 260 * MINUTE), 90);
        uses.keep(Some(by(1)));
        assert_eq!(by(1).count(uses.of_new(7 * MINUTE), 7 * MINUTE), NEW);
        // From the store: as one that is new.
        assert_eq!(by(1).count(uses.after_use(0, 3 * MINUTE, 0), 3 * MINUTE), NEW + 1);
        assert_eq!(by(1).count(0, 3 * MINUTE), 0);
    }
}
