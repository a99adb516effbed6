//! The rules of log, table and flush, one by one. Rules 4, 14 and 15 are held by the tests of log and store, rule 10 by those
//! of `big`.

use std::sync::atomic::Ordering;

use super::world::{DB, NAMES, World, big, wait_for, world};
use crate::Error;
use crate::codec::{self, element, element::Group, order::StreamId};
use crate::log::{Fsync, sim::Op};
use crate::shard::engine::checkpoint::{Checkpoint, LOST_LSNS, Trust};
use crate::shard::engine::{MOST_DELAY_US, gate};
use crate::shard::memory::missing::LOAD_MOST;
use crate::shard::memory::object::{Kind, state};
use crate::shard::memory::table::table_hash;
use crate::shard::txn::Txn;

#[test]
fn rule_1_sync_before_finish() {
    for fsync in [Fsync::Always, Fsync::EverySec, Fsync::No] {
        let mut world = world(fsync);
        world.put(DB, b"a", b"1", 0);
        let mut flush = world.begin_flush(None);
        world.step(&mut flush, 1);
        // In the new segment, gathered all the same.
        world.put(DB, b"a", b"2", 0);
        world.step(&mut flush, 2);
        assert!(world.stored(DB, b"a").is_some());
        assert_eq!(world.engine().log.synced(), world.engine().log.last());
        world.crash(Some(7));
        assert_eq!(**world.get(DB, b"a").unwrap().bytes, *b"2");
        world.audit();
    }
}

#[test]
fn rule_1_nothing_shows_before_the_sync() {
    let mut world = world(Fsync::No);
    world.put(DB, b"a", b"1", 0);
    world.sim.crash_at_step("flush.synced", 0);
    assert!(world.engine().flush().is_err());
    assert_eq!(world.stored(DB, b"a"), None);
    world.crash(Some(3));
    world.verify();
}

#[test]
fn rule_2_clean_means_the_same_lsn() {
    let mut world = world(Fsync::No);
    world.put(DB, b"same", b"1", 0);
    world.put(DB, b"changed", b"1", 0);
    let mut flush = world.begin_flush(None);
    world.step(&mut flush, 3);
    world.put(DB, b"changed", b"2", 0);
    world.finish(&mut flush);
    assert_eq!(world.state(DB, b"same").unwrap() & state::DIRTY, 0);
    assert_ne!(world.state(DB, b"changed").unwrap() & state::DIRTY, 0);
    world.audit();
}

#[test]
fn rule_2_a_failed_ingestion_turns_everything_dirty_again() {
    let mut world = world(Fsync::No);
    world.put(DB, b"a", &big(1), world.now_ms + 500);
    world.put(DB, b"b", b"1", 0);
    let mut flush = world.begin_flush(Some(0));
    world.finish(&mut flush);
    for key in [b"a", b"b"] {
        assert_ne!(world.state(DB, key).unwrap() & state::DIRTY, 0);
    }
    assert_eq!(world.engine().log.status().segments, 2, "no segment is deleted");
    world.crash(None);
    world.verify();
    world.audit();
}

#[test]
fn rule_3_what_was_gathered_leaves_a_tombstone() {
    let mut world = world(Fsync::No);
    world.put(DB, b"a", b"1", 0);
    let mut flush = world.begin_flush(None);
    world.step(&mut flush, 2);
    world.delete(DB, b"a");
    world.finish(&mut flush);
    assert!(world.stored(DB, b"a").is_some());
    world.flush();
    assert_eq!(world.stored(DB, b"a"), None);
    assert_eq!(world.state(DB, b"a"), None, "the removal has left the table");
}

#[test]
fn rule_3_what_never_was_leaves_nothing() {
    let mut world = world(Fsync::No);
    world.put(DB, b"a", &big(1), 0);
    world.delete(DB, b"a");
    assert_eq!(world.state(DB, b"a"), None);
    world.flush();
    assert_eq!(world.stored_with(codec::key::tag::GARBAGE), 0);
}

#[test]
fn rule_5_what_a_reply_waits_for() {
    let mut world = world(Fsync::No);
    let need = |world: &mut World, key: &'static [u8]| {
        let ns = world.ns(DB);
        world.transact(&[key], |txn| txn.find(ns, key).map(|_| ())).1
    };
    world.put(DB, b"a", b"1", 0);
    let first = world.engine().log.last();
    world.put(DB, b"b", b"1", world.now_ms + 5);
    let last = world.engine().log.last();
    assert_eq!(need(&mut world, b"a"), first, "an object by itself");
    assert_eq!(need(&mut world, b"absent"), last, "a miss for all that the shard did");
    let ns = world.ns(DB);
    let removal = world.transact(&[b"absent"], |txn| txn.delete(ns, b"absent"));
    assert_eq!(removal.1, last, "as does who finds nothing to remove");
    world.delete(DB, b"a");
    assert_eq!(need(&mut world, b"a"), last + 1, "a removal too");
    world.now_ms += 100;
    assert_eq!(need(&mut world, b"b"), last + 1, "and an expiry");
}

/// What a miss waits for includes a record that other shards share.
#[test]
fn rule_5_a_record_of_several_shards_is_of_each_of_them() {
    let mut world = World::new(2, Fsync::No);
    let ns = world.ns(DB);
    let put = |txn: &mut Txn<'_, '_>, n: u8| txn.put_string(ns, &[n], b"1", 0).map(|_| ());
    let written = world.transact(&[], |txn| (0..16).try_for_each(|n| put(txn, n)));
    assert_eq!((written.0.is_ok(), written.1), (true, world.engine().log.last()));
    for absent in 16..32 {
        let seen = world.transact(&[&[absent]], |txn| txn.find(ns, &[absent]).map(|_| ()));
        assert_eq!(seen.1, written.1, "of whichever shard");
    }
}

#[test]
fn rule_6_what_is_not_written_is_not_flushed() {
    let mut world = world(Fsync::EverySec);
    world.sim.fail(Op::Write, 0, u64::MAX, 28);
    world.put(DB, b"a", b"1", 0);
    assert!(world.engine().refusal().is_some());
    assert!(world.engine().flush().is_err());
    assert_eq!(world.stored(DB, b"a"), None);
    world.sim.heal();
    world.engine().log.sync_to(world.engine().log.last()).unwrap();
    assert!(world.engine().refusal().is_none());
    world.audit();
}

/// What they wrote would gather in memory for as long as the disk is full.
#[test]
fn rule_6_timers_write_nothing_while_the_log_takes_none() {
    let mut world = world(Fsync::EverySec);
    world.put(DB, b"due", b"1", world.now_ms + 5);
    world.sim.fail(Op::Write, 0, u64::MAX, 28);
    world.put(DB, b"a", b"1", 0);
    assert!(world.engine().refusal().is_some());
    world.now_ms += 10;
    let last = world.engine().log.last();
    world.turns(2);
    assert_eq!(world.engine().log.last(), last);
    world.sim.heal();
    world.engine().log.sync_to(last).unwrap();
    world.turns(1);
    assert_eq!(world.engine().log.last(), last + 1, "it is late, and swept");
    world.note();
    world.audit();
}

#[test]
fn rule_6_a_flush_ends_a_failed_sync() {
    let mut world = world(Fsync::No);
    world.put(DB, b"a", b"1", 0);
    world.sim.fail(Op::Sync, 0, 3, 5);
    while world.engine().flush().is_err() {
        assert!(world.sim.operations() < 1000, "a flush opens a segment that can be trusted");
    }
    assert!(world.engine().refusal().is_none());
    world.crash(Some(1));
    assert!(world.get(DB, b"a").is_some());
}

/// What the store may have got ahead by is no excuse for later.
#[test]
fn rule_6_behind_a_flush_that_ends_a_failed_sync_the_logs_end_is_missed_again() {
    let mut world = world(Fsync::No);
    world.put(DB, b"a", b"1", 0);
    world.sim.fail(Op::Sync, 0, 1, 5);
    assert!(world.engine().log.sync_to(world.engine().log.last()).is_err());
    let mut flush = world.begin_flush(None);
    let trust = |world: &World| world.engine().checkpoint.lock().last.trust;
    assert_eq!(trust(&world), Trust::OpenEnd);
    world.finish(&mut flush);
    assert_eq!(trust(&world), Trust::Whole);
}

/// What the disk loses of a log that could not be synced, the store may have by then.
#[test]
fn rule_6_the_log_goes_on_above_what_the_store_alone_has_kept() {
    for seed in 0..20 {
        let mut world = world(Fsync::EverySec);
        world.put(DB, b"a", &big(1), 0);
        world.flush();
        world.put(DB, b"a", &big(2), 0);
        world.put(DB, b"b", b"1", 0);
        let last = world.engine().log.last();
        world.sim.fail(Op::Sync, 0, 1, 5);
        assert!(world.engine().log.sync_to(last).is_err());
        let mut flush = world.begin_flush(None);
        while world.stored(DB, b"b").is_none() {
            world.step(&mut flush, 1);
        }
        drop(flush);
        world.crash(Some(seed));
        assert!(world.engine().log.last() >= last, "LSNs would be given twice");
        assert!(world.get(DB, b"b").is_some());
        world.put(DB, b"a", &big(3), 0);
        world.reopen(false);
        world.verify();
        world.audit();
    }
}

/// A full disk on which the log still finds room: writers must not wait for a flush that cannot come.
#[test]
fn rule_13_a_writer_does_not_wait_for_flushes_that_fail() {
    let mut world = world(Fsync::No);
    world.put(DB, b"a", &[b'x'; 1000], 0);
    world.sim.fail(Op::Create, 0, u64::MAX, 28);
    assert!(world.engine().flush().is_err());
    world.engine().set_gates();
    assert!(world.engine().refusal().is_none(), "there is room in the budget");
    world.engine().dirty_budget.store(1, Ordering::Relaxed);
    world.engine().set_gates();
    assert_eq!(world.engine().refusal().as_deref(), Some("No space left on device"));
    assert_ne!(world.engine().gate.load(Ordering::Relaxed) & gate::REFUSED, 0);
    world.sim.heal();
    world.flush();
    world.engine().set_gates();
    assert!(world.engine().refusal().is_none());
    assert_eq!(world.engine().gate.load(Ordering::Relaxed) & gate::REFUSED, 0);
    world.audit();
}

/// What a flush could not bring to fjall still counts: else writers would fill memory as long as flushes fail.
#[test]
fn rule_13_a_failed_flush_leaves_its_bytes_dirty() {
    let mut world = world(Fsync::No);
    let big = big(b'x');
    world.put(DB, b"a", b"1", 0);
    world.put(DB, b"big", &big, 0);
    world.flush();
    // Elements, a body that is garbage, and a string.
    world.put(DB, b"big", &big, 0);
    world.put(DB, b"a", b"2", 0);
    let before = world.engine().dirty_bytes();
    assert!(before > big.len());
    for _ in 0..3 {
        let mut flush = world.begin_flush(Some(0));
        while flush.step(world.engine()) {}
        assert_eq!(world.engine().dirty_bytes(), before);
    }
    world.flush();
    assert_eq!(world.engine().dirty_bytes(), 0);
    world.audit();
}

/// What a flush has gathered is in memory until fjall has it: writers are slowed meanwhile, as they were before it.
#[test]
fn rule_13_what_a_flush_has_gathered_counts_until_it_is_stored() {
    let mut world = world(Fsync::No);
    world.put(DB, b"a", &[b'x'; 10_000], 0);
    let engine = world.engine().clone();
    let before = engine.dirty_bytes();
    engine.dirty_budget.store(before as u64, Ordering::Relaxed);
    let mut flush = world.begin_flush(None);
    let mut gathered = 0;
    while world.stored(DB, b"a").is_none() {
        engine.set_gates();
        assert_eq!((engine.dirty_bytes(), engine.write_delay_us.load(Ordering::Relaxed)), (before, MOST_DELAY_US));
        gathered += u32::from(world.state(DB, b"a").unwrap() & state::IN_FLIGHT != 0);
        world.step(&mut flush, 1);
    }
    assert!(gathered > 0);
    world.finish(&mut flush);
    engine.set_gates();
    assert_eq!((engine.dirty_bytes(), engine.write_delay_us.load(Ordering::Relaxed)), (0, 0));
}

/// Dirty objects cannot leave the table: a flush makes room although the dirty budget is hardly used.
#[test]
fn rule_13_tables_above_their_budget_are_flushed() {
    let mut world = world(Fsync::No);
    world.options.background = true;
    world.reopen(false);
    let engine = world.engine().clone();
    let most = world.options.table_budget;
    for n in 0..2 * most / 5000 {
        world.put(DB, format!("{n}").as_bytes(), &[b'x'; 5000], 0);
    }
    assert!(engine.dirty_bytes() < world.options.dirty_budget / 2);
    wait_for(&|| engine.stats.flushes.load(Ordering::Relaxed) > 0 && engine.dirty_bytes() == 0);
    world.put(DB, b"a", b"1", 0);
    world.evict();
    assert!(engine.shards.at(0).table_bytes() < most);
    engine.close(false).unwrap();
}

/// Writers fill the budget while a flush runs: they are slowed then, and not only after it.
#[test]
fn rule_13_writers_are_slowed_while_a_flush_runs() {
    let mut world = World::new(2, Fsync::No);
    world.options.background = true;
    world.reopen(false);
    let engine = world.engine().clone();
    let key = (0..).map(|n| format!("key {n}").into_bytes()).find(|key| engine.router.shard_of(key) == 0).unwrap();
    world.put(DB, &key, b"1", 0);
    // A flush gets no further than the other shard.
    let other = engine.lease(&[1]);
    engine.ask_flush();
    wait_for(&|| engine.shards.at(0).dirty_bytes() == 0);
    assert!(engine.is_flushing());
    world.put(DB, &key, &vec![b'x'; 2 * world.options.dirty_budget], 0);
    wait_for(&|| engine.write_delay_us.load(Ordering::Relaxed) == MOST_DELAY_US);
    assert_ne!(engine.gate.load(Ordering::Relaxed) & gate::SLOWED, 0);
    drop(other);
    wait_for(&|| engine.write_delay_us.load(Ordering::Relaxed) == 0);
    engine.close(false).unwrap();
}

#[test]
fn rule_7_table_or_moka() {
    let mut world = world(Fsync::No);
    world.put(DB, b"a", &big(b'1'), world.now_ms + 1000);
    world.put(DB, b"small", b"1", 0);
    world.flush();
    world.evict();
    let ns = world.ns(DB);
    let in_moka = |world: &World| {
        [&b"a"[..], b"small"].map(|key| {
            let hash = table_hash(world.engine().router.hash(key), ns);
            world.engine().shards.at(0).core().cold.contains(hash, ns, key)
        })
    };
    assert_eq!(in_moka(&world), [false; 2], "who leaves once is not worth an entry");
    assert!(world.get(DB, b"a").is_some() && world.get(DB, b"small").is_some());
    world.evict();
    assert_eq!(in_moka(&world), [true, false], "a small string is worth none");
    assert!(world.get(DB, b"a").is_some() && world.get(DB, b"small").is_some());
    assert_eq!(in_moka(&world), [false; 2]);
    let stats = world.engine().shards.at(0).core().stats;
    assert_eq!((stats.evicted_objects, stats.stored_reads, stats.cold_reads), (4, 3, 1));
    world.evict();
    world.put(DB, b"a", b"2", 0);
    world.flush();
    world.evict();
    world.verify();
}

#[test]
fn rule_8_only_the_sweep_expires() {
    let mut world = world(Fsync::No);
    world.put(DB, b"a", &big(1), world.now_ms + 1);
    world.flush();
    world.evict();
    world.now_ms += 10;
    world.engine().store.partition(0).major_compact().unwrap();
    assert!(world.stored(DB, b"a").is_some(), "a compaction leaves it");
    let (before, ns) = (world.engine().log.last(), world.ns(DB));
    assert_eq!(world.engine().shards.at(0).core().count(ns), 1);
    world.turn();
    assert_eq!(world.engine().log.last(), before + 1, "count, removal and garbage record in one commit");
    let core = world.engine().shards.at(0).core();
    assert_eq!((core.count(ns), core.garbage.len()), (0, 1));
    drop(core);
    world.audit();
}

#[test]
fn rule_8_garbage_waits_for_its_record() {
    let mut world = world(Fsync::No);
    world.put(DB, b"a", &big(1), 0);
    world.flush();
    world.delete(DB, b"a");
    world.turns(3);
    assert!(world.stored_with(codec::key::tag::ELEMENT) > 0, "not worked off before it is flushed");
    world.flush();
    world.turns(3);
    assert_eq!(world.stored_with(codec::key::tag::ELEMENT), 0);
    assert_eq!(world.stored_with(codec::key::tag::GARBAGE), 0);
    world.audit();
}

#[test]
fn rule_9_dead_namespaces_wait_for_their_record() {
    let mut world = World::new(2, Fsync::No);
    for key in [b"a", b"b", b"c", b"d"] {
        world.put(DB, key, &big(1), world.now_ms + 70_000);
    }
    world.flush();
    let (meta, dead) = (codec::key::tag::META, codec::key::tag::DEAD_NS);
    world.flush_names(&[DB]);
    world.put(DB, b"a", b"new", 0);
    world.turns(3);
    assert_eq!(world.stored_with(meta), 4, "nothing happens before the record is flushed");
    world.flush();
    world.turns(2);
    assert_eq!((world.stored_with(meta), world.stored_with(dead)), (1, 0), "the record goes with the last of the data");
    world.crash(Some(2));
    world.audit();
    assert_eq!(world.stored_with(dead), 0);
    assert_eq!(world.stored_with(codec::key::tag::ELEMENT), 0);
}

#[test]
fn rule_9_a_change_of_names_is_rolled_back() {
    let mut world = world(Fsync::No);
    world.put(DB, b"a", b"1", 0);
    let result = world.transact(&[], |txn| {
        let (names, dead) = txn.lease[0].names.renewed(&[DB]).unwrap();
        txn.replace_names(names, &dead);
        Err::<(), _>(Error::Cold)
    });
    assert!(result.0.is_err());
    world.verify();
    world.verify_counts();
    world.audit();
}

/// What a flight has gathered is older than what came while it was under way.
#[test]
fn rule_9_a_failed_flush_does_not_bring_older_names_back() {
    let mut world = world(Fsync::No);
    world.flush_names(&[DB]);
    let mut flush = world.begin_flush(Some(0));
    // All is gathered, the names among it.
    world.step(&mut flush, 2);
    world.flush_names(&[DB]);
    world.put(DB, b"key", b"of the newer name", 0);
    world.finish(&mut flush);
    world.flush();
    world.reopen(false);
    world.verify();
    world.verify_counts();
    world.audit();
}

#[test]
fn rule_9_ids_outlive_a_change_of_the_options() {
    let mut world = world(Fsync::No);
    let id = world.ns(NAMES[1]);
    world.put(NAMES[1], b"a", b"1", 0);
    world.options.databases = 1;
    world.crash(None);
    assert_eq!(world.ns(NAMES[1]), id);
    world.verify();
    world.audit();
}

#[test]
fn rule_11_complete_only_when_born_here() {
    let mut world = world(Fsync::No);
    let complete = |world: &mut World| {
        let ns = world.ns(DB);
        let look = |txn: &mut Txn<'_, '_>| {
            let found = txn.find(ns, b"a")?.unwrap();
            Ok(txn.object(found).body.as_ref().unwrap().overlay.complete)
        };
        world.transact(&[b"a"], look).0.unwrap()
    };
    world.put(DB, b"a", &big(1), 0);
    assert!(complete(&mut world));
    world.flush();
    assert!(complete(&mut world), "all elements are still here");
    world.evict();
    assert!(!complete(&mut world));
    world.verify();
}

/// A stream's size is that of its entries: what its groups have pending may be more than a read takes.
#[test]
fn rule_11_complete_only_when_read_to_the_end() {
    for (records, whole) in [(LOAD_MOST.get(), true), (LOAD_MOST.get() + 1, false), (2 * LOAD_MOST.get(), false)] {
        let mut world = world(Fsync::No);
        let ns = world.ns(DB);
        let (mut entry, pending) = (Vec::new(), records - 1);
        element::stream_element(StreamId { ms: 1, seq: 0 }, &mut entry);
        let made = world.transact(&[b"a"], |txn| {
            let at = txn.create(ns, b"a", Kind::Stream, 0)?;
            txn.put_element(at, &entry, b"entry")?;
            txn.add_size(at, 1);
            for ms in 0..pending as u64 {
                let mut key = Vec::new();
                element::stream_pel(b"group", StreamId { ms, seq: 0 }, &mut key);
                txn.put_element(at, &key, b"pending")?;
            }
            Ok(())
        });
        made.0.unwrap();
        world.flush();
        world.evict();
        let read = world.transact(&[b"a"], |txn| {
            let at = txn.find(ns, b"a")?.unwrap();
            assert!(txn.element(at, &entry)?.is_some());
            Ok((txn.body(at).overlay.complete, txn.group(at, Group::StreamPel)?.count()))
        });
        assert_eq!(read.0.unwrap(), (whole, pending), "{records} records");
    }
}

#[test]
fn rule_12_a_key_made_again_under_its_tombstone_is_met() {
    let mut world = world(Fsync::No);
    for key in [b"a", b"b"] {
        world.put(DB, key, b"1", 0);
    }
    world.flush();
    world.delete(DB, b"a");
    let mut flush = world.begin_flush(None);
    world.step(&mut flush, 2);
    world.put(DB, b"a", b"2", 0);
    // fjall shows it no more, and nothing is settled yet.
    world.step(&mut flush, 1);
    world.verify_walk(DB);
    world.finish(&mut flush);
    world.verify_walk(DB);
    world.audit();
}

#[test]
fn rule_13_replay_flushes_as_it_goes() {
    let mut world = world(Fsync::No);
    for round in 0..20u8 {
        for key in [b"a", b"b", b"c"] {
            world.put(DB, key, &big(round), 0);
        }
    }
    world.delete(DB, b"b");
    world.put(DB, b"c", b"small", 0);
    world.engine().log.sync_to(world.engine().log.last()).unwrap();
    world.options.dirty_budget = 256 << 10;
    world.crash(None);
    assert!(world.engine().shards.at(0).core().gathers > 1);
    world.verify();
    world.audit();
}

/// What the operator has given up is not asked for again, nor is it forgotten that LSNs and counts may be wrong.
#[test]
fn rule_13_a_replay_that_flushes_as_it_goes_keeps_a_loss_accepted() {
    for crash in [None, Some(("flush.synced", 1))] {
        for missing in [0, 5] {
            let mut world = world(Fsync::No);
            let ns = world.ns(DB);
            // As it comes back with a partition from an earlier time.
            world.engine().shards.at(0).core().set_count(ns, 7);
            for round in 0..60u8 {
                world.put(DB, &[round % 3], &big(round), 0);
            }
            let engine = world.engine().clone();
            let last = engine.log.last();
            engine.log.sync_to(last).unwrap();
            // `tarn check --repair` of a log that has lost its end, or of something else.
            let repair = |c: &mut Checkpoint| (c.end, c.trust) = (last + missing, Trust::Accepted);
            engine.checkpoint.lock().change(&*engine.io, repair).unwrap();
            drop(engine);
            world.options.dirty_budget = 256 << 10;
            world.crash_in_replay = crash;
            world.crash(None);
            assert!(world.engine().shards.at(0).core().gathers > 2, "midway, and in the end");
            assert!(world.engine().log.last() > last + LOST_LSNS, "no LSN is given twice");
            world.verify();
            world.verify_counts();
            world.audit();
        }
    }
}

/// A flush has its price in each partition: a small dirty budget must not make a start slow.
#[test]
fn rule_13_a_replay_flushes_for_memory_and_not_for_the_dirty_budget() {
    let mut world = World::new(3, Fsync::No);
    world.options.dirty_budget = 4 << 10;
    for n in 0..200 {
        world.put(DB, format!("{n}").as_bytes(), &[b'x'; 200], 0);
    }
    world.crash(None);
    let engine = world.engine().clone();
    let dirty = engine.dirty_bytes();
    assert!(dirty > 40_000 && dirty < world.options.table_budget / 2);
    assert!(engine.shards.iter().all(|shard| shard.core().gathers == 0));
    drop(engine);
    // What is dirty is three quarters of the tables' budget, and then almost all of it.
    for (budget, flushes) in [(dirty / 3 * 4, false), (dirty / 15 * 16, true)] {
        world.options.table_budget = budget;
        world.crash(None);
        assert_eq!(world.engine().shards.iter().any(|shard| shard.core().gathers > 0), flushes);
    }
    world.audit();
}
