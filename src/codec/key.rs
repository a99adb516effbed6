//! Whole keys of a shard's partition, and the ranges over them. The layouts are drawn in [`super`].
//!
//! Every writer appends to a buffer of the caller, which clears and reuses it. A `key` is what the client sent; what
//! [`decode_key`] gives back is its stored form.
//!
//! A [`KeyRange`] is half-open. Ranges that go on behind a key begin at its [`successor`].

use super::cursor::Cursor;
use super::element::Group;
use super::{Buf, CodecError, MAX_INLINE, NsId, check_stored, push_stored, stored_len};

/// Tags of the record groups: the first byte of every key.
pub mod tag {
    /// Metadata of a Redis key.
    pub const META: u8 = b'M';
    /// One element of a collection, or one chunk of a big string.
    pub const ELEMENT: u8 = b'E';
    /// Index of expiry times.
    pub const EXPIRY: u8 = b'X';
    /// A dead version of a key, whose elements are to be reclaimed.
    pub const GARBAGE: u8 = b'G';
    /// A dead namespace, whose records are to be reclaimed.
    pub const DEAD_NS: u8 = b'D';
    /// A version that is being built without metadata.
    pub const PENDING: u8 = b'P';
    /// Map of namespace names to ids; shard 0 only.
    pub const NAMES: u8 = b'N';
    /// A library of functions; shard 0 only.
    pub const LIBRARY: u8 = b'F';
    /// Number of keys of a namespace in this shard. This and [`FLUSHED`] come with every flush, whatever else does: they stand
    /// behind all others, so that keys that come in order touch the end of what is stored, and a compaction need not rewrite
    /// the rest.
    pub const COUNT: u8 = b'c';
    /// The highest LSN that may have left records in this partition.
    pub const FLUSHED: u8 = b'l';
}

/// Longest key that any writer here makes; fjall takes 65,535 bytes.
/// The longest element: a consumer's, with two long names.
pub const MAX_KEY: usize = 1 + 4 + 2 + super::LONG_FORM + 8 + 1 + 2 + 2 * super::LONG_FORM;

/// What an expiry record is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum ExpiryKind {
    /// The key itself expires.
    Key = 1,
    /// The earliest field of a hash expires.
    Field = 2,
}

impl ExpiryKind {
    /// The persisted byte.
    pub const fn tag(self) -> u8 {
        self as u8
    }

    /// The kind of a persisted byte.
    pub const fn from_tag(tag: u8) -> Result<ExpiryKind, CodecError> {
        match tag {
            1 => Ok(ExpiryKind::Key),
            2 => Ok(ExpiryKind::Field),
            tag => Err(CodecError::UnknownExpiryKind(tag)),
        }
    }
}

/// Appends the key of a metadata record.
#[inline]
pub fn meta_key(ns: NsId, key: &[u8], out: &mut impl Buf) {
    push_ns(tag::META, ns, out);
    push_stored(key, out);
}

/// Appends what the keys of all elements of one version of a key begin with.
#[inline]
pub fn element_prefix(ns: NsId, key: &[u8], version: u64, out: &mut impl Buf) {
    push_owner(tag::ELEMENT, ns, key, version, out);
}

/// Appends the key of an element; `element` as [`super::element`] makes it.
#[inline]
pub fn element_key(ns: NsId, key: &[u8], version: u64, element: &[u8], out: &mut impl Buf) {
    element_prefix(ns, key, version, out);
    out.extend_from_slice(element);
}

/// Appends the key of an expiry record.
pub fn expiry_key(expire_ms: u64, kind: ExpiryKind, ns: NsId, key: &[u8], out: &mut Vec<u8>) {
    out.push(tag::EXPIRY);
    out.extend_from_slice(&expire_ms.to_be_bytes());
    out.push(kind.tag());
    out.extend_from_slice(&ns.to_be_bytes());
    push_stored(key, out);
}

/// Appends the key of a garbage record.
pub fn garbage_key(ns: NsId, key: &[u8], version: u64, out: &mut Vec<u8>) {
    push_owner(tag::GARBAGE, ns, key, version, out);
}

/// Appends the key of a pending record: elements of this version are in the partition, metadata is not.
pub fn pending_key(ns: NsId, key: &[u8], version: u64, out: &mut Vec<u8>) {
    push_owner(tag::PENDING, ns, key, version, out);
}

/// Appends the key of a dead namespace's record.
pub fn dead_ns_key(ns: NsId, out: &mut Vec<u8>) {
    push_ns(tag::DEAD_NS, ns, out);
}

/// Appends the key of a namespace's count.
pub fn count_key(ns: NsId, out: &mut Vec<u8>) {
    push_ns(tag::COUNT, ns, out);
}

/// Appends the key of the namespace map.
pub fn names_key(out: &mut Vec<u8>) {
    out.push(tag::NAMES);
}

/// Appends the key of the highest flushed LSN.
pub fn flushed_key(out: &mut Vec<u8>) {
    out.push(tag::FLUSHED);
}

/// Appends the key of a library's record.
pub fn library_key(name: &[u8], out: &mut Vec<u8>) {
    out.push(tag::LIBRARY);
    push_stored(name, out);
}

/// The value of a count record.
pub const fn count_value(count: u64) -> [u8; 8] {
    count.to_le_bytes()
}

/// The count of a count record's value.
pub fn decode_count(value: &[u8]) -> Result<u64, CodecError> {
    let mut cursor = Cursor::new(value);
    let count = cursor.u64_le()?;
    cursor.finish()?;
    Ok(count)
}

/// The value of the record of the highest flushed LSN: `lsn:8` and the data directory's `id:8`, little-endian.
pub fn flushed_value(lsn: u64, owner: u64) -> [u8; 16] {
    let mut value = [0; 16];
    value[..8].copy_from_slice(&lsn.to_le_bytes());
    value[8..].copy_from_slice(&owner.to_le_bytes());
    value
}

/// LSN and id in the record of the highest flushed LSN.
pub fn decode_flushed(value: &[u8]) -> Result<(u64, u64), CodecError> {
    let mut cursor = Cursor::new(value);
    let flushed = (cursor.u64_le()?, cursor.u64_le()?);
    cursor.finish()?;
    Ok(flushed)
}

#[inline]
fn push_ns(tag: u8, ns: NsId, out: &mut impl Buf) {
    let [a, b, c, d] = ns.to_be_bytes();
    out.extend_from_slice(&[tag, a, b, c, d]);
}

#[inline]
fn push_owner(tag: u8, ns: NsId, key: &[u8], version: u64, out: &mut impl Buf) {
    let len = stored_len(key);
    out.reserve(15 + len);
    push_ns(tag, ns, out);
    out.extend_from_slice(&(len as u16).to_be_bytes());
    push_stored(key, out);
    out.extend_from_slice(&version.to_be_bytes());
}

/// A decoded key. `key` is always the stored form of the user's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskKey<'a> {
    /// [`meta_key`]
    Meta {
        /// Namespace.
        ns: NsId,
        /// Stored form of the key.
        key: &'a [u8],
    },
    /// [`element_key`]
    Element {
        /// Namespace.
        ns: NsId,
        /// Stored form of the key.
        key: &'a [u8],
        /// Version of the collection.
        version: u64,
        /// What the element is part of.
        group: Group,
        /// The element, its group's tag included: [`super::element::Element::decode`] reads it.
        element: &'a [u8],
    },
    /// [`expiry_key`]
    Expiry {
        /// Unix time, milliseconds.
        expire_ms: u64,
        /// Key or field.
        kind: ExpiryKind,
        /// Namespace.
        ns: NsId,
        /// Stored form of the key.
        key: &'a [u8],
    },
    /// [`garbage_key`]
    Garbage {
        /// Namespace.
        ns: NsId,
        /// Stored form of the key.
        key: &'a [u8],
        /// The dead version.
        version: u64,
    },
    /// [`pending_key`]
    Pending {
        /// Namespace.
        ns: NsId,
        /// Stored form of the key.
        key: &'a [u8],
        /// The version being built.
        version: u64,
    },
    /// [`dead_ns_key`]
    DeadNs {
        /// The dead namespace.
        ns: NsId,
    },
    /// [`count_key`]
    Count {
        /// Namespace.
        ns: NsId,
    },
    /// [`names_key`]
    Names,
    /// [`flushed_key`]
    Flushed,
    /// [`library_key`]
    Library {
        /// Stored form of the library's name.
        name: &'a [u8],
    },
}

/// Decodes a key of any record group.
pub fn decode_key(bytes: &[u8]) -> Result<DiskKey<'_>, CodecError> {
    let mut cursor = Cursor::new(bytes);
    let key = match cursor.u8()? {
        tag::META => {
            let ns = cursor.u32_be()?;
            return Ok(DiskKey::Meta { ns, key: check_stored(cursor.rest())? });
        }
        tag::ELEMENT => {
            let (ns, key, version) = owner(&mut cursor)?;
            let element = cursor.rest();
            let group = Group::from_tag(*element.first().ok_or(CodecError::Truncated)?)?;
            return Ok(DiskKey::Element { ns, key, version, group, element });
        }
        tag::EXPIRY => {
            let expire_ms = cursor.u64_be()?;
            let kind = ExpiryKind::from_tag(cursor.u8()?)?;
            let ns = cursor.u32_be()?;
            return Ok(DiskKey::Expiry { expire_ms, kind, ns, key: check_stored(cursor.rest())? });
        }
        tag::GARBAGE => {
            let (ns, key, version) = owner(&mut cursor)?;
            DiskKey::Garbage { ns, key, version }
        }
        tag::PENDING => {
            let (ns, key, version) = owner(&mut cursor)?;
            DiskKey::Pending { ns, key, version }
        }
        tag::DEAD_NS => DiskKey::DeadNs { ns: cursor.u32_be()? },
        tag::COUNT => DiskKey::Count { ns: cursor.u32_be()? },
        tag::NAMES => DiskKey::Names,
        tag::FLUSHED => DiskKey::Flushed,
        tag::LIBRARY => return Ok(DiskKey::Library { name: check_stored(cursor.rest())? }),
        tag => return Err(CodecError::UnknownGroup(tag)),
    };
    cursor.finish()?;
    Ok(key)
}

fn owner<'a>(cursor: &mut Cursor<'a>) -> Result<(NsId, &'a [u8], u64), CodecError> {
    let ns = cursor.u32_be()?;
    let len = cursor.u16_be()?;
    let key = check_stored(cursor.bytes(usize::from(len))?)?;
    Ok((ns, key, cursor.u64_be()?))
}

/// The part of an element's key that all elements of its version share, or `None` for any other key.
/// Put behind the garbage tag it names the garbage record of that version ([`garbage_of_owner`]).
#[inline]
pub fn element_owner(bytes: &[u8]) -> Option<&[u8]> {
    let [tag::ELEMENT, _, _, _, _, high, low, ..] = bytes else { return None };
    bytes.get(..15 + usize::from(u16::from_be_bytes([*high, *low])))
}

/// Appends the key of the garbage record for an owner as [`element_owner`] gives it.
pub fn garbage_of_owner(owner: &[u8], out: &mut Vec<u8>) {
    out.push(tag::GARBAGE);
    out.extend_from_slice(owner.get(1..).unwrap_or_default());
}

/// Appends the key of the metadata record whose stored key is known, as [`decode_key`] gives it.
pub fn meta_key_of_stored(ns: NsId, stored: &[u8], out: &mut Vec<u8>) {
    push_ns(tag::META, ns, out);
    out.extend_from_slice(stored);
}

/// Keys from `lower` on, below `upper`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRange {
    /// First key that belongs to the range.
    pub lower: Vec<u8>,
    /// First key behind the range.
    pub upper: Vec<u8>,
}

impl KeyRange {
    /// All keys that begin with `prefix`, which begins with a tag.
    pub fn of_prefix(prefix: Vec<u8>) -> KeyRange {
        let upper = prefix_upper(&prefix);
        KeyRange { lower: prefix, upper }
    }

    /// Whether `key` lies in the range.
    pub fn contains(&self, key: &[u8]) -> bool {
        *self.lower <= *key && *key < *self.upper
    }
}

/// First key behind all keys that begin with `prefix`. The prefix of a disk key begins with a tag, which is not 0xff,
/// so there always is one; the empty answer to a prefix of nothing but 0xff means that there is none.
pub fn prefix_upper(prefix: &[u8]) -> Vec<u8> {
    let Some(last) = prefix.iter().rposition(|&byte| byte != 0xff) else { return Vec::new() };
    let mut upper = prefix[..=last].to_vec();
    upper[last] += 1;
    upper
}

/// The very next key behind `key`.
pub fn successor(key: &[u8]) -> Vec<u8> {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    next
}

/// Metadata of the keys of a namespace that begin with `prefix`. Only its first [`MAX_INLINE`] bytes count: who asks
/// with a longer one compares the rest against the full keys.
pub fn meta_prefix_range(ns: NsId, prefix: &[u8]) -> KeyRange {
    let prefix = &prefix[..prefix.len().min(MAX_INLINE)];
    let mut lower = Vec::with_capacity(5 + prefix.len());
    push_ns(tag::META, ns, &mut lower);
    lower.extend_from_slice(prefix);
    KeyRange::of_prefix(lower)
}

/// All elements of one version of a key, of every group.
pub fn element_range(ns: NsId, key: &[u8], version: u64) -> KeyRange {
    let mut lower = Vec::new();
    element_prefix(ns, key, version, &mut lower);
    KeyRange::of_prefix(lower)
}

/// The elements of one group of one version of a key.
pub fn group_range(ns: NsId, key: &[u8], version: u64, group: Group) -> KeyRange {
    element_prefix_range(ns, key, version, &[group.tag()])
}

/// The elements of one version of a key that begin with `prefix`, which begins with a group's tag.
pub fn element_prefix_range(ns: NsId, key: &[u8], version: u64, prefix: &[u8]) -> KeyRange {
    let mut lower = Vec::new();
    element_key(ns, key, version, prefix, &mut lower);
    KeyRange::of_prefix(lower)
}

/// Expiry records due at `now_ms` or before, from `from_ms` on.
pub fn expiry_range(from_ms: u64, now_ms: u64) -> KeyRange {
    let bound = |ms: u64| [&[tag::EXPIRY], ms.to_be_bytes().as_slice()].concat();
    let upper = match now_ms.checked_add(1) {
        Some(after) => bound(after),
        None => vec![tag::EXPIRY + 1],
    };
    KeyRange { lower: bound(from_ms), upper }
}

/// All records of one group.
pub fn tag_range(tag: u8) -> KeyRange {
    KeyRange::of_prefix(vec![tag])
}

/// All records of one group that carry the namespace right behind their tag (all but expiry and names).
pub fn ns_range(tag: u8, ns: NsId) -> KeyRange {
    let mut lower = Vec::with_capacity(5);
    push_ns(tag, ns, &mut lower);
    KeyRange::of_prefix(lower)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::codec::element;
    use crate::codec::samples::{made, stored, text};
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[test]
    fn key_bytes_are_pinned() {
        assert_eq!(made(|out| meta_key(258, b"key", out)), b"M\0\0\x01\x02key");
        assert_eq!(made(|out| element_key(1, b"k", 5, b"\x01f", out)), b"E\0\0\0\x01\0\x01k\0\0\0\0\0\0\0\x05\x01f");
        assert_eq!(made(|out| expiry_key(9, ExpiryKind::Key, 1, b"k", out)), b"X\0\0\0\0\0\0\0\x09\x01\0\0\0\x01k");
        assert_eq!(made(|out| expiry_key(9, ExpiryKind::Field, 1, b"k", out)), b"X\0\0\0\0\0\0\0\x09\x02\0\0\0\x01k");
        assert_eq!(made(|out| garbage_key(1, b"k", 5, out)), b"G\0\0\0\x01\0\x01k\0\0\0\0\0\0\0\x05");
        assert_eq!(made(|out| dead_ns_key(1, out)), b"D\0\0\0\x01");
        assert_eq!(made(|out| count_key(1, out)), b"c\0\0\0\x01");
        assert_eq!(made(names_key), b"N");
        assert_eq!(made(|out| library_key(b"lib", out)), b"Flib");
        assert_eq!(count_value(258), [2, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(flushed_value(258, 3), *b"\x02\x01\0\0\0\0\0\0\x03\0\0\0\0\0\0\0");
    }

    #[test]
    fn longest_key_fits_fjall() {
        let long = vec![b'x'; 2000];
        let name = made(|out| element::stream_consumer(&long, &long, out));
        let key = made(|out| element_key(1, &long, 1, &name, out));
        assert_eq!(key.len(), MAX_KEY);
        const { assert!(MAX_KEY <= u16::MAX as usize) };
    }

    #[test]
    fn stored_lengths_between_inline_and_long_are_refused() {
        for len in [1025, 1055, 1057] {
            let mut key = made(|out| meta_key(1, b"", out));
            key.resize(5 + len, b'x');
            assert_eq!(decode_key(&key), Err(CodecError::StoredLength(len)));
        }
    }

    #[test]
    fn upper_of_a_prefix_carries() {
        assert_eq!(prefix_upper(b"ab"), b"ac");
        assert_eq!(prefix_upper(b"a\xff\xff"), b"b");
        assert_eq!(prefix_upper(b"\xff"), b"");
    }

    #[test]
    fn prefix_beyond_inline_ranges_over_its_front() {
        let long = vec![b'x'; 2000];
        let range = meta_prefix_range(1, &long[..1500]);
        assert!(range.contains(&made(|out| meta_key(1, &long, out))));
    }

    #[test]
    fn expiry_range_takes_what_is_due() {
        let key = |ms| made(|out| expiry_key(ms, ExpiryKind::Field, u32::MAX, b"\xff\xff", out));
        let range = expiry_range(5, 10);
        assert!(!range.contains(&key(4)) && range.contains(&key(5)) && range.contains(&key(10)));
        assert!(!range.contains(&key(11)));
        assert!(expiry_range(0, u64::MAX).contains(&key(u64::MAX)));
    }

    fn ns() -> impl Strategy<Value = NsId> {
        prop_oneof![0u32..3, any::<u32>()]
    }

    proptest! {
        #[test]
        fn keys_return(ns in ns(), key in text(), version: u64, ms: u64, field in text()) {
            let sk = stored(&key);
            let el = made(|out| element::hash_field(&field, out));
            let check = |bytes: Vec<u8>, expected: DiskKey<'_>| {
                prop_assert_eq!(decode_key(&bytes).unwrap(), expected);
                Ok(())
            };
            check(made(|out| meta_key(ns, &key, out)), DiskKey::Meta { ns, key: &sk })?;
            check(
                made(|out| element_key(ns, &key, version, &el, out)),
                DiskKey::Element { ns, key: &sk, version, group: Group::HashField, element: &el },
            )?;
            for kind in [ExpiryKind::Key, ExpiryKind::Field] {
                check(
                    made(|out| expiry_key(ms, kind, ns, &key, out)),
                    DiskKey::Expiry { expire_ms: ms, kind, ns, key: &sk },
                )?;
            }
            check(made(|out| garbage_key(ns, &key, version, out)), DiskKey::Garbage { ns, key: &sk, version })?;
            check(made(|out| dead_ns_key(ns, out)), DiskKey::DeadNs { ns })?;
            check(made(|out| count_key(ns, out)), DiskKey::Count { ns })?;
            check(made(names_key), DiskKey::Names)?;
            check(made(flushed_key), DiskKey::Flushed)?;
            check(made(|out| library_key(&key, out)), DiskKey::Library { name: &sk })?;
            check(made(|out| pending_key(ns, &key, version, out)), DiskKey::Pending { ns, key: &sk, version })?;
            prop_assert_eq!(decode_count(&count_value(version)).unwrap(), version);
            prop_assert_eq!(decode_flushed(&flushed_value(version, 7)).unwrap(), (version, 7));
        }

        #[test]
        fn metadata_sorts_by_namespace_then_key(a in (ns(), text()), b in (ns(), text())) {
            let bytes = |x: &(NsId, Vec<u8>)| made(|out| meta_key(x.0, &x.1, out));
            let key = |x: &(NsId, Vec<u8>)| (x.0, stored(&x.1));
            prop_assert_eq!(bytes(&a).cmp(&bytes(&b)), key(&a).cmp(&key(&b)));
        }

        #[test]
        fn elements_sort_within_their_version(key in text(), a in (0u64..3, text()), b in (0u64..3, text())) {
            let bytes = |x: &(u64, Vec<u8>)| made(|out| element_key(1, &key, x.0, &x.1, out));
            prop_assert_eq!(bytes(&a).cmp(&bytes(&b)), a.cmp(&b));
        }

        #[test]
        fn expiry_sorts_by_time(a in (any::<u64>(), ns(), text()), b in (any::<u64>(), ns(), text())) {
            let bytes = |x: &(u64, NsId, Vec<u8>)| made(|out| expiry_key(x.0, ExpiryKind::Key, x.1, &x.2, out));
            let key = |x: &(u64, NsId, Vec<u8>)| (x.0, x.1, stored(&x.2));
            prop_assert_eq!(bytes(&a).cmp(&bytes(&b)), key(&a).cmp(&key(&b)));
        }

        #[test]
        fn no_range_contains_anothers_element(
            a in (ns(), text(), 0u64..3), b in (ns(), text(), 0u64..3), field in text(),
        ) {
            let element = made(|out| element::set_member(&field, out));
            let other = made(|out| element_key(b.0, &b.1, b.2, &element, out));
            prop_assert_eq!(element_range(a.0, &a.1, a.2).contains(&other), a == b);
            prop_assert_eq!(group_range(a.0, &a.1, a.2, Group::SetMember).contains(&other), a == b);
            prop_assert!(!group_range(a.0, &a.1, a.2, Group::HashField).contains(&other));
            prop_assert_eq!(ns_range(tag::ELEMENT, a.0).contains(&other), a.0 == b.0);
        }

        #[test]
        fn prefix_range_takes_the_keys_with_that_prefix(prefix in text(), key in text(), ns in ns()) {
            let range = meta_prefix_range(ns, &prefix);
            let front = &prefix[..prefix.len().min(MAX_INLINE)];
            prop_assert_eq!(range.contains(&made(|out| meta_key(ns, &key, out))), key.starts_with(front));
            prop_assert!(!range.contains(&made(|out| meta_key(ns ^ 1, &key, out))));
        }

        #[test]
        fn owner_names_its_garbage(ns in ns(), key in text(), version: u64, field in text()) {
            let el = made(|out| element::hash_field(&field, out));
            let bytes = made(|out| element_key(ns, &key, version, &el, out));
            let owner = element_owner(&bytes).unwrap();
            prop_assert_eq!(owner, made(|out| element_prefix(ns, &key, version, out)));
            prop_assert_eq!(made(|out| garbage_of_owner(owner, out)), made(|out| garbage_key(ns, &key, version, out)));
            prop_assert_eq!(made(|out| meta_key_of_stored(ns, &stored(&key), out)), made(|out| meta_key(ns, &key, out)));
        }

        #[test]
        fn random_bytes_never_panic(bytes in vec(any::<u8>(), 0..40), tag in prop::sample::select(b"MEXGDCNLF".to_vec())) {
            let _ = decode_key(&bytes);
            let _ = element_owner(&bytes);
            let tagged = [&[tag], bytes.as_slice()].concat();
            let _ = decode_key(&tagged);
            let _ = element_owner(&tagged);
            let _ = decode_count(&bytes);
            let _ = decode_flushed(&bytes);
        }
    }
}
