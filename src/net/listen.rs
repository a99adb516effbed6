//! Listeners: TCP, with TLS or without, and Unix sockets, admission, and the hand-over of a socket to the least loaded network
//! thread. Who speaks TLS is admitted once its handshake has come to its end.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc;

use super::handshake::{self, Handshakes};
use super::secure::{Open, Secure};
use super::worker::{Accepted, StdSocket, Worker};
use crate::config::Settings;
use crate::config::settings::BindHost;
use crate::handler::Server;

/// The network threads, as the listeners see them.
#[derive(Clone)]
pub struct Workers {
    senders: Arc<Vec<mpsc::UnboundedSender<Accepted>>>,
    next: Arc<std::sync::atomic::AtomicUsize>,
}

impl Workers {
    /// Starts this many network threads.
    pub fn start(server: &Arc<Server>, threads: usize) -> Workers {
        let senders = (0..threads)
            .map(|n| {
                let (sender, sockets) = mpsc::unbounded_channel();
                let server = server.clone();
                crate::shard::engine::spawn(format!("net-{n}"), 0, move || {
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

/// A bound listener.
pub enum Listener {
    /// TCP.
    Tcp(tokio::net::TcpListener),
    /// TCP where TLS is spoken.
    Secure(tokio::net::TcpListener, Arc<parking_lot::Mutex<Handshakes>>),
    /// Unix domain; the path is removed at the end.
    Unix(tokio::net::UnixListener),
}

/// Binds all addresses of the configuration. An address with a leading `-` may be unavailable.
///
/// # Errors
/// An address that cannot be had, or TLS that cannot be spoken as the directives ask.
pub fn bind(server: &Server) -> std::io::Result<Vec<Listener>> {
    let settings = server.config.settings();
    let mut listeners = Vec::new();
    if settings.port != 0 {
        listeners.extend(bind_all(&settings, settings.port)?.into_iter().map(Listener::Tcp));
        server.port.store(u32::from(settings.port), Ordering::Relaxed);
    }
    if settings.tls.port != 0 {
        let agreement = crate::tls::agreement::make(&settings.tls).map_err(|(directive, why)| {
            std::io::Error::other(format!("Failed to configure TLS ({directive}): {why}"))
        })?;
        server.tls.agree(agreement);
        let handshakes = Arc::<parking_lot::Mutex<Handshakes>>::default();
        let secure = bind_all(&settings, settings.tls.port)?.into_iter();
        listeners.extend(secure.map(|listener| Listener::Secure(listener, handshakes.clone())));
    }
    if let Some(path) = &settings.unixsocket {
        listeners.push(Listener::Unix(bind_unix(path, settings.unixsocketperm, settings.tcp_backlog)?));
    }
    Ok(listeners)
}

/// Binds a port at all addresses.
fn bind_all(settings: &Settings, port: u16) -> std::io::Result<Vec<tokio::net::TcpListener>> {
    let mut listeners = Vec::new();
    for bind in &settings.bind {
        let (name, optional) = match &bind.host {
            BindHost::AnyV4 => ("0.0.0.0", bind.optional),
            BindHost::AnyV6 => ("::", bind.optional),
            BindHost::Named(name) => (&name[..], bind.optional),
        };
        match bind_tcp(name, port, settings.tcp_backlog) {
            Ok(listener) => listeners.push(listener),
            Err(error) if optional => tracing::debug!(%error, name, "optional address left out"),
            Err(error) => {
                return Err(std::io::Error::new(error.kind(), format!("could not bind {name}:{port}: {error}")));
            }
        }
    }
    Ok(listeners)
}

fn bind_tcp(name: &str, port: u16, backlog: i32) -> std::io::Result<tokio::net::TcpListener> {
    use socket2::{Domain, Protocol, Socket, Type};
    let ip: std::net::IpAddr = match name.parse() {
        Ok(ip) => ip,
        Err(_) => {
            use std::net::ToSocketAddrs as _;
            let found = (name, port).to_socket_addrs()?.next();
            found.ok_or_else(|| std::io::Error::other("no such host"))?.ip()
        }
    };
    let address = SocketAddr::new(ip, port);
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(backlog)?;
    socket.set_nonblocking(true)?;
    tokio::net::TcpListener::from_std(socket.into())
}

fn bind_unix(path: &Path, mode: Option<u32>, backlog: i32) -> std::io::Result<tokio::net::UnixListener> {
    let socket = unix_socket(path, mode)?;
    socket.listen(backlog)?;
    socket.set_nonblocking(true)?;
    tokio::net::UnixListener::from_std(socket.into())
}

/// A socket that has its permissions, and listens not yet: before that nobody can connect, whoever might.
fn unix_socket(path: &Path, mode: Option<u32>) -> std::io::Result<socket2::Socket> {
    use socket2::{Domain, SockAddr, Socket, Type};
    // What an earlier server has left.
    let _ = std::fs::remove_file(path);
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    if let Some(mode) = mode {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    }
    Ok(socket)
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
    let is_stranger = !server.password_required.load(Ordering::Relaxed) && !peer.ip().to_canonical().is_loopback();
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
    use std::os::unix::net::UnixStream;

    #[test]
    fn nobody_connects_before_the_permissions_are_set() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let socket = unix_socket(&path, Some(0o600)).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(UnixStream::connect(&path).unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
        socket.listen(1).unwrap();
        UnixStream::connect(&path).unwrap();
    }
}
