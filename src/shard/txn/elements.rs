//! Collections: their elements, by physical key (group tag, then element as [`crate::codec::element`] makes it).
//!
//! | primitive | complete overlay | partial overlay |
//! |---|---|---|
//! | `element`, `put_element`, `take_element` | the overlay alone | what the overlay lacks is read from fjall first |
//! | `put_new`, `remove_known` | the overlay alone | the same: another element tells what the store has |
//! | `put_element_blind` | – | nothing is read |
//! | `elements` | the overlay alone | overlay and fjall merged, the overlay masks |
//! | `few_elements` | the overlay alone | the same, but the first of fjall's are read with no lock held |
//! | `rank`, `select`: [`super::order`] | sums of the overlay | the counted index, corrected by the overlay's sums |
//!
//! A small collection is read whole at its first touch and complete from then on. Size, form and extra belong to the
//! metadata, which a commit logs once however often they changed.

use std::ops::Bound;

use super::claim::fill_as;
pub use super::merged::{Elements, Piece};
use super::merged::{Side, Stored};
use super::undo::Undo;
use super::{Found, Tells, Txn};
use crate::codec::element::Group;
use crate::codec::{self, Extra, NsId, redo};
use crate::error::{Error, Result};
use crate::meter;
use crate::shard::memory::core::{Core, storage};
use crate::shard::memory::missing::{LOAD_MOST, Missing, missing, read_element, read_whole};
use crate::shard::memory::object::{Body, Kind};
use crate::shard::memory::overlay::{self, Entry, Key};
use crate::shard::memory::reads::Place;

/// Elements that are read ahead of who walks past them at most.
const FEW: u64 = 128;
/// What is read besides as many as are looked at, where elements in memory may mask some.
const SPARE: u64 = 16;

/// What an element is while fjall holds it and memory has a copy.
const CLEAN: u8 = overlay::state::MAYBE_STORED | overlay::state::BASE | overlay::state::NEXT;

/// Who watches a stream is not told of what becomes of its consumers.
#[inline]
fn tells(element: &[u8]) -> Tells {
    if Group::is_of_consumers(element) { Tells::Nobody } else { Tells::Everybody }
}

impl Txn<'_, '_> {
    /// Makes a key hold an empty collection, whatever it held before. Who leaves it empty removes it before the command ends.
    pub fn create(&mut self, ns: NsId, key: &[u8], kind: Kind, encoding: u8) -> Result<Found> {
        self.put_body(ns, key, kind, Body { encoding, ..Body::new() }, 0)
    }

    /// Makes a key hold this body, whatever it held before.
    pub fn put_body(&mut self, ns: NsId, key: &[u8], kind: Kind, body: Body, expire_ms: u64) -> Result<Found> {
        let (at, hash, index) = self.raw_find(ns, key)?;
        let at = self.claim(at, hash, index, ns, key, 0);
        let core = &mut *self.lease[at.at as usize];
        fill_as(core, self.set, at, kind, (self.now_ms, expire_ms));
        let object = core.table.at_mut(at.index);
        core.table_bytes -= object.mem_bytes();
        object.body = Some(Box::new(body));
        core.table_bytes += object.mem_bytes();
        self.set.undo.push(Undo::Body { at, body: None, dirty_bytes: 0 });
        let object = self.lease[at.at as usize].table.at(at.index);
        if let Some(meta) = object.meta() {
            self.set.push_put(ns, object.key(), &meta, b"");
        }
        self.touch(at);
        Ok(at)
    }

    /// The body of a found collection.
    #[inline]
    pub fn body(&self, at: Found) -> &Body {
        match &self.object(at).body {
            Some(body) => body,
            None => unreachable!("a collection has a body"),
        }
    }

    /// Number of elements as the metadata has it; 0 and meaningless where they are not counted (encode-version 1).
    #[inline]
    pub fn size(&self, at: Found) -> u64 {
        self.body(at).size
    }

    /// Changes what the metadata says of a body; the commit logs it.
    pub(in crate::shard) fn change_body(&mut self, at: Found, change: impl FnOnce(&mut Body)) {
        self.change_body_as(at, Tells::Everybody, change);
    }

    fn change_body_as(&mut self, at: Found, tells: Tells, change: impl FnOnce(&mut Body)) {
        let Some(body) = &mut self.lease[at.at as usize].table.at_mut(at.index).body else { return };
        let before = Undo::Meta { at, size: body.size, extra: body.extra, form: body.form };
        change(body);
        body.pending = true;
        self.set.has_pending = true;
        self.set.undo.push(before);
        self.touch_as(at, tells);
    }

    /// Counts elements that came or went.
    pub fn add_size(&mut self, at: Found, delta: i64) {
        if delta != 0 {
            // Below zero only if a part of the data was lost and the rest is not of one time.
            self.change_body(at, |body| body.size = body.size.saturating_add_signed(delta));
        }
    }

    /// Sets what the type adds to the metadata. Who watches the key is told by what is done to the elements.
    pub fn set_extra(&mut self, at: Found, extra: Extra) {
        if self.body(at).extra != extra {
            self.change_body_as(at, Tells::Nobody, |body| body.extra = extra);
        }
    }

    /// Sets what `OBJECT ENCODING` goes by.
    pub fn set_form(&mut self, at: Found, form: u8) {
        if self.body(at).form != form {
            self.change_body_as(at, Tells::Nobody, |body| body.form = form);
        }
    }

    /// Sets size, form and extra at once.
    #[inline]
    pub fn set_shape(&mut self, at: Found, size: u64, form: u8, extra: Extra) {
        self.change_body(at, |body| (body.size, body.form, body.extra) = (size, form, extra));
    }

    /// Whether a read of the store may go on here.
    pub(super) fn may_read(&self, core: &Core) -> Result {
        if core.store_is_cold && !self.may_block() { Err(Error::Cold) } else { Ok(()) }
    }

    /// The value of an element.
    #[inline]
    pub fn element(&mut self, at: Found, key: &[u8]) -> Result<Option<&[u8]>> {
        meter::step(1)?;
        if !self.body(at).overlay.complete {
            self.load_element(at, key)?;
        }
        Ok(self.body(at).overlay.get(key).and_then(Entry::value))
    }

    /// Brings an element into the overlay, if fjall has it and the overlay does not.
    #[cold]
    fn load_element(&mut self, at: Found, key: &[u8]) -> Result {
        if let Some(entry) = self.stored_element(at, key)? {
            self.admit(at, entry);
        }
        Ok(())
    }

    /// An element that fjall holds and the overlay lacks, as the overlay would hold it. A small collection is brought whole.
    #[cold]
    fn stored_element(&mut self, at: Found, key: &[u8]) -> Result<Option<Entry>> {
        match missing(self.object(at), key) {
            None => return Ok(None),
            Some(Missing::Whole) if self.load_whole(at)? || missing(self.object(at), key).is_none() => return Ok(None),
            Some(_) => {}
        }
        let core = &self.lease[at.at as usize];
        let object = core.table.at(at.index);
        let value = read_element(core, object, key, &mut self.set.reads)?.map_err(|e| storage(object.key(), e))?;
        Ok(value.map(|value| Entry::new(key, Some(&value), CLEAN)))
    }

    /// Takes an element that fjall holds into the overlay.
    fn admit(&mut self, at: Found, entry: Entry) {
        let core = &mut *self.lease[at.at as usize];
        let Some(body) = &mut core.table.at_mut(at.index).body else { return };
        let before = body.overlay.bytes();
        // It cannot leave before the command has ended.
        _ = meter::hold(entry.bytes());
        body.overlay.insert(entry);
        core.table_bytes = core.table_bytes + body.overlay.bytes() - before;
        core.admitted += 1;
    }

    /// Brings the elements from one bound on, below another, into the overlay, where it lacks them. There are `most`.
    pub fn load_range(&mut self, at: Found, lower: &[u8], upper: &[u8], most: u64) -> Result {
        let body = self.body(at);
        if body.overlay.complete || !body.maybe_stored {
            return Ok(());
        }
        let (prefix, (from, to)) = self.disk_range(at, Bound::Included(lower), Bound::Excluded(upper));
        let core = &self.lease[at.at as usize];
        let object = core.table.at(at.index);
        let records = self.set.reads.range(core, Place::range(from, to, most as usize))?;
        for (key, value) in &records.map_err(|e| storage(object.key(), e))? {
            let key = &key[prefix..];
            if self.body(at).overlay.get(key).is_none() {
                self.admit(at, Entry::new(key, Some(value), CLEAN));
            }
        }
        Ok(())
    }

    /// Has a small collection of which memory knows nothing read for who will go through it: a walk itself would wait for the
    /// disk, and so is not run on a network thread.
    pub fn warm(&mut self, ns: NsId, key: &[u8], kind: Kind) -> Result {
        if self.may_block() || !self.lease.iter().any(|core| core.store_is_cold) {
            return Ok(());
        }
        // There is nothing more of it to be read, and who looks at one element may not need it in the table.
        if self.is_brought_whole(ns, key) {
            return Ok(());
        }
        let (at, _, Some(index)) = self.raw_find(ns, key)? else { return Ok(()) };
        let found = Found { at, index };
        let object = self.object(found);
        if object.kind == kind && object.is_live(self.due_ms) && matches!(missing(object, b""), Some(Missing::Whole)) {
            self.load_whole(found)?;
        }
        Ok(())
    }

    /// Reads a small collection whole, unless it has more records than its size tells; whether it did.
    fn load_whole(&mut self, at: Found) -> Result<bool> {
        let core = &self.lease[at.at as usize];
        let object = core.table.at(at.index);
        let (prefix, records) = read_whole(core, object, &mut self.set.reads)?;
        let records = records.map_err(|e| storage(object.key(), e))?;
        if let Some(body) = &mut self.object_mut(at).body {
            // A write mostly follows.
            body.overlay.reserve(records.len() + records.len() / 8 + 2);
        }
        for (key, value) in &records {
            self.admit(at, Entry::new(&key[prefix..], Some(value), CLEAN));
        }
        let whole = records.len() <= LOAD_MOST.get();
        if let Some(body) = &mut self.object_mut(at).body {
            body.overlay.complete = whole;
        }
        Ok(whole)
    }

    /// Sets an element; whether it was there.
    #[inline]
    pub fn put_element(&mut self, at: Found, key: &[u8], value: &[u8]) -> Result<bool> {
        self.put_element_if(at, key, value, |_| true)
    }

    /// Adds an element unless it is there, whatever its value; whether it was there.
    #[inline]
    pub fn add_element(&mut self, at: Found, key: &[u8], value: &[u8]) -> Result<bool> {
        self.put_element_if(at, key, value, |_| false)
    }

    /// Sets an element, in the place of one that is there only if `replace` says so of its value; whether it was there.
    #[inline]
    pub fn put_element_if(
        &mut self,
        at: Found,
        key: &[u8],
        value: &[u8],
        replace: impl FnOnce(&[u8]) -> bool,
    ) -> Result<bool> {
        meter::step_through(value.len())?;
        let stored = if self.body(at).overlay.complete { None } else { self.stored_element(at, key)? };
        let Some(was) = stored else {
            return Ok(self.write_element(at, key, value, overlay::state::DIRTY, None, replace));
        };
        if was.value().is_some_and(replace) {
            self.lease[at.at as usize].admitted += 1;
            // It stays until the command has ended.
            _ = meter::hold(was.bytes());
            self.write_element(at, key, value, overlay::state::DIRTY | was.state, Some(was), |_| true);
        } else {
            self.admit(at, was);
        }
        Ok(true)
    }

    /// Sets an element that is not there, as another one says: the store is not asked.
    pub fn put_new(&mut self, at: Found, key: &[u8], value: &[u8]) -> Result {
        meter::step_through(value.len())?;
        let existed = self.write_element(at, key, value, overlay::state::DIRTY, None, |_| true);
        debug_assert!(!existed, "an element is there of which another one says that it is not");
        Ok(())
    }

    /// Sets an element without a look at what was there (encode-version 1).
    pub fn put_element_blind(&mut self, at: Found, key: &[u8], value: &[u8]) {
        let partial = !self.body(at).overlay.complete;
        let stored = if partial { overlay::state::MAYBE_STORED } else { 0 };
        self.write_element(at, key, value, overlay::state::DIRTY | stored, None, |_| true);
    }

    /// `stored`: what the store has in its place, where the overlay has nothing.
    fn write_element(
        &mut self,
        at: Found,
        key: &[u8],
        value: &[u8],
        state: u8,
        stored: Option<Entry>,
        replace: impl FnOnce(&[u8]) -> bool,
    ) -> bool {
        let core = &mut *self.lease[at.at as usize];
        let object = core.table.at_mut(at.index);
        let key_len = object.key_len as usize;
        let Some(body) = &mut object.body else { return false };
        let before = body.overlay.bytes();
        let mut existed = stored.is_some();
        // One search tells whether it is there and puts it. What the disk may hold stays known.
        let merge = |old: &Entry, new: &mut Entry| {
            existed = old.is_live();
            new.state |= old.state;
            old.value().is_none_or(replace)
        };
        let entry = Entry::new(key, Some(value), state);
        let bytes = entry.bytes();
        // What the overlay grows by cannot leave memory before the command has ended. A refusal ends it soon enough.
        _ = meter::hold(bytes);
        let old = body.overlay.merge(entry, merge).or(stored);
        if existed && old.is_none() {
            return true;
        }
        let owner = &object.bytes[..key_len];
        redo::encode_elem_put(key, value, self.set.redo.of_body(object.ns, owner, body.version));
        let after = body.overlay.bytes();
        core.table_bytes = core.table_bytes + after - before;
        core.dirty_bytes += bytes;
        core.count_less(old.as_ref().map_or(0, Entry::dirty_bytes));
        self.set.undo.push(match old {
            Some(was) => Undo::Element { at, was },
            None => Undo::NoElement { at, key: Key::from_slice(key) },
        });
        self.touch_as(at, tells(key));
        existed
    }

    /// Removes an element; whether it was there.
    #[inline]
    pub fn remove_element(&mut self, at: Found, key: &[u8]) -> Result<bool> {
        self.take_element(at, key, |_| ())
    }

    /// Removes an element that is there with this value, as another one says: the store is not asked.
    pub fn remove_known(&mut self, at: Found, key: &[u8], value: &[u8]) -> Result {
        if let Some(Missing::Element) = missing(self.object(at), key) {
            meter::step(1)?;
            self.mask(at, Entry::new(key, Some(value), CLEAN));
            return Ok(());
        }
        self.remove_element(at, key).map(drop)
    }

    /// Removes an element that fjall holds and the overlay lacks.
    fn mask(&mut self, at: Found, was: Entry) {
        let core = &mut *self.lease[at.at as usize];
        let object = core.table.at_mut(at.index);
        let key_len = object.key_len as usize;
        let Some(body) = &mut object.body else { return };
        let before = body.overlay.bytes();
        let removal = Entry::new(was.key(), None, was.state | overlay::state::DIRTY);
        let bytes = removal.bytes();
        _ = meter::hold(bytes);
        let owner = &object.bytes[..key_len];
        redo::encode_elem_delete(was.key(), self.set.redo.of_body(object.ns, owner, body.version));
        body.overlay.insert(removal);
        core.table_bytes = core.table_bytes + body.overlay.bytes() - before;
        core.dirty_bytes += bytes;
        core.admitted += 1;
        let tells = tells(was.key());
        // Without the removal the overlay knows as little of it as before.
        self.set.undo.push(Undo::NoElement { at, key: Key::from_slice(was.key()) });
        self.touch_as(at, tells);
    }

    /// Removes an element and hands its value to `take`; whether it was there.
    pub fn take_element(&mut self, at: Found, key: &[u8], take: impl FnOnce(&[u8])) -> Result<bool> {
        const TRACE: u8 = overlay::state::MAYBE_STORED | overlay::state::IN_FLIGHT;
        meter::step(1)?;
        if !self.body(at).overlay.complete
            && let Some(was) = self.stored_element(at, key)?
        {
            if let Some(value) = was.value() {
                take(value);
            }
            self.mask(at, was);
            return Ok(true);
        }
        let core = &mut *self.lease[at.at as usize];
        let object = core.table.at_mut(at.index);
        let key_len = object.key_len as usize;
        let Some(body) = &mut object.body else { return Ok(false) };
        let before = body.overlay.bytes();
        let Some(old) = body.overlay.remove(key) else { return Ok(false) };
        let Some(value) = old.value() else {
            body.overlay.insert(old);
            return Ok(false);
        };
        take(value);
        let owner = &object.bytes[..key_len];
        redo::encode_elem_delete(key, self.set.redo.of_body(object.ns, owner, body.version));
        let mut more = 0;
        if old.state & TRACE != 0 {
            let removal = Entry::new(key, None, old.state | overlay::state::DIRTY);
            more = removal.bytes();
            body.overlay.insert(removal);
        }
        core.table_bytes = core.table_bytes + body.overlay.bytes() - before;
        core.dirty_bytes += more;
        core.count_less(old.dirty_bytes());
        self.set.undo.push(Undo::Element { at, was: old });
        self.touch_as(at, tells(key));
        Ok(true)
    }

    /// The elements between two bounds in order, or from the last to the first. Bounds are whole elements or beginnings
    /// of some, group tag included; see [`whole_group`].
    pub fn elements(&self, at: Found, lower: Bound<&[u8]>, upper: Bound<&[u8]>, reverse: bool) -> Result<Elements<'_>> {
        let core = &self.lease[at.at as usize];
        let object = core.table.at(at.index);
        let body = self.body(at);
        let memory = Side { iter: body.overlay.range(lower, upper), next: None };
        let mut disk = None;
        if !body.overlay.complete && body.maybe_stored {
            self.may_read(core)?;
            let (prefix, (from, to)) = self.disk_range(at, lower, upper);
            let range = core.partition.range(&from, &to).map_err(|e| storage(object.key(), e))?;
            disk = Some((Side { iter: Stored::All(range), next: None }, prefix));
        }
        Ok(Elements { owner: object, memory, disk, reverse })
    }

    /// The same for who looks at `most` of them at most: where the store must not be waited for, they are read ahead, with no
    /// lock held.
    pub fn few_elements(
        &mut self,
        at: Found,
        (lower, upper): (Bound<&[u8]>, Bound<&[u8]>),
        reverse: bool,
        most: u64,
    ) -> Result<Elements<'_>> {
        let body = self.body(at);
        let in_memory = body.overlay.complete || !body.maybe_stored;
        if in_memory || most > FEW || self.may_block() || !self.lease[at.at as usize].store_is_cold {
            return self.elements(at, lower, upper, reverse);
        }
        if matches!(missing(self.object(at), b""), Some(Missing::Whole)) && self.load_whole(at)? {
            return self.elements(at, lower, upper, reverse);
        }
        // As many of the store's may be masked. If it turns out that these were not enough, the command runs where it may wait.
        let sums = self.body(at).overlay.sums();
        let masked = (sums.entries - sums.live).min(most + SPARE);
        let (prefix, (from, to)) = self.disk_range(at, lower, upper);
        let core = &self.lease[at.at as usize];
        let place = Place::range(from, to, (most + masked) as usize).reversed(reverse);
        let (records, all) = self.set.reads.piece(core, place)?;
        let memory = Side { iter: self.body(at).overlay.range(lower, upper), next: None };
        let disk = Side { iter: Stored::First(records.into_iter(), all), next: None };
        Ok(Elements { owner: self.object(at), memory, disk: Some((disk, prefix)), reverse })
    }

    /// Between which keys the elements between two bounds are in the store, and how long what these keys begin with is.
    fn disk_range(&self, at: Found, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> (usize, (Vec<u8>, Vec<u8>)) {
        let object = self.object(at);
        let mut prefix = Vec::with_capacity(object.key().len() + 16);
        codec::key::element_prefix(object.ns, object.key(), self.body(at).version, &mut prefix);
        (prefix.len(), disk_bounds(&prefix, lower, upper))
    }

    /// All elements of a group in order.
    pub fn group(&self, at: Found, group: Group) -> Result<Elements<'_>> {
        let (lower, upper) = whole_group(group);
        self.elements(at, Bound::Included(&lower), Bound::Excluded(&upper), false)
    }

    /// Removes a collection that has become empty; whether it did.
    pub fn remove_if_empty(&mut self, at: Found) -> bool {
        let empty = self.size(at) == 0;
        if empty {
            self.delete_found(at);
        }
        empty
    }
}

/// The bounds of a group: its elements lie from the first on, below the second.
pub const fn whole_group(group: Group) -> ([u8; 1], [u8; 1]) {
    ([group.tag()], [group.tag() + 1])
}

fn disk_bounds(prefix: &[u8], lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> (Vec<u8>, Vec<u8>) {
    let whole = |element: &[u8]| [prefix, element].concat();
    let from = match lower {
        Bound::Included(element) => whole(element),
        Bound::Excluded(element) => codec::key::successor(&whole(element)),
        Bound::Unbounded => prefix.to_vec(),
    };
    let to = match upper {
        Bound::Included(element) => codec::key::successor(&whole(element)),
        Bound::Excluded(element) => whole(element),
        Bound::Unbounded => whole(&[Group::Rank.tag()]),
    };
    (from, to)
}
