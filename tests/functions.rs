//! Functions: they survive restarts and crashes, everybody runs the latest, and bad libraries harm nobody.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use common::resp::{Client, Value, encode};
use common::server::{Kind, Server};
use common::wait::{PATIENCE, until};

/// A library of this name with one function, called alike.
fn library(name: &str, body: &str) -> String {
    format!("#!lua name={name}\nredis.register_function('{name}', function(keys, args) {body} end)")
}

fn load(client: &mut Client, code: &str) -> Value {
    client.try_call(&["FUNCTION", "LOAD", "REPLACE", code]).unwrap()
}

/// The names of all libraries.
fn names(client: &mut Client) -> BTreeSet<String> {
    let list = client.call("FUNCTION LIST");
    list.items().iter().map(|library| library.items()[1].text()).collect()
}

#[test]
fn functions_survive_stops_and_kills() {
    let mut server = Server::tarn(&[]);
    let mut client = server.client();
    for n in 0..20 {
        assert_eq!(load(&mut client, &library(&format!("f{n}"), &format!("return {n}"))).text(), format!("f{n}"));
    }
    load(&mut client, &library("f1", "return redis.call('incr', keys[1])"));
    client.call("FUNCTION DELETE f2");
    client.call("FLUSHALL");
    for kill in [true, false, true, false] {
        // From the log, then from the store, and from both.
        if kill {
            server.restart_after_kill()
        } else {
            server.restart()
        }
        client = server.client();
        assert_eq!(client.call("FUNCTION STATS").items()[3].items()[1].items()[1], Value::Int(19));
        assert_eq!(client.call("FCALL f3 0"), Value::Int(3));
        assert!(client.call("FCALL f1 1 n").int() >= Some(1));
        assert_eq!(client.call("FCALL f2 0").text(), "ERR Function not found");
        assert_eq!(client.info("memory", "number_of_libraries"), 19);
    }
    // What the store holds is removed, and stays so.
    client.call("FUNCTION DELETE f3");
    load(&mut client, &library("f4", "return 'new'"));
    for kill in [true, false] {
        if kill {
            server.restart_after_kill()
        } else {
            server.restart()
        }
        client = server.client();
        assert_eq!(client.call("FCALL f3 0").text(), "ERR Function not found");
        assert_eq!(client.call("FCALL f4 0").text(), "new");
    }
    let dumped = client.call("FUNCTION DUMP");
    client.call("FUNCTION FLUSH");
    server.restart_after_kill();
    client = server.client();
    assert!(names(&mut client).is_empty());
    let payload = dumped.bytes().unwrap();
    assert_eq!(client.try_call(&[b"FUNCTION".as_slice(), b"RESTORE", payload]).unwrap().text(), "OK");
    server.restart_after_kill();
    assert_eq!(server.client().call("FCALL f4 0").text(), "new");
}

/// Whatever was acknowledged is there after a kill; what was not is there as a whole or not at all.
#[test]
fn what_was_acknowledged_survives_a_kill() {
    for fsync in ["always", "everysec", "no"] {
        let mut server = Server::tarn(&["--appendfsync", fsync, "--shards", "4"]);
        let mut known: BTreeSet<String> = BTreeSet::new();
        for round in 0..3u64 {
            let mut client = server.client();
            assert_eq!(names(&mut client), known, "{fsync}, round {round}");
            let acknowledged = std::sync::Mutex::new((known.clone(), known.clone()));
            std::thread::scope(|scope| {
                let acknowledged = &acknowledged;
                scope.spawn(move || {
                    for n in 0.. {
                        let name = format!("l{round}_{n}");
                        let (before, mut after) = (acknowledged.lock().unwrap().0.clone(), BTreeSet::new());
                        let code = library(&name, "return 1");
                        let old = format!("l{round}_{}", n - 1);
                        let command = match n % 10 {
                            9 => vec!["FUNCTION", "FLUSH"],
                            3 | 6 => vec!["FUNCTION", "DELETE", &old],
                            _ => vec!["FUNCTION", "LOAD", &code],
                        };
                        if n % 10 != 9 {
                            after.clone_from(&before);
                        }
                        match n % 10 {
                            9 => {}
                            3 | 6 => drop(after.remove(&old)),
                            _ => drop(after.insert(name.clone())),
                        }
                        acknowledged.lock().unwrap().1.clone_from(&after);
                        match client.try_call(&command) {
                            Ok(reply) => assert!(!reply.is_error(), "{command:?}: {reply:?}"),
                            Err(_) => return,
                        }
                        acknowledged.lock().unwrap().0 = after;
                    }
                });
                std::thread::sleep(Duration::from_millis(100 + 37 * round));
                server.kill9();
            });
            server.spawn();
            server.wait_ready();
            known = names(&mut server.client());
            let (last, next) = acknowledged.into_inner().unwrap();
            assert!(known == last || known == next, "{fsync}, round {round}: {known:?}, not {last:?} or {next:?}");
            let mut client = server.client();
            known.iter().for_each(|name| assert_eq!(client.call(&format!("FCALL {name} 0")), Value::Int(1)));
        }
    }
}

/// Whoever calls a function gets the one that was acknowledged last, or a later one, on every thread and in every shard.
#[test]
fn everybody_runs_the_latest() {
    const LAST: i64 = 150;
    for kind in [Kind::Tarn, Kind::ScaledTarn] {
        let server = Server::built(kind, &["--io-threads", "4", "--shards", "8"]);
        let mut client = server.client();
        load(&mut client, &library("f", "return 0"));
        let (acknowledged, done) = (AtomicI64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (mut client, acknowledged, done) = (server.client(), &acknowledged, &done);
                scope.spawn(move || {
                    let mut seen = 0;
                    for n in 0.. {
                        let least = acknowledged.load(Ordering::SeqCst).max(seen);
                        let call = match n % 3 {
                            0 => "FCALL f 0".to_owned(),
                            1 => format!("FCALL f 1 key{n}"),
                            _ => format!("FCALL f 3 a{n} b{n} c{thread}"),
                        };
                        seen = client.call(&call).int().unwrap();
                        assert!(seen >= least, "{call}: {seen}, though {least} was there");
                        if done.load(Ordering::SeqCst) {
                            break;
                        }
                    }
                });
            }
            for n in 1..=LAST {
                assert_eq!(load(&mut client, &library("f", &format!("return {n}"))).text(), "f");
                acknowledged.store(n, Ordering::SeqCst);
            }
            done.store(true, Ordering::SeqCst);
        });
    }
}

/// A call that is run again from its beginning does not find what its first run has left in its library's variables.
#[test]
fn a_call_that_is_run_again_finds_nothing_half_done() {
    let server = Server::built(Kind::ScaledTarn, &["--shards", "8", "--io-threads", "2"]);
    let mut client = server.client();
    let code = "#!lua name=l\nlocal busy = false redis.register_function('f', function(keys, args) \
                if busy then return redis.error_reply('half done') end busy = true \
                for i = 1, #args do redis.call('incr', args[i]) end busy = false return 'whole' end)";
    load(&mut client, code);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let mut client = server.client();
            scope.spawn(move || {
                for n in 0..200 {
                    let call = format!("FCALL f 0 a{} b{n} c{thread}", n % 7);
                    assert_eq!(client.call(&call).text(), "whole", "{call}");
                }
            });
        }
    });
    let sum: i64 = (0..7).map(|n| client.call(&format!("GET a{n}")).text().parse::<i64>().unwrap()).sum();
    assert_eq!(sum, 800);
}

/// What a library may do wrong while it is loaded; each ends by itself.
fn bad_libraries() -> Vec<(&'static str, String)> {
    let of = |body: &str| format!("#!lua name=bad\n{body}");
    vec![
        ("loop", of("while true do end")),
        ("loop after a function", of("redis.register_function('b', function() end) while true do end")),
        ("loop of logs", of("while true do redis.log(redis.LOG_DEBUG, 'x') end")),
        (
            "functions without end",
            of("local i = 0 while true do i = i + 1 redis.register_function('b' .. i, redis.log) end"),
        ),
        ("recursion", of("local function f() return 1 + f() end f()")),
        ("tail calls", of("local function f() return f() end f()")),
        ("doubling", of("local s = 'x' while true do s = s .. s end")),
        ("rep", of("local t = {} local i = 0 while true do i = i + 1 t[i] = ('x'):rep(1e6) .. i end")),
        ("pattern", of("local s = ('x'):rep(1e5) s:find(('x-'):rep(30) .. 'b')")),
        ("tables", of("local t = {} while true do t = {t} end")),
        ("error", of("redis.register_function('b', function() end) error('x')")),
        ("error after a function", of("redis.register_function('b', function() end) local x = nil + 1")),
        ("no function", of("local x = 1")),
        ("no text", of("")),
        ("no Lua", of("redis.register_function('b', function()")),
        ("long sum", of(&format!("local x = 1{}", "+1".repeat(300_000)))),
        ("parentheses", of(&format!("local x = {}1{}", "(".repeat(300_000), ")".repeat(300_000)))),
        ("long", of(&format!("--{}", "x".repeat(2 << 20)))),
        ("bytecode", of("\u{1b}Lua")),
        ("taken", of("redis.register_function('good', function() end)")),
    ]
}

#[test]
fn bad_libraries_end_and_leave_nothing() {
    let server = Server::tarn(&["--maxmemory", "256mb", "--shards", "8"]);
    let mut client = server.client();
    load(&mut client, &library("good", "return 1"));
    for (name, code) in bad_libraries() {
        let (mut bad, mut other, began) = (server.client(), server.client(), Instant::now());
        bad.set_timeout(Duration::from_millis(5));
        bad.send_raw(&encode(&["FUNCTION", "LOAD", &code])).unwrap();
        let reply = loop {
            if let Ok(reply) = bad.read() {
                break reply;
            }
            assert_eq!(other.call("SET other x").text(), "OK");
            assert!(began.elapsed() < PATIENCE, "{name} does not end");
        };
        assert!(reply.is_error(), "{name}: {reply:?}");
        assert_eq!(names(&mut client), BTreeSet::from(["good".to_owned()]), "after {name}");
        assert_eq!(client.call("FCALL good 0"), Value::Int(1), "after {name}");
        assert_eq!(client.call("FCALL b 0").text(), "ERR Function not found", "after {name}");
    }
}

/// A library that gathers more and more in its variables is begun anew, and others with it.
#[test]
fn a_library_that_gathers_without_end_harms_nobody() {
    let server = Server::tarn(&["--io-threads", "1"]);
    let mut client = server.client();
    let code = "#!lua name=l\nlocal t = {} redis.register_function('gather', function() t[#t + 1] = ('x'):rep(1e6) .. #t return #t end)";
    load(&mut client, code);
    load(&mut client, &library("good", "return 1"));
    let mut most = 0;
    for _ in 0..200 {
        most = most.max(client.call("FCALL gather 0").int().unwrap());
        assert_eq!(client.call("FCALL good 0"), Value::Int(1));
    }
    assert!((2..100).contains(&most), "{most} MB are kept");
}

#[test]
fn libraries_are_bounded_and_all_of_them_survive() {
    let mut server = Server::tarn(&[]);
    let mut client = server.client();
    let filler = "x".repeat(500_000);
    let code = |n: usize| format!("{} -- {filler}", library(&format!("l{n}"), "return 1"));
    let refused = (0..100).find(|n| {
        let reply = load(&mut client, &code(*n));
        assert!(!reply.is_error() || reply.text().starts_with("ERR libraries of functions may take "), "{reply:?}");
        reply.is_error()
    });
    let refused = refused.unwrap_or_default();
    assert!(refused >= 10, "{refused} libraries of half a megabyte");
    assert!(load(&mut client, &code(refused)).is_error());
    assert_eq!(load(&mut client, &code(1)).text(), "l1", "in place of another one");
    server.restart_after_kill();
    let mut client = server.client();
    assert_eq!(names(&mut client).len(), refused);
    assert_eq!(client.call("FUNCTION DELETE l0").text(), "OK");
    assert_eq!(load(&mut client, &code(refused)).text(), format!("l{refused}"));
    // There are more than a limit allows that has been lowered since: what makes them fewer is not refused.
    let mut limit = |limits| client.try_call(&["CONFIG", "SET", "client-output-buffer-limit", limits]).unwrap();
    assert_eq!(limit("normal 1mb 0 0").text(), "OK");
    assert!(load(&mut client, &library("s", "return 1")).is_error());
    assert_eq!(client.call("FUNCTION DELETE l2").text(), "OK");
    client.call("FUNCTION FLUSH");
    for n in 0..300 {
        assert!(
            !load(&mut client, &library(&format!("s{n}"), "return 1")).is_error(),
            "{n} small ones are far below it"
        );
    }
}

#[test]
fn kill_ends_functions_and_nothing_else() {
    let server = Server::tarn(&["--shards", "4"]);
    let mut client = server.client();
    load(&mut client, &library("loop", "while true do end"));
    load(&mut client, &library("writes", "redis.call('set', keys[1], 1) while true do end"));
    let (mut running, mut script) = (server.client(), server.client());
    running.send_raw(&encode(&["FCALL", "loop", "1", "key", "an arg"])).unwrap();
    until("it is seen", || !client.call("FUNCTION STATS").items()[1].is_nil());
    let stats = client.call("FUNCTION STATS");
    let seen = stats.items()[1].items();
    assert_eq!((seen[0].text(), seen[1].text()), ("name".to_owned(), "loop".to_owned()));
    let command: Vec<String> = seen[3].items().iter().map(Value::text).collect();
    assert_eq!(command, ["FCALL", "loop", "1", "key", "an arg"]);
    assert!(seen[5].int() >= Some(0));
    let only =
        |what: &str| format!("BUSY Redis is busy running a script. You can only call {what} KILL or SHUTDOWN NOSAVE.");
    assert_eq!(client.call("SCRIPT KILL").text(), only("FUNCTION"));
    assert_eq!(client.call("FUNCTION KILL").text(), "OK");
    let reply = running.read().unwrap().text();
    assert!(
        reply.starts_with("ERR Script killed by user with SCRIPT KILL.") && reply.contains(" script: loop"),
        "{reply}"
    );
    script.send_raw(&encode(&["EVAL", "while true do end", "0"])).unwrap();
    until("it is seen", || client.call("FUNCTION KILL").text() == only("SCRIPT"));
    assert!(client.call("FUNCTION STATS").items()[1].is_nil());
    assert_eq!(client.call("SCRIPT KILL").text(), "OK");
    assert!(script.read().unwrap().is_error());
    running.send_raw(&encode(&["FCALL", "writes", "1", "key"])).unwrap();
    let reply = running.read().unwrap().text();
    assert!(reply.contains("for longer than script-hold-limit"), "{reply}");
    assert_eq!(client.call("FUNCTION KILL").text(), "NOTBUSY No scripts in execution right now.");
    assert!(client.call("GET key").is_nil());
}

/// Payloads go from one server to the other, both ways.
#[test]
fn payloads_are_exchanged_with_redis() {
    let Some(redis) = Server::start(Kind::Redis82, &[]) else {
        common::server::notice("skipped: no Redis 8.2 on this machine to exchange libraries with");
        return;
    };
    let tarn = Server::tarn(&[]);
    let (mut a, mut b) = (tarn.client(), redis.client());
    for n in 0..5 {
        load(&mut a, &library(&format!("f{n}"), &format!("return '{}'", "long ".repeat(n * 50))));
    }
    for (from, to) in [(true, false), (false, true)] {
        let (from, to) = if from && !to { (&mut a, &mut b) } else { (&mut b, &mut a) };
        let dumped = from.call("FUNCTION DUMP");
        let payload = dumped.bytes().unwrap();
        assert_eq!(to.try_call(&[b"FUNCTION".as_slice(), b"RESTORE", payload, b"FLUSH"]).unwrap().text(), "OK");
        assert_eq!(names(to).len(), 5);
        for n in 0..5 {
            assert_eq!(to.call(&format!("FCALL f{n} 0")).text(), "long ".repeat(n * 50));
        }
    }
}

/// A payload of many libraries is loaded with nobody waiting; one that takes too much is refused and leaves nothing.
#[test]
fn a_payload_of_many_libraries_holds_up_nobody() {
    let server = Server::tarn(&["--shards", "4"]);
    let (mut client, mut other) = (server.client(), server.client());
    let payload = |count: usize, more: &str| {
        let codes: Vec<String> =
            (0..count).map(|n| format!("{}{more}", library(&format!("l{n}"), &format!("return {n}")))).collect();
        tarn::rdb::encode_functions(codes.iter().map(String::as_bytes))
    };
    client.set_timeout(Duration::from_millis(5));
    client.send_raw(&encode(&[b"FUNCTION".as_slice(), b"RESTORE", &payload(500, "")])).unwrap();
    let (mut asked, began) = (0, Instant::now());
    let reply = loop {
        if let Ok(reply) = client.read() {
            break reply;
        }
        assert_eq!(other.call("SET other x").text(), "OK");
        asked += 1;
        assert!(began.elapsed() < PATIENCE, "it does not end");
    };
    assert_eq!(reply.text(), "OK");
    assert!(asked > 0, "others were served meanwhile");
    assert_eq!(other.call("FCALL l499 0"), Value::Int(499));
    let filler = format!(" -- {}", "x".repeat(500_000));
    let reply = other.try_call(&[b"FUNCTION".as_slice(), b"RESTORE", &payload(20, &filler), b"REPLACE"]).unwrap();
    assert!(reply.is_error(), "{reply:?}");
    assert_eq!(names(&mut other).len(), 500);
    assert_eq!(other.call("FCALL l1 0"), Value::Int(1));
}

/// What a library takes counts as soon as it is loaded: none is that comes after too much, as the last one here shows.
#[test]
fn a_payload_of_too_much_is_loaded_no_further() {
    let server = Server::tarn(&[]);
    let mut client = server.client();
    let text = format!("return '{}'", "x".repeat(300_000));
    let mut codes: Vec<String> = (0..20).map(|n| library(&format!("l{n}"), &text)).collect();
    codes.push("#!lua name=bad\nthis is no Lua".to_owned());
    let payload = tarn::rdb::encode_functions(codes.iter().map(String::as_bytes));
    for policy in ["APPEND", "FLUSH"] {
        let args = [b"FUNCTION".as_slice(), b"RESTORE", &payload, policy.as_bytes()];
        let reply = client.try_call(&args).unwrap().text();
        assert!(reply.starts_with("ERR libraries of functions may take "), "{reply}");
    }
    assert!(names(&mut client).is_empty());
}

/// A function may be begun again where it may take long: who ends it meanwhile is not told so in vain.
#[test]
fn a_kill_is_not_lost_when_a_call_is_run_again() {
    let server = Server::tarn(&["--shards", "4"]);
    let (mut client, mut running) = (server.client(), server.client());
    load(&mut client, &library("loop", "while true do end"));
    for round in 0..200 {
        running.send_raw(&encode(&["FCALL", "loop", "1", "key"])).unwrap();
        std::thread::sleep(std::time::Duration::from_micros(50 * round));
        while client.call("FUNCTION KILL").text() != "OK" {}
        let reply = running.read().unwrap().text();
        assert!(reply.starts_with("ERR Script killed by user"), "{round}: {reply}");
        assert!(client.call("FUNCTION STATS").items()[1].is_nil(), "{round}");
    }
}

/// Whenever a script is ended: who was told so finds nothing of it, and who was not finds all.
#[test]
fn a_script_that_is_ended_leaves_nothing() {
    let server = Server::tarn(&["--shards", "4"]);
    let (mut client, mut running) = (server.client(), server.client());
    let script = "for i = 1, 200000 do end redis.call('set', KEYS[1], ARGV[1]) return 'done'";
    let mut ended = 0;
    for round in 1..=200u64 {
        let number = round.to_string();
        running.send_raw(&encode(&["EVAL", script, "1", "key", &number])).unwrap();
        std::thread::sleep(std::time::Duration::from_micros(round * 7919 % 20_000));
        let killed = client.call("SCRIPT KILL").text() == "OK";
        let reply = running.read().unwrap().text();
        let is_set = client.call("GET key").text() == number;
        assert_eq!((killed, is_set), (reply.starts_with("ERR Script killed"), reply == "done"), "{round}: {reply}");
        assert_ne!(killed, is_set, "{round}");
        ended += u64::from(killed);
    }
    assert!((1..200).contains(&ended), "{ended} were ended");
}
