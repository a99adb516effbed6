//! The flusher's own thread: each reason for a flush alone has it flush. Tests wait for the end of the flush itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::Receiver;
use tempfile::TempDir;

use super::world::{NAMES, World, big, options, wait_for};
use crate::log::Fsync;
use crate::log::sim::{Moment, Op, SimIo};
use crate::shard::Engine;
use crate::shard::actor::{Job, ShardSet};
use crate::shard::background::timer::TURN;
use crate::shard::engine::EngineOptions;
use crate::shard::engine::eviction::{By, Policy};
use crate::util::time::now_ms;

struct Live {
    sim: SimIo,
    engine: Arc<Engine>,
    _dir: TempDir,
}

impl Live {
    /// An engine with its threads, which nothing has flush unless `change` gives a reason.
    fn new(change: impl FnOnce(&mut EngineOptions)) -> Live {
        let dir = crate::util::scratch::tempdir().unwrap();
        let mut options = EngineOptions { background: true, ..options(&dir, 1, Fsync::EverySec) };
        (options.table_budget, options.dirty_budget) = (64 << 20, 64 << 20);
        change(&mut options);
        let sim = SimIo::new();
        let engine = Engine::open(Arc::new(sim.clone()), options).unwrap();
        engine.replay().unwrap();
        Live { sim, engine, _dir: dir }
    }

    /// Tells of the end of the next flush.
    fn flushed(&self) -> Receiver<()> {
        let (sender, receiver) = crossbeam_channel::unbounded();
        self.sim.at(Moment::Step("flush.deleted"), move || sender.send(()).unwrap_or(()));
        receiver
    }

    fn put(&self, key: &str, value: &[u8]) {
        let ns = self.engine.first_names().id(NAMES[0]).unwrap();
        self.engine.transact(&[0], now_ms(), |txn| txn.put_string(ns, key.as_bytes(), value, 0)).unwrap();
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        // A disk that fails is part of a test.
        let _ = self.engine.close(false);
    }
}

fn wait(flushed: &Receiver<()>) {
    flushed.recv_timeout(Duration::from_secs(30)).expect("the flusher flushes");
}

#[test]
fn what_is_due_waits_for_no_other_shards_disk() {
    let live = Live::new(|_| ());
    let ns = live.engine.first_names().id(NAMES[0]).unwrap();
    // Others collect garbage, without end.
    let held: Vec<_> = live.engine.long_turns.iter().map(|turn| turn.lock()).collect();
    live.engine.transact(&[0], now_ms(), |txn| txn.put_string(ns, b"k", b"v", now_ms() + 1)).unwrap();
    let began = std::time::Instant::now();
    while live.engine.shards.at(0).core().count(ns) > 0 {
        assert!(began.elapsed() < Duration::from_secs(30), "the sweep comes by");
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(held);
}

/// The thread whose timer finds others at it goes on with its jobs.
#[test]
fn a_job_waits_for_no_other_shards_turn() {
    let live = Live::new(|_| ());
    let held: Vec<_> = live.engine.turns.iter().map(|turn| turn.lock()).collect();
    let began = std::time::Instant::now();
    let (done, ran) = crossbeam_channel::unbounded();
    while began.elapsed() < 3 * TURN {
        let done = done.clone();
        let job: Job = Box::new(move |lease| {
            done.send(()).unwrap();
            lease
        });
        live.engine.post_blocking(ShardSet::from_slice(&[0]), job);
        ran.recv_timeout(Duration::from_secs(30)).expect("the job runs");
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(held);
}

/// Jobs that never cease keep nothing from expiring.
#[test]
fn a_sweep_goes_on_beside_a_stream_of_jobs() {
    fn post(engine: &Arc<Engine>, until: Arc<AtomicBool>) {
        let weak = Arc::downgrade(engine);
        let job: Job = Box::new(move |lease| {
            if let Some(engine) = weak.upgrade().filter(|_| !until.load(Ordering::Relaxed)) {
                post(&engine, until);
            }
            lease
        });
        engine.post_blocking(ShardSet::from_slice(&[0]), job);
    }
    let live = Live::new(|_| ());
    let ns = live.engine.first_names().id(NAMES[0]).unwrap();
    let ended = Arc::new(AtomicBool::new(false));
    post(&live.engine, ended.clone());
    let due_ms = now_ms() + 1;
    for n in 0..1000u32 {
        live.engine.transact(&[0], 1, |txn| txn.put_string(ns, &n.to_be_bytes(), b"v", due_ms)).unwrap();
    }
    wait_for(&|| live.engine.shards.at(0).core().count(ns) == 0);
    ended.store(true, Ordering::Relaxed);
}

#[test]
fn a_log_that_has_passed_its_size_is_flushed_away() {
    let live = Live::new(|options| options.log_limit = 64 << 10);
    let flushed = live.flushed();
    // The same key again and again: little is dirty, but the log grows.
    for n in 0..20 {
        live.put("k", &[n; 8 << 10]);
    }
    assert!(live.engine.dirty_bytes() < 1 << 20);
    wait(&flushed);
    assert!(live.engine.log.size_bytes() < 160 << 10);
}

#[test]
fn a_dirty_budget_used_by_half_is_flushed() {
    let live = Live::new(|options| options.dirty_budget = 256 << 10);
    let flushed = live.flushed();
    for n in 0..20 {
        live.put(&format!("k{n}"), &[n; 8 << 10]);
    }
    wait(&flushed);
}

/// It looks after the store once a second: who had it flush only then would take a minute for these.
#[test]
fn the_flusher_is_woken_when_a_flush_is_due() {
    let live = Live::new(|options| options.dirty_budget = 64 << 10);
    let end = std::time::Instant::now() + Duration::from_secs(30);
    for round in 0..60 {
        let flushed = live.flushed();
        for n in 0..8 {
            live.put(&format!("k{n}"), &[round; 8 << 10]);
        }
        flushed.recv_deadline(end).expect("the flusher flushes");
    }
}

#[test]
fn rule_6_a_poisoned_segment_is_flushed_away() {
    let live = Live::new(|_| ());
    live.put("k", b"v");
    let lsn = live.engine.log.last();
    let flushed = live.flushed();
    live.sim.fail(Op::Sync, 0, 1, libc::EIO);
    // Either this sync fails or the log thread's, a moment before.
    let _ = live.engine.log.sync_to(lsn);
    wait(&flushed);
    assert!(live.engine.log.is_healthy() && live.engine.log.synced() >= lsn);
}

#[test]
fn a_flush_that_fails_is_tried_again() {
    let live = Live::new(|_| ());
    live.put("k", b"v");
    let flushed = live.flushed();
    live.sim.fail(Op::Create, 0, 1, libc::ENOSPC);
    let (sender, failed) = crossbeam_channel::unbounded();
    live.sim.at(Moment::After(Op::Create), move || sender.send(()).unwrap_or(()));
    live.engine.ask_flush();
    wait(&failed);
    live.engine.ask_flush();
    wait(&flushed);
    assert!(live.engine.is_flushing() || !live.engine.flush_fails());
    assert_eq!(live.engine.stats.flush_errors.load(Ordering::Relaxed), 1);
}

/// What the store holds needs no log.
#[test]
fn a_log_that_cannot_be_closed_loses_nothing_behind_a_last_flush() {
    for flushes in [true, false] {
        let live = Live::new(|_| ());
        live.put("k", b"v");
        let sim = live.sim.clone();
        let fail = move || sim.fail(Op::Sync, 0, u64::MAX, libc::EIO);
        match flushes {
            true => live.sim.at(Moment::Step("flush.deleted"), fail),
            false => fail(),
        }
        assert_eq!(live.engine.close(flushes).is_ok(), flushes);
    }
}

/// Deletes are small in the log, what they delete may be large: it does not wait for the end of the longer time.
#[test]
fn a_log_worth_a_flush_is_flushed_within_a_minute_without_writes() {
    let live = Live::new(|_| ());
    let ago = |seconds| std::time::Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap();
    live.put("k", b"v");
    assert!(!live.engine.needs_flush(ago(100)), "so little waits");
    assert!(live.engine.needs_flush(ago(210)));
    for n in 0..3 {
        live.put("k", &[n; 8 << 10]);
    }
    assert!(!live.engine.needs_flush(ago(50)));
    assert!(live.engine.needs_flush(ago(70)));
    live.engine.flush().unwrap();
    assert!(!live.engine.needs_flush(ago(1000)), "and then no more");
}

/// What was deleted gives its space back soon, whether anybody writes or not. There is one flush for it, and not one after the other.
#[test]
fn what_is_dead_is_flushed_for_once() {
    let mut world = World::new(1, Fsync::No);
    let engine = world.engine().clone();
    let needs = || engine.needs_flush(std::time::Instant::now().checked_sub(Duration::from_secs(1)).unwrap());
    world.put(NAMES[0], b"k", &big(1), 0);
    world.flush();
    world.delete(NAMES[0], b"k");
    assert!(!needs());
    world.turns(1);
    assert!(needs());
    world.flush();
    world.turns(3);
    assert!(!needs());
}

/// Where keys are evicted the log is short; where the room that is left is less than what it takes it goes, once a second.
#[test]
fn a_log_that_takes_up_the_room_that_is_left_is_flushed_away() {
    let mut world = World::new(1, Fsync::No);
    let engine = world.engine().clone();
    let ago = |ms| std::time::Instant::now().checked_sub(Duration::from_millis(ms)).unwrap();
    (0..3).for_each(|n| world.put(NAMES[0], b"k", &[n; 8 << 10], 0));
    let needs = |limit: u64, policy: Option<Policy>| {
        engine.disk.limit(limit, 0);
        engine.eviction.set(policy, 5);
        engine.look_at_disk();
        [10, 1100].map(|ms| engine.needs_flush(ago(ms)))
    };
    let by_chance = Some(Policy { volatile: false, by: By::Chance });
    assert_eq!(needs(0, by_chance), [false; 2]);
    assert_eq!(needs(engine.disk_bytes() + 100, None), [false, true]);
    assert_eq!(needs(1 << 20, by_chance), [false; 2]);
    assert_eq!(needs(256 << 10, None), [false; 2]);
    assert_eq!(needs(256 << 10, by_chance), [true; 2]);
    world.flush();
    for limit in [engine.disk_bytes(), 256 << 10] {
        assert_eq!(needs(limit, by_chance), [false; 2], "there is nothing to be flushed");
    }
}

/// What is dirty cannot leave memory: where a table is beyond its budget a flush begins for it, once a second.
#[test]
fn a_table_beyond_its_budget_is_flushed_for() {
    let mut world = World::new(1, Fsync::No);
    let engine = world.engine().clone();
    let ago = |ms| std::time::Instant::now().checked_sub(Duration::from_millis(ms)).unwrap();
    (0..3).for_each(|n| world.put(NAMES[0], &[n], &[n; 8 << 10], 0));
    let bytes: usize = engine.shards.iter().map(|shard| shard.table_bytes()).sum();
    let needs = |budget: usize| {
        engine.table_limit.store(budget as u64, Ordering::Relaxed);
        [10, 1100].map(|ms| engine.needs_flush(ago(ms)))
    };
    assert_eq!(needs(bytes), [false; 2]);
    assert_eq!(needs(bytes / 2), [false, true]);
    world.flush();
    assert_eq!(needs(bytes / 2), [false; 2], "what is clean goes without one");
}

#[test]
fn what_is_told_of_flushes_is_of_the_last() {
    let mut world = World::new(2, Fsync::No);
    let engine = world.engine().clone();
    let failed = || engine.stats.failed_in_a_row.load(Ordering::Relaxed);
    (0..10).for_each(|n| world.put(NAMES[0], &[n], b"v", 0));
    for times in 1..3 {
        world.sim.fail_step(Some(("flush.synced", libc::EIO)));
        assert!(engine.flush().is_err());
        world.sim.fail_step(None);
        assert!(engine.store.health().is_ok(), "others go to the store meanwhile");
        let told = engine.flushing();
        assert_eq!((failed(), engine.flush_fails()), (times, true));
        assert_eq!((told.running, told.since_ms, told.brought, told.count), (false, 0, 0, 0));
    }
    for (count, brings) in [(1, 10..100), (2, 1..10)] {
        let (sender, receiver) = crossbeam_channel::unbounded();
        let other = engine.clone();
        world.sim.at(Moment::Step("flush.stored"), move || sender.send(other.flushing()).unwrap());
        world.flush();
        let told = receiver.recv().unwrap();
        assert!(told.running && told.since_ms > 0 && brings.contains(&told.brought), "{told:?}");
        let told = engine.flushing();
        assert_eq!((failed(), engine.flush_fails()), (0, false));
        assert_eq!((told.asked, told.running, told.since_ms, told.brought, told.count), (false, false, 0, 0, count));
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        assert_eq!(load(&engine.stats.log_base_bytes), engine.log.size_bytes());
        assert!(load(&engine.stats.last_flush_ms) > 0 && told.last_us <= load(&engine.stats.flush_us));
        world.put(NAMES[0], b"one more", b"v", 0);
    }
}

/// Each of its threads goes through shards of its own; what one of them could not bring is as dirty as before.
#[test]
fn a_flush_on_several_threads_brings_every_shard() {
    let mut world = World::new(5, Fsync::No);
    world.options.flush_threads = 3;
    world.crash(None);
    let engine = world.engine().clone();
    for n in 0..200 {
        world.put(NAMES[0], format!("k{n}").as_bytes(), b"v", 0);
    }
    let dirty = |engine: &Engine| engine.shards.iter().filter(|shard| shard.core().dirty_bytes > 0).count();
    assert_eq!(dirty(&engine), 5);
    let fails = |world: &World| {
        world.sim.fail_step(Some(("flush.synced", libc::EIO)));
        assert!(engine.flush().is_err());
        world.sim.fail_step(None);
        engine.mend_store();
    };
    fails(&world);
    assert_eq!((dirty(&engine), engine.stats.flushes.load(Ordering::Relaxed)), (5, 0));
    world.verify();
    engine.flush().unwrap();
    assert_eq!((dirty(&engine), engine.stats.flushes.load(Ordering::Relaxed)), (0, 1));
    // Of a thread that fails alone the flush knows as well.
    let key = (0..).map(|n| format!("k{n}")).find(|key| engine.router.shard_of(key.as_bytes()) == 2).unwrap();
    world.put(NAMES[0], key.as_bytes(), b"w", 0);
    fails(&world);
    assert_eq!((dirty(&engine), engine.stats.flushes.load(Ordering::Relaxed)), (1, 1));
    drop(engine);
    world.crash(None);
    world.verify();
    world.audit();
}
