//! A client that may be answered with hundreds of MB.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::common::resp::encode;
use crate::common::server::Server;

/// A connection that reads replies without keeping them: some are larger than what a test should hold.
pub(crate) struct Peer {
    stream: TcpStream,
    buf: Vec<u8>,
    at: usize,
}

/// A reply's first line, and its length.
pub(crate) struct Skimmed {
    pub(crate) head: String,
    pub(crate) len: usize,
}

impl Peer {
    pub(crate) fn connect(server: &Server) -> Peer {
        let stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap_or_else(|e| panic!("{e}"));
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap_or_else(|e| panic!("{e}"));
        stream.set_nodelay(true).unwrap_or_else(|e| panic!("{e}"));
        Peer { stream, buf: Vec::new(), at: 0 }
    }

    /// Sends requests and skims so many replies; those that came before the connection was closed.
    pub(crate) fn run(&mut self, request: &[u8], replies: usize) -> Vec<Skimmed> {
        let mut stream = self.stream.try_clone().unwrap_or_else(|e| panic!("{e}"));
        std::thread::scope(|scope| {
            // A server that answers meanwhile must be read, else both wait for ever.
            scope.spawn(move || stream.write_all(request));
            (0..replies).map_while(|_| self.skim()).collect()
        })
    }

    /// The next reply; `None` if there will be none.
    fn skim(&mut self) -> Option<Skimmed> {
        let (mut left, mut head, mut len) = (1usize, String::new(), 0);
        while left > 0 {
            left -= 1;
            let line = self.line()?;
            len += line.len();
            let count = std::str::from_utf8(&line[1..]).ok().and_then(|text| text.parse::<i64>().ok());
            let count = usize::try_from(count.unwrap_or(0)).unwrap_or(0);
            match line[0] {
                b'*' | b'~' | b'>' => left += count,
                b'%' => left += 2 * count,
                b'$' | b'=' if line[1] != b'-' => {
                    self.skip(count + 2)?;
                    len += count + 2;
                }
                _ => {}
            }
            if head.is_empty() {
                head = String::from_utf8_lossy(&line).into_owned();
            }
        }
        Some(Skimmed { head, len })
    }

    fn line(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(end) = self.buf[self.at..].windows(2).position(|pair| pair == b"\r\n") {
                let line = self.buf[self.at..self.at + end].to_vec();
                self.at += end + 2;
                return Some(line);
            }
            self.fill()?;
        }
    }

    fn skip(&mut self, mut bytes: usize) -> Option<()> {
        loop {
            let here = bytes.min(self.buf.len() - self.at);
            self.at += here;
            bytes -= here;
            if bytes == 0 {
                return Some(());
            }
            self.fill()?;
        }
    }

    fn fill(&mut self) -> Option<()> {
        self.buf.drain(..self.at);
        self.at = 0;
        let mut chunk = vec![0; 1 << 16];
        match self.stream.read(&mut chunk) {
            Ok(n) if n > 0 => self.buf.extend_from_slice(&chunk[..n]),
            Ok(_) => return None,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("no reply in two minutes"),
            Err(_) => return None,
        }
        Some(())
    }

    pub(crate) fn call(&mut self, command: &str) -> String {
        let args: Vec<&str> = command.split(' ').collect();
        let replies = self.run(&encode(&args), 1);
        replies.first().map_or_else(|| panic!("{command}: closed"), |reply| reply.head.clone())
    }
}
