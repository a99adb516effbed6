//! How long a client is willing to wait.

use crate::error::{Error, Result};
use crate::util::num::parse_i64;

/// A timeout in milliseconds, 0 for ever; it must not lead beyond the end of time.
pub fn timeout_ms(now_ms: u64, arg: &[u8]) -> Result<u64> {
    let timeout = parse_i64(arg).ok_or(Error::err("ERR timeout is not an integer or out of range"))?;
    let timeout = u64::try_from(timeout).map_err(|_| Error::err("ERR timeout is negative"))?;
    if timeout > i64::MAX as u64 - now_ms {
        return Err(Error::err("ERR timeout is out of range"));
    }
    Ok(timeout)
}
