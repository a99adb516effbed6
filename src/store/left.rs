//! Views that are replaced, until the files go that nobody else knows.
//!
//! A file goes with the last who knows it, and that takes the file system its time, during which others wait for it: so files go one
//! by one, with pauses. Neither a flush, for which writers may wait, nor an ingestion is to pause: a thread is there for it, the
//! engine's `files`. Where there is none, or it is behind by [`MOST`], whoever replaces a view does it.

use super::Store;
use super::view::View;
use crossbeam_channel::{Receiver, Sender, bounded};
use fjall::Keyspace;
use std::sync::atomic::{AtomicBool, Ordering};

/// Views that wait at most: what they keep on disk is no more than what so many ingestions and compactions have replaced.
const MOST: usize = 64;
/// From so many on nobody pauses.
const MANY: usize = MOST / 4;

/// What is put by.
struct Left {
    view: View,
    /// The store is not opened again before: it could give a new file the name of one that is still to go.
    _open: Keyspace,
}

/// The views that wait. `None` ends the thread.
pub(super) struct LeftViews {
    queue: (Sender<Option<Left>>, Receiver<Option<Left>>),
    is_tended: AtomicBool,
}

impl LeftViews {
    pub(super) fn new() -> LeftViews {
        LeftViews { queue: bounded(MOST), is_tended: AtomicBool::new(false) }
    }

    /// Has a view go, now or soon.
    pub(super) fn leave(&self, view: View, keyspace: &Keyspace) {
        let left = Some(Left { view, _open: keyspace.clone() });
        let here = if self.is_tended.load(Ordering::Acquire) {
            self.queue.0.try_send(left).err().and_then(|full| full.into_inner())
        } else {
            left
        };
        if let Some(left) = here {
            self.remove(left);
        }
    }

    fn remove(&self, left: Left) {
        left.view.leave(|| self.queue.1.len() < MANY);
    }

    /// What waits goes at once.
    pub(super) fn clear(&self) {
        self.queue.1.try_iter().flatten().for_each(|left| left.view.leave(|| false));
    }
}

impl Store {
    /// Removes the files of replaced views, until [`Store::end_removing`] is called. For one thread.
    pub fn remove_replaced(&self) {
        self.left.is_tended.store(true, Ordering::Release);
        while let Ok(Some(left)) = self.left.queue.1.recv() {
            self.left.remove(left);
        }
        self.left.is_tended.store(false, Ordering::Release);
        self.left.clear();
    }

    /// Ends the thread that removes files; whoever replaces a view does it from then on.
    pub fn end_removing(&self) {
        if self.left.queue.0.send(None).is_err() {
            unreachable!("the store holds both ends");
        }
    }

    /// Replaced views whose files are still to go.
    pub fn views_left(&self) -> usize {
        self.left.queue.1.len()
    }
}
