//! Values as RDB has them, put under a key.
//!
//! Sets and hashes are exact whatever `set-encode-version` and `hash-encode-version` say: their elements are counted
//! anyway.

use smallvec::SmallVec;

use crate::codec::element::{self, with_text};
use crate::codec::field::{FieldTimes, push_timed};
use crate::codec::{Extra, Score};
use crate::handler::{Ctx, Found, Result};
use crate::rdb::{Field, Value};
use crate::shard::memory::core::unreadable;
use crate::shard::memory::object::Kind;
use crate::shard::txn::build::{Build, Shape};
use crate::types::hash::fields::form_of as hash_form;
use crate::types::list;
use crate::types::set::form as set_form;
use crate::types::zset::store::Builder;
use crate::types::zset::value::form_of;

type Key = SmallVec<[u8; 64]>;

/// Makes a key hold a value, whatever it held before; `expire_ms` absolute, 0 for never. `None` for a hash without
/// fields, which removes the key.
pub fn scatter(ctx: &mut Ctx, key: &[u8], value: Value, expire_ms: u64) -> Result<Option<Found>> {
    match value {
        Value::String(text) => ctx.set_string(key, &text, expire_ms).map(Some),
        Value::List(elements) => list(ctx, key, elements, expire_ms),
        Value::Set(members) => set(ctx, key, members, expire_ms),
        Value::Zset(members) => zset(ctx, key, members, expire_ms),
        Value::Hash(fields) => hash(ctx, key, fields, expire_ms),
        Value::Stream(stream) => super::stream::scatter(ctx, key, *stream, expire_ms),
    }
}

fn list(ctx: &mut Ctx, key: &[u8], elements: Vec<Vec<u8>>, expire_ms: u64) -> Result<Option<Found>> {
    let mut list = list::Builder::new(ctx, key)?;
    ctx.txn.rest_for(ctx.ns(), elements.len(), || elements.into_iter().try_for_each(|element| list.push(&element)))?;
    list.finish_new(ctx, expire_ms)
}

fn set(ctx: &mut Ctx, key: &[u8], members: Vec<Vec<u8>>, expire_ms: u64) -> Result<Option<Found>> {
    let limits = ctx.settings().encodings;
    let count = members.len();
    let mut form = if count > limits.set_max_intset_entries { set_form::HASHTABLE } else { set_form::INTSET };
    let mut build = Build::new(&ctx.txn, ctx.ns(), key)?;
    ctx.txn.rest_for(ctx.ns(), count, || {
        members.into_iter().enumerate().try_for_each(|(size, member)| {
            form = set_form::grown(form, size as u64, &member, &limits);
            let mut key = Key::new();
            element::set_member(&member, &mut key);
            build.put(&key, &with_text(&member, b""))
        })
    })?;
    let shape = Shape { form, expire_ms, ..Shape::new(Kind::Set, count as u64) };
    build.finish(&mut ctx.txn, shape)
}

fn zset(ctx: &mut Ctx, key: &[u8], members: Vec<(Vec<u8>, f64)>, expire_ms: u64) -> Result<Option<Found>> {
    let (count, longest) = (members.len() as u64, members.iter().map(|(member, _)| member.len()).max());
    let form = form_of(ctx, count, longest.unwrap_or(0));
    let mut build = Builder::new(ctx, key)?;
    ctx.txn.rest_for(ctx.ns(), members.len(), || {
        let put = |(member, score): (Vec<u8>, f64)| build.put(&member, Score::new(score).map_err(unreadable)?);
        members.into_iter().try_for_each(put)
    })?;
    build.finish_as(ctx, form, expire_ms)?;
    ctx.lookup(key)
}

fn hash(ctx: &mut Ctx, key: &[u8], fields: Vec<Field>, expire_ms: u64) -> Result<Option<Found>> {
    let timed = fields.iter().any(|field| field.expire_ms != 0);
    let longest = fields.iter().map(|field| field.name.len().max(field.value.len())).max();
    let form = hash_form(fields.len() as u64, longest.unwrap_or(0), timed, &ctx.settings().encodings);
    let (mut count, mut times, mut proper) = (0, FieldTimes::default(), Vec::new());
    let mut build = Build::new(&ctx.txn, ctx.ns(), key)?;
    ctx.txn.rest_for(ctx.ns(), fields.len(), || {
        fields.into_iter().try_for_each(|Field { name, value, expire_ms }| {
            let mut key = Key::new();
            element::hash_field(&name, &mut key);
            count += 1;
            if timed {
                proper.clear();
                push_timed(expire_ms, &value, &mut proper);
                times.add(expire_ms);
                build.put(&key, &with_text(&name, &proper))
            } else {
                build.put(&key, &with_text(&name, &value))
            }
        })
    })?;
    times.settle(count);
    let extra = if timed { times.extra() } else { Extra::None };
    build.finish(&mut ctx.txn, Shape { form, extra, expire_ms, ..Shape::new(Kind::Hash, count) })
}
