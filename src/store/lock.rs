//! One server a data directory: an exclusive lock on the file `LOCK`.
//!
//! The lock is the kernel's (`flock`), so that it ends with the process however that ends; the file itself stays, and
//! holds the process id of its last owner for the error text alone.

use super::error::{Result, StoreError};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::path::Path;

/// Name of the lock file in the data directory.
pub const FILE_NAME: &str = "LOCK";

/// The data directory belongs to this process as long as this lives.
#[derive(Debug)]
pub struct DirLock {
    file: File,
}

impl Drop for DirLock {
    /// Gives it back at once: a process that another thread is just about to start has the open file for a moment, too, and
    /// closing it here alone would leave the lock with that.
    fn drop(&mut self) {
        _ = self.file.unlock();
    }
}

impl DirLock {
    /// Takes the data directory, or says who has it. Never waits.
    pub fn acquire(dir: &Path) -> Result<DirLock> {
        let path = dir.join(FILE_NAME);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(StoreError::io("open", &path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(StoreError::InUse { dir: dir.to_owned(), pid: read_pid(&mut file) });
            }
            Err(TryLockError::Error(source)) => return Err(StoreError::io("lock", &path)(source)),
        }
        write_pid(&mut file).map_err(StoreError::io("write", &path))?;
        Ok(DirLock { file })
    }
}

fn read_pid(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.take(16).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

fn write_pid(file: &mut File) -> std::io::Result<()> {
    file.set_len(0)?;
    writeln!(file, "{}", std::process::id())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn second_owner_is_refused_by_name_until_the_first_leaves() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let first = DirLock::acquire(dir.path()).unwrap();
        let error = DirLock::acquire(dir.path()).unwrap_err().to_string();
        let expected =
            format!("data directory {} is in use by another server (pid {})", dir.path().display(), std::process::id());
        assert_eq!(error, expected);
        drop(first);
        DirLock::acquire(dir.path()).unwrap();
    }

    #[test]
    fn the_lock_ends_also_where_a_child_still_has_the_file() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let first = DirLock::acquire(dir.path()).unwrap();
        let _of_child = first.file.try_clone().unwrap();
        drop(first);
        DirLock::acquire(dir.path()).unwrap();
    }

    #[test]
    fn a_left_over_file_is_no_lock() {
        let dir = crate::util::scratch::tempdir().unwrap();
        std::fs::write(dir.path().join(FILE_NAME), "4294967295\nolder and longer\n").unwrap();
        let _lock = DirLock::acquire(dir.path()).unwrap();
        let text = std::fs::read_to_string(dir.path().join(FILE_NAME)).unwrap();
        assert_eq!(text, format!("{}\n", std::process::id()));
    }
}
