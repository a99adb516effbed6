//! What a connection is sent without having asked: messages of what it has subscribed to.
//!
//! They stand in its output among the replies, in the order in which they came, and leave with them. They are not of the log:
//! where that refuses what the replies tell, the messages leave all the same.

use std::rc::Rc;
use std::sync::atomic::Ordering;

use super::connection::Connection;
use super::state::State;
use crate::handler::effects::Effect;
use crate::handler::pubsub::{By, Name};
use crate::log::Lsn;

impl Connection {
    /// A command has committed: what it has noted. Subscriptions are the thread's at once, as the reply stands in the output.
    #[inline]
    pub(super) fn note(self: &Rc<Self>, state: &mut State, effects: Vec<Effect>) {
        if !effects.is_empty() {
            self.note_some(state, effects);
        }
    }

    #[cold]
    fn note_some(self: &Rc<Self>, state: &mut State, effects: Vec<Effect>) {
        let mut subscribers = self.worker.subscribers.borrow_mut();
        for effect in effects {
            match effect {
                Effect::Subscribed(by, name, since) => {
                    subscribers.add(by, name.clone(), self.clone(), since);
                    state.hears.insert((by, name));
                }
                Effect::Unsubscribed(by, name) => {
                    subscribers.remove(by, &name, self.client.id);
                    state.hears.remove(&(by, name));
                }
                other => {
                    state.effect_bytes += other.bytes();
                    state.effects.push(other);
                }
            }
        }
    }

    /// The connection ends: it hears nothing any more.
    pub(super) fn hears_no_more(&self) {
        let mut state = self.state.borrow_mut();
        // What a thread that delivers still has for it goes nowhere.
        state.deaf = true;
        let mut subscribers = self.worker.subscribers.borrow_mut();
        subscribers.end(self.client.id);
        for (by, name) in std::mem::take(&mut state.hears) {
            subscribers.remove(by, &name, self.client.id);
        }
    }

    /// Whether it hears this.
    pub(super) fn hears(&self, by: By, name: &Name) -> bool {
        self.state.borrow().hears.contains(&(by, name.clone()))
    }

    /// The protocol in which it is written to.
    pub(super) fn proto(&self) -> u8 {
        self.client.proto.load(Ordering::Relaxed) as u8
    }

    /// Writes a message into the output, to leave when the log has got there; whether it is the first since
    /// [`Connection::send_pushed`].
    pub(super) fn push(&self, message: &[u8], need: Lsn) -> bool {
        let mut state = self.state.borrow_mut();
        if state.deaf || state.broken || state.closing {
            return false;
        }
        self.need.set(self.need.get().max(need));
        let (begin, is_first) = (state.out.len(), state.pushed.is_empty());
        state.out.raw(message);
        let end = state.out.len();
        match state.pushed.last_mut() {
            Some(last) if last.end == begin => last.end = end,
            _ => state.pushed.push(begin..end),
        }
        is_first
    }

    /// The same for a notice that what the connection has read is out of date: not before the reply that says it.
    pub(super) fn push_notice(self: &Rc<Self>, notice: &[u8], need: Lsn) -> bool {
        // Who waits for a key has read nothing yet that it will be told of; who is being served may have.
        let waits = || self.client.waits_for().is_some_and(|waiter| waiter.waits());
        let mut state = self.state.borrow_mut();
        if state.session.is_none() && !waits() {
            if !state.deaf && !state.broken {
                self.need.set(self.need.get().max(need));
                state.notices.extend_from_slice(notice);
                // They count against the limits like what is in the output.
                self.reply_soon(&mut state);
                self.account(&state);
            }
            return false;
        }
        drop(state);
        self.push(notice, need)
    }

    /// The reply is there that notices were held back for.
    pub(super) fn push_notices(&self, state: &mut State) {
        if !state.notices.is_empty() {
            let begin = state.out.len();
            state.out.raw(&std::mem::take(&mut state.notices));
            let end = state.out.len();
            state.pushed.push(begin..end);
        }
    }

    /// Sends what was written, as soon as the replies before it may leave.
    pub(super) fn send_pushed(self: &Rc<Self>) {
        let mut state = self.state.borrow_mut();
        self.reply_soon(&mut state);
        if (state.broken || !state.sending.is_empty())
            && let Some(waker) = &state.waker
        {
            waker.wake_by_ref();
        }
    }
}
