//! Directives as an operator uses them: listeners that move, files written for Redis, the daemon.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::net::TcpListener;

use common::resp::Client;
use common::server::{Kind, Server, free_port, notice};
use common::wait::until;

/// Each server that is here, Redis as the proof.
fn each(args: &[&str], check: impl Fn(Kind, Server)) {
    for kind in [Kind::Redis82, Kind::Tarn] {
        match Server::start(kind, args) {
            Some(server) => check(kind, server),
            None => notice(&format!("skipped: no {} on this machine", kind.title())),
        }
    }
}

fn ping(port: u16) -> bool {
    Client::connect(port).is_ok_and(|mut client| client.try_call(&["PING"]).is_ok_and(|pong| pong.text() == "PONG"))
}

fn refused(name: &str, why: &str) -> String {
    format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {why}")
}

#[test]
fn the_port_moves_while_connections_live_on() {
    each(&[], |kind, server| {
        let mut client = server.client();
        let (old, new) = (server.port(), free_port());
        assert_eq!(client.call(&format!("CONFIG SET port {new}")).text(), "OK", "{kind:?}");
        assert!(ping(new) && !ping(old), "{kind:?}");
        assert_eq!(client.call("CONFIG GET port").items()[1].text(), new.to_string());
        assert!(client.call("INFO server").text().contains(&format!("tcp_port:{new}\r\n")));

        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let taken_port = taken.local_addr().unwrap().port();
        let said = client.call(&format!("CONFIG SET port {taken_port}"));
        assert_eq!(said.text(), refused("port", "Unable to listen on this port. Check server logs."), "{kind:?}");
        assert!(ping(new), "{kind:?}: as before");
        assert_eq!(client.call("CONFIG GET port").items()[1].text(), new.to_string());

        assert_eq!(client.call("CONFIG SET port 0").text(), "OK");
        assert!(!ping(new), "{kind:?}");
        assert_eq!(client.call(&format!("CONFIG SET port {old}")).text(), "OK");
        assert!(ping(old), "{kind:?}");
    });
}

#[test]
fn addresses_come_and_go() {
    each(&["--protected-mode", "no"], |kind, server| {
        let mut client = server.client();
        let loopbacks =
            |port| ["127.0.0.1", "127.0.0.2"].map(|host| std::net::TcpStream::connect((host, port)).is_ok());
        let port = server.port();
        assert_eq!(loopbacks(port), [true, false], "{kind:?}");
        // What is already listened on stands in the way of every address, and goes first.
        for (bind, reached) in [
            ("*", [true, true]),
            ("127.0.0.2", [false, true]),
            ("127.0.0.1 127.0.0.2", [true, true]),
            ("127.0.0.1 -192.0.2.1", [true, false]),
            ("localhost", [true, false]),
        ] {
            assert_eq!(client.try_call(&["CONFIG", "SET", "bind", bind]).unwrap().text(), "OK", "{kind:?} {bind}");
            assert_eq!(loopbacks(port), reached, "{kind:?} {bind}");
        }
        for bind in ["192.0.2.1", "127.0.0.2 nowhere.invalid"] {
            let said = client.try_call(&["CONFIG", "SET", "bind", bind]).unwrap();
            assert_eq!(said.text(), refused("bind", "Failed to bind to specified addresses."), "{kind:?} {bind}");
            assert_eq!(loopbacks(port), [true, false], "{kind:?}: as before {bind}");
        }
        let other = free_port();
        let both = ["CONFIG", "SET", "bind", "127.0.0.2", "port", &other.to_string()];
        assert_eq!(client.try_call(&both).unwrap().text(), "OK");
        assert_eq!((loopbacks(port), loopbacks(other)), ([false, false], [false, true]), "{kind:?}");
    });
}

/// Ten clients that connect all the time, while the port goes to and fro: whoever has got in is served.
#[test]
fn who_connects_meanwhile_is_served_or_refused() {
    let server = Server::tarn(&[]);
    let (mut client, ports) = (server.client(), [server.port(), free_port()]);
    let end = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for n in 0..10 {
            let (end, ports) = (&end, &ports);
            scope.spawn(move || {
                while !end.load(std::sync::atomic::Ordering::Relaxed) {
                    if let Ok(mut client) = Client::connect(ports[n % 2]) {
                        let _ = client.try_call(&["PING"]);
                    }
                }
            });
        }
        for round in 0..50 {
            let port = ports[(round + 1) % 2];
            assert_eq!(client.call(&format!("CONFIG SET port {port}")).text(), "OK");
            assert!(ping(port));
        }
        end.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    until("all have left", || client.call("CLIENT LIST").text().lines().count() == 1);
}
