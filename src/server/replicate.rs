//! SYNC, PSYNC, REPLCONF: dump.rdb of everything at one moment, for tools that fetch one. What comes after that moment is not
//! sent: the connection closes behind the file.
//!
//! The file goes out as it is made, on a thread of its own. Where the peer has said `REPLCONF capa eof`, 40 digits mark its
//! end, as with Redis; for others it is made twice, once only to know its length: between the two nothing can change.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::handler::feed::{Feeder, feed};
use crate::handler::server::random_hex;
use crate::handler::{After, Args, Command, Ctx, Error, Group, Reply, Result, flags};
use crate::rdb::file::writer::For;
use crate::shard::Engine;
use crate::types::dump::file::{Everything, ExportError};

/// Files that are sent at once.
const MOST: usize = 4;
/// A peer that waits is sent a newline so often, as Redis does.
const ALIVE: Duration = Duration::from_secs(1);

static SENT: AtomicUsize = AtomicUsize::new(0);

/// A file on its way counts as long as this lives.
struct Turn;

impl Turn {
    fn take() -> Option<Turn> {
        let more = |sent| (sent < MOST).then_some(sent + 1);
        SENT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok().then(|| Turn)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        SENT.fetch_sub(1, Ordering::Relaxed);
    }
}

fn sync(ctx: &mut Ctx, _args: Args<'_>, _out: &mut Reply) -> Result {
    start(ctx)
}

fn psync(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    crate::util::num::parse_i64(&args[2]).ok_or(Error::NotInteger)?;
    start(ctx)?;
    let id = ctx.server.replication_id.lock().clone();
    out.status(&format!("FULLRESYNC {id} 0"));
    Ok(())
}

/// Begins to send; the connection reads no more.
fn start(ctx: &mut Ctx) -> Result {
    let turn = Turn::take().ok_or(Error::err("ERR too many files are being sent"))?;
    let (engine, marks_end) = (ctx.server.engine.clone(), ctx.session().knows_end_marks);
    let (feeder, feed) = feed();
    let session = ctx.alter();
    session.after = After::Feed;
    session.feed = Some(feed);
    let run = move || {
        let _turn = turn;
        if let Err(error) = send(&engine, feeder, marks_end, ALIVE) {
            tracing::warn!(%error, "a file of everything was not sent to its end");
        }
    };
    drop(crate::shard::engine::spawn("sync".to_owned(), 0, run));
    Ok(())
}

/// Who is not told of an end mark hears each `alive` that the file is being made.
fn send(engine: &Arc<Engine>, mut to: Feeder, marks_end: bool, alive: Duration) -> Result<(), ExportError> {
    let moment = engine.moment().map_err(io::Error::other)?;
    let everything = Everything { partitions: moment.partitions, names: moment.names, now_ms: moment.now_ms };
    let goes_on = |keys: u64| {
        // Who reads keeps a store that has failed from being opened again.
        !keys.is_multiple_of(1024) || engine.store.health().is_ok() && !engine.stopping.load(Ordering::Relaxed)
    };
    if marks_end {
        let mark = random_hex();
        write!(to, "$EOF:{mark}\r\n")?;
        let (mut to, _) = everything.write(to, For::Redis82, goes_on)?;
        to.write_all(mark.as_bytes())?;
        return Ok(to.flush()?);
    }
    let mut told = Instant::now();
    let mut goes_on_alive = |keys| {
        if told.elapsed() >= alive {
            told = Instant::now();
            if to.write_all(b"\n").and_then(|()| to.flush()).is_err() {
                return false;
            }
        }
        goes_on(keys)
    };
    let (Length(len), _) = everything.write(Length(0), For::Redis82, &mut goes_on_alive)?;
    write!(to, "${len}\r\n")?;
    let (mut to, _) = everything.write(to, For::Redis82, goes_on)?;
    Ok(to.flush()?)
}

/// Counts what is written.
struct Length(u64);

impl Write for Length {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn replconf(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    /// What replicas tell of themselves, and whether it is answered.
    const KNOWN: [(&str, bool); 10] = [
        ("listening-port", true),
        ("ip-address", true),
        ("capa", true),
        ("version", true),
        ("rdb-only", true),
        ("rdb-filter-only", true),
        ("rdb-channel", true),
        ("main-ch-client-id", true),
        ("ack", false),
        ("getack", false),
    ];
    if args.len().is_multiple_of(2) {
        return Err(Error::Syntax);
    }
    let mut answers = true;
    for at in (1..args.len()).step_by(2) {
        let (name, value) = (&args[at], &args[at + 1]);
        let known = KNOWN.iter().find(|(known, _)| name.eq_ignore_ascii_case(known.as_bytes()));
        let Some((known, answered)) = known else {
            let text = [b"ERR Unrecognized REPLCONF option: ", crate::error::quotation(name, 128)].concat();
            return Err(Error::Quoted(text.into()));
        };
        answers &= answered;
        if *known == "capa" && value.eq_ignore_ascii_case(b"eof") {
            ctx.alter().knows_end_marks = true;
        }
    }
    if answers {
        out.ok();
    }
    Ok(())
}

const FETCH: u32 = flags::ADMIN | flags::NOSCRIPT | flags::NO_MULTI | flags::NO_ASYNC_LOADING;
const TELL: u32 = flags::ADMIN | flags::NOSCRIPT | flags::LOADING | flags::STALE | flags::ALLOW_BUSY;

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("sync", sync, 1, FETCH, Group::Server)
        .help("1.0.0", "Sends dump.rdb of everything, then closes the connection.")
        .syntax("", ""),
    Command::new("psync", psync, -3, FETCH, Group::Server)
        .help("2.8.0", "Sends dump.rdb of everything, then closes the connection.")
        .syntax("replicationid offset", ""),
    Command::new("replconf", replconf, -1, TELL, Group::Server)
        .help("3.0.0", "Tells what whoever fetches dump.rdb can read.")
        .syntax("", "O(1)"),
];

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::shard::keyspace::walk::tests::engine;

    /// While the length is found out, a peer that waits for it hears newlines, which come before the file and are no part of it.
    #[test]
    fn who_waits_for_the_length_hears_that_it_is_being_made() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let engine = engine(dir.path(), 1);
        let ns = engine.shards.at(0).core().names.id(b"0").unwrap();
        let put = |key: u8| engine.transact(&[0], 1, |txn| txn.put_string(ns, &[key], b"value", 0)).unwrap();
        (0..20).for_each(|key| _ = put(key));
        for (alive, marks_end) in [(Duration::ZERO, false), (Duration::MAX, false), (Duration::ZERO, true)] {
            let (to, mut from) = feed();
            let engine = engine.clone();
            let sent = std::thread::spawn(move || send(&engine, to, marks_end, alive));
            let all: Vec<u8> = std::iter::from_fn(|| from.blocking_recv()).flatten().collect();
            sent.join().unwrap().unwrap();
            let newlines = all.iter().take_while(|byte| **byte == b'\n').count();
            assert_eq!(newlines, if alive.is_zero() && !marks_end { 20 } else { 0 });
            let head = all[newlines..].split(|byte| *byte == b'\r').next().unwrap();
            let file = &all[newlines + head.len() + 2..];
            assert!(file.starts_with(b"REDIS"), "{}", all.escape_ascii());
            if !marks_end {
                assert_eq!(head, format!("${}", file.len()).as_bytes());
            }
        }
        let (to, from) = feed();
        drop(from);
        assert!(send(&engine, to, false, Duration::ZERO).is_err(), "who has left is not told, nor waited for");
        engine.close(false).unwrap();
    }

    #[test]
    fn who_is_refused_leaves_the_others_their_places() {
        let places: Vec<_> = std::iter::from_fn(Turn::take).collect();
        assert_eq!(places.len(), MOST);
        assert!((0..2 * MOST).all(|_| Turn::take().is_none()));
        drop(places);
        assert!(Turn::take().is_some());
    }
}
