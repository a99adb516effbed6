//! Backups of a running server: restored elsewhere they are the data of one moment, whatever was written meanwhile; what was
//! interrupted is no backup.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::resp::Client;
use common::rng::{Rng, seed_from};
use common::server::{Kind, Server};
use common::tool::{done, tarn};

const ACCOUNTS: u64 = 100;
const EACH: i64 = 1000;
const SMALL: [&str; 8] = ["--maxmemory", "32mb", "--dirty-budget", "1mb", "--block-cache-size", "1mb", "--shards", "8"];

/// A server with a folder for backups, which is on the same file system.
fn server(folder: &Path, args: &[&str]) -> Server {
    Server::tarn(&[&SMALL[..], &["--backup-dir", folder.to_str().unwrap()], args].concat())
}

fn backup(server: &Server, ask: &[&str]) -> (bool, String) {
    tarn(&[&["backup", "--port", &server.port().to_string()][..], ask].concat())
}

/// A server on a restored backup.
fn restored(folder: &Path, name: &str) -> Server {
    let mut server = Server::prepare(Kind::Tarn, &SMALL).unwrap();
    let data = server.dir().join("data");
    done(&["restore", name, "--backup-dir", folder.to_str().unwrap(), "--dir", data.to_str().unwrap()]);
    done(&["check", data.to_str().unwrap()]);
    server.begin();
    server
}

fn transfer(client: &mut Client, rng: &mut Rng) {
    let (from, to) = (rng.below(ACCOUNTS), rng.below(ACCOUNTS));
    let moved = 1 + rng.below(9) as i64;
    client.call("MULTI");
    client.call(&format!("HINCRBY account{from} amount -{moved}"));
    client.call(&format!("HINCRBY account{to} amount {moved}"));
    client.call(&format!("SET last{from} {}", "x".repeat(2000)));
    assert_eq!(client.call("EXEC").items().len(), 3);
}

fn sum(client: &mut Client) -> i64 {
    let amount = |n| client.call(&format!("HGET account{n} amount")).text().parse::<i64>().unwrap();
    (0..ACCOUNTS).map(amount).sum()
}

fn open_accounts(client: &mut Client) {
    for n in 0..ACCOUNTS {
        client.call(&format!("HSET account{n} amount {EACH}"));
        client.call(&format!("SET other{n} {}", "y".repeat(20_000)));
    }
    client.call("SET timed v EX 100000");
    client.call("RPUSH list a b c");
    client.call("XADD stream 1-1 f v");
    client
        .try_call(&["FUNCTION", "LOAD", "#!lua name=lib\nredis.register_function('f', function() return 7 end)"])
        .unwrap();
}

/// Backups one after the other under full load: each is of one moment, later ones have at least what was acknowledged before.
#[test]
fn a_backup_under_load_is_of_one_moment() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(folder.path(), &["--log-max-size", "2mb"]);
    open_accounts(&mut server.client());
    let (stop, acknowledged) = (AtomicBool::new(false), AtomicU64::new(0));
    let seed = seed_from("TARN_BACKUP_SEED");
    let mut least = Vec::new();
    std::thread::scope(|scope| {
        for n in 0..3 {
            let (mut client, mut rng, stop) = (server.client(), Rng(seed + n), &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    transfer(&mut client, &mut rng);
                }
            });
        }
        let (mut client, stop_too, count) = (server.client(), &stop, &acknowledged);
        scope.spawn(move || {
            while !stop_too.load(Ordering::Relaxed) {
                count.store(client.call("INCR counter").int().unwrap() as u64, Ordering::SeqCst);
            }
        });
        for n in 0..3 {
            std::thread::sleep(Duration::from_millis(300));
            least.push(acknowledged.load(Ordering::SeqCst));
            let (ok, said) = backup(&server, &["create", &format!("b{n}")]);
            assert!(ok, "{said}");
        }
        stop.store(true, Ordering::Relaxed);
    });
    let most = server.client().call("GET counter").text().parse::<u64>().unwrap();
    for (n, &least) in least.iter().enumerate() {
        let other = restored(folder.path(), &format!("b{n}"));
        let mut client = other.client();
        assert_eq!(sum(&mut client), ACCOUNTS as i64 * EACH, "seed {seed}");
        let counter = client.call("GET counter").text().parse::<u64>().unwrap();
        assert!((least..=most).contains(&counter), "{counter} is not of {least} to {most}");
        assert_eq!(client.call("LRANGE list 0 -1").items().len(), 3);
        assert_eq!(client.call("FCALL f 0").int(), Some(7));
        assert!(client.call("TTL timed").int().unwrap() > 90_000);
        assert_eq!(client.call("DBSIZE").int().unwrap(), client.call("KEYS *").items().len() as i64);
    }
    let mut client = server.client();
    assert!(client.info("tarn", "tarn_backup_bytes_done") >= client.info("tarn", "tarn_backup_bytes"));
}

#[test]
fn names_states_and_errors() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(folder.path(), &[]);
    let mut client = server.client();
    client.call("SET a b");
    for name in ["..", "../x", "/tmp/x", ".x", "a/b", ""] {
        for ask in ["CREATE", "DELETE"] {
            let reply = client.try_call(&["BACKUP", ask, name]).unwrap();
            assert!(reply.text().starts_with("ERR a backup's name has"), "{name}: {reply:?}");
        }
    }
    assert!(client.call("BACKUP LIST").items().is_empty());
    assert_eq!(client.call("BACKUP DELETE none").text(), "ERR no such backup");
    assert_eq!(client.call("BACKUP FOO").text(), "ERR unknown subcommand 'FOO'. Try BACKUP HELP.");
    let (ok, said) = backup(&server, &["create", "one"]);
    assert!(ok && said.contains("backup one is made"), "{said}");
    assert_eq!(client.call("BACKUP CREATE one").text(), "ERR there is a backup of that name already");
    let (_, said) = backup(&server, &["list"]);
    assert!(said.starts_with("one  20") && said.contains("bytes  whole"), "{said}");
    let list = client.call("BACKUP LIST");
    assert_eq!(list.items()[0].items()[3].text(), "whole");
    let target = server.dir().join("target");
    let target = target.to_str().unwrap();
    // From there the name would lead to a backup.
    let beside = folder.path().join("beside");
    fs::create_dir(&beside).unwrap();
    let (ok, said) = tarn(&["restore", "../one", "--backup-dir", beside.to_str().unwrap(), "--dir", target]);
    assert!(!ok && said.contains("a backup's name has"), "{said}");
    fs::remove_dir(&beside).unwrap();
    let (ok, said) = tarn(&["restore", "one", "--dir", target]);
    assert!(!ok && said.contains("a name needs --backup-dir"), "{said}");
    fs::create_dir(folder.path().join("bare")).unwrap();
    assert!(client.call("BACKUP LIST").items()[0].items()[3].text().starts_with("broken: "));
    for name in ["one", "bare"] {
        let (ok, said) = backup(&server, &["delete", name]);
        assert!(ok && said.contains("is removed"), "{said}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    assert!(!backup(&server, &["delete", "one"]).0);

    let without = Server::tarn(&[]);
    for ask in ["CREATE a", "LIST", "DELETE a"] {
        assert_eq!(without.client().call(&format!("BACKUP {ask}")).text(), "ERR backup-dir is not set");
    }
    let reply = client.call("CONFIG SET backup-dir /tmp");
    assert!(reply.text().contains("can't set protected config"), "{reply:?}");
}

#[test]
fn a_password_is_given_by_option_or_environment() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(folder.path(), &["--requirepass", "secret"]);
    let port = server.port().to_string();
    let (ok, said) = tarn(&["backup", "--port", &port, "list"]);
    assert!(!ok && said.contains("NOAUTH"), "{said}");
    done(&["backup", "--port", &port, "--pass", "secret", "create", "a"]);
    let output = Command::new(env!("CARGO_BIN_EXE_tarn"))
        .args(["backup", "--port", &port, "list"])
        .env("REDISCLI_AUTH", "secret")
        .output()
        .unwrap();
    assert!(output.status.success() && output.stdout.starts_with(b"a  "));
    let mut client = server.client();
    client.call("AUTH secret");
    client.call("ACL SETUSER ann on >word +backup");
    let said = done(&["backup", "--port", &port, "--user", "ann", "--pass", "word", "list"]);
    assert!(said.starts_with("a  "), "{said}");
    let (ok, said) = tarn(&["backup", "--port", &port, "--user", "ann", "--pass", "secret", "list"]);
    assert!(!ok && said.contains("WRONGPASS"), "{said}");
}

/// Killed at any moment, the server leaves a backup that is whole, or none.
#[test]
fn an_interrupted_backup_is_not_taken_for_whole() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = server(folder.path(), &[]);
    open_accounts(&mut server.client());
    let mut rng = Rng(seed_from("TARN_BACKUP_SEED"));
    let mut whole = 0;
    for n in 0..12 {
        let name = format!("b{n}");
        let mut client = server.client();
        client.call(&format!("SET round {n}"));
        assert_eq!(client.call(&format!("BACKUP CREATE {name}")).text(), "Backup started");
        std::thread::sleep(Duration::from_millis(rng.below(30 * (n + 1))));
        server.restart_after_kill();
        let list = server.client().call("BACKUP LIST");
        let states: Vec<_> = list.items().iter().map(|line| (line.items()[1].text(), line.items()[3].text())).collect();
        for (found, state) in &states {
            let is_left = *found == name && state == "broken: it was not finished";
            assert!(state == "whole" || is_left, "{found}: {state}");
        }
        if states.iter().any(|(found, state)| *found == name && state == "whole") {
            whole += 1;
            assert_eq!(sum(&mut restored(folder.path(), &name).client()), ACCOUNTS as i64 * EACH);
        } else {
            // The name is free, and what is left of it in nobody's way.
            let (ok, said) = backup(&server, &["create", &name]);
            assert!(ok, "{said}");
            assert_eq!(restored(folder.path(), &name).client().call("GET round").text(), n.to_string());
        }
        assert!(!server.dir().join("data/backup.tmp").exists());
    }
    eprintln!("{whole} of 12 were whole");
}

/// A byte of any file, or a file that is gone: nothing is restored.
#[test]
fn a_damaged_backup_is_not_restored() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(folder.path(), &[]);
    open_accounts(&mut server.client());
    assert!(backup(&server, &["create", "good"]).0);
    let good = folder.path().join("good");
    let mut files = Vec::new();
    let mut folders = vec![good.clone()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() { folders.push(entry) } else { files.push(entry) }
        }
    }
    assert!(files.len() > 20);
    let (target, half) = (folder.path().join("target"), folder.path().join("target.restoring"));
    for file in files.iter().step_by(3).chain([&good.join("MANIFEST"), &good.join("SUPERBLOCK")]) {
        let bytes = fs::read(file).unwrap();
        fs::remove_file(file).unwrap();
        let (ok, _) = tarn(&["restore", good.to_str().unwrap(), "--dir", target.to_str().unwrap()]);
        assert!(!ok && !target.exists() && !half.exists(), "{} is missing", file.display());
        if !bytes.is_empty() {
            let mut changed = bytes.clone();
            changed[bytes.len() / 2] ^= 4;
            fs::write(file, changed).unwrap();
            let (ok, _) = tarn(&["restore", good.to_str().unwrap(), "--dir", target.to_str().unwrap()]);
            assert!(!ok && !target.exists() && !half.exists(), "{} is damaged", file.display());
        }
        fs::write(file, bytes).unwrap();
    }
    // A folder that is there already may be empty.
    fs::create_dir(&target).unwrap();
    done(&["restore", good.to_str().unwrap(), "--dir", target.to_str().unwrap()]);
    let (ok, said) = tarn(&["restore", good.to_str().unwrap(), "--dir", target.to_str().unwrap()]);
    assert!(!ok && said.contains("is there already"), "{said}");
}

/// Copies of the bytes, where there can be no links.
#[test]
fn a_backup_goes_to_another_file_system() {
    let Ok(shm) = tempfile::tempdir_in("/dev/shm") else { return };
    let server = server(shm.path(), &[]);
    open_accounts(&mut server.client());
    let (ok, said) = backup(&server, &["create", "far"]);
    assert!(ok, "{said}");
    assert!(!server.dir().join("data/backup.tmp").exists());
    assert_eq!(sum(&mut restored(shm.path(), "far").client()), ACCOUNTS as i64 * EACH);
}

/// What is linked on the way to another file system does not stay where the way ends.
#[test]
fn a_backup_that_fails_leaves_nothing_in_the_data_directory() {
    let Ok(shm) = tempfile::tempdir_in("/dev/shm") else { return };
    let server = server(shm.path(), &[]);
    open_accounts(&mut server.client());
    assert!(backup(&server, &["create", "first"]).0);
    // It can be linked, and not read.
    let tables = server.dir().join("data/store/keyspaces/1/tables");
    for table in fs::read_dir(tables).unwrap().map(|entry| entry.unwrap().path()) {
        fs::remove_file(&table).unwrap();
        std::os::unix::fs::symlink("nowhere", &table).unwrap();
    }
    let (ok, said) = backup(&server, &["create", "second"]);
    assert!(!ok && said.contains("backup.tmp"), "{said}");
    assert!(!server.dir().join("data/backup.tmp").exists());
    assert!(!shm.path().join(".second.new").exists());
}

/// Where one table can be linked on the way to another file system and another cannot, all are copied.
#[test]
fn tables_of_which_some_cannot_be_linked_are_copied_and_no_link_stays() {
    let Ok(shm) = tempfile::tempdir_in("/dev/shm") else { return };
    let server = server(shm.path(), &[]);
    open_accounts(&mut server.client());
    assert!(backup(&server, &["create", "first"]).0);
    // Those of one partition, which is not the first, lie on a file system of their own.
    let (tables, away) = (server.dir().join("data/store/keyspaces/5/tables"), shm.path().join("tables"));
    fs::create_dir(&away).unwrap();
    for table in fs::read_dir(&tables).unwrap().map(|entry| entry.unwrap().path()) {
        fs::copy(&table, away.join(table.file_name().unwrap())).unwrap();
    }
    assert!(fs::read_dir(&away).unwrap().count() > 0);
    fs::remove_dir_all(&tables).unwrap();
    std::os::unix::fs::symlink(&away, &tables).unwrap();
    let (ok, said) = backup(&server, &["create", "second"]);
    assert!(ok, "{said}");
    assert!(!server.dir().join("data/backup.tmp").exists());
    assert_eq!(sum(&mut restored(shm.path(), "second").client()), ACCOUNTS as i64 * EACH);
}

/// The store's tables are pipes that nobody writes to: it stays in the middle of them.
#[test]
fn a_backup_that_is_being_made_is_listed_and_not_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(folder.path(), &[]);
    let mut client = server.client();
    open_accounts(&mut client);
    assert!(backup(&server, &["create", "first"]).0);
    let tables = server.dir().join("data/store/keyspaces/1/tables");
    for table in fs::read_dir(tables).unwrap().map(|entry| entry.unwrap().path()) {
        fs::remove_file(&table).unwrap();
        assert!(Command::new("mkfifo").arg(&table).status().unwrap().success());
    }
    assert_eq!(client.call("BACKUP CREATE second").text(), "Backup started");
    assert_eq!(client.call("BACKUP DELETE second").text(), "ERR that backup is being made");
    assert_eq!(client.call("BACKUP CREATE third").text(), "ERR backup second is being made");
    let states: Vec<_> =
        client.call("BACKUP LIST").items().iter().map(|line| [1, 3].map(|at| line.items()[at].text())).collect();
    assert_eq!(states, [["first", "whole"], ["second", "running"]]);
    assert_eq!(client.call("BACKUP DELETE first").text(), "OK");
}

/// Who goes down does not wait for a backup, and the backup is none then.
#[test]
fn a_server_goes_down_in_the_middle_of_one() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = server(folder.path(), &[]);
    open_accounts(&mut server.client());
    server.client().call("BACKUP CREATE last");
    let began = Instant::now();
    assert_eq!(server.stop(), Some(0));
    eprintln!("stopped within {:?}", began.elapsed());
    let left: Vec<PathBuf> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    let is_whole = left.iter().all(|path| path.ends_with("last") && path.join("MANIFEST").exists());
    assert!(is_whole, "{left:?}");
}
