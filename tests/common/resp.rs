//! Replies in RESP2 and RESP3, and a blocking client.
//!
//! | first byte | value | first byte | value |
//! |---|---|---|---|
//! | `+` | [`Value::Simple`] | `%` | [`Value::Map`] |
//! | `-` | [`Value::Error`] | `~` | [`Value::Set`] |
//! | `:` | [`Value::Int`] | `>` | [`Value::Push`] |
//! | `$` | [`Value::Bulk`], [`Value::Nil`] for `$-1` | `,` | [`Value::Double`] |
//! | `*` | [`Value::Array`], [`Value::NilArray`] for `*-1` | `#` | [`Value::Bool`] |
//! | `_` | [`Value::Null`] | `(` | [`Value::Big`] |
//! | | | `=` | [`Value::Verbatim`] |

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// One reply, its wire type kept.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Value {
    Simple(Vec<u8>),
    Error(Vec<u8>),
    Int(i64),
    Bulk(Vec<u8>),
    Nil,
    Array(Vec<Value>),
    NilArray,
    Null,
    Map(Vec<(Value, Value)>),
    Set(Vec<Value>),
    Push(Vec<Value>),
    /// The text as sent: printing is part of the protocol.
    Double(Vec<u8>),
    Bool(bool),
    Big(Vec<u8>),
    /// Format (three bytes) and text.
    Verbatim(Vec<u8>, Vec<u8>),
}

impl Value {
    /// The bytes of a string, number or error.
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        match self {
            Value::Simple(b) | Value::Error(b) | Value::Bulk(b) | Value::Double(b) | Value::Big(b) => Some(b),
            Value::Verbatim(_, b) => Some(b),
            _ => None,
        }
    }

    /// The bytes as text, lossily; empty for what has none.
    pub(crate) fn text(&self) -> String {
        self.bytes().map(|b| String::from_utf8_lossy(b).into_owned()).unwrap_or_default()
    }

    pub(crate) fn int(&self) -> Option<i64> {
        if let Value::Int(n) = self { Some(*n) } else { None }
    }

    /// The elements of an array, set or push.
    pub(crate) fn items(&self) -> &[Value] {
        match self {
            Value::Array(v) | Value::Set(v) | Value::Push(v) => v,
            _ => &[],
        }
    }

    pub(crate) fn is_nil(&self) -> bool {
        matches!(self, Value::Nil | Value::NilArray | Value::Null)
    }

    pub(crate) fn is_error(&self) -> bool {
        matches!(self, Value::Error(_))
    }
}

/// Decodes the reply at the start of `buf`: the value and its length, `None` when more bytes are needed.
pub(crate) fn decode(buf: &[u8]) -> Result<Option<(Value, usize)>, String> {
    let Some(eol) = buf.windows(2).position(|w| w == b"\r\n") else { return Ok(None) };
    let (head, after) = (&buf[1..eol], eol + 2);
    let value = match buf[0] {
        b'+' => Value::Simple(head.to_vec()),
        b'-' => Value::Error(head.to_vec()),
        b':' => Value::Int(number(head)?),
        b',' => Value::Double(head.to_vec()),
        b'(' => Value::Big(head.to_vec()),
        b'_' => Value::Null,
        b'#' => Value::Bool(head == b"t"),
        b'$' | b'=' => return blob(buf[0], buf, number(head)?, after),
        b'*' | b'~' | b'>' | b'%' => return aggregate(buf[0], buf, number(head)?, after),
        other => return Err(format!("reply type byte {:?} in {:?}", other as char, String::from_utf8_lossy(buf))),
    };
    Ok(Some((value, after)))
}

fn number(text: &[u8]) -> Result<i64, String> {
    let text = String::from_utf8_lossy(text);
    text.parse().map_err(|_| format!("number expected, got {text:?}"))
}

fn blob(kind: u8, buf: &[u8], len: i64, start: usize) -> Result<Option<(Value, usize)>, String> {
    if len == -1 && kind == b'$' {
        return Ok(Some((Value::Nil, start)));
    }
    let end = start + usize::try_from(len).map_err(|_| format!("length {len}"))?;
    if buf.len() < end + 2 {
        return Ok(None);
    }
    if &buf[end..end + 2] != b"\r\n" {
        return Err("string without CRLF at its end".into());
    }
    let body = buf[start..end].to_vec();
    let value = match kind {
        b'$' => Value::Bulk(body),
        _ if body.len() >= 4 && body[3] == b':' => Value::Verbatim(body[..3].to_vec(), body[4..].to_vec()),
        _ => return Err("verbatim string without its format".into()),
    };
    Ok(Some((value, end + 2)))
}

fn aggregate(kind: u8, buf: &[u8], len: i64, mut at: usize) -> Result<Option<(Value, usize)>, String> {
    if len == -1 && kind == b'*' {
        return Ok(Some((Value::NilArray, at)));
    }
    let len = usize::try_from(len).map_err(|_| format!("length {len}"))?;
    let count = if kind == b'%' { 2 * len } else { len };
    let mut items = Vec::new();
    for _ in 0..count {
        let Some((value, used)) = (if at < buf.len() { decode(&buf[at..])? } else { None }) else { return Ok(None) };
        items.push(value);
        at += used;
    }
    let value = match kind {
        b'*' => Value::Array(items),
        b'~' => Value::Set(items),
        b'>' => Value::Push(items),
        _ => {
            let mut pairs = Vec::new();
            let mut rest = items.into_iter();
            while let (Some(key), Some(value)) = (rest.next(), rest.next()) {
                pairs.push((key, value));
            }
            Value::Map(pairs)
        }
    };
    Ok(Some((value, at)))
}

/// A command as a RESP array of bulk strings.
pub(crate) fn encode<A: AsRef<[u8]>>(args: &[A]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        let arg = arg.as_ref();
        out.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        out.extend_from_slice(arg);
        out.extend_from_slice(b"\r\n");
    }
    out
}

/// What came instead of a reply.
#[derive(Debug)]
pub(crate) enum Gone {
    /// The server closed the connection.
    Closed,
    /// Nothing within the read timeout.
    Quiet,
    /// Bytes that are no RESP.
    Garbage(String),
}

/// A blocking connection.
pub(crate) struct Client {
    stream: TcpStream,
    buf: Vec<u8>,
}

impl Client {
    /// Connects to a loopback port; replies are awaited for 30 s at most.
    pub(crate) fn connect(port: u16) -> io::Result<Client> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        let mut client = Client { stream, buf: Vec::new() };
        client.set_timeout(Duration::from_secs(30));
        Ok(client)
    }

    pub(crate) fn set_timeout(&mut self, limit: Duration) {
        self.stream.set_read_timeout(Some(limit)).expect("a timeout above zero");
    }

    pub(crate) fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// The next reply. A connection that fails in another way than by its timeout counts as closed.
    pub(crate) fn read(&mut self) -> Result<Value, Gone> {
        loop {
            if !self.buf.is_empty()
                && let Some((value, used)) = decode(&self.buf).map_err(Gone::Garbage)?
            {
                self.buf.drain(..used);
                return Ok(value);
            }
            let mut chunk = [0; 65536];
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(Gone::Closed),
                Ok(n) => self.buf.extend_from_slice(&chunk[..n]),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return Err(Gone::Quiet),
                Err(_) => return Err(Gone::Closed),
            }
        }
    }

    /// Whether nothing at all has come.
    pub(crate) fn is_silent(&mut self) -> bool {
        self.stream.set_nonblocking(true).expect("a socket");
        let quiet = matches!(self.stream.peek(&mut [0]), Err(e) if e.kind() == ErrorKind::WouldBlock);
        self.stream.set_nonblocking(false).expect("a socket");
        self.buf.is_empty() && quiet
    }

    /// Sends one command and reads one reply.
    pub(crate) fn try_call<A: AsRef<[u8]>>(&mut self, args: &[A]) -> Result<Value, Gone> {
        self.send_raw(&encode(args)).map_err(|_| Gone::Closed)?;
        self.read()
    }

    /// Sends one command, written with blanks between its arguments; a lost connection fails the test.
    pub(crate) fn call(&mut self, command: &str) -> Value {
        let args: Vec<&str> = command.split(' ').collect();
        self.try_call(&args).unwrap_or_else(|gone| panic!("{command}: {gone:?}"))
    }

    /// A number that INFO tells in this section.
    pub(crate) fn info(&mut self, section: &str, name: &str) -> u64 {
        let info = self.call(&format!("INFO {section}")).text();
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|number| number.trim().parse().ok()).unwrap_or_else(|| panic!("{name}: {info}"))
    }
}
