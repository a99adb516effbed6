//! What is seen of commands as they run: how often, how long, with what end; and the command logs, of those that took
//! long, were large, or had a large reply.
//!
//! | a command runs | it is observed |
//! |---|---|
//! | on its network thread | as it ends; one reading of the clock is the end of one and the beginning of the next |
//! | elsewhere, in slices, served while it waits | each of its runs is timed there; it is counted by its network thread when it comes back |
//! | within EXEC or a script | as it ends, an effect: it is counted once, when all has committed |
//!
//! How long it ran leaves out what it waited for: its turn, the disk, the log, memory ([`crate::latency`]). Counters are the
//! network thread's own ([`ThreadStats`]) and summed up when somebody asks.
//!
//! An entry of a log is bounded ([`MOST_ARGS`], [`MOST_BYTES`]), and holds no secret ([`Command::hides`]).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use super::server::{ThreadStats, bump};
use super::session::Client;
use super::table::Slot;
use super::{Args, Command, Server, flags};
use crate::config::settings::Observing;
use crate::latency::{self, Event};
use crate::meter;
use crate::util::ticks;
use crate::util::time::now_ms;
use crate::util::words::c_string;

/// Arguments of a command that an entry tells, the one included that says how many more there are.
const MOST_ARGS: usize = 32;
/// Bytes of each.
const MOST_BYTES: usize = 128;

/// A log of commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Those that took long; microseconds.
    Slow,
    /// Large requests; bytes.
    LargeRequest,
    /// Large replies; bytes.
    LargeReply,
}

/// An entry of a log.
#[derive(Debug)]
pub struct Entry {
    /// Counts those of the log.
    pub id: u64,
    /// Unix seconds.
    pub at_s: u64,
    /// See [`Kind`].
    pub value: u64,
    /// What of the command is told.
    pub what: Arc<What>,
}

/// A command as a log tells it.
#[derive(Debug)]
pub struct What {
    /// Its arguments, as far as they are told.
    pub args: Vec<Box<[u8]>>,
    /// Who has sent it, and the name that it has given itself; empty for a script.
    pub addr: String,
    /// See `addr`.
    pub name: Box<[u8]>,
}

#[derive(Default)]
struct List {
    entries: VecDeque<Arc<Entry>>,
    next_id: u64,
    /// As in Redis, a shorter list is cut with its next entry, and 0 stops the log and leaves what there is.
    most: usize,
}

impl List {
    fn push(&mut self, value: u64, what: &Arc<What>) {
        if self.most == 0 {
            return;
        }
        let (id, at_s) = (self.next_id, now_ms() / 1000);
        self.next_id += 1;
        self.entries.push_front(Arc::new(Entry { id, at_s, value, what: what.clone() }));
        self.entries.truncate(self.most);
    }
}

/// How a command's run went.
#[derive(Debug, Clone, Copy)]
pub struct Took {
    /// How long it ran, ns.
    pub ns: u64,
    /// Bytes of its request; 0 of one that EXEC or a script runs.
    pub request_bytes: usize,
    /// Bytes of its reply.
    pub reply_bytes: usize,
}

/// Times a run on one thread.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    began: u64,
    waited_ns: u64,
}

impl Clock {
    /// Begins.
    #[inline]
    pub fn start() -> Clock {
        Clock { began: ticks::now(), waited_ns: latency::waited_here() }
    }

    /// How long it has run until now, ns, what this thread has waited for meanwhile left out.
    #[inline]
    pub fn ran_ns(self) -> u64 {
        let waited_ns = latency::waited_here() - self.waited_ns;
        ticks::ns_since(self.began).saturating_sub(waited_ns)
    }

    /// The same; the next run begins now.
    #[inline]
    pub fn lap(&mut self) -> u64 {
        let (now, waited_ns) = (ticks::now(), latency::waited_here());
        let ns = ticks::to_ns(now.wrapping_sub(self.began)).saturating_sub(waited_ns - self.waited_ns);
        *self = Clock { began: now, waited_ns };
        ns
    }
}

/// What is to be kept, and what was.
#[derive(Default)]
pub struct Observer {
    /// What a command must take to be looked at more closely, for the slow log or as an event; ns.
    slow_ns: AtomicU64,
    /// The same for the slow log alone.
    logged_ns: AtomicU64,
    request_bytes: AtomicU64,
    reply_bytes: AtomicU64,
    /// How commands' times are distributed is kept.
    tracks: AtomicBool,
    lists: [Mutex<List>; 3],
}

impl Observer {
    /// Does as the directives ask.
    pub fn follow(&self, asked: &Observing) {
        latency::set_threshold(asked.latency_ms);
        let limit = |number: i64| u64::try_from(number).unwrap_or(u64::MAX);
        let logged_ns = u64::try_from(asked.slower_than_us).map_or(u64::MAX, |us| us.saturating_mul(1000));
        self.logged_ns.store(logged_ns, Ordering::Relaxed);
        self.slow_ns.store(logged_ns.min(latency::threshold_ns()), Ordering::Relaxed);
        self.request_bytes.store(limit(asked.request_larger_than), Ordering::Relaxed);
        self.reply_bytes.store(limit(asked.reply_larger_than), Ordering::Relaxed);
        self.tracks.store(asked.tracks, Ordering::Relaxed);
        for (list, most) in self.lists.iter().zip(asked.most_entries) {
            list.lock().most = most;
        }
    }

    /// Whether more than its counters is to be kept of a command.
    #[inline]
    pub fn is_noted(&self, took: &Took) -> bool {
        took.ns >= self.slow_ns.load(Ordering::Relaxed)
            || took.request_bytes as u64 >= self.request_bytes.load(Ordering::Relaxed)
            || took.reply_bytes as u64 >= self.reply_bytes.load(Ordering::Relaxed)
    }

    /// Keeps of a command that is [noted](Observer::is_noted) what is to be kept; what logs are to have of it `log` sees to.
    #[cold]
    pub fn note(&self, command: &Command, took: &Took, log: impl FnOnce(&Took)) {
        let event = if command.has(flags::FAST) { Event::FastCommand } else { Event::Command };
        latency::keep(event, took.ns);
        if !command.has(flags::SKIP_SLOWLOG) && self.logs(took).iter().any(|(number, _, limit)| number >= limit) {
            log(took);
        }
    }

    /// By log: what decides, what is told, and from what on.
    fn logs(&self, took: &Took) -> [(u64, u64, u64); 3] {
        let limit = |limit: &AtomicU64| limit.load(Ordering::Relaxed);
        let (request, reply) = (took.request_bytes as u64, took.reply_bytes as u64);
        [
            (took.ns, took.ns / 1000, limit(&self.logged_ns)),
            (request, request, limit(&self.request_bytes)),
            (reply, reply, limit(&self.reply_bytes)),
        ]
    }

    /// Puts a command into those logs that it belongs into.
    pub fn log(&self, took: &Took, what: &Arc<What>) {
        for (list, (number, told, limit)) in self.lists.iter().zip(self.logs(took)) {
            if number >= limit {
                list.lock().push(told, what);
            }
        }
    }

    /// The latest entries of a log, so many at most.
    pub fn latest(&self, kind: Kind, most: usize) -> Vec<Arc<Entry>> {
        self.lists[kind as usize].lock().entries.iter().take(most).cloned().collect()
    }

    /// Entries of a log.
    pub fn len(&self, kind: Kind) -> usize {
        self.lists[kind as usize].lock().entries.len()
    }

    /// Forgets the entries of a log.
    pub fn reset(&self, kind: Kind) {
        let entries = std::mem::take(&mut self.lists[kind as usize].lock().entries);
        drop(entries);
    }

    /// Counts a command that has run, among those of the calling network thread.
    #[inline]
    pub fn count(&self, stats: &ThreadStats, slot: Slot, ns: u64, failed: bool) {
        bump(&stats.commands, 1);
        let Some(counts) = stats.calls.get(slot as usize) else { return };
        bump(&counts.calls, 1);
        bump(&counts.ran_ns, ns);
        if failed {
            bump(&counts.failed, 1);
        }
        if self.tracks.load(Ordering::Relaxed) {
            counts.times.get_or_init(Default::default).add(ns);
        }
    }
}

impl What {
    /// About its memory, bytes.
    pub fn bytes(&self) -> usize {
        self.args.iter().map(|arg| arg.len() + size_of::<Box<[u8]>>() + meter::ALLOCATION).sum()
    }

    /// What is told of a call of a client, or of a script.
    pub fn new(command: &Command, args: Args<'_>, client: Option<&Client>) -> What {
        let told = if args.len() > MOST_ARGS { MOST_ARGS - 1 } else { args.len() };
        let mut texts: Vec<Box<[u8]>> = (0..told).map(|at| shortened(command, args, at)).collect();
        if told < args.len() {
            texts.push(format!("... ({} more arguments)", args.len() - told).into_bytes().into());
        }
        let (addr, name) = client
            .map_or_else(Default::default, |client| (client.addr.clone(), cut(c_string(&client.labels.lock().name))));
        What { args: texts, addr, name }
    }
}

fn shortened(command: &Command, args: Args<'_>, at: usize) -> Box<[u8]> {
    if (command.hides)(args, at) {
        return b"(redacted)"[..].into();
    }
    cut(&args[at])
}

/// A text, or its beginning and how much more there is.
fn cut(text: &[u8]) -> Box<[u8]> {
    match text.len().checked_sub(MOST_BYTES) {
        None | Some(0) => text.into(),
        Some(more) => [&text[..MOST_BYTES], format!("... ({more} more bytes)").as_bytes()].concat().into(),
    }
}

impl Server {
    /// A call on its own network thread, or one that comes back to it, has ended.
    #[inline]
    pub fn observe(&self, command: &Command, args: Args<'_>, client: &Client, took: &Took) {
        if self.observer.is_noted(took) {
            let log = |took: &Took| self.observer.log(took, &Arc::new(What::new(command, args, Some(client))));
            self.observer.note(command, took, log);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// By whichever way it is read, what has been waited for before included.
    #[test]
    fn what_a_command_waits_for_is_no_time_of_its_own() {
        const WAITED: Duration = Duration::from_millis(300);
        let wait = || latency::wait_for(Event::QueueWait, || std::thread::sleep(WAITED));
        wait();
        let (clock, mut laps) = (Clock::start(), Clock::start());
        wait();
        let ran = [clock.ran_ns(), laps.lap(), laps.lap()];
        assert!(ran.iter().all(|ns| u128::from(*ns) < WAITED.as_nanos()), "{ran:?}");
    }
}
