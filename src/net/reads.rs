//! Reads of the store that a network thread does itself.
//!
//! Where a read comes back at once, from the page cache or the block cache, asking another thread for it costs more than the
//! read. But whoever else the thread serves would wait for it. So what its connections lack is read a few records at a time,
//! and between any two such turns the thread looks at its sockets and serves who is ready.
//!
//! | reads | done by |
//! |---|---|
//! | few, of one who is not the only one served, as long as the readers have time | the readers: a core may be free for them, and others are served meanwhile |
//! | few else | this thread |
//! | what is worth another thread's time | the readers, and this thread as long as it has nothing else to read |
//! | what comes while this thread is behind with what it has to read | the readers |
//! | what waits for the disk | the readers |

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::worker::Worker;
use crate::handler::buffers::Away;
use crate::shard::engine::readers::{Asker, Errand, READS_OF_TASK, Readers};
use crate::shard::memory::reads::{Reads, Wanted};
use crate::store::Watch;
use crate::util::inbox::Inbox;
use crate::util::ticks;

/// Reads between two looks at the sockets, at most.
const TURN: usize = 2 * READS_OF_TASK;
/// After so long no more are begun before the next look: whoever sends something meanwhile waits. A thread that mostly sleeps
/// reads in twice the time, its caches being others' by then.
const TURN_TIME: Duration = Duration::from_micros(8);
/// So many turns on end are for what is little; the next one is for what the readers were asked for, who may leave it to this
/// thread.
const OWN_TURNS: u32 = 4;
/// So many of one connection are worth calling another thread.
const WORTH: usize = 8;

/// Where so many reads wait at most, cores are likely to have time.
const LITTLE: usize = 64;

/// Errands that wait for this thread, from which on it is worth calling another one for more.
const BEHIND: usize = 8;

/// What was read for a connection, until its thread takes it: one in the connection's life, of one errand at a time.
pub(super) struct Brought {
    /// And what it counts for until then.
    reads: Mutex<Option<(Reads, Away)>>,
    news: Notify,
    inbox: Arc<Inbox<Arc<Brought>>>,
    /// Counts so many bytes.
    count: Box<dyn Fn(usize) -> Away + Send + Sync>,
}

impl Brought {
    fn put(&self, reads: Reads) {
        let away = (self.count)(reads.memory_bytes());
        *self.reads.lock() = Some((reads, away));
    }

    /// Tells the connection, on its thread.
    pub(super) fn tell(&self) {
        self.news.notify_one();
    }
}

/// By somebody else than the connection's thread.
impl Asker for Brought {
    fn take(self: Arc<Self>, reads: Reads) {
        self.put(reads);
        self.inbox.clone().put(self);
    }
}

/// What a connection asks for.
pub(super) struct Asked {
    errand: RefCell<Arc<Errand>>,
    brought: Arc<Brought>,
}

impl Asked {
    /// Awaits what was asked for.
    pub(super) async fn come(&self) -> (Reads, Away) {
        loop {
            if let Some((mut reads, away)) = self.brought.reads.lock().take() {
                reads.give_room(self.errand.borrow_mut().take_back());
                return (reads, away);
            }
            self.brought.news.notified().await;
        }
    }
}

/// What this thread reads for a connection.
struct Own {
    asked: Rc<Asked>,
    brought: Reads,
    rest: std::vec::IntoIter<Wanted>,
}

/// What a network thread is to read: at most one errand of each of its connections.
#[derive(Default)]
pub(super) struct OwnReads {
    errands: RefCell<VecDeque<Own>>,
    /// Turns on end that were for these, while the readers were asked for something.
    own_turns: Cell<u32>,
    /// Something waits for the disk for which the readers may not have been called.
    calls: Cell<bool>,
    wake: Notify,
    /// Those for whom the readers have read.
    pub(super) inbox: Arc<Inbox<Arc<Brought>>>,
}

impl OwnReads {
    /// What a connection of this thread asks with. What was read counts with `count` until it is taken.
    pub(super) fn asker(&self, count: impl Fn(usize) -> Away + Send + Sync + 'static) -> Rc<Asked> {
        let (inbox, count) = (self.inbox.clone(), Box::new(count));
        let brought = Arc::new(Brought { reads: Mutex::default(), news: Notify::new(), inbox, count });
        Rc::new(Asked { errand: RefCell::new(Errand::of(brought.clone())), brought })
    }

    /// Has what is wanted read, here, or by the readers where it is much or takes its time. The one before has come.
    pub(super) fn bring(&self, readers: &Readers, mut reads: Reads, asked: &Rc<Asked>, in_company: bool) {
        if reads.wanted() >= WORTH || !reads.is_quick() {
            return self.have_brought(readers, reads, asked);
        }
        if self.errands.borrow().len() >= BEHIND || in_company && readers.have_time() {
            // Others are called, as this thread has enough to do, or may have.
            return readers.bring_again(&mut asked.errand.borrow_mut(), reads, false);
        }
        let rest = reads.take_wanted();
        readers.count(rest.len() as isize);
        self.errands.borrow_mut().push_back(Own { asked: asked.clone(), brought: reads, rest: rest.into_iter() });
        self.wake.notify_one();
    }

    /// By the readers, whom this thread helps.
    fn have_brought(&self, readers: &Readers, reads: Reads, asked: &Asked) {
        if !reads.is_quick() {
            self.calls.set(true);
        }
        readers.bring_again(&mut asked.errand.borrow_mut(), reads, true);
        self.wake.notify_one();
    }

    /// Calls readers for what has come together since the last time.
    fn call(&self, readers: &Readers) {
        if self.calls.take() {
            readers.call_waiting();
        }
    }

    /// Tells those for whom others have read.
    pub(super) fn empty_inbox(&self) {
        self.inbox.empty(|brought| brought.tell());
    }

    /// A few reads, of what this thread is to do, else of what the readers have not begun; after this time none but those of the
    /// first task. Whether there are more.
    fn turn(&self, readers: &Readers, time: Duration) -> bool {
        let since = ticks::now();
        let in_time = || u128::from(ticks::ns_since(since)) < time.as_nanos();
        let own = if readers.are_asked() { self.own_turns.get() } else { 0 };
        let is_own = own < OWN_TURNS && !self.errands.borrow().is_empty();
        self.own_turns.set(if is_own { own + 1 } else { 0 });
        let helps = if is_own {
            self.read_some(readers, in_time);
            readers.are_asked()
        } else {
            readers.help() && (!in_time() || readers.help())
        };
        helps || !self.errands.borrow().is_empty()
    }

    /// A few reads of what this thread is to do.
    fn read_some(&self, readers: &Readers, in_time: impl Fn() -> bool) {
        let (mut left, mut watch) = (TURN, Watch::default());
        while left > 0 && (left == TURN || in_time()) {
            let first = self.errands.borrow_mut().pop_front();
            let Some(errand) = first else { break };
            let most = left.min(READS_OF_TASK);
            left = left.saturating_sub(self.go_on(readers, errand, most, &mut watch).max(1));
        }
    }

    /// Whether others are to run before the next turn: what it is for was worth another thread's time, so that it takes long, and
    /// is not so much that all cores have work. A turn that will only find that the readers wait for the disk takes no time, and
    /// who lets others run may have to wait until they have used theirs up.
    fn has_time(&self, readers: &Readers) -> bool {
        self.errands.borrow().is_empty() && readers.pending() <= LITTLE && readers.want_help()
    }

    /// Reads of an errand, so many at most; how many of these are no longer to be done in this turn.
    fn go_on(&self, readers: &Readers, mut errand: Own, most: usize, watch: &mut Watch) -> usize {
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
            errand.asked.brought.put(errand.brought);
            errand.asked.brought.tell();
        } else if quick {
            self.errands.borrow_mut().push_front(errand);
        } else {
            readers.count(-(errand.rest.len() as isize));
            errand.brought.want_again(errand.rest);
            self.have_brought(readers, errand.brought, &errand.asked);
        }
        if quick { done } else { TURN }
    }
}

impl Worker {
    /// Reads what its connections lack.
    pub(super) async fn reads(self: Rc<Self>) {
        loop {
            self.reads.wake.notified().await;
            loop {
                self.reads.call(&self.server.engine.readers);
                if self.is_in_company() && self.reads.has_time(&self.server.engine.readers) {
                    self.let_them_run();
                }
                let more = self.reads.turn(&self.server.engine.readers, TURN_TIME);
                self.reads.empty_inbox();
                if !more {
                    break;
                }
                // The sockets are looked at before this goes on.
                tokio::task::yield_now().await;
            }
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::ops::Range;

    use super::super::worker::tests::with_worker;
    use super::*;
    use crate::shard::engine::Engine;
    use crate::shard::keyspace::walk::tests::engine;
    use crate::shard::memory::table::table_hash;

    /// A shard whose keys, of one byte, are on disk alone, and what wants some.
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

    /// Has it brought for a connection that is alone, while reads come back at once.
    fn bring(own: &OwnReads, engine: &Engine, reads: Reads) -> Rc<Asked> {
        engine.store.partition(0).note_quick();
        let asked = own.asker(|_| Away::default());
        own.bring(&engine.readers, reads, &asked, false);
        asked
    }

    /// A hundred cold keys, and what has those from one to another brought.
    fn with_keys(test: impl FnOnce(&Engine, &OwnReads, &dyn Fn(Range<u8>) -> Rc<Asked>)) {
        let dir = crate::util::scratch::tempdir().unwrap();
        let engine = engine(dir.path(), 1);
        let (want, own) = (cold(&engine, 100), OwnReads::default());
        test(&engine, &own, &|keys| bring(&own, &engine, want(&keys.map(|n| [n]).collect::<Vec<_>>())));
    }

    fn has_come(asked: &Asked) -> bool {
        asked.brought.reads.lock().is_some()
    }

    /// Whoever reads for it, a connection asks with one errand, and holds nothing of it once what was read is taken.
    #[test]
    fn an_errand_is_used_again() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let engine = engine(dir.path(), 1);
        let want = cold(&engine, 100);
        let own = OwnReads::default();
        let asked = own.asker(|_| Away::default());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let one = Arc::as_ptr(&asked.errand.borrow());
        for round in 0..20u8 {
            let keys: Vec<_> = (0..1 + 20 * (round % 2)).map(|n| [n]).collect();
            let reads = want(&keys);
            let wanted = reads.wanted();
            if round % 4 < 2 {
                engine.store.partition(0).note_quick();
                own.bring(&engine.readers, reads, &asked, false);
            } else {
                engine.readers.bring_again(&mut asked.errand.borrow_mut(), reads, false);
            }
            while !has_come(&asked) {
                engine.store.partition(0).note_quick();
                own.turn(&engine.readers, Duration::MAX);
            }
            own.empty_inbox();
            let (reads, _) = runtime.block_on(asked.come());
            assert!(reads.memory_bytes() > 0 || wanted == 0, "{wanted} wanted in round {round}");
            assert_eq!(Arc::as_ptr(&asked.errand.borrow()), one);
            assert_eq!(Arc::strong_count(&asked.errand.borrow()), 1);
            assert_eq!(asked.errand.borrow_mut().take_back().capacity(), 0);
            // The list of a few goes to and fro with the reads.
            let few = round % 4 >= 2 && (1..=16).contains(&wanted);
            assert!(
                reads.is_content() && few == (reads.room() > 0),
                "{wanted} wanted in round {round}: {}",
                reads.room()
            );
        }
    }

    /// However much is wanted, a turn is a few reads, and fewer where these take long. What is much is left to the readers, whom the
    /// thread helps when it has read what is little.
    #[test]
    fn a_turn_is_a_few_reads_and_who_wants_little_does_not_wait_for_much() {
        for (time, most) in [(Duration::MAX, TURN), (Duration::ZERO, READS_OF_TASK)] {
            with_keys(|engine, own, bring| {
                let much = bring(0..60);
                let many = engine.readers.pending();
                let few = bring(60..66);
                let mut left = vec![engine.readers.pending()];
                assert!(many > 2 * WORTH && left[0] > many, "{many} of 60, then {left:?}");
                loop {
                    // Whatever the disk of this machine does.
                    engine.store.partition(0).note_quick();
                    let more = own.turn(&engine.readers, time);
                    own.empty_inbox();
                    left.push(engine.readers.pending());
                    assert!(has_come(&few) || !has_come(&much), "sixty are not read before six");
                    if !more {
                        break;
                    }
                }
                assert!(has_come(&few) && has_come(&much));
                assert_eq!(engine.readers.pending(), 0);
                let turns = left.windows(2).map(|two| two[0] - two[1]);
                assert_eq!(turns.max(), Some(most), "{left:?}");
            });
        }
    }

    /// Not even if there is always somebody who wants little.
    #[test]
    fn who_wants_much_does_not_wait_for_ever() {
        with_keys(|engine, own, bring| {
            let much = bring(0..60);
            let (mut few, mut turns) = (Vec::<Rc<Asked>>::new(), 0);
            while !has_come(&much) {
                few.retain(|asked| !has_come(asked));
                few.extend((few.len() as u8..4).map(|at| bring(60 + 9 * at..64 + 9 * at)));
                // Whatever the disk of this machine does.
                engine.store.partition(0).note_quick();
                own.turn(&engine.readers, Duration::ZERO);
                own.empty_inbox();
                turns += 1;
                assert!(turns < 60 * OWN_TURNS, "it waits while others read");
            }
        });
    }

    /// The readers do what little somebody wants who is not served alone, but no more than is read at once: this thread does the
    /// rest.
    #[test]
    fn who_is_in_company_has_the_readers_read_as_long_as_they_have_time() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let engine = engine(dir.path(), 1);
        let want = cold(&engine, 100);
        let (own, mut all) = (OwnReads::default(), Vec::new());
        let mut bring = |own: &OwnReads, in_company| {
            engine.store.partition(0).note_quick();
            let reads = (0..100u8).map(|n| want(&[[n]])).find(|reads| !reads.is_content()).unwrap();
            let asked = own.asker(|_| Away::default());
            own.bring(&engine.readers, reads, &asked, in_company);
            all.push(asked);
        };
        bring(&own, false);
        assert_eq!((own.errands.borrow().len(), engine.readers.are_asked()), (1, false), "it is alone");
        let mut given = 0;
        while engine.readers.have_time() {
            bring(&own, true);
            given += 1;
            assert_eq!((own.errands.borrow().len(), engine.readers.pending()), (1, 1 + given));
        }
        assert!(given > 0);
        bring(&own, true);
        assert_eq!(own.errands.borrow().len(), 2, "they have enough to do");
        while !all.iter().all(|asked| has_come(asked)) {
            // Whatever the disk of this machine does.
            engine.store.partition(0).note_quick();
            own.turn(&engine.readers, Duration::MAX);
        }
        assert_eq!(engine.readers.pending(), 0);
    }

    /// Others run between the turns of what takes long, as long as it is not so much that somebody waits for it, nor for the disk.
    #[test]
    fn there_is_time_for_others_where_it_takes_long_and_is_not_much() {
        with_keys(|engine, own, bring| {
            let _few = bring(0..4);
            assert!(!own.has_time(&engine.readers), "these are read at once");
            let _much = bring(4..100);
            assert!(engine.readers.pending() > LITTLE && !own.has_time(&engine.readers));
            let mut rests = 0;
            loop {
                // Whatever the disk of this machine does.
                engine.store.partition(0).note_quick();
                let more = own.turn(&engine.readers, Duration::MAX);
                own.empty_inbox();
                if !more {
                    break;
                }
                rests += usize::from(own.has_time(&engine.readers));
            }
            assert!((LITTLE / TURN - 3..=LITTLE / TURN).contains(&rests), "{rests}");
            assert!(!own.has_time(&engine.readers), "there is nothing to do");
            let _more = bring(0..30);
            assert!(own.has_time(&engine.readers));
            engine.store.partition(0).note_slow();
            assert!(!own.has_time(&engine.readers), "it waits for the disk, and the readers with it");
        });
    }

    #[test]
    fn others_run_before_each_turn_of_a_long_read_and_not_where_nobody_else_is_served() {
        with_worker(|worker| async move {
            let engine = &worker.server.engine;
            let want = cold(engine, 100);
            tokio::task::spawn_local(worker.clone().reads());
            let keys: Vec<_> = (0..100u8).map(|n| [n]).collect();
            for (from, in_company) in [(0, true), (30, false)] {
                (0..100).filter(|_| !in_company).for_each(|_| worker.serves(1));
                assert_eq!(worker.is_in_company(), in_company);
                let rests = worker.rests.get();
                let asked = bring(&worker.reads, engine, want(&keys[from..from + 30]));
                while !has_come(&asked) {
                    // Whatever the disk of this machine does.
                    engine.store.partition(0).note_quick();
                    tokio::task::yield_now().await;
                }
                assert_eq!(worker.rests.get() - rests > 1, in_company);
            }
        });
    }

    /// Who has fallen behind leaves to the readers what comes besides.
    #[test]
    fn a_thread_that_is_behind_keeps_little_to_itself() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let engine = engine(dir.path(), 1);
        let want = cold(&engine, 100);
        let (own, mut all) = (OwnReads::default(), Vec::new());
        for reads in (0..100u8).map(|n| want(&[[n]])).filter(|reads| !reads.is_content()) {
            let asked = own.asker(|_| Away::default());
            own.bring(&engine.readers, reads, &asked, false);
            all.push(asked);
        }
        assert_eq!(own.errands.borrow().len(), BEHIND);
        assert_eq!(engine.readers.pending(), all.len());
        while own.turn(&engine.readers, Duration::MAX) {
            own.empty_inbox();
        }
        own.empty_inbox();
        assert!(all.iter().all(|asked| has_come(asked)) && engine.readers.pending() == 0);
    }

    /// What waits for the disk is noted, and readers are called for it before the thread does anything else of what it is to read.
    #[test]
    fn what_waits_for_the_disk_is_called_for_in_the_next_turn() {
        with_worker(|worker| async move {
            let engine = &worker.server.engine;
            let want = cold(engine, 100);
            tokio::task::spawn_local(worker.clone().reads());
            for _ in 0..2 {
                for n in 0..3 {
                    let asked = worker.reads.asker(|_| Away::default());
                    engine.store.partition(0).note_slow();
                    worker.reads.bring(&engine.readers, want(&[[n]]), &asked, true);
                    assert!(worker.reads.calls.get());
                }
                tokio::task::yield_now().await;
                assert!(!worker.reads.calls.get());
            }
        });
    }

    /// Where reads have waited for the disk since, what the thread was to read is the readers': it reads nothing more itself.
    #[test]
    fn what_has_become_slow_is_left_to_the_readers() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let engine = engine(dir.path(), 1);
        let want = cold(&engine, 100);
        let (own, mut all) = (OwnReads::default(), Vec::new());
        engine.store.partition(0).note_quick();
        for reads in (0..100u8).map(|n| want(&[[n]])).filter(|reads| !reads.is_content()).take(4) {
            let asked = own.asker(|_| Away::default());
            own.bring(&engine.readers, reads, &asked, false);
            all.push(asked);
        }
        let come = || all.iter().filter(|asked| has_come(asked)).count();
        assert_eq!(own.errands.borrow().len(), 4);
        engine.store.partition(0).note_slow();
        own.turn(&engine.readers, Duration::MAX);
        assert_eq!((come(), own.errands.borrow().len()), (0, 3), "one is handed over, none read");
        // Nobody else reads here.
        engine.store.partition(0).note_quick();
        while come() < 4 {
            own.turn(&engine.readers, Duration::MAX);
            own.empty_inbox();
        }
        assert_eq!(engine.readers.pending(), 0, "what has gone from hand to hand has waited once");
    }
}
