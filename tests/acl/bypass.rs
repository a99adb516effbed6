//! Each command of the table, with keys and channels, by each way there is to call it, for a user who may not.

use crate::common::resp::{Client, Value};
use crate::common::server::{Kind, Server, notice};
use crate::{ask, set_user};

/// Calls of commands whose keys do not stand where a call of plain words has them, and of forms that have more keys.
const CALLS: &str = "
EVAL return 2 x1 x2
EVAL_RO return 2 x1 x2
EVALSHA sha 2 x1 x2
EVALSHA_RO sha 1 x1
FCALL f 2 x1 x2
FCALL_RO f 1 x1
XREAD COUNT 1 STREAMS x1 x2 0 0
XREADGROUP GROUP g c STREAMS x1 x2 > >
ZUNIONSTORE x1 2 x2 x3
ZINTERSTORE x1 2 x2 x3
ZDIFFSTORE x1 2 x2 x3
ZUNION 2 x1 x2
ZINTER 2 x1 x2
ZDIFF 2 x1 x2
ZINTERCARD 2 x1 x2
SINTERCARD 2 x1 x2
SUNIONCARD 2 x1 x2
SDIFFCARD 2 x1 x2
LMPOP 2 x1 x2 LEFT
BLMPOP 0 2 x1 x2 LEFT
ZMPOP 2 x1 x2 MIN
BZMPOP 0 2 x1 x2 MIN
MSETEX 2 x1 v x2 v
GEORADIUS x1 1 1 1 km STORE x2
GEORADIUS x1 1 1 1 km STOREDIST x2
GEORADIUSBYMEMBER x1 m 1 km STORE x2
SORT x1 BY nosort STORE x2
SORT x1 LIMIT 0 1 STORE x2
SORT_RO x1
BITOP AND x1 x2 x3
COPY x1 x2 DB 1 REPLACE
SET x1 v GET
SET x1 v
BITFIELD x1 GET u8 0
BITFIELD x1 SET u8 0 1
SMOVE x1 x2 m
BLMOVE x1 x2 LEFT RIGHT 0
BRPOPLPUSH x1 x2 0
BLPOP x1 x2 0
BRPOP x1 x2 0
BZPOPMIN x1 x2 0
BZPOPMAX x1 x2 0
MEMORY USAGE x1
MIGRATE h 1  0 1 KEYS x1 x2
";

/// How a command is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Direct,
    /// Refused when it is queued.
    Queued,
    /// Allowed when it was queued, and no longer within EXEC.
    Exec,
    Script,
    Function,
}

const WAYS: [Way; 5] = [Way::Direct, Way::Queued, Way::Exec, Way::Script, Way::Function];

/// A server, and two connections: one that may do everything, one of a user `u`.
struct Bench {
    _server: Server,
    admin: Client,
    user: Client,
}

fn strings(call: &[&str]) -> Vec<String> {
    call.iter().map(|&arg| arg.to_owned()).collect()
}

impl Bench {
    fn new() -> Bench {
        let server = Server::tarn(&["--enable-debug-command", "yes"]);
        let (mut admin, mut user) = (server.client(), server.client());
        set_user(&mut admin, "u", "+@all ~* &*");
        assert_eq!(user.call("AUTH u x").text(), "OK");
        let library =
            "#!lua name=l\nredis.register_function('call', function(_, args) return redis.pcall(unpack(args)) end)";
        assert_eq!(ask(&mut admin, &["FUNCTION", "LOAD", library]).text(), "l");
        Bench { _server: server, admin, user }
    }

    /// Calls by a user who has these rules; the answer, or none if the command cannot be called so.
    fn call(&mut self, way: Way, rules: &str, call: &[String]) -> Option<Value> {
        let (admin, user) = (&mut self.admin, &mut self.user);
        if way == Way::Exec {
            set_user(admin, "u", "+@all ~* &*");
            user.call("MULTI");
            let queued = ask(user, call);
            if queued.text() != "QUEUED" {
                user.call("DISCARD");
                return None;
            }
        }
        set_user(admin, "u", rules);
        match way {
            Way::Direct => Some(ask(user, call)),
            Way::Queued => {
                user.call("MULTI");
                let reply = ask(user, call);
                let end = user.call("EXEC").text();
                assert!(end.starts_with("EXECABORT"), "{call:?} was refused, and EXEC ran: {end}");
                Some(reply)
            }
            Way::Exec => Some(user.call("EXEC").items()[0].clone()),
            Way::Script | Way::Function => {
                let mut args = match way {
                    Way::Script => strings(&["EVAL", "return redis.pcall(unpack(ARGV))", "0"]),
                    _ => strings(&["FCALL", "call", "0"]),
                };
                args.extend_from_slice(call);
                Some(ask(user, &args))
            }
        }
    }

    /// No way leads to a call that these rules do not allow, and DRYRUN says so. `except`: those that need what is refused.
    fn check_refused(&mut self, rules: &str, call: &[String], except: &[Way]) {
        for way in WAYS.into_iter().filter(|way| !except.contains(way)) {
            let Some(reply) = self.call(way, rules, call) else { continue };
            let text = reply.text();
            let is_refused = text.starts_with("NOPERM ")
                || text.contains("because of: NOPERM ")
                || text.contains("ACL failure in script: ")
                // Nobody may.
                || text.contains("not allowed from script")
                || text.contains("not allowed inside a transaction");
            assert!(reply.is_error() && is_refused, "{call:?} {way:?} with {rules}: {text}");
        }
        let answer = self.dry_run(call);
        assert!(answer.starts_with("User u has no permissions to "), "{call:?} with {rules}: DRYRUN says {answer}");
    }

    fn dry_run(&mut self, call: &[String]) -> String {
        let args = [strings(&["ACL", "DRYRUN", "u"]), call.to_vec()].concat();
        ask(&mut self.admin, &args).text()
    }
}

/// A command of the table.
struct Row {
    name: Vec<String>,
    arity: i64,
    flags: Vec<String>,
    categories: Vec<String>,
    has_keys: bool,
}

impl Row {
    fn full_name(&self) -> String {
        self.name.join("|")
    }

    /// A call of words that are different from each other, with so many more than there must be.
    fn plain_call(&self, more: usize) -> Vec<String> {
        let least = self.arity.unsigned_abs() as usize;
        let len = if self.arity < 0 { least + more } else { least };
        let words = (self.name.len()..len).map(|at| format!("x{at}"));
        self.name.iter().cloned().chain(words).collect()
    }
}

fn rows(admin: &mut Client) -> Vec<Row> {
    let words = |value: &Value| value.items().iter().map(Value::text).collect::<Vec<_>>();
    let row = |value: &Value, name: Vec<String>| {
        let parts = value.items();
        let specs = parts[8].items();
        let not_key = |spec: &Value| spec.items()[1].items().iter().any(|flag| flag.text() == "not_key");
        Row {
            name,
            arity: parts[1].int().unwrap(),
            flags: words(&parts[2]),
            categories: words(&parts[6]),
            has_keys: specs.iter().any(|spec| !not_key(spec)),
        }
    };
    let mut rows = Vec::new();
    for value in admin.call("COMMAND").items() {
        let name = value.items()[0].text();
        let subcommands = value.items()[9].items();
        if subcommands.is_empty() || name == "command" {
            rows.push(row(value, vec![name.clone()]));
        }
        for sub in subcommands {
            let full = sub.items()[0].text();
            rows.push(row(sub, full.split('|').map(str::to_owned).collect()));
        }
    }
    rows
}

/// Ways that a user cannot go who may not call this.
fn ways_by(name: &str) -> &'static [Way] {
    match name {
        "multi" | "exec" => &[Way::Queued, Way::Exec],
        // EXEC goes on after it, outside of the transaction.
        "discard" => &[Way::Exec],
        "eval" => &[Way::Script],
        "fcall" => &[Way::Function],
        _ => &[],
    }
}

#[test]
fn no_way_leads_to_a_command_that_is_not_allowed() {
    let mut bench = Bench::new();
    let rows = rows(&mut bench.admin);
    assert!(rows.len() > 300, "{} commands", rows.len());
    for row in &rows {
        let (name, call) = (row.full_name(), row.plain_call(0));
        if row.flags.iter().any(|flag| flag == "no_auth") {
            set_user(&mut bench.admin, "u", "-@all");
            assert_eq!(bench.dry_run(&call), "OK", "{name} is everybody's");
            continue;
        }
        bench.check_refused(&format!("+@all ~* &* -{name}"), &call, ways_by(&name));
        set_user(&mut bench.admin, "u", &format!("-@all ~* &* +{name}"));
        assert_eq!(bench.dry_run(&call), "OK", "{name} alone is allowed");
    }
}

#[test]
fn no_way_leads_to_a_command_of_a_category_that_is_not_allowed() {
    let mut bench = Bench::new();
    let rows = rows(&mut bench.admin);
    let categories: Vec<String> = bench.admin.call("ACL CAT").items().iter().map(Value::text).collect();
    assert_eq!(categories.len(), 21);
    for category in categories {
        let named = format!("@{category}");
        let (within, beyond): (Vec<_>, Vec<_>) =
            rows.iter().filter(|row| row.full_name() != "command").partition(|row| row.categories.contains(&named));
        let listed = ask(&mut bench.admin, &["ACL", "CAT", &category]);
        let listed: Vec<_> = listed.items().iter().map(Value::text).collect();
        assert!(!within.is_empty() && within.iter().all(|row| listed.contains(&row.full_name())), "{category}");
        let rules = format!("+@all ~* &* -{named}");
        set_user(&mut bench.admin, "u", &rules);
        for row in within.iter().filter(|row| !row.flags.iter().any(|flag| flag == "no_auth")) {
            let call = row.plain_call(0);
            let reply = ask(&mut bench.user, &call).text();
            let is_refused = reply.starts_with("NOPERM ") || reply.contains("because of: NOPERM ");
            assert!(is_refused, "{call:?} with {rules}: {reply}");
        }
        for row in beyond {
            let call = row.plain_call(0);
            assert_eq!(bench.dry_run(&call), "OK", "{call:?} with {rules}");
        }
    }
}

/// A key, and what its call does with it.
type KeyOf = (String, Vec<String>);

/// Calls of all commands that have keys, each with its keys and what is done with them.
fn calls_with_keys(admin: &mut Client) -> Vec<(Vec<String>, Vec<KeyOf>)> {
    let rows = rows(admin);
    let mut calls: Vec<Vec<String>> = CALLS
        .lines()
        .filter(|line| !line.is_empty())
        .map(|line| line.split(' ').map(str::to_owned).collect())
        .collect();
    calls.extend(rows.iter().filter(|row| row.has_keys).flat_map(|row| (0..3).map(|more| row.plain_call(more))));
    let mut found = Vec::new();
    for call in calls {
        let args = [strings(&["COMMAND", "GETKEYSANDFLAGS"]), call.clone()].concat();
        let reply = ask(admin, &args);
        if reply.is_error() {
            continue;
        }
        let key = |at: &Value| {
            let flags = at.items()[1].items().iter().map(Value::text).collect::<Vec<_>>();
            (at.items()[0].text(), flags)
        };
        let mut keys: Vec<_> = reply.items().iter().map(key).collect();
        keys.retain(|(_, flags)| !flags.contains(&"not_key".to_owned()));
        if !keys.is_empty() {
            found.push((call, keys));
        }
    }
    for row in rows.iter().filter(|row| row.has_keys) {
        let is_of = |call: &[String]| call.iter().zip(&row.name).all(|(word, name)| word.eq_ignore_ascii_case(name));
        assert!(found.iter().any(|(call, _)| is_of(call)), "no call of {} has keys: add one to CALLS", row.full_name());
    }
    found
}

/// What rules there are that allow this with a key, and those that allow less.
fn rules_for(key: &str, flags: &[String]) -> (String, Vec<String>) {
    let has = |names: &[&str]| flags.iter().any(|flag| names.contains(&flag.as_str()));
    match (has(&["access"]), has(&["update", "insert", "delete"])) {
        (true, true) => (format!("~{key}"), vec![String::new(), format!("%R~{key}"), format!("%W~{key}")]),
        (true, false) => (format!("%R~{key}"), vec![String::new(), format!("%W~{key}")]),
        (false, true) => (format!("%W~{key}"), vec![String::new(), format!("%R~{key}")]),
        (false, false) => (format!("%R~{key}"), vec![String::new()]),
    }
}

#[test]
fn no_way_leads_to_a_key_that_is_not_allowed() {
    let mut bench = Bench::new();
    let calls = calls_with_keys(&mut bench.admin);
    for (call, keys) in &calls {
        let rules: Vec<_> = keys.iter().map(|(key, flags)| rules_for(key, flags)).collect();
        let with = |at: usize, instead: &str| {
            let others =
                rules.iter().enumerate().map(|(n, (enough, _))| if n == at { instead } else { enough.as_str() });
            format!("+@all &* {}", others.collect::<Vec<_>>().join(" "))
        };
        set_user(&mut bench.admin, "u", &with(usize::MAX, ""));
        assert_eq!(bench.dry_run(call), "OK", "{call:?} with what it needs: {rules:?}");
        let except = ways_by(&call[0].to_ascii_lowercase());
        for (at, (_, less)) in rules.iter().enumerate() {
            less.iter().for_each(|less| bench.check_refused(&with(at, less), call, except));
        }
    }
}

#[test]
fn calls_are_judged_as_by_redis() {
    let Some(redis) = Server::start(Kind::Redis82, &[]) else {
        notice("skipped: no redis 8.2 on this machine to compare with");
        return;
    };
    let mut bench = Bench::new();
    let mut redis = redis.client();
    let known: Vec<String> = redis.call("COMMAND LIST").items().iter().map(Value::text).collect();
    let is_known = |call: &[String]| {
        let name = call[0].to_lowercase();
        known.contains(&format!("{name}|{}", call.get(1).map_or("", String::as_str).to_lowercase()))
            || known.contains(&name)
    };
    let calls = calls_with_keys(&mut bench.admin);
    let mut compared = 0;
    // Where the second of two key specs finds nothing, Redis looks at no key at all.
    let is_odd = |call: &[String]| call[0] == "pfmerge" && call.len() == 2;
    for (call, keys) in calls.iter().filter(|(call, _)| is_known(call) && !is_odd(call)) {
        for (key, _) in keys {
            for rules in [format!("+@all ~{key}"), format!("+@all %R~{key} %W~x*"), format!("+@all %W~{key} %R~x*")] {
                set_user(&mut bench.admin, "u", &rules);
                set_user(&mut redis, "u", &rules);
                let args = [strings(&["ACL", "DRYRUN", "u"]), call.clone()].concat();
                assert_eq!(ask(&mut bench.admin, &args), ask(&mut redis, &args), "{call:?} with {rules}");
                compared += 1;
            }
        }
    }
    assert!(compared > 1000, "{compared} compared");
}

#[test]
fn no_way_leads_to_a_channel_that_is_not_allowed() {
    let mut bench = Bench::new();
    for call in ["SUBSCRIBE a b", "PSUBSCRIBE a b", "SSUBSCRIBE a b", "PUBLISH b m", "SPUBLISH b m"] {
        let call: Vec<String> = call.split(' ').map(str::to_owned).collect();
        for rules in
            ["+@all ~*", "+@all ~* &a", "+@all ~* &a &B", "+@all ~* &a (&b -@all)", "+@all ~* (&a +@all) -@pubsub"]
        {
            bench.check_refused(rules, &call, &[]);
        }
        set_user(&mut bench.admin, "u", "+@all ~* &a &b");
        assert_eq!(bench.dry_run(&call), "OK", "{call:?}");
    }
    // A pattern must be one of its own: what it matches may be more.
    for (call, may) in
        [("PSUBSCRIBE a*", true), ("PSUBSCRIBE aa*", false), ("SUBSCRIBE aa", true), ("SUBSCRIBE b", false)]
    {
        set_user(&mut bench.admin, "u", "+@all &a*");
        let call: Vec<String> = call.split(' ').map(str::to_owned).collect();
        assert_eq!(bench.dry_run(&call) == "OK", may, "{call:?}");
    }
}

#[test]
fn sort_looks_at_no_keys_by_patterns_for_who_may_not_read_all() {
    let mut bench = Bench::new();
    bench.admin.call("RPUSH k 2 1");
    bench.admin.call("MSET w1 5 w2 4");
    for call in [
        "SORT k BY w*",
        "SORT k GET w*",
        "SORT_RO k BY w*",
        "SORT k GET #",
        "SORT k BY nosort GET w*",
        "SORT k GET w* STORE k",
    ] {
        let call: Vec<String> = call.split(' ').map(str::to_owned).collect();
        for rules in ["+@all ~k", "+@all ~k %W~*", "+@all ~k (-@all %R~*)", "+@all ~k %R~w*"] {
            for way in [Way::Direct, Way::Exec, Way::Script, Way::Function] {
                let reply = bench.call(way, rules, &call).unwrap().text();
                assert!(
                    reply.contains("denied due to insufficient ACL permissions"),
                    "{call:?} {way:?}, {rules}: {reply}"
                );
            }
        }
        for rules in ["+@all ~k %R~*", "+@all ~*", "-@all (~* +sort +sort_ro)"] {
            let reply = bench.call(Way::Direct, rules, &call).unwrap();
            assert!(!reply.is_error(), "{call:?} {rules}: {reply:?}");
        }
        bench.admin.call("DEL k");
        bench.admin.call("RPUSH k 2 1");
    }
}

/// Where the arguments do not tell the keys, nothing is judged by them: such a call must fail.
#[test]
fn calls_whose_keys_cannot_be_told_fail() {
    let mut bench = Bench::new();
    let heads = [
        "EVAL return",
        "EVAL_RO return",
        "FCALL call",
        "FCALL_RO call",
        "ZUNIONSTORE d",
        "ZINTERSTORE d",
        "ZDIFFSTORE d",
        "ZUNION",
        "ZINTER",
        "ZDIFF",
        "ZINTERCARD",
        "SINTERCARD",
        "SUNIONCARD",
        "SDIFFCARD",
        "LMPOP",
        "BLMPOP 0",
        "ZMPOP",
        "BZMPOP 0",
        "MSETEX",
    ];
    let mut untold = 0;
    for head in heads {
        for count in ["-1", "0", "9", "x", "", "1.5", "+1", " 1", "01", "9223372036854775807", "18446744073709551617"] {
            for tail in ["k", "k LEFT", "k MIN", "k k LEFT COUNT 1", "k v k v", "k LIMIT 1"] {
                let mut call: Vec<String> = head.split(' ').map(str::to_owned).collect();
                call.push(count.to_owned());
                call.extend(tail.split(' ').map(str::to_owned));
                let args = [strings(&["COMMAND", "GETKEYS"]), call.clone()].concat();
                let told = ask(&mut bench.admin, &args);
                if !told.is_error() || told.text().contains("has no key arguments") {
                    continue;
                }
                untold += 1;
                bench.admin.call("MULTI");
                ask(&mut bench.admin, &call);
                let reply = bench.admin.call("EXEC");
                let reply = reply.items().first().unwrap_or(&reply).clone();
                assert!(reply.is_error() || head.starts_with("EVAL") && count == "0", "{call:?}: {reply:?}");
            }
        }
    }
    assert!(untold > 300, "{untold}");
}
