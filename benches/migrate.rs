//! Importing beside loading: `cargo bench --bench migrate -- [options]`, `--help` for the options.
//!
//! A real server, the oldest that this machine has, is filled with one kind of keys and writes both its files: dump.rdb, and an AOF of all the
//! commands that it was given. Each of the real servers then starts on a copy of these, and `tarn import` makes a data directory of
//! them, one after the other, round by round.
//!
//! | column | meaning |
//! |---|---|
//! | s | seconds until DBSIZE is answered with a number, or until the import has ended, all of it being on disk; median of the rounds |
//! | CPU s | user and system time of all threads until then, median |
//! | ratio | the real server's time to Tarn's in the same round, median; above 1 Tarn is faster |
//!
//! The CPU seconds are what counts on a shared machine. An import uses several cores, and what it makes lies on disk; a server that loads uses
//! one, and fills memory.

#![allow(clippy::print_stdout, reason = "the table is this program's output")]
#![allow(clippy::expect_used, reason = "a benchmark that cannot go on ends with a message")]

#[path = "../tests/common/mod.rs"]
mod common;

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::Parser;
use common::resp::{Value, encode};
use common::server::{Kind, Server};

/// Real servers, the oldest first: each reads what those before it have written.
const REAL: [Kind; 3] = [Kind::Redis70, Kind::Redis82, Kind::Valkey];
/// Commands in one write.
const BATCH: u64 = 500;
/// Pause between two looks whether it is over.
const PAUSE: Duration = Duration::from_millis(5);
/// What takes longer is broken.
const LIMIT: Duration = Duration::from_secs(600);
/// Elements of a list, set or sorted set.
const ELEMENTS: u64 = 10;
/// Fields of a hash.
const FIELDS: u64 = 5;

/// Measures `tarn import` beside the real servers' loading.
#[derive(Parser)]
struct Options {
    /// Strings of 100 bytes.
    #[arg(long, default_value_t = 2_000_000)]
    strings: u64,
    /// Hashes of 5 fields; lists, sets, sorted sets of 10 elements.
    #[arg(long, default_value_t = 500_000)]
    collections: u64,
    /// Rounds.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// strings, hashes, lists, sets, zsets.
    #[arg(long, value_delimiter = ',', default_value = "strings,hashes,lists,sets,zsets")]
    parts: Vec<String>,
    /// rdb, aof.
    #[arg(long, value_delimiter = ',', default_value = "rdb,aof")]
    forms: Vec<String>,
    /// One more argument for `tarn import`; may be given several times.
    #[arg(long, allow_hyphen_values = true, value_name = "ARG")]
    tarn_arg: Vec<String>,
    /// Given by cargo bench.
    #[arg(long, hide = true)]
    bench: bool,
}

fn mix(n: u64) -> u64 {
    let n = (n ^ (n >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (n ^ (n >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 7
}

/// The command that makes the key of this number.
fn command(part: &str, n: u64) -> Vec<String> {
    let key = format!("key:{:012}", mix(n));
    let head = |name: &str| vec![name.to_owned(), key.clone()];
    let elements = |each: &dyn Fn(u64) -> Vec<String>| (0..ELEMENTS).flat_map(each).collect();
    let rest: Vec<String> = match part {
        "strings" => vec![(0..7).map(|at| format!("{:016x}", mix(7 * n + at))).collect::<String>()[..100].to_owned()],
        "hashes" => (0..FIELDS).flat_map(|at| [format!("field{at}"), format!("value-{:x}", mix(n + at))]).collect(),
        "zsets" => elements(&|at| vec![(mix(n + at) % 100_000).to_string(), format!("member-{at}-{n}")]),
        _ => elements(&|at| vec![format!("element-{at}-{n}")]),
    };
    let name = match part {
        "strings" => "SET",
        "hashes" => "HSET",
        "lists" => "RPUSH",
        "sets" => "SADD",
        "zsets" => "ZADD",
        _ => panic!("--parts: there is no {part}"),
    };
    [head(name), rest].concat()
}

/// A server that has been filled and has ended, in whose directory its files lie.
fn filled(part: &str, keys: u64) -> Server {
    let args = ["--appendonly", "yes", "--appendfsync", "no", "--auto-aof-rewrite-percentage", "0"];
    let mut server = REAL.iter().find_map(|kind| Server::start(*kind, &args)).expect("no real server to compare with");
    let mut client = server.client();
    client.set_timeout(LIMIT);
    for from in (0..keys).step_by(BATCH as usize) {
        let some = from..keys.min(from + BATCH);
        let bytes: Vec<u8> = some.clone().flat_map(|n| encode(&command(part, n))).collect();
        client.send_raw(&bytes).expect("the server takes commands");
        for _ in some {
            let reply = client.read().expect("the server answers");
            assert!(!reply.is_error(), "{}", reply.text());
        }
    }
    assert_eq!(client.call("SAVE").text(), "OK");
    server.stop();
    server
}

/// What one of them took.
#[derive(Clone, Copy)]
struct Took {
    seconds: f64,
    cpu_s: f64,
}

/// State and CPU seconds of a process; one that has ended has them until it is waited for (`proc_pid_stat(5)`).
fn state_and_cpu(pid: u32) -> (String, f64) {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The second field is the name in brackets, which may hold blanks.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks: f64 = fields.iter().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
    // Linux tells of hundredths, whatever its clock does.
    (fields.first().map(|state| (*state).to_owned()).unwrap_or_default(), ticks / 100.0)
}

/// Copies a file, or a folder of files.
fn copy(from: &Path, to: &Path) {
    if from.is_dir() {
        fs::create_dir_all(to).expect("a folder");
        for entry in fs::read_dir(from).expect("a folder").flatten() {
            copy(&entry.path(), &to.join(entry.file_name()));
        }
    } else {
        fs::copy(from, to).expect("room for a copy");
    }
}

fn load(kind: Kind, file: &Path, keys: u64) -> Option<Took> {
    let is_aof = file.is_dir();
    let mut server = Server::prepare(kind, &["--appendonly", if is_aof { "yes" } else { "no" }])?;
    let data = server.dir().join("data");
    fs::create_dir_all(&data).expect("a folder");
    copy(file, &data.join(file.file_name().expect("a file has a name")));
    let began = Instant::now();
    server.spawn();
    let pid = server.pid().expect("it runs");
    while common::resp::Client::connect(server.port()).ok().and_then(|mut client| client.try_call(&["DBSIZE"]).ok())
        != Some(Value::Int(keys as i64))
    {
        assert!(server.exited().is_none() && began.elapsed() < LIMIT, "it does not load\n{}", server.output());
        std::thread::sleep(PAUSE);
    }
    Some(Took { seconds: began.elapsed().as_secs_f64(), cpu_s: state_and_cpu(pid).1 })
}

fn import(options: &Options, file: &Path, keys: u64) -> Took {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let mut command = Command::new(Kind::Tarn.binary().expect("cargo builds tarn"));
    command.arg("import").arg(file).arg("--dir").arg(folder.path().join("data")).args(&options.tarn_arg);
    let began = Instant::now();
    let mut child: Child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("tarn starts");
    let cpu_s = loop {
        let (state, cpu_s) = state_and_cpu(child.id());
        if state == "Z" {
            break cpu_s;
        }
        assert!(began.elapsed() < LIMIT, "it does not import");
        std::thread::sleep(PAUSE);
    };
    let seconds = began.elapsed().as_secs_f64();
    let mut report = String::new();
    let out = child.stdout.as_mut().expect("its output is read");
    std::io::Read::read_to_string(out, &mut report).expect("it reports");
    let status = child.wait().expect("it has ended");
    assert!(status.success() && report.contains(&format!(" holds {keys} keys")), "{status} {report}");
    Took { seconds, cpu_s }
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Measures one kind of keys in one form.
fn measure(options: &Options, part: &str, file: &Path, keys: u64) {
    let mut ours = Vec::new();
    let mut theirs: Vec<(Kind, Vec<Took>)> = REAL.iter().map(|kind| (*kind, Vec::new())).collect();
    for _ in 0..options.rounds {
        ours.push(import(options, file, keys));
        for (kind, all) in &mut theirs {
            all.extend(load(*kind, file, keys));
        }
    }
    let form = if file.is_dir() { "aof" } else { "rdb" };
    let row = |name: &str, all: &[Took], versus: &[Took]| {
        let of = |what: fn(&Took) -> f64| median(all.iter().map(what).collect());
        let ratio = |what: fn(&Took) -> f64| {
            median(all.iter().zip(versus).map(|(one, other)| what(one) / what(other)).collect())
        };
        let (seconds, cpu_s) = (of(|took| took.seconds), of(|took| took.cpu_s));
        let (wall, cpu) = (ratio(|took| took.seconds), ratio(|took| took.cpu_s));
        println!("{part:8} {form:4} {name:12} {seconds:8.2} {cpu_s:8.2} {wall:8.2} {cpu:8.2}");
    };
    row("tarn", &ours, &ours);
    for (kind, all) in theirs.iter().filter(|(_, all)| !all.is_empty()) {
        row(kind.title(), all, &ours);
    }
}

fn main() {
    let options = Options::parse();
    if !options.bench {
        eprintln!("migrate: a benchmark, run by: cargo bench --bench migrate");
        return;
    }
    println!("{:8} {:4} {:12} {:>8} {:>8} {:>8} {:>8}", "keys", "form", "server", "s", "CPU s", "ratio", "CPU ratio");
    for part in &options.parts {
        let keys = if part == "strings" { options.strings } else { options.collections };
        let source = filled(part, keys);
        let data = source.dir().join("data");
        for form in &options.forms {
            let file = data.join(if form == "rdb" { "dump.rdb" } else { "appendonlydir" });
            measure(&options, part, &file, keys);
        }
    }
}
