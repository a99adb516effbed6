//! Guests: what others read while a transaction keeps its cores, between two of its commands.
//!
//! EXEC, and a script that has written something, keep their cores to the end: nobody may see half of what they do. What they have
//! not changed so far others may see. So they look now and then at what others have left for these cores, and run what of it only
//! reads one key that they have not changed.
//!
//! # Why that is sound
//! **It happens before the transaction**, which has not ended: a guest sees nothing of it, and changes nothing that it has seen.
//!
//! **What the transaction has found stays.** A guest may bring in what it reads; nothing leaves the table for that, and those who
//! wait for a key are served by others ([`Core::hosts`](crate::shard::memory::core::Core::hosts)).
//!
//! **It takes turns.** Between two looks the transaction runs for a while, and a look ends when it has taken as long as that.
//!
//! **Memory is bounded.** Where the table is full those are let in alone who find there what they read.

use std::collections::HashSet;

use super::{Found, Txn};
use crate::latency::{self, Event};
use crate::meter;
use crate::shard::actor::{Guest, moment};
use crate::shard::memory::core::Core;
use crate::shard::memory::table::table_hash;
use crate::util::scale::Scaled;
use crate::util::ticks;

/// Nanoseconds after which it is asked again whether somebody waits.
const BETWEEN_QUESTIONS: Scaled<u64> = Scaled::new(20_000).in_unit_tests(0);
/// Nanoseconds from a look at who waits to the next one.
const BETWEEN_LOOKS: Scaled<u64> = Scaled::new(250_000).in_unit_tests(0);

/// What a transaction knows of its guests.
#[derive(Default)]
pub(super) struct Host {
    /// When it was last asked for guests, and some were let in, in ticks; 0 before the first time.
    asked: u64,
    looked: u64,
    /// What has been changed, as far as it was looked at; more where some of that was taken back.
    changed: HashSet<Found, foldhash::fast::RandomState>,
    /// So much of what was changed has been.
    seen: usize,
    /// The names of databases are not what they were.
    pub(super) renamed: bool,
}

impl Host {
    /// Only so much of what was changed stands.
    pub(super) fn rollback_to(&mut self, touched: usize) {
        self.seen = self.seen.min(touched);
    }
}

impl Txn<'_, '_> {
    /// Between two commands of a transaction that keeps its cores: has others read what it has not changed, if it is time to.
    /// How many have.
    #[inline]
    pub fn have_guests(&mut self) -> usize {
        moment::here(moment::Moment::Hosting);
        let host = &mut self.rare.get_or_insert_default().host;
        if host.asked == 0 {
            (host.asked, host.looked) = (ticks::now(), ticks::now());
        }
        if ticks::ns_since(host.asked) < BETWEEN_QUESTIONS.get() {
            return 0;
        }
        host.asked = ticks::now();
        let ran_ns = ticks::ns_since(host.looked);
        if ran_ns < BETWEEN_LOOKS.get() || !self.lease.has_guests() {
            return 0;
        }
        let guests = self.let_in(ran_ns);
        self.rare_mut().host.looked = ticks::now();
        guests
    }

    /// Lets some in, for about so long.
    #[cold]
    fn let_in(&mut self, most_ns: u64) -> usize {
        let host = &mut self.rare.get_or_insert_default().host;
        if host.renamed {
            return 0;
        }
        let news = &self.set.touched[host.seen..];
        // A refusal ends the transaction at its next step.
        _ = meter::hold(news.len() * 2 * size_of::<Found>());
        host.changed.extend(news.iter().map(|touched| touched.at));
        host.seen = self.set.touched.len();
        let may = |at: usize, core: &Core, guest: &Guest| {
            // Of a database that there is not there is nothing to change.
            let Some(ns) = core.names.id(&guest.db) else { return true };
            let index = core.table.find(table_hash(guest.hash, ns), ns, &guest.key);
            let is_as_before = index.is_none_or(|index| !host.changed.contains(&Found { at: at as u16, index }));
            is_as_before && (core.has_room() || index.is_some_and(|index| core.table.at(index).is_in_memory()))
        };
        let (lease, now_ms) = (&mut *self.lease, self.now_ms);
        let run = || {
            let (_aside, began) = (meter::aside(), ticks::now());
            lease.have_guests(now_ms, may, || ticks::ns_since(began) < most_ns)
        };
        latency::wait_for_some(Event::QueueWait, run, |guests| *guests > 0)
    }
}
