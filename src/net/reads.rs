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

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::shard::keyspace::walk::tests::engine;
    use crate::shard::memory::table::table_hash;

    /// However much is wanted, a turn is a few reads; who wants little does not wait for all that others want.
    #[test]
    fn a_turn_is_a_few_reads_and_errands_take_turns() {
        let dir = tempfile::tempdir().unwrap();
        let engine = engine(dir.path(), 1);
        let ns = engine.first_names().id(b"0").unwrap();
        let keys: Vec<_> = (0..100u8).map(|n| [n]).collect();
        let put = |key: &[u8; 1]| _ = engine.transact(&[0], 1, |txn| txn.put_string(ns, key, b"v", 0)).unwrap();
        keys.iter().for_each(put);
        engine.flush().unwrap();
        let mut core = engine.shards[0].core();
        let limit = std::mem::replace(&mut core.table_limit, 0);
        (0..300).for_each(|_| core.make_room());
        (core.table_limit, core.store_is_cold) = (limit, true);
        let want = |keys: &[[u8; 1]]| {
            let mut reads = Reads::default();
            keys.iter().for_each(|key| core.want(table_hash(engine.router.hash(key), ns), ns, key, &mut reads));
            reads
        };
        let (own, done) = (OwnReads::default(), Arc::new(Mutex::new(Vec::new())));
        let bring = |name: char, keys: &[[u8; 1]]| {
            let (done, reads) = (done.clone(), want(keys));
            own.bring(&engine.readers, reads, Box::new(move |_| done.lock().unwrap().push(name)));
        };
        engine.store.partition(0).note_quick();
        bring('m', &keys[..60]);
        let many = engine.readers.pending();
        bring('f', &keys[60..66]);
        let mut left = vec![engine.readers.pending()];
        // Moka may have taken one or the other.
        assert!(many > 2 * MOST && left[0] > many, "{many} of 60, then {left:?}");
        // Whatever the disk of this machine does.
        while {
            engine.store.partition(0).note_quick();
            own.turn(&engine.readers)
        } {
            left.push(engine.readers.pending());
        }
        assert_eq!(engine.readers.pending(), 0);
        assert!(left.windows(2).all(|two| two[0] - two[1] <= TURN), "{left:?}");
        assert_eq!(*done.lock().unwrap(), ['f', 'm'], "sixty are not read before six");
    }
}
