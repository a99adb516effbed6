//! Numbers as Redis reads and prints them.
//!
//! | function | takes | as Redis's |
//! |---|---|---|
//! | [`parse_i64`] | `-?[1-9][0-9]*` or `0`, in range | integer arguments and values |
//! | [`parse_u64`] | the same without sign, to 2⁶⁴−1 | |
//! | [`parse_string_u64`] | the same, or what `strtoull` takes | cursors, ids of streams |
//! | [`parse_double`] | whole text a float, in range, not NaN | scores, coordinates |
//! | [`parse_bound`] | decimal up to a zero byte; empty is 0 | ends of score ranges |
//! | [`format_double`] | | scores in replies, doubles in RESP3 |
//!
//! The 80-bit floats of INCRBYFLOAT are in [`super::long_double`].

use super::decimal::{self, DOUBLE, Number, Rounded};
use super::grisu;
use super::words::c_string;

/// Reads an integer in the only form Redis prints: no `+`, no spaces, no leading zero, no `-0`.
#[inline]
pub fn parse_i64(text: &[u8]) -> Option<i64> {
    match text {
        [b'-', digits @ ..] => match parse_u64(digits)? {
            0 => None,
            magnitude => 0i64.checked_sub_unsigned(magnitude),
        },
        digits => i64::try_from(parse_u64(digits)?).ok(),
    }
}

/// Reads an integer as [`parse_i64`] does, if it is not below 0.
#[inline]
pub fn parse_natural(text: &[u8]) -> Option<u64> {
    parse_i64(text).and_then(|number| u64::try_from(number).ok())
}

/// Reads an unsigned integer without leading zeros.
#[inline]
pub fn parse_u64(text: &[u8]) -> Option<u64> {
    const SURE_DIGITS: usize = 19;
    let (&first, rest) = text.split_first()?;
    if first == b'0' {
        return rest.is_empty().then_some(0);
    }
    let mut value = 0u64;
    for &byte in text.iter().take(SURE_DIGITS) {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value * 10 + u64::from(digit);
    }
    match text.get(SURE_DIGITS..) {
        None | Some([]) => Some(value),
        Some([last]) if last.is_ascii_digit() => value.checked_mul(10)?.checked_add(u64::from(last - b'0')),
        Some(_) => None,
    }
}

/// Reads an unsigned number as Redis's `string2ull` does: what is no integer of its own form is read as `strtoull` reads it, with
/// blanks and zeros in front, a sign, and a negative one wrapped around. The caller cuts at a zero byte.
pub fn parse_string_u64(text: &[u8]) -> Option<u64> {
    match parse_i64(text) {
        Some(number) => u64::try_from(number).ok(),
        None => parse_c(text),
    }
}

/// As `strtoull` reads a whole text.
#[cold]
fn parse_c(text: &[u8]) -> Option<u64> {
    let spaces = text.iter().take_while(|byte| matches!(byte, b' ' | b'\t'..=b'\r')).count();
    let text = &text[spaces..];
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if digits.is_empty() {
        return None;
    }
    let number = digits.iter().try_fold(0u64, |number, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })?;
    Some(if negative { number.wrapping_neg() } else { number })
}

/// A whole number of so many digits is a double.
const EXACT_DIGITS: usize = 15;

/// Reads a double: all of the text, decimal or hexadecimal or infinity, but neither NaN, nor a number too high to be
/// finite, nor one that is not zero but too near to it.
pub fn parse_double(text: &[u8]) -> Option<f64> {
    // Most are short whole numbers: exact as they are.
    if (1..=EXACT_DIGITS).contains(&text.len()) && text.iter().all(u8::is_ascii_digit) {
        return Some(text.iter().fold(0, |value, digit| value * 10 + u64::from(digit - b'0')) as f64);
    }
    let scanned = scan_double(text)?;
    let (magnitude, is_zero) = match scanned.number {
        Number::Infinity => return Some(if scanned.negative { f64::NEG_INFINITY } else { f64::INFINITY }),
        Number::Decimal(digits) => (decimal_magnitude(text)?, digits.is_zero()),
        Number::Hexadecimal(digits) => match decimal::round_hexadecimal(digits, DOUBLE) {
            Rounded::Finite(significand, exponent) => (scale(significand, exponent as i32), digits.is_zero()),
            Rounded::Infinity => return None,
        },
    };
    if magnitude.is_infinite() || (magnitude == 0.0 && !is_zero) {
        return None;
    }
    Some(if scanned.negative { -magnitude } else { magnitude })
}

/// Reads the end of a score range, which Redis reads as a C string: nothing is zero, what follows a zero byte is not
/// seen. Numbers out of range become infinite or zero; neither NaN nor hexadecimal.
pub fn parse_bound(text: &[u8]) -> Option<f64> {
    let text = c_string(text);
    if text.is_empty() {
        return Some(0.0);
    }
    let scanned = scan_double(text)?;
    let magnitude = match scanned.number {
        Number::Infinity => f64::INFINITY,
        Number::Decimal(_) => decimal_magnitude(text)?,
        Number::Hexadecimal(_) => return None,
    };
    Some(if scanned.negative { -magnitude } else { magnitude })
}

/// Takes a double's text apart. Redis 8.2's reader of doubles lets `-+inf` pass for `-inf`, though no number so signed.
fn scan_double(text: &[u8]) -> Option<decimal::Text<'_>> {
    decimal::scan(text).or_else(|| {
        let unsigned = decimal::scan(text.strip_prefix(b"-+")?)?;
        (unsigned.number == Number::Infinity && !matches!(text[2], b'+' | b'-'))
            .then_some(decimal::Text { negative: true, ..unsigned })
    })
}

/// The magnitude of a text known to be a decimal float; the standard library rounds as C does, and faster than
/// [`decimal`].
fn decimal_magnitude(text: &[u8]) -> Option<f64> {
    std::str::from_utf8(text).ok()?.parse().ok().map(f64::abs)
}

/// `significand × 2^exponent`, which must be representable.
fn scale(significand: u64, exponent: i32) -> f64 {
    // In two steps, as neither the lowest nor the highest power of two needed is a normal double.
    let half = exponent / 2;
    significand as f64 * 2f64.powi(half) * 2f64.powi(exponent - half)
}

/// A number's text, held in place.
#[derive(Debug, Clone, Copy)]
pub struct DoubleText {
    bytes: [u8; 32],
    len: usize,
}

impl DoubleText {
    /// The text, ASCII.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn new(parts: &[&[u8]]) -> Self {
        let mut text = DoubleText { bytes: [0; 32], len: 0 };
        parts.iter().for_each(|part| text.push(part));
        text
    }

    fn push(&mut self, part: &[u8]) {
        self.bytes[self.len..self.len + part.len()].copy_from_slice(part);
        self.len += part.len();
    }
}

impl std::fmt::Display for DoubleText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&String::from_utf8_lossy(self.as_bytes()))
    }
}

/// Prints a double as Redis 8.2 prints scores: whole numbers up to 2⁶² in full, others by Grisu2's digits, in
/// scientific notation where plain digits would be long. Negative zero is `-0`.
pub fn format_double(value: f64) -> DoubleText {
    const WHOLE_MAX: f64 = (1u64 << 62) as f64;
    if value.is_nan() {
        return DoubleText::new(&[b"nan"]);
    }
    let sign: &[u8] = if value.is_sign_negative() { b"-" } else { b"" };
    let value = value.abs();
    if value.is_infinite() {
        return DoubleText::new(&[sign, b"inf"]);
    }
    if value <= WHOLE_MAX && value.trunc() == value {
        return DoubleText::new(&[sign, itoa::Buffer::new().format(value as u64).as_bytes()]);
    }
    const ZEROS: &[u8] = b"00000000";
    let digits = grisu::digits(value);
    let (digits, exponent) = (digits.as_bytes(), digits.exponent);
    // Power of ten of the first digit.
    let magnitude = exponent + digits.len() as i32 - 1;
    if exponent >= 0 && magnitude < digits.len() as i32 + 7 {
        return DoubleText::new(&[sign, digits, &ZEROS[..exponent as usize]]);
    }
    if exponent < 0 && (exponent > -7 || magnitude.abs() < 4) {
        return match usize::try_from(magnitude + 1) {
            Ok(whole @ 1..) => DoubleText::new(&[sign, &digits[..whole], b".", &digits[whole..]]),
            _ => DoubleText::new(&[sign, b"0.", &ZEROS[..(-1 - magnitude) as usize], digits]),
        };
    }
    // Redis has room for so many digits only.
    let digits = &digits[..digits.len().min(18 - sign.len())];
    let (first, rest) = digits.split_at(1);
    let point: &[u8] = if rest.is_empty() { b"" } else { b"." };
    let mut power = itoa::Buffer::new();
    let plus: &[u8] = if magnitude < 0 { b"" } else { b"+" };
    DoubleText::new(&[sign, first, point, rest, b"e", plus, power.format(magnitude).as_bytes()])
}

/// Prints a double as C's `%.17g` does: 17 significant digits without trailing zeros. Redis prints the scores of ZSCAN so.
pub fn format_17_digits(value: f64) -> DoubleText {
    const DIGITS: i32 = 17;
    if !value.is_finite() {
        return format_double(value);
    }
    let sign: &[u8] = if value.is_sign_negative() { b"-" } else { b"" };
    let text = format!("{:.16e}", value.abs());
    let (mantissa, power) = text.split_once('e').unwrap_or((&text, "0"));
    let digits: Vec<u8> = mantissa.bytes().filter(u8::is_ascii_digit).collect();
    let power: i32 = power.parse().unwrap_or(0);
    let kept = digits.iter().rposition(|&digit| digit != b'0').map_or(1, |last| last + 1);
    if !(-4..DIGITS).contains(&power) {
        let (first, rest) = digits[..kept].split_at(1);
        let point: &[u8] = if rest.is_empty() { b"" } else { b"." };
        let power = format!("e{}{:02}", if power < 0 { '-' } else { '+' }, power.abs());
        return DoubleText::new(&[sign, first, point, rest, power.as_bytes()]);
    }
    if power < 0 {
        return DoubleText::new(&[sign, b"0.", &b"000"[..(-1 - power) as usize], &digits[..kept]]);
    }
    let whole = power as usize + 1;
    if kept <= whole {
        return DoubleText::new(&[sign, &digits[..whole]]);
    }
    DoubleText::new(&[sign, &digits[..whole], b".", &digits[whole..kept]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Forms that Redis 8.2.3 refuses and takes.
    #[test]
    fn seventeen_digits_as_c_prints_them() {
        let cases = [
            (0.1, "0.10000000000000001"),
            (0.00001, "1.0000000000000001e-05"),
            (0.0001, "0.0001"),
            (1e17, "1e+17"),
            (1e16, "10000000000000000"),
            (123456789012345680.0, "1.2345678901234568e+17"),
            (2.71428571428571, "2.71428571428571"),
            (-3.75, "-3.75"),
            (0.0, "0"),
            (-0.0, "-0"),
            (100.0, "100"),
            (5e-324, "4.9406564584124654e-324"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
        ];
        for (value, text) in cases {
            assert_eq!(format_17_digits(value).to_string(), text);
        }
    }

    #[test]
    fn integers_have_one_form() {
        for (text, expected) in [
            ("0", Some(0)),
            ("-1", Some(-1)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("-9223372036854775809", None),
            ("18446744073709551616", None),
            ("99999999999999999999", None),
            ("123456789012345678901", None),
            ("", None),
            ("-", None),
            ("-0", None),
            ("00", None),
            ("01", None),
            ("-01", None),
            ("+1", None),
            (" 1", None),
            ("1 ", None),
            ("1a", None),
            ("--1", None),
            ("0x1", None),
            ("1\0", None),
            ("1234567890123456789a", None),
        ] {
            assert_eq!(parse_i64(text.as_bytes()), expected, "{text}");
        }
        assert_eq!(parse_u64(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(parse_u64(b"18446744073709551616"), None);
        assert_eq!(parse_u64(b"-1"), None);
    }

    proptest! {
        #[test]
        fn integers_come_back(value in any::<i64>(), unsigned in any::<u64>(), shift in 0..64u32) {
            let (value, unsigned) = (value >> shift, unsigned >> shift);
            prop_assert_eq!(parse_i64(value.to_string().as_bytes()), Some(value));
            prop_assert_eq!(parse_u64(unsigned.to_string().as_bytes()), Some(unsigned));
        }

        #[test]
        fn doubles_come_back(bits in any::<u64>()) {
            let value = f64::from_bits(bits);
            prop_assume!(!value.is_nan());
            let text = format_double(value);
            prop_assert_eq!(parse_double(text.as_bytes()), Some(value), "{}", text);
        }
    }

    /// Accepted and refused as by ZADD (left) and ZCOUNT (right) of Redis 8.2.3.
    #[test]
    fn doubles_are_read_as_redis_reads_them() {
        let inf = f64::INFINITY;
        for (text, double, bound) in [
            ("+1", Some(1.0), Some(1.0)),
            (".5", Some(0.5), Some(0.5)),
            ("5.", Some(5.0), Some(5.0)),
            ("1E+5", Some(1e5), Some(1e5)),
            ("007", Some(7.0), Some(7.0)),
            ("-0", Some(-0.0), Some(-0.0)),
            ("iNf", Some(inf), Some(inf)),
            ("-INFINITY", Some(-inf), Some(-inf)),
            ("-+inf", Some(-inf), Some(-inf)),
            ("+-inf", None, None),
            ("-++inf", None, None),
            ("-+1", None, None),
            ("1e400", None, Some(inf)),
            ("-1e400", None, Some(-inf)),
            ("1e-400", None, Some(0.0)),
            ("0e-400", Some(0.0), Some(0.0)),
            ("4.9e-324", Some(5e-324), Some(5e-324)),
            ("2.4e-324", None, Some(0.0)),
            ("0x10", Some(16.0), None),
            ("-0x1.8p1", Some(-3.0), None),
            ("0x1p-1075", None, None),
            ("0x1p-1074", Some(5e-324), None),
            ("0x1p1023", Some(2f64.powi(1023)), None),
            ("0x1p2000", None, None),
            ("", None, Some(0.0)),
            ("1\0", None, Some(1.0)),
            (" 1", None, None),
            ("1 ", None, None),
            ("nan", None, None),
            ("-nan", None, None),
            ("infi", None, None),
            ("1e", None, None),
            (".", None, None),
            ("-", None, None),
            ("1_0", None, None),
            ("1,5", None, None),
        ] {
            let bits = |value: Option<f64>| value.map(f64::to_bits);
            assert_eq!(bits(parse_double(text.as_bytes())), bits(double), "{text}");
            assert_eq!(bits(parse_bound(text.as_bytes())), bits(bound), "{text}");
        }
    }

    /// As Redis 8.2.3 prints them.
    #[test]
    fn doubles_are_printed_as_redis_prints_them() {
        for line in include_str!("double_cases.txt").lines() {
            let printed = line.parse().map(format_double);
            assert_eq!(printed.map(|text| text.to_string()), Ok(line.to_owned()));
        }
        assert_eq!(format_double(-0.0).to_string(), "-0");
        assert_eq!(format_double(f64::NAN).to_string(), "nan");
    }
}
