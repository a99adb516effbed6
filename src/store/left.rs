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
    /// The thread is there, and is not to end: as long as that is so, others may be served.
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
        left.view.leave(|| self.is_tended.load(Ordering::Relaxed) && self.queue.1.len() < MANY);
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

    /// Ends the thread that removes files, which no longer pauses; whoever replaces a view does it from then on.
    pub fn end_removing(&self) {
        self.left.is_tended.store(false, Ordering::Release);
        if self.left.queue.0.send(None).is_err() {
            unreachable!("the store holds both ends");
        }
    }

    /// Replaced views whose files are still to go.
    pub fn views_left(&self) -> usize {
        self.left.queue.1.len()
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::store::StoreOptions;
    use crate::util::scratch::tempdir;
    use std::path::Path;

    fn open(dir: &Path) -> Store {
        let options = StoreOptions { shards: Some(1), cache_bytes: 1 << 20, nice: None, ..StoreOptions::default() };
        Store::open(dir, options).unwrap()
    }

    fn table_files(dir: &Path) -> usize {
        std::fs::read_dir(dir.join("store/keyspaces/1/tables")).unwrap().count()
    }

    /// Another run, and all of them become one.
    fn replace(store: &Store) {
        let partition = store.partition(0);
        partition.ingest([(b"k".to_vec(), Some(b"v".to_vec()))]).unwrap();
        assert!(partition.major_compact().unwrap());
    }

    #[test]
    fn files_of_replaced_views_wait_for_who_removes_them_up_to_a_bound() {
        let dir = tempdir().unwrap();
        let store = open(dir.path());
        replace(&store);
        assert_eq!((table_files(dir.path()), store.views_left()), (1, 0), "nobody is there for it: at once");
        store.left.is_tended.store(true, Ordering::Release);
        replace(&store);
        let waiting = store.views_left();
        assert!(waiting > 0 && table_files(dir.path()) > 1);
        (0..MOST).for_each(|_| replace(&store));
        assert_eq!(store.views_left(), MOST);
        std::thread::scope(|scope| {
            scope.spawn(|| store.remove_replaced());
            store.end_removing();
        });
        assert_eq!((table_files(dir.path()), store.views_left()), (1, 0));
        replace(&store);
        assert_eq!((table_files(dir.path()), store.views_left()), (1, 0), "nobody is any more");
    }

    #[test]
    fn what_is_to_go_is_gone_before_the_store_is_opened_again() {
        let dir = tempdir().unwrap();
        let store = open(dir.path());
        store.left.is_tended.store(true, Ordering::Release);
        (0..3).for_each(|_| replace(&store));
        assert!(store.views_left() > 0);
        store.reopen().unwrap();
        assert_eq!((table_files(dir.path()), store.views_left()), (1, 0));
        assert_eq!(store.partition(0).get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
        (0..3).for_each(|_| replace(&store));
        drop(store);
        assert_eq!(table_files(dir.path()), 1);
        assert_eq!(open(dir.path()).partition(0).get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
    }
}
