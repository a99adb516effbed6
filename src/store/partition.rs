//! One shard's partition: point reads, ranges, and the only way in, sorted ingestion.
//!
//! # Invariants
//! - Records come in by ingestion alone. An ingestion is one new run with one sequence number: visible as a whole or
//!   not at all, and on disk when [`Partition::ingest`] returns. fjall's memtable and journal stay empty (rule 15).
//! - A range sees one version of the partition, from its creation to its end, because there is no memtable that
//!   could change under it; an ingestion meanwhile does not show.
//! - fjall panics, or loses the database at its next opening, over a key that is empty, too long or out of order. No such
//!   key reaches it.
//! - What a compaction has replaced is let go of when the view is renewed ([`super::space`]); its files go after that ([`super::left`]).
//! - After an ingestion was given up half-way its files lie about until the next opening, and what fjall has in memory
//!   may be behind what it has on disk. The partition takes no other until the store has been reopened.

use super::error::{Result, StoreError};
use super::left::LeftViews;
use super::space::{Bulk, forget_replaced};
use super::view::{Odds, View};
use super::way::{Aim, Ways};
use crate::util::scale::Scaled;
use crate::util::sys::{Waits, waits};
use fjall::{AbstractTree, Keyspace, UserKey, UserValue};
use parking_lot::{RwLock, RwLockWriteGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Instant;
use xxhash_rust::xxh3::Xxh3;

/// What a read takes at most while the page cache or the block cache answers it, ns. A disk takes longer.
const QUICK_NS: Scaled<u64> = Scaled::new(40_000).in_unit_tests(u64::MAX);
/// So many times as long a wait is not for a lock, even where the file system does not tell that it was for a disk.
const LONG: u64 = 10;
/// A value of more bytes takes long wherever it comes from.
const QUICK_BYTES: usize = 256 << 10;
/// How many reads of late count, and what a slow one of them adds to their share.
const OF_LATE: u32 = 64;
const SLOW: u32 = 1 << 10;
/// The share from which on it matters whether a slow one waited for the disk, or for the processor.
const SUSPICIOUS: u32 = SLOW / 4;
/// The share from which on reads are not quick: four of those of late.
const MOST_SLOW: u32 = 3 * SLOW + SLOW / 2;

/// fjall's own limit.
const MAX_KEY: usize = u16::MAX as usize;

/// Where partition and compaction filter find fjall's handle, as long as the store is open.
///
/// The filter belongs to the partition that it reads: a handle of its own would keep the database, and its lock file,
/// alive for ever. Both look here, and closing empties the slot.
pub(super) struct Slot {
    handle: RwLock<Option<Keyspace>>,
    view: RwLock<Option<View>>,
    /// Those of all partitions.
    pub(super) ways: Arc<Ways>,
}

impl Slot {
    pub(super) fn new(ways: Arc<Ways>) -> Slot {
        Slot { handle: RwLock::default(), view: RwLock::default(), ways }
    }

    /// Runs `read` on the handle. Recursive, because what is ingested may itself be read from the partition.
    pub(super) fn with<R>(&self, read: impl FnOnce(&Keyspace) -> Result<R>) -> Result<R> {
        match &*self.handle.read_recursive() {
            Some(keyspace) => read(keyspace),
            None => Err(StoreError::Closed),
        }
    }

    /// The same, but `None` instead of waiting for whoever opens or closes: closing waits for the filter's thread.
    pub(super) fn try_with<R>(&self, read: impl FnOnce(&Keyspace) -> R) -> Option<R> {
        self.handle.try_read_recursive()?.as_ref().map(read)
    }

    /// Keeps everybody out until the guard is dropped.
    pub(super) fn close(&self) -> RwLockWriteGuard<'_, Option<Keyspace>> {
        let mut guard = self.handle.write();
        *guard = None;
        *self.view.write() = None;
        guard
    }
}

/// Key and value.
pub type Record = (UserKey, UserValue);

/// Tells reads that waited for the disk from those that were kept from the processor, or waited for a lock, among some that a
/// thread does on end. To ask the system costs a tenth of a read: only while it matters, and once for all of them.
#[derive(Default)]
pub struct Watch {
    /// What the thread had waited for before those that are not looked at yet.
    before: Option<Waits>,
}

impl Watch {
    fn begin(&mut self) {
        if self.before.is_none() {
            self.before = waits();
        }
    }

    /// Whether a read that took so long has waited for the disk, as far as the system tells.
    fn has_waited(&mut self, ns: u64) -> bool {
        if ns <= QUICK_NS.get() {
            return false;
        }
        let Some(before) = self.before else { return true };
        let now = waits();
        self.before = now;
        now.is_none_or(|now| now.inputs != before.inputs || ns / LONG > QUICK_NS.get() && now.any != before.any)
    }
}

/// A record that has been [aimed at](Partition::aim).
pub struct Aimed {
    at: Aim,
    /// Of a sample, since when, and whether the disk was asked, as far as the system tells.
    sample: Option<(Instant, bool)>,
}

impl Aimed {
    /// Whether the disk was to begin with it.
    #[cfg(test)]
    pub fn is_begun(&self) -> bool {
        self.at.is_begun()
    }
}

/// One shard's records.
pub struct Partition {
    slot: Arc<Slot>,
    /// Of the view's tables: asked for by every look-up.
    disk_bytes: AtomicU64,
    pub(super) failed: AtomicBool,
    /// Bytes that were found to be dead since it was last compacted for that.
    pub(super) known_dead: AtomicU64,
    /// The version at which a compaction for what is dead was in vain.
    pub(super) in_vain: AtomicU64,
    /// How many reads of late were slow, in units of [`SLOW`].
    slow_reads: AtomicU32,
    /// Id of the data directory.
    owner: u64,
    /// Size of the tables that a compaction of all of it writes.
    pub(super) table_bytes: u64,
    /// How many read it as it was at some moment: older versions are not forgotten meanwhile. Held while they are.
    pub(super) stills: parking_lot::Mutex<usize>,
    /// Held while it is compacted as a whole: nobody begins to read it as it is at a moment meanwhile.
    pub(super) compacting: parking_lot::Mutex<()>,
    /// One ingestion at a time: a flush and a big result may want to at once.
    ingesting: parking_lot::Mutex<()>,
    /// Where replaced views go, those of all partitions.
    left: Arc<LeftViews>,
}

impl Partition {
    pub(super) fn new(slot: Arc<Slot>, owner: u64, table_bytes: u64, left: Arc<LeftViews>) -> Partition {
        Partition {
            slot,
            disk_bytes: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            known_dead: AtomicU64::new(0),
            in_vain: AtomicU64::new(u64::MAX),
            slow_reads: AtomicU32::new(0),
            owner,
            table_bytes,
            stills: Default::default(),
            compacting: Default::default(),
            ingesting: Default::default(),
            left,
        }
    }

    /// Id of the data directory that it belongs to.
    pub const fn owner(&self) -> u64 {
        self.owner
    }

    pub(super) const fn slot(&self) -> &Arc<Slot> {
        &self.slot
    }

    /// The value of a key. May wait for the disk; for fjall only while the store is being opened again, or drops files.
    pub fn get(&self, key: &[u8]) -> Result<Option<UserValue>> {
        self.get_of_some(key, Odds::Even, None, &mut Watch::default())
    }

    /// The same, as one of some reads that a thread does on end; its record may have been aimed at.
    pub fn get_of_some(
        &self,
        key: &[u8],
        odds: Odds,
        aim: Option<&Aimed>,
        watch: &mut Watch,
    ) -> Result<Option<UserValue>> {
        let Some(aim) = aim else { return self.timed(watch, value_bytes, || self.read(key, odds, None)) };
        let found = self.read(key, odds, Some(&aim.at))?;
        if let Some((since, asked)) = aim.sample {
            self.count(asked && since.elapsed().as_nanos() as u64 > QUICK_NS.get(), value_bytes(&found));
        }
        Ok(found)
    }

    /// Finds out where the record of a key stands that is likely to be there, and has the disk begin to read it if it must: so
    /// it reads several at once for one thread, which then need not sleep for each of them. `None` if that is not known without
    /// the disk. Only a sample is timed, the one that is read at once: others may well be there by the time that somebody looks.
    pub fn aim(&self, key: &[u8], is_sample: bool) -> Option<Aimed> {
        let aim = |_: &Keyspace| {
            let reader = self.slot.view.read().as_ref().map(|view| view.reader.clone())?;
            reader.aim(key)
        };
        let sample = is_sample.then(|| (Instant::now(), waits()));
        let at = self.slot.try_with(aim)??;
        let sample = sample.map(|(since, before)| {
            let asked = before.zip(waits()).is_none_or(|(before, now)| now.inputs != before.inputs);
            (since, asked)
        });
        Some(Aimed { at, sample })
    }

    /// The same for background work, which says nothing of how quick reads are.
    pub fn get_aside(&self, key: &[u8]) -> Result<Option<UserValue>> {
        self.read(key, Odds::Even, None)
    }

    fn read(&self, key: &[u8], odds: Odds, aim: Option<&Aim>) -> Result<Option<UserValue>> {
        self.slot.with(|keyspace| {
            let known = self.slot.view.read().as_ref().map(|view| view.reader.clone());
            known.unwrap_or_else(|| View::newest(keyspace, None, &self.slot.ways).reader).get(key, odds, aim)
        })
    }

    /// The records from `lower` on, below `upper`, or those before that, from the last on; `most` of them and `most_bytes` at
    /// most, `None` if there are more bytes. One of some reads that a thread does on end.
    pub fn few_of_some(
        &self,
        (lower, upper): (&[u8], &[u8]),
        reverse: bool,
        (most, most_bytes): (usize, usize),
        watch: &mut Watch,
    ) -> Result<Option<Vec<Record>>> {
        let bytes = |records: &Option<Vec<Record>>| if records.is_none() { usize::MAX } else { 0 };
        self.timed(watch, bytes, || {
            let (mut records, mut sum) = (Vec::new(), 0);
            let mut range = self.range(lower, upper)?;
            while records.len() < most
                && let Some(record) = if reverse { range.next_back() } else { range.next() }
            {
                let record = record?;
                sum += record.0.len() + record.1.len();
                if sum > most_bytes {
                    return Ok(None);
                }
                records.push(record);
            }
            Ok(Some(records))
        })
    }

    /// A read that counts among those of late.
    fn timed<R>(&self, watch: &mut Watch, bytes: impl Fn(&R) -> usize, read: impl FnOnce() -> Result<R>) -> Result<R> {
        if self.slow_reads.load(Ordering::Relaxed) >= SUSPICIOUS {
            watch.begin();
        }
        let started = Instant::now();
        let found = read()?;
        self.count(watch.has_waited(started.elapsed().as_nanos() as u64), bytes(&found));
        Ok(found)
    }

    /// Counts a read of so many bytes among those of late.
    fn count(&self, slow: bool, bytes: usize) {
        let share = self.slow_reads.load(Ordering::Relaxed);
        // Lost updates of others do no harm.
        let share = match bytes > QUICK_BYTES {
            true => share.max(2 * MOST_SLOW),
            false => share - share / OF_LATE + if slow { SLOW } else { 0 },
        };
        self.slow_reads.store(share, Ordering::Relaxed);
    }

    /// Whether reads come back about as soon as it takes to ask another thread for them.
    pub fn reads_are_quick(&self) -> bool {
        self.slow_reads.load(Ordering::Relaxed) < MOST_SLOW
    }

    /// Tables that are looked into for a key.
    #[cfg(test)]
    pub(super) fn tables_asked(&self, key: &[u8]) -> usize {
        self.slot.view.read().as_ref().map_or(0, |view| view.reader.tables_asked(key))
    }

    /// No read of late has waited.
    #[cfg(test)]
    pub fn note_quick(&self) {
        self.slow_reads.store(0, Ordering::Relaxed);
    }

    /// There are as many files as may be open.
    #[cfg(test)]
    pub fn close_ways(&self) {
        let none = Arc::new(Ways::new(0, 0, 0));
        let view = self.slot.try_with(|keyspace| View::newest(keyspace, None, &none));
        *self.slot.view.write() = view;
    }

    /// The disk is waited for.
    #[cfg(test)]
    pub fn note_slow(&self) {
        self.slow_reads.store(2 * MOST_SLOW, Ordering::Relaxed);
    }

    /// The same as of what ranges see: [`Partition::get`] may see what an ingestion has brought a moment later than they do.
    pub fn get_newest(&self, key: &[u8]) -> Result<Option<UserValue>> {
        self.slot.with(|keyspace| keyspace.get(key).map_err(StoreError::fjall("read a record")))
    }

    /// The records from `lower` on, below `upper`, in both directions. Do not keep it across client calls: it keeps
    /// what compactions replace on disk, and [`super::Store::reopen`] from succeeding.
    pub fn range(&self, lower: &[u8], upper: &[u8]) -> Result<Range> {
        self.slot.with(|keyspace| {
            let inner = (lower < upper).then(|| keyspace.range(lower..upper));
            Ok(Range { inner, _open: keyspace.clone() })
        })
    }

    /// Writes records (`Some`) and tombstones (`None`), whose keys strictly ascend, and answers how many. All of them
    /// are durable and visible when this returns; none is after an error. May take seconds.
    pub fn ingest<K, V>(&self, items: impl IntoIterator<Item = (K, Option<V>)>) -> Result<usize>
    where
        K: Into<UserKey>,
        V: Into<UserValue>,
    {
        self.ingest_with(items, || Ok::<_, StoreError>(()))
    }

    /// Like [`Partition::ingest`]; runs `before_finish` when all is written and nothing visible yet, and gives up if it
    /// fails. That is where the log is synced (rule 1). Not called if there are no items.
    pub fn ingest_with<K, V, E>(
        &self,
        items: impl IntoIterator<Item = (K, Option<V>)>,
        before_finish: impl FnOnce() -> std::result::Result<(), E>,
    ) -> Result<usize>
    where
        K: Into<UserKey>,
        V: Into<UserValue>,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        // fjall makes a file at the start of an ingestion and leaves it there if nothing is written.
        let mut items = items.into_iter().map(|(key, value)| (key.into(), value)).peekable();
        if items.peek().is_none() {
            return Ok(0);
        }
        let _one = self.ingesting.lock();
        if self.failed() {
            return Err(StoreError::NeedsReopen("an ingestion or a compaction failed"));
        }
        let count = self.slot.with(|keyspace| {
            let count = run_ingestion(keyspace, items, before_finish);
            match &count {
                // Before anybody relies on what it has brought.
                Ok(_) => self.renew(keyspace),
                Err(_) => self.failed.store(true, Ordering::Release),
            }
            count
        })?;
        Ok(count)
    }

    /// Whether an ingestion or a compaction was given up since the store was opened.
    pub(super) fn failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    pub(super) fn set_open(&self) {
        self.failed.store(false, Ordering::Release);
        self.follow();
    }

    /// What its tables hold, as of the last ingestion or [`Partition::follow`].
    pub fn bulk(&self) -> Bulk {
        self.slot.view.read().as_ref().map(|view| view.bulk).unwrap_or_default()
    }

    /// Bytes of its tables, as of then.
    pub fn disk_bytes(&self) -> u64 {
        self.disk_bytes.load(Ordering::Relaxed)
    }

    /// Number of the version of then.
    pub fn version(&self) -> u64 {
        self.slot.view.read().as_ref().map_or(u64::MAX, |view| view.number)
    }

    /// Brings what is known of the partition, and what is read of it, up to date with what compactions have done, and has the
    /// files go that they have replaced. Where no thread is there for that ([`super::left`]), it takes as long as the disk does for it.
    pub fn follow(&self) {
        self.slot.try_with(|keyspace| self.renew(keyspace));
    }

    fn renew(&self, keyspace: &Keyspace) {
        let before = self.slot.view.read().as_ref().map(|view| (view.number, view.reader.clone()));
        if before.as_ref().is_some_and(|(number, _)| *number >= keyspace.tree.current_version().id()) {
            return;
        }
        let new = View::newest(keyspace, before.as_ref().map(|(_, reader)| &**reader), &self.slot.ways);
        // Whoever else holds the reader would have to free its files.
        drop(before);
        // As long as the old view knows the files, this frees none of them under fjall's lock.
        let stills = self.stills.lock();
        if *stills == 0
            && let Err(error) = forget_replaced(keyspace)
        {
            tracing::error!(%error, "replaced files stay until the store is opened again");
        }
        drop(stills);
        self.disk_bytes.store(new.bulk.bytes, Ordering::Relaxed);
        let mut now = self.slot.view.write();
        // Of two at once the newer stays.
        let old = now.as_ref().is_none_or(|view| view.number < new.number).then(|| now.replace(new));
        drop(now);
        if let Some(old) = old.flatten() {
            self.left.leave(old, keyspace);
        }
    }

    /// Ingested runs that compaction has not merged yet. fjall does not push back on ingestion: who ingests watches this
    /// (rule 13).
    pub fn l0_runs(&self) -> usize {
        self.slot.try_with(|keyspace| keyspace.tree.l0_run_count()).unwrap_or_default()
    }

    /// Tells its tables of now, by the sums that fjall keeps of them, from all others that it has had or will have, wherever they lie
    /// in it; `None` if it is not open.
    pub fn stamp(&self) -> Option<u64> {
        self.slot.try_with(|keyspace| {
            let version = keyspace.tree.current_version();
            let runs = version.iter_levels().flat_map(|level| level.iter());
            let tables = runs.flat_map(|run| run.iter());
            let mut sums: Vec<_> = tables.map(|table| (table.id(), table.checksum().into_u128())).collect();
            sums.sort_unstable();
            let mut stamp = Xxh3::new();
            for (id, sum) in sums {
                stamp.update(&id.to_le_bytes());
                stamp.update(&sum.to_le_bytes());
            }
            stamp.digest()
        })
    }

    /// By level, its runs, tables and bytes.
    pub fn levels(&self) -> Vec<[u64; 3]> {
        let levels = |keyspace: &Keyspace| {
            let version = keyspace.tree.current_version();
            let sums = version.iter_levels().map(|level| {
                let tables = level.iter().flat_map(|run| run.iter());
                tables.fold([level.iter().count() as u64, 0, 0], |[runs, tables, bytes], table| {
                    [runs, tables + 1, bytes + table.metadata.file_size]
                })
            });
            sums.collect()
        };
        self.slot.try_with(levels).unwrap_or_default()
    }

    /// Memory of the ways to the pieces of indexes and filters, which the block cache does not count, bytes.
    pub fn pinned_bytes(&self) -> usize {
        let pinned = |keyspace: &Keyspace| keyspace.tree.pinned_filter_size() + keyspace.tree.pinned_block_index_size();
        let ways = self.slot.view.read().as_ref().map_or(0, View::pinned_bytes);
        self.slot.try_with(pinned).unwrap_or_default() + ways
    }
}

fn value_bytes(value: &Option<UserValue>) -> usize {
    value.as_ref().map_or(0, |value| value.len())
}

fn run_ingestion<V, E>(
    keyspace: &Keyspace,
    items: impl Iterator<Item = (UserKey, Option<V>)>,
    before_finish: impl FnOnce() -> std::result::Result<(), E>,
) -> Result<usize>
where
    V: Into<UserValue>,
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut ingestion = keyspace.start_ingestion().map_err(StoreError::fjall("start an ingestion"))?;
    let mut previous: Option<UserKey> = None;
    let mut count = 0;
    for (key, value) in items {
        if key.is_empty() || key.len() > MAX_KEY {
            return Err(StoreError::KeyLength(key.len()));
        }
        if previous.as_ref().is_some_and(|previous| *previous >= key) {
            return Err(StoreError::Unsorted(key.to_vec()));
        }
        previous = Some(key.clone());
        match value {
            Some(value) => ingestion.write(key, value),
            None => ingestion.write_tombstone(key),
        }
        .map_err(StoreError::fjall("write records"))?;
        count += 1;
    }
    before_finish().map_err(|error| StoreError::BeforeFinish(error.into()))?;
    ingestion.finish().map_err(StoreError::fjall("finish an ingestion"))?;
    Ok(count)
}

/// The records of a range, in order of their keys.
pub struct Range {
    inner: Option<fjall::Iter>,
    /// Holds fjall's lock file, so that the files being read are not cleaned up by a reopening.
    _open: Keyspace,
}

impl Range {
    /// What fjall goes through of a partition.
    pub(super) fn of(inner: Option<fjall::Iter>, keyspace: &Keyspace) -> Range {
        Range { inner, _open: keyspace.clone() }
    }
}

fn record(guard: fjall::Guard) -> Result<(UserKey, UserValue)> {
    guard.into_inner().map_err(StoreError::fjall("read a range"))
}

impl Iterator for Range {
    type Item = Result<(UserKey, UserValue)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.inner.as_mut()?.next().map(record)
    }
}

impl DoubleEndedIterator for Range {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.inner.as_mut()?.next_back().map(record)
    }
}
