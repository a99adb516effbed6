//! What a transaction will look up soon, fetched before: of ten thousand keys most lie in no cache, and one look-up
//! after the other would wait for each of their lines.
//!
//! As in the look-ahead of a pipeline each step is taken for all keys before the next is for any, so that their misses
//! overlap. Only the keys' hashes and shards are relied on: what was fetched may be changed, or gone, when it is looked up.

use smallvec::SmallVec;

use super::{Hint, Touched, Txn};
use crate::codec::NsId;
use crate::shard::memory::table::{Index, Lines, table_hash};

/// Keys fetched at once.
pub const AHEAD: usize = 32;

/// How far ahead of the object at hand a commit fetches.
const TOUCHED_AHEAD: usize = 8;

/// A key that a look-ahead has found for its command.
#[derive(Debug, Clone, Copy)]
pub struct Spotted {
    /// What there is to know of it, but for what is foreseen.
    pub hint: Hint,
    /// Where its object lay, if it was found.
    pub lines: Lines,
}

impl Spotted {
    /// Fetches its object, before its shard is leased and others wait for that; its hint then.
    #[inline]
    pub fn prefetch(&self, written: bool) -> Hint {
        let fetched = !self.lines.is_none();
        if fetched {
            self.lines.prefetch(written);
        }
        Hint { fetched, ..self.hint }
    }
}

impl Txn<'_, '_> {
    /// Fetches what the next look-ups of these keys will touch, of [`AHEAD`] of them at most; with each goes whether it
    /// is to be written. They stay where they are until they have been looked up.
    pub fn prefetch<'k>(&mut self, ns: NsId, keys: impl Iterator<Item = (&'k [u8], bool)>) {
        let hints = &mut self.set.hints;
        hints.clear();
        self.hinted.set(0);
        let slot = |(key, written): (&[u8], bool)| {
            let hash = self.router.hash(key);
            let shard = self.router.shard(hash, key);
            let at = self.lease.binary_search_by_key(&shard, |core| core.shard).ok()?;
            // Where an empty one lies, another begins.
            if !key.is_empty() {
                hints.push(Hint { foreseen: at as u16, ..Hint::new(key, hash, shard) });
            }
            let hash = table_hash(hash, ns);
            self.lease[at].table.slots().prefetch(hash);
            Some((at, hash, written))
        };
        let slots: SmallVec<[(usize, u32, bool); AHEAD]> = keys.take(AHEAD).filter_map(slot).collect();
        self.prefetch_objects(slots);
    }

    /// The same of the keys that routing has looked at and that have not been fetched, where it foresaw them, all of them to be
    /// written or none.
    pub fn prefetch_hinted(&self, ns: NsId, written: bool) {
        let slot = |hint: &Hint| {
            let (at, hash) = (self.foreseen(hint)? as usize, table_hash(hint.hash, ns));
            self.lease[at].table.slots().prefetch(hash);
            Some((at, hash, written))
        };
        let missing = self.set.hints.iter().filter(|hint| !hint.fetched);
        self.prefetch_objects(missing.take(AHEAD).filter_map(slot).collect());
    }

    fn prefetch_objects(&self, slots: SmallVec<[(usize, u32, bool); AHEAD]>) {
        let object = |(at, hash, written): (usize, u32, bool)| {
            Some((at, self.lease[at].table.prefetch_object(hash, written)?, written))
        };
        let objects: SmallVec<[(usize, Index, bool); AHEAD]> = slots.into_iter().filter_map(object).collect();
        for (at, index, written) in objects {
            self.lease[at].table.prefetch_bytes(index, written);
        }
    }

    /// The keys that were fetched go: others may come to where they lay.
    pub fn end_prefetch(&mut self) {
        self.set.hints.clear();
        self.hinted.set(0);
    }

    /// Fetches an object that a commit will come to, of those that it goes through.
    #[inline]
    pub(super) fn fetch_touched(&self, now_at: usize) {
        if let Some(Touched { at, .. }) = self.set.touched.get(now_at + TOUCHED_AHEAD) {
            self.lease[at.at as usize].table.prefetch_to_stamp(at.index);
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::shard::keyspace::walk::tests::engine;
    use crate::shard::txn::WriteSet;

    /// A command that is run again may have other shards than those that routing foresaw.
    #[test]
    fn keys_are_found_whichever_shards_are_leased() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let engine = engine(dir.path(), 4);
        let ns = engine.first_names().id(b"0").unwrap();
        let keys: Vec<Vec<u8>> = (0..40u32).map(|n| n.to_be_bytes().to_vec()).collect();
        let all = engine.all_shards();
        engine
            .transact(&all, 1, |txn| keys.iter().try_for_each(|key| txn.put_string(ns, key, key, 0).map(drop)))
            .unwrap();
        let mut set = WriteSet::default();
        for (shards, foreseen) in
            [(&all[..], &all[..]), (&all[..], &all[2..]), (&all[1..3], &all[..]), (&all[2..], &[])]
        {
            let hint = |key: &Vec<u8>| {
                let hash = engine.router.hash(key);
                let shard = engine.router.shard(hash, key);
                let foreseen = foreseen.binary_search(&shard).unwrap_or_default() as u16;
                Hint { foreseen, ..Hint::new(key, hash, shard) }
            };
            set.hints.clear();
            set.hints.extend(keys.iter().map(hint));
            let mut lease = engine.lease(shards);
            let mut txn = Txn::new(&mut lease, &engine.router, &mut set, 1, true);
            txn.prefetch_hinted(ns, false);
            for key in &keys {
                let leased = shards.contains(&hint(key).shard);
                match txn.find(ns, key) {
                    Ok(found) => assert!(leased && txn.object(found.unwrap()).key() == key, "{shards:?} {foreseen:?}"),
                    Err(error) => assert!(!leased && matches!(error, Error::Undeclared), "{shards:?} {foreseen:?}"),
                }
            }
        }
    }
}
