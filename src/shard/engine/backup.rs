//! Making a backup while commands run: a copy of what a crash at one moment would have left, with the log's tail up to that moment.
//!
//! | step | who waits |
//! |---|---|
//! | a flush, so that little of the log is needed | nobody |
//! | the moment: no flush runs; checkpoint, a version of each partition, then the log up to its last LSN | the next flush, for some ms |
//! | tables are linked, in the data directory first where the backup lies on another file system: the versions are let go | nobody |
//! | the log is copied, what is linked elsewhere is copied, all is synced | nobody |
//! | every file is read again, each table's checksum held against that of its version | nobody |
//! | the manifest, then the name | nobody |
//!
//! # Why that is consistent
//! Nothing is in a partition that the log does not hold synced by then (rule 1): the log is looked at last, so it goes at least as
//! far as each partition, and a replay brings all of them to its last LSN, whatever ingestions and compactions came in between.
//! No segment that the checkpoint needs is removed before the log was looked at, as only a flush removes any.
//!
//! What ends it half-way leaves a folder that is no backup ([`crate::backup`]).

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::backup::{self, BackupError, Entry, Manifest, Result};
use crate::log::Snapshot;
use crate::shard::engine::checkpoint::Checkpoint;
use crate::shard::engine::{Engine, spawn};
use crate::store::files::checksum;
use crate::store::superblock::{self, sync_dir};
use crate::store::{CHECKPOINT_FILE, LOG_FOLDER, Pin, STAGE_FOLDER, STORE_FOLDER, rights};
use crate::util::pace::Pace;
use crate::util::time;

/// One that is being made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    /// Its name.
    pub name: String,
    /// When it was begun, Unix ms.
    pub began_ms: u64,
}

/// How the last one ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Its name.
    pub name: String,
    /// When, Unix ms.
    pub ended_ms: u64,
    /// Why it failed, if it did.
    pub failure: Option<String>,
}

/// What is known of backups.
#[derive(Default)]
pub struct Backups {
    /// One at a time.
    running: parking_lot::Mutex<Option<Running>>,
    last: parking_lot::Mutex<Option<Ended>>,
    /// Bytes to be linked, copied and read, and those that were.
    pub total_bytes: AtomicU64,
    /// The same, done.
    pub done_bytes: AtomicU64,
    /// How long flushes could not begin for the last one, µs.
    pub held_us: AtomicU64,
}

impl Backups {
    /// The one that is being made.
    pub fn running(&self) -> Option<Running> {
        self.running.lock().clone()
    }

    /// How the last one ended.
    pub fn last(&self) -> Option<Ended> {
        self.last.lock().clone()
    }
}

/// What there is at the moment.
struct Moment {
    checkpoint: Checkpoint,
    pins: Vec<Pin>,
    log: Snapshot,
}

/// A backup under way.
struct Making<'a> {
    engine: &'a Engine,
    /// Where it is made.
    folder: PathBuf,
    /// What was put there, with the checksum that it must have where that is known.
    files: HashMap<String, Option<u128>>,
    pace: Pace,
}

impl Engine {
    /// Begins to make a backup of this name, on a thread of its own.
    ///
    /// # Errors
    /// There is one of that name, or another is being made.
    pub fn create_backup(self: &Arc<Self>, backup_dir: &Path, name: &str) -> Result {
        let name = backup::valid_name(name.as_bytes())?.to_owned();
        if backup_dir.join(&name).exists() {
            return Err(BackupError::Exists);
        }
        // Before the look whether the server goes down: what it does not wait for then is not begun.
        let mut threads = self.threads.lock();
        let mut running = self.backups.running.lock();
        if let Some(other) = &*running {
            return Err(BackupError::Engine(format!("backup {} is being made", other.name)));
        }
        if self.stopping.load(Ordering::Relaxed) {
            return Err(BackupError::Stopped);
        }
        *running = Some(Running { name: name.clone(), began_ms: time::now_ms() });
        drop(running);
        let (engine, backup_dir) = (self.clone(), backup_dir.to_owned());
        let thread = spawn("backup".to_owned(), self.options.nice, move || engine.make_backup(&backup_dir, &name));
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        Ok(())
    }

    /// Makes one, and notes how that ends.
    fn make_backup(&self, backup_dir: &Path, name: &str) {
        let made = self.make_backup_in(backup_dir, name);
        if let Err(error) = &made {
            tracing::error!(name, %error, "the backup failed");
            // What is left of it would keep tables on the disk that are replaced.
            let _ = backup::remove(&backup::new_folder(backup_dir, name));
            let _ = backup::remove(&self.stage_folder());
        }
        let failure = made.err().map(|error| error.to_string());
        let ended = Ended { name: name.to_owned(), ended_ms: time::now_ms(), failure };
        *self.backups.last.lock() = Some(ended);
        *self.backups.running.lock() = None;
    }

    fn make_backup_in(&self, backup_dir: &Path, name: &str) -> Result {
        let began_ms = time::now_ms();
        for counter in [&self.backups.done_bytes, &self.backups.total_bytes] {
            counter.store(0, Ordering::Relaxed);
        }
        let folder = backup::new_folder(backup_dir, name);
        backup::remove(&folder)?;
        fs::create_dir_all(&folder).map_err(BackupError::io(&folder))?;
        // Who may not look at the data is not to find them here.
        rights::take_after(&folder, &self.options.dir).map_err(|error| BackupError::Engine(error.to_string()))?;
        let moment = self.backup_moment()?;
        let last_lsn = moment.log.last;
        let mut making = Making { engine: self, folder, files: HashMap::new(), pace: Pace::new() };
        making.place(moment)?;
        let files = making.prove()?;
        let manifest = Manifest { name: name.to_owned(), made_ms: began_ms, last_lsn, files };
        backup::write_synced(&making.folder.join(backup::MANIFEST_FILE), manifest.encode().as_bytes())?;
        making.sync_folders()?;
        self.backup_step("backup.manifest")?;
        let whole = backup_dir.join(name);
        fs::rename(&making.folder, &whole).map_err(BackupError::io(&whole))?;
        sync_dir(backup_dir).map_err(|error| BackupError::Engine(error.to_string()))?;
        tracing::info!(name, last_lsn, bytes = manifest.size_bytes(), "backup made");
        Ok(())
    }

    /// Where tables are linked before they are copied to another file system.
    fn stage_folder(&self) -> PathBuf {
        self.options.dir.join(STAGE_FOLDER)
    }

    /// Everything as of one LSN. Only flushes wait.
    fn backup_moment(&self) -> Result<Moment> {
        let failed = |error: &dyn std::fmt::Display| BackupError::Engine(error.to_string());
        self.flush().map_err(|error| failed(&error))?;
        self.backup_step("backup.flushed")?;
        let _no_flush = self.flush_lock.lock();
        let began = std::time::Instant::now();
        let checkpoint = self.checkpoint.lock().last.clone();
        let pins = self.store.pin().map_err(|error| failed(&error))?;
        self.log.write_to(self.log.last()).map_err(|error| failed(&error))?;
        let log = self.log.snapshot().map_err(|error| failed(&error))?;
        self.backups.held_us.store(began.elapsed().as_micros() as u64, Ordering::Relaxed);
        Ok(Moment { checkpoint, pins, log })
    }

    /// A point at which a test may end the process, and a server that goes down ends the backup.
    fn backup_step(&self, name: &'static str) -> Result {
        self.io.step(name).map_err(|error| BackupError::Engine(error.to_string()))?;
        if self.stopping.load(Ordering::Relaxed) { Err(BackupError::Stopped) } else { Ok(()) }
    }
}

impl Making<'_> {
    /// Puts everything there.
    fn place(&mut self, moment: Moment) -> Result {
        let Moment { checkpoint, pins, log } = moment;
        let store = self.engine.store.clone();
        let tables: Vec<_> = pins.iter().flat_map(|pin| &pin.tables).cloned().collect();
        let sizes = tables.iter().filter_map(|table| fs::metadata(&table.path).ok()).map(|found| found.len());
        let log_bytes: u64 = log.segments.iter().map(|segment| segment.size_bytes).sum();
        // Each is put there, and read again.
        self.engine.backups.total_bytes.store(2 * (sizes.sum::<u64>() + log_bytes), Ordering::Relaxed);
        for path in store.lasting_files(&pins).map_err(|error| BackupError::Engine(error.to_string()))? {
            let bytes = fs::read(&path).map_err(BackupError::io(&path))?;
            self.write(&self.below_store(&path), &bytes)?;
        }
        for (path, bytes) in pins.iter().flat_map(|pin| &pin.small) {
            self.write(&self.below_store(path), bytes)?;
        }
        self.engine.backup_step("backup.small")?;
        let stage = self.stage(&tables.iter().map(|table| table.path.clone()).collect::<Vec<_>>())?;
        if stage.is_some() {
            drop(pins);
        }
        self.engine.backup_step("backup.staged")?;
        for table in tables {
            let name = self.below_store(&table.path);
            let from = match &stage {
                Some(stage) => stage.join(name.strip_prefix("store/").unwrap_or(&name)),
                None => table.path,
            };
            self.link(&from, &name, table.checksum)?;
        }
        if let Some(stage) = stage {
            backup::remove(&stage)?;
        }
        self.engine.backup_step("backup.linked")?;
        for segment in &log.segments {
            self.log(segment)?;
        }
        self.engine.backup_step("backup.logged")?;
        let dir = &self.engine.options.dir;
        let superblock = dir.join(superblock::FILE_NAME);
        let bytes = fs::read(&superblock).map_err(BackupError::io(&superblock))?;
        self.write(superblock::FILE_NAME, &bytes)?;
        self.write(CHECKPOINT_FILE, &checkpoint.bytes())
    }

    /// Links tables that would be removed while they are copied to another file system, into the data directory. `None` where
    /// they can be linked into the backup itself, or not at all.
    fn stage(&self, tables: &[PathBuf]) -> Result<Option<PathBuf>> {
        let Some(first) = tables.first() else { return Ok(None) };
        let trial = self.folder.join("trial");
        if fs::hard_link(first, &trial).is_ok() {
            fs::remove_file(&trial).map_err(BackupError::io(&trial))?;
            return Ok(None);
        }
        let stage = self.engine.stage_folder();
        backup::remove(&stage)?;
        for table in tables {
            let name = self.below_store(table);
            let to = stage.join(name.strip_prefix("store/").unwrap_or(&name));
            make_folder_of(&to)?;
            if fs::hard_link(table, &to).is_err() {
                backup::remove(&stage)?;
                return Ok(None);
            }
        }
        Ok(Some(stage))
    }

    /// The path of a file of the store in the backup.
    fn below_store(&self, path: &Path) -> String {
        let below = path.strip_prefix(self.engine.store.folder()).unwrap_or(path);
        format!("{STORE_FOLDER}/{}", below.display())
    }

    fn write(&mut self, name: &str, bytes: &[u8]) -> Result {
        let path = self.folder.join(name);
        make_folder_of(&path)?;
        backup::write_synced(&path, bytes)?;
        self.files.insert(name.to_owned(), None);
        Ok(())
    }

    fn link(&mut self, from: &Path, name: &str, checksum: u128) -> Result {
        let to = self.folder.join(name);
        make_folder_of(&to)?;
        let engine = self.engine;
        let mut progress = |_| if engine.stopping.load(Ordering::Relaxed) { Err(BackupError::Stopped) } else { Ok(()) };
        backup::link_or_copy(from, &to, &mut progress)?;
        let size = fs::metadata(&to).map_err(BackupError::io(&to))?.len();
        engine.backups.done_bytes.fetch_add(size, Ordering::Relaxed);
        self.files.insert(name.to_owned(), Some(checksum));
        self.pace.step();
        progress(0)
    }

    fn log(&mut self, segment: &crate::log::SnapshotSegment) -> Result {
        let name = format!("{LOG_FOLDER}/{}", segment.name);
        let path = self.folder.join(&name);
        make_folder_of(&path)?;
        let mut file = File::create(&path).map_err(BackupError::io(&path))?;
        let copied = segment.read(|bytes| {
            self.engine.backups.done_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            self.pace.step();
            file.write_all(bytes)
        });
        copied.and_then(|()| file.sync_all()).map_err(BackupError::io(&path))?;
        self.files.insert(name, None);
        Ok(())
    }

    /// Reads every file again; the manifest's lines, ordered by path.
    fn prove(&mut self) -> Result<Vec<Entry>> {
        let mut all = Vec::with_capacity(self.files.len());
        for (name, expected) in self.files.drain() {
            let path = self.folder.join(&name);
            let done = &self.engine.backups.done_bytes;
            let found = checksum(&path, &mut |more| _ = done.fetch_add(more, Ordering::Relaxed));
            let (sum, size_bytes) = found.map_err(BackupError::io(&path))?;
            if expected.is_some_and(|expected| expected != sum) {
                return Err(BackupError::Broken { path, what: "the table's checksum is wrong".to_owned() });
            }
            all.push(Entry { path: name, size_bytes, checksum: sum });
            if self.engine.stopping.load(Ordering::Relaxed) {
                return Err(BackupError::Stopped);
            }
        }
        all.sort_by(|a, b| a.path.cmp(&b.path));
        self.engine.backup_step("backup.proven")?;
        Ok(all)
    }

    /// Makes every name durable.
    fn sync_folders(&self) -> Result {
        let mut folders = vec![self.folder.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).map_err(BackupError::io(&folder))? {
                let path = entry.map_err(BackupError::io(&folder))?.path();
                folders.extend(path.is_dir().then_some(path));
            }
            sync_dir(&folder).map_err(|error| BackupError::Engine(error.to_string()))?;
        }
        Ok(())
    }
}

fn make_folder_of(path: &Path) -> Result {
    let folder = crate::util::path::folder_of(path);
    fs::create_dir_all(folder).map_err(BackupError::io(folder))
}
