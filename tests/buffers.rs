//! The buffers of all connections are bounded in sum, whatever peers send, queue or do not read.

mod common;

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use common::resp::{Client, Gone, Value, encode};
use common::server::Server;

const MB: u64 = 1 << 20;
/// How long anything may take that is only waited for because it happens on another thread.
const SOON: Duration = Duration::from_secs(60);

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap_or_else(|e| panic!("{e}"));
    stream.set_nonblocking(true).unwrap_or_else(|e| panic!("{e}"));
    stream
}

/// A field of this connection's own line in CLIENT LIST.
fn mine(client: &mut Client, name: &str) -> u64 {
    let line = client.call("CLIENT INFO").text();
    let field = line.split(' ').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
    field.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{name}: {line}"))
}

/// The most memory the process has ever had resident.
fn peak_bytes(server: &Server) -> u64 {
    let pid = server.pid().unwrap_or_else(|| panic!("the server runs"));
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_else(|e| panic!("{e}"));
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap_or(u64::MAX / 1024) * 1024
}

fn until(what: &str, mut seen: impl FnMut() -> bool) {
    let began = Instant::now();
    while !seen() {
        assert!(began.elapsed() < SOON, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Sends as much of `bytes` on each as is taken; those whose connection is closed are let go.
fn send_all(mut streams: Vec<TcpStream>, bytes: &[u8]) -> Vec<TcpStream> {
    let mut sent = vec![0; streams.len()];
    let mut quiet = 0;
    while quiet < 100 && sent.iter().any(|sent| *sent < bytes.len()) {
        let before: usize = sent.iter().sum();
        for (stream, sent) in streams.iter_mut().zip(&mut sent) {
            match stream.write(&bytes[*sent..]) {
                Ok(n) => *sent += n,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => *sent = bytes.len(),
            }
        }
        quiet = if sent.iter().sum::<usize>() == before { quiet + 1 } else { 0 };
        std::thread::sleep(Duration::from_millis(1));
    }
    streams
}

/// What holds for a budget of 256 MB whatever clients do.
fn assert_bounded(server: &Server, client: &mut Client) {
    until("the largest are closed", || client.info("all", "tarn_client_buffer_bytes") <= 256 * MB / 10);
    // A closed client's share goes when its network thread has let it go.
    let most = 256 * MB / 10 + MB + 300 * 32 * 1024;
    until("what they hold is told", || client.info("all", "mem_clients_normal") < most);
    assert!(client.info("all", "evicted_clients") > 0);
    let peak = peak_bytes(server);
    assert!(peak < 256 * MB * 115 / 100 + 64 * MB, "{} MB were resident", peak / MB);
}

#[test]
fn halves_of_requests_are_bounded_in_sum() {
    let server = Server::tarn(&["--maxmemory", "256mb"]);
    let mut client = server.client();
    let half = [&b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$10000000\r\n"[..], &vec![b'v'; 5_000_000]].concat();
    let streams = send_all((0..200).map(|_| connect(&server)).collect(), &half);
    assert_bounded(&server, &mut client);
    drop(streams);
    until("nothing is left", || client.info("all", "tarn_client_buffer_bytes") == 0);
}

#[test]
fn replies_that_nobody_reads_are_bounded_in_sum() {
    let server = Server::tarn(&["--maxmemory", "256mb"]);
    let mut client = server.client();
    let value = "v".repeat(10_000_000);
    assert_eq!(client.try_call(&["SET", "k", &value]).ok(), Some(Value::Simple(b"OK".to_vec())));
    let streams = send_all((0..100).map(|_| connect(&server)).collect(), &encode(&["GET", "k"]));
    until("all have asked", || client.info("all", "evicted_clients") >= 80);
    assert_bounded(&server, &mut client);
    drop(streams);
    until("nothing is left", || client.info("all", "tarn_client_buffer_bytes") == 0);
}

#[test]
fn the_largest_are_closed_and_no_evict_spares() {
    let server = Server::tarn(&["--maxmemory-clients", "4mb"]);
    let (mut small, mut spared, mut large) = (server.client(), server.client(), server.client());
    spared.call("CLIENT NO-EVICT on");
    for (client, bytes) in [(&mut small, 1000), (&mut spared, 1_900_000), (&mut large, 1_500_000)] {
        client.call("MULTI");
        assert_eq!(client.try_call(&["SET", "k", &"v".repeat(bytes)]).ok(), Some(Value::Simple(b"QUEUED".to_vec())));
    }
    let (mut client, mut watcher) = (server.client(), server.client());
    assert_eq!(watcher.info("all", "evicted_clients"), 0);
    // The limit is changed for connections that are there.
    client.call("CONFIG SET maxmemory-clients 2mb");
    client.call("MULTI");
    assert!(client.try_call(&["SET", "k", &"v".repeat(100_000)]).is_ok());
    until("the largest that may be is closed", || watcher.info("all", "evicted_clients") == 1);
    watcher.call("CONFIG RESETSTAT");
    assert_eq!(watcher.info("all", "evicted_clients"), 0, "it is counted anew");
    assert!(matches!(large.try_call(&["PING"]), Err(Gone::Closed)));
    assert_eq!(spared.call("DISCARD"), Value::Simple(b"OK".to_vec()));
    assert_eq!(client.call("DISCARD"), Value::Simple(b"OK".to_vec()));
    assert_eq!(small.call("DISCARD"), Value::Simple(b"OK".to_vec()));
    assert!(server.output().contains("Evicting client: id="), "{}", server.output());
}

/// Who has subscribed to something has a limit of its own.
#[test]
fn a_subscriber_that_reads_nothing_is_closed_and_nobody_else() {
    let server = Server::tarn(&[]);
    let (mut client, mut hears, mut other) = (server.client(), server.client(), server.client());
    let limits = ["CONFIG", "SET", "client-output-buffer-limit", "normal 0 0 0 pubsub 1mb 0 0"];
    assert_eq!(client.try_call(&limits).ok(), Some(Value::Simple(b"OK".into())));
    let message = "m".repeat(100_000);
    client.call(&format!("SET k {message}"));
    const REPLIES: usize = 40;
    assert!(other.send_raw("GET k\r\n".repeat(REPLIES).as_bytes()).is_ok());
    hears.call("SUBSCRIBE c");
    until("it is closed", || {
        assert!(client.try_call(&["PUBLISH", "c", &message]).is_ok());
        client.info("all", "client_output_buffer_limit_disconnections") == 1
    });
    until("it hears no more", || client.call("PUBLISH c m").int() == Some(0));
    let replies = (0..REPLIES).filter(|_| other.read().is_ok_and(|reply| reply.text() == message));
    assert_eq!(replies.count(), REPLIES);
}

#[test]
fn a_request_that_cannot_fit_is_refused() {
    let server = Server::tarn(&["--maxmemory-clients", "4mb"]);
    let mut client = server.client();
    assert!(client.send_raw(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5000000\r\n").is_ok());
    let refused = "OOM command needs more memory than 'maxmemory' or 'client-output-buffer-limit' leaves for one";
    assert_eq!(client.read().map(|value| value.text()).ok(), Some(refused.to_owned()));
    assert!(matches!(client.read(), Err(Gone::Closed)));
    assert_eq!(server.client().try_call(&["SET", "k", &"v".repeat(3_000_000)]).ok(), Some(Value::Simple(b"OK".into())));
}

/// The connection would be the largest by it, and closed.
#[test]
fn a_reply_that_takes_most_of_what_there_is_is_refused() {
    let server = Server::tarn(&["--maxmemory-clients", "4mb"]);
    let mut client = server.client();
    assert_eq!(client.try_call(&["SET", "k", &"v".repeat(3_400_000)]).ok(), Some(Value::Simple(b"OK".into())));
    let refused = "OOM command needs more memory than 'maxmemory' or 'client-output-buffer-limit' leaves for one";
    let reply = client.call("GET k").text();
    assert!(reply == refused, "{} bytes", reply.len());
    assert_eq!(client.call("GETRANGE k 0 2999999").text().len(), 3_000_000);
}

/// MULTI's queue, as it is held: arguments, where they are, and the queue itself.
#[test]
fn a_queue_of_small_commands_is_counted_whole() {
    let server = Server::tarn(&[]);
    let mut client = server.client();
    client.call("MULTI");
    assert!(client.send_raw(&encode(&["PING"]).repeat(10_000)).is_ok());
    (0..10_000).for_each(|_| assert!(client.read().is_ok()));
    let mut other = server.client();
    let list = other.call("CLIENT LIST").text();
    let line = list.lines().find(|line| line.contains(" multi=10000 ")).unwrap_or_else(|| panic!("{list}"));
    let field = |name: &str| line.split(' ').find_map(|field| field.strip_prefix(name)?.parse::<u64>().ok());
    // Two blocks of 32 bytes and a slot of 56 each.
    let queue = field("multi-mem=").unwrap_or(0);
    assert!(queue >= 10_000 * 120, "{line}");
    assert!(field("tot-mem=").is_some_and(|all| all > queue), "{line}");
    client.call("DISCARD");
    assert_eq!(mine(&mut client, "multi-mem"), 0);
}

/// Freed on another thread when it has run: until then it counts, and once.
#[test]
fn a_long_queue_that_has_run_counts_once() {
    const COMMANDS: usize = 2_000;
    let server = Server::tarn(&["--maxmemory-clients", "8mb"]);
    let mut client = server.client();
    for _ in 0..3 {
        client.call("MULTI");
        let value = "v".repeat(2_000);
        for _ in 0..COMMANDS / 100 {
            assert!(client.send_raw(&encode(&["SET", "k", &value]).repeat(100)).is_ok());
            (0..100)
                .for_each(|_| assert_eq!(client.read().map(|queued| queued.text()).ok().as_deref(), Some("QUEUED")));
        }
        assert_eq!(client.call("EXEC").items().len(), COMMANDS);
    }
    let told = |client: &mut Client| mine(client, "tot-mem");
    until("what was queued is given back", || told(&mut client) < 2 * MB);
}

#[test]
fn a_new_longest_argument_holds_for_open_connections() {
    let server = Server::tarn(&[]);
    let mut client = server.client();
    let value = "v".repeat(2_000_000);
    assert!(client.try_call(&["SET", "k", &value]).is_ok());
    server.client().call("CONFIG SET proto-max-bulk-len 1mb");
    assert!(client.send_raw(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$2000000\r\n").is_ok());
    let refused = "ERR Protocol error: invalid bulk length";
    assert_eq!(client.read().map(|value| value.text()).ok(), Some(refused.to_owned()));
}

/// Else each of their next commands would sort ten thousand blocks of it before it gets one.
#[test]
fn network_threads_are_told_of_what_others_free() {
    const KEYS: u64 = 50_000;
    let server = Server::tarn(&["--shards", "1"]);
    let mut client = server.client();
    let told = |client: &mut Client| client.info("tarn", "tarn_heaps_told");
    for (way, options) in [("a flushed database", ""), ("expired keys", " PX 100")] {
        let value = "v".repeat(100);
        let load: String = (0..KEYS).map(|n| format!("SET {n} {value}{options}\r\n")).collect();
        let before = told(&mut client);
        client.send_raw(load.as_bytes()).unwrap_or_else(|e| panic!("{e}"));
        (0..KEYS).for_each(|_| _ = client.read().unwrap_or_else(|e| panic!("{e:?}")));
        if options.is_empty() {
            client.call("FLUSHALL");
        }
        // Of 100 bytes a key there are some hundred times 64 KB.
        until(way, || client.call("DBSIZE") == Value::Int(0) && told(&mut client) >= before + KEYS / 2048);
    }
}

/// What a command changes one by one is held for undo and for its log record; what would take too much by that is written anew.
#[test]
fn much_of_a_collection_goes_with_little_memory() {
    const MEMBERS: usize = 60_000;
    let server = Server::tarn(&["--maxmemory", "32mb"]);
    let mut client = server.client();
    let mut fill = |name: &str, key: &str, of: &dyn Fn(usize) -> String, many: usize| {
        for first in (0..many).step_by(500) {
            let words: Vec<String> = (first..first + 500).map(of).collect();
            client.call(&format!("{name} {key} {}", words.join(" ")));
        }
    };
    let text = "e".repeat(500);
    // Ten megabytes, where a command may hold four.
    for list in ["removed", "inserted", "trimmed"] {
        fill("RPUSH", list, &|n| if n == 10_000 { "middle".to_owned() } else { text.clone() }, 20_000);
    }
    fill("ZADD", "scores", &|n| format!("{n} member:{n}"), MEMBERS);
    fill("SADD", "members", &|n| format!("member:{n}"), MEMBERS);
    for _ in 0..MEMBERS / 1_000 {
        assert!(client.send_raw(&encode(&["XADD", "stream", "*", "field", "value"]).repeat(1_000)).is_ok());
        (0..1_000).for_each(|_| assert!(client.read().is_ok()));
    }
    for (call, number, length, left) in [
        ("LREM removed 0 middle", 1, "LLEN removed", 19_999),
        ("LINSERT inserted BEFORE middle new", 20_001, "LLEN inserted", 20_001),
        ("ZREMRANGEBYRANK scores 100 25099", 25_000, "ZCARD scores", 35_000),
        ("XTRIM stream MAXLEN 35000", 25_000, "XLEN stream", 35_000),
    ] {
        assert_eq!(client.call(call), Value::Int(number), "{call}");
        assert_eq!(client.call(length), Value::Int(left), "{call}");
    }
    assert_eq!(client.call("LTRIM trimmed 9000 -1"), Value::Simple(b"OK".to_vec()));
    assert_eq!(client.call("LLEN trimmed"), Value::Int(11_000));
    assert_eq!(client.call("LINDEX trimmed 1000").text(), "middle");
    assert!(matches!(client.call("SPOP members 20000"), Value::Array(taken) if taken.len() == 20_000));
    assert_eq!(client.call("SCARD members"), Value::Int(40_000));
}

/// What lies on disk is not held because it was looked at, and what goes is not held for its value.
#[test]
fn what_is_on_disk_takes_little_memory() {
    let mut server = Server::tarn(&["--maxmemory", "32mb"]);
    let mut client = server.client();
    for (key, byte, parts) in [("bits", b'b', 6), ("ones", 0xff, 6), ("value", b'b', 3)] {
        let append = [&b"APPEND"[..], key.as_bytes(), &vec![byte; 1_000_000]];
        (0..parts).for_each(|_| assert!(client.try_call(&append).is_ok()));
    }
    let value = "v".repeat(1_000);
    for _ in 0..100 {
        assert!(client.send_raw(&encode(&["XADD", "stream", "*", "f", &value]).repeat(200)).is_ok());
        (0..200).for_each(|_| assert!(client.read().is_ok()));
    }
    let same = vec!["same"; 1_000].join(" ");
    (0..60).for_each(|_| _ = client.call(&format!("RPUSH list {same}")));
    client.call("RPUSH list other");
    let value = "v".repeat(10_000);
    for field in 0..300 {
        assert!(client.try_call(&["HSET", "hash", &field.to_string(), &value]).is_ok());
    }
    client.call("SAVE");
    server.restart();
    let mut client = server.client();
    for (call, number) in [
        ("BITCOUNT bits", 18_000_000),
        ("BITPOS ones 0", 48_000_000),
        ("BITOP AND result bits ones", 6_000_000),
        ("BITCOUNT result", 18_000_000),
        ("XTRIM stream MAXLEN 12000", 8_000),
        ("LREM list 0 same", 60_000),
        ("LLEN list", 1),
    ] {
        assert_eq!(client.call(call), Value::Int(number), "{call}");
    }
    assert_eq!(client.call("GET value").text().len(), 3_000_000);
    assert_eq!(client.call("HEXPIRE hash 1000 FIELDS 1 7"), Value::Array(vec![Value::Int(1)]));
    assert_eq!(client.call("HGET hash 299").text().len(), 10_000);
}
