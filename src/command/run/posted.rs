//! Commands that are run by another thread than the one that has parsed them, or later.
//!
//! | place | thread | the disk, and much time |
//! |---|---|---|
//! | [`Place::Here`] | whoever holds the shards, perhaps a network thread | no |
//! | [`Place::Elsewhere`] | the shard's own | yes |
//! | [`Place::Alone`] | the same, at its turn to have the memory | yes |
//! | [`Place::Long`] | one for commands in slices | yes, and the shards are given back in between |
//! | [`Place::Served`] | whoever has changed what it has waited for ([`super::blocked`]) | no |
//!
//! Each run tells where the next one is to be, until one ends.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::oneshot;

use super::blocked::{self, Waits};
use super::queued::Through;
use super::{Again, Call, Finished, MOST_RUNS, kept_by, under_lease, want_rest, wishes};
use crate::command::table;
use crate::handler::buffers::Away;
use crate::handler::ctx::Served;
use crate::handler::effects::carry_out;
use crate::handler::keys::has_others;
use crate::handler::observe::{Clock, Took};
use crate::handler::session::bits;
use crate::handler::table::Id;
use crate::handler::{Args, Command, Effect, Effects, Group, OwnedArgs, Reply, Route, Server, Session, flags};
use crate::latency::{self, Event};
use crate::log::Lsn;
use crate::meter::{self, Allowance, Ended};
use crate::shard::actor::{Guest, Job, Lease, ShardSet};
use crate::shard::engine::long::Work;
use crate::shard::engine::{Engine, gate};
use crate::shard::memory::blind::Counting;
use crate::shard::memory::blocked::End;
use crate::shard::memory::reads::Reads;
use crate::shard::txn::WriteSet;
use crate::shard::txn::rest::Rests;
use crate::util::ticks;

/// What commands gather of each of their arguments: where it stands, what it was read as.
const BYTES_OF_AN_ARG: usize = 24;

/// Room that a reply begins with: most need no more.
const REPLY_BYTES: usize = 64;

/// What is done first for a command that is posted.
pub(super) enum First {
    /// It runs with whoever holds its shard, who finds out whether it is cold or long.
    Run,
    RunElsewhere,
    /// Blind keys are sighted.
    Count,
}

/// A call with everything it needs to run on another thread.
pub(super) struct Request {
    pub(super) server: Arc<Server>,
    pub(super) session: Box<Session>,
    command: (Id, &'static Command),
    pub(super) row: &'static Command,
    pub(super) args: OwnedArgs,
    /// Counts them as long as they wait and run, when the input they came in is given back.
    away: Away,
    hash: u64,
    pub(super) now_ms: u64,
    pub(super) shards: ShardSet,
    proto: u8,
    request_bytes: usize,
    /// How long it has run.
    ran_ns: u64,
    /// Since when it waits for its turn, or for what it lacks; in ticks.
    waits_since: u64,
    /// What it lacked, and has been brought, in so many runs; and what counts that as long as it waits.
    pub(super) reads: Reads,
    brought: Away,
    runs: usize,
    /// The queue of a long EXEC.
    pub(super) through: Through,
    /// It waits for an exact count.
    counting: Option<Counting>,
    /// It waits, or has waited, for a key.
    pub(super) waits: Option<Waits>,
    done: oneshot::Sender<Finished>,
}

pub(super) fn post(
    server: &Arc<Server>,
    session: Box<Session>,
    row: &'static Command,
    call: Call<'_>,
    shards: ShardSet,
    (proto, first, ran_ns): (u8, First, u64),
) -> oneshot::Receiver<Finished> {
    let (request, finished) = Request::new(server, session, row, call, shards, (proto, ran_ns));
    match first {
        First::Run => request.post(Place::Here),
        First::RunElsewhere => request.post(Place::Elsewhere),
        First::Count => request.count(),
    }
    finished
}

impl Request {
    pub(super) fn new(
        server: &Arc<Server>,
        session: Box<Session>,
        row: &'static Command,
        call: Call<'_>,
        shards: ShardSet,
        (proto, ran_ns): (u8, u64),
    ) -> (Request, oneshot::Receiver<Finished>) {
        let (done, finished) = oneshot::channel();
        let args = OwnedArgs::from(call.args);
        let request = Request {
            server: server.clone(),
            away: Away::new(server, &session.client, args.memory_bytes()),
            session,
            command: call.command,
            row,
            args,
            hash: call.hash,
            now_ms: call.now_ms,
            shards,
            proto,
            request_bytes: call.request_bytes,
            ran_ns,
            waits_since: 0,
            reads: Reads::default(),
            brought: Away::default(),
            runs: 0,
            through: Through::default(),
            counting: None,
            waits: None,
            done,
        };
        (request, finished)
    }
}

/// Whether a command names all keys that it looks at, or knows when to rest no more: what it looks at besides nobody holds.
fn knows_keys(command: &Command, args: Args<'_>) -> bool {
    command.has(flags::SORTS) || !has_others(command, args)
}

/// Where a posted command runs.
pub(super) enum Place {
    /// With whoever holds the shard, perhaps a network thread.
    Here,
    /// On the shard's thread.
    Elsewhere,
    /// There, at its turn to have the memory.
    Alone(meter::Turn),
    /// On a thread where it may rest.
    Long,
    /// With whoever has changed a key for which it has waited, which may not have all of its shards. Where a key is named, it is
    /// only looked at anew: nobody is known to have changed it.
    Served(Option<Box<[u8]>>),
}

impl Place {
    /// What a command does there between two slices. EXEC shows nobody what is between two of its commands.
    pub(super) fn rests(&self, session: &Session, command: &Command, args: Args<'_>) -> Rests {
        match self {
            Place::Elsewhere if session.multi.is_none() && knows_keys(command, args) => Rests::Elsewhere,
            Place::Long => {
                let mut keys: Vec<_> =
                    wishes(session, command, args).map(|(key, writes)| (key.to_vec(), writes)).collect();
                // Of a key that is named twice, what is more.
                keys.sort_unstable_by(|a, b| (&a.0, b.1).cmp(&(&b.0, a.1)));
                keys.dedup_by(|a, b| a.0 == b.0);
                Rests::Holding(keys)
            }
            _ => Rests::Never,
        }
    }
}

impl Request {
    /// Has it run there when what it lacks has been read.
    pub(super) fn bring(mut self, place: Place) {
        let (server, reads) = (self.server.clone(), std::mem::take(&mut self.reads));
        self.waits_since = ticks::now();
        let then = move |reads: Reads| {
            self.has_waited(Event::DiskWait);
            self.brought = Away::new(&self.server, &self.session.client, reads.memory_bytes());
            self.reads = reads;
            self.post(place);
        };
        server.engine.readers.bring(reads, Box::new(then));
    }

    /// Has it run when what is blind by now has been sighted. No key becomes blind until it has run.
    fn count(mut self) {
        let server = self.server.clone();
        self.waits_since = ticks::now();
        let then = move |counting| {
            self.has_waited(Event::DiskWait);
            self.counting = Some(counting);
            self.post(Place::Here);
        };
        server.engine.count_exactly(Box::new(then));
    }

    /// It waits no more.
    fn has_waited(&self, event: Event) {
        latency::add(event, ticks::ns_since(self.waits_since));
    }

    pub(super) fn post(mut self, place: Place) {
        self.waits_since = ticks::now();
        let (server, shards) = (self.server.clone(), self.shards.clone());
        let guest = self.as_guest(&place);
        let job = |this: Self, place| -> Job { Box::new(move |lease| this.run(lease, place)) };
        let post = match place {
            Place::Here | Place::Served(_) => return server.engine.post_guest(shards, job(self, place), guest),
            Place::Elsewhere | Place::Alone(_) => Engine::post_blocking,
            Place::Long if self.row.group == Group::Scripting => {
                |engine: &Engine, shards, job| engine.long.post(Work::Script, shards, job)
            }
            Place::Long => |engine: &Engine, shards, job| engine.long.post(Work::Data, shards, job),
        };
        post(&server.engine, shards, job(self, place));
    }

    /// What it looks at, if it only reads one key, and may do so while another keeps the shard.
    fn as_guest(&self, place: &Place) -> Option<Guest> {
        let Route::One(at) = self.row.route else { return None };
        let args = self.args.as_args();
        let reads = self.row.has(flags::READONLY) && !self.row.may_write() && self.row.group != Group::Scripting;
        let is_guest =
            matches!(place, Place::Here) && reads && !self.row.has(flags::SORTS) && !has_others(self.row, args);
        let key = args.get(at).unwrap_or_default();
        is_guest.then(|| Guest { db: self.session.db.as_slice().into(), hash: self.hash, key: key.into() })
    }

    fn run<'e>(self, lease: Lease<'e>, place: Place) -> Lease<'e> {
        let server = self.server.clone();
        self.has_waited(Event::QueueWait);
        let lease = self.run_once(lease, place);
        blocked::serve(&server, lease)
    }

    /// Runs it, without a look at those whom that may serve.
    pub(super) fn run_once<'e>(mut self, mut lease: Lease<'e>, place: Place) -> Lease<'e> {
        let server = self.server.clone();
        if let Some(end) = self.is_to_end() {
            self.end(&server, end, &mut lease);
            return lease;
        }
        if let Err(error) = self.may_be_served(&server) {
            self.refuse(&server, &error, &mut lease);
            return lease;
        }
        if let Place::Elsewhere = place {
            let Some(gone_through) = self.go_through_queue(&mut lease) else { return lease };
            self = gone_through;
        }
        let bounds = server.bounds();
        let running = meter::begin(match &place {
            Place::Here | Place::Served(_) => Allowance::here(bounds.command),
            Place::Elsewhere | Place::Long => Allowance::elsewhere(bounds.command, self.ended()),
            Place::Alone(turn) => Allowance::elsewhere(bounds.command, self.ended()).at(turn),
        });
        // The copy of the request counts, too. A refusal ends the command at its first step.
        _ = meter::hold(self.args.memory_bytes() + self.args.as_args().len() * BYTES_OF_AN_ARG);
        let mut reply = self.new_reply();
        let (mut set, mut effects) = (SPARE.take().unwrap_or_default(), Effects::default());
        set.reads = std::mem::take(&mut self.reads);
        drop(std::mem::take(&mut self.brought));
        if !matches!(place, Place::Served(_)) {
            // Nothing that has run here before it was later: it has waited. A guest is no later than its host.
            let now_ms = crate::util::time::now_ms();
            self.now_ms = lease.first().and_then(|core| core.hosts).map_or(now_ms, |host_ms| now_ms.min(host_ms));
        }
        let (hash, now_ms, request_bytes) = (self.hash, self.now_ms, self.request_bytes);
        let call = Call { command: self.command, args: self.args.as_args(), hash, spotted: &[], now_ms, request_bytes };
        let buffers = (&mut *set, &mut effects);
        let (here, rests) =
            (matches!(place, Place::Here | Place::Served(_)), place.rests(&self.session, self.row, call.args));
        let served = match (&self.waits, &place) {
            (None, _) => Served::No,
            (Some(waits), Place::Served(Some(key))) => Served::Partly(waits.of_others(&lease, key)),
            (_, Place::Served(None)) => Served::Partly(Vec::new()),
            _ => Served::Whole,
        };
        let may = (bounds.reply, !here, rests, served);
        let clock = Clock::start();
        let result = under_lease(&server, &mut self.session, self.row, call, &mut lease, buffers, &mut reply, may);
        self.ran_ns += clock.ran_ns();
        drop(running);
        let result = match result {
            Ok((need, true)) => {
                let verdict;
                (lease, verdict) = self.was_refused(lease, &reply, (&mut set, !here), need);
                verdict
            }
            result => result,
        };
        if let Err(Again::Free) = result {
            return self.wait_for_key(lease, place);
        }
        let served_here = matches!(place, Place::Served(_));
        // With a turn to have the memory alone.
        drop(place);
        match result {
            Ok((need, failed)) => {
                if self.session.client.bits.load(Ordering::Relaxed) & bits::CLOSING != 0 {
                    reply.give_back(0);
                }
                let need = match &self.waits {
                    Some(waits) => waits.leave(&server, &mut lease, served_here).max(need),
                    None => need,
                };
                self.finish(reply, need, failed, effects.take());
            }
            Err(Again::Waits(what, need)) if self.waits.is_none() => {
                let client = self.session.client.clone();
                self.wait(*what, need, &mut lease);
                client.news.notify_one();
            }
            Err(Again::Waits(_, need) | Again::InVain(need)) => self.wait_again(need, !served_here, &mut lease),
            Err(Again::Elsewhere) if set.reads.is_content() || self.runs == MOST_RUNS => self.post(Place::Elsewhere),
            Err(Again::Elsewhere) => {
                want_rest(&server, &self.session, self.row, self.args.as_args(), &lease, &mut set.reads);
                (self.reads, self.runs) = (std::mem::take(&mut set.reads), self.runs + 1);
                self.bring(Place::Here);
            }
            Err(Again::Counted) => self.count(),
            Err(Again::Everywhere) => {
                self.shards = server.engine.all_shards();
                self.post(if here { Place::Here } else { Place::Elsewhere });
            }
            Err(Again::Long | Again::Free) => self.post(Place::Long),
            Err(Again::Alone) => {
                self.waits_since = ticks::now();
                meter::when_alone(Box::new(|turn| {
                    self.has_waited(Event::MemoryWait);
                    self.post(Place::Alone(turn));
                }));
            }
        }
        set.end();
        SPARE.set(Some(set));
        lease
    }
}

thread_local! {
    /// What the thread's last posted command has written with: its buffers, empty.
    static SPARE: Cell<Option<Box<WriteSet>>> = const { Cell::new(None) };
}

impl Request {
    /// An empty reply to it.
    pub(super) fn new_reply(&self) -> Reply {
        Reply::from_vec(Vec::with_capacity(REPLY_BYTES), self.proto)
    }

    /// Sends the reply, and the session with it, to the connection.
    pub(super) fn finish(self, mut reply: Reply, need: Lsn, failed: bool, effects: Vec<Effect>) {
        let server = self.server;
        let (slot, ran_ns) = (table().slot(self.command.0, self.row), self.ran_ns);
        let took = Took { ns: ran_ns, request_bytes: self.request_bytes, reply_bytes: reply.len() };
        server.observe(self.row, self.args.as_args(), &self.session.client, &took);
        reply.trim();
        drop(self.away);
        let away = Away::new(&server, &self.session.client, reply.capacity());
        if server.buffers.are_full() {
            crate::server::client::evict(&server);
        }
        let finished = Finished { session: self.session, reply, need, slot, failed, ran_ns, effects, away };
        // A closed channel means that the connection is gone; its write stands all the same.
        if let Err(Finished { effects, .. }) = self.done.send(finished) {
            carry_out(None, effects);
        }
    }

    /// Has it run again, where it was to, when the key is let go that keeps it.
    fn wait_for_key<'e>(mut self, mut lease: Lease<'e>, place: Place) -> Lease<'e> {
        let rests = place.rests(&self.session, self.row, self.args.as_args());
        let kept = kept_by(&self.server, &self.session, self.row, self.args.as_args(), &lease, &rests);
        let Some((at, key)) = kept else {
            self.post(place);
            return lease;
        };
        // What it waits for may take long: a turn to have the memory alone is others' meanwhile.
        let place = match place {
            Place::Alone(_) => Place::Elsewhere,
            Place::Served(_) => Place::Here,
            place => place,
        };
        // Meanwhile others may overwrite without a look: who counts asks again.
        self.counting = None;
        self.waits_since = ticks::now();
        let again = move || {
            self.has_waited(Event::QueueWait);
            self.now_ms = crate::util::time::now_ms();
            // Of a client that was killed nothing runs that has not begun.
            if self.session.client.bits.load(Ordering::Relaxed) & bits::CLOSING == 0 {
                self.post(place);
            } else {
                let server = self.server.clone();
                self.end(&server, End::Gone, &mut Lease::default());
            }
        };
        lease[at].busy.wait(&key, Box::new(again));
        lease
    }

    /// Whether the command is to end before it is done: a kill and a shutdown end any, its client's leaving one that only
    /// reads.
    fn ended(&self) -> Ended {
        let (client, server) = (self.session.client.clone(), self.server.clone());
        let writes = self.session.writes(self.row);
        let bits = if writes { bits::CLOSING } else { bits::CLOSING | bits::GONE };
        Box::new(move || {
            client.bits.load(Ordering::Relaxed) & bits != 0
                || server.engine.gate.load(Ordering::Relaxed) & gate::STOPPING != 0
        })
    }
}
