//! Strangers and slow peers: clear errors, memory within bounds, no crash, and others are served meanwhile.
//!
//! `TARN_TEST_CONNECTIONS` says how many connections are opened where many are (500; 10,000 for a long run).

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use common::resp::{Client, Gone, Value, encode};
use common::rng::Rng;
use common::server::{Kind, Server, notice};
use common::wait::until;

const MB: usize = 1 << 20;

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap_or_else(|e| panic!("{e}"));
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap_or_else(|e| panic!("{e}"));
    stream
}

fn send(mut stream: &TcpStream, bytes: &[u8]) {
    stream.write_all(bytes).unwrap_or_else(|e| panic!("{e}"));
}

/// What the server says until it closes.
fn last_words(mut stream: &TcpStream) -> String {
    let mut all = Vec::new();
    // A reset after the last bytes is the server closing with some of ours unread.
    let _ = stream.read_to_end(&mut all);
    String::from_utf8_lossy(&all).into_owned()
}

/// Bytes that the server has allocated.
fn used_bytes(client: &mut Client) -> usize {
    let info = client.call("INFO memory").text();
    let line = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
    line.and_then(|number| number.trim().parse().ok()).unwrap_or_else(|| panic!("{info}"))
}

fn assert_sound(server: &Server) {
    assert_eq!(server.client().call("PING"), Value::Simple(b"PONG".to_vec()));
    assert!(!server.output().contains("panicked"), "{}", server.output());
}

/// A client that sends PING again and again and is to be answered every time.
struct Bystander {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Duration>>,
}

impl Bystander {
    fn start(server: &Server) -> Bystander {
        let (stop, mut client) = (Arc::new(AtomicBool::new(false)), server.client());
        let ended = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut times = Vec::new();
            while !ended.load(Ordering::Relaxed) {
                let began = Instant::now();
                assert_eq!(client.call("PING"), Value::Simple(b"PONG".to_vec()));
                times.push(began.elapsed());
                std::thread::sleep(Duration::from_millis(2));
            }
            times
        });
        Bystander { stop, thread }
    }

    /// All of its requests were answered, and some of them meanwhile. How fast depends on the machine: it is told, no more.
    fn end(self, during: &str) {
        self.stop.store(true, Ordering::Relaxed);
        let mut times = self.thread.join().unwrap_or_else(|_| panic!("others are not served during {during}"));
        times.sort();
        assert!(times.len() > 10, "{during}: {} requests are answered", times.len());
        notice(&format!("{during}: PING p99 {:?} of {}", times[times.len() * 99 / 100], times.len()));
    }
}

#[test]
fn malformed_requests_get_an_error_and_a_closed_connection() {
    let server = Server::tarn(&[]);
    let long_line = "A".repeat(70_000);
    for (bytes, error) in [
        ("*1048577\r\n", "invalid multibulk length"),
        ("*x\r\n", "invalid multibulk length"),
        ("*99999999999999999999999\r\n", "invalid multibulk length"),
        ("*2\r\n$3\r\nGET\r\n$536870913\r\n", "invalid bulk length"),
        ("*2\r\n$3\r\nGET\r\n$-1\r\n", "invalid bulk length"),
        ("*2\r\n$3\r\nGET\r\n$9223372036854775808\r\n", "invalid bulk length"),
        ("*2\r\n$3\r\nGET\r\n+x\r\n", "expected '$', got '+'"),
        ("GET \"a\r\n", "unbalanced quotes in request"),
        (&long_line, "too big inline request"),
        (&format!("*{long_line}"), "too big mbulk count string"),
        (&format!("*1\r\n${long_line}"), "too big bulk count string"),
    ] {
        let stream = connect(&server);
        send(&stream, bytes.as_bytes());
        let expected = format!("-ERR Protocol error: {error}\r\n");
        assert_eq!(last_words(&stream), expected, "{}", &bytes[..bytes.len().min(40)]);
    }
    // What came before is run.
    let stream = connect(&server);
    send(&stream, b"PING\r\n*1\r\n$4\r\nPING\r\n*1\r\n:1\r\nPING\r\n");
    assert_eq!(last_words(&stream), "+PONG\r\n+PONG\r\n-ERR Protocol error: expected '$', got ':'\r\n");
    assert_sound(&server);
}

#[test]
fn who_has_not_authenticated_is_trusted_with_little() {
    let server = Server::tarn(&["--requirepass", "secret"]);
    for (bytes, error) in [
        ("*11\r\n", "unauthenticated multibulk length"),
        ("*2\r\n$4\r\nAUTH\r\n$16385\r\n", "unauthenticated bulk length"),
    ] {
        let stream = connect(&server);
        send(&stream, bytes.as_bytes());
        assert_eq!(last_words(&stream), format!("-ERR Protocol error: {error}\r\n"));
    }
    // The limits end with the command that authenticates, within one pipeline.
    let mut client = server.client();
    let value = "v".repeat(20_000);
    let pipeline = [encode(&["AUTH", "secret"]), encode(&["SET", "k", &value]), encode(&["STRLEN", "k"])].concat();
    assert!(client.send_raw(&pipeline).is_ok());
    let replies: Vec<_> = (0..3).map(|_| client.read().unwrap_or_else(|e| panic!("{e:?}"))).collect();
    assert_eq!(replies[2], Value::Int(20_000), "{replies:?}");
}

#[test]
fn random_bytes_harm_nobody() {
    let server = Server::tarn(&[]);
    let bystander = Bystander::start(&server);
    let mut rng = Rng(1);
    for round in 0..600 {
        let stream = connect(&server);
        let prefix: &[u8] =
            [&b""[..], b"*", b"*3\r\n$3\r\nSET\r\n$", b"SET \"", b"*2\r\n$3\r\nGET\r\n$20\r\n"][round % 5];
        let bytes: Vec<u8> = (0..rng.below(2000)).map(|_| rng.next() as u8).collect();
        // The server may have closed by now.
        let _ = (&stream).write_all(&[prefix, &bytes].concat());
        if round % 3 == 0 {
            let _ = stream.shutdown(Shutdown::Write);
            last_words(&stream);
        }
    }
    bystander.end("random bytes");
    assert_sound(&server);
}

/// Every command with arguments that mean something to some command.
#[test]
fn strange_arguments_crash_nothing() {
    let server = Server::tarn(&["--enable-debug-command", "yes"]);
    let mut client = server.client();
    let names: Vec<String> = client.call("COMMAND").items().iter().map(|row| row.items()[0].text()).collect();
    assert!(names.len() > 80, "{names:?}");
    let long = "x".repeat(70_000);
    let words = [
        "",
        "a",
        "b",
        "n",
        "-1",
        "0",
        "1",
        "2",
        "9223372036854775807",
        "-9223372036854775808",
        "18446744073709551616",
        "*",
        "GET",
        "SET",
        "INCRBY",
        "i64",
        "u63",
        "#4",
        "IDX",
        "NX",
        "EX",
        "PX",
        "COUNT",
        "MATCH",
        "ID",
        "TYPE",
        "AND",
        "NOT",
        "BIT",
        "1.5",
        "nan",
        "-inf",
        "1e4000",
        "HELP",
        "LIST",
        "INFO",
        "DOCS",
        "GETKEYS",
        "GETKEYSANDFLAGS",
        "USAGE",
        "STATS",
        "KILL",
        "SETNAME",
        "SETINFO",
        "AUTH",
        "STORE",
        "IFEQ",
        "IFDEQ",
        "[",
        "[^a-",
        "\\",
        "\0\r\n\u{ff}",
        &long,
    ];
    let mut rng = Rng(7);
    // These end, watch, take or stop the connection or the server, which is what they are for.
    let unfit = ["shutdown", "monitor", "quit", "debug", "wait", "waitaof", "sync", "psync"];
    for name in names.iter().filter(|name| !unfit.contains(&name.as_str())) {
        for _ in 0..25 {
            let mut args = vec![name.as_str()];
            args.extend((0..rng.below(7)).map(|_| words[rng.below(words.len() as u64) as usize]));
            if name == "client" && args.get(1).is_some_and(|word| *word == "KILL") {
                continue;
            }
            match client.try_call(&args) {
                Ok(_) => {}
                Err(Gone::Closed) if name == "reset" || name == "hello" => client = server.client(),
                Err(gone) => panic!("{args:?}: {gone:?}\n{}", server.output()),
            }
        }
    }
    assert_sound(&server);
}

#[test]
fn idle_and_slow_connections_cost_little() {
    let count: usize = std::env::var("TARN_TEST_CONNECTIONS").map_or(500, |n| n.parse().unwrap_or(500));
    let server = Server::tarn(&["--maxclients", "20000"]);
    let mut client = server.client();
    let before = used_bytes(&mut client);
    let bystander = Bystander::start(&server);
    let streams: Vec<TcpStream> = (0..count).map(|_| connect(&server)).collect();
    for stream in &streams {
        send(stream, b"PING\r\n");
        let mut pong = [0; 7];
        assert!((&*stream).read_exact(&mut pong).is_ok());
    }
    let idle = used_bytes(&mut client).saturating_sub(before);
    // Announced, never sent: of the request, of an argument, or of half of one.
    for (i, stream) in streams.iter().enumerate() {
        send(
            stream,
            [&b"*1048576\r\n"[..], b"*2\r\n$3\r\nGET\r\n$536870912\r\n", b"*2\r\n$3\r\nGET\r\n$9\r\nabc"][i % 3],
        );
    }
    for stream in streams.iter().cycle().take(5000) {
        send(stream, b"$");
    }
    let announced = used_bytes(&mut client).saturating_sub(before);
    notice(&format!("{count} connections: {idle} bytes idle, {announced} bytes in the middle of a request"));
    assert!(idle < count * 8192 + MB && announced < count * 8192 + MB, "{idle} {announced}");
    bystander.end("idle and slow connections");
    drop(streams);
    assert_sound(&server);
}

/// Sends as much as the server takes within a second.
fn flood(streams: &[TcpStream], request: &[u8]) {
    let bytes = request.repeat(1000);
    let mut sent = vec![0usize; streams.len()];
    for stream in streams {
        stream.set_nonblocking(true).unwrap_or_else(|e| panic!("{e}"));
    }
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(1) {
        for (stream, sent) in streams.iter().zip(&mut sent) {
            if let Ok(n) = (&*stream).write(&bytes[*sent % bytes.len()..]) {
                *sent += n;
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(sent.iter().all(|n| *n > 0));
}

#[test]
fn peers_that_do_not_read_hold_little_and_delay_nobody() {
    let server = Server::tarn(&[]);
    let mut client = server.client();
    let value = "v".repeat(MB);
    assert!(client.try_call(&["SET", "big", &value]).is_ok());
    let before = used_bytes(&mut client);
    let bystander = Bystander::start(&server);
    let streams: Vec<TcpStream> = (0..20).map(|_| connect(&server)).collect();
    flood(&streams, &encode(&["GET", "big"]));
    let held = used_bytes(&mut client).saturating_sub(before);
    // One reply beyond the bound, twice for the buffer's growth.
    assert!(held < 20 * 4 * MB, "20 connections hold {held} bytes");
    bystander.end("peers that do not read");
    drop(streams);
    assert_sound(&server);
}

#[test]
fn the_memory_of_big_requests_goes_back() {
    let server = Server::tarn(&[]);
    let mut client = server.client();
    let value = "v".repeat(4 * MB);
    let request = encode(&["SET", "k", &value]);
    assert!(client.try_call(&["SET", "k", &value]).is_ok());
    let before = used_bytes(&mut client);
    let mut clients: Vec<Client> = (0..20).map(|_| server.client()).collect();
    for other in &mut clients {
        assert!(other.send_raw(&request).is_ok());
        assert_eq!(other.read().ok(), Some(Value::Simple(b"OK".to_vec())));
    }
    // Replaced values and the log's buffers are freed by other threads.
    until("20 idle connections hold little", || used_bytes(&mut client).saturating_sub(before) <= 20 * MB);
}

#[test]
fn limits_of_buffers_close_a_client() {
    let server = Server::tarn(&["--client-query-buffer-limit", "1mb"]);
    let mut client = server.client();
    let value = "v".repeat(300_000);
    assert_eq!(client.call("MULTI"), Value::Simple(b"OK".to_vec()));
    let outcome = (0..10).find_map(|_| client.try_call(&["SET", "k", &value]).err());
    assert!(matches!(outcome, Some(Gone::Closed)), "a queue beyond client-query-buffer-limit: {outcome:?}");
    let stream = connect(&server);
    // The server may have closed before the last of it.
    let _ = (&stream).write_all(&[b"*2\r\n$4\r\nECHO\r\n$3000000\r\n", &[b'x'; 2_000_000][..]].concat());
    assert_eq!(last_words(&stream), "", "a request that is not whole, and beyond it");

    let mut client = server.client();
    assert!(client.try_call(&["SETRANGE", "k", "4000000", "end"]).is_ok());
    let set = ["CONFIG", "SET", "client-output-buffer-limit", "normal 2mb 0 0"];
    assert_eq!(client.try_call(&set).ok(), Some(Value::Simple(b"OK".to_vec())));
    assert_eq!(client.try_call(&["GET", "k"]).ok(), Some(too_much()), "a reply beyond the hard limit");
    let disconnections = |client: &mut Client| {
        ["query", "output"].map(|of| client.info("stats", &format!("client_{of}_buffer_limit_disconnections")))
    };
    assert_eq!(disconnections(&mut client), [2, 0]);

    let set = ["CONFIG", "SET", "client-output-buffer-limit", "normal 100kb 0 0"];
    assert_eq!(client.try_call(&set).ok(), Some(Value::Simple(b"OK".to_vec())));
    assert!(client.try_call(&["SET", "part", &"v".repeat(60_000)]).is_ok_and(|reply| !reply.is_error()));
    assert_eq!(client.call("GET part").text().len(), 60_000);
    let stream = connect(&server);
    // Each of them is within it.
    send(&stream, &encode(&["GET", "part"]).repeat(2));
    assert_eq!(last_words(&stream), "", "replies that are beyond the hard limit together");
    assert_eq!(disconnections(&mut client), [2, 1]);

    let set = ["CONFIG", "SET", "client-output-buffer-limit", "normal 0 100kb 1"];
    assert_eq!(client.try_call(&set).ok(), Some(Value::Simple(b"OK".to_vec())));
    let stream = connect(&server);
    flood(std::slice::from_ref(&stream), &encode(&["GET", "k"]));
    until("output above the soft limit is closed", || client.call("CLIENT LIST").text().lines().count() == 1);
    assert_eq!(disconnections(&mut client), [2, 2]);
}

/// What a command is told that needs more than one may have.
fn too_much() -> Value {
    let limits = "'maxmemory' or 'client-output-buffer-limit'";
    Value::Error(format!("OOM command needs more memory than {limits} leaves for one").into_bytes())
}

/// A request that no command could hold is refused before it has come.
#[test]
fn a_request_has_a_longest_length() {
    let server = Server::tarn(&["--maxmemory", "64mb"]);
    let text = too_much().text();
    for announced in ["*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$9000000\r\n", "*2\r\n$9000000\r\n"] {
        let stream = connect(&server);
        send(&stream, announced.as_bytes());
        assert_eq!(last_words(&stream), format!("-{text}\r\n"));
    }
    let many = connect(&server);
    let part = format!("$1000000\r\n{}\r\n", "v".repeat(1_000_000));
    // The server closes before the last of them.
    let _ = (&many).write_all(&[b"*100\r\n", part.repeat(9).as_bytes()].concat());
    assert_eq!(last_words(&many), format!("-{text}\r\n"));
    let mut client = server.client();
    assert!(client.try_call(&["SET", "k", &"v".repeat(3_000_000)]).is_ok_and(|reply| !reply.is_error()));
    assert_eq!(client.try_call(&["SET", "k", &"v".repeat(8_000_000)]).ok(), Some(too_much()));
    assert_eq!(client.call("STRLEN k"), Value::Int(3_000_000));
}

/// A request of some bytes that asks for terabytes.
#[test]
fn a_reply_has_a_longest_length() {
    let server = Server::tarn(&["--client-output-buffer-limit", "normal", "16mb", "0", "0"]);
    let mut client = server.client();
    assert!(client.try_call(&["SETRANGE", "k", "1000000", "end"]).is_ok());
    assert_eq!(client.try_call(&[&["MGET"][..], &["k"; 100_000]].concat()).ok(), Some(too_much()));
    assert_eq!(client.call("STRLEN k"), Value::Int(1_000_003));
    assert_eq!(client.call("GETRANGE k 0 -1").text().len(), 1_000_003);
    // Refused within a transaction, a command changes nothing; those around it stand.
    client.call("MULTI");
    let mut queue = encode(&["GET", "k"]).repeat(20);
    for command in [&["GETDEL", "k"][..], &["SET", "n", "1"], &["EXEC"]] {
        queue.extend(encode(command));
    }
    assert!(client.send_raw(&queue).is_ok());
    let replies: Vec<Value> = (0..23).map_while(|_| client.read().ok()).collect();
    let results = replies.last().map_or(&[][..], Value::items);
    assert_eq!(results.len(), 22, "{:?}", replies.last());
    let whole = results.iter().filter(|reply| reply.text().len() == 1_000_003).count();
    assert_eq!((whole, results.iter().filter(|reply| **reply == too_much()).count()), (16, 5));
    assert_eq!((client.call("STRLEN k"), client.call("GET n").text()), (Value::Int(1_000_003), "1".to_owned()));
    let outcome = client.try_call(&[&["MGET"][..], &["n"; 50_000]].concat());
    assert_eq!(outcome.map(|reply| reply.items().len()).ok(), Some(50_000), "many short values are within it");
}

/// What was parsed ahead of a command that has to wait is parsed again: it must look as it came.
#[test]
fn inline_requests_with_quotes_wait_their_turn() {
    let server = Server::tarn(&[]);
    let mut client = server.client();
    let pipeline = b"WAIT 1 50\r\nSET k \"a b\"\r\nGET k\r\nSET \"k\\x00\" 'it\\'s'\r\nWAIT 1 50\r\nGET \"k\\x00\"\r\n";
    assert!(client.send_raw(pipeline).is_ok());
    let replies: Vec<String> = (0..6).map_while(|_| client.read().ok()).map(|reply| reply.text()).collect();
    assert_eq!(replies, ["", "OK", "a b", "OK", "", "it's"]);
}

#[test]
fn damage_in_the_middle_of_the_log_is_named_and_cut_on_demand() {
    let mut server = Server::tarn(&["--appendfsync", "always"]);
    let mut client = server.client();
    for i in 0..100 {
        client.call(&format!("SET key:{i} value"));
    }
    server.kill9();
    let data = server.dir().join("data");
    let segment = data.join("log/0000000000000001.log");
    let mut bytes = std::fs::read(&segment).unwrap_or_else(|e| panic!("{e}"));
    // Zeros are written ahead of the frames.
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap_or_default();
    bytes[end / 2] ^= 1;
    std::fs::write(&segment, &bytes).unwrap_or_else(|e| panic!("{e}"));

    let tarn = |args: &[&str]| {
        let binary = Kind::Tarn.binary().unwrap_or_else(|| panic!("cargo builds tarn before its tests"));
        let output = Command::new(binary).args(args).arg(&data).stdin(Stdio::null()).output();
        let output = output.unwrap_or_else(|e| panic!("{e}"));
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&said).into_owned())
    };
    let port = server.port().to_string();
    let named = format!("{} is damaged at offset ", segment.display());
    let (code, said) = tarn(&["--port", &port, "--bind", "127.0.0.1", "--dir"]);
    assert!(code == Some(1) && said.contains(&named), "{said}");
    let (code, said) = tarn(&["check"]);
    assert!(code == Some(1) && said.contains(&named) && said.contains("a cut there takes away"), "{said}");
    let (code, said) = tarn(&["check", "--repair"]);
    assert!(
        code == Some(0) && said.contains("log: cut there") && said.contains("what is missing is given up"),
        "{said}"
    );
    assert_eq!(tarn(&["check"]).0, Some(0));

    server.spawn();
    server.wait_ready();
    let left = server.client().call("DBSIZE").int().unwrap_or(0);
    assert!((1..100).contains(&left), "{left} keys are left");
    assert!(server.client().call(&format!("GET key:{left}")).is_nil());
    assert_eq!(server.client().call(&format!("GET key:{}", left - 1)).text(), "value");
}
