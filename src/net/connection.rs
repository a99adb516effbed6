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
//! Whatever a connection waits for, it waits in one state, [`super::parked`]. When the peer has left, what was received
//! whole still runs, and the replies go nowhere.
//!
//! Invariants: nothing of `out` is sent before the log has reached `need`; `Session` is away exactly while a command
//! runs elsewhere; a peer that does not read stops being read once its output passes a bound.

use std::cell::{Cell, OnceCell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use super::ahead::{AHEAD, Ahead, Parsed};
use super::behind_others;
use super::parked::Parked;
use super::reads::Asked;
use super::socket::Socket;
use super::state::State;
use super::worker::Worker;
use crate::command;
use crate::command::run::{self, Call, Finished, Outcome};
use crate::error::Error;
use crate::handler::buffers::{Away, SLACK};
use crate::handler::effects::{Effect, carry_out};
use crate::handler::observe::Clock;
use crate::handler::server::{ThreadStats, bump};
use crate::handler::session::bits::{CLOSING, GONE, UNIX};
use crate::handler::session::{Client, ReplyMode};
use crate::handler::{After, Args, Command, Reply, Route, Session};
use crate::log::Lsn;
use crate::resp::{Limits, Parser};
use crate::shard::engine::gate;
use crate::shard::memory::reads::Reads;
use crate::util::ticks;
use crate::util::time::now_ms;

/// How long who publishes waits for threads that are far behind with their messages, before it looks again.
pub(super) const BEHIND: Duration = Duration::from_millis(1);

/// A connection of this thread.
pub struct Connection {
    pub(super) worker: Rc<Worker>,
    pub(super) client: Arc<Client>,
    pub(super) socket: Socket,
    pub(super) state: RefCell<State>,
    /// In the worker's queue for the next tick.
    queued: Cell<bool>,
    /// Since when, in ticks.
    pub(super) queued_at: Cell<u64>,
    /// A reply of `out` is one for which it has waited, while others of the thread had their turns.
    pub(super) was_away: Cell<bool>,
    /// What it asks with for what is on disk, since it first did.
    pub(super) asked: OnceCell<Rc<Asked>>,
    /// LSN that the replies in `out` wait for.
    pub(super) need: Cell<Lsn>,
    /// What the sum of all buffers holds of this one's.
    told: Cell<u64>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.worker.server.buffers.tell(&self.told, 0);
    }
}

/// Why the input stopped being worked on.
enum Stop {
    /// All of it is done, or an incomplete request is left.
    Dry,
    /// Something must be waited for.
    Park(Parked),
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
            messages: worker.messages.clone(),
            multi: (-1).into(),
            command: u32::MAX.into(),
            ..Client::default()
        });
        if matches!(socket, Socket::Unix(_)) {
            client.bits.store(UNIX, Ordering::Relaxed);
        }
        server.clients.lock().insert(client.id, client.clone());
        let names = server.engine.first_names();
        let session = Box::new(Session::new(client.clone(), names, &server.acl));
        let state = State::new(session);
        let (queued, queued_at, was_away) = (Cell::new(false), Cell::new(0), Cell::new(false));
        let (state, need, told) = (RefCell::new(state), Cell::new(0), Cell::new(0));
        let asked = OnceCell::new();
        Rc::new(Connection { worker, client, socket, state, queued, queued_at, was_away, asked, need, told })
    }

    /// LSN that the replies wait for.
    #[inline]
    pub fn need(&self) -> Lsn {
        self.need.get()
    }

    /// The connection's task.
    pub async fn serve(self: Rc<Self>) {
        self.count(|stats| &stats.clients, 1);
        self.worker.subscribers.borrow_mut().begin(&self);
        loop {
            let goes_on = match poll_fn(|cx| self.poll(cx)).await {
                Stop::Park(parked) => self.park(parked).await,
                Stop::Close => false,
                Stop::Dry | Stop::Full => true,
            };
            if !goes_on {
                break;
            }
        }
        // What has committed happens, whether the reply can leave or not.
        let effects = std::mem::take(&mut self.state.borrow_mut().effects);
        carry_out(Some((&self.worker.server, &self.worker.runner.borrow().stats)), effects);
        self.count(|stats| &stats.clients, 1u64.wrapping_neg());
        self.waits_no_more();
        self.hears_no_more();
        // Before the descriptor is closed and its number given to somebody else.
        self.client.leave();
        self.worker.server.clients.lock().remove(&self.client.id);
    }

    /// The connection was killed: it runs nothing more.
    pub(super) fn is_killed(&self) -> bool {
        self.client.bits.load(Ordering::Relaxed) & CLOSING != 0
    }

    /// Goes on sending while the connection waits for something else.
    pub(super) fn keep_sending(&self, cx: &mut Context<'_>) {
        let mut state = self.state.borrow_mut();
        if !state.sending.is_empty() {
            self.poll_send(&mut state, cx);
        }
    }

    fn poll_send(&self, state: &mut State, cx: &mut Context<'_>) {
        let to_send = |state: &State| state.sending.len() - state.sent;
        let before = to_send(state);
        if state.poll_send(&self.socket, cx).is_err() {
            self.turn_deaf(state);
        }
        if to_send(state) < before {
            // Whoever reads is not idle.
            self.is_active();
        }
        self.account(state);
    }

    /// Tells what the buffers take. If those of all connections take too much by now, the largest are closed.
    pub(super) fn account(&self, state: &State) {
        let (client, server) = (&*self.client, &self.worker.server);
        // As long as the session is away, its queue is what it was.
        if let Some(session) = &state.session {
            client.multi_bytes.store(session.multi_bytes() as u64, Ordering::Relaxed);
        }
        let subscriptions = client.subscription_bytes.load(Ordering::Relaxed);
        let memory = (state.memory_bytes() + self.socket.held_bytes()) as u64
            + client.multi_bytes.load(Ordering::Relaxed)
            + subscriptions;
        client.query_bytes.store(state.input.len() as u64, Ordering::Relaxed);
        client.query_free.store((state.input.capacity() - state.input.len()) as u64, Ordering::Relaxed);
        client.output_bytes.store(state.pending_bytes() as u64, Ordering::Relaxed);
        client.buffer_bytes.store(memory, Ordering::Relaxed);
        if server.buffers.tell(&self.told, memory) {
            crate::server::client::evict(server);
        }
    }

    /// The peer takes nothing any more. What it has sent whole before it left still runs.
    fn turn_deaf(&self, state: &mut State) {
        state.deaf = true;
        state.drop_output();
        self.client.set_bit(GONE, true);
        self.socket.end_input();
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
                self.poll_send(state, cx);
            }
            let drained = state.out.is_empty() && state.sending.is_empty();
            if state.broken || self.is_killed() || state.closing && drained {
                return Poll::Ready(Stop::Close);
            }
            state.stalled = state.closing || state.is_full();
            if state.stalled {
                return Poll::Pending;
            }
            if !state.input.is_empty() && state.parser.missing() == 0 {
                let mut input = std::mem::take(&mut state.input);
                let (done, stop) = self.run(state, &mut input);
                state.keep_rest(input, done);
                if !state.sending.is_empty() {
                    // From here on the socket wakes the task when it takes more.
                    self.poll_send(state, cx);
                }
                self.account(state);
                match stop {
                    // One that is to be closed reads nothing more.
                    Stop::Dry if !state.broken && !state.closing => {}
                    Stop::Dry | Stop::Full => continue,
                    stop => return Poll::Ready(stop),
                }
            }
            match self.read(state, cx) {
                Poll::Ready(Some(Stop::Dry | Stop::Full)) if state.more => {
                    // A peer that sends without end must not keep others waiting, nor the tick.
                    behind_others(cx);
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
        let data = match self.socket.poll_read(cx, &mut scratch) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Err(_) | Ok(0)) => return Poll::Ready(None),
            Poll::Ready(Ok(read)) => &mut scratch[..read],
        };
        self.worker.stay_awake();
        state.pauses = 0;
        state.more = data.len() == super::worker::READ;
        self.count(|stats| &stats.reads, 1);
        self.count(|stats| &stats.bytes_in, data.len() as u64);
        bump(&self.client.totals[1], data.len() as u64);
        self.worker.runner.borrow().stats.note_size(0, (state.input.len() + data.len()) as u64);
        let stop = if state.input.is_empty() {
            let (done, stop) = self.run(state, data);
            state.input.extend_from_slice(&data[done..]);
            stop
        } else {
            state.make_room(data.len());
            let mut input = std::mem::take(&mut state.input);
            input.extend_from_slice(data);
            let (done, stop) = self.run(state, &mut input);
            state.keep_rest(input, done);
            stop
        };
        if state.request_bytes() > self.worker.setting(|s| s.client_query_buffer_limit) {
            tracing::warn!(client = self.client.id, "closing client that reached max query buffer length");
            self.count(|stats| &stats.over_input, 1);
            return Poll::Ready(None);
        }
        let request = state.request_bytes() + state.parser.memory_bytes() + state.parser.missing();
        if request as u64 > self.worker.server.buffers.limit() {
            tracing::warn!(client = self.client.id, "closing client whose request exceeds maxmemory-clients");
            state.out.error(&Error::TooMuch);
            state.replies += 1;
            state.closing = true;
            state.input = Vec::new();
            self.reply_soon(state);
        }
        self.account(state);
        Poll::Ready(Some(stop))
    }

    /// The time without a sign of the client begins anew.
    pub(super) fn is_active(&self) {
        self.client.active_ms.store(now_ms(), Ordering::Relaxed);
    }

    /// Runs the commands in `input`; how many bytes are done, and why it stopped.
    fn run(self: &Rc<Self>, state: &mut State, input: &mut [u8]) -> (usize, Stop) {
        let mut done = 0;
        let now_ms = now_ms();
        self.client.active_ms.store(now_ms, Ordering::Relaxed);
        self.worker.serves(self.client.id);
        self.worker.runner.borrow_mut().in_company = self.worker.is_in_company();
        let room = state.out.capacity();
        let ahead = &mut *self.worker.ahead.borrow_mut();
        let stop = loop {
            if self.is_killed() {
                break Stop::Close;
            }
            if let Some(reads) = state.reads.take() {
                self.worker.runner.borrow_mut().set.reads = reads;
            }
            // A stranger's request decides how the next one is read.
            let stranger = state.session.as_ref().is_some_and(|session| session.is_stranger(&self.worker.server));
            state.limits = Limits { unauthenticated: stranger, ..self.worker.request_limits() };
            let most = if stranger { 1 } else { AHEAD };
            let parsed = state.parse_ahead(ahead, input, done, most);
            let mut stop = None;
            if let [_, _, ..] | [Parsed { command: Some((_, Command { route: Route::Keys, .. })), .. }] =
                ahead.calls[..]
                && let Some(session) = &state.session
            {
                let runner = &mut *self.worker.runner.borrow_mut();
                // Once is enough: whatever has changed meanwhile, each command looks after itself. And who may not run yet
                // does not read.
                let gate = self.worker.server.engine.gate.load(Ordering::Relaxed);
                let wants = state.tries == 0 && !stranger && gate == 0;
                ahead.look(&self.worker.server.engine, session.ns, input, (&mut runner.set.reads, wants));
                bump(&runner.stats.ahead[0], 1);
                bump(&runner.stats.ahead[1], ahead.calls.len() as u64);
                runner.read_here();
                if !runner.set.reads.is_content() {
                    stop = Some(Stop::Park(self.read_ahead(&mut runner.set.reads)));
                }
            }
            let calls = if stop.is_some() { &[] } else { &ahead.calls[..] };
            self.worker.runner.borrow_mut().clock = Clock::start();
            for call in calls {
                stop = self.run_one(state, ahead, (input, done), call, now_ms);
                if matches!(&stop, Some(Stop::Park(parked)) if parked.tries_again()) {
                    break;
                }
                (state.tries, state.tried_ns) = (0, 0);
                done = call.end;
                if stop.is_none() && state.is_full() {
                    stop = Some(Stop::Full);
                }
                if stop.is_some() {
                    break;
                }
            }
            let reads = &mut self.worker.runner.borrow_mut().set.reads;
            match &stop {
                // For those that come after it.
                Some(Stop::Park(Parked::Posted(_) | Parked::Slowed(_))) if reads.memory_bytes() > 0 => {
                    state.reads = Some(std::mem::take(reads));
                }
                _ => reads.end(),
            }
            if stop.is_some() {
                // What was parsed beyond is parsed again.
                state.parser = Parser::default();
                ahead.requote(input, done);
            }
            ahead.give_back();
            if let Some(stop) = stop {
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
        if state.out.capacity() > room {
            self.count(|stats| &stats.buffers[1], 1);
        }
        self.reply_soon(state);
        (done, stop)
    }

    /// What the commands ahead lacked is there, or cannot be had.
    pub(super) fn take_reads(&self, reads: Reads) {
        let mut state = self.state.borrow_mut();
        (state.reads, state.tries) = (Some(reads), state.tries + 1);
        self.account(&state);
    }

    /// Runs one command. `None`: go on.
    #[inline]
    fn run_one(
        self: &Rc<Self>,
        state: &mut State,
        ahead: &Ahead,
        (input, begins): (&[u8], usize),
        call: &Parsed,
        now_ms: u64,
    ) -> Option<Stop> {
        if call.count == 0 {
            return None;
        }
        let spans = &ahead.spans[call.first as usize..(call.first + call.count) as usize];
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
                state.drop_output();
                return Some(Stop::Close);
            }
            if let Some(session) = &mut state.session {
                session.end_caching();
            }
            unknown(state.session.as_deref_mut(), args, &mut state.out);
            self.worker.runner.borrow().stats.count_error(&state.out.as_slice()[begin..]);
            return self.after(state, begin);
        };
        let gate = self.worker.server.engine.gate.load(Ordering::Relaxed);
        // Where writes are refused, waiting would not help.
        if gate & (gate::SLOWED | gate::REFUSED) == gate::SLOWED
            && let Some(delay) = self.slow_down(state, command.1.resolve(args.get(1)))
        {
            return Some(Stop::Park(Parked::Slowed(delay)));
        }
        if self.worker.server.hub.is_behind()
            && state.session.as_deref().is_some_and(|session| self.may_publish(session, command.1))
        {
            return Some(Stop::Park(Parked::Slowed(BEHIND)));
        }
        // Read before the gate is asked: of a pause that changes in between the connection is told.
        let pause = if gate == 0 { 0 } else { self.worker.server.pause.borrow().number };
        let (hash, spotted) = match (command.1.route, ahead.known_of(call)) {
            (Route::One(at), (0, none)) if at < args.len() => (self.worker.server.engine.router.hash(&args[at]), none),
            (_, known) => known,
        };
        let call = Call { command, args, hash, spotted, now_ms, request_bytes: call.end - begins };
        let mut runner = self.worker.runner.borrow_mut();
        (runner.tries, runner.tried_ns) = (state.tries, state.tried_ns);
        let outcome = run::start(&mut runner, &mut state.session, call, &mut state.out, &mut need);
        state.tried_ns = runner.tried_ns;
        let effects = runner.effects.take();
        drop(runner);
        self.note(state, effects);
        self.need.set(need);
        match outcome {
            Outcome::Done => {
                bump(&self.client.totals[0], 1);
                self.after(state, begin)
            }
            Outcome::Posted(finished) => {
                bump(&self.client.totals[0], 1);
                Some(Stop::Park(Parked::Posted(finished)))
            }
            Outcome::Lacks => Some(Stop::Park(self.read_ahead(&mut self.worker.runner.borrow_mut().set.reads))),
            Outcome::Closed => Some(Stop::Park(Parked::Closed(pause))),
        }
    }

    /// What a command left to be done with its reply and the connection.
    #[inline]
    fn after(&self, state: &mut State, begin: usize) -> Option<Stop> {
        let session = state.session.as_deref_mut()?;
        match session.reply_mode {
            ReplyMode::On | ReplyMode::SkipNext => {}
            mode if session.speaks => {
                if mode == ReplyMode::Skip {
                    session.reply_mode = ReplyMode::On;
                }
            }
            mode => {
                state.out.truncate(begin);
                if mode == ReplyMode::Skip {
                    session.reply_mode = ReplyMode::On;
                }
            }
        }
        session.speaks = false;
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
                Some(Stop::Park(Parked::Held(Duration::from_millis(ms), reply)))
            }
            After::Feed => session.feed.take().map(|feed| Stop::Park(Parked::Fed(feed))),
        };
        state.replies += usize::from(state.out.len() > begin);
        stop
    }

    /// The time of a reply that was held back is over.
    pub(super) fn put_held(self: &Rc<Self>, reply: &[u8]) {
        let mut state = self.state.borrow_mut();
        state.out.raw(reply);
        state.replies += usize::from(!reply.is_empty());
        self.reply_soon(&mut state);
    }

    /// The pause of a writer while too much is dirty, or its room is still to be made. It comes before any lease, else it would
    /// block the flush that it waits for.
    #[cold]
    fn slow_down(&self, state: &mut State, command: &Command) -> Option<Duration> {
        let session = state.session.as_deref()?;
        if !session.writes(command) || session.queues(command) {
            return None;
        }
        let delay_us = self.worker.server.engine.pause_us(session.may_add(command), state.pauses);
        state.pauses = state.pauses.saturating_add((delay_us > 0).into());
        (delay_us > 0).then(|| Duration::from_micros(delay_us))
    }

    /// A command that ran elsewhere is back; what else must be waited for.
    pub(super) fn take_back(self: &Rc<Self>, mut finished: Finished) -> Option<Parked> {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let stats = &self.worker.runner.borrow().stats;
        self.worker.server.observer.count(stats, finished.slot, finished.ran_ns, finished.failed);
        if finished.failed {
            stats.count_error(finished.reply.as_slice());
        }
        let spent = finished.session.spent.take();
        state.session = Some(finished.session);
        // From here on the connection's own buffers count it.
        drop(finished.away);
        let begin = state.out.len();
        state.out.append(finished.reply);
        self.need.set(self.need.get().max(finished.need));
        self.note(state, finished.effects);
        let stop = self.after(state, begin);
        self.push_notices(state);
        self.was_away.set(true);
        self.reply_soon(state);
        if let Some(spent) = spent {
            // By now it is no longer counted as what is queued.
            let away = Away::new(&self.worker.server, &self.client, spent.memory_bytes());
            self.worker.server.engine.readers.work(Box::new(move || drop((spent, away))));
        }
        match stop {
            Some(Stop::Park(parked)) => Some(parked),
            _ => None,
        }
    }

    /// Sends the replies if the log has got there, else leaves them to the tick.
    pub(super) fn reply_soon(self: &Rc<Self>, state: &mut State) {
        if state.deaf {
            state.drop_output();
        }
        let limits = self.worker.setting(|s| s.client_output_buffer_limit);
        let hears = !state.hears.is_empty();
        let hard_bytes = if hears { limits.pubsub } else { limits.normal }.hard_bytes;
        if hard_bytes != 0 && state.pending_bytes() as u64 > hard_bytes.max(SLACK) {
            tracing::warn!(client = self.client.id, "closing client that passed client-output-buffer-limit");
            self.count(|stats| &stats.over_output, 1);
            state.broken = true;
            // Nobody reads it: it takes no memory until the task has its turn, whatever that waits for.
            state.drop_output();
            self.client.kill();
            self.account(state);
        }
        if state.out.is_empty() && state.effects.is_empty() || self.queued.get() || state.broken {
            return;
        }
        if self.need.get() <= self.worker.server.engine.log.acked() {
            self.send_now(state);
        } else {
            self.queued.set(true);
            self.queued_at.set(ticks::now());
            self.worker.enqueue(self.clone());
        }
    }

    /// Whether a command may leave messages with network threads: its own, or events of what it writes.
    #[cold]
    fn may_publish(&self, session: &Session, command: &Command) -> bool {
        let server = &self.worker.server;
        let tells = || server.events().tell_something() || server.engine.trackers.any();
        server.is_monitored() || session.may_publish(command) || tells() && session.writes(command)
    }

    /// Adds to a counter of the thread.
    fn count(&self, counter: impl Fn(&ThreadStats) -> &AtomicU64, by: u64) {
        bump(counter(&self.worker.runner.borrow().stats), by);
    }

    fn send_now(&self, state: &mut State) {
        self.was_away.set(false);
        if !state.effects.is_empty() {
            state.effect_bytes = 0;
            carry_out(Some((&self.worker.server, &self.worker.runner.borrow().stats)), state.effects.drain(..));
        }
        let bytes = state.out.len() as u64;
        self.count(|stats| &stats.writes, 1);
        self.count(|stats| &stats.bytes_out, bytes);
        self.worker.runner.borrow().stats.note_size(1, bytes);
        bump(&self.client.totals[2], bytes);
        let room = state.out.capacity();
        if state.send_now(&self.socket).is_err() {
            self.turn_deaf(state);
        }
        if state.out.capacity() < room {
            self.count(|stats| &stats.buffers[0], 1);
        }
        self.account(state);
    }

    /// From the tick: the log has reached `need`.
    pub fn send(&self) {
        self.queued.set(false);
        let mut state = self.state.borrow_mut();
        self.send_now(&mut state);
        if (state.stalled || state.broken || state.deaf || !state.sending.is_empty())
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
            let State { out, pushed, .. } = &mut *state;
            let messages: Vec<u8> = pushed.drain(..).flat_map(|at| out.as_slice()[at].to_vec()).collect();
            state.out.truncate(0);
            state.out.raw(&messages);
            state.effect_bytes = 0;
            // Who was doomed at commit is not spared.
            let kills = state.effects.drain(..).filter(|effect| matches!(effect, Effect::Kill(_)));
            carry_out(None, kills);
            let error = Error::Misconf(why.to_owned().into());
            for _ in 0..replies {
                state.out.error(&error);
            }
        }
        self.need.set(0);
        self.send();
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
