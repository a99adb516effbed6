//! The engine of a data directory without connections: what runs is run where it is called, waits for the disk, and has no
//! limits of time. Nothing expires, whatever time it is.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::command::table;
use crate::config::Config;
use crate::config::budget::{Budget, Machine};
use crate::handler::ctx::Mark;
use crate::handler::effects::Effects;
use crate::handler::keys::shards_of;
use crate::handler::row::{Route, flags};
use crate::handler::session::Client;
use crate::handler::{Args, Command, Ctx, Error, OwnedArgs, Reply, Result, Server, Session};
use crate::log::{Fsync, Lsn, RealIo};
use crate::shard::Engine;
use crate::shard::actor::ShardSet;
use crate::shard::engine::{EngineOptions, OpenError};
use crate::shard::router::ShardId;
use crate::shard::txn::{Hints, Txn, WriteSet};
use crate::util::pace;

/// Opens a data directory. Nothing is synced before it is closed, nothing expires.
///
/// # Errors
/// As of [`Engine::open`].
pub(super) fn open(config: Config) -> Result<Arc<Server>, OpenError> {
    let settings = config.settings();
    let budget = Budget::new(&settings, &Machine::read());
    pace::serve_nobody();
    let flush_threads = crate::shard::engine::cores();
    let options = EngineOptions { fsync: Fsync::No, nice: 0, flush_threads, ..budget.engine_options(&settings) };
    let engine = Engine::open(Arc::new(RealIo), options)?;
    engine.active_expire.store(false, Ordering::Relaxed);
    let server = Arc::new(Server::new(engine, config, table()));
    _ = server.engine.make_library.set(crate::server::script::library::stored);
    server.engine.replay()?;
    Ok(server)
}

/// Somebody who runs transactions and commands.
pub(super) struct Local {
    pub(super) server: Arc<Server>,
    session: Session,
    effects: Effects,
    set: WriteSet,
    /// The last commit that the log may still have to write.
    unwritten: Lsn,
}

impl Local {
    pub(super) fn new(server: &Arc<Server>) -> Self {
        let session = Session::new(Arc::new(Client::default()), server.engine.first_names(), &server.acl);
        Local { server: server.clone(), session, effects: Effects::default(), set: WriteSet::default(), unwritten: 0 }
    }

    /// Turns to a database; false if there is none of this name.
    pub(super) fn select(&mut self, name: &[u8]) -> bool {
        self.session.select(name);
        self.session.names.id(name).is_some()
    }

    /// The name of the database that it has turned to.
    pub(super) fn db(&self) -> &[u8] {
        &self.session.db
    }

    /// Has the log write what its transactions have left to it.
    pub(super) fn write_out(&mut self) {
        self.server.engine.write_out(std::mem::take(&mut self.unwritten));
    }

    /// Waits until there is room for what is about to be written.
    fn wait_for_room(&mut self) -> Result {
        for pauses in 0.. {
            let engine = &self.server.engine;
            if let Some(why) = engine.refusal() {
                return Err(Error::Misconf(why.to_string().into()));
            }
            match engine.pause_us(true, pauses) {
                0 => break,
                delay_us => {
                    // What has not been written cannot be flushed.
                    self.write_out();
                    std::thread::sleep(Duration::from_micros(delay_us));
                }
            }
        }
        Ok(())
    }

    /// Runs a transaction over these shards, and leaves what it has changed to the next [`Local::write_out`].
    pub(super) fn transact<R>(
        &mut self,
        shards: &[ShardId],
        now_ms: u64,
        run: impl FnOnce(&mut Ctx) -> Result<R>,
    ) -> Result<R> {
        self.wait_for_room()?;
        let Local { server, session, effects, set, unwritten } = self;
        let engine = &server.engine;
        let mut lease = engine.lease(shards);
        if let Some(core) = lease.first() {
            session.follow(&core.names);
        }
        let mut txn = Txn::new(&mut lease, &engine.router, set, now_ms, true);
        // What follows may be about it.
        txn.due_ms = 0;
        let mut ctx = Ctx::new(txn, session, effects, server);
        let result = run(&mut ctx);
        match &result {
            Ok(_) => *unwritten = ctx.txn.commit(&engine.log).max(*unwritten),
            Err(_) => ctx.rollback_to(Mark::default()),
        }
        drop(lease);
        drop(effects.take());
        result
    }

    /// The one shard of a command that changes what its keys hold and nothing else: it may run while others run on other
    /// shards. `None` if it is to run alone, or is not known.
    pub(super) fn lane_of(&self, args: Args<'_>) -> Option<(ShardId, &'static Command)> {
        let command = table().find(args.get(0)?)?.1.resolve(args.get(1));
        let is_plain = command.has(flags::WRITE)
            && !command.has(flags::ONCE | flags::THREAD)
            && matches!(command.route, Route::One(_) | Route::Keys)
            && command.accepts(args.len());
        if !is_plain || self.session.multi.is_some() {
            return None;
        }
        match shards_of(&self.server, &self.session, command, args, &mut Hints::new())?[..] {
            [shard] => Some((shard, command)),
            _ => None,
        }
    }

    /// Runs commands of a shard in one transaction, each of which is taken back alone if it fails. What each replies is told by
    /// its number. What they have changed is left to the next [`Local::write_out`].
    ///
    /// # Errors
    /// The store or the log refuses, at the command of this number.
    pub(super) fn commands<'c>(
        &mut self,
        shard: ShardId,
        now_ms: u64,
        calls: impl Iterator<Item = (&'c Command, Args<'c>)>,
        mut tell: impl FnMut(usize, &[u8]),
    ) -> Result<(), (usize, Error)> {
        let (mut reply, mut at) = (Reply::new(2), 0);
        let ran = self.transact(&[shard], now_ms, |ctx| {
            for (n, (command, args)) in calls.enumerate() {
                at = n;
                reply.truncate(0);
                let mark = ctx.mark();
                match (command.run)(ctx, args, &mut reply) {
                    Ok(()) => {}
                    Err(error) if is_of_server(&error) => return Err(error),
                    Err(error) => {
                        ctx.rollback_to(mark);
                        reply.truncate(0);
                        reply.error(&error);
                    }
                }
                tell(n, reply.as_slice());
            }
            Ok(())
        });
        ran.map_err(|error| (at, error))
    }

    /// Runs a command as a client's; what it replies, an error included. What it has changed is left to the next
    /// [`Local::write_out`].
    ///
    /// # Errors
    /// It is not known, or the store or the log refuses.
    pub(super) fn command(&mut self, args: Args<'_>, now_ms: u64) -> Result<Reply> {
        let Some((_, container)) = args.get(0).and_then(|name| table().find(name)) else {
            return Err(crate::command::run::unknown_command(args));
        };
        let command = container.resolve(args.get(1));
        let mut reply = Reply::new(2);
        if !command.accepts(args.len()) {
            reply.error(&Error::Arity(command.name.into()));
            return Ok(reply);
        }
        if self.session.queues(command) {
            if let Some(multi) = &mut self.session.multi {
                multi.push(command, OwnedArgs::from(args));
            }
            reply.status("QUEUED");
            return Ok(reply);
        }
        let all = || self.server.engine.all_shards();
        let mut shards: ShardSet =
            shards_of(&self.server, &self.session, command, args, &mut Hints::new()).unwrap_or_else(all);
        loop {
            let begun = self.transact(&shards, now_ms, |ctx| (command.run)(ctx, args, &mut reply));
            match begun {
                Ok(()) => return Ok(reply),
                Err(Error::Undeclared) if shards.len() < self.server.engine.shards.count() => {
                    reply = Reply::new(2);
                    shards = self.server.engine.all_shards();
                }
                Err(error) if is_of_server(&error) => return Err(error),
                Err(error) => {
                    reply = Reply::new(2);
                    reply.error(&error);
                    return Ok(reply);
                }
            }
        }
    }

    /// The bytes of commands queued since MULTI; `None` outside.
    pub(super) fn queued_bytes(&self) -> Option<usize> {
        self.session.multi.as_ref().map(|multi| multi.memory_bytes())
    }

    /// Forgets what was queued since MULTI.
    pub(super) fn forget_queue(&mut self) {
        self.session.end_multi();
    }
}

/// Whether it is no fault of the command, so that the next would not fare better.
fn is_of_server(error: &Error) -> bool {
    matches!(error, Error::Misconf(_) | Error::Storage(_) | Error::Undeclared | Error::Cold)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
pub(in crate::migrate) mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Source;
    use crate::handler::{Group, Run};
    use crate::shard::keyspace::walk::tests::engine;

    /// A server of one shard that keeps its data there.
    pub(in crate::migrate) fn server(dir: &Path) -> Arc<Server> {
        Arc::new(Server::new(engine(dir, 1), Config::load(Source::Defaults, &[]).unwrap(), table()))
    }

    /// It is no command of a client, which would be refused before it runs.
    #[test]
    fn nothing_is_put_while_writes_are_refused() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let server = server(dir.path());
        let mut local = Local::new(&server);
        let mut put = || local.transact(&[0], 1, |ctx| ctx.txn.put_string(0, b"key", b"v", 0));
        assert!(put().is_ok());
        server.engine.stats.level0_runs_max.store(1 << 10, Ordering::Relaxed);
        assert!(matches!(put(), Err(Error::Misconf(_))));
    }

    /// What a command gets wrong is told, and taken back; where the store fails, nothing that follows is run.
    #[test]
    fn a_command_that_fails_is_taken_back_alone_and_a_store_that_fails_ends_all() {
        fn put(ctx: &mut Ctx, args: Args<'_>) -> Result {
            ctx.txn.put_string(0, &args[1], b"value", 0).map(drop)
        }
        const GROUP: Group = Group::String;
        let puts = Command::new("puts", |ctx, args, out| put(ctx, args).map(|()| out.int(1)), 2, flags::WRITE, GROUP);
        let wrong = |ctx: &mut Ctx, args: Args<'_>, _: &mut Reply| put(ctx, args).and(Err(Error::NotInteger));
        let fails = |ctx: &mut Ctx, args: Args<'_>, _: &mut Reply| put(ctx, args).and(Err(Error::Storage("".into())));
        let [wrong, fails] = [wrong as Run, fails as Run].map(|run| Command::new("run", run, 2, flags::WRITE, GROUP));
        let dir = crate::util::scratch::tempdir().unwrap();
        let mut local = Local::new(&server(dir.path()));
        let mut run = |commands: &[&Command]| {
            let args: Vec<OwnedArgs> =
                (0..commands.len()).map(|n| [&b"run"[..], &[b'a' + n as u8]].into_iter().collect()).collect();
            let calls = commands.iter().zip(&args).map(|(command, args)| (*command, args.as_args()));
            let mut told = Vec::new();
            let ran = local.commands(0, 1, calls, |n, reply| told.push((n, reply.first().copied())));
            let keys = (0..commands.len()).filter(|n| {
                let there = local.transact(&[0], 1, |ctx| ctx.lookup_string(&[b'a' + *n as u8]));
                there.unwrap().is_some()
            });
            (ran, told, keys.collect::<Vec<_>>())
        };
        let told = [(0, Some(b':')), (1, Some(b'-')), (2, Some(b':'))].to_vec();
        assert_eq!(run(&[&puts, &wrong, &puts]), (Ok(()), told, [0, 2].to_vec()));
        let (ran, told, _) = run(&[&puts, &fails, &puts]);
        assert!(matches!(ran, Err((1, Error::Storage(_)))) && told == [(0, Some(b':'))], "{told:?}");
    }
}
