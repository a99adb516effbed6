//! A data directory that is made anew in a folder of its own, and takes the place of what was there as a whole.
//!
//! | what stands in the data directory | means |
//! |---|---|
//! | `import.new/` | being made; who makes another, or opens the directory for a server, removes what was left |
//! | `import.done/` | made: whoever opens the directory moves its parts to where the old ones were |
//!
//! The step from the one to the other is a rename: whatever ends the process, the directory holds all of the old or all of the
//! new data. Whoever does any of this has the directory's lock.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::error::{Result, StoreError};
use super::{CHECKPOINT_FILE, FILTERS_FILE, LOG_FOLDER, STORE_FOLDER, rights, superblock};

pub(super) const BEING_MADE: &str = "import.new";
pub(super) const MADE: &str = "import.done";

/// What a data directory consists of; the filters may be missing.
const PARTS: [&str; 5] = [FILTERS_FILE, CHECKPOINT_FILE, LOG_FOLDER, STORE_FOLDER, superblock::FILE_NAME];

/// An empty folder in `dir` in which a data directory may be made.
pub fn begin(dir: &Path) -> Result<PathBuf> {
    let folder = dir.join(BEING_MADE);
    remove(&folder)?;
    fs::create_dir(&folder).map_err(StoreError::io("create", &folder))?;
    Ok(folder)
}

/// Gives up what was begun.
pub fn abandon(dir: &Path) -> Result {
    remove(&dir.join(BEING_MADE))
}

/// What was made, whose files are on disk, is what `dir` holds from now on; [`settle`] moves it to its place.
pub fn commit(dir: &Path) -> Result {
    let folder = dir.join(BEING_MADE);
    rights::take_after(&folder, dir)?;
    superblock::sync_dir(&folder)?;
    fs::rename(&folder, dir.join(MADE)).map_err(StoreError::io("rename", &folder))?;
    superblock::sync_dir(dir)
}

/// Whether there is something that was made and is not yet in its place.
pub fn is_made(dir: &Path) -> bool {
    dir.join(MADE).is_dir()
}

/// Moves what was made to its place, if there is any.
pub fn settle(dir: &Path) -> Result {
    let folder = dir.join(MADE);
    if !folder.is_dir() {
        return Ok(());
    }
    for part in PARTS {
        let (from, to) = (folder.join(part), dir.join(part));
        // What is not there any more was moved before.
        if from.exists() {
            remove(&to)?;
            fs::rename(&from, &to).map_err(StoreError::io("rename", &from))?;
        }
    }
    superblock::sync_dir(dir)?;
    remove(&folder)
}

/// Removes a file or a folder, if it is there.
fn remove(path: &Path) -> Result {
    let removed = match path.symlink_metadata() {
        Ok(what) if what.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(StoreError::io("remove", path)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn fill(dir: &Path, text: &str) {
        for part in PARTS {
            if [LOG_FOLDER, STORE_FOLDER].contains(&part) {
                fs::create_dir_all(dir.join(part)).unwrap();
                fs::write(dir.join(part).join("file"), text).unwrap();
            } else {
                fs::write(dir.join(part), text).unwrap();
            }
        }
    }

    fn content(dir: &Path) -> Vec<String> {
        let path = |part: &str| {
            let path = dir.join(part);
            if path.is_dir() { path.join("file") } else { path }
        };
        PARTS.iter().map(|part| fs::read_to_string(path(part)).unwrap_or_default()).collect()
    }

    /// Stopped before any of its steps, it is all old or, once settled, all new.
    #[test]
    fn it_is_replaced_as_a_whole() {
        for stopped_at in 0..=2 * PARTS.len() {
            let dir = crate::util::scratch::tempdir().unwrap();
            let dir = dir.path();
            fill(dir, "old");
            fill(&begin(dir).unwrap(), "left");
            fill(&begin(dir).unwrap(), "new");
            settle(dir).unwrap();
            assert_eq!(content(dir), ["old"; PARTS.len()], "not yet");
            fs::rename(dir.join(BEING_MADE), dir.join(MADE)).unwrap();
            for step in 0..stopped_at {
                let (from, to) = (dir.join(MADE).join(PARTS[step / 2]), dir.join(PARTS[step / 2]));
                if step % 2 == 0 { remove(&to).unwrap() } else { fs::rename(from, to).unwrap() }
            }
            settle(dir).unwrap();
            assert_eq!(content(dir), ["new"; PARTS.len()], "stopped at {stopped_at}");
            assert!(!dir.join(MADE).exists());
        }
        let dir = crate::util::scratch::tempdir().unwrap();
        fill(&begin(dir.path()).unwrap(), "new");
        commit(dir.path()).unwrap();
        settle(dir.path()).unwrap();
        assert_eq!(content(dir.path()), ["new"; PARTS.len()], "there was nothing");
        begin(dir.path()).unwrap();
        abandon(dir.path()).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), PARTS.len());
    }
}
