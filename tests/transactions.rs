//! Transfers by many clients at once, with WATCH and by scripts: what they do together is as if each that ran had run alone, also
//! where keys are on disk only and where the server is killed in between; and what is watched is forgotten when its client is done.
//!
//! `TARN_TRANSACTIONS_ROUNDS` is the number of kills in each fsync mode (2).

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::Barrier;
use std::time::{Duration, Instant};

use common::resp::{Client, Gone, Value};
use common::rng::{Rng, seed_from};
use common::server::{Kind, Server};

const ACCOUNTS: u64 = 60;
const EACH: i64 = 1000;
const CLIENTS: u64 = 4;
const SERVERS: [Kind; 2] = [Kind::Tarn, Kind::ScaledTarn];

/// The account's number, padded so that few of them fit into memory.
fn padded(amount: i64) -> String {
    format!("{amount} {}", "x".repeat(20_000))
}

fn amount(value: &Value) -> i64 {
    value.text().split(' ').next().and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{value:?}"))
}

fn call(client: &mut Client, args: &[&str]) -> Result<Value, Gone> {
    client.try_call(args)
}

/// The same by a script, which changes what stands before the padding.
const SCRIPT: &str = "local function change(key, by) \
                          local amount, padding = redis.call('get', key):match('^(-?%d+) (.*)$') \
                          redis.call('set', key, string.format('%d %s', amount + by, padding)) \
                      end \
                      change(KEYS[1], -ARGV[1]) change(KEYS[2], ARGV[1]) return 1";

/// Moves something from one account to another; whether nobody came between.
fn transfer(client: &mut Client, rng: &mut Rng) -> Result<bool, Gone> {
    let (from, to) = (rng.below(ACCOUNTS), rng.below(ACCOUNTS));
    let (from, to) = (format!("account{from}"), format!("account{to}"));
    if from == to {
        return Ok(true);
    }
    call(client, &["WATCH", &from, &to])?;
    if rng.one_in(3) {
        call(client, &["UNWATCH"])?;
        let moved = (1 + rng.below(9)).to_string();
        return Ok(call(client, &["EVAL", SCRIPT, "2", &from, &to, &moved])?.int() == Some(1));
    }
    let had = call(client, &["MGET", &from, &to])?;
    let [a, b] = [0, 1].map(|at| amount(&had.items()[at]));
    let moved = 1 + rng.below(9) as i64;
    call(client, &["MULTI"])?;
    call(client, &["SET", &from, &padded(a - moved)])?;
    call(client, &["SET", &to, &padded(b + moved)])?;
    Ok(call(client, &["EXEC"])?.items().len() == 2)
}

fn sum(client: &mut Client) -> Result<i64, Gone> {
    let names: Vec<String> = (0..ACCOUNTS).map(|n| format!("account{n}")).collect();
    let args: Vec<&str> = std::iter::once("MGET").chain(names.iter().map(String::as_str)).collect();
    Ok(call(client, &args)?.items().iter().map(amount).sum())
}

fn open_accounts(client: &mut Client) {
    for n in 0..ACCOUNTS {
        call(client, &["SET", &format!("account{n}"), &padded(EACH)]).unwrap();
    }
    // What comes after them pushes them out of memory.
    for n in 0..1500 {
        call(client, &["SET", &format!("other{n}"), &padded(n)]).unwrap();
    }
    client.call("SAVE");
}

const SMALL: [&str; 6] = ["--maxmemory", "16mb", "--block-cache-size", "1mb", "--shards", "8"];

#[test]
fn transfers_neither_make_nor_lose_anything() {
    for kind in SERVERS {
        let server = Server::built(kind, &SMALL);
        open_accounts(&mut server.client());
        let seed = seed_from("TARN_TRANSACTIONS_SEED");
        let ran = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..CLIENTS)
                .map(|n| {
                    let (mut client, mut rng) = (server.client(), Rng(seed + n));
                    scope.spawn(move || (0..150).filter(|_| transfer(&mut client, &mut rng).unwrap()).count())
                })
                .collect();
            let mut reader = server.client();
            while !threads.iter().all(|thread| thread.is_finished()) {
                assert_eq!(sum(&mut reader).unwrap(), ACCOUNTS as i64 * EACH, "seed {seed}");
            }
            threads.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>()
        });
        assert_eq!(sum(&mut server.client()).unwrap(), ACCOUNTS as i64 * EACH, "seed {seed}");
        assert!(ran > 0, "none of them ran");
    }
}

#[test]
fn a_kill_between_transfers_leaves_them_whole() {
    let rounds = std::env::var("TARN_TRANSACTIONS_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(2);
    for mode in ["always", "everysec", "no"] {
        kill_between_transfers(mode, rounds);
    }
}

fn kill_between_transfers(mode: &str, rounds: u64) {
    let mut server = Server::built(Kind::Tarn, &[&SMALL[..], &["--appendfsync", mode]].concat());
    open_accounts(&mut server.client());
    let seed = seed_from("TARN_TRANSACTIONS_SEED");
    for round in 0..rounds {
        std::thread::scope(|scope| {
            for n in 0..CLIENTS {
                let (mut client, mut rng) = (server.client(), Rng(seed + round * CLIENTS + n));
                scope.spawn(move || while transfer(&mut client, &mut rng).is_ok() {});
            }
            std::thread::sleep(Duration::from_millis(150));
            server.kill9();
        });
        server.restart_after_kill();
        assert_eq!(sum(&mut server.client()).unwrap(), ACCOUNTS as i64 * EACH, "seed {seed}, round {round}");
    }
}

/// Each looks at what the other one writes: had both run at once, none would be left.
#[test]
fn of_two_that_watch_what_the_other_writes_one_fails() {
    for kind in SERVERS {
        let server = Server::built(kind, &["--shards", "8"]);
        let barrier = Barrier::new(2);
        let on_call = |mine: &'static str, other: &'static str| {
            let (mut client, barrier) = (server.client(), &barrier);
            move || {
                for round in 0..400 {
                    let [mine, other] = [mine, other].map(|name| format!("{name}{round}"));
                    call(&mut client, &["SET", &mine, "1"]).unwrap();
                    barrier.wait();
                    call(&mut client, &["WATCH", &other]).unwrap();
                    let leaves = call(&mut client, &["GET", &other]).unwrap().text() == "1";
                    call(&mut client, &["MULTI"]).unwrap();
                    if leaves {
                        call(&mut client, &["SET", &mine, "0"]).unwrap();
                    }
                    call(&mut client, &["EXEC"]).unwrap();
                    barrier.wait();
                    let both = call(&mut client, &["MGET", &mine, &other]).unwrap();
                    assert!(both.items().iter().any(|value| value.text() == "1"), "round {round}: nobody is left");
                }
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(on_call("a", "b"));
            scope.spawn(on_call("b", "a"));
        });
    }
}

#[test]
fn what_is_watched_is_forgotten_when_its_client_is_done() {
    for kind in SERVERS {
        let server = Server::built(kind, &["--shards", "8"]);
        let mut client = server.client();
        let watching =
            |client: &mut Client| ["watching_clients", "total_watched_keys"].map(|name| client.info("clients", name));
        let until = |client: &mut Client, expected: [u64; 2]| {
            let began = Instant::now();
            while watching(client) != expected {
                assert!(began.elapsed() < Duration::from_secs(20), "{:?}, not {expected:?}", watching(client));
                std::thread::sleep(Duration::from_millis(2));
            }
        };
        let mut others: Vec<Client> = (0..50).map(|_| server.client()).collect();
        let keys: Vec<String> = (0..40).map(|n| format!("k{n}")).collect();
        let all = format!("WATCH {}", keys.join(" "));
        // All of them watch forty keys, each one of its own besides.
        let watch = |others: &mut Vec<Client>| {
            for (n, other) in others.iter_mut().enumerate() {
                other.call(&format!("{all} own{n} k1"));
            }
        };
        watch(&mut others);
        assert_eq!(watching(&mut client), [50, 90]);
        assert!(client.call("CLIENT LIST").text().contains(" watch=41 "));
        for end in ["UNWATCH", "moved", "MULTI DISCARD", "MULTI EXEC", "RESET", "SET k1 x", "leaves"] {
            match end {
                "leaves" => others.clear(),
                // It is watched under another id by now, and let go under that.
                "moved" => ["SET some key", "FLUSHDB", "SWAPDB 0 1"].iter().for_each(|change| _ = client.call(change)),
                _ => {}
            }
            for other in &mut others {
                match end.split_once(' ') {
                    Some(("MULTI", end)) => {
                        other.call("MULTI");
                        other.call(end);
                    }
                    _ if end == "moved" => _ = other.call("UNWATCH"),
                    _ => _ = other.call(end),
                }
            }
            if end.starts_with("SET") {
                // Who was told is still to end its transaction.
                until(&mut client, [50, 89]);
                assert!(others[0].call("MULTI").text() == "OK" && others[0].call("EXEC") == Value::NilArray);
            } else {
                until(&mut client, [0, 0]);
                watch(&mut others);
            }
        }
    }
}

/// What is kept of the commands that one has run is let go with its reply: a connection does not fill up with them.
#[test]
fn one_after_the_other_they_are_answered_however_long_they_are() {
    const LONG: usize = 10_000;
    let server = Server::built(Kind::Tarn, &[]);
    let mut client = server.client();
    client.call("CONFIG RESETSTAT");
    for _ in 0..4 {
        let queue = common::resp::encode(&["PING"]).repeat(LONG);
        client.call("MULTI");
        client.send_raw(&queue).unwrap();
        (0..LONG).for_each(|_| assert_eq!(client.read().unwrap().text(), "QUEUED"));
        assert_eq!(client.call("EXEC").items().len(), LONG);
    }
    assert!(client.call("INFO commandstats").text().contains(&format!("cmdstat_ping:calls={},", 4 * LONG)));
}

/// What is refused for its size leaves what was watched before, and is told as every request that is too large.
#[test]
fn a_client_watches_so_much_and_no_more() {
    let server = Server::built(Kind::Tarn, &["--maxmemory", "64mb"]);
    let (mut client, mut other) = (server.client(), server.client());
    client.call("WATCH first");
    let refused = (0..200).find_map(|n| {
        let reply = call(&mut client, &["WATCH", &format!("{n}{}", "k".repeat(100_000))]).unwrap();
        reply.is_error().then(|| (n, reply.text()))
    });
    let (n, text) = refused.unwrap();
    assert!(n > 10 && text.starts_with("OOM command needs more memory"), "{n}: {text}");
    assert_eq!(other.info("clients", "total_watched_keys"), n + 1);
    other.call("SET first x");
    client.call("MULTI");
    assert_eq!(client.call("EXEC"), Value::NilArray);
}
