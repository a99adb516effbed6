//! The shard's own thread: work that may wait, and the timer.
//!
//! | every 100 ms | bounded by |
//! |---|---|
//! | expiry: keys of the table whose time is past, then fjall's expiry index | 128 keys per hold of the lock |
//! | garbage: elements of dropped bodies get tombstones | 1,024 elements a turn |
//! | dead namespaces: their objects leave the table, then fjall compacts | 1,024 places a turn |
//!
//! Invariants: only the sweep expires keys of its own accord, with count and log record in one commit; a key is
//! deleted only if its metadata holds the very time the index names.

use std::time::{Duration, Instant};

use crate::codec::{self, DiskKey};
use crate::error::Result;

use super::actor::{Job, Lease, ShardSet};
use super::core::{Core, ShardId, unreadable};
use super::engine::Engine;
use super::garbage::Stage;
use super::object::{Kind, state};
use super::txn::{Mark, Txn, WriteSet};

/// Time between two turns of a shard's timer.
pub const TURN: Duration = Duration::from_millis(100);
const SWEEP_SLICE: usize = 128;
const GARBAGE_SLICE: usize = 1024;
/// The order index goes when nobody has walked for this long, ms.
const ORDER_IDLE_MS: u64 = 10_000;

/// Body of the thread `shard-N`.
pub fn shard_thread(engine: &Engine, id: ShardId, work: &crossbeam_channel::Receiver<(ShardSet, Job)>) {
    let mut next_turn = Instant::now() + TURN;
    let mut timer = Timer::new(engine, id);
    while !engine.stopping.load(std::sync::atomic::Ordering::Relaxed) {
        if let Ok((shards, job)) = work.recv_deadline(next_turn) {
            drop(job(engine.lease(&shards)));
        }
        if Instant::now() >= next_turn {
            timer.turn(crate::util::time::now_ms());
            next_turn = Instant::now() + TURN;
        }
    }
}

/// The timer of one shard.
pub struct Timer<'a> {
    engine: &'a Engine,
    id: ShardId,
    set: WriteSet,
}

impl<'a> Timer<'a> {
    /// A timer for a shard.
    pub fn new(engine: &'a Engine, id: ShardId) -> Self {
        Timer { engine, id, set: WriteSet::default() }
    }

    /// One turn at this time.
    pub fn turn(&mut self, now_ms: u64) {
        if self.engine.refusal().is_some() {
            return;
        }
        let turns = [Self::expire_table, Self::expire_stored, Self::collect_garbage, Self::reap_namespaces];
        for turn in turns {
            if let Err(error) = turn(self, now_ms) {
                tracing::error!(shard = self.id, %error, "a turn of the shard's timer failed");
            }
        }
    }

    /// Runs one bounded transaction on the shard. The engine lives as long as the borrow.
    fn transact<R>(&mut self, now_ms: u64, run: impl FnOnce(&mut Txn<'_, 'a>) -> Result<R>) -> Result<R> {
        let lease: Lease<'a> = self.engine.lease(&[self.id]);
        let mut txn = Txn::new(lease, &self.engine.router, &mut self.set, now_ms, true);
        let result = run(&mut txn);
        let need = match &result {
            Ok(_) => txn.commit(&self.engine.log),
            Err(_) => {
                txn.rollback_to(Mark::default());
                0
            }
        };
        drop(txn);
        self.engine.write_out(need);
        result
    }

    fn active(&self) -> bool {
        self.engine.active_expire.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn expire_table(&mut self, now_ms: u64) -> Result {
        while self.active() && self.transact(now_ms, |txn| Ok(expire_slice(txn, now_ms)))? {}
        Ok(())
    }

    /// Keys that are on disk only.
    fn expire_stored(&mut self, now_ms: u64) -> Result {
        let mut core = self.engine.shards[self.id as usize].core();
        if core.order.is_some() && core.order_used_ms + ORDER_IDLE_MS < now_ms {
            core.order = None;
        }
        let (mut from, partition) = (core.sweep_from_ms, core.partition.clone());
        drop(core);
        if !self.active() || partition.disk_bytes() == 0 || from > now_ms {
            return Ok(());
        }
        loop {
            let range = codec::key::expiry_range(from, now_ms);
            let mut due = Vec::with_capacity(SWEEP_SLICE);
            let mut resume = from;
            for item in partition.range(&range.lower, &range.upper).map_err(unreadable)?.take(SWEEP_SLICE * 8) {
                let (key, _) = item.map_err(unreadable)?;
                if let Ok(DiskKey::Expiry { expire_ms, .. }) = codec::key::decode_key(&key) {
                    resume = expire_ms;
                }
                due.push(key.to_vec());
            }
            let ended = due.len() < SWEEP_SLICE * 8;
            for slice in due.chunks(SWEEP_SLICE) {
                self.transact(now_ms, |txn| slice.iter().try_for_each(|key| expire_record(txn, key)))?;
            }
            let mut core = self.engine.shards[self.id as usize].core();
            // What fjall still lists before `resume` is dead and leaves with the next flush.
            core.sweep_from_ms = if ended { now_ms + 1 } else { resume };
            drop(core);
            if ended {
                return self.expire_next_stored(now_ms);
            }
            if resume == from {
                // More keys than a slice at one millisecond: the records just handled are masked only after a flush.
                return self.expire_millisecond(now_ms, from);
            }
            from = resume;
        }
    }

    /// Walks all records of one millisecond, however many.
    fn expire_millisecond(&mut self, now_ms: u64, at_ms: u64) -> Result {
        let partition = self.engine.shards[self.id as usize].core().partition.clone();
        let mut range = codec::key::expiry_range(at_ms, at_ms);
        loop {
            let mut due = Vec::with_capacity(SWEEP_SLICE);
            for item in partition.range(&range.lower, &range.upper).map_err(unreadable)?.take(SWEEP_SLICE) {
                due.push(item.map_err(unreadable)?.0.to_vec());
            }
            let Some(last) = due.last() else { break };
            range.lower = codec::key::successor(last);
            self.transact(now_ms, |txn| due.iter().try_for_each(|key| expire_record(txn, key)))?;
        }
        let mut core = self.engine.shards[self.id as usize].core();
        core.sweep_from_ms = core.sweep_from_ms.max(at_ms + 1);
        Ok(())
    }

    /// Looks where fjall's index begins to be of interest again, so that idle turns cost nothing.
    fn expire_next_stored(&mut self, now_ms: u64) -> Result {
        let partition = self.engine.shards[self.id as usize].core().partition.clone();
        let range = codec::key::expiry_range(now_ms + 1, u64::MAX);
        let first = partition.range(&range.lower, &range.upper).map_err(unreadable)?.next();
        let mut core = self.engine.shards[self.id as usize].core();
        let next = match first {
            None => u64::MAX,
            Some(item) => match codec::key::decode_key(&item.map_err(unreadable)?.0) {
                Ok(DiskKey::Expiry { expire_ms, .. }) => expire_ms,
                _ => now_ms + 1,
            },
        };
        // A flush may have moved it back meanwhile.
        if core.sweep_from_ms == now_ms + 1 {
            core.sweep_from_ms = next;
        }
        Ok(())
    }

    fn collect_garbage(&mut self, now_ms: u64) -> Result {
        let shard = self.engine.shards[self.id as usize].clone();
        loop {
            let mut core = shard.core();
            let settled = core.settled;
            let live = |core: &Core, ns| core.names.is_live(ns);
            let Some((dead, stage)) = core.garbage.front().cloned() else { return Ok(()) };
            if !live(&core, dead.ns) {
                core.garbage.pop_front();
                continue;
            }
            match stage {
                Stage::Queued(flush) if flush <= settled => {
                    if let Some(front) = core.garbage.front_mut() {
                        front.1 = Stage::Scanning(dead.range().lower);
                    }
                }
                Stage::Removed(flush) if flush <= settled => {
                    drop(core);
                    self.transact(now_ms, |txn| {
                        txn.put_raw(0, dead.record_key(), None);
                        txn.lease[0].garbage.pop_front();
                        Ok(())
                    })?;
                }
                Stage::Scanning(from) => {
                    let partition = core.partition.clone();
                    drop(core);
                    let mut keys = Vec::new();
                    let range = partition.range(&from, &dead.range().upper).map_err(unreadable)?;
                    for item in range.take(GARBAGE_SLICE) {
                        keys.push(item.map_err(unreadable)?.0.to_vec());
                    }
                    let mut core = shard.core();
                    let after_flush = core.gathers + 1;
                    let next = match keys.last() {
                        Some(last) if keys.len() == GARBAGE_SLICE => Stage::Scanning(codec::key::successor(last)),
                        _ => Stage::Removed(after_flush),
                    };
                    for key in keys {
                        core.dirty_bytes += key.len() + super::object::ELEMENT_OVERHEAD;
                        core.raw.insert(key, None);
                    }
                    if let Some(front) = core.garbage.front_mut() {
                        front.1 = next;
                    }
                    drop(core);
                    return Ok(());
                }
                Stage::Queued(_) | Stage::Removed(_) => return Ok(()),
            }
        }
    }

    /// Objects of dead namespaces leave the table; once they have, fjall is asked to drop their records.
    fn reap_namespaces(&mut self, _now_ms: u64) -> Result {
        const PLACES: u32 = 1024;
        let shard = self.engine.shards[self.id as usize].clone();
        loop {
            let mut core = shard.core();
            let Some(from) = core.reap_from else { return Ok(()) };
            let end = core.table.places().min(from.saturating_add(PLACES));
            for index in from..end {
                let dead = core.table.is_used(index) && {
                    let object = core.table.at(index);
                    !core.names.is_live(object.ns) && object.state & state::IN_FLIGHT == 0
                };
                if dead {
                    core.discard(index);
                }
            }
            let done = end == core.table.places();
            core.reap_from = (!done).then_some(end);
            let partition = core.partition.clone();
            drop(core);
            if done {
                return partition.major_compact().map_err(unreadable);
            }
        }
    }
}

/// Removes the table's next keys whose time is past. True if there may be more.
fn expire_slice(txn: &mut Txn<'_, '_>, now_ms: u64) -> bool {
    for _ in 0..SWEEP_SLICE {
        let Some(&(expire_ms, index)) = txn.lease[0].expiry.first() else { return false };
        if expire_ms > now_ms {
            return false;
        }
        let core = &mut *txn.lease[0];
        if !core.names.is_live(core.table.at(index).ns) {
            core.set_expire(index, 0);
            continue;
        }
        core.stats.expired_keys += 1;
        txn.delete_at(0, index);
    }
    true
}

/// Removes a key that fjall's expiry index lists as due, if that is still so.
fn expire_record(txn: &mut Txn<'_, '_>, record: &[u8]) -> Result {
    let Ok(DiskKey::Expiry { expire_ms, ns, key: stored_key, .. }) = codec::key::decode_key(record) else {
        return Ok(());
    };
    let core = &mut *txn.lease[0];
    if !core.names.is_live(ns) {
        return Ok(());
    }
    let Some((key, index)) = core.fault_stored(txn.router, ns, stored_key)? else {
        core.raw.insert(record.to_vec(), None);
        return Ok(());
    };
    let object = core.table.at(index);
    if object.kind != Kind::Absent && object.expire_ms == expire_ms {
        core.stats.expired_keys += 1;
        txn.delete(ns, &key)?;
    } else if core.stored_ttl.get(&index) != Some(&expire_ms) {
        // Left behind by a crash or a failed flush: no object would remove it.
        core.raw.insert(record.to_vec(), None);
    }
    Ok(())
}
