//! All records of a store, as the next start will find them.

use std::path::Path;
use std::sync::Arc;

use crate::codec::{NamespaceMap, key};
use crate::log::{self, Lsn, RealIo};
use crate::offline::shadow::{self, Shadow};
use crate::shard::Engine;
use crate::shard::engine::EngineOptions;
use crate::shard::router::Router;
use crate::store::{Create, DataDir, Store};

use super::mend;
use super::partition::{self, Fault, Known, walk};
use super::{Failure, Say};

/// Faults that are mended at once; the next round finds the others.
const AT_ONCE: usize = 4096;

/// Numbered databases of a directory that has lost their names.
const DATABASES: u32 = 16;

/// Looks through the records of a directory that has all its parts; whether nothing is wrong. Closes the store.
pub(super) fn check(
    dir: &Path,
    store: Store,
    report: &log::Report,
    is_uncounted: bool,
    say: Say<'_>,
) -> Result<bool, Failure> {
    let mut tell = |fault: Fault, known: &Known<'_>| say(format_args!("{}", fault.tell(known.names)));
    if report.segments.iter().all(|segment| segment.records == 0) {
        return look_through(&store, report.last, is_uncounted, &mut tell);
    }
    drop(store);
    let _lock = DataDir::open(dir, None)?;
    let shadow = match Shadow::of(dir) {
        Ok(shadow) => shadow,
        Err(error) => {
            say(format_args!("log: its records cannot be brought to the store: {error}"));
            return Ok(false);
        }
    };
    let Some(store) = shadow.store() else { return Ok(false) };
    look_through(store, shadow.last(), is_uncounted, &mut tell)
}

/// Brings all of the log to the store, as a start does, and mends the records there until nothing is wrong any more; whether that
/// was reached.
pub(super) fn repair(dir: &Path, say: Say<'_>) -> Result<bool, Failure> {
    let store = Store::open_in(DataDir::open(dir, None)?, super::store_options(), Create::Partitions)?;
    for partition in store.partitions() {
        let unreadable = partition::unreadable(partition)?;
        for record in &unreadable {
            say(format_args!("mended: record {}: it cannot be read", record.escape_ascii()));
        }
        partition.ingest(unreadable.into_iter().map(|record| (record, None::<Vec<u8>>)))?;
    }
    drop(store);
    // Where the store is lost, so are the names: those of a directory of which no database was ever emptied.
    let options = EngineOptions { databases: DATABASES, ..shadow::options(dir) };
    let engine = Engine::open(Arc::new(RealIo), options)?;
    engine.replay()?;
    engine.close(true)?;
    let last = engine.log.last();
    drop(engine);
    let store = Store::open_in(DataDir::open(dir, None)?, super::store_options(), Create::Nothing)?;
    let mut before = Vec::new();
    loop {
        let mut faults = Vec::new();
        let mut tell = |fault: Fault, known: &Known<'_>| {
            if faults.len() < AT_ONCE {
                say(format_args!("mended: {}", fault.tell(known.names)));
                faults.push(fault);
            }
        };
        if look_through(&store, last, false, &mut tell)? {
            say(format_args!("store: whole"));
            return Ok(true);
        }
        if faults == before {
            say(format_args!("store: this cannot be mended"));
            return Ok(false);
        }
        with_known(&store, last, false, |known| mend::mend(&store, &faults, known))??;
        before = faults;
    }
}

/// Looks through all partitions, with nothing left in the log; whether nothing is wrong.
fn look_through(
    store: &Store,
    last: Lsn,
    is_uncounted: bool,
    found: &mut dyn FnMut(Fault, &Known<'_>),
) -> Result<bool, Failure> {
    with_known(store, last, is_uncounted, |known| {
        let mut whole = true;
        for (shard, partition) in (0..).zip(store.partitions()) {
            let mut found = |fault: Fault| {
                whole = false;
                found(fault, known);
            };
            walk(shard, partition, known, &mut found)?;
        }
        Ok(whole)
    })?
}

/// Does something with what is known of the whole store.
fn with_known<R>(
    store: &Store,
    last: Lsn,
    is_uncounted: bool,
    run: impl FnOnce(&Known<'_>) -> R,
) -> Result<R, Failure> {
    let (mut record, mut highest) = (Vec::new(), last);
    key::flushed_key(&mut record);
    for partition in store.partitions() {
        if let Some(value) = partition.get(&record)? {
            highest = highest.max(key::decode_flushed(&value)?.0);
        }
    }
    record.clear();
    key::names_key(&mut record);
    let names = match store.partition(0).get(&record)? {
        Some(value) => NamespaceMap::decode(&value).map_err(|error| format!("the names of the databases: {error}"))?,
        None => NamespaceMap::default(),
    };
    let superblock = store.superblock();
    let router = Router::new(superblock.hash_key, superblock.shards);
    Ok(run(&Known { router: &router, names: &names, highest, is_uncounted }))
}
