//! The writing side: the buffer that commits append to, the writer that empties it, the numbers that say how far.
//!
//! | lock | protects | held across |
//! |---|---|---|
//! | `segments` | the list of files; rotation and deletion one at a time | everything below |
//! | `syncing` | one sync at a time | fdatasync |
//! | `writer` | the current segment, the frames being written | write(2), truncate, rename |
//! | `pending` | records not yet taken by the writer | nothing |
//! | `state` | the numbers, health, waiters | nothing |
//! | `note` | the note of what has been synced | write(2) |
//!
//! Taken in this order only, each may be skipped. `pending` alone is on the path of an append, and nobody holds
//! it across a system call. A wake callback may run under `segments` or `syncing`, never under the others; it must not
//! rotate, delete or sync.
//!
//! **Nothing is stranded.** A committer raises `wanted`, then tries the writer's lock. If it is taken, its holder
//! looks at `wanted` after it has let go. Either the committer gets the lock or the holder sees the raised `wanted`:
//! the fences of [`Core::drive_with`] order the store and the load on both sides. That every holder looks is seen to by the
//! two functions that take the lock: [`Core::with_writer`] drives whatever became of its closure, and `drive_with` itself
//! goes round again after every turn that did not fail, the one that found nothing to write too: what it found it found
//! *before* it let go. Who stops looking has somebody else to go on:
//!
//! | stops because | goes on |
//! |---|---|
//! | all that is wanted is written | nobody need |
//! | the lock is taken | its holder, who looks afterwards |
//! | a write failed | the log thread, notified, after the pause |
//! | the segment is poisoned | the rotation, which drives once the new segment is there |
//! | `ROUNDS_MAX` turns on behalf of others | the log thread, notified |
//! | large records wait, together [`MUCH`], and no sync runs | the log thread, notified |
//! | replies wait for a sync | the log thread, notified; while it syncs, as long as less than [`MUCH`] waits |

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use smallvec::SmallVec;

use super::batch::Batch;
use super::disk::{File, Io};
use super::note::Note;
use super::segment::Segment;
use super::{Fsync, Lsn, WaiterId, Wake};
use crate::latency::{self, Event};
use crate::util::ticks;

/// A committer leaves the writing to the log thread after so many rounds on behalf of others.
const ROUNDS_MAX: usize = 4;

/// So many bytes take some ms to be written. Of large records a committer leaves as many to the log thread: its own thread has
/// others to serve. But no more than so many wait in memory until that has synced.
pub(super) const MUCH: usize = 1 << 20;

/// A sync that takes longer is counted as such.
const SLOW_SYNC: Duration = Duration::from_secs(1);

/// Keeps what several threads write apart from its neighbours (two cache lines: they are fetched in pairs).
#[repr(align(128))]
pub(super) struct Padded<T>(pub(super) T);

/// Who writes frames.
#[derive(Default)]
pub(super) struct Writer {
    /// The current segment; `None` until the log is started and after it is closed.
    pub(super) segment: Option<Segment>,
    /// Bytes beyond the segment's end are to be cut before anything is written.
    torn: bool,
    /// What is being written, kept until it is.
    batch: Batch,
}

impl Writer {
    /// See [`Segment::make_room`].
    fn make_room(&mut self) {
        if let Some(segment) = self.segment.as_mut().filter(|_| !self.torn) {
            segment.make_room();
        }
    }

    /// Cuts what a failed write left behind the last whole frame.
    pub(super) fn mend(&mut self) -> io::Result<()> {
        if let Some(segment) = self.segment.as_mut().filter(|_| self.torn) {
            segment.file.truncate(segment.end)?;
            segment.room = 0;
            self.torn = false;
        }
        Ok(())
    }
}

/// A segment that a sync failed on.
#[derive(Clone)]
pub(super) struct Poison {
    /// Segments up to this generation are trusted no more.
    pub(super) upto: u64,
    pub(super) why: Arc<str>,
}

/// A segment among the others.
pub(super) struct Listed {
    pub(super) first: Lsn,
    pub(super) generation: u64,
    /// Its size; of the one that is being written, the size it had when it was opened.
    pub(super) size_bytes: u64,
}

/// Who is to be woken.
type Wakes = SmallVec<[Arc<Wake>; 8]>;

struct Slot {
    wake: Arc<Wake>,
    /// What it waits for; 0 if for nothing.
    want: Lsn,
}

/// The numbers behind the atomics of [`Core`], changed together.
pub(super) struct State {
    pub(super) fsync: Fsync,
    pub(super) written: Lsn,
    /// On disk, in segments that are trusted or flushed. Stands still while a segment is poisoned.
    pub(super) synced: Lsn,
    /// On disk as far as the trusted segments are concerned; equals `synced` while none is poisoned.
    pub(super) durable: Lsn,
    pub(super) acked: Lsn,
    /// Why writes are refused apart from errors: not started, or closed.
    pub(super) shut: Option<Arc<str>>,
    pub(super) write_error: Option<Arc<str>>,
    pub(super) poison: Option<Poison>,
    /// The last sync ended well.
    pub(super) sync_ok: bool,
    /// Segments (by generation) with something that may not be synced, oldest first; the last one is being written.
    pub(super) unsynced: Vec<(u64, Arc<dyn File>)>,
    /// The directory has a name that is not synced.
    pub(super) dir_dirty: bool,
    slots: Vec<Option<Slot>>,
    /// Slots that want something.
    waiting: usize,
}

impl State {
    pub(super) fn new(fsync: Fsync) -> Self {
        State {
            fsync,
            written: 0,
            synced: 0,
            durable: 0,
            acked: 0,
            shut: Some("the log is being replayed".into()),
            write_error: None,
            poison: None,
            sync_ok: true,
            unsynced: Vec::new(),
            dir_dirty: false,
            slots: Vec::new(),
            waiting: 0,
        }
    }

    pub(super) fn refusal(&self) -> Option<&Arc<str>> {
        let poison = self.poison.as_ref().map(|poison| &poison.why);
        self.shut.as_ref().or(poison).or(self.write_error.as_ref())
    }

    /// Brings the derived numbers up to date.
    fn settle(&mut self) {
        if self.poison.is_some() {
            return;
        }
        self.synced = self.synced.max(self.durable);
        let reached = if self.fsync == Fsync::Always { self.synced } else { self.written };
        self.acked = self.acked.max(reached);
    }

    /// Whoever has what it waits for; if the log's health has turned, everybody who waits.
    fn wakes(&mut self, turned: bool) -> Wakes {
        let mut wakes = Wakes::new();
        for slot in self.slots.iter_mut().flatten().filter(|slot| slot.want > 0) {
            let reached = slot.want <= self.acked;
            if reached || turned {
                wakes.push(slot.wake.clone());
            }
            if reached {
                slot.want = 0;
                self.waiting -= 1;
            }
        }
        wakes
    }
}

#[derive(Default)]
struct Signal {
    work: bool,
    stop: bool,
}

/// What the log and its thread share.
pub(super) struct Core {
    pub(super) io: Arc<dyn Io>,
    pub(super) dir: PathBuf,
    /// Whose log it is; stands in every segment.
    pub(super) owner: u64,
    retry: Duration,
    sync_interval: Duration,
    pending: Padded<Mutex<Batch>>,
    /// Bytes of the large records in there.
    pending_large: AtomicUsize,
    last: Padded<AtomicU64>,
    wanted: AtomicU64,
    written: AtomicU64,
    synced: AtomicU64,
    acked: Padded<AtomicU64>,
    healthy: AtomicBool,
    /// Only the log thread tries to write while this is set.
    write_failed: AtomicBool,
    /// Replies wait for a sync.
    by_replies: AtomicBool,
    /// The log thread runs.
    pub(super) has_thread: AtomicBool,
    /// Generation of the newest poisoned segment, 0 if there is none.
    poisoned: AtomicU64,
    pub(super) sync_running: AtomicBool,
    /// Syncs that took longer than [`SLOW_SYNC`].
    pub(super) delayed_syncs: AtomicU64,
    pub(super) size_bytes: AtomicU64,
    /// How many there are, for who must not wait for a rotation.
    pub(super) segment_count: AtomicUsize,
    /// Taken by [`Core::with_writer`] and [`Core::drive_with`] alone.
    writer: Mutex<Writer>,
    pub(super) state: Mutex<State>,
    syncing: Mutex<()>,
    note: Mutex<Note>,
    /// Every segment, oldest first; the last one is being written.
    pub(super) segments: Mutex<Vec<Listed>>,
    /// Every snapshot has one more.
    pub(super) pins: Arc<()>,
    signal: Mutex<Signal>,
    signalled: Condvar,
}

impl Core {
    pub(super) fn new(io: Arc<dyn Io>, options: &super::Options) -> Self {
        Core {
            io,
            dir: options.dir.clone(),
            owner: options.origin.owner,
            retry: options.retry,
            sync_interval: options.sync_interval,
            pending: Padded(Mutex::default()),
            pending_large: AtomicUsize::new(0),
            last: Padded(AtomicU64::new(0)),
            wanted: AtomicU64::new(0),
            written: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            acked: Padded(AtomicU64::new(0)),
            healthy: AtomicBool::new(false),
            write_failed: AtomicBool::new(false),
            has_thread: AtomicBool::new(false),
            by_replies: AtomicBool::new(options.fsync == Fsync::Always),
            poisoned: AtomicU64::new(0),
            sync_running: AtomicBool::new(false),
            delayed_syncs: AtomicU64::new(0),
            size_bytes: AtomicU64::new(0),
            segment_count: AtomicUsize::new(0),
            writer: Mutex::default(),
            state: Mutex::new(State::new(options.fsync)),
            syncing: Mutex::new(()),
            note: Mutex::new(Note::new(options.note.clone())),
            segments: Mutex::new(Vec::new()),
            pins: Arc::default(),
            signal: Mutex::default(),
            signalled: Condvar::new(),
        }
    }

    #[inline]
    pub(super) fn append(&self, write: impl FnOnce(Lsn, &mut Vec<u8>)) -> Lsn {
        let mut pending = self.pending.0.lock();
        let lsn = pending.append(write);
        self.last.0.store(lsn, Ordering::Release);
        lsn
    }

    pub(super) fn append_large(&self, record: Vec<u8>) -> Lsn {
        let size_bytes = record.len();
        let mut pending = self.pending.0.lock();
        let lsn = pending.append_large(record);
        self.pending_large.fetch_add(size_bytes, Ordering::Relaxed);
        self.last.0.store(lsn, Ordering::Release);
        lsn
    }

    pub(super) fn last(&self) -> Lsn {
        self.last.0.load(Ordering::Acquire)
    }

    pub(super) fn written(&self) -> Lsn {
        self.written.load(Ordering::Acquire)
    }

    pub(super) fn synced(&self) -> Lsn {
        self.synced.load(Ordering::Acquire)
    }

    #[inline]
    pub(super) fn acked(&self) -> Lsn {
        self.acked.0.load(Ordering::Acquire)
    }

    #[inline]
    pub(super) fn is_healthy(&self) -> bool {
        self.healthy.load(Ordering::Acquire)
    }

    /// The first record gets the LSN after `last`; everything up to it is on disk.
    pub(super) fn begin(&self, segment: Segment, last: Lsn, segments: Vec<Listed>) {
        let size_bytes = segments.iter().map(|listed| listed.size_bytes).sum();
        self.size_bytes.store(size_bytes, Ordering::Release);
        self.segment_count.store(segments.len(), Ordering::Relaxed);
        *self.segments.lock() = segments;
        let unsynced = vec![(segment.generation, segment.file.clone())];
        self.with_writer(|mut writer| {
            writer.segment = Some(segment);
            self.pending.0.lock().next = last + 1;
            self.last.0.store(last, Ordering::Release);
        });
        self.publish(|state| {
            (state.written, state.durable, state.acked) = (last, last, last);
            state.unsynced = unsynced;
            state.shut = None;
        });
    }

    /// Changes the state, makes it visible and wakes those who wait if it moved what they wait for.
    pub(super) fn publish<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let (result, wakes) = self.publish_quietly(change);
        wakes.iter().for_each(|wake| wake());
        result
    }

    /// The same, with the waking left to the caller, who holds a lock.
    fn publish_quietly<R>(&self, change: impl FnOnce(&mut State) -> R) -> (R, Wakes) {
        let mut state = self.state.lock();
        let (acked, refused) = (state.acked, state.refusal().cloned());
        let result = change(&mut state);
        state.settle();
        self.written.store(state.written, Ordering::Release);
        self.synced.store(state.synced, Ordering::Release);
        self.acked.0.store(state.acked, Ordering::Release);
        self.write_failed.store(state.write_error.is_some(), Ordering::Release);
        self.by_replies.store(state.fsync == Fsync::Always, Ordering::Release);
        self.poisoned.store(state.poison.as_ref().map_or(0, |poison| poison.upto), Ordering::Release);
        self.healthy.store(state.refusal().is_none(), Ordering::Release);
        let turned = state.refusal() != refused.as_ref();
        let moved = turned || state.acked != acked;
        let wakes = if moved && state.waiting > 0 { state.wakes(turned) } else { Wakes::new() };
        let refusal = state.refusal().filter(|_| turned).cloned();
        let closed = state.shut.is_some();
        drop(state);
        match refusal {
            Some(_) if closed => tracing::debug!("log is closed"),
            Some(why) => tracing::error!(%why, "log refuses writes"),
            None if turned => tracing::info!("log takes writes"),
            None => {}
        }
        (result, wakes)
    }

    pub(super) fn register(&self, wake: Box<Wake>) -> WaiterId {
        let slot = Some(Slot { wake: wake.into(), want: 0 });
        let mut state = self.state.lock();
        match state.slots.iter().position(Option::is_none) {
            Some(free) => {
                state.slots[free] = slot;
                WaiterId(free)
            }
            None => {
                state.slots.push(slot);
                WaiterId(state.slots.len() - 1)
            }
        }
    }

    pub(super) fn unregister(&self, waiter: WaiterId) {
        let mut state = self.state.lock();
        let slot = state.slots.get_mut(waiter.0).and_then(Option::take);
        if slot.is_some_and(|slot| slot.want > 0) {
            state.waiting -= 1;
        }
    }

    pub(super) fn commit(&self, upto: Lsn) -> Lsn {
        debug_assert!(upto <= self.last(), "a commit of what was never appended");
        let acked = self.acked();
        if acked >= upto {
            return acked;
        }
        self.want(upto);
        if self.is_left_to_thread() {
            self.notify();
        } else {
            self.drive();
        }
        self.acked()
    }

    /// Whether a committer leaves the writing to the log thread.
    fn is_left_to_thread(&self) -> bool {
        let syncs = self.sync_running.load(Ordering::Acquire);
        if self.is_written_by_thread() {
            // Nobody is answered before the next sync. What is much, and would wait for it in memory, is written meanwhile.
            return !syncs || self.buffered_bytes() < MUCH as u64;
        }
        !syncs && self.pending_large.load(Ordering::Relaxed) >= MUCH
    }

    /// Whether replies wait for a sync, and the log thread writes before it all that has come by then, at one go.
    fn is_written_by_thread(&self) -> bool {
        self.by_replies.load(Ordering::Relaxed) && self.has_thread.load(Ordering::Acquire)
    }

    pub(super) fn wait(&self, lsn: Lsn, waiter: WaiterId) -> Lsn {
        let acked = self.acked();
        if acked >= lsn {
            return acked;
        }
        let mut state = self.state.lock();
        let acked = state.acked;
        if acked < lsn
            && let Some(slot) = state.slots.get_mut(waiter.0).and_then(Option::as_mut)
        {
            let begins = std::mem::replace(&mut slot.want, lsn) == 0;
            state.waiting += usize::from(begins);
        }
        acked
    }

    /// Raises what is to be written.
    pub(super) fn want(&self, upto: Lsn) {
        self.wanted.fetch_max(upto, Ordering::Relaxed);
    }

    /// Whether frames that somebody waits for could be written now.
    fn wants_write(&self) -> bool {
        self.written() < self.wanted.load(Ordering::Relaxed) && !self.write_failed.load(Ordering::Acquire)
    }

    /// Writes what is wanted unless somebody else is at it, who then looks again.
    pub(super) fn drive(&self) {
        self.drive_with(|writer| self.write_out(writer));
    }

    /// The same, with `turn` for the writing; it lets go of the lock.
    pub(super) fn drive_with(&self, mut turn: impl FnMut(MutexGuard<'_, Writer>) -> io::Result<bool>) {
        for _ in 0..ROUNDS_MAX {
            fence(Ordering::SeqCst);
            if !self.wants_write() {
                return;
            }
            let Some(writer) = self.writer.try_lock() else { return };
            // Also if there was nothing to write: somebody may have come since, found the lock taken and left.
            if turn(writer).is_err() {
                return;
            }
        }
        self.notify();
    }

    /// Runs something that holds the writer's lock, for which it waits, and then looks for who found it taken.
    pub(super) fn with_writer<R>(&self, run: impl FnOnce(MutexGuard<'_, Writer>) -> R) -> R {
        let result = run(self.writer.lock());
        self.drive();
        result
    }

    /// Bytes that the writer has not taken yet.
    pub(super) fn buffered_bytes(&self) -> u64 {
        self.pending.0.lock().size_bytes()
    }

    /// Memory that both buffers hold.
    #[cfg(test)]
    pub(super) fn buffer_bytes(&self) -> usize {
        self.writer.lock().batch.buf.capacity() + self.pending.0.lock().buf.capacity()
    }

    /// Writes everything appended so far with one write(2). False if there was nothing.
    pub(super) fn write_out(&self, mut writer: MutexGuard<'_, Writer>) -> io::Result<bool> {
        if !self.fill(&mut writer)? {
            return Ok(false);
        }
        let (size_bytes, last) = (writer.batch.size_bytes(), writer.batch.next - 1);
        let began = ticks::now();
        let result = self.put(&mut writer);
        latency::keep(Event::AofWrite, ticks::ns_since(began));
        if result.is_ok() {
            self.size_bytes.fetch_add(size_bytes, Ordering::Relaxed);
            writer.batch.clear();
        }
        // Under the writer's lock, so that a rotation finds `written` exact; the waking is not.
        let (is_work, wakes) = self.publish_quietly(|state| match &result {
            Ok(()) => {
                state.written = last;
                state.write_error = None;
                state.fsync == Fsync::Always
            }
            Err(error) => {
                state.write_error = Some(reason(error));
                true
            }
        });
        drop(writer);
        wakes.iter().for_each(|wake| wake());
        if is_work {
            self.notify();
        }
        result.map(|()| true)
    }

    /// Takes what was appended, unless the last batch is still to be written, and seals it. False if there is nothing.
    fn fill(&self, writer: &mut Writer) -> io::Result<bool> {
        let Writer { segment: Some(segment), batch, .. } = writer else {
            return Err(io::Error::other("the log is not open"));
        };
        if segment.generation <= self.poisoned.load(Ordering::Acquire) {
            return Err(poisoned());
        }
        if batch.marks.is_empty() {
            let mut pending = self.pending.0.lock();
            batch.take(&mut pending);
            self.pending_large.store(0, Ordering::Relaxed);
        }
        batch.seal(segment.salt, self.synced());
        Ok(!batch.marks.is_empty())
    }

    /// Puts the sealed batch behind the last whole frame, or leaves that the last.
    fn put(&self, writer: &mut Writer) -> io::Result<()> {
        writer.mend()?;
        let Some(segment) = &mut writer.segment else { return Ok(()) };
        match writer.batch.write(&*segment.file, segment.end) {
            Ok(()) => {
                segment.end += writer.batch.size_bytes();
                Ok(())
            }
            Err(error) => {
                writer.torn = true;
                // If it cannot be cut now it is cut before the next attempt.
                let _ = writer.mend();
                Err(error)
            }
        }
    }

    /// Writes up to an LSN, waiting for whoever is writing.
    pub(super) fn write_to(&self, lsn: Lsn) -> io::Result<()> {
        if self.written() >= lsn {
            return Ok(());
        }
        let mut result = Ok(true);
        while self.written() < lsn && matches!(result, Ok(true)) {
            result = self.with_writer(|writer| self.write_out(writer));
        }
        result.map(drop)
    }

    /// Syncs everything that is written in trusted segments, and writes first what was left to the log thread. One at a time; who
    /// waited for the one before is often served by it (`lsn`).
    pub(super) fn sync(&self, lsn: Lsn) -> io::Result<()> {
        let _one = self.syncing.lock();
        if self.is_written_by_thread() {
            // Also what has come while another sync was waited for. An error is in the state by now.
            let _ = self.with_writer(|writer| self.write_out(writer));
        }
        let (target, files, dir_dirty) = {
            let state = self.state.lock();
            if state.durable >= lsn && lsn > 0 {
                return Ok(());
            }
            let upto = state.poison.as_ref().map_or(0, |poison| poison.upto);
            let trusted = |&&(generation, _): &&(u64, _)| generation > upto;
            (state.written, state.unsynced.iter().filter(trusted).cloned().collect::<Vec<_>>(), state.dir_dirty)
        };
        let Some(newest) = files.last().map(|&(generation, _)| generation) else {
            return Err(poisoned());
        };
        self.sync_running.store(true, Ordering::Release);
        let began = Instant::now();
        let mut result = self.io.step("log.sync");
        for (_, file) in &files {
            result = result.and_then(|()| file.sync_data());
        }
        if dir_dirty {
            result = result.and_then(|()| self.io.sync_dir(&self.dir));
        }
        self.sync_running.store(false, Ordering::Release);
        let (took, by_replies) = (began.elapsed(), self.by_replies.load(Ordering::Relaxed));
        let event = if by_replies { Event::AofFsyncAlways } else { Event::LogSync };
        latency::keep(event, took.as_nanos() as u64);
        if took > SLOW_SYNC {
            self.delayed_syncs.fetch_add(1, Ordering::Relaxed);
        }
        self.publish(|state| match &result {
            Ok(()) => {
                state.sync_ok = true;
                state.durable = state.durable.max(target);
                state.unsynced.retain(|&(generation, _)| generation >= newest);
                // A rotation in the meantime has made it dirty again.
                state.dir_dirty &= !dir_dirty || state.unsynced.len() > 1;
            }
            Err(error) => {
                state.sync_ok = false;
                state.poison = Some(Poison { upto: newest, why: reason(error) });
            }
        });
        result
    }

    /// Something is written that is not synced, and a sync would help.
    pub(super) fn needs_sync(state: &State) -> bool {
        let current = state.unsynced.last().map_or(0, |&(generation, _)| generation);
        state.written > state.durable && state.poison.as_ref().is_none_or(|poison| current > poison.upto)
    }

    /// Has the log thread look at what is to be done.
    pub(super) fn notify(&self) {
        self.signal.lock().work = true;
        self.signalled.notify_one();
    }

    /// Ends the log thread after the turn it is in.
    pub(super) fn stop(&self) {
        self.signal.lock().stop = true;
        self.signalled.notify_one();
    }

    /// The log thread: retries what failed, writes what committers left, syncs.
    pub(super) fn run(&self) {
        let mut next_sync = Instant::now() + self.sync_interval;
        self.has_thread.store(true, Ordering::Release);
        loop {
            // After a failed write only time, not another commit, is a reason to try again.
            let failed = self.write_failed.load(Ordering::Acquire);
            let until = if failed { Instant::now() + self.retry } else { next_sync };
            let mut signal = self.signal.lock();
            while !signal.stop && (failed || !signal.work) {
                if self.signalled.wait_until(&mut signal, until).timed_out() {
                    break;
                }
            }
            if signal.stop {
                self.has_thread.store(false, Ordering::Release);
                return;
            }
            signal.work = false;
            drop(signal);
            let now = Instant::now();
            let due = now >= next_sync;
            if due {
                next_sync = now + self.sync_interval;
            }
            self.turn(due);
        }
    }

    /// Notes what has been synced.
    pub(super) fn note_synced(&self) {
        self.note.lock().keep(&*self.io, self.owner, self.synced());
    }

    /// One round of the log thread; `due` says that the second of `everysec` is over.
    pub(super) fn turn(&self, due: bool) {
        let failed = self.write_failed.load(Ordering::Acquire);
        if failed || self.wants_write() {
            // An error is in the state by now.
            let _ = self.with_writer(|writer| self.write_out(writer));
        }
        let (wanted, often) = {
            let state = self.state.lock();
            let often = state.fsync == Fsync::Always;
            let now = often || state.fsync == Fsync::EverySec && due;
            (now && Core::needs_sync(&state), often)
        };
        if wanted && often {
            self.with_writer(|mut writer| writer.make_room());
        }
        if wanted {
            let _ = self.sync(0);
        }
        if due {
            self.note_synced();
        }
    }
}

fn poisoned() -> io::Error {
    io::Error::other("the log's segment is poisoned by a failed sync")
}

/// An error as a client is told it, which is as `strerror` has it.
pub(super) fn reason(error: &io::Error) -> Arc<str> {
    let text = error.to_string();
    match text.rfind(" (os error ") {
        Some(end) => text[..end].into(),
        None => text.into(),
    }
}
