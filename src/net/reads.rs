//! Reads of the store that a network thread does itself.
//!
//! Where a read comes back at once, from the page cache or the block cache, asking another thread for it costs more than the
//! read. But whoever else the thread serves would wait for it. So what its connections lack is read a few records at a time,
//! and between any two such turns the thread looks at its sockets and serves who is ready.
//!
//! What is worth another thread's time goes to the readers, and this thread helps them as long as it has nothing else to
//! read. Of what comes while it is behind with what it has to read they do all. As soon as reads have waited for the disk, all is theirs.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::Notify;

use super::worker::Worker;
use crate::shard::engine::readers::{READS_OF_TASK, Readers, Then};
use crate::shard::memory::reads::{Reads, Wanted};
use crate::store::Watch;
use crate::util::inbox::Inbox;

/// Reads between two looks at the sockets.
const TURN: usize = READS_OF_TASK;
/// So many of one connection are worth calling another thread.
const WORTH: usize = 2 * TURN;

/// Errands that wait for this thread, from which on it is worth calling another one for more.
const BEHIND: usize = 8;

/// What a connection waits for.
struct Errand {
    brought: Reads,
    rest: std::vec::IntoIter<Wanted>,
    then: Then,
}

/// What a network thread is to read: at most one errand of each of its connections.
#[derive(Default)]
pub(super) struct OwnReads {
    errands: RefCell<VecDeque<Errand>>,
    wake: Notify,
    /// What the readers have brought.
    pub(super) inbox: Arc<Inbox>,
}

impl OwnReads {
    /// Has what is wanted read, here, or by the readers where it is much or takes its time, and calls `then` here.
    pub(super) fn bring(&self, readers: &Readers, mut reads: Reads, then: Then) {
        if reads.wanted() >= WORTH || !reads.is_quick() {
            return self.have_brought(readers, reads, then);
        }
        if self.errands.borrow().len() >= BEHIND {
            // Others are called, as this thread has enough to do.
            return readers.bring(reads, self.to_inbox(then));
        }
        let rest = reads.take_wanted();
        readers.count(rest.len() as isize);
        self.errands.borrow_mut().push_back(Errand { brought: reads, rest: rest.into_iter(), then });
        self.wake.notify_one();
    }

    /// By the readers, whom this thread helps.
    fn have_brought(&self, readers: &Readers, reads: Reads, then: Then) {
        readers.bring_helped(reads, self.to_inbox(then));
        self.wake.notify_one();
    }

    /// What calls `then` here once somebody else has read.
    fn to_inbox(&self, then: Then) -> Then {
        let inbox = self.inbox.clone();
        Box::new(move |reads| inbox.put(Box::new(move || then(reads))))
    }

    /// A few reads, of what this thread is to do, else of what the readers have not begun. Whether there are more.
    fn turn(&self, readers: &Readers) -> bool {
        let (mut left, mut watch) = (TURN, Watch::default());
        while left > 0 {
            let first = self.errands.borrow_mut().pop_front();
            let Some(errand) = first else { break };
            left = left.saturating_sub(self.go_on(readers, errand, left, &mut watch));
        }
        let helps = if left == TURN { readers.help() } else { readers.are_asked() };
        helps || !self.errands.borrow().is_empty()
    }

    /// Reads of an errand, so many at most; how many of these are no longer to be done in this turn.
    fn go_on(&self, readers: &Readers, mut errand: Errand, most: usize, watch: &mut Watch) -> usize {
        let mut quick = errand.rest.as_slice().iter().all(Wanted::is_quick);
        let most = if quick { most } else { 0 };
        let mut done = 0;
        for wanted in errand.rest.by_ref().take(most) {
            errand.brought.add(wanted.read(watch));
            done += 1;
            quick = wanted.is_quick();
            if !quick {
                break;
            }
        }
        readers.count(-(done as isize));
        if errand.rest.len() == 0 {
            (errand.then)(errand.brought);
        } else if quick {
            self.errands.borrow_mut().push_front(errand);
        } else {
            readers.count(-(errand.rest.len() as isize));
            errand.brought.want_again(errand.rest);
            self.have_brought(readers, errand.brought, errand.then);
        }
        if quick { done } else { TURN }
    }
}

impl Worker {
    /// Reads what its connections lack.
    pub(super) async fn reads(self: Rc<Self>) {
        loop {
            self.reads.wake.notified().await;
            while self.reads.turn(&self.server.engine.readers) {
                self.reads.inbox.empty();
                // The sockets are looked at before this goes on.
                tokio::task::yield_now().await;
            }
            self.reads.inbox.empty();
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::shard::engine::Engine;
    use crate::shard::keyspace::walk::tests::engine;
    use crate::shard::memory::table::table_hash;

    /// A shard whose keys, of one byte, are on disk alone, but for one or the other that moka has taken, and what wants some.
    fn cold(engine: &Engine, keys: u8) -> impl Fn(&[[u8; 1]]) -> Reads {
        let ns = engine.first_names().id(b"0").unwrap();
        let put = |key: [u8; 1]| _ = engine.transact(&[0], 1, |txn| txn.put_string(ns, &key, b"v", 0)).unwrap();
        (0..keys).for_each(|n| put([n]));
        engine.flush().unwrap();
        let mut core = engine.shards.at(0).core();
        let limit = std::mem::replace(&mut core.table_limit, 0);
        (0..300).for_each(|_| core.make_room());
        (core.table_limit, core.store_is_cold) = (limit, true);
        drop(core);
        move |keys: &[[u8; 1]]| {
            let (core, mut reads) = (engine.shards.at(0).core(), Reads::default());
            keys.iter().for_each(|key| core.want(table_hash(engine.router.hash(key), ns), ns, key, None, &mut reads));
            reads
        }
    }

    /// However much is wanted, a turn is a few reads. What is much is left to the readers, whom the thread helps when it has
    /// read what is little.
    #[test]
    fn a_turn_is_a_few_reads_and_who_wants_little_does_not_wait_for_much() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let engine = engine(dir.path(), 1);
        let keys: Vec<_> = (0..100u8).map(|n| [n]).collect();
        let want = cold(&engine, 100);
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
        assert!(many > 2 * WORTH && left[0] > many, "{many} of 60, then {left:?}");
        loop {
            // Whatever the disk of this machine does.
            engine.store.partition(0).note_quick();
            let more = own.turn(&engine.readers);
            own.inbox.empty();
            left.push(engine.readers.pending());
            if !more {
                break;
            }
        }
        assert_eq!(engine.readers.pending(), 0);
        assert!(left.windows(2).all(|two| two[0] - two[1] <= TURN), "{left:?}");
        assert_eq!(*done.lock().unwrap(), ['f', 'm'], "sixty are not read before six");
    }

    /// Who has fallen behind leaves to the readers what comes besides.
    #[test]
    fn a_thread_that_is_behind_keeps_little_to_itself() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let engine = engine(dir.path(), 1);
        let want = cold(&engine, 100);
        let (own, done) = (OwnReads::default(), Arc::new(Mutex::new(0)));
        let mut asked = 0;
        for reads in (0..100u8).map(|n| want(&[[n]])).filter(|reads| !reads.is_content()) {
            let done = done.clone();
            own.bring(&engine.readers, reads, Box::new(move |_| *done.lock().unwrap() += 1));
            asked += 1;
        }
        assert_eq!(own.errands.borrow().len(), BEHIND);
        assert_eq!(engine.readers.pending(), asked);
        while own.turn(&engine.readers) {
            own.inbox.empty();
        }
        own.inbox.empty();
        assert_eq!((*done.lock().unwrap(), engine.readers.pending()), (asked, 0));
    }

    /// Where reads have waited for the disk since, what the thread was to read is the readers': it reads nothing more itself.
    #[test]
    fn what_has_become_slow_is_left_to_the_readers() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let engine = engine(dir.path(), 1);
        let want = cold(&engine, 100);
        let (own, done) = (OwnReads::default(), Arc::new(Mutex::new(0)));
        engine.store.partition(0).note_quick();
        for reads in (0..100u8).map(|n| want(&[[n]])).filter(|reads| !reads.is_content()).take(4) {
            let done = done.clone();
            own.bring(&engine.readers, reads, Box::new(move |_| *done.lock().unwrap() += 1));
        }
        assert_eq!(own.errands.borrow().len(), 4);
        engine.store.partition(0).note_slow();
        own.turn(&engine.readers);
        assert_eq!((*done.lock().unwrap(), own.errands.borrow().len()), (0, 3), "one is handed over, none read");
        // Nobody else reads here.
        engine.store.partition(0).note_quick();
        while *done.lock().unwrap() < 4 {
            own.turn(&engine.readers);
            own.inbox.empty();
        }
        assert_eq!(engine.readers.pending(), 0, "what has gone from hand to hand has waited once");
    }
}
