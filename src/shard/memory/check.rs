//! What must hold of a core between any two holds of its lock; tests ask after every step.

use std::collections::{BTreeSet, HashSet};

use super::core::Core;
use super::object::{Kind, Object, state};
use super::overlay;
use super::table::Index;

impl Core {
    /// Panics, naming what is wrong, unless the core's parts agree with each other.
    pub fn check(&self) {
        let mut bytes = 0;
        let mut expiry = BTreeSet::new();
        let mut unstored = Vec::new();
        let queued: HashSet<Index> = self.dirty.iter().chain(&self.in_flight).copied().collect();
        for (index, object) in self.table.iter() {
            let what = || format!("shard {} object {index} {:?}", self.shard, Shown(object));
            bytes += object.mem_bytes();
            if object.expire_ms != 0 {
                expiry.insert((object.expire_ms, index));
            }
            let has = |flag: u8| object.state & flag != 0;
            if self.blind.birth(index).is_some() {
                assert!(has(state::DIRTY) && !has(state::IN_FLIGHT) && has(state::MAYBE_STORED), "blind: {}", what());
            }
            assert!(!has(state::DIRTY) || has(state::QUEUED), "a dirty object is queued: {}", what());
            assert!(!has(state::QUEUED) || queued.contains(&index), "a queued object is in a list: {}", what());
            let flying = !has(state::IN_FLIGHT) || self.in_flight.contains(&index);
            assert!(flying, "an object in flight is in its list: {}", what());
            assert!(!has(state::STORED) || has(state::MAYBE_STORED), "what is stored may be: {}", what());
            if object.kind == Kind::Absent {
                assert!(object.body.is_none() && object.value().is_empty(), "a removal is empty: {}", what());
                assert_eq!(object.expire_ms, 0, "a removal has no time: {}", what());
                assert!(!object.is_clean(), "a removal waits for a flush: {}", what());
            } else if self.names.is_live(object.ns) {
                assert!(!object.is_clean() || has(state::STORED), "what is clean is stored: {}", what());
                if !has(state::STORED) {
                    unstored.push((object.ns, crate::shard::memory::order::stored_form(object.key()), index));
                }
            }
            self.check_body(object, &what);
            assert!(!self.cold.contains(object.hash, object.ns, object.key()), "in the table or in moka: {}", what());
        }
        bytes += self.blind.len() * super::blind::BLIND_BYTES;
        bytes += self.order.as_ref().map_or(0, |order| order.bytes());
        bytes += self.membership.check_bytes();
        assert_eq!(bytes, self.table_bytes, "bytes of shard {}", self.shard);
        let counted = self.dirty_bytes + self.flight_bytes;
        assert!(counted > 0 || self.dirty_again_bytes() == 0, "what is dirty counts: shard {}", self.shard);
        assert_eq!(expiry, self.expiry, "times of shard {}", self.shard);
        unstored.sort();
        if let Some(order) = &self.order {
            order.check(unstored.into_iter().map(|(_, _, index)| index).collect());
        }
        for index in self.stored_ttl.keys() {
            assert!(self.table.is_used(*index), "a stored time belongs to an object");
        }
    }

    /// The dirty objects and elements, counted again: what [`Core::dirty_bytes`] would be if shares of removed bodies were not
    /// estimated, records without an object did not count and no flush had begun.
    pub fn dirty_again_bytes(&self) -> usize {
        let elements = |object: &Object| {
            let body = object.body.iter();
            body.flat_map(|body| body.overlay.iter()).map(overlay::Entry::dirty_bytes).sum::<usize>()
        };
        self.table.iter().map(|(_, object)| object.dirty_bytes() + elements(object)).sum()
    }

    /// Whether nothing waits for a flush or for the timer.
    pub fn is_idle(&self) -> bool {
        let dirty = self.table.iter().any(|(_, o)| !o.is_clean());
        !dirty
            && self.raw.is_empty()
            && self.garbage.is_empty()
            && self.dead_names.is_empty()
            && self.reap.is_none()
            && self.blind.is_empty()
    }

    fn check_body(&self, object: &Object, what: &dyn Fn() -> String) {
        let Some(body) = &object.body else { return };
        assert_ne!(body.version, 0, "a body has a version: {}", what());
        assert!(object.value().is_empty(), "a body or a value: {}", what());
        assert!(body.maybe_stored || body.overlay.complete, "what is nowhere else is in memory: {}", what());
        for element in body.overlay.iter() {
            let clean = element.is_clean();
            // While a failed flush settles, its elements turn dirty before their object does.
            assert!(clean || !object.is_clean(), "elements are dirty or in flight only with their object: {}", what());
            assert!(element.is_live() || !clean && body.maybe_stored, "a removed element waits: {}", what());
            let stored = element.state & overlay::state::MAYBE_STORED == 0 || body.maybe_stored;
            assert!(stored, "an element is stored with its body: {}", what());
        }
    }
}

struct Shown<'a>(&'a Object);

impl std::fmt::Debug for Shown<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let object = self.0;
        let key = String::from_utf8_lossy(&object.key()[..object.key().len().min(40)]).into_owned();
        let body = object.body.as_ref().map(|b| (b.version, b.size, b.overlay.len(), b.maybe_stored));
        let (ns, kind, state, lsn) = (object.ns, object.kind, object.state, object.lsn);
        write!(f, "{ns}/{key:?} {kind:?} state {state:#b} lsn {lsn} expires {} body {body:?}", object.expire_ms)
    }
}
