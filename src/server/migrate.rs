//! MIGRATE: keys go to another server, by RESTORE, and are removed here once that has them.
//!
//! The other server is talked to without the shards: the command rests ([`crate::shard::txn::rest`]) on a thread for long
//! commands, and meanwhile nobody writes its keys. A few at once do so at most, so that other long commands find a thread. What
//! is sent is in memory as a whole; what could not be brought back by a request is refused, as by DUMP.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use smallvec::SmallVec;
use socket2::{Domain, Socket, Type};

use crate::handler::events;
use crate::handler::session::bits;
use crate::handler::{Args, Begin, Command, Ctx, Error, Group, KeySpec, KeysAt, Reply, Result, flags, key};
use crate::meter;
use crate::shard::engine::long::LONG;
use crate::types::dump::gather::payload;
use crate::util::num::parse_i64;

/// The time for each step of a talk, where none is given.
const TIMEOUT_MS: i64 = 1000;
/// The longest line of a reply.
const MOST_LINE: u64 = 64 << 10;
/// Time between two looks at whether the talk is still wanted: by this server, and by the client that waits.
const LOOK: Duration = Duration::from_millis(80);
/// Talks at once.
const MOST: usize = LONG.div_ceil(2);

static TALKS: AtomicUsize = AtomicUsize::new(0);

/// The right to talk.
struct Talk;

impl Talk {
    fn begin() -> Option<Talk> {
        let more = |talks| (talks < MOST).then_some(talks + 1);
        TALKS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok().then(|| Talk)
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        TALKS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What is asked for.
struct Options<'a> {
    copy: bool,
    replace: bool,
    auth: SmallVec<[&'a [u8]; 2]>,
    /// Where the keys stand among the arguments.
    keys: std::ops::Range<usize>,
    db: i64,
    timeout: Duration,
}

impl<'a> Options<'a> {
    fn parse(args: Args<'a>) -> Result<Self> {
        let (mut copy, mut replace, mut auth, mut keys) = (false, false, SmallVec::new(), 3..4);
        let mut at = 6;
        while let Some(word) = args.get(at) {
            let left = args.len() - at - 1;
            let is = |name: &[u8]| word.eq_ignore_ascii_case(name);
            if is(b"copy") {
                copy = true;
            } else if is(b"replace") {
                replace = true;
            } else if is(b"auth") || is(b"auth2") {
                let words = if is(b"auth") { 1 } else { 2 };
                if left < words {
                    return Err(Error::Syntax);
                }
                auth = args.iter().skip(at + 1).take(words).collect();
                at += words;
            } else if is(b"keys") {
                if !args[3].is_empty() {
                    return Err(Error::err(
                        "ERR When using MIGRATE KEYS option, the key argument must be set to the empty string",
                    ));
                }
                keys = at + 1..args.len();
                break;
            } else {
                return Err(Error::Syntax);
            }
            at += 1;
        }
        let timeout_ms = parse_i64(&args[5]).ok_or(Error::NotInteger)?;
        let db = parse_i64(&args[4]).ok_or(Error::NotInteger)?;
        let timeout_ms = if timeout_ms <= 0 { TIMEOUT_MS } else { timeout_ms };
        Ok(Options { copy, replace, auth, keys, db, timeout: Duration::from_millis(timeout_ms as u64) })
    }
}

/// The keys of a call: argument 3, or those behind KEYS. None if both are there: a call that fails.
fn named(args: Args<'_>) -> (KeysAt, bool) {
    let mut keys = 3..4;
    let mut at = 6;
    // KEYS with nothing behind it names none.
    while let Some(word) = args.get(at).filter(|_| at + 1 < args.len()) {
        let is = |name: &[u8]| word.eq_ignore_ascii_case(name);
        if is(b"keys") {
            keys = if args[3].is_empty() { at + 1..args.len() } else { 0..0 };
            break;
        }
        // A password may be any word.
        at += 1 + if is(b"auth") { 1 } else { 2 * usize::from(is(b"auth2")) };
    }
    (keys.map(|at| (at, key::RW | key::ACCESS | key::DELETE)).collect(), false)
}

fn migrate(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let options = Options::parse(args)?;
    if !ctx.may_wait() {
        return Err(Error::err("ERR MIGRATE cannot be used in a transaction or a script by this server"));
    }
    let (ns, now_ms) = (ctx.ns(), ctx.now_ms);
    // The keys are looked at where it may rest: what is gathered elsewhere would be gathered twice.
    ctx.txn.rest(ns, || Ok(()))?;
    if !ctx.txn.may_rest() {
        // What has not enough memory beside others would be run where nobody may come in between.
        return Err(Error::TooMuch);
    }
    let mut restores: Vec<(usize, Vec<u8>)> = Vec::new();
    for at in options.keys.clone() {
        let Some(payload) = payload(ctx, &args[at])? else { continue };
        let expire_ms = ctx.peek(&args[at])?.map_or(0, |found| ctx.object(found).expire_ms);
        let ttl_ms = if expire_ms == 0 { 0 } else { expire_ms.saturating_sub(now_ms).max(1) };
        let mut request = Vec::with_capacity(payload.len() + args[at].len() + 64);
        let ttl = ttl_ms.to_string();
        let words = [b"RESTORE", &args[at], ttl.as_bytes(), &payload, b"REPLACE"];
        push_request(&words[..if options.replace { 5 } else { 4 }], &mut request);
        meter::hold(request.len())?;
        restores.push((at, request));
    }
    if restores.is_empty() {
        out.status("NOKEY");
        return Ok(());
    }
    let talk = Talk::begin().ok_or(Error::err("IOERR too many MIGRATE commands talk to other servers"))?;
    let (engine, client) = (ctx.server.engine.clone(), ctx.session().client.clone());
    let is_wanted =
        || !engine.stopping.load(Ordering::Relaxed) && client.bits.load(Ordering::Relaxed) & bits::CLOSING == 0;
    let done = ctx.txn.rest(ns, || Ok(send(&args, &options, &restores, &is_wanted)))?;
    drop(talk);
    let (taken, failure) = done?;
    if !options.copy {
        let mut gone = false;
        for (at, _) in restores.iter().zip(&taken).filter(|(_, taken)| **taken).map(|(restore, _)| restore) {
            gone |= ctx.remove(&args[*at])?;
        }
        if gone {
            ctx.happens(&[events::DEL]);
        }
    }
    match failure {
        // What the other server has is its own from now on: an error does not take that back.
        Some(error) => out.error(&error),
        None => out.ok(),
    }
    Ok(())
}

fn push_request(words: &[&[u8]], out: &mut Vec<u8>) {
    // Nothing that is written into memory fails.
    let _ = write!(out, "*{}\r\n", words.len());
    for word in words {
        let _ = write!(out, "${}\r\n", word.len());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

/// Which keys the other server has taken, and what went wrong; an error if it was not reached.
type Sent = Result<(Vec<bool>, Option<Error>)>;

fn send(args: &Args<'_>, options: &Options<'_>, restores: &[(usize, Vec<u8>)], is_wanted: &dyn Fn() -> bool) -> Sent {
    let peer = connect(&args[1], &args[2], options.timeout, is_wanted).map_err(|error| match error.kind() {
        // Redis learns of it only then.
        io::ErrorKind::ConnectionRefused => Error::err("IOERR error or timeout writing to target instance"),
        _ => Error::err("IOERR error or timeout connecting to the client"),
    })?;
    let mut taken = vec![false; restores.len()];
    let mut talk = || -> Result<Option<Error>, (io::Error, &'static str)> {
        let mut begin = Vec::new();
        let mut replies = 1;
        if !options.auth.is_empty() {
            let words: SmallVec<[&[u8]; 3]> =
                std::iter::once(&b"AUTH"[..]).chain(options.auth.iter().copied()).collect();
            push_request(&words, &mut begin);
            replies += 1;
        }
        push_request(&[b"SELECT", options.db.to_string().as_bytes()], &mut begin);
        let mut reader = BufReader::new(&peer);
        let write = |bytes: &[u8]| (&peer).write_all(bytes).map_err(|error| (error, "writing"));
        write(&begin)?;
        let mut failure = None;
        for _ in 0..replies {
            failure = failure.or(read_reply(&mut reader).map_err(|error| (error, "reading"))?);
        }
        if failure.is_some() {
            return Ok(failure);
        }
        // One after the other: neither side ever waits for the other to read what it has not room for.
        for ((_, request), taken) in restores.iter().zip(&mut taken) {
            write(request)?;
            match read_reply(&mut reader).map_err(|error| (error, "reading"))? {
                None => *taken = true,
                Some(error) => failure = failure.or(Some(error)),
            }
        }
        Ok(failure)
    };
    let failure = match talk() {
        Ok(failure) => failure,
        Err((_, what)) => Some(Error::Text(format!("IOERR error or timeout {what} to target instance").into())),
    };
    Ok((taken, failure))
}

/// The other server. It may be silent for the time of a step, and no longer than somebody wants the talk to go on.
struct Peer<'a> {
    socket: TcpStream,
    timeout: Duration,
    is_wanted: &'a dyn Fn() -> bool,
}

impl Peer<'_> {
    fn step<R>(&self, mut attempt: impl FnMut(&TcpStream) -> io::Result<R>) -> io::Result<R> {
        let began = Instant::now();
        loop {
            match attempt(&self.socket) {
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
                        && began.elapsed() < self.timeout
                        && (self.is_wanted)() => {}
                done => return done,
            }
        }
    }
}

impl io::Read for &Peer<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.step(|mut socket| socket.read(buf))
    }
}

impl io::Write for &Peer<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.step(|mut socket| socket.write(buf))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What the system makes of a port's text for Redis: `atoi` reads as far as there are digits, and of what that is the name service
/// takes 16 bits, unless it is negative. So a text that is no number stands for port 0, where nobody listens.
fn port_of(text: &[u8]) -> Option<u16> {
    let digits = text.iter().skip(usize::from(text.first() == Some(&b'-'))).take_while(|c| c.is_ascii_digit());
    let number = digits.fold(0i64, |number, c| number.saturating_mul(10).saturating_add(i64::from(c - b'0')));
    let number = (if text.starts_with(b"-") { -number } else { number }) as i32;
    (number >= 0).then_some(number as u16)
}

fn connect<'a>(host: &[u8], port: &[u8], timeout: Duration, is_wanted: &'a dyn Fn() -> bool) -> io::Result<Peer<'a>> {
    let port = port_of(port).ok_or(io::ErrorKind::InvalidInput)?;
    let host = std::str::from_utf8(host).map_err(|_| io::ErrorKind::InvalidInput)?;
    let (began, mut last) = (Instant::now(), io::ErrorKind::NotFound.into());
    for address in (host, port).to_socket_addrs()? {
        let left = timeout.saturating_sub(began.elapsed()).max(Duration::from_millis(1));
        match reach(address, left, is_wanted) {
            Ok(socket) => {
                let look = Some(timeout.min(LOOK));
                socket.set_read_timeout(look)?;
                socket.set_write_timeout(look)?;
                socket.set_nodelay(true)?;
                return Ok(Peer { socket, timeout, is_wanted });
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn reach(address: SocketAddr, timeout: Duration, is_wanted: &dyn Fn() -> bool) -> io::Result<TcpStream> {
    let began = Instant::now();
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    match socket.connect_timeout(&address.into(), timeout.min(LOOK)) {
        // It goes on by itself.
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            while socket.peer_addr().is_err() {
                if let Some(error) = socket.take_error()? {
                    return Err(error);
                }
                if began.elapsed() >= timeout || !is_wanted() {
                    return Err(error);
                }
                std::thread::sleep(LOOK / 8);
            }
        }
        done => done?,
    }
    Ok(socket.into())
}

/// Reads a reply of one line; what it says if that is an error.
fn read_reply(from: &mut BufReader<&Peer<'_>>) -> io::Result<Option<Error>> {
    let mut line = Vec::new();
    from.take(MOST_LINE).read_until(b'\n', &mut line)?;
    let Some(line) = line.strip_suffix(b"\r\n") else { return Err(io::ErrorKind::UnexpectedEof.into()) };
    Ok(match line.split_first() {
        Some((b'-', text)) => Some(Error::Quoted([b"ERR Target instance replied with error: ", text].concat().into())),
        _ => None,
    })
}

const FLAGS: u32 = flags::THREAD | flags::WRITE | flags::MOVABLEKEYS | flags::KEYSPACE | flags::DANGEROUS;

/// Words among which KEYS is looked for: each argument of a request may be asked about, and there can be a million.
const MOST_WORDS: usize = 16;

/// The password at the other server, and whose it is. Behind KEYS there is none.
fn hides(args: Args<'_>, at: usize) -> bool {
    let is = |place: usize, word: &[u8]| place > 5 && args[place].eq_ignore_ascii_case(word);
    let follows = |at: usize| at > 6 && (is(at - 1, b"auth") || is(at - 1, b"auth2") || is(at - 2, b"auth2"));
    follows(at) && !(6..at).take(MOST_WORDS).any(|place| is(place, b"keys") && !follows(place))
}

/// The rows of this file.
pub const COMMANDS: &[Command] = &[Command::new("migrate", migrate, -6, FLAGS, Group::Generic)
    .keys(&[
        KeySpec::one(3, key::RW | key::ACCESS | key::DELETE),
        KeySpec {
            begin: Begin::Keyword("KEYS", -2),
            ..KeySpec::range(0, -1, 1, key::RW | key::ACCESS | key::DELETE | key::INCOMPLETE)
        },
    ])
    .named_by(named)
    .hides(hides)
        .help("2.6.0", "Moves keys to another server.")
    .syntax(
        "host port <key | \"\"> destination-db timeout [COPY] [REPLACE] [AUTH auth | AUTH2 username password] [KEYS keys [keys ...]]",
        "O(N) where N is the size of the values",
    )];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_refused_leaves_the_others_their_places() {
        let places: Vec<_> = std::iter::from_fn(Talk::begin).collect();
        assert_eq!(places.len(), MOST);
        assert!((0..2 * MOST).all(|_| Talk::begin().is_none()));
        drop(places);
        assert!(Talk::begin().is_some());
    }
}
