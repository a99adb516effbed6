//! Walks of the key space, shard by shard: SCAN, KEYS, RANDOMKEY.
//!
//! A shard's keys have two sources: the metadata records in fjall, and the objects in the table that fjall does not show
//! yet. The table decides about every key that it holds: a removal masks what fjall shows, a newer type counts.
//!
//! | phase | meets | in the order of |
//! |---|---|---|
//! | `Merged` | both sources, while the order index is whole ([`super::order`]) | stored keys |
//! | `Table` | without it, first what fjall does not show | places of the table |
//! | `Stored` | then what fjall shows | stored keys |
//!
//! So no walk waits for an index. Why none of the keys that are there all along is missed: an object keeps its place
//! until fjall shows its key, and what fjall shows it goes on showing as long as the key is there. A key may be met twice,
//! in the table and, when a flush or an overwriting comes between, in fjall.
//!
//! A walk goes in bounded steps, each under one hold of the lock. It may wait for the disk: [`must_wait`] tells a thread
//! that must not whether it would.

use std::ops::ControlFlow;

use crate::codec::{self, NsId};
use crate::error::Result;
use crate::meter;

use crate::shard::memory::core::{Core, storage, unreadable};
use crate::shard::memory::object::{Kind, Object};
use crate::shard::memory::order::{self, Order, stored_form};
use crate::shard::memory::table::{Index, table_hash};
use crate::shard::router::Router;

/// Places of the table that a step looks at, some tenths of a millisecond: those of a small database's tables together, which
/// is so met in one page.
const PLACES: usize = if cfg!(test) { 16 } else { 16 << 10 };
/// As many of them take as long as a key does.
const PLACES_PER_KEY: usize = 8;

/// A key met on a walk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Met {
    /// The user key.
    pub key: Vec<u8>,
    /// As a long key stands in records.
    long_form: Option<Vec<u8>>,
    /// Its type; `Absent` for a key that is gone and only still stands in one of the sources.
    pub kind: Kind,
}

impl Met {
    fn of(object: &Object, now_ms: u64) -> Self {
        let key = object.key();
        let long_form = codec::is_long(key).then(|| stored_form(key).into_owned());
        let kind = if object.is_live(now_ms) { object.kind } else { Kind::Absent };
        Met { key: key.to_vec(), long_form, kind }
    }

    /// Whether the key is there.
    pub fn is_live(&self) -> bool {
        self.kind != Kind::Absent
    }

    /// The key as it stands in records.
    pub fn stored_key(&self) -> &[u8] {
        self.long_form.as_ref().unwrap_or(&self.key)
    }
}

/// Part of a walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phase {
    /// Both sources.
    #[default]
    Merged,
    /// The table, from this place on.
    Table(Index),
    /// fjall.
    Stored,
}

/// Where the walk of a shard is to be taken up. The default is its beginning.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stop {
    /// What part of it is under way.
    pub phase: Phase,
    /// Keys up to this stored one have been met, from whichever source.
    pub after: Option<Box<[u8]>>,
}

/// Whether a step of a walk would read the disk.
pub fn must_wait(core: &Core) -> bool {
    core.store_is_cold
}

/// About the keys that a whole walk of a namespace looks at, places of the table included.
pub fn cost(core: &Core, ns: NsId) -> usize {
    let table = match core.whole_order() {
        Some(_) => 0,
        None => core.order_cost().unwrap_or(core.table.places() as usize),
    };
    if core.count(ns) == 0 { 0 } else { core.count(ns) as usize + table / PLACES_PER_KEY }
}

/// A step of a walk through the keys of a namespace that begin alike.
pub struct Walk<'a> {
    router: &'a Router,
    ns: NsId,
    prefix: &'a [u8],
    now_ms: u64,
    /// Places of tables that it may still look at.
    places: usize,
}

impl<'a> Walk<'a> {
    /// A step through the keys of a namespace that begin so. Of a prefix longer than what a stored key holds only the
    /// beginning counts.
    pub fn new(router: &'a Router, ns: NsId, prefix: &'a [u8], now_ms: u64) -> Self {
        let prefix = &prefix[..prefix.len().min(codec::MAX_INLINE)];
        Walk { router, ns, prefix, now_ms, places: PLACES }
    }

    /// Another step begins.
    pub fn renew(&mut self) {
        self.places = PLACES;
    }

    /// Goes on through the keys of a shard until `visit` takes no more, with false, or as many places of the table have
    /// been looked at as one step may. Keys that are gone are visited too where fjall shows them, so that who counts
    /// visits bounds the work. Answers where to go on; `None` at the end.
    pub fn go_on(&mut self, core: &mut Core, from: &Stop, mut visit: impl FnMut(&Met) -> bool) -> Result<Option<Stop>> {
        meter::step(1)?;
        if !core.names.is_live(self.ns) || core.count(self.ns) == 0 {
            return Ok(None);
        }
        let after = from.after.as_deref();
        let table_from = match from.phase {
            Phase::Stored => None,
            Phase::Table(place) => Some(place),
            Phase::Merged => {
                let cost = core.order_cost().filter(|_| core.order.is_none()).unwrap_or(0);
                if cost > self.places && self.places < PLACES {
                    return Ok(Some(from.clone()));
                }
                self.places = self.places.saturating_sub(cost);
                core.need_order(self.now_ms, self.is_choosy(core));
                if let Some(order) = core.whole_order() {
                    let merge = Merge { core, order: Some(order), walk: self };
                    return merge.run(after, Phase::Merged, visit);
                }
                Some(0)
            }
        };
        if let Some(place) = table_from
            && let ControlFlow::Break(place) = self.table(core, place, after, &mut visit)
        {
            return Ok(Some(Stop { phase: Phase::Table(place), after: from.after.clone() }));
        }
        Merge { core, order: None, walk: self }.run(after, Phase::Stored, visit)
    }

    /// Whether going through the whole table would be long for what there is to be found.
    fn is_choosy(&self, core: &Core) -> bool {
        let places = core.table.places() as usize;
        let unstored = core.dirty.len() + core.in_flight.len();
        !self.prefix.is_empty() || core.count(self.ns) as usize * 4 < places || unstored * 8 < places
    }

    /// Visits what is in the table and not in fjall. Breaks with the place where to go on.
    fn table(
        &mut self,
        core: &Core,
        from: Index,
        after: Option<&[u8]>,
        visit: &mut impl FnMut(&Met) -> bool,
    ) -> ControlFlow<Index> {
        for place in from..core.table.places() {
            if self.places == 0 {
                return ControlFlow::Break(place);
            }
            self.places -= 1;
            let object = core.table.at(place);
            let new = core.table.is_used(place)
                && object.ns == self.ns
                && order::is_unstored(object)
                && object.is_live(self.now_ms)
                && object.key().starts_with(self.prefix)
                && after.is_none_or(|after| order::compare(object.key(), after).is_gt());
            if new && !visit(&Met::of(object, self.now_ms)) {
                return ControlFlow::Break(place);
            }
        }
        ControlFlow::Continue(())
    }
}

/// Both sources, or fjall alone, in the order of stored keys.
struct Merge<'a> {
    core: &'a Core,
    order: Option<&'a Order>,
    walk: &'a Walk<'a>,
}

impl Merge<'_> {
    fn run(&self, after: Option<&[u8]>, phase: Phase, mut visit: impl FnMut(&Met) -> bool) -> Result<Option<Stop>> {
        let &Walk { ns, prefix, now_ms, router, .. } = self.walk;
        let behind = after.filter(|after| *after >= prefix);
        if behind.is_some_and(|after| !after.starts_with(prefix)) {
            return Ok(None);
        }
        let (core, table) = (self.core, &self.core.table);
        let from = self.order.map(|order| order.from(table, ns, behind.unwrap_or(prefix), behind.is_none()));
        let begins_so = |index: &Index| table.at(*index).key().starts_with(prefix);
        let mut born = from.into_iter().flatten().take_while(begins_so).peekable();
        let mut stored = Stored::open(core, ns, prefix, behind)?;
        let mut last: Option<Met> = None;
        loop {
            meter::step(1)?;
            let born_first = match (born.peek(), &stored.next) {
                (None, None) => return Ok(None),
                (Some(&index), Some(shown)) => order::compare(table.at(index).key(), shown.stored_key()).is_le(),
                (born, _) => born.is_some(),
            };
            let met = if born_first {
                let Some(index) = born.next() else { return Ok(None) };
                let met = Met::of(table.at(index), now_ms);
                if stored.next.as_ref().is_some_and(|shown| shown.stored_key() == met.stored_key()) {
                    stored.advance()?;
                }
                met
            } else {
                let Some(found) = stored.next.take() else { return Ok(None) };
                stored.advance()?;
                found.current(core, router, ns, now_ms)
            };
            if !visit(&met) {
                let after = last.map_or_else(|| after.map(Box::from), |last| Some(last.stored_key().into()));
                return Ok(Some(Stop { phase, after }));
            }
            last = Some(met);
        }
    }
}

/// A metadata record that fjall shows.
struct StoredKey {
    key: Vec<u8>,
    long_form: Option<Vec<u8>>,
    meta: codec::Meta,
}

impl StoredKey {
    fn stored_key(&self) -> &[u8] {
        self.long_form.as_ref().unwrap_or(&self.key)
    }

    /// The key as it is now: the table knows better than fjall.
    fn current(self, core: &Core, router: &Router, ns: NsId, now_ms: u64) -> Met {
        let (kind, live) = match core.table.find(table_hash(router.hash(&self.key), ns), ns, &self.key) {
            Some(index) => {
                let object = core.table.at(index);
                (object.kind, object.is_live(now_ms))
            }
            None => (Kind::from(self.meta.kind), !self.meta.expired(now_ms)),
        };
        Met { key: self.key, long_form: self.long_form, kind: if live { kind } else { Kind::Absent } }
    }
}

struct Stored {
    range: crate::store::Range,
    next: Option<StoredKey>,
}

impl Stored {
    fn open(core: &Core, ns: NsId, prefix: &[u8], after: Option<&[u8]>) -> Result<Self> {
        let mut range = codec::key::meta_prefix_range(ns, prefix);
        if let Some(after) = after {
            range.lower.clear();
            codec::key::meta_key_of_stored(ns, after, &mut range.lower);
            range.lower.push(0);
        }
        let range = core.partition.range(&range.lower, &range.upper).map_err(unreadable)?;
        let mut stored = Stored { range, next: None };
        stored.advance()?;
        Ok(stored)
    }

    fn advance(&mut self) -> Result {
        let Some(item) = self.range.next() else {
            self.next = None;
            return Ok(());
        };
        let (disk_key, value) = item.map_err(unreadable)?;
        let (meta, long_key, _) = codec::Meta::decode(&value).map_err(|e| storage(&disk_key, e))?;
        let codec::DiskKey::Meta { key, .. } = codec::key::decode_key(&disk_key).map_err(|e| storage(&disk_key, e))?
        else {
            return Err(storage(&disk_key, "no metadata record"));
        };
        let (key, long_form) = match long_key {
            Some(long_key) => (long_key.to_vec(), Some(key.to_vec())),
            None => (key.to_vec(), None),
        };
        self.next = Some(StoredKey { key, long_form, meta });
        Ok(())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
pub(crate) mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use crate::shard::engine::{Engine, EngineOptions};

    /// Of an engine of few shards that does nothing of its own accord.
    pub(crate) fn options(dir: &std::path::Path, shards: u16) -> EngineOptions {
        EngineOptions {
            dir: dir.into(),
            shards: Some(shards),
            databases: 4,
            fsync: crate::log::Fsync::No,
            table_budget: 1 << 20,
            dirty_budget: 1 << 30,
            cold_budget: 1 << 20,
            block_cache: 1 << 20,
            log_limit: 1 << 30,
            nice: 0,
            background: false,
        }
    }

    /// Such an engine.
    pub(crate) fn engine(dir: &std::path::Path, shards: u16) -> Arc<Engine> {
        let engine = Engine::open(Arc::new(crate::log::RealIo), options(dir, shards)).unwrap();
        engine.replay().unwrap();
        engine
    }

    /// Numbers of chance that are the same every time.
    pub(crate) fn chance(seed: u64) -> impl FnMut(u64) -> u64 {
        let mut state = seed;
        move |below| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        }
    }

    fn key(chance: &mut impl FnMut(u64) -> u64) -> Vec<u8> {
        let letters = [b'a', b'b', 0, 0xff];
        let mut key: Vec<u8> = (0..chance(4)).map(|_| letters[chance(4) as usize]).collect();
        if chance(8) == 0 {
            // A long key: keys that share its beginning sort by digest.
            key.resize(codec::MAX_INLINE, b'x');
            key.extend_from_slice(&[b'y'; 40][..1 + chance(40) as usize]);
        }
        key
    }

    fn stored(key: &[u8]) -> Vec<u8> {
        let mut stored = Vec::new();
        codec::push_stored(key, &mut stored);
        stored
    }

    /// What steps meet from here to the end, live keys only, in the order in which they do.
    pub(crate) fn met(core: &mut Core, router: &Router, ns: NsId, prefix: &[u8], from: Stop, now_ms: u64) -> Vec<Met> {
        let mut all = Vec::new();
        let mut next = Some(from);
        while let Some(from) = next {
            let mut walk = Walk::new(router, ns, prefix, now_ms);
            next = walk
                .go_on(core, &from, |met| {
                    assert_eq!(met.stored_key(), stored(&met.key));
                    all.extend(met.is_live().then(|| met.clone()));
                    true
                })
                .unwrap();
        }
        all
    }

    /// One shard and what its database is to hold: time of expiry by stored key, with the key.
    struct Modelled {
        engine: Arc<Engine>,
        model: BTreeMap<Vec<u8>, (Vec<u8>, u64)>,
        now_ms: u64,
        ns: NsId,
        names: Arc<crate::shard::memory::names::Names>,
    }

    impl Modelled {
        fn new(dir: &std::path::Path) -> Self {
            let engine = engine(dir, 1);
            engine.shards[0].core().table_limit = 4096;
            let names = engine.first_names();
            Modelled { engine, model: BTreeMap::new(), now_ms: 1_000_000, ns: names.id(b"0").unwrap(), names }
        }

        fn live(&self) -> impl Iterator<Item = (&Vec<u8>, &Vec<u8>)> {
            let live = |(_, (_, expire_ms)): &(_, &(_, u64))| *expire_ms == 0 || *expire_ms > self.now_ms;
            self.model.iter().filter(live).map(|(stored, (key, _))| (stored, key))
        }

        /// Something happens between two steps of a walk.
        fn happen(&mut self, chance: &mut impl FnMut(u64) -> u64) {
            let (engine, now_ms, ns) = (self.engine.clone(), self.now_ms, self.ns);
            let key = key(chance);
            let expire_ms = if chance(4) == 0 { now_ms + chance(100) } else { 0 };
            match chance(60) {
                0 | 1 => engine.flush().unwrap(),
                2 => self.now_ms += chance(50),
                3 => engine.shards[0].core().drop_order(),
                4..10 => _ = engine.shards[0].core().grow_order(),
                10..14 => {
                    let failed: Result = engine.transact(&[0], now_ms, |txn| {
                        txn.delete(ns, &key)?;
                        txn.put_string(ns, &key, b"other", expire_ms)?;
                        txn.put_string(ns, b"never", b"v", 0)?;
                        Err(crate::Error::Cold)
                    });
                    assert_eq!(failed, Err(crate::Error::Cold));
                }
                14 => {
                    let (renewed, dead) = self.names.renewed(&[b"0"]).unwrap();
                    let empty = chance(4) == 0;
                    let outcome = engine.transact(&[0], now_ms, |txn| {
                        txn.replace_names(renewed.clone(), &dead);
                        if empty { Ok(()) } else { Err(crate::Error::Cold) }
                    });
                    if outcome.is_ok() {
                        self.model.clear();
                        (self.ns, self.names) = (renewed.id(b"0").unwrap(), renewed);
                    }
                }
                15 => crate::shard::background::timer::Timer::new(&engine, 0).turn(now_ms),
                16..28 => {
                    engine.transact(&[0], now_ms, |txn| txn.delete(ns, &key)).unwrap();
                    self.model.remove(&stored(&key));
                }
                28..32 => {
                    // As RENAME and RESTORE REPLACE do it.
                    let put = |txn: &mut crate::shard::Txn<'_, '_>| {
                        txn.delete(ns, &key)?;
                        txn.put_string(ns, &key, b"w", expire_ms)
                    };
                    engine.transact(&[0], now_ms, put).unwrap();
                    self.model.insert(stored(&key), (key, expire_ms));
                }
                _ => {
                    engine.transact(&[0], now_ms, |txn| txn.put_string(ns, &key, b"v", expire_ms)).unwrap();
                    self.model.insert(stored(&key), (key, expire_ms));
                }
            }
            engine.shards[0].core().check();
        }
    }

    #[test]
    fn walks_equal_a_sorted_map_whatever_is_flushed() {
        let dir = tempfile::tempdir().unwrap();
        let mut world = Modelled::new(dir.path());
        let mut chance = chance(7);
        let (mut merged, mut apart) = (0, 0);
        for round in 0..6000 {
            world.happen(&mut chance);
            if round % 3 != 0 {
                continue;
            }
            let (prefix, after) = (self::key(&mut chance), self::key(&mut chance));
            let prefix = &prefix[..chance(2) as usize * prefix.len()];
            let after = (chance(2) == 0).then(|| stored(&after));
            let inline = &prefix[..prefix.len().min(codec::MAX_INLINE)];
            let expected: Vec<&Vec<u8>> = (world.live())
                .filter(|(stored, _)| stored.starts_with(inline) && after.as_ref().is_none_or(|after| *stored > after))
                .map(|(_, key)| key)
                .collect();
            let from = Stop { after: after.as_deref().map(Box::from), ..Stop::default() };
            let mut core = world.engine.shards[0].core();
            let mut met = met(&mut core, &world.engine.router, world.ns, prefix, from, world.now_ms);
            if core.whole_order().is_some() {
                merged += 1;
            } else {
                met.sort_by(|a, b| a.stored_key().cmp(b.stored_key()));
                met.dedup();
                apart += 1;
            }
            assert_eq!(met.iter().map(|met| &met.key).collect::<Vec<_>>(), expected, "round {round}");
        }
        assert!(merged > 200 && apart > 200, "{merged} walks with the index, {apart} without");
    }

    #[test]
    fn a_key_that_is_there_all_along_is_met_whatever_comes_between_two_steps() {
        let dir = tempfile::tempdir().unwrap();
        let mut world = Modelled::new(dir.path());
        let mut chance = chance(11);
        for round in 0..200 {
            (0..chance(60)).for_each(|_| world.happen(&mut chance));
            let mut always: Vec<Vec<u8>> = world.live().map(|(_, key)| key.clone()).collect();
            let (mut ever, mut all) = (always.clone(), Vec::new());
            let mut next = Some(Stop::default());
            while let Some(from) = next {
                let mut left = 1 + chance(3);
                let mut walk = Walk::new(&world.engine.router, world.ns, b"", world.now_ms);
                next = walk
                    .go_on(&mut world.engine.shards[0].core(), &from, |met| {
                        let taken = left > 0;
                        left -= u64::from(taken);
                        all.extend((taken && met.is_live()).then(|| met.key.clone()));
                        taken
                    })
                    .unwrap();
                world.happen(&mut chance);
                let now: Vec<&Vec<u8>> = world.live().map(|(_, key)| key).collect();
                always.retain(|key| now.contains(&key));
                ever.extend(now.into_iter().cloned());
            }
            assert!(always.iter().all(|key| all.contains(key)), "round {round}: {always:?} in {all:?}");
            assert!(all.iter().all(|key| ever.contains(key)), "round {round}: {all:?} in {ever:?}");
        }
    }

    /// Of many dirty keys neither the first step of a walk nor any other looks at more than a bounded number, nor does a
    /// slice of the index, which is made at the second question and gone without being freed under the lock.
    #[test]
    fn no_step_of_a_walk_sorts_what_is_dirty() {
        const KEYS: usize = 400;
        let dir = tempfile::tempdir().unwrap();
        let engine = engine(dir.path(), 1);
        for n in 0..KEYS {
            let key = format!("key:{:03}", n * 7 % KEYS);
            engine.transact(&[0], 1, |txn| txn.put_string(0, key.as_bytes(), b"v", 0)).unwrap();
        }
        let router = &engine.router;
        let mut core = engine.shards[0].core();
        // Goes through the keys that begin so; the steps it took and the keys it met.
        let go_through = |core: &mut Core, prefix: &[u8], now_ms: u64| {
            let (mut steps, mut keys, mut next) = (0, 0, Some(Stop::default()));
            while let Some(from) = next {
                let mut walk = Walk::new(router, 0, prefix, now_ms);
                next = walk
                    .go_on(core, &from, |_| {
                        keys += 1;
                        true
                    })
                    .unwrap();
                assert!(walk.places <= PLACES);
                steps += 1;
            }
            (steps, keys)
        };
        let steps = KEYS.div_ceil(PLACES);
        assert_eq!(go_through(&mut core, b"", 100_000), (steps, KEYS));
        assert_eq!(go_through(&mut core, b"none", 200_000), (steps, 0));
        assert!(core.order.is_none(), "who asks once costs nobody an index");
        let bytes = core.table_bytes;
        assert_eq!(go_through(&mut core, b"key:1", 201_000), (steps, 100));
        let mut slices = 1;
        while core.grow_order() {
            slices += 1;
        }
        assert!(slices > KEYS / PLACES, "{slices} slices");
        core.check();
        assert!(core.table_bytes > bytes, "the index counts as memory of the table");
        assert_eq!(go_through(&mut core, b"none", 202_000), (1, 0));
        assert_eq!(go_through(&mut core, b"key:1", 203_000), (1, 100));
        core.drop_order();
        assert_eq!((core.table_bytes, core.old_orders.len()), (bytes, 1));
        assert_eq!(core.idle_orders(204_000).len(), 1);
        core.check();
    }

    #[test]
    fn a_flushed_and_swapped_namespace_is_as_it_was_after_a_rollback() {
        let dir = tempfile::tempdir().unwrap();
        let engine = engine(dir.path(), 2);
        let shards = engine.all_shards();
        let names = engine.first_names();
        let ns = names.id(b"0").unwrap();
        let count = |txn: &crate::shard::Txn<'_, '_>| Engine::count(txn, ns);
        let put = |n: u32| {
            let key = n.to_string().into_bytes();
            engine.transact(&shards, 1, |txn| txn.put_string(ns, &key, b"v", 0)).unwrap();
        };
        (0..20).for_each(put);
        let failed: Result = engine.transact(&shards, 1, |txn| {
            let (renewed, dead) = names.renewed(&[b"0"]).unwrap();
            txn.delete(ns, b"7")?;
            txn.replace_names(renewed.clone(), &dead);
            assert_eq!(count(txn), 0);
            txn.put_string(renewed.id(b"0").unwrap(), b"7", b"new", 0)?;
            txn.replace_names(renewed.swapped(b"0", b"1").unwrap(), &[]);
            Err(crate::Error::Cold)
        });
        assert_eq!(failed, Err(crate::Error::Cold));
        (20..30).for_each(put);
        engine.flush().unwrap();
        engine.close(false).unwrap();
        drop(engine);
        // Nothing of it has come to the log or to the store either.
        let engine = self::engine(dir.path(), 2);
        assert_eq!(*engine.first_names(), *names);
        assert_eq!(engine.transact(&shards, 1, |txn| Ok(Engine::count(txn, ns))), Ok(30));
        assert!(engine.transact(&shards, 1, |txn| Ok(txn.find(ns, b"7")?.is_some())).unwrap());
        assert!(engine.shards.iter().all(|shard| shard.core().reap_from.is_none()));
    }
}
