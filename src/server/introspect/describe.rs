//! The reply of COMMAND INFO, one array a command:
//! name, arity, flags, first key, last key, step, ACL categories, tips, key specs, subcommands.

use super::Entry;
use crate::handler::acl::category::{CATEGORIES, categories_of};
use crate::handler::row::key;
use crate::handler::{Begin, Find, KeySpec, Reply, flags};

/// Names of flags, in the order in which Redis lists them.
const FLAGS: &[(u32, &str)] = &[
    (flags::WRITE, "write"),
    (flags::READONLY, "readonly"),
    (flags::DENYOOM, "denyoom"),
    (flags::ADMIN, "admin"),
    (flags::PUBSUB, "pubsub"),
    (flags::NOSCRIPT, "noscript"),
    (flags::BLOCKING, "blocking"),
    (flags::LOADING, "loading"),
    (flags::STALE, "stale"),
    (flags::SKIP_MONITOR, "skip_monitor"),
    (flags::SKIP_SLOWLOG, "skip_slowlog"),
    (flags::ASKING, "asking"),
    (flags::FAST, "fast"),
    (flags::NO_AUTH, "no_auth"),
    (flags::NO_MANDATORY_KEYS, "no_mandatory_keys"),
    (flags::NO_ASYNC_LOADING, "no_async_loading"),
    (flags::NO_MULTI, "no_multi"),
    (flags::MOVABLEKEYS, "movablekeys"),
    (flags::ALLOW_BUSY, "allow_busy"),
];

const KEY_FLAGS: &[(u16, &str)] = &[
    (key::RO, "RO"),
    (key::RW, "RW"),
    (key::OW, "OW"),
    (key::RM, "RM"),
    (key::ACCESS, "access"),
    (key::UPDATE, "update"),
    (key::INSERT, "insert"),
    (key::DELETE, "delete"),
    (key::NOT_KEY, "not_key"),
    (key::INCOMPLETE, "incomplete"),
    (key::VARIABLE_FLAGS, "variable_flags"),
];

/// Names of a key spec's flags.
pub(super) fn key_flags(flags: u16) -> impl Iterator<Item = &'static str> {
    KEY_FLAGS.iter().filter(move |(bit, _)| flags & bit != 0).map(|(_, name)| *name)
}

/// What clients of a cluster should know of a command, by its full name. Facts of the protocol, as Redis 8.2 has them.
fn tips(name: &str) -> &'static [&'static str] {
    const RANDOM: &str = "nondeterministic_output";
    const UNORDERED: &str = "nondeterministic_output_order";
    const NODES: &str = "request_policy:all_nodes";
    const SHARDS: &str = "request_policy:all_shards";
    const MULTI: &str = "request_policy:multi_shard";
    const ALL_OK: &str = "response_policy:all_succeeded";
    const SUM: &str = "response_policy:agg_sum";
    const MIN: &str = "response_policy:agg_min";
    const SPECIAL: &str = "response_policy:special";
    match name {
        "acl|deluser" | "acl|save" | "acl|setuser" | "client|setinfo" | "client|setname" | "config|resetstat"
        | "config|rewrite" | "config|set" | "script|flush" | "script|load" | "slowlog|reset" | "commandlog|reset" => {
            &[NODES, ALL_OK]
        }
        "client|info" | "client|list" | "cluster|info" | "cluster|nodes" | "cluster|shards" | "cluster|slots"
        | "dump" | "lastsave" | "migrate" | "object|encoding" | "object|freq" | "object|idletime"
        | "object|refcount" | "pttl" | "time" | "ttl" | "hpttl" | "httl" | "hrandfield" | "hscan" | "spop"
        | "srandmember" | "sscan" | "xadd" | "xautoclaim" | "xclaim" | "xinfo|consumers" | "xpending" | "xtrim"
        | "zrandmember" | "zscan" => &[RANDOM],
        "command" | "command|docs" | "command|info" | "command|list" | "function|list" | "module|list" | "hgetall"
        | "hkeys" | "hvals" | "sdiff" | "sinter" | "smembers" | "sunion" => &[UNORDERED],
        "dbsize" => &[SHARDS, SUM],
        "del" | "exists" | "touch" | "unlink" => &[MULTI, SUM],
        "flushall" | "flushdb" | "function|delete" | "function|flush" | "function|load" | "function|restore"
        | "memory|purge" | "ping" => &[SHARDS, ALL_OK],
        "function|kill" | "script|kill" => &[SHARDS, "response_policy:one_succeeded"],
        "function|stats" | "info" | "memory|doctor" | "memory|malloc-stats" | "memory|stats" => {
            &[RANDOM, SHARDS, SPECIAL]
        }
        "keys" => &[SHARDS, UNORDERED],
        "latency|doctor" | "latency|graph" | "latency|histogram" | "latency|history" | "latency|latest" => {
            &[RANDOM, NODES, SPECIAL]
        }
        "latency|reset" => &[NODES, SUM],
        "mget" => &[MULTI],
        "mset" => &[MULTI, ALL_OK],
        "randomkey" => &[SHARDS, SPECIAL, RANDOM],
        "script|exists" => &[SHARDS, "response_policy:agg_logical_and"],
        "scan" => &[RANDOM, "request_policy:special", SPECIAL],
        "slowlog|get" | "commandlog|get" => &[NODES, RANDOM],
        "slowlog|len" | "commandlog|len" => &[NODES, SUM, RANDOM],
        "wait" | "waitaof" => &[SHARDS, MIN],
        _ => &[],
    }
}

/// First key, last key and step, as clients knew them before there were key specs; and whether that is all.
fn legacy_range(specs: &[KeySpec]) -> ([i64; 3], bool) {
    if let [KeySpec { begin: Begin::Index(first), find: Find::Range { last, step, .. }, flags }] = *specs {
        let last = if last >= 0 { first as i64 + last as i64 } else { last as i64 };
        return ([first as i64, last, step as i64], flags & key::INCOMPLETE == 0);
    }
    let (mut first_key, mut last_key, mut whole) = (i64::MAX, 0, true);
    for spec in specs {
        let (Begin::Index(first), Find::Range { last, step: 1, .. }) = (spec.begin, spec.find) else {
            whole = false;
            continue;
        };
        let first = first as i64;
        if last_key != 0 && last_key != first - 1 {
            whole = false;
            continue;
        }
        let last = if last >= 0 { first + last as i64 } else { last as i64 };
        first_key = first_key.min(first);
        // A last key counted from the end is behind all others.
        last_key = if last < 0 || last_key < 0 { last.min(last_key) } else { last.max(last_key) };
    }
    if first_key == i64::MAX { ([0, 0, 0], whole) } else { ([first_key, last_key, 1], whole) }
}

/// One element of COMMAND INFO's reply.
pub(super) fn write_info(entry: Entry, out: &mut Reply) {
    let row = entry.row;
    let name = entry.name();
    let ([first, last, step], whole) = legacy_range(row.keys);
    let bits = if whole { row.flags } else { row.flags | flags::MOVABLEKEYS };
    out.array(10);
    out.bulk(name.as_bytes());
    out.int(row.arity.into());
    write_set(out, FLAGS.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| (*name).to_owned()).collect());
    out.int(first);
    out.int(last);
    out.int(step);
    write_set(out, categories_of(row).map(|at| format!("@{}", CATEGORIES[at])).collect());
    let tips = tips(&name);
    out.set(tips.len());
    tips.iter().for_each(|tip| out.bulk(tip.as_bytes()));
    out.set(row.keys.len());
    row.keys.iter().for_each(|spec| write_spec(note(row.name, spec), spec, out));
    out.set(row.subcommands.len());
    entry.subcommands().for_each(|sub| write_info(sub, out));
}

fn write_set(out: &mut Reply, words: Vec<String>) {
    out.set(words.len());
    words.iter().for_each(|word| out.status(word));
}

/// Why a key's flags are what they are, where that is not plain.
fn note(name: &str, spec: &KeySpec) -> Option<&'static str> {
    match name {
        "set" => Some("RW and ACCESS due to the optional `GET` argument"),
        "getex" => Some("RW and UPDATE because it changes the TTL"),
        "bitfield" if spec.flags & key::VARIABLE_FLAGS != 0 => {
            Some("This command allows both access and modification of the key")
        }
        _ => None,
    }
}

fn write_spec(note: Option<&str>, spec: &KeySpec, out: &mut Reply) {
    out.map(3 + usize::from(note.is_some()));
    if let Some(note) = note {
        out.bulk(b"notes");
        out.bulk(note.as_bytes());
    }
    out.bulk(b"flags");
    write_set(out, key_flags(spec.flags).map(str::to_owned).collect());
    match spec.begin {
        Begin::Index(index) => write_step(out, "begin_search", "index", &[("index", index as i64)], None),
        Begin::Keyword(word, from) => {
            write_step(out, "begin_search", "keyword", &[("startfrom", from as i64)], Some(("keyword", word)));
        }
        Begin::Unknown => write_step(out, "begin_search", "unknown", &[], None),
    }
    match spec.find {
        Find::Range { last, step, limit } => {
            let numbers = [("lastkey", last as i64), ("keystep", step as i64), ("limit", limit as i64)];
            write_step(out, "find_keys", "range", &numbers, None);
        }
        Find::KeyNum { num, first, step } => {
            let numbers = [("keynumidx", num as i64), ("firstkey", first as i64), ("keystep", step as i64)];
            write_step(out, "find_keys", "keynum", &numbers, None);
        }
        Find::Unknown => write_step(out, "find_keys", "unknown", &[], None),
    }
}

/// One of the two steps of a key spec: its type, and what that type needs to know.
fn write_step(out: &mut Reply, step: &str, kind: &str, numbers: &[(&str, i64)], word: Option<(&str, &str)>) {
    out.bulk(step.as_bytes());
    out.map(2);
    out.bulk(b"type");
    out.bulk(kind.as_bytes());
    out.bulk(b"spec");
    out.map(numbers.len() + usize::from(word.is_some()));
    if let Some((name, word)) = word {
        out.bulk(name.as_bytes());
        out.bulk(word.as_bytes());
    }
    for (name, number) in numbers {
        out.bulk(name.as_bytes());
        out.int(*number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_old_clients_understand() {
        let one = |at| KeySpec::one(at, key::RO);
        assert_eq!(legacy_range(&[]), ([0, 0, 0], true));
        assert_eq!(legacy_range(&[KeySpec::range(1, -1, 2, key::RW)]), ([1, -1, 2], true));
        assert_eq!(legacy_range(&[one(1), one(2)]), ([1, 2, 1], true));
        assert_eq!(legacy_range(&[one(2), KeySpec::range(3, -1, 1, key::RO)]), ([2, -1, 1], true));
        assert_eq!(legacy_range(&[KeySpec::counted(1, 1, key::RO)]), ([0, 0, 0], false));
        assert_eq!(legacy_range(&[one(1), KeySpec::counted(2, 1, key::RO)]), ([1, 1, 1], false));
    }
}
