//! Eviction: what goes, what stays, and that what is to come back counts as freed.

use super::world::{DB, World, noise, world};
use crate::log::Fsync;
use crate::shard::engine::eviction::{By, Policy};
use crate::shard::engine::gate;
use crate::shard::engine::watch::Watch;
use crate::shard::memory::uses::Frequency;

const BYTES: usize = 400;

const fn policy(volatile: bool, by: By) -> Policy {
    Policy { volatile, by }
}

impl World {
    /// So many keys on disk, and of these only those with an even number have a time.
    fn filled(keys: u32) -> World {
        let mut world = world(Fsync::No);
        world.now_ms = 100_000_000;
        for n in 0..keys {
            let expire_ms = if n % 2 == 0 { world.now_ms + 1_000_000 + u64::from(n) } else { 0 };
            world.put(DB, name(n).as_bytes(), &noise(n as u8, BYTES), expire_ms);
        }
        world.flush();
        world.evict();
        world
    }

    /// Evicts so that what lives takes about this part, in 32nds, of what there is now.
    fn evict_to(&mut self, policy: Policy, parts: u64) {
        let engine = self.engine().clone();
        engine.disk.limit(engine.live_bytes() * parts / 24, 0);
        engine.eviction.set(Some(policy), 5);
        self.go_on();
    }

    /// Rounds until none is to begin, or nothing goes.
    fn go_on(&mut self) {
        let engine = self.engine().clone();
        for _ in 0..100 {
            engine.look_at_disk();
            engine.tend_eviction();
            self.turns(3);
            self.check();
            self.flush();
            if engine.eviction.is_at_rest() {
                return self.forget_gone();
            }
        }
        panic!("eviction does not come to rest");
    }

    /// The model follows.
    fn forget_gone(&mut self) {
        let keys: Vec<_> = self.model[DB].keys().cloned().collect();
        for key in keys {
            if self.get(DB, &key).is_none() {
                self.model.get_mut(DB).unwrap().remove(&key);
            }
        }
        self.note();
    }

    fn left(&self) -> Vec<u32> {
        let number = |key: &Vec<u8>| String::from_utf8_lossy(&key[1..]).parse().unwrap();
        self.model[DB].keys().map(number).collect()
    }

    fn evicted(&self) -> u64 {
        self.engine().shards.iter().map(|shard| shard.core().stats.evicted_keys).sum()
    }
}

fn name(n: u32) -> String {
    format!("k{n:05}")
}

#[test]
fn what_goes_leaves_nothing_behind_also_after_a_crash() {
    for policy in [policy(false, By::Use), policy(false, By::Chance), policy(true, By::Time), policy(true, By::Use)] {
        let mut world = World::filled(500);
        world.evict_to(policy, 24);
        let left = world.left().len();
        assert!((250..=490).contains(&left), "{policy:?}: {left}");
        assert_eq!(world.evicted() as usize, 500 - left, "{policy:?}");
        world.crash(None);
        world.verify();
        world.engine().eviction.set(None, 5);
        world.audit();
    }
}

/// No compaction gives anything back, and not all is gone.
#[test]
fn what_waits_for_a_compaction_counts_as_given_back() {
    let mut world = World::filled(1000);
    world.engine().shards.at(0).core().reclaiming = true;
    let before = world.engine().disk_bytes();
    world.evict_to(policy(false, By::Use), 20);
    assert!(world.engine().disk_bytes() > before * 9 / 10, "nothing has come back");
    assert!(world.left().len() > 500, "{}", world.left().len());
    let (live, most) = (world.engine().live_bytes(), world.engine().disk.most_bytes());
    assert!(live <= most / 32 * 23 && live > most / 2, "{live} of {most}");
    // When it comes back, nothing more goes.
    world.engine().shards.at(0).core().reclaiming = false;
    let left = world.left().len();
    world.turns(3);
    world.go_on();
    assert_eq!(world.left().len(), left);
    assert!(world.engine().disk_bytes() < before * 9 / 10);
    world.audit();
}

#[test]
fn volatile_policies_spare_what_has_no_time() {
    for by in [By::Use, By::Frequency, By::Chance, By::Time] {
        let mut world = World::filled(600);
        if by == By::Frequency {
            world.engine().uses.keep(Some(Frequency { log_factor: 10, decay_minutes: 1 }));
        }
        world.evict_to(policy(true, by), 20);
        let left = world.left();
        assert_eq!(left.iter().filter(|n| *n % 2 == 1).count(), 300, "{by:?}");
        let timed: Vec<_> = left.iter().filter(|n| *n % 2 == 0).collect();
        assert!(timed.len() < 250, "{by:?}: {}", timed.len());
        if by == By::Time {
            // The first ones are gone, the last ones are there, and it is one cut.
            assert!(timed.iter().map(|n| **n / 2).eq(300 - timed.len() as u32..300), "{timed:?}");
        }
    }
}

/// The store shows for a while a time that a key no longer has.
#[test]
fn volatile_policies_spare_what_has_no_time_any_more() {
    for by in [By::Time, By::Chance] {
        let mut world = World::filled(600);
        for n in (0..200).step_by(2) {
            world.put(DB, name(n).as_bytes(), &noise(n as u8, BYTES), 0);
        }
        world.evict_to(policy(true, by), 20);
        assert!(world.evicted() > 0, "{by:?}");
        assert_eq!(world.left().iter().filter(|n| **n < 200).count(), 200, "{by:?}");
    }
}

#[test]
fn where_nothing_may_go_what_adds_is_refused() {
    let mut world = world(Fsync::No);
    (0..300).for_each(|n| world.put(DB, name(n).as_bytes(), &noise(n as u8, BYTES), 0));
    world.flush();
    let engine = world.engine().clone();
    engine.disk.limit(engine.disk_bytes(), 0);
    engine.eviction.set(Some(policy(true, By::Use)), 5);
    for _ in 0..10 {
        engine.look_at_disk();
        engine.tend_eviction();
        world.turns(1);
    }
    assert_eq!(world.evicted(), 0);
    assert!(engine.gate.load(std::sync::atomic::Ordering::Relaxed) & gate::FULL != 0);
    assert!(engine.disk.reached_for()[1] > std::time::Duration::ZERO);
    // The gate does not open for a byte.
    engine.disk.limit(engine.disk_bytes() + 1, 0);
    engine.look_at_disk();
    assert!(engine.gate.load(std::sync::atomic::Ordering::Relaxed) & gate::FULL != 0);
    engine.disk.limit(2 * engine.disk_bytes(), 0);
    engine.look_at_disk();
    assert!(engine.gate.load(std::sync::atomic::Ordering::Relaxed) & gate::FULL == 0);
    assert_eq!(engine.disk.reached_for()[1], std::time::Duration::ZERO);
}

/// How many of 50 keys that are often used, side by side in order, are left after half has gone.
fn hot_left(by: By) -> usize {
    let mut world = World::filled(1000);
    if by == By::Frequency {
        world.engine().uses.keep(Some(Frequency { log_factor: 0, decay_minutes: 1 }));
    }
    // All are in memory: only uses tell them apart.
    world.engine().shards.at(0).core().table_limit = usize::MAX;
    (0..1000).for_each(|n| assert!(world.get(DB, name(n).as_bytes()).is_some()));
    for _ in 0..20 {
        world.now_ms += 5_000;
        (200..250).for_each(|n| assert!(world.get(DB, name(n).as_bytes()).is_some()));
    }
    world.evict_to(policy(false, by), 14);
    assert!(world.left().len() < 700, "{}", world.left().len());
    world.left().iter().filter(|n| (200..250).contains(*n)).count()
}

#[test]
fn what_is_used_stays() {
    let [by_use, by_frequency, by_chance] = [By::Use, By::Frequency, By::Chance].map(hot_left);
    assert!(by_use >= 48 && by_frequency >= 48, "{by_use}, {by_frequency}");
    assert!(by_chance < 45, "{by_chance}");
}

/// What memory does not know goes first.
#[test]
fn what_is_not_in_memory_goes_before_what_is() {
    let mut world = World::filled(1000);
    (300..400).for_each(|n| assert!(world.get(DB, name(n).as_bytes()).is_some()));
    world.evict_to(policy(false, By::Use), 20);
    let left = world.left();
    assert!(left.len() < 900, "{}", left.len());
    assert_eq!(left.iter().filter(|n| (300..400).contains(*n)).count(), 100);
}

#[test]
fn what_a_command_holds_stays_and_who_watches_is_told() {
    let mut world = World::filled(200);
    let engine = world.engine().clone();
    engine.shards.at(0).core().busy.hold(name(1).as_bytes(), false);
    let ns = world.ns(DB);
    let mut watch = Watch::new(&engine);
    for n in 100..200 {
        let key = name(n);
        let seen = world.get(DB, key.as_bytes()).map(|value| value.expire_ms);
        world.transact(&[key.as_bytes()], |txn| watch.add(txn, (DB, ns), key.as_bytes(), seen)).0.unwrap();
    }
    assert!(!watch.is_told());
    (0..8).for_each(|_| world.evict_to(policy(false, By::Chance), 8));
    assert!(world.left().len() < 20 && world.left().contains(&1), "{:?}", world.left());
    assert!(watch.is_told());
    engine.shards.at(0).core().busy.let_go(name(1).as_bytes());
}

/// A key whose elements lie aside takes their room along.
#[test]
fn collections_give_back_the_room_of_their_elements() {
    let mut world = world(Fsync::No);
    for n in 0..60 {
        world.add_source(name(n).as_bytes(), 0);
    }
    world.flush();
    world.evict();
    let before = world.engine().disk_bytes();
    world.evict_to(policy(false, By::Chance), 16);
    let gone = world.evicted();
    assert!((10..50).contains(&gone), "{gone}");
    world.engine().eviction.set(None, 5);
    world.audit();
    assert!(world.engine().disk_bytes() < before * 9 / 10, "{} of {before}", world.engine().disk_bytes());
}
