//! One collection or big string: its elements as they come by, against its metadata.
//!
//! | type | what must hold |
//! |---|---|
//! | string | no chunk is longer than one may be, nor reaches behind the size |
//! | hash | as many fields as the size says, none of a time outside the bounds, as many without one as are counted |
//! | list | an element at each index from head to tail, and as many bytes of them as are counted |
//! | set | as many members as the size says |
//! | sorted set | as many members as the size says; of each a record under its name and one under its score |
//! | stream | see [`super::stream`] |
//!
//! Members of both orders of a sorted set are compared by sums of their hashes ([`Print`]): memory does not grow with a collection.

use xxhash_rust::xxh3::xxh3_128;

use crate::codec::element::{self, Group, split_text, zset_score_of};
use crate::codec::field::{Field, FieldTimes};
use crate::codec::{CodecError, Extra, Kind, Meta, is_long_form, order, push_stored};
use crate::shard::txn::CHUNK;
use crate::types::list::form;
use crate::types::zset::value::{read_score, read_sort};

use super::stream::Tally;

/// What is wrong with a key, in words.
pub(super) type Verdict<R = ()> = Result<R, String>;

/// A sum over the hashes of things: that of the same things is the same in any order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Print(u128);

impl Print {
    /// Adds a thing so many times. Parts are told apart by their lengths.
    pub(super) fn add(&mut self, times: u64, parts: &[&[u8]]) {
        let mut whole = Vec::with_capacity(parts.iter().map(|part| part.len() + 8).sum());
        for part in parts {
            whole.extend_from_slice(&(part.len() as u64).to_le_bytes());
            whole.extend_from_slice(part);
        }
        self.0 = self.0.wrapping_add(xxh3_128(&whole).wrapping_mul(u128::from(times)));
    }
}

/// What of the elements has to be remembered.
enum Parts {
    Chunks,
    Hash { times: Option<FieldTimes>, persist: u64 },
    List { next: i64, bytes: u64 },
    Set,
    Zset { by_name: Print, by_score: Print, sorted: u64 },
    Stream(Box<Tally>),
}

/// A collection, or a string in chunks, of which elements come by in their order.
pub(super) struct Body {
    meta: Meta,
    count: u64,
    /// It has records of a counted index.
    pub(super) is_indexed: bool,
    parts: Parts,
}

impl Body {
    /// One of which no element was seen yet.
    pub(super) fn new(meta: Meta) -> Body {
        let parts = match (meta.kind, meta.extra) {
            (Kind::String, _) => Parts::Chunks,
            (Kind::Hash, extra) => Parts::Hash { times: FieldTimes::of(&extra), persist: 0 },
            (Kind::List, Extra::List { head, .. }) => Parts::List { next: head, bytes: 0 },
            (Kind::List, _) => Parts::List { next: 0, bytes: 0 },
            (Kind::Set, _) => Parts::Set,
            (Kind::Zset, _) => Parts::Zset { by_name: Print::default(), by_score: Print::default(), sorted: 0 },
            (Kind::Stream, extra) => Parts::Stream(Box::new(Tally::new(extra))),
        };
        Body { meta, count: 0, is_indexed: false, parts }
    }

    /// The group whose elements a counted index counts, if there can be one.
    pub(super) fn counted_group(&self) -> Option<Group> {
        let exact = self.meta.encoding == 0 || self.meta.kind == Kind::Zset;
        crate::shard::memory::object::Kind::from(self.meta.kind).counted_group().filter(|_| exact)
    }

    /// The next element.
    pub(super) fn element(&mut self, group: Group, key: &[u8], value: &[u8]) -> Verdict {
        let odd = |error: CodecError| format!("element {} cannot be read: {error}", key.escape_ascii());
        let unread = |_| format!("element {} cannot be read", key.escape_ascii());
        let stored = key.get(1..).unwrap_or_default();
        match (&mut self.parts, group) {
            (Parts::Hash { .. } | Parts::Set | Parts::Zset { .. }, Group::Rank) => self.is_indexed = true,
            (Parts::Chunks, Group::StringChunk) => {
                let number = stored.first_chunk::<4>().map_or(0, |number| u32::from_be_bytes(*number));
                let end = u64::from(number) * CHUNK as u64 + value.len() as u64;
                if value.len() > CHUNK || end > self.meta.size {
                    return Err(format!(
                        "chunk {number} reaches to {end}, but the string has {} bytes",
                        self.meta.size
                    ));
                }
            }
            (Parts::Hash { times, persist }, Group::HashField) => {
                let field = Field::split(stored, value, times.is_some()).map_err(odd)?;
                is_stored_as(field.name, stored)?;
                self.count += 1;
                *persist += u64::from(field.expire_ms == 0);
                let outside = |t: &FieldTimes| !(t.lower..=t.upper).contains(&field.expire_ms);
                if field.expire_ms != 0 && times.as_ref().is_some_and(outside) {
                    return Err(format!("field {} expires outside the hash's bounds", stored.escape_ascii()));
                }
            }
            (Parts::Set, Group::SetMember) => {
                let (member, rest) = split_text(stored, value).map_err(odd)?;
                is_stored_as(member, stored)?;
                self.count += 1;
                if !rest.is_empty() {
                    return Err(format!("member {} has a value", stored.escape_ascii()));
                }
            }
            (Parts::List { next, bytes }, Group::ListElement) => {
                let index = order::index_from_bytes(stored.try_into().map_err(|_| odd(CodecError::Truncated))?);
                if index != *next {
                    return Err(format!("its element at index {next} is missing, the next one is at {index}"));
                }
                (*next, *bytes) = (next.wrapping_add(1), *bytes + form::entry_bytes(value));
                self.count += 1;
            }
            (Parts::Zset { by_name, .. }, Group::ZsetScore) => {
                let score = read_score(key, value).map_err(unread)?;
                if is_long_form(stored) {
                    is_stored_as(split_text(stored, value).map_err(odd)?.0, stored)?;
                }
                by_name.add(1, &[stored, &score.to_bytes()]);
                self.count += 1;
            }
            (Parts::Zset { by_score, sorted, .. }, Group::ZsetSort) => {
                let (score, member) = read_sort(key, value).map_err(unread)?;
                is_stored_as(member, stored.get(8..).unwrap_or_default())?;
                let mut name = Vec::new();
                zset_score_of(self.meta.encoding, member, &mut name);
                by_score.add(1, &[&name[1..], &score.to_bytes()]);
                *sorted += 1;
            }
            (Parts::Stream(tally), _) => {
                self.count += tally.element(group, stored, value)?;
            }
            _ => return Err(format!("an element of group {} does not belong to its type", group.tag())),
        }
        Ok(())
    }

    /// All elements have come by.
    pub(super) fn end(self) -> Verdict {
        let Meta { kind, encoding, size, extra, .. } = self.meta;
        let counted = encoding == 0 || kind == Kind::Zset;
        if counted && kind != Kind::String && self.count != size {
            return Err(format!("its size is {size}, but it has {} elements", self.count));
        }
        match (self.parts, extra) {
            (Parts::Hash { times: Some(times), persist }, _) => times_agree(times, persist, size),
            (Parts::List { next, bytes }, Extra::List { head, tail, bytes: noted }) => {
                if head.checked_add_unsigned(size) != Some(tail) || next != tail {
                    return Err(format!("a list of {size} elements stands from index {head} to {tail}"));
                }
                if bytes == noted { Ok(()) } else { Err(format!("its elements take {bytes} bytes, not {noted}")) }
            }
            (Parts::List { .. }, _) => Err("a list without ends".to_owned()),
            (Parts::Zset { by_name, by_score, sorted }, _) => {
                if sorted != size {
                    return Err(format!("its size is {size}, but {sorted} members are sorted by score"));
                }
                if by_name == by_score { Ok(()) } else { Err("some members have two scores".to_owned()) }
            }
            (Parts::Stream(tally), extra) => tally.end(extra, size),
            _ => Ok(()),
        }
    }
}

/// Whether a text is what its stored form was made of.
pub(super) fn is_stored_as(text: &[u8], stored: &[u8]) -> Verdict {
    let is_right = if element_is_plain(stored) { text == stored } else { is_digest_of(text, stored) };
    if is_right { Ok(()) } else { Err(format!("{} is not stored under its own name", stored.escape_ascii())) }
}

const fn element_is_plain(stored: &[u8]) -> bool {
    !is_long_form(stored)
}

fn is_digest_of(text: &[u8], stored: &[u8]) -> bool {
    let mut form = Vec::new();
    push_stored(text, &mut form);
    form == stored
}

/// What the metadata knows of the times of a hash's fields.
fn times_agree(times: FieldTimes, persist: u64, size: u64) -> Verdict {
    if times.persist != persist {
        return Err(format!("{persist} fields have no time, but {} are counted", times.persist));
    }
    let FieldTimes { lower, upper, indexed, .. } = times;
    match persist == size {
        true if (lower, upper, indexed) != (0, 0, 0) => Err("no field has a time, but the hash has bounds".to_owned()),
        false if indexed == 0 || persist == 0 && indexed > upper => {
            Err(format!("its fields are looked at at {indexed}, but expire up to {upper}"))
        }
        _ => Ok(()),
    }
}

/// The group of an element, its tag included.
pub(super) fn group_of(element: &[u8]) -> Verdict<Group> {
    let decoded = element::Element::decode(element).map_err(|error| error.to_string());
    decoded.map_err(|error| format!("element {} cannot be read: {error}", element.escape_ascii()))?;
    Group::from_tag(element[0]).map_err(|error| error.to_string())
}
