//! Lengths and strings, of which all other forms are made.
//!
//! | first byte | length |
//! |---|---|
//! | `00nnnnnn` | n |
//! | `01nnnnnn` | 14 bits, the low eight in the next byte |
//! | `10000000` | four bytes follow, big-endian |
//! | `10000001` | eight bytes follow, big-endian (RDB 8) |
//!
//! A string is a length and that many bytes, or instead of the length:
//!
//! | first byte | string |
//! |---|---|
//! | `11000000` | the decimal text of the signed byte that follows |
//! | `11000001`, `11000010` | the same of two or four bytes, little-endian |
//! | `11000011` | `compressed length` `length` and the bytes in LZF |
//!
//! Invariant: no length is believed before it is compared with what is there.

use std::borrow::Cow;
use std::ops::{Deref, DerefMut};

use super::{RdbError, lzf};
use crate::codec::cursor::Cursor;
use crate::util::num;

pub(super) const INT8: u8 = 0xc0;
pub(super) const INT16: u8 = 0xc1;
pub(super) const INT32: u8 = 0xc2;
pub(super) const LZF: u8 = 0xc3;
const LEN_32: u8 = 0x80;
const LEN_64: u8 = 0x81;

/// The longest text that Redis looks at for an integer: that of `i32::MIN`.
const INT_TEXT_MAX: usize = 11;

/// Memory of a string besides its bytes: pointer, length, capacity, and what an allocation costs.
const STRING_OVERHEAD: usize = 40;

/// Memory that what is read may still take: a few bytes can stand for very many.
#[derive(Debug)]
pub(super) struct Room(pub usize);

impl Room {
    /// Takes room for a string of this length.
    pub(super) fn take(&mut self, len: usize) -> Result<(), RdbError> {
        self.0 = self.0.checked_sub(len.saturating_add(STRING_OVERHEAD)).ok_or(RdbError::TooLarge)?;
        Ok(())
    }

    /// Keeps a string, if there is room for it.
    pub(super) fn keep(&mut self, text: &[u8]) -> Result<Vec<u8>, RdbError> {
        self.take(text.len())?;
        Ok(text.to_vec())
    }

    fn give_back(&mut self, len: usize) {
        self.0 = self.0.saturating_add(len + STRING_OVERHEAD);
    }
}

/// What is read, and the room for it.
#[derive(Debug)]
pub(super) struct Source<'a> {
    cursor: Cursor<'a>,
    pub(super) room: Room,
}

impl<'a> Source<'a> {
    pub(super) const fn new(bytes: &'a [u8], room: usize) -> Self {
        Source { cursor: Cursor::new(bytes), room: Room(room) }
    }
}

impl<'a> Deref for Source<'a> {
    type Target = Cursor<'a>;
    fn deref(&self) -> &Self::Target {
        &self.cursor
    }
}

impl DerefMut for Source<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.cursor
    }
}

/// Reads a string that holds bytes of another format, which do not stay.
pub(super) fn unpack<T>(
    source: &mut Source<'_>,
    read: impl FnOnce(&[u8], &mut Room) -> Result<T, RdbError>,
) -> Result<T, RdbError> {
    let packed = read_text(source)?;
    let unpacked = read(&packed, &mut source.room)?;
    source.room.give_back(packed.len());
    Ok(unpacked)
}

/// Reads a length, which also serves as an unsigned number.
pub(super) fn read_len(cursor: &mut Cursor<'_>) -> Result<u64, RdbError> {
    let first = cursor.u8()?;
    read_len_behind(first, cursor)
}

fn read_len_behind(first: u8, cursor: &mut Cursor<'_>) -> Result<u64, RdbError> {
    match first {
        0..0x40 => Ok(u64::from(first)),
        0x40..0x80 => Ok(u64::from(first & 0x3f) << 8 | u64::from(cursor.u8()?)),
        LEN_32 => Ok(u64::from(cursor.u32_be()?)),
        LEN_64 => Ok(cursor.u64_be()?),
        _ => Err(RdbError::Corrupt("length")),
    }
}

/// Reads a string of any form.
pub(super) fn read_string(source: &mut Source<'_>) -> Result<Vec<u8>, RdbError> {
    read_text(source).map(Cow::into_owned)
}

/// The same, borrowed where it stands as it is.
fn read_text<'a>(source: &mut Source<'a>) -> Result<Cow<'a, [u8]>, RdbError> {
    let Source { cursor, room } = source;
    let int = match cursor.u8()? {
        INT8 => cursor.int_le::<1>()?,
        INT16 => cursor.int_le::<2>()?,
        INT32 => cursor.int_le::<4>()?,
        LZF => {
            let compressed_len = read_len(cursor)?;
            let len = read_len(cursor)?;
            let (compressed, len) = (take(compressed_len, cursor)?, usize::try_from(len).unwrap_or(usize::MAX));
            lzf::check(compressed, len)?;
            room.take(len)?;
            return lzf::decompress(compressed, len).map(Cow::Owned);
        }
        first => {
            let len = read_len_behind(first, cursor)?;
            let text = take(len, cursor)?;
            room.take(text.len())?;
            return Ok(Cow::Borrowed(text));
        }
    };
    room.keep(itoa::Buffer::new().format(int).as_bytes()).map(Cow::Owned)
}

/// So many bytes, borrowed.
pub(super) fn take<'a>(len: u64, cursor: &mut Cursor<'a>) -> Result<&'a [u8], RdbError> {
    Ok(cursor.bytes(usize::try_from(len).unwrap_or(usize::MAX))?)
}

/// Appends a length in its shortest form.
pub(super) fn push_len(len: u64, out: &mut Vec<u8>) {
    if len < 1 << 6 {
        out.push(len as u8);
    } else if len < 1 << 14 {
        out.extend_from_slice(&(len as u16 | 0x4000).to_be_bytes());
    } else if let Ok(len) = u32::try_from(len) {
        out.push(LEN_32);
        out.extend_from_slice(&len.to_be_bytes());
    } else {
        out.push(LEN_64);
        out.extend_from_slice(&len.to_be_bytes());
    }
}

/// Appends a string: a number of up to 32 bits as such, anything else as it is.
pub(super) fn push_string(text: &[u8], out: &mut Vec<u8>) {
    let int = (text.len() <= INT_TEXT_MAX).then(|| num::parse_i64(text)).flatten();
    match int.and_then(|int| i32::try_from(int).ok()) {
        Some(int) => push_int(int, out),
        None => push_raw(text, out),
    }
}

/// Appends a string as it is: where one holds bytes of another format, an integer would be no gain.
pub(super) fn push_raw(bytes: &[u8], out: &mut Vec<u8>) {
    push_len(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

fn push_int(int: i32, out: &mut Vec<u8>) {
    if let Ok(int) = i8::try_from(int) {
        out.extend_from_slice(&[INT8, int as u8]);
    } else if let Ok(int) = i16::try_from(int) {
        out.push(INT16);
        out.extend_from_slice(&int.to_le_bytes());
    } else {
        out.push(INT32);
        out.extend_from_slice(&int.to_le_bytes());
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn len(bytes: &[u8]) -> Result<u64, RdbError> {
        read_len(&mut Cursor::new(bytes))
    }

    fn string(bytes: &[u8]) -> Result<Vec<u8>, RdbError> {
        read_string(&mut Source::new(bytes, usize::MAX))
    }

    #[test]
    fn length_bytes_are_pinned() {
        let cases: [(u64, &[u8]); 8] = [
            (0, &[0]),
            (63, &[63]),
            (64, &[0x40, 64]),
            (16383, &[0x7f, 0xff]),
            (16384, &[0x80, 0, 0, 0x40, 0]),
            (u64::from(u32::MAX), &[0x80, 255, 255, 255, 255]),
            (1 << 32, &[0x81, 0, 0, 0, 1, 0, 0, 0, 0]),
            (u64::MAX, &[0x81, 255, 255, 255, 255, 255, 255, 255, 255]),
        ];
        for (value, bytes) in cases {
            let mut out = Vec::new();
            push_len(value, &mut out);
            assert_eq!(out, bytes);
            assert_eq!(len(bytes), Ok(value));
        }
    }

    #[test]
    fn string_bytes_are_pinned() {
        let cases: [(&[u8], &[u8]); 9] = [
            (b"", &[0]),
            (b"abc", b"\x03abc"),
            (b"0", &[0xc0, 0]),
            (b"-128", &[0xc0, 0x80]),
            (b"128", &[0xc1, 0x80, 0]),
            (b"-32769", &[0xc2, 0xff, 0x7f, 0xff, 0xff]),
            (b"-2147483648", &[0xc2, 0, 0, 0, 0x80]),
            (b"2147483648", b"\x0a2147483648"),
            (b"007", b"\x03007"),
        ];
        for (text, bytes) in cases {
            let mut out = Vec::new();
            push_string(text, &mut out);
            assert_eq!(out, bytes);
            assert_eq!(string(bytes), Ok(text.to_vec()));
        }
        assert_eq!(string(b"\xc3\x04\x08\x00a\xa0\x00"), Ok(b"aaaaaaaa".to_vec()));
    }

    #[test]
    fn a_length_is_not_believed() {
        let truncated: [&[u8]; 6] =
            [b"", b"\x03ab", b"\x40", b"\x81\xff\xff\xff\xff\xff\xff\xff\xffa", b"\xc1\x00", b"\xc3\x81\xff"];
        for bytes in truncated {
            assert_eq!(string(bytes), Err(RdbError::Corrupt("value is cut short")));
        }
        assert!(string(b"\xc3\x02\x81\xff\xff\xff\xff\xff\xff\xff\xff\x00a").is_err());
        for first in [0x82, 0xbf, 0xc4, 0xff] {
            assert_eq!(string(&[first, 0, 0]), Err(RdbError::Corrupt("length")));
        }
        assert_eq!(len(&[INT8, 0]), Err(RdbError::Corrupt("length")));
    }

    #[test]
    fn room_is_kept() {
        let room = |bytes, room| read_string(&mut Source::new(bytes, room));
        assert!(room(b"\x03abc", STRING_OVERHEAD + 3).is_ok());
        assert_eq!(room(b"\x03abc", STRING_OVERHEAD + 2), Err(RdbError::TooLarge));
        assert_eq!(room(b"\xc0\x05", STRING_OVERHEAD), Err(RdbError::TooLarge));
        assert!(room(b"\xc3\x04\x08\x00a\xa0\x00", STRING_OVERHEAD + 8).is_ok());
        assert_eq!(room(b"\xc3\x04\x08\x00a\xa0\x00", STRING_OVERHEAD + 7), Err(RdbError::TooLarge));
        // Damage is damage, however much it claims to be.
        assert!(room(b"\xc3\x01\x81\xff\xff\xff\xff\xff\xff\xff\xff\x00", 100).is_err_and(|e| e != RdbError::TooLarge));
        let mut source = Source::new(b"\x03abc", STRING_OVERHEAD + 3);
        assert_eq!(unpack(&mut source, |bytes, _| Ok(bytes.len())), Ok(3));
        assert_eq!(source.room.0, STRING_OVERHEAD + 3);
    }

    proptest! {
        #[test]
        fn numbers_round_trip(value: i64, shift in 0u32..64) {
            let text = (value >> shift).to_string().into_bytes();
            let mut out = Vec::new();
            push_string(&text, &mut out);
            prop_assert_eq!(string(&out).unwrap(), text);
        }
    }
}
