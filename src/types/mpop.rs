//! What LMPOP and ZMPOP are asked.

use crate::error::{COUNT, Error, NUMKEYS, Result};
use crate::resp::args::Args;
use crate::util::num::parse_natural;

/// So many elements at most, from an end of the first of these collections that is there.
#[derive(Debug, Clone, Copy)]
pub struct MultiPop<'a, End> {
    /// The keys.
    pub keys: Args<'a>,
    /// The end.
    pub end: End,
    /// Elements at most.
    pub count: u64,
}

impl<'a, End> MultiPop<'a, End> {
    /// Reads `numkeys key… end [COUNT count]`; `parse_end` knows the words for the ends.
    ///
    /// # Errors
    /// As Redis.
    pub fn parse(args: Args<'a>, parse_end: impl FnOnce(&[u8]) -> Result<End>) -> Result<Self> {
        let positive = |text: &[u8]| parse_natural(text).filter(|&number| number > 0);
        let number = args.get(0).and_then(positive).ok_or(NUMKEYS)?;
        let number = usize::try_from(number).ok().filter(|&number| number < args.len()).ok_or(Error::Syntax)?;
        let mut options = args.cursor(1 + number);
        let end = parse_end(options.arg()?)?;
        let mut count = None;
        while !options.is_empty() {
            if count.is_some() || options.remaining() < 2 || !options.next_is(b"COUNT") {
                return Err(Error::Syntax);
            }
            count = Some(positive(options.arg()?).ok_or(COUNT)?);
        }
        Ok(MultiPop { keys: args.slice(1).take(number), end, count: count.unwrap_or(1) })
    }
}
