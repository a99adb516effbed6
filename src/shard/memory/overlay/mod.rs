//! The elements of a collection that are hot or dirty: an ordered map that counts.
//!
//! A B+tree whose nodes know how many of the entries below them are live, dirty or stored, so that ranks, members at
//! random and the entries due for a flush are found in logarithmic time.
//!
//! | file | owns |
//! |---|---|
//! | [`entry`] | key, value and state of one element |
//! | [`keys`] | the keys of a node, and how they are searched |
//! | [`leaf`], [`node`] | leaves and inner nodes: search, split, merge, sums |
//! | [`range`] | walks in order, from either end |
//!
//! | flag of an element | meaning |
//! |---|---|
//! | `DIRTY` | changed since it was last gathered for a flush |
//! | `IN_FLIGHT` | gathered by a flush that has not finished |
//! | `MAYBE_STORED` | the disk may hold it: removing it leaves a tombstone |
//! | `BASE` | the disk holds it live, the flush under way aside |
//! | `NEXT` | the disk will hold it live once the flush under way is done; equals `BASE` for what is not in flight |
//!
//! Invariants: keys strictly ascend; a child's sums are the sums of what is below it; all leaves stand at one depth; no
//! node is empty but the root of an empty map; an inner root has two children or more. `tests::check` holds them.

mod entry;
mod keys;
mod leaf;
mod node;
mod range;
#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests;

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Bound, Sub, SubAssign};

use smallvec::SmallVec;

pub use entry::Entry;
use leaf::Leaf;
use node::{Change, Inner, LEAF_ENTRIES, Merge, Path, Sweep, Visit};
pub use range::Range;

use crate::util::prefetch::prefetch_all;

/// Bytes of a key that stands without its entry; most stand inline.
pub type Key = SmallVec<[u8; 40]>;

const _: () = assert!(size_of::<Key>() == 48, "no byte is lost");

/// State bits of elements; the module's table says what each means.
pub mod state {
    #![expect(missing_docs, reason = "the module's table says what each means")]
    pub const DIRTY: u8 = 1;
    pub const IN_FLIGHT: u8 = 4;
    pub const MAYBE_STORED: u8 = 8;
    pub const BASE: u8 = 16;
    pub const NEXT: u8 = 32;
}

/// How many entries there are of each sort.
///
/// Arithmetic wraps: a difference may stand for less than nothing until it is added to something.
#[derive(Default, Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sums {
    /// All, removed ones included.
    pub entries: u64,
    /// With a value.
    pub live: u64,
    /// In state `DIRTY`.
    pub dirty: u64,
    /// In state `BASE`.
    pub base: u64,
    /// In state `NEXT`.
    pub next: u64,
}

impl Sums {
    fn zip(self, other: Sums, f: impl Fn(u64, u64) -> u64) -> Sums {
        Sums {
            entries: f(self.entries, other.entries),
            live: f(self.live, other.live),
            dirty: f(self.dirty, other.dirty),
            base: f(self.base, other.base),
            next: f(self.next, other.next),
        }
    }
}

impl Add for Sums {
    type Output = Sums;
    fn add(self, other: Sums) -> Sums {
        self.zip(other, u64::wrapping_add)
    }
}

impl Sub for Sums {
    type Output = Sums;
    fn sub(self, other: Sums) -> Sums {
        self.zip(other, u64::wrapping_sub)
    }
}

impl AddAssign for Sums {
    fn add_assign(&mut self, other: Sums) {
        *self = *self + other;
    }
}

impl SubAssign for Sums {
    fn sub_assign(&mut self, other: Sums) {
        *self = *self - other;
    }
}

impl<'a> Sum<&'a Sums> for Sums {
    fn sum<I: Iterator<Item = &'a Sums>>(sums: I) -> Sums {
        sums.fold(Sums::default(), |all, s| all + *s)
    }
}

/// A look-up on its way, in steps that each fetch what the next one reads: see [`crate::shard::memory::ahead`].
///
/// It holds no reference: the map may change between two steps, and a wrong guess costs a fetch.
#[derive(Default, Clone, Copy)]
pub struct Near {
    next: Next,
    path: Path,
    /// Where the entry probably is in its leaf, if it is there.
    at: Option<usize>,
}

impl Near {
    /// No step is left.
    pub const THERE: Near = Near { next: Next::Nothing, path: [0; _], at: None };

    /// Whether there is no step left.
    #[inline]
    pub fn is_there(&self) -> bool {
        matches!(self.next, Next::Nothing)
    }
}

/// What a look-up fetches next.
#[derive(Default, Clone, Copy)]
enum Next {
    #[default]
    Leaf,
    Heads,
    Entry,
    Text,
    Nothing,
}

/// Memory of one entry without what its text holds elsewhere: its place in a leaf that is three quarters full.
pub const ENTRY_BYTES: usize = (size_of::<Entry>() + size_of::<u32>()) * 4 / 3;

/// What an allocator adds to an allocation, roughly.
const ALLOCATION_BYTES: usize = 16;

#[derive(Clone)]
enum Root {
    Leaf(Leaf),
    Inner(Inner),
}

impl Root {
    /// The leaf that a path leads to, if there still is one.
    #[inline]
    fn leaf_at(&self, path: &Path) -> Option<&Leaf> {
        match self {
            Root::Leaf(leaf) => Some(leaf),
            Root::Inner(inner) => inner.leaf_at(path),
        }
    }
}

/// The elements of a collection that are in memory, by their physical key, in the order the disk would return them.
pub struct Overlay {
    root: Root,
    /// Of all entries.
    sums: Sums,
    /// Of entries too long to stand inline.
    heap_bytes: usize,
    /// All elements are in memory: a miss is an answer.
    pub complete: bool,
}

impl Overlay {
    /// An empty and therefore complete map.
    pub fn new() -> Self {
        Overlay { root: Root::Leaf(Leaf::default()), sums: Sums::default(), heap_bytes: 0, complete: true }
    }

    /// Number of entries, removed ones included.
    pub fn len(&self) -> usize {
        self.sums.entries as usize
    }

    /// Whether there is no entry, not even a removed one.
    pub fn is_empty(&self) -> bool {
        self.sums.entries == 0
    }

    /// The sums of all entries.
    pub fn sums(&self) -> Sums {
        self.sums
    }

    /// Memory held, estimated: [`ENTRY_BYTES`] an entry, and the allocations of long ones.
    pub fn bytes(&self) -> usize {
        self.len() * ENTRY_BYTES + self.heap_bytes
    }

    /// Frees the map, which takes long if it is big; `step` is called after each leaf.
    pub fn free(self, mut step: impl FnMut()) {
        match self.root {
            Root::Leaf(leaf) => {
                drop(leaf);
                step();
            }
            Root::Inner(inner) => inner.free(&mut step),
        }
    }

    /// Fetches what the root is searched by: a look-ahead's step before those of [`Overlay::fetch`], for all its keys.
    #[inline]
    pub fn fetch_root(&self) {
        match &self.root {
            Root::Leaf(leaf) => leaf.prefetch_heads(),
            Root::Inner(inner) => inner.prefetch_heads(),
        }
    }

    /// Takes a look-ahead's next step towards `key`.
    #[inline]
    pub fn fetch(&self, key: &[u8], near: &mut Near) {
        let leaf = match (near.next, &self.root) {
            (Next::Leaf, Root::Inner(inner)) => {
                let (leaf, path) = inner.path_of(key);
                prefetch_all(std::slice::from_ref(leaf));
                (near.path, near.next) = (path, Next::Heads);
                return;
            }
            (_, Root::Inner(inner)) => inner.leaf_at(&near.path),
            (_, Root::Leaf(leaf)) => Some(leaf),
        };
        near.next = match (near.next, leaf) {
            (Next::Heads, Some(leaf)) => {
                leaf.prefetch_heads();
                Next::Entry
            }
            (Next::Leaf | Next::Entry, Some(leaf)) => {
                near.at = leaf.prefetch_entry(key);
                // What is not there is not read either.
                if near.at.is_some() { Next::Text } else { Next::Nothing }
            }
            (Next::Text, Some(leaf)) => {
                near.at.inspect(|at| leaf.prefetch_text(*at));
                Next::Nothing
            }
            _ => Next::Nothing,
        };
    }

    /// The value of the entry that a look-ahead found, if it is the one of `key`.
    #[inline]
    pub fn value_at(&self, near: &Near, key: &[u8]) -> Option<&[u8]> {
        let leaf = self.root.leaf_at(&near.path)?;
        let entry = near.at.filter(|at| *at < leaf.len()).map(|at| leaf.entry(at))?;
        if entry.key() == key { entry.value() } else { None }
    }

    /// The entry of `key`.
    pub fn get(&self, key: &[u8]) -> Option<&Entry> {
        let leaf = match &self.root {
            Root::Leaf(leaf) => leaf,
            Root::Inner(inner) => inner.leaf_of(key),
        };
        let at = leaf.find(key).ok()?;
        leaf.touch();
        Some(leaf.entry(at))
    }

    /// Makes room for so many entries in all, a leaf's at most: each growth of a small map would leave a gap behind.
    pub fn reserve(&mut self, entries: usize) {
        if let Root::Leaf(leaf) = &mut self.root {
            leaf.reserve(entries);
        }
    }

    /// Puts `entry` in the place of its key and returns what was there before.
    pub fn insert(&mut self, entry: Entry) -> Option<Entry> {
        self.merge(entry, |_, _| true)
    }

    /// Puts `entry` in the place of its key if nothing is there; otherwise `merge` gets old and new, may change the new
    /// one, and tells whether it takes the place. Returns what was replaced.
    pub fn merge(&mut self, entry: Entry, merge: impl FnOnce(&Entry, &mut Entry) -> bool) -> Option<Entry> {
        let (old, change) = self.place(entry, merge);
        self.follow(change);
        old
    }

    fn place(&mut self, entry: Entry, merge: impl Merge) -> (Option<Entry>, Change) {
        if let Root::Leaf(leaf) = &mut self.root {
            match leaf.find(entry.key()) {
                Ok(at) => return leaf.merge(at, entry, merge),
                Err(at) if leaf.len() < LEAF_ENTRIES => {
                    let change = Change::new(&entry);
                    leaf.insert(at, entry);
                    return (None, change);
                }
                Err(_) => self.root = Root::Inner(Inner::over(std::mem::take(leaf))),
            }
        }
        let Root::Inner(inner) = &mut self.root else { return (None, Change::default()) };
        let placed = inner.insert(entry, (true, true), merge);
        if let Some(split) = placed.split {
            let (bound, right) = *split;
            inner.grow(bound, right);
        }
        (placed.old, placed.change)
    }

    /// Takes the entry of `key` out; nothing of it stays, so the disk's is no longer masked.
    pub fn remove(&mut self, key: &[u8]) -> Option<Entry> {
        let entry = match &mut self.root {
            Root::Leaf(leaf) => leaf.find(key).ok().map(|at| leaf.remove(at)),
            Root::Inner(inner) => inner.remove(key),
        }?;
        self.collapse();
        self.sums -= entry.sums();
        self.heap_bytes -= entry.heap_bytes();
        Some(entry)
    }

    /// Has `f` change the entry of `key`, if there is one; sums and bytes follow.
    pub fn update<R>(&mut self, key: &[u8], f: impl FnOnce(&mut Entry) -> R) -> Option<R> {
        let (answer, change) = match &mut self.root {
            Root::Leaf(leaf) => leaf.update(key, f),
            Root::Inner(inner) => inner.update(key, f),
        }?;
        self.follow(change);
        Some(answer)
    }

    /// The sums of all entries whose key is less than `key`.
    pub fn before(&self, key: &[u8]) -> Sums {
        match &self.root {
            Root::Leaf(leaf) => leaf.before(key),
            Root::Inner(inner) => inner.before(key),
        }
    }

    /// Number of live entries whose key is less than `key`.
    #[inline]
    pub fn live_before(&self, key: &[u8]) -> u64 {
        match &self.root {
            Root::Leaf(leaf) => leaf.live_before(key),
            Root::Inner(inner) => inner.live_before(key),
        }
    }

    /// The live entry that `n` live entries precede.
    pub fn select_live(&self, n: u64) -> Option<&Entry> {
        if n >= self.sums.live {
            return None;
        }
        match &self.root {
            Root::Leaf(leaf) => leaf.select_live(n),
            Root::Inner(inner) => inner.select_live(n),
        }
    }

    /// The entries between two bounds, in order; none if the bounds are the wrong way round.
    pub fn range(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> Range<'_> {
        Range::new(&self.root, lower, upper)
    }

    /// All entries in order.
    pub fn iter(&self) -> Range<'_> {
        self.range(Bound::Unbounded, Bound::Unbounded)
    }

    /// Calls `f` for the dirty entries from `from` on, in order, as long as what it answers for them is less than `most`
    /// in sum; subtrees without any cost nothing. Returns the key of the next dirty entry, `None` when there are no more.
    pub fn visit_dirty(&mut self, from: &[u8], most: usize, f: impl FnMut(&mut Entry) -> usize) -> Option<Key> {
        self.visit(Visit { dirty: true, from: Some(from), most, f, change: Change::default() })
    }

    /// Makes the clean entries dirty; subtrees without any cost nothing.
    pub fn stain(&mut self) {
        let f = |entry: &mut Entry| {
            entry.state |= state::DIRTY;
            0
        };
        self.visit(Visit { dirty: false, from: None, most: usize::MAX, f, change: Change::default() });
    }

    /// Makes the dirty entries clean, of which the disk is to hold none.
    pub fn wash(&mut self) {
        let f = |entry: &mut Entry| {
            entry.state &= !state::DIRTY;
            0
        };
        self.visit(Visit { dirty: true, from: None, most: usize::MAX, f, change: Change::default() });
    }

    fn visit(&mut self, mut visit: Visit<'_, impl FnMut(&mut Entry) -> usize>) -> Option<Key> {
        let next = match &mut self.root {
            Root::Leaf(leaf) => leaf.visit(&mut visit),
            Root::Inner(inner) => inner.visit(&mut visit),
        };
        self.follow(visit.change);
        next
    }

    /// Drops clean entries, from the leaf that would hold `from` on, looking at no more than `leaves`. A leaf in which
    /// something was found since it was last looked at is spared once.
    ///
    /// Returns where to go on, `None` when the end was reached. What is dropped makes the map incomplete.
    pub fn evict_clean(&mut self, from: &[u8], leaves: usize) -> Option<Key> {
        let mut sweep = Sweep { from: Some(from), leaves, change: Change::default() };
        let next = match &mut self.root {
            Root::Leaf(leaf) => {
                leaf.evict_clean(&mut sweep);
                if leaf.len() == 0 {
                    *leaf = Leaf::default();
                }
                None
            }
            Root::Inner(inner) => inner.evict_clean(&mut sweep),
        };
        let change = sweep.change;
        if change.sums.entries != 0 {
            self.complete = false;
        }
        // Small nodes are merged also where nothing was dropped.
        self.collapse();
        self.follow(change);
        next
    }

    fn follow(&mut self, change: Change) {
        self.sums += change.sums;
        self.heap_bytes = self.heap_bytes.wrapping_add(change.heap_bytes);
    }

    /// Takes inner roots with fewer than two children away.
    fn collapse(&mut self) {
        while let Root::Inner(inner) = &mut self.root
            && let Some(root) = inner.only_child()
        {
            self.root = root;
        }
    }
}

impl Default for Overlay {
    fn default() -> Self {
        Self::new()
    }
}

impl Clone for Overlay {
    fn clone(&self) -> Self {
        let mut clone = Overlay { root: self.root.clone(), ..*self };
        // Copies have other capacities.
        clone.heap_bytes = clone.iter().map(Entry::heap_bytes).sum();
        clone
    }
}

impl PartialEq for Overlay {
    fn eq(&self, other: &Self) -> bool {
        self.complete == other.complete && self.sums == other.sums && self.iter().eq(other.iter())
    }
}

impl Eq for Overlay {}

impl fmt::Debug for Overlay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Overlay {{ complete: {}, elements: ", self.complete)?;
        f.debug_list().entries(self.iter()).finish()?;
        f.write_str(" }")
    }
}
