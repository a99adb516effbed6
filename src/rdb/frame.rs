//! A DUMP payload: `type:1` `value` `version:2` (little-endian) `checksum:8` (little-endian, of all before it).

use super::value::{Form, read_within, write};
use super::{Dialect, RdbError, Value, crc64};

const VERSION_LEN: usize = 2;
const CHECKSUM_LEN: usize = 8;

/// The highest version of Redis's that is known (its new types are refused by their type bytes), and Valkey's own.
const VERSION_MAX: u16 = 13;
const VERSION_VALKEY: u16 = 80;

/// The value in a DUMP payload, at the time given in Unix milliseconds: fields of hashes that have ended by then are
/// left out, so a hash may come without fields. Bytes behind the value are ignored, as Redis does.
pub fn decode(payload: &[u8], now_ms: u64) -> Result<Value, RdbError> {
    decode_within(payload, now_ms, usize::MAX)
}

/// The same, if the value takes no more than `room` bytes of memory, about. A payload can stand for thousands of times
/// as much as it is long.
///
/// # Errors
/// `TooLarge`, besides those of [`decode`].
pub fn decode_within(payload: &[u8], now_ms: u64, room: usize) -> Result<Value, RdbError> {
    let (version, body) = open(payload)?;
    let (&tag, body) = body.split_first().ok_or(RdbError::Corrupt("no type"))?;
    let (mut value, _) = read_within(tag, version, body, room)?;
    if let Value::Hash(fields) = &mut value {
        fields.retain(|field| field.expire_ms == 0 || field.expire_ms >= now_ms);
    }
    Ok(value)
}

/// Version and body of a payload whose checksum is right.
pub(super) fn open(payload: &[u8]) -> Result<(u16, &[u8]), RdbError> {
    let (checked, checksum) = payload.split_last_chunk::<CHECKSUM_LEN>().ok_or(RdbError::Frame)?;
    let (body, version) = checked.split_last_chunk::<VERSION_LEN>().ok_or(RdbError::Frame)?;
    let version = u16::from_le_bytes(*version);
    if version > VERSION_MAX && version != VERSION_VALKEY {
        return Err(RdbError::Version(version));
    }
    if crc64::checksum(checked) != u64::from_le_bytes(*checksum) {
        return Err(RdbError::Checksum);
    }
    Ok((version, body))
}

/// Appends version and checksum to the body that begins at `start`.
pub(super) fn close(start: usize, version: u16, out: &mut Vec<u8>) {
    out.extend_from_slice(&version.to_le_bytes());
    let checksum = crc64::checksum(&out[start..]);
    out.extend_from_slice(&checksum.to_le_bytes());
}

/// Appends the payload that DUMP answers, in the form that the oldest servers read.
pub fn encode(value: &Value, out: &mut Vec<u8>) {
    encode_for(value, Dialect::Redis, out);
}

/// Appends a payload for servers of one dialect.
pub fn encode_for(value: &Value, dialect: Dialect, out: &mut Vec<u8>) {
    let start = out.len();
    let form = Form::of(value, dialect);
    out.push(form.tag());
    write(value, form, out);
    close(start, form.version(), out);
}
