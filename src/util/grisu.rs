//! The digits of a double by Grisu2, in the variant Redis prints scores with.
//!
//! The algorithm is Florian Loitsch's (*Printing Floating-Point Numbers Quickly and Accurately with Integers*, PLDI
//! 2010). Its digits always read back as the same double, but for one double in a thousand they are not the shortest
//! (`888.69135` prints as `888.6913500000001`), and clients see which. So a printer that is always right, and the
//! standard library's, would differ from Redis; the arithmetic must be the same to the last bit.

use std::sync::LazyLock;

use super::decimal::{self, EXTENDED, Number, Rounded};

/// Digits of a number: `0.d₁d₂… × 10^…` without the point.
pub(super) struct Digits {
    bytes: [u8; 20],
    len: usize,
    /// Power of ten of the last digit.
    pub(super) exponent: i32,
}

impl Digits {
    /// The digits in ASCII, at most 17 but for rare cases.
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn push(&mut self, digit: u64) {
        if digit != 0 || self.len != 0 {
            self.bytes[self.len] = b'0' + digit as u8;
            self.len += 1;
        }
    }
}

/// `significand × 2^exponent`.
#[derive(Clone, Copy)]
struct Float {
    significand: u64,
    exponent: i32,
}

impl Float {
    fn normalized(self) -> Float {
        let shift = self.significand.leading_zeros();
        Float { significand: self.significand << shift, exponent: self.exponent - shift as i32 }
    }

    /// The product, rounded half up to 64 bits.
    fn times(self, other: Float) -> Float {
        let product = u128::from(self.significand) * u128::from(other.significand);
        Float { significand: ((product + (1 << 63)) >> 64) as u64, exponent: self.exponent + other.exponent + 64 }
    }
}

const FIRST_POWER: i32 = -348;
const POWER_STEP: i32 = 8;
const POWERS: i32 = 87;
/// Where the exponent of a product must lie for digits to be cut off by shifts of 64-bit numbers.
const EXPONENTS: std::ops::RangeInclusive<i32> = -60..=-32;

/// Every eighth power of ten, normalized and rounded to nearest.
static POWERS_OF_TEN: LazyLock<Vec<Float>> = LazyLock::new(|| {
    let power = |index| {
        let text = format!("1e{}", FIRST_POWER + index * POWER_STEP);
        let rounded = match decimal::scan(text.as_bytes()).map(|text| text.number) {
            Some(Number::Decimal(digits)) => decimal::round_decimal(digits, EXTENDED),
            _ => Rounded::Infinity,
        };
        let Rounded::Finite(significand, exponent) = rounded else { unreachable!("a power of ten in range") };
        Float { significand, exponent: exponent as i32 }.normalized()
    };
    (0..POWERS).map(power).collect()
});

/// A power of ten that brings a number of this exponent into [`EXPONENTS`], and which it is.
fn cached_power(exponent: i32) -> (Float, i32) {
    let approximate = (f64::from(-(exponent + POWERS)) * std::f64::consts::LOG10_2) as i32;
    let mut index = (approximate - FIRST_POWER) / POWER_STEP;
    loop {
        let power = POWERS_OF_TEN[index as usize];
        let product = exponent + power.exponent + 64;
        if product < *EXPONENTS.start() {
            index += 1;
        } else if product > *EXPONENTS.end() {
            index -= 1;
        } else {
            return (power, FIRST_POWER + index * POWER_STEP);
        }
    }
}

/// The digits of a finite number above zero.
pub(super) fn digits(value: f64) -> Digits {
    const HIDDEN_BIT: u64 = 1 << 52;
    debug_assert!(value > 0.0 && value.is_finite());
    let bits = value.to_bits();
    let (biased, fraction) = ((bits >> 52) as i32, bits & (HIDDEN_BIT - 1));
    let exact = match biased {
        0 => Float { significand: fraction, exponent: -1074 },
        _ => Float { significand: fraction | HIDDEN_BIT, exponent: biased - 1075 },
    };
    // Half way to the neighbours; the lower one of a power of two is half as far.
    let upper = Float { significand: 2 * exact.significand + 1, exponent: exact.exponent - 1 }.normalized();
    let lower_shift = if exact.significand == HIDDEN_BIT { 2 } else { 1 };
    let lower = Float { significand: (exact.significand << lower_shift) - 1, exponent: exact.exponent - lower_shift };
    let lower = Float { significand: lower.significand << (lower.exponent - upper.exponent), ..upper };
    let (power, power_of_ten) = cached_power(upper.exponent);
    let (middle, upper, lower) = (exact.normalized().times(power), upper.times(power), lower.times(power));
    // One unit inwards, as the products are off by up to one.
    let (upper, low) = (Float { significand: upper.significand - 1, ..upper }, lower.significand + 1);
    generate(upper, upper.significand - low, upper.significand - middle.significand, -power_of_ten)
}

/// Cuts digits off `upper` until what is left is within `delta`, then moves the last digit towards the number itself,
/// which is `distance` below `upper`.
fn generate(upper: Float, mut delta: u64, mut distance: u64, exponent: i32) -> Digits {
    let shift = -upper.exponent;
    let one = 1u64 << shift;
    let (mut whole, mut fraction) = (upper.significand >> shift, upper.significand & (one - 1));
    let mut digits = Digits { bytes: [0; 20], len: 0, exponent };
    for place in (0..10).rev() {
        let unit = 10u64.pow(place);
        digits.push(whole / unit);
        whole %= unit;
        let rest = (whole << shift) + fraction;
        if rest <= delta {
            digits.exponent += place as i32;
            approach(&mut digits, delta, rest, unit << shift, distance);
            return digits;
        }
    }
    loop {
        fraction *= 10;
        delta *= 10;
        distance = distance.wrapping_mul(10);
        digits.exponent -= 1;
        digits.push(fraction >> shift);
        fraction &= one - 1;
        if fraction < delta {
            approach(&mut digits, delta, fraction, one, distance);
            return digits;
        }
    }
}

/// Lowers the last digit while that brings the digits nearer to the number and keeps them within `delta`.
fn approach(digits: &mut Digits, delta: u64, mut rest: u64, unit: u64, distance: u64) {
    while rest < distance
        && delta - rest >= unit
        && (rest + unit < distance || distance - rest > rest + unit - distance)
    {
        digits.bytes[digits.len - 1] -= 1;
        rest += unit;
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn digits_read_back(bits in 1..f64::INFINITY.to_bits()) {
            let value = f64::from_bits(bits);
            let digits = digits(value);
            let text = format!("{}e{}", String::from_utf8_lossy(digits.as_bytes()), digits.exponent);
            prop_assert_eq!(text.parse::<f64>().unwrap(), value);
        }
    }
}
