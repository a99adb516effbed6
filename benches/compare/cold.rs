//! Data several times memory: what a request costs whose key is on disk.
//!
//! The server is filled by one connection and saved, then asked for keys by chance, all of them alike: first with the page cache holding
//! all that was saved, then with the cache dropped before each run, which needs root. What is deleted is a part of the keys that nobody
//! else asks for, so that a GET always finds one.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::Duration;

use crate::Options;
use crate::common::rng::Rng;
use crate::load::{self, Load, Outcome, key, value};
use crate::server::{self, Program, Server};
use crate::table::{Section, Table, rounded, short, thousands};

/// How long after a run CPU time still counts for it.
const SETTLE: Duration = Duration::from_millis(500);
/// Bytes of a value.
const SIZE: usize = 100;
/// Keys of an MGET.
pub(crate) const MANY: u64 = 10;

/// What is asked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ask {
    Get,
    Mget,
    Set,
    Del,
}

/// A row: how many clients ask what.
struct Step {
    ask: Ask,
    title: &'static str,
    clients: u64,
    depth: u64,
}

const STEPS: [Step; 6] = [
    Step { ask: Ask::Get, title: "GET, 50 clients, `-P 16`", clients: 50, depth: 16 },
    Step { ask: Ask::Get, title: "GET, 50 clients, `-P 1`", clients: 50, depth: 1 },
    Step { ask: Ask::Get, title: "GET, one client, `-P 100`", clients: 1, depth: 100 },
    Step { ask: Ask::Mget, title: "MGET of 10, 50 clients, keys", clients: 50, depth: 1 },
    Step { ask: Ask::Set, title: "SET over what is there, 50 clients, `-P 16`", clients: 50, depth: 16 },
    Step { ask: Ask::Del, title: "DEL, one client, `-P 100`", clients: 1, depth: 100 },
];

/// The servers to fill: Tarn with its budget, and what `--server` names, as it is.
pub(crate) fn programs(options: &Options) -> Result<Vec<Program>, String> {
    let tarn = server::tarn(options).map(|tarn| tarn.with(&["--maxmemory", &options.cold_memory()]));
    Ok(tarn.into_iter().chain(server::named(options)?).collect())
}

/// The keys that are asked for; those above are deleted.
pub(crate) fn asked(options: &Options) -> u64 {
    options.cold_keys() / 8 * 7
}

/// Writes all keys.
pub(crate) fn fill(server: &Server, keys: u64) -> Result<Duration, String> {
    load::fill(server.port, keys, |n, out| load::command(out, &[b"SET", &key(n), &value(n, SIZE)]))
        .map_err(|e| format!("{}: {e}", server.name))
}

/// GET of a key by chance.
pub(crate) fn get(keys: u64) -> impl Fn(&mut Rng, &mut Vec<u8>) -> bool + Sync {
    move |rng, out| {
        load::command(out, &[b"GET", &key(rng.below(keys))]);
        true
    }
}

/// MGET of keys by chance.
pub(crate) fn mget(keys: u64) -> impl Fn(&mut Rng, &mut Vec<u8>) -> bool + Sync {
    move |rng, out| {
        let names: Vec<[u8; 16]> = (0..MANY).map(|_| key(rng.below(keys))).collect();
        let mut args: Vec<&[u8]> = vec![b"MGET"];
        args.extend(names.iter().map(|name| name.as_slice()));
        load::command(out, &args);
        true
    }
}

fn set(keys: u64) -> impl Fn(&mut Rng, &mut Vec<u8>) -> bool + Sync {
    move |rng, out| {
        load::command(out, &[b"SET", &key(rng.below(keys)), &value(rng.next(), SIZE)]);
        true
    }
}

/// DEL of each of these keys once, in no order, until none is left.
fn del(first: u64, count: u64) -> impl Fn(&mut Rng, &mut Vec<u8>) -> bool + Sync {
    const PRIME: u64 = 1_000_003;
    let next = AtomicU64::new(0);
    move |_, out| {
        let n = next.fetch_add(1, Ordering::Relaxed);
        if n < count {
            load::command(out, &[b"DEL", &key(first + n * PRIME % count)]);
        }
        n < count
    }
}

/// A server that has been filled, and its row.
pub(crate) fn filled(options: &Options, program: &Program) -> Result<(Server, Vec<String>), String> {
    let keys = options.cold_keys();
    eprintln!("{}: {}", program.name, program.words.join(" "));
    let server = Server::start(program, options)?;
    let before = server.cpu_us();
    let took = fill(&server, keys)?;
    sleep(SETTLE);
    let (at_once, resident) = (server.cpu_us(), server.resident());
    server.save()?;
    let per_key = |cpu_us: f64| short((cpu_us - before) / keys as f64);
    let row = vec![
        "filling, one connection".to_owned(),
        server.name.clone(),
        rounded(keys as f64 / took.as_secs_f64()),
        per_key(at_once),
        per_key(server.cpu_us()),
        String::new(),
        String::new(),
        String::new(),
        mb(resident),
        String::new(),
    ];
    Ok((server, row))
}

fn mb(bytes: f64) -> String {
    thousands(bytes / 1e6)
}

const HEAD: [&str; 10] = [
    "",
    "server",
    "a second",
    "CPU µs",
    "CPU µs until saved",
    "p50 ms",
    "p99 ms",
    "p99.9 ms",
    "resident MB",
    "disk bytes read",
];

/// Runs one step; throughput and row.
fn step(options: &Options, server: &Server, step: &Step, part: u64) -> Result<(f64, Vec<String>), String> {
    let keys = asked(options);
    let deleted = options.cold_keys() / 16;
    let (cpu, read) = (server.cpu_us(), server.disk_read());
    let run = |command: &(dyn Fn(&mut Rng, &mut Vec<u8>) -> bool + Sync)| -> Result<Outcome, String> {
        let load = Load { clients: step.clients, depth: step.depth, replies: 1, rate: None, command };
        load.run(server.port, options.seconds()).map_err(|e| format!("{}: {e}", server.name))
    };
    let outcome = match step.ask {
        Ask::Get => run(&get(keys)),
        Ask::Mget => run(&mget(keys)),
        Ask::Set => run(&set(keys)),
        Ask::Del => run(&del(keys + part * deleted, deleted)),
    }?;
    if outcome.nils > 0 {
        return Err(format!("{}: {}: {} keys are missing", server.name, step.title, outcome.nils));
    }
    sleep(SETTLE);
    let per = if step.ask == Ask::Mget { MANY } else { 1 };
    let count = (outcome.requests * per) as f64;
    let per_second = count / outcome.elapsed.as_secs_f64();
    let (at_once, resident, read) = (server.cpu_us(), server.resident(), server.disk_read() - read);
    let saved = if matches!(step.ask, Ask::Set | Ask::Del) {
        server.save()?;
        short((server.cpu_us() - cpu) / count)
    } else {
        String::new()
    };
    let row = vec![
        step.title.to_owned(),
        server.name.clone(),
        rounded(per_second),
        short((at_once - cpu) / count),
        saved,
        short(outcome.latencies.ms(0.5)),
        short(outcome.latencies.ms(0.99)),
        short(outcome.latencies.ms(0.999)),
        mb(resident),
        thousands(read / count),
    ];
    Ok((per_second, row))
}

/// Hides the server's name where there is only one.
fn for_one(mut table: Table, servers: usize) -> Table {
    if servers == 1 {
        table.rows.iter_mut().for_each(|row| row[1].clear());
    }
    table.dense()
}

/// What both tables say of how they were measured.
fn told(options: &Options) -> String {
    format!(
        "{} keys of {SIZE} bytes (hexadecimal digits by chance, which LZ4 does not compress), `--maxmemory {}`, \
         filled by one connection and saved; keys by chance; clients of our own, each a thread in a closed loop, for {} s a row",
        thousands(options.cold_keys() as f64),
        options.cold_memory(),
        options.seconds().as_secs_f64()
    )
}

pub(crate) fn run(options: &Options) -> Result<Vec<Section>, String> {
    let programs = programs(options)?;
    let (mut warm, mut dropped) = (Table::new(&HEAD, 2), Table::new(&HEAD, 2));
    let mut first_get = [None, None];
    let mut all_dropped = !options.keep_caches;
    for program in &programs {
        let (server, row) = filled(options, program)?;
        warm.push(row);
        server.warm();
        for one in &STEPS {
            let (per_second, row) = step(options, &server, one, 0)?;
            first_get[0].get_or_insert((per_second, row[3].clone()));
            warm.push(row);
        }
        for one in &STEPS {
            all_dropped = all_dropped && server::drop_caches(options);
            if !all_dropped {
                break;
            }
            let (per_second, row) = step(options, &server, one, 1)?;
            first_get[1].get_or_insert((per_second, row[3].clone()));
            dropped.push(row);
        }
    }
    let text = format!(
        "{}; the page cache holds all that was saved. Latency is a whole pipeline's. *CPU until saved*: with a SAVE \
         after the run and what follows it. *Disk bytes read*: what the disk, not the page cache, gave the server, per key.",
        told(options)
    );
    let [warm_get, dropped_get] = first_get;
    let short_text = warm_get.map(|(per_second, cpu)| {
        let cold = dropped_get.map(|(cold, _)| format!(", {} with the page cache dropped", rounded(cold)));
        format!(
            "{} 100-byte keys, `maxmemory {}`: cold GETs `-P 16` {} a second at {cpu} µs of CPU{}.",
            thousands(options.cold_keys() as f64),
            options.cold_memory(),
            rounded(per_second),
            cold.unwrap_or_default()
        )
    });
    let warm = for_one(warm, programs.len());
    let mut sections =
        vec![Section { title: "Cold, the page cache warm".to_owned(), text, table: warm, short: short_text }];
    let text = if all_dropped {
        "The same server afterwards, the page cache dropped before each row (`/proc/sys/vm/drop_caches`); the row's own reads fill it again."
            .to_owned()
    } else {
        "Left out: dropping the page cache takes root, and no `--keep-caches`.".to_owned()
    };
    let dropped = for_one(dropped, programs.len());
    sections.push(Section { title: "Cold, the page cache dropped".to_owned(), text, table: dropped, short: None });
    Ok(sections)
}
