//! Libraries of functions within a transaction: read under any lease, replaced under that of all shards.

use std::sync::Arc;

use super::{Txn, Undo};
use crate::codec;
use crate::error::{Error, Result};
use crate::shard::memory::libraries::Libraries;

impl Txn<'_, '_> {
    /// The libraries. The reply depends on them.
    ///
    /// # Errors
    /// `Undeclared`: no core is under lease.
    pub fn libraries(&mut self) -> Result<Arc<Libraries>> {
        let libraries = self.lease.first().ok_or(Error::Undeclared)?.libraries.clone();
        self.need = self.need.max(libraries.lsn());
        Ok(libraries)
    }

    /// Replaces the libraries; what differs from those before goes into the log.
    ///
    /// # Errors
    /// As of [`Txn::libraries`].
    pub fn replace_libraries(&mut self, libraries: Libraries) -> Result {
        assert_eq!(self.lease.len(), self.router.shards(), "libraries change under the lease of all shards");
        let (before, libraries) = (self.libraries()?, Arc::new(libraries));
        let record_key = |name: &[u8]| {
            let mut key = Vec::new();
            codec::key::library_key(name, &mut key);
            key
        };
        // The lease is in ascending order.
        const SHARD_0: u16 = 0;
        let mut changed = false;
        for gone in before.iter().filter(|library| libraries.get(&library.name).is_none()) {
            self.put_raw(SHARD_0, record_key(&gone.name), None);
            changed = true;
        }
        for library in libraries.iter() {
            if before.get(&library.name).is_none_or(|known| !Arc::ptr_eq(known, library)) {
                self.put_raw(SHARD_0, record_key(&library.name), Some(library.code.to_vec()));
                changed = true;
            }
        }
        if !changed {
            return Ok(());
        }
        for at in 0..self.lease.len() as u16 {
            let before = std::mem::replace(&mut self.lease[at as usize].libraries, libraries.clone());
            self.set.undo.push(Undo::Libraries { at, before });
        }
        Ok(())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::shard::keyspace::walk::tests::engine;
    use crate::shard::memory::libraries::Library;
    use crate::shard::txn::{Mark, WriteSet};

    fn library(name: &str) -> Arc<Library> {
        Arc::new(Library::new(name.as_bytes(), name.as_bytes(), None, Vec::new()))
    }

    /// What is taken back leaves nothing, in no core; what is committed is in all, with its LSN.
    #[test]
    fn a_list_is_everywhere_or_nowhere() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let engine = engine(dir.path(), 3);
        let mut set = WriteSet::default();
        let mut lease = engine.lease(&engine.all_shards());
        let mut txn = Txn::new(&mut lease, &engine.router, &mut set, 1, true);
        let before: Vec<_> = txn.lease.iter().map(|core| (core.raw.clone(), core.dirty_bytes)).collect();
        let one = Libraries::default().with(vec![library("one")]).unwrap();
        txn.replace_libraries(one).unwrap();
        assert!(txn.has_writes() && txn.lease.iter().all(|core| core.libraries.counts().0 == 1));
        txn.rollback_to(Mark::default());
        assert!(!txn.has_writes() && txn.lease.iter().all(|core| core.libraries.counts().0 == 0));
        let after: Vec<_> = txn.lease.iter().map(|core| (core.raw.clone(), core.dirty_bytes)).collect();
        assert_eq!(after, before);

        // An empty list in place of an empty one is no write.
        txn.replace_libraries(Libraries::default()).unwrap();
        assert!(!txn.has_writes());

        let two = Libraries::default().with(vec![library("one"), library("two")]).unwrap();
        txn.replace_libraries(two).unwrap();
        let lsn = txn.commit(&engine.log);
        assert!(txn.lease.iter().all(|core| core.libraries.lsn() == lsn));
        let without = txn.libraries().unwrap().without(b"one");
        txn.replace_libraries(without).unwrap();
        assert!(txn.commit(&engine.log) > lsn);
        drop(lease);
        let lease = engine.lease(&[0]);
        let mut records = lease[0].raw.clone();
        records.retain(|key, _| !before[0].0.contains_key(key));
        let records: Vec<_> = records.iter().map(|(key, code)| (&key[..], code.as_deref())).collect();
        assert_eq!(records, [(&b"Fone"[..], None), (b"Ftwo", Some(&b"two"[..]))]);

        let mut lease = engine.lease(&[]);
        let mut txn = Txn::new(&mut lease, &engine.router, &mut set, 1, true);
        assert_eq!(txn.libraries().unwrap_err(), Error::Undeclared, "without a core nobody knows");
    }
}
