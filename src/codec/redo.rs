//! The operations inside one log record. A record is a commit: its operations follow each other without padding.
//!
//! | tag | operation | bytes behind the tag |
//! |---|---|---|
//! | 1 | put | `ns` `[key]` `[header]` `[value]` |
//! | 2 | delete | `ns` `[key]` |
//! | 3 | patch | `ns` `[key]` `offset` `[bytes]` |
//! | 4 | expire | `ns` `[key]` `expire_ms` |
//! | 5 | element put | `ns` `[key]` `version` `[element]` `[value]` |
//! | 6 | element delete | `ns` `[key]` `version` `[element]` |
//! | 7 | element patch | `ns` `[key]` `version` `[element]` `offset` `[bytes]` |
//! | 8 | count | `shard` `ns` `count` |
//! | 9 | raw put | `shard` `[key]` `[value]` |
//! | 10 | raw delete | `shard` `[key]` |
//! | 11 | names | `[map]` |
//!
//! Numbers are varints, `[x]` is a varint length and that many bytes. `key` is the user's key, whole however long;
//! `header` as [`super::Meta::encode_header`] makes it; `element` as [`super::element`] does; a raw `key` is a whole
//! key of the partition.
//!
//! Every operation names its outcome and not a change to what was before, so that replaying a log, in order and from
//! any record on whose predecessors are in the store, ends in the same state. A patch names the bytes at an offset.
//!
//! Version 0, in an element operation or in a put's header, stands for the LSN of the record: who writes a record
//! does not know its LSN yet.

use super::cursor::{Cursor, push_slice, push_varint};
use super::{CodecError, NsId};

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
    /// Sets (`Some`) or removes a record by its whole key: garbage queue, dead namespaces, expiry index.
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
}

#[inline]
fn push_head(tag: u8, ns: NsId, key: &[u8], more: usize, out: &mut Vec<u8>) {
    // One reservation for the whole operation: lengths and numbers are 10 bytes each at most.
    out.reserve(key.len() + more + 64);
    out.push(tag);
    push_varint(u64::from(ns), out);
    push_slice(key, out);
}

#[inline]
fn push_elem_head(tag: u8, ns: NsId, key: &[u8], version: u64, elem: &[u8], more: usize, out: &mut Vec<u8>) {
    push_head(tag, ns, key, elem.len() + more, out);
    push_varint(version, out);
    push_slice(elem, out);
}

/// Appends [`Op::Put`].
#[inline]
pub fn encode_put(ns: NsId, key: &[u8], header: &[u8], value: &[u8], out: &mut Vec<u8>) {
    push_head(PUT, ns, key, header.len() + value.len(), out);
    push_slice(header, out);
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

/// Appends [`Op::ElemPut`].
#[inline]
pub fn encode_elem_put(ns: NsId, key: &[u8], version: u64, elem: &[u8], value: &[u8], out: &mut Vec<u8>) {
    push_elem_head(ELEM_PUT, ns, key, version, elem, value.len(), out);
    push_slice(value, out);
}

/// Appends [`Op::ElemDelete`].
#[inline]
pub fn encode_elem_delete(ns: NsId, key: &[u8], version: u64, elem: &[u8], out: &mut Vec<u8>) {
    push_elem_head(ELEM_DELETE, ns, key, version, elem, 0, out);
}

/// Appends [`Op::ElemPatch`].
#[inline]
pub fn encode_elem_patch(
    ns: NsId,
    key: &[u8],
    version: u64,
    elem: &[u8],
    offset: u64,
    bytes: &[u8],
    out: &mut Vec<u8>,
) {
    push_elem_head(ELEM_PATCH, ns, key, version, elem, bytes.len(), out);
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

impl Op<'_> {
    /// Appends the operation.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Op::Put { ns, key, header, value } => encode_put(ns, key, header, value, out),
            Op::Delete { ns, key } => encode_delete(ns, key, out),
            Op::Patch { ns, key, offset, bytes } => encode_patch(ns, key, offset, bytes, out),
            Op::Expire { ns, key, expire_ms } => encode_expire(ns, key, expire_ms, out),
            Op::ElemPut { ns, key, version, elem, value } => encode_elem_put(ns, key, version, elem, value, out),
            Op::ElemDelete { ns, key, version, elem } => encode_elem_delete(ns, key, version, elem, out),
            Op::ElemPatch { ns, key, version, elem, offset, bytes } => {
                encode_elem_patch(ns, key, version, elem, offset, bytes, out);
            }
            Op::Count { shard, ns, count } => encode_count(shard, ns, count, out),
            Op::Raw { shard, key, value } => encode_raw(shard, key, value, out),
            Op::Names(map) => encode_names(map, out),
        }
    }
}

/// The operations of one record, in order. Ends behind the first error.
#[derive(Debug, Clone)]
pub struct Ops<'a>(Cursor<'a>);

impl<'a> Ops<'a> {
    /// Reads the payload of a record.
    pub const fn new(payload: &'a [u8]) -> Self {
        Ops(Cursor::new(payload))
    }
}

impl<'a> Iterator for Ops<'a> {
    type Item = Result<Op<'a>, CodecError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let op = decode_op(&mut self.0);
        if op.is_err() {
            self.0 = Cursor::new(&[]);
        }
        Some(op)
    }
}

impl std::iter::FusedIterator for Ops<'_> {}

fn decode_op<'a>(cursor: &mut Cursor<'a>) -> Result<Op<'a>, CodecError> {
    let tag = cursor.u8()?;
    match tag {
        PUT..=ELEM_PATCH => decode_key_op(tag, cursor),
        COUNT => Ok(Op::Count { shard: cursor.varint_u16()?, ns: cursor.varint_u32()?, count: cursor.varint()? }),
        RAW_PUT => Ok(Op::Raw { shard: cursor.varint_u16()?, key: cursor.slice()?, value: Some(cursor.slice()?) }),
        RAW_DELETE => Ok(Op::Raw { shard: cursor.varint_u16()?, key: cursor.slice()?, value: None }),
        NAMES => Ok(Op::Names(cursor.slice()?)),
        tag => Err(CodecError::UnknownOp(tag)),
    }
}

/// The operations that begin with namespace and key.
fn decode_key_op<'a>(tag: u8, cursor: &mut Cursor<'a>) -> Result<Op<'a>, CodecError> {
    let (ns, key) = (cursor.varint_u32()?, cursor.slice()?);
    match tag {
        PUT => return Ok(Op::Put { ns, key, header: cursor.slice()?, value: cursor.slice()? }),
        DELETE => return Ok(Op::Delete { ns, key }),
        PATCH => return Ok(Op::Patch { ns, key, offset: cursor.varint()?, bytes: cursor.slice()? }),
        EXPIRE => return Ok(Op::Expire { ns, key, expire_ms: cursor.varint()? }),
        _ => {}
    }
    let (version, elem) = (cursor.varint()?, cursor.slice()?);
    match tag {
        ELEM_PUT => Ok(Op::ElemPut { ns, key, version, elem, value: cursor.slice()? }),
        ELEM_DELETE => Ok(Op::ElemDelete { ns, key, version, elem }),
        ELEM_PATCH => Ok(Op::ElemPatch { ns, key, version, elem, offset: cursor.varint()?, bytes: cursor.slice()? }),
        tag => Err(CodecError::UnknownOp(tag)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn encoded(ops: &[Op<'_>]) -> Vec<u8> {
        let mut out = Vec::new();
        for op in ops {
            op.encode(&mut out);
        }
        out
    }

    #[test]
    fn operation_bytes_are_pinned() {
        let (ns, key, version) = (1, b"k".as_slice(), 5);
        let elem = b"\x01f".as_slice();
        let cases: [(Op<'_>, &[u8]); 12] = [
            (Op::Put { ns, key, header: b"\x01\0", value: b"v" }, b"\x01\x01\x01k\x02\x01\0\x01v"),
            (Op::Delete { ns, key }, b"\x02\x01\x01k"),
            (Op::Patch { ns, key, offset: 300, bytes: b"x" }, b"\x03\x01\x01k\xac\x02\x01x"),
            (Op::Expire { ns, key, expire_ms: 9 }, b"\x04\x01\x01k\x09"),
            (Op::ElemPut { ns, key, version, elem, value: b"v" }, b"\x05\x01\x01k\x05\x02\x01f\x01v"),
            (Op::ElemDelete { ns, key, version, elem }, b"\x06\x01\x01k\x05\x02\x01f"),
            (Op::ElemPatch { ns, key, version, elem, offset: 2, bytes: b"x" }, b"\x07\x01\x01k\x05\x02\x01f\x02\x01x"),
            (Op::Count { shard: 3, ns, count: 7 }, b"\x08\x03\x01\x07"),
            (Op::Raw { shard: 3, key: b"G", value: Some(b"v") }, b"\x09\x03\x01G\x01v"),
            (Op::Raw { shard: 3, key: b"G", value: Some(b"") }, b"\x09\x03\x01G\x00"),
            (Op::Raw { shard: 3, key: b"G", value: None }, b"\x0a\x03\x01G"),
            (Op::Names(b"map"), b"\x0b\x03map"),
        ];
        for (op, bytes) in cases {
            assert_eq!(encoded(&[op]), bytes, "{op:?}");
        }
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
        (0u8..11, any::<u16>(), any::<u32>(), (number(), number()), (bytes(), bytes(), bytes()))
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
        fn random_bytes_never_panic(tag in 0u8..13, bytes in vec(any::<u8>(), 0..60)) {
            for op in Ops::new(&[&[tag], bytes.as_slice()].concat()).flatten() {
                let _ = format!("{op:?}");
            }
        }
    }
}
