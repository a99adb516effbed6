//! A request's arguments as commands see them.
//!
//! | type | is | cost |
//! |---|---|---|
//! | [`Args`] | a view of the query buffer: the bytes and the spans in them | two slices, `Copy` |
//! | [`OwnedArgs`] | the same kept for later: a queued command, a request in a mailbox | two vectors |
//! | [`Cursor`] | a walk over arguments, for commands with options | `Args` and an index |
//!
//! The command's name is argument 0.

use std::ops::{Index, Range};

use super::parser::Span;
use crate::error::{Error, Result};
use crate::util::{alloc, num};

/// Arguments that lie in a buffer.
#[derive(Clone, Copy)]
pub struct Args<'a> {
    buf: &'a [u8],
    spans: &'a [Span],
}

impl<'a> Args<'a> {
    /// The arguments at `spans` of `buf`, which must contain them all.
    #[inline]
    pub fn new(buf: &'a [u8], spans: &'a [Span]) -> Self {
        debug_assert!(spans.iter().all(|&(start, end)| start <= end && end as usize <= buf.len()));
        Args { buf, spans }
    }

    /// How many there are.
    #[inline]
    pub fn len(self) -> usize {
        self.spans.len()
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.spans.is_empty()
    }

    /// The argument at `index`, if there is one.
    #[inline]
    pub fn get(self, index: usize) -> Option<&'a [u8]> {
        self.spans.get(index).map(|&span| self.at(span))
    }

    /// All of them in order.
    #[inline]
    pub fn iter(self) -> impl ExactSizeIterator<Item = &'a [u8]> + DoubleEndedIterator + Clone {
        self.spans.iter().map(move |&span| self.at(span))
    }

    /// Those from `from` on; none if there are fewer.
    #[inline]
    pub fn slice(self, from: usize) -> Args<'a> {
        Args { buf: self.buf, spans: self.spans.get(from..).unwrap_or_default() }
    }

    /// The first `count`, or all if there are fewer.
    #[inline]
    pub fn take(self, count: usize) -> Args<'a> {
        Args { buf: self.buf, spans: self.spans.get(..count).unwrap_or(self.spans) }
    }

    /// A walk over the arguments from `from` on.
    #[inline]
    pub fn cursor(self, from: usize) -> Cursor<'a> {
        Cursor { args: self, next: from }
    }

    /// What stands right behind any of these words, in either case, which are looked for from `from` on.
    pub fn behind(self, from: usize, words: &'static [&'static [u8]]) -> impl Iterator<Item = &'a [u8]> {
        let pairs = self.slice(from).iter().zip(self.slice(from + 1).iter());
        pairs.filter(|(word, _)| words.iter().any(|known| word.eq_ignore_ascii_case(known))).map(|(_, arg)| arg)
    }

    #[inline]
    fn at(self, (start, end): Span) -> &'a [u8] {
        &self.buf[start as usize..end as usize]
    }
}

impl Index<usize> for Args<'_> {
    type Output = [u8];

    #[inline]
    fn index(&self, index: usize) -> &[u8] {
        self.at(self.spans[index])
    }
}

impl std::fmt::Debug for Args<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter().map(|arg| arg.escape_ascii().to_string())).finish()
    }
}

/// Arguments with a buffer of their own, which holds nothing else.
#[derive(Debug, Clone, Default)]
pub struct OwnedArgs {
    buf: Vec<u8>,
    spans: Vec<Span>,
}

impl OwnedArgs {
    /// The view commands take.
    #[inline]
    pub fn as_args(&self) -> Args<'_> {
        Args { buf: &self.buf, spans: &self.spans }
    }

    /// Adds one argument at the end.
    pub fn push(&mut self, arg: &[u8]) {
        let start = self.buf.len() as u32;
        self.buf.extend_from_slice(arg);
        self.spans.push((start, self.buf.len() as u32));
    }

    /// Adds those of a call behind what there is; which they are, for [`OwnedArgs::some`].
    pub fn append(&mut self, args: Args<'_>) -> Range<usize> {
        let begin = self.spans.len();
        args.iter().for_each(|arg| self.push(arg));
        begin..self.spans.len()
    }

    /// Some of them as arguments of a call of their own.
    pub fn some(&self, range: Range<usize>) -> Args<'_> {
        Args { buf: &self.buf, spans: &self.spans[range] }
    }

    /// Forgets them, and keeps their room.
    pub fn clear(&mut self) {
        self.buf.clear();
        self.spans.clear();
    }

    /// Bytes of all of them.
    pub fn bytes(&self) -> usize {
        self.buf.len()
    }

    /// Bytes of memory held, for the accounts of queued commands.
    pub fn memory_bytes(&self) -> usize {
        alloc::block_bytes(self.buf.capacity()) + alloc::block_bytes(self.spans.capacity() * size_of::<Span>())
    }
}

impl From<Args<'_>> for OwnedArgs {
    fn from(args: Args<'_>) -> Self {
        let bytes = args.iter().map(<[u8]>::len).sum();
        let mut owned = OwnedArgs { buf: Vec::with_capacity(bytes), spans: Vec::with_capacity(args.len()) };
        args.iter().for_each(|arg| owned.push(arg));
        owned
    }
}

impl<'a> FromIterator<&'a [u8]> for OwnedArgs {
    fn from_iter<I: IntoIterator<Item = &'a [u8]>>(args: I) -> Self {
        let mut owned = OwnedArgs::default();
        args.into_iter().for_each(|arg| owned.push(arg));
        owned
    }
}

/// A walk over arguments. As an iterator it hands out the arguments; the other methods read them as something.
///
/// ```
/// # use tarn::resp::OwnedArgs;
/// let owned: OwnedArgs = [&b"SET"[..], b"k", b"v", b"ex", b"10", b"NX"].into_iter().collect();
/// let mut options = owned.as_args().cursor(3);
/// let (mut seconds, mut only_new) = (None, false);
/// while !options.is_empty() {
///     if options.next_is(b"EX") {
///         seconds = Some(options.int()?);
///     } else if options.next_is(b"NX") {
///         only_new = true;
///     } else {
///         return Err(tarn::Error::Syntax);
///     }
/// }
/// assert_eq!((seconds, only_new), (Some(10), true));
/// # tarn::Result::Ok(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Cursor<'a> {
    args: Args<'a>,
    next: usize,
}

impl<'a> Cursor<'a> {
    /// The next argument, without going on.
    #[inline]
    pub fn peek(&self) -> Option<&'a [u8]> {
        self.args.get(self.next)
    }

    /// Takes the next argument if it is this keyword, in either case.
    #[inline]
    pub fn next_is(&mut self, keyword: &[u8]) -> bool {
        let found = self.peek().is_some_and(|arg| arg.eq_ignore_ascii_case(keyword));
        self.next += usize::from(found);
        found
    }

    /// The next argument; a syntax error if there is none.
    #[inline]
    pub fn arg(&mut self) -> Result<&'a [u8]> {
        self.next().ok_or(Error::Syntax)
    }

    /// The next argument as an integer: a syntax error if there is none, `NotInteger` if it is something else.
    #[inline]
    pub fn int(&mut self) -> Result<i64> {
        num::parse_i64(self.arg()?).ok_or(Error::NotInteger)
    }

    /// The next argument as a float: a syntax error if there is none, `NotFloat` if it is something else.
    #[inline]
    pub fn float(&mut self) -> Result<f64> {
        num::parse_double(self.arg()?).ok_or(Error::NotFloat)
    }

    /// How many arguments are left.
    #[inline]
    pub fn remaining(&self) -> usize {
        self.args.len().saturating_sub(self.next)
    }

    /// Whether no argument is left.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.remaining() == 0
    }

    /// The index, among all arguments, of the next one.
    #[inline]
    pub fn position(&self) -> usize {
        self.next
    }

    /// The arguments that are left.
    #[inline]
    pub fn rest(&self) -> Args<'a> {
        self.args.slice(self.next)
    }
}

impl<'a> Iterator for Cursor<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let arg = self.peek()?;
        self.next += 1;
        Some(arg)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    const BUF: &[u8] = b"xxSETyykzznx-7 1.5";
    const SPANS: &[Span] = &[(2, 5), (7, 8), (10, 12), (12, 14), (15, 18), (0, 0)];

    #[test]
    fn args_view_their_spans() {
        let args = Args::new(BUF, SPANS);
        assert_eq!((args.len(), args.is_empty()), (6, false));
        assert_eq!(&args[0], b"SET");
        assert_eq!(args.get(1), Some(&b"k"[..]));
        assert_eq!(args.get(5), Some(&b""[..]));
        assert_eq!(args.get(6), None);
        assert_eq!(args.slice(4).iter().collect::<Vec<_>>(), [&b"1.5"[..], b""]);
        assert_eq!(args.take(2).iter().rev().collect::<Vec<_>>(), [&b"k"[..], b"SET"]);
        assert!(args.slice(7).is_empty());
        assert_eq!(args.take(99).len(), 6);
        assert_eq!(format!("{args:?}"), r#"["SET", "k", "nx", "-7", "1.5", ""]"#);
    }

    #[test]
    fn owned_args_hold_nothing_but_arguments() {
        let owned = OwnedArgs::from(Args::new(BUF, SPANS));
        assert_eq!(owned.buf, b"SETknx-71.5");
        assert!(owned.as_args().iter().eq(Args::new(BUF, SPANS).iter()));
        assert_eq!(owned.memory_bytes(), 32 + 64, "11 bytes and 6 spans, as the allocator deals them out");
    }

    #[test]
    fn cursor_reads_options() {
        let mut cursor = Args::new(BUF, SPANS).cursor(1);
        assert_eq!(cursor.next(), Some(&b"k"[..]));
        assert!(!cursor.next_is(b"XX"));
        assert!(cursor.next_is(b"NX"));
        assert_eq!((cursor.position(), cursor.remaining(), cursor.rest().len()), (3, 3, 3));
        assert_eq!(cursor.int().unwrap(), -7);
        let mut again = cursor;
        assert_eq!(again.int(), Err(Error::NotInteger));
        assert_eq!(cursor.float().unwrap(), 1.5);
        assert_eq!(cursor.float(), Err(Error::NotFloat));
        assert!(cursor.is_empty());
        assert_eq!(cursor.peek(), None);
        assert_eq!(cursor.int(), Err(Error::Syntax));
        assert_eq!(Args::new(BUF, SPANS).cursor(99).remaining(), 0);
    }
}
