//! How long a client is willing to wait.

use crate::error::{Error, Result};
use crate::handler::Ctx;
use crate::handler::effects::Wait;
use crate::shard::memory::object::Kind;
use crate::util::long_double::LongDouble;
use crate::util::num::{parse_double, parse_i64};

const NEGATIVE: Error = Error::err("ERR timeout is negative");
const TOO_LONG: Error = Error::err("ERR timeout is out of range");

/// A timeout in milliseconds, 0 for ever; it must not lead beyond the end of time.
pub fn timeout_ms(now_ms: u64, arg: &[u8]) -> Result<u64> {
    let timeout = parse_i64(arg).ok_or(Error::err("ERR timeout is not an integer or out of range"))?;
    let timeout = u64::try_from(timeout).map_err(|_| NEGATIVE)?;
    if timeout > i64::MAX as u64 - now_ms {
        return Err(TOO_LONG);
    }
    Ok(timeout)
}

/// When a timeout in seconds, maybe with a fraction, is over: Unix ms, 0 for never.
pub fn until_ms(now_ms: u64, arg: &[u8]) -> Result<u64> {
    let Some(seconds) = parse_double(arg) else {
        // Redis reads a long double, of which most are no doubles.
        let negative = arg.first() == Some(&b'-');
        return Err(match LongDouble::parse(arg) {
            Some(_) if negative => NEGATIVE,
            Some(_) => TOO_LONG,
            None => Error::err("ERR timeout is not a float or out of range"),
        });
    };
    let ms = (seconds * 1000.0).ceil();
    match ms {
        ..0.0 => Err(NEGATIVE),
        0.0 => Ok(0),
        ms if ms >= (i64::MAX as u64 - now_ms) as f64 => Err(TOO_LONG),
        ms => Ok(now_ms + ms as u64),
    }
}

/// Has a command wait for one of these keys to hold this, if it may; whether it does.
pub fn wait_for<'a>(ctx: &mut Ctx, keys: impl Iterator<Item = &'a [u8]>, kind: Kind, until_ms: u64) -> bool {
    let may = ctx.may_wait();
    if may {
        let keys = keys.map(Into::into).collect();
        ctx.wait(Wait { keys, kind, hears_all: false, until_ms, whole: false, args: None });
    }
    may
}
