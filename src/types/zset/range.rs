//! Ranges: ZRANGE with all its options, ZRANGESTORE, and the older commands that are each one case of it.

use super::bounds::{Keys, Lex};
use super::span::Span;
use super::store::Builder;
use super::value::{reply_header, reply_member, wrong_size};
use crate::handler::events;
use crate::handler::limits::may_touch;
use crate::handler::{Args, Command, Ctx, Error, Found, Group, KeySpec, Reply, Result, flags, key};
use crate::meter;
use crate::resp::args::Cursor;
use crate::shard::memory::ahead::Look;
use crate::shard::memory::object::Kind;
use crate::util::num::parse_i64;

/// What the ends of a range are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Rank,
    Score,
    Lex,
}

/// What a command leaves to its options.
#[derive(Debug, Clone, Copy)]
struct Form {
    /// `None`: BYSCORE and BYLEX are options.
    by: Option<By>,
    /// `None`: REV is an option.
    reverse: Option<bool>,
    /// WITHSCORES is an option.
    scores: bool,
}

/// What a call asks for.
#[derive(Debug, Clone, Copy)]
struct Query<'a> {
    by: By,
    reverse: bool,
    with_scores: bool,
    /// Members passed over; negative: all.
    offset: i64,
    /// Most members; negative: any number.
    limit: i64,
    min: &'a [u8],
    max: &'a [u8],
}

impl<'a> Query<'a> {
    #[inline]
    fn parse(form: Form, mut args: Cursor<'a>) -> Result<Self> {
        let (min, max) = (args.arg()?, args.arg()?);
        let (mut by, mut reverse, mut with_scores, mut offset, mut limit) = (form.by, form.reverse, false, 0, -1);
        while !args.is_empty() {
            if form.scores && args.next_is(b"WITHSCORES") {
                with_scores = true;
            } else if args.remaining() > 2 && args.next_is(b"LIMIT") {
                (offset, limit) = (args.int()?, args.int()?);
            } else if reverse.is_none() && args.next_is(b"REV") {
                reverse = Some(true);
            } else if by.is_none() && args.next_is(b"BYLEX") {
                by = Some(By::Lex);
            } else if by.is_none() && args.next_is(b"BYSCORE") {
                by = Some(By::Score);
            } else {
                return Err(Error::Syntax);
            }
        }
        let (by, reverse) = (by.unwrap_or(By::Rank), reverse.unwrap_or(false));
        if limit != -1 && by == By::Rank {
            return Err(Error::err(
                "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX",
            ));
        }
        if with_scores && by == By::Lex {
            return Err(Error::err("ERR syntax error, WITHSCORES not supported in combination with BYLEX"));
        }
        // By score and by member the ends come in the order in which the range is read.
        let (min, max) = if reverse && by != By::Rank { (max, min) } else { (min, max) };
        Ok(Query { by, reverse, with_scores, offset, limit, min, max })
    }

    /// Reads the ends.
    fn ends(&self) -> Result<Ends<'a>> {
        Ok(match self.by {
            By::Rank => Ends::Ranks(
                parse_i64(self.min).ok_or(Error::NotInteger)?,
                parse_i64(self.max).ok_or(Error::NotInteger)?,
            ),
            By::Score => Ends::Keys(Keys::of_scores(self.min, self.max)?),
            By::Lex => Ends::Lex(Lex::parse(self.min, self.max)?),
        })
    }
}

/// The ends of a range, read but not looked up.
enum Ends<'a> {
    Ranks(i64, i64),
    Keys(Keys),
    Lex(Lex<'a>),
}

/// The members asked for: of a span, those behind the first `skip`, at most `most`.
struct Cut<'a> {
    span: Span<'a>,
    skip: u64,
    most: u64,
    /// There are exactly `most`.
    counted: bool,
}

impl<'a> Cut<'a> {
    #[inline]
    fn new(ctx: &Ctx, at: Found, query: &Query<'_>, ends: Ends<'a>) -> Result<Self> {
        let span = match ends {
            Ends::Ranks(start, stop) => {
                let (skip, most) = clamp(start, stop, ctx.size(at));
                return Ok(Cut { span: Span::whole(), skip, most, counted: true });
            }
            Ends::Keys(keys) => keys.into(),
            Ends::Lex(lex) => Span::of_members(ctx, at, lex)?,
        };
        let most = match (query.offset, query.limit) {
            (..0, _) => 0,
            (_, ..0) => u64::MAX,
            (_, limit) => limit as u64,
        };
        Ok(Cut { span, skip: query.offset.max(0) as u64, most, counted: false })
    }

    /// Leaves a long walk to the shard's own thread.
    fn may_walk(&self, ctx: &Ctx, at: Found) -> Result {
        if !meter::is_here()
            || ctx.size(at) <= meter::STEPS_HERE.get() as u64
            || (self.span.is_exact() && self.most <= meter::STEPS_HERE.get() as u64)
        {
            return Ok(());
        }
        let there = if self.counted { self.most } else { self.span.count(ctx, at)? };
        may_touch(there.saturating_sub(if self.counted { 0 } else { self.skip }).min(self.most))
    }
}

/// The first of the members between two ranks, negative ones counted from the end, and their number.
pub(super) fn clamp(start: i64, stop: i64, size: u64) -> (u64, u64) {
    let size = size as i64;
    let from_end = |rank: i64| if rank < 0 { rank.saturating_add(size) } else { rank };
    let (start, stop) = (from_end(start).max(0), from_end(stop).min(size - 1));
    if start > stop { (0, 0) } else { (start as u64, (stop - start + 1) as u64) }
}

fn range(ctx: &mut Ctx, args: Args<'_>, form: Form, out: &mut Reply) -> Result {
    let query = Query::parse(form, args.cursor(2))?;
    let ends = query.ends()?;
    let Some(at) = ctx.lookup_kind(&args[1], Kind::Zset)? else {
        out.array(0);
        return Ok(());
    };
    let cut = Cut::new(ctx, at, &query, ends)?;
    if cut.most == 0 {
        out.array(0);
        return Ok(());
    }
    cut.may_walk(ctx, at)?;
    reply(ctx, at, &cut, &query, out)
}

fn reply(ctx: &mut Ctx, at: Found, cut: &Cut<'_>, query: &Query<'_>, out: &mut Reply) -> Result {
    let mark = if cut.counted {
        reply_header(out, cut.most as usize, query.with_scores);
        None
    } else {
        Some(out.defer_array())
    };
    let count = cut.span.each(&mut ctx.txn, at, query.reverse, (cut.skip, cut.most), |score, member| {
        reply_member(out, member, score, query.with_scores);
        Ok(())
    })?;
    match mark {
        Some(mark) => out.set_len(mark, count as usize * if query.with_scores && out.proto() == 2 { 2 } else { 1 }),
        // The header is written: a size that does not fit must not reach the client.
        None if count != cut.most => return Err(wrong_size(ctx, at)),
        None => {}
    }
    Ok(())
}

fn zrangestore(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let query = Query::parse(Form { by: None, reverse: None, scores: false }, args.cursor(3))?;
    let ends = query.ends()?;
    let mut stored = Builder::new(ctx, &args[1])?;
    if let Some(at) = ctx.to_read(|ctx| ctx.lookup_kind(&args[2], Kind::Zset))? {
        let cut = Cut::new(ctx, at, &query, ends)?;
        cut.may_walk(ctx, at)?;
        let put = |score, member: &[u8]| stored.put(member, score);
        cut.span.each(&mut ctx.txn, at, query.reverse, (cut.skip, cut.most), put)?;
    }
    out.int(stored.finish(ctx)? as i64);
    Ok(())
}

fn zrange(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    range(ctx, args, Form { by: None, reverse: None, scores: true }, out)
}

fn zrevrange(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    range(ctx, args, Form { by: Some(By::Rank), reverse: Some(true), scores: true }, out)
}

fn zrangebyscore(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    range(ctx, args, Form { by: Some(By::Score), reverse: Some(false), scores: true }, out)
}

fn zrevrangebyscore(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    range(ctx, args, Form { by: Some(By::Score), reverse: Some(true), scores: true }, out)
}

fn zrangebylex(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    range(ctx, args, Form { by: Some(By::Lex), reverse: Some(false), scores: true }, out)
}

fn zrevrangebylex(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    range(ctx, args, Form { by: Some(By::Lex), reverse: Some(true), scores: true }, out)
}

const ACCESS: &[KeySpec] = &[KeySpec::one(1, key::RO | key::ACCESS)];
const COST: &str = "O(log(N)+M) where N is the size of the sorted set and M the number of members returned.";

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("zrange", zrange, -4, flags::READONLY, Group::SortedSet)
        .looks_at(Look::ZSET)
        .keys(ACCESS)
        .help("1.2.0", "Returns members in a range of ranks, scores or members.")
        .syntax("key start:string stop:string [BYSCORE | BYLEX] [REV] [LIMIT offset count] [WITHSCORES]", COST),
    Command::new("zrangestore", zrangestore, -5, flags::WRITE | flags::DENYOOM, Group::SortedSet)
        .tells(&events::ZRANGESTORE)
        .keys(&[KeySpec::one(1, key::OW | key::UPDATE), KeySpec::one(2, key::RO | key::ACCESS)])
        .help("6.2.0", "Stores members in a range of ranks, scores or members under another key.")
        .syntax(
            "dst src min max [BYSCORE | BYLEX] [REV] [LIMIT offset count]",
            "O(log(N)+M) where N is the size of the sorted set and M the number of members stored.",
        ),
    Command::new("zrevrange", zrevrange, -4, flags::READONLY, Group::SortedSet)
        .looks_at(Look::ZSET)
        .keys(ACCESS)
        .help("1.2.0", "Returns members in a range of ranks, by descending score.")
        .syntax("key start stop [WITHSCORES]", COST),
    Command::new("zrangebyscore", zrangebyscore, -4, flags::READONLY, Group::SortedSet)
        .looks_at(Look::ZSET)
        .keys(ACCESS)
        .help("1.0.5", "Returns members whose scores lie in a range.")
        .syntax("key min:double max:double [WITHSCORES] [LIMIT offset count]", COST),
    Command::new("zrevrangebyscore", zrevrangebyscore, -4, flags::READONLY, Group::SortedSet)
        .looks_at(Look::ZSET)
        .keys(ACCESS)
        .help("2.2.0", "Returns members whose scores lie in a range, by descending score.")
        .syntax("key max:double min:double [WITHSCORES] [LIMIT offset count]", COST),
    Command::new("zrangebylex", zrangebylex, -4, flags::READONLY, Group::SortedSet)
        .looks_at(Look::ZSET)
        .keys(ACCESS)
        .help("2.8.9", "Returns members that lie in a range, all scores being equal.")
        .syntax("key min max [LIMIT offset count]", COST),
    Command::new("zrevrangebylex", zrevrangebylex, -4, flags::READONLY, Group::SortedSet)
        .looks_at(Look::ZSET)
        .keys(ACCESS)
        .help("2.8.9", "Returns members that lie in a range, all scores being equal, in descending order.")
        .syntax("key max min [LIMIT offset count]", COST),
];

#[cfg(test)]
mod tests {
    use super::clamp;

    #[test]
    fn ranks_as_redis_clamps_them() {
        for (start, stop, size, expected) in [
            (0, -1, 5, (0, 5)),
            (1, 2, 5, (1, 2)),
            (-2, -1, 5, (3, 2)),
            (-100, 100, 5, (0, 5)),
            (3, 1, 5, (0, 0)),
            (5, 9, 5, (0, 0)),
            (0, -6, 5, (0, 0)),
            (0, -1, 0, (0, 0)),
            (i64::MIN, i64::MAX, 5, (0, 5)),
        ] {
            assert_eq!(clamp(start, stop, size), expected, "{start} {stop} of {size}");
        }
    }
}
