//! What is automatic: the number of shards and threads, and how the one memory budget is divided.
//!
//! | part | given | automatic |
//! |---|---|---|
//! | whole budget | `maxmemory`, at least 32 MB | half of the memory of the machine or, if less, of the cgroup |
//! | cache of the store's blocks and indexes | `block-cache-size` | 25 % |
//! | metadata cache | `metadata-cache-size` | 10 % |
//! | buffers of clients | `maxmemory-clients` | 10 %, at least 16 MB |
//! | what running commands hold, all together | | 12.5 %, at least 4 MB: `handler/limits.rs` |
//! | shard tables, hot and dirty objects, and the filter of keys | | the rest, 55 %, and what the metadata cache leaves |
//! | dirty objects, within the tables | `dirty-budget` | 25 %, at most 1 GB |
//! | log before a flush | `log-max-size` | twice the dirty part, 256 MB to 2 GB |
//! | shards | `shards` | 4 a core, a power of two, 16 to 256 |
//! | threads that serve connections | `io-threads` | one for two cores: flushes, compaction and the clients' share of the kernel need the others |
//!
//! The budget is divided anew when one of its directives changes ([`Budget::anew`]). The block cache then keeps the size it was
//! opened with, as fjall cannot change it; the rest is divided.
//!
//! Commands come on top: the whole is what a server at rest has, full as it may be; measured, it uses some 90 % of it with
//! tables and caches full, and with what the allocator keeps besides some 105 % are resident. A command holds what it does for
//! moments only, twice over at most: on its way into the log, and as what it was asked in. So `maxmemory` is passed by an eighth and the process's own 64 MB at most.
//!
//! Invariants: the parts never exceed the whole; caches given too big are cut in proportion, so that the tables keep a
//! fifth of the whole; dirty objects never fill more than half of the tables, as pinned objects cannot leave them, but in a
//! replay, where nothing else wants them.

use std::fs;
use std::path::Path;

use super::Settings;
use crate::shard::engine::EngineOptions;
use crate::store::LEAST_TABLE_FILES;

const MB: u64 = 1 << 20;
const GB: u64 = 1 << 30;
/// Below this the division into shards leaves no room for a single big value.
const MIN_TOTAL_BYTES: u64 = 32 * MB;
/// Below this the buffers of clients leave no room for requests and replies of some MB.
const MIN_CLIENTS_BYTES: u64 = 16 * MB;

/// What the process has to live on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
    /// Memory that the process may use: the machine's, or less where a cgroup bounds it.
    pub memory_bytes: u64,
    /// Cores that the process may use.
    pub cores: usize,
}

impl Machine {
    /// Of the process that asks.
    pub fn read() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Machine { memory_bytes: memory_bytes(Path::new("/")), cores }
    }
}

/// The numbers that the parts of the server are built with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// The whole, in bytes.
    pub total_bytes: u64,
    /// The store's cache of blocks.
    pub block_cache_bytes: u64,
    /// The cache of metadata behind the shard tables.
    pub metadata_cache_bytes: u64,
    /// All shard tables: hot and dirty objects, and the filters of keys.
    pub tables_bytes: u64,
    /// Dirty objects of all shards; a part of `tables_bytes`.
    pub dirty_bytes: u64,
    /// Buffers of all clients together.
    pub clients_bytes: u64,
    /// Size of the log at which the shards flush.
    pub log_max_bytes: u64,
    /// Shards of a data directory that is created now.
    pub shards: usize,
    /// Threads that serve connections.
    pub io_threads: usize,
}

impl Budget {
    /// Divides what `machine` has as `settings` ask.
    pub fn new(settings: &Settings, machine: &Machine) -> Self {
        Budget::divide(settings, machine, None)
    }

    /// The same while the server runs with this budget.
    pub fn anew(&self, settings: &Settings, machine: &Machine) -> Self {
        Budget::divide(settings, machine, Some(self.block_cache_bytes))
    }

    fn divide(settings: &Settings, machine: &Machine, opened_block_cache: Option<u64>) -> Self {
        let given_or = |given: u64, automatic: u64| if given == 0 { automatic } else { given };
        let total = given_or(settings.maxmemory, machine.memory_bytes / 2).max(MIN_TOTAL_BYTES);
        let metadata = given_or(settings.metadata_cache_size, total / 10);
        let caches = total / 10 * 7;
        let [block, metadata] = match opened_block_cache {
            Some(block) => [block, metadata.min(caches.saturating_sub(block))],
            None => fit([given_or(settings.block_cache_size, total / 4), metadata], caches),
        };
        let tables = total - total / 10 - block.min(caches) - metadata;
        let dirty = given_or(settings.dirty_budget, (total / 4).min(GB)).min(tables / 2);
        Budget {
            total_bytes: total,
            block_cache_bytes: block,
            metadata_cache_bytes: metadata,
            tables_bytes: tables,
            dirty_bytes: dirty,
            clients_bytes: match settings.maxmemory_clients {
                0 => (total / 10).max(MIN_CLIENTS_BYTES),
                bytes @ 1.. => bytes.unsigned_abs(),
                // Of any whole there is room for more than percents.
                percent => total / 100 * percent.unsigned_abs(),
            },
            log_max_bytes: given_or(settings.log_max_size, (2 * dirty).clamp(256 * MB, 2 * GB))
                .max(settings.log_segment_size),
            shards: if settings.shards == 0 { automatic_shards(machine.cores) } else { settings.shards },
            io_threads: if settings.io_threads == 0 { (machine.cores / 2).clamp(1, 128) } else { settings.io_threads },
        }
    }
}

impl Budget {
    /// What the engine is told.
    pub fn engine_options(&self, settings: &Settings) -> EngineOptions {
        EngineOptions {
            dir: settings.dir.clone(),
            shards: u16::try_from(settings.shards).ok().filter(|shards| *shards > 0),
            databases: settings.databases,
            fsync: settings.appendfsync.into(),
            table_budget: self.tables_bytes as usize,
            dirty_budget: self.dirty_bytes as usize,
            cold_budget: self.metadata_cache_bytes as usize,
            block_cache: self.block_cache_bytes as usize,
            table_files: LEAST_TABLE_FILES,
            log_limit: self.log_max_bytes,
            // One gathers while another one waits for the disk.
            flush_threads: crate::shard::engine::background_threads().max(2),
            nice: settings.background_nice,
            background: true,
        }
    }
}

/// The parts, in their proportion, with a sum of `most` at most.
fn fit(parts: [u64; 2], most: u64) -> [u64; 2] {
    let sum: u128 = parts.iter().map(|part| u128::from(*part)).sum();
    if sum <= u128::from(most) {
        return parts;
    }
    parts.map(|part| u64::try_from(u128::from(part) * u128::from(most) / sum).unwrap_or(most))
}

fn automatic_shards(cores: usize) -> usize {
    (cores.min(64) * 4).next_power_of_two().clamp(16, 256)
}

/// The machine's memory, or the lowest limit of a cgroup, version 1 or 2, that the process is in; files below `root`.
fn memory_bytes(root: &Path) -> u64 {
    let machine = machine_bytes(root).unwrap_or(GB);
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let limits = groups.lines().flat_map(|line| group_limits(root, line));
    limits.fold(machine, u64::min)
}

fn machine_bytes(root: &Path) -> Option<u64> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// Limits of the group that a line `id:controllers:path` of `/proc/self/cgroup` names, and of those it lies in. Inside
/// a container the path may be the host's, of which only the root is to be seen.
fn group_limits(root: &Path, line: &str) -> Vec<u64> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { return Vec::new() };
    let (mount, file) = match controllers {
        "" => ("sys/fs/cgroup", "memory.max"),
        list if list.split(',').any(|one| one == "memory") => ("sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        _ => return Vec::new(),
    };
    let read = |folder: &Path| fs::read_to_string(root.join(mount).join(folder).join(file)).ok()?.trim().parse().ok();
    Path::new(path.trim_start_matches('/')).ancestors().filter_map(read).collect()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::super::Config;
    use super::*;

    fn budget(set: &[(&str, &str)], memory_bytes: u64, cores: usize) -> Budget {
        let overrides: Vec<_> = set.iter().map(|(name, value)| vec![(*name).into(), (*value).into()]).collect();
        let config = Config::load(super::super::Source::Defaults, &overrides).unwrap();
        let budget = Budget::new(&config.settings(), &Machine { memory_bytes, cores });
        let parts = budget.block_cache_bytes + budget.metadata_cache_bytes + budget.tables_bytes;
        assert!(parts <= budget.total_bytes && budget.dirty_bytes <= budget.tables_bytes / 2, "{budget:?}");
        assert!(budget.tables_bytes >= budget.total_bytes / 5 - 10, "{budget:?}");
        budget
    }

    #[test]
    fn automatic() {
        let all = budget(&[], 8000 * MB, 2);
        assert_eq!(all.total_bytes, 4000 * MB);
        assert_eq!(all.block_cache_bytes, 1000 * MB);
        assert_eq!(all.metadata_cache_bytes, 400 * MB);
        assert_eq!(all.tables_bytes, 2200 * MB);
        assert_eq!(all.dirty_bytes, 1000 * MB);
        assert_eq!(all.clients_bytes, 400 * MB);
        assert_eq!(all.log_max_bytes, 2000 * MB);
        assert_eq!((all.shards, all.io_threads), (16, 1));
        assert_eq!(budget(&[], 64 * GB, 2).dirty_bytes, GB);
        assert_eq!(budget(&[], 64 * GB, 2).log_max_bytes, 2 * GB);
        assert_eq!(budget(&[], 512 * MB, 2).log_max_bytes, 256 * MB);
    }

    #[test]
    fn shards_follow_the_cores() {
        let shards = |cores| budget(&[], GB, cores).shards;
        let counts = [1, 4, 5, 8, 24, 64, 1000].map(shards);
        assert_eq!(counts, [16, 16, 32, 32, 128, 256, 256]);
        assert_eq!(budget(&[("shards", "2"), ("io-threads", "3")], GB, 64).shards, 2);
        assert_eq!(budget(&[("shards", "2"), ("io-threads", "3")], GB, 64).io_threads, 3);
    }

    #[test]
    fn given() {
        let all = budget(&[("maxmemory", "1gb"), ("block-cache-size", "64mb"), ("dirty-budget", "32mb")], 8 * GB, 2);
        assert_eq!(all.total_bytes, GB);
        assert_eq!(all.block_cache_bytes, 64 * MB);
        assert_eq!(all.metadata_cache_bytes, GB / 10);
        assert_eq!(all.tables_bytes, GB - GB / 10 - GB / 10 - 64 * MB);
        assert_eq!(all.dirty_bytes, 32 * MB);
        let clients =
            |given: &str| budget(&[("maxmemory", "100mb"), ("maxmemory-clients", given)], GB, 2).clients_bytes;
        assert_eq!(["0", "5mb", "30%", "1"].map(clients), [16 * MB, 5 * MB, 30 * MB, 1]);
    }

    #[test]
    fn anew_the_block_cache_stays_and_the_rest_is_divided() {
        let with = |maxmemory: &str| {
            let words = vec![b"maxmemory".to_vec(), maxmemory.into()];
            Config::load(super::super::Source::Defaults, &[words]).unwrap().settings()
        };
        let machine = Machine { memory_bytes: 8000 * MB, cores: 2 };
        let first = Budget::new(&with("1000mb"), &machine);
        assert_eq!((first.block_cache_bytes, first.tables_bytes), (250 * MB, 550 * MB));
        for (maxmemory, metadata, tables, dirty) in
            [("4000mb", 400, 2950, 1000), ("500mb", 50, 150, 75), ("400mb", 30, 80, 40), ("200mb", 0, 40, 20)]
        {
            let budget = first.anew(&with(maxmemory), &machine);
            assert_eq!(budget.block_cache_bytes, 250 * MB, "{maxmemory}");
            let parts = [budget.metadata_cache_bytes, budget.tables_bytes, budget.dirty_bytes];
            assert_eq!(parts, [metadata, tables, dirty].map(|mb| mb * MB), "{maxmemory}");
        }
        assert_eq!(first.anew(&with("0"), &machine).total_bytes, 4000 * MB);
        assert_eq!(first.anew(&with("1000mb"), &machine), first);
    }

    #[test]
    fn what_is_too_big_or_too_small_is_made_to_fit() {
        let all = budget(&[("maxmemory", "100mb"), ("block-cache-size", "3gb"), ("metadata-cache-size", "1gb")], GB, 1);
        assert_eq!(all.block_cache_bytes / all.metadata_cache_bytes, 3);
        assert_eq!(budget(&[("maxmemory", "1")], GB, 1).total_bytes, 32 * MB);
        let huge = i64::MAX.to_string();
        budget(&[("maxmemory", &huge), ("block-cache-size", &huge), ("metadata-cache-size", &huge)], GB, 1);
        assert_eq!(budget(&[("log-max-size", "1mb")], GB, 1).log_max_bytes, 64 * MB);
    }

    #[test]
    fn memory_of_machine_and_cgroups() {
        let root = crate::util::scratch::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert_eq!(memory_bytes(root.path()), GB);
        write("proc/meminfo", "MemTotal:        8000000 kB\nMemFree:  1 kB\n");
        assert_eq!(memory_bytes(root.path()), 8_192_000_000);

        write("proc/self/cgroup", "0::/a/b\n");
        assert_eq!(memory_bytes(root.path()), 8_192_000_000);
        write("sys/fs/cgroup/a/b/memory.max", "max\n");
        write("sys/fs/cgroup/a/memory.max", "3000\n");
        assert_eq!(memory_bytes(root.path()), 3000);
        write("sys/fs/cgroup/a/b/memory.max", "2000\n");
        assert_eq!(memory_bytes(root.path()), 2000);
        // A container's own root.
        write("proc/self/cgroup", "0::/host/path\n");
        write("sys/fs/cgroup/memory.max", "1000\n");
        assert_eq!(memory_bytes(root.path()), 1000);

        write("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/x\n");
        write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(memory_bytes(root.path()), 8_192_000_000);
        write("sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes", "5000\n");
        assert_eq!(memory_bytes(root.path()), 5000);
    }

    #[test]
    fn this_machine_has_something() {
        let machine = Machine::read();
        assert!(machine.memory_bytes > 0 && machine.cores > 0);
    }
}
