//! Members by chance and page by page: ZRANDMEMBER, ZSCAN.

use super::bounds::Keys;
use super::value::{INDEX, form, read_score, read_sort, reply_header, reply_member, wrong_size};
use crate::codec::Score;
use crate::codec::element::Group as Elements;
use crate::handler::{Args, Command, Ctx, Group, KeySpec, Reply, Result, flags, key};
use crate::shard::memory::object::Kind;
use crate::types::random::{Count, Dice};
use crate::types::scan::{Options, Page, parse_cursor, reply_end, scan_between, scan_group};
use crate::util::num::{format_17_digits, format_double};

fn zrandmember(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    if args.len() == 2 {
        return one_member(ctx, &args[1], out);
    }
    let (count, with_scores) = Count::parse_pairs(args, b"WITHSCORES")?;
    let Some(at) = ctx.lookup_kind(&args[1], Kind::Zset)? else {
        out.array(0);
        return Ok(());
    };
    let size = ctx.size(at);
    let count = count.of(size);
    reply_header(out, count.number() as usize, with_scores);
    count.each(ctx, (at, Elements::ZsetSort), size, |key, value| {
        let (score, member) = read_sort(key, value)?;
        reply_member(out, member, score, with_scores);
        Ok(())
    })
}

fn one_member(ctx: &mut Ctx, key: &[u8], out: &mut Reply) -> Result {
    match ctx.lookup_kind(key, Kind::Zset)? {
        Some(at) => {
            let rank = Dice::new().below(ctx.size(at));
            let (key, value) = ctx.txn.select(at, Elements::ZsetSort, rank)?.ok_or_else(|| wrong_size(ctx, at))?;
            let (score, member) = read_sort(&key, &value)?;
            reply_member(out, member, score, false);
            Ok(())
        }
        None => {
            out.nil();
            Ok(())
        }
    }
}

fn zscan(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let cursor = parse_cursor(&args[2])?;
    let Some(at) = ctx.lookup_kind(&args[1], Kind::Zset)? else {
        reply_end(out);
        return Ok(());
    };
    let options = Options::parse(args.cursor(3), Some(Kind::Zset))?;
    let whole = ctx.body(at).form == form::LISTPACK;
    let page = Page { cursor, options: &options, whole };
    let emit = |member: &[u8], score: Score, out: &mut Reply| {
        out.bulk(member);
        if options.bare {
            return 1;
        }
        // A text even in RESP3; what Redis keeps as a skip list it prints here with more digits than elsewhere.
        let text = if whole { format_double(score.get()) } else { format_17_digits(score.get()) };
        out.bulk(text.as_bytes());
        2
    };
    if ctx.body(at).encoding == INDEX {
        // Only the sort group has the members' texts; they come in the order of the scores.
        let Keys { lower, upper } = Keys::whole();
        return scan_between(ctx, (at, &lower, &upper), &page, out, |key, value, out| {
            let (score, member) = read_sort(key, value)?;
            Ok(if options.accepts(member) { emit(member, score, out) } else { 0 })
        });
    }
    scan_group(ctx, (at, Elements::ZsetScore), &page, out, |member, value, out| {
        Ok(emit(member, read_score(b"", value)?, out))
    })
}

const ACCESS: &[KeySpec] = &[KeySpec::one(1, key::RO | key::ACCESS)];

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("zrandmember", zrandmember, -2, flags::READONLY, Group::SortedSet)
        .keys(ACCESS)
        .help("6.2.0", "Returns members picked by chance.")
        .syntax(
            "key [count [WITHSCORES]]",
            "O(M*log(N)) where N is the size of the sorted set and M the number of members returned.",
        ),
    Command::new("zscan", zscan, -3, flags::READONLY, Group::SortedSet)
        .keys(ACCESS)
        .help("2.8.0", "Goes through members and scores page by page.")
        .syntax(
            "key cursor [MATCH pattern] [COUNT count] [NOSCORES]",
            "O(1) for a call, O(N) for a whole scan, where N is the size of the sorted set",
        ),
];
