//! Threads for commands in slices ([`crate::shard::txn::rest`]): of such there may be as many at a time, and neither a shard's
//! own thread nor one of the readers is kept by them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender};

use super::{Engine, spawn};
use crate::shard::actor::{Job, ShardSet};

/// Commands in slices that run at a time; more wait their turn.
pub const LONG: usize = if cfg!(test) { 2 } else { 8 };

/// Work for these threads.
pub struct Long {
    to: Sender<(ShardSet, Job)>,
    /// Until they start. What nobody takes any more is dropped with the last of them, and whoever waits for it is told so.
    work: parking_lot::Mutex<Option<Receiver<(ShardSet, Job)>>>,
}

impl Default for Long {
    fn default() -> Self {
        let (to, work) = crossbeam_channel::unbounded();
        Long { to, work: parking_lot::Mutex::new(Some(work)) }
    }
}

impl Long {
    /// Leaves a job for one of the threads.
    pub fn post(&self, shards: ShardSet, job: Job) {
        // If they have stopped, the job's reply channel closes with it.
        _ = self.to.send((shards, job));
    }

    /// Jobs that nobody has begun.
    pub fn waiting(&self) -> usize {
        self.to.len()
    }

    /// Starts the threads.
    pub(in crate::shard) fn start(engine: &Arc<Engine>) -> Vec<JoinHandle<()>> {
        let Some(work) = engine.long.work.lock().take() else { return Vec::new() };
        let run = |n: usize| {
            let (engine, work) = (engine.clone(), work.clone());
            spawn(format!("long-{n}"), 0, move || {
                while !engine.stopping.load(Ordering::Relaxed)
                    && let Ok((shards, job)) = work.recv()
                {
                    drop(job(engine.lease(&shards)));
                }
            })
        };
        (0..LONG).map(run).collect()
    }

    /// Wakes the threads, which end once they have seen that the engine stops.
    pub(in crate::shard) fn end(&self) {
        (0..LONG).for_each(|_| self.post(ShardSet::new(), Box::new(|lease| lease)));
    }
}
