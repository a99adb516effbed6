//! What all connections share: engine, configuration, clients, counters.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::sync::watch;

use super::buffers::Buffers;
use super::effects::Ran;
use super::session::Client;
use super::table::Table;
use crate::config::budget::{Budget, Machine};
use crate::config::{Config, Settings};
use crate::shard::Engine;
use crate::shard::engine::gate;
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
    /// Turns of the thread: how often it woke, and nanoseconds until it slept again.
    pub turns: [AtomicU64; 2],
    /// When it woke last, in ticks.
    pub woke_at: AtomicU64,
    /// What the system calls the thread.
    pub thread_id: std::sync::atomic::AtomicU32,
    /// Open connections.
    pub clients: AtomicU64,
    /// By slot of the command table: calls, rejected calls, failed calls, and nanoseconds that they ran.
    pub calls: Vec<[AtomicU64; 4]>,
    /// Errors by their code word.
    pub error_codes: parking_lot::Mutex<BTreeMap<String, u64>>,
}

impl ThreadStats {
    /// Counters for a table of this many slots.
    pub fn new(slots: usize) -> Self {
        ThreadStats { calls: (0..slots).map(|_| Default::default()).collect(), ..Default::default() }
    }

    /// Counts a command that ran within another one.
    pub fn count_ran(&self, Ran { slot, error }: &Ran) {
        bump(&self.commands, 1);
        bump(&self.calls[*slot as usize][0], 1);
        if let Some(reply) = error {
            bump(&self.calls[*slot as usize][2], 1);
            self.count_error(reply);
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
                self.ring[self.next][at] = now.saturating_sub(before) * 1_000_000 / passed_us;
            }
            self.next = (self.next + 1) % SAMPLES;
        }
        self.last = Some((now_us, counters));
    }

    /// By how much they grow in a second.
    pub fn per_second(&self) -> [u64; RATES] {
        std::array::from_fn(|at| self.ring.iter().map(|sample| sample[at]).sum::<u64>() / SAMPLES as u64)
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
    /// Listens as these settings say from now on; set by who listens.
    pub listen_anew: OnceLock<ListenAnew>,
    /// What TLS is spoken with.
    pub tls: crate::tls::Tls,
    /// A password is required.
    pub password_required: AtomicBool,
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
    /// 40 hexadecimal digits, as INFO's `master_replid`.
    pub replication_id: parking_lot::Mutex<String>,
}

impl Server {
    /// A server that has no connections yet.
    pub fn new(engine: Arc<Engine>, config: Config, table: &'static Table) -> Self {
        let password_required = !config.settings().requirepass.0.is_empty();
        let now_ms = now_ms();
        let events = config.settings().notify_keyspace_events;
        engine.trackers.set_most_keys(config.settings().tracking_table_max_keys);
        let server = Server {
            table,
            engine,
            budget: parking_lot::Mutex::new(Budget::new(&config.settings(), &Machine::read())),
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
            listen_anew: OnceLock::new(),
            tls: Default::default(),
            password_required: password_required.into(),
            shutdown: watch::channel(None).0,
            startup_bytes: 0.into(),
            last_save_s: (now_ms / 1000).into(),
            cursors: Default::default(),
            element_cursors: Default::default(),
            rates: Default::default(),
            baseline: Default::default(),
            replication_id: parking_lot::Mutex::new(random_hex()),
        };
        server.set_events(events);
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

    /// Ends the pause, if it is over by then.
    pub fn end_pause(&self, by_ms: u64) {
        self.pause.send_if_modified(|pause| {
            let ends = pause.until_ms <= by_ms;
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
            for (sum, calls) in totals.calls.iter_mut().zip(&thread.calls) {
                for (sum, count) in sum.iter_mut().zip(calls) {
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

    /// Sums a counter over all network threads.
    pub fn total(&self, counter: impl Fn(&ThreadStats) -> u64) -> u64 {
        self.threads.lock().iter().map(|t| counter(t)).sum()
    }
}
