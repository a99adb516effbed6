//! `kill -9` under load, then a look at what came back.
//!
//! | who | does | is held to |
//! |---|---|---|
//! | writers, each on keys of its own | random writes in pipelines, transactions among them | after the restart the keys of one writer are as they were after one of its commands, not before the last acknowledged one: nothing acknowledged is lost, nothing is torn, and no write is there without those sent before it |
//! | readers | read the writers' counters and pairs | a counter never goes back, not over a restart either; the two keys of a pair, written by one MSET, are always equal |
//! | the test | kills at a random moment, in some rounds once more during the start | DBSIZE is the number of keys that SCAN finds, and that of the writers' keys |
//!
//! A process killed leaves what it wrote in the page cache, so all of this holds in every `appendfsync` mode.
//!
//! `TARN_CRASH_ROUNDS` sets the rounds per mode (3), `TARN_CRASH_SEED` the seed. With a small dirty budget and log, flushes and
//! switches of segments happen all the time.

mod common;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use common::notation::show;
use common::resp::{Client, Value, encode};
use common::rng::{Rng, seed_from};
use common::server::{Kind, Server};
use common::wait::PATIENCE;

const WRITERS: usize = 4;
const READERS: usize = 2;
/// Keys a writer picks from.
const KEYS: u64 = 300;
/// The times keys are given: far enough never to come.
const FAR_MS: u64 = 4_102_444_800_000;
/// How long the keys that expire live at most.
const SHORT_MS: u64 = 300;

/// A value and, in milliseconds, its time.
type Object = (Vec<u8>, Option<u64>);
type Model = BTreeMap<String, Object>;

/// One write, or several in a transaction.
#[derive(Clone, Debug)]
enum Op {
    Set(String, Vec<u8>, Option<u64>),
    Append(String, Vec<u8>),
    SetRange(String, usize, Vec<u8>),
    Incr(String),
    MSet(Vec<(String, Vec<u8>)>),
    Del(Vec<String>),
    ExpireAt(String, u64),
    Persist(String),
    Rename(String, String),
    Copy(String, String),
    /// A key outside of the model, which expires.
    Short(String, u64),
    FlushDb,
    Multi(Vec<Op>),
}

impl Op {
    /// The commands, each with its arguments.
    fn commands(&self) -> Vec<Vec<Vec<u8>>> {
        let words = |list: &[&str]| -> Vec<Vec<u8>> { list.iter().map(|w| w.as_bytes().to_vec()).collect() };
        let with = |list: &[&str], value: &[u8]| {
            let mut args = words(list);
            args.push(value.to_vec());
            args
        };
        vec![match self {
            Op::Set(key, value, None) => with(&["SET", key], value),
            Op::Set(key, value, Some(at)) => {
                let mut args = with(&["SET", key], value);
                args.extend(words(&["PXAT", &at.to_string()]));
                args
            }
            Op::Append(key, value) => with(&["APPEND", key], value),
            Op::SetRange(key, at, value) => with(&["SETRANGE", key, &at.to_string()], value),
            Op::Incr(key) => words(&["INCR", key]),
            Op::MSet(pairs) => {
                let mut args = words(&["MSET"]);
                for (key, value) in pairs {
                    args.extend([key.as_bytes().to_vec(), value.clone()]);
                }
                args
            }
            Op::Del(keys) => {
                let mut args = words(&["DEL"]);
                args.extend(keys.iter().map(|key| key.as_bytes().to_vec()));
                args
            }
            Op::ExpireAt(key, at) => words(&["PEXPIREAT", key, &at.to_string()]),
            Op::Persist(key) => words(&["PERSIST", key]),
            Op::Rename(from, to) => words(&["RENAME", from, to]),
            Op::Copy(from, to) => words(&["COPY", from, to, "REPLACE"]),
            Op::Short(key, ms) => words(&["SET", key, "short", "PX", &ms.to_string()]),
            Op::FlushDb => words(&["FLUSHDB"]),
            Op::Multi(ops) => {
                let mut all = vec![words(&["MULTI"])];
                all.extend(ops.iter().flat_map(Op::commands));
                all.push(words(&["EXEC"]));
                return all;
            }
        }]
    }

    fn apply(&self, model: &mut Model) {
        match self {
            Op::Set(key, value, at) => {
                model.insert(key.clone(), (value.clone(), *at));
            }
            Op::Append(key, value) => model.entry(key.clone()).or_default().0.extend_from_slice(value),
            Op::SetRange(key, at, value) => {
                let (old, _) = model.entry(key.clone()).or_default();
                old.resize(old.len().max(at + value.len()), 0);
                old[*at..at + value.len()].copy_from_slice(value);
            }
            Op::Incr(key) => {
                let (old, _) = model.entry(key.clone()).or_default();
                *old = (number(old) + 1).to_string().into_bytes();
            }
            Op::MSet(pairs) => {
                model.extend(pairs.iter().map(|(key, value)| (key.clone(), (value.clone(), None))));
            }
            Op::Del(keys) => keys.iter().for_each(|key| drop(model.remove(key))),
            Op::ExpireAt(key, at) => {
                if let Some(object) = model.get_mut(key) {
                    object.1 = Some(*at);
                }
            }
            Op::Persist(key) => {
                if let Some(object) = model.get_mut(key) {
                    object.1 = None;
                }
            }
            Op::Rename(from, to) => {
                if let Some(object) = model.remove(from) {
                    model.insert(to.clone(), object);
                }
            }
            Op::Copy(from, to) => {
                if let Some(object) = model.get(from).cloned() {
                    model.insert(to.clone(), object);
                }
            }
            Op::Short(..) => {}
            Op::FlushDb => model.clear(),
            Op::Multi(ops) => ops.iter().for_each(|op| op.apply(model)),
        }
    }
}

fn number(text: &[u8]) -> u64 {
    std::str::from_utf8(text).ok().and_then(|t| t.parse().ok()).unwrap_or(0)
}

/// What a writer knows of its keys. Writer 0 has a database of its own, which it flushes at times.
struct Writer {
    id: usize,
    rng: Rng,
    /// After the last acknowledged command.
    base: Model,
    /// After the last command sent.
    head: Model,
    /// Sent, not acknowledged.
    pending: Vec<Op>,
    pairs: u64,
    acknowledged: u64,
}

impl Writer {
    fn new(id: usize, seed: u64) -> Writer {
        let rng = Rng(seed ^ (id as u64 + 1) << 48);
        Writer { id, rng, base: Model::new(), head: Model::new(), pending: Vec::new(), pairs: 0, acknowledged: 0 }
    }

    fn database(&self) -> usize {
        usize::from(self.id == 0)
    }

    fn key(&mut self) -> String {
        format!("w{}:{}", self.id, self.rng.below(KEYS))
    }

    fn value(&mut self) -> Vec<u8> {
        let len = if self.rng.one_in(12) { 1000 + self.rng.below(20_000) } else { self.rng.below(200) };
        let first = self.rng.next().to_le_bytes();
        (0..len as usize).map(|i| first[i % 8] ^ i as u8).collect()
    }

    fn simple(&mut self) -> Op {
        let key = self.key();
        match self.rng.below(20) {
            0..=4 => Op::Set(key, self.value(), None),
            5 => {
                let at = FAR_MS + self.rng.below(1_000_000);
                Op::Set(key, self.value(), Some(at))
            }
            6 => Op::Append(key, vec![b'+'; 1 + self.rng.below(50) as usize]),
            7 => {
                let at = self.rng.below(3000) as usize;
                Op::SetRange(key, at, vec![b'='; 1 + self.rng.below(50) as usize])
            }
            8..=10 => Op::Incr(format!("c{}:{}", self.id, self.rng.below(5))),
            11 => {
                let pairs = (0..1 + self.rng.below(8)).map(|_| (self.key(), self.value())).collect();
                Op::MSet(pairs)
            }
            12 => {
                self.pairs += 1;
                let n = self.pairs.to_string().into_bytes();
                Op::MSet(vec![(format!("p{}:a", self.id), n.clone()), (format!("p{}:b", self.id), n)])
            }
            13..=14 => Op::Del((0..1 + self.rng.below(4)).map(|_| self.key()).collect()),
            15 => Op::ExpireAt(key, FAR_MS + self.rng.below(1_000_000)),
            16 => Op::Persist(key),
            17 if self.head.contains_key(&key) => {
                let to = self.key();
                if key == to || self.rng.one_in(2) { Op::Rename(key, to) } else { Op::Copy(key, to) }
            }
            18 => Op::Short(format!("x{}:{}", self.id, self.rng.below(KEYS)), 1 + self.rng.below(SHORT_MS)),
            _ if self.database() != 0 && self.rng.one_in(100) => Op::FlushDb,
            _ => Op::Set(key, b"tiny".to_vec(), None),
        }
    }

    /// The next write; those of a transaction are chosen one by one, as each may need what the one before it made.
    fn op(&mut self) -> Op {
        let next = |writer: &mut Writer| {
            let op = writer.simple();
            op.apply(&mut writer.head);
            op
        };
        if !self.rng.one_in(8) {
            return next(self);
        }
        let count = 1 + self.rng.below(6);
        Op::Multi((0..count).map(|_| next(self)).collect())
    }

    /// Writes until the connection breaks. A reply that is an error fails the test.
    fn run(&mut self, port: u16) -> Result<(), String> {
        let Ok(mut client) = Client::connect(port) else { return Ok(()) };
        let Ok(_) = client.try_call(&["SELECT", &self.database().to_string()]) else { return Ok(()) };
        loop {
            let depth = if self.rng.one_in(2) { 1 } else { 1 + self.rng.below(20) };
            let mut bytes = Vec::new();
            let mut replies = Vec::new();
            for _ in 0..depth {
                let op = self.op();
                let commands = op.commands();
                replies.push(commands.len());
                commands.iter().for_each(|args| bytes.extend(encode(args)));
                self.pending.push(op);
            }
            if client.send_raw(&bytes).is_err() {
                return Ok(());
            }
            for count in replies {
                for _ in 0..count {
                    let Ok(reply) = client.read() else { return Ok(()) };
                    if reply.is_error() || reply.items().iter().any(Value::is_error) {
                        return Err(format!("writer {}: {} to {:?}", self.id, show(&reply, "nil"), self.pending[0]));
                    }
                }
                self.pending.remove(0).apply(&mut self.base);
                self.acknowledged += 1;
            }
        }
    }

    /// Compares the server's keys with every state they may be in, and goes on from the one found.
    fn verify(&mut self, client: &mut Client) -> Result<(), String> {
        let found = self.fetch(client);
        let mut state = self.base.clone();
        let mut ops = self.pending.drain(..);
        loop {
            if state == found {
                break;
            }
            match ops.next() {
                Some(op) => op.apply(&mut state),
                None => {
                    drop(ops);
                    return Err(format!("writer {}: {}", self.id, describe(&self.base, &state, &found)));
                }
            }
        }
        drop(ops);
        self.pairs = self.pairs.max(found.get(&format!("p{}:a", self.id)).map_or(0, |(v, _)| number(v)));
        self.base = found.clone();
        self.head = found;
        Ok(())
    }

    /// The writer's keys as the server has them.
    fn fetch(&self, client: &mut Client) -> Model {
        let mut names: Vec<String> = (0..KEYS).map(|i| format!("w{}:{i}", self.id)).collect();
        names.extend((0..5).map(|i| format!("c{}:{i}", self.id)));
        names.extend(["a", "b"].map(|half| format!("p{}:{half}", self.id)));
        client.call(&format!("SELECT {}", self.database()));
        let bytes: Vec<u8> =
            names.iter().flat_map(|n| [encode(&["GET", n]), encode(&["PEXPIRETIME", n])].concat()).collect();
        client.send_raw(&bytes).unwrap_or_else(|e| panic!("reading back: {e}"));
        let mut found = Model::new();
        for name in names {
            let mut next = || client.read().unwrap_or_else(|gone| panic!("reading {name} back: {gone:?}"));
            let (value, at) = (next(), next());
            if let Value::Bulk(value) = value {
                found.insert(name, (value, at.int().and_then(|ms| u64::try_from(ms).ok())));
            } else {
                assert!(value.is_nil(), "{name}: {value:?}");
            }
        }
        found
    }
}

/// The keys that are neither as acknowledged nor as sent.
fn describe(base: &Model, last: &Model, found: &Model) -> String {
    let short = |object: Option<&Object>| match object {
        None => "absent".to_owned(),
        Some((value, at)) => {
            let start = String::from_utf8_lossy(&value[..value.len().min(12)]).into_owned();
            format!("{} bytes {start:?} time {at:?}", value.len())
        }
    };
    let keys: BTreeSet<&String> = base.keys().chain(last.keys()).chain(found.keys()).collect();
    let differ: Vec<String> = keys
        .into_iter()
        .filter(|k| base.get(*k) != found.get(*k))
        .map(|k| {
            let (a, b, c) = (short(base.get(k)), short(last.get(k)), short(found.get(k)));
            format!("  {k}: acknowledged {a}; last sent {b}; found {c}")
        })
        .collect();
    format!("the keys are in none of the states they may be in; {} differ:\n{}", differ.len(), differ.join("\n"))
}

/// The highest values read of counters and pairs.
#[derive(Default)]
struct Seen(Mutex<HashMap<String, u64>>);

impl Seen {
    /// Notes a value; one below what was seen before it was asked for is an error.
    fn note(&self, key: &str, before: u64, value: u64) -> Result<(), String> {
        if value < before {
            return Err(format!("{key} went back from {before} to {value}"));
        }
        let mut seen = self.0.lock().unwrap_or_else(|e| e.into_inner());
        let highest = seen.entry(key.to_owned()).or_default();
        *highest = value.max(*highest);
        Ok(())
    }

    fn highest(&self, key: &str) -> u64 {
        self.0.lock().unwrap_or_else(|e| e.into_inner()).get(key).copied().unwrap_or(0)
    }
}

/// Reads until the connection breaks.
fn read_along(port: u16, seed: u64, seen: &Seen, reads: &AtomicU64) -> Result<(), String> {
    let mut rng = Rng(seed);
    let Ok(mut client) = Client::connect(port) else { return Ok(()) };
    loop {
        let writer = 1 + rng.below(WRITERS as u64 - 1);
        let keys = if rng.one_in(2) {
            vec![format!("c{writer}:{}", rng.below(5))]
        } else {
            vec![format!("p{writer}:a"), format!("p{writer}:b")]
        };
        let before: Vec<u64> = keys.iter().map(|key| seen.highest(key)).collect();
        let mut args = vec!["MGET".to_owned()];
        args.extend(keys.iter().cloned());
        let Ok(reply) = client.try_call(&args) else { return Ok(()) };
        let values: Vec<u64> = reply.items().iter().map(|v| number(v.bytes().unwrap_or_default())).collect();
        if values.len() != keys.len() || values.iter().any(|v| *v != values[0]) {
            return Err(format!("a torn read of {keys:?}: {reply:?}"));
        }
        for ((key, before), value) in keys.iter().zip(before).zip(values) {
            seen.note(key, before, value)?;
        }
        reads.fetch_add(1, Ordering::Relaxed);
    }
}

/// Everything the restarted server must agree with.
fn verify(server: &Server, writers: &mut [Writer], seen: &Seen) -> Result<(), String> {
    let mut client = server.client();
    for writer in writers.iter_mut() {
        writer.verify(&mut client)?;
    }
    client.call("SELECT 0");
    let keys: Vec<String> = seen.0.lock().unwrap_or_else(|e| e.into_inner()).keys().cloned().collect();
    for key in keys {
        let value = number(client.call(&format!("GET {key}")).bytes().unwrap_or_default());
        seen.note(&key, seen.highest(&key), value).map_err(|e| format!("after the restart {e}"))?;
    }
    for database in 0..2 {
        let expected: usize = writers.iter().filter(|w| w.database() == database).map(|w| w.base.len()).sum();
        client.call(&format!("SELECT {database}"));
        // Keys outside of the model have at most SHORT_MS to go, and leave by the sweep.
        let start = Instant::now();
        loop {
            let (counted, scanned) = (client.call("DBSIZE").int(), scan(&mut client));
            if counted == i64::try_from(expected).ok() && scanned == expected {
                break;
            }
            if start.elapsed() > PATIENCE {
                return Err(format!("db{database}: DBSIZE {counted:?}, SCAN finds {scanned}, expected {expected}"));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(())
}

fn scan(client: &mut Client) -> usize {
    let mut found = BTreeSet::new();
    let mut cursor = "0".to_owned();
    loop {
        let reply = client.call(&format!("SCAN {cursor} COUNT 200"));
        cursor = reply.items()[0].text();
        found.extend(reply.items()[1].items().iter().map(Value::text));
        if cursor == "0" {
            return found.len();
        }
    }
}

/// One round: load until a kill, a start (some rounds: killed again, at any point of it), a look.
fn round(server: &mut Server, writers: &mut [Writer], seen: &Arc<Seen>, rng: &mut Rng) -> Result<(), String> {
    let port = server.port();
    let failed = AtomicBool::new(false);
    let reads = AtomicU64::new(0);
    let alive_ms = 50 + rng.below(700);
    let mut results = Vec::new();
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for writer in writers.iter_mut() {
            let failed = &failed;
            threads.push(scope.spawn(move || {
                let result = writer.run(port);
                failed.fetch_or(result.is_err(), Ordering::Relaxed);
                result
            }));
        }
        for _ in 0..READERS {
            let (seen, reads, seed) = (seen.clone(), &reads, rng.next());
            threads.push(scope.spawn(move || read_along(port, seed, &seen, reads)));
        }
        thread::sleep(Duration::from_millis(alive_ms));
        server.kill9();
        results.extend(threads.into_iter().map(|t| t.join().unwrap_or_else(|_| Err("a client panicked".into()))));
    });
    results.into_iter().collect::<Result<Vec<()>, String>>()?;
    while rng.one_in(3) {
        server.spawn();
        thread::sleep(Duration::from_millis(rng.below(120)));
        server.kill9();
    }
    server.spawn();
    server.wait_ready();
    verify(server, writers, seen)
}

fn rounds_of(appendfsync: &str) {
    let rounds: u64 = std::env::var("TARN_CRASH_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(3);
    let seed = seed_from("TARN_CRASH_SEED");
    let is_tarn = Kind::Tarn.binary().is_some_and(|path| path.ends_with("tarn"));
    let mut args = vec!["--appendfsync", appendfsync];
    if is_tarn {
        args.extend(["--dirty-budget", "1mb", "--log-max-size", "4mb"]);
    } else {
        args.extend(["--appendonly", "yes"]);
    }
    let mut server = Server::tarn(&args);
    let mut rng = Rng(seed);
    let mut writers: Vec<Writer> = (0..WRITERS).map(|id| Writer::new(id, seed)).collect();
    let seen = Arc::new(Seen::default());
    for n in 1..=rounds {
        if let Err(text) = round(&mut server, &mut writers, &seen, &mut rng) {
            panic!("appendfsync {appendfsync}, round {n}, TARN_CRASH_SEED={seed}: {text}");
        }
    }
    let acknowledged: u64 = writers.iter().map(|w| w.acknowledged).sum();
    assert!(acknowledged > rounds * 10, "only {acknowledged} writes were acknowledged in {rounds} rounds");
    eprintln!("appendfsync {appendfsync}: {rounds} rounds, {acknowledged} acknowledged writes, seed {seed}");
}

#[test]
fn nothing_acknowledged_is_lost_with_appendfsync_always() {
    rounds_of("always");
}

#[test]
fn nothing_acknowledged_is_lost_with_appendfsync_everysec() {
    rounds_of("everysec");
}

#[test]
fn nothing_acknowledged_is_lost_with_appendfsync_no() {
    rounds_of("no");
}
