//! The shard table: open addressing from key to object, owned by the shard's core and used under its lock.
//!
//! | part | content |
//! |---|---|
//! | `slots` | a power of two of u64: 32 bits of hash, then index + 1 of the object (0: empty); linear probing |
//! | `old` | while the table grows, the half as many slots of before, emptied a few with each insert and each turn of the timer |
//! | `pages` | a slab of cache-line sized objects, in pages that never move: growing copies no object |
//!
//! A look-up costs one miss in `slots`, one in `objects` and one in the key's bytes; [`Slots::prefetch`] and its
//! kin let a pipeline pay for many look-ups at once. While the table grows, a key that has not moved yet costs a miss more.
//!
//! Invariants: every occupied object stands in exactly one slot, of `slots` or of `old`; removal shifts the probe chain back, so
//! there are no tombstones among `slots`; `old` gets no entry, and keeps a tombstone where one was. It is empty long before
//! `slots` are full: an insert moves [`MOVED_AN_INSERT`] of its slots, and of inserts there are three for each four of them.

use crate::codec::NsId;

use super::object::{Kind, Object};
use crate::util::prefetch::{LINE, prefetch, prefetch_to_write};

/// Position of an object in its table; stays valid until the object is removed.
pub type Index = u32;

/// Objects of one shard by (namespace, user key).
#[derive(Default)]
pub struct Table {
    slots: Vec<u64>,
    mask: usize,
    /// Slots of before the table grew that have not been looked at are those from `moved` on.
    old: Vec<u64>,
    moved: usize,
    /// What was `old`, all moved: who has time frees it.
    spent: Vec<u64>,
    pages: Vec<Vec<Object>>,
    places: usize,
    vacant: Vec<Index>,
    used: usize,
    hand: usize,
}

/// Where a table's slots are, or were.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Slots {
    /// The first of them.
    pub base: *const u64,
    /// Their number less one.
    pub mask: usize,
}

impl Slots {
    /// First step of a look-ahead: the slot. Nothing is read as far as the program can tell.
    #[inline]
    pub fn prefetch(self, hash: u32) {
        prefetch(self.base.wrapping_add(hash as usize & self.mask));
    }
}

/// The first lines of an object and of its key: where they are, or were.
#[derive(Debug, Clone, Copy)]
pub struct Lines {
    object: *const Object,
    bytes: *const u8,
}

impl Lines {
    /// Of no object.
    pub const NONE: Lines = Lines { object: std::ptr::null(), bytes: std::ptr::null() };

    /// Whether they are those of no object.
    #[inline]
    pub fn is_none(self) -> bool {
        self.object.is_null()
    }

    /// Fetches them. Nothing is read as far as the program can tell.
    #[inline]
    pub fn prefetch(self, to_write: bool) {
        prefetch_as(self.object, to_write);
        self.prefetch_bytes(to_write);
    }

    /// Fetches those of the key.
    #[inline]
    pub fn prefetch_bytes(self, to_write: bool) {
        prefetch_as(self.bytes, to_write);
        prefetch(self.bytes.wrapping_add(LINE));
        prefetch(self.bytes.wrapping_add(2 * LINE));
    }
}

#[inline]
fn prefetch_as<T>(at: *const T, to_write: bool) {
    if to_write { prefetch_to_write(at) } else { prefetch(at) }
}

const MIN_SLOTS: usize = 64;
/// Slots of before that an insert looks at while the table grows: a cache line of them.
const MOVED_AN_INSERT: usize = 8;
/// The same, of a turn of the timer's hold of the lock.
const MOVED_A_SLICE: usize = 4096;
/// Stands where an entry of `old` was; no entry equals it, as each has the number of an object.
const GONE: u64 = 1 << 32;
const PAGE_BITS: u32 = 10;
const PAGE: usize = 1 << PAGE_BITS;

/// Mixes the namespace in, so that the same key in many namespaces does not pile up in one probe chain.
#[inline]
pub fn table_hash(hash: u64, ns: NsId) -> u32 {
    (hash as u32) ^ ns.wrapping_mul(0x9e37_79b1)
}

impl Table {
    #[inline]
    fn home(&self, hash: u32) -> usize {
        hash as usize & self.mask
    }

    /// Objects in the table.
    pub fn len(&self) -> usize {
        self.used
    }

    /// Whether the table holds nothing.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Where the slots are, for who fetches one without the lock ([`Slots::prefetch`]).
    #[inline]
    pub fn slots(&self) -> Slots {
        Slots { base: self.slots.as_ptr(), mask: self.mask }
    }

    /// Second step of a look-ahead, after [`Slots::prefetch`]: the object that the slot probably names.
    #[inline]
    pub fn prefetch_object(&self, hash: u32, to_write: bool) -> Option<Index> {
        let index = self.probe(hash, |_| true)?;
        prefetch_as::<Object>(self.at(index), to_write);
        Some(index)
    }

    /// An object that will be written, if it still is in the table.
    #[inline]
    pub fn prefetch_to_stamp(&self, index: Index) {
        if (index as usize) < self.places {
            prefetch_to_write::<Object>(self.at(index));
        }
    }

    /// Third step: the key's bytes.
    #[inline]
    pub fn prefetch_bytes(&self, index: Index, to_write: bool) {
        self.lines_of(index).prefetch_bytes(to_write);
    }

    /// Where an object that is in use lies.
    #[inline]
    pub fn lines_of(&self, index: Index) -> Lines {
        let object = self.at(index);
        Lines { object, bytes: object.bytes.as_ptr() }
    }

    /// The object of a key, removals that wait for a flush included.
    #[inline]
    pub fn find(&self, hash: u32, ns: NsId, key: &[u8]) -> Option<Index> {
        self.probe(hash, |index| {
            let object = self.at(index);
            object.ns == ns && object.key() == key
        })
    }

    /// The first object of this hash that is the one.
    #[inline]
    fn probe(&self, hash: u32, is_it: impl Fn(Index) -> bool) -> Option<Index> {
        if self.slots.is_empty() {
            return None;
        }
        let mut at = self.home(hash);
        loop {
            let slot = self.slots[at];
            if slot == 0 {
                break;
            }
            let index = slot as u32 - 1;
            if (slot >> 32) as u32 == hash && is_it(index) {
                return Some(index);
            }
            at = (at + 1) & self.mask;
        }
        if self.old.is_empty() { None } else { self.probe_old(hash, is_it).map(|(_, index)| index) }
    }

    /// The same among the slots of before, with the slot's place.
    #[cold]
    fn probe_old(&self, hash: u32, is_it: impl Fn(Index) -> bool) -> Option<(usize, Index)> {
        let mask = self.old.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let slot = self.old[at];
            if slot == 0 {
                return None;
            }
            if (slot >> 32) as u32 == hash && slot != GONE && is_it(slot as u32 - 1) {
                return Some((at, slot as u32 - 1));
            }
            at = (at + 1) & mask;
        }
    }

    /// The object at an index that is in use.
    #[inline]
    pub fn at(&self, index: Index) -> &Object {
        &self.pages[index as usize >> PAGE_BITS][index as usize & (PAGE - 1)]
    }

    /// The object at an index that is in use.
    #[inline]
    pub fn at_mut(&mut self, index: Index) -> &mut Object {
        &mut self.pages[index as usize >> PAGE_BITS][index as usize & (PAGE - 1)]
    }

    /// The object at an index, if that names one now.
    #[inline]
    pub fn used_mut(&mut self, index: Index) -> Option<&mut Object> {
        let page = self.pages.get_mut(index as usize >> PAGE_BITS)?;
        page.get_mut(index as usize & (PAGE - 1)).filter(|object| object.key_len != VACANT)
    }

    /// Whether the index names an object now.
    pub fn is_used(&self, index: Index) -> bool {
        (index as usize) < self.places && self.at(index).key_len != VACANT
    }

    /// Adds a key that [`Table::find`] did not find.
    pub fn insert(&mut self, object: Object) -> Index {
        debug_assert!(self.find(object.hash, object.ns, object.key()).is_none(), "a key stands in the table once");
        if (self.used + 1) * 4 > self.slots.len() * 3 {
            self.grow();
        }
        if !self.old.is_empty() {
            self.move_slots(MOVED_AN_INSERT);
        }
        let hash = object.hash;
        let index = match self.vacant.pop() {
            Some(index) => {
                *self.at_mut(index) = object;
                index
            }
            None => {
                let index = self.places as Index;
                if self.places == self.pages.len() * PAGE {
                    self.pages.push(Vec::with_capacity(PAGE));
                }
                self.pages[self.places >> PAGE_BITS].push(object);
                self.places += 1;
                index
            }
        };
        self.place(hash, index);
        self.used += 1;
        index
    }

    fn place(&mut self, hash: u32, index: Index) {
        let mut at = self.home(hash);
        while self.slots[at] != 0 {
            at = (at + 1) & self.mask;
        }
        self.slots[at] = u64::from(hash) << 32 | u64::from(index + 1);
    }

    /// Twice the slots. What stands in those of now moves with the inserts to come and with the timer: many thousand entries,
    /// and as many pages of memory touched for the first time, would have everybody wait who wants the shard.
    fn grow(&mut self) {
        debug_assert!(self.old.is_empty(), "inserts move what is old before they fill what is new");
        self.move_slots(usize::MAX);
        let size = (self.slots.len() * 2).max(MIN_SLOTS);
        self.old = std::mem::replace(&mut self.slots, vec![0; size]);
        self.moved = 0;
        self.mask = size - 1;
    }

    /// Moves what the next slots of before hold.
    #[cold]
    fn move_slots(&mut self, slots: usize) {
        if self.old.is_empty() {
            return;
        }
        let end = self.old.len().min(self.moved.saturating_add(slots));
        for at in self.moved..end {
            let slot = self.old[at];
            if slot != 0 && slot != GONE {
                self.old[at] = GONE;
                self.place((slot >> 32) as u32, slot as u32 - 1);
            }
        }
        self.moved = end;
        if end == self.old.len() {
            self.spent = std::mem::take(&mut self.old);
        }
    }

    /// Moves the next slots of a table that grows; for who does so beside the inserts. True while there are more.
    pub fn move_slice(&mut self) -> bool {
        self.move_slots(MOVED_A_SLICE);
        !self.old.is_empty()
    }

    /// Slots of before that are not freed yet.
    #[cfg(test)]
    pub fn old_slots(&self) -> usize {
        self.old.len() + self.spent.len()
    }

    /// The slots that a grown table no longer needs, to be freed when the lock is given back: of a large one that takes a while.
    #[must_use]
    pub fn take_spent(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.spent)
    }

    /// Takes an object out; its index may be given to another key from then on.
    pub fn remove(&mut self, index: Index) -> Object {
        match self.slot_of(index) {
            Ok(at) => self.close_gap(at),
            Err(at) => self.old[at] = GONE,
        }
        self.used -= 1;
        self.vacant.push(index);
        std::mem::replace(self.at_mut(index), vacant())
    }

    /// Where an object that is in use stands: among `slots`, or (an error) among `old`.
    fn slot_of(&self, index: Index) -> Result<usize, usize> {
        let hash = self.at(index).hash;
        let mut at = self.home(hash);
        while self.slots[at] as u32 != index + 1 {
            if self.slots[at] == 0 {
                let old = if self.old.is_empty() { None } else { self.probe_old(hash, |other| other == index) };
                let Some((at, _)) = old else { unreachable!("an object stands in a slot") };
                return Err(at);
            }
            at = (at + 1) & self.mask;
        }
        Ok(at)
    }

    /// Empties a slot, and moves back what stands behind it because of it.
    fn close_gap(&mut self, mut gap: usize) {
        let mut at = gap;
        loop {
            at = (at + 1) & self.mask;
            let slot = self.slots[at];
            if slot == 0 {
                break;
            }
            let home = self.home((slot >> 32) as u32);
            // The entry may move into the gap only if its home does not lie between gap and itself.
            if at.wrapping_sub(home) & self.mask >= at.wrapping_sub(gap) & self.mask {
                self.slots[gap] = slot;
                gap = at;
            }
        }
        self.slots[gap] = 0;
    }

    /// The next object under the clock's hand; `None` for a vacant place.
    pub fn turn_hand(&mut self) -> Option<Index> {
        if self.places == 0 {
            return None;
        }
        self.hand = (self.hand + 1) % self.places;
        let index = self.hand as Index;
        self.is_used(index).then_some(index)
    }

    /// Places to walk: every index below it is an object or vacant.
    pub fn places(&self) -> Index {
        self.places as Index
    }

    /// All objects, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (Index, &Object)> {
        self.pages.iter().flatten().enumerate().map(|(i, o)| (i as Index, o)).filter(|(_, o)| o.key_len != VACANT)
    }
}

/// Marks a vacant place; no key is that long.
const VACANT: u32 = u32::MAX;

fn vacant() -> Object {
    Object {
        bytes: Vec::new(),
        body: None,
        lsn: 0,
        expire_ms: 0,
        hash: 0,
        key_len: VACANT,
        ns: 0,
        kind: Kind::Absent,
        state: 0,
        used: 0,
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn object(key: &[u8], hash: u32) -> Object {
        Object { bytes: key.to_vec(), key_len: key.len() as u32, hash, kind: Kind::String, ..vacant() }
    }

    #[test]
    fn the_hand_finds_nothing_in_an_empty_table() {
        assert_eq!(Table::default().turn_hand(), None);
    }

    #[test]
    fn random_inserts_and_removals_equal_a_map() {
        let mut table = Table::default();
        let mut model: HashMap<Vec<u8>, Index> = HashMap::new();
        let mut seed = 7u64;
        for _ in 0..200_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let key = format!("k{}", (seed >> 33) % 700).into_bytes();
            // Few distinct hashes: long probe chains are what can go wrong.
            let hash = ((seed >> 33) % 700 % 97) as u32;
            match table.find(hash, 0, &key) {
                Some(index) => {
                    assert_eq!(model.remove(&key), Some(index));
                    assert_eq!(table.remove(index).key(), key);
                }
                None => {
                    assert!(!model.contains_key(&key));
                    let index = table.insert(object(&key, hash));
                    model.insert(key, index);
                }
            }
            assert_eq!(table.len(), model.len());
        }
        assert_eq!(table.iter().count(), model.len());
        for (key, index) in model {
            let hash = table.at(index).hash;
            assert_eq!(table.at(index).key(), key);
            assert_eq!(table.prefetch_object(hash, false).map(|index| table.at(index).hash), Some(hash));
        }
    }

    #[test]
    fn a_table_that_grows_moves_a_few_slots_with_each_insert() {
        let mut table = Table::default();
        let (mut waiting, mut grown) = (0, 0);
        for n in 0..100_000u32 {
            let slots = table.slots.len();
            table.insert(object(&n.to_le_bytes(), n.wrapping_mul(0x9e37_79b1)));
            if table.slots.len() > slots {
                assert_eq!((waiting, table.old.len()), (0, slots), "what was before had been emptied long ago");
                grown += 1;
                waiting = slots;
            }
            let now = table.old.len().saturating_sub(table.moved);
            assert!(waiting - now <= MOVED_AN_INSERT, "{} slots in one insert", waiting - now);
            waiting = now;
        }
        assert_eq!((grown, table.slots.len()), (13, 64 << 12));
    }

    #[test]
    fn keys_are_found_wherever_they_stand_while_a_table_grows() {
        let mut table = Table::default();
        let (key, hash) = (|n: u32| n.to_le_bytes(), |n: u32| n.wrapping_mul(0x9e37_79b1));
        (0..=768).for_each(|n| _ = table.insert(object(&key(n), hash(n))));
        assert_eq!((table.slots.len(), table.old.len(), table.moved), (2048, 1024, MOVED_AN_INSERT));
        // Half of them go: of those that stand where they did, and of the others.
        for n in (0..=768).step_by(2) {
            let index = table.find(hash(n), 0, &key(n)).unwrap();
            assert_eq!(table.remove(index).key(), key(n));
            assert_eq!(table.find(hash(n), 0, &key(n)), None);
        }
        let odd = |table: &Table| {
            (0..=768).all(|n| {
                let found = table.find(hash(n), 0, &key(n)).map(|index| table.at(index).key() == key(n));
                found == (n % 2 == 1).then_some(true)
            })
        };
        assert!(odd(&table));
        assert!(!table.move_slice(), "it was a small one");
        assert!(odd(&table) && table.old.is_empty());
        assert_eq!((table.take_spent().len(), table.take_spent().len()), (1024, 0));
        let stand = table.slots.iter().filter(|&&slot| slot != 0).count();
        assert_eq!((stand, table.len()), (384, 384), "each in one slot");
    }

    #[test]
    fn namespaces_do_not_mix() {
        let mut table = Table::default();
        let a = table.insert(object(b"k", 1));
        let b = table.insert(Object { ns: 1, ..object(b"k", 1) });
        assert_eq!((table.find(1, 0, b"k"), table.find(1, 1, b"k")), (Some(a), Some(b)));
        assert_eq!(table.find(1, 2, b"k"), None);
    }
}
