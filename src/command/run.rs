//! A command's run: checks, lease, function, commit.
//!
//! | outcome of [`start`] | meaning |
//! |---|---|
//! | `Done` | replied; the reply may leave once the log has reached the LSN |
//! | `Posted` | another holder of the shard, or the shard's thread, runs it and sends session and reply back |
//! | `Lacks` | what it lacks stands in the runner's [`Reads`]: to be tried again once that is read |
//! | `Closed` | the gate is not open; nothing was done, to be tried again |

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::oneshot;

use posted::{First, Request, post};

use super::table;
use crate::codec::NsId;
use crate::error::{Error, LOADING, OOM, quotation};
use crate::handler::buffers::Away;
use crate::handler::ctx::{Mark, Served};
use crate::handler::effects::Wait;
use crate::handler::keys::{keys_of, shards_of, shards_of_spotted};
use crate::handler::limits::Bounds;
use crate::handler::observe::{Clock, Took};
use crate::handler::server::{ThreadStats, bump};
use crate::handler::session::Multi;
use crate::handler::table::{Id, Slot};
use crate::handler::{
    Args, Command, Ctx, Effect, Effects, Group, OwnedArgs, Reply, Route, Server, Session, flags, key,
};
use crate::latency::{self, Event};
use crate::log::Lsn;
use crate::meter::{self, Allowance};
use crate::server::acl::permit::permit;
use crate::shard::actor::{Lease, ShardSet};
use crate::shard::engine::gate;
use crate::shard::memory::ahead;
use crate::shard::memory::busy::Wish;
use crate::shard::memory::reads::{MOST_READS, Reads};
use crate::shard::memory::table::table_hash;
use crate::shard::txn::rest::Rests;
use crate::shard::txn::{Hint, Spotted, Txn, WriteSet};
use crate::util::scale::Scaled;

/// What became of a command.
pub enum Outcome {
    /// Replied.
    Done,
    /// Under way elsewhere.
    Posted(oneshot::Receiver<Finished>),
    /// What it lacks of the store is wanted in [`WriteSet::reads`]: ask again when it has been read.
    Lacks,
    /// Loading, paused or slowed: ask again later.
    Closed,
}

/// What comes back from a posted command.
pub struct Finished {
    /// The connection's state.
    pub session: Box<Session>,
    /// Its reply.
    pub reply: Reply,
    /// What the reply must wait for.
    pub need: Lsn,
    /// The command's slot.
    pub slot: Slot,
    /// It failed.
    pub failed: bool,
    /// How long it ran.
    pub ran_ns: u64,
    /// What leaves with the reply.
    pub effects: Vec<Effect>,
    /// Counts the reply as long as it is on its way.
    pub away: Away,
}

/// What a network thread keeps for running commands.
pub struct Runner {
    /// The server.
    pub server: Arc<Server>,
    /// The thread's counters.
    pub stats: Arc<ThreadStats>,
    /// Buffers of the write set.
    pub set: WriteSet,
    /// The command's effects, until they leave with its reply.
    pub effects: Effects,
    /// Reads of the store that the thread may still do itself before its tick ends: whoever else is served in it waits
    /// for them.
    pub reads_here: usize,
    /// Others than who is served may wait for the thread.
    pub in_company: bool,
    /// How often what the next command lacked has been read, and how long it ran before that.
    pub tries: usize,
    /// See `tries`.
    pub tried_ns: u64,
    /// Times what the thread runs: from one command's end to the next one's.
    pub clock: Clock,
    /// What commands may take, and the generation of the directives that say so.
    bounds: (u64, Bounds),
}

/// Reads of the store that a network thread does in a tick where they come back at once: about as many as cost less than
/// to ask another thread.
pub const READS_HERE: usize = 4;

impl Runner {
    /// Reads what is wanted where it stands, if it is little, comes back at once, and is not better left to others: those may
    /// have a core for it, and who else is served does not wait.
    pub fn read_here(&mut self) {
        read_here(&self.server, self.in_company, &mut self.set.reads, &mut self.reads_here);
    }

    /// For one network thread.
    pub fn new(server: Arc<Server>, stats: Arc<ThreadStats>) -> Self {
        let bounds = (server.config.generation(), server.bounds());
        Runner {
            server,
            stats,
            set: WriteSet::default(),
            effects: Effects::default(),
            reads_here: READS_HERE,
            in_company: false,
            tries: 0,
            tried_ns: 0,
            clock: Clock::start(),
            bounds,
        }
    }

    /// What a command may take.
    #[inline]
    fn bounds(&mut self) -> Bounds {
        if self.bounds.0 != self.server.config.generation() {
            self.bounds = (self.server.config.generation(), self.server.bounds());
        }
        self.bounds.1
    }
}

/// One call as it was parsed.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    /// Row and its id.
    pub command: (Id, &'static Command),
    /// Arguments, the name included.
    pub args: Args<'a>,
    /// Hash of the only key, if the route is `One`.
    pub hash: u64,
    /// All of its keys, if the route is `Keys` and a look-ahead has found them.
    pub spotted: &'a [Spotted],
    /// Unix time, ms.
    pub now_ms: u64,
    /// Bytes that it came in.
    pub request_bytes: usize,
}

/// Runs a command, or sends it where it can run. The session is taken only if it is posted.
#[inline]
pub fn start(
    runner: &mut Runner,
    slot: &mut Option<Box<Session>>,
    call: Call<'_>,
    out: &mut Reply,
    need: &mut Lsn,
) -> Outcome {
    let Some(session) = slot.as_deref_mut() else { return Outcome::Closed };
    let (id, container) = call.command;
    let command = container.resolve(call.args.get(1));
    let slot_id = table().slot(id, command);
    session.client.command.store(slot_id, Ordering::Relaxed);
    if let Err(error) = check(runner, session, command, container, call.args) {
        session.end_caching();
        refuse(runner, slot_id, session, out, &error);
        return Outcome::Done;
    }
    let mut call = call;
    if !std::ptr::eq(command, container) {
        // The look-ahead knows the container's route only.
        call.spotted = &[];
        if let Route::One(at) = command.route {
            call.hash = runner.server.engine.router.hash(&call.args[at]);
        }
    }
    let gate = runner.server.engine.gate.load(Ordering::Relaxed);
    if gate != 0 {
        match pass_gate(&runner.server, gate, session, command, call.now_ms) {
            Ok(true) => {}
            Ok(false) => return Outcome::Closed,
            Err(error) => {
                session.end_caching();
                refuse(runner, slot_id, session, out, &error);
                return Outcome::Done;
            }
        }
    }
    if session.queues(command) {
        enqueue(session, command, call.args, runner.bounds().request, out);
        runner.clock.lap();
        return Outcome::Done;
    }
    run_here(runner, slot, call, (slot_id, command), out, need)
}

#[cold]
fn refuse(runner: &mut Runner, slot: Slot, session: &mut Session, out: &mut Reply, error: &Error) {
    runner.clock.lap();
    let stats = &runner.stats;
    stats.count_rejected(slot);
    let begin = out.len();
    if table().slot_name(slot).is_some_and(|name| name == "exec") {
        // Redis answers so even outside of a transaction.
        session.end_multi();
        let text = error.text();
        let why = text.strip_prefix("ERR ").unwrap_or(&text);
        out.error(&Error::Text(format!("EXECABORT Transaction discarded because of: {why}").into()));
    } else {
        if let Some(multi) = &mut session.multi {
            multi.aborted = true;
        }
        out.error(error);
    }
    stats.count_error(&out.as_slice()[begin..]);
}

#[inline]
fn check(
    runner: &Runner,
    session: &mut Session,
    command: &'static Command,
    container: &Command,
    args: Args<'_>,
) -> Result<(), Error> {
    if !command.accepts(args.len()) {
        return Err(Error::Arity(full_name(command, container).into()));
    }
    if let Some(permit) = command.permit {
        permit(&runner.server, session)?;
    }
    if session.multi.is_some() && command.has(flags::NO_MULTI) {
        return Err(Error::err("ERR Command not allowed inside a transaction"));
    }
    if !session.is_free(&runner.server) {
        permit(&runner.server, session, command, args)?;
    }
    if session.proto == 2 && session.subscriptions.is_some() && !command.has(flags::SUBSCRIBER) && session.hears() {
        return Err(only_subscribers(command, container));
    }
    session.check_monitor(command)
}

fn full_name(command: &Command, container: &Command) -> String {
    if std::ptr::eq(command, container) {
        command.name.to_owned()
    } else {
        format!("{}|{}", container.name, command.name)
    }
}

/// In RESP2 a message could not be told from a reply.
#[cold]
fn only_subscribers(command: &Command, container: &Command) -> Error {
    let name = full_name(command, container);
    let allowed = "(P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET";
    Error::Text(format!("ERR Can't execute '{name}': only {allowed} are allowed in this context").into())
}

/// Whether the command may run now; an error if it may not run at all.
#[cold]
fn pass_gate(server: &Server, gate: u32, session: &Session, command: &Command, now_ms: u64) -> Result<bool, Error> {
    if gate & gate::STOPPING != 0 {
        return Ok(false);
    }
    // PING tells whether the process lives, not whether its data is there.
    if gate & gate::LOADING != 0 && !command.has(flags::LOADING) && command.name != "ping" {
        return Err(LOADING);
    }
    let writes = session.writes(command);
    if gate & gate::REFUSED != 0
        && session.surely_writes(command)
        && let Some(why) = server.engine.refusal()
    {
        return Err(Error::Misconf(why.to_string().into()));
    }
    if gate & gate::FULL != 0 && session.may_add(command) {
        return Err(OOM);
    }
    if gate & gate::PAUSED != 0 {
        let pause = *server.pause.borrow();
        // CLIENT UNPAUSE must get through, and with it those who look for the reason of the silence.
        let exempt = matches!(command.group, Group::Connection) && !matches!(command.name, "ping" | "echo");
        if now_ms < pause.until_ms && (writes || pause.all && !exempt) {
            return Ok(false);
        }
        if now_ms >= pause.until_ms {
            server.end_pause(now_ms);
        }
    }
    Ok(true)
}

/// Keeps a command for EXEC. A queue that takes more than `most_bytes` is given up: it could not run.
fn enqueue(session: &mut Session, command: &'static Command, args: Args<'_>, most_bytes: usize, out: &mut Reply) {
    if let Some(multi) = &mut session.multi {
        multi.push(command, OwnedArgs::from(args));
        if multi.memory_bytes() > most_bytes {
            *multi = Multi::default();
            multi.aborted = true;
            session.client.multi.store(0, Ordering::Relaxed);
            return out.error(&Error::TooMuch);
        }
        session.client.multi.store(multi.queue.len() as i64, Ordering::Relaxed);
    }
    out.status("QUEUED");
}

/// See [`Runner::read_here`].
fn read_here(server: &Server, in_company: bool, reads: &mut Reads, left: &mut usize) {
    if !in_company || !server.engine.readers.have_time() {
        *left -= reads.bring(*left);
    }
}

#[inline]
fn run_here(
    runner: &mut Runner,
    slot: &mut Option<Box<Session>>,
    call: Call<'_>,
    (slot_id, command): (Slot, &'static Command),
    out: &mut Reply,
    need: &mut Lsn,
) -> Outcome {
    let bounds = runner.bounds();
    let Runner { server, stats, set, effects, reads_here, in_company, tries, tried_ns, clock, .. } = runner;
    let Some(session) = slot.as_deref_mut() else { return Outcome::Closed };
    set.hints.clear();
    let queued = session.multi.as_ref().map_or(0, |multi| multi.queue.len());
    let long = call.args.len().max(queued) > MOST_ARGS.get();
    let takes_long = long || queued > MOST_QUEUED.get();
    let mut shards = match command.route {
        Route::One(at) if call.args.len() > at => {
            let key = &call.args[at];
            let shard = server.engine.router.shard(call.hash, key);
            set.hints.push(Hint::new(key, call.hash, shard));
            ShardSet::from_buf_and_len([shard; 8], 1)
        }
        Route::None => ShardSet::new(),
        Route::Keys if !call.spotted.is_empty() => shards_of_spotted(command, call.spotted, &mut set.hints),
        // To hash so many keys would itself take long; there will be some of each shard.
        Route::Keys | Route::By(_) if long => server.engine.all_shards(),
        _ => {
            shards_of(server, session, command, call.args, &mut set.hints).unwrap_or_else(|| server.engine.all_shards())
        }
    };
    let begin = out.len();
    let mut first = if command.has(flags::THREAD) || takes_long { First::RunElsewhere } else { First::Run };
    let mut runs = *tries;
    while matches!(first, First::Run)
        && let Some(mut lease) = server.engine.try_lease(&shards)
    {
        let running = meter::begin(Allowance::here(bounds.command));
        let place = (bounds.reply, false, Rests::Never, Served::No);
        let result = under_lease(server, session, command, call, &mut lease, (set, effects), out, place);
        // What waits for these cores has an allowance of its own.
        drop(running);
        match result {
            Ok((lsn, failed)) => {
                let (ns, reply_bytes) = (clock.lap() + *tried_ns, out.len() - begin);
                server.observer.count(stats, slot_id, ns, failed);
                let took = Took { ns, request_bytes: call.request_bytes, reply_bytes };
                server.observe(command, call.args, &session.client, &took);
                if lease.iter().any(|core| core.blocked.is_due()) {
                    drop(blocked::serve(server, lease));
                    // That was others' time.
                    *clock = Clock::start();
                }
                *need = (*need).max(lsn);
                if failed {
                    stats.count_error(&out.as_slice()[begin..]);
                }
                return Outcome::Done;
            }
            Err(Again::Waits(what, lsn)) => {
                let Some(session) = slot.take() else { return Outcome::Closed };
                let call = Call { command: call.command, ..call };
                let ran_ns = clock.lap() + *tried_ns;
                let (request, finished) = Request::new(server, session, command, call, shards, (out.proto(), ran_ns));
                request.wait(*what, lsn, &mut lease);
                return Outcome::Posted(finished);
            }
            Err(Again::Counted) => {
                first = First::Count;
                break;
            }
            Err(Again::Everywhere) => {
                drop(lease);
                shards = server.engine.all_shards();
                continue;
            }
            // Whoever runs it next finds out for which key it waits.
            Err(Again::Free) => break,
            Err(Again::Elsewhere | Again::Alone | Again::Long | Again::InVain(_)) => {}
        }
        runs += 1;
        if !set.reads.is_content() {
            want_rest(server, session, command, call.args, &lease, &mut set.reads);
        }
        drop(lease);
        if runs >= MOST_RUNS || set.reads.is_content() {
            // Long, too much beside others, or not to be read ahead: another run on this thread would end as this one did.
            set.reads.give_up();
            first = First::RunElsewhere;
        } else {
            latency::wait_for(Event::DiskWait, || read_here(server, *in_company, &mut set.reads, reads_here));
            if !set.reads.is_content() {
                *tried_ns += clock.lap();
                return Outcome::Lacks;
            }
        }
    }
    let Some(session) = slot.take() else { return Outcome::Closed };
    set.reads.give_up();
    if matches!(first, First::Run) {
        bump(&stats.left, 1);
    }
    let ran_ns = clock.lap() + *tried_ns;
    Outcome::Posted(post(server, session, command, call, shards, (out.proto(), first, ran_ns)))
}

/// Runs of a command on a network thread: each may find missing what only the one before could tell it to look for.
const MOST_RUNS: usize = 8;

/// A command lacks something of the store: what other keys and elements it names that are to be read, at once.
#[cold]
fn want_rest(
    server: &Server,
    session: &Session,
    command: &Command,
    args: Args<'_>,
    lease: &Lease<'_>,
    reads: &mut Reads,
) {
    calls(session, command, args).for_each(|call| want_of(server, session.ns, call, lease, reads));
}

/// Wants what a call names of keys and elements that only the store may have.
fn want_of(server: &Server, ns: NsId, (command, args): (&Command, Args<'_>), lease: &Lease<'_>, reads: &mut Reads) {
    if (command.overwrites)(args.len()) {
        return;
    }
    let router = &server.engine.router;
    for &(at, _) in &keys_of(command, args).unwrap_or_default() {
        if reads.wants_much() {
            break;
        }
        let hash = router.hash(&args[at]);
        let shard = router.shard(hash, &args[at]);
        let Ok(at_core) = lease.binary_search_by_key(&shard, |core| core.shard) else { continue };
        let (core, hash) = (&lease[at_core], table_hash(hash, ns));
        let look = command.look.as_ref().filter(|look| look.arg < args.len());
        core.want(hash, ns, &args[at], look.map(|look| (look, &args[look.arg])), reads);
        if let (Some(look), Some(index)) = (command.look, core.table.find(hash, ns, &args[at])) {
            for arg in look.args(args.len()) {
                if reads.wants_much() {
                    break;
                }
                ahead::want(core, ahead::Wanted { index, look, text: &args[arg], score: None }, reads);
            }
        }
    }
}

/// With more arguments a command is not even begun on a network thread.
const MOST_ARGS: Scaled<usize> = Scaled::new(8 << 10);
/// Nor with more commands queued; of so many cold keys it would not have all brought in [`MOST_RUNS`] either: see [`queued`].
const MOST_QUEUED: Scaled<usize> = Scaled::new(MOST_RUNS * MOST_READS);

/// The function must be run again; it left nothing behind.
enum Again {
    /// Where it may wait for the disk and take its time.
    Elsewhere,
    /// There, when other commands have given back the memory that it needs.
    Alone,
    /// Once blind keys are sighted.
    Counted,
    /// With all shards.
    Everywhere,
    /// Where it may rest.
    Long,
    /// Once a key is let go.
    Free,
    /// Once a key for which it has waited holds something for it.
    InVain(Lsn),
    /// Once a key holds what this says; the reply waits for the log to get there.
    Waits(Box<Wait>, Lsn),
}

/// Runs the function and commits; whether it failed. The caller has given it an allowance.
#[expect(clippy::too_many_arguments, reason = "the way of every command, without a struct to fill on the hot path")]
#[expect(clippy::inline_always, reason = "most have no rests and were not served: nothing is moved for them")]
#[inline(always)]
fn under_lease<'e>(
    server: &Server,
    session: &mut Session,
    command: &'static Command,
    call: Call<'_>,
    lease: &mut Lease<'e>,
    (set, effects): (&mut WriteSet, &mut Effects),
    out: &mut Reply,
    (most_reply, may_block, rests, served): (usize, bool, Rests, Served),
) -> Result<(Lsn, bool), Again> {
    let mut is_free = true;
    for core in lease.iter_mut() {
        core.commands += 1;
        is_free &= core.busy.is_empty();
    }
    if !is_free && kept_by(server, session, command, call.args, lease, &rests).is_some() {
        return Err(Again::Free);
    }
    if let Some(core) = lease.first() {
        session.follow(&core.names);
    }
    let no_touch = session.no_touch;
    let txn = Txn::new(lease, &server.engine.router, set, call.now_ms, may_block);
    if txn.lease.len() > 1 {
        // Where others had the cores the look-ahead has passed them by, and as long as this one has several others wait.
        txn.prefetch_hinted(session.ns, command.has(flags::WRITE));
    }
    let mut ctx = Ctx::new(txn, session, effects, server);
    ctx.begin();
    ctx.txn.count_hits = command.has(flags::READONLY);
    ctx.txn.no_touch = no_touch;
    ctx.txn.may_do(rests);
    ctx.served = served;
    let begin = out.len();
    ctx.show_before(command, call.args);
    let result = ctx.perform(command, call.args, out);
    if result.is_ok() {
        ctx.tell_changes(command);
        ctx.remember(command, call.args);
        ctx.show_after(command, call.args);
    }
    let too_long = |out: &Reply| out.len() - begin > most_reply;
    let result = result.and_then(|()| meter::fits());
    let result = result.and_then(|()| if too_long(out) { Err(Error::TooMuch) } else { Ok(()) });
    let result = match result {
        Ok(()) => {
            debug_assert!(
                !ctx.txn.has_writes() || !command.has(flags::READONLY) || command.has(flags::KEEPS_RESULT),
                "a read-only command leaves no write behind: {}",
                command.name
            );
            let lsn = ctx.txn.commit(&server.engine.log);
            ctx.be_late();
            ctx.at_commit();
            ctx.take_wait().map_or(Ok((lsn, false)), |wait| Err(Again::Waits(wait, lsn)))
        }
        Err(error) => {
            let again = match error {
                Error::Cold => Some(Again::Elsewhere),
                Error::Crowded => Some(Again::Alone),
                Error::Uncounted => Some(Again::Counted),
                Error::Undeclared => Some(Again::Everywhere),
                Error::Long => Some(Again::Long),
                _ => None,
            };
            if again.is_some() {
                ctx.txn.take_back_uses();
            }
            ctx.rollback_to(Mark::default());
            out.truncate(begin);
            out.set_proto(ctx.session().proto);
            match again {
                Some(again) => Err(again),
                None => {
                    ctx.be_late();
                    ctx.remember(command, call.args);
                    ctx.show_failed(command, call.args);
                    ctx.at_commit();
                    ctx.txn.count_look_ups();
                    out.error(&error);
                    Ok((ctx.txn.need, true))
                }
            }
        }
    };
    // One that is run again, or waits, has not ended.
    if result.is_ok() {
        ctx.end_caching(command);
    }
    let waiting = ctx.txn.let_go();
    if !waiting.is_empty() {
        // They find the cores taken here, or run what else has waited: not on this thread, which has them.
        let run = move || waiting.into_iter().for_each(|waiter| waiter());
        server.engine.readers.work(Box::new(run));
    }
    result
}

/// A call, and where it is EXEC those of its queue.
fn calls<'a>(
    session: &'a Session,
    command: &'a Command,
    args: Args<'a>,
) -> impl Iterator<Item = (&'a Command, Args<'a>)> {
    let queued = session.multi.iter().flat_map(|multi| &multi.queue);
    std::iter::once((command, args)).chain(queued.map(|queued| (queued.0, queued.1.as_args())))
}

/// The keys of a call, and whether it writes them; of EXEC those of its queue.
fn wishes<'a>(session: &'a Session, command: &'a Command, args: Args<'a>) -> impl Iterator<Item = (&'a [u8], bool)> {
    calls(session, command, args).flat_map(|(command, args)| {
        let keys = keys_of(command, args).unwrap_or_default();
        let is_written = |flags: u16| flags & (key::RW | key::OW | key::RM) != 0;
        // By Redis's flags XREADGROUP only reads, SORT leaves its source as it was, and PFCOUNT keeps no result.
        let all = command.has(flags::SORTS) || !keys.iter().any(|&(_, flags)| is_written(flags));
        let writes = command.may_write();
        keys.into_iter().filter_map(move |(at, flags)| Some((args.get(at)?, writes && (all || is_written(flags)))))
    })
}

/// The key that somebody else goes through and that keeps a call from running: its core, and the key.
#[cold]
fn kept_by(
    server: &Server,
    session: &Session,
    command: &Command,
    args: Args<'_>,
    lease: &Lease<'_>,
    rests: &Rests,
) -> Option<(usize, Vec<u8>)> {
    let holds = matches!(rests, Rests::Holding(_));
    // Who only reads, and holds nothing, waits for nobody.
    if !holds && !calls(session, command, args).any(|(command, _)| command.may_write()) {
        return None;
    }
    wishes(session, command, args).find_map(|(key, writes)| {
        let shard = server.engine.router.shard_of(key);
        let at = lease.binary_search_by_key(&shard, |core| core.shard).ok()?;
        lease[at].busy.keeps(key, Wish { writes, holds }).then(|| (at, key.to_vec()))
    })
}

/// Redis's text for a command it does not know.
pub fn unknown_command(args: Args<'_>) -> Error {
    let mut text = [b"ERR unknown command '", quotation(&args[0], 128), b"', with args beginning with: "].concat();
    let begin = text.len();
    for arg in args.iter().skip(1) {
        let said = text.len() - begin;
        if said >= 128 {
            break;
        }
        text.push(b'\'');
        text.extend_from_slice(quotation(arg, 128 - said));
        text.extend_from_slice(b"' ");
    }
    Error::Quoted(text.into())
}

pub mod blocked;
mod posted;
mod queued;
#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests;
