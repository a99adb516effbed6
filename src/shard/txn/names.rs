//! Databases: which name means which id.

use std::sync::Arc;

use super::Txn;
use super::undo::{NamesBefore, Undo};
use crate::codec::{self, NsId, redo};
use crate::shard::memory::names::Names;
use crate::shard::memory::reap::Reap;

impl Txn<'_, '_> {
    /// Replaces the name → id map: a new id for each of `dead`, whose records become garbage.
    pub fn replace_names(&mut self, names: Arc<Names>, dead: &[NsId]) {
        assert_eq!(self.lease.len(), self.router.shards(), "namespaces change under the lease of all shards");
        self.rare_mut().host.renamed = true;
        let mut record = Vec::new();
        names.map().encode(&mut record);
        redo::encode_names(&record, self.set.redo.out());
        for at in 0..self.lease.len() as u16 {
            for &ns in dead {
                let mut key = Vec::new();
                codec::key::dead_ns_key(ns, &mut key);
                self.put_raw(at, key, Some(Vec::new()));
            }
            let core = &mut *self.lease[at as usize];
            if core.shard == 0 {
                let mut key = Vec::new();
                codec::key::names_key(&mut key);
                let old = core.put_raw(key.clone(), Some(record.clone()));
                self.set.undo.push(Undo::Raw { at, key, old });
            }
            let counts = dead.iter().filter_map(|ns| Some((*ns, core.counts.remove(ns)?))).collect();
            let (before, reap) = (std::mem::replace(&mut core.names, names.clone()), core.reap);
            let before = NamesBefore { names: before, counts, reap };
            self.set.undo.push(Undo::Names { at, before: Box::new(before) });
            if !dead.is_empty() {
                core.reap = Some(Reap::after_death(core.reap));
                core.drop_order();
                core.dirty_counts.retain(|ns| !dead.contains(ns));
            }
        }
    }
}
