//! Streams: entries and consumer groups, between their records and RDB.

use std::collections::HashMap;

use bytes::Bytes;

use super::gather::Room;
use crate::codec::element::{stream_consumer, stream_group, stream_pel, with_text};
use crate::codec::{Extra, StreamId};
use crate::handler::{Ctx, Error, Found, OwnedArgs, Result};
use crate::meter;
use crate::rdb::file::Part;
use crate::rdb::{self, Counters, Entry, Pending};
use crate::shard::memory::core::unreadable;
use crate::shard::memory::object::Kind;
use crate::shard::txn::build::{Build, Shape};
use crate::types::stream::group::{Ledger, Stored, stored};
use crate::types::stream::handle::{Stream, Window};
use crate::types::stream::id::{MAX, MIN};
use crate::types::stream::record::{
    ConsumerRecord, ElementKey, GroupRecord, Nack, each_field, encode_entry, encode_names, entry_key, names_match,
};

/// What an element takes in a list that grows, beside the one in which it was before.
const GROWS: usize = 2;

/// The stream at a key, whole in memory.
pub(super) fn gather(ctx: &mut Ctx, key: &[u8], room: &mut Room) -> Result<rdb::Stream> {
    let Some(stream) = Stream::find(ctx, key)? else { return Ok(rdb::Stream::default()) };
    let names = stream.names(ctx)?;
    let mut entries: Vec<Entry> = Vec::new();
    stream.each(ctx, &Window::ALL, |id, value| {
        let before = entries.last().map_or(&[][..], |entry| &entry.fields[..]);
        // Room for one field takes as much as that for four, unless it is said.
        let (mut fields, mut bytes) = (Vec::with_capacity(before.len().max(1)), 0);
        let read = each_field(value, &names, |name, value| {
            // Most entries have the names of the one before.
            let name = match before.get(fields.len()) {
                Some((same, _)) if same == name => same.clone(),
                _ => Bytes::copy_from_slice(name),
            };
            bytes += name.len() + value.len();
            fields.push((name, value.to_vec()));
        });
        read.map_err(unreadable)?;
        bytes += fields.capacity() * size_of::<(Bytes, Vec<u8>)>() + (1 + fields.len()) * meter::ALLOCATION;
        room.take(bytes + GROWS * size_of::<Entry>(), 0)?;
        entries.push(Entry { id, fields });
        Ok(())
    })?;
    let mut groups = Vec::new();
    for group in Ledger::all(ctx, stream.at)? {
        groups.push(gather_group(ctx, &group, room)?);
    }
    let Stream { last, max_deleted, added, .. } = stream;
    Ok(rdb::Stream { entries, last_id: last, max_deleted, entries_added: added, groups })
}

fn gather_group(ctx: &mut Ctx, group: &Ledger, room: &mut Room) -> Result<rdb::Group> {
    let (mut consumers, mut places) = (Vec::new(), HashMap::new());
    for consumer in group.read_consumers(ctx)? {
        room.take(consumer.name().len(), 1)?;
        let active_ms = consumer.record.active_ms.map_or(-1, |ms| ms as i64);
        places.insert(consumer.name.clone(), consumers.len());
        let (name, seen_ms) = (consumer.name().to_vec(), consumer.record.seen_ms);
        consumers.push(rdb::Consumer { name, seen_ms, active_ms });
    }
    let mut pending = Vec::new();
    group.pass_pending(ctx, [MIN, MAX], |id, Nack { delivered_ms, deliveries, consumer }| {
        room.take(GROWS * size_of::<Pending>(), 0)?;
        if let Some(&consumer) = places.get(&consumer) {
            pending.push(Pending { id, delivery_ms: delivered_ms, delivery_count: deliveries, consumer });
        }
        Ok(true)
    })?;
    let GroupRecord { last, entries_read, .. } = group.record;
    Ok(rdb::Group { name: group.name().to_vec(), last_id: last, entries_read, pending, consumers })
}

/// A stream on its way to a key.
pub struct StreamBuilder {
    build: Build,
    /// The names of its entries' fields, once there are two entries.
    names: Vec<u8>,
    /// The first entry, as long as it is the only one.
    held: Option<Entry>,
    first: StreamId,
    len: u64,
    counters: Counters,
    value: Vec<u8>,
}

impl StreamBuilder {
    pub(super) fn new(build: Build) -> Self {
        let (counters, value) = Default::default();
        StreamBuilder { build, names: Vec::new(), held: None, first: MIN, len: 0, counters, value }
    }

    pub(super) fn put(&mut self, part: Part) -> Result {
        match part {
            Part::Entry(entry) if self.len == 0 => {
                (self.first, self.len) = (entry.id, 1);
                self.held = Some(entry);
                Ok(())
            }
            Part::Entry(entry) => {
                self.len += 1;
                if let Some(first) = self.held.take() {
                    self.names = encode_names(args_of(&first).as_args());
                    self.build.put(&entry_key(MIN), &self.names)?;
                    self.entry(&first)?;
                }
                self.entry(&entry)
            }
            Part::Counters(counters) => {
                self.counters = counters;
                self.held.take().map_or(Ok(()), |only| self.entry(&only))
            }
            Part::Group(group) => scatter_group(&mut self.build, &group),
            _ => Err(Error::WrongType),
        }
    }

    fn entry(&mut self, entry: &Entry) -> Result {
        let fields = args_of(entry);
        self.value.clear();
        encode_entry(fields.as_args(), names_match(&self.names, fields.as_args()), &mut self.value);
        self.build.put(&entry_key(entry.id), &self.value)
    }

    pub(super) fn finish(self, ctx: &mut Ctx, expire_ms: u64) -> Result<Option<Found>> {
        let Counters { last_id: last, max_deleted, entries_added } = self.counters;
        let extra = Extra::Stream { first: self.first, last, max_deleted, entries_added };
        self.build.finish(&mut ctx.txn, Shape { extra, expire_ms, ..Shape::new(Kind::Stream, self.len) })
    }
}

fn args_of(entry: &Entry) -> OwnedArgs {
    entry.fields.iter().flat_map(|(name, value)| [&name[..], value]).collect()
}

fn scatter_group(build: &mut Build, group: &rdb::Group) -> Result {
    let names: Vec<Stored> = group.consumers.iter().map(|consumer| stored(&consumer.name)).collect();
    let mut owned: Vec<(u64, StreamId)> = vec![(0, MIN); names.len()];
    let mut value = Vec::new();
    for entry in &group.pending {
        let (count, oldest) = &mut owned[entry.consumer];
        if *count == 0 {
            *oldest = entry.id;
        }
        *count += 1;
        value.clear();
        let consumer = names[entry.consumer].clone();
        Nack { delivered_ms: entry.delivery_ms, deliveries: entry.delivery_count, consumer }.encode(&mut value);
        build.put(&key_of(|key| stream_pel(&group.name, entry.id, key)), &value)?;
    }
    for (consumer, (pending, oldest)) in group.consumers.iter().zip(owned) {
        value.clear();
        let active_ms = u64::try_from(consumer.active_ms).ok();
        ConsumerRecord { oldest, seen_ms: consumer.seen_ms, active_ms, pending }.encode(&mut value);
        let key = key_of(|key| stream_consumer(&group.name, &consumer.name, key));
        build.put(&key, &with_text(&consumer.name, &value))?;
    }
    value.clear();
    GroupRecord {
        last: group.last_id,
        oldest: group.pending.first().map_or(MIN, |entry| entry.id),
        entries_read: group.entries_read,
        pending: group.pending.len() as u64,
        consumers: group.consumers.len() as u64,
    }
    .encode(&mut value);
    build.put(&key_of(|key| stream_group(&group.name, key)), &with_text(&group.name, &value))
}

fn key_of(write: impl FnOnce(&mut ElementKey)) -> ElementKey {
    let mut key = ElementKey::new();
    write(&mut key);
    key
}
