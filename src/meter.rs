//! What the command that this thread runs may still do: steps, and bytes that it holds.
//!
//! | allowance | steps | bytes |
//! |---|---|---|
//! | [`Allowance::here`]: on a network thread | [`STEPS_HERE`], then `Cold`: it is run again on a shard's own thread | bounded |
//! | [`Allowance::elsewhere`]: on a shard's thread, or one for commands in slices | every [`STEPS_A_LOOK`] it is asked whether the command is to end: `Ended` | bounded |
//! | none: timers, flushes, tests | without bound | without bound |
//!
//! A step is about what visiting an element in memory takes, or going through [`STEP_BYTES`] bytes. Charged are, each
//! where it is done and not by the commands: keys looked up, elements visited, read and written, bytes copied or filled
//! with zeros, keys met on a walk ([`step`], in the transaction); bytes of the reply, of the log record, of what undoes
//! it and of intermediate results ([`hold`], in the reply, the transaction and the few helpers that gather). So no command
//! can forget it; what computes long without touching any of these asks [`step`] itself.
//!
//! The state is the thread's and not a parameter: the writer of replies, the transaction and the iterators that read
//! for it share it without knowing each other. A thread runs one command at a time; what [`begin`] answers puts back what was
//! there before.
//!
//! Bytes of all commands together come out of one pool, in grains. A command that would fit but finds the pool taken by
//! others is `Crowded`: it is rolled back and run again when nothing of the pool is taken, one such command after the other
//! ([`when_alone`]); nothing more is given to others until the last of these has run. It does not wait for ever: others may
//! take hours, or wait themselves for keys that such a one has. After [`PATIENCE`] it takes what there is, or is refused.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::util::scale::Scaled;

/// Steps of a command on a network thread: about a millisecond.
pub const STEPS_HERE: Scaled<usize> = Scaled::new(16 << 10);
/// Steps between two looks at whether a command is to end.
pub const STEPS_A_LOOK: usize = if cfg!(test) { 16 } else { 4 << 10 };
/// Bytes that may be gone through in a step.
pub const STEP_BYTES: usize = 64;

/// Bytes that a small allocation takes beside what was asked for.
pub const ALLOCATION: usize = 16;

/// Bytes that a command may hold without asking the pool, and by which it asks for more.
const GRAIN: usize = 1 << 20;
/// How long a command waits for the memory that others have.
const PATIENCE: Duration = Duration::from_secs(5);

/// Bytes of the pool that commands have.
static POOLED: AtomicUsize = AtomicUsize::new(0);

/// Commands that found the pool taken.
static CROWD: Mutex<Crowd> = Mutex::new(Crowd { has_turn: false, waiting: VecDeque::new() });
/// Whether there are any. Set before they look at the pool, read after it was given back, so that one side sees the other.
static CROWDED: AtomicBool = AtomicBool::new(false);

/// What is done at a command's turn to run alone.
type AtTurn = Box<dyn FnOnce(Turn) + Send>;

struct Crowd {
    /// Whether one of them has its turn.
    has_turn: bool,
    /// Since when, first come first; one a connection at most.
    waiting: VecDeque<(Instant, AtTurn)>,
}

/// A command's turn to have the pool alone, until this is dropped; or to have what of it there is.
#[must_use = "the turn ends when this is dropped"]
pub struct Turn {
    late: bool,
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.late {
            CROWD.lock().has_turn = false;
        }
        next_turn();
    }
}

/// Calls `at_turn` when the pool is free and those that came before have had their turns, or after [`PATIENCE`].
pub fn when_alone(at_turn: AtTurn) {
    wait_since(Instant::now(), at_turn);
}

fn wait_since(since: Instant, at_turn: AtTurn) {
    {
        let mut crowd = CROWD.lock();
        crowd.waiting.push_back((since, at_turn));
        CROWDED.store(true, Ordering::SeqCst);
    }
    next_turn();
}

/// Commands that wait for their turn, or have it.
pub fn crowd() -> usize {
    let crowd = CROWD.lock();
    crowd.waiting.len() + usize::from(crowd.has_turn)
}

#[cold]
fn next_turn() {
    let mut crowd = CROWD.lock();
    if crowd.has_turn || POOLED.load(Ordering::SeqCst) != 0 {
        // Who has the turn, or gives back the last of the pool, goes on from here.
        return;
    }
    let Some((_, at_turn)) = crowd.waiting.pop_front() else { return CROWDED.store(false, Ordering::SeqCst) };
    crowd.has_turn = true;
    drop(crowd);
    at_turn(Turn { late: false });
}

/// Has those run that have waited too long. Called every few milliseconds.
pub fn tend() {
    if !CROWDED.load(Ordering::Relaxed) {
        return;
    }
    loop {
        let mut crowd = CROWD.lock();
        let is_late = crowd.waiting.front().is_some_and(|(since, _)| since.elapsed() >= PATIENCE);
        let Some((_, at_turn)) = is_late.then(|| crowd.waiting.pop_front()).flatten() else { return };
        drop(crowd);
        at_turn(Turn { late: true });
    }
}

/// Whether a command is to end: its client was killed or has left, or the server goes down.
pub type Ended = Box<dyn Fn() -> bool>;

/// What a command has of the pool.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Share {
    /// What is there as long as nobody waits for it.
    Usual,
    /// All of it.
    Alone,
    /// What is there; it does not wait any more.
    Late,
}

/// What a command is given.
pub struct Allowance {
    steps: usize,
    here: bool,
    share: Share,
    most_bytes: usize,
    ended: Option<Ended>,
}

impl Allowance {
    /// On a network thread, with so many bytes.
    #[inline]
    pub fn here(most_bytes: usize) -> Self {
        Allowance { steps: STEPS_HERE.get(), here: true, share: Share::Usual, most_bytes, ended: None }
    }

    /// On a thread where it may take its time, as long as `ended` does not say that nobody wants it any more.
    pub fn elsewhere(most_bytes: usize, ended: Ended) -> Self {
        Allowance { steps: STEPS_A_LOOK, here: false, share: Share::Usual, most_bytes, ended: Some(ended) }
    }

    /// The same at its turn.
    #[must_use]
    pub fn at(self, turn: &Turn) -> Self {
        Allowance { share: if turn.late { Share::Late } else { Share::Alone }, ..self }
    }
}

/// The thread's state. Plain numbers, so that reaching them costs an address.
struct State {
    left: Cell<i64>,
    /// What `left` was raised by so far, whatever the command.
    refilled: Cell<i64>,
    here: Cell<bool>,
    share: Cell<Share>,
    /// Of a refusal of bytes: whether they would be there without the others.
    crowded: Cell<bool>,
    held: Cell<usize>,
    granted: Cell<usize>,
    most: Cell<usize>,
}

/// What a [`State`] holds at one moment.
#[derive(Clone, Copy)]
struct Values {
    left: i64,
    here: bool,
    share: Share,
    crowded: bool,
    held: usize,
    granted: usize,
    most: usize,
}

impl State {
    const fn unbounded() -> Self {
        State {
            left: Cell::new(i64::MAX),
            refilled: Cell::new(0),
            here: Cell::new(false),
            share: Cell::new(Share::Usual),
            crowded: Cell::new(false),
            held: Cell::new(0),
            granted: Cell::new(usize::MAX),
            most: Cell::new(usize::MAX),
        }
    }

    fn values(&self) -> Values {
        Values {
            left: self.left.get(),
            here: self.here.get(),
            share: self.share.get(),
            crowded: self.crowded.get(),
            held: self.held.get(),
            granted: self.granted.get(),
            most: self.most.get(),
        }
    }

    #[inline]
    fn replace(&self, by: Values) -> Values {
        Values {
            left: self.left.replace(by.left),
            here: self.here.replace(by.here),
            share: self.share.replace(by.share),
            crowded: self.crowded.replace(by.crowded),
            held: self.held.replace(by.held),
            granted: self.granted.replace(by.granted),
            most: self.most.replace(by.most),
        }
    }
}

thread_local! {
    static STATE: State = const { State::unbounded() };
    static ENDED: RefCell<Option<Ended>> = const { RefCell::new(None) };
}

/// The time of an allowance. Dropping it ends that.
#[must_use = "the allowance ends when this is dropped"]
pub struct Running {
    before: Values,
    ended: Option<Ended>,
    asks: bool,
}

/// Gives this thread's next command its allowance.
#[inline]
pub fn begin(allowance: Allowance) -> Running {
    let Allowance { steps, here, share, most_bytes, ended } = allowance;
    let (left, granted) = (steps as i64, GRAIN.min(most_bytes));
    let values = Values { left, here, share, crowded: false, held: 0, granted, most: most_bytes };
    let before = STATE.with(|state| state.replace(values));
    let asks = ended.is_some();
    let ended = if asks { ENDED.replace(ended) } else { None };
    Running { before, ended, asks }
}

/// Puts the allowance of this thread's command aside until this is dropped: what runs meanwhile is somebody else's.
#[must_use = "the allowance is back when this is dropped"]
pub struct Aside {
    values: Values,
    ended: Option<Ended>,
}

/// Puts the allowance aside.
pub fn aside() -> Aside {
    let unbounded = State::unbounded();
    let values = STATE.with(|state| state.replace(unbounded.values()));
    Aside { values, ended: ENDED.replace(None) }
}

impl Drop for Aside {
    fn drop(&mut self) {
        STATE.with(|state| state.replace(self.values));
        ENDED.replace(self.ended.take());
    }
}

impl Drop for Running {
    #[inline]
    fn drop(&mut self) {
        let Values { granted, .. } = STATE.with(|state| state.replace(self.before));
        if granted > GRAIN {
            POOLED.fetch_sub(granted - GRAIN, Ordering::SeqCst);
            if CROWDED.load(Ordering::SeqCst) {
                next_turn();
            }
        }
        if self.asks {
            ENDED.replace(self.ended.take());
        }
    }
}

/// Charges so many steps.
///
/// # Errors
/// `Cold`: to be run again elsewhere. `Ended`: nobody wants it any more. `TooMuch`, `Crowded`: a [`hold`] that could not
/// answer was refused.
#[inline]
pub fn step(steps: usize) -> Result {
    let left = STATE.with(|state| {
        let left = state.left.get().saturating_sub_unsigned(steps as u64);
        state.left.set(left);
        left
    });
    if left < 0 {
        return look();
    }
    #[cfg(test)]
    tests::TAKEN.with(|taken| taken.set(taken.get().saturating_add(steps)));
    Ok(())
}

/// Charges a step, and those of going through so many bytes.
#[inline]
pub fn step_through(bytes: usize) -> Result {
    step(1 + bytes / STEP_BYTES)
}

#[cold]
fn look() -> Result {
    fits()?;
    if is_here() {
        return Err(Error::Cold);
    }
    if ENDED.with_borrow(|ended| ended.as_ref().is_some_and(|ended| ended())) {
        return Err(Error::Ended);
    }
    STATE.with(|state| {
        let raised = (STEPS_A_LOOK as i64).wrapping_sub(state.left.get());
        state.refilled.set(state.refilled.get().wrapping_add(raised));
        state.left.set(STEPS_A_LOOK as i64);
    });
    Ok(())
}

/// Counts up with the steps of this thread's command; within one command, differences are what it has taken.
pub fn steps_so_far() -> i64 {
    STATE.with(|state| state.refilled.get().wrapping_sub(state.left.get()))
}

/// Asks for another thread if so many steps are to come and this one is a network thread. Before anything is done: what
/// is charged step by step would be done in vain.
///
/// # Errors
/// `Cold`.
#[inline]
pub fn foresee(steps: u64) -> Result {
    if steps > STEPS_HERE.get() as u64 && is_here() { Err(Error::Cold) } else { Ok(()) }
}

/// Whether this is a network thread, which must not do what takes long.
#[inline]
pub fn is_here() -> bool {
    STATE.with(|state| state.here.get())
}

/// Charges bytes that the command holds to its end.
///
/// # Errors
/// `TooMuch`, or `Crowded`; every later call answers so too, until [`let_go`] goes back behind it.
#[inline]
pub fn hold(bytes: usize) -> Result {
    let (before, more) = STATE.with(|state| {
        let before = state.held.get();
        let held = before.saturating_add(bytes);
        state.held.set(held);
        (before, held > state.granted.get())
    });
    if more { ask(before) } else { Ok(()) }
}

/// Gets more of the pool, if the bounds of command and pool allow it.
#[cold]
fn ask(before: usize) -> Result {
    if before == usize::MAX {
        return fits();
    }
    STATE.with(|state| {
        let (held, granted, most) = (state.held.get(), state.granted.get(), state.most.get());
        if held <= most && (state.share.get() != Share::Usual || !CROWDED.load(Ordering::SeqCst)) {
            let more = (held - granted).next_multiple_of(GRAIN);
            let room =
                |pooled: usize| pooled.checked_add(more).filter(|pooled| *pooled <= most.next_multiple_of(GRAIN));
            if POOLED.fetch_update(Ordering::SeqCst, Ordering::Relaxed, room).is_ok() {
                state.granted.set(granted + more);
                return Ok(());
            }
        }
        // The next step ends the command even if who asked cannot tell it.
        state.crowded.set(held <= most && state.share.get() != Share::Late);
        state.held.set(usize::MAX);
        state.left.set(-1);
        fits()
    })
}

/// Whether no call of [`hold`] was refused.
///
/// # Errors
/// What was answered.
#[inline]
pub fn fits() -> Result {
    if !is_over() {
        return Ok(());
    }
    Err(if STATE.with(|state| state.crowded.get()) { Error::Crowded } else { Error::TooMuch })
}

/// Refuses now what will hold at least so many bytes more.
///
/// # Errors
/// `TooMuch`, as of [`hold`].
#[inline]
pub fn expect(bytes: usize) -> Result {
    let too_much = |state: &State| state.held.get().saturating_add(bytes) > state.most.get();
    if bytes > GRAIN && STATE.with(too_much) { hold(usize::MAX) } else { Ok(()) }
}

/// Bytes held, for [`let_go`].
#[inline]
pub fn held() -> usize {
    STATE.with(|state| state.held.get())
}

/// Goes back to what was held at an earlier moment: the rest has been given up.
#[inline]
pub fn let_go(held: usize) {
    STATE.with(|state| state.held.set(held));
}

/// Gives up some of what is held.
#[inline]
pub fn release(bytes: usize) {
    if !is_over() {
        let_go(held().saturating_sub(bytes));
    }
}

/// Bytes that the command may hold in all.
pub fn most() -> usize {
    STATE.with(|state| state.most.get())
}

/// Bytes that it may hold besides what it holds.
pub fn room() -> usize {
    most().saturating_sub(held())
}

/// Whether a call of [`hold`] was refused.
#[inline]
pub fn is_over() -> bool {
    held() == usize::MAX
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
pub(crate) mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    thread_local! {
        /// Steps that this thread has taken, whatever its allowance.
        pub(super) static TAKEN: Cell<usize> = const { Cell::new(0) };
    }

    /// Steps that this thread has taken, for tests of what runs where.
    pub(crate) fn taken() -> usize {
        TAKEN.get()
    }

    /// The pool is the process's: tests that fill it take turns.
    pub(crate) static ONE: parking_lot::Mutex<()> = parking_lot::Mutex::new(());

    #[test]
    fn without_an_allowance_there_is_no_bound() {
        assert_eq!(step(usize::MAX / 4), Ok(()));
        assert_eq!(hold(usize::MAX / 4), Ok(()));
        let_go(0);
        assert_eq!(foresee(u64::MAX), Ok(()));
        assert!(!is_over());
    }

    #[test]
    fn a_command_goes_elsewhere_once_its_steps_are_used_up() {
        let running = begin(Allowance::here(usize::MAX));
        assert_eq!(step(STEPS_HERE.get()), Ok(()));
        assert_eq!(step(1), Err(Error::Cold));
        assert_eq!(step(0), Err(Error::Cold), "and stays refused");
        drop(running);
        assert_eq!(step(1), Ok(()));
        let _running = begin(Allowance::here(usize::MAX));
        assert_eq!(foresee(STEPS_HERE.get() as u64), Ok(()));
        assert_eq!(foresee(STEPS_HERE.get() as u64 + 1), Err(Error::Cold));
    }

    #[test]
    fn a_command_ends_at_the_first_look_after_it_was_told_to() {
        let told = Arc::new(AtomicBool::new(false));
        let asked = told.clone();
        let _running = begin(Allowance::elsewhere(usize::MAX, Box::new(move || asked.load(Ordering::Relaxed))));
        let before = steps_so_far();
        assert_eq!((0..10 * STEPS_A_LOOK).try_for_each(|_| step(1)), Ok(()));
        assert_eq!(steps_so_far() - before, 10 * STEPS_A_LOOK as i64);
        told.store(true, Ordering::Relaxed);
        let more = (0..10 * STEPS_A_LOOK).take_while(|_| step(1).is_ok()).count();
        assert!(more <= STEPS_A_LOOK, "{more}");
    }

    #[test]
    fn what_was_put_aside_is_bounded_and_ends_as_before() {
        let _running = begin(Allowance::elsewhere(1000, Box::new(|| true)));
        {
            let _aside = aside();
            assert_eq!((step(10 * STEPS_A_LOOK), hold(1001)), (Ok(()), Ok(())));
        }
        assert_eq!((held(), most()), (0, 1000));
        assert_eq!(step(STEPS_A_LOOK + 1), Err(Error::Ended));
    }

    #[test]
    fn what_says_whether_to_end_goes_with_its_command() {
        let (asked, _alive) = (Arc::new(()), begin(Allowance::elsewhere(1, Box::new(|| false))));
        let ended = asked.clone();
        drop(begin(Allowance::elsewhere(1, Box::new(move || Arc::strong_count(&ended) == 0))));
        assert_eq!(Arc::strong_count(&asked), 1);
    }

    #[test]
    fn bytes_are_bounded_and_what_cannot_answer_ends_the_command_at_its_next_step() {
        let _one = ONE.lock();
        let _running = begin(Allowance::here(4 * GRAIN));
        assert_eq!(hold(4 * GRAIN), Ok(()));
        let held = held();
        assert_eq!(hold(1), Err(Error::TooMuch));
        assert!(is_over());
        assert_eq!(step(1), Err(Error::TooMuch));
        let_go(held);
        assert!(!is_over());
        assert_eq!(hold(0), Ok(()));
        assert_eq!(expect(GRAIN + 1), Err(Error::TooMuch));
    }

    #[test]
    fn all_commands_share_a_pool_and_give_back_what_they_had() {
        let _one = ONE.lock();
        let first = begin(Allowance::here(8 * GRAIN));
        assert_eq!(hold(6 * GRAIN), Ok(()));
        assert_eq!(POOLED.load(Ordering::Relaxed), 5 * GRAIN);
        let second = std::thread::spawn(|| {
            let _running = begin(Allowance::here(8 * GRAIN));
            (hold(3 * GRAIN), hold(3 * GRAIN), hold(1))
        });
        let crowded = Err(Error::Crowded);
        assert_eq!(second.join().map_err(drop), Ok((Ok(()), crowded.clone(), crowded)), "however often it asks");
        assert_eq!(POOLED.load(Ordering::Relaxed), 5 * GRAIN);
        drop(first);
        assert_eq!(POOLED.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_finds_the_pool_taken_has_it_alone_once_it_is_free() {
        let _one = ONE.lock();
        let (turns, seen) = std::sync::mpsc::channel();
        let wait = |name: &'static str| {
            let turns = turns.clone();
            when_alone(Box::new(move |turn| turns.send((name, turn)).unwrap()));
        };
        let needs = |allowance: Allowance| {
            let _running = begin(allowance);
            hold(6 * GRAIN)
        };
        let ordinary = || Allowance::elsewhere(8 * GRAIN, Box::new(|| false));

        let first = begin(Allowance::here(8 * GRAIN));
        assert_eq!(hold(6 * GRAIN), Ok(()));
        wait("a");
        wait("b");
        assert!(seen.try_recv().is_err(), "the pool is taken");
        assert_eq!(hold(3 * GRAIN), Err(Error::TooMuch), "more than it may have, whoever waits");
        drop(first);
        let (name, turn) = seen.try_recv().unwrap();
        assert_eq!((name, crowd()), ("a", 2));
        assert!(seen.try_recv().is_err(), "one at a time");
        assert_eq!(needs(ordinary()), Err(Error::Crowded), "who comes later waits behind them");
        assert_eq!(needs(ordinary().at(&turn)), Ok(()));
        wait("c");
        drop(turn);
        let (name, turn) = seen.try_recv().unwrap();
        assert_eq!(name, "b");
        drop(turn);
        assert_eq!(seen.try_recv().unwrap().0, "c", "a turn that is dropped has passed");
        assert_eq!(crowd(), 0);
        assert_eq!(needs(ordinary()), Ok(()));
    }

    #[test]
    fn nobody_waits_for_memory_for_ever() {
        let _one = ONE.lock();
        let (turns, seen) = std::sync::mpsc::channel();
        let wait = |since: Instant| {
            let turns = turns.clone();
            wait_since(since, Box::new(move |turn| turns.send(turn).unwrap()));
        };
        let needs = |bytes: usize, turn: &Turn| {
            let _running = begin(Allowance::elsewhere(8 * GRAIN, Box::new(|| false)).at(turn));
            hold(bytes)
        };
        let long_ago = Instant::now().checked_sub(PATIENCE).unwrap();
        wait(Instant::now());
        let first = seen.try_recv().unwrap();
        let endless = begin(Allowance::elsewhere(8 * GRAIN, Box::new(|| false)).at(&first));
        assert_eq!(hold(6 * GRAIN), Ok(()));
        wait(long_ago);
        wait(long_ago);
        wait(Instant::now());
        assert!(seen.try_recv().is_err());
        tend();
        let late = [seen.try_recv().unwrap(), seen.try_recv().unwrap()];
        assert!(seen.try_recv().is_err() && crowd() == 2, "the last has not waited long");
        assert_eq!(needs(6 * GRAIN, &late[0]), Err(Error::TooMuch), "refused for good");
        assert_eq!(needs(2 * GRAIN, &late[1]), Ok(()), "there is so much");
        drop(late);
        drop(endless);
        assert!(seen.try_recv().is_err(), "the first one's turn is not over");
        drop(first);
        drop(seen.try_recv().unwrap());
        assert_eq!(crowd(), 0);
        assert!(!CROWDED.load(Ordering::SeqCst));
    }
}
