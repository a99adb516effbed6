//! `tarn restore NAME | DIR --dir DATA`: makes a data directory of a backup.
//!
//! Everything is put into `DATA.restoring` beside it, tables by hard links where the file system has them, proven there against the
//! manifest, synced, and renamed: DATA is whole or not there. The backup stays as it is. DATA is whose the folder was that was there,
//! else whose the backup is, with the same rights.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::backup::{self, Manifest};
use crate::store::files::is_table;
use crate::store::rights;
use crate::store::superblock::sync_dir;
use crate::util::path::folder_of;
use crate::util::progress::Progress;

use super::Failure;

/// Restores and reports.
pub fn run(backup: &Path, backup_dir: Option<&Path>, dir: &Path) -> ExitCode {
    match restore(backup, backup_dir, dir) {
        Ok(Manifest { name, last_lsn, files, .. }) => {
            let (files, dir) = (files.len(), dir.display());
            let line = format!("restored backup {name}, {files} files, up to record {last_lsn}, to {dir}");
            let _ = writeln!(std::io::stdout(), "{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn restore(backup: &Path, backup_dir: Option<&Path>, dir: &Path) -> Result<Manifest, Failure> {
    let from = find(backup, backup_dir)?;
    let manifest = Manifest::load(&from)?;
    let is_empty = fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_none());
    if dir.exists() && !is_empty {
        return Err(format!("{} is there already, and not empty", dir.display()).into());
    }
    let name = dir.file_name().ok_or_else(|| format!("{} has no name", dir.display()))?;
    let new = dir.with_file_name(format!("{}.restoring", name.to_string_lossy()));
    backup::remove(&new)?;
    let restored = fill(&new, &from, &manifest, if dir.exists() { dir } else { &from }).and_then(|()| {
        let refused = |error| format!("{} cannot be renamed to {}: {error}", new.display(), dir.display());
        Ok(fs::rename(&new, dir).map_err(refused)?)
    });
    if let Err(why) = restored {
        // It may be as large as all of the data; what is in its way goes with the next attempt.
        let _ = backup::remove(&new);
        return Err(why);
    }
    sync_dir(folder_of(dir))?;
    Ok(manifest)
}

/// Makes `new` of the backup `from`, proven and synced. It is to be whose `like` is.
fn fill(new: &Path, from: &Path, manifest: &Manifest, like: &Path) -> Result<(), Failure> {
    fs::create_dir_all(new)?;
    rights::take_after(new, like)?;
    let mut progress = Progress::new("restore", 2 * manifest.size_bytes());
    let mut folders = vec![new.to_owned()];
    for entry in &manifest.files {
        let (source, target) = (from.join(&entry.path), new.join(&entry.path));
        let folder = folder_of(&target).to_owned();
        if !folders.contains(&folder) {
            fs::create_dir_all(&folder)?;
            folders.push(folder);
        }
        if is_table(&source) && rights::is_owner(like, &source)? {
            backup::link_or_copy(&source, &target, &mut |_| Ok(()))?;
        } else if is_table(&source) {
            backup::copy(&source, &target, &mut |_| Ok(()))?;
        } else {
            backup::write_synced(&target, &fs::read(&source)?)?;
        }
        progress.add(entry.size_bytes);
    }
    backup::verify(new, manifest, &mut |more| {
        progress.add(more);
        Ok(())
    })?;
    rights::take_after(new, like)?;
    for folder in folders.iter().rev() {
        sync_dir(folder)?;
    }
    Ok(())
}

/// A folder, or a name in the folder of backups.
fn find(backup: &Path, backup_dir: Option<&Path>) -> Result<PathBuf, Failure> {
    if backup.join(backup::MANIFEST_FILE).is_file() {
        return Ok(backup.to_owned());
    }
    let Some(backup_dir) = backup_dir else {
        return Err(format!("{} holds no backup; a name needs --backup-dir", backup.display()).into());
    };
    let name = backup::valid_name(backup.as_os_str().as_encoded_bytes())?;
    Ok(backup_dir.join(name))
}
