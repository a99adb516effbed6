//! A client's socket, shared: whoever waits for something else can watch for its end at the same time.

use std::io::{self, Read as _};
use std::os::fd::AsRawFd as _;
use std::task::{Context, Poll, ready};

use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};

use super::secure::Secure;

/// A client's socket.
pub enum Socket {
    /// TCP.
    Tcp(TcpStream),
    /// Unix domain.
    Unix(UnixStream),
    /// TCP with TLS.
    Secure(Box<Secure>),
}

/// The same call on the system's socket of any kind.
macro_rules! on {
    ($socket:expr, $stream:ident => $call:expr) => {
        match $socket {
            Socket::Tcp($stream) => $call,
            Socket::Unix($stream) => $call,
            Socket::Secure(secure) => {
                let $stream = &secure.stream;
                $call
            }
        }
    };
}

impl Socket {
    /// Reads once; 0 is the end.
    pub(super) fn poll_read(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        if let Socket::Secure(secure) = self {
            return secure.poll_read(cx, buf);
        }
        loop {
            ready!(on!(self, s => s.poll_read_ready(cx)))?;
            let mut read = 0;
            let mut take = || {
                let socket = on!(self, s => socket2::SockRef::from(s));
                read = (&*socket).read(buf)?;
                // Less than there was room for: there is no more for now, and no need to be told so by a further call.
                let drained = read > 0 && read < buf.len();
                if drained { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
            };
            match on!(self, s => s.try_io(Interest::READABLE, &mut take)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && read == 0 => {}
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Poll::Ready(Err(error)),
                _ => return Poll::Ready(Ok(read)),
            }
        }
    }

    pub(super) fn poll_write(&self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if let Socket::Secure(secure) = self {
            return secure.poll_write(cx, buf);
        }
        loop {
            ready!(on!(self, s => s.poll_write_ready(cx)))?;
            match self.try_write(buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    pub(super) fn try_write(&self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.try_write(buf),
            Socket::Unix(stream) => stream.try_write(buf),
            Socket::Secure(secure) => secure.try_write(buf),
        }
    }

    /// Bytes that wait below for the system's socket to take them.
    pub(super) fn held_bytes(&self) -> usize {
        if let Socket::Secure(secure) = self { secure.held_bytes() } else { 0 }
    }

    /// Sends `bytes` from `sent` on; whether all of them are gone.
    pub(super) fn send(&self, bytes: &[u8], sent: &mut usize) -> io::Result<bool> {
        while *sent < bytes.len() {
            match self.try_write(&bytes[*sent..]) {
                Ok(n) => *sent += n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Returns once the peer sends no more, or the socket has been shut down, whatever of it is unread.
    pub(super) async fn ended(&self) {
        // Out-of-band data is never asked for, so that of this interest only the end of the stream is left. Interest in
        // reading would be satisfied by a pipeline that nobody reads.
        let _ = on!(self, s => s.ready(Interest::PRIORITY).await);
    }

    /// Nothing is read beyond what has arrived.
    pub(super) fn end_input(&self) {
        let socket = on!(self, s => socket2::SockRef::from(s));
        // One that is closed already needs no closing.
        let _ = socket.shutdown(std::net::Shutdown::Read);
    }

    pub(super) fn fd(&self) -> i32 {
        on!(self, s => s.as_raw_fd())
    }
}
