//! What happens between the ends: LSET, LINSERT, LREM, LTRIM.

use std::ops::ControlFlow;

use super::reshape::Builder;
use super::{List, form};
use crate::handler::events;
use crate::handler::limits::may_touch;
use crate::handler::{Args, Command, Ctx, Error, Group, KeySpec, Reply, Result, flags, key};
use crate::shard::memory::ahead::Look;
use crate::util::num::parse_i64;
use crate::util::scale::Scaled;

/// A number whose opposite is none.
pub(super) const NOT_NEGATABLE: Error =
    Error::err("ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807");

/// Matches whose places LREM keeps in mind; a list with more of them is written anew.
const MOST_MATCHES: Scaled<usize> = Scaled::new(100_000);

fn lset(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let mut list = List::find(ctx, &args[1])?.ok_or(Error::NoSuchKey)?;
    // Redis keeps 32 bits of it here, and nowhere else.
    let offset = parse_i64(&args[2]).ok_or(Error::NotInteger)? as i32;
    let index = list.index(offset.into()).ok_or(Error::err("ERR index out of range"))?;
    let value = &args[3];
    let old_bytes = form::entry_bytes(list.get(ctx, index)?);
    list.grow(ctx, value.len() as u64, 1);
    list.put(ctx, index, value);
    list.bytes = list.bytes.saturating_sub(old_bytes) + form::entry_bytes(value);
    list.shrink(ctx);
    list.store(ctx);
    out.ok();
    Ok(())
}

fn linsert(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let behind = if args[2].eq_ignore_ascii_case(b"AFTER") {
        1
    } else if args[2].eq_ignore_ascii_case(b"BEFORE") {
        0
    } else {
        return Err(Error::Syntax);
    };
    let Some(list) = List::find(ctx, &args[1])? else {
        out.int(0);
        return Ok(());
    };
    may_touch(list.len())?;
    list.warm(ctx)?;
    let mut pivot = None;
    list.pass_in_slices(ctx, list.head..list.tail, false, |index, value| {
        if value != &args[3] {
            return Ok(ControlFlow::Continue(()));
        }
        pivot = Some(index);
        Ok(ControlFlow::Break(()))
    })?;
    let Some(pivot) = pivot else {
        out.int(-1);
        return Ok(());
    };
    list.insert(ctx, &args[1], pivot + behind, &args[4])?;
    out.int(list.len() as i64 + 1);
    Ok(())
}

/// The elements that LREM removes.
struct Matches {
    count: u64,
    /// The one furthest from where the search began.
    last: i64,
    /// Where they stand, in the order found; all of them unless there are too many.
    places: Vec<i64>,
}

impl Matches {
    /// Finds the first so many elements that are `wanted`, or the last.
    fn find(ctx: &mut Ctx, list: &List, wanted: &[u8], most: u64, reverse: bool) -> Result<Matches> {
        let mut matches = Matches { count: 0, last: list.head, places: Vec::new() };
        list.pass_in_slices(ctx, list.head..list.tail, reverse, |index, value| {
            if value == wanted {
                matches.count += 1;
                matches.last = index;
                if matches.places.len() < MOST_MATCHES.get() {
                    matches.places.push(index);
                }
            }
            Ok(if matches.count == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        Ok(matches)
    }
}

fn lrem(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let count = parse_i64(&args[2]).ok_or(Error::NotInteger)?;
    if count == i64::MIN {
        return Err(NOT_NEGATABLE);
    }
    let Some(mut list) = List::find(ctx, &args[1])? else {
        out.int(0);
        return Ok(());
    };
    may_touch(list.len())?;
    list.warm(ctx)?;
    let (reverse, most) = (count < 0, if count == 0 { u64::MAX } else { count.unsigned_abs() });
    let wanted = &args[3];
    let mut matches = Matches::find(ctx, &list, wanted, most, reverse)?;
    out.int(matches.count as i64);
    if matches.count == list.len() {
        ctx.txn.delete_found(list.at);
        return Ok(());
    }
    if matches.count == 0 {
        return Ok(());
    }
    if reverse {
        matches.places.reverse();
    }
    if matches.count == matches.places.len() as u64 && list.remove(ctx, &matches.places, form::entry_bytes(wanted))? {
        return Ok(());
    }
    let mut copy = Builder::new(ctx, &args[1])?;
    list.pass_in_slices(ctx, list.head..list.tail, false, |index, value| {
        let within = if reverse { index >= matches.last } else { index <= matches.last };
        if !within || value != wanted {
            copy.push(value)?;
        }
        Ok(ControlFlow::Continue(()))
    })?;
    copy.finish(ctx, &list, true)
}

fn ltrim(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let start = parse_i64(&args[2]).ok_or(Error::NotInteger)?;
    let end = parse_i64(&args[3]).ok_or(Error::NotInteger)?;
    if let Some(list) = List::find(ctx, &args[1])? {
        list.cut(ctx, &args[1], list.between(start, end))?;
        // Told even if it has cut nothing off.
        ctx.tell(&events::LTRIM, &args[1]);
    }
    out.ok();
    Ok(())
}

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("lset", lset, 4, flags::WRITE | flags::DENYOOM, Group::List)
        .looks_at(Look::offset(2))
        .tells(&events::LSET)
        .keys(&[KeySpec::one(1, key::RW | key::UPDATE)])
        .help("1.0.0", "Replaces the element at an offset of a list.")
        .syntax("key index element", "O(1)"),
    Command::new("linsert", linsert, 5, flags::WRITE | flags::DENYOOM, Group::List)
        .looks_at(Look::LIST)
        .tells(&events::LINSERT)
        .keys(&[KeySpec::one(1, key::RW | key::INSERT)])
        .help("2.2.0", "Puts an element in front of or behind the first that equals a given one.")
        .syntax(
            "key <BEFORE | AFTER> pivot element",
            "O(N), where N is the number of elements up to the pivot and from it to the nearer end.",
        ),
    Command::new("lrem", lrem, 4, flags::WRITE, Group::List)
        .looks_at(Look::LIST)
        .tells(&events::LREM)
        .keys(&[KeySpec::one(1, key::RW | key::DELETE)])
        .help("1.0.0", "Removes elements that equal a given one: the first so many, the last, or all.")
        .syntax("key count element", "O(N), where N is the length of the list."),
    Command::new("ltrim", ltrim, 4, flags::WRITE, Group::List)
        .looks_at(Look::LIST)
        .keys(&[KeySpec::one(1, key::RW | key::DELETE)])
        .help("1.0.0", "Keeps only a part of a list.")
        .syntax("key start stop", "O(N), where N is the number of elements removed, or kept if these are fewer."),
];
