//! The text of a float, taken apart, and its value rounded to a binary format, exactly.
//!
//! The text is what C's `strtod` takes whole: a sign, then `inf`, `infinity`, a decimal number with an optional
//! exponent, or a hexadecimal one (`0x1.8p3`). `nan` is left out: no command wants it. Both roundings go from the
//! exact value to nearest, ties to even, in one step.

use super::bignum::Big;

/// A float's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Text<'a> {
    pub(super) negative: bool,
    pub(super) number: Number<'a>,
}

/// What stands after the sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Number<'a> {
    Infinity,
    /// `whole.fraction × 10^exponent`, in digits.
    Decimal(Digits<'a>),
    /// `whole.fraction × 2^exponent`, in hexadecimal digits.
    Hexadecimal(Digits<'a>),
}

/// Digits around a point; one side may be empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Digits<'a> {
    whole: &'a [u8],
    fraction: &'a [u8],
    /// Kept within ±2⁴⁰, beyond which no length of digits brings a number back into any format's range.
    exponent: i64,
}

const EXPONENT_MAX: i64 = 1 << 40;

/// A binary floating-point format: integers below 2^`bits` times 2^e.
#[derive(Debug, Clone, Copy)]
pub(super) struct Format {
    /// Bits of the significand.
    pub(super) bits: i64,
    /// The lowest e: that of the smallest number above zero.
    pub(super) exponent_min: i64,
    /// All numbers are below two to this power.
    pub(super) limit: i64,
}

/// `f64`.
pub(super) const DOUBLE: Format = Format { bits: 53, exponent_min: -1074, limit: 1024 };
/// The x87's 80-bit format, C's `long double` on x86-64.
pub(super) const EXTENDED: Format = Format { bits: 64, exponent_min: -16445, limit: 16384 };

/// A rounded number without its sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rounded {
    /// Significand (zero for zero) and exponent.
    Finite(u64, i64),
    /// Too high for the format.
    Infinity,
}

/// Takes `text` apart; `None` if any of it is not part of a float, or if it is `nan`.
pub(super) fn scan(text: &[u8]) -> Option<Text<'_>> {
    let (negative, text) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    let number = if text.eq_ignore_ascii_case(b"inf") || text.eq_ignore_ascii_case(b"infinity") {
        Number::Infinity
    } else if let [b'0', b'x' | b'X', rest @ ..] = text {
        Number::Hexadecimal(scan_digits(rest, u8::is_ascii_hexdigit, b'p')?)
    } else {
        Number::Decimal(scan_digits(text, u8::is_ascii_digit, b'e')?)
    };
    Some(Text { negative, number })
}

fn scan_digits(text: &[u8], is_digit: fn(&u8) -> bool, exponent_mark: u8) -> Option<Digits<'_>> {
    let split = |text: &[u8]| text.iter().position(|byte| !is_digit(byte)).unwrap_or(text.len());
    let (whole, rest) = text.split_at(split(text));
    let (fraction, rest) = match rest {
        [b'.', rest @ ..] => rest.split_at(split(rest)),
        rest => (&[][..], rest),
    };
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let exponent = match rest {
        [] => 0,
        [mark, rest @ ..] if mark.eq_ignore_ascii_case(&exponent_mark) => scan_exponent(rest)?,
        _ => return None,
    };
    Some(Digits { whole, fraction, exponent })
}

fn scan_exponent(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0, |exponent: i64, byte| {
        let digit = i64::from(byte.is_ascii_digit().then(|| byte - b'0')?);
        let digit = if negative { -digit } else { digit };
        Some((exponent * 10 + digit).clamp(-EXPONENT_MAX, EXPONENT_MAX))
    })
}

impl Digits<'_> {
    /// Whether all digits are zero.
    pub(super) fn is_zero(&self) -> bool {
        self.whole.iter().chain(self.fraction).all(|&digit| digit == b'0')
    }

    /// Digits from the first to the last that is not zero, their count, and the exponent for the last of them in units
    /// of a digit.
    fn significant(&self) -> (impl Iterator<Item = u8> + Clone + '_, usize, i64) {
        let all = self.whole.iter().chain(self.fraction).copied();
        let leading = all.clone().take_while(|&digit| digit == b'0').count();
        let trailing = all.clone().rev().take_while(|&digit| digit == b'0').count();
        let count = (self.whole.len() + self.fraction.len()).saturating_sub(leading + trailing);
        (all.skip(leading).take(count), count, trailing as i64 - self.fraction.len() as i64)
    }
}

/// The value of a decimal number.
pub(super) fn round_decimal(number: Digits<'_>, format: Format) -> Rounded {
    let (digits, count, scale) = number.significant();
    let exponent = number.exponent + scale;
    if count == 0 {
        return Rounded::Finite(0, 0);
    }
    // Out of range whatever the digits are: 10^x > 2^(3x), and 10^-x < 2^(-3x).
    let magnitude = exponent.saturating_add(count as i64);
    if 3 * (magnitude - 1) > format.limit {
        return Rounded::Infinity;
    }
    if 3 * magnitude < format.exponent_min - 1 {
        return Rounded::Finite(0, 0);
    }
    if count <= 19 && (-18..=0).contains(&exponent) {
        let significand = digits.fold(0, |value, digit| value * 10 + u128::from(digit - b'0'));
        let shift = significand.leading_zeros();
        let divisor = 10u128.pow(exponent.unsigned_abs() as u32);
        let shifted = significand << shift;
        return round(shifted / divisor, -i64::from(shift), shifted % divisor != 0, format);
    }
    let mut dividend = Big::from_digits(digits);
    if exponent >= 0 {
        dividend.mul_pow10(exponent as usize);
        let (top, below, inexact) = dividend.top();
        return round(top, below as i64, inexact, format);
    }
    let mut divisor = Big::new(1);
    divisor.mul_pow10(exponent.unsigned_abs() as usize);
    let (quotient, exponent, inexact) = divide(dividend, divisor);
    round(quotient, exponent, inexact, format)
}

/// The quotient to at least 66 bits, its exponent, and whether there is a remainder.
fn divide(mut dividend: Big, mut divisor: Big) -> (u128, i64, bool) {
    const STEPS: i64 = 68;
    // Brings the quotient between a quarter and one.
    let shift = divisor.bits() as i64 - 1 - dividend.bits() as i64;
    if shift >= 0 {
        dividend.shl(shift as usize)
    } else {
        divisor.shl(shift.unsigned_abs() as usize)
    }
    let mut quotient = 0;
    for _ in 0..STEPS {
        dividend.shl(1);
        quotient <<= 1;
        if dividend >= divisor {
            dividend.sub(&divisor);
            quotient |= 1;
        }
    }
    (quotient, -STEPS - shift, !dividend.is_zero())
}

/// The value of a hexadecimal number.
pub(super) fn round_hexadecimal(number: Digits<'_>, format: Format) -> Rounded {
    const DIGITS_MAX: usize = 31;
    let (digits, count, scale) = number.significant();
    let value = |digit: u8| char::from(digit).to_digit(16).unwrap_or(0);
    let significand = digits.clone().take(DIGITS_MAX).fold(0, |bits, digit| bits << 4 | u128::from(value(digit)));
    let left_out = count.saturating_sub(DIGITS_MAX);
    // The last digit is not zero, so whatever is left out counts.
    round(significand, number.exponent + 4 * (scale + left_out as i64), left_out > 0, format)
}

/// `significand × 2^exponent`, plus less than one unit more if `inexact`, which takes more bits than the format has.
pub(super) fn round(significand: u128, exponent: i64, inexact: bool, format: Format) -> Rounded {
    if significand == 0 {
        return Rounded::Finite(0, 0);
    }
    let bits = 128 - i64::from(significand.leading_zeros());
    if exponent.saturating_add(bits) > format.limit {
        return Rounded::Infinity;
    }
    let drop = (bits - format.bits).max(format.exponent_min - exponent);
    if drop <= 0 {
        debug_assert!(!inexact);
        return Rounded::Finite(significand as u64, exponent);
    }
    // More than all bits dropped: less than half of the smallest number.
    if drop > bits {
        return Rounded::Finite(0, 0);
    }
    let half = 1 << (drop - 1);
    let kept = significand.checked_shr(drop as u32).unwrap_or(0);
    let dropped = significand - kept.checked_shl(drop as u32).unwrap_or(0);
    let up = dropped > half || (dropped == half && (inexact || kept % 2 == 1));
    let mut rounded = kept + u128::from(up);
    let mut exponent = exponent + drop;
    if rounded >> format.bits != 0 {
        (rounded, exponent) = (rounded >> 1, exponent + 1);
    }
    if exponent + 128 - i64::from(rounded.leading_zeros()) > format.limit {
        return Rounded::Infinity;
    }
    Rounded::Finite(rounded as u64, exponent)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn double(text: &str) -> f64 {
        let text = scan(text.as_bytes()).unwrap();
        let rounded = match text.number {
            Number::Infinity => Rounded::Infinity,
            Number::Decimal(digits) => round_decimal(digits, DOUBLE),
            Number::Hexadecimal(digits) => round_hexadecimal(digits, DOUBLE),
        };
        let value = match rounded {
            Rounded::Infinity => f64::INFINITY,
            Rounded::Finite(significand, exponent) => {
                let half = exponent as i32 / 2;
                significand as f64 * 2f64.powi(half) * 2f64.powi(exponent as i32 - half)
            }
        };
        if text.negative { -value } else { value }
    }

    proptest! {
        #[test]
        fn decimals_round_as_rust_rounds_them(text in "-?[0-9]{1,30}(\\.[0-9]{0,30})?(e-?[0-9]{1,3})?") {
            prop_assert_eq!(double(&text).to_bits(), text.parse::<f64>().unwrap().to_bits());
        }

        #[test]
        fn shortest_texts_come_back(bits in any::<u64>()) {
            let value = f64::from_bits(bits);
            prop_assume!(value.is_finite());
            prop_assert_eq!(double(&format!("{value:e}")).to_bits(), bits);
        }
    }

    #[test]
    fn hexadecimals_and_limits() {
        for (text, expected) in [
            ("0x10", 16.0),
            ("0X1P3", 8.0),
            ("-0x1.8p1", -3.0),
            ("0x.8", 0.5),
            ("0x8.", 8.0),
            ("0x0p99999999999999999999", 0.0),
            ("0x1p-1074", 5e-324),
            ("0x1p-1075", 0.0),
            ("0x1.0000000000000000000000000000000000000001p-1075", 5e-324),
            ("0x1.fffffffffffff7p1023", f64::MAX),
            ("0x1.fffffffffffff8p1023", f64::INFINITY),
            ("0x1.00000000000008p0", 1.0),
            ("0x1.000000000000080000000000000000000000000000001p0", 1.0 + f64::EPSILON),
            ("1e99999999999999999999", f64::INFINITY),
            ("1e-99999999999999999999", 0.0),
            ("0e99999999999999999999", 0.0),
            ("infinity", f64::INFINITY),
        ] {
            assert_eq!(double(text).to_bits(), f64::to_bits(expected), "{text}");
        }
        for text in
            ["", "-", "+", ".", "--1", "+-1", "1e", "1e+", "0x", "0x.p1", "e5", "infi", "nan", "1 ", " 1", "1_0"]
        {
            assert_eq!(scan(text.as_bytes()), None, "{text}");
        }
    }
}
