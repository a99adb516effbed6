//! How far a piece of work is, for who waits at a terminal or reads a log of it: bytes done, rate, time left.
//!
//! On a terminal one line is written over and over; elsewhere a line every ten seconds. Both go to standard error.

use std::io::{IsTerminal as _, Write as _, stderr};
use std::time::{Duration, Instant};

/// Time between two lines, on a terminal and elsewhere.
const ON_TERMINAL: Duration = Duration::from_millis(200);
const ELSEWHERE: Duration = Duration::from_secs(10);

/// A piece of work of which so many bytes are to be done.
#[derive(Debug)]
pub struct Progress {
    what: &'static str,
    total_bytes: u64,
    done_bytes: u64,
    began: Instant,
    told: Instant,
    is_terminal: bool,
}

impl Progress {
    /// One that begins.
    pub fn new(what: &'static str, total_bytes: u64) -> Progress {
        let now = Instant::now();
        let is_terminal = stderr().is_terminal();
        Progress { what, total_bytes, done_bytes: 0, began: now, told: now, is_terminal }
    }

    /// More is done.
    pub fn add(&mut self, bytes: u64) {
        self.set(self.done_bytes + bytes, self.total_bytes);
    }

    /// So much is done, of so much.
    pub fn set(&mut self, done_bytes: u64, total_bytes: u64) {
        (self.done_bytes, self.total_bytes) = (done_bytes, total_bytes);
        if self.told.elapsed() >= if self.is_terminal { ON_TERMINAL } else { ELSEWHERE } {
            self.told = Instant::now();
            self.tell();
        }
    }

    fn tell(&self) {
        let (begin, end) = if self.is_terminal { ("\r", "\x1b[K") } else { ("", "\n") };
        let line = line(self.what, self.done_bytes, self.total_bytes, self.began.elapsed());
        // Nobody is left to be told of a closed pipe.
        let _ = write!(stderr(), "{begin}{line}{end}");
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_terminal {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}

fn line(what: &str, done: u64, total: u64, took: Duration) -> String {
    const MB: f64 = 1e6;
    let rate = done as f64 / took.as_secs_f64().max(0.001);
    let percent = if total == 0 { 100.0 } else { (done as f64 / total as f64 * 100.0).min(100.0) };
    let left = total.saturating_sub(done) as f64 / rate.max(1.0);
    let left = if done == 0 { "?".to_owned() } else { format!("{left:.0}") };
    format!(
        "{what}: {percent:.0} %, {:.1} of {:.1} MB, {:.1} MB/s, {left} s left",
        done as f64 / MB,
        total as f64 / MB,
        rate / MB
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_tell_share_rate_and_time_left() {
        let second = Duration::from_secs(1);
        assert_eq!(line("copies", 1_000_000, 4_000_000, second), "copies: 25 %, 1.0 of 4.0 MB, 1.0 MB/s, 3 s left");
        assert_eq!(line("copies", 0, 4_000_000, second), "copies: 0 %, 0.0 of 4.0 MB, 0.0 MB/s, ? s left");
        assert_eq!(line("copies", 0, 0, Duration::ZERO), "copies: 100 %, 0.0 of 0.0 MB, 0.0 MB/s, ? s left");
    }
}
