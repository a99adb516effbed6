//! What a transaction has changed, for those who are told of events of keys: which objects, and what they were before.

use std::sync::Arc;

use super::undo::Undo;
use super::{Found, Mark, Txn};
use crate::codec::NsId;
use crate::log::Lsn;
use crate::meter;
use crate::shard::memory::object::Kind;
use crate::shard::memory::table::Index;
use crate::shard::memory::tracked::{Broadcast, Tracker};

/// What a key held before it was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Before {
    /// Nothing.
    Absent,
    /// Something whose time was past, or that of the last of its fields: what a sweep would have said that it removes.
    Expired(Swept),
    /// A value of this kind.
    Live(Kind),
}

/// What a sweep has removed, or an eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Swept {
    /// A key.
    Key,
    /// Fields of a hash.
    Fields,
    /// The last fields of a hash, and it with them.
    Hash,
    /// A key, for the sake of its room.
    Evicted,
}

/// The same with its key.
pub type SweptKey = (Swept, NsId, Box<[u8]>);

/// What a transaction gathers for those who want to be told.
#[derive(Default)]
pub struct News {
    /// Keys that were looked up in vain, where that is to be told.
    missed: Option<Vec<Box<[u8]>>>,
    /// What a sweep has removed, where that is to be told.
    swept: Option<Vec<SweptKey>>,
    /// Changes for those who have asked for beginnings of keys.
    pub(super) broadcast: Broadcast,
}

impl News {
    #[cold]
    pub(super) fn missed(&mut self, key: &[u8]) {
        if let Some(missed) = &mut self.missed {
            _ = meter::hold(key.len() + size_of::<Box<[u8]>>());
            missed.push(key.into());
        }
    }
}

impl Txn<'_, '_> {
    #[inline]
    pub(super) fn news_mut(&mut self) -> Option<&mut News> {
        self.rare.as_mut()?.news.as_mut()
    }

    /// What a sweep removes is noted from now on.
    pub(in crate::shard) fn note_sweeps(&mut self) {
        self.rare_mut().news.get_or_insert_default().swept = Some(Vec::new());
    }

    /// What one has removed since.
    pub(in crate::shard) fn take_swept(&mut self) -> Vec<SweptKey> {
        self.news_mut().and_then(|news| news.swept.take()).unwrap_or_default()
    }

    /// Keys that are looked up in vain are noted from now on.
    pub fn note_missed(&mut self) {
        self.rare_mut().news.get_or_insert_default().missed = Some(Vec::new());
    }

    /// Those that were noted since they were last taken.
    pub fn take_missed(&mut self) -> Vec<Box<[u8]>> {
        self.news_mut().and_then(|news| news.missed.as_mut()).map(std::mem::take).unwrap_or_default()
    }

    /// What is changed from here on is told of on its own.
    pub fn begin_part(&mut self) -> Mark {
        self.set.part = self.set.touched.len();
        self.mark()
    }

    /// The objects that were changed since a mark, each once, in the order in which they were first.
    pub fn changed_since(&self, mark: &Mark) -> Vec<Found> {
        let mut seen = std::collections::HashSet::new();
        let touched = self.set.touched[mark.touched.min(self.set.touched.len())..].iter();
        touched.map(|touched| touched.at).filter(|found| seen.insert((found.at, found.index))).collect()
    }

    /// The object of a key, if it was changed since a mark.
    pub fn changed_last(&self, ns: NsId, key: &[u8], mark: &Mark) -> Option<Found> {
        let is_its = |found: &Found| {
            let object = self.object(*found);
            object.ns == ns && object.key() == key
        };
        let touched = self.set.touched[mark.touched.min(self.set.touched.len())..].iter();
        touched.rev().map(|touched| touched.at).find(is_its)
    }

    /// What a changed object was at a mark.
    pub fn before(&self, found: Found, mark: &Mark) -> Before {
        let mut undo = self.set.undo[mark.undo.min(self.set.undo.len())..].iter();
        let first = undo.by_ref().find_map(|undo| match undo {
            Undo::Created { at } if *at == found => Some(Before::Absent),
            Undo::Header { at, kind, expire_ms, .. } if *at == found => Some(match kind {
                Kind::Absent => Before::Absent,
                _ if *expire_ms != 0 && *expire_ms <= self.due_ms => Before::Expired(Swept::Key),
                kind => Before::Live(*kind),
            }),
            _ => None,
        });
        match first {
            // Of what was put aside with it, the first is what there was.
            Some(Before::Live(Kind::Hash)) => {
                let was = undo.find_map(|undo| match undo {
                    Undo::Body { at, body, .. } if *at == found => Some(body),
                    _ => None,
                });
                let past = was.and_then(Option::as_ref).is_some_and(|body| body.extra.fields_are_past(self.due_ms));
                if past { Before::Expired(Swept::Hash) } else { Before::Live(Kind::Hash) }
            }
            first => first.unwrap_or_else(|| Before::Live(self.object(found).kind)),
        }
    }

    /// Has a client told of a key's next change: it has read it. Keys that are not under lease it has not.
    pub fn track(&mut self, key: &[u8], tracker: &Arc<Tracker>) {
        if let Ok((_, at)) = self.place(key) {
            let core = &mut *self.lease[at as usize];
            core.tracked.add(key, tracker, core.last_lsn);
        }
    }

    /// Everybody who keeps copies is told that all have changed: keys are known by their names alone, whatever database was
    /// emptied.
    pub fn forget_copies(&mut self, need: Lsn) {
        let Some(trackers) = self.lease.first().map(|core| core.tracked.trackers.clone()) else { return };
        self.lease.iter_mut().for_each(|core| core.tracked.clear());
        trackers.tell_all(need);
    }

    /// Removes an object of the core at this place of the lease: its time is past, or its room is needed.
    pub(in crate::shard) fn sweep_away(&mut self, at: u16, index: Index, what: Swept) {
        self.sweep_away_found(Found { at, index }, what);
    }

    /// The same of a found object.
    pub(in crate::shard) fn sweep_away_found(&mut self, found: Found, what: Swept) {
        self.note_swept(found, what);
        self.delete_found(found);
    }

    /// Notes that a sweep has removed something, if anybody wants to know.
    pub(in crate::shard) fn note_swept(&mut self, found: Found, what: Swept) {
        let Some(rare) = &mut self.rare else { return };
        let table = &self.lease[found.at as usize].table;
        if let Some(swept) = rare.news.as_mut().and_then(|news| news.swept.as_mut()) {
            let object = table.at(found.index);
            swept.push((what, object.ns, object.key().into()));
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::shard::keyspace::walk::tests::engine;
    use crate::shard::txn::WriteSet;

    /// Tables begin alike: those of several shards have their objects at the same places.
    #[test]
    fn what_was_changed_in_several_shards_is_each_told_of() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let engine = engine(dir.path(), 4);
        let keys: Vec<Vec<u8>> = (0..32u8).map(|n| vec![n]).collect();
        let changed = engine.transact(&engine.all_shards(), 1, |txn| {
            let mark = txn.begin_part();
            for key in keys.iter().chain(&keys) {
                txn.put_string(0, key, b"value", 0)?;
            }
            Ok(txn.changed_since(&mark).iter().map(|found| txn.object(*found).key().to_vec()).collect::<Vec<_>>())
        });
        assert_eq!(changed.unwrap(), keys);
    }

    /// A part that began within what is taken back ends there.
    #[test]
    fn what_is_changed_after_a_rollback_is_told_of() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let changed = engine(dir.path(), 1).transact(&[0], 1, |txn| {
            let begun = txn.begin_part();
            txn.put_string(0, b"before", b"value", 0)?;
            let mark = txn.mark();
            txn.put_string(0, b"taken back", b"value", 0)?;
            txn.begin_part();
            txn.rollback_to(mark);
            txn.put_string(0, b"after", b"value", 0)?;
            Ok(txn.changed_since(&begun).iter().map(|found| txn.object(*found).key().to_vec()).collect::<Vec<_>>())
        });
        assert_eq!(changed.unwrap(), [&b"before"[..], b"after"]);
    }

    /// The write set is its thread's: the next transaction begins where nothing was touched.
    #[test]
    fn a_part_ends_with_its_transaction() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let (engine, mut set) = (engine(dir.path(), 1), WriteSet::default());
        for end in ["commit", "rollback", "commit"] {
            let mut lease = engine.lease(&[0]);
            let mut txn = Txn::new(&mut lease, &engine.router, &mut set, 1, true);
            let begun = txn.mark();
            txn.put_string(0, b"before", b"value", 0).unwrap();
            assert_eq!(txn.changed_since(&begun).len(), 1, "{end}");
            txn.begin_part();
            txn.put_string(0, b"within", b"value", 0).unwrap();
            match end {
                "rollback" => txn.rollback_to(Mark::default()),
                _ => _ = txn.commit(&engine.log),
            }
        }
    }
}
