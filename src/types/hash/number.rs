//! Fields that are numbers. A field keeps its time when it is counted up.

use super::fields::Hash;
use crate::handler::{Args, Command, Ctx, Error, Group, KeySpec, Reply, Result, events, flags, key};
use crate::shard::memory::ahead::Look;
use crate::util::long_double::LongDouble;
use crate::util::num::parse_i64;

fn hincrby(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let delta = parse_i64(&args[3]).ok_or(Error::NotInteger)?;
    let mut hash = Hash::find_or_create(ctx, &args[1])?;
    let (expire_ms, old) = match hash.get(ctx, &args[2])? {
        Some((expire_ms, text)) => (expire_ms, parse_i64(text).ok_or(Error::err("ERR hash value is not an integer"))?),
        None => (0, 0),
    };
    let new = old.checked_add(delta).ok_or(Error::Overflow)?;
    hash.put(ctx, &args[2], itoa::Buffer::new().format(new).as_bytes(), expire_ms)?;
    hash.finish(ctx)?;
    out.int(new);
    Ok(())
}

fn hincrbyfloat(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let delta = LongDouble::parse(&args[3]).ok_or(Error::NotFloat)?;
    if delta.is_infinite() {
        return Err(Error::err("ERR value is NaN or Infinity"));
    }
    let mut hash = Hash::find_or_create(ctx, &args[1])?;
    let (expire_ms, old) = match hash.get(ctx, &args[2])? {
        Some((expire_ms, text)) => {
            (expire_ms, LongDouble::parse(text).ok_or(Error::err("ERR hash value is not a float"))?)
        }
        None => (0, LongDouble::from(0.0)),
    };
    let new = old.checked_add(delta).ok_or(Error::err("ERR increment would produce NaN or Infinity"))?;
    let text = new.to_string();
    hash.put(ctx, &args[2], text.as_bytes(), expire_ms)?;
    hash.finish(ctx)?;
    out.bulk(text.as_bytes());
    Ok(())
}

const FLAGS: u32 = flags::WRITE | flags::DENYOOM | flags::FAST;
const KEYS: &[KeySpec] = &[KeySpec::one(1, key::RW | key::ACCESS | key::UPDATE)];

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("hincrby", hincrby, 4, FLAGS, Group::Hash)
        .tells(&events::HINCRBY)
        .keys(KEYS)
        .looks_at(Look::field(2))
        .help("2.0.0", "Adds an integer to a field of a hash, 0 if it is not there.")
        .syntax("key field increment", "O(1)"),
    Command::new("hincrbyfloat", hincrbyfloat, 4, FLAGS, Group::Hash)
        .tells(&events::HINCRBYFLOAT)
        .keys(KEYS)
        .looks_at(Look::field(2))
        .help("2.6.0", "Adds a float to a field of a hash, 0 if it is not there.")
        .syntax("key field increment:double", "O(1)"),
];
