//! The flush: changed records on their way to fjall, sorted, in bulk.
//!
//! | step | under the shard's lock |
//! |---|---|
//! | [`Gather::begin`]: the list of dirty objects becomes the list in flight | once, short |
//! | [`Gather::slice`]: encode objects, mark them `IN_FLIGHT` and no longer `DIRTY` | per slice of 128 |
//! | [`Gather::end`]: raw records and counts | once |
//! | [`Flight::prepare`]: counted indexes follow, all is sorted; sync of the log, ingestion | no |
//! | [`Flight::settle`]: what did not change meanwhile turns clean, removals leave the table | per slice |
//!
//! A collection with many changed elements is gathered in several slices, its metadata last. Between two of them it may
//! change: fjall then receives a mixture, which only the log's records from after the flush began make whole. They are
//! there, as those segments stay; and elements are absolute records, so that replaying them over the mixture is right.
//!
//! Invariants: an object is gathered with its metadata, its changed elements and its expiry record in one flight; before
//! an ingestion finishes the log is synced up to the highest LSN gathered (rule 1); an object turns clean only if it was
//! not changed since it was gathered (rule 2); a failed ingestion turns everything dirty again.

use crate::codec::element::Group;
use crate::codec::{self, ExpiryKind};
use crate::log::Lsn;
use crate::store::{Partition, StoreError};
use crate::util::scale::Scaled;

use crate::shard::memory::core::Core;
use crate::shard::memory::object::{Kind, Object, state};
use crate::shard::memory::overlay::{self, Key};
use crate::shard::memory::records::{Records, Span};
use crate::shard::memory::table::Index;
use crate::shard::rank;

/// Records encoded or settled per hold of the shard's lock.
pub const SLICE: Scaled<usize> = Scaled::new(128).in_unit_tests(8);
/// A record whose value is longer counts for several.
const ENTRY_BYTES: usize = 2 << 10;

/// An object in flight.
struct Entry {
    index: Index,
    /// Metadata was put, not removed.
    put: bool,
}

/// A version of a collection with elements in flight.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Carried {
    index: Index,
    version: u64,
}

/// An element in flight.
struct ElementEntry {
    /// The end of its record's key.
    key: Span,
    /// Its collection's number in [`Flight::bodies`].
    body: u32,
}

/// What a flight does to the counted elements of one version of a collection.
struct Counted {
    /// What the disk keys of its elements begin with.
    prefix: Vec<u8>,
    group: Group,
    /// Elements once the flight has landed.
    size: u64,
    /// Elements that fjall holds from now on (+1) or no more (-1), in order.
    changes: Vec<(Span, i8)>,
}

/// A collection of which more elements wait for the next slice.
struct Part {
    index: Index,
    version: u64,
    from: Key,
    /// What its counted elements do, where they are counted.
    counted: Option<Counted>,
}

/// Everything one shard gives to one ingestion.
#[derive(Default)]
pub struct Flight {
    records: Records,
    entries: Vec<Entry>,
    elements: Vec<ElementEntry>,
    bodies: Vec<Carried>,
    raw: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    /// Collections whose counted index follows.
    counted: Vec<Counted>,
    counts: Vec<codec::NsId>,
    /// Stands in the root of each counted index that the flight changes.
    generation: u64,
    /// Where the records without an object begin.
    raw_from: usize,
    /// The earliest time put into the expiry index.
    earliest_ms: Option<u64>,
    /// The first slice has been settled.
    settling: bool,
    /// The highest LSN of anything gathered.
    pub highest: Lsn,
}

/// Collects a shard's flight slice by slice.
pub struct Gather {
    flight: Flight,
    next: usize,
    part: Option<Part>,
    key: Vec<u8>,
}

impl Gather {
    /// Starts: everything dirty now is to be gathered.
    pub fn begin(core: &mut Core) -> Self {
        debug_assert!(core.in_flight.is_empty(), "one flush at a time");
        // What a command has left that failed, or one in slices is building, is in the log alone, whose segments this flush may
        // delete.
        let staged: Vec<_> = core.staged.lock().iter().map(|(staged, _)| staged.record_key()).collect();
        for record in staged {
            core.put_raw(record, Some(Vec::new()));
        }
        core.in_flight = std::mem::take(&mut core.dirty);
        core.flight_bytes = std::mem::take(&mut core.dirty_bytes);
        let flight = Flight { records: Records::with_capacity(core.flight_bytes), ..Flight::default() };
        Gather { flight, next: 0, part: None, key: Vec::new() }
    }

    /// Encodes the next objects. False once there are no more.
    pub fn slice(&mut self, core: &mut Core) -> bool {
        let mut budget = SLICE.get();
        while budget > 0 {
            if let Some(part) = self.part.take() {
                self.elements(core, part, &mut budget);
            } else if self.next < core.in_flight.len() {
                let index = core.in_flight[self.next];
                self.next += 1;
                budget -= 1;
                self.object(core, index, &mut budget);
            } else {
                return false;
            }
        }
        true
    }

    /// Begins with an object; its elements, if they are no part of its metadata, come before that.
    fn object(&mut self, core: &mut Core, index: Index, budget: &mut usize) {
        // A place that was given to another key stands in the list twice. What was changed since it was gathered waits
        // for the next flush.
        if !core.table.is_used(index)
            || core.table.at(index).state & (state::QUEUED | state::IN_FLIGHT) != state::QUEUED
        {
            return;
        }
        if core.blind.birth(index).is_some() && core.names.is_live(core.table.at(index).ns) {
            // It became so since this shard's turn began: the next flush, whose log has all of it.
            core.put_off(index);
            return;
        }
        let object = core.table.at_mut(index);
        object.state &= !state::QUEUED;
        if object.state & state::DIRTY == 0 {
            return;
        }
        let forgotten = object.kind == Kind::Absent && object.state & state::MAYBE_STORED == 0;
        if forgotten || !core.names.is_live(object.ns) {
            core.abandon(index);
            return;
        }
        if object.kind != Kind::Absent {
            core.add_member(index);
        }
        let object = core.table.at_mut(index);
        object.state = object.state & !state::DIRTY | state::IN_FLIGHT | state::MAYBE_STORED;
        let packed = object.is_to_be_packed();
        match &mut object.body {
            Some(body) if packed => {
                *budget = budget.saturating_sub(body.overlay.len());
                body.overlay.wash();
                self.finish(core, index, true);
            }
            Some(body) => {
                if !body.maybe_stored {
                    // What was packed with the metadata is no longer there.
                    body.overlay.stain();
                }
                self.part = Some(Part::of(object, index));
            }
            None => self.finish(core, index, false),
        }
    }

    /// Encodes a collection's next changed elements, and its metadata once there are no more.
    fn elements(&mut self, core: &mut Core, mut part: Part, budget: &mut usize) {
        let object = core.table.at_mut(part.index);
        if object.body.as_ref().is_none_or(|body| body.version != part.version) {
            // Removed, and perhaps made again, between two slices: what was gathered is garbage, and noted so.
            self.flight.counted.extend(part.counted.take().filter(|counted| !counted.changes.is_empty()));
            part = match &object.body {
                None => return self.finish(core, part.index, false),
                Some(_) => Part::of(object, part.index),
            };
        }
        let (ns, key_len) = (object.ns, object.key_len as usize);
        let Some(body) = &mut object.body else { return };
        let version = body.version;
        let Gather { flight, key: disk_key, .. } = self;
        let carried = Carried { index: part.index, version };
        if flight.bodies.last() != Some(&carried) {
            flight.bodies.push(carried);
        }
        let number = flight.bodies.len() as u32 - 1;
        let (mut gathered, most) = (0, *budget);
        let next = body.overlay.visit_dirty(&part.from, most, |element| {
            disk_key.clear();
            codec::key::element_key(ns, &object.bytes[..key_len], version, element.key(), disk_key);
            let key = flight.records.push(disk_key, element.value()).tail(element.key().len());
            flight.elements.push(ElementEntry { key, body: number });
            if let Some(counted) = &mut part.counted {
                counted.note(element, key);
            }
            element.state = element.state & !(overlay::state::DIRTY | overlay::state::NEXT)
                | overlay::state::IN_FLIGHT
                | overlay::state::MAYBE_STORED;
            if element.is_live() {
                element.state |= overlay::state::NEXT;
            }
            gathered += 1;
            let cost = 1 + element.value().map_or(0, <[u8]>::len) / ENTRY_BYTES;
            *budget = budget.saturating_sub(cost);
            cost
        });
        body.maybe_stored |= gathered > 0;
        match next {
            Some(from) => self.part = Some(Part { from, ..part }),
            None => {
                if let Some(mut counted) = part.counted.filter(|counted| !counted.changes.is_empty()) {
                    counted.size = body.size;
                    self.flight.counted.push(counted);
                }
                self.finish(core, part.index, false);
            }
        }
    }

    /// Ends with an object: metadata, perhaps with the elements, and expiry record.
    fn finish(&mut self, core: &mut Core, index: Index, packed: bool) {
        let object = core.table.at_mut(index);
        self.flight.highest = self.flight.highest.max(object.lsn);
        let changed = object.body.as_ref().is_some_and(|body| body.overlay.sums().dirty > 0);
        self.metadata(core, index, packed);
        if changed {
            core.touch_dirty(index);
        }
    }

    fn metadata(&mut self, core: &mut Core, index: Index, packed: bool) {
        let object = core.table.at(index);
        self.key.clear();
        codec::key::meta_key(object.ns, object.key(), &mut self.key);
        let put = object.kind != Kind::Absent;
        match put {
            false => self.flight.records.push(&self.key, None),
            true => {
                let long_key = codec::is_long(object.key()).then(|| object.key());
                self.flight.records.push_with(&self.key, |out| object.encode(packed, long_key, out))
            }
        };
        self.flight.entries.push(Entry { index, put });
        self.expiry_records(core, index);
    }

    /// Brings fjall's expiry index in line with the object.
    fn expiry_records(&mut self, core: &mut Core, index: Index) {
        let object = core.table.at(index);
        let now = if object.kind == Kind::Absent { 0 } else { object.expire_ms };
        let old = core.stored_ttl.get(&index).copied().unwrap_or(0);
        self.expiry_record(object, ExpiryKind::Key, old, now);
        let (due, listed) = (object.fields_due_ms(), core.fields.stored_ms(index));
        self.expiry_record(object, ExpiryKind::Field, listed, due);
        core.fields.set_stored(index, due);
        if now != 0 {
            core.stored_ttl.insert(index, now);
        } else if old != 0 {
            core.stored_ttl.remove(&index);
        }
    }

    /// Replaces a record of the expiry index; 0: none.
    fn expiry_record(&mut self, object: &Object, kind: ExpiryKind, old: u64, now: u64) {
        if old != now && old != 0 {
            self.key.clear();
            codec::key::expiry_key(old, kind, object.ns, object.key(), &mut self.key);
            self.flight.records.push(&self.key, None);
            // Nothing else would remove it if this flush fails.
            self.flight.raw.push((self.key.clone(), None));
        }
        if now != 0 {
            self.key.clear();
            codec::key::expiry_key(now, kind, object.ns, object.key(), &mut self.key);
            self.flight.records.push(&self.key, Some(b""));
            self.flight.earliest_ms = Some(self.flight.earliest_ms.map_or(now, |earliest| earliest.min(now)));
        }
    }

    /// Takes the records without an object along.
    pub fn end(mut self, core: &mut Core) -> Flight {
        core.gathers += 1;
        self.flight.generation = core.generation + core.gathers;
        core.flying = Some(self.flight.generation);
        self.flight.highest = self.flight.highest.max(core.last_lsn);
        self.flight.raw_from = self.flight.records.size_bytes();
        core.garbage.gathered();
        core.dead_names.gathered();
        for (key, value) in std::mem::take(&mut core.raw) {
            self.flight.records.push(&key, value.as_deref());
            self.flight.raw.push((key, value));
        }
        for ns in std::mem::take(&mut core.dirty_counts) {
            self.key.clear();
            codec::key::count_key(ns, &mut self.key);
            self.flight.records.push(&self.key, Some(&codec::key::count_value(core.count(ns))));
            self.flight.counts.push(ns);
        }
        if self.flight.is_empty() {
            // The partition does not reach it.
            self.flight.highest = 0;
        } else {
            // It never goes back: after a start without records in the log, nothing gathered need have an LSN.
            self.flight.highest = self.flight.highest.max(core.stored_lsn);
            self.key.clear();
            codec::key::flushed_key(&mut self.key);
            self.flight
                .records
                .push(&self.key, Some(&codec::key::flushed_value(self.flight.highest, core.partition.owner())));
        }
        self.flight
    }
}

impl Part {
    /// All of a collection.
    fn of(object: &Object, index: Index) -> Part {
        let version = object.body.as_ref().map_or(0, |body| body.version);
        Part { index, version, from: Key::new(), counted: Counted::of(object) }
    }
}

impl Counted {
    /// Of a collection whose elements are counted.
    fn of(object: &Object) -> Option<Counted> {
        let group = object.counted_group()?;
        let mut prefix = Vec::new();
        codec::key::element_prefix(object.ns, object.key(), object.body.as_ref()?.version, &mut prefix);
        Some(Counted { prefix, group, size: 0, changes: Vec::new() })
    }

    /// Notes an element on its way.
    #[inline]
    fn note(&mut self, element: &overlay::Entry, span: Span) {
        let (key, now, before) = (element.key(), element.is_live(), element.state & overlay::state::BASE != 0);
        if now != before && key.first() == Some(&self.group.tag()) {
            self.changes.push((span, i8::from(now) - i8::from(before)));
        }
    }
}

impl Flight {
    /// Whether there is nothing to ingest.
    pub fn is_empty(&self) -> bool {
        self.records.len() == 0
    }

    /// Number of records.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Adds the counters that follow from the elements, and sorts. Reads fjall: not under the shard's lock, and with no
    /// other flight under way.
    pub fn prepare(&mut self, partition: &Partition) -> Result<(), StoreError> {
        for counted in std::mem::take(&mut self.counted) {
            let changes: Vec<_> = counted.changes.iter().map(|&(key, by)| (self.records.key(key), by)).collect();
            let mut counters = Records::default();
            let mut push = |key: &[u8], value: Option<&[u8]>| {
                counters.push(key, value);
            };
            let Counted { prefix, group, size, .. } = &counted;
            rank::update(partition, prefix, *group, self.generation, *size, &changes, &mut push)?;
            self.records.append(&counters);
        }
        // Of records with the same key an object's stays, as it knows best: a tombstone for an expiry record that nobody
        // owned must not hide the one of an object that has taken the same time since.
        self.records.sort(self.raw_from);
        Ok(())
    }

    /// The records in order: key, and value or tombstone.
    pub fn records(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        self.records.iter()
    }

    /// Forgets the records; their bytes stay, as settling needs the keys.
    pub fn forget_records(&mut self) {
        self.records.forget();
    }

    /// After the ingestion: settles the next slice. True while there is more.
    pub fn settle(&mut self, core: &mut Core, ok: bool) -> bool {
        if ok {
            // Not earlier, as a sweep that ran during the ingestion has not seen them; and not later, as what has settled
            // may leave the table at once.
            core.sweep_from_ms = core.sweep_from_ms.min(self.earliest_ms.unwrap_or(u64::MAX));
        }
        if !std::mem::replace(&mut self.settling, true) {
            // What was read of the store before may not be what it says now, and soon nothing in memory will say so.
            core.epoch += 1;
        }
        for _ in 0..SLICE.get() {
            if let Some(entry) = self.elements.pop() {
                settle_element(core, self.bodies[entry.body as usize], self.records.key(entry.key), ok);
            } else if let Some(entry) = self.entries.pop() {
                settle_object(core, &entry, ok);
            } else {
                self.settle_raw(core, ok);
                return false;
            }
        }
        true
    }

    fn settle_raw(&mut self, core: &mut Core, ok: bool) {
        core.in_flight.clear();
        core.flying = None;
        core.flight_bytes = 0;
        core.dirty_bytes = core.dirty_bytes.max(core.queue_bytes());
        core.garbage.settled(ok);
        core.dead_names.settled(ok);
        if ok {
            core.stored_lsn = core.stored_lsn.max(self.highest);
            return;
        }
        for (key, value) in self.raw.drain(..) {
            if !core.raw.contains_key(&key) {
                core.put_raw(key, value);
            }
        }
        let Core { dirty_counts, names, .. } = core;
        dirty_counts.extend(self.counts.drain(..).filter(|&ns| names.is_live(ns)));
    }
}

fn settle_element(core: &mut Core, carried: Carried, key: &[u8], ok: bool) {
    if !core.table.is_used(carried.index) {
        return;
    }
    let Some(body) = &mut core.table.at_mut(carried.index).body else { return };
    if body.version != carried.version {
        return;
    }
    let before = body.overlay.bytes();
    let mut dirty_again = 0;
    let gone = body.overlay.update(key, |element| {
        element.state &= !overlay::state::IN_FLIGHT;
        let (from, to) = match ok {
            true => (overlay::state::NEXT, overlay::state::BASE),
            false => (overlay::state::BASE, overlay::state::NEXT),
        };
        element.state = if element.state & from == 0 { element.state & !to } else { element.state | to };
        if !ok && element.state & overlay::state::DIRTY == 0 {
            element.state |= overlay::state::DIRTY;
            dirty_again = element.bytes();
        }
        !element.is_live() && element.state & overlay::state::DIRTY == 0
    });
    if gone == Some(true) {
        body.overlay.remove(key);
    }
    core.table_bytes = core.table_bytes + body.overlay.bytes() - before;
    core.dirty_bytes += dirty_again;
}

fn settle_object(core: &mut Core, entry: &Entry, ok: bool) {
    debug_assert!(core.table.is_used(entry.index), "an object in flight stays in the table");
    let object = core.table.at_mut(entry.index);
    object.state &= !state::IN_FLIGHT;
    if !ok {
        core.touch_dirty(entry.index);
        return;
    }
    let live = object.kind != Kind::Absent;
    let clean = object.state & state::DIRTY == 0;
    if entry.put {
        object.state |= state::STORED;
        core.order_remove(entry.index);
    } else {
        object.state &= !(state::STORED | state::MAYBE_STORED);
        if live {
            core.order_insert(entry.index);
        }
    }
    if clean && !live {
        core.discard(entry.index);
    } else if !live && !entry.put {
        // Made again and removed again while the first tombstone was on its way: fjall holds nothing of it.
        core.discard(entry.index);
    }
}
