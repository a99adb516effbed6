//! Walks over the overlay in order.
//!
//! A walk stands between two gaps, each *before* an entry of a leaf or after its last, and is over when they meet. The
//! gap between two leaves has two names, the end of one and the start of the next; an end of the walk takes the other's
//! name for it before it looks whether they met.

use std::ops::Bound;

use smallvec::SmallVec;

use super::leaf::Leaf;
use super::node::{Children, Inner};
use super::{Entry, Root};

/// A gap between entries and the way down to it.
#[derive(Clone)]
struct Gap<'a> {
    /// Inner nodes from the root down, with the child taken.
    path: SmallVec<[(&'a Inner, usize); 4]>,
    leaf: &'a Leaf,
    /// Entries of the leaf before the gap.
    at: usize,
}

impl<'a> Gap<'a> {
    /// Goes down from the root by `choose`, to the gap of a leaf that `place` names.
    fn new(root: &'a Root, choose: impl Fn(&Inner) -> usize, place: impl Fn(&Leaf) -> usize) -> Self {
        let mut path = SmallVec::new();
        let leaf = match root {
            Root::Leaf(leaf) => leaf,
            Root::Inner(inner) => descend(&mut path, inner, choose),
        };
        Gap { path, leaf, at: place(leaf) }
    }

    /// Before all entries.
    fn first(root: &'a Root) -> Self {
        Gap::new(root, |_| 0, |_| 0)
    }

    /// After all entries.
    fn last(root: &'a Root) -> Self {
        Gap::new(root, |inner| inner.len() - 1, Leaf::len)
    }

    /// Before the entries whose key is `key` or greater; `past`: after `key` itself.
    fn by_key(root: &'a Root, key: &[u8], past: bool) -> Self {
        let place = |leaf: &Leaf| match leaf.find(key) {
            Ok(at) => at + usize::from(past),
            Err(at) => at,
        };
        let gap = Gap::new(root, |inner| inner.route(key), place);
        gap.leaf.touch();
        gap
    }

    /// The same, for keys that often lie behind all entries: no search then.
    fn behind(root: &'a Root, key: &[u8], past: bool) -> Self {
        let end = Gap::last(root);
        match end.at.checked_sub(1) {
            Some(last) if end.leaf.key(last) < key => end,
            _ => Gap::by_key(root, key, past),
        }
    }

    fn is(&self, other: &Gap<'a>) -> bool {
        self.at == other.at && std::ptr::eq(self.leaf, other.leaf)
    }

    /// From the end of a leaf to the start of the next, if there is one.
    fn next_leaf(&mut self) {
        while let Some((inner, at)) = self.path.pop() {
            if at + 1 < inner.len() {
                self.leaf = step(&mut self.path, inner, at + 1, |_| 0);
                self.at = 0;
                return;
            }
        }
    }

    /// From the start of a leaf to the end of the one before, if there is one.
    fn previous_leaf(&mut self) {
        while let Some((inner, at)) = self.path.pop() {
            if at > 0 {
                self.leaf = step(&mut self.path, inner, at - 1, |inner| inner.len() - 1);
                self.at = self.leaf.len();
                return;
            }
        }
    }
}

type Path<'a> = SmallVec<[(&'a Inner, usize); 4]>;

fn descend<'a>(path: &mut Path<'a>, inner: &'a Inner, choose: impl Fn(&Inner) -> usize) -> &'a Leaf {
    let at = choose(inner);
    step(path, inner, at, choose)
}

/// Takes child `at` of `inner`, then goes by `choose`.
fn step<'a>(path: &mut Path<'a>, mut inner: &'a Inner, mut at: usize, choose: impl Fn(&Inner) -> usize) -> &'a Leaf {
    loop {
        path.push((inner, at));
        match inner.children() {
            Children::Leaves(leaves) => return &leaves[at],
            Children::Inners(inners) => {
                inner = &inners[at];
                at = choose(inner);
            }
        }
    }
}

/// Entries in order of their keys.
#[derive(Clone)]
pub struct Range<'a> {
    front: Gap<'a>,
    back: Gap<'a>,
}

impl<'a> Range<'a> {
    pub(super) fn new(root: &'a Root, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> Self {
        let front = match lower {
            Bound::Unbounded => Gap::first(root),
            Bound::Included(key) => Gap::by_key(root, key, false),
            Bound::Excluded(key) => Gap::by_key(root, key, true),
        };
        if is_inverted(lower, upper) {
            return Range { back: front.clone(), front };
        }
        let back = match upper {
            Bound::Unbounded => Gap::last(root),
            Bound::Included(key) => Gap::behind(root, key, true),
            Bound::Excluded(key) => Gap::behind(root, key, false),
        };
        Range { front, back }
    }
}

/// Whether nothing can lie between the bounds, so that their gaps may stand the wrong way round.
fn is_inverted(lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> bool {
    match (lower, upper) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(l), Bound::Included(u)) => l > u,
        (Bound::Included(l) | Bound::Excluded(l), Bound::Included(u) | Bound::Excluded(u)) => l >= u,
    }
}

impl<'a> Iterator for Range<'a> {
    type Item = &'a Entry;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.front.is(&self.back) {
            return None;
        }
        if self.front.at == self.front.leaf.len() {
            self.front.next_leaf();
            if self.front.is(&self.back) {
                return None;
            }
        }
        let Gap { leaf, at, .. } = self.front;
        self.front.at += 1;
        Some(leaf.entry(at))
    }
}

impl DoubleEndedIterator for Range<'_> {
    #[inline]
    fn next_back(&mut self) -> Option<Self::Item> {
        if self.front.is(&self.back) {
            return None;
        }
        if self.back.at == 0 {
            self.back.previous_leaf();
            if self.front.is(&self.back) {
                return None;
            }
        }
        self.back.at -= 1;
        let Gap { leaf, at, .. } = self.back;
        Some(leaf.entry(at))
    }
}
