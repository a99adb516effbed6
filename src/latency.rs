//! What takes long and is no command's own work: events of which the longest of each second are kept, as Redis's latency
//! monitor does, and how long commands have waited, and for what.
//!
//! | event | is |
//! |---|---|
//! | `command`, `fast-command` | the run of a command; those that are to be fast apart |
//! | `aof-write` | a write of the log |
//! | `aof-fsync-always`, `log-sync` | a sync of the log, before replies leave or beside them |
//! | `expire-cycle` | a sweep of a shard's expired keys |
//! | `eviction-cycle` | what a turn of a shard's timer spends on eviction |
//! | `eviction-del` | the removal of some keys within it |
//! | `flush` | a flush |
//! | `log-wait` | replies waited for the log |
//! | `flush-wait` | a writer waited, as too much is dirty |
//! | `disk-wait` | a command waited for what it lacked of the store |
//! | `queue-wait` | a command waited for its shards, for a thread, or for a key that somebody goes through |
//! | `memory-wait` | a command waited for memory that others had |
//!
//! The last five are [waits](Event::is_wait): they are summed up whatever the threshold. The state is the process's and not a
//! parameter, as log, store and commands tell of themselves without knowing each other. Where nothing is to be kept an event
//! costs a look at the threshold.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::util::ticks;
use crate::util::time::now_ms;

/// A kind of event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the table at the head of the file")]
pub enum Event {
    Command,
    FastCommand,
    AofWrite,
    AofFsyncAlways,
    LogSync,
    ExpireCycle,
    EvictionCycle,
    EvictionDel,
    Flush,
    LogWait,
    FlushWait,
    DiskWait,
    QueueWait,
    MemoryWait,
}

/// Their names, in the order of [`Event`].
const NAMES: [&str; EVENTS] = [
    "command",
    "fast-command",
    "aof-write",
    "aof-fsync-always",
    "log-sync",
    "expire-cycle",
    "eviction-cycle",
    "eviction-del",
    "flush",
    "log-wait",
    "flush-wait",
    "disk-wait",
    "queue-wait",
    "memory-wait",
];
const EVENTS: usize = Event::MemoryWait as usize + 1;

impl Event {
    /// The waits.
    pub const WAITS: [Event; 5] =
        [Event::LogWait, Event::FlushWait, Event::DiskWait, Event::QueueWait, Event::MemoryWait];

    /// Its name.
    pub fn name(self) -> &'static str {
        NAMES[self as usize]
    }

    /// Whether a command waits meanwhile.
    pub fn is_wait(self) -> bool {
        Event::WAITS.contains(&self)
    }
}

/// Samples of an event that are kept: one a second at most.
const SAMPLES: usize = 160;

/// One event's samples.
#[derive(Debug, Clone, Default)]
pub struct Series {
    /// Unix second, and the longest within it, ms; the latest last.
    pub samples: VecDeque<(u64, u64)>,
    /// The longest ever, ms.
    pub most_ms: u64,
}

impl Series {
    fn add(&mut self, now_s: u64, ms: u64) {
        self.most_ms = self.most_ms.max(ms);
        match self.samples.back_mut() {
            Some((second, most)) if *second == now_s => *most = ms.max(*most),
            _ => {
                if self.samples.len() == SAMPLES {
                    self.samples.pop_front();
                }
                self.samples.push_back((now_s, ms));
            }
        }
    }
}

/// What an event must take to be kept, ns; nothing is with the highest number.
static THRESHOLD_NS: AtomicU64 = AtomicU64::new(u64::MAX);
static SERIES: Mutex<[Series; EVENTS]> =
    Mutex::new([const { Series { samples: VecDeque::new(), most_ms: 0 } }; EVENTS]);

/// How often somebody has waited, and how long, ns; apart, as other threads add to other ones.
#[repr(align(64))]
struct Sum([AtomicU64; 2]);
static WAITED: [Sum; EVENTS] = [const { Sum([AtomicU64::new(0), AtomicU64::new(0)]) }; EVENTS];

thread_local! {
    /// Nanoseconds that this thread's commands have waited.
    static WAITED_HERE: Cell<u64> = const { Cell::new(0) };
}

/// Keeps events of so many ms and more from now on; 0 for none.
pub fn set_threshold(ms: u64) {
    let ns = if ms == 0 { u64::MAX } else { ms.saturating_mul(1_000_000) };
    THRESHOLD_NS.store(ns, Ordering::Relaxed);
}

/// What an event must take to be kept, ns.
#[inline]
pub fn threshold_ns() -> u64 {
    THRESHOLD_NS.load(Ordering::Relaxed)
}

/// An event took so long.
#[inline]
pub fn add(event: Event, ns: u64) {
    if event.is_wait() {
        add_waits(event, 1, ns);
    }
    keep(event, ns);
}

/// Keeps it if it took long.
#[inline]
pub fn keep(event: Event, ns: u64) {
    if ns >= threshold_ns() {
        keep_sample(event, ns);
    }
}

/// So many have waited so long together.
#[inline]
pub fn add_waits(event: Event, times: u64, ns: u64) {
    let Sum([count, sum]) = &WAITED[event as usize];
    count.fetch_add(times, Ordering::Relaxed);
    sum.fetch_add(ns, Ordering::Relaxed);
}

#[cold]
fn keep_sample(event: Event, ns: u64) {
    SERIES.lock()[event as usize].add(now_ms() / 1000, ns / 1_000_000);
}

/// Does what the command that this thread runs waits for: it is no time of the command's run.
pub fn wait_for<R>(event: Event, what: impl FnOnce() -> R) -> R {
    wait_for_some(event, what, |_| true)
}

/// The same for what may turn out to have been nothing.
pub fn wait_for_some<R>(event: Event, what: impl FnOnce() -> R, was_some: impl FnOnce(&R) -> bool) -> R {
    let (began, before) = (ticks::now(), WAITED_HERE.get());
    let done = what();
    if was_some(&done) {
        let ns = ticks::ns_since(began);
        // What has been waited for within is part of it.
        WAITED_HERE.set(before + ns);
        add(event, ns);
    }
    done
}

/// Nanoseconds that this thread's commands have waited so far.
#[inline]
pub fn waited_here() -> u64 {
    WAITED_HERE.get()
}

/// How often somebody has waited, and how long, ns.
pub fn waits(event: Event) -> [u64; 2] {
    let Sum(sum) = &WAITED[event as usize];
    [0, 1].map(|at| sum[at].load(Ordering::Relaxed))
}

/// Begins the sums anew.
pub fn reset_waits() {
    WAITED.iter().flat_map(|Sum(sum)| sum).for_each(|sum| sum.store(0, Ordering::Relaxed));
}

/// The events that have samples.
pub fn all() -> Vec<(&'static str, Series)> {
    let series = SERIES.lock();
    let all = NAMES.iter().zip(series.iter()).filter(|(_, series)| !series.samples.is_empty());
    all.map(|(name, series)| (*name, series.clone())).collect()
}

/// An event's samples; none of an event that there is not.
pub fn of(name: &[u8]) -> Series {
    let at = NAMES.iter().position(|known| known.as_bytes() == name);
    at.map(|at| SERIES.lock()[at].clone()).unwrap_or_default()
}

/// Forgets the samples of the events for which this holds; how many of them had any.
pub fn reset(is_one: impl Fn(&[u8]) -> bool) -> usize {
    // Before the lock, which others take: a client can name very many.
    let chosen = NAMES.map(|name| is_one(name.as_bytes()));
    let mut series = SERIES.lock();
    let chosen = series.iter_mut().zip(chosen).filter_map(|(series, chosen)| chosen.then_some(series));
    chosen.map(std::mem::take).filter(|series| !series.samples.is_empty()).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_of_a_second_is_kept() {
        let mut series = Series::default();
        for (second, ms) in [(1, 5), (1, 9), (1, 2), (2, 1)] {
            series.add(second, ms);
        }
        assert_eq!((series.samples.make_contiguous(), series.most_ms), (&mut [(1, 9), (2, 1)][..], 9));
        (3..1000).for_each(|second| series.add(second, 4));
        assert_eq!((series.samples.len(), series.samples.front()), (SAMPLES, Some(&(1000 - SAMPLES as u64, 4))));
    }

    #[test]
    fn what_is_waited_for_is_summed_up() {
        let before = (waits(Event::MemoryWait), waited_here());
        wait_for(Event::MemoryWait, || std::thread::sleep(std::time::Duration::from_millis(2)));
        let after = (waits(Event::MemoryWait), waited_here());
        assert!(after.0[0] > before.0[0] && after.0[1] - before.0[1] >= 1_900_000);
        assert!(after.1 - before.1 >= 1_900_000);
    }

    /// Else a command would seem to have waited longer than it took.
    #[test]
    fn what_is_waited_for_within_a_wait_counts_once() {
        let (began, before) = (ticks::now(), waited_here());
        let sleep = || std::thread::sleep(std::time::Duration::from_millis(2));
        wait_for(Event::QueueWait, || wait_for(Event::MemoryWait, sleep));
        assert!(waited_here() - before <= ticks::ns_since(began));
    }
}
