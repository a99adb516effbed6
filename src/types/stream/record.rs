//! What stands in a stream's records.
//!
//! | record | element | value |
//! |---|---|---|
//! | entry | id | `0` `fields` (`name` `value`)… or `1` `value`…, the names being the stream's |
//! | names | id 0-0, which no entry has | `fields` `name`…: those of the first entry after which another came |
//! | group | name | `last:16` `oldest:16` `read + 1` `pending` `consumers` |
//! | consumer | group, name | `oldest:16` `seen_ms` `active_ms + 1` `pending` |
//! | pending entry | group, id | `delivered_ms` `deliveries` `consumer` (its stored form, to the end) |
//!
//! Ids are big-endian, other numbers varints, names and values length-prefixed. `oldest` of a group is the id of its first
//! pending entry, of a consumer a lower bound of it; both mean nothing where nothing is pending. With them no look at
//! pending entries walks over those that are gone.

use smallvec::SmallVec;

use crate::codec::cursor::{Cursor, push_slice, push_varint};
use crate::codec::element;
use crate::codec::order::StreamId;
use crate::codec::{CodecError, is_long_form};
use crate::resp::{Args, Reply};

use super::id;

/// An element's key on its way to the overlay.
pub type ElementKey = SmallVec<[u8; 64]>;

/// The element of an entry.
#[inline]
pub fn entry_key(id: StreamId) -> ElementKey {
    let mut key = ElementKey::new();
    element::stream_element(id, &mut key);
    key
}

const OWN_NAMES: u8 = 0;
const SHARED_NAMES: u8 = 1;

/// The value of the names record for an entry's fields, given as names and values in turn.
pub fn encode_names(fields: Args<'_>) -> Vec<u8> {
    let mut names = Vec::new();
    push_varint(fields.len() as u64 / 2, &mut names);
    fields.iter().step_by(2).for_each(|name| push_slice(name, &mut names));
    names
}

/// Whether these fields have exactly the names of the names record.
pub fn names_match(names: &[u8], fields: Args<'_>) -> bool {
    let mut cursor = Cursor::new(names);
    cursor.varint().is_ok_and(|count| count == fields.len() as u64 / 2)
        && fields.iter().step_by(2).all(|name| cursor.slice().is_ok_and(|other| other == name))
}

/// Appends an entry's value.
pub fn encode_entry(fields: Args<'_>, shared_names: bool, out: &mut Vec<u8>) {
    let bytes: usize = fields.iter().map(|field| field.len() + 5).sum();
    out.reserve(bytes + 6);
    if shared_names {
        out.push(SHARED_NAMES);
        fields.iter().skip(1).step_by(2).for_each(|value| push_slice(value, out));
    } else {
        out.push(OWN_NAMES);
        push_varint(fields.len() as u64 / 2, out);
        fields.iter().for_each(|field| push_slice(field, out));
    }
}

/// Replies with an entry: its id and its fields. `names` is the names record, empty if there is none.
pub fn reply_entry(id: StreamId, value: &[u8], names: &[u8], out: &mut Reply) -> Result<(), CodecError> {
    out.array(2);
    id::reply(id, out);
    let mut cursor = Cursor::new(value);
    match cursor.u8()? {
        OWN_NAMES => {
            let count = cursor.varint()? as usize;
            out.array(count.saturating_mul(2));
            for _ in 0..count {
                out.bulk(cursor.slice()?);
                out.bulk(cursor.slice()?);
            }
        }
        SHARED_NAMES => {
            let mut names = Cursor::new(names);
            let count = names.varint()? as usize;
            out.array(count.saturating_mul(2));
            for _ in 0..count {
                out.bulk(names.slice()?);
                out.bulk(cursor.slice()?);
            }
        }
        other => return Err(CodecError::UnknownKind(other)),
    }
    cursor.finish()
}

/// Visits an entry's fields in order: names and values. `names` is the names record, empty if there is none.
pub fn each_field(value: &[u8], names: &[u8], mut visit: impl FnMut(&[u8], &[u8])) -> Result<(), CodecError> {
    let mut cursor = Cursor::new(value);
    let mut names = Cursor::new(names);
    let shared = match cursor.u8()? {
        OWN_NAMES => false,
        SHARED_NAMES => true,
        other => return Err(CodecError::UnknownKind(other)),
    };
    for _ in 0..if shared { names.varint()? } else { cursor.varint()? } {
        let name = if shared { names.slice()? } else { cursor.slice()? };
        visit(name, cursor.slice()?);
    }
    cursor.finish()
}

/// What a group's record holds besides its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GroupRecord {
    /// Id of the last entry delivered.
    pub last: StreamId,
    /// Id of the first pending entry, if any is pending.
    pub oldest: StreamId,
    /// Number, among all entries ever added, of the last one delivered; −1 where it cannot be told.
    pub entries_read: i64,
    /// Pending entries.
    pub pending: u64,
    /// Consumers.
    pub consumers: u64,
}

impl GroupRecord {
    /// Appends the record, without a long name.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.last.to_bytes());
        out.extend_from_slice(&self.oldest.to_bytes());
        push_varint(self.entries_read.saturating_add(1).max(0) as u64, out);
        push_varint(self.pending, out);
        push_varint(self.consumers, out);
    }

    /// Reads the record behind a long name.
    pub fn decode(value: &[u8]) -> Result<Self, CodecError> {
        let mut cursor = Cursor::new(value);
        let record = GroupRecord {
            last: StreamId::from_bytes(cursor.array()?),
            oldest: StreamId::from_bytes(cursor.array()?),
            entries_read: (cursor.varint()? as i64).wrapping_sub(1),
            pending: cursor.varint()?,
            consumers: cursor.varint()?,
        };
        cursor.finish()?;
        Ok(record)
    }
}

/// What a consumer's record holds besides its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConsumerRecord {
    /// No pending entry has a lower id.
    pub oldest: StreamId,
    /// When it last asked for something, Unix ms.
    pub seen_ms: u64,
    /// When it last got something, Unix ms.
    pub active_ms: Option<u64>,
    /// Pending entries.
    pub pending: u64,
}

impl ConsumerRecord {
    /// Appends the record, without a long name.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.oldest.to_bytes());
        push_varint(self.seen_ms, out);
        push_varint(self.active_ms.map_or(0, |ms| ms + 1), out);
        push_varint(self.pending, out);
    }

    /// Reads the record behind a long name.
    pub fn decode(value: &[u8]) -> Result<Self, CodecError> {
        let mut cursor = Cursor::new(value);
        let record = ConsumerRecord {
            oldest: StreamId::from_bytes(cursor.array()?),
            seen_ms: cursor.varint()?,
            active_ms: cursor.varint()?.checked_sub(1),
            pending: cursor.varint()?,
        };
        cursor.finish()?;
        Ok(record)
    }
}

/// A pending entry: delivered, not acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nack {
    /// When it was last delivered, Unix ms.
    pub delivered_ms: u64,
    /// How often.
    pub deliveries: u64,
    /// To whom: the stored form of the consumer's name.
    pub consumer: SmallVec<[u8; 24]>,
}

impl Nack {
    /// Appends the record.
    pub fn encode(&self, out: &mut Vec<u8>) {
        push_varint(self.delivered_ms, out);
        push_varint(self.deliveries, out);
        out.extend_from_slice(&self.consumer);
    }

    /// Reads the record.
    pub fn decode(value: &[u8]) -> Result<Self, CodecError> {
        let mut cursor = Cursor::new(value);
        Ok(Nack {
            delivered_ms: cursor.varint()?,
            deliveries: cursor.varint()?,
            consumer: SmallVec::from_slice(cursor.rest()),
        })
    }
}

/// The last 16 bytes of the element of an entry or a pending entry: its id.
pub fn id_of(key: &[u8]) -> Result<StreamId, CodecError> {
    let bytes = key.last_chunk().ok_or(CodecError::Truncated)?;
    Ok(StreamId::from_bytes(*bytes))
}

/// Whether a name's stored form is the name itself.
pub const fn is_name(stored: &[u8]) -> bool {
    !is_long_form(stored)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::resp::OwnedArgs;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn fields(of: &[&[u8]]) -> OwnedArgs {
        of.iter().copied().collect()
    }

    fn shown(value: &[u8], names: &[u8]) -> Result<String, CodecError> {
        let mut out = Reply::new(2);
        reply_entry(StreamId { ms: 7, seq: 1 }, value, names, &mut out)?;
        Ok(String::from_utf8_lossy(out.as_slice()).into_owned())
    }

    #[test]
    fn entries_are_pinned() {
        let of = fields(&[b"a", b"1", b"bc", b"2"]);
        let names = encode_names(of.as_args());
        assert_eq!(names, b"\x02\x01a\x02bc");
        assert!(names_match(&names, of.as_args()));
        assert!(!names_match(&names, fields(&[b"a", b"1"]).as_args()));
        assert!(!names_match(&names, fields(&[b"a", b"1", b"c", b"2"]).as_args()));
        assert!(!names_match(&names, fields(&[b"a", b"1", b"bc", b"2", b"d", b"3"]).as_args()));
        let (mut own, mut shared) = (Vec::new(), Vec::new());
        encode_entry(of.as_args(), false, &mut own);
        encode_entry(of.as_args(), true, &mut shared);
        assert_eq!(own, b"\0\x02\x01a\x011\x02bc\x012");
        assert_eq!(shared, b"\x01\x011\x012");
        let expected = "*2\r\n$3\r\n7-1\r\n*4\r\n$1\r\na\r\n$1\r\n1\r\n$2\r\nbc\r\n$1\r\n2\r\n";
        assert_eq!(shown(&own, b"").unwrap(), expected);
        assert_eq!(shown(&shared, &names).unwrap(), expected);
        assert!(shown(&shared, b"").is_err() && shown(b"\x02", b"").is_err() && shown(b"", b"").is_err());
    }

    #[test]
    fn group_records_are_pinned() {
        let mut out = Vec::new();
        let id = |seq| StreamId { ms: 0, seq };
        let group = GroupRecord { last: id(2), oldest: id(1), entries_read: -1, pending: 3, consumers: 4 };
        group.encode(&mut out);
        assert_eq!((out.len(), out[15], out[31], &out[32..]), (35, 2, 1, &b"\0\x03\x04"[..]));
        out.clear();
        ConsumerRecord { oldest: id(1), seen_ms: 2, active_ms: Some(3), pending: 5 }.encode(&mut out);
        assert_eq!((out[15], &out[16..]), (1, &b"\x02\x04\x05"[..]));
        out.clear();
        Nack { delivered_ms: 1, deliveries: 2, consumer: SmallVec::from_slice(b"c") }.encode(&mut out);
        assert_eq!(out, b"\x01\x02c");
    }

    proptest! {
        #[test]
        fn records_return(ids: [(u64, u64); 2], read in -1..i64::MAX, numbers: [u64; 3], name in vec(any::<u8>(), 0..40)) {
            let [last, oldest] = ids.map(|(ms, seq)| StreamId { ms, seq });
            let group = GroupRecord { last, oldest, entries_read: read, pending: numbers[0], consumers: numbers[1] };
            let mut out = Vec::new();
            group.encode(&mut out);
            prop_assert_eq!(GroupRecord::decode(&out).unwrap(), group);
            let active_ms = Some(numbers[2] >> 1).filter(|ms| ms % 2 == 0);
            let consumer = ConsumerRecord { oldest, seen_ms: numbers[0], active_ms, pending: numbers[1] };
            out.clear();
            consumer.encode(&mut out);
            prop_assert_eq!(ConsumerRecord::decode(&out).unwrap(), consumer);
            let nack = Nack { delivered_ms: numbers[0], deliveries: numbers[1], consumer: SmallVec::from_slice(&name) };
            out.clear();
            nack.encode(&mut out);
            prop_assert_eq!(Nack::decode(&out).unwrap(), nack);
        }

        #[test]
        fn random_bytes_never_panic(bytes in vec(any::<u8>(), 0..60), names in vec(any::<u8>(), 0..20)) {
            let _ = (GroupRecord::decode(&bytes), ConsumerRecord::decode(&bytes), Nack::decode(&bytes), id_of(&bytes));
            let _ = shown(&bytes, &names);
        }
    }
}
