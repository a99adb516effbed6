//! HRANDFIELD and HSCAN.

use super::fields::Hash;
use crate::codec::element::Group as Elements;
use crate::codec::field::{Field, split_timed};
use crate::handler::limits::may_touch;
use crate::handler::{Args, Command, Ctx, Group, KeySpec, Reply, Result, flags, key};
use crate::meter;
use crate::shard::memory::core::unreadable;
use crate::shard::memory::object::Kind;
use crate::types::random::{Count, Dice, Sampler, distinct, goes_through};
use crate::types::scan::{Options, Page, parse_cursor, reply_end, scan_group};
use crate::util::scale::Scaled;

fn hrandfield(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    if args.len() == 2 {
        return one_field(ctx, &args[1], out);
    }
    let (count, pairs) = Count::parse_pairs(args, b"WITHVALUES")?;
    let Some(hash) = Hash::find(ctx, &args[1])? else {
        out.array(0);
        return Ok(());
    };
    let len = hash.len(ctx)?;
    let picks = match count {
        Count::Distinct(count) => count.min(len),
        Count::Repeated(_) if len == 0 => 0,
        Count::Repeated(count) => count,
    };
    let flat = pairs && out.proto() == 2;
    out.array(if flat { picks as usize * 2 } else { picks as usize });
    let reply = |field: Field<'_>, out: &mut Reply| -> Result {
        if pairs && !flat {
            out.array(2);
        }
        out.bulk(field.name);
        if pairs {
            out.bulk(field.value);
        }
        Ok(())
    };
    match count {
        Count::Distinct(_) => pick_distinct(ctx, &hash, (len, picks), |_, field| reply(field, out)),
        Count::Repeated(_) => pick_repeated(ctx, &hash, (len, picks), |_, field| reply(field, out)),
    }
}

fn one_field(ctx: &mut Ctx, key: &[u8], out: &mut Reply) -> Result {
    let picks = match Hash::find(ctx, key)? {
        Some(hash) => {
            let len = hash.len(ctx)?;
            pick_repeated(ctx, &hash, (len, len.min(1)), |_, field| {
                out.bulk(field.name);
                Ok(())
            })?;
            len
        }
        None => 0,
    };
    if picks == 0 {
        out.nil();
    }
    Ok(())
}

/// Picks so many different fields.
fn pick_distinct(
    ctx: &mut Ctx,
    hash: &Hash,
    (len, picks): (u64, u64),
    mut visit: impl FnMut(&Ctx, Field<'_>) -> Result,
) -> Result {
    if hash.known_len(ctx).is_none() || goes_through(len, picks) {
        may_touch(hash.breadth(ctx))?;
        let mut sampler = Sampler::new(len, picks);
        let ctx = &*ctx;
        return hash.each(ctx, |field| if sampler.takes() { visit(ctx, field) } else { Ok(()) });
    }
    may_touch(picks)?;
    distinct(len, picks, &mut Dice::new())?.into_iter().try_for_each(|n| visit_nth(ctx, hash, n, &mut visit))
}

/// Picks so many fields, each anew.
fn pick_repeated(
    ctx: &mut Ctx,
    hash: &Hash,
    (len, picks): (u64, u64),
    mut visit: impl FnMut(&Ctx, Field<'_>) -> Result,
) -> Result {
    let mut dice = Dice::new();
    if hash.known_len(ctx).is_some() {
        may_touch(picks)?;
        return (0..picks).try_for_each(|_| visit_nth(ctx, hash, dice.below(len), &mut visit));
    }
    // A field's place among those that live is known only by going through them, so they come in order: in one go for
    // as many picks as may be held.
    const AT_ONCE: Scaled<u64> = Scaled::new(1 << 20);
    may_touch(hash.breadth(ctx))?;
    let ctx = &*ctx;
    let mut left = picks;
    while left > 0 {
        meter::step(left.min(AT_ONCE.get()) as usize)?;
        let mut places: Vec<u64> = (0..left.min(AT_ONCE.get())).map(|_| dice.below(len)).collect();
        left -= places.len() as u64;
        places.sort_unstable();
        let (mut next, mut place) = (places.into_iter().peekable(), 0);
        hash.each(ctx, |field| {
            while next.next_if_eq(&place).is_some() {
                visit(ctx, field)?;
            }
            place += 1;
            Ok(())
        })?;
    }
    Ok(())
}

/// Visits the n-th field of a hash of which none has expired.
fn visit_nth(ctx: &Ctx, hash: &Hash, n: u64, visit: &mut impl FnMut(&Ctx, Field<'_>) -> Result) -> Result {
    let Some((stored, value)) = ctx.txn.select(hash.found(), Elements::HashField, n)? else {
        return Err(unreadable("a hash has fewer fields than its metadata says"));
    };
    visit(ctx, Field::split(&stored[1..], &value, hash.is_timed()).map_err(unreadable)?)
}

fn hscan(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let cursor = parse_cursor(&args[2])?;
    let Some(hash) = Hash::find(ctx, &args[1])? else {
        reply_end(out);
        return Ok(());
    };
    let options = Options::parse(args.cursor(3), Some(Kind::Hash))?;
    let (timed, due_ms) = (hash.is_timed(), ctx.due_ms);
    let place = (hash.found(), Elements::HashField);
    let page = Page { cursor, options: &options, whole: hash.is_compact() };
    scan_group(ctx, place, &page, out, |name, value, out| {
        let (expire_ms, value) = if timed { split_timed(value).map_err(unreadable)? } else { (0, value) };
        if !(Field { name, expire_ms, value }).is_live(due_ms) {
            return Ok(0);
        }
        out.bulk(name);
        if options.bare {
            return Ok(1);
        }
        out.bulk(value);
        Ok(2)
    })
}

const ACCESSED: &[KeySpec] = &[KeySpec::one(1, key::RO | key::ACCESS)];

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("hrandfield", hrandfield, -2, flags::READONLY, Group::Hash)
        .keys(ACCESSED)
        .help("6.2.0", "Picks fields of a hash by chance.")
        .syntax("key [count [WITHVALUES]]", "O(N * log(M)) for N fields of a hash of M"),
    Command::new("hscan", hscan, -3, flags::READONLY, Group::Hash)
        .keys(ACCESSED)
        .help("2.8.0", "Goes through the fields of a hash page by page.")
        .syntax(
            "key cursor [MATCH pattern] [COUNT count] [NOVALUES]",
            "O(1) for a call, O(N) for a whole scan, where N is the number of fields that begin as the pattern does",
        ),
];
