//! The engine: all shards, the redo log and the store, without any knowledge of commands or sockets.
//!
//! | thread | does |
//! |---|---|
//! | `shard-N` | work that may wait, and every 100 ms the shard's timer: expiry sweep, garbage, dead namespaces |
//! | `backup` | see [`backup`] |
//! | `flush`, `watch`, `free`, `compact`, `read-N` | see [`crate::shard::background`] |
//! | `log` | see [`crate::log`] |
//!
//! It is opened and closed in [`crate::shard::open`].

pub mod backup;
pub mod checkpoint;
pub mod disk;
pub mod eviction;
pub mod long;
pub mod options;
pub mod readers;
mod straight;
pub mod watch;

pub use options::{EngineOptions, Sizes};

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};

use crate::codec::NsId;
use crate::error::{Error, Result};
use crate::log::{self, Io, Log, Lsn};
use crate::store::Store;

use crate::shard::actor::{Guest, Job, Lease, ShardSet, Shards};
use crate::shard::engine::checkpoint::Kept;
use crate::shard::engine::disk::Disk;
use crate::shard::engine::eviction::Eviction;
use crate::shard::engine::long::Long;
use crate::shard::engine::readers::{Counts, Readers};
use crate::shard::memory::blind::{self, Counting};
use crate::shard::memory::garbage::Reclaim;
use crate::shard::memory::libraries::Library;
use crate::shard::memory::names::Names;
use crate::shard::memory::object::Body;
use crate::shard::memory::tracked::Trackers;
use crate::shard::memory::uses::Uses;
use crate::shard::router::{Router, ShardId};
use crate::shard::txn::changes::SweptKey;
use crate::shard::txn::{Mark, Txn, WriteSet};
use crate::util::bell::Bell;

/// Bits of [`Engine::gate`]: reasons for a command to stop and look. All clear on the fast path.
pub mod gate {
    /// The log is being replayed.
    pub const LOADING: u32 = 1;
    /// CLIENT PAUSE is in force.
    pub const PAUSED: u32 = 2;
    /// The log refuses writes.
    pub const REFUSED: u32 = 4;
    /// Writers are slowed.
    pub const SLOWED: u32 = 8;
    /// The server is going down.
    pub const STOPPING: u32 = 16;
    /// There is no room on the disk for what adds.
    pub const FULL: u32 = 32;
}

/// Delay of a writer when the dirty budget is used up, µs.
pub const MOST_DELAY_US: u64 = 20_000;

/// Runs of one partition that wait for compaction, at which writes are refused: every read of the partition looks into each
/// of them.
pub const RUNS_REFUSED: u64 = 128;

/// Both ends of the queue of work for the space of what is dead; `None` once the engine stops.
type Reclaims = (Sender<Option<(ShardId, Reclaim)>>, Receiver<Option<(ShardId, Reclaim)>>);

/// Counters of flushes, and of the runs in the store that wait for compaction: of all partitions, and of the worst.
#[derive(Debug, Default)]
#[expect(missing_docs, reason = "the names INFO gives them")]
pub struct EngineStats {
    pub flushes: AtomicU64,
    pub flushed_records: AtomicU64,
    pub flush_errors: AtomicU64,
    pub flush_us: AtomicU64,
    /// Of partitions, for what is dead in them.
    pub compactions: AtomicU64,
    /// That went because all they held was dead.
    pub dropped_tables: AtomicU64,
    pub replayed_records: AtomicU64,
    pub last_flush_ms: AtomicU64,
    /// How long the last one took.
    pub last_flush_us: AtomicU64,
    /// When the running one began, Unix ms; 0 while none runs.
    pub flush_since_ms: AtomicU64,
    /// `flushed_records` as it began.
    pub flushed_before: AtomicU64,
    /// Flushes that have failed since one has not.
    pub failed_in_a_row: AtomicU64,
    /// Bytes of the log after the last flush, or at the start.
    pub log_base_bytes: AtomicU64,
    /// Keys at the start, and those in memory that had expired by then.
    pub loaded_keys: AtomicU64,
    pub loaded_expired: AtomicU64,
    /// Big bodies that were freed aside.
    pub freed_bodies: AtomicU64,
    pub level0_runs: AtomicU64,
    pub level0_runs_max: AtomicU64,
    pub store_reopens: AtomicU64,
}

/// Flushes, as INFO tells of them.
#[derive(Debug, Clone, Copy)]
pub struct Flushing {
    /// One is asked for and has not begun.
    pub asked: bool,
    /// One runs, or is about to.
    pub running: bool,
    /// When the running one began, Unix ms; 0 while none runs.
    pub since_ms: u64,
    /// Objects that it has brought.
    pub brought: u64,
    /// How many there were, and how long the last one took.
    pub count: u64,
    /// See `count`.
    pub last_us: u64,
}

/// Looks at who waits for the keys of a shard.
pub type Serve = Box<dyn Fn(ShardId) + Send + Sync>;

/// Tells what a sweep has removed, under the lease of its commit: the names that were, and the commit's LSN.
pub type TellSwept = Box<dyn Fn(&Names, &[SweptKey], Lsn) + Send + Sync>;

/// All shards with their log and store.
pub struct Engine {
    /// Key → shard.
    pub router: Router,
    /// The shards, by id.
    pub shards: Shards,
    /// How many wait for an exact count of keys.
    pub(in crate::shard) counting: Arc<AtomicUsize>,
    /// The redo log.
    pub log: Arc<Log>,
    /// fjall.
    pub store: Arc<Store>,
    /// Has those served who wait for a key that a sweep has removed.
    pub serve: OnceLock<Serve>,
    /// Tells those who hear of it what sweeps remove.
    pub tell_swept: OnceLock<TellSwept>,
    /// Whether anybody hears of that.
    pub hears_swept: AtomicBool,
    /// Makes a library of its code, as it is found at the start.
    pub make_library: OnceLock<MakeLibrary>,
    /// Who reads the store for commands that wait for it.
    pub readers: Readers,
    /// Who runs commands in slices.
    pub long: Long,
    /// Clients that keep copies of keys.
    pub trackers: Arc<Trackers>,
    /// What is kept of the uses of objects.
    pub uses: Arc<Uses>,
    /// Clients that watch keys.
    pub watching: AtomicUsize,
    pub(in crate::shard) counts: Counts,
    /// The backup that is being made, and the last one.
    pub backups: backup::Backups,
    /// I/O of the log; its named steps also mark the steps of a flush.
    pub io: Arc<dyn Io>,
    /// The options it was opened with.
    pub options: EngineOptions,
    /// Reasons for a command to stop and look; see [`gate`].
    pub gate: AtomicU32,
    /// Counters.
    pub stats: EngineStats,
    /// Memory of all shard tables.
    pub table_budget: AtomicU64,
    /// The same, with what the second-level caches left of theirs when somebody last looked.
    pub table_limit: AtomicU64,
    /// Memory of the second-level cache.
    pub(in crate::shard) cold_budget: AtomicU64,
    /// The cores are to follow these two.
    pub(in crate::shard) resized: AtomicBool,
    /// Commands that have come to the server by now, as it tells now and then: some ask no shard.
    pub heard: AtomicU64,
    /// Dirty bytes at which writers wait.
    pub dirty_budget: AtomicU64,
    /// Log size at which a flush begins.
    pub log_limit: AtomicU64,
    /// Delay of writers while much is dirty or waits for compaction, µs; 0 while there is room.
    pub write_delay_us: AtomicU64,
    /// Delay of those that may add while little room is left on the disk, and keys are evicted for more, µs.
    pub room_delay_us: AtomicU64,
    /// The expiry sweep runs (DEBUG SET-ACTIVE-EXPIRE).
    pub active_expire: AtomicBool,
    /// Room on the disk.
    pub disk: Disk,
    /// Keys that go to make some.
    pub eviction: Eviction,
    /// Threads stop.
    pub stopping: AtomicBool,
    /// What is noted on disk of log and store.
    pub(in crate::shard) checkpoint: parking_lot::Mutex<Kept>,
    /// Work for the space of what is dead, at most one piece for each shard.
    pub(in crate::shard) reclaims: Reclaims,
    /// Garbage or a dead namespace waits for a flush.
    pub(in crate::shard) reclaim: AtomicBool,
    /// Why the last flush failed, if it did.
    pub(in crate::shard) flush_failure: parking_lot::Mutex<Option<Arc<str>>>,
    /// Why the store's compactions have ended, until they have gone on for a while.
    pub(in crate::shard) store_failure: parking_lot::Mutex<Option<Arc<str>>>,
    /// One flush at a time.
    pub(in crate::shard) flush_lock: parking_lot::Mutex<()>,
    /// Timers run under one of these: as many at once as leave half of the cores to the network threads. Nobody blocks on one: the jobs of
    /// a thread that did would wait with it.
    pub(in crate::shard) turns: Vec<parking_lot::Mutex<()>>,
    /// The same, of what they do with the disk.
    pub(in crate::shard) long_turns: Vec<parking_lot::Mutex<()>>,
    /// No timer begins a turn.
    #[cfg(test)]
    pub(crate) timers_rest: AtomicBool,
    pub(in crate::shard) flush_wake: (parking_lot::Mutex<bool>, parking_lot::Condvar),
    /// When the last flush that the flusher has run began.
    pub(in crate::shard) flushed_at: parking_lot::Mutex<Instant>,
    /// Big bodies to be freed.
    pub(in crate::shard) trash: crossbeam_channel::Receiver<Box<Body>>,
    /// Wakes the thread that frees them.
    pub(in crate::shard) freer: Bell,
    pub(in crate::shard) threads: parking_lot::Mutex<Vec<std::thread::JoinHandle<()>>>,
    pub(in crate::shard) thread_work: parking_lot::Mutex<Vec<crossbeam_channel::Receiver<(ShardSet, Job)>>>,
    pub(in crate::shard) replay: parking_lot::Mutex<Option<log::Replay>>,
    pub(in crate::shard) first_names: Arc<Names>,
}

/// Makes a library of its code; `None` if the code does not even say its name.
pub type MakeLibrary = fn(&[u8]) -> Option<Library>;

/// Why the engine does not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Directory, lock file, superblock or fjall.
    #[error(transparent)]
    Store(#[from] crate::store::StoreError),
    /// The redo log.
    #[error(transparent)]
    Log(#[from] log::OpenError),
    /// A part of the data directory is missing, cut or from another time.
    #[error("{dir} is not whole: {what}. Put the right part back, or accept the loss: tarn check --repair {dir}")]
    Lost {
        /// The data directory.
        dir: PathBuf,
        /// What is missing.
        what: String,
    },
    /// A part belongs to another data directory: no repair makes sense of it.
    #[error("{dir} holds a part of another data directory: {what}. Put the right part back, or remove the wrong one")]
    Foreign {
        /// The data directory.
        dir: PathBuf,
        /// Which part.
        what: String,
    },
    /// A record of the log or of the store cannot be understood.
    #[error("{0}")]
    Record(String),
}

impl Engine {
    /// The name → id map as it was at the start; a session follows the current one from its first lease on.
    pub fn first_names(&self) -> Arc<Names> {
        self.first_names.clone()
    }

    /// Sets or clears a bit of the gate; what the gate was before.
    pub fn set_gate(&self, bit: u32, on: bool) -> u32 {
        if on { self.gate.fetch_or(bit, Ordering::SeqCst) } else { self.gate.fetch_and(!bit, Ordering::SeqCst) }
    }

    /// All shard ids.
    pub fn all_shards(&self) -> ShardSet {
        (0..self.shards.count() as ShardId).collect()
    }

    /// The cores of these shards, if none of them is taken for longer than a moment.
    #[inline]
    pub fn try_lease(&self, shards: &[ShardId]) -> Option<Lease<'_>> {
        self.shards.try_lease(shards)
    }

    /// The cores of these shards, waited for; never on a network thread.
    pub fn lease(&self, shards: &[ShardId]) -> Lease<'_> {
        debug_assert!(shards.is_sorted(), "cores are taken in ascending order");
        shards.iter().map(|&s| self.shards.at(s).core()).collect()
    }

    /// Has a job run as soon as its shards are free, by whoever frees them.
    pub fn post(&self, shards: ShardSet, job: Job) {
        self.shards.post(shards, job, None);
    }

    /// The same for a job that may be another's guest: earlier than its shard is free.
    pub fn post_guest(&self, shards: ShardSet, job: Job, guest: Option<Guest>) {
        self.shards.post(shards, job, guest);
    }

    /// Has a job run on the thread of its first shard, where it may wait for the disk.
    pub fn post_blocking(&self, shards: ShardSet, job: Job) {
        let first = shards.first().copied().unwrap_or(0);
        // If the threads have stopped, the job's reply channel closes with it.
        self.shards.at(first).post_to_thread(shards, job);
    }

    /// Runs a transaction on the calling thread, which may wait.
    pub fn transact<R>(
        &self,
        shards: &[ShardId],
        now_ms: u64,
        run: impl FnOnce(&mut Txn<'_, '_>) -> Result<R>,
    ) -> Result<R> {
        let mut set = WriteSet::default();
        let mut lease = self.lease(shards);
        let mut txn = Txn::new(&mut lease, &self.router, &mut set, now_ms, true);
        let result = run(&mut txn);
        match &result {
            Ok(_) => {
                txn.commit(&self.log);
            }
            Err(_) => txn.rollback_to(Mark::default()),
        }
        let need = txn.need;
        drop(lease);
        self.write_out(need);
        result
    }

    /// The right of a shard's timer to run as long as the guard lives, if not too many do.
    pub fn try_turn(&self, shard: ShardId) -> Option<parking_lot::MutexGuard<'_, ()>> {
        self.turns[shard as usize % self.turns.len()].try_lock()
    }

    /// Whether no timer is to do anything, which a test may ask for; looked at by who has the turn, so that who takes it after asking
    /// knows that none does.
    pub(in crate::shard) fn timers_rest(&self) -> bool {
        #[cfg(test)]
        return self.timers_rest.load(Ordering::Relaxed);
        #[cfg(not(test))]
        false
    }

    /// The right to what a shard's timer does with the disk, if nobody is at it.
    pub fn try_long_turn(&self, shard: ShardId) -> Option<parking_lot::MutexGuard<'_, ()>> {
        self.long_turns[shard as usize % self.long_turns.len()].try_lock()
    }

    /// Lives with other sizes from now on. The thread `watch` brings the cores to follow.
    pub fn resize(&self, sizes: Sizes) {
        self.table_budget.store(sizes.tables, Ordering::Relaxed);
        self.table_limit.store(sizes.tables, Ordering::Relaxed);
        self.cold_budget.store(sizes.cold, Ordering::Relaxed);
        self.dirty_budget.store(sizes.dirty, Ordering::Relaxed);
        self.log_limit.store(sizes.log, Ordering::Relaxed);
        self.resized.store(true, Ordering::Release);
    }

    /// Dirty bytes of all shards, gathered ones included.
    pub fn dirty_bytes(&self) -> usize {
        self.shards.iter().map(|s| s.dirty_bytes()).sum()
    }

    /// How long a writer is to wait before its next command, µs, after so many pauses for what it has sent at once: once, and again
    /// and again where the dirty budget is used up; for room on the disk, which only who may add needs, no longer than about a
    /// second, and not where eviction finds nothing to make it with. Then it is refused.
    pub fn pause_us(&self, adds: bool, pauses: u32) -> u64 {
        const MOST_FOR_ROOM: u32 = 50;
        let delay = |delay: &AtomicU64, again: bool| {
            let delay_us = delay.load(Ordering::Relaxed);
            if pauses == 0 || delay_us >= MOST_DELAY_US && again { delay_us } else { 0 }
        };
        let memory = delay(&self.write_delay_us, true);
        if !adds || self.eviction.is_in_vain() {
            return memory;
        }
        memory.max(delay(&self.room_delay_us, pauses < MOST_FOR_ROOM))
    }

    /// Why writes are refused now, if they are: the log takes none; the dirty budget is used up and flushes fail, so
    /// that a writer would wait for ever; or so many runs wait for compaction that reads would degrade (rule 13).
    pub fn refusal(&self) -> Option<Arc<str>> {
        let stuck = || {
            let full = self.write_delay_us.load(Ordering::Relaxed) >= MOST_DELAY_US;
            self.flush_failure.lock().clone().filter(|_| full)
        };
        self.log.health().or_else(stuck).or_else(|| self.runs_refusal())
    }

    /// Whether the last flush failed.
    pub fn flush_fails(&self) -> bool {
        self.flush_failure.lock().is_some()
    }

    /// What there is to tell of flushes.
    pub fn flushing(&self) -> Flushing {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let stats = &self.stats;
        let since_ms = load(&stats.flush_since_ms);
        let brought = load(&stats.flushed_records).saturating_sub(load(&stats.flushed_before));
        // On its own: a guard within the literal would be held to the end of it.
        let asked = *self.flush_wake.0.lock();
        Flushing {
            asked,
            running: asked || self.flush_lock.is_locked(),
            since_ms,
            brought: if since_ms == 0 { 0 } else { brought },
            count: load(&stats.flushes),
            last_us: load(&stats.last_flush_us),
        }
    }

    /// Big bodies that wait to be freed.
    pub fn bodies_to_free(&self) -> usize {
        self.trash.len()
    }

    /// Whether a flush is running, or asked for and about to.
    pub fn is_flushing(&self) -> bool {
        *self.flush_wake.0.lock() || self.flush_lock.is_locked()
    }

    /// Asks for a flush, even below the thresholds.
    pub fn ask_flush(&self) {
        *self.flush_wake.0.lock() = true;
        self.flush_wake.1.notify_one();
    }

    /// Has the flusher see that one is due, or that the engine stops.
    pub(in crate::shard) fn wake_flusher(&self) {
        // Under the lock: it may have looked and be about to sleep.
        let _asked = self.flush_wake.0.lock();
        self.flush_wake.1.notify_one();
    }

    /// Garbage or a dead namespace waits for a flush.
    pub(in crate::shard) fn want_reclaim(&self) {
        self.reclaim.store(true, Ordering::Relaxed);
    }

    /// Why the store's compactions have ended, if they have.
    pub fn store_failure(&self) -> Option<Arc<str>> {
        self.store_failure.lock().clone()
    }

    /// Why writes are refused on account of the runs that wait for compaction, if they are.
    fn runs_refusal(&self) -> Option<Arc<str>> {
        let runs = self.stats.level0_runs_max.load(Ordering::Relaxed);
        (runs >= RUNS_REFUSED).then(|| match self.store_failure() {
            Some(why) => format!("{why}: {runs} runs of records wait for it").into(),
            None => format!("compaction has fallen behind: {runs} runs of records wait for it").into(),
        })
    }

    /// Has the log write what was appended, for commits that no connection waits for; its own thread may do so, later.
    pub fn write_out(&self, lsn: log::Lsn) {
        if lsn > self.log.written() {
            self.log.commit(lsn);
        }
    }

    /// Whom to tell what sweeps remove, if anybody hears of it.
    pub(in crate::shard) fn tells_swept(&self) -> Option<&TellSwept> {
        if self.hears_swept.load(Ordering::Relaxed) { self.tell_swept.get() } else { None }
    }

    /// As long as the guard lives no key becomes blind: once all are sighted, the counts are exact.
    pub fn counting(&self) -> Counting {
        blind::counting(&self.counting)
    }

    /// Keys of a namespace, over all shards under lease; blind ones may count twice.
    pub fn count(txn: &Txn<'_, '_>, ns: NsId) -> u64 {
        txn.lease.iter().map(|core| core.count(ns)).sum()
    }

    /// The work of the shards' threads, of which there are none without `background`.
    #[cfg(test)]
    pub fn take_thread_work(&self) -> Vec<(ShardSet, Job)> {
        self.thread_work.lock().iter().flat_map(crossbeam_channel::Receiver::try_iter).collect()
    }

    /// Keys of a namespace, over all shards under lease.
    ///
    /// # Errors
    /// `Uncounted`: some are blind.
    pub fn exact_count(txn: &Txn<'_, '_>, ns: NsId) -> Result<u64> {
        match txn.lease.iter().any(|core| core.blind.of(ns) > 0) {
            true => Err(Error::Uncounted),
            false => Ok(Engine::count(txn, ns)),
        }
    }

    /// Waits until whoever holds a core now has given it back, but no longer than this; whether that is so.
    pub fn wait_idle(&self, most: Duration) -> bool {
        let end = Instant::now() + most;
        self.shards.iter().all(|shard| shard.core_until(end).is_some())
    }
}

/// Bytes of all tables of the store.
fn store_bytes(store: &Store) -> u64 {
    store.partitions().iter().map(|p| p.disk_bytes()).sum()
}

/// Whether a read of the store may have to wait for the disk.
pub(in crate::shard) fn is_cold(store: &Store, options: &EngineOptions) -> bool {
    store_bytes(store) > options.block_cache as u64 / 2
}

/// Cores that the process may use, as of its start: the system reads files to tell.
pub fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// Threads for a piece of background work that can be divided: few beside those that serve.
pub fn background_threads() -> usize {
    (cores() / 4).clamp(1, 8)
}

/// A thread with a name, one of background work if `nice` is not 0.
pub fn spawn(name: String, nice: i32, run: impl FnOnce() + Send + 'static) -> std::thread::JoinHandle<()> {
    let body = move || {
        crate::util::sys::to_background(nice);
        run();
    };
    match std::thread::Builder::new().name(name).spawn(body) {
        Ok(handle) => handle,
        Err(error) => {
            tracing::error!(%error, "cannot start a thread");
            std::process::exit(1);
        }
    }
}
