//! What listpacks and ziplists are made of.

use crate::util::num;

/// A string, or an integer that stands for its decimal text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Element<'a> {
    Text(&'a [u8]),
    Int(i64),
}

impl Element<'_> {
    /// As a string.
    pub(super) fn into_string(self) -> Vec<u8> {
        match self {
            Element::Text(text) => text.to_vec(),
            Element::Int(int) => itoa::Buffer::new().format(int).as_bytes().to_vec(),
        }
    }

    /// As an integer, if it is one or the text of one.
    pub(super) fn as_int(self) -> Option<i64> {
        match self {
            Element::Text(text) => num::parse_i64(text),
            Element::Int(int) => Some(int),
        }
    }

    /// The value of three bytes, little-endian and signed.
    pub(super) fn int_24([low, middle, high]: [u8; 3]) -> i64 {
        i64::from(i32::from_le_bytes([0, low, middle, high]) >> 8)
    }
}
