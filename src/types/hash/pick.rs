//! HRANDFIELD and HSCAN.

use super::fields::Hash;
use crate::codec::element::Group as Elements;
use crate::codec::field::{Field, split_timed};
use crate::handler::limits::may_touch;
use crate::handler::{Args, Command, Ctx, Group, KeySpec, Reply, Result, flags, key};
use crate::shard::memory::core::unreadable;
use crate::shard::memory::object::Kind;
use crate::types::random::{Count, Picks, Sampler, each_anew};
use crate::types::scan::{Options, Page, parse_cursor, reply_end, scan_group};

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
    let count = count.of(len);
    let picks = count.number() as usize;
    let flat = pairs && out.proto() == 2;
    out.array(if flat { picks * 2 } else { picks });
    pick(ctx, &hash, count, len, |field| {
        if pairs && !flat {
            out.array(2);
        }
        out.bulk(field.name);
        if pairs {
            out.bulk(field.value);
        }
        Ok(())
    })
}

fn one_field(ctx: &mut Ctx, key: &[u8], out: &mut Reply) -> Result {
    let mut any = false;
    if let Some(hash) = Hash::find(ctx, key)? {
        let len = hash.len(ctx)?;
        pick(ctx, &hash, Count::Repeated(1).of(len), len, |field| {
            any = true;
            out.bulk(field.name);
            Ok(())
        })?;
    }
    if !any {
        out.nil();
    }
    Ok(())
}

/// Hands so many fields of a hash of `len` to `visit`.
fn pick(ctx: &mut Ctx, hash: &Hash, count: Count, len: u64, mut visit: impl FnMut(Field<'_>) -> Result) -> Result {
    if hash.known_len(ctx).is_some() {
        return count.each(ctx, (hash.found(), Elements::HashField), len, |stored, value| {
            visit(Field::split(&stored[1..], value, hash.is_timed()).map_err(unreadable)?)
        });
    }
    // A field's place among those that live is known only by going through them.
    may_touch(hash.breadth(ctx))?;
    match count {
        Count::Distinct(count) => {
            let mut sampler = Sampler::new(len, count);
            hash.each_in_slices(ctx, |field| if sampler.takes() { visit(field) } else { Ok(()) })
        }
        Count::Repeated(count) => {
            let pass = |ctx: &mut Ctx, picks: &mut Picks| {
                hash.each_in_slices(ctx, |Field { name, value, .. }| picks.pass(name, value))
            };
            each_anew(ctx, (len, count), pass, |name, value| visit(Field { name, value, expire_ms: 0 }))
        }
    }
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
