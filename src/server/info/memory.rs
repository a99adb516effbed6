//! Memory: what the process has, and what it is for.

use super::Facts;
use super::fact::Lack::{Cluster, Defragmentation, Replication};
use super::fact::{Entry, Value, counter, gauge, nothing, text};
use crate::util::{alloc, sys};

/// What there is to know of the process' memory, read at one moment.
pub(super) struct Memory {
    used: u64,
    resident: u64,
    pub(super) tables: u64,
    clients: u64,
    /// The highest use so far, and when it was, in Unix seconds.
    peak: (u64, u64),
}

impl Memory {
    pub(super) fn read(server: &crate::handler::Server, now_ms: u64) -> Memory {
        let used = alloc::used_bytes() as u64;
        let seen = server.rates.lock().memory_peak;
        Memory {
            used,
            resident: sys::resident_bytes(),
            tables: server.engine.shards.iter().map(|shard| shard.table_bytes() as u64).sum(),
            clients: server.client_bytes(),
            peak: if used > seen.0 { (used, now_ms / 1000) } else { seen },
        }
    }

    fn ratio(&self) -> Value {
        Value::Real(self.resident as f64 / self.used.max(1) as f64, 2)
    }

    /// Resident and not in use; below zero if less is resident than was asked for.
    fn unused(&self) -> Value {
        (self.resident as i64 - self.used as i64).into()
    }
}

pub(super) const MEMORY: &[Entry] = &[
    gauge("used_memory", "Bytes that are allocated.", |f| f.memory.used.into()),
    text("used_memory_human", |f| Value::Human(f.memory.used)),
    gauge("used_memory_rss", "Bytes of the process that are resident.", |f| f.memory.resident.into()),
    text("used_memory_rss_human", |f| Value::Human(f.memory.resident)),
    gauge("used_memory_peak", "The most bytes that were allocated.", |f| f.memory.peak.0.into()),
    text("used_memory_peak_human", |f| Value::Human(f.memory.peak.0)),
    gauge("used_memory_peak_time", "When that was, Unix seconds.", |f| f.memory.peak.1.into()),
    gauge("used_memory_peak_perc", "What is allocated, of the most that was, percent.", |f| {
        Value::percent(f.memory.used, f.memory.peak.0)
    }),
    gauge("used_memory_overhead", "Bytes allocated for anything but objects in memory.", |f| {
        f.memory.used.saturating_sub(f.memory.tables).into()
    }),
    gauge("used_memory_startup", "Bytes that were allocated when the server was ready.", |f| startup(f).into()),
    gauge("used_memory_dataset", "Bytes of the objects in memory.", |f| f.memory.tables.into()),
    gauge("used_memory_dataset_perc", "Those, of what was allocated since the server was ready, percent.", |f| {
        Value::percent(f.memory.tables, f.memory.used.saturating_sub(startup(f)).max(f.memory.tables))
    }),
    gauge("allocator_allocated", "Bytes that are allocated.", |f| f.memory.used.into()),
    gauge("allocator_active", "Bytes that the allocator has taken from the system.", |f| f.memory.resident.into()),
    gauge("allocator_resident", "Bytes of these that are resident.", |f| f.memory.resident.into()),
    nothing("allocator_muzzy", Defragmentation),
    gauge("total_system_memory", "Bytes of memory that the machine has.", |_| sys::machine_memory_bytes().into()),
    text("total_system_memory_human", |_| Value::Human(sys::machine_memory_bytes())),
    gauge("used_memory_lua", "Bytes that interpreters of scripts hold.", |f| scripts(f).into()),
    gauge("used_memory_vm_eval", "Bytes that interpreters of scripts hold.", |f| scripts(f).into()),
    text("used_memory_lua_human", |f| Value::Human(scripts(f))),
    gauge("used_memory_scripts_eval", "Bytes of the scripts that are known.", |f| f.scripts.1.into()),
    gauge("number_of_cached_scripts", "Scripts that are known.", |f| f.scripts.0.into()),
    gauge("number_of_functions", "Functions of all libraries.", |f| f.shards.libraries.0.1.into()),
    gauge("number_of_libraries", "Libraries of functions.", |f| f.shards.libraries.0.0.into()),
    gauge("used_memory_vm_functions", "Bytes that interpreters of functions hold.", |f| functions(f).into()),
    gauge("used_memory_vm_total", "Bytes that all interpreters hold.", |f| (scripts(f) + functions(f)).into()),
    text("used_memory_vm_total_human", |f| Value::Human(scripts(f) + functions(f))),
    gauge("used_memory_functions", "Bytes of the libraries of functions.", |f| f.shards.libraries.1.into()),
    gauge("used_memory_scripts", "Bytes of scripts and libraries.", |f| code(f).into()),
    text("used_memory_scripts_human", |f| Value::Human(code(f))),
    // The budget in force: dashboards divide by it. What was asked for is what CONFIG GET answers.
    gauge("maxmemory", "The memory budget in force, bytes.", |f| f.budget.total_bytes.into()),
    text("maxmemory_human", |f| Value::Human(f.budget.total_bytes)),
    text("maxmemory_policy", |f| {
        // It has no effect and stands therefore in no setting.
        let found = f.server.config.get(&["maxmemory-policy"]);
        found.first().map_or(Value::Absent, |(_, policy)| String::from_utf8_lossy(policy).into_owned().into())
    }),
    gauge("allocator_frag_ratio", "What the allocator has taken, over what is allocated.", |f| f.memory.ratio()),
    gauge("allocator_frag_bytes", "What it has taken and is not allocated, bytes.", |f| f.memory.unused()),
    gauge("allocator_rss_ratio", "What is resident, over what the allocator has taken.", |_| Value::Real(1.0, 2)),
    nothing("allocator_rss_bytes", Defragmentation),
    gauge("rss_overhead_ratio", "What the process has resident, over what its allocator has.", |_| Value::Real(1.0, 2)),
    nothing("rss_overhead_bytes", Defragmentation),
    gauge("mem_fragmentation_ratio", "What is resident, over what is allocated.", |f| f.memory.ratio()),
    gauge("mem_fragmentation_bytes", "What is resident and not allocated, bytes.", |f| f.memory.unused()),
    gauge("mem_not_counted_for_evict", "Bytes of records on their way to the log.", |f| log_buffer(f).into()),
    nothing("mem_replication_backlog", Replication),
    nothing("mem_total_replication_buffers", Replication),
    nothing("mem_replica_full_sync_buffer", Replication),
    nothing("mem_clients_slaves", Replication),
    gauge("mem_clients_normal", "Bytes that connections take.", |f| f.memory.clients.into()),
    nothing("mem_cluster_links", Cluster),
    gauge("mem_aof_buffer", "Bytes of records on their way to the log.", |f| log_buffer(f).into()),
    text("mem_allocator", |_| "libc".into()),
    nothing("mem_overhead_db_hashtable_rehashing", Defragmentation),
    nothing("active_defrag_running", Defragmentation),
    gauge("lazyfree_pending_objects", "Big values that wait to be freed.", |f| f.server.engine.bodies_to_free().into()),
    counter("lazyfreed_objects", "Big values that were freed aside.", |f| f.totals.aside[2].into()),
];

fn startup(facts: &Facts<'_>) -> u64 {
    facts.server.startup_bytes.load(std::sync::atomic::Ordering::Relaxed)
}

fn scripts(facts: &Facts<'_>) -> u64 {
    facts.server.scripts.machine_bytes()[0]
}

fn functions(facts: &Facts<'_>) -> u64 {
    facts.server.scripts.machine_bytes()[1]
}

fn code(facts: &Facts<'_>) -> u64 {
    (facts.scripts.1 + facts.shards.libraries.1) as u64
}

fn log_buffer(facts: &Facts<'_>) -> u64 {
    facts.log.buffered_bytes
}
