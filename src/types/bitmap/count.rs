//! Counting and finding bits.

use std::ops::ControlFlow;

use crate::handler::{Args, Command, Ctx, Error, Group, KeySpec, Reply, Result, flags, key};
use crate::types::string::value::{Piece, byte_at, clamp, clamp_ordered, each_piece};
use crate::util::num::parse_i64;

/// Whether a range is in bits: the word after it.
fn unit_is_bit(word: Option<&[u8]>) -> Result<bool> {
    match word {
        None => Ok(false),
        Some(word) if word.eq_ignore_ascii_case(b"BIT") => Ok(true),
        Some(word) if word.eq_ignore_ascii_case(b"BYTE") => Ok(false),
        Some(_) => Err(Error::Syntax),
    }
}

/// A range of bytes as the bits from the first of the first to the last of the last.
const fn to_bits((first, last): (u64, u64)) -> (u64, u64) {
    (first * 8, last * 8 + 7)
}

fn bitcount(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let (mut range, mut is_bit) = ((0, -1), false);
    match args.len() {
        2 => {}
        4 | 5 => {
            let start = parse_i64(&args[2]).ok_or(Error::NotInteger)?;
            range = (start, parse_i64(&args[3]).ok_or(Error::NotInteger)?);
            is_bit = unit_is_bit(args.get(4))?;
        }
        _ => return Err(Error::Syntax),
    }
    let Some(found) = ctx.lookup_string(&args[1])? else {
        out.int(0);
        return Ok(());
    };
    let len = ctx.string_len(found) as u64;
    let bits = if is_bit {
        clamp_ordered(range.0, range.1, len * 8)
    } else {
        clamp_ordered(range.0, range.1, len).map(to_bits)
    };
    let Some((first, last)) = bits else {
        out.int(0);
        return Ok(());
    };
    let bytes = (first / 8) as usize..(last / 8) as usize + 1;
    let (head, tail) = (byte_at(ctx, found, bytes.start)?, byte_at(ctx, found, bytes.end - 1)?);
    // What the whole bytes hold beside the range.
    let before = head & !(0xff >> (first % 8));
    let after = tail & (0x7f >> (last % 8));
    let mut count = 0;
    each_piece(ctx, found, bytes, |_, piece| {
        if let Piece::Bytes(bytes) = piece {
            count += ones(bytes);
        }
        ControlFlow::Continue(())
    })?;
    out.int((count - u64::from(before.count_ones()) - u64::from(after.count_ones())) as i64);
    Ok(())
}

/// Bits that are set.
fn ones(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks();
    words.iter().map(|word| u64::from(u64::from_ne_bytes(*word).count_ones())).sum::<u64>()
        + rest.iter().map(|byte| u64::from(byte.count_ones())).sum::<u64>()
}

fn bitpos(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let bit = match parse_i64(&args[2]).ok_or(Error::NotInteger)? {
        0 => false,
        1 => true,
        _ => return Err(Error::err("ERR The bit argument must be 1 or 0.")),
    };
    if args.len() > 6 {
        return Err(Error::Syntax);
    }
    let start = args.get(3).map_or(Ok(0), |text| parse_i64(text).ok_or(Error::NotInteger))?;
    let is_bit = unit_is_bit(args.get(5))?;
    let end = args.get(4).map(|text| parse_i64(text).ok_or(Error::NotInteger)).transpose()?;
    let Some(found) = ctx.lookup_string(&args[1])? else {
        out.int(if bit { -1 } else { 0 });
        return Ok(());
    };
    let len = ctx.string_len(found) as u64;
    let bits = if is_bit {
        clamp(start, end.unwrap_or(-1), len * 8)
    } else {
        clamp(start, end.unwrap_or(-1), len).map(to_bits)
    };
    let Some((first, last)) = bits else {
        out.int(-1);
        return Ok(());
    };
    let mut position = None;
    each_piece(ctx, found, (first / 8) as usize..(last / 8) as usize + 1, |offset, piece| {
        let base = offset as u64 * 8;
        position = match piece {
            Piece::Bytes(bytes) => first_bit(bytes, bit, first.saturating_sub(base)).map(|at| base + at),
            Piece::Zeros(_) if bit => None,
            Piece::Zeros(_) => Some(first.max(base)),
        };
        if position.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    out.int(match position.filter(|&at| at <= last) {
        Some(at) => at as i64,
        // A string without end given goes on with zeros for ever.
        None if !bit && end.is_none() => last as i64 + 1,
        None => -1,
    });
    Ok(())
}

/// The first such bit at `from` (less than 8, or beyond the first byte as well) or after it.
fn first_bit(bytes: &[u8], bit: bool, from: u64) -> Option<u64> {
    // Seen so that the bit looked for is a one.
    let flip = if bit { 0 } else { 0xff };
    let mut at = (from / 8) as usize;
    if !from.is_multiple_of(8) {
        let byte = (bytes.get(at)? ^ flip) & (0xff >> (from % 8));
        if byte != 0 {
            return Some(at as u64 * 8 + u64::from(byte.leading_zeros()));
        }
        at += 1;
    }
    let (words, _) = bytes.get(at..)?.as_chunks();
    let skip = [flip; size_of::<u64>()];
    at += words.iter().position(|word| *word != skip).unwrap_or(words.len()) * skip.len();
    let found = bytes[at..].iter().position(|&byte| byte != flip)?;
    Some((at + found) as u64 * 8 + u64::from((bytes[at + found] ^ flip).leading_zeros()))
}

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("bitcount", bitcount, -2, flags::READONLY, Group::Bitmap)
        .keys(&[KeySpec::one(1, key::RO | key::ACCESS)])
        .help("2.6.0", "Counts the bits that are set in a string or in a part of it.")
        .syntax("key [start end [BYTE | BIT]]", "O(N) where N is the length of the part."),
    Command::new("bitpos", bitpos, -3, flags::READONLY, Group::Bitmap)
        .keys(&[KeySpec::one(1, key::RO | key::ACCESS)])
        .help("2.8.7", "Finds the first bit that is set, or clear, in a string or in a part of it.")
        .syntax("key bit [start [end [BYTE | BIT]]]", "O(N) where N is the length of the part."),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ones_are_counted_in_words_and_bytes() {
        for len in 0..20 {
            assert_eq!(ones(&vec![0x81; len]), len as u64 * 2);
        }
    }

    #[test]
    fn the_first_bit_is_found_wherever_it_is() {
        for len in 1..20 {
            for at in 0..len * 8 {
                let mut bytes = vec![0u8; len];
                bytes[at / 8] = 0x80 >> (at % 8);
                let inverted: Vec<u8> = bytes.iter().map(|byte| !byte).collect();
                for from in 0..len * 8 {
                    let expected = (from <= at).then_some(at as u64);
                    assert_eq!(first_bit(&bytes, true, from as u64), expected, "{at} of {len} bytes from {from}");
                    assert_eq!(first_bit(&inverted, false, from as u64), expected, "{at} of {len} bytes from {from}");
                }
            }
        }
        assert_eq!(first_bit(&[], true, 0), None);
        assert_eq!(first_bit(&[0xff], true, 9), None);
    }
}
