//! The header; what is a HyperLogLog at all. The module above draws it.

use crate::handler::Error;

/// Registers.
pub const REGISTERS: usize = 1 << 14;
/// Bits of the hash that are looked at for the rank.
pub const Q: u8 = 50;
/// Bytes before the registers.
pub const HEADER: usize = 16;
/// Where the encoding stands.
pub const ENCODING_AT: usize = 4;
/// Where the count of the last time stands.
pub const COUNT_AT: usize = 8;
/// The byte that holds [`STALE`].
pub const STALE_AT: usize = 15;
/// Says that the count no longer holds.
pub const STALE: u8 = 0x80;
/// Length of a dense HyperLogLog.
pub const DENSE_LEN: usize = HEADER + REGISTERS * 6 / 8;
/// Length that no sound sparse HyperLogLog passes: two bytes for each register.
pub const SPARSE_LEN_MAX: usize = HEADER + REGISTERS * 2;

const MAGIC: &[u8] = b"HYLL";

/// The string is no HyperLogLog.
pub const NOT_VALID: Error = Error::err("WRONGTYPE Key is not a valid HyperLogLog string value.");
/// It says that it is one, but its registers make no sense.
pub const CORRUPT: Error = Error::err("INVALIDOBJ Corrupted HLL object detected");

/// How the registers are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// 6 bits each.
    Dense = 0,
    /// Runs.
    Sparse = 1,
}

/// The encoding by the header of a string of `len` bytes, of which `head` are the first 16.
///
/// # Errors
/// [`NOT_VALID`], or [`CORRUPT`] for a sparse one that is too long.
pub fn encoding(head: &[u8], len: usize) -> Result<Encoding, Error> {
    if len < HEADER || head.len() < HEADER || !head.starts_with(MAGIC) {
        return Err(NOT_VALID);
    }
    match head[ENCODING_AT] {
        0 if len == DENSE_LEN => Ok(Encoding::Dense),
        1 if len > SPARSE_LEN_MAX => Err(CORRUPT),
        1 => Ok(Encoding::Sparse),
        _ => Err(NOT_VALID),
    }
}

/// A header whose count is 0 and holds.
pub fn header(encoding: Encoding) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..MAGIC.len()].copy_from_slice(MAGIC);
    header[ENCODING_AT] = encoding as u8;
    header
}

/// The count of the last time, unless it is stale.
pub fn count(head: &[u8]) -> Option<u64> {
    let bytes = head.get(COUNT_AT..HEADER)?.try_into().ok()?;
    let count = u64::from_le_bytes(bytes);
    (count >> 63 == 0).then_some(count)
}
