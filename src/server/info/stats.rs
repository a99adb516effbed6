//! What has been counted since the start, or since CONFIG RESETSTAT.

use super::Facts;
use super::fact::Lack::{Defragmentation, Fork, Replication};
use super::fact::{Entry, Value, counter, gauge, nothing, nothing_real};
use crate::handler::acl::log::Reason;
use crate::handler::pubsub::By;

pub(super) const STATS: &[Entry] = &[
    counter("total_connections_received", "Connections that were let in.", |f| f.totals.accepted.into()),
    counter("total_commands_processed", "Commands that have run.", |f| f.totals.commands.into()),
    gauge("instantaneous_ops_per_sec", "Commands a second, of late.", |f| f.rates[0].into()),
    counter("total_net_input_bytes", "Bytes read from clients.", |f| f.totals.bytes_in.into()),
    counter("total_net_output_bytes", "Bytes written to clients.", |f| f.totals.bytes_out.into()),
    nothing("total_net_repl_input_bytes", Replication),
    nothing("total_net_repl_output_bytes", Replication),
    gauge("instantaneous_input_kbps", "KiB a second read from clients, of late.", |f| kbps(f.rates[1])),
    gauge("instantaneous_output_kbps", "KiB a second written to clients, of late.", |f| kbps(f.rates[2])),
    nothing_real("instantaneous_input_repl_kbps", Replication),
    nothing_real("instantaneous_output_repl_kbps", Replication),
    counter("rejected_connections", "Connections refused for `maxclients` or by protected mode.", |f| {
        f.totals.rejected.into()
    }),
    nothing("sync_full", Replication),
    nothing("sync_partial_ok", Replication),
    nothing("sync_partial_err", Replication),
    counter("expired_subkeys", "Fields of hashes that have expired.", |f| f.shards.stats.expired_fields.into()),
    counter("expired_keys", "Keys that have expired.", |f| f.shards.stats.expired_keys.into()),
    gauge(
        "expired_stale_perc",
        "Keys in memory that have expired and are not swept yet, of those with a time, percent.",
        |f| {
            let Value::Percent(part) = Value::percent(f.shards.overdue, f.shards.timed.all) else {
                return Value::Absent;
            };
            Value::Real(part, 2)
        },
    ),
    counter("expired_time_cap_reached_count", "Sweeps that took longer than 25 ms.", |f| {
        f.shards.stats.long_sweeps.into()
    }),
    counter("expire_cycle_cpu_milliseconds", "Milliseconds that sweeps of expired keys took.", |f| {
        (f.shards.stats.sweep_us / 1000).into()
    }),
    counter("evicted_keys", "Keys that went as `maxdisk` was near.", |f| f.shards.stats.evicted_keys.into()),
    counter("evicted_clients", "Clients closed for the sake of `maxmemory-clients`.", |f| f.totals.aside[0].into()),
    counter("evicted_scripts", "Scripts of EVAL that are known no more, to make room.", |f| f.totals.aside[1].into()),
    counter("total_eviction_exceeded_time", "Milliseconds for which `maxdisk` was reached.", |f| reached(f, 0)),
    gauge("current_eviction_exceeded_time", "Milliseconds for which it is reached now.", |f| reached(f, 1)),
    counter("keyspace_hits", "Look-ups of reading commands that found the key.", |f| {
        f.shards.stats.keyspace_hits.into()
    }),
    counter("keyspace_misses", "Look-ups of reading commands that found none.", |f| {
        f.shards.stats.keyspace_misses.into()
    }),
    gauge("pubsub_channels", "Channels that clients have subscribed to.", |f| f.server.hub.count(By::Channel).into()),
    gauge("pubsub_patterns", "Patterns that clients have subscribed to.", |f| f.server.hub.count(By::Pattern).into()),
    gauge("pubsubshard_channels", "Channels of SPUBLISH that clients have subscribed to.", |f| {
        f.server.hub.count(By::Shard).into()
    }),
    nothing("latest_fork_usec", Fork),
    nothing("total_forks", Fork),
    nothing("migrate_cached_sockets", Replication),
    nothing("slave_expires_tracked_keys", Replication),
    nothing("active_defrag_hits", Defragmentation),
    nothing("active_defrag_misses", Defragmentation),
    nothing("active_defrag_key_hits", Defragmentation),
    nothing("active_defrag_key_misses", Defragmentation),
    nothing("total_active_defrag_time", Defragmentation),
    nothing("current_active_defrag_time", Defragmentation),
    gauge("tracking_total_keys", "Keys that clients keep copies of.", |f| tracked(f, 1)),
    gauge("tracking_total_items", "Clients that keep copies, summed over these keys.", |f| tracked(f, 2)),
    gauge("tracking_total_prefixes", "Prefixes of keys that clients are told of.", |f| tracked(f, 3)),
    nothing("unexpected_error_replies", Replication),
    counter("total_error_replies", "Errors that were replied.", |f| f.totals.errors.into()),
    counter("dump_payload_sanitizations", "Payloads of RESTORE that were checked: all of them.", |f| {
        f.calls_of("restore").into()
    }),
    counter("total_reads_processed", "Reads of sockets.", |f| f.totals.reads.into()),
    counter("total_writes_processed", "Writes to sockets.", |f| f.totals.writes.into()),
    counter("io_threaded_reads_processed", "Reads of sockets: all threads that serve clients are such.", |f| {
        f.totals.reads.into()
    }),
    counter("io_threaded_writes_processed", "Writes to sockets: all threads that serve clients are such.", |f| {
        f.totals.writes.into()
    }),
    counter("io_threaded_total_prefetch_batches", "Pipelines of which the keys were looked for ahead.", |f| {
        f.totals.ahead[0].into()
    }),
    counter("io_threaded_total_prefetch_entries", "Commands in these.", |f| f.totals.ahead[1].into()),
    counter("client_query_buffer_limit_disconnections", "Clients closed for a request that was too big.", |f| {
        f.totals.over_input.into()
    }),
    counter("client_output_buffer_limit_disconnections", "Clients closed as they did not read.", |f| {
        f.totals.over_output.into()
    }),
    counter("reply_buffer_shrinks", "Output buffers that were given back.", |f| f.totals.buffers[0].into()),
    counter("reply_buffer_expands", "Output buffers that had to grow.", |f| f.totals.buffers[1].into()),
    counter("eventloop_cycles", "Turns of all network threads.", |f| f.totals.turns[0].into()),
    counter(
        "eventloop_duration_sum",
        "Microseconds that these took, looking for more at their ends among them.",
        |f| (f.totals.turns[1] / 1000).into(),
    ),
    counter("eventloop_duration_cmd_sum", "Microseconds that commands ran.", |f| (f.totals.ran_ns / 1000).into()),
    gauge("instantaneous_eventloop_cycles_per_sec", "Turns of all network threads a second, of late.", |f| {
        f.rates[3].into()
    }),
    gauge("instantaneous_eventloop_duration_usec", "Microseconds that one of these takes, of late.", |f| {
        (f.rates[4] / 1000).checked_div(f.rates[3]).unwrap_or(0).into()
    }),
    counter("acl_access_denied_auth", "Wrong passwords.", |f| f.server.acl.denied(Reason::Auth).into()),
    counter("acl_access_denied_cmd", "Commands that were not allowed.", |f| {
        f.server.acl.denied(Reason::Command).into()
    }),
    counter("acl_access_denied_key", "Keys that were not allowed.", |f| f.server.acl.denied(Reason::Key).into()),
    counter("acl_access_denied_channel", "Channels that were not allowed.", |f| {
        f.server.acl.denied(Reason::Channel).into()
    }),
];

fn reached(facts: &Facts<'_>, at: usize) -> Value {
    (facts.server.engine.disk.reached_for()[at].as_millis() as u64).into()
}

fn kbps(bytes: u64) -> Value {
    Value::Real(bytes as f64 / 1024.0, 2)
}

fn tracked(facts: &Facts<'_>, at: usize) -> Value {
    facts.server.engine.trackers.counts()[at].into()
}
