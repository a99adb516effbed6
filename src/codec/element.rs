//! The tail of an element key: the element group, then the element in bytes that sort as Redis orders.
//!
//! `text` is the stored form of a field, member or name (see [`super`]).
//!
//! | group | tag | bytes behind the tag |
//! |---|---|---|
//! | hash field | 1 | `field text` |
//! | set member | 2 | `member text` |
//! | list element | 3 | `index:8` |
//! | zset score | 4 | `member text`; or, in encode-version 1, of the members that it stores once, `digest:16` |
//! | zset sort | 5 | `score:8` `member text` |
//! | stream element | 6 | `id:16` |
//! | stream group | 7 | `group text` |
//! | stream consumer | 8 | `len:2` `group text` `consumer text` |
//! | stream pel | 9 | `len:2` `group text` `id:16` |
//! | string chunk | 10 | `number:4` |
//! | rank | 11 | `level:1` `block …` |
//!
//! These bytes, tag included, are what the log and the shard's overlay call an *element*: appended to the prefix of a
//! key and its version they are the key on disk. The value of an element with a long text begins with that text
//! ([`push_long_value`]).

use super::cursor::{Cursor, push_slice};
use super::order::{Score, StreamId, index_from_bytes, index_to_bytes};
use super::{Buf, CodecError, check_stored, is_long, is_long_form, push_stored, stored_len};
use sha2::{Digest, Sha256};
use std::ops::Range;

/// What an element record is part of, with its persisted tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Group {
    /// A hash's field; the value is the field's.
    HashField = 1,
    /// A set's member; no value.
    SetMember = 2,
    /// A list's element, keyed by its index.
    ListElement = 3,
    /// A sorted set's member; the value is its score.
    ZsetScore = 4,
    /// A sorted set's score and member; no value.
    ZsetSort = 5,
    /// A stream's entry.
    StreamElement = 6,
    /// A consumer group of a stream.
    StreamGroup = 7,
    /// A consumer of a consumer group.
    StreamConsumer = 8,
    /// A pending entry of a consumer group.
    StreamPel = 9,
    /// A piece of a big string.
    StringChunk = 10,
    /// A counter of elements, for rank and offset.
    Rank = 11,
}

impl Group {
    /// Every group, in the order of the tags.
    pub const ALL: [Group; 11] = [
        Group::HashField,
        Group::SetMember,
        Group::ListElement,
        Group::ZsetScore,
        Group::ZsetSort,
        Group::StreamElement,
        Group::StreamGroup,
        Group::StreamConsumer,
        Group::StreamPel,
        Group::StringChunk,
        Group::Rank,
    ];

    /// The persisted byte.
    pub const fn tag(self) -> u8 {
        self as u8
    }

    /// Whether an element is of a stream's consumer groups, and not of what it holds.
    #[inline]
    pub fn is_of_consumers(element: &[u8]) -> bool {
        const FIRST: u8 = Group::StreamGroup.tag();
        const LAST: u8 = Group::StreamPel.tag();
        matches!(element.first(), Some(FIRST..=LAST))
    }

    /// The group of a persisted byte.
    pub const fn from_tag(tag: u8) -> Result<Group, CodecError> {
        match tag {
            1..=11 => Ok(Group::ALL[tag as usize - 1]),
            tag => Err(CodecError::UnknownElementGroup(tag)),
        }
    }
}

/// Appends the element of a hash's field.
#[inline]
pub fn hash_field(field: &[u8], out: &mut impl Buf) {
    out.push(Group::HashField.tag());
    push_stored(field, out);
}

/// Appends the element of a set's member.
#[inline]
pub fn set_member(member: &[u8], out: &mut impl Buf) {
    out.push(Group::SetMember.tag());
    push_stored(member, out);
}

/// Appends the element of a list's index; 0 is the middle of the range.
#[inline]
pub fn list_element(index: i64, out: &mut impl Buf) {
    out.push(Group::ListElement.tag());
    out.extend_from_slice(&index_to_bytes(index));
}

/// The one of a list's indexes at an offset as clients give it, negative ones counted from the end.
#[inline]
pub fn index_at(indexes: &Range<i64>, offset: i64) -> Option<i64> {
    let index = if offset < 0 { indexes.end.checked_add(offset) } else { indexes.start.checked_add(offset) };
    index.filter(|index| indexes.contains(index))
}

/// Appends the element that holds a member's score.
#[inline]
pub fn zset_score(member: &[u8], out: &mut impl Buf) {
    out.push(Group::ZsetScore.tag());
    push_stored(member, out);
}

/// Appends the element that holds the score of a member whose text stands in its [`zset_sort`] alone: the first bytes of
/// the member's SHA-256.
pub fn zset_digest(member: &[u8], out: &mut impl Buf) {
    const DIGEST: usize = 16;
    out.push(Group::ZsetScore.tag());
    out.extend_from_slice(&Sha256::digest(member)[..DIGEST]);
}

/// Encode-version of sorted sets in which long members are stored once.
pub const ZSET_INDEX: u8 = 1;

/// Whether a member's text stands in its [`zset_sort`] alone.
#[inline]
pub const fn zset_is_digested(encoding: u8, member: &[u8]) -> bool {
    const FROM: usize = 15;
    encoding == ZSET_INDEX && member.len() >= FROM
}

/// Appends the element that holds a member's score in a sorted set of this encode-version.
#[inline]
pub fn zset_score_of(encoding: u8, member: &[u8], out: &mut impl Buf) {
    if zset_is_digested(encoding, member) {
        zset_digest(member, out);
    } else {
        zset_score(member, out);
    }
}

/// Appends the element that sorts a member by its score, equal scores by member.
#[inline]
pub fn zset_sort(score: Score, member: &[u8], out: &mut impl Buf) {
    out.push(Group::ZsetSort.tag());
    out.extend_from_slice(&score.to_bytes());
    push_stored(member, out);
}

/// Appends the element of a stream's entry.
#[inline]
pub fn stream_element(id: StreamId, out: &mut impl Buf) {
    out.push(Group::StreamElement.tag());
    out.extend_from_slice(&id.to_bytes());
}

/// Appends the element of a consumer group.
pub fn stream_group(group: &[u8], out: &mut impl Buf) {
    out.push(Group::StreamGroup.tag());
    push_stored(group, out);
}

/// Appends the element of a consumer.
pub fn stream_consumer(group: &[u8], consumer: &[u8], out: &mut impl Buf) {
    stream_consumer_prefix(group, out);
    push_stored(consumer, out);
}

/// Appends what the elements of all consumers of `group` begin with.
pub fn stream_consumer_prefix(group: &[u8], out: &mut impl Buf) {
    out.push(Group::StreamConsumer.tag());
    push_sized(group, out);
}

/// Appends the element of a pending entry.
pub fn stream_pel(group: &[u8], id: StreamId, out: &mut impl Buf) {
    stream_pel_prefix(group, out);
    out.extend_from_slice(&id.to_bytes());
}

/// Appends what the elements of all pending entries of `group` begin with.
pub fn stream_pel_prefix(group: &[u8], out: &mut impl Buf) {
    out.push(Group::StreamPel.tag());
    push_sized(group, out);
}

/// Appends the element of a big string's chunk.
#[inline]
pub fn string_chunk(number: u32, out: &mut impl Buf) {
    out.push(Group::StringChunk.tag());
    out.extend_from_slice(&number.to_be_bytes());
}

/// Appends the element of a rank counter; `block` in bytes that sort like the order that is counted.
pub fn rank(level: u8, block: &[u8], out: &mut impl Buf) {
    out.push(Group::Rank.tag());
    out.push(level);
    out.extend_from_slice(block);
}

/// A stored form with its length in front, so that no name's range contains another's.
fn push_sized(text: &[u8], out: &mut impl Buf) {
    out.extend_from_slice(&(stored_len(text) as u16).to_be_bytes());
    push_stored(text, out);
}

/// Appends the value of an element whose text is long: the text, then the value proper.
pub fn push_long_value(text: &[u8], value: &[u8], out: &mut Vec<u8>) {
    push_slice(text, out);
    out.extend_from_slice(value);
}

/// Splits the value of an element whose text is long into text and value proper.
pub fn split_long_value(value: &[u8]) -> Result<(&[u8], &[u8]), CodecError> {
    let mut cursor = Cursor::new(value);
    Ok((cursor.slice()?, cursor.rest()))
}

/// The value of an element with this text: the text in front where it is long.
pub fn with_text<'a>(text: &[u8], value: &'a [u8]) -> std::borrow::Cow<'a, [u8]> {
    if !is_long(text) {
        return std::borrow::Cow::Borrowed(value);
    }
    let mut whole = Vec::with_capacity(text.len() + value.len() + 10);
    push_long_value(text, value, &mut whole);
    std::borrow::Cow::Owned(whole)
}

/// Text and value proper of an element, of which `stored` is the stored form of its text.
#[inline]
pub fn split_text<'a>(stored: &'a [u8], value: &'a [u8]) -> Result<(&'a [u8], &'a [u8]), CodecError> {
    if is_long_form(stored) { split_long_value(value) } else { Ok((stored, value)) }
}

/// A decoded element. Texts are stored forms: the text itself, or the long form that [`super::is_long_form`] tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element<'a> {
    /// [`hash_field`]
    HashField(&'a [u8]),
    /// [`set_member`]
    SetMember(&'a [u8]),
    /// [`list_element`]
    ListElement(i64),
    /// [`zset_score`]
    ZsetScore(&'a [u8]),
    /// [`zset_sort`]
    ZsetSort(Score, &'a [u8]),
    /// [`stream_element`]
    StreamElement(StreamId),
    /// [`stream_group`]
    StreamGroup(&'a [u8]),
    /// [`stream_consumer`]: group, consumer
    StreamConsumer(&'a [u8], &'a [u8]),
    /// [`stream_pel`]
    StreamPel(&'a [u8], StreamId),
    /// [`string_chunk`]
    StringChunk(u32),
    /// [`rank`]: level, block
    Rank(u8, &'a [u8]),
}

impl<'a> Element<'a> {
    /// Decodes a whole element, its tag included.
    pub fn decode(bytes: &'a [u8]) -> Result<Element<'a>, CodecError> {
        let mut cursor = Cursor::new(bytes);
        let group = Group::from_tag(cursor.u8()?)?;
        let element = match group {
            Group::HashField => return Ok(Element::HashField(check_stored(cursor.rest())?)),
            Group::SetMember => return Ok(Element::SetMember(check_stored(cursor.rest())?)),
            Group::ZsetScore => return Ok(Element::ZsetScore(check_stored(cursor.rest())?)),
            Group::StreamGroup => return Ok(Element::StreamGroup(check_stored(cursor.rest())?)),
            Group::ZsetSort => {
                let score = Score::from_bytes(cursor.array()?)?;
                return Ok(Element::ZsetSort(score, check_stored(cursor.rest())?));
            }
            Group::StreamConsumer => {
                let name = sized(&mut cursor)?;
                return Ok(Element::StreamConsumer(name, check_stored(cursor.rest())?));
            }
            Group::Rank => return Ok(Element::Rank(cursor.u8()?, cursor.rest())),
            Group::ListElement => Element::ListElement(index_from_bytes(cursor.array()?)),
            Group::StreamElement => Element::StreamElement(StreamId::from_bytes(cursor.array()?)),
            Group::StreamPel => {
                let name = sized(&mut cursor)?;
                Element::StreamPel(name, StreamId::from_bytes(cursor.array()?))
            }
            Group::StringChunk => Element::StringChunk(cursor.u32_be()?),
        };
        cursor.finish()?;
        Ok(element)
    }
}

fn sized<'a>(cursor: &mut Cursor<'a>) -> Result<&'a [u8], CodecError> {
    let len = cursor.u16_be()?;
    check_stored(cursor.bytes(usize::from(len))?)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::codec::samples::{made, stored, text};
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[test]
    fn group_tags_are_pinned() {
        let tags: Vec<u8> = Group::ALL.iter().map(|group| group.tag()).collect();
        assert_eq!(tags, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
        for group in Group::ALL {
            assert_eq!(Group::from_tag(group.tag()), Ok(group));
        }
        assert_eq!(Group::from_tag(0), Err(CodecError::UnknownElementGroup(0)));
        assert_eq!(Group::from_tag(12), Err(CodecError::UnknownElementGroup(12)));
    }

    #[test]
    fn element_bytes_are_pinned() {
        let one = Score::new(1.0).unwrap();
        let id = StreamId { ms: 1, seq: 2 };
        let id_bytes = b"\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x02";
        assert_eq!(made(|out| hash_field(b"f", out)), b"\x01f");
        assert_eq!(made(|out| set_member(b"m", out)), b"\x02m");
        assert_eq!(made(|out| list_element(1, out)), b"\x03\x80\0\0\0\0\0\0\x01");
        assert_eq!(made(|out| zset_score(b"m", out)), b"\x04m");
        assert_eq!(
            made(|out| zset_digest(b"a member of 23 bytes...", out)),
            b"\x04\x2f\x74\xcc\x65\xba\xb8\x34\x75\xf1\x43\xe4\xe8\xbc\x05\x51\xa7"
        );
        assert_eq!(made(|out| zset_sort(one, b"m", out)), b"\x05\xbf\xf0\0\0\0\0\0\0m");
        assert_eq!(made(|out| stream_element(id, out)), [b"\x06".as_slice(), id_bytes].concat());
        assert_eq!(made(|out| stream_group(b"g", out)), b"\x07g");
        assert_eq!(made(|out| stream_consumer(b"g", b"c", out)), b"\x08\0\x01gc");
        assert_eq!(made(|out| stream_pel(b"g", id, out)), [b"\x09\0\x01g".as_slice(), id_bytes].concat());
        assert_eq!(made(|out| string_chunk(258, out)), b"\x0a\0\0\x01\x02");
        assert_eq!(made(|out| rank(3, b"block", out)), b"\x0b\x03block");
    }

    /// Of what has its length there is nothing behind it; one that is cut is no other.
    #[test]
    fn what_is_longer_or_shorter_than_its_group_has_it_is_none() {
        let id = StreamId { ms: 1, seq: 2 };
        let elements = [
            made(|out| list_element(1, out)),
            made(|out| stream_element(id, out)),
            made(|out| stream_pel(b"g", id, out)),
            made(|out| string_chunk(258, out)),
        ];
        for element in elements {
            assert!(Element::decode(&element).is_ok());
            assert!(Element::decode(&[&element[..], b"x"].concat()).is_err(), "{element:?}");
            assert!(Element::decode(&element[..element.len() - 1]).is_err(), "{element:?}");
        }
    }

    proptest! {
        #[test]
        fn texts_return(a in text(), b in text(), ms: u64, seq: u64, bits: u64) {
            let id = StreamId { ms, seq };
            let (sa, sb) = (stored(&a), stored(&b));
            let check = |bytes: Vec<u8>, expected: Element<'_>| {
                prop_assert_eq!(Element::decode(&bytes).unwrap(), expected);
                Ok(())
            };
            check(made(|out| hash_field(&a, out)), Element::HashField(&sa))?;
            check(made(|out| set_member(&a, out)), Element::SetMember(&sa))?;
            check(made(|out| zset_score(&a, out)), Element::ZsetScore(&sa))?;
            check(made(|out| stream_group(&a, out)), Element::StreamGroup(&sa))?;
            check(made(|out| stream_consumer(&a, &b, out)), Element::StreamConsumer(&sa, &sb))?;
            check(made(|out| stream_pel(&a, id, out)), Element::StreamPel(&sa, id))?;
            check(made(|out| stream_element(id, out)), Element::StreamElement(id))?;
            check(made(|out| list_element(ms as i64, out)), Element::ListElement(ms as i64))?;
            check(made(|out| string_chunk(ms as u32, out)), Element::StringChunk(ms as u32))?;
            check(made(|out| rank(seq as u8, &a, out)), Element::Rank(seq as u8, &a))?;
            if let Ok(score) = Score::new(f64::from_bits(bits)) {
                check(made(|out| zset_sort(score, &a, out)), Element::ZsetSort(score, &sa))?;
            }
        }

        #[test]
        fn zset_sorts_by_score_then_member(a in (-3i8..3, text()), b in (-3i8..3, text())) {
            let bytes = |(score, member): &(i8, Vec<u8>)| {
                made(|out| zset_sort(Score::new(f64::from(*score)).unwrap(), member, out))
            };
            let key = |(score, member): &(i8, Vec<u8>)| (*score, stored(member));
            prop_assert_eq!(bytes(&a).cmp(&bytes(&b)), key(&a).cmp(&key(&b)));
        }

        #[test]
        fn inline_texts_sort_like_themselves(a in vec(any::<u8>(), 0..9), b in vec(any::<u8>(), 0..9)) {
            prop_assert_eq!(a.cmp(&b), made(|out| hash_field(&a, out)).cmp(&made(|out| hash_field(&b, out))));
        }

        #[test]
        fn no_group_contains_another(a in text(), b in text(), consumer in text(), id: (u64, u64)) {
            let id = StreamId { ms: id.0, seq: id.1 };
            let same = a == b;
            let prefix = made(|out| stream_consumer_prefix(&a, out));
            prop_assert_eq!(made(|out| stream_consumer(&b, &consumer, out)).starts_with(&prefix), same);
            let prefix = made(|out| stream_pel_prefix(&a, out));
            prop_assert_eq!(made(|out| stream_pel(&b, id, out)).starts_with(&prefix), same);
        }

        #[test]
        fn long_value_splits(text in text(), value in text()) {
            let bytes = made(|out| push_long_value(&text, &value, out));
            prop_assert_eq!(split_long_value(&bytes).unwrap(), (text.as_slice(), value.as_slice()));
        }

        #[test]
        fn random_bytes_never_panic(bytes in vec(any::<u8>(), 0..40)) {
            let _ = Element::decode(&bytes);
            let _ = split_long_value(&bytes);
        }
    }
}
