//! `tarn reshard` and `tarn compact`: every key, time, function and database is what it was; what is interrupted leaves the old
//! data.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use common::resp::Client;
use common::rng::{Rng, seed_from};
use common::server::{Kind, Server};
use common::tool::{done, tarn};

const NAMED: [&str; 2] = ["--namespaces", "yes"];

/// One of each kind that has elements.
const OF_LONG_KEYS: [&str; 7] = [
    "SETRANGE KEY 300000 end",
    "RPUSH KEY a b c",
    "SADD KEY a b c",
    "ZADD KEY 1 a 2 b",
    "XADD KEY 1-1 f v",
    "HSET KEY a 1 b 2",
    "HSETEX KEY PX 95000000 FIELDS 1 a 1",
];

fn fill(client: &mut Client) {
    let long = "k".repeat(1500);
    for database in ["0", "5", "users"] {
        client.call(&format!("SELECT {database}"));
        for n in 0..300 {
            client.call(&format!("SET key{n} value{n}"));
            client.call(&format!("HSET hash{n} a 1 b {n}"));
        }
        for command in [
            "SET timed v EX 100000",
            "HPEXPIRE hash1 95000000 FIELDS 1 a",
            "RPUSH list a b c d e",
            "LPUSH list z",
            "SADD set a b c d",
            "ZADD zset 1 a 2 b -inf c",
            "XADD stream 1-1 f v",
            "XADD stream 1-2 f v",
            "XGROUP CREATE stream group 0",
            "XREADGROUP GROUP group consumer COUNT 1 STREAMS stream >",
            "SETRANGE big 300000 end",
            "PFADD hll a b c",
            "SET {tag}1 a",
            "SET {tag}2 b",
        ] {
            let reply = client.call(command);
            assert!(!reply.is_error(), "{command}: {reply:?}");
        }
        client.try_call(&["SET", &long, "long"]).unwrap();
        client.try_call(&["SADD", "longs", &long, "short"]).unwrap();
        // In elements' records, too, such keys stand shortened, and say nothing of their shard.
        for (n, command) in OF_LONG_KEYS.iter().enumerate() {
            let key = format!("{n}{long}");
            for command in [command.replace("KEY", &key), format!("EXPIRE {key} 100000")] {
                let reply = client.call(&command);
                assert!(!reply.is_error(), "{}: {reply:?}", &command[..20]);
            }
        }
        let scores: Vec<String> = (0..2000).flat_map(|n| [n.to_string(), format!("member{n}")]).collect();
        let ranked: Vec<&str> = ["ZADD", "ranked"].into_iter().chain(scores.iter().map(String::as_str)).collect();
        client.try_call(&ranked).unwrap();
        client.call("DEL key7 hash7");
    }
    client.call("SELECT 9");
    client.call("SET gone x");
    client.call("FLUSHDB");
    client
        .try_call(&["FUNCTION", "LOAD", "#!lua name=lib\nredis.register_function('f', function() return 7 end)"])
        .unwrap();
}

/// Everything that clients can see: by database and key, value and times.
fn seen(client: &mut Client) -> BTreeMap<(String, Vec<u8>), String> {
    let mut all = BTreeMap::new();
    for database in ["0", "5", "9", "users"] {
        client.call(&format!("SELECT {database}"));
        let keys = client.call("KEYS *");
        assert_eq!(client.call("DBSIZE").int(), Some(keys.items().len() as i64));
        for key in keys.items() {
            let key = key.bytes().unwrap();
            let mut ask = |args: &[&[u8]]| format!("{:?} ", client.try_call(args).unwrap());
            let mut value = ask(&[b"DUMP", key]) + &ask(&[b"PEXPIRETIME", key]);
            if key == b"hash1" {
                value += &ask(&[b"HPEXPIRETIME", key, b"FIELDS", b"2", b"a", b"b"]);
            }
            if key == b"ranked" {
                value += &ask(&[b"ZRANK", key, b"member1234"]);
            }
            all.insert((database.to_owned(), key.to_vec()), value);
        }
    }
    assert_eq!(client.call("FCALL f 0").int(), Some(7));
    all
}

/// A server on a directory, which is put into its place and back.
fn on<R>(dir: &Path, use_it: impl FnOnce(&mut Server) -> R) -> R {
    let mut server = Server::prepare(Kind::Tarn, &NAMED).unwrap();
    let data = server.dir().join("data");
    fs::rename(dir, &data).unwrap();
    server.begin();
    let result = use_it(&mut server);
    server.stop();
    fs::rename(&data, dir).unwrap();
    result
}

/// A directory of four shards, killed or stopped, and what is in it.
fn made(folder: &Path, kill: bool) -> (PathBuf, BTreeMap<(String, Vec<u8>), String>) {
    let mut server = Server::tarn(&[&NAMED[..], &["--shards", "4"]].concat());
    let mut client = server.client();
    fill(&mut client);
    client.call("SAVE");
    client.call("SELECT 0");
    client.call("SET late 1");
    client.call("RPUSH list late");
    let all = seen(&mut client);
    assert!(all.len() > 1500);
    if kill {
        server.kill9();
    } else {
        server.stop();
    }
    let dir = folder.join("data");
    fs::rename(server.dir().join("data"), &dir).unwrap();
    (dir, all)
}

#[test]
fn another_number_of_shards_holds_the_same() {
    for kill in [false, true] {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (dir, all) = made(folder.path(), kill);
        let text = dir.to_str().unwrap();
        for shards in ["16", "4"] {
            let said = done(&["reshard", text, "--shards", shards]);
            assert!(said.contains(&format!("in {shards} shards instead of")), "{said}");
            done(&["check", text]);
            let old = folder.path().join("data.before-reshard");
            done(&["check", old.to_str().unwrap()]);
            let (ok, said) = tarn(&["reshard", text, "--shards", "4"]);
            assert!(!ok && said.contains("is in the way"), "{said}");
            fs::remove_dir_all(old).unwrap();
            on(&dir, |server| {
                let mut client = server.client();
                assert_eq!(client.info("tarn", "tarn_shards").to_string(), shards);
                assert_eq!(seen(&mut client), all);
                // It goes on as any other: new versions, a flush, a crash.
                client.call("RPUSH fresh a b");
                client.call("SAVE");
                client.call("RPUSH fresh c");
                server.restart_after_kill();
                let mut client = server.client();
                client.call("SELECT users");
                assert_eq!(client.call("LRANGE fresh 0 -1").items().len(), 3);
                client.call("DEL fresh");
                assert_eq!(seen(&mut client), all);
            });
            done(&["check", text]);
        }
    }
}

/// Whenever it ends, the old directory or the new one is there, whole.
#[test]
fn an_interrupted_reshard_leaves_the_data() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (dir, all) = made(folder.path(), true);
    let text = dir.to_str().unwrap();
    let mut rng = Rng(seed_from("TARN_RESHARD_SEED"));
    for _ in 0..6 {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tarn"))
            .args(["reshard", text, "--shards", "8"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(rng.below(600)));
        child.kill().unwrap();
        child.wait().unwrap();
        if !dir.exists() || folder.path().join("data.before-reshard").exists() {
            break;
        }
        done(&["check", text]);
    }
    if !folder.path().join("data.before-reshard").exists() || !dir.exists() {
        done(&["reshard", text, "--shards", "8"]);
    }
    on(&dir, |server| assert_eq!(seen(&mut server.client()), all));
    assert!(!folder.path().join("data.resharding").exists());
}

/// A link stays one, and what users keep beside the data is where they look for it.
#[test]
fn what_is_no_data_stays_in_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let ((dir, _), link) = (made(&disk, false), folder.path().join("link"));
    std::os::unix::fs::symlink(&dir, &link).unwrap();
    fs::write(dir.join("users.acl"), "user default on nopass ~* &* +@all\n").unwrap();
    fs::create_dir_all(dir.join("backups/one")).unwrap();
    done(&["reshard", link.to_str().unwrap(), "--shards", "2"]);
    assert_eq!(fs::read_link(&link).unwrap(), dir);
    assert!(dir.join("users.acl").is_file() && dir.join("backups/one").is_dir());
    on(&dir, |server| assert_eq!(server.client().call("GET late").text(), "1"));
}

/// The moment between the two renamings.
#[test]
fn a_reshard_that_ended_between_its_renamings_is_completed() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (dir, all) = made(folder.path(), false);
    let text = dir.to_str().unwrap();
    done(&["reshard", text, "--shards", "8"]);
    fs::rename(&dir, folder.path().join("data.resharding")).unwrap();
    // What users keep beside the data is still where it was.
    fs::write(folder.path().join("data.before-reshard/users.acl"), "user default on nopass ~* &* +@all\n").unwrap();
    let said = done(&["reshard", text, "--shards", "8"]);
    assert!(said.contains("was whole already"), "{said}");
    assert!(dir.join("users.acl").is_file());
    on(&dir, |server| assert_eq!(seen(&mut server.client()), all));
}

#[test]
fn what_cannot_be_resharded_is_refused() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for args in [&["reshard", "--shards", "4"][..], &["compact"], &["check"]] {
        let (ok, said) = tarn(&[args, &[folder.path().to_str().unwrap()]].concat());
        assert!(!ok && said.contains("holds no data of tarn"), "{args:?}: {said}");
    }
    let (dir, _) = made(folder.path(), false);
    let (ok, said) = tarn(&["reshard", dir.to_str().unwrap(), "--shards", "0"]);
    assert!(!ok && said.contains("between 1 and 1024"), "{said}");
    // In the words of a server that is to have so many.
    for shards in ["3", "2000"] {
        let (_, of_server) = tarn(&["--shards", shards, "--dir", dir.to_str().unwrap(), "--port", "0"]);
        let (ok, said) = tarn(&["reshard", dir.to_str().unwrap(), "--shards", shards]);
        assert!(!ok && said.contains("argument must be ") && said == of_server, "{said} | {of_server}");
    }
    let (ok, said) = tarn(&["--shards", "64", "--dir", dir.to_str().unwrap(), "--port", "0"]);
    assert!(!ok && said.contains("tarn reshard"), "{said}");
    done(&["check", dir.to_str().unwrap()]);
    on(&dir, |server| {
        let data = server.dir().join("data");
        for args in [&["reshard", "--shards", "4"][..], &["compact"], &["check"]] {
            let (ok, said) = tarn(&[args, &[data.to_str().unwrap()]].concat());
            assert!(!ok && said.contains("is in use by another server"), "{args:?}: {said}");
        }
    });
}

#[test]
fn a_compacted_directory_holds_the_same_in_less() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut server = Server::tarn(&[&NAMED[..], &["--shards", "2"]].concat());
    let mut client = server.client();
    // Two runs in each partition, which nothing would merge yet.
    for n in 0..200 {
        client.call(&format!("SET junk{n} {}", "x".repeat(500)));
    }
    client.call("SAVE");
    for n in 0..200 {
        client.call(&format!("SET junk{n} short"));
    }
    fill(&mut client);
    let all = seen(&mut client);
    server.stop();
    let dir = folder.path().join("data");
    fs::rename(server.dir().join("data"), &dir).unwrap();
    let said = done(&["compact", dir.to_str().unwrap()]);
    let numbers: Vec<u64> = said.split(' ').filter_map(|word| word.trim().parse().ok()).collect();
    assert!(numbers[1] < numbers[0], "{said}");
    done(&["check", dir.to_str().unwrap()]);
    on(&dir, |server| assert_eq!(seen(&mut server.client()), all));
}
