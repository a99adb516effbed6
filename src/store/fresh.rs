//! A database that is not there yet: made in memory, then brought to disk at once.
//!
//! fjall syncs about twenty times for each partition that it makes, one after the other: with sixteen of them, half a second or
//! more of nothing but waiting. Where there is a file system in memory they are made there, at no such cost; what has come of it,
//! some sixty small files and folders, is copied and synced side by side, so that a disk does many of these at a time. A process that is
//! killed meanwhile leaves its folder there, some ten KB.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use fjall::Database;

use super::files::{CURRENT_FILE, MARKER_FILE, PARTITIONS_FOLDER};
use super::{NEW_STORE_FOLDER, Result, STORE_FOLDER, StoreError, StoreOptions, options, superblock};

/// Linux's file system in memory, which containers have as well.
const MEMORY: &str = "/dev/shm";
/// Threads that sync.
const SYNCING: usize = 16;
/// Bytes of a file from which on it is room if nothing is allocated.
const ROOM: u64 = 1 << 20;

/// Makes the database with all its partitions, aside, and moves it into place: a crash while fjall makes one can leave
/// what it refuses to open.
pub(super) fn create(dir: &Path, shards: u16, options: &StoreOptions) -> Result {
    create_by(Path::new(MEMORY), dir, shards, options)
}

fn create_by(memory: &Path, dir: &Path, shards: u16, options: &StoreOptions) -> Result {
    let aside = dir.join(NEW_STORE_FOLDER);
    remove(&aside)?;
    let place = tempfile::Builder::new().prefix("tarn-").tempdir_in(memory).ok();
    let is_brought = place.is_some_and(|made| {
        let made_there = make(made.path(), shards, options).is_ok();
        made_there && bring(made.path(), &aside).is_ok() && has_marks(&aside, shards)
    });
    if !is_brought {
        // There is no such place, or no room in it, or somebody has cleaned up there.
        remove(&aside)?;
        make(&aside, shards, options)?;
    }
    superblock::sync_dir(&aside)?;
    fs::rename(&aside, dir.join(STORE_FOLDER)).map_err(StoreError::io("rename", &aside))?;
    superblock::sync_dir(dir)
}

fn remove(folder: &Path) -> Result {
    if folder.exists() { fs::remove_dir_all(folder).map_err(StoreError::io("remove", folder)) } else { Ok(()) }
}

fn make(folder: &Path, shards: u16, options: &StoreOptions) -> Result {
    let db = Database::builder(folder).worker_threads(1).open().map_err(StoreError::fjall("create the database"))?;
    for shard in 0..shards {
        db.keyspace(&shard.to_string(), || options::partition_options(options))
            .map_err(StoreError::fjall("create a partition"))?;
    }
    Ok(())
}

/// Whether the files are there without which fjall knows neither a database nor its partitions.
fn has_marks(folder: &Path, shards: u16) -> bool {
    let partitions = folder.join(PARTITIONS_FOLDER);
    let of_each = (0..=shards).map(|id| partitions.join(id.to_string()).join(CURRENT_FILE));
    of_each.chain([folder.join(MARKER_FILE)]).all(|mark| mark.is_file())
}

/// Copies a folder; all of it is on disk then.
fn bring(from: &Path, to: &Path) -> io::Result<()> {
    let mut copies = Vec::new();
    copy(from, to, &mut copies)?;
    let next = AtomicUsize::new(0);
    let sync_some = || -> io::Result<()> {
        while let Some(path) = copies.get(next.fetch_add(1, Ordering::Relaxed)) {
            File::open(path)?.sync_all()?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        // If there are none to be had, this one does it alone.
        let spawn = |_| std::thread::Builder::new().name("sync".to_owned()).spawn_scoped(scope, sync_some).ok();
        let others: Vec<_> = (1..SYNCING).map_while(spawn).collect();
        let died = || io::Error::other("a thread has died");
        let synced = others.into_iter().map(|other| other.join().map_err(|_| died()).flatten());
        synced.fold(sync_some(), io::Result::and)
    })
}

fn copy(from: &Path, to: &Path, copies: &mut Vec<PathBuf>) -> io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &to, copies)?;
        } else {
            copy_file(&entry, &to)?;
            copies.push(to);
        }
    }
    copies.push(to.to_owned());
    Ok(())
}

/// fjall's journal is room for what comes: not a byte of its 64 MB has been written.
fn copy_file(entry: &fs::DirEntry, to: &Path) -> io::Result<()> {
    let metadata = entry.metadata()?;
    // Small files may have no blocks: some file systems keep elsewhere what they hold.
    let is_room = metadata.len() >= ROOM && metadata.blocks() == 0;
    if is_room { File::create_new(to)?.set_len(metadata.len()) } else { fs::copy(entry.path(), to).map(drop) }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// Names, lengths and modes of all files.
    fn files(folder: &Path, found: &mut Vec<(PathBuf, u64, u32)>, base: &Path) {
        for entry in fs::read_dir(folder).unwrap().map(std::result::Result::unwrap) {
            if entry.path().is_dir() {
                files(&entry.path(), found, base);
            } else {
                let (name, metadata) = (entry.path().strip_prefix(base).unwrap().to_owned(), entry.metadata().unwrap());
                found.push((name, metadata.len(), metadata.mode()));
            }
        }
        found.sort();
    }

    #[test]
    fn it_is_the_same_with_and_without_a_place_in_memory_and_leaves_nothing_there() {
        let options = StoreOptions::default();
        let made = |memory: &Path| {
            let dir = tempfile::tempdir().unwrap();
            // What a crash has left.
            fs::create_dir_all(dir.path().join(NEW_STORE_FOLDER).join("keyspaces/77")).unwrap();
            create_by(memory, dir.path(), 2, &options).unwrap();
            let (mut found, store) = (Vec::new(), dir.path().join(STORE_FOLDER));
            files(&store, &mut found, &store);
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing beside it");
            let journal = found.iter().find(|(_, len, _)| *len >= ROOM).map(|(name, ..)| store.join(name));
            assert_eq!(journal.unwrap().metadata().unwrap().blocks(), 0, "room is not written");
            let db = Database::builder(&store).worker_threads(1).open().unwrap();
            assert!(db.keyspace_exists("0") && db.keyspace_exists("1") && !db.keyspace_exists("2"));
            found
        };
        let memory = crate::util::scratch::tempdir().unwrap();
        assert_eq!(made(memory.path()), made(Path::new("/nonexistent")));
        assert_eq!(fs::read_dir(memory.path()).unwrap().count(), 0);
    }

    /// What is cleaned up while it is copied is missed.
    #[test]
    fn a_copy_that_lacks_something_is_not_taken() {
        let made = crate::util::scratch::tempdir().unwrap();
        make(made.path(), 2, &StoreOptions::default()).unwrap();
        let whole = made.path().join("whole");
        fs::create_dir(&whole).unwrap();
        for name in ["keyspaces", "version"] {
            fs::rename(made.path().join(name), whole.join(name)).unwrap();
        }
        let copy_without = |lacks: &str| {
            let to = crate::util::scratch::tempdir().unwrap();
            bring(&whole, &to.path().join("copy")).unwrap();
            if !lacks.is_empty() {
                let lacks = to.path().join("copy").join(lacks);
                if lacks.is_dir() { fs::remove_dir_all(lacks) } else { fs::remove_file(lacks) }.unwrap();
            }
            has_marks(&to.path().join("copy"), 2)
        };
        assert!(copy_without(""));
        for lacks in ["version", "keyspaces", "keyspaces/0", "keyspaces/2", "keyspaces/1/current"] {
            assert!(!copy_without(lacks), "{lacks}");
        }
    }
}
