//! INFO's facts in Prometheus's text form, version 0.0.4.
//!
//! | of a fact | comes |
//! |---|---|
//! | its name, without `tarn_` and `total_` | `tarn_name` |
//! | microseconds, milliseconds, percent, KiB | seconds, ratios, bytes: [`unit`] |
//! | a counter | `_total` at the end of the name |
//! | its sentence, of that unit | HELP |
//!
//! Left out are texts, what is always 0, and what a query works out better ([`LEFT_OUT`]). Of a family each field is a metric,
//! whose label says which of the family.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::server::info::fact::{Entry, Kind, Value};
use crate::server::info::{Facts, SECTIONS};

/// Rates and other shapes of what is told already, and what is no measurement.
const LEFT_OUT: [&str; 12] = [
    "server_time_usec",
    "uptime_in_days",
    "hz",
    "configured_hz",
    "lru_clock",
    "instantaneous_ops_per_sec",
    "instantaneous_input_kbps",
    "instantaneous_output_kbps",
    "instantaneous_eventloop_cycles_per_sec",
    "instantaneous_eventloop_duration_usec",
    "usec_per_call",
    "aof_enabled",
];

/// What a name ends with, what it becomes, and by what the number is multiplied.
const UNITS: [(&str, &str, f64); 9] = [
    ("_per_sec", "_per_second", 1.0),
    ("_usec", "_seconds", 1e-6),
    ("_us", "_seconds", 1e-6),
    ("usec", "seconds", 1e-6),
    ("_milliseconds", "_seconds", 1e-3),
    ("_ms", "_seconds", 1e-3),
    ("_sec", "_seconds", 1.0),
    ("_in_seconds", "_seconds", 1.0),
    ("_perc", "_ratio", 0.01),
];

/// The name of a fact with its unit, and by what its number is multiplied.
fn unit(name: &str, help: &str) -> (String, f64) {
    let name = name.strip_prefix("tarn_").unwrap_or(name);
    let name = name.strip_prefix("total_").unwrap_or(name);
    for (ending, becomes, factor) in UNITS {
        if let Some(stem) = name.strip_suffix(ending) {
            return (format!("{stem}{becomes}"), factor);
        }
    }
    if name.starts_with("used_cpu_") || name.ends_with("_seconds") {
        return (format!("{}_seconds", name.trim_end_matches("_seconds")), 1.0);
    }
    if help.starts_with("Milliseconds") {
        return (format!("{name}_seconds"), 1e-3);
    }
    if help.starts_with("Microseconds") {
        return (format!("{name}_seconds"), 1e-6);
    }
    if let Some(stem) = name.strip_suffix("_time") {
        return (format!("{stem}_timestamp_seconds"), 1.0);
    }
    let is_of_bytes = help.contains("ytes")
        || name.ends_with("_budget")
        || name == "log_limit"
        || name == "client_recent_max_output_buffer";
    if is_of_bytes && !name.contains("bytes") && !name.contains("ratio") {
        return (format!("{name}_bytes"), 1.0);
    }
    (name.to_owned(), 1.0)
}

/// What INFO's sentences say of their units, and what is right once the number is in that of [`unit`].
const WORDS: [(&str, &str); 3] =
    [("Microseconds", "Seconds"), ("Milliseconds", "Seconds"), (", percent.", ", as a ratio.")];

/// The sentence of a fact, of the unit that its metric is in.
fn help_of(help: &str) -> String {
    WORDS.iter().fold(help.to_owned(), |help, (told, right)| help.replace(told, right))
}

/// The name of a metric.
fn name_of(name: &str, help: &str, kind: Kind) -> (String, f64) {
    let (name, factor) = unit(name, help);
    // The ending is the counters' own.
    let name = name.trim_end_matches("_total");
    let end = if kind == Kind::Counter { "_total" } else { "" };
    (format!("tarn_{name}{end}"), factor)
}

/// The text under way: the lines of each metric stand together.
#[derive(Default)]
struct Text {
    metrics: BTreeMap<String, (&'static str, String, String)>,
}

impl Text {
    fn add(&mut self, name: String, kind: &'static str, help: &str, labels: &str, number: f64) {
        let (_, _, lines) = self.metrics.entry(name.clone()).or_insert_with(|| (kind, help_of(help), String::new()));
        let _ = writeln!(lines, "{name}{labels} {number}");
    }

    fn finish(self) -> String {
        let mut text = String::with_capacity(32 << 10);
        for (name, (kind, help, lines)) in self.metrics {
            let _ = write!(text, "# HELP {name} {}\n# TYPE {name} {kind}\n{lines}", escape(&help, false));
        }
        text
    }
}

/// As the form wants it in a sentence, or, with quotes, in a label's value.
fn escape(text: &str, quotes: bool) -> String {
    let text = text.replace('\\', "\\\\").replace('\n', "\\n");
    if quotes { text.replace('"', "\\\"") } else { text }
}

fn type_of(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::Counter => Some("counter"),
        Kind::Gauge => Some("gauge"),
        Kind::Text | Kind::Nothing(_) => None,
    }
}

/// All metrics.
pub(super) fn write(facts: &Facts<'_>) -> String {
    let mut text = Text::default();
    for entry in SECTIONS.iter().flat_map(|section| section.entries) {
        match entry {
            Entry::One(fact) if LEFT_OUT.contains(&fact.name) => {}
            Entry::One(fact) => {
                if let (Some(kind), Some(number)) = (type_of(fact.kind), (fact.read)(facts).number()) {
                    let (name, factor) = name_of(fact.name, fact.help, fact.kind);
                    text.add(name, kind, fact.help, "", number * factor);
                }
            }
            Entry::Many(family) => (family.each)(facts, &mut |of, values| {
                let label = format!("{}=\"{}\"", family.label, escape(of, true));
                for (field, value) in
                    family.fields.iter().zip(values).filter(|(field, _)| !LEFT_OUT.contains(&field.name))
                {
                    if let (Some(kind), Some(number)) = (type_of(field.kind), value.number()) {
                        let (name, factor) =
                            name_of(&format!("{}_{}", family.label, field.name), field.help, field.kind);
                        text.add(name, kind, field.help, &format!("{{{label}}}"), number * factor);
                    }
                }
                // Percentiles: `p99.9=` and microseconds.
                for value in values.iter().skip(family.fields.len()) {
                    if let Some((percent, us)) = percentile(value) {
                        let name = format!("tarn_{}_latency_seconds", family.label);
                        let labels = format!("{{{label},quantile=\"{}\"}}", (percent * 1e4).round() / 1e6);
                        text.add(
                            name,
                            "gauge",
                            "Time that a call ran, by percentile since the start.",
                            &labels,
                            us * 1e-6,
                        );
                    }
                }
            }),
        }
    }
    let help = "Always 1; what runs here.";
    let labels =
        format!("{{version=\"{}\",redis_version=\"{}\"}}", env!("CARGO_PKG_VERSION"), crate::server::REDIS_VERSION);
    text.add("tarn_build_info".into(), "gauge", help, &labels, 1.0);
    text.finish()
}

/// A percentile and its microseconds in a text `p50=1.003`.
fn percentile(value: &Value) -> Option<(f64, f64)> {
    let Value::Text(text) = value else { return None };
    let (percent, us) = text.strip_prefix('p')?.split_once('=')?;
    Some((percent.parse().ok()?, us.parse().ok()?))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// Name, sentence and kind of all facts that are told.
    fn told() -> Vec<(String, &'static str, Kind)> {
        let mut all = Vec::new();
        for entry in SECTIONS.iter().flat_map(|section| section.entries) {
            match entry {
                Entry::One(fact) if type_of(fact.kind).is_none() || LEFT_OUT.contains(&fact.name) => {}
                Entry::One(fact) => all.push((fact.name.to_owned(), fact.help, fact.kind)),
                Entry::Many(family) => {
                    for field in family.fields.iter().filter(|field| !LEFT_OUT.contains(&field.name)) {
                        all.push((format!("{}_{}", family.label, field.name), field.help, field.kind));
                    }
                }
            }
        }
        all
    }

    /// By the conventions of Prometheus: base units, `_total` for counters alone, each name once.
    #[test]
    fn names_follow_the_conventions() {
        let mut names = std::collections::HashSet::new();
        let mut check = |name: &str, help: &str, kind: Kind| {
            let (metric, _) = name_of(name, help, kind);
            assert!(names.insert(metric.clone()), "{metric} twice");
            assert!(metric.bytes().all(|c| c == b'_' || c.is_ascii_lowercase() || c.is_ascii_digit()), "{metric}");
            assert_eq!(metric.ends_with("_total"), kind == Kind::Counter, "{metric}");
            for bad in ["usec", "_ms", "_us_", "milli", "perc", "kbps", "__", "_tarn_", "seconds_seconds", "human"] {
                assert!(!metric.contains(bad), "{metric}");
            }
        };
        for (name, help, kind) in told() {
            check(&name, help, kind);
        }
        assert!(names.len() > 100);
        let milliseconds = unit("total_eviction_exceeded_time", "Milliseconds that it was.");
        assert_eq!(milliseconds, ("eviction_exceeded_time_seconds".to_owned(), 1e-3));
        for known in [
            "tarn_connections_received_total",
            "tarn_commands_processed_total",
            "tarn_used_memory_bytes",
            "tarn_used_memory_peak_timestamp_seconds",
            "tarn_used_memory_dataset_ratio",
            "tarn_uptime_seconds",
            "tarn_used_cpu_user_seconds_total",
            "tarn_flush_seconds_total",
            "tarn_command_seconds_total",
            "tarn_db_avg_ttl_seconds",
            "tarn_dirty_bytes",
            "tarn_dirty_budget_bytes",
            "tarn_eviction_exceeded_time_seconds_total",
            "tarn_rank_ops_per_second",
            "tarn_disk_limit_bytes",
        ] {
            assert!(names.contains(known), "{known} of {names:?}");
        }
    }

    /// A sentence that tells milliseconds, of a number of seconds, would have everybody wrong.
    #[test]
    fn sentences_are_of_the_unit_of_the_number() {
        let mut changed = 0;
        for (name, help, kind) in told() {
            let ((metric, factor), said) = (name_of(&name, help, kind), help_of(help));
            for bad in ["illisecond", "icrosecond", "ercent", "KiB"] {
                assert!(!said.contains(bad), "{metric}: {said}");
            }
            assert!(said == help || factor != 1.0, "{metric} is not in other units than INFO: {said}");
            changed += u32::from(said != help);
        }
        assert!(changed > 12, "{changed}");
    }

    /// A code that ends a label's value, or a line, does not do so.
    #[test]
    fn labels_of_metrics_are_escaped() {
        use crate::config::{Config, Source};
        use crate::handler::server::ThreadStats;
        let dir = crate::util::scratch::tempdir().unwrap();
        let engine = crate::shard::keyspace::walk::tests::engine(dir.path(), 1);
        let server =
            crate::handler::Server::new(engine, Config::load(Source::Defaults, &[]).unwrap(), crate::command::table());
        let stats = ThreadStats::new(0);
        stats.count_error(b"-A\"B\\C\nD text\r\n");
        server.threads.lock().push(stats.into());
        let lease = server.engine.lease(&server.engine.all_shards());
        let text = write(&Facts::gather(&server, &lease, &server.engine.first_names(), 1));
        let line = "tarn_error_count_total{error=\"A\\\"B\\\\C\\nD\"} 1";
        assert!(text.lines().any(|found| found == line), "{text}");
    }

    #[test]
    fn labels_are_escaped() {
        assert_eq!(escape("a\"b\\c\nd", true), "a\\\"b\\\\c\\nd");
        assert_eq!(percentile(&"p99.9=12.500".into()), Some((99.9, 12.5)));
    }
}
