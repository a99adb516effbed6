//! A key at random: RANDOMKEY.
//!
//! While the store is empty, objects of the table are drawn until one fits: every key is as likely as any other.
//! Otherwise the draw descends through the keys in order, byte by byte: of the bytes that follow what is drawn so far, each
//! is as likely as any other. Where keys are numbered or hashed this is close to even; a key that shares little with
//! others comes up more often. It costs a few seeks for each byte at which keys differ, however many keys there are.

use std::ops::Bound;

use crate::codec::{self, NsId};
use crate::error::Result;

use super::core::{Core, Order, storage, unreadable};
use super::engine::Router;
use super::walk::{Span, walk};

/// Objects drawn from the table, and keys passed that are gone, before the draw gives up.
const TRIES: usize = 1000;
/// Draws in order that may end at a key that is gone before the next one that lives is taken.
const DESCENTS: usize = 16;
/// Throws for a byte that occurs before the next one that does is taken.
const THROWS: usize = 32;

/// A live key of a namespace. `dice(n)` throws a number below n. `None` if no live key was met within bounded work.
pub fn draw(
    core: &mut Core,
    router: &Router,
    ns: NsId,
    now_ms: u64,
    mut dice: impl FnMut(u64) -> u64,
) -> Result<Option<Vec<u8>>> {
    let places = u64::from(core.table.places());
    if core.partition.disk_bytes() == 0 && places > 0 {
        for _ in 0..TRIES {
            let index = dice(places) as u32;
            let object = core.table.is_used(index).then(|| core.table.at(index));
            if let Some(object) = object.filter(|object| object.ns == ns && object.is_live(now_ms)) {
                return Ok(Some(object.key().to_vec()));
            }
        }
    }
    let whole = Span { ns, prefix: b"", after: None };
    let mut last = Vec::new();
    for _ in 0..DESCENTS {
        core.need_order(now_ms);
        let order = core.order.take().unwrap_or_default();
        let drawn = Keys { core, order: &order, ns }.descend(&mut dice);
        core.order = Some(order);
        let Some(drawn) = drawn? else { return Ok(None) };
        if let Some(live) = next_live(core, router, Span { prefix: &drawn, ..whole }, now_ms, 1)? {
            return Ok(Some(live));
        }
        last = drawn;
    }
    match next_live(core, router, Span { after: Some(&last), ..whole }, now_ms, TRIES)? {
        None => next_live(core, router, whole, now_ms, TRIES),
        live => Ok(live),
    }
}

/// The first live key among the first few of a span.
fn next_live(core: &mut Core, router: &Router, span: Span<'_>, now_ms: u64, tries: usize) -> Result<Option<Vec<u8>>> {
    let (mut left, mut live) = (tries, None);
    walk(core, router, span, now_ms, |met| {
        left -= 1;
        live = met.is_live().then_some(met.key);
        live.is_none() && left > 0
    })?;
    Ok(live)
}

/// The stored keys of a namespace, those that are gone but still stand in a source included.
struct Keys<'a> {
    core: &'a Core,
    order: &'a Order,
    ns: NsId,
}

impl Keys<'_> {
    fn descend(&self, dice: &mut impl FnMut(u64) -> u64) -> Result<Option<Vec<u8>>> {
        let mut prefix = Vec::new();
        loop {
            let (Some(first), Some(last)) = (self.first(&prefix)?, self.last(&prefix)?) else { return Ok(None) };
            if first == last {
                return Ok(Some(first));
            }
            let shared = first.iter().zip(&last).take_while(|(a, b)| a == b).count();
            // 0 stands for the key that ends here, if there is one.
            let choice = |key: &[u8]| key.get(shared).map_or(0, |&byte| u64::from(byte) + 1);
            let (low, high) = (choice(&first), choice(&last));
            for _ in 0..THROWS {
                prefix = first[..shared].to_vec();
                match low + dice(high - low + 1) {
                    0 => return Ok(Some(first)),
                    thrown => prefix.push((thrown - 1) as u8),
                }
                let Some(next) = self.first(&prefix)? else { return Ok(None) };
                if next.starts_with(&prefix) {
                    break;
                }
                prefix = next[..=shared].to_vec();
            }
        }
    }

    /// The first key at or behind `from`.
    fn first(&self, from: &[u8]) -> Result<Option<Vec<u8>>> {
        let from_born = Bound::Included((self.ns, Box::from(from)));
        let born = self.order.range((from_born, Bound::Unbounded)).next();
        let born = born.filter(|((ns, _), _)| *ns == self.ns).map(|((_, key), _)| key.to_vec());
        let mut lower = Vec::new();
        codec::key::meta_key_of_stored(self.ns, from, &mut lower);
        let upper = codec::key::meta_prefix_range(self.ns, b"").upper;
        let stored = self.core.partition.range(&lower, &upper).map_err(unreadable)?.next();
        let stored = stored.map(|item| stored_key(&item.map_err(unreadable)?.0)).transpose()?;
        Ok(match (born, stored) {
            (Some(born), Some(stored)) => Some(born.min(stored)),
            (born, stored) => born.or(stored),
        })
    }

    /// The last key that begins so.
    fn last(&self, prefix: &[u8]) -> Result<Option<Vec<u8>>> {
        let upper = codec::key::prefix_upper(prefix);
        let behind = if upper.is_empty() { (self.ns + 1, Box::default()) } else { (self.ns, Box::from(upper)) };
        let born = self.order.range(..behind).next_back();
        let born = born.filter(|((ns, key), _)| *ns == self.ns && key.starts_with(prefix));
        let born = born.map(|((_, key), _)| key.to_vec());
        let range = codec::key::meta_prefix_range(self.ns, prefix);
        let stored = self.core.partition.range(&range.lower, &range.upper).map_err(unreadable)?.next_back();
        let stored = stored.map(|item| stored_key(&item.map_err(unreadable)?.0)).transpose()?;
        Ok(born.max(stored))
    }
}

fn stored_key(disk_key: &[u8]) -> Result<Vec<u8>> {
    match codec::key::decode_key(disk_key) {
        Ok(codec::DiskKey::Meta { key, .. }) => Ok(key.to_vec()),
        Ok(_) => Err(storage(disk_key, "no metadata record")),
        Err(error) => Err(storage(disk_key, error)),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    use crate::shard::engine::Engine;
    use crate::shard::walk::tests::{chance, engine};

    /// How often each key was drawn.
    fn drawn(engine: &Engine, ns: NsId, times: usize) -> BTreeMap<String, usize> {
        let mut chance = chance(3);
        let mut drawn = BTreeMap::new();
        let mut core = engine.shards[0].core();
        for _ in 0..times {
            let key = draw(&mut core, &engine.router, ns, 10, &mut chance).unwrap().unwrap();
            *drawn.entry(String::from_utf8(key).unwrap()).or_default() += 1;
        }
        drawn
    }

    #[test]
    fn numbered_keys_come_up_about_evenly_in_memory_and_on_disk() {
        let dir = tempfile::tempdir().unwrap();
        let engine = engine(dir.path(), 1);
        let put = |ns, key: String, expire_ms| {
            engine.transact(&[0], 1, |txn| txn.put_string(ns, key.as_bytes(), b"v", expire_ms)).unwrap();
        };
        (0..100).for_each(|n| put(0, format!("user:{n:03}"), 0));
        // Expired, removed, or of another namespace: not to be drawn.
        (100..110).for_each(|n| put(0, format!("user:{n:03}"), 5));
        (0..100).for_each(|n| put(1, format!("other:{n}"), 0));
        put(0, "user:zzz".into(), 0);
        for flushed in [false, true] {
            if flushed {
                engine.flush().unwrap();
            }
            engine.transact(&[0], 1, |txn| txn.delete(0, b"user:zzz")).unwrap();
            let drawn = drawn(&engine, 0, 5000);
            let expected: Vec<String> = (0..100).map(|n| format!("user:{n:03}")).collect();
            assert_eq!(drawn.keys().cloned().collect::<Vec<_>>(), expected);
            assert!(drawn.values().all(|&times| (10..=250).contains(&times)), "flushed {flushed}: {drawn:?}");
        }
    }

    #[test]
    fn nothing_is_drawn_where_nothing_lives() {
        let dir = tempfile::tempdir().unwrap();
        let engine = engine(dir.path(), 1);
        let draw = || draw(&mut engine.shards[0].core(), &engine.router, 0, 10, chance(1)).unwrap();
        assert_eq!(draw(), None);
        engine.transact(&[0], 1, |txn| txn.put_string(0, b"", b"v", 5)).unwrap();
        assert_eq!(draw(), None);
        engine.flush().unwrap();
        assert_eq!(draw(), None);
        engine.transact(&[0], 1, |txn| txn.put_string(0, b"", b"v", 0)).unwrap();
        assert_eq!(draw(), Some(Vec::new()));
    }
}
