//! Waiting for what is to happen. How long it takes is no test's business: only what never happens fails.

use std::time::{Duration, Instant};

/// After this long, what is waited for does not happen at all.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Asks until it has happened.
pub(crate) fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let began = Instant::now();
    while !happened() {
        assert!(began.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
