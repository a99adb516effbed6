//! `tarn check`: every kind of damage that is planted into a data directory is found and named, and repaired where that can be;
//! a directory in which nothing was planted is whole.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::resp::Value;
use common::server::Server;
use common::tool::tarn;
use tarn::codec::key::{DiskKey, decode_key};
use tarn::codec::{CodecError, Extra, Meta, Score, pack};
use tarn::store::{Store, StoreOptions};

type Item = (Vec<u8>, Option<Vec<u8>>);

/// A directory with all types in it, as a clean stop leaves it, and another as `kill -9` does.
struct Made {
    stopped: tempfile::TempDir,
    killed: tempfile::TempDir,
}

/// Small collections, and what makes one too big for one record, and small again.
const WRITTEN_OUT: &[(&str, &str, &str)] = &[
    ("HSET hash a 1 b 2 c 3", "HSET hash ~ 1", "HDEL hash ~"),
    ("HSET fields a 1 b 2 c 3", "HSET fields ~ 1", "HDEL fields ~"),
    ("RPUSH list a b c d e", "RPUSH list ~", "RPOP list"),
    ("SADD set a b c d", "SADD set ~", "SREM set ~"),
    ("SADD sort a", "SADD sort ~", "SREM sort ~"),
    ("ZADD zset 1 a 2 b 3 c", "ZADD zset 4 ~", "ZREM zset ~"),
];

fn fill(server: &Server) {
    let mut client = server.client();
    let long = "m".repeat(1500);
    let mut run = |command: &str| assert!(!client.call(&command.replace('~', &long)).is_error(), "{command}");
    for (make, outgrow, _) in WRITTEN_OUT {
        run(make);
        run(outgrow);
    }
    // Only its order has the names.
    run("CONFIG SET zset-encode-version 1");
    run("ZADD digests 1 alpha-alpha-alpha 2 beta-beta-beta-beta 3 ~");
    run("CONFIG SET zset-encode-version 0");
    run("SAVE");
    WRITTEN_OUT.iter().for_each(|(.., back)| run(back));
    for (make, ..) in WRITTEN_OUT {
        // As it is, in one record.
        let (command, arguments) = make.split_once(' ').unwrap();
        run(&format!("{command} packed-{arguments}"));
    }
    for command in [
        "SET string v",
        "SET timed v EX 100000",
        "HEXPIRE fields 90000 FIELDS 1 a",
        "HPEXPIRE fields 95000000 FIELDS 1 b",
        "HPEXPIRE packed-fields 95000000 FIELDS 1 b",
        "XADD stream 1-1 f v",
        "XADD stream 1-2 f v",
        "XADD stream 1-3 g w",
        "XGROUP CREATE stream group 0",
        "XREADGROUP GROUP group consumer COUNT 2 STREAMS stream >",
        "SETRANGE big 200000 end",
    ] {
        client.call(command);
    }
    // Names of no letters.
    for command in [
        &["XADD", "", "1-1", "", ""][..],
        &["XGROUP", "CREATE", "", "", "0"],
        &["XREADGROUP", "GROUP", "", "", "STREAMS", "", ">"],
    ] {
        assert!(!client.try_call(command).unwrap().is_error());
    }
    client.try_call(&["SADD", "long", &long, "short"]).unwrap();
    for command in [
        "SETRANGE string: 200000 end",
        "RPUSH list: a b",
        "SADD set: a b",
        "ZADD zset: 1 a 2 b",
        "XADD stream: 1-1 f v",
        "HSET hash: a 1 b 2",
        "HSETEX fields: PX 95000000 FIELDS 1 a 1",
    ] {
        // Such keys stand shortened in records.
        let command = command.replace(": ", &format!(":{long} "));
        assert!(!client.call(&command).is_error());
        let key = command.split(' ').nth(1).unwrap();
        assert_eq!(client.call(&format!("EXPIRE {key} 100000")).int(), Some(1));
    }
    client
        .try_call(&["FUNCTION", "LOAD", "#!lua name=lib\nredis.register_function('f', function() return 1 end)"])
        .unwrap();
    let scores: Vec<String> = (0..700).flat_map(|n| [n.to_string(), format!("member{n}")]).collect();
    let ranked: Vec<&str> = ["ZADD", "ranked"].into_iter().chain(scores.iter().map(String::as_str)).collect();
    client.try_call(&ranked).unwrap();
    for n in 0..200 {
        client.try_call(&["SET", &format!("key{n}"), "value"]).unwrap();
    }
    // What was overwritten unseen is seen to: a stop leaves no record in the log.
    client.call("SAVE");
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to.join(entry.file_name())),
            false => _ = fs::copy(entry.path(), to.join(entry.file_name())).unwrap(),
        }
    }
}

fn made() -> Made {
    let (stopped, killed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut server = Server::tarn(&["--shards", "2", "--appendfsync", "always"]);
    fill(&server);
    server.stop();
    copy(&server.dir().join("data"), stopped.path());
    server.spawn();
    server.wait_ready();
    let mut client = server.client();
    for n in 0..50 {
        client.try_call(&["RPUSH", "list", &n.to_string()]).unwrap();
        client.try_call(&["DEL", &format!("key{n}")]).unwrap();
        client.try_call(&["SET", &format!("new{n}"), "value"]).unwrap();
    }
    server.kill9();
    copy(&server.dir().join("data"), killed.path());
    Made { stopped, killed }
}

fn check(dir: &Path, repair: bool) -> (bool, String) {
    let dir = dir.to_str().unwrap();
    if repair { tarn(&["check", "--repair", dir]) } else { tarn(&["check", dir]) }
}

/// Every record of every partition.
fn records(store: &Store) -> Vec<(u16, Vec<u8>, Vec<u8>)> {
    let mut all = Vec::new();
    for (shard, partition) in (0..).zip(store.partitions()) {
        for item in partition.range(&[0], &[0xff; 16]).unwrap() {
            let (key, value) = item.unwrap();
            all.push((shard, key.to_vec(), value.to_vec()));
        }
    }
    all
}

/// The records of one key, in the partition that holds it.
struct Of {
    shard: u16,
    meta_key: Vec<u8>,
    meta: Meta,
    value: Vec<u8>,
    elements: Vec<(Vec<u8>, Vec<u8>)>,
    times: Vec<Vec<u8>>,
}

impl Of {
    fn find(store: &Store, name: &str) -> Of {
        let all = records(store);
        let is_of = |key: &[u8]| match decode_key(key).unwrap() {
            DiskKey::Meta { key, .. } | DiskKey::Element { key, .. } | DiskKey::Expiry { key, .. } => {
                key == name.as_bytes()
            }
            _ => false,
        };
        let mine: Vec<_> = all.into_iter().filter(|(_, key, _)| is_of(key)).collect();
        let of = |tag: u8| mine.iter().filter(move |(_, key, _)| key[0] == tag);
        let (shard, meta_key, value) = of(b'M').next().unwrap().clone();
        let (meta, ..) = Meta::decode(&value).unwrap();
        let elements = of(b'E').map(|(_, key, value)| (key.clone(), value.clone())).collect();
        Of { shard, meta_key, meta, value, elements, times: of(b'X').map(|(_, key, _)| key.clone()).collect() }
    }

    /// Elements of one group, by its tag.
    fn group(&self, tag: u8) -> Vec<(Vec<u8>, Vec<u8>)> {
        let at = self.elements[0].0.len() - self.element(0).len();
        self.elements.iter().filter(|(key, _)| key[at] == tag).cloned().collect()
    }

    /// An element without what the keys of all begin with.
    fn element(&self, n: usize) -> &[u8] {
        let (key, _) = &self.elements[n];
        let owner = tarn::codec::key::element_owner(key).unwrap().len();
        &key[owner..]
    }

    /// The elements that its metadata record has.
    fn packed(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let (meta, _, rest) = Meta::decode(&self.value).unwrap();
        assert!(meta.packed && self.elements.is_empty());
        let mut elements = Vec::new();
        let read = pack::each(&meta, rest, |element, value| {
            elements.extend(pack::stands(element).then(|| (element.to_vec(), value.to_vec())));
            Ok::<_, CodecError>(())
        });
        read.unwrap();
        elements
    }

    fn repacked(&self, change: impl FnOnce(&mut Vec<(Vec<u8>, Vec<u8>)>)) -> Vec<Item> {
        let (mut elements, mut value) = (self.packed(), Vec::new());
        change(&mut elements);
        self.meta.encode(None, b"", &mut value);
        elements.iter().for_each(|(element, text)| pack::push(element, text, &mut value));
        put(&self.meta_key, &value)
    }

    fn with_meta(&self, change: impl FnOnce(&mut Meta)) -> Vec<Item> {
        let mut meta = self.meta;
        change(&mut meta);
        let mut value = Vec::new();
        meta.encode(None, b"", &mut value);
        vec![(self.meta_key.clone(), Some(value))]
    }
}

/// What is put into a partition.
type Plant = fn(&Of) -> Vec<Item>;

fn gone(key: &[u8]) -> Vec<Item> {
    vec![(key.to_vec(), None)]
}

fn put(key: &[u8], value: &[u8]) -> Vec<Item> {
    vec![(key.to_vec(), Some(value.to_vec()))]
}

/// A record of the same key with another byte, from the end: this one, unless it is this one.
fn other(key: &[u8], from_end: usize, byte: u8) -> Vec<u8> {
    let mut key = key.to_vec();
    let at = key.len() - from_end;
    key[at] = if key[at] == byte { byte ^ 1 } else { byte };
    key
}

/// What is planted, in the records of which key, and what the check says.
const RECORDS: &[(&str, &str, &str, Plant)] = &[
    ("a field is missing", "hash", "its size is 3, but it has 2 elements", |of| gone(&of.elements[0].0)),
    ("a field stands twice", "hash", "its size is 3, but it has 4 elements", |of| {
        put(&other(&of.elements[0].0, 1, b'z'), b"1")
    }),
    ("a field of another version", "hash", "that no metadata names", |of| put(&other(&of.elements[0].0, 3, 99), b"1")),
    ("a size", "hash", "its size is 7, but it has 3 elements", |of| of.with_meta(|meta| meta.size = 7)),
    ("a field without its time", "fields", "cannot be read", |of| put(&of.elements[0].0, b"")),
    ("fields without a time", "fields", "1 fields have no time, but 2 are counted", |of| {
        of.with_meta(|meta| {
            if let Extra::Hash { persist, .. } = &mut meta.extra {
                *persist = 2;
            }
        })
    }),
    ("bounds of times", "fields", "expires outside the hash's bounds", |of| {
        of.with_meta(|meta| {
            if let Extra::Hash { lower, upper, .. } = &mut meta.extra {
                *lower = *upper;
            }
        })
    }),
    ("the sweep's time", "fields", "are looked at at 0", |of| {
        of.with_meta(|meta| {
            if let Extra::Hash { indexed, .. } = &mut meta.extra {
                *indexed = 0;
            }
        })
    }),
    ("a time of fields is not listed", "fields", "the expiry index does not have its time", |of| gone(&of.times[0])),
    ("a hole in a list", "list", "its element at index 2 is missing", |of| gone(&of.elements[2].0)),
    ("an element behind the tail", "list", "its size is 5, but it has 6 elements", |of| {
        put(&other(&of.elements[4].0, 1, 5), b"z")
    }),
    ("a list's bytes", "list", "its elements take 15 bytes, not 99", |of| {
        of.with_meta(|meta| {
            if let Extra::List { bytes, .. } = &mut meta.extra {
                *bytes = 99;
            }
        })
    }),
    ("a list's ends", "list", "its element at index 1 is missing", |of| {
        of.with_meta(|meta| {
            if let Extra::List { head, .. } = &mut meta.extra {
                *head = 1;
            }
        })
    }),
    ("a member is missing", "set", "its size is 4, but it has 3 elements", |of| gone(&of.elements[1].0)),
    ("a member with a value", "set", "has a value", |of| put(&of.elements[1].0, b"x")),
    ("a field in a set", "set", "does not belong to its type", |of| {
        let at = of.elements[0].0.len() - 2;
        put(&[&of.elements[0].0[..at], &[1, b'a']].concat(), b"x")
    }),
    ("a long member under another's digest", "long", "is not stored under its own name", |of| {
        let (key, value) = of.elements.iter().find(|(key, _)| key.len() > 1000).unwrap();
        put(&other(key, 1, key[key.len() - 1] ^ 1), value)
    }),
    ("a score is missing", "zset", "its size is 3, but it has 2 elements", |of| gone(&of.group(4)[0].0)),
    ("a place in the order is missing", "zset", "but 2 members are sorted by score", |of| gone(&of.group(5)[0].0)),
    ("two scores of a member", "zset", "some members have two scores", |of| put(&of.group(4)[0].0, &of.group(4)[1].1)),
    ("digests of members are missing", "digests", "its size is 3, but it has 0 elements", |of| {
        of.group(4).iter().flat_map(|(key, _)| gone(key)).collect()
    }),
    ("what a digest is of is missing", "digests", "but 2 members are sorted by score", |of| gone(&of.group(5)[1].0)),
    ("a score that is none", "zset", "cannot be read", |of| put(&of.group(4)[0].0, b"x")),
    ("a rank counter", "ranked", "its counted index: ", |of| put(&of.group(11)[1].0, &[3])),
    ("a rank counter is missing", "ranked", "its counted index: ", |of| gone(&of.group(11)[1].0)),
    ("the first rank counter is missing", "ranked", "its counted index: ", |of| gone(&of.group(11)[0].0)),
    ("the root of ranks is missing", "ranked", "there are counters and no root", |of| {
        gone(&of.group(11).pop().unwrap().0)
    }),
    ("the root of ranks", "ranked", "the root counts other elements", |of| {
        let (key, mut value) = of.group(11).pop().unwrap();
        *value.last_mut().unwrap() ^= 1;
        put(&key, &value)
    }),
    ("a chunk behind the end", "big", "but the string has 200003 bytes", |of| {
        put(&other(&of.elements[0].0, 1, 200), b"x")
    }),
    ("a chunk that is too long", "big", "chunk 12 reaches to", |of| put(&of.elements[0].0, &[b'x'; 20_000])),
    ("a time is not listed", "timed", "the expiry index does not have its time", |of| gone(&of.times[0])),
    ("a time is listed as another", "timed", "the expiry index does not have its time", |of| {
        let mut items = [gone(&of.times[0]), put(&other(&of.times[0], 12, 0), b"")].concat();
        items.sort();
        items
    }),
    ("metadata is missing", "set", "that no metadata names", |of| gone(&of.meta_key)),
    ("metadata that cannot be read", "string", "its metadata cannot be read", |of| put(&of.meta_key, b"\x09\x00")),
    ("metadata of another key", "string", "its metadata is that of another key", |of| {
        put(&of.meta_key, &[&[1, 4, 5][..], b"otherv"].concat())
    }),
    ("a version that was never given", "set", "its version is 72057594037927936, but none above", |of| {
        of.with_meta(|meta| meta.version = 1 << 56)
    }),
    ("a value beside elements", "string", "it has a value beside its elements", |of| {
        put(&of.meta_key, b"\x01\x02\x05\0\0\0\0\0\0\0\x03v")
    }),
    ("elements that are gone", "sort", "has no elements", |of| gone(&of.elements[0].0)),
    ("packed elements that are cut", "packed-hash", "its elements cannot be read", |of| {
        put(&of.meta_key, &of.value[..of.value.len() - 1])
    }),
    ("a packed field is missing", "packed-hash", "its size is 3, but it has 2 elements", |of| {
        of.repacked(|all| _ = all.remove(1))
    }),
    ("no packed element", "packed-sort", "its size is 1, but it has 0 elements", |of| of.repacked(Vec::clear)),
    ("a packed field without its time", "packed-fields", "cannot be read", |of| of.repacked(|all| all[0].1.clear())),
    ("a packed member stands twice", "packed-set", "is out of order", |of| of.repacked(|all| all[1] = all[0].clone())),
    ("packed members in no order", "packed-set", "is out of order", |of| of.repacked(|all| all.swap(0, 1))),
    ("a hole in a packed list", "packed-list", "its element at index 2 is missing", |of| {
        of.repacked(|all| _ = all.remove(2))
    }),
    ("a packed member without its score", "packed-zset", "cannot be read", |of| {
        of.repacked(|all| all[0].0.truncate(5))
    }),
    ("a packed member that stands under its name, too", "packed-zset", "its size is 3, but it has 4 elements", |of| {
        of.repacked(|all| all.insert(0, (b"\x04a".to_vec(), all[0].0[1..9].to_vec())))
    }),
    ("a packed counted index", "packed-set", "it has a counted index in its metadata", |of| {
        of.repacked(|all| all.push((b"\x0b\x00".to_vec(), b"".to_vec())))
    }),
    ("an element beside packed ones", "packed-set", "elements of a version that has them in its metadata", |of| {
        let DiskKey::Meta { ns, key } = decode_key(&of.meta_key).unwrap() else { unreachable!() };
        let mut record = Vec::new();
        tarn::codec::key::element_key(ns, key, of.meta.version, &of.packed()[0].0, &mut record);
        put(&record, b"")
    }),
    ("an entry is missing", "stream", "its size is 3, but it has 2 elements", |of| gone(&of.group(6)[2].0)),
    ("an entry that cannot be read", "stream", "cannot be read", |of| put(&of.group(6)[2].0, b"\x07")),
    ("an entry behind the last id", "stream", "lies outside the stream's ids", |of| {
        put(&other(&of.group(6)[2].0, 1, 77), &of.group(6)[2].1)
    }),
    ("a stream's first id", "stream", "its first entry should be 1-0, and is 1-1", |of| {
        of.with_meta(|meta| {
            if let Extra::Stream { first, .. } = &mut meta.extra {
                first.seq = 0;
            }
        })
    }),
    ("a consumer is missing", "stream", "consumers of a group", |of| gone(&of.group(8)[0].0)),
    ("a group is missing", "stream", "consumers of a group", |of| gone(&of.group(7)[0].0)),
    ("a pending entry is missing", "stream", "pending entries of a group", |of| gone(&of.group(9)[1].0)),
    ("a pending entry of nobody", "stream", "pending entries of a consumer", |of| {
        put(&of.group(9)[1].0, b"\x01\x01nobody")
    }),
    ("garbage that lives", "set", "the version lives that it calls garbage", |of| {
        let owner = tarn::codec::key::element_owner(&of.elements[0].0).unwrap();
        put(&[b"G", &owner[1..]].concat(), b"")
    }),
    ("a living database called dead", "string", "the database lives that it calls dead", |_| put(b"D\0\0\0\0", b"")),
    ("a database that never was", "string", "there has never been a database #9999", |_| {
        put(b"M\0\0\x27\x0fkey", b"\x01\x00v")
    }),
    ("a record of no kind", "string", "unknown record group", |_| put(b"Qx", b"")),
    ("a count", "string", "9999 keys are counted, but there are", |_| put(b"c\0\0\0\0", &9999u64.to_le_bytes())),
    ("a count is missing", "string", "0 keys are counted, but there are", |_| gone(b"c\0\0\0\0")),
    ("a count that cannot be read", "string", "it cannot be read", |_| put(b"c\0\0\0\0", b"1")),
];

fn open(dir: &Path) -> Store {
    Store::open(dir, StoreOptions { nice: None, ..StoreOptions::default() }).unwrap()
}

fn whole(dir: &Path) {
    let (is_whole, said) = check(dir, false);
    assert!(is_whole, "{said}");
}

/// The server starts on it, and every key can be read whole.
fn serves(dir: &Path) {
    let mut server = Server::prepare(common::server::Kind::Tarn, &[]).unwrap();
    let data = server.dir().join("data");
    copy(dir, &data);
    server.spawn();
    server.wait_ready();
    let mut client = server.client();
    let keys = client.try_call(&["KEYS", "*"]).unwrap();
    for key in keys.items() {
        let dump = client.try_call(&["DUMP", &key.text()]).unwrap();
        assert!(!dump.is_error(), "{key:?}: {dump:?}");
    }
    assert_eq!(client.try_call(&["DBSIZE"]).unwrap().int(), Some(keys.items().len() as i64));
}

#[test]
fn planted_records_are_found_and_mended() {
    let made = made();
    whole(made.stopped.path());
    whole(made.killed.path());
    let mut wrong = Vec::new();
    for (n, &(what, key, words, plant)) in RECORDS.iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        copy(made.stopped.path(), dir.path());
        let store = open(dir.path());
        let of = Of::find(&store, key);
        let mut items = plant(&of);
        items.sort();
        // The records of a partition, not of a key, in the one that has the key.
        store.partition(of.shard).ingest(items).unwrap();
        drop(store);
        let (is_whole, said) = check(dir.path(), false);
        let named = said.contains(&format!("key \"{}", key.escape_default())) || said.contains("record ");
        let is_named = named || said.contains("keys are counted");
        let (is_mended, repaired) = check(dir.path(), true);
        let (is_whole_again, after) = check(dir.path(), false);
        if is_whole || !said.contains(words) || !is_named || !is_mended || !is_whole_again {
            wrong.push(format!("{what}:\n{said}{repaired}{after}"));
            continue;
        }
        if n % 8 == 0 {
            serves(dir.path());
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What is planted in which key, and what is left of it: a command, and the texts of its reply.
const LEFT: &[(&str, Plant, &str, &[&str])] = &[
    ("list", |of| gone(&of.elements[2].0), "LRANGE list 0 -1", &["a", "b", "d", "e"]),
    ("set", |of| put(&of.elements[1].0, b"x"), "SMISMEMBER set a b c d e", &["1", "1", "1", "1", "0"]),
    ("hash", |of| gone(&of.elements[0].0), "HMGET hash a b c", &["", "2", "3"]),
    (
        "packed-hash",
        |of| put(&of.meta_key, &of.value[..of.value.len() - 1]),
        "HMGET packed-hash a b c",
        &["1", "2", ""],
    ),
    ("packed-zset", |of| of.repacked(|all| all[1].0.truncate(5)), "ZRANGE packed-zset 0 -1", &["a", "c"]),
    ("zset", |of| gone(&of.group(5)[0].0), "ZRANGE zset 0 -1 WITHSCORES", &["a", "1", "b", "2", "c", "3"]),
    (
        "digests",
        |of| of.group(4).iter().flat_map(|(key, _)| put(key, &Score::new(9.0).unwrap().to_bytes())).collect(),
        "ZRANGE digests 0 1 WITHSCORES",
        &["alpha-alpha-alpha", "1", "beta-beta-beta-beta", "2"],
    ),
    ("big", |of| put(&of.elements[0].0, &[b'x'; 20_000]), "GETRANGE big -4 -1", &["xxxx"]),
    ("stream", |of| gone(&of.group(9)[0].0), "XPENDING stream group", &["1", "1-2", "1-2", "consumer", "1"]),
    (
        "stream",
        // Where the pending entries of a consumer begin, stands first in its record.
        |of| of.group(8).iter().flat_map(|(key, value)| put(key, &[&[0xff; 16], &value[16..]].concat())).collect(),
        "XREADGROUP GROUP group consumer STREAMS stream 0",
        &["stream", "1-2", "f", "v"],
    ),
    (
        "stream",
        |of| of.with_meta(|meta| meta.extra = Extra::None),
        "XINFO GROUPS stream",
        &[
            "name",
            "group",
            "consumers",
            "1",
            "pending",
            "1",
            "last-delivered-id",
            "1-2",
            "entries-read",
            "2",
            "lag",
            "1",
        ],
    ),
    (
        "fields",
        |of| {
            of.with_meta(|meta| {
                if let Extra::Hash { persist, lower, upper, .. } = &mut meta.extra {
                    (*persist, *lower) = (3, *upper);
                }
            })
        },
        "HMGET fields a b c",
        &["1", "2", "3"],
    ),
    ("timed", |of| gone(&of.times[0]), "GET timed", &["v"]),
];

/// All texts and numbers of a reply, one after the other.
fn texts(reply: &Value) -> Vec<String> {
    match reply {
        Value::Array(all) => all.iter().flat_map(texts).collect(),
        other => vec![other.int().map_or_else(|| other.text(), |number| number.to_string())],
    }
}

/// What can be saved is; and before that no other server is given what is damaged.
#[test]
fn what_is_mended_holds_what_is_left() {
    let (dir, aside) = (made().stopped, tempfile::tempdir().unwrap());
    let store = open(dir.path());
    for &(key, plant, ..) in LEFT {
        let of = Of::find(&store, key);
        store.partition(of.shard).ingest(plant(&of)).unwrap();
    }
    drop(store);
    let file = aside.path().join("dump.rdb");
    let file = file.to_str().unwrap();
    let (ok, said) = tarn(&["export", file, "--for", "redis-8.2", "--dir", dir.path().to_str().unwrap()]);
    assert!(!ok && said.contains("is damaged"), "{said}");
    assert_eq!(fs::read_dir(aside.path()).unwrap().count(), 0);
    let (is_mended, said) = check(dir.path(), true);
    assert!(is_mended, "{said}");
    let mut server = Server::prepare(common::server::Kind::Tarn, &[]).unwrap();
    copy(dir.path(), &server.dir().join("data"));
    server.spawn();
    server.wait_ready();
    let mut client = server.client();
    for &(_, _, command, left) in LEFT {
        assert_eq!(texts(&client.call(command)), left, "{command}");
    }
    assert!(client.call("TTL timed").int().unwrap() > 90_000);
    let left = client.call("HTTL fields FIELDS 3 a b c");
    let left: Vec<_> = left.items().iter().map(|ttl| ttl.int().unwrap() > 80_000).collect();
    assert_eq!(left, [true, true, false]);
}

/// A name that was mistyped is said to be nothing, and nothing is made of it.
#[test]
fn a_directory_that_is_not_there_is_not_made() {
    let aside = tempfile::tempdir().unwrap();
    let [none, file] = ["none", "dump.rdb"].map(|name| aside.path().join(name).to_str().unwrap().to_owned());
    for args in [
        &["check", &none][..],
        &["check", "--repair", &none],
        &["compact", &none],
        &["reshard", "--shards", "4", &none],
        &["export", &file, "--dir", &none],
        &["restore", &none, "--dir", &file],
    ] {
        let (ok, said) = tarn(args);
        assert!(!ok && said.contains(&none), "{args:?}: {said}");
        assert_eq!(fs::read_dir(aside.path()).unwrap().count(), 0, "{args:?}");
    }
}

/// A key in two shards, and what belongs to the first one only.
#[test]
fn records_of_another_shard_are_found_and_removed() {
    let made = made();
    let store = open(made.stopped.path());
    let of = Of::find(&store, "string");
    let library = records(&store).into_iter().find(|(_, key, _)| key[0] == b'F').unwrap();
    let names = records(&store).into_iter().find(|(_, key, _)| key[0] == b'N').unwrap();
    store.partition(1 - of.shard).ingest(put(&of.meta_key, &of.value)).unwrap();
    store.partition(1).ingest(put(&library.1, &library.2)).unwrap();
    store.partition(1).ingest(put(&names.1, &names.2)).unwrap();
    drop(store);
    let (is_whole, said) = check(made.stopped.path(), false);
    assert!(!is_whole && said.contains(&format!("key \"string\": it belongs to shard {}", of.shard)), "{said}");
    assert_eq!(said.matches("it belongs to shard 0").count(), 2 + usize::from(of.shard == 0), "{said}");
    assert!(check(made.stopped.path(), true).0);
    whole(made.stopped.path());
    serves(made.stopped.path());
}

/// Flips a byte of a file.
fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    let at = at.min(bytes.len() - 1);
    bytes[at] ^= 0x10;
    fs::write(path, bytes).unwrap();
}

fn first_in(folder: PathBuf) -> PathBuf {
    let mut all: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    all.sort();
    all.remove(0)
}

fn version_of(dir: &Path) -> PathBuf {
    let partition = dir.join("store/keyspaces/2");
    let current = fs::read(partition.join("current")).unwrap();
    partition.join(format!("v{}", u64::from_le_bytes(current[..8].try_into().unwrap())))
}

/// What is done to the files of a directory that was killed.
type Harm = fn(&Path);

const FILES: &[(&str, &str, Harm)] = &[
    ("a byte of a table's blocks", "its checksum is wrong", |dir| {
        flip(&first_in(dir.join("store/keyspaces/1/tables")), 100);
    }),
    ("a byte of a table's end", "its checksum is wrong", |dir| {
        let table = first_in(dir.join("store/keyspaces/2/tables"));
        let end = fs::metadata(&table).unwrap().len() as usize - 300;
        flip(&table, end);
    }),
    ("a table is missing", "No such file", |dir| {
        fs::remove_file(first_in(dir.join("store/keyspaces/1/tables"))).unwrap()
    }),
    ("a table is cut", "its checksum is wrong", |dir| {
        let table = fs::OpenOptions::new().write(true).open(first_in(dir.join("store/keyspaces/1/tables"))).unwrap();
        table.set_len(table.metadata().unwrap().len() - 1).unwrap();
    }),
    ("a byte of a version", "its checksum is wrong", |dir| flip(&version_of(dir), 40)),
    ("a version is missing", "No such file", |dir| fs::remove_file(version_of(dir)).unwrap()),
    ("a byte of which version is current", "is damaged", |dir| flip(&dir.join("store/keyspaces/1/current"), 12)),
    ("which version is current is missing", "No such file", |dir| {
        fs::remove_file(dir.join("store/keyspaces/1/current")).unwrap();
    }),
    ("a byte of the log", "is damaged at offset", |dir| flip(&first_in(dir.join("log")), 120)),
    ("a log without its file", "not whole", |dir| fs::remove_file(first_in(dir.join("log"))).unwrap()),
    ("a log without its folder", "log/ is missing", |dir| fs::remove_dir_all(dir.join("log")).unwrap()),
    ("a byte of the superblock", "its checksum is wrong", |dir| flip(&dir.join("SUPERBLOCK"), 20)),
    ("no superblock", "holds data but no SUPERBLOCK", |dir| fs::remove_file(dir.join("SUPERBLOCK")).unwrap()),
    ("a byte of the checkpoint", "CHECKPOINT is damaged", |dir| flip(&dir.join("CHECKPOINT"), 20)),
    ("no checkpoint", "CHECKPOINT is missing", |dir| fs::remove_file(dir.join("CHECKPOINT")).unwrap()),
    ("no store", "the store is lost", |dir| fs::remove_dir_all(dir.join("store")).unwrap()),
    ("neither checkpoint nor store", "the store is lost", |dir| {
        fs::remove_file(dir.join("CHECKPOINT")).unwrap();
        fs::remove_dir_all(dir.join("store")).unwrap();
    }),
    ("a byte of the checkpoint, no store, an empty log", "CHECKPOINT is damaged", |dir| {
        flip(&dir.join("CHECKPOINT"), 20);
        fs::remove_dir_all(dir.join("store")).unwrap();
        fs::remove_file(first_in(dir.join("log"))).unwrap();
    }),
    ("nothing but the checkpoint", "the store is lost", |dir| {
        fs::remove_dir_all(dir.join("store")).unwrap();
        fs::remove_file(first_in(dir.join("log"))).unwrap();
    }),
    ("no partition", "partition of shard 1 is gone", |dir| fs::remove_dir_all(dir.join("store/keyspaces/2")).unwrap()),
    ("partitions in each other's place", "shard", |dir| {
        let [one, two, aside] = ["1", "2", "3"].map(|name| dir.join("store/keyspaces").join(name));
        fs::rename(&one, &aside).unwrap();
        fs::rename(&two, &one).unwrap();
        fs::rename(&aside, &two).unwrap();
    }),
];

#[test]
fn harmed_files_are_found() {
    let made = made();
    for (what, words, harm) in FILES {
        let dir = tempfile::tempdir().unwrap();
        copy(made.killed.path(), dir.path());
        harm(dir.path());
        let (is_whole, said) = check(dir.path(), false);
        assert!(!is_whole && said.contains(words), "{what}: {said}");
        let (is_mended, said) = check(dir.path(), true);
        if is_mended {
            whole(dir.path());
            serves(dir.path());
        } else {
            assert!(!check(dir.path(), false).0, "{what}: {said}");
        }
    }
}

/// A first start that was ended early leaves no more than this.
#[test]
fn a_directory_to_which_nothing_was_written_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    tarn::store::Superblock::create(dir.path(), 2).unwrap();
    for _ in 0..2 {
        let (is_whole, said) = check(dir.path(), false);
        assert!(is_whole && said.contains("nothing has been written yet"), "{said}");
        fs::create_dir_all(dir.path().join("log")).unwrap();
    }
}

/// Looking changes nothing, and leaves nothing.
#[test]
fn a_check_leaves_the_directory_as_it_was() {
    let made = made();
    let list = || {
        let (mut folders, mut all) = (vec![made.killed.path().to_owned()], Vec::new());
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
                match entry.is_dir() {
                    true => folders.push(entry),
                    false if entry.ends_with("LOCK") => {}
                    false => all.push((entry.clone(), fs::read(entry).unwrap())),
                }
            }
        }
        all.sort();
        all
    };
    whole(made.killed.path());
    let before = list();
    whole(made.killed.path());
    assert!(before == list());
}

/// Who only looks makes no part of a directory that is missing, and leaves nothing behind.
#[test]
fn a_check_without_repair_makes_nothing() {
    fn names(dir: &Path) -> Vec<PathBuf> {
        let mut all: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
        all.sort();
        all
    }
    let made = made();
    for dir in [made.stopped.path(), made.killed.path()] {
        let before = names(dir);
        assert!(check(dir, false).0);
        assert_eq!(names(dir), before);
        fs::remove_dir_all(dir.join("log")).unwrap();
        let before = names(dir);
        assert!(!check(dir, false).0);
        assert_eq!(names(dir), before);
    }
}
