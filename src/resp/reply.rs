//! The writer of replies.
//!
//! One byte buffer and the protocol version the client has chosen. Each method writes one element; what RESP2 has no
//! form for takes the form Redis gives it there:
//!
//! | method | RESP2 | RESP3 |
//! |---|---|---|
//! | [`status`](Reply::status), [`error`](Reply::error), [`int`](Reply::int), [`bulk`](Reply::bulk) | `+` `-` `:` `$` | the same |
//! | [`nil`](Reply::nil) | `$-1` | `_` |
//! | [`nil_array`](Reply::nil_array) | `*-1` | `_` |
//! | [`array`](Reply::array) of n | `*n` | `*n` |
//! | [`map`](Reply::map) of n pairs | `*2n` | `%n` |
//! | [`set`](Reply::set), [`push`](Reply::push) of n | `*n` | `~n`, `>n` |
//! | [`double`](Reply::double) | bulk | `,` |
//! | [`boolean`](Reply::boolean) | `:1` `:0` | `#t` `#f` |
//! | [`big_number`](Reply::big_number) | bulk | `(` |
//! | [`verbatim`](Reply::verbatim) | bulk | `=` |
//!
//! Invariants: a line never holds a CR or LF of the caller's; headers count what the caller then writes, which only
//! the caller can get right. A command that fails after it has begun to write is undone with
//! [`truncate`](Reply::truncate).
//!
//! What is written is charged to the command's allowance ([`crate::meter`]). Beyond its bound nothing is written any more,
//! and the command fails at its next step or at its end.

use crate::error::{Error, Result};
use crate::meter;
use crate::util::num;

/// A buffer of replies; `proto` is 2 or 3.
#[derive(Debug)]
pub struct Reply {
    buf: Vec<u8>,
    proto: u8,
}

/// A header whose count is not known yet. Marks must be resolved with [`Reply::set_len`] in the reverse of the order
/// in which they were made.
#[derive(Debug)]
#[must_use = "the reply is incomplete until the count is set"]
pub struct Mark {
    at: usize,
    /// Elements per unit counted: 2 for a map in RESP2.
    factor: usize,
}

/// What stands for an unknown count until it is set; a count of one digit takes just its room.
const UNKNOWN_COUNT: u8 = b'?';

impl Default for Reply {
    fn default() -> Self {
        Reply::new(2)
    }
}

impl Reply {
    /// An empty buffer for protocol version 2 or 3.
    pub fn new(proto: u8) -> Self {
        Reply::from_vec(Vec::new(), proto)
    }

    /// Goes on writing behind what `buf` holds.
    pub fn from_vec(buf: Vec<u8>, proto: u8) -> Self {
        debug_assert!(proto == 2 || proto == 3);
        Reply { buf, proto }
    }

    /// The protocol version in use.
    #[inline]
    pub fn proto(&self) -> u8 {
        self.proto
    }

    /// Changes the protocol version for what is written from now on (HELLO).
    pub fn set_proto(&mut self, proto: u8) {
        debug_assert!(proto == 2 || proto == 3);
        self.proto = proto;
    }

    /// Bytes written.
    #[inline]
    pub fn len(&self) -> usize {
        self.buf.len()
    }

    /// Bytes of memory held.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.buf.capacity()
    }

    /// Whether nothing is written.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.buf.is_empty()
    }

    /// What is written.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        &self.buf
    }

    /// Takes back everything after the first `len` bytes.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        self.buf.truncate(len);
    }

    /// Takes back everything, and gives memory of more than `keep` bytes back.
    #[inline]
    pub fn give_back(&mut self, keep: usize) {
        self.buf.clear();
        if self.buf.capacity() > keep {
            self.buf = Vec::new();
        }
    }

    /// Takes everything written, and its memory.
    #[inline]
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.buf)
    }

    /// Gives back what a long reply has reserved and not used.
    pub fn trim(&mut self) {
        /// Shorter ones are not worth it.
        const LONG: usize = 1 << 20;
        if self.buf.capacity() > LONG {
            self.buf.shrink_to_fit();
        }
    }

    /// Appends what another has written; without a copy if there is nothing here yet.
    pub fn append(&mut self, mut other: Reply) {
        if self.buf.is_empty() && other.buf.len() > self.buf.capacity() {
            self.swap(&mut other.buf);
        } else {
            self.buf.extend_from_slice(&other.buf);
        }
    }

    /// Exchanges what is written, and its memory, with `other`.
    #[inline]
    pub fn swap(&mut self, other: &mut Vec<u8>) {
        std::mem::swap(&mut self.buf, other);
    }

    /// Appends elements that are encoded already, in this protocol version.
    #[inline]
    pub fn raw(&mut self, encoded: &[u8]) {
        if meter::hold(encoded.len()).is_ok() {
            self.buf.extend_from_slice(encoded);
        }
    }

    /// `+OK`.
    #[inline]
    pub fn ok(&mut self) {
        self.buf.extend_from_slice(b"+OK\r\n");
    }

    /// A status line.
    #[inline]
    pub fn status(&mut self, text: &(impl AsRef<[u8]> + ?Sized)) {
        self.line(b'+', text.as_ref());
    }

    /// An error.
    #[cold]
    pub fn error(&mut self, error: &Error) {
        match error {
            Error::Quoted(text) => self.error_text(text),
            error => self.error_text(error.text().as_bytes()),
        }
    }

    /// An error with this text, its code word included. Line ends within it become spaces, those around it go.
    #[cold]
    pub fn error_text(&mut self, text: &[u8]) {
        let is_line_end = |byte: &u8| matches!(byte, b'\r' | b'\n');
        let start = text.iter().position(|byte| !is_line_end(byte)).unwrap_or(text.len());
        let end = text.iter().rposition(|byte| !is_line_end(byte)).map_or(start, |last| last + 1);
        self.line(b'-', &text[start..end]);
    }

    /// A command's outcome: nothing more on success; on failure the error instead of what it wrote from `start` on.
    #[inline]
    pub fn finish(&mut self, start: usize, outcome: Result) {
        if let Err(error) = outcome {
            self.truncate(start);
            self.error(&error);
        }
    }

    /// An integer.
    #[inline]
    pub fn int(&mut self, value: i64) {
        match u64::try_from(value) {
            Ok(value) => self.header(b':', value),
            Err(_) => self.decimal(b':', value),
        }
    }

    /// A byte string.
    #[inline]
    pub fn bulk(&mut self, value: &[u8]) {
        if meter::hold(value.len() + 2).is_err() {
            return;
        }
        self.buf.reserve(value.len() + 16);
        self.header(b'$', value.len() as u64);
        self.buf.extend_from_slice(value);
        self.buf.extend_from_slice(b"\r\n");
    }

    /// A byte string of `len` bytes that `write` appends, exactly that many, to the buffer it is given.
    ///
    /// # Errors
    /// `TooMuch`, without a call of `write`, if there is no room for it; what `write` answers.
    pub fn bulk_parts(&mut self, len: usize, write: impl FnOnce(&mut Vec<u8>) -> Result) -> Result {
        meter::hold(len)?;
        self.buf.reserve(len + 16);
        self.header(b'$', len as u64);
        let start = self.buf.len();
        write(&mut self.buf)?;
        assert_eq!(self.buf.len() - start, len, "parts of a byte string differ from its announced length");
        self.buf.extend_from_slice(b"\r\n");
        Ok(())
    }

    /// An integer as a byte string.
    pub fn bulk_int(&mut self, value: i64) {
        self.bulk(itoa::Buffer::new().format(value).as_bytes());
    }

    /// The absence of a value.
    #[inline]
    pub fn nil(&mut self) {
        self.raw(if self.proto == 2 { b"$-1\r\n" } else { b"_\r\n" });
    }

    /// The absence of a list of values.
    #[inline]
    pub fn nil_array(&mut self) {
        self.raw(if self.proto == 2 { b"*-1\r\n" } else { b"_\r\n" });
    }

    /// The header of an array; `count` elements must follow.
    #[inline]
    pub fn array(&mut self, count: usize) {
        self.count(b'*', count);
    }

    /// The header of a map; `count` keys, each followed by its value, must follow.
    #[inline]
    pub fn map(&mut self, count: usize) {
        if self.proto == 2 { self.count(b'*', count.saturating_mul(2)) } else { self.count(b'%', count) }
    }

    /// The header of a set; `count` elements must follow.
    #[inline]
    pub fn set(&mut self, count: usize) {
        self.count(if self.proto == 2 { b'*' } else { b'~' }, count);
    }

    /// The header of a push message; `count` elements must follow.
    #[inline]
    pub fn push(&mut self, count: usize) {
        self.count(if self.proto == 2 { b'*' } else { b'>' }, count);
    }

    /// The header of what has so many elements, none of which takes less than three bytes.
    #[inline]
    fn count(&mut self, kind: u8, count: usize) {
        if meter::expect(count.saturating_mul(3)).is_ok() {
            self.header(kind, count as u64);
        }
    }

    /// A double, as scores are printed.
    pub fn double(&mut self, value: f64) {
        let text = num::format_double(value);
        if self.proto == 2 { self.bulk(text.as_bytes()) } else { self.line(b',', text.as_bytes()) }
    }

    /// A truth value.
    pub fn boolean(&mut self, value: bool) {
        match (self.proto, value) {
            (2, value) => self.int(value.into()),
            (_, true) => self.raw(b"#t\r\n"),
            (_, false) => self.raw(b"#f\r\n"),
        }
    }

    /// An integer of any size, given in decimal.
    pub fn big_number(&mut self, decimal: &[u8]) {
        if self.proto == 2 { self.bulk(decimal) } else { self.line(b'(', decimal) }
    }

    /// Text to be shown as it is; `extension` (`txt`, `mkd`) names its format.
    pub fn verbatim(&mut self, text: &[u8], extension: &[u8; 3]) {
        if self.proto == 2 {
            return self.bulk(text);
        }
        if meter::hold(text.len()).is_err() {
            return;
        }
        self.header(b'=', text.len() as u64 + 4);
        self.buf.extend_from_slice(extension);
        self.buf.push(b':');
        self.buf.extend_from_slice(text);
        self.buf.extend_from_slice(b"\r\n");
    }

    /// The header of an array whose count is set later. What follows it moves by a few bytes then if the count has
    /// more than one digit, so a count known in advance is better given to [`array`](Reply::array).
    pub fn defer_array(&mut self) -> Mark {
        self.defer(b'*', 1)
    }

    /// The header of a map whose count of pairs is set later.
    pub fn defer_map(&mut self) -> Mark {
        if self.proto == 2 { self.defer(b'*', 2) } else { self.defer(b'%', 1) }
    }

    /// The header of a set whose count is set later.
    pub fn defer_set(&mut self) -> Mark {
        self.defer(if self.proto == 2 { b'*' } else { b'~' }, 1)
    }

    /// Completes a header with the count of what was written after it.
    pub fn set_len(&mut self, mark: Mark, count: usize) {
        if meter::is_over() {
            // The mark itself may not have been written.
            return;
        }
        assert_eq!(self.buf.get(mark.at), Some(&UNKNOWN_COUNT), "marks must be resolved innermost first");
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(count * mark.factor);
        self.buf.splice(mark.at..mark.at + 1, digits.bytes());
    }

    fn defer(&mut self, kind: u8, factor: usize) -> Mark {
        self.buf.extend_from_slice(&[kind, UNKNOWN_COUNT, b'\r', b'\n']);
        Mark { at: self.buf.len() - 3, factor }
    }

    /// A line of text, made one line if it is not.
    fn line(&mut self, kind: u8, text: &[u8]) {
        if meter::hold(text.len() + 3).is_err() {
            return;
        }
        self.buf.reserve(text.len() + 3);
        self.buf.push(kind);
        let start = self.buf.len();
        self.buf.extend_from_slice(text);
        if memchr::memchr2(b'\r', b'\n', text).is_some() {
            for byte in self.buf[start..].iter_mut().filter(|byte| matches!(byte, b'\r' | b'\n')) {
                *byte = b' ';
            }
        }
        self.buf.extend_from_slice(b"\r\n");
    }

    /// A line with a number. Lengths and counts of one to three digits, most by far, are written as one small array.
    #[inline]
    fn header(&mut self, kind: u8, value: u64) {
        if meter::hold(4).is_err() {
            return;
        }
        let digit = |value: u64| b'0' + (value % 10) as u8;
        match value {
            0..=9 => self.buf.extend_from_slice(&[kind, digit(value), b'\r', b'\n']),
            10..=99 => self.buf.extend_from_slice(&[kind, digit(value / 10), digit(value), b'\r', b'\n']),
            100..=999 => {
                let line = [kind, digit(value / 100), digit(value / 10), digit(value), b'\r', b'\n'];
                self.buf.extend_from_slice(&line);
            }
            _ => self.decimal(kind, value),
        }
    }

    fn decimal(&mut self, kind: u8, value: impl itoa::Integer) {
        /// Of what most numbers of so many digits take.
        const BYTES: usize = 16;
        if meter::hold(BYTES).is_err() {
            return;
        }
        let mut digits = itoa::Buffer::new();
        self.buf.push(kind);
        self.buf.extend_from_slice(digits.format(value).as_bytes());
        self.buf.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `write` produces in RESP2 and in RESP3.
    #[track_caller]
    fn check(write: impl Fn(&mut Reply), resp2: &str, resp3: &str) {
        for (proto, expected) in [(2, resp2), (3, resp3)] {
            let mut reply = Reply::new(proto);
            write(&mut reply);
            let got = String::from_utf8_lossy(reply.as_slice());
            assert_eq!(got, expected, "RESP{proto}");
        }
    }

    #[track_caller]
    fn check_both(write: impl Fn(&mut Reply), expected: &str) {
        check(write, expected, expected);
    }

    #[test]
    fn elements_that_both_versions_share() {
        check_both(Reply::ok, "+OK\r\n");
        check_both(|r| r.status("PONG"), "+PONG\r\n");
        check_both(|r| r.bulk(b""), "$0\r\n\r\n");
        check_both(|r| r.bulk(b"a\r\nb"), "$4\r\na\r\nb\r\n");
        check_both(|r| r.array(0), "*0\r\n");
        check_both(|r| r.bulk_int(-12), "$3\r\n-12\r\n");
        check_both(|r| r.error(&Error::Syntax), "-ERR syntax error\r\n");
        check_both(|r| r.raw(b":1\r\n"), ":1\r\n");
    }

    #[test]
    fn elements_that_differ() {
        check(Reply::nil, "$-1\r\n", "_\r\n");
        check(Reply::nil_array, "*-1\r\n", "_\r\n");
        check(|r| r.map(7), "*14\r\n", "%7\r\n");
        check(|r| r.set(2), "*2\r\n", "~2\r\n");
        check(|r| r.push(3), "*3\r\n", ">3\r\n");
        check(|r| r.double(0.5), "$3\r\n0.5\r\n", ",0.5\r\n");
        check(|r| r.double(f64::NEG_INFINITY), "$4\r\n-inf\r\n", ",-inf\r\n");
        check(|r| r.boolean(true), ":1\r\n", "#t\r\n");
        check(|r| r.boolean(false), ":0\r\n", "#f\r\n");
        check(|r| r.big_number(b"123"), "$3\r\n123\r\n", "(123\r\n");
        check(|r| r.verbatim(b"hello", b"txt"), "$5\r\nhello\r\n", "=9\r\ntxt:hello\r\n");
    }

    /// Each is short, and a command may reply with any number of them.
    #[test]
    fn what_is_short_is_charged_too() {
        const MANY: usize = 1 << 17;
        let write: [fn(&mut Reply); 5] =
            [Reply::nil, Reply::nil_array, |r| r.boolean(true), |r| r.int(-1), |r| r.int(i64::MAX)];
        for (write, proto) in write.into_iter().flat_map(|write| [(write, 2), (write, 3)]) {
            let _running = meter::begin(meter::Allowance::here(1 << 18));
            let mut reply = Reply::new(proto);
            (0..MANY).for_each(|_| write(&mut reply));
            assert!(meter::is_over() && reply.len() < 1 << 20, "{} bytes", reply.len());
        }
    }

    #[test]
    fn numbers_of_every_length() {
        for value in [0, 9, 10, 99, 100, 999, 1000, 12345, i64::MAX, -1, -9, i64::MIN] {
            check_both(|r| r.int(value), &format!(":{value}\r\n"));
        }
        for len in [0, 9, 10, 99, 100, 999, 1000, 70_000] {
            let value = "x".repeat(len);
            check_both(|r| r.bulk(value.as_bytes()), &format!("${len}\r\n{value}\r\n"));
        }
    }

    #[test]
    fn an_error_is_one_line() {
        check_both(|r| r.error_text(b"ERR x\r\ny\n\n"), "-ERR x  y\r\n");
        check_both(|r| r.error_text(b"\r\n"), "-\r\n");
        check_both(|r| r.status("a\nb"), "+a b\r\n");
    }

    #[test]
    fn a_failed_command_leaves_only_its_error() {
        let mut reply = Reply::new(2);
        reply.ok();
        let start = reply.len();
        reply.array(2);
        reply.int(1);
        reply.finish(start, Err(Error::NotInteger));
        let expected = "+OK\r\n-ERR value is not an integer or out of range\r\n";
        assert_eq!(String::from_utf8_lossy(reply.as_slice()), expected);
        reply.finish(0, Ok(()));
        assert_eq!(reply.take(), expected.as_bytes());
        assert!(reply.is_empty());
    }

    #[test]
    fn counts_known_late() {
        let nested = |r: &mut Reply| {
            let outer = r.defer_array();
            for _ in 0..12 {
                let inner = r.defer_map();
                r.int(1);
                r.int(2);
                r.set_len(inner, 1);
            }
            let empty = r.defer_set();
            r.set_len(empty, 0);
            r.set_len(outer, 13);
        };
        let resp2 = format!("*13\r\n{}*0\r\n", "*2\r\n:1\r\n:2\r\n".repeat(12));
        let resp3 = format!("*13\r\n{}~0\r\n", "%1\r\n:1\r\n:2\r\n".repeat(12));
        check(nested, &resp2, &resp3);
    }

    #[test]
    fn a_byte_string_in_parts() {
        let write = |r: &mut Reply| {
            let parts = r.bulk_parts(6, |buf| {
                buf.extend_from_slice(b"abc");
                buf.extend_from_slice(b"def");
                Ok(())
            });
            assert_eq!(parts, Ok(()));
        };
        check_both(write, "$6\r\nabcdef\r\n");
        // What fails is taken back as a whole: nothing is filled up for it.
        let mut reply = Reply::new(2);
        let failed = reply.bulk_parts(1 << 20, |buf| {
            buf.extend_from_slice(b"abc");
            Err(Error::Long)
        });
        assert_eq!((failed, reply.len() < 20), (Err(Error::Long), true));
    }

    #[test]
    fn nothing_is_written_beyond_what_the_command_may_hold() {
        let _running = meter::begin(meter::Allowance::here(100));
        let mut reply = Reply::new(2);
        let mark = reply.defer_array();
        (0..1000).for_each(|_| reply.bulk(b"0123456789"));
        reply.set_len(mark, 1000);
        assert!(reply.len() < 200, "{}", reply.len());
        assert!(meter::is_over());
        assert_eq!(reply.bulk_parts(5, |_| unreachable!("there is no room")), Err(Error::TooMuch));
    }

    #[test]
    fn what_is_given_back_keeps_so_much_and_no_more() {
        const KEEP: usize = 100;
        for (len, keeps) in [(KEEP / 2, true), (KEEP * 2, false)] {
            let mut reply = Reply::new(2);
            reply.bulk(&vec![b'v'; len]);
            let before = reply.capacity();
            reply.give_back(KEEP);
            assert!(reply.is_empty() && reply.capacity() == if keeps { before } else { 0 }, "{len}");
        }
    }

    #[test]
    fn a_count_that_cannot_fit_is_refused_before_its_elements() {
        let _running = meter::begin(meter::Allowance::here(4 << 20));
        let mut reply = Reply::new(2);
        reply.array(1_000_000_000);
        assert!(reply.is_empty() && meter::is_over());
    }
}
