//! What a key holds, whole in memory, as RDB has it.

use crate::codec::CodecError;
use crate::codec::element::{Element, Group, split_text};
use crate::codec::field::{Field, FieldTimes};
use crate::handler::limits::{max_len, may_go_through, may_touch};
use crate::handler::{Ctx, Error, Found, Result};
use crate::meter;
use crate::rdb::{self, Value};
use crate::shard::memory::core::unreadable;
use crate::shard::memory::object::{ELEMENT_OVERHEAD, Kind};
use crate::types::list::{End, List};

/// Memory that may still be taken: what RESTORE would refuse is not worth a payload.
pub(super) struct Room(u64);

impl Room {
    pub(super) fn new(ctx: &Ctx) -> Self {
        Room(max_len(ctx))
    }

    /// Takes room for so many bytes in so many elements.
    pub(super) fn take(&mut self, bytes: usize, elements: usize) -> Result {
        let bytes = bytes + elements * ELEMENT_OVERHEAD;
        meter::hold(bytes)?;
        self.0 = self.0.checked_sub(bytes as u64).ok_or(Error::TooMuch)?;
        Ok(())
    }
}

/// What a key holds as a payload for RESTORE; `None` as of [`gather`]. What is large is gone through in slices, and written where
/// others can go on.
///
/// # Errors
/// As of [`gather`], and of [`crate::shard::txn::Txn::rest`].
pub fn payload(ctx: &mut Ctx, key: &[u8]) -> Result<Option<Vec<u8>>> {
    let Some(value) = gather(ctx, key)? else { return Ok(None) };
    let (ns, steps) = (ctx.ns(), steps(&value));
    let payload = ctx.txn.rest_for(ns, steps, move || {
        let mut payload = Vec::new();
        rdb::encode(&value, &mut payload);
        Ok(payload)
    })?;
    Ok(Some(payload))
}

/// What it takes to write it, as that many elements of a slice.
fn steps(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len() / meter::STEP_BYTES,
        Value::List(all) | Value::Set(all) => all.len(),
        Value::Zset(all) => all.len(),
        Value::Hash(fields) => fields.len(),
        Value::Stream(stream) => stream.entries.len(),
    }
}

/// What a key holds; `None` if it is not there, or is a hash whose fields have all expired.
///
/// # Errors
/// `TooMuch` for what no request could bring back, besides failed reads.
fn gather(ctx: &mut Ctx, key: &[u8]) -> Result<Option<Value>> {
    let Some(at) = ctx.lookup(key)? else { return Ok(None) };
    let kind = ctx.object(at).kind;
    if kind == Kind::String {
        may_go_through(ctx.string_len(at))?;
        return Ok(Some(Value::String(ctx.string_value(at)?.into_owned())));
    }
    may_touch(ctx.size(at))?;
    Ok(Some(match kind {
        Kind::List => Value::List(elements(ctx, key)?),
        Kind::Set => Value::Set(members(ctx, at)?),
        Kind::Zset => Value::Zset(scored(ctx, at)?),
        Kind::Hash => {
            let fields = fields(ctx, at)?;
            if fields.is_empty() {
                return Ok(None);
            }
            Value::Hash(fields)
        }
        Kind::Stream => Value::Stream(Box::new(super::stream::gather(ctx, key, &mut Room::new(ctx))?)),
        Kind::String | Kind::Absent => unreachable!("a found key is there"),
    }))
}

/// Visits all elements of a group, unless they are too many for a payload.
fn each(
    ctx: &mut Ctx,
    at: Found,
    group: Group,
    mut visit: impl FnMut(&[u8], &[u8]) -> Result<(), CodecError>,
) -> Result {
    let mut room = Room::new(ctx);
    ctx.txn.group_in_slices(at, group, |element, value| {
        room.take(element.len() + value.len(), 1)?;
        visit(element, value).map_err(unreadable)
    })
}

fn elements(ctx: &mut Ctx, key: &[u8]) -> Result<Vec<Vec<u8>>> {
    let Some(list) = List::find(ctx, key)? else { return Ok(Vec::new()) };
    let (mut all, mut room) = (Vec::new(), Room::new(ctx));
    list.each_in_slices(ctx, list.part(End::Left, u64::MAX), |element| {
        room.take(element.len(), 1)?;
        all.push(element.to_vec());
        Ok(())
    })?;
    Ok(all)
}

fn members(ctx: &mut Ctx, at: Found) -> Result<Vec<Vec<u8>>> {
    let mut all = Vec::new();
    each(ctx, at, Group::SetMember, |element, value| {
        all.push(split_text(element.get(1..).unwrap_or_default(), value)?.0.to_vec());
        Ok(())
    })?;
    Ok(all)
}

fn scored(ctx: &mut Ctx, at: Found) -> Result<Vec<(Vec<u8>, f64)>> {
    let mut all = Vec::new();
    each(ctx, at, Group::ZsetSort, |element, value| {
        if let Element::ZsetSort(score, stored) = Element::decode(element)? {
            all.push((split_text(stored, value)?.0.to_vec(), score.get()));
        }
        Ok(())
    })?;
    Ok(all)
}

fn fields(ctx: &mut Ctx, at: Found) -> Result<Vec<rdb::Field>> {
    let timed = FieldTimes::of(&ctx.body(at).extra).is_some();
    let (mut all, due_ms) = (Vec::new(), ctx.due_ms);
    each(ctx, at, Group::HashField, |element, value| {
        let field = Field::split(element.get(1..).unwrap_or_default(), value, timed)?;
        if field.is_live(due_ms) {
            let (name, value) = (field.name.to_vec(), field.value.to_vec());
            all.push(rdb::Field { name, value, expire_ms: field.expire_ms });
        }
        Ok(())
    })?;
    Ok(all)
}
