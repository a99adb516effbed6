//! Results of any size: a collection that is written whole (RENAME, COPY, MOVE, the STORE forms, RESTORE, removals of
//! most of a collection) without gathering it in memory (rule 10).
//!
//! | step | what a crash leaves |
//! |---|---|
//! | elements gather in memory up to [`SPILL`] | nothing |
//! | beyond: a *pending record* enters the log; its LSN is the version of what is being built | the pending record |
//! | elements go to fjall in sorted slices under that version, which no metadata names | the same, and elements |
//! | [`Build::finish`]: one small log record puts the metadata and removes the pending record | the result, whole |
//!
//! A pending record that is found at a start is turned into a garbage record, which reclaims what it leads to; one that
//! a failed or rolled back command leaves, by the shard's timer, and a flush before that takes it along. Before the first
//! slice becomes visible the log is synced up to the pending record, so that no power loss parts the elements from what
//! leads to them.
//!
//! A command in slices ([`super::rest`]) builds while others have its shard: what it builds is its own, no version is given
//! twice, and as long as the builder lives nobody takes it for a leftover.
//!
//! Invariants: the builder's command holds the lease of the key, or the key itself, from the first element to the commit; an
//! element is put once; nothing spills where reads must not wait.

use std::collections::HashSet;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_128;

use crate::codec::{self, Extra, NsId, redo};
use crate::error::{Error, Result};
use crate::log::Log;
use crate::meter;
use crate::store::{Partition, StoreError};
use crate::util::scale::Scaled;

use crate::shard::memory::core::storage;
use crate::shard::memory::garbage::{AllStaged, Staged};
use crate::shard::memory::object::{Body, Kind};
use crate::shard::memory::records::Records;
use crate::shard::rank;
use crate::shard::txn::rest::Rests;
use crate::shard::txn::{Found, Txn};

/// Bytes of elements from which on a result goes to fjall in slices.
pub const SPILL: Scaled<usize> = Scaled::new(16 << 20).in_unit_tests(2 << 10);
/// Bytes that a command in slices puts into memory at once.
const AT_ONCE: Scaled<usize> = Scaled::new(512 << 10).in_unit_tests(1 << 10);
/// The same as [`SPILL`], as a share of what the command may hold: what stays in memory is written there too, logged, and noted for undo.
const SHARE: usize = 8;

impl Staged {
    /// The key of its pending record.
    pub fn record_key(&self) -> Vec<u8> {
        let mut key = Vec::new();
        codec::key::pending_key(self.key.0, &self.key.1, self.version, &mut key);
        key
    }
}

/// So many elements have room from the first on: most collections are small.
const FEW: usize = 24;

/// As many elements as a collection has that is too small for a counted index: two of each member of a sorted set.
const MOST_FEW: usize = 2 * rank::SMALL as usize;

pub(super) const TWICE: &str = "an element comes twice";

/// What a result is besides its elements.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Type.
    pub kind: Kind,
    /// Encode-version.
    pub encoding: u8,
    /// What `OBJECT ENCODING` goes by.
    pub form: u8,
    /// Elements; bytes of a big string.
    pub size: u64,
    /// What the type adds.
    pub extra: Extra,
    /// Absolute time of expiry, 0 for none.
    pub expire_ms: u64,
}

impl Shape {
    /// A collection of this type and size with everything else at zero.
    pub const fn new(kind: Kind, size: u64) -> Self {
        Shape { kind, encoding: 0, form: 0, size, extra: Extra::None, expire_ms: 0 }
    }

    fn body(&self) -> Body {
        let Shape { encoding, form, size, extra, .. } = *self;
        Body { encoding, form, size, extra, ..Body::new() }
    }
}

/// A collection on its way to a key.
pub struct Build {
    key: (NsId, Vec<u8>),
    /// Elements that are in memory only, by their physical keys.
    elements: Records,
    bytes: usize,
    may_block: bool,
    shard: crate::shard::router::ShardId,
    partition: Arc<Partition>,
    log: Arc<Log>,
    staged: Arc<AllStaged>,
    /// The version under which elements are in fjall, once some are.
    version: u64,
    /// Digests of the first of these: what is too small for a counted index is not counted there.
    few: HashSet<u128>,
    /// Dropped with the builder: then it is a leftover.
    alive: Arc<()>,
    /// The command is to be run again where it may rest, before it has done much.
    asks: bool,
}

impl Build {
    /// Begins with nothing; the key keeps what it holds until [`Build::finish`].
    pub fn new(txn: &Txn<'_, '_>, ns: NsId, key: &[u8]) -> Result<Self> {
        let core = txn.core_of(key)?;
        Ok(Build {
            key: (ns, key.to_vec()),
            elements: Records::default(),
            bytes: 0,
            may_block: txn.may_block(),
            shard: core.shard,
            partition: core.partition.clone(),
            log: core.log.clone(),
            staged: core.staged.clone(),
            version: 0,
            few: HashSet::new(),
            alive: Arc::new(()),
            asks: matches!(txn.rests(), Rests::Elsewhere) && txn.reads_in_slices(),
        })
    }

    /// Adds an element, which was not added before.
    pub fn put(&mut self, element: &[u8], value: &[u8]) -> Result {
        meter::step_through(element.len() + value.len())?;
        let bytes = element.len() + value.len() + crate::shard::memory::object::ELEMENT_OVERHEAD;
        meter::hold(bytes)?;
        self.bytes += bytes;
        if self.elements.len() == 0 {
            self.elements.reserve(FEW);
        }
        self.elements.push(element, Some(value));
        if self.bytes > SPILL.get().min(meter::most() / SHARE) { self.spill() } else { Ok(()) }
    }

    /// Brings what is in memory to fjall.
    fn spill(&mut self) -> Result {
        if !self.may_block {
            return Err(Error::Cold);
        }
        if self.asks {
            return Err(Error::Long);
        }
        if self.version == 0 {
            self.begin();
        }
        self.check_distinct()?;
        if self.few.len() + self.elements.len() <= MOST_FEW
            && !self.elements.iter().all(|(element, _)| self.few.insert(xxh3_128(element)))
        {
            return Err(storage(&self.key.1, TWICE));
        }
        let elements = std::mem::take(&mut self.elements);
        meter::release(std::mem::take(&mut self.bytes));
        let mut prefix = Vec::new();
        codec::key::element_prefix(self.key.0, &self.key.1, self.version, &mut prefix);
        let records = elements.iter().map(|(element, value)| ([&prefix[..], element].concat(), value));
        self.ingest(records)
    }

    fn ingest<V: Into<crate::store::UserValue>>(&self, records: impl Iterator<Item = (Vec<u8>, Option<V>)>) -> Result {
        let ingested = self.partition.ingest_with(records, || self.log.sync_to(self.version));
        ingested.map(drop).map_err(|e: StoreError| storage(&self.key.1, e))
    }

    /// Notes in the log what is about to be in fjall without metadata.
    fn begin(&mut self) {
        let (shard, (ns, key)) = (self.shard, &self.key);
        // A flush looks here for what is in segments that it may delete: it finds both or neither.
        let mut all = self.staged.lock();
        self.version = self.log.append(|lsn, out| {
            let mut record = Vec::new();
            codec::key::pending_key(*ns, key, lsn, &mut record);
            redo::encode_raw(shard, &record, Some(b""), out);
        });
        let staged = Staged { key: self.key.clone(), version: self.version };
        all.push((staged, Arc::downgrade(&self.alive)));
    }

    /// Looks, where all of it is in memory, whether an element was added twice. What goes to fjall is looked at on its way.
    ///
    /// # Errors
    /// `Storage`: one was.
    pub fn check_distinct(&mut self) -> Result {
        match self.elements.sort_distinct() {
            Some(_) => Err(storage(&self.key.1, TWICE)),
            None => Ok(()),
        }
    }

    /// Makes the key hold what was built. A collection without elements removes it, unless it is a stream. `None` for that, and
    /// where it goes straight to fjall ([`super::straight`]).
    pub fn finish(mut self, txn: &mut Txn<'_, '_>, shape: Shape) -> Result<Option<Found>> {
        let (ns, key) = (self.key.0, std::mem::take(&mut self.key.1));
        // The database may have been flushed while the command rested.
        txn.is_live(ns)?;
        if self.version == 0 && (self.bytes <= AT_ONCE.get() || !txn.may_rest()) {
            // The size of a blind collection is 0 whatever it holds. A string without chunks is one of zeros.
            if self.elements.len() == 0 && !matches!(shape.kind, Kind::Stream | Kind::String) {
                txn.delete(ns, &key)?;
                return Ok(None);
            }
            if txn.put_straight(ns, &key, &shape, b"", &mut self.elements)? {
                meter::release(self.bytes);
                return Ok(None);
            }
            let at = txn.put_body(ns, &key, shape.kind, shape.body(), shape.expire_ms)?;
            for (element, value) in self.elements.iter() {
                txn.put_element(at, element, value.unwrap_or_default())?;
            }
            meter::release(self.bytes);
            return Ok(Some(at));
        }
        self.key.1 = key;
        txn.rest(ns, || {
            self.spill()?;
            self.count(&shape)
        })?;
        let mut body = Body { version: self.version, maybe_stored: true, ..shape.body() };
        body.overlay.complete = false;
        let at = txn.put_body(ns, &self.key.1, shape.kind, body, shape.expire_ms)?;
        txn.unstage(at, Staged { key: self.key, version: self.version });
        Ok(Some(at))
    }

    /// Gives the elements in fjall their counted index.
    fn count(&self, shape: &Shape) -> Result {
        let exact = shape.encoding == 0 || shape.kind == Kind::Zset;
        let Some(group) = shape.kind.counted_group().filter(|_| exact && shape.size > rank::SMALL) else {
            return Ok(());
        };
        let mut prefix = Vec::new();
        codec::key::element_prefix(self.key.0, &self.key.1, self.version, &mut prefix);
        let mut records = Vec::new();
        let mut note = |key: &[u8], value: Option<&[u8]>| records.push((key.to_vec(), value.map(<[u8]>::to_vec)));
        let counted = rank::build(&self.partition, &prefix, group, self.version, &mut note);
        if counted.map_err(|e| storage(&self.key.1, e))? != shape.size {
            return Err(storage(&self.key.1, TWICE));
        }
        self.ingest(records.into_iter())
    }
}

impl Txn<'_, '_> {
    /// Turns what failed or rolled back builds have left into garbage.
    pub fn collect_staged(&mut self) {
        let mut left = Vec::new();
        self.lease[0].staged.lock().retain(|(staged, builder)| {
            let alive = builder.strong_count() > 0;
            left.extend((!alive).then(|| staged.clone()));
            alive
        });
        for entry in left {
            self.put_raw(0, entry.record_key(), None);
            let record = crate::shard::memory::garbage::record_key(entry.key.0, &entry.key.1, entry.version);
            self.put_raw(0, record, Some(Vec::new()));
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::shard::keyspace::walk::tests::engine;

    /// In fjall the second would take the place of the first, and the size would be wrong.
    #[test]
    fn an_element_that_comes_twice_is_refused_in_whichever_slice() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let engine = engine(dir.path(), 1);
        for (fields, value) in [(10, 500), (30, 500), (200, 5)] {
            for (last, is_new) in [(0, false), (fields - 1, false), (fields, true)] {
                let made = engine.transact(&[0], 1, |txn| {
                    let mut build = Build::new(txn, 0, b"key")?;
                    for n in (0..fields).chain([last]) {
                        build.put(format!("\u{1}field {n}").as_bytes(), &vec![b'v'; value])?;
                    }
                    build.finish(txn, Shape::new(Kind::Hash, fields + 1)).map(drop)
                });
                assert_eq!(made.is_ok(), is_new, "of {fields} and {last}");
            }
        }
    }

    #[test]
    fn names_and_values_alike_count_for_what_is_in_memory() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let engine = engine(dir.path(), 1);
        for (name, value) in [(200, 0), (8, 192), (100, 100)] {
            let mut spilled = 0;
            engine
                .transact(&[0], 1, |txn| {
                    let mut build = Build::new(txn, 0, b"key")?;
                    for n in 0..100_u64 {
                        let element = [&n.to_be_bytes()[..], &vec![b'x'; name - 8]].concat();
                        build.put(&element, &vec![b'v'; value])?;
                        let held: usize =
                            build.elements.iter().map(|(key, value)| key.len() + value.unwrap().len()).sum();
                        assert!(held <= SPILL.get());
                        spilled += usize::from(build.elements.len() == 0);
                    }
                    Ok(())
                })
                .unwrap();
            assert!((100 * 200 / SPILL.get()..=20).contains(&spilled), "{spilled} ingestions");
        }
    }
}
