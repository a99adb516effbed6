//! Leaves of the overlay's tree; see [`super::node`].

use std::cell::Cell;

use super::keys::Keys;
use super::node::{Change, LEAF_ENTRIES, Merge, Sweep, Visit};
use super::{Entry, Key, Sums};
use crate::util::prefetch::prefetch_all;

/// Entries in order of their keys.
#[derive(Default, Clone)]
pub(super) struct Leaf {
    entries: Keys<Entry>,
    masks: Masks,
    /// Something was found here since the last sweep.
    touched: Cell<bool>,
}

/// A bit for each entry of a leaf, the first entry's lowest.
#[derive(Default, Clone, Copy, PartialEq, Eq, Debug)]
struct Masks {
    live: u64,
    dirty: u64,
    base: u64,
    next: u64,
    /// May leave memory.
    clean: u64,
}

/// The lowest `n` bits, up to all 64.
const fn low(n: usize) -> u64 {
    if n >= LEAF_ENTRIES { u64::MAX } else { (1 << n) - 1 }
}

impl Masks {
    fn of(entry: &Entry) -> Masks {
        let sums = entry.sums();
        let clean = entry.is_clean().into();
        Masks { live: sums.live, dirty: sums.dirty, base: sums.base, next: sums.next, clean }
    }

    fn zip(self, other: Masks, f: impl Fn(u64, u64) -> u64) -> Masks {
        Masks {
            live: f(self.live, other.live),
            dirty: f(self.dirty, other.dirty),
            base: f(self.base, other.base),
            next: f(self.next, other.next),
            clean: f(self.clean, other.clean),
        }
    }

    fn map(self, f: impl Fn(u64) -> u64) -> Masks {
        self.zip(self, |mask, _| f(mask))
    }

    fn insert(&mut self, at: usize, bits: Masks) {
        *self = self.zip(bits, |mask, bit| (mask & low(at)) | ((mask & !low(at)) << 1) | (bit << at));
    }

    fn remove(&mut self, at: usize) {
        *self = self.map(|mask| (mask & low(at)) | ((mask >> 1) & !low(at)));
    }

    fn replace(&mut self, at: usize, bits: Masks) {
        *self = self.zip(bits, |mask, bit| (mask & !(1 << at)) | (bit << at));
    }

    /// The sums of the first `n` entries.
    fn sums(&self, n: usize) -> Sums {
        let count = |mask: u64| u64::from((mask & low(n)).count_ones());
        Sums {
            entries: n as u64,
            live: count(self.live),
            dirty: count(self.dirty),
            base: count(self.base),
            next: count(self.next),
        }
    }
}

impl Leaf {
    pub(super) fn of(entry: Entry) -> Leaf {
        let masks = Masks::of(&entry);
        Leaf { entries: Keys::of(entry), masks, touched: Cell::new(false) }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    #[inline]
    pub(super) fn key(&self, at: usize) -> &[u8] {
        self.entries.get(at).key()
    }

    #[inline]
    pub(super) fn entry(&self, at: usize) -> &Entry {
        self.entries.get(at)
    }

    /// Spares the leaf at the next sweep. Writes only if it must: readers share the cache line.
    #[inline]
    pub(super) fn touch(&self) {
        if !self.touched.get() {
            self.touched.set(true);
        }
    }

    /// See [`super::Near`].
    #[inline]
    pub(super) fn prefetch_heads(&self) {
        self.entries.prefetch_heads();
    }

    /// See [`super::Near`].
    #[inline]
    pub(super) fn prefetch_entry(&self, key: &[u8]) -> Option<usize> {
        self.entries.prefetch_item(key)
    }

    /// See [`super::Near`].
    #[inline]
    pub(super) fn prefetch_text(&self, at: usize) {
        const MOST_BYTES: usize = 256;
        if at < self.len() {
            let text = self.entry(at).elsewhere();
            prefetch_all(&text[..text.len().min(MOST_BYTES)]);
        }
    }

    /// Where `key` is, or where it would be.
    #[inline]
    pub(super) fn find(&self, key: &[u8]) -> Result<usize, usize> {
        self.entries.find(key)
    }

    pub(super) fn sums(&self) -> Sums {
        self.masks.sums(self.len())
    }

    /// Of the entries whose key is less than `key`.
    pub(super) fn before(&self, key: &[u8]) -> Sums {
        self.touch();
        self.masks.sums(self.find(key).unwrap_or_else(|at| at))
    }

    /// Of those the live ones.
    #[inline]
    pub(super) fn live_before(&self, key: &[u8]) -> u64 {
        self.touch();
        (self.masks.live & low(self.find(key).unwrap_or_else(|at| at))).count_ones().into()
    }

    pub(super) fn reserve(&mut self, entries: usize) {
        self.entries.reserve(entries);
    }

    pub(super) fn insert(&mut self, at: usize, entry: Entry) {
        self.masks.insert(at, Masks::of(&entry));
        self.entries.insert(at, entry);
    }

    /// See [`super::Overlay::merge`].
    pub(super) fn merge<M: Merge>(&mut self, at: usize, mut entry: Entry, merge: M) -> (Option<Entry>, Change) {
        self.touch();
        let place = self.entries.get_mut(at);
        if !merge(place, &mut entry) {
            return (None, Change::default());
        }
        let change = Change::between((place.sums(), place.heap_bytes()), (entry.sums(), entry.heap_bytes()));
        self.masks.replace(at, Masks::of(&entry));
        (Some(std::mem::replace(place, entry)), change)
    }

    pub(super) fn remove(&mut self, at: usize) -> Entry {
        self.masks.remove(at);
        self.entries.remove(at)
    }

    pub(super) fn update<R>(&mut self, key: &[u8], f: impl FnOnce(&mut Entry) -> R) -> Option<(R, Change)> {
        let at = self.find(key).ok()?;
        Some(self.change(at, f))
    }

    pub(super) fn change<R>(&mut self, at: usize, f: impl FnOnce(&mut Entry) -> R) -> (R, Change) {
        let entry = self.entries.get_mut(at);
        let before = (entry.sums(), entry.heap_bytes());
        let answer = f(entry);
        let after = (entry.sums(), entry.heap_bytes());
        self.masks.replace(at, Masks::of(entry));
        (answer, Change::between(before, after))
    }

    /// The live entry that `n` live ones of this leaf precede.
    pub(super) fn select_live(&self, n: u64) -> Option<&Entry> {
        let rest = (0..n).fold(self.masks.live, |mask, _| mask & mask.wrapping_sub(1));
        let at = rest.trailing_zeros() as usize;
        self.touch();
        Some(self.entry(at))
    }

    pub(super) fn visit<F>(&mut self, visit: &mut Visit<'_, F>) -> Option<Key>
    where
        F: FnMut(&mut Entry) -> usize,
    {
        let first = visit.from.take().map_or(0, |from| self.find(from).unwrap_or_else(|at| at));
        let which = if visit.dirty { self.masks.dirty } else { !self.masks.dirty & low(self.len()) };
        let mut left = which & !low(first);
        while left != 0 {
            let at = left.trailing_zeros() as usize;
            if visit.most == 0 {
                return Some(Key::from_slice(self.key(at)));
            }
            let (cost, change) = self.change(at, &mut visit.f);
            visit.most = visit.most.saturating_sub(cost);
            visit.change.add(change);
            left &= left - 1;
        }
        None
    }

    /// Drops the clean entries, if a sweep may; its change follows.
    pub(super) fn evict_clean(&mut self, sweep: &mut Sweep<'_>) {
        if sweep.leaves == 0 || self.touched.replace(false) {
            return;
        }
        let leave = self.masks.clean.count_ones() as usize;
        // Few among many are not worth the moves.
        if leave <= (self.len() - leave) / 4 {
            return;
        }
        let size = |leaf: &Leaf| (leaf.sums(), leaf.entries.iter().map(Entry::heap_bytes).sum());
        let before = size(self);
        self.entries.retain(self.len() - leave, |entry| !entry.is_clean());
        self.masks = Masks::default();
        for (at, entry) in self.entries.iter().enumerate() {
            self.masks.insert(at, Masks::of(entry));
        }
        sweep.change.add(Change::between(before, size(self)));
    }

    pub(super) fn split_off(&mut self, at: usize) -> Leaf {
        let right = self.masks.map(|mask| mask >> at);
        self.masks = self.masks.map(|mask| mask & low(at));
        Leaf { entries: self.entries.split_off(at), masks: right, touched: self.touched.clone() }
    }

    pub(super) fn append(&mut self, right: Leaf) {
        let len = self.len();
        self.masks = self.masks.zip(right.masks, |left, right| left | (right << len));
        self.entries.append(right.entries);
        if right.touched.get() {
            self.touch();
        }
    }
}

/// What only the check of the invariants looks at.
#[cfg(test)]
impl Leaf {
    pub(super) fn room(&self) -> usize {
        self.entries.room()
    }

    pub(super) fn compared(&self, key: &[u8]) -> usize {
        self.entries.compared(key)
    }

    pub(super) fn check_arrays(&self) {
        self.entries.check();
        let mut masks = Masks::default();
        self.entries.iter().enumerate().for_each(|(at, entry)| masks.insert(at, Masks::of(entry)));
        assert_eq!(self.masks, masks);
    }
}
