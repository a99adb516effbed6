//! What is dead in a partition, and the two ways in which its space comes back before fjall would see to it.
//!
//! | way | for | costs |
//! |---|---|---|
//! | [`Partition::drop_tables`] | tables all of whose keys are in ranges that are dead | a new version; nothing is read, nothing rewritten |
//! | [`Partition::compact_dead`] | what tombstones cover, and what the filter drops | reads the partition and writes what lives |
//!
//! fjall compacts when four runs have come in or a level has outgrown its size, and only then: a run of tombstones that no
//! other follows lies over what it covers for ever. So somebody has to ask.
//!
//! # How much is dead
//! Each table says how many records and how many tombstones it has: that survives a restart, and costs nothing. A tombstone
//! is dead, and so is about one record below it, since what fjall never held gets none (rule 3). What it covered may have
//! been far bigger than others are; who knows that says so ([`Partition::note_dead`]), and the greater of both numbers counts.
//!
//! # Why dropping is sound
//! The caller has seen that everything in the ranges is dead, and stays so: no reader is led there, and no record will come.
//! A table that goes may have hidden older copies of its records, in lower levels, or have held the tombstones over them:
//! those copies show again. They are in the ranges as well, so dead as well; who drops tables looks at the ranges once more
//! afterwards, buries what shows there, and only then forgets that they are dead (`shard/memory/garbage.rs`).
//! Records outside the ranges are in none of those tables.
//!
//! The new version is one file, renamed into place: a crash finds the tables or does not. Where fjall does nothing, which it
//! need not tell, they are found again by that look.
//!
//! # Files
//! fjall keeps the versions that name replaced files for readers that have chosen a sequence number and not yet a version,
//! and forgets them when it rotates a memtable, which never happens here (rule 15), or after some ten thousand ranges. All
//! readers here ask for the newest: [`forget_replaced`] may be called at any time. The files go with the last who knows
//! them, which is the partition's own view: see [`Partition::follow`].

use super::error::{Result, StoreError};
use super::partition::Partition;
use crate::codec::key::KeyRange;
use fjall::{AbstractTree, Keyspace, UserKey};
use std::sync::atomic::Ordering;

/// Bytes of whole tables for which they are dropped: a new version of the partition is some files' work.
const DROP_FROM: u64 = if cfg!(test) { 1 } else { 1 << 20 };

/// Dead bytes from which on a partition is compacted for their sake, if they are also such a share of it. A tombstone counts
/// like the record that it covers, and is mostly smaller: what may stay is less than a quarter.
const COMPACT_FROM: u64 = if cfg!(test) { 64 << 10 } else { 1 << 20 };
const COMPACT_SHARE: u64 = 4;
/// The same where there is little room on the disk.
const TIGHT_SHARE: u64 = 8;

/// All sequence numbers are below it: nobody reads an older version of a record.
const NOBODY: u64 = u64::MAX;

/// What the tables of one version hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bulk {
    /// Bytes of the files.
    pub bytes: u64,
    /// Records, tombstones among them.
    pub records: u64,
    /// Tombstones.
    pub tombstones: u64,
}

impl Bulk {
    /// Of fjall's tables.
    pub(super) fn add(&mut self, bytes: u64, records: u64, tombstones: u64) {
        self.bytes += bytes;
        self.records += records;
        self.tombstones += tombstones;
    }

    /// Bytes of what tombstones cover, about: of as many records as there are tombstones, which mostly are small beside them.
    fn covered_bytes(&self) -> u64 {
        let others = self.records.saturating_sub(self.tombstones);
        let covered = self.tombstones.min(others);
        (u128::from(self.bytes) * u128::from(covered) / u128::from(others.max(1))) as u64
    }

    /// Bytes of tombstones and what they cover, about.
    fn dead_bytes(&self) -> u64 {
        let dead = (2 * self.tombstones).min(self.records);
        (u128::from(self.bytes) * u128::from(dead) / u128::from(self.records.max(1))) as u64
    }
}

/// Where the tables of a version begin and end.
pub struct Tables(pub(super) Vec<(UserKey, UserKey, u64)>);

impl Tables {
    fn of(keyspace: &Keyspace) -> Tables {
        let version = keyspace.tree.current_version();
        let tables = version.iter_tables().map(|table| &table.metadata);
        Tables(tables.map(|t| (t.key_range.min().clone(), t.key_range.max().clone(), t.file_size)).collect())
    }

    /// Number and bytes of those that have no key outside a range.
    fn within(&self, range: &KeyRange) -> (u64, u64) {
        let inside = |(first, last): (&[u8], &[u8])| *range.lower <= *first && *last < *range.upper;
        let whole = self.0.iter().filter(|(first, last, _)| inside((first, last)));
        whole.fold((0, 0), |(count, sum), (_, _, bytes)| (count + 1, sum + bytes))
    }

    /// Where one of them begins, if any begins in a range; which one is left to `chance`.
    pub fn some_beginning(&self, range: &KeyRange, chance: u64) -> Vec<u8> {
        let inside = |(first, ..): &&(UserKey, UserKey, u64)| *range.lower <= **first && **first < *range.upper;
        let count = self.0.iter().filter(inside).count() as u64;
        let at = chance.checked_rem(count).unwrap_or(0) as usize;
        self.0.iter().filter(inside).nth(at).map(|(first, ..)| first.to_vec()).unwrap_or_default()
    }

    /// Whether it is worth while to drop those that have no key outside one of these ranges.
    pub fn are_droppable(&self, ranges: &[KeyRange]) -> bool {
        ranges.iter().map(|range| self.within(range).1).sum::<u64>() >= DROP_FROM
    }
}

/// Has fjall forget the versions before the newest.
pub(super) fn forget_replaced(keyspace: &Keyspace) -> Result {
    let mut versions = keyspace.tree.get_version_history_lock();
    let forgotten = versions.maintenance(keyspace.path(), NOBODY).map_err(fjall::Error::from);
    forgotten.map_err(StoreError::fjall("forget what a compaction replaced"))
}

impl Partition {
    /// Its tables as they are now.
    pub fn tables(&self) -> Result<Tables> {
        self.slot().with(|keyspace| Ok(Tables::of(keyspace)))
    }

    /// Drops the tables that have no key outside one of these ranges, all of whose records are dead for good, and answers how
    /// many. What is in the ranges otherwise stays, and what was hidden there may show. Waits for compactions that run.
    pub fn drop_tables(&self, ranges: &[KeyRange]) -> Result<u64> {
        let dropped = self.slot().with(|keyspace| {
            let mut dropped = 0;
            for range in ranges {
                let (whole, _) = Tables::of(keyspace).within(range);
                if whole == 0 {
                    continue;
                }
                let done = keyspace.tree.drop_range(&range.lower[..]..&range.upper[..]).map_err(fjall::Error::from);
                done.map_err(StoreError::fjall("drop tables"))?;
                dropped += whole - Tables::of(keyspace).within(range).0.min(whole);
            }
            Ok(dropped)
        });
        self.follow();
        dropped
    }

    /// So many bytes were found to be dead; a compaction that begins after this counts as having dealt with them.
    pub fn note_dead(&self, bytes: u64) {
        self.known_dead.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes that a compaction would give back, about, as of the last ingestion or [`Partition::follow`].
    pub fn dead_bytes(&self) -> u64 {
        let bulk = self.bulk();
        self.known_dead.load(Ordering::Relaxed).max(bulk.dead_bytes()).min(bulk.bytes)
    }

    /// Bytes that were removed and still take room, about, as of then: [`Partition::dead_bytes`] counts tombstones as what they
    /// cover, so that it is sooner too much than too little.
    pub fn covered_bytes(&self) -> u64 {
        let bulk = self.bulk();
        self.known_dead.load(Ordering::Relaxed).max(bulk.covered_bytes()).min(bulk.bytes)
    }

    /// Whether so much is dead that it is to be compacted; less where room is `tight`. Not while it may not be, and not again
    /// after it was in vain, until something has changed.
    pub fn wants_compaction(&self, tight: bool) -> bool {
        self.would_want_compaction(0, tight)
    }

    /// The same if so many bytes more were known to be dead.
    pub fn would_want_compaction(&self, dead_bytes: u64, tight: bool) -> bool {
        let share = if tight { TIGHT_SHARE } else { COMPACT_SHARE };
        let much = COMPACT_FROM.max(self.disk_bytes() / share);
        self.dead_bytes() + dead_bytes >= much
            && self.version() != self.in_vain.load(Ordering::Relaxed)
            && self.stills.try_lock().is_some_and(|stills| *stills == 0)
    }

    /// Compacts for what is dead, and answers whether it did: what was known to be dead is, unless it has, as before. What one
    /// that fails has written lies about until the store is opened again, which is called for thereby: others would add to it,
    /// and mostly the disk is full.
    pub fn compact_dead(&self) -> Result<bool> {
        let known = self.known_dead.load(Ordering::Relaxed);
        let before = self.version();
        let done = self.major_compact();
        match done {
            Ok(true) => _ = self.known_dead.fetch_sub(known, Ordering::Relaxed),
            Ok(false) => return done,
            Err(_) => self.failed.store(true, Ordering::Release),
        }
        if done.is_err() || self.version() == before {
            self.in_vain.store(self.version(), Ordering::Relaxed);
        }
        done
    }

    /// Rewrites the whole partition in this thread, compaction filter included. Takes as long as reading all of it and
    /// writing what lives does, and up to its size again on disk meanwhile. False, and nothing is done, while somebody reads an
    /// older version: that is forgotten with what the compaction replaces.
    pub fn major_compact(&self) -> Result<bool> {
        let _none_begins = self.compacting.lock();
        if *self.stills.lock() > 0 {
            return Ok(false);
        }
        let table_bytes = self.table_bytes;
        let compact =
            |keyspace: &Keyspace| keyspace.tree.major_compact(table_bytes, NOBODY).map_err(fjall::Error::from);
        let done = self.slot().with(|keyspace| compact(keyspace).map_err(StoreError::fjall("compact")));
        self.follow();
        done.map(|()| true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tombstone_stands_for_itself_and_for_what_it_covers() {
        let dead = |records, tombstones| Bulk { bytes: 1000, records, tombstones }.dead_bytes();
        assert_eq!([dead(0, 0), dead(10, 0), dead(10, 1), dead(10, 5), dead(10, 10)], [0, 0, 200, 1000, 1000]);
        let covered = |records, tombstones| Bulk { bytes: 1000, records, tombstones }.covered_bytes();
        assert_eq!(
            [covered(0, 0), covered(10, 0), covered(11, 1), covered(10, 5), covered(10, 10)],
            [0, 0, 100, 1000, 0]
        );
    }
}
