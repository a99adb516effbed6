//! What changes nothing: LLEN, LINDEX, LRANGE, LPOS.

use std::ops::{ControlFlow, Range};

use super::{List, extent, hole, key_of};
use crate::codec::element::index_at;
use crate::handler::limits::may_touch;
use crate::handler::{Args, Command, Ctx, Error, Group, KeySpec, Reply, Result, flags, key};
use crate::shard::memory::ahead::Look;
use crate::shard::memory::object::Kind;
use crate::util::num::{parse_i64, parse_natural};

fn llen(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let list = List::find(ctx, &args[1])?;
    out.int(list.map_or(0, |list| list.len() as i64));
    Ok(())
}

fn lindex(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let key = &args[1];
    let offset = || parse_i64(&args[2]).ok_or(Error::NotInteger);
    if let Some(list) = ctx.in_passing(key, Kind::List)? {
        let (indexes, _) = extent(key, &list.meta().extra, list.meta().size)?;
        match index_at(&indexes, offset()?) {
            Some(index) => out.bulk(&list.element(key, &key_of(index))?.ok_or_else(hole)?),
            None => out.nil(),
        }
    } else if let Some(list) = List::find(ctx, key)? {
        match list.index(offset()?) {
            Some(index) => out.bulk(list.get(ctx, index)?),
            None => out.nil(),
        }
    } else {
        out.nil();
    }
    Ok(())
}

/// Replies with the elements of a part of a list, from the last to the first if so asked.
#[inline]
pub(super) fn reply_part(ctx: &mut Ctx, list: &List, part: Range<i64>, reverse: bool, out: &mut Reply) -> Result {
    out.array(part.end.abs_diff(part.start) as usize);
    if reverse {
        return list.each(ctx, part, true, |_, value| {
            out.bulk(value);
            Ok(ControlFlow::Continue(()))
        });
    }
    list.each_in_slices(ctx, part, |value| {
        out.bulk(value);
        Ok(())
    })
}

fn lrange(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let start = parse_i64(&args[2]).ok_or(Error::NotInteger)?;
    let end = parse_i64(&args[3]).ok_or(Error::NotInteger)?;
    let Some(list) = List::find(ctx, &args[1])? else {
        out.array(0);
        return Ok(());
    };
    let part = list.between(start, end);
    may_touch(part.end.abs_diff(part.start))?;
    list.fetch(ctx, part.clone())?;
    reply_part(ctx, &list, part, false, out)
}

/// What LPOS looks for.
struct Search {
    /// From the last element to the first.
    reverse: bool,
    /// Matches to pass over.
    skip: u64,
    /// Matches to name; `None`: the first, and not as an array.
    count: Option<u64>,
    /// Elements to look at.
    most: u64,
}

impl Search {
    fn parse(args: Args<'_>) -> Result<Search> {
        let mut search = Search { reverse: false, skip: 0, count: None, most: u64::MAX };
        let mut options = args.cursor(3);
        while !options.is_empty() {
            if options.remaining() < 2 {
                return Err(Error::Syntax);
            }
            if options.next_is(b"RANK") {
                let rank = options.int()?;
                search.reverse = rank < 0;
                search.skip = match rank.unsigned_abs() {
                    0 => return Err(ZERO_RANK),
                    most if most > i64::MAX as u64 => return Err(super::edit::NOT_NEGATABLE),
                    rank => rank - 1,
                };
            } else if options.next_is(b"COUNT") {
                let count = parse_natural(options.arg()?).ok_or(Error::err("ERR COUNT can't be negative"))?;
                search.count = Some(if count == 0 { u64::MAX } else { count });
            } else if options.next_is(b"MAXLEN") {
                let most = parse_natural(options.arg()?).ok_or(Error::err("ERR MAXLEN can't be negative"))?;
                search.most = if most == 0 { u64::MAX } else { most };
            } else {
                return Err(Error::Syntax);
            }
        }
        Ok(search)
    }
}

const ZERO_RANK: Error = Error::err(
    "ERR RANK can't be zero: use 1 to start from the first match, 2 from the second ... or use negative to start from \
     the end of the list",
);

fn lpos(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let search = Search::parse(args)?;
    let Some(list) = List::find(ctx, &args[1])? else {
        if search.count.is_some() {
            out.array(0)
        } else {
            out.nil()
        }
        return Ok(());
    };
    let end = if search.reverse { super::End::Right } else { super::End::Left };
    let part = list.part(end, search.most);
    may_touch(part.end.abs_diff(part.start))?;
    list.warm(ctx)?;
    let mark = search.count.map(|_| out.defer_array());
    let (mut matches, mut named) = (0, 0);
    list.pass_in_slices(ctx, part, search.reverse, |index, value| {
        if value == &args[2] {
            matches += 1;
            if matches > search.skip {
                out.int(index - list.head);
                named += 1;
            }
        }
        let enough = named as u64 >= search.count.unwrap_or(1);
        Ok(if enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    match mark {
        Some(mark) => out.set_len(mark, named),
        None if named == 0 => out.nil(),
        None => {}
    }
    Ok(())
}

const READS: u32 = flags::READONLY;
const ACCESS: &[KeySpec] = &[KeySpec::one(1, key::RO | key::ACCESS)];

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("llen", llen, 2, READS | flags::FAST, Group::List)
        .keys(&[KeySpec::one(1, key::RO)])
        .help("1.0.0", "Counts the elements of a list.")
        .syntax("key", "O(1)"),
    Command::new("lindex", lindex, 3, READS, Group::List)
        .looks_at(Look::offset(2))
        .keys(ACCESS)
        .help("1.0.0", "Returns the element at an offset of a list.")
        .syntax("key index", "O(1)"),
    Command::new("lrange", lrange, 4, READS, Group::List)
        .looks_at(Look::LIST)
        .keys(ACCESS)
        .help("1.0.0", "Returns the elements of a part of a list.")
        .syntax("key start stop", "O(N), where N is the number of elements returned."),
    Command::new("lpos", lpos, -3, READS, Group::List)
        .looks_at(Look::LIST)
        .keys(ACCESS)
        .help("6.0.6", "Finds where in a list an element stands.")
        .syntax(
            "key element [RANK rank] [COUNT num-matches] [MAXLEN len]",
            "O(N), where N is the number of elements looked at.",
        ),
];
