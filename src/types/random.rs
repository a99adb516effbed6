//! Chance for the commands that pick elements: HRANDFIELD, SRANDMEMBER, ZRANDMEMBER, SPOP.
//!
//! | count | what Redis promises |
//! |---|---|
//! | none | one element |
//! | n ≥ 0 | n different elements, or all if there are fewer |
//! | −n | n elements, each picked anew: repetitions are likely |
//!
//! Picks are numbers below the size of the collection, each as likely as any other. Where they are few the elements are
//! found by their rank; where they are many the collection is gone through once, with a [`Sampler`] if they are to be
//! different, with [`Picks`] if each is picked anew. Either way rests where it takes long.

use std::cell::Cell;
use std::hash::{BuildHasher as _, RandomState};

use crate::codec::element::Group;
use crate::error::{Error, Result};
use crate::handler::limits::may_touch;
use crate::handler::{Ctx, Found};
use crate::meter;
use crate::resp::args::Args;
use crate::shard::txn::slices::Element;
use crate::util::num::parse_i64;
use crate::util::scale::Scaled;
use crate::util::splitmix;

/// Picks whose elements are kept at once.
const AT_ONCE: Scaled<u64> = Scaled::new(1 << 17).in_unit_tests(32);

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

    /// Puts these in an order that is as likely as any other (Fisher and Yates).
    fn shuffle<T>(&mut self, these: &mut [T]) {
        for left in (2..=these.len()).rev() {
            these.swap(left - 1, self.below(left as u64) as usize);
        }
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

impl Count {
    /// The same of a collection of `total` elements, which has no more than these to give.
    #[must_use]
    pub fn of(self, total: u64) -> Self {
        match self {
            Count::Distinct(count) => Count::Distinct(count.min(total)),
            Count::Repeated(_) if total == 0 => Count::Repeated(0),
            Count::Repeated(count) => Count::Repeated(count),
        }
    }

    /// How many it asks for.
    pub const fn number(self) -> u64 {
        let (Count::Distinct(count) | Count::Repeated(count)) = self;
        count
    }

    /// Hands so many elements of a group of `total` to `visit`, as they are picked: different ones in their order where they
    /// are a good part of all.
    ///
    /// # Errors
    /// Of `visit`, of reads, and as of [`crate::shard::txn::Txn::rest`].
    pub fn each(
        self,
        ctx: &mut Ctx,
        (at, group): (Found, Group),
        total: u64,
        mut visit: impl FnMut(&[u8], &[u8]) -> Result,
    ) -> Result {
        const FEW: Scaled<u64> = Scaled::new(64).in_unit_tests(8);
        let mut dice = Dice::new();
        may_touch(self.number())?;
        match self {
            Count::Distinct(0) => Ok(()),
            Count::Distinct(count) if goes_through(ctx, at, total, count) => {
                may_touch(total)?;
                let mut sampler = Sampler::new(total, count);
                let pass = |element: &[u8], value: &[u8]| if sampler.takes() { visit(element, value) } else { Ok(()) };
                ctx.group_in_slices(at, group, pass)
            }
            Count::Distinct(count) => {
                let mut ranks = distinct(total, count, &mut dice)?;
                dice.shuffle(&mut ranks);
                ctx.select_in_slices(at, group, ranks.into_iter(), visit)
            }
            Count::Repeated(count) => {
                // Few are found in memory in less time than it takes to keep them.
                let few = if ctx.body(at).overlay.complete { FEW.get() } else { 1 };
                if count <= few || !goes_through(ctx, at, total, count.min(AT_ONCE.get())) {
                    let ranks = (0..count).map(|_| dice.below(total));
                    return ctx.select_in_slices(at, group, ranks, visit);
                }
                may_touch(total)?;
                let pass = |ctx: &mut Ctx, picks: &mut Picks| {
                    ctx.group_in_slices(at, group, |element, value| picks.pass(element, value))
                };
                each_anew(ctx, (total, count), pass, visit)
            }
        }
    }
}

/// Hands `count` of `total` elements to `visit`, each picked anew. `pass` has all of them pass by in order, as often as it is
/// called. Rests where it takes long.
///
/// # Errors
/// Of `pass` and `visit`, and as of [`crate::shard::txn::Txn::rest`].
pub fn each_anew(
    ctx: &mut Ctx,
    (total, count): (u64, u64),
    mut pass: impl FnMut(&mut Ctx, &mut Picks) -> Result,
    mut visit: impl FnMut(&[u8], &[u8]) -> Result,
) -> Result {
    let (ns, mut dice, mut left) = (ctx.ns(), Dice::new(), count);
    while left > 0 {
        let many = left.min(AT_ONCE.get()) as usize;
        let mut picks = ctx.rest_for(ns, many, || Picks::new(total, many, &mut dice))?;
        pass(ctx, &mut picks)?;
        ctx.rest_for(ns, many, || picks.each(&mut dice, &mut visit))?;
        left -= many as u64;
    }
    Ok(())
}

/// `count` different numbers below `total`, ascending; every such set is as likely as any other. For a `count` that is
/// small beside `total`: it costs time and memory by `count`.
///
/// # Errors
/// `TooMuch` where that is more memory than a command may hold.
fn distinct(total: u64, count: u64, dice: &mut Dice) -> Result<Vec<u64>> {
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

/// Whether `count` picks of a collection of `total` elements are had cheaper by going through all of them than by
/// finding each by its rank.
fn goes_through(ctx: &Ctx, at: Found, total: u64, count: u64) -> bool {
    /// Elements that are gone through in the time in which one is found by its rank: in memory, and where an index on disk
    /// tells its block, which is read.
    const IN_MEMORY: u64 = 8;
    const ON_DISK: u64 = 128;
    let cost = if ctx.body(at).overlay.complete { IN_MEMORY } else { ON_DISK };
    count >= total / cost
}

/// Picks, each of all elements, that are made before the elements come by in order: those that were picked are kept, each
/// once, and handed out in the order of the picks.
pub struct Picks {
    /// Ascending.
    ranks: std::iter::Peekable<std::vec::IntoIter<u64>>,
    /// Of the element that comes by next.
    rank: u64,
    kept: Vec<Element>,
    /// For each pick its place among them.
    picks: Vec<u32>,
    /// Bytes that the command is charged for.
    held: usize,
}

impl Picks {
    /// Of `total` elements so many.
    fn new(total: u64, count: usize, dice: &mut Dice) -> Result<Self> {
        let held = count * (size_of::<u64>() + size_of::<u32>());
        meter::step(count)?;
        meter::hold(held)?;
        let mut ranks: Vec<u64> = (0..count).map(|_| dice.below(total)).collect();
        ranks.sort_unstable();
        let (ranks, picks) = (ranks.into_iter().peekable(), Vec::with_capacity(count));
        Ok(Picks { ranks, rank: 0, kept: Vec::new(), picks, held })
    }

    /// The next element in order; kept if it was picked.
    ///
    /// # Errors
    /// `TooMuch`.
    pub fn pass(&mut self, element: &[u8], value: &[u8]) -> Result {
        let before = self.picks.len();
        while self.ranks.next_if_eq(&self.rank).is_some() {
            self.picks.push(self.kept.len() as u32);
        }
        if self.picks.len() > before {
            // The list of them grows: it takes twice what is in it.
            let bytes = element.len() + value.len() + 2 * (size_of::<Element>() + meter::ALLOCATION);
            meter::hold(bytes)?;
            self.held += bytes;
            self.kept.push((element.to_vec(), value.to_vec()));
        }
        self.rank += 1;
        Ok(())
    }

    /// Hands them to `visit`. Picks are as likely in one order as in any other, so they are shuffled.
    fn each(mut self, dice: &mut Dice, mut visit: impl FnMut(&[u8], &[u8]) -> Result) -> Result {
        dice.shuffle(&mut self.picks);
        for place in self.picks {
            let (element, value) = &self.kept[place as usize];
            visit(element, value)?;
        }
        meter::release(self.held);
        Ok(())
    }
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
    fn orders_are_even() {
        let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
        let (mut dice, mut counts) = (Dice::seeded(1), [0; 6]);
        for _ in 0..6000 {
            let mut these = [0, 1, 2];
            dice.shuffle(&mut these);
            counts[orders.iter().position(|order| *order == these).unwrap()] += 1;
        }
        assert!(is_even(&counts), "{counts:?}");
    }

    /// What was not picked is not kept, and nothing is held once they are handed out.
    #[test]
    fn picks_are_charged_for_what_they_keep() {
        let _running = meter::begin(meter::Allowance::elsewhere(1 << 20, Box::new(|| false)));
        let (mut dice, element, before) = (Dice::seeded(1), [b'e'; 100], meter::held());
        let mut picks = Picks::new(1000, 32, &mut dice).unwrap();
        (0..1000).for_each(|_| picks.pass(&element, b"").unwrap());
        assert!((1..=32).contains(&picks.kept.len()));
        let kept = picks.kept.capacity() * size_of::<Element>() + picks.kept.len() * element.len();
        assert!(meter::held() - before >= kept, "{} for {kept}", meter::held() - before);
        let mut count = 0;
        let counted = picks.each(&mut dice, |_, _| {
            count += 1;
            Ok(())
        });
        assert_eq!((counted, count, meter::held()), (Ok(()), 32, before));
        let mut picks = Picks::new(1, 32, &mut dice).unwrap();
        assert_eq!(picks.pass(&[b'e'; 1 << 20], b""), Err(Error::TooMuch));
        assert!(picks.kept.is_empty());
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
