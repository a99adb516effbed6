//! What the engine is told, and what of that may change.

use std::path::PathBuf;

use crate::log;

/// What the engine is told at its start. Sizes in bytes.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Data directory.
    pub dir: PathBuf,
    /// Shards for a new data directory; `None` accepts what an existing one has.
    pub shards: Option<u16>,
    /// Numbered databases.
    pub databases: u32,
    /// When the log is synced.
    pub fsync: log::Fsync,
    /// Memory of all shard tables.
    pub table_budget: usize,
    /// Of that, what may be dirty or in flight.
    pub dirty_budget: usize,
    /// Memory of the second-level cache.
    pub cold_budget: usize,
    /// fjall's block cache.
    pub block_cache: usize,
    /// Table files of the store that are open for reads.
    pub table_files: usize,
    /// Size at which the log is flushed away.
    pub log_limit: u64,
    /// Threads that a flush takes.
    pub flush_threads: usize,
    /// By how much background threads yield, as nice(1) counts.
    pub nice: i32,
    /// Runs timers and flushes on threads of their own. Tests that step by hand turn it off.
    pub background: bool,
}

/// What may change while the engine runs, as in [`EngineOptions`]; bytes.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Memory of all shard tables.
    pub tables: u64,
    /// Of that, what may be dirty or in flight.
    pub dirty: u64,
    /// Memory of the second-level cache.
    pub cold: u64,
    /// Size at which the log is flushed away.
    pub log: u64,
}
