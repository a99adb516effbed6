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
//! Invariants: every key whose metadata fjall may hold has been added, once the filter is complete; a key is never taken
//! out, so that what a crash or a failed ingestion leaves unclear stays a "maybe".

use crate::util::splitmix;

/// A filter over the 32-bit table hashes of one shard's keys.
#[derive(Default)]
pub struct Membership {
    layers: Vec<Layer>,
    complete: bool,
}

struct Layer {
    blocks: Vec<[u64; 8]>,
    used: usize,
}

const BITS_PER_KEY: usize = 11;
const BITS_PER_BLOCK: usize = 512;
const FIRST_LAYER_BLOCKS: usize = 1024;

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

impl Membership {
    /// Adds a key that fjall is about to hold, or was found to hold.
    pub fn insert(&mut self, hash: u32) {
        if self.layers.last().is_none_or(Layer::is_full) {
            let blocks = self.layers.last().map_or(FIRST_LAYER_BLOCKS, |layer| layer.blocks.len() * 2);
            self.layers.push(Layer::new(blocks));
        }
        if let Some(layer) = self.layers.last_mut() {
            layer.insert(spread(hash));
        }
    }

    /// False if fjall does not hold the key for certain.
    #[inline]
    pub fn may_contain(&self, hash: u32) -> bool {
        if !self.complete {
            return true;
        }
        let spread = spread(hash);
        self.layers.iter().rev().any(|layer| layer.contains(spread))
    }

    /// Whether all that fjall holds has been added.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// All that fjall holds has been added.
    pub fn set_complete(&mut self) {
        self.complete = true;
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(|layer| layer.blocks.len() * BITS_PER_BLOCK / 8).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_added_passes_and_few_others_do() {
        let mut filter = Membership::default();
        assert!(filter.may_contain(1), "an incomplete filter says maybe");
        filter.set_complete();
        let hash = |n: u32| n.wrapping_mul(0x9e37_79b1) ^ (n >> 7);
        (0..300_000).for_each(|n| filter.insert(hash(n)));
        assert!((0..300_000).all(|n| filter.may_contain(hash(n))));
        let passed = (300_000..600_000).filter(|&n| filter.may_contain(hash(n))).count();
        assert!(passed < 300_000 * 4 / 100, "{passed} of 300,000 absent keys passed");
        assert!(filter.bytes() < 1_300_000, "{} bytes", filter.bytes());
    }
}
