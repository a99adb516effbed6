//! All shards at one moment, to be read for as long as that takes while commands go on.
//!
//! | step | commands meanwhile |
//! |---|---|
//! | flushes, until little is dirty, or so many have been made | go on |
//! | no flush but this one, no key becomes blind; those that are, are sighted | go on |
//! | under the lease of all shards, what is still dirty is encoded: **the moment** | wait for some milliseconds |
//! | that is ingested, and settled | go on |
//! | the partitions' snapshot is taken | go on |
//!
//! # Why the snapshot is of that moment
//! Under the lease every change that has committed is in fjall, in a run on its way there, or encoded there and then; none is
//! half-way, as commits happen under the lease of their shards. Behind it only flushes bring changes to fjall, and there is none
//! until the snapshot has been taken. What else enters it then is not seen by who goes from metadata to elements: results that are
//! being built have a version that no metadata names, and of what has died after the moment nothing is removed before a
//! flush has brought word of that death ([`crate::shard::memory::garbage`]).
//!
//! The log stays as it is: what was ingested is in it, too, until the next flush.

use std::sync::Arc;

use super::flush::{Flight, Gather};
use super::steps::FlushError;
use crate::codec::NamespaceMap;
use crate::shard::actor::Lease;
use crate::shard::engine::Engine;
use crate::shard::memory::core::Core;
use crate::shard::router::ShardId;
use crate::store::Still;

/// Flushes beforehand: each leaves what was written while it ran.
const ROUNDS: usize = 6;
/// Dirty bytes that are encoded in some milliseconds.
const LITTLE: usize = 4 << 20;

/// All shards at one moment.
pub struct Moment {
    /// The partitions, by shard.
    pub partitions: Vec<Still>,
    /// The databases.
    pub names: NamespaceMap,
    /// When it was, ms.
    pub now_ms: u64,
}

/// What is dirty in all shards, encoded, and the databases.
type Gathered = (Vec<Flight>, NamespaceMap, u64);

impl Engine {
    /// What all shards hold now.
    ///
    /// # Errors
    /// Of the log and the store.
    pub fn moment(self: &Arc<Self>) -> Result<Moment, FlushError> {
        for _ in 0..ROUNDS {
            self.flush()?;
            if self.dirty_bytes() <= LITTLE {
                break;
            }
        }
        let _one = self.flush_lock.lock();
        let counting = self.counting();
        self.sight(&self.all_shards());
        let (flights, names, now_ms) = self.gather_all();
        drop(counting);
        let mut failure = None;
        for (shard, mut flight) in (0..).zip(flights) {
            let result = match failure {
                None => self.ingest(self.store.partition(shard), &mut flight),
                Some(_) => Ok(()),
            };
            let ingested = failure.is_none() && result.is_ok();
            failure = failure.or(result.err());
            flight.forget_records();
            self.settle(shard, flight, ingested);
        }
        match failure {
            None => Ok(Moment { partitions: self.store.stills()?, names, now_ms }),
            Some(failure) => {
                self.mend_store();
                Err(failure)
            }
        }
    }

    fn gather_all(self: &Arc<Self>) -> Gathered {
        // Whoever gives the last of them back does it. Not a shard's thread: that may wait for this very flush to end.
        let (done, gathered) = crossbeam_channel::bounded(1);
        self.post(
            self.all_shards(),
            Box::new(move |mut lease| {
                _ = done.send(gather(&mut lease));
                lease
            }),
        );
        gathered.recv().unwrap_or_else(|_| gather(&mut self.lease(&self.all_shards())))
    }

    fn settle(&self, shard: ShardId, mut flight: Flight, ingested: bool) {
        while flight.settle(&mut self.shards.at(shard).core(), ingested) {}
    }
}

fn gather(lease: &mut Lease<'_>) -> Gathered {
    let names = lease.first().map(|core| core.names.map().clone()).unwrap_or_default();
    let flight = |core: &mut Core| {
        let mut gather = Gather::begin(core);
        while gather.slice(core) {}
        gather.end(core)
    };
    let flights = lease.iter_mut().map(|core| flight(core)).collect();
    (flights, names, crate::util::time::now_ms())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::codec::key::{self, KeyRange};
    use crate::codec::{Meta, NsId};
    use crate::shard::keyspace::walk::tests::engine;

    fn strings(still: &Still, ns: NsId) -> Vec<(Vec<u8>, Vec<u8>)> {
        let KeyRange { lower, upper } = key::ns_range(key::tag::META, ns);
        let read = |record: crate::store::Record| (record.0[5..].to_vec(), Meta::decode(&record.1).unwrap().2.to_vec());
        still.range(&lower, &upper).map(|record| read(record.unwrap())).collect()
    }

    /// What comes later, flushed and compacted, does not show; what was there before does, however it lay.
    #[test]
    fn what_comes_later_does_not_show() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let engine = engine(dir.path(), 2);
        let ns = engine.first_names().id(b"0").unwrap();
        let put = |name: &str, value: &str| {
            let shard = engine.router.shard_of(name.as_bytes());
            engine.transact(&[shard], 1, |txn| txn.put_string(ns, name.as_bytes(), value.as_bytes(), 0)).unwrap();
        };
        let remove = |name: &str| {
            let shard = engine.router.shard_of(name.as_bytes());
            engine.transact(&[shard], 1, |txn| txn.delete(ns, name.as_bytes())).unwrap();
        };
        for n in 0..50 {
            put(&format!("old:{n}"), "old");
        }
        engine.flush().unwrap();
        put("old:1", "new");
        remove("old:2");
        put("dirty", "value");
        let moment = engine.moment().unwrap();
        let all = |moment: &Moment| {
            let mut all: Vec<_> = moment.partitions.iter().flat_map(|still| strings(still, ns)).collect();
            all.sort();
            all
        };
        let before = all(&moment);
        assert_eq!(before.len(), 50);
        assert!(before.contains(&(b"dirty".to_vec(), b"value".to_vec())));
        assert!(before.contains(&(b"old:1".to_vec(), b"new".to_vec())));
        for round in 0..8 {
            for n in 0..50 {
                if (n + round) % 3 == 0 { remove(&format!("old:{n}")) } else { put(&format!("old:{n}"), "later") }
            }
            engine.flush().unwrap();
            for partition in engine.store.partitions() {
                partition.compact_dead().unwrap();
                partition.follow();
            }
            assert_eq!(all(&moment), before, "round {round}");
        }
        drop(moment);
        for partition in engine.store.partitions() {
            partition.compact_dead().unwrap();
            assert_eq!(partition.bulk().tombstones, 0, "what is dead is kept for nobody any more");
        }
        let after = all(&engine.moment().unwrap());
        assert!(after != before && after.iter().all(|(_, value)| value == b"later" || value == b"value"));
    }
}
