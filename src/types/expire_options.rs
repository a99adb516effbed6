//! Expiry among the options of a command that writes or reads a value: `EX`, `PX`, `EXAT`, `PXAT`, `KEEPTTL`,
//! `PERSIST`.
//!
//! Invariants: the words exclude one another, but one may be repeated, then the last counts; a time is read only after
//! all options are, so that a syntax error comes before a bad number.

use crate::handler::{Error, Result};
use crate::resp::args::Cursor;
use crate::util::num::parse_i64;

/// One of the words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// Seconds from now.
    Ex,
    /// Milliseconds from now.
    Px,
    /// Unix time, seconds.
    ExAt,
    /// Unix time, milliseconds.
    PxAt,
    /// The time stays as it is.
    KeepTtl,
    /// The time goes.
    Persist,
}

impl Word {
    /// The word itself.
    pub const fn text(self) -> &'static [u8] {
        match self {
            Word::Ex => b"EX",
            Word::Px => b"PX",
            Word::ExAt => b"EXAT",
            Word::PxAt => b"PXAT",
            Word::KeepTtl => b"KEEPTTL",
            Word::Persist => b"PERSIST",
        }
    }

    /// Whether its time counts from now, not from 1970.
    pub const fn is_relative(self) -> bool {
        matches!(self, Word::Ex | Word::Px)
    }

    /// Milliseconds of one of its unit.
    pub const fn unit_ms(self) -> u64 {
        if matches!(self, Word::Ex | Word::ExAt) { 1000 } else { 1 }
    }

    const fn has_time(self) -> bool {
        !matches!(self, Word::KeepTtl | Word::Persist)
    }
}

/// The words of commands that write a value.
pub const WRITE_WORDS: &[Word] = &[Word::Ex, Word::Px, Word::ExAt, Word::PxAt, Word::KeepTtl];
/// The words of commands that read a value.
pub const READ_WORDS: &[Word] = &[Word::Ex, Word::Px, Word::ExAt, Word::PxAt, Word::Persist];

/// What the options of a call said.
#[derive(Debug, Clone, Copy, Default)]
pub struct ExpireOption<'a> {
    word: Option<Word>,
    time: &'a [u8],
}

impl<'a> ExpireOption<'a> {
    /// Takes the next option if it is one of `words`; whether it was.
    ///
    /// # Errors
    /// `Syntax` if another word came before, or its time is missing.
    pub fn take(&mut self, options: &mut Cursor<'a>, words: &[Word]) -> Result<bool> {
        let Some(&word) = words.iter().find(|word| options.next_is(word.text())) else { return Ok(false) };
        if self.word.is_some_and(|before| before != word) {
            return Err(Error::Syntax);
        }
        self.word = Some(word);
        if word.has_time() {
            self.time = options.arg()?;
        }
        Ok(true)
    }

    /// Whether this word was given.
    pub fn is(&self, word: Word) -> bool {
        self.word == Some(word)
    }

    /// Whether the time is given absolutely, so that it may be past already.
    pub fn is_absolute(&self) -> bool {
        matches!(self.word, Some(Word::ExAt | Word::PxAt))
    }

    /// The time given, absolute ms; `None` if none was.
    ///
    /// # Errors
    /// As [`absolute_ms`].
    pub fn at_ms(&self, now_ms: u64, command: &'static str) -> Result<Option<u64>> {
        match self.word {
            Some(word) if word.has_time() => absolute_ms(self.time, word, now_ms, command).map(Some),
            _ => Ok(None),
        }
    }
}

/// An expiry time as absolute ms. `command` is named in the error.
///
/// # Errors
/// `NotInteger`, or `InvalidExpire` for what is not above zero or beyond 2⁶³−1 ms.
pub fn absolute_ms(text: &[u8], word: Word, now_ms: u64, command: &'static str) -> Result<u64> {
    let time = parse_i64(text).ok_or(Error::NotInteger)?;
    let scale = if matches!(word, Word::Ex | Word::ExAt) { 1000 } else { 1 };
    let base = if matches!(word, Word::Ex | Word::Px) { now_ms as i64 } else { 0 };
    let at = if time > 0 { time.checked_mul(scale).and_then(|ms| ms.checked_add(base)) } else { None };
    at.map(i64::cast_unsigned).ok_or(Error::InvalidExpire(command))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::resp::OwnedArgs;

    /// Reads all words as options; the time at 5,000 ms.
    fn read(words: &[&str]) -> Result<Option<u64>> {
        let owned: OwnedArgs = words.iter().map(|word| word.as_bytes()).collect();
        let mut options = owned.as_args().cursor(0);
        let mut expiry = ExpireOption::default();
        while !options.is_empty() {
            if !expiry.take(&mut options, WRITE_WORDS)? {
                return Err(Error::Syntax);
            }
        }
        expiry.at_ms(5000, "set")
    }

    #[test]
    fn times_are_absolute_ms() {
        for (words, at_ms) in [
            (&["EX", "10"][..], Some(15_000)),
            (&["px", "10"], Some(5010)),
            (&["ExAt", "10"], Some(10_000)),
            (&["PXAT", "10"], Some(10)),
            (&["EX", "10", "EX", "20"], Some(25_000)),
            (&["KEEPTTL", "keepttl"], None),
            (&["PXAT", "9223372036854775807"], Some(i64::MAX as u64)),
            (&[], None),
        ] {
            assert_eq!(read(words).unwrap(), at_ms, "{words:?}");
        }
    }

    #[test]
    fn bad_times_are_refused() {
        let invalid = Error::InvalidExpire("set");
        for (words, error) in [
            (&["EX", "10", "PX", "10"][..], Error::Syntax),
            (&["KEEPTTL", "EX", "10"], Error::Syntax),
            (&["EX", "x", "EX"], Error::Syntax),
            (&["PERSIST"], Error::Syntax),
            (&["EX", "1.5"], Error::NotInteger),
            (&["EX", "0"], invalid.clone()),
            (&["PXAT", "-1"], invalid.clone()),
            (&["EXAT", "9223372036854776"], invalid.clone()),
            (&["PX", "9223372036854775807"], invalid),
        ] {
            assert_eq!(read(words), Err(error), "{words:?}");
        }
    }
}
