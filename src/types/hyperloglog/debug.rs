//! PFDEBUG, PFSELFTEST: for those who look inside.

use std::fmt::Write as _;

use super::command::{load, look_up, store};
use super::format::{Encoding, REGISTERS};
use super::sparse;
use super::value::{self, HyperLogLog, Registers};
use crate::handler::{Args, Command, Ctx, Error, Group, KeySpec, Reply, Result, flags, key};

fn pfdebug(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let word = &args[1];
    let is = |name: &str| word.eq_ignore_ascii_case(name.as_bytes());
    if is("SIMD") {
        return simd(&args[2], out);
    }
    let (found, encoding) = look_up(ctx, &args[2])?.ok_or(Error::err("ERR The specified key does not exist"))?;
    if is("GETREG") {
        let hll = made_dense(ctx, &args[2])?;
        let mut registers = Registers::default();
        registers.merge(hll.bytes(), Encoding::Dense)?;
        out.array(REGISTERS);
        registers.as_slice().iter().for_each(|&rank| out.int(rank.into()));
    } else if is("DECODE") {
        if encoding != Encoding::Sparse {
            return Err(Error::err("ERR HLL encoding is not sparse"));
        }
        let text = decode(&ctx.string_value(found)?);
        out.bulk(text.as_bytes());
    } else if is("ENCODING") {
        out.status(if encoding == Encoding::Dense { "dense" } else { "sparse" });
    } else if is("TODENSE") {
        made_dense(ctx, &args[2])?;
        out.int((encoding == Encoding::Sparse).into());
    } else {
        return Err(Error::quoting("ERR Unknown PFDEBUG subcommand '", word, usize::MAX, "'"));
    }
    Ok(())
}

/// There is one way to count here, whatever Redis is told about its own.
fn simd(setting: &[u8], out: &mut Reply) -> Result {
    let on = setting.eq_ignore_ascii_case(b"ON");
    if !on && !setting.eq_ignore_ascii_case(b"OFF") {
        return Err(Error::err("ERR Argument must be ON or OFF"));
    }
    out.status(if on { "enabled" } else { "disabled" });
    Ok(())
}

/// The HyperLogLog at a key, which must be there, turned dense.
fn made_dense(ctx: &mut Ctx, key: &[u8]) -> Result<HyperLogLog> {
    let (found, encoding) = look_up(ctx, key)?.ok_or(Error::NoSuchKey)?;
    let mut hll = load(ctx, found, encoding)?;
    if encoding == Encoding::Sparse {
        hll.make_dense()?;
        store(ctx, key, Some(found), &hll)?;
    }
    Ok(hll)
}

/// The runs of a sparse one, in Redis's notation, be they sound or not.
fn decode(bytes: &[u8]) -> String {
    let mut text = String::new();
    for run in sparse::all_runs(bytes) {
        let space = if text.is_empty() { "" } else { " " };
        let written = match (run.rank, run.bytes) {
            (0, 1) => write!(text, "{space}z:{}", run.len),
            (0, _) => write!(text, "{space}Z:{}", run.len),
            (rank, _) => write!(text, "{space}v:{rank},{}", run.len),
        };
        debug_assert!(written.is_ok(), "a string takes all text");
    }
    text
}

fn pfselftest(_: &mut Ctx, _: Args<'_>, out: &mut Reply) -> Result {
    self_test(100_000)?;
    out.ok();
    Ok(())
}

/// Adds up to `most` elements to a sparse and a dense HyperLogLog and looks at every power of ten whether both hold the
/// same, and count within four standard errors.
fn self_test(most: u64) -> Result {
    let failed = |what: &str, at: u64| Err(Error::Text(format!("ERR TESTFAILED {what} after {at} elements").into()));
    let (mut sparse, mut dense) = (HyperLogLog::new(3000), HyperLogLog::new(3000));
    dense.make_dense()?;
    let mut look_at = 1;
    for n in 1..=most {
        let element = n.to_le_bytes();
        if sparse.add(&element)? != dense.add(&element)? {
            return failed("encodings differ in an addition", n);
        }
        if n == look_at {
            look_at *= 10;
            let count = value::count(sparse.bytes(), sparse.encoding())?;
            if count != value::count(dense.bytes(), dense.encoding())? {
                return failed("encodings differ in their count", n);
            }
            let standard_error = 1.04 / (REGISTERS as f64).sqrt();
            if count.abs_diff(n) as f64 > (4.0 * standard_error * n as f64).ceil() {
                return failed(&format!("count of {count}"), n);
            }
        }
    }
    Ok(())
}

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("pfdebug", pfdebug, 3, flags::WRITE | flags::DENYOOM | flags::ADMIN, Group::HyperLogLog)
        .keys(&[KeySpec::one(2, key::RW | key::ACCESS)])
        .help("2.8.9", "Shows what a HyperLogLog looks like inside.")
        .syntax("subcommand key", "O(N) where N is the number of registers."),
    Command::new("pfselftest", pfselftest, 1, flags::ADMIN | flags::THREAD, Group::HyperLogLog)
        .help("2.8.9", "Tests the HyperLogLogs of this server.")
        .syntax("", "O(1)"),
];

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn the_self_test_passes() {
        self_test(1_000_000).unwrap();
    }

    #[test]
    fn runs_in_words() {
        let mut hll = HyperLogLog::new(3000);
        for element in ["x", "y", "z"] {
            hll.add(element.as_bytes()).unwrap();
        }
        assert_eq!(decode(hll.bytes()), "Z:8581 v:1,1 Z:6350 v:3,1 Z:1441 v:2,1 z:9");
    }
}
