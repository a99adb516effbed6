//! Members by chance: SPOP, SRANDMEMBER.
//!
//! A member is drawn as a number below the cardinality, and found by its rank: every member is as likely as any other,
//! and the set is not walked. Where a good part of a set is wanted it is walked once ([`crate::types::random`]).
//!
//! | SPOP of n members | does |
//! |---|---|
//! | all | removes the key |
//! | few | picks them, which may rest, and removes them |
//! | most, or very many | writes the members that stay anew, so that neither log nor memory holds what goes |

use super::member::{reply_all, shrink};
use super::{BLIND, Key, cardinality, form, text};
use crate::codec::{self, element};
use crate::handler::events;
use crate::handler::limits::{fit_one_by_one, may_touch};
use crate::handler::{Args, Command, Ctx, Error, Found, Group, KeySpec, Reply, Result, flags, key};
use crate::meter;
use crate::shard::memory::ahead::Look;
use crate::shard::memory::core::storage;
use crate::shard::memory::object::Kind;
use crate::shard::txn::build::{Build, Shape};
use crate::types::random::{Count, Dice, Sampler};
use crate::util::num::parse_natural;
use crate::util::scale::Scaled;

/// Members that SPOP removes one by one at most.
const ONE_BY_ONE: Scaled<u64> = Scaled::new(100_000);

/// Replies with one member of the set at a key, or nil where there is none; where it stands.
fn reply_one(ctx: &mut Ctx, key: &[u8], out: &mut Reply) -> Result<Option<(Found, Key)>> {
    let Some(at) = ctx.lookup_kind(key, Kind::Set)? else {
        out.nil();
        return Ok(None);
    };
    let rank = Dice::new().below(cardinality(ctx, at)?);
    let Some((element, value)) = ctx.select(at, element::Group::SetMember, rank)? else {
        return Err(storage(ctx.object(at).key(), "a set has fewer members than its metadata says"));
    };
    out.bulk(text(&element, &value)?);
    Ok(Some((at, Key::from_slice(&element))))
}

fn spop(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    match args.len() {
        2 => {}
        3 => return spop_count(ctx, args, out),
        _ => return Err(Error::Syntax),
    }
    let Some((at, element)) = reply_one(ctx, &args[1], out)? else { return Ok(()) };
    take_picked(ctx, at, &element)?;
    shrink(ctx, at, 1)
}

fn spop_count(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    /// Redis writes a set anew if so many times as many members go as stay.
    const MOST: u64 = 5;
    let count = parse_natural(&args[2]).ok_or(crate::error::NOT_POSITIVE)?;
    let found = ctx.lookup_kind(&args[1], Kind::Set)?;
    let Some(at) = found.filter(|_| count > 0) else {
        out.set(0);
        return Ok(());
    };
    let size = cardinality(ctx, at)?;
    if count >= size {
        may_touch(size)?;
        out.set(size as usize);
        reply_all(ctx, at, out)?;
        ctx.txn.delete_found(at);
        return Ok(());
    }
    may_touch(count)?;
    out.set(count as usize);
    let most = (size - count) * MOST <= count;
    if most || count > ONE_BY_ONE.get() || !fit_one_by_one(count, 0) {
        may_touch(size)?;
        return keep_some(ctx, at, &args[1], Sampler::new(size, count), most, out);
    }
    let mut taken = Vec::new();
    Count::Distinct(count).each(ctx, (at, element::Group::SetMember), size, |element, value| {
        out.bulk(text(element, value)?);
        let key = Key::from_slice(element);
        meter::hold(size_of::<Key>() + if key.spilled() { key.len() + meter::ALLOCATION } else { 0 })?;
        taken.push(key);
        Ok(())
    })?;
    for element in taken {
        take_picked(ctx, at, &element)?;
    }
    shrink(ctx, at, count as i64)
}

/// Removes a member that was picked, and so is there.
fn take_picked(ctx: &mut Ctx, at: Found, element: &[u8]) -> Result {
    // The value of a long one is its text, which is not at hand.
    let stored = element.get(1..).unwrap_or_default();
    if codec::is_long_form(stored) {
        ctx.txn.remove_element(at, element).map(drop)
    } else {
        ctx.txn.remove_known(at, element, b"")
    }
}

/// Replies with the members that are taken and writes those that stay anew. If Redis did so too (`most`), they get the
/// form that suits them.
fn keep_some(ctx: &mut Ctx, at: Found, key: &[u8], mut taken: Sampler, most: bool, out: &mut Reply) -> Result {
    let limits = ctx.settings().encodings;
    let (before, encoding) = (ctx.body(at).form, ctx.body(at).encoding);
    let mut form = if most { before.min(form::LISTPACK) } else { before };
    let mut kept = 0;
    let mut build = Build::new(&ctx.txn, ctx.ns(), key)?;
    ctx.group_in_slices(at, element::Group::SetMember, |element, value| {
        let member = text(element, value)?;
        if taken.takes() {
            out.bulk(member);
            return Ok(());
        }
        build.put(element, value)?;
        if most {
            form = form::grown(form, kept, member, &limits);
        }
        kept += 1;
        Ok(())
    })?;
    let form = if encoding == BLIND { before } else { form };
    let expire_ms = ctx.object(at).expire_ms;
    build.finish(&mut ctx.txn, Shape { encoding, form, expire_ms, ..Shape::new(Kind::Set, kept) })?;
    Ok(())
}

fn srandmember(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    match args.len() {
        2 => {}
        3 => return srandmember_count(ctx, args, out),
        _ => return Err(Error::Syntax),
    }
    reply_one(ctx, &args[1], out).map(drop)
}

fn srandmember_count(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let count = Count::parse(&args[2], false)?;
    let Some(at) = ctx.lookup_kind(&args[1], Kind::Set)? else {
        out.array(0);
        return Ok(());
    };
    let size = cardinality(ctx, at)?;
    let members = (at, element::Group::SetMember);
    let count = count.of(size);
    out.array(count.number() as usize);
    count.each(ctx, members, size, |element, value| {
        out.bulk(text(element, value)?);
        Ok(())
    })
}

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("spop", spop, -2, flags::WRITE | flags::FAST, Group::Set)
        .looks_at(Look::SET)
        .tells(&events::SPOP)
        .keys(&[KeySpec::one(1, key::RW | key::ACCESS | key::DELETE)])
        .help("1.0.0", "Takes members out of a set by chance.")
        .syntax("key [count]", "O(log(M)) for each member, where M is the number of members of the set."),
    Command::new("srandmember", srandmember, -2, flags::READONLY, Group::Set)
        .looks_at(Look::SET)
        .keys(&[KeySpec::one(1, key::RO | key::ACCESS)])
        .help("1.0.0", "Picks members of a set by chance.")
        .syntax("key [count]", "O(log(M)) for each member, where M is the number of members of the set."),
];
