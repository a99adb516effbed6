//! What a command's function gets: its transaction, its session and the server.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use super::effects::{Effect, Ran};
use super::events::{MONITORED, Telling};
use super::observe::{Clock, Took, What};
use super::session::Multi;
use super::{After, Command, Effects, Error, Found, OwnedArgs, Result, Server, Session};
use crate::codec::NsId;
use crate::config::classes::Classes;
use crate::config::settings::Settings;
use crate::meter;
use crate::shard::engine::watch::{Seen, Watch};
use crate::shard::memory::blocked::Waiter;
use crate::shard::memory::object::{Kind, Object};
use crate::shard::txn::{Passing, Txn};

/// Everything a command's function sees beside its arguments. Derefs to the transaction.
pub struct Ctx<'a, 'e> {
    /// The cores under lease and the writes made so far.
    pub txn: Txn<'a, 'e>,
    /// The connection's state; changed through [`Ctx::alter`] alone.
    pub(super) session: &'a mut Session,
    /// What the command does beside records.
    pub(super) effects: &'a mut Effects,
    /// What all connections share.
    pub server: &'a Server,
    /// Whether it has waited.
    pub served: Served,
    /// It is a script's.
    pub scripted: bool,
    /// How much later than else its reply leaves, ms: it has kept others waiting for long, and is not to do so again at once.
    pub late_ms: u64,
    /// What is told of keys, if anybody hears it.
    pub(super) telling: Option<Box<Telling>>,
    /// Somebody is shown what runs.
    pub(super) monitored: bool,
}

/// Whether a command has waited for a key before it runs.
#[derive(Debug, Default, PartialEq, Eq)]
pub enum Served {
    /// It has just come.
    #[default]
    No,
    /// It has, and is run with all its shards.
    Whole,
    /// It has, and is run with those shards where something has changed. What these keys hold is for others, who came before it.
    Partly(Vec<Box<[u8]>>),
}

impl<'a, 'e> Deref for Ctx<'a, 'e> {
    type Target = Txn<'a, 'e>;
    fn deref(&self) -> &Self::Target {
        &self.txn
    }
}

impl DerefMut for Ctx<'_, '_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.txn
    }
}

/// A point in a command to which it can return.
#[derive(Debug, Clone, Copy, Default)]
pub struct Mark {
    txn: crate::shard::txn::Mark,
    effects: usize,
    held: usize,
}

impl<'a, 'e> Ctx<'a, 'e> {
    /// A command's surroundings.
    #[inline(always)]
    pub fn new(txn: Txn<'a, 'e>, session: &'a mut Session, effects: &'a mut Effects, server: &'a Server) -> Self {
        effects.begin();
        // Not touched after it is put together: else it would be moved once more.
        let (served, scripted, late_ms, telling, monitored) = (Served::No, false, 0, None, false);
        Ctx { txn, session, effects, server, served, scripted, late_ms, telling, monitored }
    }

    /// The command begins: those who hear of commands and keys will hear of this one.
    #[inline]
    pub fn begin(&mut self) {
        self.txn.by = self.session.id;
        let heard = self.server.heard.load(Ordering::Relaxed);
        if heard != 0 {
            self.prepare(heard);
        }
    }

    #[cold]
    fn prepare(&mut self, heard: u32) {
        self.monitored = heard & MONITORED != 0;
        let classes = Classes::from_bits(heard);
        self.txn.looks = classes.has(Classes::OF_BEFORE);
        if classes.has(Classes::MISS) {
            self.txn.note_missed();
        }
        self.telling = (classes != Classes::default()).then(|| Telling::new(classes));
    }
}

impl Ctx<'_, '_> {
    /// The connection's state.
    #[inline]
    pub fn session(&self) -> &Session {
        self.session
    }

    /// MULTI's queue. Not among what a rollback restores: the commands that deal with it are never queued, and EXEC puts
    /// back what it took.
    pub fn multi(&mut self) -> &mut Option<Multi> {
        &mut self.session.multi
    }

    /// Forgets MULTI's queue: EXEC has run it, or nobody will.
    pub fn end_multi(&mut self) {
        self.session.end_multi();
    }

    /// The same with a queue that is freed when nobody waits for EXEC's shards.
    pub fn end_multi_later(&mut self, queue: Vec<(&'static Command, OwnedArgs)>) {
        if let Some(mut multi) = self.session.multi.take() {
            multi.queue = queue;
            self.session.spent = Some(multi);
        }
        self.session.end_multi();
    }

    /// Watches nothing any more. Not among what a rollback restores: only a run that commits does so.
    pub fn unwatch(&mut self) {
        self.session.unwatch();
    }

    /// Watches keys of the selected database.
    ///
    /// # Errors
    /// Those of a look-up, or of a client that watches more than `most_bytes`: what was watched before still is.
    pub fn watch<'k>(&mut self, keys: impl Iterator<Item = &'k [u8]> + Clone, most_bytes: usize) -> Result {
        let session = &mut *self.session;
        let more: usize = keys.clone().map(|key| Watch::key_bytes(&session.db, key)).sum();
        if session.multi_bytes() + more > most_bytes {
            return Err(Error::TooMuch);
        }
        meter::hold(more + keys.clone().count() * size_of::<Seen>())?;
        // All are looked at before the first is watched: a run that ends without them leaves nothing behind.
        let mut seen = SmallVec::<[Seen; 4]>::new();
        for key in keys.clone() {
            let found = self.txn.find(session.ns, key)?;
            seen.push(found.map(|found| self.txn.object(found).expire_ms));
        }
        meter::fits()?;
        let watch = session.watch.get_or_insert_with(|| Box::new(Watch::new(&self.server.engine)));
        let db = (&session.db[..], session.ns);
        let watched = keys.zip(seen).try_for_each(|(key, seen)| watch.add(&mut self.txn, db, key, seen));
        session.client.watched.store(watch.len() as u64, Ordering::Relaxed);
        watched
    }

    /// Whether a key that is watched has changed.
    ///
    /// # Errors
    /// As of [`Watch::is_broken`].
    pub fn is_watch_broken(&mut self) -> Result<bool> {
        self.session.watch.as_ref().map_or(Ok(false), |watch| watch.is_broken(&mut self.txn))
    }

    /// Whether the command may wait: within EXEC and scripts nothing does.
    pub fn may_wait(&self) -> bool {
        self.session.multi.is_none() && !self.scripted
    }

    /// Whether a command that waits for a key has nothing to look for in it: it was looked at before and has not changed since,
    /// or others who wait for it come first.
    #[inline]
    pub fn passes_over(&self, key: &[u8], kind: Kind) -> bool {
        match &self.served {
            Served::Whole => false,
            Served::Partly(of_others) => self.is_elsewhere(key) || of_others.iter().any(|other| **other == *key),
            // Who does not wait takes what there is.
            Served::No if !self.may_wait() => false,
            Served::No => self
                .txn
                .core_of(key)
                .is_ok_and(|core| !core.blocked.is_empty() && core.blocked.comes_later(self.session.ns, key, kind)),
        }
    }

    /// Whether a key is in a shard that is not at hand now that what the command has waited for has changed in another one.
    #[inline]
    pub fn is_elsewhere(&self, key: &[u8]) -> bool {
        matches!(self.served, Served::Partly(_)) && self.txn.core_of(key).is_err()
    }

    /// Has the reply leave as late as was said.
    #[inline]
    pub fn be_late(&mut self) {
        if self.late_ms > 0 && self.session.after == After::Nothing {
            self.alter().after = After::HoldMs(self.late_ms);
        }
    }

    /// Where the command stands.
    #[inline]
    pub fn mark(&self) -> Mark {
        Mark { txn: self.txn.mark(), effects: self.effects.len(), held: meter::held() }
    }

    /// Takes back everything since a mark.
    #[inline]
    pub fn rollback_to(&mut self, mark: Mark) {
        self.txn.rollback_to(mark.txn);
        self.effects.cut_back(mark.effects, self.session);
        meter::let_go(mark.held);
    }

    /// Whether a connection is about to be killed by this command.
    pub fn kills(&self, client: u64) -> bool {
        self.effects.kills(client)
    }

    /// Whether this command is about to end a wait.
    pub fn unblocks(&self, waiter: &Arc<Waiter>) -> bool {
        self.effects.unblocks(waiter)
    }

    /// The namespace of the session.
    #[inline]
    pub fn ns(&self) -> NsId {
        self.session.ns
    }

    /// A live key of any type.
    #[inline]
    pub fn lookup(&mut self, key: &[u8]) -> Result<Option<Found>> {
        self.txn.find(self.session.ns, key)
    }

    /// A live key of any type, looked at without counting as an access.
    pub fn peek(&mut self, key: &[u8]) -> Result<Option<Found>> {
        let no_touch = std::mem::replace(&mut self.txn.no_touch, true);
        let found = self.lookup(key);
        self.txn.no_touch = no_touch;
        found
    }

    /// A live key that must hold this type if it is there.
    #[inline]
    pub fn lookup_kind(&mut self, key: &[u8], kind: Kind) -> Result<Option<Found>> {
        match self.txn.find(self.session.ns, key)? {
            Some(found) if self.txn.object(found).kind != kind => Err(Error::WrongType),
            found => Ok(found),
        }
    }

    /// A live key of this type that is read in passing (see [`Txn::in_passing`]).
    #[inline]
    pub fn in_passing(&mut self, key: &[u8], kind: Kind) -> Result<Option<Passing>> {
        self.txn.in_passing(self.session.ns, key, kind)
    }

    /// A live string.
    #[inline]
    pub fn lookup_string(&mut self, key: &[u8]) -> Result<Option<Found>> {
        self.lookup_kind(key, Kind::String)
    }

    /// The directives, without a lock as long as none has changed.
    #[inline]
    pub fn settings(&mut self) -> &Settings {
        let config = &self.server.config;
        let generation = config.generation();
        if self.session.settings.as_ref().is_none_or(|(of, _)| *of != generation) {
            self.session.settings = None;
        }
        &self.session.settings.get_or_insert_with(|| (generation, config.settings())).1
    }

    /// The whole value of a live string, copied (and charged as held) only if it is stored in chunks.
    pub fn string_value(&mut self, found: Found) -> Result<std::borrow::Cow<'_, [u8]>> {
        if self.txn.object(found).body.is_none() {
            return Ok(std::borrow::Cow::Borrowed(self.txn.object(found).value()));
        }
        let len = self.txn.string_len(found);
        meter::hold(len)?;
        meter::foresee((len / meter::STEP_BYTES) as u64)?;
        let mut value = Vec::with_capacity(len);
        self.txn.string_range(found, 0, len, &mut value)?;
        Ok(std::borrow::Cow::Owned(value))
    }

    /// A found object.
    #[inline]
    pub fn object(&self, found: Found) -> &Object {
        self.txn.object(found)
    }

    /// Puts a string in the session's namespace; `expire_ms` absolute, 0 for none.
    #[inline]
    pub fn set_string(&mut self, key: &[u8], value: &[u8], expire_ms: u64) -> Result<Found> {
        self.txn.put_string(self.session.ns, key, value, expire_ms)
    }

    /// Removes a key of the session's namespace; whether it was there.
    #[inline]
    pub fn remove(&mut self, key: &[u8]) -> Result<bool> {
        self.txn.delete(self.session.ns, key)
    }
}

/// What a command takes that touches nothing, beside a visit of an element.
pub(super) const STEPS_OF_A_COMMAND: usize = 8;

impl Ctx<'_, '_> {
    /// Runs a command's function, once what it goes through is at hand.
    pub fn perform(&mut self, command: &super::Command, args: super::Args<'_>, out: &mut super::Reply) -> Result {
        if let Some(look) = command.look.filter(|look| !look.names() && look.arg < args.len()) {
            let ns = self.ns();
            self.txn.warm(ns, &args[look.arg], look.kind())?;
        }
        (command.run)(self, args, out)
    }

    /// Runs another command within this transaction, as EXEC and scripts do. What it wrote is taken back if it fails,
    /// and its error becomes its reply; `Err` only where the whole transaction must be run again.
    pub fn run(&mut self, command: &super::Command, args: super::Args<'_>, out: &mut super::Reply) -> Result {
        meter::step(STEPS_OF_A_COMMAND)?;
        let (mark, begin) = (self.mark(), out.len());
        let clock = Clock::start();
        self.txn.count_hits = command.has(super::flags::READONLY);
        let told = self.begin_telling();
        self.show_before(command, args);
        let result = self.perform(command, args, out);
        if result.is_ok() {
            self.tell_changes(command);
            self.remember(command, args);
            self.show_after(command, args);
        }
        self.end_telling(told);
        match result.and_then(|()| meter::fits()) {
            Ok(()) => {
                self.note_ran(command, args, clock, &out.as_slice()[begin..]);
                meter::step_through(out.len() - begin)
            }
            Err(
                error @ (Error::Cold
                | Error::Crowded
                | Error::Uncounted
                | Error::Undeclared
                | Error::Long
                | Error::Ended),
            ) => Err(error),
            Err(error) => {
                self.rollback_to(mark);
                self.remember(command, args);
                self.show_failed(command, args);
                out.truncate(begin);
                out.error(&error);
                self.note_ran(command, args, clock, &out.as_slice()[begin..]);
                Ok(())
            }
        }
    }

    /// Makes room for so many commands within this one, of which so many write so many bytes: buffers that double as they grow
    /// copy, and touch twice the memory, while the shards are held.
    pub fn reserve(&mut self, commands: usize, writes: usize, bytes: usize) {
        self.effects.reserve(commands);
        self.txn.reserve(writes, bytes);
    }

    /// Notes how a command that ran within this one has ended.
    pub(super) fn note_ran(&mut self, command: &super::Command, args: super::Args<'_>, clock: Clock, reply: &[u8]) {
        let took = Took { ns: clock.ran_ns(), request_bytes: 0, reply_bytes: reply.len() };
        let mut logged = None;
        if self.server.observer.is_noted(&took) {
            let client = (!self.scripted).then(|| &*self.session.client);
            self.server.observer.note(command, &took, |took| {
                let what = What::new(command, args, client);
                // A refusal ends the command soon enough.
                _ = meter::hold(what.bytes());
                logged = Some(Box::new((*took, Arc::new(what))));
            });
        }
        let error = reply.starts_with(b"-").then(|| reply.into());
        self.note(Effect::Ran(Ran { slot: self.server.table.slot_of(command), ns: Some(took.ns), error, logged }));
    }

    /// Notes that a command was refused that was to run within this one.
    pub fn note_refused(&mut self, command: &super::Command, error: &Error) {
        let error = format!("-{}", error.text()).into_bytes().into();
        let slot = self.server.table.slot_of(command);
        self.note(Effect::Ran(Ran { slot, ns: None, error: Some(error), logged: None }));
    }
}
