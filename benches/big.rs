//! Collections far larger than memory: `cargo bench --bench big -- [options]`, `--help` for the options.
//!
//! Fills a hash, a set, a sorted set and a list, one after the other, and asks each what must not depend on its size;
//! then runs queues and compares their speed at the end with that at the start. Ten million elements take some
//! minutes and several GB of disk.
//!
//! | column | meaning |
//! |---|---|
//! | p50, p99, max | µs from a request to its reply, one at a time, the client's share included |
//! | peak | most resident memory of the server while the command ran, MB |

#![allow(clippy::print_stdout, reason = "the table is this program's output")]
#![allow(clippy::expect_used, reason = "a benchmark that cannot go on ends with a message")]

#[path = "../tests/common/mod.rs"]
mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use common::resp::{Client, Value, encode};
use common::server::Server;

/// Elements in one command while a collection is filled.
const PER_COMMAND: u64 = 20;
/// Commands in one write.
const BATCH: u64 = 200;

/// Measures big collections and long queues.
#[derive(Parser)]
struct Options {
    /// Elements of each collection.
    #[arg(long, default_value_t = 10_000_000)]
    elements: u64,
    /// Operations of each queue.
    #[arg(long, default_value_t = 10_000_000)]
    queue: u64,
    /// Tarn's budget.
    #[arg(long, default_value = "1gb")]
    maxmemory: String,
    /// Calls of each command.
    #[arg(long, default_value_t = 2000)]
    calls: u64,
    /// hash, set, zset, list, queues.
    #[arg(long, value_delimiter = ',', default_value = "hash,set,zset,list,queues")]
    parts: Vec<String>,
    /// One more argument for Tarn; may be given several times.
    #[arg(long, allow_hyphen_values = true, value_name = "ARG")]
    tarn_arg: Vec<String>,
    /// Given by cargo bench.
    #[arg(long, hide = true)]
    bench: bool,
}

/// Numbers that look random and are the same in every run.
struct Mixer(u64);

impl Mixer {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

fn resident_mb(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) / 1024
}

/// The most memory a process holds while something runs.
fn peak_during<R>(pid: u32, run: impl FnOnce() -> R) -> (R, u64) {
    let (stop, peak) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let watcher = {
        let (stop, peak) = (stop.clone(), peak.clone());
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                peak.fetch_max(resident_mb(pid), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(20));
            }
        })
    };
    let result = run();
    stop.store(true, Ordering::Relaxed);
    let _ = watcher.join();
    (result, peak.load(Ordering::Relaxed))
}

/// A server under measurement.
struct Bench {
    options: Options,
    server: Server,
    client: Client,
    mixer: Mixer,
}

impl Bench {
    fn call(&mut self, command: &str) -> Value {
        let reply = self.client.call(command);
        assert!(!reply.is_error(), "{command}: {}", reply.text());
        reply
    }

    /// Sends commands in batches; their replies are read and must not be errors.
    fn pipeline(&mut self, count: u64, mut command: impl FnMut(u64) -> Vec<String>) {
        let mut next = 0;
        while next < count {
            let end = count.min(next + BATCH);
            let bytes: Vec<u8> = (next..end).flat_map(|n| encode(&command(n))).collect();
            self.client.send_raw(&bytes).expect("the server takes commands");
            for _ in next..end {
                let reply = self.client.read().expect("the server answers");
                assert!(!reply.is_error(), "{}", reply.text());
            }
            next = end;
        }
    }

    fn pid(&self) -> u32 {
        self.server.pid().unwrap_or(0)
    }

    /// Calls a command many times, `{}` in it filled with a random number below the number of elements.
    fn time(&mut self, command: &str) {
        let mut times = Vec::new();
        for _ in 0..self.options.calls {
            let n = self.mixer.below(self.options.elements);
            let command = command.replace("{}", &n.to_string());
            let start = Instant::now();
            self.call(&command);
            times.push(start.elapsed());
        }
        report(command, times);
    }

    /// Calls a command once; time and memory.
    fn once(&mut self, command: &str) {
        let pid = self.pid();
        self.client.set_timeout(Duration::from_secs(600));
        let (took, peak) = peak_during(pid, || {
            let start = Instant::now();
            self.call(command);
            start.elapsed()
        });
        println!("| `{command}` | | | {:.0} | {peak} |", took.as_secs_f64() * 1e6);
        self.client.set_timeout(Duration::from_secs(30));
    }

    /// Follows a cursor for a number of calls.
    fn scan(&mut self, command: &str) {
        let (mut cursor, mut times) = ("0".to_owned(), Vec::new());
        for _ in 0..self.options.calls {
            let start = Instant::now();
            let reply = self.call(&command.replace("{}", &cursor));
            times.push(start.elapsed());
            let Value::Array(parts) = reply else { panic!("{command}: no array") };
            cursor = parts.first().map(Value::text).unwrap_or_default();
            if cursor == "0" {
                break;
            }
        }
        report(command, times);
    }

    fn fill(&mut self, what: &str, command: impl Fn(u64) -> Vec<String>) {
        let (count, pid) = (self.options.elements / PER_COMMAND, self.pid());
        let start = Instant::now();
        let ((), peak) = peak_during(pid, || self.pipeline(count, command));
        let elements = count * PER_COMMAND;
        println!("| fill {what}: {elements} in {:.0} s | | | | {peak} |", start.elapsed().as_secs_f64());
    }

    fn hash(&mut self) {
        self.fill("h", |n| {
            let fields =
                (n * PER_COMMAND..(n + 1) * PER_COMMAND).flat_map(|i| [format!("field:{i}"), format!("value:{i}")]);
            ["HSET", "h"].map(str::to_owned).into_iter().chain(fields).collect()
        });
        for command in ["HLEN h", "HGET h field:{}", "HSET h field:{} v", "HRANDFIELD h"] {
            self.time(command);
        }
        self.scan("HSCAN h {} COUNT 1000");
        self.once("COPY h h2");
        self.once("RENAME h2 h3");
        self.once("DEL h3");
        self.once("DEL h");
    }

    fn set(&mut self) {
        self.fill("s", |n| {
            let members = (n * PER_COMMAND..(n + 1) * PER_COMMAND).map(|i| format!("member:{i}"));
            ["SADD", "s"].map(str::to_owned).into_iter().chain(members).collect()
        });
        for command in ["SCARD s", "SISMEMBER s member:{}", "SRANDMEMBER s", "SPOP s", "SADD s member:{}"] {
            self.time(command);
        }
        self.scan("SSCAN s {} COUNT 1000");
        self.once("SUNIONSTORE s2 s");
        self.once("SINTERCARD 2 s s2");
        self.once("DEL s2");
        self.once("DEL s");
    }

    fn zset(&mut self) {
        self.fill("z", |n| {
            let members = (n * PER_COMMAND..(n + 1) * PER_COMMAND)
                .flat_map(|i| [(i * 2_654_435_761 % 1_000_000_007).to_string(), format!("member:{i}")]);
            ["ZADD", "z"].map(str::to_owned).into_iter().chain(members).collect()
        });
        for command in [
            "ZCARD z",
            "ZSCORE z member:{}",
            "ZRANK z member:{}",
            "ZREVRANK z member:{}",
            "ZRANGE z {} {}",
            "ZCOUNT z {} +inf",
            "ZADD z {} member:{}",
            "ZPOPMIN z",
        ] {
            self.time(command);
        }
        self.scan("ZSCAN z {} COUNT 1000");
        self.once("ZUNIONSTORE z2 1 z");
        self.once("ZREMRANGEBYRANK z2 0 99");
        self.once("DEL z2");
        self.once("DEL z");
    }

    fn list(&mut self) {
        self.fill("l", |n| {
            let elements = (n * PER_COMMAND..(n + 1) * PER_COMMAND).map(|i| format!("element:{i}"));
            ["RPUSH", "l"].map(str::to_owned).into_iter().chain(elements).collect()
        });
        for command in ["LLEN l", "LINDEX l 10", "LINDEX l -10", "LINDEX l {}", "LPOP l", "RPUSH l e", "LRANGE l 0 99"]
        {
            self.time(command);
        }
        self.once("LTRIM l 1000000 -1000000");
        self.once("DEL l");
    }

    /// CPU time of the server so far.
    fn cpu_seconds(&mut self) -> f64 {
        let info = self.call("INFO cpu").text();
        let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
        field("used_cpu_user:").unwrap_or(0.0) + field("used_cpu_sys:").unwrap_or(0.0)
    }

    /// A queue of constant length; its first and last operations must cost the same.
    fn queue(&mut self, name: &str, pair: impl Fn(u64) -> [String; 2]) {
        const ROUNDS: u64 = 20;
        /// Rounds whose median is a rate. The very first one warms up.
        const END: usize = 5;
        let part = (self.options.queue / ROUNDS).max(1);
        let words = |command: &str| command.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let (mut rates, mut costs) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            let (start, cpu) = (Instant::now(), self.cpu_seconds());
            self.pipeline(part, |n| words(&pair(round * part / 2 + n / 2)[(n % 2) as usize]));
            rates.push(part as f64 / start.elapsed().as_secs_f64());
            costs.push((self.cpu_seconds() - cpu) * 1e6 / part as f64);
        }
        let ends = |of: &[f64]| (median(&of[1..=END]), median(&of[of.len() - END..]));
        let ((first, last), (cheap, dear)) = (ends(&rates), ends(&costs));
        println!(
            "| {name}: {first:.0} operations a second at the start, {last:.0} at the end ({:.2}x), CPU of each {cheap:.2} and {dear:.2} µs | | | | {} |",
            last / first,
            resident_mb(self.pid())
        );
    }

    fn queues(&mut self) {
        self.queue("RPUSH + LPOP", |n| [format!("RPUSH queue job:{n}"), "LPOP queue".to_owned()]);
        self.queue("XADD + XDEL", |n| [format!("XADD jobs {}-1 job {n}", n + 1), format!("XDEL jobs {}-1", n + 1)]);
        self.queue("ZADD + ZPOPMIN", |n| [format!("ZADD delayed {n} job:{n}"), "ZPOPMIN delayed".to_owned()]);
    }
}

fn median(of: &[f64]) -> f64 {
    let mut sorted = of.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn report(command: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let us = |part: f64| times.get(((times.len() - 1) as f64 * part) as usize).map_or(0.0, |t| t.as_secs_f64() * 1e6);
    println!("| `{command}` | {:.0} | {:.0} | {:.0} | |", us(0.5), us(0.99), us(1.0));
}

fn main() {
    let options = Options::parse();
    if !options.bench {
        eprintln!("big: a benchmark, run by: cargo bench --bench big");
        return;
    }
    let mut args = vec!["--maxmemory", options.maxmemory.as_str()];
    args.extend(options.tarn_arg.iter().map(String::as_str));
    let server = Server::tarn(&args);
    let client = server.client();
    println!("| {} elements, maxmemory {} | p50 | p99 | max | peak |", options.elements, options.maxmemory);
    println!("|---|---|---|---|---|");
    let mut bench = Bench { options, server, client, mixer: Mixer(1) };
    for part in bench.options.parts.clone() {
        match part.as_str() {
            "hash" => bench.hash(),
            "set" => bench.set(),
            "zset" => bench.zset(),
            "list" => bench.list(),
            "queues" => bench.queues(),
            other => panic!("there is no part {other}"),
        }
    }
}
