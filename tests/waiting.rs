//! Connections that wait: for time, for a pause to end, for a command that runs elsewhere. When the peer leaves, is killed, or
//! the server stops, nothing of them stays.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use common::flood::assert_lets_others_in;
use common::resp::{Client, Gone, Value, encode};
use common::server::{Kind, Server};

/// How long anything may take that is only waited for because it happens on another thread.
const SOON: Duration = Duration::from_secs(20);

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap_or_else(|e| panic!("{e}"));
    stream.set_read_timeout(Some(SOON)).unwrap_or_else(|e| panic!("{e}"));
    stream
}

fn send(mut stream: &TcpStream, bytes: &[u8]) {
    stream.write_all(bytes).unwrap_or_else(|e| panic!("{e}"));
}

/// Awaits what a client comes to see.
fn until(what: &str, mut seen: impl FnMut() -> bool) {
    let began = Instant::now();
    while !seen() {
        assert!(began.elapsed() < SOON, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Lines of CLIENT LIST with this text.
fn listed(client: &mut Client, text: &str) -> usize {
    client.call("CLIENT LIST").text().lines().filter(|line| line.contains(text)).count()
}

/// A client of which nothing but its requests is wanted, each running when `flag` stands in CLIENT LIST.
fn waiters(server: &Server, client: &mut Client, count: usize, request: &[u8], shown: &str) -> Vec<TcpStream> {
    let streams: Vec<TcpStream> = (0..count).map(|_| connect(server)).collect();
    streams.iter().for_each(|stream| send(stream, request));
    until("all wait", || listed(client, shown) >= count);
    streams
}

#[test]
fn waiters_that_left_hold_no_connection() {
    let server = Server::tarn(&["--maxclients", "220", "--enable-debug-command", "yes"]);
    let mut client = server.client();
    for (request, shown) in [
        (&b"WAIT 1 9000000000000000\r\n"[..], "cmd=wait "),
        (b"DEBUG SLEEP 1000000\r\n", "cmd=debug "),
        // Unread bytes behind the request must not hide the end.
        (b"WAIT 1 9000000000000000\r\nPING\r\n", "cmd=wait "),
    ] {
        let streams = waiters(&server, &mut client, 200, request, shown);
        assert_eq!(client.info("clients", "connected_clients"), 201);
        for stream in &streams[..100] {
            send(stream, b"PING\r\nPING\r\n");
        }
        drop(streams);
        until("they are gone", || client.info("clients", "connected_clients") == 1);
        assert_eq!(client.info("clients", "blocked_clients"), 0);
    }
    client.call("CLIENT PAUSE 9000000000000000 ALL");
    let streams = waiters(&server, &mut client, 200, b"SET k v\r\n", "cmd=set ");
    drop(streams);
    until("they are gone", || listed(&mut client, "cmd=set") == 0);
    client.call("CLIENT UNPAUSE");
    assert!(client.call("GET k").is_nil(), "what was held back of a peer that left never happens");
    assert_eq!(client.info("stats", "rejected_connections"), 0);
}

#[test]
fn what_waits_is_shown_as_blocked() {
    let server = Server::tarn(&[]);
    let mut client = server.client();
    let stream = connect(&server);
    send(&stream, b"WAIT 1 9000000000000000\r\n");
    until("it waits", || listed(&mut client, "flags=b ") == 1);
    assert_eq!(client.info("clients", "blocked_clients"), 1);
}

#[test]
fn a_killed_waiter_is_gone_and_runs_nothing_more() {
    let server = Server::tarn(&[]);
    let mut client = server.client();
    let waiting = waiters(&server, &mut client, 20, b"WAIT 1 9000000000000000\r\nSET k v\r\n", "cmd=wait ");
    client.call("CLIENT PAUSE 9000000000000000 WRITE");
    let paused = waiters(&server, &mut client, 20, b"SET k v\r\n", "cmd=set ");
    assert_eq!(client.call("CLIENT KILL TYPE normal"), Value::Int(40));
    for mut stream in waiting.into_iter().chain(paused) {
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert_eq!(rest, b"");
    }
    until("they are gone", || client.info("clients", "connected_clients") == 1);
    client.call("CLIENT UNPAUSE");
    assert!(client.call("GET k").is_nil());
}

/// A peer that only stops sending still reads.
#[test]
fn a_half_closed_client_has_its_answers_at_once() {
    let server = Server::tarn(&[]);
    let mut stream = connect(&server);
    send(&stream, b"WAIT 1 9000000000000000\r\nSET k v\r\nWAIT 1 9000000000000000\r\nGET k\r\n");
    stream.shutdown(Shutdown::Write).unwrap_or_else(|e| panic!("{e}"));
    let mut answers = String::new();
    assert!(stream.read_to_string(&mut answers).is_ok());
    assert_eq!(answers, ":0\r\n+OK\r\n:0\r\n$1\r\nv\r\n");
}

/// Nobody would ever hear of it: what had come before it was known is run, and nothing after it is read.
#[test]
fn who_takes_no_answers_is_not_listened_to() {
    let dir = tempfile::tempdir().unwrap_or_else(|e| panic!("{e}"));
    let socket = dir.path().join("socket");
    let server = Server::tarn(&["--unixsocket", &socket.to_string_lossy()]);
    let mut client = server.client();
    let mut peer = UnixStream::connect(&socket).unwrap_or_else(|e| panic!("{e}"));
    peer.shutdown(Shutdown::Read).unwrap_or_else(|e| panic!("{e}"));
    until("it is closed", || peer.write_all(b"INCR n\r\n").is_err());
    until("it is gone", || client.info("clients", "connected_clients") == 1);
    assert!(client.call("GET n").text().parse::<u64>().is_ok_and(|n| n > 0));
}

/// More than is read at once, so that some of it is still in the socket when the peer leaves.
#[test]
fn writes_received_whole_happen_after_their_peer_has_left() {
    const COUNT: usize = 4000;
    let server = Server::tarn(&[]);
    let mut client = server.client();
    let stream = connect(&server);
    let mut pipeline = encode(&["WAIT", "1", "9000000000000000"]);
    pipeline.extend(encode(&["INCR", "n"]).repeat(COUNT));
    pipeline.extend(b"*2\r\n$4\r\nINCR\r\n$1");
    send(&stream, &pipeline);
    drop(stream);
    until("all of it has run", || client.call("GET n").text() == COUNT.to_string());
    until("it is gone", || client.info("clients", "connected_clients") == 1);
}

/// The replies cannot be sent, which does not keep what is behind them from running.
#[test]
fn writes_behind_replies_that_nobody_read_happen() {
    let server = Server::tarn(&[]);
    let mut client = server.client();
    client.call("SETRANGE big 1000000 end");
    let stream = connect(&server);
    send(&stream, &[encode(&["GET", "big"]).repeat(40), encode(&["INCR", "n"]).repeat(1000)].concat());
    until("the server waits for its reader", || listed(&mut client, " events=rw ") == 1);
    drop(stream);
    until("all of it has run", || client.call("GET n").text() == "1000");
    until("it is gone", || client.info("clients", "connected_clients") == 1);
}

/// Makes a set that is gone through on a shard's own thread.
fn make_set(client: &mut Client, members: usize) {
    let members: Vec<String> = (0..members).map(|n| format!("member:{n}")).collect();
    for members in members.chunks(1000) {
        let sadd: Vec<&str> = ["SADD", "set"].into_iter().chain(members.iter().map(String::as_str)).collect();
        assert!(client.try_call(&sadd).is_ok());
    }
}

/// It would take minutes; a connection stays until its command is back.
#[test]
fn a_long_read_ends_when_its_client_has_left() {
    let server = Server::tarn(&["--io-threads", "2"]);
    let mut client = server.client();
    make_set(&mut client, 20_000);
    let request = encode(&[&["SUNIONCARD", "8000"][..], &["set"; 8000]].concat());
    let reading = waiters(&server, &mut client, 3, &request, "cmd=sunioncard ");
    // A write ends with its reply, whoever is there to read it.
    let store = encode(&["SUNIONSTORE", "copy", "set", "set"]);
    let writing = waiters(&server, &mut client, 1, &store, "cmd=sunion");
    drop((reading, writing));
    until("all are gone", || client.info("clients", "connected_clients") == 1);
    until("the write has happened", || client.call("SCARD copy").int() == Some(20_000));
}

/// A peer that only stops sending, which nothing tells from one that has left, is given the time of a usual command.
#[test]
fn a_half_closed_client_has_the_answers_of_reads_elsewhere() {
    // To a scaled server this is long, but not as long as a command may go on for who is gone.
    let server = Server::built(Kind::ScaledTarn, &[]);
    make_set(&mut server.client(), 1_000);
    for _ in 0..10 {
        let mut stream = connect(&server);
        send(&stream, b"SUNIONCARD 2 set set\r\nSCARD set\r\n");
        stream.shutdown(Shutdown::Write).unwrap_or_else(|e| panic!("{e}"));
        let mut answers = String::new();
        assert!(stream.read_to_string(&mut answers).is_ok());
        assert_eq!(answers, ":1000\r\n:1000\r\n");
    }
}

#[test]
fn a_pause_that_ends_lets_everybody_go() {
    let server = Server::tarn(&[]);
    let mut client = server.client();
    client.call("CLIENT PAUSE 9000000000000000 ALL");
    let mut held: Vec<Client> = (0..50).map(|_| server.client()).collect();
    for other in &mut held {
        assert!(other.send_raw(b"INCR n\r\n").is_ok());
    }
    until("all wait", || listed(&mut client, "flags=b ") == 50);
    client.call("CLIENT UNPAUSE");
    for other in &mut held {
        assert!(matches!(other.read(), Ok(Value::Int(_))));
    }
    assert_eq!(client.call("GET n").text(), "50");
    // A stricter pause turns into a milder one: reads go on.
    client.call("CLIENT PAUSE 9000000000000000 ALL");
    assert!(held[0].send_raw(b"GET n\r\n").is_ok());
    until("it waits", || listed(&mut client, "flags=b ") == 1);
    client.call("CLIENT UNPAUSE");
    client.call("CLIENT PAUSE 9000000000000000 WRITE");
    assert_eq!(held[0].read().map(|value| value.text()).ok(), Some("50".to_owned()));
}

/// Whatever may write or publish, EXEC by what it is to run; with ALL everything that is not about connections.
#[test]
fn a_pause_holds_back_what_it_says_and_nothing_else() {
    let server = Server::tarn(&[]);
    let mut client = server.client();
    for (mode, queue, line, is_held) in [
        ("WRITE", None, "SET k v", true),
        ("WRITE", None, "PUBLISH c m", true),
        ("WRITE", None, "SPUBLISH c m", true),
        ("WRITE", None, "EVAL return{} 0", true),
        ("WRITE", Some("SET k v"), "EXEC", true),
        ("WRITE", Some("PUBLISH c m"), "EXEC", true),
        ("WRITE", Some("GET k"), "EXEC", false),
        ("WRITE", None, "EVAL_RO return{} 0", false),
        ("WRITE", None, "GET k", false),
        ("WRITE", None, "BLPOP none 0.001", true),
        ("WRITE", None, "PING", false),
        ("ALL", None, "GET k", true),
        ("ALL", None, "PING", true),
        ("ALL", None, "ECHO text", true),
        ("ALL", None, "DBSIZE", true),
        ("ALL", Some("GET k"), "EXEC", true),
        ("ALL", None, "CLIENT ID", false),
        ("ALL", None, "HELLO", false),
    ] {
        let mut other = server.client();
        if let Some(queued) = queue {
            assert_eq!((other.call("MULTI").text(), other.call(queued).text()), ("OK".into(), "QUEUED".into()));
        }
        client.call(&format!("CLIENT PAUSE 9000000000000000 {mode}"));
        other.send_raw(&encode(&line.split(' ').collect::<Vec<_>>())).unwrap();
        if is_held {
            until(&format!("{mode}: {queue:?} {line} waits"), || {
                listed(&mut client, "flags=b ") + listed(&mut client, "flags=xb ") == 1
            });
            assert!(other.is_silent(), "{mode}: {queue:?} {line}");
            client.call("CLIENT UNPAUSE");
        }
        let reply = other.read().unwrap();
        assert!(!reply.is_error(), "{mode}: {queue:?} {line}: {reply:?}");
        client.call("CLIENT UNPAUSE");
    }
}

#[test]
fn who_is_killed_by_its_address_is_gone() {
    let server = Server::tarn(&[]);
    let mut client = server.client();
    for how in ["", "ADDR ", "LADDR 127.0.0.1:${port} ADDR "] {
        let mut stream = connect(&server);
        send(&stream, b"PING\r\n");
        stream.read_exact(&mut [0; 7]).unwrap();
        let how = how.replace("${port}", &server.port().to_string());
        let kill = format!("CLIENT KILL {how}{}", stream.local_addr().unwrap());
        let (killed, again) = (client.call(&kill), client.call(&kill));
        match how.is_empty() {
            true => assert_eq!((killed.text(), again.text()), ("OK".into(), "ERR No such client".into())),
            false => assert_eq!((killed, again), (Value::Int(1), Value::Int(0)), "{kill}"),
        }
        assert_eq!(stream.read(&mut [0; 7]).unwrap_or(0), 0, "{kill}");
    }
    assert_eq!(client.call("PING").text(), "PONG");
}

#[test]
fn of_two_pauses_the_longer_and_the_stricter_holds() {
    let server = Server::tarn(&[]);
    let [mut client, mut held] = [server.client(), server.client()];
    client.call("CLIENT PAUSE 9000000000000000 ALL");
    client.call("CLIENT PAUSE 1 WRITE");
    assert!(held.send_raw(b"GET n\r\n").is_ok());
    until("it waits", || listed(&mut client, "flags=b ") == 1);
    client.call("CLIENT UNPAUSE");
    assert!(held.read().is_ok_and(|value| value.is_nil()));
    // Of one that is over nothing stays.
    client.call("CLIENT PAUSE 9000000000000000 WRITE");
    assert!(held.call("GET n").is_nil());
}

/// It is not their own silence.
#[test]
fn timeout_spares_who_is_kept_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let server = Server::tarn(&["--timeout", "1", "--unixsocket", path.to_str().unwrap()]);
    let mut client = server.client();
    let big = "x".repeat(16 << 20);
    assert_eq!(client.try_call(&["SET", "big", &big]).unwrap(), Value::Simple(b"OK".to_vec()));
    let members: Vec<String> = (0..100_000).map(|n| n.to_string()).collect();
    let add: Vec<&str> = ["SADD", "set"].into_iter().chain(members.iter().map(String::as_str)).collect();
    assert_eq!(client.try_call(&add).unwrap(), Value::Int(100_000));
    client.call("CLIENT PAUSE 9000000000000000 WRITE");
    // Such a socket takes little at once: each read lets some more leave.
    let mut reader = UnixStream::connect(&path).unwrap();
    reader.set_read_timeout(Some(SOON)).unwrap();
    reader.write_all(b"GET big\r\n").unwrap();
    // Its reply is there before the next command, which holds the keys of its shard: `big` may be one of them.
    reader.read_exact(&mut [0; 8192]).unwrap();
    // Long enough for any machine.
    let endless = format!("SINTERCARD 5000{}\r\n", " set".repeat(5000));
    let elsewhere = waiters(&server, &mut client, 1, endless.as_bytes(), "cmd=sintercard ");
    let waiting = waiters(&server, &mut client, 1, b"WAIT 1 9000000000000000\r\n", "cmd=wait ");
    let paused = waiters(&server, &mut client, 1, b"SET k v\r\n", "cmd=set ");
    // Who came last is closed last.
    let (idle, mut has_come) = (connect(&server), false);
    until("the idle one is closed", || {
        // A little at a time.
        reader.read_exact(&mut [0; 8192]).unwrap();
        let there = listed(&mut client, "id=");
        has_come |= there == 6;
        has_come && there < 6
    });
    assert_eq!((listed(&mut client, "flags=b "), listed(&mut client, "cmd=sintercard ")), (2, 1));
    assert_eq!(listed(&mut client, "cmd=get "), 1);
    drop(elsewhere);
    client.call("CLIENT UNPAUSE");
    let mut answer = [0; 5];
    assert!(paused.iter().all(|mut stream| stream.read_exact(&mut answer).is_ok()));
    assert_eq!(&answer, b"+OK\r\n");
    drop((waiting, reader, idle));
}

#[test]
fn a_server_stops_while_clients_wait() {
    let mut server = Server::tarn(&[]);
    let mut client = server.client();
    let waiting = waiters(&server, &mut client, 20, b"WAIT 1 9000000000000000\r\n", "cmd=wait ");
    client.call("CLIENT PAUSE 9000000000000000 WRITE");
    let paused = waiters(&server, &mut client, 20, b"SET k v\r\n", "cmd=set ");
    assert_eq!(server.stop(), Some(0));
    drop((waiting, paused));
    assert!(matches!(client.try_call(&["PING"]), Err(Gone::Closed)));
}

/// They would take minutes, the shutdown's patience longer.
#[test]
fn a_server_that_stops_ends_long_commands() {
    let mut server = Server::tarn(&["--shutdown-timeout", "3600"]);
    let mut client = server.client();
    make_set(&mut client, 20_000);
    let read = encode(&[&["SUNIONCARD", "8000"][..], &["set"; 8000]].concat());
    let write = encode(&[&["SUNIONSTORE", "copy"][..], &["set"; 8000]].concat());
    for (request, shown) in [(read, "cmd=sunioncard "), (write, "cmd=sunionstore ")] {
        let running = waiters(&server, &mut client, 2, &request, shown);
        assert_eq!(server.stop(), Some(0));
        drop(running);
        server.spawn();
        server.wait_ready();
        client = server.client();
        assert_eq!((client.call("SCARD set").int(), client.call("EXISTS copy").int()), (Some(20_000), Some(0)));
    }
}

#[test]
fn client_list_takes_a_million_ids() {
    let server = Server::tarn(&[]);
    let mut client = server.client();
    let others: Vec<Client> = (0..50).map(|_| server.client()).collect();
    until("all are there", || client.info("clients", "connected_clients") == 51);
    let ids: Vec<String> = (1..=1_000_000).rev().map(|id| id.to_string()).collect();
    let mut request = vec!["CLIENT", "LIST", "ID"];
    request.extend(ids.iter().map(String::as_str));
    let answer = client.try_call(&request).unwrap_or_else(|e| panic!("{e:?}"));
    assert_eq!(answer.text().lines().count(), 51);
    drop(others);
}

/// Writers of the keys that a long command goes through wait for it, in whatever database and transaction; nobody else does.
/// The keys written cover every shard.
#[test]
fn nobody_waits_for_a_long_command_but_who_writes_its_keys() {
    const MEMBERS: usize = 120_000;
    let server = Server::tarn(&[]);
    let mut client = server.client();
    client.set_timeout(SOON);
    for first in (0..MEMBERS).step_by(2000) {
        let members: Vec<String> = (first..first + 2000).map(|n| format!("m{n}")).collect();
        client.call(&format!("SADD set {}", members.join(" ")));
    }
    for line in ["COPY set copy", "COPY set copy REPLACE", "RENAME copy other"] {
        let copier = connect(&server);
        send(&copier, &encode(&line.split(' ').collect::<Vec<_>>()));
        until("it goes on", || client.info("tarn", "tarn_busy_keys") == 2);
        let writer = connect(&server);
        let written = if line.starts_with("RENAME") { "copy" } else { "set" };
        send(&writer, &encode(&["SADD", written, &format!("new of {line}")]));
        until("its writer waits", || client.info("tarn", "tarn_commands_waiting_for_keys") == 1);
        for key in 0..200 {
            client.call(&format!("SET k{key} 1"));
        }
        assert_eq!(client.call("SISMEMBER set m1"), Value::Int(1));
        let still = client.info("tarn", "tarn_busy_keys");
        assert_eq!(still, 2, "{line}: all shards have answered while it goes on");
        for mut stream in [copier, writer] {
            let mut reply = [0; 5];
            assert!(stream.read(&mut reply).is_ok_and(|read| read > 0 && reply[0] != b'-'), "{line}");
        }
        until("all is let go", || client.info("tarn", "tarn_busy_keys") == 0);
    }
    assert_eq!(client.call("SCARD other"), Value::Int(MEMBERS as i64 + 1), "the first copy's writer came after it");
    assert_eq!(client.call("SCARD set"), Value::Int(MEMBERS as i64 + 2));
    assert_eq!(client.call("SCARD copy"), Value::Int(1));
}

/// QUIT behind a command that runs elsewhere closes the connection, like one that comes alone.
#[test]
fn who_quits_behind_a_command_that_runs_elsewhere_is_closed() {
    let server = Server::tarn(&[]);
    for command in [vec!["EVAL", "for i = 1, 300000 do end return 1", "0"], vec!["WAIT", "1", "100"]] {
        for end in [encode(&["QUIT"]), b"*x\r\n".to_vec()] {
            let mut client = server.client();
            client.send_raw(&[encode(&command), end].concat()).unwrap();
            assert!(client.read().unwrap().int().is_some());
            client.read().unwrap();
            assert!(matches!(client.read(), Err(Gone::Closed)), "{command:?}");
        }
    }
}

#[test]
fn a_peer_that_sends_without_end_lets_others_in() {
    let server = Server::tarn(&["--io-threads", "1"]);
    let peer = connect(&server);
    let socket = peer.try_clone().unwrap();
    assert_lets_others_in(&server, peer, &socket);
}
