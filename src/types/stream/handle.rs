//! A stream as its commands handle it: what the metadata says of it, its entries, and estimates over both.
//!
//! Invariants: `first` is the id of the first entry, 0-0 of an empty stream; no read of entries begins before it, so that
//! the deleted front of a queue is never walked over. [`Stream::save`] ends every command that changed the handle.

use std::ops::Bound;

use crate::codec::element::Group as Tag;
use crate::codec::order::StreamId;
use crate::codec::{CodecError, Extra};
use crate::handler::limits::may_touch;
use crate::handler::{Args, Ctx, Error, Found, Reply, Result};
use crate::shard::memory::core::{storage, unreadable};
use crate::shard::memory::object::Kind;
use crate::shard::txn::build::{Build, Shape};
use crate::shard::txn::elements::{Elements, Piece};
use crate::shard::txn::slices::Slices;

use super::id::{self, MIN};
use super::record::{ElementKey, encode_entry, encode_names, entry_key, id_of, names_match, reply_entry};

/// What the metadata says of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream {
    /// Where it is.
    pub at: Found,
    /// Entries.
    pub len: u64,
    /// Id of the first entry.
    pub first: StreamId,
    /// Highest id ever given.
    pub last: StreamId,
    /// Highest id of a deleted entry, but for those that were trimmed.
    pub max_deleted: StreamId,
    /// Entries ever added.
    pub added: u64,
}

impl Stream {
    /// The stream at a key, if there is one.
    #[inline]
    pub fn find(ctx: &mut Ctx, key: &[u8]) -> Result<Option<Stream>> {
        Ok(ctx.lookup_kind(key, Kind::Stream)?.map(|at| Stream::at(ctx, at)))
    }

    /// A new, empty stream.
    pub fn create(ctx: &mut Ctx, key: &[u8]) -> Result<Stream> {
        let ns = ctx.ns();
        let at = ctx.txn.create(ns, key, Kind::Stream, 0)?;
        Ok(Stream::at(ctx, at))
    }

    fn at(ctx: &Ctx, at: Found) -> Stream {
        let body = ctx.txn.body(at);
        let (first, last, max_deleted, added) = match body.extra {
            Extra::Stream { first, last, max_deleted, entries_added } => (first, last, max_deleted, entries_added),
            _ => (MIN, MIN, MIN, 0),
        };
        Stream { at, len: body.size, first, last, max_deleted, added }
    }

    fn extra(&self) -> Extra {
        Extra::Stream { first: self.first, last: self.last, max_deleted: self.max_deleted, entries_added: self.added }
    }

    /// Writes back what has changed.
    pub fn save(&self, ctx: &mut Ctx) {
        let extra = self.extra();
        let before = ctx.txn.size(self.at);
        ctx.txn.add_size(self.at, self.len.wrapping_sub(before) as i64);
        ctx.txn.set_extra(self.at, extra);
    }

    /// The names that most entries share; empty if none are kept.
    pub fn names(&self, ctx: &mut Ctx) -> Result<Vec<u8>> {
        Ok(ctx.txn.element(self.at, &entry_key(MIN))?.unwrap_or_default().to_vec())
    }

    /// Adds an entry behind all others. `fields` are names and values in turn.
    pub fn push(&mut self, ctx: &mut Ctx, id: StreamId, fields: Args<'_>) -> Result {
        let names_key = entry_key(MIN);
        let shared = match ctx.txn.element(self.at, &names_key)? {
            Some(names) if names_match(names, fields) => true,
            // Nothing refers to the old ones.
            Some(_) if self.len == 0 => {
                ctx.txn.put_element(self.at, &names_key, &encode_names(fields))?;
                true
            }
            Some(_) => false,
            None if self.len == 0 => false,
            None => {
                ctx.txn.put_element(self.at, &names_key, &encode_names(fields))?;
                true
            }
        };
        let mut value = Vec::new();
        encode_entry(fields, shared, &mut value);
        // No entry has this id: nothing needs to be read.
        ctx.txn.put_element_blind(self.at, &entry_key(id), &value);
        if self.len == 0 {
            self.first = id;
        }
        self.last = id;
        self.len += 1;
        self.added += 1;
        Ok(())
    }

    /// Removes an entry; whether it was there. The caller sets `first` anew by [`Stream::settle`].
    pub fn remove(&mut self, ctx: &mut Ctx, id: StreamId) -> Result<bool> {
        let removed = self.has_in_range(id) && ctx.txn.remove_element(self.at, &entry_key(id))?;
        self.len -= u64::from(removed);
        Ok(removed)
    }

    /// Removes all entries before one, or all of them; `kept` stay. They are written anew with the groups, so that what
    /// goes leaves no trace of its own, however much it is.
    pub fn keep_from(&mut self, ctx: &mut Ctx, first: Option<StreamId>, kept: u64) -> Result {
        may_touch(self.len)?;
        let object = ctx.object(self.at);
        let (ns, key, expire_ms) = (object.ns, object.key().to_vec(), object.expire_ms);
        let mut build = Build::new(&ctx.txn, ns, &key)?;
        if let Some(first) = first {
            let names = self.names(ctx)?;
            if !names.is_empty() {
                build.put(&entry_key(MIN), &names)?;
            }
            let (lower, upper) = (entry_key(first), entry_key(self.last));
            let put = |element: &[u8], value: &[u8]| build.put(element, value);
            ctx.txn.each_in_slices(self.at, Bound::Included(&lower), Bound::Included(&upper), put)?;
        }
        for group in [Tag::StreamGroup, Tag::StreamConsumer, Tag::StreamPel] {
            ctx.txn.group_in_slices(self.at, group, |element, value| build.put(element, value))?;
        }
        (self.first, self.len) = (first.unwrap_or(MIN), kept);
        let shape = Shape { extra: self.extra(), expire_ms, ..Shape::new(Kind::Stream, kept) };
        if let Some(at) = build.finish(&mut ctx.txn, shape)? {
            self.at = at;
        }
        Ok(())
    }

    /// Finds the first entry after some were removed, none of them before `first`.
    pub fn settle(&mut self, ctx: &Ctx) -> Result {
        self.first = match self.entries(ctx, self.first, self.last, false)?.next() {
            Some(entry) => entry?.0,
            None => MIN,
        };
        Ok(())
    }

    /// Whether an entry with this id could be there.
    fn has_in_range(&self, id: StreamId) -> bool {
        self.len > 0 && id >= self.first && id <= self.last
    }

    /// Whether there is an entry with this id.
    pub fn has(&self, ctx: &mut Ctx, id: StreamId) -> Result<bool> {
        Ok(self.has_in_range(id) && ctx.txn.element(self.at, &entry_key(id))?.is_some())
    }

    /// The entries between two ids, both included.
    pub fn entries<'a>(&self, ctx: &'a Ctx, start: StreamId, end: StreamId, reverse: bool) -> Result<Entries<'a>> {
        let (start, end) = (start.max(self.first), end.min(self.last));
        if self.len == 0 || start > end {
            return Ok(Entries { inner: None, owner: b"" });
        }
        let (lower, upper) = (entry_key(start), entry_key(end));
        let inner = ctx.txn.elements(self.at, Bound::Included(&lower), Bound::Included(&upper), reverse)?;
        Ok(Entries { inner: Some(inner), owner: ctx.object(self.at).key() })
    }

    /// Visits the entries that a window shows, with their values, and rests between slices of many.
    pub fn each(&self, ctx: &mut Ctx, window: &Window, mut visit: impl FnMut(StreamId, &[u8]) -> Result) -> Result {
        let (start, end) = (window.start.max(self.first), window.end.min(self.last));
        if self.len == 0 || start > end {
            return Ok(());
        }
        let (lower, upper) = (entry_key(start), entry_key(end));
        let (lower, upper) = (Bound::Included(&lower[..]), Bound::Included(&upper[..]));
        let mut count = 0;
        let mut visit = |key: &[u8], value: &[u8]| {
            visit(id_of(key).map_err(unreadable)?, value)?;
            count += 1;
            may_touch(count)
        };
        let most = window.most as u64;
        if !ctx.reads_in_slices() {
            return ctx.txn.elements(self.at, lower, upper, window.reverse)?.each(most, visit).map(drop);
        }
        let slices = Slices::new(self.at, lower, upper, window.reverse).at_most(most);
        ctx.txn.pass_in_slices(ctx.ns(), slices, |(key, value)| visit(&key, &value).map(|()| true))
    }

    /// The same of the ids alone: how many there were, and the last.
    pub fn each_id(&self, ctx: &mut Ctx, window: &Window) -> Result<(u64, Option<StreamId>)> {
        let (mut count, mut last) = (0, None);
        self.each(ctx, window, |id, _| {
            last = Some(id);
            count += 1;
            Ok(())
        })?;
        Ok((count, last))
    }

    /// Id of the last entry that is there; `None` of an empty stream.
    pub fn last_entry(&self, ctx: &Ctx) -> Result<Option<StreamId>> {
        self.entries(ctx, MIN, self.last, true)?.next().transpose().map(|entry| entry.map(|(id, _)| id))
    }

    /// Replies with the entries that a window shows, as an array; how many. `visit` is told the ids.
    pub fn reply_entries(
        &self,
        ctx: &mut Ctx,
        range: &Window,
        out: &mut Reply,
        mut visit: impl FnMut(StreamId),
    ) -> Result<usize> {
        let names = self.names(ctx)?;
        let owner = ctx.object(self.at).key().to_vec();
        let mark = out.defer_array();
        let mut count = 0;
        self.each(ctx, range, |id, value| {
            reply_entry(id, value, &names, out).map_err(|e| storage(&owner, e))?;
            visit(id);
            count += 1;
            Ok(())
        })?;
        out.set_len(mark, count);
        Ok(count)
    }

    /// Replies with the entry of this id; whether there is one.
    pub fn reply_one(&self, ctx: &mut Ctx, id: StreamId, names: &[u8], out: &mut Reply) -> Result<bool> {
        if !self.has_in_range(id) {
            return Ok(false);
        }
        let Some(value) = ctx.txn.element(self.at, &entry_key(id))? else { return Ok(false) };
        let replied = reply_entry(id, value, names, out);
        replied.map_err(|e| self.corrupt(ctx, e))?;
        Ok(true)
    }

    /// The error of a record that cannot be read.
    pub fn corrupt(&self, ctx: &Ctx, error: CodecError) -> Error {
        storage(ctx.object(self.at).key(), error)
    }

    /// Whether a deleted entry may lie behind `after`.
    pub fn may_have_gap_after(&self, after: StreamId) -> bool {
        self.len > 0 && self.max_deleted != MIN && self.first <= self.max_deleted && after <= self.max_deleted
    }

    /// The number, among all entries ever added to a stream that has some left, of the one with this id, which is not before the
    /// first; `None` where deletions leave it open.
    pub fn number_of(&self, id: StreamId) -> Option<u64> {
        if id == self.last {
            return Some(self.added);
        }
        let is_gapless = self.max_deleted < self.first;
        (id == self.first && is_gapless).then(|| self.added.saturating_sub(self.len) + 1)
    }
}

/// Which entries are to be replied with.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    /// Lowest id.
    pub start: StreamId,
    /// Highest id.
    pub end: StreamId,
    /// Entries at most.
    pub most: usize,
    /// From the highest id down.
    pub reverse: bool,
}

impl Window {
    /// All entries.
    pub const ALL: Window = Window::from(MIN, usize::MAX);

    /// Entries from an id on.
    pub const fn from(start: StreamId, most: usize) -> Self {
        Window { start, end: id::MAX, most, reverse: false }
    }
}

/// Entries in order: id and value.
pub struct Entries<'a> {
    inner: Option<Elements<'a>>,
    /// The key, for errors.
    owner: &'a [u8],
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<(StreamId, Piece<'a>)>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let element = self.inner.as_mut()?.next()?;
        Some(element.and_then(|(key, value)| {
            let id = id_of(&key).map_err(|e| storage(self.owner, e))?;
            Ok((id, value))
        }))
    }
}

/// A copy of an element's key, to be removed once no iterator is open.
pub fn owned(key: &[u8]) -> ElementKey {
    ElementKey::from_slice(key)
}
