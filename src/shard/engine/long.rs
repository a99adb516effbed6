//! Threads for commands in slices ([`crate::shard::txn::rest`]): of such there may be as many at a time, and neither a shard's
//! own thread nor one of the readers is kept by them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender};

use super::{Engine, spawn};
use crate::shard::actor::{Job, ShardSet};

/// Commands in slices that go through data and run at a time; more wait their turn, and each ends.
pub const LONG: usize = if cfg!(test) { 2 } else { 8 };
/// Scripts in slices that run at a time. They may go on for ever, until somebody kills them: these threads are no others', and more, as
/// one that waits for a thread is there for nobody to kill.
pub const SCRIPTS: usize = if cfg!(test) { 2 } else { 32 };

/// By how much they yield to those, as `nice` counts: one that goes on for ever would have half of a processor else.
const SCRIPTS_NICE: i32 = 5;

/// What a command in slices does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// It goes through data.
    Data,
    /// It computes.
    Script,
}

/// The threads, by what they do.
#[derive(Default)]
pub struct Long {
    data: Pool,
    scripts: Pool,
}

/// Work for some threads.
struct Pool {
    to: Sender<(ShardSet, Job)>,
    /// Until they start. What nobody takes any more is dropped with the last of them, and whoever waits for it is told so.
    work: parking_lot::Mutex<Option<Receiver<(ShardSet, Job)>>>,
}

impl Default for Pool {
    fn default() -> Self {
        let (to, work) = crossbeam_channel::unbounded();
        Pool { to, work: parking_lot::Mutex::new(Some(work)) }
    }
}

impl Long {
    /// Leaves a job for one of the threads.
    pub fn post(&self, work: Work, shards: ShardSet, job: Job) {
        let pool = match work {
            Work::Data => &self.data,
            Work::Script => &self.scripts,
        };
        // If they have stopped, the job's reply channel closes with it.
        _ = pool.to.send((shards, job));
    }

    /// Jobs that nobody has begun.
    pub fn waiting(&self) -> usize {
        self.data.to.len() + self.scripts.to.len()
    }

    /// Starts the threads.
    pub(in crate::shard) fn start(engine: &Arc<Engine>) -> Vec<JoinHandle<()>> {
        let data = engine.long.data.start(engine, ("long", 0), LONG);
        data.chain(engine.long.scripts.start(engine, ("script", SCRIPTS_NICE), SCRIPTS)).collect()
    }

    /// Wakes the threads, which end once they have seen that the engine stops.
    pub(in crate::shard) fn end(&self) {
        for (work, threads) in [(Work::Data, LONG), (Work::Script, SCRIPTS)] {
            (0..threads).for_each(|_| self.post(work, ShardSet::new(), Box::new(|lease| lease)));
        }
    }
}

impl Pool {
    fn start(
        &self,
        engine: &Arc<Engine>,
        (name, nice): (&str, i32),
        threads: usize,
    ) -> impl Iterator<Item = JoinHandle<()>> {
        let work = self.work.lock().take();
        (0..threads).filter_map(move |n| {
            let (engine, work) = (engine.clone(), work.clone()?);
            let run = move || {
                while !engine.stopping.load(Ordering::Relaxed)
                    && let Ok((shards, job)) = work.recv()
                {
                    drop(job(engine.lease(&shards)));
                }
            };
            Some(spawn(format!("{name}-{n}"), nice, run))
        })
    }
}
