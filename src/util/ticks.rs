//! A clock that is cheap to read, for how long things take: the processor's time stamp counter, where the system itself goes
//! by it, else the monotonic clock. Reading it costs a third of what the latter does.
//!
//! A tick is whatever the counter counts; how long one is, is measured against the monotonic clock as the process goes on
//! ([`calibrate`]). Only differences mean anything. A thread that moves between processors whose counters differ reads a
//! difference that is off by that: systems on which this happens do not use the counter.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Nanoseconds of 2³² ticks.
static NS_OF_TICKS: AtomicU64 = AtomicU64::new(1 << 32);

/// What is read: decided by the first who asks, and never changed, as a difference between two clocks means nothing.
static SOURCE: AtomicU8 = AtomicU8::new(UNDECIDED);
const UNDECIDED: u8 = 0;
const COUNTER: u8 = 1;
const CLOCK: u8 = 2;

/// A moment by both clocks, and which is read.
#[derive(Debug, Clone, Copy)]
struct Start {
    ticks: u64,
    at: Instant,
    source: u8,
}

/// The time in ticks.
#[inline]
pub fn now() -> u64 {
    if cfg!(target_arch = "x86_64") && SOURCE.load(Ordering::Relaxed) == COUNTER { counter() } else { now_by_start() }
}

#[cold]
fn now_by_start() -> u64 {
    let start = start();
    if start.source == COUNTER { counter() } else { start.at.elapsed().as_nanos() as u64 }
}

fn start() -> &'static Start {
    static START: OnceLock<Start> = OnceLock::new();
    START.get_or_init(|| {
        let source = if has_counter() { COUNTER } else { CLOCK };
        let start = Start { ticks: counter(), at: Instant::now(), source };
        if source == COUNTER {
            std::thread::sleep(FIRST);
            measure(&start);
        }
        SOURCE.store(source, Ordering::Relaxed);
        start
    })
}

#[inline]
fn counter() -> u64 {
    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "no safe form")]
    // SAFETY: every processor of this architecture has the instruction; the server runs where it is not forbidden.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    0
}

/// Whether the counter goes on evenly, on all processors: the system goes by it, by itself or as its hypervisor has it.
fn has_counter() -> bool {
    let source = std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    cfg!(target_arch = "x86_64") && source.is_ok_and(|source| matches!(source.trim(), "tsc" | "kvm-clock"))
}

/// How long is measured before the first tick is told.
const FIRST: Duration = Duration::from_millis(2);

/// Measures how long a tick is; better the longer ago the first call was, which takes two milliseconds.
pub fn calibrate() {
    let start = start();
    if start.source == COUNTER {
        measure(start);
    }
}

fn measure(start: &Start) {
    let (ns, ticks) = (start.at.elapsed().as_nanos(), u128::from(counter().wrapping_sub(start.ticks)));
    let ratio = (ns << 32).checked_div(ticks).and_then(|ratio| u64::try_from(ratio).ok());
    if let Some(ratio) = ratio.filter(|ratio| *ratio > 0) {
        NS_OF_TICKS.store(ratio, Ordering::Relaxed);
    }
}

/// How long so many ticks are, in nanoseconds. A difference below zero, as of two processors, is 0.
#[inline]
pub fn to_ns(ticks: u64) -> u64 {
    if ticks as i64 <= 0 {
        return 0;
    }
    ((u128::from(ticks) * u128::from(NS_OF_TICKS.load(Ordering::Relaxed))) >> 32) as u64
}

/// Nanoseconds since that moment.
#[inline]
pub fn ns_since(moment: u64) -> u64 {
    to_ns(now().wrapping_sub(moment))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_go_by_the_clock() {
        calibrate();
        let (moment, began) = (now(), Instant::now());
        std::thread::sleep(Duration::from_millis(20));
        let ns = ns_since(moment);
        let most = began.elapsed().as_nanos() as u64;
        assert!(ns >= 19_000_000 && ns <= most + most / 10, "{ns} of {most}");
        assert_eq!(to_ns(5u64.wrapping_sub(7)), 0);
    }
}
