//! What listpacks and ziplists are made of.

use super::RdbError;
use super::length::Room;
use crate::util::num;

/// A string, or an integer that stands for its decimal text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Element<'a> {
    Text(&'a [u8]),
    Int(i64),
}

impl Element<'_> {
    /// As a string, if there is room for it.
    pub(super) fn into_string(self, room: &mut Room) -> Result<Vec<u8>, RdbError> {
        match self {
            Element::Text(text) => room.keep(text),
            Element::Int(int) => room.keep(itoa::Buffer::new().format(int).as_bytes()),
        }
    }

    /// As an integer, if it is one or the text of one.
    pub(super) fn as_int(self) -> Option<i64> {
        match self {
            Element::Text(text) => num::parse_i64(text),
            Element::Int(int) => Some(int),
        }
    }
}
