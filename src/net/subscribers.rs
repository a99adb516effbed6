//! The subscribers of a network thread, and how messages get to them.
//!
//! A message is written into the output of each connection that hears it, once encoded for each protocol, and leaves with
//! what else that has to send. Between some hundred of them the thread does its other work: who publishes to many holds
//! nobody up.

use std::collections::HashMap;
use std::rc::Rc;

use super::connection::Connection;
use super::worker::Worker;
use crate::handler::pubsub::{By, Message, Name};
use crate::resp::Reply;
use crate::util::glob;
use crate::util::scale::Scaled;

/// Outputs that are sent between two looks at the sockets.
const SLICE: Scaled<usize> = Scaled::new(128).in_unit_tests(4);
/// Outputs that are written into before they are sent, and bytes: of several messages one connection gets what it can at once.
const MOST_WRITTEN: Scaled<usize> = Scaled::new(4096).in_unit_tests(16);
const MOST_BYTES: Scaled<usize> = Scaled::new(1 << 20).in_unit_tests(4096);

type Connections = HashMap<u64, Rc<Connection>, foldhash::fast::RandomState>;

/// Connections of a thread by what they have subscribed to.
#[derive(Default)]
pub(super) struct Subscribers {
    of: [HashMap<Name, Connections, foldhash::fast::RandomState>; 3],
}

impl Subscribers {
    /// A connection hears this from now on.
    pub(super) fn add(&mut self, by: By, name: Name, connection: Rc<Connection>) {
        self.of[by as usize].entry(name).or_default().insert(connection.client.id, connection);
    }

    /// A connection no longer hears this.
    pub(super) fn remove(&mut self, by: By, name: &[u8], client: u64) {
        let names = &mut self.of[by as usize];
        if let Some(connections) = names.get_mut(name) {
            connections.remove(&client);
            if connections.is_empty() {
                names.remove(name);
            }
        }
    }

    /// Who hears a message: those of its channel, then those of each pattern that it matches.
    fn listeners(&self, message: &Message) -> Vec<(Option<Name>, Vec<Rc<Connection>>)> {
        let by = if message.shard { By::Shard } else { By::Channel };
        let all = |connections: &Connections| connections.values().cloned().collect::<Vec<_>>();
        let mut to: Vec<_> = self.of[by as usize]
            .get(&*message.channel)
            .map(|connections| (None, all(connections)))
            .into_iter()
            .collect();
        if !message.shard {
            let patterns = self.of[By::Pattern as usize].iter();
            let matching = patterns.filter(|(pattern, _)| glob::matches(pattern, &message.channel));
            to.extend(matching.map(|(pattern, connections)| (Some(pattern.clone()), all(connections))));
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
            if some.len() == SLICE.get() {
                tokio::task::yield_now().await;
            }
        }
        connections.clear();
        self.connections = connections;
        self.connections.shrink_to(MOST_WRITTEN.get());
    }
}

impl Worker {
    /// Brings messages to the subscribers, as they come.
    pub(super) async fn deliver(self: Rc<Self>) {
        let mut written = Written::default();
        loop {
            self.messages.come().await;
            while let Some(message) = self.messages.take() {
                let listeners = self.subscribers.borrow().listeners(&message);
                for (pattern, connections) in listeners {
                    let mut encoded = [const { None }; 2];
                    for connection in connections {
                        let proto = connection.proto();
                        let bytes = encoded[usize::from(proto == 3)]
                            .get_or_insert_with(|| encode(&message, pattern.as_deref(), proto));
                        if connection.push(bytes) {
                            written.connections.push(connection);
                        }
                        (written.outputs, written.bytes) = (written.outputs + 1, written.bytes + bytes.len());
                        if written.is_much() {
                            written.send().await;
                        }
                    }
                }
            }
            written.send().await;
        }
    }
}
