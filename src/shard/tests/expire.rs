//! A shard's own sweep: who else waits for its thread or its lock meanwhile.

use super::world::{DB, World, evict};
use crate::codec::key::expiry_range;
use crate::error::Error;
use crate::log::Fsync;
use crate::shard::actor::{Job, ShardSet};
use crate::shard::background::timer::Timer;
use crate::shard::background::timer::expire::{SWEEP_SLICE, expire_record, wanted_of};
use crate::shard::memory::reads::Reads;

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

/// Of those on disk nothing is read while the lock is held.
#[test]
fn what_a_slice_removes_was_read_before() {
    [false, true].into_iter().for_each(removes_what_was_read);
}

/// The disk may have to be waited for: it is asked for several at once.
fn removes_what_was_read(slowly: bool) {
    let mut world = World::new(1, Fsync::No);
    // Its filter is complete.
    world.turn();
    let due_ms = due_keys(&mut world);
    world.flush();
    evict(world.engine());
    let engine = world.engine().clone();
    let range = expiry_range(0, due_ms);
    let records = engine.store.partition(0).range(&range.lower, &range.upper).unwrap();
    let due: Vec<Vec<u8>> = records.take(SWEEP_SLICE).map(|record| record.unwrap().0.to_vec()).collect();
    engine.shards.at(0).core().store_is_cold = true;
    if slowly {
        engine.store.partition(0).note_slow();
    }
    let mut reads = wanted_of(&engine.shards.at(0).core(), &engine.router, &due);
    reads.bring_all();
    let expire = |reads: &mut Reads| {
        engine.transact(&[0], due_ms, |txn| due.iter().try_for_each(|record| expire_record(txn, record, reads)))
    };
    assert_eq!(expire(&mut Reads::default()), Err(Error::Cold));
    reads.may_block = false;
    expire(&mut reads).unwrap();
    assert_eq!(engine.shards.at(0).core().keys() as usize, KEYS as usize - SWEEP_SLICE);
}
