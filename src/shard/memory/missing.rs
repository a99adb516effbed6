//! What memory lacks of a collection, and where the store has it.

use super::core::Core;
use super::object::{Kind, Object};
use super::reads::Reads;
use crate::codec;
use crate::codec::element::Group;
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
    // Where elements are written without a look their number is not known.
    let exact = body.encoding == 0 || object.kind == Kind::Zset;
    let small = body.size <= LOAD_WHOLE.get() && object.kind != Kind::String && exact;
    Some(if small && body.overlay.is_empty() { Missing::Whole } else { Missing::Element })
}

/// Reads all elements of a small collection, and what their keys begin with: one record more than [`LOAD_MOST`] where there
/// are more than its size tells.
///
/// # Errors
/// As [`Reads::range`].
pub fn read_whole(core: &Core, object: &Object, reads: &mut Reads) -> Result<(usize, Result<Vec<Record>, StoreError>)> {
    let mut prefix = Vec::new();
    let version = object.body.as_ref().map_or(0, |body| body.version);
    codec::key::element_prefix(object.ns, object.key(), version, &mut prefix);
    let (len, upper) = (prefix.len(), [&prefix[..], &[Group::Rank.tag()]].concat());
    Ok((len, reads.range(core, prefix, upper, LOAD_MOST.get() + 1)?))
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
    let mut disk_key = Vec::with_capacity(object.key().len() + key.len() + 24);
    codec::key::element_key(object.ns, object.key(), version, key, &mut disk_key);
    reads.record(core, disk_key)
}
