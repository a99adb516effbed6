//! Data larger than memory, over connections: what is read elsewhere, or for a whole pipeline at once, changes no reply and no
//! order. The second server is scaled (see `common::server`): to it every disk is slow.

mod common;

use std::sync::LazyLock;
use std::time::Duration;

use common::resp::{Client, Value, encode};
use common::rng::{Rng, seed_from};
use common::server::{Kind, Server};
use common::wait::until;

const KEYS: u64 = 3000;
const SERVERS: [Kind; 2] = [Kind::Tarn, Kind::ScaledTarn];

/// Of digits by chance: what a store compresses to little is in the block cache, and not cold.
fn value(key: u64) -> String {
    static DIGITS: LazyLock<String> = LazyLock::new(|| {
        let mut rng = Rng(7);
        (0..5000).map(|_| format!("{:016x}", rng.next())).collect()
    });
    let from = (key * 37 % 60_000) as usize;
    format!("{key}:{}", &DIGITS[from..from + 12_000])
}

/// A server most of whose keys are on disk only: strings in database 0, other strings, hashes and sets in database 1.
fn filled(kind: Kind) -> Server {
    let server = Server::built(kind, &["--maxmemory", "32mb", "--block-cache-size", "1mb", "--shards", "16"]);
    let mut client = server.client();
    client.set_timeout(Duration::from_secs(60));
    for key in 0..KEYS {
        assert!(client.try_call(&["SET", &format!("k{key}"), &value(key)]).is_ok());
    }
    client.call("SELECT 1");
    for key in 0..KEYS / 10 {
        client.call(&format!("SET k{key} other{key}"));
        client.call(&format!("HSET h{key} a {key} b 2"));
        client.call(&format!("SADD s{key} {key} x"));
    }
    client.call("SAVE");
    client.call("SELECT 0");
    // Small ones leave memory for big ones.
    for key in 0..KEYS {
        assert_eq!(client.call(&format!("STRLEN k{key}")).int(), Some(value(key).len() as i64));
    }
    server
}

/// A pipeline of everything that may be on disk, and what it answers.
fn pipeline(rng: &mut Rng, count: usize) -> Vec<(Vec<u8>, Vec<Value>)> {
    let text = |text: String| Value::Bulk(text.into_bytes());
    let mut pipeline = Vec::new();
    let mut db = 0;
    for nth in 0..count {
        let (key, small) = (rng.below(KEYS), rng.below(KEYS / 10));
        let at = |db: u64, key: u64| if db == 0 { text(value(key)) } else { text(format!("other{key}")) };
        let key = if db == 0 { key } else { small };
        let (line, reply) = match rng.below(10) {
            0 => {
                db = 1 - db;
                (format!("SELECT {db}"), Value::Simple(b"OK".to_vec()))
            }
            1 => (format!("ECHO {nth}"), text(nth.to_string())),
            2 => (format!("MGET k{key} none k{small}"), Value::Array(vec![at(db, key), Value::Nil, at(db, small)])),
            3 => (format!("EXISTS k{key} none k{small} k{key}"), Value::Int(3)),
            4 if db == 1 => (format!("HGET h{small} a"), text(small.to_string())),
            5 if db == 1 => (format!("SISMEMBER s{small} {small}"), Value::Int(1)),
            6 => (format!("GETDEL none{key}"), Value::Nil),
            _ => (format!("GET k{key}"), at(db, key)),
        };
        pipeline.push((encode(&line.split(' ').collect::<Vec<_>>()), vec![reply]));
        if rng.one_in(10) {
            let ok = || Value::Simple(b"OK".to_vec());
            let queued = || Value::Simple(b"QUEUED".to_vec());
            let parts = ["MULTI".to_owned(), format!("GET k{small}"), format!("STRLEN k{small}"), "EXEC".to_owned()];
            let lines = parts.map(|line| encode(&line.split(' ').collect::<Vec<_>>())).concat();
            let len = match at(db, small) {
                Value::Bulk(value) => value.len() as i64,
                _ => 0,
            };
            let done = Value::Array(vec![at(db, small), Value::Int(len)]);
            pipeline.push((lines, vec![ok(), queued(), queued(), done]));
        }
    }
    pipeline
}

#[test]
fn a_pipeline_over_data_on_disk_is_answered_in_order() {
    let mut rng = Rng(seed_from("TARN_COLD_SEED"));
    for kind in SERVERS {
        let server = filled(kind);
        let mut control = server.client();
        let reads = control.info("all", "tarn_store_reads");
        for _ in 0..4 {
            let mut client = server.client();
            client.set_timeout(Duration::from_secs(60));
            let parts = pipeline(&mut rng, 300);
            let bytes: Vec<u8> = parts.iter().flat_map(|(line, _)| line.clone()).collect();
            let mut replies = parts.iter().flat_map(|(_, replies)| replies);
            // In pieces that end anywhere.
            let mut rest = &bytes[..];
            let ends: Vec<usize> = parts
                .iter()
                .scan(0, |end, (line, _)| {
                    *end += line.len();
                    Some(*end)
                })
                .collect();
            let mut received = 0;
            while !rest.is_empty() {
                let len = (1 + rng.below(2000) as usize).min(rest.len());
                assert!(client.send_raw(&rest[..len]).is_ok());
                rest = &rest[len..];
                let whole = ends.iter().filter(|end| **end <= bytes.len() - rest.len()).count();
                for (line, expected) in &parts[received..whole] {
                    for _ in expected {
                        let (found, expected) = (client.read(), replies.next());
                        assert!(found.as_ref().ok() == expected, "{:?}: {}", kind, String::from_utf8_lossy(line));
                    }
                }
                received = whole;
            }
        }
        assert!(control.info("all", "tarn_store_reads") > reads + 300, "most of it was on disk");
        assert_eq!(control.info("all", "tarn_store_reads_waiting"), 0);
    }
}

/// How often somebody has waited for the disk.
fn waits(control: &mut Client) -> u64 {
    let info = control.call("INFO tarn").text();
    let line = info.lines().find_map(|line| line.strip_prefix("tarn_wait_disk:count="));
    line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or_default()
}

/// What small collections hold is read with their keys, for all commands at once.
#[test]
fn a_pipeline_over_small_collections_on_disk_waits_for_all_of_them_at_once() {
    const COUNT: u64 = 60;
    let mut server = filled(Kind::ScaledTarn);
    server.restart_after_kill();
    let (mut control, mut client) = (server.client(), server.client());
    client.set_timeout(Duration::from_secs(60));
    client.call("SELECT 1");
    let mut keys = 0..KEYS / 10;
    for (line, reply) in [("HGET h{} a", None), ("SISMEMBER s{} x", Some(1)), ("SADD s{} x", Some(0))] {
        let keys: Vec<u64> = keys.by_ref().take(COUNT as usize).collect();
        let lines = keys.iter().map(|key| format!("{}\r\n", line.replace("{}", &key.to_string())));
        let lines: String = lines.collect();
        let (waited, reads) = (waits(&mut control), control.info("all", "tarn_store_reads"));
        assert!(client.send_raw(lines.as_bytes()).is_ok());
        for key in keys {
            let expected = reply.map_or(Value::Bulk(key.to_string().into_bytes()), Value::Int);
            assert_eq!(client.read().ok(), Some(expected), "{line}");
        }
        assert!(control.info("all", "tarn_store_reads") >= reads + COUNT, "{line}: all was on disk");
        let waited = waits(&mut control) - waited;
        assert!((1..COUNT / 4).contains(&waited), "{line}: {waited} waits for {COUNT} replies");
    }
    until("who has its replies waits no more", || control.info("all", "tarn_clients_elsewhere") == 0);
}

/// An offset names an element like a field does, once it is known where its list begins.
#[test]
fn a_pipeline_over_offsets_of_a_list_on_disk_waits_for_all_of_them_at_once() {
    const ELEMENTS: usize = 2000;
    const COUNT: usize = 60;
    let mut server = filled(Kind::ScaledTarn);
    let mut client = server.client();
    for n in 0..ELEMENTS {
        assert!(!client.call(&format!("RPUSH l element{n}")).is_error());
    }
    assert_eq!(client.call("LPUSH l first").int(), Some(ELEMENTS as i64 + 1));
    server.restart();
    let (mut control, mut client) = (server.client(), server.client());
    client.set_timeout(Duration::from_secs(60));
    for (from, line) in [(0, "LINDEX l {}"), (100, "LINDEX l -{}"), (200, "LSET l {} new")] {
        let lines =
            |range: std::ops::Range<usize>| range.map(|n| format!("{}\r\n", line.replace("{}", &n.to_string())));
        let offsets = from + 1..from + 1 + COUNT;
        let expected = |n: usize| match line {
            "LINDEX l {}" => format!("element{}", n - 1),
            "LINDEX l -{}" => format!("element{}", ELEMENTS - n),
            _ => "OK".to_owned(),
        };
        // What is of the list itself.
        client.call("LLEN l");
        let waited = waits(&mut control);
        assert!(client.send_raw(lines(offsets.clone()).collect::<String>().as_bytes()).is_ok());
        for n in offsets {
            assert_eq!(client.read().map(|reply| reply.text()).ok(), Some(expected(n)), "{line} {n}");
        }
        let waited = waits(&mut control) - waited;
        assert!((1..COUNT as u64 / 4).contains(&waited), "{line}: {waited} waits for {COUNT} replies");
    }
    let offsets = ["2001", "-2002", "x", "99999999999999999999"];
    let got = offsets.map(|offset| client.call(&format!("LINDEX l {offset}")).is_error());
    assert_eq!(got, [false, false, true, true]);
}

/// A member's score tells where else it stands: nothing but that is read to move or remove it.
#[test]
fn a_member_on_disk_is_moved_and_removed_with_one_read() {
    const MEMBERS: u64 = 1000;
    let mut server = filled(Kind::ScaledTarn);
    let mut client = server.client();
    for version in 0..2 {
        assert_eq!(client.call(&format!("CONFIG SET zset-encode-version {version}")).text(), "OK");
        for n in 0..MEMBERS {
            assert_eq!(client.call(&format!("ZADD z{version} {n} member{n}")).int(), Some(1));
        }
    }
    server.restart();
    let (mut control, mut client) = (server.client(), server.client());
    client.set_timeout(Duration::from_secs(60));
    for key in ["z0", "z1"] {
        // What is of the key itself.
        client.call(&format!("ZSCORE {key} nobody"));
        let mut numbers = 0..MEMBERS;
        for line in ["ZADD {z} 0.5 {m}", "ZINCRBY {z} -100 {m}", "ZREM {z} {m}", "ZADD {z} 7 new{m}"] {
            let before = waits(&mut control);
            for n in numbers.by_ref().take(20) {
                let got = client.call(&line.replace("{z}", key).replace("{m}", &format!("member{n}")));
                assert!(!got.is_error(), "{line}: {got:?}");
            }
            // A flush in between has what was read before it read again.
            let waited = waits(&mut control) - before;
            assert!((20..30).contains(&waited), "{line}: {waited} waits");
        }
        // It is where it was moved to, whichever way one looks.
        let by_score = client.call(&format!("ZRANGE {key} 0 -1 WITHSCORES"));
        let by_score: Vec<String> = by_score.items().iter().map(Value::text).collect();
        assert_eq!(by_score.len() as u64, 2 * MEMBERS);
        for pair in by_score.chunks(2) {
            assert_eq!(client.call(&format!("ZSCORE {key} {}", pair[0])).text(), pair[1], "{}", pair[0]);
        }
        assert_eq!(client.call(&format!("ZCOUNT {key} -inf +inf")).int(), Some(MEMBERS as i64));
        for scores in ["0.5 0.5", "-inf 0.4", "7 7"] {
            assert_eq!(client.call(&format!("ZCOUNT {key} {scores}")).int(), Some(20), "{scores}");
        }
    }
}

/// Whether an entry is pending is looked up once for each that is delivered.
#[test]
fn an_entry_on_disk_is_delivered_with_one_look_at_what_is_pending() {
    let mut server = filled(Kind::ScaledTarn);
    let mut client = server.client();
    for n in 1..=300 {
        assert!(!client.call(&format!("XADD s {n}-0 field value{n}")).is_error());
    }
    assert_eq!(client.call("XGROUP CREATE s g 0").text(), "OK");
    let read = |count: u64| format!("XREADGROUP GROUP g c COUNT {count} STREAMS s >");
    client.call(&read(1));
    server.restart();
    let (mut control, mut client) = (server.client(), server.client());
    client.set_timeout(Duration::from_secs(60));
    // What is of stream, group and consumer.
    client.call(&read(1));
    for count in [20, 100] {
        let before = waits(&mut control);
        let got = client.call(&read(count));
        assert_eq!(got.items()[0].items()[1].items().len() as u64, count);
        let waited = waits(&mut control) - before;
        assert!((count..count + 20).contains(&waited), "{waited} waits for {count}");
    }
    assert_eq!(client.call("XPENDING s g").items()[0].int(), Some(122));
    assert_eq!(client.call("XACK s g 1-0 2-0 122-0").int(), Some(3));
}

/// Together they are more than is kept of what is read at a time: none of them is read again and again for the others' sake.
#[test]
fn a_pipeline_over_large_values_on_disk_comes_to_its_end() {
    const LARGE: usize = 600;
    let value = |key: usize| format!("{key:05}").repeat(12_000);
    for kind in SERVERS {
        let server = Server::built(kind, &["--maxmemory", "32mb", "--block-cache-size", "1mb"]);
        let mut client = server.client();
        client.set_timeout(Duration::from_secs(60));
        for key in 0..LARGE {
            assert!(client.try_call(&["SET", &format!("k{key}"), &value(key)]).is_ok());
        }
        client.call("SAVE");
        for first in (0..LARGE).step_by(100) {
            let keys = first..first + 100;
            let lines: Vec<u8> = keys.clone().flat_map(|key| encode(&["GET", &format!("k{key}")])).collect();
            assert!(client.send_raw(&lines).is_ok());
            for key in keys {
                assert!(client.read().is_ok_and(|reply| reply.text() == value(key)), "{kind:?}: k{key}");
            }
        }
    }
}

/// Whoever leaves, is killed, or waits for the server's end while records are read for it leaves nothing behind.
#[test]
fn clients_that_leave_while_they_wait_for_the_disk_leave_nothing() {
    for kind in SERVERS {
        let mut server = filled(kind);
        let mut control = server.client();
        let mut rng = Rng(7);
        for _ in 0..20 {
            let clients: Vec<Client> = (0..8).map(|_| server.client()).collect();
            for mut client in clients {
                let keys: Vec<String> = (0..40).map(|_| format!("GET k{}", rng.below(KEYS))).collect();
                let lines: Vec<u8> =
                    keys.iter().flat_map(|line| encode(&line.split(' ').collect::<Vec<_>>())).collect();
                assert!(client.send_raw(&lines).is_ok());
            }
            control.call("CLIENT KILL TYPE normal SKIPME yes");
        }
        let began = std::time::Instant::now();
        while control.info("all", "connected_clients") > 1 || control.info("all", "tarn_store_reads_waiting") > 0 {
            assert!(began.elapsed() < Duration::from_secs(30), "{kind:?}: they are gone");
        }
        let mut last = server.client();
        let lines: Vec<u8> = (0..2000).flat_map(|key| encode(&["GET", &format!("k{key}")])).collect();
        assert!(last.send_raw(&lines).is_ok());
        assert_eq!(server.stop(), Some(0));
    }
}
