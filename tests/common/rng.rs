//! A seeded generator: the tests' choices can be repeated from the seed they print.

use tarn::util::splitmix;

/// The state; each test seeds its own.
#[derive(Clone)]
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    /// 64 evenly spread bits.
    pub(crate) fn next(&mut self) -> u64 {
        splitmix::next(&mut self.0)
    }

    /// A number in `0..n`.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// True once in `n` times.
    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// The seed of a test: the value of `variable`, or the clock.
pub(crate) fn seed_from(variable: &str) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{variable} must be a number")),
        Err(_) => std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(1, |d| d.as_nanos() as u64),
    }
}
