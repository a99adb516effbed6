//! Counting a shard's keys anew, while commands go on.
//!
//! Counts are logged as absolute numbers, so they are exact as long as log and store are of one time. After a part of them
//! was lost, and where a count is found to be wrong, the metadata records are counted:
//!
//! | step | under the shard's lock |
//! |---|---|
//! | [`Recount::begin`]: a range of fjall's metadata as of now, the keys whose objects fjall may not show as they are, the counts | once, as long as those keys are many |
//! | [`Recount::step`]: counts the range's next records but for those keys | no |
//! | [`Recount::end`]: the sum, and what the count has changed by since the beginning | once, short |

use foldhash::HashMap;

use crate::codec::{self, DiskKey, NsId};
use crate::error::Result;
use crate::store::Range;

use crate::shard::engine::{Engine, OpenError};
use crate::shard::memory::core::{Core, unreadable};
use crate::shard::memory::object::Kind;
use crate::shard::memory::order::stored_form;
use crate::shard::txn::Txn;

/// Records counted between two looks at the rest of the work.
pub const SLICE: usize = if cfg!(test) { 8 } else { 8192 };

/// A count of one shard's keys under way.
pub struct Recount {
    stored: Range,
    /// Whether a key was there when the count began; about these the table knows better than fjall.
    changed: HashMap<(NsId, Box<[u8]>), bool>,
    found: HashMap<NsId, i64>,
    /// The counts when it began.
    before: Vec<(NsId, i64)>,
}

impl Recount {
    /// Begins. Keeps what compactions replace on disk until it ends, and the store from being reopened.
    pub fn begin(core: &Core) -> Result<Self> {
        let range = codec::key::tag_range(codec::key::tag::META);
        let stored = core.partition.range(&range.lower, &range.upper).map_err(unreadable)?;
        let changed: HashMap<_, _> = (core.dirty.iter().chain(&core.in_flight))
            .filter(|&&index| core.table.is_used(index))
            .filter(|&&index| core.blind.birth(index).is_none_or(|birth| birth.existed.is_some()))
            .map(|&index| core.table.at(index))
            .map(|object| ((object.ns, stored_form(object.key()).into()), object.kind != Kind::Absent))
            .collect();
        let mut found = HashMap::default();
        // A blind key counts beside what fjall holds of it, until it is sighted.
        for (ns, by) in core.blind_counts() {
            *found.entry(ns).or_default() += by;
        }
        for ((ns, _), _) in changed.iter().filter(|&(_, &is_there)| is_there) {
            *found.entry(*ns).or_default() += 1;
        }
        Ok(Recount { stored, changed, found, before: core.counts.iter().map(|(&ns, &count)| (ns, count)).collect() })
    }

    /// Counts the next records. False once there are no more.
    pub fn step(&mut self) -> Result<bool> {
        for _ in 0..SLICE {
            let Some(item) = self.stored.next() else { return Ok(false) };
            let (record, _) = item.map_err(unreadable)?;
            let DiskKey::Meta { ns, key } = codec::key::decode_key(&record).map_err(unreadable)? else { continue };
            if self.changed.is_empty() || !self.changed.contains_key(&(ns, Box::from(key))) {
                *self.found.entry(ns).or_default() += 1;
            }
        }
        Ok(true)
    }

    /// Sets the counts of the core at this place of the lease.
    pub fn end(mut self, txn: &mut Txn<'_, '_>, at: u16) {
        let core = &txn.lease[at as usize];
        for &(ns, count) in &self.before {
            *self.found.entry(ns).or_default() -= count;
        }
        let now = self.found.iter().filter(|&(&ns, _)| core.names.is_live(ns));
        let right: Vec<_> = now.map(|(&ns, by)| (ns, core.counts.get(&ns).copied().unwrap_or(0) + by)).collect();
        for (ns, count) in right {
            txn.correct_count(at, ns, count);
        }
        txn.lease[at as usize].miscounted = false;
    }
}

/// Counts the keys of all shards, durably when this returns. At the start, after the replay.
pub(in crate::shard) fn recount_all(engine: &Engine) -> std::result::Result<(), OpenError> {
    let failed = |error: crate::Error| OpenError::Record(format!("cannot count the keys: {error}"));
    for shard in engine.all_shards() {
        let mut recount = Recount::begin(&engine.shards.at(shard).core()).map_err(failed)?;
        while recount.step().map_err(failed)? {}
        let end = |txn: &mut Txn<'_, '_>| {
            recount.end(txn, 0);
            Ok(())
        };
        engine.transact(&[shard], crate::util::time::now_ms(), end).map_err(failed)?;
    }
    engine.log.sync_to(engine.log.last()).map_err(|error| OpenError::Record(format!("log: {error}")))?;
    tracing::info!("keys counted anew");
    Ok(())
}
