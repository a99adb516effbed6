//! The operations inside one log record. A record is a commit: its operations follow each other without padding.
//!
//! | tag | operation | bytes behind the tag |
//! |---|---|---|
//! | 1 | put | `ns` `[key]` `[header]` `[value]` |
//! | 2 | delete | `ns` `[key]` |
//! | 3 | patch | `ns` `[key]` `offset` `[bytes]` |
//! | 4 | expire | `ns` `[key]` `expire_ms` |
//! | 5 | element put | `[element]` `[value]` |
//! | 6 | element delete | `[element]` |
//! | 7 | element patch | `[element]` `offset` `[bytes]` |
//! | 8 | count | `shard` `ns` `count` |
//! | 9 | raw put | `shard` `[key]` `[value]` |
//! | 10 | raw delete | `shard` `[key]` |
//! | 11 | names | `[map]` |
//! | 12 | body | `ns` `[key]` `version` |
//! | 13 | blind | `ns` `[key]` `number` |
//! | 14 | sighted | `shard` `number` |
//!
//! Operations on elements are of the body that was named last. [`Record`] names it where it is another one, so that a
//! command with thousands of elements names its key once.
//!
//! Numbers are varints, `[x]` is a varint length and that many bytes. `key` is the user's key, whole however long;
//! `header` as [`super::Meta::encode_header`] makes it; `element` as [`super::element`] does; a raw `key` is a whole
//! key of the partition.
//!
//! Every operation names its outcome and not a change to what was before, so that replaying a log, in order and from
//! any record on whose predecessors are in the store, ends in the same state. A patch names the bytes at an offset.
//!
//! Version 0, of a body or in a put's header, stands for the LSN of the record: who writes a record
//! does not know its LSN yet.

use std::ops::Range;

use super::cursor::{Cursor, push_slice, push_varint};
use super::{CodecError, Meta, NsId};

const PUT: u8 = 1;
const DELETE: u8 = 2;
const PATCH: u8 = 3;
const EXPIRE: u8 = 4;
const ELEM_PUT: u8 = 5;
const ELEM_DELETE: u8 = 6;
const ELEM_PATCH: u8 = 7;
const COUNT: u8 = 8;
const RAW_PUT: u8 = 9;
const RAW_DELETE: u8 = 10;
const NAMES: u8 = 11;
const BODY: u8 = 12;
const BLIND: u8 = 13;
const SIGHTED: u8 = 14;

/// One decoded operation; everything is borrowed from the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op<'a> {
    /// Sets a key's metadata, and a small string's value.
    Put {
        /// Namespace.
        ns: NsId,
        /// The user's key.
        key: &'a [u8],
        /// Encoded header; [`super::Meta::decode`] reads it.
        header: &'a [u8],
        /// Value of a string kept inline.
        value: &'a [u8],
    },
    /// Removes a key's metadata.
    Delete {
        /// Namespace.
        ns: NsId,
        /// The user's key.
        key: &'a [u8],
    },
    /// Overwrites a part of a string kept inline, which grows, filled up with zeros, as far as needed.
    Patch {
        /// Namespace.
        ns: NsId,
        /// The user's key.
        key: &'a [u8],
        /// Where `bytes` begin in the value.
        offset: u64,
        /// The new bytes.
        bytes: &'a [u8],
    },
    /// Sets or removes a key's expiry.
    Expire {
        /// Namespace.
        ns: NsId,
        /// The user's key.
        key: &'a [u8],
        /// Unix time, ms; 0: none.
        expire_ms: u64,
    },
    /// Sets an element.
    ElemPut {
        /// Namespace.
        ns: NsId,
        /// The user's key.
        key: &'a [u8],
        /// Version of the collection; 0: the LSN of this record.
        version: u64,
        /// Group and element.
        elem: &'a [u8],
        /// Its value.
        value: &'a [u8],
    },
    /// Removes an element.
    ElemDelete {
        /// Namespace.
        ns: NsId,
        /// The user's key.
        key: &'a [u8],
        /// Version of the collection; 0: the LSN of this record.
        version: u64,
        /// Group and element.
        elem: &'a [u8],
    },
    /// Overwrites a part of an element's value, which grows, filled up with zeros, as far as needed.
    ElemPatch {
        /// Namespace.
        ns: NsId,
        /// The user's key.
        key: &'a [u8],
        /// Version of the collection; 0: the LSN of this record.
        version: u64,
        /// Group and element.
        elem: &'a [u8],
        /// Where `bytes` begin in the value.
        offset: u64,
        /// The new bytes.
        bytes: &'a [u8],
    },
    /// Sets the number of keys of a namespace in a shard.
    Count {
        /// Shard.
        shard: u16,
        /// Namespace.
        ns: NsId,
        /// Number of keys.
        count: u64,
    },
    /// Sets (`Some`) or removes a record by its whole key: garbage queue, dead namespaces, expiry index, libraries of
    /// functions.
    Raw {
        /// Shard.
        shard: u16,
        /// Key in the shard's partition.
        key: &'a [u8],
        /// Value, or `None` to remove.
        value: Option<&'a [u8]>,
    },
    /// Sets the namespace map.
    Names(&'a [u8]),
    /// The key is overwritten behind this without a look at what fjall holds of it.
    Blind {
        /// Namespace.
        ns: NsId,
        /// The user's key.
        key: &'a [u8],
        /// They are numbered in the key's shard.
        number: u64,
    },
    /// What fjall held of the blind keys of a shard up to this number is accounted for.
    Sighted {
        /// Shard.
        shard: u16,
        /// The highest number.
        number: u64,
    },
}

#[inline]
fn push_head(tag: u8, ns: NsId, key: &[u8], more: usize, out: &mut Vec<u8>) {
    // One reservation for the whole operation: lengths and numbers are 10 bytes each at most.
    out.reserve(key.len() + more + 64);
    if ns < 0x80 && key.len() < 0x80 {
        // The same, as most are.
        out.extend_from_slice(&[tag, ns as u8, key.len() as u8]);
        return out.extend_from_slice(key);
    }
    out.push(tag);
    push_varint(u64::from(ns), out);
    push_slice(key, out);
}

/// A record on its way into the log.
#[derive(Debug, Default)]
pub struct Record {
    bytes: Vec<u8>,
    /// The body named last.
    body: Option<NamedBody>,
}

#[derive(Debug)]
struct NamedBody {
    ns: NsId,
    version: u64,
    /// Where its key stands in the record.
    key: Range<usize>,
}

impl Record {
    /// What it is so far.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Gives away what it is so far, and begins anew.
    pub fn take(&mut self) -> Vec<u8> {
        self.body = None;
        std::mem::take(&mut self.bytes)
    }

    /// Makes room for so many bytes more.
    pub fn reserve(&mut self, bytes: usize) {
        self.bytes.reserve(bytes);
    }

    /// Bytes that it has room for.
    #[inline]
    pub const fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Where the next operation is appended, but for those on elements.
    #[inline]
    pub const fn out(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Where operations on elements of this body are appended.
    #[inline]
    pub fn of_body(&mut self, ns: NsId, key: &[u8], version: u64) -> &mut Vec<u8> {
        let is_named = |named: &NamedBody| {
            named.ns == ns && named.version == version && self.bytes.get(named.key.clone()) == Some(key)
        };
        if !self.body.as_ref().is_some_and(is_named) {
            push_head(BODY, ns, key, 0, &mut self.bytes);
            let end = self.bytes.len();
            self.body = Some(NamedBody { ns, version, key: end - key.len()..end });
            push_varint(version, &mut self.bytes);
        }
        &mut self.bytes
    }

    /// Goes back to what it was when it had so many bytes.
    pub fn truncate(&mut self, len: usize) {
        if len < self.bytes.len() {
            self.bytes.truncate(len);
            self.body = None;
        }
    }

    /// Begins anew.
    #[inline]
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.body = None;
    }
}

#[inline]
fn push_elem_head(tag: u8, elem: &[u8], more: usize, out: &mut Vec<u8>) {
    out.reserve(elem.len() + more + 32);
    out.push(tag);
    push_slice(elem, out);
}

/// Appends [`Op::Put`].
#[inline]
pub fn encode_put(ns: NsId, key: &[u8], header: &[u8], value: &[u8], out: &mut Vec<u8>) {
    push_head(PUT, ns, key, header.len() + value.len(), out);
    push_slice(header, out);
    push_slice(value, out);
}

/// The same of a string kept inline.
#[inline]
pub fn encode_put_string(ns: NsId, key: &[u8], expire_ms: u64, value: &[u8], out: &mut Vec<u8>) {
    push_head(PUT, ns, key, value.len(), out);
    Meta::push_string_header(expire_ms, out);
    push_slice(value, out);
}

/// Appends [`Op::Delete`].
#[inline]
pub fn encode_delete(ns: NsId, key: &[u8], out: &mut Vec<u8>) {
    push_head(DELETE, ns, key, 0, out);
}

/// Appends [`Op::Patch`].
#[inline]
pub fn encode_patch(ns: NsId, key: &[u8], offset: u64, bytes: &[u8], out: &mut Vec<u8>) {
    push_head(PATCH, ns, key, bytes.len(), out);
    push_varint(offset, out);
    push_slice(bytes, out);
}

/// Appends [`Op::Expire`].
#[inline]
pub fn encode_expire(ns: NsId, key: &[u8], expire_ms: u64, out: &mut Vec<u8>) {
    push_head(EXPIRE, ns, key, 0, out);
    push_varint(expire_ms, out);
}

/// Appends [`Op::ElemPut`] behind [`Record::of_body`].
#[inline]
pub fn encode_elem_put(elem: &[u8], value: &[u8], out: &mut Vec<u8>) {
    push_elem_head(ELEM_PUT, elem, value.len(), out);
    push_slice(value, out);
}

/// Appends [`Op::ElemDelete`] behind [`Record::of_body`].
#[inline]
pub fn encode_elem_delete(elem: &[u8], out: &mut Vec<u8>) {
    push_elem_head(ELEM_DELETE, elem, 0, out);
}

/// Appends [`Op::ElemPatch`] behind [`Record::of_body`].
#[inline]
pub fn encode_elem_patch(elem: &[u8], offset: u64, bytes: &[u8], out: &mut Vec<u8>) {
    push_elem_head(ELEM_PATCH, elem, bytes.len(), out);
    push_varint(offset, out);
    push_slice(bytes, out);
}

/// Appends [`Op::Count`].
#[inline]
pub fn encode_count(shard: u16, ns: NsId, count: u64, out: &mut Vec<u8>) {
    out.push(COUNT);
    push_varint(u64::from(shard), out);
    push_varint(u64::from(ns), out);
    push_varint(count, out);
}

/// Appends [`Op::Raw`].
#[inline]
pub fn encode_raw(shard: u16, key: &[u8], value: Option<&[u8]>, out: &mut Vec<u8>) {
    out.push(if value.is_some() { RAW_PUT } else { RAW_DELETE });
    push_varint(u64::from(shard), out);
    push_slice(key, out);
    if let Some(value) = value {
        push_slice(value, out);
    }
}

/// Appends [`Op::Names`].
pub fn encode_names(map: &[u8], out: &mut Vec<u8>) {
    out.push(NAMES);
    push_slice(map, out);
}

/// Appends [`Op::Blind`].
#[inline]
pub fn encode_blind(ns: NsId, key: &[u8], number: u64, out: &mut Vec<u8>) {
    push_head(BLIND, ns, key, 0, out);
    push_varint(number, out);
}

/// Appends [`Op::Sighted`].
pub fn encode_sighted(shard: u16, number: u64, out: &mut Vec<u8>) {
    out.push(SIGHTED);
    push_varint(u64::from(shard), out);
    push_varint(number, out);
}

impl Op<'_> {
    /// Appends the operation.
    pub fn encode(&self, to: &mut Record) {
        match *self {
            Op::Put { ns, key, header, value } => encode_put(ns, key, header, value, to.out()),
            Op::Delete { ns, key } => encode_delete(ns, key, to.out()),
            Op::Patch { ns, key, offset, bytes } => encode_patch(ns, key, offset, bytes, to.out()),
            Op::Expire { ns, key, expire_ms } => encode_expire(ns, key, expire_ms, to.out()),
            Op::ElemPut { ns, key, version, elem, value } => {
                encode_elem_put(elem, value, to.of_body(ns, key, version));
            }
            Op::ElemDelete { ns, key, version, elem } => encode_elem_delete(elem, to.of_body(ns, key, version)),
            Op::ElemPatch { ns, key, version, elem, offset, bytes } => {
                encode_elem_patch(elem, offset, bytes, to.of_body(ns, key, version));
            }
            Op::Count { shard, ns, count } => encode_count(shard, ns, count, to.out()),
            Op::Raw { shard, key, value } => encode_raw(shard, key, value, to.out()),
            Op::Names(map) => encode_names(map, to.out()),
            Op::Blind { ns, key, number } => encode_blind(ns, key, number, to.out()),
            Op::Sighted { shard, number } => encode_sighted(shard, number, to.out()),
        }
    }
}

/// The operations of one record, in order. Ends behind the first error.
#[derive(Debug, Clone)]
pub struct Ops<'a> {
    cursor: Cursor<'a>,
    /// Namespace, key and version of the body named last.
    body: Option<(NsId, &'a [u8], u64)>,
}

impl<'a> Ops<'a> {
    /// Reads the payload of a record.
    pub const fn new(payload: &'a [u8]) -> Self {
        Ops { cursor: Cursor::new(payload), body: None }
    }

    fn decode(&mut self) -> Result<Op<'a>, CodecError> {
        let cursor = &mut self.cursor;
        let mut tag = cursor.u8()?;
        while tag == BODY {
            self.body = Some((cursor.varint_u32()?, cursor.slice()?, cursor.varint()?));
            tag = cursor.u8()?;
        }
        match tag {
            PUT..=EXPIRE | BLIND => decode_key_op(tag, cursor),
            ELEM_PUT..=ELEM_PATCH => {
                let (ns, key, version) = self.body.ok_or(CodecError::UnknownOp(tag))?;
                let elem = cursor.slice()?;
                Ok(match tag {
                    ELEM_PUT => Op::ElemPut { ns, key, version, elem, value: cursor.slice()? },
                    ELEM_DELETE => Op::ElemDelete { ns, key, version, elem },
                    _ => Op::ElemPatch { ns, key, version, elem, offset: cursor.varint()?, bytes: cursor.slice()? },
                })
            }
            COUNT => Ok(Op::Count { shard: cursor.varint_u16()?, ns: cursor.varint_u32()?, count: cursor.varint()? }),
            RAW_PUT => Ok(Op::Raw { shard: cursor.varint_u16()?, key: cursor.slice()?, value: Some(cursor.slice()?) }),
            RAW_DELETE => Ok(Op::Raw { shard: cursor.varint_u16()?, key: cursor.slice()?, value: None }),
            NAMES => Ok(Op::Names(cursor.slice()?)),
            SIGHTED => Ok(Op::Sighted { shard: cursor.varint_u16()?, number: cursor.varint()? }),
            tag => Err(CodecError::UnknownOp(tag)),
        }
    }
}

impl<'a> Iterator for Ops<'a> {
    type Item = Result<Op<'a>, CodecError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.cursor.is_empty() {
            return None;
        }
        let op = self.decode();
        if op.is_err() {
            self.cursor = Cursor::new(&[]);
        }
        Some(op)
    }
}

impl std::iter::FusedIterator for Ops<'_> {}

/// The operations that begin with namespace and key.
fn decode_key_op<'a>(tag: u8, cursor: &mut Cursor<'a>) -> Result<Op<'a>, CodecError> {
    let (ns, key) = (cursor.varint_u32()?, cursor.slice()?);
    match tag {
        PUT => Ok(Op::Put { ns, key, header: cursor.slice()?, value: cursor.slice()? }),
        DELETE => Ok(Op::Delete { ns, key }),
        PATCH => Ok(Op::Patch { ns, key, offset: cursor.varint()?, bytes: cursor.slice()? }),
        EXPIRE => Ok(Op::Expire { ns, key, expire_ms: cursor.varint()? }),
        BLIND => Ok(Op::Blind { ns, key, number: cursor.varint()? }),
        tag => Err(CodecError::UnknownOp(tag)),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn encoded(ops: &[Op<'_>]) -> Vec<u8> {
        let mut record = Record::default();
        ops.iter().for_each(|op| op.encode(&mut record));
        record.bytes().to_vec()
    }

    /// Whatever the lengths, a string kept inline is logged as any other put is.
    #[test]
    fn a_string_is_put_as_its_metadata_would_be() {
        let long = [b'k'; 300];
        for ns in [0, 127, 128, NsId::MAX] {
            for key in [&b""[..], b"k", &long[..127], &long[..128], &long] {
                for (expire_ms, value) in [(0, &b""[..]), (0, b"v"), (1, b"v"), (u64::MAX, &long[..])] {
                    let (mut header, mut one, mut other) = (Vec::new(), Vec::new(), Vec::new());
                    Meta { expire_ms, ..Meta::new(crate::codec::Kind::String) }.encode_header(&mut header);
                    encode_put(ns, key, &header, value, &mut one);
                    encode_put_string(ns, key, expire_ms, value, &mut other);
                    assert_eq!(one, other, "{ns} {} {expire_ms} {}", key.len(), value.len());
                }
            }
        }
    }

    #[test]
    fn operation_bytes_are_pinned() {
        let (ns, key, version) = (1, b"k".as_slice(), 5);
        let elem = b"\x01f".as_slice();
        let cases: [(Op<'_>, &[u8]); 14] = [
            (Op::Put { ns, key, header: b"\x01\0", value: b"v" }, b"\x01\x01\x01k\x02\x01\0\x01v"),
            (Op::Delete { ns, key }, b"\x02\x01\x01k"),
            (Op::Patch { ns, key, offset: 300, bytes: b"x" }, b"\x03\x01\x01k\xac\x02\x01x"),
            (Op::Expire { ns, key, expire_ms: 9 }, b"\x04\x01\x01k\x09"),
            (Op::ElemPut { ns, key, version, elem, value: b"v" }, b"\x0c\x01\x01k\x05\x05\x02\x01f\x01v"),
            (Op::ElemDelete { ns, key, version, elem }, b"\x0c\x01\x01k\x05\x06\x02\x01f"),
            (
                Op::ElemPatch { ns, key, version, elem, offset: 2, bytes: b"x" },
                b"\x0c\x01\x01k\x05\x07\x02\x01f\x02\x01x",
            ),
            (Op::Count { shard: 3, ns, count: 7 }, b"\x08\x03\x01\x07"),
            (Op::Raw { shard: 3, key: b"G", value: Some(b"v") }, b"\x09\x03\x01G\x01v"),
            (Op::Raw { shard: 3, key: b"G", value: Some(b"") }, b"\x09\x03\x01G\x00"),
            (Op::Raw { shard: 3, key: b"G", value: None }, b"\x0a\x03\x01G"),
            (Op::Names(b"map"), b"\x0b\x03map"),
            (Op::Blind { ns, key, number: 300 }, b"\x0d\x01\x01k\xac\x02"),
            (Op::Sighted { shard: 3, number: 300 }, b"\x0e\x03\xac\x02"),
        ];
        for (op, bytes) in cases {
            assert_eq!(encoded(&[op]), bytes, "{op:?}");
        }
    }

    #[test]
    fn a_body_is_named_where_it_is_another_one() {
        let put = |ns, key, version| Op::ElemPut { ns, key, version, elem: b"e", value: b"v" };
        let one: Vec<Op<'_>> = vec![put(1, b"key", 5); 3];
        assert_eq!(encoded(&one).iter().filter(|byte| **byte == b'k').count(), 1);
        let all = [&one[..], &[put(2, b"key", 5), put(2, b"kez", 5), put(2, b"kez", 6), put(2, b"kez", 6)]].concat();
        assert_eq!(Ops::new(&encoded(&all)).collect::<Result<Vec<_>, _>>().unwrap(), all);
        assert_eq!(encoded(&all).iter().filter(|byte| **byte == b'k').count(), 4);

        // What named it may have been taken back.
        let mut record = Record::default();
        put(1, b"key", 5).encode(&mut record);
        record.truncate(0);
        put(1, b"key", 5).encode(&mut record);
        assert_eq!(Ops::new(record.bytes()).collect::<Result<Vec<_>, _>>().unwrap(), [put(1, b"key", 5)]);
        record.clear();
        put(1, b"key", 5).encode(&mut record);
        assert_eq!(Ops::new(record.bytes()).count(), 1);
        assert_eq!(Ops::new(b"\x05\x01e\x01v").next(), Some(Err(CodecError::UnknownOp(ELEM_PUT))), "of no body");
        assert_eq!(Ops::new(b"\x0c\x01\x01k\x05").next(), Some(Err(CodecError::Truncated)), "no element");
    }

    #[test]
    fn an_error_ends_the_record() {
        let mut ops = Ops::new(b"\x02\x01\x01k\xffrest");
        assert_eq!(ops.next(), Some(Ok(Op::Delete { ns: 1, key: b"k" })));
        assert_eq!(ops.next(), Some(Err(CodecError::UnknownOp(0xff))));
        assert_eq!(ops.next(), None);
        let too_big_shard = b"\x08\xff\xff\xff\x01\x00\x00";
        assert_eq!(Ops::new(too_big_shard).next(), Some(Err(CodecError::IntegerRange)));
    }

    type Parts = (u8, u16, u32, (u64, u64), (Vec<u8>, Vec<u8>, Vec<u8>));

    fn parts() -> impl Strategy<Value = Parts> {
        let number = || prop_oneof![0u64..300, any::<u64>()];
        let bytes = || vec(any::<u8>(), 0..200);
        (0u8..13, any::<u16>(), any::<u32>(), (number(), number()), (bytes(), bytes(), bytes()))
    }

    fn op((which, shard, ns, (version, offset), (key, elem, value)): &Parts) -> Op<'_> {
        let (ns, version, offset, shard) = (*ns, *version, *offset, *shard);
        match which {
            0 => Op::Put { ns, key, header: elem, value },
            1 => Op::Delete { ns, key },
            2 => Op::Patch { ns, key, offset, bytes: value },
            3 => Op::Expire { ns, key, expire_ms: offset },
            4 => Op::ElemPut { ns, key, version, elem, value },
            5 => Op::ElemDelete { ns, key, version, elem },
            6 => Op::ElemPatch { ns, key, version, elem, offset, bytes: value },
            7 => Op::Count { shard, ns, count: offset },
            8 => Op::Raw { shard, key, value: Some(value) },
            9 => Op::Raw { shard, key, value: None },
            10 => Op::Blind { ns, key, number: offset },
            11 => Op::Sighted { shard, number: offset },
            _ => Op::Names(value),
        }
    }

    proptest! {
        #[test]
        fn operations_return(parts in vec(parts(), 0..6)) {
            let ops: Vec<Op<'_>> = parts.iter().map(op).collect();
            let decoded: Vec<_> = Ops::new(&encoded(&ops)).map(Result::unwrap).map(|op| format!("{op:?}")).collect();
            prop_assert_eq!(decoded, ops.iter().map(|op| format!("{op:?}")).collect::<Vec<_>>());
        }

        #[test]
        fn a_cut_operation_is_refused(parts in parts(), cut in 1usize..10) {
            let bytes = encoded(&[op(&parts)]);
            let cut = bytes.len().saturating_sub(cut);
            if cut > 0 {
                prop_assert_eq!(Ops::new(&bytes[..cut]).next(), Some(Err(CodecError::Truncated)));
            }
        }

        #[test]
        fn random_bytes_never_panic(tag in 0u8..16, bytes in vec(any::<u8>(), 0..60)) {
            for op in Ops::new(&[&[tag], bytes.as_slice()].concat()).flatten() {
                let _ = format!("{op:?}");
            }
        }
    }
}
