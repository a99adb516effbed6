//! A consumer group as commands handle it: its record, the records of its consumers, its pending entries.
//!
//! A [`Ledger`] keeps the counts: it reads a consumer's record at the first touch, and writes back what has changed when
//! the command ends ([`Ledger::save`]). Invariants: a group's `pending` is the number of its pending entries and the sum
//! over its consumers; `oldest` is its first pending entry's id; no look at pending entries begins before that.

use std::ops::Bound;

use smallvec::SmallVec;

use crate::codec::element::{self, Group as Tag, split_text, with_text};
use crate::codec::order::StreamId;
use crate::codec::{CodecError, push_stored};
use crate::error::quotation;
use crate::handler::events;
use crate::handler::limits::may_touch;
use crate::handler::{Ctx, Error, Found, Result};
use crate::meter;
use crate::shard::memory::core::{storage, unreadable};
use crate::shard::txn::elements::Elements;
use crate::shard::txn::slices::Slices;
use crate::util::scale::Scaled;

use super::handle::{Stream, owned};
use super::id::{self, MIN};
use super::record::{ConsumerRecord, ElementKey, GroupRecord, Nack, id_of};

/// A name as it stands in element keys.
pub type Stored = SmallVec<[u8; 24]>;

/// The stored form of a name.
pub fn stored(name: &[u8]) -> Stored {
    let mut form = Stored::new();
    push_stored(name, &mut form);
    form
}

/// A consumer whose record was read.
#[derive(Debug, Clone)]
pub struct Consumer {
    /// Its name's stored form.
    pub name: Stored,
    /// Its record.
    pub record: ConsumerRecord,
    /// The whole name where the stored form is not.
    long_name: Option<Vec<u8>>,
    changed: bool,
}

/// A group, its consumers as far as they were touched, and access to its pending entries.
#[derive(Debug, Clone)]
pub struct Ledger {
    at: Found,
    name: Stored,
    /// The group's record.
    pub record: GroupRecord,
    changed: bool,
    oldest_gone: bool,
    consumers: SmallVec<[Consumer; 1]>,
}

impl Ledger {
    /// The group of this name, if there is one.
    pub fn find(ctx: &mut Ctx, at: Found, name: &[u8]) -> Result<Option<Ledger>> {
        let mut key = ElementKey::new();
        element::stream_group(name, &mut key);
        let Some(value) = ctx.txn.element(at, &key)? else { return Ok(None) };
        let record = split_text(&key[1..], value).and_then(|(_, record)| GroupRecord::decode(record));
        let record = record.map_err(|e| corrupt(ctx, at, e))?;
        Ok(Some(Ledger::of(at, Stored::from_slice(name), record)))
    }

    /// A group that is not there yet.
    pub fn new(at: Found, name: &[u8], record: GroupRecord) -> Ledger {
        Ledger { changed: true, ..Ledger::of(at, Stored::from_slice(name), record) }
    }

    fn of(at: Found, name: Stored, record: GroupRecord) -> Ledger {
        Ledger { at, name, record, changed: false, oldest_gone: false, consumers: SmallVec::new() }
    }

    /// All groups of a stream, by name.
    pub fn all(ctx: &Ctx, at: Found) -> Result<Vec<Ledger>> {
        let mut groups = Vec::new();
        for group in ctx.txn.group(at, Tag::StreamGroup)? {
            let (key, value) = group?;
            let (name, record) = split_text(&key[1..], &value).map_err(|e| corrupt(ctx, at, e))?;
            let record = GroupRecord::decode(record).map_err(|e| corrupt(ctx, at, e))?;
            groups.push(Ledger::of(at, Stored::from_slice(name), record));
        }
        Ok(groups)
    }

    /// Its name.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Notes an entry as delivered to the group, and keeps its number if it can be told.
    pub fn deliver(&mut self, stream: &Stream, id: StreamId) {
        if id <= self.record.last {
            return;
        }
        self.changed = true;
        let counts = self.record.entries_read >= 0
            && self.record.last >= stream.first
            && !stream.may_have_gap_after(self.record.last);
        if counts {
            self.record.entries_read += 1;
        } else if stream.added > 0 {
            self.record.entries_read = stream.number_of(id).map_or(-1, |number| number as i64);
        }
        self.record.last = id;
    }

    /// Entries that the group has not got yet; `None` where deletions leave it open.
    pub fn lag(&self, stream: &Stream) -> Option<i64> {
        if stream.added == 0 || stream.len == 0 {
            return Some(0);
        }
        if self.record.last < stream.first && stream.max_deleted < stream.first {
            return Some(stream.len as i64);
        }
        if self.record.entries_read >= 0 && !stream.may_have_gap_after(self.record.last) {
            return Some(stream.added as i64 - self.record.entries_read);
        }
        stream.number_of(self.record.last).map(|number| stream.added as i64 - number as i64)
    }

    /// Moves the group elsewhere.
    pub fn set_last(&mut self, last: StreamId, entries_read: i64) {
        (self.record.last, self.record.entries_read) = (last, entries_read);
        self.changed = true;
    }

    fn consumer_key(&self, name: &[u8]) -> ElementKey {
        let mut key = ElementKey::new();
        element::stream_consumer_prefix(&self.name, &mut key);
        key.extend_from_slice(name);
        key
    }

    fn pel_key(&self, id: StreamId) -> ElementKey {
        let mut key = ElementKey::new();
        element::stream_pel(&self.name, id, &mut key);
        key
    }

    /// Place in the ledger of a consumer, by its name's stored form.
    pub fn consumer(&mut self, ctx: &mut Ctx, name: &[u8]) -> Result<Option<usize>> {
        if let Some(place) = self.consumers.iter().position(|consumer| consumer.name[..] == *name) {
            return Ok(Some(place));
        }
        let key = self.consumer_key(name);
        let Some(value) = ctx.txn.element(self.at, &key)? else { return Ok(None) };
        let consumer = read_consumer(name, value).map_err(|e| corrupt(ctx, self.at, e))?;
        self.consumers.push(consumer);
        Ok(Some(self.consumers.len() - 1))
    }

    /// Place in the ledger of a consumer, which is made if it is not there; and whether it was made.
    pub fn consumer_or_new(&mut self, ctx: &mut Ctx, name: &[u8]) -> Result<(usize, bool)> {
        let form = stored(name);
        if let Some(place) = self.consumer(ctx, &form)? {
            return Ok((place, false));
        }
        let record = ConsumerRecord { seen_ms: ctx.txn.now_ms, ..ConsumerRecord::default() };
        let long_name = (form[..] != *name).then(|| name.to_vec());
        self.consumers.push(Consumer { name: form, record, long_name, changed: true });
        self.record.consumers += 1;
        self.changed = true;
        let key: Box<[u8]> = ctx.object(self.at).key().into();
        ctx.tell(&events::XGROUP_CREATECONSUMER, &key);
        Ok((self.consumers.len() - 1, true))
    }

    /// A consumer of the ledger.
    pub fn at_place(&self, place: usize) -> &Consumer {
        &self.consumers[place]
    }

    /// A consumer of the ledger, to be changed.
    pub fn change(&mut self, place: usize) -> &mut ConsumerRecord {
        let consumer = &mut self.consumers[place];
        consumer.changed = true;
        &mut consumer.record
    }

    /// All consumers of the group, by name, as they were when the command began.
    pub fn read_consumers(&self, ctx: &Ctx) -> Result<Vec<Consumer>> {
        let prefix = self.consumer_key(b"");
        let mut consumers = Vec::new();
        for element in elements_with(ctx, self.at, &prefix)? {
            let (key, value) = element?;
            consumers.push(read_consumer(&key[prefix.len()..], &value).map_err(|e| corrupt(ctx, self.at, e))?);
        }
        Ok(consumers)
    }

    /// The pending entry of this id.
    pub fn nack(&self, ctx: &mut Ctx, id: StreamId) -> Result<Option<Nack>> {
        if self.record.pending == 0 || id < self.record.oldest {
            return Ok(None);
        }
        let key = self.pel_key(id);
        match ctx.txn.element(self.at, &key)?.map(Nack::decode) {
            None => Ok(None),
            Some(nack) => nack.map(Some).map_err(|e| corrupt(ctx, self.at, e)),
        }
    }

    /// Removes a pending entry; it, if it was there.
    pub fn take(&mut self, ctx: &mut Ctx, id: StreamId) -> Result<Option<Nack>> {
        let Some(nack) = self.nack(ctx, id)? else { return Ok(None) };
        ctx.txn.remove_element(self.at, &self.pel_key(id))?;
        self.record.pending = self.record.pending.saturating_sub(1);
        self.oldest_gone |= id == self.record.oldest;
        self.changed = true;
        self.release(ctx, &nack)?;
        Ok(Some(nack))
    }

    /// A consumer has one pending entry less.
    fn release(&mut self, ctx: &mut Ctx, nack: &Nack) -> Result {
        if let Some(place) = self.consumer(ctx, &nack.consumer)? {
            let record = self.change(place);
            record.pending = record.pending.saturating_sub(1);
        }
        Ok(())
    }

    /// Makes an entry pending for a consumer of the ledger, taking it from whoever has it: `before` as [`Ledger::nack`]
    /// has it.
    pub fn give(
        &mut self,
        ctx: &mut Ctx,
        id: StreamId,
        place: usize,
        nack: &mut Nack,
        before: Option<&Nack>,
    ) -> Result {
        let consumer = &self.consumers[place].name;
        let moves = before.is_none_or(|before| before.consumer != *consumer);
        nack.consumer.clone_from(consumer);
        let mut value = Vec::with_capacity(nack.consumer.len() + 12);
        nack.encode(&mut value);
        let key = self.pel_key(id);
        match before {
            Some(_) => drop(ctx.txn.put_element(self.at, &key, &value)?),
            None => ctx.txn.put_new(self.at, &key, &value)?,
        }
        if !moves {
            return Ok(());
        }
        match before {
            Some(before) => self.release(ctx, before)?,
            None => {
                if self.record.pending == 0 || id < self.record.oldest {
                    self.record.oldest = id;
                }
                self.record.pending += 1;
                self.changed = true;
            }
        }
        let record = self.change(place);
        record.oldest = if record.pending == 0 { id } else { record.oldest.min(id) };
        record.pending += 1;
        Ok(())
    }

    /// The pending entries between two ids, of all consumers.
    pub fn pending<'a>(&self, ctx: &'a Ctx, start: StreamId, end: StreamId, reverse: bool) -> Result<Pending<'a>> {
        let owner = ctx.object(self.at).key();
        let start = start.max(self.record.oldest);
        if self.record.pending == 0 || start > end {
            return Ok(Pending { inner: None, owner });
        }
        let (lower, upper) = (self.pel_key(start), self.pel_key(end));
        let inner = ctx.txn.elements(self.at, Bound::Included(&lower), Bound::Included(&upper), reverse)?;
        Ok(Pending { inner: Some(inner), owner })
    }

    /// Visits the pending entries between two ids, of all consumers, until `visit` says that they are enough. Rests between
    /// slices of many.
    pub fn pass_pending(
        &self,
        ctx: &mut Ctx,
        [start, end]: [StreamId; 2],
        mut visit: impl FnMut(StreamId, Nack) -> Result<bool>,
    ) -> Result {
        let mut count = 0;
        let mut visit = |id, nack| {
            count += 1;
            may_touch(count)?;
            visit(id, nack)
        };
        if !ctx.reads_in_slices() {
            for entry in self.pending(ctx, start, end, false)? {
                let (id, nack) = entry?;
                if !visit(id, nack)? {
                    break;
                }
            }
            return Ok(());
        }
        let start = start.max(self.record.oldest);
        if self.record.pending == 0 || start > end {
            return Ok(());
        }
        let (lower, upper) = (self.pel_key(start), self.pel_key(end));
        let slices = Slices::new(self.at, Bound::Included(&lower), Bound::Included(&upper), false);
        ctx.txn.pass_in_slices(ctx.ns(), slices, |(key, value)| {
            let (id, nack) = id_of(&key).and_then(|id| Ok((id, Nack::decode(&value)?))).map_err(unreadable)?;
            visit(id, nack)
        })
    }

    /// Up to `most` pending entries of one consumer from an id on.
    pub fn pending_of(
        &self,
        ctx: &mut Ctx,
        consumer: &Consumer,
        [start, end]: [StreamId; 2],
        most: usize,
    ) -> Result<Vec<(StreamId, Nack)>> {
        // No more than it has: the rest of the group's need not be looked at.
        let most = most.min(consumer.record.pending as usize);
        let mut found = Vec::new();
        if most == 0 {
            return Ok(found);
        }
        self.pass_pending(ctx, [start.max(consumer.record.oldest), end], |id, nack| {
            if nack.consumer == consumer.name {
                meter::hold(size_of::<(StreamId, Nack)>())?;
                found.push((id, nack));
            }
            Ok(found.len() < most)
        })?;
        Ok(found)
    }

    /// Writes back what has changed.
    pub fn save(&mut self, ctx: &mut Ctx) -> Result {
        if std::mem::take(&mut self.oldest_gone) && self.record.pending > 0 {
            let next = self.pending(ctx, self.record.oldest, id::MAX, false)?.next();
            self.record.oldest = next.transpose()?.map_or(MIN, |(id, _)| id);
        }
        let mut value = Vec::with_capacity(64);
        for place in 0..self.consumers.len() {
            if !std::mem::take(&mut self.consumers[place].changed) {
                continue;
            }
            let consumer = &self.consumers[place];
            value.clear();
            consumer.record.encode(&mut value);
            let name = consumer.long_name.as_deref().unwrap_or(&consumer.name);
            let whole = with_text(name, &value);
            ctx.txn.put_element(self.at, &self.consumer_key(&consumer.name), &whole)?;
        }
        if std::mem::take(&mut self.changed) {
            value.clear();
            self.record.encode(&mut value);
            let mut key = ElementKey::new();
            element::stream_group(&self.name, &mut key);
            ctx.txn.put_element(self.at, &key, &with_text(&self.name, &value))?;
        }
        Ok(())
    }

    /// Removes a consumer and what is pending for it; how many entries that were.
    pub fn remove_consumer(&mut self, ctx: &mut Ctx, name: &[u8]) -> Result<u64> {
        let Some(place) = self.consumer(ctx, &stored(name))? else { return Ok(0) };
        let consumer = self.consumers[place].clone();
        may_touch(consumer.record.pending)?;
        for (id, _) in self.pending_of(ctx, &consumer, [MIN, id::MAX], usize::MAX)? {
            self.take(ctx, id)?;
        }
        ctx.txn.remove_element(self.at, &self.consumer_key(&consumer.name))?;
        self.consumers.remove(place);
        self.record.consumers = self.record.consumers.saturating_sub(1);
        self.changed = true;
        Ok(consumer.record.pending)
    }

    /// Removes the group, its consumers and its pending entries.
    pub fn destroy(self, ctx: &mut Ctx) -> Result {
        /// Elements gathered at a time.
        const SLICE: Scaled<usize> = Scaled::new(4096);
        may_touch(self.record.pending + self.record.consumers)?;
        let mut pel_prefix = ElementKey::new();
        element::stream_pel_prefix(&self.name, &mut pel_prefix);
        let mut group = ElementKey::new();
        element::stream_group(&self.name, &mut group);
        ctx.txn.remove_element(self.at, &group)?;
        for prefix in [self.consumer_key(b""), pel_prefix] {
            loop {
                let keys: Result<Vec<ElementKey>> = elements_with(ctx, self.at, &prefix)?
                    .take(SLICE.get())
                    .map(|element| element.map(|(key, _)| owned(&key)))
                    .collect();
                let keys = keys?;
                if keys.is_empty() {
                    break;
                }
                for key in &keys {
                    ctx.txn.remove_element(self.at, key)?;
                }
            }
        }
        Ok(())
    }
}

/// The elements that begin with `prefix`, which begins with a tag.
fn elements_with<'a>(ctx: &'a Ctx, at: Found, prefix: &[u8]) -> Result<Elements<'a>> {
    let mut upper = owned(prefix);
    while upper.last() == Some(&u8::MAX) {
        upper.pop();
    }
    if let Some(last) = upper.last_mut() {
        *last += 1;
    }
    ctx.txn.elements(at, Bound::Included(prefix), Bound::Excluded(&upper), false)
}

fn read_consumer(name: &[u8], value: &[u8]) -> Result<Consumer, CodecError> {
    let (text, record) = split_text(name, value)?;
    let long_name = (text != name).then(|| text.to_vec());
    Ok(Consumer { name: Stored::from_slice(name), record: ConsumerRecord::decode(record)?, long_name, changed: false })
}

impl Consumer {
    /// Its name.
    pub fn name(&self) -> &[u8] {
        self.long_name.as_deref().unwrap_or(&self.name)
    }
}

/// Pending entries in order: id and what is known of the delivery.
pub struct Pending<'a> {
    inner: Option<Elements<'a>>,
    owner: &'a [u8],
}

impl Iterator for Pending<'_> {
    type Item = Result<(StreamId, Nack)>;

    fn next(&mut self) -> Option<Self::Item> {
        let element = self.inner.as_mut()?.next()?;
        Some(element.and_then(|(key, value)| {
            let entry = id_of(&key).and_then(|id| Ok((id, Nack::decode(&value)?)));
            entry.map_err(|e| storage(self.owner, e))
        }))
    }
}

fn corrupt(ctx: &Ctx, at: Found, error: CodecError) -> Error {
    storage(ctx.object(at).key(), error)
}

/// Redis's texts for a group that is not there; names end at a zero byte, as C strings do.
pub fn no_group(before: &str, first: &[u8], between: &str, second: &[u8], after: &str) -> Error {
    let names = [quotation(first, usize::MAX), quotation(second, usize::MAX)];
    let text = [before.as_bytes(), names[0], between.as_bytes(), names[1], after.as_bytes()].concat();
    Error::Quoted(text.into())
}

/// No such key or no such group.
pub fn no_key_or_group(key: &[u8], group: &[u8]) -> Error {
    no_group("NOGROUP No such key '", key, "' or consumer group '", group, "'")
}

/// No such group.
pub fn no_such_group(key: &[u8], group: &[u8]) -> Error {
    no_group("NOGROUP No such consumer group '", group, "' for key name '", key, "'")
}
