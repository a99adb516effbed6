//! Numbers at which something is done another way: counts from which work goes to a thread, is cut into slices, or takes
//! another algorithm. Tests hardly reach those of production, so that what is done above them would hardly be tested.
//!
//! | build | a threshold is |
//! |---|---|
//! | release | the constant it is made of, at no cost |
//! | debug | that, divided by `TARN_DEBUG_SCALE` of the environment, but no less than 4 |
//! | unit tests | what [`Scaled::in_unit_tests`] says, else that of production |
//!
//! Only what no client and no file on disk can tell may be a threshold.

use std::sync::OnceLock;

/// One such number.
#[derive(Debug, Clone, Copy)]
pub struct Scaled<T> {
    production: T,
    unit_tests: T,
}

/// What a threshold is divided to at most.
const LEAST: u64 = 4;

/// What the thresholds of this process are divided by.
pub fn factor() -> u64 {
    static FACTOR: OnceLock<u64> = OnceLock::new();
    if !cfg!(debug_assertions) {
        return 1;
    }
    *FACTOR.get_or_init(|| {
        let given = std::env::var("TARN_DEBUG_SCALE").ok().and_then(|text| text.parse().ok());
        given.unwrap_or(1).max(1)
    })
}

fn scaled(production: u64, factor: u64) -> u64 {
    (production / factor).max(LEAST.min(production))
}

impl<T: Copy> Scaled<T> {
    /// A threshold of this size in production.
    pub const fn new(production: T) -> Self {
        Scaled { production, unit_tests: production }
    }

    /// The same, of this size in unit tests.
    pub const fn in_unit_tests(self, unit_tests: T) -> Self {
        Scaled { unit_tests, ..self }
    }
}

macro_rules! threshold {
    ($number:ty) => {
        impl Scaled<$number> {
            /// Its size in this process.
            #[inline(always)]
            pub fn get(self) -> $number {
                if cfg!(test) {
                    self.unit_tests
                } else if cfg!(debug_assertions) {
                    scaled(self.production as u64, factor()) as $number
                } else {
                    self.production
                }
            }
        }
    };
}

threshold!(u64);
threshold!(usize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!([1, 100, 250, 1000].map(|factor| scaled(1000, factor)), [1000, 10, 4, 4]);
        assert_eq!(scaled(2, 100), 2);
        assert_eq!((Scaled::<u64>::new(7).get(), Scaled::<usize>::new(7).in_unit_tests(3).get()), (7, 3));
    }
}
