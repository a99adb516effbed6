//! The process, its clients and threads, and what there is none of: replicas and a cluster.

use std::sync::atomic::Ordering;

use super::Facts;
use super::fact::Lack::{Cluster, Replication};
use super::fact::{Entry, Family, Field, Value, counter, gauge, grows, moves, nothing, text};
use crate::config::settings::{BindAddr, Supervised};
use crate::handler::session::{Client, Waiting, bits};
use crate::server::REDIS_VERSION;
use crate::util::sys;

pub(super) const SERVER: &[Entry] = &[
    text("redis_version", |_| REDIS_VERSION.into()),
    text("tarn_version", |_| env!("CARGO_PKG_VERSION").into()),
    text("redis_git_sha1", |_| "00000000".into()),
    text("redis_git_dirty", |_| "0".into()),
    text("redis_build_id", |_| "0".into()),
    text("redis_mode", |_| "standalone".into()),
    text("os", |_| sys::os_name().into()),
    text("arch_bits", |_| usize::BITS.to_string().into()),
    text("monotonic_clock", |_| "POSIX clock_gettime".into()),
    text("multiplexing_api", |_| "epoll".into()),
    text("atomicvar_api", |_| "rust-core".into()),
    text("gcc_version", |_| "0.0.0".into()),
    text("process_id", |_| std::process::id().to_string().into()),
    text("process_supervised", |f| supervised(f.settings.supervised).into()),
    text("run_id", |f| f.server.run_id.as_str().into()),
    text("tcp_port", |f| match f.server.port.load(Ordering::Relaxed) {
        0 => f.settings.tls.port.to_string().into(),
        port => port.to_string().into(),
    }),
    gauge("server_time_usec", "The server's clock, microseconds since 1970.", |_| crate::util::time::now_us().into()),
    gauge("uptime_in_seconds", "Seconds since the server was started.", |f| uptime_s(f).into()),
    gauge("uptime_in_days", "Days since the server was started.", |f| (uptime_s(f) / 86_400).into()),
    gauge("hz", "Sweeps of a shard's expired keys a second.", |_| 10u64.into()),
    gauge("configured_hz", "Sweeps of a shard's expired keys a second.", |_| 10u64.into()),
    gauge("lru_clock", "The clock of idle times, in seconds, of 24 bits.", |f| ((f.now_ms / 1000) & 0xff_ffff).into()),
    text("executable", |_| path(std::env::current_exe().ok().as_deref()).into()),
    text("config_file", |f| path(f.server.config.file()).into()),
    gauge("io_threads_active", "Whether more than one thread serves connections.", |f| {
        (f.server.threads.lock().len() > 1).into()
    }),
    Entry::Many(Family {
        prefix: "listener",
        label: "listener",
        fields: &[],
        each: |f, visit| {
            for (number, listener) in listeners(f).into_iter().enumerate() {
                visit(&number.to_string(), &[listener.into()]);
            }
        },
    }),
];

fn uptime_s(facts: &Facts<'_>) -> u64 {
    facts.now_ms.saturating_sub(facts.server.started_ms) / 1000
}

fn path(path: Option<&std::path::Path>) -> String {
    path.map(|path| path.display().to_string()).unwrap_or_default()
}

fn supervised(by: Supervised) -> &'static str {
    match by {
        Supervised::No => "no",
        Supervised::Auto => "unknown",
        Supervised::Upstart => "upstart",
        Supervised::Systemd => "systemd",
    }
}

fn listeners(facts: &Facts<'_>) -> Vec<String> {
    let port = facts.server.port.load(Ordering::Relaxed);
    let address = |bind: &BindAddr| format!(",bind={}{}", if bind.optional { "-" } else { "" }, bind.host);
    let addresses: String = facts.settings.bind.iter().map(address).collect();
    let tcp = (port != 0).then(|| format!("name=tcp{addresses},port={port}"));
    let unix = facts.settings.unixsocket.as_ref().map(|path| format!("name=unix,bind={}", path.display()));
    let tls = (facts.settings.tls.port != 0).then(|| format!("name=tls{addresses},port={}", facts.settings.tls.port));
    tcp.into_iter().chain(unix).chain(tls).collect()
}

pub(super) const CLIENTS: &[Entry] = &[
    gauge("connected_clients", "Open connections.", |f| f.clients.len().into()),
    nothing("cluster_connections", Cluster),
    gauge("maxclients", "Connections that may be open at the same time.", |f| f.settings.maxclients.into()),
    gauge(
        "client_recent_max_input_buffer",
        "The largest query buffer of a connection in the last seconds, bytes.",
        |f| largest(f, 0),
    ),
    gauge("client_recent_max_output_buffer", "The largest output of a connection in the last seconds, bytes.", |f| {
        largest(f, 1)
    }),
    gauge("blocked_clients", "Clients that wait for a key, in WAIT, or for the end of CLIENT PAUSE.", |f| {
        count(f, |client| client.bits.load(Ordering::Relaxed) & (bits::BLOCKED | bits::POSTPONED) != 0)
    }),
    gauge("tracking_clients", "Clients that are told of changes of what they keep copies of.", |f| {
        f.server.engine.trackers.counts()[0].into()
    }),
    gauge("pubsub_clients", "Clients that have subscribed to something.", |f| count(f, Client::subscribes)),
    gauge("watching_clients", "Clients that watch keys.", |f| f.server.engine.watching.load(Ordering::Relaxed).into()),
    gauge("clients_in_timeout_table", "Clients that wait for a key no longer than some time.", |f| {
        count(f, |client| matches!(&*client.waiting.lock(), Waiting::For(_, until_ms) if *until_ms != 0))
    }),
    gauge("total_watched_keys", "Keys that clients watch.", |f| f.shards.watched.into()),
    gauge("total_blocking_keys", "Keys that clients wait for.", |f| f.shards.blocking.into()),
    gauge("total_blocking_keys_on_nokey", "Keys of which clients wait to hear that they are gone.", |f| {
        f.shards.blocking_on_none.into()
    }),
];

/// The largest query buffer (0) or output (1) of the last seconds.
fn largest(facts: &Facts<'_>, which: usize) -> Value {
    facts.server.threads.lock().iter().map(|thread| thread.largest(which)).max().unwrap_or(0).into()
}

fn count(facts: &Facts<'_>, is_one: impl Fn(&Client) -> bool) -> Value {
    facts.clients.iter().filter(|client| is_one(client)).count().into()
}

const OF_A_THREAD: &[Field] = &[
    moves("clients", "Connections of the network thread."),
    grows("reads", "Reads of sockets."),
    grows("writes", "Writes to sockets."),
    grows("commands", "Commands of its connections."),
];

pub(super) const THREADS: &[Entry] = &[Entry::Many(Family {
    prefix: "io_thread_",
    label: "thread",
    fields: OF_A_THREAD,
    each: |f, visit| {
        for (number, thread) in f.server.threads.lock().iter().enumerate() {
            let counts = [&thread.clients, &thread.reads, &thread.writes, &thread.commands];
            visit(&number.to_string(), &counts.map(|count| count.load(Ordering::Relaxed).into()));
        }
    },
})];

pub(super) const REPLICATION: &[Entry] = &[
    text("role", |_| "master".into()),
    nothing("connected_slaves", Replication),
    text("master_failover_state", |_| "no-failover".into()),
    text("master_replid", |f| f.server.replication_id.lock().as_str().into()),
    text("master_replid2", |_| "0".repeat(40).into()),
    nothing("master_repl_offset", Replication),
    text("second_repl_offset", |_| "-1".into()),
    nothing("repl_backlog_active", Replication),
    nothing("repl_backlog_size", Replication),
    nothing("repl_backlog_first_byte_offset", Replication),
    nothing("repl_backlog_histlen", Replication),
];

pub(super) const CPU: &[Entry] = &[
    counter("used_cpu_sys", "Seconds that the process has spent in the system.", |f| seconds(f.cpu.system_us)),
    counter("used_cpu_user", "Seconds that the process has spent outside of it.", |f| seconds(f.cpu.user_us)),
    nothing_seconds("used_cpu_sys_children"),
    nothing_seconds("used_cpu_user_children"),
    counter("used_cpu_sys_main_thread", "The same of the busiest network thread.", |f| seconds(f.busiest().system_us)),
    counter("used_cpu_user_main_thread", "The same of the busiest network thread.", |f| seconds(f.busiest().user_us)),
];

const fn nothing_seconds(name: &'static str) -> Entry {
    Entry::One(super::fact::Fact {
        name,
        kind: super::fact::Kind::Nothing(super::fact::Lack::Fork),
        help: "",
        read: |_| seconds(0),
    })
}

fn seconds(us: u64) -> Value {
    Value::Real(us as f64 / 1e6, 6)
}

pub(super) const CLUSTER: &[Entry] = &[nothing("cluster_enabled", Cluster)];
