//! What the store can be told, and what it tells fjall.
//!
//! fjall keeps a partition's options from its creation and ignores others at a later opening; only the compaction filter
//! and what belongs to the whole database (cache, files, workers) is taken anew. A change of the options below therefore holds for
//! new data directories; for an old one it takes an export and import.

use fjall::compaction::Leveled;
use fjall::config::{
    BlockSizePolicy, BloomConstructionPolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry, PartitioningPolicy,
    PinningPolicy,
};
use fjall::{CompressionType, KeyspaceCreateOptions};
use std::sync::Arc;

/// How table blocks are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// Not at all: the least CPU (0.35 µs a flushed record in background threads).
    None,
    /// lz4 everywhere: 0.15 to 0.35 µs a record more. To leave out the runs that a flush brings is not in the choice: fjall takes
    /// them for the first level, and that holds most of a partition until it is large.
    #[default]
    Lz4,
}

/// How a store is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreOptions {
    /// Shards that the configuration names; `None`: what the directory has, or [`default_shards`] for a fresh one.
    pub shards: Option<u16>,
    /// Cache of all partitions together, bytes: of blocks, and an eighth of indexes.
    pub cache_bytes: u64,
    /// Threads that compact.
    pub compaction_threads: usize,
    /// Compression; for a fresh directory only.
    pub compression: Compression,
    /// Size of the tables that compactions write, see [`table_bytes`]; for a fresh directory only.
    pub table_bytes: u64,
    /// By how much fjall's threads yield, as nice(1) counts; `None` leaves them at the caller's.
    pub nice: Option<i32>,
    /// Table files that the partitions have open at most, each for as long as there is the table: see `way`. One beyond them is read
    /// by fjall, which looks up more and keeps [`LEAST_TABLE_FILES`] open for that.
    pub table_files: usize,
}

/// Table files that there is room for whatever the system allows, for fjall and for the partitions.
pub const LEAST_TABLE_FILES: usize = 384;

impl Default for StoreOptions {
    fn default() -> Self {
        StoreOptions {
            shards: None,
            cache_bytes: 64 << 20,
            compaction_threads: 1,
            compression: Compression::default(),
            table_bytes: if cfg!(test) { 8 << 10 } else { TABLE_BYTES[1] },
            // Compaction beside the network threads at equal priority costs them throughput and latency.
            nice: Some(10),
            table_files: LEAST_TABLE_FILES,
        }
    }
}

impl StoreOptions {
    /// What of the cache the indexes may have. Theirs take about a hundredth of the records, so that of fourteen times as much data as
    /// there is cache all fit.
    pub(super) const fn index_bytes(&self) -> u64 {
        self.cache_bytes / 8
    }

    /// The rest of it.
    pub(super) const fn blocks_bytes(&self) -> u64 {
        self.cache_bytes - self.index_bytes()
    }

    /// fjall's number of workers. With more than one, the first only rotates and flushes, which never happens here,
    /// and hands compactions back to the queue: two workers spin on it as long as the second is busy, three do not.
    pub(super) const fn workers(&self) -> usize {
        match self.compaction_threads {
            0 | 1 => 1,
            threads => threads + 1,
        }
    }
}

/// The least and the most that [`table_bytes`] answers.
const TABLE_BYTES: [u64; 2] = [4 << 20, 32 << 20];

/// Size of tables where a flush brings runs of about so many bytes.
///
/// Four tables are what the first level below the runs may hold, and each merge of four runs with keys in no order rewrites all
/// of that. Many times as much as what comes would make every key dearer the more there are. A run has so many bytes at most,
/// before it is compressed.
/// Small ones are also the more likely to be dead as a whole, and leave less at the edges; but each costs a file.
pub fn table_bytes(run_bytes: u64) -> u64 {
    let [least, most] = TABLE_BYTES;
    run_bytes.clamp(least, most).next_power_of_two()
}

/// Shards of a fresh data directory if nobody says: four a core, so that two commands seldom meet, at least sixteen,
/// which made flushes cheapest, and a power of two.
pub fn default_shards() -> u16 {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (cores * 4).next_power_of_two().clamp(16, 256) as u16
}

/// Options of a new partition.
pub(super) fn partition_options(options: &StoreOptions) -> KeyspaceCreateOptions {
    let blocks = match options.compression {
        Compression::None => CompressionPolicy::disabled(),
        Compression::Lz4 => CompressionPolicy::all(CompressionType::Lz4),
    };
    // Ten bits a key: one look-up in a hundred for a key that is not there reads a block.
    let bloom = FilterPolicyEntry::Bloom(BloomConstructionPolicy::BitsPerKey(10.0));
    let compaction = Leveled::default().with_table_target_size(options.table_bytes);
    KeyspaceCreateOptions::default()
        .compaction_strategy(Arc::new(compaction))
        .data_block_compression_policy(blocks)
        .data_block_size_policy(BlockSizePolicy::all(4 << 10))
        // Filters at every level, the last included: SET of a new key asks for a key that is not there.
        .expect_point_read_hits(false)
        .filter_policy(FilterPolicy::new([bloom]))
        // Filters and indexes in pieces that the cache holds, those of indexes in a form of their own (`index`); no more than the
        // way to the pieces is always in memory. Whole ones make a look-up of what is not there cheaper (0.25 µs instead of 0.8), but take 2 bytes of
        // memory for each record on disk, however many there are, and a compaction that makes one collects 8 bytes for
        // each record of the table: 33 MB for small elements.
        .filter_block_partitioning_policy(PartitioningPolicy::all(true))
        .index_block_partitioning_policy(PartitioningPolicy::all(true))
        .filter_block_pinning_policy(PinningPolicy::all(true))
        .index_block_pinning_policy(PinningPolicy::all(true))
        // Rule 15: nothing is ever inserted, so that the journal stays empty; if something were, no write(2) each.
        .manual_journal_persist(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_workers_never_run() {
        for (threads, workers) in [(0, 1), (1, 1), (2, 3), (3, 4)] {
            assert_eq!(StoreOptions { compaction_threads: threads, ..StoreOptions::default() }.workers(), workers);
        }
    }

    #[test]
    fn tables_are_about_as_large_as_runs() {
        const MB: u64 = 1 << 20;
        let runs = [0, 4 * MB, 4 * MB + 1, 16 * MB, 20 * MB, 32 * MB, u64::MAX];
        assert_eq!(runs.map(table_bytes), [4, 4, 8, 16, 32, 32, 32].map(|mb| mb * MB));
    }

    #[test]
    fn default_shards_are_a_power_of_two_in_range() {
        let shards = default_shards();
        assert!(shards.is_power_of_two() && (16..=256).contains(&shards));
    }
}
