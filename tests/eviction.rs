//! Tarn as a cache: keys go by `maxmemory-policy`, so that log and store stay below `maxdisk`.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::BTreeSet;
use std::time::Duration;

use common::resp::Client;
use common::rng::Rng;
use common::server::Server;
use common::wait::until;

const OOM: &str = "OOM command not allowed when used memory > 'maxmemory'.";
const MOST: u64 = 16 << 20;

fn start(policy: &str) -> Server {
    let most = MOST.to_string();
    let args = ["--maxmemory", "32mb", "--shards", "2", "--maxdisk", &most, "--disk-reserve", "0"];
    let more = ["--maxmemory-policy", policy, "--appendfsync", "no", "--latency-monitor-threshold", "1"];
    Server::tarn(&[&args[..], &more].concat())
}

/// Values of 8,000 bytes that no compression makes smaller.
struct Values(String, Rng);

impl Values {
    fn new(seed: u64) -> Values {
        let mut rng = Rng(seed);
        Values((0..10_000).map(|_| format!("{:016x}", rng.next())).collect(), rng)
    }

    fn next(&mut self) -> &str {
        let from = self.1.next() as usize % (self.0.len() - 8000);
        &self.0[from..from + 8000]
    }
}

/// Writes keys; those that were refused.
fn write(client: &mut Client, values: &mut Values, keys: std::ops::Range<usize>, more: &str) -> Vec<usize> {
    let mut refused = Vec::new();
    for n in keys {
        let said = client.call(&format!("SET k:{n:06} {}{more}", values.next())).text();
        assert!(said == "OK" || said == OOM, "{said}");
        if said == OOM {
            refused.push(n);
        }
    }
    refused
}

fn left(client: &mut Client, keys: std::ops::Range<usize>) -> Vec<usize> {
    keys.filter(|n| client.call(&format!("EXISTS k:{n:06}")).int() == Some(1)).collect()
}

/// Enough has gone, and a flush has brought it; no more goes from here on.
fn settled(client: &mut Client) {
    let enough = |client: &mut Client| client.info("tarn", "tarn_disk_live_bytes") <= MOST / 4 * 3;
    until("enough has gone", || enough(client) && client.info("tarn", "tarn_evicting") == 0);
    client.call("CONFIG SET maxmemory-policy noeviction");
    let (mut before, mut still) = (0, 0);
    until("the last step has ended", || {
        let now = client.info("stats", "evicted_keys");
        still = if now == before { still + 1 } else { 0 };
        before = now;
        still > 100
    });
}

/// Writes twice of what there is room for, while a part of that is read all the time; how many keys of that are left.
fn used_left(policy: &str) -> usize {
    let server = start(policy);
    let (mut client, mut values) = (server.client(), Values::new(1));
    assert!(write(&mut client, &mut values, 0..100, "").is_empty());
    let (mut refused, mut most) = (0, 0);
    for round in 1..30 {
        if policy == "allkeys-lru" && round % 6 == 0 {
            // When a key was used is known to the second.
            std::thread::sleep(Duration::from_millis(1100));
        }
        refused += write(&mut client, &mut values, round * 100..(round + 1) * 100, "").len();
        (0..100).for_each(|n| drop(client.call(&format!("GET k:{n:06}"))));
        most = most.max(client.info("tarn", "tarn_disk_bytes"));
    }
    settled(&mut client);
    assert!(refused < 300, "{refused} of 3,000 were refused");
    assert!(most < MOST * 5 / 4, "{most} bytes on disk");
    let (keys, gone) = (client.call("DBSIZE").int().unwrap() as u64, client.info("stats", "evicted_keys"));
    assert!(keys > 800, "{keys} are left");
    assert_eq!(keys + gone + refused as u64, 3_000);
    let latest = client.call("LATENCY LATEST");
    let events: Vec<String> = latest.items().iter().map(|event| event.items()[0].text()).collect();
    assert!(events.iter().any(|event| event == "eviction-cycle"), "{events:?}");
    left(&mut client, 0..100).len()
}

#[test]
fn what_is_written_has_room_and_what_is_used_stays() {
    let [by_use, by_frequency, by_chance] = ["allkeys-lru", "allkeys-lfu", "allkeys-random"].map(used_left);
    assert!(
        by_chance + 20 < by_use.min(by_frequency),
        "{by_chance} are left by chance, {by_use} and {by_frequency} by use"
    );
}

#[test]
fn what_has_no_time_is_spared_and_who_hears_is_told() {
    let server = start("volatile-ttl");
    let (mut client, mut values) = (server.client(), Values::new(2));
    let mut hears = server.client();
    client.call("CONFIG SET notify-keyspace-events Ee");
    hears.call("SUBSCRIBE __keyevent@0__:evicted");
    let mut copies = server.client();
    copies.call("HELLO 3");
    copies.call("CLIENT TRACKING ON BCAST PREFIX k:0005");
    assert!(write(&mut client, &mut values, 0..500, "").is_empty());
    let refused = write(&mut client, &mut values, 500..3000, " EX 1000");
    settled(&mut client);
    assert_eq!(left(&mut client, 0..500).len(), 500);
    let gone = client.info("stats", "evicted_keys") as usize;
    assert!(gone > 500, "{gone}");
    let told: BTreeSet<usize> =
        (0..gone).map(|_| hears.read().unwrap().items()[2].text()[2..].parse().unwrap()).collect();
    let left = left(&mut client, 500..3000);
    assert_eq!(told.len(), gone);
    assert!(left.iter().chain(&refused).all(|n| !told.contains(n)));
    assert_eq!(left.len() + refused.len() + gone, 2500);
    // The first ones to expire were the first to go, about, and their copies are known to be old: once written, once gone.
    assert!(told.iter().filter(|n| **n < 1000).count() > 450, "{told:?}");
    let mut notices = Vec::new();
    until("a key's end is told of", || {
        notices.extend(copies.read().unwrap().items()[1].items().iter().map(|key| key.text()));
        notices.iter().filter(|key| *key == "k:000500").count() == 2
    });

    client.call("CONFIG SET maxmemory-policy volatile-ttl");
    // Nothing is left that may go: as without a policy, until somebody makes room.
    (0..3000).for_each(|n| drop(client.call(&format!("PERSIST k:{n:06}"))));
    let refused = write(&mut client, &mut values, 3000..4500, "");
    assert!(refused.len() > 200, "{}", refused.len());
    // A compaction may have made some room since.
    let mut more = 4500..;
    until("it is full", || more.next().is_some_and(|n| !write(&mut client, &mut values, n..n + 1, "").is_empty()));
    assert!(
        client.info("stats", "current_eviction_exceeded_time") <= client.info("stats", "total_eviction_exceeded_time")
    );
    client.call("CONFIG SET maxmemory-policy allkeys-random");
    until("there is room", || client.call("SET x y").text() == "OK");
}

/// Nothing may go, and more is taken than may be: what adds is told so, what removes is served, and neither waits for room that
/// does not come.
#[test]
fn who_cannot_get_room_does_not_wait_for_it() {
    let server = start("volatile-ttl");
    let (mut client, mut values) = (server.client(), Values::new(4));
    assert!(write(&mut client, &mut values, 0..600, "").is_empty());
    client.call("CONFIG SET maxdisk 2mb");
    until("it is full", || client.info("tarn", "tarn_disk_full") == 1);
    assert_eq!(client.call("SET x y").text(), OOM);
    assert_eq!(client.call("DEL k:000000 x").int(), Some(1));
    client.send_raw(b"MULTI\r\nSET x y\r\nEXEC\r\nGET x\r\nPERSIST x\r\nSET x y\r\n").unwrap();
    let said: Vec<_> = (0..6).map(|_| client.read().unwrap().text()).collect();
    assert_eq!(said[0], "OK");
    assert_eq!([&said[1], &said[5]], [OOM; 2], "{said:?}");
    assert_eq!((600 - left(&mut client, 0..600).len(), client.info("stats", "evicted_keys")), (1, 0));
}

/// What was acknowledged is there, or has been evicted.
#[test]
fn a_crash_loses_nothing_but_what_was_evicted() {
    let mut server = start("allkeys-lru");
    let (mut client, mut values) = (server.client(), Values::new(3));
    let refused = write(&mut client, &mut values, 0..3000, "").len() as u64;
    let gone = client.info("stats", "evicted_keys");
    assert!(gone > 0);
    drop(client);
    server.restart_after_kill();
    let mut client = server.client();
    settled(&mut client);
    let again = client.info("stats", "evicted_keys");
    let keys = client.call("DBSIZE").int().unwrap() as u64;
    let evicted = 3000 - refused - keys;
    // Some may have gone between the answers and the end, and since.
    assert!(
        evicted >= gone && evicted < gone + again + 1000,
        "{keys} keys, {gone} gone, {refused} refused, {again} later"
    );
    assert_eq!(left(&mut client, 0..3000).len() as u64, keys);
}
