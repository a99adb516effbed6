//! Admission: connections as they come in, and the hand-over of a socket to a network thread. What is listened on belongs to
//! [`super::listeners`]. Who speaks TLS is admitted once its handshake has come to its end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc;

use super::handshake::{self, Handshakes};
use super::listeners::Listener;
use super::secure::{Open, Secure};
use super::worker::{Accepted, StdSocket, Worker};
use crate::handler::Server;
use crate::shard::engine::{cores, spawn};
use crate::util::sys;

/// The network threads, as the listeners see them.
#[derive(Clone)]
pub struct Workers {
    senders: Arc<Vec<mpsc::UnboundedSender<Accepted>>>,
    next: Arc<std::sync::atomic::AtomicUsize>,
}

impl Workers {
    /// Starts this many network threads.
    pub fn start(server: &Arc<Server>, threads: usize) -> Workers {
        // Then none has a core to itself. One that interrupted a client amid its requests, or another thread, would find the first of
        // them, answer it, sleep and be woken for the next; those who go on bring more of them at once.
        let is_crowded = threads > cores();
        let senders = (0..threads)
            .map(|n| {
                let (sender, sockets) = mpsc::unbounded_channel();
                let server = server.clone();
                spawn(format!("net-{n}"), 0, move || {
                    if is_crowded {
                        sys::interrupt_nobody();
                    }
                    if let Err(error) = Worker::run(server, sockets) {
                        tracing::error!(%error, "network thread failed");
                        std::process::exit(1);
                    }
                });
                sender
            })
            .collect();
        Workers { senders: Arc::new(senders), next: Arc::default() }
    }

    fn hand_over(&self, accepted: Accepted) {
        let next = self.next.fetch_add(1, Ordering::Relaxed) % self.senders.len();
        if self.senders[next].send(accepted).is_err() {
            tracing::error!("a network thread is gone");
        }
    }
}

/// Accepts until the task is dropped.
pub async fn accept(server: Arc<Server>, listener: Listener, workers: Workers) {
    loop {
        let accepted = match &listener {
            Listener::Tcp(listener) => match listener.accept().await {
                Ok((socket, peer)) => admit_tcp(&server, socket, peer),
                Err(error) => Err(error),
            },
            Listener::Secure(listener, handshakes) => match listener.accept().await {
                Ok((socket, peer)) => begin_secure(&server, handshakes, socket, peer, &workers),
                Err(error) => Err(error),
            },
            Listener::Unix(listener) => match listener.accept().await {
                Ok((socket, _)) => admit_unix(&server, socket),
                Err(error) => Err(error),
            },
        };
        match accepted {
            Ok(Some(accepted)) => workers.hand_over(accepted),
            Ok(None) => {}
            Err(error) => {
                // Out of descriptors, most likely: give those that are open time to close.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

fn full(server: &Server) -> bool {
    server.clients.lock().len() >= server.config.settings().maxclients
}

/// Counts a connection that is not let in, and tells it why. It closes at once; whether the peer reads that is up to it.
fn refuse(server: &Server, mut socket: impl std::io::Write, why: &[u8]) -> std::io::Result<Option<Accepted>> {
    server.rejected.fetch_add(1, Ordering::Relaxed);
    let _ = socket.write(why);
    Ok(None)
}

const TOO_MANY: &[u8] = b"-ERR max number of clients reached\r\n";
const PROTECTED: &[u8] = b"-DENIED Tarn is running in protected mode because protected mode is enabled and no password is set for the default user. In this mode connections are only accepted from the loopback interface. To connect from elsewhere, set a password (requirepass), or turn protected mode off (CONFIG SET protected-mode no from the loopback interface, or protected-mode no in the configuration file).\r\n";

fn admit_tcp(server: &Server, socket: tokio::net::TcpStream, peer: SocketAddr) -> std::io::Result<Option<Accepted>> {
    let socket = socket.into_std()?;
    if let Some(why) = why_not(server, peer) {
        return refuse(server, socket, why);
    }
    accept_tcp(server, &socket)?;
    let laddr = local_addr(&socket);
    Ok(Some(Accepted { socket: StdSocket::Tcp(socket), addr: peer.to_string(), laddr }))
}

/// Why a peer is not let in.
fn why_not(server: &Server, peer: SocketAddr) -> Option<&'static [u8]> {
    if full(server) {
        return Some(TOO_MANY);
    }
    let is_stranger = !server.acl.asks_password() && !peer.ip().to_canonical().is_loopback();
    (is_stranger && server.config.settings().protected_mode).then_some(PROTECTED)
}

/// Counts a connection that is let in, and has its socket behave as the directives ask.
fn accept_tcp(server: &Server, socket: &std::net::TcpStream) -> std::io::Result<()> {
    server.accepted.fetch_add(1, Ordering::Relaxed);
    socket.set_nodelay(true)?;
    if let Some(every) = server.config.settings().tcp_keepalive {
        keep_alive(socket, every);
    }
    Ok(())
}

fn local_addr(socket: &std::net::TcpStream) -> String {
    socket.local_addr().map(|a| a.to_string()).unwrap_or_default()
}

/// Begins a handshake, at the end of which the peer is admitted. If there is no room for it by now there is no point in one.
fn begin_secure(
    server: &Arc<Server>,
    handshakes: &Arc<parking_lot::Mutex<Handshakes>>,
    socket: tokio::net::TcpStream,
    peer: SocketAddr,
    workers: &Workers,
) -> std::io::Result<Option<Accepted>> {
    if full(server) {
        return refuse(server, std::io::sink(), TOO_MANY);
    }
    socket.set_nodelay(true)?;
    let (server_too, workers) = (server.clone(), workers.clone());
    handshake::begin(handshakes, server, socket, move |socket, session| {
        match admit_secure(&server_too, socket, session, peer) {
            Ok(Some(accepted)) => workers.hand_over(accepted),
            Ok(None) => {}
            Err(error) => tracing::debug!(%error, "a connection is lost after its TLS handshake"),
        }
    });
    Ok(None)
}

fn admit_secure(
    server: &Arc<Server>,
    socket: tokio::net::TcpStream,
    session: rustls::ServerConnection,
    peer: SocketAddr,
) -> std::io::Result<Option<Accepted>> {
    if let Some(why) = why_not(server, peer) {
        let secure = Secure::new(socket, session, Open::new(server.clone()));
        // Both in one go, as little as it is.
        _ = secure.try_write(why);
        server.rejected.fetch_add(1, Ordering::Relaxed);
        return Ok(None);
    }
    let socket = socket.into_std()?;
    accept_tcp(server, &socket)?;
    let laddr = local_addr(&socket);
    Ok(Some(Accepted { socket: StdSocket::Secure(socket, Box::new(session)), addr: peer.to_string(), laddr }))
}

/// Has the kernel ask a silent peer whether it is still there. Where that cannot be had it is let in all the same, as by Redis.
fn keep_alive(socket: &std::net::TcpStream, every: Duration) {
    /// More seconds the kernel refuses, as it does less than one.
    const MOST: Duration = Duration::from_secs(32_767);
    let [time, interval] = [every, every / 3].map(|time| time.clamp(Duration::from_secs(1), MOST));
    let keepalive = socket2::TcpKeepalive::new().with_time(time).with_interval(interval);
    if let Err(error) = socket2::SockRef::from(socket).set_tcp_keepalive(&keepalive) {
        tracing::debug!(%error, "no keepalive for a connection");
    }
}

fn admit_unix(server: &Server, socket: tokio::net::UnixStream) -> std::io::Result<Option<Accepted>> {
    let socket = socket.into_std()?;
    if full(server) {
        return refuse(server, socket, TOO_MANY);
    }
    server.accepted.fetch_add(1, Ordering::Relaxed);
    let path = server.config.settings().unixsocket.clone().unwrap_or_default();
    let addr = format!("{}:0", path.display());
    Ok(Some(Accepted { socket: StdSocket::Unix(socket), addr: addr.clone(), laddr: addr }))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::config::{Config, Source};
    use crate::handler::session::Client;
    use crate::shard::keyspace::walk::tests::engine;

    fn server(dir: &std::path::Path) -> Server {
        Server::new(engine(dir, 1), Config::load(Source::Defaults, &[]).unwrap(), crate::command::table())
    }

    /// Whatever the directives have become since the start.
    #[test]
    fn strangers_are_let_in_where_a_password_is_asked_for_or_nobody_is_protected() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let server = server(dir.path());
        let why = |peer: &str| why_not(&server, peer.parse().unwrap());
        let here = ["127.0.0.1:1", "127.8.9.10:1", "[::1]:1", "[::ffff:127.0.0.1]:1"];
        let elsewhere = ["192.0.2.1:1", "128.0.0.1:1", "[2001:db8::1]:1", "[::ffff:192.0.2.1]:1"];
        assert!(here.iter().all(|peer| why(peer).is_none()));
        assert!(elsewhere.iter().all(|peer| why(peer) == Some(PROTECTED)));
        server.acl.set_default_password(b"secret");
        assert!(elsewhere.iter().all(|peer| why(peer).is_none()));
        server.acl.set_default_password(b"");
        assert!(elsewhere.iter().all(|peer| why(peer) == Some(PROTECTED)));
        server.config.set(&[("protected-mode", "no")]).unwrap();
        assert!(elsewhere.iter().all(|peer| why(peer).is_none()));
        server.config.set(&[("protected-mode", "yes"), ("maxclients", "2")]).unwrap();
        for id in [1, 2] {
            assert_eq!(why(here[0]), None, "before {id}");
            server.clients.lock().insert(id, Arc::new(Client { id, ..Client::default() }));
        }
        assert!(here.iter().chain(&elsewhere).all(|peer| why(peer) == Some(TOO_MANY)));
    }

    #[test]
    fn the_unix_socket_lets_in_as_many_as_there_may_be() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let server = server(dir.path());
        server.config.set(&[("maxclients", "1")]).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _inside = runtime.enter();
        let is_let_in = || admit_unix(&server, tokio::net::UnixStream::pair().unwrap().0).unwrap().is_some();
        assert!(is_let_in());
        server.clients.lock().insert(1, Arc::new(Client { id: 1, ..Client::default() }));
        assert!(!is_let_in());
        assert_eq!([&server.accepted, &server.rejected].map(|count| count.load(Ordering::Relaxed)), [1, 1]);
    }

    #[test]
    fn sockets_behave_as_the_directives_ask() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let server = server(dir.path());
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        for (n, (seconds, asked)) in
            [("300", Some([300, 100])), ("2", Some([2, 1])), ("0", None)].into_iter().enumerate()
        {
            server.config.set(&[("tcp-keepalive", seconds)]).unwrap();
            let _peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (socket, _) = listener.accept().unwrap();
            accept_tcp(&server, &socket).unwrap();
            let told = socket2::SockRef::from(&socket);
            assert_eq!((told.keepalive().unwrap(), told.tcp_nodelay().unwrap()), (asked.is_some(), true));
            if let Some(asked) = asked {
                let times = [told.tcp_keepalive_time().unwrap(), told.tcp_keepalive_interval().unwrap()];
                assert_eq!(times, asked.map(Duration::from_secs));
            }
            assert_eq!(server.accepted.load(Ordering::Relaxed), n as u64 + 1);
        }
    }
}
