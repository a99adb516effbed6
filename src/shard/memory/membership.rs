//! Which keys fjall may hold: a filter in memory that answers most look-ups of absent keys without fjall.
//!
//! Without it every SET of a new key, once the data exceeds the caches, would have to wait for the disk only to learn
//! that there was nothing. A blocked Bloom filter: a key's eight bits lie in one cache line. It grows by layers, each
//! twice as large as the one before, since a filter cannot be widened without its keys.
//!
//! | | |
//! |---|---|
//! | bits a key | 10.7: about one absent key in a hundred passes a layer |
//! | memory of ten million keys | 13 to 27 MB, as the last layer is more or less full |
//!
//! A key cannot be taken out. Once far more have been added than there are, and than there were when the filter was
//! complete, another one is filled beside it, by the shard's timer from fjall and by each flush, and takes its place.
//!
//! What comes in order needs no filter: the last of all keys that fjall may hold is known, and no key behind it can be there.
//!
//! The filter is a part of the table, a quarter at most. Where the keys are too many for that it is given up, and fjall's own filters
//! answer, which are on disk and in the block cache; there is one again when as many records are no more than half.
//!
//! Invariants: every key whose metadata fjall may hold has been added, once the filter is complete, and none is behind the last;
//! a flush adds its keys before they reach fjall, each time; a filter begins to be filled between two flushes.
//!
//! A clean end [saves](Membership::save) it for the next start.

use std::ops::Range;

use crate::codec::NsId;
use crate::util::prefetch::{LINE, prefetch};
use crate::util::splitmix;

mod saved;

pub use saved::{Restored, Saved};

use super::core::Core;
use super::order;
use super::table::{Index, Table};

/// The keys of one shard that fjall may hold, by their 32-bit table hashes.
pub struct Membership {
    /// The last of them in the order of records, as it stands there; there may be none behind it.
    last: Option<(NsId, Vec<u8>)>,
    /// The one that is asked; `None` before there is a complete one.
    filter: Option<Filter>,
    /// Takes its place when complete.
    filling: Option<Filling>,
    /// Keys in it when it was complete.
    complete_with: usize,
    /// Of both, and what they may take.
    bytes: usize,
    most_bytes: usize,
    given_up: GivenUp,
    /// No key has been added since fjall was opened.
    untouched: bool,
    /// What a clean end has left.
    saved: Option<Saved>,
}

/// Whether the keys were too many, and until when nobody tries again: each time fjall would be read through.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GivenUp {
    No,
    JustNow,
    /// Until fjall has no more records than these.
    Until(u64),
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
    /// The blocks, from the first word that begins a cache line on. Zeroed by the system, page by page as they are used.
    words: Vec<u64>,
    first: usize,
    blocks: usize,
    used: usize,
}

const BITS_PER_KEY: usize = 11;
const BITS_PER_BLOCK: usize = 512;
const BLOCK_BYTES: usize = BITS_PER_BLOCK / 8;
const BLOCK_WORDS: usize = BLOCK_BYTES / size_of::<u64>();
const FIRST_LAYER_BLOCKS: usize = if cfg!(test) { 8 } else { 1024 };
/// The part of the table that it may take.
const PART: usize = 4;
/// Keys beyond that for which no other filter is made yet: as many as the first layer has room for.
const SPARE_KEYS: usize = if cfg!(test) { 4 } else { FIRST_LAYER_BLOCKS * BITS_PER_BLOCK / BITS_PER_KEY };

/// Spreads a hash over 64 bits: the upper half names the block, nine bits at a time of the rest a bit in it.
#[inline]
fn spread(hash: u32) -> u64 {
    splitmix::next(&mut u64::from(hash))
}

impl Layer {
    fn new(blocks: usize) -> Self {
        let words = vec![0; (blocks + 1) * BLOCK_WORDS];
        let first = words.as_ptr().align_offset(LINE).min(BLOCK_WORDS);
        Layer { words, first, blocks, used: 0 }
    }

    fn is_full(&self) -> bool {
        self.used * BITS_PER_KEY >= self.blocks * BITS_PER_BLOCK
    }

    /// The words of the key's block.
    #[inline]
    fn block(&self, spread: u64) -> Range<usize> {
        let block = (((spread >> 32) * self.blocks as u64) >> 32) as usize;
        let first = self.first + block * BLOCK_WORDS;
        first..first + BLOCK_WORDS
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
        for (word, bits) in self.words[block].iter_mut().enumerate() {
            *bits |= Self::bit(spread, word);
        }
        self.used += 1;
    }

    #[inline]
    fn contains(&self, spread: u64) -> bool {
        let block = &self.words[self.block(spread)];
        block.iter().enumerate().all(|(word, bits)| bits & Self::bit(spread, word) != 0)
    }
}

impl Filter {
    /// Adds a key, and to `bytes` what that takes of memory. False if it would be more than `most`.
    fn insert(&mut self, hash: u32, bytes: &mut usize, most: usize) -> bool {
        if self.contains(hash) {
            return true;
        }
        if self.layers.last().is_none_or(Layer::is_full) {
            let blocks = self.layers.last().map_or(FIRST_LAYER_BLOCKS, |layer| layer.blocks * 2);
            if *bytes + blocks * BLOCK_BYTES > most {
                return false;
            }
            *bytes += blocks * BLOCK_BYTES;
            self.layers.push(Layer::new(blocks));
        }
        if let Some(layer) = self.layers.last_mut() {
            layer.insert(spread(hash));
        }
        true
    }

    #[inline]
    fn contains(&self, hash: u32) -> bool {
        let spread = spread(hash);
        self.layers.iter().rev().any(|layer| layer.contains(spread))
    }

    /// Fetches what tells of a key.
    #[inline]
    fn prefetch(&self, hash: u32) {
        let spread = spread(hash);
        self.layers.iter().for_each(|layer| prefetch(&raw const layer.words[layer.block(spread).start]));
    }

    fn keys(&self) -> usize {
        self.layers.iter().map(|layer| layer.used).sum()
    }

    fn bytes(&self) -> usize {
        self.layers.iter().map(|layer| layer.blocks * BLOCK_BYTES).sum()
    }
}

/// As many keys as have room in a filter of so many bytes.
fn most_keys(bytes: usize) -> u64 {
    let (mut layer, mut sum) = (FIRST_LAYER_BLOCKS * BLOCK_BYTES, 0);
    while sum + layer <= bytes {
        sum += layer;
        layer *= 2;
    }
    (sum * 8 / BITS_PER_KEY) as u64
}

impl Membership {
    /// Of a table that may hold so much, beside a fjall that holds nothing.
    pub fn of_table(limit_bytes: usize) -> Self {
        Membership {
            last: None,
            filter: Some(Filter::default()),
            filling: None,
            complete_with: 0,
            bytes: 0,
            most_bytes: limit_bytes / PART,
            given_up: GivenUp::No,
            untouched: true,
            saved: None,
        }
    }

    /// The table may hold so much from now on.
    fn resize(&mut self, limit_bytes: usize) {
        (self.most_bytes, self.given_up) = (limit_bytes / PART, GivenUp::No);
        if self.bytes > self.most_bytes {
            self.give_up();
        }
    }

    /// Without a filter every key may be there.
    fn give_up(&mut self) {
        (self.filter, self.filling, self.bytes) = (None, None, 0);
        self.given_up = GivenUp::JustNow;
    }

    /// Whether the key is behind all that fjall may hold.
    fn is_behind_all(&self, ns: NsId, key: &[u8]) -> bool {
        let Some((last_ns, last)) = &self.last else { return true };
        ns > *last_ns || ns == *last_ns && order::compare(key, last).is_gt()
    }

    /// fjall was found to hold keys up to this one, in the form in which it stands there: there is no filter before one has been
    /// [filled](Self::refill) with them.
    pub fn opened_with(&mut self, ns: NsId, stored: &[u8]) {
        self.filter = None;
        self.reaches(ns, stored);
    }

    fn reaches(&mut self, ns: NsId, stored: &[u8]) {
        let last = &mut self.last.get_or_insert_default();
        last.0 = ns;
        last.1.clear();
        last.1.extend_from_slice(stored);
    }

    /// Adds a key that fjall is about to hold.
    fn insert(&mut self, hash: u32, ns: NsId, key: &[u8]) {
        self.untouched = false;
        if self.is_behind_all(ns, key) {
            self.reaches(ns, &order::stored_form(key));
        }
        let Membership { filter, filling, bytes, most_bytes, .. } = self;
        let mut filters = filter.iter_mut().chain(filling.as_mut().map(|filling| &mut filling.filter));
        if !filters.all(|filter| filter.insert(hash, bytes, *most_bytes)) {
            self.give_up();
        }
    }

    /// False if fjall does not hold the key for certain.
    #[inline]
    pub fn may_contain(&self, hash: u32, ns: NsId, key: &[u8]) -> bool {
        !self.is_behind_all(ns, key) && self.filter.as_ref().is_none_or(|filter| filter.contains(hash))
    }

    /// Fetches what [tells](Self::may_contain) of a key.
    #[inline]
    pub fn prefetch(&self, hash: u32) {
        self.filter.iter().for_each(|filter| filter.prefetch(hash));
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
    fn fill(&mut self, hashes: &[u32]) {
        let Membership { filling: Some(Filling { filter, .. }), bytes, most_bytes, .. } = self else { return };
        if !hashes.iter().all(|&hash| filter.insert(hash, bytes, *most_bytes)) {
            self.give_up();
        }
    }

    /// All records before `next` have been seen; all there are if there is none.
    fn filled_to(&mut self, next: Option<Vec<u8>>) {
        match (next, self.filling.take()) {
            (Some(from), Some(filling)) => self.filling = Some(Filling { from, ..filling }),
            (None, Some(filling)) => {
                self.complete_with = filling.filter.keys();
                self.bytes = filling.filter.bytes();
                self.filter = Some(filling.filter);
            }
            (_, None) => {}
        }
    }

    /// Whether it is complete and takes little of what it may: how large it is makes no difference then.
    pub fn has_room(&self) -> bool {
        self.is_complete() && self.bytes <= self.most_bytes / 4
    }

    /// Whether to begin a filter: there is none, and the shard's `keys` have room in it; or this one has twice the keys that
    /// the shard has now, and twice those it had when it was complete. fjall has so many `records`: asked for the first time
    /// after one was given up, it notes how many are few enough to try again.
    pub fn is_wanted(&mut self, keys: u64, records: u64) -> bool {
        let Some(filter) = &self.filter else {
            let may_try = match self.given_up {
                GivenUp::No => true,
                GivenUp::JustNow => {
                    self.given_up = GivenUp::Until(records / 2);
                    false
                }
                GivenUp::Until(fewer) => records <= fewer,
            };
            return self.filling.is_none() && may_try && keys <= most_keys(self.most_bytes);
        };
        let added = filter.keys();
        self.filling.is_none() && added > SPARE_KEYS + 2 * self.complete_with && (added - SPARE_KEYS) as u64 > 2 * keys
    }

    /// Begins another filter, to be filled with what fjall holds from this record on. No flush may be under way: what it
    /// has added to the present one, the other would not get.
    pub fn refill(&mut self, from: Vec<u8>) {
        self.given_up = GivenUp::No;
        self.filling = Some(Filling { filter: Filter::default(), from });
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The same, counted.
    #[cfg(test)]
    pub fn check_bytes(&self) -> usize {
        let filling = self.filling.as_ref().map(|filling| &filling.filter);
        let bytes = self.filter.iter().chain(filling).map(Filter::bytes).sum();
        assert!(bytes == self.bytes && bytes <= self.most_bytes, "{bytes} of {} counted", self.bytes);
        bytes
    }
}

/// What the filter takes is the table's.
impl Core {
    fn change_membership(&mut self, change: impl FnOnce(&mut Membership, &Table)) {
        let Core { table, membership, table_bytes, .. } = self;
        let before = membership.bytes;
        change(membership, table);
        *table_bytes = *table_bytes + membership.bytes - before;
    }

    /// fjall is about to hold the key of this object.
    pub fn add_member(&mut self, index: Index) {
        self.change_membership(|membership, table| {
            let object = table.at(index);
            membership.insert(object.hash, object.ns, object.key());
        });
    }

    /// fjall is about to hold this key.
    pub fn add_key(&mut self, hash: u32, ns: NsId, key: &[u8]) {
        self.change_membership(|membership, _| membership.insert(hash, ns, key));
    }

    /// fjall was found to hold these keys.
    pub fn fill_membership(&mut self, hashes: &[u32]) {
        self.change_membership(|membership, _| membership.fill(hashes));
    }

    /// All records before `next` have been seen; all there are if there is none.
    pub fn membership_filled_to(&mut self, next: Option<Vec<u8>>) {
        self.change_membership(|membership, _| membership.filled_to(next));
    }

    /// The filter is what it was at the last end.
    pub fn restore_membership(&mut self, restored: Restored) {
        self.change_membership(|membership, _| membership.restore(restored));
    }

    /// The table may hold as much as it is told to now.
    pub(super) fn resize_membership(&mut self) {
        let limit = self.table_share;
        self.change_membership(|membership, _| membership.resize(limit));
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// By hash alone: of keys in no order.
    impl Membership {
        fn add(&mut self, hash: u32) {
            self.insert(hash, 0, &hash.to_be_bytes());
        }

        fn may_have(&self, hash: u32) -> bool {
            self.may_contain(hash, 0, b"")
        }
    }

    /// Of a large table, and complete.
    fn filter() -> Membership {
        let mut filter = Membership::of_table(64 << 20);
        filter.opened_with(0, b"x");
        assert!(filter.is_wanted(0, 0) && filter.may_have(1), "an incomplete filter says maybe");
        filter.refill(Vec::new());
        assert!(filter.may_have(1) && !filter.has_room());
        filter.filled_to(None);
        assert!(filter.has_room());
        filter
    }

    #[test]
    fn every_key_added_passes_and_few_others_do() {
        let mut filter = filter();
        let hash = |n: u32| n.wrapping_mul(0x9e37_79b1) ^ (n >> 7);
        (0..300_000).for_each(|n| filter.add(hash(n)));
        assert!((0..300_000).all(|n| filter.may_have(hash(n))));
        let passed = (300_000..600_000).filter(|&n| filter.may_have(hash(n))).count();
        let layers = filter.filter.as_ref().unwrap().layers.len();
        assert!(passed < 300_000 / 100 * layers, "{passed} of 300,000 absent keys passed {layers} layers");
        // Bloom's bound: 6.7 bits a key for one in 25.
        assert!((300_000 * 67 / 80..1_300_000).contains(&filter.check_bytes()), "{} bytes", filter.bytes());
    }

    /// Keys come and go; the filter must not keep them all.
    #[test]
    fn keys_that_are_gone_take_no_memory_for_ever() {
        let mut filter = filter();
        let live = 1000..2000;
        for first in (0..3_000_000).step_by(10_000) {
            (first..first + 10_000).for_each(|hash| filter.add(hash));
            if filter.is_wanted(live.len() as u64, 0) {
                assert_eq!(filter.fill_from(), None);
                filter.refill(b"from".to_vec());
                assert_eq!(filter.fill_from(), Some(&b"from"[..]));
                assert!(!filter.is_wanted(0, 0), "one at a time");
                // What a flush adds meanwhile is in both.
                filter.add(7);
                filter.add(first + 5_000_000);
                assert!(filter.may_have(first + 5_000_000));
                filter.fill(&live.clone().collect::<Vec<_>>());
                filter.filled_to(Some(b"next".to_vec()));
                assert!(filter.may_have(first), "the old one is asked until the new one is complete");
                filter.filled_to(None);
                assert!(filter.may_have(7) && live.clone().all(|hash| filter.may_have(hash)));
            }
            assert!(filter.check_bytes() < 1 << 20, "{} bytes", filter.bytes());
        }
        assert!((0..3_000_000).filter(|&hash| filter.may_have(hash)).count() < 200_000);
    }

    /// Whether it comes with a flush, from fjall, or by a smaller table: without a filter every key may be there.
    #[test]
    fn what_is_too_much_is_given_up_until_there_is_half_of_it() {
        let room = most_keys((1 << 20) / PART);
        let small = || {
            let mut filter = Membership::of_table(1 << 20);
            filter.opened_with(0, b"x");
            filter.refill(Vec::new());
            filter
        };
        let complete = || {
            let mut filter = small();
            filter.filled_to(None);
            filter
        };
        let ways: [fn(&mut Membership); 3] = [
            |filter| (0..400_000).for_each(|hash| filter.add(hash)),
            |filter| {
                filter.add(1);
                filter.resize(0);
                filter.resize(1 << 20);
                filter.given_up = GivenUp::JustNow;
            },
            |filter| {
                filter.refill(Vec::new());
                filter.fill(&(0..200_000).collect::<Vec<_>>());
                filter.filled_to(None);
            },
        ];
        for (n, way) in ways.iter().enumerate() {
            let mut filter = complete();
            way(&mut filter);
            assert_eq!((filter.check_bytes(), filter.fill_from()), (0, None), "way {n}");
            assert!((0..1000).all(|hash| filter.may_have(hash)), "way {n}");
            filter.add(1);
            assert!(!filter.is_wanted(0, 1001), "way {n}: it is noted how many there were");
            assert!(!filter.is_wanted(0, 501) && !filter.is_wanted(room + 1, 500) && filter.is_wanted(room, 500));
            filter.refill(Vec::new());
            filter.fill(&[5]);
            filter.filled_to(None);
            assert!(filter.may_have(5) && !filter.may_have(6), "way {n}: it is there again");
        }
        // As many as there is room for have it.
        let mut filter = complete();
        (0..room as u32).for_each(|hash| filter.add(hash));
        assert!(filter.check_bytes() > 0 && filter.is_complete() && !filter.has_room());
        // Another budget is another try.
        (0..400_000).for_each(|hash| filter.add(hash));
        filter.resize(1 << 20);
        assert!(filter.is_wanted(room, u64::MAX) && !filter.is_wanted(room + 1, 0));
    }

    /// A new server's keys need not wait for its timer to be known.
    #[test]
    fn beside_an_empty_fjall_it_is_complete_at_once() {
        let mut filter = Membership::of_table(1 << 20);
        assert!(filter.is_complete() && !filter.is_wanted(0, 0));
        (0..1000).for_each(|hash| filter.add(hash));
        assert!((0..1000).all(|hash| filter.may_have(hash)) && !filter.may_have(1000));
        filter.check_bytes();
    }

    /// With and without a filter; a long key by the form in which it stands in records.
    #[test]
    fn no_key_is_behind_the_last() {
        let long = |fill| vec![fill; crate::codec::MAX_INLINE + 1];
        let mut filter = Membership::of_table(0);
        assert!(!filter.may_contain(1, 0, b""), "there is nothing");
        filter.opened_with(1, b"m");
        for (ns, key, may) in
            [(0, &b"z"[..], true), (1, b"", true), (1, b"m", true), (1, b"m\0", false), (2, b"", false)]
        {
            assert_eq!(filter.may_contain(1, ns, key), may, "{ns} {key:?}");
        }
        assert!(filter.may_contain(1, 1, &long(b'a')) && !filter.may_contain(1, 1, &long(b'n')));
        filter.insert(1, 1, &long(b'n'));
        assert!(filter.may_contain(1, 1, b"n") && filter.may_contain(1, 1, &long(b'n')));
        assert!(!filter.may_contain(1, 1, b"o"));
        filter.insert(1, 1, b"a");
        assert!(filter.may_contain(1, 1, b"n"), "it stays the last");
    }
}
