//! Where a value ends: it is gone through without being understood, so that whoever understands it may do so elsewhere.

use std::io::Read;

use super::{FileError, Input};
use crate::rdb::RdbError;
use crate::rdb::length::{INT8, INT16, INT32, LZF};
use crate::rdb::value::VERSION_VALKEY;

/// Goes past a value.
pub(super) fn skip<R: Read>(input: &mut Input<R>, tag: u8, version: u16) -> Result<(), FileError> {
    match tag {
        0 | 9..=13 | 16 | 17 | 20 | 23 => skip_string(input),
        1 | 2 | 14 => each(input, skip_string),
        3 => each(input, |input| {
            skip_string(input)?;
            skip_score_text(input)
        }),
        4 => each(input, skip_two),
        5 => each(input, |input| {
            skip_string(input)?;
            skip_bytes(input, 8)
        }),
        18 => each(input, |input| {
            input.len()?;
            skip_string(input)
        }),
        15 => skip_stream(input, 0),
        19 => skip_stream(input, 1),
        21 => skip_stream(input, 2),
        22 if version >= VERSION_VALKEY => each(input, |input| {
            skip_two(input)?;
            skip_bytes(input, 8)
        }),
        22 => each(input, skip_timed),
        24 => {
            skip_bytes(input, 8)?;
            each(input, skip_timed)
        }
        25 => {
            skip_bytes(input, 8)?;
            skip_string(input)
        }
        tag => Err(RdbError::UnknownType(tag).into()),
    }
}

fn each<R: Read>(
    input: &mut Input<R>,
    mut one: impl FnMut(&mut Input<R>) -> Result<(), FileError>,
) -> Result<(), FileError> {
    for _ in 0..input.len()? {
        one(input)?;
    }
    Ok(())
}

fn skip_bytes<R: Read>(input: &mut Input<R>, len: u64) -> Result<(), FileError> {
    // A length that no memory has is more than may be held.
    input.bytes(usize::try_from(len).unwrap_or(usize::MAX)).map(drop)
}

/// Goes past a string of any form.
pub(super) fn skip_string<R: Read>(input: &mut Input<R>) -> Result<(), FileError> {
    let len = string_extent(input)?;
    skip_bytes(input, len)
}

/// Reads what stands in front of a string; how many bytes follow.
fn string_extent<R: Read>(input: &mut Input<R>) -> Result<u64, FileError> {
    Ok(match input.u8()? {
        INT8 => 1,
        INT16 => 2,
        INT32 => 4,
        LZF => {
            let compressed = input.len()?;
            input.len()?;
            compressed
        }
        first => input.len_behind(first)?,
    })
}

fn skip_two<R: Read>(input: &mut Input<R>) -> Result<(), FileError> {
    skip_string(input)?;
    skip_string(input)
}

/// A hash's field behind its time.
pub(super) fn skip_timed<R: Read>(input: &mut Input<R>) -> Result<(), FileError> {
    input.len()?;
    skip_two(input)
}

pub(super) fn skip_score_text<R: Read>(input: &mut Input<R>) -> Result<(), FileError> {
    match input.u8()? {
        253..=255 => Ok(()),
        len => skip_bytes(input, len.into()),
    }
}

/// Goes past a stream; `since` says which parts it has: those of type 19 from 1 on, those of type 21 from 2 on.
fn skip_stream<R: Read>(input: &mut Input<R>, since: u8) -> Result<(), FileError> {
    each(input, skip_two)?;
    for _ in 0..if since >= 1 { 8 } else { 3 } {
        input.len()?;
    }
    each(input, |input| skip_group(input, since))
}

/// Goes past a consumer group.
pub(super) fn skip_group<R: Read>(input: &mut Input<R>, since: u8) -> Result<(), FileError> {
    skip_string(input)?;
    for _ in 0..if since >= 1 { 3 } else { 2 } {
        input.len()?;
    }
    each(input, |input| {
        skip_bytes(input, 24)?;
        input.len().map(drop)
    })?;
    each(input, |input| {
        skip_string(input)?;
        skip_bytes(input, if since >= 2 { 16 } else { 8 })?;
        let pending = input.len()?;
        skip_bytes(input, pending.saturating_mul(16))
    })
}

/// Passes what a module has written, whatever that is.
pub(super) fn skip_module<R: Read>(input: &mut Input<R>) -> Result<(), FileError> {
    loop {
        input.release();
        match input.len()? {
            0 => return Ok(()),
            // A signed and an unsigned number.
            1 | 2 => _ = input.len()?,
            3 => input.pass(4)?,
            4 => input.pass(8)?,
            5 => {
                let len = string_extent(input)?;
                input.pass(len)?;
            }
            _ => return Err(RdbError::Corrupt("value of a module").into()),
        }
    }
}
