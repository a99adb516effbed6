//! How long things took, by number: a histogram that one thread adds to while others read it.
//!
//! Buckets are a thirty-second part of a power of two wide, so that what is told of a percentile is at most a
//! thirty-second too high. They reach from 0 to 69 s; what took longer counts into the last one.

use std::sync::atomic::{AtomicU64, Ordering};

/// Buckets of a power of two, as a power of two.
const STEPS: u32 = 5;
/// Numbers of so many bits fit.
const BITS: u32 = 36;
const BUCKETS: usize = ((BITS - STEPS + 1) << STEPS) as usize;

/// Counts by nanoseconds.
pub struct Histogram(Box<[AtomicU64; BUCKETS]>);

impl Default for Histogram {
    fn default() -> Self {
        Histogram(Box::new([const { AtomicU64::new(0) }; BUCKETS]))
    }
}

impl std::fmt::Debug for Histogram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Histogram")
    }
}

#[inline]
fn bucket(ns: u64) -> usize {
    let ns = ns.min((1 << BITS) - 1);
    let shift = ns.checked_ilog2().unwrap_or(0).saturating_sub(STEPS);
    ((shift << STEPS) as u64 + (ns >> shift)) as usize
}

/// The highest number of a bucket.
fn highest(bucket: usize) -> u64 {
    let shift = (bucket >> STEPS).saturating_sub(1);
    let base = (bucket - (shift << STEPS)) as u64;
    ((base + 1) << shift) - 1
}

impl Histogram {
    /// Adds one. The calling thread alone does so.
    #[inline]
    pub fn add(&self, ns: u64) {
        // Always within: `bucket` caps it.
        if let Some(count) = self.0.get(bucket(ns)) {
            count.store(count.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        }
    }
}

/// The sum of some histograms at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts(Vec<u64>);

impl Counts {
    /// Adds what a histogram has counted.
    pub fn add(&mut self, histogram: &Histogram) {
        self.0.resize(BUCKETS, 0);
        for (sum, count) in self.0.iter_mut().zip(histogram.0.iter()) {
            *sum += count.load(Ordering::Relaxed);
        }
    }

    /// Takes away what there was at an earlier moment.
    pub fn take(&mut self, before: &Counts) {
        for (sum, before) in self.0.iter_mut().zip(&before.0) {
            *sum = sum.saturating_sub(*before);
        }
    }

    /// How many there are.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// What so many percent took no longer than, ns; 0 if there are none.
    pub fn percentile(&self, percent: f64) -> u64 {
        let rank = (self.total() as f64 * percent / 100.0).ceil().max(1.0) as u64;
        let mut sum = 0;
        let found = self.0.iter().position(|count| {
            sum += count;
            sum >= rank
        });
        found.map_or(0, highest)
    }

    /// How many took no longer than each power of two of 1,024 ns: `(ns, how many)`, where one has more than the one before.
    pub fn by_powers(&self) -> Vec<(u64, u64)> {
        let (mut powers, mut seen, mut sum) = (Vec::new(), 0, 0);
        let mut counts = self.0.iter().enumerate().peekable();
        for power in 10.. {
            let limit = 1u64 << power;
            while let Some((_, count)) = counts.next_if(|(bucket, _)| highest(*bucket) < limit) {
                sum += count;
            }
            if sum > seen {
                powers.push((limit, sum));
                seen = sum;
            }
            if counts.peek().is_none() {
                break;
            }
        }
        powers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_a_32nd_wide() {
        let mut last = None;
        for ns in (0..5000).chain((13..60).flat_map(|power| [(1u64 << power) - 1, 1 << power, (1 << power) + 1])) {
            let bucket = bucket(ns);
            assert!(last.is_none_or(|last| bucket >= last), "{ns}");
            last = Some(bucket);
            if ns < 1 << BITS {
                assert!(highest(bucket) >= ns && highest(bucket) - ns <= ns / 32, "{ns} {}", highest(bucket));
            }
        }
        assert_eq!(last, Some(BUCKETS - 1));
    }

    #[test]
    fn percentiles_and_powers() {
        let histogram = Histogram::default();
        assert_eq!(Counts::default().percentile(50.0), 0);
        for ns in 1..=1000 {
            histogram.add(ns * 1000);
        }
        let mut counts = Counts::default();
        counts.add(&histogram);
        assert_eq!(counts.total(), 1000);
        for (percent, us) in [(0.0, 1), (50.0, 500), (99.0, 990), (100.0, 1000)] {
            let found = counts.percentile(percent);
            assert!(found >= us * 1000 && found <= us * 1000 * 33 / 32, "{percent}: {found}");
        }
        let powers = counts.by_powers();
        assert_eq!(powers[..3], [(1024, 1), (2048, 2), (4096, 4)]);
        assert_eq!(powers.last(), Some(&(1 << 20, 1000)));
        let before = counts.clone();
        counts.take(&before);
        assert_eq!((counts.total(), counts.by_powers()), (0, vec![]));
    }
}
