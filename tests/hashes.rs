//! Hashes beyond what a script can tell: random picks are even, and hashes of any size, in memory or on disk, with times of
//! fields or without, answer like a model.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use common::resp::{Client, Value};
use common::rng::{Rng, seed_from};
use common::server::Server;
use common::wait::until;

/// A command's reply, which must be no error.
fn call<A: AsRef<str>>(client: &mut Client, args: &[A]) -> Value {
    let args: Vec<&str> = args.iter().map(AsRef::as_ref).collect();
    let reply = client.try_call(&args).unwrap_or_else(|gone| panic!("{}: {gone:?}", args[0]));
    assert!(!reply.is_error(), "{}: {}", args[0], reply.text());
    reply
}

fn texts(reply: &Value) -> Vec<String> {
    reply.items().iter().map(Value::text).collect()
}

/// Sets these fields to themselves.
fn fill(client: &mut Client, key: &str, fields: impl IntoIterator<Item = String>) {
    let fields: Vec<String> = fields.into_iter().collect();
    for some in fields.chunks(1000) {
        let pairs = some.iter().flat_map(|field| [field.as_str(), field]);
        call(client, &["HSET", key].into_iter().chain(pairs).collect::<Vec<_>>());
    }
}

/// Pearson's statistic must stay within six standard deviations of what even picks bring: mean n − 1, variance 2 (n − 1).
/// Picks without repetition spread less.
fn assert_even(picks: &[String], members: usize, groups: usize, what: &str) {
    let mut counts = vec![0_u64; groups];
    for pick in picks {
        let number: usize = pick.parse().unwrap_or_else(|_| panic!("a field, not {pick:?}"));
        counts[number * groups / members] += 1;
    }
    let freedom = groups as f64 - 1.0;
    let expected = picks.len() as f64 / groups as f64;
    let chi_square: f64 = counts.iter().map(|&n| (n as f64 - expected).powi(2) / expected).sum();
    assert!(chi_square < freedom + 6.0 * (2.0 * freedom).sqrt(), "{what}: {chi_square} of {counts:?}");
}

/// HRANDFIELD in every way, of a hash whose fields are numbers below `members`.
fn assert_picks_are_even(client: &mut Client, members: usize, groups: usize, what: &str) {
    let counts = [members / 20 + 1, members / 2, members * 9 / 10].map(|n| n.to_string());
    let mut ways = vec![vec![], vec!["-1000"], vec!["1"], vec!["-700", "WITHVALUES"], vec![&counts[1], "WITHVALUES"]];
    ways.extend(counts.iter().map(|count| vec![count.as_str()]));
    for args in ways {
        let mut picks = Vec::new();
        while picks.len() < groups * 100 {
            let reply = call(client, &[&["HRANDFIELD", "h"], &args[..]].concat());
            let mut these = if args.is_empty() { vec![reply.text()] } else { texts(&reply) };
            if args.len() == 2 {
                assert!(these.chunks(2).all(|pair| pair[0] == pair[1]), "each field with its value");
                these = these.into_iter().step_by(2).collect();
            }
            if args.first().is_some_and(|count| !count.starts_with('-')) {
                assert_eq!(these.iter().collect::<BTreeSet<_>>().len(), these.len(), "each field once");
                assert_eq!(these.len().to_string(), args[0]);
            }
            picks.extend(these);
        }
        assert_even(&picks, members, groups, &format!("{what}: HRANDFIELD {args:?}"));
    }
}

/// In memory and on disk.
fn assert_picks_of_a_hash_are_even(version: &str, members: usize) {
    let mut server = Server::tarn(&["--hash-encode-version", version]);
    fill(&mut server.client(), "h", (0..members).map(|n| n.to_string()));
    let what = format!("{members} fields, encode-version {version}");
    assert_picks_are_even(&mut server.client(), members, members.min(50), &what);
    server.restart();
    assert_picks_are_even(&mut server.client(), members, members.min(50), &format!("{what}, on disk"));
}

#[test]
fn picks_from_a_small_hash_are_even() {
    assert_picks_of_a_hash_are_even("0", 50);
}

#[test]
fn picks_from_a_large_hash_are_even() {
    assert_picks_of_a_hash_are_even("0", 1000);
}

#[test]
fn picks_from_a_hash_that_is_not_counted_are_even() {
    assert_picks_of_a_hash_are_even("1", 200);
}

#[test]
fn expired_fields_are_never_picked() {
    let server = Server::tarn(&["--enable-debug-command", "yes"]);
    let mut client = server.client();
    call(&mut client, &["DEBUG", "SET-ACTIVE-EXPIRE", "0"]);
    fill(&mut client, "h", (0..100).map(|n| n.to_string()));
    for n in 50..100 {
        let field = n.to_string();
        call(&mut client, &["HPEXPIRE", "h", "1", "FIELDS", "1", &field]);
    }
    std::thread::sleep(Duration::from_millis(5));
    assert_picks_are_even(&mut client, 50, 50, "half of the fields expired");
    assert_eq!(call(&mut client, &["HLEN", "h"]).int(), Some(50));
}

/// Fields by name, with their values and times in Unix ms, 0 for none.
type Fields = BTreeMap<String, (String, u64)>;

const SIZES: [u64; 5] = [4, 50, 400, 1500, 4000];

/// Names that hashes have in common; some are longer than what stands in a key.
fn name(number: u64) -> String {
    if number.is_multiple_of(97) { format!("{}{number}", "long".repeat(600)) } else { format!("field:{number}") }
}

struct World {
    server: Server,
    client: Client,
    model: Vec<Fields>,
    rng: Rng,
    blind: bool,
}

impl World {
    fn new(version: &str, rng: Rng) -> Self {
        let server = Server::tarn(&["--hash-encode-version", version]);
        let client = server.client();
        let mut world = World { server, client, model: Vec::new(), rng, blind: version == "1" };
        for (key, size) in SIZES.into_iter().enumerate() {
            let fields: BTreeSet<String> = (0..size).map(|_| name(world.rng.below(size * 2))).collect();
            fill(&mut world.client, &key.to_string(), fields.iter().cloned());
            world.model.push(fields.into_iter().map(|field| (field.clone(), (field, 0))).collect());
        }
        world
    }

    fn ask(&mut self, args: &[&str]) -> Value {
        call(&mut self.client, args)
    }

    /// One random command on one field; its reply is as the model has it.
    fn step(&mut self) {
        let key = self.rng.below(SIZES.len() as u64) as usize;
        let field = name(self.rng.below(SIZES[key] * 2));
        let time = 4_000_000_000_000 + self.rng.below(1000);
        let (id, value, text) = (key.to_string(), self.rng.below(1000).to_string(), time.to_string());
        let (id, value, text) = (id.as_str(), value.as_str(), text.as_str());
        let old = self.model[key].get(&field).cloned();
        let there = i64::from(old.is_some());
        let (now, reply, expected) = match self.rng.below(11) {
            0 | 1 => {
                let reply = self.ask(&["HSET", id, &field, value]).int();
                let unknown = self.blind && reply == Some(1);
                (Some((value.to_owned(), 0)), reply, if unknown { reply } else { Some(1 - there) })
            }
            2 => {
                let reply = self.ask(&["HSETNX", id, &field, value]).int();
                (Some(old.clone().unwrap_or((value.to_owned(), 0))), reply, Some(1 - there))
            }
            3 => (None, self.ask(&["HDEL", id, &field, &field]).int(), Some(there)),
            4 => {
                let reply = self.ask(&["HPEXPIREAT", id, text, "FIELDS", "1", &field]).items()[0].int();
                (old.clone().map(|(value, _)| (value, time)), reply, Some(if old.is_some() { 1 } else { -2 }))
            }
            5 => {
                let reply = self.ask(&["HPERSIST", id, "FIELDS", "1", &field]).items()[0].int();
                let expected = old.as_ref().map_or(-2, |(_, time)| if *time == 0 { -1 } else { 1 });
                (old.clone().map(|(value, _)| (value, 0)), reply, Some(expected))
            }
            6 => {
                let reply = self.ask(&["HSETEX", id, "PXAT", text, "FIELDS", "1", &field, value]).int();
                (Some((value.to_owned(), time)), reply, Some(1))
            }
            7 => {
                let reply = self.ask(&["HSETEX", id, "FXX", "KEEPTTL", "FIELDS", "1", &field, value]).int();
                (old.clone().map(|(_, time)| (value.to_owned(), time)), reply, Some(there))
            }
            8 => {
                let reply = self.ask(&["HGETDEL", id, "FIELDS", "1", &field]).items()[0].text();
                assert!(old.is_none() || reply == old.as_ref().map_or("", |(value, _)| value));
                (None, None, None)
            }
            9 => {
                let reply = self.ask(&["HPEXPIRETIME", id, "FIELDS", "1", &field]).items()[0].int();
                let expected = old.as_ref().map_or(-2, |(_, time)| if *time == 0 { -1 } else { *time as i64 });
                (old.clone(), reply, Some(expected))
            }
            _ => {
                // Times out at once, if it is there.
                let reply = self.ask(&["HGETEX", id, "PXAT", "1", "FIELDS", "1", &field]);
                assert_eq!(reply.items()[0].is_nil(), old.is_none());
                (None, None, None)
            }
        };
        assert_eq!(reply, expected, "{field} of {id}, which was {old:?}");
        match now {
            Some(now) => self.model[key].insert(field, now),
            None => self.model[key].remove(&field),
        };
    }

    /// The whole of every hash is as the model has it.
    fn check(&mut self) {
        for (key, fields) in self.model.clone().into_iter().enumerate() {
            let id = key.to_string();
            assert_eq!(self.ask(&["HLEN", &id]).int(), Some(fields.len() as i64), "hash {id}");
            let all = texts(&self.ask(&["HGETALL", &id]));
            let expected: Vec<&String> = fields.iter().flat_map(|(field, (value, _))| [field, value]).collect();
            assert_eq!(all.iter().collect::<BTreeSet<_>>(), expected.iter().copied().collect::<BTreeSet<_>>());
            assert_eq!(all.len(), expected.len());
            assert_eq!(self.scan(&id).into_iter().collect::<BTreeSet<_>>(), fields.keys().cloned().collect());
            for some in fields.iter().collect::<Vec<_>>().chunks(500) {
                let count = some.len().to_string();
                let names = some.iter().map(|(field, _)| field.as_str());
                let args: Vec<&str> = ["HPEXPIRETIME", &id, "FIELDS", &count].into_iter().chain(names).collect();
                let times: Vec<Option<i64>> = self.ask(&args).items().iter().map(Value::int).collect();
                let expected = some.iter().map(|(_, (_, time))| Some(if *time == 0 { -1 } else { *time as i64 }));
                assert_eq!(times, expected.collect::<Vec<_>>());
            }
        }
        let keys = self.model.iter().filter(|fields| !fields.is_empty()).count();
        assert_eq!(self.ask(&["DBSIZE"]).int(), Some(keys as i64));
    }

    fn scan(&mut self, id: &str) -> Vec<String> {
        let (mut cursor, mut fields) = ("0".to_owned(), Vec::new());
        loop {
            let page = self.ask(&["HSCAN", id, &cursor, "COUNT", "70", "NOVALUES"]);
            fields.extend(texts(&page.items()[1]));
            cursor = page.items()[0].text();
            if cursor == "0" {
                return fields;
            }
        }
    }
}

#[test]
fn hashes_of_any_size_are_like_a_model() {
    let seed = seed_from("TARN_HASHES_SEED");
    for version in ["0", "1"] {
        let mut world = World::new(version, Rng(seed));
        world.check();
        for round in 0..6 {
            for _ in 0..500 {
                world.step();
            }
            world.check();
            if round % 2 == 0 {
                world.server.restart();
            } else {
                world.server.restart_after_kill();
            }
            world.client = world.server.client();
            world.check();
        }
    }
}

/// Waits until a reply is this number.
fn await_int(client: &mut Client, args: &[&str], expected: i64) {
    until(&format!("{args:?} is {expected}"), || call(client, args).int() == Some(expected));
}

/// Lets fields of a hash expire at a Unix time in ms.
fn expire(client: &mut Client, key: &str, at_ms: u64, fields: &[String]) {
    let at = at_ms.to_string();
    for some in fields.chunks(1000) {
        let count = some.len().to_string();
        let names = some.iter().map(String::as_str);
        call(client, &["HPEXPIREAT", key, &at, "FIELDS", &count].into_iter().chain(names).collect::<Vec<_>>());
    }
}

fn now_ms() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

#[test]
fn fields_expire_on_time_however_many_there_are() {
    let mut server = Server::tarn(&[]);
    let mut client = server.client();
    let fields: Vec<String> = (0..20_000).map(|n| format!("field:{n:05}")).collect();
    for key in ["half", "whole", "stored"] {
        fill(&mut client, key, fields.iter().cloned());
    }
    let (soon_ms, later_ms) = (now_ms() + 1500, now_ms() + 10_000);
    expire(&mut client, "half", soon_ms, &fields[..10_000]);
    expire(&mut client, "half", 4_000_000_000_000, &fields[10_000..11_000]);
    expire(&mut client, "whole", soon_ms, &fields);
    expire(&mut client, "stored", later_ms, &fields);
    let before = call(&mut client, &["HLEN", "half"]).int();
    // A slow machine may have taken longer than that to get here.
    if now_ms() < soon_ms {
        assert_eq!(before, Some(20_000));
    }
    std::thread::sleep(Duration::from_millis(soon_ms.saturating_sub(now_ms()) + 1));
    // Right at once, swept or not.
    assert_eq!(call(&mut client, &["HLEN", "half"]).int(), Some(10_000));
    assert_eq!(call(&mut client, &["EXISTS", "whole"]).int(), Some(0));
    assert_eq!(texts(&call(&mut client, &["HKEYS", "half"])), fields[10_000..]);
    // One less where the third one's time has come already.
    until("the sweep", || call(&mut client, &["DBSIZE"]).int() <= Some(2));
    server.restart();
    client = server.client();
    assert_eq!(call(&mut client, &["HLEN", "half"]).int(), Some(10_000));
    // Nobody asks for the hash that is only on disk.
    await_int(&mut client, &["DBSIZE"], 1);
    assert!(now_ms() >= later_ms);
    assert_eq!(texts(&call(&mut client, &["HKEYS", "half"])), fields[10_000..]);
}
