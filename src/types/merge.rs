//! Collections keyed by texts, gone through in step: what sets and sorted sets are united, intersected and subtracted by.
//!
//! Invariant: of every collection that has elements left, the next one stands among the heads.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use smallvec::SmallVec;

use crate::handler::Result;
use crate::meter;
use crate::shard::txn::elements::{Elements, Piece};

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

/// The elements of the result, one after the other in the order of their texts.
pub struct Merge<'a> {
    operation: Operation,
    walks: Vec<Elements<'a>>,
    heads: BinaryHeap<Head<'a>>,
    /// The first collection has no further element.
    first_ended: bool,
    /// The element at hand, of each collection that has it.
    same: SmallVec<[Head<'a>; 8]>,
}

impl<'a> Merge<'a> {
    /// Charges the command for going through so many collections at once.
    ///
    /// # Errors
    /// `TooMuch`.
    pub fn hold(walks: usize) -> Result {
        meter::hold(walks * (size_of::<Elements<'_>>() + size_of::<Head<'_>>()))
    }

    /// Begins to go through these collections, each in its order.
    ///
    /// # Errors
    /// What reading brings.
    pub fn new(operation: Operation, walks: Vec<Elements<'a>>) -> Result<Self> {
        let heads = BinaryHeap::with_capacity(walks.len());
        let mut merge = Merge { operation, walks, heads, first_ended: false, same: SmallVec::new() };
        (0..merge.walks.len()).try_for_each(|place| merge.advance(place))?;
        Ok(merge)
    }

    /// The next element of the result: that of each collection that has it, in the order of the collections.
    ///
    /// # Errors
    /// What reading brings.
    pub fn step(&mut self) -> Result<Option<&[Head<'a>]>> {
        while !self.is_over() {
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
        match self.walks[place].next().transpose()? {
            Some((key, value)) => self.heads.push(Head { key, value, place }),
            None => self.first_ended |= place == 0,
        }
        Ok(())
    }
}
