//! Commands in slices: between two of them the shards are given back, and only the command's keys stay held.
//!
//! | who runs it | between two slices |
//! |---|---|
//! | a network thread | it goes on: what is long has been sent elsewhere before |
//! | a shard's own thread | it ends with `Long` and runs again on one of the threads for long commands |
//! | one of these | it rests: the keys are held, the cores given back, and what needs none of them is done |
//! | EXEC, timers, anybody who has written something | it goes on with its cores; EXEC and scripts have [guests](super::host) |
//!
//! # Why that is sound
//! **Nobody sees half of it.** It rests only as long as it has written nothing: what it makes stands aside, in memory or in
//! fjall under a version that nobody names ([`super::build`]), until one transaction puts it in its place.
//!
//! **What it has seen stays.** Its keys are held ([`crate::shard::memory::busy`]), all that the row of the command names,
//! from the first rest to the end: nobody writes them, sweeps pass them over, their objects stay in the table at their places, and
//! the command's time is fixed. Keys that it looks at besides (SORT's BY and GET) it does not look at across a rest: it
//! [stays](Txn::stay) from the first of them on.
//!
//! **FLUSHALL and SWAPDB wait for nobody.** That a database is gone the command notices after its rest, and runs again from its
//! beginning. Where two were swapped it has happened before.
//!
//! **It happens when it ends:** what others have done meanwhile came before, except where it read what they may not write.

use super::slices::SLICE_ELEMENTS;
use super::{Rare, Txn};
use crate::codec::NsId;
use crate::error::{Error, Result};
use crate::latency::{self, Event};
use crate::meter;
use crate::shard::actor::{self, moment};
use crate::shard::memory::busy::Waiter;

/// What a command does between two slices.
#[derive(Default)]
pub enum Rests {
    /// It goes on.
    #[default]
    Never,
    /// It asks for a thread where it may rest.
    Elsewhere,
    /// It holds these keys, and whether it writes them, and rests.
    Holding(Vec<(Vec<u8>, bool)>),
}

impl<'e> Txn<'_, 'e> {
    /// What it does between two slices.
    #[inline]
    pub fn rests(&self) -> &Rests {
        self.rare.as_ref().map_or(&Rests::Never, |rare| &rare.rests)
    }

    /// Says what it does between two slices.
    #[inline]
    pub fn may_do(&mut self, rests: Rests) {
        if !matches!(rests, Rests::Never) {
            self.rare_mut().rests = rests;
        }
    }

    /// Whether the keys are held for that.
    pub(super) fn holds(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.holds)
    }

    /// Between two slices of a command that works on a database: does what needs none of the cores, without them where that is
    /// possible.
    ///
    /// # Errors
    /// Those of `meanwhile`. `Long`: to be run again where it may rest. `Cold`: to be run again, as the database was flushed.
    pub fn rest<R>(&mut self, ns: NsId, meanwhile: impl FnOnce() -> Result<R>) -> Result<R> {
        if !self.reads_in_slices() {
            return meanwhile();
        }
        match self.rests() {
            Rests::Never => return meanwhile(),
            Rests::Elsewhere => return Err(Error::Long),
            Rests::Holding(_) => self.hold()?,
        }
        let lease = std::mem::take(self.lease);
        let resting = latency::wait_for(Event::QueueWait, || {
            // Who gives cores back runs what has waited for them, and that is not this command's.
            let _aside = meter::aside();
            let resting = actor::Resting::from(lease);
            moment::here(moment::Moment::Resting);
            resting
        });
        let done = meanwhile();
        *self.lease = latency::wait_for(Event::QueueWait, || resting.wake());
        if let Some(core) = self.lease.first_mut() {
            core.stats.rests += 1;
        }
        self.is_live(ns)?;
        done
    }

    /// Whether it may rest now.
    pub fn may_rest(&self) -> bool {
        matches!(self.rests(), Rests::Holding(_)) && self.reads_in_slices()
    }

    /// Whether a command reads in slices, be it only to find out that it is to run where it may rest.
    #[inline]
    pub fn reads_in_slices(&self) -> bool {
        let may = |rare: &Rare| !matches!(rare.rests, Rests::Never) && !rare.stays;
        self.rare.as_deref().is_some_and(may) && !self.has_writes()
    }

    /// Has it rest no more: what it looks at from now on it does not hold.
    pub fn stay(&mut self) {
        if let Some(rare) = &mut self.rare {
            rare.stays = true;
        }
    }

    /// Whether a key may be looked at: what is not held would not stay as it is over a rest.
    pub(super) fn may_look_at(&self, key: &[u8]) -> bool {
        match self.rests() {
            Rests::Holding(keys) => {
                self.rare.as_ref().is_some_and(|rare| rare.stays) || keys.iter().any(|(held, _)| held == key)
            }
            Rests::Never | Rests::Elsewhere => true,
        }
    }

    /// Whether a database is still what it was when the command began.
    ///
    /// # Errors
    /// `Cold`: it was flushed.
    pub fn is_live(&self, ns: NsId) -> Result {
        let live = self.lease.first().is_none_or(|core| core.names.is_live(ns));
        if live { Ok(()) } else { Err(Error::Cold) }
    }

    /// The same for so many elements, if they are more than a slice: what is little is done where it is. What it has gathered of
    /// them is best dropped there, too: that takes as long.
    ///
    /// # Errors
    /// As of [`Txn::rest`].
    pub fn rest_for<R>(&mut self, ns: NsId, elements: usize, meanwhile: impl FnOnce() -> Result<R>) -> Result<R> {
        if elements > SLICE_ELEMENTS.get() { self.rest(ns, meanwhile) } else { meanwhile() }
    }

    /// Holds the command's keys, if it does not yet.
    fn hold(&mut self) -> Result {
        let Rests::Holding(keys) = self.rests() else { return Ok(()) };
        if self.holds() {
            return Ok(());
        }
        let places: Vec<u16> = keys.iter().map(|(key, _)| Ok(self.place(key)?.1)).collect::<Result<_>>()?;
        let Some(rare) = &mut self.rare else { return Ok(()) };
        let Rests::Holding(keys) = &rare.rests else { return Ok(()) };
        for (at, (key, writes)) in places.into_iter().zip(keys) {
            self.lease[at as usize].busy.hold(key, *writes);
        }
        rare.holds = true;
        Ok(())
    }

    /// Lets the keys go that the command has held; who has waited for them, in order.
    #[inline]
    pub fn let_go(&mut self) -> Vec<Waiter> {
        self.rare.take().map_or_else(Vec::new, |rare| self.let_go_held(&rare))
    }

    fn let_go_held(&mut self, rare: &Rare) -> Vec<Waiter> {
        let mut waiting = Vec::new();
        if rare.holds
            && let Rests::Holding(keys) = &rare.rests
        {
            for (key, _) in keys {
                if let Ok(core) = self.lease.binary_search_by_key(&self.router.shard_of(key), |core| core.shard) {
                    waiting.extend(self.lease[core].busy.let_go(key));
                }
            }
        }
        waiting
    }
}
