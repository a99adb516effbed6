//! The rules of log, table and flush, one by one, then what else was found wrong once. Rules 4, 14 and 15 are held by the
//! tests of log and store, rule 10 by those of `big`.

use std::sync::atomic::Ordering;

use super::step::Stepper;
use super::world::{NAMES, World};
use crate::Error;
use crate::codec;
use crate::log::Fsync;
use crate::log::sim::Op;
use crate::shard::engine::{MOST_DELAY_US, gate};
use crate::shard::object::{Kind, state};
use crate::shard::table::table_hash;
use crate::shard::timer::Timer;
use crate::shard::txn::{BIG_STRING, CHUNK, Txn};

const DB: &[u8] = NAMES[0];

fn world(fsync: Fsync) -> World {
    World::new(1, fsync)
}

fn big(byte: u8) -> Vec<u8> {
    vec![byte; BIG_STRING + 2 * CHUNK]
}

impl World {
    /// The metadata record in fjall.
    fn stored(&self, name: &[u8], key: &[u8]) -> Option<Vec<u8>> {
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
    fn state(&self, name: &[u8], key: &[u8]) -> Option<u8> {
        let ns = self.ns(name);
        let core = self.engine().shards[self.engine().router.shard_of(key) as usize].core();
        core.table.iter().find(|(_, o)| o.ns == ns && o.key() == key).map(|(_, o)| o.state)
    }

    /// Everything clean leaves the table.
    fn evict(&self) {
        for shard in &self.engine().shards {
            let mut core = shard.core();
            let limit = std::mem::replace(&mut core.table_limit, 0);
            for _ in 0..300 {
                core.make_room();
            }
            core.table_limit = limit;
        }
        self.check();
    }

    fn step(&self, stepper: &mut Stepper, steps: usize) {
        for _ in 0..steps {
            assert!(stepper.step(self.engine()));
        }
    }

    pub(super) fn finish(&self, stepper: &mut Stepper) {
        while stepper.step(self.engine()) {}
    }

    /// One turn of the timers without the model's note.
    pub(super) fn turns(&self, n: usize) {
        for _ in 0..n {
            for id in self.engine().all_shards() {
                Timer::new(self.engine(), id).turn(self.now_ms);
            }
        }
    }
}

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
    world.delete(DB, b"a");
    assert_eq!(need(&mut world, b"a"), last + 1, "a removal too");
    world.now_ms += 100;
    assert_eq!(need(&mut world, b"b"), last + 1, "and an expiry");
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

pub(super) fn wait_for(what: &dyn Fn() -> bool) {
    for _ in 0..24_000 {
        if what() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    panic!("waited two minutes");
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
    assert!(engine.shards[0].table_bytes() < most);
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
    engine.wake_flusher(true);
    wait_for(&|| engine.shards[0].dirty_bytes() == 0);
    assert!(engine.is_flushing());
    world.put(DB, &key, &vec![b'x'; 2 * world.options.dirty_budget], 0);
    wait_for(&|| engine.write_delay_us.load(Ordering::Relaxed) == MOST_DELAY_US);
    assert_ne!(engine.gate.load(Ordering::Relaxed) & gate::SLOWED, 0);
    drop(other);
    wait_for(&|| engine.write_delay_us.load(Ordering::Relaxed) == 0);
    engine.close(false).unwrap();
}

/// Whoever stops the server must learn that acknowledged writes may be lost, and only then.
#[test]
fn a_stop_fails_only_if_neither_store_nor_log_has_everything() {
    for (flush, syncs_fail, ends_well) in
        [(true, false, true), (false, false, true), (true, true, false), (false, true, false)]
    {
        let mut world = world(Fsync::No);
        world.put(DB, b"a", b"1", 0);
        if syncs_fail {
            world.sim.fail(Op::Sync, 0, u64::MAX, 5);
        }
        assert_eq!(world.engine().close(flush).is_ok(), ends_well, "flush {flush}, syncs fail {syncs_fail}");
    }
}

/// A world whose filter of keys is outgrown: its keys are gone, but for one.
fn outgrown_world() -> (World, Vec<Vec<u8>>) {
    let mut world = world(Fsync::No);
    world.turn();
    let gone: Vec<_> = (0..100).map(|n| format!("gone {n}").into_bytes()).collect();
    gone.iter().for_each(|key| world.put(DB, key, b"1", 0));
    world.put(DB, b"stored", b"1", 0);
    world.flush();
    gone.iter().for_each(|key| world.delete(DB, key));
    world.flush();
    assert!(world.engine().shards[0].core().membership.is_outgrown(2));
    (world, gone)
}

impl World {
    /// Whether a key passes the filter of keys.
    fn passes(&self, key: &[u8]) -> bool {
        let hash = table_hash(self.engine().router.hash(key), self.ns(DB));
        self.engine().shards[0].core().membership.may_contain(hash)
    }
}

#[test]
fn a_filter_filled_anew_has_the_keys_of_a_failed_flush() {
    let (mut world, gone) = outgrown_world();
    world.put(DB, b"a", b"1", 0);
    let mut flush = world.begin_flush(Some(0));
    while flush.step(world.engine()) {}
    world.turn();
    assert!(!world.engine().shards[0].core().membership.is_outgrown(2));
    world.flush();
    world.evict();
    assert!(world.passes(b"a") && world.passes(b"stored"));
    assert!(gone.iter().filter(|key| world.passes(key)).count() < 10, "what was gone before is forgotten");
    world.audit();
}

#[test]
fn a_filter_is_not_filled_anew_during_a_flush() {
    let (mut world, _) = outgrown_world();
    world.put(DB, b"a", b"1", 0);
    let engine = world.engine().clone();
    let mut flush = world.begin_flush(None);
    assert!(!world.passes(b"a"));
    while flush.step(&engine) {
        if world.passes(b"a") {
            world.turn();
        }
    }
    world.turn();
    world.evict();
    assert!(world.passes(b"a") && world.passes(b"stored"));
    drop(engine);
    world.audit();
}

#[test]
fn rule_7_table_or_moka() {
    let mut world = world(Fsync::No);
    world.put(DB, b"a", b"1", world.now_ms + 1000);
    world.flush();
    world.evict();
    let ns = world.ns(DB);
    assert!(world.engine().shards[0].core().cold.contains(ns, b"a"));
    assert!(world.get(DB, b"a").is_some());
    assert!(!world.engine().shards[0].core().cold.contains(ns, b"a"));
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
    assert_eq!(world.engine().shards[0].core().count(ns), 1);
    world.turn();
    assert_eq!(world.engine().log.last(), before + 1, "count, removal and garbage record in one commit");
    let core = world.engine().shards[0].core();
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

/// Neither when its object leaves the table nor when a flush comes first.
#[test]
fn a_big_body_of_a_dead_namespace_is_freed_by_nobody_who_holds_the_core() {
    let mut world = world(Fsync::No);
    for (flushed, waiting) in [(false, 1), (true, 2)] {
        world.put(DB, b"a", &vec![1; 100 * CHUNK], 0);
        world.flush_names(&[DB]);
        if flushed {
            world.flush();
        }
        world.turns(1);
        assert_eq!(world.engine().shards[0].core().trash.len(), waiting);
    }
    world.audit();
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
    assert!(world.engine().shards[0].core().gathers > 1);
    world.verify();
    world.audit();
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
    assert!(engine.dirty_bytes() > 40_000 && engine.dirty_bytes() < world.options.table_budget / 2);
    assert!(engine.shards.iter().all(|shard| shard.core().gathers == 0));
    drop(engine);
    // What is dirty is more than half of the tables' budget now, though not all of it.
    world.options.table_budget = 64 << 10;
    world.crash(None);
    assert!(world.engine().shards.iter().any(|shard| shard.core().gathers > 0));
    world.audit();
}

#[test]
fn a_rollback_brings_an_empty_value_back() {
    let mut world = world(Fsync::No);
    world.put(DB, b"empty", b"", 0);
    world.put(DB, b"big", &big(1), 0);
    let ns = world.ns(DB);
    let result = world.transact(&[], |txn| {
        txn.put_string(ns, b"empty", b"full", 0)?;
        txn.put_string(ns, b"big", b"small", 0)?;
        txn.put_string(ns, b"new", b"small", 0)?;
        Err::<(), _>(Error::Cold)
    });
    assert!(result.0.is_err());
    world.verify();
    world.flush();
    world.evict();
    world.verify();
}

#[test]
fn two_bodies_in_one_record_do_not_mix() {
    let mut world = world(Fsync::No);
    let ns = world.ns(DB);
    let long = vec![1; BIG_STRING + 4 * CHUNK];
    let both = world.transact(&[b"a"], |txn| {
        txn.put_string(ns, b"a", &long, 0)?;
        txn.put_string(ns, b"a", &big(2), 0)
    });
    both.0.unwrap();
    world.put(DB, b"other", b"1", 0);
    world.crash(None);
    let end = BIG_STRING + 4 * CHUNK;
    let grown = world.transact(&[b"a"], |txn| {
        let found = txn.find(ns, b"a")?.unwrap();
        txn.splice(found, end, b"x")?;
        let mut out = Vec::new();
        txn.string_range(found, BIG_STRING + 2 * CHUNK, end, &mut out)?;
        Ok(out)
    });
    assert!(grown.0.unwrap().iter().all(|&byte| byte == 0), "what is between reads as zeros");
}

#[test]
fn what_a_transaction_found_stays_where_it_is() {
    let mut world = world(Fsync::No);
    let keys: Vec<Vec<u8>> = (0..50).map(|i| format!("k{i}").into_bytes()).collect();
    for key in &keys {
        world.put(DB, key, key, 0);
    }
    world.flush();
    world.evict();
    world.engine().shards[0].core().table_limit = 0;
    let ns = world.ns(DB);
    let result = world.transact(&[], |txn| {
        let found = keys.iter().map(|key| txn.find(ns, key)).collect::<Result<Vec<_>, _>>()?;
        for (key, found) in keys.iter().zip(found) {
            assert_eq!(txn.object(found.unwrap()).value(), key);
        }
        Ok(())
    });
    result.0.unwrap();
    world.transact(&[], |_| Ok(())).0.unwrap();
    assert!(world.engine().shards[0].core().table.is_empty(), "afterwards they leave");
}

#[test]
fn a_time_flushed_during_a_sweep_is_swept_by_the_next() {
    let mut world = world(Fsync::No);
    world.put(DB, b"stays", b"1", 0);
    world.flush();
    world.put(DB, b"a", b"1", world.now_ms + 5);
    let mut flush = world.begin_flush(None);
    world.step(&mut flush, 2);
    world.now_ms += 3;
    // Passes over the time that is on its way, and notes where to begin next.
    world.turn();
    world.put(DB, b"b", b"1", world.now_ms + 60_000);
    world.finish(&mut flush);
    world.evict();
    world.now_ms += 10;
    world.verify_counts();
    world.audit();
}

#[test]
fn a_time_is_swept_as_soon_as_its_object_may_leave() {
    let mut world = world(Fsync::No);
    let keys: Vec<Vec<u8>> = (0..20).map(|i| format!("k{i}").into_bytes()).collect();
    world.put(DB, b"stays", b"1", 0);
    world.flush();
    // There are no times yet: the sweep has nothing to look for.
    world.turn();
    for key in &keys {
        world.put(DB, key, b"1", world.now_ms + 5);
    }
    let mut flush = world.begin_flush(None);
    // All gathered and ingested, one slice settled.
    world.step(&mut flush, 6);
    world.evict();
    world.now_ms += 10;
    world.verify_counts();
    world.finish(&mut flush);
    world.audit();
}

#[test]
fn an_owner_of_a_time_outdoes_its_tombstone() {
    let mut world = world(Fsync::No);
    let at_ms = world.now_ms + 50;
    world.put(DB, b"a", b"1", at_ms);
    world.flush();
    world.put(DB, b"a", b"1", 0);
    // The failed flush leaves the tombstone of the old time behind.
    let mut flush = world.begin_flush(Some(0));
    world.finish(&mut flush);
    world.put(DB, b"a", b"1", at_ms);
    world.flush();
    assert_eq!(world.stored_with(codec::key::tag::EXPIRY), 1);
    world.evict();
    world.now_ms += 100;
    world.verify_counts();
}

#[test]
fn dirty_bytes_follow_a_value_that_grows() {
    let mut world = world(Fsync::No);
    world.put(DB, b"a", b"1", 0);
    world.put(DB, b"a", &[1; 60_000], 0);
    assert!(world.engine().shards[0].core().dirty_bytes > 60_000);
    world.put(DB, b"a", &[2; 60_000], 0);
    assert!(world.engine().shards[0].core().dirty_bytes < 120_000);
}

#[test]
fn what_turns_dirty_during_a_flush_counts_whatever_is_removed_meanwhile() {
    let mut world = world(Fsync::No);
    world.put(DB, b"a", &big(1), 0);
    let mut flush = world.begin_flush(None);
    // The list of what is dirty is the flight's. The bytes of the big string are, too.
    world.step(&mut flush, 1);
    world.put(DB, b"b", b"1", 0);
    world.put(DB, b"a", b"", 0);
    world.finish(&mut flush);
    assert!(world.engine().dirty_bytes() > 0, "else an idle server would never flush it");
    world.audit();
}

#[test]
fn dirty_bytes_are_as_before_after_a_rollback() {
    let mut world = world(Fsync::No);
    let at_ms = world.now_ms + 1000;
    let keys: [&[u8]; 3] = [b"big", b"small", b"new"];
    world.put(DB, keys[0], &big(7), 0);
    world.put(DB, keys[1], b"value", at_ms);
    for flushed in [false, true] {
        if flushed {
            world.flush();
        }
        let before = world.engine().dirty_bytes();
        let ns = world.ns(DB);
        // Everything is removed and made anew, and nothing of it stays.
        let result = world.transact(&keys, |txn| {
            for key in keys {
                txn.delete(ns, key)?;
                txn.put_string(ns, key, &big(8), 0)?;
                txn.put_string(ns, key, b"small", at_ms)?;
            }
            txn.delete(ns, keys[0])?;
            Err::<(), _>(Error::Syntax)
        });
        assert!(result.0.is_err());
        assert_eq!(world.engine().dirty_bytes(), before, "flushed {flushed}");
    }
    world.verify();
}

#[test]
fn a_key_that_comes_and_goes_leaves_nothing_for_a_flush() {
    let mut world = world(Fsync::No);
    for n in 0..1000 {
        world.put(DB, b"a", b"1", 0);
        if n % 2 == 0 {
            world.put(DB, b"b", b"1", 0);
            world.delete(DB, b"b");
        }
        world.delete(DB, b"a");
    }
    let engine = world.engine().clone();
    {
        let core = engine.shards[0].core();
        assert!(core.dirty.len() <= 1000 && core.dirty_bytes <= 4000, "{} {}", core.dirty.len(), core.dirty_bytes);
        assert_eq!(core.table.iter().count(), 0);
    }
    world.flush();
    assert_eq!(engine.shards[0].core().dirty_bytes, 0);
    world.verify();
}

#[test]
fn a_key_that_was_stored_and_comes_and_goes_is_not_looked_for_in_fjall_each_time() {
    let mut world = world(Fsync::No);
    world.put(DB, b"a", b"1", 0);
    world.flush();
    world.delete(DB, b"a");
    world.flush();
    assert_eq!(world.state(DB, b"a"), None, "its tombstone is stored");
    let engine = world.engine().clone();
    let before = engine.shards[0].core().stats.stored_reads;
    for _ in 0..1000 {
        world.put(DB, b"a", b"1", 0);
        world.delete(DB, b"a");
    }
    {
        let core = engine.shards[0].core();
        assert!(core.stats.stored_reads - before <= 1);
        assert!(core.dirty.len() == 1 && core.dirty_bytes < 1000, "{} {}", core.dirty.len(), core.dirty_bytes);
    }
    world.flush();
    assert_eq!(world.state(DB, b"a"), None, "the flush forgets it");
    world.verify();
    world.put(DB, b"a", b"2", 0);
    world.delete(DB, b"a");
    world.put(DB, b"a", b"3", 0);
    world.flush();
    assert!(world.stored(DB, b"a").is_some());
    drop(engine);
    world.crash(None);
    world.verify();
}

#[test]
fn a_prefix_longer_than_stored_keys_still_finds() {
    let mut world = world(Fsync::No);
    let key = vec![b'k'; codec::MAX_INLINE + 50];
    world.put(DB, &key, b"1", 0);
    let engine = world.engine().clone();
    let (ns, prefix) = (world.ns(DB), &key[..codec::MAX_INLINE + 10]);
    for flushed in [false, true] {
        if flushed {
            world.flush();
        }
        let mut core = engine.shards[0].core();
        let met =
            crate::shard::walk::tests::met(&mut core, &engine.router, ns, prefix, Default::default(), world.now_ms);
        assert!(met.len() == 1 && met[0].key == key && met[0].kind == Kind::String);
    }
}

#[test]
fn a_dropped_engine_leaves_the_directory_and_flushes_nothing() {
    let mut world = world(Fsync::No);
    world.put(DB, b"a", b"1", 0);
    world.crash(None);
    assert_eq!(world.stored(DB, b"a"), None);
    world.verify();
}
