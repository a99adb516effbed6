//! Which keys fjall may hold: a filter in memory that answers most look-ups of absent keys without fjall.
//!
//! Without it every SET of a new key, once the data exceeds the caches, would have to wait for the disk only to learn
//! that there was nothing. A blocked Bloom filter: a key's eight bits lie in one cache line. It grows by layers, each
//! twice as large as the one before, since a filter cannot be widened without its keys.
//!
//! | | |
//! |---|---|
//! | bits a key | 10.7: about one absent key in a hundred passes |
//! | memory of ten million keys | 13 to 27 MB, as the last layer is more or less full |
//!
//! A key cannot be taken out. Once far more have been added than there are, and than there were when the filter was
//! complete, another one is filled beside it, by the shard's timer from fjall and by each flush, and takes its place.
//!
//! Invariants: every key whose metadata fjall may hold has been added, once the filter is complete; a flush adds its keys
//! before they reach fjall, each time; a filter begins to be filled between two flushes.

use crate::util::splitmix;

/// The keys of one shard that fjall may hold, by their 32-bit table hashes.
pub struct Membership {
    /// The one that is asked; `None` before there is a complete one.
    filter: Option<Filter>,
    /// Takes its place when complete.
    filling: Option<Filling>,
    /// Keys in it when it was complete.
    complete_with: usize,
}

/// A filter that grows with its keys.
#[derive(Default)]
struct Filter {
    layers: Vec<Layer>,
}

/// A filter that does not yet have all keys.
struct Filling {
    filter: Filter,
    /// The first record of fjall that it has not seen.
    from: Vec<u8>,
}

struct Layer {
    blocks: Vec<[u64; 8]>,
    used: usize,
}

const BITS_PER_KEY: usize = 11;
const BITS_PER_BLOCK: usize = 512;
const FIRST_LAYER_BLOCKS: usize = 1024;
/// Keys beyond that for which no other filter is made yet: as many as the first layer has room for.
const SPARE_KEYS: usize = if cfg!(test) { 4 } else { FIRST_LAYER_BLOCKS * BITS_PER_BLOCK / BITS_PER_KEY };

/// Spreads a hash over 64 bits: the upper half names the block, nine bits at a time of the rest a bit in it.
#[inline]
fn spread(hash: u32) -> u64 {
    splitmix::next(&mut u64::from(hash))
}

impl Layer {
    fn new(blocks: usize) -> Self {
        Layer { blocks: vec![[0; 8]; blocks], used: 0 }
    }

    fn is_full(&self) -> bool {
        self.used * BITS_PER_KEY >= self.blocks.len() * BITS_PER_BLOCK
    }

    #[inline]
    fn block(&self, spread: u64) -> usize {
        (((spread >> 32) * self.blocks.len() as u64) >> 32) as usize
    }

    /// In each of the block's eight words one bit.
    #[inline]
    fn bit(spread: u64, word: usize) -> u64 {
        let low = (spread as u32).wrapping_mul(0x85eb_ca6b) ^ (spread as u32 >> 15);
        let turned = u64::from(low).wrapping_mul(0x9e37_79b9_7f4a_7c15_u64.rotate_left(word as u32 * 8 + 1));
        1 << (turned >> 58)
    }

    fn insert(&mut self, spread: u64) {
        let block = self.block(spread);
        for (word, bits) in self.blocks[block].iter_mut().enumerate() {
            *bits |= Self::bit(spread, word);
        }
        self.used += 1;
    }

    #[inline]
    fn contains(&self, spread: u64) -> bool {
        let block = &self.blocks[self.block(spread)];
        block.iter().enumerate().all(|(word, bits)| bits & Self::bit(spread, word) != 0)
    }
}

impl Filter {
    fn insert(&mut self, hash: u32) {
        if self.contains(hash) {
            return;
        }
        if self.layers.last().is_none_or(Layer::is_full) {
            let blocks = self.layers.last().map_or(FIRST_LAYER_BLOCKS, |layer| layer.blocks.len() * 2);
            self.layers.push(Layer::new(blocks));
        }
        if let Some(layer) = self.layers.last_mut() {
            layer.insert(spread(hash));
        }
    }

    #[inline]
    fn contains(&self, hash: u32) -> bool {
        let spread = spread(hash);
        self.layers.iter().rev().any(|layer| layer.contains(spread))
    }

    fn keys(&self) -> usize {
        self.layers.iter().map(|layer| layer.used).sum()
    }

    fn bytes(&self) -> usize {
        self.layers.iter().map(|layer| layer.blocks.len() * BITS_PER_BLOCK / 8).sum()
    }
}

impl Membership {
    /// Knows no key yet; to be filled with what fjall holds from this record on.
    pub fn new(from: Vec<u8>) -> Self {
        Membership { filter: None, filling: Some(Filling { filter: Filter::default(), from }), complete_with: 0 }
    }

    /// Adds a key that fjall is about to hold.
    pub fn insert(&mut self, hash: u32) {
        for filter in self.filter.iter_mut().chain(self.filling.as_mut().map(|filling| &mut filling.filter)) {
            filter.insert(hash);
        }
    }

    /// False if fjall does not hold the key for certain.
    #[inline]
    pub fn may_contain(&self, hash: u32) -> bool {
        self.filter.as_ref().is_none_or(|filter| filter.contains(hash))
    }

    /// Whether what it lets through is there, most likely.
    pub fn is_complete(&self) -> bool {
        self.filter.is_some()
    }

    /// The record of fjall from which on a filter is still to be filled.
    pub fn fill_from(&self) -> Option<&[u8]> {
        self.filling.as_ref().map(|filling| &filling.from[..])
    }

    /// Adds keys that fjall was found to hold.
    pub fn fill(&mut self, hashes: &[u32]) {
        if let Some(Filling { filter, .. }) = &mut self.filling {
            hashes.iter().for_each(|&hash| filter.insert(hash));
        }
    }

    /// All records before `next` have been seen; all there are if there is none.
    pub fn filled_to(&mut self, next: Option<Vec<u8>>) {
        match (next, self.filling.take()) {
            (Some(from), Some(filling)) => self.filling = Some(Filling { from, ..filling }),
            (None, Some(filling)) => {
                self.complete_with = filling.filter.keys();
                self.filter = Some(filling.filter);
            }
            (_, None) => {}
        }
    }

    /// Whether another filter is worth the reading: this one has twice the `keys` that the shard has now, and twice
    /// those it had when it was complete.
    pub fn is_outgrown(&self, keys: u64) -> bool {
        let Some(filter) = &self.filter else { return false };
        let added = filter.keys();
        self.filling.is_none() && added > SPARE_KEYS + 2 * self.complete_with && (added - SPARE_KEYS) as u64 > 2 * keys
    }

    /// Begins another filter, to be filled with what fjall holds from this record on. No flush may be under way: what it
    /// has added to the present one, the other would not get.
    pub fn refill(&mut self, from: Vec<u8>) {
        self.filling = Some(Filling { filter: Filter::default(), from });
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        let filling = self.filling.as_ref().map(|filling| &filling.filter);
        self.filter.iter().chain(filling).map(Filter::bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_added_passes_and_few_others_do() {
        let mut filter = Membership::new(Vec::new());
        assert!(filter.may_contain(1), "an incomplete filter says maybe");
        filter.filled_to(None);
        let hash = |n: u32| n.wrapping_mul(0x9e37_79b1) ^ (n >> 7);
        (0..300_000).for_each(|n| filter.insert(hash(n)));
        assert!((0..300_000).all(|n| filter.may_contain(hash(n))));
        let passed = (300_000..600_000).filter(|&n| filter.may_contain(hash(n))).count();
        assert!(passed < 300_000 * 4 / 100, "{passed} of 300,000 absent keys passed");
        // Bloom's bound: 6.7 bits a key for one in 25.
        assert!((300_000 * 67 / 80..1_300_000).contains(&filter.bytes()), "{} bytes", filter.bytes());
    }

    /// Keys come and go; the filter must not keep them all.
    #[test]
    fn keys_that_are_gone_take_no_memory_for_ever() {
        let mut filter = Membership::new(Vec::new());
        filter.filled_to(None);
        let live = 1000..2000;
        for first in (0..3_000_000).step_by(10_000) {
            (first..first + 10_000).for_each(|hash| filter.insert(hash));
            if filter.is_outgrown(live.len() as u64) {
                assert_eq!(filter.fill_from(), None);
                filter.refill(b"from".to_vec());
                assert_eq!(filter.fill_from(), Some(&b"from"[..]));
                assert!(!filter.is_outgrown(0), "one at a time");
                // What a flush adds meanwhile is in both.
                filter.insert(7);
                filter.insert(first + 5_000_000);
                assert!(filter.may_contain(first + 5_000_000));
                filter.fill(&live.clone().collect::<Vec<_>>());
                filter.filled_to(Some(b"next".to_vec()));
                assert!(filter.may_contain(first), "the old one is asked until the new one is complete");
                filter.filled_to(None);
                assert!(filter.may_contain(7) && live.clone().all(|hash| filter.may_contain(hash)));
            }
            assert!(filter.bytes() < 1 << 20, "{} bytes", filter.bytes());
        }
        assert!((0..3_000_000).filter(|&hash| filter.may_contain(hash)).count() < 200_000);
    }
}
