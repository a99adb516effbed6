//! What the server listens on: TCP addresses and a Unix socket, opened at the start and anew when CONFIG SET changes
//! `bind`, `port` or `tls-port`. Connections that are there do not notice.
//!
//! A listener belongs to a task of the main runtime. Who changes what is listened on is a network thread: it has the tasks
//! of addresses that are no longer wanted end, waits for that, as these may stand in the way of the new ones, and binds. If one
//! cannot be bound all is as it was before.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::Duration;

use parking_lot::Mutex;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::handshake::Handshakes;
use super::listen::{self, Workers};
use crate::config::Settings;
use crate::config::settings::BindHost;
use crate::handler::Server;

/// The main runtime closes a listener within moments, if it runs at all.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// A bound listener.
pub enum Listener {
    /// TCP.
    Tcp(tokio::net::TcpListener),
    /// TCP where TLS is spoken.
    Secure(tokio::net::TcpListener, Arc<Mutex<Handshakes>>),
    /// Unix domain; the path is removed at the end.
    Unix(tokio::net::UnixListener),
}

/// What is listened on. `bind` may name a place that is not there, if an address so marked; one such is left out.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    Tcp { address: SocketAddr, optional: bool, secure: bool },
    Unix(PathBuf),
}

/// A place that is listened on by a task.
struct Open {
    place: Place,
    stop: oneshot::Sender<()>,
    stopped: mpsc::Receiver<()>,
}

/// All that is listened on.
pub struct Listeners {
    workers: Workers,
    runtime: Handle,
    handshakes: Arc<Mutex<Handshakes>>,
    open: Mutex<Vec<Open>>,
}

impl Listeners {
    /// Listens as the settings say. Connections go to `workers` from now on.
    ///
    /// # Errors
    /// A place that cannot be listened on, or TLS that cannot be spoken as the directives ask; in words for the operator.
    pub fn start(server: &Arc<Server>, workers: Workers, runtime: Handle) -> io::Result<Arc<Listeners>> {
        let settings = server.config.settings();
        if settings.tls.port != 0 {
            let agreement = crate::tls::agreement::make(&settings.tls).map_err(|(directive, why)| {
                io::Error::other(format!("Failed to configure TLS ({directive}): {why}"))
            })?;
            server.tls.agree(agreement);
        }
        let (handshakes, open) = Default::default();
        let listeners = Arc::new(Listeners { workers, runtime, handshakes, open });
        listeners.open_missing(server, &places(&settings)?, &settings)?;
        server.port.store(u32::from(settings.port), Ordering::Relaxed);
        // Neither is kept by it: the workers end when nobody can bring them connections any more.
        let (again, weak) = (Arc::downgrade(&listeners), Arc::downgrade(server));
        _ = server.listen_anew.set(Box::new(move |settings| match (again.upgrade(), weak.upgrade()) {
            (Some(again), Some(server)) => again.change(&server, settings),
            _ => Ok(()),
        }));
        Ok(listeners)
    }

    /// Whether nothing is listened on.
    pub fn is_empty(&self) -> bool {
        self.open.lock().is_empty()
    }

    /// Ends all of it.
    pub fn close(&self) {
        self.open.lock().clear();
    }

    /// Listens as these settings say from now on.
    fn change(&self, server: &Arc<Server>, settings: &Settings) -> io::Result<()> {
        let wanted = places(settings)?;
        let before: Vec<Place> = self.open.lock().iter().map(|open| open.place.clone()).collect();
        self.close_all_but(&wanted)?;
        let outcome = self.open_missing(server, &wanted, settings);
        match &outcome {
            Ok(()) => server.port.store(u32::from(settings.port), Ordering::Relaxed),
            Err(_) => {
                self.close_all_but(&before)?;
                self.open_missing(server, &before, settings)?;
            }
        }
        outcome
    }

    fn close_all_but(&self, wanted: &[Place]) -> io::Result<()> {
        let mut open = self.open.lock();
        let (stays, goes): (Vec<_>, Vec<_>) = open.drain(..).partition(|open| wanted.contains(&open.place));
        *open = stays;
        let stopped: Vec<_> = goes
            .into_iter()
            .map(|open| {
                drop(open.stop);
                open.stopped
            })
            .collect();
        for stopped in stopped {
            // It says nothing, and only goes when the listener has gone.
            if stopped.recv_timeout(CLOSE_LIMIT) == Err(mpsc::RecvTimeoutError::Timeout) {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "a listener does not close"));
            }
        }
        Ok(())
    }

    fn open_missing(&self, server: &Arc<Server>, wanted: &[Place], settings: &Settings) -> io::Result<()> {
        let mut open = self.open.lock();
        for place in wanted {
            if open.iter().any(|open| open.place == *place) {
                continue;
            }
            // Registers the socket with the runtime whose task it will belong to.
            let _inside = self.runtime.enter();
            let listener = match place {
                Place::Tcp { address, optional, secure } => match bind_tcp(*address, settings.tcp_backlog) {
                    Ok(listener) if *secure => Listener::Secure(listener, self.handshakes.clone()),
                    Ok(listener) => Listener::Tcp(listener),
                    Err(error) if is_missing(&error, *optional) => {
                        tracing::debug!(%error, %address, "address left out");
                        continue;
                    }
                    Err(error) => {
                        return Err(io::Error::new(error.kind(), format!("could not bind {address}: {error}")));
                    }
                },
                Place::Unix(path) => {
                    let bound = bind_unix(path, settings.unixsocketperm, settings.tcp_backlog);
                    Listener::Unix(bound.map_err(|error| {
                        io::Error::new(error.kind(), format!("could not bind {}: {error}", path.display()))
                    })?)
                }
            };
            let (stop, stops) = oneshot::channel::<()>();
            let (end, stopped) = mpsc::channel();
            let (server, workers) = (server.clone(), self.workers.clone());
            self.runtime.spawn(async move {
                tokio::select! {
                    () = listen::accept(server, listener, workers) => {}
                    _ = stops => {}
                }
                drop(end);
            });
            open.push(Open { place: place.clone(), stop, stopped });
        }
        Ok(())
    }
}

/// The places that these settings name.
fn places(settings: &Settings) -> io::Result<Vec<Place>> {
    let mut places: Vec<Place> = Vec::new();
    for (port, secure) in [(settings.port, false), (settings.tls.port, true)] {
        for bind in settings.bind.iter().filter(|_| port != 0) {
            let ip = match &bind.host {
                BindHost::AnyV4 => Ipv4Addr::UNSPECIFIED.into(),
                BindHost::AnyV6 => Ipv6Addr::UNSPECIFIED.into(),
                BindHost::Named(name) => resolve(name)?,
            };
            let address = SocketAddr::new(ip, port);
            // An address that is named twice is one; that TLS is to be spoken where it is not cannot be had.
            let named = |place: &Place| matches!(place, Place::Tcp { address: known, secure: as_known, .. } if (*known, *as_known) == (address, secure));
            if !places.iter().any(named) {
                places.push(Place::Tcp { address, optional: bind.optional, secure });
            }
        }
    }
    places.extend(settings.unixsocket.clone().map(Place::Unix));
    Ok(places)
}

fn resolve(name: &str) -> io::Result<IpAddr> {
    if let Ok(ip) = name.parse() {
        return Ok(ip);
    }
    let found = (name, 0).to_socket_addrs().map(|mut found| found.next());
    match found {
        Ok(Some(address)) => Ok(address.ip()),
        Ok(None) => Err(io::Error::other(format!("could not bind {name}: no such host"))),
        Err(error) => Err(io::Error::new(error.kind(), format!("could not bind {name}: {error}"))),
    }
}

/// As Redis sees it: an address of a family that the machine does not speak is left out, and one that it does not have if it
/// is optional. One that is taken never is.
fn is_missing(error: &io::Error, optional: bool) -> bool {
    match error.raw_os_error() {
        Some(libc::EADDRNOTAVAIL) => optional,
        Some(libc::EAFNOSUPPORT | libc::EPFNOSUPPORT | libc::EPROTONOSUPPORT | libc::ESOCKTNOSUPPORT) => true,
        _ => false,
    }
}

fn bind_tcp(address: SocketAddr, backlog: i32) -> io::Result<tokio::net::TcpListener> {
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

fn bind_unix(path: &Path, mode: Option<u32>, backlog: i32) -> io::Result<tokio::net::UnixListener> {
    let socket = unix_socket(path, mode)?;
    socket.listen(backlog)?;
    socket.set_nonblocking(true)?;
    tokio::net::UnixListener::from_std(socket.into())
}

/// A socket that has its permissions, and listens not yet: before that nobody can connect, whoever might.
fn unix_socket(path: &Path, mode: Option<u32>) -> io::Result<Socket> {
    // What an earlier server has left.
    let _ = std::fs::remove_file(path);
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    if let Some(mode) = mode {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    }
    Ok(socket)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn nobody_connects_before_the_permissions_are_set() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let path = dir.path().join("socket");
        let socket = unix_socket(&path, Some(0o600)).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(UnixStream::connect(&path).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        socket.listen(1).unwrap();
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn only_what_the_machine_lacks_is_left_out() {
        let error = io::Error::from_raw_os_error;
        assert!(is_missing(&error(libc::EADDRNOTAVAIL), true) && !is_missing(&error(libc::EADDRNOTAVAIL), false));
        assert!(is_missing(&error(libc::EAFNOSUPPORT), false));
        assert!(!is_missing(&error(libc::EADDRINUSE), true));
    }
}
