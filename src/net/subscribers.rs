//! The subscribers of a network thread, and how messages get to them.
//!
//! A message is written into the output of each connection that hears it, once encoded for each protocol, and leaves with
//! what else that has to send. Between some hundred of them the thread does its other work: who publishes to many holds
//! nobody up.

use std::collections::HashMap;
use std::rc::{Rc, Weak};

use super::connection::Connection;
use super::worker::Worker;
use crate::handler::pubsub::{By, Message, Name, Notice, What};
use crate::log::Lsn;
use crate::resp::Reply;
use crate::util::glob;
use crate::util::scale::Scaled;

/// Outputs that are sent between two looks at the sockets.
const SLICE: Scaled<usize> = Scaled::new(128).in_unit_tests(4);
/// Outputs that are written into before they are sent, and bytes: of several messages one connection gets what it can at once.
const MOST_WRITTEN: Scaled<usize> = Scaled::new(128 << 10).in_unit_tests(16);
const MOST_BYTES: Scaled<usize> = Scaled::new(8 << 20).in_unit_tests(4096);
/// Outputs that are written into between two looks at the sockets.
const TURN: Scaled<usize> = Scaled::new(2048).in_unit_tests(4);

/// Connections by their clients' ids, and the number from which on messages are for them.
type Connections = HashMap<u64, (Rc<Connection>, u64), foldhash::fast::RandomState>;

/// Connections of a thread by what they have subscribed to.
#[derive(Default)]
pub(super) struct Subscribers {
    of: [HashMap<Name, Connections, foldhash::fast::RandomState>; 3],
    /// All of them, by their clients' ids. They have the thread, and it must end when the server does: it does not keep them.
    all: HashMap<u64, Weak<Connection>, foldhash::fast::RandomState>,
    /// Changes whenever a connection no longer hears something.
    generation: u64,
}

impl Subscribers {
    /// A connection begins.
    pub(super) fn begin(&mut self, connection: &Rc<Connection>) {
        self.all.insert(connection.client.id, Rc::downgrade(connection));
    }

    /// It ends.
    pub(super) fn end(&mut self, client: u64) {
        self.all.remove(&client);
    }

    /// A connection hears this from now on.
    pub(super) fn add(&mut self, by: By, name: Name, connection: Rc<Connection>, since: u64) {
        self.of[by as usize].entry(name).or_default().insert(connection.client.id, (connection, since));
    }

    /// A connection no longer hears this.
    pub(super) fn remove(&mut self, by: By, name: &[u8], client: u64) {
        self.generation += 1;
        let names = &mut self.of[by as usize];
        if let Some(connections) = names.get_mut(name) {
            connections.remove(&client);
            if connections.is_empty() {
                names.remove(name);
            }
        }
    }

    /// Who hears a message: those of its channel, then those of each pattern that it matches.
    fn listeners(&self, message: &Message, number: u64) -> Vec<(By, Name, Vec<Rc<Connection>>)> {
        let by = if message.shard { By::Shard } else { By::Channel };
        let all = |connections: &Connections| {
            let hears = connections.values().filter(|(_, since)| *since <= number);
            hears.map(|(connection, _)| connection.clone()).collect::<Vec<_>>()
        };
        let of_channel = self.of[by as usize].get_key_value(&*message.channel);
        let mut to: Vec<_> =
            of_channel.map(|(name, connections)| (by, name.clone(), all(connections))).into_iter().collect();
        if !message.shard {
            let patterns = self.of[By::Pattern as usize].iter();
            let matching = patterns.filter(|(pattern, _)| glob::matches(pattern, &message.channel));
            to.extend(matching.map(|(pattern, connections)| (By::Pattern, pattern.clone(), all(connections))));
        }
        to
    }
}

/// A message as a protocol writes it.
fn encode(message: &Message, pattern: Option<&[u8]>, proto: u8) -> Vec<u8> {
    let mut out = Reply::new(proto);
    match pattern {
        Some(pattern) => {
            out.push(4);
            out.bulk(b"pmessage");
            out.bulk(pattern);
        }
        None => {
            out.push(3);
            out.bulk(if message.shard { b"smessage" } else { b"message" });
        }
    }
    out.bulk(&message.channel);
    out.bulk(&message.text);
    out.take()
}

/// What a connection is told; nothing where the protocol has no form for it.
fn encode_notice(notice: &Notice, proto: u8, hears: bool) -> Option<Vec<u8>> {
    let mut out = Reply::new(proto);
    match notice {
        Notice::Changed { .. } if proto == 3 => {
            out.push(2);
            out.bulk(b"invalidate");
        }
        Notice::Changed { redirected: true, .. } if hears => {
            out.array(3);
            out.bulk(b"message");
            out.bulk(b"__redis__:invalidate");
        }
        Notice::Line { line, .. } => return Some(line.to_vec()),
        Notice::RedirectBroken { redirect, .. } if proto == 3 => {
            out.push(2);
            out.bulk(b"tracking-redir-broken");
            out.int(*redirect as i64);
        }
        _ => return None,
    }
    match notice {
        Notice::Changed { keys: Some(keys), .. } => {
            out.array(keys.len());
            keys.iter().for_each(|key| out.bulk(key));
        }
        Notice::Changed { keys: None, .. } => out.nil(),
        Notice::RedirectBroken { .. } | Notice::Line { .. } => {}
    }
    Some(out.take())
}

/// What has been written since the outputs were last sent.
#[derive(Default)]
struct Written {
    connections: Vec<Rc<Connection>>,
    outputs: usize,
    bytes: usize,
}

impl Written {
    fn is_much(&self) -> bool {
        self.outputs >= MOST_WRITTEN.get() || self.bytes >= MOST_BYTES.get()
    }

    /// Sends it, and lets others have turns.
    async fn send(&mut self) {
        let mut connections = std::mem::take(&mut self.connections);
        (self.outputs, self.bytes) = (0, 0);
        for some in connections.chunks(SLICE.get()) {
            some.iter().for_each(Connection::send_pushed);
            tokio::task::yield_now().await;
        }
        connections.clear();
        self.connections = connections;
        self.connections.shrink_to(MOST_WRITTEN.get());
    }
}

impl Worker {
    /// Writes a notice into its connection's output, if that is still there.
    fn notify(&self, notice: &Notice, need: Lsn, written: &mut Written) {
        let (Notice::Changed { to, .. } | Notice::RedirectBroken { to, .. } | Notice::Line { to, .. }) = notice;
        let Some(connection) = self.subscribers.borrow().all.get(to).and_then(Weak::upgrade) else { return };
        let Some(bytes) = encode_notice(notice, connection.proto(), connection.client.subscribes()) else { return };
        (written.outputs, written.bytes) = (written.outputs + 1, written.bytes + bytes.len());
        if connection.push_notice(&bytes, need) {
            written.connections.push(connection);
        }
    }

    /// Brings messages to the subscribers, as they come.
    pub(super) async fn deliver(self: Rc<Self>) {
        let mut written = Written::default();
        loop {
            self.messages.come().await;
            while let Some(queued) = self.messages.take() {
                let message = match &queued.what {
                    What::Message(message) => message,
                    What::Notice(notice) => {
                        self.notify(notice, queued.need, &mut written);
                        if written.is_much() {
                            written.send().await;
                        }
                        continue;
                    }
                };
                let (listeners, generation) = {
                    let subscribers = self.subscribers.borrow();
                    (subscribers.listeners(message, queued.number), subscribers.generation)
                };
                for (by, name, connections) in listeners {
                    let mut encoded = [const { None }; 2];
                    for connection in connections {
                        // Others have had turns since: it may have ended this.
                        if self.subscribers.borrow().generation != generation && !connection.hears(by, &name) {
                            continue;
                        }
                        let proto = connection.proto();
                        let pattern = (by == By::Pattern).then_some(&*name);
                        let bytes =
                            encoded[usize::from(proto == 3)].get_or_insert_with(|| encode(message, pattern, proto));
                        if connection.push(bytes, queued.need) {
                            written.connections.push(connection);
                        }
                        (written.outputs, written.bytes) = (written.outputs + 1, written.bytes + bytes.len());
                        if written.is_much() {
                            written.send().await;
                        } else if written.outputs.is_multiple_of(TURN.get()) {
                            tokio::task::yield_now().await;
                        }
                    }
                }
            }
            written.send().await;
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::UnixStream;
    use tokio::task::yield_now;

    use super::super::socket::Socket;
    use super::super::worker::tests::with_worker;
    use super::*;
    use crate::handler::effects::Effect;

    fn note(connection: &Rc<Connection>, effect: Effect) {
        connection.note(&mut connection.state.borrow_mut(), vec![effect]);
    }

    /// While a message is on its way to many, others have turns, and may end what it is for.
    #[test]
    fn who_ends_a_subscription_hears_nothing_of_a_message_on_its_way() {
        with_worker(|worker| async move {
            let server = worker.server.clone();
            let name = Name::from(b"c".as_slice());
            let mut peers = Vec::new();
            let connections: Vec<_> = (0..4 * TURN.get())
                .map(|_| {
                    let (ours, peer) = UnixStream::pair().unwrap();
                    peers.push(peer);
                    Connection::open(worker.clone(), Socket::Unix(ours), String::new(), String::new())
                })
                .collect();
            connections.iter().skip(1).for_each(|one| note(one, Effect::Subscribed(By::Channel, name.clone(), 0)));
            // One that has asked for it: its thread is to be brought the message.
            tokio::task::spawn_local(connections[0].clone().serve());
            peers[0].write_all(b"SUBSCRIBE c\r\n").await.unwrap();
            while server.hub.subscribers(By::Channel, b"c") == 0 {
                yield_now().await;
            }
            tokio::task::spawn_local(worker.clone().deliver());
            server.hub.publish(b"c", b"text", 0);
            let got = |at: &usize| {
                !connections[*at].state.borrow().out.is_empty() || peers[*at].try_read(&mut [0; 64]).is_ok()
            };
            while !(1..peers.len()).any(|at| got(&at)) {
                yield_now().await;
            }
            let rest: Vec<_> = (1..peers.len()).filter(|at| !got(at)).collect();
            assert!(!rest.is_empty(), "it goes to all at once");
            rest.iter().for_each(|at| note(&connections[*at], Effect::Unsubscribed(By::Channel, name.clone())));
            for _ in 0..100 {
                yield_now().await;
            }
            assert!(!rest.iter().any(got));
        });
    }

    /// However much it has heard, and read: not even the place where it was looked for.
    #[test]
    fn nothing_of_a_connection_stays_with_its_thread() {
        with_worker(|worker| async move {
            let server = worker.server.clone();
            let (ours, mut peer) = UnixStream::pair().unwrap();
            let connection = Connection::open(worker.clone(), Socket::Unix(ours), String::new(), String::new());
            let serves = tokio::task::spawn_local(connection.clone().serve());
            peer.write_all(b"SUBSCRIBE a b\r\nPSUBSCRIBE c*\r\nSSUBSCRIBE d\r\nUNSUBSCRIBE b\r\n").await.unwrap();
            // A part of a request, which takes room.
            peer.write_all(b"*2\r\n$9\r\nSUBSCRIBE\r\n$100000\r\n").await.unwrap();
            peer.write_all(&[b'x'; 50_000]).await.unwrap();
            while server.buffers.bytes() < 50_000 || server.hub.subscribers(By::Shard, b"d") == 0 {
                yield_now().await;
            }
            drop(peer);
            serves.await.unwrap();
            {
                let subscribers = worker.subscribers.borrow();
                assert!(subscribers.all.is_empty() && subscribers.of.iter().all(HashMap::is_empty));
            }
            assert_eq!((Rc::strong_count(&connection), Rc::weak_count(&connection)), (1, 0));
            drop(connection);
            assert_eq!((server.buffers.bytes(), server.clients.lock().len()), (0, 0));
            for (by, name) in [(By::Channel, &b"a"[..]), (By::Channel, b"b"), (By::Pattern, b"c*"), (By::Shard, b"d")] {
                assert_eq!(server.hub.subscribers(by, name), 0);
            }
        });
    }
}
