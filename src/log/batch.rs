//! Records on their way into the log: frames in the making.

use std::io;

use super::Lsn;
use super::disk::{File, write_all};
use super::format::{
    FRAME_HEADER, FRAME_TARGET, FrameHeader, payload_check, payload_check_of, push_prefix, push_record,
};

/// A buffer that grew beyond this is given back once it is written.
const KEEP_BUFFER: usize = 8 << 20;

/// Frames in the making: room for each header, then its records.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) buf: Vec<u8>,
    pub(super) marks: Vec<Mark>,
    /// LSN after the last record; 0 as long as the log is not started.
    pub(super) next: Lsn,
    /// Length of what is whole: more than that is left by a closure that panicked.
    whole: usize,
}

/// A frame: where it starts in the buffer, its first LSN, and the record that ends it, if that is large: its prefix stands in
/// the buffer.
pub(super) struct Mark {
    start: usize,
    first: Lsn,
    large: Option<Vec<u8>>,
}

impl Batch {
    pub(super) fn append(&mut self, write: impl FnOnce(Lsn, &mut Vec<u8>)) -> Lsn {
        let lsn = self.next;
        assert!(lsn > 0, "the log takes no records before its start");
        self.buf.truncate(self.whole);
        match self.marks.last() {
            Some(mark) if mark.large.is_none() && self.whole - mark.start < FRAME_TARGET => {}
            _ => self.begin_frame(None),
        }
        push_record(&mut self.buf, |buf| write(lsn, buf));
        self.whole = self.buf.len();
        self.next = lsn + 1;
        lsn
    }

    pub(super) fn append_large(&mut self, record: Vec<u8>) -> Lsn {
        let lsn = self.next;
        assert!(lsn > 0, "the log takes no records before its start");
        self.buf.truncate(self.whole);
        let size_bytes = record.len();
        self.begin_frame(Some(record));
        push_prefix(&mut self.buf, size_bytes);
        self.whole = self.buf.len();
        self.next = lsn + 1;
        lsn
    }

    fn begin_frame(&mut self, large: Option<Vec<u8>>) {
        self.marks.push(Mark { start: self.buf.len(), first: self.next, large });
        self.buf.extend_from_slice(&[0; FRAME_HEADER]);
        self.whole = self.buf.len();
    }

    /// Takes over what `from` holds; this batch is empty.
    pub(super) fn take(&mut self, from: &mut Batch) {
        from.buf.truncate(from.whole);
        std::mem::swap(&mut self.buf, &mut from.buf);
        std::mem::swap(&mut self.marks, &mut from.marks);
        self.next = from.next;
        from.whole = 0;
    }

    pub(super) fn clear(&mut self) {
        if self.buf.capacity() > KEEP_BUFFER {
            self.buf = Vec::new();
        }
        self.buf.clear();
        self.marks.clear();
    }

    /// Fills in the headers. Again for every attempt, since a retry may go to another segment.
    pub(super) fn seal(&mut self, salt: u64, synced: Lsn) {
        for i in 0..self.marks.len() {
            let Mark { start, first, ref large } = self.marks[i];
            let (end, next) =
                self.marks.get(i + 1).map_or((self.buf.len(), self.next), |mark| (mark.start, mark.first));
            let payload = &self.buf[start + FRAME_HEADER..end];
            let (more, check) = match large {
                None => (0, payload_check(payload, salt)),
                Some(large) => (large.len(), payload_check_of([payload, large], salt)),
            };
            let size_bytes = (payload.len() + more) as u64;
            let header = FrameHeader { count: (next - first) as u32, size_bytes, first, synced, check };
            self.buf[start..start + FRAME_HEADER].copy_from_slice(&header.encode(salt));
        }
    }

    pub(super) fn size_bytes(&self) -> u64 {
        let large = self.marks.iter().flat_map(|mark| &mark.large).map(Vec::len).sum::<usize>();
        (self.buf.len() + large) as u64
    }

    /// Writes all of it.
    pub(super) fn write(&self, file: &dyn File, mut at: u64) -> io::Result<()> {
        let mut done = 0;
        let ends = self.marks.iter().skip(1).map(|mark| mark.start).chain([self.buf.len()]);
        for (mark, end) in self.marks.iter().zip(ends) {
            if let Some(large) = &mark.large {
                for part in [&self.buf[done..end], large] {
                    write_all(file, part, at)?;
                    at += part.len() as u64;
                }
                done = end;
            }
        }
        write_all(file, &self.buf[done..], at)
    }
}
