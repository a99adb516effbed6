//! The file `FILTERS`: the shards' [filters of keys](crate::shard::memory::membership), from a clean end to the next start, which
//! would have to read all records to fill them again.
//!
//! | bytes | part |
//! |---|---|
//! | 8 | `TARNFLT1` |
//! | 8 | id of the data directory, from its superblock |
//! | | then each shard that has one: |
//! | 8 | its number |
//! | 8 | [stamp](crate::store::Partition::stamp) of its partition's tables |
//! | 8 | bytes of the filter |
//! | | the filter (`shard/memory/membership/saved.rs`) |
//!
//! Integers are little-endian.
//!
//! # Why this is sound
//! A filter that lacks a key hides it. One is used only if the partition has exactly the tables, by the sums that fjall keeps of
//! them, that it had when the filter was saved, whose keys it has; and if no key was added between the opening and its coming to
//! memory, as a flush adds each before fjall gets it. So whatever lies there, an old file, or one beside the store of another time,
//! does no harm. Its own sums tell whether it is whole: it need not be synced.
//!
//! Where a compaction has changed a partition's tables since, or a flush came first, its filter is filled as after a crash.

use std::fs::{self, File};
use std::io::{self, BufWriter, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;

use crate::shard::engine::Engine;
use crate::shard::memory::membership::Saved;
use crate::shard::router::ShardId;
use crate::store::{FILTERS_FILE, Store};

const MAGIC: [u8; 8] = *b"TARNFLT1";

/// Takes the file away; where the shards' filters are.
pub(super) fn find(dir: &Path, store: &Store) -> Vec<Option<Saved>> {
    let mut found: Vec<_> = (0..store.superblock().shards).map(|_| None).collect();
    match take_away(&dir.join(FILTERS_FILE)).and_then(|file| look_through(file, store, &mut found)) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            tracing::warn!(%error, "filters of keys are filled anew");
        }
        _ => {}
    }
    found
}

fn take_away(path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    fs::remove_file(path)?;
    Ok(file)
}

fn look_through(file: File, store: &Store, found: &mut [Option<Saved>]) -> io::Result<()> {
    let file = Arc::new(file);
    let (mut head, mut input) = ([0; 16], &*file);
    input.read_exact(&mut head)?;
    if head != start(store.superblock().id()) {
        return Ok(());
    }
    let end = file.metadata()?.len();
    let mut at = head.len() as u64;
    for _ in 0..found.len() {
        if at >= end {
            break;
        }
        let mut numbers = [[0; 8]; 3];
        input.read_exact(numbers.as_flattened_mut())?;
        let [shard, stamp, bytes] = numbers.map(u64::from_le_bytes);
        at += size_of_val(&numbers) as u64;
        if let Ok(shard) = ShardId::try_from(shard)
            && let Some(found) = found.get_mut(usize::from(shard))
            && store.partition(shard).stamp() == Some(stamp)
        {
            *found = Some(Saved { file: file.clone(), at });
        }
        at = at.checked_add(bytes).ok_or(ErrorKind::InvalidData)?;
        input.seek(SeekFrom::Start(at))?;
    }
    Ok(())
}

fn start(owner: u64) -> [u8; 16] {
    let mut start = [0; 16];
    start[..8].copy_from_slice(&MAGIC);
    start[8..].copy_from_slice(&owner.to_le_bytes());
    start
}

impl Engine {
    /// Leaves the filters to the next start. Nothing comes to the store any more.
    pub(super) fn save_filters(&self) {
        let path = self.options.dir.join(FILTERS_FILE);
        if let Err(error) = self.write_filters(&path) {
            tracing::warn!(%error, "filters of keys are filled anew at the next start");
            _ = fs::remove_file(&path);
        }
    }

    fn write_filters(&self, path: &Path) -> io::Result<()> {
        let mut out: Option<BufWriter<File>> = None;
        for shard in 0..self.store.superblock().shards {
            // One that nobody has needed since the start.
            self.restore_filter(shard);
            let core = self.shards.at(shard).core();
            let (Some(bytes), Some(stamp)) = (core.membership.saved_bytes(), core.partition.stamp()) else { continue };
            let out = match &mut out {
                Some(out) => out,
                none => {
                    let out = none.insert(BufWriter::new(File::create(path)?));
                    out.write_all(&start(self.store.superblock().id()))?;
                    out
                }
            };
            for number in [u64::from(core.shard), stamp, bytes] {
                out.write_all(&number.to_le_bytes())?;
            }
            core.membership.save(out)?;
        }
        out.map_or(Ok(()), |mut out| out.flush())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::shard::keyspace::walk::tests::engine;
    use crate::shard::memory::table::table_hash;
    use crate::util::scratch::tempdir;

    fn put(engine: &Engine, keys: &[&[u8]]) {
        let ns = engine.first_names().id(b"0").unwrap();
        for key in keys {
            let shard = engine.router.shard(engine.router.hash(key), key);
            engine.transact(&[shard], 1, |txn| txn.put_string(ns, key, b"v", 0).map(drop)).unwrap();
        }
        engine.flush().unwrap();
    }

    /// Of the keys those that may be there, by a filter that was left.
    fn passing<'k>(engine: &Engine, keys: &[&'k [u8]]) -> Option<Vec<&'k [u8]>> {
        let ns = engine.first_names().id(b"0").unwrap();
        let passes = |key: &[u8]| {
            let hash = engine.router.hash(key);
            let shard = engine.router.shard(hash, key);
            engine.restore_filter(shard);
            let core = engine.shards.at(shard).core();
            core.membership.is_complete().then(|| core.membership.may_contain(table_hash(hash, ns), ns, key))
        };
        keys.iter().try_fold(Vec::new(), |mut all, &key| {
            all.extend(passes(key)?.then_some(key));
            Some(all)
        })
    }

    const OLD: [&[u8]; 4] = [b"a", b"b", b"c", b"z"];
    const ALL: [&[u8]; 6] = [b"a", b"b", b"c", b"z", b"new", b"never"];

    #[test]
    fn filters_are_left_to_the_next_start() {
        let dir = tempdir().unwrap();
        for shards in [1, 4] {
            let dir = dir.path().join(shards.to_string());
            let first = engine(&dir, shards);
            put(&first, &OLD);
            assert!(!dir.join(FILTERS_FILE).exists());
            first.close(true).unwrap();
            drop(first);
            for _ in 0..3 {
                assert!(dir.join(FILTERS_FILE).exists());
                let next = engine(&dir, shards);
                assert!(!dir.join(FILTERS_FILE).exists(), "it is of the time in between");
                assert_eq!(passing(&next, &ALL).unwrap(), OLD);
                next.close(false).unwrap();
            }
            // Nobody has needed it meanwhile.
            engine(&dir, shards).close(false).unwrap();
            let crashed = engine(&dir, shards);
            assert_eq!(passing(&crashed, &ALL).unwrap(), OLD);
            drop(crashed);
            assert_eq!(passing(&engine(&dir, shards), &OLD), None, "nothing is left by a crash");
        }
    }

    /// An old file lies there, or one of another directory.
    #[test]
    fn a_filter_of_other_tables_is_not_used() {
        let dirs = [tempdir().unwrap(), tempdir().unwrap()];
        let files = dirs.each_ref().map(|dir| dir.path().join(FILTERS_FILE));
        let ends = |at: usize, keys: &[&[u8]]| {
            let engine = engine(dirs[at].path(), 1);
            put(&engine, keys);
            assert!(at == 1 || passing(&engine, &OLD).is_some());
            engine.close(true).unwrap();
            fs::read(&files[at]).unwrap()
        };
        let old = ends(0, &OLD);
        let other = ends(1, &OLD);
        let begins = |bytes: &[u8]| {
            fs::write(&files[0], bytes).unwrap();
            let engine = engine(dirs[0].path(), 1);
            let passing = passing(&engine, &ALL);
            engine.close(false).unwrap();
            passing
        };
        assert_eq!(begins(&old).unwrap(), OLD);
        assert_eq!(begins(&other), None);
        {
            let next = engine(dirs[0].path(), 1);
            put(&next, &[b"new"]);
            next.close(false).unwrap();
        }
        assert_eq!(begins(&old), None, "it lacks a key");
    }

    /// What a flush brings before the filter has come to memory is not in it.
    #[test]
    fn a_filter_that_comes_after_a_flush_is_not_used() {
        let dir = tempdir().unwrap();
        let first = engine(dir.path(), 1);
        put(&first, &OLD);
        first.close(true).unwrap();
        drop(first);
        let next = engine(dir.path(), 1);
        put(&next, &[b"new"]);
        assert_eq!(passing(&next, &ALL), None);
    }

    /// The heads of file and filter; what follows has its own sum.
    #[test]
    fn a_damaged_head_does_no_harm() {
        let dir = tempdir().unwrap();
        let file = dir.path().join(FILTERS_FILE);
        let first = engine(dir.path(), 1);
        put(&first, &OLD);
        first.close(true).unwrap();
        drop(first);
        let whole = fs::read(&file).unwrap();
        for at in 0..48 {
            for bytes in [{ whole[..at].to_vec() }, {
                let mut damaged = whole.clone();
                damaged[at] ^= 0x81;
                damaged
            }] {
                fs::write(&file, &bytes).unwrap();
                let engine = engine(dir.path(), 1);
                let passing = passing(&engine, &ALL);
                // How long it is says only where the next one is.
                assert!(passing.as_deref().is_none_or(|passing| passing == OLD), "byte {at}");
                assert!(passing.is_none() || (32..40).contains(&at), "byte {at}");
                engine.close(false).unwrap();
            }
        }
    }
}
