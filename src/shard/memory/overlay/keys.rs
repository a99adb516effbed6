//! What a node holds in the order of keys, and the heads of these to search by.
//!
//! | array | holds |
//! |---|---|
//! | `items` | entries, or an inner node's bounds |
//! | `heads` | of each key the four bytes after the prefix that all of its run share, as a number |
//!
//! Keys of a collection begin alike and those of one node even more so; past the prefix four bytes mostly tell them
//! apart. The heads of a full node fill four cache lines, are read all at once and without a branch, and leave a key or
//! two to be compared. The prefix stands with the arrays' pointers, so that an inner node's keys are hardly ever read. A
//! node of few keys has no heads: they would be one more allocation for a small collection.
//!
//! A sorted set's elements are of two groups, which share nothing: where the keys of a node begin with one of two bytes when it is
//! indexed, it holds two runs, each with a prefix of its own.
//!
//! Invariants: keys strictly ascend; if there are heads, all keys of a run begin with its prefix, and there are as many
//! heads as items, the [`PAD`]s that fill the last [`LANES`] aside; neither of two runs is empty, nor is its prefix.

use std::cmp::Ordering;
use std::ops::Range;

use smallvec::SmallVec;

use super::Key;
use crate::util::prefetch::prefetch_all;

/// Up to so many keys are searched without heads.
const FEW: usize = 8;
/// Items that a node has room for before it grows by doubling.
pub(super) const ROOM: usize = 64;
/// Heads compared at once.
const LANES: usize = 8;
/// Stands behind the last head; no head is greater.
const PAD: i32 = i32::MAX;
/// Up to so many keys of one head are looked at one after the other, as they are fetched together.
const TIES: usize = 4;

/// What has a key.
pub(super) trait Keyed {
    fn key(&self) -> &[u8];
}

impl Keyed for Key {
    #[inline]
    fn key(&self) -> &[u8] {
        self
    }
}

#[derive(Clone)]
pub(super) struct Keys<T> {
    items: Vec<T>,
    heads: Vec<i32>,
    /// That of the first run, then that of the second.
    prefixes: SmallVec<[u8; 24]>,
    /// Where the second prefix begins.
    cut: u32,
    /// The item that the second run begins with; 0 if there is but one run.
    second: u32,
}

impl<T> Default for Keys<T> {
    fn default() -> Self {
        Keys { items: Vec::new(), heads: Vec::new(), prefixes: SmallVec::new(), cut: 0, second: 0 }
    }
}

/// The first four bytes as a number that orders like them; what is missing counts as zero. Signed, as baseline x86-64
/// compares several numbers at once only if they are.
#[inline]
fn head(tail: &[u8]) -> i32 {
    let head = match tail.first_chunk() {
        Some(head) => u32::from_be_bytes(*head),
        None => tail.iter().fold(0, |head, byte| head << 8 | u32::from(*byte)) << (8 * (4 - tail.len()) as u32 % 32),
    };
    head as i32 ^ i32::MIN
}

/// What follows the prefix in a key that has it. Compared in place: it is short, and a call would cost more.
#[inline]
fn behind<'a>(key: &'a [u8], prefix: &[u8]) -> Option<&'a [u8]> {
    let (front, tail) = key.split_at_checked(prefix.len())?;
    let (words, rest) = front.as_chunks::<8>();
    let (prefix_words, prefix_rest) = prefix.as_chunks::<8>();
    let same = words.iter().zip(prefix_words).all(|(a, b)| u64::from_ne_bytes(*a) == u64::from_ne_bytes(*b))
        && rest.iter().zip(prefix_rest).all(|(a, b)| a == b);
    same.then_some(tail)
}

impl<T: Keyed> Keys<T> {
    pub(super) fn of(item: T) -> Self {
        Keys { items: vec![item], ..Keys::default() }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    #[inline]
    pub(super) fn get(&self, at: usize) -> &T {
        &self.items[at]
    }

    /// The item must keep its key.
    #[inline]
    pub(super) fn get_mut(&mut self, at: usize) -> &mut T {
        &mut self.items[at]
    }

    pub(super) fn iter(&self) -> std::slice::Iter<'_, T> {
        self.items.iter()
    }

    /// Where `key` is, or where it would be.
    #[inline]
    pub(super) fn find(&self, key: &[u8]) -> Result<usize, usize> {
        if self.heads.is_empty() {
            return self.items.binary_search_by(|item| item.key().cmp(key));
        }
        let ties = self.ties(key)?;
        let (at, tied) = (ties.start, &self.items[ties]);
        if tied.len() > TIES {
            let found = tied.binary_search_by(|item| item.key().cmp(key));
            return found.map(|i| at + i).map_err(|i| at + i);
        }
        for (i, item) in tied.iter().enumerate() {
            match item.key().cmp(key) {
                Ordering::Less => {}
                Ordering::Equal => return Ok(at + i),
                Ordering::Greater => return Err(at + i),
            }
        }
        Err(at + tied.len())
    }

    /// The run that `key` belongs to, with its prefix.
    #[inline]
    fn run(&self, key: &[u8]) -> (Range<usize>, &[u8]) {
        let second = self.second as usize;
        if second == 0 {
            return (0..self.len(), &self.prefixes);
        }
        let (first, prefix) = self.prefixes.split_at(self.cut as usize);
        if key.first() > first.first() { (second..self.len(), prefix) } else { (0..second, first) }
    }

    /// The items that have the head of `key`, or where they would be; of a key without its run's prefix where that would be.
    #[inline]
    fn ties(&self, key: &[u8]) -> Result<Range<usize>, usize> {
        let (run, prefix) = self.run(key);
        let Some(tail) = behind(key, prefix) else {
            return Err(if key < prefix { run.start } else { run.end });
        };
        let head = head(tail);
        let at = run.start + self.less(&run, head);
        let heads = &self.heads[at..run.end];
        Ok(at..at + heads.iter().take_while(|h| **h == head).count())
    }

    /// First step of a look-ahead: the heads, or of few keys the items.
    #[inline]
    pub(super) fn prefetch_heads(&self) {
        if self.heads.is_empty() {
            prefetch_all(&self.items[..self.len().min(FEW)]);
        } else {
            prefetch_all(&self.heads);
        }
    }

    /// Second step: the items that the heads single out, and where the first is, if there is any; few keys are searched.
    #[inline]
    pub(super) fn prefetch_item(&self, key: &[u8]) -> Option<usize> {
        let items = if self.heads.is_empty() {
            let at = self.find(key).unwrap_or_else(|at| at);
            at..(at + 1).min(self.len())
        } else {
            self.ties(key).unwrap_or_default()
        };
        prefetch_all(&self.items[items.start..items.end.min(items.start + TIES)]);
        (!items.is_empty()).then_some(items.start)
    }

    /// Number of keys of a run with a lesser head.
    #[inline]
    fn less(&self, run: &Range<usize>, head: i32) -> usize {
        // What fills up the last run's lanes counts for nothing.
        let end = if run.end == self.len() { self.heads.len() } else { run.end };
        let (lanes, rest) = self.heads[run.start..end].as_chunks::<LANES>();
        let mut less = [0i32; LANES];
        for heads in lanes {
            for (less, h) in less.iter_mut().zip(heads) {
                *less += i32::from(*h < head);
            }
        }
        less.iter().sum::<i32>() as usize + rest.iter().filter(|h| **h < head).count()
    }

    pub(super) fn insert(&mut self, at: usize, item: T) {
        self.make_room();
        let (run, prefix) = self.run(item.key());
        if !self.heads.is_empty()
            && let Some(tail) = behind(item.key(), prefix)
        {
            let (head, is_before_second) = (head(tail), run.end < self.items.len());
            self.second += u32::from(is_before_second);
            self.heads.truncate(self.items.len());
            self.heads.insert(at, head);
            self.items.insert(at, item);
            self.pad();
        } else {
            self.items.insert(at, item);
            self.index();
        }
    }

    /// Small nodes grow by little, as most collections are small; one that is half full gets all its room.
    #[inline]
    fn make_room(&mut self) {
        let len = self.len();
        if len == self.items.capacity() && len < ROOM {
            self.items.reserve_exact(if len < ROOM / 2 { len / 4 + 2 } else { ROOM - len });
        }
    }

    /// Puts another key in the place of one; order stays.
    pub(super) fn replace(&mut self, at: usize, item: T) {
        self.items[at] = item;
        self.index();
    }

    pub(super) fn remove(&mut self, at: usize) -> T {
        if !self.heads.is_empty() {
            self.heads.remove(at);
            self.heads.push(PAD);
        }
        let item = self.items.remove(at);
        let second = self.second as usize;
        if second > 0 {
            self.second -= u32::from(at < second);
            if self.second == 0 || self.second as usize == self.len() {
                self.index();
            }
        }
        // What is mostly spare goes back; half of it stays for what comes next.
        if self.items.capacity() > FEW && self.len() * 4 <= self.items.capacity() {
            self.shrink();
        }
        item
    }

    #[cold]
    fn shrink(&mut self) {
        self.items.shrink_to(self.len() * 2);
        self.heads.truncate(self.len());
        self.pad();
        self.heads.shrink_to(self.len() * 2);
        if self.len() <= FEW {
            self.heads = Vec::new();
        }
    }

    pub(super) fn pop(&mut self) -> Option<T> {
        let len = self.len().checked_sub(1)?;
        Some(self.remove(len))
    }

    /// Makes room for so many items in all, a full leaf's at most.
    pub(super) fn reserve(&mut self, items: usize) {
        let items = items.min(ROOM);
        self.items.reserve_exact(items.saturating_sub(self.len()));
        if items > FEW {
            self.heads.reserve_exact(items.next_multiple_of(LANES).saturating_sub(self.heads.len()));
        }
    }

    /// Keeps what `keep` says, exactly `kept` items. They move: the allocator gets a whole block back, which another node
    /// of that size can have, where shrinking in place would leave a gap.
    pub(super) fn retain(&mut self, kept: usize, mut keep: impl FnMut(&T) -> bool) {
        let mut items = Vec::with_capacity(kept + kept / 4);
        items.extend(std::mem::take(&mut self.items).into_iter().filter(|item| keep(item)));
        self.items = items;
        self.heads = Vec::new();
        self.index();
    }

    pub(super) fn split_off(&mut self, at: usize) -> Self {
        let mut right = Keys { items: self.items.split_off(at), ..Keys::default() };
        right.index();
        self.index();
        right
    }

    pub(super) fn append(&mut self, mut right: Self) {
        self.items.append(&mut right.items);
        self.index();
    }

    /// Finds runs, prefixes and heads anew.
    fn index(&mut self) {
        self.heads.clear();
        self.second = 0;
        if self.items.len() <= FEW {
            return;
        }
        let second = self.second_run();
        self.second = second as u32;
        self.prefixes = SmallVec::new();
        self.heads.reserve_exact(self.items.len().next_multiple_of(LANES));
        let (first, rest) = self.items.split_at(if second > 0 { second } else { self.items.len() });
        for run in [first, rest] {
            self.cut = if run.is_empty() { self.cut } else { self.prefixes.len() as u32 };
            let ([first, .., last] | [first @ last]) = run else { continue };
            let same = first.key().iter().zip(last.key()).take_while(|(a, b)| a == b).count();
            self.prefixes.extend_from_slice(&first.key()[..same]);
            self.heads.extend(run.iter().map(|item| head(&item.key()[same..])));
        }
        self.pad();
    }

    /// The item that a second run begins with: keys begin with one of two bytes. 0 if there is none.
    fn second_run(&self) -> usize {
        let [first, .., last] = self.items.as_slice() else { return 0 };
        let (first, last) = (first.key().first(), last.key().first());
        let second = self.items.partition_point(|item| item.key().first() == first);
        let are_two = first.is_some() && self.items.get(second).is_some_and(|item| item.key().first() == last);
        if are_two { second } else { 0 }
    }

    /// Fills the last lanes.
    fn pad(&mut self) {
        self.heads.resize(self.heads.len().next_multiple_of(LANES), PAD);
    }
}

/// What only the check of the invariants looks at.
#[cfg(test)]
impl<T: Keyed> Keys<T> {
    pub(super) fn room(&self) -> usize {
        self.items.capacity()
    }

    /// Keys that a search for `key` compares, where there are heads.
    pub(super) fn compared(&self, key: &[u8]) -> usize {
        if self.heads.is_empty() { 0 } else { self.ties(key).unwrap_or_default().len() }
    }

    pub(super) fn check(&self) {
        assert!(self.items.is_sorted_by(|a, b| a.key() < b.key()));
        if !self.heads.is_empty() {
            let second = self.second as usize;
            let (first, prefix) =
                if second > 0 { self.prefixes.split_at(self.cut as usize) } else { (&self.prefixes[..], &[][..]) };
            assert!(second == 0 || second < self.len() && first.first() < prefix.first() && !first.is_empty());
            let prefixes = (0..self.len()).map(|at| if second > 0 && at >= second { prefix } else { first });
            let tails = self.items.iter().zip(prefixes).map(|(item, prefix)| item.key().strip_prefix(prefix));
            assert!(tails.map(|tail| tail.map(head)).eq(self.heads[..self.len()].iter().copied().map(Some)));
            assert!(self.heads.len().is_multiple_of(LANES) && self.heads[self.len()..].iter().all(|h| *h == PAD));
        }
    }
}
