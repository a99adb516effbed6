//! One version of a partition, as point reads see it.

use super::error::{Result, StoreError};
use super::space::Bulk;
use super::way::{Aim, Held, Way, Ways};
use crate::codec::key::tag;
use crate::util::pace::at_times;
use fjall::{AbstractTree, Keyspace, UserKey, UserValue};
use lsm_tree::{Table, TableId};
use std::collections::HashMap;
use std::sync::Arc;
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
    runs: Vec<Vec<Reached>>,
}

/// A table, and the way there that is not fjall's.
#[derive(Clone)]
struct Reached {
    table: Table,
    way: Option<Arc<Way>>,
    /// Its last record before those that come with every flush, where it has such. They stand behind all others, so that by
    /// what fjall knows the table would seem to go on to them, and new keys in order to be within every run.
    end: Option<UserKey>,
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

    /// Aims at the record of a key that is likely to be there.
    pub(super) fn aim(&self, key: &[u8]) -> Option<Aim> {
        // The last one has it, if any.
        self.may_have(key).last()?.way.as_ref()?.aim(key)
    }

    /// The tables in whose range the key is, the newest first.
    fn may_have(&self, key: &[u8]) -> impl Iterator<Item = &Reached> {
        self.runs.iter().filter_map(move |run| {
            let reached = run.get(run.partition_point(|reached| *reached.table.metadata.key_range.max() < key))?;
            (*reached.table.metadata.key_range.min() <= key && !reached.ends_before(key)).then_some(reached)
        })
    }

    /// How many these are.
    #[cfg(test)]
    pub(super) fn tables_asked(&self, key: &[u8]) -> usize {
        self.may_have(key).count()
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
        Reached { table: table.clone(), way: None, end }
    }

    /// Whether the key is behind all but the records that come with every flush.
    fn ends_before(&self, key: &[u8]) -> bool {
        self.end.as_ref().is_some_and(|end| **end < *key && key.first() < Some(&tag::COUNT))
    }

    fn get(&self, key: &[u8], hash: u64, straight: bool, aim: Option<&Aim>) -> Result<Held> {
        if straight
            && let Some(way) = &self.way
            && let Some(found) = way.get(key, aim)
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
        let tables = before.iter().flat_map(|reader| reader.runs.iter().flatten());
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
        let runs = runs.map(|run| run.iter().map(&mut reach).collect()).collect();
        View { number: version.id(), bulk, reader: Arc::new(Reader { runs }) }
    }

    /// Bytes of memory for the ways to the tables.
    pub(super) fn pinned_bytes(&self) -> usize {
        let ways = self.reader.runs.iter().flatten().filter_map(|reached| reached.way.as_ref());
        ways.map(|way| way.pinned_bytes()).sum()
    }

    /// Goes when the last reader has left: files go with the last who knows them, and that takes the disk's time, which is
    /// not to be a command's.
    pub(super) fn leave(self) {
        let mut reader = self.reader;
        for _ in 0..LEAVE_LOOKS {
            match Arc::try_unwrap(reader) {
                Ok(alone) => return alone.runs.into_iter().flatten().for_each(|table| at_times(|| drop(table))),
                Err(shared) => reader = shared,
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
