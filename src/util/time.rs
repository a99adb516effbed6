//! Clocks. Commands never read them: whoever starts a command reads the time once and hands it down.

use std::sync::OnceLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Wall clock in milliseconds since the Unix epoch; the unit of expiry times. Zero for a clock set before 1970.
pub fn now_ms() -> u64 {
    now_us() / 1000
}

/// Wall clock in microseconds since the Unix epoch. Zero for a clock set before 1970.
pub fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

/// Wall clock in nanoseconds since the Unix epoch: a number that no earlier start of the process was given.
pub fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// Microseconds since the first call in this process. Never goes back: for durations, timeouts and slow logs.
pub fn monotonic_us() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_micros() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_agree_on_the_unit_and_never_go_back() {
        let (ms, us) = (now_ms(), now_us());
        assert!(us / 1000 - ms < 60_000, "{ms} ms, {us} us");
        assert!(ms > 1_600_000_000_000, "{ms}");
        let first = monotonic_us();
        assert!(monotonic_us() >= first);
    }
}
