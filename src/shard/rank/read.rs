//! Reading: from an element to how many stand in front of it, and from an offset to the block that holds it.

use super::record::{Body, Record, Records, Root, damaged};
use crate::codec::element::Group;
use crate::store::{Partition, Result};

/// An index as it was when it was opened.
///
/// A flight may land between two reads. What one call answers is consistent in itself; whether it is of the index that
/// was opened, [`Counted::is_current`] tells. Who also reads elements, or brings numbers that depend on the generation,
/// asks that last, and begins again at a no.
pub struct Counted<'a> {
    body: Body<'a>,
    root: Root,
}

/// A run of consecutive elements in fjall.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Where it begins: an element with its tag, which need not exist any more; of the first block the tag alone.
    pub start: Vec<u8>,
    /// Where the next begins, or `None` for the last, which goes to the end of the group.
    pub end: Option<Vec<u8>>,
    /// Elements of fjall in front of `start`.
    pub before: u64,
    /// Elements of fjall in the block.
    pub count: u64,
}

/// A block of some level, on the way down.
struct Step {
    start: Vec<u8>,
    end: Option<Vec<u8>>,
    before: u64,
    count: u64,
}

impl<'a> Counted<'a> {
    /// Opens the index of a body, whose elements' keys begin with `prefix`; `None` if it has none.
    ///
    /// # Errors
    /// What the store says; a damaged root.
    pub fn open(partition: &'a Partition, prefix: &'a [u8], group: Group) -> Result<Option<Counted<'a>>> {
        let body = Body { partition, prefix, group };
        Ok(body.root()?.map(|root| Counted { body, root }))
    }

    /// Number of the flight that wrote the index.
    pub const fn generation(&self) -> u64 {
        self.root.generation
    }

    /// Elements of the group in fjall.
    pub const fn total(&self) -> u64 {
        self.root.total
    }

    /// Whether the index is still the one that was opened.
    pub fn is_current(&self) -> Result<bool> {
        Ok(self.body.root()? == Some(self.root))
    }

    /// The block that holds `element`, which has its tag, or would hold it. What sorts behind the group stands in the
    /// last block, what sorts in front of it in the first.
    pub fn locate(&self, element: &[u8]) -> Result<Block> {
        let tag = self.body.group.tag();
        let target = match element.split_first() {
            Some((first, rest)) if *first == tag => Some(rest),
            Some((first, _)) if *first > tag => None,
            _ => Some(b"".as_slice()),
        };
        self.consistently(|root| self.descend(root, |records, step| holder(records, step, target)))
    }

    /// The block that holds the element number `n`, from 0, of a view that has `delta(start)` more elements in front of
    /// `start` than fjall; `None` if the view ends before it. `start` has its tag, and is once the tag of the next
    /// group, for all of this one. `delta` is asked for a few starts a level.
    pub fn select(&self, n: u64, delta: &mut dyn FnMut(&[u8]) -> i64) -> Result<Option<Block>> {
        let tag = self.body.group.tag();
        self.consistently(|root| {
            if merged(root.total, delta(&[tag + 1])) <= n {
                return Ok(None);
            }
            let mut starts_behind = |record: &Record, before: u64| {
                let start = [&[tag], record.start()].concat();
                merged(before, delta(&start)) > n
            };
            self.descend(root, |records, step| offset_holder(records, step, &mut starts_behind)).map(Some)
        })
    }

    /// Reads until the index does not change under it.
    fn consistently<R>(&self, mut read: impl FnMut(Root) -> Result<R>) -> Result<R> {
        let mut root = self.root;
        loop {
            let answer = read(root);
            let now = self.body.root()?.ok_or(damaged("the root is gone"))?;
            // Reading two states at once can fail as well as be wrong.
            if now == root {
                return answer;
            }
            root = now;
        }
    }

    fn descend(&self, root: Root, mut step: impl FnMut(Records, Step) -> Result<Step>) -> Result<Block> {
        let mut at = Step { start: Vec::new(), end: None, before: 0, count: root.total };
        for level in (0..root.levels).rev() {
            let records = self.body.counters(level, &at.start, at.end.as_deref())?;
            at = step(records, at)?;
        }
        let tag = self.body.group.tag();
        let tagged = |mut bytes: Vec<u8>| {
            bytes.insert(0, tag);
            bytes
        };
        Ok(Block { start: tagged(at.start), end: at.end.map(tagged), before: at.before, count: at.count })
    }
}

/// How many a view has where fjall has `count`.
const fn merged(count: u64, delta: i64) -> u64 {
    count.saturating_add_signed(delta)
}

/// The first record of a block's children, which begins where the block does.
fn first(records: &mut Records, at: &Step) -> Result<Record> {
    let record = records.next().ok_or(damaged("a counter counts no blocks"))??;
    if record.start() == at.start { Ok(record) } else { Err(damaged("no block begins where a counter begins")) }
}

/// Elements in front of the block behind `record`.
fn behind(before: u64, record: &Record) -> Result<u64> {
    before.checked_add(record.count).ok_or(damaged("a sum of counters overflows"))
}

/// The last record that begins at `target` or in front of it.
fn holder(mut records: Records, at: Step, target: Option<&[u8]>) -> Result<Step> {
    let mut found = first(&mut records, &at)?;
    let mut before = at.before;
    for record in records {
        let record = record?;
        if target.is_some_and(|target| record.start() > target) {
            let end = Some(record.start().to_vec());
            return Ok(Step { start: found.start().to_vec(), end, before, count: found.count });
        }
        before = behind(before, &found)?;
        found = record;
    }
    Ok(Step { start: found.start().to_vec(), end: at.end, before, count: found.count })
}

/// The last record that `starts_behind` does not call behind the offset; the first is known not to be.
fn offset_holder(mut records: Records, at: Step, starts_behind: &mut impl FnMut(&Record, u64) -> bool) -> Result<Step> {
    let mut all = vec![(first(&mut records, &at)?, at.before)];
    for record in records {
        let before = all.last().map_or(Ok(at.before), |(last, before)| behind(*before, last))?;
        all.push((record?, before));
    }
    let next = 1 + all[1..].partition_point(|(record, before)| !starts_behind(record, *before));
    let end = all.get(next).map(|(record, _)| record.start().to_vec()).or(at.end);
    let (found, before) = &all[next - 1];
    Ok(Step { start: found.start().to_vec(), end, before: *before, count: found.count })
}
