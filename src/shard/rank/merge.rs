//! What is in fjall, with what a flight changes of it.

use super::record::{Record, Records, damaged};
use crate::store::Result;

/// What a flight does to an element, or to a counter.
pub(super) trait Change {
    /// The element without its tag, or where the counter's block begins.
    fn start(&self) -> &[u8];
    /// What it counts before the flight, if it is there.
    fn before(&self) -> Option<u64>;
    /// What it counts afterwards.
    fn after(&self) -> Option<u64>;
}

/// An element that comes (+1) or goes (-1), with its tag.
impl Change for (&[u8], i8) {
    fn start(&self) -> &[u8] {
        self.0.get(1..).unwrap_or_default()
    }

    fn before(&self) -> Option<u64> {
        (self.1 < 0).then_some(1)
    }

    fn after(&self) -> Option<u64> {
        (self.1 > 0).then_some(1)
    }
}

/// A counter that changes.
#[derive(Debug)]
pub(super) struct Edit {
    pub(super) start: Vec<u8>,
    pub(super) old: Option<u64>,
    pub(super) new: Option<u64>,
}

impl Change for Edit {
    fn start(&self) -> &[u8] {
        &self.start
    }

    fn before(&self) -> Option<u64> {
        self.old
    }

    fn after(&self) -> Option<u64> {
        self.new
    }
}

/// Those of ascending changes that begin at `from` or behind it, in front of `below`.
pub(super) fn between<'a, C: Change>(changes: &'a [C], from: &[u8], below: Option<&[u8]>) -> &'a [C] {
    let behind = &changes[changes.partition_point(|change| change.start() < from)..];
    &behind[..below.map_or(behind.len(), |below| behind.partition_point(|change| change.start() < below))]
}

/// An element or counter as it is after the flight.
pub(super) enum Child<'a> {
    Stored(Record),
    Changed(&'a [u8], u64),
}

impl Child<'_> {
    pub(super) fn start(&self) -> &[u8] {
        match self {
            Child::Stored(record) => record.start(),
            Child::Changed(start, _) => start,
        }
    }

    pub(super) const fn count(&self) -> u64 {
        match self {
            Child::Stored(record) => record.count,
            Child::Changed(_, count) => *count,
        }
    }
}

/// The records of a range as they are after the flight, in order.
pub(super) struct Merged<'a, C> {
    stored: Records,
    next: Option<Record>,
    changes: &'a [C],
}

impl<'a, C: Change> Merged<'a, C> {
    /// `changes` lie in the range of `stored`.
    pub(super) fn new(mut stored: Records, changes: &'a [C]) -> Result<Self> {
        let next = stored.next().transpose()?;
        Ok(Merged { stored, next, changes })
    }

    fn advance(&mut self) -> Result<Option<Record>> {
        let next = self.stored.next().transpose()?;
        Ok(std::mem::replace(&mut self.next, next))
    }

    fn step(&mut self) -> Result<Option<Child<'a>>> {
        while let Some((change, rest)) = self.changes.split_first() {
            let start = change.start();
            if self.next.as_ref().is_some_and(|next| next.start() < start) {
                break;
            }
            if self.next.as_ref().is_some_and(|next| next.start() == start) {
                self.advance()?;
            }
            self.changes = rest;
            if let Some(count) = change.after() {
                return Ok(Some(Child::Changed(start, count)));
            }
        }
        Ok(self.advance()?.map(Child::Stored))
    }
}

impl<'a, C: Change> Iterator for Merged<'a, C> {
    type Item = Result<Child<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step().transpose()
    }
}

/// Where a block begins, and what it counts.
pub(super) type Run = (Vec<u8>, u64);

/// Cuts `n` children into even runs of about `most`.
///
/// # Errors
/// Fails if the children are not `n`.
pub(super) fn cut<'a>(n: u64, most: u64, children: impl Iterator<Item = Result<Child<'a>>>) -> Result<Vec<Run>> {
    let runs = n.div_ceil(most);
    let mut made: Vec<Run> = Vec::new();
    let mut met = 0;
    for child in children {
        let child = child?;
        if u128::from(met) == (made.len() as u128 * u128::from(n)) / u128::from(runs.max(1)) {
            made.push((child.start().to_vec(), 0));
        }
        if let Some((_, count)) = made.last_mut() {
            *count = count.checked_add(child.count()).ok_or(damaged("a sum of counters overflows"))?;
        }
        met += 1;
    }
    if met == n { Ok(made) } else { Err(damaged("a block counts another number than it holds")) }
}
