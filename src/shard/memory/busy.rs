//! Keys that are held by commands which run in slices.
//!
//! A command that goes through a large collection gives its shards back between two slices ([`crate::shard::txn::rest`]) and
//! holds its keys instead. A key that it only reads it shares: whoever reads goes on, whoever writes it waits. So does who
//! writes a key that it will write, while readers still see what was there before. Others of its kind wait where
//! one of the two writes.
//!
//! | | reads | writes | holds to read | holds to write |
//! |---|---|---|---|---|
//! | held to read | goes on | waits | goes on | waits |
//! | held to write, or somebody waits for it | goes on | waits | waits | waits |
//!
//! All keys of a command are held at once, under the lease of their shards, and who waits holds nothing: nobody waits in a
//! circle. Who waits runs again, in order, when the key is let go.
//!
//! A key is held in all databases at once: the few that are at a time are worth no more.

use std::collections::VecDeque;

/// Runs again what has waited.
pub type Waiter = Box<dyn FnOnce() + Send>;

/// What somebody wants of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wish {
    /// To write it, and not only read.
    pub writes: bool,
    /// To hold it.
    pub holds: bool,
}

/// A key that is held.
struct Held {
    key: Box<[u8]>,
    /// How many hold it; to write, one does.
    holders: usize,
    writes: bool,
    waiting: VecDeque<Waiter>,
}

/// The keys of a shard that are held.
#[derive(Default)]
pub struct Busy {
    /// As many as commands in slices have: a few.
    held: Vec<Held>,
}

impl Busy {
    /// Whether no key is held.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Keys that are held.
    pub const fn len(&self) -> usize {
        self.held.len()
    }

    /// Commands that wait for one.
    pub fn waiting(&self) -> usize {
        self.held.iter().map(|held| held.waiting.len()).sum()
    }

    /// Whether a key is held.
    #[inline]
    pub fn holds(&self, key: &[u8]) -> bool {
        !self.is_empty() && self.find(key).is_some()
    }

    fn find(&self, key: &[u8]) -> Option<usize> {
        self.held.iter().position(|held| *held.key == *key)
    }

    /// Whether somebody who wants this of a key has to wait.
    pub fn keeps(&self, key: &[u8], wish: Wish) -> bool {
        let held = self.find(key).map(|at| &self.held[at]);
        // Who would hold it with others lines up behind who waits: else these would never have it to themselves.
        held.is_some_and(|held| wish.writes || wish.holds && (held.writes || !held.waiting.is_empty()))
    }

    /// Holds a key, which nobody [keeps](Busy::keeps) from it.
    pub fn hold(&mut self, key: &[u8], writes: bool) {
        debug_assert!(!self.keeps(key, Wish { writes, holds: true }), "who cannot hold a key waits");
        match self.find(key) {
            Some(at) => self.held[at].holders += 1,
            None => self.held.push(Held { key: key.into(), holders: 1, writes, waiting: VecDeque::new() }),
        }
    }

    /// Has somebody run again when a key that is held is let go.
    pub fn wait(&mut self, key: &[u8], waiter: Waiter) {
        match self.find(key) {
            Some(at) => self.held[at].waiting.push_back(waiter),
            None => unreachable!("who waits has found the key held under the same lease"),
        }
    }

    /// Lets a key go that was held; who has waited for it, in order.
    pub fn let_go(&mut self, key: &[u8]) -> VecDeque<Waiter> {
        let Some(at) = self.find(key) else { return VecDeque::new() };
        self.held[at].holders -= 1;
        if self.held[at].holders > 0 { VecDeque::new() } else { self.held.swap_remove(at).waiting }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    const READ: Wish = Wish { writes: false, holds: false };
    const WRITE: Wish = Wish { writes: true, holds: false };
    const HOLD: Wish = Wish { writes: false, holds: true };
    const HOLD_TO_WRITE: Wish = Wish { writes: true, holds: true };

    #[test]
    fn who_waits_for_whom_is_as_the_table_says() {
        let mut busy = Busy::default();
        let keeps = |busy: &Busy| [READ, WRITE, HOLD, HOLD_TO_WRITE].map(|wish| busy.keeps(b"key", wish));
        assert_eq!(keeps(&busy), [false; 4]);
        busy.hold(b"key", false);
        assert_eq!(keeps(&busy), [false, true, false, true]);
        assert!(!busy.keeps(b"other", HOLD_TO_WRITE));
        busy.hold(b"key", false);
        busy.let_go(b"key");
        assert_eq!(keeps(&busy), [false, true, false, true], "one of two is left");
        busy.let_go(b"key");
        assert_eq!(keeps(&busy), [false; 4]);
        busy.hold(b"key", true);
        assert_eq!(keeps(&busy), [false, true, true, true]);
        busy.let_go(b"key");
        busy.hold(b"key", false);
        busy.wait(b"key", Box::new(|| {}));
        assert_eq!(keeps(&busy), [false, true, true, true], "a writer waits: nobody overtakes it");
    }

    #[test]
    fn who_waits_runs_in_order_once_the_last_has_let_go() {
        let (mut busy, ran) = (Busy::default(), Arc::new(Mutex::new(Vec::new())));
        busy.hold(b"a", false);
        busy.hold(b"a", false);
        busy.hold(b"b", true);
        for n in 0..3 {
            let ran = ran.clone();
            busy.wait(b"a", Box::new(move || ran.lock().into_iter().for_each(|mut ran| ran.push(n))));
        }
        assert_eq!((busy.len(), busy.waiting()), (2, 3));
        assert!(busy.let_go(b"a").is_empty());
        busy.let_go(b"a").into_iter().for_each(|waiter| waiter());
        assert_eq!(ran.lock().map(|ran| ran.clone()).unwrap_or_default(), [0, 1, 2]);
        assert_eq!((busy.len(), busy.waiting()), (1, 0));
    }
}
