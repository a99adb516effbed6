//! Union, intersection and difference as streams of elements, in the order of the elements.
//!
//! | way | reads | taken for |
//! |---|---|---|
//! | merge | every set once, all in step | unions, and sets of about one size |
//! | probe | one set in slices, and of the others single elements | intersections and differences where one set is small |
//!
//! Nothing is gathered but a slice of elements, so memory stays bounded whatever the sizes. A set may be named twice.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::ops::Bound;

use super::{BLIND, Key};
use crate::codec::element::Group;
use crate::codec::is_long_form;
use crate::handler::{Ctx, Found, Result};
use crate::shard::txn::elements::{Elements, Piece, whole_group};
use crate::types::scan::may_touch;

/// How sets become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// What any of them has.
    Union,
    /// What all of them have.
    Inter,
    /// What the first has and none of the others.
    Diff,
}

/// What is done with each element and its value; whether to go on.
pub type Emit<'f> = &'f mut dyn FnMut(&[u8], &[u8]) -> Result<bool>;

/// Elements read ahead by a probe.
const SLICE: usize = if cfg!(test) { 3 } else { 256 };
/// A look-up costs about as much as this many steps of a merge.
const LOOKUP_STEPS: u64 = 8;
/// Look-ups that may bring elements from disk into memory.
const PROBES_OF_DISK: u64 = 100_000;
/// Members that a blind set may have of which not all are in memory.
const UNKNOWN: u64 = 1 << 40;

/// Members of a set, about.
pub fn weight(ctx: &Ctx, at: Found) -> u64 {
    let body = ctx.body(at);
    match (body.encoding, body.overlay.complete) {
        (BLIND, true) => body.overlay.sums().live,
        (BLIND, false) => UNKNOWN,
        _ => body.size,
    }
}

/// Hands out the elements of the result in order, each once. Without sets there are none.
pub fn combine(ctx: &mut Ctx, operation: Operation, sets: &[Found], emit: Emit<'_>) -> Result {
    let weights: Vec<u64> = sets.iter().map(|&at| weight(ctx, at)).collect();
    let all: u64 = weights.iter().sum();
    let base = match operation {
        Operation::Union => None,
        Operation::Inter => (0..sets.len()).min_by_key(|&i| weights[i]),
        Operation::Diff => Some(0),
    };
    if let Some(base) = base.filter(|_| sets.len() > 1) {
        let small = weights[base];
        let in_memory = (0..sets.len()).all(|i| i == base || ctx.body(sets[i]).overlay.complete);
        if small.saturating_mul(LOOKUP_STEPS) <= all - small && (in_memory || small <= PROBES_OF_DISK) {
            may_touch(ctx, small.saturating_mul(sets.len() as u64))?;
            return probe(ctx, operation, sets, base, emit);
        }
    }
    may_touch(ctx, all)?;
    merge(ctx, operation, sets, emit)
}

/// Goes through one set and looks every member up in the others.
fn probe(ctx: &mut Ctx, operation: Operation, sets: &[Found], base: usize, emit: Emit<'_>) -> Result {
    let (first, end) = whole_group(Group::SetMember);
    let mut after: Option<Key> = None;
    let mut slice: Vec<Key> = Vec::new();
    loop {
        slice.clear();
        let lower = after.as_deref().map_or(Bound::Included(&first[..]), Bound::Excluded);
        for element in ctx.elements(sets[base], lower, Bound::Excluded(&end), false)?.take(SLICE) {
            slice.push(Key::from_slice(&element?.0));
        }
        for key in &slice {
            if is_wanted(ctx, operation, sets, base, key)? {
                let is_long = is_long_form(&key[1..]);
                let value = if is_long { ctx.txn.element(sets[base], key)?.unwrap_or_default() } else { b"" };
                if !emit(key, value)? {
                    return Ok(());
                }
            }
        }
        if slice.len() < SLICE {
            return Ok(());
        }
        after = slice.pop();
    }
}

/// Whether an element of the base belongs to the result.
fn is_wanted(ctx: &mut Ctx, operation: Operation, sets: &[Found], base: usize, key: &[u8]) -> Result<bool> {
    for (i, &other) in sets.iter().enumerate() {
        if i != base && ctx.txn.element(other, key)?.is_some() != (operation == Operation::Inter) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The next element of one of the merged sets.
struct Head<'a> {
    key: Piece<'a>,
    value: Piece<'a>,
    set: usize,
}

impl Ord for Head<'_> {
    /// The lowest element is the greatest head; of equal ones that of the first set.
    fn cmp(&self, other: &Self) -> Ordering {
        other.key.cmp(&self.key).then(other.set.cmp(&self.set))
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

/// Goes through all sets in step.
fn merge(ctx: &Ctx, operation: Operation, sets: &[Found], emit: Emit<'_>) -> Result {
    let walks: Result<Vec<_>> = sets.iter().map(|&at| ctx.group(at, Group::SetMember)).collect();
    let mut merged =
        Merged { walks: walks?, heads: BinaryHeap::with_capacity(sets.len()), ended: 0, first_ended: false };
    (0..sets.len()).try_for_each(|set| merged.advance(set))?;
    while let Some(head) = merged.heads.pop() {
        merged.advance(head.set)?;
        let mut hits = 1;
        while merged.heads.peek().is_some_and(|next| *next.key == *head.key) {
            let Some(same) = merged.heads.pop() else { break };
            merged.advance(same.set)?;
            hits += 1;
        }
        let (wanted, last) = match operation {
            Operation::Union => (true, false),
            Operation::Inter => (hits == sets.len(), merged.ended > 0),
            Operation::Diff => (hits == 1 && head.set == 0, merged.first_ended),
        };
        if (wanted && !emit(&head.key, &head.value)?) || last {
            return Ok(());
        }
    }
    Ok(())
}

struct Merged<'a> {
    walks: Vec<Elements<'a>>,
    heads: BinaryHeap<Head<'a>>,
    /// Sets without a further element.
    ended: usize,
    first_ended: bool,
}

impl Merged<'_> {
    fn advance(&mut self, set: usize) -> Result {
        match self.walks[set].next().transpose()? {
            Some((key, value)) => self.heads.push(Head { key, value, set }),
            None => {
                self.ended += 1;
                self.first_ended |= set == 0;
            }
        }
        Ok(())
    }
}
