//! redis-benchmark on servers that run side by side, command by command, in interleaved rounds: what else the machine does then
//! falls on all of them alike.

use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::Options;
use crate::common::resp::{Client, encode};
use crate::server::{self, Program, Server};
use crate::table::{Section, Table, median, rounded, short, thousands};

/// Commands in one write while keys are loaded.
const PRELOAD_BATCH: u64 = 500;

/// What is run.
struct Plan {
    tests: Vec<String>,
    /// Depths of pipeline.
    pipeline: Vec<u32>,
    /// Requests of a run; of one in a pipeline so many times as many.
    requests: u64,
    deep: u64,
    rounds: usize,
    keys: u64,
    preload: bool,
    /// How long after a run CPU time still counts for it.
    settle: Duration,
}

impl Plan {
    /// What the options say; the rest as in a comparison by hand.
    fn of(options: &Options) -> Plan {
        let expand = |test: &String| match test.as_str() {
            "collections" => COLLECTIONS.map(str::to_owned).to_vec(),
            one => vec![one.to_owned()],
        };
        Plan {
            tests: options.tests.iter().flat_map(expand).collect(),
            pipeline: options.pipeline.clone(),
            requests: options.requests.unwrap_or(500_000),
            deep: 1,
            rounds: options.rounds.unwrap_or(3),
            keys: options.keys.unwrap_or(1_000_000),
            preload: options.preload,
            settle: Duration::from_millis(500),
        }
    }

    /// The same as a suite.
    fn suite(options: &Options, tests: &[&str], requests: u64, deep: u64) -> Plan {
        Plan {
            tests: tests.iter().map(|test| (*test).to_owned()).collect(),
            requests: options.requests.unwrap_or(options.pick(requests, 20_000)),
            deep,
            rounds: options.rounds.unwrap_or(options.pick(3, 1)),
            keys: options.keys.unwrap_or(100_000),
            preload: true,
            settle: Duration::from_millis(options.pick(500, 50)),
            ..Plan::of(options)
        }
    }

    fn requests(&self, test: &str, depth: u32) -> u64 {
        let requests = self.requests * if depth > 1 { self.deep } else { 1 };
        if test == "mset" { requests / 10 } else { requests }.max(1000)
    }
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

/// Writes every key and counter that redis-benchmark may pick.
fn preload(server: &Server, keys: u64, value: &[u8]) -> Result<(), String> {
    let failed = |what: String| format!("{}: while loading keys: {what}", server.name);
    let mut client = Client::connect(server.port).map_err(|e| failed(e.to_string()))?;
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
fn measure(options: &Options, plan: &Plan, server: &Server, test: &str, depth: u32) -> Result<Sample, String> {
    let requests = plan.requests(test, depth);
    let (cpu_before, flushes_before) = (server.cpu_us(), server.flushes());
    let output = Command::new(&options.benchmark)
        .args(["-h", "127.0.0.1", "-p", &server.port.to_string()])
        .args(["-c", &options.clients.to_string(), "-P", &depth.to_string(), "-n", &requests.to_string()])
        .args(["-r", &plan.keys.to_string(), "-d", &options.size.to_string(), "--precision", "3"])
        .args(test_arguments(test, options.size))
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("{}: {e} (Debian: apt-get install redis-tools)", options.benchmark.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut sample = read_report(&text).ok_or_else(|| {
        format!("redis-benchmark -t {test} on {}: {text}{}", server.name, String::from_utf8_lossy(&output.stderr))
    })?;
    sleep(plan.settle);
    sample.cpu_us = (server.cpu_us() - cpu_before) / requests as f64;
    sample.rss_mb = server.resident() / f64::from(1 << 20);
    sample.flushes = flushes_before.zip(server.flushes()).map(|(before, after)| after - before);
    Ok(sample)
}

/// All rounds of one command at one depth: `samples[server][round]`.
fn rounds(
    options: &Options,
    plan: &Plan,
    servers: &[Server],
    test: &str,
    depth: u32,
) -> Result<Vec<Vec<Sample>>, String> {
    let mut samples = vec![Vec::new(); servers.len()];
    for round in 0..plan.rounds {
        for i in 0..servers.len() {
            // Another one begins each round: what follows a pause or a burst is not always the same.
            let i = (i + round) % servers.len();
            samples[i].push(measure(options, plan, &servers[i], test, depth)?);
        }
    }
    Ok(samples)
}

fn started(options: &Options, plan: &Plan, programs: &[Program]) -> Result<Vec<Server>, String> {
    let mut servers = Vec::new();
    for program in programs {
        eprintln!("{}: {}", program.name, program.words.join(" "));
        servers.push(Server::start(program, options)?);
    }
    if plan.preload {
        let value = vec![b'x'; options.size];
        for server in &servers {
            let start = Instant::now();
            preload(server, plan.keys, &value)?;
            eprintln!("{}: {} keys and as many counters loaded in {:.1?}", server.name, plan.keys, start.elapsed());
        }
    }
    Ok(servers)
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

/// The comparison by hand: a row for each server.
pub(crate) fn compare(options: &Options) -> Result<(), String> {
    let plan = Plan::of(options);
    let servers = started(options, &plan, &server::all(options)?)?;
    let ratio = format!("{} ÷ it", servers[0].name);
    let head = ["command", "server", "kreq/s", &ratio, "CPU µs", "p50 ms", "p99 ms", "p99.9 ms", "RSS MB", "flushes"];
    let mut table = Table::new(&head, 2);
    for &depth in &plan.pipeline {
        for test in &plan.tests {
            let samples = rounds(options, &plan, &servers, test, depth)?;
            rows(&servers, test, depth, &samples).into_iter().for_each(|row| table.push(row));
        }
    }
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    println!(
        "{} keys, {}-byte values, {} clients, {} requests a run, medians of {} rounds, {cores} cores{}\n",
        plan.keys,
        options.size,
        options.clients,
        plan.requests,
        plan.rounds,
        if plan.preload { ", every key written before" } else { "" }
    );
    if table.rows.iter().all(|row| row.last().is_some_and(String::is_empty)) {
        table.head.pop();
        table.rows.iter_mut().for_each(|row| drop(row.pop()));
    }
    print!("{}", table.render(options.markdown));
    Ok(())
}

/// What the first server of a suite did, for the summary.
struct Figure {
    command: String,
    depth: u32,
    per_second: f64,
    cpu_us: f64,
    /// Its throughput over the last server's.
    ratio: Option<f64>,
}

/// A suite: a row for each command, with all servers in it.
fn suite(options: &Options, plan: &Plan, programs: &[Program], title: &str) -> Result<(Section, Vec<Figure>), String> {
    let servers = started(options, plan, programs)?;
    let names: Vec<&str> = servers.iter().map(|server| server.name.as_str()).collect();
    let mut head = vec!["command".to_owned(), format!("{} kreq/s", names[0])];
    head.extend(names[1..].iter().map(|name| format!("÷ {name}")));
    head.extend(["CPU µs", "p50 ms", "p99 ms", "p99.9 ms"].map(str::to_owned));
    let mut table = Table { head, words: 1, rows: Vec::new() };
    let (mut figures, mut flushes) = (Vec::new(), None);
    for &depth in &plan.pipeline {
        for test in &plan.tests {
            let samples = rounds(options, plan, &servers, test, depth)?;
            let of = |of: &[Sample], get: fn(&Sample) -> f64| median(of.iter().map(get).collect());
            let mut figure = Figure {
                command: test.to_uppercase(),
                depth,
                per_second: of(&samples[0], |s| s.per_second),
                cpu_us: of(&samples[0], |s| s.cpu_us),
                ratio: None,
            };
            let mut row = vec![format!("{} `-P {depth}`", figure.command), short(figure.per_second / 1000.0)];
            for rival in &samples[1..] {
                let each = samples[0].iter().zip(rival).map(|(first, this)| first.per_second / this.per_second);
                let ratio = median(each.collect());
                row.push(format!("{ratio:.2}"));
                figure.ratio = Some(ratio);
            }
            let gets: [fn(&Sample) -> f64; 4] = [|s| s.cpu_us, |s| s.p50_ms, |s| s.p99_ms, |s| s.p999_ms];
            for get in gets {
                let cells: Vec<String> = samples.iter().map(|samples| short(of(samples, get))).collect();
                row.push(cells.join(", "));
            }
            flushes = samples[0].iter().map(|s| s.flushes).fold(flushes, |sum, n| Some(sum.unwrap_or(0) + n?));
            table.push(row);
            figures.push(figure);
        }
    }
    let requests = |depth: &u32| format!("{} at `-P {depth}`", thousands(plan.requests("", *depth) as f64));
    let text = format!(
        "redis-benchmark, {} clients, {}-byte values, {} keys, all written before and all in memory; the servers side by side, the \
         runs one after the other, medians of {} rounds; requests of a run: {} (MSET a tenth of it). *÷*: {}'s throughput over that \
         one's in the same round. Cells with several figures: {}. CPU: user and system time of all threads of the server per request, \
         until {} ms after the last, so that background work counts.{}",
        options.clients,
        options.size,
        thousands(plan.keys as f64),
        plan.rounds,
        plan.pipeline.iter().map(requests).collect::<Vec<_>>().join(", "),
        names[0],
        names.join(", "),
        plan.settle.as_millis(),
        flushes.map(|n: u64| format!(" Flushes of {} meanwhile: {n}.", names[0])).unwrap_or_default()
    );
    Ok((Section { title: title.to_owned(), text, table, short: None }, figures))
}

/// What is in memory, against all rivals.
pub(crate) fn hot(options: &Options) -> Result<Vec<Section>, String> {
    let plan = Plan::suite(options, &["set", "get", "incr", "mset"], 150_000, 5);
    let programs = server::all(options)?;
    let (mut section, figures) = suite(options, &plan, &programs, "Hot")?;
    let told = figures.iter().filter(|figure| ["GET", "SET"].contains(&figure.command.as_str())).map(|figure| {
        let ratio = figure.ratio.map(|ratio| format!(" ({ratio:.2})")).unwrap_or_default();
        let (name, depth) = (&figure.command, figure.depth);
        let (rate, cpu) = (rounded(figure.per_second), short(figure.cpu_us));
        format!("{name} `-P {depth}` {rate}{ratio}, {cpu} µs")
    });
    let told: Vec<String> = told.collect();
    let rival = programs.get(1..).and_then(<[Program]>::last);
    let rival = rival.map(|rival| format!(" (over {}'s)", rival.name)).unwrap_or_default();
    section.short = Some(format!("In memory, requests a second{rival}, CPU of each: {}.", told.join("; ")));
    Ok(vec![section])
}

/// Collections in memory, against the last rival.
pub(crate) fn collections(options: &Options) -> Result<Vec<Section>, String> {
    let plan = Plan::suite(options, &COLLECTIONS, 100_000, 2);
    let rival = server::rivals(options)?.into_iter().next_back();
    let programs: Vec<Program> = server::tarn(options).into_iter().chain(rival).collect();
    if programs.is_empty() {
        return Err("no server to measure".into());
    }
    let (mut section, figures) = suite(options, &plan, &programs, "Collections")?;
    let told = plan.pipeline.iter().filter_map(|depth| {
        let at = figures.iter().filter(|figure| figure.depth == *depth);
        let mut at: Vec<(f64, &str)> = at.filter_map(|figure| Some((figure.ratio?, figure.command.as_str()))).collect();
        at.sort_by(|a, b| a.0.total_cmp(&b.0));
        let ((least, low), (most, high)) = (at.first()?, at.last()?);
        Some(format!("{least:.2} ({low}) to {most:.2} ({high}) at `-P {depth}`"))
    });
    let (told, rival): (Vec<String>, _) = (told.collect(), &programs[programs.len() - 1].name);
    section.short =
        (!told.is_empty()).then(|| format!("Collections in memory, throughput over {rival}'s: {}.", told.join(", ")));
    Ok(vec![section])
}
