//! A seeded generator: the tests' choices can be repeated from the seed they print.

use tarn::util::splitmix;

use super::server::notice;

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

/// The seed of a test: the value of `variable`, or the clock. It is told whether the test passes or not, and the last one
/// is kept in cargo's directory for tests, in a file named after the variable: `VARIABLE=seed cargo test …` repeats the run.
pub(crate) fn seed_from(variable: &str) -> u64 {
    let seed = match std::env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{variable} must be a number")),
        // Short enough to be typed, and for Python.
        Err(_) => {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            now.as_micros() as u64 % 1_000_000_000
        }
    };
    notice(&format!("{variable}={seed}"));
    let kept = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(variable);
    std::fs::write(&kept, format!("{seed}\n")).unwrap_or_else(|e| panic!("{}: {e}", kept.display()));
    seed
}
