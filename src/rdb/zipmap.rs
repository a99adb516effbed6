//! Zipmaps: small hashes before Redis 2.6.
//!
//! `count:1` (254 and more: not known), then for each field its length and bytes, its value's length, the number of
//! unused bytes behind the value (one byte), the value, the unused bytes; `0xff`. A length is one byte up to 253, or
//! `0xfe` and four bytes, little-endian.

use super::RdbError;
use super::length::{Room, take};
use crate::codec::cursor::Cursor;

const CORRUPT: RdbError = RdbError::Corrupt("zipmap");

const LONG_LEN: u8 = 0xfe;
const END: u8 = 0xff;

/// Fields and values in turn.
pub(super) fn strings(bytes: &[u8], room: &mut Room) -> Result<Vec<Vec<u8>>, RdbError> {
    let mut rest = Cursor::new(bytes);
    let count = rest.u8()?;
    let mut all = Vec::new();
    loop {
        let first = rest.u8()?;
        if first == END {
            break;
        }
        let name_len = read_len(first, &mut rest)?;
        all.push(room.keep(take(name_len, &mut rest)?)?);
        let first = rest.u8()?;
        let value_len = read_len(first, &mut rest)?;
        let unused = rest.u8()?;
        all.push(room.keep(take(value_len, &mut rest)?)?);
        rest.bytes(usize::from(unused))?;
    }
    let counted = count >= LONG_LEN || usize::from(count) == all.len() / 2;
    if rest.is_empty() && counted { Ok(all) } else { Err(CORRUPT) }
}

fn read_len(first: u8, rest: &mut Cursor<'_>) -> Result<u64, RdbError> {
    match first {
        LONG_LEN => Ok(rest.u32_le()?.into()),
        END => Err(CORRUPT),
        len => Ok(len.into()),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn strings(bytes: &[u8]) -> Result<Vec<Vec<u8>>, RdbError> {
        super::strings(bytes, &mut Room(usize::MAX))
    }

    #[test]
    fn fields_and_values() {
        let bytes = b"\x02\x03foo\x03\x00bar\x05hello\x05\x02world??\xff";
        assert_eq!(strings(bytes).unwrap(), [&b"foo"[..], b"bar", b"hello", b"world"]);
        let long = [&b"\xfe\x01a\xfe\x2c\x01\x00\x00\x00"[..], &[b'v'; 300], b"\xff"].concat();
        assert_eq!(strings(&long).unwrap(), [b"a".to_vec(), vec![b'v'; 300]]);
        assert_eq!(strings(b"\x00\xff").unwrap(), Vec::<Vec<u8>>::new());
    }

    #[test]
    fn damage_is_refused() {
        let good = b"\x01\x03foo\x03\x01bar?\xff";
        strings(good).unwrap();
        for len in 0..good.len() {
            assert!(strings(&good[..len]).is_err(), "{len}");
        }
        let cases: [&[u8]; 4] = [
            b"\x02\x01a\x01\x00b\xff",
            b"\x01\x01a\x01\x00b\xff\xff",
            b"\x01\xfe\xff\xff\xff\xffa",
            b"\x01\x01a\xff\x00\xff",
        ];
        for bad in cases {
            assert!(strings(bad).is_err());
        }
    }
}
