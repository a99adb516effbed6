//! Commands that rest: what others do between the slices, and that the answer is the one of a command that does not.

mod strings;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use super::super::posted::Place;
use xxhash_rust::xxh3::xxh3_64;

use super::*;
use crate::log::sim::Rng;
use crate::shard::actor::moment::{self, Moment};
use crate::shard::memory::busy::Wish;

/// Called at each rest, with a client of its own.
type Between = Rc<RefCell<dyn FnMut(&mut Peer)>>;

/// Has `between` called at this thread's next rest, and at all that follow.
fn at_rests(server: &Arc<Server>, between: &Between) {
    let (server, between) = (server.clone(), between.clone());
    moment::at(Moment::Resting, move || {
        between.borrow_mut()(&mut Peer::new(&server));
        at_rests(&server, &between);
    });
}

impl World {
    /// Runs a command on this thread: with rests, at which `between` is called, or without any.
    fn run(&mut self, line: &str, between: Option<Between>) -> String {
        self.run_args(&words(line), between)
    }

    fn run_args(&mut self, args: &OwnedArgs, between: Option<Between>) -> String {
        let server = self.runner.server.clone();
        let command = table().find(&args.as_args()[0]).unwrap();
        let row = command.1.resolve(args.as_args().get(1));
        let in_slices = between.is_some();
        if let Some(between) = between {
            at_rests(&server, &between);
        }
        let (now_ms, bounds) = (crate::util::time::now_ms(), self.runner.bounds());
        loop {
            let Peer { runner, session } = &mut self.peer;
            let session = session.as_deref_mut().unwrap();
            let call = Call { command, args: args.as_args(), hash: 0, spotted: &[], now_ms, request_bytes: 0 };
            let rests = match in_slices {
                true => Place::Long.rests(session, row, call.args),
                false => Rests::Never,
            };
            let mut lease = server.engine.lease(&server.engine.all_shards());
            let mut out = Reply::new(2);
            let running = meter::begin(Allowance::elsewhere(bounds.command, Box::new(|| false)));
            runner.set.hints.clear();
            let buffers = (&mut runner.set, &mut runner.effects);
            let place = (bounds.reply, true, rests, Served::No);
            let result = under_lease(&server, session, row, call, &mut lease, buffers, &mut out, place);
            drop((running, lease));
            match result {
                Ok(_) => {
                    moment::never();
                    assert_eq!(self.busy().0, 0, "{:?}", &args.as_args()[0]);
                    return String::from_utf8_lossy(out.as_slice()).replace("\r\n", " ");
                }
                // Its database was flushed.
                Err(Again::Elsewhere) => {}
                Err(_) => panic!("{:?} is to be run otherwise", &args.as_args()[0]),
            }
        }
    }

    /// With rests at which nothing happens; how many there were.
    fn rest_in(&mut self, line: &str) -> (String, u64) {
        let before = self.rests();
        let reply = self.run(line, Some(Rc::new(RefCell::new(|_: &mut Peer| {}))));
        (reply, self.rests() - before)
    }

    fn rests(&self) -> u64 {
        self.engine().lease(&[0, 1]).iter().map(|core| core.stats.rests).sum()
    }

    /// The same command with and without rests, on the keys that begin with `d` each time as they are before: reply, what
    /// these keys hold then, and their encoding.
    fn check(&mut self, line: &str) -> u64 {
        let kept: BTreeSet<&str> = line.split(' ').filter(|word| word.starts_with('d')).collect();
        let mut outcomes = Vec::new();
        let mut rests = 0;
        for in_slices in [false, true] {
            for key in &kept {
                self.call(&format!("COPY {key} kept:{key}"));
            }
            let reply = if in_slices {
                let (reply, count) = self.rest_in(line);
                rests = count;
                reply
            } else {
                self.run(line, None)
            };
            let mut outcome = vec![reply];
            for key in &kept {
                for look in ["TYPE", "OBJECT ENCODING", "PEXPIRETIME"] {
                    outcome.push(self.call(&format!("{look} {key}")));
                }
                // What it holds, in few characters.
                outcome.push(format!("{:x}", xxh3_64(self.call(&format!("DUMP {key}")).as_bytes())));
                self.call(&format!("DEL {key}"));
                self.call(&format!("RENAME kept:{key} {key}"));
            }
            outcomes.push(outcome);
        }
        let short = |reply: &String| reply.chars().take(200).collect::<String>();
        if outcomes[0] != outcomes[1] {
            let [left, right] = [0, 1].map(|n| outcomes[n].iter().map(short).collect::<Vec<_>>());
            panic!("{line}: {left:?} at once, {right:?} in slices");
        }
        rests
    }
}

/// Members are few enough to be in several sets, of both forms of text.
fn member(rng: &mut Rng, most: u64) -> String {
    let n = rng.below(most);
    match n % 64 {
        0 => format!("{n}{}", "long".repeat(300)),
        1..=16 => format!("{n}"),
        _ => format!("m{n}"),
    }
}

impl World {
    fn add_set(&mut self, rng: &mut Rng, key: &str, size: u64) {
        self.call(&format!("DEL {key}"));
        for _ in 0..size {
            self.call(&format!("SADD {key} {}", member(rng, 300)));
        }
    }
}

impl World {
    fn add_zset(&mut self, rng: &mut Rng, key: &str, size: u64) {
        self.call(&format!("DEL {key}"));
        for _ in 0..size {
            let score = ["1", "-2.5", "3e10", "inf", "-inf", "0.1"][rng.below(6) as usize];
            self.call(&format!("ZADD {key} {score} {}", member(rng, 300)));
        }
    }
}

#[test]
fn sorted_sets_in_slices_are_combined_as_at_once() {
    let mut world = World::new();
    let mut rng = Rng(2);
    let mut rested = 0;
    for round in 0..4 {
        // Digests of members are in no order.
        let digests = ["0", "1"][usize::from(round > 1)];
        world.runner.server.config.set(&[("zset-encode-version", digests)]).unwrap();
        world.add_set(&mut rng, "s0", 80);
        for (key, size) in [("z0", 5), ("z1", 60), ("z2", 150), ("d0", 80), ("d1", 10)] {
            world.add_zset(&mut rng, key, size);
        }
        world.call("SET d2 string");
        world.call("SET string value");
        if round % 2 == 1 {
            world.rest();
        }
        let keys = ["z0", "z1", "z2", "s0", "z2", "d0", "d1", "none", "string"];
        for _ in 0..8 {
            let count = 1 + rng.below(4);
            let most = if rng.below(8) == 0 { keys.len() } else { keys.len() - 2 };
            let sources: Vec<&str> = (0..count).map(|_| keys[rng.below(most as u64) as usize]).collect();
            let (sources, limit) = (sources.join(" "), rng.below(40));
            let mut joins = String::new();
            if rng.chance(50) {
                let weights = (0..count).map(|_| format!(" {}", ["1", "0", "-2", "0.5", "inf"][rng.below(5) as usize]));
                joins = format!(" WEIGHTS{}", weights.collect::<String>());
            }
            joins += ["", " AGGREGATE SUM", " AGGREGATE MIN", " AGGREGATE MAX"][rng.below(4) as usize];
            for (operation, joins) in [("ZUNION", &joins[..]), ("ZINTER", &joins), ("ZDIFF", "")] {
                let destination = ["d0", "d1", "d2", "d3"][rng.below(4) as usize];
                rested += world.check(&format!("{operation} {count} {sources}{joins} WITHSCORES"));
                rested += world.check(&format!("{operation}STORE {destination} {count} {sources}{joins}"));
            }
            rested += world.check(&format!("ZINTERCARD {count} {sources} LIMIT {limit}"));
        }
    }
    assert!(rested > 500, "{rested} rests");
}

#[test]
fn ranges_in_slices_are_those_at_once() {
    let mut world = World::new();
    let mut rng = Rng(3);
    let mut rested = 0;
    for round in 0..2 {
        for (key, size) in [("z0", 5), ("z1", 150), ("d0", 80)] {
            world.add_zset(&mut rng, key, size);
        }
        // All of one score: a range by member.
        for n in 0..120 {
            world.call(&format!("ZADD z2 0 {}", member(&mut rng, 300)));
            world.call(&format!("GEOADD z3 {} {} m{n}", rng.below(360) as i64 - 180, rng.below(160) as i64 - 80));
        }
        world.call("SET d1 string");
        if round % 2 == 1 {
            world.rest();
        }
        for _ in 0..15 {
            let key = ["z0", "z1", "z2", "d0", "none", "d1"][rng.below(6) as usize];
            let reverse = rng.chance(50);
            let number = |rng: &mut Rng| rng.below(200) as i64 - 100;
            let (limited, offset, count) = (rng.chance(60), rng.below(40), number(&mut rng));
            let limit = if limited { format!(" LIMIT {offset} {count}") } else { String::new() };
            let scores = ["-inf", "-2.5", "(0.1", "1", "(1", "3e10", "+inf"];
            let mut score = || scores[rng.below(7) as usize];
            let (mut least, mut most) = (score(), score());
            if reverse {
                std::mem::swap(&mut least, &mut most);
            }
            let reverse = if reverse { " REV" } else { "" };
            let by_score = format!("{least} {most} BYSCORE{reverse}{limit}");
            let lex = |rng: &mut Rng| ["-", "+", "[1", "(m", "[m2", "(m25", "[6"][rng.below(7) as usize].to_owned();
            let long = format!("[64{}", "long".repeat(300));
            let (least, most) = (if rng.chance(20) { long } else { lex(&mut rng) }, lex(&mut rng));
            let by_member = format!("{least} {most} BYLEX{reverse}{limit}");
            let by_rank = format!("{} {}{reverse}", number(&mut rng), number(&mut rng));
            for range in [by_score, by_member, by_rank] {
                let scores = if range.contains("BYLEX") { "" } else { " WITHSCORES" };
                rested += world.check(&format!("ZRANGE {key} {range}{scores}"));
                let destination = ["d0", "d1", "d2"][rng.below(3) as usize];
                rested += world.check(&format!("ZRANGESTORE {destination} {key} {range}"));
            }
            rested += world.check(&format!("ZREMRANGEBYRANK d0 {} {}", number(&mut rng), number(&mut rng)));
            let (circle, count) = (rng.below(20_000), 1 + rng.below(60));
            let find = format!("z3 FROMLONLAT 0 0 BYRADIUS {circle} KM ASC COUNT {count}");
            let any = if rng.chance(50) { " ANY" } else { "" };
            rested += world.check(&format!("GEOSEARCH {find}{any} WITHDIST WITHHASH"));
            rested += world.check(&format!("GEOSEARCHSTORE d0 {find}{any} STOREDIST"));
        }
    }
    assert!(rested > 100, "{rested} rests");
}

#[test]
fn who_goes_through_a_range_holds_its_keys_only() {
    let mut world = World::new();
    let [a, b] = world.keys();
    world.check_others("ZADD", &format!("ZRANGE {a} 0 -1 REV WITHSCORES"), "*0 ");
    world.check_others("ZADD", &format!("ZRANGEBYSCORE {b} 20 (370 LIMIT 10 -1"), "*0 ");
    world.check_others("ZADD", &format!("ZRANGESTORE to {a} - + BYLEX"), ":0 ");
    world.check_others("ZADD", &format!("GEOSEARCHSTORE to {b} FROMLONLAT 0 0 BYRADIUS 30000 km"), ":0 ");
}

#[test]
fn what_is_sorted_in_slices_is_sorted_as_at_once() {
    let mut world = World::new();
    let mut rng = Rng(4);
    let mut rested = 0;
    for n in 0..300 {
        world.call(&format!("SET w_{n} {}", rng.below(50)));
        world.call(&format!("HSET h_m{n} f {}", rng.below(1000)));
    }
    for round in 0..2 {
        for n in 0..90 {
            world.call(&format!("RPUSH d0 {}", rng.below(300)));
            world.call(&format!("SADD set {}", rng.below(300)));
            world.call(&format!("RPUSH list {}", member(&mut rng, 300)));
            world.call(&format!("ZADD d1 {n} {}", rng.below(300)));
        }
        world.add_zset(&mut rng, "zset", 100);
        world.call("SET string v");
        if round == 1 {
            world.rest();
        }
        for _ in 0..12 {
            let key = ["d0", "set", "list", "d1", "zset", "none", "string"][rng.below(7) as usize];
            let mut line = format!("SORT {key}");
            line += ["", "", " BY nosort", " BY w_*", " BY h_*->f"][rng.below(5) as usize];
            if rng.chance(50) {
                line += &format!(" LIMIT {} {}", rng.below(60), rng.below(60) as i64 - 10);
            }
            let options = [" GET #", " GET h_*->f", " GET w_*", " GET none", " DESC", " ALPHA"];
            line.extend(options.into_iter().filter(|_| rng.chance(35)));
            rested += world.check(&line);
            rested += world.check(&format!("{line} STORE {}", ["d0", "d1", "d2"][rng.below(3) as usize]));
        }
    }
    assert!(rested > 100, "{rested} rests");
}

/// Nobody holds them: they are of one moment, after the last rest.
#[test]
fn who_sorts_by_other_keys_looks_at_them_at_one_time() {
    let mut world = World::new();
    let [a, b] = world.keys();
    let set = |peer: &mut Peer, generation: usize| {
        (0..100).for_each(|n| _ = peer.call(&format!("SET w_{n} {}", generation * 1000 + n * 37 % 100)));
    };
    set(&mut world, 0);
    for line in [format!("SORT {a} BY w_* GET w_*"), format!("SORT {a} BY w_* GET w_* STORE {b}")] {
        world.call(&format!("DEL {a}"));
        world.call(&format!("RPUSH {a}{}", (0..100).map(|n| format!(" {n}")).collect::<String>()));
        let generation = Rc::new(RefCell::new(0));
        let between = {
            let generation = generation.clone();
            move |peer: &mut Peer| {
                *generation.borrow_mut() += 1;
                set(peer, *generation.borrow());
            }
        };
        let mut reply = world.run(&line, Some(Rc::new(RefCell::new(between))));
        let generation = *generation.borrow();
        assert!(generation > 4, "{generation} rests");
        if line.contains("STORE") {
            assert_eq!(reply, ":100 ");
            reply = world.call(&format!("LRANGE {b} 0 -1"));
        }
        let numbers: Vec<usize> = reply.split(' ').filter_map(|word| word.parse().ok()).collect();
        assert_eq!(numbers, (0..100).map(|n| generation * 1000 + n).collect::<Vec<_>>(), "{line}");
    }
}

#[test]
fn who_sorts_holds_its_keys_only() {
    let mut world = World::new();
    let [a, b] = world.keys();
    for add in ["RPUSH", "SADD", "ZADD"] {
        world.check_others(add, &format!("SORT {a} ALPHA DESC"), "*0 ");
        world.check_others(add, &format!("SORT {b} ALPHA LIMIT 100 200 STORE to"), ":0 ");
        world.check_others(add, &format!("SORT {a} BY none DESC GET # GET #"), "*0 ");
        world.check_others(add, &format!("SORT {b} BY w_* GET # STORE to"), ":0 ");
    }
}

impl World {
    /// A stream of so many entries, some of which are pending.
    fn add_stream(&mut self, key: &str, entries: u64) {
        self.call(&format!("DEL {key}"));
        self.call(&format!("XGROUP CREATE {key} group 0 MKSTREAM"));
        for n in 1..=entries {
            self.call(&format!("XADD {key} {n}-1 name {n}"));
            if n == entries / 2 {
                self.call(&format!("XREADGROUP GROUP group me COUNT 1000 STREAMS {key} >"));
            }
        }
    }
}

#[test]
fn a_stream_in_slices_is_trimmed_as_at_once() {
    let mut world = World::new();
    let mut rng = Rng(5);
    let mut rested = 0;
    for round in 0..2 {
        world.add_stream("d0", 450);
        if round == 1 {
            world.rest();
        }
        for _ in 0..5 {
            let most = rng.below(460);
            let limit = [0, 150, 1000][rng.below(3) as usize];
            let node = |gone: u64| gone / 100 * 100;
            // What goes by MAXLEN, and by MINID.
            for (word, threshold) in [("MAXLEN", most), ("MINID", 451 - most.min(450))] {
                let gone = 450 - most.min(450);
                let near = if limit > 0 { node(gone.min(limit)) } else { node(gone) };
                // All of the last node may go, though it is not full.
                let near = if gone == 450 && (limit == 0 || limit >= 450) { 450 } else { near };
                for (how, gone) in [("", gone), (&format!("LIMIT {limit}")[..], near)] {
                    let nearly = if how.is_empty() { "=" } else { "~" };
                    let line = format!("XTRIM d0 {word} {nearly} {threshold} {how}");
                    let line = line.trim_end();
                    rested += world.check(line);
                    world.call("COPY d0 copy");
                    assert_eq!(world.run(line, None), format!(":{gone} "), "{line}");
                    let range = world.call("XRANGE d0 - + COUNT 1");
                    let first = if gone == 450 { "*0 ".to_owned() } else { format!("{}-1 ", gone + 1) };
                    assert!(range.contains(&first), "{line}: {range}");
                    assert_eq!(world.call("XLEN d0"), format!(":{} ", 450 - gone), "{line}");
                    assert!(world.call("XPENDING d0 group").starts_with("*4 :225 "), "{line}");
                    world.call("RENAME copy d0");
                }
            }
        }
    }
    assert!(rested > 50, "{rested} rests");
}

/// What XPENDING lists, without the time since each delivery: id, consumer, deliveries.
fn without_idle_times(reply: &str) -> String {
    let words: Vec<&str> = reply.split(' ').collect();
    let is_idle_time = |at: usize| words.get(at.wrapping_sub(5)) == Some(&"*4") && words[at].starts_with(':');
    words.iter().enumerate().filter(|(at, _)| !is_idle_time(*at)).map(|(_, word)| format!("{word} ")).collect()
}

#[test]
fn a_stream_in_slices_is_restored_as_at_once() {
    let mut world = World::new();
    world.add_stream("stream", 100);
    let reply = world.begin(&words("DUMP stream")).ok().unwrap();
    let reply = reply.as_slice();
    let payload = &reply[reply.iter().position(|&byte| byte == b'\n').unwrap() + 1..reply.len() - 2];
    let before = world.rests();
    for (key, between) in [("once", None), ("rests", Some(Rc::new(RefCell::new(|_: &mut Peer| {})) as Between))] {
        let args: OwnedArgs = [b"RESTORE", key.as_bytes(), b"0", payload].into_iter().collect();
        assert_eq!(world.run_args(&args, between), "+OK ");
        assert_eq!(world.rests() > before, key == "rests", "{key}");
        for look in ["XRANGE KEY - +", "XPENDING KEY group - + 1000", "XINFO GROUPS KEY"] {
            let [one, other] = ["stream", key].map(|key| without_idle_times(&world.call(&look.replace("KEY", key))));
            assert_eq!(one, other);
        }
    }
}

#[test]
fn a_payload_is_gathered_in_slices_as_at_once() {
    let (mut world, mut rng) = (World::new(), Rng(1));
    world.add_set(&mut rng, "set", 100);
    world.add_zset(&mut rng, "zset", 100);
    world.add_stream("stream", 100);
    let numbers = (0..100).map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
    world.call(&format!("RPUSH list {numbers}"));
    world.call(&format!("HSET hash {numbers}"));
    for on_disk in [false, true] {
        if on_disk {
            world.rest();
        }
        for key in ["set", "zset", "list", "hash", "stream"] {
            let rests = world.check(&format!("DUMP {key}"));
            assert!(rests > 2, "{key}: {rests} rests");
        }
    }
}

/// What is read of a stream and of what is pending, with all that this changes.
#[test]
fn a_stream_in_slices_is_read_as_at_once() {
    let mut world = World::new();
    world.add_stream("stream", 200);
    let lines = [
        "XRANGE KEY - + COUNT 150",
        "XREVRANGE KEY (180-1 20-1",
        "XREAD COUNT 150 STREAMS KEY 30-1",
        "XREADGROUP GROUP group you COUNT 90 STREAMS KEY >",
        "XREADGROUP GROUP group you NOACK STREAMS KEY >",
        "XREADGROUP GROUP group me COUNT 70 STREAMS KEY 20-1",
        "XPENDING KEY group 10-1 90-1 60 me",
        "XPENDING KEY group IDLE 0 - + 1000",
        "XAUTOCLAIM KEY group you 0 10-1 COUNT 60",
        "XAUTOCLAIM KEY group you 0 - COUNT 1000 JUSTID",
        "XGROUP DELCONSUMER KEY group me",
    ];
    for on_disk in [false, true] {
        if on_disk {
            world.rest();
        }
        for line in lines {
            let [at_once, in_slices] = [false, true].map(|in_slices| {
                world.call("COPY stream key REPLACE");
                // Claimed as such, or dropped.
                world.call("XDEL key 50-1 51-1");
                let line = line.replace("KEY", "key");
                let (reply, rests) = if in_slices { world.rest_in(&line) } else { (world.run(&line, None), 0) };
                assert_eq!(rests > 2, in_slices, "{line}: {rests} rests");
                let pending = world.call("XPENDING key group - + 1000");
                [reply, pending, world.call("XPENDING key group"), world.call("XLEN key")]
                    .map(|reply| without_idle_times(&reply))
            });
            assert_eq!(at_once, in_slices, "{line}");
        }
        let rests = world.check("XINFO STREAM stream FULL COUNT 0");
        assert!(rests > 5, "{rests} rests");
    }
}

/// What looks at many elements one by one, or goes through them until it has found something.
#[test]
fn elements_in_slices_are_looked_at_as_at_once() {
    let mut world = World::new();
    for n in 0..200 {
        world.call(&format!("RPUSH d0 e{}", n % 150));
        world.call(&format!("SADD set m{n}"));
        world.call(&format!("ZADD zset {n} m{n}"));
        world.call(&format!("HSET hash m{n} v{n}"));
    }
    let names = (0..120).map(|n| format!(" m{}", n * 3)).collect::<String>();
    for on_disk in [false, true] {
        if on_disk {
            world.rest();
        }
        for line in [
            "LPOS d0 e140",
            "LPOS d0 none",
            "LPOS d0 e120 RANK -1 COUNT 2",
            "LPOS d0 e20 RANK 2 MAXLEN 180",
            "LINSERT d0 BEFORE e100 new",
            "LINSERT d0 AFTER none new",
            "LREM d0 0 e40",
            "LREM d0 -1 e90",
            "LREM d0 1 none",
            &format!("HMGET hash{names}"),
            &format!("SMISMEMBER set{names}"),
            &format!("ZMSCORE zset{names}"),
            "HSCAN hash 0 COUNT 1000",
            "SSCAN set 0 COUNT 1000 MATCH m1*",
            "ZSCAN zset 0 COUNT 200",
            "MEMORY USAGE hash SAMPLES 0",
        ] {
            let rests = world.check(line);
            // In memory nothing is to be looked at for it.
            assert!(rests > 2 || line.starts_with("MEMORY") && !on_disk, "{line}: {rests} rests");
        }
        // Pages end where they end at once.
        for (line, more) in [("SSCAN set 0 COUNT 199", true), ("SSCAN set 0 COUNT 200", false)] {
            let (reply, _) = world.rest_in(line);
            assert_eq!(reply.starts_with("*2 $1 0 "), !more, "{line}");
        }
    }
}

/// Elements by chance, few of many and many of few: each answer is one that is allowed.
#[test]
fn picks_in_slices_are_of_what_there_is() {
    let mut world = World::new();
    let names: BTreeSet<String> = (0..300).map(|n| format!("${} m{n} ", format!("m{n}").len())).collect();
    for n in 0..300 {
        world.call(&format!("SADD set m{n}"));
        world.call(&format!("ZADD zset {n} m{n}"));
        world.call(&format!("HSET hash m{n} v"));
        world.call(&format!("HSET timed m{n} v"));
    }
    // Some have gone, and are not swept.
    world.call("HPEXPIRE timed 100000000 FIELDS 1 m7");
    world.call("DEBUG SET-ACTIVE-EXPIRE 0");
    world.call("HSET timed gone v");
    world.call("HPEXPIRE timed 1 FIELDS 1 gone");
    std::thread::sleep(Duration::from_millis(5));
    let picked = |reply: &str| -> Vec<String> {
        let words: Vec<&str> = reply.split(' ').collect();
        words[1..words.len() - 1].chunks(2).map(|bulk| format!("{} {} ", bulk[0], bulk[1])).collect()
    };
    for on_disk in [false, true] {
        if on_disk {
            // What is to be swept stays in memory.
            world.call("DEL timed");
            world.rest();
        }
        let picks = [("SRANDMEMBER", "set"), ("ZRANDMEMBER", "zset"), ("HRANDFIELD", "hash"), ("HRANDFIELD", "timed")];
        for (command, key) in picks.into_iter().take(if on_disk { 3 } else { 4 }) {
            for count in [20_i64, 290, 1000, -20, -290, -1000] {
                let line = format!("{command} {key} {count}");
                let (reply, rests) = world.rest_in(&line);
                let all = picked(&reply);
                let some: BTreeSet<String> = all.iter().cloned().collect();
                assert!(some.is_subset(&names), "{line}: {reply}");
                assert!(rests > 1, "{line}: {rests} rests");
                if count > 0 {
                    assert_eq!((all.len(), some.len()), (count.min(300) as usize, all.len()), "{line}");
                    let are_few = count == 20 && !on_disk && key != "timed";
                    assert!(!are_few || !all.is_sorted(), "{line}: {reply}");
                    continue;
                }
                assert_eq!(all.len() as i64, -count, "{line}");
                assert!(!all.is_sorted(), "{line}: picks come as they are made");
                // Chance does not do otherwise in 10^20 cases.
                assert!(count > -1000 || (200..300).contains(&some.len()), "{line}: {} different", some.len());
            }
        }
        world.call("COPY set popped REPLACE");
        let (reply, rests) = world.rest_in("SPOP popped 30");
        let popped: BTreeSet<String> = picked(&reply).into_iter().collect();
        let left: BTreeSet<String> = picked(&world.call("SMEMBERS popped")).into_iter().collect();
        assert!(rests > 1, "{rests} rests");
        assert_eq!((popped.len(), left.len()), (30, 270));
        assert_eq!(popped.union(&left).cloned().collect::<BTreeSet<_>>(), names);
    }
}

#[test]
fn who_trims_a_stream_holds_its_key_only() {
    let mut world = World::new();
    world.add_stream("stream", 200);
    let rests = Rc::new(RefCell::new(0));
    let between = {
        let rests = rests.clone();
        move |peer: &mut Peer| {
            *rests.borrow_mut() += 1;
            assert_eq!(peer.call("XLEN stream"), ":200 ", "nobody sees half of it");
            assert_eq!(peer.call("SET other v"), "+OK ");
            if *rests.borrow() == 1 {
                assert!(peer.begin(&words("XADD stream * f v")).is_err(), "it is held");
            }
        }
    };
    assert_eq!(world.run("XTRIM stream MAXLEN 80", Some(Rc::new(RefCell::new(between)))), ":120 ");
    assert!(*rests.borrow() > 5, "{} rests", rests.borrow());
    // Who has waited comes next.
    while world.call("XLEN stream") != ":81 " {
        std::thread::yield_now();
    }
}

#[test]
fn sets_in_slices_are_combined_as_at_once() {
    let mut world = World::new();
    let mut rng = Rng(1);
    let mut rested = 0;
    for round in 0..3 {
        let sizes = [(0, 5), (1, 40), (2, 100), (3, 150)];
        for (n, size) in sizes {
            world.add_set(&mut rng, &format!("s{n}"), size);
        }
        world.add_set(&mut rng, "d0", 80);
        world.add_set(&mut rng, "d1", 10);
        world.call("SET d2 string");
        world.call("SET string value");
        if round % 3 == 1 {
            world.rest();
        }
        if round % 3 == 2 {
            world.engine().flush().unwrap();
        }
        let keys = ["s0", "s1", "s2", "s3", "s2", "s3", "d0", "d1", "none", "string"];
        for _ in 0..10 {
            let count = 1 + rng.below(4);
            let most = if rng.below(8) == 0 { keys.len() } else { keys.len() - 2 };
            let sources: Vec<&str> = (0..count).map(|_| keys[rng.below(most as u64) as usize]).collect();
            let (sources, limit) = (sources.join(" "), rng.below(40));
            for operation in ["SUNION", "SINTER", "SDIFF"] {
                let destination = ["d0", "d1", "d2", "d3"][rng.below(4) as usize];
                rested += world.check(&format!("{operation} {sources}"));
                rested += world.check(&format!("{operation}STORE {destination} {sources}"));
                rested += world.check(&format!("{operation}CARD {count} {sources} LIMIT {limit}"));
            }
        }
    }
    assert!(rested > 500, "{rested} rests");
}

/// What was seen at the rests of a command, and who waits for its keys.
struct Seen {
    rests: usize,
    waiting: Option<oneshot::Receiver<Finished>>,
}

impl World {
    /// Runs a command that reads keys `a` and `b`, of two shards, and answers the same each time; if it stores, to `to`.
    /// While it rests who reads them is served, who writes one of them waits, and others of the same shards are served; a FLUSHALL
    /// in its midst has it run again on what there is then, nothing.
    fn check_others(&mut self, add: &str, line: &str, empty: &str) {
        self.fill(add);
        let server = self.runner.server.clone();
        let [a, b] = self.keys();
        let once = self.run(line, None);
        self.call("DEL to");
        let seen = Rc::new(RefCell::new(Seen { rests: 0, waiting: None }));
        let between = {
            let (seen, server, a, b, line) = (seen.clone(), server.clone(), a.clone(), b.clone(), line.to_owned());
            move |peer: &mut Peer| {
                let mut seen = seen.borrow_mut();
                seen.rests += 1;
                // A timer has one now and then, and may have lost its processor then.
                let is_free = || server.engine.try_lease(&[0, 1]).is_some();
                let is_free_later = || {
                    std::thread::sleep(Duration::from_millis(1));
                    is_free()
                };
                assert!(is_free() || (0..10_000).any(|_| is_free_later()), "{line}: it rests without a shard");
                for key in [&a, &b] {
                    assert_ne!(peer.call(&format!("TYPE {key}")), "+none ", "{line}: who reads goes on");
                }
                // One of each shard, whatever else it holds.
                for n in 0..8 {
                    assert_eq!(peer.call(&format!("SET other:{n} {}", seen.rests)), "+OK ");
                }
                if line.split(' ').any(|word| word == "to") {
                    assert_eq!(peer.call("EXISTS to"), ":0 ", "{line}: nobody sees half of it");
                }
                if seen.rests == 2 {
                    let Err(waiting) = peer.begin(&words(&format!("DEL {a} {b}"))) else {
                        panic!("{line}: it is held")
                    };
                    seen.waiting = Some(waiting);
                }
            }
        };
        let answer = self.run(line, Some(Rc::new(RefCell::new(between))));
        assert_eq!(answer, once);
        let Seen { rests, waiting } = std::mem::replace(&mut *seen.borrow_mut(), Seen { rests: 0, waiting: None });
        assert!(rests > 5, "{line}: {rests} rests");
        let deleted = waiting.unwrap().blocking_recv().unwrap();
        assert_eq!(deleted.reply.as_slice(), b":2\r\n", "{line}");
        let flushes = Rc::new(RefCell::new(0));
        let flush = {
            let flushes = flushes.clone();
            move |peer: &mut Peer| {
                *flushes.borrow_mut() += 1;
                if *flushes.borrow() == 3 {
                    assert_eq!(peer.call("FLUSHALL"), "+OK ");
                }
            }
        };
        self.fill(add);
        assert_eq!(self.run(line, Some(Rc::new(RefCell::new(flush)))), empty, "{line}");
        assert_eq!(*flushes.borrow(), 3, "{line}: nothing is left to rest for");
        assert_eq!(self.call("DBSIZE"), ":0 ");
    }

    /// Two collections that a command of this kind makes: each has half of its members in common with the other.
    fn fill(&mut self, add: &str) {
        let [a, b] = self.keys();
        self.call("FLUSHALL");
        for (n, key) in [a, b].into_iter().enumerate() {
            let member =
                |i| if add == "ZADD" { format!(" {i} m{:04}", i + 200 * n) } else { format!(" m{:04}", i + 200 * n) };
            self.call(&format!("{add} {key}{}", (0..400).map(member).collect::<String>()));
        }
    }
}

#[test]
fn who_combines_sets_holds_their_keys_only() {
    let mut world = World::new();
    let [a, b] = world.keys();
    for operation in ["SUNION", "SINTER", "SDIFF"] {
        world.check_others("SADD", &format!("{operation} {a} {b}"), "*0 ");
        world.check_others("SADD", &format!("{operation}STORE to {a} {b}"), ":0 ");
        world.check_others("SADD", &format!("{operation}CARD 2 {a} {b}"), ":0 ");
    }
    // One of them small beside the other: looked up.
    let members = (0..40).map(|i| format!(" m{i:04}")).collect::<String>();
    for operation in ["SINTER", "SDIFF"] {
        world.fill("SADD");
        world.call(&format!("SADD few{members}"));
        let reply = world.run(&format!("{operation} few {a}"), None);
        let (rested, rests) = world.rest_in(&format!("{operation} few {a}"));
        assert_eq!(reply, rested);
        assert!(rests > 4, "{rests} rests");
    }
}

/// Whoever would go through it in slices meanwhile would see half of the one and half of the other.
#[test]
fn a_key_that_is_read_and_written_is_held_to_write() {
    let mut world = World::new();
    let server = world.runner.server.clone();
    let [a, b] = world.keys();
    let lines = [
        ("SADD", format!("SUNIONSTORE {a} {a} {b}")),
        ("SADD", format!("SDIFFSTORE {a} {b} {a}")),
        ("ZADD", format!("ZUNIONSTORE {a} 2 {b} {a}")),
        ("ZADD", format!("ZRANGESTORE {a} {a} 0 -1")),
        ("RPUSH", format!("SORT {a} ALPHA STORE {a}")),
    ];
    for (add, line) in lines {
        world.fill(add);
        let is_kept = {
            let (server, key_a, key_b) = (server.clone(), a.clone(), b.clone());
            move || {
                [&key_a, &key_b].map(|key| {
                    let shard = server.engine.router.shard_of(key.as_bytes());
                    let wish = Wish { writes: false, holds: true };
                    server.engine.shards.at(shard).core().busy.keeps(key.as_bytes(), wish)
                })
            }
        };
        let rests = Rc::new(RefCell::new(0));
        let between = {
            let (rests, line) = (rests.clone(), line.clone());
            move |_: &mut Peer| {
                *rests.borrow_mut() += 1;
                assert_eq!(is_kept(), [true, false], "{line}: who would hold them to read");
            }
        };
        let reply = world.run(&line, Some(Rc::new(RefCell::new(between))));
        assert!(reply.starts_with(':') && *rests.borrow() > 2, "{line}: {reply}, {} rests", rests.borrow());
    }
}

#[test]
fn who_combines_sorted_sets_holds_their_keys_only() {
    let mut world = World::new();
    let [a, b] = world.keys();
    for operation in ["ZUNION", "ZINTER", "ZDIFF"] {
        world.check_others("ZADD", &format!("{operation} 2 {a} {b} WITHSCORES"), "*0 ");
        world.check_others("ZADD", &format!("{operation}STORE to 2 {a} {b}"), ":0 ");
    }
    world.check_others("ZADD", &format!("ZINTERCARD 2 {a} {b}"), ":0 ");
    world.runner.server.config.set(&[("zset-encode-version", "1")]).unwrap();
    world.check_others("ZADD", &format!("ZUNIONSTORE to 2 {a} {b}"), ":0 ");
}
