//! A shard's part of an eviction: a hand that goes through what the store has, round and round, and takes some of what it comes by.
//!
//! | policy | it goes through | and takes |
//! |---|---|---|
//! | `allkeys-…` | the keys | of `maxmemory-samples` keys one |
//! | `volatile-…` | the times of keys, the next first | the same |
//! | `volatile-ttl` | these, in each round from the beginning | every one |
//!
//! Every key has its turn, wherever its name stands; what takes room is what the store shows, and newer keys are come by once a
//! flush has brought them. Which of the keys go is a matter of **rank**: first those that are not in memory, and so have not
//! been used of late; then those of which the second-level cache knows, none of them a small string; then those of the table, by
//! what that knows of their uses ([`crate::shard::memory::uses`]). How many of those met before had which rank is kept: of a range of keys that are all in use none goes,
//! of others the more.
//!
//! Invariants: what was read without the lock is looked at again under the lease that removes it; keys that a command holds, and
//! those that somebody waits for, stay; what goes is told of as when DEL removes it, and logged so, one record a step.

use std::time::{Duration, Instant};

use super::Timer;
use crate::codec::{self, DiskKey, ExpiryKind, Meta, NsId};
use crate::error::Result;
use crate::latency::{self, Event};
use crate::shard::engine::eviction::{By, Policy};
use crate::shard::memory::core::{Core, unreadable};
use crate::shard::memory::object::{Kind, Object};
use crate::shard::memory::reads::Reads;
use crate::shard::memory::table::table_hash;
use crate::shard::router::Router;
use crate::shard::txn::Txn;
use crate::shard::txn::changes::Swept;
use crate::store::Partition;
use crate::util::pace::Pace;
use crate::util::splitmix;

/// Time that a turn spends on it at most.
const TURN: Duration = Duration::from_millis(50);
/// Records read at a time, and their bytes.
const RUN: usize = 64;
const RUN_BYTES: usize = 256 << 10;
/// Keys that go under one hold of the lock at most.
const AT_ONCE: u64 = 32;
/// No more than such a part of the keys goes in a round, however small they seem.
const MOST_KEYS: u64 = 8;
/// Keys met from which on ranks say something; before, only what is not in memory goes.
const LEARNT: u32 = 1024;
/// Times around without a key that may go, after which there is none.
const LAPS: u32 = 4;
/// What a record takes on disk beside key and value, about.
const RECORD: u64 = 16;

/// Rank of a key that is not in memory. The higher goes first.
const COLD: u8 = u8::MAX;
/// Of one that is in the second-level cache, or was not used since it has come from the store.
const WARM: u8 = 200;

/// A key that the hand has come by, as the store shows it.
struct Met {
    ns: NsId,
    key: Vec<u8>,
    expire_ms: u64,
}

/// What has gone in a step.
#[derive(Debug, Default, Clone, Copy)]
struct Gone {
    keys: u64,
    bytes: u64,
    /// A part of the bytes: those of collections, which a queue leads to.
    buried: u64,
}

/// Where eviction stands in a shard.
pub(super) struct Hand {
    policy: Policy,
    round: u64,
    /// Keys that may still go in the round.
    keys_left: u64,
    /// Where it goes on; empty for the beginning.
    next: Vec<u8>,
    /// Times around since it last took a key.
    laps: u32,
    ranks: Ranks,
    /// Enough keys were met, or all there are.
    learnt: bool,
    chance: u64,
}

impl Timer<'_> {
    /// Removes the shard's part of a round, or some of it.
    pub(super) fn evict(&mut self, now_ms: u64) -> Result {
        let (engine, id) = (self.engine, self.id);
        let (eviction, (round, due)) = (&engine.eviction, engine.eviction.due(id));
        let Some(policy) = eviction.policy().filter(|_| due > 0 && engine.takes_removals()) else { return Ok(()) };
        let partition = engine.store.partition(id).clone();
        let known = self.hand.take().filter(|hand| hand.policy == policy);
        let mut hand = match known {
            Some(hand) => hand,
            None => Hand::new(policy, &partition, now_ms)?,
        };
        if hand.round != round {
            hand.begin(round, self.with_core(|core| core.keys()));
        }
        let (began, mut pace) = (Instant::now(), Pace::new());
        let mut done = Ok(());
        let goes_on = || eviction.due(id).1 > 0 && engine.takes_removals() && began.elapsed() < TURN;
        while done.is_ok() && goes_on() {
            done = self.evict_some(&mut hand, &partition, now_ms);
            if done.is_err() || hand.keys_left == 0 || hand.laps >= LAPS {
                eviction.end_part(id);
                hand.laps = 0;
            }
            if self.gives_way(&mut pace) {
                break;
            }
        }
        self.hand = Some(hand);
        latency::keep(Event::EvictionCycle, began.elapsed().as_nanos() as u64);
        done
    }

    /// One step of the hand.
    fn evict_some(&mut self, hand: &mut Hand, partition: &Partition, now_ms: u64) -> Result {
        let run = hand.read(partition, now_ms)?;
        let (_, due) = self.engine.eviction.due(self.id);
        let (samples, bulk) = (self.engine.eviction.samples(), partition.bulk());
        let average = bulk.bytes.checked_div(bulk.records).unwrap_or(0).max(RECORD);
        let began = Instant::now();
        let gone = self.transact(now_ms, |txn| Ok(hand.take(txn, &run, due, samples, average)))?;
        if gone.keys > 0 {
            latency::keep(Event::EvictionDel, began.elapsed().as_nanos() as u64);
            (hand.laps, hand.keys_left) = (0, hand.keys_left.saturating_sub(gone.keys));
            self.engine.eviction.gone(self.id, gone.keys, gone.bytes, gone.buried);
        }
        Ok(())
    }
}

impl Hand {
    /// Somewhere, so that a server that is often started anew does not always begin with the same keys.
    fn new(policy: Policy, partition: &Partition, now_ms: u64) -> Result<Hand> {
        let mut chance = now_ms;
        let mut hand = Hand {
            policy,
            round: 0,
            keys_left: 0,
            next: Vec::new(),
            laps: 0,
            ranks: Ranks::default(),
            learnt: false,
            chance: 0,
        };
        let tables = partition.tables().map_err(unreadable)?;
        hand.next = tables.some_beginning(&hand.range(now_ms), splitmix::next(&mut chance));
        hand.chance = chance;
        Ok(hand)
    }

    fn begin(&mut self, round: u64, keys: u64) {
        (self.round, self.keys_left, self.laps) = (round, keys / MOST_KEYS + AT_ONCE, 0);
        if self.policy.by == By::Time {
            self.next.clear();
        }
    }

    /// What it goes through.
    fn range(&self, now_ms: u64) -> codec::KeyRange {
        match self.policy.volatile {
            true => codec::key::expiry_range(now_ms + 1, u64::MAX),
            false => codec::key::tag_range(codec::key::tag::META),
        }
    }

    /// The next keys; none at the end of a time around. May wait for the disk: not under the lock.
    fn read(&mut self, partition: &Partition, now_ms: u64) -> Result<Vec<Met>> {
        let range = self.range(now_ms);
        let (mut run, mut last, mut bytes) = (Vec::with_capacity(RUN), None, 0);
        for item in partition.range((&self.next).max(&range.lower), &range.upper).map_err(unreadable)? {
            let (record, value) = item.map_err(unreadable)?;
            run.extend(met(partition, &record, &value)?);
            bytes += record.len() + value.len();
            last = Some(record);
            if run.len() == RUN || bytes > RUN_BYTES {
                break;
            }
        }
        let is_end = run.len() < RUN && bytes <= RUN_BYTES;
        self.laps += u32::from(is_end);
        self.learnt |= is_end || self.ranks.all >= LEARNT;
        self.next = last.filter(|_| !is_end).map(|last| codec::key::successor(&last)).unwrap_or_default();
        Ok(run)
    }

    /// Removes of a run what is to go, about so many bytes at most. `average` is what a record takes.
    fn take(&mut self, txn: &mut Txn<'_, '_>, run: &[Met], due: u64, samples: u64, average: u64) -> Gone {
        let (policy, now_ms, router) = (self.policy, txn.now_ms, txn.router);
        let ranks: Vec<_> = run.iter().map(|met| rank(&txn.lease[0], router, policy, met, now_ms)).collect();
        ranks.iter().flatten().for_each(|&rank| self.ranks.note(rank));
        let bar = self.ranks.bar(samples);
        let mut gone = Gone::default();
        for (met, rank) in run.iter().zip(ranks).filter_map(|(met, rank)| Some((met, rank?))) {
            if gone.keys >= AT_ONCE.min(self.keys_left) || gone.bytes >= due {
                break;
            }
            let goes = match policy.by {
                By::Time => true,
                By::Use | By::Frequency if !self.learnt => rank >= WARM,
                _ => bar.lets_go(rank, splitmix::next(&mut self.chance)),
            };
            if goes {
                remove(txn, policy, met, average, &mut gone);
            }
        }
        gone
    }
}

/// The key of a record; none of one that is no key's, or cannot be understood.
fn met(partition: &Partition, record: &[u8], value: &[u8]) -> Result<Option<Met>> {
    let met = match codec::key::decode_key(record) {
        Ok(DiskKey::Meta { ns, key }) => Meta::decode(value).ok().map(|(meta, long_key, _)| {
            let key = long_key.unwrap_or(key).to_vec();
            Met { ns, key, expire_ms: meta.expire_ms }
        }),
        Ok(DiskKey::Expiry { expire_ms, kind: ExpiryKind::Key, ns, key }) if codec::is_long_form(key) => {
            let mut meta = Vec::new();
            codec::key::meta_key_of_stored(ns, key, &mut meta);
            let value = partition.get_aside(&meta).map_err(unreadable)?;
            let meta = value.as_ref().and_then(|value| Meta::decode(value).ok());
            meta.and_then(|(_, long_key, _)| Some(Met { ns, key: long_key?.to_vec(), expire_ms }))
        }
        Ok(DiskKey::Expiry { expire_ms, kind: ExpiryKind::Key, ns, key }) => {
            Some(Met { ns, key: key.to_vec(), expire_ms })
        }
        _ => None,
    };
    Ok(met)
}

/// The rank of a key; none of one that does not go, or is gone.
fn rank(core: &Core, router: &Router, policy: Policy, met: &Met, now_ms: u64) -> Option<u8> {
    let Met { ns, key, expire_ms } = met;
    if !core.names.is_live(*ns) || core.busy.holds(key) || core.blocked.has_line(*ns, key) {
        return None;
    }
    let hash = table_hash(router.hash(key), *ns);
    let Some(index) = core.table.find(hash, *ns, key) else {
        let is_live = *expire_ms == 0 || *expire_ms > now_ms;
        return is_live.then(|| if core.cold.contains(hash, *ns, key) { WARM } else { COLD });
    };
    let object = core.table.at(index);
    if !is_meant(policy, object, met, now_ms) {
        return None;
    }
    Some(match (policy.by, core.uses.frequency()) {
        (By::Use | By::Frequency, _) if object.used == 0 => WARM,
        (By::Use, None) => idle_rank(crate::shard::memory::uses::idle_s(object.used, now_ms)),
        (By::Frequency, Some(frequency)) => WARM - frequency.count(object.used, now_ms).min(WARM),
        _ => 0,
    })
}

/// Eight ranks for each doubling of the time without use.
fn idle_rank(idle_s: u16) -> u8 {
    let time = (u32::from(idle_s) + 1) << 3;
    let power = time.ilog2() - 3;
    (power * 8 + (time >> power) % 8) as u8
}

/// Whether an object is what the store shows, as far as the policy goes by that.
fn is_meant(policy: Policy, object: &Object, met: &Met, now_ms: u64) -> bool {
    object.is_live(now_ms) && (!policy.volatile || object.expire_ms == met.expire_ms)
}

/// Removes a key, if it still is what it was. What cannot be read stays; the log tells of it.
fn remove(txn: &mut Txn<'_, '_>, policy: Policy, met: &Met, average: u64, gone: &mut Gone) {
    let (now_ms, hash) = (txn.now_ms, txn.router.hash(&met.key));
    let core = &mut *txn.lease[0];
    // The store has just read what it is asked for here.
    let Ok(Some(index)) = core.fault(hash, met.ns, &met.key, &mut Reads::blocking()) else { return };
    let object = core.table.at(index);
    if !is_meant(policy, object, met, now_ms) {
        return;
    }
    let buried = buried_bytes(object, average);
    gone.keys += 1;
    gone.bytes += object.bytes.len() as u64 + RECORD + buried;
    gone.buried += buried;
    core.stats.evicted_keys += 1;
    txn.sweep_away(0, index, Swept::Evicted);
}

/// About what the elements of an object take on disk.
fn buried_bytes(object: &Object, average: u64) -> u64 {
    let Some(body) = &object.body else { return 0 };
    let elements = body.size.max(body.overlay.len() as u64);
    match object.kind {
        Kind::String => body.size,
        Kind::Zset => elements.saturating_mul(2 * average),
        _ => elements.saturating_mul(average),
    }
}

/// How many of the keys that were met of late had which rank.
struct Ranks {
    counts: [u32; 256],
    all: u32,
}

/// From which rank on keys go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bar {
    rank: u8,
    /// Of this very rank so many...
    go: u32,
    /// ... of so many.
    of: u32,
}

impl Default for Ranks {
    fn default() -> Self {
        Ranks { counts: [0; 256], all: 0 }
    }
}

impl Ranks {
    /// Keys that are remembered, at most.
    const MOST: u32 = 1 << 14;

    fn note(&mut self, rank: u8) {
        self.counts[usize::from(rank)] += 1;
        self.all += 1;
        if self.all == Ranks::MOST {
            self.counts.iter_mut().for_each(|count| *count /= 2);
            self.all = self.counts.iter().sum();
        }
    }

    /// The bar above which there is one of so many.
    fn bar(&self, samples: u64) -> Bar {
        let wanted = u64::from(self.all).div_ceil(samples.max(1)) as u32;
        let mut above = 0;
        for rank in (0..=u8::MAX).rev() {
            let count = self.counts[usize::from(rank)];
            if count > 0 && above + count >= wanted {
                return Bar { rank, go: wanted - above, of: count };
            }
            above += count;
        }
        Bar { rank: u8::MAX, go: 0, of: 1 }
    }
}

impl Bar {
    fn lets_go(self, rank: u8, chance: u64) -> bool {
        rank > self.rank || rank == self.rank && chance % u64::from(self.of) < u64::from(self.go)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_rise_with_the_time_without_use() {
        let ranks = [0, 1, 2, 3, 10, 11, 60, 3600, 65_535].map(idle_rank);
        assert!(ranks.is_sorted_by(|a, b| a < b), "{ranks:?}");
        assert!(idle_rank(u16::MAX) < WARM);
    }

    #[test]
    fn one_of_so_many_goes_and_the_highest_ranks_first() {
        let mut ranks = Ranks::default();
        assert!(!ranks.bar(5).lets_go(COLD, 0), "nothing was met");
        (0..100).for_each(|n| ranks.note(if n < 10 { COLD } else { 7 }));
        let bar = ranks.bar(5);
        assert_eq!(bar, Bar { rank: 7, go: 10, of: 90 });
        assert!(bar.lets_go(COLD, 50) && bar.lets_go(7, 99) && !bar.lets_go(7, 10) && !bar.lets_go(6, 0));
        assert_eq!(ranks.bar(20), Bar { rank: COLD, go: 5, of: 10 });
        assert_eq!(ranks.bar(1), Bar { rank: 7, go: 90, of: 90 });
        // What was long ago counts less and less.
        (0..10 * Ranks::MOST).for_each(|_| ranks.note(3));
        assert!(ranks.all < Ranks::MOST && ranks.bar(2).rank == 3);
    }
}
