//! The steps of a flush. Each holds one shard's lock, once and briefly, or none: commands run in between.
//!
//! | step | does | next |
//! |---|---|---|
//! | [`Flush::begin`] | rotates the log | the first shard |
//! | `Begin` | the list of dirty objects becomes the one in flight | `Gather` |
//! | `Gather` | encodes a slice | `Gather`, `Ingest` after the last one |
//! | `Ingest` | sorts, syncs the log, ingests; without the lock | `Settle` |
//! | `Settle` | settles a slice | `Settle`; then the next shard, or the end if the ingestion failed |
//! | after the last shard | deletes the segments that are thereby worthless | the end |
//!
//! The flusher takes one step after the other, and tests take the very same ones, with other work between them. During a
//! replay the log stays as it is: a flush without rotation and deletion.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::log;
use crate::shard::background::flush::{Flight, Gather};
use crate::shard::engine::{Engine, is_cold};
use crate::shard::router::ShardId;
use crate::store::Partition;
use crate::util::pace::Pace;

/// Where a flush stands with its shard.
#[derive(Default)]
enum At {
    #[default]
    Begin,
    Gather(Gather),
    Ingest(Flight),
    Settle(Flight, Option<FlushError>),
}

/// A flush under way. One at a time; given up half-way it leaves the tables as a crash would find them.
pub(in crate::shard) struct Flush {
    /// What is before it is deleted in the end.
    boundary: Option<log::SegmentBoundary>,
    began: Instant,
    shard: ShardId,
    at: At,
}

impl Flush {
    /// Goes on in a new segment of the log.
    pub(in crate::shard) fn begin(engine: &Engine) -> Result<Flush, FlushError> {
        let began = Instant::now();
        engine.io.step("flush.begin")?;
        let boundary = engine.rotate()?;
        engine.io.step("flush.rotated")?;
        Ok(Flush { boundary: Some(boundary), began, shard: 0, at: At::Begin })
    }

    /// The shard at hand; as many as there are once all are through.
    #[cfg(test)]
    pub(in crate::shard) fn shard(&self) -> ShardId {
        self.shard
    }

    /// The next step. False after the last one; an error ends the flush, with everything settled.
    pub(in crate::shard) fn step(&mut self, engine: &Engine) -> Result<bool, FlushError> {
        let Some(shard) = engine.shards.get(self.shard as usize) else {
            return self.end(engine).map(|()| false);
        };
        self.at = match std::mem::take(&mut self.at) {
            At::Begin => At::Gather(Gather::begin(&mut shard.core())),
            At::Gather(mut gather) => {
                let mut core = shard.core();
                if gather.slice(&mut core) { At::Gather(gather) } else { At::Ingest(gather.end(&mut core)) }
            }
            At::Ingest(mut flight) => {
                let result = engine.ingest_aside(engine.store.partition(self.shard), &mut flight);
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
                        self.shard += 1;
                        At::Begin
                    }
                }
            }
        };
        Ok(true)
    }

    fn run(mut self, engine: &Engine) -> Result<(), FlushError> {
        let mut pace = Pace::new();
        while self.step(engine)? {
            pace.step();
        }
        Ok(())
    }

    fn end(&self, engine: &Engine) -> Result<(), FlushError> {
        let Some(boundary) = self.boundary else { return Ok(()) };
        // What has come meanwhile, the next turns of the timers will note again.
        engine.reclaim.store(false, Ordering::Relaxed);
        engine.io.step("flush.stored")?;
        engine.delete_before(boundary)?;
        engine.io.step("flush.deleted")?;
        engine.stats.flushes.fetch_add(1, Ordering::Relaxed);
        engine.stats.flush_us.fetch_add(self.began.elapsed().as_micros() as u64, Ordering::Relaxed);
        engine.stats.last_flush_ms.store(crate::util::time::now_ms(), Ordering::Relaxed);
        Ok(())
    }
}

impl Engine {
    /// Brings everything dirty to fjall and deletes the segments that are thereby worthless.
    pub fn flush(&self) -> Result<(), FlushError> {
        let _one = self.flush_lock.lock();
        let outcome = Flush::begin(self).and_then(|flush| flush.run(self));
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

    /// Brings everything dirty to fjall. During replay this is the whole flush: the log must stay as it is.
    pub fn store_tables(&self) -> Result<(), FlushError> {
        Flush { boundary: None, began: Instant::now(), shard: 0, at: At::Begin }.run(self)
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

    /// Runs the ingestion on a thread of its own, `ingest`, at the lower priority of background work. The flusher itself must
    /// not have that: whoever is preempted while it holds a core keeps everybody from it.
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
