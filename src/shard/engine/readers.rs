//! Threads that read the store for commands which wait for it. They hold no lock of a shard, and take one read at a time
//! from whichever errand, or a few that come back at once: so a disk gets as many as there are, and an errand of many does not
//! keep back one of few for longer than those before it take. Where several wait for the disk, a reader takes a few and has it
//! begin with all of them.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::Thread;

use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::shard::engine::cores;
use crate::shard::memory::blind::Counting;
use crate::shard::memory::reads::{Reads, Wanted};
use crate::store::{Aimed, Watch};

/// Threads that read: what a disk answers side by side.
pub(in crate::shard) const READERS: usize = if cfg!(test) { 2 } else { 32 };
/// By how much they yield to those who serve what is in memory, as nice(1) counts: on few cores somebody's cold reads would
/// keep others waiting. They hold no shard meanwhile. Nor does one that the disk has answered interrupt a network thread amid
/// its turn: that one has what has come so far read and answered at one go. Where all cores are in use, cold reads pay for it: a reader has
/// its turn when somebody sleeps or has had theirs.
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
    /// One for each task that is alone, and for each few of the others: they wait for the disk.
    Each,
    /// The same once a reader's fill has come together: who asks [calls](Readers::call_waiting) for the rest, when it has served all
    /// who are ready.
    Fill,
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

/// Who asks again and again.
pub trait Asker: Send + Sync {
    /// Takes what was read, on whichever thread; nothing if nobody reads any more.
    fn take(self: Arc<Self>, brought: Reads);
}

impl<F: Fn(Reads) + Send + Sync> Asker for F {
    fn take(self: Arc<Self>, brought: Reads) {
        self(brought);
    }
}

/// Whom an errand is for.
enum For {
    One(Mutex<Option<Then>>),
    Asker(Arc<dyn Asker>),
}

/// What a command or a pipeline waits for. Who asks again and again keeps one: made anew for each time, and freed by who reads,
/// it would have two threads wait for one heap. So is its list, which the asker takes back.
pub struct Errand {
    wanted: Vec<Wanted>,
    /// How many of these have not been read.
    left: AtomicUsize,
    brought: Mutex<Reads>,
    whose: For,
}

impl Errand {
    /// Of an asker; nothing is wanted yet.
    pub fn of(asker: Arc<dyn Asker>) -> Arc<Errand> {
        Arc::new(Errand::new(For::Asker(asker)))
    }

    fn new(whose: For) -> Errand {
        Errand { wanted: Vec::new(), left: AtomicUsize::new(0), brought: Mutex::default(), whose }
    }

    /// Makes it one for what is wanted; false if there is nothing.
    fn begin(&mut self, mut reads: Reads) -> bool {
        self.wanted = reads.take_wanted();
        reads.make_room(self.wanted.len());
        *self.left.get_mut() = self.wanted.len();
        *self.brought.get_mut() = reads;
        !self.wanted.is_empty()
    }

    /// So many of its reads are done, or will not be. The last one has it answered.
    fn count_off(&self, reads: usize, done: bool) {
        if self.left.fetch_sub(reads, Ordering::AcqRel) > reads {
            return;
        }
        let brought = std::mem::take(&mut *self.brought.lock());
        match &self.whose {
            For::One(then) => {
                if let Some(then) = then.lock().take().filter(|_| done) {
                    then(brought);
                }
            }
            For::Asker(asker) => asker.clone().take(brought),
        }
    }

    /// Takes back the list of what was wanted, now that all has been read: an errand that rests holds nothing.
    pub fn take_back(self: &mut Arc<Errand>) -> Vec<Wanted> {
        if let Some(errand) = Arc::get_mut(self) {
            return std::mem::take(&mut errand.wanted);
        }
        // Who has read the last of it has not let it go yet.
        if let For::Asker(asker) = &self.whose {
            *self = Errand::of(asker.clone());
        }
        Vec::new()
    }
}

/// Reads of a task where they come back at once; else one, so that a disk gets as many side by side as there are.
pub const READS_OF_TASK: usize = 2;

/// So many tasks on end are watched at the price of one.
const TASKS_OF_WATCH: usize = 8;

/// Tasks that wait for the disk, of which a reader takes so many at most and has it begin with all of them. To call another one
/// for each costs more than the read.
pub(in crate::shard) const AT_ONCE: usize = if cfg!(target_os = "linux") { 8 } else { 1 };

type Tasks = SmallVec<[Task; AT_ONCE]>;
type Aims = SmallVec<[Option<Aimed>; AT_ONCE]>;

/// What a reader does next.
enum Task {
    /// Some of what an errand is for.
    Read {
        errand: Arc<Errand>,
        some: Range<usize>,
        /// The disk cannot begin with it before it is waited for.
        alone: bool,
    },
    /// What else waits for the disk and holds no lock for long.
    Work(Box<dyn FnOnce() + Send>),
}

impl Task {
    /// What is to be read.
    fn wanted(&self) -> &[Wanted] {
        match self {
            Task::Read { errand, some, .. } => &errand.wanted[some.clone()],
            Task::Work(_) => &[],
        }
    }

    fn read(errand: &Arc<Errand>, some: Range<usize>) -> Task {
        let alone = !errand.wanted[some.clone()].iter().all(Wanted::can_be_aimed);
        Task::Read { errand: errand.clone(), some, alone }
    }

    /// Whether a reader has time for nothing else with it.
    fn is_alone(&self) -> bool {
        !matches!(self, Task::Read { alone: false, .. })
    }

    /// Whether it is likely to be done at once.
    fn is_quick(&self) -> bool {
        matches!(self, Task::Read { .. }) && self.wanted().iter().all(Wanted::is_quick)
    }
}

/// What is asked for, and who is at it.
#[derive(Default)]
struct Queue {
    tasks: VecDeque<Task>,
    /// Those among them of which a reader takes one.
    alone: usize,
    /// Readers that are awake, or about to be, and not away with what takes its time.
    awake: usize,
    /// Those that sleep. The last to fall asleep is the first to be called: what it needs is still in its caches.
    asleep: Vec<Arc<Sleeper>>,
    /// So many are to end once nothing is left.
    ending: usize,
    /// Nobody reads any more.
    ended: bool,
}

impl Queue {
    fn push(&mut self, task: Task) {
        self.alone += usize::from(task.is_alone());
        self.tasks.push_back(task);
    }

    fn pop(&mut self) -> Option<Task> {
        let task = self.tasks.pop_front()?;
        self.alone -= usize::from(task.is_alone());
        Some(task)
    }
}

/// A reader that sleeps until it is called.
struct Sleeper {
    thread: Thread,
    called: AtomicBool,
}

/// The readers' work.
///
/// Who is awake goes on as long as there is work. While reads come back at once, out of the page cache, no more are woken
/// than half of the cores, as network threads want the others; otherwise one for each few reads with which the disk can begin
/// at once, and one for each other.
#[derive(Default)]
pub struct Readers {
    queue: Mutex<Queue>,
    /// Reads that have been asked for and are not done.
    pending: AtomicUsize,
    /// Reads that others do themselves.
    others: AtomicUsize,
    /// Reads that were taken several at a time, so that the disk begins with all of them, so far.
    aimed: AtomicU64,
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
        let mut errand = Errand::new(For::One(Mutex::new(Some(then))));
        match errand.begin(reads) {
            true => self.run_errand(&Arc::new(errand), Worth::Few, Worth::Each),
            false => errand.count_off(0, true),
        }
    }

    /// Has what is wanted read for an asker, none of whose errands is under way. If the calling thread [helps](Readers::help)
    /// afterwards until there is nothing left, the readers need not be called for little; and where reads wait for the disk, one
    /// is called for several askers, if the thread [calls](Readers::call_waiting) once it has heard them all.
    pub fn bring_again(&self, errand: &mut Arc<Errand>, reads: Reads, helps: bool) {
        errand.take_back();
        let wants = Arc::get_mut(errand).is_some_and(|errand| errand.begin(reads));
        match wants {
            true if helps => self.run_errand(errand, Worth::Spare, Worth::Fill),
            true => self.run_errand(errand, Worth::Few, Worth::Each),
            false => errand.count_off(0, true),
        }
    }

    fn run_errand(&self, errand: &Arc<Errand>, if_quick: Worth, else_worth: Worth) {
        let quick = errand.wanted.iter().all(Wanted::is_quick);
        let (most, worth) = if quick { (READS_OF_TASK, if_quick) } else { (1, else_worth) };
        let count = errand.wanted.len();
        self.pending.fetch_add(count, Ordering::Relaxed);
        let some = |task: usize| task * most..count.min((task + 1) * most);
        self.add((0..count.div_ceil(most)).map(|task| Task::read(errand, some(task))), worth);
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
        tasks.for_each(|task| queue.push(task));
        self.call(queue, worth);
    }

    /// Wakes as many as the work is worth.
    fn call(&self, mut queue: parking_lot::MutexGuard<'_, Queue>, worth: Worth) {
        let reads = queue.tasks.len() * READS_OF_TASK;
        let worth = match worth {
            Worth::Fill if queue.tasks.len() < AT_ONCE => 0,
            Worth::Each | Worth::Fill => queue.alone + (queue.tasks.len() - queue.alone).div_ceil(AT_ONCE),
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

    /// Wakes those who are wanted for what nobody has begun, as it waits for the disk.
    pub fn call_waiting(&self) {
        self.call(self.queue.lock(), Worth::Each);
    }

    /// Reads that have been asked for and are not done, those among them that others do themselves.
    pub fn pending(&self) -> usize {
        self.pending.load(Ordering::Relaxed) + self.others.load(Ordering::Relaxed)
    }

    /// Reads that were taken several at a time, so that the disk begins with all of them, so far.
    pub fn aimed(&self) -> u64 {
        self.aimed.load(Ordering::Relaxed)
    }

    /// Whether what is asked of them now is read at once, as far as the disk allows.
    pub fn have_time(&self) -> bool {
        self.pending.load(Ordering::Relaxed) < 2 * most_awake()
    }

    /// Whether something is asked of them and not done.
    pub fn are_asked(&self) -> bool {
        self.pending.load(Ordering::Relaxed) > 0
    }

    /// Whether [`Readers::help`] would find something to do.
    pub fn want_help(&self) -> bool {
        self.queue.lock().tasks.front().is_some_and(Task::is_quick)
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
        let (mut was_away, mut watch, mut watched) = (false, Watch::default(), 0);
        while let Some((tasks, away)) = self.next(&sleeper, was_away, &mut watch) {
            was_away = away;
            self.run_tasks(tasks, &mut watch);
            watched += 1;
            if away || watched == TASKS_OF_WATCH {
                // What else it has waited for is not of the reads behind it.
                (watch, watched) = (Watch::default(), 0);
            }
        }
    }

    fn run_tasks(&self, tasks: Tasks, watch: &mut Watch) {
        let (tasks, aims) = if tasks.len() > 1 { self.aim(tasks) } else { (tasks, Aims::new()) };
        let mut aims = aims.into_iter();
        for task in tasks {
            match task {
                Task::Read { errand, some, .. } => self.read(&errand, some, &mut aims, watch),
                Task::Work(work) => {
                    work();
                    self.pending.fetch_sub(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// Has the disk begin with what some tasks read. Those with which it cannot are left to others, the first aside.
    fn aim(&self, tasks: Tasks) -> (Tasks, Aims) {
        let (mut kept, mut left, mut aims) = (Tasks::new(), Tasks::new(), Aims::new());
        for task in tasks {
            let from = aims.len();
            for (at, wanted) in (from..).zip(task.wanted()) {
                aims.push(wanted.aim(at == 0));
            }
            if !kept.is_empty() && aims[from..].iter().any(Option::is_none) {
                aims.truncate(from);
                left.push(task);
            } else {
                kept.push(task);
            }
        }
        self.aimed.fetch_add(aims.iter().flatten().count() as u64, Ordering::Relaxed);
        if !left.is_empty() {
            let mut queue = self.queue.lock();
            for mut task in left.into_iter().rev() {
                if let Task::Read { alone, .. } = &mut task {
                    *alone = true;
                }
                queue.alone += 1;
                queue.tasks.push_front(task);
            }
            self.call(queue, Worth::Each);
        }
        (kept, aims)
    }

    /// The next tasks for a reader, and whether it is away with them; `was_away` if it was, with those before. The watch goes on
    /// unless the reader sleeps.
    fn next(&self, sleeper: &Arc<Sleeper>, mut was_away: bool, watch: &mut Watch) -> Option<(Tasks, bool)> {
        loop {
            let mut queue = self.queue.lock();
            queue.awake += usize::from(std::mem::take(&mut was_away));
            if let Some(task) = queue.pop() {
                // Asked once: what is quick now may not be a moment later.
                let away = !task.is_quick();
                queue.awake -= usize::from(away);
                let mut tasks = Tasks::from_iter([task]);
                if away && !tasks[0].is_alone() {
                    while tasks.len() < AT_ONCE
                        && queue.tasks.front().is_some_and(|task| !task.is_alone())
                        && let Some(task) = queue.pop()
                    {
                        tasks.push(task);
                    }
                }
                return Some((tasks, away));
            }
            queue.awake -= 1;
            if queue.ending > 0 {
                queue.ending -= 1;
                return None;
            }
            queue.asleep.push(sleeper.clone());
            drop(queue);
            sleeper.sleep();
            *watch = Watch::default();
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
        let left: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        drop(queue);
        left.iter().for_each(|task| self.count_off(task));
    }

    fn count_off(&self, undone: &Task) {
        match undone {
            Task::Read { errand, some, .. } => {
                self.pending.fetch_sub(some.len(), Ordering::Relaxed);
                errand.count_off(some.len(), false);
            }
            Task::Work(_) => _ = self.pending.fetch_sub(1, Ordering::Relaxed),
        }
    }

    /// Does a task that nobody has begun, if there is one that need not wait for the disk. Whether there are more of these:
    /// for others there are the readers.
    pub fn help(&self) -> bool {
        let mut queue = self.queue.lock();
        if queue.tasks.front().is_some_and(Task::is_quick)
            && let Some(Task::Read { errand, some, .. }) = queue.pop()
        {
            drop(queue);
            self.read(&errand, some, &mut std::iter::empty(), &mut Watch::default());
            queue = self.queue.lock();
        }
        let next_is_quick = queue.tasks.front().map(Task::is_quick);
        if next_is_quick == Some(false) {
            self.call(queue, Worth::Each);
        }
        next_is_quick == Some(true)
    }

    /// Those that have been aimed at come with their aims, in their order.
    fn read(
        &self,
        errand: &Errand,
        some: Range<usize>,
        aims: &mut impl Iterator<Item = Option<Aimed>>,
        watch: &mut Watch,
    ) {
        let reads = some.len();
        let mut brought = SmallVec::<[_; READS_OF_TASK]>::new();
        for wanted in &errand.wanted[some] {
            let aim = aims.next().flatten();
            brought.push(wanted.read_aimed(aim.as_ref(), watch));
            if !wanted.is_quick() {
                // Others can wait for the disk meanwhile.
                self.call_waiting();
            }
        }
        self.pending.fetch_sub(reads, Ordering::Relaxed);
        {
            let mut all = errand.brought.lock();
            brought.into_iter().for_each(|brought| all.add(brought));
        }
        errand.count_off(reads, true);
    }
}
