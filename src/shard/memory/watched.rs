//! Keys of a shard that clients watch (WATCH), and who is told when one changes.
//!
//! A transaction that commits tells the watchers of every key that it has changed, under the lease of the key's shard; EXEC
//! looks, under the lease of all keys that its client watches, whether it was told. So no change falls between its look and
//! its commit, and of two clients that each watch what the other one writes, one fails.
//!
//! | change | told |
//! |---|---|
//! | a key is written or removed, by anybody | its watchers |
//! | it expires | nobody: who watches knows its time, and any change of that is a change |
//! | it is removed after it has expired, by itself or with its last field | those for whom it was there |
//! | a stream's groups and consumers | nobody, as in Redis |
//! | its database is emptied, or swapped with another | nobody: the name has another id then, and who watches compares; from now on it watches the key under that |
//!
//! Who was told is told no more: its key is forgotten here, so that a key that many watch costs its next writers nothing.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::names::Names;
use crate::codec::NsId;

/// One client, from its first WATCH to what ends it.
#[derive(Debug, Default)]
pub struct Watcher {
    told: AtomicBool,
}

impl Watcher {
    /// Whether a key that it watches has changed. Exact under the lease of all these.
    pub fn is_told(&self) -> bool {
        // The shards' locks order it.
        self.told.load(Ordering::Relaxed)
    }
}

/// A watcher, and whether the key was there when it came.
type Watching = (Arc<Watcher>, bool);
type Keys = HashMap<Box<[u8]>, Vec<Watching>, foldhash::fast::RandomState>;

/// The watched keys of a shard.
#[derive(Default)]
pub struct Watched {
    /// None of them empty.
    of: HashMap<NsId, Keys, foldhash::fast::RandomState>,
}

impl Watched {
    /// Whether nobody watches anything.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// Keys that are watched.
    pub fn len(&self) -> usize {
        self.of.values().map(HashMap::len).sum()
    }

    /// Has a watcher told of the key's next change. False if it watches it already.
    pub fn add(&mut self, ns: NsId, key: &[u8], watcher: &Arc<Watcher>, exists: bool) -> bool {
        let keys = self.of.entry(ns).or_default();
        let Some(watchers) = keys.get_mut(key) else {
            keys.insert(key.into(), vec![(watcher.clone(), exists)]);
            return true;
        };
        let is_new = !watchers.iter().any(|(other, _)| Arc::ptr_eq(other, watcher));
        if is_new {
            watchers.push((watcher.clone(), exists));
        }
        is_new
    }

    /// Forgets that somebody watches a key, if it still does.
    pub fn remove(&mut self, ns: NsId, key: &[u8], watcher: &Arc<Watcher>) {
        let Some(keys) = self.of.get_mut(&ns) else { return };
        let Some(watchers) = keys.get_mut(key) else { return };
        if let Some(at) = watchers.iter().position(|(other, _)| Arc::ptr_eq(other, watcher)) {
            watchers.swap_remove(at);
        }
        if watchers.is_empty() {
            keys.remove(key);
        }
        if keys.is_empty() {
            self.of.remove(&ns);
        }
    }

    /// Databases were emptied or swapped: a key is watched under its database's name, whatever that stands for.
    #[cold]
    pub fn follow(&mut self, before: &Names, now: &Names) {
        let moved = before.take_moved(now, &mut self.of);
        self.of.extend(moved);
    }

    /// A key has changed; or was removed after it had expired, which is a change for those alone for whom it was there.
    #[cold]
    pub fn changed(&mut self, ns: NsId, key: &[u8], had_expired: bool) {
        let Some(keys) = self.of.get_mut(&ns) else { return };
        let Some(watchers) = keys.get_mut(key) else { return };
        watchers.retain(|(watcher, existed)| {
            let stays = had_expired && !existed;
            if !stays {
                tell(watcher);
            }
            stays
        });
        if watchers.is_empty() {
            keys.remove(key);
        }
        if keys.is_empty() {
            self.of.remove(&ns);
        }
    }
}

fn tell(watcher: &Watcher) {
    watcher.told.store(true, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watchers<const N: usize>() -> [Arc<Watcher>; N] {
        std::array::from_fn(|_| Arc::default())
    }

    #[test]
    fn who_watches_a_key_is_told_once_and_forgotten() {
        let [a, b] = watchers();
        let mut watched = Watched::default();
        assert!(watched.add(1, b"key", &a, true));
        assert!(!watched.add(1, b"key", &a, true), "once is enough");
        assert!(watched.add(1, b"other", &b, false));
        assert!(watched.add(2, b"key", &b, false));
        assert_eq!(watched.len(), 3);
        watched.changed(1, b"none", false);
        watched.changed(3, b"key", false);
        assert!(!a.is_told() && !b.is_told());
        watched.changed(1, b"other", true);
        assert!(!b.is_told(), "what was not there has not gone");
        watched.changed(1, b"key", true);
        assert!(a.is_told() && !b.is_told());
        assert_eq!(watched.len(), 2);
        watched.remove(1, b"key", &a);
        watched.remove(1, b"other", &a);
        assert_eq!(watched.len(), 2, "it was another's");
        watched.remove(1, b"other", &b);
        watched.remove(2, b"key", &b);
        assert!(watched.is_empty());
        assert!(!b.is_told());
        // Nor is anything left of a database when the last of its keys has changed.
        assert!(watched.add(2, b"key", &b, true));
        watched.changed(2, b"key", false);
        assert!(b.is_told() && watched.is_empty());
    }
}
