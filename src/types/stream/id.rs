//! Stream ids as arguments and in replies.
//!
//! | form | where |
//! |---|---|
//! | `ms-seq`, `ms` | everywhere; a missing `seq` is 0, as the end of a range 2⁶⁴−1 |
//! | `-`, `+` | ends of ranges and where Redis is lax; the lowest and the highest id |
//! | `(` in front | ends of ranges: without that id itself |
//! | `ms-*`, `*` | XADD: the server completes it |
//!
//! Redis reads an id as a C string of up to 127 bytes and its numbers with `strtoull`: what follows a zero byte is not
//! seen, spaces in front, a sign and leading zeros pass, and a number of a form that only `strtoull` takes may even be
//! negative.

use crate::codec::order::StreamId;
use crate::error::{Error, Result};
use crate::resp::Reply;
use crate::util::num::parse_string_u64;
use crate::util::words::c_string;

/// The lowest id. No entry has it.
pub const MIN: StreamId = StreamId { ms: 0, seq: 0 };
/// The highest id.
pub const MAX: StreamId = StreamId { ms: u64::MAX, seq: u64::MAX };

/// What is no id.
pub const INVALID_ID: Error = Error::err("ERR Invalid stream ID specified as stream command argument");

/// The id behind this one; `None` behind the highest.
pub const fn next(id: StreamId) -> Option<StreamId> {
    match (id.ms, id.seq) {
        (u64::MAX, u64::MAX) => None,
        (ms, u64::MAX) => Some(StreamId { ms: ms + 1, seq: 0 }),
        (ms, seq) => Some(StreamId { ms, seq: seq + 1 }),
    }
}

/// The id before this one; `None` before the lowest.
pub const fn previous(id: StreamId) -> Option<StreamId> {
    match (id.ms, id.seq) {
        (0, 0) => None,
        (ms, 0) => Some(StreamId { ms: ms - 1, seq: u64::MAX }),
        (ms, seq) => Some(StreamId { ms, seq: seq - 1 }),
    }
}

/// An id of which XADD may be left to choose a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewId {
    /// `*`
    Any,
    /// `ms-*`
    At(u64),
    /// `ms-seq`
    Exactly(StreamId),
}

/// Reads `ms-seq` or `ms`, whose sequence number is then `missing_seq`.
pub fn parse(arg: &[u8], missing_seq: u64) -> Result<StreamId> {
    let (ms, seq) = split(arg).ok_or(INVALID_ID)?;
    let seq = seq.map_or(Some(missing_seq), parse_string_u64).ok_or(INVALID_ID)?;
    Ok(StreamId { ms: parse_string_u64(ms).ok_or(INVALID_ID)?, seq })
}

/// Reads an id, `-` or `+`.
pub fn parse_lax(arg: &[u8], missing_seq: u64) -> Result<StreamId> {
    match arg {
        b"-" => Ok(MIN),
        b"+" => Ok(MAX),
        arg => parse(arg, missing_seq),
    }
}

/// Reads what XADD takes behind its options, other than `*`.
pub fn parse_new(arg: &[u8]) -> Result<NewId> {
    match split(arg) {
        Some((ms, Some(b"*"))) => Ok(NewId::At(parse_string_u64(ms).ok_or(INVALID_ID)?)),
        _ => parse(arg, 0).map(NewId::Exactly),
    }
}

/// Reads the lower end of a range.
pub fn parse_start(arg: &[u8]) -> Result<StreamId> {
    match arg {
        [b'(', id @ ..] if !id.is_empty() => {
            next(parse(id, 0)?).ok_or(Error::err("ERR invalid start ID for the interval"))
        }
        id => parse_lax(id, 0),
    }
}

/// Reads the upper end of a range.
pub fn parse_end(arg: &[u8]) -> Result<StreamId> {
    match arg {
        [b'(', id @ ..] if !id.is_empty() => {
            previous(parse(id, u64::MAX)?).ok_or(Error::err("ERR invalid end ID for the interval"))
        }
        id => parse_lax(id, u64::MAX),
    }
}

/// The numbers of an id.
fn split(arg: &[u8]) -> Option<(&[u8], Option<&[u8]>)> {
    const LONGEST: usize = 127;
    if arg.len() > LONGEST {
        return None;
    }
    let text = c_string(arg);
    Some(match memchr::memchr(b'-', text) {
        Some(dash) => (&text[..dash], Some(&text[dash + 1..])),
        None => (text, None),
    })
}

/// The text of an id, in place.
pub struct IdText {
    bytes: [u8; 41],
    len: usize,
}

impl IdText {
    /// `ms-seq`
    pub fn new(id: StreamId) -> Self {
        let mut text = IdText { bytes: [0; 41], len: 0 };
        let mut digits = itoa::Buffer::new();
        text.push(digits.format(id.ms).as_bytes());
        text.push(b"-");
        text.push(digits.format(id.seq).as_bytes());
        text
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn push(&mut self, part: &[u8]) {
        self.bytes[self.len..self.len + part.len()].copy_from_slice(part);
        self.len += part.len();
    }
}

/// Replies with an id.
#[inline]
pub fn reply(id: StreamId, out: &mut Reply) {
    out.bulk(IdText::new(id).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn id(ms: u64, seq: u64) -> StreamId {
        StreamId { ms, seq }
    }

    /// Taken and refused as by XADD of Redis 8.2.3.
    #[test]
    fn ids_are_read_as_redis_reads_them() {
        for (text, expected) in [
            (&b"5-1"[..], Some(id(5, 1))),
            (b"5", Some(id(5, 0))),
            (b" 5-1", Some(id(5, 1))),
            (b"\n5-1", Some(id(5, 1))),
            (b"+5-1", Some(id(5, 1))),
            (b"01-1", Some(id(1, 1))),
            (b"5--01", Some(id(5, u64::MAX))),
            (b"5-+1", Some(id(5, 1))),
            (b"5- 1", Some(id(5, 1))),
            (b"5\x001", Some(id(5, 0))),
            (b"5-1\0x", Some(id(5, 1))),
            (b"18446744073709551615-18446744073709551615", Some(MAX)),
            (b"18446744073709551616", None),
            (b"5-18446744073709551616", None),
            (b"5-", None),
            (b"-", None),
            (b"-5", None),
            (b"5--5", None),
            (b"5 -1", None),
            (b"5-*", None),
            (b"", None),
        ] {
            assert_eq!(parse(text, 0).ok(), expected, "{}", text.escape_ascii());
        }
        assert_eq!(parse_new(b"5-*"), Ok(NewId::At(5)));
        assert_eq!(parse_new(b"5-**"), Err(INVALID_ID));
        let long = |zeros: usize| [vec![b'0'; zeros], b"5-1".to_vec()].concat();
        assert_eq!(parse(&long(124), 0), Ok(id(5, 1)));
        assert_eq!(parse(&long(125), 0), Err(INVALID_ID));
    }

    #[test]
    fn ends_of_ranges() {
        assert_eq!(parse_start(b"-"), Ok(MIN));
        assert_eq!(parse_end(b"+"), Ok(MAX));
        assert_eq!(parse_end(b"5"), Ok(id(5, u64::MAX)));
        assert_eq!(parse_start(b"(5"), Ok(id(5, 1)));
        assert_eq!(parse_end(b"(5-0"), Ok(id(4, u64::MAX)));
        assert_eq!(parse_start(b"(-"), Err(INVALID_ID));
        assert_eq!(parse_start(b"("), Err(INVALID_ID));
        assert!(parse_end(b"(0-0").is_err() && parse_start(b"(18446744073709551615-18446744073709551615").is_err());
    }

    #[test]
    fn neighbours() {
        assert_eq!((next(id(1, u64::MAX)), next(MAX)), (Some(id(2, 0)), None));
        assert_eq!((previous(id(1, 0)), previous(MIN)), (Some(id(0, u64::MAX)), None));
        assert_eq!(IdText::new(MAX).as_bytes(), b"18446744073709551615-18446744073709551615");
    }
}
