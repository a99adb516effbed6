//! Intsets: sets of integers only.
//!
//! `width:4` (2, 4 or 8) `count:4`, both little-endian, then the members in ascending order, each signed,
//! little-endian, of that width.

use super::RdbError;
use super::length::Room;
use crate::codec::cursor::Cursor;

const CORRUPT: RdbError = RdbError::Corrupt("intset");

const HEADER_LEN: u64 = 8;

/// All members as strings.
pub(super) fn strings(bytes: &[u8], room: &mut Room) -> Result<Vec<Vec<u8>>, RdbError> {
    let mut rest = Cursor::new(bytes);
    let (width, count) = (rest.u32_le()?, rest.u32_le()?);
    // Cannot overflow: both are of 32 bits, and the width is small.
    if !matches!(width, 2 | 4 | 8) || HEADER_LEN + u64::from(width) * u64::from(count) != bytes.len() as u64 {
        return Err(CORRUPT);
    }
    if count == 0 {
        return Err(CORRUPT);
    }
    let mut all = Vec::new();
    let mut last = None;
    let mut buf = itoa::Buffer::new();
    while !rest.is_empty() {
        let int = match width {
            2 => rest.int_le::<2>()?,
            4 => rest.int_le::<4>()?,
            _ => rest.int_le::<8>()?,
        };
        if last.is_some_and(|last| last >= int) {
            return Err(CORRUPT);
        }
        last = Some(int);
        all.push(room.keep(buf.format(int).as_bytes())?);
    }
    Ok(all)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn strings(bytes: &[u8]) -> Result<Vec<Vec<u8>>, RdbError> {
        super::strings(bytes, &mut Room(usize::MAX))
    }

    #[test]
    fn every_width() {
        let two = b"\x02\0\0\0\x02\0\0\0\xff\xff\x05\0";
        assert_eq!(strings(two).unwrap(), [&b"-1"[..], b"5"]);
        let four = b"\x04\0\0\0\x01\0\0\0\0\0\0\x80";
        assert_eq!(strings(four).unwrap(), [b"-2147483648"]);
        let eight = b"\x08\0\0\0\x01\0\0\0\0\0\0\0\x01\0\0\0";
        assert_eq!(strings(eight).unwrap(), [b"4294967296"]);
    }

    #[test]
    fn damage_is_refused() {
        let cases: [&[u8]; 6] = [
            b"\x02\0\0\0\x02\0\0\0\x05\0\x05\0",
            b"\x02\0\0\0\x02\0\0\0\x05\0\x04\0",
            b"\x02\0\0\0\x03\0\0\0\x05\0\x06\0",
            b"\x03\0\0\0\x01\0\0\0\x05\0\0",
            b"\x08\0\0\0\xff\xff\xff\xff\x05\0\0\0\0\0\0\0",
            b"\x02\0\0\0\0\0",
        ];
        for bad in cases {
            assert!(strings(bad).is_err());
        }
    }
}
