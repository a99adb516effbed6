//! Random rounds: an engine with a tiny table against a model, with flushes taken apart, timers, crashes of both kinds.
//!
//! `TARN_MODEL_ROUNDS` sets the number of rounds, `TARN_MODEL_SEED` runs one of them.

mod few;
mod slices;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use few::look_at_few;

use super::step::Stepper;
use super::world::{Elements, NAMES, Rng, Value, World, difference, read, shown};
use crate::Error;
use crate::log::Fsync;
use crate::shard::memory::ahead::Look;
use crate::shard::memory::object::Kind;
use crate::shard::memory::reads::Reads;
use crate::shard::memory::table::table_hash;
use crate::shard::txn::build::{Build, Shape};
use crate::shard::txn::{BIG_STRING, CHUNK, Txn};
use crate::store::Watch;

const STEPS: usize = 250;
const FSYNCS: [Fsync; 3] = [Fsync::Always, Fsync::EverySec, Fsync::No];

/// Where a flush, or what the log does in one, may be cut off.
const CRASH_STEPS: [&str; 12] = [
    "flush.begin",
    "flush.rotated",
    "flush.gathered",
    "flush.synced",
    "flush.ingested",
    "flush.stored",
    "flush.deleted",
    "log.segment.create",
    "log.segment.renamed",
    "log.rotate.switched",
    "log.sync",
    "log.delete",
];

/// Seeds that once failed.
const REGRESSIONS: [u64; 11] = [43, 97, 121, 134, 248, 305, 333, 504, 508, 621, 1302];

#[test]
fn model() {
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    if let Some(seed) = number("TARN_MODEL_SEED") {
        round(seed);
        return;
    }
    let mut dropped = 0;
    for seed in REGRESSIONS.into_iter().chain(1..=number("TARN_MODEL_ROUNDS").unwrap_or(60)) {
        let result = std::panic::catch_unwind(|| round(seed));
        assert!(result.is_ok(), "TARN_MODEL_SEED={seed} failed");
        dropped += result.unwrap_or_default();
    }
    assert!(dropped > 0, "tables are dropped with crashes between that and what follows");
}

/// Answers how many tables were dropped.
fn round(seed: u64) -> u64 {
    let mut rng = Rng(seed);
    let fsync = *rng.pick(&FSYNCS);
    let shards = *rng.pick(&[1, 2, 3]);
    let world = World::new(shards, fsync);
    let mut run = Run { world, keys: keys(), rng, stepper: None, held: Vec::new(), dropped: 0 };
    if run.rng.chance(30) {
        run.world.options.dirty_budget = 100 << 10;
    }
    for _ in 0..STEPS {
        run.step();
        run.world.check();
    }
    run.finish_flush();
    run.world.verify();
    run.world.audit();
    run.dropped
}

fn keys() -> Vec<Vec<u8>> {
    let mut keys: Vec<Vec<u8>> = (0..24).map(|i| format!("key:{i}").into_bytes()).collect();
    keys.extend([&b""[..], b"a", b"a\0b", b"a\xff", b"{tag}1", b"{tag}2", b"\xff\xff"].map(<[u8]>::to_vec));
    for tail in [b"x", b"y", b"z"] {
        keys.push([&[b'l'; 1030][..], tail].concat());
    }
    keys
}

struct Run {
    world: World,
    keys: Vec<Vec<u8>>,
    rng: Rng,
    /// A flush under way.
    stepper: Option<Stepper>,
    /// Keys that a command goes through: nobody writes them.
    held: Vec<Vec<u8>>,
    /// Tables that were dropped, as they held nothing but what was dead.
    dropped: u64,
}

/// What a transaction does to one key, in the engine and in the model alike.
enum Act {
    Put { key: Vec<u8>, value: Vec<u8>, expire_ms: u64 },
    Splice { key: Vec<u8>, offset: usize, bytes: Vec<u8> },
    PutElement { key: Vec<u8>, kind: Kind, element: Vec<u8>, value: Vec<u8> },
    RemoveElement { key: Vec<u8>, element: Vec<u8> },
    Build { key: Vec<u8>, kind: Kind, count: usize, value: Vec<u8>, expire_ms: u64 },
    Delete { key: Vec<u8> },
    Expire { key: Vec<u8>, expire_ms: u64 },
    Read { key: Vec<u8> },
}

impl std::fmt::Debug for Act {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ", shown(b"", self.key()))?;
        match self {
            Act::Put { value, expire_ms, .. } => write!(f, "put {} bytes until {expire_ms}", value.len()),
            Act::Splice { offset, bytes, .. } => write!(f, "splice {} bytes at {offset}", bytes.len()),
            Act::PutElement { kind, element, value, .. } => {
                write!(f, "put element {} of {kind:?}, {} bytes", element.escape_ascii(), value.len())
            }
            Act::RemoveElement { element, .. } => write!(f, "remove element {}", element.escape_ascii()),
            Act::Build { kind, count, .. } => write!(f, "build {kind:?} of {count}"),
            Act::Delete { .. } => write!(f, "delete"),
            Act::Expire { expire_ms, .. } => write!(f, "expire at {expire_ms}"),
            Act::Read { .. } => write!(f, "read"),
        }
    }
}

impl Act {
    fn key(&self) -> &[u8] {
        match self {
            Act::Put { key, .. }
            | Act::Splice { key, .. }
            | Act::PutElement { key, .. }
            | Act::RemoveElement { key, .. }
            | Act::Build { key, .. }
            | Act::Delete { key }
            | Act::Expire { key, .. }
            | Act::Read { key } => key,
        }
    }
}

impl Run {
    fn step(&mut self) {
        let choice = self.rng.below(100);
        trace(|| format!("step {choice}, lsn {}", self.world.engine().log.last()));
        match choice {
            0..50 => {
                let ahead = self.rng.chance(40);
                self.transaction(ahead);
            }
            50..54 => self.names(),
            54..60 => self.advance(),
            60..66 => {
                self.world.turn();
                self.dropped += self.world.engine().stats.dropped_tables.swap(0, Ordering::Relaxed);
            }
            66..72 => {
                self.finish_flush();
                self.world.flush();
            }
            72..86 => self.step_flush(),
            86..88 => self.failed_flush(),
            88..91 => self.verify_some(),
            91 => self.copy_in_slices(),
            92 => self.world.verify(),
            93..94 => {
                self.world.verify_counts();
                self.compact();
            }
            94..95 => self.reopen(),
            95..98 => self.crash(),
            _ => self.crash_in_flush(),
        }
    }

    fn value(&mut self) -> Vec<u8> {
        let len = match self.rng.below(20) {
            0 => 0,
            1..14 => self.rng.below(120),
            14 => self.rng.below(3000),
            15 => BIG_STRING - self.rng.below(2),
            16 => BIG_STRING + 1,
            17 => CHUNK * 5,
            _ => BIG_STRING + self.rng.below(3 * CHUNK),
        };
        let byte = self.rng.next() as u8;
        (0..len).map(|i| byte.wrapping_add((i / 97) as u8)).collect()
    }

    fn time(&mut self) -> u64 {
        match self.rng.below(4) {
            0 => self.world.now_ms + 1 + self.rng.below(300) as u64,
            // Many keys at one time.
            1 => self.world.now_ms / 1000 * 1000 + 1000,
            _ => 0,
        }
    }

    fn act(&mut self) -> Act {
        let act = self.any_act();
        if self.held.iter().any(|key| key == act.key()) { Act::Read { key: act.key().to_vec() } } else { act }
    }

    fn any_act(&mut self) -> Act {
        let key = self.rng.pick(&self.keys).clone();
        if self.rng.chance(60) {
            return self.element_act();
        }
        match self.rng.below(10) {
            0..4 => Act::Put { key, value: self.value(), expire_ms: self.time() },
            4..6 => {
                let offset = *self.rng.pick(&[0, 3, 60, 200, BIG_STRING - 3, BIG_STRING + 5, 2 * BIG_STRING]);
                let mut bytes = self.value();
                bytes.truncate(if self.rng.chance(80) { 50 } else { CHUNK + 100 });
                Act::Splice { key, offset, bytes }
            }
            6..8 => Act::Delete { key },
            8 => Act::Expire { key, expire_ms: self.time() },
            _ => Act::Read { key },
        }
    }

    /// An act on a collection; few keys have most of them, so that they grow.
    fn element_act(&mut self) -> Act {
        let key =
            if self.rng.chance(80) { self.keys[self.rng.below(4)].clone() } else { self.rng.pick(&self.keys).clone() };
        let element = match self.rng.below(10) {
            0 => [&[b'x'; 40][..], &[self.rng.below(9) as u8]].concat(),
            _ if self.keys[..2].contains(&key) => format!("e{}", self.rng.below(200)).into_bytes(),
            // Few enough, mostly, for one record.
            _ => format!("e{}", self.rng.below(4)).into_bytes(),
        };
        let kind = *self.rng.pick(&[Kind::Hash, Kind::Set, Kind::Zset]);
        let mut value = self.value();
        value.truncate(*self.rng.pick(&[0, 8, 24, 25, 300]));
        match self.rng.below(40) {
            0 => Act::Build { key, kind, count: *self.rng.pick(&[0, 1, 3, 40, 150]), value, expire_ms: self.time() },
            1..26 => Act::PutElement { key, kind, element, value },
            _ => Act::RemoveElement { key, element },
        }
    }

    /// What another transaction lacked is read while the world goes on, before and after.
    fn bring(&mut self) {
        let mut reads = std::mem::take(&mut self.world.reads);
        let wanted = reads.take_wanted();
        self.meanwhile();
        let mut watch = Watch::default();
        wanted.into_iter().for_each(|wanted| reads.add(wanted.read(&mut watch)));
        self.meanwhile();
        self.world.reads = reads;
    }

    fn meanwhile(&mut self) {
        trace(|| "meanwhile".to_owned());
        for _ in 0..self.rng.below(4) {
            match self.rng.below(8) {
                0 | 1 => self.world.evict(),
                2 | 3 => self.transaction(false),
                4 if self.rng.chance(20) => self.names(),
                5 => {
                    self.finish_flush();
                    self.world.flush();
                }
                6 if !self.held.is_empty() => self.advance(),
                7 if !self.held.is_empty() => self.world.turn(),
                _ => self.step_flush(),
            }
        }
    }

    /// Wants what an act will look for, as a pipeline's look-ahead does.
    fn look_ahead(&mut self, name: &'static [u8], act: &Act) {
        let ns = self.world.ns(name);
        let (look, text) = match act {
            Act::PutElement { kind: Kind::Hash, element, .. } => (Look::field(2), &element[..]),
            Act::PutElement { kind: Kind::Set, element, .. } => (Look::member(2), &element[..]),
            Act::PutElement { element, .. } => (Look::score(2), &element[..]),
            _ => (*self.rng.pick(&[Look::HASH, Look::SET, Look::ZSET]), &b""[..]),
        };
        let (engine, key) = (self.world.engine().clone(), act.key());
        let hash = engine.router.hash(key);
        let core = engine.shards.at(engine.router.shard(hash, key)).core();
        core.want(table_hash(hash, ns), ns, key, Some((&look, text)), &mut self.world.reads);
    }

    /// One that may go `ahead` reads nothing under the lock.
    fn transaction(&mut self, ahead: bool) {
        let name = *self.rng.pick(&NAMES);
        if !self.world.model.contains_key(name) {
            return;
        }
        let most = *self.rng.pick(&[1, 1, 1, 5, 30]);
        let count = 1 + self.rng.below(most);
        let acts: Vec<Act> = (0..count).map(|_| self.act()).collect();
        let undone: Vec<Act> = (0..self.rng.below(4)).map(|_| self.act()).collect();
        let undone = if self.rng.chance(25) { undone } else { Vec::new() };
        let at = self.rng.below(count + 1);
        let fails = self.rng.chance(10);
        let names_too = undone.len() == 3;
        let now_ms = self.world.now_ms;
        let all: Vec<&[u8]> = acts.iter().chain(&undone).map(Act::key).collect();
        let keys = if names_too { Vec::new() } else { all };
        let builds = acts.iter().chain(&undone).any(|act| matches!(act, Act::Build { .. }));
        trace(|| format!("{name:?} {acts:?} undone {undone:?} at {at}, fails {fails}, names {names_too}"));
        if ahead && self.rng.chance(50) {
            acts.iter().for_each(|act| self.look_ahead(name, act));
            self.bring();
        }
        // After some tries it waits for the disk under the lock.
        let mut tries = if ahead { 6 } else { 0 };
        let (result, need, before, db) = loop {
            let ns = self.world.ns(name);
            let before = self.world.model[name].clone();
            let mut db = before.clone();
            (self.world.ahead, self.world.builds) = (tries > 0, builds);
            let (result, need) = self.world.transact(&keys, |txn| {
                for i in 0..=count {
                    if i == at && !undone.is_empty() {
                        let mark = txn.mark();
                        let mut other = db.clone();
                        for act in &undone {
                            apply(txn, ns, act, &mut other, now_ms)?;
                        }
                        if names_too {
                            let (names, dead) = txn.lease[0].names.renewed(&[name]).unwrap();
                            txn.replace_names(names, &dead);
                        }
                        txn.rollback_to(mark);
                    }
                    if let Some(act) = acts.get(i) {
                        apply(txn, ns, act, &mut db, now_ms)?;
                    }
                }
                if fails { Err(Error::err("rolled back by the test")) } else { Ok(()) }
            });
            self.world.ahead = false;
            if result != Err(Error::Cold) {
                self.world.reads = Reads::default();
                break (result, need, before, db);
            }
            tries = if self.world.reads.is_content() { 0 } else { tries - 1 };
            self.bring();
        };
        assert_eq!(result.is_err(), fails, "{result:?}");
        let db = if fails { before } else { db };
        self.world.model.insert(name, db);
        self.world.note();
        if self.rng.chance(80) {
            self.world.engine().write_out(need);
        }
    }

    fn names(&mut self) {
        match self.rng.below(4) {
            0 => {
                let name = *self.rng.pick(&NAMES);
                self.world.flush_names(&[name]);
            }
            1 => {
                let names: Vec<_> = self.world.model.keys().copied().collect();
                self.world.flush_names(&names);
            }
            _ => {
                let (a, b) = (*self.rng.pick(&NAMES), *self.rng.pick(&NAMES));
                let both = self.world.model.contains_key(a) && self.world.model.contains_key(b);
                let (_, need) = self.world.transact(&[], |txn| {
                    let swapped = txn.lease[0].names.swapped(a, b);
                    assert_eq!(swapped.is_some(), both);
                    if let Some(names) = swapped {
                        txn.replace_names(names, &[]);
                    }
                    Ok(())
                });
                self.world.engine().write_out(need);
                if both && a != b {
                    let (db_a, db_b) = (self.world.model[a].clone(), self.world.model[b].clone());
                    self.world.model.insert(a, db_b);
                    self.world.model.insert(b, db_a);
                }
                self.world.note();
            }
        }
    }

    fn advance(&mut self) {
        self.world.now_ms += *self.rng.pick(&[1, 50, 100, 700, 15_000]);
    }

    fn step_flush(&mut self) {
        let engine = self.world.engine().clone();
        let mut stepper = self.stepper.take().unwrap_or_else(|| self.world.begin_flush(None));
        for _ in 0..1 + self.rng.below(4) {
            if !stepper.step(&engine) {
                return;
            }
        }
        self.stepper = Some(stepper);
    }

    fn finish_flush(&mut self) {
        let Some(mut stepper) = self.stepper.take() else { return };
        let engine = self.world.engine().clone();
        while stepper.step(&engine) {}
    }

    /// The next flush gives up one of its ingestions.
    fn failed_flush(&mut self) {
        self.finish_flush();
        let engine = self.world.engine().clone();
        let shard = self.rng.below(engine.shards.count());
        self.stepper = Some(self.world.begin_flush(Some(shard as u16)));
    }

    /// Tables as compactions leave them: some hold nothing but one collection, or one namespace, and are dropped when it dies.
    fn compact(&mut self) {
        let shard = self.rng.below(self.world.engine().shards.count());
        self.world.engine().store.partition(shard as u16).major_compact().unwrap();
    }

    fn verify_some(&mut self) {
        let name = *self.rng.pick(&NAMES);
        if !self.world.model.contains_key(name) {
            return;
        }
        if self.rng.chance(50) {
            return self.world.verify_walk(name);
        }
        for _ in 0..5 {
            let key = self.rng.pick(&self.keys).clone();
            let found = self.world.get(name, &key);
            let now_ms = self.world.now_ms;
            let expected = self.world.model[name].get(&key).filter(|v| v.expire_ms == 0 || v.expire_ms > now_ms);
            assert!(found.as_ref() == expected, "{} holds {}", shown(name, &key), difference(found, expected));
        }
    }

    fn reopen(&mut self) {
        if self.rng.chance(50) {
            self.finish_flush();
        }
        // Given up half-way, as by a crash, but the log is closed well.
        let flush = self.stepper.take().is_none() && self.rng.chance(50);
        self.world.reopen(flush);
        self.world.verify_walk(NAMES[0]);
    }

    fn crash(&mut self) {
        self.stepper = None;
        trace(|| format!("crash in the middle of a flush: {}", self.stepper.is_some()));
        let power = self.rng.chance(60).then(|| self.rng.next());
        if self.rng.chance(40) {
            let step = *self.rng.pick(&["flush.gathered", "flush.synced", "flush.ingested", "log.start"]);
            self.world.crash_in_replay = Some((step, self.rng.below(4) as u64));
        }
        self.world.crash(power);
        self.world.verify();
        self.world.verify_counts();
    }

    fn crash_in_flush(&mut self) {
        self.finish_flush();
        let step = *self.rng.pick(&CRASH_STEPS);
        self.world.sim.crash_at_step(step, self.rng.below(3) as u64);
        let result = self.world.engine().flush();
        assert!(result.is_ok() || self.world.sim.is_crashed(), "{result:?}");
        self.crash();
    }
}

/// Tells what happens, for who looks into a seed that fails (`TARN_MODEL_TRACE`).
fn trace(what: impl FnOnce() -> String) {
    if std::env::var_os("TARN_MODEL_TRACE").is_some() {
        eprintln!("{}", what());
    }
}

/// Applies an act to engine and model.
fn apply(txn: &mut Txn<'_, '_>, ns: u32, act: &Act, db: &mut super::world::Db, now_ms: u64) -> Result<(), Error> {
    let live = |v: &&Value| v.expire_ms == 0 || v.expire_ms > now_ms;
    let known = db.get(act.key()).filter(live).cloned();
    match act {
        Act::Put { key, value, expire_ms } => {
            txn.put_string(ns, key, value, *expire_ms)?;
            db.insert(key.clone(), Value::string(value.clone(), *expire_ms));
        }
        Act::Splice { key, offset, bytes } => {
            let found = txn.find(ns, key)?;
            assert_eq!(found.is_some(), known.is_some(), "{}", shown(b"", key));
            let (Some(found), Some(known)) = (found, known.filter(|v| v.kind == Kind::String)) else { return Ok(()) };
            txn.splice(found, *offset, bytes)?;
            let mut value = known.bytes.to_vec();
            value.resize(value.len().max(offset + bytes.len()), 0);
            value[*offset..offset + bytes.len()].copy_from_slice(bytes);
            db.insert(key.clone(), Value { bytes: Arc::new(value), ..known });
        }
        Act::PutElement { .. } | Act::RemoveElement { .. } | Act::Build { .. } => {
            apply_element(txn, ns, act, db, known)?
        }
        Act::Delete { key } => {
            assert_eq!(txn.delete(ns, key)?, known.is_some(), "{}", shown(b"", key));
            db.remove(key);
        }
        Act::Expire { key, expire_ms } => {
            let found = txn.find(ns, key)?;
            assert_eq!(found.is_some(), known.is_some(), "{}", shown(b"", key));
            let (Some(found), Some(known)) = (found, known) else { return Ok(()) };
            txn.set_expiry(found, *expire_ms);
            db.insert(key.clone(), Value { expire_ms: *expire_ms, ..known });
        }
        Act::Read { key } => {
            if let Some(known) = &known {
                txn.warm(ns, key, known.kind)?;
                look_at_few(txn, ns, key, known, now_ms as usize)?;
            }
            let found = read(txn, ns, key)?;
            assert!(found == known, "{} holds {}", shown(b"", key), difference(found, known.as_ref()));
        }
    }
    Ok(())
}

/// The physical key of an element in the group of a kind that is counted.
fn physical(kind: Kind, element: &[u8]) -> Vec<u8> {
    // In the order by score another element follows from each where it is packed.
    let score: &[u8] = if kind == Kind::Zset { &[0x80, 0, 0, 0, 0, 0, 0, 0] } else { &[] };
    [&[kind.counted_group().unwrap().tag()], score, element].concat()
}

/// Acts on collections.
fn apply_element(
    txn: &mut Txn<'_, '_>,
    ns: u32,
    act: &Act,
    db: &mut super::world::Db,
    known: Option<Value>,
) -> Result<(), Error> {
    let known = known.filter(|v| v.kind != Kind::String);
    match act {
        Act::PutElement { key, kind, element, value } => {
            let found = txn.find(ns, key)?.filter(|&at| txn.object(at).kind != Kind::String);
            assert_eq!(found.is_some(), known.is_some(), "{}", shown(b"", key));
            let at = found.map_or_else(|| txn.create(ns, key, *kind, 0), Ok)?;
            let mut known = known.unwrap_or_else(|| Value::collection(*kind, Elements::new(), 0));
            let element = physical(known.kind, element);
            let existed = txn.put_element(at, &element, value)?;
            let old = Arc::make_mut(&mut known.elements).insert(element, value.clone());
            assert_eq!(existed, old.is_some(), "{} had the element", shown(b"", key));
            txn.add_size(at, i64::from(!existed));
            db.insert(key.clone(), known);
        }
        Act::RemoveElement { key, element } => {
            let (Some(at), Some(mut known)) = (txn.find(ns, key)?, known) else { return Ok(()) };
            let element = physical(known.kind, element);
            let existed = txn.remove_element(at, &element)?;
            let old = Arc::make_mut(&mut known.elements).remove(&element);
            assert_eq!(existed, old.is_some(), "{} had the element", shown(b"", key));
            txn.add_size(at, -i64::from(existed));
            let empty = txn.remove_if_empty(at);
            assert_eq!(empty, known.elements.is_empty());
            db.insert(key.clone(), known);
            if empty {
                db.remove(key);
            }
        }
        Act::Build { key, kind, count, value, expire_ms } => {
            let mut build = Build::new(txn, ns, key)?;
            let mut elements = Elements::new();
            for n in 0..*count {
                let element = physical(*kind, format!("e{n}").as_bytes());
                build.put(&element, value)?;
                elements.insert(element, value.clone());
            }
            let shape = Shape { expire_ms: *expire_ms, ..Shape::new(*kind, *count as u64) };
            let built = build.finish(txn, shape)?;
            assert_eq!(built.is_some(), *count > 0);
            db.remove(key);
            if *count > 0 {
                db.insert(key.clone(), Value::collection(*kind, elements, *expire_ms));
            }
        }
        _ => unreachable!("an act on elements"),
    }
    Ok(())
}
