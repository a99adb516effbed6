//! What a connection has in hand: what was read and not run, replies and messages on their way out.

use std::collections::HashSet;
use std::io;
use std::task::{Context, Poll, Waker};

use super::ahead::{Ahead, Parsed, keep_quoted};
use super::socket::Socket;
use crate::command;
use crate::handler::effects::Effect;
use crate::handler::pubsub::{By, Name};
use crate::handler::table::Id;
use crate::handler::{Command, Reply, Session};
use crate::resp::{Limits, Parser};
use crate::shard::memory::reads::Reads;

/// Output above which no more requests are run until the peer has read.
const OUTPUT_HIGH: usize = 1 << 20;
/// What a buffer larger than this has reserved and not used takes no memory yet: the system gives it page by page.
const UNTOUCHED: usize = 1 << 20;
/// A buffer larger than this is given back once it is empty.
const KEEP: usize = 16 << 10;

/// The part of a connection that changes as it is worked on.
pub(super) struct State {
    pub(super) parser: Parser,
    pub(super) limits: Limits,
    pub(super) input: Vec<u8>,
    pub(super) out: Reply,
    /// What leaves with the replies in `out`.
    pub(super) effects: Vec<Effect>,
    /// Their memory, bytes.
    pub(super) effect_bytes: usize,
    /// Replies in `out`.
    pub(super) replies: usize,
    pub(super) sending: Vec<u8>,
    pub(super) sent: usize,
    pub(super) session: Option<Box<Session>>,
    pub(super) last: Option<(Id, &'static Command)>,
    pub(super) waker: Option<Waker>,
    pub(super) closing: bool,
    /// To be closed whatever is left.
    pub(super) broken: bool,
    /// The peer cannot be told anything any more: replies are dropped.
    pub(super) deaf: bool,
    /// How often a writer has waited for what the last read brought.
    pub(super) pauses: u32,
    /// What the commands ahead lacked, for their next run.
    pub(super) reads: Option<Reads>,
    /// How often the next of them has waited for it.
    pub(super) tries: usize,
    /// How long it ran before that.
    pub(super) tried_ns: u64,
    /// The last read filled the scratch buffer: there is more.
    pub(super) more: bool,
    /// Nothing is read until the output has gone: whoever sends it wakes the task.
    pub(super) stalled: bool,
    /// Messages in `out`: where they stand. They are not of the log.
    pub(super) pushed: Vec<std::ops::Range<usize>>,
    /// Notices that come after the reply of the command that runs elsewhere.
    pub(super) notices: Vec<u8>,
    /// What the connection hears, for the end.
    pub(super) hears: HashSet<(By, Name), foldhash::fast::RandomState>,
}

impl State {
    /// Of a new connection.
    pub(super) fn new(session: Box<Session>) -> State {
        State {
            parser: Parser::default(),
            limits: Limits::default(),
            input: Vec::new(),
            out: Reply::new(2),
            effects: Vec::new(),
            effect_bytes: 0,
            replies: 0,
            sending: Vec::new(),
            sent: 0,
            session: Some(session),
            last: None,
            waker: None,
            closing: false,
            broken: false,
            deaf: false,
            pauses: 0,
            reads: None,
            tries: 0,
            tried_ns: 0,
            more: false,
            stalled: false,
            pushed: Vec::new(),
            notices: Vec::new(),
            hears: HashSet::default(),
        }
    }

    /// Bytes of requests received and not run, those queued by MULTI included.
    pub(super) fn request_bytes(&self) -> usize {
        let queued =
            self.session.as_ref().and_then(|session| session.multi.as_ref()).map_or(0, |multi| multi.memory_bytes());
        self.input.len() + queued
    }

    /// Bytes of memory that the buffers hold, in use or not.
    pub(super) fn memory_bytes(&self) -> usize {
        let taken = |len: usize, capacity: usize| if capacity > UNTOUCHED { len } else { capacity };
        taken(self.input.len(), self.input.capacity())
            + self.parser.memory_bytes()
            + taken(self.out.len(), self.out.capacity())
            + taken(self.sending.len(), self.sending.capacity())
            + self.reads.as_ref().map_or(0, Reads::memory_bytes)
            + self.effect_bytes
            + self.notices.capacity()
    }

    /// Makes room for so many bytes more of a request: twice what there was, as vectors do, but no more than the request
    /// is known to need.
    pub(super) fn make_room(&mut self, more: usize) {
        let needed = self.input.len() + more;
        if needed > self.input.capacity() {
            let whole = self.input.len() + self.parser.missing().max(more);
            let room = if self.parser.missing() > 0 { whole.min(2 * self.input.capacity()) } else { 0 };
            if room >= needed {
                self.input.reserve_exact(room - self.input.len());
            }
        }
    }

    /// Keeps what of the input is not done.
    pub(super) fn keep_rest(&mut self, mut input: Vec<u8>, done: usize) {
        input.drain(..done);
        let much = if input.is_empty() { KEEP } else { 16 * KEEP };
        if input.capacity() > much && input.len() < input.capacity() / 4 {
            input.shrink_to(input.len());
        }
        self.input = input;
    }

    /// What waits to leave is so much that the client's next commands wait for it.
    pub(super) fn is_full(&self) -> bool {
        self.pending_bytes() + self.effect_bytes > OUTPUT_HIGH
    }

    pub(super) fn pending_bytes(&self) -> usize {
        self.out.len() + self.notices.len() + self.sending.len() - self.sent
    }

    /// Parses up to `most` commands. An error is told after the commands before it have run.
    pub(super) fn parse_ahead(
        &mut self,
        ahead: &mut Ahead,
        input: &mut [u8],
        from: usize,
        most: usize,
    ) -> Result<(), crate::resp::ProtocolError> {
        let Ahead { spans, calls, lines, .. } = ahead;
        spans.clear();
        calls.clear();
        lines.clear();
        let mut at = from;
        while calls.len() < most && at < input.len() {
            let first = spans.len();
            if input[at] != b'*' && !self.parser.in_request() {
                keep_quoted(&input[at..], at, lines);
            }
            match self.parser.parse(input, at, &self.limits, spans)? {
                None => break,
                Some(end) => {
                    let count = spans.len() - first;
                    let command = (count > 0).then(|| spans[first]).and_then(|(from, to)| {
                        let name = &input[from as usize..to as usize];
                        let table = command::table();
                        match self.last {
                            Some((_, last))
                                if last.name.as_bytes().eq_ignore_ascii_case(name) && !table.is_renamed() =>
                            {
                                self.last
                            }
                            _ => table.find(name),
                        }
                    });
                    self.last = command.or(self.last);
                    calls.push(Parsed::new(first as u32..(first + count) as u32, end, command));
                    at = end;
                }
            }
        }
        Ok(())
    }

    /// Moves `out` to the socket as far as it takes it.
    pub(super) fn send_now(&mut self, socket: &Socket) -> io::Result<()> {
        self.replies = 0;
        self.pushed.clear();
        if self.sending.is_empty() {
            // The usual case: all of it leaves, and `sending` needs no memory.
            let mut sent = 0;
            if socket.send(self.out.as_slice(), &mut sent)? {
                self.out.give_back(KEEP);
            } else {
                self.out.swap(&mut self.sending);
                self.sent = sent;
            }
            return Ok(());
        }
        // Whoever reads a little at a time would otherwise make the buffer grow with all that was ever sent.
        if self.sent > self.sending.len() / 2 {
            self.sending.drain(..self.sent);
            self.sent = 0;
        }
        self.sending.extend_from_slice(self.out.as_slice());
        self.out.give_back(KEEP);
        if socket.send(&self.sending, &mut self.sent)? {
            self.finish_sending();
        }
        Ok(())
    }

    pub(super) fn poll_send(&mut self, socket: &Socket, cx: &mut Context<'_>) -> io::Result<()> {
        while self.sent < self.sending.len() {
            match socket.poll_write(cx, &self.sending[self.sent..]) {
                Poll::Ready(n) => self.sent += n?,
                Poll::Pending => return Ok(()),
            }
        }
        self.finish_sending();
        Ok(())
    }

    pub(super) fn drop_output(&mut self) {
        self.replies = 0;
        self.pushed.clear();
        self.notices = Vec::new();
        self.out.give_back(KEEP);
        self.finish_sending();
    }

    pub(super) fn finish_sending(&mut self) {
        self.sent = 0;
        self.sending.clear();
        if self.sending.capacity() > KEEP {
            self.sending = Vec::new();
        }
    }
}
