//! The second-level cache: metadata records of clean objects that left the table, collections and strings in chunks.
//!
//! Wide and budgeted, behind the shard's own table: a moka hit costs microseconds, as much as a block that fjall holds
//! in memory, but an entry takes some hundred bytes, a packed collection's a KiB more at most, where the block cache takes
//! a block. An entry costs as much to make as the read that it spares: a doorkeeper lets in only what leaves the table for
//! the second time within a while, so that who passes by once, or is only written, costs nothing here. A small string takes half
//! as much in the table as it would here: it is let in there alone, and the table has the room that this does not need.
//!
//! Invariant: a key stands in the table or here, never in both; [`ColdCache::take`] removes what it finds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use smallvec::SmallVec;

use super::door::Doorkeeper;
use crate::codec::NsId;
use crate::util::prefetch::prefetch;

/// moka with byte budget; keys are namespace id and user key.
pub struct ColdCache {
    cache: moka::sync::Cache<Box<[u8]>, Entry, foldhash::fast::RandomState>,
    /// What it may hold: most of what is asked for is not here, and moka takes as long to say so as for what is.
    hashes: Arc<Hashes>,
    /// Entries ever put, and the hashes of the latest.
    puts: u64,
    latest: [u32; LATEST],
    door: Doorkeeper,
}

/// A metadata record, and the hash of its key.
#[derive(Clone)]
struct Entry {
    hash: u32,
    record: bytes::Bytes,
}

/// How many entries there are of hashes with the same low bits: written under the shard's lock, as moka tells of what leaves
/// within the calls of who changes it.
struct Hashes(Box<[AtomicU8]>);

impl Hashes {
    /// For about so many entries, of which one in [`HASH_ROOM`] shares its place.
    fn new(entries: usize) -> Hashes {
        let places = (entries * HASH_ROOM).next_power_of_two().clamp(MIN_HASHES, MAX_HASHES);
        // Of what nobody has counted yet the system need not have a page.
        let counts = Box::into_raw(vec![0_u8; places].into_boxed_slice());
        #[expect(unsafe_code, reason = "no safe form")]
        // SAFETY: it comes from a box, and an `AtomicU8` is in memory what a `u8` is.
        Hashes(unsafe { Box::from_raw(counts as *mut [AtomicU8]) })
    }

    fn at(&self, hash: u32) -> &AtomicU8 {
        &self.0[hash as usize & (self.0.len() - 1)]
    }

    fn may_hold(&self, hash: u32) -> bool {
        self.at(hash).load(Ordering::Relaxed) > 0
    }

    /// A count that has reached its end stays there.
    fn count(&self, hash: u32, change: impl Fn(u8) -> u8) {
        let change = |count: u8| (count < u8::MAX).then(|| change(count));
        _ = self.at(hash).fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
    }
}

/// Places for each entry.
const HASH_ROOM: usize = 8;
const MIN_HASHES: usize = 1 << 10;
const MAX_HASHES: usize = 1 << 20;

/// Hashes that are kept of what was put.
const LATEST: usize = 64;

/// Bytes of an entry of which the budget has room for as many as the doorkeeper sees.
const USUAL_ENTRY: usize = 400;

#[expect(clippy::borrowed_box, reason = "moka hands out its own key type")]
fn weigh(key: &Box<[u8]>, value: &Entry) -> u32 {
    ENTRY_OVERHEAD + (key.len() + value.record.len()) as u32
}

/// Bytes moka spends on an entry beside key and value, as measured; with its places among the hashes.
const ENTRY_OVERHEAD: u32 = 300;

impl ColdCache {
    /// A cache of `budget` bytes.
    pub fn new(budget: usize) -> Self {
        let hashes = Arc::new(Hashes::new(budget / USUAL_ENTRY));
        let known = hashes.clone();
        let cache = moka::sync::Cache::builder()
            .max_capacity(budget as u64)
            .weigher(weigh)
            // After the entry is gone from moka's map: what is counted no more is not there.
            .eviction_listener(move |_, entry: Entry, _| known.count(entry.hash, |count| count.saturating_sub(1)))
            .build_with_hasher(foldhash::fast::RandomState::default());
        ColdCache { cache, hashes, puts: 0, latest: [0; LATEST], door: Doorkeeper::new(budget / USUAL_ENTRY) }
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
    pub fn take(&mut self, hash: u32, ns: NsId, key: &[u8]) -> Option<bytes::Bytes> {
        if !self.hashes.may_hold(hash) {
            return None;
        }
        self.cache.remove(&Self::key(ns, key)[..]).map(|entry| entry.record)
    }

    /// The metadata record of a key, as fjall holds it.
    pub fn peek(&self, hash: u32, ns: NsId, key: &[u8]) -> Option<bytes::Bytes> {
        if !self.hashes.may_hold(hash) {
            return None;
        }
        self.cache.get(&Self::key(ns, key)[..]).map(|entry| entry.record)
    }

    /// Fetches what tells whether a key of this hash may be here.
    #[inline]
    pub fn prefetch(&self, hash: u32) {
        prefetch::<AtomicU8>(self.hashes.at(hash));
    }

    /// Whether something is known of a key.
    pub fn contains(&self, hash: u32, ns: NsId, key: &[u8]) -> bool {
        self.hashes.may_hold(hash) && self.cache.contains_key(&Self::key(ns, key)[..])
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
        self.hashes.count(hash, |count| count + 1);
    }

    /// Remembers a metadata record.
    pub fn put(&mut self, hash: u32, ns: NsId, key: &[u8], meta: Vec<u8>) {
        self.note(hash);
        self.cache.insert(Self::key(ns, key)[..].into(), Entry { hash, record: meta.into() });
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
    #[cfg(test)]
    pub fn clear(&mut self) {
        let ColdCache { cache, hashes, .. } = self.successor(self.budget());
        (self.cache, self.hashes) = (cache, hashes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever way an entry goes, its hash is known as long as it is there, and no longer, but where many share a place.
    #[test]
    fn what_is_there_is_among_the_hashes() {
        let mut cache = ColdCache::new(20 << 10);
        let (mut there, mut known) = (0, 0);
        for n in 0..5000u32 {
            let hash = n % 3000;
            let key = hash.to_be_bytes();
            match n % 7 {
                0 => _ = cache.take(hash, 0, &key),
                _ => cache.put(hash, 0, &key, vec![1; n as usize % 50]),
            }
            if n % 50 == 0 {
                cache.cache.run_pending_tasks();
                for hash in 0..3000u32 {
                    let is_there = cache.cache.contains_key(&ColdCache::key(0, &hash.to_be_bytes())[..]);
                    assert!(!is_there || cache.hashes.may_hold(hash), "{hash}");
                    assert_eq!(cache.contains(hash, 0, &hash.to_be_bytes()), is_there);
                    there += u32::from(is_there);
                    known += u32::from(cache.hashes.may_hold(hash));
                }
            }
        }
        // Three hashes to a place here.
        assert!(there > 1000 && known < 4 * there, "{known} of {there}");
        cache.clear();
        assert!((0..3000).all(|hash| !cache.hashes.may_hold(hash)));
    }

    /// Small records take what their keys and moka take, which is most of it.
    #[test]
    fn an_entry_takes_more_than_its_record() {
        const BUDGET: usize = 100 << 10;
        let mut cache = ColdCache::new(BUDGET);
        for hash in 0..5000u32 {
            let key = [&[b'k'; 100][..], &hash.to_be_bytes()].concat();
            cache.put(hash, 0, &key, vec![1; 20]);
        }
        cache.cache.run_pending_tasks();
        let one = ENTRY_OVERHEAD as usize + 4 + 104 + 20;
        assert_eq!(cache.bytes(), cache.len() * one as u64);
        assert!((1..=BUDGET / one).contains(&(cache.len() as usize)), "{} entries", cache.len());
    }

    #[test]
    fn a_count_that_has_reached_its_end_stays() {
        let hashes = Hashes::new(1);
        (0..300).for_each(|_| hashes.count(7, |count| count + 1));
        (0..300).for_each(|_| hashes.count(7, |count| count.saturating_sub(1)));
        assert!(hashes.may_hold(7) && !hashes.may_hold(8));
    }

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
