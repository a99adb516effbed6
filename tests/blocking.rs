//! Commands that wait for keys, with many clients at once: each element gets to one of them, in the order in which they began to
//! wait, whatever ends waits meanwhile; and nothing is left of those who have gone.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use common::resp::{Client, Gone, Value, encode};
use common::rng::{Rng, seed_from};
use common::server::{Kind, Server};
use common::wait::until;

const SERVERS: [Kind; 2] = [Kind::Tarn, Kind::ScaledTarn];
/// Lists that do not fit into memory, and shards enough for the keys of a command to be in several.
const SMALL: [&str; 6] = ["--maxmemory", "16mb", "--block-cache-size", "1mb", "--shards", "8"];

/// Has a client send a command that waits.
fn wait_for(server: &Server, watch: &mut Client, command: &str) -> Client {
    let waiting = watch.info("clients", "blocked_clients");
    let mut client = server.client();
    let words: Vec<&str> = command.split(' ').collect();
    client.send_raw(&encode(&words)).unwrap();
    until("it waits", || watch.info("clients", "blocked_clients") == waiting + 1);
    client
}

const KEYS: u64 = 6;

/// The elements of a producer begin with its number and theirs.
fn element(producer: u64, number: u64, padding: usize) -> String {
    format!("{producer}:{number}:{}", "x".repeat(padding))
}

/// Key or list, and the producer's number and the element's.
type Popped = (String, u64, u64);

fn popped(key: &str, element: &Value) -> Popped {
    let text = element.text();
    let mut parts = text.split(':').map(|part| part.parse::<u64>());
    (key.to_owned(), parts.next().unwrap().unwrap(), parts.next().unwrap().unwrap())
}

/// Pushes elements in all ways there are.
fn produce(client: &mut Client, rng: &mut Rng, producer: u64, count: u64, padding: usize) -> Result<(), Gone> {
    let mut next = 0;
    while next < count {
        let mut some = || {
            next += 1;
            element(producer, next - 1, padding)
        };
        let key = format!("q{}", rng.below(KEYS));
        match rng.below(4) {
            0 => {
                let all = [some(), some(), some()];
                client.try_call(&["RPUSH", &key, &all[0], &all[1], &all[2]])?;
            }
            1 => {
                client.try_call(&["MULTI"])?;
                client.try_call(&["RPUSH", &key, &some()])?;
                client.try_call(&["RPUSH", &format!("q{}", rng.below(KEYS)), &some()])?;
                client.try_call(&["EXEC"])?;
            }
            _ => drop(client.try_call(&["RPUSH", &key, &some()])?),
        }
    }
    Ok(())
}

/// Pops in one of the ways there are; what came.
fn consume(client: &mut Client, rng: &mut Rng) -> Result<Vec<Popped>, Gone> {
    let mut keys: Vec<String> = (0..1 + rng.below(3)).map(|_| format!("q{}", rng.below(KEYS))).collect();
    if rng.one_in(3) {
        keys.push("relay".into());
    }
    let timeout = ["0.001", "0.01", "0.1"][rng.below(3) as usize];
    let mut args: Vec<&str> = keys.iter().map(String::as_str).collect();
    let count = args.len().to_string();
    let many = rng.one_in(4);
    if many {
        args.splice(0..0, ["BLMPOP", timeout, &count]);
        args.extend(["LEFT", "COUNT", "3"]);
    } else {
        args.insert(0, "BLPOP");
        args.push(timeout);
    }
    let reply = client.try_call(&args)?;
    if reply.is_nil() || reply.is_error() {
        assert!(!reply.is_error() || reply.text().contains("UNBLOCKED"), "{}", reply.text());
        return Ok(Vec::new());
    }
    let key = reply.items()[0].text();
    Ok(match &reply.items()[1] {
        Value::Array(items) => items.iter().map(|item| popped(&key, item)).collect(),
        item => vec![popped(&key, item)],
    })
}

/// Producers, consumers, some who carry elements on to another list, and somebody who ends waits.
fn work(server: &Server, seed: u64, each: u64, padding: usize) -> Vec<Vec<Popped>> {
    let (producing, done) = (AtomicUsize::new(3), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for producer in 0..3 {
            let (mut client, mut rng, producing) = (server.client(), Rng(seed + producer), &producing);
            scope.spawn(move || {
                produce(&mut client, &mut rng, producer, each, padding).unwrap();
                producing.fetch_sub(1, Ordering::SeqCst);
            });
        }
        for n in 0..2 {
            let (mut client, done) = (server.client(), &done);
            scope.spawn(move || {
                let from = format!("q{n}");
                while !done.load(Ordering::SeqCst) {
                    client.try_call(&["BLMOVE", &from, "relay", "LEFT", "RIGHT", "0.02"]).unwrap();
                }
            });
        }
        let (mut harasser, done_too) = (server.client(), &done);
        scope.spawn(move || {
            let mut rng = Rng(seed ^ 1);
            while !done_too.load(Ordering::SeqCst) {
                let id = rng.below(16).to_string();
                let how = if rng.one_in(2) { "ERROR" } else { "TIMEOUT" };
                harasser.try_call(&["CLIENT", "UNBLOCK", &id, how]).unwrap();
            }
        });
        let consumers: Vec<_> = (0..5)
            .map(|n| {
                let (mut client, mut rng, done) = (server.client(), Rng(seed + 100 + n), &done);
                scope.spawn(move || {
                    let mut all = Vec::new();
                    while !done.load(Ordering::SeqCst) {
                        all.extend(consume(&mut client, &mut rng).unwrap());
                    }
                    all
                })
            })
            .collect();
        let mut watch = server.client();
        until("all is popped", || {
            let names: Vec<String> = (0..KEYS).map(|n| format!("q{n}")).chain(["relay".into()]).collect();
            producing.load(Ordering::SeqCst) == 0 && watch.call(&format!("EXISTS {}", names.join(" "))).int() == Some(0)
        });
        done.store(true, Ordering::SeqCst);
        consumers.into_iter().map(|consumer| consumer.join().unwrap()).collect()
    })
}

#[test]
fn every_element_gets_to_one_who_waits_and_in_order() {
    let seed = seed_from("TARN_BLOCKING_SEED");
    for (kind, each, padding) in [(Kind::Tarn, 600, 0), (Kind::ScaledTarn, 200, 0), (Kind::Tarn, 150, 20_000)] {
        let server = Server::built(kind, &SMALL);
        if padding > 0 {
            // These come first, and not all of them fit into memory.
            produce(&mut server.client(), &mut Rng(seed), 9, 1500, padding).unwrap();
            server.client().call("SAVE");
        }
        let all = work(&server, seed, each, padding);
        let mut seen = BTreeSet::new();
        for consumer in &all {
            let mut last = BTreeMap::new();
            for (key, producer, number) in consumer {
                assert!(seen.insert((*producer, *number)), "seed {seed}: {producer}:{number} came twice");
                // What was carried on has lost its order.
                if key != "relay"
                    && let Some(before) = last.insert((key, producer), *number)
                {
                    assert!(before < *number, "seed {seed}: {key} had {producer}:{before} before {number}");
                }
            }
        }
        let of_the_others = seen.iter().filter(|(producer, _)| *producer == 9).count();
        assert!(of_the_others == 0 || (1500..=1502).contains(&of_the_others), "{of_the_others}");
        for producer in 0..3 {
            let count = seen.range((producer, 0)..(producer + 1, 0)).count() as u64;
            assert!((each..=each + 2).contains(&count), "seed {seed}: {count} of {each} of producer {producer}");
        }
        let mut watch = server.client();
        assert_eq!((watch.info("clients", "blocked_clients"), watch.info("clients", "total_blocking_keys")), (0, 0));
    }
}

/// Some need shards that the one who pushes does not have, and are served later than those behind them could be.
#[test]
fn who_began_to_wait_first_gets_the_first() {
    const WAITING: usize = 40;
    for kind in SERVERS {
        let server = Server::built(kind, &["--shards", "8"]);
        let mut watch = server.client();
        let commands = (0..WAITING).map(|n| match n % 4 {
            0 => "BLPOP line 0".to_owned(),
            1 => format!("BLMOVE line to{n} LEFT LEFT 0"),
            2 => format!("BLPOP none{n} other{n} line 0"),
            _ => "BLMPOP 0 2 none line LEFT".to_owned(),
        });
        let clients: Vec<Client> = commands.map(|command| wait_for(&server, &mut watch, &command)).collect();
        let mut pusher = server.client();
        let mut pushed = 0;
        for batch in [1, 2, 3, 10, 1, 20, 3] {
            let elements: Vec<String> = (pushed..pushed + batch).map(|n| n.to_string()).collect();
            pusher.call(&format!("RPUSH line {}", elements.join(" ")));
            pushed += batch;
        }
        assert_eq!(pushed, WAITING);
        for (n, mut client) in clients.into_iter().enumerate() {
            let reply = client.read().unwrap();
            let got = match n % 4 {
                0 | 2 => reply.items()[1].text(),
                1 => reply.text(),
                _ => reply.items()[1].items()[0].text(),
            };
            assert_eq!(got, n.to_string());
        }
        assert_eq!((watch.info("clients", "blocked_clients"), watch.info("clients", "total_blocking_keys")), (0, 0));
    }
}

/// Those who wait for a key have their turn when something has come to it, not when what stood there before was removed.
#[test]
fn a_key_that_was_made_anew_has_its_turn_when_it_came() {
    for kind in SERVERS {
        let server = Server::built(kind, &["--shards", "1"]);
        let mut watch = server.client();
        let mut moves = wait_for(&server, &mut watch, "BLMOVE first first RIGHT LEFT 0");
        let mut pops = wait_for(&server, &mut watch, "BLMPOP 0 2 first second RIGHT");
        for command in
            ["SET second text", "MULTI", "DEL second", "RPUSH first a b", "LMOVE first second RIGHT LEFT", "EXEC"]
        {
            watch.call(command);
        }
        assert_eq!(moves.read().unwrap().text(), "a", "it has waited longer for the key that came first");
        assert_eq!(pops.read().unwrap().items()[0].text(), "first");
        assert_eq!(["first", "second"].map(|key| watch.call(&format!("LLEN {key}")).int()), [Some(0), Some(1)]);
    }
}

#[test]
fn nothing_is_left_of_who_has_gone() {
    let server = Server::built(Kind::Tarn, &["--shards", "8"]);
    let mut watch = server.client();
    let mut clients = Vec::new();
    for n in 0..150 {
        let mut client = server.client();
        let id = client.call("CLIENT ID").int().unwrap();
        let keys: Vec<String> = (0..5).map(|key| format!("k{}", (n + key) % 60)).collect();
        let command = match n % 3 {
            0 => format!("BLPOP {} 0", keys.join(" ")),
            1 => format!("XREAD BLOCK 0 STREAMS {} $ $ $ $ $", keys.join(" ")),
            _ => format!("BZPOPMIN {} 0", keys.join(" ")),
        };
        let words: Vec<&str> = command.split(' ').collect();
        client.send_raw(&encode(&words)).unwrap();
        clients.push((id, client));
    }
    until("all wait", || watch.info("clients", "blocked_clients") == 150);
    assert_eq!(watch.info("clients", "total_blocking_keys"), 60);
    for (n, (id, client)) in clients.into_iter().enumerate() {
        match n % 3 {
            0 => drop(client),
            1 => drop(watch.call(&format!("CLIENT KILL ID {id}"))),
            _ => assert_eq!(watch.call(&format!("CLIENT UNBLOCK {id}")).int(), Some(1)),
        }
    }
    until("nobody waits", || watch.info("clients", "blocked_clients") == 0);
    until("no key is waited for", || watch.info("clients", "total_blocking_keys") == 0);
    for key in 0..60 {
        assert_eq!(watch.call(&format!("RPUSH k{key} x")).int(), Some(1));
        assert_eq!(watch.call(&format!("LLEN k{key}")).int(), Some(1));
    }
}

/// What has been answered stays so: a popped element does not come back, a pushed one is not lost.
#[test]
fn a_kill_neither_loses_nor_doubles_what_was_answered() {
    let mut server = Server::built(Kind::Tarn, &["--shards", "8"]);
    let seed = seed_from("TARN_BLOCKING_SEED");
    for round in 0..4 {
        let answered = AtomicUsize::new(0);
        let (pushed, taken) = std::thread::scope(|scope| {
            let producers: Vec<_> = (0..2)
                .map(|producer| {
                    let (mut client, answered) = (server.client(), &answered);
                    scope.spawn(move || {
                        let mut pushed = Vec::new();
                        for number in 0.. {
                            let key = format!("q{}", number % KEYS);
                            if client.try_call(&["RPUSH", &key, &element(round * 2 + producer, number, 0)]).is_err() {
                                break;
                            }
                            pushed.push((round * 2 + producer, number));
                            answered.fetch_add(1, Ordering::Relaxed);
                        }
                        pushed
                    })
                })
                .collect();
            let consumers: Vec<_> = (0..3)
                .map(|n| {
                    let (mut client, mut rng) = (server.client(), Rng(seed + round * 3 + n));
                    scope.spawn(move || {
                        let mut taken = Vec::new();
                        while let Ok(some) = consume(&mut client, &mut rng) {
                            taken.extend(some);
                        }
                        taken
                    })
                })
                .collect();
            std::thread::sleep(std::time::Duration::from_millis(300));
            // However busy the machine is.
            until("200 elements are pushed", || answered.load(Ordering::Relaxed) >= 200);
            server.kill9();
            let pushed: Vec<(u64, u64)> = producers.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
            let taken: Vec<Popped> = consumers.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
            (pushed, taken)
        });
        server.restart_after_kill();
        let mut client = server.client();
        let mut seen: BTreeSet<(u64, u64)> = BTreeSet::new();
        for (_, producer, number) in taken {
            assert!(seen.insert((producer, number)), "seed {seed}: {producer}:{number} was popped twice");
        }
        let (mut unanswered, mut left) = (0, 0);
        for key in 0..KEYS {
            for element in client.call(&format!("LRANGE q{key} 0 -1")).items() {
                let (_, producer, number) = popped("", element);
                assert!(seen.insert((producer, number)), "seed {seed}: {producer}:{number} has come back");
                left += 1;
            }
            client.call(&format!("DEL q{key}"));
        }
        for one in &pushed {
            unanswered += usize::from(!seen.contains(one));
        }
        // Each consumer may have been served when the connection broke: three elements of BLMPOP, at most.
        assert!(unanswered <= 9, "seed {seed}: {unanswered} of {} are lost, {left} were left", pushed.len());
    }
}

/// Each entry goes to one of the consumers that wait.
#[test]
fn a_group_delivers_each_entry_once() {
    for kind in SERVERS {
        let server = Server::built(kind, &["--shards", "8"]);
        let mut client = server.client();
        client.call("XGROUP CREATE stream group $ MKSTREAM");
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..4)
                .map(|n| {
                    let (mut client, done) = (server.client(), &done);
                    scope.spawn(move || {
                        let mut ids = Vec::new();
                        while !done.load(Ordering::SeqCst) {
                            let read = format!("XREADGROUP GROUP group reader{n} COUNT 2 BLOCK 20 STREAMS stream >");
                            for stream in client.call(&read).items() {
                                ids.extend(stream.items()[1].items().iter().map(|entry| entry.items()[0].text()));
                            }
                        }
                        ids
                    })
                })
                .collect();
            let added: BTreeSet<String> =
                (0..500).map(|n| client.call(&format!("XADD stream * n {n}")).text()).collect();
            until("all is delivered", || {
                client.call("XINFO GROUPS stream").items()[0]
                    .items()
                    .windows(2)
                    .any(|pair| pair[0].text() == "lag" && pair[1].int() == Some(0))
            });
            done.store(true, Ordering::SeqCst);
            let all: Vec<String> = readers.into_iter().flat_map(|reader| reader.join().unwrap()).collect();
            assert_eq!(all.len(), added.len());
            assert_eq!(all.into_iter().collect::<BTreeSet<_>>(), added);
        });
    }
}

/// Of many who are served in vain each is looked at once, and those behind them, too.
#[test]
fn nobody_is_looked_at_without_end() {
    for kind in SERVERS {
        let server = Server::built(kind, &["--shards", "1"]);
        let mut watch = server.client();
        watch.call("XGROUP CREATE s busy $ MKSTREAM");
        watch.call("XGROUP CREATE s other $");
        let reads = |group: &str| format!("XREADGROUP GROUP {group} one BLOCK 0 STREAMS s >");
        let mut idle: Vec<Client> = (0..150).map(|_| wait_for(&server, &mut watch, &reads("busy"))).collect();
        let mut last = wait_for(&server, &mut watch, &reads("other"));
        assert!(!watch.call("XADD s * f v").is_error());
        assert!(!idle[0].read().unwrap().is_error());
        assert_eq!(last.read().unwrap().items().len(), 1, "who stands behind them is served");
        until("the others wait on", || watch.info("clients", "blocked_clients") == 149);
        // Who has looked at all is done: nothing more happens of itself.
        let commands = |watch: &mut Client| watch.call("PING").text();
        assert_eq!(commands(&mut watch), "PONG");
        assert!(!watch.call("XADD s * f v").is_error());
        assert!(!idle[1].read().unwrap().is_error());
    }
}

/// Of two keys in different shards that change at once each serves somebody, also where both would have served the same.
#[test]
fn whoever_was_passed_over_for_one_who_was_being_served_is_looked_at() {
    let server = Server::built(Kind::Tarn, &["--shards", "8", "--io-threads", "2"]);
    let mut watch = server.client();
    for round in 0..150 {
        let keys = ["a", "b"].map(|name| format!("{name}{round}"));
        let mut both = wait_for(&server, &mut watch, &format!("BLPOP {} {} 0", keys[0], keys[1]));
        let mut one = wait_for(&server, &mut watch, &format!("BLPOP {} 0", keys[1]));
        let [mut left, mut right] = [server.client(), server.client()];
        std::thread::scope(|scope| {
            scope.spawn(|| left.call(&format!("RPUSH {} x", keys[0])));
            scope.spawn(|| right.call(&format!("RPUSH {} y", keys[1])));
        });
        let first = both.read().unwrap().items()[0].text();
        if first == keys[1] {
            // It got what the other one waits for.
            assert_eq!(watch.call(&format!("LLEN {}", keys[0])).int(), Some(1));
            continue;
        }
        assert_eq!(one.read().unwrap().items()[1].text(), "y", "round {round}");
    }
}

/// One that is about to be served elsewhere when it is killed, or leaves, stands in nobody's way, and takes nothing.
#[test]
fn who_ends_on_the_way_to_be_served_stands_in_nobodys_way() {
    for kills in [true, false] {
        let server = Server::built(Kind::Tarn, &["--shards", "4"]);
        let mut client = server.client();
        // The copy holds its destination for a while.
        let members: Vec<String> = (0..50_000).map(|n| format!("member{n}")).collect();
        for some in members.chunks(5000) {
            client.call(&format!("SADD {{t}}big {}", some.join(" ")));
        }
        let mut waiter = server.client();
        let id = waiter.call("CLIENT ID").int().unwrap();
        waiter.send_raw(&encode(&["BLPOP", "{t}a", "{t}copy", "0"])).unwrap();
        until("it waits", || client.info("clients", "blocked_clients") == 1);
        let mut copier = server.client();
        for _ in 0..20 {
            copier.send_raw(&encode(&["COPY", "{t}big", "{t}copy", "REPLACE"])).unwrap();
        }
        client.call("RPUSH {t}a x");
        if kills {
            client.call(&format!("CLIENT KILL ID {id}"));
        }
        drop(waiter);
        (0..20).for_each(|_| drop(copier.read()));
        until("nobody waits", || client.info("clients", "total_blocking_keys") == 0);
        // It was served before it ended, or was not.
        client.call("RPUSH {t}a y");
        assert!(!client.call("BLPOP {t}a 1").is_nil(), "the key is not dead");
    }
}

/// A command of a connection that has ended before it got its turn waits for nobody.
#[test]
fn who_has_gone_before_its_command_runs_takes_nothing() {
    let server = Server::built(Kind::Tarn, &["--shards", "2"]);
    let (mut holder, mut watch, mut gone) = (server.client(), server.client(), server.client());
    let keys: Vec<String> = (0..32).map(|n| format!("k{n}")).collect();
    let pop = [&["BLPOP"], &keys.iter().map(String::as_str).collect::<Vec<_>>()[..], &["0"]].concat();
    let id = gone.call("CLIENT ID").int().unwrap();
    // It keeps its shard, as it has written something.
    let script = "redis.call('set', KEYS[1], 1) local x = 0 for i = 1, 6000000 do x = x + i end return 1";
    holder.send_raw(&encode(&["EVAL", script, "1", "held"])).unwrap();
    until("the script runs", || watch.call("CLIENT LIST").text().contains("cmd=eval "));
    gone.send_raw(&encode(&pop)).unwrap();
    until("it has been read", || watch.call("CLIENT LIST").text().contains("cmd=blpop "));
    assert_eq!(watch.call(&format!("CLIENT KILL ID {id}")).int(), Some(1));
    assert_eq!(holder.read().unwrap().int(), Some(1));
    until("what it wanted has run", || watch.info("tarn", "tarn_clients_elsewhere") == 0);
    for key in &keys {
        watch.call(&format!("RPUSH {key} element"));
        assert_eq!(watch.call(&format!("LLEN {key}")).int(), Some(1), "{key}");
    }
    assert_eq!((watch.info("clients", "blocked_clients"), watch.info("clients", "total_blocking_keys")), (0, 0));
}
