//! The allocator, counted, so that INFO can tell how many bytes are in use: the system's, but for blocks of some KiB, which
//! come from a [`pool`] of all threads.
//!
//! Each thread gathers its own sum and hands it to the common counter whenever it has moved by [`SLACK`]: an
//! allocation costs an addition to thread-local memory, and the counter is off by at most [`SLACK`] a thread, ended
//! ones included.

pub mod heaps;
mod pool;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::time::{Duration, Instant};

use pool::POOL;

/// What a thread may keep to itself, bytes.
const SLACK: isize = 32 << 10;

/// Blocks of this size and more are mapped one by one. Values that clients send are mostly smaller.
#[cfg(target_env = "gnu")]
const MAPPED_FROM_BYTES: libc::c_int = 4 << 20;

/// What a heap keeps free at its end: as much as glibc would allow itself with blocks of that size.
#[cfg(target_env = "gnu")]
const KEPT_BYTES: libc::c_int = 2 * MAPPED_FROM_BYTES;

static USED: AtomicIsize = AtomicIsize::new(0);

thread_local! {
    // Without a destructor and without lazy initialisation: the allocator may touch it at any time of a thread's life.
    static PENDING: Cell<isize> = const { Cell::new(0) };
}

/// Bytes allocated and not freed, as the programs asked for them. 0 unless [`Counted`] is the global allocator.
pub fn used_bytes() -> usize {
    usize::try_from(USED.load(Ordering::Relaxed)).unwrap_or(0)
}

/// Settles how the allocator keeps memory; to be called before threads start. Three habits of glibc's do a server harm
/// (a fourth is dealt with in [`heaps`]):
///
/// - It maps big blocks one by one, so that freeing gives them back, but takes ever bigger ones from its heaps as such are
///   freed, until 32 MB. Flushes free many: a heap of holes is left. Adding 1.5 million members to a sorted set with a
///   budget of 64 MB left 159 MB resident; settled, 104.
/// - It puts small blocks aside when they are freed, and joins them with their neighbours all at once, sometime later.
///   After a million keys had expired, a network thread waited up to 150 ms for its heap; settled, 17.
/// - It has a heap for nearly each thread, and does not take from one what is free in another. Most threads are shards',
///   which load what network threads free: with `heaps`, 4 instead of 16, 30,000 sorted sets written to at random left
///   106 MB resident instead of 120. With 2 it is less still, but threads wait for each other's heaps.
///   `MALLOC_ARENA_MAX` in the environment does not change it.
pub fn settle(heaps: usize) {
    #[cfg(not(target_env = "gnu"))]
    let _ = heaps;
    #[cfg(target_env = "gnu")]
    #[expect(unsafe_code, reason = "no safe form")]
    // SAFETY: takes plain integers.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, heaps as libc::c_int);
        libc::mallopt(libc::M_MXFAST, 0);
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_FROM_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_BYTES);
    }
}

/// What a block of this size takes of the allocator's memory: of the system's, a header, and a multiple of 16. Nothing takes
/// nothing.
pub fn block_bytes(size: usize) -> usize {
    match pool::class(size, 1) {
        Some(class) => pool::class_bytes(class),
        None if size == 0 => 0,
        None => (size + 8).next_multiple_of(16).max(32),
    }
}

/// Gives free memory of the allocator back to the system.
pub fn trim() {
    POOL.trim();
    #[cfg(target_env = "gnu")]
    #[expect(unsafe_code, reason = "no safe form")]
    // SAFETY: takes a plain integer and may be called at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Decides when free memory goes back to the system. The system's allocator keeps what threads have freed for those
/// threads: a server that fills and drops big collections would in time hold several times what it uses.
///
/// A trim holds each heap while it is looked through, and its threads wait: for some ms, for a second where some GB
/// are free; 30 to 170 ms after a FLUSHALL of 2 GB with a budget of 512 MB. Within the budget, and a fifth more, it is put off until
/// next to nobody would wait: what is free is used again before more is taken, and the budget is nine tenths of what may be taken at all.
#[derive(Debug)]
pub struct Trimmer {
    /// Bytes resident and not in use after the last trim; less if they have been less since.
    floor: u64,
    last: Instant,
    /// How long the last trim took.
    took: Duration,
}

impl Default for Trimmer {
    fn default() -> Self {
        Trimmer { floor: 0, last: Instant::now(), took: Duration::ZERO }
    }
}

impl Trimmer {
    /// Memory resident and not in use below which nothing is done, besides an eighth of what is in use.
    const SPARE: u64 = 16 << 20;
    /// By how much it must have grown since the last trim; if more, a part of what is in use.
    const GROWN: u64 = 8 << 20;
    /// Time between trims while memory stays within its budget; the most at all.
    const CALM: Duration = Duration::from_secs(30);
    /// Beyond the budget: time between trims, as a multiple of what the last one took.
    const PAUSE: u32 = 100;

    /// Trims if much is resident that is not in use, and has become so since the last trim. Unless far more is resident than
    /// `budget`, it does so seldom, and only in a moment that is `quiet`.
    pub fn turn(&mut self, budget: u64, quiet: impl FnOnce() -> bool) {
        let (resident, used) = (super::sys::resident_bytes(), used_bytes() as u64);
        if !self.is_due([resident, used, budget], self.last.elapsed(), quiet) {
            return;
        }
        let began = Instant::now();
        trim();
        self.took = began.elapsed();
        self.last = Instant::now();
        let left = super::sys::resident_bytes();
        self.floor = left.saturating_sub(used_bytes() as u64);
        tracing::debug!(took = ?self.took, resident_bytes = left, before = resident, "free memory given back");
    }

    fn is_due(&mut self, [resident, used, budget]: [u64; 3], since: Duration, quiet: impl FnOnce() -> bool) -> bool {
        let calm = resident <= budget + budget / 5;
        let spare = resident.saturating_sub(used);
        self.floor = self.floor.min(spare);
        let pause = if calm { Self::CALM } else { (self.took * Self::PAUSE).min(Self::CALM) };
        let enough = spare >= used / 8 + Self::SPARE && spare >= self.floor + Self::GROWN.max(used / 32);
        enough && since >= pause && (!calm || quiet())
    }
}

#[inline]
fn count(bytes: isize) {
    let add = |pending: &Cell<isize>| {
        let sum = pending.get() + bytes;
        if sum.abs() < SLACK {
            pending.set(sum);
        } else {
            pending.set(0);
            USED.fetch_add(sum, Ordering::Relaxed);
            heaps::note(sum < 0);
        }
    };
    if PENDING.try_with(add).is_err() {
        USED.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// The counted allocator.
pub struct Counted;

#[expect(unsafe_code, reason = "the trait is unsafe to implement")]
// SAFETY: a block's size and alignment, which the caller gives back with it, tell which of the two allocators it is from;
// everything is passed on to that one. Counting neither allocates nor panics.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        match pool::class(layout.size(), layout.align()) {
            Some(class) => POOL.take(class).map_or(std::ptr::null_mut(), NonNull::as_ptr),
            // SAFETY: the caller's promises are passed on.
            None => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promises are passed on; a block is never null.
        unsafe {
            match pool::class(layout.size(), layout.align()) {
                Some(class) => POOL.give(class, NonNull::new_unchecked(at)),
                None => System.dealloc(at, layout),
            }
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if pool::class(layout.size(), layout.align()).is_none() {
            count(layout.size() as isize);
            // SAFETY: the caller's promises are passed on.
            return unsafe { System.alloc_zeroed(layout) };
        }
        // SAFETY: the caller's promises are passed on; the block has that size.
        unsafe {
            let block = self.alloc(layout);
            if !block.is_null() {
                block.write_bytes(0, layout.size());
            }
            block
        }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let [old, new] = [layout.size(), size].map(|size| pool::class(size, layout.align()));
        if old == new {
            count(size as isize - layout.size() as isize);
            if old.is_some() {
                return at;
            }
            // SAFETY: the caller's promises are passed on.
            return unsafe { System.realloc(at, layout, size) };
        }
        // SAFETY: the caller promises that the size is right for the alignment; both blocks have as many bytes as are copied.
        unsafe {
            let block = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !block.is_null() {
                block.copy_from_nonoverlapping(at, layout.size().min(size));
                self.dealloc(at, layout);
            }
            block
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn free_memory_goes_back_once_there_is_more_of_it_and_time_for_it() {
        const MB: u64 = 1 << 20;
        let (now, later) = (Duration::ZERO, Trimmer::CALM);
        let mut trimmer = Trimmer::default();
        let is_due = |trimmer: &mut Trimmer, resident, used, since| {
            let busy = trimmer.is_due([resident * MB, used * MB, 125 * MB], since, || false);
            let quiet = trimmer.is_due([resident * MB, used * MB, 125 * MB], since, || true);
            assert!(quiet || !busy);
            (busy, quiet)
        };
        let (never, in_quiet, at_once) = ((false, false), (false, true), (true, true));
        assert_eq!(is_due(&mut trimmer, 180, 100, now), at_once);
        assert_eq!(is_due(&mut trimmer, 150, 100, now), never, "until then it can wait");
        assert_eq!(is_due(&mut trimmer, 150, 100, later), in_quiet);
        assert_eq!(is_due(&mut trimmer, 170, 150, later), never, "too little");
        // A trim left 60 MB that cannot go.
        trimmer.floor = 60 * MB;
        assert_eq!(is_due(&mut trimmer, 165, 100, later), never, "no more than what it left");
        assert_eq!(is_due(&mut trimmer, 170, 100, later), at_once);
        // Use falls, what is resident does not.
        assert_eq!(is_due(&mut trimmer, 160, 40, later), at_once);
        trimmer.took = Duration::from_millis(50);
        assert_eq!(is_due(&mut trimmer, 170, 100, Duration::from_secs(4)), never, "takes too much of the time");
        trimmer.took = Duration::from_secs(5);
        assert_eq!(is_due(&mut trimmer, 170, 100, later), at_once, "never rarer than within the budget");
    }

    #[test]
    #[expect(unsafe_code, reason = "asks the allocator itself")]
    fn blocks_keep_what_they_hold_while_they_grow_and_shrink() {
        let layout = |size| Layout::from_size_align(size, 8).unwrap();
        for align in [8, 64] {
            let sizes = [100, 2048, 2049, 2300, 5000, 5001, 32_768, 32_769, 90_000, 4096, 2049, 7, 3000, 1];
            let mut size = sizes[0];
            // SAFETY: one block, never used but at its last place and within its size, and freed in the end.
            unsafe {
                let layout = |size| Layout::from_size_align(size, align).unwrap();
                let mut block = Counted.alloc_zeroed(layout(size));
                for next in sizes {
                    block.write_bytes(size as u8, size);
                    block = Counted.realloc(block, layout(size), next);
                    let kept = std::slice::from_raw_parts(block, size.min(next));
                    assert!(kept.iter().all(|&byte| byte == size as u8), "{size} to {next}");
                    assert!((block as usize).is_multiple_of(align));
                    size = next;
                }
                Counted.dealloc(block, layout(size));
            }
        }
        // SAFETY: blocks that are read within their size, and freed as they were asked for.
        unsafe {
            let dirty = Counted.alloc(layout(9000));
            dirty.write_bytes(1, 9000);
            Counted.dealloc(dirty, layout(9000));
            let clean = Counted.alloc_zeroed(layout(9000));
            assert!(std::slice::from_raw_parts(clean, 9000).iter().all(|&byte| byte == 0));
            Counted.dealloc(clean, layout(9000));
        }
    }

    #[test]
    fn big_blocks_are_seen_at_once() {
        const SIZE: isize = 64 << 20;
        let before = USED.load(Ordering::Relaxed);
        count(SIZE);
        let during = USED.load(Ordering::Relaxed);
        count(-SIZE);
        // Other tests count too, but never so much.
        assert!(during - before > SIZE / 2, "{before} {during}");
        assert!(USED.load(Ordering::Relaxed) - before < SIZE / 2);
    }
}
