//! LCS: the longest common subsequence of two strings.
//!
//! The textbook table of lengths of all pairs of prefixes, walked back from its end. Which of several longest
//! subsequences comes out depends on the walk: on a tie it shortens the second string first, as Redis does.

use crate::handler::limits::{max_len, may_go_through};
use crate::handler::{Args, Command, Ctx, Error, Group, KeySpec, Reply, Result, flags, key};
use crate::meter;
use crate::shard::memory::object::Kind;
use crate::util::num::parse_i64;

#[derive(Default)]
struct Options {
    len: bool,
    idx: bool,
    with_match_len: bool,
    min_match_len: usize,
}

impl Options {
    fn read(args: Args<'_>) -> Result<Self> {
        let mut options = Options::default();
        let mut words = args.cursor(3);
        while !words.is_empty() {
            if words.next_is(b"IDX") {
                options.idx = true;
            } else if words.next_is(b"LEN") {
                options.len = true;
            } else if words.next_is(b"WITHMATCHLEN") {
                options.with_match_len = true;
            } else if words.next_is(b"MINMATCHLEN") {
                options.min_match_len = parse_i64(words.arg()?).ok_or(Error::NotInteger)?.max(0) as usize;
            } else {
                return Err(Error::Syntax);
            }
        }
        if options.idx && options.len {
            return Err(Error::err("ERR If you want both the length and indexes, please just use IDX."));
        }
        Ok(options)
    }
}

fn lcs(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let mut values = [Vec::new(), Vec::new()];
    // Both types are looked at before any option.
    for (value, key) in values.iter_mut().zip([&args[1], &args[2]]) {
        if let Some(found) = ctx.lookup(key)? {
            if ctx.object(found).kind != Kind::String {
                return Err(Error::err("ERR The specified keys must contain string values"));
            }
            *value = ctx.string_value(found)?.into_owned();
        }
    }
    let options = Options::read(args)?;
    let [a, b] = &values;
    let cells = (a.len() as u64 + 1).saturating_mul(b.len() as u64 + 1);
    if cells.saturating_mul(size_of::<u32>() as u64) > max_len(ctx) {
        return Err(Error::err("ERR Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len"));
    }
    may_go_through(cells as usize)?;
    let table = Lengths::new(a, b)?;
    if options.len {
        out.int(table.at(a.len(), b.len()).into());
        return Ok(());
    }
    let (subsequence, matches) = table.walk(a, b);
    if !options.idx {
        out.bulk(&subsequence);
        return Ok(());
    }
    out.map(2);
    out.bulk(b"matches");
    let long_enough = |m: &&Match| m.len() >= options.min_match_len;
    out.array(matches.iter().filter(long_enough).count());
    for m in matches.iter().filter(long_enough) {
        out.array(2 + usize::from(options.with_match_len));
        for (start, end) in [m.a, m.b] {
            out.array(2);
            out.int(start as i64);
            out.int(end as i64);
        }
        if options.with_match_len {
            out.int(m.len() as i64);
        }
    }
    out.bulk(b"len");
    out.int(subsequence.len() as i64);
    Ok(())
}

/// A run of equal bytes: first and last index in either string.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Match {
    a: (usize, usize),
    b: (usize, usize),
}

impl Match {
    fn len(&self) -> usize {
        self.a.1 - self.a.0 + 1
    }
}

/// Lengths of the longest common subsequences of all pairs of prefixes.
struct Lengths {
    cells: Vec<u32>,
    width: usize,
}

impl Lengths {
    fn new(a: &[u8], b: &[u8]) -> Result<Self> {
        let width = b.len() + 1;
        meter::hold((a.len() + 1) * width * size_of::<u32>())?;
        let mut cells = vec![0u32; (a.len() + 1) * width];
        for (i, &byte) in a.iter().enumerate() {
            meter::step_through(width)?;
            let (above, row) = cells[i * width..(i + 2) * width].split_at_mut(width);
            for (j, &other) in b.iter().enumerate() {
                row[j + 1] = if byte == other { above[j] + 1 } else { above[j + 1].max(row[j]) };
            }
        }
        Ok(Lengths { cells, width })
    }

    fn at(&self, i: usize, j: usize) -> u32 {
        self.cells[i * self.width + j]
    }

    /// The subsequence, and its runs from the last to the first.
    fn walk(&self, a: &[u8], b: &[u8]) -> (Vec<u8>, Vec<Match>) {
        let (mut i, mut j) = (a.len(), b.len());
        let (mut subsequence, mut matches) = (Vec::with_capacity(self.at(i, j) as usize), Vec::new());
        let mut run: Option<(usize, usize)> = None;
        while i > 0 && j > 0 {
            if a[i - 1] == b[j - 1] {
                run.get_or_insert((i - 1, j - 1));
                subsequence.push(a[i - 1]);
                (i, j) = (i - 1, j - 1);
                continue;
            }
            if let Some(end) = run.take() {
                matches.push(Match { a: (i, end.0), b: (j, end.1) });
            }
            if self.at(i - 1, j) > self.at(i, j - 1) { i -= 1 } else { j -= 1 }
        }
        if let Some(end) = run {
            matches.push(Match { a: (i, end.0), b: (j, end.1) });
        }
        subsequence.reverse();
        (subsequence, matches)
    }
}

/// The rows of this file.
pub const COMMANDS: &[Command] = &[Command::new("lcs", lcs, -3, flags::READONLY, Group::String)
    .keys(&[KeySpec::range(1, 1, 1, key::RO | key::ACCESS)])
    .help("7.0.0", "Returns the longest common subsequence of two strings.")
    .syntax(
        "key1 key2 [LEN] [IDX] [MINMATCHLEN min-match-len] [WITHMATCHLEN]",
        "O(N*M) where N and M are the lengths of the strings.",
    )];

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// The example of Redis's documentation.
    #[test]
    fn walks_back_from_the_end() {
        let (a, b) = (b"ohmytext", b"mynewtext");
        let (subsequence, matches) = Lengths::new(a, b).unwrap().walk(a, b);
        assert_eq!(subsequence, b"mytext");
        assert_eq!(matches, [Match { a: (4, 7), b: (5, 8) }, Match { a: (2, 3), b: (0, 1) }]);
        assert_eq!(Lengths::new(b"", b"abc").unwrap().walk(b"", b"abc"), (vec![], vec![]));
    }
}
