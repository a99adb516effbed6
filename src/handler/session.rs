//! What a connection carries from command to command. Plain data: it travels with a command to whatever thread runs it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use super::acl::{Acl, Identity};
use super::feed::Feed;
use super::monitor::Monitoring;
use super::once::Done;
use super::pubsub::{Heard, Messages, Subscriptions};
use super::tracking::Tracking;
use super::{Command, OwnedArgs, flags};
use crate::codec::NsId;
use crate::config::settings::Settings;
use crate::shard::engine::watch::Watch;
use crate::shard::memory::blocked::{End, Waiter};
use crate::shard::memory::names::Names;
use crate::util::alloc;

/// Commands queued since MULTI.
#[derive(Debug, Default)]
pub struct Multi {
    /// In order.
    pub queue: Vec<(&'static Command, OwnedArgs)>,
    /// A command was refused while queueing: EXEC will abort.
    pub aborted: bool,
    /// Memory of all queued arguments.
    args_bytes: usize,
    /// What is not done again when EXEC is run again, in the order of the queue.
    pub done: Vec<Done>,
}

impl Multi {
    /// Queues a command.
    pub fn push(&mut self, command: &'static Command, args: OwnedArgs) {
        self.args_bytes += args.memory_bytes();
        self.queue.push((command, args));
    }

    /// Bytes of memory held: arguments and the queue's own.
    pub fn memory_bytes(&self) -> usize {
        let done: usize = self.done.iter().map(Done::memory_bytes).sum();
        alloc::block_bytes(self.queue.capacity() * size_of::<(&Command, OwnedArgs)>()) + self.args_bytes + done
    }
}

/// CLIENT REPLY.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyMode {
    /// Replies are sent.
    On,
    /// None are sent.
    Off,
    /// Not for the next command.
    SkipNext,
    /// Not for the command at hand.
    Skip,
}

/// What the connection does once the reply of a command is out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// Reads on.
    Nothing,
    /// Closes.
    Close,
    /// Waits this long before even the reply is sent (WAIT for replicas that there are not).
    HoldMs(u64),
    /// Sends what a [`Feed`] brings, and closes behind it.
    Feed,
}

/// What commands change of their session; plain data, for the way back.
#[derive(Debug, Clone)]
pub struct State {
    db: Vec<u8>,
    names: Arc<Names>,
    proto: u8,
    identity: Identity,
    reply_mode: ReplyMode,
    no_touch: bool,
    no_evict: bool,
    after: After,
    labels: Labels,
}

/// Bits that belong to the session's state.
const STATE_BITS: u32 = bits::NO_EVICT | bits::NO_TOUCH | bits::REPLY_OFF;

/// One connection's state.
#[derive(Debug)]
pub struct Session {
    /// Connection id.
    pub id: u64,
    /// The selected namespace's name (`0` for the first database).
    pub db: Vec<u8>,
    /// Its id, valid as long as `names` is the current map.
    pub ns: NsId,
    /// The map from which `ns` was read.
    pub names: Arc<Names>,
    /// RESP version, 2 or 3.
    pub proto: u8,
    /// Who it is, and may do what.
    pub identity: Identity,
    /// MULTI's queue.
    pub multi: Option<Multi>,
    /// A long one that has been run: its connection has it freed.
    pub spent: Option<Multi>,
    /// What it watches.
    pub watch: Option<Box<Watch>>,
    /// What it has subscribed to.
    pub subscriptions: Option<Box<Subscriptions>>,
    /// MONITOR.
    pub monitoring: Option<Box<Monitoring>>,
    /// CLIENT TRACKING.
    pub tracking: Option<Box<Tracking>>,
    /// The replies of the last command are messages.
    pub speaks: bool,
    /// CLIENT REPLY.
    pub reply_mode: ReplyMode,
    /// CLIENT NO-TOUCH.
    pub no_touch: bool,
    /// CLIENT NO-EVICT.
    pub no_evict: bool,
    /// To do after the reply.
    pub after: After,
    /// What it is sent then.
    pub feed: Option<Feed>,
    /// REPLCONF: the peer finds the end of a file by its mark.
    pub knows_end_marks: bool,
    /// The directives as last read, and the generation that they are of.
    pub settings: Option<(u64, Arc<Settings>)>,
    /// What CLIENT LIST shows of it.
    pub client: Arc<Client>,
}

/// Bits of [`Client::bits`].
pub mod bits {
    /// CLIENT NO-EVICT.
    pub const NO_EVICT: u32 = 1;
    /// CLIENT NO-TOUCH.
    pub const NO_TOUCH: u32 = 2;
    /// CLIENT REPLY OFF.
    pub const REPLY_OFF: u32 = 4;
    /// The connection came through the unix socket.
    pub const UNIX: u32 = 8;
    /// The connection was killed: it runs nothing more.
    pub const CLOSING: u32 = 16;
    /// The peer has left: nobody waits for a reply any more, but writes received whole still happen.
    pub const GONE: u32 = 32;
    /// A command of the connection waits (WAIT).
    pub const BLOCKED: u32 = 64;
    /// A command of the connection is held back by CLIENT PAUSE or the shutdown.
    pub const POSTPONED: u32 = 128;
    /// A command of the connection runs on another thread.
    pub const ELSEWHERE: u32 = 256;
    /// CLIENT TRACKING.
    pub const TRACKING: u32 = 512;
    /// The same with BCAST.
    pub const BROADCAST: u32 = 1024;
    /// Who was to get the notices instead of it is gone.
    pub const BROKEN_REDIRECT: u32 = 2048;
    /// It is shown all commands.
    pub const MONITOR: u32 = 4096;
    /// It is the server's turn: `timeout` spares the connection.
    pub const WAITS: u32 = BLOCKED | POSTPONED | ELSEWHERE;
}

/// A connection as other connections see it. Its own thread writes what it is and has; others end it or its wait, and
/// lend it the bits and bytes of what they do for it.
#[derive(Debug, Default)]
pub struct Client {
    /// Connection id.
    pub id: u64,
    /// Peer's and own address, as CLIENT LIST prints them.
    pub addr: String,
    /// Own address.
    pub laddr: String,
    /// File descriptor; used to shut the socket down when killed.
    pub fd: i32,
    /// The descriptor may be another's by now.
    pub left: parking_lot::Mutex<bool>,
    /// Wakes a connection that waits for something else than its socket.
    pub killed: tokio::sync::Notify,
    /// What a command of it waits for.
    pub waiting: parking_lot::Mutex<Waiting>,
    /// Tells it that this has changed.
    pub news: tokio::sync::Notify,
    /// When it was accepted, Unix ms.
    pub since_ms: u64,
    /// Time of the last command, Unix ms.
    pub active_ms: AtomicU64,
    /// The number of the selected database; −1 for a named namespace.
    pub db: AtomicI64,
    /// RESP version.
    pub proto: AtomicU32,
    /// Commands queued by MULTI; −1 outside.
    pub multi: AtomicI64,
    /// Keys that it watches.
    pub watched: AtomicU64,
    /// Channels, patterns and channels of SPUBLISH that it has subscribed to.
    pub subscribed: [AtomicU32; 3],
    /// Their names.
    pub heard: parking_lot::Mutex<Heard>,
    /// Who gets the notices of CLIENT TRACKING; 0 for itself.
    pub redirect: AtomicU64,
    /// Memory of these, bytes.
    pub subscription_bytes: AtomicU64,
    /// Messages on their way to its thread.
    pub messages: Arc<Messages>,
    /// Index of the last command in the table, `u32::MAX` before the first.
    pub command: AtomicU32,
    /// Bytes of its query buffer.
    pub query_bytes: AtomicU64,
    /// Bytes of its output buffer.
    pub output_bytes: AtomicU64,
    /// Memory of MULTI's queue, and of what is watched.
    pub multi_bytes: AtomicU64,
    /// Room in its query buffer.
    pub query_free: AtomicU64,
    /// Memory of its buffers, in use or not, of MULTI's queue, and of its subscriptions.
    pub buffer_bytes: AtomicU64,
    /// Its request that waits or runs elsewhere, then the reply on its way to it.
    pub away_bytes: AtomicU64,
    /// Since when that is above the soft limit of its class, Unix ms; 0 if it is not.
    pub over_since_ms: AtomicU64,
    /// See [`bits`].
    pub bits: AtomicU32,
    /// Commands run, bytes read and written.
    pub totals: [AtomicU64; 3],
    /// CLIENT SETNAME, SETINFO.
    pub labels: parking_lot::Mutex<Labels>,
}

impl Client {
    /// Sets or clears one of [`bits`].
    pub fn set_bit(&self, bit: u32, on: bool) {
        if on {
            self.bits.fetch_or(bit, Ordering::Relaxed);
        } else {
            self.bits.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// Memory of the connection, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        (size_of::<Session>() + size_of::<Client>()) as u64 + self.held_bytes()
    }

    /// What of that others may want closed: its buffers and what is on its way into them.
    pub fn held_bytes(&self) -> u64 {
        self.buffer_bytes.load(Ordering::Relaxed) + self.away_bytes.load(Ordering::Relaxed)
    }

    /// The connection runs nothing more, and waits for nothing; somebody [kills](Client::kill) it soon.
    pub fn doom(&self) {
        self.bits.fetch_or(bits::CLOSING, Ordering::SeqCst);
        self.end_wait(End::Gone);
    }

    /// Closes the connection from any thread.
    pub fn kill(&self) {
        self.doom();
        // As long as this is held the descriptor is not closed.
        let left = self.left.lock();
        if !*left {
            crate::util::sys::shutdown_socket(self.fd);
        }
        drop(left);
        self.killed.notify_one();
    }

    /// Ends the wait of its command, if it waits.
    pub fn end_wait(&self, why: End) {
        if let Some(waiter) = self.waits_for() {
            waiter.end(why);
        }
    }

    /// What a command of it waits for.
    pub fn waits_for(&self) -> Option<Arc<Waiter>> {
        match &*self.waiting.lock() {
            Waiting::For(waiter, _) => Some(waiter.clone()),
            _ => None,
        }
    }

    /// The connection ends: from now on the descriptor is nobody's to shut down.
    pub fn leave(&self) {
        *self.left.lock() = true;
    }

    /// Whether it has subscribed to anything.
    pub fn subscribes(&self) -> bool {
        self.subscribed.iter().any(|count| count.load(Ordering::Relaxed) > 0)
    }

    /// Whether more than `bytes` of output have been waiting for longer than `time`. 0 bytes is no limit.
    pub fn is_over(&self, bytes: u64, time: std::time::Duration, now_ms: u64) -> bool {
        if bytes == 0 || self.output_bytes.load(Ordering::Relaxed) <= bytes {
            self.over_since_ms.store(0, Ordering::Relaxed);
            return false;
        }
        match self.over_since_ms.load(Ordering::Relaxed) {
            0 => {
                self.over_since_ms.store(now_ms, Ordering::Relaxed);
                false
            }
            since_ms => now_ms.saturating_sub(since_ms) > time.as_millis() as u64,
        }
    }
}

/// What a connection's command waits for.
#[derive(Default)]
pub enum Waiting {
    /// Nothing.
    #[default]
    No,
    /// This, until so many ms (Unix; 0 for ever).
    For(Arc<Waiter>, u64),
    /// The connection is gone, and waits for nothing any more.
    Never,
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Waiting::No => "No",
            Waiting::For(..) => "For",
            Waiting::Never => "Never",
        })
    }
}

/// What a client says of itself.
#[derive(Debug, Default, Clone)]
#[expect(missing_docs, reason = "the fields of CLIENT LIST")]
pub struct Labels {
    pub name: Vec<u8>,
    pub lib_name: Vec<u8>,
    pub lib_ver: Vec<u8>,
    pub user: Arc<[u8]>,
}

impl Session {
    /// Whether a command counts as one that writes: EXEC does if anything does that it is to run.
    pub fn writes(&self, command: &Command) -> bool {
        self.surely_writes(command) || self.does(command, flags::MAY_WRITE)
    }

    /// The same, but for scripts: these find out as they call what writes.
    pub fn surely_writes(&self, command: &Command) -> bool {
        self.does(command, flags::WRITE)
    }

    /// Whether a command may need more room, or is EXEC and one may that it is to run.
    pub fn may_add(&self, command: &Command) -> bool {
        self.does(command, flags::DENYOOM)
    }

    /// Whether a command may leave messages with network threads, or is EXEC and one may that it is to run.
    #[cold]
    pub fn may_publish(&self, command: &Command) -> bool {
        self.does(command, flags::MAY_WRITE)
    }

    fn does(&self, command: &Command, what: u32) -> bool {
        let queued = |multi: &Multi| multi.queue.iter().any(|(command, _)| command.has(what));
        command.has(what) || command.name == "exec" && self.multi.as_ref().is_some_and(queued)
    }

    /// Whether a command is only kept for EXEC.
    #[inline]
    pub fn queues(&self, command: &Command) -> bool {
        self.multi.is_some() && !command.has(flags::UNQUEUED)
    }

    /// The state of a new connection.
    pub fn new(client: Arc<Client>, names: Arc<Names>, acl: &Acl) -> Self {
        let identity = Identity::new(acl);
        client.labels.lock().user = identity.user.name.clone();
        Session {
            id: client.id,
            db: b"0".to_vec(),
            ns: names.id(b"0").unwrap_or(0),
            names,
            proto: 2,
            identity,
            multi: None,
            spent: None,
            watch: None,
            subscriptions: None,
            monitoring: None,
            tracking: None,
            speaks: false,
            reply_mode: ReplyMode::On,
            no_touch: false,
            no_evict: false,
            after: After::Nothing,
            feed: None,
            knows_end_marks: false,
            settings: None,
            client,
        }
    }

    /// What commands may change, as it is now.
    pub fn state(&self) -> State {
        State {
            db: self.db.clone(),
            names: self.names.clone(),
            proto: self.proto,
            identity: self.identity.clone(),
            reply_mode: self.reply_mode,
            no_touch: self.no_touch,
            no_evict: self.no_evict,
            after: self.after,
            labels: self.client.labels.lock().clone(),
        }
    }

    /// Goes back to an earlier state, in what others see of it too.
    pub fn restore(&mut self, state: State) {
        let State { db, names, proto, identity, reply_mode, no_touch, no_evict, after, labels } = state;
        self.names = names;
        self.select(&db);
        self.set_proto(proto);
        (self.identity, self.reply_mode, self.after) = (identity, reply_mode, after);
        (self.no_touch, self.no_evict) = (no_touch, no_evict);
        *self.client.labels.lock() = labels;
        self.show();
    }

    /// Chooses the protocol version.
    pub fn set_proto(&mut self, proto: u8) {
        self.proto = proto;
        self.client.proto.store(proto.into(), Ordering::Relaxed);
    }

    /// Has others see the state's bits.
    pub fn show(&self) {
        let set = [
            (self.no_evict, bits::NO_EVICT),
            (self.no_touch, bits::NO_TOUCH),
            (self.reply_mode == ReplyMode::Off, bits::REPLY_OFF),
        ];
        let on = set.iter().filter(|(on, _)| *on).fold(0, |sum, (_, bit)| sum | bit);
        self.client.bits.fetch_and(!STATE_BITS | on, Ordering::Relaxed);
        self.client.bits.fetch_or(on, Ordering::Relaxed);
    }

    /// Forgets the queue, if there is one, and what was watched for it: EXEC has run it, or nobody will.
    pub fn end_multi(&mut self) {
        self.multi = None;
        self.client.multi.store(-1, Ordering::Relaxed);
        self.unwatch();
    }

    /// Watches nothing any more.
    pub fn unwatch(&mut self) {
        if self.watch.take().is_some() {
            self.client.watched.store(0, Ordering::Relaxed);
        }
    }

    /// Memory of what it has queued and watches, bytes.
    pub fn multi_bytes(&self) -> usize {
        let queued = self.multi.as_ref().map_or(0, Multi::memory_bytes);
        queued + self.watch.as_ref().map_or(0, |watch| watch.memory_bytes())
    }

    /// Turns to the namespace of this name, which the current map holds.
    pub fn select(&mut self, name: &[u8]) {
        self.db = name.to_vec();
        self.ns = self.names.id(name).unwrap_or(NsId::MAX);
        self.client.db.store(crate::util::num::parse_i64(name).unwrap_or(-1), Ordering::Relaxed);
    }

    /// Follows a change of the name → id map.
    #[inline]
    pub fn follow(&mut self, names: &Arc<Names>) {
        if !Arc::ptr_eq(&self.names, names) {
            self.names = names.clone();
            self.ns = names.id(&self.db).unwrap_or(NsId::MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Whoever has read in between is given the whole time again.
    #[test]
    fn the_time_above_the_soft_limit_begins_anew_each_time() {
        let client = Client::default();
        let is_over = |output_bytes, now_ms| {
            client.output_bytes.store(output_bytes, Ordering::Relaxed);
            client.is_over(100, Duration::from_secs(10), now_ms)
        };
        for began_ms in [1_000, 100_000] {
            assert!(!is_over(100, began_ms - 1), "up to the limit no time counts");
            for passed_ms in [0, 5_000, 10_000] {
                assert!(!is_over(101, began_ms + passed_ms), "{passed_ms} ms");
            }
            assert!(is_over(101, began_ms + 10_001));
        }
        assert!(!client.is_over(0, Duration::ZERO, 200_000), "0 is no limit");
    }
}
