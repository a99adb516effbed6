//! Space after deletes: `cargo bench --bench space -- [options]`, `--help` for the options.
//!
//! Each part loads a server with what will remain alone, for comparison; then another with all of it, removes nine of ten, by
//! chance, and watches `store/` and `log/` without a further command. The limit is 1.3 times the former and 64 MB. The part
//! `flushall` removes all, while somebody asks on; beside it stands an idle server of another kind, whose PING tells what the
//! machine allows.
//!
//! | column | meaning |
//! |---|---|
//! | alone | MB on disk of what remains, loaded fresh and saved |
//! | loaded, removed | MB on disk when all is loaded, and when the last command that removes has been answered |
//! | s | seconds from then until the limit is kept |
//! | at last | MB when nothing has changed for ten seconds, or the time is up |

#![allow(clippy::print_stdout, reason = "the table is this program's output")]
#![allow(clippy::expect_used, reason = "a benchmark that cannot go on ends with a message")]

#[path = "../tests/common/mod.rs"]
mod common;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Parser;
use common::resp::{Client, encode};
use common::server::{Kind, Server};

/// Commands in one write.
const BATCH: usize = 200;
/// What is still within the limit.
const SLACK_MB: f64 = 64.0;
/// Elements, fields or keys in one command.
const PER_COMMAND: u64 = 20;
/// Bytes of a value that FLUSHALL removes, so that many GB are soon loaded.
const FLUSHED_VALUE: usize = 1000;
/// Pause between two questions while FLUSHALL's space comes back.
const ASK_EVERY: Duration = Duration::from_micros(500);

/// Measures how soon the disk is given back.
#[derive(Parser)]
struct Options {
    /// String keys of 100 bytes.
    #[arg(long, default_value_t = 5_000_000)]
    keys: u64,
    /// Hashes of 20 fields.
    #[arg(long, default_value_t = 100_000)]
    hashes: u64,
    /// Members of one sorted set.
    #[arg(long, default_value_t = 10_000_000)]
    members: u64,
    /// Keys of 1,000 bytes for FLUSHALL.
    #[arg(long, default_value_t = 10_000_000)]
    flushed: u64,
    /// Seconds to watch at most.
    #[arg(long, default_value_t = 300)]
    seconds: u64,
    /// Tarn's budget; its own choice if none is given.
    #[arg(long)]
    maxmemory: Option<String>,
    /// strings, expiry, hashes, members, range, flushall.
    #[arg(long, value_delimiter = ',', default_value = "strings,expiry,hashes,members,range,flushall")]
    parts: Vec<String>,
    /// One more argument for Tarn; may be given several times.
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

/// One of ten, by chance, and the same ones every time.
fn stays(n: u64) -> bool {
    mix(n).is_multiple_of(10)
}

/// Text of which compression takes about half.
fn value(n: u64, len: usize) -> String {
    let mut text = String::with_capacity(len + 16);
    for part in 0.. {
        if text.len() >= len {
            break;
        }
        text.push_str(&format!("{:016x}", mix(n.wrapping_mul(31).wrapping_add(part)) << 7));
    }
    text.truncate(len);
    text
}

fn words<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).into()
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64)
}

/// MB that the files of a folder and those below it take on disk.
fn size_mb(folder: &Path) -> f64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(entries) = std::fs::read_dir(folder) else { return 0.0 };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(data) if data.is_dir() => size_mb(&entry.path()),
        Ok(data) => (data.blocks() * 512) as f64 / 1e6,
        // Gone since it was listed.
        Err(_) => 0.0,
    });
    sizes.sum()
}

fn used_mb(server: &Server) -> f64 {
    ["store", "log"].map(|folder| size_mb(&server.dir().join("data").join(folder))).iter().sum()
}

/// Sends commands in batches; their replies are read and must not be errors.
fn pipeline(client: &mut Client, commands: impl Iterator<Item = Vec<String>>) {
    let mut commands = commands.peekable();
    while commands.peek().is_some() {
        let batch: Vec<_> = commands.by_ref().take(BATCH).collect();
        let bytes: Vec<u8> = batch.iter().flat_map(|command| encode(command)).collect();
        client.send_raw(&bytes).expect("the server takes commands");
        for _ in batch {
            let reply = client.read().expect("the server answers");
            assert!(!reply.is_error(), "{}", reply.text());
        }
    }
}

/// One command for as many of these numbers as there are in one.
fn grouped<'a>(
    numbers: impl Iterator<Item = u64> + 'a,
    head: &'a [&'a str],
    each: impl Fn(u64, &mut Vec<String>) + 'a,
) -> impl Iterator<Item = Vec<String>> + 'a {
    let mut numbers = numbers.peekable();
    std::iter::from_fn(move || {
        numbers.peek()?;
        let mut command: Vec<String> = head.iter().map(|word| (*word).to_owned()).collect();
        numbers.by_ref().take(PER_COMMAND as usize).for_each(|n| each(n, &mut command));
        Some(command)
    })
}

struct Bench {
    options: Options,
}

/// Which numbers are loaded.
type Wanted<'a> = &'a dyn Fn(&u64) -> bool;

/// What one part loads, and how it removes.
struct Part {
    name: &'static str,
    count: u64,
    /// Loads the numbers of which the filter says so. Those that expire have until this time, ms.
    load: fn(&mut Client, Wanted<'_>, u64, u64),
    remove: fn(&mut Client, u64),
    /// Seconds for which what is to expire lives.
    lives_s: u64,
}

fn load_strings(client: &mut Client, wanted: Wanted<'_>, count: u64, _: u64) {
    pipeline(client, (0..count).filter(wanted).map(|n| vec!["SET".into(), format!("key:{n:012}"), value(n, 100)]));
}

fn load_expiring(client: &mut Client, wanted: Wanted<'_>, count: u64, until_ms: u64) {
    let set = |n: u64| {
        let mut command = vec!["SET".into(), format!("key:{n:012}"), value(n, 100)];
        if !stays(n) {
            command.extend(["PXAT".into(), until_ms.to_string()]);
        }
        command
    };
    pipeline(client, (0..count).filter(wanted).map(set));
}

fn load_hashes(client: &mut Client, wanted: Wanted<'_>, count: u64, _: u64) {
    let hash = |n: u64| {
        let fields = (0..PER_COMMAND).flat_map(|f| [format!("field:{f}"), value(n * PER_COMMAND + f, 50)]);
        ["HSET".into(), format!("hash:{n:08}")].into_iter().chain(fields).collect()
    };
    pipeline(client, (0..count).filter(wanted).map(hash));
}

fn add_members(client: &mut Client, numbers: &mut dyn Iterator<Item = u64>) {
    let member = |n: u64, command: &mut Vec<String>| command.extend([n.to_string(), format!("member:{n:012}")]);
    pipeline(client, grouped(numbers, &["ZADD", "z"], member));
}

fn load_members(client: &mut Client, wanted: Wanted<'_>, count: u64, _: u64) {
    add_members(client, &mut (0..count).filter(wanted));
}

fn remove_keys(client: &mut Client, count: u64, name: fn(u64) -> String) {
    let dead = (0..count).filter(|n| !stays(*n));
    pipeline(client, grouped(dead, &["DEL"], |n, command| command.push(name(n))));
}

const PARTS: [Part; 5] = [
    Part {
        name: "strings",
        count: 0,
        load: load_strings,
        remove: |client, count| remove_keys(client, count, |n| format!("key:{n:012}")),
        lives_s: 0,
    },
    Part { name: "expiry", count: 0, load: load_expiring, remove: |_, _| (), lives_s: 60 },
    Part {
        name: "hashes",
        count: 0,
        load: load_hashes,
        remove: |client, count| remove_keys(client, count, |n| format!("hash:{n:08}")),
        lives_s: 0,
    },
    Part {
        name: "members",
        count: 0,
        load: load_members,
        remove: |client, count| {
            let dead = (0..count).filter(|n| !stays(*n));
            let member = |n: u64, command: &mut Vec<String>| command.push(format!("member:{n:012}"));
            pipeline(client, grouped(dead, &["ZREM", "z"], member));
        },
        lives_s: 0,
    },
    Part {
        name: "range",
        count: 0,
        load: load_members,
        remove: |client, count| {
            // As many as stay by chance.
            let alive = (0..count).filter(|n| stays(*n)).count() as u64;
            let all = count - alive;
            pipeline(client, std::iter::once(words(["ZREMRANGEBYRANK", "z", "0", &(all - 1).to_string()])));
        },
        lives_s: 0,
    },
];

impl Bench {
    fn start(&self) -> (Server, Client) {
        let budget = self.options.maxmemory.iter().flat_map(|budget| ["--maxmemory", budget.as_str()]);
        let args: Vec<&str> = budget.chain(self.options.tarn_arg.iter().map(String::as_str)).collect();
        let server = Server::tarn(&args);
        let mut client = server.client();
        client.set_timeout(Duration::from_secs(600));
        (server, client)
    }

    fn part(&self, part: &Part) {
        let (server, mut client) = self.start();
        (part.load)(&mut client, &|n| stays(*n), part.count, 0);
        client.call("SAVE");
        std::thread::sleep(Duration::from_secs(5));
        let alone = used_mb(&server);
        drop((client, server));
        let limit = 1.3 * alone + SLACK_MB;

        let (server, mut client) = self.start();
        let until_ms = now_ms() + part.lives_s * 1000;
        (part.load)(&mut client, &|_| true, part.count, until_ms);
        let loaded = used_mb(&server);
        (part.remove)(&mut client, part.count);
        if part.lives_s > 0 {
            std::thread::sleep(Duration::from_millis(until_ms.saturating_sub(now_ms())));
        }
        let removed = used_mb(&server);
        let (kept, last) = self.watch(&server, limit);
        let kept = kept.map_or("–".to_owned(), |seconds| format!("{seconds:.0}"));
        println!("| {} | {alone:.0} | {limit:.0} | {loaded:.0} | {removed:.0} | {kept} | {last:.0} |", part.name);
    }

    /// Seconds until the limit is kept for good, and MB at last.
    fn watch(&self, server: &Server, limit: f64) -> (Option<f64>, f64) {
        let (began, mut changed) = (Instant::now(), Instant::now());
        let (mut kept, mut last) = (None, 0.0);
        while began.elapsed().as_secs() < self.options.seconds {
            let now = used_mb(server);
            if now > limit {
                kept = None;
            } else if kept.is_none() {
                kept = Some(began.elapsed().as_secs_f64());
            }
            if (now - last).abs() > 0.5 {
                (changed, last) = (Instant::now(), now);
            }
            if kept.is_some() && changed.elapsed().as_secs() >= 10 {
                break;
            }
            std::thread::sleep(Duration::from_millis(500));
        }
        (kept, last)
    }

    fn flushall(&self) {
        let keys = self.options.flushed;
        let (server, mut client) = self.start();
        let set = |n: u64| vec!["SET".into(), format!("key:{n:012}"), value(n, FLUSHED_VALUE)];
        pipeline(&mut client, (0..keys).map(set));
        client.call("SAVE");
        std::thread::sleep(Duration::from_secs(30));
        let loaded = used_mb(&server);
        let other = [Kind::Valkey, Kind::Redis82, Kind::Redis70].into_iter().find_map(|kind| {
            kind.binary()?;
            Some((kind, Server::start(kind, &[])?))
        });
        let idle = other.as_ref().map(|(kind, server)| (kind.title(), server.client()));
        let before = ask(server.client(), keys, None, Duration::from_secs(20), &|| false);
        report("before", &before.0);
        let done = Arc::new(AtomicBool::new(false));
        let asked = {
            let (done, client) = (done.clone(), server.client());
            std::thread::spawn(move || {
                let (title, idle) = idle.unzip();
                let asked = ask(client, keys, idle, Duration::from_secs(600), &|| done.load(Ordering::Relaxed));
                (asked, title)
            })
        };
        std::thread::sleep(Duration::from_millis(200));
        client.call("FLUSHALL");
        let (kept, last) = self.watch(&server, SLACK_MB);
        done.store(true, Ordering::Relaxed);
        let ((tarn, idle), title) = asked.join().expect("the asking thread");
        let kept = kept.map_or("–".to_owned(), |seconds| format!("{seconds:.0}"));
        println!("| flushall | 0 | {SLACK_MB} | {loaded:.0} | {loaded:.0} | {kept} | {last:.0} |");
        report("meanwhile", &tarn);
        for (first, what) in ["PING", "GET", "SET"].into_iter().enumerate() {
            report(&format!("of these {what}"), &tarn.iter().skip(first).step_by(3).copied().collect::<Vec<_>>());
        }
        if let Some(title) = title {
            report(&format!("PING of an idle {title} then"), &idle);
        }
    }
}

/// Asks again and again: PING, GET and SET of keys that there were, in turn; and PING of an idle server each time.
fn ask(
    mut client: Client,
    keys: u64,
    mut idle: Option<Client>,
    most: Duration,
    ends: &dyn Fn() -> bool,
) -> (Vec<Duration>, Vec<Duration>) {
    let (mut times, mut idle_times) = (Vec::new(), Vec::new());
    let began = Instant::now();
    for n in 0.. {
        if ends() || began.elapsed() > most {
            break;
        }
        let key = mix(n) % keys;
        let command = match n % 3 {
            0 => "PING".to_owned(),
            1 => format!("GET key:{key:012}"),
            _ => format!("SET new:{key:012} value"),
        };
        let start = Instant::now();
        let reply = client.call(&command);
        times.push(start.elapsed());
        assert!(!reply.is_error(), "{command}: {}", reply.text());
        std::thread::sleep(ASK_EVERY);
        if let Some(idle) = &mut idle {
            let start = Instant::now();
            idle.call("PING");
            idle_times.push(start.elapsed());
            std::thread::sleep(ASK_EVERY);
        }
    }
    (times, idle_times)
}

fn report(what: &str, times: &[Duration]) {
    let mut times = times.to_vec();
    times.sort_unstable();
    let ms = |share: f64| {
        times.get(((times.len().max(1) - 1) as f64 * share) as usize).map_or(0.0, Duration::as_secs_f64) * 1e3
    };
    println!(
        "{what}: {} asked, p50 {:.3} p99 {:.3} p99.9 {:.3} max {:.3} ms",
        times.len(),
        ms(0.5),
        ms(0.99),
        ms(0.999),
        ms(1.0)
    );
}

fn main() {
    let options = Options::parse();
    if !options.bench {
        eprintln!("space: a benchmark, run by: cargo bench --bench space");
        return;
    }
    println!("| | alone | limit | loaded | removed | s | at last |");
    println!("|---|---|---|---|---|---|---|");
    let bench = Bench { options };
    for name in &bench.options.parts {
        if name == "flushall" {
            bench.flushall();
            continue;
        }
        let part = PARTS.into_iter().find(|part| part.name == name);
        let part = part.unwrap_or_else(|| panic!("there is no part {name}"));
        let options = &bench.options;
        let count = match part.name {
            "hashes" => options.hashes,
            "members" | "range" => options.members,
            _ => options.keys,
        };
        bench.part(&Part { count, ..part });
    }
}
