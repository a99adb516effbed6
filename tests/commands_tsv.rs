//! Holds every command Tarn has against the facts of `tests/data/commands.tsv`, over the wire: `COMMAND INFO`, `COMMAND LIST`.
//!
//! The file holds what Redis 8.2 and Valkey 9.1 report of themselves. What is newer than both stands in [`NEWER`], by its
//! documentation; where Tarn means to differ, [`EXCEPTIONS`] says in what and why. The real Redis is held against the same rows,
//! where this machine has it, so that the rows themselves are proven.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::resp::{Client, Value, encode};
use common::server::{Kind, Server, notice};

const FACTS: &str = include_str!("data/commands.tsv");

/// Commands of Redis 8.4, from their pages at redis.io: name, arity, flags, ACL categories, first, last, step, key specs.
const NEWER: &[[&str; 8]] = &[
    ["delex", "-2", "fast,write", "write,string,fast", "1", "1", "1", "index:1;range:0:1:0;RW,delete,variable_flags"],
    ["digest", "2", "fast,readonly", "read,string,fast", "1", "1", "1", "index:1;range:0:1:0;RO,access"],
    ["sdiffcard", "-3", "movablekeys,readonly", "read,set,slow", "0", "0", "0", "index:1;keynum:0:1:1;RO,access"],
    ["sunioncard", "-3", "movablekeys,readonly", "read,set,slow", "0", "0", "0", "index:1;keynum:0:1:1;RO,access"],
];

/// Commands and the fact in which Tarn differs from the row on purpose.
const EXCEPTIONS: &[(&str, &str)] = &[];

/// Commands that are Tarn's own.
const OWN: &[&str] = &["tarn", "backup", "backup|create", "backup|delete", "backup|help", "backup|list"];

/// What one command says of itself.
#[derive(Clone, Debug, Default, PartialEq)]
struct Facts {
    arity: i64,
    flags: BTreeSet<String>,
    acl: BTreeSet<String>,
    first: i64,
    last: i64,
    step: i64,
    key_specs: Vec<String>,
}

/// Name as `COMMAND INFO` takes it → who has the command, and its facts.
type Rows = BTreeMap<String, (String, Facts)>;

fn set(text: &str) -> BTreeSet<String> {
    text.split(',').filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// A key spec with its flags in one order: `begin;find;flag,flag`.
fn ordered_spec(text: &str) -> String {
    let (place, flags) = text.rsplit_once(';').unwrap_or((text, ""));
    format!("{place};{}", set(flags).into_iter().collect::<Vec<_>>().join(","))
}

fn facts(columns: &[&str]) -> Facts {
    let number = |i: usize| columns[i].parse().unwrap_or_else(|_| panic!("a number in {columns:?}"));
    Facts {
        arity: number(1),
        flags: set(columns[2]),
        acl: set(columns[3]),
        first: number(4),
        last: number(5),
        step: number(6),
        key_specs: columns[7].split(' ').filter(|spec| !spec.is_empty()).map(ordered_spec).collect(),
    }
}

/// Every row.
fn table() -> Rows {
    let mut rows = BTreeMap::new();
    for line in FACTS.lines().skip(1) {
        let c: Vec<&str> = line.split('\t').collect();
        let name = c[0].to_lowercase().replace(' ', "|");
        let row = facts(&[c[0], c[3], c[5], c[6], c[7], c[8], c[9], c[10]]);
        assert!(rows.insert(name, (c[1].to_owned(), row)).is_none(), "{} twice", c[0]);
    }
    for row in NEWER {
        rows.insert(row[0].to_owned(), ("newer".to_owned(), facts(row)));
    }
    rows
}

/// What `COMMAND INFO` says, in RESP2: name, arity, flags, first, last, step, categories, tips, key specs, subcommands.
fn reported(reply: &Value) -> Facts {
    let parts = reply.items();
    assert!(parts.len() >= 10, "COMMAND INFO of {} parts: {reply:?}", parts.len());
    let number = |i: usize| parts[i].int().unwrap_or_else(|| panic!("part {i} of {reply:?}"));
    let words = |v: &Value| v.items().iter().map(Value::text).collect::<BTreeSet<_>>();
    Facts {
        arity: number(1),
        flags: words(&parts[2]),
        acl: words(&parts[6]).iter().map(|name| name.trim_start_matches('@').to_owned()).collect(),
        first: number(3),
        last: number(4),
        step: number(5),
        key_specs: parts[8].items().iter().map(key_spec).collect(),
    }
}

/// The value of a name in a flat array of names and values.
fn field<'a>(pairs: &'a Value, name: &str) -> Option<&'a Value> {
    pairs.items().chunks_exact(2).find(|pair| pair[0].text() == name).map(|pair| &pair[1])
}

fn key_spec(spec: &Value) -> String {
    let get = |outer: &str, inner: &str| -> String {
        let part = field(spec, outer).and_then(|v| field(v, "spec")).and_then(|v| field(v, inner));
        part.map_or_else(|| "?".into(), |v| v.int().map_or_else(|| v.text(), |n| n.to_string()))
    };
    let kind = |outer: &str| field(spec, outer).and_then(|v| field(v, "type")).map(Value::text).unwrap_or_default();
    let begin = match kind("begin_search").as_str() {
        "index" => format!("index:{}", get("begin_search", "index")),
        "keyword" => format!("keyword:{}:{}", get("begin_search", "keyword"), get("begin_search", "startfrom")),
        other => other.to_owned(),
    };
    let find = match kind("find_keys").as_str() {
        "range" => {
            format!(
                "range:{}:{}:{}",
                get("find_keys", "lastkey"),
                get("find_keys", "keystep"),
                get("find_keys", "limit")
            )
        }
        "keynum" => format!(
            "keynum:{}:{}:{}",
            get("find_keys", "keynumidx"),
            get("find_keys", "firstkey"),
            get("find_keys", "keystep")
        ),
        other => other.to_owned(),
    };
    let flags: Vec<String> =
        field(spec, "flags").map(|v| v.items().iter().map(Value::text).collect()).unwrap_or_default();
    ordered_spec(&format!("{begin};{find};{}", flags.join(",")))
}

/// Which facts differ, with both values.
fn differences(expected: &Facts, got: &Facts) -> Vec<(&'static str, String)> {
    let mut out = Vec::new();
    let mut compare = |name: &'static str, a: String, b: String| {
        if a != b {
            out.push((name, format!("expected {a}, got {b}")));
        }
    };
    compare("arity", expected.arity.to_string(), got.arity.to_string());
    compare("flags", format!("{:?}", expected.flags), format!("{:?}", got.flags));
    compare("acl", format!("{:?}", expected.acl), format!("{:?}", got.acl));
    let range = |f: &Facts| format!("{}, {}, {}", f.first, f.last, f.step);
    compare("keys", range(expected), range(got));
    compare("key_specs", format!("{:?}", expected.key_specs), format!("{:?}", got.key_specs));
    out
}

/// Compares every row with the server's command, where it has it: how many were compared, and what differs.
fn compare(client: &mut Client, rows: &Rows, exceptions: &[(&str, &str)]) -> (Vec<String>, Vec<String>) {
    let mut had = Vec::new();
    let mut wrong = Vec::new();
    for (name, (_, expected)) in rows {
        let reply = client.try_call(&["COMMAND", "INFO", name]).unwrap_or_else(|gone| panic!("{name}: {gone:?}"));
        let Some(info) = reply.items().first().filter(|info| !info.is_nil()) else { continue };
        let got = reported(info);
        assert_eq!(info.items()[0].text().to_lowercase(), *name);
        for (fact, text) in differences(expected, &got) {
            if !exceptions.contains(&(name.as_str(), fact)) {
                wrong.push(format!("{name}: {fact}: {text}"));
            }
        }
        had.push(name.clone());
    }
    (had, wrong)
}

/// Every name of `COMMAND LIST`.
fn listed(client: &mut Client) -> BTreeSet<String> {
    client.call("COMMAND LIST").items().iter().map(Value::text).collect()
}

#[test]
fn tarn_has_the_facts_of_every_command() {
    let server = Server::tarn(&[]);
    let mut client = server.client();
    let rows = table();
    let (had, wrong) = compare(&mut client, &rows, EXCEPTIONS);
    assert!(wrong.is_empty(), "{} facts differ:\n{}", wrong.len(), wrong.join("\n"));
    assert!(had.iter().any(|name| name == "get"), "COMMAND INFO knows nothing: {had:?}");

    let names = listed(&mut client);
    let unknown: Vec<&String> = names.iter().filter(|n| !rows.contains_key(*n) && !OWN.contains(&n.as_str())).collect();
    assert!(unknown.is_empty(), "commands without a row: {unknown:?}");
    let unlisted: Vec<&String> = had.iter().filter(|name| !names.contains(*name)).collect();
    assert!(unlisted.is_empty(), "not in COMMAND LIST: {unlisted:?}");
    let count = client.call("COMMAND COUNT").int();
    let top = names.iter().filter(|name| !name.contains('|')).count();
    assert_eq!(count, i64::try_from(top).ok(), "COMMAND COUNT against the names in COMMAND LIST");
    for (name, fact) in EXCEPTIONS {
        assert!(had.iter().any(|h| h == name), "the exception {name} {fact} is about a command Tarn does not have");
    }
}

/// Arity is what the table says: one argument too few is refused by the text of Redis, before anything else is looked at.
#[test]
fn tarn_refuses_too_few_arguments() {
    let server = Server::tarn(&[]);
    let mut client = server.client();
    let rows = table();
    let (had, _) = compare(&mut client, &rows, EXCEPTIONS);
    for name in had {
        let expected = &rows[&name].1;
        let least = usize::try_from(expected.arity.unsigned_abs()).unwrap_or(usize::MAX);
        let mut args: Vec<&str> = name.split('|').collect();
        if least <= args.len() {
            continue;
        }
        args.resize(least - 1, "x");
        client.send_raw(&encode(&args)).unwrap_or_else(|e| panic!("{name}: {e}"));
        let reply = client.read().unwrap_or_else(|gone| panic!("{name}: {gone:?}"));
        let text = format!("wrong number of arguments for '{name}' command");
        assert_eq!(reply, Value::Error(format!("ERR {text}").into()), "{args:?}");
    }
}

/// The rows that a real server is said to have, held against that server.
fn prove(kind: Kind, owners: &[&str]) {
    let Some(server) = Server::start(kind, &[]) else {
        notice(&format!("skipped: no {} on this machine to prove tests/data/commands.tsv", kind.title()));
        return;
    };
    let rows: BTreeMap<_, _> = table().into_iter().filter(|(_, (who, _))| owners.contains(&who.as_str())).collect();
    assert!(rows.len() > 10, "rows of {owners:?}");
    let (had, wrong) = compare(&mut server.client(), &rows, &[]);
    assert!(wrong.is_empty(), "{} facts differ:\n{}", wrong.len(), wrong.join("\n"));
    let missing: Vec<&String> = rows.keys().filter(|name| !had.contains(name)).collect();
    assert!(missing.is_empty(), "rows that {} does not know: {missing:?}", kind.title());
}

#[test]
fn redis_has_the_facts_of_its_rows() {
    prove(Kind::Redis82, &["both", "redis"]);
}

#[test]
fn valkey_has_the_facts_of_its_rows() {
    prove(Kind::Valkey, &["valkey"]);
}

/// What proxies and clients of clusters are told of commands is what Redis tells them.
#[test]
fn tips_are_those_of_redis() {
    let Some(redis) = Server::start(Kind::Redis82, &[]) else {
        notice("skipped: no redis 8.2 on this machine to compare tips with");
        return;
    };
    let tarn = Server::tarn(&[]);
    let (mut ours, mut theirs) = (tarn.client(), redis.client());
    let tips = |client: &mut Client, name: &str| {
        let info = client.try_call(&["COMMAND", "INFO", name]).ok()?;
        let tips = info.items().first()?.items().get(7)?.items().iter().map(Value::text).collect::<BTreeSet<_>>();
        Some(tips)
    };
    let names = listed(&mut ours);
    let both = names.iter().filter_map(|name| Some((name, tips(&mut ours, name)?, tips(&mut theirs, name)?)));
    let (same, other): (Vec<_>, Vec<_>) = both.partition(|(_, ours, theirs)| ours == theirs);
    assert!(same.len() > 300 && other.is_empty(), "{} are the same, not {other:?}", same.len());
}

/// By the name of each command and subcommand what is `told` of it by COMMAND DOCS.
fn docs<T>(client: &mut Client, told: &dyn Fn(&Value) -> T) -> BTreeMap<String, T> {
    let (mut all, mut todo) = (BTreeMap::new(), vec![client.call("COMMAND DOCS")]);
    while let Some(pairs) = todo.pop() {
        for pair in pairs.items().chunks_exact(2) {
            all.insert(pair[0].text(), told(&pair[1]));
            todo.extend(field(&pair[1], "subcommands").cloned());
        }
    }
    all
}

#[test]
fn docs_have_the_facts_of_redis() {
    let Some(redis) = Server::start(Kind::Redis82, &[]) else {
        notice("skipped: no redis 8.2 on this machine to compare docs with");
        return;
    };
    let tarn = Server::tarn(&[]);
    // All but its texts and arguments.
    let facts = |entry: &Value| {
        const OF_REDIS: [&str; 5] = ["since", "group", "doc_flags", "deprecated_since", "replaced_by"];
        OF_REDIS.map(|name| field(entry, name).map(|fact| format!("{name} {fact:?}")))
    };
    let theirs = docs(&mut redis.client(), &facts);
    let both =
        docs(&mut tarn.client(), &facts).into_iter().filter_map(|(name, ours)| Some((theirs.get(&name)?, name, ours)));
    let (same, other): (Vec<_>, Vec<_>) = both.partition(|(theirs, _, ours)| *theirs == ours);
    assert!(same.len() > 300 && other.is_empty(), "{} are the same, not {other:?}", same.len());
}

/// Arguments as text: names, but of groups and tokens, with type, token, flags, key spec and parts. What Redis calls groups and
/// tokens, and since when it has an argument, is its own.
fn shape(args: Option<&Value>) -> String {
    let one = |arg: &Value| {
        let told = |name: &str| field(arg, name).map(Value::text);
        let kind = told("type").unwrap_or_default();
        let name = told("name").filter(|_| !["block", "oneof", "pure-token"].contains(&&kind[..]));
        let token = told("token").map(|token| format!("={token}"));
        let flags = field(arg, "flags").map_or(&[][..], Value::items).iter().map(|flag| format!(",{}", flag.text()));
        let spec = field(arg, "key_spec_index").and_then(Value::int).map(|spec| format!("#{spec}"));
        let parts = field(arg, "arguments").map(|parts| format!("({})", shape(Some(parts))));
        let all = [name, Some(format!(":{kind}")), token, Some(flags.collect()), spec, parts];
        all.into_iter().flatten().collect::<String>()
    };
    args.map_or(&[][..], Value::items).iter().map(one).collect::<Vec<_>>().join(" ")
}

/// Commands whose arguments are told otherwise than Redis tells them, and why.
const OTHER_ARGUMENTS: [(&str, &str); 14] = [
    ("bgsave", "CANCEL of Valkey"),
    ("client|kill", "filters of Valkey, and a block of options where Redis tells of a repeated choice"),
    ("client|list", "filters of Valkey"),
    ("debug", "Redis tells of none"),
    ("failover", "Redis tells of FORCE behind TO as of a value of TO"),
    ("geosearch", "BYPOLYGON of Valkey"),
    ("geosearchstore", "BYPOLYGON of Valkey"),
    ("hsetex", "NX and XX of Valkey"),
    ("set", "IFEQ and its like"),
    ("shutdown", "SAFE and FAILOVER of Valkey"),
    ("sort", "Redis gives its patterns a key spec"),
    ("sort_ro", "Redis gives its patterns a key spec"),
    ("xtrim", "Redis tells of one block"),
    ("zscan", "Redis does not tell of NOSCORES"),
];

#[test]
fn arguments_are_those_of_redis() {
    let Some(redis) = Server::start(Kind::Redis82, &[]) else {
        notice("skipped: no redis 8.2 on this machine to compare arguments with");
        return;
    };
    let tarn = Server::tarn(&[]);
    let theirs = docs(&mut redis.client(), &|entry| shape(field(entry, "arguments")));
    let ours = docs(&mut tarn.client(), &|entry| shape(field(entry, "arguments")));
    let both = ours.into_iter().filter_map(|(name, ours)| Some((theirs.get(&name)?, name, ours)));
    let (same, other): (Vec<_>, Vec<_>) = both.partition(|(theirs, _, ours)| *theirs == ours);
    let unknown: Vec<_> =
        other.iter().filter(|(_, name, _)| OTHER_ARGUMENTS.iter().all(|(other, _)| other != name)).collect();
    assert!(unknown.is_empty(), "{unknown:#?}");
    assert!(
        same.len() > 300 && other.len() == OTHER_ARGUMENTS.len(),
        "{} are the same, {} are not",
        same.len(),
        other.len()
    );
}

/// Commands that Tarn does not have, by group, as COMPAT.md lists them. Subcommands stand under a container that Tarn has.
fn missing(have: &BTreeSet<String>) -> String {
    let mut groups: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for line in FACTS.lines().skip(1) {
        let columns: Vec<&str> = line.split('\t').collect();
        let name = columns[0].to_lowercase().replace(' ', "|");
        let container = name.split_once('|').map(|(container, _)| container);
        if !have.contains(&name) && container.is_none_or(|container| have.contains(container)) {
            let whose = if columns[1] == "valkey" { " (Valkey)" } else { "" };
            groups.entry(columns[2]).or_default().push(format!("{}{whose}", columns[0]));
        }
    }
    let rows = groups.iter().map(|(group, names)| format!("| {group} | {} |\n", names.join(", ")));
    format!("| group | missing |\n|---|---|\n{}", rows.collect::<String>())
}

/// `TARN_COMPAT_UPDATE=1` writes the list into COMPAT.md.
#[test]
fn compat_md_lists_what_is_missing() {
    const MARKS: [&str; 2] = ["<!-- missing commands: begin -->\n", "<!-- missing commands: end -->"];
    let server = Server::tarn(&[]);
    let mut client = server.client();
    let mut have = BTreeSet::new();
    for command in client.call("COMMAND").items() {
        have.insert(command.items()[0].text());
        have.extend(command.items()[9].items().iter().map(|sub| sub.items()[0].text()));
    }
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("COMPAT.md");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let parts = text.split_once(MARKS[0]).and_then(|(head, rest)| Some((head, rest.split_once(MARKS[1])?)));
    let Some((head, (list, tail))) = parts else { panic!("{} has no place for the list", path.display()) };
    let expected = missing(&have);
    if std::env::var_os("TARN_COMPAT_UPDATE").is_some_and(|v| v == "1") {
        let written = std::fs::write(&path, [head, MARKS[0], &expected, MARKS[1], tail].concat());
        assert!(written.is_ok(), "{written:?}");
    } else {
        assert_eq!(list, expected, "TARN_COMPAT_UPDATE=1 brings COMPAT.md up to date");
    }
}
