//! Collections keyed by texts, gone through in step: what sets and sorted sets are united, intersected and subtracted by.
//!
//! They are read where they are, or, by a command that rests, in slices: where the next element of one has to be read first,
//! the merge stands still.
//!
//! Invariant: of every collection that has elements left, and is not dry, the next one stands among the heads.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use smallvec::SmallVec;

use crate::codec::NsId;
use crate::codec::element::Group;
use crate::handler::{Found, Result};
use crate::meter;
use crate::shard::txn::Txn;
use crate::shard::txn::elements::{Elements, Piece};
use crate::shard::txn::slices::{SLICE_ELEMENTS, Slices};

/// How collections become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// What any of them has.
    Union,
    /// What all of them have.
    Inter,
    /// What the first has and none of the others.
    Diff,
}

/// Taken for the number of elements of a collection that does not count them.
pub const UNCOUNTED: u64 = 1 << 40;

/// Whether it is cheaper to look every element of one collection up in the others than to go through all in step:
/// elements of that one, elements of all.
pub const fn is_probed(base: u64, all: u64) -> bool {
    /// A look-up costs about as much as this many steps of a merge.
    const LOOKUP_STEPS: u64 = 8;
    base.saturating_mul(LOOKUP_STEPS) <= all - base
}

/// The next element of one of the merged collections.
pub struct Head<'a> {
    /// Its key, with the tag of its group.
    pub key: Piece<'a>,
    /// Its value.
    pub value: Piece<'a>,
    /// Which of the collections has it.
    pub place: usize,
}

impl Head<'_> {
    /// What elements are ordered by: the stored form of their text. Groups may differ.
    fn stored(&self) -> &[u8] {
        self.key.get(1..).unwrap_or_default()
    }
}

impl Ord for Head<'_> {
    /// The lowest element is the greatest head; of equal ones that of the first collection.
    fn cmp(&self, other: &Self) -> Ordering {
        other.stored().cmp(self.stored()).then(other.place.cmp(&self.place))
    }
}

impl PartialOrd for Head<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Head<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Head<'_> {}

/// A collection that is gone through in its order.
pub trait Walk<'a> {
    /// The next element that is at hand.
    ///
    /// # Errors
    /// What reading brings.
    fn advance(&mut self) -> Result<Option<(Piece<'a>, Piece<'a>)>>;

    /// Whether there may be more, though none is at hand.
    fn is_dry(&self) -> bool;
}

impl<'a> Walk<'a> for Elements<'a> {
    #[inline]
    fn advance(&mut self) -> Result<Option<(Piece<'a>, Piece<'a>)>> {
        self.next().transpose()
    }

    #[inline]
    fn is_dry(&self) -> bool {
        false
    }
}

impl Walk<'static> for Slices {
    fn advance(&mut self) -> Result<Option<(Piece<'static>, Piece<'static>)>> {
        Ok(self.next().map(|(key, value)| (Piece::Owned(key), Piece::Owned(value))))
    }

    fn is_dry(&self) -> bool {
        Slices::is_dry(self)
    }
}

/// The elements of the result, one after the other in the order of their texts.
pub struct Merge<'a, W> {
    operation: Operation,
    walks: Vec<W>,
    heads: BinaryHeap<Head<'a>>,
    /// Collections that are dry: none of their elements is among the heads.
    dry: Vec<usize>,
    /// The first collection has no further element.
    first_ended: bool,
    /// The element at hand, of each collection that has it.
    same: SmallVec<[Head<'a>; 8]>,
}

impl<'a, W: Walk<'a>> Merge<'a, W> {
    /// Charges the command for going through so many collections at once.
    ///
    /// # Errors
    /// `TooMuch`.
    pub fn hold(walks: usize) -> Result {
        meter::hold(walks * (size_of::<W>() + size_of::<Head<'_>>()))
    }

    /// Begins to go through these collections, each in its order.
    ///
    /// # Errors
    /// What reading brings.
    pub fn new(operation: Operation, walks: Vec<W>) -> Result<Self> {
        let heads = BinaryHeap::with_capacity(walks.len());
        let (dry, same) = (Vec::new(), SmallVec::new());
        let mut merge = Merge { operation, walks, heads, dry, first_ended: false, same };
        (0..merge.walks.len()).try_for_each(|place| merge.advance(place))?;
        Ok(merge)
    }

    /// The next element of the result: that of each collection that has it, in the order of the collections. `None` at the
    /// end, or if a collection is dry.
    ///
    /// # Errors
    /// What reading brings.
    pub fn step(&mut self) -> Result<Option<&[Head<'a>]>> {
        while self.dry.is_empty() && !self.is_over() {
            self.same.clear();
            while let Some(head) = self.heads.peek()
                && self.same.first().is_none_or(|first| first.stored() == head.stored())
                && let Some(head) = self.heads.pop()
            {
                self.advance(head.place)?;
                self.same.push(head);
            }
            let belongs = match self.operation {
                Operation::Union => true,
                Operation::Inter => self.same.len() == self.walks.len(),
                Operation::Diff => self.same.len() == 1 && self.same[0].place == 0,
            };
            if belongs {
                return Ok(Some(&self.same));
            }
        }
        Ok(None)
    }

    /// Whether no further element can belong to the result.
    fn is_over(&self) -> bool {
        match self.operation {
            Operation::Union => self.heads.is_empty(),
            Operation::Inter => self.heads.len() < self.walks.len() || self.walks.is_empty(),
            Operation::Diff => self.first_ended || self.walks.is_empty(),
        }
    }

    fn advance(&mut self, place: usize) -> Result {
        match self.walks[place].advance()? {
            Some((key, value)) => self.heads.push(Head { key, value, place }),
            None if self.walks[place].is_dry() => self.dry.push(place),
            None => self.first_ended |= place == 0,
        }
        Ok(())
    }
}

/// Hands the elements of a result to `emit`, as [`Merge::step`] does, until it says that they are enough. Rests between slices.
///
/// # Errors
/// Of `emit`, of reads, and as of [`Txn::rest`].
pub fn merge_in_slices(
    txn: &mut Txn<'_, '_>,
    ns: NsId,
    operation: Operation,
    collections: impl ExactSizeIterator<Item = (Found, Group)>,
    mut emit: impl FnMut(&[Head<'_>]) -> Result<bool>,
) -> Result {
    Merge::<Slices>::hold(collections.len())?;
    let slices = collections.map(|(at, group)| Slices::of_group(at, group)).collect();
    // All of them are dry.
    let mut merge = Merge::new(operation, slices)?;
    let mut first = true;
    loop {
        merge.fill(txn, ns)?;
        let more = merge.walks.iter().any(Slices::has_more);
        let mut pass = || {
            while let Some(heads) = merge.step()? {
                if !emit(heads)? {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        // What is little is done where it is.
        let goes_on = if more || !first { txn.rest(ns, pass)? } else { pass()? };
        if !goes_on || merge.dry.is_empty() {
            return Ok(());
        }
        first = false;
    }
}

impl Merge<'static, Slices> {
    /// Reads the next slices of those that are dry.
    fn fill(&mut self, txn: &mut Txn<'_, '_>, ns: NsId) -> Result {
        let (mut read, collections) = (0, self.walks.len());
        for place in std::mem::take(&mut self.dry) {
            read += self.walks[place].fill_one_of(txn, collections)?;
            self.advance(place)?;
            if read >= SLICE_ELEMENTS.get() {
                txn.rest(ns, || Ok(()))?;
                read = 0;
            }
        }
        Ok(())
    }
}
