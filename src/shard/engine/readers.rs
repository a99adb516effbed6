//! Threads that read the store for commands which wait for it. They hold no lock of a shard, and take one read at a time
//! from whichever errand: so a disk gets as many at once as there are, and an errand of many does not keep back one of few
//! for longer than those before it take.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crossbeam_channel::{Receiver, Sender, unbounded};
use parking_lot::Mutex;

use crate::shard::memory::reads::{Reads, Wanted};

/// Threads that read: what a disk answers side by side.
pub(in crate::shard) const READERS: usize = if cfg!(test) { 2 } else { 32 };

/// What is done with what was brought.
pub type Then = Box<dyn FnOnce(Reads) + Send>;

/// What a command or a pipeline waits for.
struct Errand {
    left: AtomicUsize,
    brought: Mutex<Reads>,
    then: Mutex<Option<Then>>,
}

/// The next read, or the end of a reader.
type Task = Option<(Arc<Errand>, Wanted)>;

/// The readers' work.
pub struct Readers {
    sender: Sender<Task>,
    receiver: Receiver<Task>,
    /// Reads that have been asked for and are not done.
    pending: AtomicUsize,
    /// Nobody reads any more.
    ended: AtomicBool,
}

impl Default for Readers {
    fn default() -> Self {
        let (sender, receiver) = unbounded();
        Readers { sender, receiver, pending: AtomicUsize::new(0), ended: AtomicBool::new(false) }
    }
}

impl Readers {
    /// Has what is wanted read, and calls `then` with it on one of the readers. Dropped uncalled once they have ended.
    pub fn bring(&self, mut reads: Reads, then: Then) {
        let wanted = reads.take_wanted();
        if wanted.is_empty() {
            return then(reads);
        }
        self.pending.fetch_add(wanted.len(), Ordering::Relaxed);
        let left = AtomicUsize::new(wanted.len());
        let errand = Arc::new(Errand { left, brought: Mutex::new(reads), then: Mutex::new(Some(then)) });
        for wanted in wanted {
            self.send(Some((errand.clone(), wanted)));
        }
        if self.ended.load(Ordering::SeqCst) {
            self.drop_rest();
        }
    }

    fn send(&self, task: Task) {
        // The receiver lives as long as the sender.
        _ = self.sender.send(task);
    }

    /// Reads that have been asked for and are not done.
    pub fn pending(&self) -> usize {
        self.pending.load(Ordering::Relaxed)
    }

    /// A reader's life, until [`Readers::end`].
    pub(in crate::shard) fn run(&self) {
        while let Ok(Some((errand, wanted))) = self.receiver.recv() {
            self.read(&errand, wanted);
        }
    }

    /// Ends so many readers, once they have done what is asked for by now.
    pub(in crate::shard) fn end(&self, readers: usize) {
        (0..readers).for_each(|_| self.send(None));
    }

    /// The readers have ended: whoever waits for what is left, or comes later, is told by its being dropped.
    pub(in crate::shard) fn close(&self) {
        self.ended.store(true, Ordering::SeqCst);
        self.drop_rest();
    }

    fn drop_rest(&self) {
        for (errand, _) in self.receiver.try_iter().flatten() {
            self.pending.fetch_sub(1, Ordering::Relaxed);
            drop(errand);
        }
    }

    fn read(&self, errand: &Errand, wanted: Wanted) {
        let brought = wanted.read();
        self.pending.fetch_sub(1, Ordering::Relaxed);
        errand.brought.lock().add(brought);
        if errand.left.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        let (then, brought) = (errand.then.lock().take(), std::mem::take(&mut *errand.brought.lock()));
        if let Some(then) = then {
            then(brought);
        }
    }
}
