//! Redis's RDB format: the bytes of one value, and the frames in which they are carried: by DUMP and RESTORE one, by a file all.
//! No clock, and no I/O but what a file is read from or written to.
//!
//! | file | owns |
//! |---|---|
//! | `frame` | a DUMP payload: type byte, value, version, checksum |
//! | [`file`] | dump.rdb |
//! | `functions` | the payload of FUNCTION DUMP |
//! | `value` | which form a value has, and the forms of strings, lists, sets and sorted sets |
//! | `hash` | the forms of hashes, those with times of fields among them |
//! | `stream`, `stream_block` | the forms of streams and their groups; entries |
//! | `model` | values, errors |
//! | `length` | lengths and strings, compressed ones and those kept as integers |
//! | `listpack`, `ziplist`, `zipmap`, `intset` | packed forms, within a string; `element` what the first two hold |
//! | `lzf`, `crc64` | decompression; checksum |
//!
//! Read is every form of a value from RDB 1 to 12 (Redis 8.2) and RDB 80 (Valkey 9). Written is the form that the
//! oldest servers read:
//!
//! | value | type byte | RDB version | read from Redis |
//! |---|---|---|---|
//! | string, list, set, hash | 0, 1, 2, 4 | 6 | 2.6 |
//! | sorted set, scores in binary | 5 | 8 | 4.0 |
//! | stream | 15 | 9 | 5.0 |
//! | stream with deleted or trimmed entries, or groups whose count cannot be guessed | 19 | 10 | 7.0 |
//! | stream with consumers seen since they were last active | 21 | 11 | 7.2 |
//! | hash with times of fields | 24 | 12 | 7.4 |
//! | the same, for Valkey | 22 | 80 | Valkey 9.0 |
//!
//! Invariants: no bytes make a reader panic, nor allocate by what a length says before that much is known to be there.
//! What is read has no duplicates, no score that is not a number, and stream entries in the order of their ids.

mod crc64;
mod element;
pub mod file;
mod frame;
mod functions;
mod hash;
mod intset;
mod length;
mod listpack;
mod lzf;
mod model;
mod stream;
mod stream_block;
#[cfg(test)]
mod tests;
mod value;
mod ziplist;
mod zipmap;

pub use frame::{decode, decode_within, encode, encode_for};
pub use functions::{FunctionsError, decode_functions, encode_functions};
pub use listpack::entry_bytes;
pub use model::{Consumer, Counters, Dialect, Entry, Field, Group, Pending, RdbError, Stream, Value};
pub use value::{Form, read, write};
