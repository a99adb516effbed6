//! Compares Tarn with other servers: `cargo bench --bench compare -- [options]`, `--help` for the options.
//!
//! Starts Tarn and its rivals side by side, each on a port and in a directory of its own, and runs redis-benchmark on one after
//! the other, command by command, in interleaved rounds: what else the machine does then falls on all of them alike.
//! Without `--server` the rivals are `redis-server` and Valkey 9.1, where this machine has them, with an append-only file
//! synced every second.
//!
//! | column | meaning |
//! |---|---|
//! | kreq/s | throughput, median of the rounds |
//! | ratio | the first server's throughput to this one's in the same round, median of the rounds |
//! | CPU µs | user and system time of all threads of the server, per request, until half a second after the last: background work counts |
//! | p50, p99, p99.9 | latency in ms as redis-benchmark sees it, median of the rounds |
//! | RSS | resident memory in MB after the run |
//!
//! CPU and ratios are what counts: machines are shared, and in a pipeline redis-benchmark itself is often the limit.

#![allow(clippy::print_stdout, reason = "the table is this program's output")]
#![allow(clippy::expect_used, reason = "a benchmark that cannot go on ends with a message")]

#[path = "../tests/common/mod.rs"]
mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Parser;
use common::resp::{Client, Value, encode};
use common::script::split;
use common::server::{Kind, free_port};

/// How long after a run CPU time still counts for it.
const SETTLE: Duration = Duration::from_millis(500);
/// How long a server may take to answer its first PING.
const START_LIMIT: Duration = Duration::from_secs(60);
/// Commands in one write while keys are loaded.
const PRELOAD_BATCH: u64 = 500;

/// Compares Tarn with other servers by redis-benchmark.
#[derive(Parser)]
struct Options {
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
    /// Different keys.
    #[arg(long, default_value_t = 1_000_000)]
    keys: u64,
    /// Requests per run; a tenth of it for MSET, which writes ten keys each.
    #[arg(long, default_value_t = 500_000)]
    requests: u64,
    /// Rounds per command.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
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
    /// Print the table as Markdown.
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

/// What `collections` stands for: writers before those that read what they wrote.
const COLLECTIONS: [&str; 11] =
    ["lpush", "lrange_100", "rpop", "sadd", "spop", "hset", "hget", "zadd", "zrank", "zrange", "xadd"];

/// How redis-benchmark is told to run a test: a name it knows, or a command on the keys that its own tests use.
fn test_arguments(test: &str, size: usize) -> Vec<String> {
    let value = "x".repeat(size);
    let command = match test {
        "hget" => "HGET myhash element:__rand_int__",
        "lrange_100" => "LRANGE mylist 0 99",
        "zrange" => "ZRANGE myzset 0 9",
        "zrank" => "ZRANK myzset element:__rand_int__",
        "xadd" => &format!("XADD mystream * myfield {value}"),
        known => return vec!["-t".to_owned(), known.to_owned()],
    };
    command.split(' ').map(str::to_owned).collect()
}

/// A running server.
struct Server {
    name: String,
    port: u16,
    child: Child,
    dir: tempfile::TempDir,
}

impl Server {
    /// Starts a command line whose `{port}` and `{dir}` are filled in, and waits until it answers.
    fn start(name: &str, command: &[String], parent: Option<&Path>) -> Result<Server, String> {
        let dir = match parent {
            Some(parent) => tempfile::tempdir_in(parent),
            None => tempfile::tempdir(),
        }
        .map_err(|e| format!("a directory for {name}: {e}"))?;
        let port = free_port();
        let fill =
            |arg: &String| arg.replace("{port}", &port.to_string()).replace("{dir}", &dir.path().display().to_string());
        let words: Vec<String> = command.iter().map(fill).collect();
        let (program, args) = words.split_first().ok_or_else(|| format!("{name}: no command"))?;
        let log = fs::File::create(dir.path().join("output.log")).map_err(|e| format!("{name}: {e}"))?;
        let errors = log.try_clone().map_err(|e| format!("{name}: {e}"))?;
        let child = Command::new(program)
            .args(args)
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .spawn()
            .map_err(|e| format!("{program}: {e}"))?;
        let mut server = Server { name: name.to_owned(), port, child, dir };
        server.wait_ready()?;
        Ok(server)
    }

    fn wait_ready(&mut self) -> Result<(), String> {
        let start = Instant::now();
        loop {
            let pong = Client::connect(self.port).ok().and_then(|mut client| client.try_call(&["DBSIZE"]).ok());
            if matches!(pong, Some(Value::Int(_))) {
                return Ok(());
            }
            let ended = self.child.try_wait().ok().flatten();
            if ended.is_some() || start.elapsed() > START_LIMIT {
                let output = fs::read_to_string(self.dir.path().join("output.log")).unwrap_or_default();
                return Err(format!("{} does not answer:\n{output}", self.name));
            }
            sleep(Duration::from_millis(20));
        }
    }

    /// User and system time of all its threads so far, in microseconds (`proc_pid_stat(5)`).
    fn cpu_us(&self, ticks_per_second: f64) -> f64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        // The second field is the name in brackets, which may hold blanks.
        let after_name = stat.rsplit(')').next().unwrap_or_default();
        let ticks: f64 =
            after_name.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
        ticks / ticks_per_second * 1e6
    }

    /// Resident memory in MB.
    fn rss_mb(&self) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
        line.split_whitespace().next().and_then(|kb| kb.parse::<f64>().ok()).unwrap_or(0.0) / 1024.0
    }

    /// How often the server has flushed, where its INFO says so.
    fn flushes(&self) -> Option<u64> {
        let mut client = Client::connect(self.port).ok()?;
        let text: String = ["persistence", "tarn"]
            .iter()
            .filter_map(|section| Some(client.try_call(&["INFO", section]).ok()?.text()))
            .collect();
        text.lines().find_map(|line| line.trim().strip_prefix("tarn_flushes:")?.parse().ok())
    }

    /// Writes every key and counter that redis-benchmark may pick.
    fn preload(&self, keys: u64, value: &[u8]) -> Result<(), String> {
        let failed = |what: String| format!("{}: while loading keys: {what}", self.name);
        let mut client = Client::connect(self.port).map_err(|e| failed(e.to_string()))?;
        let mut next = 0;
        while next < keys {
            let end = keys.min(next + PRELOAD_BATCH);
            let mut bytes = Vec::new();
            for i in next..end {
                bytes.extend(encode(&[b"SET", format!("key:{i:012}").as_bytes(), value]));
                bytes.extend(encode(&["SET", &format!("counter:{i:012}"), "0"]));
            }
            client.send_raw(&bytes).map_err(|e| failed(e.to_string()))?;
            for _ in 0..2 * (end - next) {
                let reply = client.read().map_err(|gone| failed(format!("{gone:?}")))?;
                if reply.is_error() {
                    return Err(failed(reply.text()));
                }
            }
            next = end;
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One run of redis-benchmark.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Sample {
    per_second: f64,
    p50_ms: f64,
    p99_ms: f64,
    p999_ms: f64,
    cpu_us: f64,
    rss_mb: f64,
    flushes: Option<u64>,
}

/// Reads what redis-benchmark prints: throughput, median, p99 from its summary, p99.9 from its percentiles.
fn read_report(text: &str) -> Option<Sample> {
    let per_second = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("throughput summary: ")?.split(' ').next()?.parse::<f64>().ok())?;
    let mut lines = text.lines().skip_while(|line| !line.contains("latency summary"));
    let numbers: Vec<f64> = lines.nth(2)?.split_whitespace().filter_map(|n| n.parse().ok()).collect();
    let p999_ms = text.lines().find_map(|line| {
        let (percent, rest) = line.trim().split_once("% <= ")?;
        let ms = rest.split(' ').next()?.parse::<f64>().ok()?;
        (percent.parse::<f64>().ok()? >= 99.9).then_some(ms)
    })?;
    let (p50_ms, p99_ms) = (*numbers.get(2)?, *numbers.get(4)?);
    Some(Sample { per_second, p50_ms, p99_ms, p999_ms, cpu_us: 0.0, rss_mb: 0.0, flushes: None })
}

/// Runs one command on one server.
fn measure(options: &Options, server: &Server, test: &str, depth: u32, ticks: f64) -> Result<Sample, String> {
    let requests = if test == "mset" { options.requests / 10 } else { options.requests }.max(1000);
    let (cpu_before, flushes_before) = (server.cpu_us(ticks), server.flushes());
    let output = Command::new(&options.benchmark)
        .args(["-h", "127.0.0.1", "-p", &server.port.to_string()])
        .args(["-c", &options.clients.to_string(), "-P", &depth.to_string(), "-n", &requests.to_string()])
        .args(["-r", &options.keys.to_string(), "-d", &options.size.to_string(), "--precision", "3"])
        .args(test_arguments(test, options.size))
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("{}: {e} (Debian: apt-get install redis-tools)", options.benchmark.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut sample = read_report(&text).ok_or_else(|| {
        format!("redis-benchmark -t {test} on {}: {text}{}", server.name, String::from_utf8_lossy(&output.stderr))
    })?;
    sleep(SETTLE);
    sample.cpu_us = (server.cpu_us(ticks) - cpu_before) / requests as f64;
    sample.rss_mb = server.rss_mb();
    sample.flushes = flushes_before.zip(server.flushes()).map(|(before, after)| after - before);
    Ok(sample)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}

/// The rows of one command at one depth: `samples[server][round]`.
fn rows(servers: &[Server], test: &str, depth: u32, samples: &[Vec<Sample>]) -> Vec<Vec<String>> {
    let of = |server: usize, get: fn(&Sample) -> f64| median(samples[server].iter().map(get).collect());
    let mut out = Vec::new();
    for (i, server) in servers.iter().enumerate() {
        let ratios = samples[0].iter().zip(&samples[i]).map(|(first, this)| first.per_second / this.per_second);
        let flushes: Option<u64> = samples[i].iter().map(|s| s.flushes).sum();
        out.push(vec![
            format!("{} -P {depth}", test.to_uppercase()),
            server.name.clone(),
            format!("{:.1}", of(i, |s| s.per_second) / 1000.0),
            if i == 0 { String::new() } else { format!("{:.2}", median(ratios.collect())) },
            format!("{:.2}", of(i, |s| s.cpu_us)),
            format!("{:.3}", of(i, |s| s.p50_ms)),
            format!("{:.3}", of(i, |s| s.p99_ms)),
            format!("{:.3}", of(i, |s| s.p999_ms)),
            format!("{:.0}", of(i, |s| s.rss_mb)),
            flushes.map(|n| n.to_string()).unwrap_or_default(),
        ]);
    }
    out
}

/// The table, in columns or as Markdown.
fn render(rows: &[Vec<String>], first: &str, markdown: bool) -> String {
    let ratio = format!("{first} ÷ it");
    let head = ["command", "server", "kreq/s", &ratio, "CPU µs", "p50 ms", "p99 ms", "p99.9 ms", "RSS MB", "flushes"];
    let shown = if rows.iter().any(|row| row.last().is_some_and(|cell| !cell.is_empty())) { 10 } else { 9 };
    let mut all = vec![head.iter().map(|h| (*h).to_owned()).collect::<Vec<_>>()];
    all.extend(rows.iter().cloned());
    let width = |column: usize| all.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..shown).map(width).collect();
    let mut out = String::new();
    for (n, row) in all.iter().enumerate() {
        let cells: Vec<String> = (0..shown)
            .map(|c| {
                let pad = " ".repeat(widths[c] - row[c].chars().count());
                if c < 2 { format!("{}{pad}", row[c]) } else { format!("{pad}{}", row[c]) }
            })
            .collect();
        if !markdown {
            out.push_str(&format!("{}\n", cells.join("  ")));
            continue;
        }
        out.push_str(&format!("| {} |\n", cells.join(" | ")));
        if n == 0 {
            let rule: Vec<&str> = (0..shown).map(|c| if c < 2 { "---" } else { "---:" }).collect();
            out.push_str(&format!("|{}|\n", rule.join("|")));
        }
    }
    out
}

/// Names and command lines of all servers, the first being the one the others are compared with.
fn command_lines(options: &Options) -> Result<Vec<(String, Vec<String>)>, String> {
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let mut out = Vec::new();
    if !options.no_tarn {
        let binary = options.tarn.clone().unwrap_or_else(|| env!("CARGO_BIN_EXE_tarn").into());
        let mut command = vec![binary.display().to_string()];
        command.extend(words("--port {port} --bind 127.0.0.1 --dir {dir} --appendfsync everysec"));
        command.extend(options.tarn_arg.iter().cloned());
        out.push(("tarn".to_owned(), command));
    }
    for server in &options.servers {
        let (name, line) = server.split_once('=').ok_or_else(|| format!("--server {server}: NAME=COMMAND"))?;
        let line = split(line).ok_or_else(|| format!("--server {server}: unbalanced quotes"))?;
        out.push((name.to_owned(), line.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect()));
    }
    if options.servers.is_empty() {
        let debian = Some(PathBuf::from("redis-server")).filter(|_| version("redis-server").is_some());
        for binary in [debian, Kind::Valkey.binary()].into_iter().flatten() {
            let Some(name) = version(&binary.display().to_string()) else { continue };
            let mut command = vec![binary.display().to_string()];
            command.extend(words("--port {port} --bind 127.0.0.1 --dir {dir} --appendonly yes --appendfsync everysec"));
            command.extend(["--save".to_owned(), String::new()]);
            out.push((name, command));
        }
    }
    if out.is_empty() {
        return Err("no server to measure".into());
    }
    Ok(out)
}

/// `redis 7.0.15`, from what `--version` prints.
fn version(binary: &str) -> Option<String> {
    let output = Command::new(binary).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let name = text.split(' ').next()?.to_lowercase();
    let number = text.split(' ').find_map(|word| word.strip_prefix("v="))?;
    Some(format!("{name} {number}"))
}

fn run(options: &Options) -> Result<(), String> {
    let ticks = Command::new("getconf").arg("CLK_TCK").output().map_err(|e| format!("getconf: {e}"))?;
    let ticks: f64 = String::from_utf8_lossy(&ticks.stdout).trim().parse().map_err(|e| format!("CLK_TCK: {e}"))?;
    let mut servers = Vec::new();
    for (name, command) in command_lines(options)? {
        eprintln!("{name}: {}", command.join(" "));
        servers.push(Server::start(&name, &command, options.dir.as_deref())?);
    }
    if options.preload {
        let value = vec![b'x'; options.size];
        for server in &servers {
            let start = Instant::now();
            server.preload(options.keys, &value)?;
            eprintln!("{}: {} keys and as many counters loaded in {:.1?}", server.name, options.keys, start.elapsed());
        }
    }
    let mut table = Vec::new();
    let expand = |test: &String| match test.as_str() {
        "collections" => COLLECTIONS.map(str::to_owned).to_vec(),
        one => vec![one.to_owned()],
    };
    let tests: Vec<String> = options.tests.iter().flat_map(expand).collect();
    for &depth in &options.pipeline {
        for test in &tests {
            let mut samples = vec![Vec::new(); servers.len()];
            for round in 0..options.rounds {
                for i in 0..servers.len() {
                    // Another one begins each round: what follows a pause or a burst is not always the same.
                    let i = (i + round) % servers.len();
                    samples[i].push(measure(options, &servers[i], test, depth, ticks)?);
                }
            }
            let new = rows(&servers, test, depth, &samples);
            new.iter().for_each(|row| eprintln!("{}", row.join("  ")));
            table.extend(new);
        }
    }
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    println!(
        "{} keys, {}-byte values, {} clients, {} requests a run, medians of {} rounds, {cores} cores{}\n",
        options.keys,
        options.size,
        options.clients,
        options.requests,
        options.rounds,
        if options.preload { ", every key written before" } else { "" }
    );
    print!("{}", render(&table, &servers[0].name, options.markdown));
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
