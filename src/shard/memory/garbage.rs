//! What is dead in fjall: elements of dropped collections and big strings, records of dead namespaces.
//!
//! The records that say so, garbage records and dead-namespace records, are themselves the queue. Memory knows how many
//! there are, and how far the work has got; it holds one batch of keys at a time.
//!
//! | step | where the record stands |
//! |---|---|
//! | the commit that drops a body, or the names of a namespace, puts it | among the raw records, within the dirty budget |
//! | a flush brings it; one is made for it if nothing else asks for one | in fjall: the death is certain, and nothing comes after it |
//! | tables that hold nothing but what it stands for are dropped | in fjall, until what is left is dealt with |
//! | the shard's thread reads what it stands for and ingests tombstones, batch by batch; the last takes the record itself along | nowhere |
//!
//! Where much has died, a compaction follows, whose filter drops what is left without tombstones ([`crate::store::space`]). If that is
//! due before a pass is through, it comes instead of the batch, which is read again afterwards.
//!
//! # Why this is sound
//! **The death is certain.** The log was synced up to it before fjall showed the record (rule 1).
//!
//! **Nothing comes after it.** Flights of a shard follow each other, and the one that brings the record is the last that
//! carries anything of what is dead: that was gathered before the death, and the record after it. Neither a version nor
//! the id of a namespace is given twice. So tombstones may be ingested at any time, beside a flush too, and what is read
//! is all there is.
//!
//! A build in slices may bring one more slice to a namespace that has died meanwhile; what it is building has a pending record,
//! and that becomes a garbage record, once it is given up. (A crash before that, behind the end of the namespace's own work,
//! leaves the slice: some megabytes that nothing names.)
//!
//! **A crash** finds the record if it finds anything: the last tombstones and the record's own come in one ingestion.
//! After a failed one nothing has changed.
//!
//! **Tables that are dropped** may uncover older copies in others. As the record stands, those are as dead as what covered them:
//! no reader is led there, and the batches that follow read what shows by then, edges of tables among it. A drop that did
//! nothing, or that a crash has undone, leaves them more to read; nothing relies on it. A table that another death takes away,
//! with tombstones of this one, lies in what is dead by both: a version within a dead namespace. Whichever of them is under way
//! looks through all it stands for once more ([`Queue::look_again`]), before its record can go, and the other's with it.
//!
//! **Times of a namespace** whose metadata went with its table are found in the expiry index itself, which is looked through
//! for them then; those that a crash in between leaves go when their time comes, by the sweep.
//!
//! **A replay** applies what the log holds from before the death once more and, if it flushes midway, brings it back to
//! fjall. It then comes to the death, which is in the log behind it, and that puts the record once more: the log's record
//! of the death has it along, or, where nothing had been flushed when the body died, `replay::bury` finds the elements.
//! The record's end is therefore not in the log, and nothing has to wait until the log is cut.
//!
//! **A rollback** takes the record from the raw records under the lease under which it came: no flight has seen it.

use crate::codec::{self, DiskKey, ExpiryKind, KeyRange, Meta, NsId};
use crate::store::{Partition, StoreError};
use crate::util::pace::Pace;

/// Memory of the keys of a batch.
const BATCH_BYTES: usize = if cfg!(test) { 4 << 10 } else { 1 << 20 };
/// Records of the queue in a batch: each costs a look at what it stands for, even if that is nothing.
const BATCH_RECORDS: u64 = 1024;

/// Records that a batch looks at, of a namespace's or not: in the expiry index those of all stand together.
const BATCH_LOOKS: u64 = if cfg!(test) { 64 } else { 1 << 16 };

/// Records that are counted at a start; however many more there are, they are met one after the other.
const COUNTED: usize = 1024;

/// The key of the garbage record of a version.
pub fn record_key(ns: NsId, key: &[u8], version: u64) -> Vec<u8> {
    let mut record = Vec::new();
    codec::key::garbage_key(ns, key, version, &mut record);
    record
}

/// The record of a garbage entry for a pending record that a start has found.
pub fn garbage_of_pending(pending: &[u8]) -> Vec<u8> {
    let mut record = pending.to_vec();
    if let Some(tag) = record.first_mut() {
        *tag = codec::key::tag::GARBAGE;
    }
    record
}

/// A version that is being built, or was, in vain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Staged {
    /// Namespace and user's key.
    pub key: (NsId, Vec<u8>),
    /// The version.
    pub version: u64,
}

/// Versions that are in fjall without metadata, and whether their builders live.
pub type AllStaged = parking_lot::Mutex<Vec<(Staged, std::sync::Weak<()>)>>;

/// The records of one tag, as far as they must be known: those that stand for garbage, or those for dead namespaces.
#[derive(Debug)]
pub struct Queue {
    tag: u8,
    /// Records among the raw ones, for the next flush.
    unflushed: u64,
    /// Records in a running flush.
    flying: u64,
    /// Records that fjall has got since the pass under way began.
    arrived: u64,
    /// Records that the pass under way has to come by, about: after a start no more than [`COUNTED`] are known.
    left: u64,
    /// The pass under way.
    pass: Option<Cursor>,
    /// A compaction was asked for in its stead.
    left_to_compaction: bool,
}

/// Where a pass over the records goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {
    record: Vec<u8>,
    /// What the record stands for is dealt with below this key.
    within: Vec<u8>,
    /// Whole tables of it have been dropped, or that was tried.
    dropped: bool,
}

impl Cursor {
    /// At the beginning of a record, or of the next.
    const fn at(record: Vec<u8>) -> Cursor {
        Cursor { record, within: Vec::new(), dropped: false }
    }
}

impl Queue {
    /// A queue of records of this tag, none of which is known.
    pub const fn new(tag: u8) -> Queue {
        Queue { tag, unflushed: 0, flying: 0, arrived: 0, left: 0, pass: None, left_to_compaction: false }
    }

    /// Looks for what an earlier run has left in fjall.
    pub fn load(&mut self, partition: &Partition) -> Result<(), StoreError> {
        let range = codec::key::tag_range(self.tag);
        for item in partition.range(&range.lower, &range.upper)?.take(COUNTED) {
            item?;
            self.arrived += 1;
        }
        Ok(())
    }

    /// Records that are still to be worked off, about.
    pub const fn len(&self) -> u64 {
        self.unflushed + self.flying + self.arrived + self.left
    }

    /// Whether there is nothing to be worked off.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0 && self.pass.is_none()
    }

    /// Whether a flush would bring the work on.
    pub const fn waits_for_flush(&self) -> bool {
        self.unflushed > 0
    }

    /// A record has come to the raw ones, or has left them.
    pub(in crate::shard) const fn note(&mut self, put: bool) {
        self.unflushed = if put { self.unflushed + 1 } else { self.unflushed.saturating_sub(1) };
    }

    /// A flush takes the raw records along.
    pub(in crate::shard) const fn gathered(&mut self) {
        self.flying = std::mem::replace(&mut self.unflushed, 0);
    }

    /// Its ingestion has ended; after a failed one the records come to the raw ones again.
    pub(in crate::shard) const fn settled(&mut self, ok: bool) {
        let landed = std::mem::replace(&mut self.flying, 0);
        self.arrived += if ok { landed } else { 0 };
    }

    /// Where to go on: in the pass under way, or in a new one over what has arrived.
    pub fn cursor(&mut self) -> Option<Cursor> {
        if self.pass.is_none() && self.arrived > 0 {
            self.left = std::mem::replace(&mut self.arrived, 0);
            self.pass = Some(Cursor::at(codec::key::tag_range(self.tag).lower));
            self.left_to_compaction = false;
        }
        self.pass.clone()
    }

    /// Tables were dropped, and with them may have gone tombstones of the record under way: what it stands for is looked
    /// through once more.
    pub fn look_again(&mut self) {
        if let Some(cursor) = &mut self.pass {
            cursor.within.clear();
        }
    }

    /// A batch of the pass under way is left to a compaction, whose filter drops what it stands for: once in a pass, which then
    /// goes on with what is there. False if that was done.
    pub const fn leave_to_compaction(&mut self) -> bool {
        !std::mem::replace(&mut self.left_to_compaction, true)
    }

    /// A batch is worked off.
    pub fn worked_off(&mut self, batch: Batch) {
        self.left = if batch.next.is_some() { self.left.saturating_sub(batch.records) } else { 0 };
        self.pass = batch.next;
    }
}

/// Keys that are to get tombstones.
#[derive(Debug, Default)]
pub struct Batch {
    keys: Vec<Vec<u8>>,
    /// Memory of the keys.
    size_bytes: usize,
    /// Records of the queue among them.
    records: u64,
    /// Records looked at.
    looks: u64,
    /// Bytes of the records that die.
    pub dead_bytes: u64,
    /// Ranges that are dead, whose whole tables are to be dropped before the next batch is read.
    pub drop: Vec<KeyRange>,
    /// Where the next batch begins; `None` at the end of the pass.
    next: Option<Cursor>,
}

impl Batch {
    /// Reads the next batch of a pass. May wait for the disk: not under the shard's lock.
    pub fn read(partition: &Partition, from: &Cursor) -> Result<Batch, StoreError> {
        let mut batch = Batch::default();
        let upper = codec::key::tag_range(from.record[0]).upper;
        let tables = partition.tables()?;
        let mut pace = Pace::new();
        for item in partition.range(&from.record, &upper)? {
            let record = item?.0.to_vec();
            let at = if record == from.record { from.clone() } else { Cursor::at(record) };
            let ranges = ranges(&at.record)?;
            if at.within.is_empty() && !at.dropped && tables.are_droppable(&ranges) {
                // In a batch of its own.
                let alone = batch.keys.is_empty();
                batch.drop = if alone { ranges } else { Vec::new() };
                batch.next = Some(Cursor { dropped: alone, ..at });
                break;
            }
            if let Some(within) = batch.read_one(partition, &at, ranges, &mut pace)? {
                batch.next = Some(Cursor { within, ..at });
                break;
            }
            let successor = codec::key::successor(&at.record);
            batch.records += 1;
            batch.push(at.record, 0);
            pace.step();
            if batch.is_full() {
                batch.next = Some(Cursor::at(successor));
                break;
            }
        }
        batch.keys.sort_unstable();
        // A time may have been found with its key's metadata and in the expiry index.
        batch.keys.dedup();
        Ok(batch)
    }

    /// Reads what a record of the queue stands for, from where the work stands. Answers the first key that has no room.
    fn read_one(
        &mut self,
        partition: &Partition,
        at: &Cursor,
        mut ranges: Vec<KeyRange>,
        pace: &mut Pace,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let dead_ns = match codec::key::decode_key(&at.record)? {
            DiskKey::DeadNs { ns } => Some(ns),
            _ => None,
        };
        if dead_ns.is_some() && at.dropped {
            ranges.push(codec::key::tag_range(codec::key::tag::EXPIRY));
        }
        for range in ranges {
            for item in partition.range((&at.within).max(&range.lower), &range.upper)? {
                let (key, value) = item?;
                if self.is_full() {
                    return Ok(Some(key.to_vec()));
                }
                self.looks += 1;
                pace.step();
                if let DiskKey::Expiry { ns, .. } = codec::key::decode_key(&key)?
                    && dead_ns != Some(ns)
                {
                    continue;
                }
                self.push_times(&key, &value)?;
                self.push(key.to_vec(), value.len());
            }
        }
        Ok(None)
    }

    fn push(&mut self, key: Vec<u8>, value_len: usize) {
        self.dead_bytes += (key.len() + value_len) as u64;
        self.size_bytes += size_of::<Vec<u8>>() + key.len();
        self.keys.push(key);
    }

    /// The expiry records of a key whose metadata dies: they are in another order.
    fn push_times(&mut self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        let DiskKey::Meta { ns, key } = codec::key::decode_key(key)? else { return Ok(()) };
        let (meta, long_key, _) = Meta::decode(value)?;
        let times = [(meta.expire_ms, ExpiryKind::Key), (meta.extra.fields_due_ms(), ExpiryKind::Field)];
        for (at_ms, kind) in times.into_iter().filter(|&(at_ms, _)| at_ms != 0) {
            let mut record = Vec::new();
            codec::key::expiry_key(at_ms, kind, ns, long_key.unwrap_or(key), &mut record);
            self.push(record, 0);
        }
        Ok(())
    }

    const fn is_full(&self) -> bool {
        self.size_bytes >= BATCH_BYTES || self.records >= BATCH_RECORDS || self.looks >= BATCH_LOOKS
    }

    /// Whether the pass goes on behind it.
    pub const fn is_part(&self) -> bool {
        self.next.is_some() && self.drop.is_empty()
    }

    /// Tombstones in the order of their keys.
    pub fn tombstones(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        self.keys.iter().map(|key| (&key[..], None))
    }
}

/// What is done for the space of what is dead in a partition, by a thread that may wait.
pub enum Reclaim {
    /// Tables without a key outside these ranges, which are dead, go.
    Drop(Vec<KeyRange>),
    /// The partition is compacted.
    Compact,
}

/// Record groups of which a namespace has records that begin with its id, in order. Expiry records begin with a time.
const GROUPS: [u8; 5] = [
    codec::key::tag::ELEMENT,
    codec::key::tag::GARBAGE,
    codec::key::tag::META,
    codec::key::tag::PENDING,
    codec::key::tag::COUNT,
];

/// Where that is of which a record says that it is dead, in order.
fn ranges(record: &[u8]) -> Result<Vec<KeyRange>, StoreError> {
    Ok(match codec::key::decode_key(record)? {
        DiskKey::Garbage { .. } => {
            let mut owner = record.to_vec();
            owner[0] = codec::key::tag::ELEMENT;
            vec![KeyRange::of_prefix(owner)]
        }
        DiskKey::DeadNs { ns } => GROUPS.map(|tag| codec::key::ns_range(tag, ns)).into(),
        _ => Vec::new(),
    })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::store::{Store, StoreOptions};

    /// Works off the next batch of a queue, and drops what it says; whether it did.
    fn work_off(queues: &mut [Queue; 2], at: usize, partition: &Partition) -> bool {
        let Some(cursor) = queues[at].cursor() else { return false };
        let mut batch = Batch::read(partition, &cursor).unwrap();
        partition.ingest(batch.tombstones()).unwrap();
        let drop = std::mem::take(&mut batch.drop);
        queues[at].worked_off(batch);
        if drop.is_empty() {
            return false;
        }
        assert_ne!(partition.drop_tables(&drop).unwrap(), 0);
        queues.iter_mut().for_each(Queue::look_again);
        true
    }

    /// Whatever has become of the compaction, what is left is dealt with here.
    #[test]
    fn a_pass_is_left_to_a_compaction_once() {
        let mut queue = Queue::new(codec::key::tag::GARBAGE);
        for _ in 0..2 {
            queue.arrived = 1;
            let begins = queue.cursor().unwrap();
            let leaves = [queue.leave_to_compaction(), queue.leave_to_compaction()];
            assert_eq!((leaves, queue.cursor()), ([true, false], Some(begins.clone())), "it stays where it is");
            queue.worked_off(Batch { next: Some(begins), ..Batch::default() });
            assert!(!queue.leave_to_compaction(), "also behind the batch");
            queue.worked_off(Batch::default());
        }
    }

    /// A version dies within a database that is being worked off: its whole tables that are dropped are such as hold that
    /// one's tombstones, and what these covered lies in a table that stays.
    #[test]
    fn what_a_drop_uncovers_is_found_by_whoever_has_been_there() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let options = StoreOptions { shards: Some(1), nice: None, ..StoreOptions::default() };
        let store = Store::open(dir.path(), options).unwrap();
        let partition = store.partition(0);
        let (mut of_other, mut dead) = (Vec::new(), Vec::new());
        codec::key::element_key(2, b"key", 5, b"\x01other", &mut of_other);
        codec::key::dead_ns_key(3, &mut dead);
        let element = |n: u32| {
            let mut key = Vec::new();
            codec::key::element_key(3, b"key", 18, format!("\x01e{n:04}").as_bytes(), &mut key);
            key
        };
        let elements = (0..200).map(|n| (element(n), Some(Vec::new())));
        partition
            .ingest([(dead, Some(Vec::new())), (of_other.clone(), Some(Vec::new()))].into_iter().chain(elements))
            .unwrap();
        let arrived = |tag| {
            let mut queue = Queue::new(tag);
            queue.load(partition).unwrap();
            queue
        };
        let mut queues = [arrived(codec::key::tag::DEAD_NS), arrived(codec::key::tag::GARBAGE)];
        assert!(!work_off(&mut queues, 0, partition), "a batch of tombstones");
        assert!(queues[0].cursor().unwrap().within > element(0), "there are more");
        partition.ingest([(record_key(3, b"key", 18), Some(Vec::new()))]).unwrap();
        queues[1] = arrived(codec::key::tag::GARBAGE);
        assert!(work_off(&mut queues, 1, partition), "they go with their table");
        for at in [0, 1] {
            while !queues[at].is_empty() {
                work_off(&mut queues, at, partition);
            }
        }
        let left: Vec<_> = partition.range(&[0], &[0xff]).unwrap().map(|item| item.unwrap().0.to_vec()).collect();
        assert_eq!(left, [of_other]);
    }
}
