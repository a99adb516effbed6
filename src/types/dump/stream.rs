//! Streams: entries and consumer groups, between their records and RDB.

use std::collections::HashMap;

use bytes::Bytes;

use super::gather::Room;
use crate::codec::element::{stream_consumer, stream_group, stream_pel, with_text};
use crate::codec::{Extra, StreamId};
use crate::handler::{Ctx, Found, OwnedArgs, Result};
use crate::rdb::{self, Entry, Pending};
use crate::shard::memory::object::Kind;
use crate::shard::txn::build::{Build, Shape};
use crate::types::stream::group::{Ledger, Stored, stored};
use crate::types::stream::handle::Stream;
use crate::types::stream::id::{MAX, MIN};
use crate::types::stream::record::{
    ConsumerRecord, ElementKey, GroupRecord, Nack, each_field, encode_entry, encode_names, entry_key, names_match,
};

/// The stream at a key, whole in memory.
pub(super) fn gather(ctx: &mut Ctx, key: &[u8], room: &mut Room) -> Result<rdb::Stream> {
    let Some(stream) = Stream::find(ctx, key)? else { return Ok(rdb::Stream::default()) };
    let names = stream.names(ctx)?;
    let mut entries: Vec<Entry> = Vec::new();
    for entry in stream.entries(ctx, MIN, MAX, false)? {
        let (id, value) = entry?;
        let (mut fields, mut bytes) = (Vec::new(), 0);
        let before = entries.last().map_or(&[][..], |entry| &entry.fields[..]);
        let read = each_field(&value, &names, |name, value| {
            // Most entries have the names of the one before.
            let name = match before.get(fields.len()) {
                Some((same, _)) if same == name => same.clone(),
                _ => Bytes::copy_from_slice(name),
            };
            bytes += name.len() + value.len();
            fields.push((name, value.to_vec()));
        });
        read.map_err(|e| stream.corrupt(ctx, e))?;
        room.take(bytes, fields.len())?;
        entries.push(Entry { id, fields });
    }
    let mut groups = Vec::new();
    for group in Ledger::all(ctx, stream.at)? {
        groups.push(gather_group(ctx, &group, room)?);
    }
    let Stream { last, max_deleted, added, .. } = stream;
    Ok(rdb::Stream { entries, last_id: last, max_deleted, entries_added: added, groups })
}

fn gather_group(ctx: &Ctx, group: &Ledger, room: &mut Room) -> Result<rdb::Group> {
    let (mut consumers, mut places) = (Vec::new(), HashMap::new());
    for consumer in group.read_consumers(ctx)? {
        room.take(consumer.name().len(), 1)?;
        let active_ms = consumer.record.active_ms.map_or(-1, |ms| ms as i64);
        places.insert(consumer.name.clone(), consumers.len());
        let (name, seen_ms) = (consumer.name().to_vec(), consumer.record.seen_ms);
        consumers.push(rdb::Consumer { name, seen_ms, active_ms });
    }
    let mut pending = Vec::new();
    for entry in group.pending(ctx, MIN, MAX, false)? {
        let (id, Nack { delivered_ms, deliveries, consumer }) = entry?;
        room.take(size_of::<Pending>(), 0)?;
        let Some(&consumer) = places.get(&consumer) else { continue };
        pending.push(Pending { id, delivery_ms: delivered_ms, delivery_count: deliveries, consumer });
    }
    let GroupRecord { last, entries_read, .. } = group.record;
    Ok(rdb::Group { name: group.name().to_vec(), last_id: last, entries_read, pending, consumers })
}

/// Makes a key hold a stream.
pub(super) fn scatter(ctx: &mut Ctx, key: &[u8], stream: rdb::Stream, expire_ms: u64) -> Result<Option<Found>> {
    let mut build = Build::new(&ctx.txn, ctx.ns(), key)?;
    let (first, len) = (stream.first_id(), stream.entries.len() as u64);
    let names = match &stream.entries[..] {
        [entry, _, ..] => encode_names(args_of(entry).as_args()),
        _ => Vec::new(),
    };
    if !names.is_empty() {
        build.put(&entry_key(MIN), &names)?;
    }
    let pending: usize = stream.groups.iter().map(|group| group.pending.len() + group.consumers.len()).sum();
    ctx.txn.rest_for(ctx.ns(), stream.entries.len() + pending, || {
        let mut value = Vec::new();
        for entry in stream.entries {
            let fields = args_of(&entry);
            value.clear();
            encode_entry(fields.as_args(), names_match(&names, fields.as_args()), &mut value);
            build.put(&entry_key(entry.id), &value)?;
        }
        stream.groups.into_iter().try_for_each(|group| scatter_group(&mut build, &group))
    })?;
    let (last, max_deleted, entries_added) = (stream.last_id, stream.max_deleted, stream.entries_added);
    let extra = Extra::Stream { first, last, max_deleted, entries_added };
    build.finish(&mut ctx.txn, Shape { extra, expire_ms, ..Shape::new(Kind::Stream, len) })
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
