//! TLS handshakes: on the main thread, so that they keep no connection waiting that is served already.
//!
//! ```text
//! accepted → under way → handed over to a network thread
//!               │ fails, takes longer than tls-handshake-timeout, or is the oldest of more than tls-max-handshakes
//!               └→ closed
//! ```
//!
//! A stranger who only connects takes a place until another stranger wants it: whoever goes on with its handshake at once is through
//! long before. None of them is a client before that, in CLIENT LIST or `maxclients`.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use rustls::{HandshakeKind, ServerConnection};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

use super::secure::{read_records, write_records};
use crate::handler::Server;

/// Those under way, by the order in which they came.
#[derive(Default)]
pub struct Handshakes {
    next: u64,
    under_way: BTreeMap<u64, AbortHandle>,
}

/// One that is under way, until it is dropped.
struct UnderWay {
    all: Arc<Mutex<Handshakes>>,
    server: Arc<Server>,
    number: u64,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut all = self.all.lock();
        all.under_way.remove(&self.number);
        self.server.tls.shaking.store(all.under_way.len() as u64, Ordering::Relaxed);
    }
}

/// Begins a handshake; `then` gets the socket and what has been agreed.
pub(super) fn begin(
    all: &Arc<Mutex<Handshakes>>,
    server: &Arc<Server>,
    stream: TcpStream,
    then: impl FnOnce(TcpStream, ServerConnection) + Send + 'static,
) {
    let Some(agreement) = server.tls.agreement() else { return };
    let session = match ServerConnection::new(agreement) {
        Ok(session) => session,
        Err(error) => return tracing::warn!(%error, "cannot begin a TLS handshake"),
    };
    let settings = server.config.settings();
    let mut handshakes = all.lock();
    let number = handshakes.next;
    handshakes.next += 1;
    let under_way = UnderWay { all: all.clone(), server: server.clone(), number };
    let limit = settings.tls.handshake_timeout;
    let task = tokio::spawn(async move {
        let tls = &under_way.server.tls;
        let peer = stream.peer_addr();
        match tokio::time::timeout(limit, shake(stream, session)).await {
            Ok(Ok((stream, session))) => {
                tls.shaken.fetch_add(1, Ordering::Relaxed);
                if session.handshake_kind() == Some(HandshakeKind::Resumed) {
                    tls.resumed.fetch_add(1, Ordering::Relaxed);
                }
                then(stream, session);
            }
            Ok(Err(error)) => {
                tls.failed.fetch_add(1, Ordering::Relaxed);
                tracing::debug!(?peer, %error, "a TLS handshake failed");
            }
            Err(_) => {
                tls.given_up.fetch_add(1, Ordering::Relaxed);
                tracing::debug!(?peer, "a TLS handshake took too long");
            }
        }
    });
    handshakes.under_way.insert(number, task.abort_handle());
    let too_many = handshakes.under_way.len() > settings.tls.max_handshakes;
    let oldest = if too_many { handshakes.under_way.pop_first() } else { None };
    server.tls.shaking.store(handshakes.under_way.len() as u64, Ordering::Relaxed);
    drop(handshakes);
    if let Some((_, oldest)) = oldest {
        server.tls.given_up.fetch_add(1, Ordering::Relaxed);
        oldest.abort();
    }
}

/// Until both sides are content, and have been told all of it.
async fn shake(stream: TcpStream, mut session: ServerConnection) -> io::Result<(TcpStream, ServerConnection)> {
    loop {
        while session.wants_write() {
            stream.writable().await?;
            match write_records(&stream, &mut session) {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                _ => {}
            }
        }
        if !session.is_handshaking() {
            return Ok((stream, session));
        }
        stream.readable().await?;
        match read_records(&stream, &mut session) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ => {}
        }
    }
}
