//! What a transaction will look up soon, fetched before: of ten thousand keys most lie in no cache, and one look-up
//! after the other would wait for each of their lines.
//!
//! As in the look-ahead of a pipeline each step is taken for all keys before the next is for any, so that their misses
//! overlap. Nothing is kept: what was fetched may be changed, or gone, when it is looked up.

use smallvec::SmallVec;

use super::Txn;
use crate::codec::NsId;
use crate::shard::memory::table::{Index, table_hash};

/// Keys fetched at once.
pub const AHEAD: usize = 32;

impl Txn<'_, '_> {
    /// Fetches what the next look-ups of these keys will touch, of [`AHEAD`] of them at most; with each goes whether it
    /// is to be written.
    pub fn prefetch<'k>(&self, ns: NsId, keys: impl Iterator<Item = (&'k [u8], bool)>) {
        let slot = |(key, written): (&[u8], bool)| {
            let hash = self.router.hash(key);
            let shard = self.router.shard(hash, key);
            let at = self.lease.binary_search_by_key(&shard, |core| core.shard).ok()?;
            let hash = table_hash(hash, ns);
            self.lease[at].table.slots().prefetch(hash);
            Some((at, hash, written))
        };
        let slots: SmallVec<[(usize, u32, bool); AHEAD]> = keys.take(AHEAD).filter_map(slot).collect();
        let object = |(at, hash, written): (usize, u32, bool)| {
            Some((at, self.lease[at].table.prefetch_object(hash, written)?, written))
        };
        let objects: SmallVec<[(usize, Index, bool); AHEAD]> = slots.into_iter().filter_map(object).collect();
        for (at, index, written) in objects {
            self.lease[at].table.prefetch_bytes(index, written);
        }
    }
}
