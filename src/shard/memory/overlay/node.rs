//! Nodes of the overlay's tree.
//!
//! | node | holds |
//! |---|---|
//! | [`Leaf`] | up to 64 entries, and a bit of each in five masks |
//! | [`Inner`] | up to 128 children in an array, with the lower bound and the sums of each in two more |
//!
//! A search reads the heads of the keys, then an entry or two. Children stand in their parent's array, not
//! behind pointers of their own: a look-up follows one pointer a level.
//!
//! A child's bound is at most its first key and more than every key of the child before it; the first child has none.
//! A full leaf that grows at its end leaves its entries where they are and goes on in its neighbour or
//! in a new leaf, so that keys that arrive in order, of either direction, fill leaves up. A node is merged with a
//! neighbour when it is small and both fit well into one; otherwise it goes when it is empty.

use super::keys::Keys;
use super::leaf::Leaf;
use super::{Entry, Key, Root, Sums};

/// Entries of a full leaf: as many as a mask has bits.
pub(super) const LEAF_ENTRIES: usize = super::keys::ROOM;
const _: () = assert!(LEAF_ENTRIES == u64::BITS as usize);
/// Children of a full inner node.
pub(super) const FAN_OUT: usize = 128;
/// The children through which a leaf is reached, from the root on. A deeper tree would have more entries than fit in memory.
pub(super) type Path = [u8; 6];
const _: () = assert!(FAN_OUT < u8::MAX as usize, "a place among the children fits a byte");
/// A node with fewer entries or children looks for a neighbour to merge with.
const SMALL: usize = 16;
/// The most that a node made by a merge holds: it must not be split right after.
const MERGED: usize = 48;

/// What an operation did to sums and bytes; wraps, as [`Sums`] do.
#[derive(Default, Clone, Copy)]
pub(super) struct Change {
    pub(super) sums: Sums,
    pub(super) heap_bytes: usize,
}

impl Change {
    /// An entry that was not there.
    pub(super) fn new(entry: &Entry) -> Change {
        Change { sums: entry.sums(), heap_bytes: entry.heap_bytes() }
    }

    pub(super) fn between(before: (Sums, usize), after: (Sums, usize)) -> Change {
        Change { sums: after.0 - before.0, heap_bytes: after.1.wrapping_sub(before.1) }
    }

    pub(super) fn add(&mut self, other: Change) {
        self.sums += other.sums;
        self.heap_bytes = self.heap_bytes.wrapping_add(other.heap_bytes);
    }
}

/// A walk over dirty entries, or over all others.
pub(super) struct Visit<'a, F> {
    /// Which.
    pub(super) dirty: bool,
    /// Where to start; `None` once there.
    pub(super) from: Option<&'a [u8]>,
    /// What the entries still to be visited may cost.
    pub(super) most: usize,
    pub(super) f: F,
    /// What all calls of `f` did together.
    pub(super) change: Change,
}

/// A walk that drops leaves.
pub(super) struct Sweep<'a> {
    /// Where to start; `None` once there.
    pub(super) from: Option<&'a [u8]>,
    /// Leaves still to be looked at.
    pub(super) leaves: usize,
    /// What was dropped.
    pub(super) change: Change,
}

/// Changes a new entry by the old one, and tells whether it takes its place.
pub(super) trait Merge: FnOnce(&Entry, &mut Entry) -> bool {}
impl<M: FnOnce(&Entry, &mut Entry) -> bool> Merge for M {}

/// What an insertion below a node came to.
pub(super) struct Placed {
    /// What was there before, if it was replaced.
    pub(super) old: Option<Entry>,
    /// How the node changed, what it gave to the node split off included.
    pub(super) change: Change,
    /// The node split off to the right, with its bound.
    pub(super) split: Option<Box<(Key, Inner)>>,
}

/// The nodes below an inner node, all of one depth.
#[derive(Clone)]
pub(super) enum Children {
    Leaves(Vec<Leaf>),
    Inners(Vec<Inner>),
}

impl Children {
    fn split_off(&mut self, at: usize) -> Children {
        match self {
            Children::Leaves(leaves) => Children::Leaves(leaves.split_off(at)),
            Children::Inners(inners) => Children::Inners(inners.split_off(at)),
        }
    }

    fn append(&mut self, right: Children) {
        match (self, right) {
            (Children::Leaves(left), Children::Leaves(mut right)) => left.append(&mut right),
            (Children::Inners(left), Children::Inners(mut right)) => left.append(&mut right),
            _ => unreachable!("neighbours are of one depth"),
        }
    }

    fn remove(&mut self, at: usize) {
        match self {
            Children::Leaves(leaves) => drop(leaves.remove(at)),
            Children::Inners(inners) => drop(inners.remove(at)),
        }
    }

    /// Entries or children of a child.
    fn len_of(&self, at: usize) -> usize {
        match self {
            Children::Leaves(leaves) => leaves[at].len(),
            Children::Inners(inners) => inners[at].len(),
        }
    }

    /// Moves all of a child into the one before it.
    fn merge_left(&mut self, at: usize, bound: Key) {
        match self {
            Children::Leaves(leaves) => {
                let right = leaves.remove(at);
                leaves[at - 1].append(right);
            }
            Children::Inners(inners) => {
                let right = inners.remove(at);
                inners[at - 1].append(bound, right);
            }
        }
    }
}

/// A node with nodes below it.
#[derive(Clone)]
pub(super) struct Inner {
    /// Of all children but the first.
    bounds: Keys<Key>,
    sums: Vec<Sums>,
    children: Children,
}

impl Inner {
    /// Frees all that is below; `step` is called after each leaf.
    pub(super) fn free(self, step: &mut impl FnMut()) {
        match self.children {
            Children::Leaves(leaves) => {
                for leaf in leaves {
                    drop(leaf);
                    step();
                }
            }
            Children::Inners(inners) => inners.into_iter().for_each(|inner| inner.free(step)),
        }
    }

    /// A root over a leaf that is about to be split.
    pub(super) fn over(leaf: Leaf) -> Inner {
        let sums = vec![leaf.sums()];
        Inner { bounds: Keys::default(), sums, children: Children::Leaves(vec![leaf]) }
    }

    /// Puts the node below a new one of the same place, beside what was split off it.
    pub(super) fn grow(&mut self, bound: Key, right: Inner) {
        let above = Inner { bounds: Keys::of(bound), sums: Vec::new(), children: Children::Leaves(Vec::new()) };
        let left = std::mem::replace(self, above);
        self.sums = vec![left.sums(), right.sums()];
        self.children = Children::Inners(vec![left, right]);
    }

    /// Takes the child out of a root that has only one; an empty leaf out of one that has none.
    pub(super) fn only_child(&mut self) -> Option<Root> {
        if self.len() > 1 {
            return None;
        }
        match &mut self.children {
            Children::Leaves(leaves) => Some(Root::Leaf(leaves.pop().unwrap_or_default())),
            Children::Inners(inners) => Some(inners.pop().map_or_else(|| Root::Leaf(Leaf::default()), Root::Inner)),
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.sums.len()
    }

    #[inline]
    pub(super) fn children(&self) -> &Children {
        &self.children
    }

    fn sums(&self) -> Sums {
        self.sums.iter().sum()
    }

    /// The child that holds `key` if any does.
    #[inline]
    pub(super) fn route(&self, key: &[u8]) -> usize {
        self.bounds.find(key).map_or_else(|at| at, |at| at + 1)
    }

    #[inline]
    pub(super) fn leaf_of(&self, key: &[u8]) -> &Leaf {
        let mut inner = self;
        loop {
            let at = inner.route(key);
            match &inner.children {
                Children::Leaves(leaves) => return &leaves[at],
                Children::Inners(inners) => inner = &inners[at],
            }
        }
    }

    /// The same, and the way to it.
    pub(super) fn path_of(&self, key: &[u8]) -> (&Leaf, Path) {
        let (mut inner, mut path) = (self, Path::default());
        for step in 0.. {
            let at = inner.route(key);
            if let Some(child) = path.get_mut(step) {
                *child = at as u8;
            }
            match &inner.children {
                Children::Leaves(leaves) => return (&leaves[at], path),
                Children::Inners(inners) => inner = &inners[at],
            }
        }
        unreachable!("leaves end every way down")
    }

    /// The leaf at the end of a path, if there is one.
    #[inline]
    pub(super) fn leaf_at(&self, path: &Path) -> Option<&Leaf> {
        let mut inner = self;
        for child in path {
            match &inner.children {
                Children::Leaves(leaves) => return leaves.get(usize::from(*child)),
                Children::Inners(inners) => inner = inners.get(usize::from(*child))?,
            }
        }
        None
    }

    /// Fetches what [`Inner::route`] reads.
    #[inline]
    pub(super) fn prefetch_heads(&self) {
        self.bounds.prefetch_heads();
    }

    pub(super) fn before(&self, key: &[u8]) -> Sums {
        let mut sums = Sums::default();
        let mut inner = self;
        loop {
            let at = inner.route(key);
            sums += inner.sums[..at].iter().sum();
            match &inner.children {
                Children::Leaves(leaves) => return sums + leaves[at].before(key),
                Children::Inners(inners) => inner = &inners[at],
            }
        }
    }

    #[inline]
    pub(super) fn live_before(&self, key: &[u8]) -> u64 {
        let mut live = 0;
        let mut inner = self;
        loop {
            let at = inner.route(key);
            live += inner.sums[..at].iter().map(|sums| sums.live).sum::<u64>();
            match &inner.children {
                Children::Leaves(leaves) => return live + leaves[at].live_before(key),
                Children::Inners(inners) => inner = &inners[at],
            }
        }
    }

    /// The live entry that `n` live ones below this node precede.
    pub(super) fn select_live(&self, mut n: u64) -> Option<&Entry> {
        let mut inner = self;
        loop {
            let at = inner.sums.iter().position(|sums| {
                let here = n < sums.live;
                n -= if here { 0 } else { sums.live };
                here
            })?;
            match &inner.children {
                Children::Leaves(leaves) => return leaves[at].select_live(n),
                Children::Inners(inners) => inner = &inners[at],
            }
        }
    }

    /// `first`, `last`: no node of this depth precedes it, follows it.
    pub(super) fn insert<M: Merge>(&mut self, entry: Entry, (first, last): (bool, bool), merge: M) -> Placed {
        let at = self.route(entry.key());
        let mut new_at = None;
        let (old, change) = match &mut self.children {
            Children::Leaves(leaves) => match leaves[at].find(entry.key()) {
                Ok(i) => {
                    let (old, change) = leaves[at].merge(i, entry, merge);
                    self.sums[at] += change.sums;
                    (old, change)
                }
                Err(i) => {
                    let change = Change::new(&entry);
                    if leaves[at].len() < LEAF_ENTRIES {
                        leaves[at].insert(i, entry);
                        self.sums[at] += change.sums;
                    } else {
                        new_at = self.overflow(at, i, entry);
                    }
                    (None, change)
                }
            },
            Children::Inners(inners) => {
                let ends = (first && at == 0, last && at + 1 == self.sums.len());
                let placed = inners[at].insert(entry, ends, merge);
                self.sums[at] += placed.change.sums;
                if let Some(split) = placed.split {
                    let (bound, right) = *split;
                    let moved = right.sums();
                    self.sums[at] -= moved;
                    self.sums.insert(at + 1, moved);
                    self.bounds.insert(at, bound);
                    inners.insert(at + 1, right);
                    new_at = Some(at + 1);
                }
                (placed.old, placed.change)
            }
        };
        let split = new_at.and_then(|at| self.split(at, first, last));
        Placed { old, change, split }
    }

    /// Inserts an entry at `i` of a full leaf. Returns the index of the leaf that this made, if any.
    fn overflow(&mut self, at: usize, i: usize, entry: Entry) -> Option<usize> {
        let Children::Leaves(leaves) = &mut self.children else { return None };
        let sums = entry.sums();
        if i == LEAF_ENTRIES {
            // Not at the end of this leaf, then at the front of the next: keys that descend towards a full leaf must
            // not make a leaf each.
            if leaves.get(at + 1).is_some_and(|next| next.len() < LEAF_ENTRIES) {
                self.bounds.replace(at, Key::from_slice(entry.key()));
                leaves[at + 1].insert(0, entry);
                self.sums[at + 1] += sums;
                return None;
            }
            self.bounds.insert(at, Key::from_slice(entry.key()));
            leaves.insert(at + 1, Leaf::of(entry));
            self.sums.insert(at + 1, sums);
            return Some(at + 1);
        }
        if i == 0 {
            let bound = Key::from_slice(leaves[at].key(0));
            if at > 0 && leaves[at - 1].len() < LEAF_ENTRIES {
                let end = leaves[at - 1].len();
                leaves[at - 1].insert(end, entry);
                self.bounds.replace(at - 1, bound);
                self.sums[at - 1] += sums;
                return None;
            }
            leaves.insert(at, Leaf::of(entry));
            self.bounds.insert(at, bound);
            self.sums.insert(at, sums);
            return Some(at);
        }
        let mut right = leaves[at].split_off(LEAF_ENTRIES / 2);
        let bound = Key::from_slice(right.key(0));
        if i <= LEAF_ENTRIES / 2 {
            leaves[at].insert(i, entry);
        } else {
            right.insert(i - LEAF_ENTRIES / 2, entry);
        }
        self.sums[at] = leaves[at].sums();
        self.sums.insert(at + 1, right.sums());
        self.bounds.insert(at, bound);
        leaves.insert(at + 1, right);
        Some(at + 1)
    }

    /// Splits a node that has one child too many, the one at `new_at` being new: at the ends of the tree beside that
    /// child, so that what grows in order stays full, otherwise in the middle.
    fn split(&mut self, new_at: usize, first: bool, last: bool) -> Option<Box<(Key, Inner)>> {
        let len = self.len();
        if len <= FAN_OUT {
            return None;
        }
        let at = match new_at {
            0 if first => 1,
            new if last && new + 1 == len => len - 1,
            _ => len / 2,
        };
        let bounds = self.bounds.split_off(at);
        let bound = self.bounds.pop()?;
        Some(Box::new((bound, Inner { bounds, sums: self.sums.split_off(at), children: self.children.split_off(at) })))
    }

    fn append(&mut self, bound: Key, mut right: Inner) {
        self.bounds.insert(self.bounds.len(), bound);
        self.bounds.append(right.bounds);
        self.sums.append(&mut right.sums);
        self.children.append(right.children);
    }

    pub(super) fn remove(&mut self, key: &[u8]) -> Option<Entry> {
        let at = self.route(key);
        let removed = match &mut self.children {
            Children::Leaves(leaves) => {
                let i = leaves[at].find(key).ok()?;
                leaves[at].remove(i)
            }
            Children::Inners(inners) => inners[at].remove(key)?,
        };
        self.sums[at] -= removed.sums();
        if self.children.len_of(at) < SMALL && !self.tidy(at) && at + 1 < self.len() && self.is_mergeable(at, at + 1) {
            self.merge_left(at + 1);
        }
        Some(removed)
    }

    /// Drops a child that is empty, merges one that is small into the child before it. Returns whether its place is gone.
    fn tidy(&mut self, at: usize) -> bool {
        if self.children.len_of(at) == 0 {
            self.drop_child(at);
            return true;
        }
        let gone = at > 0 && self.is_mergeable(at, at - 1);
        if gone {
            self.merge_left(at);
        }
        gone
    }

    /// Whether child `at` is small enough to be merged with its neighbour `other`.
    fn is_mergeable(&self, at: usize, other: usize) -> bool {
        let len = self.children.len_of(at);
        len < SMALL && len + self.children.len_of(other) <= MERGED
    }

    fn drop_child(&mut self, at: usize) {
        if self.len() > 1 {
            self.bounds.remove(at.saturating_sub(1));
        }
        self.sums.remove(at);
        self.children.remove(at);
    }

    fn merge_left(&mut self, at: usize) {
        let bound = self.bounds.remove(at - 1);
        let sums = self.sums.remove(at);
        self.sums[at - 1] += sums;
        self.children.merge_left(at, bound);
    }

    pub(super) fn update<R>(&mut self, key: &[u8], f: impl FnOnce(&mut Entry) -> R) -> Option<(R, Change)> {
        let at = self.route(key);
        let (answer, change) = match &mut self.children {
            Children::Leaves(leaves) => leaves[at].update(key, f),
            Children::Inners(inners) => inners[at].update(key, f),
        }?;
        self.sums[at] += change.sums;
        Some((answer, change))
    }

    pub(super) fn visit<F>(&mut self, visit: &mut Visit<'_, F>) -> Option<Key>
    where
        F: FnMut(&mut Entry) -> usize,
    {
        let first = visit.from.map_or(0, |from| self.route(from));
        for at in first..self.len() {
            let Sums { dirty, entries, .. } = self.sums[at];
            if if visit.dirty { dirty != 0 } else { dirty != entries } {
                let before = visit.change.sums;
                let next = match &mut self.children {
                    Children::Leaves(leaves) => leaves[at].visit(visit),
                    Children::Inners(inners) => inners[at].visit(visit),
                };
                self.sums[at] += visit.change.sums - before;
                if next.is_some() {
                    return next;
                }
            }
            visit.from = None;
        }
        None
    }

    pub(super) fn evict_clean(&mut self, sweep: &mut Sweep<'_>) -> Option<Key> {
        let mut at = sweep.from.map_or(0, |from| self.route(from));
        while at < self.len() {
            match &mut self.children {
                Children::Leaves(leaves) => {
                    let leaf = &mut leaves[at];
                    if sweep.leaves == 0 {
                        return Some(Key::from_slice(leaf.key(0)));
                    }
                    let before = sweep.change.sums;
                    leaf.evict_clean(sweep);
                    sweep.leaves -= 1;
                    self.sums[at] += sweep.change.sums - before;
                    if leaf.len() == 0 {
                        self.drop_child(at);
                    } else {
                        at += 1;
                    }
                }
                Children::Inners(inners) => {
                    let before = sweep.change.sums;
                    let next = inners[at].evict_clean(sweep);
                    self.sums[at] += sweep.change.sums - before;
                    let gone = self.tidy(at);
                    if next.is_some() {
                        return next;
                    }
                    at += usize::from(!gone);
                }
            }
            sweep.from = None;
        }
        None
    }
}

/// What only the check of the invariants looks at.
#[cfg(test)]
impl Inner {
    pub(super) fn bound(&self, at: usize) -> &[u8] {
        self.bounds.get(at - 1)
    }

    pub(super) fn compared(&self, key: &[u8]) -> usize {
        let at = self.route(key);
        self.bounds.compared(key).max(match &self.children {
            Children::Leaves(leaves) => leaves[at].compared(key),
            Children::Inners(inners) => inners[at].compared(key),
        })
    }

    pub(super) fn child_sums(&self) -> &[Sums] {
        self.bounds.check();
        assert_eq!(self.bounds.len() + 1, self.sums.len());
        &self.sums
    }
}
