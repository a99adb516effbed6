//! Single bits.

use crate::handler::events;
use crate::handler::limits::max_len;
use crate::handler::{Args, Command, Ctx, Error, Group, KeySpec, Reply, Result, flags, key};
use crate::shard::memory::object::state;
use crate::types::string::value::{byte_at, write_at};
use crate::util::num::parse_i64;

/// A bit offset within the longest string allowed.
///
/// # Errors
/// A text of its own for what is no such offset.
pub fn bit_offset(ctx: &Ctx, text: &[u8]) -> Result<u64> {
    check_offset(ctx, parse_i64(text))
}

/// A bit offset, or `#` and a number of fields of so many bits.
///
/// # Errors
/// As [`bit_offset`].
pub fn field_offset(ctx: &Ctx, text: &[u8], field_bits: u32) -> Result<u64> {
    match text.strip_prefix(b"#") {
        Some(fields) => check_offset(ctx, parse_i64(fields).and_then(|n| n.checked_mul(field_bits.into()))),
        None => bit_offset(ctx, text),
    }
}

fn check_offset(ctx: &Ctx, offset: Option<i64>) -> Result<u64> {
    offset
        .and_then(|offset| u64::try_from(offset).ok())
        .filter(|offset| offset / 8 < max_len(ctx))
        .ok_or(Error::err("ERR bit offset is not an integer or out of range"))
}

/// The bit's place within its byte, as a mask.
const fn mask(offset: u64) -> u8 {
    0x80 >> (offset % 8)
}

fn getbit(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let offset = bit_offset(ctx, &args[2])?;
    let byte = match ctx.lookup_string(&args[1])? {
        Some(found) => byte_at(ctx, found, (offset / 8) as usize)?,
        None => 0,
    };
    out.int((byte & mask(offset) != 0).into());
    Ok(())
}

fn setbit(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let offset = bit_offset(ctx, &args[2])?;
    let on = match args[3] {
        [b'0'] => false,
        [b'1'] => true,
        _ => return Err(Error::err("ERR bit is not an integer or out of range")),
    };
    let at = (offset / 8) as usize;
    let found = ctx.lookup_string(&args[1])?;
    let (old, grows) = match found {
        Some(found) => (byte_at(ctx, found, at)?, at >= ctx.string_len(found)),
        None => (0, true),
    };
    let new = if on { old | mask(offset) } else { old & !mask(offset) };
    match found {
        Some(found) if !grows && new == old => ctx.mark_encoding(found, state::RAW),
        found => {
            write_at(ctx, &args[1], found, at, &[new])?;
        }
    }
    out.int((old & mask(offset) != 0).into());
    Ok(())
}

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("getbit", getbit, 3, flags::READONLY | flags::FAST, Group::Bitmap)
        .keys(&[KeySpec::one(1, key::RO | key::ACCESS)])
        .help("2.2.0", "Returns one bit of a string.")
        .syntax("key offset", "O(1)"),
    Command::new("setbit", setbit, 4, flags::WRITE | flags::DENYOOM, Group::Bitmap)
        .tells(&events::SETBIT)
        .keys(&[KeySpec::one(1, key::RW | key::ACCESS | key::UPDATE)])
        .help("2.2.0", "Sets or clears one bit of a string, which grows as needed, and returns the bit's old value.")
        .syntax("key offset value:integer", "O(1)"),
];
