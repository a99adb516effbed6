//! Sparse registers: runs of equal ones.
//!
//! | run | bytes | registers | rank |
//! |---|---|---|---|
//! | ZERO | `00llllll` | l + 1, up to 64 | 0 |
//! | XZERO | `01llllll llllllll` | l + 1, up to 16384, high bits first | 0 |
//! | VAL | `1rrrrrll` | l + 1, up to 4 | r + 1, up to 32 |
//!
//! Runs cover the registers from 0 to 16383 without gaps. Which of several ways to write the same registers is chosen
//! follows Redis step by step: a run is split around the register that changes, and then the VAL runs from the one
//! before it on are joined with their equals, five at most.

use super::format::{CORRUPT, Encoding, HEADER, REGISTERS, header};
use crate::handler::Error;

/// Highest rank that a run can say.
pub const RANK_MAX: u8 = 32;

const ZERO_LEN_MAX: usize = 64;
const VAL_LEN_MAX: usize = 4;
/// Runs looked at for joining after a change.
const JOIN_RUNS: usize = 5;

/// Equal registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Their value.
    pub rank: u8,
    /// How many.
    pub len: usize,
    /// Bytes that say so.
    pub bytes: usize,
}

/// The run that begins at a place; `None` at the end, and if the run is cut off there.
#[inline]
fn run_at(value: &[u8], at: usize) -> Option<Run> {
    let first = *value.get(at)?;
    Some(match first >> 6 {
        0 => Run { rank: 0, len: usize::from(first & 63) + 1, bytes: 1 },
        1 => {
            let low = *value.get(at + 1)?;
            Run { rank: 0, len: usize::from(first & 63) << 8 | usize::from(low), bytes: 2 }.longer()
        }
        _ => Run { rank: (first >> 2 & 31) + 1, len: usize::from(first & 3) + 1, bytes: 1 },
    })
}

impl Run {
    /// By one register: a length is stored less one.
    const fn longer(self) -> Self {
        Run { len: self.len + 1, ..self }
    }
}

/// The byte of a VAL run.
const fn val(rank: u8, len: usize) -> u8 {
    0x80 | (rank - 1) << 2 | (len - 1) as u8
}

/// A few runs to be put in the place of one; never more than five bytes.
#[derive(Default)]
struct Runs {
    bytes: [u8; 5],
    len: usize,
}

impl Runs {
    fn push(&mut self, rank: u8, len: usize) {
        let mut byte = |byte: u8| {
            self.bytes[self.len] = byte;
            self.len += 1;
        };
        match (rank, len) {
            (_, 0) => {}
            (0, 1..=ZERO_LEN_MAX) => byte((len - 1) as u8),
            (0, _) => {
                byte(0x40 | ((len - 1) >> 8) as u8);
                byte((len - 1) as u8);
            }
            _ => byte(val(rank, len)),
        }
    }
}

/// The runs of a whole sparse HyperLogLog.
#[derive(Debug, Clone)]
pub struct Iter<'a> {
    value: &'a [u8],
    at: usize,
    covered: usize,
}

/// Walks the runs; ends with an error unless they cover all registers, and not more.
pub fn runs(value: &[u8]) -> Iter<'_> {
    Iter { value, at: HEADER, covered: 0 }
}

impl Iterator for Iter<'_> {
    type Item = Result<Run, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.value.len() {
            let complete = self.covered == REGISTERS;
            // Said once.
            self.covered = REGISTERS;
            return (!complete).then_some(Err(CORRUPT));
        }
        match run_at(self.value, self.at) {
            Some(run) if self.covered + run.len <= REGISTERS => {
                self.at += run.bytes;
                self.covered += run.len;
                Some(Ok(run))
            }
            _ => {
                (self.at, self.covered) = (self.value.len(), REGISTERS);
                Some(Err(CORRUPT))
            }
        }
    }
}

/// The runs of a sparse HyperLogLog, whatever they cover. One that is cut off at the end is continued by a zero.
pub fn all_runs(value: &[u8]) -> impl Iterator<Item = Run> + '_ {
    let mut at = HEADER;
    std::iter::from_fn(move || {
        let first = *value.get(at)?;
        let run = run_at(value, at).or_else(|| run_at(&[first, 0], 0))?;
        at += run.bytes;
        Some(run)
    })
}

/// A sparse HyperLogLog without elements.
pub fn empty() -> Vec<u8> {
    let mut runs = Runs::default();
    runs.push(0, REGISTERS);
    [&header(Encoding::Sparse)[..], &runs.bytes[..runs.len]].concat()
}

/// What became of a register that was to be raised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Raised {
    /// It holds that rank or a higher one already.
    No,
    /// It holds the rank now.
    Yes,
    /// Sparse has no room for it: nothing was changed.
    TooMuch,
}

/// From where to look for a register: a run, and the first register it covers. Valid while registers are raised in
/// ascending order; looking from the default is always right.
#[derive(Debug, Clone, Copy)]
pub struct Hint {
    at: usize,
    first: usize,
}

impl Default for Hint {
    fn default() -> Self {
        Hint { at: HEADER, first: 0 }
    }
}

/// The run that covers a register, and the one before it.
struct Place {
    run: Run,
    at: usize,
    first: usize,
    before: Option<usize>,
    /// Where a search for a higher register may begin.
    hint: Hint,
}

fn find(value: &[u8], register: usize, from: Hint) -> Option<Place> {
    let Hint { mut at, mut first } = from;
    // Two runs back: joining may move the one before the register that comes next into the one before this.
    let (mut hint, mut last) = (from, from);
    let mut before = None;
    loop {
        let run = run_at(value, at)?;
        if register < first + run.len {
            return (first + run.len <= REGISTERS).then_some(Place { run, at, first, before, hint });
        }
        hint = last;
        last = Hint { at, first };
        before = Some(at);
        at += run.bytes;
        first += run.len;
    }
}

/// Raises a register of a whole sparse HyperLogLog to a rank, as long as its string stays within `max_bytes` where it
/// grows. The count in the header is left as it is.
///
/// # Errors
/// [`CORRUPT`] if no run covers the register.
pub fn raise(
    value: &mut Vec<u8>,
    register: usize,
    rank: u8,
    max_bytes: usize,
    hint: &mut Hint,
) -> Result<Raised, Error> {
    debug_assert!(register < REGISTERS && rank > 0);
    if rank > RANK_MAX {
        return Ok(Raised::TooMuch);
    }
    let Place { run, at, first, before, hint: next } = find(value, register, *hint).ok_or(CORRUPT)?;
    *hint = next;
    if run.rank >= rank {
        return Ok(Raised::No);
    }
    let mut runs = Runs::default();
    runs.push(run.rank, register - first);
    runs.push(rank, 1);
    runs.push(run.rank, first + run.len - 1 - register);
    if runs.len > run.bytes && value.len() + runs.len - run.bytes > max_bytes {
        return Ok(Raised::TooMuch);
    }
    value.splice(at..at + run.bytes, runs.bytes[..runs.len].iter().copied());
    join(value, before.unwrap_or(HEADER));
    Ok(Raised::Yes)
}

/// Joins neighbouring VAL runs of one rank where one run can say both.
fn join(value: &mut Vec<u8>, mut at: usize) {
    for _ in 0..JOIN_RUNS {
        let Some(run) = run_at(value, at) else { return };
        match run_at(value, at + run.bytes) {
            Some(next) if run.rank > 0 && next.rank == run.rank && run.len + next.len <= VAL_LEN_MAX => {
                value[at] = val(run.rank, run.len + next.len);
                value.remove(at + run.bytes);
            }
            _ => at += run.bytes,
        }
    }
}
