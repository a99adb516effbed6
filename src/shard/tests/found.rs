//! What was found wrong once beside the rules: accounts of what is dirty, times, filters, rollbacks, bodies.

use std::sync::atomic::Ordering;

use super::world::{DB, NAMES, Value, World, big, world};
use crate::Error;
use crate::codec::{self, element, order::StreamId};
use crate::log::Fsync;
use crate::log::sim::Op;
use crate::shard::keyspace::walk::tests::met;
use crate::shard::memory::missing::LOAD_MOST;
use crate::shard::memory::object::Kind;
use crate::shard::memory::table::{Index, table_hash};
use crate::shard::txn::{BIG_STRING, CHUNK, Txn};

/// Whoever stops the server must learn that acknowledged writes may be lost, and only then.
#[test]
fn a_stop_fails_only_if_neither_store_nor_log_has_everything() {
    for (flush, syncs_fail, ends_well) in
        [(true, false, true), (false, false, true), (true, true, false), (false, true, false)]
    {
        let mut world = world(Fsync::No);
        world.put(DB, b"a", b"1", 0);
        if syncs_fail {
            world.sim.fail(Op::Sync, 0, u64::MAX, 5);
        }
        assert_eq!(world.engine().close(flush).is_ok(), ends_well, "flush {flush}, syncs fail {syncs_fail}");
    }
}

/// Whichever call of the disk fails, in the log or for the checkpoint: what a file then does not say the next flush says, before
/// it removes anything on the strength of that.
#[test]
fn a_flush_that_fails_at_any_call_is_made_good_by_the_next() {
    let mut failed = 0;
    for op in [Op::Create, Op::Write, Op::Sync, Op::Rename, Op::Remove, Op::SyncDir] {
        for skip in 0..6 {
            for power in [None, Some(skip)] {
                let mut world = world(Fsync::No);
                world.put(DB, b"a", b"1", 0);
                world.sim.fail(op, skip, 1, libc::ENOSPC);
                failed += usize::from(world.engine().flush().is_err());
                world.sim.heal();
                world.flush();
                world.crash(power);
                world.verify();
                world.audit();
            }
        }
    }
    assert!(failed > 20, "{failed} flushes");
}

/// A world whose filter of keys is outgrown: its keys are gone, but for one.
fn outgrown_world() -> (World, Vec<Vec<u8>>) {
    let mut world = world(Fsync::No);
    world.turn();
    let gone: Vec<_> = (0..100).map(|n| format!("gone {n}").into_bytes()).collect();
    gone.iter().for_each(|key| world.put(DB, key, b"1", 0));
    world.put(DB, b"stored", b"1", 0);
    world.flush();
    gone.iter().for_each(|key| world.delete(DB, key));
    world.flush();
    assert!(world.engine().shards.at(0).core().membership.is_wanted(2, 0));
    (world, gone)
}

impl World {
    /// Whether a key passes the filter of keys.
    fn passes(&self, key: &[u8]) -> bool {
        let ns = self.ns(DB);
        let hash = table_hash(self.engine().router.hash(key), ns);
        self.engine().shards.at(0).core().membership.may_contain(hash, ns, key)
    }
}

#[test]
fn a_filter_filled_anew_has_the_keys_of_a_failed_flush() {
    let (mut world, gone) = outgrown_world();
    world.put(DB, b"a", b"1", 0);
    let mut flush = world.begin_flush(Some(0));
    while flush.step(world.engine()) {}
    world.turn();
    assert!(!world.engine().shards.at(0).core().membership.is_wanted(2, 0));
    world.flush();
    world.evict();
    assert!(world.passes(b"a") && world.passes(b"stored"));
    assert!(gone.iter().filter(|key| world.passes(key)).count() < 10, "what was gone before is forgotten");
    world.audit();
}

/// A text that is too long for fjall's keys is asked for as it is, not as it is stored.
#[test]
fn a_filter_filled_anew_has_long_keys() {
    let (mut world, _) = outgrown_world();
    let long = vec![b'l'; codec::LONG_FORM];
    world.put(DB, &long, b"1", 0);
    world.flush();
    world.evict();
    world.turn();
    assert!(!world.engine().shards.at(0).core().membership.is_wanted(2, 0));
    assert!(world.passes(&long) && world.passes(b"stored"));
    world.verify();
    world.audit();
}

#[test]
fn a_filter_is_not_filled_anew_during_a_flush() {
    let (mut world, _) = outgrown_world();
    world.put(DB, b"a", b"1", 0);
    let engine = world.engine().clone();
    let mut flush = world.begin_flush(None);
    assert!(!world.passes(b"a"));
    while flush.step(&engine) {
        if world.passes(b"a") {
            world.turn();
        }
    }
    world.turn();
    world.evict();
    assert!(world.passes(b"a") && world.passes(b"stored"));
    drop(engine);
    world.audit();
}

/// Until the other one is complete it is the present one that is asked: it gets what comes meanwhile as well.
#[test]
fn what_is_flushed_while_a_filter_is_filled_anew_is_found() {
    let (mut world, _) = outgrown_world();
    let codec::key::KeyRange { lower, .. } = codec::key::tag_range(codec::key::tag::META);
    world.engine().shards.at(0).core().membership.refill(lower);
    world.put(DB, b"a", b"1", 0);
    world.flush();
    world.evict();
    world.verify();
    world.turn();
    world.evict();
    world.verify();
    world.audit();
}

/// Neither when its object leaves the table nor when a flush comes first.
#[test]
fn a_big_body_of_a_dead_namespace_is_freed_by_nobody_who_holds_the_core() {
    let mut world = world(Fsync::No);
    for (flushed, waiting) in [(false, 1), (true, 2)] {
        world.put(DB, b"a", &vec![1; 100 * CHUNK], 0);
        world.flush_names(&[DB]);
        if flushed {
            world.flush();
        }
        world.turns(1);
        assert_eq!(world.engine().shards.at(0).core().trash.len(), waiting);
    }
    world.audit();
}

#[test]
fn a_rollback_brings_an_empty_value_back() {
    let mut world = world(Fsync::No);
    world.put(DB, b"empty", b"", 0);
    world.put(DB, b"big", &big(1), 0);
    let ns = world.ns(DB);
    let result = world.transact(&[], |txn| {
        txn.put_string(ns, b"empty", b"full", 0)?;
        txn.put_string(ns, b"big", b"small", 0)?;
        txn.put_string(ns, b"new", b"small", 0)?;
        Err::<(), _>(Error::Cold)
    });
    assert!(result.0.is_err());
    world.verify();
    world.flush();
    world.evict();
    world.verify();
}

/// The log's record of it says nothing else of its key.
#[test]
fn a_time_that_a_start_has_found_in_the_log_gets_to_fjall() {
    let mut world = world(Fsync::No);
    let (ns, at_ms) = (world.ns(DB), world.now_ms + 1000);
    world.put(DB, b"a", b"1", 0);
    world.flush();
    let timed = world.transact(&[b"a"], |txn| txn.find(ns, b"a").map(|at| txn.set_expiry(at.unwrap(), at_ms)));
    world.engine().write_out(timed.1);
    world.model.get_mut(DB).unwrap().insert(b"a".to_vec(), Value::string(b"1".to_vec(), at_ms));
    world.note();
    world.crash(None);
    world.flush();
    world.crash(None);
    world.verify();
    world.audit();
}

/// A command of a transaction that fails takes its own writes back. What follows stands in their place in the record, and
/// may be of the same body.
#[test]
fn what_follows_a_rollback_is_replayed_as_it_was_made() {
    let mut world = world(Fsync::No);
    let (ns, at_ms) = (world.ns(DB), world.now_ms + 1000);
    let field = |name: &[u8]| [&[element::Group::HashField.tag()], name].concat();
    let put = |txn: &mut Txn<'_, '_>, at, name: &[u8]| {
        txn.put_element(at, &field(name), b"1")?;
        txn.add_size(at, 1);
        Ok::<_, Error>(())
    };
    let made = world.transact(&[b"hash"], |txn| {
        let at = txn.create(ns, b"hash", Kind::Hash, 0)?;
        put(txn, at, b"first")
    });
    made.0.unwrap();
    let changed = world.transact(&[b"hash"], |txn| {
        let at = txn.find(ns, b"hash")?.unwrap();
        let mark = txn.mark();
        put(txn, at, b"taken back")?;
        txn.rollback_to(mark);
        txn.set_expiry(at, at_ms);
        put(txn, at, b"second")
    });
    world.engine().write_out(changed.1);
    let elements = [b"first".as_slice(), b"second"].map(|name| (field(name), b"1".to_vec())).into();
    let hash = Value::collection(Kind::Hash, elements, at_ms);
    world.model.get_mut(DB).unwrap().insert(b"hash".to_vec(), hash);
    world.note();
    world.verify();
    world.crash(None);
    world.verify();
    world.audit();
}

#[test]
fn two_bodies_in_one_record_do_not_mix() {
    let mut world = world(Fsync::No);
    let ns = world.ns(DB);
    let long = vec![1; BIG_STRING + 4 * CHUNK];
    let both = world.transact(&[b"a"], |txn| {
        txn.put_string(ns, b"a", &long, 0)?;
        txn.put_string(ns, b"a", &big(2), 0)
    });
    both.0.unwrap();
    world.put(DB, b"other", b"1", 0);
    world.crash(None);
    let end = BIG_STRING + 4 * CHUNK;
    let grown = world.transact(&[b"a"], |txn| {
        let found = txn.find(ns, b"a")?.unwrap();
        txn.splice(found, end, b"x")?;
        let mut out = Vec::new();
        txn.string_range(found, BIG_STRING + 2 * CHUNK, end, &mut out)?;
        Ok(out)
    });
    assert!(grown.0.unwrap().iter().all(|&byte| byte == 0), "what is between reads as zeros");
}

#[test]
fn what_a_transaction_found_stays_where_it_is() {
    let mut world = world(Fsync::No);
    let keys: Vec<Vec<u8>> = (0..50).map(|i| format!("k{i}").into_bytes()).collect();
    for key in &keys {
        world.put(DB, key, key, 0);
    }
    world.flush();
    world.evict();
    world.engine().shards.at(0).core().table_limit = 0;
    let ns = world.ns(DB);
    let result = world.transact(&[], |txn| {
        let found = keys.iter().map(|key| txn.find(ns, key)).collect::<Result<Vec<_>, _>>()?;
        for (key, found) in keys.iter().zip(found) {
            assert_eq!(txn.object(found.unwrap()).value(), key);
        }
        Ok(())
    });
    result.0.unwrap();
    world.transact(&[], |_| Ok(())).0.unwrap();
    assert!(world.engine().shards.at(0).core().table.is_empty(), "afterwards they leave");
}

#[test]
fn a_time_flushed_during_a_sweep_is_swept_by_the_next() {
    let mut world = world(Fsync::No);
    world.put(DB, b"stays", b"1", 0);
    world.flush();
    world.put(DB, b"a", b"1", world.now_ms + 5);
    let mut flush = world.begin_flush(None);
    world.step(&mut flush, 2);
    world.now_ms += 3;
    // Passes over the time that is on its way, and notes where to begin next.
    world.turn();
    world.put(DB, b"b", b"1", world.now_ms + 60_000);
    world.finish(&mut flush);
    world.evict();
    world.now_ms += 10;
    world.verify_counts();
    world.audit();
}

#[test]
fn a_time_is_swept_as_soon_as_its_object_may_leave() {
    let mut world = world(Fsync::No);
    let keys: Vec<Vec<u8>> = (0..20).map(|i| format!("k{i}").into_bytes()).collect();
    world.put(DB, b"stays", b"1", 0);
    world.flush();
    // There are no times yet: the sweep has nothing to look for.
    world.turn();
    for key in &keys {
        world.put(DB, key, b"1", world.now_ms + 5);
    }
    let mut flush = world.begin_flush(None);
    // All gathered and ingested, one slice settled.
    world.step(&mut flush, 6);
    world.evict();
    world.now_ms += 10;
    world.verify_counts();
    world.finish(&mut flush);
    world.audit();
}

/// A batch of the sweep may end between two keys of one millisecond, and one millisecond may have several batches.
#[test]
fn a_sweep_goes_on_with_the_millisecond_that_its_batch_has_cut() {
    const KEYS: u64 = 3000;
    for same_ms in [1, 700, 1500, KEYS] {
        let mut world = world(Fsync::No);
        let (ns, first_ms) = (world.ns(DB), world.now_ms + 5);
        let put = |txn: &mut Txn<'_, '_>| {
            (0..KEYS).try_for_each(|n| txn.put_string(ns, &n.to_be_bytes(), b"1", first_ms + n / same_ms).map(drop))
        };
        world.transact(&[], put).0.unwrap();
        world.put(DB, b"stays", b"1", 0);
        // They are on disk only: the table's own times have nothing to tell.
        world.reopen(true);
        assert_eq!(world.stored_with(codec::key::tag::EXPIRY) as u64, KEYS);
        world.now_ms = first_ms + KEYS;
        world.verify_counts();
        assert_eq!(world.engine().shards.at(0).core().stats.expired_keys, KEYS);
        world.flush();
        assert_eq!(world.stored_with(codec::key::tag::EXPIRY), 0, "{same_ms} keys in a millisecond");
        world.audit();
    }
}

/// What cannot be read now may be read the next time, and keeps back nothing that is due after it.
#[test]
fn a_sweep_that_has_failed_is_taken_up_again() {
    let mut world = world(Fsync::No);
    let keys: [&[u8]; 3] = [b"a", b"b", b"c"];
    keys.iter().zip(5..).for_each(|(key, after)| world.put(DB, key, b"1", world.now_ms + after));
    world.put(DB, b"stays", b"1", 0);
    world.reopen(true);
    let mut record = Vec::new();
    let ns = world.ns(DB);
    codec::key::meta_key(ns, b"b", &mut record);
    let whole = world.stored(DB, b"b").unwrap();
    let engine = world.engine().clone();
    let store = |value: &[u8]| _ = engine.store.partition(0).ingest([(record.clone(), Some(value))]).unwrap();
    store(b"damaged");
    world.now_ms += 10;
    world.turns(2);
    assert_eq!(engine.shards.at(0).core().count(ns), 2, "one cannot be read, and one stays");
    store(&whole);
    world.verify_counts();
    drop(engine);
    world.audit();
}

#[test]
fn an_owner_of_a_time_outdoes_its_tombstone() {
    let mut world = world(Fsync::No);
    let at_ms = world.now_ms + 50;
    world.put(DB, b"a", b"1", at_ms);
    world.flush();
    world.put(DB, b"a", b"1", 0);
    // The failed flush leaves the tombstone of the old time behind.
    let mut flush = world.begin_flush(Some(0));
    world.finish(&mut flush);
    world.put(DB, b"a", b"1", at_ms);
    world.flush();
    assert_eq!(world.stored_with(codec::key::tag::EXPIRY), 1);
    world.evict();
    world.now_ms += 100;
    world.verify_counts();
}

#[test]
fn a_time_that_is_taken_away_leaves_the_index_also_after_a_flush_that_has_failed() {
    let mut world = world(Fsync::No);
    world.put(DB, b"a", b"1", world.now_ms + 50);
    world.flush();
    world.put(DB, b"a", b"1", 0);
    let mut flush = world.begin_flush(Some(0));
    world.finish(&mut flush);
    assert_eq!(world.stored_with(codec::key::tag::EXPIRY), 1);
    world.flush();
    assert_eq!(world.stored_with(codec::key::tag::EXPIRY), 0);
}

/// Of keys on disk alone it is not known whether they have expired by now.
#[test]
fn what_a_start_has_found_is_told() {
    let mut world = world(Fsync::No);
    let told = |world: &World| {
        let stats = &world.engine().stats;
        assert_eq!(stats.log_base_bytes.load(Ordering::Relaxed), world.engine().log.size_bytes());
        [&stats.loaded_keys, &stats.loaded_expired, &stats.replayed_records].map(|n| n.load(Ordering::Relaxed))
    };
    // The world's time is long past.
    world.put(DB, b"due", b"1", world.now_ms + 5);
    world.put(DB, b"later", b"1", 5_000_000_000_000);
    world.put(DB, b"a", b"1", 0);
    // What was there before a database was emptied is not.
    world.put(NAMES[1], b"a", b"1", 0);
    world.flush_names(&[NAMES[1]]);
    let last = world.engine().log.last();
    world.crash(None);
    assert_eq!(told(&world), [3, 1, last]);
    world.reopen(true);
    assert_eq!(told(&world), [3, 0, 0]);
}

#[test]
fn dirty_bytes_follow_a_value_that_grows() {
    let mut world = world(Fsync::No);
    world.put(DB, b"a", b"1", 0);
    world.put(DB, b"a", &[1; 60_000], 0);
    assert!(world.engine().shards.at(0).core().dirty_bytes > 60_000);
    world.put(DB, b"a", &[2; 60_000], 0);
    assert!(world.engine().shards.at(0).core().dirty_bytes < 120_000);
}

#[test]
fn what_turns_dirty_during_a_flush_counts_whatever_is_removed_meanwhile() {
    let mut world = world(Fsync::No);
    world.put(DB, b"a", &big(1), 0);
    let mut flush = world.begin_flush(None);
    // The list of what is dirty is the flight's. The bytes of the big string are, too.
    world.step(&mut flush, 1);
    world.put(DB, b"b", b"1", 0);
    world.put(DB, b"a", b"", 0);
    world.finish(&mut flush);
    assert!(world.engine().dirty_bytes() > 0, "else an idle server would never flush it");
    world.audit();
}

#[test]
fn dirty_bytes_are_as_before_after_a_rollback() {
    let mut world = world(Fsync::No);
    let at_ms = world.now_ms + 1000;
    let keys: [&[u8]; 3] = [b"big", b"small", b"new"];
    world.put(DB, keys[0], &big(7), 0);
    world.put(DB, keys[1], b"value", at_ms);
    for flushed in [false, true] {
        if flushed {
            world.flush();
        }
        let before = world.engine().dirty_bytes();
        let ns = world.ns(DB);
        // Everything is removed and made anew, and nothing of it stays.
        let result = world.transact(&keys, |txn| {
            for key in keys {
                txn.delete(ns, key)?;
                txn.put_string(ns, key, &big(8), 0)?;
                txn.put_string(ns, key, b"small", at_ms)?;
            }
            txn.delete(ns, keys[0])?;
            Err::<(), _>(Error::Syntax)
        });
        assert!(result.0.is_err());
        assert_eq!(world.engine().dirty_bytes(), before, "flushed {flushed}");
    }
    world.verify();
}

#[test]
fn a_key_that_comes_and_goes_leaves_nothing_for_a_flush() {
    let mut world = world(Fsync::No);
    for n in 0..1000 {
        world.put(DB, b"a", b"1", 0);
        if n % 2 == 0 {
            world.put(DB, b"b", b"1", 0);
            world.delete(DB, b"b");
        }
        world.delete(DB, b"a");
    }
    let engine = world.engine().clone();
    {
        let core = engine.shards.at(0).core();
        assert!(core.dirty.len() <= 1000 && core.dirty_bytes <= 4000, "{} {}", core.dirty.len(), core.dirty_bytes);
        assert_eq!(core.table.iter().count(), 0);
    }
    world.flush();
    assert_eq!(engine.shards.at(0).core().dirty_bytes, 0);
    world.verify();
}

/// The list of what is dirty keeps the place of a key that is gone: also beside much that is dirty it counts.
#[test]
fn what_keys_that_come_and_go_leave_in_the_list_counts() {
    let mut world = world(Fsync::No);
    world.put(DB, b"stays", &[1; 50_000], 0);
    for _ in 0..1000 {
        world.put(DB, b"a", b"1", 0);
        world.put(DB, b"b", b"1", 0);
        world.delete(DB, b"a");
        world.delete(DB, b"b");
    }
    let core = world.engine().shards.at(0).core();
    let left = core.queue_bytes() - size_of::<Index>();
    assert!(core.dirty_bytes >= core.dirty_again_bytes() + left, "{} bytes, {left} of them left", core.dirty_bytes);
}

#[test]
fn a_key_that_was_stored_and_comes_and_goes_is_not_looked_for_in_fjall_each_time() {
    let mut world = world(Fsync::No);
    world.put(DB, b"a", b"1", 0);
    world.flush();
    world.delete(DB, b"a");
    world.flush();
    assert_eq!(world.state(DB, b"a"), None, "its tombstone is stored");
    let engine = world.engine().clone();
    let before = engine.shards.at(0).core().stats.stored_reads;
    for _ in 0..1000 {
        world.put(DB, b"a", b"1", 0);
        world.delete(DB, b"a");
    }
    {
        let core = engine.shards.at(0).core();
        assert!(core.stats.stored_reads - before <= 1);
        assert!(core.dirty.len() == 1 && core.dirty_bytes < 1000, "{} {}", core.dirty.len(), core.dirty_bytes);
    }
    world.flush();
    assert_eq!(world.state(DB, b"a"), None, "the flush forgets it");
    world.verify();
    world.put(DB, b"a", b"2", 0);
    world.delete(DB, b"a");
    world.put(DB, b"a", b"3", 0);
    world.flush();
    assert!(world.stored(DB, b"a").is_some());
    drop(engine);
    world.crash(None);
    world.verify();
}

#[test]
fn a_prefix_longer_than_stored_keys_still_finds() {
    let mut world = world(Fsync::No);
    let key = vec![b'k'; codec::MAX_INLINE + 50];
    world.put(DB, &key, b"1", 0);
    let engine = world.engine().clone();
    let (ns, prefix) = (world.ns(DB), &key[..codec::MAX_INLINE + 10]);
    for flushed in [false, true] {
        if flushed {
            world.flush();
        }
        let mut core = engine.shards.at(0).core();
        let met = met(&mut core, &engine.router, ns, prefix, Default::default(), world.now_ms);
        assert!(met.len() == 1 && met[0].key == key && met[0].kind == Kind::String);
    }
}

#[test]
fn a_dropped_engine_leaves_the_directory_and_flushes_nothing() {
    let mut world = world(Fsync::No);
    world.put(DB, b"a", b"1", 0);
    world.crash(None);
    assert_eq!(world.stored(DB, b"a"), None);
    world.verify();
}

fn pending(ms: u64) -> Vec<u8> {
    let mut key = Vec::new();
    element::stream_pel(b"group", StreamId { ms, seq: 0 }, &mut key);
    key
}

/// Its size promises two elements, and there are far more records: what one read takes is bounded, and what lies behind that
/// was taken for absent.
#[test]
fn what_lies_behind_the_bound_of_a_whole_read_is_found() {
    let mut world = world(Fsync::No);
    let (ns, count) = (world.ns(DB), 3 * LOAD_MOST.get() as u64);
    let made = world.transact(&[b"a"], |txn| {
        let at = txn.create(ns, b"a", Kind::Stream, 0)?;
        txn.add_size(at, 2);
        (0..count).try_for_each(|ms| txn.put_element(at, &pending(ms), &ms.to_be_bytes()).map(drop))
    });
    made.0.unwrap();
    for first in [count - 1, LOAD_MOST.get() as u64 + 1, LOAD_MOST.get() as u64, 0] {
        world.flush();
        world.evict();
        let read = world.transact(&[b"a"], |txn| {
            let at = txn.find(ns, b"a")?.unwrap();
            for ms in [first, 0, count - 1] {
                assert_eq!(txn.element(at, &pending(ms))?, Some(&ms.to_be_bytes()[..]), "{ms} after {first}");
            }
            assert_eq!(txn.element(at, &pending(count))?, None);
            txn.put_element(at, &pending(first), &first.to_be_bytes())
        });
        assert!(read.0.unwrap(), "{first} was there");
    }
}
