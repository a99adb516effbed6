//! Scripts that do harm, if they can: whatever one does, it ends, nobody else waits for it, and it leaves nothing behind. And
//! scripts of many clients at once, which are each as if they ran alone.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::resp::{Client, Value, encode};
use common::rng::{Rng, seed_from};
use common::server::{Kind, Server};
use common::wait::{PATIENCE, until};

/// How long a script may run before it is killed.
const KILLED_AFTER: Duration = Duration::from_millis(300);

/// Scripts that end by themselves, by an error or not, and those that have to be killed.
const BAD: &[(&str, &str)] = &[
    ("loop", "while true do end"),
    ("loop in pcall", "while true do pcall(function() while true do end end) end"),
    ("loop in a coroutine", "coroutine.wrap(function() while true do end end)()"),
    ("loop of coroutines", "while true do local c = coroutine.wrap(function() coroutine.yield(1) end) c() end"),
    (
        "loop in a comparator",
        "local t = {} for i = 1, 100 do t[i] = i end table.sort(t, function() while true do end end)",
    ),
    (
        "comparator without an order",
        "local t = {} for i = 1, 100000 do t[i] = i end table.sort(t, function() return true end)",
    ),
    ("loop in a metamethod", "local t = setmetatable({}, {__index = function(t, k) while true do end end}) return t.x"),
    ("chain of metatables", "local t = {} for i = 1, 1e6 do t = setmetatable({}, {__index = t}) end return t.x"),
    ("tail calls", "local function f() return f() end return f()"),
    ("recursion", "local function f() return 1 + f() end return f()"),
    ("recursion through pcall", "local function f() return pcall(f) end return tostring(f())"),
    (
        "recursion through a metamethod",
        "local t = {} setmetatable(t, {__index = function(t, k) return t[k .. 'x'] end}) return t.a",
    ),
    (
        "recursion through tostring",
        "local t = {} setmetatable(t, {__tostring = function(t) return tostring(t) end}) return tostring(t)",
    ),
    ("recursion through sort", "local function f() table.sort({1, 2, 3}, function() f() end) end f()"),
    ("recursion through gsub", "local function f() return (('x'):gsub('x', f)) end f()"),
    ("backtracking", "return string.find(string.rep('a', 100000), string.rep('a-', 30) .. 'b')"),
    ("optional parts", "return string.find(string.rep('a', 30), string.rep('a?', 30) .. string.rep('a', 30))"),
    ("deep pattern", "return string.find(string.rep('a', 300000), string.rep('(a)', 300000))"),
    ("long pattern", "return string.find('aaa', string.rep('a?', 100000))"),
    ("balance", "return string.find(string.rep('(', 100000), '%b()')"),
    ("balances", "local s = string.rep('(', 100000) for i = 1, 1e6 do string.find(s, '%b()', i % 100000) end"),
    ("long class", "return string.find(string.rep('b', 200000), '[' .. string.rep('a', 200000) .. ']')"),
    ("rep", "return #string.rep('x', 1e10)"),
    ("reps", "local t = {} for i = 1, 1e9 do t[i] = string.rep('x', 1e6) .. i end"),
    ("doubling", "local s = 'x' while true do s = s .. s end"),
    ("doubling in pcall", "while true do pcall(function() local s = 'x' while true do s = s .. s end end) end"),
    ("gsub that grows", "local s = string.rep('x', 1e5) return #(s:gsub('x', s))"),
    ("gsub that grows by a function", "local s = string.rep('x', 1e5) return #(s:gsub('x', function() return s end))"),
    ("format", "return #string.format('%99999d', 1)"),
    (
        "formats",
        "local s = string.rep('x', 1e7) return #string.format(string.rep('%s', 90), unpack((function() local t = {} for i = 1, 90 do t[i] = s end return t end)()))",
    ),
    ("upper", "local s = string.rep('x', 3e7) local t = {} for i = 1, 1000 do t[i] = s:upper() .. i end"),
    ("concat", "local t = {} for i = 1, 20000 do t[i] = string.rep('x', 1e6) end return #table.concat(t)"),
    (
        "concat of one",
        "local s = string.rep('x', 1e6) local t = {} for i = 1, 20000 do t[i] = s end return #table.concat(t)",
    ),
    ("table", "local t = {} local i = 0 while true do i = i + 1 t[i] = i end"),
    ("tables", "local t = {} while true do t = {t} end"),
    ("hash", "local t = {} local i = 0 while true do i = i + 1 t['k' .. i] = i end"),
    ("closures", "local f = function() end while true do local g = f f = function() return g() end end"),
    (
        "coroutines",
        "local t = {} while true do t[#t + 1] = coroutine.create(function() coroutine.yield() end) coroutine.resume(t[#t]) end",
    ),
    ("nested coroutines", "local function f() coroutine.wrap(f)() end f()"),
    ("loadstring", "local i = 0 while true do i = i + 1 loadstring('return ' .. i)() end"),
    ("loadstring of much", "return loadstring('return ' .. string.rep('1+', 300000) .. '1')()"),
    ("loadstring of deep", "return loadstring('return ' .. string.rep('(', 200000) .. '1' .. string.rep(')', 200000))"),
    ("unpack", "return unpack({}, 1, 1e8)"),
    ("unpack from below", "return unpack({}, -1e9, 1e9)"),
    ("insert far away", "local t = {} for i = 1, 10 do table.insert(t, 2^53, i) end"),
    ("insert in front", "local t = {} for i = 1, 1e6 do table.insert(t, 1, i) end"),
    ("remove in front", "local t = {} for i = 1, 2e5 do t[i] = i end for i = 1, 2e5 do table.remove(t, 1) end"),
    ("length", "local t = {} t[2^40] = 1 local n = 0 for i = 1, 1e7 do n = n + #t end return n"),
    ("bytecode", "return loadstring('\\27Lua')"),
    ("dump", "return string.dump(function() end)"),
    ("cjson decode", "return cjson.decode(string.rep('[', 1e6))"),
    ("cjson encode", "local t = {} for i = 1, 1e5 do t = {t} end return cjson.encode(t)"),
    ("cjson cycle", "local t = {} t[1] = t return cjson.encode(t)"),
    ("cjson sparse", "return cjson.encode({[2^40] = 1})"),
    ("cjson text", "return cjson.decode('{\"a\":')"),
    ("cmsgpack unpack", "return cmsgpack.unpack(string.rep('\\145', 1e6))"),
    ("cmsgpack length", "return cmsgpack.unpack('\\221\\255\\255\\255\\255')"),
    ("cmsgpack pack", "local t = {} t[1] = t return #cmsgpack.pack(t)"),
    ("struct", "return struct.pack(string.rep('i', 1e6))"),
    ("struct size", "return struct.unpack('c99999999', 'x')"),
    ("struct of long ints", "return struct.pack('i99', 1)"),
    ("cycle as reply", "local t = {} t[1] = t t[2] = t return #t"),
    ("long reply", "local t = {} for i = 1, 3e5 do t[i] = i end return t"),
    ("globals", "x = 1"),
    ("globals through _G", "_G.x = 1"),
    ("globals through rawset", "rawset(_G, 'x', 1)"),
    ("library", "string.rep = nil"),
    ("library through rawset", "rawset(string, 'rep', 1)"),
    ("metatable of strings", "getmetatable('').__index = function() return 1 end"),
    ("metatable of strings removed", "getmetatable('').__index = nil"),
    ("metatable of the library", "setmetatable(string, {__index = function() return 1 end})"),
    ("metatable of _G", "setmetatable(_G, nil)"),
    ("environment", "setfenv(1, {})"),
    ("arguments", "KEYS = 1"),
    ("many commands", "while true do redis.call('get', 'other') end"),
    ("many commands on its own key", "while true do redis.call('get', KEYS[1]) end"),
    ("many writes", "local i = 0 while true do i = i + 1 redis.call('set', KEYS[1], i) end"),
    (
        "writes without end",
        "local i = 0 while true do i = i + 1 redis.call('rpush', KEYS[1], string.rep('x', 10000)) end",
    ),
    ("loop after a write", "redis.call('set', KEYS[1], 1) while true do end"),
    ("long argument", "return redis.call('set', KEYS[1], string.rep('x', 2e7))"),
    ("reply of doubled tables", "local t = {} for i = 1, 40 do t = {t, t} end return t"),
    (
        "reply of doubled tables after a write",
        "redis.call('set', KEYS[1], 1) local t = {} for i = 1, 40 do t = {t, t} end return t",
    ),
    ("reply of doubled maps", "redis.setresp(3) local t = {} for i = 1, 40 do t = {map = {a = t, b = t}} end return t"),
    ("deep reply", "local t = {1} for i = 1, 300 do t = {t, string.rep('x', 30000)} end return t"),
    ("reply of one string", "local s, t = string.rep('x', 1e6), {} for i = 1, 1e5 do t[i] = s end return t"),
    (
        "call with one string",
        "local s, t = string.rep('x', 1e7), {} for i = 1, 300 do t[i] = s end return redis.pcall('mset', unpack(t))",
    ),
    (
        "log of one string",
        "local s, t = string.rep('x', 1e7), {} for i = 1, 300 do t[i] = s end return redis.log(0, unpack(t))",
    ),
    (
        "question about one string",
        "local s, t = string.rep('x', 1e7), {} for i = 1, 300 do t[i] = s end return redis.acl_check_cmd(unpack(t))",
    ),
    (
        "format of many digits",
        "local t = {} for i = 1, 7000 do t[i] = 1e300 end return #string.format(string.rep('%99.99f', 7000), unpack(t))",
    ),
    ("errors of long texts", "local s = string.rep('x', 1e6) while true do redis.error_reply(s) end"),
    ("long numbers", "local s = string.rep('1', 1e6) while true do local n = s + 0 end"),
    ("long numbers in a base", "local s = string.rep('1', 1e6) while true do local n = tonumber(s, 2) end"),
    ("many digits", "while true do local s = string.format('%99.99f', 1e300) end"),
    ("long sources", "local s = string.rep('x', 3e7) while true do loadstring(s) end"),
    ("long patterns", "local s = string.rep('a', 3e7) .. '%' while true do ('b'):find(s) end"),
    ("long replacements", "local s = string.rep('a', 3e7) while true do ('b'):gsub('c', s) end"),
    ("repeated long class", "return ('b'):rep(3e4):find('[' .. ('a'):rep(3e4) .. 'b]*')"),
    ("repeated very long class", "return ('b'):rep(3e6):find('[' .. ('a'):rep(3e6) .. 'b]*')"),
    (
        "many arguments",
        "return redis.call('mset', unpack((function() local t = {} for i = 1, 7000 do t[i] = 'a' end return t end)()))",
    ),
];

fn source_bombs() -> Vec<(String, String)> {
    let named = [
        ("long sum", format!("return 1{}", "+1".repeat(300_000))),
        ("long concatenation", format!("return 'a'{}", "..'a'".repeat(300_000))),
        ("powers", format!("return 1{}", "^1".repeat(100_000))),
        ("nots", format!("return {}1", "not ".repeat(300_000))),
        ("parentheses", format!("return {}1{}", "(".repeat(300_000), ")".repeat(300_000))),
        ("braces", format!("return {}{}", "{".repeat(300_000), "}".repeat(300_000))),
        ("blocks", format!("{} {}", "do ".repeat(200_000), "end ".repeat(200_000))),
        ("functions", format!("{}{}", "return function() ".repeat(100_000), "end ".repeat(100_000))),
        ("elseif", format!("local x = 0 if x == 1 then {} end", "elseif x == 2 then ".repeat(200_000))),
        ("lines", "local x = 1\n".repeat(1_000_000)),
        ("locals", (0..1000).map(|n| format!("local a{n} = 1 ")).collect()),
        ("constants", (0..300_000).map(|n| format!("local a = 'c{n}' a = nil ")).collect()),
        ("long string", format!("return [[{}]]", "x".repeat(5_000_000))),
        (
            "calls",
            format!("local f = function(x) return x end return {}1{}", "f(".repeat(150_000), ")".repeat(150_000)),
        ),
        ("indexes", format!("local t = {{}} return t{}", ".x".repeat(300_000))),
        ("bytecode", "\u{1b}Lua".to_owned()),
        ("unfinished", "return 'x".to_owned()),
    ];
    named.map(|(name, text)| (name.to_owned(), text)).into()
}

/// Resident memory of a process, bytes.
fn resident_bytes(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid().unwrap())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() * 1024
}

/// Runs a script until it answers, kills it when it has run for long, and asks other things meanwhile.
fn suffer(server: &Server, script: &str) {
    let mut bad = server.client();
    bad.set_timeout(Duration::from_millis(5));
    bad.send_raw(&encode(&["EVAL", script, "1", "bad"])).unwrap();
    let (mut other, mut asked, began) = (server.client(), 0, Instant::now());
    loop {
        if bad.read().is_ok() {
            return;
        }
        for n in 0..10 {
            let key = format!("other{n}");
            assert_eq!(other.call(&format!("SET {key} {asked}")).text(), "OK");
            assert_eq!(other.call(&format!("GET {key}")).text(), asked.to_string());
            asked += 1;
        }
        if began.elapsed() > KILLED_AFTER {
            other.call("SCRIPT KILL");
        }
        assert!(began.elapsed() < PATIENCE, "it does not end: {script:.200}");
    }
}

/// Each of them, one after the other.
fn suffer_all(scripts: impl IntoIterator<Item = (String, String)>) {
    let server = Server::built(Kind::Tarn, &["--maxmemory", "256mb", "--shards", "8", "--proto-max-bulk-len", "64mb"]);
    let mut client = server.client();
    client.call("SET other x");
    for (name, text) in scripts {
        suffer(&server, &text);
        client.call("DEL bad");
        // What it has tried to change is as it was, on whatever thread the next one runs.
        for _ in 0..3 {
            let check =
                "local s = ('ab'):rep(2) return {s, s:upper(), type(KEYS), tostring(rawget(_G, 'x')), tostring(#ARGV)}";
            let reply = client.try_call(&["EVAL", check, "0"]).unwrap();
            let got: Vec<String> = reply.items().iter().map(Value::text).collect();
            assert_eq!(got, ["abab", "ABAB", "table", "nil", "0"], "after {name}");
        }
        let bytes = resident_bytes(&server);
        assert!(bytes < (256 << 20) * 115 / 100 + (64 << 20), "{name}: {} MiB", bytes >> 20);
    }
    assert_eq!(client.call("SCRIPT KILL").text(), "NOTBUSY No scripts in execution right now.");
}

fn owned(scripts: &[(&str, &str)]) -> Vec<(String, String)> {
    scripts.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
}

#[test]
fn bad_scripts_end_and_leave_nothing() {
    suffer_all(owned(&BAD[..BAD.len() / 2]));
}

#[test]
fn more_bad_scripts_end_and_leave_nothing() {
    suffer_all(owned(&BAD[BAD.len() / 2..]));
}

#[test]
fn bad_sources_end_and_leave_nothing() {
    suffer_all(source_bombs());
}

/// A script that has run for long without its shards goes on as if nobody had come in between.
#[test]
fn scripts_are_each_as_if_they_ran_alone() {
    const ACCOUNTS: u64 = 40;
    let transfer = "local a, b = tonumber(redis.call('get', KEYS[1])), tonumber(redis.call('get', KEYS[2])) \
                    local n = 0 for i = 1, tonumber(ARGV[2]) do n = n + 1 end \
                    redis.call('set', KEYS[1], a - ARGV[1]) redis.call('set', KEYS[2], b + ARGV[1]) return n";
    for kind in [Kind::Tarn, Kind::ScaledTarn] {
        let server = Server::built(kind, &["--shards", "8"]);
        let mut client = server.client();
        (0..ACCOUNTS).for_each(|n| drop(client.call(&format!("SET account{n} 1000"))));
        let names: Vec<String> = (0..ACCOUNTS).map(|n| format!("account{n}")).collect();
        let seed = seed_from("TARN_SCRIPTING_SEED");
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let clients: Vec<_> = (0..4)
                .map(|n| {
                    let (mut client, mut rng) = (server.client(), Rng(seed + n));
                    scope.spawn(move || {
                        for round in 0..150 {
                            let (from, to) = (rng.below(ACCOUNTS), rng.below(ACCOUNTS));
                            if from == to {
                                continue;
                            }
                            // Some run for long, and rest on the way.
                            let steps = if round % 10 == 0 { "300000" } else { "10" };
                            let (from, to) = (format!("account{from}"), format!("account{to}"));
                            let args = ["EVAL", transfer, "2", &from, &to, "7", steps];
                            let reply = client.try_call(&args).unwrap();
                            assert_eq!(reply.int(), steps.parse().ok(), "seed {seed}: {reply:?}");
                        }
                    })
                })
                .collect();
            let sum = "local s = 0 for i = 1, #KEYS do s = s + redis.call('get', KEYS[i]) end return s";
            let mut args = vec!["EVAL", sum, "40"];
            args.extend(names.iter().map(String::as_str));
            while !clients.iter().all(|thread| thread.is_finished()) {
                let reply = client.try_call(&args).unwrap();
                assert_eq!(reply.int(), Some(1000 * ACCOUNTS as i64), "seed {seed}");
            }
            done.store(true, Ordering::SeqCst);
        });
    }
}

/// Who asks for its end is told that it has written; it goes on, and all of it happens.
/// As much as the server logs, its words one after the other.
#[test]
fn what_a_script_logs_stands_in_the_log() {
    let server = Server::tarn(&["--loglevel", "notice"]);
    let script = "redis.log(redis.LOG_DEBUG, 'unimportant') redis.log(redis.LOG_WARNING, 'one', 'two', 3)";
    assert_eq!(server.client().try_call(&["EVAL", script, "0"]).unwrap(), Value::Nil);
    until("it is logged", || server.output().contains("one two 3"));
    assert!(!server.output().contains("unimportant"));
}

#[test]
fn a_script_that_has_written_is_not_killed() {
    let server = Server::built(Kind::Tarn, &["--shards", "4", "--script-hold-limit", "60000"]);
    let (mut client, mut other): (Client, Client) = (server.client(), server.client());
    let code = "redis.call('set', KEYS[1], 1) for n = 1, 200000 do redis.call('get', KEYS[1]) end return 'whole'";
    let library = format!("#!lua name=l\nredis.register_function('writes', function(KEYS) {code} end)");
    assert_eq!(client.try_call(&["FUNCTION", "LOAD", &library]).unwrap().text(), "l");
    for (call, kind) in [(["EVAL", code, "1", "key"], "SCRIPT"), (["FCALL", "writes", "1", "key"], "FUNCTION")] {
        client.send_raw(&encode(&call)).unwrap();
        let mut reply = String::new();
        common::wait::until("it runs for long", || {
            reply = other.call(&format!("{kind} KILL")).text();
            !reply.starts_with("NOTBUSY")
        });
        assert!(reply.starts_with("UNKILLABLE Sorry the script already executed write commands"), "{kind}: {reply}");
        assert_eq!(client.read().unwrap().text(), "whole", "{kind}");
        assert_eq!((client.call("GETDEL key").text(), other.call("EXISTS key").int()), ("1".to_owned(), Some(0)));
    }
}

/// Others wait for it meanwhile: it is taken back whole when it has had so much of a processor, whatever it does with it.
#[test]
fn a_script_that_has_written_keeps_its_shards_for_so_long() {
    let server = Server::built(Kind::Tarn, &["--shards", "2"]);
    let mut client = server.client();
    client.call("SET key before");
    let long =
        "local t = {} for n = 1, 5000 do t[n] = n end for n = 1, 2 do redis.call('rpush', KEYS[1], unpack(t)) end";
    assert!(client.try_call(&["EVAL", long, "1", "list"]).unwrap().is_nil());
    let does = ["redis.call('get', KEYS[1])", "redis.call('lrange', 'list', 0, -1)", "local x = 1"];
    for (does, rounds) in does.into_iter().zip(["100000", "300", "10000000"]) {
        let code = "redis.call('set', KEYS[1], 'after') for n = 1, tonumber(ARGV[1]) do DOES end return 'whole'";
        let script = code.replace("DOES", does);
        let mut run = |limit: &str| {
            assert_eq!(client.call(&format!("CONFIG SET script-hold-limit {limit}")).text(), "OK");
            let reply = client.try_call(&["EVAL", &script, "1", "key", rounds]).unwrap().text();
            (reply.split(" script:").next().unwrap().to_owned(), client.call("GETSET key before").text())
        };
        assert_eq!(run("60000"), ("whole".to_owned(), "after".to_owned()), "{does}");
        let taken_back = "ERR script keeps its keys' shards for longer than script-hold-limit, and was taken back";
        assert_eq!(run("1"), (taken_back.to_owned(), "before".to_owned()), "{does}");
    }
    for bad in ["0", "60001", "x"] {
        assert!(
            client.call(&format!("CONFIG SET script-hold-limit {bad}")).text().starts_with("ERR CONFIG SET failed")
        );
    }
}

/// Nobody waits for a script that runs on but who writes its keys.
#[test]
fn who_writes_the_keys_of_a_long_script_waits() {
    // One computes, the other hardly does anything but call commands.
    for script in ["redis.call('get', KEYS[1]) while true do end", "while true do redis.call('get', KEYS[1]) end"] {
        let server = Server::built(Kind::Tarn, &["--shards", "1"]);
        let (mut client, mut writer): (Client, Client) = (server.client(), server.client());
        client.call("SET key before");
        client.send_raw(&encode(&["EVAL", script, "1", "key"])).unwrap();
        let mut other = server.client();
        // It runs for long by now: it holds its key.
        common::wait::until("it holds its key", || {
            let info = other.call("INFO").text();
            info.lines().any(|line| line == "tarn_busy_keys:1")
        });
        writer.send_raw(&encode(&["SET", "key", "after"])).unwrap();
        for n in 0..200 {
            assert_eq!(other.call(&format!("SET other{n} x")).text(), "OK");
            assert_eq!(other.call("GET key").text(), "before");
        }
        assert_eq!(other.call("SCRIPT KILL").text(), "OK");
        assert!(client.read().unwrap().text().starts_with("ERR Script killed by user with SCRIPT KILL."));
        assert_eq!(writer.read().unwrap().text(), "OK");
        assert_eq!(other.call("GET key").text(), "after");
    }
}

/// However many run on, nobody waits for them who only has much to go through, and all are killed at once.
#[test]
fn scripts_that_run_on_keep_no_long_command() {
    const SCRIPTS: usize = 12;
    const FIELDS: usize = 20_000;
    let server = Server::built(Kind::Tarn, &[]);
    let mut client = server.client();
    let fields: Vec<String> = (0..2 * FIELDS).map(|n| n.to_string()).collect();
    let command: Vec<&str> = ["HSET", "hash"].into_iter().chain(fields.iter().map(String::as_str)).collect();
    assert_eq!(client.try_call(&command).unwrap(), Value::Int(FIELDS as i64));
    let mut running: Vec<Client> = (0..SCRIPTS).map(|_| server.client()).collect();
    for (n, other) in running.iter_mut().enumerate() {
        let (key, loops) = (format!("key{n}"), "redis.call('get', KEYS[1]) while true do end");
        other.send_raw(&encode(&["EVAL", loops, "1", &key])).unwrap();
    }
    common::wait::until("they hold their keys", || {
        let info = client.call("INFO").text();
        info.lines().any(|line| line == format!("tarn_busy_keys:{SCRIPTS}"))
    });
    assert_eq!(client.call("HGETALL hash").items().len(), 2 * FIELDS);
    assert_eq!(client.call("SCRIPT KILL").text(), "OK");
    for other in &mut running {
        assert!(other.read().unwrap().text().starts_with("ERR Script killed by user with SCRIPT KILL."));
    }
}

/// A reply is as deep as Redis's may be, and what lies deeper is an error in its place.
#[test]
fn replies_are_nested_as_deep_as_by_redis() {
    use std::io::{Read as _, Write as _};
    const DEEPEST: usize = 7994;
    for kind in [Kind::Tarn, Kind::Redis82] {
        let Some(server) = Server::start(kind, &[]) else { continue };
        for (depth, end) in [(DEEPEST, "$1\r\nx\r\n"), (DEEPEST + 1, "-ERR reached lua stack limit\r\n")] {
            let script = format!("local a = {{'x'}} for i = 2, {depth} do a = {{a}} end return a");
            let mut stream = std::net::TcpStream::connect(("127.0.0.1", server.port())).unwrap();
            stream.write_all(&[encode(&["EVAL", &script, "0"]), encode(&["QUIT"])].concat()).unwrap();
            let mut reply = String::new();
            stream.read_to_string(&mut reply).unwrap();
            assert_eq!(reply, ["*1\r\n".repeat(depth), end.into(), "+OK\r\n".into()].concat(), "{kind:?}, {depth}");
        }
    }
}
