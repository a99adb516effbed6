//! Listpacks: a sequence of strings and integers in one block, the packed form of all types since Redis 7.0.
//!
//! `size:4` (of all, little-endian) `count:2` (little-endian; 65535: not known), the elements, `0xff`. An element is
//! one of
//!
//! | first byte | element |
//! |---|---|
//! | `0nnnnnnn` | integer of 7 bits, from 0 |
//! | `10nnnnnn` | string of n bytes |
//! | `110nnnnn` | signed integer of 13 bits, the low eight in the next byte |
//! | `1110nnnn` | string of 12 bits of length, the low eight in the next byte |
//! | `11110000` | string of four bytes of length, little-endian |
//! | `11110001` … `11110100` | signed integer of two, three, four, eight bytes, little-endian |
//!
//! and behind it its own size, to be read from its end: seven bits a byte, the highest first, the top bit set on all
//! bytes but the first. Redis gives a size of exactly 16383 three bytes, not two, and the same happens at the two
//! other borders, so a reader must do as well.

use super::RdbError;
use super::element::Element;
use super::length::{Room, take};
use super::value::ODD;
use crate::codec::cursor::Cursor;
use crate::util::num;

const CORRUPT: RdbError = RdbError::Corrupt("listpack");

const HEADER_LEN: usize = 6;
const END: u8 = 0xff;
const COUNT_UNKNOWN: u16 = u16::MAX;

const STRING_32: u8 = 0xf0;
const INT_16: u8 = 0xf1;
const INT_24: u8 = 0xf2;
const INT_32: u8 = 0xf3;
const INT_64: u8 = 0xf4;

/// The longest text of a 64-bit integer.
const INT_TEXT_MAX: usize = 20;

/// A listpack read from front to back.
#[derive(Debug)]
pub(super) struct Listpack<'a> {
    rest: Cursor<'a>,
    /// What the header says, if it does.
    count: Option<u64>,
    read: u64,
}

impl<'a> Listpack<'a> {
    /// Starts at the first element of `bytes`, which must be one listpack and no more.
    pub(super) fn new(bytes: &'a [u8]) -> Result<Self, RdbError> {
        let mut rest = Cursor::new(bytes);
        let (size, count) = (rest.u32_le()?, rest.u16_le()?);
        if usize::try_from(size) != Ok(bytes.len()) {
            return Err(CORRUPT);
        }
        Ok(Listpack { rest, count: (count != COUNT_UNKNOWN).then_some(u64::from(count)), read: 0 })
    }

    /// The next element, or `None` behind the last, where the end of the block and the count must agree.
    pub(super) fn next(&mut self) -> Result<Option<Element<'a>>, RdbError> {
        let at_element = self.rest;
        let first = self.rest.u8()?;
        if first == END {
            let complete = self.rest.is_empty() && self.count.is_none_or(|count| count == self.read);
            // To be asked again gives the same answer.
            self.rest = at_element;
            return if complete { Ok(None) } else { Err(CORRUPT) };
        }
        let element = read_element(first, &mut self.rest)?;
        let len = at_element.rest().len() - self.rest.rest().len();
        let mut expected = [0; BACK_LEN_MAX];
        let expected = back_len(len, &mut expected);
        if self.rest.bytes(expected.len())? != expected {
            return Err(CORRUPT);
        }
        self.read += 1;
        Ok(Some(element))
    }

    /// The next element, which must exist.
    pub(super) fn element(&mut self) -> Result<Element<'a>, RdbError> {
        self.next()?.ok_or(CORRUPT)
    }

    /// The next element, which must be an integer.
    pub(super) fn int(&mut self) -> Result<i64, RdbError> {
        self.element()?.as_int().ok_or(CORRUPT)
    }
}

/// All elements as strings.
pub(super) fn strings(bytes: &[u8], room: &mut Room) -> Result<Vec<Vec<u8>>, RdbError> {
    let mut listpack = Listpack::new(bytes)?;
    let mut all = Vec::new();
    while let Some(element) = listpack.next()? {
        all.push(element.into_string(room)?);
    }
    Ok(all)
}

/// What `read` makes of the elements, two by two.
pub(super) fn pairs<T>(
    bytes: &[u8],
    room: &mut Room,
    read: impl Fn(Element<'_>, Element<'_>, &mut Room) -> Result<T, RdbError>,
) -> Result<Vec<T>, RdbError> {
    let mut listpack = Listpack::new(bytes)?;
    let mut all = Vec::new();
    while let Some(first) = listpack.next()? {
        let second = listpack.next()?.ok_or(ODD)?;
        all.push(read(first, second, room)?);
    }
    Ok(all)
}

fn read_element<'a>(first: u8, rest: &mut Cursor<'a>) -> Result<Element<'a>, RdbError> {
    let int = match first {
        0..0x80 => i64::from(first),
        0x80..0xc0 => return Ok(Element::Text(rest.bytes(usize::from(first & 0x3f))?)),
        0xc0..0xe0 => {
            let bits = u16::from(first & 0x1f) << 8 | u16::from(rest.u8()?);
            // Its sign is the thirteenth bit.
            i64::from((bits << 3) as i16 >> 3)
        }
        0xe0..0xf0 => {
            let len = usize::from(first & 0x0f) << 8 | usize::from(rest.u8()?);
            return Ok(Element::Text(rest.bytes(len)?));
        }
        STRING_32 => {
            let len = rest.u32_le()?;
            return Ok(Element::Text(take(len.into(), rest)?));
        }
        INT_16 => rest.int_le::<2>()?,
        INT_24 => rest.int_le::<3>()?,
        INT_32 => rest.int_le::<4>()?,
        INT_64 => rest.int_le::<8>()?,
        _ => return Err(CORRUPT),
    };
    Ok(Element::Int(int))
}

const BACK_LEN_MAX: usize = 5;

/// The bytes behind an element of `len` bytes.
fn back_len(len: usize, buf: &mut [u8; BACK_LEN_MAX]) -> &[u8] {
    let size = back_len_size(len);
    for (at, byte) in buf.iter_mut().take(size).enumerate() {
        let more = if at == 0 { 0 } else { 0x80 };
        *byte = (len >> (7 * (size - 1 - at))) as u8 & 0x7f | more;
    }
    &buf[..size]
}

/// How many they are.
const fn back_len_size(len: usize) -> usize {
    match len {
        0..=127 => 1,
        128..16_383 => 2,
        16_383..2_097_151 => 3,
        2_097_151..268_435_455 => 4,
        _ => 5,
    }
}

/// The integer as which a text is kept, if it is the text of one.
#[inline]
fn as_int(text: &[u8]) -> Option<i64> {
    (text.len() <= INT_TEXT_MAX).then(|| num::parse_i64(text)).flatten()
}

/// Bytes of a text as an element: first byte, text or number, and the size once more to walk back by.
#[inline]
pub fn entry_bytes(text: &[u8]) -> u64 {
    let len = match as_int(text) {
        Some(0..128) => 1,
        Some(-4096..4096) => 2,
        Some(-32_768..32_768) => 3,
        Some(-8_388_608..8_388_608) => 4,
        Some(-2_147_483_648..2_147_483_648) => 5,
        Some(_) => 9,
        None => match text.len() {
            len @ 0..64 => 1 + len,
            len @ 64..4096 => 2 + len,
            len => 5 + len,
        },
    };
    (len + back_len_size(len)) as u64
}

/// A listpack as it is written. All of it must stay below 4 GiB, and Redis refuses more than 1 GiB.
#[derive(Debug)]
pub(super) struct Builder {
    bytes: Vec<u8>,
    count: u64,
}

impl Builder {
    pub(super) fn new() -> Self {
        Builder { bytes: vec![0; HEADER_LEN], count: 0 }
    }

    /// Appends a string, as an integer if it is the text of one.
    pub(super) fn push(&mut self, text: &[u8]) {
        match as_int(text) {
            Some(int) => self.push_int(int),
            None => self.push_text(text),
        }
    }

    /// Appends an integer.
    pub(super) fn push_int(&mut self, int: i64) {
        let start = self.bytes.len();
        let bytes = int.to_le_bytes();
        match int {
            0..128 => self.bytes.push(int as u8),
            -4096..4096 => self.bytes.extend_from_slice(&(int as u16 & 0x1fff | 0xc000).to_be_bytes()),
            -32_768..32_768 => self.push_parts(INT_16, &bytes[..2]),
            -8_388_608..8_388_608 => self.push_parts(INT_24, &bytes[..3]),
            -2_147_483_648..2_147_483_648 => self.push_parts(INT_32, &bytes[..4]),
            _ => self.push_parts(INT_64, &bytes),
        }
        self.finish_element(start);
    }

    fn push_text(&mut self, text: &[u8]) {
        let start = self.bytes.len();
        match text.len() {
            len @ 0..64 => self.bytes.push(len as u8 | 0x80),
            len @ 64..4096 => self.bytes.extend_from_slice(&(len as u16 | 0xe000).to_be_bytes()),
            len => self.push_parts(STRING_32, &(len as u32).to_le_bytes()),
        }
        self.bytes.extend_from_slice(text);
        self.finish_element(start);
    }

    fn push_parts(&mut self, first: u8, rest: &[u8]) {
        self.bytes.push(first);
        self.bytes.extend_from_slice(rest);
    }

    fn finish_element(&mut self, start: usize) {
        let mut buf = [0; BACK_LEN_MAX];
        let len = self.bytes.len() - start;
        self.bytes.extend_from_slice(back_len(len, &mut buf));
        self.count += 1;
    }

    /// The whole block.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.bytes.push(END);
        let size = (self.bytes.len() as u32).to_le_bytes();
        let count = u16::try_from(self.count).unwrap_or(COUNT_UNKNOWN).to_le_bytes();
        self.bytes[..4].copy_from_slice(&size);
        self.bytes[4..HEADER_LEN].copy_from_slice(&count);
        self.bytes
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn strings(bytes: &[u8]) -> Result<Vec<Vec<u8>>, RdbError> {
        super::strings(bytes, &mut Room(usize::MAX))
    }
    use proptest::prelude::*;

    fn build(texts: &[Vec<u8>]) -> Vec<u8> {
        let mut builder = Builder::new();
        texts.iter().for_each(|text| builder.push(text));
        builder.finish()
    }

    #[test]
    fn bytes_are_pinned() {
        let cases: [(&[u8], &[u8]); 10] = [
            (b"0", &[0, 1]),
            (b"127", &[127, 1]),
            (b"128", &[0xc0, 128, 2]),
            (b"-1", &[0xdf, 0xff, 2]),
            (b"-4096", &[0xd0, 0, 2]),
            (b"4096", &[0xf1, 0, 0x10, 3]),
            (b"-32769", &[0xf2, 0xff, 0x7f, 0xff, 4]),
            (b"8388608", &[0xf3, 0, 0, 0x80, 0, 5]),
            (b"2147483648", &[0xf4, 0, 0, 0, 0x80, 0, 0, 0, 0, 9]),
            (b"ab", &[0x82, b'a', b'b', 3]),
        ];
        for (text, element) in cases {
            let block = build(&[text.to_vec()]);
            assert_eq!(block[HEADER_LEN..block.len() - 1], *element);
            assert_eq!(block[..HEADER_LEN], [block.len() as u8, 0, 0, 0, 1, 0]);
            assert_eq!(strings(&block), Ok(vec![text.to_vec()]));
        }
    }

    /// By the listpack format, <https://github.com/antirez/listpack/blob/master/listpack.md>.
    #[test]
    fn entries_have_the_size_of_listpack_entries() {
        for (value, bytes) in [
            ("0", 2),
            ("127", 2),
            ("128", 3),
            ("-1", 3),
            ("4095", 3),
            ("-4096", 3),
            ("4096", 4),
            ("-32768", 4),
            ("32768", 5),
            ("8388607", 5),
            ("8388608", 6),
            ("-2147483648", 6),
            ("2147483648", 10),
            ("-9223372036854775808", 10),
            ("9223372036854775808", 21),
            ("", 2),
            ("01", 4),
            ("a", 3),
        ] {
            assert_eq!(entry_bytes(value.as_bytes()), bytes, "{value}");
        }
        for (len, bytes) in [(63, 65), (64, 67), (125, 128), (126, 130), (4095, 4099), (4096, 4103), (20_000, 20_008)] {
            assert_eq!(entry_bytes(&vec![b'x'; len]), bytes, "{len} bytes");
        }
    }

    #[test]
    fn back_len_borders() {
        let cases: [(usize, &[u8]); 7] = [
            (127, &[127]),
            (128, &[1, 0x80]),
            (16_382, &[127, 0xfe]),
            (16_383, &[0, 0xff, 0xff]),
            (16_384, &[1, 0x80, 0x80]),
            (2_097_151, &[0, 0xff, 0xff, 0xff]),
            (268_435_455, &[0, 0xff, 0xff, 0xff, 0xff]),
        ];
        for (len, bytes) in cases {
            assert_eq!(back_len(len, &mut [0; BACK_LEN_MAX]), bytes, "{len}");
        }
    }

    #[test]
    fn long_strings() {
        for len in [63, 64, 4095, 4096, 16_377, 16_378, 16_379, 70_000] {
            let text = vec![b'x'; len];
            let block = build(std::slice::from_ref(&text));
            assert_eq!(block.len(), HEADER_LEN + entry_bytes(&text) as usize + 1, "{len}");
            assert_eq!(strings(&block), Ok(vec![text]), "{len}");
        }
    }

    #[test]
    fn unknown_count() {
        let many = vec![b"7".to_vec(); 65_535];
        let block = build(&many);
        assert_eq!(block[4..6], [0xff, 0xff]);
        assert_eq!(strings(&block).unwrap().len(), 65_535);
    }

    #[test]
    fn damage_is_refused() {
        let good = build(&[b"abc".to_vec(), b"1000".to_vec()]);
        strings(&good).unwrap();
        for len in 0..good.len() {
            assert!(strings(&good[..len]).is_err(), "{len}");
        }
        for at in [0, 1, 4, 5, HEADER_LEN, HEADER_LEN + 4, HEADER_LEN + 5, HEADER_LEN + 7, HEADER_LEN + 8] {
            let mut bad = good.clone();
            bad[at] ^= 0x40;
            assert!(strings(&bad).is_err(), "{at}");
        }
    }

    proptest! {
        #[test]
        fn round_trip(texts in prop::collection::vec(texts(), 0..20)) {
            let block = build(&texts);
            prop_assert_eq!(block.len(), HEADER_LEN + texts.iter().map(|text| entry_bytes(text) as usize).sum::<usize>() + 1);
            prop_assert_eq!(strings(&block).unwrap(), texts);
        }

        #[test]
        fn any_bytes(bytes: Vec<u8>) {
            let _ = strings(&bytes);
        }
    }

    fn texts() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            any::<Vec<u8>>(),
            (any::<i64>(), 0u32..64).prop_map(|(int, shift)| (int >> shift).to_string().into_bytes()),
        ]
    }
}
