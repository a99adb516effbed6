//! The actor: a mailbox and a core behind a lock that nobody waits for longer than a moment.
//!
//! Whoever brings work tries the lock. Free: the work runs in place, then whatever arrived meanwhile. Taken, and not given
//! back in a moment: the work is left behind, and the holder sees to it. Work that may wait for the disk goes to the shard's
//! own thread, or to one for commands in slices: these block on the lock, and as long as they have it nobody waits at all.
//!
//! | who | how it gets the cores |
//! |---|---|
//! | a network thread | [`Shards::try_lease`], else a mailbox: that of the first shard it needs |
//! | a shard's thread, one for commands in slices, the flusher | `core`, in ascending order |
//!
//! **Work over several shards** lies in the mailbox of one of them. Whoever empties that has this core and tries for the
//! others; where one is taken, the work moves on to that one's mailbox: it is tried again exactly when what it lacked last
//! is given back. Work that keeps finding one of its shards taken goes to a thread that waits for them in turn.
//!
//! **Who keeps cores for long** and may not give them back has a look now and then for work that only reads ([`Guest`]), which
//! lies apart: [`Lease::have_guests`].
//!
//! Invariants: cores are taken in ascending order by whoever waits for them without end; a core is given back by dropping
//! its [`Guard`] and in no other way: after every unlock the mailbox is looked at again, so that no work is stranded between
//! a holder's last look and its unlock. A thread that is emptying a mailbox notes the shards that it gives back meanwhile, and
//! looks at them in turn: work is run by a loop, not by a call within a call.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::mem::offset_of;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossbeam_queue::SegQueue;
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use crate::shard::memory::core::Core;
use crate::shard::memory::table::{Slots, Table};
use crate::shard::router::ShardId;
use crate::util::bell::Bell;
use crate::util::prefetch::{LINE, prefetch, prefetch_to_write};

mod lease;

pub use lease::{Lease, Resting};

/// Work under a lease. It gets the cores and gives them back.
pub type Job = Box<dyn for<'e> FnOnce(Lease<'e>) -> Lease<'e> + Send>;

/// The shards a command needs, ascending and without repetition.
pub type ShardSet = SmallVec<[ShardId; 8]>;

/// Where the core begins in an actor: its mutex keeps it behind the lock.
const CORE_AT: usize = offset_of!(Actor, core) + size_of::<Mutex<Core>>() - size_of::<Core>();
/// Lines of an actor that every command writes: what stands before the core, and the first part of that.
const WRITTEN_LINES: usize = (CORE_AT + offset_of!(Core, stats) + size_of::<[u64; 2]>()).div_ceil(LINE);
const _: () = assert!(
    WRITTEN_LINES <= 2 && align_of::<Actor>().is_multiple_of(LINE),
    "what every command writes fills few lines"
);
/// Lines to the end of the table: the others that a command reads are changed so seldom that they stay where they are read.
const HOT_LINES: usize = (CORE_AT + offset_of!(Core, table) + size_of::<Table>()).div_ceil(LINE);

/// Jobs a holder runs before it lets others have the core.
const DRAIN: usize = 64;

/// After so many failures work stops hoping to find all its shards free.
const MOST_TRIES: u32 = 256;

/// Looks at a core that a network thread has, before the thread sleeps for it: some times as long as a command of ten keys
/// has its cores.
const LOOKS: usize = 500;

/// How long it sleeps, before it leaves the work to the other: that one may have lost its processor, and gets it back the
/// sooner for it. The next ones leave theirs at once.
const MOST_SLEEP: Duration = Duration::from_millis(1);

/// What work looks at that only reads one key, and needs the shard of that alone.
pub struct Guest {
    /// The name of the database.
    pub db: Box<[u8]>,
    /// The key's hash.
    pub hash: u64,
    /// The key.
    pub key: Box<[u8]>,
}

/// Work that waits for its shards.
struct Work {
    shards: ShardSet,
    job: Job,
    tries: u32,
}

/// A shard. The numbers are those of the last release of the core.
#[repr(C)]
struct Actor {
    id: ShardId,
    /// Whoever has the core may take long.
    held_long: AtomicBool,
    /// Guests that wait; looked at with every release, and therefore here.
    guests_count: AtomicU32,
    dirty_bytes: AtomicUsize,
    table_bytes: AtomicUsize,
    slots: AtomicPtr<u64>,
    slots_mask: AtomicUsize,
    core: Mutex<Core>,
    mailbox: SegQueue<Work>,
    /// Work for the shard's own thread.
    thread: crossbeam_channel::Sender<(ShardSet, Job)>,
    /// Wakes it.
    bell: Bell,
    /// Work that may be a guest: [`Actor::push_guest`], [`Actor::pop_guest`].
    guests: SegQueue<(Guest, Work)>,
}

impl Actor {
    /// Counted when it is there: who has counted it looks at the core next, for whatever was taken uncounted meanwhile, too.
    fn push_guest(&self, guest: Guest, work: Work) {
        self.guests.push((guest, work));
        self.guests_count.fetch_add(1, Ordering::SeqCst);
    }

    fn pop_guest(&self) -> Option<(Guest, Work)> {
        let popped = self.guests.pop()?;
        self.guests_count.fetch_sub(1, Ordering::SeqCst);
        Some(popped)
    }

    #[inline]
    fn has_guests(&self) -> bool {
        self.guests_count.load(Ordering::Relaxed) != 0
    }
}

/// All shards.
pub struct Shards(Box<[Actor]>);

/// One shard as the rest of the process sees it.
#[derive(Clone, Copy)]
pub struct Shard<'a> {
    actor: &'a Actor,
    all: &'a Shards,
}

/// A core on loan. Dropping it gives the core back, after the work that arrived meanwhile.
pub struct Guard<'a> {
    shard: Shard<'a>,
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

/// Orders an unlock before the look at what arrived meanwhile, and the posting of work before the try of the lock.
#[inline]
fn full_fence() {
    // On x86-64 the locked instruction of the unlock, of the push and of the try is a full fence already.
    #[cfg(target_arch = "x86_64")]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(not(target_arch = "x86_64"))]
    std::sync::atomic::fence(Ordering::SeqCst);
}

thread_local! {
    /// The thread is emptying mailboxes.
    static EMPTIES: Cell<bool> = const { Cell::new(false) };
    /// Shards at whose mailboxes it is to look before it is done.
    static TO_LOOK_AT: RefCell<VecDeque<ShardId>> = const { RefCell::new(VecDeque::new()) };
}

/// Has the thread, which is emptying mailboxes, look at this one.
fn note(shard: ShardId) {
    TO_LOOK_AT.with_borrow_mut(|list| {
        if !list.contains(&shard) {
            list.push_back(shard);
        }
    });
}

impl Shards {
    /// Shards around their cores, each with the way to its thread.
    pub fn new(parts: impl IntoIterator<Item = (Core, crossbeam_channel::Sender<(ShardSet, Job)>)>) -> Self {
        let actor = |(core, thread): (Core, _)| Actor {
            id: core.shard,
            held_long: AtomicBool::new(false),
            guests_count: AtomicU32::new(0),
            dirty_bytes: AtomicUsize::new(0),
            table_bytes: AtomicUsize::new(0),
            slots: AtomicPtr::default(),
            slots_mask: AtomicUsize::new(0),
            core: Mutex::new(core),
            mailbox: SegQueue::new(),
            thread,
            bell: Bell::default(),
            guests: SegQueue::new(),
        };
        Shards(parts.into_iter().map(actor).collect())
    }

    /// Number of shards.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// A shard that there is.
    #[inline]
    pub fn at(&self, id: ShardId) -> Shard<'_> {
        Shard { actor: &self.0[id as usize], all: self }
    }

    /// A shard, if there is such.
    pub fn get(&self, id: ShardId) -> Option<Shard<'_>> {
        self.0.get(id as usize).map(|actor| Shard { actor, all: self })
    }

    /// All of them, by id.
    pub fn iter(&self) -> impl Iterator<Item = Shard<'_>> {
        self.0.iter().map(|actor| Shard { actor, all: self })
    }

    /// The cores of these shards, if none of them is taken for longer than a moment.
    #[inline]
    pub fn try_lease(&self, shards: &[ShardId]) -> Option<Lease<'_>> {
        if let [one] = shards {
            return Some(Lease::one(self.at(*one).core_soon()?));
        }
        shards.iter().for_each(|&shard| self.at(shard).prefetch());
        let mut lease = Lease(SmallVec::with_capacity(shards.len()));
        for &shard in shards {
            lease.0.push(self.at(shard).core_soon()?);
        }
        Some(lease)
    }

    /// Has work run as soon as its shards are free, by whoever frees them; a guest earlier, perhaps.
    pub fn post(&self, shards: ShardSet, job: Job, guest: Option<Guest>) {
        match shards.first() {
            Some(&first) => self.leave(first, Work { shards, job, tries: 0 }, guest),
            None => drop(job(Lease::default())),
        }
    }

    /// Leaves work for whoever holds this core, or runs it if nobody does any more.
    fn leave(&self, at: ShardId, work: Work, guest: Option<Guest>) {
        let shard = self.at(at);
        match guest {
            Some(guest) if work.shards.len() == 1 => shard.actor.push_guest(guest, work),
            _ => shard.actor.mailbox.push(work),
        }
        full_fence();
        drop(shard.try_core());
    }

    /// Empties the mailbox of a shard whose core the thread has, and gives the core back; then those that were to be looked
    /// at meanwhile.
    #[cold]
    fn empty<'e>(&'e self, first: Shard<'e>, core: MutexGuard<'e, Core>) {
        if EMPTIES.replace(true) {
            first.unlock(core);
            return note(first.actor.id);
        }
        let mut taken = Some((first, core));
        while let Some((shard, core)) = taken {
            shard.drain(core);
            full_fence();
            if shard.has_work() {
                note(shard.actor.id);
            }
            // Who has one of them looks at its mailbox afterwards.
            let free = |id| Some((self.at(id), self.at(id).actor.core.try_lock()?));
            taken = std::iter::from_fn(|| TO_LOOK_AT.with_borrow_mut(VecDeque::pop_front)).find_map(free);
        }
        EMPTIES.set(false);
    }
}

impl<'a> Shard<'a> {
    /// The core, if nobody has it.
    #[inline]
    pub fn try_core(self) -> Option<Guard<'a>> {
        Some(Guard { core: Some(self.actor.core.try_lock()?), shard: self })
    }

    /// The core, if nobody has it, or gives it back in a moment.
    #[inline]
    fn core_soon(self) -> Option<Guard<'a>> {
        let core = self.actor.core.try_lock().or_else(|| self.wait_a_moment())?;
        Some(Guard { core: Some(core), shard: self })
    }

    #[cold]
    fn wait_a_moment(self) -> Option<MutexGuard<'a, Core>> {
        for _ in 0..LOOKS {
            if self.actor.held_long.load(Ordering::Relaxed) {
                return None;
            }
            std::hint::spin_loop();
            if !self.actor.core.is_locked()
                && let Some(core) = self.actor.core.try_lock()
            {
                return Some(core);
            }
        }
        moment::here(moment::Moment::Sleeping);
        let core = self.actor.core.try_lock_for(MOST_SLEEP);
        if core.is_none() {
            // Whoever comes next need not find out anew.
            self.actor.held_long.store(true, Ordering::Relaxed);
        }
        core
    }

    /// The core, waited for; never on a network thread.
    pub fn core(self) -> Guard<'a> {
        self.held_long(self.actor.core.lock())
    }

    /// The core, waited for until this time.
    pub fn core_until(self, end: Instant) -> Option<Guard<'a>> {
        Some(self.held_long(self.actor.core.try_lock_until(end)?))
    }

    fn held_long(self, core: MutexGuard<'a, Core>) -> Guard<'a> {
        self.actor.held_long.store(true, Ordering::Relaxed);
        Guard { core: Some(core), shard: self }
    }

    /// Leaves a job for the shard's own thread. False if the threads have ended.
    pub fn post_to_thread(self, shards: ShardSet, job: Job) -> bool {
        let sent = self.actor.thread.send((shards, job)).is_ok();
        self.actor.bell.ring();
        sent
    }

    /// Wakes the shard's own thread.
    pub fn bell(self) -> &'a Bell {
        &self.actor.bell
    }

    /// Whether work was left here.
    #[inline]
    fn has_work(self) -> bool {
        !self.actor.mailbox.is_empty() || self.actor.has_guests()
    }

    #[inline]
    fn release(self, core: MutexGuard<'a, Core>) {
        if self.has_work() {
            return self.all.empty(self, core);
        }
        self.unlock(core);
        full_fence();
        self.look();
    }

    /// Gives the core back without a look at what arrived meanwhile.
    #[inline]
    fn unlock(self, core: MutexGuard<'a, Core>) {
        let Actor { held_long, dirty_bytes, table_bytes, slots, slots_mask, .. } = self.actor;
        dirty_bytes.store(core.dirty_bytes + core.flight_bytes, Ordering::Relaxed);
        table_bytes.store(core.table_bytes, Ordering::Relaxed);
        held_long.store(false, Ordering::Relaxed);
        let Slots { base, mask } = core.table.slots();
        slots.store(base.cast_mut(), Ordering::Relaxed);
        slots_mask.store(mask, Ordering::Relaxed);
        moment::here(moment::Moment::Unlocking);
        drop(core);
    }

    /// Looks at what arrived while somebody had the core, which is given back by now.
    #[inline]
    fn look(self) {
        if self.has_work()
            && let Some(core) = self.actor.core.try_lock()
        {
            self.all.empty(self, core);
        }
    }

    /// Runs what is in the mailbox until something of it needs other shards, too, and gives the core back.
    fn drain(self, core: MutexGuard<'a, Core>) {
        let mut lease = Lease::from_iter([Guard { core: Some(core), shard: self }]);
        let guest = || self.actor.pop_guest().map(|(_, work)| work);
        let mail = || self.actor.mailbox.pop();
        for n in 0..DRAIN {
            // In turn: neither has the other wait.
            let work = if n % 2 == 0 { mail().or_else(guest) } else { guest().or_else(mail) };
            let Some(work) = work else { break };
            if work.shards.len() > 1 {
                return self.run_or_move(lease, work);
            }
            lease = (work.job)(lease);
        }
        if let Some(core) = lease.0.pop().and_then(|mut guard| guard.core.take()) {
            self.unlock(core);
        }
    }

    /// Runs work over several shards, or leaves it at the one that is taken. What is given back here is looked at when this
    /// mailbox has been.
    fn run_or_move(self, mut own: Lease<'a>, mut work: Work) {
        let mut lease = Lease::default();
        for &shard in &work.shards {
            // The others are not waited for: this very thread may have them.
            let guard = if shard == self.actor.id { own.0.pop() } else { self.all.at(shard).try_core() };
            let Some(guard) = guard else {
                moment::here(moment::Moment::GivingUp);
                drop((own, lease));
                work.tries += 1;
                return match work.tries {
                    ..=MOST_TRIES => self.all.leave(shard, work, None),
                    // If the threads have ended, the job's reply channel closes with it.
                    _ => _ = self.post_to_thread(work.shards, work.job),
                };
            };
            lease.0.push(guard);
        }
        drop((work.job)(lease));
    }

    /// Jobs that nobody has begun to run.
    #[cfg(test)]
    pub fn waiting(self) -> usize {
        self.actor.mailbox.len() + self.actor.guests.len()
    }

    /// Fetches what every command on this shard will touch, its lock first. What it only reads other processors keep, too.
    #[inline]
    pub fn prefetch(self) {
        let line = |line: usize| std::ptr::from_ref(self.actor).cast::<u8>().wrapping_add(line * LINE);
        (0..WRITTEN_LINES).for_each(|at| prefetch_to_write(line(at)));
        (WRITTEN_LINES..HOT_LINES).for_each(|at| prefetch(line(at)));
    }

    /// The table's slots as of the last release; between two of them, first and number may not belong together.
    #[inline]
    pub fn slots(self) -> Slots {
        Slots { base: self.actor.slots.load(Ordering::Relaxed), mask: self.actor.slots_mask.load(Ordering::Relaxed) }
    }

    /// Dirty bytes, gathered ones included, as of the last release.
    pub fn dirty_bytes(self) -> usize {
        self.actor.dirty_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of the table's objects as of the last release.
    pub fn table_bytes(self) -> usize {
        self.actor.table_bytes.load(Ordering::Relaxed)
    }
}

/// Moments at which tests let something else happen.
pub(crate) mod moment {
    /// Where a thread is.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Moment {
        /// The mailbox has been looked at, the core is about to be given back.
        Unlocking,
        /// A core that somebody has is about to be slept for.
        Sleeping,
        /// The cores that were free are about to be given back, as one was not.
        GivingUp,
        /// A command rests: its cores have been given back.
        Resting,
        /// Guests are about to be looked for.
        Hosting,
    }

    #[cfg(not(test))]
    #[inline(always)]
    pub(crate) fn here(_: Moment) {}

    #[cfg(test)]
    type Happening = Option<(Moment, Box<dyn FnOnce()>)>;

    #[cfg(test)]
    thread_local! {
        static NEXT: std::cell::RefCell<Happening> = const { std::cell::RefCell::new(None) };
    }

    /// Has something happen when the calling thread next comes there.
    #[cfg(test)]
    pub(crate) fn at(moment: Moment, happens: impl FnOnce() + 'static) {
        NEXT.set(Some((moment, Box::new(happens))));
    }

    /// Has nothing happen any more.
    #[cfg(test)]
    pub(crate) fn never() {
        NEXT.set(None);
    }

    #[cfg(test)]
    pub(crate) fn here(moment: Moment) {
        let happens = NEXT.with_borrow_mut(|next| next.take_if(|(at, _)| *at == moment));
        if let Some((_, happens)) = happens {
            happens();
        }
    }
}
