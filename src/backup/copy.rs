//! Files on their way into a backup, or out of one.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::Path;

use super::{BackupError, Result};
use crate::util::pace::Pace;

/// Bytes copied at once.
const CHUNK: usize = 1 << 20;

/// Has a file that is never changed stand under another name as well: by a link, or by a copy where there can be none. `progress`
/// is told of bytes copied, and ends it by an error. Synced when this returns.
///
/// # Errors
/// What the disk says.
pub fn link_or_copy(from: &Path, to: &Path, progress: &mut dyn FnMut(u64) -> Result) -> Result {
    if fs::hard_link(from, to).is_ok() { Ok(()) } else { copy(from, to, progress) }
}

/// Has a file stand under another name as one of its own. Else as of [`link_or_copy`].
///
/// # Errors
/// What the disk says.
pub fn copy(from: &Path, to: &Path, progress: &mut dyn FnMut(u64) -> Result) -> Result {
    let mut source = File::open(from).map_err(BackupError::io(from))?;
    let (mut target, mut chunk) = (File::create(to).map_err(BackupError::io(to))?, vec![0; CHUNK]);
    let mut pace = Pace::new();
    loop {
        let read = source.read(&mut chunk).map_err(BackupError::io(from))?;
        if read == 0 {
            return target.sync_all().map_err(BackupError::io(to));
        }
        target.write_all(&chunk[..read]).map_err(BackupError::io(to))?;
        progress(read as u64)?;
        pace.step();
    }
}

/// Writes a small file, synced when this returns.
///
/// # Errors
/// What the disk says.
pub fn write_synced(path: &Path, bytes: &[u8]) -> Result {
    let write = || {
        let mut file = File::create(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(BackupError::io(path))
}
