//! The sweep of hashes' fields: in the table, on disk, after a restart, while the hash changes.

use std::path::Path;
use std::sync::Arc;

use crate::codec::field::{Field, FieldTimes, push_timed};
use crate::codec::{self, DiskKey, ExpiryKind, Extra, element};
use crate::shard::background::fields::FieldSweep;
use crate::shard::background::timer::Timer;
use crate::shard::background::timer::expire::sweep_hashes;
use crate::shard::engine::Engine;
use crate::shard::keyspace::walk::tests::engine;
use crate::shard::memory::object::Kind;
use crate::shard::txn::{Found, Txn};

/// An engine with one shard at a time of its own.
struct Bench {
    dir: tempfile::TempDir,
    engine: Option<Arc<Engine>>,
    now_ms: u64,
}

fn element_key(name: &[u8]) -> Vec<u8> {
    let mut key = Vec::new();
    element::hash_field(name, &mut key);
    key
}

/// Adds a field with a time, 0 for none.
fn add(txn: &mut Txn<'_, '_>, at: Found, name: &[u8], expire_ms: u64) {
    let mut value = Vec::new();
    push_timed(expire_ms, b"v", &mut value);
    assert!(!txn.put_element(at, &element_key(name), &value).unwrap());
    txn.add_size(at, 1);
    let mut times = FieldTimes::of(&txn.body(at).extra).unwrap_or_default();
    times.add(expire_ms);
    times.settle(txn.size(at));
    txn.set_extra(at, times.extra());
}

impl Bench {
    fn new() -> Self {
        let dir = crate::util::scratch::tempdir().unwrap();
        let engine = Some(engine(dir.path(), 1));
        Bench { dir, engine, now_ms: 1000 }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn engine(&self) -> &Arc<Engine> {
        self.engine.as_ref().unwrap()
    }

    fn transact<R>(&self, run: impl FnOnce(&mut Txn<'_, '_>) -> R) -> R {
        self.engine().transact(&[0], self.now_ms, |txn| Ok(run(txn))).unwrap()
    }

    /// Adds fields with their times to a hash, which may be new.
    fn set(&self, key: &[u8], fields: &[(&[u8], u64)]) {
        self.transact(|txn| {
            let at = match txn.find(0, key).unwrap() {
                Some(at) => at,
                None => txn.create(0, key, Kind::Hash, 0).unwrap(),
            };
            fields.iter().for_each(|(name, expire_ms)| add(txn, at, name, *expire_ms));
        });
    }

    /// Physical fields with their times, and what the metadata says; `None` for no hash.
    fn hash(&self, key: &[u8]) -> Option<(Vec<(String, u64)>, FieldTimes)> {
        self.transact(|txn| {
            let at = txn.find(0, key).unwrap()?;
            let mut fields = Vec::new();
            for element in txn.group(at, element::Group::HashField).unwrap() {
                let (stored, value) = element.unwrap();
                let field = Field::split(&stored[1..], &value, true).unwrap();
                fields.push((String::from_utf8_lossy(field.name).into_owned(), field.expire_ms));
            }
            assert_eq!(txn.size(at), fields.len() as u64);
            Some((fields, FieldTimes::of(&txn.body(at).extra).unwrap()))
        })
    }

    fn names(&self, key: &[u8]) -> String {
        self.hash(key).map_or("none".to_owned(), |(fields, _)| fields.into_iter().map(|(name, _)| name).collect())
    }

    /// Fields that have expired.
    fn expired(&self) -> u64 {
        self.engine().shards.at(0).core().stats.expired_fields
    }

    fn keys(&self) -> u64 {
        self.engine().shards.at(0).core().count(0)
    }

    /// A turn of the timer at this time.
    fn turn(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
        Timer::new(self.engine(), 0).turn(now_ms);
    }

    /// Everything clean leaves the table.
    fn evict(&self) {
        let mut core = self.engine().shards.at(0).core();
        let limit = std::mem::replace(&mut core.table_limit, 0);
        (0..300).for_each(|_| core.make_room());
        core.table_limit = limit;
        assert_eq!(core.table.len(), 0);
        assert!(core.fields.is_empty());
    }

    fn restart(&mut self) {
        drop(self.engine.take());
        self.engine = Some(engine(self.path(), 1));
    }

    /// Times of the records for fields in fjall's expiry index.
    fn listed(&self) -> Vec<u64> {
        let range = codec::key::tag_range(codec::key::tag::EXPIRY);
        let partition = self.engine().store.partition(0);
        let records = partition.range(&range.lower, &range.upper).unwrap();
        let mut times = Vec::new();
        for record in records {
            let (key, _) = record.unwrap();
            if let Ok(DiskKey::Expiry { expire_ms, kind: ExpiryKind::Field, .. }) = codec::key::decode_key(&key) {
                times.push(expire_ms);
            }
        }
        times
    }
}

/// Ten fields: more than two slices of the sweep.
const TEN: &[(&[u8], u64)] = &[
    (b"a", 2000),
    (b"b", 0),
    (b"c", 3000),
    (b"d", 2000),
    (b"e", 9000),
    (b"f", 2000),
    (b"g", 2500),
    (b"h", 0),
    (b"i", 2000),
    (b"j", 2000),
];

#[test]
fn fields_leave_on_time_in_memory_on_disk_and_after_a_restart() {
    for way in ["memory", "disk", "restart from the log", "restart from the store"] {
        let mut bench = Bench::new();
        bench.set(b"ten", TEN);
        bench.set(b"other", &[(b"x", 2100), (b"y", 0)]);
        bench.set(b"short", &[(b"x", 2100)]);
        if way.contains("disk") || way.contains("store") {
            bench.engine().flush().unwrap();
            assert_eq!(bench.listed(), [2000, 2100, 2100], "{way}");
        }
        match way {
            "disk" => bench.evict(),
            "memory" => {}
            _ => bench.restart(),
        }
        bench.turn(1999);
        assert_eq!((bench.keys(), bench.names(b"ten").as_str()), (3, "abcdefghij"), "{way}");
        bench.turn(2000);
        assert_eq!((bench.names(b"ten").as_str(), bench.names(b"other").as_str()), ("bcegh", "xy"), "{way}");
        bench.turn(2200);
        assert_eq!((bench.keys(), bench.names(b"other").as_str()), (2, "y"), "{way}: a hash without fields is gone");
        assert_eq!(bench.names(b"short"), "none", "{way}");
        let (_, other) = bench.hash(b"other").unwrap();
        assert_eq!(other, FieldTimes { persist: 1, ..FieldTimes::default() });
        bench.engine().flush().unwrap();
        assert_eq!(bench.listed().len(), 1, "{way}: the records of what is gone are gone");
        assert_eq!(bench.expired(), 7, "{way}");
    }
}

#[test]
fn a_hash_is_gone_once_its_last_field_has_expired_swept_or_not() {
    let mut bench = Bench::new();
    bench.set(b"hash", &[(b"a", 2000), (b"b", 3000)]);
    bench.now_ms = 2999;
    assert!(bench.hash(b"hash").is_some());
    bench.now_ms = 3000;
    assert!(bench.hash(b"hash").is_none());
    assert_eq!(bench.keys(), 1);
    // It may begin anew before the sweep comes by: what was there has expired all the same.
    bench.set(b"hash", &[(b"c", 5000)]);
    assert_eq!(bench.expired(), 2);
    bench.turn(3100);
    assert_eq!((bench.keys(), bench.names(b"hash").as_str()), (1, "c"));
    bench.turn(5000);
    assert_eq!((bench.keys(), bench.expired()), (0, 3));
    bench.set(b"hash", &[(b"a", 6000), (b"b", 6000)]);
    bench.now_ms = 6000;
    bench.transact(|txn| txn.delete(0, b"hash").unwrap());
    assert_eq!(bench.expired(), 5);
    // One that goes itself does not lose its fields first.
    bench.set(b"hash", &[(b"a", 7000)]);
    bench.transact(|txn| {
        let at = txn.find(0, b"hash").unwrap().unwrap();
        txn.set_expiry(at, 7000);
    });
    bench.now_ms = 7000;
    bench.transact(|txn| txn.delete(0, b"hash").unwrap());
    assert_eq!(bench.expired(), 5);
}

/// One by one in a hash that stays, or all of them with their hash.
#[test]
fn every_field_that_a_sweep_takes_is_counted() {
    let mut bench = Bench::new();
    bench.set(b"stays", &[(b"a", 2000), (b"b", 0), (b"c", 2000)]);
    bench.set(b"goes", &[(b"a", 2000), (b"b", 2000), (b"c", 1500)]);
    bench.turn(2100);
    assert_eq!((bench.keys(), bench.names(b"stays").as_str()), (1, "b"));
    assert_eq!(bench.engine().shards.at(0).core().stats.expired_fields, 5);
}

#[test]
fn a_record_follows_the_earliest_time() {
    let mut bench = Bench::new();
    bench.set(b"hash", &[(b"a", 5000)]);
    bench.engine().flush().unwrap();
    assert_eq!(bench.listed(), [5000]);
    bench.set(b"hash", &[(b"b", 4000), (b"c", 6000), (b"d", 0)]);
    bench.engine().flush().unwrap();
    assert_eq!(bench.listed(), [4000]);
    bench.turn(4500);
    bench.engine().flush().unwrap();
    assert_eq!(bench.listed(), [5000]);
    bench.transact(|txn| txn.put_string(0, b"hash", b"no hash", 0).unwrap());
    bench.engine().flush().unwrap();
    assert!(bench.listed().is_empty());
    bench.set(b"more", &[(b"a", 9000)]);
    bench.engine().flush().unwrap();
    bench.transact(|txn| txn.delete(0, b"more").unwrap());
    bench.engine().flush().unwrap();
    assert!(bench.listed().is_empty());
    bench.turn(10_000);
    assert_eq!(bench.keys(), 1);
}

/// The sweep brings a hash from disk, and the table has no room for it: the next one brings it again.
#[test]
fn a_hash_that_leaves_before_its_fields_are_looked_at_is_found_again() {
    let mut bench = Bench::new();
    bench.set(b"hash", &[(b"a", 2000), (b"b", 0)]);
    bench.engine().flush().unwrap();
    bench.evict();
    let limit = std::mem::replace(&mut bench.engine().shards.at(0).core().table_limit, 0);
    bench.turn(2500);
    assert_eq!(bench.expired(), 0, "it has left unswept");
    bench.engine().shards.at(0).core().table_limit = limit;
    bench.turn(2600);
    assert_eq!(bench.names(b"hash"), "b");
}

#[test]
fn a_flushed_database_leaves_no_record_of_fields() {
    let mut bench = Bench::new();
    bench.set(b"ten", TEN);
    bench.set(&[b'l'; codec::MAX_INLINE + 1], &[(b"x", 5000)]);
    bench.engine().flush().unwrap();
    assert_eq!(bench.listed(), [2000, 5000]);
    bench.transact(|txn| {
        let (names, dead) = txn.lease[0].names.renewed(&[b"0"]).unwrap();
        txn.replace_names(names, &dead);
    });
    bench.engine().flush().unwrap();
    // None of the times is past: the sweep has no part in it.
    (0..10).for_each(|_| bench.turn(1000));
    assert!(bench.engine().shards.at(0).core().dead_names.is_empty());
    assert!(bench.listed().is_empty());
}

#[test]
fn a_hash_that_is_overwritten_unseen_leaves_no_record_of_its_fields() {
    let bench = Bench::new();
    bench.set(b"ten", TEN);
    bench.engine().flush().unwrap();
    assert_eq!(bench.listed(), [2000]);
    bench.evict();
    let shard = bench.engine().shards.at(0);
    shard.core().cold.clear();
    bench.transact(|txn| txn.put_string(0, b"ten", b"value", 0).unwrap());
    assert_eq!(shard.core().blind.len(), 1, "nothing was read");
    bench.engine().flush().unwrap();
    assert!(bench.listed().is_empty());
}

#[test]
fn a_field_without_a_name_is_swept_like_any_other() {
    let mut bench = Bench::new();
    // Gone through at once, and in slices.
    bench.set(b"few", &[(b"", 2000), (b"a", 9000)]);
    bench.set(b"many", &[(b"", 2000), (b"a", 9000), (b"b", 0), (b"c", 0), (b"d", 0), (b"e", 3000)]);
    bench.set(b"none", &[(b"", 2000)]);
    bench.set(b"later", &[(b"", 8000), (b"a", 2000)]);
    bench.turn(2500);
    let hash = |key: &[u8]| bench.hash(key).map(|(fields, times)| (fields, times.lower, times.upper));
    assert_eq!(hash(b"few"), Some((vec![("a".to_owned(), 9000)], 9000, 9000)));
    assert_eq!(bench.names(b"many"), "abcde");
    assert_eq!(hash(b"none"), None);
    assert_eq!(hash(b"later"), Some((vec![(String::new(), 8000)], 8000, 8000)));
}

#[test]
fn times_added_while_a_sweep_is_under_way_are_not_lost() {
    let bench = Bench { now_ms: 2000, ..Bench::new() };
    bench.set(b"ten", &[(b"a", 0), (b"b", 0), (b"c", 0), (b"d", 0), (b"e", 0), (b"z", 2000)]);
    let core = || bench.engine().shards.at(0).core();
    let mut sweep = FieldSweep::next(&mut core(), 2000).unwrap();
    assert!(!bench.transact(|txn| txn.sweep_fields(&mut sweep).unwrap().ended));
    // Behind the sweep's place, so that it does not come by again.
    bench.set(b"ten", &[(b"aa", 2500)]);
    assert!(bench.transact(|txn| txn.sweep_fields(&mut sweep).unwrap().ended));
    let (fields, times) = bench.hash(b"ten").unwrap();
    assert_eq!(fields.len(), 6);
    assert_eq!((times.persist, times.lower), (5, 2500));
    assert!((2500..2600).contains(&times.indexed) && times.upper >= 2500, "{times:?}");
    // A hash that was made anew under the same name is not the one that was being swept.
    bench.set(b"ten", &[(b"y", 2000)]);
    let mut sweep = FieldSweep::next(&mut core(), 2600).unwrap();
    bench.transact(|txn| txn.delete(0, b"ten").unwrap());
    bench.set(b"ten", &[(b"y", 2000)]);
    assert!(bench.transact(|txn| txn.sweep_fields(&mut sweep).unwrap().ended));
    assert_eq!(bench.keys(), 1);
}

/// What is big is not gone through again and again: meanwhile who reads passes over what has expired.
#[test]
fn the_next_look_at_a_big_hash_waits_for_a_multiple_of_what_the_last_took() {
    let bench = Bench { now_ms: 2000, ..Bench::new() };
    let names: Vec<String> = (0..4000).map(|n| n.to_string()).collect();
    let mut fields: Vec<_> = names.iter().map(|name| (name.as_bytes(), 2001)).collect();
    fields.extend([(&b"due"[..], 2000), (b"late", 9_000_000)]);
    bench.set(b"big", &fields);
    let mut sweep = FieldSweep::next(&mut bench.engine().shards.at(0).core(), 2000).unwrap();
    while !bench.transact(|txn| txn.sweep_fields(&mut sweep).unwrap().ended) {}
    let (fields, times) = bench.hash(b"big").unwrap();
    assert_eq!((fields.len(), times.lower), (4001, 2001));
    assert!(times.indexed > times.lower, "{times:?}");
}

/// A command may begin to go through a hash between two slices of its sweep.
#[test]
fn a_sweep_under_way_leaves_a_hash_alone_that_is_held_since() {
    let mut bench = Bench { now_ms: 2000, ..Bench::new() };
    bench.set(b"ten", TEN);
    let mut sweep = None;
    let goes_on = |sweep: &mut Option<FieldSweep>| bench.transact(|txn| sweep_hashes(txn, sweep, 2000).unwrap());
    assert!(goes_on(&mut sweep) && sweep.is_some());
    let left = bench.names(b"ten");
    assert_eq!(left, "bcefghij");
    bench.engine().shards.at(0).core().busy.hold(b"ten", false);
    while goes_on(&mut sweep) {}
    assert_eq!(bench.names(b"ten"), left);
    assert!(bench.engine().shards.at(0).core().busy.let_go(b"ten").is_empty());
    while goes_on(&mut sweep) {}
    assert!(sweep.is_none(), "nothing is left half done");
    bench.turn(8000);
    assert_eq!(bench.names(b"ten"), "beh");
}

#[test]
fn a_rollback_leaves_times_and_index_as_they_were() {
    let mut bench = Bench::new();
    bench.set(b"hash", &[(b"a", 5000), (b"b", 0)]);
    let failed = bench.engine().transact(&[0], 1000, |txn| {
        let at = txn.find(0, b"hash").unwrap().unwrap();
        add(txn, at, b"c", 1500);
        txn.delete_found(at);
        Err::<(), _>(crate::Error::Syntax)
    });
    assert!(failed.is_err());
    bench.turn(2000);
    assert_eq!(bench.names(b"hash"), "ab");
    let (_, times) = bench.hash(b"hash").unwrap();
    assert_eq!(times, FieldTimes { persist: 1, lower: 5000, upper: 5000, indexed: 5000 });
    bench.turn(5000);
    assert_eq!(bench.names(b"hash"), "b");
    assert_ne!(times.extra(), Extra::None);
}
