//! Whole values: every form byte by byte, random values there and back, damage.

#![expect(clippy::unwrap_used, reason = "tests")]

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::codec::StreamId;
use crate::rdb::file::writer::Blocks;
use crate::rdb::file::{Bounds, FileError, Input, Item, Reader};

const NOW_MS: u64 = 1_700_000_000_000;

fn texts(all: &[&str]) -> Vec<Vec<u8>> {
    all.iter().map(|text| text.as_bytes().to_vec()).collect()
}

fn fields(all: &[(&str, &str, u64)]) -> Value {
    let field = |&(name, value, expire_ms): &(&str, &str, u64)| Field {
        name: name.as_bytes().to_vec(),
        value: value.as_bytes().to_vec(),
        expire_ms,
    };
    Value::Hash(all.iter().map(field).collect())
}

/// A string's form for bytes of another format.
fn string(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    length::push_raw(bytes, &mut out);
    out
}

fn listpack_of(all: &[&str]) -> Vec<u8> {
    let mut builder = listpack::Builder::new();
    all.iter().for_each(|text| builder.push(text.as_bytes()));
    string(&builder.finish())
}

fn ziplist_of(all: &[&[u8]]) -> Vec<u8> {
    string(&ziplist::of_elements(all))
}

fn payload(tag: u8, body: &[u8], version: u16) -> Vec<u8> {
    let mut out = [&[tag][..], body, &version.to_le_bytes()].concat();
    let checksum = crc64::checksum(&out);
    out.extend_from_slice(&checksum.to_le_bytes());
    out
}

#[track_caller]
fn check(tag: u8, version: u16, body: &[u8], expected: Value) {
    assert_eq!(decode(&payload(tag, body, version), NOW_MS), Ok(expected), "type {tag}");
    assert_eq!(read(tag, version, &[body, b"behind"].concat()).unwrap().1, b"behind");
    assert_eq!(in_pieces(tag, version, body).map_err(|error| error.to_string()), Ok(()), "type {tag}");
    for len in 0..body.len() {
        assert!(read(tag, version, &body[..len]).is_err(), "type {tag}, {len} bytes");
    }
}

/// A value is refused, and in a file too, where it is read piece by piece. There an element that comes twice is for
/// those to find who keep the pieces.
#[track_caller]
fn check_refused(tag: u8, version: u16, body: &[u8]) {
    let error = decode(&payload(tag, body, version), NOW_MS).unwrap_err();
    assert_eq!(error.text(), "ERR Bad data format", "{error}");
    let is_left = error == RdbError::Corrupt("element twice") && ![15, 19, 21].contains(&tag);
    if !is_left {
        let read = in_pieces(tag, version, body);
        assert!(read.is_err(), "type {tag}: {error}");
        let is_empty = matches!(read, Err(FileError::Value(RdbError::Empty)));
        assert_eq!(is_empty, error == RdbError::Empty, "type {tag}: {error}");
    }
}

fn in_pieces(tag: u8, version: u16, body: &[u8]) -> Result<(), FileError> {
    let bytes = [format!("REDIS{version:04}").as_bytes(), &[tag], b"\x03key", body, &[0xff], &[0; 8]].concat();
    // Strings that are numbers are never that long.
    let whole = if tag == 0 { 4 } else { 0 };
    let mut reader = Reader::new(Input::new(&bytes[..]), Bounds { whole, piece: 1 << 20 })?;
    loop {
        match reader.next_item()? {
            Item::End => return Ok(()),
            Item::Key(key) => match reader.whole(key.tag)? {
                Some(bytes) => drop(file::decode(key.tag, version, bytes, 1 << 20)?),
                None => reader.parts(key.tag, &mut |_| true)?,
            },
            _ => {}
        }
    }
}

#[test]
fn strings() {
    check(0, 6, b"\x03abc", Value::String(b"abc".to_vec()));
    check(0, 6, b"\xc1\x39\x30", Value::String(b"12345".to_vec()));
    check(0, 6, b"\xc3\x04\x08\x00a\xa0\x00", Value::String(b"aaaaaaaa".to_vec()));
}

#[test]
fn lists() {
    let expected = Value::List(texts(&["abc", "5", ""]));
    check(1, 6, b"\x03\x03abc\xc0\x05\x00", expected.clone());
    check(10, 6, &ziplist_of(&[b"\x03abc", &[0xf6], b"\x00"]), expected.clone());
    let nodes = [&b"\x03"[..], &ziplist_of(&[b"\x03abc"]), &ziplist_of(&[]), &ziplist_of(&[&[0xf6], b"\x00"])].concat();
    check(14, 7, &nodes, expected.clone());
    let nodes = [&b"\x02\x01\x03abc\x02"[..], &listpack_of(&["5", ""])].concat();
    check(18, 10, &nodes, expected);
    for bad in [&b"\x01\x01\x00"[..], b"\x01\x03\x01a", &[b"\x01\x02".as_slice(), &listpack_of(&[])].concat()] {
        check_refused(18, 10, bad);
    }
    check_refused(1, 6, b"\x00");
    check_refused(10, 6, &ziplist_of(&[]));
    check_refused(14, 7, &[&b"\x01"[..], &ziplist_of(&[])].concat());
    [14, 18].into_iter().for_each(|tag| check_refused(tag, 10, b"\x00"));
}

#[test]
fn sets() {
    check(2, 6, b"\x02\x01a\xc0\x05", Value::Set(texts(&["a", "5"])));
    check(11, 6, &string(b"\x02\0\0\0\x02\0\0\0\xff\xff\x05\0"), Value::Set(texts(&["-1", "5"])));
    check(20, 11, &listpack_of(&["a", "5"]), Value::Set(texts(&["a", "5"])));
    check_refused(2, 6, b"\x02\x01a\x01a");
    check_refused(20, 11, &listpack_of(&["a", "5", "a"]));
    check_refused(20, 11, &listpack_of(&[]));
    check_refused(11, 6, &string(b"\x02\0\0\0\0\0\0\0"));
}

#[test]
fn sorted_sets() {
    let expected = Value::Zset(vec![(b"a".to_vec(), -0.5), (b"b".to_vec(), f64::INFINITY), (b"c".to_vec(), 3.0)]);
    check(3, 6, b"\x03\x01a\x04-0.5\x01b\xfe\x01c\x013", expected.clone());
    let binary =
        [&b"\x03\x01a"[..], &(-0.5f64).to_le_bytes(), b"\x01b", &f64::INFINITY.to_le_bytes(), b"\x01c"].concat();
    check(5, 8, &[&binary[..], &3f64.to_le_bytes()].concat(), expected.clone());
    check(12, 6, &ziplist_of(&[b"\x01a", b"\x04-0.5", b"\x01b", b"\x03inf", b"\x01c", &[0xf4]]), expected.clone());
    check(17, 10, &listpack_of(&["a", "-0.5", "b", "inf", "c", "3"]), expected);
    check(3, 6, b"\x01\x01a\xff", Value::Zset(vec![(b"a".to_vec(), f64::NEG_INFINITY)]));

    check_refused(3, 6, b"\x01\x01a\xfd");
    check_refused(3, 6, b"\x01\x01a\x03nan");
    check_refused(3, 6, b"\x02\x01a\x011\x01a\x012");
    check_refused(5, 8, &[&b"\x01\x01a"[..], &f64::NAN.to_le_bytes()].concat());
    check_refused(17, 10, &listpack_of(&["a", "1", "b"]));
    check_refused(17, 10, &listpack_of(&["a", "x"]));
    check_refused(17, 10, &listpack_of(&["a", "1", "a", "2"]));
}

#[test]
fn hashes() {
    let expected = fields(&[("a", "x", 0), ("b", "5", 0)]);
    check(4, 6, b"\x02\x01a\x01x\x01b\xc0\x05", expected.clone());
    check(9, 6, &string(b"\x02\x01a\x01\x00x\x01b\x01\x025??\xff"), expected.clone());
    check(13, 6, &ziplist_of(&[b"\x01a", b"\x01x", b"\x01b", &[0xf6]]), expected.clone());
    check(16, 10, &listpack_of(&["a", "x", "b", "5"]), expected);
    check_refused(4, 6, b"\x02\x01a\x01x\x01a\x01y");
    check_refused(9, 6, &string(b"\x02\x01a\x01\x00x\x01a\x01\x00y\xff"));
    check_refused(13, 6, &ziplist_of(&[b"\x01a"]));
    check_refused(16, 10, &listpack_of(&["a", "x", "b"]));
}

#[test]
fn hashes_with_times() {
    let expected = fields(&[("a", "x", NOW_MS + 5), ("b", "y", 0), ("c", "z", NOW_MS + 1)]);
    let least = (NOW_MS + 1).to_le_bytes();
    check(24, 12, &[&least[..], b"\x03\x05\x01a\x01x\x00\x01b\x01y\x01\x01c\x01z"].concat(), expected.clone());
    let absolute = |time: u64| {
        let mut out = Vec::new();
        length::push_len(time, &mut out);
        out
    };
    let pre_ga =
        [b"\x03", &absolute(NOW_MS + 5)[..], b"\x01a\x01x\x00\x01b\x01y", &absolute(NOW_MS + 1), b"\x01c\x01z"]
            .concat();
    check(22, 12, &pre_ga, expected.clone());
    let (first, second) = ((NOW_MS + 5).to_string(), (NOW_MS + 1).to_string());
    let packed = listpack_of(&["a", "x", &first, "b", "y", "0", "c", "z", &second]);
    check(23, 12, &packed, expected.clone());
    check(25, 12, &[&least[..], &packed].concat(), expected.clone());
    let time = |time: u64| time.to_le_bytes();
    let valkey =
        [b"\x03\x01a\x01x", &time(NOW_MS + 5)[..], b"\x01b\x01y", &[0xff; 8], b"\x01c\x01z", &time(NOW_MS + 1)]
            .concat();
    check(22, 80, &valkey, expected);

    let too_far = (1u64 << 48).to_le_bytes();
    check_refused(24, 12, &[&too_far[..], b"\x01\x01\x01a\x01x"].concat());
    check_refused(24, 12, &[&[0xff; 8][..], b"\x01\x02\x01a\x01x"].concat());
    check_refused(22, 80, &[&b"\x01\x01a\x01x"[..], &too_far].concat());
    check_refused(23, 12, &listpack_of(&["a", "x", "-1"]));
    check_refused(23, 12, &listpack_of(&["a", "x", "y"]));
    check_refused(23, 12, &listpack_of(&["a", "x", "0", "a", "y", "0"]));
    for tag in [23, 24, 25] {
        check_refused(tag, 80, &packed);
    }
}

#[test]
fn fields_that_have_ended_are_left_out() {
    let mut out = Vec::new();
    encode(&fields(&[("a", "x", NOW_MS - 1), ("b", "y", NOW_MS), ("c", "z", 0)]), &mut out);
    assert_eq!(decode(&out, NOW_MS), Ok(fields(&[("b", "y", NOW_MS), ("c", "z", 0)])));
    assert_eq!(decode(&out, 0), Ok(fields(&[("a", "x", NOW_MS - 1), ("b", "y", NOW_MS), ("c", "z", 0)])));

    out.clear();
    encode(&fields(&[("a", "x", 1)]), &mut out);
    assert_eq!(decode(&out, NOW_MS), Ok(Value::Hash(Vec::new())));
}

fn id(ms: u64, seq: u64) -> StreamId {
    StreamId { ms, seq }
}

fn entry(id: StreamId, fields: &[(&str, &str)]) -> Entry {
    let field = |&(name, value): &(&str, &str)| (Bytes::from(name.to_owned()), value.as_bytes().to_vec());
    Entry { id, fields: fields.iter().map(field).collect() }
}

/// Two of three entries, the third deleted, with a group; the flags of the second say that its fields are the shared.
const BLOCK: [&str; 26] = [
    "2", "1", "2", "f", "g", "0", // shared
    "2", "0", "0", "1", "2", "5", // 10-5
    "3", "1", "-5", "x", "y", "5", // 11-0, deleted
    "0", "2", "-4", "1", "h", "3", "6", // 12-1
    "",
];

fn block() -> Vec<u8> {
    [&b"\x10"[..], &id(10, 5).to_bytes(), &listpack_of(&BLOCK[..25])].concat()
}

fn group(second_version: bool, third_version: bool) -> Vec<u8> {
    let mut out = b"\x01\x01G\x0c\x01".to_vec();
    if second_version {
        out.push(3);
    }
    out.push(1);
    out.extend_from_slice(&id(12, 1).to_bytes());
    out.extend_from_slice(&[&900u64.to_le_bytes()[..], b"\x07\x02\x01C"].concat());
    out.extend_from_slice(&1000u64.to_le_bytes());
    if third_version {
        out.extend_from_slice(&800u64.to_le_bytes());
    }
    out.push(1);
    out.extend_from_slice(&[&id(12, 1).to_bytes()[..], b"\x01D"].concat());
    out.extend_from_slice(&2000u64.to_le_bytes());
    if third_version {
        out.extend_from_slice(&[0xff; 8]);
    }
    out.push(0);
    out
}

fn stream(entries_added: u64, max_deleted: StreamId, entries_read: i64, active_ms: [i64; 2]) -> Value {
    let consumer = |name: &str, seen_ms, active_ms| Consumer { name: name.into(), seen_ms, active_ms };
    Value::Stream(Box::new(Stream {
        entries: vec![entry(id(10, 5), &[("f", "1"), ("g", "2")]), entry(id(12, 1), &[("h", "3")])],
        last_id: id(12, 1),
        max_deleted,
        entries_added,
        groups: vec![Group {
            name: b"G".to_vec(),
            last_id: id(12, 1),
            entries_read,
            pending: vec![Pending { id: id(12, 1), delivery_ms: 900, delivery_count: 7, consumer: 0 }],
            consumers: vec![consumer("C", 1000, active_ms[0]), consumer("D", 2000, active_ms[1])],
        }],
    }))
}

#[test]
fn streams() {
    let first = [&b"\x01"[..], &block(), b"\x02\x0c\x01", &group(false, false)].concat();
    check(15, 9, &first, stream(2, id(0, 0), 2, [1000, 2000]));
    let counters = b"\x02\x0c\x01\x0a\x05\x0b\x00\x03";
    let second = [&b"\x01"[..], &block(), counters, &group(true, false)].concat();
    check(19, 10, &second, stream(3, id(11, 0), 3, [1000, 2000]));
    let third = [&b"\x01"[..], &block(), counters, &group(true, true)].concat();
    check(21, 11, &third, stream(3, id(11, 0), 3, [800, -1]));
    let empty = Stream { last_id: id(5, 0), max_deleted: id(5, 0), entries_added: 1, ..Stream::default() };
    check(19, 10, b"\x00\x00\x05\x00\x00\x00\x05\x00\x01\x00", Value::Stream(Box::new(empty)));
    check_refused(26, 13, &third);
}

#[test]
fn contradictory_streams_are_refused() {
    let with_block = |bad: &[&str]| {
        let key = id(10, 5).to_bytes();
        [&b"\x01\x10"[..], &key, &listpack_of(bad), b"\x02\x0c\x01\x00"].concat()
    };
    assert!(read(15, 9, &with_block(&BLOCK[..25])).is_ok());
    let changes: [(usize, &str); 11] = [
        (0, "3"),
        (1, "0"),
        (2, "1"),
        (2, "-1"),
        (5, "1"),
        (6, "0"),
        (6, "x"),
        (11, "4"),
        (12, "2"),
        (13, "-1"),
        (21, "999999"),
    ];
    for (at, text) in changes {
        let mut bad = BLOCK;
        bad[at] = text;
        check_refused(15, 9, &with_block(&bad[..25]));
    }
    let groups: [&[u8]; 4] = [
        b"\x02\x01G\x00\x00\x00\x00\x01G\x00\x00\x00\x00",
        &[b"\x01\x01G\x00\x00\x01".as_slice(), &[1; 16], &[0; 8], b"\x01\x00"].concat(),
        &[b"\x01\x01G\x00\x00\x00\x01\x01C".as_slice(), &[0; 8], b"\x01", &[1; 16]].concat(),
        &[b"\x01\x01G\x00\x00\x00\x02\x01C".as_slice(), &[0; 8], b"\x00\x01C", &[0; 8], b"\x00"].concat(),
    ];
    for bad in groups {
        check_refused(15, 9, &[b"\x00\x00\x00\x00", bad].concat());
    }
    // A length without entries, more deleted than given, fewer added than there are, an id above the last.
    for bad in [&b"\x00\x01\x05\x00\x00\x00\x00\x00\x01\x00"[..], b"\x00\x00\x05\x00\x00\x00\x06\x00\x01\x00"] {
        check_refused(19, 10, bad);
    }
    check_refused(19, 10, &[&b"\x01"[..], &block(), b"\x02\x0c\x01\x0a\x05\x00\x00\x01\x00"].concat());
    check_refused(15, 9, &[&b"\x01"[..], &block(), b"\x02\x0c\x00\x00"].concat());
}

#[test]
fn oldest_form_that_loses_nothing() {
    let form = |value: &Value, dialect| (Form::of(value, dialect).tag(), Form::of(value, dialect).version());
    let cases = [
        (Value::String(Vec::new()), (0, 6)),
        (Value::List(texts(&["a"])), (1, 6)),
        (Value::Set(texts(&["a"])), (2, 6)),
        (Value::Zset(vec![(b"a".to_vec(), 1.0)]), (5, 8)),
        (fields(&[("a", "x", 0)]), (4, 6)),
        (fields(&[("a", "x", 0), ("b", "y", NOW_MS)]), (24, 12)),
        (stream(2, id(0, 0), 2, [1000, 2000]), (15, 9)),
        (stream(2, id(0, 0), -1, [1000, 2000]), (19, 10)),
        (stream(3, id(0, 0), 2, [1000, 2000]), (19, 10)),
        (stream(2, id(11, 0), 2, [1000, 2000]), (19, 10)),
        (stream(2, id(0, 0), 2, [1000, -1]), (21, 11)),
    ];
    for (value, expected) in cases {
        assert_eq!(form(&value, Dialect::Redis), expected);
    }
    assert_eq!(form(&fields(&[("a", "x", NOW_MS)]), Dialect::Valkey), (22, 80));
}

#[test]
fn frame() {
    let mut good = Vec::new();
    encode(&Value::String(b"abc".to_vec()), &mut good);
    assert_eq!(good[..7], *b"\x00\x03abc\x06\x00");
    assert_eq!(decode(&good, 0), Ok(Value::String(b"abc".to_vec())));
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1;
        let error = decode(&bad, 0).unwrap_err();
        assert_eq!(error.text(), "ERR DUMP payload version or checksum are wrong");
    }
    for len in 0..good.len() {
        assert!(decode(&good[..len], 0).unwrap_err().is_of_frame());
    }
    for version in [14, 79, 81, u16::MAX] {
        assert_eq!(decode(&payload(0, b"\x01a", version), 0), Err(RdbError::Version(version)));
    }
    for version in [1, 13, 80] {
        assert_eq!(decode(&payload(0, b"\x01abehind", version), 0), Ok(Value::String(b"a".to_vec())));
    }
    for (tag, error) in [
        (6, RdbError::Unsupported("value of a module")),
        (7, RdbError::Unsupported("value of a module")),
        (8, RdbError::UnknownType(8)),
        (28, RdbError::UnknownType(28)),
        (255, RdbError::UnknownType(255)),
    ] {
        assert_eq!(decode(&payload(tag, b"\x00", 12), 0), Err(error));
    }
    let no_type = [&b"\x06\x00"[..], &crc64::checksum(b"\x06\x00").to_le_bytes()].concat();
    assert_eq!(decode(&no_type, 0), Err(RdbError::Corrupt("no type")));
}

#[test]
fn long_names_of_stream_fields_are_not_copied() {
    let name = Bytes::from(vec![b'n'; 1 << 20]);
    let entries = (1..=5000).map(|ms| Entry { id: id(ms, 0), fields: vec![(name.clone(), Vec::new())] });
    let listpack = stream_block::write(&entries.collect::<Vec<_>>());
    let mut back = Vec::new();
    stream_block::read(id(1, 0), &listpack, &mut back, &mut length::Room(usize::MAX)).unwrap();
    let first = back[0].fields[0].0.as_ptr();
    assert!(back.len() == 5000 && back.iter().all(|entry| entry.fields[0].0.as_ptr() == first));
}

#[test]
fn long_streams_are_cut_into_blocks() {
    let entries: Vec<Entry> = (1..=1000).map(|ms| entry(id(ms, 0), &[("f", "v")])).collect();
    assert_eq!(stream_block::blocks(&entries).iter().map(|block| block.len()).collect::<Vec<_>>(), [100; 10]);
    let big = "x".repeat(5000);
    let entries: Vec<Entry> = (1..=3).map(|ms| entry(id(ms, 0), &[("f", &big)])).collect();
    assert_eq!(stream_block::blocks(&entries).len(), 3);
    assert!(stream_block::blocks(&[]).is_empty());
    // As they are where entries come one by one, however full the blocks before were.
    let small = (4..=200).map(|ms| entry(id(ms, 0), &[("f", "v")]));
    let entries: Vec<Entry> = entries.into_iter().chain(small).collect();
    let mut open = Blocks::default();
    let mut lengths: Vec<usize> = entries.iter().filter_map(|entry| Some(open.push(entry.clone())?.len())).collect();
    lengths.extend(open.close().map(|block| block.len()));
    assert_eq!(lengths, stream_block::blocks(&entries).iter().map(|block| block.len()).collect::<Vec<_>>());
}

/// Short strings, many of them numbers, some repetitive and long.
fn text() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => prop::collection::vec(any::<u8>(), 0..12),
        4 => (any::<i64>(), 0u32..64).prop_map(|(int, shift)| (int >> shift).to_string().into_bytes()),
        1 => (any::<u8>(), 60usize..20_000).prop_map(|(byte, len)| vec![byte; len]),
    ]
}

fn value() -> impl Strategy<Value = Value> {
    let unique = || prop::collection::hash_set(text(), 1..20);
    let score = any::<f64>().prop_filter("NaN", |score| !score.is_nan());
    let expire_ms = prop_oneof![Just(0), 1..1u64 << 48];
    prop_oneof![
        text().prop_map(Value::String),
        prop::collection::vec(text(), 1..20).prop_map(Value::List),
        unique().prop_map(|members| Value::Set(members.into_iter().collect())),
        prop::collection::hash_map(text(), score, 1..20).prop_map(|members| Value::Zset(members.into_iter().collect())),
        prop::collection::hash_map(text(), (text(), expire_ms), 1..20).prop_map(|fields| {
            let field = |(name, (value, expire_ms))| Field { name, value, expire_ms };
            Value::Hash(fields.into_iter().map(field).collect())
        }),
        any_stream().prop_map(|stream| Value::Stream(Box::new(stream))),
    ]
}

fn any_id() -> impl Strategy<Value = StreamId> {
    prop_oneof![(0..5u64, 1..50u64), (any::<u64>(), 1..u64::MAX)].prop_map(|(ms, seq)| id(ms, seq))
}

fn any_stream() -> impl Strategy<Value = Stream> {
    let fields = || {
        prop_oneof![
            3 => prop::collection::vec(text(), 2).prop_map(|values| {
                values.into_iter().enumerate().map(|(at, value)| (Bytes::from(format!("f{at}")), value)).collect()
            }),
            1 => prop::collection::vec((text().prop_map(Bytes::from), text()), 1..4),
        ]
    };
    let entries = prop::collection::btree_map(any_id(), fields(), 0..150)
        .prop_map(|entries| entries.into_iter().map(|(id, fields)| Entry { id, fields }).collect::<Vec<_>>());
    let groups = prop::collection::hash_map(text(), any_group(), 0..4)
        .prop_map(|groups| groups.into_iter().map(|(name, group)| Group { name, ..group }).collect::<Vec<_>>());
    (entries, any_id(), any_id(), 0..3u64, groups).prop_map(|(entries, higher, deleted, removed, groups)| {
        let last_id = entries.last().map_or(higher, |entry| entry.id.max(higher));
        let max_deleted = if removed == 0 { StreamId::default() } else { deleted.min(last_id) };
        let entries_added = entries.len() as u64 + removed;
        Stream { entries, last_id, max_deleted, entries_added, groups }
    })
}

fn any_group() -> impl Strategy<Value = Group> {
    let consumer = (0..1u64 << 62, -1..1i64 << 62, any::<bool>());
    let consumers = prop::collection::hash_map(text(), consumer, 1..4).prop_map(|consumers| {
        let times = |(seen_ms, active_ms, same)| (seen_ms, if same { seen_ms as i64 } else { active_ms });
        let consumer = |(name, (seen_ms, active_ms))| Consumer { name, seen_ms, active_ms };
        consumers.into_iter().map(|(name, all)| consumer((name, times(all)))).collect::<Vec<_>>()
    });
    let pending = prop::collection::btree_map(any_id(), (0..1u64 << 62, any::<u64>(), any::<usize>()), 0..20);
    (any_id(), -1..100i64, consumers, pending).prop_map(|(last_id, entries_read, consumers, pending)| {
        let pending = pending.into_iter().map(|(id, (delivery_ms, delivery_count, consumer))| Pending {
            id,
            delivery_ms,
            delivery_count,
            consumer: consumer % consumers.len(),
        });
        Group { name: Vec::new(), last_id, entries_read, pending: pending.collect(), consumers }
    })
}

proptest! {
    #[test]
    fn round_trip(value in value(), valkey: bool) {
        let dialect = if valkey { Dialect::Valkey } else { Dialect::Redis };
        let mut out = b"before".to_vec();
        encode_for(&value, dialect, &mut out);
        prop_assert_eq!(decode(&out[6..], 0).unwrap(), value);
    }

    #[test]
    fn damage_is_no_panic(value in value(), damage in prop::collection::vec((any::<usize>(), any::<u8>()), 1..4)) {
        let form = Form::of(&value, Dialect::Redis);
        let mut out = Vec::new();
        write(&value, form, &mut out);
        for (at, byte) in damage {
            let at = at % out.len();
            out[at] = byte;
        }
        if let Ok((again, _)) = read(form.tag(), form.version(), &out) {
            out.clear();
            encode(&again, &mut out);
            prop_assert_eq!(decode(&out, 0).unwrap(), again);
        }
    }

    #[test]
    fn any_bytes(tag in 0u8..30, version in prop::sample::select(vec![6u16, 12, 80]), bytes: Vec<u8>) {
        let _ = read(tag, version, &bytes);
        let _ = decode(&bytes, 0);
    }
}
