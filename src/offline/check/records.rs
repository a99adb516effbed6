//! All records of a store, as the next start will find them.

use std::path::Path;

use crate::codec::{NamespaceMap, key};
use crate::log::{self, Lsn};
use crate::offline::shadow::Shadow;
use crate::shard::router::Router;
use crate::store::{DataDir, Store};

use super::partition::{Fault, Known, walk};
use super::{Failure, Say};

/// Looks through the records of a directory that has all its parts; whether nothing is wrong. Closes the store.
pub(super) fn check(
    dir: &Path,
    store: Store,
    report: &log::Report,
    is_uncounted: bool,
    say: Say<'_>,
) -> Result<bool, Failure> {
    let found = |fault: &Fault, names: &NamespaceMap, say: Say<'_>| say(format_args!("{}", fault.tell(names)));
    if report.segments.iter().all(|segment| segment.records == 0) {
        return look_through(&store, report.last, is_uncounted, &mut |fault, names| found(fault, names, say));
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
    look_through(store, shadow.last(), is_uncounted, &mut |fault, names| found(fault, names, say))
}

/// Looks through all partitions, with nothing left in the log. Each fault comes with the names of the databases.
pub(super) fn look_through(
    store: &Store,
    last: Lsn,
    is_uncounted: bool,
    found: &mut dyn FnMut(&Fault, &NamespaceMap),
) -> Result<bool, Failure> {
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
    let known = Known { router: &router, names: &names, highest, is_uncounted };
    let mut whole = true;
    for (shard, partition) in (0..).zip(store.partitions()) {
        let mut found = |fault: Fault| {
            whole = false;
            found(&fault, &names);
        };
        walk(shard, partition, &known, &mut found)?;
    }
    Ok(whole)
}
