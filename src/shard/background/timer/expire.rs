//! A shard's part of expiry: keys whose time is past, in the table and in fjall's expiry index, and fields of hashes.
//!
//! What fjall's index lists is read before the lock is taken to remove it, so that others wait for no disk. Records so large that not all of
//! a slice's can be kept are read once more under it, when the system has them at hand, and so are those of long keys, which the index does not name.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Timer;
use crate::codec::{self, DiskKey, ExpiryKind};
use crate::error::Result;
use crate::shard::background::fields::{self, FieldSweep};
use crate::shard::memory::core::{Core, unreadable};
use crate::shard::memory::object::Kind;
use crate::shard::memory::reads::{MOST_READS, Reads};
use crate::shard::memory::table::table_hash;
use crate::shard::router::Router;
use crate::shard::txn::Txn;
use crate::shard::txn::changes::Swept;
use crate::store::Partition;
use crate::util::pace::Pace;

/// Keys per hold of the lock.
pub(in crate::shard) const SWEEP_SLICE: usize = 128;
const _: () = assert!(SWEEP_SLICE <= MOST_READS, "all of a slice can be wanted");
/// Time that a turn spends on fields at most: the thread has other work.
const FIELDS_TURN: Duration = Duration::from_millis(50);
/// Hashes whose fields are swept per hold of the lock at most.
const FIELDS_HASHES: usize = 32;

impl Timer<'_> {
    fn active(&self) -> bool {
        self.engine.active_expire.load(Ordering::Relaxed)
    }

    pub(super) fn expire_table(&mut self, now_ms: u64) -> Result {
        let mut pace = Pace::of_writers();
        while self.active() && self.transact(now_ms, |txn| Ok(expire_slice(txn, now_ms)))? {
            if self.gives_way(&mut pace) {
                break;
            }
        }
        Ok(())
    }

    /// Keys that are on disk only. A sweep takes the mark where it starts, and leaves one where the next is to start; flushes that
    /// bring earlier times meanwhile move it back.
    pub(in crate::shard) fn expire_stored(&mut self, now_ms: u64) -> Result {
        if !self.active() {
            return Ok(());
        }
        let under_way = self.stored.take();
        let (partition, begun) = self.with_core(|core| {
            let due = core.sweep_from_ms <= now_ms && core.partition.disk_bytes() > 0;
            let begun = under_way
                .or_else(|| due.then(|| Sweep::new(std::mem::replace(&mut core.sweep_from_ms, u64::MAX), now_ms)));
            (core.partition.clone(), begun)
        });
        let Some(mut sweep) = begun else { return Ok(()) };
        let (from_ms, until_ms) = (sweep.from_ms, sweep.until_ms);
        let next = match self.sweep(&partition, &mut sweep, now_ms) {
            Ok(false) => {
                self.stored = Some(sweep);
                return Ok(());
            }
            Ok(true) => sweep.failed.and_then(|()| next_stored(&partition, until_ms)),
            Err(error) => Err(error),
        };
        let mark = *next.as_ref().unwrap_or(&from_ms);
        self.with_core(|core| core.sweep_from_ms = core.sweep_from_ms.min(mark));
        next.map(drop)
    }

    /// Removes what is due. False if something is left for the next turn.
    fn sweep(&mut self, partition: &Partition, sweep: &mut Sweep, now_ms: u64) -> Result<bool> {
        let mut pace = Pace::of_writers();
        loop {
            let range = codec::key::expiry_range(sweep.from_ms, sweep.until_ms);
            let mut due = Vec::with_capacity(SWEEP_SLICE);
            let records = partition.range((&sweep.next).max(&range.lower), &range.upper).map_err(unreadable)?;
            for item in records.take(SWEEP_SLICE) {
                due.push(item.map_err(unreadable)?.0.to_vec());
            }
            let Some(last) = due.last() else { return Ok(true) };
            // They are listed until the next flush has brought their removal.
            sweep.next = codec::key::successor(last);
            let mut reads = self.with_core(|core| wanted_of(core, &self.engine.router, &due));
            reads.bring_all();
            pace.step();
            self.transact(now_ms, |txn| {
                for record in &due {
                    let done = expire_record(txn, record, &mut reads);
                    if sweep.failed.is_ok() {
                        sweep.failed = done;
                    }
                }
                Ok(())
            })?;
            if due.len() < SWEEP_SLICE {
                return Ok(true);
            }
            if self.gives_way(&mut pace) {
                return Ok(false);
            }
        }
    }

    /// Fields of the table's hashes that are due.
    pub(super) fn expire_fields(&mut self, now_ms: u64) -> Result {
        let (started, mut pace) = (Instant::now(), Pace::of_writers());
        let mut more = true;
        while more && self.active() && started.elapsed() < FIELDS_TURN {
            let mut sweep = self.fields.take();
            let swept = self.transact(now_ms, |txn| sweep_hashes(txn, &mut sweep, now_ms));
            more = swept?;
            self.fields = sweep;
            if more && self.gives_way(&mut pace) {
                break;
            }
        }
        Ok(())
    }
}

/// A sweep through fjall's expiry index.
pub(super) struct Sweep {
    /// The first time that it looks for, and the last: it comes to an end, however many turns that takes.
    from_ms: u64,
    until_ms: u64,
    /// The record to go on with.
    next: Vec<u8>,
    /// The first failure: what cannot be read now keeps back nothing behind it, and is met again by the next sweep.
    failed: Result,
}

impl Sweep {
    fn new(from_ms: u64, until_ms: u64) -> Sweep {
        Sweep { from_ms, until_ms, next: Vec::new(), failed: Ok(()) }
    }
}

/// What is to be read of the keys that these records list, before the lock is taken to remove them. Of long keys nothing, as the
/// records do not name them. What they list is most likely there.
fn wanted_of(core: &Core, router: &Router, due: &[Vec<u8>]) -> Reads {
    let mut reads = Reads::blocking();
    for record in due {
        if let Ok(DiskKey::Expiry { ns, key, .. }) = codec::key::decode_key(record)
            && core.names.is_live(ns)
            && !codec::is_long_form(key)
        {
            core.want(table_hash(router.hash(key), ns), ns, key, None, &mut reads);
        }
    }
    reads.are_likely();
    reads
}

/// The first time that fjall's expiry index lists after this one, so that idle turns cost nothing.
fn next_stored(partition: &Partition, now_ms: u64) -> Result<u64> {
    let range = codec::key::expiry_range(now_ms + 1, u64::MAX);
    let Some(first) = partition.range(&range.lower, &range.upper).map_err(unreadable)?.next() else {
        return Ok(u64::MAX);
    };
    match codec::key::decode_key(&first.map_err(unreadable)?.0) {
        Ok(DiskKey::Expiry { expire_ms, .. }) => Ok(expire_ms),
        _ => Ok(now_ms + 1),
    }
}

/// Removes the table's next keys whose time is past. True if there may be more.
fn expire_slice(txn: &mut Txn<'_, '_>, now_ms: u64) -> bool {
    for _ in 0..SWEEP_SLICE {
        let core = &mut *txn.lease[0];
        let due = core.expiry.iter().take_while(|(expire_ms, _)| *expire_ms <= now_ms);
        // What a command goes through stays as long as it does.
        let mut free = due.filter(|(_, index)| !core.busy.holds(core.table.at(*index).key()));
        let Some(&(_, index)) = free.next() else { return false };
        if !core.names.is_live(core.table.at(index).ns) {
            core.set_expire(index, 0);
            continue;
        }
        txn.sweep_away(0, index, Swept::Key);
    }
    true
}

/// Goes on with the sweep of a hash, or with the next ones. False once no hash is due.
pub(in crate::shard) fn sweep_hashes(
    txn: &mut Txn<'_, '_>,
    sweep: &mut Option<FieldSweep>,
    now_ms: u64,
) -> Result<bool> {
    let mut seen = 0;
    for _ in 0..FIELDS_HASHES {
        let Some(next) = sweep.take().or_else(|| FieldSweep::next(&mut txn.lease[0], now_ms)) else { return Ok(false) };
        let next = sweep.insert(next);
        if next.waits(&txn.lease[0]) {
            // It was put off, and is looked at again from its beginning.
            *sweep = None;
            continue;
        }
        let slice = txn.sweep_fields(next)?;
        if slice.ended {
            *sweep = None;
        }
        seen += slice.seen;
        if seen >= fields::SLICE.get() {
            break;
        }
    }
    Ok(true)
}

/// Removes a key that fjall's expiry index lists as due, if that is still so. A hash of which fields are due it brings
/// to the table, where the sweep of fields finds it.
fn expire_record(txn: &mut Txn<'_, '_>, record: &[u8], reads: &mut Reads) -> Result {
    let Ok(DiskKey::Expiry { expire_ms, kind, ns, key: stored_key }) = codec::key::decode_key(record) else {
        return Ok(());
    };
    let core = &mut *txn.lease[0];
    if !core.names.is_live(ns) {
        core.put_raw(record.to_vec(), None);
        return Ok(());
    }
    let Some((key, index)) = core.fault_stored(txn.router, ns, stored_key, reads)? else {
        core.put_raw(record.to_vec(), None);
        return Ok(());
    };
    if core.busy.holds(&key) {
        // From the table it goes when it is let go; if it has left that by then, from here.
        core.sweep_from_ms = core.sweep_from_ms.min(expire_ms);
        return Ok(());
    }
    let object = core.table.at(index);
    if kind == ExpiryKind::Field {
        if object.fields_due_ms() != expire_ms && core.fields.stored_ms(index) != expire_ms {
            core.put_raw(record.to_vec(), None);
        }
    } else if object.kind != Kind::Absent && object.expire_ms == expire_ms {
        txn.sweep_away(0, index, Swept::Key);
    } else if core.stored_ttl.get(&index) != Some(&expire_ms) {
        // Left behind by a crash or a failed flush: no object would remove it.
        core.put_raw(record.to_vec(), None);
    }
    Ok(())
}
