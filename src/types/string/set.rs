//! SET and what is short for it.

use super::condition::Condition;
use super::value::{reply_value, set_until};
use crate::handler::events::{self, Event};
use crate::handler::{Args, Command, Ctx, Error, Group, KeySpec, Reply, Result, flags, key};
use crate::types::expire_options::{ExpireOption, WRITE_WORDS, Word, absolute_ms};

/// What happens to a key that is set together with its time.
const SET_UNTIL: &[Event] = &[events::SET, events::EXPIRE];

fn set(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    if args.len() > 3 {
        return set_with_options(ctx, args, out);
    }
    ctx.set_string(&args[1], &args[2], 0)?;
    out.ok();
    Ok(())
}

fn set_with_options(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let (mut condition, mut expiry, mut get) = (Condition::Always, ExpireOption::default(), false);
    let mut options = args.cursor(3);
    while !options.is_empty() {
        if options.next_is(b"GET") {
            get = true;
        } else if !condition.take(&mut options)? && !expiry.take(&mut options, WRITE_WORDS)? {
            return Err(Error::Syntax);
        }
    }
    let expire_ms = expiry.at_ms(ctx.now_ms, "set")?;
    let found = if get {
        ctx.to_read(|ctx| ctx.lookup_string(&args[1]))?
    } else if condition != Condition::Always || expiry.is(Word::KeepTtl) {
        ctx.lookup(&args[1])?
    } else {
        // Whatever it is.
        None
    };
    if get {
        match found {
            Some(found) => reply_value(ctx, found, out)?,
            None => out.nil(),
        }
    }
    if !condition.holds(ctx, found)? {
        if !get {
            out.nil();
        }
        return Ok(());
    }
    let kept = match found {
        Some(found) if expiry.is(Word::KeepTtl) => ctx.object(found).expire_ms,
        _ => 0,
    };
    if expire_ms.is_some() {
        ctx.happens(SET_UNTIL);
    }
    set_until(ctx, &args[1], &args[2], expire_ms.unwrap_or(kept))?;
    if !get {
        out.ok();
    }
    Ok(())
}

fn setex(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let expire_ms = absolute_ms(&args[2], Word::Ex, ctx.now_ms, "setex")?;
    ctx.happens(SET_UNTIL);
    ctx.set_string(&args[1], &args[3], expire_ms)?;
    out.ok();
    Ok(())
}

fn psetex(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let expire_ms = absolute_ms(&args[2], Word::Px, ctx.now_ms, "psetex")?;
    ctx.happens(SET_UNTIL);
    ctx.set_string(&args[1], &args[3], expire_ms)?;
    out.ok();
    Ok(())
}

fn setnx(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let absent = ctx.lookup(&args[1])?.is_none();
    if absent {
        ctx.set_string(&args[1], &args[2], 0)?;
    }
    out.int(absent.into());
    Ok(())
}

fn getset(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    match ctx.to_read(|ctx| ctx.lookup_string(&args[1]))? {
        Some(found) => reply_value(ctx, found, out)?,
        None => out.nil(),
    }
    ctx.set_string(&args[1], &args[2], 0)?;
    Ok(())
}

/// Whoever is told the old value, or whether it is a certain one, reads it.
fn set_access(args: Args<'_>) -> u16 {
    const READING: [&str; 5] = ["get", "ifeq", "ifne", "ifdeq", "ifdne"];
    let reads = |arg: &[u8]| READING.iter().any(|word| arg.eq_ignore_ascii_case(word.as_bytes()));
    if args.iter().skip(3).any(reads) { key::RW | key::ACCESS | key::UPDATE } else { key::OW | key::UPDATE }
}

const WRITE: u32 = flags::WRITE | flags::DENYOOM;

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("set", set, -3, WRITE, Group::String)
        .tells(&events::SET)
        .keys(&[KeySpec::one(1, key::RW | key::ACCESS | key::UPDATE | key::VARIABLE_FLAGS)])
        .access_by(set_access)
        // With a time, or nothing but the value: most conditions are a word alone.
        .overwrites(|args| args == 3 || args == 5)
        .help("1.0.0", "Makes a key hold a string, whatever it held; on a condition and with an expiry if so asked.")
        .syntax(
            "key value [NX | XX | IFEQ value | IFNE value | IFDEQ digest | IFDNE digest] [GET] \
             [EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | KEEPTTL]",
            "O(1)",
        ),
    Command::new("setex", setex, 4, WRITE, Group::String)
        .tells(&events::SET)
        .keys(&[KeySpec::one(1, key::OW | key::UPDATE)])
        .overwrites(|_| true)
        .help("2.0.0", "Makes a key hold a string that expires in so many seconds.")
        .syntax("key seconds value", "O(1)"),
    Command::new("psetex", psetex, 4, WRITE, Group::String)
        .tells(&events::SET)
        .keys(&[KeySpec::one(1, key::OW | key::UPDATE)])
        .overwrites(|_| true)
        .help("2.6.0", "Makes a key hold a string that expires in so many milliseconds.")
        .syntax("key milliseconds value", "O(1)"),
    Command::new("setnx", setnx, 3, WRITE | flags::FAST, Group::String)
        .tells(&events::SET)
        .keys(&[KeySpec::one(1, key::OW | key::INSERT)])
        .help("1.0.0", "Makes a key hold a string if the key is not there.")
        .syntax("key value", "O(1)"),
    Command::new("getset", getset, 3, WRITE | flags::FAST, Group::String)
        .tells(&events::SET)
        .keys(&[KeySpec::one(1, key::RW | key::ACCESS | key::UPDATE)])
        .help("1.0.0", "Makes a key hold a string and returns the one it held.")
        .syntax("key value", "O(1)"),
];
