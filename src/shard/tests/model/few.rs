//! A look at the first elements of a range, as a command takes it that may not wait for the disk.

use std::ops::Bound;

use crate::Error;
use crate::codec::NsId;
use crate::shard::memory::object::Kind;
use crate::shard::tests::world::Value;
use crate::shard::txn::Txn;
use crate::shard::txn::elements::whole_group;

/// Some elements from anywhere on, in either direction; where, how many and which follow from `n`.
pub(super) fn look_at_few(txn: &mut Txn<'_, '_>, ns: NsId, key: &[u8], known: &Value, n: usize) -> Result<(), Error> {
    let Some(at) = txn.find(ns, key)?.filter(|_| known.kind != Kind::String) else { return Ok(()) };
    let (lower, upper) = whole_group(known.kind.counted_group().unwrap());
    let (reverse, most) = (n % 2 == 1, 1 + n % 13);
    let from = known.elements.keys().nth(n % (known.elements.len() + 1)).cloned();
    let from = from.unwrap_or_else(|| if reverse { upper.to_vec() } else { lower.to_vec() });
    let bounds = match reverse {
        false => (Bound::Included(&from[..]), Bound::Excluded(&upper[..])),
        true => (Bound::Included(&lower[..]), Bound::Excluded(&from[..])),
    };
    let few = txn.few_elements(at, bounds, reverse, most as u64)?.take(most);
    let few =
        few.map(|element| element.map(|(key, value)| (key.to_vec(), value.to_vec()))).collect::<Result<Vec<_>, _>>()?;
    let mut range = known.elements.range::<[u8], _>(bounds);
    let next = std::iter::from_fn(|| if reverse { range.next_back() } else { range.next() });
    let expected: Vec<_> = next.take(most).map(|(key, value)| (key.clone(), value.clone())).collect();
    assert!(few == expected, "{} of {most} elements, reverse {reverse}", few.len());
    Ok(())
}
