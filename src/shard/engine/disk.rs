//! Room on the disk: what log and store may take (`maxdisk`), and what is to stay free on their file system (`disk-reserve`).
//!
//! The watcher looks every few milliseconds. Without room [`gate::FULL`] is set: commands that may add are refused, while those that
//! remove, expiry, flushes and compactions go on, into the reserve. When there is room again the gate opens.
//!
//! What waits for a flush stands in the log, and will stand in the store too before its part of the log goes. Its bytes are kept free
//! beside the reserve, so that the flush that makes room finds some.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Engine, gate, store_bytes};
use crate::util::sys;

/// No more of a file system is reserved than one part in so many: a small one would be full from the start.
const MOST_RESERVED: u64 = 4;

/// The limits, and what the watcher saw last. All in bytes.
#[derive(Debug)]
pub struct Disk {
    /// What log and store may take; 0 for any.
    most: AtomicU64,
    /// What is to stay free; 0 for nothing.
    reserve: AtomicU64,
    /// What can be added.
    room: AtomicU64,
    /// What is free on the file system, to this user.
    free: AtomicU64,
}

impl Default for Disk {
    /// Without limits.
    fn default() -> Self {
        Disk { most: 0.into(), reserve: 0.into(), room: u64::MAX.into(), free: 0.into() }
    }
}

impl Disk {
    /// Sets the limits.
    pub fn limit(&self, most_bytes: u64, reserve_bytes: u64) {
        self.most.store(most_bytes, Ordering::Relaxed);
        self.reserve.store(reserve_bytes, Ordering::Relaxed);
    }

    /// What could be added when the watcher looked last.
    pub fn room_bytes(&self) -> u64 {
        self.room.load(Ordering::Relaxed)
    }

    /// What was free on the file system when the watcher looked last.
    pub fn free_bytes(&self) -> u64 {
        self.free.load(Ordering::Relaxed)
    }
}

impl Engine {
    /// What log and store take.
    pub fn disk_bytes(&self) -> u64 {
        self.log.size_bytes() + store_bytes(&self.store)
    }

    /// Looks how much room there is, and closes or opens the gate.
    pub(in crate::shard) fn look_at_disk(&self) {
        let load = |bytes: &AtomicU64| bytes.load(Ordering::Relaxed);
        let (most, reserve) = (load(&self.disk.most), load(&self.disk.reserve));
        let allowed = if most > 0 { most.saturating_sub(self.disk_bytes()) } else { u64::MAX };
        let unreserved = match sys::file_system(&self.options.dir) {
            Some(system) if reserve > 0 => {
                self.disk.free.store(system.free_bytes, Ordering::Relaxed);
                let kept = reserve.min(system.total_bytes / MOST_RESERVED) + self.dirty_bytes() as u64;
                system.free_bytes.saturating_sub(kept)
            }
            // Without an answer there is nothing to judge by: a disk that is full is noticed by the log.
            _ => u64::MAX,
        };
        let room = allowed.min(unreserved);
        self.disk.room.store(room, Ordering::Relaxed);
        let full = room == 0;
        if (self.gate.load(Ordering::Relaxed) & gate::FULL != 0) != full {
            self.set_gate(gate::FULL, full);
            if full {
                let bytes = self.disk_bytes();
                tracing::warn!(bytes, maxdisk = most, "no room on the disk: commands that may add are refused");
            } else {
                tracing::info!(room, "there is room on the disk again");
            }
        }
    }

    /// Whether the log is to go because what it takes is more than the room that is left.
    pub(in crate::shard) fn is_squeezed(&self) -> bool {
        self.disk.room_bytes() < self.log.size_bytes()
    }
}
