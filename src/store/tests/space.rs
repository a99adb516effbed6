//! What is dead: how it is known, and how its space comes back.

use std::sync::atomic::Ordering;

use super::*;

/// A hash's elements, so many that they are several tables of the last level.
fn big_hash(partition: &Partition, version: u64) {
    let field = |n: u32| {
        let mut out = Vec::new();
        element::hash_field(format!("field {n:05}").as_bytes(), &mut out);
        out
    };
    let mut records = Records::default().hash(1, b"a", 1).hash(1, b"z", 1);
    for n in 0..4000u32 {
        // Hardly compressible.
        let value = xxhash_rust::xxh3::xxh3_128(&n.to_le_bytes()).to_le_bytes();
        records = records.put(|out| key::element_key(1, b"k", version, &field(n), out), &value);
    }
    records.ingest(partition);
    partition.major_compact().unwrap();
}

#[test]
fn whole_tables_of_a_dead_range_are_dropped_and_nothing_else() {
    let dir = tempdir().unwrap();
    let store = open(&dir);
    let partition = store.partition(0);
    big_hash(partition, 5);
    let tables = table_files(&dir);
    assert!(tables > 5, "{tables}");
    let range = element_range(1, b"k", 5);
    assert!(partition.tables().unwrap().are_droppable(std::slice::from_ref(&range)));
    let dropped = partition.drop_tables(std::slice::from_ref(&range)).unwrap();
    // What has a neighbour's record in it stays, and the files go at once, as what is read is of the new version.
    assert_eq!(dropped as usize, tables - 2);
    assert_eq!(table_files(&dir), 2);
    let edges = fields(partition, 1, b"k", 5);
    assert!(0 < edges && edges < 2000, "{edges}");
    for name in [b"a", b"z"] {
        assert_eq!(fields(partition, 1, name, 1), 2);
        let mut record = Vec::new();
        key::meta_key(1, name, &mut record);
        assert!(partition.get(&record).unwrap().is_some());
    }
    assert!(!partition.tables().unwrap().are_droppable(std::slice::from_ref(&range)));
    assert_eq!(partition.drop_tables(&[range]).unwrap(), 0);
    drop(store);
    assert_eq!(fields(open(&dir).partition(0), 1, b"k", 5), edges);
}

/// Tombstones that lie in a table of their own go with it, and what they hid shows again: who drops tables has to look.
#[test]
fn a_dropped_table_uncovers_what_it_hid() {
    let dir = tempdir().unwrap();
    let store = open(&dir);
    let partition = store.partition(0);
    Records::default().hash(1, b"k", 5).hash(1, b"z", 5).ingest(partition);
    partition.major_compact().unwrap();
    let range = element_range(1, b"k", 5);
    let tombstones: Vec<Item> =
        partition.range(&range.lower, &range.upper).unwrap().map(|record| (record.unwrap().0.to_vec(), None)).collect();
    partition.ingest(tombstones).unwrap();
    assert_eq!(fields(partition, 1, b"k", 5), 0);
    assert_eq!(partition.drop_tables(&[range]).unwrap(), 1);
    assert_eq!(fields(partition, 1, b"k", 5), 2);
}

/// Digits by chance, which do not compress to nothing.
pub(super) fn text(n: u64) -> String {
    format!("{:032x}", xxhash_rust::xxh3::xxh3_128(&n.to_le_bytes()))
}

/// As after all tables of that one were dropped.
#[test]
fn what_has_outgrown_its_level_goes_on_to_an_empty_one() {
    let dir = tempdir().unwrap();
    let store = open(&dir);
    let partition = store.partition(0);
    let tables = |level: usize| partition.levels()[level][1];
    let wait_for = |what: &dyn Fn() -> bool| {
        let began = std::time::Instant::now();
        while !what() {
            store.health().unwrap();
            assert!(began.elapsed().as_secs() < 60, "{:?}", partition.levels());
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    };
    // The last level, so large that two others come into being above it.
    let middle = (0..30_000).map(|n| (format!("m{n:05}"), Some(text(n))));
    let edge = |key: &str| (key.to_owned(), Some("edge".to_owned()));
    partition.ingest([edge("a")].into_iter().chain(middle).chain([edge("zz")])).unwrap();
    partition.major_compact().unwrap();
    // Four runs on both sides of that, which do not fit beside it.
    let runs_around = |sides: [&'static str; 2], each: u64, first: u64| {
        for run in first..first + 4 {
            let keys = sides.into_iter().flat_map(|side| (0..each).map(move |n| (format!("{side}{n:03}{run}"), n)));
            partition.ingest(keys.map(|(key, n)| (key, Some(text(n * 16 + run))))).unwrap();
        }
        wait_for(&|| tables(0) == 0);
    };
    runs_around(["b", "y"], 130, 0);
    runs_around(["a", "z"], 60, 4);
    assert_eq!([4, 5, 6].map(|level| tables(level) > 0), [true, true, true], "{:?}", partition.levels());
    partition.drop_tables(&[KeyRange { lower: b"b".to_vec(), upper: b"z".to_vec() }]).unwrap();
    assert_eq!([4, 5, 6].map(|level| tables(level) > 0), [true, false, true], "{:?}", partition.levels());
    runs_around(["a", "z"], 60, 8);
    wait_for(&|| tables(4) == 0);
}

#[test]
fn tombstones_have_a_partition_compacted_until_none_is_left() {
    let dir = tempdir().unwrap();
    let store = open(&dir);
    let partition = store.partition(0);
    partition.ingest((0..5000).map(|n| (format!("{n:05}"), Some(text(n))))).unwrap();
    let full = partition.disk_bytes();
    assert_eq!((partition.dead_bytes(), partition.wants_compaction(false)), (0, false));
    // One run: fjall itself would wait for three more.
    partition.ingest((0..5000).filter(|n| n % 10 != 0).map(|n| (format!("{n:05}"), None::<String>))).unwrap();
    assert_eq!(partition.bulk().tombstones, 4500);
    assert!(partition.disk_bytes() > full && partition.dead_bytes() > full / 2);
    drop(store);
    let store = open(&dir);
    let partition = store.partition(0);
    assert!(partition.wants_compaction(false), "it is known from the tables");
    partition.compact_dead().unwrap();
    assert_eq!((partition.bulk().records, partition.bulk().tombstones, partition.dead_bytes()), (500, 0, 0));
    assert!(partition.disk_bytes() < full / 8 && !partition.wants_compaction(false));
    assert_eq!(table_files(&dir), partition.tables().unwrap().0.len(), "files that were replaced are gone");
    assert_eq!(partition.range(b"0", b"9").unwrap().count(), 500);
}

#[test]
fn what_is_known_to_be_dead_is_compacted_for_once() {
    let dir = tempdir().unwrap();
    let store = open(&dir);
    let partition = store.partition(0);
    big_hash(partition, 5);
    // Nobody has tombstones for it: the filter drops it.
    Records::default().no_meta(1, b"k").garbage(1, b"k", 5).ingest(partition);
    assert!(!partition.wants_compaction(false));
    partition.note_dead(100 << 10);
    assert!(partition.wants_compaction(false));
    partition.compact_dead().unwrap();
    assert_eq!((fields(partition, 1, b"k", 5), partition.dead_bytes()), (0, 0));
    assert!(!partition.wants_compaction(false));
}

#[test]
fn who_reads_keeps_what_a_compaction_has_replaced() {
    let dir = tempdir().unwrap();
    let store = open(&dir);
    let partition = store.partition(0);
    big_hash(partition, 5);
    let before = table_files(&dir);
    let range = element_range(1, b"k", 5);
    let mut reading = partition.range(&range.lower, &range.upper).unwrap();
    reading.next().unwrap().unwrap();
    partition.drop_tables(&[range]).unwrap();
    assert_eq!(table_files(&dir), before);
    assert_eq!(reading.map(Result::unwrap).count(), 3999);
    assert_eq!(table_files(&dir), 2);
}

/// The runs of a flush, too: most of a partition is moved, not rewritten, until it is large.
#[test]
fn what_is_ingested_is_compressed() {
    let dir = tempdir().unwrap();
    let store = open(&dir);
    let partition = store.partition(0);
    let value = "the same words again and again, ".repeat(4);
    partition.ingest((0..2000).map(|n| (format!("{n:05}"), Some(value.clone())))).unwrap();
    let raw = 2000 * (5 + value.len() as u64);
    assert!(partition.disk_bytes() < raw / 3, "{} of {raw}", partition.disk_bytes());
}

/// A store of which a partition has some hundred kilobytes, in one run.
fn filled(dir: &TempDir) -> Store {
    let store = open(dir);
    let value = |n: u64| (8 * n..8 * n + 8).map(text).collect::<String>();
    store.partition(0).ingest((0..5000).map(|n| (format!("{n:05}"), Some(value(n))))).unwrap();
    store
}

#[test]
fn where_room_is_tight_less_that_is_dead_is_worth_a_compaction() {
    let dir = tempdir().unwrap();
    let store = filled(&dir);
    let partition = store.partition(0);
    let part = partition.disk_bytes() / 12;
    let wants = || [false, true].map(|tight| partition.wants_compaction(tight));
    for expected in [[false, false], [false, true], [false, true], [true, true]] {
        partition.note_dead(part);
        assert_eq!(wants(), expected, "{} of {}", partition.dead_bytes(), partition.disk_bytes());
    }
}

/// It would be asked for ten times a second. Once those have gone who read what it would replace, there is one, for all that
/// was dead before, though nothing is written any more.
#[test]
fn a_compaction_that_may_not_be_made_is_asked_for_once_it_may() {
    let dir = tempdir().unwrap();
    let store = filled(&dir);
    let partition = store.partition(0);
    partition.note_dead(1 << 30);
    assert!(partition.wants_compaction(false));
    let stills = store.stills().unwrap();
    assert!(!partition.wants_compaction(false));
    // It was asked for before they came.
    assert!(!partition.compact_dead().unwrap());
    assert_eq!(partition.dead_bytes(), partition.disk_bytes(), "all of it, still");
    drop(stills);
    assert!(partition.wants_compaction(false));
    assert!(partition.compact_dead().unwrap());
    assert_eq!((partition.wants_compaction(false), partition.dead_bytes()), (false, 0));
}

#[test]
fn what_was_dead_before_a_compaction_that_failed_still_is() {
    let dir = tempdir().unwrap();
    let store = filled(&dir);
    let partition = store.partition(0);
    partition.note_dead(1 << 20);
    drop(partition.slot().close());
    assert!(matches!(partition.compact_dead(), Err(StoreError::Closed)));
    assert_eq!(partition.known_dead.load(Ordering::Relaxed), 1 << 20);
}

/// Else it would never be compacted again.
#[test]
fn a_store_that_cannot_be_held_still_is_not() {
    let dir = tempdir().unwrap();
    let store = filled(&dir);
    let db = store.db.write().take();
    assert!(matches!(store.stills(), Err(StoreError::Closed)));
    *store.db.write() = db;
    assert!(store.partitions.iter().all(|partition| *partition.stills.lock() == 0));
    let stills = store.stills().unwrap();
    assert!(store.partitions.iter().all(|partition| *partition.stills.lock() == 1));
    drop(stills);
    assert!(store.partitions.iter().all(|partition| *partition.stills.lock() == 0));
}

#[test]
fn what_is_found_to_be_dead_during_a_compaction_is_left_for_the_next() {
    let dir = tempdir().unwrap();
    let store = filled(&dir);
    let partition = store.partition(0);
    partition.note_dead(1 << 20);
    let held_up = partition.stills.lock();
    std::thread::scope(|scope| {
        let compaction = scope.spawn(|| partition.compact_dead());
        while !partition.compacting.is_locked() {
            std::thread::yield_now();
        }
        partition.note_dead(1 << 10);
        drop(held_up);
        compaction.join().unwrap().unwrap();
    });
    assert_eq!(partition.dead_bytes(), 1 << 10);
}
