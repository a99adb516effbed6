//! A backup is of one moment, whatever becomes of the store until all of it is copied; and so is what is read for long.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::world::{DB, Value, World, big, read, wait_for, world};
use crate::backup::{MANIFEST_FILE, Manifest};
use crate::codec::{self, Meta, redo};
use crate::log::sim::{Moment, Op};
use crate::log::{Fsync, RealIo};
use crate::shard::engine::EngineOptions;
use crate::shard::{Engine, Txn};

const KEYS: u8 = 20;

/// How far a backup has come when the store becomes another one.
const STEPS: [&str; 4] = ["backup.small", "backup.staged", "backup.linked", "backup.logged"];

/// Every key gets another value, and every table another one in its place.
fn replace_all(engine: &Engine) {
    let ns = engine.shards.at(0).core().names.id(DB).unwrap();
    let put = |n| engine.transact(&[0], 0, |txn| txn.put_string(ns, &[n], &big(n + 100), 0));
    (0..KEYS).for_each(|n| _ = put(n).unwrap());
    engine.flush().unwrap();
    engine.store.partition(0).major_compact().unwrap();
}

/// All files below a folder, as they stand in a manifest.
fn files(folder: &Path, within: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder.join(within)).unwrap().map(|entry| entry.unwrap());
    let below = |entry: fs::DirEntry| {
        let path = within.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => files(folder, &path),
            false => BTreeSet::from([path.to_str().unwrap().to_owned()]),
        }
    };
    entries.flat_map(below).collect()
}

/// What a backup holds is what the model does, and all of it stands in its manifest: what does not would not be missed.
fn verify(world: &World, backup: &Path) {
    let mut held = files(backup, Path::new(""));
    assert!(held.remove(MANIFEST_FILE));
    let manifest = Manifest::load(backup).unwrap();
    assert_eq!(manifest.files.into_iter().map(|file| file.path).collect::<BTreeSet<_>>(), held);
    let options = EngineOptions { dir: backup.to_owned(), ..world.options.clone() };
    let engine = Engine::open(Arc::new(RealIo), options).unwrap();
    engine.replay().unwrap();
    let ns = engine.shards.at(0).core().names.id(DB).unwrap();
    for (key, value) in &world.model[DB] {
        let found = engine.transact(&[0], world.now_ms, |txn| read(txn, ns, key)).unwrap();
        assert!(found.as_ref() == Some(value), "{key:?}");
    }
    engine.close(false).unwrap();
}

#[test]
fn what_is_replaced_after_its_moment_is_in_a_backup() {
    for (step, beside) in STEPS.into_iter().flat_map(|step| [(step, true), (step, false)]) {
        let mut world = world(Fsync::Always);
        (0..KEYS).for_each(|n| world.put(DB, &[n], &big(n), 0));
        world.flush();
        world.put(DB, b"late", b"in the log alone", 0);
        // In memory, where the system has that, and mostly on a disk: there it cannot be linked.
        let parent = world.options.dir.parent().unwrap();
        let folder = if beside { tempfile::tempdir_in(parent) } else { tempfile::tempdir() }.unwrap();
        let engine = world.engine().clone();
        let tables = || engine.store.pin().unwrap().into_iter().flat_map(|pin| pin.tables.clone());
        let before: Vec<_> = tables().map(|table| table.path).collect();
        let other = engine.clone();
        world.sim.at(Moment::Step(step), move || replace_all(&other));
        engine.create_backup(folder.path(), "one").unwrap();
        wait_for(&|| engine.backups.running().is_none());
        let last = engine.backups.last().unwrap();
        assert_eq!(last.failure, None, "{step}");
        assert!(tables().all(|table| !before.contains(&table.path)), "{step}: all tables were replaced");
        engine.store.partition(0).follow();
        assert!(before.iter().all(|path| !path.exists()), "{step}: a backup that has ended keeps no table");
        verify(&world, &folder.path().join("one"));
    }
}

/// What the store has lost is not taken along as if it were whole.
#[test]
fn a_table_whose_bytes_have_changed_makes_a_backup_fail() {
    let mut world = world(Fsync::Always);
    (0..KEYS).for_each(|n| world.put(DB, &[n], &big(n), 0));
    world.flush();
    let (engine, folder) = (world.engine().clone(), tempfile::tempdir().unwrap());
    let table = engine.store.pin().unwrap()[0].tables[0].path.clone();
    let mut bytes = std::fs::read(&table).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&table, bytes).unwrap();
    engine.create_backup(folder.path(), "one").unwrap();
    wait_for(&|| engine.backups.running().is_none());
    let failure = engine.backups.last().unwrap().failure.unwrap();
    assert!(failure.contains("checksum is wrong"), "{failure}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// A part of the log that cannot be read is not left out.
#[test]
fn a_log_that_cannot_be_read_makes_a_backup_fail() {
    let mut world = world(Fsync::Always);
    world.put(DB, b"a", b"1", 0);
    let (engine, folder, sim) = (world.engine().clone(), tempfile::tempdir().unwrap(), world.sim.clone());
    world.sim.at(Moment::Step("backup.linked"), move || sim.fail(Op::Read, 0, u64::MAX, libc::EIO));
    engine.create_backup(folder.path(), "one").unwrap();
    wait_for(&|| engine.backups.running().is_none());
    assert!(engine.backups.last().unwrap().failure.is_some());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    world.sim.heal();
    engine.create_backup(folder.path(), "one").unwrap();
    wait_for(&|| engine.backups.running().is_none());
    drop(engine);
    verify(&world, &folder.path().join("one"));
}

/// One at a time, each under a name of its own; between its checkpoint and the log's end no flush removes a segment.
#[test]
fn a_backup_is_made_beside_no_other_and_no_flush() {
    let mut world = world(Fsync::No);
    world.put(DB, b"a", b"1", 0);
    let (engine, folder, ns) = (world.engine().clone(), tempfile::tempdir().unwrap(), world.ns(DB));
    let (sender, seen) = crossbeam_channel::unbounded();
    let (other, sim, locked) = (engine.clone(), world.sim.clone(), sender.clone());
    world.sim.at(Moment::Step("backup.flushed"), move || {
        // So that there is something to be written at its moment.
        other.log.append(|_, out| redo::encode_count(0, ns, 1, out));
        let is_locked = move || other.flush_lock.is_locked();
        sim.at(Moment::Before(Op::Write), move || locked.send(is_locked().to_string()).unwrap());
    });
    let (other, path) = (engine.clone(), folder.path().to_owned());
    world.sim.at(Moment::Step("backup.small"), move || {
        sender.send(other.create_backup(&path, "two").unwrap_err().to_string()).unwrap();
        sender.send(other.backups.running().unwrap().name).unwrap();
    });
    engine.create_backup(folder.path(), "one").unwrap();
    wait_for(&|| engine.backups.running().is_none());
    let seen: Vec<String> = seen.iter().collect();
    assert!(seen[0] == "true" && seen[1].contains("backup one is being made") && seen[2] == "one", "{seen:?}");
    assert!(engine.create_backup(folder.path(), "one").is_err(), "there is one of that name");
    engine.create_backup(folder.path(), "two").unwrap();
    wait_for(&|| engine.backups.running().is_none());
    let last = engine.backups.last().unwrap();
    assert_eq!((&*last.name, last.failure), ("two", None));
}

/// The log is looked at last: what comes to a partition behind that, no record of the log leads to.
#[test]
fn a_backup_has_nothing_that_came_to_the_store_after_its_log() {
    let mut world = world(Fsync::No);
    world.put(DB, b"a", b"1", 0);
    let (engine, folder, ns) = (world.engine().clone(), tempfile::tempdir().unwrap(), world.ns(DB));
    let mut late = Vec::new();
    codec::key::element_key(ns, b"late", 1 << 32, b"\x01element", &mut late);
    let (other, sim, record) = (engine.clone(), world.sim.clone(), late.clone());
    world.sim.at(Moment::Step("backup.flushed"), move || {
        // So that there is something to be written at its moment.
        other.log.append(|_, out| redo::encode_count(0, ns, 1, out));
        let ingest = move || _ = other.store.partition(0).ingest([(record, Some(Vec::new()))]).unwrap();
        sim.at(Moment::Before(Op::Write), ingest);
    });
    engine.create_backup(folder.path(), "one").unwrap();
    wait_for(&|| engine.backups.running().is_none());
    assert_eq!(engine.backups.last().unwrap().failure, None);
    assert!(engine.store.partition(0).get(&late).unwrap().is_some());
    let options = EngineOptions { dir: folder.path().join("one"), ..world.options.clone() };
    let backup = Engine::open(Arc::new(RealIo), options).unwrap();
    assert!(backup.store.partition(0).get(&late).unwrap().is_none());
}

/// How far it has come is told of the one that is being made.
#[test]
fn the_progress_of_a_backup_begins_anew() {
    let mut world = world(Fsync::No);
    world.put(DB, b"a", b"1", 0);
    let (engine, folder) = (world.engine().clone(), tempfile::tempdir().unwrap());
    let (sender, seen) = crossbeam_channel::unbounded();
    for name in ["one", "two"] {
        let (other, sender) = (engine.clone(), sender.clone());
        world.sim.at(Moment::Step("backup.small"), move || {
            sender.send(other.backups.done_bytes.load(Ordering::Relaxed)).unwrap();
        });
        engine.create_backup(folder.path(), name).unwrap();
        wait_for(&|| engine.backups.running().is_none());
        assert!(engine.backups.done_bytes.load(Ordering::Relaxed) > 0, "{name}");
    }
    assert_eq!(seen.try_iter().collect::<Vec<_>>(), [0, 0]);
}

/// Everything clean leaves memory.
fn forget(engine: &Engine) {
    for shard in engine.shards.iter() {
        let mut core = shard.core();
        let limit = std::mem::replace(&mut core.table_limit, 0);
        (0..300).for_each(|_| core.make_room());
        core.table_limit = limit;
        core.cold.clear();
    }
}

/// What is overwritten without a look goes with no flight. From the look at what has been so to the moment, nothing is.
#[test]
fn what_is_overwritten_as_a_moment_comes_is_in_it() {
    let mut world = world(Fsync::No);
    let keys = [&b"a"[..], b"b"];
    keys.iter().for_each(|key| world.put(DB, key, b"1", 0));
    let (engine, sim, ns) = (world.engine().clone(), world.sim.clone(), world.ns(DB));
    let put = move |engine: &Engine, key: &[u8]| {
        _ = engine.transact(&[0], 1, |txn| txn.put_string(ns, key, b"2", 0)).unwrap()
    };
    let other = engine.clone();
    world.sim.at(Moment::Step("flush.deleted"), move || {
        forget(&other);
        put(&other, keys[0]);
        assert_eq!(other.shards.at(0).core().blind.len(), 1);
        // Word of it that it was looked at.
        sim.at(Moment::After(Op::Write), move || put(&other, keys[1]));
    });
    let moment = engine.moment().unwrap();
    for key in keys {
        let mut record = Vec::new();
        codec::key::meta_key(ns, key, &mut record);
        let value = moment.partitions[0].get(&record).unwrap().unwrap();
        assert_eq!(Meta::decode(&value).unwrap().2, b"2");
    }
}

/// Behind a shard whose ingestion has failed none is tried: what they were to bring is as dirty as before.
#[test]
fn a_moment_that_fails_loses_nothing() {
    let mut world = World::new(3, Fsync::No);
    let (engine, sim, ns) = (world.engine().clone(), world.sim.clone(), world.ns(DB));
    let keys: Vec<Vec<u8>> = (0..30).map(|n| format!("k{n}").into_bytes()).collect();
    let (other, late) = (engine.clone(), keys.clone());
    world.sim.at(Moment::Step("flush.deleted"), move || {
        let put = |txn: &mut Txn<'_, '_>| late.iter().try_for_each(|key| txn.put_string(ns, key, b"v", 0).map(drop));
        other.transact(&other.all_shards(), 1, put).unwrap();
        sim.fail_step(Some(("flush.synced", libc::EIO)));
    });
    assert!(engine.moment().is_err());
    world.sim.fail_step(None);
    assert!(engine.store.health().is_ok());
    for key in keys {
        world.model.get_mut(DB).unwrap().insert(key, Value::string(b"v".to_vec(), 0));
    }
    world.note();
    drop(engine);
    world.flush();
    world.crash(None);
    world.verify();
    world.audit();
}
