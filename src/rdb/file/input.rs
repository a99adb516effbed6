//! A window over bytes that are read once, from the front: what is held of them, what was passed, and the checksum of that.
//!
//! | part of the buffer | |
//! |---|---|
//! | up to `summed` | passed, and part of the checksum |
//! | `summed..mark` | passed, and to be added to it |
//! | `mark..at` | held: can be looked at again, and gone back to |
//! | from `at` on | read ahead |

use std::io::{ErrorKind, Read};

use crc_fast::Digest;

use super::FileError;
use crate::rdb::RdbError;
use crate::rdb::crc64;

/// Bytes that are asked for at once.
const CHUNK: usize = if cfg!(test) { 1 << 10 } else { 256 << 10 };

const LEN_32: u8 = 0x80;
const LEN_64: u8 = 0x81;

/// A window over what a [`Read`] gives.
pub struct Input<R> {
    from: R,
    buf: Vec<u8>,
    mark: usize,
    at: usize,
    /// Where the buffer begins in the whole.
    base: u64,
    /// Of what was passed and is before `summed`, where it is wanted: the rest is added in big pieces.
    sum: Option<Digest>,
    summed: usize,
    most: usize,
}

impl<R: Read> Input<R> {
    /// Nothing has been read yet.
    pub fn new(from: R) -> Self {
        Input { from, buf: Vec::new(), mark: 0, at: 0, base: 0, sum: None, summed: 0, most: usize::MAX }
    }

    /// More than this is not held: whoever asks for it is told that it is too much.
    pub fn hold_at_most(&mut self, bytes: usize) {
        self.most = bytes;
    }

    /// Where it stands.
    pub fn offset(&self) -> u64 {
        self.base + self.at as u64
    }

    /// From here on the checksum is wanted.
    pub(super) fn begin_checksum(&mut self) {
        self.release();
        (self.sum, self.summed) = (Some(crc64::begin()), self.mark);
    }

    /// The checksum of what was passed since; it is not wanted any more.
    pub(super) fn end_checksum(&mut self) -> u64 {
        self.add_to_sum();
        self.sum.take().map_or(0, |sum| sum.finalize())
    }

    /// Adds all that was passed.
    fn add_to_sum(&mut self) {
        if let Some(sum) = &mut self.sum {
            sum.update(&self.buf[self.summed..self.mark]);
            self.summed = self.mark;
        }
    }

    /// What is held.
    pub(super) fn held(&self) -> &[u8] {
        &self.buf[self.mark..self.at]
    }

    /// Passes what is held.
    pub fn release(&mut self) {
        self.mark = self.at;
    }

    /// Goes back to the begin of what is held.
    pub fn rewind(&mut self) {
        self.at = self.mark;
    }

    /// Whether everything has been read.
    ///
    /// # Errors
    /// Of reads.
    pub fn is_at_end(&mut self) -> Result<bool, FileError> {
        Ok(self.at == self.buf.len() && !self.read_more()?)
    }

    /// What comes next, without taking it: one byte at least, unless this is the end.
    ///
    /// # Errors
    /// Of reads.
    pub fn ahead(&mut self, len: usize) -> Result<&[u8], FileError> {
        while self.buf.len() - self.at < len && self.read_more()? {}
        Ok(&self.buf[self.at..])
    }

    /// Takes so many bytes of those that were looked at ahead.
    pub fn take(&mut self, len: usize) {
        self.at = self.at.saturating_add(len).min(self.buf.len());
    }

    /// The next bytes, which are held from now on.
    ///
    /// # Errors
    /// `Cut`, `Big`, `Io`.
    pub fn bytes(&mut self, len: usize) -> Result<&[u8], FileError> {
        if len > self.most.saturating_sub(self.at - self.mark) {
            return Err(FileError::Big);
        }
        while self.buf.len() - self.at < len {
            if !self.read_more()? {
                // The end is where it is cut.
                self.at = self.buf.len();
                return Err(FileError::Cut);
            }
        }
        self.at += len;
        Ok(&self.buf[self.at - len..self.at])
    }

    /// Whether there was more.
    fn read_more(&mut self) -> Result<bool, FileError> {
        if self.mark > 0 && self.mark >= self.buf.len() / 2 {
            self.add_to_sum();
            self.buf.drain(..self.mark);
            self.base += self.mark as u64;
            self.at -= self.mark;
            (self.mark, self.summed) = (0, 0);
            if self.buf.capacity() > 4 * CHUNK && self.buf.len() < CHUNK {
                self.buf.shrink_to(2 * CHUNK);
            }
        }
        let before = self.buf.len();
        self.buf.resize(before + CHUNK, 0);
        let read = loop {
            match self.from.read(&mut self.buf[before..]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        self.buf.truncate(before + *read.as_ref().unwrap_or(&0));
        Ok(read? > 0)
    }

    pub(super) fn u8(&mut self) -> Result<u8, FileError> {
        Ok(self.bytes(1)?[0])
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], FileError> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(N)?);
        Ok(array)
    }

    /// Passes so many bytes without having them in memory.
    pub(super) fn pass(&mut self, len: u64) -> Result<(), FileError> {
        let mut left = len;
        while left > 0 {
            self.release();
            let step = left.min(CHUNK as u64);
            self.bytes(step as usize)?;
            left -= step;
        }
        Ok(())
    }

    /// A length, which also serves as an unsigned number.
    pub(super) fn len(&mut self) -> Result<u64, FileError> {
        let first = self.u8()?;
        self.len_behind(first)
    }

    /// The same behind its first byte.
    pub(super) fn len_behind(&mut self, first: u8) -> Result<u64, FileError> {
        Ok(match first {
            0..0x40 => u64::from(first),
            0x40..0x80 => u64::from(first & 0x3f) << 8 | u64::from(self.u8()?),
            LEN_32 => u64::from(u32::from_be_bytes(self.array()?)),
            LEN_64 => u64::from_be_bytes(self.array()?),
            _ => return Err(RdbError::Corrupt("length").into()),
        })
    }
}
