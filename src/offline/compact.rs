//! `tarn compact DIR`: rewrites every partition of a data directory that no server has open, without what is dead in it.
//!
//! One partition after the other, each in the place of its old version once it is whole and synced: an interruption leaves every
//! record where it was. The log is not looked at.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use crate::store::{Create, DataDir, Store, StoreOptions, Superblock};
use crate::util::progress::Progress;

use super::Failure;

/// Compacts and reports.
pub fn run(dir: &Path) -> ExitCode {
    match compact(dir) {
        Ok((before, after)) => {
            let _ = writeln!(std::io::stdout(), "{}: {before} bytes became {after}", dir.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Bytes of tables before and after.
fn compact(dir: &Path) -> Result<(u64, u64), Failure> {
    if Superblock::load(dir)?.is_none() {
        return Err(format!("{} holds no data of tarn", dir.display()).into());
    }
    let options = StoreOptions { nice: None, ..StoreOptions::default() };
    let store = Store::open_in(DataDir::open(dir, None)?, options, Create::Nothing)?;
    let bytes = || store.partitions().iter().map(|partition| partition.disk_bytes()).sum::<u64>();
    let before = bytes();
    let mut progress = Progress::new("compact", before);
    for partition in store.partitions() {
        let size_bytes = partition.disk_bytes();
        partition.major_compact()?;
        progress.add(size_bytes);
    }
    Ok((before, bytes()))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::util::scratch::tempdir;

    fn open(dir: &Path, create: Create) -> Store {
        Store::open_in(DataDir::open(dir, None).unwrap(), StoreOptions::default(), create).unwrap()
    }

    #[test]
    fn every_partition_is_rewritten() {
        let dir = tempdir().unwrap();
        Superblock::create(dir.path(), 3).unwrap();
        let store = open(dir.path(), Create::Store);
        for partition in store.partitions() {
            for value in [&b"old"[..], b"new"] {
                partition.ingest([(&b"key"[..], Some(value))]).unwrap();
            }
        }
        let tables = |store: &Store| -> Vec<u64> {
            store
                .partitions()
                .iter()
                .map(|partition| partition.levels().iter().map(|[_, tables, _]| tables).sum())
                .collect()
        };
        assert_eq!(tables(&store), [2, 2, 2]);
        drop(store);
        compact(dir.path()).unwrap();
        let store = open(dir.path(), Create::Nothing);
        assert_eq!(tables(&store), [1, 1, 1]);
        for partition in store.partitions() {
            assert_eq!(&*partition.get(b"key").unwrap().unwrap(), b"new");
        }
    }
}
