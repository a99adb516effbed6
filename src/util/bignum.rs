//! Natural numbers of any size, with just the operations that reading and printing floats exactly takes.

use std::cmp::Ordering;

/// The highest power of ten in one limb: 10¹⁹.
const CHUNK: u64 = 10_000_000_000_000_000_000;
const CHUNK_DIGITS: usize = 19;

/// A natural number; limbs of 64 bits, the lowest first, the highest not zero.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Big(Vec<u64>);

impl Big {
    pub(super) fn new(value: u64) -> Self {
        Big(if value == 0 { Vec::new() } else { vec![value] })
    }

    /// The number these ASCII digits write.
    pub(super) fn from_digits(digits: impl Iterator<Item = u8>) -> Self {
        let mut big = Big::new(0);
        let (mut chunk, mut scale) = (0, 1);
        for digit in digits {
            chunk = chunk * 10 + u64::from(digit - b'0');
            scale *= 10;
            if scale == CHUNK {
                big.mul_add(scale, chunk);
                (chunk, scale) = (0, 1);
            }
        }
        big.mul_add(scale, chunk);
        big
    }

    /// `self = self * factor + summand`.
    pub(super) fn mul_add(&mut self, factor: u64, summand: u64) {
        let mut carry = u128::from(summand);
        for limb in &mut self.0 {
            carry += u128::from(*limb) * u128::from(factor);
            *limb = carry as u64;
            carry >>= 64;
        }
        if carry != 0 {
            self.0.push(carry as u64);
        }
    }

    /// `self = self * 10^exponent`.
    pub(super) fn mul_pow10(&mut self, exponent: usize) {
        for _ in 0..exponent / CHUNK_DIGITS {
            self.mul_add(CHUNK, 0);
        }
        self.mul_add(10u64.pow((exponent % CHUNK_DIGITS) as u32), 0);
    }

    /// `self = self * 2^bits`.
    pub(super) fn shl(&mut self, bits: usize) {
        self.mul_add(1 << (bits % 64), 0);
        if !self.0.is_empty() {
            self.0.splice(0..0, std::iter::repeat_n(0, bits / 64));
        }
    }

    /// `self = self - other`, which must not be higher.
    pub(super) fn sub(&mut self, other: &Big) {
        let mut borrow = false;
        for (at, limb) in self.0.iter_mut().enumerate() {
            let (difference, first) = limb.overflowing_sub(other.0.get(at).copied().unwrap_or(0));
            let (difference, second) = difference.overflowing_sub(borrow.into());
            (*limb, borrow) = (difference, first || second);
        }
        debug_assert!(!borrow && self.0.len() >= other.0.len());
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }

    pub(super) fn is_zero(&self) -> bool {
        self.0.is_empty()
    }

    /// Bits up to the highest one set.
    pub(super) fn bits(&self) -> usize {
        self.0.last().map_or(0, |last| self.0.len() * 64 - last.leading_zeros() as usize)
    }

    /// The highest 128 bits or less, how many are below them, and whether any of those is set.
    pub(super) fn top(&self) -> (u128, usize, bool) {
        let below = self.0.len().saturating_sub(2);
        let top = self.0[below..].iter().rev().fold(0, |top, &limb| top << 64 | u128::from(limb));
        (top, below * 64, self.0[..below].iter().any(|&limb| limb != 0))
    }

    /// The number in decimal.
    pub(super) fn into_decimal(mut self) -> String {
        let mut chunks = Vec::new();
        while !self.is_zero() {
            let mut remainder = 0u128;
            for limb in self.0.iter_mut().rev() {
                let dividend = remainder << 64 | u128::from(*limb);
                *limb = (dividend / u128::from(CHUNK)) as u64;
                remainder = dividend % u128::from(CHUNK);
            }
            while self.0.last() == Some(&0) {
                self.0.pop();
            }
            chunks.push(remainder as u64);
        }
        let mut text = chunks.pop().unwrap_or(0).to_string();
        for chunk in chunks.iter().rev() {
            text.push_str(&format!("{chunk:019}"));
        }
        text
    }
}

impl PartialOrd for Big {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Big {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.len().cmp(&other.0.len()).then_with(|| self.0.iter().rev().cmp(other.0.iter().rev()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_u128(a in any::<u64>(), b in any::<u64>(), shift in 0..60usize) {
            let (a, b) = (a.max(b), a.min(b));
            let mut big = Big::new(a);
            big.mul_add(b, 7);
            let product = u128::from(a) * u128::from(b) + 7;
            prop_assert_eq!(big.bits(), 128 - product.leading_zeros() as usize);
            prop_assert_eq!(&big, &Big::from_digits(product.to_string().bytes()));
            prop_assert_eq!(big.clone().into_decimal(), product.to_string());
            big.sub(&Big::new(b));
            prop_assert_eq!(big.top(), (product - u128::from(b), 0, false));
            let mut shifted = Big::new(a);
            shifted.shl(shift);
            prop_assert_eq!(shifted.into_decimal(), (u128::from(a) << shift).to_string());
        }

        #[test]
        fn decimals_come_back(digits in "[1-9][0-9]{0,200}", zeros in 0..60usize) {
            let mut big = Big::from_digits(digits.bytes());
            big.mul_pow10(zeros);
            prop_assert_eq!(big.into_decimal(), digits + &"0".repeat(zeros));
        }
    }

    #[test]
    fn top_tells_of_what_it_leaves_out() {
        let mut big = Big::new(3);
        big.shl(200);
        assert_eq!(big.top(), (3 << 72, 128, false));
        big.mul_add(1, 1);
        assert_eq!(big.top(), (3 << 72, 128, true));
        assert_eq!(Big::new(0).into_decimal(), "0");
        assert!(Big::new(5) < big);
    }
}
