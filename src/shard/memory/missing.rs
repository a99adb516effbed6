//! What memory lacks of a collection, and where the store has it.

use smallvec::SmallVec;

use super::core::Core;
use super::object::{Kind, Object};
use super::reads::{Place, Reads};
use crate::codec::element::Group;
use crate::codec::{self, NsId};
use crate::error::Result;
use crate::store::{Record, StoreError};
use crate::util::scale::Scaled;

/// A collection of no more elements is read whole at its first touch.
pub const LOAD_WHOLE: Scaled<u64> = Scaled::new(64).in_unit_tests(8);
/// Records that such a read takes at most: a stream's groups are not part of its size.
pub const LOAD_MOST: Scaled<usize> = Scaled::new(256).in_unit_tests(32);

/// What is to be read before it is known whether an element is there.
pub enum Missing {
    /// All of a small collection.
    Whole,
    /// The element.
    Element,
}

/// What memory lacks to know of an element; `None` if it knows.
#[inline]
pub fn missing(object: &Object, key: &[u8]) -> Option<Missing> {
    let body = object.body.as_ref()?;
    if body.overlay.complete || !body.maybe_stored || body.overlay.get(key).is_some() {
        return None;
    }
    let small = is_small(object.kind, body.encoding, body.size);
    Some(if small && body.overlay.is_empty() { Missing::Whole } else { Missing::Element })
}

/// Whether a collection of so many elements, as its metadata says, is read whole.
pub(super) fn is_small(kind: Kind, encoding: u8, size: u64) -> bool {
    // Where elements are written without a look their number is not known.
    let exact = encoding == 0 || kind == Kind::Zset;
    size <= LOAD_WHOLE.get() && kind != Kind::String && exact
}

/// Where the store has all elements of a small collection, and how long what their keys begin with is.
pub(super) fn place_of_whole(ns: NsId, key: &[u8], version: u64) -> (usize, Place) {
    let mut prefix = Vec::new();
    codec::key::element_prefix(ns, key, version, &mut prefix);
    let (len, upper) = (prefix.len(), [&prefix[..], &[Group::Rank.tag()]].concat());
    (len, Place::range(prefix, upper, LOAD_MOST.get() + 1))
}

/// Where the store has an element.
pub(super) fn place_of_element(ns: NsId, key: &[u8], version: u64, element: &[u8]) -> Place {
    let mut disk_key = SmallVec::new();
    codec::key::element_key(ns, key, version, element, &mut disk_key);
    Place::record(disk_key)
}

/// Reads all elements of a small collection, and what their keys begin with: one record more than [`LOAD_MOST`] where there
/// are more than its size tells.
///
/// # Errors
/// As [`Reads::range`].
pub fn read_whole(core: &Core, object: &Object, reads: &mut Reads) -> Result<(usize, Result<Vec<Record>, StoreError>)> {
    let version = object.body.as_ref().map_or(0, |body| body.version);
    let (len, place) = place_of_whole(object.ns, object.key(), version);
    Ok((len, reads.range(core, place)?))
}

/// Reads an element.
///
/// # Errors
/// As [`Reads::record`].
pub fn read_element(
    core: &Core,
    object: &Object,
    key: &[u8],
    reads: &mut Reads,
) -> Result<Result<Option<crate::store::UserValue>, StoreError>> {
    let version = object.body.as_ref().map_or(0, |body| body.version);
    reads.record(core, place_of_element(object.ns, object.key(), version, key))
}
