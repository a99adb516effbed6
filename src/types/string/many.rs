//! Several strings at once.

use super::condition::Condition;
use super::value::{reply_string, set_until};
use crate::handler::{Args, Command, Ctx, Error, Group, KeySpec, Reply, Result, events, flags, key};
use crate::types::expire_options::{ExpireOption, WRITE_WORDS, Word};
use crate::util::num::parse_i64;

fn mget(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    out.array(args.len() - 1);
    for key in args.iter().skip(1) {
        // No error for another type: one bad key does not spoil the rest.
        reply_string(ctx, key, false, out)?;
    }
    Ok(())
}

fn mset(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    if args.len().is_multiple_of(2) {
        return Err(Error::Arity("mset".into()));
    }
    for at in (1..args.len()).step_by(2) {
        ctx.set_string(&args[at], &args[at + 1], 0)?;
        // A key that is given twice is told of twice.
        ctx.tell(&events::SET, &args[at]);
    }
    out.ok();
    Ok(())
}

fn msetnx(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    if args.len().is_multiple_of(2) {
        return Err(Error::Arity("msetnx".into()));
    }
    for at in (1..args.len()).step_by(2) {
        if ctx.lookup(&args[at])?.is_some() {
            out.int(0);
            return Ok(());
        }
    }
    for at in (1..args.len()).step_by(2) {
        ctx.set_string(&args[at], &args[at + 1], 0)?;
        ctx.tell(&events::SET, &args[at]);
    }
    out.int(1);
    Ok(())
}

fn msetex(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    const PAIRS: usize = 2;
    let count = parse_i64(&args[1]).filter(|count| (1..=i64::from(i32::MAX)).contains(count));
    let count = count.ok_or(Error::err("ERR invalid numkeys value or out of range"))? as usize;
    let end = PAIRS + count * 2;
    if end > args.len() {
        return Err(Error::Syntax);
    }
    let (mut condition, mut expiry) = (Condition::Always, ExpireOption::default());
    let mut options = args.cursor(end);
    while !options.is_empty() {
        if !condition.take_existence(&mut options)? && !expiry.take(&mut options, WRITE_WORDS)? {
            return Err(Error::Syntax);
        }
    }
    let expire_ms = expiry.at_ms(ctx.now_ms, "msetex")?;
    if condition != Condition::Always {
        for at in (PAIRS..end).step_by(2) {
            let found = ctx.lookup(&args[at])?;
            if !condition.holds(ctx, found)? {
                out.int(0);
                return Ok(());
            }
        }
    }
    for at in (PAIRS..end).step_by(2) {
        let kept = match expire_ms {
            None if expiry.is(Word::KeepTtl) => ctx.lookup(&args[at])?.map_or(0, |found| ctx.object(found).expire_ms),
            _ => 0,
        };
        set_until(ctx, &args[at], &args[at + 1], expire_ms.unwrap_or(kept))?;
    }
    out.int(1);
    Ok(())
}

const WRITE: u32 = flags::WRITE | flags::DENYOOM;

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("mget", mget, -2, flags::READONLY | flags::FAST, Group::String)
        .keys(&[KeySpec::range(1, -1, 1, key::RO | key::ACCESS)])
        .help("1.0.0", "Returns the strings that several keys hold, nil for what is no string.")
        .syntax("key [key ...]", "O(N) where N is the number of keys."),
    Command::new("mset", mset, -3, WRITE, Group::String)
        .keys(&[KeySpec::range(1, -1, 2, key::OW | key::UPDATE)])
        .overwrites(|_| true)
        .help("1.0.1", "Makes several keys hold a string each, all at once.")
        .syntax("key value [key value ...]", "O(N) where N is the number of keys."),
    Command::new("msetnx", msetnx, -3, WRITE, Group::String)
        .keys(&[KeySpec::range(1, -1, 2, key::OW | key::INSERT)])
        .help("1.0.1", "Makes several keys hold a string each if none of them is there.")
        .syntax("key value [key value ...]", "O(N) where N is the number of keys."),
    Command::new("msetex", msetex, -4, WRITE | flags::MOVABLEKEYS, Group::String)
        .tells(&events::SET)
        .keys(&[KeySpec::counted(1, 2, key::OW | key::UPDATE)])
        .help("9.1.0", "Makes several keys hold a string each, on a condition and with one expiry if so asked.")
        .syntax(
            "numkeys key value [key value ...] [NX | XX] [EX seconds | PX milliseconds | EXAT unix-time-seconds | \
             PXAT unix-time-milliseconds | KEEPTTL]",
            "O(N) where N is the number of keys.",
        ),
];
