//! Namespaces: the map from a name (`SELECT 0`, or any name) to the id that stands in every record.
//!
//! One immutable map, shared by all cores and replaced under the lease of all shards. Ids are never reused, so that
//! FLUSHDB is a new id and SWAPDB swaps two, both without touching a record of a key.

use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;
use std::sync::Arc;

use crate::codec::{NamespaceMap, NsId};

/// The map, immutable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    map: NamespaceMap,
    live: HashSet<NsId, foldhash::fast::RandomState>,
}

impl Names {
    /// A map as read from disk, or an empty one, with the databases `0` to `databases - 1`.
    pub fn new(mut map: NamespaceMap, databases: u32) -> Self {
        for name in (0..databases).map(|n| n.to_string().into_bytes()) {
            if map.get(&name).is_none() {
                map.renew(&name);
            }
        }
        Names::from_map(map)
    }

    /// A map as it stands in a record.
    pub fn from_map(map: NamespaceMap) -> Self {
        let live = map.iter().map(|(_, id)| id).collect();
        Names { map, live }
    }

    /// The map itself.
    pub fn map(&self) -> &NamespaceMap {
        &self.map
    }

    /// The id of a name.
    pub fn id(&self, name: &[u8]) -> Option<NsId> {
        self.map.get(name)
    }

    /// Whether keys of this id exist; a dead id's records are garbage.
    #[inline]
    pub fn is_live(&self, id: NsId) -> bool {
        self.live.contains(&id)
    }

    /// Takes what is kept by id out of a map, where a name that was of this id has another one now: with that.
    pub fn take_moved<T, S: BuildHasher>(&self, now: &Names, of: &mut HashMap<NsId, T, S>) -> Vec<(NsId, T)> {
        let moved = self.map.iter().filter_map(|(name, old)| Some((old, now.id(name).filter(|new| *new != old)?)));
        moved.filter_map(|(old, new)| Some((new, of.remove(&old)?))).collect()
    }

    /// The map with fresh ids for the given names; also the ids that died. `None` when all ids are used up.
    pub fn renewed(&self, names: &[&[u8]]) -> Option<(Arc<Names>, Vec<NsId>)> {
        let mut map = self.map.clone();
        let mut dead = Vec::new();
        for &name in names {
            dead.extend(map.renew(name)?.1);
        }
        Some((Arc::new(Names::from_map(map)), dead))
    }

    /// The map with two names' ids swapped; `None` unless both exist.
    pub fn swapped(&self, a: &[u8], b: &[u8]) -> Option<Arc<Names>> {
        let mut map = self.map.clone();
        map.swap(a, b).then(|| Arc::new(Names::from_map(map)))
    }
}
