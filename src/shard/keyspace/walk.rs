//! Walks of the key space, shard by shard: SCAN, KEYS, RANDOMKEY.
//!
//! A shard's keys have two sources: the metadata records in fjall, and the objects in the table that fjall does not show
//! yet. The table decides about every key that it holds: a removal masks what fjall shows, a newer type counts.
//!
//! | phase | meets | in the order of |
//! |---|---|---|
//! | `Merged` | both sources, while the order index is whole ([`crate::shard::memory::order`]) | stored keys |
//! | `Table` | without it, first what fjall does not show | places of the table |
//! | `Stored` | then what fjall shows | stored keys |
//!
//! So no walk waits for an index. Why none of the keys that are there all along is missed: an object keeps its place
//! until fjall shows its key, and what fjall shows it goes on showing as long as the key is there. A key may be met twice,
//! in the table and, when a flush or an overwriting comes between, in fjall.
//!
//! A walk goes in bounded steps, each under one hold of the lock. It may wait for the disk: [`must_wait`] tells a thread
//! that must not whether it would.

use std::ops::ControlFlow;

use crate::codec::{self, NsId};
use crate::error::Result;
use crate::meter;

use crate::shard::memory::core::{Core, storage, unreadable};
use crate::shard::memory::object::{Kind, Object};
use crate::shard::memory::order::{self, Order, stored_form};
use crate::shard::memory::table::{Index, table_hash};
use crate::shard::router::Router;
use crate::util::prefetch::prefetch;

/// Places of the table that a step looks at, some tenths of a millisecond: those of a small database's tables together, which
/// is so met in one page.
const PLACES: usize = if cfg!(test) { 16 } else { 16 << 10 };
/// So many places before its turn, a key is brought into the processor's cache: that is most of what meeting it takes.
const AHEAD: Index = 16;
/// As many of them take as long as a key does.
const PLACES_PER_KEY: usize = 8;

/// A key met on a walk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Met {
    /// The user key.
    pub key: Vec<u8>,
    /// As a long key stands in records.
    long_form: Option<Vec<u8>>,
    /// Its type; `Absent` for a key that is gone and only still stands in one of the sources.
    pub kind: Kind,
}

impl Met {
    fn of(object: &Object, now_ms: u64) -> Self {
        let key = object.key();
        let long_form = codec::is_long(key).then(|| stored_form(key).into_owned());
        let kind = if object.is_live(now_ms) { object.kind } else { Kind::Absent };
        Met { key: key.to_vec(), long_form, kind }
    }

    /// Whether the key is there.
    pub fn is_live(&self) -> bool {
        self.kind != Kind::Absent
    }

    /// The key as it stands in records.
    pub fn stored_key(&self) -> &[u8] {
        self.long_form.as_ref().unwrap_or(&self.key)
    }
}

/// Part of a walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phase {
    /// Both sources.
    #[default]
    Merged,
    /// The table, from this place on.
    Table(Index),
    /// fjall.
    Stored,
}

/// Where the walk of a shard is to be taken up. The default is its beginning.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stop {
    /// What part of it is under way.
    pub phase: Phase,
    /// Keys up to this stored one have been met, from whichever source.
    pub after: Option<Box<[u8]>>,
    /// Blind keys up to this number are met in the table, and not once more in fjall.
    pub blind: u64,
}

/// Whether a step of a walk would read the disk.
pub fn must_wait(core: &Core) -> bool {
    core.store_is_cold
}

/// About the keys that a whole walk of a namespace looks at, places of the table included.
pub fn cost(core: &Core, ns: NsId) -> usize {
    let table = match core.whole_order() {
        Some(_) => 0,
        None => core.order_cost().unwrap_or(core.table.places() as usize),
    };
    if core.count(ns) == 0 { 0 } else { core.count(ns) as usize + table / PLACES_PER_KEY }
}

/// A step of a walk through the keys of a namespace that begin alike.
pub struct Walk<'a> {
    router: &'a Router,
    ns: NsId,
    prefix: &'a [u8],
    now_ms: u64,
    /// Places of tables that it may still look at.
    places: usize,
    /// See [`Stop::blind`].
    blind: u64,
}

impl<'a> Walk<'a> {
    /// A step through the keys of a namespace that begin so. Of a prefix longer than what a stored key holds only the
    /// beginning counts.
    pub fn new(router: &'a Router, ns: NsId, prefix: &'a [u8], now_ms: u64) -> Self {
        let prefix = &prefix[..prefix.len().min(codec::MAX_INLINE)];
        Walk { router, ns, prefix, now_ms, places: PLACES, blind: 0 }
    }

    /// Another step begins.
    pub fn renew(&mut self) {
        self.places = PLACES;
    }

    /// Goes on through the keys of a shard until `visit` takes no more, with false, or as many places of the table have
    /// been looked at as one step may. Keys that are gone are visited too where fjall shows them, so that who counts
    /// visits bounds the work. Answers where to go on; `None` at the end.
    pub fn go_on(&mut self, core: &mut Core, from: &Stop, mut visit: impl FnMut(&Met) -> bool) -> Result<Option<Stop>> {
        meter::step(1)?;
        if !core.names.is_live(self.ns) || core.count(self.ns) == 0 {
            return Ok(None);
        }
        let after = from.after.as_deref();
        self.blind = from.blind;
        let table_from = match from.phase {
            Phase::Stored => None,
            Phase::Table(place) => Some(place),
            Phase::Merged => {
                let cost = core.order_cost().filter(|_| core.order.is_none()).unwrap_or(0);
                if cost > self.places && self.places < PLACES {
                    return Ok(Some(from.clone()));
                }
                self.places = self.places.saturating_sub(cost);
                core.need_order(self.now_ms, self.is_choosy(core));
                if let Some(order) = core.whole_order() {
                    let merge = Merge { core, order: Some(order), walk: self };
                    return merge.run(after, Phase::Merged, visit);
                }
                self.blind = core.blind.last();
                Some(0)
            }
        };
        if let Some(place) = table_from
            && let ControlFlow::Break(place) = self.table(core, place, after, &mut visit)
        {
            return Ok(Some(Stop { phase: Phase::Table(place), after: from.after.clone(), blind: self.blind }));
        }
        Merge { core, order: None, walk: self }.run(after, Phase::Stored, visit)
    }

    /// Whether going through the whole table would be long for what there is to be found.
    fn is_choosy(&self, core: &Core) -> bool {
        let places = core.table.places() as usize;
        let unstored = core.dirty.len() + core.in_flight.len();
        !self.prefix.is_empty() || core.count(self.ns) as usize * 4 < places || unstored * 8 < places
    }

    /// Visits what is in the table and not in fjall. Breaks with the place where to go on.
    fn table(
        &mut self,
        core: &Core,
        from: Index,
        after: Option<&[u8]>,
        visit: &mut impl FnMut(&Met) -> bool,
    ) -> ControlFlow<Index> {
        for place in from..core.table.places() {
            if self.places == 0 {
                return ControlFlow::Break(place);
            }
            self.places -= 1;
            if core.table.is_used(place + AHEAD) {
                prefetch(core.table.at(place + AHEAD).bytes.as_ptr());
            }
            let object = core.table.at(place);
            let new = core.table.is_used(place)
                && object.ns == self.ns
                && order::is_unstored(object)
                && object.is_live(self.now_ms)
                && object.key().starts_with(self.prefix)
                && after.is_none_or(|after| order::compare(object.key(), after).is_gt());
            if new && !visit(&Met::of(object, self.now_ms)) {
                return ControlFlow::Break(place);
            }
        }
        ControlFlow::Continue(())
    }
}

/// Both sources, or fjall alone, in the order of stored keys.
struct Merge<'a> {
    core: &'a Core,
    order: Option<&'a Order>,
    walk: &'a Walk<'a>,
}

impl Merge<'_> {
    fn run(&self, after: Option<&[u8]>, phase: Phase, mut visit: impl FnMut(&Met) -> bool) -> Result<Option<Stop>> {
        let &Walk { ns, prefix, now_ms, .. } = self.walk;
        let behind = after.filter(|after| *after >= prefix);
        if behind.is_some_and(|after| !after.starts_with(prefix)) {
            return Ok(None);
        }
        let (core, table) = (self.core, &self.core.table);
        let from = self.order.map(|order| order.from(table, ns, behind.unwrap_or(prefix), behind.is_none()));
        let begins_so = |index: &Index| table.at(*index).key().starts_with(prefix);
        let mut born = from.into_iter().flatten().take_while(begins_so).peekable();
        let mut stored = Stored::open(core, ns, prefix, behind)?;
        let mut last: Option<Met> = None;
        loop {
            meter::step(1)?;
            let born_first = match (born.peek(), &stored.next) {
                (None, None) => return Ok(None),
                (Some(&index), Some(shown)) => order::compare(table.at(index).key(), shown.stored_key()).is_le(),
                (born, _) => born.is_some(),
            };
            let met = if born_first {
                let Some(index) = born.next() else { return Ok(None) };
                let met = Met::of(table.at(index), now_ms);
                if stored.next.as_ref().is_some_and(|shown| shown.stored_key() == met.stored_key()) {
                    stored.advance()?;
                }
                met
            } else {
                let Some(found) = stored.next.take() else { return Ok(None) };
                stored.advance()?;
                found.current(core, self.walk)
            };
            if !visit(&met) {
                let after = last.map_or_else(|| after.map(Box::from), |last| Some(last.stored_key().into()));
                return Ok(Some(Stop { phase, after, blind: self.walk.blind }));
            }
            last = Some(met);
        }
    }
}

/// A metadata record that fjall shows.
struct StoredKey {
    key: Vec<u8>,
    long_form: Option<Vec<u8>>,
    meta: codec::Meta,
}

impl StoredKey {
    fn stored_key(&self) -> &[u8] {
        self.long_form.as_ref().unwrap_or(&self.key)
    }

    /// The key as it is now: the table knows better than fjall.
    fn current(self, core: &Core, walk: &Walk<'_>) -> Met {
        let &Walk { ns, now_ms, router, .. } = walk;
        let (kind, live) = match core.table.find(table_hash(router.hash(&self.key), ns), ns, &self.key) {
            Some(index) => {
                let object = core.table.at(index);
                let met = core.blind.birth(index).is_some_and(|birth| birth.number <= walk.blind);
                (object.kind, object.is_live(now_ms) && !met)
            }
            None => (Kind::from(self.meta.kind), !self.meta.expired(now_ms)),
        };
        Met { key: self.key, long_form: self.long_form, kind: if live { kind } else { Kind::Absent } }
    }
}

struct Stored {
    range: crate::store::Range,
    next: Option<StoredKey>,
}

impl Stored {
    fn open(core: &Core, ns: NsId, prefix: &[u8], after: Option<&[u8]>) -> Result<Self> {
        let mut range = codec::key::meta_prefix_range(ns, prefix);
        if let Some(after) = after {
            range.lower.clear();
            codec::key::meta_key_of_stored(ns, after, &mut range.lower);
            range.lower.push(0);
        }
        let range = core.partition.range(&range.lower, &range.upper).map_err(unreadable)?;
        let mut stored = Stored { range, next: None };
        stored.advance()?;
        Ok(stored)
    }

    fn advance(&mut self) -> Result {
        let Some(item) = self.range.next() else {
            self.next = None;
            return Ok(());
        };
        let (disk_key, value) = item.map_err(unreadable)?;
        let (meta, long_key, _) = codec::Meta::decode(&value).map_err(|e| storage(&disk_key, e))?;
        let codec::DiskKey::Meta { key, .. } = codec::key::decode_key(&disk_key).map_err(|e| storage(&disk_key, e))?
        else {
            return Err(storage(&disk_key, "no metadata record"));
        };
        let (key, long_form) = match long_key {
            Some(long_key) => (long_key.to_vec(), Some(key.to_vec())),
            None => (key.to_vec(), None),
        };
        self.next = Some(StoredKey { key, long_form, meta });
        Ok(())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
pub(crate) mod tests;
