//! Clean stops and starts: what was there is there again, with its times, in its database.

mod common;

use std::io::Read;
use std::process::{Command, Stdio};

use common::resp::{Gone, Value};
use common::server::{Kind, Server, free_port};
use common::wait::until;

/// Values of several sizes, times, databases; enough keys that they are not all in one place.
fn fill(server: &Server) {
    let mut client = server.client();
    for i in 0..500 {
        client.call(&format!("SET key:{i} value:{i}"));
    }
    client.call("EXPIREAT key:1 4102444800");
    client.call("DEL key:2");
    client.call("INCRBY number 41");
    client.call("SETRANGE long 300000 end");
    client.call("SETBIT bits 1000000 1");
    client.call("SELECT 3");
    client.call("SET key:1 three");
    client.call("SELECT 4");
    client.call("SET gone x");
    client.call("FLUSHDB");
}

fn check(server: &Server) {
    let mut client = server.client();
    assert_eq!(client.call("DBSIZE"), Value::Int(502));
    for i in (0..500).filter(|i| *i != 2) {
        assert_eq!(client.call(&format!("GET key:{i}")).text(), format!("value:{i}"));
    }
    assert_eq!(client.call("EXPIRETIME key:1"), Value::Int(4_102_444_800));
    assert_eq!(client.call("TTL key:3"), Value::Int(-1));
    assert!(client.call("GET key:2").is_nil());
    assert_eq!(client.call("INCR number"), Value::Int(42));
    client.call("DECR number");
    assert_eq!(client.call("STRLEN long"), Value::Int(300_003));
    assert_eq!(client.call("GETRANGE long 299999 -1").text(), "\0end");
    assert_eq!(client.call("BITPOS bits 1"), Value::Int(1_000_000));
    client.call("SELECT 3");
    assert_eq!(client.call("DBSIZE"), Value::Int(1));
    assert_eq!(client.call("GET key:1").text(), "three");
    client.call("SELECT 4");
    assert_eq!(client.call("DBSIZE"), Value::Int(0));
}

#[test]
fn data_survives_sigterm() {
    let mut server = Server::tarn(&[]);
    fill(&server);
    for _ in 0..2 {
        check(&server);
        assert_eq!(server.stop(), Some(0), "exit code after SIGTERM");
        server.spawn();
        server.wait_ready();
    }
    check(&server);
}

#[test]
fn data_survives_shutdown() {
    let mut server = Server::tarn(&[]);
    fill(&server);
    let reply = server.client().try_call(&["SHUTDOWN"]);
    assert!(matches!(reply, Err(Gone::Closed)), "SHUTDOWN closes the connection and replies nothing: {reply:?}");
    server.restart();
    check(&server);
}

#[test]
fn data_survives_a_kill() {
    let mut server = Server::tarn(&[]);
    fill(&server);
    server.restart_after_kill();
    check(&server);
}

/// Two long strings under one key in one log record: the replay must not find parts of the first in the second.
#[test]
fn a_long_string_replaced_within_one_commit_is_gone() {
    let mut server = Server::tarn(&[]);
    let (first, second) = ("a".repeat(300_000), "b".repeat(70_000));
    let reply = server.client().try_call(&["MSET", "long", &first, "long", &second]);
    assert!(reply.is_ok(), "{reply:?}");
    server.restart_after_kill();
    let mut client = server.client();
    assert_eq!(client.call("SETRANGE long 290000 end"), Value::Int(290_003));
    assert_eq!(client.call("GETRANGE long 69999 70001").text(), "b\0\0");
    assert_eq!(client.call("BITPOS long 1 70000"), Value::Int(290_000 * 8 + 1));
}

#[test]
fn a_second_server_on_the_same_data_is_refused() {
    let server = Server::tarn(&[]);
    fill(&server);
    let binary = Kind::Tarn.binary().unwrap_or_else(|| panic!("cargo builds tarn before its tests"));
    let port = free_port().to_string();
    let mut second = Command::new(binary)
        .args(["--port", &port, "--bind", "127.0.0.1", "--dir"])
        .arg(server.dir().join("data"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|e| panic!("a second server: {e}"));
    let mut ended = None;
    until("the second server ends", || {
        ended = second.try_wait().ok().flatten();
        ended.is_some()
    });
    let status = ended.unwrap_or_default();
    let mut said = String::new();
    second.stdout.take().map(|mut pipe| pipe.read_to_string(&mut said));
    assert!(!status.success(), "the second server ended well");
    assert!(said.contains("is in use by another server (pid "), "the second server says only {said:?}");
    check(&server);
}
