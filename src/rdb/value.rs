//! Which form a value has: the type byte, and behind it
//!
//! | type | value |
//! |---|---|
//! | 0 string | a string |
//! | 1 list, 2 set | `count`, strings |
//! | 3 sorted set | `count`, for each a string and the score as text (`length:1`, 253 NaN, 254 ∞, 255 −∞) |
//! | 5 sorted set 2 | `count`, for each a string and the score as eight bytes, little-endian |
//! | 10 list, 12 sorted set | a string that is a ziplist: elements; members and scores |
//! | 11 set | a string that is an intset |
//! | 14 quicklist | `count`, strings that are ziplists |
//! | 16 hash, 17 sorted set, 20 set | a string that is a listpack |
//! | 18 quicklist 2 | `count`, for each 1 and an element, or 2 and a string that is a listpack |
//! | 4, 9, 13, 16, 22 … 25 hash | [`super::hash`] |
//! | 15, 19, 21 stream | [`super::stream`] |
//! | 6, 7 | values of modules |
//! | 26, 27 stream | with what Redis 8.6 and later keep for idempotent producers |
//!
//! Type 22 is one hash in Redis's versions and another in Valkey's, hence the version.

use hashbrown::HashSet;

use super::element::Element;
use super::length::{Room, Source, push_len, push_string, read_len, read_string, unpack};
use super::stream::StreamForm;
use super::{Dialect, RdbError, Value, hash, intset, listpack, stream, ziplist};
use crate::util::num;

/// The first version of Valkey's own.
pub(super) const VERSION_VALKEY: u16 = 80;

/// Why elements that are to be pairs are none.
pub(super) const ODD: RdbError = RdbError::Corrupt("odd number of elements");

const QUICKLIST_PLAIN: u64 = 1;
const QUICKLIST_PACKED: u64 = 2;

const SCORE_NAN: u8 = 253;
const SCORE_INFINITE: u8 = 254;
const SCORE_NEGATIVE_INFINITE: u8 = 255;

/// A form in which values are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form(FormKind);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FormKind {
    String,
    List,
    Set,
    Zset,
    Hash,
    HashExpiring(Dialect),
    Stream(StreamForm),
}

impl Form {
    /// The form of `value` that the oldest servers of a dialect read.
    pub fn of(value: &Value, dialect: Dialect) -> Form {
        Form(match value {
            Value::String(_) => FormKind::String,
            Value::List(_) => FormKind::List,
            Value::Set(_) => FormKind::Set,
            Value::Zset(_) => FormKind::Zset,
            Value::Hash(fields) if fields.iter().any(|field| field.expire_ms != 0) => FormKind::HashExpiring(dialect),
            Value::Hash(_) => FormKind::Hash,
            Value::Stream(stream) => FormKind::Stream(StreamForm::of(stream)),
        })
    }

    /// The type byte.
    pub const fn tag(self) -> u8 {
        match self.0 {
            FormKind::String => 0,
            FormKind::List => 1,
            FormKind::Set => 2,
            FormKind::Hash => 4,
            FormKind::Zset => 5,
            FormKind::Stream(form) => form.tag(),
            FormKind::HashExpiring(Dialect::Valkey) => 22,
            FormKind::HashExpiring(Dialect::Redis) => 24,
        }
    }

    /// The lowest RDB version that has it and whose servers know RESTORE.
    pub const fn version(self) -> u16 {
        match self.0 {
            FormKind::String | FormKind::List | FormKind::Set | FormKind::Hash => 6,
            FormKind::Zset => 8,
            FormKind::Stream(StreamForm::Listpacks) => 9,
            FormKind::Stream(StreamForm::Listpacks2) => 10,
            FormKind::Stream(StreamForm::Listpacks3) => 11,
            FormKind::HashExpiring(Dialect::Redis) => 12,
            FormKind::HashExpiring(Dialect::Valkey) => VERSION_VALKEY,
        }
    }
}

/// Reads a value of a type byte and RDB version from the front of `bytes`, and answers what is left of them. Fields
/// that have ended are among those of a hash.
pub fn read(tag: u8, version: u16, bytes: &[u8]) -> Result<(Value, &[u8]), RdbError> {
    read_within(tag, version, bytes, usize::MAX)
}

/// The same, if the value takes no more than `room` bytes of memory, about.
pub(super) fn read_within(tag: u8, version: u16, bytes: &[u8], room: usize) -> Result<(Value, &[u8]), RdbError> {
    let mut source = Source::new(bytes, room);
    let from = &mut source;
    let value = match tag {
        0 => Value::String(read_string(from)?),
        1 => Value::List(read_strings(from)?),
        2 => Value::Set(read_strings(from)?),
        3 => Value::Zset(read_zset(from, read_score_text)?),
        5 => Value::Zset(read_zset(from, read_score_binary)?),
        6 | 7 => return Err(RdbError::Unsupported("value of a module")),
        10 => Value::List(unpack(from, ziplist::strings)?),
        11 => Value::Set(unpack(from, intset::strings)?),
        12 => Value::Zset(scored(unpack(from, ziplist::strings)?)?),
        14 => Value::List(read_quicklist(from)?),
        15 => Value::Stream(Box::new(stream::read(from, StreamForm::Listpacks)?)),
        17 => Value::Zset(unpack(from, |bytes, room| listpack::pairs(bytes, room, read_scored))?),
        18 => Value::List(read_quicklist_2(from)?),
        19 => Value::Stream(Box::new(stream::read(from, StreamForm::Listpacks2)?)),
        20 => Value::Set(unpack(from, listpack::strings)?),
        21 => Value::Stream(Box::new(stream::read(from, StreamForm::Listpacks3)?)),
        4 | 9 | 13 | 16 => Value::Hash(hash::read(tag, from)?),
        22 if version >= VERSION_VALKEY => Value::Hash(hash::read_valkey(from)?),
        22..=25 if version < VERSION_VALKEY => Value::Hash(hash::read(tag, from)?),
        26 | 27 if version < VERSION_VALKEY => return Err(RdbError::Unsupported("stream with idempotent producers")),
        _ => return Err(RdbError::UnknownType(tag)),
    };
    check(&value)?;
    Ok((value, source.rest()))
}

/// A collection without elements does not exist, and no element is in a set twice. Streams have checked themselves.
fn check(value: &Value) -> Result<(), RdbError> {
    let len = match value {
        Value::String(_) | Value::Stream(_) => return Ok(()),
        Value::List(elements) => elements.len(),
        Value::Set(members) => distinct(members.iter().map(Vec::as_slice))?,
        Value::Zset(members) => distinct(members.iter().map(|(member, _)| member.as_slice()))?,
        Value::Hash(fields) => distinct(fields.iter().map(|field| field.name.as_slice()))?,
    };
    if len == 0 { Err(RdbError::Empty) } else { Ok(()) }
}

/// How many there are, if no two are the same.
pub(super) fn distinct<'a>(all: impl Iterator<Item = &'a [u8]>) -> Result<usize, RdbError> {
    let mut seen = HashSet::with_capacity(all.size_hint().0);
    for one in all {
        if !seen.insert(one) {
            return Err(RdbError::Corrupt("element twice"));
        }
    }
    Ok(seen.len())
}

fn read_strings(source: &mut Source<'_>) -> Result<Vec<Vec<u8>>, RdbError> {
    let count = read_len(source)?;
    let mut all = Vec::new();
    for _ in 0..count {
        all.push(read_string(source)?);
    }
    Ok(all)
}

fn read_zset(
    source: &mut Source<'_>,
    read_score: fn(&mut Source<'_>) -> Result<f64, RdbError>,
) -> Result<Vec<(Vec<u8>, f64)>, RdbError> {
    let count = read_len(source)?;
    let mut all = Vec::new();
    for _ in 0..count {
        all.push((read_string(source)?, read_score(source)?));
    }
    Ok(all)
}

pub(super) fn read_score_binary(source: &mut Source<'_>) -> Result<f64, RdbError> {
    let score = f64::from_bits(source.u64_le()?);
    if score.is_nan() { Err(RdbError::Corrupt("score")) } else { Ok(score) }
}

pub(super) fn read_score_text(source: &mut Source<'_>) -> Result<f64, RdbError> {
    match source.u8()? {
        SCORE_NAN => Err(RdbError::Corrupt("score")),
        SCORE_INFINITE => Ok(f64::INFINITY),
        SCORE_NEGATIVE_INFINITE => Ok(f64::NEG_INFINITY),
        len => parse_score(source.bytes(usize::from(len))?),
    }
}

fn parse_score(text: &[u8]) -> Result<f64, RdbError> {
    num::parse_double(text).ok_or(RdbError::Corrupt("score"))
}

/// A member and its score in a listpack.
fn read_scored(member: Element<'_>, score: Element<'_>, room: &mut Room) -> Result<(Vec<u8>, f64), RdbError> {
    let score = match score {
        Element::Int(int) => int as f64,
        Element::Text(text) => parse_score(text)?,
    };
    Ok((member.into_string(room)?, score))
}

/// Members and scores from strings in turn.
fn scored(strings: Vec<Vec<u8>>) -> Result<Vec<(Vec<u8>, f64)>, RdbError> {
    pairs(strings)?.map(|(member, score)| Ok((member, parse_score(&score)?))).collect()
}

/// Strings two by two.
pub(super) fn pairs(strings: Vec<Vec<u8>>) -> Result<impl Iterator<Item = (Vec<u8>, Vec<u8>)>, RdbError> {
    if strings.len() % 2 == 1 {
        return Err(ODD);
    }
    let mut strings = strings.into_iter();
    Ok(std::iter::from_fn(move || strings.next().zip(strings.next())))
}

fn read_quicklist(source: &mut Source<'_>) -> Result<Vec<Vec<u8>>, RdbError> {
    let count = read_len(source)?;
    let mut all = Vec::new();
    for _ in 0..count {
        all.append(&mut unpack(source, ziplist::strings)?);
    }
    Ok(all)
}

fn read_quicklist_2(source: &mut Source<'_>) -> Result<Vec<Vec<u8>>, RdbError> {
    let count = read_len(source)?;
    let mut all = Vec::new();
    for _ in 0..count {
        all.append(&mut read_quicklist_2_node(source)?);
    }
    Ok(all)
}

/// The elements of a node: many in a listpack, or one that is long.
pub(super) fn read_quicklist_2_node(source: &mut Source<'_>) -> Result<Vec<Vec<u8>>, RdbError> {
    match read_len(source)? {
        QUICKLIST_PLAIN => match read_string(source)? {
            // Only long elements are on their own.
            empty if empty.is_empty() => Err(RdbError::Corrupt("quicklist")),
            element => Ok(vec![element]),
        },
        QUICKLIST_PACKED => unpack(source, listpack::strings),
        _ => Err(RdbError::Corrupt("quicklist")),
    }
}

/// Appends a value in a form, which must be one of [`Form::of`] for this value; its type byte is the caller's to write.
pub fn write(value: &Value, form: Form, out: &mut Vec<u8>) {
    match value {
        Value::String(text) => push_string(text, out),
        Value::List(strings) | Value::Set(strings) => {
            push_len(strings.len() as u64, out);
            strings.iter().for_each(|text| push_string(text, out));
        }
        Value::Zset(members) => {
            push_len(members.len() as u64, out);
            for (member, score) in members {
                push_string(member, out);
                out.extend_from_slice(&score.to_bits().to_le_bytes());
            }
        }
        Value::Hash(fields) => match form.0 {
            FormKind::HashExpiring(Dialect::Redis) => hash::write_expiring(fields, out),
            FormKind::HashExpiring(Dialect::Valkey) => hash::write_valkey(fields, out),
            _ => hash::write(fields, out),
        },
        Value::Stream(stream) => match form.0 {
            FormKind::Stream(form) => stream::write(stream, form, out),
            _ => stream::write(stream, StreamForm::Listpacks3, out),
        },
    }
}
