//! Sighting blind keys ([`crate::shard::memory::blind`]): what fjall holds of keys that were overwritten without a look.
//!
//! | step | under the shard's lock |
//! |---|---|
//! | [`Sighting::begin`]: those that are blind by now | once, short |
//! | keys: as they stand in records | per slice |
//! | read: their records, in order | no |
//! | note: garbage of old bodies, times under which the expiry index lists the old ones | per slice, of those that had such |
//! | end: count, and the log's word that they are sighted, in one record | once, short |
//!
//! The flush begins each shard with it; DBSIZE has it done before it counts.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::codec::{self, Meta, NsId, redo};
use crate::shard::background::flush::SLICE;
use crate::shard::engine::Engine;
use crate::shard::engine::readers::Counted;
use crate::shard::memory::blind::{Birth, Births};
use crate::shard::memory::core::Core;
use crate::shard::memory::garbage;
use crate::shard::memory::table::Index;
use crate::shard::router::ShardId;
use crate::store::Partition;
use crate::util::pace::Pace;
use crate::util::scale::Scaled;

/// A blind key.
struct Sought {
    index: Index,
    ns: NsId,
    existed: Option<bool>,
    /// Its record's key.
    key: Range<usize>,
}

/// What the record of a key was good for.
struct Past {
    index: Index,
    /// Of a body.
    version: u64,
    /// When the key would have expired, and when its fields were to be looked at.
    times_ms: (u64, u64),
}

/// What was found of some keys.
#[derive(Default)]
struct Found {
    pasts: Vec<Past>,
    /// Keys that there were, of each namespace.
    existed: HashMap<NsId, i64>,
}

impl Found {
    fn add(&mut self, other: Found) {
        self.pasts.extend(other.pasts);
        other.existed.into_iter().for_each(|(ns, keys)| *self.existed.entry(ns).or_default() += keys);
    }
}

/// Between two looks at whether somebody else has ended.
pub(super) const RETRY: Duration = Duration::from_millis(1);
/// Reads between two looks at how long they take.
const READS: usize = if cfg!(test) { 4 } else { 256 };
/// What one takes at most where the disk need not be waited for, ns.
const QUICK_NS: Scaled<u64> = Scaled::new(40_000).in_unit_tests(0);
/// Reads that a disk is asked for at once.
const SIDE_BY_SIDE: usize = 16;

#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Keys(usize),
    Read,
    Note,
    End,
    Over,
}

/// The sighting of what is blind in a shard at one moment.
pub(in crate::shard) struct Sighting {
    shard: ShardId,
    births: Arc<Births>,
    list: Vec<(Index, Birth)>,
    /// All up to this number.
    until: u64,
    /// The log has gone on: others have to learn of it.
    logged: bool,
    sought: Vec<Sought>,
    keys: Vec<u8>,
    found: Found,
    at: At,
    /// Tells others that somebody is at it.
    _token: Arc<()>,
}

impl Sighting {
    /// Begins; `None` while somebody else is at it. What it finds is `logged`, unless the log is not open for writing and the
    /// keys are counted anew behind this.
    pub(in crate::shard) fn begin(core: &mut Core, logged: bool) -> Option<Sighting> {
        let (token, births, until) = core.seek_blind()?;
        Some(Sighting {
            shard: core.shard,
            births,
            list: Vec::new(),
            until,
            logged,
            sought: Vec::new(),
            keys: Vec::new(),
            found: Found::default(),
            at: At::Keys(0),
            _token: token,
        })
    }

    /// The next step; false after the last one.
    pub(in crate::shard) fn step(&mut self, engine: &Engine) -> bool {
        let shard = &engine.shards.at(self.shard);
        self.at = match self.at {
            At::Keys(0) if self.list.is_empty() => {
                self.list = self.births.iter().collect();
                if self.list.is_empty() { At::Over } else { At::Keys(0) }
            }
            At::Keys(from) => {
                let to = self.list.len().min(from + SLICE.get());
                self.keys(&shard.core(), from..to);
                if to < self.list.len() { At::Keys(to) } else { At::Read }
            }
            At::Read => {
                engine.aside("sight", || self.read(engine));
                At::Note
            }
            At::Note => {
                self.note(engine, &mut shard.core());
                if self.found.pasts.is_empty() { At::End } else { At::Note }
            }
            At::End => {
                self.end(engine, &mut shard.core());
                At::Over
            }
            At::Over => At::Over,
        };
        self.at != At::Over
    }

    fn keys(&mut self, core: &Core, slice: Range<usize>) {
        for &(index, birth) in &self.list[slice] {
            // What has left the table was of a namespace that is dead.
            if !core.blind.is_sought(index) {
                continue;
            }
            let object = core.table.at(index);
            let from = self.keys.len();
            codec::key::meta_key(object.ns, object.key(), &mut self.keys);
            let key = from..self.keys.len();
            self.sought.push(Sought { index, ns: object.ns, existed: birth.existed, key });
        }
    }

    fn read(&mut self, engine: &Engine) {
        let partition = engine.store.partition(self.shard);
        let (mut sought, keys) = (std::mem::take(&mut self.sought), std::mem::take(&mut self.keys));
        self.list = Vec::new();
        // Neighbours share blocks.
        sought.sort_unstable_by(|a, b| keys[a.key.clone()].cmp(&keys[b.key.clone()]));
        let mut quick = true;
        for slice in sought.chunks(READS) {
            let began = Instant::now();
            let found = if quick { look(partition, slice, &keys) } else { look_side_by_side(partition, slice, &keys) };
            quick = quick && began.elapsed().as_nanos() as u64 / (slice.len() as u64) < QUICK_NS.get();
            self.found.add(found);
        }
    }

    fn note(&mut self, engine: &Engine, core: &mut Core) {
        let slice = self.found.pasts.len().saturating_sub(SLICE.get());
        let mut record = Vec::new();
        for Past { index, version, times_ms } in self.found.pasts.drain(slice..) {
            if !core.blind.is_sought(index) {
                continue;
            }
            let object = core.table.at(index);
            if version != 0 {
                let garbage = garbage::record_key(object.ns, object.key(), version);
                redo::encode_raw(core.shard, &garbage, Some(b""), &mut record);
                core.put_raw(garbage, Some(Vec::new()));
            }
            if times_ms.0 != 0 {
                core.stored_ttl.insert(index, times_ms.0);
            }
            if times_ms.1 != 0 {
                core.fields.set_stored(index, times_ms.1);
            }
        }
        self.append(engine, core, &record);
    }

    fn end(&mut self, engine: &Engine, core: &mut Core) {
        core.end_seeking();
        let mut record = Vec::new();
        for (&ns, &existed) in &self.found.existed {
            if core.names.is_live(ns) {
                let count = core.counts.get(&ns).copied().unwrap_or(0) - existed;
                core.set_count(ns, count);
                redo::encode_count(core.shard, ns, core.count(ns), &mut record);
            }
        }
        redo::encode_sighted(core.shard, self.until, &mut record);
        self.append(engine, core, &record);
    }

    fn append(&self, engine: &Engine, core: &mut Core, record: &[u8]) {
        if self.logged && !record.is_empty() {
            core.last_lsn = engine.log.append(|_, out| out.extend_from_slice(record));
        }
    }
}

/// Looks at what there was of each key.
fn look(partition: &Partition, sought: &[Sought], keys: &[u8]) -> Found {
    let (mut found, mut pace) = (Found::default(), Pace::new());
    for &Sought { index, ns, existed: known, ref key } in sought {
        pace.step();
        let there = match known {
            Some(known) => Ok(known.then(|| Meta::new(codec::Kind::String))),
            None => past(partition, &keys[key.clone()]),
        };
        let meta = there.unwrap_or_else(|cause| {
            // It is overwritten: nothing better can become of what cannot be read.
            tracing::error!(%cause, "cannot read the record of a key that was overwritten");
            None
        });
        let Some(meta) = meta else { continue };
        *found.existed.entry(ns).or_default() += 1;
        let times_ms = (meta.expire_ms, meta.extra.fields_due_ms());
        // What was packed went with the record.
        let version = if meta.packed { 0 } else { meta.version };
        if version != 0 || times_ms != (0, 0) {
            found.pasts.push(Past { index, version, times_ms });
        }
    }
    found
}

fn past(partition: &Partition, key: &[u8]) -> Result<Option<Meta>, String> {
    let value = partition.get_aside(key).map_err(|error| error.to_string())?;
    value.map(|value| Meta::decode(&value).map(|(meta, ..)| meta)).transpose().map_err(|error| error.to_string())
}

/// The same where a disk is waited for, which answers several at once.
fn look_side_by_side(partition: &Partition, sought: &[Sought], keys: &[u8]) -> Found {
    std::thread::scope(|scope| {
        let parts = sought.chunks(sought.len().div_ceil(SIDE_BY_SIDE).max(1));
        let (mut all, mut threads) = (Found::default(), Vec::new());
        for part in parts {
            let thread = std::thread::Builder::new().name("sight".to_owned());
            match thread.spawn_scoped(scope, move || look(partition, part, keys)) {
                Ok(thread) => threads.push(thread),
                Err(_) => all.add(look(partition, part, keys)),
            }
        }
        for thread in threads {
            all.add(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        all
    })
}

impl Engine {
    /// Has what is blind by now sighted by one of the readers, then calls `then`. However many ask, one is at it: as no
    /// key becomes blind while anybody waits, the same sighting serves all.
    pub fn count_exactly(self: &Arc<Self>, then: Counted) {
        let counting = self.counting();
        let mut waiting = self.counts.waiting.lock();
        waiting.push((counting, then));
        if waiting.len() > 1 {
            return;
        }
        drop(waiting);
        let engine = self.clone();
        self.readers.work(Box::new(move || {
            engine.sight(&engine.all_shards());
            let waiting = std::mem::take(&mut *engine.counts.waiting.lock());
            waiting.into_iter().for_each(|(counting, then)| then(counting));
        }));
    }

    /// Sights what is blind in these shards. May take long; no lock is held for long.
    pub fn sight(&self, shards: &[ShardId]) {
        let mut pace = Pace::new();
        for &shard in shards {
            let mut sighting = loop {
                match Sighting::begin(&mut self.shards.at(shard).core(), true) {
                    Some(sighting) => break sighting,
                    None => std::thread::sleep(RETRY),
                }
            };
            while sighting.step(self) {
                pace.step();
            }
        }
        self.write_out(self.log.last());
    }
}
