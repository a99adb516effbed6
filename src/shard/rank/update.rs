//! What a flight changes of an index: level by level from below, the changes of one level being the children of the next.
//!
//! | after its changes a block | is |
//! |---|---|
//! | has more than twice what a new one has | cut into even ones |
//! | has nothing | removed, unless it is the first |
//! | has less than a quarter, and fits into the one in front of it | joined to that |
//! | has lost its first child | moved to the next, so that it begins where a child begins |
//!
//! Children are elements at level 0, whose number the counter tells; above they are blocks, which are read where their
//! number changed. At the top, levels are added until one has few enough blocks, and removed while it has but one.

use super::build::build_with;
use super::merge::{Change, Child, Edit, Merged, between, cut};
use super::record::{Body, Record, Records, Root, count_value, damaged};
use super::{Out, SHAPE, Shape};
use crate::codec::element::Group;
use crate::store::{Partition, Result, StoreError};

/// Counters read one after the other before a search from above is cheaper.
const NEAR: usize = 16;

/// Gives `out` the counter records that follow from `changes`, for the ingestion that brings those; keys ascend. True if
/// the body has an index then.
///
/// `changes`: elements of `group`, tag included, strictly ascending; +1 if fjall will newly hold it, -1 if no longer.
/// `generation`: number of the flight. `size_after`: elements that the group then has; a body without an index gets one
/// if they are more than [`super::SMALL`], once all its elements have been read. Memory goes with the changes.
///
/// An index that contradicts itself or the changes is counted anew.
///
/// # Errors
/// What the store says. `out` may have got records by then: the flight must not be ingested.
pub fn update(
    partition: &Partition,
    prefix: &[u8],
    group: Group,
    generation: u64,
    size_after: u64,
    changes: &[(&[u8], i8)],
    out: &mut Out<'_>,
) -> Result<bool> {
    update_with(SHAPE, Body { partition, prefix, group }, generation, size_after, changes, out)
}

pub(super) fn update_with(
    shape: Shape,
    body: Body<'_>,
    generation: u64,
    size_after: u64,
    changes: &[(&[u8], i8)],
    out: &mut Out<'_>,
) -> Result<bool> {
    debug_assert!(changes.iter().all(|(element, _)| element.first() == Some(&body.group.tag())));
    debug_assert!(changes.is_sorted_by(|a, b| a.0 < b.0));
    let planned = match body.root() {
        Ok(None) if size_after <= shape.small => return Ok(false),
        Ok(Some(_)) if changes.is_empty() => return Ok(true),
        Ok(Some(root)) => Update { shape, body }.plan(root, generation, changes).map(Some),
        Ok(None) => Ok(None),
        Err(error) => Err(error),
    };
    match planned {
        Ok(Some(plan)) => plan.write(body, out),
        Ok(None) => _ = build_with(shape, body, generation, changes, out)?,
        Err(StoreError::Codec(error)) => {
            tracing::error!(%error, prefix = ?body.prefix, "index of counters is damaged, counting anew");
            _ = build_with(shape, body, generation, changes, out)?;
        }
        Err(error) => return Err(error),
    }
    Ok(true)
}

/// What becomes of an index.
#[derive(Debug)]
pub(super) struct Plan {
    /// The counters that change, by level.
    levels: Vec<Vec<Edit>>,
    root: Root,
}

impl Plan {
    fn write(&self, body: Body<'_>, out: &mut Out<'_>) {
        for (level, edits) in (0..).zip(&self.levels) {
            for edit in edits.iter().filter(|edit| edit.old != edit.new) {
                out(&body.key(level, &edit.start), edit.new.map(count_value).as_deref());
            }
        }
        out(&body.root_key(), Some(&self.root.encode()));
    }
}

pub(super) struct Update<'a> {
    pub(super) shape: Shape,
    pub(super) body: Body<'a>,
}

impl Update<'_> {
    pub(super) fn plan(&self, root: Root, generation: u64, changes: &[(&[u8], i8)]) -> Result<Plan> {
        let mut levels = vec![self.level(0, changes)?];
        for level in 1..root.levels {
            let edits = self.level(level, &levels[usize::from(level) - 1])?;
            levels.push(edits);
        }
        let height = self.top(&mut levels)?;
        let total = changed(root.total, changes)?;
        let revision = root.revision.wrapping_add(1);
        Ok(Plan { levels, root: Root { generation, revision, levels: height, total } })
    }

    /// What becomes of the counters of a level when `changes` happen to their children.
    fn level<C: Change>(&self, level: u8, changes: &[C]) -> Result<Vec<Edit>> {
        let mut edits = Vec::new();
        let mut cursor = Nodes { body: self.body, level, behind: None, at: None, next: None };
        let mut rest = changes;
        while let Some(change) = rest.first() {
            let node = cursor.find(change.start())?;
            let mine = between(rest, b"", node.end.as_deref());
            rest = &rest[mine.len()..];
            self.node(level, &node, mine, changes, &mut edits)?;
        }
        edits.retain(|edit| edit.old != edit.new);
        Ok(edits)
    }

    /// What becomes of one block, of whose children `mine` change.
    fn node<C: Change>(&self, level: u8, node: &Node, mine: &[C], changes: &[C], edits: &mut Vec<Edit>) -> Result {
        let Node { start, end, count } = node;
        let after = changed(*count, mine)?;
        let most = self.shape.most(level);
        let same_children = mine.iter().all(|change| change.before().is_some() == change.after().is_some());
        let roomy = |children: u64| children <= 2 * most && (children >= most / 4 && children > 0 || start.is_empty());
        if level == 0 && roomy(after) || level > 0 && same_children {
            edits.push(Edit { start: start.clone(), old: Some(*count), new: Some(after) });
            return Ok(());
        }
        let children = || self.children(level, start, end.as_deref(), changes);
        let mut number = after;
        let mut first = start.clone();
        if level > 0 {
            number = 0;
            for child in children()? {
                let child = child?;
                if number == 0 {
                    first = child.start().to_vec();
                }
                number += 1;
            }
        }
        if !roomy(number) && number <= 2 * most && self.join(level, node, number, after, changes, edits)? {
            return Ok(());
        }
        let mut runs = if number > 2 * most { cut(number, most, children()?)? } else { vec![(Vec::new(), after)] };
        runs[0].0 = first;
        if runs.iter().map(|(_, count)| count).sum::<u64>() != after {
            return Err(damaged("a counter does not count what its children do"));
        }
        if runs[0].0 != *start {
            edits.push(Edit { start: start.clone(), old: Some(*count), new: None });
        }
        edits.extend(runs.into_iter().map(|(at, new)| {
            let old = (at == *start).then_some(*count);
            Edit { start: at, old, new: Some(new) }
        }));
        Ok(())
    }

    /// The children of a level's blocks from `from` on, in front of `below`, as they are after `changes`.
    fn children<'c, C: Change>(
        &self,
        level: u8,
        from: &[u8],
        below: Option<&[u8]>,
        changes: &'c [C],
    ) -> Result<Merged<'c, C>> {
        let stored = match level {
            0 => self.body.elements(from, below)?,
            _ => self.body.counters(level - 1, from, below)?,
        };
        Merged::new(stored, between(changes, from, below))
    }

    /// Removes a block that is not the first and has few children or none, which count `after`; false if the block in
    /// front of it has no room for them.
    fn join<C: Change>(
        &self,
        level: u8,
        node: &Node,
        number: u64,
        after: u64,
        changes: &[C],
        edits: &mut Vec<Edit>,
    ) -> Result<bool> {
        let gone = Edit { start: node.start.clone(), old: Some(node.count), new: None };
        if number == 0 {
            if after != 0 {
                return Err(damaged("a counter does not count what its children do"));
            }
            edits.push(gone);
            return Ok(true);
        }
        let most = self.shape.most(level);
        let (at, count) = self.in_front(level, &node.start, edits)?;
        let room = most.saturating_sub(number);
        let taken = match level {
            0 => count,
            _ => {
                let children = self.children(level, &edits[at].start, Some(&node.start), changes)?;
                children.take(room as usize + 1).try_fold(0, |n, child| child.map(|_| n + 1))?
            }
        };
        if taken > room {
            return Ok(false);
        }
        edits[at].new = Some(count.checked_add(after).ok_or(damaged("a sum of counters overflows"))?);
        edits.push(gone);
        Ok(true)
    }

    /// Where among `edits`, which all begin in front of `start`, the last block stands that is left there, and what it
    /// counts. One that does not change yet is put there.
    fn in_front(&self, level: u8, start: &[u8], edits: &mut Vec<Edit>) -> Result<(usize, u64)> {
        let mut stored = self.body.counters(level, b"", Some(start))?;
        let mut record = stored.next_back().transpose()?;
        let mut at = edits.len();
        loop {
            let edit = at.checked_sub(1).map(|index| &edits[index]);
            match (edit, record.take()) {
                (None, None) => return Err(damaged("a level has no beginning")),
                (Some(edit), found) if found.as_ref().is_none_or(|found| found.start() <= &edit.start[..]) => {
                    at -= 1;
                    if let Some(count) = edit.new {
                        return Ok((at, count));
                    }
                    record = match found {
                        Some(found) if found.start() == edit.start => stored.next_back().transpose()?,
                        found => found,
                    };
                }
                (_, Some(found)) => {
                    let count = Some(found.count);
                    edits.insert(at, Edit { start: found.start().to_vec(), old: count, new: count });
                    return Ok((at, found.count));
                }
                (Some(_), None) => return Err(damaged("a level has no beginning")),
            }
        }
    }

    /// Adds and removes levels; how many there are then.
    fn top(&self, levels: &mut Vec<Vec<Edit>>) -> Result<u8> {
        let mut height = levels.len() as u8;
        let structural = |edits: &[Edit]| edits.iter().any(|edit| edit.old.is_some() != edit.new.is_some());
        if !structural(&levels[levels.len() - 1]) {
            return Ok(height);
        }
        loop {
            let edits = &levels[usize::from(height) - 1];
            let blocks = self.children(height, b"", None, edits)?.collect::<Result<Vec<Child<'_>>>>()?;
            let number = blocks.len() as u64;
            if number > self.shape.fan {
                let runs = cut(number, self.shape.fan, blocks.into_iter().map(Ok))?;
                levels.push(runs.into_iter().map(|(start, new)| Edit { start, old: None, new: Some(new) }).collect());
                height += 1;
                continue;
            }
            let [only] = &blocks[..] else { return Ok(height) };
            if height == 1 {
                return Ok(height);
            }
            let count = only.count();
            drop(blocks);
            let edits = &mut levels[usize::from(height) - 1];
            match edits.first_mut().filter(|edit| edit.start.is_empty()) {
                Some(edit) => edit.new = None,
                None => edits.insert(0, Edit { start: Vec::new(), old: Some(count), new: None }),
            }
            height -= 1;
        }
    }
}

/// What a block counts after `changes` of its children.
fn changed<C: Change>(count: u64, changes: &[C]) -> Result<u64> {
    let (mut come, mut gone) = (count, 0u64);
    for change in changes {
        let (old, new) = (change.before().unwrap_or(0), change.after().unwrap_or(0));
        come = come.checked_add(new).ok_or(damaged("a sum of counters overflows"))?;
        gone = gone.checked_add(old).ok_or(damaged("a sum of counters overflows"))?;
    }
    come.checked_sub(gone).ok_or(damaged("a counter counts less than goes"))
}

/// A block as it is in fjall.
struct Node {
    start: Vec<u8>,
    end: Option<Vec<u8>>,
    count: u64,
}

/// Finds the blocks of a level that hold ascending children.
struct Nodes<'a> {
    body: Body<'a>,
    level: u8,
    /// The records behind `next`.
    behind: Option<Records>,
    at: Option<Record>,
    next: Option<Record>,
}

impl Nodes<'_> {
    /// The block that holds `child`, which does not sort in front of the last one asked for.
    fn find(&mut self, child: &[u8]) -> Result<Node> {
        let mut steps = 0;
        while self.at.is_none() || self.next.as_ref().is_some_and(|next| next.start() <= child) {
            match &mut self.behind {
                Some(behind) if self.at.is_some() && steps < NEAR => {
                    self.at = std::mem::replace(&mut self.next, behind.next().transpose()?);
                    steps += 1;
                }
                _ => self.search(child)?,
            }
        }
        let at = self.at.as_ref().ok_or(damaged("a level has no beginning"))?;
        let end = self.next.as_ref().map(|next| next.start().to_vec());
        Ok(Node { start: at.start().to_vec(), end, count: at.count })
    }

    fn search(&mut self, child: &[u8]) -> Result {
        let behind_child = crate::codec::key::successor(child);
        let found = self.body.counters(self.level, b"", Some(&behind_child))?.next_back().transpose()?;
        self.at = Some(found.ok_or(damaged("a level has no beginning"))?);
        let mut behind = self.body.counters(self.level, &behind_child, None)?;
        self.next = behind.next().transpose()?;
        self.behind = Some(behind);
        Ok(())
    }
}
