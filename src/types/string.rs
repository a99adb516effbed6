//! Strings.

use crate::handler::{Args, Command, Ctx, Error, Group, KeySpec, Reply, Result, flags, key};
use crate::util::num::parse_i64;

fn get(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    match ctx.lookup_string(&args[1])? {
        None => out.nil(),
        Some(found) => out.bulk(&ctx.string_value(found)?),
    }
    Ok(())
}

fn set(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    ctx.set_string(&args[1], &args[2], 0)?;
    out.ok();
    Ok(())
}

fn incr(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let (old, expire_ms) = match ctx.lookup_string(&args[1])? {
        None => (0, 0),
        Some(found) => {
            let value = ctx.string_value(found)?;
            (parse_i64(&value).ok_or(Error::NotInteger)?, ctx.object(found).expire_ms)
        }
    };
    let new = old.checked_add(1).ok_or(Error::Overflow)?;
    let mut text = itoa::Buffer::new();
    ctx.set_string(&args[1], text.format(new).as_bytes(), expire_ms)?;
    out.int(new);
    Ok(())
}

fn mset(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    for i in (1..args.len()).step_by(2) {
        ctx.set_string(&args[i], &args[i + 1], 0)?;
    }
    out.ok();
    Ok(())
}

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("get", get, 2, flags::READONLY | flags::FAST, Group::String).keys(&[KeySpec::one(1, key::RO)]),
    Command::new("set", set, -3, flags::WRITE, Group::String).keys(&[KeySpec::one(1, key::RW)]),
    Command::new("incr", incr, 2, flags::WRITE | flags::FAST, Group::String).keys(&[KeySpec::one(1, key::RW)]),
    Command::new("mset", mset, -3, flags::WRITE, Group::String).keys(&[KeySpec::range(1, -1, 2, key::RW)]),
];
