//! Reading a value, and what may become of it then.

use super::value::{reply_string, reply_value};
use crate::handler::{Args, Command, Ctx, Error, Group, KeySpec, Reply, Result, events, flags, key};
use crate::types::expire_options::{ExpireOption, READ_WORDS, Word};

fn get(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    reply_string(ctx, &args[1], true, out)
}

fn getdel(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let Some(found) = ctx.to_read(|ctx| ctx.lookup_string(&args[1]))? else {
        out.nil();
        return Ok(());
    };
    reply_value(ctx, found, out)?;
    ctx.delete_found(found);
    Ok(())
}

fn getex(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let mut expiry = ExpireOption::default();
    let mut options = args.cursor(2);
    while !options.is_empty() {
        if !expiry.take(&mut options, READ_WORDS)? {
            return Err(Error::Syntax);
        }
    }
    let Some(found) = ctx.to_read(|ctx| ctx.lookup_string(&args[1]))? else {
        out.nil();
        return Ok(());
    };
    // The time is read only now: an absent key or a wrong type comes first.
    let expire_ms = expiry.at_ms(ctx.now_ms, "getex")?;
    reply_value(ctx, found, out)?;
    match expire_ms {
        Some(at) if expiry.is_absolute() && at <= ctx.due_ms => {
            ctx.delete_found(found);
        }
        Some(at) => ctx.set_expiry(found, at),
        None if expiry.is(Word::Persist) && ctx.object(found).expire_ms != 0 => {
            ctx.set_expiry(found, 0);
            ctx.happens(&[events::PERSIST]);
        }
        None => {}
    }
    Ok(())
}

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("get", get, 2, flags::READONLY | flags::FAST, Group::String)
        .keys(&[KeySpec::one(1, key::RO | key::ACCESS)])
        .help("1.0.0", "Returns the string that a key holds.")
        .syntax("key", "O(1)"),
    Command::new("getdel", getdel, 2, flags::WRITE | flags::FAST, Group::String)
        .tells(&events::DEL)
        .keys(&[KeySpec::one(1, key::RW | key::ACCESS | key::DELETE)])
        .help("6.2.0", "Returns the string that a key holds and deletes the key.")
        .syntax("key", "O(1)"),
    Command::new("getex", getex, -2, flags::WRITE | flags::FAST, Group::String)
        .tells(&events::EXPIRE)
        .keys(&[KeySpec::one(1, key::RW | key::ACCESS | key::UPDATE)])
        .help("6.2.0", "Returns the string that a key holds and sets or removes the key's expiry.")
        .syntax(
            "key [EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | PERSIST]",
            "O(1)",
        ),
];
