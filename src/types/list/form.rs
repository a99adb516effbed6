//! What OBJECT ENCODING says of a list: whether Redis would still keep it as one listpack.
//!
//! | form | name | becomes the other when |
//! |---|---|---|
//! | [`LISTPACK`] | `listpack` | what is about to be written would pass `list-max-listpack-size` |
//! | [`QUICKLIST`] | `quicklist` | something was taken, and what is left needs no more than half of that |
//!
//! The metadata keeps the bytes of all elements as listpack entries ([`entry_bytes`]), so that nothing has to be read to
//! tell. Redis goes by the nodes of its quicklist where this goes by the whole list.

pub use crate::rdb::entry_bytes;

use crate::shard::memory::object::Object;

/// One listpack.
pub const LISTPACK: u8 = 0;
/// A linked list of listpacks.
pub const QUICKLIST: u8 = 1;

/// Header and end mark of a listpack, bytes.
const FRAME: u64 = 7;
/// Bytes of a node whose size is given in elements.
const SAFE_BYTES: u64 = 8192;

/// The name OBJECT ENCODING has for a list.
pub fn encoding(list: &Object) -> &'static str {
    match &list.body {
        Some(body) if body.form == LISTPACK => "listpack",
        _ => "quicklist",
    }
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
