//! Small collections whose elements stand in their metadata record.

use super::world::{DB, Value, World, world};
use crate::codec::field::FieldTimes;
use crate::codec::key::tag;
use crate::codec::{self, Extra, Meta};
use crate::error::Error;
use crate::log::Fsync;
use crate::shard::memory::object::{Body, Kind};
use crate::shard::memory::packed;
use crate::shard::rank;
use crate::shard::txn::Txn;
use crate::shard::txn::build::{Build, Shape};

const KEY: &[u8] = b"hash";

fn field(n: usize) -> Vec<u8> {
    format!("\u{1}f{n}").into_bytes()
}

impl World {
    /// Gives the hash these fields, or takes them from it.
    fn change(&mut self, fields: impl Iterator<Item = usize>, put: bool) {
        let ns = self.ns(DB);
        let fields: Vec<_> = fields.map(field).collect();
        let changed = self.transact(&[KEY], |txn| {
            let at = match txn.find(ns, KEY)? {
                Some(at) => at,
                None => txn.create(ns, KEY, Kind::Hash, 0)?,
            };
            for field in &fields {
                let existed = if put { txn.put_element(at, field, b"value")? } else { txn.remove_element(at, field)? };
                txn.add_size(at, i64::from(put) - i64::from(existed));
            }
            Ok(())
        });
        changed.0.unwrap();
        self.engine().write_out(changed.1);
        let known = self.model.get_mut(DB).unwrap().remove(KEY);
        let mut elements = known.map(|value| (*value.elements).clone()).unwrap_or_default();
        for field in fields {
            if put {
                elements.insert(field, b"value".to_vec())
            } else {
                elements.remove(&field)
            };
        }
        let value = Value::collection(Kind::Hash, elements, 0);
        self.model.get_mut(DB).unwrap().insert(KEY.to_vec(), value);
        self.note();
    }

    /// Brought to fjall and gone from memory, moka's included.
    fn sleep(&mut self) {
        self.flush();
        self.evict();
        self.engine().shards.iter().for_each(|shard| shard.core().cold.clear());
    }
}

#[test]
fn what_outgrows_one_record_is_written_out_and_stays_so() {
    let mut world = world(Fsync::No);
    world.change(0..2, true);
    world.sleep();
    assert_eq!(world.stored_with(tag::ELEMENT), 0);
    world.verify();
    world.change(2..5, true);
    world.sleep();
    assert_eq!(world.stored_with(tag::ELEMENT), 5, "those that were packed too");
    world.verify();
    world.change(1..5, false);
    world.sleep();
    assert_eq!(world.stored_with(tag::ELEMENT), 1);
    world.delete(DB, KEY);
    world.flush();
    assert_eq!(world.stored_with(tag::GARBAGE), 1);
    world.audit();
}

#[test]
fn of_what_is_packed_there_is_no_garbage() {
    let mut world = world(Fsync::No);
    world.change(0..2, true);
    world.sleep();
    world.delete(DB, KEY);
    world.flush();
    assert_eq!(world.stored_with(tag::GARBAGE), 0);
    world.change(0..2, true);
    world.sleep();
    world.put(DB, KEY, b"overwritten unseen", 0);
    assert_eq!(world.engine().shards.at(0).core().blind.len(), 1);
    world.flush();
    assert_eq!(world.stored_with(tag::GARBAGE), 0);
    world.audit();
}

/// The log has what was changed of it, and not what is packed.
#[test]
fn a_crash_leaves_what_is_packed_of_a_body_that_goes_on() {
    for elements in [false, true] {
        let mut world = world(Fsync::Always);
        world.change(0..2, true);
        world.sleep();
        // The segment in which it began goes.
        world.put(DB, b"other", b"1", 0);
        world.sleep();
        if elements {
            world.change(0..1, false);
            world.change(3..4, true);
        } else {
            let ns = world.ns(DB);
            let changed = world.transact(&[KEY], |txn| {
                let at = txn.find(ns, KEY)?.unwrap();
                txn.set_form(at, 1);
                Ok(())
            });
            changed.0.unwrap();
            world.engine().write_out(changed.1);
        }
        world.crash(None);
        world.verify();
        world.sleep();
        assert_eq!(world.stored_with(tag::ELEMENT), 0, "it is still small");
        world.verify();
        world.audit();
    }
}

#[test]
fn what_is_taken_back_leaves_the_form_that_was() {
    let mut world = world(Fsync::No);
    world.change(0..2, true);
    let ns = world.ns(DB);
    let form = |txn: &mut Txn<'_, '_>| {
        let at = txn.find(ns, KEY)?.unwrap();
        Ok((at, txn.object(at).body.as_ref().unwrap().form))
    };
    let (_, before) = world.transact(&[KEY], form).0.unwrap();
    let refused = world.transact(&[KEY], |txn| {
        let (at, form) = form(txn)?;
        txn.set_form(at, form + 1);
        Err::<(), _>(Error::TooMuch)
    });
    assert!(refused.0.is_err());
    assert_eq!(world.transact(&[KEY], form).0.unwrap().1, before);
}

#[test]
fn what_is_packed_comes_back_whole_after_a_crash_before_the_first_flush() {
    let mut world = world(Fsync::Always);
    world.change(0..3, true);
    world.change(1..3, false);
    world.crash(None);
    world.verify();
    world.sleep();
    assert_eq!((world.stored_with(tag::ELEMENT), world.stored_with(tag::GARBAGE)), (0, 0));
    world.verify();
    world.audit();
}

#[test]
fn what_is_imported_is_packed_if_it_is_small() {
    let mut world = world(Fsync::No);
    let ns = world.ns(DB);
    let engine = world.engine().clone();
    engine.go_straight(true);
    for (key, count) in [(&b"few"[..], 2), (b"many", 3)] {
        let fields: Vec<_> = (0..count).map(field).collect();
        let put = engine.transact(&[0], 1, |txn| {
            let mut build = Build::new(txn, ns, key)?;
            fields.iter().try_for_each(|field| build.put(field, b"value"))?;
            let shape = Shape { extra: Extra::None, ..Shape::new(Kind::Hash, count as u64) };
            assert!(build.finish(txn, shape)?.is_none(), "it goes straight");
            Ok(())
        });
        put.unwrap();
        let elements = fields.into_iter().map(|field| (field, b"value".to_vec())).collect();
        let value = Value::collection(Kind::Hash, elements, 0);
        world.model.get_mut(DB).unwrap().insert(key.to_vec(), value);
    }
    engine.land(0).unwrap();
    engine.go_straight(false);
    assert_eq!(world.stored_with(tag::ELEMENT), 3);
    world.note();
    world.verify();
    world.audit();
}

/// By its times the sweep finds it, and these come with a flush.
#[test]
fn a_hash_whose_fields_have_times_does_not_go_straight() {
    const AT_MS: u64 = 5_000_000;
    let world = world(Fsync::No);
    let (ns, engine) = (world.ns(DB), world.engine().clone());
    engine.go_straight(true);
    let times = FieldTimes { persist: 0, lower: AT_MS, upper: AT_MS, indexed: AT_MS };
    for (extra, stays) in [(Extra::None, false), (times.extra(), true)] {
        let put = engine.transact(&[0], 1, |txn| {
            let mut build = Build::new(txn, ns, &[b'h', u8::from(stays)])?;
            build.put(&field(0), b"value")?;
            Ok(build.finish(txn, Shape { extra, ..Shape::new(Kind::Hash, 1) })?.is_some())
        });
        assert_eq!(put, Ok(stays));
    }
    engine.land(0).unwrap();
    engine.go_straight(false);
}

/// Else each look at one of its ranks would read all of it.
#[test]
fn what_is_imported_has_its_counted_index_if_it_is_big() {
    let world = world(Fsync::No);
    let (ns, engine) = (world.ns(DB), world.engine());
    engine.go_straight(true);
    for kind in [Kind::Hash, Kind::Set, Kind::Zset] {
        for (count, straight) in [(rank::SMALL, true), (rank::SMALL + 1, false)] {
            let key = format!("{kind:?} {count}");
            let group = kind.counted_group().unwrap();
            let made = engine.transact(&[0], 1, |txn| {
                let mut build = Build::new(txn, ns, key.as_bytes())?;
                (0..count).try_for_each(|n| build.put(&[group.tag(), n as u8], b""))?;
                Ok(build.finish(txn, Shape::new(kind, count))?.is_none())
            });
            assert_eq!(made.unwrap(), straight, "{key}");
        }
    }
    engine.go_straight(false);
}

/// Each flush of such a key brings all of it. A length of 128 bytes and more takes one byte more.
#[test]
fn what_is_few_and_large_is_not_packed() {
    let meta = Meta::new(codec::Kind::Hash);
    let is_small = |lens: [usize; 2]| {
        let [first, second] = lens.map(|len| vec![b'x'; len]);
        packed::is_small(&meta, 2, [(&b"f"[..], &first[..]), (b"g", &second)].into_iter())
    };
    assert!(is_small([508, 508]) && is_small([0, 1015]) && is_small([1015, 0]));
    assert!(!is_small([508, 509]) && !is_small([0, 1020]) && !is_small([5000, 0]));
}

/// Nothing is allocated on the word of a record.
#[test]
fn a_size_that_damage_has_left_asks_for_no_memory() {
    let meta = Meta { version: 1, size: u64::MAX, packed: true, ..Meta::new(codec::Kind::Hash) };
    let mut elements = Vec::new();
    codec::pack::push(&field(1), b"value", &mut elements);
    assert_eq!(Body::unpacked(&meta, &elements).unwrap().overlay.len(), 1);
    assert!(Body::unpacked(&meta, &elements[..3]).is_err());
}
