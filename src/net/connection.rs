//! A connection: bytes in, commands run, replies out.
//!
//! | buffer | content |
//! |---|---|
//! | the thread's scratch | what was just read; most requests never leave it |
//! | `input` | the rest of a request that has not arrived whole |
//! | `out` | replies whose log records are not known to be written |
//! | `sending` | replies on their way, from `sent` on |
//!
//! Up to 32 commands of a pipeline are parsed ahead ([`super::ahead`]). Commands run in order; one that must wait stops the ones behind it, which are parsed again later. What
//! is kept of them meanwhile is the thread's, so that an idle connection costs little.
//!
//! Invariants: nothing of `out` is sent before the log has reached `need`; `Session` is away exactly while a command
//! runs elsewhere; a peer that does not read stops being read once its output passes a bound.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use super::ahead::{AHEAD, Ahead, Parsed};
use super::worker::Worker;
use crate::command::run::{self, Call, Finished, Outcome};
use crate::command::{self, Id};
use crate::error::Error;
use crate::handler::effects::{Effect, carry_out};
use crate::handler::limits::request_limits;
use crate::handler::server::bump;
use crate::handler::session::bits::{CLOSING, UNIX};
use crate::handler::session::{Client, ReplyMode};
use crate::handler::{After, Args, Command, Reply, Route, Session, flags};
use crate::log::Lsn;
use crate::resp::{Limits, Parser, Span};
use crate::shard::engine::gate;
use crate::util::time::now_ms;

/// Output above which no more requests are run until the peer has read.
const OUTPUT_HIGH: usize = 1 << 20;
/// Until a command that may not run yet is tried again: thousands of paused clients must leave the thread idle.
const CLOSED_PAUSE: Duration = Duration::from_millis(10);
/// A buffer larger than this is given back once it is empty.
const KEEP: usize = 16 << 10;

/// A client's socket.
pub enum Socket {
    /// TCP.
    Tcp(TcpStream),
    /// Unix domain.
    Unix(UnixStream),
}

impl Socket {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self {
            Socket::Tcp(s) => Pin::new(s).poll_read(cx, buf),
            Socket::Unix(s) => Pin::new(s).poll_read(cx, buf),
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Socket::Tcp(s) => Pin::new(s).poll_write(cx, buf),
            Socket::Unix(s) => Pin::new(s).poll_write(cx, buf),
        }
    }

    fn try_write(&self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(s) => s.try_write(buf),
            Socket::Unix(s) => s.try_write(buf),
        }
    }

    fn fd(&self) -> i32 {
        use std::os::fd::AsRawFd;
        match self {
            Socket::Tcp(s) => s.as_raw_fd(),
            Socket::Unix(s) => s.as_raw_fd(),
        }
    }
}

/// A connection of this thread.
pub struct Connection {
    worker: Rc<Worker>,
    client: Arc<Client>,
    state: RefCell<State>,
    /// In the worker's queue for the next tick.
    queued: Cell<bool>,
    /// LSN that the replies in `out` wait for.
    need: Cell<Lsn>,
}

struct State {
    socket: Socket,
    parser: Parser,
    limits: Limits,
    input: Vec<u8>,
    out: Reply,
    /// What leaves with the replies in `out`.
    effects: Vec<Effect>,
    /// Replies in `out`.
    replies: usize,
    sending: Vec<u8>,
    sent: usize,
    session: Option<Box<Session>>,
    last: Option<(Id, &'static Command)>,
    waker: Option<Waker>,
    closing: bool,
    broken: bool,
    /// The writer has waited for what the last read brought.
    delayed: bool,
    /// The last read filled the scratch buffer: there is more.
    more: bool,
    /// Nothing is read until the output has gone: whoever sends it wakes the task.
    stalled: bool,
}

/// Why the input stopped being worked on.
enum Stop {
    /// All of it is done, or an incomplete request is left.
    Dry,
    /// A command runs elsewhere.
    Posted(tokio::sync::oneshot::Receiver<Finished>),
    /// A command asked for a pause.
    Sleep(Duration),
    /// A command's reply is to be held back for this long.
    Hold(Duration, Vec<u8>),
    /// The command may not run yet; the same one is tried again after this.
    Again(Duration),
    /// The peer must read first.
    Full,
    /// To be closed once the output is out.
    Close,
}

impl Connection {
    /// Takes a socket over.
    pub fn open(worker: Rc<Worker>, socket: Socket, addr: String, laddr: String) -> Rc<Connection> {
        let server = worker.server.clone();
        let now = now_ms();
        let client = Arc::new(Client {
            id: server.next_client.fetch_add(1, Ordering::Relaxed),
            addr,
            laddr,
            fd: socket.fd(),
            since_ms: now,
            active_ms: now.into(),
            proto: 2.into(),
            multi: (-1).into(),
            command: u32::MAX.into(),
            ..Client::default()
        });
        if matches!(socket, Socket::Unix(_)) {
            client.bits.store(UNIX, Ordering::Relaxed);
        }
        server.clients.lock().insert(client.id, client.clone());
        let settings = server.config.settings();
        let authenticated = !server.password_required.load(Ordering::Relaxed);
        let names = server.engine.first_names();
        let session = Box::new(Session::new(client.clone(), names, authenticated));
        let state = State {
            socket,
            parser: Parser::default(),
            limits: request_limits(&settings),
            input: Vec::new(),
            out: Reply::new(2),
            effects: Vec::new(),
            replies: 0,
            sending: Vec::new(),
            sent: 0,
            session: Some(session),
            last: None,
            waker: None,
            closing: false,
            broken: false,
            delayed: false,
            more: false,
            stalled: false,
        };
        Rc::new(Connection { worker, client, state: RefCell::new(state), queued: Cell::new(false), need: Cell::new(0) })
    }

    /// LSN that the replies wait for.
    #[inline]
    pub fn need(&self) -> Lsn {
        self.need.get()
    }

    /// The connection's task.
    pub async fn serve(self: Rc<Self>) {
        loop {
            match poll_fn(|cx| self.poll(cx)).await {
                Stop::Posted(finished) => {
                    let Ok(finished) = finished.await else { break };
                    if let Some(stop) = self.take_back(finished) {
                        self.pause(stop).await;
                    }
                }
                Stop::Close => break,
                stop @ (Stop::Sleep(_) | Stop::Again(_) | Stop::Hold(..)) => self.pause(stop).await,
                Stop::Dry | Stop::Full => {}
            }
        }
        // What has committed happens, whether the reply can leave or not.
        let effects = std::mem::take(&mut self.state.borrow_mut().effects);
        carry_out(&self.worker.server, effects);
        // Before the descriptor is closed and its number given to somebody else.
        self.worker.server.clients.lock().remove(&self.client.id);
    }

    async fn pause(self: &Rc<Self>, stop: Stop) {
        match stop {
            Stop::Sleep(time) | Stop::Again(time) => tokio::time::sleep(time).await,
            Stop::Hold(time, reply) => {
                tokio::time::sleep(time).await;
                self.put_held(&reply);
            }
            Stop::Dry | Stop::Full | Stop::Close | Stop::Posted(_) => {}
        }
    }

    /// Sends what may be sent, runs what has arrived, reads more.
    fn poll(self: &Rc<Self>, cx: &mut Context<'_>) -> Poll<Stop> {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        if !state.waker.as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
            state.waker = Some(cx.waker().clone());
        }
        loop {
            if !state.sending.is_empty() {
                if state.poll_send(cx).is_err() {
                    return Poll::Ready(Stop::Close);
                }
                self.client.output_bytes.store(state.pending_bytes() as u64, Ordering::Relaxed);
            }
            let drained = state.out.is_empty() && state.sending.is_empty();
            let killed = self.client.bits.load(Ordering::Relaxed) & CLOSING != 0;
            if state.broken || killed || state.closing && drained {
                return Poll::Ready(Stop::Close);
            }
            state.stalled = state.closing || state.pending_bytes() > OUTPUT_HIGH;
            if state.stalled {
                return Poll::Pending;
            }
            if !state.input.is_empty() && state.parser.missing() == 0 {
                let mut input = std::mem::take(&mut state.input);
                let (done, stop) = self.run(state, &mut input);
                state.keep_rest(input, done);
                match stop {
                    Stop::Dry if !state.broken => {}
                    Stop::Dry | Stop::Full => continue,
                    stop => return Poll::Ready(stop),
                }
            }
            match self.read(state, cx) {
                Poll::Ready(Some(Stop::Dry | Stop::Full)) if state.more => {
                    // Others first, the tick among them: a peer that sends without end must not keep them waiting.
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Poll::Ready(Some(Stop::Dry | Stop::Full)) => {}
                Poll::Ready(Some(stop)) => return Poll::Ready(stop),
                Poll::Ready(None) => return Poll::Ready(Stop::Close),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Reads once and runs what came. `None`: the peer is gone.
    fn read(self: &Rc<Self>, state: &mut State, cx: &mut Context<'_>) -> Poll<Option<Stop>> {
        let mut scratch = self.worker.scratch.borrow_mut();
        let mut buf = ReadBuf::new(&mut scratch);
        match state.socket.poll_read(cx, &mut buf) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Err(_)) => return Poll::Ready(None),
            Poll::Ready(Ok(())) => {}
        }
        let data = buf.filled_mut();
        if data.is_empty() {
            return Poll::Ready(None);
        }
        self.worker.stay_awake();
        state.delayed = false;
        state.more = data.len() == super::worker::READ;
        bump(&self.worker.runner.borrow().stats.bytes_in, data.len() as u64);
        bump(&self.client.totals[1], data.len() as u64);
        let stop = if state.input.is_empty() {
            let (done, stop) = self.run(state, data);
            state.input.extend_from_slice(&data[done..]);
            stop
        } else {
            let mut input = std::mem::take(&mut state.input);
            input.extend_from_slice(data);
            let (done, stop) = self.run(state, &mut input);
            state.keep_rest(input, done);
            stop
        };
        if state.request_bytes() > self.worker.setting(|s| s.client_query_buffer_limit) {
            tracing::warn!(client = self.client.id, "closing client that reached max query buffer length");
            return Poll::Ready(None);
        }
        self.client.query_bytes.store(state.input.len() as u64, Ordering::Relaxed);
        Poll::Ready(Some(stop))
    }

    /// Runs the commands in `input`; how many bytes are done, and why it stopped.
    fn run(self: &Rc<Self>, state: &mut State, input: &mut [u8]) -> (usize, Stop) {
        let mut done = 0;
        let now_ms = now_ms();
        self.client.active_ms.store(now_ms, Ordering::Relaxed);
        let ahead = &mut *self.worker.ahead.borrow_mut();
        let stop = loop {
            // A stranger's request decides how the next one is read.
            let stranger = state.session.as_ref().is_some_and(|session| !session.authenticated)
                && self.worker.server.password_required.load(Ordering::Relaxed);
            state.limits.unauthenticated = stranger;
            let most = if stranger { 1 } else { AHEAD };
            let parsed = state.parse_ahead(ahead, input, done, most);
            if let [_, _, ..] | [Parsed { command: Some((_, Command { route: Route::Keys, .. })), .. }] =
                ahead.calls[..]
                && let Some(session) = &state.session
            {
                ahead.look(&self.worker.server.engine, session.ns, input);
            }
            let mut stop = None;
            for call in &ahead.calls {
                stop = self.run_one(state, &ahead.spans, input, call, now_ms);
                if let Some(Stop::Again(time)) = stop {
                    stop = Some(Stop::Sleep(time));
                    break;
                }
                done = call.end;
                if stop.is_none() && state.pending_bytes() > OUTPUT_HIGH {
                    stop = Some(Stop::Full);
                }
                if stop.is_some() {
                    break;
                }
            }
            ahead.give_back();
            if let Some(stop) = stop {
                // What was parsed beyond is parsed again.
                state.parser = Parser::default();
                ahead.requote(input, done);
                break stop;
            }
            if let Err(error) = parsed {
                state.out.error_text(&error.text());
                state.replies += 1;
                state.closing = true;
                done = input.len();
                break Stop::Dry;
            }
            if state.closing || ahead.calls.len() < most {
                break Stop::Dry;
            }
        };
        self.reply_soon(state);
        (done, stop)
    }

    /// Runs one command. `None`: go on.
    #[inline]
    fn run_one(&self, state: &mut State, spans: &[Span], input: &[u8], call: &Parsed, now_ms: u64) -> Option<Stop> {
        if call.count == 0 {
            return None;
        }
        let spans = &spans[call.first as usize..(call.first + call.count) as usize];
        let args = Args::new(input, spans);
        let begin = state.out.len();
        let mut need = self.need.get();
        if let Some(session) = state.session.as_deref_mut()
            && session.reply_mode == ReplyMode::SkipNext
        {
            session.reply_mode = ReplyMode::Skip;
        }
        let Some(command) = call.command else {
            if is_http(&args[0]) {
                tracing::warn!(
                    client = self.client.addr,
                    "closing a client that speaks HTTP: somebody may be attacking"
                );
                state.out.truncate(0);
                state.replies = 0;
                return Some(Stop::Close);
            }
            unknown(state.session.as_deref_mut(), args, &mut state.out);
            self.worker.runner.borrow().stats.count_error(&state.out.as_slice()[begin..]);
            return self.after(state, begin);
        };
        // Where writes are refused, waiting would not help.
        if self.worker.server.engine.gate.load(Ordering::Relaxed) & (gate::SLOWED | gate::REFUSED) == gate::SLOWED
            && let Some(delay) = self.slow_down(command.1, &mut state.delayed)
        {
            return Some(Stop::Again(delay));
        }
        let hash = match command.1.route {
            Route::One(at) if call.hash == 0 && at < args.len() => self.worker.server.engine.router.hash(&args[at]),
            _ => call.hash,
        };
        let call = Call { command, args, hash, now_ms };
        let mut runner = self.worker.runner.borrow_mut();
        let outcome = run::start(&mut runner, &mut state.session, call, &mut state.out, &mut need);
        state.effects.append(&mut runner.effects.take());
        self.need.set(need);
        match outcome {
            Outcome::Done => {
                bump(&runner.stats.commands, 1);
                bump(&self.client.totals[0], 1);
                self.after(state, begin)
            }
            Outcome::Posted(finished) => {
                bump(&runner.stats.commands, 1);
                bump(&self.client.totals[0], 1);
                Some(Stop::Posted(finished))
            }
            Outcome::Closed => Some(Stop::Again(CLOSED_PAUSE)),
        }
    }

    /// What a command left to be done with its reply and the connection.
    #[inline]
    fn after(&self, state: &mut State, begin: usize) -> Option<Stop> {
        let session = state.session.as_deref_mut()?;
        match session.reply_mode {
            ReplyMode::On | ReplyMode::SkipNext => {}
            mode => {
                state.out.truncate(begin);
                if mode == ReplyMode::Skip {
                    session.reply_mode = ReplyMode::On;
                }
            }
        }
        state.out.set_proto(session.proto);
        let stop = match std::mem::replace(&mut session.after, After::Nothing) {
            After::Nothing => None,
            After::Close => {
                state.closing = true;
                Some(Stop::Dry)
            }
            After::HoldMs(ms) => {
                let reply = state.out.as_slice()[begin..].to_vec();
                state.out.truncate(begin);
                Some(Stop::Hold(Duration::from_millis(ms), reply))
            }
        };
        state.replies += usize::from(state.out.len() > begin);
        stop
    }

    /// The time of a reply that was held back is over.
    fn put_held(self: &Rc<Self>, reply: &[u8]) {
        let mut state = self.state.borrow_mut();
        state.out.raw(reply);
        state.replies += usize::from(!reply.is_empty());
        self.reply_soon(&mut state);
    }

    /// The pause of a writer while too much is dirty: once for what one read brought, and again and again where the
    /// budget is used up. It comes before any lease, else it would block the flush that it waits for.
    #[cold]
    fn slow_down(&self, command: &Command, delayed: &mut bool) -> Option<Duration> {
        use crate::shard::engine::MOST_DELAY_US;
        let delay_us = self.worker.server.engine.write_delay_us.load(Ordering::Relaxed);
        if !command.has(flags::WRITE) && command.name != "exec" || delay_us == 0 {
            return None;
        }
        if *delayed && delay_us < MOST_DELAY_US {
            return None;
        }
        *delayed = true;
        Some(Duration::from_micros(delay_us))
    }

    /// A command that ran elsewhere is back; how to go on if not at once.
    fn take_back(self: &Rc<Self>, finished: Finished) -> Option<Stop> {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        if let Some(slot) = finished.failed {
            let stats = &self.worker.runner.borrow().stats;
            bump(&stats.calls[slot as usize][2], 1);
            stats.count_error(finished.reply.as_slice());
        }
        state.session = Some(finished.session);
        state.effects.extend(finished.effects);
        let begin = state.out.len();
        state.out.append(finished.reply);
        self.need.set(self.need.get().max(finished.need));
        let stop = self.after(state, begin);
        self.reply_soon(state);
        stop
    }

    /// Sends the replies if the log has got there, else leaves them to the tick.
    fn reply_soon(self: &Rc<Self>, state: &mut State) {
        let hard_bytes = self.worker.setting(|s| s.client_output_buffer_limit.normal.hard_bytes);
        if hard_bytes != 0 && state.pending_bytes() as u64 > hard_bytes {
            tracing::warn!(client = self.client.id, "closing client that passed client-output-buffer-limit");
            state.broken = true;
        }
        if state.out.is_empty() && state.effects.is_empty() || self.queued.get() || state.broken {
            return;
        }
        if self.need.get() <= self.worker.server.engine.log.acked() {
            self.send_now(state);
        } else {
            self.queued.set(true);
            self.worker.enqueue(self.clone());
        }
    }

    fn send_now(&self, state: &mut State) {
        if !state.effects.is_empty() {
            carry_out(&self.worker.server, state.effects.drain(..));
        }
        let bytes = state.out.len() as u64;
        bump(&self.worker.runner.borrow().stats.bytes_out, bytes);
        bump(&self.client.totals[2], bytes);
        state.send_now();
        self.client.output_bytes.store(state.pending_bytes() as u64, Ordering::Relaxed);
    }

    /// From the tick: the log has reached `need`.
    pub fn send(&self) {
        self.queued.set(false);
        let mut state = self.state.borrow_mut();
        self.send_now(&mut state);
        if (state.stalled || state.broken || !state.sending.is_empty())
            && let Some(waker) = &state.waker
        {
            waker.wake_by_ref();
        }
    }

    /// From the tick: the log refuses writes. What waits for it is answered with an error instead.
    pub fn refuse(&self, why: &str) {
        {
            let mut state = self.state.borrow_mut();
            let replies = std::mem::take(&mut state.replies);
            state.out.truncate(0);
            state.effects.clear();
            let error = Error::Misconf(why.to_owned().into());
            for _ in 0..replies {
                state.out.error(&error);
            }
        }
        self.need.set(0);
        self.send();
    }
}

impl State {
    /// Bytes of requests received and not run, those queued by MULTI included.
    fn request_bytes(&self) -> usize {
        let queued = self.session.as_ref().and_then(|session| session.multi.as_ref()).map_or(0, |multi| multi.bytes);
        self.input.len() + queued
    }

    /// Keeps what of the input is not done.
    fn keep_rest(&mut self, mut input: Vec<u8>, done: usize) {
        input.drain(..done);
        let much = if input.is_empty() { KEEP } else { 16 * KEEP };
        if input.capacity() > much && input.len() < input.capacity() / 4 {
            input.shrink_to(input.len());
        }
        self.input = input;
    }

    fn pending_bytes(&self) -> usize {
        self.out.len() + self.sending.len() - self.sent
    }

    /// Parses up to `most` commands. An error is told after the commands before it have run.
    fn parse_ahead(
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
                        match self.last {
                            Some((_, last)) if last.name.as_bytes().eq_ignore_ascii_case(name) => self.last,
                            _ => command::table().find(name),
                        }
                    });
                    self.last = command.or(self.last);
                    calls.push(Parsed { first: first as u32, count: count as u32, end, command, hash: 0 });
                    at = end;
                }
            }
        }
        Ok(())
    }

    /// Moves `out` to the socket as far as it takes it.
    fn send_now(&mut self) {
        self.replies = 0;
        if self.sending.is_empty() {
            // The usual case: all of it leaves, and `sending` needs no memory.
            let mut sent = 0;
            match try_send(&self.socket, self.out.as_slice(), &mut sent) {
                Ok(true) => self.out.give_back(KEEP),
                Ok(false) => {
                    self.out.swap(&mut self.sending);
                    self.sent = sent;
                }
                Err(_) => self.broken = true,
            }
            return;
        }
        // Whoever reads a little at a time would otherwise make the buffer grow with all that was ever sent.
        if self.sent > self.sending.len() / 2 {
            self.sending.drain(..self.sent);
            self.sent = 0;
        }
        self.sending.extend_from_slice(self.out.as_slice());
        self.out.give_back(KEEP);
        match try_send(&self.socket, &self.sending, &mut self.sent) {
            Ok(true) => self.finish_sending(),
            Ok(false) => {}
            Err(_) => self.broken = true,
        }
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        while self.sent < self.sending.len() {
            match self.socket.poll_write(cx, &self.sending[self.sent..]) {
                Poll::Ready(n) => self.sent += n?,
                Poll::Pending => return Ok(()),
            }
        }
        self.finish_sending();
        Ok(())
    }

    fn finish_sending(&mut self) {
        self.sent = 0;
        self.sending.clear();
        if self.sending.capacity() > KEEP {
            self.sending = Vec::new();
        }
    }
}

/// Sends `bytes` from `sent` on; whether all of them are gone.
fn try_send(socket: &Socket, bytes: &[u8], sent: &mut usize) -> io::Result<bool> {
    while *sent < bytes.len() {
        match socket.try_write(&bytes[*sent..]) {
            Ok(n) => *sent += n,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// Keeps an inline request that the parser will unquote where it stands.
#[cold]
fn keep_quoted(input: &[u8], at: usize, lines: &mut Vec<(usize, Vec<u8>)>) {
    if let Some(end) = memchr::memchr(b'\n', input)
        && memchr::memchr2(b'"', b'\'', &input[..end]).is_some()
    {
        lines.push((at, input[..end].to_vec()));
    }
}

/// A browser was led to send its request here: nothing of it may run, nor be answered.
fn is_http(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:")
}

/// Redis's answer to a command it does not know.
#[cold]
fn unknown(session: Option<&mut Session>, args: Args<'_>, out: &mut Reply) {
    if let Some(multi) = session.and_then(|s| s.multi.as_mut()) {
        multi.aborted = true;
    }
    out.error(&command::run::unknown_command(args));
}
