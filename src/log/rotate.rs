//! Segments come and go: rotation, deletion, the end.
//!
//! A rotation waits for no disk while it holds the writer's lock: the new segment is prepared and synced before, as is
//! what the old one has by then; the rest of it and the directory are synced after. In between frames may already go to
//! the new one, and a power loss may take its name, or the end of the old one: both are above `synced`, which moves only
//! when old segments, directory and new segment are all on disk.

use std::io;
use std::sync::atomic::Ordering;

use super::SegmentBoundary;
use super::disk::write_all;
use super::format::{FrameHeader, payload_check, segment_path};
use super::segment::Prepared;
use super::writer::{Core, Listed};

fn not_open() -> io::Error {
    io::Error::other("the log is not open")
}

impl Core {
    pub(super) fn rotate(&self) -> io::Result<SegmentBoundary> {
        let mut segments = self.segments.lock();
        let generation = 1 + segments.last().ok_or_else(not_open)?.generation;
        let poisoned = self.state.lock().poison.is_some();
        if !poisoned
            && let Some(segment) = &self.writer.lock().segment
            && segment.first > self.written()
        {
            return Ok(SegmentBoundary(segment.first));
        }
        let prepared = Prepared::new(&*self.io, &self.dir, self.owner)?;
        // Else the renaming, under the writer's lock, could wait in the file system's journal for all that is still to be
        // written, 100 ms and more. If it fails, this rotation is the remedy.
        let _ = self.sync(0);
        let mut writer = self.writer.lock();
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
        drop(writer);
        self.drive();
        self.io.step("log.rotate.switched")?;
        self.sync(0)?;
        Ok(SegmentBoundary(first))
    }

    pub(super) fn delete_before(&self, boundary: SegmentBoundary) -> io::Result<()> {
        let mut segments = self.segments.lock();
        while segments.len() > 1 && segments[1].first <= boundary.0 {
            self.io.step("log.delete")?;
            match self.io.remove(&segment_path(&self.dir, segments[0].first)) {
                // An attempt before this one got that far.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                result => result?,
            }
            // One by one: if two removals could be lost apart, the older segment might come back alone, a gap.
            self.io.sync_dir(&self.dir)?;
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
        let mut result = self.write_to(self.last()).and_then(|()| self.sync(0));
        let mut writer = self.writer.lock();
        if let Some(segment) = writer.segment.take()
            && result.is_ok()
        {
            let (first, synced) = (self.written() + 1, self.synced());
            let mark = FrameHeader { count: 0, size_bytes: 0, first, synced, check: payload_check(&[], segment.salt) };
            result = write_all(&*segment.file, &mark.encode(segment.salt), segment.end)
                .and_then(|()| segment.file.sync_data());
        }
        drop(writer);
        self.publish(|state| state.shut = Some("the log is closed".into()));
        result
    }
}
