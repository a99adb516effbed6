//! HSCAN, SSCAN and ZSCAN: the elements of a collection, page by page. SCAN reads its options as they do.
//!
//! | collection | a page |
//! |---|---|
//! | kept compactly by Redis (listpack, intset) | all of it, whatever cursor and COUNT say |
//! | any other | the next COUNT elements in their order, those that MATCH passes over included |
//!
//! A cursor stands for the last element of a page ([`crate::shard::keyspace::cursor`]); one that is not known any more begins anew. So
//! an element that is there all along is never missed, though it may come twice. What every match must begin with bounds
//! the elements looked at, so that `MATCH user:*` costs what it finds.

use std::ops::Bound;

use crate::codec::element::{self, split_text};
use crate::codec::{MAX_INLINE, key::prefix_upper};
use crate::handler::limits::may_touch;
use crate::handler::{Ctx, Error, Found, Reply, Result};
use crate::resp::args::Cursor;
use crate::shard::memory::core::unreadable;
use crate::shard::memory::object::Kind;
use crate::shard::txn::slices::Slices;
use crate::util::glob;
use crate::util::num::parse_string_u64;
use crate::util::words::c_string;

/// Elements or keys looked at if COUNT does not say.
const COUNT: usize = 10;
const INVALID_CURSOR: Error = Error::err("ERR invalid cursor");

/// A cursor as Redis reads it.
///
/// # Errors
/// `ERR invalid cursor`.
pub fn parse_cursor(text: &[u8]) -> Result<u64> {
    parse_string_u64(c_string(text)).ok_or(INVALID_CURSOR)
}

/// The options of a call.
#[derive(Debug, Clone, Copy)]
pub struct Options<'a> {
    /// MATCH: what is shown; all if there is none.
    pub pattern: Option<&'a [u8]>,
    /// COUNT: elements or keys that a page looks at.
    pub count: usize,
    /// TYPE: of SCAN, the name of the type whose keys are shown.
    pub kind: Option<&'a [u8]>,
    /// NOVALUES or NOSCORES: the elements alone.
    pub bare: bool,
}

impl<'a> Options<'a> {
    /// Those of a call that shows what matches a pattern.
    pub fn matching(pattern: &'a [u8]) -> Self {
        Options { pattern: Some(pattern).filter(|pattern| *pattern != b"*"), count: COUNT, kind: None, bare: false }
    }

    /// Reads the options for a collection of this type, or for keys.
    ///
    /// # Errors
    /// As Redis.
    pub fn parse(mut options: Cursor<'a>, collection: Option<Kind>) -> Result<Self> {
        let mut read = Options::matching(b"*");
        while !options.is_empty() {
            let has_value = options.remaining() >= 2;
            if has_value && options.next_is(b"COUNT") {
                read.count = usize::try_from(options.int()?).map_err(|_| Error::Syntax)?;
                if read.count == 0 {
                    return Err(Error::Syntax);
                }
            } else if has_value && options.next_is(b"MATCH") {
                read.pattern = Options::matching(options.arg()?).pattern;
            } else if has_value && collection.is_none() && options.next_is(b"TYPE") {
                read.kind = Some(options.arg()?);
            } else if options.next_is(b"NOVALUES") {
                if collection != Some(Kind::Hash) {
                    return Err(Error::err("ERR NOVALUES option can only be used in HSCAN"));
                }
                read.bare = true;
            } else if options.next_is(b"NOSCORES") {
                if collection != Some(Kind::Zset) {
                    return Err(Error::err("ERR NOSCORES option can only be used in ZSCAN"));
                }
                read.bare = true;
            } else {
                return Err(Error::Syntax);
            }
        }
        Ok(read)
    }

    /// Whether an element is to be shown.
    pub fn accepts(&self, text: &[u8]) -> bool {
        self.pattern.is_none_or(|pattern| glob::matches(pattern, text))
    }

    /// What the elements of a group that may match lie between, in stored form: from the first, below the second.
    fn bounds(&self, group: element::Group) -> (Vec<u8>, Vec<u8>) {
        let prefix = self.pattern.map(glob::literal_prefix).unwrap_or_default();
        let mut lower = vec![group.tag()];
        lower.extend_from_slice(&prefix[..prefix.len().min(MAX_INLINE)]);
        let upper = prefix_upper(&lower);
        (lower, upper)
    }
}

/// What a call asks for: the page of a collection that a cursor leads to.
pub struct Page<'a> {
    /// Where it begins.
    pub cursor: u64,
    /// What the call adds.
    pub options: &'a Options<'a>,
    /// Everything at once, as of a collection that Redis would keep compactly.
    pub whole: bool,
}

/// Replies with one page of a group of elements that are keyed by a text: fields, members. `emit` gets text and value proper of each element that matches and answers how many
/// entries it has replied with: none for one that is not to be shown.
///
/// # Errors
/// `Cold` if the page is to be made on the shard's own thread; what reading the store brings.
pub fn scan_group(
    ctx: &mut Ctx,
    (found, group): (Found, element::Group),
    page: &Page<'_>,
    out: &mut Reply,
    mut emit: impl FnMut(&[u8], &[u8], &mut Reply) -> Result<usize>,
) -> Result {
    let (first, end) = page.options.bounds(group);
    scan_between(ctx, (found, &first, &end), page, out, |stored, value, out| {
        let (text, value) = split_text(&stored[1..], value).map_err(unreadable)?;
        if page.options.accepts(text) { emit(text, value, out) } else { Ok(0) }
    })
}

/// The same of all elements from one key on, below another. `emit` gets key and value of each as they are stored and
/// sees for itself which match.
///
/// # Errors
/// As [`scan_group`].
pub fn scan_between(
    ctx: &mut Ctx,
    (found, first, end): (Found, &[u8], &[u8]),
    &Page { cursor, options, whole }: &Page<'_>,
    out: &mut Reply,
    mut emit: impl FnMut(&[u8], &[u8], &mut Reply) -> Result<usize>,
) -> Result {
    let most = if whole { usize::MAX } else { options.count };
    may_touch(if whole { 0 } else { most as u64 })?;
    let after = if whole { None } else { ctx.server.element_cursors.resolve(cursor).1 };
    let lower = match &after {
        Some(after) if after[..] >= *end => {
            reply_end(out);
            return Ok(());
        }
        Some(after) if after[..] >= *first => Bound::Excluded(&after[..]),
        _ => Bound::Included(first),
    };
    let (mut last, mut entries) = (Vec::new(), 0);
    // The cursor stands in front of what it comes after.
    let mut met = Reply::new(out.proto());
    let (mut left, mut more) = (most as u64, false);
    let mut pass = |stored: &[u8], value: &[u8]| {
        more = left == 0;
        if !more {
            left -= 1;
            entries += emit(stored, value, &mut met)?;
            last.clear();
            last.extend_from_slice(stored);
        }
        Ok(!more)
    };
    if ctx.reads_in_slices() {
        let one_more = (most as u64).saturating_add(1);
        let slices = Slices::new(found, lower, Bound::Excluded(end), false).at_most(one_more);
        ctx.txn.pass_in_slices(ctx.ns(), slices, |(stored, value)| pass(&stored, &value))?;
    } else {
        let one_more = (most as u64).saturating_add(1);
        for element in ctx.txn.few_elements(found, (lower, Bound::Excluded(end)), false, one_more)? {
            let (stored, value) = element?;
            if !pass(&stored, &value)? {
                break;
            }
        }
    }
    let next = if more { ctx.server.element_cursors.issue(0, Some(last.into_boxed_slice())) } else { 0 };
    out.array(2);
    out.bulk(itoa::Buffer::new().format(next).as_bytes());
    out.array(entries);
    out.raw(met.as_slice());
    Ok(())
}

/// Replies that there is nothing, or nothing more, to go through.
pub fn reply_end(out: &mut Reply) {
    out.array(2);
    out.bulk(b"0");
    out.array(0);
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::handler::OwnedArgs;

    fn parse(words: &[&str], kind: Kind) -> Result<(Option<Vec<u8>>, usize, bool)> {
        let owned: OwnedArgs = words.iter().map(|word| word.as_bytes()).collect();
        let options = Options::parse(owned.as_args().cursor(0), Some(kind))?;
        Ok((options.pattern.map(<[u8]>::to_vec), options.count, options.bare))
    }

    #[test]
    fn options_as_redis_reads_them() {
        assert_eq!(parse(&[], Kind::Set), Ok((None, COUNT, false)));
        assert_eq!(parse(&["count", "5", "MATCH", "a*"], Kind::Set), Ok((Some(b"a*".to_vec()), 5, false)));
        assert_eq!(parse(&["match", "*", "novalues"], Kind::Hash), Ok((None, COUNT, true)));
        assert!(parse(&["NOSCORES"], Kind::Zset).unwrap().2);
        for (words, kind) in [(&["NOVALUES"][..], Kind::Set), (&["NOSCORES"], Kind::Hash)] {
            assert!(parse(words, kind).unwrap_err().text().contains("can only be used in"));
        }
        for words in [&["COUNT"][..], &["MATCH"], &["COUNT", "0"], &["COUNT", "-1"], &["TYPE", "set"]] {
            assert_eq!(parse(words, Kind::Set), Err(Error::Syntax), "{words:?}");
        }
        assert_eq!(parse(&["COUNT", "x"], Kind::Set), Err(Error::NotInteger));
    }

    #[test]
    fn cursors_as_redis_reads_them() {
        for (text, cursor) in [
            ("0", 0),
            ("17", 17),
            (" +007", 7),
            ("18446744073709551615", u64::MAX),
            ("-0", 0),
            ("-05", u64::MAX - 4),
            ("5\0x", 5),
        ] {
            assert_eq!(parse_cursor(text.as_bytes()), Ok(cursor), "{text:?}");
        }
        for text in ["", "\0", "-", "- 1", "-1", "x", "1x", "18446744073709551616"] {
            assert_eq!(parse_cursor(text.as_bytes()), Err(INVALID_CURSOR), "{text:?}");
        }
    }

    #[test]
    fn a_pattern_bounds_what_is_looked_at() {
        let bounds = |pattern: &'static [u8]| Options::matching(pattern).bounds(element::Group::SetMember);
        assert_eq!(bounds(b"us*"), (b"\x02us".to_vec(), b"\x02ut".to_vec()));
        assert_eq!(bounds(b"?s*"), (b"\x02".to_vec(), b"\x03".to_vec()));
        assert_eq!(bounds(b"\xff*"), (b"\x02\xff".to_vec(), b"\x03".to_vec()));
        let all = Options::matching(b"*").bounds(element::Group::HashField);
        assert_eq!(all, (b"\x01".to_vec(), b"\x02".to_vec()));
    }
}
