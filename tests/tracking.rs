//! Client-side caching with many at once: once nobody writes any more, no copy is out of date, wherever keys were read from.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::resp::{Client, Value, encode};
use common::rng::{Rng, seed_from};
use common::server::{Kind, Server};
use common::wait::until;

const KEYS: u64 = 400;
/// Rounds until enough copies were compared. The first is enough but on a machine that has other things to do.
const MOST_ROUNDS: usize = 50;

/// A client that keeps copies, as libraries do: of what it has asked for, until it is told that it has changed.
struct Cacher {
    client: Client,
    copies: HashMap<String, Value>,
    told: usize,
}

impl Cacher {
    fn new(server: &Server, how: &str) -> Cacher {
        let mut client = server.client();
        client.call("HELLO 3");
        let on = client.call(format!("CLIENT TRACKING ON {how}").trim());
        assert_eq!(on.text(), "OK");
        Cacher { client, copies: HashMap::new(), told: 0 }
    }

    /// The next reply; what comes before it is taken in.
    fn reply(&mut self) -> Value {
        loop {
            match self.client.read().unwrap() {
                Value::Push(parts) => {
                    assert_eq!(parts[0].text(), "invalidate");
                    self.told += 1;
                    parts[1].items().iter().for_each(|key| _ = self.copies.remove(&key.text()));
                    if parts[1].is_nil() {
                        self.copies.clear();
                    }
                }
                reply => break reply,
            }
        }
    }

    /// Reads some keys at once, in one of several ways.
    fn look(&mut self, rng: &mut Rng) {
        let keys: Vec<String> = (0..1 + rng.below(4)).map(|_| format!("k{}", rng.below(KEYS))).collect();
        let values = match rng.below(4) {
            0 => {
                let requests: Vec<u8> = keys.iter().flat_map(|key| encode(&["GET", key])).collect();
                self.client.send_raw(&requests).unwrap();
                for key in &keys {
                    let value = self.reply();
                    self.copies.insert(key.clone(), value);
                }
                return;
            }
            1 => {
                let script =
                    "local all = {} for i, key in ipairs(KEYS) do all[i] = redis.call('get', key) end return all";
                let count = keys.len().to_string();
                let args = ["EVAL", script, &count].into_iter().chain(keys.iter().map(String::as_str));
                self.client.send_raw(&encode(&args.collect::<Vec<_>>())).unwrap();
                self.reply()
            }
            2 => {
                let gets = keys.iter().flat_map(|key| encode(&["GET", key]));
                let requests: Vec<u8> = encode(&["MULTI"]).into_iter().chain(gets).chain(encode(&["EXEC"])).collect();
                self.client.send_raw(&requests).unwrap();
                (0..=keys.len()).for_each(|_| _ = self.reply());
                self.reply()
            }
            _ => {
                let args = ["MGET"].into_iter().chain(keys.iter().map(String::as_str));
                self.client.send_raw(&encode(&args.collect::<Vec<_>>())).unwrap();
                self.reply()
            }
        };
        for (key, value) in keys.into_iter().zip(values.items()) {
            self.copies.insert(key, value.clone());
        }
    }
}

fn change(client: &mut Client, rng: &mut Rng, padding: &str) {
    let [a, b] = [0, 1].map(|_| format!("k{}", rng.below(KEYS)));
    let value = format!("{} {padding}", rng.below(1 << 30));
    let args: Vec<&str> = match rng.below(12) {
        0..6 => vec!["SET", &a, &value],
        6..8 => vec!["MSET", &a, &value, &b, &value],
        8 => vec!["DEL", &a],
        9 => vec!["RENAME", &a, &b],
        10 => vec!["SET", &a, &value, "PX", "30"],
        _ => vec!["EVAL", "redis.call('set', KEYS[1], ARGV[1]) redis.call('del', KEYS[2])", "2", &a, &b, &value],
    };
    client.try_call(&args).unwrap();
}

/// Each of them reads so often, while others change what it reads.
fn look_while_keys_change(server: &Server, cachers: &mut [Cacher], rng: &mut Rng, padding: &str) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let (mut client, mut rng, done) = (server.client(), Rng(rng.next()), &done);
            scope.spawn(move || {
                while !done.load(Ordering::SeqCst) {
                    change(&mut client, &mut rng, padding);
                }
            });
        }
        let looking: Vec<_> = cachers
            .iter_mut()
            .map(|cacher| {
                let mut rng = Rng(rng.next());
                scope.spawn(move || (0..1000).for_each(|_| cacher.look(&mut rng)))
            })
            .collect();
        looking.into_iter().for_each(|thread| thread.join().unwrap());
        done.store(true, Ordering::SeqCst);
    });
}

#[test]
fn no_copy_stays_out_of_date() {
    let seed = seed_from("TARN_TRACKING_SEED");
    for kind in [Kind::Tarn, Kind::ScaledTarn] {
        // Keys that are read elsewhere, as they do not fit into memory, by threads that leave commands to each other.
        let small = ["--maxmemory", "32mb", "--block-cache-size", "1mb", "--shards", "4", "--io-threads", "4"];
        let server = Server::built(kind, &small);
        let padding = "x".repeat(60_000);
        let mut rng = Rng(seed);
        let mut fill = server.client();
        fill.call("HELLO 3");
        (0..KEYS).for_each(|n| _ = fill.try_call(&["SET", &format!("k{n}"), &padding]).unwrap());
        let mut cachers: Vec<Cacher> =
            ["", "NOLOOP", "BCAST PREFIX k", "", "BCAST"].iter().map(|how| Cacher::new(&server, how)).collect();
        // How many copies are left to compare when the changes end is chance, however many were read.
        let mut compared = 0;
        for _ in 0..MOST_ROUNDS {
            if compared > 100 {
                break;
            }
            look_while_keys_change(&server, &mut cachers, &mut rng, &padding[..20_000]);
            for cacher in &mut cachers {
                // What was to expire does within a moment; every copy that is out of date by then is told of.
                until("all copies are as the keys are", || {
                    cacher.client.send_raw(&encode(&["PING"])).unwrap();
                    cacher.reply();
                    cacher.copies.iter().all(|(key, copy)| *copy == fill.try_call(&["GET", key]).unwrap())
                });
                compared += cacher.copies.len();
            }
        }
        assert!(compared > 100 && cachers.iter().all(|cacher| cacher.told > 0), "{compared}, seed {seed}");
        // Nothing is left of who has gone but what goes with the next change of each key.
        drop(cachers);
        until("nobody keeps copies", || fill.info("clients", "tracking_clients") == 0);
        fill.call("FLUSHALL");
        assert_eq!(fill.info("stats", "tracking_total_prefixes"), 0);
    }
}

/// So many keys are remembered and no more; who is forgotten is told.
#[test]
fn what_is_remembered_is_bounded() {
    let server = Server::built(Kind::Tarn, &["--tracking-table-max-keys", "1000"]);
    let mut cacher = Cacher::new(&server, "");
    for n in 0..5000 {
        cacher.client.send_raw(&encode(&["GET", &format!("key{n}")])).unwrap();
        let value = cacher.reply();
        cacher.copies.insert(format!("key{n}"), value);
    }
    let mut client = server.client();
    assert!(client.info("stats", "tracking_total_keys") <= 1000);
    cacher.client.send_raw(&encode(&["PING"])).unwrap();
    cacher.reply();
    until("it was told", || {
        cacher.client.send_raw(&encode(&["PING"])).unwrap();
        cacher.reply();
        cacher.copies.len() <= 1000
    });
}

/// What a served XREAD has read is told of after its reply.
#[test]
fn a_notice_does_not_overtake_the_reply_of_one_who_was_served() {
    let server = Server::built(Kind::Tarn, &["--io-threads", "4"]);
    let mut cacher = Cacher::new(&server, "");
    let mut writer = server.client();
    for round in 0..200 {
        cacher.client.send_raw(&encode(&["XREAD", "BLOCK", "0", "STREAMS", "s", "$"])).unwrap();
        until("it waits", || writer.info("clients", "blocked_clients") == 1);
        let add = encode(&["XADD", "s", "*", "f", "v"]);
        let requests: Vec<u8> =
            [&add, &encode(&["SET", "t", "v"]), &add, &add].into_iter().flatten().copied().collect();
        writer.send_raw(&requests).unwrap();
        (0..4).for_each(|_| _ = writer.read().unwrap());
        cacher.reply();
        // The entries that came behind the first make the reply out of date.
        let told = cacher.told;
        until(&format!("round {round}: it is told"), || {
            cacher.client.send_raw(&encode(&["PING"])).unwrap();
            cacher.reply();
            cacher.told > told
        });
    }
}

/// Who waits for a key has no reply to come that a notice could overtake, and may have copies all the while.
#[test]
fn who_waits_for_a_key_is_told_meanwhile() {
    let server = Server::built(Kind::Tarn, &[]);
    let mut writer = server.client();
    for how in ["", "BCAST"] {
        let mut cacher = Cacher::new(&server, how);
        cacher.client.set_timeout(Duration::from_secs(20));
        for wait in
            [&["BLPOP", "list", "0"][..], &["BZPOPMIN", "zset", "0"], &["XREAD", "BLOCK", "0", "STREAMS", "s", "$"]]
        {
            cacher.client.send_raw(&encode(&["GET", "k"])).unwrap();
            cacher.reply();
            cacher.client.send_raw(&encode(wait)).unwrap();
            until("it waits", || writer.info("clients", "blocked_clients") == 1);
            writer.call("SET k v");
            loop {
                match cacher.client.read() {
                    Ok(Value::Push(parts)) if parts[1].items().iter().any(|key| key.text() == "k") => break,
                    // Of what has served it before.
                    Ok(Value::Push(_)) => {}
                    other => panic!("{how} {wait:?}: {other:?} comes first"),
                }
            }
            assert_eq!(writer.info("clients", "blocked_clients"), 1, "and waits on");
            for serve in ["RPUSH list x", "ZADD zset 1 x", "XADD s * f v"] {
                writer.call(serve);
            }
            cacher.reply();
            writer.call("DEL list zset s");
        }
        drop(cacher);
        until("it is gone", || writer.info("clients", "tracking_clients") == 0);
    }
}
