//! fjall, behind an interface that names neither files nor fjall; its byte string is exported as [`UserValue`].
//!
//! | file | owns |
//! |---|---|
//! | `pin` | a version of each partition, whose files stay |
//! | `fresh` | a database that is not there yet |
//! | [`files`] | which files there must be, and their checksums |
//! | [`superblock`] | format version, hash key, number of shards: read before anything else |
//! | [`lock`] | one server a data directory |
//! | [`options`] | what fjall is told, and why |
//! | [`still`] | all partitions at one moment, to be read for long |
//! | [`rights`] | whose a data directory is, and who may look at it |
//! | [`staged`] | a data directory that takes another one's place |
//! | [`partition`] | one shard's records: reads, ranges, ingestion |
//! | `space` | what is dead in a partition, and how its space comes back |
//! | `view` | one version of a partition, as point reads see it |
//! | `left` | those that are replaced, until their files are gone |
//! | `way` | how they get at a table's blocks |
//! | `index` | where these are |
//! | `fences` | a row of keys, to be searched quickly |
//! | `filter` | the compaction filter that reclaims dead versions and namespaces |
//!
//! A data directory:
//!
//! | name | content |
//! |---|---|
//! | `LOCK` | the lock file |
//! | `SUPERBLOCK` | see [`superblock`] |
//! | `CHECKPOINT` | what log and store must hold; nor is that this module's |
//! | `store/` | one fjall database, a partition a shard, named by its number |
//! | `log/` | the redo log, which is not this module's |
//!
//! The store holds what the log has given up. It learns of writes by ingestion alone, and fjall's own journal and
//! memtable stay empty (rule 15). A `Partition` outlives a closed store but answers [`StoreError::Closed`].

pub mod files;
pub mod lock;
pub mod options;
pub mod partition;
pub mod rights;
pub mod staged;
pub mod still;
pub mod superblock;

mod error;
mod fences;
mod filter;
mod fresh;
mod index;
mod left;
mod pin;
mod priority;
mod space;
#[cfg(test)]
mod tests;
mod view;
mod way;

pub use error::{Result, StoreError};
pub use lock::DirLock;
pub use options::{Compression, LEAST_TABLE_FILES, StoreOptions, default_shards, table_bytes};
pub use partition::{Aimed, Partition, Range, Record, Watch};
pub use pin::Pin;
pub use space::{Bulk, Tables};
pub use still::Still;
pub use superblock::Superblock;
pub use view::Odds;

/// A byte string as the store takes and gives it: cheap to clone, short ones without an allocation.
pub use fjall::{UserKey, UserValue};

use crate::util::path::folder_of;
use filter::DeadFilterFactory;
use fjall::{Database, Keyspace, PersistMode};
use left::LeftViews;
use parking_lot::RwLock;
use partition::Slot;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use way::Ways;

/// Most shards that a data directory can have.
pub const MAX_SHARDS: u16 = 1024;

/// Folder of the database in the data directory.
pub const STORE_FOLDER: &str = "store";

/// Where the database is while it is made.
const NEW_STORE_FOLDER: &str = "store.new";

/// Folder of the redo log in the data directory.
pub const LOG_FOLDER: &str = "log";

/// Folder in the data directory of who looks at it offline; a server's start removes what is left of it.
pub const SHADOW_FOLDER: &str = "check.tmp";

/// Folder in the data directory of tables on their way into a backup elsewhere; a server's start removes what is left of it.
pub const STAGE_FOLDER: &str = "backup.tmp";

/// File in the data directory that says what log and store must hold.
pub const CHECKPOINT_FILE: &str = "CHECKPOINT";

/// File in the data directory that notes how far the log has been synced.
pub const SYNCED_FILE: &str = "SYNCED";

/// File in the data directory, between a clean end and the next start, with the shards' filters of keys.
pub const FILTERS_FILE: &str = "FILTERS";

/// All names in a data directory that are Tarn's own: the data, and what is only there while something is done with it.
pub const OWN_NAMES: [&str; 12] = [
    superblock::FILE_NAME,
    CHECKPOINT_FILE,
    SYNCED_FILE,
    FILTERS_FILE,
    LOG_FOLDER,
    STORE_FOLDER,
    NEW_STORE_FOLDER,
    lock::FILE_NAME,
    SHADOW_FOLDER,
    STAGE_FOLDER,
    staged::BEING_MADE,
    staged::MADE,
];

/// How often, ten times a second, a reopening tries to get the database while ranges of it are still being read, or fjall's
/// threads have not ended.
const REOPEN_TRIES: usize = 50;

/// What may be made where it is not there. An existing directory that lacks a part has lost it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Create {
    /// Nothing.
    Nothing,
    /// The store as a whole.
    Store,
    /// Also single partitions, empty.
    Partitions,
}

/// A data directory that belongs to this process.
pub struct DataDir {
    path: PathBuf,
    superblock: Superblock,
    lock: DirLock,
}

impl DataDir {
    /// Takes the directory `path`; makes it, and its superblock, if it is not there.
    ///
    /// # Errors
    /// Refuses a directory that another server has, one of an unknown format, one with another number of shards than
    /// `shards` names, and one with data but no superblock.
    pub fn open(path: &Path, shards: Option<u16>) -> Result<DataDir> {
        make_dir(path)?;
        let lock = DirLock::acquire(path)?;
        staged::settle(path)?;
        let superblock = Superblock::open(path, shards, default_shards())?;
        // They keep tables on the disk that are replaced; what an import has left that was interrupted is as large as all of it.
        for left in [SHADOW_FOLDER, STAGE_FOLDER, staged::BEING_MADE] {
            let _ = std::fs::remove_dir_all(path.join(left));
        }
        Ok(DataDir { path: path.to_owned(), superblock, lock })
    }

    /// The same of a directory that has to be there.
    ///
    /// # Errors
    /// As of [`DataDir::open`].
    pub fn claim_there(path: &Path) -> Result<(DirLock, Option<Superblock>)> {
        match path.metadata() {
            Ok(_) => DataDir::claim(path),
            Err(error) => Err(StoreError::io("open", path)(error)),
        }
    }

    /// Takes the directory `path`, which is made if it is not there, as it is: and what its superblock says, if it has one.
    ///
    /// # Errors
    /// As of [`DataDir::open`].
    pub fn claim(path: &Path) -> Result<(DirLock, Option<Superblock>)> {
        make_dir(path)?;
        let lock = DirLock::acquire(path)?;
        staged::settle(path)?;
        let superblock = Superblock::load(path)?;
        Ok((lock, superblock))
    }

    /// What its superblock says.
    pub const fn superblock(&self) -> &Superblock {
        &self.superblock
    }
}

/// The open store of a data directory.
pub struct Store {
    superblock: Superblock,
    folder: PathBuf,
    options: StoreOptions,
    /// Locked before any slot. Readers only try, so that one of them may hold a slot.
    db: RwLock<Option<Database>>,
    partitions: Vec<Arc<Partition>>,
    left: Arc<LeftViews>,
    ways: Arc<Ways>,
    /// Dropped last: the directory is free when nothing writes to it any more.
    _lock: DirLock,
}

impl Store {
    /// Opens the data directory `dir`, or makes it; for who has no log beside it.
    ///
    /// # Errors
    /// See [`DataDir::open`] and [`Store::open_in`].
    pub fn open(dir: &Path, options: StoreOptions) -> Result<Store> {
        Store::open_in(DataDir::open(dir, options.shards)?, options, Create::Store)
    }

    /// Opens the store of a data directory.
    ///
    /// # Errors
    /// Refuses a store of which something is missing that must not be made.
    pub fn open_in(dir: DataDir, options: StoreOptions, create: Create) -> Result<Store> {
        let DataDir { path: dir, superblock, lock } = dir;
        let ways = Arc::new(Ways::new(options.table_files, options.blocks_bytes(), options.index_bytes()));
        let slot = || Arc::new(Slot::new(ways.clone()));
        let left = Arc::new(LeftViews::new());
        let partition = |_| Arc::new(Partition::new(slot(), superblock.id(), options.table_bytes, left.clone()));
        let partitions = (0..superblock.shards).map(partition).collect();
        let folder = dir.join(STORE_FOLDER);
        if is_empty(&folder)? {
            if create == Create::Nothing {
                return Err(StoreError::NoStore { folder });
            }
            fresh::create(&dir, superblock.shards, &options)?;
        }
        let db = RwLock::new(None);
        let store = Store { superblock, folder, options, db, partitions, left, ways, _lock: lock };
        store.open_again(create).map_err(|error| name_damage(&dir, &store.folder, error))?;
        Ok(store)
    }

    /// What the superblock says.
    pub const fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// The partitions, by number of the shard.
    pub fn partitions(&self) -> &[Arc<Partition>] {
        &self.partitions
    }

    /// The partition of one shard.
    ///
    /// # Panics
    /// If there is no such shard.
    pub fn partition(&self, shard: u16) -> &Arc<Partition> {
        &self.partitions[usize::from(shard)]
    }

    /// Whether writes can go on. fjall's workers end at the first error, a full disk among them, and an ingestion
    /// given up half-way leaves files behind: both need [`Store::reopen`]. Reads go on meanwhile.
    pub fn health(&self) -> Result {
        if self.partitions.iter().any(|partition| partition.failed()) {
            return Err(StoreError::NeedsReopen("an ingestion or a compaction failed"));
        }
        let Some(db) = self.db.try_read() else { return Err(StoreError::NeedsReopen("it is being reopened")) };
        match &*db {
            None => Err(StoreError::Closed),
            // The journal is empty: this asks for nothing but whether a worker has failed.
            Some(db) => db.persist(PersistMode::Buffer).map_err(|_| StoreError::NeedsReopen("a compaction failed")),
        }
    }

    /// Closes the database and opens it again: after a failure, for nothing else. Waits for ingestions and
    /// compactions to end; reads wait meanwhile. Files of ingestions that were given up are removed.
    ///
    /// # Errors
    /// What opening answers. The store is closed then, and the next call tries again.
    pub fn reopen(&self) -> Result {
        self.open_again(Create::Nothing)
    }

    fn open_again(&self, create: Create) -> Result {
        let mut db = self.db.write();
        let mut slots: Vec<_> = self.partitions.iter().map(|partition| partition.slot().close()).collect();
        self.left.clear();
        // Ends fjall's workers. A filter that runs in one finds its slot closed, and keeps everything.
        *db = None;
        let (database, keyspaces) = self.open_database(create)?;
        for (slot, keyspace) in slots.iter_mut().zip(keyspaces) {
            **slot = Some(keyspace);
        }
        *db = Some(database);
        drop(slots);
        for partition in &self.partitions {
            partition.set_open();
        }
        Ok(())
    }

    /// All partitions as they are now.
    ///
    /// # Errors
    /// The store is closed.
    pub fn stills(&self) -> Result<Vec<Still>> {
        // First of all no version is forgotten any more: the snapshot is of one that stays.
        for partition in &self.partitions {
            let _not_compacting = partition.compacting.lock();
            *partition.stills.lock() += 1;
        }
        let snapshot = self.db.read().as_ref().map(Database::snapshot);
        let mut stills = Vec::with_capacity(self.partitions.len());
        for (at, partition) in self.partitions.iter().enumerate() {
            let still = snapshot.clone().ok_or(StoreError::Closed).and_then(|snapshot| Still::new(partition, snapshot));
            match still {
                Ok(still) => stills.push(still),
                Err(error) => {
                    // Those that are made give theirs back themselves.
                    self.partitions[at..].iter().for_each(|partition| *partition.stills.lock() -= 1);
                    return Err(error);
                }
            }
        }
        Ok(stills)
    }

    /// Bytes in the cache, of blocks and of indexes.
    pub fn cache_used_bytes(&self) -> u64 {
        let blocks = self.db.try_read().and_then(|db| db.as_ref().map(Database::cache_size)).unwrap_or_default();
        blocks + self.ways.index_bytes() as u64
    }

    /// Compactions that run now.
    pub fn active_compactions(&self) -> usize {
        self.db.try_read().and_then(|db| db.as_ref().map(Database::active_compactions)).unwrap_or_default()
    }

    fn open_database(&self, create: Create) -> Result<(Database, Vec<Keyspace>)> {
        for _ in 0..REOPEN_TRIES {
            match priority::at_nice(self.options.nice, || self.try_open_database(create))? {
                Err(StoreError::Fjall { source: fjall::Error::Locked, .. }) => {
                    std::thread::sleep(Duration::from_millis(100));
                }
                opened => return opened,
            }
        }
        Err(StoreError::Busy)
    }

    fn try_open_database(&self, create: Create) -> Result<(Database, Vec<Keyspace>)> {
        check_marks(&self.folder, create)?;
        let slots: Vec<_> = self.partitions.iter().map(|partition| Arc::clone(partition.slot())).collect();
        let assign = move |name: &str| {
            let slot = slots.get(name.parse::<usize>().ok()?)?;
            Some(Arc::new(DeadFilterFactory::new(Arc::clone(slot))) as Arc<_>)
        };
        let db = Database::builder(&self.folder)
            .cache_size(self.options.blocks_bytes())
            .max_cached_files(Some(LEAST_TABLE_FILES))
            .worker_threads(self.options.workers())
            .manual_journal_persist(true)
            .with_compaction_filter_factories(Arc::new(assign))
            .open()
            .map_err(StoreError::fjall("open the database"))?;
        let mut keyspaces = Vec::with_capacity(self.partitions.len());
        for shard in 0..self.superblock.shards {
            let name = shard.to_string();
            // fjall would make it anew, and empty.
            if !db.keyspace_exists(&name) && create != Create::Partitions {
                return Err(StoreError::NoPartition { shard });
            }
            let keyspace = db.keyspace(&name, || options::partition_options(&self.options));
            keyspaces.push(keyspace.map_err(StoreError::fjall("open a partition"))?);
        }
        Ok((db, keyspaces))
    }
}

/// Whether the small files are there by which fjall knows what is a database, and a partition. Where one is missing fjall begins anew, and
/// removes what it finds: nothing is opened that somebody may still put right. Only partitions whose loss is accepted may lack theirs.
fn check_marks(folder: &Path, create: Create) -> Result {
    let lacks = |file: PathBuf, of_partition| match folder.join(&file).try_exists() {
        Ok(true) => Ok(()),
        Ok(false) => Err(StoreError::Lacks { file, of_partition }),
        Err(error) => Err(StoreError::io("look for", &folder.join(file))(error)),
    };
    lacks(files::MARKER_FILE.into(), false)?;
    let keyspaces = folder.join("keyspaces");
    let entries = std::fs::read_dir(&keyspaces).map_err(StoreError::io("read", &keyspaces))?;
    lacks("keyspaces/0/current".into(), false)?;
    for entry in entries {
        let entry = entry.map_err(StoreError::io("read", &keyspaces))?;
        if !entry.path().is_dir() {
            continue;
        }
        let is_number = entry.file_name().to_str().is_some_and(|name| name.parse::<u64>().is_ok());
        if !is_number {
            let what = std::io::Error::other("no folder of the store is called so");
            return Err(StoreError::io("use", &entry.path())(what));
        }
        if create != Create::Partitions {
            lacks(Path::new("keyspaces").join(entry.file_name()).join("current"), true)?;
        }
    }
    // It is empty, and who copies directories may leave it out.
    let lock = folder.join("lock");
    let made = std::fs::OpenOptions::new().create(true).append(true).open(&lock);
    made.map(drop).map_err(StoreError::io("make", &lock))
}

impl Drop for Store {
    fn drop(&mut self) {
        let mut db = self.db.write();
        let _slots: Vec<_> = self.partitions.iter().map(|partition| partition.slot().close()).collect();
        self.left.clear();
        *db = None;
    }
}

/// Says of an error at opening which file it is about.
fn name_damage(dir: &Path, store: &Path, error: StoreError) -> StoreError {
    let (file, what) = match &error {
        StoreError::Io { path, source, .. } if path.starts_with(store) => (path.clone(), source.to_string()),
        StoreError::Fjall { source, .. } => match files::unreadable(store) {
            Some(files::BadFile { path, what, .. }) => (path, what),
            None => (store.to_owned(), source.to_string()),
        },
        _ => return error,
    };
    StoreError::Damaged { dir: dir.to_owned(), file, what }
}

/// Whether a folder is not there, or holds nothing.
fn is_empty(folder: &Path) -> Result<bool> {
    match std::fs::read_dir(folder) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(StoreError::io("read", folder)(error)),
    }
}

/// Makes `dir` if it is not there, and its name durable.
fn make_dir(dir: &Path) -> Result {
    if dir.is_dir() {
        return Ok(());
    }
    std::fs::create_dir_all(dir).map_err(StoreError::io("create", dir))?;
    superblock::sync_dir(folder_of(dir))
}
