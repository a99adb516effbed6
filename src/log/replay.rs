//! From files to a running log: the records are read once, the tail is cut, what was read is synced.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::disk::{File, Io, read_full, write_all};
use super::format::{SEGMENT_HEADER, split_record};
use super::read::{CHUNK, Found, SegmentReader, Walker, cut, list_segments};
use super::rotate::GONE;
use super::segment::{self, Segment};
use super::writer::{Core, Listed};
use super::{Damage, Lsn, OpenError, Origin};
use crate::util::path::folder_of;

/// Every record of a log that was opened, oldest first. Needs as much memory as a frame: 1 MiB and one record.
pub struct Replay {
    walker: Walker,
    /// LSN and position in the frame of the next record, and how many the frame still has.
    next: Lsn,
    at: usize,
    left: u32,
    tail: Option<Damage>,
    /// The log goes on above this LSN, wherever it ends.
    floor: Lsn,
    pub(super) done: bool,
}

impl Replay {
    pub(super) fn new(io: Arc<dyn Io>, dir: &Path, origin: Origin) -> Result<Self, OpenError> {
        let walker = Walker::new(io, dir, origin)?;
        Ok(Replay { walker, next: 0, at: 0, left: 0, tail: None, floor: 0, done: false })
    }

    /// The next record. `None` after the last; [`Log::start`](super::Log::start) then opens the log for writing.
    ///
    /// # Errors
    /// [`OpenError::Damaged`] for a damage below the LSN known to be synced, else what the disk says. After an error
    /// the log cannot be started.
    pub fn next_record(&mut self) -> Result<Option<(Lsn, &[u8])>, OpenError> {
        while self.left == 0 {
            if self.done {
                return Ok(None);
            }
            match self.walker.next_frame()? {
                Found::Frame(header) => (self.next, self.at, self.left) = (header.first, 0, header.count),
                Found::End => self.done = true,
                Found::Damage(damage) if damage.proven => return Err(OpenError::Damaged(Box::new(damage))),
                Found::Damage(damage) => {
                    self.tail = Some(damage);
                    self.done = true;
                }
            }
        }
        let payload = self.walker.payload();
        // The frame was found well formed: it has all its records.
        let Some((record, rest)) = split_record(&payload[self.at..]) else { return Ok(None) };
        let lsn = self.next;
        self.at = payload.len() - rest.len();
        self.left -= 1;
        self.next += 1;
        Ok(Some((lsn, record)))
    }

    /// The tail that the start will cut, once the replay has met it.
    pub fn tail(&self) -> Option<&Damage> {
        self.tail.as_ref()
    }

    /// Where the oldest and the newest segment that are needed begin; `None` if there is none.
    pub fn bounds(&self) -> Option<(Lsn, Lsn)> {
        let segments = &self.walker.segments;
        Some((segments.first()?.0, segments.last()?.0))
    }

    /// Whether no record has ever been written: a process that ends during the first start leaves this, too.
    ///
    /// # Errors
    /// What the disk says.
    pub fn is_blank(&self, io: &dyn Io) -> Result<bool, OpenError> {
        match &self.walker.segments[..] {
            [] => Ok(true),
            [(1, path)] => {
                let size_bytes = io.open(path).and_then(|file| file.size_bytes());
                Ok(size_bytes.map_err(|source| OpenError::io(path, source))? <= SEGMENT_HEADER as u64)
            }
            _ => Ok(false),
        }
    }

    /// LSN of the last record read so far; one less than the first segment's first if there is none.
    pub fn last(&self) -> Lsn {
        self.walker.expected - 1
    }

    /// Has the log go on above an LSN that it does not reach. What was read must be needed no more by the next start:
    /// in the segments there is a gap behind it.
    pub fn go_on_above(&mut self, floor: Lsn) {
        self.floor = floor;
    }

    /// Cuts the tail, syncs what was read and opens the last segment for writing.
    pub(super) fn start(&self, core: &Core) -> Result<(), OpenError> {
        let (io, dir) = (&*core.io, &core.dir);
        let step = |name| io.step(name).map_err(|source| OpenError::io(dir, source));
        step("log.start")?;
        // The directory itself may be new; what is synced in it is worth as much as its own name.
        io.sync_dir(folder_of(dir)).map_err(|source| OpenError::io(dir, source))?;
        if let Some(damage) = &self.tail {
            tracing::warn!(
                path = %damage.path.display(), offset = damage.offset, lsn = damage.lsn,
                bytes = damage.lost.size_bytes, segments = damage.lost.segments, why = damage.what,
                "log tail cut"
            );
            cut(io, dir, core.owner, &self.walker.segments, damage)?;
        }
        let gone = dir.join(GONE);
        match io.remove(&gone) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            result => result.map_err(|source| OpenError::io(&gone, source))?,
        }
        let mut segments = list_segments(io, dir)?;
        // Of whichever segment is the last one by now: frames follow each other.
        for (path, end) in self.walker.rooms.iter().filter(|(room, _)| segments.iter().any(|(_, path)| path == room)) {
            let cut = io.open(path).and_then(|file| file.truncate(*end));
            cut.map_err(|source| OpenError::io(path, source))?;
        }
        self.rewrite_unproven(io, &segments)?;
        sync_segments(io, &segments)?;
        let last = self.last().max(self.floor);
        if segments.is_empty() || last > self.last() {
            segment::create(io, dir, core.owner, last + 1).map_err(|source| OpenError::io(dir, source))?;
            segments = list_segments(io, dir)?;
        }
        let Some((_, newest)) = segments.last() else {
            return Err(OpenError::io(dir, std::io::ErrorKind::NotFound.into()));
        };
        io.sync_dir(dir).map_err(|source| OpenError::io(dir, source))?;
        step("log.start.synced")?;
        let mut listed = Vec::with_capacity(segments.len());
        for (i, (first, path)) in segments.iter().enumerate() {
            let size_bytes = io.open(path).and_then(|file| file.size_bytes());
            let size_bytes = size_bytes.map_err(|source| OpenError::io(path, source))?;
            listed.push(Listed { first: *first, generation: i as u64 + 1, size_bytes });
        }
        let opened = SegmentReader::open(io, newest, core.owner).map_err(|source| OpenError::io(newest, source))?;
        let Ok(reader) = opened else {
            return Err(OpenError::io(newest, std::io::Error::other("the segment changed during the start")));
        };
        let segment = Segment {
            file: reader.file,
            first: segments.last().map_or(1, |&(first, _)| first),
            generation: segments.len() as u64,
            salt: reader.salt,
            end: reader.size_bytes,
            room: 0,
        };
        core.begin(segment, last, listed);
        Ok(())
    }

    /// Writes again, in place, what no frame proves to be synced. If a sync failed in the process before, its
    /// pages are in the system's memory only but count as clean: a sync alone would pass them by and answer well.
    fn rewrite_unproven(&self, io: &dyn Io, segments: &[(Lsn, PathBuf)]) -> Result<(), OpenError> {
        if self.walker.synced + 1 >= self.walker.expected {
            return Ok(());
        }
        let Some((needed_from, _)) = self.bounds() else { return Ok(()) };
        let (index, offset) = self.walker.place(self.walker.synced + 1);
        let needed = segments.iter().filter(|&&(first, _)| first >= needed_from);
        for (i, (_, path)) in needed.enumerate().skip(index) {
            let from = if i == index { offset } else { 0 };
            let rewritten = io.open(path).and_then(|file| rewrite(&*file, from));
            rewritten.map_err(|source| OpenError::io(path, source))?;
        }
        Ok(())
    }
}

/// Reads a file from `offset` on and writes the same bytes where they were.
fn rewrite(file: &dyn File, mut offset: u64) -> std::io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    loop {
        let read = read_full(file, &mut chunk, offset)?;
        if read == 0 {
            return Ok(());
        }
        write_all(file, &chunk[..read], offset)?;
        offset += read as u64;
    }
}

fn sync_segments(io: &dyn Io, segments: &[(Lsn, PathBuf)]) -> Result<(), OpenError> {
    for (_, path) in segments {
        io.open(path).and_then(|file| file.sync_all()).map_err(|source| OpenError::io(path, source))?;
    }
    Ok(())
}

/// What a flush during the replay needs of the log: that what was read is on disk. (Not that it survives a sync
/// that failed before an earlier crash, too: which part that could concern is known only when all has been read.)
#[derive(Default)]
pub(super) struct ReplaySync(AtomicBool);

impl ReplaySync {
    /// Syncs all files, once: nothing is written before the start.
    pub(super) fn sync(&self, core: &Core) -> std::io::Result<()> {
        if self.0.load(Ordering::Acquire) {
            return Ok(());
        }
        let all = list_segments(&*core.io, &core.dir).and_then(|segments| sync_segments(&*core.io, &segments));
        all.map_err(std::io::Error::other)?;
        self.0.store(true, Ordering::Release);
        Ok(())
    }
}
