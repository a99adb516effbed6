//! Rule 6: failed writes and failed syncs.

use super::*;
use crate::log::noted;
use crate::log::read::CHUNK;
use crate::log::sim::{Moment, Op};

#[test]
fn rule_6_a_failed_write_is_cut_off_kept_and_written_again_with_its_lsns() {
    for (keep, errno, text) in [
        (0, libc::ENOSPC, "No space left on device"),
        (1, libc::ENOSPC, "No space left on device"),
        (60, libc::EIO, "Input/output error"),
    ] {
        let sim = SimIo::new();
        let (log, waiter) = with_records(&sim, Fsync::EverySec, 2);
        let before = sim.contents(&path(1)).unwrap();
        sim.fail_short(0, 3, keep, errno);
        assert_eq!(add(&log, waiter), 3);
        assert_eq!((log.acked(), log.written(), log.is_healthy()), (2, 2, false));
        assert_eq!(log.health().as_deref(), Some(text));
        assert!(!log.status().write_ok);
        assert_eq!(sim.contents(&path(1)).unwrap(), before, "cut back to the last whole frame");

        // Others join the buffer, none tries to write: that is the log thread's.
        let operations = sim.operations();
        add(&log, waiter);
        assert_eq!((log.acked(), sim.operations()), (2, operations));
        log.core.turn(false);
        assert!(!log.is_healthy(), "it fails again");
        sim.heal();
        log.core.turn(false);
        assert_eq!((log.acked(), log.health()), (4, None));
        assert_eq!(assert_sequence(&reopen(&sim.process_crash(), Fsync::No).unwrap().1, 1), 4);
    }
}

#[test]
fn rule_6_what_could_not_be_cut_is_cut_before_the_next_write() {
    let sim = SimIo::new();
    let (log, waiter) = with_records(&sim, Fsync::EverySec, 1);
    let whole = sim.contents(&path(1)).unwrap().len();
    sim.fail_short(0, 2, 33, libc::EIO);
    sim.fail(Op::Truncate, 0, 2, libc::EIO);
    add(&log, waiter);
    assert_eq!(sim.contents(&path(1)).unwrap().len(), whole + 33);
    assert!(log.rotate().is_err(), "a torn end must not stay inside the log");
    assert_eq!(log.status().segments, 1);
    sim.heal();
    log.core.turn(false);
    assert_eq!(log.acked(), 2);
    assert_eq!(assert_sequence(&reopen(&sim.process_crash(), Fsync::No).unwrap().1, 1), 2);
}

#[test]
fn rule_6_a_full_disk_resumes_by_itself_when_there_is_room() {
    let sim = SimIo::new();
    let options = Options { retry: std::time::Duration::from_millis(1), ..Options::new(dir(), Fsync::EverySec) };
    let (log, mut replay) = Log::open(Arc::new(sim.clone()), &options).unwrap();
    assert!(replay.next_record().unwrap().is_none());
    log.start(replay).unwrap();
    let (sender, receiver) = crossbeam_channel::unbounded();
    let waiter = log.register(Box::new(move || sender.send(()).unwrap_or(())));
    sim.set_capacity(Some(1000));
    let mut last = 0;
    while log.is_healthy() {
        last = add(&log, waiter);
    }
    assert_eq!(log.health().as_deref(), Some("No space left on device"));
    assert!(sim.contents(&path(1)).unwrap().len() <= 1000 && log.acked() == last - 1);
    assert!(log.commit_for(last, waiter) < last);
    sim.set_capacity(None);
    while log.commit_for(last, waiter) < last || !log.is_healthy() {
        receiver.recv_timeout(std::time::Duration::from_secs(10)).expect("woken when service resumes");
    }
    log.close().unwrap();
    assert_eq!(assert_sequence(&reopen(&sim, Fsync::No).unwrap().1, 1), last);
}

#[test]
fn rule_6_waiters_hear_of_failure_and_of_recovery() {
    let sim = SimIo::new();
    let (log, _) = with_records(&sim, Fsync::EverySec, 1);
    let (waiter, woken) = counting(&log);
    sim.fail(Op::Write, 0, 1, libc::EIO);
    add(&log, waiter);
    assert_eq!(woken.load(Ordering::SeqCst), 0, "the one who committed sees it himself");
    let (other, other_woken) = counting(&log);
    assert_eq!(log.commit_for(2, other), 1);
    log.core.turn(false);
    assert_eq!((woken.load(Ordering::SeqCst), other_woken.load(Ordering::SeqCst), log.acked()), (1, 1, 2));
    add(&log, waiter);
    assert_eq!(woken.load(Ordering::SeqCst), 1, "no waiting, no waking");
}

/// Nothing else would wake them: their replies would hang where they are to be errors.
#[test]
fn rule_6_waiters_hear_of_the_failure_of_another() {
    // The thread syncs what they have committed.
    let sim = SimIo::new();
    let (log, _) = with_records(&sim, Fsync::Always, 0);
    let (waiter, woken) = counting(&log);
    assert_eq!((add(&log, waiter), log.acked(), woken.load(Ordering::SeqCst)), (1, 0, 0));
    sim.fail(Op::Sync, 0, 1, libc::EIO);
    log.core.turn(true);
    assert_eq!((log.acked(), log.is_healthy(), woken.load(Ordering::SeqCst)), (0, false, 1));
    log.delete_before(log.rotate().unwrap()).unwrap();
    assert_eq!((log.acked(), log.is_healthy(), woken.load(Ordering::SeqCst)), (1, true, 2));

    // Another committer is writing, and fails.
    let sim = SimIo::new();
    let (log, waiter) = with_records(&sim, Fsync::EverySec, 1);
    let (other, woken) = counting(&log);
    let log = Arc::new(log);
    sim.fail(Op::Write, 0, 1, libc::EIO);
    let late = log.clone();
    sim.at(Moment::Before(Op::Write), move || assert_eq!((add(&late, other), late.acked()), (3, 1)));
    assert_eq!(add(&log, waiter), 2);
    assert_eq!((log.acked(), log.is_healthy(), woken.load(Ordering::SeqCst)), (1, false, 1));
    log.core.turn(false);
    assert_eq!((log.acked(), log.is_healthy()), (3, true));
    assert!(woken.load(Ordering::SeqCst) > 1);
}

#[test]
fn rule_6_after_a_failed_sync_nothing_is_acknowledged_until_flushed_and_rotated() {
    for fsync in [Fsync::Always, Fsync::EverySec] {
        let sim = SimIo::new();
        let (log, waiter) = with_records(&sim, fsync, 2);
        log.core.turn(true);
        assert_eq!((log.acked(), log.synced()), (2, 2));
        add(&log, waiter);
        let acked = log.acked();
        sim.fail(Op::Sync, 0, 1, libc::EIO);
        log.core.turn(true);
        assert!(log.needs_flush() && !log.is_healthy() && !log.status().sync_ok);
        assert_eq!(log.health().as_deref(), Some("Input/output error"));
        assert_eq!((log.acked(), log.synced()), (acked, 2));

        // Nothing more goes to that segment, no later sync counts, rule 1 is not served from it.
        let (late, woken) = counting(&log);
        let before = sim.contents(&path(1)).unwrap();
        assert_eq!((add(&log, late), log.acked()), (4, acked));
        log.core.turn(true);
        assert!(log.sync_to(3).is_err());
        assert_eq!((sim.contents(&path(1)).unwrap(), log.acked()), (before, acked));

        // An ordinary flush.
        let boundary = log.rotate().unwrap();
        assert_eq!(boundary.first_lsn(), 4);
        log.core.turn(true);
        log.sync_to(4).unwrap();
        assert_eq!((log.written(), log.acked(), log.synced()), (4, acked, 2));
        assert!(!log.is_healthy() && woken.load(Ordering::SeqCst) == 0);
        log.delete_before(boundary).unwrap();
        assert!(log.is_healthy() && !log.needs_flush() && log.status().sync_ok);
        assert_eq!((log.acked(), log.synced(), woken.load(Ordering::SeqCst)), (4, 4, 1));
        assert_eq!(assert_sequence(&reopen(&sim.power_loss(1), fsync).unwrap().1, 4), 4);
    }
}

#[test]
fn rule_6_a_failed_sync_of_the_old_segment_or_directory_poisons_the_new_one_too() {
    for (op, skip, empty) in
        [(Op::Sync, 2, false), (Op::Sync, 2, true), (Op::SyncDir, 0, true), (Op::SyncDir, 0, false)]
    {
        let sim = SimIo::new();
        let (log, waiter) = with_records(&sim, Fsync::EverySec, 2);
        sim.fail(op, skip, 1, libc::EIO);
        assert!(log.rotate().is_err());
        assert!(log.needs_flush());
        if !empty {
            append(&log);
        }
        assert_eq!((log.status().segments, log.acked()), (2, 2));
        // What was there before has been synced before the switch.
        assert_eq!(log.sync_to(if empty { 2 } else { 3 }).is_ok(), empty);
        let boundary = log.rotate().unwrap();
        assert_eq!((boundary.first_lsn(), log.status().segments), (3, 2), "the empty one was replaced");
        log.delete_before(boundary).unwrap();
        assert!(log.is_healthy());
        assert_eq!(log.size_bytes(), sim.contents(&path(3)).unwrap().len() as u64);
        let last = add(&log, waiter);
        log.sync_to(last).unwrap();
        assert_eq!((log.acked(), log.synced()), (last, last));
        assert_eq!(assert_sequence(&reopen(&sim.power_loss(3), Fsync::No).unwrap().1, 3), last);
    }
}

#[test]
fn rule_6_a_second_failed_sync_begins_anew() {
    let sim = SimIo::new();
    let (log, waiter) = with_records(&sim, Fsync::EverySec, 2);
    sim.fail(Op::Sync, 0, 1, libc::EIO);
    log.core.turn(true);
    let first = log.rotate().unwrap();
    add(&log, waiter);
    sim.fail(Op::Sync, 0, 1, libc::EIO);
    assert!(log.sync_to(3).is_err());
    log.delete_before(first).unwrap();
    assert!(log.needs_flush() && log.acked() == 2, "the newer segment is poisoned as well");
    let second = log.rotate().unwrap();
    log.delete_before(second).unwrap();
    assert_eq!((log.is_healthy(), log.acked(), log.synced()), (true, 3, 3));
}

#[test]
fn rule_1_a_flush_during_replay_syncs_what_was_read() {
    let sim = SimIo::new();
    with_records(&sim, Fsync::No, 3);
    let sim = sim.process_crash();
    let (log, mut replay) = Log::open(Arc::new(sim.clone()), &Options::new(dir(), Fsync::No)).unwrap();
    assert_eq!(replay.next_record().unwrap().unwrap().0, 1);
    assert!(!log.is_healthy() && log.acked() == 0);
    log.sync_to(1).unwrap();
    assert_eq!(reopen(&sim.power_loss(5), Fsync::No).unwrap().1.len(), 3);
}

#[test]
fn rule_1_a_start_syncs_what_it_read() {
    let sim = SimIo::new();
    with_records(&sim, Fsync::No, 3);
    for seed in 0..30 {
        let next = sim.process_crash();
        let (log, records) = reopen(&next, Fsync::Always).unwrap();
        assert_eq!((records.len(), log.acked(), log.synced()), (3, 3, 3));
        assert_eq!(reopen(&next.power_loss(seed), Fsync::No).unwrap().1.len(), 3);
    }
}

/// However few records there are that no frame proves to be synced.
#[test]
fn rule_6_a_start_makes_good_a_sync_that_failed_before_the_crash() {
    for unproven in 1..=3 {
        let base = SimIo::new();
        let (log, waiter) = with_records(&base, Fsync::EverySec, 3);
        log.sync_to(3).unwrap();
        for _ in 0..unproven {
            log.append(|lsn, out| out.resize(out.len() + 9000, lsn as u8));
        }
        log.commit_for(3 + unproven, waiter);
        base.fail(Op::Sync, 0, 1, libc::EIO);
        log.core.turn(true);
        assert!(log.needs_flush());
        for seed in 0..30 {
            let sim = base.process_crash();
            let (log, records) = reopen(&sim, Fsync::No).unwrap();
            assert_eq!((records.len() as u64, log.synced()), (3 + unproven, 3 + unproven));
            let kept = reopen(&sim.power_loss(seed), Fsync::No).unwrap().1.len() as u64;
            assert_eq!(kept, 3 + unproven, "{unproven} unproven, seed {seed}");
        }
    }
}

/// The proof ends deep in the first segment; those behind it are written again from their own beginnings.
#[test]
fn rule_6_a_start_makes_good_the_failed_syncs_of_several_segments() {
    let base = SimIo::new();
    let (log, waiter) = with_records(&base, Fsync::EverySec, 1);
    let proven = log.append(|_, out| out.resize(out.len() + CHUNK, 0));
    log.commit_for(proven, waiter);
    log.sync_to(proven).unwrap();
    for segment in 0..3 {
        if segment > 0 {
            log.rotate().unwrap();
        }
        add(&log, waiter);
        let last = add(&log, waiter);
        base.fail(Op::Sync, 0, 1, libc::EIO);
        assert!(log.sync_to(last).is_err());
    }
    assert_eq!((log.status().segments, log.synced(), log.last()), (3, proven, 8));
    for seed in 0..30 {
        let sim = base.process_crash();
        let (log, records) = reopen(&sim, Fsync::No).unwrap();
        assert_eq!((records.len(), log.synced()), (8, 8));
        assert_eq!(reopen(&sim.power_loss(seed), Fsync::No).unwrap().1.len(), 8, "seed {seed}");
    }
}

/// Nothing else would write it, where nobody writes any more: a log that is cut then would pass for whole.
#[test]
fn a_note_of_what_was_synced_that_failed_is_written_by_the_next_turn() {
    for op in [Op::Create, Op::Write] {
        let (sim, note) = (SimIo::new(), Path::new("SYNCED"));
        let options = Options { note: Some(note.into()), ..Options::new(dir(), Fsync::EverySec) };
        let (log, _) = reopen_with(&sim, &options).unwrap();
        let waiter = log.register(Box::new(|| {}));
        add(&log, waiter);
        sim.fail(op, 0, 1, libc::EIO);
        log.core.turn(true);
        assert_eq!((log.synced(), log.is_healthy()), (1, true));
        assert_eq!(noted(&sim, note, 0).unwrap(), 0);
        log.core.turn(true);
        assert_eq!(noted(&sim, note, 0).unwrap(), 1);
    }
}
