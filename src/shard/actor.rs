//! The actor: a mailbox and a core behind a lock that nobody waits for.
//!
//! Whoever brings work tries the lock. Free: the work runs in place, then whatever arrived meanwhile. Taken: the work
//! is left behind, and the holder sees to it. Work that may wait for the disk goes to the shard's own thread, or to one for
//! commands in slices: these block on the lock.
//!
//! | who | how it gets the cores |
//! |---|---|
//! | a network thread, one shard | `try_lock`, else the shard's mailbox |
//! | a network thread, several shards | `try_lock` of all in ascending order, else the [`Crossing`] |
//! | a shard's thread, one for commands in slices, the flusher | `lock`, in ascending order |
//!
//! Invariants: cores are taken in ascending order by whoever waits for them; a core is given back by dropping its
//! [`Guard`] and in no other way: after every unlock the mailbox and the crossing are looked at again, so that no work
//! is stranded between a holder's last look and its unlock.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use crossbeam_queue::SegQueue;
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use crate::shard::memory::core::Core;
use crate::shard::router::ShardId;

/// Cores that a transaction holds, in ascending order of shard.
pub type Lease<'a> = SmallVec<[Guard<'a>; 1]>;

/// Work under a lease. It gets the cores and gives them back.
pub type Job = Box<dyn for<'e> FnOnce(Lease<'e>) -> Lease<'e> + Send>;

/// The shards a command needs, ascending and without repetition.
pub type ShardSet = SmallVec<[ShardId; 4]>;

/// Jobs a holder runs before it lets others have the core.
const DRAIN: usize = 64;

/// One shard as the rest of the process sees it.
pub struct Shard {
    mailbox: SegQueue<Job>,
    core: Mutex<Core>,
    crossing: Arc<Crossing>,
    /// Work for the shard's own thread.
    thread: crossbeam_channel::Sender<(ShardSet, Job)>,
    /// Dirty bytes as of the last release of the core.
    dirty_bytes: AtomicUsize,
    /// Bytes in memory as of the last release of the core.
    table_bytes: AtomicUsize,
}

/// A core on loan. Dropping it gives the core back, after the work that arrived meanwhile.
pub struct Guard<'a> {
    shard: &'a Shard,
    core: Option<MutexGuard<'a, Core>>,
}

impl Deref for Guard<'_> {
    type Target = Core;
    #[inline]
    fn deref(&self) -> &Core {
        match &self.core {
            Some(core) => core,
            None => unreachable!("a guard has its core until it is dropped"),
        }
    }
}

impl DerefMut for Guard<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Core {
        match &mut self.core {
            Some(core) => core,
            None => unreachable!("a guard has its core until it is dropped"),
        }
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(core) = self.core.take() {
            self.shard.release(core);
        }
    }
}

/// Shards whose cores are given back for a while.
pub struct Resting<'a>(SmallVec<[&'a Shard; 1]>);

impl<'a> From<Lease<'a>> for Resting<'a> {
    fn from(lease: Lease<'a>) -> Self {
        Resting(lease.into_iter().map(|guard| guard.shard).collect())
    }
}

impl<'a> Resting<'a> {
    /// Takes the cores again, in their order; waits for them.
    pub fn wake(self) -> Lease<'a> {
        self.0.into_iter().map(Shard::core).collect()
    }
}

/// Orders an unlock before the look at what arrived meanwhile, and the posting of work before the try of the lock.
#[inline]
fn full_fence() {
    // On x86-64 the locked instruction of the unlock, of the push and of the try is a full fence already.
    #[cfg(target_arch = "x86_64")]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(not(target_arch = "x86_64"))]
    std::sync::atomic::fence(Ordering::SeqCst);
}

impl Shard {
    /// A shard around its core.
    pub fn new(core: Core, crossing: Arc<Crossing>, thread: crossbeam_channel::Sender<(ShardSet, Job)>) -> Self {
        Shard {
            mailbox: SegQueue::new(),
            core: Mutex::new(core),
            crossing,
            thread,
            dirty_bytes: AtomicUsize::new(0),
            table_bytes: AtomicUsize::new(0),
        }
    }

    /// The core, if nobody has it.
    #[inline]
    pub fn try_core(&self) -> Option<Guard<'_>> {
        Some(Guard { core: Some(self.core.try_lock()?), shard: self })
    }

    /// The core, waited for; never on a network thread.
    pub fn core(&self) -> Guard<'_> {
        Guard { core: Some(self.core.lock()), shard: self }
    }

    /// The core, waited for until this time.
    pub fn core_until(&self, end: Instant) -> Option<Guard<'_>> {
        Some(Guard { core: Some(self.core.try_lock_until(end)?), shard: self })
    }

    /// Leaves a job for whoever holds the core, or runs it if nobody does any more.
    pub fn post(&self, job: Job) {
        self.mailbox.push(job);
        full_fence();
        drop(self.try_core());
    }

    /// Runs what is in the mailbox, unless a holder of the core will.
    fn look(&self) {
        full_fence();
        if !self.mailbox.is_empty() {
            drop(self.try_core());
        }
    }

    /// Leaves a job for the shard's own thread. False if the threads have ended.
    pub fn post_to_thread(&self, shards: ShardSet, job: Job) -> bool {
        self.thread.send((shards, job)).is_ok()
    }

    #[inline]
    fn release<'e>(&'e self, core: MutexGuard<'e, Core>) {
        let mut core = core;
        loop {
            if !self.mailbox.is_empty() {
                core = self.drain(core);
            }
            self.dirty_bytes.store(core.dirty_bytes + core.flight_bytes, Ordering::Relaxed);
            self.table_bytes.store(core.table_bytes, Ordering::Relaxed);
            moment::here(moment::Moment::Unlocking);
            drop(core);
            full_fence();
            if self.mailbox.is_empty() {
                break;
            }
            match self.core.try_lock() {
                Some(again) => core = again,
                None => break,
            }
        }
        self.crossing.look();
    }

    #[cold]
    fn drain<'e>(&'e self, core: MutexGuard<'e, Core>) -> MutexGuard<'e, Core> {
        let mut lease = Lease::new();
        lease.push(Guard { core: Some(core), shard: self });
        for _ in 0..DRAIN {
            let Some(job) = self.mailbox.pop() else { break };
            lease = job(lease);
        }
        match lease.pop().and_then(|mut guard| guard.core.take()) {
            Some(core) => core,
            None => unreachable!("a job gives back what it got"),
        }
    }

    /// Jobs that nobody has begun to run: those of the mailbox and of the crossing.
    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        self.mailbox.len() + self.crossing.queue.lock().len()
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

/// Where work over several shards waits until all of them are free at once. Whoever gives a core back looks here: the
/// work runs on the thread that made it possible, without a wake-up.
///
/// Work that keeps finding one of its shards taken goes to a thread that waits for them in turn.
#[derive(Default)]
pub struct Crossing {
    waiting: AtomicUsize,
    queue: Mutex<VecDeque<Crosser>>,
    /// Somebody looked while another was at it: that one looks again.
    again: AtomicBool,
    shards: OnceLock<Vec<Weak<Shard>>>,
}

struct Crosser {
    shards: ShardSet,
    job: Job,
    tries: u32,
}

/// After so many failures work stops hoping to find all its shards free.
const MOST_TRIES: u32 = 256;

thread_local! {
    /// The thread is running work of the crossing: it will look again by itself.
    static CROSSING: Cell<bool> = const { Cell::new(false) };
}

impl Crossing {
    /// Tells where the shards are; once.
    pub fn set_shards(&self, shards: &[Arc<Shard>]) {
        let set = self.shards.set(shards.iter().map(Arc::downgrade).collect());
        assert!(set.is_ok(), "the shards are told once");
    }

    /// Leaves work that found a shard taken.
    pub fn post(&self, shards: ShardSet, job: Job) {
        self.queue.lock().push_back(Crosser { shards, job, tries: 0 });
        self.waiting.fetch_add(1, Ordering::SeqCst);
        full_fence();
        self.look();
    }

    #[inline]
    fn look(&self) {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.run();
        }
    }

    #[cold]
    fn run(&self) {
        self.again.store(true, Ordering::SeqCst);
        if CROSSING.replace(true) {
            return;
        }
        let shards: Vec<Arc<Shard>> = self.shards.get().into_iter().flatten().filter_map(Weak::upgrade).collect();
        while self.again.swap(false, Ordering::SeqCst) {
            let Some(mut queue) = self.queue.try_lock() else {
                // Whoever is at it sees `again`.
                self.again.store(true, Ordering::SeqCst);
                full_fence();
                if self.queue.is_locked() {
                    break;
                }
                continue;
            };
            let mut touched = ShardSet::new();
            let ready = next_ready(&mut queue, &shards, &mut touched);
            moment::here(moment::Moment::LeavingQueue);
            drop(queue);
            touched.iter().for_each(|&shard| shards[shard as usize].look());
            if let Some((lease, job)) = ready {
                self.waiting.fetch_sub(1, Ordering::SeqCst);
                self.again.store(true, Ordering::SeqCst);
                drop(job.map(|job| job(lease)));
            }
        }
        CROSSING.set(false);
    }
}

/// Takes the first work whose shards are all free, or that has tried too often: that one goes to a thread.
fn next_ready<'e>(
    queue: &mut VecDeque<Crosser>,
    shards: &'e [Arc<Shard>],
    touched: &mut ShardSet,
) -> Option<(Lease<'e>, Option<Job>)> {
    for at in 0..queue.len() {
        let crosser = &mut queue[at];
        if let Some(lease) = try_quietly(shards, &crosser.shards, touched) {
            return queue.remove(at).map(|crosser| (lease, Some(crosser.job)));
        }
        crosser.tries += 1;
        if crosser.tries > MOST_TRIES {
            if let Some(crosser) = queue.remove(at)
                && let Some(first) = crosser.shards.first().and_then(|&s| shards.get(s as usize))
            {
                first.post_to_thread(crosser.shards, crosser.job);
            }
            return Some((Lease::new(), None));
        }
    }
    None
}

/// The cores of these shards, if none of them is taken; otherwise what was taken and given back without a look at what
/// arrived meanwhile is added to `touched`. Such work may bring more for the crossing, whose queue is locked here.
fn try_quietly<'e>(all: &'e [Arc<Shard>], shards: &[ShardId], touched: &mut ShardSet) -> Option<Lease<'e>> {
    let mut cores: SmallVec<[MutexGuard<'e, Core>; 4]> = SmallVec::new();
    for &shard in shards {
        let Some(core) = all[shard as usize].core.try_lock() else {
            touched.extend_from_slice(&shards[..cores.len()]);
            moment::here(moment::Moment::GivingUp);
            return None;
        };
        cores.push(core);
    }
    let guard = |(core, &shard): (_, &ShardId)| Guard { core: Some(core), shard: &all[shard as usize] };
    Some(cores.into_iter().zip(shards).map(guard).collect())
}

/// The cores of these shards, if none of them is taken.
#[inline]
pub fn try_lease<'e>(all: &'e [Arc<Shard>], shards: &[ShardId]) -> Option<Lease<'e>> {
    let mut lease = Lease::new();
    for &shard in shards {
        lease.push(all[shard as usize].try_core()?);
    }
    Some(lease)
}

/// Moments at which tests let something else happen.
pub(in crate::shard) mod moment {
    /// Where a thread is.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(in crate::shard) enum Moment {
        /// The mailbox has been looked at, the core is about to be given back.
        Unlocking,
        /// The queue of the crossing has been gone through, and is about to be unlocked.
        LeavingQueue,
        /// The cores that were free are about to be given back, as one was not.
        GivingUp,
    }

    #[cfg(not(test))]
    #[inline(always)]
    pub(in crate::shard) fn here(_: Moment) {}

    #[cfg(test)]
    type Happening = Option<(Moment, Box<dyn FnOnce()>)>;

    #[cfg(test)]
    thread_local! {
        static NEXT: std::cell::RefCell<Happening> = const { std::cell::RefCell::new(None) };
    }

    /// Has something happen when the calling thread next comes there.
    #[cfg(test)]
    pub(in crate::shard) fn at(moment: Moment, happens: impl FnOnce() + 'static) {
        NEXT.set(Some((moment, Box::new(happens))));
    }

    #[cfg(test)]
    pub(in crate::shard) fn here(moment: Moment) {
        let happens = NEXT.with_borrow_mut(|next| next.take_if(|(at, _)| *at == moment));
        if let Some((_, happens)) = happens {
            happens();
        }
    }
}
