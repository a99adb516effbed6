//! The steps of a flush. Each holds one shard's lock, once and briefly, or none: commands run in between.
//!
//! | step | does | next |
//! |---|---|---|
//! | [`Flush::begin`] | rotates the log | the first shard |
//! | `Begin` | nothing yet | `Sight` |
//! | `Sight` | what fjall holds of blind keys is looked at, step by step ([`super::sight`]) | `Sight`; then the list of dirty objects becomes the one in flight: `Gather` |
//! | `Gather` | encodes a slice | `Gather`, `Ingest` after the last one |
//! | `Ingest` | sorts, syncs the log, ingests; without the lock | `Settle` |
//! | `Settle` | settles a slice | `Settle`; then the next shard, or the end if the ingestion failed |
//! | after the last shard | deletes the segments that are thereby worthless | the end |
//!
//! Each thread of the flusher takes one step after the other, each for its own shards, and tests take the very same ones, with
//! other work between them. During a replay the log stays as it is: a flush without rotation and deletion.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::latency::{self, Event};
use crate::log;
use crate::shard::background::flush::{Flight, Gather};
use crate::shard::background::sight::{self, Sighting};
use crate::shard::engine::{Engine, is_cold};
use crate::shard::memory::core::Core;
use crate::shard::router::ShardId;
use crate::store::Partition;
use crate::util::pace::Pace;

/// Where a flush stands with its shard.
#[derive(Default)]
enum At {
    #[default]
    Begin,
    Sight(Sighting),
    Gather(Gather),
    Ingest(Flight),
    Settle(Flight, Option<FlushError>),
}

/// What becomes of blind keys.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Blind {
    /// They are sighted, and the log says so.
    Sighted,
    /// They are sighted; the log is at its end, and all keys will be counted.
    Counted,
    /// They stay: it is in the log behind this that they were sighted, or nobody did.
    Stay,
}

/// A flush under way. One at a time; given up half-way it leaves the tables as a crash would find them.
pub(in crate::shard) struct Flush {
    /// What is before it is deleted in the end.
    boundary: Option<log::SegmentBoundary>,
    began: Instant,
    lane: Lane,
}

/// The shards that one thread of a flush goes through: this one and every `stride`th after it.
struct Lane {
    blind: Blind,
    shard: ShardId,
    stride: ShardId,
    at: At,
}

impl Flush {
    /// Goes on in a new segment of the log.
    pub(in crate::shard) fn begin(engine: &Engine) -> Result<Flush, FlushError> {
        let began = Instant::now();
        engine.io.step("flush.begin")?;
        let boundary = engine.rotate()?;
        engine.io.step("flush.rotated")?;
        Ok(Flush { boundary: Some(boundary), ..Flush::of_tables(Blind::Sighted, began) })
    }

    fn of_tables(blind: Blind, began: Instant) -> Flush {
        Flush { boundary: None, began, lane: Lane { blind, shard: 0, stride: 1, at: At::Begin } }
    }

    /// The shard at hand; as many as there are once all are through.
    #[cfg(test)]
    pub(in crate::shard) fn shard(&self) -> ShardId {
        self.lane.shard
    }

    /// The next step. False after the last one; an error ends the flush, with everything settled.
    #[cfg(test)]
    pub(in crate::shard) fn step(&mut self, engine: &Engine) -> Result<bool, FlushError> {
        if self.lane.step(engine)? {
            return Ok(true);
        }
        self.end(engine).map(|()| false)
    }

    /// All steps, on as many threads as the engine has for it.
    fn run(self, engine: &Engine) -> Result<(), FlushError> {
        let threads = engine.options.flush_threads.clamp(1, engine.shards.count());
        let lane = |first: usize| Lane {
            blind: self.lane.blind,
            shard: first as ShardId,
            stride: threads as ShardId,
            at: At::Begin,
        };
        let failed = AtomicBool::new(false);
        let lanes = std::thread::scope(|scope| {
            let failed = &failed;
            let spawn = |first: usize| {
                let lane = lane(first);
                let thread = std::thread::Builder::new().name(format!("flush-{first}"));
                thread.spawn_scoped(scope, move || lane.run(engine, failed))
            };
            let others: Vec<_> = (1..threads).map(spawn).collect();
            let mut result = lane(0).run(engine, failed);
            for (first, other) in (1..).zip(others) {
                let other = match other {
                    Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                    // There is no thread to be had: it is done here.
                    Err(_) => lane(first).run(engine, failed),
                };
                result = result.and(other);
            }
            result
        });
        lanes.and_then(|()| self.end(engine))
    }
}

impl Lane {
    /// The next step. False after the last one; an error ends the lane, with everything settled.
    fn step(&mut self, engine: &Engine) -> Result<bool, FlushError> {
        let Some(shard) = engine.shards.get(self.shard) else { return Ok(false) };
        self.at = match std::mem::take(&mut self.at) {
            At::Begin => {
                let begun = self.begin_shard(&mut shard.core());
                if let At::Begin = begun {
                    std::thread::sleep(sight::RETRY);
                }
                begun
            }
            At::Sight(mut sighting) => {
                if sighting.step(engine) {
                    At::Sight(sighting)
                } else {
                    At::Gather(Gather::begin(&mut shard.core()))
                }
            }
            At::Gather(mut gather) => {
                let mut core = shard.core();
                if gather.slice(&mut core) { At::Gather(gather) } else { At::Ingest(gather.end(&mut core)) }
            }
            At::Ingest(mut flight) => {
                let result = engine.aside("ingest", || engine.ingest(engine.store.partition(self.shard), &mut flight));
                engine.count_runs();
                match &result {
                    Ok(()) => _ = engine.stats.flushed_records.fetch_add(flight.len() as u64, Ordering::Relaxed),
                    // At once: commands that build big results go to the store meanwhile.
                    Err(_) => engine.mend_store(),
                }
                flight.forget_records();
                At::Settle(flight, result.err())
            }
            At::Settle(mut flight, failure) => {
                let mut core = shard.core();
                let more = flight.settle(&mut core, failure.is_none());
                core.store_is_cold = is_cold(&engine.store, &engine.options);
                match failure {
                    failure if more => At::Settle(flight, failure),
                    Some(failure) => return Err(failure),
                    None => {
                        self.shard += self.stride;
                        At::Begin
                    }
                }
            }
        };
        Ok(true)
    }

    fn begin_shard(&self, core: &mut Core) -> At {
        if self.blind == Blind::Stay || core.blind.is_empty() {
            return At::Gather(Gather::begin(core));
        }
        // If somebody who counts is at it, he will have ended soon.
        Sighting::begin(core, self.blind == Blind::Sighted).map_or(At::Begin, At::Sight)
    }

    /// All steps; none for a shard that is not begun when another lane has `failed`.
    fn run(mut self, engine: &Engine, failed: &AtomicBool) -> Result<(), FlushError> {
        let mut pace = Pace::new();
        while !(matches!(self.at, At::Begin) && failed.load(Ordering::Relaxed)) {
            match self.step(engine) {
                Ok(true) => pace.step(),
                Ok(false) => break,
                Err(error) => {
                    failed.store(true, Ordering::Relaxed);
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

impl Flush {
    fn end(&self, engine: &Engine) -> Result<(), FlushError> {
        let Some(boundary) = self.boundary else { return Ok(()) };
        // What has come meanwhile, the next turns of the timers will note again.
        engine.reclaim.store(false, Ordering::Relaxed);
        engine.io.step("flush.stored")?;
        engine.delete_before(boundary)?;
        engine.io.step("flush.deleted")?;
        engine.stats.flushes.fetch_add(1, Ordering::Relaxed);
        let took_us = self.began.elapsed().as_micros() as u64;
        latency::keep(Event::Flush, took_us * 1000);
        engine.stats.flush_us.fetch_add(took_us, Ordering::Relaxed);
        engine.stats.last_flush_us.store(took_us, Ordering::Relaxed);
        engine.stats.log_base_bytes.store(engine.log.size_bytes(), Ordering::Relaxed);
        engine.stats.last_flush_ms.store(crate::util::time::now_ms(), Ordering::Relaxed);
        Ok(())
    }
}

impl Engine {
    /// Brings everything dirty to fjall and deletes the segments that are thereby worthless.
    pub fn flush(&self) -> Result<(), FlushError> {
        let _one = self.flush_lock.lock();
        let stats = &self.stats;
        stats.flushed_before.store(stats.flushed_records.load(Ordering::Relaxed), Ordering::Relaxed);
        stats.flush_since_ms.store(crate::util::time::now_ms(), Ordering::Relaxed);
        let outcome = Flush::begin(self).and_then(|flush| flush.run(self));
        stats.flush_since_ms.store(0, Ordering::Relaxed);
        let failed_before = stats.failed_in_a_row.load(Ordering::Relaxed);
        stats.failed_in_a_row.store(if outcome.is_ok() { 0 } else { failed_before + 1 }, Ordering::Relaxed);
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

    /// Brings what is dirty and not blind to fjall. During replay this is the whole flush: the log must stay as it is.
    pub fn store_tables(&self) -> Result<(), FlushError> {
        Flush::of_tables(Blind::Stay, Instant::now()).run(self)
    }

    /// Brings everything dirty to fjall; the log's records are of no use behind this, and the keys have to be counted.
    pub(in crate::shard) fn store_all(&self) -> Result<(), FlushError> {
        Flush::of_tables(Blind::Counted, Instant::now()).run(self)
    }

    /// Opens the store again if a failure has made it useless.
    pub(in crate::shard) fn mend_store(&self) {
        if self.store.health().is_err()
            && let Err(error) = self.store.reopen()
        {
            tracing::error!(%error, "cannot reopen the store");
        }
    }

    /// Deletes the segments before a boundary, when all that they hold is in fjall.
    fn delete_before(&self, boundary: log::SegmentBoundary) -> std::io::Result<()> {
        self.note_complete(boundary)?;
        self.log.delete_before(boundary)
    }

    /// Runs work that holds no core on a thread of its own, at the lower priority of background work. The flusher itself must
    /// not have that: whoever is preempted while it holds a core keeps everybody from it.
    pub(in crate::shard) fn aside<R: Send>(&self, name: &str, work: impl FnOnce() -> R + Send) -> R {
        if !self.options.background {
            return work();
        }
        // If there is no thread to be had, it is done here.
        let work = parking_lot::Mutex::new(Some(work));
        let run = || {
            crate::util::sys::to_background(self.options.nice);
            work.lock().take().map(|work| work())
        };
        let done = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, run);
            thread.ok()?.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        let left = work.lock().take();
        match (done, left) {
            (Some(done), _) => done,
            (None, Some(work)) => work(),
            (None, None) => unreachable!("work is done once"),
        }
    }

    pub(super) fn ingest(&self, partition: &Partition, flight: &mut Flight) -> Result<(), FlushError> {
        self.io.step("flush.gathered")?;
        if flight.is_empty() {
            return Ok(());
        }
        flight.prepare(partition)?;
        let highest = flight.highest;
        let mut pace = Pace::of_writers();
        partition.ingest_with(flight.records().inspect(|_| pace.step()), || {
            self.log.sync_to(highest)?;
            self.io.step("flush.synced")
        })?;
        self.io.step("flush.ingested")?;
        Ok(())
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
