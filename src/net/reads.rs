//! Reads of the store that a network thread does itself.
//!
//! Where a read comes back at once, from the page cache or the block cache, asking another thread for it costs more than the
//! read. But whoever else the thread serves would wait for it. So what its connections lack is read a few records at a time,
//! and between any two such turns the thread looks at its sockets and serves who is ready. As soon as a read has waited for
//! the disk, the rest is for the readers.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use tokio::sync::Notify;

use super::worker::Worker;
use crate::shard::engine::readers::{Readers, Then};
use crate::shard::memory::reads::{Reads, Wanted};

/// Reads between two looks at the sockets.
const TURN: usize = 4;
/// Of one connection before it is the next one's turn.
const MOST: usize = 16;

/// What a connection waits for.
struct Errand {
    brought: Reads,
    rest: std::vec::IntoIter<Wanted>,
    /// Reads since its turn came.
    read: usize,
    then: Then,
}

/// What a network thread is to read: at most one errand of each of its connections.
#[derive(Default)]
pub(super) struct OwnReads {
    errands: RefCell<VecDeque<Errand>>,
    wake: Notify,
}

impl OwnReads {
    /// Has what is wanted read here, or by the readers where that takes its time, and calls `then`.
    pub(super) fn bring(&self, readers: &Readers, mut reads: Reads, then: Then) {
        if !reads.is_quick() {
            return readers.bring(reads, then);
        }
        let rest = reads.take_wanted();
        readers.count(rest.len());
        let mut errands = self.errands.borrow_mut();
        errands.push_back(Errand { brought: reads, rest: rest.into_iter(), read: 0, then });
        if errands.len() == 1 {
            self.wake.notify_one();
        }
    }

    /// A few reads. Whether there are more.
    fn turn(&self, readers: &Readers) -> bool {
        let Some(mut errand) = self.errands.borrow_mut().pop_front() else { return false };
        let mut quick = true;
        let mut done = 0;
        for wanted in errand.rest.by_ref().take(TURN) {
            let partition = wanted.partition().clone();
            errand.brought.add(wanted.read());
            done += 1;
            quick = partition.reads_are_quick();
            if !quick {
                break;
            }
        }
        readers.count_off(done);
        errand.read += done;
        if errand.rest.len() == 0 {
            (errand.then)(errand.brought);
        } else if !quick {
            readers.count_off(errand.rest.len());
            errand.brought.want_again(errand.rest);
            readers.bring(errand.brought, errand.then);
        } else if errand.read >= MOST {
            self.errands.borrow_mut().push_back(Errand { read: 0, ..errand });
        } else {
            self.errands.borrow_mut().push_front(errand);
        }
        !self.errands.borrow().is_empty()
    }
}

impl Worker {
    /// Reads what its connections lack.
    pub(super) async fn reads(self: Rc<Self>) {
        loop {
            self.reads.wake.notified().await;
            while self.reads.turn(&self.server.engine.readers) {
                // The sockets are looked at before this goes on.
                tokio::task::yield_now().await;
            }
        }
    }
}
