//! LATENCY DOCTOR: what was seen, and what helps against it.

use std::fmt::Write as _;

use crate::handler::Server;
use crate::handler::observe::Kind;
use crate::latency::{self, Event, Series};

/// What the report goes by, beside the events.
pub(super) struct Seen {
    /// Nothing is kept.
    pub(super) is_off: bool,
    /// Commands in the slow log.
    pub(super) slow: usize,
    /// Waits: which, how often, how long in all, ns.
    pub(super) waits: Vec<(Event, [u64; 2])>,
}

impl Seen {
    pub(super) fn of(server: &Server) -> Seen {
        Seen {
            is_off: latency::threshold_ns() == u64::MAX,
            slow: server.observer.len(Kind::Slow),
            waits: Event::WAITS.map(|event| (event, latency::waits(event))).into(),
        }
    }
}

/// Waits of an average from which on they are told of, ns.
const WORTH_NS: u64 = 1_000_000;

/// What helps against an event.
fn advice(name: &str) -> &'static str {
    match name {
        "command" | "fast-command" => {
            "Commands ran long: SLOWLOG GET shows which. Those over many elements or keys are better done in parts (SCAN and \
             its kin, ranges with a limit)."
        }
        "aof-write" => "Writes of the log took long: the disk or its file system is busy. Keep other writers off it.",
        "aof-fsync-always" | "log-sync" => {
            "Syncs of the log took long: with appendfsync always every write waits for one. A faster disk helps, or \
             appendfsync everysec if the last second may be lost in a power failure."
        }
        "eviction-cycle" | "eviction-del" => "Eviction goes through keys: see 'maxmemory-policy' and 'maxdisk'.",
        "expire-cycle" => "Many keys expired at once: spread their times.",
        "flush" => "Flushes took long: that is background work, and bad only if flush-wait is seen as well.",
        "log-wait" => "Replies waited for the log: see aof-write and the syncs.",
        "flush-wait" => {
            "Writers waited as more is written than reaches the store: raise dirty-budget or maxmemory, or use a faster disk \
             (INFO tarn: tarn_dirty_bytes, tarn_level0_runs_max)."
        }
        "disk-wait" => {
            "Commands waited for the disk: what they read was not in memory. Raise maxmemory, or use a disk with a shorter \
             access time (INFO tarn: hit rates)."
        }
        "queue-wait" => {
            "Commands waited for others that had their keys' shards: long commands, transactions and scripts over many keys \
             keep them. See SLOWLOG, and tarn_hot_shard of INFO tarn for keys that everybody uses."
        }
        "memory-wait" => {
            "Commands waited for memory that others had: fewer big commands at once, or more maxmemory, help."
        }
        _ => "",
    }
}

/// Average, and mean distance from it, ms.
fn spread(series: &Series) -> (u64, u64) {
    let count = series.samples.len().max(1) as u64;
    let average = series.samples.iter().map(|(_, ms)| ms).sum::<u64>() / count;
    (average, series.samples.iter().map(|(_, ms)| ms.abs_diff(average)).sum::<u64>() / count)
}

/// The report.
pub(super) fn report(events: &[(&'static str, Series)], seen: &Seen) -> String {
    let mut text = String::new();
    let mut advised: Vec<&str> = Vec::new();
    if seen.is_off {
        text.push_str("Events are not kept: CONFIG SET latency-monitor-threshold <milliseconds> has them kept.\n");
    }
    for (name, series) in events {
        let (average, deviation) = spread(series);
        let first = series.samples.front().map_or(0, |(second, _)| *second);
        let last = series.samples.back().map_or(0, |(second, _)| *second);
        let period = (last - first) as f64 / series.samples.len().saturating_sub(1).max(1) as f64;
        let _ = writeln!(
            text,
            "{name}: {} spikes (average {average} ms, mean deviation {deviation} ms, one every {period:.1} s), worst {} ms.",
            series.samples.len(),
            series.most_ms
        );
        advised.push(name);
    }
    for (event, [count, ns]) in &seen.waits {
        let average_ns = ns.checked_div(*count).unwrap_or(0);
        if average_ns >= WORTH_NS {
            let ms = average_ns as f64 / 1e6;
            let _ = writeln!(text, "{}: {count} since the last reset, {ms:.1} ms on average.", event.name());
            if !advised.contains(&event.name()) {
                advised.push(event.name());
            }
        }
    }
    if seen.slow > 0 && !advised.contains(&"command") {
        let _ = writeln!(text, "The slow log has {} commands.", seen.slow);
        advised.push("command");
    }
    if advised.is_empty() {
        text.push_str("Nothing slow was seen.\n");
    } else {
        text.push_str("\nWhat helps:\n");
    }
    for name in advised {
        let _ = writeln!(text, "- {}", advice(name));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_fits_what_is_seen() {
        let calm = Seen { is_off: false, slow: 0, waits: vec![(Event::LogWait, [1000, 1_000_000])] };
        assert_eq!(report(&[], &calm), "Nothing slow was seen.\n");
        let off = Seen { is_off: true, slow: 2, waits: vec![(Event::DiskWait, [2, 9_000_000])] };
        let text = report(&[], &off);
        assert!(text.starts_with("Events are not kept"), "{text}");
        assert!(text.contains("disk-wait: 2 since the last reset, 4.5 ms on average."), "{text}");
        assert!(text.contains("Raise maxmemory") && text.contains("SLOWLOG GET"), "{text}");
        let series = Series { samples: [(10, 100), (14, 200)].into(), most_ms: 300 };
        let text = report(&[("expire-cycle", series)], &calm);
        let line = "expire-cycle: 2 spikes (average 150 ms, mean deviation 50 ms, one every 4.0 s), worst 300 ms.";
        assert!(text.contains(line) && text.contains("spread their times") && !text.contains("SLOWLOG"), "{text}");
    }

    #[test]
    fn there_is_advice_for_each_event() {
        for event in Event::WAITS {
            assert!(!advice(event.name()).is_empty(), "{}", event.name());
        }
    }
}
