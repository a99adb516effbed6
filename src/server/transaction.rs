//! MULTI, EXEC, DISCARD, WATCH, UNWATCH.
//!
//! EXEC is an ordinary function over the shards of everything queued: one transaction, one log record, so that a crash
//! leaves all of it or nothing. A queued command that fails takes back only its own writes, as in Redis.
//!
//! While EXEC runs, the session still stands in its transaction, with an empty queue: by this a command knows that it
//! must not wait.

use std::sync::atomic::Ordering;

use super::acl::permit::permit_within;
use crate::error::LOADING;
use crate::handler::acl::log::Context;
use crate::handler::keys::shards_of;
use crate::handler::limits::Bounds;
use crate::handler::session::Multi;
use crate::handler::{
    Args, Command, Ctx, Error, Group, KeySpec, OwnedArgs, Reply, Result, Route, Server, Session, flags, key,
};
use crate::meter;
use crate::shard::actor::ShardSet;
use crate::shard::engine::gate;
use crate::shard::txn::{AHEAD, Hints};

/// Of fewer commands the first is run before what the next touches could be there.
const LEAST_AHEAD: usize = 4;
/// Commands of a queue that are freed on the spot: others wait for the shards meanwhile.
const FREED_AT_ONCE: usize = 1024;

fn multi(ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    if ctx.session().multi.is_some() {
        return Err(Error::err("ERR MULTI calls can not be nested"));
    }
    *ctx.multi() = Some(Multi::default());
    ctx.session().client.multi.store(0, Ordering::Relaxed);
    out.ok();
    Ok(())
}

fn discard(ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    if ctx.session().multi.is_none() {
        return Err(Error::err("ERR DISCARD without MULTI"));
    }
    ctx.end_multi();
    out.ok();
    Ok(())
}

fn exec(ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    let result = run_queue(ctx, out);
    // Other keys may come to where those of the queue lay.
    ctx.txn.end_prefetch();
    result
}

fn run_queue(ctx: &mut Ctx, out: &mut Reply) -> Result {
    let may_block = ctx.txn.may_block();
    let Some(multi) = ctx.multi() else {
        return Err(Error::err("ERR EXEC without MULTI"));
    };
    if multi.aborted {
        ctx.end_multi();
        return Err(Error::err("EXECABORT Transaction discarded because of previous errors."));
    }
    if ctx.is_watch_broken()? {
        ctx.end_multi();
        // Whoever has changed it may not be in the log yet.
        ctx.txn.saw_all();
        out.nil_array();
        return Ok(());
    }
    let Some(multi) = ctx.multi() else { return Ok(()) };
    if !may_block && multi.queue.iter().any(|(command, _)| command.has(flags::THREAD)) {
        return Err(Error::Cold);
    }
    let (queue, done) = (std::mem::take(&mut multi.queue), std::mem::take(&mut multi.done));
    let (mut done, mut left) = (done.into_iter().peekable(), Vec::new());
    if queue.len() > AHEAD {
        let writes = queue.iter().filter(|(command, _)| command.has(flags::WRITE));
        let (count, bytes) = writes.fold((0, 0), |(count, bytes), (_, args)| (count + 1, bytes + args.bytes()));
        ctx.reserve(queue.len(), count, bytes);
    }
    out.array(queue.len());
    for (at, (command, args)) in queue.iter().enumerate() {
        ctx.txn.have_guests();
        if at % AHEAD == 0 {
            prefetch(ctx, &queue[at..]);
        }
        let earlier = done.next_if(|done| done.at == at);
        let call = (*command, args.as_args());
        // Who may not do it any more has done it.
        let permitted =
            if earlier.is_some() { Ok(Ok(())) } else { permit_within(ctx, Context::Multi, command, call.1) };
        let ran = match permitted {
            Ok(Ok(())) if command.has(flags::ONCE) => {
                ctx.run_once(at, earlier.as_ref(), call, out).map(|one| left.push(one))
            }
            Ok(Ok(())) => ctx.run(command, call.1, out),
            Ok(Err((denied, _))) => {
                out.error(&denied.error_of_queued());
                continue;
            }
            Err(error) => Err(error),
        };
        if let Err(error) = ran {
            // All of it is run again elsewhere, or not at all.
            let done = ctx.keep(left, out).chain(earlier).chain(done).collect();
            if let Some(multi) = ctx.multi() {
                (multi.queue, multi.done) = (queue, done);
            }
            return Err(error);
        }
    }
    // What the last one has noted is charged, too.
    let fits = meter::fits();
    if fits == Err(Error::Crowded) {
        let done = ctx.keep(left, out).collect();
        if let Some(multi) = ctx.multi() {
            (multi.queue, multi.done) = (queue, done);
        }
    } else {
        match queue.len() {
            ..=FREED_AT_ONCE => ctx.end_multi(),
            _ => ctx.end_multi_later(queue),
        }
    }
    fits
}

/// Fetches what the next [`AHEAD`] commands will touch, those of one key.
fn prefetch(ctx: &mut Ctx, queue: &[(&'static Command, OwnedArgs)]) {
    if queue.len() < LEAST_AHEAD {
        return;
    }
    let ns = ctx.session().ns;
    ctx.txn.prefetch(ns, queue.iter().take(AHEAD).filter_map(only_key));
}

/// The key of a command that has one, and whether it writes.
fn only_key<'q>((command, args): &'q (&'static Command, OwnedArgs)) -> Option<(&'q [u8], bool)> {
    match command.route {
        Route::One(at) => Some((args.as_args().get(at)?, command.has(flags::WRITE))),
        _ => None,
    }
}

fn watch(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    if ctx.session().multi.is_some() {
        return Err(Error::err("ERR WATCH inside MULTI is not allowed"));
    }
    if ctx.server.engine.gate.load(Ordering::Relaxed) & gate::LOADING != 0 {
        return Err(LOADING);
    }
    let most_bytes = Bounds::of(ctx.settings()).request;
    // Of a transaction that will fail nothing more has to be known.
    if !ctx.session().watch.as_ref().is_some_and(|watch| watch.is_told()) {
        ctx.watch(args.iter().skip(1), most_bytes)?;
    }
    out.ok();
    Ok(())
}

fn unwatch(ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    // EXEC ends what is watched itself, once it is sure not to be run again.
    if ctx.session().multi.is_none() {
        ctx.unwatch();
    }
    out.ok();
    Ok(())
}

/// The shards of everything queued and watched: a key's shard does not depend on the database that a queued SELECT may choose.
fn exec_shards(server: &Server, session: &Session, _args: Args<'_>) -> Option<ShardSet> {
    let mut shards = session.watch.as_ref().map_or_else(ShardSet::new, |watch| watch.shards());
    if let Some(multi) = session.multi.as_ref().filter(|multi| !multi.aborted) {
        for (command, args) in &multi.queue {
            shards.extend(shards_of(server, session, command, args.as_args(), &mut Hints::new())?);
        }
    }
    Some(shards)
}

const AT_ONCE: u32 = flags::NOSCRIPT | flags::LOADING | flags::STALE | flags::UNQUEUED;
const FLAGS: u32 = flags::NOSCRIPT | flags::LOADING | flags::STALE | flags::FAST | flags::ALLOW_BUSY;

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("multi", multi, 1, AT_ONCE | flags::FAST | flags::ALLOW_BUSY, Group::Transactions)
        .help("1.2.0", "Begins a transaction: the commands that follow are queued.")
        .syntax("", "O(1)"),
    Command::new("exec", exec, 1, AT_ONCE | flags::SKIP_SLOWLOG, Group::Transactions)
        .route_by(exec_shards)
        .help("1.2.0", "Runs all queued commands as one.")
        .syntax("", "Depends on the queued commands"),
    Command::new("discard", discard, 1, AT_ONCE | flags::FAST | flags::ALLOW_BUSY, Group::Transactions)
        .help("2.0.0", "Forgets all queued commands.")
        .syntax("", "O(N) where N is the number of queued commands"),
    Command::new("watch", watch, -2, AT_ONCE | flags::FAST | flags::ALLOW_BUSY, Group::Transactions)
        .keys(&[KeySpec::range(1, -1, 1, key::RO)])
        .help("2.2.0", "Has the next EXEC do nothing if one of the keys changes before.")
        .syntax("key [key ...]", "O(1) for each key"),
    Command::new("unwatch", unwatch, 1, FLAGS, Group::Transactions)
        .help("2.2.0", "Forgets all watched keys.")
        .syntax("", "O(N) where N is the number of watched keys"),
];

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::sync::{Arc, LazyLock};

    use super::*;
    use crate::config::{Config, Source};
    use crate::handler::ctx::Mark;
    use crate::handler::effects::{Effects, carry_out};
    use crate::handler::session::{Client, ReplyMode};
    use crate::handler::{After, OwnedArgs, Table};
    use crate::shard::keyspace::walk::tests::engine;
    use crate::shard::txn::{Txn, WriteSet};

    static TABLE: LazyLock<Table> = LazyLock::new(|| {
        use crate::server::{acl, client, connection, database, keyspace, pubsub};
        use crate::types::string::{get, number, set};
        Table::new(&[
            acl::COMMANDS,
            client::COMMANDS,
            connection::COMMANDS,
            database::COMMANDS,
            keyspace::COMMANDS,
            pubsub::COMMANDS,
            get::COMMANDS,
            number::COMMANDS,
            set::COMMANDS,
            super::COMMANDS,
        ])
    });

    fn queue(session: &mut Session, line: &str) {
        let args: OwnedArgs = line.split(' ').map(str::as_bytes).collect();
        let command = TABLE.find(&args.as_args()[0]).unwrap().1.resolve(args.as_args().get(1));
        session.multi.get_or_insert_default().queue.push((command, args));
    }

    fn run(server: &Server, session: &mut Session, may_block: bool) -> (Result, String) {
        let shards = server.engine.all_shards();
        let mut lease = server.engine.lease(&shards);
        session.follow(&lease.first().unwrap().names);
        let mut set = WriteSet::default();
        let txn = Txn::new(&mut lease, &server.engine.router, &mut set, 1, may_block);
        let mut effects = Effects::default();
        let mut ctx = Ctx::new(txn, session, &mut effects, server);
        let args: OwnedArgs = [&b"exec"[..]].into_iter().collect();
        let mut out = Reply::new(2);
        let result = exec(&mut ctx, args.as_args(), &mut out);
        match result {
            Ok(()) => {
                ctx.txn.commit(&server.engine.log);
                ctx.at_commit();
            }
            Err(_) => ctx.rollback_to(Mark::default()),
        }
        drop(lease);
        carry_out(None, effects.take());
        assert!(set.hints.is_empty(), "keys are known by where they lie: others may lie there now");
        (result, String::from_utf8_lossy(out.as_slice()).replace("\r\n", " "))
    }

    /// An engine of two shards that holds the key `cold` on disk only.
    fn with_a_cold_key(dir: &std::path::Path) -> Arc<crate::shard::Engine> {
        let before = engine(dir, 2);
        let ns = before.first_names().id(b"0").unwrap();
        before.transact(&[0, 1], 1, |txn| txn.put_string(ns, b"cold", b"value", 0)).unwrap();
        before.flush().unwrap();
        before.close(false).unwrap();
        drop(before);
        let engine = engine(dir, 2);
        engine.shards.iter().for_each(|shard| shard.core().store_is_cold = true);
        engine
    }

    /// A server with such an engine and these users, and a session of a client of it.
    fn begin(dir: &std::path::Path, users: &[&[u8]], client: Arc<Client>) -> (Server, Session) {
        use crate::handler::acl::user::User;
        let engine = with_a_cold_key(dir);
        let ns = engine.first_names().id(b"0").unwrap();
        let server = Server::new(engine, Config::load(Source::Defaults, &[]).unwrap(), &TABLE);
        for name in users {
            assert!(server.acl.put(None, User { name: (*name).into(), ..User::new_default(&TABLE) }));
        }
        let mut session = Session::new(client, server.engine.first_names(), &server.acl);
        session.ns = ns;
        (server, session)
    }

    /// Databases are selected and flushed before a read turns out to need the disk: run again, nothing of the first
    /// attempt is left in session, key space or log.
    #[test]
    fn an_exec_that_must_wait_for_the_disk_is_run_again_from_the_start() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let (server, mut session) = begin(dir.path(), &[], Arc::default());
        let ns = session.ns;
        for line in ["INCR n", "SELECT 1", "SET k v", "FLUSHDB", "SWAPDB 0 1", "GET cold", "SELECT x", "DBSIZE"] {
            queue(&mut session, line);
        }
        // It counts keys: none of those that it sets may be blind.
        let _counting = server.engine.counting();
        assert_eq!(run(&server, &mut session, false).0, Err(Error::Cold));
        assert_eq!((session.db.as_slice(), session.ns), (&b"0"[..], ns));
        assert_eq!(session.multi.as_ref().map(|multi| multi.queue.len()), Some(8));
        let (result, reply) = run(&server, &mut session, true);
        assert_eq!(result, Ok(()));
        let expected = "*8 :1 +OK +OK +OK +OK $5 value -ERR value is not an integer or out of range :2 ";
        assert_eq!(reply, expected);
        assert!(session.multi.is_none());
        assert_eq!((session.db.as_slice(), session.ns), (&b"1"[..], ns));
        assert_eq!(run(&server, &mut session, true).0, Err(Error::err("ERR EXEC without MULTI")));
    }

    /// What the first attempt did to other connections would be done twice, or change what the second one answers.
    #[test]
    fn an_exec_that_is_run_again_has_its_effects_once() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let [other, client] = [5, 6].map(|id| Arc::new(Client { id, ..Client::default() }));
        let (server, mut session) = begin(dir.path(), &[], client.clone());
        server.clients.lock().insert(5, other.clone());
        let lines = [
            "CLIENT GETNAME",
            "CLIENT SETNAME me",
            "CLIENT KILL ID 5",
            "CLIENT KILL ID 5",
            "CLIENT NO-TOUCH on",
            "HELLO 3 SETNAME other AUTH x y",
            "GET cold",
        ];
        lines.iter().for_each(|line| queue(&mut session, line));
        let killed = || other.bits.load(Ordering::Relaxed) & crate::handler::session::bits::CLOSING != 0;
        assert_eq!(run(&server, &mut session, false).0, Err(Error::Cold));
        assert!(!killed());
        assert!(client.labels.lock().name.is_empty() && client.bits.load(Ordering::Relaxed) == 0);
        let (result, reply) = run(&server, &mut session, true);
        assert_eq!(result, Ok(()));
        let wrong = "-WRONGPASS invalid username-password pair or user is disabled.";
        assert_eq!(reply, format!("*7 $-1 +OK :1 :0 +OK {wrong} $5 value "));
        assert!(killed());
        assert_eq!((&client.labels.lock().name[..], session.proto, session.no_touch), (&b"me"[..], 2, true));
    }

    /// A user that is gone cannot be removed again, and its connections are to close all the same.
    #[test]
    fn an_exec_that_is_run_again_does_once_what_is_of_the_server() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let clients = [5, 6].map(|id| Arc::new(Client { id, ..Client::default() }));
        let [own, other] = &clients;
        let (server, mut session) = begin(dir.path(), &[b"u", b"v"], own.clone());
        clients.iter().for_each(|client| client.labels.lock().user = (*b"u").into());
        server.clients.lock().extend(clients.iter().map(|client| (client.id, client.clone())));
        queue(&mut session, "SET cold x");
        assert_eq!(run(&server, &mut session, true).0, Ok(()));
        let lines = [
            "ACL DELUSER u nobody",
            "ACL USERS",
            "CLIENT GETREDIR",
            "CLIENT TRACKING ON BCAST PREFIX a",
            "DBSIZE",
            "ACL DELUSER u v",
            "SET k v",
            "DBSIZE",
        ];
        lines.iter().for_each(|line| queue(&mut session, line));
        let killed = || other.bits.load(Ordering::Relaxed) & crate::handler::session::bits::CLOSING != 0;
        // Nobody knows yet how many keys there are.
        for _ in 0..2 {
            assert_eq!(run(&server, &mut session, true).0, Err(Error::Uncounted));
            let kept = session.multi.as_ref().map(|multi| (multi.queue.len(), multi.done.len()));
            assert_eq!((kept, killed(), session.after), (Some((8, 4)), false, After::Nothing));
        }
        let _counting = server.engine.counting();
        server.engine.flush().unwrap();
        let (result, reply) = run(&server, &mut session, true);
        assert_eq!(result, Ok(()));
        assert_eq!(reply, "*8 :1 *2 $7 default $1 v :-1 +OK :1 :1 +OK :2 ");
        assert_eq!((killed(), session.after, session.multi.is_none()), (true, After::Close, true));
    }

    /// What it has done it was allowed to do.
    #[test]
    fn an_exec_that_is_run_again_may_have_given_up_the_right_to_what_it_has_done() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let (server, mut session) = begin(dir.path(), &[], Arc::default());
        queue(&mut session, "SET cold x");
        assert_eq!(run(&server, &mut session, true).0, Ok(()));
        ["ACL SETUSER default -acl", "DBSIZE", "ACL WHOAMI"].iter().for_each(|line| queue(&mut session, line));
        // Nobody knows yet how many keys there are.
        assert_eq!(run(&server, &mut session, true).0, Err(Error::Uncounted));
        let _counting = server.engine.counting();
        server.engine.flush().unwrap();
        let (result, reply) = run(&server, &mut session, true);
        assert_eq!(result, Ok(()));
        assert!(reply.starts_with("*3 +OK :1 -NOPERM "), "{reply}");
    }

    /// An attempt may end before it gets to what one before it has done: that stays done all the same.
    #[test]
    fn what_was_done_is_known_though_a_later_attempt_ends_before_it() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let (server, mut session) = begin(dir.path(), &[b"u"], Arc::default());
        queue(&mut session, "SET cold x");
        assert_eq!(run(&server, &mut session, true).0, Ok(()));
        ["CLIENT GETNAME", "ACL DELUSER u", "DBSIZE"].iter().for_each(|line| queue(&mut session, line));
        let done = |session: &Session| session.multi.as_ref().map(|multi| multi.done.len());
        // Nobody knows yet how many keys there are.
        assert_eq!((run(&server, &mut session, true).0, done(&session)), (Err(Error::Uncounted), Some(1)));
        {
            // It has no steps left for the first of them.
            let _running = meter::begin(meter::Allowance::here(1 << 20));
            while meter::step(1).is_ok() {}
            assert_eq!((run(&server, &mut session, true).0, done(&session)), (Err(Error::Cold), Some(1)));
        }
        let _counting = server.engine.counting();
        server.engine.flush().unwrap();
        assert_eq!(run(&server, &mut session, true), (Ok(()), "*3 $-1 :1 :1 ".to_owned()));
    }

    /// What waits to be run again holds little more than its queue.
    #[test]
    fn long_replies_are_not_kept_for_another_run() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let (server, mut session) = begin(dir.path(), &[], Arc::default());
        for line in ["ACL WHOAMI", "ACL CAT", "ACL CAT", "GET cold"] {
            queue(&mut session, line);
        }
        let before = session.multi_bytes();
        assert_eq!(run(&server, &mut session, false).0, Err(Error::Cold));
        assert_eq!(session.multi.as_ref().map(|multi| (multi.queue.len(), multi.done.len())), Some((4, 1)));
        assert!(session.multi_bytes() - before < 256);
        assert_eq!(run(&server, &mut session, true).0, Ok(()));
    }

    /// Whatever it has changed of its session before it had to wait.
    #[test]
    fn an_exec_that_is_run_again_finds_its_session_as_it_was() {
        use crate::handler::pubsub::By;
        let dir = crate::util::scratch::tempdir().unwrap();
        let (server, first) = begin(dir.path(), &[b"u"], Arc::default());
        let client = Client { id: 6, proto: 2.into(), messages: server.hub.messages(), ..Client::default() };
        let client = Arc::new(client);
        server.clients.lock().insert(6, client.clone());
        let mut session = Session::new(client.clone(), server.engine.first_names(), &server.acl);
        session.ns = first.ns;
        queue(&mut session, "SUBSCRIBE old");
        assert_eq!(run(&server, &mut session, true).0, Ok(()));
        let hear = || [&b"old"[..], b"new"].map(|name| server.hub.subscribers(By::Channel, name));
        let numbers = || (client.bits.load(Ordering::Relaxed), client.proto.load(Ordering::Relaxed));
        let seen = |session: &Session| {
            (format!("{:?}", session.state()), hear(), numbers(), client.db.load(Ordering::Relaxed))
        };
        let before = seen(&session);
        for line in [
            "CLIENT SETNAME me",
            "CLIENT SETINFO lib-name lib",
            "CLIENT NO-TOUCH on",
            "CLIENT NO-EVICT on",
            "CLIENT REPLY off",
            "CLIENT KILL ID 6 SKIPME no",
            "HELLO 3",
            "SELECT 1",
            "AUTH u x",
            "UNSUBSCRIBE old",
            "SUBSCRIBE new",
            "SELECT 0",
            "GET cold",
            "SELECT 1",
        ] {
            queue(&mut session, line);
        }
        assert_eq!(run(&server, &mut session, false).0, Err(Error::Cold));
        assert_eq!(seen(&session), before);
        assert_eq!(run(&server, &mut session, true).0, Ok(()));
        assert_eq!((hear(), session.proto, session.no_touch, session.no_evict), ([0, 1], 3, true, true));
        assert_eq!((&session.db[..], &session.identity.user.name[..]), (&b"1"[..], &b"u"[..]));
        assert_eq!((session.reply_mode, session.after), (ReplyMode::Off, After::Close));
    }

    /// A look without their lease could come before a change, and the commit after it.
    #[test]
    fn an_exec_has_the_shards_of_what_is_watched() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let server = Server::new(engine(dir.path(), 4), Config::load(Source::Defaults, &[]).unwrap(), &TABLE);
        let mut session = Session::new(Arc::new(Client::default()), server.engine.first_names(), &server.acl);
        let mut set = WriteSet::default();
        let mut under = |session: &mut Session, shards: &[u16], line: &str| {
            let mut lease = server.engine.lease(shards);
            let txn = Txn::new(&mut lease, &server.engine.router, &mut set, 1, true);
            let mut effects = Effects::default();
            let mut ctx = Ctx::new(txn, session, &mut effects, &server);
            let args: OwnedArgs = line.split(' ').map(str::as_bytes).collect();
            let run = if line == "exec" { exec } else { watch };
            run(&mut ctx, args.as_args(), &mut Reply::new(2))
        };
        // So many that each shard has some, whatever the hash key is.
        let keys: Vec<String> = (0..100).map(|n| format!("key{n}")).collect();
        let line = format!("watch {}", keys.join(" "));
        under(&mut session, &[0, 1, 2, 3], &line).unwrap();
        queue(&mut session, "PING");
        let none = OwnedArgs::default();
        assert_eq!(exec_shards(&server, &session, none.as_args()).unwrap()[..], [0, 1, 2, 3]);
        assert_eq!(under(&mut session, &[0, 1, 3], "exec"), Err(Error::Undeclared));
        assert!(session.watch.is_some() && session.multi.is_some(), "it is run again");
        assert_eq!(under(&mut session, &[0, 1, 2, 3], "exec"), Ok(()));
        assert!(session.watch.is_none() && session.multi.is_none());
    }

    /// Between two runs of it others have their turns, and what is watched may change.
    #[test]
    fn an_unwatch_within_an_exec_that_is_run_again_has_forgotten_nothing() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let (server, mut session) = begin(dir.path(), &[], Arc::default());
        {
            let (mut set, mut effects) = (WriteSet::default(), Effects::default());
            let mut lease = server.engine.lease(&server.engine.all_shards());
            let txn = Txn::new(&mut lease, &server.engine.router, &mut set, 1, true);
            let mut ctx = Ctx::new(txn, &mut session, &mut effects, &server);
            let args: OwnedArgs = [&b"watch"[..], b"k"].into_iter().collect();
            watch(&mut ctx, args.as_args(), &mut Reply::new(2)).unwrap();
        }
        ["UNWATCH", "GET cold"].iter().for_each(|line| queue(&mut session, line));
        assert_eq!(run(&server, &mut session, false).0, Err(Error::Cold));
        server.engine.transact(&[0, 1], 1, |txn| txn.put_string(session.ns, b"k", b"changed", 0)).unwrap();
        assert_eq!(run(&server, &mut session, true), (Ok(()), "*-1 ".to_owned()));
    }

    /// Nor does it run as the default user, which the connection would be if it had just begun.
    #[test]
    fn nothing_runs_for_a_user_who_is_removed_meanwhile() {
        use crate::handler::acl::{Identity, user::User};
        let dir = crate::util::scratch::tempdir().unwrap();
        let server = Server::new(engine(dir.path(), 1), Config::load(Source::Defaults, &[]).unwrap(), &TABLE);
        let mut session = Session::new(Arc::new(Client::default()), server.engine.first_names(), &server.acl);
        session.ns = server.engine.first_names().id(b"0").unwrap();
        assert!(server.acl.put(None, User { name: (*b"u").into(), ..User::new_default(&TABLE) }));
        session.become_user(Identity::of(server.acl.user(b"u").unwrap()));
        // It has been looked for before, and was there.
        assert!(session.look_up(&server) && session.is_free(&server));
        queue(&mut session, "SET k v");
        queue(&mut session, "GET k");
        assert!(server.acl.remove(b"u"));
        assert!(!session.is_up_to_date(&server));
        let (result, reply) = run(&server, &mut session, true);
        assert_eq!(result, Ok(()));
        assert_eq!(reply.matches("-NOPERM ").count(), 2, "{reply}");
    }

    #[test]
    fn a_spoilt_transaction_is_discarded() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let server = Server::new(engine(dir.path(), 1), Config::load(Source::Defaults, &[]).unwrap(), &TABLE);
        let mut session = Session::new(Arc::new(Client::default()), server.engine.first_names(), &server.acl);
        queue(&mut session, "SET k v");
        session.multi.as_mut().unwrap().aborted = true;
        let aborted = Error::err("EXECABORT Transaction discarded because of previous errors.");
        assert_eq!(run(&server, &mut session, false).0, Err(aborted));
        assert!(session.multi.is_none());
    }
}
