//! The engine: all shards, the redo log and the store, without any knowledge of commands or sockets.
//!
//! | thread | does |
//! |---|---|
//! | `shard-N` | work that may wait, and every 100 ms the shard's timer: expiry sweep, garbage, dead namespaces |
//! | `flush`, `watch`, `free`, `compact` | see [`background`] |
//! | `log` | see [`crate::log`] |
//!
//! Opening: superblock and lock file, checkpoint, log, store, namespaces, counts; then [`Engine::replay`] brings the log's records into
//! the tables; only then may commands run.

mod background;
mod steps;

pub use background::RUNS_REFUSED;
#[cfg(test)]
pub(super) use steps::Flush;
pub use steps::FlushError;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use siphasher::sip::SipHasher13;

use crate::codec::{self, NamespaceMap, NsId};
use crate::error::Result;
use crate::log::{self, Io, Log};
use crate::store::{Create, DataDir, Store, StoreError, StoreOptions};

use super::actor::{self, Crossing, Job, Lease, Shard, ShardSet};
use super::checkpoint::{self, Checkpoint, Kept, Trust, lost};
use super::cold::ColdCache;
use super::core::{Core, ShardId};
use super::garbage::Queue;
use super::names::Names;
use super::object::Body;
use super::txn::{Mark, Txn, WriteSet};

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
}

/// Hashes keys and names their shards.
#[derive(Debug, Clone)]
pub struct Router {
    hasher: SipHasher13,
    shards: u64,
}

impl Router {
    /// A router for this hash key and number of shards, both from the superblock.
    pub fn new(key: [u64; 2], shards: u16) -> Self {
        Router { hasher: SipHasher13::new_with_keys(key[0], key[1]), shards: u64::from(shards) }
    }

    /// Hash of the whole key.
    #[inline]
    pub fn hash(&self, key: &[u8]) -> u64 {
        self.hasher.hash(key)
    }

    /// The shard of a key whose hash is known: that of its `{tag}` where it has one.
    #[inline]
    pub fn shard(&self, hash: u64, key: &[u8]) -> ShardId {
        let hash = match hash_tag(key) {
            Some(tag) => self.hasher.hash(tag),
            None => hash,
        };
        (((hash >> 32) * self.shards) >> 32) as ShardId
    }

    /// The shard of a key.
    pub fn shard_of(&self, key: &[u8]) -> ShardId {
        self.shard(self.hash(key), key)
    }

    /// The one shard of all keys that begin so: those with a `{tag}` in what they share.
    pub fn shard_of_prefix(&self, prefix: &[u8]) -> Option<ShardId> {
        hash_tag(prefix).map(|_| self.shard_of(prefix))
    }

    /// Number of shards.
    pub fn shards(&self) -> usize {
        self.shards as usize
    }
}

/// What stands between the first `{` and the next `}`, unless that is nothing.
fn hash_tag(key: &[u8]) -> Option<&[u8]> {
    let open = memchr::memchr(b'{', key)?;
    let rest = &key[open + 1..];
    let close = memchr::memchr(b'}', rest)?;
    (close > 0).then(|| &rest[..close])
}

/// Delay of a writer when the dirty budget is used up, µs.
pub const MOST_DELAY_US: u64 = 20_000;

/// Bodies that wait to be freed at most.
const MOST_TRASH: usize = 1024;

/// What the engine is told at its start. Sizes in bytes.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Data directory.
    pub dir: PathBuf,
    /// Shards for a new data directory; `None` accepts what an existing one has.
    pub shards: Option<u16>,
    /// Numbered databases.
    pub databases: u32,
    /// When the log is synced.
    pub fsync: log::Fsync,
    /// Memory of all shard tables.
    pub table_budget: usize,
    /// Of that, what may be dirty or in flight.
    pub dirty_budget: usize,
    /// Memory of the second-level cache.
    pub cold_budget: usize,
    /// fjall's block cache.
    pub block_cache: usize,
    /// Size at which the log is flushed away.
    pub log_limit: u64,
    /// Nice value of background threads.
    pub nice: i32,
    /// Runs timers and flushes on threads of their own. Tests that step by hand turn it off.
    pub background: bool,
}

/// What may change while the engine runs, as in [`EngineOptions`]; bytes.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Memory of all shard tables.
    pub tables: u64,
    /// Of that, what may be dirty or in flight.
    pub dirty: u64,
    /// Memory of the second-level cache.
    pub cold: u64,
    /// Size at which the log is flushed away.
    pub log: u64,
}

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
    pub replayed_records: AtomicU64,
    pub last_flush_ms: AtomicU64,
    pub level0_runs: AtomicU64,
    pub level0_runs_max: AtomicU64,
    pub store_reopens: AtomicU64,
}

/// All shards with their log and store.
pub struct Engine {
    /// Key → shard.
    pub router: Router,
    /// The shards, by id.
    pub shards: Vec<Arc<Shard>>,
    crossing: Arc<Crossing>,
    /// The redo log.
    pub log: Arc<Log>,
    /// fjall.
    pub store: Arc<Store>,
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
    /// Memory of the second-level cache.
    cold_budget: AtomicU64,
    /// The cores are to follow these two.
    resized: AtomicBool,
    /// Dirty bytes at which writers wait.
    pub dirty_budget: AtomicU64,
    /// Log size at which a flush begins.
    pub log_limit: AtomicU64,
    /// Delay of writers, µs; 0 while there is room.
    pub write_delay_us: AtomicU64,
    /// The expiry sweep runs (DEBUG SET-ACTIVE-EXPIRE).
    pub active_expire: AtomicBool,
    /// Threads stop.
    pub stopping: AtomicBool,
    /// What is noted on disk of log and store.
    pub(super) checkpoint: parking_lot::Mutex<Kept>,
    /// Shards whose partitions are to be compacted for what is dead in them, each once.
    compactions: (crossbeam_channel::Sender<ShardId>, crossbeam_channel::Receiver<ShardId>),
    /// Garbage or a dead namespace waits for a flush.
    reclaim: AtomicBool,
    /// Why the last flush failed, if it did.
    flush_failure: parking_lot::Mutex<Option<Arc<str>>>,
    /// Why the store's compactions have ended, until they have gone on for a while.
    store_failure: parking_lot::Mutex<Option<Arc<str>>>,
    /// One flush at a time.
    flush_lock: parking_lot::Mutex<()>,
    /// Timers run under one of these: as many at once as leave half of the cores to the network threads.
    turns: Vec<parking_lot::Mutex<()>>,
    flush_wake: (parking_lot::Mutex<bool>, parking_lot::Condvar),
    /// Big bodies to be freed.
    trash: crossbeam_channel::Receiver<Box<Body>>,
    threads: parking_lot::Mutex<Vec<std::thread::JoinHandle<()>>>,
    thread_work: parking_lot::Mutex<Vec<crossbeam_channel::Receiver<(ShardSet, Job)>>>,
    replay: parking_lot::Mutex<Option<log::Replay>>,
    first_names: Arc<Names>,
    /// For commits whose end nobody waits for.
    waiter: log::WaiterId,
}

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
    /// Opens a data directory, creating it if need be. Commands may run after [`Engine::replay`].
    pub fn open(io: Arc<dyn Io>, options: EngineOptions) -> Result<Arc<Engine>, OpenError> {
        let store = StoreOptions {
            shards: options.shards,
            cache_bytes: options.block_cache as u64,
            nice: Some(options.nice),
            ..StoreOptions::default()
        };
        let (store, log, replay, kept) = open_parts(&io, &options, store)?;
        let shards = store.superblock().shards;
        let router = Router::new(store.superblock().hash_key, shards);
        let log = Arc::new(log);
        let waiter = log.register(Box::new(|| ()));
        let names = Arc::new(load_names(&store, options.databases)?);
        let mut list = Vec::with_capacity(shards as usize);
        let mut work = Vec::with_capacity(shards as usize);
        let crossing = Arc::new(Crossing::default());
        let (thrown_away, trash) = crossbeam_channel::bounded(MOST_TRASH);
        for shard in 0..shards {
            let trash = thrown_away.clone();
            let core = open_core(shard, &store, &options, names.clone(), shards, &log, trash)?;
            let (tx, rx) = crossbeam_channel::unbounded();
            list.push(Arc::new(Shard::new(core, crossing.clone(), tx)));
            work.push(rx);
        }
        crossing.set_shards(&list);
        Ok(Arc::new(Engine {
            router,
            shards: list,
            crossing,
            log,
            waiter,
            store,
            io,
            gate: AtomicU32::new(gate::LOADING),
            stats: EngineStats::default(),
            first_names: names.clone(),
            table_budget: AtomicU64::new(options.table_budget as u64),
            cold_budget: AtomicU64::new(options.cold_budget as u64),
            resized: AtomicBool::new(false),
            dirty_budget: AtomicU64::new(options.dirty_budget as u64),
            log_limit: AtomicU64::new(options.log_limit),
            write_delay_us: AtomicU64::new(0),
            active_expire: AtomicBool::new(true),
            stopping: AtomicBool::new(false),
            checkpoint: parking_lot::Mutex::new(kept),
            compactions: crossbeam_channel::unbounded(),
            reclaim: AtomicBool::new(false),
            flush_failure: parking_lot::Mutex::new(None),
            store_failure: parking_lot::Mutex::new(None),
            flush_lock: parking_lot::Mutex::new(()),
            turns: (0..(cores() / 2).max(1)).map(|_| Default::default()).collect(),
            flush_wake: Default::default(),
            trash,
            threads: parking_lot::Mutex::new(Vec::new()),
            thread_work: parking_lot::Mutex::new(work),
            replay: parking_lot::Mutex::new(Some(replay)),
            options,
        }))
    }

    /// Brings the log's records into the tables, then starts the threads. Call once, before any command.
    pub fn replay(self: &Arc<Self>) -> Result<(), OpenError> {
        if let Some(replay) = self.replay.lock().take() {
            super::replay::run(self, replay)?;
        }
        self.set_gate(gate::LOADING, false);
        if self.options.background {
            self.start_threads();
        }
        Ok(())
    }

    /// The name → id map as it was at the start; a session follows the current one from its first lease on.
    pub fn first_names(&self) -> Arc<Names> {
        self.first_names.clone()
    }

    /// Sets or clears a bit of the gate.
    pub fn set_gate(&self, bit: u32, on: bool) {
        if on {
            self.gate.fetch_or(bit, Ordering::SeqCst);
        } else {
            self.gate.fetch_and(!bit, Ordering::SeqCst);
        }
    }

    fn start_threads(self: &Arc<Self>) {
        let mut threads = self.threads.lock();
        for (id, work) in self.thread_work.lock().drain(..).enumerate() {
            let engine = self.clone();
            let run = move || super::timer::shard_thread(&engine, id as ShardId, &work);
            threads.push(spawn(format!("shard-{id}"), 0, run));
        }
        threads.extend(self.start_background());
    }

    /// All shard ids.
    pub fn all_shards(&self) -> ShardSet {
        (0..self.shards.len() as ShardId).collect()
    }

    /// The cores of these shards, if none of them is taken.
    #[inline]
    pub fn try_lease(&self, shards: &[ShardId]) -> Option<Lease<'_>> {
        actor::try_lease(&self.shards, shards)
    }

    /// The cores of these shards, waited for; never on a network thread.
    pub fn lease(&self, shards: &[ShardId]) -> Lease<'_> {
        debug_assert!(shards.is_sorted(), "cores are taken in ascending order");
        shards.iter().map(|&s| self.shards[s as usize].core()).collect()
    }

    /// Has a job run as soon as its shards are free, by whoever frees them.
    pub fn post(&self, shards: ShardSet, job: Job) {
        match shards[..] {
            [one] => self.shards[one as usize].post(job),
            _ => self.crossing.post(shards, job),
        }
    }

    /// Has a job run on the thread of its first shard, where it may wait for the disk.
    pub fn post_blocking(&self, shards: ShardSet, job: Job) {
        let first = shards.first().copied().unwrap_or(0);
        // If the threads have stopped, the job's reply channel closes with it.
        self.shards[first as usize].post_to_thread(shards, job);
    }

    /// Runs a transaction on the calling thread, which may wait.
    pub fn transact<R>(
        &self,
        shards: &[ShardId],
        now_ms: u64,
        run: impl FnOnce(&mut Txn<'_, '_>) -> Result<R>,
    ) -> Result<R> {
        let mut set = WriteSet::default();
        let lease = self.lease(shards);
        let mut txn = Txn::new(lease, &self.router, &mut set, now_ms, true);
        let result = run(&mut txn);
        match &result {
            Ok(_) => {
                txn.commit(&self.log);
            }
            Err(_) => txn.rollback_to(Mark::default()),
        }
        let need = txn.need;
        drop(txn);
        self.write_out(need);
        result
    }

    /// Waits until a shard's timer may run; it does so as long as the guard lives.
    pub fn turn(&self, shard: ShardId) -> parking_lot::MutexGuard<'_, ()> {
        self.turns[shard as usize % self.turns.len()].lock()
    }

    /// Lives with other sizes from now on. The thread `watch` brings the cores to follow.
    pub fn resize(&self, sizes: Sizes) {
        self.table_budget.store(sizes.tables, Ordering::Relaxed);
        self.cold_budget.store(sizes.cold, Ordering::Relaxed);
        self.dirty_budget.store(sizes.dirty, Ordering::Relaxed);
        self.log_limit.store(sizes.log, Ordering::Relaxed);
        self.resized.store(true, Ordering::Release);
        self.wake_flusher(false);
    }

    /// Dirty bytes of all shards, gathered ones included.
    pub fn dirty_bytes(&self) -> usize {
        self.shards.iter().map(|s| s.dirty_bytes()).sum()
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

    /// Has the log write what was appended, for commits that no connection waits for.
    pub fn write_out(&self, lsn: log::Lsn) {
        if lsn > self.log.written() {
            self.log.commit(lsn, self.waiter);
        }
    }

    /// Keys of a namespace, over all shards under lease.
    pub fn count(txn: &Txn<'_, '_>, ns: NsId) -> u64 {
        txn.lease.iter().map(|core| core.count(ns)).sum()
    }

    /// The work of the shards' threads, of which there are none without `background`.
    #[cfg(test)]
    pub fn take_thread_work(&self) -> Vec<(ShardSet, Job)> {
        self.thread_work.lock().iter().flat_map(crossbeam_channel::Receiver::try_iter).collect()
    }

    /// Waits until whoever holds a core now has given it back, but no longer than this; whether that is so.
    pub fn wait_idle(&self, most: Duration) -> bool {
        let end = Instant::now() + most;
        self.shards.iter().all(|shard| shard.core_until(end).is_some())
    }

    /// Stops the threads; with `flush`, brings everything to fjall first, so that the next start need not replay.
    ///
    /// # Errors
    /// The end of the log could not be synced, and a flush did not make it superfluous: acknowledged writes may be lost.
    pub fn close(&self, flush: bool) -> std::io::Result<()> {
        self.stopping.store(true, Ordering::SeqCst);
        self.wake_flusher(false);
        for shard in &self.shards {
            // Wakes the thread; one that has ended needs no waking.
            shard.post_to_thread(ShardSet::new(), Box::new(|lease| lease));
        }
        for thread in self.threads.lock().drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the engine panicked");
            }
        }
        let mut flushed = false;
        if flush {
            match self.flush() {
                Ok(()) => flushed = true,
                Err(error) => tracing::error!(%error, "last flush failed; the log holds everything"),
            }
        }
        match self.log.close().and_then(|()| self.note_end()) {
            Err(error) if flushed => {
                tracing::warn!(%error, "the log could not be closed; the store holds everything");
                Ok(())
            }
            closed => closed,
        }
    }
}

/// Opens log and store and makes sure that they belong together. Nothing is made that an existing directory must have.
fn open_parts(
    io: &Arc<dyn Io>,
    options: &EngineOptions,
    store: StoreOptions,
) -> Result<(Arc<Store>, Log, log::Replay, Kept), OpenError> {
    let dir = &options.dir;
    let data = DataDir::open(dir, options.shards)?;
    let (owner, shards) = (data.superblock().id(), data.superblock().shards);
    let noted = Checkpoint::load(&**io, dir, owner, shards)?;
    let log_options = log::Options {
        origin: noted.as_ref().map_or(log::Origin { owner, needed_from: 0 }, Checkpoint::origin),
        ..log::Options::new(dir.join(crate::store::LOG_FOLDER), options.fsync)
    };
    let (log, replay) = Log::open(io.clone(), &log_options)?;
    let no_checkpoint = || lost(dir, format!("{} is missing", crate::store::CHECKPOINT_FILE));
    let create = match &noted {
        // As a process leaves it that ends during the first start, or this is not all there was.
        None if !replay.is_blank(&**io)? => return Err(no_checkpoint()),
        None => Create::Store,
        Some(noted) if noted.trust == Trust::Accepted => Create::Partitions,
        Some(_) => Create::Nothing,
    };
    let store = Store::open_in(data, store, create).map_err(|error| match error {
        StoreError::NoStore { .. } | StoreError::NoPartition { .. } => lost(dir, error.to_string()),
        error => error.into(),
    })?;
    let stored = checkpoint::stored(&store, dir)?;
    match &noted {
        None if stored.iter().any(|&lsn| lsn > 0) => return Err(no_checkpoint()),
        None => {}
        Some(noted) => noted.missing(replay.bounds(), &stored).map_or(Ok(()), |what| Err(lost(dir, what)))?,
    }
    Ok((Arc::new(store), log, replay, Kept::new(dir, noted, owner, shards)))
}

/// Bytes of all tables of the store.
fn store_bytes(store: &Store) -> u64 {
    store.partitions().iter().map(|p| p.disk_bytes()).sum()
}

fn load_names(store: &Store, databases: u32) -> Result<Names, OpenError> {
    let mut key = Vec::new();
    codec::key::names_key(&mut key);
    let map = match store.partition(0).get(&key)? {
        None => NamespaceMap::default(),
        Some(value) => NamespaceMap::decode(&value).map_err(|e| OpenError::Record(e.to_string()))?,
    };
    Ok(Names::new(map, databases))
}

fn open_core(
    shard: ShardId,
    store: &Store,
    options: &EngineOptions,
    names: Arc<Names>,
    shards: u16,
    log: &Arc<Log>,
    trash: crossbeam_channel::Sender<Box<Body>>,
) -> Result<Core, OpenError> {
    let partition = store.partition(shard).clone();
    let mut core = Core {
        shard,
        table: Default::default(),
        expiry: Default::default(),
        stored_ttl: Default::default(),
        fields: Default::default(),
        raw: Default::default(),
        counts: Default::default(),
        dirty_counts: Default::default(),
        miscounted: false,
        dirty: Vec::new(),
        in_flight: Vec::new(),
        order: None,
        order_asked_ms: 0,
        old_orders: Vec::new(),
        last_lsn: 0,
        table_bytes: 0,
        admitted: 0,
        table_limit: options.table_budget / shards as usize,
        dirty_bytes: 0,
        flight_bytes: 0,
        gathers: 0,
        generation: crate::util::time::now_ns(),
        flying: None,
        stored_lsn: 0,
        staged: Default::default(),
        log: log.clone(),
        sweep_from_ms: 0,
        dead_names: Queue::new(codec::key::tag::DEAD_NS),
        reap_from: None,
        garbage: Queue::new(codec::key::tag::GARBAGE),
        dead_bytes: 0,
        compacting: false,
        trash,
        membership: super::membership::Membership::new(codec::key::tag_range(codec::key::tag::META).lower),
        cold: ColdCache::new(options.cold_budget / shards as usize),
        names,
        stats: Default::default(),
        store_is_cold: is_cold(store, options),
        partition,
    };
    super::replay::load_small_records(&mut core)?;
    Ok(core)
}

/// Whether a read of the store may have to wait for the disk.
pub(super) fn is_cold(store: &Store, options: &EngineOptions) -> bool {
    store_bytes(store) > options.block_cache as u64 / 2
}

/// Cores that the process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
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
