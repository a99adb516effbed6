//! SINTER, SUNION, SDIFF; their STORE forms, which stream into the destination; their CARD forms, which only count.
//!
//! A key that is absent is an empty set; one of another type is an error even where the result is known without it.
//! Members are answered in the order of their bytes, which Redis leaves open.

use smallvec::SmallVec;

use super::combine::{combine, weight};
use super::{BLIND, cardinality, form, text};
use crate::codec::element;
use crate::config::settings::Encodings;
use crate::error::{NEGATIVE_LIMIT, NUMKEYS};
use crate::handler::{Args, Command, Ctx, Error, Found, Group, KeySpec, Reply, Result, events, flags, key};
use crate::shard::memory::object::Kind;
use crate::shard::txn::build::{Build, Shape};
use crate::shard::txn::slices::Slices;
use crate::types::merge::Operation;
use crate::util::num::{parse_i64, parse_natural};

type Sets = SmallVec<[Found; 8]>;

/// The sets that the result depends on; none if it is empty.
fn sets_of(ctx: &mut Ctx, operation: Operation, keys: Args<'_>) -> Result<Sets> {
    let mut sets = Sets::new();
    let mut empty = false;
    for (i, key) in keys.iter().enumerate() {
        match ctx.to_read(|ctx| ctx.lookup_kind(key, Kind::Set))? {
            Some(at) => sets.push(at),
            None => empty |= operation == Operation::Inter || (operation == Operation::Diff && i == 0),
        }
    }
    if empty {
        sets.clear();
    }
    Ok(sets)
}

fn answer(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply, operation: Operation) -> Result {
    let sets = sets_of(ctx, operation, args.slice(1))?;
    let mark = out.defer_set();
    let mut count = 0;
    combine(ctx, operation, &sets, &mut |element, value| {
        out.bulk(text(element, value)?);
        count += 1;
        Ok(true)
    })?;
    out.set_len(mark, count);
    Ok(())
}

fn sinter(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    answer(ctx, args, out, Operation::Inter)
}

fn sunion(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    answer(ctx, args, out, Operation::Union)
}

fn sdiff(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    answer(ctx, args, out, Operation::Diff)
}

fn store(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply, operation: Operation) -> Result {
    let sets = sets_of(ctx, operation, args.slice(2))?;
    let settings = ctx.settings();
    let (limits, encoding) = (settings.encodings, settings.set_encode_version);
    let mut form = first_form(ctx, operation, &sets, &limits)?;
    let (mut count, mut integers) = (0, true);
    let mut build = Build::new(&ctx.txn, ctx.ns(), &args[1])?;
    combine(ctx, operation, &sets, &mut |element, value| {
        build.put(element, value)?;
        let member = text(element, value)?;
        form = form::grown(form, count, member, &limits);
        integers = integers && parse_i64(member).is_some();
        count += 1;
        Ok(true)
    })?;
    if operation == Operation::Inter && integers && count <= limits.set_max_intset_entries as u64 {
        form = form::INTSET;
    }
    let form = if encoding == BLIND { form::HASHTABLE } else { form };
    build.finish(&mut ctx.txn, Shape { encoding, form, ..Shape::new(Kind::Set, count) })?;
    out.int(count as i64);
    Ok(())
}

/// The form in which Redis begins a result: an intersection's is that of the smallest set, though never a hash table; a
/// difference that is got by removing from a copy of the first set keeps the copy's.
fn first_form(ctx: &mut Ctx, operation: Operation, sets: &[Found], limits: &Encodings) -> Result<u8> {
    let smallest = sets.iter().min_by_key(|&&at| weight(ctx, at));
    match (operation, smallest) {
        (Operation::Inter, Some(&smallest)) => return Ok(ctx.body(smallest).form.min(form::LISTPACK)),
        (Operation::Diff, Some(_)) if removes_from_copy(ctx, sets) => {}
        _ => return Ok(form::INTSET),
    }
    let (mut form, mut size) = (form::INTSET, 0);
    let mut add = |element: &[u8], value: &[u8]| -> Result<bool> {
        form = form::grown(form, size, text(element, value)?, limits);
        size += 1;
        Ok(form != form::HASHTABLE)
    };
    if ctx.goes_in_slices(0)? {
        let (ns, slices) = (ctx.ns(), Slices::of_group(sets[0], element::Group::SetMember));
        ctx.txn.pass_in_slices(ns, slices, |(element, value)| add(&element, &value))?;
        return Ok(form);
    }
    for member in ctx.group(sets[0], element::Group::SetMember)? {
        let (element, value) = member?;
        if !add(&element, &value)? {
            break;
        }
    }
    Ok(form)
}

/// Whether Redis thinks it cheaper to remove all others from a copy of the first set than to look up its members.
fn removes_from_copy(ctx: &Ctx, sets: &[Found]) -> bool {
    let lookups = weight(ctx, sets[0]).saturating_mul(sets.len() as u64) / 2;
    let removals = sets.iter().map(|&at| weight(ctx, at)).sum();
    lookups > removals
}

fn sinterstore(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    store(ctx, args, out, Operation::Inter)
}

fn sunionstore(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    store(ctx, args, out, Operation::Union)
}

fn sdiffstore(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    store(ctx, args, out, Operation::Diff)
}

/// The keys and the highest count asked for, 0 for any.
fn counted_keys(args: Args<'_>, operation: Operation) -> Result<(Args<'_>, u64)> {
    let keys = parse_natural(&args[1]).filter(|&keys| keys > 0).ok_or(NUMKEYS)?;
    let keys = usize::try_from(keys).unwrap_or(usize::MAX);
    if keys > args.len() - 2 {
        return Err(Error::err("ERR Number of keys can't be greater than number of args"));
    }
    let mut limit = 0;
    let mut options = args.cursor(2 + keys);
    while !options.is_empty() {
        if options.remaining() >= 2 && options.next_is(b"LIMIT") {
            limit = parse_natural(options.arg()?).ok_or(NEGATIVE_LIMIT)?;
        } else if operation != Operation::Union || !options.next_is(b"APPROX") {
            return Err(Error::Syntax);
        }
    }
    Ok((args.slice(2).take(keys), limit))
}

fn count(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply, operation: Operation) -> Result {
    let (keys, limit) = counted_keys(args, operation)?;
    let sets = sets_of(ctx, operation, keys)?;
    let most = if limit == 0 { u64::MAX } else { limit };
    let count = match sets[..] {
        [only] => cardinality(ctx, only)?.min(most),
        _ => {
            let mut count = 0;
            combine(ctx, operation, &sets, &mut |_, _| {
                count += 1;
                Ok(count < most)
            })?;
            count
        }
    };
    out.int(count as i64);
    Ok(())
}

fn sintercard(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    count(ctx, args, out, Operation::Inter)
}

fn sunioncard(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    // APPROX allows for an estimate; the exact count needs no more memory here.
    count(ctx, args, out, Operation::Union)
}

fn sdiffcard(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    count(ctx, args, out, Operation::Diff)
}

const STORES: u32 = flags::WRITE | flags::DENYOOM;
const COUNTS: u32 = flags::READONLY | flags::MOVABLEKEYS;
const READ: &[KeySpec] = &[KeySpec::range(1, -1, 1, key::RO | key::ACCESS)];
const STORED: &[KeySpec] = &[KeySpec::one(1, key::OW | key::UPDATE), KeySpec::range(2, -1, 1, key::RO | key::ACCESS)];
const COUNTED: &[KeySpec] = &[KeySpec::counted(1, 1, key::RO | key::ACCESS)];
const ALL: &str = "O(N) where N is the number of members of all sets together.";
const SMALLEST: &str =
    "O(N*M) worst case where N is the number of members of the smallest set and M the number of sets.";

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("sinter", sinter, -2, flags::READONLY, Group::Set)
        .keys(READ)
        .help("1.0.0", "Lists the members that all of several sets have.")
        .syntax("key [key ...]", SMALLEST),
    Command::new("sinterstore", sinterstore, -3, STORES, Group::Set)
        .tells(&events::SINTERSTORE)
        .keys(STORED)
        .help("1.0.0", "Stores the members that all of several sets have.")
        .syntax("destination key [key ...]", SMALLEST),
    Command::new("sintercard", sintercard, -3, COUNTS, Group::Set)
        .keys(COUNTED)
        .help("7.0.0", "Counts the members that all of several sets have.")
        .syntax("numkeys key [key ...] [LIMIT limit]", SMALLEST),
    Command::new("sunion", sunion, -2, flags::READONLY, Group::Set)
        .keys(READ)
        .help("1.0.0", "Lists the members that any of several sets has.")
        .syntax("key [key ...]", ALL),
    Command::new("sunionstore", sunionstore, -3, STORES, Group::Set)
        .tells(&events::SUNIONSTORE)
        .keys(STORED)
        .help("1.0.0", "Stores the members that any of several sets has.")
        .syntax("destination key [key ...]", ALL),
    Command::new("sunioncard", sunioncard, -3, COUNTS, Group::Set)
        .keys(COUNTED)
        .help("8.10.0", "Counts the members that any of several sets has.")
        .syntax("numkeys key [key ...] [APPROX] [LIMIT limit]", ALL),
    Command::new("sdiff", sdiff, -2, flags::READONLY, Group::Set)
        .keys(READ)
        .help("1.0.0", "Lists the members that a set has and several others have not.")
        .syntax("key [key ...]", ALL),
    Command::new("sdiffstore", sdiffstore, -3, STORES, Group::Set)
        .tells(&events::SDIFFSTORE)
        .keys(STORED)
        .help("1.0.0", "Stores the members that a set has and several others have not.")
        .syntax("destination key [key ...]", ALL),
    Command::new("sdiffcard", sdiffcard, -3, COUNTS, Group::Set)
        .keys(COUNTED)
        .help("8.10.0", "Counts the members that a set has and several others have not.")
        .syntax("numkeys key [key ...] [LIMIT limit]", ALL),
];
