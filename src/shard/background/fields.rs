//! Fields of hashes that expire: when the sweep has to look at which hash, and the sweep itself.
//!
//! | where a hash is | what leads the sweep to it |
//! |---|---|
//! | in the table | [`Fields`](crate::shard::memory::fields::Fields), which follows what its metadata says is `indexed` |
//! | on disk only | the record of kind `Field` in fjall's expiry index, under that time |
//!
//! The sweep goes through a hash in slices, removes what has expired, and knows at the end the exact bounds of the times
//! that are left. Between two slices the hash may change: whoever adds a time moves `indexed` to it if that is earlier,
//! so the sweep first moves `indexed` far ahead and takes what it finds there at the end as another lower bound.
//!
//! A big hash costs much to go through, so the next look at it waits for a multiple of what this one took, or until its
//! last field expires; meanwhile expired fields are filtered by whoever reads.

use std::ops::Bound;
use std::time::{Duration, Instant};

use crate::codec::NsId;
use crate::codec::element::Group;
use crate::codec::field::{Field, FieldTimes};
use crate::error::Result;
use crate::shard::memory::core::{Core, storage};
use crate::shard::memory::object::Kind;
use crate::shard::memory::overlay::Key;
use crate::shard::memory::table::Index;
use crate::shard::txn::changes::Swept;
use crate::shard::txn::elements::whole_group;
use crate::shard::txn::{Found, Txn};
use crate::util::scale::Scaled;

/// Fields gone through per hold of the shard's lock.
pub const SLICE: Scaled<usize> = Scaled::new(1024).in_unit_tests(4);
/// A hash is looked at again at the latest so long after a sweep that did not come to its end, after a crash for example, ms.
const UNFINISHED_MS: u64 = 5_000;
/// Of a big hash's sweeps, time between two in terms of the time that one takes.
const REST: u32 = 8;

/// A sweep of one hash under way.
#[derive(Debug)]
pub struct FieldSweep {
    ns: NsId,
    key: Vec<u8>,
    version: u64,
    /// The last element gone through.
    last: Option<Key>,
    /// Bounds of the times met that are still to come; `u64::MAX` and 0 for none.
    lower: u64,
    upper: u64,
    /// What `indexed` was moved to.
    parked_ms: u64,
    took: Duration,
}

impl FieldSweep {
    /// The sweep of the hash that is due first and that no command goes through; what stands in the index without reason
    /// leaves it.
    pub fn next(core: &mut Core, now_ms: u64) -> Option<Self> {
        loop {
            let is_free = |index: &Index| !core.busy.holds(core.table.at(*index).key());
            let index = core.fields.due(now_ms).find(is_free)?;
            let object = core.table.at(index);
            if !core.names.is_live(object.ns) || object.fields_due_ms() == 0 {
                core.fields.set_due(index, 0);
                continue;
            }
            return Some(FieldSweep {
                ns: object.ns,
                key: object.key().to_vec(),
                version: object.body.as_ref().map_or(0, |body| body.version),
                last: None,
                lower: u64::MAX,
                upper: 0,
                parked_ms: now_ms + UNFINISHED_MS,
                took: Duration::ZERO,
            });
        }
    }
}

impl FieldSweep {
    /// Whether a command goes through the hash: what it has seen stays.
    pub fn waits(&self, core: &Core) -> bool {
        core.busy.holds(&self.key)
    }
}

/// A slice of a hash that a sweep has gone through.
#[derive(Debug, Default)]
pub struct Slice {
    /// Elements to be removed.
    expired: Vec<Key>,
    /// Fields gone through.
    pub seen: usize,
    /// Nothing is left to be gone through.
    pub ended: bool,
}

impl Slice {
    /// Nothing to be done.
    fn none() -> Self {
        Slice { ended: true, ..Slice::default() }
    }
}

impl Txn<'_, '_> {
    /// Goes through the next fields of a hash.
    pub fn sweep_fields(&mut self, sweep: &mut FieldSweep) -> Result<Slice> {
        let started = Instant::now();
        let Some(at) = self.find_any(sweep.ns, &sweep.key)? else { return Ok(Slice::none()) };
        let object = self.object(at);
        let body = object.body.as_ref().filter(|body| object.kind == Kind::Hash && body.version == sweep.version);
        let Some(times) = body.and_then(|body| FieldTimes::of(&body.extra)) else { return Ok(Slice::none()) };
        let object_expired = object.expire_ms != 0 && object.expire_ms <= self.now_ms;
        if times.are_past(self.now_ms) || object_expired {
            self.sweep_away_found(at, if object_expired { Swept::Key } else { Swept::Hash });
            return Ok(Slice::none());
        }
        let whole = sweep.last.is_none();
        let slice = self.read_slice(at, sweep)?;
        let size = self.remove_expired(at, &slice)?;
        if size == 0 {
            self.sweep_away_found(at, Swept::Hash);
            return Ok(Slice::none());
        }
        if !slice.expired.is_empty() {
            self.note_swept(at, Swept::Fields);
        }
        sweep.took += started.elapsed();
        let mut times = times;
        if !slice.ended {
            if whole {
                times.indexed = sweep.parked_ms;
            }
        } else if whole {
            (times.lower, times.upper, times.indexed) = (sweep.lower, sweep.upper, sweep.lower);
        } else {
            // An earlier time than where it was moved to was added meanwhile; so may have been a later one.
            let rest_ms = (sweep.took * REST).as_millis() as u64;
            times.lower = sweep.lower.min(times.indexed);
            times.upper = times.upper.max(sweep.upper);
            times.indexed = times.lower.max(self.now_ms + rest_ms);
        }
        times.settle(size);
        self.set_extra(at, times.extra());
        Ok(slice)
    }

    /// Goes through at most [`SLICE`] fields.
    fn read_slice(&self, at: Found, sweep: &mut FieldSweep) -> Result<Slice> {
        let (first, upper) = whole_group(Group::HashField);
        // The element of a field without a name is the group's first bound.
        let lower = sweep.last.as_deref().map_or(Bound::Included(&first[..]), Bound::Excluded);
        let mut slice = Slice::none();
        let mut last = None;
        for element in self.elements(at, lower, Bound::Excluded(&upper), false)? {
            if slice.seen == SLICE.get() {
                slice.ended = false;
                break;
            }
            slice.seen += 1;
            let (stored, value) = element?;
            let field = Field::split(&stored[1..], &value, true).map_err(|e| storage(&sweep.key, e))?;
            if !field.is_live(self.now_ms) {
                slice.expired.push(Key::from_slice(&stored));
            } else if field.expire_ms != 0 {
                sweep.lower = sweep.lower.min(field.expire_ms);
                sweep.upper = sweep.upper.max(field.expire_ms);
            }
            last = Some(stored);
        }
        if let Some(last) = last {
            sweep.last = Some(Key::from_slice(&last));
        }
        Ok(slice)
    }

    /// Removes fields; how many are left.
    fn remove_expired(&mut self, at: Found, slice: &Slice) -> Result<u64> {
        for element in &slice.expired {
            self.remove_element(at, element)?;
        }
        let gone = slice.expired.len();
        self.core(at).stats.expired_fields += gone as u64;
        self.add_size(at, -(gone as i64));
        Ok(self.size(at))
    }
}
