//! The redo log: one append-only sequence of records for all shards. Every commit is one record, and no reply leaves
//! before the log holds what it tells (design: "the write path").
//!
//! # The bytes
//! Integers are little-endian. A segment is a file `<first LSN, 16 hex digits>.log`: a header, then frames. A frame is
//! what one `write(2)` puts, or a part of it: beyond 1 MiB the next record begins a new frame. A record is what one
//! commit appended; its bytes mean nothing here. An LSN counts records from 1 on; a record's is that of its frame plus
//! its position.
//!
//! ```text
//! segment   0        8         12        16       24       32       40
//!           ┌────────┬─────────┬─────────┬────────┬────────┬────────┬───────┬───────┬──
//!           │ magic  │ version │ 0       │ owner  │ salt   │ check  │ frame │ frame │ …
//!           └────────┴─────────┴─────────┴────────┴────────┴────────┴───────┴───────┴──
//!             "TARNLOG\n"                                     └ xxh3-64 of bytes 0..32
//!
//! frame     0       4       8        16        24       32         40       48
//!           ┌───────┬───────┬────────┬─────────┬────────┬──────────┬────────┬─────────────┬──
//!           │ magic │ count │ length │ first   │ synced │ check of │ check  │ len │ record │ …
//!           │       │       │        │ LSN     │ LSN    │ payload  │ of head│     │        │
//!           └───────┴───────┴────────┴─────────┴────────┴──────────┴────────┴─────────────┴──
//!             f5 54 46 1a     └ of payload                            └ of bytes 0..40  └─ payload
//! ```
//! | field | |
//! |---|---|
//! | owner | the data directory's id: a segment of another one is refused |
//! | salt | random; the seed of the segment's frame checksums (xxh3-64): nothing from elsewhere passes for a frame of it |
//! | count | records; 0 in the mark that a clean close leaves, which only carries `synced` |
//! | synced | everything up to this LSN was on disk before the frame was written: what tells a torn tail from damage |
//! | len | length of the record, seven bits a byte, low ones first, the eighth set in all but the last; at least two bytes |
//!
//! The header of a segment is synced before the file gets its name. The name is what says the first LSN; an empty
//! segment thereby keeps the count when all before it are deleted.
//!
//! Behind the last frame of a segment there may be zeros, up to 1 MiB: under `always` they are written ahead, so that
//! syncs need not wait for the file to grow. A start cuts them off.
//!
//! # States
//! | | appends | writes to the file | `acked` moves | ends with |
//! |---|---|---|---|---|
//! | replay | no | no | no | [`Log::start`] |
//! | healthy | yes | by who commits; under `always` by the log thread | `written`, or `synced` under `always` | |
//! | write failed | caller refuses | tried by the log thread every 100 ms | up to what was written | the first write that succeeds |
//! | poisoned (a sync failed) | caller refuses | not to that segment | no | [`Log::rotate`], a flush, [`Log::delete_before`] |
//! | closed | no | no | no | |
//!
//! # Invariants
//! - LSNs in the files are without gap, from where they are needed on ([`Origin`]): a frame that failed is cut off, kept, and written again with the same LSNs.
//! - `synced` ≤ `written` ≤ `last`; `acked` never goes back, and never passes `synced` while `always` holds.
//! - At most one thread writes, none waits to write, and none leaves while others wait for it (`writer`).
//! - Segments are deleted oldest first, one synced removal at a time, never the last.
//! - After a failed sync nothing is acknowledged until no segment is left that it may have concerned.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;

use crate::util::path::folder_of;

mod batch;
mod check;
mod disk;
mod format;
mod note;
mod read;
mod replay;
mod rotate;
mod segment;
pub mod sim;
mod snapshot;
mod writer;

#[cfg(test)]
#[expect(clippy::unwrap_used, clippy::expect_used, reason = "tests")]
mod tests;

pub use check::{Repair, Report, SegmentReport, repair, scan};
pub use disk::{File, Io, RealIo, read_small_file, replace_small_file};
pub use format::FORMAT_VERSION;
pub use note::noted;
pub use replay::Replay;
pub use snapshot::{Segment as SnapshotSegment, Snapshot};

use replay::ReplaySync;
use writer::Core;

/// Bytes from which on a record is better taken over than copied.
pub const LARGE: usize = 64 << 10;

/// Number of a commit: 1 for the first ever, no gaps. 0 stands for "before the first".
pub type Lsn = u64;

/// Called when what a waiter waits for has moved. It must be quick and must not block, so it must not sync, rotate or
/// delete; setting an event is what it is for.
pub type Wake = dyn Fn() + Send + Sync;

/// When the log is synced (`appendfsync`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fsync {
    /// As soon as something is written; acknowledged once it is synced.
    Always,
    /// Every second.
    EverySec,
    /// By rotation, flush and close only; otherwise when the system likes to.
    No,
}

/// What must be known of a log before it is read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Origin {
    /// The number in the header of each of its segments.
    pub owner: u64,
    /// Records below this LSN are needed no more: segments that hold nothing else are passed over, whole or not. A
    /// removal that was interrupted leaves such.
    pub needed_from: Lsn,
}

/// How a log is opened.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where the segments are; created if need be, nothing else should be there.
    pub dir: PathBuf,
    /// Whose log it is, and from where on it is read.
    pub origin: Origin,
    /// The policy to begin with.
    pub fsync: Fsync,
    /// Pause between attempts after a failed write.
    pub retry: Duration,
    /// Time between the syncs of [`Fsync::EverySec`].
    pub sync_interval: Duration,
    /// Where it is noted what has been synced; nowhere in a log of which nobody asks that.
    pub note: Option<PathBuf>,
}

impl Options {
    /// The usual times: 100 ms and 1 s.
    pub fn new(dir: impl Into<PathBuf>, fsync: Fsync) -> Self {
        let (retry, sync_interval) = (Duration::from_millis(100), Duration::from_secs(1));
        Options { dir: dir.into(), origin: Origin::default(), fsync, retry, sync_interval, note: None }
    }
}

/// Where the log stops being whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The segment.
    pub path: PathBuf,
    /// Offset of the first bad byte's frame; 0 if the segment as a whole cannot follow.
    pub offset: u64,
    /// LSN of the record that should stand there.
    pub lsn: Lsn,
    /// What is wrong.
    pub what: &'static str,
    /// The log itself says that this was synced: no torn tail, the disk lost it.
    pub proven: bool,
    /// What a cut here takes away.
    pub lost: Lost,
    index: usize,
}

impl Damage {
    /// The data directory: that of the log's folder.
    fn data_dir(&self) -> &Path {
        folder_of(folder_of(&self.path))
    }
}

/// What lies behind a damage.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lost {
    /// Bytes.
    pub size_bytes: u64,
    /// Whole segments.
    pub segments: usize,
    /// Records in frames that are still whole; those in damaged frames cannot be counted.
    pub records: u64,
    /// The last LSN in them, 0 if there is none.
    pub last: Lsn,
}

/// Why a log cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The disk failed.
    #[error("log: {path}: {source}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// Damage where the log says that all was synced.
    #[error(
        "log: {path} is damaged at offset {offset}, record {lsn}: {what}; later frames prove that it was synced. Put the right file back, or cut the log there: tarn check --repair {dir}",
        path = .0.path.display(), offset = .0.offset, lsn = .0.lsn, what = .0.what, dir = .0.data_dir().display()
    )]
    Damaged(Box<Damage>),
    /// A segment was written in a format that this binary does not know.
    #[error("log: {path} has format version {found}, this binary knows {FORMAT_VERSION}")]
    Version {
        /// The segment.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// A segment of another data directory.
    #[error("log: {path} belongs to another data directory: put the right file in its place, or remove it")]
    Foreign {
        /// The segment.
        path: PathBuf,
    },
}

impl OpenError {
    fn io(path: &Path, source: io::Error) -> Self {
        OpenError::Io { path: path.to_owned(), source }
    }
}

/// Names a waiter, which is whoever keeps replies back: a network thread, say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaiterId(usize);

/// Between two segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SegmentBoundary(Lsn);

impl SegmentBoundary {
    /// Everything below is in segments before the boundary.
    pub fn first_lsn(self) -> Lsn {
        self.0
    }
}

/// A moment's view of the log, for INFO.
#[derive(Debug, Clone)]
pub struct Status {
    /// LSN of the last commit.
    pub last: Lsn,
    /// The last one in the file.
    pub written: Lsn,
    /// The last one known to be on disk.
    pub synced: Lsn,
    /// The last one that may be acknowledged.
    pub acked: Lsn,
    /// Bytes in all segments.
    pub size_bytes: u64,
    /// Number of segments.
    pub segments: usize,
    /// The policy.
    pub fsync: Fsync,
    /// The last write ended well.
    pub write_ok: bool,
    /// The last sync ended well.
    pub sync_ok: bool,
    /// A sync is running.
    pub sync_running: bool,
    /// Bytes of records that are appended and not written.
    pub buffered_bytes: u64,
    /// Syncs that took longer than a second.
    pub delayed_syncs: u64,
}

/// The log. See the module for its states.
pub struct Log {
    core: Arc<Core>,
    replay_sync: ReplaySync,
    started: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Log {
    /// Looks at what is there. Nothing is changed and nothing can be appended until [`Log::start`] gets the replay
    /// back, read to its end.
    ///
    /// # Errors
    /// What the disk says.
    pub fn open(io: Arc<dyn Io>, options: &Options) -> Result<(Log, Replay), OpenError> {
        let dir = &options.dir;
        let created = io.create_dir(dir);
        created.map_err(|source| OpenError::io(dir, source))?;
        let replay = Replay::new(io.clone(), dir, options.origin)?;
        let log = Log {
            core: Arc::new(Core::new(io, options)),
            replay_sync: ReplaySync::default(),
            started: AtomicBool::new(false),
            thread: Mutex::new(None),
        };
        Ok((log, replay))
    }

    /// Cuts the tail, syncs what was read, opens the last segment for writing and starts the log thread.
    ///
    /// # Errors
    /// What the disk says; the log then stays as it is, and the next process tries again.
    ///
    /// # Panics
    /// If the replay was not read to its end.
    pub fn start(&self, replay: Replay) -> Result<(), OpenError> {
        self.start_without_thread(&replay)?;
        let core = self.core.clone();
        let thread = std::thread::Builder::new().name("log".into()).spawn(move || core.run());
        *self.thread.lock() = Some(thread.map_err(|source| OpenError::io(&self.core.dir, source))?);
        Ok(())
    }

    fn start_without_thread(&self, replay: &Replay) -> Result<(), OpenError> {
        assert!(replay.done, "the log starts after its replay");
        replay.start(&self.core)?;
        self.started.store(true, Ordering::Release);
        Ok(())
    }

    /// Appends a record to the buffer and answers its LSN, which `write` gets too. `write` appends the record's
    /// bytes to what is in the vector already; it runs under the append lock.
    ///
    /// Nothing is written before a [`Log::commit`]. While the log is unhealthy the caller refuses writes, else the
    /// buffer would grow without bound.
    ///
    /// # Panics
    /// Before the start, and if `write` shortens the vector.
    #[inline]
    pub fn append(&self, write: impl FnOnce(Lsn, &mut Vec<u8>)) -> Lsn {
        self.core.append(write)
    }

    /// The same of a record of [`LARGE`] bytes or more: it is taken over, so that nobody waits while it is copied.
    pub fn append_large(&self, record: Vec<u8>) -> Lsn {
        self.core.append_large(record)
    }

    /// Brings everything appended so far on its way and answers [`Log::acked`]. Never waits for another writer. Who got an
    /// answer below `upto` goes on with [`Log::wait`].
    pub fn commit(&self, upto: Lsn) -> Lsn {
        self.core.commit(upto)
    }

    /// Has the waiter woken, once, when `acked` has reached `lsn`, of which [`Log::commit`] was told; until then also when
    /// the log's health turns. Nothing else that it was to be woken for counts any more. Answers `acked`: if that is there
    /// by now, nobody is woken.
    pub fn wait(&self, lsn: Lsn, waiter: WaiterId) -> Lsn {
        self.core.wait(lsn, waiter)
    }

    /// Both.
    #[cfg(test)]
    fn commit_for(&self, upto: Lsn, waiter: WaiterId) -> Lsn {
        self.commit(upto).max(self.wait(upto, waiter))
    }

    /// Writes everything up to an LSN, waiting for whoever is writing.
    ///
    /// # Errors
    /// What the disk says.
    pub fn write_to(&self, lsn: Lsn) -> io::Result<()> {
        self.core.want(lsn);
        self.core.write_to(lsn)
    }

    /// Makes a waiter for [`Log::wait`].
    pub fn register(&self, wake: Box<Wake>) -> WaiterId {
        self.core.register(wake)
    }

    /// Ends a waiter; one call of its `wake` may still be under way.
    pub fn unregister(&self, waiter: WaiterId) {
        self.core.unregister(waiter);
    }

    /// Replies that saw nothing above this LSN may leave: it is written, or synced under [`Fsync::Always`].
    #[inline]
    pub fn acked(&self) -> Lsn {
        self.core.acked()
    }

    /// The last LSN in the file.
    pub fn written(&self) -> Lsn {
        self.core.written()
    }

    /// The last LSN known to be on disk.
    pub fn synced(&self) -> Lsn {
        self.core.synced()
    }

    /// The last LSN given.
    pub fn last(&self) -> Lsn {
        self.core.last()
    }

    /// Whether writes may be taken.
    #[inline]
    pub fn is_healthy(&self) -> bool {
        self.core.is_healthy()
    }

    /// Why writes are refused, in the words of `strerror`.
    pub fn health(&self) -> Option<Arc<str>> {
        self.core.state.lock().refusal().cloned()
    }

    /// A sync failed: the owner is to do an ordinary flush, that is [`Log::rotate`], everything dirty below the
    /// boundary into the store, [`Log::delete_before`]. Until that has succeeded nothing is acknowledged. If this
    /// is still so afterwards, a sync failed again, and so it begins anew.
    pub fn needs_flush(&self) -> bool {
        self.core.state.lock().poison.is_some()
    }

    /// Writes and syncs up to an LSN, waiting for the disk: for a flush before it finishes. Also before the start,
    /// when it syncs what is being replayed. After a failed sync it serves again once [`Log::rotate`] has opened
    /// a segment that can be trusted; what the poisoned one holds then counts as done, since the flush at hand is
    /// what saves it.
    ///
    /// # Errors
    /// What the disk says; the log's health has turned.
    pub fn sync_to(&self, lsn: Lsn) -> io::Result<()> {
        if !self.started.load(Ordering::Acquire) {
            return self.replay_sync.sync(&self.core);
        }
        self.core.write_to(lsn)?;
        if lsn == 0 { Ok(()) } else { self.core.sync(lsn) }
    }

    /// Goes on in a new segment and syncs the old one; waits for the disk, committers do not. An empty segment is
    /// kept.
    ///
    /// # Errors
    /// What the disk says. Either nothing has changed, or the new segment is in use and a sync has failed
    /// ([`Log::needs_flush`]).
    pub fn rotate(&self) -> io::Result<SegmentBoundary> {
        self.core.rotate()
    }

    /// Where the newest segment begins; 0 before the start.
    pub fn newest_segment(&self) -> Lsn {
        self.core.segments.lock().last().map_or(0, |newest| newest.first)
    }

    /// Removes the segments before a boundary, oldest first, when everything in them is in the store and on disk.
    ///
    /// # Errors
    /// What the disk says; to be called again.
    pub fn delete_before(&self, boundary: SegmentBoundary) -> io::Result<()> {
        self.core.delete_before(boundary)
    }

    /// Everything that is written by now, and nothing after it.
    ///
    /// # Errors
    /// What the disk says.
    pub fn snapshot(&self) -> io::Result<Snapshot> {
        self.core.snapshot()
    }

    /// Changes the policy. What is acknowledged stays so; everything else is acknowledged by the new one.
    pub fn set_fsync(&self, fsync: Fsync) {
        self.core.publish(|state| state.fsync = fsync);
        self.core.notify();
        // What was left to the log thread, which may be waiting for the disk.
        self.core.drive();
    }

    /// Bytes in all segments.
    pub fn size_bytes(&self) -> u64 {
        self.core.size_bytes.load(Ordering::Relaxed)
    }

    /// The numbers for INFO.
    pub fn status(&self) -> Status {
        // Before the state's lock, as the order of locks has it.
        let buffered_bytes = self.core.buffered_bytes();
        let state = self.core.state.lock();
        Status {
            last: self.last(),
            written: state.written,
            synced: state.synced,
            acked: state.acked,
            size_bytes: self.size_bytes(),
            segments: self.core.segment_count.load(Ordering::Relaxed),
            fsync: state.fsync,
            write_ok: state.write_error.is_none(),
            sync_ok: state.sync_ok,
            sync_running: self.core.sync_running.load(Ordering::Acquire),
            buffered_bytes,
            delayed_syncs: self.core.delayed_syncs.load(Ordering::Relaxed),
        }
    }

    /// Writes and syncs everything and ends the log thread. The log takes nothing more.
    ///
    /// # Errors
    /// What the disk says: the end of the log may be lost.
    pub fn close(&self) -> io::Result<()> {
        self.end_thread();
        if self.core.with_writer(|writer| writer.segment.is_none()) {
            return Ok(());
        }
        let closed = self.core.close();
        self.core.note_synced();
        closed
    }

    fn end_thread(&self) {
        self.core.stop();
        if let Some(thread) = self.thread.lock().take() {
            // A panic of the thread has been reported; there is nothing to add.
            let _ = thread.join();
        }
    }
}

/// Ends the thread. What is buffered is lost, as in a crash: [`Log::close`] comes first.
impl Drop for Log {
    fn drop(&mut self) {
        self.end_thread();
    }
}
