//! The look-ahead takes each step for all elements before the next for any: how often it goes from core to core tells.

use std::sync::Arc;

use crate::codec::element;
use crate::shard::actor::Guard;
use crate::shard::engine::Engine;
use crate::shard::keyspace::walk::tests::engine;
use crate::shard::memory::ahead::{Cores, Look, Wanted, fetch};
use crate::shard::memory::core::Core;
use crate::shard::memory::object::Kind;
use crate::shard::memory::reads::Reads;
use crate::shard::memory::table::{Index, table_hash};
use crate::shard::router::ShardId;

const SHARDS: u16 = 4;

/// The cores of an engine, and which were asked for, neighbours once.
struct Asked<'e> {
    engine: &'e Engine,
    held: Option<(ShardId, Guard<'e>)>,
    asked: Vec<ShardId>,
}

impl Cores for Asked<'_> {
    fn of(&mut self, shard: ShardId) -> Option<&Core> {
        if self.held.as_ref().is_none_or(|(held, _)| *held != shard) {
            self.held = None;
            self.held = Some((shard, self.engine.shards.at(shard).try_core()?));
            self.asked.push(shard);
        }
        self.held.as_ref().map(|(_, core)| &**core)
    }
}

/// Makes a hash of so many fields; where it is.
fn hash(engine: &Arc<Engine>, key: &[u8], fields: u32) -> (ShardId, Index) {
    let shard = engine.router.shard_of(key);
    let made = engine.transact(&[shard], 1000, |txn| {
        let at = txn.create(0, key, Kind::Hash, 0)?;
        for n in 0..fields {
            let mut field = Vec::new();
            element::hash_field(&n.to_be_bytes(), &mut field);
            txn.put_element(at, &field, b"value")?;
        }
        txn.add_size(at, fields.into());
        Ok(())
    });
    made.unwrap();
    let core = engine.shards.at(shard).core();
    (shard, core.table.find(table_hash(engine.router.hash(key), 0), 0, key).unwrap())
}

/// How often the look-ahead goes to another core, over so many hashes in all shards, one of `large` fields, and one that is gone.
fn visits(hashes: usize, fields: u32, large: u32) -> usize {
    let dir = crate::util::scratch::tempdir().unwrap();
    let engine = engine(dir.path(), SHARDS);
    let mut places: Vec<_> = (0..hashes).map(|n| hash(&engine, format!("hash:{n}").as_bytes(), fields)).collect();
    assert!((0..SHARDS).all(|shard| places.iter().any(|place| place.0 == shard)), "all shards have some");
    places.push(hash(&engine, b"large", large));
    places.push((0, 1_000_000));
    let texts: Vec<_> = (0..places.len() as u32).map(u32::to_be_bytes).collect();
    let wanted = places
        .iter()
        .zip(&texts)
        .map(|(&(shard, index), text)| (shard, Wanted { index, look: Look::field(2), text, score: None }));
    let mut cores = Asked { engine: &engine, held: None, asked: Vec::new() };
    fetch(&mut cores, wanted, &Reads::default());
    cores.asked.len()
}

#[test]
fn steps_are_taken_side_by_side_whatever_the_shards() {
    let shards = usize::from(SHARDS);
    // Body, root, entry, text; a leaf and its heads where there are several.
    for (fields, steps) in [(5, 4), (50, 4), (500, 6)] {
        for hashes in [80, 160] {
            let visits = visits(hashes, fields, fields);
            // Where one step ends with a shard, the next may begin with it.
            assert!(visits <= steps * shards && visits > (steps - 1) * (shards - 1), "{visits} of {fields}");
        }
    }
}

#[test]
fn whose_elements_are_reached_is_not_visited_again() {
    let shards = usize::from(SHARDS);
    let visits = visits(80, 50, 500);
    assert!(visits <= 4 * shards + 2 && visits > 3 * (shards - 1), "{visits}");
}

#[test]
fn who_has_a_core_is_not_waited_for() {
    let dir = crate::util::scratch::tempdir().unwrap();
    let engine = engine(dir.path(), SHARDS);
    let places: Vec<_> = (0..80).map(|n| hash(&engine, format!("hash:{n}").as_bytes(), 100)).collect();
    let busy = engine.shards.at(places[0].0).core();
    let wanted = places
        .iter()
        .map(|&(shard, index)| (shard, Wanted { index, look: Look::field(2), text: b"field", score: None }));
    let mut cores = Asked { engine: &engine, held: None, asked: Vec::new() };
    fetch(&mut cores, wanted, &Reads::default());
    assert!(!cores.asked.is_empty() && !cores.asked.contains(&places[0].0));
    drop(busy);
}
