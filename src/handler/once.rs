//! Commands of a transaction that are about the server, not the key space: users, directives, logs, scripts.
//!
//! EXEC may run more than once: what a run lacks of the store, or of room, is brought, and the queue begins again with nothing
//! left of what it did. What such commands do has happened, and what they tell of may have changed by it: none of it is a
//! write that could be taken back. So a later run takes over what an earlier one had of them, replies and killed
//! connections, at the same places of the queue. What is kept for it is as little as the queue itself: long replies are not,
//! as only those that tell are long, and they may be asked again.

use std::ops::Range;
use std::sync::Arc;

use super::ctx::STEPS_OF_A_COMMAND;
use super::observe::Clock;
use super::session::Client;
use super::{After, Args, Command, Ctx, Effect, Reply, Result};
use crate::meter;
use crate::util::alloc;

/// The longest reply that is kept, bytes: those to changes are shorter.
const MOST_REPLY: usize = 128;

/// One that has run, by its place in the queue.
#[derive(Debug)]
pub struct Done {
    /// Its place.
    pub at: usize,
    reply: Box<[u8]>,
    killed: Vec<Arc<Client>>,
    /// The connection itself is to close.
    closes: bool,
}

impl Done {
    /// Bytes of memory.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Done>() + alloc::block_bytes(self.reply.len()) + self.killed.len() * size_of::<Arc<Client>>()
    }
}

/// Where a run has what one of them has left; it is only needed if there will be another run.
#[derive(Debug)]
pub struct Left {
    at: usize,
    reply: Range<usize>,
    effects: Range<usize>,
    closes: bool,
}

impl Ctx<'_, '_> {
    /// Runs one of them at its place in the queue, or takes over what an earlier run has had of it.
    ///
    /// # Errors
    /// As of [`Ctx::run`].
    pub fn run_once(
        &mut self,
        at: usize,
        done: Option<&Done>,
        (command, args): (&Command, Args<'_>),
        out: &mut Reply,
    ) -> Result<Left> {
        meter::hold(size_of::<Left>())?;
        let (reply, effects, closed) = (out.len(), self.effects.len(), self.session().after == After::Close);
        match done {
            Some(done) => self.take_over(done, command, args, out)?,
            None => self.run(command, args, out)?,
        }
        let closes = !closed && self.session().after == After::Close;
        Ok(Left { at, reply: reply..out.len(), effects: effects..self.effects.len(), closes })
    }

    fn take_over(&mut self, done: &Done, command: &Command, args: Args<'_>, out: &mut Reply) -> Result {
        meter::step(STEPS_OF_A_COMMAND)?;
        let clock = Clock::start();
        self.show_before(command, args);
        out.raw(&done.reply);
        done.killed.iter().for_each(|client| self.note(Effect::Kill(client.clone())));
        if done.closes {
            self.alter().after = After::Close;
        }
        self.show_after(command, args);
        self.note_ran(command, args, clock, &done.reply);
        meter::step_through(done.reply.len())
    }

    /// The run begins again: what the next one takes over. Before anything is taken back.
    pub fn keep(&self, left: Vec<Left>, out: &Reply) -> impl Iterator<Item = Done> {
        let short = left.into_iter().filter(|left| left.reply.len() <= MOST_REPLY);
        short.map(|Left { at, reply, effects, closes }| Done {
            at,
            reply: out.as_slice()[reply].into(),
            killed: self.effects.killed(effects).cloned().collect(),
            closes,
        })
    }
}
