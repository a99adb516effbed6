//! Room on the disk: what log and store may take (`maxdisk`), and what is to stay free on their file system (`disk-reserve`).
//!
//! The watcher looks every few milliseconds. Without room [`gate::FULL`] is set: commands that may add are refused, while those that
//! remove, expiry, flushes and compactions go on, into the reserve. When there is some room again, and not only a byte, the gate
//! opens: who is refused can tell that from being served.
//!
//! What waits for a flush stands in the log, and will stand in the store too before its part of the log goes. Its bytes are kept free
//! beside the reserve, so that the flush that makes room finds some.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{Engine, gate, store_bytes};
use crate::util::sys;

/// One part in so many of the limit is to be free before the gate opens.
const SOME_ROOM: u64 = 64;

/// No more of a file system is reserved than one part in so many: a small one would be full from the start.
const MOST_RESERVED: u64 = 4;

/// The limits, and what the watcher saw last. All in bytes.
#[derive(Debug)]
pub struct Disk {
    /// What log and store may take; 0 for any.
    most: AtomicU64,
    /// What is to stay free; 0 for nothing.
    reserve: AtomicU64,
    /// What log and store take.
    taken: AtomicU64,
    /// What can be added.
    room: AtomicU64,
    /// What is free on the file system, to this user.
    free: AtomicU64,
    /// Since when `most` is reached, and how long it was before.
    reached: Mutex<(Option<Instant>, Duration)>,
}

impl Default for Disk {
    /// Without limits.
    fn default() -> Self {
        let (taken, room, reached) = (0.into(), u64::MAX.into(), Mutex::default());
        Disk { most: 0.into(), reserve: 0.into(), taken, room, free: 0.into(), reached }
    }
}

impl Disk {
    /// Sets the limits.
    pub fn limit(&self, most_bytes: u64, reserve_bytes: u64) {
        self.most.store(most_bytes, Ordering::Relaxed);
        self.reserve.store(reserve_bytes, Ordering::Relaxed);
    }

    /// What log and store may take; 0 for any number.
    pub fn most_bytes(&self) -> u64 {
        self.most.load(Ordering::Relaxed)
    }

    /// What they took when the watcher looked last.
    pub fn taken_bytes(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// For how long they have taken all they may: in all, and now.
    pub fn reached_for(&self) -> [Duration; 2] {
        let (since, before) = *self.reached.lock();
        let now = since.map_or(Duration::ZERO, |since| since.elapsed());
        [before + now, now]
    }

    /// Begins to count that anew.
    pub fn forget_reached(&self) {
        let mut reached = self.reached.lock();
        *reached = (reached.0.map(|_| Instant::now()), Duration::ZERO);
    }

    fn note_reached(&self, is_reached: bool) {
        let mut reached = self.reached.lock();
        *reached = match *reached {
            (None, before) if is_reached => (Some(Instant::now()), before),
            (Some(since), before) if !is_reached => (None, before + since.elapsed()),
            as_before => as_before,
        };
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
        let taken = self.disk_bytes();
        self.disk.taken.store(taken, Ordering::Relaxed);
        let allowed = if most > 0 { most.saturating_sub(taken) } else { u64::MAX };
        let (unreserved, reserve) = match sys::file_system(&self.options.dir) {
            Some(system) if reserve > 0 => {
                self.disk.free.store(system.free_bytes, Ordering::Relaxed);
                let reserve = reserve.min(system.total_bytes / MOST_RESERVED);
                (system.free_bytes.saturating_sub(reserve + self.dirty_bytes() as u64), reserve)
            }
            // Without an answer there is nothing to judge by: a disk that is full is noticed by the log.
            _ => (u64::MAX, 0),
        };
        let room = allowed.min(unreserved);
        self.disk.room.store(room, Ordering::Relaxed);
        let was_full = self.gate.load(Ordering::Relaxed) & gate::FULL != 0;
        let little = allowed < most / SOME_ROOM || unreserved < reserve / SOME_ROOM;
        let full = room == 0 || was_full && little;
        self.disk.note_reached(allowed == 0 || full && allowed < most / SOME_ROOM);
        if was_full != full {
            self.set_gate(gate::FULL, full);
            if full {
                tracing::warn!(bytes = taken, maxdisk = most, "no room on the disk: commands that may add are refused");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_times_without_room_add_up() {
        let disk = Disk::default();
        disk.note_reached(true);
        std::thread::sleep(Duration::from_millis(2));
        disk.note_reached(false);
        let [first, now] = disk.reached_for();
        assert!(!first.is_zero() && now.is_zero());
        disk.note_reached(true);
        let [all, now] = disk.reached_for();
        assert_eq!(all, first + now);
        disk.note_reached(false);
        assert!(disk.reached_for()[0] >= all, "what came before counts");
        // Where it is reached still, what is counted anew begins now.
        *disk.reached.lock() = (Instant::now().checked_sub(Duration::from_secs(3600)), Duration::from_secs(60));
        disk.forget_reached();
        let [all, now] = disk.reached_for();
        assert!(all == now && now < Duration::from_secs(600), "{now:?}");
    }
}
