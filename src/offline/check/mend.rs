//! Repairing records: what contradicts is made to agree, by what elements there are.
//!
//! | found | becomes |
//! |---|---|
//! | a record that cannot be read, or belongs nowhere | removed |
//! | metadata of another key or shard, or of a version that was never given | removed |
//! | elements that nothing names | garbage, which the server removes |
//! | a collection or big string | its elements as they are ([`super::rebuild`]), its metadata and times after them; without elements it is removed |
//! | a count | the number of keys |
//!
//! The log has nothing left when this begins, and nothing of this is logged: each ingestion is whole or not there, and an interrupted
//! repair is to be made again.

use std::collections::BTreeMap;

use crate::codec::element::Group;
use crate::codec::key::{self, KeyRange, garbage_of_owner};
use crate::codec::{ExpiryKind, Meta, NsId, is_long_form, pack};
use crate::shard::rank;
use crate::store::{Partition, Store, StoreError};
use crate::util::time;

use super::body::{Body, is_stored_as};
use super::partition::{Fault, Known, Of};
use super::rebuild;

/// Bytes of records that wait for an ingestion.
const BATCH_BYTES: usize = 8 << 20;

/// Records on their way into a partition.
pub(super) struct Fixes<'a> {
    partition: &'a Partition,
    records: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    bytes: usize,
}

impl<'a> Fixes<'a> {
    fn new(partition: &'a Partition) -> Self {
        Fixes { partition, records: BTreeMap::new(), bytes: 0 }
    }

    /// Puts or removes a record.
    pub(super) fn set(&mut self, key: Vec<u8>, value: Option<Vec<u8>>) -> Result<(), StoreError> {
        self.bytes += key.len() + value.as_ref().map_or(0, Vec::len) + 64;
        self.records.insert(key, value);
        if self.bytes > BATCH_BYTES { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> Result<(), StoreError> {
        self.bytes = 0;
        self.partition.ingest(std::mem::take(&mut self.records)).map(drop)
    }
}

/// Mends what these faults are of.
pub(super) fn mend(store: &Store, faults: &[Fault], known: &Known<'_>) -> Result<(), StoreError> {
    for Fault { shard, of, .. } in faults {
        let mut fixes = Fixes::new(store.partition(*shard));
        match of {
            Of::Record(record) => fixes.set(record.clone(), None)?,
            Of::Owner(owner) => {
                let mut garbage = Vec::new();
                garbage_of_owner(owner, &mut garbage);
                fixes.set(garbage, Some(Vec::new()))?;
            }
            Of::Count(ns, keys) => {
                let mut record = Vec::new();
                key::count_key(*ns, &mut record);
                fixes.set(record, Some(key::count_value(*keys).to_vec()))?;
            }
            Of::Key(ns, stored) => mend_key(&mut fixes, *shard, *ns, stored, known)?,
            Of::Partition => {}
        }
        fixes.write()?;
    }
    Ok(())
}

fn mend_key(fixes: &mut Fixes<'_>, shard: u16, ns: NsId, stored: &[u8], known: &Known<'_>) -> Result<(), StoreError> {
    let partition = fixes.partition;
    let mut record = Vec::new();
    key::meta_key_of_stored(ns, stored, &mut record);
    let Some(value) = partition.get(&record)? else { return Ok(()) };
    let Ok((mut meta, long_key, inline)) = Meta::decode(&value) else { return fixes.set(record, None) };
    let key = long_key.unwrap_or(stored);
    let is_its_own = is_long_form(stored) == long_key.is_some() && is_stored_as(key, stored).is_ok();
    if !is_its_own || known.router.shard_of(key) != shard || meta.version > known.highest {
        return fixes.set(record, None);
    }
    if meta.has_version() {
        let range = key::element_range(ns, key, meta.version);
        if std::mem::take(&mut meta.packed) {
            // What can be read of them gets records of its own, as the elements of other collections have.
            for one in pack::one_by_one(inline) {
                let read = pack::each(&meta, one, |element, value| {
                    fixes.set([&range.lower[..], element].concat(), Some(value.to_vec()))
                });
                match read {
                    Err(error) if !matches!(error, StoreError::Codec(_)) => return Err(error),
                    _ => {}
                }
            }
            fixes.write()?;
        }
        let Some(rebuilt) = rebuild::elements(fixes, partition, &range, meta)? else { return fixes.set(record, None) };
        meta = rebuilt;
        fixes.write()?;
        count_anew(fixes, partition, &range, meta)?;
    }
    let inline = if meta.has_version() { &b""[..] } else { inline };
    let mut encoded = Vec::new();
    meta.encode(long_key, inline, &mut encoded);
    fixes.set(record, Some(encoded))?;
    let times = [(meta.expire_ms, ExpiryKind::Key), (meta.extra.fields_due_ms(), ExpiryKind::Field)];
    for (at_ms, kind) in times.into_iter().filter(|&(at_ms, _)| at_ms != 0) {
        let mut time = Vec::new();
        key::expiry_key(at_ms, kind, ns, key, &mut time);
        fixes.set(time, Some(Vec::new()))?;
    }
    Ok(())
}

/// Gives the elements that there are now their counted index, where they have one, or are many.
fn count_anew(fixes: &mut Fixes<'_>, partition: &Partition, range: &KeyRange, meta: Meta) -> Result<(), StoreError> {
    let Some(group) = Body::new(meta).counted_group() else { return Ok(()) };
    let mut index = range.lower.clone();
    index.push(Group::Rank.tag());
    let has_one = partition.range(&index, &key::prefix_upper(&index))?.next().is_some();
    if !has_one && meta.size <= rank::SMALL {
        return Ok(());
    }
    let mut records = Vec::new();
    let mut out = |key: &[u8], value: Option<&[u8]>| records.push((key.to_vec(), value.map(<[u8]>::to_vec)));
    rank::build(partition, &range.lower, group, time::now_ns(), &mut out)?;
    records.into_iter().try_for_each(|(key, value)| fixes.set(key, value))
}
