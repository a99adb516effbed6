//! What a connection is sent piece by piece, by a thread that makes it as fast as it is taken: a file that is too big to be a
//! reply. A few pieces wait at most; whoever makes them waits for the connection, which closes where its peer takes nothing for long.

use std::io;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

/// Pieces that wait.
const WAITING: usize = 4;
/// Bytes of a piece.
const PIECE: usize = 64 << 10;
/// Time between two looks at whether it takes something.
const LOOK: Duration = Duration::from_millis(2);

/// The connection's end.
pub type Feed = mpsc::Receiver<Vec<u8>>;

/// The other end.
pub struct Feeder {
    to: mpsc::Sender<Vec<u8>>,
    open: Vec<u8>,
}

/// Both ends.
pub fn feed() -> (Feeder, Feed) {
    let (to, from) = mpsc::channel(WAITING);
    (Feeder { to, open: Vec::new() }, from)
}

impl Feeder {
    fn send(&self, piece: Vec<u8>) -> io::Result<()> {
        let mut piece = piece;
        loop {
            match self.to.try_send(piece) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Closed(_)) => return Err(io::ErrorKind::BrokenPipe.into()),
                Err(TrySendError::Full(back)) => piece = back,
            }
            std::thread::sleep(LOOK);
        }
    }
}

impl io::Write for Feeder {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.open.extend_from_slice(bytes);
        if self.open.len() >= PIECE {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let piece = std::mem::take(&mut self.open);
        if piece.is_empty() { Ok(()) } else { self.send(piece) }
    }
}
