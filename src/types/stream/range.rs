//! XLEN, XRANGE, XREVRANGE.

use crate::handler::{Args, Command, Ctx, Error, Group, KeySpec, Reply, Result, flags, key};

use super::handle::{Stream, Window};
use super::id;

fn xlen(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let len = Stream::find(ctx, &args[1])?.map_or(0, |stream| stream.len);
    out.int(len as i64);
    Ok(())
}

fn xrange(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    range(ctx, args, [&args[2], &args[3]], false, out)
}

fn xrevrange(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    range(ctx, args, [&args[3], &args[2]], true, out)
}

fn range(ctx: &mut Ctx, args: Args<'_>, [start, end]: [&[u8]; 2], reverse: bool, out: &mut Reply) -> Result {
    let (start, end) = (id::parse_start(start)?, id::parse_end(end)?);
    let mut most = usize::MAX;
    let mut options = args.cursor(4);
    while !options.is_empty() {
        if options.remaining() < 2 || !options.next_is(b"COUNT") {
            return Err(Error::Syntax);
        }
        most = options.int()?.max(0) as usize;
    }
    match Stream::find(ctx, &args[1])? {
        None => out.array(0),
        // Redis answers nil here, not an empty array.
        Some(_) if most == 0 => out.nil_array(),
        Some(stream) => {
            stream.reply_entries(ctx, &Window { start, end, most, reverse }, out, |_| ())?;
        }
    }
    Ok(())
}

const READ: &[KeySpec] = &[KeySpec::one(1, key::RO | key::ACCESS)];

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("xlen", xlen, 2, flags::READONLY | flags::FAST, Group::Stream)
        .keys(&[KeySpec::one(1, key::RO)])
        .help("5.0.0", "Returns the number of entries of a stream.")
        .syntax("key", "O(1)"),
    Command::new("xrange", xrange, -4, flags::READONLY, Group::Stream)
        .keys(READ)
        .help("5.0.0", "Returns the entries of a stream between two ids.")
        .syntax("key start:string end:string [COUNT count]", "O(log(N)+M) with M the number of entries returned"),
    Command::new("xrevrange", xrevrange, -4, flags::READONLY, Group::Stream)
        .keys(READ)
        .help("5.0.0", "Returns the entries of a stream between two ids, the last first.")
        .syntax("key end:string start:string [COUNT count]", "O(log(N)+M) with M the number of entries returned"),
];
