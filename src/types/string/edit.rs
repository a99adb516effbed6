//! Parts of a value: each command costs what it touches, however long the value is.

use super::value::{clamp_ordered, reply_range, write_at};
use crate::handler::events;
use crate::handler::limits::check_len;
use crate::handler::{Args, Command, Ctx, Error, Group, KeySpec, Reply, Result, flags, key};
use crate::shard::memory::object::state;
use crate::util::num::parse_i64;

fn append(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let found = ctx.lookup_string(&args[1])?;
    let len = found.map_or(0, |found| ctx.string_len(found));
    let more = &args[2];
    match found {
        Some(found) if more.is_empty() => {
            ctx.mark_encoding(found, state::RAW);
            ctx.tell(&events::APPEND, &args[1]);
        }
        Some(found) => {
            check_len(ctx, len as u64, more.len() as u64)?;
            write_at(ctx, &args[1], Some(found), len, more)?;
        }
        None => {
            check_len(ctx, 0, more.len() as u64)?;
            // As SET would put it: `OBJECT ENCODING` may call it an integer.
            ctx.set_string(&args[1], more, 0)?;
        }
    }
    out.int((len + more.len()) as i64);
    Ok(())
}

fn strlen(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let len = ctx.lookup_string(&args[1])?.map_or(0, |found| ctx.string_len(found));
    out.int(len as i64);
    Ok(())
}

fn getrange(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let start = parse_i64(&args[2]).ok_or(Error::NotInteger)?;
    let end = parse_i64(&args[3]).ok_or(Error::NotInteger)?;
    let Some(found) = ctx.lookup_string(&args[1])? else {
        out.bulk(b"");
        return Ok(());
    };
    match clamp_ordered(start, end, ctx.string_len(found) as u64) {
        Some((first, last)) => reply_range(ctx, found, first as usize..last as usize + 1, out),
        None => {
            out.bulk(b"");
            Ok(())
        }
    }
}

fn setrange(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let offset = parse_i64(&args[2]).ok_or(Error::NotInteger)?;
    let offset = u64::try_from(offset).map_err(|_| Error::err("ERR offset is out of range"))?;
    let bytes = &args[3];
    let found = ctx.lookup_string(&args[1])?;
    let len = found.map_or(0, |found| ctx.string_len(found));
    if bytes.is_empty() {
        // Nothing is written, however far away: neither a key nor zeros.
        out.int(len as i64);
        return Ok(());
    }
    check_len(ctx, offset, bytes.len() as u64)?;
    write_at(ctx, &args[1], found, offset as usize, bytes)?;
    out.int(len.max(offset as usize + bytes.len()) as i64);
    Ok(())
}

const WRITE: u32 = flags::WRITE | flags::DENYOOM;

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("append", append, 3, WRITE | flags::FAST, Group::String)
        .tells(&events::APPEND)
        .keys(&[KeySpec::one(1, key::RW | key::INSERT)])
        .help("2.0.0", "Adds to the end of a string, which is created if it is not there.")
        .syntax("key value", "O(1)"),
    Command::new("strlen", strlen, 2, flags::READONLY | flags::FAST, Group::String)
        .keys(&[KeySpec::one(1, key::RO)])
        .help("2.2.0", "Returns the length of a string, 0 if it is not there.")
        .syntax("key", "O(1)"),
    Command::new("getrange", getrange, 4, flags::READONLY, Group::String)
        .keys(&[KeySpec::one(1, key::RO | key::ACCESS)])
        .help("2.4.0", "Returns a part of a string.")
        .syntax("key start end", "O(N) where N is the length of the part."),
    Command::new("substr", getrange, 4, flags::READONLY, Group::String)
        .keys(&[KeySpec::one(1, key::RO | key::ACCESS)])
        .help("1.0.0", "Returns a part of a string, as GETRANGE does.")
        .syntax("key start end", "O(N) where N is the length of the part."),
    Command::new("setrange", setrange, 4, WRITE, Group::String)
        .tells(&events::SETRANGE)
        .keys(&[KeySpec::one(1, key::RW | key::UPDATE)])
        .help("2.2.0", "Overwrites a part of a string, which grows by zeros if it ends before.")
        .syntax("key offset value", "O(N) where N is the length of the value."),
];
