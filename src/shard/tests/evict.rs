//! Eviction: what goes, what stays, and that what is to come back counts as freed.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::world::{DB, World, noise, world};
use crate::codec::MAX_INLINE;
use crate::log::Fsync;
use crate::shard::background::timer::Timer;
use crate::shard::engine::eviction::{By, Policy};
use crate::shard::engine::watch::Watch;
use crate::shard::engine::{MOST_DELAY_US, gate};
use crate::shard::memory::blocked::Waiter;
use crate::shard::memory::object::Kind;
use crate::shard::memory::uses::Frequency;
use crate::util::sys;

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
        self.limit_to(policy, parts);
        self.go_on();
    }

    fn limit_to(&self, policy: Policy, parts: u64) {
        let engine = self.engine();
        engine.disk.limit(engine.live_bytes() * parts / 24, 0);
        engine.eviction.set(Some(policy), 5);
    }

    /// Rounds until none is to begin, or nothing goes.
    fn go_on(&mut self) {
        self.go_on_with(|world| world.turns(3));
    }

    fn go_on_with(&mut self, mut turns: impl FnMut(&World)) {
        let engine = self.engine().clone();
        for _ in 0..100 {
            engine.look_at_disk();
            engine.tend_eviction();
            turns(self);
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
    // The LSM compacts on its own now and then: that is another case.
    let waits = (0..5).any(|_| {
        let mut world = World::filled(1000);
        world.engine().shards.at(0).core().reclaiming = true;
        let before = world.engine().disk_bytes();
        world.evict_to(policy(false, By::Use), 20);
        let waits = world.engine().disk_bytes() > before * 9 / 10;
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
        waits
    });
    assert!(waits, "something has come back each time");
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

/// Each round begins with the next time, also where the hand of the one before has passed it by.
#[test]
fn what_comes_to_expire_first_is_the_first_to_go_in_each_round() {
    let mut world = World::filled(400);
    let engine = world.engine().clone();
    let mut timer = Timer::new(&engine, 0);
    let mut go_on = |world: &mut World, parts: u64| {
        world.limit_to(policy(true, By::Time), parts);
        world.go_on_with(|world| (0..3).for_each(|_| timer.turn(world.now_ms)));
        world.left().iter().filter(|n| *n % 2 == 0 && **n < 400).count()
    };
    let timed = go_on(&mut world, 20);
    assert!(timed < 190, "{timed}");
    for n in 400..600 {
        world.put(DB, name(n).as_bytes(), &noise(n as u8, BYTES), world.now_ms + 1000 + u64::from(n));
    }
    world.flush();
    world.evict();
    assert_eq!(go_on(&mut world, 22), timed);
    let sooner = world.left().iter().filter(|n| **n >= 400).count();
    assert!((1..195).contains(&sooner), "{sooner}");
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

/// Nor does what has another time by now go at that of before.
#[test]
fn what_has_been_given_more_time_is_not_the_first_to_go() {
    let mut world = World::filled(600);
    for n in (0..200).step_by(2) {
        let later_ms = world.now_ms + 10_000_000 + u64::from(n);
        world.put(DB, name(n).as_bytes(), &noise(n as u8, BYTES), later_ms);
    }
    world.evict_to(policy(true, By::Time), 20);
    assert!(world.evicted() > 0);
    assert_eq!(world.left().iter().filter(|n| **n < 200).count(), 200);
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
    engine.room_delay_us.store(MOST_DELAY_US, Ordering::Relaxed);
    assert!(engine.eviction.is_in_vain() && engine.pause_us(true, 0) == 0, "nobody waits for what does not come");
    assert!(engine.gate.load(std::sync::atomic::Ordering::Relaxed) & gate::FULL != 0);
    assert!(engine.disk.reached_for()[1] > Duration::ZERO);
    // The gate does not open for a byte.
    engine.disk.limit(engine.disk_bytes() + 1, 0);
    engine.look_at_disk();
    assert!(engine.gate.load(std::sync::atomic::Ordering::Relaxed) & gate::FULL != 0);
    engine.disk.limit(2 * engine.disk_bytes(), 0);
    engine.look_at_disk();
    assert!(engine.gate.load(std::sync::atomic::Ordering::Relaxed) & gate::FULL == 0);
    let [all, now] = engine.disk.reached_for();
    assert!(all > Duration::ZERO && now == Duration::ZERO);
    engine.disk.forget_reached();
    assert_eq!(engine.disk.reached_for(), [Duration::ZERO; 2]);
}

/// No connection waits for what a timer has removed: it is written all the same.
#[test]
fn what_a_timer_removes_is_in_the_log() {
    let mut world = world(Fsync::No);
    world.put(DB, b"a", b"1", world.now_ms + 5);
    let before = world.engine().log.last();
    world.now_ms += 5;
    world.turn();
    let log = &world.engine().log;
    assert!(log.last() > before && log.written() == log.last());
}

/// Rounds end also where some that have removed something came before.
#[test]
fn where_nothing_more_may_go_what_adds_is_refused() {
    let mut world = World::filled(300);
    world.evict_to(policy(true, By::Use), 1);
    assert_eq!((world.evicted(), world.left().len()), (150, 150));
    assert!(world.engine().eviction.is_in_vain());
}

/// Once, where there is a little; else again and again, but for no more than a second, and only who may add.
#[test]
fn who_waits_for_room_waits_for_no_longer_than_a_second() {
    let world = world(Fsync::No);
    let engine = world.engine();
    let pauses = |room: u64, memory: u64| {
        engine.room_delay_us.store(room, Ordering::Relaxed);
        engine.write_delay_us.store(memory, Ordering::Relaxed);
        [true, false].map(|adds| [0, 1, 49, 50].map(|pauses| engine.pause_us(adds, pauses)))
    };
    const MOST: u64 = MOST_DELAY_US;
    assert_eq!(pauses(0, 0), [[0; 4]; 2]);
    assert_eq!(pauses(500, 0), [[500, 0, 0, 0], [0; 4]]);
    assert_eq!(pauses(MOST, 0), [[MOST, MOST, MOST, 0], [0; 4]]);
    assert_eq!(pauses(500, 700), [[700, 0, 0, 0]; 2]);
    assert_eq!(pauses(0, MOST), [[MOST; 4]; 2]);
}

#[test]
fn who_adds_is_slowed_the_more_the_less_room_is_left() {
    let world = World::filled(300);
    let (engine, taken) = (world.engine(), world.engine().disk_bytes());
    let by_use = Some(policy(false, By::Use));
    let at = |limit: u64, policy: Option<Policy>| {
        engine.disk.limit(limit, 0);
        engine.eviction.set(policy, 5);
        engine.look_at_disk();
        engine.set_gates();
        let is_slowed = engine.gate.load(Ordering::Relaxed) & gate::SLOWED != 0;
        (engine.room_delay_us.load(Ordering::Relaxed), is_slowed, engine.is_tight())
    };
    assert_eq!(at(2 * taken, by_use), (0, false, false));
    let (little, is_slowed, is_tight) = at(taken * 32 / 30, by_use);
    assert!(0 < little && little < MOST_DELAY_US && is_slowed && is_tight, "{little}");
    assert_eq!(at(taken, by_use), (MOST_DELAY_US, true, true));
    assert_eq!(at(taken, None), (0, false, false), "nothing goes that would make room");
}

/// What is reserved is not had, nor what the flush will need that makes room.
#[test]
fn room_is_what_is_neither_reserved_nor_waits_for_a_flush() {
    let mut world = world(Fsync::No);
    world.put(DB, b"a", &[b'x'; 50_000], 0);
    let engine = world.engine();
    let quarter = sys::file_system(&world.options.dir).unwrap().total_bytes / 4;
    for reserve in [1 << 20, u64::MAX] {
        engine.disk.limit(0, reserve);
        engine.look_at_disk();
        let kept = reserve.min(quarter) + engine.dirty_bytes() as u64;
        assert_eq!(engine.disk.room_bytes(), engine.disk.free_bytes().saturating_sub(kept), "{reserve} reserved");
    }
}

/// Pauses are for all that writes, and what has gone is written, too.
#[test]
fn nothing_goes_while_clients_are_paused_or_writers_wait() {
    let world = World::filled(500);
    let engine = world.engine();
    world.limit_to(policy(false, By::Use), 24);
    engine.tend_eviction();
    engine.set_gate(gate::PAUSED, true);
    world.turns(2);
    assert_eq!(world.evicted(), 0);
    engine.set_gate(gate::PAUSED, false);
    let budget = engine.dirty_budget.swap(1, Ordering::Relaxed);
    world.turns(2);
    assert_eq!(world.evicted(), 0);
    engine.dirty_budget.store(budget, Ordering::Relaxed);
    world.turns(2);
    assert!(world.evicted() > 0);
}

/// What has gone counts once a flush has brought it that began after it: one that ran may have passed it by. Without a policy
/// nothing is under way any more.
#[test]
fn between_two_rounds_comes_a_flush_that_began_after_the_first() {
    let mut world = World::filled(500);
    let engine = world.engine().clone();
    world.limit_to(policy(false, By::Use), 24);
    engine.tend_eviction();
    let (round, due) = engine.eviction.due(0);
    assert!(due > 0 && engine.eviction.is_under_way());
    engine.tend_eviction();
    assert_eq!(engine.eviction.due(0), (round, due), "it goes on until all is gone");
    world.turns(3);
    assert_eq!(engine.eviction.due(0), (round, 0));
    let running = engine.flush_lock.lock();
    engine.tend_eviction();
    drop(running);
    for _ in 0..2 {
        // The one that was asked for has begun, or has failed.
        *engine.flush_wake.0.lock() = false;
        engine.tend_eviction();
        assert_eq!(engine.eviction.due(0), (round, 0), "one is still to come");
        assert!(engine.is_flushing(), "and is asked for");
        world.flush();
    }
    engine.tend_eviction();
    let (next, due) = engine.eviction.due(0);
    assert!(next == round + 1 && due > 0);
    engine.eviction.set(None, 5);
    engine.tend_eviction();
    assert_eq!((engine.eviction.due(0).1, engine.eviction.is_under_way()), (0, false));
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

/// What a database had that is dead goes by itself, and is no key that was evicted.
#[test]
fn what_somebody_waits_for_stays_and_of_dead_databases_nothing_is_evicted() {
    let mut world = World::filled(100);
    // Nothing of it is removed meanwhile.
    world.engine().shards.at(0).core().reclaiming = true;
    world.flush_names(&[DB]);
    (0..200).for_each(|n| world.put(DB, name(n).as_bytes(), &noise(n as u8, BYTES), 0));
    world.flush();
    world.evict();
    let (engine, ns) = (world.engine().clone(), world.ns(DB));
    let awaited = name(3).into_bytes();
    let waiter = Arc::new(Waiter::new(Kind::Stream, true, false, DB, vec![(0, awaited.as_slice().into())]));
    engine.shards.at(0).core().blocked.add(ns, &awaited, &waiter);
    (0..8).for_each(|_| world.evict_to(policy(false, By::Chance), 8));
    let left = world.left();
    assert!(left.len() < 20 && left.contains(&3), "{left:?}");
    assert_eq!(world.evicted() as usize, 200 - left.len());
    let mut core = engine.shards.at(0).core();
    assert!(!core.miscounted);
    core.blocked.remove(ns, &awaited, &waiter, false);
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

/// A round that is to bring so much ends once it has, whatever the number of keys.
#[test]
fn no_more_collections_go_than_their_elements_ask_for() {
    let mut world = world(Fsync::No);
    for n in 0..200 {
        world.add_source(name(n).as_bytes(), 0);
    }
    world.flush();
    world.evict();
    world.evict_to(policy(false, By::Chance), 22);
    let gone = world.evicted();
    assert!((20..50).contains(&gone), "{gone}");
}

#[test]
fn of_how_many_keys_one_goes_may_be_changed() {
    let world = world(Fsync::No);
    let eviction = &world.engine().eviction;
    for samples in [5, 1, 64] {
        eviction.set(None, samples);
        assert_eq!(eviction.samples(), u64::from(samples));
    }
}

/// As long as nobody has come to the elements of what has gone they count as given back, and no longer.
#[test]
fn what_waits_in_the_queue_of_garbage_counts_as_given_back() {
    let mut world = world(Fsync::No);
    for n in 0..60 {
        world.add_source(name(n).as_bytes(), 0);
    }
    (0..2).for_each(|_| world.flush());
    world.evict();
    world.engine().shards.at(0).core().reclaiming = true;
    world.evict_to(policy(false, By::Chance), 16);
    let gone = world.evicted();
    assert!((10..50).contains(&gone), "{gone}");
    // It is known roughly, and may be too much.
    world.engine().eviction.gone(0, 0, 0, 1 << 30);
    world.engine().shards.at(0).core().reclaiming = false;
    world.engine().eviction.set(None, 5);
    world.audit();
    let (engine, partition) = (world.engine(), world.engine().store.partition(0));
    let log = engine.log.size_bytes();
    assert_eq!(engine.live_bytes(), partition.disk_bytes() - partition.covered_bytes() + log);
}

/// The store has such keys by their digests: which they are, only their metadata tells.
#[test]
fn long_keys_go_as_others_do() {
    let long = |n: u32| format!("{}{}", name(n), "x".repeat(2 * MAX_INLINE)).into_bytes();
    for policy in [policy(false, By::Use), policy(true, By::Chance), policy(true, By::Time)] {
        let mut world = world(Fsync::No);
        for n in 0..200 {
            world.put(DB, &long(n), &noise(n as u8, BYTES), world.now_ms + 1_000_000 + u64::from(n));
        }
        world.flush();
        world.evict();
        world.evict_to(policy, 20);
        let left: Vec<_> = (0..200).filter(|n| world.get(DB, &long(*n)).is_some()).collect();
        assert!((100..190).contains(&left.len()), "{policy:?}: {}", left.len());
        assert_eq!(world.evicted() as usize, 200 - left.len(), "{policy:?}");
        assert!(policy.by != By::Time || left[0] == 200 - left.len() as u32, "{left:?}");
    }
}
