//! A transaction: the leased cores, the commands' writes, and what undoes them.
//!
//! Writes go into the tables at once, so that the transaction's own reads see them; for each the redo log's operation
//! is encoded and its inverse noted. [`Txn::commit`] appends all operations as **one log record** and stamps the
//! touched objects with its LSN; [`Txn::rollback_to`] plays the inverses back. Nobody else can look in between: the
//! cores stay locked from the first read to the end.
//!
//! | step | write set | tables |
//! |---|---|---|
//! | a primitive (`put_string`, `delete`, `set_expiry`, …) | operation, inverse | changed |
//! | an error, or a read that must not wait here | cut back to the mark | inverses applied |
//! | commit | one record, then emptied | LSN and version stamped, removals without trace dropped |
//!
//! Invariants: a key's operations stand in the order in which they were made; a count is logged absolute, once per
//! commit; an object that fjall may hold is never dropped from the table before its tombstone is flushed.

pub mod build;
pub mod changes;
mod claim;
mod commit;
pub mod elements;
mod host;
mod libraries;
mod merged;
mod names;
mod order;
mod passing;
mod prefetch;
pub mod rest;
pub mod slices;
mod straight;
mod strings;
mod undo;

use std::sync::Arc;

use smallvec::SmallVec;

use crate::codec::{NsId, redo};
use crate::error::{Error, Result};
use crate::log::Lsn;
use crate::meter;

use changes::News;
use host::Host;
use rest::Rests;
use undo::Undo;

use crate::shard::actor::Lease;
use crate::shard::memory::core::Core;
use crate::shard::memory::object::{Body, Kind, Object, state};
use crate::shard::memory::reads::Reads;
use crate::shard::memory::table::Index;
use crate::shard::memory::uses::Frequency;
use crate::shard::memory::watched::Watcher;
use crate::shard::router::{Router, ShardId};

pub use passing::Passing;
pub use prefetch::{AHEAD, Spotted};
pub use strings::{BIG_STRING, CHUNK, chunk_element, passes_by};

/// Where a found object is: position of its core in the lease, index in its table. Valid to the end of the
/// transaction, or until the object is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Found {
    at: u16,
    index: Index,
}

/// A key that was hashed.
#[derive(Debug, Clone, Copy)]
pub struct Hint {
    /// Where it lies.
    pub key_at: usize,
    /// Its hash.
    pub hash: u64,
    /// Its shard.
    pub shard: ShardId,
    /// Where that stands among the shards that routing leases.
    pub foreseen: u16,
    /// A look-ahead has found its object, which has been fetched.
    pub fetched: bool,
}

impl Hint {
    /// Of a key of which nothing is foreseen.
    #[inline]
    pub fn new(key: &[u8], hash: u64, shard: ShardId) -> Hint {
        Hint { key_at: key.as_ptr() as usize, hash, shard, foreseen: 0, fetched: false }
    }
}

/// Keys that were hashed.
pub type Hints = SmallVec<[Hint; 4]>;

/// The writes of the transactions that run one after the other on one thread; keeps its buffers.
#[derive(Default)]
pub struct WriteSet {
    /// The keys that routing has looked at, in the order in which most commands use them: spares hashing them again.
    pub hints: Hints,
    /// How the store is read, and what was read.
    pub reads: Reads,
    redo: redo::Record,
    header: Vec<u8>,
    undo: Vec<Undo>,
    arena: Vec<u8>,
    /// Objects that were changed, and who of those who watch their keys is told.
    touched: Vec<Touched>,
    /// Where in them the part begins that is told of on its own.
    part: usize,
    counts: SmallVec<[(u16, NsId); 2]>,
    /// Bodies may have changed, and their metadata is not logged yet.
    has_pending: bool,
    /// While uses are counted: objects that were used, the first `MOST_USES` of them, and what was known of that before.
    uses: Vec<(Found, u16)>,
}

/// Who of those who watch a key, or wait for it, is told that its object was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Tells {
    /// Nobody: it is not what WATCH is about.
    Nobody,
    /// Those who wait for it, and nobody who watches it.
    WhoWaits,
    /// Those for whom it was there: it had expired, and is removed now.
    WhoSawIt,
    Everybody,
}

/// An object that was changed.
#[derive(Debug, Clone, Copy)]
struct Touched {
    at: Found,
    tells: Tells,
    /// What it was, then.
    kind: Kind,
}

/// A point in a transaction to which it can return.
#[derive(Debug, Clone, Copy, Default)]
pub struct Mark {
    redo: usize,
    undo: usize,
    touched: usize,
    counts: usize,
}

/// Cores under lease and the writes made to them.
pub struct Txn<'a, 'e> {
    /// The cores, ascending.
    pub lease: &'a mut Lease<'e>,
    /// Hashes keys and knows their shards.
    pub router: &'a Router,
    /// The writes.
    set: &'a mut WriteSet,
    /// The time at which the transaction happens.
    pub now_ms: u64,
    /// What is to go by this time has gone: `now_ms`; 0 where nothing goes before all is read that there is about it.
    pub due_ms: u64,
    /// Whether look-ups count as hits and misses.
    pub count_hits: bool,
    /// Whether look-ups leave the access time alone (CLIENT NO-TOUCH).
    pub no_touch: bool,
    /// The highest LSN that the reply depends on.
    pub need: Lsn,
    /// Look-ups of keys that were there and that were not, since the counters of the shard were last told.
    hits: u64,
    misses: u64,
    /// Bytes of the write set that the command was charged for.
    charged: usize,
    /// How many of the write set's hints are used up.
    hinted: std::cell::Cell<usize>,
    /// Overwrites look at what they overwrite: somebody is to be told of it.
    pub looks: bool,
    /// The client that writes; 0 for none.
    pub by: u64,
    /// What it has beside, if anything.
    rare: Option<Box<Rare>>,
}

/// What few transactions have; the others are smaller without it.
#[derive(Default)]
struct Rare {
    /// What is done between two slices, and whether the keys for it are held.
    rests: Rests,
    holds: bool,
    /// It rests no more.
    stays: bool,
    /// What is gathered for others.
    news: Option<News>,
    /// Of one that has guests.
    host: Host,
}

impl<'a, 'e> Txn<'a, 'e> {
    /// A transaction over leased cores.
    pub fn new(
        lease: &'a mut Lease<'e>,
        router: &'a Router,
        set: &'a mut WriteSet,
        now_ms: u64,
        may_block: bool,
    ) -> Self {
        debug_assert!(set.redo.bytes().is_empty() && set.undo.is_empty(), "a write set is empty between transactions");
        lease.iter_mut().for_each(|core| core.make_room());
        set.reads.may_block = may_block;
        set.uses.clear();
        Txn {
            lease,
            router,
            set,
            now_ms,
            due_ms: now_ms,
            count_hits: false,
            no_touch: false,
            need: 0,
            hits: 0,
            misses: 0,
            charged: 0,
            hinted: std::cell::Cell::new(0),
            looks: false,
            by: 0,
            rare: None,
        }
    }

    #[cold]
    fn rare_mut(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    /// The next of the keys that routing has looked at, if it is this one.
    #[inline]
    fn hint(&self, key: &[u8]) -> Option<Hint> {
        let next = self.hinted.get();
        let hint = *self.set.hints.get(next).filter(|hint| hint.key_at == key.as_ptr() as usize)?;
        self.hinted.set(next + 1);
        Some(hint)
    }

    /// Whether reads may wait for the disk.
    #[inline]
    pub fn may_block(&self) -> bool {
        self.set.reads.may_block
    }

    /// Hash of a key, and position in the lease of the core that owns it.
    ///
    /// # Errors
    /// `Undeclared`: the lease does not have it.
    #[inline]
    fn place(&self, key: &[u8]) -> Result<(u64, u16)> {
        let (hash, shard) = match self.hint(key) {
            Some(hint) => match self.foreseen(&hint) {
                Some(at) => return Ok((hint.hash, at)),
                None => {
                    debug_assert!(self.lease.len() != 1, "the only shard is that of the keys that were looked at");
                    (hint.hash, hint.shard)
                }
            },
            None => {
                let hash = self.router.hash(key);
                (hash, self.router.shard(hash, key))
            }
        };
        match self.lease.binary_search_by_key(&shard, |core| core.shard) {
            Ok(at) => Ok((hash, at as u16)),
            Err(_) => Err(Error::Undeclared),
        }
    }

    /// Position in the lease of the core that has a hint's key, if that is where routing foresaw it.
    #[inline]
    fn foreseen(&self, hint: &Hint) -> Option<u16> {
        self.lease.get(hint.foreseen as usize).is_some_and(|core| core.shard == hint.shard).then_some(hint.foreseen)
    }

    /// The object, whether live or not.
    #[inline(always)]
    fn raw_find(&mut self, ns: NsId, key: &[u8]) -> Result<(u16, u64, Option<Index>)> {
        debug_assert!(self.may_look_at(key), "who rests looks at what it holds");
        meter::step(1)?;
        let (hash, at) = self.place(key)?;
        let index = self.lease[at as usize].fault(hash, ns, key, &mut self.set.reads)?;
        Ok((at, hash, index))
    }

    /// A key, whether live or not.
    pub(in crate::shard) fn find_any(&mut self, ns: NsId, key: &[u8]) -> Result<Option<Found>> {
        let (at, _, index) = self.raw_find(ns, key)?;
        Ok(index.map(|index| Found { at, index }))
    }

    /// A live key. Whether it is there or not, the reply will wait for what was seen here.
    #[inline]
    pub fn find(&mut self, ns: NsId, key: &[u8]) -> Result<Option<Found>> {
        let (at, _, index) = self.raw_find(ns, key)?;
        let (now_ms, due_ms, count_hits, no_touch) = (self.now_ms, self.due_ms, self.count_hits, self.no_touch);
        let core = &mut *self.lease[at as usize];
        let Some(index) = index else {
            self.need = self.need.max(core.last_lsn);
            self.miss(key);
            return Ok(None);
        };
        let object = core.table.at_mut(index);
        self.need = self.need.max(object.lsn);
        if !object.is_live(due_ms) {
            self.need = self.need.max(core.last_lsn);
            self.miss(key);
            return Ok(None);
        }
        if !no_touch {
            // Written where it changes alone: other processors keep the line.
            if object.state & state::REFERENCED == 0 {
                object.state |= state::REFERENCED;
            }
            if let Some(before) = core.uses.note(object, now_ms, core.commands) {
                self.set.note_use(Found { at, index }, before);
            }
        }
        self.hits += u64::from(count_hits);
        Ok(Some(Found { at, index }))
    }

    /// A key was looked up in vain.
    #[inline]
    fn miss(&mut self, key: &[u8]) {
        if self.count_hits {
            self.misses += 1;
            if let Some(news) = self.news_mut() {
                news.missed(key);
            }
        }
    }

    /// A found object.
    #[inline]
    pub fn object(&self, found: Found) -> &Object {
        self.lease[found.at as usize].table.at(found.index)
    }

    /// The core of a found object.
    pub fn core(&mut self, found: Found) -> &mut Core {
        &mut self.lease[found.at as usize]
    }

    /// The core that owns a key.
    ///
    /// # Errors
    /// `Undeclared`: the lease does not have it.
    pub fn core_of(&self, key: &[u8]) -> Result<&Core> {
        let shard = self.router.shard_of(key);
        let at = self.lease.binary_search_by_key(&shard, |core| core.shard);
        at.map(|at| &*self.lease[at]).map_err(|_| Error::Undeclared)
    }

    fn object_mut(&mut self, at: Found) -> &mut Object {
        self.lease[at.at as usize].table.at_mut(at.index)
    }

    fn note_header(&mut self, at: Found) {
        let object = self.object(at);
        let (kind, expire_ms, state) = (object.kind, object.expire_ms, object.state);
        self.set.undo.push(Undo::Header { at, kind, expire_ms, state });
    }

    /// An object has changed.
    #[inline]
    fn touch(&mut self, at: Found) {
        self.touch_as(at, Tells::Everybody);
    }

    fn touch_as(&mut self, at: Found, tells: Tells) {
        self.lease[at.at as usize].touch_dirty(at.index);
        self.note_touched(at, tells);
    }

    /// An object that is dirty has changed.
    #[inline]
    fn note_touched(&mut self, at: Found, tells: Tells) {
        debug_assert!(
            self.holds() || !self.lease[at.at as usize].busy.holds(self.object(at).key()),
            "nobody writes what another command goes through"
        );
        self.charge();
        let kind = self.object(at).kind;
        match self.set.touched[self.set.part..].last_mut() {
            Some(last) if last.at == at => (last.tells, last.kind) = (tells.max(last.tells), kind),
            _ => self.set.touched.push(Touched { at, tells, kind }),
        }
    }

    /// Charges the command for what its write set has grown by. A refusal ends it at its next step, or keeps it from
    /// committing.
    #[inline]
    fn charge(&mut self) {
        let bytes = self.set.redo.bytes().len() + self.set.undo.len() * size_of::<Undo>();
        let more = bytes.saturating_sub(std::mem::replace(&mut self.charged, bytes));
        _ = meter::hold(more);
    }

    pub(in crate::shard) fn add_count(&mut self, at: u16, ns: NsId, delta: i64) {
        let core = &mut self.lease[at as usize];
        let count = core.counts.get(&ns).copied().unwrap_or(0) + delta;
        if count < 0 && !core.miscounted {
            tracing::error!(
                shard = core.shard,
                namespace = ns,
                "fewer keys were counted than there are: counts them anew"
            );
            core.miscounted = true;
        }
        self.correct_count(at, ns, count);
    }

    /// Sets the number of keys of a namespace; below zero only if it was wrong before.
    pub(in crate::shard) fn correct_count(&mut self, at: u16, ns: NsId, count: i64) {
        let core = &mut self.lease[at as usize];
        let before = core.counts.get(&ns).copied().unwrap_or(0);
        core.set_count(ns, count);
        self.set.undo.push(Undo::Count { at, ns, count: before });
        if !self.set.counts.contains(&(at, ns)) {
            self.set.counts.push((at, ns));
        }
    }

    fn queue_garbage(&mut self, at: Found, version: u64) {
        let object = self.object(at);
        let record = crate::shard::memory::garbage::record_key(object.ns, object.key(), version);
        self.put_raw(at.at, record, Some(Vec::new()));
    }

    /// Puts or removes a record that belongs to no key.
    pub fn put_raw(&mut self, at: u16, key: Vec<u8>, value: Option<Vec<u8>>) {
        let core = &mut self.lease[at as usize];
        redo::encode_raw(core.shard, &key, value.as_deref(), self.set.redo.out());
        let old = core.put_raw(key.clone(), value);
        self.set.undo.push(Undo::Raw { at, key, old });
    }

    /// Removes a key. False if there was none, or none that was live.
    pub fn delete(&mut self, ns: NsId, key: &[u8]) -> Result<bool> {
        let (at, _, index) = self.raw_find(ns, key)?;
        let Some(index) = index else {
            self.need = self.need.max(self.lease[at as usize].last_lsn);
            return Ok(false);
        };
        Ok(self.delete_found(Found { at, index }))
    }

    /// Removes a found object. False if it was not live.
    pub fn delete_found(&mut self, at: Found) -> bool {
        self.need = self.need.max(self.object(at).lsn);
        let object = self.lease[at.at as usize].table.at(at.index);
        if object.kind == Kind::Absent {
            return false;
        }
        let (live, ns) = (object.is_live(self.due_ms), object.ns);
        redo::encode_delete(ns, object.key(), self.set.redo.out());
        self.note_header(at);
        self.strip(at);
        let core = &mut *self.lease[at.at as usize];
        core.set_expire(at.index, 0);
        core.table.at_mut(at.index).kind = Kind::Absent;
        core.order_remove(at.index);
        self.add_count(at.at, ns, -1);
        self.touch_as(at, if live { Tells::Everybody } else { Tells::WhoSawIt });
        live
    }

    /// Sets or, with 0, removes the time of a live key.
    pub fn set_expiry(&mut self, at: Found, expire_ms: u64) {
        self.note_header(at);
        self.lease[at.at as usize].set_expire(at.index, expire_ms);
        let object = self.lease[at.at as usize].table.at(at.index);
        redo::encode_expire(object.ns, object.key(), expire_ms, self.set.redo.out());
        self.touch(at);
    }

    /// Has a live key appear to have been used so many seconds ago for the last time, 65,535 at most, if that is kept.
    pub fn set_idle(&mut self, at: Found, idle_s: u64) {
        let idle_s = idle_s.min(u16::MAX.into()) as u16;
        let now_s = (self.now_ms / 1000) as u16;
        if self.core(at).uses.frequency().is_none() {
            self.object_mut(at).used = now_s.wrapping_sub(idle_s);
        }
    }

    /// Has a live key appear to be used as often as this counter says, if that is kept.
    pub fn set_frequency(&mut self, at: Found, count: u8) {
        let now_ms = self.now_ms;
        if self.core(at).uses.frequency().is_some() {
            self.object_mut(at).used = Frequency::of_count(count, now_ms);
        }
    }

    /// A big result has its metadata: it is no longer pending.
    pub fn unstage(&mut self, at: Found, staged: crate::shard::memory::garbage::Staged) {
        self.put_raw(at.at, staged.record_key(), None);
        self.lease[at.at as usize].staged.lock().retain(|(other, _)| *other != staged);
        self.set.undo.push(Undo::Staged { at: at.at, staged });
    }

    /// Who waits for a key is to look at it, though what WATCH is about has not changed.
    pub fn rouse(&mut self, at: Found) {
        self.touch_as(at, Tells::WhoWaits);
    }

    /// Has a watcher told of a key's next change, and whether it is there now: the key's shard, `None` if it is watched already.
    ///
    /// # Errors
    /// `Undeclared`: the lease does not have it.
    pub(in crate::shard) fn watch(
        &mut self,
        ns: NsId,
        key: &[u8],
        watcher: &Arc<Watcher>,
        exists: bool,
    ) -> Result<Option<ShardId>> {
        let (_, at) = self.place(key)?;
        let core = &mut *self.lease[at as usize];
        Ok(core.watched.add(ns, key, watcher, exists).then_some(core.shard))
    }

    /// The shard ids under lease.
    pub fn shards(&self) -> impl Iterator<Item = ShardId> + '_ {
        self.lease.iter().map(|core| core.shard)
    }
}

/// About the bytes that a body's dirty elements stand for in the shard's dirty bytes.
fn dirty_share(body: &Body) -> usize {
    let sums = body.overlay.sums();
    match sums.entries {
        0 => 0,
        entries => (body.overlay.bytes() as u128 * u128::from(sums.dirty) / u128::from(entries)) as usize,
    }
}
