//! Opening: what fjall holds besides keys, then the redo log's records, applied to the tables in their order.
//!
//! Records are physical, so applying one twice, or one whose effect fjall already holds, does no harm: whatever a
//! record touches is brought to its final state by the records after it. A partial change (a patch, an element, a
//! time) of something that is not there, or not of its version any more, is stale and passed over: the record that
//! removed or replaced it follows.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::codec::{self, DiskKey, Meta, NamespaceMap, NsId, redo::Op};
use crate::error::Result;
use crate::log::{Lsn, Replay};

use crate::shard::engine::{Engine, OpenError};
use crate::shard::memory::blind::Birth;
use crate::shard::memory::core::{Core, storage};
use crate::shard::memory::garbage;
use crate::shard::memory::names::Names;
use crate::shard::memory::object::{Kind, state};
use crate::shard::memory::overlay::{self, Entry};
use crate::shard::memory::reads::Reads;
use crate::shard::memory::reap::Reap;
use crate::shard::memory::table::Index;
use crate::shard::memory::table::table_hash;
use crate::shard::router::ShardId;

fn bad(what: impl std::fmt::Display) -> OpenError {
    OpenError::Record(what.to_string())
}

/// Reads counts from a shard's partition, its last key, and whether there is garbage.
pub fn load_small_records(core: &mut Core) -> Result<(), OpenError> {
    let partition = core.partition.clone();
    let range = codec::key::tag_range(codec::key::tag::COUNT);
    for item in partition.range(&range.lower, &range.upper)? {
        let (key, value) = item?;
        if let DiskKey::Count { ns } = codec::key::decode_key(&key).map_err(bad)?
            && core.names.is_live(ns)
        {
            core.counts.insert(ns, stored_count(codec::key::decode_count(&value).map_err(bad)?));
        }
    }
    let mut key = Vec::new();
    codec::key::flushed_key(&mut key);
    if let Some(value) = partition.get(&key)? {
        core.stored_lsn = codec::key::decode_flushed(&value).map_err(bad)?.0;
    }
    let keys = codec::key::tag_range(codec::key::tag::META);
    if let Some(last) = partition.range(&keys.lower, &keys.upper)?.next_back()
        && let DiskKey::Meta { ns, key } = codec::key::decode_key(&last?.0).map_err(bad)?
    {
        core.membership.opened_with(ns, key);
    }
    core.garbage.load(&partition)?;
    core.dead_names.load(&partition)?;
    Ok(())
}

/// A count as it was stored; of one that no shard can have, damage left it, the sign is no use.
fn stored_count(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(0)
}

/// No value is patched behind this, the longest that a client can make.
const MOST_OFFSET: u64 = 1 << 32;

/// Records between two looks at the dirty budget.
const MOST_RECORDS: usize = if cfg!(test) { 4 } else { usize::MAX };

/// Applies every record of the log, and starts it.
pub fn run(engine: &Arc<Engine>, mut replay: Replay) -> Result<(), OpenError> {
    apply_all(engine, &mut replay)?;
    engine.start_log(replay)?;
    complete_names(engine)
}

/// Applies every record of the log and brings all of it to the store. The log stays as it is, and is of no more use.
pub(super) fn settle(engine: &Arc<Engine>, mut replay: Replay) -> Result<Lsn, OpenError> {
    apply_all(engine, &mut replay)?;
    engine.store_all().map_err(bad)?;
    Ok(replay.last())
}

fn apply_all(engine: &Engine, replay: &mut Replay) -> Result<(), OpenError> {
    let mut records = 0u64;
    let threads = crate::shard::engine::cores().min(engine.shards.count());
    let mut batch = Batch::default();
    loop {
        let more = batch.fill(replay)?;
        batch.apply(engine, threads).map_err(bad)?;
        records += batch.records.len() as u64;
        engine.stats.replayed_records.store(records, Ordering::Relaxed);
        if !more {
            break;
        }
        if over_budget(engine) {
            engine.open_end().map_err(bad)?;
            // Nothing may be deleted meanwhile: what follows in the log still needs its place.
            engine.store_tables().map_err(bad)?;
        }
    }
    for shard in engine.shards.iter() {
        bury_pending(&mut shard.core())?;
    }
    Ok(())
}

/// Turns what a crash has left of big results that were being built into garbage. Not logged: the pending record stays
/// until the flush that takes this along, so that another start does the same.
fn bury_pending(core: &mut Core) -> Result<(), OpenError> {
    let range = codec::key::tag_range(codec::key::tag::PENDING);
    let stored = core.partition.range(&range.lower, &range.upper)?.map(|item| item.map(|(key, _)| key.to_vec()));
    let mut pending = stored.collect::<std::result::Result<BTreeSet<_>, _>>()?;
    for (key, value) in core.raw.range(range.lower..range.upper) {
        match value {
            Some(_) => pending.insert(key.clone()),
            None => pending.remove(key),
        };
    }
    for key in pending {
        core.put_raw(garbage::garbage_of_pending(&key), Some(Vec::new()));
        core.put_raw(key, None);
    }
    Ok(())
}

/// Gives every numbered database its id. Before a key is written under it the id must be in the log: the number of
/// databases may be another one next time, and an id is never given twice.
fn complete_names(engine: &Engine) -> Result<(), OpenError> {
    let mut lease = engine.lease(&engine.all_shards());
    let names = Names::new(lease[0].names.map().clone(), engine.options.databases);
    let (mut key, mut record) = (Vec::new(), Vec::new());
    codec::key::names_key(&mut key);
    names.map().encode(&mut record);
    let known = match lease[0].raw.get(&key) {
        Some(logged) => logged.clone(),
        None => lease[0].partition.get(&key)?.map(|stored| stored.to_vec()),
    };
    if known.as_ref() == Some(&record) {
        return Ok(());
    }
    let lsn = engine.log.append(|_, out| codec::redo::encode_names(&record, out));
    lease[0].put_raw(key, Some(record));
    let names = Arc::new(names);
    for core in lease.iter_mut() {
        core.names = names.clone();
        core.last_lsn = lsn;
    }
    drop(lease);
    engine.write_out(lsn);
    Ok(())
}

/// Records that are applied together, by several threads: each takes the operations of its own shards, in their order.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    /// LSN and end in `bytes` of each record.
    records: Vec<(Lsn, usize)>,
}

/// Bytes of a batch; the dirty budget is looked at between two.
const BATCH_BYTES: usize = 4 << 20;

impl Batch {
    /// Takes the next records. False at the end of the log.
    fn fill(&mut self, replay: &mut Replay) -> Result<bool, OpenError> {
        self.bytes.clear();
        self.records.clear();
        while self.bytes.len() < BATCH_BYTES && self.records.len() < MOST_RECORDS {
            let Some((lsn, payload)) = replay.next_record()? else { return Ok(false) };
            self.bytes.extend_from_slice(payload);
            self.records.push((lsn, self.bytes.len()));
        }
        Ok(true)
    }

    fn apply(&self, engine: &Engine, threads: usize) -> Result<(), String> {
        if threads < 2 || self.bytes.len() < BATCH_BYTES / 8 {
            return self.apply_part(engine, |_| true);
        }
        std::thread::scope(|scope| {
            let part = |n| move || self.apply_part(engine, |shard| shard as usize % threads == n);
            let parts: Vec<_> = (0..threads).map(|n| scope.spawn(part(n))).collect();
            parts.into_iter().try_for_each(|part| match part.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            })
        })
    }

    fn apply_part(&self, engine: &Engine, mine: impl Fn(ShardId) -> bool) -> Result<(), String> {
        let mut from = 0;
        for &(lsn, end) in &self.records {
            for op in codec::redo::Ops::new(&self.bytes[from..end]) {
                apply(engine, lsn, &op.map_err(|e| e.to_string())?, &mine)?;
            }
            from = end;
        }
        Ok(())
    }
}

/// Whether what was applied has to go to fjall before more is. Nothing else wants the tables' memory yet, and a flush costs
/// every partition some syncs, however little it gets, but cuts no log: the dirty budget, which keeps flushes in step with
/// writers, would have a start do many small ones in vain, and clients wait for them. Behind the replay it counts again.
fn over_budget(engine: &Engine) -> bool {
    let dirty: usize = engine.shards.iter().map(|s| s.core().dirty_bytes).sum();
    let most = engine.dirty_budget.load(Ordering::Relaxed).max(engine.options.table_budget as u64 / 8 * 7);
    dirty as u64 > most
}

fn apply(engine: &Engine, lsn: Lsn, op: &Op<'_>, mine: &impl Fn(ShardId) -> bool) -> Result<(), String> {
    let with_key = |ns: NsId, key: &[u8], run: &mut dyn FnMut(&mut Core, u64) -> Result| {
        let hash = engine.router.hash(key);
        let shard = engine.router.shard(hash, key);
        if !mine(shard) {
            return Ok(());
        }
        let mut core = engine.shards.at(shard).core();
        core.last_lsn = lsn;
        if !core.names.is_live(ns) {
            return Ok(());
        }
        core.make_room();
        run(&mut core, hash).map_err(|e| e.to_string())
    };
    match *op {
        Op::Patch { offset, .. } | Op::ElemPatch { offset, .. } if offset > MOST_OFFSET => {
            Err(format!("record {lsn} patches a value at offset {offset}"))
        }
        Op::Put { ns, key, header, value } => {
            let mut meta = Meta::decode(header).map_err(|e| e.to_string())?.0;
            meta.resolve_version(lsn);
            with_key(ns, key, &mut |core, hash| put(core, hash, lsn, (ns, key), &meta, value))
        }
        Op::Delete { ns, key } => with_key(ns, key, &mut |core, hash| {
            let index = claim(core, hash, lsn, (ns, key), None)?;
            delete(core, index, lsn);
            Ok(())
        }),
        Op::Patch { ns, key, offset, bytes } => with_key(ns, key, &mut |core, hash| {
            let Some(index) = core.fault(hash, ns, key, &mut Reads::blocking())? else { return Ok(()) };
            patch(core, index, lsn, offset as usize, bytes);
            Ok(())
        }),
        Op::Expire { ns, key, expire_ms } => with_key(ns, key, &mut |core, hash| {
            let Some(index) = core.fault(hash, ns, key, &mut Reads::blocking())? else { return Ok(()) };
            if core.table.at(index).kind != Kind::Absent {
                core.set_expire(index, expire_ms);
                stamp(core, index, lsn);
            }
            Ok(())
        }),
        Op::ElemPut { ns, key, version, elem, value } => with_key(ns, key, &mut |core, hash| {
            let new = |_: Option<&Entry>, state| Entry::new(elem, Some(value), state);
            change_element(core, hash, lsn, (ns, key, version), elem, new)
        }),
        Op::ElemDelete { ns, key, version, elem } => with_key(ns, key, &mut |core, hash| {
            let new = |_: Option<&Entry>, state| Entry::new(elem, None, state);
            change_element(core, hash, lsn, (ns, key, version), elem, new)
        }),
        Op::ElemPatch { ns, key, version, elem, offset, bytes } => with_key(ns, key, &mut |core, hash| {
            change_element(core, hash, lsn, (ns, key, version), elem, |old, state| {
                let mut value = old.and_then(Entry::value).unwrap_or_default().to_vec();
                let end = offset as usize + bytes.len();
                value.resize(value.len().max(end), 0);
                value[offset as usize..end].copy_from_slice(bytes);
                Entry::new(elem, Some(&value), state)
            })
        }),
        Op::Count { shard, ns, count } => with_shard(engine, shard, lsn, mine, |core| {
            if core.names.is_live(ns) {
                core.set_count(ns, stored_count(count));
            }
        }),
        Op::Raw { shard, key, value } => with_shard(engine, shard, lsn, mine, |core| {
            core.put_raw(key.to_vec(), value.map(<[u8]>::to_vec));
        }),
        Op::Blind { ns, key, number } => with_key(ns, key, &mut |core, hash| blind(core, hash, lsn, (ns, key), number)),
        Op::Sighted { shard, number } => with_shard(engine, shard, lsn, mine, |core| core.sighted(number)),
        Op::Names(map) => {
            let map = NamespaceMap::decode(map).map_err(|e| e.to_string())?;
            let names = Arc::new(Names::from_map(map));
            let all = engine.shards.iter().enumerate();
            for (_, shard) in all.filter(|&(id, _)| mine(id as ShardId)) {
                rename(&mut shard.core(), names.clone());
            }
            Ok(())
        }
    }
}

fn with_shard(
    engine: &Engine,
    shard: ShardId,
    lsn: Lsn,
    mine: &impl Fn(ShardId) -> bool,
    run: impl FnOnce(&mut Core),
) -> Result<(), String> {
    if !mine(shard) {
        return Ok(());
    }
    let shard = engine.shards.get(shard).ok_or("the log names a shard that does not exist")?;
    let mut core = shard.core();
    core.last_lsn = lsn;
    run(&mut core);
    Ok(())
}

fn rename(core: &mut Core, names: Arc<Names>) {
    core.counts.retain(|&ns, _| names.is_live(ns));
    core.dirty_counts.retain(|&ns| names.is_live(ns));
    core.reap = Some(Reap::after_death(core.reap));
    if core.shard == 0 {
        let (mut key, mut record) = (Vec::new(), Vec::new());
        codec::key::names_key(&mut key);
        names.map().encode(&mut record);
        core.put_raw(key, Some(record));
    }
    core.names = names;
}

/// The object of a key, without its body, whether fjall holds it or not; a new one counts as possibly stored (rule 3).
fn claim(core: &mut Core, hash: u64, lsn: Lsn, (ns, key): (NsId, &[u8]), keep: Option<u64>) -> Result<Index> {
    let mut found = core.table.find(table_hash(hash, ns), ns, key);
    let goes_on = keep.is_some_and(|version| version != lsn || lsn <= core.stored_lsn);
    if found.is_none() && (core.gathers > 0 || goes_on) {
        // This replay has flushed: a body may be in fjall whose end the log does not call garbage. Of a body that goes on,
        // fjall alone has what is packed.
        found = core.fault(hash, ns, key, &mut Reads::blocking())?;
    }
    let Some(index) = found else {
        core.cold.take(table_hash(hash, ns), ns, key);
        let index = core.create(hash, ns, key, 0);
        core.table.at_mut(index).state |= state::MAYBE_STORED;
        return Ok(index);
    };
    let object = core.table.at_mut(index);
    if object.body.as_ref().is_none_or(|body| Some(body.version) == keep) {
        return Ok(index);
    }
    let before = object.mem_bytes();
    let body = object.body.take();
    core.table_bytes = core.table_bytes + core.table.at(index).mem_bytes() - before;
    // One that begins and ends in this very record may begin once more, under the same version; and what fjall holds may
    // be ahead of the record: a version that is yet to begin.
    if let Some(body) = body.filter(|body| body.version < lsn) {
        bury(core, ns, key, body.version)?;
    }
    Ok(index)
}

/// The key is about to be overwritten without a look at what there was.
fn blind(core: &mut Core, hash: u64, lsn: Lsn, (ns, key): (NsId, &[u8]), number: u64) -> Result {
    let known = core.table.find(table_hash(hash, ns), ns, key);
    let existed = known.map(|index| core.table.at(index).kind != Kind::Absent);
    let index = match known {
        // fjall may be behind the log here, if this replay has flushed: the body's end may be known to nobody else.
        Some(_) => claim(core, hash, lsn, (ns, key), None)?,
        None => {
            core.cold.take(table_hash(hash, ns), ns, key);
            core.create(hash, ns, key, 0)
        }
    };
    core.set_blind_as(index, Birth { number, existed });
    // It must not leave before what follows in the record has come to it.
    stamp(core, index, lsn);
    Ok(())
}

/// Queues what fjall holds of a version that has ended. The log names garbage only if elements had been flushed when
/// the version ended; a replay that flushes midway is ahead of that.
fn bury(core: &mut Core, ns: NsId, key: &[u8], version: u64) -> Result {
    let range = codec::key::element_range(ns, key, version);
    let stored = core.partition.range(&range.lower, &range.upper).map_err(|e| storage(key, e))?.next();
    if let Some(record) = stored {
        record.map_err(|e| storage(key, e))?;
        core.put_raw(garbage::record_key(ns, key, version), Some(Vec::new()));
    }
    Ok(())
}

/// A version that is given its metadata lives. What [`bury`] says of it comes from fjall being ahead: a big result is
/// older than the record that names it, and what else that record did to the key came before.
fn unbury(core: &mut Core, ns: NsId, key: &[u8], version: u64) {
    core.replace_raw(garbage::record_key(ns, key, version), None);
}

fn stamp(core: &mut Core, index: Index, lsn: Lsn) {
    core.touch_dirty(index);
    core.table.at_mut(index).lsn = lsn;
    core.note_fields(index);
}

fn put(core: &mut Core, hash: u64, lsn: Lsn, (ns, key): (NsId, &[u8]), meta: &Meta, value: &[u8]) -> Result {
    let index = claim(core, hash, lsn, (ns, key), meta.has_version().then_some(meta.version))?;
    let named = core.table.at(index).body.as_ref().is_some_and(|body| body.version == meta.version);
    if meta.has_version() && meta.version != lsn && !named {
        unbury(core, ns, key, meta.version);
    }
    let object = core.table.at_mut(index);
    let before = object.mem_bytes();
    let was_absent = object.kind == Kind::Absent;
    object.kind = Kind::from(meta.kind);
    object.bytes.truncate(object.key_len as usize);
    object.bytes.extend_from_slice(value);
    if meta.has_version() {
        let version = meta.version;
        // What was flushed after the record was written may be in fjall already, though the record begins it.
        let fresh = version == lsn && lsn > core.stored_lsn;
        let body = object.body.get_or_insert_with(Default::default);
        if body.version != version {
            body.version = version;
            body.overlay.complete = fresh;
            body.maybe_stored = !fresh;
        }
        (body.size, body.extra) = (meta.size, meta.extra);
        (body.encoding, body.form) = (meta.encoding, meta.form);
    }
    core.table_bytes = core.table_bytes + core.table.at(index).mem_bytes() - before;
    core.set_expire(index, meta.expire_ms);
    if was_absent {
        core.table.at_mut(index).state &= !state::STORED;
        core.order_insert(index);
    }
    stamp(core, index, lsn);
    Ok(())
}

fn delete(core: &mut Core, index: Index, lsn: Lsn) {
    core.set_expire(index, 0);
    let object = core.table.at_mut(index);
    let before = object.mem_bytes();
    object.kind = Kind::Absent;
    let key_len = object.key_len as usize;
    object.bytes.truncate(key_len);
    object.bytes.shrink_to_fit();
    core.table_bytes = core.table_bytes + core.table.at(index).mem_bytes() - before;
    core.order_remove(index);
    stamp(core, index, lsn);
}

fn patch(core: &mut Core, index: Index, lsn: Lsn, offset: usize, bytes: &[u8]) {
    let object = core.table.at_mut(index);
    if object.kind != Kind::String || object.body.is_some() {
        return;
    }
    let before = object.mem_bytes();
    let start = object.key_len as usize + offset;
    let end = start + bytes.len();
    if object.bytes.len() < end {
        object.bytes.resize(end, 0);
    }
    object.bytes[start..end].copy_from_slice(bytes);
    core.table_bytes = core.table_bytes + core.table.at(index).mem_bytes() - before;
    stamp(core, index, lsn);
}

fn change_element(
    core: &mut Core,
    hash: u64,
    lsn: Lsn,
    (ns, key, version): (NsId, &[u8], u64),
    element: &[u8],
    change: impl FnOnce(Option<&Entry>, u8) -> Entry,
) -> Result {
    let Some(index) = core.fault(hash, ns, key, &mut Reads::blocking())? else { return Ok(()) };
    let version = if version == 0 { lsn } else { version };
    let partition = core.partition.clone();
    let object = core.table.at_mut(index);
    let key_len = object.key_len as usize;
    let Some(body) = object.body.as_mut().filter(|b| b.version == version) else { return Ok(()) };
    let before = body.overlay.bytes();
    if !body.overlay.complete && body.overlay.get(element).is_none() {
        let mut disk_key = Vec::new();
        codec::key::element_key(ns, &object.bytes[..key_len], version, element, &mut disk_key);
        if let Some(value) = partition.get(&disk_key).map_err(|e| storage(key, e))? {
            let state = overlay::state::BASE | overlay::state::NEXT;
            body.overlay.insert(Entry::new(element, Some(&value), state));
        }
    }
    let stored = if body.maybe_stored { overlay::state::MAYBE_STORED } else { 0 };
    let old = body.overlay.get(element);
    let kept = old.map_or(0, |old| old.state);
    let new = change(old, kept | overlay::state::DIRTY | stored);
    let added = new.bytes();
    if new.is_live() || body.maybe_stored {
        body.overlay.insert(new);
    } else {
        body.overlay.remove(element);
    }
    core.table_bytes = core.table_bytes + body.overlay.bytes() - before;
    core.dirty_bytes += added;
    stamp(core, index, lsn);
    Ok(())
}
