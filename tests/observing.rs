//! What the server tells of the commands that have run: one entry and one count a command, whatever way it went; bounded memory;
//! and no number in INFO that never moves.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::BTreeMap;

use common::resp::{Client, Value};
use common::server::{Kind, Server};
use common::wait::until;

/// Commands of the slow log, the earliest first, without the one that asks.
fn logged(client: &mut Client) -> Vec<String> {
    let entries = client.call("SLOWLOG GET -1");
    let command = |entry: &Value| entry.items()[3].items().iter().map(Value::text).collect::<Vec<_>>().join(" ");
    entries.items().iter().rev().map(command).collect()
}

fn facts(client: &mut Client) -> BTreeMap<String, String> {
    let text = client.call("INFO everything").text();
    let line = |line: &str| line.split_once(':').map(|(name, value)| (name.to_owned(), value.to_owned()));
    text.lines().filter_map(line).collect()
}

/// Calls of a command, by INFO.
fn calls(client: &mut Client, name: &str) -> u64 {
    let facts = facts(client);
    let line = facts.get(&format!("cmdstat_{name}")).unwrap_or_else(|| panic!("no {name}"));
    line.strip_prefix("calls=").and_then(|rest| rest.split(',').next()).unwrap().parse().unwrap()
}

/// On a server that does with few what others do with many: on the network thread, on a shard's, in slices.
#[test]
fn a_command_is_told_of_once_wherever_it_runs() {
    let server = Server::built(Kind::ScaledTarn, &["--io-threads", "1"]);
    let mut client = server.client();
    for n in 0..3000 {
        client.try_call(&["RPUSH", "list", &format!("{}", 7 * n % 3001)]).unwrap();
        client.try_call(&["SADD", if n % 2 == 0 { "a" } else { "b" }, &format!("{n}")]).unwrap();
    }
    // An error, too.
    client.call("COPY list words");
    client.call("RPUSH words word");
    client.call("CONFIG RESETSTAT");
    assert!(client.call("SORT words").is_error());
    let told = facts(&mut client);
    assert_eq!(["errorstat_ERR", "total_error_replies"].map(|name| &*told[name]), ["count=1", "1"]);
    let mset: Vec<String> =
        std::iter::once("MSET".to_owned()).chain((0..3000).flat_map(|n| [format!("k{n}"), "v".to_owned()])).collect();
    client.call("CONFIG SET slowlog-log-slower-than 0 slowlog-max-len 1000");
    let ways = [
        ("set", "SET k v"),
        ("memory|purge", "MEMORY PURGE"),
        ("sort", "SORT list"),
        ("sunionstore", "SUNIONSTORE d a b"),
        ("copy", "COPY list list2"),
        ("mset", &mset.join(" ")),
        ("keys", "KEYS *"),
        ("eval", "EVAL local\u{a0}s=0;for\u{a0}i=1,200000\u{a0}do\u{a0}s=s+i\u{a0}end;return\u{a0}1 0"),
        ("flushall", "FLUSHALL"),
    ];
    for (name, command) in ways {
        client.call("CONFIG RESETSTAT");
        client.call("SLOWLOG RESET");
        let args: Vec<String> = command.split(' ').map(|word| word.replace('\u{a0}', " ")).collect();
        let reply = client.try_call(&args).unwrap();
        assert!(!reply.is_error(), "{name}: {reply:?}");
        let of_it = logged(&mut client).into_iter().filter(|line| line.starts_with(&args[0])).count();
        assert_eq!((name, of_it), (name, 1));
        assert_eq!((name, calls(&mut client, name)), (name, 1));
        let ran = facts(&mut client)[&format!("cmdstat_{name}")].split(',').nth(1).unwrap().to_owned();
        assert!(ran.starts_with("usec="), "{ran}");
    }
}

#[test]
fn who_waits_is_told_of_once_however_it_ends() {
    let server = Server::tarn(&["--slowlog-log-slower-than", "0", "--slowlog-max-len", "1000"]);
    let (mut waits, mut other) = (server.client(), server.client());
    waits.send_raw(b"BLPOP {x}a {y}b 0\r\n").unwrap();
    until("it waits", || other.info("clients", "blocked_clients") == 1);
    other.call("RPUSH {y}b v");
    waits.read().unwrap();
    waits.call("BLPOP none 0.01");
    waits.call("CLIENT SETNAME waits");
    waits.send_raw(b"BLMOVE from to LEFT LEFT 0\r\n").unwrap();
    until("it waits", || other.info("clients", "blocked_clients") == 1);
    let id = other.call("CLIENT LIST").text();
    let id = id.lines().find(|line| line.contains("name=waits")).unwrap();
    let id = id.split_once("id=").and_then(|(_, rest)| rest.split(' ').next()).unwrap().to_owned();
    other.call(&format!("CLIENT UNBLOCK {id}"));
    waits.read().unwrap();
    let logged = logged(&mut other);
    let place = |line: &str| logged.iter().position(|other| other == line).unwrap();
    assert!(place("RPUSH {y}b v") < place("BLPOP {x}a {y}b 0"), "who wakes somebody has run before: {logged:?}");
    let waited: Vec<&String> = logged.iter().filter(|line| line.starts_with("BL")).collect();
    assert_eq!(waited, ["BLPOP {x}a {y}b 0", "BLPOP none 0.01", "BLMOVE from to LEFT LEFT 0"]);
    assert_eq!((calls(&mut other, "blpop"), calls(&mut other, "blmove")), (2, 1));
}

#[test]
fn entries_are_small_whatever_the_arguments() {
    let server = Server::tarn(&["--slowlog-log-slower-than", "0", "--commandlog-request-larger-than", "0"]);
    let mut client = server.client();
    let large = "x".repeat(1_000_000);
    client.try_call(&["CLIENT", "SETNAME", &large]).unwrap();
    client.try_call(&["SET", "k", &large]).unwrap();
    let before = client.info("memory", "used_memory");
    let many: Vec<&str> = std::iter::once("DEL").chain(std::iter::repeat_n(&large[..1000], 1000)).collect();
    for _ in 0..100 {
        client.try_call(&["SET", "k", &large]).unwrap();
        client.try_call(&many).unwrap();
    }
    until("buffers are given back", || client.info("memory", "used_memory") < before + (3 << 20));
    let entries = client.call("SLOWLOG GET -1");
    assert!(entries.items().len() <= 128);
    for entry in entries.items() {
        let (args, name) = (entry.items()[3].items(), entry.items()[5].bytes().unwrap());
        assert!(name.len() < 160 && args.len() <= 32 && args.iter().all(|arg| arg.bytes().unwrap().len() < 160));
    }
}

/// As in Redis, the next entry finds out.
#[test]
fn a_log_that_is_to_be_shorter_is_cut_with_its_next_entry() {
    let server = Server::tarn(&["--slowlog-log-slower-than", "0"]);
    let mut client = server.client();
    client.call("SLOWLOG RESET");
    (0..5).for_each(|_| _ = client.call("PING"));
    client.call("CONFIG SET slowlog-log-slower-than -1 slowlog-max-len 2");
    assert_eq!(client.call("SLOWLOG LEN"), Value::Int(6));
    client.call("CONFIG SET slowlog-log-slower-than 0");
    assert_eq!(client.call("SLOWLOG LEN"), Value::Int(2));
    client.call("CONFIG SET slowlog-max-len 0");
    assert_eq!(client.call("SLOWLOG LEN"), Value::Int(2));
}

/// All that is kept of commands.
#[test]
fn resetstat_begins_anew() {
    let server = Server::tarn(&["--appendfsync", "always"]);
    let mut client = server.client();
    client.call("SET k v");
    client.call("INCR k");
    client.call("GET");
    assert_ne!(facts(&mut client)["tarn_wait_log"], "count=0,usec=0");
    client.call("CONFIG RESETSTAT");
    let facts = facts(&mut client);
    let left: Vec<&String> = facts
        .keys()
        .filter(|name| ["cmdstat_", "errorstat_", "latency_perc"].iter().any(|of| name.starts_with(of)))
        .collect();
    assert_eq!(left, ["cmdstat_config|resetstat", "latency_percentiles_usec_config|resetstat"]);
    assert_eq!(facts["total_commands_processed"], "1");
    assert!(facts.iter().filter(|(name, _)| name.starts_with("tarn_wait_")).all(|(_, sum)| sum == "count=0,usec=0"));
}

/// Who has done nothing yet, or has forgotten what it did, tells of parts of nothing.
#[test]
fn a_part_of_nothing_is_a_number() {
    let server = Server::tarn(&[]);
    let mut client = server.client();
    for _ in 0..2 {
        for (name, value) in facts(&mut client) {
            let number = value.trim_end_matches('%').parse::<f64>();
            assert!(number.is_err() || number.is_ok_and(f64::is_finite), "{name}:{value}");
        }
        assert_eq!(client.call("CONFIG RESETSTAT").text(), "OK");
    }
}

/// Counters of INFO stats that a load has moved begin anew, each of them: what they count from here on is as little as it is.
#[test]
fn every_counter_begins_anew() {
    const LOAD: i64 = 300;
    let server = Server::tarn(&["--io-threads", "1"]);
    let mut client = server.client();
    // Who waited for the server's start may have been refused.
    client.call("CONFIG RESETSTAT");
    let pipeline: String = (0..LOAD).map(|n| format!("SET k{n} v\r\nGET k{n}\r\nGET none\r\nINCR k{n}\r\n")).collect();
    client.send_raw(pipeline.as_bytes()).unwrap();
    (0..4 * LOAD).for_each(|_| drop(client.read().unwrap()));
    // A buffer that has grown goes back once it is empty.
    client.call("SETRANGE large 100000 x");
    client.call("GET large");
    (0..20).for_each(|_| drop(server.client().call("PING")));
    let counters = [
        "total_connections_received",
        "total_commands_processed",
        "total_net_input_bytes",
        "total_net_output_bytes",
        "keyspace_hits",
        "keyspace_misses",
        "total_error_replies",
        "total_reads_processed",
        "total_writes_processed",
        "io_threaded_reads_processed",
        "io_threaded_writes_processed",
        "io_threaded_total_prefetch_batches",
        "io_threaded_total_prefetch_entries",
        "reply_buffer_shrinks",
        "reply_buffer_expands",
        "eventloop_cycles",
    ];
    let seen = |client: &mut Client| {
        let facts = facts(client);
        counters.map(|name| facts[name].parse::<i64>().unwrap())
    };
    let before = seen(&mut client);
    client.call("CONFIG RESETSTAT");
    let after = seen(&mut client);
    for ((name, before), after) in counters.iter().zip(before).zip(after) {
        // Some of what is told of it, and of its reply, comes after it.
        assert!(before > 0 && after <= before / 2, "{name}: {before}, then {after}");
    }
    let of = |name: &str| counters.iter().position(|one| *one == name).unwrap();
    let exact = ["keyspace_hits", "keyspace_misses", "total_error_replies", "total_connections_received"];
    assert_eq!(exact.map(|name| before[of(name)]), [LOAD + 1, LOAD, LOAD, 20]);
    assert_eq!(exact.map(|name| after[of(name)]), [0; 4]);
}

/// Those that only limits and failures move as well.
#[test]
fn what_was_counted_of_limits_begins_anew() {
    let server = Server::tarn(&["--maxclients", "3"]);
    let mut client = server.client();
    client.call("CONFIG SET maxdisk 1");
    until("there is no room", || client.info("stats", "total_eviction_exceeded_time") > 0);
    client.call("CONFIG SET maxdisk 0");
    until("there is room", || client.info("stats", "current_eviction_exceeded_time") == 0);
    client.call("CONFIG SET client-query-buffer-limit 1mb");
    until("a request is too large", || {
        _ = Client::connect(server.port()).map(|mut other| other.try_call(&["GET", &"k".repeat(2 << 20)]));
        client.info("stats", "client_query_buffer_limit_disconnections") > 0
    });
    until("one is too many", || {
        let mut others = [(); 3].map(|()| Client::connect(server.port()).unwrap());
        others.iter_mut().for_each(|other| _ = other.try_call(&["PING"]));
        client.info("stats", "rejected_connections") > 0
    });
    for request in ["SET k v", "HSET h f v", "PEXPIRE k 1", "HPEXPIRE h 1 FIELDS 1 f", "SET large v"] {
        assert!(!client.call(request).is_error());
    }
    let payload = client.call("DUMP large");
    client.try_call(&[&b"RESTORE"[..], b"copy", b"0", payload.bytes().unwrap()]).unwrap();
    let counters = [
        "total_eviction_exceeded_time",
        "client_query_buffer_limit_disconnections",
        "rejected_connections",
        "expired_keys",
        "expired_subkeys",
        "dump_payload_sanitizations",
    ];
    until("all are counted", || counters.iter().all(|name| client.info("stats", name) > 0));
    client.call("CONFIG RESETSTAT");
    assert_eq!(counters.map(|name| client.info("stats", name)), [0; 6]);
}

/// A field of a connection's line in CLIENT LIST.
fn listed(client: &mut Client, id: i64, name: &str) -> u64 {
    let line = client.call(&format!("CLIENT LIST ID {id}")).text();
    let field = line.split_whitespace().find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
    field.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{name}: {line}"))
}

#[test]
fn what_a_connection_sends_and_gets_is_counted() {
    let server = Server::tarn(&[]);
    let (mut client, mut other) = (server.client(), server.client());
    let id = other.call("CLIENT ID").int().unwrap();
    let seen = |client: &mut Client| ["tot-net-in", "tot-net-out", "tot-cmds"].map(|name| listed(client, id, name));
    let before = seen(&mut client);
    for (request, reply, commands) in [
        ("PING\r\n", "+PONG\r\n", 1),
        // What runs elsewhere, what waits, what is refused.
        ("WAITAOF 0 0 0\r\n", "*2\r\n:0\r\n:0\r\n", 1),
        ("WAIT 1 1\r\n", ":0\r\n", 1),
        ("MULTI\r\nPING\r\nEXEC\r\n", "+OK\r\n+QUEUED\r\n*1\r\n+PONG\r\n", 3),
    ] {
        let before = seen(&mut client);
        other.send_raw(request.as_bytes()).unwrap();
        (0..commands).for_each(|_| drop(other.read().unwrap()));
        let expected = [before[0] + request.len() as u64, before[1] + reply.len() as u64, before[2] + commands];
        assert_eq!(seen(&mut client), expected, "{request}");
    }
    assert!(before.iter().all(|number| *number > 0));
}

/// Connections of each network thread, which have them by turns.
#[test]
fn threads_share_the_connections_and_let_go_of_them() {
    let server = Server::tarn(&["--io-threads", "2"]);
    let mut client = server.client();
    let seen = |client: &mut Client| {
        let of =
            |line: &str| line.strip_prefix("io_thread_")?.split("clients=").nth(1)?.split(',').next()?.parse().ok();
        client.call("INFO threads").text().lines().filter_map(of).collect::<Vec<u64>>()
    };
    until("connections of the start are gone", || seen(&mut client).iter().sum::<u64>() == 1);
    let mut others: Vec<Client> = (0..10).map(|_| server.client()).collect();
    others.iter_mut().for_each(|other| assert_eq!(other.call("SUBSCRIBE c").items().len(), 3));
    let mut shares = seen(&mut client);
    shares.sort_unstable();
    assert_eq!(shares, [5, 6]);
    drop(others);
    until("they are let go", || seen(&mut client).iter().sum::<u64>() == 1);
}

/// What only failures and limits move, and what shows but for a moment; beginnings of names.
const RARE: &[&str] = &[
    "aof_buffer_length",
    "mem_aof_buffer",
    "mem_not_counted_for_evict",
    "expired_stale_perc",
    "acl_access_denied_",
    "aof_delayed_fsync",
    "aof_pending_bio_fsync",
    "aof_rewrites_consecutive_failures",
    "aof_rewrite_",
    "async_loading",
    "client_output_buffer_limit_disconnections",
    "client_query_buffer_limit_disconnections",
    "current_save_",
    "evicted_",
    "current_eviction_exceeded_time",
    "total_eviction_exceeded_time",
    "expired_time_cap_reached_count",
    "lazyfree",
    "loading",
    "rdb_bgsave_in_progress",
    "rdb_current",
    "rdb_last_",
    "aof_last_rewrite_time_sec",
    "rejected_connections",
    "reply_buffer_shrinks",
    "tarn_backup_",
    "tarn_blind_",
    "tarn_busy_keys",
    "tarn_client_buffer_bytes",
    "tarn_commands_left_to_others",
    "tarn_commands_waiting_",
    "tarn_compactions_of_dead",
    "tarn_compactions_running",
    "tarn_dead_bytes",
    "tarn_dead_namespaces",
    "tarn_disk_full",
    "tarn_disk_limit",
    "tarn_dropped_tables",
    "tarn_evicted_objects",
    "tarn_evicting",
    "tarn_expiry_lag_ms",
    "tarn_expiry_late_ms",
    "tarn_flush_errors",
    "tarn_flush_running",
    "tarn_garbage_queue",
    "tarn_heaps_told",
    "tarn_level0_runs",
    "tarn_log_refuses",
    "tarn_long_commands_waiting",
    "tarn_metadata_cache_",
    "tarn_named_namespaces_with_keys",
    "tarn_passing_reads",
    "tarn_replayed_records",
    "tarn_rests",
    "tarn_store_reads",
    "tarn_store_reopens",
    "tarn_store_views_left",
    "tarn_tls_",
    "tarn_write_delay_us",
    "uptime_in_days",
    "aof_pending_rewrite",
    "tracking_total_prefixes",
];

/// Of samples of several seconds the last one, with the longest of all.
#[test]
fn the_latest_of_an_event_is_its_last_sample() {
    let server = Server::tarn(&["--latency-monitor-threshold", "1"]);
    let mut client = server.client();
    let history = |client: &mut Client| client.call("LATENCY HISTORY command").items().to_vec();
    until("there are two samples", || {
        client.try_call(&["EVAL", "for i = 1, 300000 do end", "0"]).unwrap();
        history(&mut client).len() >= 2
    });
    loop {
        let (before, latest) = (history(&mut client), client.call("LATENCY LATEST"));
        if before != history(&mut client) {
            continue;
        }
        let of_commands = latest.items().iter().find(|event| event.items()[0].text() == "command").unwrap().items();
        assert_eq!(of_commands[1..3], *before.last().unwrap().items());
        break;
    }
}

/// By what the command says of itself, however long it takes.
#[test]
fn commands_that_are_called_fast_have_an_event_of_their_own() {
    let server = Server::tarn(&["--latency-monitor-threshold", "1"]);
    let mut client = server.client();
    let members: Vec<String> = (0..200_000).map(|n| format!("m{n}")).collect();
    for (event, command) in [("fast-command", &["SADD", "set"][..]), ("command", &["SUNIONSTORE", "to"][..])] {
        client.call("LATENCY RESET");
        let args = command.iter().copied().chain(members.iter().map(String::as_str));
        assert!(!client.try_call(&args.collect::<Vec<_>>()).unwrap().is_error());
        assert_ne!(client.call(&format!("LATENCY HISTORY {event}")).items().len(), 0, "{event}");
    }
}

/// Names that COMPAT.md lists as always 0.
fn always_0() -> Vec<String> {
    let text = include_str!("../COMPAT.md");
    let (_, rest) = text.split_once("<!-- always 0: begin -->").unwrap();
    let (list, _) = rest.split_once("<!-- always 0: end -->").unwrap();
    list.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Clients that do a bit of everything, and go on doing it.
fn load(server: &Server) -> Vec<Client> {
    let mut client = server.client();
    for n in 0..2000 {
        client.call(&format!("SET key{n} value{n} PX {}", if n % 2 == 0 { 1 } else { 100_000 }));
        client.call(&format!("GET key{n}"));
    }
    client.call("HSET h f v g w");
    client.call("HPEXPIRE h 1 FIELDS 1 f");
    client.call("HEXPIRE h 100 FIELDS 1 g");
    client.call("AUTH default wrong");
    client.call("CONFIG SET requirepass secret");
    client.call("AUTH wrong");
    client.call("AUTH secret");
    client.try_call(&["CONFIG", "SET", "requirepass", ""]).unwrap();
    let payload = client.call("DUMP key1");
    client.try_call(&[&b"RESTORE"[..], b"copy", b"0", payload.bytes().unwrap()]).unwrap();
    client.try_call(&["EVAL", "return redis.call('GET', KEYS[1])", "1", "key1"]).unwrap();
    let library = "#!lua name=lib\nredis.register_function('f', function() return 1 end)";
    client.try_call(&["FUNCTION", "LOAD", library]).unwrap();
    client.call("FCALL f 0");
    let pipeline: String = (0..500).map(|n| format!("GET key{n}\r\nSET other{n} v\r\n")).collect();
    client.send_raw(pipeline.as_bytes()).unwrap();
    (0..1000).for_each(|_| drop(client.read().unwrap()));
    client.call("SAVE");
    client.call("SET unsaved v");
    let mut others: Vec<Client> = (0..4).map(|_| server.client()).collect();
    others[0].send_raw(b"BLPOP nolist 1000\r\n").unwrap();
    let mut waits_for_end = server.client();
    waits_for_end.call("XADD stream * f v");
    waits_for_end.call("XGROUP CREATE stream g $");
    waits_for_end.send_raw(b"XREADGROUP GROUP g c BLOCK 0 STREAMS stream >\r\n").unwrap();
    for words in ["SUBSCRIBE channel", "PSUBSCRIBE pattern*", "SSUBSCRIBE shard"] {
        others[1].send_raw(format!("{words}\r\n").as_bytes()).unwrap();
    }
    others[2].call("HELLO 3");
    others[2].call("CLIENT TRACKING ON");
    others[2].call("GET key1");
    others[3].call("WATCH key1");
    others.push(waits_for_end);
    others.push(client);
    others
}

#[test]
fn no_number_stays_0_but_those_that_are_listed() {
    let server = Server::tarn(&["--io-threads", "2"]);
    let _clients = load(&server);
    let mut client = server.client();
    let (listed, mut still) = (always_0(), Vec::new());
    let is_0 = |value: &str| value.parse::<f64>() == Ok(0.0);
    until("the counters have moved", || {
        client.call("GET key1");
        let facts = facts(&mut client);
        let zero = facts.iter().filter(|(_, value)| is_0(value)).map(|(name, _)| name);
        let expected = |name: &str| listed.iter().any(|of| of == name) || RARE.iter().any(|of| name.starts_with(of));
        still = zero.filter(|name| !expected(name)).cloned().collect();
        for name in &listed {
            assert!(facts.get(name).is_none_or(|value| is_0(value)), "{name} is no longer always 0");
        }
        still.retain(|name| name != "redis_git_sha1" && name != "redis_git_dirty" && name != "redis_build_id");
        still.is_empty() || still.iter().all(|name| name == "master_replid2")
    });
}

/// Numbers of what there is at the moment, which a load moves.
const COUNTED: [&str; 23] = [
    "blocked_clients",
    "clients_in_timeout_table",
    "connected_clients",
    "number_of_cached_scripts",
    "number_of_functions",
    "number_of_libraries",
    "pubsub_channels",
    "pubsub_clients",
    "pubsub_patterns",
    "pubsubshard_channels",
    "tarn_clients_elsewhere",
    "tarn_dirty_bytes",
    "tarn_dirty_objects",
    "tarn_namespaces_with_keys",
    "tarn_table_objects",
    "total_blocking_keys",
    "total_blocking_keys_on_nokey",
    "total_watched_keys",
    "tracking_clients",
    "tracking_total_items",
    "tracking_total_keys",
    "used_memory_functions",
    "watching_clients",
];

/// Clients that are gone, and what was flushed, are counted no more.
#[test]
fn what_is_gone_is_counted_no_more() {
    let server = Server::tarn(&["--io-threads", "2"]);
    let mut client = server.client();
    assert_eq!(client.call("SAVE").text(), "OK");
    until("connections of the start are gone", || facts(&mut client)["connected_clients"] == "1");
    let before = facts(&mut client);
    let others = load(&server);
    let moved = |facts: &BTreeMap<String, String>| {
        COUNTED.into_iter().filter(|name| facts[*name] != before[*name]).collect::<Vec<_>>()
    };
    let mut found = Vec::new();
    until("all are counted", || {
        found = moved(&facts(&mut client));
        found.len() == COUNTED.len()
    });
    drop(others);
    for command in ["FLUSHALL", "SCRIPT FLUSH", "FUNCTION FLUSH"] {
        assert_eq!(client.call(command).text(), "OK");
    }
    until("none is counted", || {
        // What is reclaimed of a flushed database is noted, and a little dirt waits for minutes to be flushed.
        assert_eq!(client.call("SAVE").text(), "OK");
        let now = facts(&mut client);
        let left = moved(&now);
        if left != found {
            let values = left.iter().map(|&name| (name, &before[name], &now[name]));
            eprintln!("still counted, of what there was: {:?}", values.collect::<Vec<_>>());
        }
        found = left;
        found.is_empty()
    });
}
