//! Any bytes as dump.rdb, whole and piece by piece: no panic, and no more memory than allowed.
//!
//! The input's first byte picks how much of a value is read as a whole.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tarn::rdb::file::{Bounds, FileError, Input, Item, Reader, decode};

const PIECE: usize = 1 << 20;

fn read(bytes: &[u8], whole: usize) -> Result<u64, FileError> {
    let mut reader = Reader::new(Input::new(bytes), Bounds { whole, piece: PIECE })?;
    let mut keys = 0;
    loop {
        match reader.next_item()? {
            Item::End => return Ok(keys),
            Item::Key(key) => {
                keys += 1;
                let version = reader.version();
                match reader.whole(key.tag)? {
                    Some(bytes) => drop(decode(key.tag, version, bytes, 1 << 24)?),
                    None => reader.parts(key.tag, &mut |_| true)?,
                }
            }
            _ => {}
        }
        assert!(reader.offset() <= bytes.len() as u64);
    }
}

fuzz_target!(|data: &[u8]| {
    let [whole, rest @ ..] = data else { return };
    for head in [&b"REDIS0012"[..], b"VALKEY080"] {
        let bytes = [head, rest].concat();
        _ = read(&bytes, usize::from(*whole));
        _ = read(&bytes, PIECE);
    }
    _ = read(rest, PIECE);
});
