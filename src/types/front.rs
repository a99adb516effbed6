//! The first few, in order, of all items that come by.

use std::cmp::Ordering;

use crate::error::Result;
use crate::meter;
use crate::util::scale::Scaled;

/// Items held before those behind the last one wanted are dropped.
const HELD: Scaled<usize> = Scaled::new(4096);

/// Items that are to be sorted, of which only the first `wanted` count. No more than twice as many are held; what the
/// order leaves open, the order in which they came decides.
pub struct Front<T, F> {
    items: Vec<(T, usize)>,
    wanted: usize,
    compare: F,
    seen: usize,
    /// Bytes that the command was charged for.
    held: usize,
}

impl<T, F: Fn(&T, &T) -> Ordering> Front<T, F> {
    /// Begins with nothing.
    pub fn new(wanted: usize, compare: F) -> Self {
        Front { items: Vec::new(), wanted, compare, seen: 0, held: 0 }
    }

    /// Takes the next item, which has so many bytes beside itself.
    ///
    /// # Errors
    /// `TooMuch`.
    pub fn push(&mut self, item: T, bytes: usize) -> Result {
        let bytes = size_of::<(T, usize)>() + meter::ALLOCATION + bytes;
        meter::hold(bytes)?;
        self.held += bytes;
        self.items.push((item, self.seen));
        self.seen += 1;
        if self.wanted > 0 && self.items.len() >= HELD.get().max(self.wanted.saturating_mul(2)) {
            let compare = &self.compare;
            self.items.select_nth_unstable_by(self.wanted - 1, |a, b| compare(&a.0, &b.0).then(a.1.cmp(&b.1)));
            // Those that stay are as large as those that go.
            let left = self.held / self.items.len() * self.wanted;
            meter::release(std::mem::replace(&mut self.held, left) - left);
            self.items.truncate(self.wanted);
        }
        Ok(())
    }

    /// How many have come by.
    pub fn seen(&self) -> usize {
        self.seen
    }

    /// The wanted ones in order.
    pub fn into_sorted(mut self) -> impl ExactSizeIterator<Item = T> {
        let compare = &self.compare;
        self.items.sort_unstable_by(|a, b| compare(&a.0, &b.0).then(a.1.cmp(&b.1)));
        self.items.truncate(self.wanted);
        self.items.into_iter().map(|(item, _)| item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_few_are_those_of_a_stable_sort() {
        for (count, wanted) in [(0, 3), (10, 0), (10, 3), (10, 99), (20_000, 1), (20_000, 3000), (20_000, 20_000)] {
            let items: Vec<u64> = (0..count).map(|n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40).collect();
            // Equal by their low bits, told apart by the others.
            let running = meter::begin(meter::Allowance::here(usize::MAX));
            let mut front = Front::new(wanted, |a: &u64, b: &u64| (a % 64).cmp(&(b % 64)));
            items.iter().for_each(|&item| assert_eq!(front.push(item, 5), Ok(())));
            assert_eq!(front.seen(), items.len());
            assert_eq!(front.held, front.items.len() * (size_of::<(u64, usize)>() + meter::ALLOCATION + 5));
            // What was dropped the command has back.
            assert_eq!(meter::held(), front.held, "{wanted} of {count}");
            drop(running);
            let mut sorted = items;
            sorted.sort_by_key(|item| item % 64);
            sorted.truncate(wanted);
            assert_eq!(front.into_sorted().collect::<Vec<_>>(), sorted, "{wanted} of {count}");
        }
    }
}
