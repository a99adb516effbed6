//! Pub/sub with many at once: who has ended a subscription hears no more of it, who begins one hears nothing older, and who is slow
//! holds up nobody. Keyspace events come in the order of the changes, whatever is on disk.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};

use common::resp::{Client, Value, encode};
use common::server::{Kind, Server};
use common::wait::until;

fn subscribers(server: &Server, count: usize) -> Vec<Client> {
    let mut all: Vec<Client> = (0..count).map(|_| server.client()).collect();
    all.iter_mut().for_each(|client| assert_eq!(client.call("SUBSCRIBE c").items()[2].int(), Some(1)));
    all
}

/// The connection's next reply is that to its next command: no message comes between.
#[test]
fn after_the_reply_to_unsubscribe_no_message_comes() {
    for kind in [Kind::Tarn, Kind::ScaledTarn] {
        let server = Server::built(kind, &[]);
        let many = subscribers(&server, 150);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut publisher = server.client();
                while !done.load(Ordering::SeqCst) {
                    publisher.call("PUBLISH c message");
                }
            });
            let mut client = server.client();
            for _ in 0..200 {
                client.send_raw(&encode(&["SUBSCRIBE", "c"])).unwrap();
                client.send_raw(&encode(&["UNSUBSCRIBE", "c"])).unwrap();
                client.send_raw(&encode(&["GET", "none"])).unwrap();
                assert_eq!(client.read().unwrap().items()[0].text(), "subscribe");
                while client.read().unwrap().items()[0].text() != "unsubscribe" {}
                assert!(client.read().unwrap().is_nil(), "the reply to GET");
            }
            done.store(true, Ordering::SeqCst);
        });
        drop(many);
    }
}

#[test]
fn who_subscribes_hears_nothing_older() {
    for kind in [Kind::Tarn, Kind::ScaledTarn] {
        let server = Server::built(kind, &["--io-threads", "2"]);
        let many = subscribers(&server, 100);
        let mut publisher = server.client();
        for round in 0..300 {
            publisher.call(&format!("PUBLISH c old{round}"));
            // The publisher has its answer.
            let mut newcomer = server.client();
            newcomer.call("SUBSCRIBE c");
            publisher.call(&format!("PUBLISH c new{round}"));
            assert_eq!(newcomer.read().unwrap().items()[2].text(), format!("new{round}"));
        }
        drop(many);
        until("nobody is left", || publisher.call("PUBSUB NUMSUB c").items()[1].int() == Some(0));
    }
}

/// One that reads nothing is cut off at its limit, whatever it waits for, and takes nothing any more.
#[test]
fn who_reads_nothing_is_cut_off() {
    let server = Server::built(Kind::Tarn, &["--client-output-buffer-limit", "pubsub 4mb 1mb 60"]);
    let mut client = server.client();
    let mut slow = server.client();
    slow.call("HELLO 3");
    slow.call("SUBSCRIBE c");
    slow.send_raw(&encode(&["BLPOP", "k", "0"])).unwrap();
    until("it waits", || client.call("INFO clients").text().contains("blocked_clients:1\r\n"));
    let text = "x".repeat(1 << 20);
    for _ in 0..30 {
        client.try_call(&["PUBLISH", "c", &text]).unwrap();
    }
    until("it is gone", || client.call("PUBSUB NUMSUB c").items()[1].int() == Some(0));
    client.call("RPUSH k precious");
    assert_eq!(client.call("LLEN k").int(), Some(1));
    assert!(client.call("INFO stats").text().contains("client_output_buffer_limit_disconnections:1\r\n"));
}

/// More than the socket takes at once goes on when there is room again, and nothing else need happen for it.
#[test]
fn who_reads_late_gets_all_of_it() {
    let server = Server::tarn(&["--client-output-buffer-limit", "pubsub 0 0 0"]);
    let mut client = server.client();
    let mut late = server.client();
    late.call("SUBSCRIBE c");
    let text = "x".repeat(12 << 20);
    for _ in 0..2 {
        client.try_call(&["PUBLISH", "c", &text]).unwrap();
        // It has been brought to its connection, and the socket is full.
        until("it waits", || !client.call("CLIENT LIST TYPE pubsub").text().contains(" omem=0 "));
        assert_eq!(late.read().unwrap().items()[2].text().len(), text.len());
    }
}

/// What is published to many is read by all of them, in order.
#[test]
fn everybody_hears_everything_in_order() {
    for kind in [Kind::Tarn, Kind::ScaledTarn] {
        let server = Server::built(kind, &["--io-threads", "2"]);
        let many = subscribers(&server, 40);
        std::thread::scope(|scope| {
            for mut client in many {
                scope.spawn(move || {
                    for n in 0..500 {
                        let message = client.read().unwrap();
                        assert_eq!(message.items()[2].text(), n.to_string());
                    }
                });
            }
            let mut publisher = server.client();
            for n in 0..500 {
                let heard = publisher.call(&format!("PUBLISH c {n}"));
                assert!(matches!(heard, Value::Int(40)), "{heard:?}");
            }
        });
    }
}

/// What a subscriber is told next: event and key.
fn next_event(hears: &mut Client) -> (String, String) {
    let message = hears.read().unwrap();
    let channel = message.items()[1].text();
    (channel.rsplit("__:").next().unwrap().to_owned(), message.items()[2].text())
}

/// A key that is made and deleted by many, on several threads: each of the two is told of in turns.
#[test]
fn events_of_a_key_come_in_the_order_of_its_changes() {
    for kind in [Kind::Tarn, Kind::ScaledTarn] {
        let server = Server::built(kind, &["--io-threads", "4", "--shards", "4"]);
        let mut hears = server.client();
        hears.call("CONFIG SET notify-keyspace-events E$g");
        hears.call("SUBSCRIBE __keyevent@0__:set");
        hears.send_raw(&encode(&["SUBSCRIBE", "__keyevent@0__:del", "end"])).unwrap();
        (0..2).for_each(|_| _ = hears.read().unwrap());
        let changes: usize = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..6)
                .map(|n: usize| {
                    let mut client = server.client();
                    scope.spawn(move || {
                        let change = |round: usize| match (n + round) % 2 {
                            0 => client.call(&format!("SET k{} v NX", round % 3)).is_nil(),
                            _ => client.call(&format!("DEL k{}", round % 3)).int() == Some(0),
                        };
                        (0..1000).map(change).filter(|nothing| !nothing).count()
                    })
                })
                .collect();
            clients.into_iter().map(|client| client.join().unwrap()).sum()
        });
        server.client().call("PUBLISH end now");
        let mut is_there = [false; 3];
        for change in 0..changes {
            let (event, key) = next_event(&mut hears);
            let there = &mut is_there[key[1..].parse::<usize>().unwrap()];
            *there = !*there;
            assert_eq!(event, if *there { "set" } else { "del" }, "change {change} of {changes}, of {key}");
        }
        assert_eq!(next_event(&mut hears).0, "end");
    }
}

/// Whether there was something before, of which type, and whether it had expired, is known of keys on disk, too.
#[test]
fn events_know_what_was_on_disk() {
    let server = Server::built(Kind::Tarn, &["--maxmemory", "32mb", "--block-cache-size", "1mb"]);
    let mut client = server.client();
    let padding = "x".repeat(4000);
    for n in 0..20_000 {
        let request = match n % 3 {
            0 => encode(&["SET", &format!("k{n}"), &padding]),
            1 => encode(&["HSET", &format!("k{n}"), "f", &padding]),
            _ => encode(&["SET", &format!("k{n}"), &padding, "PX", "1000000"]),
        };
        client.send_raw(&request).unwrap();
    }
    (0..20_000).for_each(|_| _ = client.read().unwrap());
    client.call("SAVE");
    let reads = client.info("all", "tarn_store_reads");
    let mut hears = server.client();
    client.call("CONFIG SET notify-keyspace-events EAnoc");
    hears.call("PSUBSCRIBE __keyevent@*");
    let mut next = || {
        let message = hears.read().unwrap();
        message.items()[2].text().rsplit("__:").next().unwrap().to_owned()
    };
    for n in (0..20_000).step_by(97) {
        client.call(&format!("SET k{n} v"));
        let expected: &[&str] =
            if n % 3 == 1 { &["overwritten", "type_changed", "set"] } else { &["overwritten", "set"] };
        expected.iter().for_each(|event| assert_eq!(next(), *event, "k{n}"));
        client.call(&format!("SET other{n} v"));
        ["new", "set"].iter().for_each(|event| assert_eq!(next(), *event, "other{n}"));
    }
    assert!(client.info("all", "tarn_store_reads") > reads + 100, "they were on disk");
}
