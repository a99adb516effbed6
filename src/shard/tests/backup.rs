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
