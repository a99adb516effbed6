//! The actor: a mailbox and a core behind a lock that nobody waits for.
//!
//! Whoever brings work tries the lock. Free: the work runs in place, then whatever arrived meanwhile. Taken: the work
//! goes into the mailbox, and the holder runs it. Work that may wait (for the disk, for several busy shards) goes to
//! the shard's own thread, which is the only one that blocks on the lock.
//!
//! | who | how it gets the cores |
//! |---|---|
//! | a network thread, one shard | `try_lock`, else mailbox |
//! | a network thread, several shards | `try_lock` of all in ascending order, else the first shard's thread |
//! | a shard's thread | `lock`, in ascending order |
//!
//! Invariants: cores are taken in ascending order; after every unlock the mailbox is looked at again, so that no job
//! is stranded between a holder's last look and its unlock.

use std::sync::atomic::{AtomicUsize, Ordering, fence};

use crossbeam_queue::SegQueue;
use parking_lot::Mutex;
use smallvec::SmallVec;

use super::core::{Core, ShardId};
use super::txn::Lease;

/// Work under a lease. It gets the cores and gives them back.
pub type Job = Box<dyn for<'e> FnOnce(Lease<'e>) -> Lease<'e> + Send>;

/// The shards a command needs, ascending and without repetition.
pub type ShardSet = SmallVec<[ShardId; 4]>;

/// One shard as the rest of the process sees it.
pub struct Shard {
    mailbox: SegQueue<Job>,
    core: Mutex<Core>,
    /// Work for the shard's own thread.
    pub thread: crossbeam_channel::Sender<(ShardSet, Job)>,
    /// Dirty bytes as of the last release of the core.
    dirty_bytes: AtomicUsize,
    /// Bytes in memory as of the last release of the core.
    table_bytes: AtomicUsize,
}

/// Jobs a holder runs before it lets others have the core.
const DRAIN: usize = 64;

impl Shard {
    /// A shard around its core.
    pub fn new(core: Core, thread: crossbeam_channel::Sender<(ShardSet, Job)>) -> Self {
        Shard {
            mailbox: SegQueue::new(),
            core: Mutex::new(core),
            thread,
            dirty_bytes: AtomicUsize::new(0),
            table_bytes: AtomicUsize::new(0),
        }
    }

    /// The core, if nobody has it.
    #[inline]
    pub fn try_core(&self) -> Option<parking_lot::MutexGuard<'_, Core>> {
        self.core.try_lock()
    }

    /// The core, waited for; never on a network thread.
    pub fn core(&self) -> parking_lot::MutexGuard<'_, Core> {
        self.core.lock()
    }

    /// Leaves a job for whoever holds the core, or runs it if nobody does any more.
    pub fn post(&self, job: Job) {
        self.mailbox.push(job);
        fence(Ordering::SeqCst);
        if let Some(core) = self.core.try_lock() {
            self.release(core);
        }
    }

    /// Gives the core back, after the work that arrived meanwhile.
    #[inline]
    pub fn release(&self, core: parking_lot::MutexGuard<'_, Core>) {
        let mut core = core;
        loop {
            if !self.mailbox.is_empty() {
                core = self.drain(core);
            }
            self.dirty_bytes.store(core.dirty_bytes + core.flight_bytes, Ordering::Relaxed);
            self.table_bytes.store(core.table_bytes, Ordering::Relaxed);
            drop(core);
            fence(Ordering::SeqCst);
            if self.mailbox.is_empty() {
                return;
            }
            match self.core.try_lock() {
                Some(again) => core = again,
                None => return,
            }
        }
    }

    #[cold]
    fn drain<'e>(&'e self, core: parking_lot::MutexGuard<'e, Core>) -> parking_lot::MutexGuard<'e, Core> {
        let mut lease: Lease<'e> = Lease::new();
        lease.push(core);
        for _ in 0..DRAIN {
            let Some(job) = self.mailbox.pop() else { break };
            lease = job(lease);
        }
        match lease.pop() {
            Some(core) => core,
            None => unreachable!("a job gives back what it got"),
        }
    }

    /// Dirty bytes, gathered ones included, as of the last release.
    pub fn dirty_bytes(&self) -> usize {
        self.dirty_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of the table's objects as of the last release.
    pub fn table_bytes(&self) -> usize {
        self.table_bytes.load(Ordering::Relaxed)
    }
}
