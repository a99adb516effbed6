//! Threads that read the store for commands which wait for it. They hold no lock of a shard, and take one read at a time
//! from whichever errand, or a few that come back at once: so a disk gets as many as there are, and an errand of many does not
//! keep back one of few for longer than those before it take.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::Thread;

use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::shard::engine::cores;
use crate::shard::memory::blind::Counting;
use crate::shard::memory::reads::{Reads, Wanted};
use crate::store::Watch;

/// Threads that read: what a disk answers side by side.
pub(in crate::shard) const READERS: usize = if cfg!(test) { 2 } else { 32 };
/// By how much they yield to those who serve what is in memory, as nice(1) counts: on few cores somebody's cold reads would
/// keep others waiting. They hold no shard meanwhile.
pub(in crate::shard) const READERS_NICE: i32 = 5;
/// Reads that come back at once are worth another thread, where so many wait.
const QUICK_READS: usize = 8;
/// The same where who asks for them helps: a second thread costs each of the two a fifth, and takes a core from others.
const HELPED_READS: usize = 128;

/// Readers that are awake while reads come back at once: network threads want the other cores.
fn most_awake() -> usize {
    (cores() / 2).max(1)
}

/// How many readers so much work is worth.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Worth {
    /// One for each task: they wait for the disk.
    Each,
    /// Few: reads come back at once.
    Few,
    /// None, where there is not much: who asks helps.
    Spare,
}

/// What is done with what was brought.
pub type Then = Box<dyn FnOnce(Reads) + Send>;

/// What is done once what was blind is sighted; no key becomes so before the guard is dropped.
pub type Counted = Box<dyn FnOnce(Counting) + Send>;

/// Who waits for exact counts.
#[derive(Default)]
pub struct Counts {
    pub(in crate::shard) waiting: Mutex<Vec<(Counting, Counted)>>,
}

impl Counts {
    /// Nobody sights any more: who waits is told by being dropped.
    pub(in crate::shard) fn close(&self) {
        let left = std::mem::take(&mut *self.waiting.lock());
        drop(left);
    }
}

/// What a command or a pipeline waits for.
struct Errand {
    /// Freed as one, by whoever is the last: a reader frees as little as can be of what is of another thread's heap, as both wait
    /// for each other then.
    wanted: Vec<Wanted>,
    /// How many of these have not been read.
    left: AtomicUsize,
    brought: Mutex<Reads>,
    then: Mutex<Option<Then>>,
}

/// Reads of a task where they come back at once; else one, so that a disk gets as many side by side as there are.
pub const READS_OF_TASK: usize = 4;

/// What a reader does next.
enum Task {
    /// Some of what an errand is for.
    Read(Arc<Errand>, Range<usize>),
    /// What else waits for the disk and holds no lock for long.
    Work(Box<dyn FnOnce() + Send>),
}

impl Task {
    /// Whether it is likely to be done at once.
    fn is_quick(&self) -> bool {
        match self {
            Task::Read(errand, some) => errand.wanted[some.clone()].iter().all(Wanted::is_quick),
            Task::Work(_) => false,
        }
    }
}

/// What is asked for, and who is at it.
#[derive(Default)]
struct Queue {
    tasks: VecDeque<Task>,
    /// Readers that are awake, or about to be, and not away with what takes its time.
    awake: usize,
    /// Those that sleep. The last to fall asleep is the first to be called: what it needs is still in its caches.
    asleep: Vec<Arc<Sleeper>>,
    /// So many are to end once nothing is left.
    ending: usize,
    /// Nobody reads any more.
    ended: bool,
}

/// A reader that sleeps until it is called.
struct Sleeper {
    thread: Thread,
    called: AtomicBool,
}

/// The readers' work.
///
/// Who is awake goes on as long as there is work. While reads come back at once, out of the page cache, no more are woken
/// than half of the cores, as network threads want the others; otherwise one for each read.
#[derive(Default)]
pub struct Readers {
    queue: Mutex<Queue>,
    /// Reads that have been asked for and are not done.
    pending: AtomicUsize,
    /// Reads that others do themselves.
    others: AtomicUsize,
}

impl Sleeper {
    fn call(&self) {
        self.called.store(true, Ordering::Release);
        self.thread.unpark();
    }

    fn sleep(&self) {
        while !self.called.swap(false, Ordering::Acquire) {
            std::thread::park();
        }
    }
}

impl Readers {
    /// Has what is wanted read, and calls `then` with it on one of the readers. Dropped uncalled once they have ended.
    pub fn bring(&self, reads: Reads, then: Then) {
        self.bring_with(reads, Worth::Few, then);
    }

    /// The same for a thread that [helps](Readers::help) afterwards until there is nothing left.
    pub fn bring_helped(&self, reads: Reads, then: Then) {
        self.bring_with(reads, Worth::Spare, then);
    }

    fn bring_with(&self, mut reads: Reads, if_quick: Worth, then: Then) {
        let wanted = reads.take_wanted();
        if wanted.is_empty() {
            return then(reads);
        }
        let quick = wanted.iter().all(Wanted::is_quick);
        let (most, worth) = if quick { (READS_OF_TASK, if_quick) } else { (1, Worth::Each) };
        let count = wanted.len();
        let (brought, then) = (Mutex::new(reads), Mutex::new(Some(then)));
        let errand = Arc::new(Errand { wanted, left: AtomicUsize::new(count), brought, then });
        self.pending.fetch_add(count, Ordering::Relaxed);
        let some = |task: usize| task * most..count.min((task + 1) * most);
        self.add((0..count.div_ceil(most)).map(|task| Task::Read(errand.clone(), some(task))), worth);
    }

    /// Has work done that reads the store. Dropped undone once they have ended.
    pub fn work(&self, work: Box<dyn FnOnce() + Send>) {
        self.pending.fetch_add(1, Ordering::Relaxed);
        self.add([Task::Work(work)].into_iter(), Worth::Each);
    }

    fn add(&self, tasks: impl ExactSizeIterator<Item = Task>, worth: Worth) {
        let mut queue = self.queue.lock();
        if queue.ended {
            drop(queue);
            return tasks.for_each(|task| self.count_off(&task));
        }
        queue.tasks.extend(tasks);
        self.call(queue, worth);
    }

    /// Wakes as many as the work is worth.
    fn call(&self, mut queue: parking_lot::MutexGuard<'_, Queue>, worth: Worth) {
        let reads = queue.tasks.len() * READS_OF_TASK;
        let worth = match worth {
            Worth::Each => queue.tasks.len(),
            Worth::Few => reads.div_ceil(QUICK_READS).min(most_awake()),
            Worth::Spare => (reads / HELPED_READS).min(most_awake()),
        };
        let more = worth.saturating_sub(queue.awake);
        let from = queue.asleep.len().saturating_sub(more);
        let called: SmallVec<[_; 2]> = queue.asleep.drain(from..).collect();
        queue.awake += called.len();
        drop(queue);
        called.iter().for_each(|sleeper| sleeper.call());
    }

    /// Reads that have been asked for and are not done, those among them that others do themselves.
    pub fn pending(&self) -> usize {
        self.pending.load(Ordering::Relaxed) + self.others.load(Ordering::Relaxed)
    }

    /// Whether something is asked of them and not done.
    pub fn are_asked(&self) -> bool {
        self.pending.load(Ordering::Relaxed) > 0
    }

    /// Readers that look for work.
    #[cfg(test)]
    pub fn awake(&self) -> usize {
        self.queue.lock().awake
    }

    /// Counts reads that others do themselves, or, below zero, have done.
    pub fn count(&self, reads: isize) {
        self.others.fetch_add(reads as usize, Ordering::Relaxed);
    }

    /// A reader's life, until [`Readers::end`].
    pub(in crate::shard) fn run(&self) {
        let sleeper = Arc::new(Sleeper { thread: std::thread::current(), called: AtomicBool::new(false) });
        self.queue.lock().awake += 1;
        let mut was_away = false;
        while let Some((task, away)) = self.next(&sleeper, was_away) {
            was_away = away;
            match task {
                Task::Read(errand, some) => self.read(&errand, some),
                Task::Work(work) => {
                    work();
                    self.pending.fetch_sub(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// The next task for a reader, and whether it is away with it; `was_away` if it was, with the one before.
    fn next(&self, sleeper: &Arc<Sleeper>, mut was_away: bool) -> Option<(Task, bool)> {
        loop {
            let mut queue = self.queue.lock();
            queue.awake += usize::from(std::mem::take(&mut was_away));
            if let Some(task) = queue.tasks.pop_front() {
                // Asked once: what is quick now may not be a moment later.
                let away = !task.is_quick();
                queue.awake -= usize::from(away);
                return Some((task, away));
            }
            queue.awake -= 1;
            if queue.ending > 0 {
                queue.ending -= 1;
                return None;
            }
            queue.asleep.push(sleeper.clone());
            drop(queue);
            sleeper.sleep();
        }
    }

    /// Ends so many readers, once they have done what is asked for by now.
    pub(in crate::shard) fn end(&self, readers: usize) {
        let mut queue = self.queue.lock();
        queue.ending += readers;
        let called = std::mem::take(&mut queue.asleep);
        queue.awake += called.len();
        drop(queue);
        called.iter().for_each(|sleeper| sleeper.call());
    }

    /// The readers have ended: whoever waits for what is left, or comes later, is told by its being dropped.
    pub(in crate::shard) fn close(&self) {
        let mut queue = self.queue.lock();
        queue.ended = true;
        let left = std::mem::take(&mut queue.tasks);
        drop(queue);
        left.iter().for_each(|task| self.count_off(task));
    }

    fn count_off(&self, undone: &Task) {
        let reads = match undone {
            Task::Read(_, some) => some.len(),
            Task::Work(_) => 1,
        };
        self.pending.fetch_sub(reads, Ordering::Relaxed);
    }

    /// Does a task that nobody has begun, if there is one that need not wait for the disk. Whether there are more of these:
    /// for others there are the readers.
    pub fn help(&self) -> bool {
        let mut queue = self.queue.lock();
        if queue.tasks.front().is_some_and(Task::is_quick)
            && let Some(Task::Read(errand, some)) = queue.tasks.pop_front()
        {
            drop(queue);
            self.read(&errand, some);
            queue = self.queue.lock();
        }
        let next_is_quick = queue.tasks.front().map(Task::is_quick);
        if next_is_quick == Some(false) {
            self.call(queue, Worth::Each);
        }
        next_is_quick == Some(true)
    }

    fn read(&self, errand: &Errand, some: Range<usize>) {
        let reads = some.len();
        let (mut brought, mut watch) = (SmallVec::<[_; READS_OF_TASK]>::new(), Watch::default());
        for wanted in &errand.wanted[some] {
            brought.push(wanted.read(&mut watch));
            if !wanted.is_quick() {
                // Others can wait for the disk meanwhile.
                self.call(self.queue.lock(), Worth::Each);
            }
        }
        self.pending.fetch_sub(reads, Ordering::Relaxed);
        {
            let mut all = errand.brought.lock();
            brought.into_iter().for_each(|brought| all.add(brought));
        }
        if errand.left.fetch_sub(reads, Ordering::AcqRel) > reads {
            return;
        }
        let (then, brought) = (errand.then.lock().take(), std::mem::take(&mut *errand.brought.lock()));
        if let Some(then) = then {
            then(brought);
        }
    }
}
