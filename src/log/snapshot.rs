//! What the log holds at one moment, for who copies it while it goes on.

use std::io;
use std::sync::Arc;

use super::Lsn;
use super::disk::{File, read_full};
use super::format::segment_path;
use super::read::CHUNK;
use super::writer::Core;

/// The segments, each as far as it was written at the moment. As long as it lives segments that are removed keep their bytes.
pub struct Snapshot {
    /// Oldest first.
    pub segments: Vec<Segment>,
    /// The last LSN in them.
    pub last: Lsn,
    _pin: Arc<()>,
}

/// A segment in a snapshot.
pub struct Segment {
    /// Name of its file.
    pub name: String,
    /// Its bytes that count.
    pub size_bytes: u64,
    file: Arc<dyn File>,
}

impl Segment {
    /// Gives its bytes in pieces.
    ///
    /// # Errors
    /// What the disk says, and `out`.
    pub fn read<E: From<io::Error>>(&self, mut out: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let (mut at, mut chunk) = (0, vec![0; CHUNK]);
        while at < self.size_bytes {
            let some = CHUNK.min((self.size_bytes - at) as usize);
            let read = read_full(&*self.file, &mut chunk[..some], at)?;
            if read < some {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            out(&chunk[..some])?;
            at += some as u64;
        }
        Ok(())
    }
}

impl Core {
    /// The log as it is between two writes. Who writes waits for as long as two numbers are read.
    pub(super) fn snapshot(&self) -> io::Result<Snapshot> {
        // Nothing is rotated or removed meanwhile.
        let segments = self.segments.lock();
        let pin = self.pins.clone();
        let (last, end) =
            self.with_writer(|writer| (self.written(), writer.segment.as_ref().map(|segment| segment.end)));
        let end = end.ok_or_else(|| io::Error::other("the log is not open"))?;
        let newest = segments.len().saturating_sub(1);
        let open = |(n, listed): (usize, &super::writer::Listed)| {
            let path = segment_path(&self.dir, listed.first);
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            let size_bytes = if n == newest { end } else { listed.size_bytes };
            Ok(Segment { name, size_bytes, file: self.io.open(&path)? })
        };
        let segments = segments.iter().enumerate().map(open).collect::<io::Result<_>>()?;
        Ok(Snapshot { segments, last, _pin: pin })
    }
}
