//! The order index: the keys of a shard that fjall does not show yet, in the order of fjall's metadata records.
//!
//! | state | what it holds |
//! |---|---|
//! | growing: `next` names a place of the table | what lies in the places before that one, and what came or went since it was begun |
//! | whole: `next` is `None` | every key there is that no record of fjall shows |
//!
//! It is kept only while somebody looks for few keys among many ([`Core::need_order`]), grows by bounded slices, and is
//! given away whole when nobody asks any more or its namespaces die: whoever holds the lock never waits for it.
//!
//! It holds places of the table and no keys: sorted runs of four bytes a key. So an object must be taken out before its
//! place is given to another, which [`Core::discard`] sees to.

use std::borrow::Cow;
use std::cmp::Ordering;

use crate::codec::{self, MAX_INLINE, NsId};

use super::core::Core;
use super::object::{Kind, Object, state};
use super::table::{Index, Table};

/// Keys in a run at most.
const RUN: usize = if cfg!(test) { 8 } else { 512 };
/// Dirty objects of which the index is made at once.
const SMALL: usize = if cfg!(test) { 12 } else { 1024 };
/// Places of the table that can be looked at while a key is put in its place.
const PLACES_PER_INSERTION: usize = 8;
/// Keys that a slice takes in at most.
const SLICE_KEYS: usize = if cfg!(test) { 4 } else { 256 };
/// Places that a slice looks at.
const SLICE_PLACES: Index = if cfg!(test) { 8 } else { 4096 };
/// The index goes when nobody has asked for this long, ms.
const IDLE_MS: u64 = 10_000;

/// Keys in the order of fjall's metadata records: namespace, stored key.
#[derive(Debug)]
pub struct Order {
    /// Sorted, each and one after the other; none is empty.
    runs: Vec<Vec<Index>>,
    /// The first place that has not been looked at.
    next: Option<Index>,
}

/// A key as it stands in records, copied only if it is long.
pub fn stored_form(key: &[u8]) -> Cow<'_, [u8]> {
    if !codec::is_long(key) {
        return Cow::Borrowed(key);
    }
    let mut stored = Vec::with_capacity(codec::stored_len(key));
    codec::push_stored(key, &mut stored);
    Cow::Owned(stored)
}

/// How a key in its stored form compares to another one that is in it already.
pub fn compare(key: &[u8], stored: &[u8]) -> Ordering {
    if !codec::is_long(key) {
        return key.cmp(stored);
    }
    // Digests only of keys that share as much as records hold of them.
    match key[..MAX_INLINE].cmp(&stored[..stored.len().min(MAX_INLINE)]) {
        Ordering::Equal => stored_form(key)[..].cmp(stored),
        other => other,
    }
}

/// Whether walks find an object by itself, and not by its record.
pub fn is_unstored(object: &Object) -> bool {
    object.state & state::STORED == 0 && object.kind != Kind::Absent
}

impl Order {
    fn begun() -> Self {
        Order { runs: Vec::new(), next: Some(0) }
    }

    /// Whether every key is in it.
    pub fn is_whole(&self) -> bool {
        self.next.is_none()
    }

    /// Memory it takes.
    pub fn bytes(&self) -> usize {
        self.runs.len() * (RUN * size_of::<Index>() + size_of::<Vec<Index>>())
    }

    /// Where the first key stands for which `before` does not hold: its run, its place there.
    fn seek(&self, table: &Table, before: impl Fn(&Object) -> bool) -> (usize, usize) {
        let ends_before = |run: &Vec<Index>| run.last().is_some_and(|&last| before(table.at(last)));
        let run = self.runs.partition_point(ends_before);
        let place = self.runs.get(run).map_or(0, |run| run.partition_point(|&index| before(table.at(index))));
        (run, place)
    }

    fn insert(&mut self, table: &Table, index: Index) {
        let object = table.at(index);
        let (ns, key) = (object.ns, stored_form(object.key()));
        let (mut run, mut place) =
            self.seek(table, |other| (other.ns, compare(other.key(), &key)) < (ns, Ordering::Equal));
        if self.runs.get(run).and_then(|run| run.get(place)) == Some(&index) {
            return;
        }
        if run == self.runs.len() {
            match self.runs.last() {
                Some(last) => (run, place) = (run - 1, last.len()),
                None => self.runs.push(Vec::with_capacity(RUN)),
            }
        }
        if self.runs[run].len() == RUN {
            // Keys that come in their order leave full runs behind.
            let at = if place == RUN { RUN } else { RUN / 2 };
            let mut behind = Vec::with_capacity(RUN);
            behind.extend(self.runs[run].drain(at..));
            self.runs.insert(run + 1, behind);
            if place >= at {
                (run, place) = (run + 1, place - at);
            }
        }
        self.runs[run].insert(place, index);
    }

    fn remove(&mut self, table: &Table, index: Index) {
        let object = table.at(index);
        let (ns, key) = (object.ns, stored_form(object.key()));
        let (run, place) = self.seek(table, |other| (other.ns, compare(other.key(), &key)) < (ns, Ordering::Equal));
        if self.runs.get(run).and_then(|run| run.get(place)) != Some(&index) {
            return;
        }
        self.runs[run].remove(place);
        if self.runs[run].is_empty() {
            self.runs.remove(run);
        }
    }

    /// The objects of a namespace from a stored key on, or behind it, in order.
    pub fn from<'a>(
        &'a self,
        table: &'a Table,
        ns: NsId,
        stored: &[u8],
        included: bool,
    ) -> impl Iterator<Item = Index> + 'a {
        let first = if included { Ordering::Equal } else { Ordering::Greater };
        let (run, place) = self.seek(table, |other| (other.ns, compare(other.key(), stored)) < (ns, first));
        let runs = self.runs[run..].iter().enumerate();
        runs.flat_map(move |(at, run)| &run[if at == 0 { place } else { 0 }..])
            .copied()
            .take_while(move |&index| table.at(index).ns == ns)
    }

    /// The last object of a namespace below a stored key; without one, the last of all.
    pub fn last_below(&self, table: &Table, ns: NsId, stored: Option<&[u8]>) -> Option<Index> {
        let (run, place) = self.seek(table, |other| match stored {
            Some(stored) => (other.ns, compare(other.key(), stored)) < (ns, Ordering::Equal),
            None => other.ns <= ns,
        });
        let last = match place.checked_sub(1) {
            Some(place) => self.runs[run][place],
            None => *self.runs[..run].last()?.last()?,
        };
        (table.at(last).ns == ns).then_some(last)
    }

    /// Panics unless it holds, of these in their order, all in the places it has looked at and none but these.
    #[cfg(test)]
    pub fn check(&self, unstored: Vec<Index>) {
        let held: Vec<Index> = self.runs.iter().flatten().copied().collect();
        let must = |index: &Index| self.next.is_none_or(|next| *index < next) || held.contains(index);
        assert_eq!(held, unstored.into_iter().filter(must).collect::<Vec<_>>(), "the order index, {:?}", self.next);
        assert!(self.runs.iter().all(|run| !run.is_empty() && run.len() <= RUN));
    }
}

impl Core {
    /// Makes the order index, at once where few objects are dirty. Where many are and the walk is choosy, it is begun
    /// the second time that somebody asks within some seconds, and the shard's timer goes on with it.
    pub fn need_order(&mut self, now_ms: u64, choosy: bool) {
        let asked_ms = std::mem::replace(&mut self.order_asked_ms, now_ms);
        if self.order.is_some() {
            return;
        }
        if self.order_cost().is_some() {
            self.make_order();
        } else if choosy && asked_ms + IDLE_MS >= now_ms {
            self.order = Some(Order::begun());
        }
    }

    /// What making the order index at once costs, in places of the table looked at; `None` where it is not made at once.
    pub fn order_cost(&self) -> Option<usize> {
        let unstored = self.dirty.len() + self.in_flight.len();
        (unstored <= SMALL).then_some(unstored * PLACES_PER_INSERTION)
    }

    /// The order index, if it is there and whole.
    pub fn whole_order(&self) -> Option<&Order> {
        self.order.as_ref().filter(|order| order.is_whole())
    }

    /// Only objects that are dirty or in flight can be unknown to fjall.
    fn make_order(&mut self) {
        let mut order = Order::begun();
        for &index in self.dirty.iter().chain(&self.in_flight) {
            if self.belongs_in_order(index) {
                order.insert(&self.table, index);
            }
        }
        order.next = None;
        self.table_bytes += order.bytes();
        self.order = Some(order);
    }

    fn belongs_in_order(&self, index: Index) -> bool {
        let unstored = |object: &Object| is_unstored(object) && self.names.is_live(object.ns);
        self.table.is_used(index) && unstored(self.table.at(index))
    }

    /// Has the order index look at the table's next places. True while there are more.
    pub fn grow_order(&mut self) -> bool {
        let Some(mut order) = self.order.take() else { return false };
        let before = order.bytes();
        if let Some(from) = order.next {
            let end = self.table.places().min(from.saturating_add(SLICE_PLACES));
            let mut left = SLICE_KEYS;
            let mut index = from;
            while index < end && left > 0 {
                if self.belongs_in_order(index) {
                    order.insert(&self.table, index);
                    left -= 1;
                }
                index += 1;
            }
            order.next = (index < self.table.places()).then_some(index);
        }
        let more = !order.is_whole();
        self.table_bytes = self.table_bytes + order.bytes() - before;
        self.order = Some(order);
        more
    }

    /// Notes a key that fjall does not show.
    pub fn order_insert(&mut self, index: Index) {
        if let Some(order) = &mut self.order {
            let before = order.bytes();
            order.insert(&self.table, index);
            self.table_bytes = self.table_bytes + order.bytes() - before;
        }
    }

    /// Forgets a key that is gone, or that fjall shows from now on.
    pub fn order_remove(&mut self, index: Index) {
        if let Some(order) = &mut self.order {
            let before = order.bytes();
            order.remove(&self.table, index);
            self.table_bytes = self.table_bytes + order.bytes() - before;
        }
    }

    /// Puts the order index aside, for the shard's timer to free without the lock.
    pub fn drop_order(&mut self) {
        if let Some(order) = self.order.take() {
            self.table_bytes -= order.bytes();
            self.old_orders.push(order);
        }
    }

    /// What is to be freed without the lock: order indexes put aside, this one if nobody has asked for it lately.
    pub fn idle_orders(&mut self, now_ms: u64) -> Vec<Order> {
        if self.order_asked_ms + IDLE_MS < now_ms {
            self.drop_order();
        }
        std::mem::take(&mut self.old_orders)
    }
}
