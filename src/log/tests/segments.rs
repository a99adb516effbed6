//! Rule 14, the part about segments: created and deleted so that no crash leaves a gap.

use super::*;
use crate::log::sim::Op;

#[test]
fn rule_14_segments_are_deleted_oldest_first_and_one_is_kept() {
    let sim = SimIo::new();
    let (log, waiter) = with_records(&sim, Fsync::No, 2);
    let boundaries: Vec<_> = (0..3)
        .map(|_| {
            let boundary = log.rotate().unwrap();
            add(&log, waiter);
            boundary
        })
        .collect();
    assert_eq!((log.status().segments, log.last()), (4, 5));
    log.delete_before(boundaries[1]).unwrap();
    assert_eq!(log.status().segments, 2);
    log.delete_before(boundaries[0]).unwrap();
    let next = sim.process_crash();
    let (again, records) = reopen(&next, Fsync::No).unwrap();
    assert_eq!(assert_sequence(&records, 4), 5);
    let sizes = [4, 5].map(|first| next.contents(&path(first)).unwrap().len() as u64);
    assert_eq!((again.size_bytes(), again.status().segments), (sizes.iter().sum(), 2), "and is told of by the next");
    log.delete_before(boundaries[2]).unwrap();
    log.delete_before(boundaries[2]).unwrap();
    assert_eq!(log.status().segments, 1);
    assert_eq!(log.size_bytes(), sim.contents(&path(5)).unwrap().len() as u64);
}

#[test]
fn rule_14_an_empty_segment_is_not_rotated_and_keeps_the_count() {
    let sim = SimIo::new();
    let (log, _) = with_records(&sim, Fsync::No, 3);
    let boundary = log.rotate().unwrap();
    assert_eq!(log.rotate().unwrap(), boundary);
    log.delete_before(boundary).unwrap();
    drop(log);
    for seed in 0..10 {
        let (log, records) = reopen(&sim.power_loss(seed), Fsync::No).unwrap();
        assert_eq!((records.len(), log.last(), log.acked(), append(&log)), (0, 3, 3, 4));
    }
}

#[test]
fn rule_14_a_rotation_that_fails_before_the_switch_changes_nothing() {
    for (op, skip) in [(Op::Create, 0), (Op::Write, 0), (Op::Sync, 0), (Op::Rename, 0)] {
        let sim = SimIo::new();
        let (log, waiter) = with_records(&sim, Fsync::EverySec, 2);
        sim.fail(op, skip, 1, libc::ENOSPC);
        assert!(log.rotate().is_err());
        assert!(log.is_healthy() && log.status().segments == 1);
        assert_eq!(add(&log, waiter), 3);
        assert_eq!(log.acked(), 3);
        let boundary = log.rotate().unwrap();
        log.delete_before(boundary).unwrap();
        assert_eq!(add(&log, waiter), 4);
        assert_eq!(assert_sequence(&reopen(&sim.process_crash(), Fsync::No).unwrap().1, 4), 4);
    }
}

#[test]
fn rule_14_what_a_crash_left_of_a_removal_goes_at_the_start() {
    let sim = SimIo::new();
    with_records(&sim, Fsync::No, 1);
    let gone = dir().join("gone.tmp");
    sim.put(&gone, b"half of a segment");
    let (_, records) = reopen(&sim.process_crash(), Fsync::No).unwrap();
    assert_eq!(assert_sequence(&records, 1), 1);
    let sim = sim.process_crash();
    reopen(&sim, Fsync::No).unwrap();
    assert!(sim.contents(&gone).is_none());
}

#[test]
fn rule_14_a_failed_deletion_is_taken_up_again() {
    for op in [Op::Remove, Op::SyncDir] {
        let sim = SimIo::new();
        let (log, waiter) = with_records(&sim, Fsync::No, 2);
        log.rotate().unwrap();
        add(&log, waiter);
        let boundary = log.rotate().unwrap();
        sim.fail(op, 1, 1, libc::EIO);
        assert!(log.delete_before(boundary).is_err());
        assert_eq!(log.status().segments, 2);
        log.delete_before(boundary).unwrap();
        assert_eq!(log.status().segments, 1);
        assert_eq!(reopen(&sim.process_crash(), Fsync::No).unwrap().0.last(), 3);
    }
}

/// A large one is given back piece by piece: not while somebody copies it.
#[test]
fn rule_14_who_has_a_snapshot_reads_segments_that_are_removed() {
    let sim = SimIo::new();
    let (log, waiter) = with_records(&sim, Fsync::No, 200);
    let (before, snapshot) = (sim.contents(&path(1)).unwrap(), log.snapshot().unwrap());
    let boundary = log.rotate().unwrap();
    add(&log, waiter);
    log.delete_before(boundary).unwrap();
    assert!(sim.contents(&path(1)).is_none());
    let mut bytes = Vec::new();
    let read = snapshot.segments[0].read(|some| {
        bytes.extend_from_slice(some);
        std::io::Result::Ok(())
    });
    assert!(read.is_ok() && bytes == before[..bytes.len()], "{read:?}");
    assert!(bytes.len() > 4096, "{}", bytes.len());
}

/// A first start, commits, two rotations, a deletion and a close, ended at every operation.
#[test]
fn rule_14_a_crash_at_any_operation_leaves_a_log_that_opens() {
    for fsync in [Fsync::Always, Fsync::EverySec] {
        let mut n = 0;
        loop {
            let sim = SimIo::new();
            sim.crash_at(n);
            let (acked, deleted, done) = scenario(&sim, fsync);
            for seed in 0..12 {
                let power = seed > 0;
                let next = if power { sim.power_loss(seed) } else { sim.process_crash() };
                let (log, records) = reopen(&next, fsync).unwrap_or_else(|error| panic!("operation {n}: {error}"));
                let first = records.first().map_or(log.last() + 1, |&(lsn, _)| lsn);
                let last = assert_sequence(&records, first);
                assert!(first <= deleted.max(1), "operation {n}: begins at {first}, deleted before {deleted}");
                assert_eq!(last, log.last());
                if !power || fsync == Fsync::Always {
                    assert!(last >= acked, "operation {n}, seed {seed}: {last} of {acked}");
                }
            }
            if done {
                assert!(n > 25, "{n} operations");
                break;
            }
            n += 1;
        }
    }
}

/// Answers what was acknowledged, below which LSN was deleted, and whether it came to its end.
fn scenario(sim: &SimIo, fsync: Fsync) -> (Lsn, Lsn, bool) {
    let Ok((log, _)) = reopen(sim, fsync) else { return (0, 1, false) };
    let waiter = log.register(Box::new(|| {}));
    let mut deleted = 1;
    for round in 0..3 {
        add(&log, waiter);
        append(&log);
        add(&log, waiter);
        log.core.turn(true);
        let Ok(boundary) = log.rotate() else { return (log.acked(), deleted, false) };
        add(&log, waiter);
        log.core.turn(true);
        if round == 1 {
            deleted = boundary.first_lsn();
            if log.delete_before(boundary).is_err() {
                return (log.acked(), deleted, false);
            }
        }
    }
    let done = log.close().is_ok();
    (log.acked(), deleted, done)
}
