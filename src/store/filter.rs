//! The compaction filter: drops records of dead versions and dead namespaces as a compaction meets them.
//!
//! | record | dropped if fjall itself holds |
//! |---|---|
//! | element | the garbage record of its very version, or a dead-namespace record, or metadata of a higher version |
//! | metadata, expiry, count, garbage, pending | a dead-namespace record of its namespace |
//! | dead namespace, names | never |
//!
//! It never judges by time, and never drops the metadata of a living namespace (rule 8): expiring a key takes its
//! count, its event and its garbage record along, and only the sweep does that, in one commit.
//!
//! # Why this is sound
//! **What fjall holds is certain.** The log is synced up to the highest LSN gathered before an ingestion becomes visible
//! (rule 1), so a death that fjall knows of cannot be undone by a crash. After one the log is replayed over a store
//! that may be ahead of it: records of a dead version come in again, are dropped again, and the log itself goes on to
//! their death.
//!
//! **Dead stays dead.** A version is the LSN of the record that created it and a namespace id is never given twice:
//! no later write makes either live. So it does not matter that a dropped record leaves no tombstone and that an older
//! copy of it, from a deeper level, shows again: nothing that lives leads a reader there, and the next
//! compaction that meets the copy drops it as well, as long as the garbage or dead-namespace record stands. Who
//! works that record off reads the range as it is then, writes tombstones for all that shows, which hide every deeper copy
//! until the last level, and removes the record with the last of those: nothing is left behind.
//!
//! **Metadata of a dead namespace** goes by the same argument: no name leads to the id, so no reader can see whether
//! the newest or an older copy is left. In a living namespace it would be wrong: the copy below would be a key that
//! came back.
//!
//! **A decision holds for the whole compaction**: "dead" because it stays, "alive" because keeping is always allowed.
//! Records come sorted, so those of one version follow each other and are judged once.
//!
//! **Metadata of a higher version** kills lower ones because versions of one key ascend. A collection that is written under a
//! fresh version which no metadata names yet (rule 10) is safe as long as no metadata with a still higher version is
//! flushed for that key before the switch: whoever builds one holds off writers of the key, or takes a new version.
//!
//! Expiry records of a dead namespace that no compaction meets leave by the sweep, to which a namespace without a
//! name is dead, too.

use super::partition::Slot;
use crate::codec::key::{self, DiskKey, decode_key, element_owner, tag};
use crate::codec::{Meta, NsId};
use crate::util::pace::Pace;
use fjall::Keyspace;
use fjall::compaction::filter::{CompactionFilter, CompactionFilterResult, Context, Factory, ItemAccessor, Verdict};
use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

/// Namespaces that a filter remembers; beyond, it starts anew. Only the expiry index mixes them.
const REMEMBERED: usize = 4096;

/// Makes the filter of one partition, once a compaction.
pub(super) struct DeadFilterFactory(AssertUnwindSafe<Arc<Slot>>);

impl DeadFilterFactory {
    pub(super) const fn new(slot: Arc<Slot>) -> Self {
        DeadFilterFactory(AssertUnwindSafe(slot))
    }
}

impl Factory for DeadFilterFactory {
    fn name(&self) -> &str {
        "dead"
    }

    fn make_filter(&self, _: &Context) -> Box<dyn CompactionFilter> {
        // fjall holds its locks here: nothing may be read before the first item.
        Box::new(DeadFilter::new(Arc::clone(&self.0)))
    }
}

/// One compaction's decisions.
struct DeadFilter {
    slot: Arc<Slot>,
    /// The version judged last, as the part of the key that its elements share, and the judgement.
    owner: Vec<u8>,
    owner_dead: bool,
    namespaces: HashMap<NsId, bool>,
    buffer: Vec<u8>,
    dropped: u64,
    /// The compaction's: what comes by here is most of its work.
    pace: Pace,
}

impl DeadFilter {
    fn new(slot: Arc<Slot>) -> Self {
        DeadFilter {
            slot,
            owner: Vec::new(),
            owner_dead: false,
            namespaces: HashMap::new(),
            buffer: Vec::new(),
            dropped: 0,
            pace: Pace::of_writers(),
        }
    }

    /// Whether the record is dead; `None` if that cannot be found out now.
    fn is_dead(&mut self, record: &[u8]) -> Option<bool> {
        match *record.first()? {
            tag::ELEMENT => {
                let owner = element_owner(record)?;
                if owner != self.owner {
                    self.owner_dead = self.judge_owner(record)?;
                    self.owner.clear();
                    self.owner.extend_from_slice(owner);
                }
                Some(self.owner_dead)
            }
            tag::META | tag::EXPIRY | tag::COUNT | tag::GARBAGE | tag::PENDING => {
                let ns = match decode_key(record).ok()? {
                    DiskKey::Meta { ns, .. }
                    | DiskKey::Expiry { ns, .. }
                    | DiskKey::Count { ns }
                    | DiskKey::Pending { ns, .. }
                    | DiskKey::Garbage { ns, .. } => ns,
                    DiskKey::Element { .. }
                    | DiskKey::DeadNs { .. }
                    | DiskKey::Names
                    | DiskKey::Flushed
                    | DiskKey::Library { .. } => return None,
                };
                self.judge_namespace(ns)
            }
            _ => Some(false),
        }
    }

    fn judge_namespace(&mut self, ns: NsId) -> Option<bool> {
        if let Some(&dead) = self.namespaces.get(&ns) {
            return Some(dead);
        }
        self.buffer.clear();
        key::dead_ns_key(ns, &mut self.buffer);
        let dead = self.slot.try_with(|keyspace| holds(keyspace, &self.buffer))??;
        if self.namespaces.len() >= REMEMBERED {
            self.namespaces.clear();
        }
        self.namespaces.insert(ns, dead);
        Some(dead)
    }

    fn judge_owner(&mut self, record: &[u8]) -> Option<bool> {
        let DiskKey::Element { ns, key, version, .. } = decode_key(record).ok()? else { return None };
        if self.judge_namespace(ns)? {
            return Some(true);
        }
        let slot = Arc::clone(&self.slot);
        slot.try_with(|keyspace| {
            // A living version costs one look-up: deleting a version removes or replaces its metadata in the very
            // ingestion that brings its garbage record.
            self.buffer.clear();
            key::meta_key_of_stored(ns, key, &mut self.buffer);
            if let Some(value) = keyspace.get(&self.buffer).ok()? {
                let (meta, ..) = Meta::decode(&value).ok()?;
                if meta.version >= version {
                    return Some(meta.version > version);
                }
            }
            self.buffer.clear();
            key::garbage_of_owner(element_owner(record)?, &mut self.buffer);
            // A garbage record with a value is about a part of its version.
            Some(keyspace.get(&self.buffer).ok()?.is_some_and(|value| value.is_empty()))
        })?
    }
}

/// `None` if the store cannot be read.
fn holds(keyspace: &Keyspace, key: &[u8]) -> Option<bool> {
    keyspace.get(key).ok().map(|value| value.is_some())
}

impl CompactionFilter for DeadFilter {
    fn filter_item(&mut self, item: ItemAccessor<'_>, _: &Context) -> CompactionFilterResult {
        self.pace.step();
        // What cannot be read or decoded is kept: an error here would end fjall's worker for good.
        if self.is_dead(item.key()) == Some(true) {
            self.dropped += 1;
            return Ok(Verdict::Destroy);
        }
        Ok(Verdict::Keep)
    }

    fn finish(self: Box<Self>) {
        if self.dropped > 0 {
            tracing::debug!(records = self.dropped, "compaction reclaimed dead records");
        }
    }
}
