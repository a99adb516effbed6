//! What the buffers of all connections take together, and the limit of it (`maxmemory-clients`): requests that have not
//! arrived whole, or wait for another thread, replies that have not been read, commands queued by MULTI.
//!
//! A connection tells of a change only when it has come to [`SLACK`]: those whose buffers are as empty as most never
//! touch the sum. Whoever takes it beyond the limit has the largest connections closed.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};

use super::server::Server;
use super::session::Client;

/// What a connection's buffers may take, or have changed by, without being told.
pub const SLACK: u64 = 16 << 10;

/// The sum over all connections.
#[derive(Debug)]
pub struct Buffers {
    bytes: AtomicU64,
    limit: AtomicU64,
    /// Connections closed because the sum was above the limit.
    pub evicted: AtomicU64,
    evicting: Mutex<()>,
}

impl Default for Buffers {
    fn default() -> Self {
        Buffers { bytes: 0.into(), limit: u64::MAX.into(), evicted: 0.into(), evicting: Mutex::default() }
    }
}

impl Buffers {
    /// What all connections have told, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// What they may take together, and therefore one request alone, in bytes.
    #[inline]
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Changes the limit.
    pub fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    /// A connection, which has told `told` before, takes this much now. Whether it has thereby taken the sum beyond the
    /// limit.
    #[inline]
    pub fn tell(&self, told: &Cell<u64>, now: u64) -> bool {
        let (before, now) = (told.get(), if now < SLACK { 0 } else { now });
        if now.abs_diff(before) < SLACK && now != 0 || now == before {
            return false;
        }
        told.set(now);
        if now < before {
            self.bytes.fetch_sub(before - now, Ordering::Relaxed);
            return false;
        }
        self.bytes.fetch_add(now - before, Ordering::Relaxed) + (now - before) > self.limit()
    }

    /// Whether the sum is above the limit.
    pub fn are_full(&self) -> bool {
        self.bytes() > self.limit()
    }

    /// The right to close connections; `None` if somebody is at it.
    pub fn begin_eviction(&self) -> Option<MutexGuard<'_, ()>> {
        self.evicting.try_lock()
    }
}

/// What a connection has on another thread: the copy of a request until it has run, a reply until it is there. Part of
/// the sum until this is dropped.
#[derive(Default)]
pub struct Away(Option<(Arc<Server>, Arc<Client>, u64)>);

impl Away {
    /// So many bytes of memory.
    pub fn new(server: &Arc<Server>, client: &Arc<Client>, bytes: usize) -> Away {
        let bytes = bytes as u64;
        if bytes < SLACK {
            return Away(None);
        }
        server.buffers.bytes.fetch_add(bytes, Ordering::Relaxed);
        client.away_bytes.fetch_add(bytes, Ordering::Relaxed);
        Away(Some((server.clone(), client.clone(), bytes)))
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        if let Some((server, client, bytes)) = &self.0 {
            server.buffers.bytes.fetch_sub(*bytes, Ordering::Relaxed);
            client.away_bytes.fetch_sub(*bytes, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_follows_what_is_told() {
        let buffers = Buffers::default();
        buffers.set_limit(5 * SLACK);
        let (one, other) = (Cell::new(0), Cell::new(0));
        assert!(!buffers.tell(&one, SLACK - 1));
        assert_eq!(buffers.bytes(), 0, "little is not told");
        assert!(!buffers.tell(&one, 3 * SLACK));
        assert!(!buffers.tell(&one, 4 * SLACK - 1));
        assert_eq!(buffers.bytes(), 3 * SLACK, "nor are small changes");
        assert!(buffers.tell(&other, 3 * SLACK), "beyond the limit");
        assert!(!buffers.tell(&other, SLACK));
        assert!(!buffers.tell(&one, 0) && !buffers.tell(&other, SLACK - 1));
        assert_eq!(buffers.bytes(), 0);
    }
}
