//! HSET, HGET and their kin; whole hashes.

use super::fields::{self, Hash};
use crate::codec::field::Field;
use crate::handler::events;
use crate::handler::limits::may_touch;
use crate::handler::{Args, Command, Ctx, Error, Group, KeySpec, Reply, Result, flags, key};
use crate::shard::memory::ahead::Look;
use crate::shard::memory::core::storage;

/// Sets the pairs behind the key; how many fields were not there.
fn set_pairs(ctx: &mut Ctx, args: Args<'_>, name: &'static str) -> Result<i64> {
    if args.len() % 2 == 1 {
        return Err(Error::Arity(name.into()));
    }
    let mut hash = Hash::find_or_create(ctx, &args[1])?;
    let mut new = 0;
    for at in (2..args.len()).step_by(2) {
        new += i64::from(!hash.put(ctx, &args[at], &args[at + 1], 0)?);
    }
    hash.finish(ctx)?;
    Ok(new)
}

fn hset(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let new = set_pairs(ctx, args, "hset")?;
    out.int(new);
    Ok(())
}

fn hmset(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    set_pairs(ctx, args, "hmset")?;
    out.ok();
    Ok(())
}

fn hsetnx(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let mut hash = Hash::find_or_create(ctx, &args[1])?;
    let absent = hash.get(ctx, &args[2])?.is_none();
    if absent {
        hash.put(ctx, &args[2], &args[3], 0)?;
        hash.finish(ctx)?;
    }
    out.int(absent.into());
    Ok(())
}

fn hget(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    fields::look_at(ctx, &args[1], &args[2], |value| match value {
        Some(value) => out.bulk(value),
        None => out.nil(),
    })
}

fn hmget(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let hash = Hash::find(ctx, &args[1])?;
    out.array(args.len() - 2);
    for (n, field) in args.slice(2).iter().enumerate() {
        ctx.txn.rest_between(ctx.ns(), n)?;
        reply_field(ctx, hash.as_ref(), field, out)?;
    }
    Ok(())
}

/// Replies with a field's value, or nil.
pub(super) fn reply_field(ctx: &mut Ctx, hash: Option<&Hash>, field: &[u8], out: &mut Reply) -> Result {
    match hash.map(|hash| hash.get(ctx, field)).transpose()?.flatten() {
        Some((_, value)) => out.bulk(value),
        None => out.nil(),
    }
    Ok(())
}

/// What is replied of each field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Names,
    Values,
    Both,
}

fn reply_all(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply, part: Part) -> Result {
    let Some(hash) = Hash::find(ctx, &args[1])? else {
        if part == Part::Both {
            out.map(0)
        } else {
            out.array(0)
        }
        return Ok(());
    };
    may_touch(hash.breadth(ctx))?;
    let known = hash.known_len(ctx);
    let mark = match (known, part) {
        (Some(len), Part::Both) => {
            out.map(len as usize);
            None
        }
        (Some(len), _) => {
            out.array(len as usize);
            None
        }
        (None, Part::Both) => Some(out.defer_map()),
        (None, _) => Some(out.defer_array()),
    };
    let mut len = 0;
    hash.each_in_slices(ctx, |Field { name, value, .. }| {
        if part != Part::Values {
            out.bulk(name);
        }
        if part != Part::Names {
            out.bulk(value);
        }
        len += 1;
        Ok(())
    })?;
    match mark {
        Some(mark) => out.set_len(mark, len),
        None if known != Some(len as u64) => return Err(storage(&args[1], "not as many fields as the metadata says")),
        None => {}
    }
    Ok(())
}

fn hgetall(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    reply_all(ctx, args, out, Part::Both)
}

fn hkeys(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    reply_all(ctx, args, out, Part::Names)
}

fn hvals(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    reply_all(ctx, args, out, Part::Values)
}

fn hdel(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let mut count = 0;
    if let Some(mut hash) = Hash::find(ctx, &args[1])? {
        for field in args.slice(2).iter() {
            count += i64::from(hash.remove(ctx, field)?);
        }
        hash.finish(ctx)?;
    }
    out.int(count);
    Ok(())
}

fn hexists(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    fields::look_at(ctx, &args[1], &args[2], |value| out.int(value.is_some().into()))
}

fn hlen(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let len = match Hash::find(ctx, &args[1])? {
        Some(hash) => hash.len(ctx)?,
        None => 0,
    };
    out.int(len as i64);
    Ok(())
}

fn hstrlen(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    fields::look_at(ctx, &args[1], &args[2], |value| out.int(value.map_or(0, <[u8]>::len) as i64))
}

const WRITE: u32 = flags::WRITE | flags::DENYOOM | flags::FAST;
const READ: u32 = flags::READONLY | flags::FAST;
const UPDATED: &[KeySpec] = &[KeySpec::one(1, key::RW | key::UPDATE)];
const ACCESSED: &[KeySpec] = &[KeySpec::one(1, key::RO | key::ACCESS)];
const LOOKED_AT: &[KeySpec] = &[KeySpec::one(1, key::RO)];

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("hset", hset, -4, WRITE, Group::Hash)
        .tells(&events::HSET)
        .keys(UPDATED)
        .looks_at(Look::field(2).each(2))
        .help("2.0.0", "Sets fields of a hash; counts those that were not there.")
        .syntax("key field value [field value ...]", "O(N) where N is the number of fields"),
    Command::new("hmset", hmset, -4, WRITE, Group::Hash)
        .tells(&events::HSET)
        .keys(UPDATED)
        .looks_at(Look::field(2).each(2))
        .help("2.0.0", "Sets fields of a hash.")
        .syntax("key field value [field value ...]", "O(N) where N is the number of fields"),
    Command::new("hsetnx", hsetnx, 4, WRITE, Group::Hash)
        .tells(&events::HSET)
        .keys(&[KeySpec::one(1, key::RW | key::INSERT)])
        .looks_at(Look::field(2))
        .help("2.0.0", "Sets a field of a hash if it is not there.")
        .syntax("key field value", "O(1)"),
    Command::new("hget", hget, 3, READ, Group::Hash)
        .keys(ACCESSED)
        .looks_at(Look::field(2))
        .help("2.0.0", "Returns a field of a hash.")
        .syntax("key field", "O(1)"),
    Command::new("hmget", hmget, -3, READ, Group::Hash)
        .keys(ACCESSED)
        .looks_at(Look::field(2).each(1))
        .help("2.0.0", "Returns fields of a hash.")
        .syntax("key field [field ...]", "O(N) where N is the number of fields"),
    Command::new("hgetall", hgetall, 2, flags::READONLY, Group::Hash)
        .looks_at(Look::HASH)
        .keys(ACCESSED)
        .help("2.0.0", "Returns all fields of a hash with their values.")
        .syntax("key", "O(N) where N is the size of the hash"),
    Command::new("hkeys", hkeys, 2, flags::READONLY, Group::Hash)
        .looks_at(Look::HASH)
        .keys(ACCESSED)
        .help("2.0.0", "Returns the names of all fields of a hash.")
        .syntax("key", "O(N) where N is the size of the hash"),
    Command::new("hvals", hvals, 2, flags::READONLY, Group::Hash)
        .looks_at(Look::HASH)
        .keys(ACCESSED)
        .help("2.0.0", "Returns the values of all fields of a hash.")
        .syntax("key", "O(N) where N is the size of the hash"),
    Command::new("hdel", hdel, -3, flags::WRITE | flags::FAST, Group::Hash)
        .tells(&events::HDEL)
        .keys(&[KeySpec::one(1, key::RW | key::DELETE)])
        .looks_at(Look::field(2).each(1))
        .help("2.0.0", "Removes fields of a hash; a hash without fields is gone.")
        .syntax("key field [field ...]", "O(N) where N is the number of fields"),
    Command::new("hexists", hexists, 3, READ, Group::Hash)
        .keys(LOOKED_AT)
        .looks_at(Look::field(2))
        .help("2.0.0", "Tells whether a field of a hash is there.")
        .syntax("key field", "O(1)"),
    Command::new("hlen", hlen, 2, READ, Group::Hash)
        .keys(LOOKED_AT)
        .help("2.0.0", "Counts the fields of a hash.")
        .syntax("key", "O(1), or O(N) where fields are not counted or some have just expired"),
    Command::new("hstrlen", hstrlen, 3, READ, Group::Hash)
        .keys(LOOKED_AT)
        .looks_at(Look::field(2))
        .help("3.2.0", "Tells the length of a field's value.")
        .syntax("key field", "O(1)"),
];
