//! Which register an element belongs to, and what it puts there.
//!
//! The hash is MurmurHash64A (Austin Appleby's, in the public domain) of the element with a fixed seed. Its low 14 bits
//! number the register; the rank is one more than the zeros above them, counted upwards, at most [`RANK_MAX`].

use super::format::{Q, REGISTERS};

/// Highest rank.
pub const RANK_MAX: u8 = Q + 1;

const SEED: u64 = 0xadc8_3b19;

/// The register of an element and its rank there.
#[inline]
pub fn place(element: &[u8]) -> (usize, u8) {
    let hash = murmur(element, SEED);
    let above = (hash / REGISTERS as u64) | (1 << Q);
    ((hash % REGISTERS as u64) as usize, above.trailing_zeros() as u8 + 1)
}

fn murmur(bytes: &[u8], seed: u64) -> u64 {
    const M: u64 = 0xc6a4_a793_5bd1_e995;
    const R: u32 = 47;
    let mut hash = seed ^ (bytes.len() as u64).wrapping_mul(M);
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        let mut word = u64::from_le_bytes(*word).wrapping_mul(M);
        word ^= word >> R;
        hash = (hash ^ word.wrapping_mul(M)).wrapping_mul(M);
    }
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        hash = (hash ^ u64::from_le_bytes(last)).wrapping_mul(M);
    }
    hash = (hash ^ hash >> R).wrapping_mul(M);
    hash ^ hash >> R
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where Redis 8.2.3 puts them, as `PFDEBUG DECODE` tells.
    #[test]
    fn elements_go_where_redis_puts_them() {
        for (element, expected) in [("x", (16374, 2)), ("y", (14932, 3)), ("z", (8581, 1))] {
            assert_eq!(place(element.as_bytes()), expected, "{element}");
        }
    }

    #[test]
    fn ranks_lie_within_six_bits() {
        for n in 0..100_000u32 {
            let (register, rank) = place(&n.to_le_bytes());
            assert!(register < REGISTERS && (1..=RANK_MAX).contains(&rank));
        }
    }
}
