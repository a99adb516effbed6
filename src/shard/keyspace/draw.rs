//! A key at random: RANDOMKEY.
//!
//! While the store is empty, objects of the table are drawn until one fits: every key is as likely as any other. So they
//! are, about as often as they are among the keys, while the order index of those that fjall does not show is not whole.
//! Otherwise the draw descends through the keys in order, byte by byte: of the bytes that follow what is drawn so far, each
//! is as likely as any other. Where keys are numbered or hashed this is close to even; a key that shares little with
//! others comes up more often. It costs a few seeks for each byte at which keys differ, however many keys there are.

use crate::codec::{self, NsId};
use crate::error::Result;

use crate::shard::keyspace::walk::{Phase, Stop, Walk};
use crate::shard::memory::core::{Core, storage, unreadable};
use crate::shard::memory::order::stored_form;
use crate::shard::memory::table::Index;
use crate::shard::router::Router;

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
    core.need_order(now_ms, true);
    let unstored = (core.dirty.len() + core.in_flight.len()) as u64;
    let in_table = match core.whole_order() {
        _ if core.partition.disk_bytes() == 0 => true,
        Some(_) => false,
        None => dice(core.count(ns).max(1)) < unstored,
    };
    let places = u64::from(core.table.places()).max(1);
    let drawn = in_table.then(|| (0..TRIES).find_map(|_| live_at(core, dice(places) as Index, ns, now_ms))).flatten();
    if drawn.is_some() {
        return Ok(drawn);
    }
    let phase = if core.whole_order().is_some() { Phase::Merged } else { Phase::Stored };
    let mut last = None;
    for _ in 0..DESCENTS {
        let Some(drawn) = (Keys { core, ns }).descend(&mut dice)? else { break };
        let first = Walk::new(router, ns, &drawn, now_ms);
        if let Some(live) = next_live(core, first, Stop { phase, ..Stop::default() }, 1)? {
            return Ok(Some(live));
        }
        last = Some(drawn.into());
    }
    for after in [last, None] {
        let whole = Walk::new(router, ns, b"", now_ms);
        if let Some(live) = next_live(core, whole, Stop { phase, after, ..Stop::default() }, TRIES)? {
            return Ok(Some(live));
        }
    }
    // The few that there are may be in the table alone, among many of others.
    let from = if phase == Phase::Stored { dice(places) as Index..places as Index } else { 0..0 };
    Ok(from.clone().chain(0..from.start).find_map(|place| live_at(core, place, ns, now_ms)))
}

/// The key of the object at a place of the table, if it is a live one of the namespace.
fn live_at(core: &Core, place: Index, ns: NsId, now_ms: u64) -> Option<Vec<u8>> {
    let object = core.table.is_used(place).then(|| core.table.at(place));
    object.filter(|object| object.ns == ns && object.is_live(now_ms)).map(|object| object.key().to_vec())
}

/// The first live key among the first few that a walk meets.
fn next_live(core: &mut Core, mut walk: Walk<'_>, from: Stop, tries: usize) -> Result<Option<Vec<u8>>> {
    let (mut left, mut live) = (tries, None);
    walk.go_on(core, &from, |met| {
        left -= 1;
        live = met.is_live().then(|| met.key.clone());
        live.is_none() && left > 0
    })?;
    Ok(live)
}

/// The stored keys of a namespace, those that are gone but still stand in a source included.
struct Keys<'a> {
    core: &'a Core,
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
        let order = self.core.whole_order();
        let born = order.and_then(|order| order.from(&self.core.table, self.ns, from, true).next());
        let born = born.map(|index| self.stored_key_at(index));
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
        let upper = (!upper.is_empty()).then_some(&upper[..]);
        let order = self.core.whole_order();
        let born = order.and_then(|order| order.last_below(&self.core.table, self.ns, upper));
        let born = born.map(|index| self.stored_key_at(index)).filter(|key| key.starts_with(prefix));
        let range = codec::key::meta_prefix_range(self.ns, prefix);
        let stored = self.core.partition.range(&range.lower, &range.upper).map_err(unreadable)?.next_back();
        let stored = stored.map(|item| stored_key(&item.map_err(unreadable)?.0)).transpose()?;
        Ok(born.max(stored))
    }

    fn stored_key_at(&self, index: Index) -> Vec<u8> {
        stored_form(self.core.table.at(index).key()).into_owned()
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
    use crate::shard::keyspace::walk::tests::{chance, engine};

    /// How often each key was drawn.
    fn drawn(engine: &Engine, ns: NsId, times: usize) -> BTreeMap<String, usize> {
        let mut chance = chance(3);
        let mut drawn = BTreeMap::new();
        let mut core = engine.shards.at(0).core();
        for _ in 0..times {
            let key = draw(&mut core, &engine.router, ns, 10, &mut chance).unwrap().unwrap();
            *drawn.entry(String::from_utf8(key).unwrap()).or_default() += 1;
        }
        drawn
    }

    #[test]
    fn numbered_keys_come_up_about_evenly_in_memory_and_on_disk() {
        let dir = crate::util::scratch::tempdir().unwrap();
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
    fn while_the_store_is_empty_every_key_is_as_likely_as_any_other() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let engine = engine(dir.path(), 1);
        let put = |key: &str| engine.transact(&[0], 1, |txn| txn.put_string(0, key.as_bytes(), b"v", 0)).unwrap();
        put("alone");
        (0..99).for_each(|n| _ = put(&format!("user:{n:02}")));
        // The order index is there, but has nothing that the table has not.
        {
            let mut core = engine.shards.at(0).core();
            (0..2).for_each(|_| core.need_order(10, true));
            while core.grow_order() {}
            assert!(core.whole_order().is_some());
        }
        let drawn = drawn(&engine, 0, 5000);
        assert_eq!(drawn.len(), 100);
        assert!(drawn.values().all(|&times| (10..=250).contains(&times)), "{drawn:?}");
    }

    /// Dice seldom fall on the place of a key that is not stored yet, and among what is stored it is not.
    #[test]
    fn a_key_alone_among_many_of_others_is_found_wherever_the_dice_fall() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let engine = engine(dir.path(), 1);
        let put = |ns, key: &str| engine.transact(&[0], 1, |txn| txn.put_string(ns, key.as_bytes(), b"v", 0)).unwrap();
        put(1, "stored");
        engine.flush().unwrap();
        // So many that they are not brought into order at once.
        (0..20).for_each(|n| _ = put(1, &format!("other:{n}")));
        put(0, "alone");
        for fall in [|_: u64| 0, |n: u64| n - 1] {
            let drawn = draw(&mut engine.shards.at(0).core(), &engine.router, 0, 10, fall).unwrap();
            assert_eq!(drawn.as_deref(), Some(&b"alone"[..]));
        }
    }

    /// Behind the last key that is stored there is nothing.
    #[test]
    fn where_what_is_drawn_is_gone_the_next_one_may_be_the_first() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let engine = engine(dir.path(), 1);
        for key in [b"a", b"z"] {
            engine.transact(&[0], 1, |txn| txn.put_string(0, key, b"v", 0)).unwrap();
        }
        engine.flush().unwrap();
        engine.transact(&[0], 1, |txn| txn.delete(0, b"z")).unwrap();
        let drawn = draw(&mut engine.shards.at(0).core(), &engine.router, 0, 10, |n| n - 1).unwrap();
        assert_eq!(drawn.as_deref(), Some(&b"a"[..]));
    }

    #[test]
    fn nothing_is_drawn_where_nothing_lives() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let engine = engine(dir.path(), 1);
        let draw = || draw(&mut engine.shards.at(0).core(), &engine.router, 0, 10, chance(1)).unwrap();
        assert_eq!(draw(), None);
        engine.transact(&[0], 1, |txn| txn.put_string(0, b"", b"v", 5)).unwrap();
        assert_eq!(draw(), None);
        engine.flush().unwrap();
        assert_eq!(draw(), None);
        engine.transact(&[0], 1, |txn| txn.put_string(0, b"", b"v", 0)).unwrap();
        assert_eq!(draw(), Some(Vec::new()));
    }
}
