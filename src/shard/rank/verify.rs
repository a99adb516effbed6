//! Whether an index agrees with its elements: each level is read beside the one below.

use super::record::{Body, Record, damaged};
use crate::codec::element::Group;
use crate::store::{Partition, Result};

/// What is wrong with the index of a body, if anything is. A body without a root has none, and then no counter either.
///
/// # Errors
/// What the store says, and what of the index cannot be decoded.
pub fn verify(partition: &Partition, prefix: &[u8], group: Group) -> Result {
    let body = Body { partition, prefix, group };
    let Some(root) = body.root()? else {
        return match body.index()?.next().transpose()? {
            None => Ok(()),
            Some(_) => Err(damaged("there are counters and no root")),
        };
    };
    let mut total = verify_level(body.counters(0, b"", None)?, body.elements(b"", None)?, false)?;
    for level in 1..root.levels {
        total = verify_level(body.counters(level, b"", None)?, body.counters(level - 1, b"", None)?, true)?;
    }
    if total != root.total {
        return Err(damaged("the root counts other elements than there are"));
    }
    let mut above = body.index()?;
    // The root is the last record, behind the highest level.
    above.next_back().transpose()?;
    let highest = above.next_back().transpose()?.and_then(|(key, _)| key.get(prefix.len() + 1).copied());
    if highest != Some(root.levels - 1) {
        return Err(damaged("there are other levels than the root says"));
    }
    Ok(())
}

/// Holds the counters of a level against the children that they count; the sum of all. A block of blocks begins with one.
fn verify_level(
    counters: impl Iterator<Item = Result<Record>>,
    mut children: impl Iterator<Item = Result<Record>>,
    of_blocks: bool,
) -> Result<u64> {
    let mut counters = counters.peekable();
    let mut child = children.next().transpose()?;
    let (mut total, mut is_first) = (0u64, true);
    while let Some(counter) = counters.next().transpose()? {
        if std::mem::take(&mut is_first) && !counter.start().is_empty() {
            return Err(damaged("its first block does not begin at the beginning"));
        }
        if of_blocks && child.as_ref().is_none_or(|child| child.start() != counter.start()) {
            return Err(damaged("no block begins where a counter begins"));
        }
        let end = match counters.peek() {
            None => None,
            Some(Ok(next)) => Some(next.start().to_vec()),
            Some(Err(_)) => return Err(damaged("a counter cannot be read")),
        };
        let mut sum = 0u64;
        while let Some(inside) = child.take_if(|child| end.as_ref().is_none_or(|end| child.start() < &end[..])) {
            sum = sum.checked_add(inside.count).ok_or(damaged("a sum of counters overflows"))?;
            child = children.next().transpose()?;
        }
        if sum != counter.count {
            return Err(damaged("a counter counts other elements than there are"));
        }
        total = total.checked_add(sum).ok_or(damaged("a sum of counters overflows"))?;
    }
    if is_first { Err(damaged("there is a root and no counter")) } else { Ok(total) }
}
