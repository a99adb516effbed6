//! The scripts that the server knows, and the scripts and functions that run for long.
//!
//! A script is known by the SHA-1 of its text. What SCRIPT LOAD brought stays until SCRIPT FLUSH; of what EVAL brought the
//! oldest leaves when there are more than [`MOST_EVALS`], or all take more bytes than they may. Every thread keeps at hand
//! what it has run, as long as nothing was taken away ([`Scripts::generation`]): to run a script again takes no lock.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;

use crate::lua::Chunk;
use crate::util::scale::Scaled;

/// The SHA-1 of a script's text, 40 hexadecimal digits in lower case.
pub type Sha = [u8; 40];

/// A compiled script.
#[derive(Debug)]
pub struct Script {
    /// What it is known by.
    pub sha: Sha,
    /// What is run.
    pub chunk: Arc<Chunk>,
    /// Its first line says that it writes nothing.
    pub no_writes: bool,
    /// Its first line says that it may add where there is no room.
    pub allow_oom: bool,
    /// Its first line says what it does.
    pub has_flags: bool,
    /// About its memory, bytes.
    pub bytes: usize,
}

/// Scripts of EVAL that stay known.
const MOST_EVALS: Scaled<usize> = Scaled::new(500).in_unit_tests(3);

#[derive(Default)]
struct Known {
    /// By their SHA-1; whether EVAL brought them.
    scripts: HashMap<Sha, (Arc<Script>, bool)>,
    /// Those of EVAL, the oldest first.
    evals: VecDeque<Sha>,
}

/// A function that was called.
#[derive(Debug)]
pub struct Called {
    /// Its name.
    pub name: Box<[u8]>,
    /// The command, with its arguments.
    pub command: Vec<Box<[u8]>>,
}

/// A script or a function that runs for long.
#[derive(Debug)]
pub struct Running {
    /// It is to end: SCRIPT KILL, FUNCTION KILL.
    pub killed: AtomicBool,
    /// It has written something.
    pub has_written: AtomicBool,
    /// The function, if it is one.
    pub called: Option<Called>,
    /// When it was noticed.
    pub since: Instant,
}

impl Running {
    /// A script, or the function that was called.
    pub fn new(called: Option<Called>) -> Self {
        Running { killed: false.into(), has_written: false.into(), called, since: Instant::now() }
    }
}

/// What KILL has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Killed {
    /// There was one, or more.
    Some,
    /// Those that there were had written something.
    Writers,
    /// There were only some of the other kind.
    Others,
    /// Nothing runs.
    Nothing,
}

/// All scripts.
#[derive(Default)]
pub struct Scripts {
    known: Mutex<Known>,
    /// Changes whenever a script is taken away.
    generation: AtomicU64,
    bytes: AtomicUsize,
    evicted: AtomicU64,
    /// Bytes of the interpreters of all threads: scripts', functions'.
    machines: [AtomicUsize; 2],
    running: Mutex<Vec<Arc<Running>>>,
}

thread_local! {
    /// Scripts that this thread has run, of the server at this address, as of this generation. It keeps none of them alive:
    /// a thread may run no script for days after all were flushed.
    static AT_HAND: RefCell<(usize, u64, HashMap<Sha, Weak<Script>>)> = RefCell::default();
}

/// Whose interpreter it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Of {
    /// A thread's for scripts.
    Scripts,
    /// A thread's for functions.
    Functions,
}

thread_local! {
    /// What this thread has told of its interpreters.
    static TOLD: std::cell::Cell<[usize; 2]> = const { std::cell::Cell::new([0; 2]) };
}

impl Scripts {
    /// An interpreter of this thread holds so many bytes now that nothing runs.
    pub fn tell_machine(&self, of: Of, bytes: usize) {
        let mut told = TOLD.get();
        let before = std::mem::replace(&mut told[of as usize], bytes);
        if before != bytes {
            self.machines[of as usize].fetch_add(bytes.wrapping_sub(before), Ordering::Relaxed);
            TOLD.set(told);
        }
    }

    /// Bytes of the interpreters of all threads: scripts', functions'.
    pub fn machine_bytes(&self) -> [u64; 2] {
        std::array::from_fn(|of| self.machines[of].load(Ordering::Relaxed) as u64)
    }

    /// A script that is known.
    pub fn find(&self, sha: &Sha) -> Option<Arc<Script>> {
        let now = (std::ptr::from_ref(self).addr(), self.generation.load(Ordering::Acquire));
        AT_HAND.with_borrow_mut(|(of, generation, scripts)| {
            if (*of, *generation) != now {
                (*of, *generation) = now;
                scripts.clear();
            }
            if let Some(script) = scripts.get(sha).and_then(Weak::upgrade) {
                return Some(script);
            }
            let script = self.known.lock().scripts.get(sha)?.0.clone();
            scripts.insert(*sha, Arc::downgrade(&script));
            Some(script)
        })
    }

    /// Whether a script is known.
    pub fn knows(&self, sha: &Sha) -> bool {
        self.known.lock().scripts.contains_key(sha)
    }

    /// Makes a script known, by EVAL or by SCRIPT LOAD, if all take no more than so many bytes; whether it is.
    pub fn add(&self, script: &Arc<Script>, by_eval: bool, most_bytes: usize) -> bool {
        let mut known = self.known.lock();
        match known.scripts.get_mut(&script.sha) {
            Some((_, of_eval)) => {
                if *of_eval && !by_eval {
                    *of_eval = false;
                    known.evals.retain(|sha| *sha != script.sha);
                }
                return true;
            }
            None => _ = known.scripts.insert(script.sha, (script.clone(), by_eval)),
        }
        self.bytes.fetch_add(script.bytes, Ordering::Relaxed);
        if by_eval {
            known.evals.push_back(script.sha);
        }
        while known.evals.len() > MOST_EVALS.get() || self.bytes.load(Ordering::Relaxed) > most_bytes {
            let Some(oldest) = known.evals.pop_front() else { break };
            self.remove(&mut known, &oldest);
            self.evicted.fetch_add(1, Ordering::Relaxed);
        }
        if self.bytes.load(Ordering::Relaxed) > most_bytes {
            self.remove(&mut known, &script.sha);
        }
        known.scripts.contains_key(&script.sha)
    }

    fn remove(&self, known: &mut Known, sha: &Sha) {
        if let Some((script, _)) = known.scripts.remove(sha) {
            self.bytes.fetch_sub(script.bytes, Ordering::Relaxed);
            self.generation.fetch_add(1, Ordering::Release);
        }
    }

    /// Forgets all.
    pub fn flush(&self) {
        let mut known = self.known.lock();
        *known = Known::default();
        self.bytes.store(0, Ordering::Relaxed);
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Scripts known, their memory in bytes, and how many of EVAL's have left.
    pub fn counts(&self) -> (usize, usize, u64) {
        let count = self.known.lock().scripts.len();
        (count, self.bytes.load(Ordering::Relaxed), self.evicted.load(Ordering::Relaxed))
    }

    /// A script turns out to run for long.
    pub fn began(&self, running: &Arc<Running>) {
        self.running.lock().push(running.clone());
    }

    /// It has ended, or is run again from its beginning.
    pub fn ended(&self, running: &Arc<Running>) {
        self.running.lock().retain(|other| !Arc::ptr_eq(other, running));
    }

    /// Ends the scripts, or the functions, that run and have written nothing.
    pub fn kill(&self, functions: bool) -> Killed {
        let running = self.running.lock();
        let mut of_kind = running.iter().filter(|script| script.called.is_some() == functions).peekable();
        if of_kind.peek().is_none() {
            return if running.is_empty() { Killed::Nothing } else { Killed::Others };
        }
        let idle = of_kind.filter(|script| !script.has_written.load(Ordering::Relaxed));
        match idle.inspect(|script| script.killed.store(true, Ordering::Relaxed)).count() {
            0 => Killed::Writers,
            _ => Killed::Some,
        }
    }

    /// The function that has been running longest.
    pub fn running_function(&self) -> Option<Arc<Running>> {
        let running = self.running.lock();
        running.iter().filter(|script| script.called.is_some()).min_by_key(|script| script.since).cloned()
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::lua::Limits;

    fn script(n: u8) -> Arc<Script> {
        let chunk = Chunk::compile(b"return 1", "@user_script", &Limits::default()).unwrap();
        Arc::new(Script { sha: [n; 40], chunk, no_writes: false, allow_oom: false, has_flags: false, bytes: 10 })
    }

    /// Each thread tells what its interpreters hold now, not what they hold more than before.
    #[test]
    fn the_bytes_of_interpreters_follow_what_threads_tell() {
        let scripts = Scripts::default();
        let tell = |of, bytes: &[usize]| {
            std::thread::scope(|scope| {
                scope.spawn(|| bytes.iter().for_each(|bytes| scripts.tell_machine(of, *bytes)));
            });
            scripts.machine_bytes()
        };
        assert_eq!(tell(Of::Scripts, &[100, 300, 200]), [200, 0]);
        assert_eq!(tell(Of::Scripts, &[50, 50]), [250, 0]);
        assert_eq!(tell(Of::Functions, &[30, 10]), [250, 10]);
        assert_eq!(tell(Of::Scripts, &[70, 0]), [250, 10]);
    }

    #[test]
    fn of_evals_the_oldest_leaves_and_what_was_loaded_stays() {
        let scripts = Scripts::default();
        const MUCH: usize = 1 << 20;
        assert!(scripts.add(&script(0), false, MUCH));
        let many = MOST_EVALS.get() as u8;
        (1..=many).for_each(|n| _ = scripts.add(&script(n), true, MUCH));
        // From now on it is not EVAL's any more.
        scripts.add(&script(1), false, MUCH);
        assert!(scripts.find(&[2; 40]).is_some());
        (many + 1..=many + 2).for_each(|n| _ = scripts.add(&script(n), true, MUCH));
        assert_eq!([0, 1, 2, 3].map(|n| scripts.find(&[n; 40]).is_some()), [true, true, false, true]);
        assert_eq!(scripts.counts(), (4 + usize::from(many) - 2, 10 * (2 + usize::from(many)), 1));
        // Where there is no more room, those of EVAL leave, and a further one is refused.
        assert!(scripts.add(&script(100), false, 30) && scripts.counts().0 == 3);
        assert!(!scripts.add(&script(101), false, 30) && !scripts.add(&script(102), true, 30));
        assert_eq!(scripts.counts().1, 30);
        let known = Arc::downgrade(&scripts.find(&[0; 40]).unwrap());
        scripts.flush();
        assert!(known.upgrade().is_none(), "nobody keeps what was flushed");
        assert_eq!(scripts.counts(), (0, 0, scripts.counts().2), "nor counts it");
        assert!(scripts.find(&[0; 40]).is_none() && scripts.counts().1 == 0);
    }

    #[test]
    fn what_has_written_is_not_killed_nor_what_is_of_the_other_kind() {
        let scripts = Scripts::default();
        assert_eq!(scripts.kill(false), Killed::Nothing);
        let [idle, writer] = [false, true].map(|has_written| {
            let running = Arc::new(Running { has_written: has_written.into(), ..Running::new(None) });
            scripts.began(&running);
            running
        });
        assert_eq!(scripts.kill(true), Killed::Others);
        assert!(!idle.killed.load(Ordering::Relaxed) && scripts.running_function().is_none());
        assert_eq!(scripts.kill(false), Killed::Some);
        assert!(idle.killed.load(Ordering::Relaxed) && !writer.killed.load(Ordering::Relaxed));
        scripts.ended(&idle);
        assert_eq!(scripts.kill(false), Killed::Writers);
        let function = Arc::new(Running::new(Some(Called { name: b"f"[..].into(), command: Vec::new() })));
        scripts.began(&function);
        assert_eq!(scripts.kill(true), Killed::Some);
        assert!(function.killed.load(Ordering::Relaxed) && scripts.running_function().is_some());
    }

    #[test]
    fn of_functions_that_run_the_one_that_has_run_longest_is_told() {
        let scripts = Scripts::default();
        let began = Instant::now();
        for (name, after_s) in [(&b"second"[..], 1), (b"first", 0), (b"third", 2)] {
            let called = Called { name: name.into(), command: Vec::new() };
            let since = began + std::time::Duration::from_secs(after_s);
            scripts.began(&Arc::new(Running { since, ..Running::new(Some(called)) }));
        }
        let longest = scripts.running_function().unwrap();
        assert_eq!(longest.called.as_ref().map(|called| &*called.name), Some(&b"first"[..]));
    }
}
