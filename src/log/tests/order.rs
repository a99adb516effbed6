//! Orders of two threads' calls that the simulated disk forces. There is no log thread but where a test is about it: it would
//! heal what is stranded.

use std::time::Duration;

use super::*;
use crate::log::sim::{Moment, Op};
use crate::log::writer::MUCH;

/// A log with `n` records that a hook of the disk can use.
fn shared(sim: &SimIo, fsync: Fsync, n: u64) -> (Arc<Log>, WaiterId) {
    let (log, waiter) = with_records(sim, fsync, n);
    (Arc::new(log), waiter)
}

/// A log with its thread.
fn live(sim: &SimIo, fsync: Fsync, sync_interval: Duration) -> Log {
    started(sim, &Options { sync_interval, ..Options::new(dir(), fsync) })
}

fn started(sim: &SimIo, options: &Options) -> Log {
    let (log, mut replay) = Log::open(Arc::new(sim.clone()), options).unwrap();
    assert!(replay.next_record().unwrap().is_none());
    log.start(replay).unwrap();
    log
}

/// Waits for something that must come.
fn await_event<T>(receiver: &crossbeam_channel::Receiver<T>) -> T {
    receiver.recv_timeout(Duration::from_secs(20)).expect("it must come")
}

/// Tells of the next call of this kind.
fn event(sim: &SimIo, moment: Moment) -> crossbeam_channel::Receiver<()> {
    let (sender, receiver) = crossbeam_channel::unbounded();
    sim.at(moment, move || sender.send(()).unwrap_or(()));
    receiver
}

#[test]
fn a_commit_that_comes_while_a_writer_finds_nothing_is_not_stranded() {
    let (log, waiter) = with_records(&SimIo::new(), Fsync::EverySec, 0);
    append(&log);
    log.core.want(1);
    let mut turns = 0;
    log.core.drive_with(|writer| {
        turns += 1;
        if turns > 1 {
            return log.core.write_out(writer);
        }
        // What was wanted has been written in the last moment, so there is nothing. Before the lock is free again another
        // commit finds it taken, and leaves.
        assert_eq!(add(&log, waiter), 2);
        assert_eq!(log.written(), 0);
        drop(writer);
        Ok(false)
    });
    assert_eq!((log.written(), log.acked(), turns), (2, 2, 2));
}

#[test]
fn a_commit_during_any_hold_of_the_writers_lock_is_not_stranded() {
    let (log, waiter) = with_records(&SimIo::new(), Fsync::EverySec, 0);
    log.core.with_writer(|_writer| {
        add(&log, waiter);
        assert_eq!(log.written(), 0, "the lock is taken");
    });
    assert_eq!((log.written(), log.acked()), (1, 1));
}

#[test]
fn a_commit_during_a_rotation_that_fails_is_not_stranded() {
    let sim = SimIo::new();
    let (log, waiter) = shared(&sim, Fsync::EverySec, 1);
    sim.fail(Op::Rename, 0, 1, libc::EIO);
    let other = log.clone();
    sim.at(Moment::Before(Op::Rename), move || assert_eq!((add(&other, waiter), other.written()), (2, 1)));
    assert!(log.rotate().is_err());
    assert_eq!((log.written(), log.acked()), (2, 2));
}

#[test]
fn a_committer_that_has_done_its_share_leaves_the_rest_to_the_log_thread() {
    let sim = SimIo::new();
    let log = live(&sim, Fsync::No, Duration::from_secs(3600));
    append(&log);
    log.core.want(1);
    let (mut turns, mut written) = (0, None);
    log.core.drive_with(|writer| {
        turns += 1;
        // Others commit all the time.
        let result = log.core.write_out(writer);
        log.core.want(append(&log));
        written = Some(event(&sim, Moment::After(Op::Write)));
        result
    });
    assert!((2..10).contains(&turns), "{turns} turns");
    await_event(&written.unwrap());
}

/// Who has committed much is a thread that serves others.
#[test]
fn a_committer_leaves_to_the_log_thread_what_is_much() {
    let sim = SimIo::new();
    let log = live(&sim, Fsync::No, Duration::from_secs(3600));
    let written_here = |sizes: &[usize], syncs: bool| {
        let (sender, receiver) = crossbeam_channel::unbounded();
        sim.at(Moment::Before(Op::Write), move || sender.send(std::thread::current().id()).unwrap_or(()));
        let last = sizes.iter().map(|size| log.append_large(vec![7; *size])).last().unwrap();
        log.core.sync_running.store(syncs, Ordering::Release);
        log.commit(last);
        let here = await_event(&receiver) == std::thread::current().id();
        log.core.sync_running.store(false, Ordering::Release);
        log.sync_to(last).unwrap();
        here
    };
    assert!(written_here(&[MUCH - 1], false));
    assert!(!written_here(&[MUCH], false));
    assert!(!written_here(&[MUCH / 2, MUCH / 2], false), "together");
    assert!(written_here(&[MUCH / 2], false), "what has been written counts no more");
    assert!(written_here(&[MUCH], true), "the log thread would come to it after the sync");
}

/// Nor does it write what is much where each reply waits for a sync, and none runs.
#[test]
fn a_committer_leaves_what_is_much_to_the_log_thread_before_its_sync() {
    let sim = SimIo::new();
    let log = live(&sim, Fsync::Always, Duration::from_secs(3600));
    while !log.core.has_thread.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
    let (sender, receiver) = crossbeam_channel::unbounded();
    sim.at(Moment::Before(Op::Write), move || sender.send(std::thread::current().id()).unwrap_or(()));
    log.commit(log.append_large(vec![7; MUCH]));
    assert_ne!(await_event(&receiver), std::thread::current().id());
    log.close().unwrap();
}

/// Where each reply waits for a sync the log thread writes all that has come by then at one go; what is much, and would wait for it
/// in memory while it syncs, its committers.
#[test]
fn what_waits_for_a_sync_is_written_at_one_go_before_it() {
    for (fsync, size, syncs, writes) in [
        (Fsync::Always, 8, false, 1),
        (Fsync::Always, 8, true, 1),
        (Fsync::Always, MUCH / 4, true, 2),
        (Fsync::EverySec, 8, false, 6),
        (Fsync::No, 8, true, 6),
    ] {
        let sim = SimIo::new();
        let (log, waiter) = with_records(&sim, fsync, 0);
        // As long as this test runs it is the log thread.
        log.core.has_thread.store(true, Ordering::Release);
        log.core.sync_running.store(syncs, Ordering::Release);
        for _ in 0..6 {
            let lsn = log.append(|_, out| out.resize(out.len() + size, 7));
            log.commit_for(lsn, waiter);
        }
        log.core.sync_running.store(false, Ordering::Release);
        log.core.turn(false);
        // Each write begins a frame.
        let io: Arc<dyn crate::log::Io> = Arc::new(sim.clone());
        let report = crate::log::scan(&io, dir(), crate::log::Origin::default()).unwrap();
        assert_eq!((log.written(), report.segments[0].frames), (6, writes), "{fsync:?} {size}");
        assert!(fsync != Fsync::Always || log.acked() == 6);
    }
}

/// What is committed while the log thread waits for another's sync is in the one that it makes then.
#[test]
fn what_comes_while_another_sync_is_waited_for_is_in_the_next() {
    let sim = SimIo::new();
    let (log, waiter) = shared(&sim, Fsync::Always, 1);
    log.core.has_thread.store(true, Ordering::Release);
    let other = log.clone();
    let (begin, begun) = crossbeam_channel::unbounded();
    // A flush syncs. The log thread has written, and waits for that to end.
    sim.at(Moment::Before(Op::Sync), move || {
        let thread = other.clone();
        let turn = std::thread::spawn(move || {
            begin.send(()).unwrap_or(());
            thread.core.turn(false);
        });
        drop(turn);
        std::thread::sleep(Duration::from_millis(50));
        add(&other, waiter);
    });
    log.sync_to(1).unwrap();
    await_event(&begun);
    let synced = || log.synced() == 2;
    (0..1_000).take_while(|_| !synced()).for_each(|_| std::thread::sleep(Duration::from_millis(5)));
    assert!(synced(), "one turn");
}

/// Who makes replies wait for no sync any more does not have them wait for the one that runs.
#[test]
fn what_was_left_to_the_log_thread_is_written_when_no_reply_waits_for_it() {
    let sim = SimIo::new();
    let (log, waiter) = with_records(&sim, Fsync::Always, 0);
    log.core.has_thread.store(true, Ordering::Release);
    assert_eq!((add(&log, waiter), log.written()), (1, 0));
    log.set_fsync(Fsync::EverySec);
    assert_eq!((log.written(), log.acked()), (1, 1));
}

#[test]
fn rule_6_what_is_written_during_a_sync_is_not_synced() {
    for fsync in [Fsync::Always, Fsync::EverySec] {
        let sim = SimIo::new();
        let (log, waiter) = shared(&sim, fsync, 1);
        let other = log.clone();
        // The disk has all it is to have; the log thread has yet to hear of it.
        sim.at(Moment::After(Op::Sync), move || {
            add(&other, waiter);
            assert_eq!((other.written(), other.synced()), (2, 0));
            assert_eq!(other.acked(), if fsync == Fsync::Always { 0 } else { 2 });
            assert!(other.status().sync_running);
        });
        log.core.turn(true);
        assert_eq!((log.written(), log.synced()), (2, 1));
        assert_eq!(log.acked(), if fsync == Fsync::Always { 1 } else { 2 });
        let left: Vec<_> = (0..40).map(|seed| reopen(&sim.power_loss(seed), fsync).unwrap().0.last()).collect();
        assert!(left.contains(&1) && left.contains(&2), "record 2 may be lost, record 1 may not: {left:?}");
        log.core.turn(true);
        assert_eq!((log.acked(), log.synced()), (2, 2));
    }
}

#[test]
fn rule_1_a_flush_waits_for_a_sync_of_its_own_records() {
    let sim = SimIo::new();
    let (log, waiter) = shared(&sim, Fsync::EverySec, 1);
    let other = log.clone();
    let (sender, flushed) = crossbeam_channel::unbounded();
    // The sync under way is of record 1. A flush has gathered record 2, and it waits behind that sync.
    let (begin, begun) = crossbeam_channel::unbounded();
    sim.at(Moment::After(Op::Sync), move || {
        let lsn = add(&other, waiter);
        let second = other.clone();
        std::thread::spawn(move || {
            begin.send(()).unwrap_or(());
            sender.send(second.sync_to(lsn).map(|()| second.synced())).unwrap_or(());
        });
    });
    log.core.turn(true);
    await_event(&begun);
    assert_eq!(await_event(&flushed).unwrap(), 2);
    assert!((0..20).all(|seed| reopen(&sim.power_loss(seed), Fsync::No).unwrap().0.last() == 2));
}

#[test]
fn the_log_thread_syncs_by_itself() {
    for (fsync, interval) in [(Fsync::Always, 3_600_000), (Fsync::EverySec, 1)] {
        let sim = SimIo::new();
        let log = live(&sim, fsync, Duration::from_millis(interval));
        let (sender, woken) = crossbeam_channel::unbounded();
        let waiter = log.register(Box::new(move || sender.send(()).unwrap_or(())));
        for round in 1..=3 {
            let synced = event(&sim, Moment::After(Op::Sync));
            assert_eq!(add(&log, waiter), round);
            await_event(&synced);
            while fsync == Fsync::Always && log.acked() < round {
                await_event(&woken);
            }
        }
        log.close().unwrap();
    }
}

#[test]
fn the_log_thread_ends_with_its_log() {
    let io = Arc::new(SimIo::new());
    let (log, mut replay) = Log::open(io.clone(), &Options::new(dir(), Fsync::EverySec)).unwrap();
    assert!(replay.next_record().unwrap().is_none());
    log.start(replay).unwrap();
    assert!(Arc::strong_count(&io) > 1);
    drop(log);
    assert_eq!(Arc::strong_count(&io), 1);
}

#[test]
fn the_log_thread_tries_a_failed_write_again_by_itself() {
    let sim = SimIo::new();
    let options = Options { sync_interval: Duration::from_secs(3600), ..Options::new(dir(), Fsync::No) };
    let log = started(&sim, &Options { retry: Duration::from_millis(1), ..options });
    let (sender, woken) = crossbeam_channel::unbounded();
    let waiter = log.register(Box::new(move || sender.send(()).unwrap_or(())));
    // Again and again: the thread must be told also when it sleeps already.
    for round in 1..=50 {
        sim.fail(Op::Write, 0, 2, libc::ENOSPC);
        let lsn = append(&log);
        while log.commit_for(lsn, waiter) < lsn {
            await_event(&woken);
        }
        assert_eq!(log.written(), round);
    }
}

#[test]
fn rule_14_a_rotation_during_a_sync_of_the_directory_is_synced_after_it() {
    let sim = SimIo::new();
    let (log, waiter) = shared(&sim, Fsync::EverySec, 1);
    // The rotation stands before its renaming until a sync has synced the directory without it.
    let (arrive, arrived) = crossbeam_channel::unbounded();
    let (release, released) = crossbeam_channel::unbounded::<()>();
    sim.at(Moment::Before(Op::Rename), move || {
        arrive.send(()).unwrap_or(());
        released.recv_timeout(Duration::from_secs(20)).unwrap_or(());
    });
    let other = log.clone();
    let rotation = std::thread::spawn(move || other.rotate());
    await_event(&arrived);
    let renamed = event(&sim, Moment::Step("log.rotate.switched"));
    sim.at(Moment::After(Op::SyncDir), move || {
        release.send(()).unwrap_or(());
        await_event(&renamed);
    });
    log.core.publish(|state| state.dir_dirty = true);
    log.core.sync(0).unwrap();
    assert_eq!(rotation.join().unwrap().unwrap().first_lsn(), 2);
    assert_eq!(add(&log, waiter), 2);
    log.sync_to(2).unwrap();
    for seed in 0..40 {
        assert_eq!(reopen(&sim.power_loss(seed), Fsync::No).unwrap().0.last(), 2, "seed {seed}");
    }
}
