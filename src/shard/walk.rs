//! Walks of the key space in key order: SCAN, KEYS, RANDOMKEY.
//!
//! Two sources are merged: the metadata records in fjall, and the shard's order index of keys that fjall does not show
//! yet. The table decides about every key that it holds: a removal masks what fjall shows, a newer type counts.
//!
//! A walk may wait for the disk; [`must_wait`] tells a thread that must not whether it would.

use std::ops::Bound;

use crate::codec::{self, NsId};
use crate::error::Result;
use crate::util::scale::Scaled;

use super::core::{Core, Order, storage, unreadable};
use super::engine::Router;
use super::object::Kind;
use super::table::table_hash;

/// A key met on a walk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Met {
    /// The user key.
    pub key: Vec<u8>,
    /// The key as it stands in records: where the walk can be taken up again.
    pub stored_key: Vec<u8>,
    /// Its type; `Absent` for a key that is gone and only still stands in one of the sources.
    pub kind: Kind,
}

impl Met {
    /// Whether the key is there.
    pub fn is_live(&self) -> bool {
        self.kind != Kind::Absent
    }
}

/// What part of a namespace to walk.
#[derive(Debug, Clone, Copy)]
pub struct Span<'a> {
    /// Namespace.
    pub ns: NsId,
    /// Only keys that begin so, as far as [`codec::MAX_INLINE`] bytes.
    pub prefix: &'a [u8],
    /// Only keys whose stored form comes after this one.
    pub after: Option<&'a [u8]>,
}

impl<'a> Span<'a> {
    /// The same span, its prefix as the stored form of keys has it; `None` if nothing is left of it.
    fn stored(self) -> Option<Span<'a>> {
        let prefix = &self.prefix[..self.prefix.len().min(codec::MAX_INLINE)];
        let after = self.after.filter(|after| *after >= prefix);
        let beyond = after.is_some_and(|after| !after.starts_with(prefix));
        (!beyond).then_some(Span { prefix, after, ..self })
    }
}

/// Dirty objects of which the order index is built at once, where it must be built.
const SMALL_ORDER: Scaled<usize> = Scaled::new(4096);

/// Whether a walk would read the disk, or first sort many keys.
pub fn must_wait(core: &Core) -> bool {
    core.store_is_cold || core.order.is_none() && core.dirty.len() + core.in_flight.len() > SMALL_ORDER.get()
}

/// Walks the keys of a span in order until `visit` says stop with false; keys that are gone are visited too, so that
/// who counts visits bounds the work. True if the walk came to its end. Of a prefix longer than what a stored key
/// holds only the beginning counts.
pub fn walk(
    core: &mut Core,
    router: &Router,
    span: Span<'_>,
    now_ms: u64,
    visit: impl FnMut(Met) -> bool,
) -> Result<bool> {
    let Some(span) = span.stored() else { return Ok(true) };
    core.need_order(now_ms);
    // Taken out for the walk, so that the table can be asked meanwhile.
    let order = core.order.take().unwrap_or_default();
    let ended = merge(core, &order, router, span, now_ms, visit);
    core.order = Some(order);
    ended
}

fn merge(
    core: &Core,
    order: &Order,
    router: &Router,
    span: Span<'_>,
    now_ms: u64,
    mut visit: impl FnMut(Met) -> bool,
) -> Result<bool> {
    let from = match span.after {
        Some(after) => Bound::Excluded((span.ns, Box::from(after))),
        None => Bound::Included((span.ns, Box::from(span.prefix))),
    };
    let mut born = order
        .range((from, Bound::Unbounded))
        .take_while(|((ns, key), _)| *ns == span.ns && key.starts_with(span.prefix))
        .peekable();
    let mut stored = Stored::open(core, span)?;
    loop {
        let born_first = match (born.peek(), &stored.next) {
            (None, None) => return Ok(true),
            (Some(((_, a), _)), Some(b)) => **a <= *b.stored_key,
            (born, _) => born.is_some(),
        };
        let met = if born_first {
            let Some(((_, key), &index)) = born.next() else { return Ok(true) };
            if stored.next.as_ref().is_some_and(|s| s.stored_key[..] == key[..]) {
                stored.advance()?;
            }
            let object = core.table.at(index);
            let kind = if object.is_live(now_ms) { object.kind } else { Kind::Absent };
            Met { key: object.key().to_vec(), stored_key: key.to_vec(), kind }
        } else {
            let Some(found) = stored.next.take() else { return Ok(true) };
            stored.advance()?;
            found.current(core, router, span.ns, now_ms)
        };
        if !visit(met) {
            return Ok(false);
        }
    }
}

/// A metadata record that fjall shows.
struct StoredKey {
    key: Vec<u8>,
    stored_key: Vec<u8>,
    meta: codec::Meta,
}

impl StoredKey {
    /// The key as it is now: the table knows better than fjall.
    fn current(self, core: &Core, router: &Router, ns: NsId, now_ms: u64) -> Met {
        let (kind, live) = match core.table.find(table_hash(router.hash(&self.key), ns), ns, &self.key) {
            Some(index) => {
                let object = core.table.at(index);
                (object.kind, object.is_live(now_ms))
            }
            None => (Kind::from(self.meta.kind), !self.meta.expired(now_ms)),
        };
        Met { key: self.key, stored_key: self.stored_key, kind: if live { kind } else { Kind::Absent } }
    }
}

struct Stored {
    range: crate::store::Range,
    next: Option<StoredKey>,
}

impl Stored {
    fn open(core: &Core, span: Span<'_>) -> Result<Self> {
        let mut range = codec::key::meta_prefix_range(span.ns, span.prefix);
        if let Some(after) = span.after {
            range.lower.clear();
            codec::key::meta_key_of_stored(span.ns, after, &mut range.lower);
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
        let stored_key = key.to_vec();
        let key = long_key.map_or_else(|| stored_key.clone(), <[u8]>::to_vec);
        self.next = Some(StoredKey { key, stored_key, meta });
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

    /// An engine of few shards that does nothing of its own accord.
    pub(crate) fn engine(dir: &std::path::Path, shards: u16) -> Arc<Engine> {
        let options = EngineOptions {
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
        };
        let engine = Engine::open(Arc::new(crate::log::RealIo), options).unwrap();
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

    /// What a walk meets, live keys only.
    fn met(engine: &Engine, span: Span<'_>, now_ms: u64) -> Vec<Vec<u8>> {
        let mut keys = Vec::new();
        let mut core = engine.shards[0].core();
        let ended = walk(&mut core, &engine.router, span, now_ms, |met| {
            assert_eq!(met.stored_key, stored(&met.key));
            keys.extend(met.is_live().then_some(met.key));
            true
        });
        assert!(ended.unwrap());
        keys
    }

    #[test]
    fn walks_equal_a_sorted_map_whatever_is_flushed() {
        let dir = tempfile::tempdir().unwrap();
        let engine = engine(dir.path(), 1);
        let mut chance = chance(7);
        let mut now_ms = 1_000_000;
        let mut model: BTreeMap<Vec<u8>, (Vec<u8>, u64)> = BTreeMap::new();
        for round in 0..3000 {
            let key = key(&mut chance);
            match chance(40) {
                0 => engine.flush().unwrap(),
                1 => now_ms += chance(50),
                2..15 => {
                    engine.transact(&[0], now_ms, |txn| txn.delete(0, &key)).unwrap();
                    model.remove(&stored(&key));
                }
                _ => {
                    let expire_ms = if chance(4) == 0 { now_ms + chance(100) } else { 0 };
                    engine.transact(&[0], now_ms, |txn| txn.put_string(0, &key, b"v", expire_ms)).unwrap();
                    model.insert(stored(&key), (key, expire_ms));
                }
            }
            if round % 3 != 0 {
                continue;
            }
            let (prefix, after) = (self::key(&mut chance), self::key(&mut chance));
            let prefix = &prefix[..chance(2) as usize * prefix.len()];
            let after = (chance(2) == 0).then(|| stored(&after));
            let span = Span { ns: 0, prefix, after: after.as_deref() };
            let inline = &prefix[..prefix.len().min(codec::MAX_INLINE)];
            let expected: Vec<&Vec<u8>> = (model.iter())
                .filter(|(stored, _)| stored.starts_with(inline) && after.as_ref().is_none_or(|after| *stored > after))
                .filter(|(_, (_, expire_ms))| *expire_ms == 0 || *expire_ms > now_ms)
                .map(|(_, (key, _))| key)
                .collect();
            assert_eq!(met(&engine, span, now_ms).iter().collect::<Vec<_>>(), expected, "round {round}");
        }
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
