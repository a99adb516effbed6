//! Keys that are read in passing: their record was brought for this command, and need not enter the table, where who may never
//! ask again would push out what others use.

use smallvec::SmallVec;

use super::Txn;
use crate::codec::field::FieldTimes;
use crate::codec::{self, Meta, NsId, pack};
use crate::error::Result;
use crate::meter;
use crate::shard::memory::core::storage;
use crate::shard::memory::object::Kind;
use crate::shard::memory::table::table_hash;
use crate::store::UserValue;

/// A live key in one record: a small string, or a small collection.
pub struct Passing {
    record: UserValue,
    /// Where what follows the metadata begins.
    from: usize,
    meta: Meta,
}

/// Whether its record has all of a key.
fn is_whole(meta: &Meta) -> bool {
    if meta.kind == codec::Kind::String { meta.version == 0 } else { meta.packed }
}

impl Passing {
    /// Its metadata.
    pub const fn meta(&self) -> &Meta {
        &self.meta
    }

    /// A string's value.
    pub fn value(&self) -> &[u8] {
        &self.record[self.from..]
    }

    /// The value of a collection's element, if it is there. `key` is for the error.
    pub fn element(&self, key: &[u8], element: &[u8]) -> Result<Option<SmallVec<[u8; 64]>>> {
        pack::find(&self.meta, self.value(), element).map_err(|e| storage(key, e))
    }
}

impl Txn<'_, '_> {
    /// A live key of this kind that is read in passing; `None` where it is to be looked up.
    #[inline]
    pub fn in_passing(&mut self, ns: NsId, key: &[u8], kind: Kind) -> Result<Option<Passing>> {
        if self.set.reads.memory_bytes() == 0 { Ok(None) } else { self.brought_whole(ns, key, kind) }
    }

    /// Whether all of a key is in the record that was brought for this command.
    #[inline]
    pub(super) fn is_brought_whole(&self, ns: NsId, key: &[u8]) -> bool {
        self.set.reads.memory_bytes() != 0 && self.has_brought_whole(ns, key)
    }

    #[cold]
    fn has_brought_whole(&self, ns: NsId, key: &[u8]) -> bool {
        let Some((hash, at)) = self.place_of_brought(key) else { return false };
        let core = &self.lease[at];
        let record = self.set.reads.brought(core, table_hash(hash, ns), ns, key);
        record.is_some_and(|record| Meta::decode(record).is_ok_and(|(meta, ..)| is_whole(&meta)))
    }

    /// A key's hash, and the shard in the lease that it is of.
    fn place_of_brought(&self, key: &[u8]) -> Option<(u64, usize)> {
        let hash = self.router.hash(key);
        let shard = self.router.shard(hash, key);
        Some((hash, self.lease.binary_search_by_key(&shard, |core| core.shard).ok()?))
    }

    #[cold]
    fn brought_whole(&mut self, ns: NsId, key: &[u8], kind: Kind) -> Result<Option<Passing>> {
        let Some((hash, at)) = self.place_of_brought(key) else { return Ok(None) };
        let core = &mut *self.lease[at];
        let Some(record) = core.in_passing(hash, ns, key, &self.set.reads) else { return Ok(None) };
        // What cannot be read, what is expired or has times of fields, and another type are for who looks it up.
        let Ok((meta, _, rest)) = Meta::decode(&record) else { return Ok(None) };
        let is_expired = meta.expire_ms != 0 && meta.expire_ms <= self.due_ms;
        if kind.stored() != Some(meta.kind) || !is_whole(&meta) || is_expired || FieldTimes::of(&meta.extra).is_some() {
            return Ok(None);
        }
        meter::step(1)?;
        let from = record.len() - rest.len();
        core.stats.stored_reads += 1;
        core.stats.passing_reads += 1;
        self.hits += u64::from(self.count_hits);
        Ok(Some(Passing { record, from, meta }))
    }
}
