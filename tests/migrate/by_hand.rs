//! Import of files that are made by hand.

use std::process::Output;

use super::{assert_imported, import, start, tarn};
use crate::common::resp::{Value as Reply, encode};
use crate::common::server::{Kind, Server};

/// A small file, as Redis 7.0 writes it, made by hand.
pub(super) fn small_file() -> Vec<u8> {
    let mut file = b"REDIS0010\xfe\x00".to_vec();
    for n in 0..50 {
        file.extend_from_slice(format!("\x00\x05key{n:02}\x05value").as_bytes());
    }
    // No checksum.
    file.push(0xff);
    file.extend_from_slice(&[0; 8]);
    file
}

/// Keys and fields of which some have ended long ago; the big ones come piece by piece.
fn ended_file(head: &[u8]) -> Vec<u8> {
    const PAST_MS: u64 = 1000;
    const FUTURE_MS: u64 = 4_000_000_000_000;
    let long = |len: u32| [&[0x80][..], &len.to_be_bytes()].concat();
    let in_ms = |time: u64| [&b"\xfc"[..], &time.to_le_bytes()].concat();
    let in_s = |time: u32| [&b"\xfd"[..], &time.to_le_bytes()].concat();
    let timed = |name: &str| [&b"\x18"[..], &[name.len() as u8], name.as_bytes(), &PAST_MS.to_le_bytes()].concat();
    // Their times count from the least, which is 1.
    let ended: Vec<u8> = (0..20_000u32)
        .flat_map(|n| {
            let name = format!("field-of-many-{n}");
            [&[1, name.len() as u8][..], name.as_bytes(), b"\x05value"].concat()
        })
        .collect();
    let later = [&b"\x81"[..], &(FUTURE_MS - PAST_MS + 1).to_be_bytes()].concat();
    [
        b"REDIS0012",
        head,
        b"\xfe\x00",
        &in_ms(PAST_MS),
        b"\x00\x04past\x01v",
        &in_s(1),
        b"\x00\x06past:s\x01v",
        &in_ms(FUTURE_MS),
        b"\x00\x06future\x01v",
        &in_s((FUTURE_MS / 1000) as u32),
        b"\x00\x08future:s\x01v",
        &timed("hash"),
        b"\x03\x01\x01a\x011\x00\x01b\x012",
        &later,
        b"\x01c\x013",
        &timed("none"),
        b"\x01\x01\x01a\x011",
        &timed("big:hash"),
        &long(20_001),
        &ended,
        b"\x00\x04last\x01v",
        &timed("big:none"),
        &long(20_000),
        &ended,
        &in_ms(PAST_MS),
        b"\x00\x08big:text",
        &long(300_000),
        &[b'x'; 300_000],
        // No checksum.
        b"\xff\0\0\0\0\0\0\0\0",
    ]
    .concat()
}

fn as_aof(commands: &[&str]) -> Vec<u8> {
    commands.iter().flat_map(|text| encode(&text.split(' ').collect::<Vec<_>>())).collect()
}

/// All texts and numbers of a reply.
fn texts(reply: &Reply) -> Vec<String> {
    let text = |one: &Reply| one.int().map_or_else(|| one.text(), |number| number.to_string());
    reply.items().iter().map(text).collect()
}

#[test]
fn what_has_ended_is_not_imported_from_a_file() {
    let (mut tarn, dir) = tarn();
    let path = tarn.dir().join("file.rdb");
    std::fs::write(&path, [&ended_file(b"")[..], b"behind"].concat()).unwrap();
    let report = assert_imported(&import(&[&path], &dir, &[]));
    assert!(report.starts_with("4 keys, 5 whose time has passed and that were left out read in "), "{report}");
    assert!(report.contains("holds 4 keys\n") && report.contains("bytes behind the end of the file"), "{report}");
    start(&mut tarn);
    let mut client = tarn.client();
    assert_eq!(client.call("DBSIZE").int(), Some(4));
    assert_eq!(client.call("PEXPIRETIME future").int(), Some(4_000_000_000_000));
    assert_eq!(client.call("PEXPIRETIME future:s").int(), Some(4_000_000_000_000));
    assert_eq!(texts(&client.call("HMGET hash a b c")), ["", "2", "3"]);
    assert_eq!(texts(&client.call("HPEXPIRETIME hash FIELDS 3 a b c")), ["-2", "-1", "4000000000000"]);
    assert_eq!(texts(&client.call("HGETALL big:hash")), ["last", "v"]);
}

/// The commands behind the base of an AOF may be about what has ended since; what they say that fails is told.
#[test]
fn what_had_not_ended_for_the_commands_of_an_aof_is_there_for_them() {
    let (mut tarn, dir) = tarn();
    let path = tarn.dir().join("file.aof");
    let commands = [
        "PERSIST past",
        "HPERSIST hash FIELDS 1 a",
        "HPERSIST none FIELDS 1 a",
        "HPERSIST big:hash FIELDS 1 field-of-many-7",
        "PERSIST big:text",
        "INCR hash",
        "HSET hash d 4",
    ];
    // Made long after: nothing passes while it is loaded.
    let head = b"\xfa\x08aof-base\x011\xfa\x05ctime\x0a1700000000\xf5\x18#!lua name=bad\nnonsense(";
    let comment = b"#TS:1700000000\r\n".to_vec();
    std::fs::write(&path, [ended_file(head), as_aof(&commands[..3]), comment, as_aof(&commands[3..])].concat())
        .unwrap();
    let report = assert_imported(&import(&[&path], &dir, &[]));
    assert!(report.starts_with("9 keys, 7 commands read in "), "{report}");
    assert!(report.contains("\n1 × INCR: WRONGTYPE Operation against a key"), "{report}");
    assert!(report.contains("\n1 × library of functions '#!lua name=bad', left out: ERR "), "{report}");
    start(&mut tarn);
    let mut client = tarn.client();
    assert_eq!(texts(&client.call("MGET past past:s future")), ["v", "", "v"]);
    assert_eq!(texts(&client.call("HMGET hash a b c d")), ["1", "2", "3", "4"]);
    assert_eq!(texts(&client.call("HMGET big:hash field-of-many-7 field-of-many-8 last")), ["value", "", "v"]);
    assert_eq!(texts(&client.call("HGETALL none")), ["a", "1"]);
    assert_eq!(client.call("STRLEN big:text").int(), Some(300_000));
}

/// Whatever the file itself says.
#[test]
fn a_base_is_what_a_manifest_calls_so() {
    let (mut tarn, dir) = tarn();
    let folder = tarn.dir().join("appendonlydir");
    std::fs::create_dir(&folder).unwrap();
    let manifest = b"file base.rdb seq 1 type b\nfile incr.aof seq 1 type i\n".to_vec();
    let files = [("base.rdb", ended_file(b"")), ("incr.aof", as_aof(&["PERSIST past"])), ("aof.manifest", manifest)];
    files.iter().for_each(|(name, bytes)| std::fs::write(folder.join(name), bytes).unwrap());
    assert_imported(&import(&[&folder], &dir, &[]));
    start(&mut tarn);
    assert_eq!(texts(&tarn.client().call("MGET past past:s")), ["v", ""]);
}

/// A time that has passed passes when a server runs; one that is told from now on counts from the base, as does what is noted of
/// when consumers were seen.
#[test]
fn nothing_of_an_aof_ends_before_all_of_it_is_read() {
    const BASE_S: i64 = 1_700_000_000;
    let (mut tarn, dir) = tarn();
    let path = tarn.dir().join("file.aof");
    let head = [
        &b"REDIS0011\xfa\x08aof-base\x011\xfa\x05ctime\x0a"[..],
        BASE_S.to_string().as_bytes(),
        b"\xff\0\0\0\0\0\0\0\0",
    ]
    .concat();
    let commands = [
        "SET kept v PXAT 1000",
        "APPEND kept w",
        "PERSIST kept",
        "SET moved v",
        "PEXPIREAT moved 1000",
        "RENAME moved renamed",
        "PEXPIREAT renamed 4000000000000",
        "HSET hash a 1 b 2",
        "HPEXPIREAT hash 1000 FIELDS 1 a",
        "HINCRBY hash a 1",
        "HPERSIST hash FIELDS 1 a",
        "HSETEX hash PXAT 1000 FIELDS 1 c 3",
        "HPERSIST hash FIELDS 1 c",
        "SET gone v PXAT 1000",
        "GETEX gone PXAT 2000",
        "SETEX later 1000000000 v",
        "XADD stream 1-1 f v",
        "XGROUP CREATE stream group 0",
        "XGROUP CREATECONSUMER stream group idle",
        "MULTI",
        "XCLAIM stream group busy 0 1-1 TIME 1750000000000 RETRYCOUNT 7 FORCE JUSTID LASTID 1-1",
        "EXEC",
        "PEXPIREAT stream 4000000000000",
        "XGROUP CREATE stream ahead 0",
        "XCLAIM stream ahead early 0 1-1 TIME 9000000000000 FORCE",
        "SETEX last 1000000000 v",
    ];
    std::fs::write(&path, [head, as_aof(&commands)].concat()).unwrap();
    let report = assert_imported(&import(&[&path], &dir, &[]));
    assert!(!report.contains('×'), "{report}");
    start(&mut tarn);
    let mut client = tarn.client();
    assert_eq!(texts(&client.call("MGET kept moved renamed gone later")), ["vw", "", "v", "", "v"]);
    assert_eq!(texts(&client.call("HMGET hash a b c")), ["2", "2", "3"]);
    assert_eq!(client.call("EXPIRETIME later").int(), Some(BASE_S + 1_000_000_000));
    assert!(client.call("TTL last").int().unwrap() <= 1_000_000_000, "the time of a claim may not be ahead");
    let idle = |reply: Reply| -> Vec<i64> {
        reply.items().iter().map(|one| one.items().iter().filter_map(Reply::int).nth(1).unwrap()).collect()
    };
    let now_ms = || tarn::util::time::now_ms() as i64;
    let (before, seen, after) = (now_ms(), idle(client.call("XINFO CONSUMERS stream group")), now_ms());
    // `busy` and `idle`, in this order.
    let when = [1_750_000_000_000, BASE_S * 1000];
    for (idle_ms, at_ms) in seen.iter().zip(when) {
        assert!((before - at_ms..=after - at_ms).contains(idle_ms), "{seen:?}");
    }
    assert_eq!(seen.len(), 2);
}

/// A database that there is not is named, and nothing is left of what was begun.
#[test]
fn databases_that_a_file_has_and_a_server_has_not_are_named() {
    let (tarn, dir) = tarn();
    let (rdb, aof) = (tarn.dir().join("file.rdb"), tarn.dir().join("file.aof"));
    std::fs::write(&rdb, b"REDIS0012\xfe\x14\x00\x01k\x01v\xff\0\0\0\0\0\0\0\0").unwrap();
    std::fs::write(&aof, as_aof(&["SET a 1", "SELECT 20", "SET a 2"])).unwrap();
    for (file, words) in
        [(&rdb, "at offset 9: database 20 is not among `databases`: --databases 21"), (&aof, "--databases")]
    {
        let output = import(&[file], &dir, &[]);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && told.contains(words), "{told}");
        assert!(!dir.join("SUPERBLOCK").exists() && !dir.join("import.new").exists());
    }
    let report = assert_imported(&import(&[&rdb, &aof], &dir, &["--databases", "21"]));
    assert!(report.contains("holds 3 keys"), "{report}");
}

#[test]
fn a_damaged_file_leaves_everything_as_it_was() {
    let (mut tarn, dir) = tarn();
    let path = tarn.dir().join("file.rdb");
    let write = |bytes: &[u8]| std::fs::write(&path, bytes).unwrap();
    let text = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    write(&small_file());
    assert_imported(&import(&[&path], &dir, &[]));
    let again = import(&[&path], &dir, &[]);
    assert!(!again.status.success() && text(&again).contains("--replace"), "{}", text(&again));

    let whole = small_file();
    write(&whole[..200]);
    let cut = import(&[&path], &dir, &["--replace"]);
    let told = text(&cut);
    assert!(!cut.status.success() && told.contains("offset 200") && told.contains("cut short"), "{told}");
    assert!(told.contains("Nothing was imported"), "{told}");
    // A key that comes twice, as Redis refuses it.
    let mut twice = whole.clone();
    twice.splice(whole.len() - 9..whole.len() - 9, *b"\x00\x05key07\x05other");
    write(&twice);
    let told = text(&import(&[&path], &dir, &["--replace"]));
    assert!(told.contains("comes twice") && told.contains("key07") && told.contains("Nothing was imported"), "{told}");
    // In another file it replaces what came before.
    write(&whole);
    let other = tarn.dir().join("other.rdb");
    std::fs::write(&other, [&b"REDIS0010\xfe\x00\x00\x05key07\x05other\xff"[..], &[0; 8]].concat()).unwrap();
    let report = assert_imported(&import(&[&path, &other], &dir, &["--replace"]));
    assert!(report.contains("51 keys read") && report.contains("holds 50 keys"), "{report}");
    let mut module = whole.clone();
    module.truncate(whole.len() - 9);
    module.extend_from_slice(b"\x07\x03mod\x81\x01\x23\x45\x67\x89\xab\xcd\xef\x00\xff\0\0\0\0\0\0\0\0");
    write(&module);
    let told = text(&import(&[&path], &dir, &["--replace"]));
    assert!(told.contains("key 'mod'") && told.contains("module ASNFZ4mrz"), "{told}");
    let report = assert_imported(&import(&[&path], &dir, &["--replace", "--skip-modules"]));
    assert!(report.contains("1 × key with a value of module ASNFZ4mrz, left out"), "{report}");
    start(&mut tarn);
    assert_eq!(tarn.client().call("DBSIZE").int(), Some(50));
    let told = text(&import(&[&path], &dir, &["--replace"]));
    assert!(told.contains("is in use by another server"), "{told}");
}

/// Redis before 7.0 may write scripts themselves to its AOF.
/// What is asked for wrongly is told, and leaves nothing behind but the directory.
#[test]
fn what_cannot_be_imported_is_named() {
    let (tarn, dir) = tarn();
    let folder = tarn.dir().join("from");
    let path = |name: &str| folder.join(name);
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(path("file.rdb"), small_file()).unwrap();
    std::fs::write(path("text"), "text").unwrap();
    std::fs::write(path("empty.rdb"), "").unwrap();
    let manifests = [
        ("short", "file a seq 1 type"),
        ("out", "file ../file.rdb seq 1 type b\n"),
        ("seq", "# a comment\n\nfile a seq x type i"),
        ("kind", "file a seq 1 type z"),
        ("history", "file a seq 1 type h\n"),
        ("gone", "file a seq 1 type b\n"),
    ];
    for (name, text) in manifests {
        std::fs::create_dir(path(name)).unwrap();
        std::fs::write(path(name).join("aof.manifest"), text).unwrap();
    }
    std::fs::create_dir(path("two")).unwrap();
    for name in ["a.manifest", "b.manifest"] {
        std::fs::write(path("two").join(name), "").unwrap();
    }
    for (name, options, why) in [
        ("none", &[][..], "cannot read"),
        ("text", &[], "text is neither an RDB nor an AOF file"),
        ("empty.rdb", &[], "empty.rdb is empty"),
        ("", &[], "holds no manifest of an AOF"),
        ("two", &[], "two holds several manifests: name one of them"),
        ("short", &[], "aof.manifest: line 1 is no line of a manifest"),
        ("out", &[], "aof.manifest: line 1 is no line of a manifest"),
        ("seq", &[], "aof.manifest: line 3 is no line of a manifest"),
        ("kind", &[], "aof.manifest: line 1 is no line of a manifest"),
        ("history", &[], "aof.manifest lists no file"),
        ("gone", &[], "cannot read"),
        ("file.rdb", &["--maxmemory", "x"], ">>> 'maxmemory \"x\"'\nargument must be a memory value"),
        ("file.rdb", &["--databases", "0"], ">>> 'databases \"0\"'\nargument must be between 1 and"),
        ("file.rdb", &["--shards", "5000"], ">>> 'shards \"5000\"'\n"),
        ("file.rdb", &["--shards", "x"], "invalid value 'x' for '--shards"),
        ("file.rdb", &["--nothing"], "unexpected argument '--nothing'"),
    ] {
        let output = import(&[&path(name)], &dir, options);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && told.contains(why), "{name} {options:?}: {told}");
        let left: Vec<_> =
            std::fs::read_dir(&dir).into_iter().flatten().map(|entry| entry.unwrap().file_name()).collect();
        assert!(left.iter().all(|name| name == "LOCK"), "{name} {options:?}: {left:?}");
    }
}

/// Redis has written collections without elements, and passes over them: also where they are long, as lists of empty nodes are.
#[test]
fn collections_without_elements_are_left_out() {
    const ZIPLIST: &[u8] = b"\x0b\x0b\0\0\0\x0a\0\0\0\0\0\xff";
    const LISTPACK: &[u8] = b"\x07\x07\0\0\0\0\0\xff";
    const MANY: u32 = 60_000;
    let many = |node: &[u8]| [&[0x80][..], &MANY.to_be_bytes(), &node.repeat(MANY as usize)].concat();
    let packed = [b"\x02", LISTPACK].concat();
    let file = [
        &b"REDIS0010\xfe\x00\x01\x01l\x00\x02\x01s\x00\x04\x01h\x00\x05\x01z\x00"[..],
        b"\x0e\x01q\x01",
        ZIPLIST,
        b"\x12\x01p\x01",
        &packed,
        b"\x10\x01x",
        LISTPACK,
        b"\xfc\x01\0\0\0\0\0\0\0\x0e\x04past",
        &many(ZIPLIST),
        b"\x0e\x03big",
        &many(ZIPLIST),
        b"\x12\x03BIG",
        &many(&packed),
        b"\x00\x03key\x05value\xff\0\0\0\0\0\0\0\0",
    ]
    .concat();
    for kind in [Kind::Redis82, Kind::Valkey] {
        let Some(mut real) = Server::prepare(kind, &[]) else { continue };
        std::fs::create_dir(real.dir().join("data")).unwrap();
        std::fs::write(real.dir().join("data/dump.rdb"), &file).unwrap();
        real.begin();
        assert_eq!(texts(&real.client().call("KEYS *")), ["key"]);
    }
    let (mut tarn, dir) = tarn();
    let path = tarn.dir().join("file.rdb");
    std::fs::write(&path, &file).unwrap();
    let report = assert_imported(&import(&[&path], &dir, &[]));
    assert!(report.starts_with("1 keys, 1 whose time has passed"), "{report}");
    assert!(report.contains("\n9 × key without elements, left out\n"), "{report}");
    start(&mut tarn);
    assert_eq!(texts(&tarn.client().call("KEYS *")), ["key"]);
}

#[test]
fn a_long_script_of_an_aof_is_run_whole() {
    let (mut tarn, dir) = tarn();
    let path = tarn.dir().join("file.aof");
    let script = "for i = 1, 250000 do redis.call('RPUSH', KEYS[1], i) end";
    let eval = format!("*4\r\n$4\r\nEVAL\r\n${}\r\n{script}\r\n$1\r\n1\r\n$4\r\nlist\r\n", script.len());
    std::fs::write(&path, eval).unwrap();
    let report = assert_imported(&import(&[&path], &dir, &[]));
    assert!(!report.contains("EVAL"), "{report}");
    start(&mut tarn);
    assert_eq!(tarn.client().call("LLEN list").int(), Some(250_000));
}

#[test]
fn the_cut_end_of_an_aof_is_told() {
    let (mut tarn, dir) = tarn();
    let path = tarn.dir().join("file.aof");
    let command = |text: &str| as_aof(&[text]);
    let mut file = b"#TS:1700000000\r\n".to_vec();
    for text in ["SELECT 0", "SET a 1 PXAT 1000000000000", "INCR a", "SET b 2", "NOSUCH", "MULTI", "SET c 3"] {
        if text != "NOSUCH" {
            file.extend(command(text));
        }
    }
    std::fs::write(&path, &file).unwrap();
    let report = assert_imported(&import(&[&path], &dir, &[]));
    let at = file.len() - [command("MULTI"), command("SET c 3")].concat().len();
    assert!(report.contains(&format!("at offset {at}")), "{report}");
    start(&mut tarn);
    let mut client = tarn.client();
    let (a, b, c) = (client.call("EXISTS a"), client.call("GET b"), client.call("EXISTS c"));
    assert_eq!((a.int(), b.bytes(), c.int()), (Some(0), Some(&b"2"[..]), Some(0)), "what has passed is gone");
    drop(tarn);

    let (tarn, dir) = super::tarn();
    let path = tarn.dir().join("bad.aof");
    std::fs::write(&path, [file, command("EXEC"), command("NOSUCH")].concat()).unwrap();
    let output = import(&[&path], &dir, &[]);
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("unknown command 'NOSUCH'"));
}

/// What the next file holds is no part of it.
#[test]
fn a_transaction_that_is_cut_ends_with_its_file() {
    let (mut tarn, dir) = tarn();
    let files = ["first.aof", "second.aof"].map(|name| tarn.dir().join(name));
    std::fs::write(&files[0], as_aof(&["SELECT 0", "SET a 1", "MULTI", "SET a 2"])).unwrap();
    std::fs::write(&files[1], as_aof(&["SELECT 0", "SET b 3"])).unwrap();
    let report = assert_imported(&import(&[&files[0], &files[1]], &dir, &[]));
    assert!(report.contains("first.aof: cut within") && !report.contains("second.aof"), "{report}");
    start(&mut tarn);
    let mut client = tarn.client();
    assert_eq!(["a", "b"].map(|key| client.call(&format!("GET {key}")).text()), ["1", "3"]);
}

/// Whatever database the file before it has come to.
#[test]
fn each_file_of_an_aof_begins_in_database_0() {
    let (mut tarn, dir) = tarn();
    let folder = tarn.dir().join("appendonlydir");
    std::fs::create_dir(&folder).unwrap();
    let mut manifest = String::new();
    for (n, texts) in [&["SELECT 3", "SET k three"][..], &["SET k zero"]].into_iter().enumerate() {
        let name = format!("appendonly.aof.{}.incr.aof", n + 1);
        std::fs::write(folder.join(&name), as_aof(texts)).unwrap();
        manifest.push_str(&format!("file {name} seq {} type i\n", n + 1));
    }
    std::fs::write(folder.join("appendonly.aof.manifest"), manifest).unwrap();
    assert_imported(&import(&[&folder], &dir, &[]));
    start(&mut tarn);
    let mut client = tarn.client();
    assert_eq!(client.call("GET k").text(), "zero");
    client.call("SELECT 3");
    assert_eq!(client.call("GET k").text(), "three");
}

/// Where the other server has not the database, nothing is sent that would go into another one.
#[test]
fn keys_stay_where_their_database_is_refused() {
    use std::io::{BufRead as _, BufReader, Write as _};
    let server = Server::tarn(&[]);
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap().port();
    let peer = std::thread::spawn(move || {
        let (mut socket, _) = other.accept().unwrap();
        let mut lines = BufReader::new(socket.try_clone().unwrap()).split(b'\n').map_while(Result::ok);
        lines.find(|line| line == b"SELECT\r").unwrap();
        socket.write_all(b"-ERR DB index is out of range\r\n").unwrap();
        let sent = lines.find(|line| line == b"RESTORE\r").is_some();
        _ = socket.write_all(b"+OK\r\n");
        sent
    });
    let mut client = server.client();
    client.call("SET a 1");
    let refused = client.call(&format!("MIGRATE 127.0.0.1 {port} a 99 20000")).text();
    assert_eq!(refused, "ERR Target instance replied with error: ERR DB index is out of range");
    assert_eq!((peer.join().unwrap(), client.call("EXISTS a").int()), (false, Some(1)));
}
