//! What the standard library leaves open about paths.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, fchown};
use std::path::Path;

/// The folder in which a name stands, as the system wants it named: that of a bare name is `.`, not the empty path.
/// The root stands in itself.
pub fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder.as_os_str().is_empty() => Path::new("."),
        Some(folder) => folder,
        None => path,
    }
}

/// Replaces `file` by `text`, so that a crash leaves the one or the other whole.
///
/// # Errors
/// Those of the system: the file is as it was.
pub fn replace(file: &Path, text: &[u8]) -> io::Result<()> {
    let folder = folder_of(file);
    let name = file.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
    let aside = folder.join(format!(".{name}.{}.tmp", std::process::id()));
    let written = write_aside(&aside, file, text).and_then(|()| std::fs::rename(&aside, file));
    if let Err(why) = written {
        // Best effort: the reason for the failure matters more than what it leaves.
        let _ = std::fs::remove_file(&aside);
        return Err(why);
    }
    File::open(folder)?.sync_all()
}

fn write_aside(aside: &Path, file: &Path, text: &[u8]) -> io::Result<()> {
    // Left over from a crash of a process with the same id.
    let _ = std::fs::remove_file(aside);
    let mut out = OpenOptions::new().write(true).create_new(true).open(aside)?;
    // It may hold a password: no wider than the file it replaces.
    take_after(&out, file)?;
    out.write_all(text)?;
    out.sync_all()
}

/// Makes a file that is to replace `old` belong to the same, with the same rights. There need be no such file.
///
/// # Errors
/// Those of the system.
pub fn take_after(file: &File, old: &Path) -> io::Result<()> {
    let Ok(old) = std::fs::metadata(old) else { return Ok(()) };
    may_give(fchown(file, Some(old.uid()), Some(old.gid())))?;
    file.set_permissions(old.permissions())
}

/// Only root gives anything away: what others make stays theirs.
///
/// # Errors
/// Any other of giving it.
pub fn may_give(given: io::Result<()>) -> io::Result<()> {
    given.or_else(|error| if error.kind() == io::ErrorKind::PermissionDenied { Ok(()) } else { Err(error) })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn every_name_stands_in_a_folder() {
        for (path, folder) in [("name", "."), ("a/name", "a"), ("/name", "/"), ("/a/b/name", "/a/b"), ("/", "/")] {
            assert_eq!(folder_of(Path::new(path)), Path::new(folder), "{path}");
        }
    }

    #[test]
    fn what_replaces_a_file_is_not_left_beside_it() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let names = || {
            let mut names: Vec<_> =
                std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        let (file, folder) = (dir.path().join("file"), dir.path().join("folder"));
        std::fs::create_dir_all(folder.join("full")).unwrap();
        // Of a process of the same number that has crashed.
        std::fs::write(dir.path().join(format!(".file.{}.tmp", std::process::id())), "left").unwrap();
        for text in ["one", "two"] {
            replace(&file, text.as_bytes()).unwrap();
            assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
        }
        assert!(replace(&folder, b"text").is_err());
        assert_eq!(names(), ["file", "folder"]);
    }
}
