//! Strings that are numbers.
//!
//! A number is stored as its text. Only small strings can be numbers, so none of the commands looks at chunks: the
//! inline value of a big string is empty, which is no number.

use crate::handler::{Args, Command, Ctx, Error, Group, KeySpec, Reply, Result, events, flags, key};
use crate::shard::memory::object::state;
use crate::util::long_double::LongDouble;
use crate::util::num::parse_i64;

fn incr(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    add(ctx, &args[1], 1, out)
}

fn decr(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    add(ctx, &args[1], -1, out)
}

fn incrby(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let delta = parse_i64(&args[2]).ok_or(Error::NotInteger)?;
    add(ctx, &args[1], delta, out)
}

fn decrby(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let delta = parse_i64(&args[2]).ok_or(Error::NotInteger)?;
    let delta = delta.checked_neg().ok_or(Error::err("ERR decrement would overflow"))?;
    add(ctx, &args[1], delta, out)
}

#[inline]
fn add(ctx: &mut Ctx, key: &[u8], delta: i64, out: &mut Reply) -> Result {
    let (old, expire_ms) = match ctx.lookup_string(key)? {
        None => (0, 0),
        Some(found) => {
            let object = ctx.object(found);
            (parse_i64(object.value()).ok_or(Error::NotInteger)?, object.expire_ms)
        }
    };
    let new = old.checked_add(delta).ok_or(Error::Overflow)?;
    ctx.set_string(key, itoa::Buffer::new().format(new).as_bytes(), expire_ms)?;
    out.int(new);
    Ok(())
}

fn incrbyfloat(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let (old, expire_ms) = match ctx.lookup_string(&args[1])? {
        None => (LongDouble::from(0.0), 0),
        Some(found) => {
            let object = ctx.object(found);
            (LongDouble::parse(object.value()).ok_or(Error::NotFloat)?, object.expire_ms)
        }
    };
    let delta = LongDouble::parse(&args[2]).ok_or(Error::NotFloat)?;
    let new = old.checked_add(delta).ok_or(Error::err("ERR increment would produce NaN or Infinity"))?;
    let text = new.to_string();
    let found = ctx.set_string(&args[1], text.as_bytes(), expire_ms)?;
    // Redis keeps the result as text, even that of 1.5 + 1.5.
    ctx.mark_encoding(found, state::TEXT);
    out.bulk(text.as_bytes());
    Ok(())
}

const FLAGS: u32 = flags::WRITE | flags::DENYOOM | flags::FAST;
const KEYS: &[KeySpec] = &[KeySpec::one(1, key::RW | key::ACCESS | key::UPDATE)];

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("incr", incr, 2, FLAGS, Group::String)
        .tells(&events::INCRBY)
        .keys(KEYS)
        .help("1.0.0", "Adds one to a number, 0 if the key is not there.")
        .syntax("key", "O(1)"),
    Command::new("decr", decr, 2, FLAGS, Group::String)
        .tells(&events::INCRBY)
        .keys(KEYS)
        .help("1.0.0", "Subtracts one from a number, 0 if the key is not there.")
        .syntax("key", "O(1)"),
    Command::new("incrby", incrby, 3, FLAGS, Group::String)
        .tells(&events::INCRBY)
        .keys(KEYS)
        .help("1.0.0", "Adds an integer to a number, 0 if the key is not there.")
        .syntax("key increment", "O(1)"),
    Command::new("decrby", decrby, 3, FLAGS, Group::String)
        .tells(&events::INCRBY)
        .keys(KEYS)
        .help("1.0.0", "Subtracts an integer from a number, 0 if the key is not there.")
        .syntax("key decrement", "O(1)"),
    Command::new("incrbyfloat", incrbyfloat, 3, FLAGS, Group::String)
        .tells(&events::INCRBYFLOAT)
        .keys(KEYS)
        .help("2.6.0", "Adds a float to a number, 0 if the key is not there.")
        .syntax("key increment:double", "O(1)"),
];
