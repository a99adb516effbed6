//! What a command looks for behind a key's metadata, where only the store has both: it is read right after that, by the same
//! thread, so that a pipeline of such commands waits once, and not each command for itself.

use smallvec::SmallVec;

use super::ahead::{LONGEST, Look};
use super::missing::{is_small, place_of_element, place_of_whole};
use super::object::Kind;
use super::reads::Place;
use crate::codec::key::decode_key;
use crate::codec::{DiskKey, Meta};

/// Names of so many bytes need no memory of their own.
const USUAL_NAME: usize = 24;

/// What a command looks for in a collection of which nothing is known yet.
pub(super) struct Next {
    look: Look,
    /// The element's name. Where it is a usual one a reader has nothing to free that another thread's heap is of.
    text: SmallVec<[u8; USUAL_NAME]>,
}

impl Next {
    /// What a command says that it looks for first.
    pub(super) fn new((look, text): (&Look, &[u8])) -> Next {
        let text = text.get(..text.len().min(LONGEST + 1)).unwrap_or_default();
        Next { look: *look, text: text.into() }
    }

    /// Where it is, if the key's metadata record does not hold it, as far as that says: all elements of a small collection, or the one.
    pub(super) fn place(&self, meta_key: &[u8], record: &[u8]) -> Option<Place> {
        let Ok(DiskKey::Meta { ns, key }) = decode_key(meta_key) else { return None };
        let (meta, long_key, _) = Meta::decode(record).ok()?;
        let (kind, key) = (Kind::from(meta.kind), long_key.unwrap_or(key));
        if kind != self.look.kind() || meta.version == 0 || meta.size == 0 || meta.packed {
            return None;
        }
        if is_small(kind, meta.encoding, meta.size) {
            return Some(place_of_whole(ns, key, meta.version).1);
        }
        let element = self.look.element((&meta.extra, meta.encoding), &self.text)?;
        Some(place_of_element(ns, key, meta.version, &element))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{self, key::meta_key};

    #[test]
    fn a_usual_name_is_nothing_that_a_reader_frees() {
        let next = |len| Next::new((&Look::field(2), &[b'f'; LONGEST][..len]));
        assert!(!next(USUAL_NAME).text.spilled() && next(USUAL_NAME + 1).text.spilled());
    }

    #[test]
    fn nothing_is_read_behind_a_record_that_has_the_elements() {
        let (mut key, next) = (Vec::new(), Next::new((&Look::field(2), b"field")));
        meta_key(0, b"hash", &mut key);
        for (packed, size, is_read) in [(false, 2, true), (false, 1 << 20, true), (false, 0, false), (true, 2, false)] {
            let (meta, mut record) = (Meta { version: 1, size, packed, ..Meta::new(codec::Kind::Hash) }, Vec::new());
            meta.encode(None, b"", &mut record);
            assert_eq!(next.place(&key, &record).is_some(), is_read, "{meta:?}");
        }
    }
}
