//! Whoever runs a tool on a data directory: what lies there afterwards belongs to whom the directory belongs, and nobody may see
//! more of it than before. Owners are looked at where the tests run as root, who alone gives anything away.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use common::server::Server;
use common::tool::done;

/// Somebody whom the system does not know.
const OTHER: (u32, u32) = (54_321, 54_322);

fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

/// Everything in a folder, and itself.
fn all_of(dir: &Path) -> Vec<PathBuf> {
    let mut all = vec![dir.to_owned()];
    let mut next = 0;
    while let Some(path) = all.get(next).cloned() {
        next += 1;
        if path.is_dir() {
            all.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    all
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn give_away(dir: &Path) {
    for path in all_of(dir).iter().filter(|_| is_root()) {
        chown(path, Some(OTHER.0), Some(OTHER.1)).unwrap();
    }
}

/// All of it is the other's.
fn assert_others(dir: &Path, after: &str) {
    for path in all_of(dir).iter().filter(|_| is_root()) {
        let found = fs::metadata(path).unwrap();
        assert_eq!((found.uid(), found.gid()), OTHER, "{} after {after}", path.display());
    }
}

/// A data directory that was not closed, with rights of its own.
fn made(folder: &Path) -> PathBuf {
    let mut server = Server::tarn(&["--shards", "2"]);
    let mut client = server.client();
    client.call("RPUSH list a b c");
    client.call("SAVE");
    client.call("SET late 1");
    server.kill9();
    let dir = folder.join("data");
    fs::rename(server.dir().join("data"), &dir).unwrap();
    for (name, mode) in [("", 0o710), ("log", 0o750), ("store", 0o700), ("SUPERBLOCK", 0o640)] {
        set_mode(&dir.join(name), mode);
    }
    give_away(&dir);
    dir
}

#[test]
fn what_tools_leave_belongs_to_whom_the_directory_belongs() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let dir = made(folder.path());
    let (text, file) = (dir.to_str().unwrap(), folder.path().join("dump.rdb"));
    let file = file.to_str().unwrap();
    let assert_kept = |after: &str| {
        assert_others(&dir, after);
        let modes = ["", "log", "store", "SUPERBLOCK"].map(|name| mode(&dir.join(name)));
        assert_eq!(modes, [0o710, 0o750, 0o700, 0o640], "{after}");
    };
    done(&["check", text]);
    assert_kept("check");
    fs::remove_file(dir.join("CHECKPOINT")).unwrap();
    done(&["check", "--repair", text]);
    assert_kept("check --repair");
    fs::write(file, "an older one").unwrap();
    set_mode(Path::new(file), 0o600);
    done(&["export", file, "--dir", text]);
    assert_kept("export");
    assert_eq!(mode(Path::new(file)), 0o600, "a file that is replaced");
    done(&["compact", text]);
    assert_kept("compact");
    done(&["reshard", text, "--shards", "4"]);
    assert_kept("reshard");
    done(&["import", file, "--replace", "--dir", text]);
    assert_kept("import --replace");
    done(&["check", text]);
}

#[test]
fn a_backup_and_what_is_restored_have_the_rights_of_the_data() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let backups = folder.path().join("backups");
    let server = Server::tarn(&["--shards", "2", "--backup-dir", backups.to_str().unwrap()]);
    server.client().call("SET key value");
    set_mode(&server.dir().join("data"), 0o710);
    let port = server.port().to_string();
    done(&["backup", "--port", &port, "create", "daily"]);
    let daily = backups.join("daily");
    assert_eq!(mode(&daily), 0o710, "a backup");
    give_away(&daily);
    let (new, there) = (folder.path().join("new"), folder.path().join("there"));
    done(&["restore", daily.to_str().unwrap(), "--dir", new.to_str().unwrap()]);
    assert_others(&new, "restore");
    assert_eq!(mode(&new), 0o710, "as the backup has it");
    fs::create_dir(&there).unwrap();
    set_mode(&there, 0o700);
    let owner = |path: &Path| fs::metadata(path).map(|found| (found.uid(), found.gid())).unwrap();
    let mine = owner(&there);
    done(&["restore", daily.to_str().unwrap(), "--dir", there.to_str().unwrap()]);
    assert_eq!(mode(&there), 0o700, "as the directory was");
    assert!(all_of(&there).iter().all(|path| owner(path) == mine));
    // Tables that were links would have become mine there, too.
    assert_others(&daily, "restore elsewhere");
}
