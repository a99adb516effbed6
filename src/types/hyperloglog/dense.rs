//! Dense registers: 6 bits each, one after the other from the lowest bit of the first byte on.
//!
//! ```text
//! byte 0    byte 1    byte 2
//! 11000000  22221111  33333322   registers 0 to 3, highest bit of a byte first
//! ```

use super::format::{DENSE_LEN, HEADER, REGISTERS};

/// The value of a register of a whole dense HyperLogLog.
#[inline]
pub fn get(value: &[u8], register: usize) -> u8 {
    let (_, pair) = pair(value, register);
    (u16::from_le_bytes(pair) >> shift(register)) as u8 & 63
}

/// The bytes that change when a register is given a value: where they stand in the HyperLogLog, and what they become.
/// The second one lies past the end for registers that need only one there.
#[inline]
pub fn with(value: &[u8], register: usize, rank: u8) -> (usize, [u8; 2]) {
    let (at, pair) = pair(value, register);
    let shift = shift(register);
    let kept = u16::from_le_bytes(pair) & !(63 << shift);
    (at, (kept | u16::from(rank) << shift).to_le_bytes())
}

/// How many of the two bytes of [`with`] a register reaches into.
#[inline]
pub fn span(register: usize) -> usize {
    if shift(register) > 2 { 2 } else { 1 }
}

/// Gives a register a value.
pub fn set(value: &mut [u8], register: usize, rank: u8) {
    let (at, bytes) = with(value, register, rank);
    let span = span(register);
    value[at..at + span].copy_from_slice(&bytes[..span]);
}

/// Position of the register's first bit within its first byte.
const fn shift(register: usize) -> usize {
    register * 6 % 8
}

/// The byte in which a register begins, and the next, 0 after the last.
#[inline]
fn pair(value: &[u8], register: usize) -> (usize, [u8; 2]) {
    let at = HEADER + register * 6 / 8;
    (at, [value[at], value.get(at + 1).copied().unwrap_or(0)])
}

/// Visits the value of each register in order.
#[inline]
pub fn each(value: &[u8], mut visit: impl FnMut(u8)) {
    debug_assert_eq!(value.len(), DENSE_LEN);
    for &[a, b, c] in value[HEADER..].as_chunks::<3>().0 {
        visit(a & 63);
        visit(a >> 6 | (b & 15) << 2);
        visit(b >> 4 | (c & 3) << 4);
        visit(c >> 2);
    }
}

/// Packs registers behind a header; `registers` must be [`REGISTERS`] values of 6 bits.
pub fn pack(header: &[u8], registers: &[u8]) -> Vec<u8> {
    debug_assert_eq!((header.len(), registers.len()), (HEADER, REGISTERS));
    let mut value = Vec::with_capacity(DENSE_LEN);
    value.extend_from_slice(header);
    for &[a, b, c, d] in registers.as_chunks::<4>().0 {
        value.extend_from_slice(&[a | b << 6, b >> 2 | c << 4, c >> 4 | d << 2]);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::super::format::{Encoding, header};
    use super::*;
    use proptest::prelude::*;

    /// The registers of a dense HyperLogLog.
    fn unpack(value: &[u8]) -> Vec<u8> {
        let mut registers = Vec::new();
        each(value, |rank| registers.push(rank));
        registers
    }

    proptest! {
        #[test]
        fn registers_do_not_touch_each_other(
            mut registers in proptest::collection::vec(0..64u8, REGISTERS),
            changes in proptest::collection::vec((0..REGISTERS, 0..64u8), 0..50),
        ) {
            let mut value = pack(&header(Encoding::Dense), &registers);
            prop_assert_eq!(value.len(), DENSE_LEN);
            for (at, rank) in changes.into_iter().chain([(0, 1), (REGISTERS - 1, 63)]) {
                set(&mut value, at, rank);
                registers[at] = rank;
                prop_assert_eq!(get(&value, at), rank);
            }
            prop_assert_eq!(&unpack(&value), &registers);
            prop_assert_eq!(value, pack(&header(Encoding::Dense), &registers));
        }
    }
}
