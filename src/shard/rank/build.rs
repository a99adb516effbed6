//! The index of a body that has none, or a damaged one: all its elements are read once, in order.

use super::merge::{Change, Child, Merged, Run, cut};
use super::record::{Body, Root, count_value};
use super::{Out, SHAPE, Shape};
use crate::codec::element::Group;
use crate::store::{Partition, Range, Result};

/// Gives `out` the records of an index over the elements of `group` that fjall has now, keys ascending. Counters of an
/// earlier index are overwritten or removed. Reads all the elements; memory: a block's start in 128 elements. How many there are.
pub fn build(partition: &Partition, prefix: &[u8], group: Group, generation: u64, out: &mut Out<'_>) -> Result<u64> {
    build_with::<(&[u8], i8)>(SHAPE, Body { partition, prefix, group }, generation, &[], out)
}

/// The same, over the elements as they are after `changes`.
pub(super) fn build_with<C: Change>(
    shape: Shape,
    body: Body<'_>,
    generation: u64,
    changes: &[C],
    out: &mut Out<'_>,
) -> Result<u64> {
    let mut writer = Writer::open(body, out)?;
    let elements = Merged::new(body.elements(b"", None)?, changes)?;
    let mut runs = write_blocks(shape.block, elements, &mut writer)?;
    let total = runs.iter().map(|(_, count)| count).sum();
    let mut levels = 1;
    while runs.len() as u64 > shape.fan {
        let children = runs.iter().map(|(start, count)| Ok(Child::Changed(start, *count)));
        let upper = cut(runs.len() as u64, shape.fan, children)?;
        for (start, count) in &upper {
            writer.put(&body.key(levels, start), &count_value(*count))?;
        }
        levels += 1;
        runs = upper;
    }
    // A root that cannot be read is about to be replaced: any revision does.
    let revision = body.root().ok().flatten().map_or(0, |root| root.revision).wrapping_add(1);
    writer.put(&body.root_key(), &Root { generation, revision, levels, total }.encode())?;
    writer.finish()?;
    Ok(total)
}

/// Writes level 0 as the elements come by.
fn write_blocks<'a>(
    most: u64,
    elements: impl Iterator<Item = Result<Child<'a>>>,
    writer: &mut Writer<'_>,
) -> Result<Vec<Run>> {
    let mut runs: Vec<Run> = Vec::new();
    let mut open = (Vec::new(), 0);
    for element in elements {
        if open.1 == most {
            let full = std::mem::replace(&mut open, (element?.start().to_vec(), 1));
            writer.counter(0, &full)?;
            runs.push(full);
        } else {
            element?;
            open.1 += 1;
        }
    }
    writer.counter(0, &open)?;
    runs.push(open);
    Ok(runs)
}

/// Writes ascending records, and removes what stands between them from before.
struct Writer<'a> {
    body: Body<'a>,
    stale: Range,
    next: Option<crate::store::UserKey>,
    out: &'a mut Out<'a>,
}

impl<'a> Writer<'a> {
    fn open(body: Body<'a>, out: &'a mut Out<'a>) -> Result<Self> {
        let mut writer = Writer { body, stale: body.index()?, next: None, out };
        writer.advance()?;
        Ok(writer)
    }

    fn advance(&mut self) -> Result {
        self.next = self.stale.next().transpose()?.map(|(key, _)| key);
        Ok(())
    }

    fn counter(&mut self, level: u8, (start, count): &Run) -> Result {
        self.put(&self.body.key(level, start), &count_value(*count))
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result {
        while let Some(stale) = self.next.take_if(|stale| **stale < *key) {
            (self.out)(&stale, None);
            self.advance()?;
        }
        if self.next.as_ref().is_some_and(|stale| **stale == *key) {
            self.advance()?;
        }
        (self.out)(key, Some(value));
        Ok(())
    }

    fn finish(mut self) -> Result {
        while let Some(stale) = self.next.take() {
            (self.out)(&stale, None);
            self.advance()?;
        }
        Ok(())
    }
}
