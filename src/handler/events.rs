//! Keyspace events: what is published when keys change (`notify-keyspace-events`).
//!
//! A row names the event of its command. When the command has run, every key that it has changed is told of, in this order:
//!
//! | event | when |
//! |---|---|
//! | `expired`; or `hexpired` and `del` | what was there before had expired, or all its fields had, and no sweep had come yet |
//! | `new`; or `overwritten` and `type_changed` | there was nothing before; or the command puts a value in the place of another |
//! | the command's own | the key is there, or what is told is how it went |
//! | `del` | the key is not there any more |
//!
//! Commands of which that is not true say so themselves: [`Ctx::happens`] gives other events to the keys that have changed,
//! [`Ctx::tell`] tells one of one key at once, [`Ctx::tell_plainly`] nothing but that.
//!
//! What is told is a message as PUBLISH's, noted as an effect: a rollback takes it back, and it leaves when the command commits,
//! under its lease. So events of a key come in the order of its changes. Where no class is on, all this is one look at a number.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Command, Ctx, Server};
use crate::codec::NsId;
use crate::config::classes::Classes;
use crate::log::Lsn;
use crate::shard::memory::names::Names;
use crate::shard::memory::object::Kind;
use crate::shard::txn::Found;
use crate::shard::txn::changes::{Before, Swept, SweptKey};

/// An event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    name: &'static str,
    class: Classes,
    /// A value comes in the place of another one.
    replaces: bool,
    /// If the key is gone, that alone is told.
    yields: bool,
}

impl Event {
    const fn new(class: Classes, name: &'static str) -> Event {
        Event { name, class, replaces: false, yields: false }
    }

    /// A value comes in the place of another one.
    const fn replacing(class: Classes, name: &'static str) -> Event {
        Event { name, class, replaces: true, yields: true }
    }

    /// If the key is gone, that alone is told.
    const fn yielding(class: Classes, name: &'static str) -> Event {
        Event { name, class, replaces: false, yields: true }
    }
}

/// One constant an event, under its name.
#[expect(missing_docs, reason = "the names say it")]
#[rustfmt::skip]
mod all {
    use super::{Classes, Event};

    pub const DEL: Event = Event::yielding(Classes::GENERIC, "del");
    pub const EXPIRE: Event = Event::yielding(Classes::GENERIC, "expire");
    pub const PERSIST: Event = Event::new(Classes::GENERIC, "persist");
    pub const RENAME_FROM: Event = Event::new(Classes::GENERIC, "rename_from");
    pub const RENAME_TO: Event = Event::new(Classes::GENERIC, "rename_to");
    pub const MOVE_FROM: Event = Event::new(Classes::GENERIC, "move_from");
    pub const MOVE_TO: Event = Event::new(Classes::GENERIC, "move_to");
    pub const COPY_TO: Event = Event::new(Classes::GENERIC, "copy_to");
    pub const RESTORE: Event = Event::new(Classes::GENERIC, "restore");
    pub const SORTSTORE: Event = Event::replacing(Classes::LIST, "sortstore");

    pub const EXPIRED: Event = Event::new(Classes::EXPIRED, "expired");
    pub const EVICTED: Event = Event::new(Classes::EVICTED, "evicted");
    pub const KEYMISS: Event = Event::new(Classes::MISS, "keymiss");
    pub const NEW: Event = Event::new(Classes::NEW, "new");
    pub const OVERWRITTEN: Event = Event::new(Classes::OVERWRITTEN, "overwritten");
    pub const TYPE_CHANGED: Event = Event::new(Classes::TYPE_CHANGED, "type_changed");

    pub const SET: Event = Event::replacing(Classes::STRING, "set");
    pub const SETRANGE: Event = Event::new(Classes::STRING, "setrange");
    pub const APPEND: Event = Event::new(Classes::STRING, "append");
    pub const INCRBY: Event = Event::new(Classes::STRING, "incrby");
    pub const INCRBYFLOAT: Event = Event::new(Classes::STRING, "incrbyfloat");
    pub const SETBIT: Event = Event::new(Classes::STRING, "setbit");
    pub const PFADD: Event = Event::new(Classes::STRING, "pfadd");

    pub const LPUSH: Event = Event::new(Classes::LIST, "lpush");
    pub const RPUSH: Event = Event::new(Classes::LIST, "rpush");
    pub const LPOP: Event = Event::new(Classes::LIST, "lpop");
    pub const RPOP: Event = Event::new(Classes::LIST, "rpop");
    pub const LINSERT: Event = Event::new(Classes::LIST, "linsert");
    pub const LSET: Event = Event::new(Classes::LIST, "lset");
    pub const LTRIM: Event = Event::new(Classes::LIST, "ltrim");
    pub const LREM: Event = Event::new(Classes::LIST, "lrem");

    pub const SADD: Event = Event::new(Classes::SET, "sadd");
    pub const SREM: Event = Event::new(Classes::SET, "srem");
    pub const SPOP: Event = Event::new(Classes::SET, "spop");
    pub const SINTERSTORE: Event = Event::replacing(Classes::SET, "sinterstore");
    pub const SUNIONSTORE: Event = Event::replacing(Classes::SET, "sunionstore");
    pub const SDIFFSTORE: Event = Event::replacing(Classes::SET, "sdiffstore");

    pub const ZADD: Event = Event::new(Classes::SORTED_SET, "zadd");
    pub const ZINCR: Event = Event::new(Classes::SORTED_SET, "zincr");
    pub const ZREM: Event = Event::new(Classes::SORTED_SET, "zrem");
    pub const ZREMRANGEBYSCORE: Event = Event::new(Classes::SORTED_SET, "zremrangebyscore");
    pub const ZREMRANGEBYRANK: Event = Event::new(Classes::SORTED_SET, "zremrangebyrank");
    pub const ZREMRANGEBYLEX: Event = Event::new(Classes::SORTED_SET, "zremrangebylex");
    pub const ZPOPMIN: Event = Event::new(Classes::SORTED_SET, "zpopmin");
    pub const ZPOPMAX: Event = Event::new(Classes::SORTED_SET, "zpopmax");
    pub const ZUNIONSTORE: Event = Event::replacing(Classes::SORTED_SET, "zunionstore");
    pub const ZINTERSTORE: Event = Event::replacing(Classes::SORTED_SET, "zinterstore");
    pub const ZDIFFSTORE: Event = Event::replacing(Classes::SORTED_SET, "zdiffstore");
    pub const ZRANGESTORE: Event = Event::replacing(Classes::SORTED_SET, "zrangestore");
    pub const GEOSEARCHSTORE: Event = Event::replacing(Classes::SORTED_SET, "geosearchstore");
    pub const GEORADIUSSTORE: Event = Event::replacing(Classes::SORTED_SET, "georadiusstore");

    pub const HSET: Event = Event::new(Classes::HASH, "hset");
    pub const HDEL: Event = Event::new(Classes::HASH, "hdel");
    pub const HINCRBY: Event = Event::new(Classes::HASH, "hincrby");
    pub const HINCRBYFLOAT: Event = Event::new(Classes::HASH, "hincrbyfloat");
    pub const HEXPIRE: Event = Event::new(Classes::HASH, "hexpire");
    pub const HPERSIST: Event = Event::new(Classes::HASH, "hpersist");
    pub const HEXPIRED: Event = Event::new(Classes::HASH, "hexpired");

    pub const XADD: Event = Event::new(Classes::STREAM, "xadd");
    pub const XDEL: Event = Event::new(Classes::STREAM, "xdel");
    pub const XTRIM: Event = Event::new(Classes::STREAM, "xtrim");
    pub const XSETID: Event = Event::new(Classes::STREAM, "xsetid");
    pub const XGROUP_CREATE: Event = Event::new(Classes::STREAM, "xgroup-create");
    pub const XGROUP_SETID: Event = Event::new(Classes::STREAM, "xgroup-setid");
    pub const XGROUP_DESTROY: Event = Event::new(Classes::STREAM, "xgroup-destroy");
    pub const XGROUP_CREATECONSUMER: Event = Event::new(Classes::STREAM, "xgroup-createconsumer");
    pub const XGROUP_DELCONSUMER: Event = Event::new(Classes::STREAM, "xgroup-delconsumer");
}

pub use all::*;

/// What a command has told so far of keyspace events.
#[derive(Debug, Clone, Copy)]
pub(super) struct Telling {
    /// The classes that are on.
    classes: Classes,
    /// Where the command began.
    began: crate::shard::txn::Mark,
    /// The same, or where it last told of a key.
    from: crate::shard::txn::Mark,
    /// What happens instead of the row's event.
    instead: Option<&'static [Event]>,
}

impl Telling {
    /// A command begins, and some classes are on.
    #[cold]
    pub(super) fn new(classes: Classes) -> Box<Telling> {
        Box::new(Telling { classes, began: Default::default(), from: Default::default(), instead: None })
    }
}

/// What is told of what a sweep removes.
const fn of_swept(what: Swept) -> &'static [Event] {
    match what {
        Swept::Key => &[EXPIRED],
        Swept::Fields => &[HEXPIRED],
        Swept::Hash => &[HEXPIRED, DEL],
        Swept::Evicted => &[EVICTED],
    }
}

/// Beside the classes in [`Server`]'s `heard`.
pub(super) const MONITORED: u32 = 1 << 31;

impl Server {
    /// Classes of events that are published.
    #[inline]
    pub fn events(&self) -> Classes {
        Classes::from_bits(self.heard.load(Ordering::Relaxed))
    }

    /// Whether anybody is shown commands.
    #[inline]
    pub fn is_monitored(&self) -> bool {
        self.heard.load(Ordering::Relaxed) & MONITORED != 0
    }

    /// Somebody, or nobody, is shown commands now.
    pub(super) fn set_monitored(&self, on: bool) {
        match on {
            true => self.heard.fetch_or(MONITORED, Ordering::Relaxed),
            false => self.heard.fetch_and(!MONITORED, Ordering::Relaxed),
        };
    }

    /// Publishes events of these classes from now on.
    pub fn set_events(&self, classes: Classes) {
        let classes = if classes.tell_something() { classes } else { Classes::default() };
        let change = |heard: u32| Some(heard & MONITORED | classes.bits());
        _ = self.heard.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
        let of_sweeps = [Classes::EXPIRED, Classes::EVICTED, Classes::HASH, Classes::GENERIC];
        let of_sweeps = of_sweeps.into_iter().any(|class| classes.has(class));
        self.engine.hears_swept.store(of_sweeps, Ordering::Relaxed);
    }

    /// Has events published of what sweeps remove.
    pub fn hear_sweeps(self: &Arc<Self>) {
        let server = Arc::downgrade(self);
        let tell = move |names: &Names, swept: &[SweptKey], need| {
            if let Some(server) = server.upgrade() {
                swept.iter().for_each(|swept| server.tell_swept(names, swept, need));
            }
        };
        _ = self.engine.tell_swept.set(Box::new(tell));
    }

    fn tell_swept(&self, names: &Names, (what, ns, key): &SweptKey, need: Lsn) {
        let Some((db, _)) = names.map().iter().find(|(_, id)| id == ns) else { return };
        for event in of_swept(*what) {
            self.publish_event(event, db, key, |channel, text| self.hub.publish(channel, text, need));
        }
    }

    /// Where an event is published, and what.
    fn publish_event(&self, event: &Event, db: &[u8], key: &[u8], mut publish: impl FnMut(&[u8], &[u8])) {
        let classes = self.events();
        if !classes.has(event.class) {
            return;
        }
        if classes.has(Classes::KEYSPACE) {
            publish(&[b"__keyspace@", db, b"__:", key].concat(), event.name.as_bytes());
        }
        if classes.has(Classes::KEYEVENT) {
            publish(&[b"__keyevent@", db, b"__:", event.name.as_bytes()].concat(), key);
        }
    }
}

impl Ctx<'_, '_> {
    /// A command begins within this transaction; what the last one has told.
    #[inline]
    pub(super) fn begin_telling(&mut self) -> Option<Telling> {
        let part = self.telling.is_some().then(|| self.txn.begin_part());
        let telling = self.telling.as_mut().zip(part);
        telling.map(|(telling, from)| {
            let classes = telling.classes;
            std::mem::replace(&mut **telling, Telling { classes, began: from, from, instead: None })
        })
    }

    /// It ends.
    #[inline]
    pub(super) fn end_telling(&mut self, before: Option<Telling>) {
        if let (Some(telling), Some(before)) = (&mut self.telling, before) {
            **telling = before;
        }
    }

    /// The keys that the command changes have these events instead of its row's.
    #[inline]
    pub fn happens(&mut self, events: &'static [Event]) {
        if let Some(telling) = &mut self.telling {
            telling.instead = Some(events);
        }
    }

    /// The command has run: tells what it has not told itself.
    #[inline]
    pub fn tell_changes(&mut self, command: &Command) {
        if self.telling.is_some() {
            self.tell_all(command);
        }
    }

    /// Where the command began, or where it last told of a key; what is changed from here on is told of on its own.
    fn told(&mut self) -> crate::shard::txn::Mark {
        let here = self.txn.begin_part();
        self.telling.as_mut().map_or(here, |telling| std::mem::replace(&mut telling.from, here))
    }

    /// The object of a key, if the command has changed it.
    fn changed(&self, ns: NsId, key: &[u8]) -> Option<Found> {
        self.telling.as_ref().and_then(|telling| self.txn.changed_last(ns, key, &telling.began))
    }

    #[cold]
    fn tell_all(&mut self, command: &Command) {
        self.tell_missed();
        let instead = self.telling.as_ref().and_then(|telling| telling.instead);
        let Some(events) = instead.or(command.event.map(std::slice::from_ref)) else { return };
        let from = self.told();
        for found in self.txn.changed_since(&from) {
            let object = self.txn.object(found);
            if object.ns == self.session.ns {
                let key: Box<[u8]> = object.key().into();
                self.tell_of(events, &key, object.kind, self.txn.before(found, &from));
            }
        }
    }

    /// Tells at once of a key of the session's database that has just been changed.
    #[inline]
    pub fn tell(&mut self, event: &'static Event, key: &[u8]) {
        if self.telling.is_some() {
            self.tell_one(event, key);
        }
    }

    #[cold]
    fn tell_one(&mut self, event: &'static Event, key: &[u8]) {
        self.tell_missed();
        let (found, from) = (self.changed(self.session.ns, key), self.told());
        let (kind, before) = match found {
            Some(found) => (self.txn.object(found).kind, self.txn.before(found, &from)),
            None if event.yields => return,
            // Nothing was changed; it is told all the same, as Redis does.
            None => (Kind::String, Before::Live(Kind::String)),
        };
        self.tell_of(std::slice::from_ref(event), key, kind, before);
    }

    /// What a sweep would have told of what was there, if its time was past.
    fn tell_expired(&mut self, before: Before, key: &[u8]) {
        if let Before::Expired(what) = before {
            of_swept(what).iter().for_each(|event| self.tell_plainly(event, key));
        }
    }

    /// Events of a key that holds this now, and held that before.
    fn tell_of(&mut self, events: &[Event], key: &[u8], now: Kind, before: Before) {
        self.tell_expired(before, key);
        let gone = now == Kind::Absent;
        match before {
            Before::Live(was) if !gone && events.first().is_some_and(|event| event.replaces) => {
                self.tell_replaced(key, was, now);
            }
            Before::Absent | Before::Expired(_) if !gone => self.tell_plainly(&NEW, key),
            // It came and went, or had gone already.
            Before::Absent | Before::Expired(_) if events.iter().all(|event| event.yields) => return,
            Before::Absent | Before::Expired(_) => self.tell_plainly(&NEW, key),
            Before::Live(_) => {}
        }
        for event in events.iter().filter(|event| !(gone && event.yields)) {
            self.tell_plainly(event, key);
        }
        if gone {
            self.tell_plainly(&DEL, key);
        }
    }

    /// A whole value has come to a key of a database, its old one having been removed first: `new`, then these events, then what
    /// it replaced.
    #[inline]
    pub fn tell_put(&mut self, db: &[u8], ns: NsId, key: &[u8], events: &[(&Event, &[u8], &[u8])]) {
        if self.telling.is_some() {
            self.tell_put_somewhere(db, ns, key, events);
        }
    }

    #[cold]
    fn tell_put_somewhere(&mut self, db: &[u8], ns: NsId, key: &[u8], events: &[(&Event, &[u8], &[u8])]) {
        self.tell_missed();
        let Some(found) = self.changed(ns, key) else { return };
        let from = self.told();
        let (now, before) = (self.txn.object(found).kind, self.txn.before(found, &from));
        if let Before::Expired(what) = before {
            of_swept(what).iter().for_each(|event| self.tell_of_db(event, db, key));
        }
        self.tell_of_db(&NEW, db, key);
        events.iter().for_each(|(event, db, key)| self.tell_of_db(event, db, key));
        if let Before::Live(was) = before {
            self.tell_of_db(&OVERWRITTEN, db, key);
            if was != now {
                self.tell_of_db(&TYPE_CHANGED, db, key);
            }
        }
    }

    /// A value has come to a key and has gone at once, its time being past: what is told of that instead of `del`.
    pub fn tell_come_and_gone(&mut self, key: &[u8], events: &[&Event]) {
        if self.telling.is_none() {
            return;
        }
        self.tell_missed();
        let (found, from) = (self.changed(self.session.ns, key), self.told());
        match found.map_or(Before::Absent, |found| self.txn.before(found, &from)) {
            Before::Live(was) if events[0].replaces => self.tell_replaced(key, was, Kind::String),
            Before::Live(_) => {}
            before => {
                self.tell_expired(before, key);
                self.tell_plainly(&NEW, key);
            }
        }
        events.iter().for_each(|event| self.tell_plainly(event, key));
    }

    /// Looks at a key as a command that only reads does: it counts, and `keymiss` is told.
    #[inline]
    pub fn to_read<R>(&mut self, look: impl FnOnce(&mut Self) -> R) -> R {
        let counts = std::mem::replace(&mut self.txn.count_hits, true);
        let seen = look(self);
        self.txn.count_hits = counts;
        seen
    }

    /// A value of one kind has come in the place of another.
    fn tell_replaced(&mut self, key: &[u8], was: Kind, now: Kind) {
        self.tell_plainly(&OVERWRITTEN, key);
        if was != now {
            self.tell_plainly(&TYPE_CHANGED, key);
        }
    }

    /// Tells one event of a key of the session's database, and nothing else.
    pub fn tell_plainly(&mut self, event: &Event, key: &[u8]) {
        let db = std::mem::take(&mut self.session.db);
        self.tell_of_db(event, &db, key);
        self.session.db = db;
    }

    /// The same of another database.
    pub fn tell_of_db(&mut self, event: &Event, db: &[u8], key: &[u8]) {
        if self.telling.as_ref().is_some_and(|telling| telling.classes.has(event.class)) {
            let server = self.server;
            server.publish_event(event, db, key, |channel, text| _ = self.publish(false, channel, text));
        }
    }

    fn tell_missed(&mut self) {
        let missed = self.txn.take_missed();
        missed.iter().for_each(|key| self.tell_plainly(&KEYMISS, key));
    }
}
