//! Blind keys: overwritten while nobody looked at what fjall holds of them.
//!
//! A command that overwrites a key whatever it holds answers nothing from its record, and does not wait for one. What else
//! the record is good for comes later, for many keys at once and in their order: they are *sighted*
//! ([`crate::shard::background::sight`]), before a flush carries them.
//!
//! | | with the record at hand | blind |
//! |---|---|---|
//! | keys of the namespace | as many as before | one more, until sighting finds that there was one |
//! | garbage record of the old body | in the commit | in a record of its own, when sighted |
//! | old records in the expiry index | the next flush replaces them | the same, once sighting has found them |
//! | tombstone, should the key be removed | yes | yes: the object is `MAYBE_STORED` from birth |
//!
//! # Why that is sound
//! **What fjall holds stays what it is** as long as the key is blind. Only a flight that carries the key changes its record,
//! and none carries a blind one. An object stays blind until sighted, whatever else becomes of it: removed, made a
//! collection, made again.
//!
//! **A crash.** The log says of a put that it was blind, and gives it a number. One record says up to which number a
//! shard's are sighted, together with the count as it is then; the garbage is logged before. It is durable before an
//! ingestion brings any of them, as every flight syncs the log up to the last commit of its shard (rule 1). So a replay either
//! comes to that record, and looks at nothing; or nothing of what was overwritten has changed in fjall, and is looked at
//! then. A replay that itself flushes leaves out what is blind. Where it finds the key in its table when it was overwritten,
//! it knows by that whether there was one, and not by fjall, which may be of another time.
//!
//! **The count** is never too low. Who must know it exactly has everything sighted, and as long as he waits no other key
//! becomes blind ([`Counting`]).
//!
//! **A rollback** takes the object away, and all of this with it. So does the end of a namespace; its count goes with it.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use super::core::Core;
use super::object::{Kind, state};
use super::table::Index;
use crate::codec::NsId;

/// Memory that a blind key takes beside its object.
pub const BLIND_BYTES: usize = 40;

type Map<K, V> = HashMap<K, V, foldhash::fast::RandomState>;

/// How a key became blind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Birth {
    /// They are numbered in the shard, from 1 on.
    pub number: u64,
    /// Whether there was a key, if that is known without fjall.
    pub existed: Option<bool>,
}

/// Keys that are blind, by their places in the table.
#[derive(Debug, Default, Clone)]
pub struct Births {
    at: Map<Index, Birth>,
    /// How many of each namespace.
    of: Map<NsId, usize>,
}

impl Births {
    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (Index, Birth)> + '_ {
        self.at.iter().map(|(&index, &birth)| (index, birth))
    }

    fn len(&self) -> usize {
        self.at.len()
    }

    fn insert(&mut self, index: Index, ns: NsId, birth: Birth) {
        if self.at.insert(index, birth).is_none() {
            *self.of.entry(ns).or_default() += 1;
        }
    }

    fn remove(&mut self, index: Index, ns: NsId) -> bool {
        let known = self.at.remove(&index).is_some();
        if known && let Some(of_ns) = self.of.get_mut(&ns) {
            *of_ns -= 1;
        }
        known
    }
}

/// As long as it lives no key becomes blind: somebody waits for an exact count.
pub struct Counting(Arc<AtomicUsize>);

impl Drop for Counting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The blind keys of a shard.
#[derive(Debug, Default)]
pub struct Blind {
    /// The highest number that was given.
    last: u64,
    /// Those that nobody is sighting yet.
    young: Births,
    /// Those that somebody is, or was and did not end.
    sought: Option<Arc<Births>>,
    /// The ones among them whose objects have left the table since.
    gone: HashSet<Index, foldhash::fast::RandomState>,
    /// Held by whoever is sighting.
    under_way: Weak<()>,
    counting: Arc<AtomicUsize>,
}

impl Blind {
    /// Of one engine's shards, which are counted together.
    pub fn new(counting: Arc<AtomicUsize>) -> Blind {
        Blind { counting, ..Blind::default() }
    }

    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.young.at.is_empty() && self.sought.is_none()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.young.len() + self.sought.as_ref().map_or(0, |sought| sought.len() - self.gone.len())
    }

    /// Those of a namespace.
    pub fn of(&self, ns: NsId) -> u64 {
        let of = |births: &Births| births.of.get(&ns).copied().unwrap_or(0);
        (of(&self.young) + self.sought.as_deref().map_or(0, of)) as u64
    }

    /// Whether a key may become blind.
    pub fn may_be(&self) -> bool {
        self.counting.load(Ordering::SeqCst) == 0
    }

    /// How the object at a place became blind, if it is.
    #[inline]
    pub fn birth(&self, index: Index) -> Option<Birth> {
        if self.is_empty() {
            return None;
        }
        self.young.at.get(&index).or_else(|| self.sought(index)).copied()
    }

    fn sought(&self, index: Index) -> Option<&Birth> {
        self.sought.as_ref()?.at.get(&index).filter(|_| !self.gone.contains(&index))
    }

    /// Whether the object at a place is one of those that are being sighted.
    pub fn is_sought(&self, index: Index) -> bool {
        self.sought(index).is_some()
    }

    /// The highest number that was given.
    pub fn last(&self) -> u64 {
        self.last
    }
}

/// The right to count exactly, for a while.
pub fn counting(counter: &Arc<AtomicUsize>) -> Counting {
    counter.fetch_add(1, Ordering::SeqCst);
    Counting(counter.clone())
}

impl Core {
    /// The object at a place becomes blind; its number.
    pub fn set_blind(&mut self, index: Index) -> u64 {
        let number = self.blind.last + 1;
        self.set_blind_as(index, Birth { number, existed: None });
        number
    }

    /// The same, as the log has it.
    pub fn set_blind_as(&mut self, index: Index, birth: Birth) {
        let object = self.table.at_mut(index);
        object.state |= state::MAYBE_STORED;
        let ns = object.ns;
        self.blind.last = self.blind.last.max(birth.number);
        let before = self.blind.young.len();
        self.blind.young.insert(index, ns, birth);
        self.table_bytes += (self.blind.young.len() - before) * BLIND_BYTES;
    }

    /// The object at a place leaves the table.
    pub(super) fn forget_blind(&mut self, index: Index, ns: NsId) {
        let blind = &mut self.blind;
        if blind.is_empty() {
            return;
        }
        if blind.young.remove(index, ns) || blind.sought(index).is_some() && blind.gone.insert(index) {
            self.table_bytes -= BLIND_BYTES;
        }
        if blind.young.at.is_empty() {
            // What many of them took, as when their database is emptied.
            blind.young = Births::default();
        }
    }

    /// Those with a number up to this one are sighted; the next ones are above. In a replay.
    pub fn sighted(&mut self, number: u64) {
        self.blind.last = self.blind.last.max(number);
        let young = &mut self.blind.young;
        let before = young.len();
        let table = &self.table;
        let over: Vec<Index> =
            young.iter().filter(|(_, birth)| birth.number <= number).map(|(index, _)| index).collect();
        over.iter().for_each(|&index| _ = young.remove(index, table.at(index).ns));
        self.table_bytes -= (before - young.len()) * BLIND_BYTES;
    }

    /// Begins sighting those that are blind by now, up to the number that comes along; `None` while somebody else is at it.
    /// The caller drops `_token` when he has ended.
    pub fn seek_blind(&mut self) -> Option<(Arc<()>, Arc<Births>, u64)> {
        let blind = &mut self.blind;
        if blind.under_way.strong_count() > 0 {
            return None;
        }
        let token = Arc::new(());
        blind.under_way = Arc::downgrade(&token);
        if let Some(left) = blind.sought.take() {
            // Somebody began and did not end.
            let gone = std::mem::take(&mut blind.gone);
            for (index, birth) in left.iter().filter(|(index, _)| !gone.contains(index)) {
                blind.young.insert(index, self.table.at(index).ns, birth);
            }
        }
        let births = Arc::new(std::mem::take(&mut blind.young));
        blind.sought = (births.len() > 0).then(|| births.clone());
        Some((token, births, blind.last))
    }

    /// They are sighted.
    pub fn end_seeking(&mut self) {
        self.table_bytes -=
            self.blind.sought.as_ref().map_or(0, |sought| sought.len() - self.blind.gone.len()) * BLIND_BYTES;
        // Whoever sought them has them still: the last frees them, without the lock.
        self.blind.sought = None;
        self.blind.gone = HashSet::default();
    }

    /// What blind keys and those behind them add to the counts: to keys that fjall shows beside them, and to the objects of
    /// those of which it is known whether there was a key.
    pub fn blind_counts(&self) -> Vec<(NsId, i64)> {
        let sought = self.blind.sought.iter().flat_map(|sought| sought.iter());
        let all = self.blind.young.iter().chain(sought.filter(|(index, _)| !self.blind.gone.contains(index)));
        let count = |(index, birth): (Index, Birth)| {
            let object = self.table.at(index);
            (object.ns, i64::from(birth.existed.unwrap_or(object.kind != Kind::Absent)))
        };
        all.map(count).collect()
    }

    /// Keys of a namespace, about: blind ones are taken to have been there, as the filter says that they may.
    pub fn count_about(&self, ns: NsId) -> u64 {
        self.count(ns).saturating_sub(self.blind.of(ns))
    }
}
