//! Persistence, in Redis's words: a flush is what BGSAVE and BGREWRITEAOF do, the log is the AOF.

use std::sync::atomic::Ordering;

use super::Facts;
use super::fact::Lack::{Fork, Modules};
use super::fact::{Entry, Value, counter, gauge, nothing, nothing_real, text};

pub(super) const PERSISTENCE: &[Entry] = &[
    gauge("loading", "Whether the log is being replayed.", |f| f.loading.into()),
    gauge("async_loading", "Whether it is replayed while commands run.", |f| (f.loading && f.log.last > 0).into()),
    gauge("loading_start_time", "When the replay began, Unix seconds.", |f| {
        while_loading(f, (f.server.started_ms / 1000).into())
    }),
    gauge("loading_total_bytes", "Bytes of the log that is replayed.", |f| while_loading(f, f.log.size_bytes.into())),
    gauge("loading_loaded_records", "Records of it that have been replayed.", |f| while_loading(f, replayed(f).into())),
    nothing("current_cow_peak", Fork),
    nothing("current_cow_size", Fork),
    nothing("current_cow_size_age", Fork),
    nothing_real("current_fork_perc", Fork),
    gauge("current_save_keys_processed", "Objects that the running flush has brought to the store.", |f| {
        f.flush.brought.into()
    }),
    gauge("current_save_keys_total", "Objects that it is to bring, as far as known.", objects_to_flush),
    gauge("rdb_changes_since_last_save", "Changed objects that the store does not have yet.", |f| {
        f.shards.dirty_objects.into()
    }),
    gauge("rdb_bgsave_in_progress", "Whether a flush is running.", |f| f.flush.running.into()),
    gauge("rdb_last_save_time", "When the last flush ended, Unix seconds.", |f| saved_s(f).into()),
    text("rdb_last_bgsave_status", |f| status(flush_ok(f))),
    gauge("rdb_last_bgsave_time_sec", "Seconds that the last flush took; -1 if there was none.", last_s),
    gauge("rdb_current_bgsave_time_sec", "Seconds since the running flush began; -1 if none runs.", current_s),
    counter("rdb_saves", "Flushes.", |f| f.flush.count.into()),
    nothing("rdb_last_cow_size", Fork),
    gauge("rdb_last_load_keys_expired", "Keys that had expired when the server was started.", |f| {
        f.server.engine.stats.loaded_expired.load(Ordering::Relaxed).into()
    }),
    gauge("rdb_last_load_keys_loaded", "Keys that there were when the server was started.", |f| {
        f.server.engine.stats.loaded_keys.load(Ordering::Relaxed).into()
    }),
    gauge("aof_enabled", "Whether there is a log: always.", |_| true.into()),
    gauge("aof_rewrite_in_progress", "Whether a flush is running.", |f| f.flush.running.into()),
    gauge("aof_rewrite_scheduled", "Whether a flush is asked for and has not begun.", |f| f.flush.asked.into()),
    gauge("aof_last_rewrite_time_sec", "Seconds that the last flush took; -1 if there was none.", last_s),
    gauge("aof_current_rewrite_time_sec", "Seconds since the running flush began; -1 if none runs.", current_s),
    text("aof_last_bgrewrite_status", |f| status(flush_ok(f))),
    counter("aof_rewrites", "Flushes.", |f| f.flush.count.into()),
    gauge("aof_rewrites_consecutive_failures", "Flushes that have failed since one did not.", |f| {
        f.server.engine.stats.failed_in_a_row.load(Ordering::Relaxed).into()
    }),
    text("aof_last_write_status", |f| status(f.log.write_ok && f.log.sync_ok)),
    nothing("aof_last_cow_size", Fork),
    nothing("module_fork_in_progress", Modules),
    nothing("module_fork_last_cow_size", Modules),
    gauge("aof_current_size", "Bytes of the log.", |f| f.log.size_bytes.into()),
    gauge("aof_base_size", "Bytes of the log after the last flush, or at the start.", |f| {
        f.server.engine.stats.log_base_bytes.load(Ordering::Relaxed).into()
    }),
    gauge("aof_pending_rewrite", "Whether a flush is asked for and has not begun.", |f| f.flush.asked.into()),
    gauge("aof_buffer_length", "Bytes of records on their way to the log.", |f| f.log.buffered_bytes.into()),
    gauge("aof_pending_bio_fsync", "Whether the log is being synced.", |f| f.log.sync_running.into()),
    counter("aof_delayed_fsync", "Writes of the log that came while one sync of it took longer than a second.", |f| {
        f.log.delayed_syncs.into()
    }),
];

fn objects_to_flush(facts: &Facts<'_>) -> Value {
    if facts.flush.since_ms == 0 { 0 } else { facts.flush.brought + facts.shards.dirty_objects }.into()
}

fn while_loading(facts: &Facts<'_>, value: Value) -> Value {
    if facts.loading { value } else { Value::Absent }
}

fn replayed(facts: &Facts<'_>) -> u64 {
    facts.server.engine.stats.replayed_records.load(Ordering::Relaxed)
}

fn status(ok: bool) -> Value {
    if ok { "ok" } else { "err" }.into()
}

fn flush_ok(facts: &Facts<'_>) -> bool {
    facts.server.engine.store_failure().is_none() && !facts.server.engine.flush_fails()
}

fn saved_s(facts: &Facts<'_>) -> u64 {
    let flushed_s = facts.server.engine.stats.last_flush_ms.load(Ordering::Relaxed) / 1000;
    flushed_s.max(facts.server.last_save_s.load(Ordering::Relaxed))
}

fn last_s(facts: &Facts<'_>) -> Value {
    if facts.flush.count == 0 { Value::Signed(-1) } else { (facts.flush.last_us / 1_000_000).into() }
}

fn current_s(facts: &Facts<'_>) -> Value {
    match facts.flush.since_ms {
        0 => Value::Signed(-1),
        since_ms => (facts.now_ms.saturating_sub(since_ms) / 1000).into(),
    }
}
