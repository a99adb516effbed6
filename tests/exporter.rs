//! Debian's `prometheus-redis-exporter` beside Tarn: what it tells of Redis 7.0 and 8.2 after the same work, it tells of Tarn, and
//! what the stock dashboard for it (Grafana's number 763) draws moves under load. A machine without it says so and passes.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::resp::Client;
use common::server::{Kind, Server, free_port, has_program, notice};
use common::wait::until;

const EXPORTER: &str = "prometheus-redis-exporter";

/// What Tarn does not have: the sizes of keys in INFO (COMPAT.md), and directives of 7.0 that 8.2 does not tell of either.
const LACKS: &[&str] = &["_distrib_", "key=\"aof-disable-auto-gc", "key=\"io-threads-do-reads"];

/// Directives; other servers have others.
const CONFIG: &str = "redis_config_value";

/// May be greater than 0 on Redis, and is 0 on Tarn: nothing forks, there is no backlog for replicas, keys that have expired are found by an index and not
/// by samples, no memory is left out of what is counted, and the allocator tells of none that it keeps. Of the log's buffer and of the syncs that are
/// due each tells how it is at that moment; how often a sync or a sweep took too long, and whether the clock's second ended during a save, is chance.
const ZERO_HERE: &[&str] = &[
    "redis_latest_fork_seconds",
    "redis_cpu_user_children_seconds_total",
    "redis_cpu_sys_children_seconds_total",
    "redis_rdb_last_bgsave_duration_sec",
    "redis_rdb_last_cow_size_bytes",
    "redis_aof_last_cow_size_bytes",
    "redis_replication_backlog_bytes",
    "redis_master_repl_offset",
    "redis_expired_stale_percentage",
    "redis_mem_not_counted_for_eviction_bytes",
    "redis_allocator_rss_bytes",
    "redis_config_io_threads",
    "redis_aof_buffer_length",
    "redis_aof_pending_bio_fsync",
    "redis_aof_delayed_fsync",
    "redis_expired_time_cap_reached_total",
];

/// -1 for what has not happened, or is not there, as on Redis.
const MAY_BE_NEGATIVE: &[&str] = &[
    "redis_aof_current_rewrite_duration_sec",
    "redis_aof_last_rewrite_duration_sec",
    "redis_rdb_current_bgsave_duration_sec",
    "redis_rdb_last_bgsave_duration_sec",
    "redis_second_repl_offset",
    "redis_mem_fragmentation_bytes",
    "redis_allocator_frag_bytes",
    "redis_allocator_rss_bytes",
];

/// What both tell must be one number, or one for each key, database and command; but of INFO, which is called until something
/// has happened.
const SAME: &[&str] = &[
    "redis_up",
    "redis_exporter_last_scrape_error",
    "redis_connected_clients",
    "redis_blocked_clients",
    "redis_pubsub_channels",
    "redis_pubsub_patterns",
    "redis_keyspace_hits_total",
    "redis_keyspace_misses_total",
    "redis_expired_keys_total",
    "redis_evicted_keys_total",
    "redis_rejected_connections_total",
    "redis_commands_total",
    "redis_commands_failed_calls_total",
    "redis_commands_rejected_calls_total",
    "redis_errors_total",
    "redis_total_error_replies",
    "redis_latency_percentiles_usec_count",
    "redis_number_of_cached_scripts",
    "redis_slowlog_length",
    "redis_db_keys",
    "redis_db_keys_expiring",
    "redis_config_maxclients",
    "redis_rdb_last_bgsave_status",
    "redis_aof_last_write_status",
    "redis_loading_dump_file",
    "redis_key_size",
    "redis_key_value",
    "redis_key_value_as_string",
    "redis_key_group_count",
    "redis_keys_count",
    "redis_stream_length",
    "redis_stream_groups",
    "redis_stream_group_consumers",
    "redis_stream_group_messages_pending",
    "redis_stream_group_consumer_messages_pending",
    "redis_stream_group_last_delivered_id",
    "redis_stream_last_generated_id",
];

/// What the dashboard draws, and whether it is a rate that moves under load.
const DASHBOARD: &[(&str, bool)] = &[
    ("redis_uptime_in_seconds", false),
    ("redis_connected_clients", false),
    ("redis_memory_used_bytes", false),
    ("redis_memory_max_bytes", false),
    ("redis_commands_processed_total", true),
    ("redis_keyspace_hits_total", true),
    ("redis_keyspace_misses_total", true),
    ("redis_net_input_bytes_total", true),
    ("redis_net_output_bytes_total", true),
    ("redis_db_keys{db=\"db0\"}", true),
    ("redis_db_keys_expiring{db=\"db0\"}", true),
    ("redis_expired_keys_total", true),
    ("redis_evicted_keys_total", false),
    ("redis_commands_total{cmd=\"set\"}", true),
    ("redis_commands_duration_seconds_total{cmd=\"set\"}", true),
];

/// A running exporter; it ends with its guard.
struct Exporter {
    child: Child,
    port: u16,
}

impl Drop for Exporter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Exporter {
    fn of(server: &Server) -> Exporter {
        let port = free_port();
        let child = Command::new(EXPORTER)
            .args(["-redis.addr", &format!("redis://127.0.0.1:{}", server.port())])
            .args(["-web.listen-address", &format!("127.0.0.1:{port}"), "-redis-only-metrics"])
            .args(["-include-system-metrics", "-include-config-metrics", "-export-client-list"])
            .args(["-check-keys", "db0=some:*", "-check-streams", "db0=some:str*", "-count-keys", "db0=key:*"])
            .args(["-check-key-groups", "^(key|some)"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        until("the exporter listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Exporter { child, port }
    }

    /// Each series and its number, as it asks the server now.
    fn scrape(&self) -> BTreeMap<String, f64> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let lines = text.lines().filter(|line| line.starts_with("redis_"));
        let number = |line: &str| {
            let (series, number) = line.rsplit_once(' ').unwrap();
            (series.to_owned(), number.parse().unwrap_or_else(|_| panic!("{line}")))
        };
        lines.map(number).collect()
    }
}

fn name_of(series: &str) -> &str {
    series.split('{').next().unwrap()
}

/// A series without what is content: names of labels, and the values of those that name a command, a database, a key.
fn shape_of(series: &str) -> String {
    let Some((name, labels)) = series.split_once('{') else { return series.to_owned() };
    let label = |label: &str| {
        let (key, value) = label.split_once('=').unwrap_or((label, ""));
        let tells = ["cmd", "db", "err", "key", "stream", "group", "consumer", "quantile"].contains(&key);
        if tells { format!("{key}={value}") } else { key.to_owned() }
    };
    format!("{name} {}", labels.trim_end_matches('}').split("\",").map(label).collect::<Vec<_>>().join(","))
}

/// Some of everything, the same on each server; what is returned is to live on.
fn work(server: &Server) -> Vec<Client> {
    let (mut client, mut waits, mut hears) = (server.client(), server.client(), server.client());
    client.call("CONFIG SET latency-monitor-threshold 20 slowlog-log-slower-than 0");
    for n in 0..300 {
        client.call(&format!("SET key:{n} {}", "value".repeat(100)));
        client.call(&format!("GET key:{}", n * 2));
    }
    for command in [
        "EXPIRE key:250 10000", // not written again
        "PEXPIRE key:2 1",
        "HSET some:hash f v g w",
        "RPUSH some:list a b c",
        "SADD some:set a b",
        "ZADD some:zset 1 a 2 b",
        "SET some:number 17",
        "SET some:text hello",
        "PFADD some:log a b",
        "XADD some:stream 1-1 a b",
        "XADD some:stream 2-1 a b",
        "XGROUP CREATE some:stream g 0",
        "XREADGROUP GROUP g c COUNT 1 STREAMS some:stream >",
        "INCR some:hash",
        "LPUSH some:list",
        "NOSUCH",
        "EVAL return\u{a0}redis.call('incr','some:number') 0",
        "MULTI",
        "SET x y",
        "EXEC",
        "SELECT 3",
        "SET other db",
        "SELECT 0",
        "DEBUG SLEEP 0.05",
        "BGSAVE",
    ] {
        let args: Vec<_> = command.split(' ').map(|word| word.replace('\u{a0}', " ")).collect();
        client.try_call(&args).unwrap();
    }
    until("the key has expired", || client.info("stats", "expired_keys") == 1);
    until("the save is over", || client.info("persistence", "rdb_bgsave_in_progress") == 0);
    waits.send_raw(b"BLPOP nothing 0\r\n").unwrap();
    until("it waits", || client.info("clients", "blocked_clients") == 1);
    hears.call("SUBSCRIBE channel");
    client.call("CONFIG RESETSTAT");
    client.call("SET gone value PX 1");
    for n in 0..200 {
        client.call(&format!("GET key:{}", 100 + n * 2));
        client.call(&format!("SET key:{n} again"));
    }
    client.call("GETSET some:list x");
    until("the key has expired", || client.info("stats", "expired_keys") == 1);
    vec![client, waits, hears]
}

/// What the exporter tells of a server after the work, counts of the very same commands among it.
fn told(kind: Kind) -> Option<BTreeMap<String, f64>> {
    let server = Server::start(kind, &["--enable-debug-command", "yes", "--appendonly", "yes", "--databases", "4"])?;
    let clients = work(&server);
    until("it runs for a second", || server.client().info("server", "uptime_in_seconds") > 0);
    // A thread's times come from the system in hundredths of a second, of which all the work need not take one.
    let main_thread = |text: &str| {
        let times = text.lines().filter_map(|line| line.strip_prefix("used_cpu_")?.split_once("_main_thread:"));
        times.filter(|(_, seconds)| seconds.trim().parse::<f64>().unwrap() > 0.0).count()
    };
    until("its busiest thread shows both times", || main_thread(&server.client().call("INFO cpu").text()) == 2);
    let exporter = Exporter::of(&server);
    exporter.scrape();
    let told = exporter.scrape();
    drop(clients);
    Some(told)
}

#[test]
fn the_exporter_tells_of_tarn_what_it_tells_of_redis() {
    if !has_program(EXPORTER) {
        return;
    }
    let ours = told(Kind::Tarn).unwrap();
    for (series, number) in &ours {
        let name = name_of(series);
        assert!(number.is_finite(), "{series} {number}");
        assert!(*number >= 0.0 || name == CONFIG || MAY_BE_NEGATIVE.contains(&name), "{series} {number}");
    }
    let shapes: BTreeSet<_> = ours.keys().map(|series| shape_of(series)).collect();
    for kind in [Kind::Redis70, Kind::Redis82] {
        let Some(theirs) = told(kind) else {
            notice(&format!("skipped: no {} on this machine to compare metrics with", kind.title()));
            continue;
        };
        assert!(theirs.len() > 250, "{}", theirs.len());
        let lacking: Vec<_> =
            theirs.keys().map(|series| shape_of(series)).filter(|one| !shapes.contains(one)).collect();
        let lacking: Vec<_> = lacking.iter().filter(|shape| !LACKS.iter().any(|lacks| shape.contains(lacks))).collect();
        assert!(lacking.is_empty(), "{}: {lacking:?}", kind.title());
        let mut zero = BTreeSet::new();
        for (series, their) in &theirs {
            let (name, our) = (name_of(series), ours.get(series).copied());
            if SAME.contains(&name) && !series.contains("cmd=\"info\"") && our != Some(*their) {
                panic!("{series}: {our:?} here, {their} on {}", kind.title());
            }
            if *their > 0.0 && our == Some(0.0) && name != CONFIG && !ZERO_HERE.contains(&name) {
                zero.insert(name.to_owned());
            }
        }
        assert!(zero.is_empty(), "0 here, and more on {}: {zero:?}", kind.title());
        for name in SAME {
            assert!(ours.keys().any(|series| name_of(series) == *name), "{name}");
        }
    }
}

/// While several clients write and read, each number of the dashboard is there, and each rate is above 0.
#[test]
fn the_stock_dashboard_moves_under_load() {
    if !has_program(EXPORTER) {
        return;
    }
    let server = Server::tarn(&[]);
    let ended = AtomicBool::new(false);
    let load = |id: u64| {
        let (mut client, mut n) = (server.client(), 0u64);
        while !ended.load(Ordering::Relaxed) {
            n += 1;
            client.call(&format!("SET key:{id}:{n} value EX 1000"));
            client.call(&format!("SET soon:{id}:{n} value PX 1"));
            client.call(&format!("GET key:{id}:{}", n * 2));
            client.call(&format!("GET key:{id}:{}", n / 2 + 1));
        }
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..4).map(|id| scope.spawn(move || load(id))).collect();
        let exporter = Exporter::of(&server);
        let mut client = server.client();
        until("keys expire", || client.info("stats", "expired_keys") > 0);
        let first = exporter.scrape();
        let moved = |last: &BTreeMap<String, f64>| {
            DASHBOARD.iter().all(|(name, moves)| !moves || last.get(*name) > first.get(*name))
        };
        let mut last = BTreeMap::new();
        until("every rate is above 0", || {
            last = exporter.scrape();
            moved(&last) || running.iter().any(|one| one.is_finished())
        });
        ended.store(true, Ordering::Relaxed);
        for (name, moves) in DASHBOARD {
            let (first, last) = (first.get(*name), last.get(*name));
            assert!(first.is_some() && last.is_some(), "{name}");
            assert!(!moves || first < last, "{name}: {first:?}, {last:?}");
        }
        let [used, most, clients] = [2, 3, 1].map(|n: usize| last[DASHBOARD[n].0]);
        assert!(used > 0.0 && used < most && clients == 6.0, "{used} {most} {clients}");
        assert_eq!(last["redis_up"], 1.0);
    });
}
