//! `scan` and `repair`.

use proptest::prelude::*;

use super::*;
use crate::log::format::SEGMENT_HEADER;
use crate::log::sim::segment_of;
use crate::log::{Io, Origin, Repair, Report};

fn io(sim: &SimIo) -> Arc<dyn Io> {
    Arc::new(sim.clone())
}

fn scan(io: &Arc<dyn Io>, dir: &Path) -> Result<Report, OpenError> {
    crate::log::scan(io, dir, Origin::default())
}

fn repair(io: &Arc<dyn Io>, dir: &Path) -> Result<Option<Repair>, OpenError> {
    crate::log::repair(io, dir, Origin::default())
}

/// Three segments with two records each, all proven by a clean close.
fn closed() -> SimIo {
    let sim = SimIo::new();
    let (log, waiter) = with_records(&sim, Fsync::No, 2);
    for _ in 0..2 {
        log.rotate().unwrap();
        add(&log, waiter);
        add(&log, waiter);
    }
    log.close().unwrap();
    sim
}

#[test]
fn a_whole_log_is_described() {
    let report = scan(&io(&closed()), dir()).unwrap();
    assert_eq!((report.last, report.synced, &report.damage), (6, 6, &None));
    let counts: Vec<_> = report.segments.iter().map(|s| (s.first, s.frames, s.records)).collect();
    assert_eq!(counts, [(1, 2, 2), (3, 2, 2), (5, 3, 2)]);
    assert!(report.segments.iter().all(|s| s.size_bytes > SEGMENT_HEADER as u64));
    assert!(repair(&io(&closed()), dir()).unwrap().is_none());
}

#[test]
fn a_damaged_middle_is_described_and_cut_on_demand() {
    let sim = closed();
    let mut bytes = sim.contents(&path(3)).unwrap();
    let size_bytes = bytes.len() as u64;
    bytes[SEGMENT_HEADER + 48 + 5] ^= 1;
    sim.put(&path(3), &bytes);
    let last_segment_bytes = sim.contents(&path(5)).unwrap().len() as u64 - SEGMENT_HEADER as u64;

    let operations = sim.operations();
    let damage = scan(&io(&sim), dir()).unwrap().damage.unwrap();
    assert_eq!(sim.operations(), operations, "a scan changes nothing");
    assert_eq!(
        (damage.path.clone(), damage.offset, damage.lsn, damage.proven),
        (path(3), SEGMENT_HEADER as u64, 3, true)
    );
    assert_eq!((damage.lost.segments, damage.lost.records, damage.lost.last), (1, 3, 6));
    assert_eq!(damage.lost.size_bytes, size_bytes - SEGMENT_HEADER as u64 + last_segment_bytes);
    assert!(reopen(&sim, Fsync::No).is_err());

    assert_eq!(repair(&io(&sim), dir()).unwrap().unwrap().damage, damage);
    assert_eq!(scan(&io(&sim), dir()).unwrap().damage, None);
    for seed in 0..5 {
        let (log, records) = reopen(&sim.power_loss(seed), Fsync::No).unwrap();
        assert_eq!((assert_sequence(&records, 1), append(&log)), (2, 3));
    }
}

#[test]
fn what_a_repair_has_cut_does_not_come_back() {
    let sim = SimIo::new();
    let (log, waiter) = with_records(&sim, Fsync::No, 3);
    log.sync_to(3).unwrap();
    add(&log, waiter);
    log.close().unwrap();
    let mut bytes = sim.contents(&path(1)).unwrap();
    // In the first of four frames: those behind it prove that it was synced.
    bytes[32 + 48 + 5] ^= 1;
    sim.put(&path(1), &bytes);
    repair(&io(&sim), dir()).unwrap().unwrap();
    for seed in 0..40 {
        assert_eq!(reopen(&sim.power_loss(seed), Fsync::No).unwrap().0.last(), 0, "seed {seed}");
    }
}

#[test]
fn a_clean_close_is_proven_also_after_a_power_loss() {
    let sim = closed();
    for seed in 0..40 {
        assert_eq!(scan(&io(&sim.power_loss(seed)), dir()).unwrap().synced, 6, "seed {seed}");
    }
}

#[test]
fn a_repair_of_a_damaged_header_keeps_the_count() {
    for (first, left) in [(1, 0), (3, 2), (5, 4)] {
        let sim = closed();
        let mut bytes = sim.contents(&path(first)).unwrap();
        bytes[20] ^= 1;
        sim.put(&path(first), &bytes);
        let damage = scan(&io(&sim), dir()).unwrap().damage.unwrap();
        assert_eq!((damage.offset, damage.lsn, damage.proven), (0, first, true));
        // What cannot be read goes all the same, and is told.
        assert!(damage.lost.segments >= 1 && damage.lost.size_bytes >= bytes.len() as u64, "{:?}", damage.lost);
        repair(&io(&sim), dir()).unwrap().unwrap();
        let (log, records) = reopen(&sim, Fsync::No).unwrap();
        assert_eq!((records.len() as u64, log.last()), (left, left));
    }

    // The same when it is the only segment and LSNs have gone before.
    let sim = SimIo::new();
    sim.put(&path(77), b"");
    repair(&io(&sim), dir()).unwrap().unwrap();
    assert_eq!(append(&reopen(&sim, Fsync::No).unwrap().0), 77);
}

#[test]
fn an_interrupted_repair_can_be_done_again() {
    let base = closed();
    let mut bytes = base.contents(&path(1)).unwrap();
    bytes[40] ^= 1;
    base.put(&path(1), &bytes);
    for n in 0.. {
        let sim = base.process_crash();
        sim.crash_at(n);
        let done = repair(&io(&sim), dir()).is_ok();
        let sim = sim.power_loss(n);
        repair(&io(&sim), dir()).unwrap();
        assert_eq!(reopen(&sim, Fsync::No).unwrap().0.last(), 0, "operation {n}");
        if done {
            assert!(n > 5);
            break;
        }
    }
}

/// What the fuzz target asserts, too: no panic, and a cut log holds what was read before the damage.
fn assert_readable(segment: &[u8]) {
    let sim = SimIo::new();
    sim.put(&path(1), segment);
    let before = scan(&io(&sim), dir()).unwrap();
    repair(&io(&sim), dir()).unwrap();
    let after = scan(&io(&sim), dir()).unwrap();
    assert_eq!((after.damage, after.last, after.synced), (None, before.last, before.synced));
    assert_eq!(reopen(&sim, Fsync::No).unwrap().1.len() as u64, before.last);
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), count in 0_u32..4) {
        assert_readable(&bytes);
        if let Some(segment) = segment_of(&bytes, count) {
            assert_readable(&segment);
        }
        let begun = [&segment_of(&[], 0).unwrap()[..], &bytes].concat();
        assert_readable(&begun);
    }

    #[test]
    fn changed_bytes_are_read_without_panic(at in SEGMENT_HEADER..600, byte: u8, len in 0_usize..60) {
        let sim = SimIo::new();
        with_records(&sim, Fsync::No, 6);
        let mut bytes = sim.contents(&path(1)).unwrap();
        let end = bytes.len().min(at + len);
        bytes[at.min(end)..end].fill(byte);
        assert_readable(&bytes);
    }
}
