//! Lists: one record per element, its index a big-endian integer that grows both ways from the middle.
//!
//! | file | owns |
//! |---|---|
//! | this one | the list as commands see it: ends, walks, push, pop |
//! | [`form`] | what OBJECT ENCODING says |
//! | [`reshape`] | elements moved to make or close a gap; lists cut or written anew |
//! | [`ends`] | LPUSH, LPOP, LMOVE, LMPOP and their kin |
//! | [`read`] | LLEN, LINDEX, LRANGE, LPOS |
//! | [`edit`] | LSET, LINSERT, LREM, LTRIM |
//!
//! | record | value |
//! |---|---|
//! | metadata | `head`, `tail`: the elements have the indexes from head on, below tail; `bytes`: see [`form`] |
//! | element | the element's bytes |
//!
//! Invariants: there is no hole between head and tail; the size is `tail − head`; a list without elements does not
//! exist. Every walk begins at an index, never at the first record of the group: what was popped leaves tombstones
//! there.

pub mod edit;
pub mod ends;
pub mod form;
pub mod read;
mod reshape;

pub use reshape::Builder;

use std::ops::{Bound, ControlFlow, Range};

use smallvec::SmallVec;

use crate::codec::{Extra, element};
use crate::handler::{Ctx, Error, Found, Result};
use crate::shard::memory::core::storage;
use crate::shard::memory::missing::LOAD_WHOLE;
use crate::shard::memory::object::{Body, Kind};
use crate::shard::txn::slices::Slices;
use crate::util::scale::Scaled;

/// An end of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The head.
    Left,
    /// The tail.
    Right,
}

/// Elements that are read at once where some are missing in memory, at most.
const AT_ONCE: Scaled<u64> = Scaled::new(128);
/// Bytes that are, about.
const BYTES_AT_ONCE: Scaled<u64> = Scaled::new(64 << 10);

/// An element's key.
type Key = SmallVec<[u8; 16]>;

#[inline]
fn key_of(index: i64) -> Key {
    let mut key = Key::new();
    element::list_element(index, &mut key);
    key
}

/// The indexes of a key's list, and its bytes, by its metadata.
fn extent(key: &[u8], extra: &Extra, size: u64) -> Result<(Range<i64>, u64)> {
    match *extra {
        Extra::List { head, tail, bytes } if head.checked_add_unsigned(size) == Some(tail) && head < tail => {
            Ok((head..tail, bytes))
        }
        _ => Err(storage(key, "the ends of a list are not where its size puts them")),
    }
}

/// What is to be pushed.
struct Load {
    len: u64,
    /// Of the plain elements.
    raw: u64,
    /// Of the elements as listpack entries.
    bytes: u64,
}

impl Load {
    #[inline]
    fn of<'v>(values: impl Iterator<Item = &'v [u8]>) -> Load {
        values.fold(Load { len: 0, raw: 0, bytes: 0 }, |sum, value| Load {
            len: sum.len + 1,
            raw: sum.raw + value.len() as u64,
            bytes: sum.bytes + form::entry_bytes(value),
        })
    }
}

/// A list that is there, and its metadata as this command has it.
#[derive(Debug, Clone, Copy)]
pub struct List {
    at: Found,
    head: i64,
    tail: i64,
    bytes: u64,
    form: u8,
}

impl List {
    /// The list that a key holds.
    #[inline]
    pub fn find(ctx: &mut Ctx, key: &[u8]) -> Result<Option<List>> {
        let Some(at) = ctx.lookup_kind(key, Kind::List)? else { return Ok(None) };
        let body = ctx.body(at);
        let (Range { start: head, end: tail }, bytes) = extent(key, &body.extra, body.size)?;
        Ok(Some(List { at, head, tail, bytes, form: body.form }))
    }

    /// Makes a key that holds no list hold one of these elements, of which there must be one at least.
    pub fn create<'v>(
        ctx: &mut Ctx,
        key: &[u8],
        end: End,
        values: impl Iterator<Item = &'v [u8]> + Clone,
    ) -> Result<List> {
        let load = Load::of(values.clone());
        let len = load.len as i64;
        let (head, tail) = if end == End::Left { (-len, 0) } else { (0, len) };
        let form = form::grown(form::LISTPACK, (0, 0), (load.raw, load.len), max_listpack(ctx));
        let extra = Extra::List { head, tail, bytes: load.bytes };
        let body = Body { form, size: load.len, extra, ..Body::new() };
        let ns = ctx.ns();
        let at = ctx.txn.put_body(ns, key, Kind::List, body, 0)?;
        let list = List { at, head, tail, bytes: load.bytes, form };
        for (value, n) in values.zip(0..) {
            list.put(ctx, if end == End::Left { -1 - n } else { n }, value);
        }
        Ok(list)
    }

    /// Number of elements.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "a list without elements does not exist")]
    pub fn len(&self) -> u64 {
        self.tail.abs_diff(self.head)
    }

    /// The index of the element at an offset as clients give it, negative ones counted from the end.
    #[inline]
    fn index(&self, offset: i64) -> Option<i64> {
        element::index_at(&(self.head..self.tail), offset)
    }

    /// The indexes of the first or last so many elements.
    pub fn part(&self, end: End, len: u64) -> Range<i64> {
        let len = len.min(self.len());
        match end {
            End::Left => self.head..self.head.saturating_add_unsigned(len),
            End::Right => self.tail.saturating_sub_unsigned(len)..self.tail,
        }
    }

    /// The indexes from one offset to another, both included; negative ones are counted from the end, those outside
    /// the list cut off.
    fn between(&self, start: i64, end: i64) -> Range<i64> {
        let len = self.len() as i64;
        let from_start = |offset: i64| if offset < 0 { offset.saturating_add(len) } else { offset };
        let (start, end) = (from_start(start).max(0), from_start(end).min(len - 1));
        if start <= end { self.head + start..self.head + end + 1 } else { self.tail..self.tail }
    }

    /// Sets an element. Nothing is read for it.
    #[inline]
    fn put(&self, ctx: &mut Ctx, index: i64, value: &[u8]) {
        ctx.txn.put_element_blind(self.at, &key_of(index), value);
    }

    /// The element at an index, which must lie within the list.
    #[inline]
    fn get<'c>(&self, ctx: &'c mut Ctx, index: i64) -> Result<&'c [u8]> {
        ctx.txn.element(self.at, &key_of(index))?.ok_or_else(hole)
    }

    /// Reads a small list whole if nothing of it is in memory, so that whatever follows finds it there.
    #[inline]
    fn warm(&self, ctx: &mut Ctx) -> Result {
        let body = ctx.body(self.at);
        if !body.overlay.complete && body.size <= LOAD_WHOLE.get() && body.overlay.is_empty() {
            self.get(ctx, self.head)?;
        }
        Ok(())
    }

    /// Reads a part of the list that is not in memory if it is short, so that whatever follows finds it there.
    #[inline]
    fn fetch(&self, ctx: &mut Ctx, part: Range<i64>) -> Result {
        if ctx.body(self.at).overlay.complete { Ok(()) } else { self.fetch_missing(ctx, part) }
    }

    #[cold]
    fn fetch_missing(&self, ctx: &mut Ctx, part: Range<i64>) -> Result {
        self.warm(ctx)?;
        let len = part.end.abs_diff(part.start);
        let bytes = self.bytes / self.len() * len;
        let (lower, upper) = (key_of(part.start), key_of(part.end));
        if len > AT_ONCE.get() || bytes > BYTES_AT_ONCE.get() || self.has(ctx, &lower, &upper, len) {
            return Ok(());
        }
        ctx.txn.load_range(self.at, &lower, &upper, len)
    }

    /// Whether all elements of a part, which are so many, are in memory.
    #[inline]
    fn has(&self, ctx: &Ctx, lower: &Key, upper: &Key, len: u64) -> bool {
        let overlay = &ctx.body(self.at).overlay;
        // Without holes, as many elements as there should be are all of them.
        overlay.complete || overlay.before(upper).live - overlay.before(lower).live == len
    }

    /// Visits the elements of a part of the list in order, or from the last to the first, each with its index.
    #[inline]
    pub fn each(
        &self,
        ctx: &Ctx,
        part: Range<i64>,
        reverse: bool,
        mut visit: impl FnMut(i64, &[u8]) -> Result<ControlFlow<()>>,
    ) -> Result {
        let (lower, upper) = (key_of(part.start), key_of(part.end));
        let mut left = part.end.abs_diff(part.start);
        let mut index = if reverse { part.end - 1 } else { part.start };
        let step = if reverse { -1 } else { 1 };
        if self.has(ctx, &lower, &upper, left) {
            let mut elements = ctx.body(self.at).overlay.range(Bound::Included(&lower), Bound::Excluded(&upper));
            while let Some(element) = if reverse { elements.next_back() } else { elements.next() } {
                let Some(value) = element.value() else { continue };
                if visit(index, value)?.is_break() {
                    return Ok(());
                }
                (index, left) = (index + step, left.wrapping_sub(1));
            }
        } else {
            let (lower, upper) = (Bound::Included(&lower[..]), Bound::Excluded(&upper[..]));
            for element in ctx.txn.elements(self.at, lower, upper, reverse)? {
                let (_, value) = element?;
                if visit(index, &value)?.is_break() {
                    return Ok(());
                }
                (index, left) = (index + step, left.wrapping_sub(1));
            }
        }
        if left == 0 { Ok(()) } else { Err(hole()) }
    }

    /// The same, of a big list in slices, between which the command rests.
    pub fn pass_in_slices(
        &self,
        ctx: &mut Ctx,
        part: Range<i64>,
        reverse: bool,
        mut visit: impl FnMut(i64, &[u8]) -> Result<ControlFlow<()>>,
    ) -> Result {
        if !ctx.reads_in_slices() {
            return self.each(ctx, part, reverse, visit);
        }
        let (ns, lower, upper) = (ctx.ns(), key_of(part.start), key_of(part.end));
        let slices = Slices::new(self.at, Bound::Included(&lower), Bound::Excluded(&upper), reverse);
        let mut left = part.end.abs_diff(part.start);
        let mut index = if reverse { part.end - 1 } else { part.start };
        let mut ended = false;
        ctx.txn.pass_in_slices(ns, slices, |(_, value)| {
            ended = visit(index, &value)?.is_break();
            index += if reverse { -1 } else { 1 };
            left = left.wrapping_sub(1);
            Ok(!ended)
        })?;
        if left == 0 || ended { Ok(()) } else { Err(hole()) }
    }

    /// Hands a part of a list to `visit`, in order; of a big one in slices, between which it rests.
    pub fn each_in_slices(&self, ctx: &mut Ctx, part: Range<i64>, mut visit: impl FnMut(&[u8]) -> Result) -> Result {
        let (lower, upper) = (key_of(part.start), key_of(part.end));
        let mut left = part.end.abs_diff(part.start);
        // What has been fetched is there, whatever else of the list is not.
        if !ctx.body(self.at).overlay.complete && left <= AT_ONCE.get() && self.has(ctx, &lower, &upper, left) {
            return self.each(ctx, part, false, |_, value| visit(value).map(ControlFlow::Continue));
        }
        ctx.each_in_slices(self.at, Bound::Included(&lower), Bound::Excluded(&upper), |_, value| {
            left = left.wrapping_sub(1);
            visit(value)
        })?;
        if left == 0 { Ok(()) } else { Err(hole()) }
    }

    /// The same from the last to the first.
    pub fn each_in_slices_back(
        &self,
        ctx: &mut Ctx,
        part: Range<i64>,
        mut visit: impl FnMut(&[u8]) -> Result,
    ) -> Result {
        self.pass_in_slices(ctx, part, true, |_, value| visit(value).map(ControlFlow::Continue))
    }

    /// Adds elements at an end, one after the other, so that the last one stands outermost.
    #[inline]
    pub fn push<'v>(&mut self, ctx: &mut Ctx, end: End, values: impl Iterator<Item = &'v [u8]> + Clone) -> Result {
        self.warm(ctx)?;
        let load = Load::of(values.clone());
        self.grow(ctx, load.raw, load.len);
        for value in values {
            let index = match end {
                End::Left => self.head - 1,
                End::Right => self.tail,
            };
            self.put(ctx, index, value);
            match end {
                End::Left => self.head = index,
                End::Right => self.tail = index + 1,
            }
        }
        self.bytes += load.bytes;
        self.store(ctx);
        Ok(())
    }

    /// Takes the element at an end out and hands it to `take`. The last one takes the key with it.
    #[inline]
    pub fn pop(&mut self, ctx: &mut Ctx, end: End, take: impl FnOnce(&[u8])) -> Result {
        if self.len() == 1 {
            take(self.get(ctx, self.head)?);
            ctx.txn.delete_found(self.at);
            self.head = self.tail;
            return Ok(());
        }
        self.take(ctx, end, take)?;
        self.shrink(ctx);
        self.store(ctx);
        Ok(())
    }

    /// Takes the element at an end out; the metadata is still to be stored.
    #[inline]
    fn take(&mut self, ctx: &mut Ctx, end: End, take: impl FnOnce(&[u8])) -> Result {
        let index = if end == End::Left { self.head } else { self.tail - 1 };
        let overlay = &ctx.body(self.at).overlay;
        if !overlay.complete && overlay.get(&key_of(index)).is_none() {
            // The next ones will be popped too.
            self.fetch_missing(ctx, self.part(end, AT_ONCE.get()))?;
        }
        let mut bytes = 0;
        let taken = ctx.txn.take_element(self.at, &key_of(index), |value| {
            bytes = form::entry_bytes(value);
            take(value);
        })?;
        if !taken {
            return Err(hole());
        }
        match end {
            End::Left => self.head += 1,
            End::Right => self.tail -= 1,
        }
        self.bytes = self.bytes.saturating_sub(bytes);
        Ok(())
    }

    /// Has the form follow what is about to be written: so many plain bytes in so many elements.
    #[inline]
    fn grow(&mut self, ctx: &mut Ctx, raw: u64, more: u64) {
        if self.form == form::LISTPACK {
            self.form = form::grown(self.form, (self.bytes, self.len()), (raw, more), max_listpack(ctx));
        }
    }

    /// Has the form follow what was taken.
    #[inline]
    fn shrink(&mut self, ctx: &mut Ctx) {
        if self.form != form::LISTPACK {
            self.form = form::shrunk(self.form, (self.bytes, self.len()), max_listpack(ctx));
        }
    }

    /// What only a list's metadata has.
    #[inline]
    fn extra(&self) -> Extra {
        Extra::List { head: self.head, tail: self.tail, bytes: self.bytes }
    }

    /// Puts the metadata in step.
    #[inline]
    fn store(&self, ctx: &mut Ctx) {
        ctx.txn.set_shape(self.at, self.len(), self.form, self.extra());
    }
}

/// `list-max-listpack-size`.
#[inline]
fn max_listpack(ctx: &mut Ctx) -> i32 {
    ctx.settings().encodings.list_max_listpack_size
}

/// An element is not where the metadata says that there is one.
#[cold]
fn hole() -> Error {
    crate::shard::memory::core::unreadable("a list lacks an element between its ends")
}
