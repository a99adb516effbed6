//! A backup is of one moment, whatever becomes of the store until all of it is copied.

use std::path::Path;
use std::sync::Arc;

use super::world::{DB, World, big, read, wait_for, world};
use crate::log::sim::Moment;
use crate::log::{Fsync, RealIo};
use crate::shard::Engine;
use crate::shard::engine::EngineOptions;

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

/// What a backup holds is what the model does.
fn verify(world: &World, backup: &Path) {
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
