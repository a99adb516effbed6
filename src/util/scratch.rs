//! Directories of unit tests.

use std::path::Path;

use tempfile::TempDir;

/// A directory of its own for a test, in memory if the system has such a place: ingestions sync, and tests make thousands of them.
/// Who needs a disk says so by `tempfile`.
pub fn tempdir() -> std::io::Result<TempDir> {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() }
}
