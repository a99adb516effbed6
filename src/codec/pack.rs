//! Elements of a small collection behind the header of its metadata record, in the order of their keys.
//!
//! | bytes | part |
//! |---|---|
//! | varint + … | an element's key, its group first |
//! | varint + … | its value |
//!
//! and so on to the end of the record.

use super::CodecError;
use super::cursor::{Cursor, push_slice};

/// Appends an element.
#[inline]
pub fn push(element: &[u8], value: &[u8], out: &mut Vec<u8>) {
    push_slice(element, out);
    push_slice(value, out);
}

/// The elements: key and value. Ends behind the first that cannot be read.
#[derive(Debug, Clone)]
pub struct Elements<'a>(Cursor<'a>);

impl<'a> Elements<'a> {
    /// Of what stands behind the header.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Elements(Cursor::new(bytes))
    }

    fn read(&mut self) -> Result<(&'a [u8], &'a [u8]), CodecError> {
        Ok((self.0.slice()?, self.0.slice()?))
    }
}

impl<'a> Iterator for Elements<'a> {
    type Item = Result<(&'a [u8], &'a [u8]), CodecError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let read = self.read();
        if read.is_err() {
            self.0 = Cursor::new(&[]);
        }
        Some(read)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[test]
    fn packed_bytes_are_pinned() {
        let mut out = Vec::new();
        push(b"\x05a", b"", &mut out);
        push(b"\x05bc", b"value", &mut out);
        assert_eq!(out, b"\x02\x05a\0\x03\x05bc\x05value");
    }

    #[test]
    fn what_is_cut_is_told_once() {
        let elements: Vec<_> = Elements::new(b"\x01a\0\x02b").collect();
        assert_eq!(elements, [Ok((&b"a"[..], &b""[..])), Err(CodecError::Truncated)]);
    }

    proptest! {
        #[test]
        fn elements_return(elements in vec((vec(any::<u8>(), 0..200), vec(any::<u8>(), 0..200)), 0..20)) {
            let mut out = Vec::new();
            elements.iter().for_each(|(element, value)| push(element, value, &mut out));
            let back: Vec<_> = Elements::new(&out).map(Result::unwrap).collect();
            prop_assert!(back.iter().copied().eq(elements.iter().map(|(element, value)| (&element[..], &value[..]))));
        }
    }
}
