//! A data directory as the next start would make it, beside the directory itself, which stays as it is.
//!
//! | of the directory | in the shadow |
//! |---|---|
//! | superblock, checkpoint, small files of the store | copies |
//! | tables | hard links, or copies where the file system has none: they are never changed |
//! | log | a symbolic link: it is read, and not started |
//!
//! What the log holds is brought to the shadow's store, as a replay that flushes would; no more is written than that. A shadow that
//! an interruption leaves is removed by the next one, and by the next start of a server.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::log::{Io, Lsn, RealIo};
use crate::shard::Engine;
use crate::shard::engine::{EngineOptions, OpenError};
use crate::store::{self, LEAST_TABLE_FILES, Store, files};

/// Memory for the objects that the log changes; what is beyond goes to the store in between.
const TABLES: usize = 128 << 20;
/// Memory for blocks of the store.
const BLOCKS: usize = 64 << 20;

/// Removes itself.
pub(super) struct Shadow {
    engine: Option<Arc<Engine>>,
    dir: PathBuf,
    last: Lsn,
}

impl Shadow {
    /// Of a directory that this process has locked, and that has all its parts.
    pub(super) fn of(dir: &Path) -> Result<Shadow, OpenError> {
        let to = dir.join(store::SHADOW_FOLDER);
        let mut shadow = Shadow { engine: None, dir: to, last: 0 };
        shadow.make(dir).map_err(|source| OpenError::Record(format!("{}: {source}", shadow.dir.display())))?;
        let io: Arc<dyn Io> = Arc::new(RealIo);
        let engine = Engine::open(io, options(&shadow.dir))?;
        shadow.last = engine.settle_log()?;
        shadow.engine = Some(engine);
        Ok(shadow)
    }

    fn make(&self, from: &Path) -> io::Result<()> {
        remove(&self.dir)?;
        fs::create_dir_all(&self.dir)?;
        for name in [store::superblock::FILE_NAME, store::CHECKPOINT_FILE] {
            fs::copy(from.join(name), self.dir.join(name))?;
        }
        std::os::unix::fs::symlink(Path::new("..").join(store::LOG_FOLDER), self.dir.join(store::LOG_FOLDER))?;
        link_store(&from.join(store::STORE_FOLDER), &self.dir.join(store::STORE_FOLDER))
    }

    /// The store, with all that the log holds; `None` if that could not be brought to it.
    pub(super) fn store(&self) -> Option<&Store> {
        self.engine.as_ref().map(|engine| &*engine.store)
    }

    /// The last LSN of the log.
    pub(super) const fn last(&self) -> Lsn {
        self.last
    }
}

impl Drop for Shadow {
    fn drop(&mut self) {
        self.engine = None;
        // The next one removes what this one cannot.
        let _ = remove(&self.dir);
    }
}

/// Options of an engine that serves nobody.
pub(super) fn options(dir: &Path) -> EngineOptions {
    EngineOptions {
        dir: dir.to_owned(),
        shards: None,
        databases: 0,
        fsync: crate::log::Fsync::No,
        table_budget: TABLES,
        dirty_budget: TABLES / 2,
        cold_budget: 1 << 20,
        block_cache: BLOCKS,
        table_files: LEAST_TABLE_FILES,
        log_limit: u64::MAX,
        flush_threads: 1,
        nice: 0,
        background: false,
    }
}

fn remove(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Links the tables of a store, and copies the rest.
fn link_store(from: &Path, to: &Path) -> io::Result<()> {
    let mut folders = vec![(from.to_owned(), to.to_owned())];
    while let Some((from, to)) = folders.pop() {
        fs::create_dir_all(&to)?;
        for entry in fs::read_dir(&from)? {
            let entry = entry?;
            let (path, copy) = (entry.path(), to.join(entry.file_name()));
            if entry.file_type()?.is_dir() {
                folders.push((path, copy));
            } else if files::is_table(&path) {
                fs::hard_link(&path, &copy).or_else(|_| fs::copy(&path, &copy).map(drop))?;
            } else {
                fs::copy(&path, &copy)?;
            }
        }
    }
    Ok(())
}
