//! Sets beyond what a script can tell: random picks are even, and sets of any size, in memory or on disk, answer like a model.

mod common;

use std::collections::BTreeSet;

use common::resp::{Client, Value};
use common::rng::{Rng, seed_from};
use common::server::Server;

/// A command's reply, which must be no error.
fn call(client: &mut Client, args: &[&str]) -> Value {
    let reply = client.try_call(args).unwrap_or_else(|gone| panic!("{}: {gone:?}", args[0]));
    assert!(!reply.is_error(), "{}: {}", args[0], reply.text());
    reply
}

fn texts(reply: &Value) -> Vec<String> {
    reply.items().iter().map(Value::text).collect()
}

fn fill<S: AsRef<str>>(client: &mut Client, key: &str, members: impl IntoIterator<Item = S>) {
    let members: Vec<S> = members.into_iter().collect();
    for some in members.chunks(1000) {
        let args: Vec<&str> = ["SADD", key].into_iter().chain(some.iter().map(AsRef::as_ref)).collect();
        call(client, &args);
    }
}

/// How often members, who are named by their number, were picked; numbers are counted in so many groups.
struct Tally {
    counts: Vec<u64>,
    members: usize,
}

impl Tally {
    fn new(members: usize, groups: usize) -> Self {
        Tally { counts: vec![0; groups], members }
    }

    fn add(&mut self, picks: &[String]) {
        for pick in picks {
            let number: usize = pick.parse().unwrap_or_else(|_| panic!("a member, not {pick:?}"));
            let group = number * self.counts.len() / self.members;
            self.counts[group] += 1;
        }
    }

    /// Pearson's statistic must stay within six standard deviations of what even picks bring: mean n − 1, variance
    /// 2 (n − 1). Picks without repetition spread less.
    fn assert_even(&self, what: &str) {
        let freedom = self.counts.len() as f64 - 1.0;
        let expected = self.counts.iter().sum::<u64>() as f64 / self.counts.len() as f64;
        let chi_square: f64 = self.counts.iter().map(|&n| (n as f64 - expected).powi(2) / expected).sum();
        assert!(chi_square < freedom + 6.0 * (2.0 * freedom).sqrt(), "{what}: {chi_square} of {:?}", self.counts);
    }
}

/// Picks in every way from a set of this many members, counted in so many groups.
fn assert_picks_are_even(client: &mut Client, members: usize, groups: usize, what: &str) {
    let numbers: Vec<String> = (0..members).map(|n| n.to_string()).collect();
    let (one_in_ten, half) = ((members / 10).to_string(), (members / 2).to_string());
    let nine_in_ten = (members * 9 / 10).to_string();
    for args in [vec![], vec!["-1000"], vec!["1"], vec![&one_in_ten], vec![&half], vec![&nine_in_ten]] {
        let mut tally = Tally::new(members, groups);
        let mut picked = 0;
        while picked < groups * 100 {
            let reply = call(client, &[&["SRANDMEMBER", "s"], &args[..]].concat());
            let picks = if args.is_empty() { vec![reply.text()] } else { texts(&reply) };
            if args.first().is_some_and(|count| !count.starts_with('-')) {
                assert_eq!(picks.iter().collect::<BTreeSet<_>>().len(), picks.len(), "each member once");
                assert_eq!(picks.len().to_string(), args[0]);
            }
            picked += picks.len();
            tally.add(&picks);
        }
        tally.assert_even(&format!("{what}: SRANDMEMBER {args:?}"));
    }
    for args in [vec![], vec!["1"], vec![&one_in_ten], vec![&half], vec![&nine_in_ten]] {
        let mut tally = Tally::new(members, groups);
        let mut picked = 0;
        while picked < groups * 100 {
            let reply = call(client, &[&["SPOP", "s"], &args[..]].concat());
            let picks = if args.is_empty() { vec![reply.text()] } else { texts(&reply) };
            assert_eq!(call(client, &["SCARD", "s"]).int(), Some((members - picks.len()) as i64));
            picked += picks.len();
            tally.add(&picks);
            fill(client, "s", &picks);
        }
        tally.assert_even(&format!("{what}: SPOP {args:?}"));
    }
    assert_eq!(call(client, &["SCARD", "s"]).int(), Some(members as i64));
    fill(client, "s", &numbers);
    assert_eq!(call(client, &["SCARD", "s"]).int(), Some(members as i64), "nothing was lost or invented");
}

#[test]
fn picks_from_a_small_set_are_even() {
    for version in ["0", "1"] {
        let server = Server::tarn(&["--set-encode-version", version]);
        let mut client = server.client();
        fill(&mut client, "s", (0..50).map(|n| n.to_string()));
        assert_picks_are_even(&mut client, 50, 50, &format!("encode-version {version}"));
    }
}

#[test]
fn picks_from_a_set_on_disk_are_even() {
    // A blind set is counted and walked for every pick.
    for (version, members) in [("0", 2000), ("1", 200)] {
        let mut server = Server::tarn(&["--set-encode-version", version]);
        fill(&mut server.client(), "s", (0..members).map(|n| n.to_string()));
        server.restart();
        let mut client = server.client();
        assert_picks_are_even(&mut client, members, 20, &format!("on disk, encode-version {version}"));
    }
}

type Model = Vec<BTreeSet<String>>;

const KEYS: usize = 6;

/// Names of which each set takes another part; some are longer than what stands in a key.
fn name(number: u64) -> String {
    if number.is_multiple_of(97) { format!("{}{number}", "long".repeat(600)) } else { format!("member:{number}") }
}

fn fill_model(client: &mut Client, rng: &mut Rng) -> Model {
    let sizes = [3, 40, 700, 5000, 6000];
    let mut model: Model = Vec::new();
    for (i, size) in sizes.into_iter().enumerate() {
        let members: BTreeSet<String> = (0..size).map(|_| name(rng.below(10_000))).collect();
        fill(client, &i.to_string(), &members);
        model.push(members);
    }
    // The last key has none.
    model.push(BTreeSet::new());
    model
}

fn expected(operation: &str, sets: &[&BTreeSet<String>]) -> BTreeSet<String> {
    sets[1..].iter().fold(sets[0].clone(), |left, right| match operation {
        "SUNION" => &left | right,
        "SINTER" => &left & right,
        _ => &left - right,
    })
}

/// Operations on random sets, in every form, against the model.
fn check_algebra(client: &mut Client, model: &Model, rng: &mut Rng, rounds: usize) {
    for _ in 0..rounds {
        let operation = ["SUNION", "SINTER", "SDIFF"][rng.below(3) as usize];
        let keys: Vec<usize> = (0..1 + rng.below(3)).map(|_| rng.below(KEYS as u64) as usize).collect();
        let sets: Vec<&BTreeSet<String>> = keys.iter().map(|&key| &model[key]).collect();
        let expected = expected(operation, &sets);
        let names: Vec<String> = keys.iter().map(ToString::to_string).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let what = format!("{operation} {names:?}");

        let count = names.len().to_string();
        let card = format!("{operation}CARD");
        let limit = rng.below(expected.len() as u64 + 2).max(1);
        let limit_text = limit.to_string();
        let args = [&[card.as_str(), &count], &names[..], &["LIMIT", &limit_text]].concat();
        assert_eq!(call(client, &args).int(), Some(limit.min(expected.len() as u64) as i64), "{what} LIMIT {limit}");

        let store = format!("{operation}STORE");
        let stored = call(client, &[&[store.as_str(), "d"], &names[..]].concat());
        assert_eq!(stored.int(), Some(expected.len() as i64), "{what}");
        assert_eq!(call(client, &["SCARD", "d"]).int(), Some(expected.len() as i64), "{what}");
        let members: BTreeSet<String> = texts(&call(client, &["SMEMBERS", "d"])).into_iter().collect();
        assert_eq!(members, expected, "{what}");
        let answer = texts(&call(client, &[&[operation], &names[..]].concat()));
        assert_eq!(answer.len(), expected.len(), "{what}: each member once");
        assert_eq!(answer.into_iter().collect::<BTreeSet<_>>(), expected, "{what}");
    }
}

fn check_members(client: &mut Client, model: &mut Model, rng: &mut Rng, rounds: usize) {
    for _ in 0..rounds {
        let (from, to) = (rng.below(KEYS as u64) as usize, rng.below(KEYS as u64) as usize);
        let (key, other) = (from.to_string(), to.to_string());
        let member = name(rng.below(10_000));
        match rng.below(5) {
            0 => {
                let added = model[from].insert(member.clone());
                assert_eq!(call(client, &["SADD", &key, &member]).int(), Some(added.into()));
            }
            1 => {
                let removed = model[from].remove(&member);
                assert_eq!(call(client, &["SREM", &key, &member]).int(), Some(removed.into()));
            }
            2 => {
                let there = model[from].contains(&member);
                assert_eq!(call(client, &["SISMEMBER", &key, &member]).int(), Some(there.into()));
            }
            3 => {
                let moved = if from == to { model[from].contains(&member) } else { model[from].remove(&member) };
                if moved {
                    model[to].insert(member.clone());
                }
                assert_eq!(call(client, &["SMOVE", &key, &other, &member]).int(), Some(moved.into()));
            }
            _ => {
                let popped = call(client, &["SPOP", &key]);
                assert_eq!(popped.is_nil(), model[from].is_empty());
                assert!(popped.is_nil() || model[from].remove(&popped.text()), "popped a member");
            }
        }
        assert_eq!(call(client, &["SCARD", &key]).int(), Some(model[from].len() as i64));
    }
}

#[test]
fn sets_of_any_size_are_like_a_model() {
    let seed = seed_from("TARN_SETS_SEED");
    let mut rng = Rng(seed);
    let mut server = Server::tarn(&[]);
    let mut client = server.client();
    let mut model = fill_model(&mut client, &mut rng);
    for _ in 0..3 {
        check_algebra(&mut client, &model, &mut rng, 15);
        check_members(&mut client, &mut model, &mut rng, 300);
        server.restart();
        client = server.client();
        check_members(&mut client, &mut model, &mut rng, 300);
        check_algebra(&mut client, &model, &mut rng, 15);
        for (key, members) in model.iter().enumerate() {
            let there: BTreeSet<String> =
                texts(&call(&mut client, &["SMEMBERS", &key.to_string()])).into_iter().collect();
            assert_eq!(&there, members);
        }
    }
}

/// Every member of a set, page by page; members come in order, so none twice.
fn scan_all(client: &mut Client, key: &str) -> Vec<String> {
    let (mut cursor, mut members) = ("0".to_owned(), Vec::new());
    loop {
        let page = call(client, &["SSCAN", key, &cursor, "COUNT", "700"]);
        members.extend(texts(&page.items()[1]));
        cursor = page.items()[0].text();
        if cursor == "0" {
            return members;
        }
    }
}

/// Results too big for memory are written past it; so is what SPOP leaves of a big set.
#[test]
fn results_may_be_bigger_than_memory() {
    const EACH: u64 = 130_000;
    let mut server = Server::tarn(&["--dirty-budget", "16mb"]);
    let mut client = server.client();
    fill(&mut client, "a", (0..EACH).map(|n| format!("member:{n:08}")));
    fill(&mut client, "b", (EACH / 2..EACH * 3 / 2).map(|n| format!("member:{n:08}")));
    let all = EACH as i64 * 3 / 2;
    assert_eq!(call(&mut client, &["SUNIONCARD", "2", "a", "b"]).int(), Some(all));
    assert_eq!(call(&mut client, &["SUNIONSTORE", "u", "a", "b"]).int(), Some(all));
    assert_eq!(call(&mut client, &["SINTERSTORE", "i", "a", "b"]).int(), Some(EACH as i64 / 2));
    assert_eq!(call(&mut client, &["SDIFFSTORE", "a", "a", "b"]).int(), Some(EACH as i64 / 2));
    assert_eq!(call(&mut client, &["EXPIRE", "u", "1000"]).int(), Some(1));
    assert_eq!(scan_all(&mut client, "u").len() as i64, all);
    let gone = texts(&call(&mut client, &["SPOP", "u", "101000"]));
    assert_eq!(gone.len(), 101_000);
    for _ in 0..2 {
        let stayed = scan_all(&mut client, "u");
        assert_eq!(call(&mut client, &["SCARD", "u"]).int(), Some(stayed.len() as i64));
        let both: BTreeSet<&String> = gone.iter().chain(&stayed).collect();
        assert_eq!((stayed.len() + gone.len(), both.len()), (all as usize, all as usize));
        assert!(call(&mut client, &["TTL", "u"]).int().is_some_and(|seconds| seconds > 0));
        assert_eq!(call(&mut client, &["SCARD", "a"]).int(), Some(EACH as i64 / 2));
        assert_eq!(call(&mut client, &["SINTERCARD", "2", "a", "i"]).int(), Some(0));
        server.restart();
        client = server.client();
    }
}
