//! Members that come and go by name: ZADD, ZINCRBY, ZREM.

use smallvec::SmallVec;

use super::value::{Put, Rule, put_all, shrunk, take};
use crate::handler::{Args, Command, Ctx, Error, Group, KeySpec, Reply, Result, events, flags, key};
use crate::shard::memory::ahead::Look;
use crate::shard::memory::object::Kind;
use crate::util::num::parse_double;

/// The options of a call, and where its scores begin.
struct Options {
    rule: Rule,
    /// Members whose score changes are counted as those that are new.
    ch: bool,
    scores: usize,
}

impl Options {
    #[inline]
    fn parse(args: Args<'_>, incr: bool) -> Result<Options> {
        let (mut rule, mut ch) = (Rule { incr, ..Rule::default() }, false);
        let mut words = args.cursor(2);
        // No option begins as a number does.
        while words.peek().is_some_and(|word| word.first().is_some_and(u8::is_ascii_alphabetic)) {
            if words.next_is(b"NX") {
                rule.nx = true;
            } else if words.next_is(b"XX") {
                rule.xx = true;
            } else if words.next_is(b"CH") {
                ch = true;
            } else if words.next_is(b"INCR") {
                rule.incr = true;
            } else if words.next_is(b"GT") {
                rule.gt = true;
            } else if words.next_is(b"LT") {
                rule.lt = true;
            } else {
                break;
            }
        }
        let left = words.remaining();
        if left == 0 || !left.is_multiple_of(2) {
            return Err(Error::Syntax);
        }
        if rule.nx && rule.xx {
            return Err(Error::err("ERR XX and NX options at the same time are not compatible"));
        }
        if (rule.nx && (rule.gt || rule.lt)) || (rule.gt && rule.lt) {
            return Err(Error::err("ERR GT, LT, and/or NX options at the same time are not compatible"));
        }
        if rule.incr && left > 2 {
            return Err(Error::err("ERR INCR option supports a single increment-element pair"));
        }
        Ok(Options { rule, ch, scores: words.position() })
    }
}

fn zadd(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    add(ctx, args, false, out)
}

fn zincrby(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    // Redis reads both alike, options included: `ZINCRBY key NX member` is a syntax error.
    add(ctx, args, true, out)
}

fn add(ctx: &mut Ctx, args: Args<'_>, incr: bool, out: &mut Reply) -> Result {
    let Options { rule, ch, scores } = Options::parse(args, incr)?;
    let pairs = args.slice(scores);
    if rule.incr {
        ctx.happens(&[events::ZINCR]);
    }
    let mut numbers: SmallVec<[f64; 4]> = SmallVec::new();
    for number in pairs.iter().step_by(2) {
        numbers.push(parse_double(number).ok_or(Error::NotFloat)?);
    }
    let members = pairs.iter().skip(1).step_by(2).zip(numbers);
    let Some(puts) = put_all(ctx, &args[1], rule, &pairs[1], members)? else {
        if rule.incr {
            out.nil()
        } else {
            out.int(0)
        }
        return Ok(());
    };
    match puts.last {
        _ if !rule.incr => out.int((puts.added + if ch { puts.changed } else { 0 }) as i64),
        Put::Kept => out.nil(),
        Put::Added(score) | Put::Changed(score) | Put::Same(score) => out.double(score.get()),
    }
    Ok(())
}

fn zrem(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let mut removed = 0;
    if let Some(at) = ctx.lookup_kind(&args[1], Kind::Zset)? {
        for member in args.slice(2).iter() {
            removed += u64::from(take(&mut ctx.txn, at, member)?);
        }
        shrunk(ctx, at, removed);
    }
    out.int(removed as i64);
    Ok(())
}

const ADDS: u32 = flags::WRITE | flags::DENYOOM | flags::FAST;

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("zadd", zadd, -4, ADDS, Group::SortedSet)
        .tells(&events::ZADD)
        .keys(&[KeySpec::one(1, key::RW | key::UPDATE)])
        .looks_at(Look::scored(3).each(2))
        .help("1.2.0", "Gives members of a sorted set their scores; adds those that are not there.")
        .syntax(
            "key [NX | XX] [GT | LT] [CH] [INCR] score member [score member ...]",
            "O(log(N)) for each member, where N is the size of the sorted set.",
        ),
    Command::new("zincrby", zincrby, 4, ADDS, Group::SortedSet)
        .tells(&events::ZINCR)
        .keys(&[KeySpec::one(1, key::RW | key::ACCESS | key::UPDATE)])
        .looks_at(Look::place(3))
        .help("1.2.0", "Adds a number to the score of a member.")
        .syntax("key increment member", "O(log(N)) where N is the size of the sorted set."),
    Command::new("zrem", zrem, -3, flags::WRITE | flags::FAST, Group::SortedSet)
        .tells(&events::ZREM)
        .keys(&[KeySpec::one(1, key::RW | key::DELETE)])
        .looks_at(Look::place(2).each(1))
        .help("1.2.0", "Removes members of a sorted set.")
        .syntax("key member [member ...]", "O(log(N)) for each member, where N is the size of the sorted set."),
];
