//! Small collections in one record: which have their elements behind their metadata, instead of records of their own.
//!
//! Who wants an element of such a key reads once, and a flush brings one record of it, not one more for each element. What
//! outgrows this is written element by element by the flush that finds it so, and stays so.
//!
//! | body | fjall holds its elements |
//! |---|---|
//! | `maybe_stored` | as records of their own, those that were flushed |
//! | not `maybe_stored`, dirty | packed, as they were once, or not at all |
//! | not `maybe_stored`, clean | packed |
//!
//! Invariants: the overlay of a body that is not `maybe_stored` is complete, holds no removed element and lets none go; of a version
//! of which an element has come to fjall as a record nothing is packed any more, and of one that is packed there is no garbage.

use super::object::{Body, Object};
use super::overlay::Entry;
use crate::codec::{CodecError, Kind, Meta, pack};
use crate::util::scale::Scaled;

/// Elements, those of a sorted set in both orders.
const MOST: Scaled<usize> = Scaled::new(128).in_unit_tests(2);
/// Their bytes in the record: each flush of the key brings all of them.
const MOST_BYTES: usize = 1 << 10;

/// Whether a collection of so many elements, of which these stand in its record, is written in one.
pub fn is_small<'a>(meta: &Meta, count: usize, elements: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> bool {
    // All elements of others need not be known.
    let exact = meta.encoding == 0 || meta.kind == Kind::Zset;
    let len = |text: &[u8]| text.len() + if text.len() < 0x80 { 1 } else { 2 };
    (1..=MOST.get()).contains(&count)
        && meta.kind.may_be_packed()
        && exact
        && elements.map(|(element, value)| len(element) + len(value)).sum::<usize>() <= MOST_BYTES
}

impl Body {
    /// The elements that stand in its record.
    fn standing(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let elements = self.overlay.iter().filter_map(|entry| Some((entry.key(), entry.value()?)));
        elements.filter(|(element, _)| pack::stands(element))
    }

    /// A body of which one record in fjall holds everything, as memory does.
    ///
    /// # Errors
    /// `elements` is cut.
    pub fn unpacked(meta: &Meta, elements: &[u8]) -> Result<Self, CodecError> {
        let mut body = Body { maybe_stored: false, ..Body::stored(meta) };
        // A size that damage has left asks for no more than the largest.
        body.overlay.reserve(usize::try_from(meta.size).unwrap_or_default().min(MOST.get()));
        pack::each(meta, elements, |key, value| {
            body.overlay.insert(Entry::new(key, Some(value), 0));
            Ok::<_, CodecError>(())
        })?;
        body.overlay.complete = true;
        Ok(body)
    }
}

impl Object {
    /// Whether a flush is to write it in one record.
    pub fn is_to_be_packed(&self) -> bool {
        let (Some(body), Some(meta)) = (&self.body, self.meta()) else { return false };
        !body.maybe_stored && is_small(&meta, body.overlay.len(), body.standing())
    }

    /// Whether fjall holds it in one record, if it is clean.
    pub fn is_packed(&self) -> bool {
        let body = self.body.as_ref().filter(|body| !body.maybe_stored && !body.overlay.is_empty());
        body.is_some() && self.kind.stored().is_some_and(Kind::may_be_packed)
    }

    /// Appends its metadata record, with the elements or without; nothing for a removal, which has none.
    pub fn encode(&self, packed: bool, long_key: Option<&[u8]>, out: &mut Vec<u8>) {
        let Some(meta) = self.meta() else { return };
        Meta { packed, ..meta }.encode(long_key, self.value(), out);
        if packed && let Some(body) = &self.body {
            body.standing().for_each(|(element, value)| pack::push(element, value, out));
        }
    }
}
