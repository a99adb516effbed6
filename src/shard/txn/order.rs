//! Rank and offset: how many elements stand in front of one, and which one stands at a place.
//!
//! | overlay | answer |
//! |---|---|
//! | complete | from the overlay's sums |
//! | partial, indexed | a block of fjall's counted index, corrected by the overlay's sums, then a walk within the block |
//! | partial, no index (a collection that was never big) | a walk |
//!
//! The index tells what fjall holds; the overlay knows of each of its elements whether fjall holds it, with and without
//! the flight under way ([`crate::shard::memory::overlay::state::NEXT`], [`crate::shard::memory::overlay::state::BASE`]). A flight may land at any moment, also while
//! this is read: the generation in the index's root tells which of the two it is, and who finds another root at the end
//! begins again.

use std::ops::Bound;

use super::elements::{Piece, whole_group};
use super::slices::Slices;
use super::{Found, Txn};
use crate::codec;
use crate::codec::element::Group;
use crate::error::Result;
use crate::meter;
use crate::shard::memory::core::storage;
use crate::shard::rank::Counted;
use crate::store::StoreError;

/// Between which elements of a collection lie.
type Bounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

impl Txn<'_, '_> {
    /// Number of elements of a group in front of this one, whether it is there or not.
    pub fn rank(&self, at: Found, group: Group, key: &[u8]) -> Result<u64> {
        meter::step(1)?;
        let overlay = &self.body(at).overlay;
        if overlay.complete {
            return Ok(overlay.live_before(key) - self.live_in_front(at, group));
        }
        let prefix = self.prefix(at);
        while let Some(index) = self.counted(at, group, &prefix)? {
            let block = index.locate(key).map_err(|e| self.unreadable(at, e))?;
            let before = block.before.wrapping_add_signed(self.surplus(at, group, &index, &block.start));
            let rank = before + self.count(at, &block.start, key)?;
            if index.is_current().map_err(|e| self.unreadable(at, e))? {
                return Ok(rank);
            }
        }
        self.count(at, &whole_group(group).0, key)
    }

    /// Number of live elements of a complete overlay that stand in front of a group.
    #[inline]
    fn live_in_front(&self, at: Found, group: Group) -> u64 {
        let body = self.body(at);
        match group {
            // The lowest of their type.
            Group::HashField | Group::SetMember | Group::ListElement | Group::StreamElement => 0,
            // Scores come and go in pairs with what sorts them. Amid a change the size is not that of either group.
            Group::ZsetSort if body.overlay.sums().live == 2 * body.size => body.size,
            _ => body.overlay.live_before(&whole_group(group).0),
        }
    }

    /// The n-th element of a group, from 0.
    pub fn select(&self, at: Found, group: Group, n: u64) -> Result<Option<(Piece<'_>, Piece<'_>)>> {
        meter::step(1)?;
        let (_, upper) = whole_group(group);
        let overlay = &self.body(at).overlay;
        if overlay.complete {
            let found = overlay.select_live(self.live_in_front(at, group) + n).filter(|entry| *entry.key() < upper[..]);
            return Ok(found.and_then(|entry| Some((Piece::Memory(entry.key()), Piece::Memory(entry.value()?)))));
        }
        let prefix = self.prefix(at);
        while let Some(index) = self.counted(at, group, &prefix)? {
            let mut surplus = |start: &[u8]| self.surplus(at, group, &index, start);
            let block = index.select(n, &mut surplus).map_err(|e| self.unreadable(at, e))?;
            let found = match &block {
                None => None,
                Some(block) => {
                    let before = block.before.wrapping_add_signed(surplus(&block.start));
                    let from = Bound::Included(&block.start[..]);
                    let mut elements = self.elements(at, from, Bound::Excluded(&upper), false)?;
                    elements.nth(n.wrapping_sub(before) as usize).transpose()?
                }
            };
            if index.is_current().map_err(|e| self.unreadable(at, e))? {
                return Ok(found);
            }
        }
        self.group(at, group)?.nth(n as usize).transpose()
    }

    /// The elements of a group from the n-th on, in order; with `reverse` the n-th from the end and those before it.
    pub fn elements_at(&self, at: Found, group: Group, n: u64, reverse: bool) -> Result<super::elements::Elements<'_>> {
        let (lower, upper) = self.bounds_at(at, group, n, reverse)?;
        let [lower, upper] = [&lower, &upper].map(|bound| bound.as_ref().map(Vec::as_slice));
        self.elements(at, lower, upper, reverse)
    }

    /// The same in slices.
    pub fn slices_at(&self, at: Found, group: Group, n: u64, reverse: bool) -> Result<Slices> {
        let (lower, upper) = self.bounds_at(at, group, n, reverse)?;
        let [lower, upper] = [&lower, &upper].map(|bound| bound.as_ref().map(Vec::as_slice));
        Ok(Slices::new(at, lower, upper, reverse))
    }

    fn bounds_at(&self, at: Found, group: Group, n: u64, reverse: bool) -> Result<Bounds> {
        let (lower, upper) = whole_group(group);
        let n = if reverse { self.size(at).checked_sub(n + 1) } else { Some(n) };
        let first = match n {
            None => None,
            Some(0) if !reverse => Some(lower.to_vec()),
            Some(n) => self.select(at, group, n)?.map(|(first, _)| first.to_vec()),
        };
        let Some(first) = first else {
            return Ok((Bound::Included(lower.to_vec()), Bound::Excluded(lower.to_vec())));
        };
        Ok(match reverse {
            false => (Bound::Included(first), Bound::Excluded(upper.to_vec())),
            true => (Bound::Included(lower.to_vec()), Bound::Included(first)),
        })
    }

    fn counted<'a>(&'a self, at: Found, group: Group, prefix: &'a [u8]) -> Result<Option<Counted<'a>>> {
        let core = &self.lease[at.at as usize];
        self.may_read(core)?;
        if core.table.at(at.index).counted_group() != Some(group) {
            return Ok(None);
        }
        Counted::open(&core.partition, prefix, group).map_err(|e| self.unreadable(at, e))
    }

    /// What the disk keys of a collection's elements begin with.
    fn prefix(&self, at: Found) -> Vec<u8> {
        let object = self.object(at);
        let mut prefix = Vec::with_capacity(object.key().len() + 16);
        codec::key::element_prefix(object.ns, object.key(), self.body(at).version, &mut prefix);
        prefix
    }

    /// How many elements more than fjall the collection has in front of one.
    fn surplus(&self, at: Found, group: Group, index: &Counted<'_>, start: &[u8]) -> i64 {
        let core = &self.lease[at.at as usize];
        let overlay = &self.body(at).overlay;
        let sums = overlay.before(start) - overlay.before(&whole_group(group).0);
        let landed = core.flying == Some(index.generation());
        sums.live.wrapping_sub(if landed { sums.next } else { sums.base }) as i64
    }

    /// Number of elements from one on, in front of another; each is looked at.
    fn count(&self, at: Found, from: &[u8], to: &[u8]) -> Result<u64> {
        let elements = self.elements(at, Bound::Included(from), Bound::Excluded(to), false)?;
        elements.map(|element| element.map(|_| 1)).sum()
    }

    fn unreadable(&self, at: Found, error: StoreError) -> crate::error::Error {
        storage(self.object(at).key(), error)
    }
}
