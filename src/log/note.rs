//! A note of what has been synced, beside the log: by it a log that was cut at its end is told from one that a crash has left.
//!
//! | bytes | part |
//! |---|---|
//! | 8 | `TARNSYNC` |
//! | 8 | id of the data directory |
//! | 8 | LSN: every record up to it has been synced |
//! | 8 | XXH3-64 of all bytes before |
//!
//! Integers are little-endian. It is written over in place, once a second if that has changed, after the sync that it tells of, and
//! not synced itself: a lower LSN than the last one is as true, and of one that is torn nothing is known.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use super::Lsn;
use super::disk::{File, Io, read_small_file, write_all};

const MAGIC: [u8; 8] = *b"TARNSYNC";

/// The note as the log keeps it.
#[derive(Default)]
pub(super) struct Note {
    /// `None` where none is kept.
    path: Option<PathBuf>,
    file: Option<Arc<dyn File>>,
    noted: Lsn,
}

impl Note {
    pub(super) fn new(path: Option<PathBuf>) -> Self {
        Note { path, ..Note::default() }
    }

    /// Notes that all up to this LSN has been synced. Only a help: a disk that refuses is told of by what must be written.
    pub(super) fn keep(&mut self, io: &dyn Io, owner: u64, synced: Lsn) {
        if synced > self.noted && self.write(io, owner, synced).is_ok() {
            self.noted = synced;
        }
    }

    fn write(&mut self, io: &dyn Io, owner: u64, synced: Lsn) -> io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let file = match &self.file {
            Some(file) => file,
            None => {
                let opened = match io.open(path) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => io.create(path),
                    opened => opened,
                };
                self.file.insert(opened?)
            }
        };
        write_all(&**file, &encode(owner, synced), 0)
    }
}

fn encode(owner: u64, synced: Lsn) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&owner.to_le_bytes());
    bytes.extend_from_slice(&synced.to_le_bytes());
    bytes.extend_from_slice(&xxh3_64(&bytes).to_le_bytes());
    bytes
}

/// What the note at `path` says of this data directory; 0 if it says nothing, or of another one.
///
/// # Errors
/// What the disk says.
pub fn noted(io: &dyn Io, path: &Path, owner: u64) -> io::Result<Lsn> {
    let bytes = read_small_file(io, path)?.unwrap_or_default();
    let lsn = bytes.get(16..24).and_then(|lsn| lsn.try_into().ok()).map_or(0, Lsn::from_le_bytes);
    Ok(if bytes == encode(owner, lsn) { lsn } else { 0 })
}
