//! Keys that are overwritten while nobody looks at what fjall holds of them.

use super::world::{DB, Value, World, big, world};
use crate::codec::key::tag;
use crate::codec::redo;
use crate::log::Fsync;
use crate::shard::background::recount::Recount;
use crate::shard::background::sight::Sighting;
use crate::shard::txn::Txn;

/// A string, one in chunks, one with a time, and one that is gone; all of them on disk only.
const KEYS: [&[u8]; 4] = [b"plain", b"chunks", b"timed", b"gone"];

fn asleep(fsync: Fsync) -> World {
    let mut world = world(fsync);
    let at = world.now_ms + 50_000;
    world.put(DB, KEYS[0], b"1", 0);
    world.put(DB, KEYS[1], &big(1), 0);
    world.put(DB, KEYS[2], b"1", at);
    world.put(DB, KEYS[3], b"1", 0);
    world.flush();
    world.delete(DB, KEYS[3]);
    world.flush();
    world.evict();
    world.engine().shards.iter().for_each(|shard| shard.core().cold.clear());
    world
}

fn blind(world: &World) -> usize {
    world.engine().shards.iter().map(|shard| shard.core().blind.len()).sum()
}

/// DBSIZE, if nobody sights what is blind.
fn count(world: &World) -> u64 {
    let ns = world.ns(DB);
    world.engine().shards.at(0).core().count(ns)
}

fn overwrite(world: &mut World) {
    let written = |world: &World| world.engine().shards.at(0).core().stats.blind_writes as usize;
    let (before, written_before) = (blind(world), written(world));
    for key in KEYS {
        world.put(DB, key, b"2", 0);
    }
    assert_eq!(blind(world), before + KEYS.len(), "nothing was read");
    assert_eq!(written(world), written_before + KEYS.len());
}

#[test]
fn what_was_overwritten_leaves_nothing_behind() {
    let mut world = asleep(Fsync::Always);
    overwrite(&mut world);
    let ns = world.ns(DB);
    assert_eq!(count(&world), 7, "until it is known what there was");
    assert_eq!(world.engine().shards.at(0).core().count_about(ns), 3);
    world.flush();
    assert_eq!((blind(&world), count(&world)), (0, 4));
    world.audit();
    assert_eq!(world.stored_with(tag::ELEMENT), 0, "the chunks are gone");
    assert_eq!(world.stored_with(tag::EXPIRY), 0, "the time is not listed any more");
}

/// Removed, or made something else, before anybody has looked: the old value must not come back, nor be counted.
#[test]
fn what_becomes_of_a_blind_key_does_not_matter() {
    let mut world = asleep(Fsync::Always);
    overwrite(&mut world);
    for key in KEYS {
        world.delete(DB, key);
    }
    world.put(DB, KEYS[0], b"3", 0);
    world.put(DB, KEYS[2], &big(3), world.now_ms + 70_000);
    assert_eq!(blind(&world), KEYS.len());
    world.audit();
    assert_eq!(world.stored_with(tag::META), 2);
    assert_eq!(world.stored_with(tag::EXPIRY), 1);
}

/// What a transaction that fails has overwritten is what it was, and not blind.
#[test]
fn a_rollback_makes_it_see_again() {
    let mut world = asleep(Fsync::Always);
    let ns = world.ns(DB);
    let result: Result<(), _> = world
        .transact(&KEYS, |txn| {
            for key in KEYS {
                txn.put_string(ns, key, b"2", 0)?;
            }
            Err(crate::Error::err("taken back"))
        })
        .0;
    assert!(result.is_err());
    assert_eq!(blind(&world), 0);
    world.verify();
    world.verify_counts();
}

/// Wherever the flush that sights them ends, they are sighted once: the log says that they were before fjall shows any.
#[test]
fn rule_17_what_is_blind_is_sighted_once_whatever_happens() {
    let steps = ["flush.rotated", "flush.gathered", "flush.synced", "flush.ingested", "flush.stored", "flush.deleted"];
    for (n, step) in steps.into_iter().enumerate() {
        for power in [false, true] {
            for before in [false, true] {
                let mut world = asleep(Fsync::Always);
                overwrite(&mut world);
                if before {
                    assert!(world.sight());
                }
                world.delete(DB, KEYS[1]);
                world.sim.crash_at_step(step, 0);
                assert!(world.engine().flush().is_err() || step == "flush.deleted");
                world.crash(power.then_some(n as u64));
                world.verify();
                world.verify_counts();
                overwrite_again(&mut world);
                world.audit();
            }
        }
    }
}

fn overwrite_again(world: &mut World) {
    for key in KEYS {
        world.put(DB, key, b"3", 0);
    }
}

/// What becomes blind while a flush runs waits for the next one, of which the log keeps all.
#[test]
fn what_becomes_blind_during_a_flush_is_not_carried_by_it() {
    let mut world = asleep(Fsync::Always);
    world.put(DB, b"other", b"1", 0);
    let mut stepper = world.begin_flush(None);
    world.step(&mut stepper, 1);
    overwrite(&mut world);
    world.finish(&mut stepper);
    assert_eq!(blind(&world), KEYS.len());
    assert_eq!(world.stored(DB, KEYS[3]), None);
    world.crash(Some(3));
    world.verify();
    world.verify_counts();
    world.audit();
}

/// Who counts waits for those that are blind by then; meanwhile what is overwritten is read first.
#[test]
fn nobody_becomes_blind_while_somebody_counts() {
    let mut world = asleep(Fsync::Always);
    world.put(DB, KEYS[0], b"2", 0);
    assert_eq!(blind(&world), 1);
    let engine = world.engine().clone();
    let counting = engine.counting();
    world.put(DB, KEYS[1], b"2", 0);
    assert_eq!(blind(&world), 1);
    engine.sight(&[0]);
    assert_eq!((blind(&world), count(&world)), (0, 3));
    drop(counting);
    world.put(DB, KEYS[2], b"2", 0);
    assert_eq!(blind(&world), 1);
    drop(engine);
    world.audit();
}

/// A replay comes to keys that it has in its table, though they were on disk only when they were overwritten. It has flushed
/// on its way, when they were not yet what they were then: it knows better than the disk.
#[test]
fn a_replay_knows_by_itself_what_there_was() {
    for key in [&b"there"[..], b"not"] {
        let mut world = world(Fsync::Always);
        world.put(DB, b"not", b"1", 0);
        let fill = |world: &mut World, from: u8| (from..from + 6).for_each(|n| world.put(DB, &[n], b"1", 0));
        fill(&mut world, 0);
        world.delete(DB, b"not");
        world.put(DB, b"there", b"1", 0);
        // As if a flush had brought all of it to the disk, and not come to cut the log, and it had left the table.
        let (ns, before) = (world.ns(DB), count(&world));
        let lsn = world.engine().log.append(|_, out| {
            redo::encode_blind(ns, key, 1, out);
            redo::encode_put(ns, key, b"\x01\0", b"2", out);
            redo::encode_count(0, ns, before + 1, out);
        });
        world.engine().shards.at(0).core().set_count(ns, before as i64 + 1);
        world.engine().log.sync_to(lsn).unwrap();
        world.model.get_mut(DB).unwrap().insert(key.to_vec(), Value::string(b"2".to_vec(), 0));
        world.note();
        fill(&mut world, 6);
        // The log's thread may be at it still.
        world.engine().log.sync_to(world.engine().log.last()).unwrap();
        (world.options.dirty_budget, world.options.table_budget) = (1, 1);
        world.crash(None);
        assert_eq!((blind(&world), count(&world)), (1, 14));
        let mut recount = Recount::begin(&world.engine().shards.at(0).core()).unwrap();
        while recount.step().unwrap() {}
        let end = |txn: &mut Txn<'_, '_>| {
            recount.end(txn, 0);
            Ok(())
        };
        world.transact(&[], end).0.unwrap();
        assert_eq!(count(&world), 14, "who counts anew comes to the same");
        world.verify();
        world.verify_counts();
        world.audit();
    }
}

/// What is looked at while its database is emptied leaves the table: who comes to its place is not taken for it.
#[test]
fn who_comes_to_the_place_of_what_is_gone_meanwhile_is_not_blind() {
    for steps in 0..5 {
        let mut world = asleep(Fsync::Always);
        overwrite(&mut world);
        let engine = world.engine().clone();
        let mut sighting = Sighting::begin(&mut engine.shards.at(0).core(), true).unwrap();
        (0..steps).for_each(|_| _ = sighting.step(&engine));
        world.flush_names(&[DB]);
        world.turn();
        assert_eq!(blind(&world), 0, "they are gone, after {steps} steps");
        for n in 0..2 * KEYS.len() as u8 {
            world.put(DB, &[n], b"1", 0);
        }
        assert_eq!(blind(&world), 0, "that there was none of these is known, after {steps} steps");
        world.check();
        while sighting.step(&engine) {
            world.check();
        }
        drop((sighting, engine));
        world.verify();
        world.verify_counts();
        world.audit();
        assert_eq!(world.stored_with(tag::EXPIRY), 0, "after {steps} steps");
    }
}

/// Numbers go on where the log's end, so that what was sighted once covers nothing that comes later.
#[test]
fn numbers_are_not_given_twice() {
    let mut world = asleep(Fsync::Always);
    overwrite(&mut world);
    assert!(world.sight());
    // The log's thread may be at it still.
    world.engine().log.sync_to(world.engine().log.last()).unwrap();
    world.crash(None);
    assert_eq!(blind(&world), 0, "the log says that they are sighted");
    let last = world.engine().shards.at(0).core().blind.last();
    assert_eq!(last, KEYS.len() as u64);
    world.flush();
    world.evict();
    world.engine().shards.at(0).core().cold.clear();
    world.put(DB, KEYS[0], b"4", 0);
    assert_eq!((blind(&world), world.engine().shards.at(0).core().blind.last()), (1, last + 1));
    world.engine().log.sync_to(world.engine().log.last()).unwrap();
    world.crash(None);
    assert_eq!(blind(&world), 1);
    world.verify_counts();
    world.audit();
}

/// Two would account for the same records.
#[test]
fn one_at_a_time_looks_at_what_is_blind() {
    let mut world = asleep(Fsync::Always);
    overwrite(&mut world);
    let engine = world.engine().clone();
    let seek = || engine.shards.at(0).core().seek_blind();
    let seeking = seek();
    assert!(seeking.is_some() && seek().is_none());
    drop(seeking);
    assert!(seek().is_some(), "whoever began has not ended");
    drop(engine);
    world.flush();
    world.verify_counts();
    world.audit();
}
