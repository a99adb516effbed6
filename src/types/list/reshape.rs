//! Elements moved to make or close a gap, and lists that are cut or written anew.
//!
//! | change | within [`MOST`] elements and [`MOST_BYTES`], and a share of what the command may hold | beyond |
//! |---|---|---|
//! | a gap made or closed | the shorter side moves | the list is written anew, under another version |
//! | ends cut off | they are removed one by one | what is kept is written anew |
//!
//! So memory stays bounded whatever the list's size.

use std::ops::{ControlFlow, Range};

use super::{List, form, key_of, max_listpack};
use crate::codec::Extra;
use crate::handler::limits::{fit_one_by_one, may_touch};
use crate::handler::{Ctx, Found, Result};
use crate::shard::memory::object::Kind;
use crate::shard::txn::build::{Build, Shape};
use crate::util::scale::Scaled;

/// Elements that move or go one by one.
const MOST: Scaled<u64> = Scaled::new(100_000);
/// Bytes that do, about.
const MOST_BYTES: Scaled<u64> = Scaled::new(16 << 20);
/// Fewer go one by one even if they are more than what is kept, if the command may hold that.
const FEW: Scaled<u64> = Scaled::new(1000);
/// Elements, and bytes, that are read before they are written elsewhere.
const BATCH: (usize, usize) = (256, 1 << 20);

/// A list that is written whole, element by element: of any size, as memory stays bounded.
pub struct Builder {
    build: Build,
    next: i64,
    bytes: u64,
}

impl Builder {
    /// Begins with nothing; the key keeps what it holds until the end.
    pub fn new(ctx: &Ctx, key: &[u8]) -> Result<Self> {
        Ok(Builder { build: Build::new(&ctx.txn, ctx.ns(), key)?, next: 0, bytes: 0 })
    }

    /// Adds an element at the end.
    pub fn push(&mut self, value: &[u8]) -> Result {
        self.build.put(&key_of(self.next), value)?;
        self.next += 1;
        self.bytes += form::entry_bytes(value);
        Ok(())
    }

    /// Makes the key hold it, whatever it held before, until `expire_ms` (absolute, 0 for ever); without elements removes the
    /// key.
    pub fn finish_new(self, ctx: &mut Ctx, expire_ms: u64) -> Result<Option<Found>> {
        let len = self.next as u64;
        let form = form::initial((self.bytes, len), max_listpack(ctx));
        let extra = Extra::List { head: 0, tail: self.next, bytes: self.bytes };
        self.build.finish(&mut ctx.txn, Shape { form, extra, expire_ms, ..Shape::new(Kind::List, len) })
    }

    /// Makes the key hold it in place of `list`; `taken` if that had more.
    pub(super) fn finish(self, ctx: &mut Ctx, list: &List, taken: bool) -> Result {
        let expire_ms = ctx.object(list.at).expire_ms;
        let mut list = List { head: 0, tail: self.next, bytes: self.bytes, ..*list };
        if taken {
            list.shrink(ctx);
        }
        let shape = Shape { form: list.form, extra: list.extra(), expire_ms, ..Shape::new(Kind::List, list.len()) };
        self.build.finish(&mut ctx.txn, shape)?;
        Ok(())
    }
}

impl List {
    /// Bytes of so many elements, about.
    fn bytes_of(&self, elements: u64) -> u64 {
        let bytes = u128::from(elements) * u128::from(self.bytes) / u128::from(self.len().max(1));
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// Whether so many elements may move one by one.
    pub(super) fn is_light(&self, elements: u64) -> bool {
        let bytes = self.bytes_of(elements);
        elements <= MOST.get() && bytes <= MOST_BYTES.get() && fit_one_by_one(elements, bytes)
    }

    /// Moves a part of the list by so many places. What it comes upon is overwritten, what it leaves stays as it is.
    pub(super) fn shift(&self, ctx: &mut Ctx, part: Range<i64>, by: i64) -> Result {
        let mut rest = part;
        let mut values: Vec<Box<[u8]>> = Vec::new();
        while !rest.is_empty() {
            let (reverse, mut bytes) = (by > 0, 0);
            self.each(ctx, rest.clone(), reverse, |_, value| {
                values.push(value.into());
                bytes += value.len();
                let full = values.len() == BATCH.0 || bytes >= BATCH.1;
                Ok(if full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            })?;
            for value in values.drain(..) {
                let index = if reverse { rest.end - 1 } else { rest.start };
                self.put(ctx, index + by, &value);
                if reverse {
                    rest.end = index;
                } else {
                    rest.start = index + 1;
                }
            }
        }
        Ok(())
    }

    /// Removes the elements of these indexes, which nothing names any more.
    pub(super) fn clear(&self, ctx: &mut Ctx, part: Range<i64>) -> Result {
        for index in part {
            ctx.txn.remove_element(self.at, &key_of(index))?;
        }
        Ok(())
    }

    /// Keeps only a part of the list, and the key only if that is not empty.
    pub(super) fn cut(mut self, ctx: &mut Ctx, key: &[u8], keep: Range<i64>) -> Result {
        if keep.is_empty() {
            ctx.txn.delete_found(self.at);
            return Ok(());
        }
        let kept = keep.end.abs_diff(keep.start);
        let removed = self.len() - kept;
        if removed == 0 {
            return Ok(());
        }
        if removed > kept.max(FEW.get()) || removed > MOST.get() || !fit_one_by_one(removed, 0) {
            may_touch(kept)?;
            let mut copy = Builder::new(ctx, key)?;
            self.each_in_slices(ctx, keep, |value| copy.push(value))?;
            return copy.finish(ctx, &self, true);
        }
        may_touch(removed)?;
        self.warm(ctx)?;
        let mut bytes = 0;
        for part in [self.head..keep.start, keep.end..self.tail] {
            self.each(ctx, part.clone(), false, |_, value| {
                bytes += form::entry_bytes(value);
                Ok(ControlFlow::Continue(()))
            })?;
            self.clear(ctx, part)?;
        }
        (self.head, self.tail) = (keep.start, keep.end);
        self.bytes = self.bytes.saturating_sub(bytes);
        self.shrink(ctx);
        self.store(ctx);
        Ok(())
    }

    /// Puts an element in front of the one at an index, or behind the last.
    pub(super) fn insert(mut self, ctx: &mut Ctx, key: &[u8], index: i64, value: &[u8]) -> Result {
        let (left, right) = (index.abs_diff(self.head), self.tail.abs_diff(index));
        self.grow(ctx, value.len() as u64, 1);
        may_touch(left.min(right))?;
        if !self.is_light(left.min(right)) {
            let mut copy = Builder::new(ctx, key)?;
            self.each_in_slices(ctx, self.head..index, |value| copy.push(value))?;
            copy.push(value)?;
            self.each_in_slices(ctx, index..self.tail, |value| copy.push(value))?;
            return copy.finish(ctx, &self, false);
        }
        if left < right {
            self.shift(ctx, self.head..index, -1)?;
            self.put(ctx, index - 1, value);
            self.head -= 1;
        } else {
            self.shift(ctx, index..self.tail, 1)?;
            self.put(ctx, index, value);
            self.tail += 1;
        }
        self.bytes += form::entry_bytes(value);
        self.store(ctx);
        Ok(())
    }

    /// Takes out the elements of these ascending indexes, all of which are as many bytes as listpack entries; the
    /// longest run between them stays where it is. Nothing is done if that would move too much: false.
    pub(super) fn remove(&mut self, ctx: &mut Ctx, holes: &[i64], entry_bytes: u64) -> Result<bool> {
        let run = |n: usize| {
            let start = if n == 0 { self.head } else { holes[n - 1] + 1 };
            start..holes.get(n).copied().unwrap_or(self.tail)
        };
        let len = |n: &usize| run(*n).end.abs_diff(run(*n).start);
        let still = (0..=holes.len()).max_by_key(len).unwrap_or(0);
        let moves = self.len() - len(&still);
        may_touch(moves)?;
        if !self.is_light(moves) || !fit_one_by_one(moves + holes.len() as u64, self.bytes_of(moves)) {
            return Ok(false);
        }
        for n in (0..still).rev() {
            self.shift(ctx, run(n), (still - n) as i64)?;
        }
        for n in still + 1..=holes.len() {
            self.shift(ctx, run(n), -((n - still) as i64))?;
        }
        let (head, tail) = (self.head + still as i64, self.tail - (holes.len() - still) as i64);
        self.clear(ctx, self.head..head)?;
        self.clear(ctx, tail..self.tail)?;
        (self.head, self.tail) = (head, tail);
        self.bytes = self.bytes.saturating_sub(entry_bytes * holes.len() as u64);
        self.shrink(ctx);
        self.store(ctx);
        Ok(true)
    }
}
