//! Random commits, rotations, deletions, failures and changes of policy, ended by a crash or a power loss, with what
//! must hold afterwards. A failing round prints its seed.

use super::*;
use crate::log::noted;
use crate::log::sim::{Op, Rng};

const NOTE: &str = "SYNCED";

struct Round {
    sim: SimIo,
    log: Log,
    waiter: WaiterId,
    /// The owner's store holds everything below.
    stored: Lsn,
    /// The highest LSN that was acknowledged and synced.
    promised: Lsn,
    fsync: Fsync,
    /// What another policy than `always` acknowledged last.
    loose: Lsn,
}

impl Round {
    fn act(&mut self, rng: &mut Rng) {
        match rng.below(100) {
            0..36 => drop(append(&self.log)),
            36..40 => drop(self.log.append_large(content(self.log.last() + 1))),
            40..70 => drop(self.log.commit_for(self.log.last(), self.waiter)),
            70..80 => self.log.core.turn(rng.chance(30)),
            80..84 => self.flush(),
            84..87 => drop(self.log.sync_to(self.log.last())),
            87..89 => {
                if rng.chance(50) {
                    self.log.append(|lsn, out| out.resize(out.len() + 9000, lsn as u8));
                } else {
                    self.log.append_large(vec![(self.log.last() + 1) as u8; 9000]);
                }
            }
            89..92 => self.fail(rng),
            92..96 => self.sim.heal(),
            96..98 => drop(self.log.rotate()),
            _ => {
                let fsyncs = [Fsync::Always, Fsync::EverySec, Fsync::No];
                self.fsync = fsyncs[rng.below(3) as usize];
                self.log.set_fsync(self.fsync);
            }
        }
        if self.log.needs_flush() && rng.chance(50) {
            self.flush();
        }
        let (acked, synced, written) = (self.log.acked(), self.log.synced(), self.log.written());
        assert!(synced <= written && written <= self.log.last() && acked <= written);
        self.promised = self.promised.max(acked.min(synced));
        if self.fsync != Fsync::Always {
            self.loose = acked;
        }
        assert!(acked <= synced.max(self.loose), "always acknowledges what is synced");
    }

    /// The owner's flush; its store is on disk at once.
    fn flush(&mut self) {
        let Ok(boundary) = self.log.rotate() else { return };
        if self.log.sync_to(boundary.first_lsn() - 1).is_err() {
            return;
        }
        self.stored = self.stored.max(boundary.first_lsn());
        let _ = self.log.delete_before(boundary);
    }

    fn fail(&self, rng: &mut Rng) {
        let ops = [Op::Write, Op::Sync, Op::Truncate, Op::Create, Op::Rename, Op::Remove, Op::SyncDir];
        match rng.below(4) {
            0 => self.sim.fail_short(rng.below(2), 1 + rng.below(3), rng.below(300) as usize, libc::ENOSPC),
            1 => self.sim.set_capacity(Some(rng.below(20_000))),
            _ => self.sim.fail(ops[rng.below(7) as usize], rng.below(3), 1 + rng.below(3), libc::EIO),
        }
    }
}

fn begin(sim: SimIo, fsync: Fsync, stored: Lsn) -> (Round, Records) {
    let options = Options { note: Some(NOTE.into()), ..Options::new(dir(), fsync) };
    let (log, records) = reopen_with(&sim, &options).unwrap();
    let waiter = log.register(Box::new(|| {}));
    let promised = log.synced();
    (Round { sim, log, waiter, stored, promised, fsync, loose: promised }, records)
}

/// What the record says must be what its LSN says; big ones are written by `act`.
fn assert_whole(records: &Records, first: Lsn) -> Lsn {
    for (i, (lsn, bytes)) in records.iter().enumerate() {
        assert_eq!(*lsn, first + i as u64, "order");
        let big = bytes.len() == 9000 && bytes.iter().all(|&b| b == *lsn as u8);
        assert!(big || *bytes == content(*lsn), "record {lsn} is torn");
    }
    first + records.len() as u64 - 1
}

/// Answers after how many lives there was a note of what was synced.
fn run(seed: u64, fsync: Option<Fsync>) -> u64 {
    let (mut rng, mut notes) = (Rng(seed), 0);
    let (mut sim, mut stored) = (SimIo::new(), 1);
    for life in 0..4 {
        let begin_with = fsync.unwrap_or([Fsync::Always, Fsync::EverySec, Fsync::No][rng.below(3) as usize]);
        let (mut round, _) = begin(sim, begin_with, stored);
        // In turns, where there is none.
        round.log.core.has_thread.store(rng.chance(50), Ordering::Release);
        if rng.chance(40) {
            round.sim.crash_at(rng.below(120));
        }
        for _ in 0..rng.below(150) {
            round.act(&mut rng);
        }
        let (acked, written, last) = (round.log.acked(), round.log.written(), round.log.last());
        stored = round.stored;
        let power = rng.chance(70);
        sim = if power { round.sim.power_loss(rng.next_u64()) } else { round.sim.process_crash() };
        let promised = if power { round.promised } else { acked };
        drop(round);
        let note = noted(&sim, Path::new(NOTE), 0).unwrap();
        notes += u64::from(note > 0);
        let (log, records) =
            reopen(&sim, Fsync::No).unwrap_or_else(|error| panic!("seed {seed}, life {life}: {error}"));
        let first = records.first().map_or(log.last() + 1, |&(lsn, _)| lsn);
        let read = assert_whole(&records, first);
        assert!(first <= stored, "seed {seed}: {first} deleted, stored {stored}");
        assert!(note <= read, "seed {seed}, life {life}: {note} noted, {read} read, power loss {power}");
        assert!(read >= promised, "seed {seed}, life {life}: {read} of {promised} promised, power loss {power}");
        assert!(read <= last && (power || read >= written));
        assert_eq!(read, log.last());
        if !power {
            assert!(acked <= read);
        }
    }
    notes
}

#[test]
fn rules_4_and_6_hold_in_a_thousand_random_rounds() {
    let notes: u64 = (0..1_000).map(|seed| run(seed, None)).sum();
    assert!(notes > 1_000, "{notes} notes of what was synced");
}

/// Without failures of the disk: `always` loses nothing acknowledged.
#[test]
fn rule_6_always_loses_nothing_acknowledged_by_power_loss() {
    for seed in 0..300 {
        let mut rng = Rng(seed);
        let (mut round, _) = begin(SimIo::new(), Fsync::Always, 1);
        round.log.core.has_thread.store(rng.chance(50), Ordering::Release);
        for _ in 0..rng.below(80) {
            match rng.below(10) {
                0..6 => drop(append(&round.log)),
                6..8 => drop(round.log.commit_for(round.log.last(), round.waiter)),
                8 => round.log.core.turn(false),
                _ => round.flush(),
            }
        }
        let (acked, last) = (round.log.acked(), round.log.last());
        let (log, records) = reopen(&round.sim.power_loss(seed), Fsync::No).unwrap();
        assert_sequence(&records, records.first().map_or(1, |&(lsn, _)| lsn));
        assert!((acked..=last).contains(&log.last()), "seed {seed}: {} of {acked}", log.last());
    }
}
