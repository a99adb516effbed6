//! The bytes of a string, whatever form they are stored in.
//!
//! | form | length | a part costs |
//! |---|---|---|
//! | inline | up to [`BIG_STRING`] | the part |
//! | chunks of [`CHUNK`] bytes | above, and whatever has been that long | the chunks it touches; absent ones are zeros |

use std::ops::{ControlFlow, Range};

use crate::handler::events;
use crate::handler::limits::may_go_through;
use crate::handler::{Ctx, Error, Found, Reply, Result};
use crate::shard::memory::object::{Kind, state};
use crate::shard::txn::{BIG_STRING, CHUNK, passes_by};

/// Replies with the whole value.
#[inline]
pub fn reply_value(ctx: &mut Ctx, found: Found, out: &mut Reply) -> Result {
    let object = ctx.object(found);
    if object.body.is_none() {
        out.bulk(object.value());
        return Ok(());
    }
    let len = ctx.string_len(found);
    reply_range(ctx, found, 0..len, out)
}

/// Replies with the value of a key, nil if there is none or it is no string, where `strict` does not make that an error.
/// Where it comes from disk, it is not kept for who may never ask for it again.
pub fn reply_string(ctx: &mut Ctx, key: &[u8], strict: bool, out: &mut Reply) -> Result {
    if let Some(string) = ctx.in_passing(key, Kind::String)? {
        out.bulk(string.value());
        return Ok(());
    }
    match ctx.lookup(key)? {
        Some(found) if ctx.object(found).kind == Kind::String => reply_value(ctx, found, out)?,
        Some(_) if strict => return Err(Error::WrongType),
        _ => out.nil(),
    }
    Ok(())
}

/// Replies with a part of the value, which must lie within it.
pub fn reply_range(ctx: &mut Ctx, found: Found, range: Range<usize>, out: &mut Reply) -> Result {
    let object = ctx.object(found);
    if object.body.is_none() {
        out.bulk(&object.value()[range]);
        return Ok(());
    }
    may_go_through(range.len())?;
    out.bulk_parts(range.len(), |buf| ctx.string_range(found, range.start, range.end, buf))
}

/// The byte at an offset, zero beyond the end.
pub fn byte_at(ctx: &mut Ctx, found: Found, offset: usize) -> Result<u8> {
    let object = ctx.object(found);
    if object.body.is_none() {
        return Ok(object.value().get(offset).copied().unwrap_or(0));
    }
    if offset >= ctx.string_len(found) {
        return Ok(0);
    }
    Ok(ctx.chunk(found, (offset / CHUNK) as u32)?.get(offset % CHUNK).copied().unwrap_or(0))
}

/// What [`each_piece`] comes upon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece<'a> {
    /// These bytes.
    Bytes(&'a [u8]),
    /// So many zeros that nothing stores.
    Zeros(usize),
}

/// Visits a part of the value, which must lie within it, in order: each piece with its offset. A run of absent chunks is
/// one piece. Rests between slices of what is long.
pub fn each_piece(
    ctx: &mut Ctx,
    found: Found,
    range: Range<usize>,
    mut visit: impl FnMut(usize, Piece<'_>) -> ControlFlow<()>,
) -> Result {
    if range.is_empty() {
        return Ok(());
    }
    let object = ctx.object(found);
    if object.body.is_none() {
        // Nothing comes after the only piece that could be broken off.
        let _ = visit(range.start, Piece::Bytes(&object.value()[range]));
        return Ok(());
    }
    may_go_through(range.len())?;
    let (ns, mut at, passes) = (ctx.ns(), range.start, passes_by(range.len()));
    for pieces in 0.. {
        if at >= range.end {
            break;
        }
        ctx.txn.rest_between_chunks(ns, pieces, || Ok(()))?;
        let number = at / CHUNK;
        let next = ctx.next_chunk(found, number as u32).map_or(usize::MAX, |next| next as usize);
        let flow = if next > number {
            let end = next.saturating_mul(CHUNK).min(range.end);
            let start = std::mem::replace(&mut at, end);
            visit(start, Piece::Zeros(end - start))
        } else {
            let (start, end) = (at, ((number + 1) * CHUNK).min(range.end));
            at = end;
            let base = number * CHUNK;
            ctx.txn.chunk_in_passing(found, number as u32, passes, |chunk| {
                let have = &chunk[(start - base).min(chunk.len())..(end - base).min(chunk.len())];
                let missing = end - start - have.len();
                let flow = if have.is_empty() { ControlFlow::Continue(()) } else { visit(start, Piece::Bytes(have)) };
                match flow {
                    ControlFlow::Continue(()) if missing > 0 => visit(end - missing, Piece::Zeros(missing)),
                    flow => flow,
                }
            })?
        };
        if flow.is_break() {
            break;
        }
    }
    Ok(())
}

/// Whether the value is exactly these bytes.
pub fn equals(ctx: &mut Ctx, found: Found, bytes: &[u8]) -> Result<bool> {
    Ok(ctx.string_len(found) == bytes.len() && *ctx.string_value(found)? == *bytes)
}

/// Makes a key hold a string until `expire_ms` (absolute, 0 for ever). A time that is past leaves no key at all.
pub fn set_until(ctx: &mut Ctx, key: &[u8], value: &[u8], expire_ms: u64) -> Result {
    if expire_ms != 0 && expire_ms <= ctx.due_ms {
        if !ctx.remove(key)? {
            // Who watches it sees that it was there for a moment.
            ctx.set_string(key, b"", 0)?;
            ctx.remove(key)?;
        }
        ctx.tell_come_and_gone(key, &[&events::SET, &events::EXPIRE, &events::EXPIRED]);
    } else {
        ctx.set_string(key, value, expire_ms)?;
    }
    Ok(())
}

/// Overwrites bytes of a value from `offset` on, with zeros in between if it ends before; creates the key if it is not
/// there. Costs what it writes, however far `offset` lies.
pub fn write_at(ctx: &mut Ctx, key: &[u8], found: Option<Found>, offset: usize, bytes: &[u8]) -> Result<Found> {
    if let Some(found) = found {
        ctx.splice(found, offset, bytes)?;
        return Ok(found);
    }
    let len = offset + bytes.len();
    let found = if offset == 0 {
        ctx.set_string(key, bytes, 0)?
    } else if len <= BIG_STRING {
        let mut value = vec![0; len];
        value[offset..].copy_from_slice(bytes);
        ctx.set_string(key, &value, 0)?
    } else {
        let found = ctx.set_string(key, b"", 0)?;
        ctx.splice(found, offset, bytes)?;
        found
    };
    ctx.mark_encoding(found, state::RAW);
    Ok(found)
}

/// A range as clients give it, both ends included, negative ones counted from the end, cut to `len` units. `None` if
/// nothing is left.
pub fn clamp(start: i64, end: i64, len: u64) -> Option<(u64, u64)> {
    let len = len as i64;
    let from_start = |at: i64| if at < 0 { (at + len).max(0) } else { at };
    let (start, end) = (from_start(start), from_start(end).min(len - 1));
    (start <= end).then_some((start as u64, end as u64))
}

/// As [`clamp`], but nothing is left of a range that ends before it starts even where both ends lie before the first
/// unit.
pub fn clamp_ordered(start: i64, end: i64, len: u64) -> Option<(u64, u64)> {
    if start < 0 && end < 0 && start > end { None } else { clamp(start, end, len) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_to_the_value() {
        for (start, end, len, expected) in [
            (0, -1, 5, Some((0, 4))),
            (1, 99, 5, Some((1, 4))),
            (-3, -2, 5, Some((2, 3))),
            (-99, 0, 5, Some((0, 0))),
            (5, 9, 5, None),
            (3, 2, 5, None),
            (0, -1, 0, None),
            (i64::MIN, i64::MAX, 5, Some((0, 4))),
        ] {
            assert_eq!(clamp(start, end, len), expected, "{start} {end} of {len}");
            assert_eq!(clamp_ordered(start, end, len), expected, "{start} {end} of {len}");
        }
        assert_eq!((clamp(-8, -9, 5), clamp_ordered(-8, -9, 5)), (Some((0, 0)), None));
    }
}
