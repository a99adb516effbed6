//! `tarn import`, `tarn export`, and what SYNC sends, with files that the real servers have written and are to read.
//!
//! Each server is filled with keys of all types, and writes its dump.rdb and its AOF; what Tarn has imported, and what a server
//! has that has loaded what Tarn exports, is compared key by key with what the first server has: value (what DUMP says, decoded; consumer groups and times of fields among it) and time. A
//! machine without those servers says so and passes. `TARN_MIGRATE_KEYS` has more than a few keys.
//!
//! [`by_hand`] has files made by hand: damaged ones, and such as no server of today writes.

#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;

mod by_hand;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use by_hand::small_file;
use common::resp::{Client, Value as Reply, encode};
use common::rng::Rng;
use common::server::{Kind, Server, notice};
use common::wait::until;
use tarn::rdb::{Field, Value, decode};

const REAL: [Kind; 3] = [Kind::Redis70, Kind::Redis82, Kind::Valkey];

fn keys() -> u64 {
    std::env::var("TARN_MIGRATE_KEYS").map_or(300, |keys| keys.parse().unwrap())
}

/// Commands that are sent before their replies are read.
const AT_ONCE: usize = 500;

/// Commands on their way to a server, many at once.
struct Pipe {
    client: Client,
    out: Vec<u8>,
    sent: usize,
}

impl Pipe {
    fn new(server: &Server) -> Pipe {
        let mut client = server.client();
        // SAVE of a million keys takes its time.
        client.set_timeout(Duration::from_secs(600));
        Pipe { client, out: Vec::new(), sent: 0 }
    }

    fn send<A: AsRef<[u8]>>(&mut self, args: &[A]) {
        self.out.extend(encode(args));
        self.sent += 1;
        if self.sent == AT_ONCE {
            self.replies();
        }
    }

    fn replies(&mut self) -> Vec<Reply> {
        self.client.send_raw(&std::mem::take(&mut self.out)).unwrap();
        let replies: Vec<_> = (0..std::mem::take(&mut self.sent))
            .map(|_| self.client.read().unwrap_or_else(|e| panic!("{e:?}")))
            .collect();
        assert!(replies.iter().all(|reply| !reply.is_error()), "{replies:?}");
        replies
    }

    fn call(&mut self, command: &str) {
        self.send(&command.split(' ').collect::<Vec<_>>());
    }
}

/// Fills a server: of each twenty keys ten are strings, the others of the other types.
fn fill(pipe: &mut Pipe, kind: Kind, keys: u64) {
    let mut rng = Rng(7);
    for n in 0..keys {
        let key = format!("key:{n}");
        let some = |rng: &mut Rng, most: u64, of: &dyn Fn(u64) -> Vec<String>| -> Vec<String> {
            (0..1 + rng.below(most)).flat_map(of).collect()
        };
        let add = |pipe: &mut Pipe, name: &str, args: Vec<String>| {
            pipe.send(&[vec![name.to_owned(), key.clone()], args].concat());
        };
        match n % 20 {
            0..3 => add(pipe, "SET", vec![n.to_string()]),
            3..10 => add(pipe, "SET", vec!["ab".repeat(rng.below(200) as usize)]),
            10 => add(pipe, "RPUSH", some(&mut rng, 30, &|n| vec![n.to_string(), format!("e{n}")])),
            11 => add(pipe, "SADD", some(&mut rng, 20, &|n| vec![(n * 1000).to_string()])),
            12 => add(pipe, "SADD", some(&mut rng, 200, &|n| vec![format!("m{n}")])),
            13 => add(pipe, "ZADD", some(&mut rng, 200, &|n| vec![format!("{n}.5"), format!("m{n}")])),
            14 | 15 => add(pipe, "HSET", some(&mut rng, 20, &|n| vec![format!("f{n}"), n.to_string()])),
            16 => {
                add(pipe, "HSET", some(&mut rng, 200, &|n| vec![format!("f{n}"), n.to_string()]));
                if kind != Kind::Redis70 {
                    pipe.call(&format!("HPEXPIREAT {key} {} FIELDS 1 f0", 2_000_000_000_000 + n));
                }
            }
            17 => fill_stream(pipe, &key, &mut rng),
            18 => add(pipe, "SETBIT", vec![rng.below(1000).to_string(), "1".to_owned()]),
            _ => add(pipe, "PFADD", some(&mut rng, 200, &|n| vec![format!("h{n}")])),
        }
        if n % 7 == 0 {
            pipe.call(&format!("PEXPIREAT {key} {}", 1_900_000_000_000 + n));
        }
    }
    fill_big(pipe);
    pipe.call("SELECT 3");
    pipe.call("SET other db");
    pipe.call("SELECT 0");
    let code = "#!lua name=lib\nredis.register_function('f', function() return 1 end)";
    pipe.send(&["FUNCTION", "LOAD", code]);
    pipe.replies();
}

fn fill_stream(pipe: &mut Pipe, key: &str, rng: &mut Rng) {
    for n in 1..2 + rng.below(10) {
        pipe.call(&format!("XADD {key} {n}-1 a {n} b x"));
    }
    pipe.call(&format!("XGROUP CREATE {key} g 0"));
    pipe.call(&format!("XREADGROUP GROUP g c1 COUNT 3 STREAMS {key} >"));
    pipe.call(&format!("XREADGROUP GROUP g c2 COUNT 1 STREAMS {key} >"));
    pipe.call(&format!("XDEL {key} 1-1"));
    pipe.call(&format!("XGROUP CREATE {key} g2 $"));
    pipe.call(&format!("XGROUP CREATECONSUMER {key} g2 idle"));
}

/// Values that come piece by piece.
fn fill_big(pipe: &mut Pipe) {
    let mut rng = Rng(3);
    let noise: Vec<u8> = (0..700_000).map(|_| rng.next() as u8).collect();
    pipe.send(&[&b"SET"[..], b"big:noise", &noise]);
    pipe.send(&["SET".to_owned(), "big:repeats".to_owned(), "abcdefg".repeat(300_000)]);
    // Keys that stand shortened in Tarn's records.
    let long = "k".repeat(1500);
    for command in ["RPUSH list: a b", "SADD set: a b", "ZADD zset: 1 a 2 b", "HSET hash: a 1", "XADD stream: 1-1 a b"]
    {
        let command = command.replace(": ", &format!(":{long} "));
        pipe.call(&command);
        pipe.call(&format!("PEXPIREAT {} 1900000000000", command.split(' ').nth(1).unwrap_or_default()));
    }
    let many = |name: &str, key: &str, of: &dyn Fn(u64) -> Vec<String>| -> Vec<String> {
        [vec![name.to_owned(), key.to_owned()], (0..25_000).flat_map(of).collect()].concat()
    };
    pipe.send(&many("RPUSH", "big:list", &|n| vec![format!("element-{n}")]));
    pipe.send(&many("SADD", "big:set", &|n| vec![format!("member-{n}")]));
    pipe.send(&many("ZADD", "big:zset", &|n| vec![n.to_string(), format!("member-{n}")]));
    pipe.send(&many("HSET", "big:hash", &|n| vec![format!("field-{n}"), n.to_string()]));
    for n in 1..5_000 {
        pipe.send(&[
            "XADD",
            "big:stream",
            &format!("{n}-1"),
            "name",
            &format!("value of entry {n} {}", "x".repeat(40)),
        ]);
    }
    for key in ["big:repeats", "big:list", "big:set", "big:zset", "big:hash", "big:stream"] {
        pipe.call(&format!("PEXPIREAT {key} 1900000000000"));
    }
    pipe.call("XGROUP CREATE big:stream g 0");
    pipe.call("XREADGROUP GROUP g c COUNT 2000 STREAMS big:stream >");
}

/// A key with its time and value.
type Entry = (Vec<u8>, i64, Value);

/// The names of all keys in a database, in order.
fn names(pipe: &mut Pipe, db: u32) -> Vec<Vec<u8>> {
    pipe.call(&format!("SELECT {db}"));
    pipe.replies();
    let (mut cursor, mut all) = (b"0".to_vec(), Vec::new());
    loop {
        let reply = pipe.client.try_call(&[&b"SCAN"[..], &cursor, b"COUNT", b"1000"]).unwrap();
        cursor = reply.items()[0].bytes().unwrap().to_vec();
        all.extend(reply.items()[1].items().iter().map(|key| key.bytes().unwrap().to_vec()));
        if cursor == b"0" {
            break;
        }
    }
    all.sort();
    all.dedup();
    all
}

/// What these keys hold, in an order that only content decides.
fn entries(pipe: &mut Pipe, names: &[Vec<u8>]) -> Vec<Entry> {
    let mut ask = |command: &str| -> Vec<_> {
        let ask = |some: &[Vec<u8>]| {
            some.iter().for_each(|key| pipe.send(&[command.as_bytes(), key]));
            pipe.replies()
        };
        names.chunks(AT_ONCE - 1).flat_map(ask).collect()
    };
    let (times, dumps) = (ask("PEXPIRETIME"), ask("DUMP"));
    let of = |((key, time), dump): ((&Vec<u8>, Reply), Reply)| {
        // It may have expired since.
        Some((key.clone(), time.int()?, normal(decode(dump.bytes()?, 0).unwrap())))
    };
    names.iter().zip(times).zip(dumps).filter_map(of).collect()
}

/// Everything that a server has in a database.
fn content(server: &Server, db: u32) -> Vec<Entry> {
    let mut pipe = Pipe::new(server);
    let names = names(&mut pipe, db);
    entries(&mut pipe, &names)
}

/// Two servers have the same in a database, but for what `forget` removes. However much it is, little is held at a time.
fn assert_same_content(one: &Server, other: &Server, db: u32, what: &str, forget: impl Fn(&mut Value)) {
    let (mut one, mut other) = (Pipe::new(one), Pipe::new(other));
    let all = names(&mut one, db);
    let others = names(&mut other, db);
    assert!(all == others, "{what}: {} keys and {}", all.len(), others.len());
    for some in all.chunks(AT_ONCE - 1) {
        let [one, other] = [&mut one, &mut other].map(|pipe| {
            let mut entries = entries(pipe, some);
            entries.iter_mut().for_each(|(_, _, value)| forget(value));
            entries
        });
        assert_same(&one, &other, what);
    }
}

fn forget_nothing(_: &mut Value) {}

/// A value with its elements in order.
fn normal(mut value: Value) -> Value {
    match &mut value {
        Value::Set(members) => members.sort(),
        Value::Zset(members) => members.sort_by(|a, b| a.0.cmp(&b.0)),
        Value::Hash(fields) => fields.sort_by(|a, b| a.name.cmp(&b.name)),
        Value::Stream(stream) => {
            stream.groups.sort_by(|a, b| a.name.cmp(&b.name));
            for group in &mut stream.groups {
                let names: Vec<_> = group.consumers.iter().map(|consumer| consumer.name.clone()).collect();
                group.consumers.sort_by(|a, b| a.name.cmp(&b.name));
                let place = |name: &[u8]| group.consumers.iter().position(|consumer| consumer.name == name).unwrap();
                group.pending.iter_mut().for_each(|entry| entry.consumer = place(&names[entry.consumer]));
            }
        }
        Value::String(_) | Value::List(_) => {}
    }
    value
}

fn assert_same(one: &[Entry], other: &[Entry], what: &str) {
    for (one, other) in one.iter().zip(other) {
        let short = |value| format!("{value:?}").chars().take(300).collect::<String>();
        assert!(one == other, "{what}: {} differs: {} and {}", one.0.escape_ascii(), short(one), short(other));
    }
    assert_eq!(one.len(), other.len(), "{what}");
}

fn import(files: &[&Path], dir: &Path, options: &[&str]) -> Output {
    let mut command = Command::new(Kind::Tarn.binary().unwrap());
    command.arg("import").args(files).arg("--dir").arg(dir).args(options).output().unwrap()
}

fn assert_imported(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// A Tarn that is not started yet, and its data directory.
fn tarn() -> (Server, PathBuf) {
    let server = Server::prepare(Kind::Tarn, &[]).unwrap();
    let dir = server.dir().join("data");
    (server, dir)
}

/// Starts it. Somebody else may have got its port by now: the data was worked on since it was found free.
fn start(server: &mut Server) {
    server.begin();
}

fn folder(server: &Server) -> PathBuf {
    let reply = server.client().call("CONFIG GET dir");
    PathBuf::from(String::from_utf8(reply.items()[1].bytes().unwrap().to_vec()).unwrap())
}

fn real(kind: Kind, args: &[&str]) -> Option<Server> {
    let server = Server::start(kind, args);
    if server.is_none() {
        notice(&format!("skipped: no {} on this machine to import from", kind.title()));
    }
    server
}

#[test]
fn what_real_servers_save_is_imported() {
    for kind in REAL {
        let Some(server) = real(kind, &["--save", "", "--list-compress-depth", "1"]) else { continue };
        let mut pipe = Pipe::new(&server);
        fill(&mut pipe, kind, keys());
        pipe.call("SAVE");
        pipe.replies();
        let (mut tarn, dir) = tarn();
        let report = assert_imported(&import(&[&folder(&server).join("dump.rdb")], &dir, &[]));
        assert!(report.contains("1 libraries of functions"), "{report}");
        let whole = Command::new(Kind::Tarn.binary().unwrap()).arg("check").arg(&dir).output().unwrap();
        assert!(whole.status.success(), "{}", String::from_utf8_lossy(&whole.stdout));
        start(&mut tarn);
        for db in [0, 3] {
            assert_same_content(&server, &tarn, db, kind.title(), forget_nothing);
        }
        let mut client = tarn.client();
        assert_eq!(client.call("FCALL f 0").int(), Some(1));
        assert_eq!(client.call("DBSIZE").int(), Some(names(&mut Pipe::new(&tarn), 0).len() as i64));
        // What only the log holds is exported, too.
        tarn.kill9();
        let Some((again, told)) = exported(&dir, kind) else { continue };
        assert!(!told.contains("left out"), "{told}");
        for db in [0, 3] {
            assert_same_content(&server, &again, db, kind.title(), forget_nothing);
        }
        assert_eq!(again.client().call("FCALL f 0").int(), Some(1));
    }
}

/// A real server that has loaded what Tarn exports for it, and what Tarn says of that.
fn exported(dir: &Path, kind: Kind) -> Option<(Server, String)> {
    let mut server = Server::prepare(kind, &["--save", ""])?;
    let data = server.dir().join("data");
    std::fs::create_dir_all(&data).unwrap();
    let target = match kind {
        Kind::Redis70 => "redis-7.0",
        Kind::Redis82 => "redis-8.2",
        _ => "valkey-9",
    };
    let mut command = Command::new(Kind::Tarn.binary().unwrap());
    command.arg("export").arg(data.join("dump.rdb")).args(["--for", target, "--dir"]).arg(dir);
    let told = assert_imported(&command.output().unwrap());
    start(&mut server);
    Some((server, told))
}

#[test]
fn what_is_in_the_way_of_an_export_stays() {
    let (tarn, dir) = tarn();
    let (from, to) = (tarn.dir().join("file.rdb"), tarn.dir().join("out.rdb"));
    std::fs::write(&from, small_file()).unwrap();
    assert_imported(&import(&[&from], &dir, &[]));
    let export = || {
        let mut command = Command::new(Kind::Tarn.binary().unwrap());
        command.arg("export").arg(&to).args(["--for", "redis-7.0", "--dir"]).arg(&dir).output().unwrap()
    };
    let aside = tarn.dir().join("out.rdb.new");
    std::fs::write(&aside, "mine").unwrap();
    let refused = export();
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && told.contains("out.rdb.new is in the way"), "{told}");
    assert_eq!(std::fs::read(&aside).unwrap(), b"mine");
    std::fs::remove_file(&aside).unwrap();
    // A link to a device: what it names is not asked to take a file, nor is the link lost.
    std::os::unix::fs::symlink("/dev/null", &to).unwrap();
    let refused = export();
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && told.contains("out.rdb is there and is no file"), "{told}");
    assert!(to.is_symlink() && !aside.exists());
    std::fs::remove_file(&to).unwrap();
    let report = assert_imported(&export());
    assert!(report.starts_with("50 keys") && !aside.exists(), "{report}");
    assert_eq!(strings(&std::fs::read(&to).unwrap()).len(), 50);
}

#[test]
fn what_a_server_cannot_have_is_told() {
    let (mut tarn, dir) = tarn();
    start(&mut tarn);
    let mut pipe = Pipe::new(&tarn);
    for command in [
        "HSET hash a 1 b 2 c 3",
        "HPEXPIREAT hash 1900000000000 FIELDS 2 a b",
        "XADD stream 1-1 a b",
        "XGROUP CREATE stream g 0",
        "XGROUP CREATECONSUMER stream g c",
        "SETRANGE zeros 200000 x",
        "SET gone x PX 1",
    ] {
        pipe.call(command);
    }
    pipe.replies();
    while tarn.client().call("EXISTS gone").int() != Some(0) {}
    let before = content(&tarn, 0);
    tarn.stop();
    for kind in REAL {
        let Some((server, told)) = exported(&dir, kind) else { continue };
        assert_eq!(content(&server, 0) == before, kind != Kind::Redis70, "{}", kind.title());
        if kind == Kind::Redis70 {
            assert!(told.contains("2 times of hash fields (of 'hash' first)"), "{told}");
            assert!(told.contains("1 times at which consumers were last active (of 'stream' first)"), "{told}");
            assert_eq!(server.client().call("HLEN hash").int(), Some(3));
        }
    }
}

/// What no client has seen for long is in no file, nor what no other server has a place for, which is told.
#[test]
fn what_has_ended_and_databases_with_names_are_not_exported() {
    // Forms in which elements are not counted, or one name stands for two.
    let forms = ["set", "hash", "zset"].map(|kind| [format!("--{kind}-encode-version"), "1".to_owned()]).concat();
    let args = ["--namespaces", "yes", "--enable-debug-command", "yes"];
    let args: Vec<&str> = args.into_iter().chain(forms.iter().map(String::as_str)).collect();
    let mut tarn = Server::tarn(&args);
    let mut client = tarn.client();
    for command in [
        "DEBUG SET-ACTIVE-EXPIRE 0",
        "SET text v",
        "SETRANGE long 99999 v",
        // All zeros: none of it is stored.
        "BITOP AND zeros text long",
        "DEL long",
        "SADD set a b",
        "HSET hash b 2",
        "ZADD zset 1 a-member-that-is-long",
        "HSET half a 1 b 2",
        "HPEXPIRE half 1 FIELDS 1 a",
        "HSETEX none PX 1 FIELDS 1 a 1",
        "SET gone v PX 1",
        "SELECT users",
        "MSET one 1 two 2",
        "SELECT 0",
    ] {
        assert!(!client.call(command).is_error(), "{command}");
    }
    for look in ["HGET half a", "HGET none a", "GET gone"] {
        until("it has ended", || client.call(look).is_nil());
    }
    tarn.stop();
    let file = tarn.dir().join("out.rdb");
    let mut command = Command::new(Kind::Tarn.binary().unwrap());
    command.arg("export").arg(&file).args(["--for", "redis-8.2", "--dir"]).arg(tarn.dir().join("data"));
    let told = assert_imported(&command.output().unwrap());
    assert!(told.starts_with("6 keys, "), "{told}");
    assert!(told.contains("left out: 2 keys of databases whose names are no numbers (of 'users' first)"), "{told}");
    let b = Value::Hash(vec![Field { name: b"b".to_vec(), value: b"2".to_vec(), expire_ms: 0 }]);
    let expected = [
        ("half", b.clone()),
        ("hash", b),
        ("set", Value::Set(vec![b"a".to_vec(), b"b".to_vec()])),
        ("text", Value::String(b"v".to_vec())),
        ("zeros", Value::String(vec![0; 100_000])),
        ("zset", Value::Zset(vec![(b"a-member-that-is-long".to_vec(), 1.0)])),
    ];
    let expected = expected.map(|(key, value)| (key.as_bytes().to_vec(), value));
    assert_eq!(values(&std::fs::read(&file).unwrap()), expected.into());
}

#[test]
fn what_real_servers_append_is_imported() {
    // Bases of both kinds.
    for (kind, preamble) in REAL.into_iter().zip(["no", "yes", "no"]) {
        {
            // Rewritten when it is asked for, and not by itself.
            let args = format!("--appendonly yes --auto-aof-rewrite-percentage 0 --aof-use-rdb-preamble {preamble}");
            let args: Vec<&str> = args.split(' ').chain(["--save", ""]).collect();
            let Some(server) = real(kind, &args) else { continue };
            let mut pipe = Pipe::new(&server);
            fill(&mut pipe, kind, keys());
            pipe.call("BGREWRITEAOF");
            pipe.replies();
            while server.client().info("persistence", "aof_rewrite_in_progress") != 0
                || server.client().info("persistence", "aof_rewrite_scheduled") != 0
            {
                std::thread::sleep(Duration::from_millis(20));
            }
            for command in ["SET late 1", "MULTI", "INCR late", "SELECT 3", "SET x y", "EXEC", "EXPIRE x 100000"] {
                pipe.call(command);
            }
            pipe.replies();
            let (mut tarn, dir) = tarn();
            let appended = folder(&server).join("appendonlydir");
            assert_imported(&import(&[&appended], &dir, &[]));
            start(&mut tarn);
            for db in [0, 3] {
                assert_same_content(&server, &tarn, db, kind.title(), forget_times);
            }
        }
    }
}

/// An AOF does not say when consumers were last seen, and Redis does not claim from it what has been deleted.
fn forget_times(value: &mut Value) {
    if let Value::Stream(stream) = value {
        let ids: std::collections::HashSet<_> = stream.entries.iter().map(|entry| entry.id).collect();
        for group in &mut stream.groups {
            group.pending.retain(|entry| ids.contains(&entry.id));
            group.consumers.iter_mut().for_each(|consumer| (consumer.seen_ms, consumer.active_ms) = (0, 0));
        }
    }
}

/// Fetches everything, as tools do: with a mark at its end, or with its length in front.
fn fetch(server: &Server, marks_end: bool) -> Vec<u8> {
    use std::io::{Read as _, Write as _};
    let mut socket = std::net::TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    let begin = if marks_end { "REPLCONF capa eof\r\nPSYNC ? -1\r\n" } else { "REPLCONF capa psync2\r\nSYNC\r\n" };
    socket.write_all(begin.as_bytes()).unwrap();
    // The server closes behind it.
    let mut all = Vec::new();
    socket.read_to_end(&mut all).unwrap();
    let mut rest = &all[..];
    let mut line = || {
        let end = rest.iter().position(|byte| *byte == b'\n').unwrap();
        let (line, behind) = rest.split_at(end + 1);
        rest = behind;
        String::from_utf8_lossy(line).trim().to_owned()
    };
    assert_eq!(line(), "+OK");
    if marks_end {
        assert!(line().starts_with("+FULLRESYNC "));
    }
    let mut head = line();
    while head.is_empty() {
        head = line();
    }
    match head.strip_prefix("$EOF:") {
        Some(mark) => {
            assert!(marks_end, "it has not said that it knows marks");
            rest.strip_suffix(mark.as_bytes()).unwrap().to_vec()
        }
        None => {
            assert_eq!(head, format!("${}", rest.len()));
            rest.to_vec()
        }
    }
}

/// The small values in a file.
fn values(bytes: &[u8]) -> BTreeMap<Vec<u8>, Value> {
    use tarn::rdb::file::{Bounds, Input, Item, Reader, decode};
    let mut reader = Reader::new(Input::new(bytes), Bounds::default()).unwrap();
    let mut all = BTreeMap::new();
    loop {
        match reader.next_item().unwrap() {
            Item::End => return all,
            Item::Key(key) => {
                let version = reader.version();
                if let Some(bytes) = reader.whole(key.tag).unwrap() {
                    all.insert(key.key, decode(key.tag, version, bytes, 1 << 20).unwrap());
                }
            }
            _ => {}
        }
    }
}

/// The strings among them.
fn strings(bytes: &[u8]) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let string = |(key, value)| if let Value::String(text) = value { Some((key, text)) } else { None };
    values(bytes).into_iter().filter_map(string).collect()
}

/// What is fetched is of one moment, over all shards, while others write: no half of a command is in it, and what one client
/// has written in order is there up to some point.
#[test]
fn what_is_fetched_is_of_one_moment() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let server = Server::tarn(&[]);
    // In both forms, before somebody writes until the end of it.
    assert!([true, false].iter().all(|marks_end| strings(&fetch(&server, *marks_end)).is_empty()));
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = || {
            let (mut client, mut n) = (server.client(), 0u64);
            while !ended.load(Ordering::Relaxed) {
                n += 1;
                let (pair, value) = (n % 50, n.to_string());
                let [a, b] = ["a", "b"].map(|half| format!("pair:{pair}:{half}"));
                assert!(!client.try_call(&["MSET", &a, &value, &b, &value]).unwrap().is_error());
                assert!(!client.try_call(&["SET", &format!("serial:{n}"), &value]).unwrap().is_error());
            }
        };
        scope.spawn(writer);
        for round in 0..4 {
            let all = strings(&fetch(&server, round % 2 == 0));
            let mut serials = 0;
            for (key, value) in &all {
                let key = String::from_utf8_lossy(key);
                if let Some(pair) = key.strip_suffix(":a") {
                    assert_eq!(Some(value), all.get(format!("{pair}:b").as_bytes()), "{key} in round {round}");
                }
                serials += u64::from(key.starts_with("serial:"));
            }
            let last =
                all.keys().filter_map(|key| String::from_utf8_lossy(key).strip_prefix("serial:")?.parse().ok()).max();
            assert_eq!(last.unwrap_or(0), serials, "round {round}");
        }
        ended.store(true, Ordering::Relaxed);
    });
    let mut client = server.client();
    client.call("MULTI");
    assert!(client.call("SYNC").is_error());
    assert!(server.client().call("REPLCONF nosuch 1").is_error());
    assert!(server.client().call("REPLCONF listening-port").is_error());
}

/// Files that are sent at once.
const MOST_FILES: usize = 4;

/// More than sockets hold, and nothing that compression makes smaller.
fn fill_beyond_sockets(server: &Server) {
    const BYTES: usize = 1 << 20;
    let (mut pipe, mut rng) = (Pipe::new(server), Rng(1));
    for n in 0..24u8 {
        let value: Vec<u8> = (0..BYTES / 8).flat_map(|_| rng.next().to_le_bytes()).collect();
        pipe.send(&[&b"SET"[..], &[n], &value]);
    }
    pipe.replies();
}

fn begun(client: &mut Client) -> bool {
    client.call("PSYNC ? -1").text().starts_with("FULLRESYNC ")
}

/// Those whose peers do not read are under way for as long.
#[test]
fn few_files_are_sent_at_once() {
    let server = Server::tarn(&[]);
    fill_beyond_sockets(&server);
    let mut under_way: Vec<Client> = (0..MOST_FILES).map(|_| server.client()).collect();
    assert!(under_way.iter_mut().all(begun));
    assert_eq!(server.client().call("PSYNC ? -1").text(), "ERR too many files are being sent");
    under_way.pop();
    until("another may begin", || begun(&mut server.client()));
}

/// Not even as long as their connections live.
#[test]
fn who_is_refused_a_file_takes_no_place() {
    let server = Server::tarn(&[]);
    fill_beyond_sockets(&server);
    let mut refused: Vec<Client> = (0..2 * MOST_FILES).map(|_| server.client()).collect();
    for client in &mut refused {
        assert_eq!(client.call("PSYNC ? x").text(), "ERR value is not an integer or out of range");
    }
    let mut under_way: Vec<Client> = (0..MOST_FILES).map(|_| server.client()).collect();
    assert!(under_way.iter_mut().all(begun));
}

/// Whoever takes nothing of it for long has no place any more, nor a connection.
#[test]
fn who_does_not_read_a_file_is_closed() {
    let server = Server::tarn(&["--repl-timeout", "1"]);
    fill_beyond_sockets(&server);
    let mut silent: Vec<Client> = (0..MOST_FILES).map(|_| server.client()).collect();
    assert!(silent.iter_mut().all(begun));
    let mut other = server.client();
    until("all of them are closed", || other.call("CLIENT LIST").text().lines().count() == 1);
    until("another finds a place", || begun(&mut server.client()));
}

/// The tool that most people fetch a file with, and a real server that reads it.
#[test]
fn redis_cli_fetches_a_file() {
    let Some(mut real) = Server::prepare(Kind::Redis82, &["--save", ""]) else { return };
    let server = Server::tarn(&[]);
    let mut pipe = Pipe::new(&server);
    fill(&mut pipe, Kind::Redis82, 100);
    let data = real.dir().join("data");
    std::fs::create_dir_all(&data).unwrap();
    let (port, file) = (server.port().to_string(), data.join("dump.rdb"));
    let output = Command::new("redis-cli").args(["-p", &port, "--rdb"]).arg(&file).output();
    let Ok(output) = output else { return notice("skipped: no redis-cli on this machine") };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    start(&mut real);
    for db in [0, 3] {
        assert_same(&content(&server, db), &content(&real, db), "redis-cli --rdb");
    }
}

/// Keys go to a real server and come back, by MIGRATE of either side; what goes wrong is told in Redis's words.
#[test]
fn keys_migrate_both_ways() {
    let server = Server::tarn(&[]);
    for kind in [Kind::Redis70, Kind::Redis82] {
        let Some(other) = real(kind, &["--requirepass", "sesame"]) else { continue };
        let mut pipe = Pipe::new(&server);
        pipe.call("FLUSHALL");
        pipe.call("FUNCTION FLUSH");
        fill(&mut pipe, Kind::Redis70, 60);
        // Redis 7.0 has no form for consumers that were never active.
        let all_of = |server: &Server| -> Vec<_> {
            let all = content(server, 0).into_iter();
            let all = all.filter(|(_, _, value)| kind != Kind::Redis70 || !matches!(value, Value::Stream(_)));
            // What is sent is how long a key still lives: on its way that becomes another time.
            all.map(|(key, time, value)| (key, i64::from(time > 0), value)).collect()
        };
        let before = all_of(&server);
        let (mut ours, mut theirs) = (server.client(), other.client());
        theirs.call("AUTH sesame");
        let names =
            before.iter().map(|(key, ..)| String::from_utf8_lossy(key).into_owned()).collect::<Vec<_>>().join(" ");
        let to = |port: u16, rest: &str| format!("MIGRATE 127.0.0.1 {port} {rest}");
        let text = |reply: Reply| String::from_utf8_lossy(reply.bytes().unwrap_or_default()).into_owned();
        let refused = ours.call(&to(other.port(), "key:0 0 20000"));
        assert!(
            refused.is_error() && refused.text().contains("Target instance replied with error: NOAUTH"),
            "{}",
            refused.text()
        );
        assert_eq!(text(ours.call(&to(other.port(), "nosuch 0 20000 AUTH sesame"))), "NOKEY");
        let all = ours.try_call(
            &[
                &to(other.port(), "").split_whitespace().collect::<Vec<_>>()[..],
                &["", "0", "60000", "AUTH2", "default", "sesame", "KEYS"],
                &names.split(' ').collect::<Vec<_>>()[..],
            ]
            .concat(),
        );
        assert_eq!(text(all.unwrap()), "OK", "{}", server.output());
        assert!(before.iter().all(|(key, ..)| ours.try_call(&[&b"EXISTS"[..], key]).unwrap().int() == Some(0)));
        for (key, ..) in &before {
            let key = String::from_utf8_lossy(key).into_owned();
            assert_eq!(text(theirs.call(&to(server.port(), &format!("{key} 0 60000")))), "OK", "{key}");
        }
        let after = all_of(&server);
        assert_same(&before, &after, kind.title());
        assert_eq!(text(ours.call(&to(other.port(), "key:0 0 20000 COPY AUTH sesame"))), "OK");
        let busy = ours.call(&to(other.port(), "key:0 0 20000 AUTH sesame"));
        assert!(busy.is_error() && busy.text().contains("BUSYKEY"), "{}", busy.text());
        assert_eq!(text(ours.call(&to(other.port(), "key:0 0 20000 REPLACE AUTH sesame"))), "OK");
        assert_eq!(ours.call("EXISTS key:0").int(), Some(0));
    }
    let mut client = server.client();
    client.call("SET a 1");
    let gone = client.call("MIGRATE 127.0.0.1 1 a 0 1000");
    assert!(
        gone.is_error() && gone.text().contains("IOERR error or timeout writing to target instance"),
        "{}",
        gone.text()
    );
    client.call("MULTI");
    client.call("MIGRATE 127.0.0.1 1 a 0 1000");
    assert!(client.call("EXEC").items()[0].is_error());
    assert_eq!(client.call("GET a").bytes(), Some(&b"1"[..]));
}

/// A server that is silent is waited for as long as the client has said, but not beyond the client, nor this server.
#[test]
fn nobody_waits_for_a_silent_server_who_does_not_want_to() {
    let mut server = Server::tarn(&[]);
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let mut client = server.client();
    client.call("SET a 1");
    let begin = || {
        let mut moves = server.client();
        let id = moves.call("CLIENT ID").int().unwrap();
        let call = format!("MIGRATE 127.0.0.1 {port} a 0 3600000");
        moves.send_raw(&encode(&call.split(' ').collect::<Vec<_>>())).unwrap();
        (moves, silent.accept().unwrap(), id)
    };
    let (_moves, _peer, id) = begin();
    // This waits for the key.
    let mut writer = server.client();
    writer.send_raw(&encode(&["SET", "a", "2"])).unwrap();
    assert_eq!(client.call(&format!("CLIENT KILL ID {id}")).int(), Some(1));
    assert_eq!(writer.read().unwrap().text(), "OK");
    let (_moves, _peer, _) = begin();
    assert_eq!(server.stop(), Some(0));
    start(&mut server);
    assert_eq!(server.client().call("GET a").bytes(), Some(&b"2"[..]));
}

/// What the other server has taken is its own, though it is gone before it has all.
#[test]
fn keys_that_were_taken_are_gone_though_the_talk_ends_early() {
    use std::io::{BufRead as _, BufReader, Write as _};
    let server = Server::tarn(&[]);
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap().port();
    let peer = std::thread::spawn(move || {
        let (mut socket, _) = other.accept().unwrap();
        let mut lines = BufReader::new(socket.try_clone().unwrap()).split(b'\n').map(Result::unwrap);
        for word in [&b"SELECT\r"[..], b"RESTORE\r"] {
            lines.find(|line| line == word).unwrap();
            socket.write_all(b"+OK\r\n").unwrap();
        }
        // With the second key it is gone.
        lines.find(|line| line == b"RESTORE\r").unwrap();
    });
    let mut client = server.client();
    client.call("MSET a 1 b 2 c 3");
    let ended = client.try_call(&["MIGRATE", "127.0.0.1", &port.to_string(), "", "0", "20000", "KEYS", "a", "b", "c"]);
    let ended = ended.unwrap().text();
    assert!(ended.starts_with("IOERR error or timeout "), "{ended}");
    peer.join().unwrap();
    assert_eq!(["a", "b", "c"].map(|key| client.call(&format!("EXISTS {key}")).int()), [Some(0), Some(1), Some(1)]);
}
