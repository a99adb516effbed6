//! DUMP payloads between Tarn, its codec and the real servers, both ways.
//!
//! Every server, Tarn among them, makes values in all encodings it has; what its DUMP gives is decoded, encoded again and
//! restored on every server that can hold it (on Tarn as it is), where ordinary commands must show what they show of the original, and DUMP must decode to
//! the same value. Forms that no server writes any more are made by hand; the servers still read them, and show whether
//! they find in them what Tarn does. A machine without those servers says so and passes.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::BTreeSet;

use common::resp::{Client, Value as Reply};
use common::server::{Kind, Server, notice};
use tarn::rdb::{Dialect, Form, Value, decode, encode_for};

const REAL: [Kind; 3] = [Kind::Redis70, Kind::Redis82, Kind::Valkey];
const ALL: [Kind; 4] = [Kind::Tarn, Kind::Redis70, Kind::Redis82, Kind::Valkey];

/// Ahead of every field's time, behind every other.
const NOW_MS: u64 = 1_800_000_000_000;

fn start(kind: Kind) -> Option<Server> {
    let server = Server::start(kind, &["--enable-debug-command", "yes"]);
    if server.is_none() {
        notice(&format!("skipped: no {} on this machine to exchange DUMP payloads with", kind.title()));
    }
    server
}

fn call<A: AsRef<[u8]>>(client: &mut Client, args: &[A]) -> Reply {
    client.try_call(args).unwrap_or_else(|gone| panic!("{}: {gone:?}", String::from_utf8_lossy(args[0].as_ref())))
}

fn must(client: &mut Client, command: &str) {
    let reply = client.call(command);
    assert!(!reply.is_error(), "{command}: {}", reply.text());
}

/// Whether the server takes a payload of this form.
fn takes(kind: Kind, version: u16) -> bool {
    match kind {
        Kind::Redis70 => version <= 10,
        Kind::Redis82 => version <= 12,
        Kind::Valkey => version <= 11 || version == 80,
        Kind::Tarn | Kind::ScaledTarn => true,
    }
}

/// The type bytes that `fill` makes the server write.
fn types_written(kind: Kind) -> BTreeSet<u8> {
    if kind.is_tarn() {
        return [0, 1, 2, 4, 5, 15, 19, 21, 24].into_iter().collect();
    }
    let of_all = [0, 2, 4, 5, 11, 16, 17, 18];
    let of_kind: &[u8] = match kind {
        Kind::Redis70 => &[19],
        Kind::Redis82 => &[20, 21, 24, 25],
        _ => &[20, 21, 22],
    };
    of_all.iter().chain(of_kind).copied().collect()
}

/// Makes values in every encoding.
fn fill(client: &mut Client, kind: Kind) {
    must(client, "CONFIG SET list-compress-depth 1");
    if !kind.is_tarn() {
        must(client, "DEBUG QUICKLIST-PACKED-THRESHOLD 3000b");
    }
    fill_strings(client);
    fill_collections(client);
    fill_streams(client);
    if kind != Kind::Redis70 {
        must(client, "HSET hash:times a 1 b 2 c 3");
        must(client, "HPEXPIREAT hash:times 1900000000000 FIELDS 1 a");
        must(client, "HPEXPIREAT hash:times 1900000000700 FIELDS 1 c");
        must(client, &format!("HSET hash:times:big a {} b 2 c 3", "v".repeat(600)));
        must(client, "HPEXPIREAT hash:times:big 1900000000000 FIELDS 1 c");
        must(client, "HPEXPIREAT hash:times:big 1900000099999 FIELDS 1 a");
    }
}

fn fill_strings(client: &mut Client) {
    let numbers =
        ["0", "-1", "127", "128", "-32768", "65536", "2147483647", "-2147483649", "9223372036854775807", "007"];
    for (at, text) in numbers.iter().enumerate() {
        must(client, &format!("SET string:{at} {text}"));
    }
    must(client, "SET string:empty x");
    must(client, "SETRANGE string:empty 0 ");
    must(client, &format!("SET string:repeats {}", "abcd".repeat(5000)));
    must(client, &format!("SET string:mixed {}", noise(200) + &"x".repeat(300) + &noise(9000)));
    let bytes: Vec<u8> = (0..=255).cycle().take(70_000).collect();
    assert!(!call(client, &[&b"SET"[..], b"string:bytes", &bytes]).is_error());
}

/// Text in which little repeats.
fn noise(len: usize) -> String {
    let mut rng = common::rng::Rng(len as u64);
    (0..len).map(|_| char::from(b'!' + rng.below(90) as u8)).collect()
}

fn fill_collections(client: &mut Client) {
    must(client, "RPUSH list:small a 1 -5000 70000 123456789012 -9000000 3.5");
    for at in 0..40 {
        must(client, &format!("RPUSH list:nodes {} {at} {}", "n".repeat(700), noise(200 + at)));
    }
    must(client, &format!("RPUSH list:plain a {} b {}", "p".repeat(20_000), noise(16_400)));
    must(client, "SADD set:ints 1 -2 300");
    must(client, "SADD set:ints:32 1 -2 70000");
    must(client, "SADD set:ints:64 1 -2 -70000000000");
    must(client, "SADD set:small a b 17 -3000");
    must(client, &format!("SADD set:big a 17 {} {}", "m".repeat(300), noise(5000)));
    must(client, "ZADD zset:small 1 a -2.5 b inf c -inf d 1e300 e 0.1 f 3 17");
    must(client, &format!("ZADD zset:big 1 a -2.5 b inf c -inf d 1e300 e 0.1 {}", "m".repeat(300)));
    must(client, "HSET hash:small a 1 b -77777 17 x f 0.5");
    must(client, &format!("HSET hash:big a 1 17 {} {} x", "v".repeat(300), noise(100)));
    for at in 0..300 {
        must(client, &format!("SADD set:many m{at}"));
        must(client, &format!("ZADD zset:many {at}.25 m{at}"));
        must(client, &format!("HSET hash:many f{at} {at}"));
    }
}

fn fill_streams(client: &mut Client) {
    must(client, "XADD stream:plain 5-1 a b");
    must(client, "XADD stream:emptied 5-1 a b");
    must(client, "XDEL stream:emptied 5-1");
    must(client, "XGROUP CREATE stream:created g $ MKSTREAM");
    for at in 1..=250 {
        must(client, &format!("XADD stream:long {at}-{} same {at} names {}", 300 - at, noise(30)));
        if at % 3 == 0 {
            must(client, &format!("XADD stream:long {at}-* other {at}"));
        }
    }
    for id in ["7-293", "100-200", "100-201", "250-50"] {
        must(client, &format!("XDEL stream:long {id}"));
    }
    must(client, "XTRIM stream:long MINID 5");
    for (group, id) in [("start", "0"), ("some", "50-250"), ("first", "5-295"), ("end", "$"), ("beyond", "999-0")] {
        must(client, &format!("XGROUP CREATE stream:long {group} {id}"));
    }
    must(client, "XREADGROUP GROUP start alice COUNT 50 STREAMS stream:long >");
    must(client, "XREADGROUP GROUP start bob COUNT 20 STREAMS stream:long >");
    must(client, "XREADGROUP GROUP end alice STREAMS stream:long >");
    must(client, "XGROUP CREATECONSUMER stream:long start carol");
    must(client, "XACK stream:long start 5-295 6-294");
    must(client, "XCLAIM stream:long start bob 0 9-291 TIME 1700000000000 RETRYCOUNT 9");
    must(client, "XDEL stream:long 9-291");
}

/// What ordinary commands show of a key, in no way that depends on the server or its encodings.
fn content(client: &mut Client, key: &str, with_times: bool) -> String {
    let kind = client.call(&format!("TYPE {key}")).text();
    let command = match kind.as_str() {
        "string" => format!("GET {key}"),
        "list" => format!("LRANGE {key} 0 -1"),
        "set" => format!("SMEMBERS {key}"),
        "zset" => format!("ZRANGE {key} 0 -1 WITHSCORES"),
        "hash" => format!("HGETALL {key}"),
        "stream" => format!("XRANGE {key} - +"),
        other => panic!("{key} is {other}"),
    };
    let reply = client.call(&command);
    assert!(!reply.is_error(), "{command}: {}", reply.text());
    match kind.as_str() {
        "set" => {
            let mut members = reply.items().to_vec();
            members.sort();
            format!("{members:?}")
        }
        "zset" => {
            // The servers print the same score in different ways.
            let score = |score: &Reply| score.text().parse::<f64>().unwrap();
            let members = reply.items().chunks(2).map(|pair| (&pair[0], score(&pair[1])));
            format!("{:?}", members.collect::<Vec<_>>())
        }
        "hash" => {
            let mut fields: Vec<_> = reply.items().chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect();
            fields.sort();
            let times = with_times.then(|| {
                let names = fields.iter().map(|(name, _)| name.bytes().unwrap().to_vec());
                let count = fields.len().to_string().into_bytes();
                let head = [b"HPEXPIRETIME".to_vec(), key.as_bytes().to_vec(), b"FIELDS".to_vec(), count];
                call(client, &head.into_iter().chain(names).collect::<Vec<_>>())
            });
            format!("{fields:?} {times:?}")
        }
        "stream" => {
            let info = client.call(&format!("XINFO STREAM {key} FULL COUNT 0"));
            let groups = client.call(&format!("XINFO GROUPS {key}"));
            format!("{reply:?} {} {groups:?}", without_internals(&info))
        }
        _ => format!("{reply:?}"),
    }
}

/// XINFO's reply without the shape of the tree, and without when a consumer was active, which Redis 7.0 does not know.
fn without_internals(reply: &Reply) -> String {
    let items = reply.items();
    let named = |item: &Reply| ["radix-tree-keys", "radix-tree-nodes", "active-time"].contains(&item.text().as_str());
    let mut kept = Vec::new();
    let mut at = 0;
    while at < items.len() {
        if named(&items[at]) {
            at += 2;
            continue;
        }
        let item = &items[at];
        kept.push(if item.items().is_empty() { format!("{item:?}") } else { without_internals(item) });
        at += 1;
    }
    format!("[{}]", kept.join(" "))
}

/// In an order of its own, for types that have none.
fn sorted(value: Value) -> Value {
    match value {
        Value::Set(mut members) => {
            members.sort();
            Value::Set(members)
        }
        Value::Zset(mut members) => {
            members.sort_by(|a, b| a.0.cmp(&b.0));
            Value::Zset(members)
        }
        Value::Hash(mut fields) => {
            fields.sort_by(|a, b| a.name.cmp(&b.name));
            Value::Hash(fields)
        }
        other => other,
    }
}

fn dump(client: &mut Client, key: &str) -> Vec<u8> {
    client.call(&format!("DUMP {key}")).bytes().unwrap_or_else(|| panic!("{key} does not exist")).to_vec()
}

fn restore(client: &mut Client, key: &str, payload: &[u8]) -> Reply {
    call(client, &[&b"RESTORE"[..], key.as_bytes(), b"0", payload, b"REPLACE"])
}

#[test]
fn dumps_go_everywhere() {
    let servers: Vec<_> = ALL.into_iter().filter_map(|kind| Some((kind, start(kind)?))).collect();
    let mut clients: Vec<_> = servers.iter().map(|(kind, server)| (*kind, server.client())).collect();
    for (kind, client) in &mut clients {
        fill(client, *kind);
    }
    for (from, server) in &servers {
        let mut source = server.client();
        let mut types = BTreeSet::new();
        let keys = source.call("KEYS *:*");
        for key in keys.items().iter().map(Reply::text).filter(|key| !key.starts_with("copy:")) {
            let payload = dump(&mut source, &key);
            types.insert(payload[0]);
            let value = decode(&payload, NOW_MS).unwrap_or_else(|e| panic!("{key} of {}: {e}", from.title()));
            let value = sorted(value);
            for (to, target) in &mut clients {
                send((&value, &payload), &key, (*from, &mut source), (*to, target));
            }
        }
        assert_eq!(types, types_written(*from), "{}", from.title());
    }
}

fn send(
    (value, dumped): (&Value, &[u8]),
    key: &str,
    (from, source): (Kind, &mut Client),
    (to, target): (Kind, &mut Client),
) {
    let dialect = if to == Kind::Valkey { Dialect::Valkey } else { Dialect::Redis };
    let mut payload = Vec::new();
    if to.is_tarn() {
        payload.extend_from_slice(dumped);
    } else {
        encode_for(value, dialect, &mut payload);
    }
    let (copy, what) = (format!("copy:{key}"), format!("{key} from {} to {}", from.title(), to.title()));
    let reply = restore(target, &copy, &payload);
    if !takes(to, Form::of(value, dialect).version()) {
        assert_eq!(reply.text(), "ERR DUMP payload version or checksum are wrong", "{what}");
        return;
    }
    assert_eq!(reply.text(), "OK", "{what}");
    let with_times = from != Kind::Redis70 && to != Kind::Redis70;
    assert_eq!(content(target, &copy, with_times), content(source, key, with_times), "{what}");
    assert_eq!(sorted(decode(&dump(target, &copy), NOW_MS).unwrap()), *value, "{what}");
    must(target, &format!("DEL {copy}"));
}

/// A payload made by hand. The checksum is CRC-64/Jones, bit by bit.
fn payload(tag: u8, body: &[u8], version: u16) -> Vec<u8> {
    let mut out = [&[tag][..], body, &version.to_le_bytes()].concat();
    let polynomial = 0xad93_d235_94c9_35a9_u64.reverse_bits();
    let checksum = out.iter().fold(0u64, |crc, &byte| {
        (0..8).fold(crc ^ u64::from(byte), |crc, _| if crc & 1 == 1 { crc >> 1 ^ polynomial } else { crc >> 1 })
    });
    out.extend_from_slice(&checksum.to_le_bytes());
    out
}

/// A ziplist of elements below 254 bytes, given in their own bytes.
fn ziplist(elements: &[&[u8]]) -> Vec<u8> {
    let (mut body, mut before_len, mut tail) = (Vec::new(), 0, 10);
    for element in elements {
        tail = 10 + body.len();
        body.push(before_len as u8);
        body.extend_from_slice(element);
        before_len = element.len() + 1;
    }
    let size = body.len() as u8 + 11;
    let header = [size, 0, 0, 0, tail as u8, 0, 0, 0, elements.len() as u8, 0];
    [&[size][..], &header, &body, &[0xff]].concat()
}

/// Payloads in forms of the past, with the command that shows what real servers find in them.
fn old_forms() -> Vec<(&'static str, Vec<u8>)> {
    let ints: &[&[u8]] = &[
        &[0xf1],
        &[0xfd],
        &[0xfe, 0x80],
        &[0xc0, 0x00, 0x80],
        &[0xf0, 0x00, 0x00, 0x80],
        &[0xd0, 0, 0, 0, 0x80],
        &[0xe0, 0, 0, 0, 0, 0, 0, 0, 0x80],
        b"\x40\x03abc",
        b"\x80\x00\x00\x00\x03xyz",
    ];
    let nodes = [&b"\x03"[..], &ziplist(ints), &ziplist(&[]), &ziplist(&[b"\x01z"])].concat();
    let stream = |group_id: &[u8]| {
        // 10-5 and 12-1 in one block; a group and a consumer with one pending entry.
        let listpack = b"\x27\0\0\0\x0f\0\x02\x01\x00\x01\x01\x01\x81f\x02\x00\x01\
            \x02\x01\x00\x01\x00\x01\x01\x01\x04\x01\
            \x02\x01\x02\x01\xdf\xfc\x02\x02\x01\x04\x01\xff";
        let key = [&10u64.to_be_bytes()[..], &5u64.to_be_bytes()].concat();
        let pending = [&12u64.to_be_bytes()[..], &1u64.to_be_bytes()].concat();
        let block = [&b"\x01\x10"[..], &key, &[listpack.len() as u8], listpack, b"\x02\x0c\x01"].concat();
        let time = 1_700_000_000_000u64.to_le_bytes();
        [&block[..], b"\x01\x01G", group_id, b"\x01", &pending, &time, b"\x03\x01\x01C", &time, b"\x01", &pending]
            .concat()
    };
    vec![
        ("list", payload(1, b"\x02\x01a\xc0\x05", 6)),
        ("zset", payload(3, b"\x04\x01a\x04-0.5\x01b\xfe\x01c\xff\x01d\x132.2250738585072e-308", 6)),
        ("hash", payload(9, b"\x13\x03\x01a\x01\x00x\x01b\x01\x025??\x02cc\x00\x00\xff", 6)),
        ("list", payload(10, &ziplist(ints), 6)),
        ("set", payload(11, b"\x0e\x02\0\0\0\x03\0\0\0\xff\xff\x05\0\x06\0", 6)),
        ("zset", payload(12, &ziplist(&[b"\x01a", b"\x04-0.5", b"\x01b", &[0xf4], b"\x01c", b"\x03inf"]), 6)),
        ("hash", payload(13, &ziplist(&[b"\x01a", &[0xf4], &[0xfe, 0x80], b"\x01x"]), 6)),
        ("list", payload(14, &nodes, 7)),
        ("stream", payload(15, &stream(b"\x0c\x01"), 9)),
        ("stream", payload(15, &stream(b"\x0a\x05"), 9)),
        ("stream", payload(15, &stream(b"\x0b\x00"), 9)),
        ("stream", payload(15, &stream(b"\x00\x00"), 9)),
        ("stream", payload(15, &stream(b"\x63\x00"), 9)),
    ]
}

#[test]
fn forms_of_the_past_mean_the_same() {
    for (kind, server) in REAL.into_iter().filter_map(|kind| Some((kind, start(kind)?))) {
        let mut client = server.client();
        for (at, (name, old)) in old_forms().iter().enumerate() {
            let what = format!("{name} {at} on {}", kind.title());
            let value = decode(old, NOW_MS).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_eq!(restore(&mut client, "old", old).text(), "OK", "{what}");
            assert_eq!(client.call("TYPE old").text(), *name, "{what}");
            assert_eq!(sorted(decode(&dump(&mut client, "old"), NOW_MS).unwrap()), sorted(value.clone()), "{what}");
            let mut again = Vec::new();
            encode_for(&value, Dialect::Redis, &mut again);
            assert_eq!(restore(&mut client, "new", &again).text(), "OK", "{what}");
            assert_eq!(content(&mut client, "new", false), content(&mut client, "old", false), "{what}");
        }
    }
}

/// Three bytes of LZF make 264 of text: payloads that take no more room than they may are restored, others refused.
#[test]
fn a_payload_cannot_fill_the_memory() {
    let server = Server::tarn(&[]);
    let mut client = server.client();
    must(&mut client, "CONFIG SET proto-max-bulk-len 1mb");
    // A literal, then references back to it: 1 + 264 * n bytes.
    let text = |references: u16| {
        let lzf = [&b"\x00a"[..], &b"\xe0\xff\x00".repeat(references.into())].concat();
        let mut out = vec![0xc3, 0x80];
        out.extend_from_slice(&(lzf.len() as u32).to_be_bytes());
        out.push(0x80);
        out.extend_from_slice(&(1 + 264 * u32::from(references)).to_be_bytes());
        out.extend_from_slice(&lzf);
        out
    };
    let list = |len: u8, references| payload(1, &[&[len][..], &text(references).repeat(len.into())].concat(), 6);
    assert_eq!(restore(&mut client, "list", &list(15, 255)).text(), "OK");
    let refused = "ERR value in payload exceeds maximum allowed size (proto-max-bulk-len)";
    assert_eq!(restore(&mut client, "list", &list(60, 255)).text(), refused);
    assert_eq!(restore(&mut client, "string", &payload(0, &text(4000), 6)).text(), refused);
    let empty = [&b"\x80\x00\x01\x00\x00"[..], &[0; 65_536]].concat();
    assert_eq!(restore(&mut client, "list", &payload(1, &empty, 6)).text(), refused);
    assert_eq!(client.call("LLEN list"), Reply::Int(15));
    assert_eq!(client.call("DBSIZE"), Reply::Int(1));
}
