//! dump.rdb of everything: from partitions at one moment, record by record. Memory is bounded by the longest element, and by the
//! pending entries of one consumer group.
//!
//! A count stands in front of the elements that it counts. Where the metadata does not tell it – fields may have expired, blind
//! sets do not count – the elements are gone through twice: between the two nothing can change.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

use bytes::Bytes;

use crate::codec::element::{Element, Group as Tag, list_element, split_text};
use crate::codec::field::{Field, FieldTimes};
use crate::codec::key::{self, KeyRange};
use crate::codec::{CodecError, Extra, Kind, Meta, NamespaceMap, NsId, StreamId, pack};
use crate::rdb::file::writer::{Blocks, For, Writer};
use crate::rdb::{self, Consumer, Counters, Entry, Pending};
use crate::shard::txn::CHUNK;
use crate::store::{Record, Still, StoreError};
use crate::types::stream::id::MIN;
use crate::types::stream::record::{ConsumerRecord, GroupRecord, Nack, each_field};
use crate::util::num::parse_i64;

/// What is exported.
pub struct Everything {
    /// The partitions, by shard.
    pub partitions: Vec<Still>,
    /// The databases of then.
    pub names: NamespaceMap,
    /// The time of then, ms.
    pub now_ms: u64,
}

/// Why it cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// Whoever takes it does not.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The store.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// A key whose records contradict each other.
    #[error("key '{0}' is damaged: {1}")]
    Key(String, String),
    /// It was given up.
    #[error("given up")]
    GivenUp,
}

/// What was written.
#[derive(Debug, Default)]
pub struct Exported {
    /// Keys.
    pub keys: u64,
    /// Libraries of functions.
    pub functions: u64,
    /// What the file's servers cannot have, how often, and a key that has it.
    pub lost: BTreeMap<&'static str, (u64, String)>,
}

impl Exported {
    fn lose(&mut self, what: &'static str, count: u64, whose: &[u8]) {
        if count > 0 {
            let named = || whose[..whose.len().min(200)].escape_ascii().to_string();
            self.lost.entry(what).or_insert_with(|| (0, named())).0 += count;
        }
    }
}

impl Everything {
    /// Writes it. `goes_on` is asked after each key, with how many there were.
    ///
    /// # Errors
    /// See [`ExportError`].
    pub fn write<W: Write>(
        &self,
        to: W,
        target: For,
        mut goes_on: impl FnMut(u64) -> bool,
    ) -> Result<(W, Exported), ExportError> {
        let mut writer = Writer::new(to, target);
        let mut exported = Exported::default();
        writer.aux("redis-ver", crate::util::REDIS_VERSION);
        writer.aux("redis-bits", "64");
        writer.aux("ctime", &(self.now_ms / 1000).to_string());
        writer.aux("used-mem", "0");
        writer.aux("aof-base", "0");
        if let Some(first) = self.partitions.first() {
            let KeyRange { lower, upper } = key::tag_range(key::tag::LIBRARY);
            for record in first.range(&lower, &upper) {
                writer.function(&record?.1)?;
                exported.functions += 1;
            }
        }
        let mut databases: Vec<(u64, NsId)> = Vec::new();
        for (name, ns) in self.names.iter() {
            match parse_i64(name).and_then(|number| u64::try_from(number).ok()) {
                Some(number) => databases.push((number, ns)),
                None => {
                    let keys = self.keys(ns)?;
                    exported.lose("keys of databases whose names are no numbers", keys, name);
                }
            }
        }
        databases.sort_unstable();
        for (number, ns) in databases {
            let mut selected = false;
            for still in &self.partitions {
                let KeyRange { lower, upper } = key::ns_range(key::tag::META, ns);
                for record in still.range(&lower, &upper) {
                    let (disk_key, value) = record?;
                    let one = Key::read(still, ns, &disk_key, &value, self.now_ms)?;
                    let Some(one) = one else { continue };
                    if !std::mem::replace(&mut selected, true) {
                        writer.database(number);
                    }
                    one.write(&mut writer, &mut exported)?;
                    if !goes_on(exported.keys) {
                        return Err(ExportError::GivenUp);
                    }
                }
            }
        }
        Ok((writer.finish()?, exported))
    }

    fn keys(&self, ns: NsId) -> Result<u64, ExportError> {
        let KeyRange { lower, upper } = key::ns_range(key::tag::META, ns);
        let mut count = 0;
        for still in &self.partitions {
            for record in still.range(&lower, &upper) {
                record?;
                count += 1;
            }
        }
        Ok(count)
    }
}

/// Why packed elements are not gone through.
enum Stop {
    Codec(CodecError),
    Export(ExportError),
}

impl From<CodecError> for Stop {
    fn from(error: CodecError) -> Stop {
        Stop::Codec(error)
    }
}

/// A key that is there.
struct Key<'a> {
    still: &'a Still,
    ns: NsId,
    /// As clients know it.
    key: Vec<u8>,
    meta: Meta,
    /// A string that is no longer than its record, or packed elements.
    value: &'a [u8],
    now_ms: u64,
}

impl<'a> Key<'a> {
    /// `None` if its time has passed.
    fn read(
        still: &'a Still,
        ns: NsId,
        disk_key: &[u8],
        record: &'a [u8],
        now_ms: u64,
    ) -> Result<Option<Self>, ExportError> {
        let stored = disk_key.get(5..).unwrap_or_default();
        let (meta, long, value) = Meta::decode(record).map_err(|error| damaged(stored, error))?;
        if meta.expired(now_ms) {
            return Ok(None);
        }
        Ok(Some(Key { still, ns, key: long.unwrap_or(stored).to_vec(), meta, value, now_ms }))
    }

    fn damaged(&self, why: impl std::fmt::Display) -> ExportError {
        damaged(&self.key, why)
    }

    /// Its elements that begin with these bytes.
    fn elements(&self, prefix: &[u8]) -> impl Iterator<Item = Result<Record, StoreError>> + use<> {
        let range = key::element_prefix_range(self.ns, &self.key, self.meta.version, prefix);
        self.still.range(&range.lower, &range.upper)
    }

    /// Visits the elements of a group, from this one on: the element, its tag included, and its value.
    fn each(
        &self,
        group: Tag,
        from: &[u8],
        mut visit: impl FnMut(&[u8], &[u8]) -> Result<(), ExportError>,
    ) -> Result<u64, ExportError> {
        if self.meta.packed {
            return self.each_packed(group, from, visit);
        }
        let KeyRange { mut lower, upper } = key::group_range(self.ns, &self.key, self.meta.version, group);
        let tail = lower.len() - 1;
        if !from.is_empty() {
            lower.truncate(tail);
            lower.extend_from_slice(from);
        }
        let mut count = 0;
        for record in self.still.range(&lower, &upper) {
            let (disk_key, value) = record?;
            visit(disk_key.get(tail..).unwrap_or_default(), &value)?;
            count += 1;
        }
        Ok(count)
    }

    fn each_packed(
        &self,
        group: Tag,
        from: &[u8],
        mut visit: impl FnMut(&[u8], &[u8]) -> Result<(), ExportError>,
    ) -> Result<u64, ExportError> {
        let mut count = 0;
        pack::each(&self.meta, self.value, |element, value| {
            if element.first() == Some(&group.tag()) && element >= from {
                visit(element, value).map_err(Stop::Export)?;
                count += 1;
            }
            Ok(())
        })
        .map_err(|stop| match stop {
            Stop::Export(error) => error,
            Stop::Codec(error) => self.damaged(error),
        })?;
        Ok(count)
    }

    fn write<W: Write>(&self, writer: &mut Writer<W>, exported: &mut Exported) -> Result<(), ExportError> {
        match self.meta.kind {
            Kind::String if !self.meta.has_version() => writer.string(&self.key, self.meta.expire_ms, self.value)?,
            Kind::String => self.text(writer)?,
            Kind::List => self.list(writer)?,
            Kind::Set => self.set(writer)?,
            Kind::Zset => self.zset(writer)?,
            Kind::Hash if !self.hash(writer, exported)? => return Ok(()),
            Kind::Hash => {}
            Kind::Stream => self.stream(writer, exported)?,
        }
        exported.keys += 1;
        Ok(())
    }

    /// There were as many elements as were announced.
    fn check(&self, announced: u64, written: u64) -> Result<(), ExportError> {
        if announced == written {
            return Ok(());
        }
        Err(self.damaged(format_args!("it has {written} elements, not {announced}")))
    }

    fn text<W: Write>(&self, writer: &mut Writer<W>) -> Result<(), ExportError> {
        let size = self.meta.size;
        writer.begin_text(&self.key, self.meta.expire_ms, size);
        let mut done = 0;
        let zeros = |writer: &mut Writer<W>, mut count: u64| {
            while count > 0 {
                let step = count.min(CHUNK as u64);
                writer.text(&[0; CHUNK][..step as usize])?;
                count -= step;
            }
            io::Result::Ok(())
        };
        self.each(Tag::StringChunk, b"", |element, chunk| {
            let Ok(Element::StringChunk(number)) = Element::decode(element) else {
                return Err(self.damaged("a chunk"));
            };
            let begin = u64::from(number) * CHUNK as u64;
            let len = (chunk.len() as u64).min(size.saturating_sub(begin));
            zeros(writer, begin.min(size).saturating_sub(done))?;
            writer.text(&chunk[..len as usize])?;
            done = begin.min(size) + len;
            Ok(())
        })?;
        zeros(writer, size - done)?;
        Ok(())
    }

    fn list<W: Write>(&self, writer: &mut Writer<W>) -> Result<(), ExportError> {
        let mut from = Vec::new();
        if let Extra::List { head, .. } = self.meta.extra {
            list_element(head, &mut from);
        }
        writer.begin_list(&self.key, self.meta.expire_ms, self.meta.size);
        let written = self.each(Tag::ListElement, &from, |_, element| Ok(writer.element(element)?))?;
        self.check(self.meta.size, written)
    }

    fn set<W: Write>(&self, writer: &mut Writer<W>) -> Result<(), ExportError> {
        let exact = self.meta.encoding == 0;
        let len = if exact { self.meta.size } else { self.each(Tag::SetMember, b"", |_, _| Ok(()))? };
        writer.begin_set(&self.key, self.meta.expire_ms, len);
        let written = self.each(Tag::SetMember, b"", |element, value| {
            let (member, _) = split_text(&element[1..], value).map_err(|error| self.damaged(error))?;
            Ok(writer.element(member)?)
        })?;
        self.check(len, written)
    }

    fn zset<W: Write>(&self, writer: &mut Writer<W>) -> Result<(), ExportError> {
        writer.begin_zset(&self.key, self.meta.expire_ms, self.meta.size);
        let written = self.each(Tag::ZsetSort, b"", |element, value| {
            let read = || match Element::decode(element)? {
                Element::ZsetSort(score, stored) => Ok((split_text(stored, value)?.0, score.get())),
                _ => Err(CodecError::Truncated),
            };
            let (member, score) = read().map_err(|error| self.damaged(error))?;
            Ok(writer.scored(member, score)?)
        })?;
        self.check(self.meta.size, written)
    }

    /// Whether any of its fields is left.
    fn hash<W: Write>(&self, writer: &mut Writer<W>, exported: &mut Exported) -> Result<bool, ExportError> {
        let timed = FieldTimes::of(&self.meta.extra).is_some();
        let field = |element: &[u8], value: &[u8]| {
            let field = Field::split(&element[1..], value, timed).map_err(|error| self.damaged(error))?;
            let live = field.is_live(self.now_ms);
            let (name, value, expire_ms) = (field.name.to_vec(), field.value.to_vec(), field.expire_ms);
            Ok::<_, ExportError>(live.then_some(rdb::Field { name, value, expire_ms }))
        };
        let (mut len, mut least_ms, mut times) = (self.meta.size, 0, 0);
        if timed || self.meta.encoding != 0 {
            len = 0;
            self.each(Tag::HashField, b"", |element, value| {
                let Some(field) = field(element, value)? else { return Ok(()) };
                len += 1;
                if field.expire_ms != 0 {
                    times += 1;
                    least_ms = if least_ms == 0 { field.expire_ms } else { field.expire_ms.min(least_ms) };
                }
                Ok(())
            })?;
        }
        if len == 0 {
            return Ok(false);
        }
        if !writer.target().has_field_times() {
            exported.lose("times of hash fields", times, &self.key);
            least_ms = 0;
        }
        writer.begin_hash(&self.key, self.meta.expire_ms, len, least_ms);
        let mut written = 0;
        self.each(Tag::HashField, b"", |element, value| {
            if let Some(field) = field(element, value)? {
                written += 1;
                writer.field(&field, least_ms)?;
            }
            Ok(())
        })?;
        self.check(len, written).map(|()| true)
    }

    fn stream<W: Write>(&self, writer: &mut Writer<W>, exported: &mut Exported) -> Result<(), ExportError> {
        let (mut blocks, mut open) = (0, Blocks::default());
        let (mut len, mut first_id) = (0, None);
        self.entries(|entry| {
            len += 1;
            first_id = first_id.or(Some(entry.id));
            blocks += u64::from(open.push(entry).is_some());
            Ok(())
        })?;
        blocks += u64::from(open.close().is_some());
        writer.begin_stream(&self.key, self.meta.expire_ms, blocks);
        self.entries(|entry| {
            let block = open.push(entry);
            block.map_or(Ok(()), |block| Ok(writer.block(&block)?))
        })?;
        if let Some(block) = open.close() {
            writer.block(&block)?;
        }
        let Extra::Stream { last, max_deleted, entries_added, .. } = self.meta.extra else {
            return Err(self.damaged("it has no counters"));
        };
        let counters = Counters { last_id: last, max_deleted, entries_added };
        let groups = self.each(Tag::StreamGroup, b"", |_, _| Ok(()))?;
        writer.counters(len, first_id.unwrap_or_default(), &counters, groups)?;
        self.each(Tag::StreamGroup, b"", |element, value| {
            let group = self.group(&element[1..], value)?;
            if writer.target() == For::Redis70 {
                let active = |consumer: &&Consumer| consumer.active_ms != consumer.seen_ms as i64;
                let count = group.consumers.iter().filter(active).count();
                exported.lose("times at which consumers were last active", count as u64, &self.key);
            }
            Ok(writer.group(&group)?)
        })?;
        Ok(())
    }

    /// Visits the entries of a stream.
    fn entries(&self, mut visit: impl FnMut(Entry) -> Result<(), ExportError>) -> Result<(), ExportError> {
        let (mut names, mut last) = (Vec::new(), Vec::<(Bytes, Vec<u8>)>::new());
        self.each(Tag::StreamElement, b"", |element, value| {
            let Ok(Element::StreamElement(id)) = Element::decode(element) else {
                return Err(self.damaged("an entry"));
            };
            if id == MIN {
                names = value.to_vec();
                return Ok(());
            }
            let mut fields = Vec::new();
            let read = each_field(value, &names, |name, value| {
                // Most entries have the names of the one before.
                let name = match last.get(fields.len()) {
                    Some((same, _)) if same == name => same.clone(),
                    _ => Bytes::copy_from_slice(name),
                };
                fields.push((name, value.to_vec()));
            });
            read.map_err(|error| self.damaged(error))?;
            last = fields.iter().map(|(name, _)| (name.clone(), Vec::new())).collect();
            visit(Entry { id, fields })
        })?;
        Ok(())
    }

    /// A consumer group, of whose name this is the stored form, with all that is pending.
    fn group(&self, stored: &[u8], value: &[u8]) -> Result<rdb::Group, ExportError> {
        let wrong = |error: CodecError| self.damaged(error);
        let (name, record) = split_text(stored, value).map_err(wrong)?;
        let GroupRecord { last, entries_read, .. } = GroupRecord::decode(record).map_err(wrong)?;
        let of_group = |tag: Tag| {
            let mut prefix = vec![tag.tag()];
            prefix.extend_from_slice(&(stored.len() as u16).to_be_bytes());
            prefix.extend_from_slice(stored);
            prefix
        };
        let (mut consumers, mut places) = (Vec::new(), HashMap::new());
        let prefix = of_group(Tag::StreamConsumer);
        let tail = key::element_prefix_range(self.ns, &self.key, self.meta.version, &prefix).lower.len();
        for record in self.elements(&prefix) {
            let (disk_key, value) = record?;
            let stored = disk_key.get(tail..).unwrap_or_default();
            let (name, record) = split_text(stored, &value).map_err(wrong)?;
            let ConsumerRecord { seen_ms, active_ms, .. } = ConsumerRecord::decode(record).map_err(wrong)?;
            places.insert(stored.to_vec(), consumers.len());
            let active_ms = active_ms.map_or(-1, |ms| ms as i64);
            consumers.push(Consumer { name: name.to_vec(), seen_ms, active_ms });
        }
        let mut pending = Vec::new();
        for record in self.elements(&of_group(Tag::StreamPel)) {
            let (disk_key, value) = record?;
            let Nack { delivered_ms, deliveries, consumer } = Nack::decode(&value).map_err(wrong)?;
            let id = disk_key.last_chunk().ok_or_else(|| self.damaged("a pending entry"))?;
            let consumer = places.get(&consumer[..]).ok_or_else(|| self.damaged("a pending entry of nobody"))?;
            pending.push(Pending {
                id: StreamId::from_bytes(*id),
                delivery_ms: delivered_ms,
                delivery_count: deliveries,
                consumer: *consumer,
            });
        }
        Ok(rdb::Group { name: name.to_vec(), last_id: last, entries_read, pending, consumers })
    }
}

fn damaged(key: &[u8], why: impl std::fmt::Display) -> ExportError {
    ExportError::Key(key[..key.len().min(200)].escape_ascii().to_string(), why.to_string())
}
