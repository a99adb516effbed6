//! Commands by chance: rows of the table with extremes among their arguments.

use super::stock::KEYS;
use crate::common::resp::Value;
use crate::common::rng::Rng;
use crate::common::server::Server;

/// Not sent: what ends, stops or rewires the server or the connection, which is what it is for.
const UNFIT: [&str; 29] = [
    // Answered once for each of their arguments, and they change what the connection may do.
    "subscribe",
    "unsubscribe",
    "psubscribe",
    "punsubscribe",
    "ssubscribe",
    "sunsubscribe",
    "shutdown",
    "debug",
    "monitor",
    "flushall",
    "flushdb",
    "swapdb",
    "quit",
    "reset",
    "wait",
    "waitaof",
    "select",
    "multi",
    "exec",
    "auth",
    "save",
    "bgsave",
    "bgrewriteaof",
    "lastsave",
    "hello",
    "failover",
    // The connection carries a file from then on.
    "sync",
    "psync",
    // It would talk to whatever address the dice say.
    "migrate",
];
const UNFIT_SUBCOMMANDS: [&str; 9] =
    ["kill", "pause", "reply", "set", "rewrite", "resetstat", "no-evict", "no-touch", "setname"];

const WORDS: [&str; 84] = [
    "",
    "0",
    "1",
    "-1",
    "2",
    "9223372036854775807",
    "-9223372036854775808",
    "9223372036854775806",
    "1000000000",
    "-1000000000",
    "2147483647",
    "2147483648",
    "4294967295",
    "-2147483648",
    "536870911",
    "18446744073709551615",
    "1.7976931348623157e308",
    "5e-324",
    "1e4932",
    "nan",
    "inf",
    "-inf",
    "+inf",
    "-0",
    "*",
    "+",
    "-",
    "$",
    ">",
    "0-0",
    "1-1",
    "18446744073709551615-18446744073709551615",
    "(1",
    "[a",
    "(",
    "[",
    "#",
    "w*",
    "*->*",
    "COUNT",
    "LIMIT",
    "WITHSCORES",
    "WITHVALUES",
    "MATCH",
    "STORE",
    "BY",
    "GET",
    "WEIGHTS",
    "AGGREGATE",
    "MAX",
    "IDX",
    "LEN",
    "MINMATCHLEN",
    "WITHMATCHLEN",
    "JUSTID",
    "IDLE",
    "FORCE",
    "STREAMS",
    "GROUP",
    "g",
    "c",
    "MAXLEN",
    "MINID",
    "~",
    "=",
    "LEFT",
    "RIGHT",
    "BEFORE",
    "EX",
    "PX",
    "KEEPTTL",
    "NX",
    "XX",
    "GT",
    "CH",
    "INCR",
    "REV",
    "BYSCORE",
    "BYLEX",
    "FIELDS",
    "FROMLONLAT",
    "BYRADIUS",
    "km",
    "REPLACE",
];

/// A command of the table: its name, with that of a subcommand, and the first, last and step of its keys.
pub(crate) struct Row {
    name: Vec<String>,
    arity: i64,
    keys: (i64, i64, i64),
    /// It may wait for its keys.
    pub(crate) waits: bool,
}

pub(crate) fn rows(server: &Server) -> Vec<Row> {
    let row = |value: &Value, name: Vec<String>| {
        let number = |at: usize| value.items()[at].int().unwrap_or(0);
        let waits = value.items()[2].items().iter().any(|flag| flag.text() == "blocking");
        Row { name, arity: number(1), keys: (number(3), number(4), number(5)), waits }
    };
    let mut rows = Vec::new();
    for value in server.client().call("COMMAND").items() {
        let name = value.items()[0].text();
        let subcommands = value.items()[9].items();
        if UNFIT.contains(&name.as_str()) {
            continue;
        }
        if subcommands.is_empty() {
            rows.push(row(value, vec![name.clone()]));
        }
        for sub in subcommands {
            let full = sub.items()[0].text();
            let last = full.split('|').next_back().unwrap_or_default().to_owned();
            if !UNFIT_SUBCOMMANDS.contains(&last.as_str()) {
                rows.push(row(sub, vec![name.clone(), last]));
            }
        }
    }
    rows
}

pub(crate) fn drawn(row: &Row, rng: &mut Rng) -> Vec<String> {
    let least = usize::try_from(row.arity.unsigned_abs()).unwrap_or(1);
    let count = if row.arity < 0 { least + rng.below(6) as usize } else { least };
    let mut args = row.name.clone();
    while args.len() < count {
        let (first, last, step) = row.keys;
        let at = args.len() as i64;
        let is_key = first > 0 && at >= first && (last < 0 || at <= last) && (at - first) % step.max(1) == 0;
        let is_key = if is_key { !rng.one_in(20) } else { rng.one_in(6) };
        args.push(match is_key {
            true => KEYS[rng.below(KEYS.len() as u64) as usize].0.to_owned(),
            false if rng.one_in(30) => "x".repeat(100_000),
            false => WORDS[rng.below(WORDS.len() as u64) as usize].to_owned(),
        });
    }
    args
}
