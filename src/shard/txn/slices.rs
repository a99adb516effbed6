//! Collections that are read slice by slice, for commands that rest in between ([`super::rest`]): what a slice has
//! is a copy, and is worked on without the cores. Long strings are gone through under the lease, so many chunks at once.
//!
//! # Why looking up without the cores is sound
//! What memory says of an element it says under the lease. Where it knows nothing, the element is in fjall as it is, or is
//! not: what has changed and was not flushed is in memory. The collection's key is held, so nobody changes it from then on, and
//! its version stays; a flush or an eviction moves what is there, and takes nothing away. So fjall may be read at any time
//! before the key is let go.

use std::ops::Bound;

use super::elements::whole_group;
use super::rest::Rests;
use super::{Found, Txn};
use crate::codec::element::Group;
use crate::codec::{NsId, key::element_key};
use crate::error::{Error, Result};
use crate::meter;
use crate::shard::memory::core::storage;
use crate::shard::memory::missing::missing;
use crate::shard::memory::overlay::Entry;
use crate::util::scale::Scaled;

/// Bytes of a slice: it is read in some tens of microseconds.
const SLICE_BYTES: Scaled<usize> = Scaled::new(64 << 10).in_unit_tests(512);
/// Elements of a slice.
pub const SLICE_ELEMENTS: Scaled<usize> = Scaled::new(512).in_unit_tests(16);
/// However many collections are read in step, so many elements, and bytes, of each are read at once.
const LEAST: (usize, usize) = (8, 1 << 10);
/// Elements that are looked up at once: each takes as long as several that are read in order.
const LOOK_UPS: Scaled<usize> = Scaled::new(128).in_unit_tests(8);

/// Chunks of a string that are gone through at once.
const CHUNKS: Scaled<usize> = Scaled::new(16).in_unit_tests(2);

/// Elements that are found by their rank at once: each takes an index's look-up and the read of a block.
const RANKS: Scaled<usize> = Scaled::new(64).in_unit_tests(8);

/// An element and its value.
pub type Element = (Vec<u8>, Vec<u8>);

/// A collection, or a part of it, on its way through memory.
pub struct Slices {
    at: Found,
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    reverse: bool,
    slice: std::vec::IntoIter<Element>,
    /// Bytes that the command is charged for.
    held: usize,
    /// What is at hand may not be all that is left.
    more: bool,
    /// Elements that are still to be read at most.
    left: u64,
}

impl Slices {
    /// The elements between two bounds in order, or from the last to the first.
    pub fn new(at: Found, lower: Bound<&[u8]>, upper: Bound<&[u8]>, reverse: bool) -> Self {
        let [lower, upper] = [lower, upper].map(|bound| bound.map(<[u8]>::to_vec));
        Slices { at, lower, upper, reverse, slice: Vec::new().into_iter(), held: 0, more: true, left: u64::MAX }
    }

    /// The elements of a group in order.
    pub fn of_group(at: Found, group: Group) -> Self {
        let (lower, upper) = whole_group(group);
        Slices::new(at, Bound::Included(&lower), Bound::Excluded(&upper), false)
    }

    /// The first so many of them.
    #[must_use]
    pub fn at_most(self, elements: u64) -> Self {
        Slices { left: elements, more: elements > 0, ..self }
    }

    /// Reads the next slice. What was at hand has been taken.
    ///
    /// # Errors
    /// Of reads.
    pub fn fill(&mut self, txn: &Txn<'_, '_>) -> Result {
        self.fill_one_of(txn, 1).map(drop)
    }

    /// The same of so many collections that are read in step, whose slices are one together; how many elements there were.
    ///
    /// # Errors
    /// Of reads.
    pub fn fill_one_of(&mut self, txn: &Txn<'_, '_>, collections: usize) -> Result<usize> {
        debug_assert!(self.slice.len() == 0, "no element is left behind");
        let most = (SLICE_ELEMENTS.get() / collections).max(LEAST.0.min(SLICE_ELEMENTS.get()));
        let most = usize::try_from(self.left).map_or(most, |left| left.min(most));
        let most_bytes = (SLICE_BYTES.get() / collections).max(LEAST.1.min(SLICE_BYTES.get()));
        let (mut slice, mut bytes) = (Vec::new(), 0);
        let [lower, upper] = [&self.lower, &self.upper].map(|bound| bound.as_ref().map(Vec::as_slice));
        self.more = false;
        if most == 0 {
            return Ok(0);
        }
        for element in txn.elements(self.at, lower, upper, self.reverse)? {
            let (element, value) = element?;
            bytes += element.len() + value.len();
            slice.push((element.to_vec(), value.to_vec()));
            self.more = bytes >= most_bytes || slice.len() >= most;
            if self.more {
                break;
            }
        }
        let held = bytes + slice.len() * size_of::<Element>();
        meter::release(std::mem::replace(&mut self.held, held));
        meter::hold(held)?;
        if let Some((last, _)) = slice.last() {
            *(if self.reverse { &mut self.upper } else { &mut self.lower }) = Bound::Excluded(last.clone());
        }
        let count = slice.len();
        self.left -= count as u64;
        self.more &= self.left > 0;
        self.slice = slice.into_iter();
        Ok(count)
    }

    /// Whether there may be more than what is at hand.
    pub fn has_more(&self) -> bool {
        self.more
    }

    /// Whether the next slice has to be read before it is known whether there is another element.
    pub fn is_dry(&self) -> bool {
        self.more && self.slice.len() == 0
    }
}

impl Iterator for Slices {
    type Item = Element;

    /// The next element at hand.
    fn next(&mut self) -> Option<Element> {
        self.slice.next()
    }
}

impl Txn<'_, '_> {
    /// Whether a command that is about to go through so many elements does so in slices.
    ///
    /// # Errors
    /// `Long`: it does, where it may rest.
    #[inline]
    pub fn goes_in_slices(&self, elements: u64) -> Result<bool> {
        match self.rests() {
            _ if !self.reads_in_slices() => Ok(false),
            Rests::Never => Ok(false),
            Rests::Elsewhere if elements > SLICE_ELEMENTS.get() as u64 => Err(Error::Long),
            Rests::Elsewhere => Ok(false),
            Rests::Holding(_) => Ok(true),
        }
    }

    /// Looks elements up in a collection whose key the command holds, and hands their values to `visit`, each with its place
    /// among them, in any order. Rests in between, and reads fjall without the cores.
    ///
    /// # Errors
    /// Of `visit`, of reads, and as of [`Txn::rest`].
    pub fn look_up_in_slices<'k>(
        &mut self,
        at: Found,
        elements: impl ExactSizeIterator<Item = &'k [u8]>,
        mut visit: impl FnMut(usize, Option<&[u8]>) -> Result,
    ) -> Result {
        let ns = self.object(at).ns;
        let many = elements.len() > LOOK_UPS.get();
        let mut elements = elements.enumerate().peekable();
        while elements.peek().is_some() {
            let mut unknown: Vec<(usize, Vec<u8>)> = Vec::new();
            for (place, element) in elements.by_ref().take(LOOK_UPS.get()) {
                meter::step(1)?;
                let (object, body) = (self.object(at), self.body(at));
                if missing(object, element).is_some() {
                    let mut key = Vec::with_capacity(object.key().len() + element.len() + 24);
                    element_key(ns, object.key(), body.version, element, &mut key);
                    unknown.push((place, key));
                } else {
                    visit(place, body.overlay.get(element).and_then(Entry::value))?;
                }
            }
            if many || !unknown.is_empty() {
                let partition = self.core(at).partition.clone();
                let owner = self.object(at).key().to_vec();
                self.rest(ns, || {
                    unknown.iter().try_for_each(|(place, key)| {
                        let value = partition.get(key).map_err(|e| storage(&owner, e))?;
                        visit(*place, value.as_deref())
                    })
                })?;
            }
        }
        Ok(())
    }

    /// For who looks at elements one by one: rests after each slice of them, when it has looked at so many.
    ///
    /// # Errors
    /// As of [`Txn::rest`].
    #[inline]
    pub fn rest_between(&mut self, ns: NsId, looked_at: usize) -> Result {
        self.rest_after(ns, looked_at, SLICE_ELEMENTS.get())
    }

    #[inline]
    fn rest_after(&mut self, ns: NsId, done: usize, slice: usize) -> Result {
        if done > 0 && done.is_multiple_of(slice) { self.rest(ns, || Ok(())) } else { Ok(()) }
    }

    /// The same for who goes through the chunks of strings, with what is to be done with those of a slice.
    ///
    /// # Errors
    /// As of [`Txn::rest`].
    #[inline]
    pub fn rest_between_chunks(&mut self, ns: NsId, gone_through: usize, meanwhile: impl FnOnce() -> Result) -> Result {
        let rests = gone_through > 0 && gone_through.is_multiple_of(CHUNKS.get());
        if rests { self.rest(ns, meanwhile) } else { Ok(()) }
    }

    /// Finds elements of a group by their rank and hands them to `visit`, one after the other. Rests in between.
    ///
    /// # Errors
    /// Of `visit`, of reads, and as of [`Txn::rest`].
    pub fn select_in_slices(
        &mut self,
        at: Found,
        group: Group,
        ranks: impl Iterator<Item = u64>,
        mut visit: impl FnMut(&[u8], &[u8]) -> Result,
    ) -> Result {
        let ns = self.object(at).ns;
        for (n, rank) in ranks.enumerate() {
            self.rest_after(ns, n, RANKS.get())?;
            let Some((element, value)) = self.select(at, group, rank)? else {
                return Err(storage(self.object(at).key(), "there are fewer elements than the metadata says"));
            };
            visit(&element, &value)?;
        }
        Ok(())
    }

    /// Hands the elements of a group to `each`, as [`Txn::each_in_slices`] does.
    ///
    /// # Errors
    /// The same.
    pub fn group_in_slices(&mut self, at: Found, group: Group, each: impl FnMut(&[u8], &[u8]) -> Result) -> Result {
        let (lower, upper) = whole_group(group);
        self.each_in_slices(at, Bound::Included(&lower), Bound::Excluded(&upper), each)
    }

    /// Hands the elements of a collection between two bounds to `each`, in order, and rests between slices of them.
    ///
    /// # Errors
    /// Of `each`, of reads, and as of [`Txn::rest`].
    pub fn each_in_slices(
        &mut self,
        at: Found,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        mut each: impl FnMut(&[u8], &[u8]) -> Result,
    ) -> Result {
        if !self.reads_in_slices() {
            return self.elements(at, lower, upper, false)?.each(u64::MAX, each).map(drop);
        }
        let ns = self.object(at).ns;
        let pass = |element: Element| each(&element.0, &element.1).map(|()| true);
        self.pass_in_slices(ns, Slices::new(at, lower, upper, false), pass)
    }

    /// Hands elements to `each` until it says that they are enough, and rests between slices of them. Who does not rest here
    /// goes on elsewhere.
    ///
    /// # Errors
    /// Of `each`, of reads, and as of [`Txn::rest`].
    pub fn pass_in_slices(
        &mut self,
        ns: NsId,
        mut slices: Slices,
        mut each: impl FnMut(Element) -> Result<bool>,
    ) -> Result {
        let mut first = true;
        loop {
            slices.fill(self)?;
            let more = slices.has_more();
            let mut pass = || {
                for element in slices.by_ref() {
                    if !each(element)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            };
            // What is little is done where it is.
            let goes_on = if more || !first { self.rest(ns, pass)? } else { pass()? };
            if !(more && goes_on) {
                // Nothing of it is held any more.
                meter::release(slices.held);
                return Ok(());
            }
            first = false;
        }
    }
}
