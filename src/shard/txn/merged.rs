//! Elements in order, those in memory and those in the store merged: where both have one, memory's counts.

use std::ops::Deref;

use crate::error::{Error, Result};
use crate::meter;
use crate::shard::memory::core::storage;
use crate::shard::memory::object::Object;
use crate::shard::memory::overlay;
use crate::store::{Record, StoreError};

/// Bytes of an element's key or value, in memory or as fjall gave them.
#[derive(Clone)]
pub enum Piece<'a> {
    /// In the overlay.
    Memory(&'a [u8]),
    /// From fjall, without what stands in front.
    Disk(crate::store::UserKey, usize),
    /// Copied.
    Owned(Vec<u8>),
}

impl Deref for Piece<'_> {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Piece::Memory(bytes) => bytes,
            Piece::Disk(slice, from) => &slice[*from..],
            Piece::Owned(bytes) => bytes,
        }
    }
}

/// One of two sorted sequences that are merged.
pub(super) struct Side<I: Iterator> {
    pub(super) iter: I,
    pub(super) next: Option<I::Item>,
}

impl<I: DoubleEndedIterator> Side<I> {
    fn fill(&mut self, reverse: bool) -> Option<&I::Item> {
        if self.next.is_none() {
            self.next = if reverse { self.iter.next_back() } else { self.iter.next() };
        }
        self.next.as_ref()
    }
}

/// What fjall holds of a range.
pub(super) enum Stored {
    All(crate::store::Range),
    /// Its first records in the walk's direction, and whether there are no more.
    First(std::vec::IntoIter<Record>, bool),
}

impl Stored {
    /// Whether there may be more than it gives.
    fn is_cut(&self) -> bool {
        matches!(self, Stored::First(_, false))
    }
}

impl Iterator for Stored {
    type Item = std::result::Result<Record, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Stored::All(range) => range.next(),
            Stored::First(records, _) => records.next().map(Ok),
        }
    }
}

impl DoubleEndedIterator for Stored {
    fn next_back(&mut self) -> Option<Self::Item> {
        match self {
            Stored::All(range) => range.next_back(),
            Stored::First(records, _) => records.next().map(Ok),
        }
    }
}

/// Elements in order: overlay and fjall merged.
pub struct Elements<'a> {
    pub(super) owner: &'a Object,
    pub(super) memory: Side<overlay::Range<'a>>,
    /// What fjall holds, and the length of what its keys begin with.
    pub(super) disk: Option<(Side<Stored>, usize)>,
    pub(super) reverse: bool,
}

impl<'a> Iterator for Elements<'a> {
    type Item = Result<(Piece<'a>, Piece<'a>)>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if let Err(error) = meter::step(1) {
            return Some(Err(error));
        }
        if self.disk.is_some() {
            return self.next_merged();
        }
        self.next_in_memory().map(|(key, value)| Ok((Piece::Memory(key), Piece::Memory(value))))
    }
}

impl<'a> Elements<'a> {
    /// Visits key and value of the next `most` elements at most, until `visit` fails; how many there were. Where all are
    /// in memory it takes less than the iterator, as nothing is wrapped.
    #[inline]
    pub fn each(&mut self, most: u64, mut visit: impl FnMut(&[u8], &[u8]) -> Result) -> Result<u64> {
        let mut count = 0;
        if self.disk.is_some() {
            while count < most
                && let Some((key, value)) = self.next_merged().transpose()?
            {
                meter::step(1)?;
                visit(&key, &value)?;
                count += 1;
            }
            return Ok(count);
        }
        while count < most
            && let Some((key, value)) = self.next_in_memory()
        {
            meter::step(1)?;
            visit(key, value)?;
            count += 1;
        }
        Ok(count)
    }

    /// The next element where none has to be read from fjall.
    #[inline]
    fn next_in_memory(&mut self) -> Option<(&'a [u8], &'a [u8])> {
        loop {
            let entry = if self.reverse { self.memory.iter.next_back() } else { self.memory.iter.next() }?;
            if let Some(value) = entry.value() {
                return Some((entry.key(), value));
            }
        }
    }

    fn next_merged(&mut self) -> Option<Result<(Piece<'a>, Piece<'a>)>> {
        use std::cmp::Ordering;
        let (disk, prefix) = self.disk.as_mut()?;
        loop {
            let cut = disk.iter.is_cut();
            let stored = match disk.fill(self.reverse) {
                Some(Ok((key, _))) => Some(&key[*prefix..]),
                Some(Err(_)) => {
                    let Some(Err(error)) = disk.next.take() else { return None };
                    return Some(Err(storage(self.owner.key(), error)));
                }
                None if cut => return Some(Err(Error::Cold)),
                None => None,
            };
            let order = match (self.memory.fill(self.reverse), stored) {
                (None, None) => return None,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(entry), Some(stored)) if self.reverse => stored.cmp(entry.key()),
                (Some(entry), Some(stored)) => entry.key().cmp(stored),
            };
            if order == Ordering::Greater {
                let Some(Ok((key, value))) = disk.next.take() else { return None };
                return Some(Ok((Piece::Disk(key, *prefix), Piece::Disk(value, 0))));
            }
            if order == Ordering::Equal {
                disk.next = None;
            }
            if let Some(entry) = self.memory.next.take()
                && let Some(value) = entry.value()
            {
                return Some(Ok((Piece::Memory(entry.key()), Piece::Memory(value))));
            }
        }
    }
}
