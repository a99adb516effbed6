//! Heaps of which others free many blocks.
//!
//! glibc puts a block that is freed back into the heap it came from, in front of all that is free there, unsorted. Whoever takes a
//! block from that heap next sorts what stands there first, up to ten thousand blocks each time, which takes milliseconds. So
//! after FLUSHALL, whose objects shards' threads free, a network thread sorted what had been its own within commands: one SET in a
//! thousand took 7.5 ms where it was measured, now 1.6.
//!
//! | who | does |
//! |---|---|
//! | a thread in background that frees much | tells the owners between two slices ([`tell_owners`]), and leaves them most of the time where that is a whole database |
//! | a network thread, the owner of its heap | sorts it whenever it is told ([`tidy`]): a slice's blocks, not all |

use std::cell::Cell;
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// What [`tidy`] takes: neither from the pool nor from what glibc keeps at hand for a thread, so that the heap is sorted for it.
const BLOCK_BYTES: usize = 48 << 10;
/// Owners are told when so many times [`super::SLACK`] were freed: about a slice of small objects.
const TOLD_EVERY: u64 = 2;

static OWNERS: Mutex<Vec<Weak<Notify>>> = Mutex::new(Vec::new());

thread_local! {
    // Without a destructor and without lazy initialisation: the allocator may touch it at any time of a thread's life.
    /// What this thread has freed since it last told of it, in units of [`super::SLACK`], less what it took behind that.
    static FREED: Cell<u64> = const { Cell::new(0) };
}

/// How often owners were told.
static TOLD: AtomicU64 = AtomicU64::new(0);

/// This thread has freed, or else taken, [`super::SLACK`] more than the other. Within the allocator: neither allocates nor waits.
#[inline]
pub(super) fn note(has_freed: bool) {
    _ = FREED.try_with(|freed| freed.set(if has_freed { freed.get() + 1 } else { freed.get().saturating_sub(1) }));
}

/// From now on this wakes a thread that is to [`tidy`] its heap.
pub fn register(owner: Weak<Notify>) {
    let mut owners = OWNERS.lock();
    owners.retain(|owner| owner.strong_count() > 0);
    owners.push(owner);
}

/// Wakes the owners of heaps if this thread has freed enough since it last did. The caller holds no lock.
pub fn tell_owners() {
    if FREED.get() < TOLD_EVERY {
        return;
    }
    FREED.set(0);
    TOLD.fetch_add(1, Ordering::Relaxed);
    OWNERS.lock().iter().filter_map(Weak::upgrade).for_each(|owner| owner.notify_one());
}

/// How often owners were told, since the process began.
pub fn told() -> u64 {
    TOLD.load(Ordering::Relaxed)
}

/// Sorts what others have freed of the calling thread's heap.
pub fn tidy() {
    if cfg!(target_env = "gnu") {
        drop(std::hint::black_box(Vec::<u8>::with_capacity(BLOCK_BYTES)));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};

    use super::*;

    /// Other tests may wake it too, but none stops it.
    #[test]
    fn owners_are_told_once_enough_was_freed() {
        let owner = Arc::new(Notify::new());
        register(Arc::downgrade(&owner));
        // What it has taken before is long forgotten, and what it takes and gives back for itself is nobody's business.
        [false, false, true, false, true, false].into_iter().for_each(note);
        (1..TOLD_EVERY).for_each(|_| note(true));
        tell_owners();
        assert_eq!(FREED.get(), TOLD_EVERY - 1);
        note(true);
        let before = told();
        tell_owners();
        assert_eq!((FREED.get(), told() > before), (0, true));
        let mut told = std::pin::pin!(owner.notified());
        assert_eq!(told.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(()));
    }

    #[test]
    fn who_is_gone_is_forgotten() {
        let gone = Arc::new(Notify::new());
        let weak = Arc::downgrade(&gone);
        register(weak.clone());
        drop(gone);
        register(Arc::downgrade(&Arc::new(Notify::new())));
        assert!(OWNERS.lock().iter().all(|owner| !owner.ptr_eq(&weak)));
    }
}
