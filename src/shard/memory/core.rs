//! The core of a shard: everything that is changed under the shard's lock.
//!
//! | part | content |
//! |---|---|
//! | `table` | objects that are hot, dirty or in flight |
//! | `expiry` | (time, index) of every object in the table that has a time |
//! | `stored_ttl` | the time under which fjall's expiry index lists an object of the table |
//! | `fields` | the same two for the fields of hashes |
//! | `blind` | keys that were overwritten without a look at what fjall holds of them |
//! | `raw` | records without an object that the next flush brings: garbage queue, dead namespaces, libraries, tombstones |
//! | `counts` | keys per namespace |
//! | `order` | keys that fjall does not show yet, sorted; kept only while somebody looks for few among many |
//! | `busy` | keys that commands in slices hold: their objects stay, and nobody else writes them |
//! | `tracked` | keys of which clients have copies, and who is told when one changes |
//! | `watched` | keys that clients watch, and who is told when one changes |
//! | `blocked` | keys that clients wait for, and who is served when one changes |
//! | `door` | sees what is read only in passing |
//! | `cold` | moka: metadata of clean objects with a body that left the table |
//!
//! Invariants: a key stands in the table or in `cold`, never in both; what is neither in the table nor in `cold` is what
//! fjall says; `counts` counts every object whose kind is not `Absent`, expired ones included until they are removed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::codec::{self, Meta, NsId};
use crate::error::{Error, Result};
use crate::log::{Log, Lsn};
use crate::store::Partition;
use crate::util::scale::Scaled;

use super::blind::Blind;
use super::blocked::Blocked;
use super::busy::Busy;
use super::cold::ColdCache;
use super::door::Doorkeeper;
use super::garbage::{AllStaged, Queue};
use super::libraries::Libraries;
use super::names::Names;
use super::object::{Body, EXPIRY_OVERHEAD, Kind, Object, state};
use super::order::Order;
use super::reads::{Reads, place_of_key};
use super::stats::{CoreStats, Pace};
use super::table::{Index, Table, table_hash};
use super::tracked::Tracked;
use super::uses::Uses;
use super::watched::Watched;
use crate::shard::router::ShardId;

/// Elements of a body that are freed on the spot.
const FREE_AT_ONCE: Scaled<usize> = Scaled::new(64);

/// Bytes from which on a body's elements may leave one by one.
const TRIM_FROM: Scaled<usize> = Scaled::new(1 << 10);
/// For how many admitted ones room is made at a time on a network thread.
const MOST_LEAVING: usize = 64;
/// Leaves of an overlay that a step of the clock looks at.
const TRIM_LEAVES: usize = 8;

/// State of one shard. What every command writes comes first, and fits with the shard's lock into two lines; what it only looks at
/// stands behind that: where commands of a shard come from several processors, each line that one of them writes goes to and fro
/// between them.
#[repr(C)]
pub struct Core {
    /// Which shard this is.
    pub shard: ShardId,
    /// Reads of the store may wait for the disk: the data no longer fits the block cache.
    pub store_is_cold: bool,
    /// A count was found to be wrong: the timer counts the keys anew.
    pub miscounted: bool,
    /// Tables of the partition are being dropped, or it is compacted, for what is dead in it; or that is about to be done.
    pub reclaiming: bool,
    /// LSN of the shard's last commit.
    pub last_lsn: Lsn,
    /// Commands that have run here.
    pub commands: u64,
    /// Memory of the table's objects, of the order index and of the filter of keys.
    pub table_bytes: usize,
    /// Bytes that turned dirty since the last gather began.
    pub dirty_bytes: usize,
    /// Bytes a running flush has gathered.
    pub flight_bytes: usize,
    /// What the table may hold before clean objects leave: its share, and what the second-level cache leaves of its own.
    pub table_limit: usize,
    /// Objects and elements read into the table since clean ones last left it.
    pub admitted: usize,
    /// Counters, those of look-ups first.
    pub stats: CoreStats,
    /// Somebody's transaction is under way here, which happens at this time, ms, and this is a guest's, which happens before it:
    /// nothing leaves the table, nobody is served.
    pub hosts: Option<u64>,
    /// New keys go straight to fjall, while data is imported.
    pub(in crate::shard) straight: Option<Box<super::straight::Straight>>,
    /// Hot and dirty objects.
    pub table: Table,
    /// Keys that commands in slices hold.
    pub busy: Busy,
    /// Keys that clients watch.
    pub watched: Watched,
    /// Keys of which clients have copies.
    pub tracked: Tracked,
    /// Keys that clients wait for.
    pub blocked: Blocked,
    /// What is kept of the uses of objects.
    pub uses: Arc<Uses>,
    /// Copy of the name → id map.
    pub names: Arc<Names>,
    /// The libraries of functions.
    pub libraries: Arc<Libraries>,
    /// Keys per namespace; below zero where a count was wrong, until they are counted anew.
    pub counts: HashMap<NsId, i64, foldhash::fast::RandomState>,
    /// Indexes of objects that turned dirty since the last gather.
    pub dirty: Vec<Index>,
    /// Commands a second, of late; and how many there were when that was last looked at.
    pub pace: Pace,
    /// Times of the table's objects.
    pub expiry: BTreeSet<(u64, Index)>,
    /// Times under which fjall's expiry index lists objects of the table.
    pub stored_ttl: HashMap<Index, u64, foldhash::fast::RandomState>,
    /// Hashes of the table whose fields expire.
    pub fields: super::fields::Fields,
    /// Objects of the table whose keys' records nobody has looked at.
    pub blind: Blind,
    /// Records without an object, for the next flush.
    pub raw: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    /// Namespaces whose count changed since the last gather.
    pub dirty_counts: BTreeSet<NsId>,
    /// Indexes of objects that a flush has gathered.
    pub in_flight: Vec<Index>,
    /// Keys that fjall does not show, in order, while walks need them.
    pub order: Option<Order>,
    /// When somebody last asked for the order index, ms.
    pub order_asked_ms: u64,
    /// Order indexes that wait to be freed without the lock.
    pub old_orders: Vec<Order>,
    /// Number of the last gather that took the raw records along.
    pub gathers: u64,
    /// What the numbers of flights are added to, so that none is given twice, not even after a restart.
    pub generation: u64,
    /// Generation of the flight that is gathered whole and not yet settled.
    pub flying: Option<u64>,
    /// Raised before what a flight has brought may leave memory (see [`super::reads`]).
    pub epoch: u64,
    /// Records of this LSN and lower ones may be in fjall; higher ones are not.
    pub stored_lsn: Lsn,
    /// Earliest time that fjall's expiry index may list; the sweep starts there.
    pub sweep_from_ms: u64,
    /// Dead namespaces whose records fjall may still hold.
    pub dead_names: Queue,
    /// Where objects of dead namespaces may be in the table.
    pub reap: Option<super::reap::Reap>,
    /// Bodies of which elements in fjall wait to be removed.
    pub garbage: Queue,
    /// The keys that fjall may hold.
    pub membership: crate::shard::memory::membership::Membership,
    /// Versions in fjall without metadata, and whether their builders live.
    pub staged: Arc<AllStaged>,
    /// The log of all shards.
    pub log: Arc<Log>,
    /// The shard's partition of the store.
    pub partition: Arc<Partition>,
    /// Sees what is read only in passing while the table is full.
    pub door: Doorkeeper,
    /// Second-level cache.
    pub cold: ColdCache,
    /// What of the limit is the table's own.
    pub table_share: usize,
    /// Takes big bodies to be freed.
    pub trash: crossbeam_channel::Sender<Box<Body>>,
}

impl Core {
    /// The object of a key that is in the table, or brought there from the second-level cache or the store.
    ///
    /// `Err(Cold)` where that would wait for the disk and `reads` may not.
    #[inline]
    pub fn fault(&mut self, hash: u64, ns: NsId, key: &[u8], reads: &mut Reads) -> Result<Option<Index>> {
        let hash = table_hash(hash, ns);
        if let Some(index) = self.table.find(hash, ns, key) {
            return Ok(Some(index));
        }
        self.fault_missing(hash, ns, key, reads)
    }

    #[cold]
    #[inline(never)]
    fn fault_missing(&mut self, hash: u32, ns: NsId, key: &[u8], reads: &mut Reads) -> Result<Option<Index>> {
        if !reads.knows(self, hash, ns, key)
            && let Some(known) = self.recall(hash, ns, key)?
        {
            return Ok(known);
        }
        self.read(hash, ns, key, reads)
    }

    /// The same for a key that is to be overwritten whatever it holds: `None` where only the store knows it, and need not be
    /// asked.
    #[inline]
    pub fn fault_to_overwrite(
        &mut self,
        hash: u64,
        ns: NsId,
        key: &[u8],
        reads: &mut Reads,
    ) -> Result<Option<Option<Index>>> {
        let hash = table_hash(hash, ns);
        if let Some(index) = self.table.find(hash, ns, key) {
            return Ok(Some(Some(index)));
        }
        if !reads.knows(self, hash, ns, key) {
            if let Some(known) = self.recall(hash, ns, key)? {
                return Ok(Some(known));
            }
            if self.blind.may_be() {
                return Ok(None);
            }
        }
        self.read(hash, ns, key, reads).map(Some)
    }

    /// What is known, without the store, of a key that is not in the table: that there is none, or what moka has. `None` if
    /// nothing is.
    fn recall(&mut self, hash: u32, ns: NsId, key: &[u8]) -> Result<Option<Option<Index>>> {
        if !self.fjall_may_hold(hash, ns, key) {
            return Ok(Some(None));
        }
        let Some(value) = self.cold.take(hash, ns, key) else { return Ok(None) };
        self.stats.cold_reads += 1;
        self.admit(hash, ns, key, &value).map(|index| Some(Some(index)))
    }

    fn read(&mut self, hash: u32, ns: NsId, key: &[u8], reads: &mut Reads) -> Result<Option<Index>> {
        let value = reads.record(self, place_of_key(ns, key))?.map_err(|e| storage(key, e))?;
        self.stats.stored_reads += 1;
        match value {
            Some(value) => self.admit(hash, ns, key, &value).map(Some),
            None => Ok(None),
        }
    }

    /// False if fjall does not hold the key for certain: no look-up would go there.
    pub(super) fn fjall_may_hold(&self, hash: u32, ns: NsId, key: &[u8]) -> bool {
        self.partition.disk_bytes() != 0 && self.membership.may_contain(hash, ns, key)
    }

    /// Takes what fjall holds of a key into the table, clean.
    fn admit(&mut self, hash: u32, ns: NsId, key: &[u8], value: &[u8]) -> Result<Index> {
        let (meta, _, rest) = Meta::decode(value).map_err(|e| storage(key, e))?;
        let inline = if meta.packed { &[] } else { rest };
        let kind = Kind::from(meta.kind);
        if kind != Kind::String && meta.version == 0 {
            return Err(storage(key, "metadata of a collection without a version"));
        }
        let mut bytes = Vec::with_capacity(key.len() + inline.len());
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(inline);
        let mut object = Object {
            bytes,
            body: None,
            lsn: 0,
            expire_ms: meta.expire_ms,
            hash,
            key_len: key.len() as u32,
            ns,
            kind,
            state: state::MAYBE_STORED | state::STORED,
            used: 0,
        };
        if meta.version != 0 {
            let body = if meta.packed { Body::unpacked(&meta, rest) } else { Ok(Body::stored(&meta)) };
            object.body = Some(Box::new(body.map_err(|e| storage(key, e))?));
        }
        // It cannot leave before the command has ended.
        _ = crate::meter::hold(object.mem_bytes());
        self.table_bytes += object.mem_bytes();
        let index = self.table.insert(object);
        if meta.expire_ms != 0 {
            self.expiry.insert((meta.expire_ms, index));
            self.stored_ttl.insert(index, meta.expire_ms);
        }
        let due_ms = meta.extra.fields_due_ms();
        if due_ms != 0 {
            self.fields.set_due(index, due_ms);
            self.fields.set_stored(index, due_ms);
        }
        self.admitted += 1;
        Ok(index)
    }

    /// The object whose key stands so in records, and its user key.
    pub fn fault_stored(
        &mut self,
        router: &crate::shard::router::Router,
        ns: NsId,
        stored: &[u8],
        reads: &mut Reads,
    ) -> Result<Option<(Vec<u8>, Index)>> {
        let mut key = stored.to_vec();
        if codec::is_long_form(stored) {
            let mut disk_key = Vec::new();
            codec::key::meta_key_of_stored(ns, stored, &mut disk_key);
            let Some(value) = self.partition.get(&disk_key).map_err(|e| storage(stored, e))? else { return Ok(None) };
            match Meta::decode(&value).map_err(|e| storage(stored, e))?.1 {
                Some(long_key) => key = long_key.to_vec(),
                None => return Ok(None),
            }
        }
        let found = self.fault(router.hash(&key), ns, &key, reads)?;
        Ok(found.map(|index| (key, index)))
    }

    /// Adds a key that [`Core::fault`] did not find; it counts from now on.
    pub fn create(&mut self, hash: u64, ns: NsId, key: &[u8], capacity: usize) -> Index {
        let mut bytes = Vec::with_capacity(key.len() + capacity);
        bytes.extend_from_slice(key);
        let object = Object {
            bytes,
            body: None,
            lsn: 0,
            expire_ms: 0,
            hash: table_hash(hash, ns),
            key_len: key.len() as u32,
            ns,
            kind: Kind::Absent,
            state: 0,
            used: 0,
        };
        self.table_bytes += object.mem_bytes();
        let index = self.table.insert(object);
        self.order_insert(index);
        index
    }

    /// Takes an object out of the table for good.
    pub fn discard(&mut self, index: Index) -> Object {
        if self.table.at(index).state & state::STORED == 0 {
            self.order_remove(index);
        }
        let object = self.table.remove(index);
        self.table_bytes -= object.mem_bytes();
        if object.expire_ms != 0 {
            self.expiry.remove(&(object.expire_ms, index));
        }
        if !self.stored_ttl.is_empty() {
            self.stored_ttl.remove(&index);
        }
        self.fields.forget(index);
        self.forget_blind(index, object.ns);
        object
    }

    /// The same, of an object whose making is taken back: it counts as if it had never been.
    pub fn discard_uncounted(&mut self, index: Index) {
        let object = self.discard(index);
        self.dirty_bytes = self.dirty_bytes.saturating_sub(object.dirty_bytes());
    }

    /// Takes an object of a dead namespace out of the table, without its body if that is big: nobody waits for it to be freed.
    pub fn abandon(&mut self, index: Index) -> Object {
        let mut object = self.discard(index);
        if let Some(body) = object.body.take_if(|body| is_long_to_free(body)) {
            self.throw_away(body);
        }
        object
    }

    /// An object is gone again of which fjall holds nothing and need not hear. If a look-up of its key would ask fjall
    /// nevertheless, the next flush forgets it instead: a queue that is empty again and again is made anew in its place.
    pub fn forget(&mut self, index: Index) {
        let object = self.table.at(index);
        if self.fjall_may_hold(object.hash, object.ns, object.key()) {
            return;
        }
        let object = self.discard(index);
        self.count_less(object.dirty_bytes());
        if self.dirty.last() == Some(&index) {
            self.dirty.pop();
        } else {
            self.dirty_bytes += size_of::<Index>();
        }
    }

    /// Lets clean objects leave, those with a body for the second-level cache, while the table is over its limit. Only between
    /// transactions: whatever one has found must stay where it is to its end. Steps are bounded by what came in since,
    /// as a table full of dirty objects must not be walked.
    #[inline]
    pub fn make_room(&mut self) {
        if self.table_bytes <= self.table_limit {
            self.admitted = 0;
            return;
        }
        if self.hosts.is_some() {
            return;
        }
        // What one command has brought in leaves over several where others wait.
        let most = if crate::meter::is_here() { MOST_LEAVING } else { usize::MAX };
        let leaving = self.admitted.min(most);
        self.admitted -= leaving;
        self.evict_some(16 * (leaving + 1));
    }

    /// Whether the table is not much beyond its limit.
    pub fn has_room(&self) -> bool {
        self.table_bytes <= self.table_limit + self.table_limit / 16
    }

    /// Takes other limits. A second-level cache of another size is a new one; the old one is the caller's to free.
    pub fn resize(&mut self, table_share: usize, cold_budget: usize) -> Option<ColdCache> {
        self.table_share = table_share;
        self.resize_membership();
        self.door = Doorkeeper::of_table(table_share);
        let other = self.cold.budget() != cold_budget;
        let before = other.then(|| {
            let new = self.cold.successor(cold_budget);
            std::mem::replace(&mut self.cold, new)
        });
        self.lend();
        before
    }

    /// Gives the table what the second-level cache leaves of its own.
    pub fn lend(&mut self) {
        self.table_limit = self.most_with_lent();
    }

    fn most_with_lent(&self) -> usize {
        let left = (self.cold.budget() as u64).saturating_sub(self.cold.bytes());
        self.table_share + left as usize
    }

    /// Lets clean objects leave while the table is over its limit, in so many steps; whether it still is.
    pub fn shrink(&mut self, steps: usize) -> bool {
        if self.table_bytes > self.table_limit {
            self.evict_some(steps);
        }
        self.table_bytes > self.table_limit
    }

    #[cold]
    fn evict_some(&mut self, steps: usize) {
        for _ in 0..steps {
            let Some(index) = self.table.turn_hand() else { continue };
            let object = self.table.at_mut(index);
            let clean = object.is_clean();
            let stays = object.state & state::REFERENCED != 0 || self.busy.holds(object.key());
            if clean && !stays {
                self.evict(index);
            } else {
                object.state &= !state::REFERENCED;
                self.trim(index);
            }
            if self.table_bytes <= self.table_limit {
                return;
            }
        }
    }

    /// Lets clean elements of a big collection leave that itself has to stay.
    fn trim(&mut self, index: Index) {
        let Some(body) = &mut self.table.at_mut(index).body else { return };
        let before = body.overlay.bytes();
        // Of what fjall holds in one record nothing can be read alone.
        if !body.maybe_stored || before < TRIM_FROM.get() || body.overlay.sums().dirty == body.overlay.sums().entries {
            return;
        }
        let hand = std::mem::take(&mut body.hand);
        body.hand = body.overlay.evict_clean(&hand, TRIM_LEAVES).unwrap_or_default();
        self.table_bytes = self.table_bytes + body.overlay.bytes() - before;
    }

    fn evict(&mut self, index: Index) {
        // A hash that the sweep has found on disk may leave before its fields are looked at: it is to be found again.
        if let due_ms @ 1.. = self.table.at(index).fields_due_ms() {
            self.sweep_from_ms = self.sweep_from_ms.min(due_ms);
        }
        let mut object = self.discard(index);
        self.stats.evicted_objects += 1;
        // A small string has half the room in the table.
        if object.body.is_some() && self.cold.lets_in(object.hash) {
            let mut value = Vec::with_capacity(object.value().len() + 32);
            object.encode(object.is_packed(), None, &mut value);
            self.cold.put(object.hash, object.ns, object.key(), value);
            // What was lent is wanted back.
            self.table_limit = self.table_limit.min(self.most_with_lent());
        }
        if let Some(body) = object.body.take() {
            self.throw_away(body);
        }
    }

    /// Takes a body that nobody needs any more. Freeing a big one takes long: the thread `free` does it, unless it has
    /// fallen far behind.
    pub fn throw_away(&mut self, body: Box<Body>) {
        if is_long_to_free(&body) {
            drop(self.trash.try_send(body));
        }
    }

    /// So many bytes are dirty no longer. The shares of bodies are estimated, and of what changes while a flush runs some was
    /// counted for the flight: it must never look as if nothing waited for a flush, so the queue itself stays counted.
    pub fn count_less(&mut self, bytes: usize) {
        let least = self.queue_bytes().min(self.dirty_bytes);
        self.dirty_bytes = self.dirty_bytes.saturating_sub(bytes).max(least);
    }

    /// Bytes of the list of dirty objects.
    pub fn queue_bytes(&self) -> usize {
        self.dirty.len() * size_of::<Index>()
    }

    /// Whether anybody may hear of a key that is changed.
    #[inline]
    pub fn is_heard(&self) -> bool {
        !(self.watched.is_empty() && self.tracked.is_empty() && self.blocked.is_empty())
            || self.tracked.trackers.broadcasts()
    }

    /// Marks an object as changed.
    #[inline]
    pub fn touch_dirty(&mut self, index: Index) {
        let object = self.table.at_mut(index);
        if object.state & state::DIRTY == 0 {
            object.state |= state::DIRTY;
            self.dirty_bytes += object.dirty_bytes();
        }
        if object.state & state::QUEUED == 0 {
            object.state |= state::QUEUED;
            self.dirty.push(index);
        }
    }

    /// A queued object stays so beyond the flush that has come to it.
    pub fn put_off(&mut self, index: Index) {
        let object = self.table.at(index);
        let elements = object.body.as_ref().map_or(0, |body| body.overlay.bytes());
        self.dirty_bytes += object.dirty_bytes() + elements;
        self.dirty.push(index);
    }

    /// Changes an object's time and the index of times with it.
    pub fn set_expire(&mut self, index: Index, expire_ms: u64) {
        let object = self.table.at_mut(index);
        let old = std::mem::replace(&mut object.expire_ms, expire_ms);
        if old == expire_ms {
            return;
        }
        if old != 0 {
            self.expiry.remove(&(old, index));
            self.table_bytes -= EXPIRY_OVERHEAD;
        }
        if expire_ms != 0 {
            self.expiry.insert((expire_ms, index));
            self.table_bytes += EXPIRY_OVERHEAD;
        }
    }

    /// Keys of a namespace.
    pub fn count(&self, ns: NsId) -> u64 {
        self.counts.get(&ns).map_or(0, |&count| count.max(0) as u64)
    }

    /// Keys of all namespaces.
    pub fn keys(&self) -> u64 {
        self.counts.values().map(|&count| count.max(0) as u64).sum()
    }

    /// Sets the number of keys of a namespace.
    pub fn set_count(&mut self, ns: NsId, count: i64) {
        self.counts.insert(ns, count);
        self.dirty_counts.insert(ns);
    }
}

/// Whether it takes long to free a body: it goes with each of its elements.
fn is_long_to_free(body: &Body) -> bool {
    body.overlay.len() > FREE_AT_ONCE.get()
}

/// A storage error that names no key.
pub fn unreadable(cause: impl std::fmt::Display) -> Error {
    tracing::error!(%cause, "cannot read the store");
    Error::Storage(cause.to_string().into())
}

/// A storage error that names the key.
pub fn storage(key: &[u8], cause: impl std::fmt::Display) -> Error {
    tracing::error!(key = %String::from_utf8_lossy(&key[..key.len().min(200)]), %cause, "cannot read a record");
    Error::Storage(format!("cannot read key '{}': {cause}", String::from_utf8_lossy(&key[..key.len().min(80)])).into())
}
