//! Values as RDB has them, put under a key.

use super::builder::Builder;
use crate::codec::Kind;
use crate::handler::{Ctx, Found, Result};
use crate::rdb::Value;
use crate::rdb::file::Part;
use crate::shard::txn::BIG_STRING;

/// Makes a key hold a value, whatever it held before; `expire_ms` absolute, 0 for never. `None` for a hash without
/// fields, which removes the key.
pub fn scatter(ctx: &mut Ctx, key: &[u8], value: Value, expire_ms: u64) -> Result<Option<Found>> {
    let begin = |ctx: &mut Ctx, kind, timed, count| Builder::new(ctx, key, kind, timed, Some(count));
    match value {
        Value::String(text) => {
            if text.len() <= BIG_STRING && ctx.txn.put_string_straight(ctx.ns(), key, &text, expire_ms)? {
                return Ok(None);
            }
            ctx.set_string(key, &text, expire_ms).map(Some)
        }
        Value::List(elements) => {
            let build = begin(ctx, Kind::List, false, elements.len())?;
            all(ctx, build, elements.into_iter().map(Part::Element), expire_ms)
        }
        Value::Set(members) => {
            let build = begin(ctx, Kind::Set, false, members.len())?;
            all(ctx, build, members.into_iter().map(Part::Member), expire_ms)
        }
        Value::Zset(members) => {
            let build = begin(ctx, Kind::Zset, false, members.len())?;
            all(ctx, build, members.into_iter().map(|(member, score)| Part::Scored(member, score)), expire_ms)
        }
        Value::Hash(fields) => {
            let timed = fields.iter().any(|field| field.expire_ms != 0);
            let build = begin(ctx, Kind::Hash, timed, fields.len())?;
            all(ctx, build, fields.into_iter().map(Part::Field), expire_ms)
        }
        Value::Stream(mut stream) => {
            let build = begin(ctx, Kind::Stream, false, stream.entries.len())?;
            let counters = Part::Counters(stream.counters());
            let groups = std::mem::take(&mut stream.groups);
            let pending: usize = groups.iter().map(|group| group.pending.len() + group.consumers.len()).sum();
            let parts = stream.entries.into_iter().map(Part::Entry);
            let parts = parts.chain([counters]).chain(groups.into_iter().map(Part::Group));
            within(ctx, build, pending, parts, expire_ms)
        }
    }
}

fn all(
    ctx: &mut Ctx,
    build: Builder,
    parts: impl ExactSizeIterator<Item = Part>,
    expire_ms: u64,
) -> Result<Option<Found>> {
    let steps = parts.len();
    within(ctx, build, steps, parts, expire_ms)
}

/// Puts pieces, which take about so many steps.
fn within(
    ctx: &mut Ctx,
    mut build: Builder,
    steps: usize,
    mut parts: impl Iterator<Item = Part>,
    expire_ms: u64,
) -> Result<Option<Found>> {
    let steps = steps.max(parts.size_hint().0);
    ctx.txn.rest_for(ctx.ns(), steps, || parts.try_for_each(|part| build.put(part)))?;
    build.finish(ctx, expire_ms)
}
