//! Client-side caching: a client that has turned CLIENT TRACKING on is told when what it may have a copy of changes.
//!
//! Who is remembered at which key, and who is told of which, is the shards' ([`crate::shard::memory::tracked`]). Here is what a
//! session has asked for, what its commands leave there, and the way of a notice to its connection: like a message
//! ([`super::pubsub`]) it goes through the inbox of a network thread, and leaves once the log holds the change. A notice never
//! overtakes the reply that it makes out of date: the thread keeps it back as long as a command of the connection runs
//! elsewhere.
//!
//! A run of a command that is taken back may have left the client remembered: who is told too often loses nothing. CLIENT
//! TRACKING itself has no keys and is run once, but within an EXEC that is run again.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use super::keys::keys_of;
use super::pubsub::Notice;
use super::session::{Client, bits};
use super::{Args, Command, Ctx, Session, flags};
use crate::log::Lsn;
use crate::shard::memory::tracked::{Changed, Tracker, Trackers};

/// Which keys a client is told of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mode {
    /// Those that it has read.
    #[default]
    Read,
    /// Those that it has read with a command right after CLIENT CACHING YES.
    OptIn,
    /// Those that it has read, but not with a command right after CLIENT CACHING NO.
    OptOut,
    /// Those that begin as it has asked.
    Broadcast,
}

/// From a tracker to its connection.
struct Link {
    own: Arc<Client>,
    /// Who gets the notices instead.
    redirect: Mutex<Option<Arc<Client>>>,
}

impl Link {
    fn tell(&self, changed: Changed<'_>, need: Lsn) {
        let keys = || changed.cloned();
        let redirect = self.redirect.lock().clone();
        match redirect {
            None => {
                self.own.messages.put_notice(Notice::Changed { to: self.own.id, redirected: false, keys: keys() }, need)
            }
            Some(other) if *other.left.lock() => {
                self.own.set_bit(bits::BROKEN_REDIRECT, true);
                self.own.messages.put_notice(Notice::RedirectBroken { to: self.own.id, redirect: other.id }, need);
            }
            Some(other) => {
                other.messages.put_notice(Notice::Changed { to: other.id, redirected: true, keys: keys() }, need);
            }
        }
    }
}

/// What a session has asked for with CLIENT TRACKING ON. It ends with this.
pub struct Tracking {
    /// Which keys.
    pub mode: Mode,
    /// CLIENT CACHING has been called for the next command.
    pub caching: bool,
    /// The beginnings of keys that it has asked for.
    pub prefixes: Vec<Box<[u8]>>,
    trackers: Arc<Trackers>,
    tracker: Arc<Tracker>,
    link: Arc<Link>,
}

impl std::fmt::Debug for Tracking {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.mode)
    }
}

impl Drop for Tracking {
    fn drop(&mut self) {
        self.trackers.end(&self.tracker);
        let client = &self.link.own;
        client.bits.fetch_and(!(bits::TRACKING | bits::BROADCAST | bits::BROKEN_REDIRECT), Ordering::Relaxed);
        client.redirect.store(0, Ordering::Relaxed);
    }
}

impl Tracking {
    /// A session begins.
    fn new(trackers: &Arc<Trackers>, client: &Arc<Client>, mode: Mode, noloop: bool) -> Tracking {
        let link = Arc::new(Link { own: client.clone(), redirect: Mutex::default() });
        let tells = link.clone();
        let tell = Box::new(move |changed: Changed<'_>, need| tells.tell(changed, need));
        let tracker = trackers.begin(client.id, noloop, tell);
        client.set_bit(bits::TRACKING, true);
        client.set_bit(bits::BROADCAST, mode == Mode::Broadcast);
        Tracking { mode, caching: false, prefixes: Vec::new(), trackers: trackers.clone(), tracker, link }
    }

    /// Whether its own changes are not told.
    pub fn is_noloop(&self) -> bool {
        self.tracker.noloop.load(Ordering::Relaxed)
    }

    /// Whether what a command reads now is remembered.
    fn remembers(&self) -> bool {
        match self.mode {
            Mode::Read => true,
            Mode::OptIn => self.caching,
            Mode::OptOut => !self.caching,
            Mode::Broadcast => false,
        }
    }
}

impl Ctx<'_, '_> {
    /// Turns tracking on, or changes what is told to whom. Prefixes come to those that there are.
    pub fn track(&mut self, mode: Mode, noloop: bool, redirect: Option<Arc<Client>>, prefixes: Vec<Box<[u8]>>) {
        let (trackers, client) = (&self.server.engine.trackers, &self.session.client);
        let tracking =
            self.session.tracking.get_or_insert_with(|| Box::new(Tracking::new(trackers, client, mode, noloop)));
        tracking.mode = mode;
        tracking.tracker.noloop.store(noloop, Ordering::Relaxed);
        client.set_bit(bits::BROKEN_REDIRECT, false);
        client.redirect.store(redirect.as_ref().map_or(0, |other| other.id), Ordering::Relaxed);
        *tracking.link.redirect.lock() = redirect;
        for prefix in prefixes {
            if !tracking.prefixes.contains(&prefix) {
                tracking.trackers.broadcast(&tracking.tracker, &prefix);
                tracking.prefixes.push(prefix);
            }
        }
    }

    /// Turns tracking off.
    pub fn track_no_more(&mut self) {
        self.session.tracking = None;
    }

    /// Says whether the next command's keys are meant.
    pub fn caching(&mut self, caching: bool) {
        if let Some(tracking) = &mut self.session.tracking {
            tracking.caching = caching;
        }
    }

    /// A command has read, or failed: its keys are remembered, under the lease under which it has.
    #[inline]
    pub fn remember(&mut self, command: &Command, args: Args<'_>) {
        if self.session.tracking.is_some() && command.has(flags::READONLY) {
            self.remember_keys(command, args);
        }
    }

    #[cold]
    fn remember_keys(&mut self, command: &Command, args: Args<'_>) {
        let Some(tracking) = self.session.tracking.as_ref().filter(|tracking| tracking.remembers()) else { return };
        let tracker = tracking.tracker.clone();
        for (at, _) in keys_of(command, args).unwrap_or_default() {
            self.txn.track(&args[at], &tracker);
        }
    }

    /// A command has run that is not part of another one: CLIENT CACHING was about it.
    #[inline]
    pub fn end_caching(&mut self, command: &Command) {
        if self.session.tracking.is_some() && !command.has(flags::KEEPS_CACHING) {
            self.session.end_caching();
        }
    }
}

impl Session {
    /// What CLIENT CACHING has said was about the command that has just run, or failed; within MULTI it is about all.
    pub fn end_caching(&mut self) {
        if let Some(tracking) = &mut self.tracking
            && self.multi.is_none()
        {
            tracking.caching = false;
        }
    }
}
