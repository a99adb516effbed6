//! The sections of INFO.

use std::fmt::Display;
use std::sync::atomic::Ordering;

use super::{Facts, Text};
use crate::config::settings::BindAddr;
use crate::handler::pubsub::By;
use crate::handler::session::{Client, bits};
use crate::server::REDIS_VERSION;
use crate::shard::engine::gate;
use crate::util::{alloc, sys};

/// Bytes as Redis prints them for people.
fn human(bytes: u64) -> String {
    let bytes_f = bytes as f64;
    let in_units = |shift: u32, unit: char| format!("{:.2}{unit}", bytes_f / (1u64 << shift) as f64);
    match bytes.checked_ilog2().unwrap_or(0) {
        0..10 => format!("{bytes}B"),
        10..20 => in_units(10, 'K'),
        20..30 => in_units(20, 'M'),
        30..40 => in_units(30, 'G'),
        _ => in_units(40, 'T'),
    }
}

fn status(ok: bool) -> &'static str {
    if ok { "ok" } else { "err" }
}

fn zeros(text: &mut Text, names: &[&str]) {
    names.iter().for_each(|name| text.line(name, 0));
}

fn with_human(text: &mut Text, name: &str, bytes: u64) {
    text.line(name, bytes);
    text.line(format_args!("{name}_human"), human(bytes));
}

fn path(path: Option<&std::path::Path>) -> String {
    path.map(|path| path.display().to_string()).unwrap_or_default()
}

pub(super) fn server(facts: &Facts<'_>, text: &mut Text) {
    let server = facts.server;
    let settings = server.config.settings();
    let uptime_s = facts.now_ms.saturating_sub(server.started_ms) / 1000;
    let port = server.port.load(Ordering::Relaxed);
    text.line("redis_version", REDIS_VERSION);
    text.line("tarn_version", env!("CARGO_PKG_VERSION"));
    text.line("redis_git_sha1", "00000000");
    text.line("redis_git_dirty", 0);
    text.line("redis_build_id", "0");
    text.line("redis_mode", "standalone");
    text.line("os", sys::os_name());
    text.line("arch_bits", usize::BITS);
    text.line("monotonic_clock", "POSIX clock_gettime");
    text.line("multiplexing_api", "epoll");
    text.line("atomicvar_api", "rust-core");
    text.line("gcc_version", "0.0.0");
    text.line("process_id", std::process::id());
    text.line("process_supervised", supervised(settings.supervised));
    text.line("run_id", &server.run_id);
    text.line("tcp_port", port);
    text.line("server_time_usec", crate::util::time::now_us());
    text.line("uptime_in_seconds", uptime_s);
    text.line("uptime_in_days", uptime_s / 86_400);
    text.line("hz", 10);
    text.line("configured_hz", 10);
    text.line("lru_clock", (facts.now_ms / 1000) & 0xff_ffff);
    text.line("executable", path(std::env::current_exe().ok().as_deref()));
    text.line("config_file", path(server.config.file()));
    text.line("io_threads_active", u8::from(server.threads.lock().len() > 1));
    let address = |bind: &BindAddr| format!(",bind={}{}", if bind.optional { "-" } else { "" }, bind.host);
    let addresses: String = settings.bind.iter().map(address).collect();
    let tcp = (port != 0).then(|| format!("name=tcp{addresses},port={port}"));
    let unix = settings.unixsocket.as_ref().map(|path| format!("name=unix,bind={}", path.display()));
    for (number, listener) in tcp.into_iter().chain(unix).enumerate() {
        text.line(format_args!("listener{number}"), listener);
    }
}

fn supervised(by: crate::config::settings::Supervised) -> &'static str {
    use crate::config::settings::Supervised;
    match by {
        Supervised::No => "no",
        Supervised::Auto => "unknown",
        Supervised::Upstart => "upstart",
        Supervised::Systemd => "systemd",
    }
}

pub(super) fn clients(facts: &Facts<'_>, text: &mut Text) {
    let clients = facts.server.every_client();
    let most = |counter: fn(&Client) -> &std::sync::atomic::AtomicU64| {
        clients.iter().map(|client| counter(client).load(Ordering::Relaxed)).max().unwrap_or(0)
    };
    let blocked = clients.iter().filter(|client| client.bits.load(Ordering::Relaxed) & bits::BLOCKED != 0).count();
    text.line("connected_clients", clients.len());
    text.line("cluster_connections", 0);
    text.line("maxclients", facts.server.config.settings().maxclients);
    text.line("client_recent_max_input_buffer", most(|client| &client.query_bytes));
    text.line("client_recent_max_output_buffer", most(|client| &client.output_bytes));
    text.line("blocked_clients", blocked);
    text.line("watching_clients", facts.server.engine.watching.load(Ordering::Relaxed));
    text.line("total_watched_keys", facts.shards.watched);
    text.line("tracking_clients", facts.server.engine.trackers.counts()[0]);
    zeros(text, &["clients_in_timeout_table"]);
    text.line("pubsub_clients", clients.iter().filter(|client| client.subscribes()).count());
    text.line("total_blocking_keys", facts.shards.blocking);
    text.line("total_blocking_keys_on_nokey", facts.shards.blocking_on_none);
}

/// Part of a whole in percent, as Redis prints it.
fn percent(part: u64, whole: u64) -> impl Display {
    format!("{:.2}%", part as f64 * 100.0 / whole.max(1) as f64)
}

pub(super) fn memory(facts: &Facts<'_>, text: &mut Text) {
    let server = facts.server;
    let used = alloc::used_bytes() as u64;
    let rss = sys::resident_bytes();
    let tables: u64 = server.engine.shards.iter().map(|shard| shard.table_bytes() as u64).sum();
    let (peak, peak_s) = peak(facts, used);
    let clients = server.client_bytes();
    with_human(text, "used_memory", used);
    with_human(text, "used_memory_rss", rss);
    with_human(text, "used_memory_peak", peak);
    text.line("used_memory_peak_time", peak_s);
    text.line("used_memory_peak_perc", percent(used, peak));
    text.line("used_memory_overhead", used.saturating_sub(tables));
    text.line("used_memory_startup", 0);
    text.line("used_memory_dataset", tables);
    text.line("used_memory_dataset_perc", percent(tables, used));
    text.line("allocator_allocated", used);
    text.line("allocator_active", rss);
    text.line("allocator_resident", rss);
    text.line("allocator_muzzy", 0);
    with_human(text, "total_system_memory", sys::machine_memory_bytes());
    with_human(text, "used_memory_lua", 0);
    text.line("used_memory_vm_eval", 0);
    let ((libraries, functions), function_bytes) = facts.shards.libraries;
    text.line("number_of_functions", functions);
    text.line("number_of_libraries", libraries);
    text.line("used_memory_vm_functions", 0);
    with_human(text, "used_memory_vm_total", 0);
    text.line("used_memory_functions", function_bytes);
    let (scripts, script_bytes, _) = server.scripts.counts();
    text.line("number_of_cached_scripts", scripts);
    text.line("used_memory_scripts_eval", script_bytes);
    with_human(text, "used_memory_scripts", (script_bytes + function_bytes) as u64);
    // The budget in force: dashboards divide by it. What was asked for is what CONFIG GET answers.
    with_human(text, "maxmemory", server.budget.lock().total_bytes);
    // It has no effect and stands therefore in no setting.
    for (_, policy) in server.config.get(&["maxmemory-policy"]) {
        text.line("maxmemory_policy", String::from_utf8_lossy(&policy));
    }
    let ratio = rss as f64 / used.max(1) as f64;
    text.line("allocator_frag_ratio", format_args!("{ratio:.2}"));
    text.line("allocator_frag_bytes", rss.saturating_sub(used));
    text.line("allocator_rss_ratio", "1.00");
    text.line("allocator_rss_bytes", 0);
    text.line("rss_overhead_ratio", "1.00");
    text.line("rss_overhead_bytes", 0);
    text.line("mem_fragmentation_ratio", format_args!("{ratio:.2}"));
    text.line("mem_fragmentation_bytes", rss as i64 - used as i64);
    zeros(
        text,
        &[
            "mem_not_counted_for_evict",
            "mem_replication_backlog",
            "mem_total_replication_buffers",
            "mem_replica_full_sync_buffer",
            "mem_clients_slaves",
        ],
    );
    text.line("mem_clients_normal", clients);
    text.line("mem_cluster_links", 0);
    text.line("mem_aof_buffer", 0);
    text.line("mem_allocator", "libc");
    text.line("mem_overhead_db_hashtable_rehashing", 0);
    zeros(text, &["active_defrag_running", "lazyfree_pending_objects", "lazyfreed_objects"]);
}

/// The highest use of memory so far, and when it was, in Unix seconds.
fn peak(facts: &Facts<'_>, used: u64) -> (u64, u64) {
    let seen = facts.server.rates.lock().memory_peak;
    if used > seen.0 { (used, facts.now_ms / 1000) } else { seen }
}

pub(super) fn persistence(facts: &Facts<'_>, text: &mut Text) {
    let engine = &facts.server.engine;
    let loading = engine.gate.load(Ordering::Relaxed) & gate::LOADING != 0;
    let log = engine.log.status();
    let flushing = engine.is_flushing();
    let last_flush_s = engine.stats.last_flush_ms.load(Ordering::Relaxed) / 1000;
    let saved_s = last_flush_s.max(facts.server.last_save_s.load(Ordering::Relaxed));
    let flushes = engine.stats.flushes.load(Ordering::Relaxed);
    let flush_s = engine.stats.flush_us.load(Ordering::Relaxed).checked_div(flushes * 1_000_000);
    let flush_s = flush_s.map_or(-1, |seconds| seconds as i64);
    let flush_ok = engine.store_failure().is_none() && !engine.flush_fails();
    text.line("loading", u8::from(loading));
    text.line("async_loading", 0);
    if loading {
        text.line("loading_start_time", facts.server.started_ms / 1000);
        text.line("loading_total_bytes", log.size_bytes);
        text.line("loading_rdb_used_mem", 0);
        text.line("loading_loaded_bytes", 0);
        text.line("loading_loaded_perc", "0.00");
        text.line("loading_eta_seconds", 0);
        text.line("loading_loaded_records", engine.stats.replayed_records.load(Ordering::Relaxed));
    }
    zeros(text, &["current_cow_peak", "current_cow_size", "current_cow_size_age"]);
    text.line("current_fork_perc", "0.00");
    zeros(text, &["current_save_keys_processed", "current_save_keys_total"]);
    text.line("rdb_changes_since_last_save", facts.shards.dirty_objects);
    text.line("rdb_bgsave_in_progress", u8::from(flushing));
    text.line("rdb_last_save_time", saved_s);
    text.line("rdb_last_bgsave_status", status(flush_ok));
    text.line("rdb_last_bgsave_time_sec", flush_s);
    text.line("rdb_current_bgsave_time_sec", if flushing { 0 } else { -1 });
    text.line("rdb_saves", flushes);
    zeros(text, &["rdb_last_cow_size", "rdb_last_load_keys_expired", "rdb_last_load_keys_loaded"]);
    text.line("aof_enabled", 1);
    text.line("aof_rewrite_in_progress", u8::from(flushing));
    text.line("aof_rewrite_scheduled", 0);
    text.line("aof_last_rewrite_time_sec", flush_s);
    text.line("aof_current_rewrite_time_sec", if flushing { 0 } else { -1 });
    text.line("aof_last_bgrewrite_status", status(flush_ok));
    text.line("aof_rewrites", flushes);
    text.line("aof_rewrites_consecutive_failures", 0);
    text.line("aof_last_write_status", status(log.write_ok && log.sync_ok));
    text.line("aof_last_cow_size", 0);
    text.line("module_fork_in_progress", 0);
    text.line("module_fork_last_cow_size", 0);
    text.line("aof_current_size", log.size_bytes);
    text.line("aof_base_size", 0);
    text.line("aof_pending_rewrite", 0);
    text.line("aof_buffer_length", 0);
    text.line("aof_pending_bio_fsync", u8::from(log.sync_running));
    text.line("aof_delayed_fsync", 0);
}

pub(super) fn threads(facts: &Facts<'_>, text: &mut Text) {
    for (number, thread) in facts.server.threads.lock().iter().enumerate() {
        let [commands, clients, reads, writes] =
            [&thread.commands, &thread.clients, &thread.reads, &thread.writes].map(|of| of.load(Ordering::Relaxed));
        let counts = format_args!("clients={clients},reads={reads},writes={writes},commands={commands}");
        text.line(format_args!("io_thread_{number}"), counts);
    }
}

pub(super) fn stats(facts: &Facts<'_>, text: &mut Text) {
    let (totals, shards) = (&facts.totals, &facts.shards.stats);
    let [commands, bytes_in, bytes_out] = facts.server.rates.lock().per_second();
    let kbps = |bytes: u64| format!("{:.2}", bytes as f64 / 1024.0);
    text.line("total_connections_received", totals.accepted);
    text.line("total_commands_processed", totals.commands);
    text.line("instantaneous_ops_per_sec", commands);
    text.line("total_net_input_bytes", totals.bytes_in);
    text.line("total_net_output_bytes", totals.bytes_out);
    zeros(text, &["total_net_repl_input_bytes", "total_net_repl_output_bytes"]);
    text.line("instantaneous_input_kbps", kbps(bytes_in));
    text.line("instantaneous_output_kbps", kbps(bytes_out));
    text.line("instantaneous_input_repl_kbps", "0.00");
    text.line("instantaneous_output_repl_kbps", "0.00");
    text.line("rejected_connections", totals.rejected);
    zeros(text, &["sync_full", "sync_partial_ok", "sync_partial_err"]);
    text.line("expired_subkeys", shards.expired_fields);
    text.line("expired_keys", shards.expired_keys);
    text.line("expired_stale_perc", "0.00");
    zeros(
        text,
        &[
            "expired_time_cap_reached_count",
            "expire_cycle_cpu_milliseconds",
            "evicted_keys",
            "total_eviction_exceeded_time",
            "current_eviction_exceeded_time",
        ],
    );
    text.line("evicted_scripts", facts.server.scripts.counts().2);
    text.line("evicted_clients", facts.server.buffers.evicted.load(Ordering::Relaxed));
    text.line("keyspace_hits", shards.keyspace_hits);
    text.line("keyspace_misses", shards.keyspace_misses);
    for (name, by) in
        [("pubsub_channels", By::Channel), ("pubsub_patterns", By::Pattern), ("pubsubshard_channels", By::Shard)]
    {
        text.line(name, facts.server.hub.count(by));
    }
    zeros(
        text,
        &[
            "latest_fork_usec",
            "total_forks",
            "migrate_cached_sockets",
            "slave_expires_tracked_keys",
            "active_defrag_hits",
            "active_defrag_misses",
            "active_defrag_key_hits",
            "active_defrag_key_misses",
            "total_active_defrag_time",
            "current_active_defrag_time",
        ],
    );
    let [_, keys, items, prefixes] = facts.server.engine.trackers.counts();
    text.line("tracking_total_keys", keys);
    text.line("tracking_total_items", items);
    text.line("tracking_total_prefixes", prefixes);
    text.line("unexpected_error_replies", 0);
    text.line("total_error_replies", totals.errors);
    text.line("dump_payload_sanitizations", 0);
    text.line("total_reads_processed", totals.reads);
    text.line("total_writes_processed", totals.writes);
    zeros(
        text,
        &[
            "io_threaded_reads_processed",
            "io_threaded_writes_processed",
            "io_threaded_total_prefetch_batches",
            "io_threaded_total_prefetch_entries",
        ],
    );
    text.line("client_query_buffer_limit_disconnections", totals.over_input);
    text.line("client_output_buffer_limit_disconnections", totals.over_output);
    zeros(
        text,
        &[
            "reply_buffer_shrinks",
            "reply_buffer_expands",
            "eventloop_cycles",
            "eventloop_duration_sum",
            "eventloop_duration_cmd_sum",
            "instantaneous_eventloop_cycles_per_sec",
            "instantaneous_eventloop_duration_usec",
        ],
    );
    text.line("acl_access_denied_auth", totals.error_codes.get("WRONGPASS").copied().unwrap_or(0));
    zeros(text, &["acl_access_denied_cmd", "acl_access_denied_key", "acl_access_denied_channel"]);
}

pub(super) fn replication(facts: &Facts<'_>, text: &mut Text) {
    text.line("role", "master");
    text.line("connected_slaves", 0);
    text.line("master_failover_state", "no-failover");
    text.line("master_replid", facts.server.replication_id.lock());
    text.line("master_replid2", "0".repeat(40));
    text.line("master_repl_offset", 0);
    text.line("second_repl_offset", -1);
    zeros(
        text,
        &["repl_backlog_active", "repl_backlog_size", "repl_backlog_first_byte_offset", "repl_backlog_histlen"],
    );
}

pub(super) fn cpu(_: &Facts<'_>, text: &mut Text) {
    let time = sys::cpu_time();
    let seconds = |us: u64| format!("{}.{:06}", us / 1_000_000, us % 1_000_000);
    text.line("used_cpu_sys", seconds(time.system_us));
    text.line("used_cpu_user", seconds(time.user_us));
    text.line("used_cpu_sys_children", seconds(0));
    text.line("used_cpu_user_children", seconds(0));
    text.line("used_cpu_sys_main_thread", seconds(0));
    text.line("used_cpu_user_main_thread", seconds(0));
}

/// Commands are counted, not timed.
pub(super) fn commandstats(facts: &Facts<'_>, text: &mut Text) {
    for (slot, &[calls, rejected, failed]) in facts.totals.calls.iter().enumerate() {
        if calls + rejected + failed > 0
            && let Some(name) = facts.server.table.slot_name(slot as u32)
        {
            let counts =
                format_args!("calls={calls},usec=0,usec_per_call=0.00,rejected_calls={rejected},failed_calls={failed}");
            text.line(format_args!("cmdstat_{name}"), counts);
        }
    }
}

pub(super) fn errorstats(facts: &Facts<'_>, text: &mut Text) {
    for (code, count) in facts.totals.error_codes.iter().filter(|(_, count)| **count > 0) {
        text.line(format_args!("errorstat_{code}"), format_args!("count={count}"));
    }
}

pub(super) fn cluster(_: &Facts<'_>, text: &mut Text) {
    text.line("cluster_enabled", 0);
}

/// Numbered databases. `expires` and `subexpiry` leave out keys that are on disk only.
pub(super) fn keyspace(facts: &Facts<'_>, text: &mut Text) {
    let number = |name: &[u8]| crate::util::num::parse_u64(name);
    let mut databases: Vec<_> = facts.keys.iter().filter_map(|(name, counts)| Some((number(name)?, *counts))).collect();
    databases.sort_unstable();
    for (number, [keys, expires, fields]) in databases {
        let counts = format_args!("keys={keys},expires={expires},avg_ttl=0,subexpiry={fields}");
        text.line(format_args!("db{number}"), counts);
    }
}

pub(super) fn tarn(facts: &Facts<'_>, text: &mut Text) {
    let engine = &facts.server.engine;
    let budget = *facts.server.budget.lock();
    let stats = &engine.stats;
    let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let log = engine.log.status();
    let table_bytes: usize = engine.shards.iter().map(|shard| shard.table_bytes()).sum();
    let store_bytes: u64 = engine.store.partitions().iter().map(|partition| partition.disk_bytes()).sum();
    let dead_bytes: u64 = engine.store.partitions().iter().map(|partition| partition.dead_bytes()).sum();
    let pinned_bytes: usize = engine.store.partitions().iter().map(|partition| partition.pinned_bytes()).sum();
    let named = facts.keys.keys().filter(|name| crate::util::num::parse_u64(name).is_none()).count();
    text.line("tarn_shards", engine.shards.count());
    text.line("tarn_net_threads", facts.server.threads.lock().len());
    text.line("tarn_commands_left_to_others", facts.server.total(|thread| load(&thread.left)));
    text.line("tarn_memory_budget", budget.total_bytes);
    text.line("tarn_client_buffer_bytes", facts.server.buffers.bytes());
    text.line("tarn_client_buffer_budget", facts.server.buffers.limit());
    text.line("tarn_commands_waiting_for_memory", crate::meter::crowd());
    text.line("tarn_table_bytes", table_bytes);
    text.line("tarn_table_budget", load(&engine.table_budget));
    text.line("tarn_table_objects", facts.shards.table_objects);
    text.line("tarn_evicted_objects", facts.shards.stats.evicted_objects);
    text.line("tarn_dirty_bytes", engine.dirty_bytes());
    text.line("tarn_dirty_budget", load(&engine.dirty_budget));
    text.line("tarn_dirty_objects", facts.shards.dirty_objects);
    text.line("tarn_write_delay_us", load(&engine.write_delay_us));
    text.line("tarn_metadata_cache_bytes", facts.shards.cold_bytes);
    text.line("tarn_metadata_cache_budget", budget.metadata_cache_bytes);
    text.line("tarn_metadata_cache_entries", facts.shards.cold_entries);
    text.line("tarn_metadata_cache_hits", facts.shards.stats.cold_reads);
    text.line("tarn_block_cache_bytes", engine.store.cache_used_bytes());
    text.line("tarn_block_cache_budget", engine.options.block_cache);
    text.line("tarn_pinned_bytes", pinned_bytes);
    text.line("tarn_store_reads", facts.shards.stats.stored_reads);
    text.line("tarn_passing_reads", facts.shards.stats.passing_reads);
    text.line("tarn_store_reads_waiting", engine.readers.pending());
    text.line("tarn_rests", facts.shards.stats.rests);
    text.line("tarn_busy_keys", facts.shards.busy);
    text.line("tarn_commands_waiting_for_keys", facts.shards.waiting);
    text.line("tarn_long_commands_waiting", engine.long.waiting());
    text.line("tarn_blind_writes", facts.shards.stats.blind_writes);
    text.line("tarn_blind_keys", facts.shards.blind);
    text.line("tarn_store_bytes", store_bytes);
    text.line("tarn_compactions_running", engine.store.active_compactions());
    text.line("tarn_compactions_ok", u8::from(engine.store_failure().is_none()));
    text.line("tarn_level0_runs", load(&stats.level0_runs));
    text.line("tarn_level0_runs_max", load(&stats.level0_runs_max));
    text.line("tarn_store_reopens", load(&stats.store_reopens));
    text.line("tarn_dead_bytes", dead_bytes);
    text.line("tarn_compactions_of_dead", load(&stats.compactions));
    text.line("tarn_dropped_tables", load(&stats.dropped_tables));
    text.line("tarn_garbage_queue", facts.shards.garbage);
    text.line("tarn_dead_namespaces", facts.shards.dead_namespaces);
    text.line("tarn_log_bytes", log.size_bytes);
    text.line("tarn_log_limit", load(&engine.log_limit));
    text.line("tarn_log_segments", log.segments);
    text.line("tarn_log_last_lsn", log.last);
    text.line("tarn_log_written_lsn", log.written);
    text.line("tarn_log_synced_lsn", log.synced);
    text.line("tarn_log_refuses", u8::from(!engine.log.is_healthy()));
    text.line("tarn_flushes", load(&stats.flushes));
    text.line("tarn_flush_running", u8::from(engine.is_flushing()));
    text.line("tarn_flush_usec", load(&stats.flush_us));
    text.line("tarn_flushed_records", load(&stats.flushed_records));
    text.line("tarn_flush_errors", load(&stats.flush_errors));
    let backups = &engine.backups;
    let (running, last) = (backups.running(), backups.last());
    text.line("tarn_backup_running", u8::from(running.is_some()));
    text.line("tarn_backup_name", running.map(|running| running.name).unwrap_or_default());
    text.line("tarn_backup_bytes", load(&backups.total_bytes));
    text.line("tarn_backup_bytes_done", load(&backups.done_bytes));
    text.line("tarn_backup_held_usec", load(&backups.held_us));
    text.line("tarn_backup_last_name", last.as_ref().map_or("", |last| &last.name));
    text.line("tarn_backup_last_time", last.as_ref().map_or(0, |last| last.ended_ms / 1000));
    let failure = last.and_then(|last| last.failure);
    text.line("tarn_backup_last_status", status(failure.is_none()));
    text.line("tarn_backup_last_error", failure.unwrap_or_default());
    text.line("tarn_replayed_records", load(&stats.replayed_records));
    text.line("tarn_namespaces_with_keys", facts.keys.len());
    text.line("tarn_named_namespaces_with_keys", named);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_for_people() {
        for (bytes, text) in [
            (0, "0B"),
            (1023, "1023B"),
            (1024, "1.00K"),
            (923_272, "901.63K"),
            (1 << 20, "1.00M"),
            (25_276_510_208, "23.54G"),
            (1 << 40, "1.00T"),
        ] {
            assert_eq!(human(bytes), text);
        }
    }
}
