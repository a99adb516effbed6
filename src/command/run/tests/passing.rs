//! What is read from disk and answered in passing: it is the same as what is looked up, and stays out of memory.

use super::*;
use crate::shard::memory::door::Doorkeeper;

impl World {
    /// Everything is on disk only, and memory has no room for what need not enter.
    fn rest_with_a_full_table(&self) {
        self.rest();
        for shard in self.engine().shards.iter() {
            let mut core = shard.core();
            core.table_limit = 0;
            // Nobody has asked for anything.
            core.door = Doorkeeper::new(0);
        }
    }

    fn passed(&self) -> u64 {
        self.engine().shards.iter().map(|shard| shard.core().stats.passing_reads).sum()
    }

    fn in_table(&self) -> usize {
        self.engine().shards.iter().map(|shard| shard.core().table.len()).sum()
    }
}

/// Of each type a command that asks for one element: what passes by, and what does not.
#[test]
fn one_element_of_a_small_collection_is_read_in_passing() {
    let mut world = World::new();
    let long = "m".repeat(100);
    for encoding in [0, 1] {
        world.runner.server.config.set(&[("zset-encode-version", &encoding.to_string())]).unwrap();
        for line in [
            "FLUSHALL",
            "SET string value",
            "HSET hash f 1",
            "HSET hash empty {}",
            "SADD set m",
            "ZADD zset 1.5 m",
            &format!("ZADD long -inf {long}"),
            "RPUSH list a b",
            "RPUSH one a",
            "RPUSH many a b c",
            "HSET timed f 1 g 2",
            "HPEXPIRE timed 1000000 FIELDS 1 f",
            "HSET due f 1",
            "PEXPIRE due 1000000",
        ] {
            assert!(!world.call(line).starts_with('-'), "{line}");
        }
        let lines = [
            ("GET string", true),
            ("HGET hash f", true),
            ("HGET hash none", true),
            ("HGET hash empty", true),
            ("HGET due f", true),
            ("HEXISTS hash f", true),
            ("HEXISTS hash ", true),
            ("HSTRLEN hash empty", true),
            ("SISMEMBER set m", true),
            ("SISMEMBER set n", true),
            ("ZSCORE zset m", true),
            ("ZSCORE zset n", true),
            (&format!("ZSCORE long {long}"), true),
            (&format!("ZSCORE long {long}m"), true),
            ("LINDEX list 0", true),
            ("LINDEX list -1", true),
            ("LINDEX list 2", true),
            ("LINDEX list -3", true),
            ("LINDEX list x", true),
            ("LINDEX one -1", true),
            // Written element by element.
            ("LINDEX many 1", false),
            // By the times of its fields it may be gone.
            ("HGET timed f", false),
            ("HGET timed g", false),
            ("HGET none f", false),
            ("SISMEMBER none m", false),
            ("ZSCORE none m", false),
            ("LINDEX none x", false),
            ("GET hash", false),
            ("HGET string f", false),
            ("HGET set m", false),
            ("SISMEMBER zset m", false),
            ("ZSCORE set m", false),
            ("LINDEX hash 0", false),
        ];
        // While all is in memory.
        let expected = lines.map(|(line, _)| world.call(line));
        for ((line, passes), expected) in lines.into_iter().zip(expected) {
            world.rest_with_a_full_table();
            let passed = world.passed();
            assert_eq!(world.call(line), expected, "{line}");
            assert_eq!(world.passed() - passed, u64::from(passes), "{line}");
            assert!(!passes || world.in_table() == 0, "{line}");
            assert_eq!(world.call(line), expected, "{line}: again, as what is asked for twice enters");
        }
        // What is past its time does not pass by. Nobody else is to remove it meanwhile.
        world.engine().active_expire.store(false, Ordering::Relaxed);
        world.call("PEXPIRE due 1");
        world.rest_with_a_full_table();
        while world.call("HGET due f") != "$-1 " {
            std::thread::yield_now();
        }
    }
}
