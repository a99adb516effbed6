//! Ziplists: what listpacks were before Redis 7.0.
//!
//! `size:4` (of all) `tail:4` (offset of the last element) `count:2` (65535: not known), all little-endian, the
//! elements, `0xff`. An element is the size of the element before it (one byte, or `0xfe` and four bytes,
//! little-endian) and one of
//!
//! | first byte | element |
//! |---|---|
//! | `00nnnnnn` | string of n bytes |
//! | `01nnnnnn` | string of 14 bits of length, the low eight in the next byte |
//! | `10000000` | string of four bytes of length, big-endian |
//! | `0xc0` `0xd0` `0xe0` `0xf0` `0xfe` | signed integer of two, four, eight, three, one bytes, little-endian |
//! | `0xf1` … `0xfd` | integer 0 … 12 |

use super::RdbError;
use super::element::Element;
use super::length::{Room, take};
use crate::codec::cursor::Cursor;

const CORRUPT: RdbError = RdbError::Corrupt("ziplist");

const HEADER_LEN: usize = 10;
const END: u8 = 0xff;
const LONG_SIZE: u8 = 0xfe;
const COUNT_UNKNOWN: u16 = u16::MAX;

/// All elements as strings.
pub(super) fn strings(bytes: &[u8], room: &mut Room) -> Result<Vec<Vec<u8>>, RdbError> {
    let mut rest = Cursor::new(bytes);
    let (size, tail, count) = (rest.u32_le()?, rest.u32_le()?, rest.u16_le()?);
    if usize::try_from(size) != Ok(bytes.len()) {
        return Err(CORRUPT);
    }
    let mut all = Vec::new();
    let (mut before_len, mut last) = (0, HEADER_LEN);
    loop {
        let start = rest;
        let offset = bytes.len() - start.rest().len();
        let first = rest.u8()?;
        if first == END {
            break;
        }
        last = offset;
        let said = if first == LONG_SIZE { rest.u32_le()? } else { u32::from(first) };
        if usize::try_from(said) != Ok(before_len) {
            return Err(CORRUPT);
        }
        all.push(read_element(&mut rest)?.into_string(room)?);
        before_len = start.rest().len() - rest.rest().len();
    }
    let counted = count == COUNT_UNKNOWN || usize::from(count) == all.len();
    if rest.is_empty() && counted && usize::try_from(tail) == Ok(last) { Ok(all) } else { Err(CORRUPT) }
}

fn read_element<'a>(rest: &mut Cursor<'a>) -> Result<Element<'a>, RdbError> {
    let first = rest.u8()?;
    let int = match first {
        0..0x40 => return Ok(Element::Text(rest.bytes(usize::from(first))?)),
        0x40..0x80 => {
            let len = usize::from(first & 0x3f) << 8 | usize::from(rest.u8()?);
            return Ok(Element::Text(rest.bytes(len)?));
        }
        0x80 => {
            let len = rest.u32_be()?;
            return Ok(Element::Text(take(len.into(), rest)?));
        }
        0xc0 => rest.int_le::<2>()?,
        0xd0 => rest.int_le::<4>()?,
        0xe0 => rest.int_le::<8>()?,
        0xf0 => rest.int_le::<3>()?,
        0xfe => rest.int_le::<1>()?,
        0xf1..=0xfd => i64::from(first - 0xf1),
        _ => return Err(CORRUPT),
    };
    Ok(Element::Int(int))
}

/// A ziplist of elements given in their own bytes, for tests: no server at hand writes one.
#[cfg(test)]
pub(super) fn of_elements(elements: &[&[u8]]) -> Vec<u8> {
    let mut body = Vec::new();
    let (mut before_len, mut tail) = (0, HEADER_LEN);
    for element in elements {
        let start = body.len();
        tail = HEADER_LEN + start;
        if before_len < usize::from(LONG_SIZE) {
            body.push(before_len as u8);
        } else {
            body.push(LONG_SIZE);
            body.extend_from_slice(&(before_len as u32).to_le_bytes());
        }
        body.extend_from_slice(element);
        before_len = body.len() - start;
    }
    let size = (HEADER_LEN + body.len() + 1) as u32;
    let count = (elements.len() as u16).to_le_bytes();
    [&size.to_le_bytes()[..], &(tail as u32).to_le_bytes(), &count, &body, &[END]].concat()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn strings(bytes: &[u8]) -> Result<Vec<Vec<u8>>, RdbError> {
        super::strings(bytes, &mut Room(usize::MAX))
    }

    #[test]
    fn every_encoding() {
        let long = [&[0x41, 0x2c][..], &[b'x'; 300]].concat();
        let huge = [&[0x80, 0, 0, 0x50, 0][..], &[b'y'; 0x5000]].concat();
        let elements: [&[u8]; 13] = [
            b"\x03abc",
            b"\x00",
            &long,
            &huge,
            &[0xf1],
            &[0xfd],
            &[0xfe, 0x80],
            &[0xc0, 0x00, 0x80],
            &[0xf0, 0x00, 0x00, 0x80],
            &[0xf0, 0xff, 0xff, 0x7f],
            &[0xd0, 0, 0, 0, 0x80],
            &[0xe0, 0, 0, 0, 0, 0, 0, 0, 0x80],
            b"\x01z",
        ];
        let texts = [
            "abc".to_owned(),
            String::new(),
            "x".repeat(300),
            "y".repeat(0x5000),
            "0".to_owned(),
            "12".to_owned(),
            "-128".to_owned(),
            "-32768".to_owned(),
            "-8388608".to_owned(),
            "8388607".to_owned(),
            i32::MIN.to_string(),
            i64::MIN.to_string(),
            "z".to_owned(),
        ];
        assert_eq!(strings(&of_elements(&elements)).unwrap(), texts.map(String::into_bytes));
        assert_eq!(strings(&of_elements(&[])).unwrap(), Vec::<Vec<u8>>::new());
    }

    /// The example of `RPUSH l 2 5`, written out.
    #[test]
    fn bytes_are_pinned() {
        let bytes = b"\x0f\0\0\0\x0c\0\0\0\x02\0\x00\xf3\x02\xf6\xff";
        assert_eq!(strings(bytes).unwrap(), [b"2", b"5"]);
    }

    #[test]
    fn damage_is_refused() {
        let good = of_elements(&[b"\x03abc", b"\xf2", b"\x01x"]);
        strings(&good).unwrap();
        for len in 0..good.len() {
            assert!(strings(&good[..len]).is_err(), "{len}");
        }
        for at in [0, 3, 4, 8, 9, 10, 11, 15, 17] {
            let mut bad = good.clone();
            bad[at] ^= 0x20;
            assert!(strings(&bad).is_err(), "{at}");
        }
        for first in [0x81, 0xbf, 0xc1, 0xff] {
            assert!(strings(&of_elements(&[&[first]])).is_err());
        }
    }
}
