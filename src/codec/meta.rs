//! The value of a metadata record: a header, then the value of a small string, or the elements of a small collection.
//!
//! | bytes | part | present |
//! |---|---|---|
//! | 1 | type ([`Kind`]) | always |
//! | 1 | flags | always |
//! | 1 | encode-version | flag 0x08: it is not 0 |
//! | 1 | form | flag 0x20: it is not 0 |
//! | 8 | expiry, ms since 1970, little-endian | flag 0x01: the key has one |
//! | 8 + varint | version, little-endian; size | flag 0x02: always but for a string kept inline |
//! | … | what the type adds, below | flag 0x10 |
//! | varint + … | the user's key, when the key on disk is its long form | flag 0x04 |
//! | rest | the value of a string kept inline; the elements ([`super::pack`]) | strings; flag 0x40: they have no records of their own |
//!
//! | type | adds |
//! |---|---|
//! | list | head, tail: 8 bytes each, little-endian; bytes: varint |
//! | hash | mode: 1 byte; persist, lower, upper, indexed: varints |
//! | stream | first, last, max deleted id: 16 bytes each, big-endian; entries added: varint |
//!
//! The header comes first, so that an expired or mistyped big value is never looked at. A plain string costs two bytes
//! over its value. A flag that this binary does not know is refused: a newer one wrote it.

use super::cursor::{Cursor, push_slice, push_varint};
use super::order::StreamId;
use super::{CodecError, Kind};

const EXPIRY: u8 = 0x01;
const OBJECT: u8 = 0x02;
const LONG_KEY: u8 = 0x04;
const ENCODING: u8 = 0x08;
const EXTRA: u8 = 0x10;
const FORM: u8 = 0x20;
const PACKED: u8 = 0x40;
const KNOWN: u8 = EXPIRY | OBJECT | LONG_KEY | ENCODING | EXTRA | FORM | PACKED;

/// What the metadata of one type keeps beyond the common parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Extra {
    /// Nothing: strings, sets and sorted sets always, the others until they need it.
    #[default]
    None,
    /// Where a list begins and ends.
    List {
        /// Index of the first element.
        head: i64,
        /// Index behind the last element.
        tail: i64,
        /// Bytes that the elements would take as entries of one listpack, for `OBJECT ENCODING`.
        bytes: u64,
    },
    /// A hash with expiring fields.
    Hash {
        /// 1: each field's value begins with its expiry.
        mode: u8,
        /// Physical fields without an expiry.
        persist: u64,
        /// No field expires before, ms; 0 where none expires.
        lower: u64,
        /// No field expires after, ms; 0 where none expires.
        upper: u64,
        /// Time of the field-expiry record that the expiry index holds for this key, ms; 0: none.
        indexed: u64,
    },
    /// A stream's ids.
    Stream {
        /// Id of the first entry.
        first: StreamId,
        /// Id of the last entry ever added.
        last: StreamId,
        /// Greatest id ever deleted.
        max_deleted: StreamId,
        /// Entries ever added.
        entries_added: u64,
    },
}

impl Extra {
    const fn suits(&self, kind: Kind) -> bool {
        matches!(
            (self, kind),
            (Extra::None, _)
                | (Extra::List { .. }, Kind::List)
                | (Extra::Hash { .. }, Kind::Hash)
                | (Extra::Stream { .. }, Kind::Stream)
        )
    }
}

/// A decoded metadata value: header, the user's key if it is a long one, a string's value or a collection's packed elements.
pub type Parts<'a> = (Meta, Option<&'a [u8]>, &'a [u8]);

/// The metadata of one key, without a string's value or packed elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meta {
    /// Type.
    pub kind: Kind,
    /// How the elements are kept: 0 exact, 1 blind (hash, set) or index (sorted set).
    pub encoding: u8,
    /// What the type's representation in Redis has grown to, for `OBJECT ENCODING`: 0 is the smallest one. What a
    /// number means is the type's.
    pub form: u8,
    /// Stands in every element's key; 0: none, a string kept inline. In a log record 0 means the record's LSN, where
    /// [`Meta::has_version`] says that there is one.
    pub version: u64,
    /// Expiry, ms since 1970; 0: none.
    pub expire_ms: u64,
    /// Elements; bytes of a string in chunks; 0 for a string kept inline, whose value tells.
    pub size: u64,
    /// What the type adds.
    pub extra: Extra,
    /// The elements stand behind the header, and have no records of their own.
    pub packed: bool,
}

impl Meta {
    /// Metadata of a type with everything else at zero.
    pub const fn new(kind: Kind) -> Meta {
        Meta { kind, encoding: 0, form: 0, version: 0, expire_ms: 0, size: 0, extra: Extra::None, packed: false }
    }

    /// Whether the key has elements and so a version: all but strings kept inline.
    pub const fn has_version(&self) -> bool {
        !matches!(self.kind, Kind::String) || self.version != 0 || self.size != 0
    }

    /// Replaces the placeholder 0 of a log record by that record's LSN.
    pub const fn resolve_version(&mut self, lsn: u64) {
        if self.version == 0 && self.has_version() {
            self.version = lsn;
        }
    }

    /// Whether the key, or every field of it, has expired at `now_ms`.
    pub const fn expired(&self, now_ms: u64) -> bool {
        self.expire_ms != 0 && self.expire_ms <= now_ms || self.extra.fields_are_past(now_ms)
    }

    /// Appends header and value. `long_key` is the user's key if [`super::is_long`] says so.
    #[inline]
    pub fn encode(&self, long_key: Option<&[u8]>, value: &[u8], out: &mut Vec<u8>) {
        out.reserve(value.len() + 32);
        self.push(long_key, out);
        out.extend_from_slice(value);
    }

    /// Appends the header of a string kept inline, as a log record carries it: its length, and what [`Meta::encode_header`] appends.
    #[inline]
    pub fn push_string_header(expire_ms: u64, out: &mut Vec<u8>) {
        const EXPIRES: usize = 2 + size_of::<u64>();
        if expire_ms == 0 {
            return out.extend_from_slice(&[2, Kind::String.tag(), 0]);
        }
        out.extend_from_slice(&[EXPIRES as u8, Kind::String.tag(), EXPIRY]);
        out.extend_from_slice(&expire_ms.to_le_bytes());
    }

    /// Appends the header alone, as a log record carries it.
    #[inline]
    pub fn encode_header(&self, out: &mut Vec<u8>) {
        self.push(None, out);
    }

    #[inline]
    fn push(&self, long_key: Option<&[u8]>, out: &mut Vec<u8>) {
        let mut flags = 0;
        if self.expire_ms != 0 {
            flags |= EXPIRY;
        }
        if self.has_version() {
            flags |= OBJECT;
        }
        if long_key.is_some() {
            flags |= LONG_KEY;
        }
        if self.encoding != 0 {
            flags |= ENCODING;
        }
        if self.extra != Extra::None {
            flags |= EXTRA;
        }
        if self.form != 0 {
            flags |= FORM;
        }
        if self.packed {
            flags |= PACKED;
        }
        out.extend_from_slice(&[self.kind.tag(), flags]);
        if flags != 0 {
            self.push_parts(flags, long_key, out);
        }
    }

    fn push_parts(&self, flags: u8, long_key: Option<&[u8]>, out: &mut Vec<u8>) {
        assert!(self.extra.suits(self.kind), "metadata of {:?} cannot carry {:?}", self.kind, self.extra);
        if flags & ENCODING != 0 {
            out.push(self.encoding);
        }
        if flags & FORM != 0 {
            out.push(self.form);
        }
        if flags & EXPIRY != 0 {
            out.extend_from_slice(&self.expire_ms.to_le_bytes());
        }
        if flags & OBJECT != 0 {
            out.extend_from_slice(&self.version.to_le_bytes());
            push_varint(self.size, out);
        }
        match self.extra {
            Extra::None => {}
            Extra::List { head, tail, bytes } => {
                out.extend_from_slice(&head.to_le_bytes());
                out.extend_from_slice(&tail.to_le_bytes());
                push_varint(bytes, out);
            }
            Extra::Hash { mode, persist, lower, upper, indexed } => {
                out.push(mode);
                for number in [persist, lower, upper, indexed] {
                    push_varint(number, out);
                }
            }
            Extra::Stream { first, last, max_deleted, entries_added } => {
                for id in [first, last, max_deleted] {
                    out.extend_from_slice(&id.to_bytes());
                }
                push_varint(entries_added, out);
            }
        }
        if let Some(key) = long_key {
            push_slice(key, out);
        }
    }

    /// Splits a metadata value into header, the user's key if it is a long one, and a string's value or packed elements, which
    /// are as they are.
    #[inline]
    pub fn decode(bytes: &[u8]) -> Result<Parts<'_>, CodecError> {
        let mut cursor = Cursor::new(bytes);
        let [kind, flags] = cursor.array()?;
        let mut meta = Meta::new(Kind::from_tag(kind)?);
        let mut long_key = None;
        meta.packed = flags & PACKED != 0;
        if flags & !KNOWN != 0 || meta.packed && !meta.kind.may_be_packed() {
            return Err(CodecError::Flags { kind, flags });
        }
        if flags & ENCODING != 0 {
            meta.encoding = cursor.u8()?;
        }
        if flags & FORM != 0 {
            meta.form = cursor.u8()?;
        }
        if flags & EXPIRY != 0 {
            meta.expire_ms = cursor.u64_le()?;
        }
        if flags & OBJECT != 0 {
            meta.version = cursor.u64_le()?;
            meta.size = cursor.varint()?;
        } else if meta.kind != Kind::String {
            return Err(CodecError::Flags { kind, flags });
        }
        if flags & EXTRA != 0 {
            meta.extra = decode_extra(meta.kind, flags, &mut cursor)?;
        }
        if flags & LONG_KEY != 0 {
            long_key = Some(cursor.slice()?);
        }
        if meta.kind != Kind::String && !meta.packed {
            cursor.finish()?;
        }
        Ok((meta, long_key, cursor.rest()))
    }
}

fn decode_extra(kind: Kind, flags: u8, cursor: &mut Cursor<'_>) -> Result<Extra, CodecError> {
    Ok(match kind {
        Kind::List => Extra::List {
            head: i64::from_le_bytes(cursor.array()?),
            tail: i64::from_le_bytes(cursor.array()?),
            bytes: cursor.varint()?,
        },
        Kind::Hash => Extra::Hash {
            mode: cursor.u8()?,
            persist: cursor.varint()?,
            lower: cursor.varint()?,
            upper: cursor.varint()?,
            indexed: cursor.varint()?,
        },
        Kind::Stream => Extra::Stream {
            first: StreamId::from_bytes(cursor.array()?),
            last: StreamId::from_bytes(cursor.array()?),
            max_deleted: StreamId::from_bytes(cursor.array()?),
            entries_added: cursor.varint()?,
        },
        Kind::String | Kind::Set | Kind::Zset => return Err(CodecError::Flags { kind: kind.tag(), flags }),
    })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    fn encoded(meta: Meta, long_key: Option<&[u8]>, value: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        meta.encode(long_key, value, &mut out);
        out
    }

    #[test]
    fn metadata_bytes_are_pinned() {
        let string = Meta::new(Kind::String);
        assert_eq!(encoded(string, None, b"value"), b"\x01\x00value");
        let expiring = Meta { expire_ms: 258, ..string };
        assert_eq!(encoded(expiring, None, b"v"), b"\x01\x01\x02\x01\0\0\0\0\0\0v");
        assert_eq!(encoded(string, Some(b"key"), b"v"), b"\x01\x04\x03keyv");
        let set = Meta { version: 7, size: 300, encoding: 1, ..Meta::new(Kind::Set) };
        assert_eq!(encoded(set, None, b""), b"\x04\x0a\x01\x07\0\0\0\0\0\0\0\xac\x02");
        let list =
            Meta { version: 7, size: 1, extra: Extra::List { head: -1, tail: 2, bytes: 300 }, ..Meta::new(Kind::List) };
        assert_eq!(
            encoded(list, None, b""),
            b"\x03\x12\x07\0\0\0\0\0\0\0\x01\xff\xff\xff\xff\xff\xff\xff\xff\x02\0\0\0\0\0\0\0\xac\x02"
        );
        let extra = Extra::Hash { mode: 1, persist: 2, lower: 3, upper: 4, indexed: 5 };
        let hash = Meta { version: 7, size: 1, extra, ..Meta::new(Kind::Hash) };
        assert_eq!(encoded(hash, None, b""), b"\x02\x12\x07\0\0\0\0\0\0\0\x01\x01\x02\x03\x04\x05");
        let id = |seq| StreamId { ms: 0, seq };
        let extra = Extra::Stream { first: id(1), last: id(2), max_deleted: id(3), entries_added: 4 };
        let stream = Meta { version: 7, size: 1, extra, ..Meta::new(Kind::Stream) };
        let bytes = encoded(stream, None, b"");
        assert_eq!(bytes[..11], *b"\x06\x12\x07\0\0\0\0\0\0\0\x01");
        assert_eq!((bytes[26], bytes[42], bytes[58], bytes[59], bytes.len()), (1, 2, 3, 4, 60));
    }

    #[test]
    fn placeholder_version_becomes_the_lsn() {
        let mut string = Meta::new(Kind::String);
        string.resolve_version(9);
        assert_eq!(string.version, 0);
        let mut chunked = Meta { size: 1 << 20, ..Meta::new(Kind::String) };
        chunked.resolve_version(9);
        assert_eq!(chunked.version, 9);
        let mut blind = Meta { encoding: 1, ..Meta::new(Kind::Hash) };
        assert_eq!(Meta::decode(&encoded(blind, None, b"")).unwrap().0, blind);
        blind.resolve_version(9);
        blind.resolve_version(10);
        assert_eq!(blind.version, 9);
    }

    #[test]
    fn unknown_or_unsuitable_flags_are_refused() {
        assert_eq!(Meta::decode(b"\x01\x80"), Err(CodecError::Flags { kind: 1, flags: 0x80 }));
        assert_eq!(Meta::decode(b"\x01\x40"), Err(CodecError::Flags { kind: 1, flags: 0x40 }));
        assert_eq!(Meta::decode(b"\x06\x40"), Err(CodecError::Flags { kind: 6, flags: 0x40 }));
        assert_eq!(Meta::decode(b"\x01\x10"), Err(CodecError::Flags { kind: 1, flags: 0x10 }));
        assert_eq!(Meta::decode(b"\x04\x00"), Err(CodecError::Flags { kind: 4, flags: 0 }));
        assert_eq!(Meta::decode(b"\x07\x00"), Err(CodecError::UnknownKind(7)));
        assert_eq!(Meta::decode(b"\x01"), Err(CodecError::Truncated));
        assert_eq!(Meta::decode(b"\x04\x02\x07\0\0\0\0\0\0\0\x01x"), Err(CodecError::Trailing(1)));
    }

    #[test]
    fn expiry_is_reached_at_its_very_millisecond() {
        let meta = Meta { expire_ms: 10, ..Meta::new(Kind::String) };
        assert!(!meta.expired(9) && meta.expired(10));
        assert!(!Meta::new(Kind::String).expired(u64::MAX));
    }

    fn extra(kind: Kind) -> BoxedStrategy<Extra> {
        let id = || any::<(u64, u64)>().prop_map(|(ms, seq)| StreamId { ms, seq });
        match kind {
            Kind::List => {
                any::<(i64, i64, u64)>().prop_map(|(head, tail, bytes)| Extra::List { head, tail, bytes }).boxed()
            }
            Kind::Hash => any::<(u8, u64, u64, u64, u64)>()
                .prop_map(|(mode, persist, lower, upper, indexed)| Extra::Hash { mode, persist, lower, upper, indexed })
                .boxed(),
            Kind::Stream => (id(), id(), id(), any::<u64>())
                .prop_map(|(first, last, max_deleted, entries_added)| Extra::Stream {
                    first,
                    last,
                    max_deleted,
                    entries_added,
                })
                .boxed(),
            _ => Just(Extra::None).boxed(),
        }
    }

    fn meta() -> impl Strategy<Value = Meta> {
        prop::sample::select(Kind::ALL.to_vec()).prop_flat_map(|kind| {
            let extra = prop_oneof![Just(Extra::None), extra(kind)];
            let number = || prop_oneof![Just(0u64), 0u64..300, any::<u64>()];
            (0u8..3, 0u8..3, number(), number(), number(), extra, any::<bool>()).prop_map(
                move |(encoding, form, version, expire_ms, size, extra, packed)| Meta {
                    kind,
                    encoding,
                    form,
                    version,
                    expire_ms,
                    size,
                    extra,
                    packed: packed && kind.may_be_packed(),
                },
            )
        })
    }

    proptest! {
        #[test]
        fn metadata_returns(meta in meta(), long in option::of(vec(any::<u8>(), 0..9)), value in vec(any::<u8>(), 0..9)) {
            let value = if meta.kind == Kind::String || meta.packed { value } else { Vec::new() };
            let bytes = encoded(meta, long.as_deref(), &value);
            prop_assert_eq!(Meta::decode(&bytes).unwrap(), (meta, long.as_deref(), value.as_slice()));
            let mut header = Vec::new();
            meta.encode_header(&mut header);
            prop_assert_eq!(Meta::decode(&header).unwrap(), (meta, None, b"".as_slice()));
        }

        #[test]
        fn random_bytes_never_panic(kind in 0u8..8, flags: u8, bytes in vec(any::<u8>(), 0..80)) {
            let _ = Meta::decode(&bytes);
            let _ = Meta::decode(&[&[kind, flags], bytes.as_slice()].concat());
        }

        #[test]
        fn a_cut_header_is_refused(meta in meta(), at in 0usize..100) {
            let mut header = Vec::new();
            meta.encode_header(&mut header);
            if at < header.len() {
                prop_assert_eq!(Meta::decode(&header[..at]), Err(CodecError::Truncated));
            }
        }
    }
}
