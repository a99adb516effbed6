//! An engine beside a model. The model keeps its state after every LSN, so that a crash may take any tail.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use tempfile::TempDir;

use crate::Error;
use crate::codec::{self, NsId};
use crate::log::sim::SimIo;
use crate::log::{Fsync, Lsn};
use crate::shard::Engine;
use crate::shard::background::sight::Sighting;
use crate::shard::background::timer::Timer;
use crate::shard::engine::EngineOptions;
use crate::shard::keyspace::walk::tests::met;
use crate::shard::keyspace::walk::{self, Stop};
use crate::shard::memory::core::Core;
use crate::shard::memory::object::Kind;
use crate::shard::memory::reads::Reads;
use crate::shard::router::ShardId;
use crate::shard::txn::elements::whole_group;
use crate::shard::txn::{BIG_STRING, CHUNK, Mark, Passing, Txn, WriteSet};
use crate::util::splitmix;

/// A small generator; the same numbers for the same seed on every machine.
pub(super) struct Rng(pub(super) u64);

impl Rng {
    pub(super) fn next(&mut self) -> u64 {
        splitmix::next(&mut self.0)
    }

    pub(super) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub(super) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub(super) fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

/// Elements of a collection by physical key.
pub(super) type Elements = BTreeMap<Vec<u8>, Vec<u8>>;

/// A string or a collection, and its time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Value {
    pub(super) kind: Kind,
    pub(super) bytes: Arc<Vec<u8>>,
    pub(super) elements: Arc<Elements>,
    pub(super) expire_ms: u64,
}

impl Value {
    pub(super) fn string(bytes: Vec<u8>, expire_ms: u64) -> Value {
        Value { kind: Kind::String, bytes: Arc::new(bytes), elements: Arc::default(), expire_ms }
    }

    pub(super) fn collection(kind: Kind, elements: Elements, expire_ms: u64) -> Value {
        Value { kind, bytes: Arc::default(), elements: Arc::new(elements), expire_ms }
    }
}

/// Key → value of one database. Expired keys stay: they come back no more, as time only goes on.
pub(super) type Db = BTreeMap<Vec<u8>, Value>;

/// The model: databases by name.
pub(super) type Model = BTreeMap<&'static [u8], Db>;

/// The names that tests use; the last one is not numbered.
pub(super) const NAMES: [&[u8]; 3] = [b"0", b"1", b"x"];

/// The name that most tests need alone.
pub(super) const DB: &[u8] = NAMES[0];

/// Bytes that compression makes nothing of.
pub(super) fn noise(seed: u8, len: usize) -> Vec<u8> {
    let mut rng = Rng(seed.into());
    (0..len).map(|_| (rng.next() >> 24) as u8).collect()
}

/// A string with some chunks.
pub(super) fn big(byte: u8) -> Vec<u8> {
    noise(byte, BIG_STRING + 2 * CHUNK)
}

/// A world of one shard.
pub(super) fn world(fsync: Fsync) -> World {
    World::new(1, fsync)
}

/// Everything clean leaves the table that may.
pub(super) fn evict(engine: &Engine) {
    for shard in engine.shards.iter() {
        let mut core = shard.core();
        let limit = std::mem::replace(&mut core.table_limit, 0);
        for _ in 0..300 {
            core.make_room();
        }
        core.table_limit = limit;
    }
}

/// Waits for what threads of the engine do.
pub(super) fn wait_for(what: &dyn Fn() -> bool) {
    for _ in 0..24_000 {
        if what() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    panic!("waited two minutes");
}

pub(super) struct World {
    pub(super) sim: SimIo,
    /// Goes with the world.
    _dir: TempDir,
    pub(super) options: EngineOptions,
    /// `None` only while it is being reopened.
    pub(super) engine: Option<Arc<Engine>>,
    pub(super) now_ms: u64,
    pub(super) model: Model,
    /// Transactions may build big results, whose pending records are log records of their own.
    pub(super) builds: bool,
    /// Transactions read nothing from disk under the lock: what they lack they want.
    pub(super) ahead: bool,
    /// What they lack, and what was brought for them.
    pub(super) reads: Reads,
    /// Step, and how often it is passed before, at which the next replay is cut off.
    pub(super) crash_in_replay: Option<(&'static str, u64)>,
    /// The model after each LSN since the last opening, oldest first.
    history: Vec<(Lsn, Model)>,
}

/// Makes the superblock with a hash key that is always the same, so that a seed means the same in every run.
fn fix_hash_key(dir: &std::path::Path, shards: u16) {
    crate::store::Superblock::create(dir, shards).unwrap();
    let path = dir.join("SUPERBLOCK");
    let mut block = std::fs::read(&path).unwrap();
    let end = block.len();
    // Key, time of creation, checksum.
    block[end - 32..end - 16].copy_from_slice(b"sixteen bytes it");
    let sum = xxhash_rust::xxh3::xxh3_64(&block[..end - 8]);
    block[end - 8..].copy_from_slice(&sum.to_le_bytes());
    std::fs::write(&path, block).unwrap();
}

pub(super) fn options(dir: &TempDir, shards: u16, fsync: Fsync) -> EngineOptions {
    EngineOptions {
        databases: 2,
        fsync,
        table_budget: 256 << 10,
        dirty_budget: 4 << 20,
        cold_budget: 64 << 10,
        ..walk::tests::options(dir.path(), shards)
    }
}

impl World {
    pub(super) fn new(shards: u16, fsync: Fsync) -> World {
        let dir = crate::util::scratch::tempdir().unwrap();
        fix_hash_key(dir.path(), shards);
        let options = options(&dir, shards, fsync);
        let mut model = Model::new();
        model.insert(NAMES[0], Db::new());
        model.insert(NAMES[1], Db::new());
        let mut world = World {
            crash_in_replay: None,
            builds: false,
            ahead: false,
            reads: Reads::default(),
            sim: SimIo::new(),
            _dir: dir,
            options,
            engine: None,
            now_ms: 1_000_000,
            model,
            history: Vec::new(),
        };
        world.open();
        // The names of the numbered databases are a record of their own.
        world.engine().log.sync_to(world.engine().log.last()).unwrap();
        world.history = vec![(world.engine().log.last(), world.model.clone())];
        world
    }

    pub(super) fn engine(&self) -> &Arc<Engine> {
        self.engine.as_ref().unwrap()
    }

    fn open(&mut self) {
        let engine = Engine::open(Arc::new(self.sim.clone()), self.options.clone()).unwrap();
        engine.replay().unwrap();
        self.engine = Some(engine);
        self.check();
    }

    /// The id of a name now.
    pub(super) fn ns(&self, name: &[u8]) -> NsId {
        self.engine().shards.at(0).core().names.id(name).unwrap()
    }

    pub(super) fn check(&self) {
        for shard in self.engine().shards.iter() {
            shard.core().check();
        }
    }

    /// Runs a transaction over all of `keys`' shards (all shards if there are none), and commits it; an error rolls it
    /// back. Answers what the closure does and what a reply would wait for.
    pub(super) fn transact<R>(
        &mut self,
        keys: &[&[u8]],
        run: impl FnOnce(&mut Txn<'_, '_>) -> Result<R, Error>,
    ) -> (Result<R, Error>, Lsn) {
        let engine = self.engine().clone();
        let mut shards: Vec<_> = keys.iter().map(|key| engine.router.shard_of(key)).collect();
        shards.sort_unstable();
        shards.dedup();
        if keys.is_empty() {
            shards = engine.all_shards().to_vec();
        }
        let (before, dirty) = (engine.log.last(), self.dirty_beyond(&shards));
        let mut set = WriteSet::default();
        set.reads = std::mem::take(&mut self.reads);
        let mut lease = engine.lease(&shards);
        let limits: Vec<_> = lease.iter().map(|core| core.table_limit).collect();
        for core in lease.iter_mut().filter(|_| self.ahead) {
            // Full, so that what is read in passing does not enter.
            (core.store_is_cold, core.table_limit) = (true, core.table_bytes);
        }
        let mut txn = Txn::new(&mut lease, &engine.router, &mut set, self.now_ms, !self.ahead);
        let result = run(&mut txn);
        let need = match &result {
            Ok(_) => txn.commit(&engine.log),
            Err(_) => {
                txn.rollback_to(Mark::default());
                txn.need
            }
        };
        txn.lease.iter_mut().zip(limits).for_each(|(core, limit)| core.table_limit = limit);
        drop(lease);
        self.reads = set.reads;
        let last = engine.log.last();
        if result.is_err() && !self.builds {
            let after = self.dirty_beyond(&shards);
            assert!(after == dirty || dirty < 0, "what was rolled back counts as before: {after}, not {dirty}");
        }
        let single = last == before || last == before + 1 && result.is_ok();
        assert!(single || self.builds, "a transaction is one record or none, unless it builds a big result");
        assert!(last == before || result.is_err() || self.builds || need == last, "a writer waits for its own record");
        (result, need)
    }

    /// By how much the account of dirty bytes is above what is dirty. Not known of shards that a flush is busy with: theirs is
    /// the flight's.
    fn dirty_beyond(&self, shards: &[ShardId]) -> isize {
        let beyond = |core: &Core| core.dirty_bytes as isize - core.dirty_again_bytes() as isize;
        let cores = shards.iter().map(|&shard| self.engine().shards.at(shard).core());
        cores.filter(|core| core.flight_bytes == 0).map(|core| beyond(&core)).sum()
    }

    /// Notes the model as of the last LSN.
    pub(super) fn note(&mut self) {
        let last = self.engine().log.last();
        match self.history.last_mut() {
            Some((lsn, model)) if *lsn == last => *model = self.model.clone(),
            _ => self.history.push((last, self.model.clone())),
        }
    }

    pub(super) fn put(&mut self, name: &'static [u8], key: &[u8], value: &[u8], expire_ms: u64) {
        let ns = self.ns(name);
        let need = self.transact(&[key], |txn| txn.put_string(ns, key, value, expire_ms)).1;
        self.engine().write_out(need);
        let value = Value::string(value.to_vec(), expire_ms);
        self.model.get_mut(name).unwrap().insert(key.to_vec(), value);
        self.note();
    }

    pub(super) fn delete(&mut self, name: &'static [u8], key: &[u8]) {
        let ns = self.ns(name);
        let need = self.transact(&[key], |txn| txn.delete(ns, key)).1;
        self.engine().write_out(need);
        self.model.get_mut(name).unwrap().remove(key);
        self.note();
    }

    /// FLUSHDB of these names.
    pub(super) fn flush_names(&mut self, names: &[&'static [u8]]) {
        let need = self.transact(&[], |txn| {
            let (new, dead) = txn.lease[0].names.renewed(names).unwrap();
            txn.replace_names(new, &dead);
            Ok(())
        });
        self.engine().write_out(need.1);
        for name in names {
            self.model.insert(name, Db::new());
        }
        self.note();
    }

    pub(super) fn get(&mut self, name: &[u8], key: &[u8]) -> Option<Value> {
        let ns = self.ns(name);
        let get = |txn: &mut Txn<'_, '_>| read(txn, ns, key);
        self.transact(&[key], get).0.unwrap()
    }

    /// A turn of every shard's timer.
    pub(super) fn turn(&mut self) {
        let engine = self.engine().clone();
        for id in engine.all_shards() {
            Timer::new(&engine, id).turn(self.now_ms);
            self.check();
        }
        self.note();
    }

    pub(super) fn flush(&mut self) {
        self.engine().flush().unwrap();
        self.check();
    }

    /// Turns of the timers without the model's note.
    pub(super) fn turns(&self, n: usize) {
        for _ in 0..n {
            for id in self.engine().all_shards() {
                Timer::new(self.engine(), id).turn(self.now_ms);
            }
        }
    }

    /// Everything clean leaves the table.
    pub(super) fn evict(&self) {
        evict(self.engine());
        self.check();
    }

    /// The metadata record in fjall.
    pub(super) fn stored(&self, name: &[u8], key: &[u8]) -> Option<Vec<u8>> {
        let mut disk_key = Vec::new();
        codec::key::meta_key(self.ns(name), key, &mut disk_key);
        let partition = self.engine().store.partition(self.engine().router.shard_of(key));
        partition.get(&disk_key).unwrap().map(|value| value.to_vec())
    }

    /// Records in fjall whose keys begin with this tag.
    pub(super) fn stored_with(&self, tag: u8) -> usize {
        let range = codec::key::tag_range(tag);
        let partitions = self.engine().store.partitions();
        partitions.iter().map(|p| p.range(&range.lower, &range.upper).unwrap().count()).sum()
    }

    /// State bits of a key's object, `None` if it is not in the table.
    pub(super) fn state(&self, name: &[u8], key: &[u8]) -> Option<u8> {
        let ns = self.ns(name);
        let core = self.engine().shards.at(self.engine().router.shard_of(key)).core();
        core.table.iter().find(|(_, o)| o.ns == ns && o.key() == key).map(|(_, o)| o.state)
    }

    /// Flushes and turns until nothing is left to be done.
    pub(super) fn settle(&mut self) {
        for _ in 0..200 {
            self.turn();
            self.flush();
            let idle = self.engine().shards.iter().all(|s| {
                let core = s.core();
                core.is_idle()
            });
            if idle {
                return;
            }
        }
        panic!("the timer's work does not end");
    }

    /// Compares everything with the model, but for counts, which need a sweep first.
    pub(super) fn verify(&mut self) {
        for name in self.model.keys().copied().collect::<Vec<_>>() {
            self.verify_walk(name);
            let db = self.model[name].clone();
            for (key, value) in &db {
                let live = value.expire_ms == 0 || value.expire_ms > self.now_ms;
                let expected = live.then_some(value);
                let found = self.get(name, key);
                assert!(found.as_ref() == expected, "{} holds {}", shown(name, key), difference(found, expected));
            }
            self.check();
        }
    }

    /// The key space, shard by shard, equals the model's.
    pub(super) fn verify_walk(&mut self, name: &[u8]) {
        let engine = self.engine().clone();
        let ns = self.ns(name);
        let mut all = Vec::new();
        for shard in engine.shards.iter() {
            let met = met(&mut shard.core(), &engine.router, ns, b"", Stop::default(), self.now_ms);
            all.extend(met.into_iter().map(|met| met.key));
        }
        all.sort();
        all.dedup();
        let now_ms = self.now_ms;
        let live = self.model[name].iter().filter(|(_, v)| v.expire_ms == 0 || v.expire_ms > now_ms);
        let live: Vec<_> = live.map(|(key, _)| key.clone()).collect();
        let short = |keys: &[Vec<u8>]| keys.iter().map(|k| shown(name, k)).collect::<Vec<_>>();
        assert!(all == live, "walk met {:?}, expected {:?}", short(&all), short(&live));
    }

    /// Sights what is blind; false if a flush is at it.
    pub(super) fn sight(&mut self) -> bool {
        let engine = self.engine().clone();
        for shard in engine.shards.iter() {
            let begun = Sighting::begin(&mut shard.core(), true);
            let Some(mut sighting) = begun else { return false };
            while sighting.step(&engine) {
                self.check();
            }
        }
        engine.write_out(engine.log.last());
        self.note();
        true
    }

    /// After a sweep DBSIZE is exact, once what is blind has been sighted.
    pub(super) fn verify_counts(&mut self) {
        self.turn();
        if !self.sight() {
            return;
        }
        for (name, db) in &self.model {
            let live = db.values().filter(|v| v.expire_ms == 0 || v.expire_ms > self.now_ms).count();
            let ns = self.ns(name);
            let count: u64 = self.engine().shards.iter().map(|s| s.core().count(ns)).sum();
            assert_eq!(count, live as u64, "keys of {}", shown(name, b""));
        }
    }

    /// The process ends; `power` also takes what was not synced. What comes back is a state between what was promised
    /// and the last.
    pub(super) fn crash(&mut self, power: Option<u64>) {
        let log = self.engine().log.clone();
        let promised = match power {
            Some(_) if self.options.fsync != Fsync::Always => log.synced(),
            _ => log.acked(),
        };
        let next = match power {
            Some(seed) => self.sim.power_loss(seed),
            None => self.sim.process_crash(),
        };
        drop(log);
        self.end();
        self.sim = next;
        self.recover(promised);
    }

    /// Closes and opens again: nothing may be missing.
    pub(super) fn reopen(&mut self, flush: bool) {
        // A simulated error may be under way; what is promised is checked below all the same.
        let _ = self.engine().close(flush);
        let last = self.engine().log.last();
        self.end();
        self.sim = self.sim.process_crash();
        self.recover(last);
    }

    fn end(&mut self) {
        let engine = self.engine.take().unwrap();
        assert_eq!(Arc::strong_count(&engine), 1, "nobody else holds the engine");
    }

    fn recover(&mut self, promised: Lsn) {
        if let Some((step, n)) = self.crash_in_replay.take() {
            self.sim.crash_at_step(step, n);
            let engine = Engine::open(Arc::new(self.sim.clone()), self.options.clone());
            let _cut = engine.map(|engine| engine.replay());
            self.sim = self.sim.process_crash();
        }
        self.open();
        let last = self.engine().log.last();
        assert!(last >= promised, "record {promised} was promised, {last} is the last one there");
        let at = self.history.iter().rposition(|(lsn, _)| *lsn <= last).expect("a state before the crash");
        self.model = self.history[at].1.clone();
        self.history = vec![(last, self.model.clone())];
    }
}

/// A key's value and time.
pub(super) fn read(txn: &mut Txn<'_, '_>, ns: NsId, key: &[u8]) -> Result<Option<Value>, Error> {
    let mut passing = None;
    for kind in [Kind::String, Kind::Hash, Kind::Set, Kind::Zset] {
        passing = passing.or(txn.in_passing(ns, key, kind)?.map(|passing| (kind, passing)));
    }
    let Some(found) = txn.find(ns, key)? else {
        assert!(passing.is_none(), "what is not there does not pass by");
        return Ok(None);
    };
    let kind = txn.object(found).kind;
    assert!(passing.as_ref().is_none_or(|(passing, _)| *passing == kind));
    let passing = passing.map(|(_, passing)| passing);
    if kind != Kind::String {
        return read_collection(txn, found, key, passing).map(Some);
    }
    let mut bytes = Vec::new();
    txn.string_range(found, 0, usize::MAX, &mut bytes)?;
    assert_eq!(bytes.len(), txn.string_len(found));
    assert!(passing.is_none_or(|passing| passing.value() == bytes), "in passing the same is read");
    let expire_ms = txn.object(found).expire_ms;
    Ok(Some(Value::string(bytes, expire_ms)))
}

/// Reads a collection in both directions, by rank and by element; all must agree.
fn read_collection(
    txn: &mut Txn<'_, '_>,
    at: crate::shard::Found,
    name: &[u8],
    passing: Option<Passing>,
) -> Result<Value, Error> {
    let (kind, expire_ms) = (txn.object(at).kind, txn.object(at).expire_ms);
    let group = kind.counted_group().unwrap();
    let mut elements = Elements::new();
    for element in txn.group(at, group)? {
        let (key, value) = element?;
        elements.insert(key.to_vec(), value.to_vec());
    }
    let (lower, upper) = whole_group(group);
    let back = txn.elements(at, Bound::Included(&lower), Bound::Excluded(&upper), true)?;
    let back = back.map(|e| e.map(|(key, _)| key.to_vec())).collect::<Result<Vec<_>, _>>()?;
    assert!(back.iter().rev().eq(elements.keys()), "both directions meet the same");
    assert_eq!(txn.size(at), elements.len() as u64, "the metadata's size is what a scan finds");
    for (n, (key, value)) in elements.iter().enumerate().step_by(3) {
        assert_eq!(txn.rank(at, group, key)?, n as u64, "rank");
        let (selected, _) = txn.select(at, group, n as u64)?.expect("an element of each rank");
        assert_eq!(&selected[..], &key[..], "select");
        drop(selected);
        assert_eq!(txn.element(at, key)?, Some(&value[..]), "element");
    }
    assert!(txn.select(at, group, elements.len() as u64)?.is_none());
    if let Some(passing) = passing {
        for (key, value) in &elements {
            assert_eq!(passing.element(name, key)?.as_deref(), Some(&value[..]), "in passing the same is read");
        }
        assert_eq!(passing.element(name, &[group.tag()])?, None);
        assert_eq!(passing.meta().size, elements.len() as u64);
    }
    Ok(Value::collection(kind, elements, expire_ms))
}

pub(super) fn shown(name: &[u8], key: &[u8]) -> String {
    let key = &key[..key.len().min(24)];
    format!("{}/{}", String::from_utf8_lossy(name), String::from_utf8_lossy(key))
}

/// Says in few words how two values differ.
pub(super) fn difference(found: Option<Value>, expected: Option<&Value>) -> String {
    let short = |v: Option<&Value>| v.map(|v| (v.kind, v.bytes.len(), v.elements.len(), v.expire_ms));
    let at = match (&found, expected) {
        (Some(a), Some(b)) => a.bytes.iter().zip(b.bytes.iter()).position(|(a, b)| a != b),
        _ => None,
    };
    format!("{:?}, expected {:?}, first difference {at:?}", short(found.as_ref()), short(expected))
}
