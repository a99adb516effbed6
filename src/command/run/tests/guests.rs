//! What others read between two commands of a transaction that keeps its cores.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::Ordering;

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
        // A timer in its turn would have it run on another thread: none begins one, and who had begun is waited for.
        self.engine().timers_rest.store(true, Ordering::Relaxed);
        for shard in [0, 1] {
            while self.engine().try_turn(shard).is_none() || self.engine().try_long_turn(shard).is_none() {
                std::thread::yield_now();
            }
        }
        drop(self.engine().lease(&[0, 1]));
        let read = self.beside(queue.len() + 1, read, |world| reply = world.call("EXEC"));
        self.engine().timers_rest.store(false, Ordering::Relaxed);
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

/// What comes behind it is looked at alone. As its reply is too long all of it runs again elsewhere, and whoever waits reads before.
#[test]
fn what_a_script_has_changed_in_vain_is_not_looked_at_any_more() {
    let mut world = World::new();
    let small = [&b"CONFIG"[..], b"SET", b"client-output-buffer-limit", b"normal 16384 0 0"];
    let begun = world.begin(&small.into_iter().collect());
    assert_eq!(world.end(begun), "+OK ");
    let [a, b] = world.keys();
    assert_eq!(world.call(&format!("MSET {a} 1 {b} 1")), "+OK ");
    let script =
        "for\ti=1,9\tdo\tredis.call('SET',KEYS[1]..i,i)end\tfor\ti=1,5000\tdo\tend\treturn(string.rep('x',2e4))";
    for line in ["MULTI", &format!("SET {a} 2"), &format!("EVAL {script} 1 {{{b}}}"), &format!("INCR {b}"), "ECHO look"]
    {
        assert!(!world.call(line).starts_with('-'));
    }
    let mut exec = String::new();
    let read = world.beside(2, &format!("GET {a}"), |world| exec = world.call("EXEC"));
    assert!(exec.starts_with("*4 +OK -OOM ") && exec.ends_with(" :2 $4 look "), "{exec}");
    assert_eq!(read, ("$1 1 ".to_owned(), false));
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

/// A key that has expired since the transaction began is there for both: it may be brought back.
#[test]
fn a_guest_sees_time_as_its_host_does() {
    let mut world = World::new();
    assert_eq!(world.call("SET k 1 PX 500"), "+OK ");
    assert_eq!(world.call("MULTI"), "+OK ");
    for line in ["ECHO x", "ECHO y", "PERSIST k"] {
        assert_eq!(world.call(line), "+QUEUED ");
    }
    let server = world.runner.server.clone();
    let (guest, mut at) = (Rc::new(RefCell::new(None)), 0);
    let comes = guest.clone();
    let at_look: AtLook = Rc::new(RefCell::new(move || {
        at += 1;
        if at == 2 {
            std::thread::sleep(std::time::Duration::from_millis(600));
            *comes.borrow_mut() = Some(Guest::new(&server, "GET k"));
        }
    }));
    at_looks(&at_look);
    assert_eq!(world.call("EXEC"), "*3 $1 x $1 y :1 ");
    moment::never();
    assert_eq!(guest.take().unwrap().end(), "$1 1 ", "it was never gone");
}

/// What a posted command waits for its shard is not taken from its time: who comes later has seen what is past.
#[test]
fn a_posted_command_happens_when_it_runs() {
    let mut world = World::new();
    let server = world.runner.server.clone();
    assert_eq!(world.call("SET k 1 PX 100"), "+OK ");
    let held = server.engine.lease(&[0, 1]);
    let begun = world.begin(&words("GET k")).unwrap_err();
    std::thread::sleep(std::time::Duration::from_millis(150));
    drop(held);
    assert_eq!(world.end(Err(begun)), "$-1 ");
}

/// What guests bring in is bounded: where the table is full, they wait.
#[test]
fn guests_do_not_fill_the_table() {
    const KEYS: usize = 64;
    let limit = 64 << 10;
    let mut world = World::new();
    let fields: String = (0..8).map(|field| format!(" f{field} {}", "v".repeat(4000))).collect();
    (0..KEYS).for_each(|key| assert_eq!(world.call(&format!("HSET {{k}}{key}{fields}")), ":8 "));
    world.rest();
    let server = world.runner.server.clone();
    server.engine.shards.iter().for_each(|shard| shard.core().table_limit = limit);
    assert_eq!(world.call("MULTI"), "+OK ");
    assert_eq!(world.call("EXISTS {k}"), "+QUEUED ");
    (0..3 * KEYS).for_each(|_| assert_eq!(world.call("ECHO x"), "+QUEUED "));
    let (guests, mut at) = (Rc::new(RefCell::new(Vec::new())), 0);
    let (come, to) = (guests.clone(), server.clone());
    let at_look: AtLook = Rc::new(RefCell::new(move || {
        at += 1;
        if at > 1 && at <= 1 + KEYS {
            come.borrow_mut().push(Guest::new(&to, &format!("HGETALL {{k}}{}", at - 2)));
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }));
    at_looks(&at_look);
    assert!(world.call("EXEC").ends_with("$1 x "));
    moment::never();
    let most = server.engine.shards.iter().map(|shard| shard.core().table_bytes).max().unwrap();
    // The one that finds room may be beyond it.
    assert!(most <= limit + limit / 16 + 2 * 8 * 4000, "{most}");
    for guest in guests.take() {
        assert!(guest.end().starts_with("*16 "));
    }
}

/// Whatever stands between a row's name and its key.
#[test]
fn subcommands_wait_as_well() {
    let mut world = World::new();
    for (before, write, read) in [
        ("XADD s 1-0 f v", "XADD s 2-0 f v", "XINFO STREAM s"),
        ("XADD s 1-0 f v", "XGROUP CREATE s g 0", "XINFO GROUPS s"),
        ("SET k 1", "SET k abc", "OBJECT ENCODING k"),
        ("SET k 1", "SET k abcdefghijklmnopqrstuvwxyz", "MEMORY USAGE k"),
        ("SADD h 1", "SADD h a", "OBJECT ENCODING h"),
        ("SET k 1", "EXPIREAT k 99999999999", "EXPIRETIME k"),
        ("SET k 1", "SETRANGE k 10 x", "GETRANGE k 0 -1"),
        ("SET k 1", "SETBIT k 100 1", "BITCOUNT k"),
        ("SET k 1", "BITFIELD k SET u8 0 7", "BITFIELD_RO k GET u8 0"),
        ("SET k 1", "GETSET k 2", "DUMP k"),
        ("HSET h f v", "HPEXPIREAT h 9999999999999 FIELDS 1 f", "HPEXPIRETIME h FIELDS 1 f"),
        ("GEOADD g 1 1 a", "GEOADD g 2 2 b", "GEOSEARCH g FROMLONLAT 1 1 BYRADIUS 9999 km"),
        ("ZADD z 1 a", "ZUNIONSTORE z 1 other", "ZCARD z"),
        ("SET k 1", "MSET k 2 j 3", "GET k"),
        ("SET k 1", "MSETNX k2 2", "GET k2"),
        ("SET k 1", "BITOP NOT k k", "GET k"),
        ("LPUSH l a", "LTRIM l 1 0", "LLEN l"),
        ("XADD s 1-0 f v", "XSETID s 9-0", "XINFO STREAM s"),
    ] {
        assert_eq!(world.call("FLUSHALL"), "+OK ");
        for line in [before, "ZADD other 5 x 6 y"] {
            assert!(!world.call(line).starts_with('-'), "{line}");
        }
        let (reply, was_done) = world.exec_beside(&[write], read);
        assert_eq!((reply, was_done), (world.call(read), false), "{read} beside {write}");
    }
}

/// A consumer that reads changes what is pending, and its own times.
#[test]
fn consumers_are_waited_for() {
    let mut world = World::new();
    for (write, read) in [
        ("XREADGROUP GROUP g c STREAMS s >", "XPENDING s g"),
        ("XREADGROUP GROUP g c STREAMS s >", "XINFO GROUPS s"),
        ("XREADGROUP GROUP g new STREAMS s >", "XINFO CONSUMERS s g"),
        ("XREADGROUP GROUP g c NOACK STREAMS s >", "XINFO GROUPS s"),
        ("XGROUP CREATECONSUMER s g d", "XINFO CONSUMERS s g"),
        ("XGROUP SETID s g 1-0", "XINFO GROUPS s"),
        ("XGROUP DESTROY s g", "XINFO STREAM s"),
    ] {
        for line in ["FLUSHALL", "XADD s 1-0 f v", "XADD s 2-0 f v", "XGROUP CREATE s g 0"] {
            assert!(!world.call(line).starts_with('-'), "{line}");
        }
        let (_, was_done) = world.exec_beside(&[write], read);
        assert!(!was_done, "{read} beside {write}");
    }
}
