//! One version of each partition, held so that its files stay, for who copies them.
//!
//! A version is a list of tables in memory, and two files that say the same. Nothing is locked to get both: the files are read, and
//! read again where another version has come meanwhile. As long as the pin lives its tables are not removed, and the store is not
//! opened again after a failure ([`super::partition::Range`]).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fjall::{AbstractTree, Keyspace};
use xxhash_rust::xxh3::xxh3_128;

use super::error::{Result, StoreError};
use super::files::{CURRENT_FILE, PARTITIONS_FOLDER, TableFile, partitions};
use super::{Partition, Store};
use crate::util::pace::at_times;

/// How often, a millisecond apart, a version is looked for that does not change meanwhile.
const LOOKS: usize = 1000;

/// A partition's version.
pub struct Pin {
    /// The partition's folder.
    folder: PathBuf,
    /// Which version is current, and the version: name and bytes.
    pub small: Vec<(PathBuf, Vec<u8>)>,
    /// Its tables.
    pub tables: Vec<TableFile>,
    /// What keeps them.
    held: Vec<Box<dyn Send>>,
    _open: Keyspace,
}

impl Drop for Pin {
    fn drop(&mut self) {
        // With the last who knows it a table goes that was replaced meanwhile.
        self.held.drain(..).for_each(|table| at_times(true, || drop(table)));
    }
}

impl Partition {
    /// Pins its newest version.
    ///
    /// # Errors
    /// The store is closed, or the files cannot be read.
    pub fn pin(&self) -> Result<Pin> {
        self.slot().with(|keyspace| {
            for _ in 0..LOOKS {
                if let Some(pin) = pin(keyspace)? {
                    return Ok(pin);
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(StoreError::Busy)
        })
    }
}

/// The newest version; `None` if another has come meanwhile.
fn pin(keyspace: &Keyspace) -> Result<Option<Pin>> {
    let version = keyspace.tree.current_version();
    let folder = keyspace.path().to_owned();
    let (current, name) = (folder.join(CURRENT_FILE), folder.join(format!("v{}", version.id())));
    let read = |path: &Path| match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        read => read.map(Some).map_err(StoreError::io("read", path)),
    };
    let (Some(bytes), Some(named)) = (read(&name)?, read(&current)?) else { return Ok(None) };
    let says = named.split_first_chunk::<8>().and_then(|(number, rest)| Some((number, rest.first_chunk::<16>()?)));
    let is_it = |(number, sum): (&[u8; 8], &[u8; 16])| {
        u64::from_le_bytes(*number) == version.id() && u128::from_le_bytes(*sum) == xxh3_128(&bytes)
    };
    if !says.is_some_and(is_it) {
        return Ok(None);
    }
    let (mut tables, mut held) = (Vec::new(), Vec::<Box<dyn Send>>::new());
    for table in version.iter_tables() {
        tables.push(TableFile { path: table.path.to_path_buf(), checksum: table.checksum().into_u128() });
        held.push(Box::new(table.clone()));
    }
    let small = vec![(current, named), (name, bytes)];
    Ok(Some(Pin { folder, small, tables, held, _open: keyspace.clone() }))
}

impl Store {
    /// Pins the newest version of every partition.
    ///
    /// # Errors
    /// As [`Partition::pin`].
    pub fn pin(&self) -> Result<Vec<Pin>> {
        self.partitions().iter().map(|partition| partition.pin()).collect()
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The files that are no partition's: they name these, and do not change. And those of the partition that holds the names.
    ///
    /// # Errors
    /// What the disk says.
    pub fn lasting_files(&self, pins: &[Pin]) -> Result<Vec<PathBuf>> {
        let mut folders: Vec<PathBuf> = partitions(&self.folder)?;
        folders.retain(|folder| pins.iter().all(|pin| pin.folder != *folder));
        folders.push(self.folder.clone());
        let mut all = Vec::new();
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).map_err(StoreError::io("read", &folder))? {
                let path = entry.map_err(StoreError::io("read", &folder))?.path();
                match path.is_dir() {
                    true if path == self.folder.join(PARTITIONS_FOLDER) => {}
                    true => folders.push(path),
                    false => all.push(path),
                }
            }
        }
        Ok(all)
    }
}
