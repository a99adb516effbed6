//! A connection that waits, for whatever it is: one state, which ends as well when the peer leaves or is killed.
//!
//! | waits for | when the peer leaves | when it is killed |
//! |---|---|---|
//! | a command that waits for a key | closes at once, unless the command is being served | closes at once |
//! | a command that runs elsewhere | after [`GRACE`] it is told ([`bits::GONE`]), and awaited: what is behind it comes after it | closes at once |
//! | the time of a held reply (WAIT) to pass | goes on at once | closes at once |
//! | the gate to open (CLIENT PAUSE, shutdown) | closes at once: the command never began | closes at once |
//! | what its commands lack to be read from disk | waits on: they were received whole | closes at once |
//! | the next piece of what it is fed, or the peer to take the last one | closes at once | closes at once |
//! | its turn, as a writer that is slowed | waits on: the write was received whole, and a flush bounds the wait | closes at once |
//!
//! That the peer has left is seen although requests of its may be unread, as long as the socket's buffer holds them all;
//! these run before the connection closes. Output that is on its way goes on leaving meanwhile.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep, timeout};

use super::connection::{BEHIND, Connection};
use super::reads::Asked;
use crate::command::run::Finished;
use crate::command::run::blocked::{end_in_time, end_wait};
use crate::handler::buffers::Away;
use crate::handler::feed::Feed;
use crate::handler::session::{Waiting, bits};
use crate::latency::{self, Event};
use crate::shard::engine::gate;
use crate::shard::memory::blocked::{End, Waiter};
use crate::shard::memory::reads::Reads;
use crate::util::ticks;
use crate::util::time::now_ms;

/// How long a command runs on for a peer that has left: one that only sends no more (`printf … | nc`) still reads.
const GRACE: Duration = Duration::from_millis(500);
/// The longest wait: clocks and timers cannot count further than some time.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 86_400);
/// One whose time is over while others before it are being served asks again: first after this time, at last after that.
const ASK_AGAIN: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(500)];

/// Bytes of what a connection is fed that wait for its peer.
const FED_AHEAD: usize = 256 << 10;

/// What a connection waits for before it goes on with its input.
pub(super) enum Parked {
    /// A command runs elsewhere.
    Posted(oneshot::Receiver<Finished>),
    /// A reply is held back for this long.
    Held(Duration, Vec<u8>),
    /// The command may not run as long as the pause is the one of this number; then the same one is tried again.
    Closed(u64),
    /// It is sent this, and closes.
    Fed(Feed),
    /// The command is tried again after this.
    Slowed(Duration),
    /// What the commands ahead lack is being read; then they are tried again.
    Reads(Rc<Asked>),
}

/// How a wait ended.
enum Woken<T> {
    /// With what was waited for.
    Done(T),
    /// The peer sends no more.
    Left,
    /// The connection was killed.
    Killed,
}

impl Parked {
    /// Whether the command has not run and is tried again.
    pub(super) fn tries_again(&self) -> bool {
        matches!(self, Parked::Closed(_) | Parked::Slowed(_) | Parked::Reads(_))
    }
}

impl Connection {
    /// Waits. Whether the connection goes on afterwards.
    pub(super) async fn park(self: &Rc<Self>, parked: Parked) -> bool {
        let goes_on = match parked {
            Parked::Posted(finished) => {
                self.mark(bits::ELSEWHERE, true);
                let finished = self.posted(finished).await;
                self.mark(bits::ELSEWHERE | bits::BLOCKED, false);
                if finished.is_some() {
                    *self.client.waiting.lock() = Waiting::No;
                }
                match finished.map(|finished| self.take_back(finished)) {
                    None => false,
                    Some(None) => true,
                    // What comes back is never another command that runs elsewhere.
                    Some(Some(parked)) => Box::pin(self.park(parked)).await,
                }
            }
            Parked::Held(time, reply) => {
                self.mark(bits::BLOCKED, true);
                let woken = self.wait(pin!(sleep(time.min(LONGEST))), true).await;
                self.mark(bits::BLOCKED, false);
                self.put_held(&reply);
                !matches!(woken, Woken::Killed)
            }
            Parked::Closed(pause) => {
                self.mark(bits::POSTPONED, true);
                let woken = self.wait(pin!(self.gate_opens(pause)), true).await;
                self.mark(bits::POSTPONED, false);
                matches!(woken, Woken::Done(()))
            }
            Parked::Reads(asked) => {
                self.mark(bits::ELSEWHERE, true);
                let since = ticks::now();
                let woken = self.wait(pin!(asked.come()), false).await;
                latency::add(Event::DiskWait, ticks::ns_since(since));
                self.mark(bits::ELSEWHERE, false);
                match woken {
                    Woken::Done((reads, _)) => {
                        // From here on the connection's own buffers count them.
                        self.take_reads(reads);
                        true
                    }
                    _ => false,
                }
            }
            Parked::Fed(feed) => {
                self.mark(bits::ELSEWHERE, true);
                let goes_on = self.fed(feed).await;
                self.mark(bits::ELSEWHERE, false);
                goes_on
            }
            Parked::Slowed(time) => {
                let since = ticks::now();
                let woken = self.wait(pin!(sleep(time)), false).await;
                if time != BEHIND {
                    latency::add(Event::FlushWait, ticks::ns_since(since));
                }
                !matches!(woken, Woken::Killed)
            }
        };
        // It was the server that kept the client waiting.
        self.is_active();
        goes_on
    }

    /// Sends what it is fed. The connection closes behind it, at once if the peer leaves.
    async fn fed(self: &Rc<Self>, mut feed: Feed) -> bool {
        loop {
            match self.wait(pin!(feed.recv()), true).await {
                Woken::Done(Some(piece)) => self.put_held(&piece),
                Woken::Done(None) => {
                    self.state.borrow_mut().closing = true;
                    return true;
                }
                Woken::Left | Woken::Killed => return false,
            }
            if !self.has_taken().await {
                return false;
            }
        }
    }

    /// Awaits that the peer takes what it is fed, but for a little. One that takes nothing for long is given up: others wait for
    /// its place.
    async fn has_taken(&self) -> bool {
        let patience = self.worker.setting(|settings| settings.repl_timeout);
        loop {
            let left = self.state.borrow().pending_bytes();
            if left <= FED_AHEAD {
                return true;
            }
            let some = poll_fn(|cx| {
                self.keep_sending(cx);
                if self.state.borrow().pending_bytes() < left { Poll::Ready(()) } else { Poll::Pending }
            });
            match timeout(patience, self.wait(pin!(some), true)).await {
                Ok(Woken::Done(())) => {}
                Ok(_) => return false,
                Err(_) => {
                    tracing::warn!(client = self.client.id, "closing a connection that takes nothing of its file");
                    return false;
                }
            }
        }
    }

    /// The connection ends: nothing it waits for is for it any more.
    pub(super) fn waits_no_more(&self) {
        let waiting = std::mem::replace(&mut *self.client.waiting.lock(), Waiting::Never);
        if let Waiting::For(waiter, _) = waiting {
            waiter.end(End::Gone);
            end_wait(&self.worker.server, &waiter);
        }
    }

    /// Has what the commands ahead lack read.
    #[cold]
    pub(super) fn read_ahead(&self, reads: &mut Reads) -> Parked {
        let asked = self.asked.get_or_init(|| {
            let (server, client) = (self.worker.server.clone(), self.client.clone());
            self.worker.reads.asker(move |bytes| Away::new(&server, &client, bytes))
        });
        let readers = &self.worker.server.engine.readers;
        self.worker.reads.bring(readers, std::mem::take(reads), asked, self.worker.is_in_company());
        Parked::Reads(asked.clone())
    }

    /// Awaits a command that runs elsewhere, or waits for a key, or first the one and then the other. `None`: the connection is
    /// to be closed.
    async fn posted(&self, finished: oneshot::Receiver<Finished>) -> Option<Finished> {
        let mut finished = pin!(finished);
        loop {
            let waiting = match &*self.client.waiting.lock() {
                Waiting::For(waiter, until_ms) => Some((waiter.clone(), *until_ms)),
                _ => None,
            };
            if let Some((waiter, until_ms)) = waiting {
                return self.waits(finished, &waiter, until_ms).await;
            }
            let came = async {
                tokio::select! {
                    finished = finished.as_mut() => Some(finished.ok()),
                    () = self.client.news.notified() => None,
                }
            };
            // Else it has heard that the command waits for a key by now.
            if let Some(finished) = self.elsewhere(pin!(came)).await {
                return finished;
            }
        }
    }

    /// Awaits a command that waits for a key.
    async fn waits(
        &self,
        mut finished: Pin<&mut oneshot::Receiver<Finished>>,
        waiter: &Arc<Waiter>,
        until_ms: u64,
    ) -> Option<Finished> {
        let server = &self.worker.server;
        // Who waits for ever needs no timer.
        let left = || Duration::from_millis(until_ms.saturating_sub(now_ms())).min(LONGEST);
        let mut time = pin!((until_ms != 0).then(|| sleep(left())));
        let (mut ask_again, mut heeds_end) = (ASK_AGAIN[0], true);
        loop {
            let next = async {
                tokio::select! {
                    biased;
                    finished = finished.as_mut() => Some(finished.ok()),
                    () = self.client.news.notified() => None,
                    () = over(time.as_mut()) => {
                        end_in_time(server, waiter);
                        time.set(Some(sleep(ask_again)));
                        ask_again = ASK_AGAIN[1].min(2 * ask_again);
                        None
                    }
                }
            };
            match self.wait(pin!(next), heeds_end).await {
                Woken::Done(Some(finished)) => return finished,
                Woken::Done(None) => end_wait(server, waiter),
                Woken::Killed => return None,
                Woken::Left if waiter.end(End::Gone) => return None,
                // It is being served.
                Woken::Left => heeds_end = false,
            }
        }
    }

    /// Awaits what comes of a command that runs elsewhere.
    async fn elsewhere<F: Future<Output = Option<Option<Finished>>>>(&self, mut finished: Pin<&mut F>) -> F::Output {
        if self.client.bits.load(Ordering::Relaxed) & bits::GONE == 0 {
            match self.wait(finished.as_mut(), true).await {
                Woken::Done(finished) => return finished,
                Woken::Killed => return Some(None),
                Woken::Left => {}
            }
            let patient = async { timeout(GRACE, finished.as_mut()).await };
            match self.wait(pin!(patient), false).await {
                Woken::Done(Ok(finished)) => return finished,
                Woken::Killed => return Some(None),
                _ => self.mark(bits::GONE, true),
            }
        }
        match self.wait(finished, false).await {
            Woken::Done(finished) => finished,
            _ => Some(None),
        }
    }

    /// The pause is another than the one of this number, or over.
    async fn gate_opens(&self, pause: u64) {
        let mut pauses = self.worker.server.pause.subscribe();
        let until_ms = pauses.borrow().until_ms;
        let changed = pauses.wait_for(|now| now.number != pause);
        if self.worker.server.engine.gate.load(Ordering::SeqCst) & gate::STOPPING != 0 {
            // The process ends, and the connection with it.
            return std::future::pending().await;
        }
        let left = Duration::from_millis(until_ms.saturating_sub(now_ms()));
        let _ = timeout(left.min(LONGEST), changed).await;
    }

    /// Waits for `what`, or until the peer leaves, if that is to be heeded, or until the connection is killed.
    async fn wait<F: Future>(&self, mut what: Pin<&mut F>, heeds_end: bool) -> Woken<F::Output> {
        let mut left = pin!(self.socket.ended());
        let mut killed = pin!(self.client.killed.notified());
        poll_fn(|cx| {
            if self.is_killed() || killed.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Woken::Killed);
            }
            if let Poll::Ready(done) = what.as_mut().poll(cx) {
                return Poll::Ready(Woken::Done(done));
            }
            if heeds_end && left.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Woken::Left);
            }
            self.keep_sending(cx);
            Poll::Pending
        })
        .await
    }

    fn mark(&self, bit: u32, on: bool) {
        self.client.set_bit(bit, on);
    }
}

/// Returns when the time is over, if there is an end to it.
async fn over(time: Pin<&mut Option<Sleep>>) {
    match time.as_pin_mut() {
        Some(time) => time.await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::sync::Arc;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::UnixStream;

    use super::super::socket::Socket;
    use super::super::worker::tests::with_worker;
    use super::*;
    use crate::handler::effects::Effect;

    /// Runs a test with a connection and its peer.
    fn with_connection<F: Future<Output = ()>>(test: impl FnOnce(Rc<Connection>, UnixStream) -> F) {
        with_worker(|worker| {
            let (ours, peer) = UnixStream::pair().unwrap();
            test(Connection::open(worker, Socket::Unix(ours), String::new(), String::new()), peer)
        });
    }

    fn is_gone(connection: &Connection) -> bool {
        connection.client.bits.load(Ordering::Relaxed) & bits::GONE != 0
    }

    #[test]
    fn what_runs_elsewhere_is_told_that_the_peer_has_left() {
        with_connection(|connection, mut peer| async move {
            // Unread bytes must not hide the end.
            peer.write_all(b"PING\r\n").await.unwrap();
            let (done, finished) = oneshot::channel();
            let elsewhere = async {
                peer.shutdown().await.unwrap();
                while !is_gone(&connection) {
                    assert!(!done.is_closed(), "it is awaited");
                    tokio::task::yield_now().await;
                }
                drop(done);
            };
            let (came, ()) = tokio::join!(connection.posted(finished), elsewhere);
            assert!(came.is_none());
        });
    }

    /// What it has asked for besides is run for nobody.
    #[test]
    fn who_takes_no_reply_any_more_is_gone_at_once() {
        with_connection(|connection, peer| async move {
            drop(peer);
            assert!(!is_gone(&connection), "it may be behind with its reading");
            connection.put_held(b"+OK\r\n");
            assert!(is_gone(&connection));
        });
    }

    #[test]
    fn a_killed_connection_waits_for_nothing_that_runs_elsewhere() {
        with_connection(|connection, _peer| async move {
            let (done, finished) = oneshot::channel();
            let client = connection.client.clone();
            let killer = std::thread::spawn(move || client.kill());
            assert!(connection.posted(finished).await.is_none());
            assert!(done.is_closed() && !is_gone(&connection));
            killer.join().unwrap();
        });
    }

    #[test]
    fn no_time_is_too_long_to_wait() {
        with_connection(|connection, peer| async move {
            drop(peer);
            let held = Parked::Held(Duration::from_millis(u64::MAX), b"+OK\r\n".to_vec());
            assert!(connection.park(held).await);
            connection.worker.server.hold_back(now_ms(), u64::MAX, true);
            let number = connection.worker.server.pause.borrow().number;
            assert!(!connection.park(Parked::Closed(number)).await, "what is held back of a peer that left never runs");
            assert!(connection.park(Parked::Slowed(Duration::from_millis(1))).await);
        });
    }

    /// It always leaves some for later: what has left takes no memory.
    #[test]
    fn a_peer_that_reads_late_costs_what_it_is_late_by() {
        const BEHIND: usize = 4 << 20;
        with_connection(|connection, mut peer| async move {
            connection.put_held(&vec![0; BEHIND]);
            let (mut part, mut read) = (vec![0; 1 << 20], 0);
            let began = std::time::Instant::now();
            while read < 8 * BEHIND {
                assert!(began.elapsed().as_secs() < 60, "it stands still after {read}");
                // Nobody tells a connection that is not polled that there is room again: it tries now and then.
                let more = timeout(Duration::from_millis(2), peer.read(&mut part));
                let n = more.await.map_or(0, Result::unwrap);
                read += n;
                connection.put_held(&part[..n]);
                connection.send();
                let memory = connection.client.memory_bytes();
                assert!(memory < 4 * BEHIND as u64, "{memory} bytes after {read} were read");
            }
        });
    }

    #[test]
    fn what_a_late_reader_has_read_is_given_back() {
        with_connection(|connection, mut peer| async move {
            let (reply, mut read) = (vec![7; 900 << 10], vec![0; 900 << 10]);
            connection.put_held(&reply);
            let memory = || connection.client.memory_bytes();
            assert!(memory() > 256 << 10, "more than the socket takes");
            let held = Parked::Held(LONGEST, Vec::new());
            tokio::select! {
                _ = connection.park(held) => panic!("the wait ends"),
                _ = async {
                    peer.read_exact(&mut read).await.unwrap();
                    comes("its room is given back", || memory() < 64 << 10).await;
                } => {}
            }
            assert!(read == reply);
        });
    }

    /// The peer sends nothing more that would have the connection looked at.
    #[test]
    fn a_reply_to_what_had_to_wait_leaves_as_the_peer_reads_it() {
        with_connection(|connection, mut peer| async move {
            let text = vec![b'x'; 900 << 10];
            let request = [format!("*2\r\n$4\r\nECHO\r\n${}\r\n", text.len()).as_bytes(), &text, b"\r\n"].concat();
            let mut reply = vec![0; text.len() + 11];
            connection.worker.server.hold_back(now_ms(), now_ms() + 300, true);
            let talk = async {
                peer.write_all(&request).await.unwrap();
                let all = timeout(Duration::from_secs(20), peer.read_exact(&mut reply)).await;
                assert!(all.is_ok(), "it stands still");
            };
            // On its own, so that nothing but its socket wakes it.
            let local = tokio::task::LocalSet::new();
            local.spawn_local(connection.serve());
            local.run_until(talk).await;
            assert!(reply.ends_with(b"x\r\n"));
        });
    }

    #[test]
    fn what_is_on_its_way_leaves_whatever_the_connection_waits_for() {
        with_connection(|connection, mut peer| async move {
            connection.worker.server.hold_back(now_ms(), u64::MAX, true);
            let number = connection.worker.server.pause.borrow().number;
            let (_done, finished) = oneshot::channel();
            let waits = [
                Parked::Posted(finished),
                Parked::Held(LONGEST, Vec::new()),
                Parked::Closed(number),
                Parked::Slowed(LONGEST),
            ];
            for (nth, parked) in waits.into_iter().enumerate() {
                let (reply, mut read) = (vec![nth as u8; 4 << 20], vec![0; 4 << 20]);
                connection.put_held(&reply);
                assert!(connection.client.output_bytes.load(Ordering::Relaxed) > 0, "more than the socket takes");
                tokio::select! {
                    _ = connection.park(parked) => panic!("the wait {nth} ends"),
                    all = timeout(Duration::from_secs(20), peer.read_exact(&mut read)) => {
                        assert!(all.is_ok(), "it stands still during the wait {nth}");
                    }
                }
                assert!(read == reply);
            }
        });
    }

    /// Waits for what other tasks of this thread do.
    async fn comes(what: &str, mut seen: impl FnMut() -> bool) {
        let seen = async {
            while !seen() {
                tokio::task::yield_now().await;
            }
        };
        assert!(timeout(Duration::from_secs(20), seen).await.is_ok(), "{what}");
    }

    /// Whoever may leave messages with threads waits while one of these has too many, and nobody else.
    #[test]
    fn who_publishes_waits_for_a_thread_that_is_behind() {
        use crate::handler::pubsub::Notice;
        with_connection(|connection, mut peer| async move {
            let (server, client) = (connection.worker.server.clone(), connection.client.clone());
            let (slow, line): (_, Arc<[u8]>) = (server.hub.messages(), vec![0; 2 << 20].into());
            let ran = || client.totals[0].load(Ordering::Relaxed);
            let held = || client.query_bytes.load(Ordering::Relaxed) > 0;
            let talk = async {
                for (request, waits) in [
                    ("GET k", false),
                    ("SET k v", false),
                    ("PUBLISH c m", true),
                    ("SPUBLISH c m", true),
                    ("EVAL \"return 1\" 0", true),
                    ("MULTI", false),
                    ("PUBLISH c m", true),
                    ("EXEC", true),
                    ("track", false),
                    ("SET k v", true),
                    ("GET k", false),
                    ("untrack", false),
                    ("SET k v", false),
                    ("events", false),
                    ("SET k v", true),
                    ("GET k", false),
                ] {
                    match request {
                        "track" => _ = server.engine.trackers.begin(7, false, Box::new(|_, _| {})),
                        "untrack" => {
                            let tracker = server.engine.trackers.begin(7, false, Box::new(|_, _| {}));
                            server.engine.trackers.end(&tracker);
                        }
                        "events" => server.set_events(crate::config::classes::Classes::parse(b"KEA").unwrap()),
                        request => {
                            slow.put_notice(Notice::Line { to: 0, line: line.clone() }, 0);
                            let before = ran();
                            peer.write_all(format!("{request}\r\n").as_bytes()).await.unwrap();
                            if waits {
                                comes(&format!("{request} is held"), held).await;
                                for _ in 0..100 {
                                    tokio::task::yield_now().await;
                                }
                                assert_eq!(ran(), before, "{request}");
                                assert!(slow.take().is_some());
                            }
                            comes(&format!("{request} runs"), || ran() > before).await;
                            while slow.take().is_some() {}
                        }
                    }
                }
            };
            let local = tokio::task::LocalSet::new();
            local.spawn_local(connection.clone().serve());
            local.run_until(talk).await;
        });
    }

    /// What a client keeps copies of is told although the disk refuses the reply that it stands beside.
    #[test]
    fn a_notice_held_back_for_a_reply_is_not_refused_with_it() {
        with_connection(|connection, mut peer| async move {
            // The command runs elsewhere, and its session is there.
            let session = connection.state.borrow_mut().session.take();
            assert!(!connection.push_notice(b"notice;", 0));
            {
                let mut state = connection.state.borrow_mut();
                state.session = session;
                state.out.raw(b"reply;");
                state.replies = 1;
                connection.push_notices(&mut state);
            }
            connection.refuse("no disk");
            poll_fn(|cx| {
                connection.keep_sending(cx);
                if connection.state.borrow().sending.is_empty() { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            let mut got = [0; 256];
            let len = peer.read(&mut got).await.unwrap();
            let got = String::from_utf8_lossy(&got[..len]);
            assert!(got.starts_with("notice;-MISCONF ") && got.matches("\r\n").count() == 1, "{got}");
        });
    }

    /// Nobody reads it before the reply that it waits for: it is as much in the way of others as what stands in the output.
    #[test]
    fn a_notice_held_back_for_a_reply_counts_among_the_buffers() {
        with_connection(|connection, _peer| async move {
            connection.state.borrow_mut().session = None;
            let bytes = || connection.worker.server.buffers.bytes();
            let before = bytes();
            assert!(!connection.push_notice(&[b'k'; 64 << 10], 0));
            assert!(bytes() - before >= 64 << 10);
        });
    }

    /// The log may keep replies back for long: what is to leave with them is bounded, however short they are.
    #[test]
    fn who_has_much_that_waits_for_the_log_runs_nothing_more() {
        with_connection(|connection, _peer| async move {
            let effects = |bytes: usize| -> Vec<Effect> {
                let one = || Effect::Kill(connection.client.clone());
                (0..bytes / one().bytes()).map(|_| one()).collect()
            };
            let mut state = connection.state.borrow_mut();
            for (bytes, is_full) in [(900 << 10, false), (200 << 10, true)] {
                connection.note(&mut state, effects(bytes));
                assert_eq!(state.is_full(), is_full);
            }
            state.effects.clear();
        });
    }

    /// `timeout` is about the client's silence, not about what the server has kept it waiting for.
    #[test]
    fn the_time_without_a_sign_of_the_client_begins_behind_a_wait() {
        with_connection(|connection, _peer| async move {
            connection.client.active_ms.store(0, Ordering::Relaxed);
            assert!(connection.park(Parked::Slowed(Duration::ZERO)).await);
            assert!(connection.client.active_ms.load(Ordering::Relaxed) > 0);
        });
    }
}
