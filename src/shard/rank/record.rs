//! The records of an index, and of the elements that it counts.

use crate::codec::CodecError;
use crate::codec::cursor::{Cursor, push_varint};
use crate::codec::element::{self, Group};
use crate::codec::key::prefix_upper;
use crate::store::{Partition, Range, Result, StoreError, UserKey};

/// Stands where the level of a counter does.
const ROOT: u8 = 255;

/// More levels than there can be: each has at most half the counters of the one below.
const MAX_LEVELS: u64 = 64;

/// The index contradicts itself, its elements, or what a flight says of them.
pub(super) const fn damaged(why: &'static str) -> StoreError {
    StoreError::Codec(CodecError::Rank(why))
}

/// The root record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Root {
    pub(super) generation: u64,
    pub(super) revision: u64,
    pub(super) levels: u8,
    pub(super) total: u64,
}

impl Root {
    pub(super) fn encode(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(16);
        for number in [self.generation, self.revision, u64::from(self.levels), self.total] {
            push_varint(number, &mut out);
        }
        out
    }

    pub(super) fn decode(value: &[u8]) -> Result<Root, CodecError> {
        let mut cursor = Cursor::new(value);
        let (generation, revision, levels) = (cursor.varint()?, cursor.varint()?, cursor.varint()?);
        if !(1..=MAX_LEVELS).contains(&levels) {
            return Err(CodecError::Rank("impossible number of levels"));
        }
        let total = cursor.varint()?;
        cursor.finish()?;
        Ok(Root { generation, revision, levels: levels as u8, total })
    }
}

/// The value of a counter.
pub(super) fn count_value(count: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(10);
    push_varint(count, &mut out);
    out
}

fn decode_count(value: &[u8]) -> Result<u64, CodecError> {
    let mut cursor = Cursor::new(value);
    let count = cursor.varint()?;
    cursor.finish()?;
    Ok(count)
}

/// One version of a collection in fjall.
#[derive(Clone, Copy)]
pub(super) struct Body<'a> {
    pub(super) partition: &'a Partition,
    /// What the keys of all its elements begin with.
    pub(super) prefix: &'a [u8],
    /// The group that is counted.
    pub(super) group: Group,
}

impl Body<'_> {
    /// Key of a counter.
    pub(super) fn key(&self, level: u8, block: &[u8]) -> Vec<u8> {
        let mut key = Vec::with_capacity(self.prefix.len() + 2 + block.len());
        key.extend_from_slice(self.prefix);
        element::rank(level, block, &mut key);
        key
    }

    pub(super) fn root_key(&self) -> Vec<u8> {
        self.key(ROOT, b"")
    }

    pub(super) fn root(&self) -> Result<Option<Root>> {
        let value = self.partition.get_newest(&self.root_key())?;
        Ok(value.map(|value| Root::decode(&value)).transpose()?)
    }

    /// The counters of a level that begin at `from` or behind it, in front of `below` or up to the level's end.
    pub(super) fn counters(&self, level: u8, from: &[u8], below: Option<&[u8]>) -> Result<Records> {
        let upper = match below {
            Some(below) => self.key(level, below),
            None => prefix_upper(&self.key(level, b"")),
        };
        let range = self.partition.range(&self.key(level, from), &upper)?;
        Ok(Records { range, skip: self.prefix.len() + 2, counted: true })
    }

    /// The elements of the group, from and to as above; each counts one.
    pub(super) fn elements(&self, from: &[u8], below: Option<&[u8]>) -> Result<Records> {
        let head = [self.prefix, &[self.group.tag()]].concat();
        let upper = below.map_or_else(|| prefix_upper(&head), |below| [&head, below].concat());
        let range = self.partition.range(&[&head, from].concat(), &upper)?;
        Ok(Records { range, skip: head.len(), counted: false })
    }

    /// Every record of the index, the root last.
    pub(super) fn index(&self) -> Result<Range> {
        let head = [self.prefix, &[Group::Rank.tag()]].concat();
        self.partition.range(&head, &prefix_upper(&head))
    }
}

/// A counter, or an element.
pub(super) struct Record {
    key: UserKey,
    skip: usize,
    pub(super) count: u64,
}

impl Record {
    /// Where the block begins, or the element without its tag.
    pub(super) fn start(&self) -> &[u8] {
        self.key.get(self.skip..).unwrap_or_default()
    }
}

/// The records of a range, decoded.
pub(super) struct Records {
    range: Range,
    skip: usize,
    counted: bool,
}

impl Records {
    fn decode(&self, record: Result<(UserKey, crate::store::UserValue)>) -> Result<Record> {
        let (key, value) = record?;
        let count = if self.counted { decode_count(&value)? } else { 1 };
        Ok(Record { key, skip: self.skip, count })
    }
}

impl Iterator for Records {
    type Item = Result<Record>;

    fn next(&mut self) -> Option<Self::Item> {
        let record = self.range.next()?;
        Some(self.decode(record))
    }
}

impl DoubleEndedIterator for Records {
    fn next_back(&mut self) -> Option<Self::Item> {
        let record = self.range.next_back()?;
        Some(self.decode(record))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn values_are_pinned() {
        let root = Root { generation: 300, revision: 5, levels: 3, total: 128 };
        assert_eq!(root.encode(), [0xac, 2, 5, 3, 0x80, 1]);
        assert_eq!(count_value(0), [0]);
        assert_eq!(count_value(300), [0xac, 2]);
    }

    #[test]
    fn bad_values_are_refused() {
        for levels in [0, 65, 255] {
            let value = Root { generation: 1, revision: 1, levels, total: 1 }.encode();
            assert_eq!(Root::decode(&value), Err(CodecError::Rank("impossible number of levels")));
        }
        assert_eq!(Root::decode(&[1, 1, 1]), Err(CodecError::Truncated));
        assert_eq!(Root::decode(&[1, 1, 1, 1, 1]), Err(CodecError::Trailing(1)));
        assert_eq!(decode_count(&[]), Err(CodecError::Truncated));
        assert_eq!(decode_count(&[1, 1]), Err(CodecError::Trailing(1)));
    }

    proptest! {
        #[test]
        fn values_return(generation: u64, revision: u64, levels in 1u8..=64, total: u64) {
            let root = Root { generation, revision, levels, total };
            prop_assert_eq!(Root::decode(&root.encode()), Ok(root));
            prop_assert_eq!(decode_count(&count_value(total)), Ok(total));
        }

        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = Root::decode(&bytes);
            let _ = decode_count(&bytes);
        }
    }
}
