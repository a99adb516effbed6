//! The file system as the log sees it, narrow enough to be simulated.
//!
//! [`RealIo`] is the disk; [`SimIo`](super::sim::SimIo) is a disk in memory that fails, crashes and loses power on
//! command. A *step* is a named point of a longer procedure (`"log.rotate.renamed"`, `"flush.gathered"`): the real
//! one ignores it, the simulated one may crash there.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::util::pace::Pace;
use crate::util::path::folder_of;
use crate::util::sys::begin_write_back;

/// A file that is open for reading and writing. Offsets are explicit, so that a cut never moves a hidden cursor.
pub trait File: Send + Sync {
    /// Its length in bytes.
    fn size_bytes(&self) -> io::Result<u64>;
    /// Reads at most `buf.len()` bytes; 0 at the end.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes at most `buf.len()` bytes and answers how many.
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize>;
    /// Cuts or extends (with zeros) the file.
    fn truncate(&self, size_bytes: u64) -> io::Result<()>;
    /// Brings the contents to the disk (`fdatasync`).
    fn sync_data(&self) -> io::Result<()>;
    /// Brings contents and metadata to the disk (`fsync`).
    fn sync_all(&self) -> io::Result<()>;
}

/// The operations on a directory of files.
pub trait Io: Send + Sync {
    /// Creates a directory and its parents where they do not exist.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;
    /// Creates an empty file, or empties the one that is there.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>>;
    /// Opens a file that exists.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>>;
    /// The names of the files in a directory, in no order.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    /// Renames a file, replacing what has the new name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Brings a directory's entries to the disk.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// A named point at which a test may end the process.
    fn step(&self, name: &'static str) -> io::Result<()>;
}

/// The disk.
#[derive(Debug, Default, Clone, Copy)]
pub struct RealIo;

impl Io for RealIo {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        fs::create_dir_all(dir)
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let file = fs::OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?;
        Ok(Arc::new(RealFile::new(file)))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(RealFile::new(fs::OpenOptions::new().read(true).write(true).open(path)?)))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir)? {
            // A name that is no UTF-8 is none of ours.
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        fs::File::open(dir)?.sync_all()
    }

    fn step(&self, _name: &'static str) -> io::Result<()> {
        Ok(())
    }
}

/// What a sync has the kernel prepare at once.
const PIECE_BYTES: u64 = 1 << 20;

struct RealFile {
    file: fs::File,
    /// The end of all that was written.
    end: AtomicU64,
    /// How far the kernel has been told to write.
    begun: AtomicU64,
}

impl RealFile {
    fn new(file: fs::File) -> Self {
        let size = file.metadata().map_or(0, |metadata| metadata.len());
        RealFile { file, end: AtomicU64::new(size), begun: AtomicU64::new(size) }
    }

    /// Has the kernel begin with what is to be synced, piece by piece: for 100 MB at once it would keep the core for some
    /// ms. Only a hint; the sync that follows answers for all of it. Not done as a long record is written: the disk's queue
    /// then holds up the writer, and all behind it (822 ms, seen once).
    fn begin_sync(&self) {
        let end = self.end.load(Ordering::Acquire);
        let mut at = self.begun.fetch_max(end, Ordering::AcqRel);
        if at + PIECE_BYTES >= end {
            return;
        }
        let mut pace = Pace::new();
        while at < end {
            begin_write_back(&self.file, at, PIECE_BYTES);
            at += PIECE_BYTES;
            pace.step();
        }
    }
}

impl File for RealFile {
    fn size_bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(&self.file, buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        let done = FileExt::write_at(&self.file, buf, offset)?;
        self.end.fetch_max(offset + done as u64, Ordering::AcqRel);
        Ok(done)
    }

    fn truncate(&self, size_bytes: u64) -> io::Result<()> {
        self.file.set_len(size_bytes)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.begin_sync();
        self.file.sync_data()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.file.sync_all()
    }
}

/// Longest of the small files that are read whole.
const SMALL_FILE: u64 = 1 << 20;

/// A small file's contents, of a longer one the beginning; `None` if it is not there.
///
/// # Errors
/// What the disk says.
pub fn read_small_file(io: &dyn Io, path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match io.open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut bytes = vec![0; file.size_bytes()?.min(SMALL_FILE) as usize];
    let read = read_full(&*file, &mut bytes, 0)?;
    bytes.truncate(read);
    Ok(Some(bytes))
}

/// Puts a small file in the place of the one there, durable when this returns: after a crash it is the one or the other.
/// It is made as `<path>.new`; what a failure leaves of that the next attempt removes.
///
/// # Errors
/// What the disk says; the file may then be either.
pub fn replace_small_file(io: &dyn Io, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".new");
    let aside = PathBuf::from(aside);
    match io.remove(&aside) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        result => result?,
    }
    let file = io.create(&aside)?;
    write_all(&*file, bytes, 0)?;
    file.sync_all()?;
    io.rename(&aside, path)?;
    io.sync_dir(folder_of(path))
}

/// Writes all of `bytes`, going on after short writes: the next one names the reason.
pub(super) fn write_all(file: &dyn File, bytes: &[u8], offset: u64) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match file.write_at(&bytes[done..], offset + done as u64) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => done += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Fills as much of `buf` as the file has from `offset` on.
pub(super) fn read_full(file: &dyn File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match file.read_at(&mut buf[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
