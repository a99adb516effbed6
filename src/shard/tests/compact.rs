//! Space of what is dead that shares its tables with what lives: a compaction gives it back, and nobody need say so.

use std::sync::atomic::Ordering;

use super::world::{DB, NAMES, World, noise};
use crate::codec::key::tag;
use crate::log::Fsync;
use crate::shard::txn::CHUNK;

/// Enough for all that is to be done.
const TURNS: usize = 40;

/// Nobody says FLUSHDB, nobody writes: tombstones of keys meet what they cover.
#[test]
fn deleted_keys_give_their_space_back_without_a_further_command() {
    let mut world = World::new(1, Fsync::No);
    for n in 0..4000u32 {
        let value = xxhash_rust::xxh3::xxh3_128(&n.to_le_bytes()).to_le_bytes();
        world.put(DB, format!("key {n}").as_bytes(), &value, 0);
    }
    world.flush();
    let all = world.engine().store.partition(0).disk_bytes();
    for key in world.model[DB].keys().skip(400).cloned().collect::<Vec<_>>() {
        world.delete(DB, &key);
    }
    world.flush();
    assert!(world.engine().store.partition(0).bulk().tombstones >= 3600);
    world.turns(1);
    let left = world.engine().store.partition(0).bulk();
    assert_eq!(left.tombstones, 0);
    assert!(left.bytes < all / 5, "{} of {all} bytes", left.bytes);
    world.turns(TURNS);
    assert_eq!(world.engine().stats.compactions.load(Ordering::Relaxed), 1, "then there is rest");
    world.audit();
}

/// A tombstone does not tell how large is what it covers: who has worked it off does.
#[test]
fn one_large_value_among_many_small_ones_gives_its_space_back() {
    let mut world = World::new(1, Fsync::No);
    (0..2000u32).for_each(|n| world.put(DB, format!("key {n}").as_bytes(), b"1", 0));
    world.put(DB, b"large", &noise(1, 30 * CHUNK), 0);
    world.flush();
    let partition = world.engine().store.partition(0).clone();
    let all = partition.disk_bytes();
    world.delete(DB, b"large");
    world.flush();
    world.turns(TURNS);
    assert_eq!(world.engine().stats.compactions.load(Ordering::Relaxed), 1);
    assert!(partition.disk_bytes() < all / 3, "{} of {all} bytes", partition.disk_bytes());
    world.audit();
}

/// Rather than tombstones that it would meet one by one.
#[test]
fn what_a_compaction_is_to_drop_gets_no_tombstones() {
    let mut world = World::new(1, Fsync::No);
    let due_ms = world.now_ms + 1_000_000;
    (0..150u32).for_each(|n| world.put(NAMES[1], &n.to_be_bytes(), &noise(n as u8, 2000), due_ms));
    world.flush();
    world.flush_names(&[NAMES[1]]);
    world.flush();
    let version = || world.engine().store.partition(0).version();
    let before = version();
    world.turns(1);
    assert_eq!(version() - before, 1, "the compaction alone");
    world.turns(3);
    assert_eq!(
        (world.stored_with(tag::META), world.stored_with(tag::EXPIRY), world.stored_with(tag::DEAD_NS)),
        (0, 0, 0)
    );
    world.audit();
}
