//! PFADD, PFCOUNT, PFMERGE.
//!
//! A dense HyperLogLog is changed in place, a byte or two for each register that rises; of a sparse one the bytes from
//! the first change on are written.

use std::sync::atomic::Ordering;

use super::format::{self, COUNT_AT, DENSE_LEN, Encoding, HEADER, STALE, STALE_AT};
use super::value::{self, HyperLogLog, Registers};
use super::{dense, hash};
use crate::handler::events;
use crate::handler::limits::may_go_through;
use crate::handler::{Args, Command, Ctx, Found, Group, KeySpec, Reply, Result, flags, key};
use crate::shard::engine::gate;
use crate::shard::memory::object::state;

/// The encoding of a found string.
///
/// # Errors
/// See [`format::encoding`].
fn encoding_of(ctx: &mut Ctx, found: Found) -> Result<Encoding> {
    let len = ctx.string_len(found);
    let object = ctx.object(found);
    if object.body.is_none() {
        return format::encoding(object.value(), len);
    }
    let mut head = Vec::with_capacity(HEADER);
    ctx.string_range(found, 0, HEADER, &mut head)?;
    format::encoding(&head, len)
}

/// Looks a HyperLogLog up; `None` if the key is not there.
///
/// # Errors
/// `WrongType`, [`format::NOT_VALID`], [`format::CORRUPT`].
pub(super) fn look_up(ctx: &mut Ctx, key: &[u8]) -> Result<Option<(Found, Encoding)>> {
    let Some(found) = ctx.lookup_string(key)? else { return Ok(None) };
    Ok(Some((found, encoding_of(ctx, found)?)))
}

/// Reads a HyperLogLog to be changed.
pub(super) fn load(ctx: &mut Ctx, found: Found, encoding: Encoding) -> Result<HyperLogLog> {
    let sparse_max_bytes = ctx.server.config.settings().hll_sparse_max_bytes;
    Ok(HyperLogLog::of(ctx.string_value(found)?.into_owned(), encoding, sparse_max_bytes))
}

/// Writes a HyperLogLog back, or to a new key.
pub(super) fn store(ctx: &mut Ctx, key: &[u8], found: Option<Found>, hll: &HyperLogLog) -> Result {
    let new = hll.bytes();
    let expire_ms = found.map_or(0, |found| ctx.object(found).expire_ms);
    if let Some(found) = found {
        let old = ctx.string_value(found)?;
        let start = old.iter().zip(new).take_while(|(old, new)| old == new).count();
        let same_end = old.iter().rev().zip(new[start..].iter().rev()).take_while(|(old, new)| old == new).count();
        let (shrinks, moves) = (new.len() < old.len(), new.len() != old.len());
        if !shrinks {
            let end = if moves { new.len() } else { new.len() - same_end };
            return ctx.splice(found, start, &new[start..end]);
        }
    }
    // Runs were joined, or there was nothing.
    let found = ctx.set_string(key, new, expire_ms)?;
    ctx.mark_encoding(found, state::RAW);
    Ok(())
}

fn pfadd(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let (key, elements) = (&args[1], args.slice(2));
    let found = look_up(ctx, key)?;
    if let Some((found, Encoding::Dense)) = found
        && ctx.object(found).body.is_none()
    {
        let raised = raise_in_place(ctx, found, elements)?;
        out.int(raised.into());
        return Ok(());
    }
    let mut hll = match found {
        Some((found, encoding)) => load(ctx, found, encoding)?,
        None => HyperLogLog::new(ctx.server.config.settings().hll_sparse_max_bytes),
    };
    let mut raised = found.is_none();
    for element in elements.iter() {
        raised |= hll.add(element)?;
    }
    if raised {
        hll.mark_stale();
        store(ctx, key, found.map(|(found, _)| found), &hll)?;
    }
    out.int(raised.into());
    Ok(())
}

/// Adds elements to a dense HyperLogLog that is stored in one piece; whether a register rose.
fn raise_in_place(ctx: &mut Ctx, found: Found, elements: Args<'_>) -> Result<bool> {
    let mut raised = false;
    for element in elements.iter() {
        let (register, rank) = hash::place(element);
        let bytes = ctx.object(found).value();
        if dense::get(bytes, register) < rank {
            let (at, changed) = dense::with(bytes, register, rank);
            ctx.splice(found, at, &changed[..dense::span(register)])?;
            raised = true;
        }
    }
    let last = ctx.object(found).value()[STALE_AT];
    if raised && last & STALE == 0 {
        ctx.splice(found, STALE_AT, &[last | STALE])?;
    }
    Ok(raised)
}

fn pfcount(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let keys = args.slice(1);
    let count = if keys.len() == 1 { count_one(ctx, &keys[0])? } else { merged(ctx, keys)?.0.count() };
    out.int(count as i64);
    Ok(())
}

/// The count of one HyperLogLog, which is kept in its header until it changes.
fn count_one(ctx: &mut Ctx, key: &[u8]) -> Result<u64> {
    let Some((found, encoding)) = look_up(ctx, key)? else { return Ok(0) };
    let bytes = ctx.string_value(found)?;
    if let Some(count) = format::count(&bytes) {
        return Ok(count);
    }
    let count = value::count(&bytes, encoding)?;
    drop(bytes);
    // Nothing may be written then, and the count can do without.
    let closed = ctx.server.engine.gate.load(Ordering::Relaxed) & (gate::REFUSED | gate::PAUSED) != 0;
    if !closed {
        ctx.splice(found, COUNT_AT, &value::count_bytes(count))?;
    }
    Ok(count)
}

/// The registers of all these keys together, and whether any of them is dense.
fn merged(ctx: &mut Ctx, keys: Args<'_>) -> Result<(Registers, bool)> {
    may_go_through(keys.len() * DENSE_LEN)?;
    let (mut registers, mut dense) = (Registers::default(), false);
    for key in keys.iter() {
        let Some((found, encoding)) = look_up(ctx, key)? else { continue };
        dense |= encoding == Encoding::Dense;
        registers.merge(&ctx.string_value(found)?, encoding)?;
    }
    Ok((registers, dense))
}

fn pfmerge(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let (registers, dense) = ctx.to_read(|ctx| merged(ctx, args.slice(1)))?;
    // Looked up again: reading the sources may have pushed it out of memory.
    let found = look_up(ctx, &args[1])?;
    let mut hll = match found {
        Some((found, encoding)) => load(ctx, found, encoding)?,
        None => HyperLogLog::new(ctx.server.config.settings().hll_sparse_max_bytes),
    };
    if dense {
        hll.make_dense()?;
    }
    hll.raise_all(&registers)?;
    hll.mark_stale();
    store(ctx, &args[1], found.map(|(found, _)| found), &hll)?;
    // Told even if it holds what it held.
    ctx.tell(&events::PFADD, &args[1]);
    out.ok();
    Ok(())
}

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("pfadd", pfadd, -2, flags::WRITE | flags::DENYOOM | flags::FAST, Group::HyperLogLog)
        .tells(&events::PFADD)
        .keys(&[KeySpec::one(1, key::RW | key::INSERT)])
        .help("2.8.9", "Adds elements to a HyperLogLog, which is created if it is not there.")
        .syntax("key [element [element ...]]", "O(N) where N is the number of elements."),
    Command::new("pfcount", pfcount, -2, flags::READONLY | flags::KEEPS_RESULT, Group::HyperLogLog)
        .keys(&[KeySpec::range(1, -1, 1, key::RW | key::ACCESS)])
        .help("2.8.9", "Returns about how many different elements HyperLogLogs have been given together.")
        .syntax("key [key ...]", "O(N) where N is the number of keys."),
    Command::new("pfmerge", pfmerge, -2, flags::WRITE | flags::DENYOOM, Group::HyperLogLog)
        .tells(&events::PFADD)
        .keys(&[KeySpec::one(1, key::RW | key::ACCESS | key::INSERT), KeySpec::range(2, -1, 1, key::RO | key::ACCESS)])
        .help("2.8.9", "Makes a HyperLogLog hold also what others hold.")
        .syntax("destkey [sourcekey [sourcekey ...]]", "O(N) where N is the number of HyperLogLogs."),
];
