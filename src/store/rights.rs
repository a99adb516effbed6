//! Whose a data directory is, and who may look at it: what a tool makes of it is no less and no more.
//!
//! The folder itself is one thing, what lies in it another: that belongs to whom the superblock belongs, whose server must write it.
//! Only root gives anything away; what anybody else makes is theirs.

use std::fs::{self, Metadata, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, lchown};
use std::path::Path;

use super::error::{Result, StoreError};
use super::{OWN_NAMES, lock, superblock};
use crate::util::path::may_give;

const BITS: u32 = 0o7777;

/// Makes `new`, which is to stand in the place of the data directory or backup `old`, or beside it, belong to the same, with the same
/// rights. What has nothing in its place in `old` gets no right that its folder lacks.
///
/// # Errors
/// Those of the system.
pub fn take_after(new: &Path, old: &Path) -> Result {
    let (folder, data) = owners(old)?;
    let mode = folder.mode() & BITS;
    let all = || {
        give(new, &fs::symlink_metadata(new)?, &folder, mode)?;
        for entry in fs::read_dir(new)? {
            let name = entry?.file_name();
            adopt(&new.join(&name), &old.join(&name), &data, mode)?;
        }
        Ok(())
    };
    all().map_err(StoreError::io("give rights to", new))
}

/// Gives what was made in a data directory to whom the data belong.
///
/// # Errors
/// Those of the system.
pub fn hand_over(dir: &Path) -> Result {
    let (folder, data) = owners(dir)?;
    // Without data what bears these names may be anything; but who has locked the folder has made that file.
    let names = if dir.join(superblock::FILE_NAME).exists() { &OWN_NAMES[..] } else { &[lock::FILE_NAME] };
    for name in names {
        let path = dir.join(name);
        match adopt(&path, &path, &data, folder.mode() & BITS) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(StoreError::io("give rights to", &path)(error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether a file belongs to whom the data belong, or are to.
///
/// # Errors
/// Those of the system.
pub fn is_owner(dir: &Path, file: &Path) -> Result<bool> {
    let (_, data) = owners(dir)?;
    let found = file.metadata().map_err(StoreError::io("look at", file))?;
    Ok((found.uid(), found.gid()) == (data.uid(), data.gid()))
}

/// What says whose the folder is, and whose the data in it.
fn owners(dir: &Path) -> Result<(Metadata, Metadata)> {
    let folder = dir.metadata().map_err(StoreError::io("look at", dir))?;
    let data = dir.join(superblock::FILE_NAME).metadata().unwrap_or_else(|_| folder.clone());
    Ok((folder, data))
}

/// A file or a folder with all that is in it; `most` are the rights of the folder that it is in.
fn adopt(new: &Path, old: &Path, owner: &Metadata, most: u32) -> io::Result<()> {
    let found = fs::symlink_metadata(new)?;
    // What stands elsewhere, too, as a table does in a backup, is not this one's to change.
    if found.is_symlink() || found.is_file() && found.nlink() > 1 {
        return Ok(());
    }
    let replaced = fs::symlink_metadata(old).ok().filter(|old| old.file_type() == found.file_type());
    let mode = replaced.map_or(found.mode() & most, |old| old.mode()) & BITS;
    give(new, &found, owner, mode)?;
    if found.is_dir() {
        for entry in fs::read_dir(new)? {
            let name = entry?.file_name();
            adopt(&new.join(&name), &old.join(&name), owner, mode)?;
        }
    }
    Ok(())
}

fn give(path: &Path, found: &Metadata, owner: &Metadata, mode: u32) -> io::Result<()> {
    // What is a third one's has been so before.
    let is_ours = found.uid() == 0 || found.uid() == owner.uid();
    if is_ours && (found.uid(), found.gid()) != (owner.uid(), owner.gid()) {
        may_give(lchown(path, Some(owner.uid()), Some(owner.gid())))?;
    }
    if found.mode() & BITS != mode {
        fs::set_permissions(path, Permissions::from_mode(mode))?;
    }
    Ok(())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A table may be a backup's, too, and what a symbolic link leads to anybody's.
    #[test]
    fn what_stands_elsewhere_too_keeps_its_rights() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let [old, new, of_others] = ["old", "new", "of-others"].map(|name| dir.path().join(name));
        let inner = new.join("inner");
        for folder in [&old, &new, &of_others, &inner] {
            fs::create_dir(folder).unwrap();
        }
        let set_mode = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & BITS;
        set_mode(&old, 0o700);
        let [own, linked, led_to] = [new.join("own"), of_others.join("linked"), of_others.join("led-to")];
        let deep = inner.join("deep");
        for file in [&own, &linked, &led_to, &deep] {
            fs::write(file, "x").unwrap();
            set_mode(file, 0o644);
        }
        fs::hard_link(&linked, new.join("table")).unwrap();
        symlink(&led_to, new.join("link")).unwrap();
        take_after(&new, &old).unwrap();
        assert_eq!([&new, &own, &linked, &led_to].map(|path| mode(path)), [0o700, 0o600, 0o644, 0o644]);
        assert_eq!([&inner, &deep].map(|path| mode(path)), [0o700, 0o600], "and what is within it");
    }

    /// Only root may give anything away.
    #[test]
    fn what_is_a_third_ones_stays_his() {
        let dir = crate::util::scratch::tempdir().unwrap();
        if dir.path().metadata().unwrap().uid() != 0 {
            return;
        }
        let [old, new] = ["old", "new"].map(|name| dir.path().join(name));
        for folder in [&old, &new] {
            fs::create_dir(folder).unwrap();
        }
        lchown(&old, Some(1000), Some(1001)).unwrap();
        for (name, owner, expected) in [
            ("made by root", (0, 0), (1000, 1001)),
            ("of the same user", (1000, 7), (1000, 1001)),
            ("of another", (2000, 2001), (2000, 2001)),
        ] {
            let file = new.join(name);
            fs::write(&file, "x").unwrap();
            lchown(&file, Some(owner.0), Some(owner.1)).unwrap();
            take_after(&new, &old).unwrap();
            let found = fs::metadata(&file).unwrap();
            assert_eq!((found.uid(), found.gid()), expected, "{name}");
        }
    }
}
