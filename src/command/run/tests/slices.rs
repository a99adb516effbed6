//! Commands in slices, and who waits for the keys that they hold.

use super::*;

impl World {
    /// Lets go of a key that was held by hand, as the command does that holds it.
    pub(super) fn let_go(&self, key: &str) -> usize {
        let engine = self.engine();
        let waiting = engine.shards.at(engine.router.shard_of(key.as_bytes())).core().busy.let_go(key.as_bytes());
        let count = waiting.len();
        waiting.into_iter().for_each(|waiter| waiter());
        count
    }

    pub(super) fn hold(&self, key: &str, writes: bool) {
        let engine = self.engine();
        engine.shards.at(engine.router.shard_of(key.as_bytes())).core().busy.hold(key.as_bytes(), writes);
    }

    /// Awaits that somebody waits for the one key that is held.
    pub(super) fn await_waiter(&self) {
        while self.busy() != (1, 1) {
            std::thread::yield_now();
        }
    }

    /// More than there are readers.
    const MANY_READERS: usize = 64;

    /// Gives all readers something to do until what this answers is dropped.
    pub(super) fn hold_up_readers(&self) -> crossbeam_channel::Sender<()> {
        let (go, wait) = crossbeam_channel::bounded(0);
        for wait in std::iter::repeat_n(wait, World::MANY_READERS) {
            self.engine().readers.work(Box::new(move || _ = wait.recv()));
        }
        go
    }

    /// Awaits that there is more for them to do.
    pub(super) fn await_readers_work(&self) {
        while self.engine().readers.pending() <= World::MANY_READERS {
            std::thread::yield_now();
        }
    }

    /// Keys held, and commands that wait for one.
    pub(super) fn busy(&self) -> (usize, usize) {
        let both = self.engine().lease(&[0, 1]);
        (both.iter().map(|core| core.busy.len()).sum(), both.iter().map(|core| core.busy.waiting()).sum())
    }
}

/// In all databases, in EXEC, and whatever else the command names.
#[test]
fn who_writes_a_key_that_another_goes_through_waits_and_nobody_else() {
    let mut world = World::new();
    let [a, b] = world.keys();
    world.call(&format!("MSET {a} 1 {b} 2"));
    world.hold(&a, false);
    for line in [format!("GET {a}"), format!("SET {b} 3"), format!("MGET {a} {b}"), format!("COPY {a} {b} REPLACE")] {
        let begun = world.begin(&words(&line));
        assert!(!world.end(begun).starts_with('-'), "{line}");
    }
    assert_eq!(world.busy(), (1, 0));
    let exec = [format!("GET {b}"), format!("INCR {a}")];
    let mut writes = vec!["EXEC".to_owned()];
    let with_key =
        ["INCR a", "MSET b 5 a 5", "RENAME b a", "MOVE a 1", "SORT a", "PFCOUNT a", "XREADGROUP GROUP g c STREAMS a >"];
    for line in with_key {
        let line = line.split(' ').map(|word| match word {
            "a" => a.as_str(),
            "b" => b.as_str(),
            word => word,
        });
        writes.push(line.collect::<Vec<_>>().join(" "));
    }
    for line in writes {
        world.connect();
        if line == "EXEC" {
            assert_eq!(world.call("MULTI"), "+OK ");
            exec.iter().for_each(|line| assert_eq!(world.call(line), "+QUEUED "));
        }
        let before = world.busy().1;
        let Err(mut finished) = world.begin(&words(&line)) else { panic!("{line} does not wait") };
        while world.busy().1 == before {
            // Whoever had a shard when it came has it now and then.
            assert!(finished.try_recv().is_err(), "{line} does not wait");
            std::thread::yield_now();
        }
        assert_eq!(world.let_go(&a), 1, "{line}");
        let finished = finished.blocking_recv().unwrap();
        assert!(!finished.reply.as_slice().starts_with(b"-OOM"), "{line}");
        world.hold(&a, false);
    }
    world.let_go(&a);
    assert_eq!(world.busy(), (0, 0));
}

/// What has waited happens when it runs, and not if its client was killed meanwhile.
#[test]
fn what_has_waited_for_a_key_happens_when_it_runs() {
    let mut world = World::new();
    let [a, _] = world.keys();
    world.call(&format!("SET {a} 1"));
    world.hold(&a, false);
    let begun = world.begin(&words(&format!("PEXPIRE {a} 60000")));
    world.await_waiter();
    std::thread::sleep(std::time::Duration::from_millis(20));
    let let_go_ms = crate::util::time::now_ms();
    world.let_go(&a);
    assert_eq!(world.end(begun), ":1 ");
    let time = world.call(&format!("PEXPIRETIME {a}"));
    assert!(time[1..].trim().parse::<u64>().unwrap() >= let_go_ms + 60_000, "{time}");
    world.hold(&a, false);
    let client = world.connect();
    let Err(finished) = world.begin(&words(&format!("INCR {a}"))) else { panic!("it does not wait") };
    world.await_waiter();
    client.kill();
    world.let_go(&a);
    assert!(finished.blocking_recv().is_err());
    world.connect();
    assert_eq!(world.call(&format!("GET {a}")), "$1 1 ");
}

/// Who has its turn to have the memory and finds a key held lets the turn go to the others.
#[test]
fn who_waits_for_a_key_keeps_no_turn_to_have_the_memory() {
    let mut world = World::new();
    let server = world.runner.server.clone();
    server.config.set(&[("maxmemory", "32mb")]).unwrap();
    let [a, _] = world.keys();
    let free = memory::take_pool(Bounds::of(&server.config.settings()).command);
    let begun = world.begin(&words(&format!("SET {a} {}", "v".repeat(1_400_000))));
    while meter::crowd() < 1 {
        std::thread::yield_now();
    }
    world.hold(&a, false);
    free();
    world.await_waiter();
    assert_eq!(meter::crowd(), 0);
    world.let_go(&a);
    assert_eq!(world.end(begun), "+OK ");
}

/// Who counts and finds a key held asks again: until then others overwrite without a look, as else.
#[test]
fn who_waits_for_a_key_keeps_nobody_from_overwriting_without_a_look() {
    let mut world = World::new();
    let server = world.runner.server.clone();
    let [a, b] = world.keys();
    let blind = |world: &World| world.engine().lease(&[0, 1]).iter().map(|core| core.blind.len()).sum::<usize>();
    world.call(&format!("MSET {a} 1 {b} 2 c 3"));
    world.rest();
    world.call(&format!("SET {b} 3"));
    for line in ["MULTI", &format!("INCR {a}"), "DBSIZE"] {
        assert!(world.call(line).starts_with('+'), "{line}");
    }
    // What is blind is sighted once the readers have the time for it.
    let go = world.hold_up_readers();
    let begun = world.begin(&words("EXEC"));
    assert!(begun.is_err() && blind(&world) == 1);
    world.await_readers_work();
    world.hold(&a, false);
    drop(go);
    world.await_waiter();
    assert_eq!(blind(&world), 0);
    let mut other = Peer::new(&server);
    assert_eq!(other.call("SET c 4"), "+OK ");
    assert_eq!(blind(&world), 1);
    world.let_go(&a);
    assert_eq!(world.end(begun), "*2 :2 :3 ");
}

/// Whoever is away for long with one thing does not keep the next from the others.
#[test]
fn a_reader_that_is_away_is_not_counted_on() {
    let world = World::new();
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let (began, begun) = std::sync::mpsc::channel();
    let soon = std::time::Duration::from_secs(30);
    let first = move || {
        began.send(()).unwrap();
        wait.recv_timeout(soon).unwrap();
    };
    let (done, is_done) = std::sync::mpsc::channel();
    // Who has not yet fallen asleep since the start would take the next.
    while world.engine().readers.awake() > 0 {
        std::thread::yield_now();
    }
    world.engine().readers.work(Box::new(first));
    begun.recv_timeout(soon).unwrap();
    world.engine().readers.work(Box::new(move || done.send(()).unwrap()));
    is_done.recv_timeout(soon).unwrap();
    go.send(()).unwrap();
}

/// However many there are: those beyond the threads wait in a queue that is counted, and run in their turn. Scripts, which may go on for
/// ever, keep none that goes through data.
#[test]
fn commands_in_slices_beyond_their_threads_wait_and_are_counted() {
    use crate::shard::engine::long::{SCRIPTS, Work};
    let world = World::new();
    let (go, wait) = crossbeam_channel::unbounded::<()>();
    let (done, is_done) = std::sync::mpsc::channel();
    let soon = std::time::Duration::from_secs(30);
    for n in 0..SCRIPTS + 3 {
        let (wait, done) = (wait.clone(), done.clone());
        let work = move || {
            wait.recv_timeout(soon).unwrap();
            done.send(n).unwrap();
        };
        world.engine().long.post(
            Work::Script,
            ShardSet::new(),
            Box::new(move |lease| {
                work();
                lease
            }),
        );
    }
    while world.engine().long.waiting() > 3 {
        std::thread::yield_now();
    }
    assert_eq!(world.engine().long.waiting(), 3);
    let (ran, has_run) = std::sync::mpsc::channel();
    world.engine().long.post(
        Work::Data,
        ShardSet::new(),
        Box::new(move |lease| {
            ran.send(()).unwrap();
            lease
        }),
    );
    has_run.recv_timeout(soon).unwrap();
    (0..SCRIPTS + 3).for_each(|_| go.send(()).unwrap());
    (0..SCRIPTS + 3).for_each(|_| _ = is_done.recv_timeout(soon).unwrap());
    assert_eq!(world.engine().long.waiting(), 0);
}

/// It goes on where it may rest, whatever it is; what it has held is free afterwards.
#[test]
fn what_is_long_is_done_in_slices_and_lets_go() {
    // More than a network thread does at a time; what is kept is little, as here every few kilobytes go to the store.
    const MANY: usize = 17_000;
    let mut world = World::new();
    let [a, b] = world.keys();
    let all = |words: &str| (0..MANY).map(|i| words.replace('N', &i.to_string())).collect::<String>();
    world.call(&format!("SADD {a}{}", all(" mN")));
    world.call(&format!("RPUSH list{}", all(" N")));
    world.call(&format!("HSET hash{}", all(" fN N")));
    let long = [
        (format!("SMEMBERS {a}"), "*17000 "),
        ("LRANGE list 0 -1".to_owned(), "*17000 "),
        ("HGETALL hash".to_owned(), "*34000 "),
        (format!("SPOP {a} 16000"), "*16000 "),
        ("LTRIM list 1000 1999".to_owned(), "+OK "),
        (format!("COPY hash {b}"), ":1 "),
        ("HPEXPIREAT hash 60000000000000 FIELDS 1 f7".to_owned(), "*1 :1 "),
    ];
    let rests = |world: &World| world.engine().lease(&[0, 1]).iter().map(|core| core.stats.rests).sum::<u64>();
    for (line, expected) in long {
        let before = rests(&world);
        let begun = world.begin(&words(&line));
        assert!(begun.is_err(), "{line} is long");
        let reply = world.end(begun);
        assert!(reply.starts_with(expected), "{line}: {}", &reply[..reply.len().min(80)]);
        assert_eq!(world.busy(), (0, 0), "{line}");
        assert!(rests(&world) > before, "{line}");
    }
    let rests = rests(&world);
    assert!(rests > 5 * MANY as u64 / 17, "{rests} rests: a slice is 16 elements at most here");
    assert_eq!(world.call(&format!("SCARD {a}")), ":1000 ");
    assert_eq!(world.call("LINDEX list 0"), "$4 1000 ");
    assert_eq!(world.call(&format!("HLEN {b}")), ":17000 ");
    assert_eq!(world.call(&format!("HGET {b} f16999")), "$5 16999 ");
}

/// Two that write one key run one after the other.
#[test]
fn who_is_to_hold_a_key_waits_for_who_holds_it() {
    let mut world = World::new();
    let [a, b] = world.keys();
    world.call(&format!("SADD {a}{}", (0..17_000).map(|i| format!(" {i}")).collect::<String>()));
    world.hold(&b, true);
    let begun = world.begin(&words(&format!("COPY {a} {b}")));
    world.await_waiter();
    world.connect();
    assert_eq!(world.call(&format!("EXISTS {b}")), ":0 ", "who only looks sees what was there before");
    world.let_go(&b);
    assert_eq!(world.end(begun), ":1 ");
    assert_eq!(world.busy(), (0, 0));
}

/// The sweep that is at a hash looks at it again; nobody does at the copy.
#[test]
fn the_copy_of_a_hash_is_swept_as_soon_as_its_fields_say() {
    use crate::codec::field::FieldTimes;
    let mut world = World::new();
    world.call("HSET hash f 1 g 2");
    world.call("HPEXPIREAT hash 60000000000000 FIELDS 1 f");
    let ns = world.session.as_ref().map(|session| session.ns).unwrap();
    let indexed = |world: &World, key: &str, to: Option<u64>| {
        let engine = world.engine();
        engine.transact(&engine.all_shards(), 1, |txn| {
            let at = txn.find(ns, key.as_bytes())?.unwrap();
            let mut times = FieldTimes::of(&txn.body(at).extra).unwrap();
            times.indexed = to.unwrap_or(times.indexed);
            txn.set_extra(at, times.extra());
            Ok(times.indexed)
        })
    };
    assert_eq!(indexed(&world, "hash", Some(60_000_000_060_000)), Ok(60_000_000_060_000));
    world.call("COPY hash copy");
    world.call("RENAME hash renamed");
    for key in ["copy", "renamed"] {
        assert_eq!(indexed(&world, key, None), Ok(60_000_000_000_000), "{key}");
    }
}

/// Its entries take several times what is in them.
#[test]
fn a_stream_that_takes_more_than_a_command_may_hold_makes_no_payload() {
    let mut world = World::new();
    for _ in 0..24_000 {
        world.call("XADD stream * f v");
    }
    assert!(world.call("DUMP stream").starts_with('$'));
    world.runner.server.config.set(&[("maxmemory", "32mb")]).unwrap();
    assert!(world.call("DUMP stream").starts_with("-OOM command needs more memory"));
    assert_eq!(world.call("XLEN stream"), ":24000 ");
}

/// The slow log may keep any number of entries: a network thread gathers no more of them than it has time for.
#[test]
fn many_entries_of_the_slow_log_are_gathered_elsewhere() {
    const ENTRIES: usize = 300;
    let mut world = World::new();
    assert_eq!(world.call("CONFIG SET slowlog-log-slower-than 0 slowlog-max-len 1000"), "+OK ");
    let noted = format!("EXISTS{}", format!(" {}", "k".repeat(128)).repeat(32));
    (0..ENTRIES).for_each(|_| _ = world.call(&noted));
    assert!(world.begin(&words("SLOWLOG GET 10")).is_ok());
    let begun = world.begin(&words("SLOWLOG GET -1"));
    assert!(begun.is_err());
    assert_eq!(world.end(begun).matches("EXISTS").count(), ENTRIES);
}

/// Of what its calls are given a script holds nothing behind them.
#[test]
fn a_script_hands_on_a_long_string_as_often_as_it_likes() {
    let mut world = World::new();
    world.runner.server.config.set(&[("maxmemory", "32mb")]).unwrap();
    let script = "local text = string.rep('x', 100000) for n = 1, 500 do redis.call('echo', text) end return 1";
    let eval: OwnedArgs = ["EVAL", script, "0"].into_iter().map(str::as_bytes).collect();
    let begun = world.begin(&eval);
    assert_eq!(world.end(begun), ":1 ");
}
