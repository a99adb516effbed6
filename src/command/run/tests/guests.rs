//! What others read between two commands of a transaction that keeps its cores.

use std::cell::RefCell;
use std::rc::Rc;

use super::*;
use crate::shard::actor::moment::{self, Moment};

/// Called at each look for guests.
pub(super) type AtLook = Rc<RefCell<dyn FnMut()>>;

pub(super) fn at_looks(look: &AtLook) {
    let look = look.clone();
    moment::at(Moment::Hosting, move || {
        look.borrow_mut()();
        at_looks(&look);
    });
}

/// A read that was begun, and its reply.
struct Guest {
    peer: Peer,
    begun: Option<oneshot::Receiver<Finished>>,
    reply: Option<String>,
}

impl Guest {
    fn new(server: &Arc<Server>, line: &str) -> Guest {
        let mut peer = Peer::new(server);
        let begun = peer.begin(&words(line)).unwrap_err();
        Guest { peer, begun: Some(begun), reply: None }
    }

    /// Whether it has been answered.
    fn is_done(&mut self) -> bool {
        if let Some(begun) = &mut self.begun
            && let Ok(finished) = begun.try_recv()
        {
            self.begun = None;
            self.peer.session = Some(finished.session);
            self.reply = Some(String::from_utf8_lossy(finished.reply.as_slice()).replace("\r\n", " "));
        }
        self.reply.is_some()
    }

    /// Its reply at last.
    fn end(mut self) -> String {
        match self.begun.take() {
            Some(begun) => self.peer.end(Err(begun)),
            None => self.reply.unwrap(),
        }
    }
}

impl World {
    /// Runs EXEC of these commands. When they are done, but not all of it, somebody reads: the reply, and whether it came before the
    /// transaction's end.
    fn exec_beside(&mut self, queue: &[&str], read: &str) -> (String, bool) {
        assert_eq!(self.call("MULTI"), "+OK ");
        let of_all_shards = format!("EXISTS {}", self.keys().join(" "));
        queue
            .iter()
            .chain(&[of_all_shards.as_str(), "ECHO look"])
            .for_each(|line| assert_eq!(self.call(line), "+QUEUED "));
        let mut reply = String::new();
        let read = self.beside(queue.len() + 1, read, |world| reply = world.call("EXEC"));
        assert!(reply.ends_with(" $4 look "), "{reply}");
        read
    }

    /// Has somebody read at one of the looks of what runs.
    fn beside(&mut self, look: usize, read: &str, run: impl FnOnce(&mut World)) -> (String, bool) {
        let server = self.runner.server.clone();
        let (guest, was_done) = (Rc::new(RefCell::new(None)), Rc::new(RefCell::new(None)));
        let (comes, told, read, mut at) = (guest.clone(), was_done.clone(), read.to_owned(), 0);
        let at_look: AtLook = Rc::new(RefCell::new(move || {
            at += 1;
            match &mut *comes.borrow_mut() {
                guest @ None if at == look => *guest = Some(Guest::new(&server, &read)),
                Some(guest) => *told.borrow_mut() = Some(guest.is_done()),
                None => {}
            }
        }));
        at_looks(&at_look);
        run(self);
        moment::never();
        (guest.take().unwrap().end(), was_done.take().unwrap())
    }
}

/// What it has not changed is read as it is, at once; what it has changed, when it is done.
#[test]
fn beside_a_transaction_others_read_what_it_has_not_changed() {
    let mut world = World::new();
    let [a, b] = world.keys();
    for (write, read, before, after) in [
        ("SET a 2", "GET a", "$1 1 ", "$1 2 "),
        ("INCR a", "GET a", "$1 1 ", "$1 2 "),
        ("APPEND a 2", "STRLEN a", ":1 ", ":2 "),
        ("DEL a", "GET a", "$1 1 ", "$-1 "),
        ("EXPIRE a 100", "TTL a", ":-1 ", ":100 "),
        ("EXPIRE a 0", "TYPE a", "+string ", "+none "),
        ("RENAME a c", "GET a", "$1 1 ", "$-1 "),
        ("RENAME b a", "GET a", "$1 1 ", "$1 1 "),
        ("COPY hash a REPLACE", "TYPE a", "+string ", "+hash "),
        ("SORT list STORE a", "TYPE a", "+string ", "+list "),
        ("SET absent 2", "GET absent", "$-1 ", "$1 2 "),
        ("HSET hash f 2 g 3", "HGET hash g", "$-1 ", "$1 3 "),
        ("HDEL hash f", "HLEN hash", ":1 ", ":0 "),
        ("HEXPIRE hash 0 FIELDS 1 f", "HGET hash f", "$1 1 ", "$-1 "),
        ("RPUSH list v", "LRANGE list 1 -1", "*0 ", "*1 $1 v "),
        ("LMOVE list other LEFT LEFT", "LLEN list", ":1 ", ":0 "),
        ("SADD set 2", "SCARD set", ":1 ", ":2 "),
        ("SMOVE set other 1", "SISMEMBER set 1", ":1 ", ":0 "),
        ("ZADD zset 2 m", "ZSCORE zset m", "$1 1 ", "$1 2 "),
        ("ZADD zset 0 n", "ZRANK zset m", ":0 ", ":1 "),
        ("XADD stream 2-0 f v", "XLEN stream", ":1 ", ":2 "),
        ("PFADD log 2", "PFCOUNT log", ":1 ", ":2 "),
        ("EVAL return{redis.call('INCR',KEYS[1]),redis.call('ECHO','')} 1 a", "GET a", "$1 1 ", "$1 2 "),
    ] {
        let names = |line: &str| {
            let word = |word: &str| match word {
                "a" => a.clone(),
                "b" => b.clone(),
                word => word.to_owned(),
            };
            line.split(' ').map(word).collect::<Vec<_>>().join(" ")
        };
        for line in [
            "FLUSHALL",
            "SET a 1",
            "SET b 1",
            "HSET hash f 1",
            "RPUSH list 1",
            "SADD set 1",
            "ZADD zset 1 m",
            "XADD stream 1-0 f v",
            "PFADD log 1",
        ] {
            assert!(!world.call(&names(line)).starts_with('-'));
        }
        let (write, read) = (names(write), names(read));
        assert_eq!(world.call(&read), before, "{read} before");
        // Of another key before it is written, and after it has been.
        let (reply, was_done) = world.exec_beside(&["SET untouched 1", "ECHO x"], &read);
        let waits_anyway = read.starts_with("PFCOUNT");
        assert_eq!((reply.as_str(), was_done), (before, !waits_anyway), "{read} before {write}");
        let (reply, was_done) = world.exec_beside(&[&write], &read);
        assert_eq!((reply.as_str(), was_done), (after, false), "{read} beside {write}");
        assert_eq!(world.call(&read), after);
    }
}

/// What failed has changed nothing; what came before it has.
#[test]
fn what_a_queued_command_has_not_done_others_read_as_it_was() {
    let mut world = World::new();
    assert_eq!(world.call("SET k 1"), "+OK ");
    let (reply, was_done) = world.exec_beside(&["LPUSH k v"], "GET k");
    assert_eq!((reply.as_str(), was_done), ("$1 1 ", true));
    let (reply, was_done) = world.exec_beside(&["SET k 2", "INCR k", "LPUSH k v"], "GET k");
    assert_eq!((reply.as_str(), was_done), ("$1 3 ", false));
}

/// Whatever a database's name stands for by then.
#[test]
fn beside_a_transaction_that_flushes_nobody_reads() {
    let mut world = World::new();
    for (write, after) in [("FLUSHDB", "$-1 "), ("FLUSHALL", "$-1 "), ("SWAPDB 0 0", "$1 1 ")] {
        assert_eq!(world.call("SET k 1"), "+OK ");
        let (reply, was_done) = world.exec_beside(&[write], "GET k");
        assert_eq!((reply.as_str(), was_done), (after, false), "{write}");
    }
}

/// Writers, and who looks at several keys, wait for its end.
#[test]
fn beside_a_transaction_nobody_writes() {
    let mut world = World::new();
    assert_eq!(world.call("SET k 1"), "+OK ");
    for (line, reply) in [
        ("SET k 2", "+OK "),
        ("GETEX k", "$1 2 "),
        ("GETDEL k", "$1 2 "),
        ("MGET k k", "*2 $-1 $-1 "),
        ("DBSIZE", ":1 "),
        ("SORT_RO k", "*0 "),
        ("EVAL_RO return(1) 1 k", ":1 "),
    ] {
        assert_eq!(world.exec_beside(&["SET untouched 1"], line), (reply.to_owned(), false), "{line}");
    }
}

/// It is read without the shard, and by the time it has been that may still be another's.
#[test]
fn a_guest_may_read_what_only_the_store_has() {
    let mut world = World::new();
    assert_eq!(world.call("SET k 1"), "+OK ");
    world.rest();
    let (reply, _) = world.exec_beside(&["ECHO x"], "GET k");
    assert_eq!(reply, "$1 1 ");
}

/// Those who wait for a key, more than are served at a time, are served by who comes after the transaction.
#[test]
fn a_guest_serves_nobody() {
    const WAITERS: usize = 5;
    let mut world = World::new();
    let server = world.runner.server.clone();
    let begin = |line: &str| {
        let mut peer = Peer::new(&server);
        let begun = peer.begin(&words(line)).unwrap_err();
        (peer, begun)
    };
    let end = |(mut peer, begun): (Peer, _)| peer.end(Err(begun));
    for line in ["SET {k} 1", "MULTI"] {
        assert_eq!(world.call(line), "+OK ");
    }
    (0..3).for_each(|_| assert_eq!(world.call("LLEN {k}list"), "+QUEUED "));
    let waiters: Vec<_> = (0..WAITERS).map(|_| begin("BLPOP {k}list 0")).collect();
    let held = server.engine.lease(&[0, 1]);
    let push = begin("RPUSH {k}list 1 2 3 4 5");
    let exec = world.begin(&words("EXEC")).unwrap_err();
    // Whoever frees the shard runs both.
    let read = world.beside(2, "GET {k}", |_| drop(held));
    assert_eq!(read, ("$1 1 ".to_owned(), true));
    assert_eq!(world.end(Err(exec)), "*3 :3 :3 :3 ");
    assert_eq!(end(push), ":5 ");
    for (n, waiter) in waiters.into_iter().enumerate() {
        assert_eq!(end(waiter), format!("*2 $7 {{k}}list $1 {} ", n + 1));
    }
}
