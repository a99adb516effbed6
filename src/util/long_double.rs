//! The 80-bit floats of INCRBYFLOAT and HINCRBYFLOAT.
//!
//! Redis computes these commands in C's `long double`, on x86-64 the x87 format: a significand of 64 bits, exponents
//! to 2¹⁶³⁸⁴. Its replies show that precision (`0.1` plus `0.2` is `0.3`), so it is reproduced here in integers:
//! reading and the sum round the exact value once, to nearest, ties to even; printing is exact to 17 places.

use std::fmt;

use super::bignum::Big;
use super::decimal::{self, EXTENDED, Number, Rounded};

/// Redis reads no longer text than fits its buffer, with the terminator.
const TEXT_MAX_BYTES: usize = 5 * 1024 - 1;
/// Decimal places printed.
const PLACES: usize = 17;

/// A number of the x87's extended format; infinite, but never NaN.
#[derive(Debug, Clone, Copy)]
pub struct LongDouble {
    negative: bool,
    magnitude: Rounded,
}

impl LongDouble {
    /// Reads what Redis reads: everything `strtold` takes whole, except `nan`, leading white space, a number that is
    /// too high (but `inf` is taken), and one that is not zero but rounds to it.
    pub fn parse(text: &[u8]) -> Option<Self> {
        if text.len() > TEXT_MAX_BYTES {
            return None;
        }
        let text = decimal::scan(text)?;
        let (magnitude, is_zero) = match text.number {
            Number::Infinity => return Some(LongDouble { negative: text.negative, magnitude: Rounded::Infinity }),
            Number::Decimal(digits) => (decimal::round_decimal(digits, EXTENDED), digits.is_zero()),
            Number::Hexadecimal(digits) => (decimal::round_hexadecimal(digits, EXTENDED), digits.is_zero()),
        };
        match magnitude {
            Rounded::Infinity => None,
            Rounded::Finite(0, _) if !is_zero => None,
            magnitude => Some(LongDouble { negative: text.negative, magnitude }),
        }
    }

    /// Whether it is infinite.
    pub const fn is_infinite(&self) -> bool {
        matches!(self.magnitude, Rounded::Infinity)
    }

    /// The sum; `None` if it is infinite or no number.
    pub fn checked_add(self, other: LongDouble) -> Option<LongDouble> {
        let (Rounded::Finite(a, a_exponent), Rounded::Finite(b, b_exponent)) = (self.magnitude, other.magnitude) else {
            return None;
        };
        if a == 0 || b == 0 {
            return Some(if a == 0 { other } else { self });
        }
        // Both with the highest bit set, so that the exponents tell which is higher.
        let (a, a_exponent) = (a << a.leading_zeros(), a_exponent - i64::from(a.leading_zeros()));
        let (b, b_exponent) = (b << b.leading_zeros(), b_exponent - i64::from(b.leading_zeros()));
        let a_first = (a_exponent, a) >= (b_exponent, b);
        let (high, low, exponent, distance, negative) = if a_first {
            (a, b, a_exponent, a_exponent - b_exponent, self.negative)
        } else {
            (b, a, b_exponent, b_exponent - a_exponent, other.negative)
        };
        // One bit above for the carry, 63 below for what the lower number has there; the rest only tilts a tie.
        let (high, low) = (u128::from(high) << 63, u128::from(low) << 63);
        let shifted = low.checked_shr(distance as u32).unwrap_or(0);
        let inexact = shifted.checked_shl(distance as u32).unwrap_or(0) != low;
        let sum = if self.negative == other.negative {
            high + shifted
        } else {
            // Just below the difference: what was cut off the lower number is missing.
            high - shifted - u128::from(inexact)
        };
        if sum == 0 {
            return Some(LongDouble { negative: false, magnitude: Rounded::Finite(0, 0) });
        }
        match decimal::round(sum, exponent - 63, inexact, EXTENDED) {
            Rounded::Infinity => None,
            magnitude => Some(LongDouble { negative, magnitude }),
        }
    }
}

impl From<f64> for LongDouble {
    /// Exact. NaN, which no command lets in, becomes infinity.
    fn from(value: f64) -> Self {
        let bits = value.to_bits();
        let (biased, fraction) = ((bits >> 52 & 0x7ff) as i64, bits & ((1 << 52) - 1));
        let magnitude = match biased {
            0x7ff => Rounded::Infinity,
            0 => Rounded::Finite(fraction, -1074),
            _ => Rounded::Finite(fraction | 1 << 52, biased - 1075),
        };
        LongDouble { negative: value.is_sign_negative(), magnitude }
    }
}

/// As Redis prints it: `%.17Lf` without the zeros at the end, never in scientific notation.
impl fmt::Display for LongDouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.magnitude {
            Rounded::Infinity => "inf".into(),
            Rounded::Finite(significand, exponent) if exponent >= 0 => {
                let mut whole = Big::new(significand);
                whole.shl(exponent as usize);
                whole.into_decimal()
            }
            Rounded::Finite(significand, exponent) => print_fraction(significand, exponent.unsigned_abs()),
        };
        if self.negative && text != "0" {
            f.write_str("-")?;
        }
        f.write_str(&text)
    }
}

/// `significand / 2^shift`, rounded to 17 places.
fn print_fraction(significand: u64, shift: u64) -> String {
    let scaled = u128::from(significand) * 10u128.pow(PLACES as u32);
    // Below 2^121: a higher shift leaves less than half of the last place.
    let units = if shift > 122 {
        0
    } else {
        let (units, rest, half) = (scaled >> shift, scaled & ((1 << shift) - 1), 1 << (shift - 1));
        units + u128::from(rest > half || (rest == half && units % 2 == 1))
    };
    let text = format!("{units:0width$}", width = PLACES + 1);
    let (whole, fraction) = text.split_at(text.len() - PLACES);
    match fraction.trim_end_matches('0') {
        "" => whole.into(),
        fraction => format!("{whole}.{fraction}"),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// What `INCRBYFLOAT` makes of a value and an increment.
    fn sum(value: &str, increment: &str) -> Option<String> {
        let value = LongDouble::parse(value.as_bytes()).unwrap();
        let increment = LongDouble::parse(increment.as_bytes()).unwrap();
        value.checked_add(increment).map(|sum| sum.to_string())
    }

    /// Results of Redis 8.2.3 on x86-64.
    #[test]
    fn sums_agree_with_redis() {
        for line in include_str!("long_double_cases.txt").lines() {
            let mut words = line.split(' ');
            let (value, increment) = (words.next().unwrap(), words.next().unwrap());
            assert_eq!(sum(value, increment).as_deref(), words.next(), "{value} + {increment}");
        }
    }

    #[test]
    fn sums_that_are_no_number() {
        for (value, increment) in [("inf", "1"), ("1", "-inf"), ("inf", "-inf"), ("1e4932", "1e4932")] {
            assert_eq!(sum(value, increment), None);
        }
        assert_eq!(sum("1e4932", "-1e4932").as_deref(), Some("0"));
    }

    #[test]
    fn texts_that_redis_refuses() {
        let long = "0".repeat(TEXT_MAX_BYTES);
        assert!(LongDouble::parse(long.as_bytes()).is_some());
        for text in ["", " 1", "1 ", "nan", "1e5000", "1e-5000", "0x", "1e", "1e.5", "--1", "1\0", &(long + "0")] {
            assert!(LongDouble::parse(text.as_bytes()).is_none(), "{text}");
        }
        for text in ["1e-4950", "0e-5000", "0x1p-16445", "0X.8p1", "+.5", "5.", "-iNf", "infinity", "1e4932"] {
            assert!(LongDouble::parse(text.as_bytes()).is_some(), "{text}");
        }
        assert!(LongDouble::parse(b"0x1p-16446").is_none());
    }

    #[test]
    fn doubles_print_exactly() {
        for (value, expected) in [
            (0.1, "0.10000000000000001"),
            (-0.0, "0"),
            (1e22, "10000000000000000000000"),
            (-2.5, "-2.5"),
            (5e-324, "0"),
            (f64::NEG_INFINITY, "-inf"),
            (13.361_389_338_970_184, "13.36138933897018433"),
        ] {
            assert_eq!(LongDouble::from(value).to_string(), expected);
        }
    }
}
