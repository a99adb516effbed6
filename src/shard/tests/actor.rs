//! No job is left behind. Here is nobody who would find it later: no timer, no thread of a shard, no flusher. When all who
//! posted or held a core are done, every job has run, or stands with the threads of the shards.
//!
//! Each test but the last forces one interleaving; what it would miss is in its name. The last one runs rounds of threads
//! against each other.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, mpsc};

use super::world::{Rng, World};
use crate::log::Fsync;
use crate::shard::Engine;
use crate::shard::actor::moment::{self, Moment};
use crate::shard::actor::{Job, ShardSet};

/// An engine without any thread, and the number of jobs that have run.
struct Actors {
    /// Keeps the engine's directory.
    _world: World,
    engine: Arc<Engine>,
    ran: Arc<AtomicUsize>,
}

impl Actors {
    fn new(shards: u16) -> Actors {
        let world = World::new(shards, Fsync::No);
        let engine = world.engine().clone();
        Actors { _world: world, engine, ran: Arc::default() }
    }

    fn job(&self) -> Job {
        job(&self.ran)
    }

    fn post(&self, shards: &[u16]) {
        self.engine.post(shards.into(), self.job());
    }

    fn ran(&self) -> usize {
        self.ran.load(Ordering::SeqCst)
    }
}

fn job(ran: &Arc<AtomicUsize>) -> Job {
    let ran = ran.clone();
    Box::new(move |lease| {
        ran.fetch_add(1, Ordering::SeqCst);
        lease
    })
}

#[test]
fn what_comes_between_the_last_look_and_the_unlock_is_run() {
    let actors = Actors::new(1);
    let (engine, job) = (actors.engine.clone(), actors.job());
    let guard = actors.engine.shards.at(0).core();
    moment::at(Moment::Unlocking, move || engine.post([0][..].into(), job));
    drop(guard);
    assert_eq!(actors.ran(), 1);
}

#[test]
fn a_mailbox_longer_than_a_drain_is_emptied() {
    let actors = Actors::new(1);
    let guard = actors.engine.shards.at(0).core();
    (0..1000).for_each(|_| actors.post(&[0]));
    assert_eq!(actors.ran(), 0);
    drop(guard);
    assert_eq!(actors.ran(), 1000);
}

/// Nobody waits for who may take long, nor twice for who has turned out to.
#[test]
fn a_core_that_is_held_for_long_is_not_waited_for() {
    let actors = Actors::new(2);
    let engine = &actors.engine;
    let is_had = || engine.try_lease(&[0, 1]).is_some();
    let sleeps = |times: usize| {
        let slept = Arc::new(AtomicUsize::new(0));
        let count = slept.clone();
        moment::at(Moment::Sleeping, move || _ = count.fetch_add(1, Ordering::SeqCst));
        assert!(!is_had());
        assert_eq!(slept.load(Ordering::SeqCst), times);
        moment::at(Moment::Sleeping, || ());
    };
    let held = engine.shards.at(1).core();
    sleeps(0);
    drop(held);
    assert!(is_had());
    let held = engine.shards.at(1).try_core();
    sleeps(1);
    sleeps(0);
    drop(held);
    assert!(is_had());
    let held = engine.shards.at(1).try_core();
    sleeps(1);
    drop(held);
}

#[test]
fn work_over_free_shards_is_run_at_once() {
    let actors = Actors::new(3);
    actors.post(&[0, 2]);
    assert_eq!(actors.ran(), 1);
}

#[test]
fn giving_a_core_back_runs_what_waits_for_it_and_others() {
    let actors = Actors::new(3);
    for last in [0, 2] {
        let guard = actors.engine.shards.at(last).core();
        let before = actors.ran();
        actors.post(&[0, 2]);
        actors.post(&[0, 1, 2]);
        assert_eq!(actors.ran(), before);
        drop(guard);
        assert_eq!(actors.ran(), before + 2);
    }
}

/// Work that leads to more work is run by a loop, not by a call within a call.
#[test]
fn work_that_brings_work_is_run_to_its_end() {
    fn chain(engine: &Arc<Engine>, ran: &Arc<AtomicUsize>, left: usize) -> Job {
        let (engine, ran) = (engine.clone(), ran.clone());
        Box::new(move |lease| {
            ran.fetch_add(1, Ordering::SeqCst);
            if left > 0 {
                let shards: &[u16] = if left.is_multiple_of(3) { &[1] } else { &[0, 1] };
                engine.post(shards.into(), chain(&engine, &ran, left - 1));
            }
            lease
        })
    }
    let actors = Actors::new(2);
    actors.engine.post([0, 1][..].into(), chain(&actors.engine, &actors.ran, 10_000));
    assert_eq!(actors.ran(), 10_001);
}

/// Somebody gives a core back just when work is left there that has found it taken.
#[test]
fn a_core_given_back_while_work_is_left_there_is_seen() {
    let actors = Actors::new(2);
    let (has_it, it_has) = mpsc::channel();
    let (give_back, may_give_back) = mpsc::channel();
    let (gave_back, it_gave_back) = mpsc::channel();
    let engine = actors.engine.clone();
    let holder = std::thread::spawn(move || {
        let guard = engine.shards.at(1).core();
        has_it.send(()).unwrap();
        may_give_back.recv().unwrap();
        drop(guard);
        gave_back.send(()).unwrap();
    });
    it_has.recv().unwrap();
    moment::at(Moment::GivingUp, move || {
        give_back.send(()).unwrap();
        it_gave_back.recv().unwrap();
    });
    actors.post(&[0, 1]);
    holder.join().unwrap();
    assert_eq!(actors.ran(), 1);
}

/// Work over two shards takes a core, finds the other one taken and gives the first one back. What was left in its mailbox
/// meanwhile is nobody's but its own to run.
#[test]
fn a_core_that_was_tried_in_vain_is_looked_at() {
    let actors = Actors::new(2);
    let taken = actors.engine.shards.at(1).core();
    let (engine, job) = (actors.engine.clone(), actors.job());
    moment::at(Moment::GivingUp, move || engine.post([0][..].into(), job));
    actors.post(&[0, 1]);
    assert_eq!(actors.ran(), 1, "the job of the mailbox");
    drop(taken);
    assert_eq!(actors.ran(), 2);
}

/// The same, and that job leads to work over shards that are free: its thread is emptying a mailbox already, and goes on there.
#[test]
fn work_brought_by_a_core_that_was_tried_in_vain_is_run() {
    let actors = Actors::new(3);
    let taken = actors.engine.shards.at(1).core();
    let (engine, more) = (actors.engine.clone(), actors.job());
    moment::at(Moment::GivingUp, move || {
        let engine_of_first = engine.clone();
        let first: Job = Box::new(move |lease| {
            engine_of_first.post([0, 2][..].into(), more);
            lease
        });
        engine.post([0][..].into(), first);
    });
    actors.post(&[0, 1]);
    assert_eq!(actors.ran(), 1, "what the job of the mailbox has led to");
    drop(taken);
    assert_eq!(actors.ran(), 2);
}

/// Work that has tried too often goes to a thread; what stands behind it is not forgotten.
#[test]
fn work_behind_what_goes_to_a_thread_is_run() {
    let actors = Actors::new(2);
    let core = |shard: usize| actors.engine.shards.at(shard as u16).core();
    let mut held = core(1);
    actors.post(&[0, 1]);
    // Whenever the one is given back the other is taken.
    for at in 1..256 {
        let next = core((at + 1) % 2);
        drop(std::mem::replace(&mut held, next));
    }
    assert!(actors.engine.take_thread_work().is_empty() && actors.ran() == 0);
    // It stands with the one that is held, and finds the other one taken for the last time.
    let at = u16::from(actors.engine.shards.at(1).waiting() == 1);
    actors.post(&[at]);
    let other = core(usize::from(1 - at));
    drop(held);
    assert_eq!(actors.ran(), 1, "what stood behind it");
    let work = actors.engine.take_thread_work();
    drop(other);
    assert_eq!(work.len(), 1);
    for (shards, job) in work {
        drop(job(actors.engine.lease(&shards)));
    }
    assert_eq!(actors.ran(), 2);
}

/// What one thread does in a round of [`nothing_is_left_behind_by_threads_against_each_other`].
fn act(engine: &Engine, ran: &Arc<AtomicUsize>, rng: &mut Rng) -> usize {
    let shards: ShardSet = [&[0][..], &[1], &[0, 1], &[1, 2], &[0, 1, 2]][rng.below(5)].into();
    match rng.below(3) {
        0 => drop(engine.try_lease(&shards)),
        1 => drop(engine.lease(&shards)),
        _ => {
            engine.post(shards, job(ran));
            return 1;
        }
    }
    0
}

#[test]
fn nothing_is_left_behind_by_threads_against_each_other() {
    const THREADS: usize = 3;
    const ROUNDS: usize = 3000;
    let actors = Actors::new(3);
    let barrier = Arc::new(Barrier::new(THREADS));
    let posted = Arc::new(AtomicUsize::new(0));
    let start = |id: usize| {
        let (engine, ran, barrier, posted) =
            (actors.engine.clone(), actors.ran.clone(), barrier.clone(), posted.clone());
        std::thread::spawn(move || {
            let mut rng = Rng(id as u64 + 1);
            let mut stranded = 0;
            for _ in 0..ROUNDS {
                barrier.wait();
                let jobs = (0..8).map(|_| act(&engine, &ran, &mut rng)).sum();
                posted.fetch_add(jobs, Ordering::SeqCst);
                barrier.wait();
                // The locks are free now, and nobody else is there.
                stranded += if id == 0 { engine.shards.iter().map(|shard| shard.waiting()).max().unwrap() } else { 0 };
                barrier.wait();
            }
            stranded
        })
    };
    let threads: Vec<_> = (0..THREADS).map(start).collect();
    let stranded: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    assert_eq!(stranded, 0, "jobs are stranded");
    for (shards, job) in actors.engine.take_thread_work() {
        drop(job(actors.engine.lease(&shards)));
    }
    assert_eq!(actors.ran(), posted.load(Ordering::SeqCst));
}
