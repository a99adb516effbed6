//! Opening: the libraries of functions, which are made of their codes once the log is replayed and before the first command.
//!
//! A library that cannot be loaded any more stays, without functions: to be listed, dumped, replaced or deleted.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::codec::key::{tag, tag_range};
use crate::shard::engine::{Engine, OpenError};
use crate::shard::memory::libraries::Libraries;

pub(super) fn load(engine: &Engine) -> Result<(), OpenError> {
    let Some(make) = engine.make_library.get() else { return Ok(()) };
    let mut lease = engine.lease(&engine.all_shards());
    let range = tag_range(tag::LIBRARY);
    let stored = lease[0].partition.range(&range.lower, &range.upper)?;
    let mut codes = stored
        .map(|item| item.map(|(key, code)| (key.to_vec(), code.to_vec())))
        .collect::<std::result::Result<BTreeMap<_, _>, _>>()?;
    // What the log has brought is newer.
    for (key, code) in lease[0].raw.range(range.lower..range.upper) {
        match code {
            Some(code) => codes.insert(key.clone(), code.clone()),
            None => codes.remove(key),
        };
    }
    let made: Vec<_> = codes.values().filter_map(|code| make(code).map(Arc::new)).collect();
    if made.len() < codes.len() {
        tracing::error!("a stored library of functions does not say its name, and is passed over");
    }
    let libraries = Libraries::default().with(made).map_err(|function| {
        OpenError::Record(format!("two libraries have the function {}", String::from_utf8_lossy(&function)))
    })?;
    let libraries = Arc::new(libraries);
    for core in lease.iter_mut() {
        core.libraries = libraries.clone();
    }
    Ok(())
}
