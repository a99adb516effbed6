//! An incremental parser of requests, in the two forms Redis takes.
//!
//! | first byte | form | example |
//! |---|---|---|
//! | `*` | multibulk: a count, then so many length-prefixed arguments | `*2␍␊$3␍␊GET␍␊$1␍␊k␍␊` |
//! | any other | inline: a line of words, quoted where needed | `SET k "a\x00b"␊` |
//!
//! What a [`Parser`] keeps of a half-read request, every position counted from the request's first byte:
//!
//! | field | meaning |
//! |---|---|
//! | `left` | arguments still to come; 0 between requests and within a first line |
//! | `pos` | where the next argument's `$` is or will be |
//! | `scanned` | no line end before here, so the search for one goes on from here |
//! | `need` | bytes the request must have before another look is worth it |
//! | `spans` | arguments already complete |
//!
//! Invariants:
//! - The commands found do not depend on how the bytes arrive, and an argument's bytes are never looked at. Lines are
//!   searched for their end once; only a header's first ten bytes are looked at anew when more arrive.
//! - Nothing is allocated on the word of a length prefix: memory held is at most 4/3 of the bytes received.
//! - An error ends the connection: the parser must not be used after it.
//!
//! Quirks of Redis, kept: of a header's line end only the `␍` is looked at, the byte behind it is skipped unseen,
//! as are the two bytes after an argument; counts of zero and below are empty requests; a line end must be seen
//! before a header is judged. Not kept: Redis searches line ends as C strings, so that a zero byte in a header or an
//! inline line makes it wait for ever; here it is a byte like others. Redis judges a line longer than 64 KiB by what
//! has arrived of it; here it is refused in any case.

use std::ops::Range;

use memchr::memchr;

use crate::error::Error;
use crate::util::num::parse_i64;
use crate::util::words::split_in_place;

/// Start and end of an argument in the query buffer. Buffers are below 4 GiB.
pub type Span = (u32, u32);

/// Bytes that an inline request or a header may have before its line end.
const LINE_MAX: usize = 64 * 1024;
/// Arguments of a request before the client has authenticated.
const UNAUTHENTICATED_ARGS_MAX: usize = 10;
/// Bytes of an argument before the client has authenticated.
const UNAUTHENTICATED_BULK_MAX: usize = 16 * 1024;
/// Room for the spans of a half-read request that is kept for the next one.
const SPANS_KEPT: usize = 1024;

/// What a request may contain.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of one argument (`proto-max-bulk-len`).
    pub max_bulk: usize,
    /// Arguments of one request.
    pub max_args: usize,
    /// Bytes of one request in all.
    pub max_request: usize,
    /// Whether the client must still authenticate and is trusted with little.
    pub unauthenticated: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { max_bulk: 512 << 20, max_args: 1 << 20, max_request: usize::MAX, unauthenticated: false }
    }
}

/// Why a request cannot be read. The client is told [`ProtocolError::text`], then the connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProtocolError {
    /// The count after `*` is no number or too high.
    MultibulkLength,
    /// The count is too high for a client that has not authenticated.
    UnauthenticatedMultibulkLength,
    /// An argument does not begin with `$`, but with this byte.
    ExpectedBulk(u8),
    /// The length after `$` is no number, negative or too high.
    BulkLength,
    /// The length is too high for a client that has not authenticated.
    UnauthenticatedBulkLength,
    /// The request is larger than what any command may hold.
    TooMuch,
    /// The line with the count has no end.
    CountTooLong,
    /// The line with a length has no end.
    LengthTooLong,
    /// An inline request has no end.
    InlineTooLong,
    /// An inline request's quotes do not close, or something follows a closing one directly.
    UnbalancedQuotes,
}

impl ProtocolError {
    /// The text of the error reply, code word included. Bytes, since it may quote one the client has sent.
    pub fn text(self) -> Vec<u8> {
        let what: &[u8] = match self {
            ProtocolError::TooMuch => return Error::TooMuch.text().into_owned().into_bytes(),
            ProtocolError::MultibulkLength => b"invalid multibulk length",
            ProtocolError::UnauthenticatedMultibulkLength => b"unauthenticated multibulk length",
            ProtocolError::ExpectedBulk(got) => &[b"expected '$', got '", &[got][..], b"'"].concat(),
            ProtocolError::BulkLength => b"invalid bulk length",
            ProtocolError::UnauthenticatedBulkLength => b"unauthenticated bulk length",
            ProtocolError::CountTooLong => b"too big mbulk count string",
            ProtocolError::LengthTooLong => b"too big bulk count string",
            ProtocolError::InlineTooLong => b"too big inline request",
            ProtocolError::UnbalancedQuotes => b"unbalanced quotes in request",
        };
        [b"ERR Protocol error: ", what].concat()
    }
}

impl std::fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.text()))
    }
}

impl std::error::Error for ProtocolError {}

/// The state of one connection's input. See the module's documentation.
#[derive(Debug, Default)]
pub struct Parser {
    left: usize,
    pos: usize,
    scanned: usize,
    need: usize,
    /// Bytes known to be missing when `parse` last answered `None`.
    missing: usize,
    spans: Vec<Span>,
}

/// A line `<type><number>␍␊` as it stands in the buffer.
enum Header {
    /// Type, number (none if it is not one), position after the line.
    Whole(u8, Option<i64>, usize),
    /// More bytes are needed.
    Partial,
}

impl Parser {
    /// Parses the request that starts at `buf[at]`.
    ///
    /// `Ok(Some(end))`: the request ends before `buf[end]`; the spans of its arguments, relative to the start of
    /// `buf`, have been appended to `spans`: none for an empty request (`*0`, `*-1`, a blank line).
    ///
    /// `Ok(None)`: more bytes are needed, `spans` is as it was. Call again with the same bytes and more behind them;
    /// those before `at` may have been dropped, with `at` moved accordingly.
    ///
    /// `buf` is changed only by a complete inline request, whose words are unquoted where they stand: unquoted text
    /// is never longer, so every argument is a slice of the buffer and needs no memory of its own.
    pub fn parse(
        &mut self,
        buf: &mut [u8],
        at: usize,
        limits: &Limits,
        spans: &mut Vec<Span>,
    ) -> Result<Option<usize>, ProtocolError> {
        if self.left != 0 {
            return self.resume(buf, at, limits, spans);
        }
        let Some(&kind) = buf.get(at) else { return Ok(None) };
        if kind != b'*' {
            return self.inline_request(buf, at, spans);
        }
        let (count, pos) = match short_header(buf, at) {
            Some((count, pos)) => (Some(count as i64), pos),
            None => match self.header(buf, at, at, ProtocolError::CountTooLong)? {
                Header::Whole(_, count, pos) => (count, pos),
                Header::Partial => return Ok(None),
            },
        };
        self.scanned = 0;
        let Some(count) = count else { return Err(ProtocolError::MultibulkLength) };
        if count <= 0 {
            return Ok(Some(pos));
        }
        // A count beyond usize is beyond every limit.
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        if count > limits.max_args {
            return Err(ProtocolError::MultibulkLength);
        }
        if limits.unauthenticated && count > UNAUTHENTICATED_ARGS_MAX {
            return Err(ProtocolError::UnauthenticatedMultibulkLength);
        }
        self.left = count;
        let first = spans.len();
        let result = self.arguments(buf, at, pos, limits, spans, 0);
        match result {
            Ok(Some(_)) => {}
            Ok(None) => {
                let origin = at as u32;
                self.spans.extend(spans.drain(first..).map(|(start, end)| (start - origin, end - origin)));
            }
            Err(_) => spans.truncate(first),
        }
        result
    }

    /// Bytes still missing of the argument being received, its line end included, as of the last `Ok(None)`: what a
    /// reader may want to make room for, within its own bounds. Zero between requests and within headers.
    pub fn missing(&self) -> usize {
        self.missing
    }

    /// Bytes of memory held of a half-read request.
    pub fn memory_bytes(&self) -> usize {
        self.spans.capacity() * size_of::<Span>()
    }

    /// Whether a request has begun and not ended; false also within its first line.
    pub fn in_request(&self) -> bool {
        self.left != 0
    }

    /// Goes on with a multibulk request of which the count is known.
    #[cold]
    fn resume(
        &mut self,
        buf: &[u8],
        at: usize,
        limits: &Limits,
        spans: &mut Vec<Span>,
    ) -> Result<Option<usize>, ProtocolError> {
        let have = buf.len() - at;
        if have < self.need {
            self.missing = self.need - have;
            return Ok(None);
        }
        let mut done = std::mem::take(&mut self.spans);
        let result = self.arguments(buf, at, at + self.pos, limits, &mut done, at);
        if let Ok(Some(_)) = result {
            let origin = at as u32;
            spans.extend(done.drain(..).map(|(start, end)| (start + origin, end + origin)));
        }
        // A request of a million arguments must not pin its spans' memory to the connection.
        if !done.is_empty() || done.capacity() <= SPANS_KEPT {
            self.spans = done;
        }
        result
    }

    /// Reads `self.left` arguments from `buf[pos]` on; pushes their spans, less `origin`, to `spans`. When bytes are
    /// missing, notes where to go on.
    #[inline(always)]
    fn arguments(
        &mut self,
        buf: &[u8],
        at: usize,
        mut pos: usize,
        limits: &Limits,
        spans: &mut Vec<Span>,
        origin: usize,
    ) -> Result<Option<usize>, ProtocolError> {
        let mut left = self.left;
        while left > 0 {
            let (length, start) = match short_header(buf, pos) {
                Some(header) if buf[pos] == b'$' => header,
                _ => match self.long_header(buf, at, pos)? {
                    Some(header) => header,
                    None => {
                        (self.left, self.pos) = (left, pos - at);
                        return Ok(None);
                    }
                },
            };
            let end = start + length;
            // The second bound holds whatever the caller allows, since spans could not name the argument.
            if length > limits.max_bulk || end > u32::MAX as usize - 2 {
                return Err(ProtocolError::BulkLength);
            }
            if end - at > limits.max_request {
                return Err(ProtocolError::TooMuch);
            }
            if limits.unauthenticated && length > UNAUTHENTICATED_BULK_MAX {
                return Err(ProtocolError::UnauthenticatedBulkLength);
            }
            if buf.len() < end + 2 {
                (self.left, self.pos) = (left, pos - at);
                (self.need, self.missing) = (end + 2 - at, end + 2 - buf.len());
                return Ok(None);
            }
            spans.push(((start - origin) as u32, (end - origin) as u32));
            pos = end + 2;
            left -= 1;
        }
        (self.left, self.scanned, self.need, self.missing) = (0, 0, 0, 0);
        Ok(Some(pos))
    }

    /// The header of an argument in its general form: its length and the position after it; `None` if incomplete.
    #[cold]
    fn long_header(&mut self, buf: &[u8], at: usize, pos: usize) -> Result<Option<(usize, usize)>, ProtocolError> {
        match self.header(buf, at, pos, ProtocolError::LengthTooLong)? {
            Header::Whole(b'$', length, start) => {
                let length = length.and_then(|length| usize::try_from(length).ok());
                Ok(Some((length.ok_or(ProtocolError::BulkLength)?, start)))
            }
            Header::Whole(other, ..) => Err(ProtocolError::ExpectedBulk(other)),
            Header::Partial => {
                (self.need, self.missing) = (0, 0);
                Ok(None)
            }
        }
    }

    /// A header in its general form, searched for its line end from where the last search stopped.
    #[cold]
    fn header(&mut self, buf: &[u8], at: usize, pos: usize, too_long: ProtocolError) -> Result<Header, ProtocolError> {
        let from = pos.max(at + self.scanned);
        let found = memchr(b'\r', &buf[from..]).map(|distance| from + distance);
        let line_end = found.unwrap_or(buf.len());
        if line_end - pos > LINE_MAX {
            return Err(too_long);
        }
        if line_end + 2 > buf.len() {
            self.scanned = line_end - at;
            return Ok(Header::Partial);
        }
        // An empty line has its line end where the type should be.
        let number = buf.get(pos + 1..line_end).and_then(parse_i64);
        Ok(Header::Whole(buf[pos], number, line_end + 2))
    }

    /// A request that is a line of words.
    #[cold]
    fn inline_request(
        &mut self,
        buf: &mut [u8],
        at: usize,
        spans: &mut Vec<Span>,
    ) -> Result<Option<usize>, ProtocolError> {
        let from = at + self.scanned;
        let found = memchr(b'\n', &buf[from..]).map(|distance| from + distance);
        let line_end = found.unwrap_or(buf.len());
        if line_end - at > LINE_MAX {
            return Err(ProtocolError::InlineTooLong);
        }
        if found.is_none() {
            self.scanned = line_end - at;
            return Ok(None);
        }
        self.scanned = 0;
        let text_end = if buf[at..line_end].ends_with(b"\r") { line_end - 1 } else { line_end };
        let first = spans.len();
        let found = |word: Range<usize>| spans.push(((at + word.start) as u32, (at + word.end) as u32));
        if !split_in_place(&mut buf[at..text_end], found) {
            spans.truncate(first);
            return Err(ProtocolError::UnbalancedQuotes);
        }
        Ok(Some(line_end + 1))
    }
}

/// The number of a header of one to nine digits, and the position after its line; `None` if it has another form or is
/// incomplete. The type byte is not looked at.
#[inline(always)]
fn short_header(buf: &[u8], pos: usize) -> Option<(usize, usize)> {
    let digit = |byte: u8| byte.wrapping_sub(b'0');
    // Most have one digit, or two.
    match buf.get(pos..)? {
        [_, one, b'\r', _, ..] if digit(*one) < 10 => Some((digit(*one).into(), pos + 4)),
        [_, ten @ b'1'..=b'9', one, b'\r', _, ..] if digit(*one) < 10 => {
            Some((usize::from(digit(*ten)) * 10 + usize::from(digit(*one)), pos + 5))
        }
        _ => longer_header(buf, pos),
    }
}

/// The same in a loop.
fn longer_header(buf: &[u8], pos: usize) -> Option<(usize, usize)> {
    let line = buf.get(pos + 1..)?;
    let mut number = 0;
    for (at, &byte) in line.iter().enumerate().take(10) {
        let digit = byte.wrapping_sub(b'0');
        if digit < 10 {
            number = number * 10 + digit as usize;
            continue;
        }
        // No digits, a leading zero, another byte, or the last byte of the line not there yet.
        let plain = byte == b'\r' && at > 0 && (line[0] != b'0' || at == 1) && at + 1 < line.len();
        return plain.then_some((number, pos + at + 3));
    }
    None
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
#[path = "parser_tests.rs"]
mod tests;
