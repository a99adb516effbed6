//! A TCP socket on which TLS is spoken, behind the calls that [`super::socket`] has for one without.
//!
//! ```text
//! socket → rustls (a record at most that is not whole) → the thread's scratch buffer
//! replies → rustls (some records that the socket has not taken) → socket
//! ```
//!
//! A part of a reply counts as sent once the records that hold it have gone to the socket, and not when they are made: so
//! whoever has something to send waits for the socket as long as there is anything in rustls. Until then the caller offers the same bytes
//! again, which it does, as it takes what was not sent for not sent.
//!
//! What a read brings at once is bounded, as records of a byte each take much longer to open than to come.

use std::cell::{Cell, RefCell};
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use rustls::ServerConnection;
use tokio::io::Interest;
use tokio::net::TcpStream;

use super::behind_others;
use crate::handler::Server;

/// Most bytes that are in rustls on their way to the socket.
const HELD: usize = 64 << 10;
/// Reads of the socket between two turns of other connections.
const TURN: u32 = 16;

/// The socket and what is agreed with the peer.
pub struct Secure {
    pub(super) stream: TcpStream,
    session: RefCell<ServerConnection>,
    /// Bytes of the caller's that are in rustls and not known to have gone.
    held: Cell<usize>,
    /// Reads of the socket since others last had a turn.
    reads: Cell<u32>,
    /// Counts it as open.
    _open: Open,
}

/// A connection that is open, in the counters.
pub(super) struct Open(Arc<Server>);

impl Open {
    /// From now on.
    pub(super) fn new(server: Arc<Server>) -> Open {
        server.tls.clients.fetch_add(1, Ordering::Relaxed);
        Open(server)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.tls.clients.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A socket as rustls reads and writes it.
pub(super) struct Raw<'a> {
    stream: &'a TcpStream,
    /// It had less than there was room for: there is no more for now.
    drained: bool,
}

impl Raw<'_> {
    pub(super) fn of(stream: &TcpStream) -> Raw<'_> {
        Raw { stream, drained: false }
    }
}

impl Read for Raw<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = (&*socket2::SockRef::from(self.stream)).read(buf)?;
        self.drained = read > 0 && read < buf.len();
        Ok(read)
    }
}

impl Write for Raw<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        (&*socket2::SockRef::from(self.stream)).write(buf)
    }

    fn write_vectored(&mut self, bufs: &[io::IoSlice<'_>]) -> io::Result<usize> {
        (&*socket2::SockRef::from(self.stream)).write_vectored(bufs)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads the socket once and opens what has come whole: how many bytes came, 0 at the end; `WouldBlock` if there are none.
pub(super) fn read_records(stream: &TcpStream, session: &mut ServerConnection) -> io::Result<usize> {
    let mut read = None;
    let outcome = stream.try_io(Interest::READABLE, || {
        let mut raw = Raw::of(stream);
        read = Some(session.read_tls(&mut raw)?);
        // Tokio waits for more to come, and need not be told by a further call that there is none.
        if raw.drained { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
    });
    let read = match (outcome, read) {
        (Ok(()), read) => read.unwrap_or_default(),
        (Err(error), Some(read)) if error.kind() == io::ErrorKind::WouldBlock => read,
        (Err(error), _) => return Err(error),
    };
    let processed = session.process_new_packets();
    if session.wants_write() {
        // An answer to the peer's rustls, or why this ends. What the socket does not take now leaves with the next reply.
        let _ = write_records(stream, session);
    }
    processed.map(|_| read).map_err(io::Error::other)
}

/// Writes what rustls has for the socket; `WouldBlock` if that does not take all of it.
pub(super) fn write_records(stream: &TcpStream, session: &mut ServerConnection) -> io::Result<()> {
    while session.wants_write() {
        if stream.try_io(Interest::WRITABLE, || session.write_tls(&mut Raw::of(stream)))? == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
    }
    Ok(())
}

impl Secure {
    /// After a handshake.
    pub(super) fn new(stream: TcpStream, session: ServerConnection, open: Open) -> Secure {
        Secure { stream, session: RefCell::new(session), held: Cell::new(0), reads: Cell::new(0), _open: open }
    }

    /// Reads as much as has come and `buf` holds; 0 is the end.
    pub(super) fn poll_read(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut session = self.session.borrow_mut();
        let mut read = 0;
        while read < buf.len() {
            match session.reader().read(&mut buf[read..]) {
                // The peer says that this is all.
                Ok(0) => break,
                Ok(more) => {
                    read += more;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return self.brought(read, Poll::Ready(Err(error))),
            }
            if self.reads.get() >= TURN {
                if read == 0 {
                    self.reads.set(0);
                    behind_others(cx);
                }
                return self.brought(read, Poll::Pending);
            }
            match self.stream.poll_read_ready(cx) {
                Poll::Ready(ready) => ready?,
                Poll::Pending => {
                    self.reads.set(0);
                    return self.brought(read, Poll::Pending);
                }
            }
            self.reads.set(self.reads.get() + 1);
            match read_records(&self.stream, &mut session) {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                    return self.brought(read, Poll::Ready(Err(error)));
                }
                _ => {}
            }
        }
        Poll::Ready(Ok(read))
    }

    /// What was read comes first; what else there is to tell is found again.
    fn brought(&self, read: usize, otherwise: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if read > 0 { Poll::Ready(Ok(read)) } else { otherwise }
    }

    /// Sends of `buf`, which begins with what was not sent the last time.
    pub(super) fn try_write(&self, buf: &[u8]) -> io::Result<usize> {
        let mut session = self.session.borrow_mut();
        loop {
            write_records(&self.stream, &mut session)?;
            let sent = self.held.take().min(buf.len());
            if sent > 0 || buf.is_empty() {
                return Ok(sent);
            }
            self.held.set(session.writer().write(&buf[..buf.len().min(HELD)])?);
        }
    }

    pub(super) fn poll_write(&self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.stream.poll_write_ready(cx))?;
            match self.try_write(buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    /// Bytes of records that the socket has not taken.
    pub(super) fn held_bytes(&self) -> usize {
        self.held.get()
    }
}

impl Drop for Secure {
    /// Tells the peer that this is the end, and nobody has cut it off.
    fn drop(&mut self) {
        let session = self.session.get_mut();
        session.send_close_notify();
        let _ = write_records(&self.stream, session);
    }
}
