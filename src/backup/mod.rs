//! What a backup is on disk: a copy of a data directory, and the file that says that it is whole.
//!
//! | name in `backup-dir` | is |
//! |---|---|
//! | `NAME/` | a backup: `SUPERBLOCK`, `CHECKPOINT`, `log/`, `store/` as in a data directory, and `MANIFEST` |
//! | `.NAME.new/` | one that is being made, or was when the server ended; it is listed, and the next of that name, or who deletes it, removes it |
//! | `.NAME.old/` | one that is being deleted |
//!
//! `MANIFEST` is text: a line that says what it is, then name, time and last LSN, then of each file its size in bytes, its XXH3-128
//! and its path; the last line has the XXH3-64 of all lines before. It is written and synced when all else is, and the folder gets
//! its name after that: what has no manifest, or another than its files, is no backup.
//!
//! Tables are never changed, so they may be hard links to those of the store that the backup was made of.

mod copy;

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

pub use copy::{copy, link_or_copy, write_synced};

use crate::store::files::checksum;
use crate::store::superblock::{self, sync_dir};
use crate::store::{CHECKPOINT_FILE, LOG_FOLDER, STORE_FOLDER};

/// Name of the file that says that a backup is whole.
pub const MANIFEST_FILE: &str = "MANIFEST";

const TITLE: &str = "tarn backup 1";

/// Longest name.
const MAX_NAME: usize = 100;

/// Why there is no backup, or none that could be made.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// A name that is none.
    #[error("a backup's name has up to 100 letters, digits, '-', '_' and '.', and does not begin with '.'")]
    Name,
    /// There is one of that name.
    #[error("there is a backup of that name already")]
    Exists,
    /// There is none of that name.
    #[error("no such backup")]
    Unknown,
    /// A folder that was never made as one.
    #[error("{0} holds what is in no backup: it is not removed")]
    Foreign(PathBuf),
    /// It is being made, or was when its server ended.
    #[error("it was not finished")]
    Unfinished,
    /// The disk refuses.
    #[error("{path}: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// It is not whole.
    #[error("{path} is not whole: {what}")]
    Broken {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The engine that it is made of refuses.
    #[error("{0}")]
    Engine(String),
    /// The server goes down.
    #[error("the server goes down")]
    Stopped,
}

/// Result of everything here.
pub type Result<T = (), E = BackupError> = std::result::Result<T, E>;

impl BackupError {
    /// Of a path.
    pub fn io(path: &Path) -> impl FnOnce(io::Error) -> BackupError {
        move |source| BackupError::Io { path: path.to_owned(), source }
    }

    fn broken(path: &Path, what: impl Into<String>) -> BackupError {
        BackupError::Broken { path: path.to_owned(), what: what.into() }
    }
}

/// A file of a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Where it is, below the backup's folder.
    pub path: String,
    /// Its size.
    pub size_bytes: u64,
    /// XXH3-128 of all its bytes.
    pub checksum: u128,
}

/// What a backup says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// Its name when it was made.
    pub name: String,
    /// When that was, Unix ms.
    pub made_ms: u64,
    /// The last commit that it has; it has all before.
    pub last_lsn: u64,
    /// Its files.
    pub files: Vec<Entry>,
}

impl Manifest {
    /// Bytes of all files.
    pub fn size_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size_bytes).sum()
    }

    /// The file's text.
    pub fn encode(&self) -> String {
        let Manifest { name, made_ms, last_lsn, files } = self;
        let mut text = format!("{TITLE}\nname {name}\nmade {made_ms}\nlsn {last_lsn}\n");
        for Entry { path, size_bytes, checksum } in files {
            text += &format!("file {size_bytes} {checksum:032x} {path}\n");
        }
        let sum = xxh3_64(text.as_bytes());
        text + &format!("end {sum:016x}\n")
    }

    /// Reads a backup's manifest.
    ///
    /// # Errors
    /// What the disk says; a manifest that is missing or damaged.
    pub fn load(folder: &Path) -> Result<Manifest> {
        let path = folder.join(MANIFEST_FILE);
        let text = fs::read_to_string(&path).map_err(BackupError::io(&path))?;
        decode(&text).ok_or_else(|| BackupError::broken(&path, "it is damaged"))
    }
}

fn decode(text: &str) -> Option<Manifest> {
    let (body, end) = text.rsplit_once("end ")?;
    if end.strip_suffix('\n').and_then(|sum| u64::from_str_radix(sum, 16).ok()) != Some(xxh3_64(body.as_bytes())) {
        return None;
    }
    let mut lines = body.lines();
    if lines.next()? != TITLE {
        return None;
    }
    let mut value = |word: &str| lines.next()?.strip_prefix(word)?.strip_prefix(' ').map(str::to_owned);
    let (name, made_ms, last_lsn) = (value("name")?, value("made")?.parse().ok()?, value("lsn")?.parse().ok()?);
    let file = |line: &str| {
        let mut parts = line.strip_prefix("file ")?.splitn(3, ' ');
        let (size_bytes, sum) = (parts.next()?.parse().ok()?, u128::from_str_radix(parts.next()?, 16).ok()?);
        let path = parts.next().filter(|path| is_inside(Path::new(path)))?;
        Some(Entry { path: path.to_owned(), size_bytes, checksum: sum })
    };
    let files = lines.map(file).collect::<Option<Vec<_>>>()?;
    Some(Manifest { name, made_ms, last_lsn, files })
}

/// Whether a path leads nowhere but below where it begins.
fn is_inside(path: &Path) -> bool {
    path.components().all(|part| matches!(part, Component::Normal(_))) && path.components().next().is_some()
}

/// The name, if it may be one.
///
/// # Errors
/// It may not.
pub fn valid_name(name: &[u8]) -> Result<&str> {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    let is_valid = (1..=MAX_NAME).contains(&name.len()) && name[0] != b'.' && name.iter().all(is_plain);
    std::str::from_utf8(name).ok().filter(|_| is_valid).ok_or(BackupError::Name)
}

/// Where one of that name is while it is made.
pub fn new_folder(backup_dir: &Path, name: &str) -> PathBuf {
    backup_dir.join(format!(".{name}.new"))
}

/// A folder in `backup-dir`, and what it says of itself.
#[derive(Debug)]
pub struct Found {
    /// Its name.
    pub name: String,
    /// Its manifest, or why it is no backup.
    pub manifest: Result<Manifest>,
}

/// The backups in a folder, by name.
///
/// # Errors
/// What the disk says, but for a folder that is not there, which has none.
pub fn list(backup_dir: &Path) -> Result<Vec<Found>> {
    let entries = match fs::read_dir(backup_dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(BackupError::io(backup_dir))?,
    };
    let mut all = Vec::new();
    for entry in entries {
        let path = entry.map_err(BackupError::io(backup_dir))?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()).filter(|_| path.is_dir()) else { continue };
        let unfinished = name.strip_prefix('.').and_then(|name| name.strip_suffix(".new"));
        let Ok(valid) = valid_name(unfinished.unwrap_or(name).as_bytes()) else { continue };
        let manifest = if unfinished.is_some() { Err(BackupError::Unfinished) } else { Manifest::load(&path) };
        all.push(Found { name: valid.to_owned(), manifest });
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}

/// What is in a backup, and nothing else.
const PARTS: [&str; 5] = [MANIFEST_FILE, superblock::FILE_NAME, CHECKPOINT_FILE, LOG_FOLDER, STORE_FOLDER];

/// Whether a folder is a backup, or what is left of one: its neighbours may be anything, a data directory too.
fn is_backup(folder: &Path) -> Result<bool> {
    if folder.join(MANIFEST_FILE).is_file() {
        return Ok(true);
    }
    for entry in fs::read_dir(folder).map_err(BackupError::io(folder))? {
        let name = entry.map_err(BackupError::io(folder))?.file_name();
        if !PARTS.iter().any(|part| name == *part) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes a backup, and what is left of an unfinished one of its name, which nobody may be making. From the first moment on it
/// is none any more.
///
/// # Errors
/// There is none, or the disk refuses.
pub fn delete(backup_dir: &Path, name: &str) -> Result {
    let (folder, old) = (backup_dir.join(name), backup_dir.join(format!(".{name}.old")));
    let new = new_folder(backup_dir, name);
    let is_unfinished = new.is_dir();
    if !folder.is_dir() {
        return if is_unfinished { remove(&new) } else { Err(BackupError::Unknown) };
    }
    if !is_backup(&folder)? {
        return Err(BackupError::Foreign(folder));
    }
    remove(&new)?;
    remove(&old)?;
    fs::rename(&folder, &old).map_err(BackupError::io(&folder))?;
    sync_dir(backup_dir).map_err(|error| BackupError::Engine(error.to_string()))?;
    remove(&old)
}

/// Removes a folder that may not be there.
///
/// # Errors
/// What the disk says.
pub fn remove(folder: &Path) -> Result {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(BackupError::io(folder)(error)),
        _ => Ok(()),
    }
}

/// Proves size and checksum of every file of a backup. `progress` is told of bytes read, and ends it by an error.
///
/// # Errors
/// The first file that is not as the manifest says.
pub fn verify(folder: &Path, manifest: &Manifest, progress: &mut dyn FnMut(u64) -> Result) -> Result {
    for Entry { path, size_bytes, checksum: expected } in &manifest.files {
        let path = folder.join(path);
        let mut stopped = Ok(());
        let found = checksum(&path, &mut |more| {
            if stopped.is_ok() {
                stopped = progress(more);
            }
        });
        stopped?;
        let found = found.map_err(BackupError::io(&path))?;
        if found != (*expected, *size_bytes) {
            return Err(BackupError::broken(&path, "size or checksum is not that of the manifest"));
        }
    }
    Ok(())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn sample() -> Manifest {
        let file = |path: &str| Entry { path: path.to_owned(), size_bytes: 5, checksum: 7 };
        Manifest { name: "n".into(), made_ms: 1, last_lsn: 2, files: vec![file("SUPERBLOCK"), file("log/a b.log")] }
    }

    #[test]
    fn a_manifest_comes_back_and_every_change_and_cut_is_refused() {
        let text = sample().encode();
        assert_eq!(decode(&text), Some(sample()));
        for at in 0..text.len() {
            assert_eq!(decode(&text[..at]), None);
            let mut changed = text.clone().into_bytes();
            changed[at] ^= 1;
            assert_eq!(std::str::from_utf8(&changed).ok().and_then(decode), None, "byte {at}");
        }
    }

    #[test]
    fn no_path_leads_out() {
        for path in ["../x", "/etc/passwd", "a/../../b", ""] {
            let mut manifest = sample();
            manifest.files[0].path = path.to_owned();
            assert_eq!(decode(&manifest.encode()), None, "{path}");
        }
        for name in [&b""[..], b".", b"..", b".hidden", b"a/b", b"a\0", b"\xff", b"a b", &[b'x'; 101]] {
            assert!(valid_name(name).is_err(), "{name:?}");
        }
        for name in [&b"a"[..], b"2026-11-24_08.00", &[b'x'; 100]] {
            assert!(valid_name(name).is_ok());
        }
    }

    #[test]
    fn what_has_no_manifest_is_listed_as_broken_and_deleted() {
        let dir = crate::util::scratch::tempdir().unwrap();
        assert!(list(&dir.path().join("none")).unwrap().is_empty());
        for name in ["whole", "bare", ".whole.new"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        fs::write(dir.path().join("file"), "x").unwrap();
        fs::write(dir.path().join("whole/MANIFEST"), sample().encode()).unwrap();
        let found = list(dir.path()).unwrap();
        let names: Vec<_> = found.iter().map(|found| (&found.name[..], found.manifest.is_ok())).collect();
        assert_eq!(names, [("bare", false), ("whole", false), ("whole", true)]);
        for name in ["bare", "whole"] {
            delete(dir.path(), name).unwrap();
        }
        assert!(matches!(delete(dir.path(), "whole"), Err(BackupError::Unknown)));
        assert!(list(dir.path()).unwrap().is_empty());
        fs::create_dir(dir.path().join(".left.new")).unwrap();
        delete(dir.path(), "left").unwrap();
        assert!(list(dir.path()).unwrap().is_empty());
    }

    /// Who was interrupted while deleting one has left some of it.
    #[test]
    fn what_is_left_of_an_earlier_deletion_goes_with_the_next() {
        let dir = crate::util::scratch::tempdir().unwrap();
        for name in ["daily", ".daily.old"] {
            fs::create_dir(dir.path().join(name)).unwrap();
            fs::write(dir.path().join(name).join(MANIFEST_FILE), sample().encode()).unwrap();
        }
        delete(dir.path(), "daily").unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_is_no_backup_is_not_deleted() {
        let dir = crate::util::scratch::tempdir().unwrap();
        for file in ["data/SUPERBLOCK", "data/LOCK", "log/1.log", "other/file"] {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        }
        for name in ["data", "log", "other"] {
            assert!(matches!(delete(dir.path(), name), Err(BackupError::Foreign(_))), "{name}");
            assert!(dir.path().join(name).is_dir());
        }
    }
}
