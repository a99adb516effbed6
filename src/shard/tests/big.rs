//! Rule 10: results too big for memory.

use super::world::{DB, Elements, Value, World};
use crate::Error;
use crate::codec;
use crate::codec::element::Group;
use crate::log::Fsync;
use crate::meter::{self, Allowance};
use crate::shard::memory::object::Kind;
use crate::shard::txn::build::{Build, SPILL, Shape};

/// Elements of a result that spills many times.
const MANY: usize = 1000;

fn element(n: usize) -> Vec<u8> {
    [&[Group::HashField.tag()], format!("field {n:06}").as_bytes()].concat()
}

impl World {
    /// Builds a hash of `count` fields and then does what `end` says.
    fn build(&mut self, key: &[u8], count: usize, finish: bool) -> Result<(), Error> {
        let ns = self.ns(DB);
        self.builds = true;
        let (result, need) = self.transact(&[key], |txn| {
            let mut build = Build::new(txn, ns, key)?;
            for n in 0..count {
                build.put(&element(n), b"value")?;
            }
            if finish {
                build.finish(txn, Shape::new(Kind::Hash, count as u64)).map(drop)
            } else {
                Err(Error::err("given up by the test"))
            }
        });
        self.engine().write_out(need);
        if finish {
            let elements: Elements = (0..count).map(|n| (element(n), b"value".to_vec())).collect();
            let db = self.model.get_mut(DB).unwrap();
            db.insert(key.to_vec(), Value::collection(Kind::Hash, elements, 0));
        }
        self.note();
        result
    }
}

#[test]
fn rule_10_a_big_result_does_not_gather_in_memory() {
    let mut world = World::new(1, Fsync::EverySec);
    world.put(DB, b"key", b"what was there before", 0);
    let log_before = world.engine().log.size_bytes();
    world.build(b"key", MANY, true).unwrap();
    let logged = world.engine().log.size_bytes() - log_before;
    assert!(logged < 512, "the log carries a switch, not the elements: {logged} bytes");
    {
        let core = world.engine().shards.at(0).core();
        assert!(core.dirty_bytes < SPILL.get(), "{} dirty bytes", core.dirty_bytes);
        assert!(core.table_bytes < SPILL.get(), "{} bytes in the table", core.table_bytes);
    }
    assert!(world.stored_with(codec::key::tag::ELEMENT) >= MANY, "the elements are in the store");
    world.verify();
    world.reopen(false);
    world.verify();
    world.audit();
}

#[test]
fn rule_10_what_a_crash_leaves_is_garbage() {
    for power in [None, Some(1), Some(2), Some(3)] {
        let mut world = World::new(1, Fsync::No);
        world.put(DB, b"other", b"stays", 0);
        world.engine().log.sync_to(world.engine().log.last()).unwrap();
        world.build(b"key", MANY, false).unwrap_err();
        assert!(world.stored_with(codec::key::tag::ELEMENT) > 0, "slices are in the store");
        world.crash(power);
        world.verify();
        world.audit();
        assert_eq!(world.stored_with(codec::key::tag::ELEMENT), 0, "they are reclaimed");
    }
}

/// What a collection on disk answers about ranks it answers without a walk through its elements.
#[test]
fn a_rank_on_disk_costs_the_steps_of_a_block() {
    let mut world = World::new(1, Fsync::EverySec);
    world.build(b"key", MANY, true).unwrap();
    world.flush();
    let ns = world.ns(DB);
    for n in [0, 1, MANY / 2, MANY - 1] {
        world.reopen(false);
        let (steps, _) = world.transact(&[b"key"], |txn| {
            let at = txn.find(ns, b"key")?.expect("was built");
            let before = meter::tests::taken();
            let found = txn.select(at, Group::HashField, n as u64)?.map(|(key, _)| key.to_vec());
            assert_eq!(found, Some(element(n)));
            assert_eq!(txn.rank(at, Group::HashField, &element(n))?, n as u64);
            Ok(meter::tests::taken() - before)
        });
        let steps = steps.unwrap();
        assert!(steps < MANY / 10, "{steps} steps for element {n}");
    }
}

/// What changes on its way to fjall counts once, from the gathering on until the flight has settled. That of an earlier run is
/// another one.
#[test]
fn a_rank_on_disk_is_right_at_every_step_of_a_flush() {
    const GONE: usize = 20;
    let mut world = World::new(1, Fsync::EverySec);
    world.build(b"key", MANY, true).unwrap();
    for run in 1..=3 {
        world.reopen(true);
        let (ns, gone) = (world.ns(DB), run * GONE);
        let removed = world.transact(&[b"key"], |txn| {
            let at = txn.find(ns, b"key")?.expect("was built");
            for n in gone - GONE..gone {
                assert!(txn.remove_element(at, &element(n))?);
            }
            txn.add_size(at, -(GONE as i64));
            Ok(())
        });
        removed.0.unwrap();
        let mut flush = world.begin_flush(None);
        for steps in 0.. {
            let (answers, _) = world.transact(&[b"key"], |txn| {
                let at = txn.find(ns, b"key")?.expect("was built");
                let rank = txn.rank(at, Group::HashField, &element(MANY - 1))?;
                let selected = txn.select(at, Group::HashField, 500)?;
                Ok((rank as usize, selected.map(|(key, _)| key.to_vec())))
            });
            assert_eq!(answers.unwrap(), (MANY - 1 - gone, Some(element(500 + gone))), "run {run}, {steps} steps");
            if !flush.step(world.engine()) {
                assert!(steps > 5, "{steps} steps");
                break;
            }
        }
    }
}

#[test]
fn rule_10_what_a_failed_command_leaves_is_garbage() {
    let mut world = World::new(1, Fsync::EverySec);
    world.build(b"key", MANY, false).unwrap_err();
    // The log's record of it goes before the timer looks: the flush takes it along.
    world.flush();
    world.reopen(false);
    world.audit();
    assert_eq!(world.stored_with(codec::key::tag::ELEMENT), 0);
    world.build(b"key", MANY, false).unwrap_err();
    world.audit();
    assert_eq!(world.stored_with(codec::key::tag::ELEMENT), 0);
}

/// What a start puts in order has no LSN: a partition that gets it alone reaches as far as before, or the next start would take
/// it for one from an earlier time.
#[test]
fn rule_10_what_is_garbage_since_the_start_takes_back_no_lsn() {
    let mut world = World::new(1, Fsync::EverySec);
    world.build(b"key", MANY, false).unwrap_err();
    world.flush();
    world.reopen(false);
    world.flush();
    world.reopen(false);
    world.audit();
}

/// It had its key already when the command failed.
#[test]
fn rule_10_a_result_that_is_taken_back_is_garbage() {
    let mut world = World::new(1, Fsync::EverySec);
    let ns = world.ns(DB);
    world.builds = true;
    let (result, need) = world.transact(&[b"key"], |txn| {
        let mut build = Build::new(txn, ns, b"key")?;
        (0..MANY).try_for_each(|n| build.put(&element(n), b"value"))?;
        build.finish(txn, Shape::new(Kind::Hash, MANY as u64))?;
        Err::<(), _>(Error::err("given up by the test"))
    });
    result.unwrap_err();
    world.engine().write_out(need);
    world.note();
    assert!(world.stored_with(codec::key::tag::ELEMENT) > 0, "slices are in the store");
    world.audit();
    assert_eq!(world.stored_with(codec::key::tag::ELEMENT), 0, "they are reclaimed");
}

#[test]
fn rule_10_a_replay_over_a_store_that_is_ahead_keeps_the_result() {
    let mut world = World::new(1, Fsync::EverySec);
    // Replay flushes after a few records, and so looks at what the store holds.
    (world.options.dirty_budget, world.options.table_budget) = (1, 1);
    for n in 0..10 {
        world.put(DB, format!("other {n}").as_bytes(), b"value", 0);
    }
    let ns = world.ns(DB);
    world.builds = true;
    let (result, need) = world.transact(&[b"key"], |txn| {
        txn.put_string(ns, b"key", b"a string", 0)?;
        let mut build = Build::new(txn, ns, b"key")?;
        for n in 0..MANY {
            build.put(&element(n), b"value")?;
        }
        build.finish(txn, Shape::new(Kind::Hash, MANY as u64)).map(drop)
    });
    result.unwrap();
    world.engine().write_out(need);
    let elements: Elements = (0..MANY).map(|n| (element(n), b"value".to_vec())).collect();
    world.model.get_mut(DB).unwrap().insert(b"key".to_vec(), Value::collection(Kind::Hash, elements, 0));
    world.note();
    world.sim.crash_at_step("flush.stored", 0);
    world.engine().flush().unwrap_err();
    world.crash(None);
    world.verify();
    world.audit();
}

#[test]
fn rule_10_a_result_over_itself_reads_what_it_replaces() {
    let mut world = World::new(1, Fsync::EverySec);
    world.build(b"key", MANY, true).unwrap();
    world.flush();
    let ns = world.ns(DB);
    let (result, need) = world.transact(&[b"key"], |txn| {
        let at = txn.find(ns, b"key")?.expect("was built");
        let mut build = Build::new(txn, ns, b"key")?;
        let mut kept = 0;
        for item in txn.group(at, Group::HashField)?.step_by(2) {
            let (element, value) = item?;
            build.put(&element, &value)?;
            kept += 1;
        }
        build.finish(txn, Shape::new(Kind::Hash, kept)).map(drop)
    });
    result.unwrap();
    world.engine().write_out(need);
    let elements: Elements = (0..MANY).step_by(2).map(|n| (element(n), b"value".to_vec())).collect();
    world.model.get_mut(DB).unwrap().insert(b"key".to_vec(), Value::collection(Kind::Hash, elements, 0));
    world.note();
    world.verify();
    world.crash(None);
    world.verify();
    world.audit();
}

/// What a result takes twice on its way into memory, and in log and undo records, counts: no size of one is refused that is
/// neither small enough for memory nor big enough for fjall.
#[test]
fn a_result_of_any_size_fits() {
    const MOST: usize = 8 << 10;
    let mut world = World::new(1, Fsync::No);
    let ns = world.ns(DB);
    world.builds = true;
    for count in 1..200 {
        let (at, _) = world.transact(&[b"key"], |txn| {
            let _running = meter::begin(Allowance::elsewhere(MOST, Box::new(|| false)));
            let mut build = Build::new(txn, ns, b"key")?;
            (0..count).try_for_each(|n| build.put(&element(n), b""))?;
            build.finish(txn, Shape::new(Kind::Hash, count as u64))?;
            meter::fits()
        });
        assert_eq!(at, Ok(()), "{count} elements");
    }
}

/// A script may make any number of small results: each is held as what was written without one is.
#[test]
fn a_result_is_held_no_longer_than_it_is_made() {
    const FEW: usize = 10;
    let mut world = World::new(1, Fsync::No);
    let ns = world.ns(DB);
    let mut held = |builds: bool| {
        let (held, _) = world.transact(&[b"key"], |txn| {
            let _running = meter::begin(Allowance::elsewhere(1 << 20, Box::new(|| false)));
            if builds {
                let mut build = Build::new(txn, ns, b"key")?;
                (0..FEW).try_for_each(|n| build.put(&element(n), b"value"))?;
                build.finish(txn, Shape::new(Kind::Hash, FEW as u64))?;
            } else {
                let at = txn.create(ns, b"key", Kind::Hash, 0)?;
                (0..FEW).try_for_each(|n| txn.put_element(at, &element(n), b"value").map(drop))?;
                txn.add_size(at, FEW as i64);
            }
            Ok(meter::held())
        });
        world.delete(DB, b"key");
        held.unwrap()
    };
    let [built, written] = [true, false].map(&mut held);
    assert!(built <= written, "{built} bytes, not {written}");
}
