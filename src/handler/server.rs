//! What all connections share: engine, configuration, clients, counters.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use tokio::sync::watch;

use super::session::Client;
use crate::config::Config;
use crate::shard::Engine;

/// CLIENT PAUSE.
#[derive(Debug, Default, Clone, Copy)]
pub struct Pause {
    /// Unix ms at which it ends.
    pub until_ms: u64,
    /// All commands, not only writes.
    pub all: bool,
}

/// Counters of one network thread; written by that thread only.
#[derive(Debug, Default)]
#[expect(missing_docs, reason = "the names INFO gives them")]
pub struct ThreadStats {
    pub commands: AtomicU64,
    pub bytes_in: AtomicU64,
    pub bytes_out: AtomicU64,
    pub errors: AtomicU64,
    /// Calls, rejected calls and failed calls by index in the command table.
    pub calls: Vec<[AtomicU64; 3]>,
}

impl ThreadStats {
    /// Counters for a table of this many commands.
    pub fn new(commands: usize) -> Self {
        ThreadStats { calls: (0..commands).map(|_| Default::default()).collect(), ..Default::default() }
    }
}

/// Adds to a counter that only the calling thread writes: no locked instruction.
#[inline]
pub fn bump(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed) + by, Ordering::Relaxed);
}

/// How a shutdown was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shutdown {
    /// Flush and sync first.
    Save,
    /// Only sync the log.
    NoSave,
}

/// What all connections share.
pub struct Server {
    /// Shards, log, store.
    pub engine: Arc<Engine>,
    /// Directives.
    pub config: Config,
    /// CLIENT PAUSE.
    pub pause: parking_lot::Mutex<Pause>,
    /// Open connections by id.
    pub clients: parking_lot::Mutex<BTreeMap<u64, Arc<Client>>>,
    /// Id of the next connection.
    pub next_client: AtomicU64,
    /// Counters of all network threads.
    pub threads: parking_lot::Mutex<Vec<Arc<ThreadStats>>>,
    /// Connections accepted, refused for `maxclients`.
    pub accepted: AtomicU64,
    /// Connections refused.
    pub rejected: AtomicU64,
    /// Unix ms of the start.
    pub started_ms: u64,
    /// 40 hexadecimal digits, new at each start.
    pub run_id: String,
    /// Port actually listened on.
    pub port: AtomicU32,
    /// A password is required.
    pub password_required: AtomicBool,
    /// Tells the main thread to go down.
    pub shutdown: watch::Sender<Option<Shutdown>>,
    /// LASTSAVE, Unix seconds.
    pub last_save_s: AtomicU64,
    /// Cursors of SCAN.
    pub cursors: crate::shard::cursor::Cursors,
}

impl Server {
    /// Sums a counter over all network threads.
    pub fn total(&self, counter: impl Fn(&ThreadStats) -> u64) -> u64 {
        self.threads.lock().iter().map(|t| counter(t)).sum()
    }
}
