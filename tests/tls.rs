//! TLS: who is let in, what is spoken, what strangers cost, and that it is changed while connections live.
//!
//! Real clients, redis-cli and Python's ssl, speak with it where they are to be had.

mod common;

use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::flood::assert_lets_others_in;
use common::resp::{Value, encode};
use common::rng::Rng;
use common::server::{Kind, Server, free_port, has_program, has_python};
use common::tls::{Client, Peer, file};
use common::wait::until;
use rustls::client::Resumption;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, HandshakeKind};

/// A server that speaks TLS on a port beside its own.
struct Secure {
    server: Server,
    port: u16,
}

/// Arguments that name certificate, key and authority.
fn files(name: &str) -> Vec<String> {
    let [certificate, key, authority] =
        [format!("{name}.crt"), format!("{name}.key"), "ca.crt".into()].map(|name| file(&name));
    ["--tls-cert-file", &certificate, "--tls-key-file", &key, "--tls-ca-cert-file", &authority]
        .map(str::to_owned)
        .into()
}

impl Secure {
    fn start(certificate: &str, args: &[&str]) -> Secure {
        let port = free_port();
        let mut all = files(certificate);
        all.extend(["--tls-port".to_owned(), port.to_string()]);
        all.extend(args.iter().map(|arg| (*arg).to_owned()));
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        Secure { server: Server::tarn(&all), port }
    }

    fn peer(&self, client: Client<'_>) -> Peer {
        Peer::connect(self.port, client.config()).unwrap_or_else(|e| panic!("{e}"))
    }

    /// What comes of a first command.
    fn ping(&self, client: Client<'_>) -> std::io::Result<Value> {
        self.peer(client).try_call(&["PING"])
    }

    fn info(&self, name: &str) -> u64 {
        self.server.client().info("tarn", name)
    }

    /// Clients with and without TLS are served, and nothing has gone wrong.
    fn assert_sound(&self) {
        assert_eq!(self.server.client().call("PING"), pong());
        assert_eq!(self.ping(Client::known()).unwrap_or_else(|e| panic!("{e}\n{}", self.server.output())), pong());
        assert!(!self.server.output().contains("panicked"), "{}", self.server.output());
    }

    fn raw(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap_or_else(|e| panic!("{e}"));
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap_or_else(|e| panic!("{e}"));
        stream
    }
}

fn pong() -> Value {
    Value::Simple(b"PONG".to_vec())
}

fn ok() -> Value {
    Value::Simple(b"OK".to_vec())
}

/// All that comes until the peer ends it.
fn last_words(mut stream: &TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    let _ = stream.read_to_end(&mut all);
    all
}

#[test]
fn commands_are_answered_as_without_it() {
    for certificate in ["server", "rsa", "v1", "ed25519"] {
        let secure = Secure::start(certificate, &[]);
        // rustls reads no certificates of version 1, as a server shows or as a client is shown one.
        let versions: &[_] = match certificate {
            "v1" => continue_with_openssl(&secure),
            "ed25519" => &[&TLS13],
            _ => &[&TLS12, &TLS13],
        };
        for version in versions {
            let mut peer = secure.peer(Client { versions: &[version], ..Client::known() });
            assert_eq!(peer.call("SET k v"), ok());
            assert_eq!(peer.call("GET k").text(), "v");
            // Many records, and more than the socket takes at once, before any of it is read.
            let value = "x".repeat(5 << 20);
            assert_eq!(peer.try_call(&["SET", "big", &value]).unwrap_or_else(|e| panic!("{e}")), ok());
            let request = [encode(&["GET", "big"]).repeat(3), encode(&["ECHO", "end"])].concat();
            peer.send(&request).unwrap_or_else(|e| panic!("{e}"));
            for _ in 0..3 {
                assert!(peer.read().unwrap_or_else(|e| panic!("{e}")).text() == value);
            }
            assert_eq!(peer.read().unwrap_or_else(|e| panic!("{e}")).text(), "end");
            // New keys in the middle.
            let updated = peer.stream.conn.refresh_traffic_keys();
            assert_eq!(updated.is_ok(), *version == &TLS13);
            assert_eq!(peer.call("GET k").text(), "v");
            let addr = peer.stream.sock.local_addr().map(|addr| addr.to_string()).unwrap_or_default();
            assert!(
                peer.call("CLIENT INFO").text().contains(&format!(" addr={addr} laddr=127.0.0.1:{} ", secure.port))
            );
        }
        assert!(secure.info("tarn_tls_handshakes") > 0);
        until("closed connections are counted no more", || secure.info("tarn_tls_clients") == 0);
    }
}

/// With Debian's redis-cli, which is content with them.
fn continue_with_openssl(secure: &Secure) -> &'static [&'static rustls::SupportedProtocolVersion] {
    if has_program("redis-cli") {
        assert_eq!(redis_cli(secure, &["GET", "none"]).trim(), "");
        assert_eq!(secure.info("tarn_tls_handshakes"), 1);
    }
    &[]
}

fn redis_cli(secure: &Secure, args: &[&str]) -> String {
    let port = secure.port.to_string();
    let output = Command::new("redis-cli")
        .args([
            "-p",
            &port,
            "--tls",
            "--cacert",
            &file("ca.crt"),
            "--cert",
            &file("client.crt"),
            "--key",
            &file("client.key"),
        ])
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|e| panic!("{e}"));
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

#[test]
fn certificates_decide_who_is_let_in() {
    let other = || Client { identity: Some(("other.crt", "other.key")), ..Client::unknown() };
    let expired = || Client { identity: Some(("expired.crt", "client.key")), ..Client::unknown() };
    for (auth, unknown, bad) in [("yes", false, false), ("optional", true, false), ("no", true, true)] {
        let secure = Secure::start("server", &["--tls-auth-clients", auth]);
        for version in [&TLS12, &TLS13] {
            let ping = |client: Client<'_>| secure.ping(Client { versions: &[version], ..client }).is_ok();
            let let_in = [Client::known(), Client::unknown(), other(), expired()].map(ping);
            assert_eq!(let_in, [true, unknown, bad, bad], "{auth} {version:?}");
        }
        let refused = [unknown, bad, bad].iter().filter(|let_in| !**let_in).count() as u64;
        until("all handshakes are counted", || secure.info("tarn_tls_handshakes_failed") == 2 * refused);
        secure.assert_sound();
    }
}

#[test]
fn what_cannot_be_honoured_is_not_ignored() {
    let (known, locked, readme) = (files("server"), file("locked.key"), file("make.sh"));
    let (other, p521, ed25519) = (file("client.key"), file("p521.key"), files("ed25519"));
    let ed25519: Vec<&str> = ed25519.iter().map(String::as_str).collect();
    let dir = tempfile::tempdir().unwrap_or_else(|e| panic!("{e}"));
    // The end is missing; and what is no certificate in the form of one.
    let [torn, fake] = [("torn.crt", ""), ("fake.crt", "aGVsbG8=\n-----END CERTIFICATE-----\n")].map(|(name, rest)| {
        let path = dir.path().join(name).display().to_string();
        std::fs::write(&path, format!("-----BEGIN CERTIFICATE-----\n{rest}")).unwrap_or_else(|e| panic!("{e}"));
        path
    });
    let all: Vec<&str> = known.iter().map(String::as_str).collect();
    let none = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tls/none");
    for (args, why) in [
        (&all[2..], "(tls-cert-file): No tls-cert-file configured!"),
        (&[all[0], all[1]], "(tls-key-file): No tls-key-file configured!"),
        (&all[..4], "Either tls-ca-cert-file or tls-ca-cert-dir must be specified when"),
        (
            &[&all[..], &["--tls-key-file", &locked]].concat(),
            &format!("(tls-key-file): {locked}: there is no private key in it that could be read without a password"),
        ),
        (
            &[&all[..], &["--tls-key-file", &other]].concat(),
            &format!("(tls-key-file): {other}: is not the key of tls-cert-file"),
        ),
        (
            &[&all[..], &["--tls-key-file", &p521]].concat(),
            &format!("(tls-key-file): {p521}: this kind of private key is not supported: it must be RSA"),
        ),
        (&[&ed25519[..], &["--tls-protocols", "TLSv1.2"]].concat(), "(tls-protocols): an Ed25519 key needs TLSv1.3"),
        (
            &[&all[..], &["--tls-cert-file", &readme]].concat(),
            &format!("(tls-cert-file): {readme}: there is no certificate in it"),
        ),
        (&[&all[..], &["--tls-cert-file", &torn]].concat(), &format!("(tls-cert-file): {torn}: is no PEM file: ")),
        (&[&all[..], &["--tls-ca-cert-file", &fake]].concat(), &format!("(tls-ca-cert-file): {fake}: ")),
        (&[&all[..], &["--tls-ca-cert-file", none]].concat(), "none: No such file or directory"),
        // Also where nobody is asked for a certificate.
        (
            &[&all[..], &["--tls-ca-cert-file", none, "--tls-auth-clients", "no"]].concat(),
            "none: No such file or directory",
        ),
        (
            &[&all[..], &["--tls-ca-cert-file", &readme, "--tls-auth-clients", "no"]].concat(),
            "make.sh: there is no certificate of an authority in it",
        ),
        (&[&all[..4], &["--tls-ca-cert-dir", none]].concat(), "(tls-ca-cert-dir): "),
        (&[&all[..], &["--tls-key-file-pass", "secret"]].concat(), "private keys with a password are not supported"),
        (&[&all[..], &["--tls-dh-params-file", "x"]].concat(), "key exchange is by elliptic curves"),
        (&[&all[..], &["--tls-protocols", "TLSv1.1"]].concat(), "TLSv1 and TLSv1.1 are not supported"),
        (&[&all[..], &["--tls-ciphers", "AES128-SHA"]].concat(), "the cipher 'AES128-SHA' is not supported"),
        (
            &[&all[..], &["--tls-ciphersuites", "TLS_AES_128_CCM_SHA256"]].concat(),
            "is not supported; there are TLS_AES_128_GCM",
        ),
        (&[&all[..], &["--tls-replication", "yes"]].concat(), "replication and cluster mode are not supported yet"),
    ] {
        let port = free_port().to_string();
        let args = [args, &["--tls-port", &port]].concat();
        let Some(mut server) = Server::prepare(Kind::Tarn, &args) else { unreachable!("cargo builds it") };
        server.spawn();
        until("it ends", || server.exited().is_some());
        assert!(
            server.exited().is_some_and(|status| !status.success()) && server.output().contains(why),
            "{why}\n{}",
            server.output()
        );
    }
}

/// An authority's certificates may lie in a directory, among other files, or be linked there, as `openssl rehash` does.
#[test]
fn authorities_of_a_directory() {
    let dir = tempfile::tempdir().unwrap_or_else(|e| panic!("{e}"));
    for name in ["ca.crt", "make.sh"] {
        std::fs::copy(file(name), dir.path().join(name)).unwrap_or_else(|e| panic!("{e}"));
    }
    let linked = std::path::absolute(file("other-ca.crt")).unwrap_or_else(|e| panic!("{e}"));
    std::os::unix::fs::symlink(linked, dir.path().join("0123abcd.0")).unwrap_or_else(|e| panic!("{e}"));
    let secure =
        Secure::start("server", &["--tls-ca-cert-file", "", "--tls-ca-cert-dir", &dir.path().display().to_string()]);
    assert!(secure.ping(Client { identity: Some(("other.crt", "other.key")), ..Client::unknown() }).is_ok());
    assert!(secure.ping(Client::unknown()).is_err());
    secure.assert_sound();
}

/// Who names both a file and a directory means the authorities of both.
#[test]
fn authorities_of_a_file_and_of_a_directory_beside_it() {
    let dir = tempfile::tempdir().unwrap_or_else(|e| panic!("{e}"));
    std::fs::copy(file("other-ca.crt"), dir.path().join("other-ca.crt")).unwrap_or_else(|e| panic!("{e}"));
    let secure = Secure::start("server", &["--tls-ca-cert-dir", &dir.path().display().to_string()]);
    assert!(secure.ping(Client { identity: Some(("other.crt", "other.key")), ..Client::unknown() }).is_ok());
    assert!(secure.ping(Client::unknown()).is_err());
    secure.assert_sound();
}

#[test]
fn protocols_and_ciphers_are_those_that_were_named() {
    let secure =
        Secure::start("rsa", &["--tls-protocols", "TLSv1.3", "--tls-ciphersuites", "TLS_CHACHA20_POLY1305_SHA256"]);
    assert!(secure.ping(Client { versions: &[&TLS12], ..Client::known() }).is_err());
    let cipher = |secure: &Secure, versions: &[&'static _]| {
        let mut peer = secure.peer(Client { versions, ..Client::known() });
        assert_eq!(peer.call("PING"), pong());
        peer.stream.conn.negotiated_cipher_suite().map(|suite| format!("{:?}", suite.suite())).unwrap_or_default()
    };
    assert_eq!(cipher(&secure, &[&TLS13]), "TLS13_CHACHA20_POLY1305_SHA256");
    let names = "ECDHE-RSA-CHACHA20-POLY1305:ECDHE-RSA-AES256-GCM-SHA384";
    let secure = Secure::start("rsa", &["--tls-ciphers", names, "--tls-prefer-server-ciphers", "yes"]);
    assert_eq!(cipher(&secure, &[&TLS12]), "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256");
    let mut client = secure.server.client();
    assert_eq!(client.call("CONFIG SET tls-ciphers ECDHE-RSA-AES256-GCM-SHA384:!MEDIUM tls-protocols TLSv1.2"), ok());
    assert_eq!(cipher(&secure, &[&TLS12, &TLS13]), "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384");
}

#[test]
fn it_is_changed_while_connections_live() {
    let dir = tempfile::tempdir().unwrap_or_else(|e| panic!("{e}"));
    let at = |name: &str| dir.path().join(name).display().to_string();
    let copy = |from: &str, to: &str| _ = std::fs::copy(file(from), at(to)).unwrap_or_else(|e| panic!("{e}"));
    let put =
        |name: &str| ["crt", "key"].iter().for_each(|kind| copy(&format!("{name}.{kind}"), &format!("now.{kind}")));
    put("server");
    let (certificate, key) = (at("now.crt"), at("now.key"));
    let secure = Secure::start("server", &["--tls-cert-file", &certificate, "--tls-key-file", &key]);
    let shown = |peer: &Peer| peer.stream.conn.peer_certificates().map(|chain| chain[0].to_vec());
    let mut client = secure.server.client();
    let memory = Client { resumption: Resumption::in_memory_sessions(8), ..Client::known() }.config();
    let connect = || Peer::connect(secure.port, memory.clone()).unwrap_or_else(|e| panic!("{e}"));
    let (mut old, mut again) = (connect(), connect());
    assert_eq!(old.call("PING"), pong());
    assert_eq!(again.call("PING"), pong());

    // Other files under the same names.
    put("rsa");
    assert_eq!(connect().call("PING"), pong());
    assert_eq!(client.call(&format!("CONFIG SET tls-cert-file {certificate} tls-key-file {key}")), ok());
    let mut new = connect();
    assert_eq!(new.call("PING"), pong());
    assert_eq!(new.stream.conn.handshake_kind(), Some(HandshakeKind::Full), "a session of before");
    assert_ne!(shown(&new), shown(&old));

    // What cannot be used changes nothing, and says why.
    copy("client.key", "now.key");
    let refusal = client.call(&format!("CONFIG SET tls-key-file {key}")).text();
    let head =
        "ERR CONFIG SET failed (possibly related to argument 'tls-key-file') - Unable to update TLS configuration. ";
    assert!(refusal.starts_with(head) && refusal.ends_with("now.key: is not the key of tls-cert-file"), "{refusal}");
    // Named is the directive that was set, whichever does not fit it.
    let refusal = client.call(&format!("CONFIG SET tls-cert-file {}", file("server.crt"))).text();
    assert!(refusal.contains("related to argument 'tls-cert-file') - Unable to update TLS"), "{refusal}");
    assert_eq!(
        client.call("CONFIG SET tls-auth-clients optional tls-protocols SSLv3").text().split(' ').next(),
        Some("ERR")
    );
    copy("rsa.key", "now.key");
    let authority = client.call("CONFIG SET tls-ca-cert-file /none").text();
    assert!(authority.contains("tls-ca-cert-file") && authority.ends_with("No such file or directory"), "{authority}");
    assert_eq!(client.call("CONFIG GET tls-auth-clients").items()[1].text(), "yes");
    // Another authority: who has come under the old one stays.
    assert_eq!(client.call(&format!("CONFIG SET tls-ca-cert-file {}", file("other-ca.crt"))), ok());
    assert!(secure.ping(Client::known()).is_err());
    assert!(connect().try_call(&["PING"]).is_err());
    assert!(secure.ping(Client { identity: Some(("other.crt", "other.key")), ..Client::unknown() }).is_ok());
    for peer in [&mut old, &mut again, &mut new] {
        assert_eq!(peer.call("PING"), pong());
    }
}

#[test]
fn sessions_are_taken_up_again_unless_they_are_not_kept() {
    let resumed = |secure: &Secure, config: &Arc<ClientConfig>| {
        let mut peer = Peer::connect(secure.port, config.clone()).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(peer.call("PING"), pong());
        peer.stream.conn.handshake_kind() == Some(HandshakeKind::Resumed)
    };
    for version in [&TLS12, &TLS13] {
        let memory = || {
            Client { resumption: Resumption::in_memory_sessions(8), versions: &[version], ..Client::known() }.config()
        };
        let secure = Secure::start("server", &[]);
        let config = memory();
        assert_eq!([resumed(&secure, &config), resumed(&secure, &config)], [false, true]);
        assert_eq!(secure.info("tarn_tls_handshakes_resumed"), 1);
        assert_eq!(secure.server.client().call("CONFIG SET tls-session-caching no"), ok());
        let config = memory();
        assert_eq!([resumed(&secure, &config), resumed(&secure, &config)], [false, false]);
    }
}

#[test]
fn who_speaks_otherwise_is_closed() {
    let secure = Secure::start("server", &[]);
    // Commands where TLS is spoken: an alert, and nothing has run.
    for request in [
        &b"SET plain 1\r\n"[..],
        b"*1\r\n$4\r\nPING\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        &[0; 100],
        b"\x16\x03\x01\xff\xff",
    ] {
        let mut stream = secure.raw();
        let _ = stream.write_all(request);
        let _ = stream.shutdown(Shutdown::Write);
        let reply = last_words(&stream);
        assert!(reply.is_empty() || reply.starts_with(&[21, 3]), "{reply:?}");
    }
    assert!(secure.server.client().call("GET plain").is_nil());
    // TLS where commands are spoken: no handshake comes of it.
    let mut peer = Peer::connect(secure.server.port(), Client::known().config()).unwrap_or_else(|e| panic!("{e}"));
    let limit = peer.stream.sock.set_read_timeout(Some(Duration::from_millis(500)));
    assert!(limit.is_ok() && peer.try_call(&["PING"]).is_err());
    secure.assert_sound();
}

#[test]
fn only_tls_and_protected_mode_within_it() {
    let port = free_port();
    let text = port.to_string();
    let mut args = files("server");
    args.extend(["--tls-port", &text, "--port", "0"].map(str::to_owned));
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let Some(mut server) = Server::prepare(Kind::Tarn, &args) else { unreachable!("cargo builds it") };
    server.spawn();
    let connect =
        || Peer::connect(port, Client::known().config()).and_then(|mut peer| peer.try_call(&["INFO", "server"]));
    until("it serves", || connect().is_ok());
    let info = connect().map(|info| info.text()).unwrap_or_default();
    assert!(info.contains(&format!("\r\ntcp_port:{port}\r\n")), "{info}");
    assert!(info.contains(&format!("\r\nlistener0:name=tls,bind=127.0.0.1,port={port}\r\n")), "{info}");
    assert!(TcpStream::connect(("127.0.0.1", server.port())).is_err());
    until("it is told that it is", || server.output().contains("Ready to accept connections tls"));
    // One more than there may be.
    let mut one = Peer::connect(port, Client::known().config()).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(one.call("CONFIG SET maxclients 1"), ok());
    assert!(connect().is_err());
    assert_eq!(one.call("PING"), pong());
    assert!(one.call("INFO stats").text().contains("\r\nrejected_connections:1\r\n"));
}

/// There was one when the handshake began.
#[test]
fn who_finds_no_place_behind_its_handshake_is_told_and_counted() {
    let secure = Secure::start("server", &[]);
    let mut client = secure.server.client();
    until("it is alone", || client.info("clients", "connected_clients") == 1);
    let mut late = secure.peer(Client::known());
    until("it is under way", || client.info("tarn", "tarn_tls_handshakes_under_way") == 1);
    assert_eq!(client.call("CONFIG SET maxclients 1"), ok());
    let told = late.read().unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(told.text(), "ERR max number of clients reached");
    assert!(late.read().is_err(), "it is closed");
    assert_eq!(client.info("stats", "rejected_connections"), 1);
}

/// As the other port does: it begins, moves, and is closed while the server runs.
#[test]
fn the_port_moves_while_connections_live_on() {
    let server = Server::tarn(&[]);
    let mut client = server.client();
    let [first, second] = [free_port(), free_port()];
    let connect = |port| Peer::connect(port, Client::known().config());
    let serves = |port| connect(port).is_ok_and(|mut peer| peer.try_call(&["PING"]).is_ok_and(|reply| reply == pong()));
    let named: Vec<String> = files("server")
        .chunks(2)
        .flat_map(|pair| [pair[0].trim_start_matches("--").to_owned(), pair[1].clone()])
        .collect();
    let refused = client.call(&format!("CONFIG SET tls-port {first}")).text();
    assert!(refused.contains("'tls-port'") && !serves(first), "{refused}");
    assert_eq!(client.call(&format!("CONFIG SET {} tls-port {first}", named.join(" "))), ok());
    assert!(serves(first));
    let mut peer = connect(first).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(peer.call("PING"), pong());
    assert_eq!(client.call(&format!("CONFIG SET tls-port {second}")), ok());
    assert_eq!((serves(first), serves(second)), (false, true));
    // One that is taken, by somebody else or by the other port: all is as it was.
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap_or_else(|e| panic!("{e}"));
    let others = other.local_addr().map(|addr| addr.port()).unwrap_or_default();
    for taken in [others, server.port()] {
        let refused = client.call(&format!("CONFIG SET tls-port {taken} tls-auth-clients no")).text();
        assert!(refused.contains("Unable to listen on this port"), "{refused}");
        assert!(serves(second));
        let stranger = Peer::connect(second, Client::unknown().config()).and_then(|mut peer| peer.try_call(&["PING"]));
        assert!(stranger.is_err(), "who shows no certificate is let in");
    }
    assert_eq!(client.call("CONFIG SET tls-port 0"), ok());
    assert!(!serves(second));
    assert_eq!((peer.call("PING"), client.call("PING")), (pong(), pong()));
}

/// Strangers who connect and go no further: 10,000 of them, a thousand at a time.
#[test]
fn half_open_handshakes_are_few_and_others_are_served() {
    const COUNT: usize = 10_000;
    let secure = Secure::start("server", &[]);
    let hello = client_hello();
    let mut client = secure.server.client();
    assert_eq!(secure.ping(Client::known()).ok(), Some(pong()));
    let before = client.info("memory", "used_memory");
    let mut open = VecDeque::new();
    let mut most = 0;
    for n in 0..COUNT {
        let mut stream = secure.raw();
        // Nothing, a part of a hello, or all of it.
        let part = [0, hello.len() / 2, hello.len()][n % 3];
        let _ = stream.write_all(&hello[..part]);
        open.push_back(stream);
        if open.len() > 1000 {
            open.pop_front();
        }
        if n % 1000 == 999 {
            assert_eq!(client.call("PING"), pong());
            assert_eq!(secure.ping(Client::known()).unwrap_or_else(|e| panic!("after {n}: {e}")), pong());
            let under_way = client.info("tarn", "tarn_tls_handshakes_under_way");
            assert!(under_way <= 256, "{under_way}");
            most = most.max(client.info("memory", "used_memory").saturating_sub(before));
        }
    }
    assert!(most < 256 * (64 << 10), "{most} bytes");
    let counted =
        || ["failed", "given_up"].map(|how| secure.info(&format!("tarn_tls_handshakes_{how}"))).iter().sum::<u64>();
    assert!(counted() as usize >= COUNT - 256);
    drop(open);
    until("all are counted", || counted() as usize == COUNT && secure.info("tarn_tls_handshakes_under_way") == 0);
    secure.assert_sound();
}

/// The first flight of a client.
fn client_hello() -> Vec<u8> {
    let name = rustls::pki_types::ServerName::try_from("localhost").unwrap_or_else(|e| panic!("{e}"));
    let mut client = rustls::ClientConnection::new(Client::known().config(), name).unwrap_or_else(|e| panic!("{e}"));
    let mut hello = Vec::new();
    client.write_tls(&mut hello).unwrap_or_else(|e| panic!("{e}"));
    hello
}

#[test]
fn a_handshake_has_its_time() {
    let secure = Secure::start("server", &["--tls-handshake-timeout", "1"]);
    let hello = client_hello();
    for part in [0, 1, hello.len() / 2, hello.len()] {
        let mut stream = secure.raw();
        let _ = stream.write_all(&hello[..part]);
        // It is the server that ends it, whatever it has said before.
        last_words(&stream);
    }
    until("all are counted", || secure.info("tarn_tls_handshakes_given_up") == 4);
    secure.assert_sound();
}

/// Of the whole handshake, not of each of its parts: who says a little now and then keeps its place no longer.
#[test]
fn a_handshake_that_goes_on_slowly_has_no_more_time() {
    let secure = Secure::start("server", &["--tls-handshake-timeout", "1"]);
    let (mut stream, began) = (secure.raw(), Instant::now());
    for byte in client_hello() {
        if stream.write_all(&[byte]).is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
        assert!(began.elapsed() < Duration::from_secs(15), "it is still heard");
    }
    until("it is given up", || secure.info("tarn_tls_handshakes_given_up") == 1);
    secure.assert_sound();
}

#[test]
fn who_is_cut_off_has_sent_what_came_whole() {
    let secure = Secure::start("server", &[]);
    let mut client = secure.server.client();
    // Without a word, in the middle of a command.
    let mut peer = secure.peer(Client::known());
    assert_eq!(peer.call("SET whole 1"), ok());
    let cut = [encode(&["INCR", "whole"]), b"*2\r\n$4\r\nINCR\r\n$5\r\nwho".to_vec()].concat();
    peer.send(&cut).unwrap_or_else(|e| panic!("{e}"));
    drop(peer);
    until("it has run", || client.call("GET whole").text() == "2");
    // In the middle of a record.
    let mut peer = secure.peer(Client::known());
    assert_eq!(peer.call("PING"), pong());
    peer.stream.conn.writer().write_all(&encode(&["INCR", "whole"])).unwrap_or_else(|e| panic!("{e}"));
    let mut record = Vec::new();
    peer.stream.conn.write_tls(&mut record).unwrap_or_else(|e| panic!("{e}"));
    peer.stream.sock.write_all(&record[..record.len() - 1]).unwrap_or_else(|e| panic!("{e}"));
    drop(peer);
    // With a word: and the server says one, too.
    let mut peer = secure.peer(Client::known());
    assert_eq!(peer.call("QUIT"), ok());
    let mut rest = Vec::new();
    assert_eq!(peer.stream.read_to_end(&mut rest).unwrap_or_else(|e| panic!("{e}")), 0);
    let mut peer = secure.peer(Client::known());
    assert_eq!(peer.call("PING"), pong());
    peer.stream.conn.send_close_notify();
    assert!(peer.send(b"").is_ok() && peer.stream.read_to_end(&mut rest).is_ok());
    until("all are gone", || secure.info("tarn_tls_clients") == 0);
    assert_eq!(client.call("GET whole").text(), "2");
    secure.assert_sound();
}

#[test]
fn bad_records_and_tiny_ones() {
    let secure = Secure::start("server", &[]);
    let mut rng = Rng(3);
    for round in 0..100 {
        let version = [&TLS12, &TLS13][round % 2];
        let mut peer = secure.peer(Client { versions: &[version], ..Client::known() });
        assert_eq!(peer.call("PING"), pong());
        peer.stream.conn.writer().write_all(&encode(&["SET", "bad", "1"])).unwrap_or_else(|e| panic!("{e}"));
        let mut record = Vec::new();
        peer.stream.conn.write_tls(&mut record).unwrap_or_else(|e| panic!("{e}"));
        match round % 3 {
            // Its length. Type and version say nothing that the rest does not.
            0 => record[3 + rng.below(2) as usize] ^= 1 << rng.below(8),
            1 => *record.last_mut().unwrap_or(&mut 0) ^= 1,
            _ => record.iter_mut().for_each(|byte| *byte = rng.next() as u8),
        }
        let _ = peer.stream.sock.write_all(&record);
        let _ = peer.stream.sock.shutdown(Shutdown::Write);
        // An alert or silence, but no reply.
        assert!(peer.read().is_err());
    }
    assert!(secure.server.client().call("GET bad").is_nil());
    // A byte a record, many of them in a segment.
    let mut peer = secure.peer(Client::known());
    assert_eq!(peer.call("PING"), pong());
    let mut records = Vec::new();
    for byte in encode(&["ECHO", "tiny"]).repeat(2000) {
        peer.stream.conn.writer().write_all(&[byte]).unwrap_or_else(|e| panic!("{e}"));
        peer.stream.conn.write_tls(&mut records).unwrap_or_else(|e| panic!("{e}"));
    }
    let mut sock = peer.stream.sock.try_clone().unwrap_or_else(|e| panic!("{e}"));
    let sender = std::thread::spawn(move || sock.write_all(&records));
    for _ in 0..2000 {
        assert_eq!(peer.read().unwrap_or_else(|e| panic!("{e}")).text(), "tiny");
    }
    assert!(sender.join().is_ok_and(|sent| sent.is_ok()));
    secure.assert_sound();
}

#[test]
fn a_peer_that_sends_without_end_lets_others_in() {
    let secure = Secure::start("server", &["--io-threads", "1"]);
    let peer = secure.peer(Client::known());
    let socket = peer.stream.sock.try_clone().unwrap_or_else(|e| panic!("{e}"));
    assert_lets_others_in(&secure.server, peer.stream, &socket);
}

/// Replies that nobody reads wait in the server, within its bounds, and come whole when they are read.
#[test]
fn a_slow_reader_gets_all_of_it() {
    let secure = Secure::start("server", &[]);
    let mut peer = secure.peer(Client::known());
    let value: String = (0..300_000).map(|n| char::from(b'a' + (n % 23) as u8)).collect();
    assert_eq!(peer.try_call(&["SET", "v", &value]).unwrap_or_else(|e| panic!("{e}")), ok());
    let mut other = secure.peer(Client::known());
    peer.send(&encode(&["GET", "v"]).repeat(50)).unwrap_or_else(|e| panic!("{e}"));
    for _ in 0..20 {
        assert_eq!(other.call("PING"), pong());
    }
    for _ in 0..50 {
        assert!(peer.read().unwrap_or_else(|e| panic!("{e}")).text() == value);
        // Small replies in between come in their order.
        peer.send(&encode(&["ECHO", "x"])).unwrap_or_else(|e| panic!("{e}"));
    }
    for _ in 0..50 {
        assert_eq!(peer.read().unwrap_or_else(|e| panic!("{e}")).text(), "x");
    }
    // Messages to who only listens.
    assert_eq!(other.call("SUBSCRIBE news").items()[1].text(), "news");
    for n in 0..100 {
        assert_eq!(peer.call(&format!("PUBLISH news {n}")), Value::Int(1));
        assert_eq!(other.read().unwrap_or_else(|e| panic!("{e}")).items()[2].text(), n.to_string());
    }
    // Who waits for a key and is killed, or leaves.
    assert_eq!(peer.call("CLIENT KILL TYPE pubsub"), Value::Int(1));
    let gone = other.read().map_err(|error| error.kind());
    assert!(
        matches!(gone, Err(ErrorKind::UnexpectedEof | ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset)),
        "{gone:?}"
    );
}

#[test]
fn redis_cli_and_python_speak_with_it() {
    let secure = Secure::start("rsa", &["--requirepass", "secret"]);
    if has_program("redis-cli") {
        let said = redis_cli(&secure, &["-a", "secret", "--no-auth-warning", "SET", "cli", "1"]);
        assert_eq!(said, "OK\n");
        let said = redis_cli(&secure, &["-a", "secret", "--no-auth-warning", "LPUSH", "list", &"x".repeat(100_000)]);
        assert_eq!(said, "1\n");
    }
    if has_python("Python's ssl") {
        let script = r#"
import socket, ssl, sys
port, folder = int(sys.argv[1]), sys.argv[2]
for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
    context = ssl.create_default_context(cafile=folder + "/ca.crt")
    context.load_cert_chain(folder + "/client.crt", folder + "/client.key")
    context.minimum_version = context.maximum_version = version
    session = None
    for again in (False, True):
        raw = socket.create_connection(("127.0.0.1", port), timeout=30)
        with context.wrap_socket(raw, server_hostname="localhost", session=session) as tls:
            tls.sendall(b"AUTH secret\r\nSET py 1\r\nINCR py\r\n")
            reply = b""
            while not reply.endswith(b":2\r\n"):
                reply += tls.recv(4096)
            assert reply == b"+OK\r\n+OK\r\n:2\r\n", reply
            assert tls.session_reused is again, (version, again)
            session = tls.session
            tls.unwrap().close()
"#;
        let run = Command::new("python3").args(["-c", script, &secure.port.to_string(), &file("")]).output();
        let run = run.unwrap_or_else(|e| panic!("{e}"));
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    }
}
