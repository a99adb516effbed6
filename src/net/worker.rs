//! A network thread: a current-thread runtime, its connections, and the tick.
//!
//! Connections run their commands as their bytes arrive and leave their replies in their output buffers. At the end of
//! the round the tick writes everybody's log records with one `write(2)`, then sends the replies that are thereby
//! covered. Whoever finds another thread writing leaves its connections in `waiting`; the log wakes the thread.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};

use super::ahead::Ahead;
use super::connection::Connection;
use super::linger::{LINGER, Linger, Look};
use super::reads::OwnReads;
use super::ready_ones_first;
use super::secure::{Open, Secure};
use super::socket::Socket;
use super::subscribers::Subscribers;
use crate::command::run::{READS_HERE, Runner};
use crate::config::Settings;
use crate::handler::limits::request_limits;
use crate::handler::pubsub::Messages;
use crate::handler::server::{Server, ThreadStats, bump};
use crate::handler::session::{Client, bits};
use crate::latency::{self, Event};
use crate::log::WaiterId;
use crate::resp::Limits;
use crate::shard::engine::gate;
use crate::util::alloc::heaps;
use crate::util::ticks;

/// What the connections of a thread share.
pub struct Worker {
    /// The server.
    pub server: Arc<Server>,
    /// Runs commands.
    pub runner: RefCell<Runner>,
    /// Where sockets are read into before it is known whose bytes must stay.
    pub scratch: RefCell<Vec<u8>>,
    /// What is parsed of one connection's pipeline while its commands run.
    pub ahead: RefCell<Ahead>,
    /// What its connections lack of the store.
    pub(super) reads: OwnReads,
    /// Its connections by what they have subscribed to.
    pub(super) subscribers: RefCell<Subscribers>,
    /// Messages for these.
    pub(super) messages: Arc<Messages>,
    /// Connections with replies to send.
    waiting: RefCell<Vec<Rc<Connection>>>,
    /// Some of them came since the last tick.
    has_news: Cell<bool>,
    /// Calls of [`Worker::let_them_run`] so far.
    #[cfg(test)]
    pub(super) rests: Cell<u32>,
    tick: Arc<Notify>,
    waiter: WaiterId,
    /// The directives, and the generation they are of.
    settings: RefCell<(u64, Arc<Settings>)>,
    /// What requests may contain, by the directives of this generation.
    limits: Cell<(u64, Limits)>,
    /// Whose commands it ran last, and how often on end.
    served: Cell<(u64, u32)>,
    /// Something was read since the spinner last looked.
    busy: Cell<bool>,
    /// The spinner looks on, or is about to.
    spins: Cell<bool>,
    spin: Notify,
    linger: RefCell<Linger>,
    /// Others have freed much of what may have been the thread's.
    heap: Arc<Notify>,
}

/// For so many seconds INFO tells of the largest buffers, and for as many more.
const SIZES_EVERY_S: u64 = 4;

/// Who has been served so often on end is alone.
const ALONE: u32 = 8;

/// Bytes read from a socket at once.
pub const READ: usize = 64 << 10;

/// A socket on its way to a thread.
pub struct Accepted {
    /// The socket, non-blocking.
    pub socket: StdSocket,
    /// Peer and own address, as CLIENT LIST prints them.
    pub addr: String,
    /// Own address.
    pub laddr: String,
}

/// A socket without a runtime.
pub enum StdSocket {
    /// TCP.
    Tcp(std::net::TcpStream),
    /// Unix domain.
    Unix(std::os::unix::net::UnixStream),
    /// TCP, after a TLS handshake.
    Secure(std::net::TcpStream, Box<rustls::ServerConnection>),
}

/// How long connections have waited for the log in a tick.
#[derive(Default)]
struct LogWaits {
    count: u64,
    sum_ns: u64,
    most_ns: u64,
}

impl LogWaits {
    #[inline]
    fn add(&mut self, ns: u64) {
        (self.count, self.sum_ns, self.most_ns) = (self.count + 1, self.sum_ns + ns, self.most_ns.max(ns));
    }

    fn tell(&self) {
        latency::add_waits(Event::LogWait, self.count, self.sum_ns);
        latency::keep(Event::LogWait, self.most_ns);
    }
}

/// A runtime for the calling thread that counts its turns: from where it wakes to where it sleeps.
fn counting_turns(stats: &Arc<ThreadStats>) -> tokio::runtime::Builder {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    // It goes to sleep for the first time without having woken up.
    stats.woke_at.store(ticks::now(), Ordering::Relaxed);
    let (awake, asleep) = (stats.clone(), stats.clone());
    runtime.on_thread_unpark(move || awake.woke_at.store(ticks::now(), Ordering::Relaxed));
    runtime.on_thread_park(move || {
        let took = ticks::now().wrapping_sub(asleep.woke_at.load(Ordering::Relaxed));
        bump(&asleep.turns[0], 1);
        bump(&asleep.turns[1], ticks::to_ns(took));
    });
    runtime
}

impl Worker {
    /// Runs a network thread until its channel closes.
    pub fn run(server: Arc<Server>, sockets: mpsc::UnboundedReceiver<Accepted>) -> std::io::Result<()> {
        let stats = Arc::new(ThreadStats::new(crate::command::table().slots()));
        let runtime = counting_turns(&stats).enable_all().event_interval(61).build()?;
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, async move {
            let worker = Worker::new(server, stats);
            tokio::task::spawn_local(worker.clone().ticks());
            tokio::task::spawn_local(worker.clone().reads());
            let inbox = worker.reads.inbox.clone();
            tokio::task::spawn_local(async move { inbox.keep_empty(|brought| brought.tell()).await });
            tokio::task::spawn_local(worker.clone().deliver());
            tokio::task::spawn_local(worker.clone().spinner());
            tokio::task::spawn_local(worker.clone().tend_heap());
            tokio::task::spawn_local(worker.clone().idle_sweep());
            worker.accept(sockets).await;
        });
        Ok(())
    }

    pub(super) fn new(server: Arc<Server>, stats: Arc<ThreadStats>) -> Rc<Worker> {
        stats.thread_id.store(crate::util::sys::thread_id(), Ordering::Relaxed);
        server.threads.lock().push(stats.clone());
        let tick = Arc::new(Notify::new());
        let wake = tick.clone();
        let waiter = server.engine.log.register(Box::new(move || wake.notify_one()));
        let settings = RefCell::new((server.config.generation(), server.config.settings()));
        let limits = Cell::new((server.config.generation(), request_limits(&server.config.settings())));
        let polls = !server.config.settings().busy_poll.is_zero();
        let runner = Runner::new(server.clone(), stats);
        let messages = server.hub.messages();
        let heap = Arc::new(Notify::new());
        heaps::register(Arc::downgrade(&heap));
        Rc::new(Worker {
            server,
            runner: RefCell::new(runner),
            scratch: RefCell::new(vec![0; READ]),
            ahead: RefCell::default(),
            reads: OwnReads::default(),
            subscribers: RefCell::default(),
            messages,
            waiting: RefCell::new(Vec::new()),
            has_news: Cell::new(false),
            #[cfg(test)]
            rests: Cell::default(),
            tick,
            waiter,
            settings,
            limits,
            served: Cell::default(),
            busy: Cell::new(false),
            spins: Cell::new(false),
            spin: Notify::new(),
            linger: RefCell::new(Linger::new(polls)),
            heap,
        })
    }

    /// A directive, without a lock as long as none has changed.
    #[inline]
    pub fn setting<T>(&self, read: impl FnOnce(&Settings) -> T) -> T {
        let mut cached = self.settings.borrow_mut();
        let generation = self.server.config.generation();
        if cached.0 != generation {
            *cached = (generation, self.server.config.settings());
        }
        read(&cached.1)
    }

    /// What requests may contain.
    #[inline]
    pub fn request_limits(&self) -> Limits {
        let (generation, limits) = self.limits.get();
        let now = self.server.config.generation();
        if generation == now {
            return limits;
        }
        self.limits.set((now, self.setting(request_limits)));
        self.limits.get().1
    }

    /// Commands of a connection run.
    #[inline]
    pub(super) fn serves(&self, id: u64) {
        let (last, runs) = self.served.get();
        self.served.set((id, if last == id { runs.saturating_add(1) } else { 0 }));
    }

    /// Whether others than who is served have been served of late.
    pub(super) fn is_in_company(&self) -> bool {
        self.served.get().1 < ALONE
    }

    async fn accept(self: Rc<Self>, mut sockets: mpsc::UnboundedReceiver<Accepted>) {
        while let Some(accepted) = sockets.recv().await {
            let socket = match accepted.socket {
                StdSocket::Tcp(socket) => tokio::net::TcpStream::from_std(socket).map(Socket::Tcp),
                StdSocket::Unix(socket) => tokio::net::UnixStream::from_std(socket).map(Socket::Unix),
                StdSocket::Secure(socket, session) => tokio::net::TcpStream::from_std(socket).map(|stream| {
                    Socket::Secure(Box::new(Secure::new(stream, *session, Open::new(self.server.clone()))))
                }),
            };
            match socket {
                Ok(socket) => {
                    let connection = Connection::open(self.clone(), socket, accepted.addr, accepted.laddr);
                    tokio::task::spawn_local(connection.serve());
                }
                Err(error) => tracing::warn!(%error, "cannot watch a socket"),
            }
        }
    }

    /// Takes a connection's replies into the next tick.
    #[inline]
    pub fn enqueue(&self, connection: Rc<Connection>) {
        self.waiting.borrow_mut().push(connection);
        if !self.has_news.replace(true) {
            self.tick.notify_one();
        }
    }

    async fn ticks(self: Rc<Self>) {
        let mut due: Vec<Rc<Connection>> = Vec::new();
        loop {
            self.tick.notified().await;
            // Those who were served by this tick's commands have their replies by then, and share the tick.
            ready_ones_first().await;
            self.runner.borrow_mut().reads_here = READS_HERE;
            self.reads.empty_inbox();
            self.has_news.set(false);
            std::mem::swap(&mut *self.waiting.borrow_mut(), &mut due);
            put_in_order(&mut due);
            let Some(need) = due.iter().map(|c| c.need()).max() else { continue };
            let log = &self.server.engine.log;
            let mut acked = log.commit(need);
            // Before the log's health is asked: of a later turn the thread is told.
            while let Some(least) = due.iter().map(|c| c.need()).filter(|need| *need > acked).min() {
                let now = log.wait(least, self.waiter);
                if now < least {
                    break;
                }
                acked = now;
            }
            let refused = if acked < need { log.health() } else { None };
            if refused.is_some() {
                self.server.engine.set_gate(gate::REFUSED, true);
            }
            let (now, mut waits) = (ticks::now(), LogWaits::default());
            for connection in due.drain(..) {
                if connection.need() <= acked {
                    waits.add(ticks::to_ns(now.wrapping_sub(connection.queued_at.get())));
                    connection.send();
                } else if let Some(why) = &refused {
                    connection.refuse(why);
                } else {
                    // The log wakes this thread when it has got to the first of them.
                    self.waiting.borrow_mut().push(connection);
                }
            }
            waits.tell();
        }
    }

    /// Lets those run who wait for this core, before the thread goes on with what takes its time: who was sent something wakes on the
    /// core of who sends, and waits there until it sleeps, though another one be idle; and so does another network thread if no
    /// core is.
    pub(super) fn let_them_run(&self) {
        #[cfg(test)]
        self.rests.set(self.rests.get() + 1);
        std::thread::yield_now();
    }

    /// Keeps the thread's heap in order, in between commands instead of within one.
    async fn tend_heap(self: Rc<Self>) {
        loop {
            self.heap.notified().await;
            heaps::tidy();
        }
    }

    /// Notes that something was read: the thread may be to look on before it sleeps.
    #[inline]
    pub fn stay_awake(&self) {
        self.busy.set(true);
        if self.linger.borrow_mut().reads() && !self.spins.replace(true) {
            self.spin.notify_one();
        }
    }

    /// Looks on for more, where that pays or is wanted, instead of having the thread sleep.
    async fn spinner(self: Rc<Self>) {
        loop {
            self.spin.notified().await;
            loop {
                let look = self.look_on().await;
                if !self.linger.borrow_mut().learn(look) {
                    break;
                }
            }
            self.spins.set(false);
        }
    }

    /// Looks on until something was read, but for a little.
    async fn look_on(&self) -> Look {
        self.busy.set(false);
        tokio::task::yield_now().await;
        if self.busy.get() {
            return Look::AtOnce;
        }
        // From here on: before, replies were on their way.
        let since = ticks::now();
        let wanted = self.setting(|settings| settings.busy_poll);
        let long = if wanted.is_zero() { LINGER } else { wanted }.as_nanos() as u64;
        loop {
            let ns = ticks::ns_since(since);
            if ns >= long {
                return Look::Missed;
            }
            tokio::task::yield_now().await;
            if self.busy.get() {
                return Look::Found(ns);
            }
        }
    }

    /// Closes those of its connections that are [overdue].
    async fn idle_sweep(self: Rc<Self>) {
        for second in 1u64.. {
            tokio::time::sleep(Duration::from_secs(1)).await;
            if second.is_multiple_of(SIZES_EVERY_S) {
                self.runner.borrow().stats.age_sizes();
            }
            let settings = self.server.config.settings();
            self.linger.borrow_mut().always = !settings.busy_poll.is_zero();
            let now_ms = crate::util::time::now_ms();
            for client in self.server.every_client() {
                if Arc::ptr_eq(&client.messages, &self.messages)
                    && client.bits.load(Ordering::Relaxed) & bits::CLOSING == 0
                    && let Some(why) = overdue(&client, &settings, now_ms)
                {
                    if why == Overdue::Unread {
                        bump(&self.runner.borrow().stats.over_output, 1);
                    }
                    client.kill();
                }
            }
        }
    }
}

/// Who has waited comes before whoever has just come: a peer that sits at both ends is woken by the last of its replies instead of by
/// each. Of two, the first wakes its peer while the second is sent.
fn put_in_order(due: &mut [Rc<Connection>]) {
    if due.len() > 2 {
        due.sort_by_key(|connection| !connection.was_away.get());
    }
}

/// Why a connection is closed that does nothing wrong at the moment.
#[derive(Debug, PartialEq, Eq)]
enum Overdue {
    /// It has been idle for `timeout` seconds.
    Idle,
    /// It has had more output waiting than its class may have for some time.
    Unread,
}

/// Whether a connection is to be closed. Who subscribes, is shown all commands, or is kept waiting is not idle.
fn overdue(client: &Client, settings: &Settings, now_ms: u64) -> Option<Overdue> {
    let (limits, subscribes) = (settings.client_output_buffer_limit, client.subscribes());
    let soft = if subscribes { limits.pubsub } else { limits.normal };
    if client.is_over(soft.soft_bytes, soft.soft_time, now_ms) {
        return Some(Overdue::Unread);
    }
    let spared = subscribes || client.bits.load(Ordering::Relaxed) & (bits::WAITS | bits::MONITOR) != 0;
    let idle_ms = now_ms.saturating_sub(client.active_ms.load(Ordering::Relaxed));
    let idle = settings.timeout.is_some_and(|timeout| idle_ms > timeout.as_millis() as u64);
    (idle && !spared).then_some(Overdue::Idle)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
pub(super) mod tests {
    use super::*;
    use crate::config::{Config, Source};
    use crate::shard::keyspace::walk::tests::engine;

    /// Runs a test on what is a network thread but for its listeners, of a server of its own.
    pub(in crate::net) fn with_worker<F: Future<Output = ()>>(test: impl FnOnce(Rc<Worker>) -> F) {
        let dir = crate::util::scratch::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let config = Config::load(Source::Defaults, &[]).unwrap();
            let table = crate::command::table();
            let server = Arc::new(Server::new(engine(dir.path(), 1), config, table));
            test(Worker::new(server, Arc::new(ThreadStats::new(table.slots())))).await;
        });
    }

    #[test]
    fn who_is_served_alone_is_so_after_a_while_and_not_once_another_comes() {
        with_worker(|worker| async move {
            let serve = |id| {
                worker.serves(id);
                worker.is_in_company()
            };
            assert!((0..ALONE).all(|_| serve(1)) && !serve(1) && !serve(1));
            assert!(serve(2) && serve(1) && (1..ALONE).all(|_| serve(1)) && !serve(1));
        });
    }

    #[test]
    fn a_look_tells_what_came_and_when() {
        with_worker(|worker| async move {
            let comes_after = |turns: usize| {
                let worker = worker.clone();
                tokio::task::spawn_local(async move {
                    for _ in 0..turns {
                        tokio::task::yield_now().await;
                    }
                    worker.busy.set(true);
                })
            };
            worker.busy.set(true);
            assert_eq!(worker.look_on().await, Look::Missed, "what was there before is no news");
            // What comes comes in time, however slow this machine.
            worker.server.config.set(&[("busy-poll", "60s")]).unwrap();
            comes_after(0);
            assert_eq!(worker.look_on().await, Look::AtOnce);
            comes_after(3);
            assert!(matches!(worker.look_on().await, Look::Found(_)));
        });
    }

    #[test]
    fn a_thread_that_has_looked_on_in_vain_does_so_again_when_it_is_asked() {
        with_worker(|worker| async move {
            worker.linger.borrow_mut().always = true;
            tokio::task::spawn_local(worker.clone().spinner());
            for _ in 0..3 {
                worker.stay_awake();
                assert!(worker.spins.get());
                let ended = async {
                    while worker.spins.get() {
                        tokio::task::yield_now().await;
                    }
                };
                assert!(tokio::time::timeout(Duration::from_secs(20), ended).await.is_ok(), "it goes on for ever");
            }
        });
    }

    fn connect(worker: &Rc<Worker>) -> (Rc<Connection>, std::os::unix::net::UnixStream) {
        let (ours, peer) = std::os::unix::net::UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        peer.set_nonblocking(true).unwrap();
        let socket = Socket::Unix(tokio::net::UnixStream::from_std(ours).unwrap());
        (Connection::open(worker.clone(), socket, String::new(), String::new()), peer)
    }

    #[test]
    fn who_is_served_shares_the_tick_of_those_who_serve() {
        use std::io::{Read as _, Write as _};
        with_worker(|worker| async move {
            tokio::task::spawn_local(worker.clone().ticks());
            let mut peers: Vec<_> = (0..6).map(|_| connect(&worker)).collect();
            for (connection, _) in &peers {
                tokio::task::spawn_local(connection.clone().serve());
            }
            let (wait, serve) = peers.split_at_mut(3);
            for (key, (connection, peer)) in wait.iter_mut().enumerate() {
                peer.write_all(format!("BLPOP key{key} 0\r\n").as_bytes()).unwrap();
                while connection.client.bits.load(Ordering::Relaxed) & bits::BLOCKED == 0 {
                    tokio::task::yield_now().await;
                }
            }
            for (key, (_, peer)) in serve.iter_mut().enumerate() {
                peer.write_all(format!("LPUSH key{key} v\r\n").as_bytes()).unwrap();
            }
            for (_, peer) in &mut peers {
                while peer.read(&mut [0; 64]).is_err() {
                    tokio::task::yield_now().await;
                }
            }
            // Else it was sent its reply by itself, behind those of the tick.
            assert!(peers.iter().all(|(connection, _)| connection.queued_at.get() != 0));
        });
    }

    #[test]
    fn who_has_waited_comes_first_where_there_are_more_than_two() {
        with_worker(|worker| async move {
            let connections: Vec<_> = (0..5).map(|_| connect(&worker).0).collect();
            let order = |of: &[usize]| {
                let mut due: Vec<_> = of.iter().map(|at| connections[*at].clone()).collect();
                put_in_order(&mut due);
                let at = |one: &Rc<Connection>| connections.iter().position(|other| Rc::ptr_eq(one, other));
                due.iter().map(|one| at(one).unwrap()).collect::<Vec<_>>()
            };
            connections[1].was_away.set(true);
            connections[3].was_away.set(true);
            assert_eq!(order(&[0, 1, 2, 3, 4]), [1, 3, 0, 2, 4]);
            assert_eq!(order(&[0, 1]), [0, 1]);
        });
    }

    /// Each class has limits of its own, whatever the other's are; time that others take, and silence that is meant, are no idleness.
    #[test]
    fn who_is_idle_or_does_not_read_is_closed_and_nobody_else() {
        const NOW_MS: u64 = 100_000;
        let (unread, idle) = (Some(Overdue::Unread), Some(Overdue::Idle));
        let of_normal = "normal 0 1000 5 pubsub 0 0 0";
        let of_pubsub = "normal 0 0 0 pubsub 0 1000 5";
        for (timeout, limits, is, output, idle_ms, expected) in [
            ("0", of_normal, "", 0, NOW_MS, &None),
            ("10", of_normal, "", 0, 10_000, &None),
            ("10", of_normal, "", 0, 10_001, &idle),
            ("10", of_normal, "subscribed", 0, 10_001, &None),
            ("10", of_normal, "monitor", 0, 10_001, &None),
            ("10", of_normal, "waits", 0, 10_001, &None),
            ("10", of_normal, "tracking", 0, 10_001, &idle),
            ("0", of_normal, "", 1000, 0, &None),
            ("0", of_normal, "", 1001, 0, &unread),
            ("0", of_normal, "waits", 1001, 0, &unread),
            ("0", of_normal, "subscribed", 1001, 0, &None),
            ("0", of_pubsub, "subscribed", 1001, 0, &unread),
            ("0", of_pubsub, "", 1001, 0, &None),
        ] {
            let config = Config::default();
            config.set(&[("timeout", timeout), ("client-output-buffer-limit", limits)]).unwrap();
            let client = Client { active_ms: (NOW_MS - idle_ms).into(), ..Client::default() };
            client.output_bytes.store(output, Ordering::Relaxed);
            match is {
                "subscribed" => client.subscribed[1].store(1, Ordering::Relaxed),
                "monitor" => client.set_bit(bits::MONITOR, true),
                "waits" => client.set_bit(bits::BLOCKED, true),
                "tracking" => client.set_bit(bits::TRACKING, true),
                _ => {}
            }
            let what = format!("timeout {timeout}, {limits}: {is} {output} {idle_ms}");
            let settings = config.settings();
            // Since when it is too much is known from here on.
            overdue(&client, &settings, NOW_MS - 5001);
            assert_eq!(overdue(&client, &settings, NOW_MS - 1).filter(|why| *why == Overdue::Unread), None, "{what}");
            assert_eq!(overdue(&client, &settings, NOW_MS), *expected, "{what}");
        }
    }
}
