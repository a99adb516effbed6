//! Opening and closing a data directory: superblock and lock file, checkpoint, log, store, namespaces, counts; then
//! [`Engine::replay`] brings the log's records into the tables; only then may commands run.

mod filters;
mod libraries;
pub mod replay;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use crate::codec::{self, NamespaceMap};
use crate::log::{self, Io, Log, Lsn, Replay};
use crate::shard::actor::Shards;
use crate::shard::background::{recount, timer};
use crate::shard::engine::background_threads;
use crate::shard::engine::checkpoint::{self, Checkpoint, Kept, LOST_LSNS, Trust, file_error, lost};
use crate::shard::engine::eviction::Eviction;
use crate::shard::engine::long::Long;
use crate::shard::engine::readers::{Counts, READERS, Readers};
use crate::shard::engine::{Engine, EngineOptions, EngineStats, OpenError, cores, gate, is_cold, spawn};
use crate::shard::memory::blind::Blind;
use crate::shard::memory::cold::ColdCache;
use crate::shard::memory::core::Core;
use crate::shard::memory::door::Doorkeeper;
use crate::shard::memory::garbage::Queue;
use crate::shard::memory::membership::Membership;
use crate::shard::memory::names::Names;
use crate::shard::memory::object::Body;
use crate::shard::memory::tracked::{Tracked, Trackers};
use crate::shard::memory::uses::Uses;
use crate::shard::router::{Router, ShardId};
use crate::store::{CHECKPOINT_FILE, Create, DataDir, Store, StoreError, StoreOptions, default_shards, table_bytes};
use crate::util::bell::Bell;

/// Bodies that wait to be freed at most.
const MOST_TRASH: usize = 1024;

impl Engine {
    /// Opens a data directory, creating it if need be. Commands may run after [`Engine::replay`].
    pub fn open(io: Arc<dyn Io>, options: EngineOptions) -> Result<Arc<Engine>, OpenError> {
        let shards = options.shards.unwrap_or_else(default_shards);
        let default = StoreOptions::default();
        let run_bytes = (options.dirty_budget / usize::from(shards)) as u64;
        let store = StoreOptions {
            shards: options.shards,
            table_bytes: if cfg!(test) { default.table_bytes } else { table_bytes(run_bytes) },
            cache_bytes: options.block_cache as u64,
            table_files: options.table_files,
            compaction_threads: background_threads(),
            nice: Some(options.nice),
            ..default
        };
        let (store, log, replay, kept) = open_parts(&io, &options, store)?;
        // Before a compaction changes their tables.
        let saved = filters::find(&options.dir, &store);
        let shards = store.superblock().shards;
        let router = Router::new(store.superblock().hash_key, shards);
        let log = Arc::new(log);
        let names = Arc::new(load_names(&store, options.databases)?);
        let mut list = Vec::with_capacity(shards as usize);
        let mut work = Vec::with_capacity(shards as usize);
        let counting = Arc::new(AtomicUsize::new(0));
        let (thrown_away, trash) = crossbeam_channel::bounded(MOST_TRASH);
        let trackers = Arc::new(Trackers::default());
        let uses = Arc::new(Uses::default());
        for (shard, saved) in (0..shards).zip(saved) {
            let trash = thrown_away.clone();
            let mut core = open_core(shard, &store, &options, names.clone(), shards, &log, trash)?;
            core.membership.was_saved(saved);
            core.blind = Blind::new(counting.clone());
            core.tracked = Tracked::new(trackers.clone());
            core.uses = uses.clone();
            let (tx, rx) = crossbeam_channel::unbounded();
            list.push((core, tx));
            work.push(rx);
        }
        Ok(Arc::new(Engine {
            router,
            shards: Shards::new(list),
            counting,
            log,
            store,
            io,
            gate: AtomicU32::new(gate::LOADING),
            trackers,
            uses,
            watching: Default::default(),
            serve: Default::default(),
            tell_swept: Default::default(),
            hears_swept: false.into(),
            make_library: Default::default(),
            stats: EngineStats::default(),
            first_names: names.clone(),
            readers: Readers::default(),
            long: Long::default(),
            counts: Counts::default(),
            backups: Default::default(),
            table_budget: AtomicU64::new(options.table_budget as u64),
            table_limit: AtomicU64::new(options.table_budget as u64),
            cold_budget: AtomicU64::new(options.cold_budget as u64),
            resized: AtomicBool::new(false),
            heard: AtomicU64::new(0),
            dirty_budget: AtomicU64::new(options.dirty_budget as u64),
            log_limit: AtomicU64::new(options.log_limit),
            write_delay_us: AtomicU64::new(0),
            room_delay_us: AtomicU64::new(0),
            active_expire: AtomicBool::new(true),
            disk: Default::default(),
            eviction: Eviction::new(shards as usize),
            stopping: AtomicBool::new(false),
            checkpoint: parking_lot::Mutex::new(kept),
            reclaims: crossbeam_channel::unbounded(),
            reclaim: AtomicBool::new(false),
            flush_failure: parking_lot::Mutex::new(None),
            store_failure: parking_lot::Mutex::new(None),
            flush_lock: parking_lot::Mutex::new(()),
            turns: (0..(cores() / 2).max(1)).map(|_| Default::default()).collect(),
            long_turns: (0..(cores() / 2).max(1)).map(|_| Default::default()).collect(),
            #[cfg(test)]
            timers_rest: Default::default(),
            flush_wake: Default::default(),
            flushed_at: parking_lot::Mutex::new(Instant::now()),
            trash,
            freer: Bell::default(),
            threads: parking_lot::Mutex::new(Vec::new()),
            thread_work: parking_lot::Mutex::new(work),
            replay: parking_lot::Mutex::new(Some(replay)),
            options,
        }))
    }

    /// Brings the log's records into the tables, then starts the threads. Call once, before any command.
    pub fn replay(self: &Arc<Self>) -> Result<(), OpenError> {
        if let Some(replay) = self.replay.lock().take() {
            crate::shard::open::replay::run(self, replay)?;
            crate::shard::open::libraries::load(self)?;
        }
        self.count_loaded();
        self.set_gate(gate::LOADING, false);
        if self.options.background {
            self.start_threads();
        }
        Ok(())
    }

    /// Brings all that the log holds to the store, for who looks at that alone: no command may run, and the log is left as it is.
    /// Answers its last LSN. Call once, instead of [`Engine::replay`].
    pub fn settle_log(self: &Arc<Self>) -> Result<Lsn, OpenError> {
        match self.replay.lock().take() {
            Some(replay) => crate::shard::open::replay::settle(self, replay),
            None => Ok(self.log.last()),
        }
    }

    /// What INFO tells of the start.
    fn count_loaded(&self) {
        let now_ms = crate::util::time::now_ms();
        for shard in self.shards.iter() {
            let core = shard.core();
            let expired = core.expiry.range(..(now_ms, 0)).count() as u64;
            self.stats.loaded_keys.fetch_add(core.keys(), Ordering::Relaxed);
            self.stats.loaded_expired.fetch_add(expired, Ordering::Relaxed);
        }
        self.stats.log_base_bytes.store(self.log.size_bytes(), Ordering::Relaxed);
    }

    /// Starts the log, whose records have all been applied; above all LSNs there were, if its end is lost.
    pub(in crate::shard) fn start_log(&self, mut replay: Replay) -> Result<(), OpenError> {
        let (last, stored) = (replay.last(), self.stored_lsns());
        let noted = self.checkpoint.lock().last.clone();
        if let Some(what) = noted.missing_end(last, &stored) {
            return Err(lost(&self.options.dir, what));
        }
        let known = [&noted.stored[..], &stored].concat().into_iter().fold(noted.end, Lsn::max);
        let lossy = noted.trust == Trust::Accepted || known > last;
        let note = |change: &dyn Fn(&mut Checkpoint)| {
            let noted = self.checkpoint.lock().change(&*self.io, change);
            noted.map_err(|source| file_error(&self.options.dir.join(CHECKPOINT_FILE), source))
        };
        if lossy {
            tracing::warn!(last, known, "a part of the data is lost; goes on with what is left");
            // What is left of the log stays before a gap, where no start looks for it.
            self.store_all().map_err(|error| OpenError::Record(error.to_string()))?;
            let floor = known.max(last) + LOST_LSNS;
            note(&|c| (c.complete, c.trust) = (floor + 1, Trust::Accepted))?;
            replay.go_on_above(floor);
        }
        self.log.start(replay)?;
        if lossy {
            recount::recount_all(self)?;
        }
        let (segment, end, stored) = (self.log.newest_segment(), self.log.synced(), self.stored_lsns());
        note(&|c| {
            (c.segment, c.end, c.trust) = (segment, end, Trust::Whole);
            c.stored.clone_from(&stored);
        })
    }

    fn start_threads(self: &Arc<Self>) {
        let mut threads = self.threads.lock();
        for (id, work) in self.thread_work.lock().drain(..).enumerate() {
            let engine = self.clone();
            let run = move || timer::shard_thread(&engine, id as ShardId, &work);
            threads.push(spawn(format!("shard-{id}"), 0, run));
        }
        threads.extend(self.start_background());
    }

    /// Stops the threads; with `flush`, brings everything to fjall first, so that the next start need not replay.
    ///
    /// # Errors
    /// The end of the log could not be synced, and a flush did not make it superfluous: acknowledged writes may be lost.
    pub fn close(&self, flush: bool) -> std::io::Result<()> {
        self.stopping.store(true, Ordering::SeqCst);
        self.wake_flusher();
        self.freer.ring();
        self.tell_compacting(None);
        if self.options.background {
            self.store.end_removing();
        }
        for shard in self.shards.iter() {
            shard.bell().ring();
        }
        self.readers.end(READERS);
        self.long.end();
        // One of them may be about to begin a backup, which needs the lock.
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a thread of the engine panicked");
            }
        }
        self.readers.close();
        self.counts.close();
        let mut flushed = false;
        if flush {
            match self.flush() {
                Ok(()) => flushed = true,
                Err(error) => tracing::error!(%error, "last flush failed; the log holds everything"),
            }
        }
        let closed = self.log.close().and_then(|()| self.note_end());
        // What is needed comes first.
        self.save_filters();
        match closed {
            Err(error) if flushed => {
                tracing::warn!(%error, "the log could not be closed; the store holds everything");
                Ok(())
            }
            closed => closed,
        }
    }

    /// Leaves the objects in memory to the end of the process, which is near: freed one by one they take as long as a flush.
    pub fn leave_objects(&self) {
        for shard in self.shards.iter() {
            std::mem::forget(std::mem::take(&mut shard.core().table));
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
        note: Some(dir.join(crate::store::SYNCED_FILE)),
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
        StoreError::NoStore { .. } | StoreError::NoPartition { .. } | StoreError::Lacks { .. } => {
            lost(dir, error.to_string())
        }
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
        blind: Default::default(),
        uses: Default::default(),
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
        straight: None,
        commands: 0,
        table_bytes: 0,
        admitted: 0,
        table_limit: (options.table_budget + options.cold_budget) / shards as usize,
        table_share: options.table_budget / shards as usize,
        dirty_bytes: 0,
        flight_bytes: 0,
        gathers: 0,
        generation: crate::util::time::now_ns(),
        flying: None,
        epoch: 0,
        stored_lsn: 0,
        staged: Default::default(),
        log: log.clone(),
        sweep_from_ms: 0,
        dead_names: Queue::new(codec::key::tag::DEAD_NS),
        reap: None,
        garbage: Queue::new(codec::key::tag::GARBAGE),
        reclaiming: false,
        hosts: None,
        trash,
        membership: Membership::of_table(options.table_budget / shards as usize),
        busy: Default::default(),
        watched: Default::default(),
        tracked: Default::default(),
        blocked: Default::default(),
        door: Doorkeeper::of_table(options.table_budget / shards as usize),
        cold: ColdCache::new(options.cold_budget / shards as usize),
        names,
        libraries: Default::default(),
        stats: Default::default(),
        pace: Default::default(),
        store_is_cold: is_cold(store, options),
        partition,
    };
    crate::shard::open::replay::load_small_records(&mut core)?;
    Ok(core)
}
