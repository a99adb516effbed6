//! How far a long task is: on a terminal one line that changes, elsewhere a line now and then; both on standard error.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Time between two looks.
const ON_TERMINAL: Duration = Duration::from_millis(200);
const ELSEWHERE: Duration = Duration::from_secs(10);

/// A task with so many bytes to go through.
pub(super) struct Progress {
    total: u64,
    terminal: bool,
    began: Instant,
    next: Instant,
    /// Something stands in the line.
    open: bool,
}

impl Progress {
    pub(super) fn new(total: u64) -> Self {
        let (terminal, began) = (std::io::stderr().is_terminal(), Instant::now());
        let next = began + if terminal { ON_TERMINAL } else { ELSEWHERE };
        Progress { total, terminal, began, next, open: false }
    }

    /// So many bytes have been gone through, and so many keys.
    pub(super) fn tell(&mut self, bytes: u64, keys: u64) {
        let now = Instant::now();
        if now < self.next {
            return;
        }
        self.next = now + if self.terminal { ON_TERMINAL } else { ELSEWHERE };
        let line = line(bytes, self.total, keys, now - self.began);
        self.say(&line);
    }

    /// Tells what is being done now.
    pub(super) fn say(&mut self, line: &str) {
        // Nobody is left to be told of a closed pipe.
        let mut out = std::io::stderr().lock();
        if self.terminal {
            let _ = write!(out, "\r\x1b[K{line}").and_then(|()| out.flush());
            self.open = true;
        } else {
            let _ = writeln!(out, "{line}");
        }
    }

    /// How long it has taken.
    pub(super) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.open {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

fn line(bytes: u64, total: u64, keys: u64, passed: Duration) -> String {
    let seconds = passed.as_secs_f64().max(0.001);
    let (mb, rate) = (bytes as f64 / 1e6, bytes as f64 / seconds);
    let per_second = (keys as f64 / seconds) as u64;
    let mut line = format!("{keys} keys, {mb:.0} MB; {per_second} keys/s, {:.1} MB/s", rate / 1e6);
    if let Some(percent) = (bytes * 100).checked_div(total)
        && rate > 0.0
    {
        let left = Duration::from_secs((total.saturating_sub(bytes) as f64 / rate) as u64);
        line = format!("{percent} %: {line}, {} left", humantime::format_duration(left));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_and_time_left() {
        let told = line(50_000_000, 200_000_000, 1_000, Duration::from_secs(2));
        assert_eq!(told, "25 %: 1000 keys, 50 MB; 500 keys/s, 25.0 MB/s, 6s left");
        assert_eq!(line(0, 0, 0, Duration::ZERO), "0 keys, 0 MB; 0 keys/s, 0.0 MB/s");
    }
}
