//! SplitMix64: numbers that look like chance and follow from a seed (Steele, Lea, Flood: Fast Splittable Pseudorandom
//! Number Generators, 2014).

/// The next number, 64 evenly spread bits; any state will do to begin with.
#[inline]
pub fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ *state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first numbers of the authors' program for the seed 1234567.
    #[test]
    fn numbers_are_pinned() {
        let mut state = 1_234_567;
        let numbers = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!(numbers, numbers.map(|_| next(&mut state)));
    }
}
