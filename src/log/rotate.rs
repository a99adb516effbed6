//! Segments come and go: rotation, deletion, the end.
//!
//! A rotation waits for no disk while it holds the writer's lock: the new segment is prepared and synced before, as is
//! what the old one has by then; the rest of it and the directory are synced after. In between frames may already go to
//! the new one, and a power loss may take its name, or the end of the old one: both are above `synced`, which moves only
//! when old segments, directory and new segment are all on disk.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::MutexGuard;

use super::disk::write_all;
use super::format::{FrameHeader, payload_check, segment_path};
use super::segment::{Prepared, Segment};
use super::writer::{Core, Listed, Writer};
use super::{Lsn, SegmentBoundary};
use crate::util::pace::{PIECE_BYTES, is_pressed, shorten};

/// The name of a large segment that is being removed. What a crash leaves of it the next start removes.
pub(super) const GONE: &str = "gone.tmp";

fn not_open() -> io::Error {
    io::Error::other("the log is not open")
}

impl Core {
    pub(super) fn rotate(&self) -> io::Result<SegmentBoundary> {
        let mut segments = self.segments.lock();
        let generation = 1 + segments.last().ok_or_else(not_open)?.generation;
        let poisoned = self.state.lock().poison.is_some();
        let first = self.with_writer(|writer| writer.segment.as_ref().map(|segment| segment.first));
        if let Some(first) = first.filter(|&first| first > self.written() && !poisoned) {
            return Ok(SegmentBoundary(first));
        }
        let prepared = Prepared::new(&*self.io, &self.dir, self.owner)?;
        // Else the renaming, under the writer's lock, could wait in the file system's journal for all that is still to be
        // written, 100 ms and more. If it fails, this rotation is the remedy.
        let _ = self.sync(0);
        let first = self.with_writer(|writer| self.switch(writer, prepared, generation, &mut segments))?;
        self.io.step("log.rotate.switched")?;
        self.sync(0)?;
        Ok(SegmentBoundary(first))
    }

    /// Gives the new segment its name and has the next frame go there.
    fn switch(
        &self,
        mut writer: MutexGuard<'_, Writer>,
        prepared: Prepared,
        generation: u64,
        segments: &mut Vec<Listed>,
    ) -> io::Result<Lsn> {
        writer.mend()?;
        // Under the lock this is exact: what comes after it comes to the new segment.
        let first = self.written() + 1;
        let old_end = writer.segment.as_ref().ok_or_else(not_open)?.end;
        let segment = prepared.publish(&*self.io, &self.dir, first, generation)?;
        if let Some(old) = segments.last_mut() {
            old.size_bytes = old_end;
        }
        // A poisoned segment without a record has given up its name.
        if let Some(replaced) = segments.pop_if(|old| old.first == first) {
            self.size_bytes.fetch_sub(replaced.size_bytes, Ordering::Relaxed);
        }
        segments.push(Listed { first, generation, size_bytes: segment.end });
        self.size_bytes.fetch_add(segment.end, Ordering::Relaxed);
        self.segment_count.store(segments.len(), Ordering::Relaxed);
        self.publish(|state| {
            state.unsynced.push((generation, segment.file.clone()));
            state.dir_dirty = true;
        });
        writer.segment = Some(segment);
        Ok(first)
    }

    /// Removes a segment, which may be gone already. A large one loses its name at once, and its space piece by piece: a file
    /// system that frees 500 MB at once holds up who writes meanwhile.
    fn remove(&self, segment: &Listed) -> io::Result<()> {
        let path = segment_path(&self.dir, segment.first);
        // Who has a snapshot reads on.
        let is_pinned = Arc::strong_count(&self.pins) > 1;
        let is_large = segment.size_bytes > PIECE_BYTES && !is_pinned;
        let gone = self.dir.join(GONE);
        let removed = if is_large { self.io.rename(&path, &gone) } else { self.io.remove(&path) };
        match removed {
            // An attempt before this one got that far.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            result => result?,
        }
        // One by one: if two removals could be lost apart, the older segment might come back alone, a gap.
        self.io.sync_dir(&self.dir)?;
        if is_large {
            // What fails here, the next one of that name does, or the next start.
            _ = (self.io.open(&gone))
                .and_then(|file| shorten(segment.size_bytes, || !is_pressed(), |left| file.truncate(left)));
            _ = self.io.remove(&gone);
        }
        Ok(())
    }

    pub(super) fn delete_before(&self, boundary: SegmentBoundary) -> io::Result<()> {
        let mut segments = self.segments.lock();
        while segments.len() > 1 && segments[1].first <= boundary.0 {
            self.io.step("log.delete")?;
            self.remove(&segments[0])?;
            let gone = segments.remove(0);
            self.size_bytes.fetch_sub(gone.size_bytes, Ordering::Relaxed);
            self.segment_count.store(segments.len(), Ordering::Relaxed);
        }
        let Some(oldest) = segments.first() else { return Err(not_open()) };
        let (first, generation) = (oldest.first, oldest.generation);
        self.publish(|state| {
            // What is no longer in the log is in the store.
            state.durable = state.durable.max(first - 1);
            state.unsynced.retain(|&(unsynced, _)| unsynced >= generation);
            if state.poison.as_ref().is_some_and(|poison| poison.upto < generation) {
                state.poison = None;
            }
        });
        self.drive();
        self.notify();
        Ok(())
    }

    /// Writes and syncs everything, then a mark that tells the next start so.
    pub(super) fn close(&self) -> io::Result<()> {
        let synced = self.write_to(self.last()).and_then(|()| self.sync(0));
        let marked = self.with_writer(|mut writer| match writer.segment.take() {
            Some(segment) if synced.is_ok() => self.mark(&segment),
            _ => Ok(()),
        });
        let result = synced.and(marked);
        self.publish(|state| state.shut = Some("the log is closed".into()));
        result
    }

    /// Puts the mark of a clean close behind the last frame.
    fn mark(&self, segment: &Segment) -> io::Result<()> {
        let (first, synced) = (self.written() + 1, self.synced());
        let mark = FrameHeader { count: 0, size_bytes: 0, first, synced, check: payload_check(&[], segment.salt) };
        write_all(&*segment.file, &mark.encode(segment.salt), segment.end)?;
        segment.file.sync_data()
    }
}
