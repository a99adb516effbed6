//! Commands by chance, made by a user who may touch only some keys. The others hold a mark that no reply may tell, and must stay
//! as they are: whatever a command takes for keys is what it was judged by.

use crate::common::resp::{Client, Value};
use crate::common::rng::{Rng, seed_from};
use crate::common::server::{Kind, Server};
use crate::{ask, rounds, set_user};

const MARK: &str = "SeCrEt";

/// Left out: those that tell of keys whatever their names, and what changes the connection or the whole server.
const UNFIT: [&str; 17] = [
    "keys",
    "scan",
    "randomkey",
    "flushall",
    "flushdb",
    "swapdb",
    "select",
    "multi",
    "exec",
    "discard",
    "quit",
    "reset",
    "hello",
    "auth",
    "wait",
    "waitaof",
    "client",
];

const WORDS: [&str; 62] = [
    "0",
    "1",
    "2",
    "3",
    "-1",
    "*",
    "+",
    "-",
    "$",
    ">",
    "0-0",
    "1-1",
    "#",
    "s*",
    "p*",
    "COUNT",
    "LIMIT",
    "MATCH",
    "STORE",
    "STOREDIST",
    "BY",
    "GET",
    "WEIGHTS",
    "STREAMS",
    "GROUP",
    "g",
    "c",
    "LEFT",
    "RIGHT",
    "MIN",
    "MAX",
    "NX",
    "XX",
    "REPLACE",
    "DB",
    "AND",
    "KEYS",
    "IDX",
    "LEN",
    "EX",
    "FIELDS",
    "f",
    "m",
    "km",
    "ASC",
    "DESC",
    "ALPHA",
    "nosort",
    "FROMMEMBER",
    "BYRADIUS",
    "WITHSCORES",
    "CREATE",
    "USAGE",
    "ENCODING",
    "STREAM",
    "FULL",
    "return redis.pcall('get', ARGV[1])",
    "return redis.pcall('get', KEYS[1])",
    "return redis.pcall('hgetall', 's:hash')",
    "MKSTREAM",
    "BLOCK",
    "1000",
];

fn fill(admin: &mut Client, prefix: &str, mark: &str) {
    KINDS.iter().for_each(|kind| _ = admin.call(&format!("DEL {prefix}:{kind}")));
    for call in [
        format!("SET {prefix}:string {mark}"),
        format!("SET {prefix}:number 7"),
        format!("HSET {prefix}:hash f {mark} {mark} 1"),
        format!("RPUSH {prefix}:list {mark} 1 2"),
        format!("SADD {prefix}:set {mark} 1 m"),
        format!("ZADD {prefix}:zset 1 {mark} 2 m"),
        format!("XADD {prefix}:stream 1-1 f {mark}"),
        format!("XGROUP CREATE {prefix}:stream g 0"),
        format!("PFADD {prefix}:hll {mark}"),
        format!("GEOADD {prefix}:geo 1 1 {mark} 1 1 m"),
    ] {
        assert!(!admin.call(&call).is_error(), "{call}");
    }
}

const KINDS: [&str; 9] = ["string", "number", "hash", "list", "set", "zset", "stream", "hll", "geo"];

fn dumps(admin: &mut Client) -> Vec<Value> {
    KINDS.iter().map(|kind| admin.call(&format!("DUMP s:{kind}"))).collect()
}

fn tells(reply: &Value) -> bool {
    match reply.bytes() {
        Some(bytes) => String::from_utf8_lossy(bytes).contains(MARK),
        None => reply.items().iter().any(tells),
    }
}

#[test]
fn commands_by_chance_neither_tell_nor_change_what_they_may_not_touch() {
    let mut rng = Rng(seed_from("TARN_ACL_SEED"));
    for kind in [Kind::Tarn, Kind::ScaledTarn] {
        let server = Server::built(kind, &[]);
        let (mut admin, mut user) = (server.client(), server.client());
        fill(&mut admin, "s", MARK);
        fill(&mut admin, "p", "public");
        let before = dumps(&mut admin);
        set_user(&mut admin, "u", "+@all -@dangerous +sort +sort_ro ~p:* %R~o:* &*");
        assert_eq!(user.call("AUTH u x").text(), "OK");
        let mut names: Vec<Vec<String>> = Vec::new();
        for value in admin.call("COMMAND").items() {
            let (name, subs) = (value.items()[0].text(), value.items()[9].items());
            let flags = value.items()[2].items();
            if UNFIT.contains(&name.as_str()) || flags.iter().any(|flag| flag.text() == "pubsub") {
                continue;
            }
            if subs.is_empty() {
                names.push(vec![name]);
            } else {
                names.extend(subs.iter().map(|sub| sub.items()[0].text().split('|').map(str::to_owned).collect()));
            }
        }
        let (mut refused, mut allowed) = (0, 0);
        for _ in 0..rounds() {
            let mut call = names[rng.below(names.len() as u64) as usize].clone();
            for _ in 0..1 + rng.below(8) {
                call.push(match rng.below(5) {
                    0 => format!("s:{}", KINDS[rng.below(9) as usize]),
                    1 | 2 => format!("p:{}", KINDS[rng.below(9) as usize]),
                    _ => WORDS[rng.below(62) as usize].to_owned(),
                });
            }
            // Within a transaction nothing waits.
            user.call("MULTI");
            let queued = ask(&mut user, &call);
            let reply = if queued.text() == "QUEUED" { user.call("EXEC") } else { user.call("DISCARD") };
            let is_refused = queued.text().starts_with("NOPERM");
            refused += u64::from(is_refused);
            allowed += u64::from(reply.items().first().is_some_and(|reply| !reply.is_error()));
            // An error may quote what was asked, never what is stored.
            assert!(!tells(&reply) && !tells(&queued), "{call:?}: {reply:?}");
            if rng.one_in(100) {
                assert_eq!(dumps(&mut admin), before, "changed by {call:?} or one before it");
                fill(&mut user, "p", "public");
            }
        }
        assert_eq!(dumps(&mut admin), before);
        assert!(refused > rounds() / 10 && allowed > rounds() / 50, "{refused} refused, {allowed} allowed");
    }
}
