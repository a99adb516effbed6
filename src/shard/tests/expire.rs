//! A shard's own sweep: who else waits for its thread or its lock meanwhile.

use super::world::{DB, World, evict};
use crate::log::Fsync;
use crate::shard::actor::{Job, ShardSet};
use crate::shard::background::timer::Timer;
use crate::shard::background::timer::expire::SWEEP_SLICE;
use crate::shard::memory::reads::{AIMED, UNDER_LOCK};

/// More than a slice has.
const KEYS: u32 = 1000;

/// Keys that are due when it is so late.
fn due_keys(world: &mut World) -> u64 {
    let due_ms = world.now_ms + 1_000_000;
    (0..KEYS).for_each(|n| world.put(DB, format!("due {n}").as_bytes(), b"1", due_ms));
    due_ms
}

/// One slice a turn while a job waits for the thread, however many keys are due at one time; what a flush brings meanwhile, of an earlier
/// time, is not missed.
#[test]
fn a_sweep_gives_way_to_jobs_and_goes_on() {
    for stored in [false, true] {
        let mut world = World::new(1, Fsync::No);
        let due_ms = due_keys(&mut world);
        if stored {
            world.flush();
            evict(world.engine());
        }
        let engine = world.engine().clone();
        let keys = || engine.shards.at(0).core().keys() as usize;
        let (send, jobs) = crossbeam_channel::unbounded::<(ShardSet, Job)>();
        send.send((ShardSet::from_slice(&[0]), Box::new(|lease| lease))).unwrap();
        let mut timer = Timer::with_jobs(&engine, 0, &jobs);
        for left in (0..KEYS as usize).rev().step_by(SWEEP_SLICE).skip(1) {
            timer.turn(due_ms);
            assert_eq!(keys(), left + 1, "stored: {stored}");
        }
        world.put(DB, b"earlier", b"1", due_ms - 10);
        world.flush();
        evict(&engine);
        drop(jobs.try_recv());
        (0..2).for_each(|_| timer.turn(due_ms));
        assert_eq!(keys(), 0, "stored: {stored}");
    }
}

/// Of those on disk nothing is read while the lock is held, but before: where the disk may have to be waited for, several at once.
#[test]
fn what_a_slice_removes_was_read_before() {
    for slowly in [false, true] {
        let mut world = World::new(1, Fsync::No);
        let due_ms = due_keys(&mut world);
        world.flush();
        evict(world.engine());
        let engine = world.engine().clone();
        engine.shards.at(0).core().store_is_cold = true;
        if slowly {
            engine.store.partition(0).note_slow();
        }
        let before = (UNDER_LOCK.get(), AIMED.get());
        Timer::new(&engine, 0).expire_stored(due_ms).unwrap();
        assert_eq!((UNDER_LOCK.get(), AIMED.get() > before.1), (before.0, slowly));
        assert_eq!(engine.shards.at(0).core().keys(), 0);
    }
}
