//! What a command does beside records: changes of its session, and what it does to other connections.
//!
//! | effect | when |
//! |---|---|
//! | a change of the session | at once, as the commands behind it in the same EXEC go by it; a rollback restores what was before |
//! | a subscription | at once, too; the thread of the connection is told when the command has committed |
//! | a kill, the end of another one's wait | when the command has committed; the socket is shut down as the reply leaves |
//! | a message | when the command has committed; its subscribers get it once the log holds what it tells |
//! | a line for MONITOR | the same, whatever the log says |
//! | a command that ran within it, to be observed | the logs have it when the command has committed; it is counted as the reply leaves |
//! | what it or one of its own was not allowed | when it has ended, by an error too |
//!
//! A command may be run more than once: what the network thread may not wait for is run again elsewhere, from the start. Only
//! the run that commits has effects. So nothing outside the write set is changed but through [`Ctx::alter`] and
//! [`Ctx::note`]; both are cut back by a [`Mark`](super::ctx::Mark), as writes are. The exceptions are about the server as a
//! whole, and are done once: [`super::once`].

use std::sync::Arc;

use super::acl::log::Denial;
use super::observe::{Took, What};
use super::pubsub::{By, Name, Publication};
use super::server::ThreadStats;
use super::session::{Client, State};
use super::table::Slot;
use super::{Ctx, OwnedArgs, Server, Session};
use crate::meter;
use crate::shard::memory::blocked::{End, Waiter};
use crate::shard::memory::object::Kind;

/// A command that ran within another one, to be observed like those that a client sends one by one.
#[derive(Debug)]
pub struct Ran {
    /// Its slot in the table.
    pub slot: Slot,
    /// How long it ran; `None`: it was refused.
    pub ns: Option<u64>,
    /// Its reply, if it failed.
    pub error: Option<Box<[u8]>>,
    /// What the command logs tell of it, if they do.
    pub logged: Option<Box<(Took, Arc<What>)>>,
}

/// One effect of a command.
#[derive(Debug)]
pub enum Effect {
    /// The session was as this says before.
    Session(Box<State>),
    /// Ends another connection.
    Kill(Arc<Client>),
    /// Ends the wait of another connection.
    Unblock(Arc<Client>, Arc<Waiter>, End),
    /// The connection has subscribed to something: its thread gives it what is published from now on.
    /// Those are meant that come after so many.
    Subscribed(By, Name, u64),
    /// It has ended a subscription.
    Unsubscribed(By, Name),
    /// A message, to those who hear it.
    Publish(Publication),
    /// A line for those who MONITOR.
    Show(Arc<[u8]>),
    /// A command ran within this one: it is counted.
    Ran(Ran),
}

impl Effect {
    /// About its memory, bytes.
    pub fn bytes(&self) -> usize {
        let more = match self {
            Effect::Session(_) => size_of::<State>(),
            Effect::Ran(ran) => {
                let logged = ran.logged.as_ref().map_or(0, |logged| logged.1.bytes());
                logged + ran.error.as_ref().map_or(0, |error| error.len())
            }
            Effect::Publish(_)
            | Effect::Show(_)
            | Effect::Kill(_)
            | Effect::Unblock(..)
            | Effect::Subscribed(..)
            | Effect::Unsubscribed(..) => 0,
        };
        size_of::<Effect>() + more
    }
}

/// What a command waits for that has found nothing. If that does not come, it replies with a null array.
#[derive(Debug)]
pub struct Wait {
    /// Until one of these keys …
    pub keys: Vec<Box<[u8]>>,
    /// … holds this,
    pub kind: Kind,
    /// or no longer does,
    pub hears_all: bool,
    /// or until this time, Unix ms; 0 for ever.
    pub until_ms: u64,
    /// It looks at other keys, too, when it is served.
    pub whole: bool,
    /// It runs with these arguments then, if not with those it came with.
    pub args: Option<OwnedArgs>,
}

/// The effects of the command that runs.
#[derive(Debug, Default)]
pub struct Effects {
    noted: Vec<Effect>,
    /// What was not allowed. An error does not take it back, another run does.
    denied: Vec<Denial>,
    wait: Option<Box<Wait>>,
}

impl Effects {
    /// A command begins.
    #[inline]
    pub(super) fn begin(&mut self) {
        debug_assert!(self.noted.is_empty(), "effects are taken between commands");
        if !self.denied.is_empty() {
            self.denied.clear();
        }
    }

    /// Makes room for so many more.
    pub(super) fn reserve(&mut self, count: usize) {
        self.noted.reserve(count);
    }

    /// How many there are.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.noted.len()
    }

    /// Takes back everything since there were so many.
    #[inline]
    pub(super) fn cut_back(&mut self, len: usize, session: &mut Session) {
        self.wait = None;
        while self.noted.len() > len {
            match self.noted.pop() {
                Some(Effect::Session(before)) => session.restore(*before),
                Some(Effect::Subscribed(by, name, _)) => session.undo_subscription(by, &name, true),
                Some(Effect::Unsubscribed(by, name)) => session.undo_subscription(by, &name, false),
                _ => {}
            }
        }
    }

    /// The connections that some of them end.
    pub(super) fn killed(&self, effects: std::ops::Range<usize>) -> impl Iterator<Item = &Arc<Client>> {
        self.noted[effects].iter().filter_map(|effect| match effect {
            Effect::Kill(client) => Some(client),
            _ => None,
        })
    }

    /// Whether a connection is about to be killed.
    pub fn kills(&self, client: u64) -> bool {
        self.noted.iter().any(|effect| matches!(effect, Effect::Kill(other) if other.id == client))
    }

    /// Whether a wait is about to be ended.
    pub fn unblocks(&self, waiter: &Arc<Waiter>) -> bool {
        self.noted.iter().any(|effect| matches!(effect, Effect::Unblock(_, other, _) if Arc::ptr_eq(other, waiter)))
    }

    /// The command has committed: who is killed or is to wait no more gets nothing from now on, not even of what the command
    /// itself has written.
    #[inline]
    pub(super) fn at_commit(&mut self, server: &Server) {
        if !self.denied.is_empty() {
            let most = server.config.settings().acllog_max_len;
            self.denied.drain(..).for_each(|denial| server.acl.deny(denial, most));
        }
        for effect in &self.noted {
            match effect {
                Effect::Show(line) => server.show(line),
                Effect::Ran(Ran { logged: Some(logged), .. }) => server.observer.log(&logged.0, &logged.1),
                // Whatever whoever publishes has written before, who hears of it is to find.
                Effect::Publish(publication) => publication.leave(server.engine.log.last()),
                Effect::Kill(client) => client.doom(),
                Effect::Unblock(client, waiter, end) if waiter.end(*end) => client.news.notify_one(),
                _ => {}
            }
        }
    }

    /// The command has committed: what is to leave with its reply.
    #[inline]
    pub fn take(&mut self) -> Vec<Effect> {
        if self.noted.is_empty() { Vec::new() } else { self.take_noted() }
    }

    fn take_noted(&mut self) -> Vec<Effect> {
        let is_done = |effect: &Effect| {
            matches!(effect, Effect::Session(_) | Effect::Publish(_) | Effect::Show(_) | Effect::Unblock(..))
        };
        self.noted.drain(..).filter(|effect| !is_done(effect)).collect()
    }
}

impl Ctx<'_, '_> {
    /// The session, to be changed. What it was stands until the command has committed.
    pub fn alter(&mut self) -> &mut Session {
        self.effects.noted.push(Effect::Session(Box::new(self.session.state())));
        self.session
    }

    /// The command has committed. What it publishes leaves when the log has got there.
    #[inline(always)]
    pub fn at_commit(&mut self) {
        if !self.effects.denied.is_empty() || !self.effects.noted.is_empty() {
            self.effects.at_commit(self.server);
        }
    }

    /// What the command, which has committed, waits for, if it does.
    #[inline]
    pub fn take_wait(&mut self) -> Option<Box<Wait>> {
        self.effects.wait.take()
    }

    /// Has the command, which replies nothing now, wait. It [may](Ctx::may_wait).
    pub fn wait(&mut self, wait: Wait) {
        debug_assert!(self.may_wait(), "nothing waits within EXEC");
        self.effects.wait = Some(Box::new(wait));
    }

    /// Notes what was not allowed.
    pub fn deny(&mut self, denial: Denial) {
        // A refusal ends the command soon enough.
        _ = meter::hold(size_of::<Denial>() + denial.object.len() + denial.client.len());
        self.effects.denied.push(denial);
    }

    /// Notes what is to happen once the command has committed.
    pub fn note(&mut self, effect: Effect) {
        // A refusal ends the command soon enough.
        _ = meter::hold(size_of::<Effect>());
        self.effects.noted.push(effect);
    }
}

/// Does what a command that has committed and whose reply may leave has noted. The counters are those of the calling
/// thread.
pub fn carry_out(counters: Option<(&Server, &ThreadStats)>, effects: impl IntoIterator<Item = Effect>) {
    for effect in effects {
        match effect {
            Effect::Session(_)
            | Effect::Subscribed(..)
            | Effect::Unsubscribed(..)
            | Effect::Publish(_)
            | Effect::Show(_)
            | Effect::Unblock(..) => {}
            Effect::Kill(client) => client.kill(),
            Effect::Ran(Ran { slot, ns, error, .. }) => {
                let Some((server, stats)) = counters else { continue };
                match ns {
                    Some(ns) => server.observer.count(stats, slot, ns, error.is_some()),
                    None => stats.count_rejected(slot),
                }
                error.iter().for_each(|reply| stats.count_error(reply));
            }
        }
    }
}
