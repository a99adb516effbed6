//! Commands that go elsewhere, wait, or end on their way.

mod guests;
mod memory;
mod passing;
mod queued;
mod rests;
mod slices;
mod waits;

use std::ops::{Deref, DerefMut};
use std::pin::pin;
use std::sync::LazyLock;
use std::task::{Context, Waker};

use super::*;
use crate::config::{Config, Source};
use crate::handler::pubsub::By;
use crate::handler::session::{Client, bits};
use crate::handler::{KeySpec, Table};
use crate::log::{Fsync, RealIo};
use crate::shard::Engine;
use crate::shard::engine::EngineOptions;
use crate::shard::memory::ahead::Look;
use crate::shard::memory::reads::Reads;
use crate::shard::memory::table::table_hash;

/// A client, and the test's own thread as its network thread.
struct Peer {
    runner: Runner,
    session: Option<Box<Session>>,
}

/// A server of two shards with their threads, and a client of it.
struct World {
    peer: Peer,
    _dir: tempfile::TempDir,
    /// What these commands hold comes out of the pool that other tests count.
    _pool: parking_lot::MutexGuard<'static, ()>,
}

impl World {
    fn new() -> World {
        let (dir, pool) = (crate::util::scratch::tempdir().unwrap(), meter::tests::ONE.lock());
        let options = EngineOptions {
            flush_threads: 1,
            dir: dir.path().to_owned(),
            shards: Some(2),
            databases: 1,
            fsync: Fsync::No,
            table_budget: 256 << 20,
            dirty_budget: 128 << 20,
            cold_budget: 1 << 20,
            block_cache: 1 << 20,
            table_files: 384,
            log_limit: 256 << 20,
            nice: 0,
            background: true,
        };
        let engine = Engine::open(Arc::new(RealIo), options).unwrap();
        engine.replay().unwrap();
        let server = Arc::new(Server::new(engine, Config::load(Source::Defaults, &[]).unwrap(), table()));
        World { peer: Peer::new(&server), _dir: dir, _pool: pool }
    }
}

impl Deref for World {
    type Target = Peer;
    fn deref(&self) -> &Peer {
        &self.peer
    }
}

impl DerefMut for World {
    fn deref_mut(&mut self) -> &mut Peer {
        &mut self.peer
    }
}

impl Peer {
    fn new(server: &Arc<Server>) -> Peer {
        let stats = Arc::new(ThreadStats::new(table().slots()));
        let mut peer = Peer { runner: Runner::new(server.clone(), stats), session: None };
        peer.connect();
        peer
    }

    /// What follows is another client's.
    fn connect(&mut self) -> Arc<Client> {
        let client = Arc::new(Client::default());
        let session = Session::new(client.clone(), self.engine().first_names(), &self.runner.server.acl);
        self.session = Some(Box::new(session));
        client
    }

    fn engine(&self) -> &Engine {
        &self.runner.server.engine
    }

    /// Names of keys of the two shards.
    fn keys(&self) -> [String; 2] {
        [0, 1].map(|shard| {
            let mut names = (0..).map(|i| format!("key:{i}"));
            names.find(|name| self.engine().router.shard_of(name.as_bytes()) == shard).unwrap()
        })
    }

    /// Begins a command; its reply, or what will bring it.
    fn begin(&mut self, args: &OwnedArgs) -> Result<Reply, oneshot::Receiver<Finished>> {
        self.begin_reading(args, 2 * READS_HERE)
    }

    /// The same where the network thread may read so much itself.
    fn begin_reading(&mut self, args: &OwnedArgs, reads_here: usize) -> Result<Reply, oneshot::Receiver<Finished>> {
        let args = args.as_args();
        let command = table().find(&args[0]).unwrap();
        let hash = args.get(1).map_or(0, |key| self.engine().router.hash(key));
        let (mut out, mut need) = (Reply::new(2), 0);
        let call = Call { command, args, hash, spotted: &[], now_ms: crate::util::time::now_ms(), request_bytes: 0 };
        (self.runner.tries, self.runner.reads_here) = (0, reads_here);
        loop {
            let outcome = start(&mut self.runner, &mut self.session, call, &mut out, &mut need);
            drop(self.runner.effects.take());
            match outcome {
                Outcome::Done => return Ok(out),
                Outcome::Posted(finished) => return Err(finished),
                Outcome::Lacks => {
                    let (done, read) = oneshot::channel();
                    let reads = std::mem::take(&mut self.runner.set.reads);
                    self.engine().readers.bring(reads, Box::new(move |reads| _ = done.send(reads)));
                    self.runner.set.reads = read.blocking_recv().unwrap();
                    self.runner.tries += 1;
                }
                Outcome::Closed => panic!("no gate is closed"),
            }
        }
    }

    fn end(&mut self, begun: Result<Reply, oneshot::Receiver<Finished>>) -> String {
        let reply = begun.unwrap_or_else(|finished| {
            let finished = finished.blocking_recv().unwrap();
            self.session = Some(finished.session);
            finished.reply
        });
        String::from_utf8_lossy(reply.as_slice()).replace("\r\n", " ")
    }

    fn call(&mut self, line: &str) -> String {
        let begun = self.begin(&words(line));
        self.end(begun)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.engine().close(false).unwrap();
    }
}

fn words(line: &str) -> OwnedArgs {
    line.split(' ').map(str::as_bytes).collect()
}

/// Else each key is searched for among the shards that the command has, and nothing but time tells.
#[test]
fn routing_foresees_where_the_shard_of_each_key_stands() {
    let mut world = World::new();
    let [zero, one] = world.keys();
    for (line, foreseen) in [
        (format!("GET {one}"), &[0][..]),
        (format!("MSET {one} b {zero} a {one} c"), &[1, 0, 1]),
        (format!("MGET {one} {one}"), &[0, 0]),
    ] {
        world.call(&line);
        let hints: Vec<u16> = world.runner.set.hints.iter().map(|hint| hint.foreseen).collect();
        assert_eq!(hints, foreseen, "{line}");
    }
}

const MEMBERS: usize = 40_000;

fn sadd(key: &str) -> String {
    let members = (0..MEMBERS).map(|i| format!(" m{i}"));
    format!("SADD {key}") + &members.collect::<String>()
}

/// Whoever gives a core back runs what waits at the crossing, on a network thread too: what is long goes on elsewhere.
#[test]
fn what_is_long_is_not_run_by_the_network_thread_that_frees_the_crossing() {
    let mut world = World::new();
    let [from, to] = world.keys();
    assert_eq!(world.call(&sadd(&from)), format!(":{MEMBERS} "));
    assert_eq!(world.call(&sadd(&to)), format!(":{MEMBERS} "));
    let server = world.runner.server.clone();
    let held = server.engine.shards.at(1).core();
    let before = meter::tests::taken();
    let begun = world.begin(&words(&format!("SINTERCARD 2 {from} {to}")));
    assert!(begun.is_err(), "a shard is taken");
    drop(held);
    assert_eq!(world.end(begun), format!(":{MEMBERS} "));
    let taken = meter::tests::taken() - before;
    assert!(taken <= meter::STEPS_HERE.get(), "{taken} steps on a network thread");
}

#[test]
fn a_command_that_is_run_again_counts_its_look_ups_once() {
    let mut world = World::new();
    let [from, to] = world.keys();
    assert_eq!(world.call(&sadd(&from)), format!(":{MEMBERS} "));
    let counted = |world: &World| -> u64 {
        let cores = world.engine().lease(&[0, 1]);
        cores.iter().map(|core| core.stats.keyspace_hits).sum()
    };
    let before = counted(&world);
    // Goes on elsewhere after some thousand look-ups here.
    assert_eq!(world.call(&format!("SINTERCARD 2 {from} {from}")), format!(":{MEMBERS} "));
    assert_eq!(counted(&world) - before, 2);
    assert_eq!(world.call(&format!("EXISTS {from} {to}")), ":1 ");
    assert_eq!(counted(&world) - before, 3);
}

/// To find and hash the keys of such a command would take long by itself.
#[test]
fn a_command_of_very_many_keys_is_begun_elsewhere() {
    let mut world = World::new();
    let keys = |count: usize| (0..count).map(|i| format!(" k{i}")).collect::<String>();
    assert!(world.begin(&words(&format!("EXISTS{}", keys(10)))).is_ok());
    let before = meter::tests::taken();
    assert_eq!(world.call(&format!("EXISTS{}", keys(MOST_ARGS.get()))), ":0 ");
    assert_eq!(meter::tests::taken() - before, 0);
}

/// A peer that has left ends only what writes nothing; a kill ends all, and nothing is left of it.
#[test]
fn what_writes_goes_on_when_its_client_has_left() {
    let mut world = World::new();
    let [all, most] = world.keys();
    for key in [&all, &most] {
        assert_eq!(world.call(&sadd(key)), format!(":{MEMBERS} "));
    }
    assert_eq!(world.call(&format!("SREM {most} m7")), ":1 ");
    let look = format!("SDIFF {all} {most}");
    let cases: [(&[&str], &str); 5] = [
        (&[&look], "-ERR command ended "),
        (&["MULTI", &look, "EXEC"], "-ERR command ended "),
        (&[&format!("SDIFFSTORE copy {all} {most}")], ":1 "),
        (&["MULTI", "SET copy v", &look, "EXEC"], "*2 +OK *1 $2 m7 "),
        (&["MULTI", &look, "SET copy v", "EXEC"], "*2 *1 $2 m7 +OK "),
    ];
    for (lines, expected) in cases {
        for (bit, writes) in [(bits::CLOSING, false), (bits::GONE, !expected.starts_with('-'))] {
            world.connect().set_bit(bit, true);
            let reply = lines.iter().map(|line| world.call(line)).last().unwrap();
            assert!(bit == bits::CLOSING || reply.starts_with(expected), "{lines:?}: {reply}");
            world.connect();
            assert_eq!(world.call("DEL copy"), format!(":{} ", u8::from(writes)), "{lines:?}");
        }
    }
}

/// On whichever threads and however often it has run: of all that the slow log and the statistics tell.
#[test]
fn what_a_command_has_run_before_counts() {
    const BEFORE_NS: u64 = 1 << 40;
    let mut world = World::new();
    let [key, _] = world.keys();
    let server = world.runner.server.clone();
    world.runner.tried_ns = BEFORE_NS;
    assert!(world.begin(&words(&format!("GET {key}"))).is_ok());
    assert!(world.runner.stats.calls.iter().any(|calls| calls.ran_ns.load(Ordering::Relaxed) >= BEFORE_NS));
    let held = server.engine.shards.at(0).core();
    world.runner.tried_ns = BEFORE_NS;
    let Err(finished) = world.begin(&words(&format!("GET {key}"))) else { panic!("the shard is taken") };
    drop(held);
    assert!(finished.blocking_recv().unwrap().ran_ns >= BEFORE_NS);
}

/// Its connection is gone before it has run: what it wrote stands, and what it was to do to others is done.
#[test]
fn what_is_gone_has_its_effects() {
    let mut world = World::new();
    let server = world.runner.server.clone();
    let [key, _] = world.keys();
    let other = Arc::new(Client { id: 5, ..Client::default() });
    // No descriptor of a test is a client's.
    other.leave();
    server.clients.lock().insert(other.id, other.clone());
    for line in ["MULTI", &format!("SET {key} v"), "CLIENT KILL ID 5"] {
        world.call(line);
    }
    let held = server.engine.shards.at(0).core();
    let begun = world.begin(&words("EXEC"));
    assert!(begun.is_err(), "the shard is taken");
    drop(begun);
    let is_killed = || other.bits.load(Ordering::Relaxed) & bits::CLOSING != 0;
    // Its connection is told to close, too.
    let is_told = || pin!(other.killed.notified()).poll(&mut Context::from_waker(Waker::noop())).is_ready();
    assert!(!is_killed() && !is_told());
    drop(held);
    assert!(is_killed() && is_told());
    world.connect();
    assert_eq!(world.call(&format!("GET {key}")), "$1 v ");
}

/// The network lets it in: neither its bytes nor the places of its arguments are too much, but both together are.
#[test]
fn a_request_that_takes_more_than_a_command_may_hold_is_refused() {
    let mut world = World::new();
    world.runner.server.config.set(&[("maxmemory", "32mb")]).unwrap();
    let keys = |count: usize| (0..count).map(|i| format!(" key:{i:026}")).collect::<String>();
    assert_eq!(world.call(&format!("EXISTS{}", keys(10_000))), ":0 ");
    assert!(world.call(&format!("EXISTS{}", keys(100_000))).starts_with("-OOM command needs more memory"));
}

impl World {
    /// Everything is on disk only.
    fn rest(&self) {
        self.engine().flush().unwrap();
        for shard in self.engine().shards.iter() {
            let mut core = shard.core();
            let limit = std::mem::replace(&mut core.table_limit, 0);
            (0..3000).for_each(|_| core.make_room());
            core.table_limit = limit;
            core.cold.clear();
            core.store_is_cold = true;
            assert!(core.table.is_empty());
        }
    }
}

#[test]
fn what_is_not_in_memory_is_read_here_and_with_no_lock() {
    let mut world = World::new();
    let [a, b] = world.keys();
    world.call(&format!("MSET {a} 1 {b} 2"));
    world.call("HSET hash f 1 g 2");
    world.rest();
    let mut here = |line: &str, expected: &str| {
        // A timer may have a shard when the command comes.
        let here = (0..50).any(|_| {
            world.rest();
            let begun = world.begin(&words(line));
            let here = begun.is_ok() && world.runner.tries == 0;
            assert_eq!(world.end(begun), expected, "{line}");
            here
        });
        assert!(here, "{line} is read where it stands");
    };
    here(&format!("GET {a}"), "$1 1 ");
    here(&format!("MGET {a} none {b} {a}"), "*4 $1 1 $-1 $1 2 $1 1 ");
    here("HGET hash f", "$1 1 ");
    here(&format!("EXISTS {a} {b} hash"), ":3 ");
    assert_eq!(world.call("HSET hash f 2 h 3"), ":1 ");
    world.rest();
    assert_eq!(world.call(&format!("DEL {a} {b}")), ":2 ");
    world.rest();
    assert_eq!(world.call(&format!("EXISTS {a} {b} hash")), ":1 ");
    assert!(world.runner.set.reads.is_content());
}

#[test]
fn what_a_slow_disk_has_is_read_by_others() {
    let mut world = World::new();
    let [a, b] = world.keys();
    world.call(&format!("MSET {a} 1 {b} 2"));
    world.rest();
    world.engine().store.partitions().iter().for_each(|partition| partition.note_slow());
    let begun = world.begin(&words(&format!("MGET {a} {b}")));
    assert!(world.runner.tries > 0, "the network thread does not wait");
    assert_eq!(world.end(begun), "*2 $1 1 $1 2 ");
    // A reader counts a read off after it has handed over what it found.
    while world.engine().readers.pending() > 0 {
        std::thread::yield_now();
    }
    for _ in 0..200 {
        // They have found it quick again.
        world.rest();
        let begun = world.begin(&words(&format!("GET {a}")));
        let here = begun.is_ok() && world.runner.tries == 0;
        assert_eq!(world.end(begun), "$1 1 ");
        if here {
            return;
        }
    }
    panic!("it is never read here again");
}

fn reach(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> crate::Result {
    for key in args.slice(1).iter() {
        let known = ctx.lookup(key)?.is_some();
        ctx.set_string(key, if known { b"again" } else { b"new" }, 0)?;
    }
    out.ok();
    Ok(())
}

/// A row that names the first of its keys only.
const REACH: &[Command] =
    &[Command::new("reach", reach, -2, flags::WRITE, Group::Generic).keys(&[KeySpec::one(1, crate::handler::key::RW)])];

static WITH_REACH: LazyLock<Table> = LazyLock::new(|| Table::new(&[crate::command::FAMILIES, &[REACH]].concat()));

/// Nothing is read of the wrong shard, and nothing left behind in the right one.
#[test]
fn a_key_that_no_row_names_is_found_where_it_is() {
    let mut world = World::new();
    Arc::get_mut(&mut world.runner.server).unwrap().table = &WITH_REACH;
    let [a, b] = world.keys();
    for (n, held) in [(0, None), (1, Some(0)), (2, Some(1))] {
        world.call("FLUSHALL");
        assert_eq!(world.call("MULTI"), "+OK ");
        let queue = &mut world.session.as_mut().unwrap().multi.as_mut().unwrap().queue;
        queue.push((WITH_REACH.find(b"reach").unwrap().1, words(&format!("reach {a} {b}"))));
        let server = world.runner.server.clone();
        let held = held.map(|shard: u16| server.engine.shards.at(shard).core());
        let begun = world.begin(&words("EXEC"));
        assert_eq!(begun.is_err(), held.is_some(), "{n}");
        drop(held);
        assert_eq!(world.end(begun), "*1 +OK ");
        assert_eq!(world.call(&format!("MGET {a} {b}")), "*2 $3 new $3 new ", "{n}: it ran once");
        assert_eq!(world.call("DBSIZE"), ":2 ");
    }
    // A word that is a group's name, too; the one that is stored to is the last.
    world.call(&format!("XADD {b} 1-1 f v"));
    world.call("FLUSHALL");
    for key in [&a, &b] {
        assert_eq!(world.call(&format!("XGROUP CREATE {key} STREAMS 0 MKSTREAM")), "+OK ");
        world.call(&format!("XADD {key} 1-1 f v"));
        let read = world.call(&format!("XREADGROUP COUNT 1 GROUP STREAMS c STREAMS {key} >"));
        assert!(read.contains("1-1"), "{read}");
    }
    world.call("GEOADD places 1 1 here");
    for (to, other) in [(&a, &b), (&b, &a)] {
        world.call(&format!("DEL {a} {b}"));
        assert_eq!(world.call(&format!("GEORADIUS places 1 1 1 km STORE {other} STORE {to}")), ":1 ");
        assert_eq!(world.call(&format!("EXISTS {to}")), ":1 ");
        let keys = world.call(&format!("COMMAND GETKEYS GEORADIUS places 1 1 1 km STORE {other} STORE {to}"));
        assert!(keys.contains(to.as_str()) && !keys.contains(other.as_str()), "{keys}");
    }
}

/// However many count at once, one reader is at it.
#[test]
fn who_counts_waits_with_the_others_who_do() {
    let mut world = World::new();
    let [a, b] = world.keys();
    world.call(&format!("MSET {a} 1 {b} 2"));
    world.rest();
    world.call(&format!("MSET {a} 3 {b} 4"));
    let server = world.runner.server.clone();
    // Nothing is sighted as long as somebody has a shard.
    let held = server.engine.shards.at(0).core();
    let waiting: Vec<_> = (0..100)
        .map(|_| {
            world.connect();
            world.begin(&words("DBSIZE"))
        })
        .collect();
    assert!(waiting.iter().all(Result::is_err));
    drop(held);
    for begun in waiting {
        assert_eq!(world.end(begun), ":2 ");
    }
}

/// However many elements a command names: what it lacks of them is read at once, not one a run.
#[test]
fn all_elements_that_a_command_names_are_read_at_once() {
    const NAMED: usize = 40;
    let mut world = World::new();
    let named = |of: &dyn Fn(usize) -> String| (0..NAMED).map(|n| format!(" {}", of(n))).collect::<String>();
    let all = |of: &dyn Fn(usize) -> String| (0..3 * NAMED).map(|n| format!(" {}", of(n))).collect::<String>();
    // Long members stand in a sorted set's order alone.
    let member = |n: usize| format!("a-member-of-some-length:{n}");
    let pair = |n: usize| format!("{} {n}", member(n));
    let scored = |n: usize| format!("{n} {}", member(n));
    world.call(&format!("HSET hash{}", all(&pair)));
    world.call(&format!("SADD set{}", all(&member)));
    world.call(&format!("ZADD zset{}", all(&scored)));
    let (ones, nils) = (":1 ".repeat(NAMED), format!("*{NAMED} "));
    for (line, expected) in [
        (format!("SMISMEMBER set{}", named(&member)), format!("{nils}{ones}")),
        (format!("HSET hash{}", named(&pair)), ":0 ".to_owned()),
        (format!("SADD set{}", named(&member)), ":0 ".to_owned()),
        (format!("ZADD zset{}", named(&scored)), ":0 ".to_owned()),
        (format!("HDEL hash{}", named(&member)), format!(":{NAMED} ")),
        (format!("SREM set{}", named(&member)), format!(":{NAMED} ")),
    ] {
        world.rest();
        let before = world.runner.stats.commands.load(Ordering::Relaxed);
        let begun = world.begin(&words(&line));
        assert_eq!(world.end(begun), expected, "{line}");
        assert_eq!(world.runner.stats.commands.load(Ordering::Relaxed) - before, 1, "{line}");
        assert!(world.runner.tries <= 2, "{} tries: {line}", world.runner.tries);
    }
    for line in [format!("HMGET hash{}", named(&member)), format!("ZMSCORE zset{}", named(&member))] {
        world.rest();
        let begun = world.begin(&words(&line));
        assert!(world.runner.tries <= 2, "{} tries: {line}", world.runner.tries);
        assert!(world.end(begun).starts_with(&format!("*{NAMED} ")), "{line}");
    }
}

/// The first elements of a range, from either end, are read ahead like single ones; then the command is done here.
#[test]
fn a_few_elements_of_a_range_are_read_with_no_lock_held() {
    let mut world = World::new();
    let all = |of: &dyn Fn(usize) -> String| (0..90).map(|n| format!(" {}", of(n))).collect::<String>();
    world.call(&format!("RPUSH list{}", all(&|n| format!("{n}"))));
    world.call(&format!("ZADD zset{}", all(&|n| format!("{n} m{n:02}"))));
    // With a long value, as a page of a listpack is all of it.
    world.call(&format!("HSET hash z {}{}", "x".repeat(70), all(&|n| format!("f{n:02} {n}"))));
    for (line, expected) in [
        ("LRANGE list 50 52", "*3 $2 50 $2 51 $2 52 "),
        ("LRANGE list -2 -1", "*2 $2 88 $2 89 "),
        ("ZRANGE zset 0 1", "*2 $3 m00 $3 m01 "),
        ("ZRANGE zset 5 6 REV", "*2 $3 m84 $3 m83 "),
        ("ZREVRANGE zset 0 1 WITHSCORES", "*4 $3 m89 $2 89 $3 m88 $2 88 "),
        ("ZRANGEBYSCORE zset 50 +inf LIMIT 1 2", "*2 $3 m51 $3 m52 "),
        ("ZREVRANGEBYSCORE zset (50 -inf LIMIT 0 2", "*2 $3 m49 $3 m48 "),
        ("ZPOPMIN zset 2", "*4 $3 m00 $1 0 $3 m01 $1 1 "),
        ("ZPOPMAX zset", "*2 $3 m89 $2 89 "),
    ] {
        world.rest();
        let begun = world.begin(&words(line));
        assert!(begun.is_ok(), "{line} is done elsewhere");
        assert!(world.runner.tries <= 2, "{} tries: {line}", world.runner.tries);
        assert_eq!(world.end(begun), expected, "{line}");
    }
    // What is there by then is not read again.
    let begun = world.begin(&words("LRANGE list 88 89"));
    assert!(begun.is_ok() && world.runner.tries == 0);
    world.rest();
    let begun = world.begin(&words("HSCAN hash 0 COUNT 2"));
    assert!(begun.is_ok());
    assert!(world.end(begun).ends_with("*4 $3 f00 $1 0 $3 f01 $1 1 "));
}

/// As Redis does, and LINDEX does not.
#[test]
fn lset_takes_the_lower_half_of_its_index() {
    let mut world = World::new();
    world.call("RPUSH list a b c");
    for (line, expected) in [
        ("LSET list -9223372036854775808 A", "+OK "),
        ("LSET list 4294967297 B", "+OK "),
        ("LSET list -4294967297 C", "+OK "),
        ("LSET list 4294967299 d", "-ERR index out of range "),
        ("LINDEX list 4294967297", "$-1 "),
        ("LRANGE list 0 -1", "*3 $1 A $1 B $1 C "),
    ] {
        assert_eq!(world.call(line), expected, "{line}");
    }
}

/// A small collection comes with its metadata, an element of a big one that is named likewise: one wait, not two.
#[test]
fn what_a_command_looks_for_comes_with_the_metadata() {
    let mut world = World::new();
    let many = |of: &dyn Fn(usize) -> String| (0..100).map(|n| format!(" {}", of(n))).collect::<String>();
    world.call("RPUSH list a b c");
    world.call("HSET hash a 1 b 2");
    world.call("SADD set a");
    world.call("ZADD zset 1 a 2 b");
    world.call(&format!("HSET fields{}", many(&|n| format!("f{n} {n}"))));
    world.call(&format!("SADD members{}", many(&|n| format!("m{n}"))));
    world.call(&format!("ZADD scores{}", many(&|n| format!("{n} m{n}"))));
    let long = "k".repeat(1000);
    let mut elsewhere = 0;
    world.call(&format!("HSET {long} a 1"));
    for (line, expected) in [
        ("LINDEX list 1", "$1 b "),
        ("LRANGE list 0 0", "*1 $1 a "),
        ("RPUSH list d", ":4 "),
        ("LPOP list", "$1 a "),
        ("RPOP list", "$1 d "),
        ("LSET list 0 B", "+OK "),
        ("LPOS list c", ":1 "),
        ("HGET hash b", "$1 2 "),
        ("HSET hash b 3", ":0 "),
        ("HGETALL hash", "*4 $1 a $1 1 $1 b $1 3 "),
        ("HEXISTS hash c", ":0 "),
        ("SISMEMBER set a", ":1 "),
        ("SADD set a", ":0 "),
        ("SMEMBERS set", "*1 $1 a "),
        ("SRANDMEMBER set", "$1 a "),
        ("ZSCORE zset b", "$1 2 "),
        ("ZADD zset 3 b", ":0 "),
        ("ZRANGE zset 0 -1", "*2 $1 a $1 b "),
        ("ZRANK zset b", ":1 "),
        ("ZCOUNT zset 2 5", ":1 "),
        ("HGET fields f7", "$1 7 "),
        ("HGET fields none", "$-1 "),
        ("SISMEMBER members m7", ":1 "),
        ("ZSCORE scores m7", "$1 7 "),
        (&format!("HGET {long} a"), "$1 1 "),
        ("LINDEX none 1", "$-1 "),
        ("ZPOPMIN zset", "*2 $1 a $1 1 "),
        ("SPOP set", "$1 a "),
    ] {
        world.rest();
        let begun = world.begin_reading(&words(line), 0);
        let here = begun.is_ok();
        assert_eq!(world.end(begun), expected, "{line}");
        // A timer may have a shard when the command comes.
        elsewhere += u32::from(!here);
        assert!(world.runner.tries <= 1, "{} tries: {line}", world.runner.tries);
    }
    assert!(elsewhere < 5, "{elsewhere} ran elsewhere");
    // One read may be two: no more is taken from what a network thread may read than it has.
    world.rest();
    let (ns, mut reads) = (world.session.as_ref().unwrap().ns, Reads::default());
    for key in ["hash", &long] {
        let hash = world.engine().router.hash(key.as_bytes());
        let core = world.engine().shards.at(world.engine().router.shard(hash, key.as_bytes())).core();
        core.want(table_hash(hash, ns), ns, key.as_bytes(), Some((&Look::HASH, b"")), &mut reads);
    }
    assert_eq!((reads.wanted(), reads.bring(2)), (2, 2));
    // What is of another type than the command wants is not read.
    world.rest();
    let begun = world.begin_reading(&words("HGET list a"), 0);
    assert!(world.end(begun).starts_with("-WRONGTYPE"));
}

/// What is overwritten is not read; who counts has it read, and meanwhile no other is overwritten so.
#[test]
fn an_exact_count_waits_for_what_nobody_has_looked_at() {
    let mut world = World::new();
    let [a, b] = world.keys();
    let blind = |world: &World| world.engine().lease(&[0, 1]).iter().map(|core| core.blind.len()).sum::<usize>();
    world.call(&format!("MSET {a} 1 {b} 2"));
    world.call("HSET hash f 1");
    world.rest();
    let overwrites =
        [format!("SET {a} 3"), format!("MSET {a} 3 {b} 4"), format!("SETEX {a} 100 3"), format!("SET {a} 3 EX 100")];
    for (line, keys) in overwrites.iter().zip([1, 2, 1, 1]) {
        let begun = world.begin(&words(line));
        assert_eq!(world.end(begun), "+OK ", "{line}");
        assert_eq!((blind(&world), world.runner.tries), (keys, 0), "{line}");
        assert_eq!(world.call(&format!("GET {a}")), "$1 3 ");
        let begun = world.begin(&words("DBSIZE"));
        assert!(begun.is_err(), "{line}: the network thread does not wait");
        assert_eq!(world.end(begun), ":3 ", "{line}");
        assert_eq!(blind(&world), 0, "{line}");
        // A timer may have a shard when the command comes.
        let here = (0..50).any(|_| {
            let begun = world.begin(&words("DBSIZE"));
            let here = begun.is_ok();
            assert_eq!(world.end(begun), ":3 ");
            here
        });
        assert!(here, "{line}: what is sighted is counted at once");
        world.rest();
    }
    for (line, reply) in [(format!("SET {a} 5 NX"), "$-1 "), (format!("SET {a} 5 GET"), "$1 3 ")] {
        assert_eq!(world.call(&line), reply);
        assert_eq!(blind(&world), 0, "{line}");
        world.rest();
    }
    assert_eq!(world.call("SET hash 1"), "+OK ");
    assert_eq!(world.call("MULTI"), "+OK ");
    for line in [&format!("SET {a} 6"), "SET new 1", &format!("DEL {b}"), "DBSIZE", "INFO keyspace"] {
        assert_eq!(world.call(line), "+QUEUED ");
    }
    let replies = world.call("EXEC");
    assert!(replies.starts_with("*5 +OK +OK :1 :3 $"), "{replies}");
    assert!(replies.contains("db0:keys=3,"), "{replies}");
    assert_eq!(blind(&world), 0);
}

/// Whatever it lacked on the way.
#[test]
fn a_transaction_on_keys_that_are_on_disk_happens_once() {
    let mut world = World::new();
    let [a, b] = world.keys();
    world.call(&format!("MSET {a} 1 {b} 2"));
    world.rest();
    assert_eq!(world.call("MULTI"), "+OK ");
    for line in [format!("INCR {a}"), format!("APPEND {b} 3"), format!("MGET {a} {b}")] {
        assert_eq!(world.call(&line), "+QUEUED ");
    }
    let begun = world.begin(&words("EXEC"));
    assert_eq!(world.end(begun), "*3 :2 :2 *2 $1 2 $2 23 ");
}

/// The run that is taken back has ended the subscription already.
#[test]
fn a_transaction_that_is_run_again_ends_the_same_subscriptions() {
    let mut world = World::new();
    let [key, _] = world.keys();
    world.call(&format!("SET {key} 1"));
    world.rest();
    world.session.as_mut().unwrap().set_proto(3);
    world.call("SUBSCRIBE c");
    for line in ["MULTI", "UNSUBSCRIBE", &format!("INCR {key}")] {
        assert!(world.call(line).starts_with('+'), "{line}");
    }
    assert_eq!(world.call("EXEC"), "*2 >3 $11 unsubscribe $1 c :0 :2 ");
    assert_eq!(world.runner.server.hub.subscribers(By::Channel, b"c"), 0);
}

/// All of a compact hash is one page, whatever step is the last that a network thread has for it.
#[test]
fn a_page_that_takes_the_last_step_leads_to_no_other() {
    let mut world = World::new();
    let most = meter::STEPS_HERE.get();
    world.runner.server.config.set(&[("hash-max-listpack-entries", "1000000")]).unwrap();
    let fields: Vec<String> = (0..most - 20).map(|n| format!("{n} v")).collect();
    world.call(&format!("HSET hash {}", fields.join(" ")));
    for n in most - 20..most + 2 {
        world.call(&format!("HSET hash {n} v"));
        assert!(world.call("HSCAN hash 0").starts_with("*2 $1 0 "), "of {} fields", n + 1);
    }
}

/// Whatever it is that finds the memory taken, the last thing it notes included.
#[test]
fn a_transaction_that_finds_the_memory_taken_keeps_its_queue() {
    let mut world = World::new();
    let server = world.runner.server.clone();
    server.config.set(&[("maxmemory", "32mb")]).unwrap();
    let most = Bounds::of(&server.config.settings()).command;
    let free = memory::take_pool(most);
    let mut waiting = Vec::new();
    for n in ((1 << 20) - 1200..(1 << 20) - 900).step_by(8) {
        world.connect();
        assert_eq!(world.call("MULTI"), "+OK ");
        assert_eq!(world.call(&format!("SET k {}", "v".repeat(n))), "+QUEUED ");
        match world.begin(&words("EXEC")) {
            Ok(_) => drop(world.runner.effects.take()),
            Err(later) => waiting.push((n, later)),
        }
    }
    assert!(!waiting.is_empty());
    free();
    for (n, later) in waiting {
        assert_eq!(world.end(Err(later)), "*1 +OK ", "{n} bytes");
    }
}

/// DOCS asserts of every row that its grammar reads.
#[test]
fn every_row_describes_itself() {
    let docs = World::new().call("COMMAND DOCS");
    assert!(docs.starts_with(&format!("*{} ", 2 * table().rows().len())));
}
