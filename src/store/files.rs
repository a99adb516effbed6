//! The files of a store: which there must be, and what their checksums are.
//!
//! | file | is |
//! |---|---|
//! | `keyspaces/N/current` | number and checksum of the partition's newest version |
//! | `keyspaces/N/vM` | a version: its tables, with the checksum of each |
//! | `keyspaces/N/tables/T` | a table; never changed, and removed with the last version that names it |
//! | the others | what names the partitions; written when the store is made, and not again |
//!
//! fjall proves the checksum of a block when it reads it, and believes the rest. Who looks through a store that is not open, or
//! copies one, goes by what the files themselves say.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use super::error::{Result, StoreError};
use crate::util::pace::Pace;

/// Folder of the partitions in the store's.
pub(super) const PARTITIONS_FOLDER: &str = "keyspaces";
/// Folder of the tables in a partition's.
pub(super) const TABLES_FOLDER: &str = "tables";
/// File that says which version is the newest.
pub(super) const CURRENT_FILE: &str = "current";

/// File that says which version of fjall's format the store has, behind three letters.
pub(super) const MARKER_FILE: &str = "version";
const MARKER: &[u8] = b"FJL";

/// Bytes read at once.
const CHUNK: usize = 1 << 20;

/// A table that a version names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableFile {
    /// Where it is.
    pub path: PathBuf,
    /// XXH3-128 of all its bytes.
    pub checksum: u128,
}

/// A partition's newest version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionFile {
    /// Where it is.
    pub path: PathBuf,
    /// What it names.
    pub tables: Vec<TableFile>,
}

/// What is wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadFile {
    /// The file.
    pub path: PathBuf,
    /// What is wrong.
    pub what: String,
    /// The store cannot be opened with it.
    pub fatal: bool,
}

impl BadFile {
    fn fatal(path: PathBuf, what: impl Into<String>) -> BadFile {
        BadFile { path, what: what.into(), fatal: true }
    }
}

/// XXH3-128 and length of a file, read in pieces.
///
/// # Errors
/// What the disk says.
pub fn checksum(path: &Path, progress: &mut dyn FnMut(u64)) -> io::Result<(u128, u64)> {
    let mut file = File::open(path)?;
    let (mut hasher, mut chunk, mut size_bytes, mut pace) = (Xxh3::new(), vec![0; CHUNK], 0, Pace::new());
    loop {
        match file.read(&mut chunk) {
            Ok(0) => return Ok((hasher.digest128(), size_bytes)),
            Ok(read) => {
                hasher.update(&chunk[..read]);
                size_bytes += read as u64;
                progress(read as u64);
                pace.step();
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Whether a file of a store is a table.
pub fn is_table(path: &Path) -> bool {
    path.parent().and_then(Path::file_name).is_some_and(|folder| folder == TABLES_FOLDER)
}

/// The folders of the partitions of a store, in order of their numbers.
///
/// # Errors
/// What the disk says.
pub fn partitions(store: &Path) -> Result<Vec<PathBuf>> {
    let folder = store.join(PARTITIONS_FOLDER);
    let mut numbered = Vec::new();
    for entry in fs::read_dir(&folder).map_err(StoreError::io("read", &folder))? {
        let path = entry.map_err(StoreError::io("read", &folder))?.path();
        let number = path.file_name().and_then(|name| name.to_str()?.parse::<u64>().ok());
        numbered.extend(number.map(|number| (number, path)));
    }
    numbered.sort_unstable();
    Ok(numbered.into_iter().map(|(_, path)| path).collect())
}

/// The first file that keeps fjall from opening the store, as far as that is told by a look at each.
pub fn unreadable(store: &Path) -> Option<BadFile> {
    let marker = store.join(MARKER_FILE);
    match fs::read(&marker) {
        Ok(bytes) if bytes.starts_with(MARKER) && bytes.len() > MARKER.len() => {}
        Ok(_) => return Some(BadFile::fatal(marker, "it is damaged")),
        Err(error) => return Some(BadFile::fatal(marker, error.to_string())),
    }
    let partitions = match partitions(store) {
        Ok(partitions) => partitions,
        Err(error) => return Some(BadFile::fatal(store.join(PARTITIONS_FOLDER), error.to_string())),
    };
    partitions.iter().find_map(|partition| match version(partition) {
        Ok(version) => version.tables.into_iter().find_map(|TableFile { path, .. }| {
            let what = sfa::Reader::new(&path).err()?.to_string();
            Some(BadFile::fatal(path, what))
        }),
        Err(bad) => Some(bad),
    })
}

/// The newest version of a partition, and its tables.
///
/// # Errors
/// What is wrong with it.
pub fn version(partition: &Path) -> std::result::Result<VersionFile, BadFile> {
    let current = partition.join(CURRENT_FILE);
    let bytes = fs::read(&current).map_err(|error| BadFile::fatal(current.clone(), error.to_string()))?;
    let parts = bytes.split_first_chunk::<8>().and_then(|(number, rest)| Some((number, rest.first_chunk::<16>()?)));
    let Some((number, checksum)) = parts else { return Err(BadFile::fatal(current, "it is too short")) };
    let path = partition.join(format!("v{}", u64::from_le_bytes(*number)));
    let version = fs::read(&path).map_err(|error| BadFile::fatal(path.clone(), error.to_string()))?;
    if xxh3_128(&version) != u128::from_le_bytes(*checksum) {
        return Err(BadFile::fatal(path, "its checksum is wrong, or that in `current` is"));
    }
    match tables(&path, &partition.join(TABLES_FOLDER)) {
        Ok(tables) => Ok(VersionFile { path, tables }),
        Err(what) => Err(BadFile::fatal(path, what)),
    }
}

/// The tables that a version names: `levels:1`, of each `runs:1`, of each `tables:4`, of each `id:8 kind:1 checksum:16 seqno:8`.
fn tables(version: &Path, folder: &Path) -> std::result::Result<Vec<TableFile>, String> {
    let text = |error: io::Error| error.to_string();
    let archive = sfa::Reader::new(version).map_err(|error| error.to_string())?;
    let section = archive.toc().section(b"tables").ok_or("it names no tables")?;
    let mut reader = section.buf_reader(version).map_err(text)?;
    let mut number = |len: usize| -> std::result::Result<u128, String> {
        let mut bytes = [0; 16];
        reader.read_exact(&mut bytes[..len]).map_err(text)?;
        Ok(u128::from_le_bytes(bytes))
    };
    let mut tables = Vec::new();
    for _ in 0..number(1)? {
        for _ in 0..number(1)? {
            for _ in 0..number(4)? {
                let (id, _, checksum, _) = (number(8)?, number(1)?, number(16)?, number(8)?);
                tables.push(TableFile { path: folder.join(id.to_string()), checksum });
            }
        }
    }
    Ok(tables)
}

/// Reads every file that the newest versions name and proves its checksum; `bad` is told of each that is wrong or missing.
///
/// # Errors
/// What the disk says, but for what a single file answers.
pub fn verify(store: &Path, bad: &mut dyn FnMut(BadFile), progress: &mut dyn FnMut(u64)) -> Result {
    for partition in partitions(store)? {
        let version = match version(&partition) {
            Ok(version) => version,
            Err(found) => {
                bad(found);
                continue;
            }
        };
        for TableFile { path, checksum: expected } in version.tables {
            match checksum(&path, progress) {
                Ok((found, _)) if found == expected => {}
                Ok(_) => bad(BadFile { path, what: "its checksum is wrong".to_owned(), fatal: false }),
                Err(error) => bad(BadFile::fatal(path, error.to_string())),
            }
        }
    }
    Ok(())
}

/// Bytes of all tables that the newest versions name.
///
/// # Errors
/// What the disk says.
pub fn size_bytes(store: &Path) -> Result<u64> {
    let tables = partitions(store)?.into_iter().filter_map(|folder| version(&folder).ok()).flat_map(|v| v.tables);
    Ok(tables.filter_map(|table| fs::metadata(&table.path).ok()).map(|metadata| metadata.len()).sum())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::super::{Store, StoreOptions};
    use super::*;

    fn found(store: &Path) -> Vec<BadFile> {
        let (mut all, mut bytes) = (Vec::new(), 0);
        verify(store, &mut |bad| all.push(bad), &mut |more| bytes += more).unwrap();
        assert!(!all.is_empty() || bytes == size_bytes(store).unwrap());
        all
    }

    #[test]
    fn a_checksum_is_told_with_the_length() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let (path, bytes) = (dir.path().join("file"), vec![7; CHUNK + 1]);
        fs::write(&path, &bytes).unwrap();
        assert_eq!(checksum(&path, &mut |_| {}).unwrap(), (xxhash_rust::xxh3::xxh3_128(&bytes), bytes.len() as u64));
    }

    #[test]
    fn every_byte_of_versions_and_tables_is_proven() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let options = StoreOptions { shards: Some(2), ..StoreOptions::default() };
        let store = Store::open(dir.path(), options).unwrap();
        for shard in 0..2 {
            store.partition(shard).ingest([("Ca", Some("1")), ("Cb", Some("2"))]).unwrap();
        }
        drop(store);
        let folder = dir.path().join("store");
        assert_eq!(found(&folder), []);
        let partition = partitions(&folder).unwrap().pop().unwrap();
        let version = version(&partition).unwrap();
        assert_eq!(version.tables.len(), 1);
        for path in [partition.join(CURRENT_FILE), version.path, version.tables[0].path.clone()] {
            let whole = fs::read(&path).unwrap();
            // Only the number and the checksum of what `current` names are of use.
            for at in (0..whole.len().min(24)).chain((24..whole.len() - 1).step_by(7)) {
                let mut damaged = whole.clone();
                damaged[at] ^= 1;
                fs::write(&path, &damaged).unwrap();
                assert_eq!(found(&folder).len(), 1, "byte {at} of {}", path.display());
            }
            fs::remove_file(&path).unwrap();
            assert!(found(&folder)[0].fatal);
            fs::write(&path, whole).unwrap();
        }
        assert_eq!(found(&folder), []);
    }
}
