//! Values as RDB has them, put under a key.

use smallvec::SmallVec;

use crate::codec::element::{self, with_text};
use crate::codec::field::{FieldTimes, push_timed};
use crate::codec::{Extra, Score};
use crate::config::settings::Encodings;
use crate::handler::{Ctx, Found, Result};
use crate::rdb::{Field, Value};
use crate::shard::build::{Build, Shape};
use crate::shard::core::unreadable;
use crate::shard::object::Kind;
use crate::types::set::form as set_form;

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
        Value::Stream(_) => Err(crate::handler::Error::Syntax),
    }
}

fn set(ctx: &mut Ctx, key: &[u8], members: Vec<Vec<u8>>, expire_ms: u64) -> Result<Option<Found>> {
    let settings = ctx.settings();
    let (limits, encoding) = (settings.encodings, settings.set_encode_version);
    let count = members.len();
    let mut form = if count > limits.set_max_intset_entries { set_form::HASHTABLE } else { set_form::INTSET };
    let mut build = Build::new(&ctx.txn, ctx.ns(), key);
    for (size, member) in members.into_iter().enumerate() {
        form = set_form::grown(form, size as u64, &member, &limits);
        let mut key = Key::new();
        element::set_member(&member, &mut key);
        build.put(&key, &with_text(&member, b""))?;
    }
    let shape = Shape { encoding, form, expire_ms, ..Shape::new(Kind::Set, count as u64) };
    build.finish(&mut ctx.txn, shape)
}
