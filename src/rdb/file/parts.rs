//! Values that are too big to be had as a whole, piece by piece.
//!
//! A piece is an element, or what holds many of them in one string: a node of a list, a block of a stream, also a packed
//! collection, which is small unless the limits for it were set very high. A consumer group is one piece with all its
//! pending entries.
//!
//! What is not looked at: whether an element comes twice. Whoever keeps them does.

use std::io::Read;

use super::extent::{skip, skip_group, skip_score_text, skip_string, skip_timed};
use super::{FileError, Input, decode};
use crate::codec::{Kind, StreamId};
use crate::rdb::length::{LZF, Source, read_string, unpack};
use crate::rdb::stream::{Span, StreamForm, read_block, read_counters, read_group};
use crate::rdb::value::{VERSION_VALKEY, read_quicklist_2_node, read_score_binary, read_score_text};
use crate::rdb::{Counters, Entry, Field, Group, RdbError, Value, hash, lzf, ziplist};

/// Bytes of a long string that come at once.
const TEXT: usize = if cfg!(test) { 1 << 10 } else { 64 << 10 };

/// A piece of a value.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    /// The next bytes of a string.
    Text(Vec<u8>),
    /// The next element of a list.
    Element(Vec<u8>),
    /// A member of a set.
    Member(Vec<u8>),
    /// A member of a sorted set.
    Scored(Vec<u8>, f64),
    /// A field of a hash.
    Field(Field),
    /// The next entry of a stream.
    Entry(Entry),
    /// What is known of a stream, behind its entries.
    Counters(Counters),
    /// A consumer group, behind that.
    Group(Group),
}

/// What a type byte stands for; `None` for what cannot be read.
pub const fn kind_of(tag: u8, version: u16) -> Option<Kind> {
    Some(match tag {
        0 => Kind::String,
        1 | 10 | 14 | 18 => Kind::List,
        2 | 11 | 20 => Kind::Set,
        3 | 5 | 12 | 17 => Kind::Zset,
        4 | 9 | 13 | 16 | 22 => Kind::Hash,
        23..=25 if version < VERSION_VALKEY => Kind::Hash,
        15 | 19 | 21 => Kind::Stream,
        _ => return None,
    })
}

/// Whether a type byte is one of hashes whose fields may have times.
pub const fn may_expire_by_field(tag: u8) -> bool {
    matches!(tag, 22..=25)
}

/// Where the pieces go; false: no more of them.
type Each<'a> = &'a mut dyn FnMut(Part) -> bool;

fn give(part: Part, each: Each<'_>) -> Result<(), FileError> {
    if each(part) { Ok(()) } else { Err(FileError::GivenUp) }
}

/// Reads a value of a type byte and version. No piece takes more than `room` bytes of memory, about.
pub(super) fn read<R: Read>(
    input: &mut Input<R>,
    (tag, version): (u8, u16),
    room: usize,
    each: Each<'_>,
) -> Result<(), FileError> {
    let mut pieces = Pieces { input, room };
    match tag {
        0 => pieces.text(each),
        1 => pieces.each(skip_string, |from| Ok(vec![Part::Element(read_string(from)?)]), each),
        2 => pieces.each(skip_string, |from| Ok(vec![Part::Member(read_string(from)?)]), each),
        3 => {
            let extent = |input: &mut Input<R>| {
                skip_string(input)?;
                skip_score_text(input)
            };
            pieces.each(extent, |from| Ok(vec![Part::Scored(read_string(from)?, read_score_text(from)?)]), each)
        }
        5 => {
            let extent = |input: &mut Input<R>| {
                skip_string(input)?;
                input.bytes(8).map(drop)
            };
            pieces.each(extent, |from| Ok(vec![Part::Scored(read_string(from)?, read_score_binary(from)?)]), each)
        }
        4 => {
            let extent = |input: &mut Input<R>| {
                skip_string(input)?;
                skip_string(input)
            };
            pieces.each(extent, |from| Ok(vec![field(read_string(from)?, read_string(from)?, 0)]), each)
        }
        14 => pieces.each(skip_string, |from| Ok(elements(unpack(from, ziplist::strings)?)), each),
        18 => {
            let extent = |input: &mut Input<R>| {
                input.len()?;
                skip_string(input)
            };
            pieces.each(extent, |from| Ok(elements(read_quicklist_2_node(from)?)), each)
        }
        15 => pieces.stream(StreamForm::Listpacks, each),
        19 => pieces.stream(StreamForm::Listpacks2, each),
        21 => pieces.stream(StreamForm::Listpacks3, each),
        22 if version >= VERSION_VALKEY => {
            let extent = |input: &mut Input<R>| {
                skip_string(input)?;
                skip_string(input)?;
                input.bytes(8).map(drop)
            };
            pieces.each(extent, |from| Ok(vec![Part::Field(hash::read_valkey_field(from)?)]), each)
        }
        22 => pieces.each(skip_timed, |from| Ok(vec![Part::Field(hash::read_timed_field(from, None)?)]), each),
        24 => {
            let least_ms = u64::from_le_bytes(pieces.input.array()?);
            let read = |from: &mut Source<'_>| Ok(vec![Part::Field(hash::read_timed_field(from, Some(least_ms))?)]);
            pieces.each(skip_timed, read, each)
        }
        _ => pieces.packed(tag, version, each),
    }
}

fn field(name: Vec<u8>, value: Vec<u8>, expire_ms: u64) -> Part {
    Part::Field(Field { name, value, expire_ms })
}

fn elements(strings: Vec<Vec<u8>>) -> Vec<Part> {
    strings.into_iter().map(Part::Element).collect()
}

struct Pieces<'i, R> {
    input: &'i mut Input<R>,
    room: usize,
}

impl<R: Read> Pieces<'_, R> {
    /// A number of pieces with that number in front.
    fn each(
        &mut self,
        mut extent: impl FnMut(&mut Input<R>) -> Result<(), FileError>,
        read: impl Fn(&mut Source<'_>) -> Result<Vec<Part>, RdbError>,
        each: Each<'_>,
    ) -> Result<(), FileError> {
        let mut is_empty = true;
        for _ in 0..self.count()? {
            let parts = self.piece(&mut extent, &read)?;
            // A list may have nodes without elements.
            is_empty &= parts.is_empty();
            parts.into_iter().try_for_each(|part| give(part, each))?;
        }
        if is_empty { Err(RdbError::Empty.into()) } else { Ok(()) }
    }

    fn count(&mut self) -> Result<u64, FileError> {
        self.input.release();
        self.input.len()
    }

    /// One piece: goes past it, then reads what was gone past.
    fn piece<T>(
        &mut self,
        extent: impl FnOnce(&mut Input<R>) -> Result<(), FileError>,
        read: impl FnOnce(&mut Source<'_>) -> Result<T, RdbError>,
    ) -> Result<T, FileError> {
        self.input.release();
        extent(self.input).map_err(too_large)?;
        Ok(read(&mut Source::new(self.input.held(), self.room))?)
    }

    /// A collection in one string.
    fn packed(&mut self, tag: u8, version: u16, each: Each<'_>) -> Result<(), FileError> {
        self.input.release();
        skip(self.input, tag, version).map_err(too_large)?;
        let mut give = |part| give(part, each);
        match decode(tag, version, self.input.held(), self.room)? {
            Value::List(all) => all.into_iter().try_for_each(|one| give(Part::Element(one))),
            Value::Set(all) => all.into_iter().try_for_each(|one| give(Part::Member(one))),
            Value::Zset(all) => all.into_iter().try_for_each(|(member, score)| give(Part::Scored(member, score))),
            Value::Hash(all) => all.into_iter().try_for_each(|field| give(Part::Field(field))),
            Value::String(_) | Value::Stream(_) => unreachable!("they have pieces"),
        }
    }

    /// A string, plain or compressed.
    fn text(&mut self, each: Each<'_>) -> Result<(), FileError> {
        self.input.release();
        let first = self.input.u8()?;
        if first == LZF {
            return self.compressed(each);
        }
        let mut left = self.input.len_behind(first)?;
        while left > 0 {
            self.input.release();
            let step = left.min(TEXT as u64);
            give(Part::Text(self.input.bytes(step as usize)?.to_vec()), each)?;
            left -= step;
        }
        Ok(())
    }

    fn compressed(&mut self, each: Each<'_>) -> Result<(), FileError> {
        let end = self.input.len()?;
        let len = self.input.len()?;
        let end = self.input.offset().saturating_add(end);
        let (mut window, mut done) = (Vec::new(), 0u64);
        while self.input.offset() < end {
            self.input.release();
            let control = self.input.u8()?;
            let rest = self.input.bytes(lzf::behind(control))?;
            lzf::step(control, rest, &mut window)?;
            if window.len() >= TEXT + lzf::WINDOW {
                done += TEXT as u64;
                let rest = window.split_off(TEXT);
                give(Part::Text(std::mem::replace(&mut window, rest)), each)?;
            }
        }
        done += window.len() as u64;
        if self.input.offset() != end || done != len {
            return Err(RdbError::Corrupt("compressed string").into());
        }
        give(Part::Text(window), each)
    }

    fn stream(&mut self, form: StreamForm, each: Each<'_>) -> Result<(), FileError> {
        let (mut entries, mut given, mut first_id) = (Vec::<Entry>::new(), 0, None);
        let extent = |input: &mut Input<R>| {
            skip_string(input)?;
            skip_string(input)
        };
        for _ in 0..self.count()? {
            self.piece(extent, |from| read_block(from, &mut entries))?;
            first_id = first_id.or(entries.first().map(|entry| entry.id));
            // The last one stays, as those that follow are compared with it.
            let whole = entries.len().saturating_sub(1);
            given += whole as u64;
            entries.drain(..whole).try_for_each(|entry| give(Part::Entry(entry), each))?;
        }
        let last = entries.last().map_or(StreamId::default(), |entry| entry.id);
        given += entries.len() as u64;
        entries.drain(..).try_for_each(|entry| give(Part::Entry(entry), each))?;
        let counters = |input: &mut Input<R>| {
            let words = if form >= StreamForm::Listpacks2 { 8 } else { 3 };
            (0..words).try_for_each(|_| input.len().map(drop))
        };
        let (len, counters) = self.piece(counters, |from| read_counters(from, form, (given, last)))?;
        give(Part::Counters(counters), each)?;
        let span = Span { len, first_id: first_id.unwrap_or_default(), last_id: counters.last_id };
        let since = match form {
            StreamForm::Listpacks => 0,
            StreamForm::Listpacks2 => 1,
            StreamForm::Listpacks3 => 2,
        };
        let mut names = hashbrown::HashSet::new();
        for _ in 0..self.count()? {
            let group = self.piece(|input| skip_group(input, since), |from| read_group(from, form, span))?;
            if !names.insert(group.name.clone()) {
                return Err(RdbError::Corrupt("element twice").into());
            }
            give(Part::Group(group), each)?;
        }
        Ok(())
    }
}

/// A piece that is too big is so for good.
pub(super) fn too_large(error: FileError) -> FileError {
    match error {
        FileError::Big => RdbError::TooLarge.into(),
        error => error,
    }
}
