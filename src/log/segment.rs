//! Creating segments, and the files they are while nobody knows them.
//!
//! A segment is written as `next.tmp`, its header synced, and only then renamed: a `.log` with a damaged header is
//! damage, never a crash in the wrong moment. The rename itself is synced by the caller.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Lsn;
use super::disk::{File, Io, write_all};
use super::format::{SEGMENT_HEADER, encode_segment_header, new_salt, segment_path};

/// A segment that can be written to.
pub(super) struct Segment {
    pub(super) file: Arc<dyn File>,
    /// The LSN in its name, that of its first record.
    pub(super) first: Lsn,
    /// Counts the segments this process has opened: the one thing that tells a segment from another with the same
    /// first LSN that takes its place.
    pub(super) generation: u64,
    pub(super) salt: u64,
    /// Where the next frame goes.
    pub(super) end: u64,
    /// How far zeros were written ahead, if further than that.
    pub(super) room: u64,
}

/// Zeros that are written ahead of the frames under [`Fsync::Always`](super::Fsync::Always): a sync of what fills them is
/// spared the file system's own journal, which one of a file that grows is not.
pub(super) const ROOM: u64 = if cfg!(test) { 512 } else { 1 << 20 };

impl Segment {
    /// Writes zeros ahead once half of the last ones are used up. Only a hint: a disk that has no room for them may have
    /// some for frames.
    pub(super) fn make_room(&mut self) {
        static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
        let (mut at, to) = (self.room.max(self.end), self.end + ROOM);
        if at >= self.end + ROOM / 2 {
            return;
        }
        self.room = to;
        while at < to {
            let some = ZEROS.len().min((to - at) as usize);
            if write_all(&*self.file, &ZEROS[..some], at).is_err() {
                return;
            }
            at += some as u64;
        }
    }
}

/// A segment without a name yet.
pub(super) struct Prepared {
    file: Arc<dyn File>,
    salt: u64,
    path: PathBuf,
}

impl Prepared {
    /// Writes and syncs a header. What a failure leaves behind, the next attempt removes: a file on which a sync has
    /// failed is not to be used again.
    pub(super) fn new(io: &dyn Io, dir: &Path, owner: u64) -> io::Result<Self> {
        let path = dir.join("next.tmp");
        io.step("log.segment.create")?;
        match io.remove(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            result => result?,
        }
        let file = io.create(&path)?;
        let salt = new_salt();
        write_all(&*file, &encode_segment_header(owner, salt), 0)?;
        file.sync_all()?;
        io.step("log.segment.prepared")?;
        Ok(Prepared { file, salt, path })
    }

    /// Gives it the name that makes it part of the log.
    pub(super) fn publish(self, io: &dyn Io, dir: &Path, first: Lsn, generation: u64) -> io::Result<Segment> {
        io.rename(&self.path, &segment_path(dir, first))?;
        Ok(Segment { file: self.file, first, generation, salt: self.salt, end: SEGMENT_HEADER as u64, room: 0 })
    }
}

/// Makes an empty segment, its name synced.
pub(super) fn create(io: &dyn Io, dir: &Path, owner: u64, first: Lsn) -> io::Result<Segment> {
    let segment = Prepared::new(io, dir, owner)?.publish(io, dir, first, 1)?;
    io.step("log.segment.renamed")?;
    io.sync_dir(dir)?;
    Ok(segment)
}
