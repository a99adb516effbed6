//! Reading segments: frame after frame in bounded memory, and what to make of the first damage.
//!
//! [`Walker`] is the one reader; replay, `scan` and `repair` differ only in what they do with what it finds.
//!
//! | found at the expected LSN | a frame further on, or in a later segment, says `synced` ≥ it | verdict |
//! |---|---|---|
//! | a bad frame, a gap | no | the tail: never acknowledged as synced, may be cut |
//! | a bad frame, a gap | yes | [`Damage::proven`]: the disk lost what it had promised |
//! | a bad segment header, LSNs that go back | – | proven: a header is synced before the segment gets its name |
//!
//! Zeros up to the end of a segment, no more than [`ROOM`], are none: they were written ahead.
//!
//! A damaged frame hides where the next one begins, so the rest is searched for the magic bytes. The header's
//! own checksum decides then: that it once was written proves its `synced`, whether its payload survived or not.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::disk::{File, Io, read_full};
use super::format::{
    BadHeader, FRAME_HEADER, FRAME_MAGIC, FrameHeader, SEGMENT_HEADER, decode_segment_header, is_well_formed,
    parse_segment_name, payload_check, segment_path,
};
use super::segment::ROOM;
use super::{Damage, Lost, Lsn, OpenError, Origin};

/// Bytes asked of the disk at a time.
pub(super) const CHUNK: usize = 1 << 20;

/// Distance of the frames whose places are remembered.
const PLACE_EVERY: u64 = 256 << 10;

/// The segments in a directory, oldest first.
pub(super) fn list_segments(io: &dyn Io, dir: &Path) -> Result<Vec<(Lsn, PathBuf)>, OpenError> {
    let names = io.list(dir).map_err(|source| OpenError::io(dir, source))?;
    let mut segments: Vec<_> = names.iter().filter_map(|name| parse_segment_name(name)).collect();
    segments.sort_unstable();
    Ok(segments.into_iter().map(|first| (first, segment_path(dir, first))).collect())
}

/// An open segment and the part of it that is in memory.
pub(super) struct SegmentReader {
    pub(super) file: Arc<dyn File>,
    pub(super) salt: u64,
    pub(super) size_bytes: u64,
    /// Offset of the next byte to be taken.
    pub(super) at: u64,
    /// `chunk[start..]` holds the file from `at` on.
    chunk: Vec<u8>,
    start: usize,
}

impl SegmentReader {
    pub(super) fn open(io: &dyn Io, path: &Path, owner: u64) -> io::Result<Result<Self, BadHeader>> {
        let file = io.open(path)?;
        let size_bytes = file.size_bytes()?;
        let mut header = [0; SEGMENT_HEADER];
        let read = read_full(&*file, &mut header, 0)?;
        Ok(decode_segment_header(&header[..read], owner).map(|salt| SegmentReader {
            file,
            salt,
            size_bytes,
            at: SEGMENT_HEADER as u64,
            chunk: Vec::new(),
            start: 0,
        }))
    }

    fn left_bytes(&self) -> u64 {
        self.size_bytes - self.at
    }

    /// The next `n` bytes without taking them. The caller has made sure that the file has them, so a length that
    /// was read from the disk allocates no more than the file's own size.
    fn peek(&mut self, n: usize) -> io::Result<&[u8]> {
        if self.chunk.len() - self.start < n {
            self.chunk.drain(..self.start);
            self.start = 0;
            let have = self.chunk.len();
            let want = n.max(CHUNK).min(usize::try_from(self.left_bytes()).unwrap_or(usize::MAX));
            if self.chunk.capacity() > 4 * CHUNK && want <= CHUNK {
                self.chunk.shrink_to(CHUNK);
            }
            self.chunk.resize(want.max(have), 0);
            let read = read_full(&*self.file, &mut self.chunk[have..], self.at + have as u64)?;
            self.chunk.truncate(have + read);
            if self.chunk.len() < n {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(&self.chunk[self.start..self.start + n])
    }

    fn take(&mut self, n: usize) {
        self.start += n;
        self.at += n as u64;
    }

    /// The frame at hand: its header, with the payload left in memory ([`SegmentReader::payload`]).
    fn frame(&mut self) -> io::Result<Result<FrameHeader, &'static str>> {
        if self.left_bytes() < FRAME_HEADER as u64 {
            return Ok(Err("a frame's header is cut short"));
        }
        let salt = self.salt;
        let Some(header) = FrameHeader::decode(self.peek(FRAME_HEADER)?, salt) else {
            return Ok(Err("a frame's header is damaged"));
        };
        let Some(whole) = self.whole_frame(&header) else {
            return Ok(Err("a frame is cut short"));
        };
        let payload = &self.peek(whole)?[FRAME_HEADER..];
        if payload_check(payload, salt) != header.check || !is_well_formed(payload, header.count) {
            return Ok(Err("a frame's records are damaged"));
        }
        Ok(Ok(header))
    }

    /// Length of the frame with its header, if the file has all of it.
    fn whole_frame(&self, header: &FrameHeader) -> Option<usize> {
        let whole = header.size_bytes.checked_add(FRAME_HEADER as u64)?;
        if whole > self.left_bytes() { None } else { usize::try_from(whole).ok() }
    }

    /// Whether all that is left are zeros that were written ahead.
    fn is_room(&mut self) -> io::Result<bool> {
        let left = self.left_bytes();
        if left > ROOM {
            return Ok(false);
        }
        let mut bytes = vec![0; left as usize];
        let read = read_full(&*self.file, &mut bytes, self.at)?;
        Ok(bytes[..read].iter().all(|byte| *byte == 0))
    }

    /// Passes by the frame at hand; its payload stays readable until the next call of `frame`.
    fn pass(&mut self, header: &FrameHeader) {
        self.take(FRAME_HEADER + header.size_bytes as usize);
    }

    /// The payload of the frame that was passed last.
    fn payload(&self, size_bytes: u64) -> &[u8] {
        &self.chunk[self.start - size_bytes as usize..self.start]
    }

    /// Moves to the next header of a frame, at `at` or later; `None` at the end.
    fn search(&mut self) -> io::Result<Option<FrameHeader>> {
        let salt = self.salt;
        while self.left_bytes() >= FRAME_HEADER as u64 {
            self.peek(FRAME_HEADER)?;
            // All that is in memory, not a chunk of fixed size: a file full of magic bytes costs no more to search.
            let bytes = &self.chunk[self.start..];
            let Some(found) = memchr::memmem::find(bytes, &FRAME_MAGIC) else {
                // The magic may begin in the last three bytes.
                self.take(bytes.len() - (FRAME_MAGIC.len() - 1));
                continue;
            };
            self.take(found);
            if self.left_bytes() < FRAME_HEADER as u64 {
                break;
            }
            if let Some(header) = FrameHeader::decode(self.peek(FRAME_HEADER)?, salt) {
                return Ok(Some(header));
            }
            self.take(1);
        }
        Ok(None)
    }
}

/// What [`Walker::next_frame`] finds.
pub(super) enum Found {
    /// A whole frame; [`Walker::payload`] has its records.
    Frame(FrameHeader),
    /// The log ends here, whole.
    End,
    /// The log is whole up to here.
    Damage(Damage),
}

/// Reads a directory's frames in order.
pub(super) struct Walker {
    io: Arc<dyn Io>,
    owner: u64,
    /// Those that are needed.
    pub(super) segments: Vec<(Lsn, PathBuf)>,
    /// Index of the segment that `reader` reads.
    pub(super) index: usize,
    pub(super) reader: Option<SegmentReader>,
    /// LSN of the next record.
    pub(super) expected: Lsn,
    /// The highest `synced` seen.
    pub(super) synced: Lsn,
    payload_bytes: u64,
    /// Segments behind whose last frame zeros were written ahead, and where.
    pub(super) rooms: Vec<(PathBuf, u64)>,
    /// Now and then the first LSN, segment and offset of a frame.
    places: Vec<(Lsn, usize, u64)>,
}

impl Walker {
    pub(super) fn new(io: Arc<dyn Io>, dir: &Path, origin: Origin) -> Result<Self, OpenError> {
        let Origin { owner, needed_from } = origin;
        let mut segments = list_segments(&*io, dir)?;
        // A segment is not needed if the one after it begins no later than what is.
        let after = segments.partition_point(|&(first, _)| first <= needed_from);
        segments.drain(..after.saturating_sub(1));
        let expected = segments.first().map_or(1, |&(first, _)| first);
        Ok(Walker {
            io,
            owner,
            segments,
            index: 0,
            reader: None,
            expected,
            synced: 0,
            payload_bytes: 0,
            rooms: Vec::new(),
            places: Vec::new(),
        })
    }

    /// The records of the frame that was found last.
    pub(super) fn payload(&self) -> &[u8] {
        self.reader.as_ref().map_or(&[], |reader| reader.payload(self.payload_bytes))
    }

    /// Segment and offset of a frame with this LSN or not far before it; of the first frame if there is none.
    pub(super) fn place(&self, lsn: Lsn) -> (usize, u64) {
        let after = self.places.partition_point(|&(first, _, _)| first <= lsn);
        after.checked_sub(1).map_or((0, 0), |i| (self.places[i].1, self.places[i].2))
    }

    pub(super) fn next_frame(&mut self) -> Result<Found, OpenError> {
        if self.segments.is_empty() {
            return Ok(Found::End);
        }
        loop {
            if self.reader.is_none()
                && let Some(damage) = self.open_segment()?
            {
                return Ok(Found::Damage(damage));
            }
            let Some(reader) = self.reader.as_mut().filter(|reader| reader.left_bytes() > 0) else {
                if self.index + 1 == self.segments.len() {
                    return Ok(Found::End);
                }
                self.index += 1;
                self.reader = None;
                continue;
            };
            let frame = reader.frame().map_err(|source| OpenError::io(&self.segments[self.index].1, source))?;
            let what = match frame {
                Ok(header) if header.first == self.expected => {
                    let place = (header.first, self.index, reader.at);
                    if self.places.last().is_none_or(|&(_, i, at)| i < place.1 || at + PLACE_EVERY <= place.2) {
                        self.places.push(place);
                    }
                    reader.pass(&header);
                    self.payload_bytes = header.size_bytes;
                    self.expected = header.next();
                    self.synced = self.synced.max(header.synced);
                    return Ok(Found::Frame(header));
                }
                Ok(_) => "a frame does not follow the one before it",
                Err(what) => what,
            };
            let at = reader.at;
            if reader.is_room().map_err(|source| OpenError::io(&self.segments[self.index].1, source))? {
                reader.size_bytes = at;
                self.rooms.push((self.segments[self.index].1.clone(), at));
                continue;
            }
            return Ok(Found::Damage(self.judge(self.index, at, what, false)?));
        }
    }

    /// Opens the segment at `index`, or says why it cannot follow.
    fn open_segment(&mut self) -> Result<Option<Damage>, OpenError> {
        let (first, path) = self.segments[self.index].clone();
        match SegmentReader::open(&*self.io, &path, self.owner).map_err(|source| OpenError::io(&path, source))? {
            Err(BadHeader::Version(found)) => return Err(OpenError::Version { path, found }),
            Err(BadHeader::Foreign(_)) => return Err(OpenError::Foreign { path }),
            Err(BadHeader::Damaged) => {
                return self.judge(self.index, 0, "the segment's header is damaged", true).map(Some);
            }
            Ok(reader) => self.reader = Some(reader),
        }
        if first == self.expected {
            return Ok(None);
        }
        self.reader = None;
        let what = if first > self.expected { "records are missing before it" } else { "it repeats records" };
        self.judge(self.index, 0, what, first < self.expected).map(Some)
    }

    /// Tells the tail from damage by what follows, and counts what a cut would take.
    fn judge(&self, index: usize, offset: u64, what: &'static str, proven: bool) -> Result<Damage, OpenError> {
        let mut lost = Lost::default();
        let mut proven = proven;
        for (i, (_, path)) in self.segments.iter().enumerate().skip(index) {
            let opened = SegmentReader::open(&*self.io, path, self.owner);
            let opened = opened.map_err(|source| OpenError::io(path, source))?;
            let Ok(mut reader) = opened else {
                // Its header was synced before it got its name. Without it no record can be read, but they go all the same.
                proven = true;
                let size_bytes = self.io.open(path).and_then(|file| file.size_bytes());
                lost.size_bytes += size_bytes.map_err(|source| OpenError::io(path, source))?;
                lost.segments += 1;
                continue;
            };
            let from = if i == index { offset.max(SEGMENT_HEADER as u64).min(reader.size_bytes) } else { reader.at };
            reader.at = from;
            lost.size_bytes += reader.size_bytes - from;
            lost.segments += usize::from(i > index || offset == 0);
            while let Some(header) = reader.search().map_err(|source| OpenError::io(path, source))? {
                proven |= header.synced >= self.expected;
                match reader.frame().map_err(|source| OpenError::io(path, source))? {
                    Ok(header) if header.first >= self.expected => {
                        lost.records += u64::from(header.count);
                        lost.last = lost.last.max(header.next() - 1);
                        reader.pass(&header);
                    }
                    _ => reader.take(1),
                }
            }
        }
        let path = self.segments[index].1.clone();
        Ok(Damage { path, offset, lsn: self.expected, what, proven, lost, index })
    }
}

/// Cuts the log at a damage: later segments go first, the newest before the others, so that a crash in between
/// leaves a log that is cut at the same place.
pub(super) fn cut(
    io: &dyn Io,
    dir: &Path,
    owner: u64,
    segments: &[(Lsn, PathBuf)],
    damage: &Damage,
) -> Result<(), OpenError> {
    let whole = damage.offset == 0 && damage.index > 0;
    let keep = if whole { damage.index } else { damage.index + 1 };
    for (_, path) in segments[keep..].iter().rev() {
        io.step("log.cut.remove").map_err(|source| OpenError::io(path, source))?;
        io.remove(path).and_then(|()| io.sync_dir(dir)).map_err(|source| OpenError::io(path, source))?;
    }
    if whole {
        return Ok(());
    }
    io.step("log.cut.truncate").map_err(|source| OpenError::io(&damage.path, source))?;
    let path = &damage.path;
    let cut = if damage.offset == 0 {
        // The name alone tells the next LSN, and it must not be forgotten.
        super::segment::create(io, dir, owner, segments[0].0).map(drop)
    } else {
        io.open(path).and_then(|file| file.truncate(damage.offset).and_then(|()| file.sync_all()))
    };
    cut.map_err(|source| OpenError::io(path, source))
}
