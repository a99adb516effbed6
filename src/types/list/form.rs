//! What OBJECT ENCODING says of a list: whether Redis would still keep it as one listpack.
//!
//! | form | name | becomes the other when |
//! |---|---|---|
//! | [`LISTPACK`] | `listpack` | what is about to be written would pass `list-max-listpack-size` |
//! | [`QUICKLIST`] | `quicklist` | something was taken, and what is left needs no more than half of that |
//!
//! The metadata keeps the bytes of all elements as listpack entries ([`entry_bytes`]), so that nothing has to be read to
//! tell. Redis goes by the nodes of its quicklist where this goes by the whole list.

use crate::shard::object::Object;
use crate::util::num::parse_i64;

/// One listpack.
pub const LISTPACK: u8 = 0;
/// A linked list of listpacks.
pub const QUICKLIST: u8 = 1;

/// Header and end mark of a listpack, bytes.
const FRAME: u64 = 7;
/// Bytes of a node whose size is given in elements.
const SAFE_BYTES: u64 = 8192;
/// No integer in a listpack has a longer text.
const LONGEST_INTEGER: usize = 20;

/// The name OBJECT ENCODING has for a list.
pub fn encoding(list: &Object) -> &'static str {
    match &list.body {
        Some(body) if body.form == LISTPACK => "listpack",
        _ => "quicklist",
    }
}

/// Bytes of an element as an entry of a listpack: type, text or number, and the length once more to walk back by.
#[inline]
pub fn entry_bytes(value: &[u8]) -> u64 {
    let number = if value.len() <= LONGEST_INTEGER { parse_i64(value) } else { None };
    let len = match number {
        Some(0..=127) => 1,
        Some(-4096..=4095) => 2,
        Some(-0x8000..=0x7fff) => 3,
        Some(-0x80_0000..=0x7f_ffff) => 4,
        Some(-0x8000_0000..=0x7fff_ffff) => 5,
        Some(_) => 9,
        None => match value.len() as u64 {
            len @ 0..64 => 1 + len,
            len @ 64..4096 => 2 + len,
            len => 5 + len,
        },
    };
    let back = match len {
        0..=127 => 1,
        128..16_383 => 2,
        16_383..2_097_151 => 3,
        2_097_151..268_435_455 => 4,
        _ => 5,
    };
    len + back
}

/// What `list-max-listpack-size` allows: bytes, elements.
const fn limits(setting: i32) -> (u64, u64) {
    match setting {
        0 => (SAFE_BYTES, 1),
        1.. => (SAFE_BYTES, setting as u64),
        -1 => (4096, u64::MAX),
        -2 => (8192, u64::MAX),
        -3 => (16_384, u64::MAX),
        -4 => (32_768, u64::MAX),
        _ => (65_536, u64::MAX),
    }
}

/// The form of a list of so many bytes and elements that is about to be written to: `raw` more bytes in `more` elements.
#[inline]
pub fn grown(form: u8, (bytes, len): (u64, u64), (raw, more): (u64, u64), setting: i32) -> u8 {
    let (most_bytes, most_len) = limits(setting);
    // Redis goes by the plain length of what is new.
    if form == QUICKLIST || FRAME + bytes + raw > most_bytes || len + more > most_len { QUICKLIST } else { LISTPACK }
}

/// The form of a list of so many bytes and elements after something was taken.
#[inline]
pub fn shrunk(form: u8, (bytes, len): (u64, u64), setting: i32) -> u8 {
    let (most_bytes, most_len) = limits(setting);
    // Where elements are counted Redis does not halve the bytes.
    let most_bytes = if most_len == u64::MAX { most_bytes / 2 } else { most_bytes };
    if form == LISTPACK || (FRAME + bytes <= most_bytes && len <= most_len / 2) { LISTPACK } else { QUICKLIST }
}

/// The form of a list of so many bytes and elements that was written at once.
pub fn initial((bytes, len): (u64, u64), setting: i32) -> u8 {
    grown(LISTPACK, (bytes, len), (0, 0), setting)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn limits_have_two_forms() {
        assert_eq!(grown(LISTPACK, (8000, 3), (185, 1), -2), LISTPACK);
        assert_eq!(grown(LISTPACK, (8000, 3), (186, 1), -2), QUICKLIST);
        assert_eq!(shrunk(QUICKLIST, (4089, 3), -2), LISTPACK);
        assert_eq!(shrunk(QUICKLIST, (4090, 3), -2), QUICKLIST);
        assert_eq!(shrunk(LISTPACK, (8000, 3), -2), LISTPACK);
        assert_eq!(grown(LISTPACK, (10, 3), (1, 1), 4), LISTPACK);
        assert_eq!(grown(LISTPACK, (10, 3), (2, 2), 4), QUICKLIST);
        assert_eq!(grown(LISTPACK, (10, 3), (8192, 1), 4), QUICKLIST);
        assert_eq!(shrunk(QUICKLIST, (8000, 2), 4), LISTPACK);
        assert_eq!(shrunk(QUICKLIST, (10, 3), 4), QUICKLIST);
        assert_eq!(initial((10, 1), 0), LISTPACK);
        assert_eq!(initial((10, 2), 0), QUICKLIST);
        assert_eq!(initial((65_529, 2), -99), LISTPACK);
    }
}
