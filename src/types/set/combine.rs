//! Union, intersection and difference as streams of elements, in the order of the elements.
//!
//! | way | reads | taken for |
//! |---|---|---|
//! | merge | every set once, all in step | unions, and sets of about one size |
//! | probe | one set in slices, and of the others single elements | intersections and differences where one set is small |
//!
//! Nothing is gathered but slices of elements, so memory stays bounded whatever the sizes. A set may be named twice. A
//! command that may rest does so between slices, and what is done with the elements is done without the cores.

use std::ops::Bound;

use super::{BLIND, Key};
use crate::codec::element::Group;
use crate::codec::is_long_form;
use crate::handler::limits::may_touch;
use crate::handler::{Ctx, Found, Result};
use crate::shard::txn::elements::{Elements, whole_group};
use crate::shard::txn::slices::{Element, Slices};
use crate::types::merge::{Merge, Operation, UNCOUNTED, is_probed, merge_in_slices};
use crate::util::scale::Scaled;

/// What is done with each element and its value; whether to go on.
pub type Emit<'f> = &'f mut dyn FnMut(&[u8], &[u8]) -> Result<bool>;

/// Elements read ahead by a probe.
const SLICE: Scaled<usize> = Scaled::new(256);
/// Look-ups that may bring elements from disk into memory.
const PROBES_OF_DISK: Scaled<u64> = Scaled::new(100_000);

/// Members of a set, about.
pub fn weight(ctx: &Ctx, at: Found) -> u64 {
    let body = ctx.body(at);
    match (body.encoding, body.overlay.complete) {
        (BLIND, true) => body.overlay.sums().live,
        (BLIND, false) => UNCOUNTED,
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
        if is_probed(small, all) && (in_memory || small <= PROBES_OF_DISK.get()) {
            let steps = small.saturating_mul(sets.len() as u64);
            may_touch(steps)?;
            return match ctx.goes_in_slices(steps)? {
                true => probe_in_slices(ctx, operation, sets, base, emit),
                false => probe(ctx, operation, sets, base, emit),
            };
        }
    }
    may_touch(all)?;
    if ctx.goes_in_slices(all)? {
        let (ns, sets) = (ctx.ns(), sets.iter().map(|&at| (at, Group::SetMember)));
        return merge_in_slices(&mut ctx.txn, ns, operation, sets, |heads| emit(&heads[0].key, &heads[0].value));
    }
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
        for element in ctx.elements(sets[base], lower, Bound::Excluded(&end), false)?.take(SLICE.get()) {
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
        if slice.len() < SLICE.get() {
            return Ok(());
        }
        after = slice.pop();
    }
}

/// The same, with rests, in which the result is worked on.
fn probe_in_slices(ctx: &mut Ctx, operation: Operation, sets: &[Found], base: usize, emit: Emit<'_>) -> Result {
    let ns = ctx.ns();
    let mut walk = Slices::of_group(sets[base], Group::SetMember);
    while walk.has_more() {
        walk.fill(&ctx.txn)?;
        let mut slice: Vec<Element> = walk.by_ref().collect();
        for (i, &other) in sets.iter().enumerate() {
            if i == base {
                continue;
            }
            let mut wanted = vec![false; slice.len()];
            ctx.txn.look_up_in_slices(other, slice.iter().map(|(element, _)| &element[..]), |place, value| {
                wanted[place] = value.is_some() == (operation == Operation::Inter);
                Ok(())
            })?;
            let mut wanted = wanted.into_iter();
            slice.retain(|_| wanted.next().unwrap_or_default());
        }
        let mut pass = || {
            for (element, value) in &slice {
                if !emit(element, value)? {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        let goes_on = if walk.has_more() { ctx.txn.rest(ns, pass)? } else { pass()? };
        if !goes_on {
            break;
        }
    }
    Ok(())
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

/// Goes through all sets in step.
fn merge(ctx: &Ctx, operation: Operation, sets: &[Found], emit: Emit<'_>) -> Result {
    Merge::<Elements<'_>>::hold(sets.len())?;
    let walks: Result<Vec<_>> = sets.iter().map(|&at| ctx.group(at, Group::SetMember)).collect();
    let mut merge = Merge::new(operation, walks?)?;
    while let Some([head, ..]) = merge.step()? {
        if !emit(&head.key, &head.value)? {
            break;
        }
    }
    Ok(())
}
