//! When the sweep of hashes' fields has to look at which hash of the table.

use std::collections::{BTreeSet, HashMap};

use super::core::Core;
use super::object::Kind;
use super::table::Index;

/// When the sweep has to look at which hash of the table.
#[derive(Debug, Default)]
pub struct Fields {
    order: BTreeSet<(u64, Index)>,
    times: HashMap<Index, Times, foldhash::fast::RandomState>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Times {
    /// As [`Fields::order`] has it; 0: not there.
    due_ms: u64,
    /// As fjall's expiry index has it; 0: not there.
    stored_ms: u64,
}

impl Fields {
    /// Whether no hash of the table has fields that expire.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.times.is_empty()
    }

    fn change(&mut self, index: Index, change: impl FnOnce(&mut Times)) {
        let times = self.times.entry(index).or_default();
        let before = times.due_ms;
        change(times);
        let after = *times;
        if after.due_ms == 0 && after.stored_ms == 0 {
            self.times.remove(&index);
        }
        if before != after.due_ms {
            self.order.remove(&(before, index));
            if after.due_ms != 0 {
                self.order.insert((after.due_ms, index));
            }
        }
    }

    /// The hash at this place is to be looked at then; 0: not at all.
    pub fn set_due(&mut self, index: Index, due_ms: u64) {
        if due_ms != 0 || !self.is_empty() {
            self.change(index, |times| times.due_ms = due_ms);
        }
    }

    /// fjall's expiry index lists the hash at this place under this time; 0: not at all.
    pub fn set_stored(&mut self, index: Index, stored_ms: u64) {
        if stored_ms != 0 || !self.is_empty() {
            self.change(index, |times| times.stored_ms = stored_ms);
        }
    }

    /// The time under which fjall's expiry index lists the hash at this place; 0: none.
    pub fn stored_ms(&self, index: Index) -> u64 {
        self.times.get(&index).map_or(0, |times| times.stored_ms)
    }

    /// The object at this place leaves the table. The time at which the sweep was to look at it; 0: none.
    pub fn forget(&mut self, index: Index) -> u64 {
        let due_ms = self.times.get(&index).map_or(0, |times| times.due_ms);
        if !self.is_empty() {
            self.change(index, |times| *times = Times::default());
        }
        due_ms
    }

    /// The hashes of which fields have times, those first that are to be looked at first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Index> {
        self.order.iter().map(|&(_, index)| index)
    }

    /// The hashes that are to be looked at by then, in order.
    pub fn due(&self, now_ms: u64) -> impl Iterator<Item = Index> {
        self.order.iter().take_while(move |(due_ms, _)| *due_ms <= now_ms).map(|&(_, index)| index)
    }
}

impl Core {
    /// Follows a change of an object's metadata.
    #[inline]
    pub fn note_fields(&mut self, index: Index) {
        let object = self.table.at(index);
        if object.kind == Kind::Hash || !self.fields.is_empty() {
            self.fields.set_due(index, object.fields_due_ms());
        }
    }
}
