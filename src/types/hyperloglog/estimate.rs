//! How many elements the registers speak of: the improved raw estimator of Otmar Ertl, "New cardinality estimation
//! algorithms for HyperLogLog sketches" (2017), algorithm 6, which needs no correction for small or large numbers.

use super::format::{Q, REGISTERS};

/// How many registers hold each rank.
pub type Histogram = [u32; 64];

/// What does not fit a signed integer.
const OVERFLOW: u64 = 1 << 63;
/// 1 / (2 ln 2).
const ALPHA_INFINITE: f64 = 0.721_347_520_444_481_7;

/// The estimated number of different elements. 2⁶³ where it is higher than that, which Redis prints as the lowest
/// integer and which, as a count in the header, is stale at once.
pub fn elements(histogram: &Histogram) -> u64 {
    let registers = REGISTERS as f64;
    let top = f64::from(histogram[Q as usize + 1]);
    let mut z = registers * tau((registers - top) / registers);
    for &count in histogram[1..=Q as usize].iter().rev() {
        z = (z + f64::from(count)) * 0.5;
    }
    z += registers * sigma(f64::from(histogram[0]) / registers);
    let elements = (ALPHA_INFINITE * registers * registers / z).round();
    if elements < OVERFLOW as f64 { elements as u64 } else { OVERFLOW }
}

/// x + Σ x^(2^k) · 2^(k−1) for k from 1: what the registers that hold nothing add.
fn sigma(mut x: f64) -> f64 {
    if x == 1.0 {
        return f64::INFINITY;
    }
    let (mut sum, mut weight) = (x, 1.0);
    loop {
        x *= x;
        let before = sum;
        sum += x * weight;
        weight += weight;
        if sum == before {
            return sum;
        }
    }
}

/// (1 − x − Σ (1 − x^(2^−k))² · 2^−k) / 3 for k from 1: what the registers at the highest rank add.
fn tau(mut x: f64) -> f64 {
    if x == 0.0 || x == 1.0 {
        return 0.0;
    }
    let (mut sum, mut weight) = (1.0 - x, 1.0);
    loop {
        x = x.sqrt();
        let before = sum;
        weight *= 0.5;
        sum -= (1.0 - x) * (1.0 - x) * weight;
        if sum == before {
            return sum / 3.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_registers_no_elements() {
        let mut histogram = [0; 64];
        histogram[0] = REGISTERS as u32;
        assert_eq!(elements(&histogram), 0);
    }

    /// Counts of Redis 8.2.3 for registers set through SET: `rank` in the first `count` registers, 0 in the others.
    #[test]
    fn counts_of_redis() {
        for (rank, count, expected) in include_str!("estimate_cases.txt").lines().map(|line| {
            let mut words = line.split(' ').map(|word| word.parse::<i64>().unwrap_or(-1) as u64);
            let mut next = || words.next().unwrap_or(0);
            (next() as usize, next() as u32, next())
        }) {
            let mut histogram = [0; 64];
            histogram[0] = REGISTERS as u32;
            histogram[0] -= count;
            histogram[rank] += count;
            assert_eq!(elements(&histogram), expected, "{count} registers at {rank}");
        }
    }
}
