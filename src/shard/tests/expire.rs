//! A shard's own sweep: who else waits for its thread or its lock meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::world::{DB, World, evict};
use crate::codec::key::expiry_range;
use crate::error::Error;
use crate::log::Fsync;
use crate::shard::actor::{Job, ShardSet};
use crate::shard::background::timer::expire::{expire_record, wanted_of};
use crate::shard::background::timer::{SWEEP_SLICE, Timer};
use crate::shard::memory::reads::Reads;
use crate::store::Watch;

/// More than a slice has.
const KEYS: u32 = 1000;

/// Keys that are due when it is so late.
fn due_keys(world: &mut World) -> u64 {
    let due_ms = world.now_ms + 1_000_000;
    (0..KEYS).for_each(|n| world.put(DB, format!("due {n}").as_bytes(), b"1", due_ms));
    due_ms
}

/// One that has come before the sweep, and one that comes during it.
#[test]
fn jobs_for_the_thread_run_between_two_slices() {
    for stored in [false, true] {
        let mut world = World::new(1, Fsync::No);
        let due_ms = due_keys(&mut world);
        if stored {
            world.flush();
            evict(world.engine());
        }
        let (send, jobs) = crossbeam_channel::unbounded::<(ShardSet, Job)>();
        let left = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
        let look = |which: usize, then: Option<(crossbeam_channel::Sender<(ShardSet, Job)>, Job)>| -> Job {
            let left = left.clone();
            Box::new(move |lease| {
                left[which].store(lease[0].keys() as usize, Ordering::Relaxed);
                if let Some((send, job)) = then {
                    send.send((ShardSet::from_slice(&[0]), job)).unwrap();
                }
                lease
            })
        };
        let second = look(1, None);
        send.send((ShardSet::from_slice(&[0]), look(0, Some((send.clone(), second))))).unwrap();
        Timer::with_jobs(world.engine(), 0, &jobs).turn(due_ms);
        let [first, second] = [0, 1].map(|which| left[which].load(Ordering::Relaxed));
        assert!(first > second && second > 0, "{first} and {second} keys were left, stored: {stored}");
        assert_eq!(world.engine().shards.at(0).core().keys(), 0);
    }
}

/// Of those on disk nothing is read while the lock is held.
#[test]
fn what_a_slice_removes_was_read_before() {
    let mut world = World::new(1, Fsync::No);
    let due_ms = due_keys(&mut world);
    world.flush();
    evict(world.engine());
    let engine = world.engine().clone();
    let range = expiry_range(0, due_ms);
    let records = engine.store.partition(0).range(&range.lower, &range.upper).unwrap();
    let due: Vec<Vec<u8>> = records.take(SWEEP_SLICE).map(|record| record.unwrap().0.to_vec()).collect();
    engine.shards.at(0).core().store_is_cold = true;
    let mut reads = wanted_of(&engine.shards.at(0).core(), &engine.router, &due);
    for wanted in reads.take_wanted() {
        reads.add(wanted.read(&mut Watch::default()));
    }
    let expire = |reads: &mut Reads| {
        engine.transact(&[0], due_ms, |txn| due.iter().try_for_each(|record| expire_record(txn, record, reads)))
    };
    assert_eq!(expire(&mut Reads::default()), Err(Error::Cold));
    reads.may_block = false;
    expire(&mut reads).unwrap();
    assert_eq!(engine.shards.at(0).core().keys() as usize, KEYS as usize - SWEEP_SLICE);
}
