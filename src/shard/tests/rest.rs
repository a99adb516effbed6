//! Commands in slices: what they hold while they rest, what others do meanwhile, and what a crash leaves.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::world::{DB, NAMES, Value, World, evict, world};
use crate::codec::element::Group;
use crate::codec::key::tag;
use crate::error::{Error, Result};
use crate::log::Fsync;
use crate::meter::{self, Allowance};
use crate::shard::Engine;
use crate::shard::actor::{Guest, Job};
use crate::shard::background::timer::Timer;
use crate::shard::memory::object::Kind;
use crate::shard::txn::Found;
use crate::shard::txn::build::{Build, Shape};
use crate::shard::txn::rest::Rests;

/// Elements of a source: many slices, and a result that spills.
const MANY: usize = 200;

fn element(n: usize) -> Vec<u8> {
    [&[Group::SetMember.tag()], format!("member {n:06}").as_bytes()].concat()
}

impl World {
    /// A set of [`MANY`] members.
    pub(super) fn add_source(&mut self, key: &[u8], expire_ms: u64) {
        let ns = self.ns(DB);
        let filled = self.transact(&[key], |txn| {
            let at = txn.create(ns, key, Kind::Set, 0)?;
            for n in 0..MANY {
                txn.put_element(at, &element(n), b"")?;
            }
            txn.add_size(at, MANY as i64);
            txn.set_expiry(at, expire_ms);
            Ok(())
        });
        filled.0.unwrap();
        let elements = (0..MANY).map(|n| (element(n), Vec::new())).collect();
        self.model.get_mut(DB).unwrap().insert(key.to_vec(), Value::collection(Kind::Set, elements, expire_ms));
        self.note();
    }

    /// Copies a set in slices; `between` is called many times while it rests.
    fn copy(&mut self, from: &[u8], to: &[u8], mut between: impl FnMut(&Arc<Engine>) -> Result) -> Result {
        let (ns, engine) = (self.ns(DB), self.engine().clone());
        self.builds = true;
        let (result, need) = self.transact(&[from, to], |txn| {
            txn.may_do(Rests::Holding(vec![(from.to_vec(), false), (to.to_vec(), true)]));
            let found = txn.find(ns, from)?.expect("a source");
            let mut build = Build::new(txn, ns, to)?;
            let mut count = 0;
            let copied = txn.each_in_slices(found, Bound::Unbounded, Bound::Unbounded, |element, value| {
                count += 1;
                if count % 20 == 0 {
                    between(&engine)?;
                }
                build.put(element, value)
            });
            let shape = Shape::new(Kind::Set, count);
            let ended = copied.and_then(|()| build.finish(txn, shape)).map(drop);
            assert!(txn.let_go().is_empty(), "nobody has waited");
            ended
        });
        self.builds = false;
        if result.is_ok() {
            self.engine().write_out(need);
            let value = Value { expire_ms: 0, ..self.model[DB][from].clone() };
            self.model.get_mut(DB).unwrap().insert(to.to_vec(), value);
            self.note();
        }
        let held = |engine: &Engine| engine.shards.iter().map(|shard| shard.core().busy.len()).sum::<usize>();
        assert_eq!(held(self.engine()), 0);
        result
    }

    /// All is as it should be, and nothing else is left in fjall.
    fn verify_whole(&mut self) {
        self.verify();
        self.settle();
        self.verify();
        self.audit();
    }
}

/// Every shard's timer, at this time.
fn turn(engine: &Engine, now_ms: u64) {
    engine.all_shards().iter().for_each(|&id| Timer::new(engine, id).turn(now_ms));
}

/// However full the table is: what it has found there is to be there when it goes on.
#[test]
fn rule_18_what_is_held_does_not_leave_the_table() {
    let mut world = world(Fsync::No);
    for key in [b"from", b"near"] {
        world.add_source(key, 0);
    }
    world.flush();
    let mut left = false;
    let copied = world.copy(b"from", b"to", |engine| {
        evict(engine);
        left |= engine.shards.at(0).core().table.len() == 1;
        Ok(())
    });
    assert_eq!((copied, left), (Ok(()), true));
    world.verify_whole();
}

/// Nor does what a transaction has found, for its guests.
#[test]
fn for_a_guest_nothing_leaves_the_table() {
    let mut world = world(Fsync::No);
    world.add_source(b"from", 0);
    world.flush();
    let (ns, engine) = (world.ns(DB), world.engine().clone());
    let ran = Arc::new(AtomicBool::new(false));
    let (result, _) = world.transact(&[b"from"], |txn| {
        txn.find(ns, b"from")?.expect("a source");
        let (told, limit) = (ran.clone(), std::mem::take(&mut txn.lease[0].table_limit));
        let guest = Guest { db: DB.into(), hash: engine.router.hash(b"from"), key: (*b"from").into() };
        let visit: Job = Box::new(move |mut lease| {
            told.store(true, Ordering::Relaxed);
            (0..300).for_each(|_| lease.iter_mut().for_each(|core| core.make_room()));
            lease
        });
        engine.post_guest([0][..].into(), visit, Some(guest));
        assert_eq!(txn.have_guests(), 1);
        assert_eq!(txn.lease[0].table.len(), 1);
        // Between two transactions it does.
        (0..300).for_each(|_| txn.lease[0].make_room());
        assert!(txn.lease[0].table.is_empty());
        txn.lease[0].table_limit = limit;
        Ok(())
    });
    assert_eq!((result, ran.load(Ordering::Relaxed)), (Ok(()), true));
    world.verify_whole();
}

/// Of each key that it changes the host notes that guests may not read it, once.
#[test]
fn what_a_host_notes_for_its_guests_is_charged() {
    let mut world = world(Fsync::No);
    let (ns, engine) = (world.ns(DB), world.engine().clone());
    let (result, _) = world.transact(&[], |txn| {
        let mut charged = |keys: std::ops::Range<u32>| -> Result<usize> {
            for n in keys {
                txn.put_string(ns, format!("k{n}").as_bytes(), b"v", 0)?;
            }
            let (before, guest) = (meter::held(), Guest { db: DB.into(), hash: 0, key: (*b"other").into() });
            engine.post_guest([0][..].into(), Box::new(|lease| lease), Some(guest));
            txn.have_guests();
            Ok((meter::held() - before) / size_of::<Found>())
        };
        assert_eq!([charged(0..300)?, charged(0..0)?, charged(300..301)?], [600, 0, 2]);
        Ok(())
    });
    assert_eq!(result, Ok(()));
}

/// They have as much of the time as their host, not more: however many come, it goes on.
#[test]
fn guests_and_their_host_take_turns() {
    let mut world = world(Fsync::No);
    world.add_source(b"from", 0);
    let (ns, engine) = (world.ns(DB), world.engine().clone());
    let (result, _) = world.transact(&[b"from"], |txn| {
        txn.find(ns, b"from")?.expect("a source");
        let come = || {
            let guest = Guest { db: DB.into(), hash: engine.router.hash(b"from"), key: (*b"from").into() };
            let visit: Job = Box::new(|lease| {
                std::thread::sleep(Duration::from_millis(5));
                lease
            });
            engine.post_guest([0][..].into(), visit, Some(guest));
        };
        assert_eq!(txn.have_guests(), 0);
        (0..5).for_each(|_| come());
        assert_eq!([txn.have_guests(), txn.have_guests()], [1, 1], "it has run for less");
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(txn.have_guests(), 3, "it has run for longer");
        Ok(())
    });
    assert_eq!(result, Ok(()));
}

/// Who goes through one collection after the other is charged for one slice at a time.
#[test]
fn of_what_it_has_gone_through_a_command_holds_nothing() {
    let mut world = world(Fsync::No);
    world.add_source(b"from", 0);
    let ns = world.ns(DB);
    let gone_through = world.transact(&[b"from"], |txn| {
        txn.may_do(Rests::Holding(vec![(b"from".to_vec(), false)]));
        let found = txn.find(ns, b"from")?.expect("a source");
        let (before, mut count) = (meter::held(), 0);
        txn.each_in_slices(found, Bound::Unbounded, Bound::Unbounded, |_, _| {
            count += 1;
            Ok(())
        })?;
        assert!(txn.let_go().is_empty(), "nobody has waited");
        Ok((count, meter::held() - before))
    });
    assert_eq!(gone_through.0, Ok((MANY, 0)));
}

#[test]
fn rule_18_who_rests_holds_its_keys_and_no_shard() {
    let mut world = world(Fsync::No);
    world.add_source(b"from", 0);
    let mut rests = 0;
    let copied = world.copy(b"from", b"to", |engine| {
        rests += 1;
        let lease = engine.try_lease(&engine.all_shards()).expect("all shards are free");
        assert_eq!(lease.iter().map(|core| core.busy.len()).sum::<usize>(), 2);
        assert!(lease.iter().any(|core| core.busy.holds(b"from")));
        Ok(())
    });
    assert_eq!((copied, rests), (Ok(()), MANY / 20));
    world.verify_whole();
}

#[test]
fn rule_18_what_is_held_stays_whatever_its_time_and_the_memory() {
    let mut world = world(Fsync::No);
    let due = world.now_ms + 5;
    world.add_source(b"from", due);
    world.flush();
    let limits = |engine: &Engine, limit| engine.shards.iter().for_each(|shard| shard.core().table_limit = limit);
    let copied = world.copy(b"from", b"to", |engine| {
        limits(engine, 0);
        (0..300).for_each(|_| engine.shards.iter().for_each(|shard| shard.core().make_room()));
        limits(engine, 1 << 20);
        turn(engine, due + 1);
        Ok(())
    });
    assert_eq!(copied, Ok(()));
    world.now_ms = due + 1;
    world.turn();
    assert!(world.get(DB, b"from").is_none());
    world.model.get_mut(DB).unwrap().remove(&b"from"[..]);
    world.note();
    world.verify_whole();
}

#[test]
fn what_is_being_built_is_no_leftover() {
    let mut world = world(Fsync::No);
    world.add_source(b"from", 0);
    let (ns, now_ms) = (world.ns(DB), world.now_ms);
    let copied = world.copy(b"from", b"to", |engine| {
        // Beside one that is.
        let given_up = engine.transact(&engine.all_shards(), now_ms, |txn| {
            let mut build = Build::new(txn, ns, b"to")?;
            (0..MANY).try_for_each(|n| build.put(&element(n), b""))
        });
        assert_eq!(given_up, Ok(()));
        turn(engine, now_ms);
        engine.flush().unwrap();
        Ok(())
    });
    assert_eq!(copied, Ok(()));
    world.verify();
    // The log has the end only: its beginning went with the segments of the first flush.
    world.crash(None);
    world.verify();
    world.crash(Some(1));
    world.verify_whole();
}

#[test]
fn a_crash_while_it_rests_leaves_what_a_start_reclaims() {
    for flushes in [0, 1, 3] {
        for power in [None, Some(7)] {
            let mut world = world(Fsync::No);
            world.add_source(b"from", 0);
            world.flush();
            let mut rests = 0;
            let copied = world.copy(b"from", b"to", |engine| {
                rests += 1;
                if rests > 5 && rests <= 5 + flushes {
                    engine.flush().unwrap();
                }
                if rests == 9 { Err(Error::err("the crash")) } else { Ok(()) }
            });
            assert!(copied.is_err());
            assert!(world.stored_with(tag::ELEMENT) > MANY, "some of it was in the store");
            assert_eq!(
                world.stored_with(tag::PENDING),
                usize::from(flushes > 0),
                "a flush takes along what leads to it"
            );
            world.crash(power);
            world.verify_whole();
        }
    }
}

fn flush_database(engine: &Engine, name: &[u8]) {
    let flushed = engine.transact(&engine.all_shards(), 1, |txn| {
        let (names, dead) = txn.lease[0].names.renewed(&[name]).expect("a database");
        txn.replace_names(names, &dead);
        Ok(())
    });
    assert_eq!(flushed, Ok(()));
}

#[test]
fn a_flushed_database_is_noticed_and_another_does_not_matter() {
    let mut world = world(Fsync::No);
    world.add_source(b"from", 0);
    let copied = world.copy(b"from", b"to", |engine| {
        flush_database(engine, NAMES[1]);
        Ok(())
    });
    assert_eq!(copied, Ok(()));
    world.model.get_mut(NAMES[1]).unwrap().clear();
    world.note();
    world.verify();
    let mut rests = 0;
    let copied = world.copy(b"from", b"more", |engine| {
        rests += 1;
        if rests == 8 {
            flush_database(engine, DB);
        }
        Ok(())
    });
    assert_eq!(copied, Err(Error::Cold), "to be run again");
    assert!(rests < MANY / 20, "at the next slice");
    world.model.get_mut(DB).unwrap().clear();
    world.note();
    world.verify_whole();
}

/// The sweep that passes it over is the only one that its record in the store calls.
#[test]
fn rule_18_what_expires_while_it_is_held_goes_afterwards_though_it_has_left_memory() {
    let mut world = world(Fsync::No);
    let at_ms = world.now_ms + 1000;
    world.put(DB, b"key", b"1", at_ms);
    world.flush();
    world.evict();
    let engine = world.engine().clone();
    world.now_ms = at_ms + 1;
    engine.shards.at(0).core().busy.hold(b"key", false);
    world.turns(1);
    assert!(engine.shards.at(0).core().busy.let_go(b"key").is_empty());
    world.evict();
    assert_eq!((world.state(DB, b"key"), world.stored_with(tag::META)), (None, 1));
    world.turns(1);
    world.flush();
    assert_eq!(world.stored_with(tag::META), 0);
}

#[test]
fn rule_18_who_has_written_and_who_may_not_rest_keeps_the_shards() {
    let mut world = world(Fsync::No);
    let (ns, engine) = (world.ns(DB), world.engine().clone());
    let shard = engine.router.shard_of(b"key");
    let mut rest = |rests: Rests, writes: bool| {
        let (result, _) = world.transact(&[b"key"], |txn| {
            txn.may_do(rests);
            if writes {
                txn.put_string(ns, b"key", b"1", 0)?;
            }
            let free = txn.rest(ns, || Ok(engine.try_lease(&[shard]).is_some()));
            assert!(txn.let_go().is_empty());
            free
        });
        result
    };
    let holding = || Rests::Holding(vec![(b"key".to_vec(), true)]);
    assert_eq!(rest(holding(), false), Ok(true));
    assert_eq!(rest(Rests::Never, false), Ok(false));
    assert_eq!(rest(Rests::Elsewhere, false), Err(Error::Long));
    assert_eq!(rest(holding(), true), Ok(false), "half of it would be seen");
}

/// A command may go through any number of collections, one after the other.
#[test]
fn a_slice_is_held_no_longer_than_it_is_gone_through() {
    let mut world = world(Fsync::No);
    world.add_source(b"a", 0);
    let ns = world.ns(DB);
    let (held, _) = world.transact(&[b"a"], |txn| {
        let _running = meter::begin(Allowance::elsewhere(1 << 20, Box::new(|| false)));
        txn.may_do(Rests::Holding(vec![(b"a".to_vec(), false)]));
        let found = txn.find(ns, b"a")?.expect("a source");
        let (before, mut seen) = (meter::held(), 0);
        for _ in 0..2 {
            txn.each_in_slices(found, Bound::Unbounded, Bound::Unbounded, |_, _| {
                seen += 1;
                Ok(())
            })?;
        }
        assert_eq!(seen, 2 * MANY);
        let after = meter::held();
        txn.let_go();
        Ok((before, after))
    });
    let (before, after) = held.unwrap();
    assert_eq!(before, after);
}
