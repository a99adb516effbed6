//! The file `CHECKPOINT`: what log and store hold, so that a part of the data directory that is missing, cut or from
//! another time is noticed when they are opened together.
//!
//! | bytes | part |
//! |---|---|
//! | 8 | `TARNCKPT` |
//! | 8 | id of the data directory, from its superblock |
//! | 8 | complete: the store holds every record below this LSN; the log begins no later |
//! | 8 | segment: first LSN of a segment that the log has, or had before a newer one |
//! | 8 | end: the log has every record up to this LSN, from where it begins |
//! | 1 | trust, see [`Trust`] |
//! | 5 | zero |
//! | 2 | number of shards |
//! | 8 a shard | the highest LSN that its partition holds, or a higher one since |
//! | 8 | XXH3-64 of all bytes before |
//!
//! Integers are little-endian. Everything in it stays true when log and store go on: it is written after what it says is on
//! disk, and before anything is removed on the strength of it.
//!
//! | when | says anew |
//! |---|---|
//! | the log has started, before its first record | segment, end, partitions; trust is whole |
//! | a flush: after the log's rotation | segment, end |
//! | a flush: all is in the store, before segments are removed | complete, segment, end, partitions; trust is whole |
//! | before the store may get ahead of the log: in a replay, after a failed sync | trust is open-ended |
//! | a clean end | end |
//! | every second, in a file of its own (`log/note.rs`) | end |
//! | `tarn check --repair` | trust is accepted |
//!
//! A directory without the file has never had a record in its log, or the file is lost. What a crash leaves behind that is
//! allowed to be short, the log's tail above what was synced, is nowhere in the file.

use std::io;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

use crate::codec;
use crate::codec::cursor::Cursor;
use crate::log::{self, Io, Lsn};
use crate::store::{CHECKPOINT_FILE, SYNCED_FILE, Store, StoreError};

use crate::shard::engine::{Engine, OpenError};

const MAGIC: [u8; 8] = *b"TARNCKPT";

/// How far the LSNs of a log that has lost its end go on above all that is known to have been given: parts of big results
/// may be in the store under versions that no record tells.
pub(in crate::shard) const LOST_LSNS: Lsn = 1 << 32;

/// What the next start may find short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// Nothing but the log's tail above what was synced and flushed.
    Whole,
    /// Also records that the store has got since: the log's disk has failed, or is not known not to have.
    OpenEnd,
    /// Whatever it is, the operator gives it up. Keys are to be counted anew, and LSNs to go on above all there were.
    Accepted,
}

/// What log and store of a data directory hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// Id of the data directory.
    pub owner: u64,
    /// The store holds every record below.
    pub complete: Lsn,
    /// A segment that the log has, or had before a newer one.
    pub segment: Lsn,
    /// The log reaches so far.
    pub end: Lsn,
    /// What the next start may find short.
    pub trust: Trust,
    /// By shard, an LSN that its partition reaches.
    pub stored: Vec<Lsn>,
}

impl Checkpoint {
    /// Of a directory in which nothing has been written yet.
    pub fn fresh(owner: u64, shards: u16) -> Self {
        Checkpoint { owner, complete: 1, segment: 0, end: 0, trust: Trust::Whole, stored: vec![0; usize::from(shards)] }
    }

    /// Reads the file, and the [note](log::noted) of what has been synced since; `None` if there is none.
    ///
    /// # Errors
    /// What the disk says; damage; one of another data directory.
    pub fn load(io: &dyn Io, dir: &Path, owner: u64, shards: u16) -> Result<Option<Self>, OpenError> {
        let path = dir.join(CHECKPOINT_FILE);
        let bytes = log::read_small_file(io, &path).map_err(|source| file_error(&path, source))?;
        let Some(bytes) = bytes else { return Ok(None) };
        let Some(mut found) = decode(&bytes) else {
            return Err(lost(dir, format!("{} is damaged", path.display())));
        };
        if found.owner != owner || found.stored.len() != usize::from(shards) {
            let what = "SUPERBLOCK and CHECKPOINT are not of one data directory".to_owned();
            return Err(OpenError::Foreign { dir: dir.to_owned(), what });
        }
        let path = dir.join(SYNCED_FILE);
        let synced = log::noted(io, &path, owner).map_err(|source| file_error(&path, source))?;
        found.end = found.end.max(synced);
        Ok(Some(found))
    }

    /// Writes the file, durable when this returns.
    ///
    /// # Errors
    /// What the disk says.
    pub fn write(&self, io: &dyn Io, dir: &Path) -> io::Result<()> {
        io.step("checkpoint.write")?;
        log::replace_small_file(io, &dir.join(CHECKPOINT_FILE), &self.bytes())
    }

    /// From where on the log is needed, and whose it is.
    pub fn origin(&self) -> log::Origin {
        log::Origin { owner: self.owner, needed_from: self.complete }
    }

    /// What is missing at the log's beginning or in the store, if anything is. `bounds` are the first LSNs of the oldest and
    /// the newest segment, `stored` the LSNs that the partitions reach.
    pub fn missing(&self, bounds: Option<(Lsn, Lsn)>, stored: &[Lsn]) -> Option<String> {
        if self.trust == Trust::Accepted {
            return None;
        }
        let Some((oldest, newest)) = bounds else {
            return Some("log/ is missing or holds no segment".to_owned());
        };
        if oldest > self.complete {
            let (from, to) = (self.complete, oldest - 1);
            return Some(format!(
                "records {from} to {to} are neither in the store nor in the log: a segment is missing"
            ));
        }
        if newest < self.segment {
            return Some(format!("the log's newest segment, {:016x}.log, is missing", self.segment));
        }
        let behind: Vec<_> = (0..stored.len()).filter(|&shard| stored[shard] < self.stored[shard]).collect();
        match behind[..] {
            [] => None,
            [shard] => Some(format!(
                "partition of shard {shard} is from an earlier time, or empty: it reaches record {}, but held {}",
                stored[shard], self.stored[shard]
            )),
            [shard, ..] => Some(format!(
                "store/ is from an earlier time, or empty: {} partitions are, the first of them that of shard {shard}",
                behind.len()
            )),
        }
    }

    /// What is missing at the log's end, if anything is.
    pub fn missing_end(&self, last: Lsn, stored: &[Lsn]) -> Option<String> {
        let known = self.stored.iter().copied().fold(self.end, Lsn::max);
        let reached = match self.trust {
            Trust::Accepted => return None,
            Trust::OpenEnd => known,
            Trust::Whole => stored.iter().copied().fold(known, Lsn::max),
        };
        let what =
            || format!("the log ends with record {last}, but went up to {reached}: its end is missing, or it is old");
        (last < reached).then(what)
    }

    /// The file's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        for number in [self.owner, self.complete, self.segment, self.end] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&[self.trust as u8, 0, 0, 0, 0, 0]);
        bytes.extend_from_slice(&(self.stored.len() as u16).to_le_bytes());
        for lsn in &self.stored {
            bytes.extend_from_slice(&lsn.to_le_bytes());
        }
        bytes.extend_from_slice(&xxh3_64(&bytes).to_le_bytes());
        bytes
    }
}

fn decode(bytes: &[u8]) -> Option<Checkpoint> {
    let (body, sum) = bytes.split_last_chunk::<8>()?;
    if xxh3_64(body) != u64::from_le_bytes(*sum) {
        return None;
    }
    let mut cursor = Cursor::new(body.strip_prefix(&MAGIC)?);
    let mut number = || cursor.u64_le().ok();
    let (owner, complete, segment, end) = (number()?, number()?, number()?, number()?);
    let trust = match cursor.array::<6>().ok()? {
        [0, 0, 0, 0, 0, 0] => Trust::Whole,
        [1, 0, 0, 0, 0, 0] => Trust::OpenEnd,
        [2, 0, 0, 0, 0, 0] => Trust::Accepted,
        _ => return None,
    };
    let shards = u16::from_le_bytes(cursor.array().ok()?);
    let stored = (0..shards).map(|_| cursor.u64_le().ok()).collect::<Option<Vec<_>>>()?;
    cursor.finish().ok()?;
    Some(Checkpoint { owner, complete, segment, end, trust, stored })
}

pub(in crate::shard) fn file_error(path: &Path, source: io::Error) -> OpenError {
    StoreError::Io { doing: "read or write", path: path.to_owned(), source }.into()
}

/// An error that says what is missing and how the loss is accepted.
pub fn lost(dir: &Path, what: String) -> OpenError {
    OpenError::Lost { dir: dir.to_owned(), what }
}

/// The highest LSN that each partition holds, by shard.
///
/// # Errors
/// What the disk says; a partition of another data directory.
pub fn stored(store: &Store, dir: &Path) -> Result<Vec<Lsn>, OpenError> {
    let mut key = Vec::new();
    codec::key::flushed_key(&mut key);
    let reached = |(shard, partition): (usize, &std::sync::Arc<crate::store::Partition>)| {
        let Some(value) = partition.get(&key)? else { return Ok(0) };
        let flushed = codec::key::decode_flushed(&value).map_err(StoreError::from)?;
        let (lsn, owner) = flushed;
        if owner != partition.owner() {
            let what = format!("partition of shard {shard} in store/ belongs to another one");
            return Err(OpenError::Foreign { dir: dir.to_owned(), what });
        }
        Ok(lsn)
    };
    store.partitions().iter().enumerate().map(reached).collect()
}

/// The checkpoint on disk, as the engine keeps it up to date.
pub struct Kept {
    dir: PathBuf,
    pub(in crate::shard) last: Checkpoint,
    /// The file is known to say the same.
    written: bool,
}

impl Kept {
    /// As it was read, or the first one.
    pub fn new(dir: &Path, read: Option<Checkpoint>, owner: u64, shards: u16) -> Self {
        let written = read.is_some();
        Kept { dir: dir.to_owned(), last: read.unwrap_or_else(|| Checkpoint::fresh(owner, shards)), written }
    }

    /// Changes it, durably when this returns.
    pub(in crate::shard) fn change(&mut self, io: &dyn Io, change: impl FnOnce(&mut Checkpoint)) -> io::Result<()> {
        let mut next = self.last.clone();
        change(&mut next);
        if self.written && next == self.last {
            return Ok(());
        }
        self.written = false;
        next.write(io, &self.dir)?;
        (self.last, self.written) = (next, true);
        Ok(())
    }
}

impl Engine {
    /// The highest LSN that each partition holds.
    pub(in crate::shard) fn stored_lsns(&self) -> Vec<Lsn> {
        self.shards.iter().map(|shard| shard.core().stored_lsn).collect()
    }

    /// Goes on in a new segment of the log and notes it.
    pub(crate) fn rotate(&self) -> io::Result<log::SegmentBoundary> {
        let boundary = self.log.rotate()?;
        if self.log.needs_flush() {
            self.open_end()?;
        } else {
            let (segment, end) = (boundary.first_lsn(), self.log.synced());
            self.checkpoint.lock().change(&*self.io, |c| {
                (c.segment, c.end) = (segment, c.end.max(end));
            })?;
        }
        Ok(boundary)
    }

    /// Notes that the store holds everything below a boundary, which the log's segments may then be removed for.
    pub(in crate::shard) fn note_complete(&self, boundary: log::SegmentBoundary) -> io::Result<()> {
        let (first, end, stored) = (boundary.first_lsn(), self.log.synced(), self.stored_lsns());
        self.checkpoint.lock().change(&*self.io, |c| {
            (c.complete, c.segment, c.end) = (first, first, c.end.max(end));
            (c.stored, c.trust) = (stored, Trust::Whole);
        })
    }

    /// Notes that the store may get ahead of what the log's disk gives back.
    pub(in crate::shard) fn open_end(&self) -> io::Result<()> {
        let stored = self.stored_lsns();
        self.checkpoint.lock().change(&*self.io, |c| {
            if c.trust == Trust::Whole {
                (c.stored, c.trust) = (stored, Trust::OpenEnd);
            }
        })
    }

    /// Notes how far the log goes that was closed well.
    pub(in crate::shard) fn note_end(&self) -> io::Result<()> {
        let last = self.log.last();
        self.checkpoint.lock().change(&*self.io, |c| c.end = c.end.max(last))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::fs;

    use super::*;

    fn sample() -> Checkpoint {
        Checkpoint { owner: 1, complete: 2, segment: 3, end: 258, trust: Trust::Accepted, stored: vec![4, 5] }
    }

    #[test]
    fn checkpoint_bytes_are_pinned() {
        let bytes = sample().bytes();
        assert_eq!(bytes[..24], *b"TARNCKPT\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0");
        assert_eq!(bytes[24..40], *b"\x03\0\0\0\0\0\0\0\x02\x01\0\0\0\0\0\0");
        assert_eq!(bytes[40..64], *b"\x02\0\0\0\0\0\x02\0\x04\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0");
        assert_eq!(bytes[64..], xxh3_64(&bytes[..64]).to_le_bytes());
    }

    #[test]
    fn a_checkpoint_comes_back_and_every_flipped_bit_and_cut_is_refused() {
        let bytes = sample().bytes();
        for trust in [Trust::Whole, Trust::OpenEnd, Trust::Accepted] {
            let checkpoint = Checkpoint { trust, ..sample() };
            assert_eq!(decode(&checkpoint.bytes()), Some(checkpoint));
        }
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&damaged), None, "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert_eq!(decode(&bytes[..len]), None);
        }
    }

    /// The first one, and after a failure, which may have left the one or the other.
    #[test]
    fn what_may_not_be_in_the_file_is_written_though_it_is_the_same() {
        let aside = crate::util::scratch::tempdir().unwrap();
        let (dir, io) = (aside.path().join("dir"), crate::log::RealIo);
        let load = || Checkpoint::load(&io, &dir, 7, 2).unwrap();
        let mut kept = Kept::new(&dir, None, 7, 2);
        for round in 0..2 {
            fs::create_dir(&dir).unwrap();
            kept.change(&io, |_| {}).unwrap();
            assert_eq!(load(), Some(Checkpoint::fresh(7, 2)), "round {round}");
            fs::remove_dir_all(&dir).unwrap();
            kept.change(&io, |_| {}).unwrap();
            assert!(!dir.exists(), "it is known to be there");
            assert!(kept.change(&io, |next| next.complete = 5).is_err());
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let noted = Checkpoint { trust: Trust::Whole, ..sample() };
        let missing = |bounds, stored: &[Lsn]| noted.missing(bounds, stored).unwrap();
        assert_eq!(
            missing(Some((9, 9)), &[4, 5]),
            "records 2 to 8 are neither in the store nor in the log: a segment is missing"
        );
        assert_eq!(
            missing(Some((3, 9)), &[4, 5]),
            "records 2 to 2 are neither in the store nor in the log: a segment is missing"
        );
        assert_eq!(noted.missing(Some((2, 3)), &[4, 5]), None, "from the first one on that the store may lack");
        assert_eq!(missing(Some((2, 2)), &[4, 5]), "the log's newest segment, 0000000000000003.log, is missing");
        assert_eq!(
            missing(Some((2, 3)), &[4, 1]),
            "partition of shard 1 is from an earlier time, or empty: it reaches record 1, but held 5"
        );
        assert_eq!(
            missing(Some((2, 3)), &[3, 1]),
            "store/ is from an earlier time, or empty: 2 partitions are, the first of them that of shard 0"
        );
        assert_eq!(
            noted.missing_end(6, &[4, 5]).unwrap(),
            "the log ends with record 6, but went up to 258: its end is missing, or it is old"
        );
    }

    /// A replay that stores a part of the log may be cut short, too: the next one is to find the loss given up.
    #[test]
    fn an_open_end_takes_nothing_back_that_was_accepted() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let engine = crate::shard::keyspace::walk::tests::engine(dir.path(), 1);
        for (before, after) in [(Trust::Whole, Trust::OpenEnd), (Trust::Accepted, Trust::Accepted)] {
            engine.checkpoint.lock().last.trust = before;
            engine.open_end().unwrap();
            assert_eq!(engine.checkpoint.lock().last.trust, after);
        }
    }

    #[test]
    fn an_open_end_excuses_what_the_store_got_since_and_nothing_else() {
        let whole = Checkpoint { trust: Trust::Whole, end: 3, ..sample() };
        let open = Checkpoint { trust: Trust::OpenEnd, ..whole.clone() };
        assert!(whole.missing_end(6, &[4, 7]).is_some() && open.missing_end(6, &[4, 7]).is_none());
        assert!(whole.missing_end(4, &[4, 5]).is_some() && open.missing_end(4, &[4, 5]).is_some());
        for noted in [whole, open] {
            assert_eq!(noted.missing_end(7, &[4, 7]), None);
            assert_eq!(noted.missing(Some((2, 3)), &[4, 5]), None);
            assert!(noted.missing(Some((3, 3)), &[4, 5]).is_some(), "a gap behind the store");
            assert!(noted.missing(Some((2, 2)), &[4, 5]).is_some(), "no newest segment");
            assert!(noted.missing(Some((2, 3)), &[4, 4]).is_some(), "an older partition");
            assert!(noted.missing(None, &[4, 5]).is_some());
        }
    }
}
