//! Walks while everything changes.

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
        table_files: 384,
        log_limit: 1 << 30,
        flush_threads: 1,
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
        engine.shards.at(0).core().table_limit = 4096;
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
            3 => engine.shards.at(0).core().drop_order(),
            4..10 => _ = engine.shards.at(0).core().grow_order(),
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
        engine.shards.at(0).core().check();
    }
}

#[test]
fn walks_equal_a_sorted_map_whatever_is_flushed() {
    let dir = crate::util::scratch::tempdir().unwrap();
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
        let mut core = world.engine.shards.at(0).core();
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
    let dir = crate::util::scratch::tempdir().unwrap();
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
                .go_on(&mut world.engine.shards.at(0).core(), &from, |met| {
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
    let dir = crate::util::scratch::tempdir().unwrap();
    let engine = engine(dir.path(), 1);
    for n in 0..KEYS {
        let key = format!("key:{:03}", n * 7 % KEYS);
        engine.transact(&[0], 1, |txn| txn.put_string(0, key.as_bytes(), b"v", 0)).unwrap();
    }
    let router = &engine.router;
    let mut core = engine.shards.at(0).core();
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
    // Nobody asks any more: it goes after ten seconds.
    (0..2).for_each(|_| core.need_order(205_000, true));
    assert_eq!((core.idle_orders(215_000).len(), core.order.is_some()), (0, true));
    assert_eq!((core.idle_orders(215_001).len(), core.order.is_some()), (1, false));
    assert!(core.old_orders.is_empty() && core.table_bytes == bytes);
}

/// It knows nothing of the keys that were gone when it was made, and are there again.
#[test]
fn an_index_made_amid_what_is_taken_back_is_dropped() {
    let dir = crate::util::scratch::tempdir().unwrap();
    let engine = engine(dir.path(), 1);
    let ns = engine.first_names().id(b"0").unwrap();
    engine.transact(&[0], 1, |txn| txn.put_string(ns, b"key", b"v", 0)).unwrap();
    let taken_back: crate::error::Result = engine.transact(&[0], 1, |txn| {
        let (names, dead) = txn.lease[0].names.renewed(&[b"0"]).unwrap();
        txn.replace_names(names, &dead);
        txn.lease[0].need_order(1, false);
        Err(crate::error::Error::Cold)
    });
    assert!(taken_back.is_err());
    let mut core = engine.shards.at(0).core();
    core.check();
    core.need_order(1, false);
    assert_eq!(met(&mut core, &engine.router, ns, b"", Stop::default(), 1).len(), 1);
}

/// It stands in the table, and fjall shows it, too.
#[test]
fn a_blind_key_is_met_once() {
    let dir = crate::util::scratch::tempdir().unwrap();
    let engine = engine(dir.path(), 1);
    let key = |n: u32| format!("key:{n:02}").into_bytes();
    let put_all =
        || (0..50).for_each(|n| _ = engine.transact(&[0], 1, |txn| txn.put_string(0, &key(n), b"v", 0)).unwrap());
    put_all();
    engine.flush().unwrap();
    {
        let mut core = engine.shards.at(0).core();
        let limit = std::mem::replace(&mut core.table_limit, 0);
        (0..10).for_each(|_| core.make_room());
        core.table_limit = limit;
        core.cold.clear();
    }
    put_all();
    let mut core = engine.shards.at(0).core();
    assert_eq!(core.blind.len(), 50);
    let mut met = met(&mut core, &engine.router, 0, b"", Stop::default(), 10);
    assert!(core.whole_order().is_none());
    met.sort_by(|a, b| a.key.cmp(&b.key));
    assert_eq!(met.into_iter().map(|met| met.key).collect::<Vec<_>>(), (0..50).map(key).collect::<Vec<_>>());
}

#[test]
fn a_flushed_and_swapped_namespace_is_as_it_was_after_a_rollback() {
    let dir = crate::util::scratch::tempdir().unwrap();
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
    assert!(engine.shards.iter().all(|shard| shard.core().reap.is_none()));
}
