//! The store under the engine: compactions that fail, runs that nobody merges, counts that are wrong.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::world::{DB, big, noise, wait_for, world};
use crate::codec::MAX_INLINE;
use crate::codec::key::tag;
use crate::log::Fsync;
use crate::log::sim::Op;
use crate::shard::Engine;
use crate::shard::background::recount::{self, Recount};
use crate::shard::background::timer::Timer;
use crate::shard::engine::checkpoint::{Checkpoint, Trust};
use crate::shard::engine::{RUNS_REFUSED, gate};
use crate::shard::keyspace::walk::tests::engine;
use crate::shard::memory::garbage::Reclaim;
use crate::shard::txn::Txn;

/// The table files of shard 0.
fn tables(dir: &Path) -> Vec<PathBuf> {
    let folder = dir.join("store/keyspaces/1/tables");
    let mut tables: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    tables.sort();
    tables
}

/// Flips the bits of a file's beginning, where its first records are.
fn flip(path: &Path) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut bytes = [0; 64];
    let read = file.read_at(&mut bytes, 0).unwrap();
    bytes.iter_mut().for_each(|byte| *byte ^= 0xff);
    file.write_at(&bytes[..read], 0).unwrap();
}

#[test]
fn a_store_that_the_cache_cannot_hold_is_cold_from_the_start_on() {
    for (values, cold) in [(2, false), (7, true)] {
        let dir = crate::util::scratch::tempdir().unwrap();
        let engine = || engine(dir.path(), 1);
        let first = engine();
        for n in 0..values {
            first.transact(&[0], 1, |txn| txn.put_string(0, &[n], &noise(n, 96 << 10), 0)).unwrap();
        }
        assert!(!first.shards.at(0).core().store_is_cold);
        first.flush().unwrap();
        let bytes = first.store.partition(0).disk_bytes();
        assert_eq!(bytes > first.options.block_cache as u64 / 2, cold);
        assert_eq!(first.shards.at(0).core().store_is_cold, cold);
        drop(first);
        assert_eq!(engine().shards.at(0).core().store_is_cold, cold);
    }
}

#[test]
fn rule_13_a_compaction_that_has_died_is_noticed_and_goes_on_when_its_cause_is_gone() {
    let dir = crate::util::scratch::tempdir().unwrap();
    let engine = engine(dir.path(), 1);
    let put = |n: u32| {
        for key in [b"a", b"z"] {
            engine.transact(&[0], 1, |txn| txn.put_string(0, key, &n.to_le_bytes(), 0)).unwrap();
        }
        engine.flush().unwrap();
    };
    put(0);
    assert!(engine.tend_store() && engine.store_failure().is_none());
    let damaged = tables(dir.path()).remove(0);
    flip(&damaged);
    // Ingestions go on well, and nothing merges what they bring.
    for n in 0.. {
        if engine.store.health().is_err() {
            break;
        }
        put(n);
    }
    assert!(!engine.tend_store());
    assert!(engine.store_failure().is_some());
    assert_eq!(engine.stats.store_reopens.load(Ordering::Relaxed), 1);
    flip(&damaged);
    while !engine.tend_store() {
        std::thread::yield_now();
    }
    // A worker that had begun before the cause was gone may end yet: then the store is to be opened once more, and whoever waits
    // for runs alone waits for ever.
    while !engine.tend_store() || engine.store.partition(0).l0_runs() >= 4 {
        put(9);
    }
    assert!(engine.transact(&[0], 1, |txn| Ok(txn.find(0, b"a")?.is_some())).unwrap());
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() { copy_folder(&from, &to) } else { _ = std::fs::copy(from, to).unwrap() }
    }
}

/// As an operator may put a copy in its place: the log no longer has what that lacks.
#[test]
fn a_store_from_before_the_last_flush_is_refused() {
    let mut world = world(Fsync::Always);
    let [store, copy] = ["store", "copy"].map(|name| world.options.dir.join(name));
    world.put(DB, b"a", b"1", 0);
    world.flush();
    copy_folder(&store, &copy);
    world.put(DB, b"a", b"2", 0);
    world.flush();
    world.engine.take().unwrap().close(false).unwrap();
    std::fs::remove_dir_all(&store).unwrap();
    std::fs::rename(copy, store).unwrap();
    let opened = Engine::open(Arc::new(world.sim.process_crash()), world.options.clone());
    let why = opened.err().unwrap().to_string();
    assert!(why.contains("is from an earlier time"), "{why}");
}

/// What a failed sync has left of the log may be gone after the next loss of power, and the store have it.
#[test]
fn a_replay_that_flushes_midway_notes_that_the_store_may_be_ahead() {
    let mut world = world(Fsync::No);
    for round in 0..60u8 {
        world.put(DB, &[round % 3], &big(round), 0);
    }
    world.engine().log.sync_to(world.engine().log.last()).unwrap();
    let (owner, dir) = (world.engine().store.superblock().id(), world.options.dir.clone());
    drop(world.engine.take());
    world.options.dirty_budget = 256 << 10;
    let sim = world.sim.process_crash();
    sim.crash_at_step("flush.ingested", 0);
    let engine = Engine::open(Arc::new(sim.clone()), world.options.clone()).unwrap();
    assert!(engine.replay().is_err());
    drop(engine);
    let noted = Checkpoint::load(&sim.process_crash(), &dir, owner, 1).unwrap().unwrap();
    assert_eq!(noted.trust, Trust::OpenEnd);
}

/// What is dead is not worked off while a compaction is about to drop it; after one that has failed it is.
#[test]
fn a_compaction_for_what_is_dead_that_fails_does_not_keep_it() {
    let mut world = world(Fsync::No);
    for key in [b"a", b"b"] {
        world.put(DB, key, &big(1), 0);
        world.flush();
    }
    let damaged = tables(&world.options.dir).remove(0);
    flip(&damaged);
    world.engine().shards.at(0).core().reclaiming = true;
    world.engine().reclaim(0, Reclaim::Compact);
    assert_eq!(world.engine().stats.compactions.load(Ordering::Relaxed), 0, "it fails");
    let partition = world.engine().store.partition(0);
    assert!(world.engine().store.health().is_err(), "only an opening removes what it has written");
    partition.note_dead(1 << 30);
    assert!(!partition.wants_compaction(false), "it would fail again");
    flip(&damaged);
    while !world.engine().tend_store() {
        std::thread::yield_now();
    }
    world.delete(DB, b"a");
    world.flush();
    world.turns(3);
    assert_eq!(world.stored_with(tag::GARBAGE), 0);
    world.verify();
    world.audit();
}

/// fjall's own compactions tell nobody: somebody has to look for what they have replaced.
#[test]
fn files_that_a_compaction_has_replaced_go_though_nobody_writes() {
    let dir = crate::util::scratch::tempdir().unwrap();
    let engine = engine(dir.path(), 1);
    let partition = engine.store.partition(0);
    let is_idle = || partition.l0_runs() < 4 && engine.store.active_compactions() == 0;
    let are_left = || tables(dir.path()).len() as u64 > partition.levels().iter().map(|level| level[1]).sum();
    while !are_left() {
        for n in 0..4 {
            engine.transact(&[0], 1, |txn| txn.put_string(0, &[n], &noise(n, 100), 0)).unwrap();
            engine.flush().unwrap();
        }
        wait_for(&is_idle);
    }
    wait_for(&|| engine.tend_store() && !are_left());
}

/// Who counts reads the store for as long as it takes, and ends when that, or the log, is to be mended.
#[test]
fn a_count_under_way_does_not_keep_the_store_from_being_opened_again() {
    for log_fails in [false, true] {
        let mut world = world(Fsync::No);
        let keys = 20 * recount::SLICE;
        (0..keys).for_each(|n| world.put(DB, format!("key:{n}").as_bytes(), b"v", 0));
        world.flush();
        let engine = world.engine().clone();
        engine.shards.at(0).core().miscounted = true;
        let mut timer = Timer::new(&engine, 0);
        (0..3).for_each(|_| timer.turn(1));
        if log_fails {
            world.sim.fail(Op::Write, 0, u64::MAX, 28);
            world.put(DB, b"key:0", b"w", 0);
        } else {
            let given_up = || Err(std::io::Error::other("given up by the test"));
            engine.store.partition(0).ingest_with([(b"E", Some(b""))], given_up).unwrap_err();
        }
        timer.turn(1);
        engine.store.reopen().unwrap();
        world.sim.heal();
        engine.log.sync_to(engine.log.last()).unwrap();
        while engine.shards.at(0).core().miscounted {
            timer.turn(1);
        }
        assert_eq!(engine.shards.at(0).core().count(0), keys as u64);
    }
}

#[test]
fn rule_13_runs_that_wait_for_compaction_slow_writers_and_at_last_refuse_them() {
    let dir = crate::util::scratch::tempdir().unwrap();
    let engine = engine(dir.path(), 1);
    let with = |runs: u64| {
        engine.stats.level0_runs_max.store(runs, Ordering::Relaxed);
        engine.set_gates();
        (engine.write_delay_us.load(Ordering::Relaxed), engine.refusal())
    };
    assert_eq!(with(20), (0, None));
    let (some, more) = (with(30).0, with(50).0);
    assert!(0 < some && some < more);
    assert_eq!(with(RUNS_REFUSED - 1).1, None);
    let why = with(RUNS_REFUSED).1.unwrap();
    assert_eq!(&*why, "compaction has fallen behind: 128 runs of records wait for it");
    assert_ne!(engine.gate.load(Ordering::Relaxed) & gate::REFUSED, 0);
    assert_eq!(with(3), (0, None));
    assert_eq!(engine.gate.load(Ordering::Relaxed) & (gate::REFUSED | gate::SLOWED), 0);
}

#[test]
fn runs_that_wait_for_compaction_are_counted_in_all_and_of_the_partition_that_has_most() {
    let dir = crate::util::scratch::tempdir().unwrap();
    let engine = engine(dir.path(), 2);
    for round in 0..3 {
        let put = |txn: &mut Txn<'_, '_>| (0..32u8).try_for_each(|n| txn.put_string(0, &[n], &[round], 0).map(drop));
        engine.transact(&engine.all_shards(), 1, put).unwrap();
        engine.flush().unwrap();
    }
    engine.count_runs();
    let [all, most] =
        [&engine.stats.level0_runs, &engine.stats.level0_runs_max].map(|runs| runs.load(Ordering::Relaxed));
    assert!(most > 0 && all > most, "{most} of {all}");
}

/// Keys that come, change or go are in the list of what is dirty, in flight, in fjall or about to be seen there; long ones
/// stand there under another name.
#[test]
fn keys_are_counted_once_at_whatever_step_of_a_flush_the_count_begins() {
    let mut world = world(Fsync::No);
    let key = |n| format!("key {n:0>digits$}", digits = if n % 4 == 0 { 2 * MAX_INLINE } else { 1 }).into_bytes();
    let keys: Vec<Vec<u8>> = (0..3 * recount::SLICE).map(key).collect();
    world.put(DB, b"stays", b"v", 0);
    for round in 0.. {
        for key in &keys {
            match round % 3 {
                2 => world.delete(DB, key),
                _ => world.put(DB, key, b"v", 0),
            }
        }
        let steps = round / 3;
        let mut flush = world.begin_flush(None);
        let under_way = (0..steps).all(|_| flush.step(world.engine()));
        let mut recount = Recount::begin(&world.engine().shards.at(0).core()).unwrap();
        world.finish(&mut flush);
        while recount.step().unwrap() {}
        let end = |txn: &mut Txn<'_, '_>| {
            recount.end(txn, 0);
            Ok(())
        };
        world.transact(&[], end).0.unwrap();
        world.verify_counts();
        if !under_way {
            assert!(steps > 8, "{steps} steps");
            return;
        }
    }
}

/// Nothing would ever remove a count that came behind the end of what it is of.
#[test]
fn no_count_is_left_of_a_database_that_was_emptied_while_keys_were_counted() {
    let mut world = world(Fsync::No);
    world.put(DB, b"key", b"v", 0);
    world.flush();
    let (engine, ns) = (world.engine().clone(), world.ns(DB));
    engine.shards.at(0).core().set_count(ns, 0);
    let mut recount = Recount::begin(&engine.shards.at(0).core()).unwrap();
    while recount.step().unwrap() {}
    world.flush_names(&[DB]);
    world.settle();
    let end = |txn: &mut Txn<'_, '_>| {
        recount.end(txn, 0);
        Ok(())
    };
    world.transact(&[], end).0.unwrap();
    world.audit();
}

#[test]
fn a_count_below_zero_is_counted_anew_while_commands_go_on() {
    let dir = crate::util::scratch::tempdir().unwrap();
    let engine = engine(dir.path(), 1);
    let put = |n: usize| {
        let key = format!("key:{n}").into_bytes();
        engine.transact(&[0], 1, |txn| txn.put_string(0, &key, b"v", 0)).unwrap();
    };
    let delete = |n: usize| {
        let key = format!("key:{n}").into_bytes();
        assert!(engine.transact(&[0], 1, |txn| txn.delete(0, &key)).unwrap());
    };
    let count = || engine.shards.at(0).core().count(0);
    let keys = 20 * recount::SLICE;
    (0..keys).for_each(put);
    engine.flush().unwrap();
    (keys..keys + 5).for_each(put);
    // As an older count comes back when fjall is ahead of the log.
    engine.shards.at(0).core().set_count(0, 2);
    (0..4).for_each(delete);
    assert_eq!(count(), 0);
    assert!(engine.shards.at(0).core().miscounted);
    let mut timer = Timer::new(&engine, 0);
    let (mut turns, mut there) = (0, keys + 1);
    while engine.shards.at(0).core().miscounted {
        timer.turn(1);
        // On both sides of where the count stands, and some not flushed.
        put(keys + 10 + turns);
        delete(10 + turns);
        put(1_000_000 + turns);
        there += 1;
        if turns % 7 == 3 {
            engine.flush().unwrap();
        }
        turns += 1;
    }
    assert!(turns > 10, "it goes in slices");
    assert_eq!(count(), there as u64);
    drop(timer);
    let log = engine.log.clone();
    log.sync_to(log.last()).unwrap();
    drop((log, engine));
    assert_eq!(self::engine(dir.path(), 1).shards.at(0).core().count(0), there as u64, "and it is in the log");
}
