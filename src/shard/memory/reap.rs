//! Which places of the table are to be looked through for objects of dead namespaces.

use super::table::Index;

/// The way through the table: to `end`, and then from the beginning to `again`. Each place is looked at once after the last death,
/// wherever it was by then: deaths that follow each other closely do not have it begin anew each time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reap {
    next: Index,
    end: Index,
    again: Index,
}

impl Reap {
    /// A namespace has died.
    pub fn after_death(under_way: Option<Reap>) -> Reap {
        let next = under_way.map_or(0, |reap| reap.next);
        Reap { next, end: Index::MAX, again: next }
    }

    /// The next of so many places; `None` at the end.
    pub fn step(&mut self, places: Index) -> Option<Index> {
        if self.next >= self.end.min(places) {
            *self = Reap { next: 0, end: self.again.min(places), again: 0 };
        }
        let next = (self.next < self.end).then_some(self.next)?;
        self.next += 1;
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rest(mut reap: Reap, places: Index) -> Vec<Index> {
        std::iter::from_fn(|| reap.step(places)).collect()
    }

    #[test]
    fn each_place_is_looked_at_once_after_the_last_death() {
        let mut reap = Reap::after_death(None);
        assert_eq!((rest(reap, 0), rest(reap, 3)), (vec![], vec![0, 1, 2]));
        (0..3).for_each(|_| _ = reap.step(5));
        let mut reap = Reap::after_death(Some(reap));
        assert_eq!(rest(reap, 5), [3, 4, 0, 1, 2]);
        assert_eq!(rest(reap, 7), [3, 4, 5, 6, 0, 1, 2], "it has grown");
        assert_eq!(rest(reap, 2), [0, 1], "or is smaller");
        (0..3).for_each(|_| _ = reap.step(5));
        assert_eq!(rest(reap, 5), [1, 2]);
        assert_eq!(rest(Reap::after_death(Some(reap)), 5), [1, 2, 3, 4, 0]);
    }
}
