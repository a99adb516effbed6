//! What only this server has: parts of the budget, log, store, flushes, waits.

use std::sync::atomic::{AtomicU64, Ordering};

use super::fact::{Entry, Family, Value, counter, gauge, grows, moves, text};
use crate::handler::session::bits;
use crate::latency::{self, Event};
use crate::shard::engine::gate;

fn load(counter: &AtomicU64) -> Value {
    counter.load(Ordering::Relaxed).into()
}

pub(super) const TARN: &[Entry] = &[
    gauge("tarn_shards", "Shards.", |f| f.server.engine.shards.count().into()),
    gauge("tarn_net_threads", "Threads that serve connections.", |f| f.server.threads.lock().len().into()),
    counter("tarn_commands_left_to_others", "Commands left to whoever had one of their shards.", |f| {
        f.server.total(|thread| thread.left.load(Ordering::Relaxed)).into()
    }),
    gauge("tarn_tls_clients", "Open connections that speak TLS.", |f| load(&f.server.tls.clients)),
    counter("tarn_tls_handshakes", "TLS handshakes that came to a connection.", |f| load(&f.server.tls.shaken)),
    counter("tarn_tls_handshakes_resumed", "Of these, those that took an earlier session up.", |f| {
        load(&f.server.tls.resumed)
    }),
    gauge("tarn_tls_handshakes_under_way", "TLS handshakes under way.", |f| load(&f.server.tls.shaking)),
    counter("tarn_tls_handshakes_failed", "TLS handshakes that failed.", |f| load(&f.server.tls.failed)),
    counter(
        "tarn_tls_handshakes_given_up",
        "TLS handshakes that took too long, or were the oldest of too many.",
        |f| load(&f.server.tls.given_up),
    ),
    gauge("tarn_memory_budget", "The memory budget in force, bytes.", |f| f.budget.total_bytes.into()),
    gauge("tarn_client_buffer_bytes", "Bytes of all connections' buffers.", |f| f.server.buffers.bytes().into()),
    gauge("tarn_client_buffer_budget", "What they may take.", |f| f.server.buffers.limit().into()),
    gauge("tarn_commands_waiting_for_memory", "Commands that wait for memory that others have.", |_| {
        crate::meter::crowd().into()
    }),
    gauge("tarn_table_bytes", "Bytes of the objects in memory, and of the filter of keys.", |f| f.memory.tables.into()),
    gauge("tarn_filter_bytes", "Of these the filter's; none while the keys are too many for it.", |f| {
        f.shards.filter_bytes.into()
    }),
    gauge("tarn_table_budget", "Their part of the budget.", |f| load(&f.server.engine.table_budget)),
    gauge("tarn_table_limit", "What they may take, with what the metadata cache leaves of its part.", |f| {
        load(&f.server.engine.table_limit)
    }),
    gauge("tarn_table_objects", "Objects in memory.", |f| f.shards.table_objects.into()),
    counter("tarn_evicted_objects", "Clean objects that have left memory.", |f| f.shards.stats.evicted_objects.into()),
    gauge("tarn_dirty_bytes", "Bytes of changed objects that the store does not have yet.", |f| {
        f.server.engine.dirty_bytes().into()
    }),
    gauge("tarn_dirty_budget", "What they may take before writers wait.", |f| load(&f.server.engine.dirty_budget)),
    gauge("tarn_dirty_objects", "Changed objects that the store does not have yet.", |f| f.shards.dirty_objects.into()),
    gauge("tarn_write_delay_us", "Microseconds by which writers are slowed now.", |f| {
        let engine = &f.server.engine;
        engine.write_delay_us.load(Ordering::Relaxed).max(engine.room_delay_us.load(Ordering::Relaxed)).into()
    }),
    gauge("tarn_metadata_cache_bytes", "Bytes of the cache of objects that have left memory.", |f| {
        f.shards.cold_bytes.into()
    }),
    gauge("tarn_metadata_cache_budget", "What it may take.", |f| f.budget.metadata_cache_bytes.into()),
    gauge("tarn_metadata_cache_entries", "Objects in it.", |f| f.shards.cold_entries.into()),
    counter("tarn_metadata_cache_hits", "Objects that came back from it.", |f| f.shards.stats.cold_reads.into()),
    gauge("tarn_block_cache_bytes", "Bytes of the cache of the store's blocks and indexes.", |f| {
        f.server.engine.store.cache_used_bytes().into()
    }),
    gauge("tarn_block_cache_budget", "What it may take.", |f| f.server.engine.options.block_cache.into()),
    gauge("tarn_pinned_bytes", "Bytes of the store's filters and indexes that stay in memory.", |f| {
        f.store_sum(|partition| partition.pinned_bytes() as u64).into()
    }),
    gauge(
        "tarn_memory_hit_perc",
        "Look-ups of reading commands that needed neither metadata cache nor store, percent.",
        |f| {
            let stats = &f.shards.stats;
            let all = stats.keyspace_hits + stats.keyspace_misses;
            Value::percent(all.saturating_sub(stats.cold_reads + stats.stored_reads + stats.passing_reads), all)
        },
    ),
    gauge(
        "tarn_metadata_cache_hit_perc",
        "Of objects not in memory, those that the metadata cache had, percent.",
        |f| {
            let stats = &f.shards.stats;
            Value::percent(stats.cold_reads, stats.cold_reads + stats.stored_reads + stats.passing_reads)
        },
    ),
    counter("tarn_store_reads", "Objects read from the store.", |f| f.shards.stats.stored_reads.into()),
    counter("tarn_passing_reads", "Keys that were read without entering memory.", |f| {
        f.shards.stats.passing_reads.into()
    }),
    counter(
        "tarn_store_reads_aimed",
        "Reads that were taken several at a time, for the disk to begin with all.",
        |f| f.server.engine.readers.aimed().into(),
    ),
    gauge("tarn_store_reads_waiting", "Reads of the store that are under way.", |f| {
        f.server.engine.readers.pending().into()
    }),
    gauge("tarn_store_views_left", "Replaced views of the store whose files are still to go.", |f| {
        (f.server.engine.store.views_left() as u64).into()
    }),
    gauge("tarn_clients_elsewhere", "Clients whose command waits for the store, or runs on another thread.", |f| {
        f.clients.iter().filter(|client| client.bits.load(Ordering::Relaxed) & bits::ELSEWHERE != 0).count().into()
    }),
    counter("tarn_rests", "Times that a long command has given its shards back.", |f| f.shards.stats.rests.into()),
    gauge("tarn_busy_keys", "Keys that long commands hold.", |f| f.shards.busy.into()),
    gauge("tarn_commands_waiting_for_keys", "Commands that wait for one of these.", |f| f.shards.waiting.into()),
    gauge("tarn_long_commands_waiting", "Long commands that wait for a thread.", |f| {
        f.server.engine.long.waiting().into()
    }),
    counter("tarn_blind_writes", "Keys overwritten without a look at the store.", |f| {
        f.shards.stats.blind_writes.into()
    }),
    gauge("tarn_blind_keys", "Those of them whose record nobody has looked at yet.", |f| f.shards.blind.into()),
    gauge("tarn_store_bytes", "Bytes of the store on disk.", |f| f.store_sum(|p| p.disk_bytes()).into()),
    gauge("tarn_disk_bytes", "Bytes of log and store on disk.", |f| f.server.engine.disk_bytes().into()),
    gauge("tarn_disk_live_bytes", "Those of them that live, about: eviction goes by these.", |f| {
        f.server.engine.live_bytes().into()
    }),
    gauge("tarn_evicting", "Whether keys are evicted, as these are too many.", |f| {
        f.server.engine.eviction.is_under_way().into()
    }),
    gauge("tarn_disk_limit", "Bytes that they may take; 0 is any number.", |f| {
        f.server.config.settings().maxdisk.into()
    }),
    gauge("tarn_disk_free_bytes", "Bytes that are free on the file system, where some are reserved.", |f| {
        f.server.engine.disk.free_bytes().into()
    }),
    gauge("tarn_disk_full", "Whether what adds is refused for want of room on the disk.", |f| {
        (f.server.engine.gate.load(Ordering::Relaxed) & gate::FULL != 0).into()
    }),
    gauge("tarn_compactions_running", "Compactions that run.", |f| f.server.engine.store.active_compactions().into()),
    gauge("tarn_compactions_ok", "Whether compactions go on.", |f| f.server.engine.store_failure().is_none().into()),
    gauge("tarn_level0_runs", "Runs of records that wait to be merged.", |f| load(&f.server.engine.stats.level0_runs)),
    gauge("tarn_level0_runs_max", "The same of the partition that has most.", |f| {
        load(&f.server.engine.stats.level0_runs_max)
    }),
    counter("tarn_store_reopens", "Times that the store was opened again.", |f| {
        load(&f.server.engine.stats.store_reopens)
    }),
    gauge("tarn_dead_bytes", "Bytes of the store that are known to be dead.", |f| {
        f.store_sum(|partition| partition.dead_bytes()).into()
    }),
    counter("tarn_compactions_of_dead", "Compactions for the sake of what is dead.", |f| {
        load(&f.server.engine.stats.compactions)
    }),
    counter("tarn_dropped_tables", "Tables dropped as all in them was dead.", |f| {
        load(&f.server.engine.stats.dropped_tables)
    }),
    counter("tarn_heaps_told", "Times that network threads were told that others have freed much.", |_| {
        crate::util::alloc::heaps::told().into()
    }),
    gauge("tarn_expiry_late_ms", "Milliseconds by which the removal of expired keys in memory is late.", |f| {
        f.shards.each.iter().map(|shard| shard.late_ms).max().unwrap_or(0).into()
    }),
    gauge("tarn_garbage_queue", "Removed collections whose elements are still in the store.", |f| {
        f.shards.garbage.into()
    }),
    gauge("tarn_dead_namespaces", "Flushed databases whose records are still in the store.", |f| {
        f.shards.dead_namespaces.into()
    }),
    gauge("tarn_log_bytes", "Bytes of the log.", |f| f.log.size_bytes.into()),
    gauge("tarn_log_limit", "Bytes of the log at which a flush begins.", |f| load(&f.server.engine.log_limit)),
    gauge("tarn_log_segments", "Files of the log.", |f| f.log.segments.into()),
    counter("tarn_log_last_lsn", "Number of the last commit.", |f| f.log.last.into()),
    counter("tarn_log_written_lsn", "The last one that was written.", |f| f.log.written.into()),
    counter("tarn_log_synced_lsn", "The last one that is known to be on disk.", |f| f.log.synced.into()),
    gauge("tarn_log_refuses", "Whether the log takes no writes.", |f| (!f.server.engine.log.is_healthy()).into()),
    counter("tarn_flushes", "Flushes.", |f| load(&f.server.engine.stats.flushes)),
    gauge("tarn_flush_running", "Whether a flush is running.", |f| f.server.engine.is_flushing().into()),
    counter("tarn_flush_usec", "Microseconds that flushes took.", |f| load(&f.server.engine.stats.flush_us)),
    counter("tarn_flushed_records", "Objects that they have brought.", |f| {
        load(&f.server.engine.stats.flushed_records)
    }),
    counter("tarn_flush_errors", "Flushes that have failed.", |f| load(&f.server.engine.stats.flush_errors)),
    counter("tarn_replayed_records", "Records of the log that were replayed at the start.", |f| {
        load(&f.server.engine.stats.replayed_records)
    }),
    gauge("tarn_expiry_lag_ms", "Milliseconds that the oldest expired key in memory waits to be swept.", |f| {
        f.shards.expiry_lag_ms.into()
    }),
    gauge("tarn_backup_running", "Whether a backup is being made.", |f| {
        f.server.engine.backups.running().is_some().into()
    }),
    text("tarn_backup_name", |f| {
        f.server.engine.backups.running().map(|running| running.name).unwrap_or_default().into()
    }),
    gauge("tarn_backup_bytes", "Bytes that the last backup has to copy or link, and to read.", |f| {
        load(&f.server.engine.backups.total_bytes)
    }),
    gauge("tarn_backup_bytes_done", "Those of them that it has.", |f| load(&f.server.engine.backups.done_bytes)),
    gauge("tarn_backup_held_usec", "Microseconds for which no flush could begin on its account.", |f| {
        load(&f.server.engine.backups.held_us)
    }),
    text("tarn_backup_last_name", |f| f.server.engine.backups.last().map(|last| last.name).unwrap_or_default().into()),
    gauge("tarn_backup_last_time", "When the last backup ended, Unix seconds.", |f| {
        f.server.engine.backups.last().map_or(0, |last| last.ended_ms / 1000).into()
    }),
    gauge("tarn_backup_last_ok", "Whether it was made.", |f| {
        f.server.engine.backups.last().is_none_or(|last| last.failure.is_none()).into()
    }),
    text("tarn_backup_last_error", |f| {
        f.server.engine.backups.last().and_then(|last| last.failure).unwrap_or_default().into()
    }),
    gauge("tarn_namespaces_with_keys", "Databases and namespaces that have keys.", |f| f.keys.len().into()),
    gauge("tarn_named_namespaces_with_keys", "Those of them that have a name.", |f| {
        f.keys.keys().filter(|name| crate::util::num::parse_u64(name).is_none()).count().into()
    }),
    Entry::Many(Family {
        prefix: "tarn_wait_",
        label: "event",
        fields: &[grows("count", "Times that a command has waited."), grows("usec", "Microseconds of these.")],
        each: |_, visit| {
            for event in Event::WAITS {
                let [count, ns] = latency::waits(event);
                visit(event.name().trim_end_matches("-wait"), &[count.into(), (ns / 1000).into()]);
            }
        },
    }),
    Entry::Many(Family {
        prefix: "tarn_level_",
        label: "level",
        fields: &[
            moves("runs", "Runs of tables on this level of the store."),
            moves("tables", "Tables on this level."),
            moves("bytes", "Bytes of these."),
        ],
        each: |f, visit| {
            let mut levels: Vec<[u64; 3]> = Vec::new();
            for partition in f.server.engine.store.partitions() {
                let more = partition.levels();
                levels.resize(levels.len().max(more.len()), [0; 3]);
                for (sum, level) in levels.iter_mut().zip(more) {
                    sum.iter_mut().zip(level).for_each(|(sum, number)| *sum += number);
                }
            }
            for (level, sums) in levels.iter().enumerate() {
                visit(&level.to_string(), &sums.map(Value::Count));
            }
        },
    }),
    Entry::Many(Family {
        prefix: "tarn_hot_shard_",
        label: "rank",
        fields: &[
            moves("shard", "Number of the shard."),
            moves("ops_per_sec", "Commands a second that it has run, of late."),
            moves("perc", "Its part of those of all shards, percent."),
        ],
        each: |f, visit| {
            let mut paces = f.shards.paces.clone();
            let all: u64 = paces.iter().map(|(_, pace)| pace).sum();
            paces.sort_unstable_by_key(|(shard, pace)| (std::cmp::Reverse(*pace), *shard));
            for (rank, (shard, pace)) in paces.into_iter().filter(|(_, pace)| *pace > 0).take(HOT_SHARDS).enumerate() {
                let part = Value::Real(pace as f64 * 100.0 / all.max(1) as f64, 2);
                visit(&rank.to_string(), &[Value::Count(shard.into()), pace.into(), part]);
            }
        },
    }),
];

/// Shards that are told of as hot.
const HOT_SHARDS: usize = 3;
