//! The keys of a node, in order, and their heads to search by.
//!
//! | array | holds |
//! |---|---|
//! | `keys` | the keys, short ones inline |
//! | `heads` | of each key the four bytes after the prefix that all of the node share, as a number |
//!
//! Keys of a collection begin alike and those of one node even more so; past the prefix four bytes mostly tell them
//! apart. The heads of a full node fill four cache lines, are read all at once and without a branch, and leave a key or
//! two to be compared. A node of few keys has no heads: they would be one more allocation for a small collection.
//!
//! Invariants: keys strictly ascend; all begin with the first `prefix` bytes of the first; there are as many heads as
//! keys, or none.

use super::Bytes;

/// Up to so many keys are searched without heads.
const FEW: usize = 8;

#[derive(Default, Clone)]
pub(super) struct Keys {
    keys: Vec<Bytes>,
    heads: Vec<u32>,
    /// Length in bytes.
    prefix: usize,
}

/// The first four bytes as a number that orders like them; what is missing counts as zero.
#[inline]
fn head(tail: &[u8]) -> u32 {
    match tail.first_chunk() {
        Some(head) => u32::from_be_bytes(*head),
        None => tail.iter().fold(0, |head, byte| head << 8 | u32::from(*byte)) << (8 * (4 - tail.len()) as u32 % 32),
    }
}

impl Keys {
    pub(super) fn of(key: &[u8]) -> Keys {
        Keys { keys: vec![Bytes::from_slice(key)], ..Keys::default() }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    #[inline]
    pub(super) fn get(&self, at: usize) -> &[u8] {
        &self.keys[at]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.keys.iter().map(|key| key.as_slice())
    }

    /// Where `key` is, or where it would be.
    #[inline]
    pub(super) fn find(&self, key: &[u8]) -> Result<usize, usize> {
        if self.heads.is_empty() {
            return self.keys.binary_search_by(|k| k.as_slice().cmp(key));
        }
        let prefix = &self.keys[0][..self.prefix];
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
        match self.keys[less..not_more].binary_search_by(|k| k.as_slice().cmp(key)) {
            Ok(at) => Ok(less + at),
            Err(at) => Err(less + at),
        }
    }

    pub(super) fn insert(&mut self, at: usize, key: Bytes) {
        let tail = if self.heads.is_empty() { None } else { key.strip_prefix(&self.keys[0][..self.prefix]) };
        if let Some(tail) = tail {
            self.heads.insert(at, head(tail));
            self.keys.insert(at, key);
        } else {
            self.keys.insert(at, key);
            self.index();
        }
    }

    /// Puts another key in the place of one; order stays.
    pub(super) fn replace(&mut self, at: usize, key: Bytes) {
        self.keys[at] = key;
        self.index();
    }

    pub(super) fn remove(&mut self, at: usize) -> Bytes {
        if !self.heads.is_empty() {
            self.heads.remove(at);
        }
        self.keys.remove(at)
    }

    pub(super) fn pop(&mut self) -> Option<Bytes> {
        self.heads.pop();
        self.keys.pop()
    }

    pub(super) fn split_off(&mut self, at: usize) -> Keys {
        let mut right = Keys { keys: self.keys.split_off(at), ..Keys::default() };
        right.index();
        self.index();
        right
    }

    pub(super) fn append(&mut self, mut right: Keys) {
        self.keys.append(&mut right.keys);
        self.index();
    }

    /// Gives back spare memory beyond `most` places.
    pub(super) fn shrink_to(&mut self, most: usize) {
        self.keys.shrink_to(most);
        if self.len() <= FEW {
            self.heads = Vec::new();
        }
        self.heads.shrink_to(most);
    }

    /// Finds prefix and heads anew.
    fn index(&mut self) {
        self.heads.clear();
        let [first, .., last] = self.keys.as_slice() else { return };
        if self.keys.len() > FEW {
            self.prefix = first.iter().zip(last.iter()).take_while(|(a, b)| a == b).count();
            self.heads.extend(self.keys.iter().map(|key| head(&key[self.prefix..])));
        }
    }
}

/// What only the check of the invariants looks at.
#[cfg(test)]
impl Keys {
    pub(super) fn check(&self) {
        assert!(self.keys.is_sorted_by(|a, b| a < b));
        if !self.heads.is_empty() {
            let prefix = &self.keys[0][..self.prefix];
            assert!(self.keys.iter().all(|key| key.starts_with(prefix)));
            assert!(self.keys.iter().map(|key| head(&key[self.prefix..])).eq(self.heads.iter().copied()));
        }
    }
}
