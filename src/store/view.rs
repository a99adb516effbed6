//! One version of a partition, as point reads see it.

use super::error::{Result, StoreError};
use super::fences::Fences;
use super::space::Bulk;
use super::way::{Aim, Held, Way, Ways};
use crate::codec::key::tag;
use crate::util::pace::{PIECE_BYTES, at_times, shorten};
use fjall::{AbstractTree, Keyspace, UserKey, UserValue};
use lsm_tree::{Table, TableId};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::fs::OpenOptions;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

/// How often, a millisecond apart, somebody who has replaced a view looks whether the last reader has left it.
const LEAVE_LOOKS: usize = 100;

/// What is known of whether there is a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Odds {
    /// Nothing.
    Even,
    /// Somebody else's filter says that there is.
    Likely,
}

/// Point reads of one version of the partition. fjall's own look up the version first, and wait whenever a compaction or
/// an ingestion installs another, through its syncs. There is no memtable whose records this could miss (rule 15).
pub(super) struct Reader {
    /// The newest first.
    runs: Vec<Run>,
}

/// Tables in the order of their keys, none of which is in two of them.
struct Run {
    tables: Vec<Reached>,
    /// The last keys of all but the last one: what comes with every flush stands there and begins like nothing else.
    fences: Fences,
}

/// A table, and the way there that is not fjall's.
#[derive(Clone)]
struct Reached {
    table: Table,
    way: Option<Arc<Way>>,
    /// Its first key.
    first: SmallVec<[u8; 40]>,
    /// Its last record before those that come with every flush, where it has such. They stand behind all others, so that by
    /// what fjall knows the table would seem to go on to them, and new keys in order to be within every run.
    end: Option<UserKey>,
}

impl Reached {
    /// Goes, and the file with it if nobody else knows a table that was replaced. The kernel frees all of a file in one go, during
    /// which the core does nothing else: of a large one it is left a little at a time, without a name.
    fn leave(self, may_pause: impl Fn() -> bool) {
        let bytes = self.table.metadata.file_size;
        let is_large = bytes > PIECE_BYTES && self.table.is_deleted.load(Ordering::Acquire);
        let file = if is_large { OpenOptions::new().write(true).open(&*self.table.path).ok() } else { None };
        // Whoever has aimed at a block of it reads on.
        let is_known = self.way.is_some_and(|way| Arc::into_inner(way).is_none());
        at_times(may_pause(), || drop(self.table));
        if let Some(file) = file.filter(|_| !is_known)
            && file.metadata().is_ok_and(|data| data.nlink() == 0)
        {
            // What fails here the last one who has it open does.
            _ = shorten(bytes, may_pause, |left| file.set_len(left));
        }
    }
}

/// One version. As long as it lives its files stay: [`super::Partition::follow`] replaces it.
pub(super) struct View {
    /// Number of the version.
    pub(super) number: u64,
    pub(super) bulk: Bulk,
    pub(super) reader: Arc<Reader>,
}

impl Reader {
    /// The value of a key, whose record may have been aimed at.
    pub(super) fn get(&self, key: &[u8], odds: Odds, aim: Option<&Aim>) -> Result<Option<UserValue>> {
        let hash = xxh3_64(key);
        let mut may_have = self.may_have(key);
        let mut next = may_have.next();
        while let Some(reached) = next {
            next = may_have.next();
            // The last one has it, if any.
            let straight = odds == Odds::Likely && next.is_none();
            match reached.get(key, hash, straight, aim)? {
                Held::Nothing => {}
                Held::Tombstone => return Ok(None),
                Held::Value(value) => return Ok(Some(value)),
            }
        }
        Ok(None)
    }

    fn tables(&self) -> impl Iterator<Item = &Reached> {
        self.runs.iter().flat_map(|run| &run.tables)
    }

    /// Aims at the record of a key that is likely to be there; `None` if that takes fjall's own read, or one of the index.
    pub(super) fn aim(&self, key: &[u8]) -> Option<Aim> {
        // The last one has it, if any.
        self.may_have(key).last()?.way.as_ref()?.aim(key)
    }

    /// The tables in whose range the key is, the newest first.
    fn may_have(&self, key: &[u8]) -> impl Iterator<Item = &Reached> {
        self.runs.iter().filter_map(move |run| run.may_have(key))
    }

    /// How many these are.
    #[cfg(test)]
    pub(super) fn tables_asked(&self, key: &[u8]) -> usize {
        self.may_have(key).count()
    }
}

impl Run {
    fn of(tables: Vec<Reached>) -> Run {
        let lasts: Vec<&[u8]> = tables.iter().map(Reached::last).collect();
        let fences = lasts.split_last().map(|(_, lasts)| Fences::of(lasts)).unwrap_or_default();
        Run { fences, tables }
    }

    /// The table in whose range the key is.
    fn may_have(&self, key: &[u8]) -> Option<&Reached> {
        let at = self.fences.find(key, |_| ());
        let reached = self.tables.get(at)?;
        let within = *reached.first <= *key && (at + 1 < self.tables.len() || key <= reached.last());
        (within && !reached.ends_before(key)).then_some(reached)
    }
}

impl Reached {
    fn new(table: &Table) -> Reached {
        let ends_late = table.metadata.key_range.max().first() >= Some(&tag::COUNT);
        let before = || table.range(..UserKey::from([tag::COUNT])).next_back();
        // After an error it is as fjall has it.
        // A copy, or it would keep its block.
        let end =
            ends_late.then(before).flatten().and_then(Result::ok).map(|record| UserKey::from(&*record.key.user_key));
        Reached { table: table.clone(), way: None, first: SmallVec::from_slice(table.metadata.key_range.min()), end }
    }

    fn last(&self) -> &[u8] {
        self.table.metadata.key_range.max()
    }

    /// Whether the key is behind all but the records that come with every flush.
    fn ends_before(&self, key: &[u8]) -> bool {
        self.end.as_ref().is_some_and(|end| **end < *key && key.first() < Some(&tag::COUNT))
    }

    fn get(&self, key: &[u8], hash: u64, straight: bool, aim: Option<&Aim>) -> Result<Held> {
        if let Some(way) = &self.way
            && let Some(may_have) = if straight { Some(true) } else { way.may_have(key, hash) }
            && let Some(found) = if may_have { way.get(key, aim) } else { Some(Held::Nothing) }
        {
            return Ok(found);
        }
        let record = self.table.get(key, u64::MAX, hash).map_err(fjall::Error::from);
        record.map(Held::from).map_err(StoreError::fjall("read a record"))
    }
}

impl View {
    /// The version of now, which may have tables of the one before.
    pub(super) fn newest(keyspace: &Keyspace, before: Option<&Reader>, ways: &Arc<Ways>) -> View {
        let version = keyspace.tree.current_version();
        let tables = before.iter().flat_map(|reader| reader.tables());
        let known: HashMap<TableId, &Reached> = tables.map(|reached| (reached.table.id(), reached)).collect();
        let mut bulk = Bulk::default();
        let mut reach = |table: &Table| {
            bulk.add(table.metadata.file_size, table.metadata.item_count, table.metadata.tombstone_count);
            let known = known.get(&table.id()).map(|reached| Reached::clone(reached));
            let mut reached = known.unwrap_or_else(|| Reached::new(table));
            if reached.way.is_none() {
                reached.way = Way::to(keyspace.tree.id(), table, ways).map(Arc::new);
            }
            reached
        };
        let runs = version.iter_levels().flat_map(|level| level.iter());
        let runs = runs.map(|run| Run::of(run.iter().map(&mut reach).collect())).collect();
        View { number: version.id(), bulk, reader: Arc::new(Reader { runs }) }
    }

    /// Bytes of memory for the ways to the tables.
    pub(super) fn pinned_bytes(&self) -> usize {
        let ways = self.reader.tables().filter_map(|reached| reached.way.as_ref());
        ways.map(|way| way.pinned_bytes()).sum()
    }

    /// Goes when the last reader has left: files go with the last who knows them, and that takes the disk's time, which is
    /// not to be a command's. Between files, and pieces of large ones, there are pauses as long as it `may_pause`.
    pub(super) fn leave(self, may_pause: impl Fn() -> bool) {
        let mut reader = self.reader;
        for _ in 0..LEAVE_LOOKS {
            match Arc::try_unwrap(reader) {
                Ok(alone) => {
                    let tables = alone.runs.into_iter().flat_map(|run| run.tables);
                    return tables.for_each(|table| table.leave(&may_pause));
                }
                Err(shared) => reader = shared,
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// A file that somebody has linked stays whole, as does one whose table is known elsewhere or has been aimed at; what is left of
    /// another has no name, and is but a piece.
    #[test]
    fn a_large_file_goes_piece_by_piece_and_only_if_nobody_has_it() {
        use crate::store::{Store, StoreOptions};
        let dir = crate::util::scratch::tempdir().unwrap();
        let store =
            Store::open(dir.path(), StoreOptions { shards: Some(1), nice: None, ..StoreOptions::default() }).unwrap();
        let partition = store.partition(0);
        let value: Vec<u8> = (0..4 * PIECE_BYTES).map(|n| crate::util::splitmix::next(&mut { n }) as u8).collect();
        for (linked, known, aimed) in
            [(false, false, false), (true, false, false), (false, true, false), (false, false, true)]
        {
            partition.ingest([(b"k".to_vec(), Some(value.clone()))]).unwrap();
            let view = partition
                .slot()
                .with(|keyspace| Ok(View::newest(keyspace, None, &Arc::new(Ways::new(9, 1 << 20, 1 << 20)))))
                .unwrap();
            let table = view.reader.tables().next().unwrap();
            let (path, known) = (table.table.path.to_path_buf(), known.then(|| table.clone()));
            let aimed = aimed.then(|| table.way.clone().unwrap());
            let (file, link) = (std::fs::File::open(&path).unwrap(), dir.path().join("link"));
            let whole = file.metadata().unwrap().len();
            assert!(whole > 4 * PIECE_BYTES);
            if linked {
                std::fs::hard_link(&path, &link).unwrap();
            }
            partition.ingest([(b"k".to_vec(), None::<Vec<u8>>)]).unwrap();
            assert!(partition.major_compact().unwrap());
            assert_eq!(file.metadata().unwrap().len(), whole, "who reads has it");
            view.leave(|| false);
            let left = if linked || known.is_some() || aimed.is_some() { whole } else { PIECE_BYTES };
            assert_eq!((file.metadata().unwrap().len(), path.exists()), (left, known.is_some()));
            _ = std::fs::remove_file(&link);
        }
    }
}
