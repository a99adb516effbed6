//! A peer that sends without end.

use std::io::Write;
use std::net::{Shutdown, TcpStream};

use super::resp::encode;
use super::server::Server;
use super::wait::until;

const ANSWERS: usize = 200;
/// Some reads of a socket.
const FEW_BYTES: u64 = 1 << 20;

/// Asserts that a peer which sends without end, on this socket, is not read again before the sockets of others were looked at: between
/// two answers to another client few of its bytes are worked on. What that one itself takes over its next request counts as
/// well: most of the answers come sooner. The server is to have one network thread.
pub(crate) fn assert_lets_others_in(server: &Server, mut peer: impl Write + Send + 'static, socket: &TcpStream) {
    let quiet = encode(&["CLIENT", "REPLY", "OFF"]);
    let sends = encode(&["PING".to_owned(), "x".repeat(2000)]).repeat(1000);
    peer.write_all(&quiet).unwrap();
    let sender = std::thread::spawn(move || while peer.write_all(&sends).is_ok() {});
    let mut client = server.client();
    let mut read = || client.info("stats", "total_net_input_bytes");
    until("it sends", || read() > FEW_BYTES);
    let (mut between, mut before) = (Vec::new(), read());
    for _ in 0..ANSWERS {
        let now = read();
        between.push(now - before);
        before = now;
    }
    socket.shutdown(Shutdown::Both).unwrap();
    sender.join().unwrap();
    between.sort_unstable();
    let quarter = between[ANSWERS / 4];
    assert!(quarter < FEW_BYTES, "{quarter} bytes of it are worked on between two answers: {between:?}");
}
