//! Any bytes as an RDB value and as a DUMP payload: no panic, no allocation by what a length says, and a value that
//! is read means the same when it is written and read again, in both dialects.
//!
//! The input's first byte is the type, its second picks the version.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tarn::rdb::{Dialect, Form, Value, decode, encode, read, write};

/// Names of fields that a stream's entries share count once in the input and once for each entry when written.
const NAMES_MAX: usize = 1 << 24;

fuzz_target!(|data: &[u8]| {
    let _ = decode(data, 0);
    let [tag, version, bytes @ ..] = data else { return };
    let version = if version & 1 == 0 { 13 } else { 80 };
    let Ok((value, rest)) = read(*tag, version, bytes) else { return };
    assert!(rest.len() <= bytes.len());
    if names_len(&value) > NAMES_MAX {
        return;
    }
    for dialect in [Dialect::Redis, Dialect::Valkey] {
        let form = Form::of(&value, dialect);
        let mut again = Vec::new();
        write(&value, form, &mut again);
        assert_eq!(read(form.tag(), form.version(), &again), Ok((value.clone(), &[][..])));
    }
    let mut payload = Vec::new();
    encode(&value, &mut payload);
    assert_eq!(decode(&payload, 0), Ok(value));
});

fn names_len(value: &Value) -> usize {
    let Value::Stream(stream) = value else { return 0 };
    stream.entries.iter().flat_map(|entry| &entry.fields).map(|(name, _)| name.len()).sum()
}
