//! The forms of a hash. A time is in Unix milliseconds.
//!
//! | type | value |
//! |---|---|
//! | 4 | `count`, for each field name and value |
//! | 9, 13, 16 | a string that is a zipmap, ziplist or listpack: names and values in turn |
//! | 22 (Redis 7.4 before its release) | `count`, for each `time` (a length; 0 none), name and value |
//! | 24 (Redis 7.4) | `least time:8`, `count`, for each `time − least + 1` (a length; 0 none), name and value |
//! | 23 (Redis 7.4 before its release) | a string that is a listpack: name, value and time (0 none) in turn |
//! | 25 (Redis 7.4) | `least time:8` and the same string |
//! | 22 (Valkey 9) | `count`, for each name, value and `time:8` (-1 none) |
//!
//! Eight bytes are little-endian. The times in 25 are absolute, whatever the least is.

use super::element::Element;
use super::length::{Room, Source, push_len, push_string, read_len, read_string, unpack};
use super::listpack::{self, Listpack};
use super::value::pairs;
use super::{Field, RdbError, ziplist, zipmap};

/// The highest time that Redis has room for.
const EXPIRE_MAX: u64 = (1 << 48) - 1;

const BAD_TIME: RdbError = RdbError::Corrupt("time of a field");

/// Valkey's word for no time.
const VALKEY_NO_TIME: i64 = -1;

/// Reads a hash of Redis's types.
pub(super) fn read(tag: u8, source: &mut Source<'_>) -> Result<Vec<Field>, RdbError> {
    match tag {
        4 => read_plain(source),
        9 => fields(unpack(source, zipmap::strings)?),
        13 => fields(unpack(source, ziplist::strings)?),
        16 => unpack(source, |bytes, room| listpack::pairs(bytes, room, read_field)),
        22 => read_timed(source, None),
        23 => unpack(source, read_timed_listpack),
        24 => {
            let least_ms = source.u64_le()?;
            read_timed(source, Some(least_ms))
        }
        25 => {
            source.u64_le()?;
            unpack(source, read_timed_listpack)
        }
        _ => Err(RdbError::UnknownType(tag)),
    }
}

fn fields(strings: Vec<Vec<u8>>) -> Result<Vec<Field>, RdbError> {
    Ok(pairs(strings)?.map(|(name, value)| Field { name, value, expire_ms: 0 }).collect())
}

fn read_field(name: Element<'_>, value: Element<'_>, room: &mut Room) -> Result<Field, RdbError> {
    Ok(Field { name: name.into_string(room)?, value: value.into_string(room)?, expire_ms: 0 })
}

fn read_plain(source: &mut Source<'_>) -> Result<Vec<Field>, RdbError> {
    let count = read_len(source)?;
    let mut fields = Vec::new();
    for _ in 0..count {
        fields.push(Field { name: read_string(source)?, value: read_string(source)?, expire_ms: 0 });
    }
    Ok(fields)
}

/// Times in front of names, absolute or from the least.
fn read_timed(source: &mut Source<'_>, least_ms: Option<u64>) -> Result<Vec<Field>, RdbError> {
    let count = read_len(source)?;
    let mut fields = Vec::new();
    for _ in 0..count {
        fields.push(read_timed_field(source, least_ms)?);
    }
    Ok(fields)
}

/// One of these.
pub(super) fn read_timed_field(source: &mut Source<'_>, least_ms: Option<u64>) -> Result<Field, RdbError> {
    let expire_ms = match (read_len(source)?, least_ms) {
        (0, _) => 0,
        (time, None) => time,
        (time, Some(least_ms)) => least_ms.checked_add(time - 1).ok_or(BAD_TIME)?,
    };
    let expire_ms = check_time(expire_ms)?;
    Ok(Field { name: read_string(source)?, value: read_string(source)?, expire_ms })
}

fn check_time(expire_ms: u64) -> Result<u64, RdbError> {
    if expire_ms > EXPIRE_MAX { Err(BAD_TIME) } else { Ok(expire_ms) }
}

fn read_timed_listpack(bytes: &[u8], room: &mut Room) -> Result<Vec<Field>, RdbError> {
    let mut listpack = Listpack::new(bytes)?;
    let mut fields = Vec::new();
    while let Some(name) = listpack.next()? {
        let name = name.into_string(room)?;
        let value = listpack.element()?.into_string(room)?;
        let expire_ms = check_time(u64::try_from(listpack.int()?).map_err(|_| BAD_TIME)?)?;
        fields.push(Field { name, value, expire_ms });
    }
    Ok(fields)
}

/// Reads a hash of Valkey's type.
pub(super) fn read_valkey(source: &mut Source<'_>) -> Result<Vec<Field>, RdbError> {
    let count = read_len(source)?;
    let mut fields = Vec::new();
    for _ in 0..count {
        fields.push(read_valkey_field(source)?);
    }
    Ok(fields)
}

/// One field of it.
pub(super) fn read_valkey_field(source: &mut Source<'_>) -> Result<Field, RdbError> {
    let (name, value) = (read_string(source)?, read_string(source)?);
    let expire_ms = match source.int_le::<8>()? {
        VALKEY_NO_TIME => 0,
        time => check_time(u64::try_from(time).map_err(|_| BAD_TIME)?)?,
    };
    Ok(Field { name, value, expire_ms })
}

/// Appends type 4.
pub(super) fn write(fields: &[Field], out: &mut Vec<u8>) {
    push_len(fields.len() as u64, out);
    for field in fields {
        push_string(&field.name, out);
        push_string(&field.value, out);
    }
}

/// Appends type 24.
pub(super) fn write_expiring(fields: &[Field], out: &mut Vec<u8>) {
    let least_ms = fields.iter().map(|field| field.expire_ms).filter(|&time| time != 0).min().unwrap_or(0);
    out.extend_from_slice(&least_ms.to_le_bytes());
    push_len(fields.len() as u64, out);
    for field in fields {
        push_timed_field(field, least_ms, out);
    }
}

/// Appends one field of it.
pub(super) fn push_timed_field(field: &Field, least_ms: u64, out: &mut Vec<u8>) {
    push_len(if field.expire_ms == 0 { 0 } else { field.expire_ms - least_ms + 1 }, out);
    push_string(&field.name, out);
    push_string(&field.value, out);
}

/// Appends Valkey's type 22.
pub(super) fn write_valkey(fields: &[Field], out: &mut Vec<u8>) {
    push_len(fields.len() as u64, out);
    for field in fields {
        push_valkey_field(field, out);
    }
}

/// Appends one field of it.
pub(super) fn push_valkey_field(field: &Field, out: &mut Vec<u8>) {
    push_string(&field.name, out);
    push_string(&field.value, out);
    let time = if field.expire_ms == 0 { VALKEY_NO_TIME } else { field.expire_ms as i64 };
    out.extend_from_slice(&time.to_le_bytes());
}
