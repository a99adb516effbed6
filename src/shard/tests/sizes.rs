//! Memory follows budgets that change, in an engine that nobody writes to; and what is dirty counts once.

use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::Duration;

use super::world::{DB, World, noise, wait_for};
use crate::Error;
use crate::codec::element::Group;
use crate::log::Fsync;
use crate::shard::engine::Sizes;
use crate::shard::memory::object::Kind;
use crate::shard::txn::{CHUNK, Txn};

fn sizes(world: &World, tables: u64, cold: u64) -> Sizes {
    Sizes { tables, cold, dirty: world.options.dirty_budget as u64, log: world.options.log_limit }
}

fn table_bytes(world: &World) -> usize {
    world.engine().shards.iter().map(|shard| shard.table_bytes()).sum()
}

#[test]
fn a_table_that_has_grown_leaves_its_old_slots_when_nobody_writes() {
    let mut world = World::new(1, Fsync::No);
    let old_slots = |world: &World| world.engine().shards.at(0).core().table.old_slots();
    // Three quarters of 256, and one more.
    for n in 0..=192u32 {
        world.put(DB, &n.to_le_bytes(), b"", 0);
    }
    // Of the time before, too: they are empty, and nobody has come by to free them.
    assert_eq!(old_slots(&world), 256 + 128);
    world.turn();
    assert_eq!(old_slots(&world), 0);
    world.verify();
}

#[test]
fn tables_shrink_to_a_smaller_budget_untouched() {
    let mut world = World::new(2, Fsync::No);
    let engine = world.engine().clone();
    engine.resize(sizes(&world, 64 << 20, 64 << 20));
    engine.follow_sizes();
    for n in 0..4000 {
        world.put(DB, format!("{n}").as_bytes(), &[b'x'; 500], 0);
    }
    engine.shrink_tables();
    let before = table_bytes(&world);
    assert!(before > 2 << 20, "{before} bytes within the budget stay");

    // What is dirty stays; what is clean leaves, and nothing else has to happen for it.
    engine.resize(sizes(&world, 200_000, 0));
    engine.follow_sizes();
    (0..10).for_each(|_| engine.shrink_tables());
    assert_eq!(table_bytes(&world), before);
    world.flush();
    (0..10).for_each(|_| engine.shrink_tables());
    let after = table_bytes(&world);
    assert!(after <= 200_000, "{after} of {before} bytes are left");
    world.check();
    world.verify();
}

#[test]
fn the_second_level_cache_takes_another_size_and_loses_nothing() {
    let mut world = World::new(1, Fsync::No);
    let engine = world.engine().clone();
    for n in 0..1000 {
        world.put(DB, format!("{n}").as_bytes(), &[b'x'; 100], 0);
    }
    world.flush();
    for cold in [10_000, 0, 1 << 20] {
        engine.resize(sizes(&world, 50_000, cold));
        engine.follow_sizes();
        (0..10).for_each(|_| engine.shrink_tables());
        assert_eq!(engine.shards.at(0).core().cold.budget(), cold as usize);
        world.verify();
    }
}

/// So many shards of more than fits into tables of 100,000 bytes and the 200,000 of the caches behind them.
fn overfull(shards: u16) -> World {
    let mut world = World::new(shards, Fsync::No);
    (0..3000).for_each(|n| world.put(DB, format!("{n}").as_bytes(), &[b'x'; 100], 0));
    world.flush();
    let engine = world.engine();
    engine.resize(sizes(&world, 100_000, 200_000));
    engine.follow_sizes();
    world
}

/// A table has what the cache behind it does not need, and gives it back.
#[test]
fn what_the_second_level_cache_leaves_is_the_tables() {
    let mut world = overfull(1);
    let engine = world.engine().clone();
    let parts = || {
        (0..10).for_each(|_| engine.shrink_tables());
        let core = engine.shards.at(0).core();
        assert_eq!(core.table_limit + core.cold.bytes() as usize, 300_000);
        assert_eq!(engine.table_limit.load(Ordering::Relaxed), core.table_limit as u64);
        assert!(core.table_bytes <= core.table_limit && core.table_bytes > core.table_limit - 1000);
        core.table_limit
    };
    let lent = parts();
    assert!(lent > 200_000, "{lent}");
    for n in 0..200 {
        engine.shards.at(0).core().cold.put(n, 1, format!("of another {n}").as_bytes(), vec![b'x'; 100]);
    }
    assert!(parts() < lent - 50_000);
    world.verify();
}

/// A shard that is taken when tables are looked at is thought to be like the others, not to have lent nothing.
#[test]
fn what_tables_may_take_is_known_of_those_that_are_taken() {
    let world = overfull(2);
    let engine = world.engine().clone();
    let limit = || {
        engine.shrink_tables();
        engine.table_limit.load(Ordering::Relaxed)
    };
    assert_eq!(limit(), 300_000);
    let taken = engine.shards.at(0).core();
    assert_eq!(limit(), 300_000);
    let other = engine.shards.at(1).core();
    assert_eq!(limit(), 300_000, "as before, where nobody could be asked");
    drop((taken, other));
}

/// Keys that are too many for the filter are asked of fjall. With more memory, or fewer of them, there is one again.
#[test]
fn the_filter_of_keys_is_within_the_budget() {
    let mut world = World::new(1, Fsync::No);
    let engine = world.engine().clone();
    let filter = || engine.shards.at(0).core().membership.bytes();
    world.turn();
    let keys: Vec<_> = (0..2000).map(|n| format!("{n}").into_bytes()).collect();
    keys.iter().for_each(|key| world.put(DB, key, b"", 0));
    world.flush();
    let full = filter();
    assert!(full > 2000);
    world.evict();
    world.verify();

    engine.resize(sizes(&world, full as u64 * 3, 1 << 20));
    engine.follow_sizes();
    world.turn();
    assert_eq!(filter(), 0, "a quarter of that is too little");
    world.evict();
    world.put(DB, b"new", b"", 0);
    world.delete(DB, b"absent");
    world.verify();
    world.flush();
    world.audit();

    engine.resize(sizes(&world, full as u64 * 4, 1 << 20));
    engine.follow_sizes();
    world.turn();
    assert_eq!(filter(), full, "with more memory");

    engine.resize(sizes(&world, full as u64, 1 << 20));
    engine.follow_sizes();
    keys[..1800].iter().for_each(|key| world.delete(DB, key));
    world.turn();
    world.flush();
    engine.store.partition(0).major_compact().unwrap();
    engine.tend_store();
    world.turn();
    assert!((1..=full / 4).contains(&filter()), "with fewer keys: {}", filter());
    world.evict();
    world.put(DB, b"another", b"", 0);
    world.verify();
    world.audit();
}

/// A command that runs long keeps its own shard from the change, not the thread that brings it.
#[test]
fn a_core_that_is_taken_follows_later() {
    let world = World::new(2, Fsync::No);
    let engine = world.engine().clone();
    let before = engine.shards.at(0).core().table_share;
    let taken = engine.shards.at(0).core();
    engine.resize(sizes(&world, 1 << 20, 1 << 20));
    engine.follow_sizes();
    assert_eq!((taken.table_share, engine.shards.at(1).core().table_share), (before, 512 << 10));
    drop(taken);
    engine.follow_sizes();
    let core = engine.shards.at(0).core();
    assert_eq!((core.table_share, core.table_limit), (512 << 10, 1 << 20));
}

/// A shutdown does not depend on a lease that somebody keeps.
#[test]
fn waiting_for_leases_ends() {
    let world = World::new(2, Fsync::No);
    let engine = world.engine().clone();
    let taken = engine.shards.at(1).core();
    assert!(!engine.wait_idle(Duration::from_millis(1)));
    drop(taken);
    assert!(engine.wait_idle(Duration::ZERO));
    // One that is given back in time is waited for.
    let (has_it, it_has) = mpsc::channel();
    let holder = std::thread::spawn({
        let engine = engine.clone();
        move || {
            let taken = engine.shards.at(1).core();
            has_it.send(()).unwrap();
            std::thread::yield_now();
            drop(taken);
        }
    });
    it_has.recv().unwrap();
    assert!(engine.wait_idle(Duration::from_secs(60)));
    holder.join().unwrap();
}

#[test]
fn big_values_are_freed_aside() {
    let mut world = World::new(1, Fsync::No);
    world.options.background = true;
    world.reopen(false);
    let engine = world.engine().clone();
    world.put(DB, b"big", &vec![1; 100 * CHUNK], 0);
    world.delete(DB, b"big");
    wait_for(&|| engine.stats.freed_bodies.load(Ordering::Relaxed) == 1 && engine.bodies_to_free() == 0);
    engine.close(false).unwrap();
}

/// What has been changed since it was gathered waits for the next flush by that, and not once more when this one fails: writers
/// would be slowed for what is not there.
#[test]
fn what_changes_during_a_flush_that_fails_counts_once() {
    let mut world = World::new(1, Fsync::No);
    let ns = world.ns(DB);
    let fields: Vec<Vec<u8>> = (0..30u8).map(|n| vec![Group::HashField.tag(), n]).collect();
    let made = world.transact(&[b"hash"], |txn| {
        let at = txn.create(ns, b"hash", Kind::Hash, 0)?;
        fields.iter().try_for_each(|field| txn.put_element(at, field, &noise(1, 1000)).map(drop))?;
        txn.add_size(at, fields.len() as i64);
        Ok(())
    });
    world.engine().write_out(made.1);
    let before = world.engine().dirty_bytes();
    let mut flush = world.begin_flush(Some(0));
    let mut changed = 0;
    while flush.step(world.engine()) {
        let again = world.transact(&[b"hash"], |txn| {
            let at = txn.find(ns, b"hash")?.unwrap();
            fields.iter().try_for_each(|field| txn.put_element(at, field, &noise(2, 1000)).map(drop))
        });
        world.engine().write_out(again.1);
        changed += 1;
    }
    assert!(changed > 3, "{changed} times");
    assert_eq!(world.engine().dirty_bytes(), before);
    world.check();
}

/// As those of objects are: a flush is due by them.
#[test]
fn dirty_bytes_of_elements_are_as_before_after_a_rollback() {
    let world = World::new(1, Fsync::No);
    let (ns, now_ms, engine) = (world.ns(DB), world.now_ms, world.engine().clone());
    let field = |n: u8| [Group::HashField.tag(), b'f', n];
    let make = |txn: &mut Txn<'_, '_>| {
        let at = txn.create(ns, b"hash", Kind::Hash, 0)?;
        (0..3).try_for_each(|n| txn.put_element(at, &field(n), &[n; 50]).map(drop))?;
        txn.add_size(at, 3);
        Ok(())
    };
    engine.transact(&[0], now_ms, make).unwrap();
    let before = engine.dirty_bytes();
    let change = |txn: &mut Txn<'_, '_>| {
        let at = txn.find(ns, b"hash")?.unwrap();
        txn.put_element(at, &field(0), &[7; 500])?;
        txn.put_element(at, &field(9), &[9; 300])?;
        txn.remove_element(at, &field(1))?;
        Err::<(), _>(Error::Syntax)
    };
    assert!(engine.transact(&[0], now_ms, change).is_err());
    assert_eq!(engine.dirty_bytes(), before);
}
