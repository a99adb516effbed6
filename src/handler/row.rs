//! A command's row: the single source of dispatch, arity, routing, `COMMAND INFO/DOCS/GETKEYS` and ACL categories.

use smallvec::SmallVec;

use super::events::Event;
use super::{Args, Ctx, Reply, Result, Server, Session};
use crate::shard::actor::ShardSet;
use crate::shard::memory::ahead::Look;

/// What runs a command.
pub type Run = fn(&mut Ctx, Args<'_>, &mut Reply) -> Result;

/// Bits of [`Command::flags`]: Redis's flags first, in Redis's words, then Tarn's own and extra ACL categories.
#[expect(missing_docs, reason = "named after the flags of COMMAND INFO")]
pub mod flags {
    pub const WRITE: u32 = 1;
    pub const READONLY: u32 = 1 << 1;
    pub const DENYOOM: u32 = 1 << 2;
    pub const ADMIN: u32 = 1 << 3;
    pub const PUBSUB: u32 = 1 << 4;
    pub const NOSCRIPT: u32 = 1 << 5;
    pub const BLOCKING: u32 = 1 << 6;
    pub const LOADING: u32 = 1 << 7;
    pub const STALE: u32 = 1 << 8;
    pub const SKIP_MONITOR: u32 = 1 << 9;
    pub const SKIP_SLOWLOG: u32 = 1 << 10;
    pub const ASKING: u32 = 1 << 11;
    pub const FAST: u32 = 1 << 12;
    pub const NO_AUTH: u32 = 1 << 13;
    /// Of the server and not of a transaction: done once, however often the transaction runs. See [`crate::handler::once`].
    pub const ONCE: u32 = 1 << 14;
    pub const NO_ASYNC_LOADING: u32 = 1 << 15;
    pub const NO_MULTI: u32 = 1 << 16;
    pub const MOVABLEKEYS: u32 = 1 << 17;
    pub const ALLOW_BUSY: u32 = 1 << 18;
    /// SORT and its kin: ACL categories `set`, `sortedset` and `list` without being of any of those groups. They look at keys
    /// that they do not name, and rest no more from then on.
    pub const SORTS: u32 = 1 << 19;
    /// May be called in RESP2 by who has subscribed to something.
    pub const SUBSCRIBER: u32 = 1 << 20;
    pub const NO_MANDATORY_KEYS: u32 = 1 << 21;
    /// May write or publish, though it is no command that writes.
    pub const MAY_WRITE: u32 = 1 << 22;
    /// CLIENT: what CLIENT CACHING says is about the next command of another name.
    pub const KEEPS_CACHING: u32 = 1 << 23;
    /// Needs the lease of all shards.
    pub const ALL_SHARDS: u32 = 1 << 24;
    /// Always runs on a shard's thread: it walks or waits.
    pub const THREAD: u32 = 1 << 25;
    /// ACL category `keyspace`.
    pub const KEYSPACE: u32 = 1 << 26;
    /// ACL category `dangerous` without being `admin`.
    pub const DANGEROUS: u32 = 1 << 27;
    /// Runs at once inside MULTI instead of being queued.
    pub const UNQUEUED: u32 = 1 << 28;
    /// ACL category `connection` without being of that group.
    pub const CONNECTION: u32 = 1 << 29;
    /// ACL categories `admin` and `dangerous` without the flag.
    pub const ADMINISTRATION: u32 = 1 << 30;
    /// Read-only, but may write what it has computed beside what it was computed from.
    pub const KEEPS_RESULT: u32 = 1 << 31;
}

/// The family a command belongs to; also its ACL category.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the groups of COMMAND DOCS")]
pub enum Group {
    Generic,
    String,
    List,
    Set,
    SortedSet,
    Hash,
    PubSub,
    Transactions,
    Connection,
    Server,
    Scripting,
    HyperLogLog,
    Cluster,
    Geo,
    Stream,
    Bitmap,
    Module,
}

/// Flags of a key spec.
#[expect(missing_docs, reason = "named after the flags of COMMAND INFO")]
pub mod key {
    pub const RO: u16 = 1;
    pub const RW: u16 = 2;
    pub const OW: u16 = 4;
    pub const RM: u16 = 8;
    pub const ACCESS: u16 = 16;
    pub const UPDATE: u16 = 32;
    pub const INSERT: u16 = 64;
    pub const DELETE: u16 = 128;
    pub const NOT_KEY: u16 = 256;
    pub const INCOMPLETE: u16 = 512;
    pub const VARIABLE_FLAGS: u16 = 1024;
}

/// Where a run of keys begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begin {
    /// At this argument.
    Index(usize),
    /// After this word, looked for from this argument on (from the end if negative).
    Keyword(&'static str, isize),
    /// Cannot be told.
    Unknown,
}

/// How the keys are found from there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Find {
    /// Every `step`-th argument up to `last` (relative to the begin; from the end if negative); with `limit` only the
    /// first 1/limit of what is left.
    Range {
        /// Last key, relative to the begin; from the end if negative.
        last: isize,
        /// Arguments from key to key.
        step: usize,
        /// 0 or 1: none; n: only the first 1/n.
        limit: usize,
    },
    /// Argument `num` holds their number, the first stands at `first`, all relative to the begin.
    KeyNum {
        /// Where the number of keys stands.
        num: usize,
        /// Where the first key stands.
        first: usize,
        /// Arguments from key to key.
        step: usize,
    },
    /// Cannot be told.
    Unknown,
}

/// One run of keys among the arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeySpec {
    /// See [`key`].
    pub flags: u16,
    /// Where it begins.
    pub begin: Begin,
    /// How it goes on.
    pub find: Find,
}

impl KeySpec {
    /// Exactly the argument at `index`.
    pub const fn one(index: usize, flags: u16) -> Self {
        KeySpec::range(index, 0, 1, flags)
    }

    /// From `index` to `last`, every `step`.
    pub const fn range(index: usize, last: isize, step: usize, flags: u16) -> Self {
        KeySpec { flags, begin: Begin::Index(index), find: Find::Range { last, step, limit: 0 } }
    }

    /// Counted by the argument at `index`.
    pub const fn counted(index: usize, step: usize, flags: u16) -> Self {
        KeySpec { flags, begin: Begin::Index(index), find: Find::KeyNum { num: 0, first: 1, step } }
    }
}

/// A key's position among the arguments and the flags of its spec.
pub type KeyAt = (usize, u16);

/// The keys of a call.
pub type KeysAt = SmallVec<[KeyAt; 4]>;

/// Finds the keys of a call where no spec can tell; and whether it may look at others besides.
pub type Named = fn(Args<'_>) -> (KeysAt, bool);

/// How the shards of a command are found. What its function looks at beyond them is found out as it does: it is run again
/// with all shards.
#[derive(Debug, Clone, Copy)]
pub enum Route {
    /// No keys, no shards.
    None,
    /// The one key at this argument.
    One(usize),
    /// The keys of the key specs.
    Keys,
    /// All shards.
    All,
    /// What this function says; `None` for all shards.
    By(RouteBy),
}

/// Shards of a call that its arguments alone do not tell.
pub type RouteBy = fn(&Server, &Session, Args<'_>) -> Option<ShardSet>;

/// What a call does with a key whose spec's flags are those of all calls together.
pub type AccessBy = fn(Args<'_>) -> u16;

/// Channels among a command's arguments, which begin behind its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Channels {
    /// All arguments, not only the first.
    pub many: bool,
    /// They are patterns.
    pub are_patterns: bool,
}

/// Whether the argument at this place is a secret.
pub type Hides = fn(Args<'_>, usize) -> bool;

/// Whether this connection may call a command.
pub type Permit = fn(&Server, &Session) -> Result;

/// A command's row.
#[derive(Debug, Clone, Copy)]
pub struct Command {
    /// Name in lower case; of a subcommand only its own word.
    pub name: &'static str,
    /// What runs it; for a container, what runs without a known subcommand.
    pub run: Run,
    /// Number of arguments, the name (and subcommand) included; negative: at least.
    pub arity: i32,
    /// See [`flags`].
    pub flags: u32,
    /// Where its keys are.
    pub keys: &'static [KeySpec],
    /// What finds them where no spec can tell.
    pub named: Option<Named>,
    /// What a call does with keys whose specs have [`key::VARIABLE_FLAGS`].
    pub access: Option<AccessBy>,
    /// The channels that it hears or publishes to.
    pub channels: Option<Channels>,
    /// Family.
    pub group: Group,
    /// Version of Redis (or Valkey) that had it first.
    pub since: &'static str,
    /// One sentence.
    pub summary: &'static str,
    /// Time complexity.
    pub complexity: &'static str,
    /// Argument grammar.
    pub syntax: &'static str,
    /// Subcommands of a container.
    pub subcommands: &'static [Command],
    /// How its shards are found.
    pub route: Route,
    /// The element it looks for first, of the collection that its route leads to.
    pub look: Option<Look>,
    /// Whether, with so many arguments, it probably overwrites its keys whatever they hold: reading them ahead is in vain.
    pub overwrites: fn(usize) -> bool,
    /// The keyspace event of the keys that it changes.
    pub event: Option<&'static Event>,
    /// What decides whether it may be called at all, even before it is queued.
    pub permit: Option<Permit>,
    /// Which of its arguments no log shows: passwords, and whose they are.
    pub hides: Hides,
}

impl Command {
    /// A row; what is not given stays empty.
    pub const fn new(name: &'static str, run: Run, arity: i32, flags: u32, group: Group) -> Self {
        let route = if flags & flags::ALL_SHARDS != 0 { Route::All } else { Route::None };
        Command {
            name,
            run,
            arity,
            flags,
            keys: &[],
            named: None,
            access: None,
            channels: None,
            group,
            since: "1.0.0",
            summary: "",
            complexity: "",
            syntax: "",
            subcommands: &[],
            route,
            look: None,
            overwrites: |_| false,
            event: None,
            permit: None,
            hides: |_, _| false,
        }
    }

    /// With the element that it looks for first.
    pub const fn looks_at(mut self, look: Look) -> Self {
        self.look = Some(look);
        self
    }

    /// With the numbers of arguments with which it probably overwrites its keys whatever they hold.
    pub const fn overwrites(mut self, with: fn(usize) -> bool) -> Self {
        self.overwrites = with;
        self
    }

    /// With the keyspace event of the keys that it changes.
    pub const fn tells(mut self, event: &'static Event) -> Self {
        self.event = Some(event);
        self
    }

    /// With a decision about who may call it.
    pub const fn permitted_by(mut self, permit: Permit) -> Self {
        self.permit = Some(permit);
        self
    }

    /// With the arguments that no log shows.
    pub const fn hides(mut self, hides: Hides) -> Self {
        self.hides = hides;
        self
    }

    /// With key specs.
    pub const fn keys(mut self, keys: &'static [KeySpec]) -> Self {
        self.keys = keys;
        if let Route::None = self.route {
            self.route = match keys {
                [KeySpec { begin: Begin::Index(i), find: Find::Range { last: 0, .. }, .. }] => Route::One(*i),
                [] => Route::None,
                _ => Route::Keys,
            };
        }
        self
    }

    /// With what finds the keys that its specs cannot tell.
    pub const fn named_by(mut self, named: Named) -> Self {
        self.named = Some(named);
        self.route = Route::Keys;
        self
    }

    /// With what tells what a call does with its keys.
    pub const fn access_by(mut self, access: AccessBy) -> Self {
        self.access = Some(access);
        self
    }

    /// With channels, which it hears or publishes to.
    pub const fn channels(mut self, many: bool, are_patterns: bool) -> Self {
        self.channels = Some(Channels { many, are_patterns });
        self
    }

    /// With shards of its own choosing.
    pub const fn route_by(mut self, by: RouteBy) -> Self {
        self.route = Route::By(by);
        self
    }

    /// With first version and one sentence of help.
    pub const fn help(mut self, since: &'static str, summary: &'static str) -> Self {
        self.since = since;
        self.summary = summary;
        self
    }

    /// With argument grammar and complexity.
    pub const fn syntax(mut self, syntax: &'static str, complexity: &'static str) -> Self {
        self.syntax = syntax;
        self.complexity = complexity;
        self
    }

    /// With subcommands.
    pub const fn subcommands(mut self, subcommands: &'static [Command]) -> Self {
        self.subcommands = subcommands;
        self
    }

    /// The row that decides about a call: the subcommand's where there is one.
    pub fn resolve(&'static self, sub: Option<&[u8]>) -> &'static Command {
        let Some(sub) = sub.filter(|_| !self.subcommands.is_empty()) else { return self };
        self.subcommand(sub).unwrap_or(self)
    }

    /// The same, or nothing where the word is none of its subcommands'.
    pub fn resolve_known(&'static self, sub: Option<&[u8]>) -> Option<&'static Command> {
        match sub.filter(|_| !self.subcommands.is_empty()) {
            Some(sub) => self.subcommand(sub),
            None => Some(self),
        }
    }

    fn subcommand(&self, name: &[u8]) -> Option<&'static Command> {
        self.subcommands.iter().find(|row| row.name.as_bytes().eq_ignore_ascii_case(name))
    }

    /// Whether all of these flags are set.
    #[inline]
    pub const fn has(&self, flags: u32) -> bool {
        self.flags & flags == flags
    }

    /// Whether it may write keys or publish at all.
    pub const fn may_write(&self) -> bool {
        self.has(flags::WRITE) || self.has(flags::MAY_WRITE) || self.has(flags::KEEPS_RESULT)
    }

    /// Whether this number of arguments is right.
    #[inline]
    pub const fn accepts(&self, len: usize) -> bool {
        if self.arity >= 0 { len == self.arity as usize } else { len >= (-self.arity) as usize }
    }
}
