//! The end of a transaction, or of a part of it: what it leaves in log and cores, or nothing.

use super::undo::Undo;
use super::{Found, Hint, Mark, Tells, Touched, Txn, WriteSet};
use crate::codec::{Meta, NsId, redo};
use crate::log::{LARGE, Log, Lsn};
use crate::shard::memory::blocked::Turn;
use crate::shard::memory::core::Core;
use crate::shard::memory::object::{Kind, Object, state};
use crate::shard::memory::reads::Reads;
use crate::shard::memory::table::Index;

/// What each buffer of a write set may keep from one transaction to the next.
const KEPT_BYTES: usize = 1 << 20;
/// Objects whose uses a transaction can take back.
pub(super) const MOST_USES: usize = 4096;

/// Changes that are looked at for the one by which an object has become what it is at last.
const MOST_LOOKED_AT: usize = 64;

/// What the operation of a command takes beside the command's arguments, bytes.
const REDO_OF_A_COMMAND: usize = 16;

/// Inverses of an overwritten string: its header and its value.
const UNDO_OF_A_COMMAND: usize = 2;

impl Txn<'_, '_> {
    /// The reply depends on whatever the cores under lease hold: on absent keys, or on a whole shard.
    pub fn saw_all(&mut self) {
        let last = self.lease.iter().map(|core| core.last_lsn).max();
        self.need = self.need.max(last.unwrap_or(0));
    }

    /// Makes room for what so many commands, which write so many bytes, leave in the write set.
    pub fn reserve(&mut self, commands: usize, bytes: usize) {
        self.set.redo.reserve(bytes + commands * REDO_OF_A_COMMAND);
        self.set.undo.reserve(commands * UNDO_OF_A_COMMAND);
        self.set.touched.reserve(commands);
    }

    /// Where the transaction stands.
    pub fn mark(&self) -> Mark {
        let set = &self.set;
        Mark {
            redo: set.redo.bytes().len(),
            undo: set.undo.len(),
            touched: set.touched.len(),
            counts: set.counts.len(),
        }
    }

    /// Whether anything was written.
    pub fn has_writes(&self) -> bool {
        // Changed metadata is logged by the commit only.
        !self.set.redo.bytes().is_empty() || !self.set.undo.is_empty()
    }

    /// Nothing counts as used, as what was run so far is run again; of very many objects the first alone.
    pub fn take_back_uses(&mut self) {
        for (at, used) in self.set.uses.drain(..).rev() {
            self.lease[at.at as usize].table.at_mut(at.index).used = used;
        }
    }

    /// Takes back everything since a mark.
    pub fn rollback_to(&mut self, mark: Mark) {
        while self.set.undo.len() > mark.undo {
            if let Some(undo) = self.set.undo.pop() {
                self.undo(undo);
            }
        }
        self.set.redo.truncate(mark.redo);
        self.set.touched.truncate(mark.touched);
        if let Some(rare) = &mut self.rare {
            rare.host.rollback_to(mark.touched);
        }
        self.set.part = self.set.part.min(mark.touched);
        self.set.counts.truncate(mark.counts);
        if mark.undo == 0 {
            self.set.arena.clear();
            self.set.give_back();
        }
    }

    /// Appends all writes as one log record. Returns the LSN that the reply must wait for.
    pub fn commit(&mut self, log: &Log) -> Lsn {
        self.count_look_ups();
        self.log_pending();
        if self.set.redo.bytes().is_empty() && self.set.counts.is_empty() {
            debug_assert!(self.set.undo.is_empty(), "a change without an operation in the log");
            self.set.give_back();
            return self.need;
        }
        for (at, ns) in self.set.counts.drain(..) {
            let core = &self.lease[at as usize];
            redo::encode_count(core.shard, ns, core.count(ns), self.set.redo.out());
        }
        let lsn = match self.set.redo.bytes() {
            large if large.len() >= LARGE => log.append_large(self.set.redo.take()),
            redo => log.append(|_, out| out.extend_from_slice(redo)),
        };
        self.set.redo.clear();
        if self.rare.as_ref().is_some_and(|rare| rare.host.renamed) {
            self.follow_names(lsn);
        }
        let mut expired = None;
        for undo in self.set.undo.drain(..) {
            match undo {
                // Whoever removes what was past, or puts another in its place, has it expire: the key, or its fields.
                Undo::Header { at, kind, expire_ms, .. }
                    if expire_ms != 0 && expire_ms <= self.due_ms && kind != Kind::Absent =>
                {
                    self.lease[at.at as usize].stats.expired_keys += 1;
                    expired = Some(at);
                }
                Undo::Body { at, body: Some(body), .. } => {
                    let core = &mut *self.lease[at.at as usize];
                    if expired != Some(at) && body.extra.fields_are_past(self.due_ms) {
                        core.stats.expired_fields += body.size;
                    }
                    core.throw_away(body);
                }
                Undo::Libraries { at, .. } => self.lease[at as usize].libraries.stamp(lsn),
                _ => {}
            }
        }
        self.set.arena.clear();
        let mut forgets = false;
        for i in 0..self.set.touched.len() {
            self.fetch_touched(i);
            if self.stamp(self.set.touched[i], (lsn, i as u32)) {
                forgets = true;
            }
        }
        if forgets {
            self.forget_absent();
        }
        if let Some(news) = self.news_mut() {
            news.broadcast.tell(lsn);
        }
        self.set.touched.clear();
        self.set.part = 0;
        self.set.give_back();
        for core in self.lease.iter_mut() {
            core.last_lsn = lsn;
        }
        self.need = self.need.max(lsn);
        self.need
    }

    /// Counts a look-up of which nobody is told.
    pub fn count_quietly(&mut self, is_hit: bool) {
        self.hits += u64::from(is_hit);
        self.misses += u64::from(!is_hit);
    }

    /// Tells the shard's counters of the look-ups: those of a run that is repeated elsewhere do not count.
    #[inline]
    pub fn count_look_ups(&mut self) {
        let (hits, misses) = (std::mem::take(&mut self.hits), std::mem::take(&mut self.misses));
        if let Some(core) = self.lease.first_mut() {
            core.stats.keyspace_hits += hits;
            core.stats.keyspace_misses += misses;
        }
    }

    /// Logs the metadata of the bodies that changed, once each.
    fn log_pending(&mut self) {
        if !std::mem::take(&mut self.set.has_pending) {
            return;
        }
        for i in 0..self.set.touched.len() {
            self.fetch_touched(i);
            let Touched { at, .. } = self.set.touched[i];
            let table = &mut self.lease[at.at as usize].table;
            if !table.is_used(at.index) {
                continue;
            }
            let object = table.at_mut(at.index);
            if object.body.as_mut().is_some_and(|body| std::mem::take(&mut body.pending))
                && let Some(meta) = object.meta()
            {
                self.set.push_put(object.ns, object.key(), &meta, b"");
            }
        }
    }

    /// Has those follow who watch keys, or wait for them, of databases that the transaction has emptied or swapped.
    #[cold]
    fn follow_names(&mut self, lsn: Lsn) {
        let (mut last, mut emptied) = (None, false);
        for undo in &self.set.undo {
            // The first of a core knows the names that were before the transaction.
            if let Undo::Names { at, before } = undo
                && last.is_none_or(|last| last < *at)
            {
                if last.is_none() {
                    // What was changed before the names were.
                    for Touched { at, tells, .. } in &self.set.touched {
                        tell_watchers(&mut self.lease[at.at as usize], at.index, *tells);
                    }
                }
                let core = &mut *self.lease[*at as usize];
                if !core.watched.is_empty() {
                    core.watched.follow(&before.names, &core.names);
                }
                if !core.blocked.is_empty() {
                    core.blocked.follow(&before.names, &core.names);
                }
                emptied |= before.names.map().iter().any(|(_, id)| !core.names.is_live(id));
                last = Some(*at);
            }
        }
        if emptied {
            self.forget_copies(lsn);
        }
    }

    /// Gives a changed object the LSN, and tells whoever hears of it. Whether it may be forgotten: not before all that is told
    /// of it has been, as several commands of the transaction may have changed it.
    #[inline]
    fn stamp(&mut self, touched: Touched, turn: Turn) -> bool {
        let Touched { at, .. } = touched;
        let core = &mut *self.lease[at.at as usize];
        let is_heard = core.is_heard();
        let Some(object) = core.table.used_mut(at.index) else { return false };
        let (lsn, _) = turn;
        object.lsn = lsn;
        if let Some(body) = &mut object.body
            && body.version == 0
        {
            body.version = lsn;
        }
        let leaves_no_trace = leaves_no_trace(object);
        core.note_fields(at.index);
        if is_heard {
            self.tell(touched, turn);
        }
        leaves_no_trace
    }

    /// Tells whoever hears of a changed object.
    #[cold]
    fn tell(&mut self, Touched { at, tells, kind }: Touched, turn: Turn) {
        let (lsn, _) = turn;
        let core = &mut *self.lease[at.at as usize];
        tell_watchers(core, at.index, tells);
        let object = core.table.at(at.index);
        if tells >= Tells::WhoSawIt && (!core.tracked.is_empty() || core.tracked.trackers.broadcasts()) {
            let (key, trackers): (Box<[u8]>, _) = (object.key().into(), core.tracked.trackers.clone());
            core.tracked.changed(&key, self.by, lsn);
            if trackers.broadcasts() {
                let news = self.rare.get_or_insert_default().news.get_or_insert_default();
                news.broadcast.changed(&trackers, &key, self.by);
            }
        }
        let object = core.table.at(at.index);
        if tells != Tells::Nobody && !core.blocked.is_empty() {
            // Those who wait for it have their turn when it has become what it is now.
            let mut later = self.set.touched[turn.1 as usize + 1..].iter().take(MOST_LOOKED_AT);
            let tells_later =
                |later: &Touched| later.at == at && later.kind == object.kind && later.tells != Tells::Nobody;
            if kind == object.kind || !later.any(tells_later) {
                core.blocked.changed(object.ns, object.key(), turn);
            }
        }
    }

    /// Forgets the changed objects of which nothing is left.
    #[cold]
    fn forget_absent(&mut self) {
        for Touched { at, .. } in &self.set.touched {
            let core = &mut *self.lease[at.at as usize];
            if core.table.is_used(at.index) && leaves_no_trace(core.table.at(at.index)) {
                core.forget(at.index);
            }
        }
    }
}

/// Tells those who watch the key of a changed object.
#[inline]
fn tell_watchers(core: &mut Core, index: Index, tells: Tells) {
    if tells >= Tells::WhoSawIt && !core.watched.is_empty() {
        let object = core.table.at(index);
        core.watched.changed(object.ns, object.key(), tells == Tells::WhoSawIt);
    }
}

/// Whether an object is absent and never was in fjall: it leaves no tombstone.
fn leaves_no_trace(object: &Object) -> bool {
    const TRACE: u8 = state::MAYBE_STORED | state::IN_FLIGHT;
    object.kind == Kind::Absent && object.state & TRACE == 0
}

impl WriteSet {
    /// Capacities of the buffers, in bytes.
    #[inline]
    fn capacities(&self) -> [usize; 8] {
        [
            self.redo.capacity(),
            self.header.capacity(),
            self.arena.capacity(),
            self.undo.capacity() * size_of::<Undo>(),
            self.touched.capacity() * size_of::<Touched>(),
            self.counts.capacity() * size_of::<(u16, NsId)>(),
            self.hints.capacity() * size_of::<Hint>(),
            self.uses.capacity() * size_of::<(Found, u16)>(),
        ]
    }

    /// Keeps what was known of an object's uses before this one. Where so many are used that it is not kept, one more that counts
    /// says little.
    pub(super) fn note_use(&mut self, at: Found, before: u16) {
        if self.uses.len() < MOST_USES {
            self.uses.push((at, before));
        }
    }

    /// Forgets what was read and where keys lay, to be used for another command; what was written has been committed, or taken back.
    pub fn end(&mut self) {
        debug_assert!(
            self.redo.bytes().is_empty() && self.undo.is_empty() && self.touched.is_empty() && self.counts.is_empty(),
            "a command leaves its writes to the next one"
        );
        debug_assert!(self.capacities().iter().all(|bytes| *bytes <= KEPT_BYTES), "its thread keeps what it took");
        self.hints.clear();
        self.reads = Reads::default();
    }

    /// Gives back what an unusual transaction took: the buffers are its thread's, which may never see another.
    #[inline]
    fn give_back(&mut self) {
        // A look at all of them at once, which sees each that is too much; the exact one is seldom needed.
        if self.capacities().iter().fold(0, |all, bytes| all | bytes) > KEPT_BYTES {
            self.give_back_grown();
        }
    }

    #[cold]
    fn give_back_grown(&mut self) {
        if self.capacities().iter().any(|bytes| *bytes > KEPT_BYTES)
            && self.redo.bytes().is_empty()
            && self.undo.is_empty()
        {
            *self = WriteSet::default();
        }
    }

    pub(super) fn push_put(&mut self, ns: NsId, key: &[u8], meta: &Meta, value: &[u8]) {
        self.header.clear();
        meta.encode_header(&mut self.header);
        redo::encode_put(ns, key, &self.header, value, self.redo.out());
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::shard::keyspace::walk::tests::engine;
    use crate::shard::memory::uses::Frequency;

    /// Written, taken back or only read: what a huge transaction took is given back when it ends.
    #[test]
    fn a_huge_transaction_leaves_no_huge_buffers() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let engine = engine(dir.path(), 1);
        let ns = engine.first_names().id(b"0").unwrap();
        let keys: Vec<Vec<u8>> = (0..100_000u32).map(|n| n.to_be_bytes().to_vec()).collect();
        let mut set = WriteSet::default();
        for end in ["commit", "rollback", "nothing written"] {
            let mut lease = engine.lease(&[0]);
            let hint = |key: &Vec<u8>| Hint::new(key, engine.router.hash(key), 0);
            set.hints.extend(keys.iter().map(hint));
            let mut txn = Txn::new(&mut lease, &engine.router, &mut set, 1, true);
            if end != "nothing written" {
                keys.iter().for_each(|key| _ = txn.put_string(ns, key, b"value", 0).unwrap());
                assert!(txn.set.capacities().iter().sum::<usize>() > 4 * KEPT_BYTES);
            }
            match end {
                "rollback" => txn.rollback_to(Mark::default()),
                _ => _ = txn.commit(&engine.log),
            }
            drop(lease);
            assert!(set.capacities().iter().all(|bytes| *bytes <= KEPT_BYTES), "{end}: {:?}", set.capacities());
        }
    }

    /// Where uses are counted, a transaction that runs again leaves none, and keeps what it needs for that of so many keys at most.
    #[test]
    fn uses_are_taken_back_and_kept_of_so_many() {
        const NOW_MS: u64 = 1_000_000_000;
        let dir = crate::util::scratch::tempdir().unwrap();
        let engine = engine(dir.path(), 1);
        let ns = engine.first_names().id(b"0").unwrap();
        engine.uses.keep(Some(Frequency { log_factor: 0, decay_minutes: 0 }));
        let keys: Vec<Vec<u8>> = (0..2 * MOST_USES as u32).map(|n| n.to_be_bytes().to_vec()).collect();
        engine
            .transact(&[0], 1, |txn| keys.iter().try_for_each(|key| txn.put_string(ns, key, b"v", 0).map(drop)))
            .unwrap();
        let mut set = WriteSet::default();
        for (count, kept) in [(10, 10), (keys.len(), MOST_USES)] {
            let mut lease = engine.lease(&[0]);
            let mut txn = Txn::new(&mut lease, &engine.router, &mut set, NOW_MS, true);
            let one = |txn: &mut Txn<'_, '_>, key: &Vec<u8>| {
                let at = txn.find_any(ns, key).unwrap().unwrap();
                txn.object(at).used
            };
            let used = |txn: &mut Txn<'_, '_>| -> Vec<u16> { keys[..count].iter().map(|key| one(txn, key)).collect() };
            let before = used(&mut txn);
            keys[..count].iter().for_each(|key| _ = txn.find(ns, key).unwrap());
            assert_eq!(txn.set.uses.len(), kept);
            assert!(before.iter().zip(used(&mut txn)).all(|(before, now)| now != *before));
            txn.take_back_uses();
            assert_eq!(used(&mut txn)[..kept], before[..kept]);
        }
    }
}
