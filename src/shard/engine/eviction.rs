//! Eviction: keys that go, so that log and store stay below `maxdisk` (`maxmemory-policy`).
//!
//! It begins ahead, when what *lives* on disk nears the limit, as space comes back late: a key that goes leaves a tombstone, a
//! flush brings it to the store, a compaction drops both. What only waits for that counts as given back already, or all would be
//! gone before the first byte has come back.
//!
//! | of `maxdisk` | what lives there |
//! |---|---|
//! | 24/32 | rounds begin |
//! | 23/32 | they end |
//!
//! | of `maxdisk` | what log and store take, dead or not |
//! |---|---|
//! | 2/32 | of the log alone: it is flushed away |
//! | 28/32 | less that is dead is worth a compaction; who adds is slowed the more, the less is left |
//! | 32/32 | who adds waits a second at most, and only while something is found that may go; then it is refused, as without a policy |
//!
//! A **round** has each shard's timer remove its part, step by step (`shard/background/timer/evict.rs`); a flush follows, and only
//! then it is looked at anew: what keys take is known roughly, and a round errs by no more than an eighth. The watcher sees to it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{Engine, MOST_DELAY_US, gate};
use crate::shard::router::ShardId;

/// Parts of `maxdisk`; the table above has them.
const PARTS: u64 = 32;
const BEGIN: u64 = 24;
const END: u64 = 23;
const LOG: u64 = 2;
const TIGHT: u64 = 28;

/// No more than such a part of what there is goes in a round.
const MOST: u64 = 8;
/// The longest round: what was removed counts only once a flush has brought it.
const LONGEST: Duration = Duration::from_secs(2);
/// Time after a round that has found nothing.
const IN_VAIN: Duration = if cfg!(test) { Duration::ZERO } else { Duration::from_secs(1) };

/// Which keys go (`maxmemory-policy`, but for `noeviction`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Those that have a time alone.
    pub volatile: bool,
    /// Which of them.
    pub by: By,
}

/// By what keys are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// Those not used for longest.
    Use,
    /// Those seldom used.
    Frequency,
    /// Any.
    Chance,
    /// Those whose time comes first.
    Time,
}

impl Policy {
    /// The policy of a name that `maxmemory-policy` takes.
    pub fn named(name: &str) -> Option<Policy> {
        let (volatile, by) = match name {
            "volatile-lru" => (true, By::Use),
            "volatile-lfu" => (true, By::Frequency),
            "volatile-random" => (true, By::Chance),
            "volatile-ttl" => (true, By::Time),
            "allkeys-lru" => (false, By::Use),
            "allkeys-lfu" => (false, By::Frequency),
            "allkeys-random" => (false, By::Chance),
            _ => return None,
        };
        Some(Policy { volatile, by })
    }
}

/// What eviction is to do with a shard.
#[derive(Debug, Default)]
struct Part {
    /// Bytes that are still to go in the round under way.
    due: AtomicU64,
    /// Bytes of collections that went, of which the store does not know yet that they are dead.
    buried: AtomicU64,
}

/// Where eviction stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum At {
    /// It looks what lives.
    #[default]
    Rest,
    /// Shards remove their parts, since then.
    Round(Instant),
    /// What they removed is brought to the store: so many flushes are awaited.
    Flush(u64),
    /// Nothing was found that may go; it is looked again then.
    Wait(Instant),
}

/// Keys that go for the sake of `maxdisk`.
#[derive(Debug)]
pub struct Eviction {
    policy: Mutex<Option<Policy>>,
    samples: AtomicU64,
    parts: Box<[Part]>,
    /// Where it stands, and whether rounds go on until they have made room.
    at: Mutex<(At, bool)>,
    /// Rounds that were begun.
    rounds: AtomicU64,
    /// Keys that went in the round under way.
    gone: AtomicU64,
}

impl Eviction {
    /// Nothing goes.
    pub(in crate::shard) fn new(shards: usize) -> Self {
        Eviction {
            policy: Mutex::default(),
            samples: 1.into(),
            parts: (0..shards).map(|_| Part::default()).collect(),
            at: Mutex::default(),
            rounds: 0.into(),
            gone: 0.into(),
        }
    }

    /// Keys go by this policy from now on, one of so many.
    pub fn set(&self, policy: Option<Policy>, samples: u32) {
        self.samples.store(samples.max(1).into(), Ordering::Relaxed);
        *self.policy.lock() = policy;
    }

    /// By what keys go.
    pub fn policy(&self) -> Option<Policy> {
        *self.policy.lock()
    }

    /// Of so many keys one goes.
    pub fn samples(&self) -> u64 {
        self.samples.load(Ordering::Relaxed)
    }

    /// The number of the round, and what is still to go of a shard in it, bytes.
    pub(in crate::shard) fn due(&self, shard: ShardId) -> (u64, u64) {
        let due = self.parts[shard as usize].due.load(Ordering::Acquire);
        (self.rounds.load(Ordering::Relaxed), due)
    }

    /// So many keys have gone, about so many bytes, a part of them collections'.
    pub(in crate::shard) fn gone(&self, shard: ShardId, keys: u64, bytes: u64, buried_bytes: u64) {
        let part = &self.parts[shard as usize];
        take_off(&part.due, bytes);
        part.buried.fetch_add(buried_bytes, Ordering::Relaxed);
        self.gone.fetch_add(keys, Ordering::Relaxed);
    }

    /// No more goes of a shard in this round.
    pub(in crate::shard) fn end_part(&self, shard: ShardId) {
        self.parts[shard as usize].due.store(0, Ordering::Relaxed);
    }

    /// The store knows of so many bytes more that they are dead; of all that died, if none is left in the queue.
    pub(in crate::shard) fn known_dead(&self, shard: ShardId, bytes: u64, all: bool) {
        take_off(&self.parts[shard as usize].buried, if all { u64::MAX } else { bytes });
    }

    /// Whether keys are to go.
    pub fn is_under_way(&self) -> bool {
        self.at.lock().1
    }

    /// Whether it has found nothing that may go, not long ago.
    pub fn is_in_vain(&self) -> bool {
        matches!(self.at.lock().0, At::Wait(_))
    }

    /// Whether enough has gone, or nothing goes.
    #[cfg(test)]
    pub(in crate::shard) fn is_at_rest(&self) -> bool {
        matches!(*self.at.lock(), (At::Rest, false) | (At::Wait(_), _))
    }

    fn end_round(&self) {
        self.parts.iter().for_each(|part| part.due.store(0, Ordering::Relaxed));
    }
}

/// Subtracts, down to 0.
fn take_off(from: &AtomicU64, bytes: u64) {
    _ = from.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| Some(left.saturating_sub(bytes)));
}

impl Engine {
    /// What log and store may take where keys are evicted for it.
    fn evicts_at(&self) -> Option<u64> {
        let most = self.disk.most_bytes();
        (most > 0 && self.eviction.policy().is_some()).then_some(most)
    }

    /// What log and store hold that lives, about: without what a compaction would give back of what has been removed.
    pub fn live_bytes(&self) -> u64 {
        let live = |(part, partition): (&Part, &std::sync::Arc<crate::store::Partition>)| {
            let dead = partition.covered_bytes() + part.buried.load(Ordering::Relaxed);
            partition.disk_bytes().saturating_sub(dead)
        };
        let store: u64 = self.eviction.parts.iter().zip(self.store.partitions()).map(live).sum();
        // A flush has brought a part of it, and cuts it at its end.
        store + if self.flush_lock.is_locked() { 0 } else { self.log.size_bytes() }
    }

    /// Size of the log that makes for a flush where keys are evicted.
    pub(in crate::shard) fn log_most(&self) -> u64 {
        const LEAST: u64 = if cfg!(test) { 16 << 10 } else { 2 << 20 };
        self.evicts_at().map_or(u64::MAX, |most| (most / PARTS * LOG).max(LEAST))
    }

    /// Whether little is left of what log and store may take where keys are evicted for it.
    pub(in crate::shard) fn is_tight(&self) -> bool {
        self.evicts_at().is_some_and(|most| self.disk.taken_bytes() > most / PARTS * TIGHT)
    }

    /// How long who adds is to wait for the room of what has been removed, µs.
    pub(in crate::shard) fn room_delay(&self) -> u64 {
        let Some(most) = self.evicts_at() else { return 0 };
        let (free, taken) = (most / PARTS * TIGHT, self.disk.taken_bytes());
        MOST_DELAY_US * taken.min(most).saturating_sub(free) / (most - free).max(1)
    }

    /// Brings eviction a step further, if it has come to an end of what it was at.
    pub(in crate::shard) fn tend_eviction(&self) {
        let eviction = &self.eviction;
        let mut at = eviction.at.lock();
        let Some(most) = self.evicts_at() else {
            eviction.end_round();
            *at = Default::default();
            return;
        };
        match at.0 {
            At::Round(since) => {
                let is_due = eviction.parts.iter().any(|part| part.due.load(Ordering::Relaxed) > 0);
                if is_due && since.elapsed() < LONGEST {
                    return;
                }
                eviction.end_round();
                if eviction.gone.load(Ordering::Relaxed) == 0 {
                    at.0 = At::Wait(Instant::now() + IN_VAIN);
                    return;
                }
                // One that runs may have passed by what has gone.
                at.0 = At::Flush(self.flushes() + 1 + u64::from(self.flush_lock.is_locked()));
                return self.ask_flush();
            }
            At::Flush(flushes) if self.flushes() < flushes => {
                if !self.is_flushing() {
                    self.ask_flush();
                }
                return;
            }
            At::Wait(until) if Instant::now() < until => return,
            _ => {}
        }
        let (live, end) = (self.live_bytes(), most / PARTS * END);
        let goes_on = live > if at.1 { end } else { most / PARTS * BEGIN };
        *at = (At::Rest, goes_on);
        if goes_on {
            self.begin_round((live - end).min(live / MOST));
            at.0 = At::Round(Instant::now());
        }
    }

    /// Whether keys may go now: not during CLIENT PAUSE, and not so many that writers would wait for the flush of what has gone.
    pub(in crate::shard) fn takes_removals(&self) -> bool {
        let budget = self.dirty_budget.load(Ordering::Relaxed);
        self.gate.load(Ordering::Relaxed) & gate::PAUSED == 0 && (self.dirty_bytes() as u64) < budget / 4 * 3
    }

    fn flushes(&self) -> u64 {
        self.stats.flushes.load(Ordering::Relaxed)
    }

    /// Has so many bytes go, of each shard by what it has.
    fn begin_round(&self, bytes: u64) {
        self.eviction.gone.store(0, Ordering::Relaxed);
        self.eviction.rounds.fetch_add(1, Ordering::Relaxed);
        let all = super::store_bytes(&self.store).max(1);
        for (part, partition) in self.eviction.parts.iter().zip(self.store.partitions()) {
            let share = u128::from(bytes) * u128::from(partition.disk_bytes()) / u128::from(all);
            let due = if partition.disk_bytes() > 0 { (share as u64).max(1) } else { 0 };
            part.due.store(due, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_of_the_directive_but_one_evicts() {
        let names = ["volatile-lru", "volatile-lfu", "volatile-random", "volatile-ttl", "allkeys-lru", "allkeys-lfu"];
        let policies: Vec<_> = names.into_iter().chain(["allkeys-random"]).map(Policy::named).collect();
        assert!(policies.iter().all(Option::is_some) && Policy::named("noeviction").is_none());
        assert_eq!(policies.iter().flatten().filter(|policy| policy.volatile).count(), 4);
    }
}
