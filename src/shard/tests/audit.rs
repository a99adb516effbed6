//! What fjall holds once everything is flushed, swept and collected: the model, and nothing else.

use std::collections::{BTreeMap, BTreeSet};

use super::world::World;
use crate::codec::{self, DiskKey, Meta};
use crate::shard::memory::table::table_hash;

impl World {
    /// Brings everything to rest, then compares every record in fjall with the model: no element, expiry record,
    /// garbage record, dead namespace or count too many or too few.
    pub(super) fn audit(&mut self) {
        self.settle();
        self.verify();
        self.verify_counts();
        self.settle();
        let engine = self.engine().clone();
        let ids: BTreeMap<_, _> = self.model.keys().map(|name| (self.ns(name), *name)).collect();
        let mut keys = BTreeSet::new();
        for shard in engine.shards.iter() {
            let core = shard.core();
            let (mut versions, mut times, mut listed) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
            let mut owners = BTreeSet::new();
            let mut counts: BTreeMap<u32, u64> = BTreeMap::new();
            for item in core.partition.range(&[0], &[0xff]).unwrap() {
                let (key, value) = item.unwrap();
                match codec::key::decode_key(&key).unwrap() {
                    DiskKey::Meta { ns, key: stored } => {
                        let (meta, long, _) = Meta::decode(&value).unwrap();
                        let name = ids.get(&ns).expect("metadata of a dead namespace is left");
                        let key = long.unwrap_or(stored);
                        let hash = table_hash(engine.router.hash(key), ns);
                        assert!(core.membership.may_contain(hash, ns, key), "a key that fjall holds passes the filter");
                        keys.insert((*name, key.to_vec()));
                        *counts.entry(ns).or_default() += 1;
                        if meta.version != 0 {
                            versions.insert((ns, stored.to_vec(), meta.version));
                        }
                        if meta.expire_ms != 0 {
                            times.insert((meta.expire_ms, ns, stored.to_vec()));
                        }
                    }
                    DiskKey::Element { ns, key, version, .. } => {
                        owners.insert((ns, key.to_vec(), version));
                    }
                    DiskKey::Expiry { expire_ms, ns, key, .. } => {
                        listed.insert((expire_ms, ns, key.to_vec()));
                    }
                    DiskKey::Count { ns } => {
                        assert!(ids.contains_key(&ns), "count of a dead namespace");
                        let count = codec::key::decode_count(&value).unwrap();
                        assert_eq!(count, core.count(ns), "the stored count is the one in memory");
                    }
                    DiskKey::Garbage { .. } | DiskKey::Pending { .. } | DiskKey::DeadNs { .. } => {
                        panic!("work is left: {key:?}")
                    }
                    DiskKey::Names | DiskKey::Flushed | DiskKey::Library { .. } => {}
                }
            }
            assert!(owners.is_subset(&versions), "elements without metadata: {owners:?}, versions {versions:?}");
            // A crash may leave records of times that were changed; the sweep drops them when they are due.
            assert!(times.is_subset(&listed), "every time is listed");
            for (&ns, &count) in &counts {
                assert_eq!(core.count(ns), count, "keys of namespace {ns} in fjall");
            }
        }
        let expected: BTreeSet<_> = (self.model.iter())
            .flat_map(|(name, db)| db.iter().map(move |(key, value)| (*name, key.clone(), value.expire_ms)))
            .filter(|(_, _, expire_ms)| *expire_ms == 0 || *expire_ms > self.now_ms)
            .map(|(name, key, _)| (name, key))
            .collect();
        assert!(keys == expected, "metadata in fjall equals the model's keys");
    }
}
