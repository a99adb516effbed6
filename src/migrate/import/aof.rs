//! AOF into an engine: commands, each after those before it that have to do with it, as a client would have sent them. One thread
//! reads them, and [`lanes`] run them.
//!
//! No key goes because of its time while later commands may be about it, as in Redis, which lets nothing expire while it loads. What
//! has passed goes once a server runs. The clock tells from when relative times count, and when consumers were seen: it begins with
//! the time of the base, or now where there is none, and goes on to what XCLAIM tells, which says when entries were delivered.

use std::fs::File;
use std::io::Read;

use parking_lot::Mutex;

use super::lanes::{BATCH_BYTES, Lanes, why_not};
use super::{Failure, Place, Session, Tally, files};
use crate::handler::{Args, OwnedArgs};
use crate::rdb::file::{FileError, Input};
use crate::util::num::parse_i64;
use crate::util::time::now_ms;

/// Bytes of a transaction.
const MOST_QUEUED: usize = if cfg!(test) { 64 << 10 } else { 1 << 30 };
/// The longest argument.
const MOST_ARG: usize = 512 << 20;
/// Arguments of a command.
const MOST_ARGS: i64 = 1 << 20;
/// The longest line: a number, or a comment.
const MOST_LINE: usize = 1 << 10;

impl Session {
    /// Reads a file of commands.
    pub(super) fn read_aof(&mut self, part: &files::Part) -> Result<(), Failure> {
        let failure = |error: &dyn std::fmt::Display| Failure(format!("{}: {error}", part.path.display()));
        let file = File::open(&part.path).map_err(|error| failure(&error))?;
        if !part.goes_on {
            self.clock_ms = now_ms();
        }
        self.read_commands(part, Input::new(file))
    }

    /// The commands that follow came after this time, in seconds.
    pub(super) fn set_clock(&mut self, ctime_s: &[u8]) {
        if let Some(seconds) = parse_i64(ctime_s).and_then(|seconds| u64::try_from(seconds).ok()) {
            self.clock_ms = seconds.saturating_mul(1000);
        }
    }

    /// Runs the commands from here to the end.
    pub(super) fn read_commands<R: Read>(&mut self, part: &files::Part, input: Input<R>) -> Result<(), Failure> {
        let (server, tally) = (self.server.clone(), Mutex::new(Tally::default()));
        self.local.select(b"0");
        let read = std::thread::scope(|scope| {
            let mut lanes = Lanes::begin(scope, crate::shard::engine::cores(), &server, part, &tally);
            let read = self.commands(part, input, &mut lanes);
            // What came before counts first.
            lanes.fence().and(read)
        });
        self.local.write_out();
        tally.into_inner().notes.into_iter().for_each(|(what, count)| self.tally.note(what, count));
        read
    }

    fn commands<R: Read>(
        &mut self,
        part: &files::Part,
        mut input: Input<R>,
        lanes: &mut Lanes<'_>,
    ) -> Result<(), Failure> {
        input.hold_at_most(usize::MAX);
        let (mut kept, mut args) = (input.offset(), OwnedArgs::default());
        loop {
            let offset = input.offset();
            let place = |offset| Place { path: &part.path, offset, db: b"", key: None };
            if self.local.queued_bytes().is_none() {
                kept = offset;
            }
            let is_command = match read_command(&mut input, &mut args) {
                Ok(Some(is_command)) => is_command,
                Ok(None) if self.local.queued_bytes().is_none() => return Ok(()),
                Ok(None) | Err(Wrong::File(FileError::Cut)) if part.may_be_cut => {
                    self.local.forget_queue();
                    let (path, left) = (part.path.display(), input.offset() - kept);
                    let what =
                        format!("{path}: cut within a command or transaction at offset {kept}, {left} bytes left out");
                    self.tally.note(what, 1);
                    return Ok(());
                }
                Ok(None) => return Err(place(kept).failure("the file ends within a transaction")),
                Err(wrong) => return Err(place(offset).failure(wrong)),
            };
            input.release();
            if !is_command {
                continue;
            }
            // It is not kept in memory while others are read.
            let is_large = args.bytes() > BATCH_BYTES;
            let call = args.as_args();
            // Also of one that is queued: it runs with EXEC. What is ahead of the time at hand is no time, as in Redis.
            self.clock_ms = self.clock_ms.max(time_of_claim(call).min(now_ms()));
            if !is_large && let Some(lane) = self.local.lane_of(call) {
                lanes.add(lane, call, offset, self.clock_ms)?;
            } else {
                lanes.fence()?;
                self.run_alone(call).map_err(|why| place(offset).failure(why))?;
                lanes.turn_to(self.local.db());
            }
            if is_large {
                args = OwnedArgs::default();
            }
            self.tally.commands += 1;
            if self.tally.commands.is_multiple_of(256) {
                self.progress.tell(self.done_bytes + input.offset(), self.tally.keys + self.tally.commands);
            }
        }
    }

    fn run_alone(&mut self, args: Args<'_>) -> Result<(), String> {
        let reply = self.local.command(args, self.clock_ms).map_err(|error| error.text().into_owned())?;
        self.local.write_out();
        if self.local.queued_bytes().is_some_and(|bytes| bytes > MOST_QUEUED) {
            return Err(format!("a transaction of more than {MOST_QUEUED} bytes"));
        }
        if let Some(why) = why_not(reply.as_slice()) {
            let name = args[0].escape_ascii().to_string();
            // What follows would go where it does not belong.
            if name.eq_ignore_ascii_case("select") {
                return Err(format!("{why}; --databases has more of them"));
            }
            // As with Redis, which does not look at what its commands reply while it loads.
            self.tally.note(format!("{name}: {why}"), 1);
        }
        Ok(())
    }
}

/// The time at which an XCLAIM says that entries were delivered, which is not to be ahead of its own; 0 for other commands.
pub(super) fn time_of_claim(args: Args<'_>) -> u64 {
    let is_claim = args.get(0).is_some_and(|name| name.eq_ignore_ascii_case(b"xclaim"));
    let mut time = is_claim.then(|| args.behind(5, &[b"time"]));
    let time = time.as_mut().and_then(|words| words.next()).and_then(parse_i64);
    time.and_then(|time| u64::try_from(time).ok()).unwrap_or_default()
}

/// Why no command can be read.
enum Wrong {
    File(FileError),
    Format(&'static str),
}

impl std::fmt::Display for Wrong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Wrong::File(error) => error.fmt(f),
            Wrong::Format(what) => f.write_str(what),
        }
    }
}

impl From<FileError> for Wrong {
    fn from(error: FileError) -> Self {
        Wrong::File(error)
    }
}

/// Reads the next command into `args`; false for a comment, and nothing at all at the end.
fn read_command<R: Read>(input: &mut Input<R>, args: &mut OwnedArgs) -> Result<Option<bool>, Wrong> {
    if input.is_at_end()? {
        return Ok(None);
    }
    args.clear();
    let count = match read_head(input)? {
        (b'#', _) => return Ok(Some(false)),
        (b'*', count) => count.filter(|count| (1..=MOST_ARGS).contains(count)),
        _ => None,
    };
    let count = count.ok_or(Wrong::Format("this is no command"))?;
    let mut left = MOST_QUEUED;
    for _ in 0..count {
        let len = match read_head(input)? {
            (b'$', len) => len.and_then(|len| usize::try_from(len).ok()),
            _ => None,
        };
        let len = len.filter(|len| *len <= MOST_ARG).ok_or(Wrong::Format("this is no argument of a command"))?;
        left = left.checked_sub(len).ok_or(Wrong::Format("a command of more than 1 GB"))?;
        input.release();
        args.push(input.bytes(len)?);
        if input.bytes(2)? != b"\r\n" {
            return Err(Wrong::Format("an argument is longer than it says"));
        }
    }
    Ok(Some(true))
}

/// A line that is a number behind its first byte; the first byte is 0 if there is none, the number nothing if it is none.
fn read_head<R: Read>(input: &mut Input<R>) -> Result<(u8, Option<i64>), Wrong> {
    let mut seen = 0;
    loop {
        let ahead = input.ahead(seen + 1)?;
        let Some(more) = ahead.get(seen..).filter(|more| !more.is_empty()) else {
            input.take(usize::MAX);
            return Err(FileError::Cut.into());
        };
        if let Some(end) = memchr::memchr(b'\n', &more[..more.len().min(MOST_LINE)]) {
            let line = ahead[..seen + end].strip_suffix(b"\r").unwrap_or(&ahead[..seen + end]);
            let head = line.split_first().map_or((0, None), |(&first, number)| (first, parse_i64(number)));
            input.take(seen + end + 1);
            return Ok(head);
        }
        seen += more.len();
        if seen > MOST_LINE {
            return Err(Wrong::Format("a line has no end"));
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::super::tests::session;
    use super::*;
    use crate::migrate::local::tests::server;

    /// Reads a file of this text.
    fn read(session: &mut Session, text: &str) -> Result<(), String> {
        let part =
            files::Part { path: "file.aof".into(), kind: files::Kind::Aof, bytes: 0, may_be_cut: false, goes_on: true };
        session.read_commands(&part, Input::new(text.as_bytes())).map_err(|failure| failure.to_string())
    }

    /// Until EXEC comes all of it is in memory.
    #[test]
    fn a_transaction_is_as_long_as_memory_may_hold() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let mut session = session(&server(dir.path()));
        let sets = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1000\r\n{}\r\n", "v".repeat(1000)).repeat(100);
        assert_eq!(read(&mut session, &sets), Ok(()));
        let why = read(&mut session, &format!("*1\r\n$5\r\nMULTI\r\n{sets}")).unwrap_err();
        assert!(why.contains("a transaction of more than 65536 bytes"), "{why}");
    }

    /// What is no AOF may have no line at all: memory does not go with it.
    #[test]
    fn a_line_is_not_read_to_an_end_that_does_not_come() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let mut session = session(&server(dir.path()));
        assert_eq!(read(&mut session, &format!("#{}\r\n*1\r\n$4\r\nPING\r\n", "x".repeat(1000))), Ok(()));
        for begun in ["#", "*", "*1\r\n$"] {
            for end in ["", "\r\n"] {
                let why = read(&mut session, &format!("{begun}{}{end}", "1".repeat(100_000))).unwrap_err();
                assert!(why.contains("a line has no end"), "{why}");
            }
        }
    }
}
