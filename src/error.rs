//! The one error type of commands, and every reply text that more than one place needs.
//!
//! The texts equal Redis's to the byte. An error is what a client did wrong or what it must be told; a broken
//! invariant is an assertion instead.

use std::borrow::Cow;

/// Result of anything a command does.
pub type Result<T = (), E = Error> = std::result::Result<T, E>;

/// Why a command fails. [`Error::text`] is what the client reads after the `-`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// The key holds another type than the command works on.
    WrongType,
    /// An option is unknown or stands in the wrong place.
    Syntax,
    /// An argument or value is no 64-bit integer.
    NotInteger,
    /// An argument or value is no float.
    NotFloat,
    /// An argument lies outside its range, without more to say.
    OutOfRange,
    /// Too few or too many arguments; the full name of the command, in lower case (`client|kill`).
    Arity(Cow<'static, str>),
    /// A value would pass the 512 MB limit of strings.
    TooBig,
    /// Reply, log record or what is gathered on the way take more memory than one command may have.
    TooMuch,
    /// An expiry time of zero, below zero, or too far away; the command's name.
    InvalidExpire(&'static str),
    /// The key must exist for this command.
    NoSuchKey,
    /// An increment would overflow.
    Overflow,
    /// Any other text, its code word included (`ERR …`).
    Text(Cow<'static, str>),
    /// A text that quotes what the client sent, byte for byte.
    Quoted(Box<[u8]>),
    /// The log or the store cannot take writes; why.
    Misconf(Cow<'static, str>),
    /// Not for the client: the command needs the disk, or much time, and must not keep this thread. The command left
    /// nothing behind and is run again on the shard's own thread.
    Cold,
    /// Not for the client: other commands have the memory that this one needs. It left nothing behind and is run again
    /// when they have ended.
    Crowded,
    /// Not for the client: it needs an exact count of keys, and some are blind. It left nothing behind and is run again once
    /// they are sighted.
    Uncounted,
    /// Not for the client: a key belongs to a shard that the command does not hold. It left nothing behind and is run again
    /// with all of them.
    Undeclared,
    /// Not for the client: it takes so long that others are to run in between. It left nothing behind and is run again where
    /// it may give its shards back now and then.
    Long,
    /// The command was ended on its way and has left nothing behind: its client was killed or has left, or the server
    /// goes down.
    Ended,
    /// The store answered with an I/O error or a corrupt record; why.
    Storage(Cow<'static, str>),
}

/// A count that must be zero or more is not.
pub const NOT_POSITIVE: Error = Error::err("ERR value is out of range, must be positive");
/// The log is being replayed.
pub const LOADING: Error = Error::err("LOADING Redis is loading the dataset in memory");
/// There is no room for what a command may add.
pub const OOM: Error = Error::err("OOM command not allowed when used memory > 'maxmemory'.");
/// The number of keys that a call announces is not one.
pub const NUMKEYS: Error = Error::err("ERR numkeys should be greater than 0");
/// An option COUNT that must be one or more is not.
pub const COUNT: Error = Error::err("ERR count should be greater than 0");
/// An option LIMIT is no number from 0 on.
pub const NEGATIVE_LIMIT: Error = Error::err("ERR LIMIT can't be negative");

impl Error {
    /// An `ERR` with a fixed text.
    pub const fn err(text: &'static str) -> Self {
        Error::Text(Cow::Borrowed(text))
    }

    /// A text that quotes at most `most` bytes of what the client sent. As C strings do, the quotation ends at a zero
    /// byte.
    pub fn quoting(before: &str, quoted: &[u8], most: usize, after: &str) -> Self {
        let text = [before.as_bytes(), quotation(quoted, most), after.as_bytes()].concat();
        Error::Quoted(text.into())
    }

    /// The line a client reads, without `-` and line end.
    pub fn text(&self) -> Cow<'_, str> {
        match self {
            Error::WrongType => "WRONGTYPE Operation against a key holding the wrong kind of value".into(),
            Error::Syntax => "ERR syntax error".into(),
            Error::NotInteger => "ERR value is not an integer or out of range".into(),
            Error::NotFloat => "ERR value is not a valid float".into(),
            Error::OutOfRange => "ERR value is out of range".into(),
            Error::Arity(name) => format!("ERR wrong number of arguments for '{name}' command").into(),
            Error::TooBig => "ERR string exceeds maximum allowed size (proto-max-bulk-len)".into(),
            Error::TooMuch => {
                "OOM command needs more memory than 'maxmemory' or 'client-output-buffer-limit' leaves for one".into()
            }
            Error::InvalidExpire(name) => format!("ERR invalid expire time in '{name}' command").into(),
            Error::NoSuchKey => "ERR no such key".into(),
            Error::Overflow => "ERR increment or decrement would overflow".into(),
            Error::Text(text) => Cow::Borrowed(text),
            Error::Quoted(text) => String::from_utf8_lossy(text),
            Error::Misconf(why) => format!("MISCONF Errors writing to the AOF file: {why}").into(),
            Error::Cold | Error::Crowded | Error::Uncounted | Error::Undeclared | Error::Long => {
                "ERR internal: command not run again".into()
            }
            Error::Ended => {
                "ERR command ended before it was done: its client was killed or the server is shutting down".into()
            }
            Error::Storage(why) => format!("ERR storage: {why}").into(),
        }
    }
}

/// What an error text quotes of an argument.
pub fn quotation(quoted: &[u8], most: usize) -> &[u8] {
    let quoted = &quoted[..quoted.len().min(most)];
    &quoted[..memchr::memchr(0, quoted).unwrap_or(quoted.len())]
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text())
    }
}

impl std::error::Error for Error {}
