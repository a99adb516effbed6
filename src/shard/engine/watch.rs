//! What one client watches: its end of [`crate::shard::memory::watched`].

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::Engine;
use crate::error::Result;
use crate::shard::actor::{Job, ShardSet};
use crate::shard::memory::watched::Watcher;
use crate::shard::router::ShardId;
use crate::shard::txn::Txn;
use crate::util::alloc::block_bytes;
use crate::util::scale::Scaled;

/// Keys that are let go under one hold of their shard.
const LET_GO: Scaled<usize> = Scaled::new(512).in_unit_tests(4);

/// The keys that a client watches. When it is dropped nobody watches them for it any more.
#[derive(Debug)]
pub struct Watch {
    engine: Weak<Engine>,
    watcher: Arc<Watcher>,
    keys: Vec<Key>,
    bytes: usize,
}

/// A watched key.
#[derive(Debug)]
struct Key {
    shard: ShardId,
    db: Box<[u8]>,
    key: Box<[u8]>,
    /// When it expires, Unix ms; 0 for never, or if it was not there.
    expire_ms: u64,
}

impl Watch {
    /// Of a client that watches nothing yet.
    pub fn new(engine: &Arc<Engine>) -> Self {
        engine.watching.fetch_add(1, Ordering::Relaxed);
        Watch { engine: Arc::downgrade(engine), watcher: Arc::default(), keys: Vec::new(), bytes: 0 }
    }

    /// Keys that are watched.
    pub const fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Memory of it all, the shards' part included.
    pub fn memory_bytes(&self) -> usize {
        2 * block_bytes(self.keys.capacity() * size_of::<Key>()) + self.bytes
    }

    /// What a key adds to that.
    pub fn key_bytes(db: &[u8], key: &[u8]) -> usize {
        block_bytes(db.len()) + 2 * block_bytes(key.len())
    }

    /// The shards of its keys.
    pub fn shards(&self) -> ShardSet {
        let mut shards: Vec<ShardId> = self.keys.iter().map(|key| key.shard).collect();
        shards.sort_unstable();
        shards.dedup();
        shards.into_iter().collect()
    }

    /// Watches a key of a database from now on.
    ///
    /// # Errors
    /// As of [`Txn::find`]: nothing was done.
    pub fn add(&mut self, txn: &mut Txn<'_, '_>, db: &[u8], key: &[u8]) -> Result {
        let expire_ms = txn.watch(db, key, &self.watcher)?;
        if let Some(expire_ms) = expire_ms {
            let shard = txn.router.shard_of(key);
            self.keys.push(Key { shard, db: db.into(), key: key.into(), expire_ms });
            self.bytes += Watch::key_bytes(db, key);
        }
        Ok(())
    }

    /// Whether it was told of a change.
    pub fn is_told(&self) -> bool {
        self.watcher.is_told()
    }

    /// Whether a change has come to one of its keys by this time, Unix ms. Exact under the lease of their shards.
    pub fn is_broken(&self, now_ms: u64) -> bool {
        let is_over = |key: &Key| key.expire_ms != 0 && key.expire_ms <= now_ms;
        self.watcher.is_told() || self.keys.iter().any(is_over)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let Some(engine) = self.engine.upgrade() else { return };
        engine.watching.fetch_sub(1, Ordering::Relaxed);
        let mut keys = std::mem::take(&mut self.keys);
        keys.sort_unstable_by_key(|key| key.shard);
        while let Some(shard) = keys.last().map(|key| key.shard) {
            let from = keys.partition_point(|key| key.shard < shard).max(keys.len().saturating_sub(LET_GO.get()));
            let (some, watcher) = (keys.split_off(from), self.watcher.clone());
            let job: Job = Box::new(move |mut lease| {
                if let Some(core) = lease.first_mut() {
                    for Key { db, key, .. } in &some {
                        let Some(ns) = core.names.id(db) else { continue };
                        core.watched.remove(ns, key, &watcher);
                    }
                }
                lease
            });
            engine.post([shard].into_iter().collect(), job);
        }
    }
}
