//! Namespaces: the map from a name (`SELECT 0`, or any name) to the id that stands in every record.
//!
//! One immutable map, shared by all cores and replaced under the lease of all shards. Ids are never reused, so that
//! FLUSHDB is a new id and SWAPDB swaps two, both without touching a record of a key.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use crate::codec::NsId;

/// The map, immutable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    /// Ids by name; a numbered database has its number as its name.
    pub ids: BTreeMap<Vec<u8>, NsId>,
    /// The id that the next name gets.
    pub next: NsId,
    live: HashSet<NsId, foldhash::fast::RandomState>,
}

impl Names {
    /// A map with the databases `0` to `databases - 1`.
    pub fn new(databases: u32) -> Self {
        Names::from_parts((0..databases).map(|n| (n.to_string().into_bytes(), n)).collect(), databases)
    }

    /// A map read from disk.
    pub fn from_parts(ids: BTreeMap<Vec<u8>, NsId>, next: NsId) -> Self {
        let live = ids.values().copied().collect();
        Names { ids, next, live }
    }

    /// Adds databases that the configuration has gained since.
    pub fn with_databases(mut self, databases: u32) -> Self {
        for n in 0..databases {
            let name = n.to_string().into_bytes();
            if !self.ids.contains_key(&name) {
                self.ids.insert(name, self.next);
                self.next += 1;
            }
        }
        Names::from_parts(self.ids, self.next)
    }

    /// The id of a name.
    pub fn id(&self, name: &[u8]) -> Option<NsId> {
        self.ids.get(name).copied()
    }

    /// Whether keys of this id exist; a dead id's records are garbage.
    #[inline]
    pub fn is_live(&self, id: NsId) -> bool {
        self.live.contains(&id)
    }

    /// The map with fresh ids for the given names; also the ids that died.
    pub fn renewed(&self, names: &[&[u8]]) -> (Arc<Names>, Vec<NsId>) {
        let mut ids = self.ids.clone();
        let mut next = self.next;
        let mut dead = Vec::new();
        for &name in names {
            if let Some(id) = ids.get_mut(name) {
                dead.push(std::mem::replace(id, next));
                next += 1;
            }
        }
        (Arc::new(Names::from_parts(ids, next)), dead)
    }

    /// The map with one name more.
    pub fn with(&self, name: &[u8]) -> Arc<Names> {
        let mut ids = self.ids.clone();
        ids.insert(name.to_vec(), self.next);
        Arc::new(Names::from_parts(ids, self.next + 1))
    }

    /// The map with two names' ids swapped.
    pub fn swapped(&self, a: &[u8], b: &[u8]) -> Option<Arc<Names>> {
        let (x, y) = (self.id(a)?, self.id(b)?);
        let mut ids = self.ids.clone();
        ids.insert(a.to_vec(), y);
        ids.insert(b.to_vec(), x);
        Some(Arc::new(Names::from_parts(ids, self.next)))
    }
}
