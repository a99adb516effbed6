//! Rule 4: what is tail and may be cut, what is damage and must not.

use super::*;
use crate::log::Damage;
use crate::log::format::{FRAME_HEADER, FRAME_MAGIC, SEGMENT_HEADER, encode_segment_header};
use crate::log::read::CHUNK;
use crate::log::segment::ROOM;
use crate::log::sim::Op;
use crate::log::{Io, Origin, scan};

/// Offsets of the frames of records 1 to `n` when each is a frame of its own, and the end.
fn frames(n: u64) -> Vec<usize> {
    let mut at = SEGMENT_HEADER;
    let mut offsets = vec![at];
    for lsn in 1..=n {
        at += FRAME_HEADER + 2 + content(lsn).len();
        offsets.push(at);
    }
    offsets
}

fn damaged(result: Result<(Log, Records), OpenError>) -> Damage {
    match result {
        Err(OpenError::Damaged(damage)) => *damage,
        Err(other) => panic!("{other}"),
        Ok((_, records)) => panic!("opened with {} records", records.len()),
    }
}

fn disk(bytes: &[u8]) -> SimIo {
    let sim = SimIo::new();
    sim.put(&path(1), bytes);
    sim
}

#[test]
fn rule_4_a_tail_torn_at_any_byte_is_cut_and_the_log_goes_on() {
    let sim = SimIo::new();
    with_records(&sim, Fsync::No, 5);
    let bytes = sim.contents(&path(1)).unwrap();
    let offsets = frames(5);
    assert_eq!(bytes.len(), offsets[5]);
    for end in offsets[4]..offsets[5] {
        let sim = disk(&bytes[..end]);
        let (log, records) = reopen(&sim, Fsync::No).unwrap();
        assert_eq!(assert_sequence(&records, 1), 4, "cut at {end}");
        assert_eq!(sim.contents(&path(1)).unwrap().len(), offsets[4]);
        let waiter = log.register(Box::new(|| {}));
        assert_eq!(add(&log, waiter), 5);
        let (_, records) = reopen(&sim.process_crash(), Fsync::No).unwrap();
        assert_eq!(assert_sequence(&records, 1), 5);
    }
}

/// Under `always` zeros are written ahead. They end a segment, whichever it is, as its last byte would, and a start cuts
/// them off: nobody appends behind them.
#[test]
fn rule_4_room_ahead_of_the_frames_is_no_damage() {
    let sim = SimIo::new();
    let (log, waiter) = with_records(&sim, Fsync::Always, 5);
    log.core.turn(false);
    let end = frames(5)[5];
    assert_eq!(sim.contents(&path(1)).unwrap().len(), end + ROOM as usize);
    (6..=20).for_each(|lsn| assert_eq!(add(&log, waiter), lsn));
    log.core.turn(false);
    assert!(sim.contents(&path(1)).unwrap().len() > frames(20)[20] + ROOM as usize / 2, "more of it in time");
    log.rotate().unwrap();
    assert_eq!(add(&log, waiter), 21);
    log.core.turn(false);
    for fsync in [Fsync::Always, Fsync::EverySec] {
        let sim = sim.process_crash();
        let whole = scan(&(Arc::new(sim.clone()) as Arc<dyn Io>), dir(), Origin::default()).unwrap();
        assert!(whole.damage.is_none() && whole.last == 21);
        let (log, records) = reopen(&sim, fsync).unwrap();
        assert_eq!(assert_sequence(&records, 1), 21);
        assert_eq!(sim.contents(&path(1)).unwrap().len(), frames(20)[20]);
        let waiter = log.register(Box::new(|| {}));
        assert_eq!(add(&log, waiter), 22);
        let (_, records) = reopen(&sim.process_crash(), fsync).unwrap();
        assert_eq!(assert_sequence(&records, 1), 22);
    }
}

/// Nobody writes more of them ahead: something else has come in the place of records.
#[test]
fn rule_4_more_zeros_than_are_written_ahead_are_damage_in_front_of_another_segment() {
    let sim = SimIo::new();
    let (log, waiter) = with_records(&sim, Fsync::No, 3);
    log.rotate().unwrap();
    assert_eq!(add(&log, waiter), 4);
    let sim = sim.process_crash();
    let bytes = sim.contents(&path(1)).unwrap();
    for (zeros, is_damage) in [(ROOM, false), (ROOM + 1, true)] {
        sim.put(&path(1), &[&bytes[..], &vec![0; zeros as usize]].concat());
        let report = scan(&(Arc::new(sim.clone()) as Arc<dyn Io>), dir(), Origin::default()).unwrap();
        assert_eq!(report.damage.is_some(), is_damage, "{zeros} zeros");
    }
}

/// With a write that failed the room is cut off, too.
#[test]
fn rule_6_there_is_room_again_after_a_failed_write() {
    let sim = SimIo::new();
    let (log, waiter) = with_records(&sim, Fsync::Always, 3);
    log.core.turn(false);
    sim.fail(Op::Write, 0, 1, libc::EIO);
    add(&log, waiter);
    assert_eq!(sim.contents(&path(1)).unwrap().len(), frames(3)[3]);
    sim.heal();
    (0..2).for_each(|_| log.core.turn(false));
    assert_eq!(log.synced(), 4);
    assert!(sim.contents(&path(1)).unwrap().len() > frames(4)[4] + ROOM as usize / 2);
}

/// What is appended behind the room of a segment that is the last one by a cut would never be found again.
#[test]
fn rule_4_room_is_cut_off_also_where_a_cut_makes_its_segment_the_last() {
    let sim = SimIo::new();
    let (log, waiter) = with_records(&sim, Fsync::Always, 3);
    log.core.turn(false);
    log.rotate().unwrap();
    assert_eq!(add(&log, waiter), 4);
    let sim = sim.process_crash();
    // All of the second segment goes, as it does not follow.
    let bytes = sim.contents(&path(4)).unwrap();
    sim.remove(&path(4)).unwrap();
    sim.put(&path(6), &bytes[..SEGMENT_HEADER]);
    let (log, records) = reopen(&sim, Fsync::EverySec).unwrap();
    assert_eq!(assert_sequence(&records, 1), 3);
    let waiter = log.register(Box::new(|| {}));
    assert_eq!(add(&log, waiter), 4);
    let (_, records) = reopen(&sim.process_crash(), Fsync::EverySec).unwrap();
    assert_eq!(assert_sequence(&records, 1), 4);
}

#[test]
fn rule_4_zeros_and_garbage_behind_the_last_frame_are_tail() {
    let sim = SimIo::new();
    with_records(&sim, Fsync::No, 3);
    let bytes = sim.contents(&path(1)).unwrap();
    for garbage in [&[0; 5000][..], &[0xf5; 77], b"\xf5TF\x1a", &bytes[SEGMENT_HEADER..]] {
        let mut longer = bytes.clone();
        longer.extend_from_slice(garbage);
        let (_, records) = reopen(&disk(&longer), Fsync::No).unwrap();
        assert_eq!(assert_sequence(&records, 1), 3);
    }
}

#[test]
fn rule_4_a_flipped_bit_below_the_synced_lsn_is_refused_with_path_and_offset() {
    let sim = SimIo::new();
    let (log, waiter) = with_records(&sim, Fsync::No, 4);
    log.sync_to(4).unwrap();
    add(&log, waiter);
    let bytes = sim.contents(&path(1)).unwrap();
    let offsets = frames(5);
    for at in SEGMENT_HEADER..offsets[4] {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        let damage = damaged(reopen(&disk(&flipped), Fsync::No));
        let frame = offsets.partition_point(|&offset| offset <= at) - 1;
        assert_eq!((damage.path.clone(), damage.offset), (path(1), offsets[frame] as u64), "bit flipped at {at}");
        assert_eq!((damage.lsn, damage.lost.last), (frame as u64 + 1, 5));
    }
}

#[test]
fn rule_4_a_flipped_bit_above_the_synced_lsn_is_tail() {
    let sim = SimIo::new();
    let (log, waiter) = with_records(&sim, Fsync::No, 2);
    log.sync_to(2).unwrap();
    for _ in 0..3 {
        add(&log, waiter);
    }
    let mut bytes = sim.contents(&path(1)).unwrap();
    bytes[frames(5)[3] + 60] ^= 4;
    let sim = disk(&bytes);
    let (_, records) = reopen(&sim, Fsync::No).unwrap();
    assert_eq!(assert_sequence(&records, 1), 3, "record 4 was not known to be synced, 5 goes with it");
    assert_eq!(sim.contents(&path(1)).unwrap().len(), frames(3)[3]);
}

#[test]
fn rule_4_a_frame_that_is_damaged_itself_proves_what_its_header_says() {
    let sim = SimIo::new();
    let (log, waiter) = with_records(&sim, Fsync::No, 3);
    log.sync_to(3).unwrap();
    add(&log, waiter);
    let bytes = sim.contents(&path(1)).unwrap();
    let offsets = frames(4);
    // Only frame 4 was written after the sync. Of it the header is whole, and its records are not, or not all there.
    let mut torn = bytes[..offsets[4] - 1].to_vec();
    let mut flipped = bytes;
    for bytes in [&mut torn, &mut flipped] {
        bytes[offsets[1] + FRAME_HEADER + 3] ^= 1;
    }
    flipped[offsets[3] + FRAME_HEADER + 3] ^= 1;
    for bytes in [torn, flipped] {
        let damage = damaged(reopen(&disk(&bytes), Fsync::No));
        assert_eq!((damage.offset, damage.lsn, damage.lost.last), (offsets[1] as u64, 2, 3));
    }
}

/// The log is searched piece by piece: the magic of the frame that proves the damage may lie over a border.
#[test]
fn rule_4_a_proof_over_the_border_of_two_pieces_is_found() {
    for before_border in 0..=FRAME_MAGIC.len() {
        let sim = SimIo::new();
        let (log, waiter) = with_records(&sim, Fsync::No, 1);
        // Record 2 is a frame that ends so many bytes before the border. Its length takes three of them.
        let size_bytes = CHUNK - before_border - FRAME_HEADER - 3;
        let lsn = log.append(|_, out| out.resize(out.len() + size_bytes, 0));
        log.commit_for(lsn, waiter);
        log.sync_to(lsn).unwrap();
        assert_eq!(sim.contents(&path(1)).unwrap().len(), frames(1)[1] + CHUNK - before_border);
        add(&log, waiter);
        let mut bytes = sim.contents(&path(1)).unwrap();
        bytes[frames(1)[1]] ^= 1;
        let damage = damaged(reopen(&disk(&bytes), Fsync::No));
        assert_eq!((damage.lsn, damage.lost.last), (2, 3), "{before_border} bytes before the border");
    }
}

#[test]
fn rule_4_a_clean_close_proves_the_last_record() {
    let sim = SimIo::new();
    let (log, _) = with_records(&sim, Fsync::No, 3);
    log.close().unwrap();
    let mut bytes = sim.contents(&path(1)).unwrap();
    let (log, records) = reopen(&sim, Fsync::No).unwrap();
    assert_eq!((assert_sequence(&records, 1), append(&log)), (3, 4), "the mark is no record");
    bytes[frames(3)[2] + 50] ^= 1;
    assert_eq!(damaged(reopen(&disk(&bytes), Fsync::No)).lsn, 3);
}

#[test]
fn rule_4_a_missing_segment_is_tail_or_damage_as_the_synced_lsn_says() {
    for synced in [false, true] {
        let sim = SimIo::new();
        let (log, waiter) = with_records(&sim, Fsync::No, 2);
        let second = log.rotate().unwrap().first_lsn();
        let synced_before = log.synced();
        add(&log, waiter);
        if synced {
            log.sync_to(3).unwrap();
        }
        assert_eq!((second, synced_before), (3, 2));
        // Without a rotation's sync between them: frame 4 knows 3 only if it was synced above.
        sim.put(&path(4), &encode_and_move(&sim, &log, waiter));
        let sim_without = SimIo::new();
        sim_without.put(&path(1), &sim.contents(&path(1)).unwrap());
        sim_without.put(&path(4), &sim.contents(&path(4)).unwrap());
        let result = reopen(&sim_without, Fsync::No);
        if synced {
            let damage = damaged(result);
            assert_eq!((damage.path, damage.offset, damage.lsn), (path(4), 0, 3));
        } else {
            assert_eq!(assert_sequence(&result.unwrap().1, 1), 2);
            assert!(sim_without.contents(&path(4)).is_none(), "later segments go with the tail");
        }
    }
}

/// Adds record 4 to segment 3 and answers a segment with that frame alone.
fn encode_and_move(sim: &SimIo, log: &Log, waiter: WaiterId) -> Vec<u8> {
    let before = sim.contents(&path(3)).unwrap().len();
    add(log, waiter);
    let bytes = sim.contents(&path(3)).unwrap();
    [&bytes[..SEGMENT_HEADER], &bytes[before..]].concat()
}

#[test]
fn rule_4_a_frame_stored_as_a_value_proves_nothing() {
    let foreign = SimIo::new();
    let (log, _) = with_records(&foreign, Fsync::No, 9);
    log.close().unwrap();
    let stored = foreign.contents(&path(1)).unwrap();

    let sim = SimIo::new();
    let (log, waiter) = with_records(&sim, Fsync::No, 1);
    let lsn = log.append(|_, out| out.extend_from_slice(&stored));
    log.commit_for(lsn, waiter);
    let mut bytes = sim.contents(&path(1)).unwrap();
    bytes[frames(1)[1] + FRAME_HEADER] ^= 1;
    assert_eq!(assert_sequence(&reopen(&disk(&bytes), Fsync::No).unwrap().1, 1), 1);
}

#[test]
fn rule_4_a_damaged_segment_header_is_refused() {
    let sim = SimIo::new();
    with_records(&sim, Fsync::No, 2);
    let bytes = sim.contents(&path(1)).unwrap();
    for end in [0, 7, 39] {
        assert_eq!(damaged(reopen(&disk(&bytes[..end]), Fsync::No)).offset, 0);
    }
    for at in 0..SEGMENT_HEADER {
        let mut flipped = bytes.clone();
        flipped[at] ^= 0x10;
        assert_eq!(damaged(reopen(&disk(&flipped), Fsync::No)).offset, 0);
    }
}

#[test]
fn rule_4_another_format_version_is_named() {
    let mut header = encode_segment_header(0, 1);
    header[8] = 4;
    let check = xxhash_rust::xxh3::xxh3_64(&header[..32]);
    header[32..].copy_from_slice(&check.to_le_bytes());
    let error = reopen(&disk(&header), Fsync::No).err().unwrap().to_string();
    assert_eq!(error, "log: log/0000000000000001.log has format version 4, this binary knows 3");
}

#[test]
fn rule_4_a_read_error_is_no_tail() {
    let sim = SimIo::new();
    with_records(&sim, Fsync::No, 2);
    let next = sim.process_crash();
    next.fail(crate::log::sim::Op::Read, 1, 1, libc::EIO);
    assert!(matches!(reopen(&next, Fsync::No), Err(OpenError::Io { .. })));
    assert_eq!(reopen(&next, Fsync::No).unwrap().1.len(), 2);
}

#[test]
fn rule_4_a_start_that_crashes_while_it_cuts_is_done_again() {
    let base = SimIo::new();
    let (log, waiter) = with_records(&base, Fsync::No, 3);
    base.fail(crate::log::sim::Op::Sync, 1, u64::MAX, libc::EIO);
    for first in [4, 6] {
        // A rotation whose syncs fail leaves the segment in use and unsynced.
        let _ = log.rotate();
        assert!(base.contents(&path(first)).is_some());
        log.core.publish(|state| state.poison = None);
        base.heal();
        add(&log, waiter);
        add(&log, waiter);
        base.fail(crate::log::sim::Op::Sync, 1, u64::MAX, libc::EIO);
    }
    drop(log);
    let mut bytes = base.contents(&path(1)).unwrap();
    bytes.truncate(frames(3)[3] - 1);
    base.put(&path(1), &bytes);
    base.heal();
    let mut n = 0;
    loop {
        let sim = base.process_crash();
        sim.crash_at(n);
        let done = reopen(&sim, Fsync::No).is_ok();
        for seed in 0..20 {
            let (log, records) = reopen(&sim.power_loss(seed), Fsync::No).unwrap();
            assert_eq!(assert_sequence(&records, 1), 2, "crash at operation {n}, seed {seed}");
            assert_eq!(append(&log), 3);
        }
        if done {
            break;
        }
        n += 1;
    }
    assert!(n > 6, "{n} operations");
}
