//! Cores on loan, several at once.

use std::ops::{Deref, DerefMut};

use smallvec::SmallVec;

use super::{Guard, Guest, Shard, full_fence};
use crate::shard::memory::core::Core;

/// Cores that a transaction holds, in ascending order of shard. When it is dropped all are given back before it is looked
/// at what arrived meanwhile: that may need several of them.
#[derive(Default)]
pub struct Lease<'a>(pub(super) SmallVec<[Guard<'a>; 1]>);

impl<'a> Deref for Lease<'a> {
    type Target = [Guard<'a>];
    #[inline]
    fn deref(&self) -> &[Guard<'a>] {
        &self.0
    }
}

impl DerefMut for Lease<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl<'a> FromIterator<Guard<'a>> for Lease<'a> {
    fn from_iter<T: IntoIterator<Item = Guard<'a>>>(guards: T) -> Self {
        Lease(guards.into_iter().collect())
    }
}

impl Drop for Lease<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.0.len() > 1 {
            self.give_back();
        }
    }
}

impl<'e> Lease<'e> {
    /// Of one core.
    #[inline]
    pub(super) fn one(core: Guard<'e>) -> Self {
        Lease(SmallVec::from_buf([core]))
    }

    /// Whether guests wait for one of the cores.
    pub fn has_guests(&self) -> bool {
        self.0.iter().any(|guard| guard.shard.actor.has_guests())
    }

    /// Runs guests of these cores, at the time of who has them, where `may` says so and as long as `go_on` does; how many.
    pub fn have_guests(
        &mut self,
        now_ms: u64,
        may: impl Fn(usize, &Core, &Guest) -> bool,
        go_on: impl Fn() -> bool,
    ) -> usize {
        let mut ran = 0;
        for at in 0..self.0.len() {
            let shard = self.0[at].shard;
            for _ in 0..shard.actor.guests.len() {
                let Some((guest, work)) = shard.actor.pop_guest() else { break };
                let Some(core) = (if may(at, &self.0[at], &guest) { self.0[at].core.take() } else { None }) else {
                    shard.actor.push_guest(guest, work);
                    continue;
                };
                let mut core = Guard { core: Some(core), shard };
                core.hosts = Some(now_ms);
                let mut lease = (work.job)(Lease::from_iter([core]));
                lease.iter_mut().for_each(|core| core.hosts = None);
                self.0[at].core = lease.0.pop().and_then(|mut guard| guard.core.take());
                ran += 1;
                if !go_on() {
                    return ran;
                }
            }
        }
        ran
    }

    fn give_back(&mut self) {
        for guard in &mut self.0 {
            if let Some(core) = guard.core.take() {
                guard.shard.unlock(core);
            }
        }
        full_fence();
        self.0.iter().for_each(|guard| guard.shard.look());
    }
}

/// Shards whose cores are given back for a while.
pub struct Resting<'a>(SmallVec<[Shard<'a>; 1]>);

impl<'a> From<Lease<'a>> for Resting<'a> {
    fn from(lease: Lease<'a>) -> Self {
        Resting(lease.iter().map(|guard| guard.shard).collect())
    }
}

impl<'a> Resting<'a> {
    /// Takes the cores again, in their order; waits for them.
    pub fn wake(self) -> Lease<'a> {
        self.0.into_iter().map(Shard::core).collect()
    }
}
