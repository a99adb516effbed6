//! Memory for blocks of some KiB that all threads share: what one has freed, the next takes.
//!
//! The system's allocator gives each thread a heap, and what is free in one is not taken for another. Such blocks are mostly
//! the store's: one thread reads them into its cache, another one throws them out for its own. The cache moves from heap to
//! heap, and each keeps the room for the most it ever held: with a cache of 64 MB, 124 MB were free in four heaps.
//!
//! ```text
//! chunk  64 MiB of address space, never given back
//! slab   256 KiB of it: a header, then blocks of one class, taken in order at first
//! class  an eighth of a power of two: at most a ninth of a block is unused
//! ```
//!
//! A slab whose blocks are all free goes back to where any class takes its next one from. A few keep their memory, the others'
//! goes to the system at once.

use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Smaller blocks are the system's allocator's: it has them at hand for each thread.
const FROM_BYTES: usize = 2 << 10;
/// Larger ones too.
const TO_BYTES: usize = 32 << 10;
/// Classes of each power of two.
const STEPS: usize = 8;
const CLASSES: usize = STEPS * (TO_BYTES / FROM_BYTES).ilog2() as usize;

const SLAB_BYTES: usize = 256 << 10;
const CHUNK_BYTES: usize = 64 << 20;
const PAGE_BYTES: usize = 4 << 10;
/// What blocks are aligned to. The header takes as much as keeps them so.
const ALIGN: usize = 16;
const HEADER_BYTES: usize = size_of::<Slab>().next_multiple_of(ALIGN);

/// Free slabs that keep their memory: enough for blocks that come and go.
const KEPT_SLABS: usize = 16;

/// The beginning of a slab. Its class' lock guards all of it; while the slab is free, that of [`Free`].
#[repr(C)]
struct Slab {
    /// Its neighbours among slabs of the class that have a free block, or the next free slab.
    before: Option<NonNull<Slab>>,
    after: Option<NonNull<Slab>>,
    /// Blocks that were given back: each names the next.
    free: Option<NonNull<Block>>,
    /// Where the blocks begin that nobody ever had, from the slab's beginning.
    fresh: u32,
    /// Blocks that are taken.
    taken: u32,
}

#[repr(C)]
struct Block {
    next: Option<NonNull<Block>>,
}

/// Slabs of one class that have a free block.
struct Class {
    first: Option<NonNull<Slab>>,
}

/// Slabs of no class.
struct Free {
    /// Those that have memory, and those whose memory is the system's but for the header's page.
    kept: Option<NonNull<Slab>>,
    kept_count: usize,
    bare: Option<NonNull<Slab>>,
    /// What is left of the last chunk.
    rest: usize,
    rest_bytes: usize,
}

// SAFETY: both are reached through their locks alone.
#[expect(unsafe_code, reason = "memory handed out by address")]
unsafe impl Send for Class {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "memory handed out by address")]
unsafe impl Send for Free {}

pub(super) struct Pool {
    classes: [Mutex<Class>; CLASSES],
    free: Mutex<Free>,
}

/// The process' one.
pub(super) static POOL: Pool = Pool::new();

/// Neither allocates nor panics: on Linux the standard library's locks are a word each.
fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The class of blocks of this size and alignment, if they are the pool's.
#[inline]
pub(super) fn class(size: usize, align: usize) -> Option<usize> {
    // Elsewhere the standard library's locks may allocate.
    const HERE: bool = cfg!(target_os = "linux");
    if !HERE || !(FROM_BYTES + 1..=TO_BYTES).contains(&size) || align > ALIGN {
        return None;
    }
    let power = (size - 1).ilog2() as usize;
    let step = (size - 1 - (1 << power)) >> (power - STEPS.ilog2() as usize);
    Some((power - FROM_BYTES.ilog2() as usize) * STEPS + step)
}

/// Bytes of a block of this class.
pub(super) fn class_bytes(class: usize) -> usize {
    let power = FROM_BYTES << (class / STEPS);
    power + power / STEPS * (class % STEPS + 1)
}

#[expect(unsafe_code, reason = "memory handed out by address")]
impl Pool {
    const fn new() -> Self {
        Pool {
            classes: [const { Mutex::new(Class { first: None }) }; CLASSES],
            free: Mutex::new(Free { kept: None, kept_count: 0, bare: None, rest: 0, rest_bytes: 0 }),
        }
    }

    /// A block of this class. `None`: the system has no memory.
    pub(super) fn take(&self, class: usize) -> Option<NonNull<u8>> {
        let mut slabs = lock(&self.classes[class]);
        let mut slab = match slabs.first {
            Some(slab) => slab,
            None => {
                let slab = lock(&self.free).take()?;
                // SAFETY: the slab is this class' alone from now on.
                unsafe {
                    slab.write(Slab { before: None, after: None, free: None, fresh: HEADER_BYTES as u32, taken: 0 });
                }
                slabs.first = Some(slab);
                slab
            }
        };
        // SAFETY: a slab of this class, whose lock is held; blocks lie within it.
        unsafe {
            let (at, head) = (slab.cast::<u8>(), slab.as_mut());
            let block = match head.free {
                Some(block) => {
                    head.free = block.as_ref().next;
                    block.cast()
                }
                None => {
                    let block = at.add(head.fresh as usize);
                    head.fresh += class_bytes(class) as u32;
                    block
                }
            };
            head.taken += 1;
            if head.is_full(class) {
                slabs.unlink(slab);
            }
            Some(block)
        }
    }

    /// Gives a block back.
    ///
    /// # Safety
    /// `block` is from [`Pool::take`] of the same class, and nobody uses it any more.
    pub(super) unsafe fn give(&self, class: usize, block: NonNull<u8>) {
        let mut slabs = lock(&self.classes[class]);
        // SAFETY: slabs are aligned to their size, so that a block's address tells its slab, which is this class' as the block is.
        unsafe {
            let mut slab =
                block.map_addr(|at| std::num::NonZero::new_unchecked(at.get() & !(SLAB_BYTES - 1))).cast::<Slab>();
            let head = slab.as_mut();
            if head.is_full(class) {
                slabs.link(slab);
            }
            let block = block.cast::<Block>();
            block.write(Block { next: head.free });
            head.free = Some(block);
            head.taken -= 1;
            if head.taken > 0 {
                return;
            }
            slabs.unlink(slab);
            drop(slabs);
            self.give_slab(slab);
        }
    }

    /// A slab without blocks: to whoever needs it next.
    fn give_slab(&self, mut slab: NonNull<Slab>) {
        let mut free = lock(&self.free);
        let keeps = free.kept_count < KEPT_SLABS;
        if !keeps {
            drop(free);
            bare(slab);
            free = lock(&self.free);
        }
        let free = &mut *free;
        let list = if keeps { &mut free.kept } else { &mut free.bare };
        // SAFETY: nobody else has the slab.
        unsafe { slab.as_mut().after = list.replace(slab) };
        free.kept_count += usize::from(keeps);
    }

    /// Gives the memory of free slabs to the system.
    pub(super) fn trim(&self) {
        loop {
            let mut free = lock(&self.free);
            let Some(mut slab) = free.kept else { return };
            // SAFETY: free slabs are these lists', whose lock is held; in between nobody else has this one.
            unsafe {
                free.kept = slab.as_ref().after;
                free.kept_count -= 1;
                drop(free);
                bare(slab);
                slab.as_mut().after = lock(&self.free).bare.replace(slab);
            }
        }
    }
}

/// Gives the slab's memory to the system, but for the page of its header.
#[expect(unsafe_code, reason = "memory handed out by address")]
fn bare(slab: NonNull<Slab>) {
    // SAFETY: whole pages of a slab that has no blocks. Should it fail, the memory is kept, and that is all.
    unsafe {
        libc::madvise(slab.byte_add(PAGE_BYTES).as_ptr().cast(), SLAB_BYTES - PAGE_BYTES, libc::MADV_DONTNEED);
    }
}

impl Slab {
    /// Whether it has no block left to give.
    fn is_full(&self, class: usize) -> bool {
        self.free.is_none() && self.fresh as usize + class_bytes(class) > SLAB_BYTES
    }
}

#[expect(unsafe_code, reason = "memory handed out by address")]
impl Class {
    /// # Safety
    /// The slab is of this class and not among its slabs.
    unsafe fn link(&mut self, mut slab: NonNull<Slab>) {
        // SAFETY: the class' lock is held.
        unsafe {
            let head = slab.as_mut();
            (head.before, head.after) = (None, self.first);
            if let Some(mut after) = self.first.replace(slab) {
                after.as_mut().before = Some(slab);
            }
        }
    }

    /// # Safety
    /// The slab is among this class' slabs.
    unsafe fn unlink(&mut self, slab: NonNull<Slab>) {
        // SAFETY: the class' lock is held.
        unsafe {
            let (before, after) = (slab.as_ref().before, slab.as_ref().after);
            match before {
                Some(mut before) => before.as_mut().after = after,
                None => self.first = after,
            }
            if let Some(mut after) = after {
                after.as_mut().before = before;
            }
        }
    }
}

#[expect(unsafe_code, reason = "memory handed out by address")]
impl Free {
    /// A slab, whose memory holds anything. `None`: the system has no memory.
    fn take(&mut self) -> Option<NonNull<Slab>> {
        // SAFETY: free slabs are these lists', whose lock is held.
        unsafe {
            if let Some(slab) = self.kept {
                self.kept = slab.as_ref().after;
                self.kept_count -= 1;
                return Some(slab);
            }
            if let Some(slab) = self.bare {
                self.bare = slab.as_ref().after;
                return Some(slab);
            }
        }
        if self.rest_bytes == 0 {
            (self.rest, self.rest_bytes) = map_chunk()?;
        }
        let slab = std::ptr::with_exposed_provenance_mut(self.rest);
        self.rest += SLAB_BYTES;
        self.rest_bytes -= SLAB_BYTES;
        NonNull::new(slab)
    }
}

/// Address space for slabs: where it begins, aligned to them, and its bytes.
#[expect(unsafe_code, reason = "memory handed out by address")]
fn map_chunk() -> Option<(usize, usize)> {
    // SAFETY: a new mapping, which nothing else refers to.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            CHUNK_BYTES,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if at == libc::MAP_FAILED {
        return None;
    }
    let begin = at.expose_provenance();
    let first = begin.next_multiple_of(SLAB_BYTES);
    Some((first, (begin + CHUNK_BYTES - first) / SLAB_BYTES * SLAB_BYTES))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
#[expect(unsafe_code, reason = "memory handed out by address")]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::util::splitmix;

    /// Slabs that it has ever had of its first chunk.
    fn slabs(pool: &Pool) -> usize {
        (CHUNK_BYTES - lock(&pool.free).rest_bytes) / SLAB_BYTES
    }

    #[test]
    fn a_class_holds_its_sizes_and_wastes_little() {
        assert_eq!(class(FROM_BYTES, 1), None);
        assert_eq!(class(TO_BYTES + 1, 1), None);
        assert_eq!(class(FROM_BYTES + 1, 32), None, "aligned too widely");
        let mut last = 0;
        for size in FROM_BYTES + 1..=TO_BYTES {
            let class = class(size, 8).unwrap();
            assert!(class < CLASSES && (class == last || class == last + 1), "{size}: {class} after {last}");
            let bytes = class_bytes(class);
            assert!(bytes >= size && bytes <= size + size / 8 && bytes.is_multiple_of(ALIGN), "{size}: {bytes}");
            last = class;
        }
        assert_eq!(last, CLASSES - 1);
    }

    #[test]
    fn what_one_thread_has_freed_others_take() {
        const BLOCKS: usize = 2000;
        let pool = Pool::new();
        let class = class(4200, 8).unwrap();
        let take = || pool.take(class).unwrap().expose_provenance();
        let mut held: Vec<usize> = (0..BLOCKS).map(|_| take().get()).collect();
        let had = slabs(&pool);
        for _ in 0..4 {
            held = std::thread::scope(|scope| {
                let turn = scope.spawn(|| {
                    let turn = |at: &usize| {
                        // SAFETY: each is held once, and given back once.
                        unsafe { give(&pool, class, *at) };
                        take().get()
                    };
                    held.iter().map(turn).collect()
                });
                turn.join().unwrap()
            });
        }
        assert_eq!(slabs(&pool), had, "a cache that moves from thread to thread takes no more");
    }

    #[test]
    fn free_slabs_serve_any_class_and_few_keep_their_memory() {
        let pool = Pool::new();
        let [small, large] = [class(2100, 8).unwrap(), class(30_000, 8).unwrap()];
        let small_ones: Vec<_> =
            (0..100 * SLAB_BYTES / class_bytes(small)).map(|_| pool.take(small).unwrap()).collect();
        let had = slabs(&pool);
        for &block in &small_ones {
            // SAFETY: each is given back once.
            unsafe { pool.give(small, block) };
        }
        assert_eq!(lock(&pool.free).kept_count, KEPT_SLABS);
        let large_ones: Vec<_> =
            (0..100 * (SLAB_BYTES / class_bytes(large)) - 7).map(|_| pool.take(large).unwrap()).collect();
        assert!(slabs(&pool) <= had, "{} of {had}", slabs(&pool));
        for &block in &large_ones {
            // SAFETY: each is given back once.
            unsafe { pool.give(large, block) };
        }
        pool.trim();
        assert_eq!(lock(&pool.free).kept_count, 0);
        assert!(lock(&pool.free).kept.is_none());
        assert!(pool.classes.iter().all(|class| lock(class).first.is_none()), "slabs of no blocks are of no class");
        assert!(pool.take(small).is_some());
    }

    /// Threads that take blocks of all classes, write all over them and hand them to each other: no two have one byte in
    /// common, and all of it is free in the end.
    #[test]
    fn blocks_never_overlap() {
        const THREADS: usize = 4;
        const STEPS: usize = 20_000;
        let pool = Pool::new();
        let (senders, receivers): (Vec<_>, Vec<_>) =
            (0..THREADS).map(|_| mpsc::channel::<(usize, usize, u8)>()).unzip();
        std::thread::scope(|scope| {
            for (number, inbox) in receivers.into_iter().enumerate() {
                let (pool, senders) = (&pool, senders.clone());
                scope.spawn(move || {
                    let mut state = number as u64;
                    let mut random = |below: usize| (splitmix::next(&mut state) % below as u64) as usize;
                    let mut held = Vec::new();
                    let check_and_give = |(class, at, mark): (usize, usize, u8)| {
                        let block: *const u8 = std::ptr::with_exposed_provenance(at);
                        // SAFETY: the block is this thread's now, and was written whole.
                        unsafe {
                            let bytes = std::slice::from_raw_parts(block, class_bytes(class));
                            assert!(bytes.iter().all(|&byte| byte == mark), "class {class} at {at:x}");
                            give(pool, class, at);
                        }
                    };
                    for step in 0..STEPS {
                        let class = random(CLASSES);
                        let (block, mark) = (pool.take(class).unwrap(), step as u8);
                        // SAFETY: it is this thread's.
                        unsafe { block.write_bytes(mark, class_bytes(class)) };
                        let block = (class, block.expose_provenance().get(), mark);
                        match random(3) {
                            0 => check_and_give(block),
                            1 => held.push(block),
                            _ => drop(senders[random(THREADS)].send(block)),
                        }
                        if held.len() > 50 {
                            check_and_give(held.swap_remove(random(50)));
                        }
                        inbox.try_iter().for_each(check_and_give);
                    }
                    drop(senders);
                    held.into_iter().chain(inbox).for_each(check_and_give);
                });
            }
            drop(senders);
        });
        assert!(pool.classes.iter().all(|class| lock(class).first.is_none()));
    }

    /// # Safety
    /// As of [`Pool::give`].
    unsafe fn give(pool: &Pool, class: usize, at: usize) {
        let block = NonNull::new(std::ptr::with_exposed_provenance_mut(at)).unwrap();
        // SAFETY: passed on.
        unsafe { pool.give(class, block) };
    }
}
