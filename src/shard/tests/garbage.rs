//! What is dead leaves fjall: by batches, after one flush, whether anybody writes or not, and leaves nothing in memory.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::world::{DB, NAMES, Value, World, big, wait_for};
use crate::Error;
use crate::codec::MAX_INLINE;
use crate::codec::field::{FieldTimes, push_timed};
use crate::codec::key::tag;
use crate::log::Fsync;
use crate::shard::memory::core::Core;
use crate::shard::memory::garbage::Reclaim;
use crate::shard::memory::object::Kind;
use crate::shard::memory::table::table_hash;

impl World {
    /// So many hashes, brought to fjall.
    fn stored_hashes(&mut self, count: usize, fields: usize) {
        let ns = self.ns(DB);
        let fields: Vec<Vec<u8>> = (0..fields).map(|n| format!("\u{1}field {n}").into_bytes()).collect();
        for n in 0..count {
            let key = format!("hash {n}").into_bytes();
            let made = self.transact(&[&key], |txn| {
                let at = txn.create(ns, &key, Kind::Hash, 0)?;
                for field in &fields {
                    txn.put_element(at, field, b"value")?;
                }
                txn.add_size(at, fields.len() as i64);
                Ok(())
            });
            self.engine().write_out(made.1);
            let elements = fields.iter().map(|field| (field.clone(), b"value".to_vec())).collect();
            self.model.get_mut(DB).unwrap().insert(key, Value::collection(Kind::Hash, elements, 0));
        }
        self.note();
        self.flush();
    }

    fn delete_all(&mut self) {
        for key in self.model[DB].keys().cloned().collect::<Vec<_>>() {
            self.delete(DB, &key);
        }
    }

    /// Records in fjall that stand for what is dead, of both kinds.
    fn queued(&self) -> usize {
        self.stored_with(tag::GARBAGE) + self.stored_with(tag::DEAD_NS)
    }

    /// Entries of the queues as the cores know them.
    fn known(&self) -> u64 {
        let of = |core: &Core| core.garbage.len() + core.dead_names.len();
        self.engine().shards.iter().map(|shard| of(&shard.core())).sum()
    }

    /// Everything dirty is brought to fjall, but the log stays as it is.
    fn store_and_keep_the_log(&mut self) {
        let engine = self.engine().clone();
        let mut flush = self.begin_flush(None);
        let settled = |shard: crate::shard::actor::Shard<'_>| {
            let core = shard.core();
            core.dirty_bytes + core.flight_bytes == 0 && core.in_flight.is_empty() && core.flying.is_none()
        };
        while !engine.shards.iter().all(settled) {
            assert!(flush.step(&engine));
        }
    }
}

/// Keys of a test's batch take about 4 KB.
const TURNS: usize = 40;

#[test]
fn many_dead_collections_leave_after_one_flush() {
    let mut world = World::new(3, Fsync::No);
    world.stored_hashes(300, 3);
    world.delete_all();
    world.flush();
    assert_eq!((world.stored_with(tag::GARBAGE), world.known()), (300, 300));
    assert_eq!(world.engine().dirty_bytes(), 0, "nothing of what is dead stands in memory");
    let flushes = world.engine().stats.flushes.load(Ordering::Relaxed);
    for _ in 0..TURNS {
        world.turns(1);
        assert_eq!(world.engine().dirty_bytes(), 0, "tombstones do not gather in memory");
    }
    assert_eq!((world.stored_with(tag::ELEMENT), world.queued(), world.known()), (0, 0, 0));
    assert_eq!(world.engine().stats.flushes.load(Ordering::Relaxed), flushes);
    world.audit();
}

#[test]
fn what_dies_during_a_pass_is_found_by_the_next() {
    let mut world = World::new(1, Fsync::No);
    world.stored_hashes(200, 3);
    for key in world.model[DB].keys().skip(100).cloned().collect::<Vec<_>>() {
        world.delete(DB, &key);
    }
    world.flush();
    world.turns(2);
    assert!(world.queued() > 0, "a pass is under way");
    // In front of where it stands.
    world.delete_all();
    world.flush();
    world.turns(TURNS);
    assert_eq!((world.stored_with(tag::ELEMENT), world.queued(), world.known()), (0, 0, 0));
    world.audit();
}

#[test]
fn a_key_made_again_survives_its_garbage() {
    let mut world = World::new(2, Fsync::No);
    world.stored_hashes(100, 3);
    world.delete_all();
    world.stored_hashes(100, 3);
    world.turns(TURNS);
    assert_eq!((world.stored_with(tag::ELEMENT), world.queued()), (300, 0));
    world.verify();
    world.audit();
}

/// Where a batch ends within one of them says nothing of the next. Few batches, so that no compaction does their work.
#[test]
fn databases_that_die_together_leave_nothing() {
    let mut world = World::new(1, Fsync::No);
    for n in 0..200 {
        world.put(NAMES[0], format!("key {n}").as_bytes(), b"1", 0);
    }
    world.put(NAMES[1], b"big", &big(1), 0);
    world.flush();
    world.flush_names(&NAMES[..2]);
    world.flush();
    world.turns(1);
    assert_ne!((world.stored_with(tag::META), world.stored_with(tag::ELEMENT)), (0, 0), "one batch does not do");
    world.turns(TURNS);
    assert_eq!((world.stored_with(tag::META), world.stored_with(tag::ELEMENT), world.queued()), (0, 0, 0));
    world.audit();
}

/// Nobody writes: the flusher runs for what is dead, and then no more.
#[test]
fn an_idle_server_reclaims_and_comes_to_rest() {
    let mut world = World::new(2, Fsync::No);
    world.stored_hashes(100, 3);
    world.options.background = true;
    world.reopen(true);
    let engine = world.engine().clone();
    world.delete_all();
    world.flush_names(&[NAMES[1]]);
    wait_for(&|| world.known() == 0 && world.queued() == 0 && engine.dirty_bytes() == 0);
    assert_eq!(world.stored_with(tag::ELEMENT), 0);
    let long_ago = Instant::now().checked_sub(Duration::from_secs(600)).unwrap();
    wait_for(&|| !engine.is_flushing());
    assert!(!engine.needs_flush(long_ago), "there is nothing left to be flushed for");
    engine.close(false).unwrap();
}

/// FLUSHDB between any two steps of a flush, also one that fails: what is in flight stays until it has settled. The turn that finds
/// it so comes back, whether another database dies meanwhile, with objects in front of those that are waited for, or nothing does.
#[test]
fn objects_of_a_dead_namespace_leave_the_table_after_their_flight() {
    let mut world = World::new(1, Fsync::No);
    let left = |world: &World| world.engine().shards.at(0).core().table.iter().count();
    for (fail, others) in [(None, &[&b"first"[..], b"last"][..]), (Some(0), &[b"first", b"last"]), (None, &[])] {
        let mut stayed = false;
        for steps in 0.. {
            others.iter().take(1).for_each(|key| world.put(NAMES[1], key, b"1", 0));
            for n in 0..20 {
                world.put(DB, format!("key {n}").as_bytes(), b"1", 0);
            }
            others.iter().skip(1).for_each(|key| world.put(NAMES[1], key, b"1", 0));
            let mut flush = world.begin_flush(fail);
            let under_way = (0..steps).all(|_| flush.step(world.engine()));
            world.flush_names(&[DB]);
            world.turns(1);
            stayed |= left(&world) > others.len();
            if !others.is_empty() {
                world.flush_names(&[NAMES[1]]);
            }
            world.finish(&mut flush);
            world.turns(1);
            assert_eq!(left(&world), 0, "flushed away after {steps} steps, others: {others:?}");
            if !under_way {
                break;
            }
        }
        assert!(stayed, "some were in flight");
    }
    world.audit();
}

/// What the log says of a database before it says that this is dead comes to memory, and leaves it.
#[test]
fn objects_of_a_namespace_that_dies_in_a_replay_leave_the_table() {
    let mut world = World::new(2, Fsync::No);
    for n in 0..20 {
        world.put(DB, format!("key {n}").as_bytes(), b"1", 0);
    }
    world.flush_names(&[DB]);
    world.put(DB, b"later", b"1", 0);
    world.crash(None);
    world.turns(1);
    let left = world.engine().shards.iter().map(|shard| shard.core().table.iter().count()).sum::<usize>();
    assert_eq!(left, 1);
    world.verify();
    world.audit();
}

/// A queue's memory is a few numbers, whatever a replay finds.
#[test]
fn a_replay_counts_each_record_once() {
    let mut world = World::new(2, Fsync::No);
    world.stored_hashes(50, 3);
    world.delete_all();
    world.store_and_keep_the_log();
    world.crash(None);
    // Once in fjall, and once more in the log.
    assert_eq!(world.known(), 100);
    world.flush();
    world.turns(TURNS);
    assert_eq!((world.queued(), world.known()), (0, 0));
    world.audit();
}

#[test]
fn a_crash_between_two_batches_leaves_the_record() {
    for turns in 1..3 {
        let mut world = World::new(1, Fsync::No);
        world.stored_hashes(1, 400);
        // From four runs on fjall compacts of its own accord, and may drop all that the batches have left.
        world.engine().store.partition(0).major_compact().unwrap();
        world.delete_all();
        world.flush();
        world.turns(turns);
        assert!(world.engine().store.partition(0).l0_runs() < 4);
        assert_eq!((world.queued(), world.stored_with(tag::ELEMENT) > 0), (1, true));
        world.crash(Some(turns as u64));
        world.turns(TURNS);
        assert_eq!((world.queued(), world.stored_with(tag::ELEMENT)), (0, 0));
        world.audit();
    }
}

/// The record is gone while the log still holds what died: a replay that flushes midway brings both back.
#[test]
fn rule_8_a_replay_brings_garbage_back_with_its_record() {
    for names in [false, true] {
        let mut world = World::new(1, Fsync::No);
        world.put(DB, b"a", &big(1), world.now_ms + 70_000);
        for n in 0..6 {
            world.put(DB, format!("other {n}").as_bytes(), b"1", 0);
        }
        world.store_and_keep_the_log();
        if names {
            world.flush_names(&[DB]);
        } else {
            world.delete(DB, b"a");
        }
        world.store_and_keep_the_log();
        world.turns(TURNS);
        assert_eq!((world.stored_with(tag::ELEMENT), world.queued(), world.known()), (0, 0, 0));
        world.engine().log.sync_to(world.engine().log.last()).unwrap();
        (world.options.dirty_budget, world.options.table_budget) = (1, 1);
        world.crash(Some(3));
        assert!(world.engine().shards.at(0).core().gathers > 1);
        world.verify();
        world.audit();
    }
}

#[test]
fn a_rollback_leaves_nothing_queued() {
    let mut world = World::new(1, Fsync::No);
    world.stored_hashes(3, 3);
    let ns = world.ns(DB);
    let undone = world.transact(&[], |txn| {
        txn.delete(ns, b"hash 0")?;
        let (names, dead) = txn.lease[0].names.renewed(&[DB]).unwrap();
        txn.replace_names(names, &dead);
        Err::<(), _>(Error::Cold)
    });
    assert!(undone.0.is_err());
    assert_eq!(world.known(), 0);
    world.audit();
}

#[test]
fn a_failed_flush_keeps_the_queue() {
    let mut world = World::new(1, Fsync::No);
    world.stored_hashes(5, 3);
    world.delete_all();
    let mut flush = world.begin_flush(Some(0));
    world.finish(&mut flush);
    world.turns(3);
    assert_eq!((world.queued(), world.known()), (0, 5));
    assert!(world.engine().shards.at(0).core().garbage.waits_for_flush());
    world.flush();
    world.turns(TURNS);
    assert_eq!((world.stored_with(tag::ELEMENT), world.known()), (0, 0));
    world.audit();
}

#[test]
fn a_store_that_takes_nothing_is_left_alone() {
    let mut world = World::new(1, Fsync::No);
    world.stored_hashes(5, 3);
    world.delete_all();
    world.flush();
    let given_up = || Err(std::io::Error::other("given up by the test"));
    world.engine().store.partition(0).ingest_with([(b"E", Some(b""))], given_up).unwrap_err();
    world.turns(3);
    assert_eq!((world.queued(), world.known()), (5, 5));
    world.engine().store.reopen().unwrap();
    world.turns(TURNS);
    assert_eq!((world.queued(), world.known()), (0, 0));
    world.audit();
}

#[test]
fn what_a_failed_ingestion_was_to_remove_is_removed_by_the_next() {
    let mut world = World::new(1, Fsync::No);
    world.stored_hashes(5, 3);
    world.delete_all();
    world.flush();
    assert_eq!((world.queued(), world.known()), (5, 5));
    let tables = world.options.dir.join("store/keyspaces/1/tables");
    let aside = tables.with_extension("aside");
    std::fs::rename(&tables, &aside).unwrap();
    world.turns(1);
    assert!(world.engine().store.health().is_err(), "it had no place for its tombstones");
    std::fs::rename(&aside, &tables).unwrap();
    world.engine().store.reopen().unwrap();
    world.turns(TURNS);
    assert_eq!((world.stored_with(tag::ELEMENT), world.queued(), world.known()), (0, 0, 0));
    world.audit();
}

/// A small namespace goes by tombstones, its expiry records too; one that had nothing costs nothing.
#[test]
fn rule_9_a_stream_of_flushalls_piles_nothing_up() {
    let mut world = World::new(2, Fsync::No);
    let long_key = [b'l'; 1100];
    for round in 0..40u64 {
        for key in [b"a", &b"b"[..], &long_key] {
            world.put(DB, key, b"1", world.now_ms + 1_000_000 + round);
        }
        world.flush();
        world.flush_names(&NAMES[..2]);
    }
    world.flush();
    world.turns(TURNS);
    assert_eq!((world.queued(), world.known()), (0, 0));
    assert_eq!(
        (world.stored_with(tag::META), world.stored_with(tag::EXPIRY), world.stored_with(tag::COUNT)),
        (0, 0, 0)
    );
    assert_eq!(world.engine().stats.compactions.load(Ordering::Relaxed), 0);
    world.audit();
}

/// Bytes of the tables in a folder and those below it.
fn size_bytes(folder: &std::path::Path) -> u64 {
    let tables = folder.ends_with("tables");
    let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    let bytes = entries.map(|entry| match entry.metadata() {
        Ok(data) if data.is_dir() => size_bytes(&entry.path()),
        Ok(data) if tables => data.len(),
        _ => 0,
    });
    bytes.sum()
}

/// Where much is dead, the disk is given back at once.
#[test]
fn much_that_is_dead_is_compacted_once() {
    let mut world = World::new(1, Fsync::No);
    for n in 0..20u8 {
        world.put(DB, &[n], &big(n), 0);
    }
    world.put(DB, b"stays", &big(7), 0);
    world.flush();
    let files = world.options.dir.join(crate::store::STORE_FOLDER);
    let before = size_bytes(&files);
    world.flush_names(&[NAMES[1]]);
    for n in 0..20u8 {
        world.delete(DB, &[n]);
    }
    world.flush();
    world.turns(TURNS);
    assert_eq!((world.queued(), world.known()), (0, 0));
    assert!(world.engine().stats.compactions.load(Ordering::Relaxed) <= 2);
    let after = size_bytes(&files);
    assert!(after < before / 4, "{after} of {before} bytes are left");
    world.audit();
}

impl World {
    /// A hash of so many fields, under its own table files but for the edges.
    fn big_stored_hash(&mut self, fields: usize) {
        self.stored_hashes(1, fields);
        self.engine().store.partition(0).major_compact().unwrap();
    }

    fn dropped_tables(&self) -> u64 {
        self.engine().stats.dropped_tables.load(Ordering::Relaxed)
    }

    /// Records of the first partition's tables, tombstones among them.
    fn records(&self) -> u64 {
        self.engine().store.partition(0).follow();
        self.engine().store.partition(0).bulk().records
    }
}

/// What fills tables of its own goes without a tombstone, what shares one with others by some.
#[test]
fn a_big_dead_collection_goes_by_tables() {
    let mut world = World::new(1, Fsync::No);
    world.put(DB, b"before", &big(1), 0);
    world.put(DB, b"stays", &big(2), 0);
    world.big_stored_hash(15_000);
    let all = world.records();
    world.delete(DB, b"hash 0");
    world.flush();
    world.turns(1);
    assert!(world.dropped_tables() > 3, "{} tables", world.dropped_tables());
    assert!(world.records() < all / 2);
    assert_eq!(world.queued(), 1, "the record stands while anything is left");
    assert!(world.stored_with(tag::ELEMENT) > 20);
    world.turns(TURNS);
    assert_eq!((world.queued(), world.known()), (0, 0));
    world.verify();
    world.audit();
}

/// The metadata that told of the times has gone with its tables.
#[test]
fn times_of_a_dead_database_leave_with_it() {
    let mut world = World::new(1, Fsync::No);
    for n in 0..3000 {
        world.put(DB, format!("key {n}").as_bytes(), format!("{:x}", n * 7919).as_bytes(), world.now_ms + 1_000_000);
    }
    for n in 0..50 {
        world.put(NAMES[1], format!("key {n}").as_bytes(), b"1", world.now_ms + 1_000_000);
    }
    world.flush();
    world.engine().store.partition(0).major_compact().unwrap();
    world.flush_names(&[DB]);
    world.flush();
    world.turns(1);
    assert!(world.dropped_tables() > 2, "{} tables", world.dropped_tables());
    world.turns(8 * TURNS);
    assert_eq!((world.stored_with(tag::META), world.stored_with(tag::EXPIRY)), (50, 50));
    assert_eq!((world.queued(), world.known()), (0, 0));
    world.audit();
}

/// The store has such keys by their digests; here no table goes as a whole.
#[test]
fn times_of_long_keys_leave_with_their_database() {
    let mut world = World::new(1, Fsync::No);
    for name in [DB, NAMES[1]] {
        (b'a'..b'd').for_each(|n| world.put(name, &[n; 2 * MAX_INLINE], b"1", world.now_ms + 1_000_000));
    }
    world.flush();
    world.flush_names(&[DB]);
    world.flush();
    world.turns(TURNS);
    assert_eq!((world.queued(), world.dropped_tables()), (0, 0));
    assert_eq!((world.stored_with(tag::META), world.stored_with(tag::EXPIRY)), (3, 3));
    world.audit();
}

#[test]
fn times_of_fields_leave_with_their_database() {
    let mut world = World::new(1, Fsync::No);
    let due = world.now_ms + 1_000_000;
    for name in [DB, NAMES[1]] {
        let ns = world.ns(name);
        let made = world.transact(&[b"hash"], |txn| {
            let at = txn.create(ns, b"hash", Kind::Hash, 0)?;
            let mut value = Vec::new();
            push_timed(due, b"value", &mut value);
            txn.put_element(at, b"\x01field", &value)?;
            txn.add_size(at, 1);
            txn.set_extra(at, FieldTimes { persist: 0, lower: due, upper: due, indexed: due }.extra());
            Ok(())
        });
        world.engine().write_out(made.1);
    }
    world.flush();
    assert_eq!((world.stored_with(tag::META), world.stored_with(tag::EXPIRY)), (2, 2));
    world.flush_names(&[DB]);
    world.flush();
    world.turns(TURNS);
    assert_eq!((world.stored_with(tag::META), world.stored_with(tag::EXPIRY)), (1, 1));
}

/// Tables are dropped, and the process ends before anybody has looked at what that uncovered.
#[test]
fn a_crash_after_tables_were_dropped_leaves_the_record() {
    for turns in 1..4 {
        let mut world = World::new(1, Fsync::No);
        world.put(DB, b"stays", &big(2), 0);
        world.big_stored_hash(15_000);
        // Newer copies, in a run of their own, that go with it.
        let ns = world.ns(DB);
        let again = world.transact(&[b"hash 0"], |txn| {
            let at = txn.find(ns, b"hash 0")?.unwrap();
            for n in 0..20 {
                txn.put_element(at, format!("\u{1}field {n}").as_bytes(), b"newer")?;
            }
            Ok(())
        });
        world.engine().write_out(again.1);
        world.delete(DB, b"hash 0");
        world.note();
        world.flush();
        world.turns(turns);
        assert!(world.dropped_tables() > 3);
        assert_eq!(world.queued(), 1);
        world.crash(Some(turns as u64));
        world.turns(TURNS);
        assert_eq!((world.queued(), world.known()), (0, 0));
        world.verify();
        world.audit();
    }
}

/// Whatever tables are dropped for, tombstones may go with them: what was looked through of a dead database is once more.
#[test]
fn a_dead_database_is_looked_through_again_after_a_drop() {
    let mut world = World::new(1, Fsync::No);
    (0..300u32).for_each(|n| world.put(NAMES[1], &n.to_be_bytes(), b"value", 0));
    world.flush();
    world.flush_names(&[NAMES[1]]);
    world.flush();
    let mut again = 0;
    for _ in 0..100 {
        world.turns(1);
        let cursor = || world.engine().shards.at(0).core().dead_names.cursor();
        let before = cursor();
        world.engine().reclaim(0, Reclaim::Drop(Vec::new()));
        again += usize::from(cursor() != before);
    }
    assert!(again > 0 && world.engine().shards.at(0).core().dead_names.is_empty());
    world.audit();
}

/// They would be in it for as long as it lasts.
#[test]
fn a_filter_filled_anew_has_no_keys_of_a_dead_database() {
    let mut world = World::new(1, Fsync::No);
    world.turn();
    let dead: Vec<_> = (0..100).map(|n| format!("dead {n}").into_bytes()).collect();
    dead.iter().for_each(|key| world.put(DB, key, b"1", 0));
    world.put(NAMES[1], b"stored", b"1", 0);
    world.flush();
    let ns = world.ns(DB);
    world.flush_names(&[DB]);
    world.flush();
    let core = || world.engine().shards.at(0).core();
    let passes = |key: &[u8]| core().membership.may_contain(table_hash(world.engine().router.hash(key), ns), ns, key);
    assert!(dead.iter().all(|key| passes(key)) && core().membership.is_wanted(1, 0));
    world.turns(20);
    assert!(core().dead_names.is_empty() && !core().membership.is_wanted(1, 0));
    assert!(dead.iter().filter(|key| passes(key)).count() < 10);
    world.audit();
}
