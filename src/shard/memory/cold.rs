//! The second-level cache: metadata records of clean objects that left the table.
//!
//! Wide and budgeted, behind the shard's own table: a moka hit costs microseconds, as much as a block that fjall holds
//! in memory, but an entry takes a hundred bytes where the block cache takes a block. An entry costs as much to make as the
//! read that it spares: a doorkeeper lets in only what leaves the table for the second time within a while, so that who
//! passes by once, or is only written, costs nothing here.
//!
//! Invariant: a key stands in the table or here, never in both; [`ColdCache::take`] removes what it finds.

use smallvec::SmallVec;

use super::door::Doorkeeper;
use crate::codec::NsId;

/// moka with byte budget; keys are namespace id and user key.
pub struct ColdCache {
    cache: moka::sync::Cache<Box<[u8]>, bytes::Bytes, foldhash::fast::RandomState>,
    /// Entries put and not taken; an upper bound that spares the look-up while the cache is empty.
    entries: usize,
    /// Entries ever put, and the hashes of the latest.
    puts: u64,
    latest: [u32; LATEST],
    door: Doorkeeper,
}

/// Hashes that are kept of what was put.
const LATEST: usize = 64;

/// Bytes of an entry of which the budget has room for as many as the doorkeeper sees.
const USUAL_ENTRY: usize = 400;

#[expect(clippy::borrowed_box, reason = "moka hands out its own key type")]
fn weigh(key: &Box<[u8]>, value: &bytes::Bytes) -> u32 {
    ENTRY_OVERHEAD + (key.len() + value.len()) as u32
}

/// Bytes moka spends on an entry beside key and value, as measured.
const ENTRY_OVERHEAD: u32 = 280;

impl ColdCache {
    /// A cache of `budget` bytes.
    pub fn new(budget: usize) -> Self {
        let cache = moka::sync::Cache::builder()
            .max_capacity(budget as u64)
            .weigher(weigh)
            .build_with_hasher(foldhash::fast::RandomState::default());
        ColdCache { cache, entries: 0, puts: 0, latest: [0; LATEST], door: Doorkeeper::new(budget / USUAL_ENTRY) }
    }

    /// An empty one of another size.
    pub fn successor(&self, budget: usize) -> Self {
        ColdCache { puts: self.puts, ..ColdCache::new(budget) }
    }

    /// Bytes it may hold.
    pub fn budget(&self) -> usize {
        self.cache.policy().max_capacity().map_or(usize::MAX, |bytes| bytes as usize)
    }

    fn key(ns: NsId, key: &[u8]) -> SmallVec<[u8; 64]> {
        let mut of_ns = SmallVec::from_slice(&ns.to_be_bytes());
        of_ns.extend_from_slice(key);
        of_ns
    }

    /// Removes and returns the metadata record of a key, as fjall holds it.
    pub fn take(&mut self, ns: NsId, key: &[u8]) -> Option<bytes::Bytes> {
        if self.entries == 0 {
            return None;
        }
        self.cache.remove(&Self::key(ns, key)[..])
    }

    /// Whether something is known of a key.
    pub fn contains(&self, ns: NsId, key: &[u8]) -> bool {
        self.entries > 0 && self.cache.contains_key(&Self::key(ns, key)[..])
    }

    /// Whether a record is to be remembered whose key, of this hash, leaves the table.
    pub fn lets_in(&mut self, hash: u32) -> bool {
        self.door.knows(hash)
    }

    /// Entries ever put.
    pub fn puts(&self) -> u64 {
        self.puts
    }

    /// Whether a key of this hash that was not known when so many had been put may be by now.
    pub fn may_know_since(&self, puts: u64, hash: u32) -> bool {
        let since = (self.puts - puts) as usize;
        let latest = |back| self.latest[(self.puts as usize - back) % LATEST];
        since > LATEST || (1..=since).any(|back| latest(back) == hash)
    }

    fn note(&mut self, hash: u32) {
        self.latest[self.puts as usize % LATEST] = hash;
        self.puts += 1;
        self.entries += 1;
    }

    /// Remembers a metadata record.
    pub fn put(&mut self, hash: u32, ns: NsId, key: &[u8], meta: Vec<u8>) {
        self.note(hash);
        self.cache.insert(Self::key(ns, key)[..].into(), meta.into());
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.cache.weighted_size()
    }

    /// Number of entries.
    pub fn len(&self) -> u64 {
        self.cache.entry_count()
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.entries = 0;
        self.cache.invalidate_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was not known may be only if it has been put since, or if so many have been that nobody knows.
    #[test]
    fn who_was_not_known_is_not_unless_it_was_put() {
        let mut cache = ColdCache::new(1 << 20);
        cache.put(7, 0, b"seven", vec![1]);
        let before = cache.puts();
        assert!(!cache.may_know_since(before, 7), "put before");
        for hash in 100..100 + LATEST as u32 {
            assert!(!cache.may_know_since(before, hash));
            cache.put(hash, 0, &hash.to_be_bytes(), vec![1]);
            assert!(cache.may_know_since(before, hash));
        }
        assert!(!cache.may_know_since(before, 7));
        assert!(cache.may_know_since(before, 100), "the oldest of the latest");
        let successor = cache.successor(1 << 10);
        assert!(!successor.may_know_since(cache.puts(), 100));
        cache.put(8, 0, b"eight", vec![1]);
        assert!(cache.may_know_since(before, 7), "too many to know");
    }
}
