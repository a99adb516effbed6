//! What all connections share: engine, configuration, clients, counters.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::sync::watch;

use super::buffers::Buffers;
use super::limits::Bounds;
use super::observe::Observer;
use super::session::Client;
use super::table::{Slot, Table};
use crate::config::budget::{Budget, Machine};
use crate::config::{Config, Settings};
use crate::shard::Engine;
use crate::shard::engine::gate;
use crate::util::histogram::{Counts, Histogram};
use crate::util::time::now_ms;

/// CLIENT PAUSE.
#[derive(Debug, Default, Clone, Copy)]
pub struct Pause {
    /// Unix ms at which it ends.
    pub until_ms: u64,
    /// All commands, not only writes.
    pub all: bool,
    /// Counts changes, from 1.
    pub number: u64,
}

/// Counters of one network thread; written by that thread only.
#[derive(Debug, Default)]
#[expect(missing_docs, reason = "the names INFO gives them")]
pub struct ThreadStats {
    pub commands: AtomicU64,
    pub bytes_in: AtomicU64,
    pub bytes_out: AtomicU64,
    pub errors: AtomicU64,
    pub reads: AtomicU64,
    pub writes: AtomicU64,
    /// Connections that passed the limit of their query buffer.
    pub over_input: AtomicU64,
    /// Connections that passed the limit of their output buffer.
    pub over_output: AtomicU64,
    /// Commands left to whoever had one of their shards.
    pub left: AtomicU64,
    /// Pipelines of which the keys were looked for ahead, and commands in these.
    pub ahead: [AtomicU64; 2],
    /// Output buffers that were given back, and that had to grow.
    pub buffers: [AtomicU64; 2],
    /// The largest query buffer and the largest output of late: of these seconds, and of those before.
    pub largest: [[AtomicU64; 2]; 2],
    /// Turns of the thread: how often it woke, and nanoseconds until it slept again.
    pub turns: [AtomicU64; 2],
    /// When it woke last, in ticks.
    pub woke_at: AtomicU64,
    /// What the system calls the thread.
    pub thread_id: std::sync::atomic::AtomicU32,
    /// Open connections.
    pub clients: AtomicU64,
    /// Of commands, by slot of the table.
    pub calls: Vec<Calls>,
    /// Errors by their code word.
    pub error_codes: parking_lot::Mutex<BTreeMap<String, u64>>,
}

/// What is counted of a command: a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
#[expect(missing_docs, reason = "the names INFO gives them")]
pub struct Calls {
    pub calls: AtomicU64,
    pub rejected: AtomicU64,
    pub failed: AtomicU64,
    /// Nanoseconds that they ran.
    pub ran_ns: AtomicU64,
    /// How these are distributed, since there was the first.
    pub times: OnceLock<Histogram>,
}

impl ThreadStats {
    /// Counters for a table of this many slots.
    pub fn new(slots: usize) -> Self {
        ThreadStats { calls: (0..slots).map(|_| Default::default()).collect(), ..Default::default() }
    }

    /// Notes the size of a query buffer (0) or an output (1).
    #[inline]
    pub fn note_size(&self, which: usize, bytes: u64) {
        let largest = &self.largest[which][0];
        if bytes > largest.load(Ordering::Relaxed) {
            largest.store(bytes, Ordering::Relaxed);
        }
    }

    /// What was of late becomes what was before.
    pub fn age_sizes(&self) {
        for [now, before] in &self.largest {
            before.store(now.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// The largest query buffer (0) or output (1) of the last seconds.
    pub fn largest(&self, which: usize) -> u64 {
        self.largest[which].iter().map(|bytes| bytes.load(Ordering::Relaxed)).max().unwrap_or(0)
    }

    /// Counts a command that was refused.
    pub fn count_rejected(&self, slot: Slot) {
        if let Some(counts) = self.calls.get(slot as usize) {
            bump(&counts.rejected, 1);
        }
    }

    /// Counts an error by its reply.
    #[cold]
    pub fn count_error(&self, reply: &[u8]) {
        /// As many as Redis tells apart: a client that makes codes up cannot fill the memory.
        const MOST_CODES: usize = 128;
        bump(&self.errors, 1);
        let code = reply.strip_prefix(b"-").unwrap_or(reply).split(|&c| c == b' ' || c == b'\r').next();
        let code = String::from_utf8_lossy(code.unwrap_or_default()).into_owned();
        let mut codes = self.error_codes.lock();
        if codes.len() < MOST_CODES || codes.contains_key(&code) {
            *codes.entry(code).or_default() += 1;
        }
    }
}

/// Adds to a counter that only the calling thread writes: no locked instruction.
#[inline]
pub fn bump(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

/// How a shutdown was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shutdown {
    /// Flush and sync first.
    Save,
    /// Only sync the log.
    NoSave,
}

/// The counters of all threads at one moment.
#[derive(Debug, Default, Clone)]
#[expect(missing_docs, reason = "the names of the counters they are read from")]
pub struct Totals {
    pub accepted: u64,
    pub rejected: u64,
    pub commands: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub errors: u64,
    pub reads: u64,
    pub writes: u64,
    pub over_input: u64,
    pub over_output: u64,
    pub ahead: [u64; 2],
    pub buffers: [u64; 2],
    pub turns: [u64; 2],
    /// Nanoseconds that commands ran.
    pub ran_ns: u64,
    /// Clients closed for others' sake, scripts that had to go, bodies freed aside.
    pub aside: [u64; 3],
    pub calls: Vec<[u64; 4]>,
    pub error_codes: BTreeMap<String, u64>,
}

/// Counters of which [`Rates`] knows how fast they grow: commands, bytes in, bytes out, turns of the network threads, and
/// nanoseconds of these.
pub const RATES: usize = 5;

/// Samples in the ring of [`Rates`].
const SAMPLES: usize = 16;

/// Rates over the last samples, as Redis computes its `instantaneous_*`: one sample every 100 ms, 16 of them.
#[derive(Debug, Default)]
pub struct Rates {
    last: Option<(u64, [u64; RATES])>,
    ring: [[u64; RATES]; SAMPLES],
    next: usize,
    /// Highest number of allocated bytes seen, and when (Unix seconds).
    pub memory_peak: (u64, u64),
}

impl Rates {
    /// Takes a sample of the counters so far.
    pub fn sample(&mut self, now_us: u64, counters: [u64; RATES]) {
        if let Some((then_us, before)) = self.last {
            let passed_us = (now_us - then_us).max(1);
            for (at, (now, before)) in counters.iter().zip(before).enumerate() {
                let grown = u128::from(now.saturating_sub(before)) * 1_000_000 / u128::from(passed_us);
                self.ring[self.next][at] = u64::try_from(grown).unwrap_or(u64::MAX);
            }
            self.next = (self.next + 1) % SAMPLES;
        }
        self.last = Some((now_us, counters));
    }

    /// By how much they grow in a second.
    pub fn per_second(&self) -> [u64; RATES] {
        std::array::from_fn(|at| self.ring.iter().map(|sample| sample[at] / SAMPLES as u64).sum())
    }
}

/// 40 hexadecimal digits that nobody can foretell.
pub fn random_hex() -> String {
    use std::hash::{BuildHasher as _, RandomState};
    // Each state has fresh keys, seeded by the system.
    let word = || RandomState::new().hash_one(now_ms());
    format!("{:016x}{:016x}{:08x}", word(), word(), word() as u32)
}

/// See [`Server::listen_anew`].
pub type ListenAnew = Box<dyn Fn(&Settings) -> std::io::Result<()> + Send + Sync>;

/// What all connections share.
pub struct Server {
    /// All commands.
    pub table: &'static Table,
    /// Shards, log, store.
    pub engine: Arc<Engine>,
    /// Directives.
    pub config: Config,
    /// How the memory is divided now.
    pub budget: parking_lot::Mutex<Budget>,
    /// What commands may take, and the generation of the directives that say so.
    bounds: parking_lot::RwLock<(u64, Bounds)>,
    /// CLIENT PAUSE; who is held back waits for it to change.
    pub pause: watch::Sender<Pause>,
    /// Open connections by id.
    pub clients: parking_lot::Mutex<BTreeMap<u64, Arc<Client>>>,
    /// What their buffers take.
    pub buffers: Buffers,
    /// Scripts that are known, and those that run.
    pub scripts: super::scripts::Scripts,
    /// What is heard of commands: classes of keyspace events, and whether anybody is shown them all.
    pub(super) heard: AtomicU32,
    /// Those who are shown all commands.
    pub monitors: Arc<super::monitor::Monitors>,
    /// Pub/sub.
    pub hub: Arc<super::pubsub::Hub>,
    /// Id of the next connection.
    pub next_client: AtomicU64,
    /// Counters of all network threads.
    pub threads: parking_lot::Mutex<Vec<Arc<ThreadStats>>>,
    /// Connections let in.
    pub accepted: AtomicU64,
    /// Connections refused, for `maxclients` or by protected mode.
    pub rejected: AtomicU64,
    /// Unix ms of the start.
    pub started_ms: u64,
    /// 40 hexadecimal digits, new at each start.
    pub run_id: String,
    /// Port actually listened on.
    pub port: AtomicU32,
    /// Users, and what they may do.
    pub acl: super::acl::Acl,
    /// Listens as these settings say from now on; set by who listens.
    pub listen_anew: OnceLock<ListenAnew>,
    /// What TLS is spoken with.
    pub tls: crate::tls::Tls,
    /// Tells the main thread to go down.
    pub shutdown: watch::Sender<Option<Shutdown>>,
    /// Bytes allocated before anything was loaded.
    pub startup_bytes: AtomicU64,
    /// LASTSAVE, Unix seconds.
    pub last_save_s: AtomicU64,
    /// Cursors of SCAN.
    pub cursors: crate::shard::keyspace::cursor::Cursors<crate::shard::keyspace::walk::Stop>,
    /// Cursors of HSCAN, SSCAN and ZSCAN.
    pub element_cursors: crate::shard::keyspace::cursor::Cursors<Box<[u8]>>,
    /// Rates of the last seconds and the peak of memory.
    pub rates: parking_lot::Mutex<Rates>,
    /// What the counters stood at when CONFIG RESETSTAT was last called.
    pub baseline: parking_lot::Mutex<Totals>,
    /// The same of [`Server::times`].
    pub times_before: parking_lot::Mutex<Vec<Counts>>,
    /// What is kept of commands that have run.
    pub observer: Observer,
    /// 40 hexadecimal digits, as INFO's `master_replid`.
    pub replication_id: parking_lot::Mutex<String>,
}

impl Server {
    /// What one command may take.
    pub fn bounds(&self) -> Bounds {
        let now = self.config.generation();
        let (generation, known) = *self.bounds.read();
        if generation == now {
            return known;
        }
        let bounds = Bounds::of(&self.config.settings());
        *self.bounds.write() = (now, bounds);
        bounds
    }

    /// A server that has no connections yet.
    pub fn new(engine: Arc<Engine>, config: Config, table: &'static Table) -> Self {
        let acl = super::acl::Acl::new(table, &config.settings().requirepass.0);
        let now_ms = now_ms();
        let events = config.settings().notify_keyspace_events;
        engine.trackers.set_most_keys(config.settings().tracking_table_max_keys);
        let server = Server {
            table,
            engine,
            budget: parking_lot::Mutex::new(Budget::new(&config.settings(), &Machine::read())),
            bounds: parking_lot::RwLock::new((config.generation(), Bounds::of(&config.settings()))),
            config,
            pause: watch::channel(Pause { number: 1, ..Pause::default() }).0,
            clients: Default::default(),
            buffers: Buffers::default(),
            scripts: Default::default(),
            heard: 0.into(),
            monitors: Arc::default(),
            hub: Arc::default(),
            next_client: 1.into(),
            threads: Default::default(),
            accepted: 0.into(),
            rejected: 0.into(),
            started_ms: now_ms,
            run_id: random_hex(),
            port: 0.into(),
            acl,
            listen_anew: OnceLock::new(),
            tls: Default::default(),
            shutdown: watch::channel(None).0,
            startup_bytes: 0.into(),
            last_save_s: (now_ms / 1000).into(),
            cursors: Default::default(),
            element_cursors: Default::default(),
            rates: Default::default(),
            baseline: Default::default(),
            times_before: Default::default(),
            observer: Observer::default(),
            replication_id: parking_lot::Mutex::new(random_hex()),
        };
        server.set_events(events);
        server.observer.follow(&server.config.settings().observing);
        server
    }

    /// Holds commands back until then. Of two pauses the longer and the stricter holds.
    pub fn hold_back(&self, now_ms: u64, until_ms: u64, all: bool) {
        self.pause.send_modify(|pause| {
            let goes_on = pause.until_ms > now_ms;
            pause.until_ms = if goes_on { pause.until_ms.max(until_ms) } else { until_ms };
            pause.all = all || goes_on && pause.all;
            pause.number += 1;
            self.engine.set_gate(gate::PAUSED, true);
        });
    }

    /// Ends the pause, if there is one and it is over by then.
    pub fn end_pause(&self, by_ms: u64) {
        self.pause.send_if_modified(|pause| {
            let ends = pause.until_ms > 0 && pause.until_ms <= by_ms;
            if ends {
                *pause = Pause { number: pause.number + 1, ..Pause::default() };
                self.engine.set_gate(gate::PAUSED, false);
            }
            ends
        });
    }

    /// The open connections: what is done with them is done outside of the registry's lock.
    pub fn every_client(&self) -> Vec<Arc<Client>> {
        self.clients.lock().values().cloned().collect()
    }

    /// Memory of all connections, in bytes.
    pub fn client_bytes(&self) -> u64 {
        self.every_client().iter().map(|client| client.memory_bytes()).sum()
    }

    /// Counters of all network threads together since the start.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals {
            accepted: self.accepted.load(Ordering::Relaxed),
            rejected: self.rejected.load(Ordering::Relaxed),
            aside: [
                self.buffers.evicted.load(Ordering::Relaxed),
                self.scripts.counts().2,
                self.engine.stats.freed_bodies.load(Ordering::Relaxed),
            ],
            ..Totals::default()
        };
        for thread in self.threads.lock().iter() {
            totals.commands += thread.commands.load(Ordering::Relaxed);
            totals.bytes_in += thread.bytes_in.load(Ordering::Relaxed);
            totals.bytes_out += thread.bytes_out.load(Ordering::Relaxed);
            totals.errors += thread.errors.load(Ordering::Relaxed);
            totals.reads += thread.reads.load(Ordering::Relaxed);
            totals.writes += thread.writes.load(Ordering::Relaxed);
            totals.over_input += thread.over_input.load(Ordering::Relaxed);
            totals.over_output += thread.over_output.load(Ordering::Relaxed);
            for (sum, count) in [
                (&mut totals.ahead, &thread.ahead),
                (&mut totals.buffers, &thread.buffers),
                (&mut totals.turns, &thread.turns),
            ] {
                sum.iter_mut().zip(count).for_each(|(sum, count)| *sum += count.load(Ordering::Relaxed));
            }
            totals.calls.resize(thread.calls.len(), [0; 4]);
            for (sum, counts) in totals.calls.iter_mut().zip(&thread.calls) {
                let counts = [&counts.calls, &counts.rejected, &counts.failed, &counts.ran_ns];
                for (sum, count) in sum.iter_mut().zip(counts) {
                    *sum += count.load(Ordering::Relaxed);
                }
            }
            for (code, count) in thread.error_codes.lock().iter() {
                *totals.error_codes.entry(code.clone()).or_default() += count;
            }
        }
        totals.ran_ns = totals.calls.iter().map(|[_, _, _, ran_ns]| ran_ns).sum();
        totals
    }

    /// How the times of commands are distributed, by slot of the table, since the start.
    pub fn times(&self) -> Vec<Counts> {
        let mut times = vec![Counts::default(); self.table.slots()];
        for thread in self.threads.lock().iter() {
            for (sum, counts) in times.iter_mut().zip(&thread.calls) {
                counts.times.get().into_iter().for_each(|times| sum.add(times));
            }
        }
        times
    }

    /// The same since CONFIG RESETSTAT.
    pub fn times_since_reset(&self) -> Vec<Counts> {
        let mut times = self.times();
        times.iter_mut().zip(&*self.times_before.lock()).for_each(|(times, before)| times.take(before));
        times
    }

    /// Sums a counter over all network threads.
    pub fn total(&self, counter: impl Fn(&ThreadStats) -> u64) -> u64 {
        self.threads.lock().iter().map(|t| counter(t)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_of_what_grows_by_much() {
        let mut rates = Rates::default();
        // Nanoseconds of many threads after a long pause.
        rates.sample(0, [0; RATES]);
        rates.sample(1_000_000, [u64::MAX / 2; RATES]);
        assert_eq!(rates.per_second(), [u64::MAX / 2 / SAMPLES as u64; RATES]);
    }

    #[test]
    fn the_largest_is_of_late() {
        let stats = ThreadStats::new(0);
        stats.note_size(0, 300);
        stats.note_size(0, 200);
        stats.note_size(1, 5);
        let largest = || [stats.largest(0), stats.largest(1)];
        assert_eq!(largest(), [300, 5]);
        stats.age_sizes();
        stats.note_size(0, 100);
        assert_eq!(largest(), [300, 5]);
        stats.age_sizes();
        assert_eq!(largest(), [100, 0]);
        stats.age_sizes();
        assert_eq!(largest(), [0, 0]);
    }

    /// Of codes that a client makes up so many are kept, and those are counted on.
    #[test]
    fn errors_are_counted_by_so_many_codes() {
        let stats = ThreadStats::new(0);
        let count = |reply: &str| stats.count_error(reply.as_bytes());
        (0..200).for_each(|n| count(&format!("-CODE{n} text\r\n")));
        count("-CODE7\r\n");
        count("-CODE199 text\r\n");
        let codes = stats.error_codes.lock();
        assert_eq!((codes.len(), codes.get("CODE7"), codes.get("CODE199")), (128, Some(&2), None));
        assert_eq!(stats.errors.load(Ordering::Relaxed), 202);
    }
}
