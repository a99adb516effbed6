//! Random rules: what Tarn and Redis 8.2 answer, how they describe what has come of them, and what they then allow.

use crate::common::resp::{Client, Value};
use crate::common::rng::{Rng, seed_from};
use crate::common::server::{Kind, Server, notice};
use crate::{ask, rounds};

const RULES: [&str; 74] = [
    "on",
    "off",
    "nopass",
    "resetpass",
    "reset",
    "allkeys",
    "resetkeys",
    "allchannels",
    "resetchannels",
    "allcommands",
    "nocommands",
    "+@all",
    "-@all",
    "sanitize-payload",
    "skip-sanitize-payload",
    "clearselectors",
    "~a*",
    "~b",
    "~*",
    "%R~a*",
    "%W~a*",
    "%RW~c",
    "%R~*",
    "%W~*",
    "%~a",
    "%RR~a",
    "&x",
    "&x*",
    "&*",
    ">p",
    ">q",
    "<p",
    "<r",
    "#zz",
    "!zz",
    "+get",
    "-get",
    "+set",
    "-set",
    "+@read",
    "-@read",
    "+@write",
    "-@write",
    "+@dangerous",
    "-@dangerous",
    "+@string",
    "-@string",
    "+@pubsub",
    "+@connection",
    "-@connection",
    "+@foo",
    "+config",
    "-config",
    "+config|get",
    "-config|set",
    "-config|get",
    "+client|id",
    "+client|id|x",
    "+select|0",
    "-select",
    "+select",
    "-select|0",
    "+foo",
    "-foo",
    "+publish",
    "+debug|object",
    "+GET",
    "+Config|Get",
    "+@READ",
    "~",
    "&",
    "(",
    "x",
    "~A*",
];

const CALLS: [&str; 30] = [
    "get a",
    "get b",
    "get z",
    "set a x",
    "set b x",
    "set a x get",
    "set c x",
    "mget a b",
    "mget a c",
    "copy a b",
    "del a b c",
    "config get x",
    "config set x y",
    "config help",
    "client id",
    "client list",
    "select 0",
    "select 1",
    "publish x m",
    "publish xx m",
    "psubscribe x*",
    "subscribe x y",
    "flushall",
    "ping",
    "debug object",
    "debug sleep",
    "acl whoami",
    "eval return 1 a",
    "sort a by w*",
    "exec",
];

fn random_rules(rng: &mut Rng) -> Vec<String> {
    let one = |rng: &mut Rng| RULES[rng.below(RULES.len() as u64) as usize].to_owned();
    let mut rules = Vec::new();
    for _ in 0..1 + rng.below(5) {
        if !rng.one_in(5) {
            rules.push(one(rng));
            continue;
        }
        let inner: Vec<String> = (0..rng.below(4)).map(|_| one(rng)).collect();
        // As one argument or several.
        let text = format!("({})", inner.join(" "));
        if rng.one_in(2) {
            rules.push(text);
        } else {
            rules.extend(text.split(' ').map(str::to_owned));
        }
    }
    rules
}

/// The same on both; what both answered.
fn same(ours: &mut Client, redis: &mut Client, args: &[String], history: &[Vec<String>]) -> Value {
    let (a, b) = (ask(ours, args), ask(redis, args));
    assert_eq!(a, b, "{args:?} after {history:?}");
    a
}

#[test]
fn random_rules_come_to_what_they_come_to_on_redis() {
    let Some(redis) = Server::start(Kind::Redis82, &["--enable-debug-command", "yes"]) else {
        notice("skipped: no redis 8.2 on this machine to compare with");
        return;
    };
    let server = Server::tarn(&["--enable-debug-command", "yes"]);
    let (mut ours, mut redis) = (server.client(), redis.client());
    let mut rng = Rng(seed_from("TARN_ACL_SEED"));
    let mut history: Vec<Vec<String>> = Vec::new();
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    for round in 0..rounds() / 4 {
        if round % 8 == 0 {
            same(&mut ours, &mut redis, &words("ACL DELUSER t"), &history);
            history.clear();
        }
        let args = [words("ACL SETUSER t"), random_rules(&mut rng)].concat();
        same(&mut ours, &mut redis, &args, &history);
        history.push(args);
        same(&mut ours, &mut redis, &words("ACL GETUSER t"), &history);
        same(&mut ours, &mut redis, &words("ACL LIST"), &history);
        for _ in 0..6 {
            let call = CALLS[rng.below(CALLS.len() as u64) as usize];
            same(&mut ours, &mut redis, &words(&format!("ACL DRYRUN t {call}")), &history);
        }
    }
}
