//! Pub/sub: who has subscribed to what, and messages on their way.
//!
//! | knows | which subscriptions |
//! |---|---|
//! | the session ([`Subscriptions`]) | its own |
//! | [`Hub`] | of each channel and pattern, which network threads have how many subscribers |
//! | a network thread (`net/subscribers.rs`) | of each channel and pattern, which of its connections |
//!
//! PUBLISH asks the hub how many will hear it and leaves the message with the threads that have them; it leaves when the command
//! commits ([`Effect`]), and is written to subscribers when the log has got there. Channels are spread over many locks by their names; patterns, of which there are
//! few, are behind one that is not touched as long as there are none.
//!
//! A subscription counts from when its command runs. Messages come after the reply to it, as its connection gives itself to
//! its thread when that stands in its output; and only those that were published after it: messages are numbered.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crossbeam_queue::SegQueue;
use parking_lot::{Mutex, RwLock};
use smallvec::SmallVec;
use tokio::sync::Notify;

use super::session::Client;
use super::{Ctx, Effect};
use crate::log::Lsn;
use crate::meter;
use crate::util::glob;
use crate::util::scale::Scaled;

/// What a subscription names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum By {
    /// A channel.
    Channel,
    /// All channels that match a pattern.
    Pattern,
    /// A channel of SPUBLISH.
    Shard,
}

impl By {
    /// All of them.
    pub const ALL: [By; 3] = [By::Channel, By::Pattern, By::Shard];
}

/// The name of a channel, or a pattern.
pub type Name = Arc<[u8]>;

/// What was published.
#[derive(Debug)]
pub struct Message {
    /// With SPUBLISH.
    pub shard: bool,
    /// Where.
    pub channel: Box<[u8]>,
    /// What.
    pub text: Box<[u8]>,
}

impl Message {
    /// Memory, bytes.
    fn bytes(&self) -> usize {
        size_of::<Message>() + self.channel.len() + self.text.len()
    }
}

/// Messages that a network thread has not taken yet.
#[derive(Default)]
pub struct Messages {
    queue: SegQueue<Queued>,
    /// Messages that were ever left here.
    count: AtomicU64,
    /// Bytes that those in the queue will become in the outputs of subscribers.
    bytes: AtomicUsize,
    /// The thread was told, and has not looked since.
    told: AtomicBool,
    wake: Notify,
    /// Threads that have too many.
    behind: Arc<AtomicUsize>,
}

/// What a single connection is told: by CLIENT TRACKING, by MONITOR.
#[derive(Debug)]
pub enum Notice {
    /// These keys have changed, or with `None` all.
    Changed {
        /// The connection's client.
        to: u64,
        /// It is another one's notice.
        redirected: bool,
        /// The keys.
        keys: Option<Arc<[Box<[u8]>]>>,
    },
    /// MONITOR: a command has run.
    Line {
        /// The connection's client.
        to: u64,
        /// The whole line.
        line: Arc<[u8]>,
    },
    /// Who was to get this connection's notices is gone.
    RedirectBroken {
        /// The connection's client.
        to: u64,
        /// The other client.
        redirect: u64,
    },
}

impl Notice {
    /// About its memory, bytes.
    fn bytes(&self) -> usize {
        let keys = match self {
            Notice::Changed { keys: Some(keys), .. } => keys.iter().map(|key| key.len() + 32).sum(),
            Notice::Line { line, .. } => line.len(),
            _ => 0,
        };
        size_of::<Queued>() + keys
    }
}

/// What comes to the connections of a thread.
pub enum What {
    /// What was published, to those who hear it.
    Message(Arc<Message>),
    /// Something for one of them.
    Notice(Box<Notice>),
}

/// A message on its way.
pub struct Queued {
    /// What comes.
    pub what: What,
    /// The so-many-th that was left with the thread. Who has subscribed later does not hear it.
    pub number: u64,
    /// The log is to get there before it leaves.
    pub need: Lsn,
    /// Bytes that it will become.
    bytes: usize,
}

/// Bytes of output that a thread may be behind before who publishes waits.
const MOST_BEHIND: Scaled<usize> = Scaled::new(64 << 20).in_unit_tests(1 << 20);

impl std::fmt::Debug for Messages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Messages({} bytes)", self.bytes.load(Ordering::Relaxed))
    }
}

impl Messages {
    fn put(&self, message: &Arc<Message>, subscribers: u64, need: Lsn) {
        let bytes = message.bytes().saturating_mul(subscribers.max(1) as usize);
        self.put_any(What::Message(message.clone()), bytes, need);
    }

    /// Leaves a notice, which its connection gets when the log has got there.
    pub fn put_notice(&self, notice: Notice, need: Lsn) {
        let bytes = notice.bytes();
        self.put_any(What::Notice(Box::new(notice)), bytes, need);
    }

    fn put_any(&self, what: What, more: usize, need: Lsn) {
        let before = self.bytes.fetch_add(more, Ordering::Relaxed);
        if before < MOST_BEHIND.get() && before + more >= MOST_BEHIND.get() {
            self.behind.fetch_add(1, Ordering::Relaxed);
        }
        let number = self.count.fetch_add(1, Ordering::SeqCst);
        self.queue.push(Queued { what, number, need, bytes: more });
        if !self.told.swap(true, Ordering::SeqCst) {
            self.wake.notify_one();
        }
    }

    /// The next one.
    pub fn take(&self) -> Option<Queued> {
        self.take_with(|| {})
    }

    /// The same, with something that happens just when there seems to be none.
    fn take_with(&self, meanwhile: impl FnOnce()) -> Option<Queued> {
        let queued = self.queue.pop().or_else(|| {
            meanwhile();
            self.told.store(false, Ordering::SeqCst);
            // Who came before that has told nobody.
            self.queue.pop()
        })?;
        let less = queued.bytes;
        let before = self.bytes.fetch_sub(less, Ordering::Relaxed);
        if before >= MOST_BEHIND.get() && before - less < MOST_BEHIND.get() {
            self.behind.fetch_sub(1, Ordering::Relaxed);
        }
        Some(queued)
    }

    /// How many have been left so far.
    fn so_far(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// Waits until there are some.
    pub async fn come(&self) {
        self.wake.notified().await;
    }
}

/// Threads with subscribers, and how many each has.
type Threads = SmallVec<[(Arc<Messages>, u32); 1]>;
type Names = HashMap<Name, Threads, foldhash::fast::RandomState>;

/// Locks over which channels are spread.
const STRIPES: usize = 64;

/// Which threads have subscribers to what.
pub struct Hub {
    /// Channels and those of SPUBLISH, by the hash of their names.
    stripes: Box<[Mutex<[Names; 2]>]>,
    hash: foldhash::fast::RandomState,
    patterns: RwLock<Names>,
    has_patterns: AtomicBool,
    /// Threads that are behind with their messages.
    behind: Arc<AtomicUsize>,
}

impl Default for Hub {
    fn default() -> Self {
        Hub {
            stripes: (0..STRIPES).map(|_| Mutex::default()).collect(),
            hash: foldhash::fast::RandomState::default(),
            patterns: RwLock::default(),
            has_patterns: AtomicBool::new(false),
            behind: Arc::default(),
        }
    }
}

/// A thread has a subscriber more.
fn add(names: &mut Names, name: &Name, to: &Arc<Messages>) {
    let threads = names.entry(name.clone()).or_default();
    match threads.iter_mut().find(|(thread, _)| Arc::ptr_eq(thread, to)) {
        Some((_, count)) => *count += 1,
        None => threads.push((to.clone(), 1)),
    }
}

/// A thread has a subscriber less.
fn remove(names: &mut Names, name: &[u8], of: &Arc<Messages>) {
    let Some(threads) = names.get_mut(name) else { return };
    if let Some(at) = threads.iter().position(|(thread, _)| Arc::ptr_eq(thread, of)) {
        threads[at].1 -= 1;
        if threads[at].1 == 0 {
            threads.swap_remove(at);
        }
    }
    if threads.is_empty() {
        names.remove(name);
    }
}

fn sum(threads: &Threads) -> u64 {
    threads.iter().map(|(_, count)| u64::from(*count)).sum()
}

impl Hub {
    /// The messages of one more network thread.
    pub fn messages(&self) -> Arc<Messages> {
        Arc::new(Messages { behind: self.behind.clone(), ..Messages::default() })
    }

    /// Whether a thread is so far behind that who publishes is to wait.
    #[inline]
    pub fn is_behind(&self) -> bool {
        self.behind.load(Ordering::Relaxed) > 0
    }

    /// Does something with the names of a kind where this one is kept.
    fn on<R>(&self, by: By, name: &[u8], work: impl FnOnce(&mut Names) -> R) -> R {
        use std::hash::BuildHasher as _;
        if by == By::Pattern {
            let mut patterns = self.patterns.write();
            let done = work(&mut patterns);
            self.has_patterns.store(!patterns.is_empty(), Ordering::SeqCst);
            return done;
        }
        let stripe = self.hash.hash_one(name) as usize % STRIPES;
        work(&mut self.stripes[stripe].lock()[usize::from(by == By::Shard)])
    }

    /// Who is to get a message, and how many will hear it: a connection hears it once for its channel and once for each
    /// pattern.
    fn listeners(&self, shard: bool, channel: &[u8]) -> (Threads, u64) {
        let mut to = Threads::new();
        let mut count = 0;
        let mut hear = |threads: &Threads| {
            count += sum(threads);
            for (thread, more) in threads {
                match to.iter_mut().find(|(other, _)| Arc::ptr_eq(other, thread)) {
                    Some((_, count)) => *count += more,
                    None => to.push((thread.clone(), *more)),
                }
            }
        };
        let by = if shard { By::Shard } else { By::Channel };
        self.on(by, channel, |names| names.get(channel).into_iter().for_each(&mut hear));
        if !shard && self.has_patterns.load(Ordering::SeqCst) {
            let patterns = self.patterns.read();
            patterns
                .iter()
                .filter(|(pattern, _)| glob::matches(pattern, channel))
                .for_each(|(_, threads)| hear(threads));
        }
        (to, count)
    }

    /// Publishes what no command does.
    pub fn publish(&self, channel: &[u8], text: &[u8], need: Lsn) {
        if let (Some(publication), _) = self.publication(false, channel, text) {
            publication.leave(need);
        }
    }

    /// A message to those who hear it, if anybody does; and how many do.
    fn publication(&self, shard: bool, channel: &[u8], text: &[u8]) -> (Option<Publication>, u64) {
        let (to, count) = self.listeners(shard, channel);
        let message = || Arc::new(Message { shard, channel: channel.into(), text: text.into() });
        ((!to.is_empty()).then(|| Publication { to, message: message() }), count)
    }

    /// Subscriptions to a channel.
    pub fn subscribers(&self, by: By, name: &[u8]) -> u64 {
        self.on(by, name, |names| names.get(name).map_or(0, sum))
    }

    /// Names that have subscribers.
    pub fn count(&self, by: By) -> usize {
        match by {
            By::Pattern => self.patterns.read().len(),
            _ => self.stripes.iter().map(|stripe| stripe.lock()[usize::from(by == By::Shard)].len()).sum(),
        }
    }

    /// The channels that have subscribers and match a pattern.
    pub fn channels(&self, by: By, pattern: Option<&[u8]>) -> Vec<Name> {
        let matches = |name: &Name| pattern.is_none_or(|pattern| glob::matches(pattern, name));
        let of_stripe = |stripe: &Mutex<[Names; 2]>| {
            stripe.lock()[usize::from(by == By::Shard)].keys().filter(|name| matches(name)).cloned().collect::<Vec<_>>()
        };
        self.stripes.iter().flat_map(of_stripe).collect()
    }
}

/// Names that a connection has subscribed to, of each kind. They stand in its client, as others look at them, too.
pub type Heard = [HashSet<Name, foldhash::fast::RandomState>; 3];

/// The subscriptions of a connection. It leaves the hub with this.
pub struct Subscriptions {
    hub: Arc<Hub>,
    client: Arc<Client>,
}

impl std::fmt::Debug for Subscriptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(By::ALL.iter().map(|by| self.len(*by))).finish()
    }
}

/// About what a subscription takes beside its name, in all three places.
const SUBSCRIPTION_BYTES: usize = 200;

impl Subscriptions {
    fn new(hub: &Arc<Hub>, client: &Arc<Client>) -> Self {
        Subscriptions { hub: hub.clone(), client: client.clone() }
    }

    /// Subscriptions of a kind.
    pub fn len(&self, by: By) -> usize {
        self.client.subscribed[by as usize].load(Ordering::Relaxed) as usize
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        !self.client.subscribes()
    }

    fn tell(&self, by: By, name: &[u8], more: bool) {
        let (count, bytes) = (&self.client.subscribed[by as usize], name.len() + SUBSCRIPTION_BYTES);
        let (count, total) = (count, &self.client.subscription_bytes);
        if more {
            count.fetch_add(1, Ordering::Relaxed);
            total.fetch_add(bytes as u64, Ordering::Relaxed);
        } else {
            count.fetch_sub(1, Ordering::Relaxed);
            total.fetch_sub(bytes as u64, Ordering::Relaxed);
        }
    }

    fn add(&mut self, by: By, name: &Name) -> bool {
        let is_new = self.client.heard.lock()[by as usize].insert(name.clone());
        if is_new {
            self.hub.on(by, name, |names| add(names, name, &self.client.messages));
            self.tell(by, name, true);
        }
        is_new
    }

    fn remove(&mut self, by: By, name: &[u8]) -> Option<Name> {
        let name = self.client.heard.lock()[by as usize].take(name)?;
        self.hub.on(by, &name, |names| remove(names, &name, &self.client.messages));
        self.tell(by, &name, false);
        Some(name)
    }
}

impl Drop for Subscriptions {
    fn drop(&mut self) {
        for by in By::ALL {
            let names = std::mem::take(&mut self.client.heard.lock()[by as usize]);
            for name in names {
                self.hub.on(by, &name, |names| remove(names, &name, &self.client.messages));
                self.tell(by, &name, false);
            }
        }
    }
}

/// A message on its way to those threads.
#[derive(Debug)]
pub struct Publication {
    to: Threads,
    message: Arc<Message>,
}

impl Publication {
    /// Leaves it with the threads, whose subscribers get it when the log has got there.
    pub fn leave(&self, need: Lsn) {
        self.to.iter().for_each(|(thread, count)| thread.put(&self.message, (*count).into(), need));
    }
}

impl super::Session {
    /// Subscriptions of these kinds.
    pub fn subscriptions(&self, of: &[By]) -> usize {
        self.subscriptions.as_ref().map_or(0, |all| of.iter().map(|by| all.len(*by)).sum())
    }

    /// Whether it has subscribed to anything.
    pub fn hears(&self) -> bool {
        self.subscriptions.as_ref().is_some_and(|all| !all.is_empty())
    }

    /// Goes back over a subscription.
    pub(super) fn undo_subscription(&mut self, by: By, name: &Name, was_made: bool) {
        if let Some(all) = &mut self.subscriptions {
            if was_made {
                all.remove(by, name);
            } else {
                all.add(by, name);
            }
        }
    }
}

impl Ctx<'_, '_> {
    /// Subscribes the connection.
    pub fn subscribe(&mut self, by: By, name: &[u8]) {
        let hub = &self.server.hub;
        let client = &self.session.client;
        let all = self.session.subscriptions.get_or_insert_with(|| Box::new(Subscriptions::new(hub, client)));
        let name = Name::from(name);
        if all.add(by, &name) {
            // A refusal ends the command soon enough.
            _ = meter::hold(name.len() + SUBSCRIPTION_BYTES);
            let since = self.session.client.messages.so_far();
            self.note(Effect::Subscribed(by, name, since));
        }
    }

    /// Ends a subscription of the connection, if there is such.
    pub fn unsubscribe(&mut self, by: By, name: &[u8]) {
        let removed = self.session.subscriptions.as_mut().and_then(|all| all.remove(by, name));
        if let Some(name) = removed {
            self.note(Effect::Unsubscribed(by, name));
        }
    }

    /// What the connection has subscribed to.
    pub fn subscribed(&self, by: By) -> Vec<Name> {
        self.session.client.heard.lock()[by as usize].iter().cloned().collect()
    }

    /// Publishes; how many will hear it.
    pub fn publish(&mut self, shard: bool, channel: &[u8], text: &[u8]) -> u64 {
        let (publication, count) = self.server.hub.publication(shard, channel, text);
        if let Some(publication) = publication {
            _ = meter::hold(publication.message.bytes());
            self.note(Effect::Publish(publication));
        }
        count
    }

    /// The replies of this command are sent even where CLIENT REPLY has turned them off: they are messages.
    pub fn speaks(&mut self) {
        self.session.speaks = true;
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::future::Future as _;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    fn client(hub: &Hub) -> Arc<Client> {
        Arc::new(Client { messages: hub.messages(), ..Client::default() })
    }

    #[test]
    fn the_hub_knows_how_many_will_hear_a_message() {
        let hub = Arc::new(Hub::default());
        let clients = [client(&hub), client(&hub)];
        let [mut one, mut two] = [0, 1].map(|at| Subscriptions::new(&hub, &clients[at]));
        let [news, sport] = [b"news".as_slice(), b"n*"].map(Name::from);
        assert!(one.add(By::Channel, &news) && !one.add(By::Channel, &news) && two.add(By::Channel, &news));
        assert!(two.add(By::Pattern, &sport) && two.add(By::Shard, &news));
        let (to, count) = hub.listeners(false, b"news");
        assert_eq!((to.len(), count), (2, 3));
        assert_eq!((hub.listeners(false, b"night").1, hub.listeners(true, b"news").1), (1, 1));
        assert_eq!(hub.channels(By::Channel, Some(b"*w*")), std::slice::from_ref(&news));
        assert!(two.remove(By::Pattern, b"n*").is_some() && two.remove(By::Pattern, b"n*").is_none());
        drop(one);
        assert_eq!((hub.subscribers(By::Channel, b"news"), hub.listeners(false, b"news").1), (1, 1));
        drop(two);
        assert!(By::ALL.iter().all(|by| hub.count(*by) == 0), "nothing is left behind");
        assert!(clients.iter().all(|client| client.subscription_bytes.load(Ordering::Relaxed) == 0));
    }

    #[test]
    fn who_is_far_behind_is_seen_until_it_is_not() {
        let hub = Hub::default();
        let messages = hub.messages();
        let text = vec![0; MOST_BEHIND.get() / 8];
        let message = || Arc::new(Message { shard: false, channel: (*b"c").into(), text: text[..].into() });
        (0..3).for_each(|_| messages.put(&message(), 2, 0));
        assert!(!hub.is_behind());
        (0..3).for_each(|_| messages.put(&message(), 2, 0));
        assert!(hub.is_behind());
        (0..6).for_each(|_| _ = messages.take().unwrap());
        assert!(!hub.is_behind() && messages.take().is_none());
        assert_eq!(messages.bytes.load(Ordering::Relaxed), 0);
    }

    /// One that comes just as the thread finds that there is none is seen by it, one that comes later wakes it.
    #[test]
    fn no_message_stays_behind() {
        let messages = Hub::default().messages();
        let put = || {
            let message = Message { shard: false, channel: (*b"c").into(), text: (*b"t").into() };
            messages.put(&Arc::new(message), 1, 0);
        };
        let is_woken = || pin!(messages.come()).poll(&mut Context::from_waker(Waker::noop())).is_ready();
        put();
        assert!(is_woken() && messages.take().is_some());
        assert!(messages.take_with(put).is_some(), "it has woken nobody");
        assert!(!is_woken() && messages.take().is_none());
        put();
        assert!(is_woken() && messages.take().is_some());
    }
}
