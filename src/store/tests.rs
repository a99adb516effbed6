//! The store as a whole: what goes in comes out, across closing, reopening and compaction.

#![expect(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::codec::key::{self, DiskKey, ExpiryKind, decode_key, element_range, tag_range};
use crate::codec::{Extra, KeyRange, Kind, Meta, NsId, element};
use crate::util::scratch::tempdir;
use std::cell::Cell;
use tempfile::TempDir;

mod index;
mod opening;
mod order;
mod space;

fn options() -> StoreOptions {
    StoreOptions { shards: Some(2), cache_bytes: 1 << 20, nice: None, ..StoreOptions::default() }
}

fn open(dir: &TempDir) -> Store {
    Store::open(dir.path(), options()).unwrap()
}

type Item = (Vec<u8>, Option<Vec<u8>>);

fn put(key: &str, value: &str) -> Item {
    (key.into(), Some(value.into()))
}

fn tombstone(key: &str) -> Item {
    (key.into(), None)
}

fn texts(range: impl Iterator<Item = Result<(UserKey, UserValue)>>) -> Vec<String> {
    range
        .map(|record| {
            let (key, value) = record.unwrap();
            format!("{}={}", String::from_utf8_lossy(&key), String::from_utf8_lossy(&value))
        })
        .collect()
}

#[test]
fn ingested_records_are_read_and_shadowed() {
    let dir = tempdir().unwrap();
    let store = open(&dir);
    let partition = store.partition(0);
    assert_eq!(partition.ingest([put("a", "1"), put("b", "2"), put("c", "3")]).unwrap(), 3);
    assert_eq!(partition.ingest([put("a", "4"), tombstone("b"), put("d", "5")]).unwrap(), 3);
    assert_eq!(partition.get(b"a").unwrap().as_deref(), Some(b"4".as_slice()));
    assert_eq!(partition.get(b"b").unwrap(), None);
    assert_eq!(partition.get(b"c").unwrap().as_deref(), Some(b"3".as_slice()));
    let all = ["a=4", "c=3", "d=5"];
    assert_eq!(texts(partition.range(b"a", b"z").unwrap()), all);
    assert_eq!(texts(partition.range(b"a", b"z").unwrap().rev()), ["d=5", "c=3", "a=4"]);
    assert_eq!(texts(partition.range(b"b", b"d").unwrap()), ["c=3"]);
    assert_eq!(texts(partition.range(b"d", b"b").unwrap()), [""; 0]);
    assert_eq!(store.partition(1).get(b"a").unwrap(), None);
    assert!(partition.disk_bytes() > 0);
    partition.major_compact().unwrap();
    assert_eq!(texts(partition.range(b"a", b"z").unwrap()), all);
    assert_eq!(partition.l0_runs(), 0);
}

#[test]
fn an_ingestion_of_nothing_does_nothing() {
    let dir = tempdir().unwrap();
    let store = open(&dir);
    let called = Cell::new(false);
    let finish = || {
        called.set(true);
        Ok::<_, StoreError>(())
    };
    assert_eq!(store.partition(0).ingest_with(Vec::<Item>::new(), finish).unwrap(), 0);
    assert!(!called.get());
    assert_eq!(table_files(&dir), 0);
}

#[test]
fn rule_1_nothing_is_visible_before_the_log_is_synced() {
    let dir = tempdir().unwrap();
    let store = open(&dir);
    let partition = store.partition(0);
    let seen = Cell::new(None);
    let sync = || {
        seen.set(Some(partition.get(b"a").unwrap().is_some()));
        Ok::<_, StoreError>(())
    };
    partition.ingest_with([put("a", "1")], sync).unwrap();
    assert_eq!(seen.get(), Some(false));
    assert!(partition.get(b"a").unwrap().is_some());
    // A log that cannot be synced keeps the records out.
    let error = partition.ingest_with([put("b", "1")], || Err("no space")).unwrap_err();
    assert_eq!(error.to_string(), "ingestion given up: no space");
    assert_eq!(partition.get(b"b").unwrap(), None);
}

#[test]
fn keys_that_fjall_dies_of_are_refused_before_it() {
    let dir = tempdir().unwrap();
    let store = open(&dir);
    let partition = store.partition(0);
    let long = "x".repeat(65_536);
    for (items, expected) in [
        (vec![put("", "1")], "key of 0 bytes cannot be stored"),
        (vec![put("a", "1"), put(&long, "1")], "key of 65536 bytes cannot be stored"),
        (vec![put("b", "1"), put("a", "1")], "keys of an ingestion do not ascend at [61]"),
        (vec![put("a", "1"), tombstone("a")], "keys of an ingestion do not ascend at [61]"),
    ] {
        assert_eq!(partition.ingest(items).unwrap_err().to_string(), expected);
        assert!(matches!(partition.ingest([put("a", "1")]), Err(StoreError::NeedsReopen(_))));
        assert!(matches!(store.health(), Err(StoreError::NeedsReopen(_))));
        store.reopen().unwrap();
        assert!(store.health().is_ok());
        assert_eq!(partition.get(b"a").unwrap(), None);
    }
    partition.ingest([put(&long[1..], "1")]).unwrap();
    assert!(partition.get(&long.as_bytes()[1..]).unwrap().is_some());
}

fn table_files(dir: &TempDir) -> usize {
    let keyspaces = std::fs::read_dir(dir.path().join("store/keyspaces")).unwrap();
    keyspaces
        .map(|keyspace| keyspace.unwrap())
        // 0 is fjall's own, which has the options of the others.
        .filter(|keyspace| keyspace.file_name() != "0")
        .map(|keyspace| std::fs::read_dir(keyspace.path().join("tables")).unwrap().count())
        .sum()
}

#[test]
fn reopening_removes_what_a_given_up_ingestion_left() {
    let dir = tempdir().unwrap();
    let store = open(&dir);
    store.partition(0).ingest([put("a", "1")]).unwrap();
    assert_eq!(table_files(&dir), 1);
    store.partition(0).ingest_with([put("b", "1")], || Err("no")).unwrap_err();
    assert_eq!(table_files(&dir), 2);
    store.reopen().unwrap();
    assert_eq!(table_files(&dir), 1);
    assert!(store.partition(0).disk_bytes() > 0);
    store.partition(0).ingest([put("b", "1")]).unwrap();
    assert_eq!(texts(store.partition(0).range(b"a", b"z").unwrap()), ["a=1", "b=1"]);
}

#[test]
fn a_range_in_use_keeps_the_store_from_reopening() {
    let dir = tempdir().unwrap();
    let store = open(&dir);
    store.partition(0).ingest([put("a", "1")]).unwrap();
    let range = store.partition(0).range(b"a", b"z").unwrap();
    assert!(matches!(store.reopen(), Err(StoreError::Busy)));
    assert!(matches!(store.partition(0).get(b"a"), Err(StoreError::Closed)));
    assert_eq!(texts(range), ["a=1"]);
    store.reopen().unwrap();
    assert!(store.partition(0).get(b"a").unwrap().is_some());
}

#[test]
fn reads_and_ingestions_wait_for_a_reopening() {
    let dir = tempdir().unwrap();
    let store = open(&dir);
    let partition = store.partition(0);
    partition.ingest([put("a", "0")]).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    let running = || !done.load(std::sync::atomic::Ordering::Acquire);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            while running() {
                assert!(partition.get(b"a").unwrap().is_some());
                let _ = store.health();
            }
        });
        let writer = scope.spawn(|| {
            let mut rounds = 0;
            while running() {
                rounds += 1;
                // What is ingested is read from the partition itself, while somebody waits to close it.
                let items = (0..2).map(|n| (vec![b'a' + n], partition.get(b"a").unwrap()));
                partition.ingest(items).unwrap();
            }
            rounds
        });
        for _ in 0..8 {
            store.reopen().unwrap();
        }
        done.store(true, std::sync::atomic::Ordering::Release);
        reader.join().unwrap();
        assert!(writer.join().unwrap() > 0);
    });
    assert_eq!(texts(partition.range(b"a", b"z").unwrap()), ["a=0", "b=0"]);
}

#[test]
fn a_range_does_not_see_what_comes_after_it() {
    let dir = tempdir().unwrap();
    let store = open(&dir);
    let partition = store.partition(0);
    partition.ingest([put("a", "1"), put("b", "1")]).unwrap();
    let range = partition.range(b"a", b"z").unwrap();
    partition.ingest([put("a", "2"), tombstone("b"), put("c", "2")]).unwrap();
    partition.major_compact().unwrap();
    assert_eq!(texts(range), ["a=1", "b=1"]);
    assert_eq!(texts(partition.range(b"a", b"z").unwrap()), ["a=2", "c=2"]);
}

/// What is likely to be there is read past fjall's filter, and is what fjall would have read: of one run or of several, with
/// an index in one piece or in many, before and after a compaction, with a file of the table's own or without.
#[test]
fn what_is_likely_is_read_as_what_is_not() {
    let value = |n: u32, of: &str| (key_of(n), Some(format!("{of}{n}").into_bytes()));
    for table_files in [100, 1, 0] {
        let dir = tempdir().unwrap();
        let store = Store::open(dir.path(), StoreOptions { table_files, ..options() }).unwrap();
        let partition = store.partition(0);
        let check = |of: &str| {
            for n in 0..4002 {
                let read = |odds| partition.get_of_some(&key_of(n), odds, None, &mut Watch::default()).unwrap();
                assert_eq!(read(Odds::Likely), read(Odds::Even), "{n} {of}");
                assert_eq!(read(Odds::Even), partition.get_newest(&key_of(n)).unwrap(), "{n} {of}");
                let mut watch = Watch::default();
                let aim = partition.aim(&key_of(n), true);
                let aimed = partition.get_of_some(&key_of(n), Odds::Likely, aim.as_ref(), &mut watch).unwrap();
                assert_eq!(read(Odds::Likely), aimed, "{n} {of}");
                let is_there = n % 2 == 1 && n < 4000 && (of == "one run" || n % 3 > 0 || n >= 1000);
                assert_eq!(read(Odds::Likely).is_some(), is_there, "{n} {of}");
            }
        };
        // Enough for an index in pieces.
        partition.ingest((1..4000).step_by(2).map(|n| value(n, "first"))).unwrap();
        check("one run");
        let changed = (1..1000).step_by(2).map(|n| if n % 3 == 0 { (key_of(n), None) } else { value(n, "second") });
        partition.ingest(changed).unwrap();
        partition.ingest((2001..2500).step_by(2).map(|n| value(n, "third"))).unwrap();
        check("three runs");
        partition.major_compact().unwrap();
        partition.follow();
        check("compacted");
        let now = partition.slot().ways.open_files();
        assert!(now <= table_files && (now > 1) == (table_files > 1), "{now} files are open");
    }
}

fn key_of(n: u32) -> Vec<u8> {
    format!("Mkey:{n:08}").into_bytes()
}

/// What is likely to be there does not ask fjall's filter: that is neither read nor kept in the cache for it.
#[test]
fn what_is_likely_takes_no_room_for_a_filter() {
    let cached = |odds| {
        let dir = tempdir().unwrap();
        open(&dir).partition(0).ingest((0..3000).map(|n| (key_of(n), Some(vec![b'v'; 20])))).unwrap();
        let store = open(&dir);
        let before = store.cache_used_bytes();
        let read = || store.partition(0).get_of_some(&key_of(70), odds, None, &mut Watch::default()).unwrap();
        assert!(read().is_some() && read().is_some());
        store.cache_used_bytes() - before
    };
    // A piece of the index and a block of records come in either way.
    assert!(cached(Odds::Likely) + 1000 < cached(Odds::Even));
}

/// Once the cache is full, a block that is asked for once stays out, and one that is asked for again comes in, aimed at or not.
#[test]
fn a_full_cache_takes_blocks_that_are_asked_for_again() {
    // Of many blocks for each of its parts.
    const CACHE_BYTES: u64 = 2 << 20;
    const KEYS: u32 = 60_000;
    for aims in [false, true] {
        let dir = tempdir().unwrap();
        let store = Store::open(dir.path(), StoreOptions { cache_bytes: CACHE_BYTES, ..options() }).unwrap();
        let partition = store.partition(0);
        partition.ingest((0..KEYS).map(|n| (key_of(n), Some(vec![b'v'; 100])))).unwrap();
        let cached = |n: u32| {
            let aim = partition.aim(&key_of(n), true);
            aim.is_some_and(|aim| !aim.is_begun())
        };
        let read = |n: u32| {
            let mut watch = Watch::default();
            let aim = if aims { partition.aim(&key_of(n), true) } else { None };
            let value = partition.get_of_some(&key_of(n), Odds::Likely, aim.as_ref(), &mut watch).unwrap().unwrap();
            assert_eq!(*value, [b'v'; 100]);
        };
        // As long as there is room, at once.
        read(0);
        assert!(cached(0));
        (0..KEYS).step_by(10).for_each(read);
        assert!(store.cache_used_bytes() > CACHE_BYTES / 2);
        let out = (1..KEYS).find(|n| !cached(*n)).unwrap();
        read(out);
        assert!(!cached(out));
        read(out);
        assert!(cached(out));
    }
}

/// What was aimed at in a table that has been replaced since is read from the one in its place.
#[test]
fn an_aim_at_what_has_been_replaced_is_no_harm() {
    let dir = tempdir().unwrap();
    let store = open(&dir);
    let partition = store.partition(0);
    partition.ingest((0..3000).map(|n| (key_of(n), Some(vec![b'1'; 20])))).unwrap();
    let mut watch = Watch::default();
    // Their piece of the index must be in the cache.
    assert!(partition.get_of_some(&key_of(70), Odds::Likely, None, &mut watch).unwrap().is_some());
    let aims = [70, 71].map(|n| partition.aim(&key_of(n), true));
    assert!(aims.iter().all(Option::is_some));
    partition.ingest([(key_of(70), Some(vec![b'2'; 20])), (key_of(71), None)]).unwrap();
    let mut check = |aims: &[Option<Aimed>; 2]| {
        let [changed, gone] = [(70, &aims[0]), (71, &aims[1])]
            .map(|(n, aim)| partition.get_of_some(&key_of(n), Odds::Likely, aim.as_ref(), &mut watch).unwrap());
        assert_eq!((changed.as_deref(), gone.as_deref()), (Some(&[b'2'; 20][..]), None));
    };
    check(&aims);
    partition.major_compact().unwrap();
    partition.follow();
    check(&aims);
}

/// A replaced table's file is closed, so that its space comes back.
#[test]
fn files_of_replaced_tables_are_closed() {
    let dir = tempdir().unwrap();
    let store = open(&dir);
    let partition = store.partition(0);
    let tables = || partition.levels().iter().map(|[_, tables, _]| *tables as usize).sum::<usize>();
    for round in 0..10 {
        partition.ingest((0..20).map(|n| put(&format!("k{n:02}{round}"), "value"))).unwrap();
    }
    partition.major_compact().unwrap();
    partition.follow();
    assert_eq!(partition.slot().ways.open_files(), tables());
    let ways = partition.slot().ways.clone();
    drop(store);
    assert_eq!(ways.open_files(), 0);
}

/// A directory can hold far more records than there is memory for a part of each.
#[test]
fn what_stays_in_memory_of_many_records_is_no_part_of_each() {
    let dir = tempdir().unwrap();
    let store = open(&dir);
    let partition = store.partition(0);
    assert_eq!((store.active_compactions(), partition.l0_runs(), partition.pinned_bytes()), (0, 0, 0));
    for from in [0, 10_000] {
        partition.ingest((from..from + 10_000).map(|n| put(&format!("k{n:09}"), "value"))).unwrap();
    }
    // The ways to the pieces of filters and indexes, and no more.
    assert!((1..20_000 / 10).contains(&partition.pinned_bytes()), "{} bytes", partition.pinned_bytes());
}

#[test]
fn rule_15_the_journal_stays_empty() {
    let dir = tempdir().unwrap();
    for round in 0..3 {
        let store = open(&dir);
        for partition in store.partitions() {
            partition.ingest([put("a", &format!("{round}")), tombstone("b")]).unwrap();
            partition.major_compact().unwrap();
        }
        let journals: Vec<_> = std::fs::read_dir(dir.path().join("store"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "jnl"))
            .collect();
        assert_eq!(journals.len(), 1);
        assert!(std::fs::read(&journals[0]).unwrap().iter().all(|&byte| byte == 0));
    }
}

// What the compaction filter drops and keeps (rule 8).

/// Records to ingest, in any order.
#[derive(Default)]
struct Records(std::collections::BTreeMap<Vec<u8>, Option<Vec<u8>>>);

impl Records {
    fn put(mut self, key: impl FnOnce(&mut Vec<u8>), value: &[u8]) -> Self {
        let mut bytes = Vec::new();
        key(&mut bytes);
        self.0.insert(bytes, Some(value.to_vec()));
        self
    }

    fn hash(self, ns: NsId, name: &[u8], version: u64) -> Self {
        let mut value = Vec::new();
        Meta { version, size: 2, ..Meta::new(Kind::Hash) }.encode(None, b"", &mut value);
        let records = self.put(|out| key::meta_key(ns, name, out), &value);
        records.fields(ns, name, version)
    }

    fn fields(self, ns: NsId, name: &[u8], version: u64) -> Self {
        let field = |name: &[u8]| {
            let mut out = Vec::new();
            element::hash_field(name, &mut out);
            out
        };
        self.put(|out| key::element_key(ns, name, version, &field(b"f1"), out), b"v")
            .put(|out| key::element_key(ns, name, version, &field(b"f2"), out), b"v")
    }

    fn string(self, ns: NsId, name: &[u8]) -> Self {
        let mut value = Vec::new();
        Meta::new(Kind::String).encode(None, b"value", &mut value);
        self.put(|out| key::meta_key(ns, name, out), &value)
    }

    fn no_meta(mut self, ns: NsId, name: &[u8]) -> Self {
        let mut bytes = Vec::new();
        key::meta_key(ns, name, &mut bytes);
        self.0.insert(bytes, None);
        self
    }

    fn garbage(self, ns: NsId, name: &[u8], version: u64) -> Self {
        self.put(|out| key::garbage_key(ns, name, version, out), b"")
    }

    fn ingest(self, partition: &Partition) {
        partition.ingest(self.0).unwrap();
    }
}

fn fields(partition: &Partition, ns: NsId, name: &[u8], version: u64) -> usize {
    let range = element_range(ns, name, version);
    partition.range(&range.lower, &range.upper).unwrap().count()
}

/// How many records of a group are there.
fn group(partition: &Partition, tag: u8) -> usize {
    let range = tag_range(tag);
    partition.range(&range.lower, &range.upper).unwrap().count()
}

#[test]
fn rule_8_elements_of_a_garbage_version_go() {
    let dir = tempdir().unwrap();
    let store = open(&dir);
    let partition = store.partition(0);
    Records::default().hash(1, b"dead", 5).hash(1, b"dea", 5).hash(1, b"live", 5).hash(2, b"dead", 5).ingest(partition);
    Records::default().no_meta(1, b"dead").garbage(1, b"dead", 5).ingest(partition);
    partition.major_compact().unwrap();
    assert_eq!(fields(partition, 1, b"dead", 5), 0);
    assert_eq!(fields(partition, 1, b"dea", 5), 2);
    assert_eq!(fields(partition, 1, b"live", 5), 2);
    assert_eq!(fields(partition, 2, b"dead", 5), 2);
    // The record itself stays until whoever works it off has removed it.
    assert_eq!(group(partition, key::tag::GARBAGE), 1);
    assert_eq!(group(partition, key::tag::META), 3);
}

#[test]
fn rule_8_metadata_of_a_higher_version_buries_lower_ones() {
    let dir = tempdir().unwrap();
    let store = open(&dir);
    let partition = store.partition(0);
    Records::default().hash(1, b"k", 5).ingest(partition);
    Records::default().hash(1, b"k", 9).fields(1, b"k", 12).ingest(partition);
    partition.major_compact().unwrap();
    assert_eq!(fields(partition, 1, b"k", 5), 0);
    assert_eq!(fields(partition, 1, b"k", 9), 2);
    // A result in the making, under a version that no metadata names yet.
    assert_eq!(fields(partition, 1, b"k", 12), 2);
}

#[test]
fn rule_8_without_a_record_of_its_death_an_element_stays() {
    let dir = tempdir().unwrap();
    let store = open(&dir);
    let partition = store.partition(0);
    // Neither a string in its place, nor missing metadata, nor garbage of another version or of a part is enough.
    let head = Meta { version: 5, size: 2, extra: Extra::None, expire_ms: 1, ..Meta::new(Kind::Hash) };
    let mut expired = Vec::new();
    head.encode(None, b"", &mut expired);
    Records::default()
        .string(1, b"string")
        .fields(1, b"string", 5)
        .fields(1, b"missing", 5)
        .fields(1, b"other", 5)
        .garbage(1, b"other", 4)
        .fields(1, b"part", 5)
        .put(|out| key::garbage_key(1, b"part", 5, out), b"bounds")
        .put(|out| key::meta_key(1, b"expired", out), &expired)
        .fields(1, b"expired", 5)
        .ingest(partition);
    partition.major_compact().unwrap();
    for name in ["string", "missing", "other", "part", "expired"] {
        assert_eq!(fields(partition, 1, name.as_bytes(), 5), 2, "{name}");
    }
    assert_eq!(group(partition, key::tag::META), 2, "an expired key is the sweep's");
}

#[test]
fn rule_8_records_of_a_dead_namespace_go() {
    let dir = tempdir().unwrap();
    let store = open(&dir);
    let partition = store.partition(0);
    for ns in [1, 2] {
        Records::default()
            .hash(ns, b"hash", 5)
            .string(ns, b"string")
            .garbage(ns, b"old", 3)
            .put(|out| key::expiry_key(77, ExpiryKind::Key, ns, b"string", out), b"")
            .put(|out| key::count_key(ns, out), &key::count_value(2))
            .ingest(partition);
    }
    Records::default().put(key::names_key, b"names").put(|out| key::dead_ns_key(1, out), b"").ingest(partition);
    partition.major_compact().unwrap();
    let left: Vec<NsId> = partition
        .range(&[0], &[0xff])
        .unwrap()
        .filter_map(|record| match decode_key(&record.unwrap().0).unwrap() {
            DiskKey::Names | DiskKey::Flushed | DiskKey::Library { .. } => None,
            DiskKey::Meta { ns, .. }
            | DiskKey::Element { ns, .. }
            | DiskKey::Expiry { ns, .. }
            | DiskKey::Garbage { ns, .. }
            | DiskKey::Pending { ns, .. }
            | DiskKey::DeadNs { ns }
            | DiskKey::Count { ns } => Some(ns),
        })
        .collect();
    // The dead-namespace record, elements, garbage, metadata, expiry, counts; all of namespace 2 but one.
    assert_eq!(left, [1, 2, 2, 2, 2, 2, 2, 2]);
    assert!(partition.get(b"N").unwrap().is_some());
}

#[test]
fn a_dropped_element_does_not_return_when_its_garbage_is_worked_off() {
    let dir = tempdir().unwrap();
    let store = open(&dir);
    let partition = store.partition(0);
    // The same elements twice: in the last level, and above it.
    Records::default().hash(1, b"k", 5).ingest(partition);
    partition.major_compact().unwrap();
    Records::default().no_meta(1, b"k").fields(1, b"k", 5).garbage(1, b"k", 5).ingest(partition);
    let range = element_range(1, b"k", 5);
    let tombstones: Vec<Item> =
        partition.range(&range.lower, &range.upper).unwrap().map(|record| (record.unwrap().0.to_vec(), None)).collect();
    assert_eq!(tombstones.len(), 2);
    partition.ingest(tombstones).unwrap();
    let mut garbage = Vec::new();
    key::garbage_key(1, b"k", 5, &mut garbage);
    partition.ingest([(garbage, None::<Vec<u8>>)]).unwrap();
    assert_eq!(fields(partition, 1, b"k", 5), 0);
    partition.major_compact().unwrap();
    assert_eq!(partition.range(&[0], &[0xff]).unwrap().count(), 0);
    assert_eq!(partition.disk_bytes(), 0);
}

#[test]
fn the_filter_is_installed_anew_and_does_not_keep_the_database() {
    let dir = tempdir().unwrap();
    let store = open(&dir);
    Records::default().hash(1, b"k", 5).ingest(store.partition(1));
    store.partition(1).major_compact().unwrap();
    store.reopen().unwrap();
    drop(store);
    let store = open(&dir);
    let partition = store.partition(1);
    Records::default().no_meta(1, b"k").garbage(1, b"k", 5).ingest(partition);
    partition.major_compact().unwrap();
    assert_eq!(fields(partition, 1, b"k", 5), 0);
}

#[test]
fn damage_in_a_metadata_value_keeps_the_elements() {
    let dir = tempdir().unwrap();
    let store = open(&dir);
    let partition = store.partition(0);
    // What was judged before it is dead.
    Records::default()
        .fields(1, b"a", 5)
        .garbage(1, b"a", 5)
        .put(|out| key::meta_key(1, b"k", out), b"\xff\xff")
        .fields(1, b"k", 5)
        .garbage(1, b"k", 5)
        .ingest(partition);
    partition.major_compact().unwrap();
    assert_eq!(fields(partition, 1, b"a", 5), 0);
    assert_eq!(fields(partition, 1, b"k", 5), 2);
    assert!(store.health().is_ok());
}

// What is dead gives its space back.

/// What reads background work does says nothing of those of commands.
#[test]
fn large_values_take_long_until_others_have_been_read() {
    let dir = tempdir().unwrap();
    let store = open(&dir);
    let partition = store.partition(0);
    partition.ingest([("large", Some(vec![7; 300 << 10])), ("small", Some(vec![7]))]).unwrap();
    let few = |from: &[u8]| partition.few_of_some((from, b"z"), false, (10, 1000), &mut Watch::default()).unwrap();
    let is_quick = |read: &dyn Fn()| {
        partition.note_quick();
        read();
        partition.reads_are_quick()
    };
    assert!(is_quick(&|| _ = partition.get(b"small").unwrap()));
    assert!(is_quick(&|| _ = partition.get_aside(b"large").unwrap()));
    assert!(!is_quick(&|| assert!(few(b"a").is_none())));
    assert!(is_quick(&|| assert!(few(b"m").is_some())));
    assert!(!is_quick(&|| _ = partition.get(b"large").unwrap()));
    (0..200).for_each(|_| _ = partition.get(b"small").unwrap());
    assert!(partition.reads_are_quick());
}
