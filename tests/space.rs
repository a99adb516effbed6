//! Room on the disk, on a small file system: who adds is refused before it is full, who removes goes on, and nothing that was
//! acknowledged is lost.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::resp::Client;
use common::rng::Rng;
use common::server::{Kind, Server, notice};
use common::wait::until;

const OOM: &str = "OOM command not allowed when used memory > 'maxmemory'.";

/// A file system of its own in memory, while this lives.
struct Small {
    dir: tempfile::TempDir,
}

impl Small {
    /// `None` where this user may not mount one.
    fn mount(megabytes: u32) -> Option<Small> {
        let dir = tempfile::tempdir().unwrap();
        let size = format!("size={megabytes}m");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(dir.path()).output();
        if mounted.is_ok_and(|output| output.status.success()) {
            return Some(Small { dir });
        }
        notice("skipped: no file system can be mounted here to fill it");
        None
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.dir.path()).status();
    }
}

fn start(data: &Path, more: &[&str]) -> Server {
    let args = ["--dir", data.to_str().unwrap(), "--shards", "2", "--maxmemory", "64mb"];
    Server::start(Kind::Tarn, &[&args[..], more].concat()).unwrap()
}

/// A value that no compression makes smaller.
fn value(rng: &mut Rng) -> String {
    (0..250).map(|_| format!("{:04x}", rng.next() as u16)).collect()
}

/// Sets keys until one is refused: those that were acknowledged, and the refusal.
fn fill(client: &mut Client, prefix: &str, rng: &mut Rng, held: &mut BTreeMap<String, String>) -> String {
    for n in 0..1_000_000 {
        let (key, value) = (format!("{prefix}:{n}"), value(rng));
        let said = client.call(&format!("SET {key} {value}")).text();
        if said != "OK" {
            return said;
        }
        held.insert(key, value);
    }
    panic!("never full");
}

fn assert_holds(client: &mut Client, held: &BTreeMap<String, String>) {
    assert_eq!(client.call("DBSIZE").int(), Some(held.len() as i64));
    for (key, value) in held {
        assert_eq!(client.call(&format!("GET {key}")).text(), *value, "{key}");
    }
}

/// Removes every other key.
fn thin_out(client: &mut Client, held: &mut BTreeMap<String, String>) {
    let keys: Vec<String> = held.keys().step_by(2).cloned().collect();
    for key in keys {
        assert_eq!(client.call(&format!("DEL {key}")).int(), Some(1), "{key}");
        held.remove(&key);
    }
}

fn accepts(client: &mut Client) -> bool {
    client.call("SET probe x").text() == "OK" && client.call("DEL probe").int() == Some(1)
}

#[test]
fn additions_are_refused_before_the_disk_is_full() {
    let Some(small) = Small::mount(96) else { return };
    let mut server = start(&small.data(), &["--appendfsync", "no"]);
    let (mut client, mut rng, mut held) = (server.client(), Rng(7), BTreeMap::new());
    client.call("RPUSH list a b c");
    client.call("HSET hash f 1 g 2");
    assert_eq!(fill(&mut client, "a", &mut rng, &mut held), OOM);
    assert!(held.len() > 10_000, "{}", held.len());
    assert!(client.info("tarn", "tarn_disk_free_bytes") > 8 << 20);

    // As Redis beyond its maxmemory. A flush may make room again in between.
    let mut refused = |command: &str| {
        until(command, || client.call(command).text().starts_with("OOM command not allowed"));
    };
    for command in
        ["SET x y", "HSET hash h 3", "RPUSH list d", "SETBIT x 1 1", "EVAL return{redis.call('SET','x',1)} 0"]
    {
        refused(command);
    }
    for (command, reply) in [("LPOP list", "a"), ("HGET hash f", "1"), ("HGETDEL hash FIELDS 1 f", "1")] {
        let said = client.call(command);
        assert_eq!(said.items().first().map_or_else(|| said.text(), |item| item.text()), reply, "{command}");
    }
    for command in ["EXPIRE list 1000", "HDEL hash g", "EVAL return{redis.call('DEL','list')} 0", "PUBLISH a b"] {
        assert!(!client.call(command).is_error(), "{command}");
    }

    // What was acknowledged is there, also for who comes after a crash; what one of the commands above left while there was room
    // is not of it.
    client.call("DEL x hash");
    assert_holds(&mut client, &held);
    drop(client);
    server.restart_after_kill();
    let mut client = server.client();
    assert_holds(&mut client, &held);

    // It goes on by itself once there is room.
    thin_out(&mut client, &mut held);
    until("there is room again", || accepts(&mut client));
    held.insert("more".into(), value(&mut rng));
    let more = held["more"].clone();
    assert_eq!(client.call(&format!("SET more {more}")).text(), "OK");
    assert_holds(&mut client, &held);
}

/// What runs without room: Tarn beyond its `maxdisk` as Redis beyond its `maxmemory`.
#[test]
fn it_is_as_redis_is_beyond_maxmemory() {
    let library = "#!lua name=l\nredis.register_function{function_name='ro',callback=function(k) return redis.call('get',k[1]) end,\
                   flags={'no-writes'}}\nredis.register_function('rw',function(k) return redis.call('set',k[1],'w') end)\n\
                   redis.register_function{function_name='oo',callback=function(k) return redis.call('set',k[1],'w') end,\
                   flags={'allow-oom'}}";
    let commands: &[&[&str]] = &[
        &["SET", "k", "v"],
        &["GET", "k"],
        &["DEL", "none"],
        &["EVAL", "return redis.call('set','k','x')", "1", "k"],
        &["EVAL", "return redis.pcall('set','k','x')", "1", "k"],
        &["EVAL", "return redis.call('get','k')", "1", "k"],
        &["EVAL", "redis.call('del','a') return redis.call('set','k','y')", "2", "k", "a"],
        &["EVAL", "#!lua\nreturn redis.call('get','k')", "1", "k"],
        &["EVAL", "#!lua flags=no-writes\nreturn redis.call('get','k')", "1", "k"],
        &["EVAL", "#!lua flags=allow-oom\nreturn redis.call('set','k','z')", "1", "k"],
        &["EVAL_RO", "return redis.call('get','k')", "1", "k"],
        &["FCALL", "ro", "1", "k"],
        &["FCALL", "rw", "1", "k"],
        &["FCALL", "oo", "1", "k"],
        &["FCALL_RO", "ro", "1", "k"],
        &["MULTI"],
        &["SET", "k", "v"],
        &["EXEC"],
        &["MULTI"],
        &["DEL", "none"],
        &["GET", "k"],
        &["EXEC"],
        &["EXPIRE", "k", "100"],
        &["LPOP", "none"],
        &["PUBLISH", "a", "b"],
        &["COPY", "k", "k2"],
        &["SORT", "none", "STORE", "k2"],
    ];
    let replies = |kind: Kind, limit: &str| -> Option<Vec<String>> {
        let server = Server::start(kind, &[])?;
        let (mut client, mut other) = (server.client(), server.client());
        assert_eq!(client.try_call(&["FUNCTION", "LOAD", library]).unwrap().text(), "l");
        client.call("SET k v");
        client.call("SET a b");
        client.call(&format!("CONFIG SET {limit}"));
        until("there is no room", || client.call("SET x y").is_error());
        let mut replies: Vec<_> =
            commands.iter().map(|command| format!("{command:?} {:?}", client.try_call(command).unwrap())).collect();
        // Queued while there was room.
        client.call(&format!("CONFIG SET {} 0", limit.split(' ').next().unwrap()));
        until("there is room", || !client.call("SET x y").is_error());
        client.call("MULTI");
        client.call("SET k v");
        other.call(&format!("CONFIG SET {limit}"));
        until("there is no room", || other.call("SET x y").is_error());
        replies.push(format!("{:?}", client.call("EXEC")));
        replies.push(format!("{:?}", client.call("EXEC")));
        Some(replies)
    };
    let tarn = replies(Kind::Tarn, "maxdisk 1").unwrap();
    match replies(Kind::Redis82, "maxmemory 100000") {
        Some(redis) => assert_eq!(tarn, redis),
        None => notice("skipped: no redis 8.2 on this machine to compare with"),
    }
}

#[test]
fn expiry_makes_room() {
    let Some(small) = Small::mount(96) else { return };
    let server = start(&small.data(), &["--appendfsync", "no"]);
    let (mut client, mut rng) = (server.client(), Rng(8));
    let mut said = String::new();
    for n in 0..1_000_000 {
        said = client.call(&format!("SET k:{n} {} PX 8000", value(&mut rng))).text();
        if said != "OK" {
            break;
        }
    }
    assert_eq!(said, OOM);
    until("all has expired", || client.call("DBSIZE").int() == Some(0));
    until("there is room again", || accepts(&mut client));
}

/// Without a reserve the disk does get full: the error is another, and it is as before as soon as somebody makes room.
#[test]
fn a_full_disk_is_a_failure_to_write_and_passes() {
    let Some(small) = Small::mount(64) else { return };
    let mut server = start(&small.data(), &["--appendfsync", "always", "--disk-reserve", "0"]);
    let ballast = small.dir.path().join("ballast");
    std::fs::write(&ballast, vec![1; 24 << 20]).unwrap();
    let (mut client, mut rng, mut held) = (server.client(), Rng(9), BTreeMap::new());
    let said = fill(&mut client, "a", &mut rng, &mut held);
    assert!(said.starts_with("MISCONF Errors writing to the AOF file: "), "{said}");
    std::fs::remove_file(&ballast).unwrap();
    until("writes go on", || accepts(&mut client));
    // The write that failed may have taken place, as after a lost connection.
    client.call(&format!("DEL a:{}", held.len()));
    assert_holds(&mut client, &held);
    drop(client);
    server.restart_after_kill();
    assert_holds(&mut server.client(), &held);
}

#[test]
fn a_reserve_counts_as_soon_as_it_is_set() {
    let Some(small) = Small::mount(96) else { return };
    let server = start(&small.data(), &["--disk-reserve", "0"]);
    let mut client = server.client();
    // Less stays free than the quarter that can be reserved at most.
    std::fs::write(small.dir.path().join("ballast"), vec![1; 76 << 20]).unwrap();
    assert!(accepts(&mut client));
    assert_eq!(client.call("CONFIG SET disk-reserve 1gb").text(), "OK");
    until("there is no room", || client.call("SET x y").text() == OOM);
    assert_eq!(client.call("CONFIG SET disk-reserve 0").text(), "OK");
    until("there is room", || accepts(&mut client));
}

#[test]
fn maxdisk_bounds_log_and_store() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--maxdisk", "32mb", "--disk-reserve", "0", "--appendfsync", "no"];
    let server = start(&dir.path().join("data"), &args);
    let (mut client, mut rng, mut held) = (server.client(), Rng(10), BTreeMap::new());
    // A flush makes room where the log held what the store holds in less.
    let mut said = String::new();
    for round in 0..100 {
        said = fill(&mut client, &format!("r{round}"), &mut rng, &mut held);
        assert_eq!(said, OOM);
        if held.len() > 24_000 {
            break;
        }
        until("the flush is over", || accepts(&mut client) || client.info("tarn", "tarn_dirty_bytes") == 0);
        if !accepts(&mut client) {
            break;
        }
    }
    assert_eq!(said, OOM);
    assert!(held.len() > 16_000, "{}", held.len());
    let bytes = client.info("tarn", "tarn_disk_bytes");
    assert!(bytes < 64 << 20, "{bytes}");
    assert_holds(&mut client, &held);

    assert_eq!(client.call("CONFIG SET maxdisk 64mb").text(), "OK");
    until("there is room", || accepts(&mut client));
    assert_eq!(client.call("CONFIG SET maxdisk 1mb").text(), "OK");
    until("there is none", || client.call("SET x y").text() == OOM);
    assert_eq!(client.call("FLUSHALL").text(), "OK");
    until("there is room", || accepts(&mut client));
}
