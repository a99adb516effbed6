//! One shard's partition: point reads, ranges, and the only way in, sorted ingestion.
//!
//! # Invariants
//! - Records come in by ingestion alone. An ingestion is one new run with one sequence number: visible as a whole or
//!   not at all, and on disk when [`Partition::ingest`] returns. fjall's memtable and journal stay empty (rule 15).
//! - A range sees one version of the partition, from its creation to its end, because there is no memtable that
//!   could change under it; an ingestion meanwhile does not show.
//! - fjall panics, or loses the database at its next opening, over a key that is empty, too long or out of order. No such
//!   key reaches it.
//! - After an ingestion was given up half-way its files lie about until the next opening, and what fjall has in memory
//!   may be behind what it has on disk. The partition takes no other until the store has been reopened.

use super::error::{Result, StoreError};
use fjall::{AbstractTree, Keyspace, UserKey, UserValue};
use parking_lot::{RwLock, RwLockWriteGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// How long to wait for everybody to be out. Who wants in meanwhile does not wait.
const ALONE_WAIT: Duration = Duration::from_millis(200);

/// fjall's own limit.
const MAX_KEY: usize = u16::MAX as usize;

/// Where partition and compaction filter find fjall's handle, as long as the store is open.
///
/// The filter belongs to the partition that it reads: a handle of its own would keep the database, and its lock file,
/// alive for ever. Both look here, and closing empties the slot.
#[derive(Default)]
pub(super) struct Slot(RwLock<Option<Keyspace>>);

impl Slot {
    /// Runs `read` on the handle. Recursive, because what is ingested may itself be read from the partition.
    pub(super) fn with<R>(&self, read: impl FnOnce(&Keyspace) -> Result<R>) -> Result<R> {
        match &*self.0.read_recursive() {
            Some(keyspace) => read(keyspace),
            None => Err(StoreError::Closed),
        }
    }

    /// The same, but `None` instead of waiting for whoever opens or closes: closing waits for the filter's thread.
    pub(super) fn try_with<R>(&self, read: impl FnOnce(&Keyspace) -> R) -> Option<R> {
        self.0.try_read_recursive()?.as_ref().map(read)
    }

    /// Runs `work` on the handle while nobody else uses it. `None`, soon, if somebody goes on doing so.
    fn alone<R>(&self, work: impl FnOnce(&Keyspace) -> R) -> Option<R> {
        self.0.try_write_for(ALONE_WAIT)?.as_ref().map(work)
    }

    /// Keeps everybody out until the guard is dropped.
    pub(super) fn close(&self) -> RwLockWriteGuard<'_, Option<Keyspace>> {
        let mut guard = self.0.write();
        *guard = None;
        guard
    }
}

/// One shard's records.
pub struct Partition {
    slot: Arc<Slot>,
    disk_bytes: AtomicU64,
    failed: AtomicBool,
    /// Id of the data directory.
    owner: u64,
    /// One ingestion at a time: a flush and a big result may want to at once.
    ingesting: parking_lot::Mutex<()>,
}

impl Partition {
    pub(super) fn new(slot: Arc<Slot>, owner: u64) -> Partition {
        Partition {
            slot,
            disk_bytes: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            owner,
            ingesting: Default::default(),
        }
    }

    /// Id of the data directory that it belongs to.
    pub const fn owner(&self) -> u64 {
        self.owner
    }

    pub(super) const fn slot(&self) -> &Arc<Slot> {
        &self.slot
    }

    /// The value of a key. May wait for the disk.
    pub fn get(&self, key: &[u8]) -> Result<Option<UserValue>> {
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
            return Err(StoreError::NeedsReopen("an ingestion failed"));
        }
        let count = self.slot.with(|keyspace| {
            let count = run_ingestion(keyspace, items, before_finish);
            if count.is_err() {
                self.failed.store(true, Ordering::Release);
            }
            count
        })?;
        self.refresh_disk_bytes();
        Ok(count)
    }

    /// Whether an ingestion was given up since the store was opened.
    pub(super) fn failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    pub(super) fn set_open(&self) {
        self.failed.store(false, Ordering::Release);
        self.refresh_disk_bytes();
    }

    /// Bytes of the partition's tables, as of the last ingestion or [`Partition::refresh_disk_bytes`].
    pub fn disk_bytes(&self) -> u64 {
        self.disk_bytes.load(Ordering::Relaxed)
    }

    /// Brings [`Partition::disk_bytes`] up to date with what background compactions have done.
    pub fn refresh_disk_bytes(&self) {
        if let Some(bytes) = self.slot.try_with(|keyspace| keyspace.disk_space()) {
            self.disk_bytes.store(bytes, Ordering::Relaxed);
        }
    }

    /// Ingested runs that compaction has not merged yet. fjall does not push back on ingestion: who ingests watches this
    /// (rule 13).
    pub fn l0_runs(&self) -> usize {
        self.slot.try_with(|keyspace| keyspace.tree.l0_run_count()).unwrap_or_default()
    }

    /// Memory of the ways to the pieces of indexes, which the block cache does not count, bytes.
    pub fn pinned_bytes(&self) -> usize {
        let pinned = |keyspace: &Keyspace| keyspace.tree.pinned_filter_size() + keyspace.tree.pinned_block_index_size();
        self.slot.try_with(pinned).unwrap_or_default()
    }

    /// Rewrites the whole partition in this thread, compaction filter included. Takes as long as reading and writing
    /// all of it does, and up to its size again on disk meanwhile.
    pub fn major_compact(&self) -> Result {
        self.slot.with(|keyspace| keyspace.major_compact().map_err(StoreError::fjall("compact")))?;
        self.refresh_disk_bytes();
        self.drop_replaced()
    }

    /// Deletes the files that compactions have replaced. fjall keeps the versions that name them for readers that have
    /// chosen a sequence number and not yet a version, and forgets them when it rotates a memtable, which never happens
    /// here (rule 15), or at a compaction some ten thousand reads later. With the handle to ourselves there are no such
    /// readers; a range under way holds its version.
    fn drop_replaced(&self) -> Result {
        let forget = |keyspace: &Keyspace| {
            let mut versions = keyspace.tree.get_version_history_lock();
            versions.maintenance(keyspace.path(), u64::MAX).map_err(fjall::Error::from)
        };
        let dropped = self.slot.alone(forget).unwrap_or(Ok(()));
        dropped.map_err(StoreError::fjall("delete what a compaction replaced"))
    }
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
