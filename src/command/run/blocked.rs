//! Commands that wait for a key, and those who serve them.
//!
//! A command that has found nothing and may wait lies with the shards of its keys ([`crate::shard::memory::blocked`]). Whoever
//! commits a change of one of these runs it again, after its own command is whole and under the same lease: who waits comes
//! before whoever comes later, in the order in which it began to wait.
//!
//! | it is served | by | with |
//! |---|---|---|
//! | at once | whoever has changed the key | the shards at hand: of other keys it has seen that there is nothing, and whoever changes that waits for it, or serves it itself; what others have waited for longer it leaves to them where a key is only looked at anew |
//! | later | [`Place::Here`] | all its shards: it needs one that is not at hand, or the disk, or a key that somebody goes through |
//!
//! As long as it is being served later, nobody behind it in a line is served; when it is done, or waits again, they are looked
//! at. Its wait is ended by one of: who serves it, its time, CLIENT UNBLOCK, its connection's end ([`end_wait`]).

use std::sync::Arc;

use super::Again as RunAgain;
use super::posted::{Place, Request};
use crate::error::Error;
use crate::handler::buffers::Away;
use crate::handler::effects::Wait;
use crate::handler::session::{Waiting, bits};
use crate::handler::{Reply, Server};
use crate::log::Lsn;
use crate::server::acl::permit::permit;
use crate::shard::actor::{Job, Lease};
use crate::shard::memory::blocked::{Again, Due, End, Next, Parked, Waiter};
use crate::shard::memory::core::Core;
use crate::shard::memory::object::Kind;
use crate::shard::memory::table::table_hash;
use crate::shard::txn::{Txn, WriteSet};
use crate::util::scale::Scaled;
use crate::util::time::now_ms;

/// Waiters served under one lease; then others have a turn.
const MOST_SERVED: Scaled<usize> = Scaled::new(64).in_unit_tests(2);

/// What a request that waits is known by.
pub(super) struct Waits {
    waiter: Arc<Waiter>,
    /// What its reply waits for.
    need: Lsn,
    /// Counts what it takes as long as it waits.
    _away: Away,
}

impl Waits {
    /// Takes it out of the lines in which it stands, as it has been answered; what its reply waits for. Those behind it are
    /// looked at, unless they have not been waiting for it.
    pub(super) fn leave(&self, server: &Arc<Server>, lease: &mut Lease<'_>, at_once: bool) -> Lsn {
        self.waiter.over();
        leave(server, &self.waiter, lease, (!at_once, true));
        self.need
    }

    /// What of its keys at hand is for others, who have waited longer and are about to be served, while it is served for the sake of
    /// one that nobody has changed: the line of each comes to it in time. A stream gives everybody the same.
    pub(super) fn of_others(&self, lease: &Lease<'_>, looked_at: &[u8]) -> Vec<Box<[u8]>> {
        let waiter = &self.waiter;
        if waiter.kind == Kind::Stream {
            return Vec::new();
        }
        let is_of_others = |shard: &u16, key: &[u8]| {
            let Ok(at) = lease.binary_search_by_key(shard, |core| core.shard) else { return false };
            let core = &lease[at];
            core.names.id(&waiter.db).is_some_and(|ns| core.blocked.comes_later(ns, key, waiter.kind))
        };
        let others = waiter.keys.iter().filter(|(shard, key)| **key != *looked_at && is_of_others(shard, key));
        others.map(|(_, key)| key.clone()).collect()
    }
}

/// Takes a waiter out of the lines in which it stands; in shards that are not at hand that is done later. Those behind it are looked
/// at, here and there, where they may have waited for it to be served.
fn leave(server: &Arc<Server>, waiter: &Arc<Waiter>, lease: &mut Lease<'_>, (others_here, others_there): (bool, bool)) {
    for shard in waiter.shards() {
        if let Ok(at) = lease.binary_search_by_key(&shard, |core| core.shard) {
            waiter.keys_in(shard).for_each(|key| remove(&mut lease[at], waiter, key, others_here));
            continue;
        }
        // One by one: they need not be had together.
        let (waiter, to_serve) = (waiter.clone(), server.clone());
        let job: Job = Box::new(move |mut lease| {
            if let Some(core) = lease.first_mut() {
                waiter.keys_in(shard).for_each(|key| remove(core, &waiter, key, others_there));
            }
            serve(&to_serve, lease)
        });
        server.engine.post([shard].into_iter().collect(), job);
    }
}

fn remove(core: &mut Core, waiter: &Arc<Waiter>, key: &[u8], have_others_looked_at: bool) {
    if let Some(ns) = core.names.id(&waiter.db) {
        core.blocked.remove(ns, key, waiter, have_others_looked_at);
    }
}

impl Request {
    /// Has it wait for the first time. A connection that awaits it already is to be told (`Client::news`).
    pub(super) fn wait(mut self, what: Wait, need: Lsn, lease: &mut Lease<'_>) {
        let server = self.server.clone();
        let Wait { keys, kind, hears_all, until_ms, whole, args } = what;
        let mut keys: Vec<_> = keys.into_iter().map(|key| (server.engine.router.shard_of(&key), key)).collect();
        keys.sort_unstable();
        keys.dedup();
        self.args = args.unwrap_or(self.args);
        let waiter = Arc::new(Waiter::new(kind, hears_all, whole, &self.session.db, keys));
        let away = Away::new(&server, &self.session.client, waiter.memory_bytes());
        self.waits = Some(Waits { waiter: waiter.clone(), need, _away: away });
        let (client, ns) = (self.session.client.clone(), self.session.ns);
        let mut waiting = client.waiting.lock();
        if let Waiting::Never = *waiting {
            return;
        }
        *waiting = Waiting::For(waiter.clone(), until_ms);
        drop(waiting);
        for core in lease.iter_mut() {
            waiter.keys_in(core.shard).for_each(|key| core.blocked.add(ns, key, &waiter));
        }
        client.set_bit(bits::BLOCKED, true);
        self.wait_as(&server, &waiter, lease);
        if server.buffers.are_full() {
            crate::server::client::evict(&server);
        }
    }

    fn wait_as(self, server: &Arc<Server>, waiter: &Arc<Waiter>, lease: &mut Lease<'_>) {
        match waiter.again(Box::new(self)) {
            Again::Waits => {}
            Again::Run(parked) => request(parked, |request| request.post(Place::Here)),
            Again::End(parked, end) => request(parked, |request| request.end(server, end, lease)),
        }
    }

    /// What becomes of a command that has failed. One that was served, and met a key of another kind, goes on to wait if none of its keys
    /// is of its own: such a key wakes nobody. Of a key that is not at hand nothing is known, nor has it been looked at.
    pub(super) fn was_refused<'e>(
        &self,
        mut lease: Lease<'e>,
        reply: &Reply,
        (set, may_block): (&mut WriteSet, bool),
        need: Lsn,
    ) -> (Lease<'e>, Result<(Lsn, bool), RunAgain>) {
        let refused = reply.as_slice().starts_with(b"-WRONGTYPE ");
        let Some(waiter) = self.waits.as_ref().map(|waits| &waits.waiter).filter(|waiter| refused && !waiter.hears_all)
        else {
            return (lease, Ok((need, true)));
        };
        let mut txn = Txn::new(&mut lease, &self.server.engine.router, set, self.now_ms, may_block);
        let mut verdict = Err(RunAgain::InVain(need));
        for (_, key) in &waiter.keys {
            match txn.find(self.session.ns, key) {
                Ok(Some(found)) if txn.object(found).kind == waiter.kind => verdict = Ok((need, true)),
                Ok(_) | Err(Error::Undeclared) => continue,
                // Only the store can tell.
                Err(_) => verdict = Err(RunAgain::Elsewhere),
            }
            break;
        }
        (lease, verdict)
    }

    /// Has one wait again that was served in vain; `others_wait` for that, perhaps, to be looked at.
    pub(super) fn wait_again(mut self, need: Lsn, others_wait: bool, lease: &mut Lease<'_>) {
        let Some(waits) = &mut self.waits else { return };
        waits.need = waits.need.max(need);
        let (server, waiter) = (self.server.clone(), waits.waiter.clone());
        self.wait_as(&server, &waiter, lease);
        if others_wait && waiter.waits() {
            look_behind(&waiter, lease);
        }
    }

    /// Why its wait is to end, if that was said while it was on its way to be served.
    pub(super) fn is_to_end(&self) -> Option<End> {
        self.waits.as_ref()?.waiter.is_to_end()
    }

    /// Whether its user may still make the call, if it has waited.
    pub(super) fn may_be_served(&mut self, server: &Server) -> Result<(), Error> {
        if self.waits.is_none() || self.session.is_free(server) {
            return Ok(());
        }
        permit(server, &mut self.session, self.row, self.args.as_args())
    }

    /// Answers an error instead of running it.
    pub(super) fn refuse(self, server: &Arc<Server>, error: &Error, lease: &mut Lease<'_>) {
        let mut reply = self.new_reply();
        reply.error(error);
        let need = self.waits.as_ref().map_or(0, |waits| waits.leave(server, lease, false));
        self.finish(reply, need, true, Vec::new());
    }

    /// Ends its wait: it is not served any more.
    pub(super) fn end(self, server: &Arc<Server>, end: End, lease: &mut Lease<'_>) {
        if let Some(waits) = &self.waits {
            waits.leave(server, lease, false);
        }
        self.answer(end);
    }

    /// Answers that its wait has ended.
    fn answer(self, end: End) {
        let Some(waits) = &self.waits else { return };
        let mut reply = self.new_reply();
        match end {
            End::Timeout => reply.nil_array(),
            End::Unblocked => {
                reply.error(&Error::err("UNBLOCKED client unblocked via CLIENT UNBLOCK"));
            }
            End::Gone => return,
        }
        let need = waits.need;
        self.finish(reply, need, end == End::Unblocked, Vec::new());
    }
}

/// What lies with a waiter is its request.
fn request(parked: Parked, then: impl FnOnce(Request)) {
    if let Ok(request) = parked.downcast::<Request>() {
        then(*request);
    }
}

/// The time of one that waits is over. That is decided under the lease of all its keys: who stands behind one that is being served
/// waits for that one first, as there may be something for it. Whether it ended is heard by its answer.
pub fn end_in_time(server: &Arc<Server>, waiter: &Arc<Waiter>) {
    let (for_job, waiter) = (server.clone(), waiter.clone());
    let shards = waiter.shards().collect();
    let job: Job = Box::new(move |mut lease| {
        let is_held_up = |core: &Core| {
            let ns = core.names.id(&waiter.db);
            ns.is_some_and(|ns| waiter.keys_in(core.shard).any(|key| core.blocked.is_held_up(ns, key, &waiter)))
        };
        if !waiter.waits() || !lease.iter().any(|core| is_held_up(core)) {
            waiter.end(End::Timeout);
            answer_ended(&for_job, &waiter, &mut lease);
        }
        lease
    });
    server.engine.post(shards, job);
}

/// Has those looked at who have waited for one that waits again.
pub(super) fn look_behind(waiter: &Arc<Waiter>, lease: &mut Lease<'_>) {
    for core in lease.iter_mut() {
        let Some(ns) = core.names.id(&waiter.db) else { continue };
        for key in waiter.keys_in(core.shard) {
            core.blocked.look_behind(ns, key, waiter);
        }
    }
}

/// Answers a command whose wait has been ended, and takes it out of the lines in which it stands.
pub fn end_wait(server: &Arc<Server>, waiter: &Arc<Waiter>) {
    answer_ended(server, waiter, &mut Lease::default());
}

fn answer_ended(server: &Arc<Server>, waiter: &Arc<Waiter>, lease: &mut Lease<'_>) {
    if let Some((parked, end)) = waiter.take_ended() {
        leave(server, waiter, lease, (false, false));
        request(parked, |request| request.answer(end));
    }
}

/// Has those served, too, who wait for what a sweep removes.
pub fn serve_after_sweeps(server: &Arc<Server>) {
    let weak = Arc::downgrade(server);
    let serve_shard = move |shard| {
        if let Some(server) = weak.upgrade() {
            let engine = server.engine.clone();
            engine.post([shard].into_iter().collect(), Box::new(move |lease| serve(&server, lease)));
        }
    };
    _ = server.engine.serve.set(Box::new(serve_shard));
}

/// Serves those who wait for what has been changed under this lease.
#[inline]
pub fn serve<'e>(server: &Arc<Server>, lease: Lease<'e>) -> Lease<'e> {
    if lease.iter().any(|core| core.blocked.is_due() && core.hosts.is_none()) {
        serve_due(server, lease)
    } else {
        lease
    }
}

#[cold]
fn serve_due<'e>(server: &Arc<Server>, mut lease: Lease<'e>) -> Lease<'e> {
    let mut left = MOST_SERVED.get();
    while lease.iter().any(|core| core.blocked.is_due()) {
        if left == 0 {
            let shards = lease.iter().filter(|core| core.blocked.is_due()).map(|core| core.shard).collect();
            let server = server.clone();
            server.clone().engine.post(shards, Box::new(move |lease| serve(&server, lease)));
            break;
        }
        // In the order in which they were changed, whatever their shards.
        let turns = lease.iter().enumerate().filter_map(|(at, core)| Some((core.blocked.turn()?, at)));
        let Some((_, at)) = turns.min() else { break };
        if let Some(due) = lease[at].blocked.next_due() {
            lease = serve_key(server, lease, at, due, &mut left);
        }
    }
    lease
}

/// Serves those who wait for one key, as long as there is something for them.
fn serve_key<'e>(server: &Arc<Server>, mut lease: Lease<'e>, at: usize, due: Due, left: &mut usize) -> Lease<'e> {
    let Due { ns, key, unknown, .. } = due;
    let hash = table_hash(server.engine.router.hash(&key), ns);
    let mut from = lease[at].blocked.begin(ns, &key);
    let mut last = None;
    loop {
        let core = &mut *lease[at];
        // What a commit has changed is in the table, or was removed without a trace.
        let holds = match core.table.find(hash, ns, &key) {
            Some(index) => Some(core.table.at(index).kind),
            None if unknown => None,
            None => Some(Kind::Absent),
        };
        let Next::Serve(nth, waiter, parked) = core.blocked.next(ns, &key, holds, from) else { break };
        if *left == 0 {
            // It keeps its place, and is looked at with the others.
            core.blocked.pause(ns, &key, unknown, last);
            request(parked, |request| request.wait_as(server, &waiter, &mut lease));
            break;
        }
        *left -= 1;
        lease = serve_one(lease, &waiter, parked, unknown.then_some(&*key));
        from = match lease[at].blocked.stands(ns, &key, &waiter, nth) {
            Some(nth) if waiter.waits() => {
                last = Some(waiter);
                nth + 1
            }
            // Who is served later keeps those behind it.
            Some(nth) => nth,
            None => nth,
        };
    }
    lease
}

fn serve_one<'e>(mut lease: Lease<'e>, waiter: &Arc<Waiter>, parked: Parked, looked_at: Option<&[u8]>) -> Lease<'e> {
    let Ok(mut request) = parked.downcast::<Request>() else { return lease };
    request.now_ms = now_ms();
    let at_hand = |shard: &u16| lease.binary_search_by_key(shard, |core| core.shard).is_ok();
    if waiter.whole && !request.shards.iter().all(at_hand) {
        request.post(Place::Here);
    } else {
        lease = request.run_once(lease, Place::Served(looked_at.map(Into::into)));
    }
    lease
}
