//! What the engine does beside commands.
//!
//! | thread | does |
//! |---|---|
//! | `flush` | brings what is dirty to fjall, when that takes up half its budget, keeps the tables above theirs, or the log has grown long |
//! | `watch` | sets the writers' delay by what is dirty, gives free memory back to the system |
//! | `free` | frees big overlays that commands have thrown away |
//! | `compact` | rewrites partitions of which much is dead |
//! | `ingest` | one flight's ingestion, at the lower priority of background work |

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{Engine, MOST_DELAY_US, gate, spawn, store_bytes};
use crate::log;
use crate::shard::actor::Shard;
use crate::shard::core::ShardId;
use crate::shard::flush::{Flight, Gather};
use crate::store::Partition;
use crate::util::alloc::Trimmer;
use crate::util::pace::Pace;

/// However little is dirty, it is flushed after this time: replays stay short.
const FLUSH_EVERY: Duration = Duration::from_secs(300);

/// The same if garbage or a dead namespace waits for it.
const RECLAIM_EVERY: Duration = if cfg!(test) { Duration::from_millis(50) } else { Duration::from_secs(10) };

/// Time between two flushes that only make room.
const CROWDED_EVERY: Duration = Duration::from_secs(1);

/// Time between two looks at what is dirty.
const WATCH_EVERY: Duration = Duration::from_millis(10);

/// Time between two looks at what is to be freed.
const FREE_EVERY: Duration = Duration::from_millis(20);

/// Time between two looks at whether the engine stops, without compactions.
const COMPACT_LOOK: Duration = Duration::from_millis(100);

/// Time between two looks at the allocator's free memory.
const TRIM_EVERY: Duration = Duration::from_secs(1);

impl Engine {
    /// Whether the last flush failed.
    pub fn flush_fails(&self) -> bool {
        self.flush_failure.lock().is_some()
    }

    /// Whether a flush is running, or asked for and about to.
    pub fn is_flushing(&self) -> bool {
        *self.flush_wake.0.lock() || self.flush_lock.is_locked()
    }

    /// Wakes the flusher; `now` asks for a flush even below the thresholds.
    pub fn wake_flusher(&self, now: bool) {
        let mut asked = self.flush_wake.0.lock();
        *asked |= now;
        self.flush_wake.1.notify_one();
    }

    /// Starts the threads that serve no shard.
    pub(super) fn start_background(self: &Arc<Self>) -> [JoinHandle<()>; 4] {
        let (flush, watch, free, compact) = (self.clone(), self.clone(), self.clone(), self.clone());
        [
            spawn("flush".to_owned(), 0, move || flush.flush_thread()),
            spawn("watch".to_owned(), 0, move || watch.watch_thread()),
            spawn("free".to_owned(), self.options.nice, move || free.free_thread()),
            spawn("compact".to_owned(), self.options.nice, move || compact.compact_thread()),
        ]
    }

    fn flush_thread(&self) {
        let mut last_flush = Instant::now();
        while !self.stopping.load(Ordering::Relaxed) {
            let asked = {
                let mut asked = self.flush_wake.0.lock();
                if !*asked {
                    self.flush_wake.1.wait_for(&mut asked, WATCH_EVERY);
                }
                std::mem::take(&mut *asked)
            };
            if !asked && !self.needs_flush(last_flush) {
                continue;
            }
            last_flush = Instant::now();
            if self.flush().is_err() {
                self.stats.flush_errors.fetch_add(1, Ordering::Relaxed);
                if self.store.health().is_err()
                    && let Err(error) = self.store.reopen()
                {
                    tracing::error!(%error, "cannot reopen the store");
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }

    /// Garbage or a dead namespace waits for a flush.
    pub(in crate::shard) fn want_reclaim(&self) {
        self.reclaim.store(true, Ordering::Relaxed);
    }

    /// Whether a flush is to begin.
    pub(in crate::shard) fn needs_flush(&self, last_flush: Instant) -> bool {
        let poisoned = self.log.needs_flush();
        let full = self.dirty_bytes() as u64 > self.dirty_budget.load(Ordering::Relaxed) / 2;
        let long = self.log.size_bytes() > self.log_limit.load(Ordering::Relaxed);
        let dirty_for = |time| self.dirty_bytes() > 0 && last_flush.elapsed() > time;
        let reclaim = self.reclaim.load(Ordering::Relaxed) && last_flush.elapsed() > RECLAIM_EVERY;
        let old = dirty_for(FLUSH_EVERY) || reclaim;
        // What is dirty by one element stays whole: little dirt can keep much from leaving.
        let tables: usize = self.shards.iter().map(|shard| shard.table_bytes()).sum();
        let crowded = tables > self.options.table_budget / 8 * 9 && dirty_for(CROWDED_EVERY);
        poisoned || full || long || old || crowded
    }

    /// Watches over memory. It is not the flusher's to do: writers fill the budget while a flush runs.
    fn watch_thread(&self) {
        let (mut last_trim, mut trimmer) = (Instant::now(), Trimmer::default());
        while !self.stopping.load(Ordering::Relaxed) {
            self.set_gates();
            if last_trim.elapsed() > TRIM_EVERY {
                trimmer.turn((self.options.table_budget + self.options.cold_budget + self.options.block_cache) as u64);
                last_trim = Instant::now();
            }
            std::thread::sleep(WATCH_EVERY);
        }
    }

    /// Frees what commands have thrown away, at the lower priority of background work. It looks now and then: waking it
    /// would cost a command more than it saves.
    fn free_thread(&self) {
        while !self.stopping.load(Ordering::Relaxed) {
            let mut pace = Pace::new();
            for body in self.trash.try_iter().take_while(|_| !self.stopping.load(Ordering::Relaxed)) {
                body.overlay.free(|| pace.step());
            }
            std::thread::sleep(FREE_EVERY);
        }
    }

    /// Has a partition of which much is dead rewritten. The core is marked as `compacting`.
    pub(in crate::shard) fn compact(&self, id: ShardId) {
        if !self.options.background {
            self.compact_now(id);
        } else if self.compactions.0.send(id).is_err() {
            unreachable!("the engine holds both ends");
        }
    }

    /// Compacts for what is dead. Not on the shards' threads: it may take long, and others wait for those.
    fn compact_thread(&self) {
        while !self.stopping.load(Ordering::Relaxed) {
            if let Ok(id) = self.compactions.1.recv_timeout(COMPACT_LOOK) {
                self.compact_now(id);
            }
        }
    }

    fn compact_now(&self, id: ShardId) {
        let shard = &self.shards[id as usize];
        let partition = shard.core().partition.clone();
        match partition.major_compact() {
            Ok(()) => _ = self.stats.compactions.fetch_add(1, Ordering::Relaxed),
            Err(error) => tracing::error!(shard = id, %error, "cannot compact what is dead"),
        }
        let mut core = shard.core();
        (core.dead_bytes, core.compacting) = (0, false);
    }

    /// Watches budget and log: writers are slowed smoothly over the budget's last quarter.
    pub(in crate::shard) fn set_gates(&self) {
        let budget = self.dirty_budget.load(Ordering::Relaxed).max(1);
        let dirty = self.dirty_bytes() as u64;
        let free = budget / 4 * 3;
        let over = dirty.saturating_sub(free);
        let delay = MOST_DELAY_US * over.min(budget - free) / (budget - free).max(1);
        self.write_delay_us.store(delay, Ordering::Relaxed);
        if (self.gate.load(Ordering::Relaxed) & gate::SLOWED != 0) != (delay > 0) {
            self.set_gate(gate::SLOWED, delay > 0);
        }
        if (self.gate.load(Ordering::Relaxed) & gate::REFUSED != 0) != self.refusal().is_some() {
            self.set_gate(gate::REFUSED, self.refusal().is_some());
        }
    }

    /// Brings everything dirty to fjall and deletes the segments that are thereby worthless.
    pub fn flush(&self) -> Result<(), FlushError> {
        let _one = self.flush_lock.lock();
        let outcome = self.flush_all();
        let why = outcome.as_ref().err().map(FlushError::cause);
        let before = std::mem::replace(&mut *self.flush_failure.lock(), why.clone());
        match &outcome {
            // Once, not ten times a second as long as a disk is full.
            Err(error) if before != why => tracing::error!(%error, "flush failed, will be repeated"),
            Ok(()) if before.is_some() => tracing::info!("flushes succeed again"),
            _ => {}
        }
        outcome
    }

    fn flush_all(&self) -> Result<(), FlushError> {
        let began = std::time::Instant::now();
        self.io.step("flush.begin")?;
        let boundary = self.log.rotate()?;
        self.io.step("flush.rotated")?;
        self.store_tables()?;
        // What has come meanwhile, the next turns of the timers will note again.
        self.reclaim.store(false, Ordering::Relaxed);
        self.io.step("flush.stored")?;
        self.delete_before(boundary)?;
        self.io.step("flush.deleted")?;
        self.stats.flushes.fetch_add(1, Ordering::Relaxed);
        self.stats.flush_us.fetch_add(began.elapsed().as_micros() as u64, Ordering::Relaxed);
        self.stats.last_flush_ms.store(crate::util::time::now_ms(), Ordering::Relaxed);
        Ok(())
    }

    /// Deletes the segments before a boundary, when all that they hold is in fjall.
    pub(in crate::shard) fn delete_before(&self, boundary: log::SegmentBoundary) -> std::io::Result<()> {
        self.log.delete_before(boundary)
    }

    /// Brings everything dirty to fjall. During replay this is the whole flush: the log must stay as it is.
    pub fn store_tables(&self) -> Result<(), FlushError> {
        self.shards.iter().try_for_each(|shard| self.flush_shard(shard))
    }

    fn flush_shard(&self, shard: &Shard) -> Result<(), FlushError> {
        let mut core = shard.core();
        let partition = core.partition.clone();
        let mut pace = Pace::new();
        let mut gather = Gather::begin(&mut core);
        let mut more = gather.slice(&mut core);
        while more {
            drop(core);
            pace.step();
            core = shard.core();
            more = gather.slice(&mut core);
        }
        let mut flight = gather.end(&mut core);
        drop(core);
        let result = self.ingest_aside(&partition, &mut flight);
        if result.is_ok() {
            self.stats.flushed_records.fetch_add(flight.len() as u64, Ordering::Relaxed);
        }
        flight.forget_records();
        loop {
            let mut core = shard.core();
            let more = flight.settle(&mut core, result.is_ok());
            core.store_is_cold = self.store_is_cold();
            drop(core);
            if !more {
                return result;
            }
            pace.step();
        }
    }

    /// Runs the ingestion at the lower priority of background work. The flusher itself must not have that: whoever is
    /// preempted while it holds a core keeps everybody from it.
    fn ingest_aside(&self, partition: &Partition, flight: &mut Flight) -> Result<(), FlushError> {
        if !self.options.background {
            return self.ingest(partition, flight);
        }
        std::thread::scope(|scope| {
            let aside = || {
                crate::util::sys::to_background(self.options.nice);
                self.ingest(partition, flight)
            };
            match std::thread::Builder::new().name("ingest".to_owned()).spawn_scoped(scope, aside)?.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    fn ingest(&self, partition: &Partition, flight: &mut Flight) -> Result<(), FlushError> {
        self.io.step("flush.gathered")?;
        if flight.is_empty() {
            return Ok(());
        }
        flight.prepare(partition)?;
        let highest = flight.highest;
        let mut pace = Pace::new();
        partition.ingest_with(flight.records().inspect(|_| pace.step()), || {
            self.log.sync_to(highest)?;
            self.io.step("flush.synced")
        })?;
        self.io.step("flush.ingested")?;
        Ok(())
    }

    /// Whether a read of the store may have to wait for the disk.
    fn store_is_cold(&self) -> bool {
        store_bytes(&self.store) > self.options.block_cache as u64 / 2
    }
}

/// Why a flush failed.
#[derive(Debug, thiserror::Error)]
pub enum FlushError {
    /// The log.
    #[error("log: {0}")]
    Io(#[from] std::io::Error),
    /// fjall.
    #[error("store: {0}")]
    Store(#[from] crate::store::StoreError),
}

impl FlushError {
    /// The operating system's words where they are behind it, as clients are told them.
    fn cause(&self) -> Arc<str> {
        let mut error: &dyn std::error::Error = self;
        while let Some(source) = error.source() {
            error = source;
        }
        let text = match self {
            FlushError::Io(io) => io.to_string(),
            FlushError::Store(_) => error.to_string(),
        };
        text.split(" (os error ").next().unwrap_or_default().into()
    }
}
