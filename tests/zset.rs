//! Sorted sets: what scripts cannot say. Both encode-versions answer alike, picks are even, a scan misses nothing.
//!
//! `TARN_TEST_SEED` repeats a run.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::resp::{Client, Value, encode};
use common::rng::{Rng, seed_from};
use common::server::Server;

/// A member of one of the lengths that are stored differently.
fn member(rng: &mut Rng) -> String {
    let n = rng.below(300);
    match rng.below(10) {
        0..5 => format!("m{n}"),
        5..9 => format!("a member of so many bytes {n:03}"),
        // Told apart by its first bytes: beyond 1024 the order is by digest.
        _ => format!("{:03}{}", n % 20, "x".repeat(1100)),
    }
}

fn score(rng: &mut Rng) -> String {
    match rng.below(20) {
        0 => "inf".to_owned(),
        1 => "-inf".to_owned(),
        2..6 => format!("{}.{}", rng.below(5), rng.below(1000)),
        _ => (rng.below(20) as i64 - 10).to_string(),
    }
}

fn lex(rng: &mut Rng) -> String {
    match rng.below(6) {
        0 => "-".to_owned(),
        1 => "+".to_owned(),
        kind => format!("{}{}", if kind < 4 { "[" } else { "(" }, &member(rng)[..2]),
    }
}

/// A command; `%` in a word stands for the version, so that each has keys of its own.
fn command(rng: &mut Rng) -> Vec<String> {
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let key = if rng.one_in(2) { "%a" } else { "%b" };
    let ranks = (rng.below(40) as i64 - 20, rng.below(40) as i64 - 20);
    match rng.below(24) {
        0..7 => {
            let mut add = words(&format!("ZADD {key}"));
            (0..1 + rng.below(9)).for_each(|_| add.extend([score(rng), member(rng)]));
            add
        }
        7 => {
            let mut add = words("ZADD %l");
            (0..1 + rng.below(9)).for_each(|_| add.extend(["0".to_owned(), member(rng)]));
            add
        }
        8 => vec!["ZINCRBY".into(), key.into(), "1.5".into(), member(rng)],
        9 => vec!["ZREM".into(), key.into(), member(rng), member(rng)],
        10 => vec!["ZRANK".into(), key.into(), member(rng), "WITHSCORE".into()],
        11 => vec!["ZMSCORE".into(), key.into(), member(rng), member(rng)],
        12 => words(&format!("ZRANGE {key} {} {} WITHSCORES", ranks.0, ranks.1)),
        13 => words(&format!("ZRANGE {key} +inf ({} BYSCORE REV LIMIT {} 9", score(rng), rng.below(90))),
        14 => words(&format!("ZCOUNT {key} {} ({}", score(rng), score(rng))),
        15 => vec!["ZRANGEBYLEX".into(), "%l".into(), lex(rng), lex(rng)],
        16 => vec!["ZLEXCOUNT".into(), "%l".into(), lex(rng), lex(rng)],
        17 => words(&format!("ZPOPMIN {key} {}", rng.below(4))),
        18 => words(&format!("ZMPOP 2 %a %b MAX COUNT {}", 1 + rng.below(3))),
        19 => words(&format!("ZREMRANGEBYRANK {key} {} {}", ranks.0, ranks.0 + 2)),
        20 => vec!["ZREMRANGEBYLEX".into(), "%l".into(), format!("[{}", member(rng)), format!("[{}", member(rng))],
        21 => words("ZUNIONSTORE %d 3 %a %b %l WEIGHTS 1 0.5 2"),
        22 => words("ZINTER 2 %a %b WITHSCORES"),
        _ => words("ZDIFF 2 %a %l WITHSCORES"),
    }
}

fn call(client: &mut Client, words: &[String]) -> Value {
    client.try_call(words).unwrap_or_else(|gone| panic!("{words:?}: {gone:?}"))
}

fn of_version(command: &[String], version: &str) -> Vec<String> {
    command.iter().map(|word| word.replace('%', version)).collect()
}

#[test]
fn both_encode_versions_answer_alike() {
    let seed = seed_from("TARN_TEST_SEED");
    let mut rng = Rng(seed);
    let mut server = Server::tarn(&[]);
    let mut client = server.client();
    for step in 0..3000 {
        let command = command(&mut rng);
        let [exact, index] = ["0", "1"].map(|version| {
            client.call(&format!("CONFIG SET zset-encode-version {version}"));
            // The key's name stands in the reply of ZMPOP.
            match call(&mut client, &of_version(&command, version)) {
                Value::Array(items) if command[0] == "ZMPOP" => items[1].clone(),
                reply => reply,
            }
        });
        assert_eq!(exact, index, "seed {seed}, step {step}: {command:?}");
        if rng.one_in(200) {
            client.call("SAVE");
        }
        if rng.one_in(1000) {
            server.restart();
            client = server.client();
        }
    }
    for operation in ["ZUNION", "ZINTER", "ZDIFF"] {
        let replies =
            ["0a 0b", "0a 1b", "1a 0b", "1a 1b"].map(|keys| client.call(&format!("{operation} 2 {keys} WITHSCORES")));
        replies.iter().for_each(|reply| assert_eq!(*reply, replies[0], "{operation}, seed {seed}"));
    }
    for key in ["a", "b", "l", "d"] {
        let [exact, index] = ["0", "1"].map(|version| client.call(&format!("ZRANGE {version}{key} 0 -1 WITHSCORES")));
        assert_eq!(exact, index, "{key}, seed {seed}");
    }
}

/// Pearson's statistic of counts that should be equal.
fn chi_square(counts: &BTreeMap<String, u64>, kinds: usize) -> f64 {
    let expected = counts.values().sum::<u64>() as f64 / kinds as f64;
    let missing = (kinds - counts.len()) as f64 * expected;
    missing + counts.values().map(|&count| (count as f64 - expected).powi(2) / expected).sum::<f64>()
}

#[test]
fn picks_are_even() {
    const MEMBERS: usize = 50;
    const CALLS: usize = 4000;
    let mut server = Server::tarn(&[]);
    let mut client = server.client();
    for n in 0..MEMBERS {
        client.call(&format!("ZADD z {} member:{n}", n * n));
    }
    for is_cold in [false, true] {
        if is_cold {
            client.call("SAVE");
            server.restart();
            client = server.client();
        }
        for pick in ["ZRANDMEMBER z", "ZRANDMEMBER z 3", "ZRANDMEMBER z 30", "ZRANDMEMBER z -3"] {
            let words: Vec<&str> = pick.split(' ').collect();
            client.send_raw(&encode(&words).repeat(CALLS)).unwrap_or_else(|error| panic!("{error}"));
            let mut counts = BTreeMap::new();
            for _ in 0..CALLS {
                let reply = client.read().unwrap_or_else(|gone| panic!("{gone:?}"));
                let picked: Vec<String> = match &reply {
                    Value::Array(items) => items.iter().map(Value::text).collect(),
                    one => vec![one.text()],
                };
                if !pick.contains('-') {
                    assert_eq!(picked.iter().collect::<BTreeSet<_>>().len(), picked.len(), "{pick}: {picked:?}");
                }
                picked.into_iter().for_each(|member| *counts.entry(member).or_insert(0) += 1);
            }
            // Mean 49, variance 98: beyond this once in a million runs.
            let statistic = chi_square(&counts, MEMBERS);
            assert!(statistic < 125.0, "{pick}, cold {is_cold}: {statistic} of {counts:?}");
        }
    }
}

#[test]
fn a_scan_meets_what_is_there_all_along() {
    let server = Server::tarn(&["--zset-max-listpack-entries", "0"]);
    let mut client = server.client();
    for n in 0..500 {
        client.call(&format!("ZADD z {n} stays:{n} {n} goes:{n}"));
    }
    let (mut cursor, mut met, mut pages) = ("0".to_owned(), BTreeSet::new(), 0);
    loop {
        let page = client.call(&format!("ZSCAN z {cursor} COUNT 20"));
        cursor = page.items()[0].text();
        met.extend(page.items()[1].items().iter().step_by(2).map(Value::text));
        // Scores change, so ranks do; members come and go.
        client.call(&format!("ZADD z {} stays:{} 7 new:{pages}", 1000 - pages, pages * 7 % 500));
        client.call(&format!("ZREM z goes:{}", pages * 11 % 500));
        pages += 1;
        if cursor == "0" {
            break;
        }
    }
    assert!(pages > 20, "{pages}");
    (0..500).for_each(|n| assert!(met.contains(&format!("stays:{n}")), "stays:{n}"));
}
