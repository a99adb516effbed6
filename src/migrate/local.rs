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
use crate::handler::keys::{Hints, shards_of};
use crate::handler::session::Client;
use crate::handler::{Ctx, Error, OwnedArgs, Reply, Result, Server, Session};
use crate::log::{Fsync, RealIo};
use crate::shard::Engine;
use crate::shard::actor::ShardSet;
use crate::shard::engine::{EngineOptions, OpenError};
use crate::shard::router::ShardId;
use crate::shard::txn::{Txn, WriteSet};
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
}

impl Local {
    pub(super) fn new(server: &Arc<Server>) -> Self {
        let session = Session::new(Arc::new(Client::default()), server.engine.first_names(), &server.acl);
        Local { server: server.clone(), session, effects: Effects::default(), set: WriteSet::default() }
    }

    /// Turns to a database; false if there is none of this name.
    pub(super) fn select(&mut self, name: &[u8]) -> bool {
        self.session.select(name);
        self.session.names.id(name).is_some()
    }

    /// Waits until there is room for what is about to be written.
    fn wait_for_room(&self) -> Result {
        let engine = &self.server.engine;
        for pauses in 0.. {
            if let Some(why) = engine.refusal() {
                return Err(Error::Misconf(why.to_string().into()));
            }
            match engine.pause_us(true, pauses) {
                0 => break,
                delay_us => std::thread::sleep(Duration::from_micros(delay_us)),
            }
        }
        Ok(())
    }

    /// Runs a transaction over these shards.
    pub(super) fn transact<R>(
        &mut self,
        shards: &[ShardId],
        now_ms: u64,
        run: impl FnOnce(&mut Ctx) -> Result<R>,
    ) -> Result<R> {
        self.wait_for_room()?;
        let Local { server, session, effects, set } = self;
        let engine = &server.engine;
        let lease = engine.lease(shards);
        if let Some(core) = lease.first() {
            session.follow(&core.names);
        }
        let mut txn = Txn::new(lease, &engine.router, set, now_ms, true);
        // What follows may be about it.
        txn.due_ms = 0;
        let mut ctx = Ctx::new(txn, session, effects, server);
        let result = run(&mut ctx);
        let lsn = match &result {
            Ok(_) => ctx.txn.commit(&engine.log),
            Err(_) => {
                ctx.rollback_to(Mark::default());
                0
            }
        };
        drop(ctx.into_lease());
        drop(effects.take());
        engine.write_out(lsn);
        result
    }

    /// Runs a command as a client's; what it replies, an error included.
    ///
    /// # Errors
    /// It is not known, or the store or the log refuses.
    pub(super) fn command(&mut self, args: &OwnedArgs, now_ms: u64) -> Result<Reply> {
        let args = args.as_args();
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
                Err(error @ (Error::Misconf(_) | Error::Storage(_))) => return Err(error),
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

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
pub(in crate::migrate) mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Source;
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
}
