//! Single members: SADD, SREM, SISMEMBER, SMISMEMBER, SMOVE; and all of them: SMEMBERS, SCARD, SSCAN.

use super::{cardinality, contains, create, form, insert, is_blind, key_of, may_walk, remove_if_empty, text};
use crate::codec::element;
use crate::handler::{Args, Command, Ctx, Found, Group, KeySpec, Reply, Result, events, flags, key};
use crate::shard::memory::ahead::Look;
use crate::shard::memory::object::Kind;
use crate::types::scan::{Options, Page, parse_cursor, reply_end, scan_group};

fn sadd(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let members = args.slice(2);
    let at = match ctx.lookup_kind(&args[1], Kind::Set)? {
        Some(at) => at,
        None => create(ctx, &args[1], &members[0], members.len())?,
    };
    let added = insert(ctx, at, members.iter())?;
    out.int(added as i64);
    Ok(())
}

fn srem(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let Some(at) = ctx.lookup_kind(&args[1], Kind::Set)? else {
        out.int(0);
        return Ok(());
    };
    let mut removed = 0;
    for member in args.slice(2).iter() {
        removed += i64::from(ctx.txn.remove_element(at, &key_of(member))?);
    }
    if removed > 0 {
        shrink(ctx, at, removed)?;
    }
    out.int(removed);
    Ok(())
}

/// Accounts for members that are removed.
pub(super) fn shrink(ctx: &mut Ctx, at: Found, removed: i64) -> Result {
    if !is_blind(ctx, at) {
        ctx.txn.add_size(at, -removed);
    }
    remove_if_empty(ctx, at)?;
    Ok(())
}

fn sismember(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let member = &args[2];
    let found = if let Some(set) = ctx.in_passing(&args[1], Kind::Set)? {
        set.element(&args[1], &key_of(member))?.is_some()
    } else if let Some(at) = ctx.lookup_kind(&args[1], Kind::Set)? {
        contains(ctx, at, member)?
    } else {
        false
    };
    out.int(i64::from(found));
    Ok(())
}

fn smismember(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let at = ctx.lookup_kind(&args[1], Kind::Set)?;
    let members = args.slice(2);
    out.array(members.len());
    for (n, member) in members.iter().enumerate() {
        ctx.txn.rest_between(ctx.ns(), n)?;
        let found = match at {
            Some(at) => contains(ctx, at, member)?,
            None => false,
        };
        out.int(i64::from(found));
    }
    Ok(())
}

fn scard(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let count = match ctx.lookup_kind(&args[1], Kind::Set)? {
        Some(at) => cardinality(ctx, at)?,
        None => 0,
    };
    out.int(count as i64);
    Ok(())
}

fn smembers(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    match ctx.lookup_kind(&args[1], Kind::Set)? {
        Some(at) => {
            may_walk(ctx, at)?;
            let count = cardinality(ctx, at)?;
            out.set(count as usize);
            reply_all(ctx, at, out)
        }
        None => {
            out.set(0);
            Ok(())
        }
    }
}

/// Replies with every member, without a header.
pub(super) fn reply_all(ctx: &mut Ctx, at: Found, out: &mut Reply) -> Result {
    ctx.group_in_slices(at, element::Group::SetMember, |element, value| {
        out.bulk(text(element, value)?);
        Ok(())
    })
}

fn smove(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let member = &args[3];
    let Some(from) = ctx.lookup_kind(&args[1], Kind::Set)? else {
        // Redis does not look at what the destination holds then.
        out.int(0);
        return Ok(());
    };
    let to = ctx.lookup_kind(&args[2], Kind::Set)?;
    if to == Some(from) {
        let found = contains(ctx, from, member)?;
        out.int(i64::from(found));
        return Ok(());
    }
    if !ctx.txn.remove_element(from, &key_of(member))? {
        out.int(0);
        return Ok(());
    }
    shrink(ctx, from, 1)?;
    ctx.tell(&events::SREM, &args[1]);
    let to = match to {
        Some(to) => to,
        None => create(ctx, &args[2], member, 1)?,
    };
    if insert(ctx, to, std::iter::once(member))? > 0 {
        ctx.tell(&events::SADD, &args[2]);
    }
    out.int(1);
    Ok(())
}

fn sscan(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let cursor = parse_cursor(&args[2])?;
    let Some(at) = ctx.lookup_kind(&args[1], Kind::Set)? else {
        // Redis does not look at the options then.
        reply_end(out);
        return Ok(());
    };
    let options = Options::parse(args.cursor(3), Some(Kind::Set))?;
    let whole = ctx.body(at).form != form::HASHTABLE;
    let page = Page { cursor, options: &options, whole };
    scan_group(ctx, (at, element::Group::SetMember), &page, out, |member, _, out| {
        out.bulk(member);
        Ok(1)
    })
}

const ADDS: u32 = flags::WRITE | flags::DENYOOM | flags::FAST;
const REMOVES: u32 = flags::WRITE | flags::FAST;
const LOOKS: u32 = flags::READONLY | flags::FAST;

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("sadd", sadd, -3, ADDS, Group::Set)
        .tells(&events::SADD)
        .keys(&[KeySpec::one(1, key::RW | key::INSERT)])
        .looks_at(Look::member(2).each(1))
        .help("1.0.0", "Adds members to a set.")
        .syntax("key member [member ...]", "O(N) where N is the number of members to be added."),
    Command::new("srem", srem, -3, REMOVES, Group::Set)
        .tells(&events::SREM)
        .keys(&[KeySpec::one(1, key::RW | key::DELETE)])
        .looks_at(Look::member(2).each(1))
        .help("1.0.0", "Removes members from a set.")
        .syntax("key member [member ...]", "O(N) where N is the number of members to be removed."),
    Command::new("sismember", sismember, 3, LOOKS, Group::Set)
        .keys(&[KeySpec::one(1, key::RO)])
        .looks_at(Look::member(2))
        .help("1.0.0", "Tells whether a set has a member.")
        .syntax("key member", "O(1)"),
    Command::new("smismember", smismember, -3, LOOKS, Group::Set)
        .keys(&[KeySpec::one(1, key::RO | key::ACCESS)])
        .looks_at(Look::member(2).each(1))
        .help("6.2.0", "Tells of several members whether a set has them.")
        .syntax("key member [member ...]", "O(N) where N is the number of members asked for."),
    Command::new("smembers", smembers, 2, flags::READONLY, Group::Set)
        .looks_at(Look::SET)
        .keys(&[KeySpec::one(1, key::RO | key::ACCESS)])
        .help("1.0.0", "Lists the members of a set.")
        .syntax("key", "O(N) where N is the number of members."),
    Command::new("scard", scard, 2, LOOKS, Group::Set)
        .keys(&[KeySpec::one(1, key::RO)])
        .help("1.0.0", "Tells how many members a set has.")
        .syntax("key", "O(1); O(N) with set-encode-version 1, where N is the number of members."),
    Command::new("smove", smove, 4, REMOVES, Group::Set)
        .keys(&[KeySpec::one(1, key::RW | key::ACCESS | key::DELETE), KeySpec::one(2, key::RW | key::INSERT)])
        .help("1.0.0", "Moves a member from one set to another.")
        .syntax("source destination member", "O(1)"),
    Command::new("sscan", sscan, -3, flags::READONLY, Group::Set)
        .keys(&[KeySpec::one(1, key::RO | key::ACCESS)])
        .help("2.8.0", "Goes through the members of a set page by page.")
        .syntax(
            "key cursor [MATCH pattern] [COUNT count]",
            "O(1) for a call, O(N) for a whole scan, where N is the number of members that begin as the pattern does.",
        ),
];
