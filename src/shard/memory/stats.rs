//! What is counted of a shard.

/// Per-shard counters of INFO; written under the shard's lock only.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
#[expect(missing_docs, reason = "the names INFO gives them")]
pub struct CoreStats {
    pub keyspace_hits: u64,
    pub keyspace_misses: u64,
    pub expired_keys: u64,
    pub expired_fields: u64,
    pub evicted_objects: u64,
    pub evicted_keys: u64,
    pub cold_reads: u64,
    pub stored_reads: u64,
    pub blind_writes: u64,
    pub passing_reads: u64,
    pub rests: u64,
    /// Sweeps of expired keys that took long, and what all took.
    pub long_sweeps: u64,
    pub sweep_us: u64,
}

/// How many commands a shard has run, of late.
#[derive(Debug, Default, Clone, Copy)]
pub struct Pace {
    /// A second, averaged over the last seconds.
    pub per_second: u64,
    seen: u64,
}

impl Pace {
    /// Looks at the number of commands, a tenth of a second after the last look.
    pub fn look(&mut self, commands: u64) {
        /// Looks over which it averages.
        const LOOKS: u64 = 16;
        let now = (commands - self.seen) * 10;
        self.seen = commands;
        // Up, so that little comes down to nothing, and does not stay.
        self.per_second = (self.per_second * (LOOKS - 1) + now) / LOOKS + u64::from(now > self.per_second);
    }
}
