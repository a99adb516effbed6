//! What one client watches: its end of [`crate::shard::memory::watched`].
//!
//! A key is watched under the id that its database's name stands for. FLUSHDB and SWAPDB give the name another id, under which it
//! is watched from then on, and touch nothing else of what is watched, however much that is: EXEC sees it.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::Engine;
use crate::codec::NsId;
use crate::error::{Error, Result};
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
    /// Its database, and what that name stood for when it was first watched.
    db: Box<[u8]>,
    ns: NsId,
    key: Box<[u8]>,
    seen: Seen,
}

/// When a key expires, Unix ms, 0 for never; `None` if it was not there.
pub type Seen = Option<u64>;

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

    /// Watches a key of a database, which is as it was seen under this lease, from now on.
    ///
    /// # Errors
    /// `Undeclared`: the lease does not have it.
    pub fn add(&mut self, txn: &mut Txn<'_, '_>, (db, ns): (&[u8], NsId), key: &[u8], seen: Seen) -> Result {
        if let Some(shard) = txn.watch(ns, key, &self.watcher, seen.is_some())? {
            self.keys.push(Key { shard, db: db.into(), ns, key: key.into(), seen });
            self.bytes += Watch::key_bytes(db, key);
        }
        Ok(())
    }

    /// Whether it was told of a change.
    pub fn is_told(&self) -> bool {
        self.watcher.is_told()
    }

    /// Whether a key has changed. Of a database that was emptied or swapped meanwhile those have that were there, or are there now.
    ///
    /// # Errors
    /// `Undeclared`: not all of them are under lease, and may change as soon as anybody has looked. Those of [`Txn::find`].
    pub fn is_broken(&self, txn: &mut Txn<'_, '_>) -> Result<bool> {
        if !self.keys.iter().all(|key| txn.shards().any(|shard| shard == key.shard)) {
            return Err(Error::Undeclared);
        }
        for Key { db, ns, key, seen, .. } in &self.keys {
            let names = txn.lease.first().map(|core| &core.names);
            let broken = match names.and_then(|names| names.id(db)) {
                Some(now) if now != *ns => seen.is_some() || txn.find(now, key)?.is_some(),
                _ => seen.is_some_and(|expire_ms| expire_ms != 0 && expire_ms <= txn.now_ms),
            };
            if broken {
                return Ok(true);
            }
        }
        Ok(self.is_told())
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
                    for Key { db, ns, key, .. } in &some {
                        let ns = core.names.id(db).unwrap_or(*ns);
                        core.watched.remove(ns, key, &watcher);
                    }
                }
                lease
            });
            engine.post([shard].into_iter().collect(), job);
        }
    }
}
