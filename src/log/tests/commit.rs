//! Acknowledgement and group commit.

use std::thread;
use std::time::Duration;

use super::*;

#[test]
fn one_write_takes_everything_appended_so_far() {
    let sim = SimIo::new();
    let (log, waiter) = with_records(&sim, Fsync::EverySec, 0);
    for _ in 0..100 {
        append(&log);
    }
    assert_eq!((log.last(), log.written(), log.acked()), (100, 0, 0));
    let operations = sim.operations();
    assert_eq!(log.commit_for(3, waiter), 100);
    assert_eq!(sim.operations() - operations, 1);
    assert_eq!(log.size_bytes(), sim.contents(&path(1)).unwrap().len() as u64);
    assert_eq!(assert_sequence(&reopen(&sim.process_crash(), Fsync::No).unwrap().1, 1), 100);
}

#[test]
fn a_huge_commit_leaves_no_huge_buffer_and_a_small_one_its_own() {
    let (log, waiter) = with_records(&SimIo::new(), Fsync::EverySec, 10);
    let small = log.core.buffer_bytes();
    assert!(small > 0, "nobody allocates for every commit");
    for _ in 0..2 {
        let last = log.append(|_, out| out.resize(out.len() + (20 << 20), 7));
        assert!(log.core.buffer_bytes() > 20 << 20);
        assert_eq!(log.commit_for(last, waiter), last);
        assert!(log.core.buffer_bytes() < 1 << 20, "{} bytes", log.core.buffer_bytes());
    }
}

#[test]
fn everysec_acknowledges_what_is_written_always_what_is_synced() {
    let sim = SimIo::new();
    let (log, _) = with_records(&sim, Fsync::EverySec, 2);
    assert_eq!((log.acked(), log.written(), log.synced()), (2, 2, 0));
    log.core.turn(false);
    assert_eq!(log.synced(), 0, "the second is not over");
    log.core.turn(true);
    assert_eq!(log.synced(), 2);

    let sim = SimIo::new();
    let (log, _) = with_records(&sim, Fsync::Always, 1);
    let (waiter, woken) = counting(&log);
    assert_eq!(log.commit_for(1, waiter), 0);
    assert_eq!(add(&log, waiter), 2);
    assert_eq!((log.acked(), log.written(), log.synced(), woken.load(Ordering::SeqCst)), (0, 2, 0, 0));
    let operations = sim.operations();
    log.core.turn(false);
    assert_eq!((log.acked(), log.synced(), woken.load(Ordering::SeqCst)), (2, 2, 1));
    assert_eq!(sim.operations() - operations, 3, "room ahead, a step, and one sync for both");
    assert_eq!(add(&log, waiter), 3);
    let operations = sim.operations();
    log.core.turn(false);
    assert_eq!((log.synced(), sim.operations() - operations), (3, 2), "there is room");

    let (log, _) = with_records(&SimIo::new(), Fsync::No, 1);
    log.core.turn(true);
    assert_eq!((log.acked(), log.synced()), (1, 0));
}

#[test]
fn a_change_of_policy_moves_what_waits_and_takes_nothing_back() {
    let (log, _) = with_records(&SimIo::new(), Fsync::Always, 1);
    let (waiter, woken) = counting(&log);
    assert_eq!(log.commit_for(1, waiter), 0);
    log.set_fsync(Fsync::EverySec);
    assert_eq!((log.acked(), woken.load(Ordering::SeqCst)), (1, 1));
    add(&log, waiter);
    log.set_fsync(Fsync::Always);
    assert_eq!((log.acked(), log.synced()), (2, 0), "acknowledged stays acknowledged");
    add(&log, waiter);
    assert_eq!((log.acked(), woken.load(Ordering::SeqCst)), (2, 1));
    log.core.turn(false);
    assert_eq!((log.acked(), log.synced(), woken.load(Ordering::SeqCst)), (3, 3, 2));
}

#[test]
fn a_waiter_that_left_is_not_woken_and_its_place_is_used_again() {
    let (log, _) = with_records(&SimIo::new(), Fsync::Always, 1);
    let (waiter, woken) = counting(&log);
    log.commit_for(1, waiter);
    log.unregister(waiter);
    log.unregister(waiter);
    log.core.turn(false);
    assert_eq!((log.acked(), woken.load(Ordering::SeqCst)), (1, 0));
    let (next, woken) = counting(&log);
    assert_eq!(next, waiter);
    add(&log, next);
    log.core.turn(false);
    assert_eq!((log.acked(), woken.load(Ordering::SeqCst)), (2, 1));
}

/// It is taken over, and written from where it stands: nobody who appends waits for a copy of it.
#[test]
fn a_large_record_is_not_copied() {
    let sim = SimIo::new();
    let (log, waiter) = with_records(&sim, Fsync::EverySec, 1);
    let before = log.core.buffer_bytes();
    for lsn in 2..=9 {
        let lsn = if lsn % 3 == 0 { append(&log) } else { log.append_large(content(lsn)) };
        assert_eq!(log.last(), lsn);
    }
    log.append_large(vec![7; 10 << 20]);
    assert!(log.core.buffer_bytes() < before + 4096);
    assert!(log.commit_for(10, waiter) < 10, "it is much");
    log.core.turn(false);
    assert_eq!(log.acked(), 10);
    assert_eq!(append(&log), 11);
    log.commit_for(11, waiter);
    let size_bytes = sim.contents(&path(1)).unwrap().len() as u64;
    assert_eq!(log.size_bytes(), size_bytes);
    let (_, mut records) = reopen(&sim.process_crash(), Fsync::EverySec).unwrap();
    assert!(records[9].1.len() == 10 << 20 && records[9].1.iter().all(|byte| *byte == 7));
    records[9].1 = content(10);
    assert_eq!(assert_sequence(&records, 1), 11);
}

/// Whether it was copied into the buffer or taken over: who watches how much the log has still to write is told of both.
#[test]
fn all_that_is_still_to_be_written_is_told_of() {
    let sim = SimIo::new();
    let (log, waiter) = with_records(&sim, Fsync::EverySec, 1);
    for large in [false, true] {
        let before = log.size_bytes();
        append(&log);
        if large {
            log.append_large(vec![7; crate::log::LARGE]);
        }
        let (last, buffered) = (append(&log), log.status().buffered_bytes);
        log.commit_for(last, waiter);
        assert_eq!((buffered, log.status().buffered_bytes), (log.size_bytes() - before, 0), "large {large}");
    }
}

#[test]
fn big_batches_become_frames_of_bounded_size() {
    let sim = SimIo::new();
    let (log, waiter) = with_records(&sim, Fsync::No, 0);
    let sizes: Vec<usize> = (0..40).map(|i| if i == 20 { 5 << 20 } else { 100_000 }).collect();
    for &size_bytes in &sizes {
        log.append(|lsn, out| out.resize(out.len() + size_bytes, lsn as u8));
    }
    log.commit_for(40, waiter);
    let report =
        crate::log::scan(&(Arc::new(sim.clone()) as Arc<dyn crate::log::Io>), dir(), crate::log::Origin::default())
            .unwrap();
    assert!((4..=6).contains(&report.segments[0].frames), "{report:?}");
    let (_, records) = reopen(&sim, Fsync::No).unwrap();
    assert_eq!(records.iter().map(|(_, bytes)| bytes.len()).collect::<Vec<_>>(), sizes);
    assert!(records.iter().all(|(lsn, bytes)| bytes.iter().all(|&b| b == *lsn as u8)));
}

#[test]
fn a_record_whose_writer_panics_leaves_nothing() {
    let sim = SimIo::new();
    let (log, waiter) = with_records(&sim, Fsync::No, 1);
    let panics = std::panic::AssertUnwindSafe(|| {
        log.append(|_, out| {
            out.push(1);
            panic!("half a record")
        })
    });
    assert!(std::panic::catch_unwind(panics).is_err());
    assert_eq!(add(&log, waiter), 2);
    assert_eq!(assert_sequence(&reopen(&sim, Fsync::No).unwrap().1, 1), 2);
}

/// Many threads append and commit; each waits for every one of its commits to be acknowledged.
fn nothing_is_stranded(fsync: Fsync, per_thread: u64) {
    const THREADS: u64 = 8;
    let sim = SimIo::new();
    let (log, mut replay) = Log::open(Arc::new(sim.clone()), &Options::new(dir(), fsync)).unwrap();
    assert!(replay.next_record().unwrap().is_none());
    log.start(replay).unwrap();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let (sender, receiver) = crossbeam_channel::unbounded();
                let waiter = log.register(Box::new(move || sender.send(()).unwrap_or(())));
                for _ in 0..per_thread {
                    let lsn = append(&log);
                    if log.commit_for(lsn, waiter) < lsn {
                        while log.acked() < lsn {
                            receiver.recv_timeout(Duration::from_secs(20)).expect("stranded");
                        }
                    }
                    assert!(if fsync == Fsync::Always { log.synced() } else { log.written() } >= lsn);
                }
                log.unregister(waiter);
            });
        }
        scope.spawn(|| {
            for _ in 0..20 {
                let boundary = log.rotate().unwrap();
                log.sync_to(boundary.first_lsn() - 1).unwrap();
                thread::yield_now();
            }
        });
    });
    assert_eq!(log.acked(), THREADS * per_thread);
    log.close().unwrap();
    assert_eq!(assert_sequence(&reopen(&sim.power_loss(0), Fsync::No).unwrap().1, 1), THREADS * per_thread);
}

#[test]
fn group_commit_strands_nobody_everysec() {
    nothing_is_stranded(Fsync::EverySec, 2_000);
}

#[test]
fn group_commit_strands_nobody_always() {
    nothing_is_stranded(Fsync::Always, 1_000);
}

#[test]
fn a_real_disk_works_too() {
    let temp = crate::util::scratch::tempdir().unwrap();
    let options = Options::new(temp.path().join("deep/log"), Fsync::Always);
    let open = || {
        let (log, mut replay) = Log::open(Arc::new(crate::log::RealIo), &options).unwrap();
        let mut records = Vec::new();
        while let Some((lsn, record)) = replay.next_record().unwrap() {
            records.push((lsn, record.to_vec()));
        }
        log.start(replay).unwrap();
        (log, records)
    };
    let (log, _) = open();
    let (sender, receiver) = crossbeam_channel::unbounded();
    let waiter = log.register(Box::new(move || sender.send(()).unwrap_or(())));
    let mut boundary = None;
    for i in 1..=10 {
        let lsn = add(&log, waiter);
        while log.acked() < lsn {
            receiver.recv_timeout(Duration::from_secs(20)).unwrap();
        }
        if i == 4 || i == 7 {
            boundary = Some(log.rotate().unwrap());
        }
        if i == 8 {
            log.delete_before(boundary.unwrap()).unwrap();
        }
    }
    assert_eq!(log.status().segments, 1);
    log.close().unwrap();
    log.close().unwrap();
    assert_eq!(log.health().as_deref(), Some("the log is closed"));
    let (log, records) = open();
    assert_eq!((assert_sequence(&records, 8), log.last()), (10, 10));
}
