//! What a long EXEC lacks of the store is read before it runs, while it holds no shards.
//!
//! It runs on a shard's thread, where it may wait for the disk; but so would all who need its shards. So the keys of its queue are
//! gone through first, some at a time: those that only the store has are asked for, the shards given back, what was read taken
//! into the table, and so on with the next. What has left the table again by the time it runs is read then.

use super::posted::{Place, Request};
use super::{MOST_QUEUED, want_of};
use crate::handler::keys::keys_of;
use crate::shard::actor::Lease;
use crate::shard::memory::reads::Reads;
use crate::shard::memory::table::table_hash;
use crate::util::scale::Scaled;

/// Commands of a queue whose keys are looked at under one lease.
const AT_ONCE: Scaled<usize> = Scaled::new(1 << 10).in_unit_tests(64);

/// Of what a command may hold this part is taken ahead at most.
const TAKEN_OF_COMMAND: usize = 4;
/// And so many bytes of each queued command, on the average: what is longer takes its time anyway.
const TAKEN_OF_EACH: usize = 4 << 10;

/// How far a queue has been gone through.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Through {
    /// What is read of the commands up to here has been taken into the table.
    taken: usize,
    /// What those up to here lack has been asked for.
    asked: usize,
    /// What has been taken in, in bytes.
    bytes: usize,
}

impl Request {
    /// Goes through some more of a long queue, and is run again with the rest. Gives itself back when it has been gone through,
    /// or need not be.
    pub(super) fn go_through_queue(mut self, lease: &mut Lease<'_>) -> Option<Request> {
        if !lease.iter().any(|core| core.store_is_cold) {
            return Some(self);
        }
        if let Some(core) = lease.first() {
            self.session.follow(&core.names);
        }
        let queue = self.session.multi.as_ref().filter(|multi| !multi.aborted).map_or(&[][..], |multi| &multi.queue);
        if queue.len() <= MOST_QUEUED.get() || self.through.taken == queue.len() {
            return Some(self);
        }
        // What was taken last may leave for what is taken now, if there is no room for all of it.
        lease.iter_mut().for_each(|core| core.make_room());
        let Through { taken, asked, mut bytes } = self.through;
        let (ns, router) = (self.session.ns, &self.server.engine.router);
        for (command, args) in &queue[taken..asked] {
            let args = args.as_args();
            for &(at, _) in &keys_of(command, args).unwrap_or_default() {
                let (key, hash) = (&args[at], router.hash(&args[at]));
                let shard = router.shard(hash, key);
                let Ok(at) = lease.binary_search_by_key(&shard, |core| core.shard) else { continue };
                // Damage is told to who looks it up.
                if self.reads.knows(&lease[at], table_hash(hash, ns), ns, key) {
                    let before = lease[at].table_bytes;
                    _ = lease[at].fault(hash, ns, key, &mut self.reads);
                    bytes += lease[at].table_bytes.saturating_sub(before);
                }
            }
        }
        // What is in the table need not be kept, and would make room for some of what comes next in its middle.
        self.reads = Reads::default();
        // So much comes on top of what the table may hold, until the next command makes room.
        let most = (self.server.bounds().command / TAKEN_OF_COMMAND).min(asked * TAKEN_OF_EACH);
        if asked == queue.len() || bytes > most {
            self.through.taken = queue.len();
            return Some(self);
        }
        let mut until = asked;
        while until < queue.len().min(asked + AT_ONCE.get()) && !self.reads.wants_much() {
            let (command, args) = &queue[until];
            want_of(&self.server, ns, (command, args.as_args()), lease, &mut self.reads);
            until += 1;
        }
        self.through = Through { taken: asked, asked: until, bytes };
        if self.reads.is_content() {
            self.post(Place::Elsewhere)
        } else {
            self.bring(Place::Elsewhere)
        }
        None
    }
}
