//! What the codec costs a command: the key, the metadata and the log operation of a SET, and their elements' like.

#![expect(missing_docs, reason = "criterion's macro makes a public function")]

use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use tarn::codec::key::{self, decode_key};
use tarn::codec::redo::{self, Ops};
use tarn::codec::{Extra, Kind, Meta, Score, element};

const KEY: &[u8] = b"key:000000012345";
const VALUE: &[u8] = &[b'x'; 100];
const VERSION: u64 = 123_456_789;

/// Measures `encode` into a buffer that is reused, as every caller does.
fn encode(c: &mut Criterion, name: &str, mut encode: impl FnMut(&mut Vec<u8>)) {
    let mut out = Vec::with_capacity(4096);
    c.bench_function(name, |b| {
        b.iter(|| {
            out.clear();
            encode(&mut out);
            black_box(out.len())
        });
    });
}

fn keys(c: &mut Criterion) {
    encode(c, "key/meta", |out| key::meta_key(black_box(1), black_box(KEY), out));
    let long = vec![b'x'; 2000];
    encode(c, "key/meta of 2000 bytes", |out| key::meta_key(black_box(1), black_box(&long), out));
    let mut field = Vec::new();
    element::hash_field(b"field", &mut field);
    encode(c, "key/element", |out| key::element_key(black_box(1), black_box(KEY), VERSION, &field, out));
    let score = Score::new(12.5).unwrap_or_else(|_| unreachable!());
    encode(c, "key/zset sort", |out| element::zset_sort(black_box(score), black_box(b"member"), out));
    let mut bytes = Vec::new();
    key::element_key(1, KEY, VERSION, &field, &mut bytes);
    c.bench_function("key/decode element", |b| b.iter(|| decode_key(black_box(&bytes))));
}

fn metadata(c: &mut Criterion) {
    let string = Meta::new(Kind::String);
    let expiring = Meta { expire_ms: 1_700_000_000_000, ..string };
    let extra = Extra::List { head: -5, tail: 5, bytes: 60 };
    let list = Meta { version: VERSION, size: 10, extra, ..Meta::new(Kind::List) };
    for (name, meta, value) in [("string", string, VALUE), ("expiring string", expiring, VALUE), ("list", list, b"")] {
        encode(c, &format!("meta/encode {name}"), |out| black_box(&meta).encode(None, black_box(value), out));
        let mut bytes = Vec::new();
        meta.encode(None, value, &mut bytes);
        c.bench_function(&format!("meta/decode {name}"), |b| b.iter(|| Meta::decode(black_box(&bytes)).is_ok()));
    }
}

fn operations(c: &mut Criterion) {
    let mut header = Vec::new();
    Meta::new(Kind::String).encode_header(&mut header);
    let header = header.as_slice();
    encode(c, "op/put", |out| redo::encode_put(black_box(1), black_box(KEY), header, black_box(VALUE), out));
    encode(c, "op/delete", |out| redo::encode_delete(black_box(1), black_box(KEY), out));
    encode(c, "op/element put", |out| {
        redo::encode_elem_put(black_box(b"\x01field"), black_box(VALUE), out);
    });
    encode(c, "op/count", |out| redo::encode_count(black_box(3), 1, black_box(1_000_000), out));
    let mut record = Vec::new();
    for _ in 0..16 {
        redo::encode_put(1, KEY, header, VALUE, &mut record);
    }
    c.bench_function("op/decode 16 puts", |b| b.iter(|| Ops::new(black_box(&record)).filter(Result::is_ok).count()));
}

criterion_group!(benches, keys, metadata, operations);
criterion_main!(benches);
