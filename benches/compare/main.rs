//! Compares Tarn with other servers, and writes `docs/benchmarks.md`: `cargo bench --bench compare -- [options]`, `--help` for the options.
//!
//! | option | what is measured |
//! |---|---|
//! | none | redis-benchmark's commands on Tarn and its rivals, as the options say ([`rounds`]) |
//! | `--suite hot`, `collections` | the same with a choice of its own: strings, collections in memory |
//! | `--suite cold` | data several times memory, the page cache warm and dropped ([`cold`]) |
//! | `--suite mixed` | hot requests beside cold ones, from an open loop ([`mixed`]) |
//! | `--suite types` | memory and disk by type ([`types`]) |
//! | `--suite start` | from exec to the first reply ([`start`]) |
//! | `--report` | all suites, into `docs/benchmarks.md` and the README ([`report`]) |
//!
//! Every server has a port and a directory of its own. Without `--server` the rivals are `redis-server` and Valkey 9.1, where this
//! machine has them, with an append-only file synced every second.
//!
//! | column | meaning |
//! |---|---|
//! | kreq/s | throughput, median of the rounds |
//! | ratio | the first server's throughput to this one's in the same round, median of the rounds |
//! | CPU µs | user and system time of all threads of the server, per request, until half a second after the last: background work counts |
//! | p50, p99, p99.9 | latency in ms as the client sees it, median of the rounds |
//! | RSS | resident memory in MB after the run |
//!
//! CPU and ratios are what counts: machines are shared, and in a pipeline redis-benchmark itself is often the limit.

#![allow(clippy::print_stdout, reason = "the table is this program's output")]
#![allow(clippy::expect_used, reason = "a benchmark that cannot go on ends with a message")]

#[path = "../../tests/common/mod.rs"]
mod common;

mod cold;
mod load;
mod mixed;
mod report;
mod rounds;
mod server;
mod start;
mod table;
mod types;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use table::Section;

/// Compares Tarn with other servers, and writes the report.
#[derive(Parser)]
struct Options {
    /// Run these suites instead of a comparison, or the report with these alone; may be given several times.
    #[arg(long = "suite", value_enum, value_delimiter = ',')]
    suites: Vec<Suite>,
    /// Run all suites on one build and write what came out to a file; if that is docs/benchmarks.md, the README's lines too.
    #[arg(long, num_args = 0..=1, default_missing_value = report::PATH, value_name = "PATH")]
    report: Option<PathBuf>,
    /// Suites so small that all of them take two minutes: to try them, not to measure.
    #[arg(long)]
    quick: bool,
    /// A rival, as NAME=COMMAND LINE with {port} and {dir}; may be given several times, and replaces the default rivals.
    #[arg(long = "server", value_name = "NAME=COMMAND")]
    servers: Vec<String>,
    /// Leave Tarn out.
    #[arg(long)]
    no_tarn: bool,
    /// One more argument for Tarn; may be given several times.
    #[arg(long, allow_hyphen_values = true, value_name = "ARG")]
    tarn_arg: Vec<String>,
    /// Another binary of Tarn.
    #[arg(long, value_name = "PATH")]
    tarn: Option<PathBuf>,
    /// Different keys [default: 1000000; in a suite 100000].
    #[arg(long)]
    keys: Option<u64>,
    /// Requests per run; a tenth of it for MSET, which writes ten keys each [default: 500000; a suite has its own].
    #[arg(long)]
    requests: Option<u64>,
    /// Rounds per command [default: 3; in the suite mixed 5].
    #[arg(long)]
    rounds: Option<usize>,
    /// Bytes of a value.
    #[arg(long, default_value_t = 100)]
    size: usize,
    /// Connections.
    #[arg(long, default_value_t = 50)]
    clients: u32,
    /// Depths of pipeline.
    #[arg(long, value_delimiter = ',', default_value = "1,16")]
    pipeline: Vec<u32>,
    /// Commands: set, get, incr, mset, hget, lrange_100, xadd, zrange, zrank, or others redis-benchmark knows by -t;
    /// `collections` stands for lpush, lrange_100, rpop, sadd, spop, hset, hget, zadd, zrank, zrange, xadd.
    #[arg(long, value_delimiter = ',', default_value = "set,get,incr,mset")]
    tests: Vec<String>,
    /// Write every key before the first run.
    #[arg(long)]
    preload: bool,
    /// Keys of the suites cold and mixed [default: 4000000].
    #[arg(long)]
    cold_keys: Option<u64>,
    /// Tarn's budget in them [default: 256mb].
    #[arg(long)]
    cold_memory: Option<String>,
    /// Seconds of a run in them [default: 4].
    #[arg(long)]
    seconds: Option<f64>,
    /// Hot requests a second of the suite mixed.
    #[arg(long, default_value_t = 2000.0)]
    rate: f64,
    /// Cold keys a second beside them, at which a core should stay free.
    #[arg(long, default_value_t = 15_000.0)]
    background: f64,
    /// Do not drop the page cache: somebody else measures on this machine.
    #[arg(long)]
    keep_caches: bool,
    /// Elements of every type in the suite types [default: 500000].
    #[arg(long)]
    elements: Option<u64>,
    /// Keys of the suite start [default: 2000000].
    #[arg(long)]
    start_keys: Option<u64>,
    /// Print tables as Markdown.
    #[arg(long)]
    markdown: bool,
    /// Folder for the servers' data, on the disk to measure; the system's temporary folder by default.
    #[arg(long, value_name = "PATH")]
    dir: Option<PathBuf>,
    /// The redis-benchmark to run.
    #[arg(long, default_value = "redis-benchmark")]
    benchmark: PathBuf,
    /// Given by cargo bench.
    #[arg(long, hide = true)]
    bench: bool,
}

impl Options {
    /// One number for a measurement, another for a trial.
    fn pick<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    fn cold_keys(&self) -> u64 {
        self.cold_keys.unwrap_or(self.pick(4_000_000, 800_000))
    }

    fn cold_memory(&self) -> String {
        self.cold_memory.clone().unwrap_or(self.pick("256mb", "48mb").to_owned())
    }

    fn seconds(&self) -> Duration {
        Duration::from_secs_f64(self.seconds.unwrap_or(self.pick(4.0, 0.5)))
    }
}

/// What is measured together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Suite {
    Hot,
    Collections,
    Cold,
    Mixed,
    Types,
    Start,
}

impl Suite {
    fn run(self, options: &Options) -> Result<Vec<Section>, String> {
        match self {
            Suite::Hot => rounds::hot(options),
            Suite::Collections => rounds::collections(options),
            Suite::Cold => cold::run(options),
            Suite::Mixed => mixed::run(options),
            Suite::Types => types::run(options),
            Suite::Start => start::run(options),
        }
    }
}

fn run(options: &Options) -> Result<(), String> {
    if let Some(path) = &options.report {
        return report::write(options, path);
    }
    if options.suites.is_empty() {
        return rounds::compare(options);
    }
    for suite in &options.suites {
        for section in suite.run(options)? {
            println!("{}", section.render(options.markdown));
        }
    }
    Ok(())
}

fn main() -> std::process::ExitCode {
    let options = Options::parse();
    if !options.bench {
        eprintln!("compare: a benchmark, run by: cargo bench --bench compare");
        return std::process::ExitCode::SUCCESS;
    }
    match run(&options) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("compare: {text}");
            std::process::ExitCode::FAILURE
        }
    }
}
