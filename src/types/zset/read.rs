//! Scores, ranks and counts: ZCARD, ZSCORE, ZMSCORE, ZRANK, ZREVRANK, ZCOUNT, ZLEXCOUNT.

use super::bounds::{Keys, Lex};
use super::span::Span;
use super::value::{read_score, score, score_key, sort_key};
use crate::codec::element;
use crate::handler::{Args, Command, Ctx, Error, Group, KeySpec, Reply, Result, flags, key};
use crate::shard::memory::ahead::Look;
use crate::shard::memory::object::Kind;

fn zcard(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let found = ctx.lookup_kind(&args[1], Kind::Zset)?;
    out.int(found.map_or(0, |at| ctx.size(at)) as i64);
    Ok(())
}

fn zscore(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let member = &args[2];
    let score = if let Some(zset) = ctx.in_passing(&args[1], Kind::Zset)? {
        let key = score_key(zset.meta().encoding, member);
        zset.element(&args[1], &key)?.map(|value| read_score(&key, &value)).transpose()?
    } else if let Some(at) = ctx.lookup_kind(&args[1], Kind::Zset)? {
        score(&mut ctx.txn, at, member)?
    } else {
        None
    };
    match score {
        Some(score) => out.double(score.get()),
        None => out.nil(),
    }
    Ok(())
}

fn zmscore(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let found = ctx.lookup_kind(&args[1], Kind::Zset)?;
    let members = args.slice(2);
    out.array(members.len());
    for (n, member) in members.iter().enumerate() {
        ctx.txn.rest_between(ctx.ns(), n)?;
        match found.map(|at| score(&mut ctx.txn, at, member)).transpose()?.flatten() {
            Some(score) => out.double(score.get()),
            None => out.nil(),
        }
    }
    Ok(())
}

fn zrank(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    rank(ctx, args, "zrank", false, out)
}

fn zrevrank(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    rank(ctx, args, "zrevrank", true, out)
}

fn rank(ctx: &mut Ctx, args: Args<'_>, name: &'static str, reverse: bool, out: &mut Reply) -> Result {
    let with_score = args.len() == 4;
    if args.len() > 4 {
        return Err(Error::Arity(name.into()));
    }
    if with_score && !args[3].eq_ignore_ascii_case(b"WITHSCORE") {
        return Err(Error::Syntax);
    }
    let found = ctx.lookup_kind(&args[1], Kind::Zset)?;
    let score = found.map(|at| score(&mut ctx.txn, at, &args[2])).transpose()?.flatten();
    let (Some(at), Some(score)) = (found, score) else {
        if with_score {
            out.nil_array()
        } else {
            out.nil()
        }
        return Ok(());
    };
    let before = ctx.txn.rank(at, element::Group::ZsetSort, &sort_key(score, &args[2]))?;
    if with_score {
        out.array(2);
    }
    out.int(if reverse { ctx.size(at) as i64 - 1 - before as i64 } else { before as i64 });
    if with_score {
        out.double(score.get());
    }
    Ok(())
}

fn zcount(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let span = Span::from(Keys::of_scores(&args[2], &args[3])?);
    let count = ctx.lookup_kind(&args[1], Kind::Zset)?.map_or(Ok(0), |at| span.count(ctx, at))?;
    out.int(count as i64);
    Ok(())
}

fn zlexcount(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let lex = Lex::parse(&args[2], &args[3])?;
    let count = match ctx.lookup_kind(&args[1], Kind::Zset)? {
        Some(at) => Span::of_members(ctx, at, lex)?.count(ctx, at)?,
        None => 0,
    };
    out.int(count as i64);
    Ok(())
}

const READS: u32 = flags::READONLY | flags::FAST;
const ACCESS: &[KeySpec] = &[KeySpec::one(1, key::RO | key::ACCESS)];
const LOG: &str = "O(log(N)) where N is the size of the sorted set.";

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("zcard", zcard, 2, READS, Group::SortedSet)
        .keys(&[KeySpec::one(1, key::RO)])
        .help("1.2.0", "Returns the number of members of a sorted set.")
        .syntax("key", "O(1)"),
    Command::new("zscore", zscore, 3, READS, Group::SortedSet)
        .keys(ACCESS)
        .looks_at(Look::score(2))
        .help("1.2.0", "Returns the score of a member.")
        .syntax("key member", "O(1)"),
    Command::new("zmscore", zmscore, -3, READS, Group::SortedSet)
        .keys(ACCESS)
        .looks_at(Look::score(2).each(1))
        .help("6.2.0", "Returns the scores of members.")
        .syntax("key member [member ...]", "O(N) where N is the number of members asked for."),
    Command::new("zrank", zrank, -3, READS, Group::SortedSet)
        .keys(ACCESS)
        .looks_at(Look::place(2))
        .help("2.0.0", "Returns how many members stand in front of one, by ascending score.")
        .syntax("key member [WITHSCORE]", LOG),
    Command::new("zrevrank", zrevrank, -3, READS, Group::SortedSet)
        .keys(ACCESS)
        .looks_at(Look::place(2))
        .help("2.0.0", "Returns how many members stand in front of one, by descending score.")
        .syntax("key member [WITHSCORE]", LOG),
    Command::new("zcount", zcount, 4, READS, Group::SortedSet)
        .looks_at(Look::ZSET)
        .keys(ACCESS)
        .help("2.0.0", "Counts the members whose scores lie in a range.")
        .syntax("key min:double max:double", LOG),
    Command::new("zlexcount", zlexcount, 4, READS, Group::SortedSet)
        .looks_at(Look::ZSET)
        .keys(ACCESS)
        .help("2.8.9", "Counts the members that lie in a range, all scores being equal.")
        .syntax("key min max", LOG),
];
