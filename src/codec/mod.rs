//! The bytes of keys, values and log records. No I/O, no clock, no locks.
//!
//! | file | owns |
//! |---|---|
//! | [`key`] | whole keys of a shard's partition, by record group; ranges over them |
//! | [`element`] | the tail of an element key: field, member, index, score … so that bytes sort as Redis orders |
//! | [`field`] | the value of a hash's field, what metadata knows of the fields' times |
//! | [`order`] | scalars whose bytes sort like their values: scores, list indexes, stream ids |
//! | [`meta`] | the value of a metadata record |
//! | [`pack`] | the elements of a small collection, behind its metadata |
//! | [`redo`] | the operations inside one log record |
//! | [`namespaces`] | the map from namespace names to ids |
//! | [`cursor`] | reading integers and slices off a byte string without panicking; varints |
//!
//! # Keys
//! A shard has one partition. The first byte of a key is the tag of its record group; integers in keys are
//! big-endian, because fjall compares bytes. `ns` is the 4-byte id of a namespace, `len` a 2-byte length.
//!
//! | group | key | value |
//! |---|---|---|
//! | `M` metadata | `M` `ns` `stored key` | [`meta`] |
//! | `E` element | `E` `ns` `len` `stored key` `version:8` `element group:1` `element` | by type |
//! | `X` expiry | `X` `expire_ms:8` `kind:1` `ns` `stored key` | – |
//! | `G` garbage | `G` `ns` `len` `stored key` `version:8` | – (the whole version is dead) |
//! | `P` pending | `P` `ns` `len` `stored key` `version:8` | – (the version is being built, no metadata names it yet) |
//! | `D` dead namespace | `D` `ns` | – |
//! | `c` count | `c` `ns` | keys, 8 bytes little-endian |
//! | `N` names (shard 0) | `N` | [`namespaces`] |
//! | `l` highest LSN flushed | `l` | 8 bytes little-endian |
//! | `F` library of functions (shard 0) | `F` `stored name` | its code |
//!
//! # Long keys and elements
//! fjall's keys end at 65,535 bytes; a Redis key or member may have 512 MB. A text of up to [`MAX_INLINE`] bytes
//! stands in the key as it is. A longer one has a **stored form** of [`LONG_FORM`] bytes: its first `MAX_INLINE`
//! bytes, then the SHA-256 of the whole text. Length alone tells the two apart. The full text of a long key stands in
//! its metadata value, that of a long element in front of the element's value. Order and prefix ranges are exact
//! for the first `MAX_INLINE` bytes; texts that agree in those sort by digest.
//!
//! # Invariants
//! - `a < b ⇔ encode(a) < encode(b)` for every part of a key, `MAX_INLINE` bytes deep.
//! - No key's range contains another's: elements carry the length of their key in front of it.
//! - Every tag is pinned by a test with literals: what is once on disk can only be changed by a migration.
//! - Decoding never panics, never allocates on the word of a length, and refuses bytes that are left over.

pub mod cursor;
pub mod element;
pub mod field;
pub mod key;
pub mod meta;
pub mod namespaces;
pub mod order;
pub mod pack;
pub mod redo;

mod error;

pub use error::CodecError;
pub use key::{DiskKey, ExpiryKind, KeyRange};
pub use meta::{Extra, Meta};
pub use namespaces::NamespaceMap;
pub use order::{Score, StreamId};

use sha2::{Digest, Sha256};

/// Id of a namespace. Never reused, so that records of a dead namespace cannot come back to life.
pub type NsId = u32;

/// Longest text, in bytes, that stands in a key as it is.
pub const MAX_INLINE: usize = 1024;

/// Length of the stored form of every text longer than [`MAX_INLINE`].
pub const LONG_FORM: usize = MAX_INLINE + 32;

/// Type of a Redis key, with its persisted tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// A string: inline in the metadata, or in chunks when it is big.
    String = 1,
    /// A hash.
    Hash = 2,
    /// A list.
    List = 3,
    /// A set.
    Set = 4,
    /// A sorted set.
    Zset = 5,
    /// A stream.
    Stream = 6,
}

impl Kind {
    /// Whether a small one may have its elements in its metadata record ([`pack`]).
    pub const fn may_be_packed(self) -> bool {
        matches!(self, Kind::Hash | Kind::List | Kind::Set | Kind::Zset)
    }

    /// Every kind, in the order of the tags.
    pub const ALL: [Kind; 6] = [Kind::String, Kind::Hash, Kind::List, Kind::Set, Kind::Zset, Kind::Stream];

    /// The persisted byte.
    pub const fn tag(self) -> u8 {
        self as u8
    }

    /// The kind of a persisted byte.
    pub const fn from_tag(tag: u8) -> Result<Kind, CodecError> {
        Ok(match tag {
            1 => Kind::String,
            2 => Kind::Hash,
            3 => Kind::List,
            4 => Kind::Set,
            5 => Kind::Zset,
            6 => Kind::Stream,
            tag => return Err(CodecError::UnknownKind(tag)),
        })
    }
}

/// Whether `text`, as a client gave it, needs the long form.
pub const fn is_long(text: &[u8]) -> bool {
    text.len() > MAX_INLINE
}

/// Whether `stored`, as it stands in a key, is the long form of a text.
pub const fn is_long_form(stored: &[u8]) -> bool {
    stored.len() == LONG_FORM
}

/// Length of the stored form of `text`.
pub const fn stored_len(text: &[u8]) -> usize {
    if is_long(text) { LONG_FORM } else { text.len() }
}

/// What bytes are appended to: a heap buffer, or a small one on the stack.
pub trait Buf {
    /// Makes room for so many bytes more.
    fn reserve(&mut self, bytes: usize);
    /// Appends one byte.
    fn push(&mut self, byte: u8);
    /// Appends bytes.
    fn extend_from_slice(&mut self, bytes: &[u8]);
}

impl Buf for Vec<u8> {
    #[inline]
    fn reserve(&mut self, bytes: usize) {
        self.reserve(bytes);
    }
    #[inline]
    fn push(&mut self, byte: u8) {
        self.push(byte);
    }
    #[inline]
    fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

impl<const N: usize> Buf for smallvec::SmallVec<[u8; N]>
where
    [u8; N]: smallvec::Array<Item = u8>,
{
    #[inline]
    fn reserve(&mut self, bytes: usize) {
        self.reserve(bytes);
    }
    #[inline]
    fn push(&mut self, byte: u8) {
        self.push(byte);
    }
    #[inline]
    fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Appends the stored form of `text`.
#[inline]
pub fn push_stored(text: &[u8], out: &mut impl Buf) {
    if !is_long(text) {
        out.extend_from_slice(text);
        return;
    }
    out.extend_from_slice(&text[..MAX_INLINE]);
    out.extend_from_slice(&Sha256::digest(text));
}

/// Refuses what no text has as its stored form.
const fn check_stored(stored: &[u8]) -> Result<&[u8], CodecError> {
    if stored.len() <= MAX_INLINE || is_long_form(stored) {
        Ok(stored)
    } else {
        Err(CodecError::StoredLength(stored.len()))
    }
}

/// What the tests of the codecs go by.
#[cfg(test)]
mod samples {
    use super::{MAX_INLINE, push_stored};
    use proptest::prelude::*;

    /// What an encoder appends.
    pub(super) fn made(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        encode(&mut out);
        out
    }

    /// The stored form of a text.
    pub(super) fn stored(text: &[u8]) -> Vec<u8> {
        made(|out| push_stored(text, out))
    }

    /// Texts of few letters, so that prefixes of each other are common; some of them long.
    pub(super) fn text() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            8 => prop::collection::vec(prop::sample::select(vec![0u8, 1, b'a', 0xff]), 0..6),
            1 => (MAX_INLINE - 1..MAX_INLINE + 40, any::<u8>()).prop_map(|(len, last)| {
                let mut text = vec![b'x'; len];
                text.push(last);
                text
            }),
        ]
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn kind_tags_are_pinned() {
        let tags: Vec<u8> = Kind::ALL.iter().map(|kind| kind.tag()).collect();
        assert_eq!(tags, [1, 2, 3, 4, 5, 6]);
        for kind in Kind::ALL {
            assert_eq!(Kind::from_tag(kind.tag()), Ok(kind));
        }
        assert_eq!(Kind::from_tag(0), Err(CodecError::UnknownKind(0)));
        assert_eq!(Kind::from_tag(7), Err(CodecError::UnknownKind(7)));
    }

    #[test]
    fn long_form_is_prefix_and_sha256() {
        let text = vec![b'a'; 1025];
        let mut out = Vec::new();
        push_stored(&text, &mut out);
        assert_eq!(out.len(), 1056);
        assert_eq!(out[..1024], text[..1024]);
        // sha256sum of 1025 times the letter a.
        let hex: String = out[1024..].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "4a82297889eb505cf6b5cbdf69977afab4632d6557539782f657bd7dc78091a5");
        assert_eq!(stored_len(&text), 1056);
    }

    proptest! {
        #[test]
        fn stored_form_is_told_by_length(len in 0usize..3000, fill: u8) {
            let text = vec![fill; len];
            let mut out = Vec::new();
            push_stored(&text, &mut out);
            prop_assert_eq!(out.len(), stored_len(&text));
            prop_assert_eq!(is_long_form(&out), len > MAX_INLINE);
            prop_assert_eq!(&out[..len.min(MAX_INLINE)], &text[..len.min(MAX_INLINE)]);
            check_stored(&out).unwrap();
        }
    }
}
