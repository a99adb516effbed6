//! Reads that hold no lock: what was brought is used only while it is what the store says, or is masked.

use std::ops::Bound;

use super::world::{DB, Value, World, read, world};
use crate::Error;
use crate::codec::element;
use crate::log::Fsync;
use crate::meter;
use crate::shard::background::flush::SLICE;
use crate::shard::memory::ahead::Look;
use crate::shard::memory::missing::LOAD_WHOLE;
use crate::shard::memory::object::Kind;
use crate::shard::memory::reads::Reads;
use crate::shard::memory::table::table_hash;
use crate::shard::txn::elements::whole_group;
use crate::shard::txn::{BIG_STRING, CHUNK, Found, Txn};
use crate::store::Watch;

impl World {
    /// What a key holds, as a command finds it that may not wait for the disk.
    pub(super) fn get_ahead(&mut self, key: &[u8]) -> Result<Option<Value>, Error> {
        let ns = self.ns(DB);
        self.ahead = true;
        let found = self.transact(&[key], |txn| read(txn, ns, key)).0;
        self.ahead = false;
        found
    }

    /// A string as it is read in passing, from a table that is full or not.
    fn pass(&mut self, key: &[u8], full: bool) -> Option<Vec<u8>> {
        let ns = self.ns(DB);
        self.ahead = full;
        let found = self.transact(&[key], |txn| {
            txn.count_hits = true;
            txn.in_passing(ns, key, Kind::String)
        });
        self.ahead = false;
        found.0.unwrap().map(|passing| passing.value().to_vec())
    }

    /// Reads what was wanted; how many reads there were.
    fn bring(&mut self) -> usize {
        let wanted = self.reads.take_wanted();
        let count = wanted.len();
        let mut watch = Watch::default();
        wanted.into_iter().for_each(|wanted| self.reads.add(wanted.read(&mut watch)));
        count
    }

    /// Everything is on disk only.
    pub(super) fn rest(&mut self) {
        self.flush();
        self.evict();
        self.engine().shards.iter().for_each(|shard| shard.core().cold.clear());
    }

    /// Adds fields to a hash.
    fn set_fields(&mut self, key: &[u8], fields: usize, value: &[u8]) {
        let ns = self.ns(DB);
        let done = self.transact(&[key], |txn| {
            let at = match txn.find(ns, key)? {
                Some(at) => at,
                None => txn.create(ns, key, Kind::Hash, 0)?,
            };
            for n in 0..fields {
                let existed = txn.put_element(at, &field(n), value)?;
                txn.add_size(at, i64::from(!existed));
            }
            Ok(())
        });
        done.0.unwrap();
    }

    /// A field's value, as a command finds it that may not wait for the disk.
    fn field_ahead(&mut self, key: &[u8], n: usize) -> Result<Option<Vec<u8>>, Error> {
        let ns = self.ns(DB);
        self.ahead = true;
        let found = self.transact(&[key], |txn| {
            let Some(at) = txn.find(ns, key)? else { return Ok(None) };
            Ok(txn.element(at, &field(n))?.map(<[u8]>::to_vec))
        });
        self.ahead = false;
        found.0
    }
}

fn field(n: usize) -> Vec<u8> {
    let mut key = Vec::new();
    element::hash_field(format!("f{n}").as_bytes(), &mut key);
    key
}

pub(super) fn string(value: &[u8]) -> Result<Option<Value>, Error> {
    Ok(Some(Value::string(value.to_vec(), 0)))
}

#[test]
fn a_record_is_read_without_the_lock_and_found_by_the_next_run() {
    let mut world = world(Fsync::No);
    world.put(DB, b"a", b"1", 0);
    world.put(DB, b"gone", b"1", 0);
    world.rest();
    world.delete(DB, b"gone");
    world.rest();
    let keys: [(&[u8], _); 2] = [(b"a", string(b"1")), (b"gone", Ok(None))];
    for (key, expected) in keys {
        assert_eq!(world.get_ahead(key), Err(Error::Cold));
        assert_eq!(world.get_ahead(key), Err(Error::Cold), "nobody has read it");
        assert_eq!(world.bring(), 1, "once, however often it is wanted");
        assert_eq!(world.get_ahead(key), expected);
        world.evict();
        assert_eq!(world.get_ahead(key), expected, "it stays with its command");
        world.reads.end();
        world.evict();
        assert!(world.get_ahead(key).is_err() || key == b"a", "and no longer");
        world.reads = Reads::default();
    }
}

#[test]
fn rule_16_what_was_read_before_a_flush_was_settled_is_not_used_after() {
    let mut world = world(Fsync::No);
    world.put(DB, b"a", b"1", 0);
    world.rest();
    assert_eq!(world.get_ahead(b"a"), Err(Error::Cold));
    world.bring();
    let read = std::mem::take(&mut world.reads);
    // Settled in several slices: it may leave while others are not yet.
    let others = 2 * SLICE.get();
    for n in 0..others {
        if n == others / 2 {
            world.put(DB, b"a", b"2", 0);
        }
        world.put(DB, format!("other {n}").as_bytes(), b"1", 0);
    }
    let mut flush = world.begin_flush(None);
    let engine = world.engine().clone();
    let (mut more, mut left_early) = (true, false);
    world.reads = read;
    while more {
        let has_left = world.state(DB, b"a").is_none();
        let found = world.get_ahead(b"a");
        // What was read is of another time.
        assert!(found == string(b"2") || has_left && found == Err(Error::Cold), "{found:?}, has left: {has_left}");
        left_early |= has_left;
        more = flush.step(&engine);
        world.evict();
        // Nor does the second level know it, which may forget at any time.
        engine.shards.iter().for_each(|shard| shard.core().cold.clear());
        if !more {
            assert!(world.state(DB, b"a").is_none());
        }
    }
    assert!(left_early, "before the flush was over");
    world.reads = Reads::default();
    world.rest();
    assert_eq!(world.get_ahead(b"a"), Err(Error::Cold));
    world.bring();
    assert_eq!(world.get_ahead(b"a"), string(b"2"));
}

#[test]
fn what_is_read_in_passing_does_not_enter_a_full_table() {
    let mut world = world(Fsync::No);
    let due = world.now_ms + 5;
    world.put(DB, b"a", b"1", 0);
    world.put(DB, b"due", b"1", due);
    world.set_fields(b"hash", 3, b"1");
    world.rest();
    assert_eq!(world.pass(b"a", true), None, "nobody has read it");
    for key in [&b"a"[..], b"due", b"hash"] {
        assert_eq!(world.get_ahead(key), Err(Error::Cold));
        world.bring();
    }
    let in_table = |world: &World| world.engine().shards.iter().map(|shard| shard.core().table.len()).sum::<usize>();
    let passed = |world: &World| {
        let stats = world.engine().shards.at(0).core().stats;
        assert_eq!(stats.keyspace_hits, stats.passing_reads, "what is read in passing is a hit");
        stats.passing_reads
    };
    assert_eq!(in_table(&world), 0);
    assert_eq!(world.pass(b"a", false), None, "there is room");
    assert_eq!(world.pass(b"hash", true), None, "no string");
    world.now_ms = due;
    assert_eq!(world.pass(b"due", true), None, "expired");
    assert_eq!(world.pass(b"a", true).as_deref(), Some(&b"1"[..]));
    assert_eq!((in_table(&world), passed(&world)), (0, 1));
    assert_eq!(world.pass(b"a", true), None, "asked for again");
    assert_eq!(world.get_ahead(b"a"), string(b"1"));
    assert_eq!((in_table(&world), passed(&world)), (1, 1));
    assert_eq!(world.pass(b"a", true), None, "in the table");
}

#[test]
fn elements_are_read_one_by_one_or_all_of_a_few() {
    let many = LOAD_WHOLE.get() as usize * 3;
    for (fields, passes) in [(many, 2), (3, 2), (2, 1)] {
        let mut world = world(Fsync::No);
        world.set_fields(b"hash", fields, b"1");
        world.rest();
        let mut reads = 0;
        while world.field_ahead(b"hash", 1) == Err(Error::Cold) {
            assert_eq!(world.bring(), 1);
            reads += 1;
        }
        assert_eq!(reads, passes, "metadata, then what it leads to, if it is not there");
        assert_eq!(world.field_ahead(b"hash", 1), Ok(Some(b"1".to_vec())));
        assert_eq!(world.field_ahead(b"hash", 2).is_ok(), fields <= 3, "a small one is there as a whole");
        // Another body under the same name has none of it.
        world.delete(DB, b"hash");
        world.set_fields(b"hash", fields, b"2");
        world.rest();
        while world.field_ahead(b"hash", 1) == Err(Error::Cold) {
            assert!(world.bring() > 0);
        }
        assert_eq!(world.field_ahead(b"hash", 1), Ok(Some(b"2".to_vec())));
    }
}

/// The metadata need not be read again, and says where that is.
/// Who asks for what is there, to add it, finds it in memory the next time.
#[test]
fn what_is_kept_as_it_is_comes_to_memory() {
    let mut world = world(Fsync::No);
    world.set_fields(b"hash", 90, b"1");
    world.rest();
    let ns = world.ns(DB);
    let add = |world: &mut World| {
        world.ahead = true;
        let there = world.transact(&[b"hash"], |txn| {
            let at = txn.find(ns, b"hash")?.unwrap();
            txn.add_element(at, &field(1), b"2")
        });
        world.ahead = false;
        there.0
    };
    while add(&mut world) == Err(Error::Cold) {
        assert!(world.bring() > 0);
    }
    world.reads = Reads::default();
    assert_eq!(add(&mut world), Ok(true));
    assert_eq!(world.field_ahead(b"hash", 1), Ok(Some(b"1".to_vec())));
}

/// The first `most` of a hash's fields, or the last ones, as a command finds them that may not wait for the disk.
fn ends_ahead(world: &mut World, reverse: bool, most: usize) -> Result<Vec<Vec<u8>>, Error> {
    let ns = world.ns(DB);
    let (lower, upper) = whole_group(element::Group::HashField);
    world.ahead = true;
    let found = world.transact(&[b"hash"], |txn| {
        let at = txn.find(ns, b"hash")?.unwrap();
        let bounds = (Bound::Included(&lower[..]), Bound::Excluded(&upper[..]));
        let few = txn.few_elements(at, bounds, reverse, most as u64)?.take(most);
        few.map(|element| Ok(element?.0.to_vec())).collect()
    });
    world.ahead = false;
    found.0
}

#[test]
fn the_ends_of_a_big_collection_are_read_at_once_and_without_the_lock() {
    let mut world = world(Fsync::No);
    world.set_fields(b"hash", 90, b"1");
    world.rest();
    let mut fields: Vec<_> = (0..90).map(field).collect();
    fields.sort();
    // Memory has some that the store has not, and knows of some that they are gone.
    let ns = world.ns(DB);
    assert_eq!(world.field_ahead(b"hash", 1), Err(Error::Cold));
    world.bring();
    let done = world.transact(&[b"hash"], |txn| {
        let at = txn.find(ns, b"hash")?.unwrap();
        txn.put_element(at, &field(100), b"2")?;
        for gone in [1, 2, 88, 89] {
            assert!(txn.remove_element(at, &fields[gone])?);
        }
        txn.add_size(at, -3);
        Ok(())
    });
    done.0.unwrap();
    world.reads = Reads::default();
    for gone in [89, 88, 2, 1] {
        fields.remove(gone);
    }
    fields.push(field(100));
    fields.sort();
    for (reverse, most) in [(false, 1), (false, 10), (true, 10), (true, 1)] {
        let expected: Vec<_> =
            if reverse { fields.iter().rev().take(most).cloned().collect() } else { fields[..most].to_vec() };
        assert_eq!(ends_ahead(&mut world, reverse, most), Err(Error::Cold));
        assert_eq!(world.bring(), 1, "one read for all of them");
        assert_eq!(ends_ahead(&mut world, reverse, most), Ok(expected));
        world.reads = Reads::default();
    }
    // More of the store's first are gone than were reckoned with: it is asked for where one may wait.
    let first: Vec<_> = fields.iter().filter(|field| **field != self::field(100)).take(70).cloned().collect();
    let done = world.transact(&[b"hash"], |txn| {
        let at = txn.find(ns, b"hash")?.unwrap();
        for gone in &first {
            assert!(txn.remove_element(at, gone)?);
        }
        txn.add_size(at, -70);
        Ok(())
    });
    done.0.unwrap();
    world.reads = Reads::default();
    assert_eq!(ends_ahead(&mut world, false, 5), Err(Error::Cold));
    assert_eq!(world.bring(), 1);
    assert_eq!(ends_ahead(&mut world, false, 5), Err(Error::Cold));
    assert!(world.reads.is_content(), "nothing more is wanted");
}

#[test]
fn what_is_looked_for_behind_metadata_that_moka_has_is_read_at_once() {
    let mut world = world(Fsync::No);
    world.set_fields(b"hash", 3, b"1");
    world.flush();
    world.evict();
    assert!(world.get(DB, b"hash").is_some());
    world.evict();
    let (engine, ns) = (world.engine().clone(), world.ns(DB));
    {
        let mut core = engine.shards.at(0).core();
        core.store_is_cold = true;
        let hash = table_hash(engine.router.hash(b"hash"), ns);
        core.want(hash, ns, b"hash", None, &mut world.reads);
        assert!(world.reads.is_content(), "it is known");
        core.want(hash, ns, b"hash", Some((&Look::field(2), b"f1")), &mut world.reads);
    }
    assert_eq!(world.bring(), 1);
    assert_eq!(world.field_ahead(b"hash", 1), Ok(Some(b"1".to_vec())));
}

/// Who may wait for the disk reads it, step by step, under its own bounds.
#[test]
fn a_few_elements_of_many_bytes_are_not_read_ahead() {
    // All of a few, or one of many.
    for (fields, bytes) in [(3, 50_000), (3 * LOAD_WHOLE.get() as usize, 70_000)] {
        let mut world = world(Fsync::No);
        world.set_fields(b"hash", fields, &vec![b'v'; bytes]);
        world.rest();
        assert_eq!(world.field_ahead(b"hash", 1), Err(Error::Cold));
        assert_eq!(world.bring(), 1);
        assert_eq!(world.field_ahead(b"hash", 1), Err(Error::Cold));
        assert_eq!(world.bring(), 1);
        assert_eq!(world.field_ahead(b"hash", 1), Err(Error::Cold));
        assert!(world.reads.is_content(), "and not tried again");
    }
}

/// It cannot leave before the command has ended: what it brings of keys and of elements, and what it writes.
#[test]
fn what_comes_to_memory_is_charged_to_its_command() {
    const BYTES: usize = 40_000;
    let mut world = world(Fsync::No);
    world.put(DB, b"string", &[b'v'; BYTES], 0);
    world.set_fields(b"hash", 3 * LOAD_WHOLE.get() as usize, &[b'v'; BYTES]);
    world.rest();
    let ns = world.ns(DB);
    let mut held = |run: &dyn Fn(&mut Txn<'_, '_>, Found) -> Result<bool, Error>, key: &[u8]| {
        let done = world.transact(&[key], |txn| {
            let before = meter::held();
            let found = txn.find(ns, key)?.unwrap();
            Ok((run(txn, found)?, meter::held() - before))
        });
        done.0.unwrap()
    };
    let nothing = held(&|_, _| Ok(true), b"hash");
    assert!(nothing.1 < BYTES, "{nothing:?}");
    // What is written stands in the log's record, too.
    for (what, copies, (done, bytes)) in [
        ("a key", 1, held(&|_, _| Ok(true), b"string")),
        ("an element", 1, held(&|txn, at| Ok(txn.element(at, &field(1))?.is_some()), b"hash")),
        ("what is written", 2, held(&|txn, at| Ok(!txn.put_element(at, b"\x01new", &[b'v'; BYTES])?), b"hash")),
        // The store still has what was there, for whoever rolls back.
        ("what is removed", 0, held(&|txn, at| txn.remove_element(at, &field(2)), b"hash")),
        ("what is overwritten", 3, held(&|txn, at| txn.put_element(at, &field(3), &[b'w'; BYTES]), b"hash")),
    ] {
        assert!(done && bytes / BYTES == copies, "{what}: {bytes}");
    }
}

/// Of a string that would take too much: neither charged nor taken into memory.
#[test]
fn a_chunk_that_is_passed_by_is_not_held() {
    let mut world = world(Fsync::No);
    world.put(DB, b"long", &[b'v'; 2 * BIG_STRING], 0);
    world.rest();
    let ns = world.ns(DB);
    for (passes, held) in [(true, 0), (true, 0), (false, 1), (true, 0)] {
        let done = world.transact(&[b"long"], |txn| {
            let found = txn.find(ns, b"long")?.unwrap();
            let before = (meter::held(), txn.lease[0].table_bytes);
            let len = txn.chunk_in_passing(found, 1, passes, <[u8]>::len)?;
            Ok((len, (meter::held() - before.0) / CHUNK, (txn.lease[0].table_bytes - before.1) / CHUNK))
        });
        assert_eq!(done.0.unwrap(), (CHUNK, held, held), "passed by: {passes}");
    }
}

/// However many are read for one pipeline; whose they are have them read again.
#[test]
fn what_is_brought_is_bounded_in_sum() {
    let mut world = world(Fsync::No);
    let keys: Vec<Vec<u8>> = (0..40).map(|n| format!("key:{n}").into_bytes()).collect();
    let value = vec![b'v'; 60_000];
    for key in &keys {
        world.put(DB, key, &value, 0);
    }
    world.rest();
    keys.iter().for_each(|key| assert_eq!(world.get_ahead(key), Err(Error::Cold)));
    assert_eq!(world.bring(), keys.len());
    assert!((60_000..(1 << 20) + 1).contains(&world.reads.memory_bytes()));
    for key in &keys {
        while world.get_ahead(key) == Err(Error::Cold) {
            assert_eq!(world.bring(), 1);
            assert!(world.reads.memory_bytes() <= 1 << 20);
        }
        assert_eq!(world.get_ahead(key), string(&value));
    }
    world.reads.end();
    assert_eq!(world.reads.memory_bytes(), 0);
}
