//! What a node holds in the order of keys, and the heads of these to search by.
//!
//! | array | holds |
//! |---|---|
//! | `items` | keys, short ones inline; in a leaf each with its element |
//! | `heads` | of each key the four bytes after the prefix that all of the node share, as a number |
//!
//! Keys of a collection begin alike and those of one node even more so; past the prefix four bytes mostly tell them
//! apart. The heads of a full node fill four cache lines, are read all at once and without a branch, and leave a key or
//! two to be compared. A node of few keys has no heads: they would be one more allocation for a small collection.
//!
//! Invariants: keys strictly ascend; all begin with the first `prefix` bytes of the first; there are as many heads as
//! items, or none.

use super::Key;

/// Up to so many keys are searched without heads.
const FEW: usize = 8;

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
    heads: Vec<u32>,
    /// Length in bytes.
    prefix: usize,
}

impl<T> Default for Keys<T> {
    fn default() -> Self {
        Keys { items: Vec::new(), heads: Vec::new(), prefix: 0 }
    }
}

/// The first four bytes as a number that orders like them; what is missing counts as zero.
#[inline]
fn head(tail: &[u8]) -> u32 {
    match tail.first_chunk() {
        Some(head) => u32::from_be_bytes(*head),
        None => tail.iter().fold(0, |head, byte| head << 8 | u32::from(*byte)) << (8 * (4 - tail.len()) as u32 % 32),
    }
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
        let prefix = &self.items[0].key()[..self.prefix];
        let Some(tail) = key.strip_prefix(prefix) else {
            return Err(if key < prefix { 0 } else { self.len() });
        };
        let head = head(tail);
        let (mut less, mut not_more) = (0u32, 0u32);
        for h in &self.heads {
            less += u32::from(*h < head);
            not_more += u32::from(*h <= head);
        }
        let (less, not_more) = (less as usize, not_more as usize);
        match self.items[less..not_more].binary_search_by(|item| item.key().cmp(key)) {
            Ok(at) => Ok(less + at),
            Err(at) => Err(less + at),
        }
    }

    pub(super) fn insert(&mut self, at: usize, item: T) {
        let tail =
            if self.heads.is_empty() { None } else { item.key().strip_prefix(&self.items[0].key()[..self.prefix]) };
        if let Some(tail) = tail {
            self.heads.insert(at, head(tail));
            self.items.insert(at, item);
        } else {
            self.items.insert(at, item);
            self.index();
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
        }
        let item = self.items.remove(at);
        // What is mostly spare goes back; half of it stays for what comes next.
        if self.items.capacity() > FEW && self.len() * 4 <= self.items.capacity() {
            self.shrink();
        }
        item
    }

    #[cold]
    fn shrink(&mut self) {
        self.items.shrink_to(self.len() * 2);
        self.heads.shrink_to(self.len() * 2);
        if self.len() <= FEW {
            self.heads = Vec::new();
        }
    }

    pub(super) fn pop(&mut self) -> Option<T> {
        self.heads.pop();
        self.items.pop()
    }

    /// Keeps what `keep` says.
    pub(super) fn retain(&mut self, keep: impl FnMut(&T) -> bool) {
        self.items.retain(keep);
        self.items.shrink_to(self.items.len() + self.items.len() / 2);
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

    /// Finds prefix and heads anew.
    fn index(&mut self) {
        self.heads.clear();
        let [first, .., last] = self.items.as_slice() else { return };
        if self.items.len() > FEW {
            self.prefix = first.key().iter().zip(last.key()).take_while(|(a, b)| a == b).count();
            self.heads.extend(self.items.iter().map(|item| head(&item.key()[self.prefix..])));
        }
    }
}

/// What only the check of the invariants looks at.
#[cfg(test)]
impl<T: Keyed> Keys<T> {
    pub(super) fn check(&self) {
        assert!(self.items.is_sorted_by(|a, b| a.key() < b.key()));
        if !self.heads.is_empty() {
            let prefix = &self.items[0].key()[..self.prefix];
            assert!(self.items.iter().all(|item| item.key().starts_with(prefix)));
            assert!(self.items.iter().map(|item| head(&item.key()[self.prefix..])).eq(self.heads.iter().copied()));
        }
    }
}
