//! The forms of a stream; the consumer groups. An id in words is two lengths, one in bytes sixteen, big-endian.
//!
//! | part | from type |
//! |---|---|
//! | `count` of blocks, for each a string that is an id's bytes, and a string that is a listpack ([`super::stream_block`]) | 15 |
//! | `length`, `last id` in words | 15 |
//! | `first id`, `highest deleted id` in words, `entries added` | 19 |
//! | `count` of groups, for each the group | 15 |
//!
//! A group:
//!
//! | part | from type |
//! |---|---|
//! | name (a string), `last id` in words | 15 |
//! | `entries read`, 2⁶⁴−1 for unknown | 19 |
//! | `count` of pending entries, for each its id's bytes, `delivery time:8`, `delivery count` | 15 |
//! | `count` of consumers, for each its name, `seen time:8`, … | 15 |
//! | … `active time:8`, … | 21 |
//! | … `count` of its pending entries, for each the id's bytes | 15 |
//!
//! Times are Unix milliseconds, signed, little-endian. Invariant: each pending entry of a group is that of exactly one
//! of its consumers.

use super::length::{Source, push_len, push_raw, push_string, read_len, read_string, unpack};
use super::stream_block;
use super::value::distinct;
use super::{Consumer, Counters, Entry, Group, Pending, RdbError, Stream};
use crate::codec::StreamId;

/// Which parts a stream has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StreamForm {
    /// Type 15: neither deletions nor counts, which are guessed.
    Listpacks,
    /// Type 19: not when a consumer was active.
    Listpacks2,
    /// Type 21: all.
    Listpacks3,
}

impl StreamForm {
    /// The type byte.
    pub(super) const fn tag(self) -> u8 {
        match self {
            StreamForm::Listpacks => 15,
            StreamForm::Listpacks2 => 19,
            StreamForm::Listpacks3 => 21,
        }
    }

    /// The oldest form that loses nothing.
    pub(super) fn of(stream: &Stream) -> StreamForm {
        let groups = &stream.groups;
        let is_known = |consumer: &Consumer| consumer.active_ms == consumer.seen_ms as i64;
        if !groups.iter().flat_map(|group| &group.consumers).all(is_known) {
            return StreamForm::Listpacks3;
        }
        let untouched =
            stream.entries_added == stream.entries.len() as u64 && stream.max_deleted == StreamId::default();
        let guess = |group: &Group| guess_entries_read(Span::of(stream), group.last_id);
        if untouched && groups.iter().all(|group| group.entries_read == guess(group)) {
            StreamForm::Listpacks
        } else {
            StreamForm::Listpacks2
        }
    }
}

/// How many entries a stream has, and between which ids.
#[derive(Clone, Copy)]
pub(super) struct Span {
    pub(super) len: u64,
    pub(super) first_id: StreamId,
    pub(super) last_id: StreamId,
}

impl Span {
    fn of(stream: &Stream) -> Span {
        Span { len: stream.entries.len() as u64, first_id: stream.first_id(), last_id: stream.last_id }
    }
}

/// What Redis takes for the entries that a group has read up to `id`, in a stream from which none was ever deleted.
fn guess_entries_read(Span { len, first_id, last_id }: Span, id: StreamId) -> i64 {
    match len {
        0 => 0,
        len if id == last_id => len as i64,
        _ if id > last_id || id > first_id => -1,
        _ if id == first_id => 1,
        _ => 0,
    }
}

/// Reads a stream.
pub(super) fn read(source: &mut Source<'_>, form: StreamForm) -> Result<Stream, RdbError> {
    let mut entries = Vec::new();
    for _ in 0..read_len(source)? {
        read_block(source, &mut entries)?;
    }
    let last = entries.last().map_or(StreamId::default(), |entry| entry.id);
    let (len, counters) = read_counters(source, form, (entries.len() as u64, last))?;
    let mut stream = counters.with(entries);
    let span = Span { len, ..Span::of(&stream) };
    for _ in 0..read_len(source)? {
        let group = read_group(source, form, span)?;
        stream.groups.push(group);
    }
    distinct(stream.groups.iter().map(|group| group.name.as_slice()))?;
    Ok(stream)
}

/// Reads a block of entries, which come behind those that there are.
pub(super) fn read_block(source: &mut Source<'_>, entries: &mut Vec<Entry>) -> Result<(), RdbError> {
    let first_id = read_string(source)?;
    let first_id = first_id.try_into().map_err(|_| RdbError::Corrupt("id of a stream's block"))?;
    let first_id = StreamId::from_bytes(first_id);
    unpack(source, |bytes, room| stream_block::read(first_id, bytes, entries, room))
}

/// Reads how many entries there are, and what else is known of them; there were so many, up to that id.
pub(super) fn read_counters(
    source: &mut Source<'_>,
    form: StreamForm,
    (entries, last): (u64, StreamId),
) -> Result<(u64, Counters), RdbError> {
    let len = read_len(source)?;
    let mut counters = Counters { last_id: read_id(source)?, max_deleted: StreamId::default(), entries_added: len };
    if form >= StreamForm::Listpacks2 {
        // Follows from the entries, which is why it is not kept.
        read_id(source)?;
        counters.max_deleted = read_id(source)?;
        counters.entries_added = read_len(source)?;
    }
    if len != entries
        || counters.entries_added < len
        || i64::try_from(counters.entries_added).is_err()
        || last.max(counters.max_deleted) > counters.last_id
    {
        return Err(RdbError::Corrupt("counters of a stream"));
    }
    Ok((len, counters))
}

fn read_id(source: &mut Source<'_>) -> Result<StreamId, RdbError> {
    Ok(StreamId { ms: read_len(source)?, seq: read_len(source)? })
}

fn read_time(source: &mut Source<'_>) -> Result<u64, RdbError> {
    let time = source.int_le::<8>()?;
    u64::try_from(time).map_err(|_| RdbError::Corrupt("time in a group"))
}

pub(super) fn read_group(source: &mut Source<'_>, form: StreamForm, span: Span) -> Result<Group, RdbError> {
    let name = read_string(source)?;
    let last_id = read_id(source)?;
    let entries_read = if form >= StreamForm::Listpacks2 {
        read_len(source)?.cast_signed()
    } else {
        guess_entries_read(span, last_id)
    };
    if entries_read < -1 {
        return Err(RdbError::Corrupt("entries that a group has read"));
    }
    let mut pending = read_pending(source)?;
    let consumers = read_consumers(source, form, &mut pending)?;
    if pending.iter().any(|entry| entry.consumer == NOBODY) {
        return Err(RdbError::Corrupt("pending entry without consumer"));
    }
    Ok(Group { name, last_id, entries_read, pending, consumers })
}

/// Stands for the consumer of an entry until it is found.
const NOBODY: usize = usize::MAX;

fn read_pending(source: &mut Source<'_>) -> Result<Vec<Pending>, RdbError> {
    let mut pending = Vec::new();
    for _ in 0..read_len(source)? {
        pending.push(Pending {
            id: StreamId::from_bytes(source.array()?),
            delivery_ms: read_time(source)?,
            delivery_count: read_len(source)?,
            consumer: NOBODY,
        });
    }
    pending.sort_by_key(|entry| entry.id);
    if pending.windows(2).any(|two| two[0].id == two[1].id) {
        return Err(RdbError::Corrupt("pending entry twice"));
    }
    Ok(pending)
}

fn read_consumers(
    source: &mut Source<'_>,
    form: StreamForm,
    pending: &mut [Pending],
) -> Result<Vec<Consumer>, RdbError> {
    let mut consumers = Vec::new();
    for _ in 0..read_len(source)? {
        let name = read_string(source)?;
        let seen_ms = read_time(source)?;
        let active_ms = if form >= StreamForm::Listpacks3 { source.int_le::<8>()? } else { seen_ms.cast_signed() };
        if active_ms < -1 {
            return Err(RdbError::Corrupt("time in a group"));
        }
        for _ in 0..read_len(source)? {
            let id = StreamId::from_bytes(source.array()?);
            let found = pending.binary_search_by_key(&id, |entry| entry.id).ok().and_then(|at| pending.get_mut(at));
            match found {
                Some(entry) if entry.consumer == NOBODY => entry.consumer = consumers.len(),
                _ => return Err(RdbError::Corrupt("pending entry of a consumer")),
            }
        }
        consumers.push(Consumer { name, seen_ms, active_ms });
    }
    distinct(consumers.iter().map(|consumer| consumer.name.as_slice()))?;
    Ok(consumers)
}

/// Appends a stream in a form, losing what it has no room for.
pub(super) fn write(stream: &Stream, form: StreamForm, out: &mut Vec<u8>) {
    let blocks = stream_block::blocks(&stream.entries);
    push_len(blocks.len() as u64, out);
    for block in blocks {
        push_raw(&block[0].id.to_bytes(), out);
        push_raw(&stream_block::write(block), out);
    }
    push_counters((stream.entries.len() as u64, stream.first_id()), &stream.counters(), form, out);
    push_len(stream.groups.len() as u64, out);
    for group in &stream.groups {
        write_group(group, form, out);
    }
}

/// Appends how many entries there are, of which this is the first, and what else is known of them.
pub(super) fn push_counters(
    (len, first_id): (u64, StreamId),
    counters: &Counters,
    form: StreamForm,
    out: &mut Vec<u8>,
) {
    push_len(len, out);
    push_id(counters.last_id, out);
    if form >= StreamForm::Listpacks2 {
        push_id(first_id, out);
        push_id(counters.max_deleted, out);
        push_len(counters.entries_added, out);
    }
}

fn push_id(id: StreamId, out: &mut Vec<u8>) {
    push_len(id.ms, out);
    push_len(id.seq, out);
}

/// Appends a consumer group.
pub(super) fn write_group(group: &Group, form: StreamForm, out: &mut Vec<u8>) {
    push_string(&group.name, out);
    push_id(group.last_id, out);
    if form >= StreamForm::Listpacks2 {
        push_len(group.entries_read.cast_unsigned(), out);
    }
    push_len(group.pending.len() as u64, out);
    let mut of_consumers = vec![Vec::new(); group.consumers.len()];
    for entry in &group.pending {
        out.extend_from_slice(&entry.id.to_bytes());
        out.extend_from_slice(&entry.delivery_ms.to_le_bytes());
        push_len(entry.delivery_count, out);
        of_consumers[entry.consumer].push(entry.id);
    }
    push_len(group.consumers.len() as u64, out);
    for (consumer, ids) in group.consumers.iter().zip(of_consumers) {
        push_string(&consumer.name, out);
        out.extend_from_slice(&consumer.seen_ms.to_le_bytes());
        if form >= StreamForm::Listpacks3 {
            out.extend_from_slice(&consumer.active_ms.to_le_bytes());
        }
        push_len(ids.len() as u64, out);
        ids.iter().for_each(|id| out.extend_from_slice(&id.to_bytes()));
    }
}
