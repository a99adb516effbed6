//! Chance for the commands that pick elements: HRANDFIELD, SRANDMEMBER, ZRANDMEMBER, SPOP.
//!
//! | count | what Redis promises |
//! |---|---|
//! | none | one element |
//! | n ≥ 0 | n different elements, or all if there are fewer |
//! | −n | n elements, each picked anew: repetitions are likely |
//!
//! Picks are numbers below the size of the collection, each as likely as any other; the caller finds the elements by
//! their rank, or goes through the collection once where many are wanted ([`Sampler`]).

use std::cell::Cell;
use std::hash::{BuildHasher as _, RandomState};

use crate::error::{Error, Result};
use crate::meter;
use crate::resp::args::Args;
use crate::util::num::parse_i64;
use crate::util::splitmix;

/// A source of chance.
#[derive(Debug, Clone)]
pub struct Dice(u64);

thread_local! {
    static SEED: Cell<u64> = Cell::new(RandomState::new().hash_one(0));
}

impl Dice {
    /// Dice that nobody can foretell.
    pub fn new() -> Self {
        let mut source = Dice(SEED.get());
        let seed = source.next();
        SEED.set(source.0);
        Dice(seed)
    }

    /// Dice that always fall the same way.
    pub const fn seeded(seed: u64) -> Self {
        Dice(seed)
    }

    fn next(&mut self) -> u64 {
        splitmix::next(&mut self.0)
    }

    /// A number below `n`, each as likely as any other; 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        // Lemire: the high half of a product, unless the low half lies where the numbers do not divide evenly.
        let mut product = u128::from(self.next()) * u128::from(n);
        if (product as u64) < n {
            let uneven = n.wrapping_neg() % n.max(1);
            while (product as u64) < uneven {
                product = u128::from(self.next()) * u128::from(n);
            }
        }
        (product >> 64) as u64
    }
}

impl Default for Dice {
    fn default() -> Self {
        Self::new()
    }
}

/// What a count argument asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    /// So many different elements.
    Distinct(u64),
    /// So many picks, each among all elements.
    Repeated(u64),
}

impl Count {
    /// Reads a count; `pairs` if each element is answered with its value or score, so that the reply is twice as long.
    ///
    /// # Errors
    /// As Redis: no integer, or out of a range that is half as large for pairs.
    pub fn parse(text: &[u8], pairs: bool) -> Result<Self> {
        const BELOW_RANGE: Error =
            Error::err("ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807");
        let count = parse_i64(text).ok_or(Error::NotInteger)?;
        if count == i64::MIN {
            return Err(BELOW_RANGE);
        }
        if pairs && !(-i64::MAX / 2..=i64::MAX / 2).contains(&count) {
            return Err(Error::OutOfRange);
        }
        let number = count.unsigned_abs();
        Ok(if count < 0 { Count::Repeated(number) } else { Count::Distinct(number) })
    }

    /// Reads `count [word]` behind the key; with the word each element is answered with its value or score.
    ///
    /// # Errors
    /// As Redis.
    pub fn parse_pairs(args: Args<'_>, word: &[u8]) -> Result<(Self, bool)> {
        Count::parse(&args[2], false)?;
        let pairs = args.get(3).is_some_and(|given| given.eq_ignore_ascii_case(word));
        if args.len() > 4 || args.len() == 4 && !pairs {
            return Err(Error::Syntax);
        }
        Ok((Count::parse(&args[2], pairs)?, pairs))
    }
}

/// `count` different numbers below `total`, ascending; every such set is as likely as any other. For a `count` that is
/// small beside `total`: it costs time and memory by `count`.
///
/// # Errors
/// `TooMuch` where that is more memory than a command may hold.
pub fn distinct(total: u64, count: u64, dice: &mut Dice) -> Result<Vec<u64>> {
    /// Of a number in the set and in the answer.
    const BYTES: u64 = 24;
    meter::hold(usize::try_from(count.min(total).saturating_mul(BYTES)).unwrap_or(usize::MAX))?;
    let mut picks = std::collections::BTreeSet::new();
    // Floyd: of the numbers up to `last` one is taken, or `last` itself where that one is taken already.
    for last in total - count.min(total)..total {
        let pick = dice.below(last + 1);
        if !picks.insert(pick) {
            picks.insert(last);
        }
    }
    Ok(picks.into_iter().collect())
}

/// Whether `count` different picks of `total` are had cheaper by going through all elements with a [`Sampler`] than by
/// looking each up by its rank.
pub const fn goes_through(total: u64, count: u64) -> bool {
    count >= total / 8
}

/// Takes `count` of `total` elements that come by in order, every choice as likely as any other, without memory
/// (Knuth: The Art of Computer Programming 2, 3.4.2, algorithm S).
#[derive(Debug, Clone)]
pub struct Sampler {
    left: u64,
    wanted: u64,
    dice: Dice,
}

impl Sampler {
    /// Of `total` elements `count`, or all if there are fewer.
    pub fn new(total: u64, count: u64) -> Self {
        Sampler { left: total, wanted: count.min(total), dice: Dice::new() }
    }

    /// Whether the element that comes by is taken.
    pub fn takes(&mut self) -> bool {
        let taken = self.wanted > 0 && self.dice.below(self.left) < self.wanted;
        self.left = self.left.saturating_sub(1);
        self.wanted -= u64::from(taken);
        taken
    }

    /// How many are still to be taken.
    pub const fn wanted(&self) -> u64 {
        self.wanted
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// Pearson's statistic of counts that should be equal.
    pub(crate) fn chi_square(counts: &[u64]) -> f64 {
        let expected = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
        counts.iter().map(|&count| (count as f64 - expected).powi(2) / expected).sum()
    }

    /// Whether the statistic of so many counts is what chance brings but once in a million times: mean `n - 1`,
    /// variance `2 (n - 1)`, about normal for many.
    fn is_even(counts: &[u64]) -> bool {
        let freedom = counts.len() as f64 - 1.0;
        chi_square(counts) < freedom + 6.0 * (2.0 * freedom).sqrt()
    }

    #[test]
    fn numbers_below_are_even() {
        for n in [2, 3, 100, 1000] {
            let mut dice = Dice::seeded(n);
            let mut counts = vec![0; n as usize];
            (0..n * 200).for_each(|_| counts[dice.below(n) as usize] += 1);
            assert!(is_even(&counts), "{n}: {}", chi_square(&counts));
        }
        let mut dice = Dice::new();
        assert_eq!(dice.below(0), 0);
        let high = (0..1000).filter(|_| dice.below(u64::MAX) > u64::MAX / 2).count();
        assert!((300..700).contains(&high));
        assert_ne!(Dice::new().next(), Dice::new().next());
    }

    #[test]
    fn sets_of_picks_are_even() {
        let mut counts = [0; 20];
        // The 20 ways to take 3 of 6, by either method.
        let place = |picks: &[u64]| {
            let mut places = (0..6u64).flat_map(|a| (a + 1..6).flat_map(move |b| (b + 1..6).map(move |c| [a, b, c])));
            places.position(|set| set == picks).unwrap()
        };
        let mut dice = Dice::seeded(1);
        (0..20_000).for_each(|_| counts[place(&distinct(6, 3, &mut dice).unwrap())] += 1);
        assert!(is_even(&counts), "{counts:?}");
        counts = [0; 20];
        for _ in 0..20_000 {
            let mut sampler = Sampler::new(6, 3);
            let picks: Vec<u64> = (0..6).filter(|_| sampler.takes()).collect();
            counts[place(&picks)] += 1;
        }
        assert!(is_even(&counts), "{counts:?}");
    }

    #[test]
    fn no_more_than_there_are() {
        let mut dice = Dice::seeded(1);
        assert_eq!(distinct(3, 10, &mut dice).unwrap(), [0, 1, 2]);
        assert!(distinct(0, 10, &mut dice).unwrap().is_empty());
        assert!(distinct(10, 0, &mut dice).unwrap().is_empty());
        let mut sampler = Sampler::new(2, 5);
        assert!(sampler.takes() && sampler.takes() && !sampler.takes());
        assert_eq!(sampler.wanted(), 0);
        assert!(goes_through(10, 5) && !goes_through(1000, 5));
    }

    #[test]
    fn counts_as_redis_reads_them() {
        assert_eq!(Count::parse(b"3", false), Ok(Count::Distinct(3)));
        assert_eq!(Count::parse(b"-3", true), Ok(Count::Repeated(3)));
        assert_eq!(Count::parse(b"x", false), Err(Error::NotInteger));
        assert_eq!(Count::parse(b"9223372036854775807", false), Ok(Count::Distinct(i64::MAX as u64)));
        assert!(Count::parse(b"9223372036854775807", true).is_err());
        assert!(Count::parse(b"-9223372036854775808", false).is_err());
    }
}
