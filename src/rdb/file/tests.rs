//! Files made by hand: read whole and piece by piece, cut at every byte, with every byte changed.

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::codec::StreamId;
use crate::rdb::length::{push_len, push_raw, push_string};
use crate::rdb::{Consumer, Dialect, Entry, Field, Form, Group, Pending, Stream, crc64, write};

/// Values of all types, with a byte for each form in which they are written.
fn values() -> Vec<Value> {
    let texts = |n: usize| (0..n).map(|n| format!("text-{n}").into_bytes()).collect::<Vec<_>>();
    let field = |n: usize, expire_ms| Field { name: format!("f{n}").into(), value: n.to_string().into(), expire_ms };
    let id = |ms, seq| StreamId { ms, seq };
    let entry =
        |n: u64| Entry { id: id(n, 1), fields: vec![(Bytes::from_static(b"name"), n.to_string().into_bytes())] };
    let group = Group {
        name: b"g".to_vec(),
        last_id: id(4, 1),
        entries_read: 4,
        pending: vec![Pending { id: id(3, 1), delivery_ms: 5, delivery_count: 2, consumer: 0 }],
        consumers: vec![Consumer { name: b"c".to_vec(), seen_ms: 9, active_ms: -1 }],
    };
    let stream = Stream {
        entries: (1..130).map(entry).collect(),
        last_id: id(300, 0),
        max_deleted: id(1, 0),
        entries_added: 400,
        groups: vec![group],
    };
    vec![
        Value::String(b"short".to_vec()),
        Value::String(vec![7; 4_000]),
        Value::List(texts(50)),
        Value::Set(texts(40)),
        Value::Zset(texts(30).into_iter().map(|text| (text, 1.5)).collect()),
        Value::Hash((0..20).map(|n| field(n, 0)).collect()),
        Value::Hash((0..20).map(|n| field(n, n as u64 * 1000)).collect()),
        Value::Stream(Box::new(stream)),
        Value::Stream(Box::default()),
    ]
}

fn push_key(out: &mut Vec<u8>, value: &Value, at: usize, dialect: Dialect) {
    let form = Form::of(value, dialect);
    if at % 2 == 1 {
        out.push(opcode::EXPIRE_MS);
        out.extend_from_slice(&(1_000_000 + at as u64).to_le_bytes());
        out.extend_from_slice(&[opcode::IDLE, 5, opcode::FREQ, 9]);
    }
    out.push(form.tag());
    push_string(format!("key:{at}").as_bytes(), out);
    write(value, form, out);
}

fn file(head: &[u8], dialect: Dialect) -> Vec<u8> {
    let mut out = head.to_vec();
    out.push(opcode::AUX);
    push_string(b"redis-ver", &mut out);
    push_string(b"8.2.3", &mut out);
    out.extend_from_slice(&[opcode::MODULE_AUX]);
    push_len(0x0123_4567_89ab_cdef, &mut out);
    out.extend_from_slice(&[2, 1, 5, 3, b'a', b'b', b'c', 4, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0]);
    out.push(opcode::FUNCTION);
    push_string(b"#!lua name=x", &mut out);
    out.extend_from_slice(&[opcode::SELECT_DB, 0, opcode::RESIZE_DB, 9, 4, opcode::SLOT_INFO, 1, 2, 3]);
    for (at, value) in values().iter().enumerate() {
        push_key(&mut out, value, at, dialect);
    }
    out.extend_from_slice(&[MODULE_2, 1, b'm']);
    push_len(0x0123_4567_89ab_cdef, &mut out);
    out.extend_from_slice(&[1, 7, 0, opcode::SELECT_DB, 3, 0, 1, b'k', 1, b'v', opcode::END]);
    let sum = crc64::checksum(&out);
    out.extend_from_slice(&sum.to_le_bytes());
    out
}

/// Reads a file to its end; keys with their values.
fn read_all(bytes: &[u8], whole: usize) -> Result<Vec<(Key, Value)>, FileError> {
    let bounds = Bounds { whole, piece: 1 << 20 };
    let mut reader = Reader::new(Input::new(bytes), bounds)?;
    let mut keys = Vec::new();
    loop {
        let item = reader.next_item()?;
        assert!(reader.offset() <= bytes.len() as u64);
        match item {
            Item::End => return Ok(keys),
            Item::Key(key) => {
                let version = reader.version();
                let value = match reader.whole(key.tag)? {
                    Some(bytes) => decode(key.tag, version, bytes, 1 << 24)?,
                    None => {
                        let mut parts = Vec::new();
                        reader.parts(key.tag, &mut |part| {
                            parts.push(part);
                            true
                        })?;
                        joined(kind_of(key.tag, version).unwrap(), parts)
                    }
                };
                keys.push((key, value));
            }
            _ => {}
        }
    }
}

fn joined(kind: crate::codec::Kind, parts: Vec<Part>) -> Value {
    use crate::codec::Kind;
    let mut value = match kind {
        Kind::String => Value::String(Vec::new()),
        Kind::List => Value::List(Vec::new()),
        Kind::Set => Value::Set(Vec::new()),
        Kind::Zset => Value::Zset(Vec::new()),
        Kind::Hash => Value::Hash(Vec::new()),
        Kind::Stream => Value::Stream(Box::default()),
    };
    for part in parts {
        match (&mut value, part) {
            (Value::String(all), Part::Text(bytes)) => all.extend(bytes),
            (Value::List(all), Part::Element(one)) | (Value::Set(all), Part::Member(one)) => all.push(one),
            (Value::Zset(all), Part::Scored(member, score)) => all.push((member, score)),
            (Value::Hash(all), Part::Field(field)) => all.push(field),
            (Value::Stream(stream), Part::Entry(entry)) => stream.entries.push(entry),
            (Value::Stream(stream), Part::Counters(counters)) => {
                **stream = counters.with(std::mem::take(&mut stream.entries));
            }
            (Value::Stream(stream), Part::Group(group)) => stream.groups.push(group),
            (value, part) => panic!("{part:?} of {value:?}"),
        }
    }
    value
}

#[test]
fn a_file_reads_the_same_whole_and_piece_by_piece() {
    for (head, dialect) in [(&b"REDIS0012"[..], Dialect::Redis), (b"VALKEY080", Dialect::Valkey)] {
        let bytes = file(head, dialect);
        let whole = read_all(&bytes, 1 << 20).unwrap();
        let read: Vec<_> = whole.iter().map(|(_, value)| value.clone()).take(values().len()).collect();
        assert_eq!(read, values());
        assert_eq!(whole.len(), values().len() + 1);
        assert_eq!((whole[1].0.expire_ms, whole[2].0.expire_ms), (1_000_001, 0));
        for bound in [0, 1, 10, 100, 1000] {
            assert_eq!(read_all(&bytes, bound).unwrap(), whole, "{bound}");
        }
    }
}

/// What servers of other times put in front of a key; before version 5 there was no checksum.
#[test]
fn forms_of_the_past_and_of_the_future_are_read() {
    let mut bytes = b"REDIS0004".to_vec();
    bytes.push(opcode::EXPIRE_S);
    bytes.extend_from_slice(&7u32.to_le_bytes());
    bytes.extend_from_slice(b"\x00\x01k\x01v");
    bytes.extend_from_slice(&[opcode::SLOT_IMPORT, 2, b'i', b'd', 2, 0, 5, 0x40, 0x80, 0x41, 0, 0, 1, b'l', 1, b'w']);
    bytes.push(opcode::END);
    for whole in [0, 1 << 20] {
        let read = read_all(&bytes, whole).unwrap();
        let seen: Vec<_> = read.iter().map(|(key, value)| (&key.key[..], key.expire_ms, value.clone())).collect();
        let text = |text: &[u8]| Value::String(text.to_vec());
        assert_eq!(seen, [(&b"k"[..], 7000, text(b"v")), (b"l", 0, text(b"w"))]);
    }
    let time = |opcode: u8, time: &[u8]| {
        let file = [&b"REDIS0004"[..], &[opcode], time, b"\x00\x01k\x01v", &[opcode::END]].concat();
        read_all(&file, 0).unwrap()[0].0.expire_ms
    };
    let in_ms = [-1_i64, i64::MIN, -5, 0, 1, i64::MAX].map(|ms| time(opcode::EXPIRE_MS, &ms.to_le_bytes()));
    assert_eq!(in_ms, [0, 1, 1, 1, 1, i64::MAX as u64], "-1 is none, what is before 1970 has passed");
    assert_eq!(time(opcode::EXPIRE_S, &u32::MAX.to_le_bytes()), 1000 * u64::from(u32::MAX), "without a sign");
    bytes[8] = b'5';
    assert!(matches!(read_all(&bytes, 0), Err(FileError::Cut)));
    bytes.extend_from_slice(&1u64.to_le_bytes());
    assert!(matches!(read_all(&bytes, 0), Err(FileError::Checksum)));
    let one = |rest: &[u8]| read_all(&[b"REDIS0010", rest].concat(), 0);
    assert!(matches!(one(&[opcode::FUNCTION_PRE_GA, 1, b'f']), Err(FileError::PreGaFunction)));
    assert!(matches!(one(&[MODULE_1, 1, b'm', 0]), Err(FileError::OldModule)));
    assert!(matches!(one(&[26, 1, b's', 0]), Err(FileError::Value(RdbError::Unsupported(_)))));
}

/// Before version 8 scores were texts; what no text says was a byte of its own.
#[test]
fn scores_that_were_texts_are_read() {
    let scores = |scores: &[&[u8]]| {
        let mut bytes = b"REDIS0004".to_vec();
        bytes.extend_from_slice(&[3, 1, b'z', scores.len() as u8]);
        for (name, score) in (b'a'..).zip(scores) {
            bytes.extend_from_slice(&[1, name]);
            bytes.extend_from_slice(score);
        }
        bytes.extend_from_slice(&[0, 1, b'k', 1, b'v', opcode::END]);
        [0, 1 << 20].map(|whole| read_all(&bytes, whole).map(|read| (read[0].1.clone(), read.len())))
    };
    for read in scores(&[b"\xff", b"\x04-1.5", b"\xfe"]) {
        let members = [(b"a", f64::NEG_INFINITY), (b"b", -1.5), (b"c", f64::INFINITY)];
        let members = members.map(|(member, score)| (member.to_vec(), score));
        assert_eq!(read.unwrap(), (Value::Zset(members.into()), 2));
    }
    for read in scores(&[b"\xfd"]) {
        assert!(matches!(read, Err(FileError::Value(RdbError::Corrupt("score")))), "{read:?}");
    }
}

#[test]
fn what_modules_keep_is_named_and_skipped() {
    let bytes = file(b"REDIS0012", Dialect::Redis);
    let mut reader = Reader::new(Input::new(&bytes[..]), Bounds::default()).unwrap();
    let mut modules = Vec::new();
    loop {
        match reader.next_item().unwrap() {
            Item::End => break,
            Item::Key(key) => _ = reader.whole(key.tag).unwrap(),
            item @ (Item::ModuleAux(_) | Item::ModuleValue(..) | Item::Function(_)) => modules.push(item),
            _ => {}
        }
    }
    let name = "ASNFZ4mrz".to_owned();
    let expected = [
        Item::ModuleAux(name.clone()),
        Item::Function(b"#!lua name=x".to_vec()),
        Item::ModuleValue(b"m".to_vec(), name),
    ];
    assert_eq!(modules, expected);
}

/// Redis keeps an element that is too long for a node with others as a node of its own.
#[test]
fn nodes_of_a_list_are_packed_or_plain() {
    let list = |nodes: &[(u8, &[u8])]| {
        let mut bytes = b"REDIS0012".to_vec();
        bytes.extend_from_slice(&[18, 1, b'l', nodes.len() as u8]);
        for (container, node) in nodes {
            bytes.push(*container);
            push_raw(node, &mut bytes);
        }
        bytes.push(opcode::END);
        let sum = crc64::checksum(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        [0, 1 << 20].map(|whole| read_all(&bytes, whole).map(|read| read[0].1.clone()))
    };
    let (packed, plain) = ([13, 0, 0, 0, 2, 0, 0x81, b'a', 2, 0x81, b'b', 2, 0xff], vec![7; 20_000]);
    let expected = Value::List(vec![b"a".to_vec(), b"b".to_vec(), plain.clone(), b"a".to_vec(), b"b".to_vec()]);
    for read in list(&[(2, &packed), (1, &plain), (2, &packed)]) {
        assert_eq!(read.unwrap(), expected);
    }
    for read in [(1, &b""[..]), (3, &packed), (0, &packed)].into_iter().flat_map(|node| list(&[(2, &packed), node])) {
        assert!(matches!(read, Err(FileError::Value(RdbError::Corrupt("quicklist")))), "{read:?}");
    }
}

/// A string that is compressed and long goes through a window of bounded size.
#[test]
fn compressed_text_comes_in_pieces() {
    // A run of one byte: three bytes stand for 264 each.
    let (mut packed, mut len) = (vec![0, b'a'], 1);
    while len < 100_000 {
        packed.extend_from_slice(&[0xe0, 0xff, 0]);
        len += 264;
    }
    let mut bytes = b"REDIS0012".to_vec();
    bytes.extend_from_slice(&[0, 1, b'k', 0xc3]);
    push_len(packed.len() as u64, &mut bytes);
    push_len(len, &mut bytes);
    bytes.extend_from_slice(&packed);
    bytes.push(opcode::END);
    bytes.extend_from_slice(&[0; 8]);
    let read = read_all(&bytes, 100).unwrap();
    assert_eq!(read[0].1, Value::String(vec![b'a'; len as usize]));
    assert_eq!(read_all(&bytes, 1 << 20).unwrap(), read);
}

#[test]
fn a_cut_file_is_told_from_a_whole_one_wherever_it_is_cut() {
    let bytes = file(b"REDIS0012", Dialect::Redis);
    let long = bytes.len() - 1_000;
    // Within the long string one place is as good as another.
    for cut in (0..bytes.len()).filter(|cut| *cut < 1_000 || cut % 97 == 0 || *cut > long) {
        for whole in [0, 1 << 20] {
            match read_all(&bytes[..cut], whole) {
                Err(FileError::Cut) => {}
                other => panic!("cut at {cut}: {other:?}"),
            }
        }
    }
}

#[test]
fn a_changed_byte_is_found_at_the_latest_by_the_checksum() {
    let bytes = file(b"REDIS0012", Dialect::Redis);
    for at in (9..bytes.len()).filter(|at| *at < 1_000 || at % 97 == 0 || *at > bytes.len() - 500) {
        for by in [1, 0x80, 0xff] {
            let mut damaged = bytes.clone();
            damaged[at] ^= by;
            for whole in [0, 1 << 20] {
                assert!(read_all(&damaged, whole).is_err(), "byte {at} changed by {by}");
            }
        }
    }
    assert!(matches!(read_all(b"REDIS0099", 1), Err(FileError::Version(99))));
    assert!(matches!(read_all(b"hello, world", 1), Err(FileError::Magic)));
}

#[test]
fn a_length_is_not_believed() {
    for tag in [0u8, 1, 2, 3, 4, 5, 14, 15, 18, 19, 21, 22, 24] {
        let mut bytes = b"REDIS0012".to_vec();
        bytes.extend_from_slice(&[tag, 1, b'k']);
        push_len(u64::MAX / 2, &mut bytes);
        push_raw(b"x", &mut bytes);
        for whole in [0, 1 << 20] {
            assert!(read_all(&bytes, whole).is_err(), "type {tag}");
        }
    }
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), whole in 0usize..100) {
        let bytes = [&b"REDIS0011"[..], &bytes].concat();
        let _ = read_all(&bytes, whole);
    }
}
