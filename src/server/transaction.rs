//! MULTI, EXEC, DISCARD.
//!
//! EXEC is an ordinary function over the shards of everything queued: one transaction, one log record, so that a crash
//! leaves all of it or nothing. A queued command that fails takes back only its own writes, as in Redis.
//!
//! While EXEC runs, the session still stands in its transaction, with an empty queue: by this a command knows that it
//! must not wait.

use std::sync::atomic::Ordering;

use crate::command::run::{Hints, shards_of};
use crate::handler::session::Multi;
use crate::handler::{Args, Command, Ctx, Error, Group, Reply, Result, Server, Session, flags};
use crate::shard::actor::ShardSet;

fn multi(ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    if ctx.session.multi.is_some() {
        return Err(Error::err("ERR MULTI calls can not be nested"));
    }
    ctx.session.multi = Some(Multi::default());
    ctx.session.client.multi.store(0, Ordering::Relaxed);
    out.ok();
    Ok(())
}

fn discard(ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    if ctx.session.multi.is_none() {
        return Err(Error::err("ERR DISCARD without MULTI"));
    }
    ctx.session.end_multi();
    out.ok();
    Ok(())
}

fn exec(ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    let Some(multi) = &mut ctx.session.multi else {
        return Err(Error::err("ERR EXEC without MULTI"));
    };
    if multi.aborted {
        ctx.session.end_multi();
        return Err(Error::err("EXECABORT Transaction discarded because of previous errors."));
    }
    if !ctx.txn.may_block && multi.queue.iter().any(|(command, _)| command.has(flags::THREAD)) {
        return Err(Error::Cold);
    }
    let queue = std::mem::take(&mut multi.queue);
    let before = Before::of(ctx.session);
    out.array(queue.len());
    for (command, args) in &queue {
        if let Err(error) = ctx.run(command, args.as_args(), out) {
            // All of it is run again elsewhere, from a session that looks as it did.
            before.restore(ctx.session, out);
            if let Some(multi) = &mut ctx.session.multi {
                multi.queue = queue;
            }
            return Err(error);
        }
    }
    ctx.session.end_multi();
    Ok(())
}

/// What queued commands may change of their session.
struct Before {
    db: Vec<u8>,
    proto: u8,
}

impl Before {
    fn of(session: &Session) -> Self {
        Before { db: session.db.clone(), proto: session.proto }
    }

    fn restore(self, session: &mut Session, out: &mut Reply) {
        session.select(&self.db);
        session.proto = self.proto;
        session.client.proto.store(u32::from(self.proto), Ordering::Relaxed);
        out.set_proto(self.proto);
    }
}

/// The shards of everything queued: a key's shard does not depend on the database that a queued SELECT may choose.
fn exec_shards(server: &Server, session: &Session, _args: Args<'_>) -> Option<ShardSet> {
    let mut shards = ShardSet::new();
    if let Some(multi) = session.multi.as_ref().filter(|multi| !multi.aborted) {
        for (command, args) in &multi.queue {
            shards.extend(shards_of(server, session, command, args.as_args(), &mut Hints::new())?);
        }
    }
    Some(shards)
}

const AT_ONCE: u32 = flags::NOSCRIPT | flags::LOADING | flags::STALE | flags::UNQUEUED;

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
];
