//! Linearizability: whatever many clients do at once, each operation seems to happen at one moment between its request and its
//! reply. What they ask and are answered is recorded, and a search looks for an order that explains it (`histories/search.rs`).
//!
//! Commands of all kinds on few keys, transactions, WATCH, scripts, waits and pipelines, while others push the keys out of memory
//! and flushes run. Some rounds keep to commands of one key, whose histories fall into small parts; some have all keys in one
//! shard, where who waits is served at once.
//!
//! `TARN_HISTORIES_SECONDS` sets the length (16 s), `TARN_HISTORIES_SEED` what clients choose; how they meet is chance.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;
mod histories {
    pub(crate) mod faults;
    pub(crate) mod known;
    pub(crate) mod operations;
    pub(crate) mod search;
    pub(crate) mod sequential;
}

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::resp::{Client, encode};
use common::rng::{Rng, seed_from};
use common::server::{Kind, Server, notice};
use histories::operations::{Chooser, KEYS, Op, Prefix, look_at_all, plain, remove_all};
use histories::search::{Done, History, Service, Verdict};
use histories::sequential::{State, Token};

const SERVERS: [Kind; 2] = [Kind::Tarn, Kind::ScaledTarn];
/// What is around the keys does not fit into memory; shards enough for them to be in several, and threads that get in each other's way.
const SMALL: [&str; 8] = ["--maxmemory", "32mb", "--block-cache-size", "1mb", "--shards", "8", "--io-threads", "4"];
const CLIENTS: usize = 7;
/// Steps of a client in a round: single operations, pipelines, transactions with WATCH.
const EACH: usize = 20;
const PADDING: u64 = 1500;

/// What a round is like.
#[derive(Clone, Copy)]
struct Round {
    number: u64,
    seed: u64,
    prefix: Prefix,
    service: Service,
    single: bool,
}

impl Round {
    fn of(kind: Kind, seed: u64, number: u64) -> Round {
        let (one_shard, single) = (number.is_multiple_of(2), number % 6 < 2);
        let prefix = Prefix(if one_shard { "{t}" } else { "k" });
        // Scaled, already short lists are gone through in slices: one that waits for several keys may then be held up by one of them.
        let at_once = one_shard && (single || kind == Kind::Tarn);
        Round { number, seed, prefix, service: if at_once { Service::AtOnce } else { Service::Soon }, single }
    }

    /// What a client does, and what it was answered.
    fn client(self, client: &mut Client, number: usize, began: Instant) -> Vec<Done> {
        let rng = Rng(self.seed ^ (self.number * 1000 + number as u64).wrapping_mul(0x9e37_79b9));
        // No two clients write the same, nor does one in some hundred rounds.
        let token = ((self.number % 400) * CLIENTS as u64 + number as u64) as Token * 500;
        let mut chooser = Chooser { rng, token, single: self.single };
        let mut all = Vec::new();
        for _ in 0..EACH {
            for ops in chooser.next() {
                all.extend(self.at_once(client, ops, began));
            }
        }
        all
    }

    /// Sends some operations in one piece.
    fn at_once(self, client: &mut Client, ops: Vec<Op>, began: Instant) -> Vec<Done> {
        let requests: Vec<Vec<Vec<String>>> = ops.iter().map(|op| op.requests(self.prefix)).collect();
        let bytes: Vec<u8> = requests.iter().flatten().flat_map(|words| encode(words)).collect();
        let asked = began.elapsed().as_nanos() as u64;
        client.send_raw(&bytes).unwrap();
        let answer = |(op, requests): (Op, Vec<Vec<String>>)| {
            let reply = requests.iter().map(|_| client.read().unwrap()).last().unwrap();
            let answered = began.elapsed().as_nanos() as u64;
            Done { op, reply: plain(reply, self.prefix), asked, answered, waited: None }
        };
        ops.into_iter().zip(requests).map(answer).collect()
    }

    /// All clients at once, while the last one sees who waits; then that one looks at everything.
    fn record(self, clients: &mut [Client], start: &State) -> History {
        let (barrier, began) = (Barrier::new(CLIENTS), Instant::now());
        let [clients @ .., last] = clients else { unreachable!("somebody is there") };
        let ids: Vec<i64> = clients.iter_mut().map(|client| client.call("CLIENT ID").int().unwrap()).collect();
        let (mut done, seen) = std::thread::scope(|scope| {
            let threads: Vec<_> = clients
                .iter_mut()
                .enumerate()
                .map(|(number, client)| {
                    let barrier = &barrier;
                    scope.spawn(move || {
                        barrier.wait();
                        self.client(client, number, began)
                    })
                })
                .collect();
            let mut seen = Vec::new();
            while !threads.iter().all(|thread| thread.is_finished()) {
                seen.push(Sight::new(last, &ids, began));
            }
            let done: Vec<Vec<Done>> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            (done, seen)
        });
        seen.iter().for_each(|sight| sight.note(&mut done));
        done.push(self.at_once(last, look_at_all(), began));
        History { start: start.clone(), clients: done, service: self.service }
    }
}

/// Who was seen to wait, and between which moments.
struct Sight {
    asked: u64,
    answered: u64,
    waiting: Vec<usize>,
}

impl Sight {
    fn new(client: &mut Client, ids: &[i64], began: Instant) -> Sight {
        let now = || began.elapsed().as_nanos() as u64;
        let names: Vec<String> = ids.iter().map(i64::to_string).collect();
        let asked = now();
        let list = client.call(&format!("CLIENT LIST ID {}", names.join(" "))).text();
        let answered = now();
        let waits = |name: &String| {
            let begin = format!("id={name} ");
            list.lines().any(|line| line.starts_with(&begin) && line.contains(" flags=b "))
        };
        Sight { asked, answered, waiting: (0..ids.len()).filter(|&n| waits(&names[n])).collect() }
    }

    /// Tells the operations that were seen; where a client may have been seen with one of several, none.
    fn note(&self, done: &mut [Vec<Done>]) {
        for &client in &self.waiting {
            let waits = |done: &&mut Done| {
                let then = done.asked <= self.answered && self.asked <= done.answered;
                then && !done.op.waits_for().is_empty()
            };
            let mut all: Vec<&mut Done> = done[client].iter_mut().filter(waits).collect();
            if let [one] = &mut all[..] {
                one.waited.get_or_insert(self.answered.min(one.answered));
            }
        }
    }
}

/// The states that explain all parts of a history, put together; `None` where the search gave up.
fn explain(history: &History) -> Result<Option<State>, String> {
    let mut end = history.start.clone();
    for part in history.parts() {
        match part.check() {
            Verdict::Linearizable(state) => {
                let keys = part.clients.iter().flatten().flat_map(|done| done.op.keys());
                keys.for_each(|key| end.keys[key].clone_from(&state.keys[key]));
            }
            Verdict::Refused(why) => return Err(why),
            Verdict::Undecided => return Ok(None),
        }
    }
    Ok(Some(end))
}

/// Reads and writes what fills the memory, and has the server flush now and then, until all is done.
fn push_out_of_memory(server: &Server, seed: u64, done: &AtomicBool) {
    let (mut client, mut rng) = (server.client(), Rng(seed));
    let value = "x".repeat(20_000);
    for n in 0..PADDING {
        client.try_call(&["SET", &format!("padding{n}"), &value]).unwrap();
    }
    while !done.load(Ordering::SeqCst) {
        let name = format!("padding{}", rng.below(PADDING));
        match rng.below(200) {
            0 => client.try_call(&["SAVE"]),
            1..=40 => client.try_call(&["SET", &name, &value]),
            _ => client.try_call(&["GET", &name]),
        }
        .unwrap();
    }
}

fn seconds() -> u64 {
    std::env::var("TARN_HISTORIES_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(16)
}

/// What was done, and in how many rounds no order was found in time.
#[derive(Default)]
struct Told {
    histories: usize,
    operations: usize,
    undecided: usize,
    /// Of those that wait, how many were served and how many left with nothing.
    waits: [usize; 2],
    /// How many were seen to wait.
    seen: usize,
}

impl Told {
    fn add(&mut self, history: &History) {
        self.histories += 1;
        self.operations += history.count();
        for done in history.clients.iter().flatten().filter(|done| !done.op.waits_for().is_empty()) {
            self.waits[usize::from(done.reply.is_nil())] += 1;
            self.seen += usize::from(done.waited.is_some());
        }
    }
}

/// Rounds as long as somebody wants more, each with what it began with and where it led.
fn rounds(server: &Server, kind: Kind, seed: u64, mut wants: impl FnMut(&History) -> bool) -> Told {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| push_out_of_memory(server, seed, &done));
        // Also where a round fails.
        let _done = Finally(&done);
        let mut clients: Vec<Client> = (0..=CLIENTS).map(|_| server.client()).collect();
        let mut states = [State::new(KEYS, CLIENTS + 1), State::new(KEYS, CLIENTS + 1)];
        let mut told = Told::default();
        for number in 0.. {
            let round = Round::of(kind, seed, number);
            let state = &mut states[(number % 2) as usize];
            let history = round.record(&mut clients, state);
            told.add(&history);
            *state = match explain(&history) {
                Ok(Some(end)) => end,
                Ok(None) => {
                    told.undecided += 1;
                    round.at_once(&mut clients[CLIENTS], remove_all(), Instant::now());
                    State::new(KEYS, CLIENTS + 1)
                }
                Err(why) => panic!("TARN_HISTORIES_SEED={seed}, round {number}: no order explains this: {why}"),
            };
            if !wants(&history) {
                break;
            }
        }
        told
    })
}

/// Sets it when it goes.
struct Finally<'a>(&'a AtomicBool);

impl Drop for Finally<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn what_many_clients_do_at_once_is_as_if_they_did_it_in_turn() {
    let seed = seed_from("TARN_HISTORIES_SEED");
    for kind in SERVERS {
        let server = Server::built(kind, &SMALL);
        let (began, time) = (Instant::now(), Duration::from_secs(seconds()) / 2);
        let told = rounds(&server, kind, seed, |_| began.elapsed() < time);
        let reads = server.client().info("tarn", "tarn_store_reads");
        let Told { histories, operations, undecided, waits: [served, vain], seen } = told;
        notice(&format!(
            "{}: {histories} histories, {undecided} of them undecided, {operations} operations, \
             {served} waits served, {vain} in vain, {seen} seen, {reads} reads of the store",
            kind.title()
        ));
        assert!(undecided * 20 <= histories, "{undecided} of {histories} histories are undecided");
        assert!(served > 0 && vain > 0 && seen > 0 && reads > 0, "hardly anything happened");
    }
}
