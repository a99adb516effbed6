//! Members that go by their place: ZREMRANGEBYRANK, …BYSCORE, …BYLEX, ZPOPMIN, ZPOPMAX, ZMPOP.
//!
//! | how many go | how |
//! |---|---|
//! | all | the key |
//! | few | one by one, in portions |
//! | more than stay, very many, or more than the command may hold | those that stay are written anew, of any number, and the old ones are garbage |

use smallvec::SmallVec;

use super::bounds::{Keys, Lex};
use super::range::clamp;
use super::span::{Held, Span};
use super::store::Builder;
use super::value::{shrunk, take_scored};
use crate::codec::Score;
use crate::handler::events;
use crate::handler::limits::{fit_one_by_one, may_touch};
use crate::handler::{Args, Command, Ctx, Error, Found, Group, KeySpec, Reply, Result, flags, key};
use crate::shard::memory::ahead::Look;
use crate::shard::memory::object::Kind;
use crate::types::mpop::MultiPop;
use crate::types::timeout::{until_ms, wait_for};
use crate::util::num::{parse_i64, parse_natural};
use crate::util::scale::Scaled;

/// Members removed one by one however few stay, if the command may hold that.
const FEW: Scaled<u64> = Scaled::new(1000);
/// Members from which on those that stay are written anew.
const MANY: Scaled<u64> = Scaled::new(100_000);
/// Members held in memory at a time.
const PORTION: Scaled<usize> = Scaled::new(1000);

/// The lowest or the highest scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The lowest.
    Min,
    /// The highest.
    Max,
}

/// Removes one member of which a copy is at hand.
fn take_held(ctx: &mut Ctx, at: Found, held: &Held) -> Result {
    let (score, member) = held.get()?;
    take_scored(&mut ctx.txn, at, score, member)
}

/// Removes all members of a span; how many there were.
pub fn remove(ctx: &mut Ctx, at: Found, span: &Span<'_>) -> Result<u64> {
    let (count, size) = (span.count(ctx, at)?, ctx.size(at));
    may_touch(count.min(size - count))?;
    if count == 0 {
        return Ok(0);
    }
    if count == size {
        ctx.txn.delete_found(at);
    } else if span.is_exact() && is_many(count, size - count) {
        may_touch(size)?;
        keep_others(ctx, at, &span.keys)?;
    } else {
        let mut rest = span.clone();
        loop {
            let held: Vec<Held> = rest
                .entries(&ctx.txn, at, false)?
                .take(PORTION.get())
                .map(|entry| Ok(entry?.held()))
                .collect::<Result<_>>()?;
            held.iter().try_for_each(|held| take_held(ctx, at, held))?;
            match held.last() {
                Some(last) if held.len() == PORTION.get() => rest.keys.lower = last.key().clone(),
                _ => break,
            }
        }
        shrunk(ctx, at, count);
    }
    Ok(count)
}

/// Whether those that stay are written anew: members that go, and that stay.
fn is_many(gone: u64, kept: u64) -> bool {
    // A score and a place of each.
    gone > MANY.get() || (gone > FEW.get() && gone > kept) || !fit_one_by_one(2 * gone, 0)
}

/// Writes what is not in a range of keys anew.
fn keep_others(ctx: &mut Ctx, at: Found, gone: &Keys) -> Result {
    let (object, body, whole) = (ctx.object(at), ctx.body(at), Keys::whole());
    let (expire_ms, form, key) = (object.expire_ms, body.form, object.key().to_vec());
    let mut kept = Builder::with_encoding(ctx, &key, body.encoding)?;
    let before = Keys { lower: whole.lower, upper: gone.lower.clone() };
    let behind = Keys { lower: gone.upper.clone(), upper: whole.upper };
    for keys in [before, behind] {
        Span::from(keys).each(&mut ctx.txn, at, false, (0, u64::MAX), |score, member| kept.put(member, score))?;
    }
    kept.finish_as(ctx, form, expire_ms)?;
    Ok(())
}

/// Replies with a member and its score, as an array of their own if `nested`.
fn reply_pair(out: &mut Reply, member: &[u8], score: Score, nested: bool) {
    if nested {
        out.array(2);
    }
    out.bulk(member);
    out.double(score.get());
}

/// Removes members at one end and replies with them, each with its score; at most `count`. The header is the caller's.
pub fn pop(ctx: &mut Ctx, at: Found, from: End, count: u64, nested: bool, out: &mut Reply) -> Result {
    let reverse = from == End::Max;
    let size = ctx.size(at);
    let count = count.min(size);
    if count == 1 {
        let first = Span::whole().few_entries(&mut ctx.txn, at, reverse, (0, 1))?.next().transpose()?;
        let Some(held) = first.map(|entry| entry.held()) else { return Ok(()) };
        let (score, member) = held.get()?;
        reply_pair(out, member, score, nested);
        take_held(ctx, at, &held)?;
        shrunk(ctx, at, 1);
        return Ok(());
    }
    may_touch(count)?;
    if count > FEW.get() {
        Span::whole().each(&mut ctx.txn, at, reverse, (0, count), |score, member| {
            reply_pair(out, member, score, nested);
            Ok(())
        })?;
        let (first, behind) = if reverse { (size - count, size) } else { (0, count) };
        let span = Span::of_ranks(&ctx.txn, at, first, behind)?;
        remove(ctx, at, &span)?;
        return Ok(());
    }
    let entries = Span::whole().few_entries(&mut ctx.txn, at, reverse, (0, count))?.take(count as usize);
    let held: SmallVec<[Held; 4]> = entries.map(|entry| Ok(entry?.held())).collect::<Result<_>>()?;
    for held in &held {
        let (score, member) = held.get()?;
        reply_pair(out, member, score, nested);
        if count < size {
            take_held(ctx, at, held)?;
        }
    }
    if count < size {
        shrunk(ctx, at, count);
    } else {
        ctx.txn.delete_found(at);
    }
    Ok(())
}

fn zpopmin(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    pop_one_key(ctx, args, End::Min, out)
}

fn zpopmax(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    pop_one_key(ctx, args, End::Max, out)
}

fn pop_one_key(ctx: &mut Ctx, args: Args<'_>, from: End, out: &mut Reply) -> Result {
    if args.len() > 3 {
        return Err(Error::Syntax);
    }
    let count = args.get(2).map(|count| parse_natural(count).ok_or(crate::error::NOT_POSITIVE)).transpose()?;
    let found = ctx.lookup_kind(&args[1], Kind::Zset)?;
    let popped = count.unwrap_or(1).min(found.map_or(0, |at| ctx.size(at)));
    // In RESP3 a count makes each member and its score a pair.
    let nested = count.is_some() && out.proto() == 3;
    out.array(popped as usize * if nested { 1 } else { 2 });
    match found {
        Some(at) if popped > 0 => pop(ctx, at, from, popped, nested, out),
        _ => Ok(()),
    }
}

/// Reads MIN or MAX.
fn parse_end(word: &[u8]) -> Result<End> {
    if word.eq_ignore_ascii_case(b"MIN") {
        Ok(End::Min)
    } else if word.eq_ignore_ascii_case(b"MAX") {
        Ok(End::Max)
    } else {
        Err(Error::Syntax)
    }
}

fn zmpop(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let MultiPop { keys, end, count } = MultiPop::parse(args.slice(1), parse_end)?;
    for key in keys.iter() {
        if let Some(at) = ctx.lookup_kind(key, Kind::Zset)? {
            return pop_from(ctx, key, at, end, count, out);
        }
    }
    out.nil_array();
    Ok(())
}

/// Pops a member of the first sorted set that is there, and waits if there is none.
fn pop_or_wait(ctx: &mut Ctx, args: Args<'_>, from: End, out: &mut Reply) -> Result {
    let keys = args.slice(1).take(args.len() - 2);
    let until_ms = until_ms(ctx.txn.now_ms, &args[args.len() - 1])?;
    for key in keys.iter() {
        if ctx.passes_over(key, Kind::Zset) {
            continue;
        }
        if let Some(at) = ctx.lookup_kind(key, Kind::Zset)? {
            out.array(3);
            out.bulk(key);
            return pop(ctx, at, from, 1, false, out);
        }
    }
    if !wait_for(ctx, keys.iter(), Kind::Zset, until_ms) {
        out.nil_array();
    }
    Ok(())
}

fn bzpopmin(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    pop_or_wait(ctx, args, End::Min, out)
}

fn bzpopmax(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    pop_or_wait(ctx, args, End::Max, out)
}

fn bzmpop(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let MultiPop { keys, end, count } = MultiPop::parse(args.slice(2), parse_end)?;
    let until_ms = until_ms(ctx.txn.now_ms, &args[1])?;
    for key in keys.iter() {
        if ctx.passes_over(key, Kind::Zset) {
            continue;
        }
        if let Some(at) = ctx.lookup_kind(key, Kind::Zset)? {
            return pop_from(ctx, key, at, end, count, out);
        }
    }
    if !wait_for(ctx, keys.iter(), Kind::Zset, until_ms) {
        out.nil_array();
    }
    Ok(())
}

/// Pops from the key at hand and replies as ZMPOP does: the key, then pairs of member and score.
pub fn pop_from(ctx: &mut Ctx, key: &[u8], at: Found, from: End, count: u64, out: &mut Reply) -> Result {
    ctx.happens(match from {
        End::Min => &[events::ZPOPMIN],
        End::Max => &[events::ZPOPMAX],
    });
    let popped = count.min(ctx.size(at));
    out.array(2);
    out.bulk(key);
    out.array(popped as usize);
    pop(ctx, at, from, popped, true, out)
}

fn zremrangebyrank(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let start = parse_i64(&args[2]).ok_or(Error::NotInteger)?;
    let stop = parse_i64(&args[3]).ok_or(Error::NotInteger)?;
    remove_span(ctx, args, out, |ctx, at| {
        let (first, count) = clamp(start, stop, ctx.size(at));
        Span::of_ranks(&ctx.txn, at, first, first + count)
    })
}

fn zremrangebyscore(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let keys = Keys::of_scores(&args[2], &args[3])?;
    remove_span(ctx, args, out, |_, _| Ok(keys.into()))
}

fn zremrangebylex(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let lex = Lex::parse(&args[2], &args[3])?;
    remove_span(ctx, args, out, |ctx, at| Span::of_members(ctx, at, lex))
}

fn remove_span<'a>(
    ctx: &mut Ctx,
    args: Args<'a>,
    out: &mut Reply,
    span: impl FnOnce(&Ctx, Found) -> Result<Span<'a>>,
) -> Result {
    let removed = match ctx.lookup_kind(&args[1], Kind::Zset)? {
        Some(at) => {
            let span = span(ctx, at)?;
            remove(ctx, at, &span)?
        }
        None => 0,
    };
    out.int(removed as i64);
    Ok(())
}

const POPPED: &[KeySpec] = &[KeySpec::one(1, key::RW | key::ACCESS | key::DELETE)];
const POPPED_FROM_ONE: &[KeySpec] = &[KeySpec::range(1, -2, 1, key::RW | key::ACCESS | key::DELETE)];
const POP_OR_WAIT: u32 = flags::WRITE | flags::BLOCKING;
const REMOVED: &[KeySpec] = &[KeySpec::one(1, key::RW | key::DELETE)];
const POP_COST: &str = "O(log(N)*M) where N is the size of the sorted set and M the number of members popped.";
const COST: &str = "O(log(N)+M) where N is the size of the sorted set and M the number of members removed.";

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("zpopmin", zpopmin, -2, flags::WRITE | flags::FAST, Group::SortedSet)
        .looks_at(Look::ZSET).tells(&events::ZPOPMIN)
        .keys(POPPED)
        .help("5.0.0", "Removes and returns the members with the lowest scores.")
        .syntax("key [count]", POP_COST),
    Command::new("zpopmax", zpopmax, -2, flags::WRITE | flags::FAST, Group::SortedSet)
        .looks_at(Look::ZSET).tells(&events::ZPOPMAX)
        .keys(POPPED)
        .help("5.0.0", "Removes and returns the members with the highest scores.")
        .syntax("key [count]", POP_COST),
    Command::new("zmpop", zmpop, -4, flags::WRITE | flags::MOVABLEKEYS, Group::SortedSet)
        .keys(&[KeySpec::counted(1, 1, key::RW | key::ACCESS | key::DELETE)])
        .help("7.0.0", "Removes and returns members at one end of the first sorted set that is there.")
        .syntax("numkeys key [key ...] <MIN | MAX> [COUNT count]", POP_COST),
    Command::new("bzpopmin", bzpopmin, -3, POP_OR_WAIT | flags::FAST, Group::SortedSet).tells(&events::ZPOPMIN)
        .keys(POPPED_FROM_ONE)
        .help("5.0.0", "Removes and returns the member with the lowest score of the first sorted set that is there; waits if there is none.")
        .syntax("key [key ...] timeout:double", "O(log(N)) with N being the number of elements in the sorted set."),
    Command::new("bzpopmax", bzpopmax, -3, POP_OR_WAIT | flags::FAST, Group::SortedSet).tells(&events::ZPOPMAX)
        .keys(POPPED_FROM_ONE)
        .help("5.0.0", "Removes and returns the member with the highest score of the first sorted set that is there; waits if there is none.")
        .syntax("key [key ...] timeout:double", "O(log(N)) with N being the number of elements in the sorted set."),
    Command::new("bzmpop", bzmpop, -5, POP_OR_WAIT | flags::MOVABLEKEYS, Group::SortedSet)
        .keys(&[KeySpec::counted(2, 1, key::RW | key::ACCESS | key::DELETE)])
        .help("7.0.0", "Removes and returns members at one end of the first sorted set that is there; waits if there is none.")
        .syntax("timeout:double numkeys key [key ...] <MIN | MAX> [COUNT count]", POP_COST),
    Command::new("zremrangebyrank", zremrangebyrank, 4, flags::WRITE, Group::SortedSet).tells(&events::ZREMRANGEBYRANK)
        .keys(REMOVED)
        .help("2.0.0", "Removes the members in a range of ranks.")
        .syntax("key start stop", COST),
    Command::new("zremrangebyscore", zremrangebyscore, 4, flags::WRITE, Group::SortedSet).tells(&events::ZREMRANGEBYSCORE)
        .keys(REMOVED)
        .help("1.2.0", "Removes the members whose scores lie in a range.")
        .syntax("key min:double max:double", COST),
    Command::new("zremrangebylex", zremrangebylex, 4, flags::WRITE, Group::SortedSet).tells(&events::ZREMRANGEBYLEX)
        .keys(REMOVED)
        .help("2.8.9", "Removes the members that lie in a range, all scores being equal.")
        .syntax("key min max", COST),
];
