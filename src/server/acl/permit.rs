//! The check of each call: as it comes, and again as EXEC or a script runs it.

use std::sync::Arc;

use crate::handler::acl::check::{Asked, Denied};
use crate::handler::acl::log::{Context, Denial, Reason};
use crate::handler::acl::user::User;
use crate::handler::session::Client;
use crate::handler::{Args, Command, Ctx, Error, Result, Server, Session, flags};
use crate::server::client::describe;

/// Whether a call may be queued, or run. What is not allowed is noted at once: such a call ends with this.
///
/// # Errors
/// If it may not.
#[cold]
pub fn permit(server: &Server, session: &mut Session, row: &'static Command, args: Args<'_>) -> Result {
    let is_known = session.look_up(server);
    if is_known && session.is_free(server) {
        return Ok(());
    }
    if !is_known || session.is_stranger(server) && !row.has(flags::NO_AUTH) {
        return Err(Error::err("NOAUTH Authentication required."));
    }
    let user = session.identity.user.clone();
    let asked = Asked::new(server.table, row, args);
    let Err(denied) = asked.of(&user)? else { return Ok(()) };
    let context = if session.multi.is_some() { Context::Multi } else { Context::Toplevel };
    let denial = denial(server, &session.client, &user, denied, context, &asked);
    server.acl.deny(denial, server.config.settings().acllog_max_len);
    Err(denied.error(&user, server.table, &asked))
}

/// Whether a call may run within EXEC or a script. What is not allowed is noted, and told to those whose place it is.
///
/// # Errors
/// Those of the meter. The inner ones are why it may not.
#[inline]
pub(in crate::server) fn permit_within(
    ctx: &mut Ctx,
    context: Context,
    row: &'static Command,
    args: Args<'_>,
) -> Result<Result<(), (Denied, Arc<User>)>> {
    match ctx.restricted() {
        None => Ok(Ok(())),
        Some(user) => judge(ctx, context, row, args, user),
    }
}

#[cold]
fn judge(
    ctx: &mut Ctx,
    context: Context,
    row: &'static Command,
    args: Args<'_>,
    user: Arc<User>,
) -> Result<Result<(), (Denied, Arc<User>)>> {
    let asked = Asked::new(ctx.server.table, row, args);
    let Err(denied) = asked.of(&user)? else { return Ok(Ok(())) };
    let denial = denial(ctx.server, &ctx.session().client, &user, denied, context, &asked);
    ctx.deny(denial);
    Ok(Err((denied, user)))
}

fn denial(
    server: &Server,
    client: &Client,
    user: &User,
    denied: Denied,
    context: Context,
    asked: &Asked<'_>,
) -> Denial {
    let reason = match denied {
        Denied::Command => Reason::Command,
        Denied::Key(_) => Reason::Key,
        Denied::Channel(_) => Reason::Channel,
    };
    let object = denied.object(server.table, asked).into();
    Denial { reason, context, object, user: user.name.clone(), client: line_of(server, client) }
}

/// A connection as CLIENT LIST shows it.
fn line_of(server: &Server, client: &Client) -> Box<[u8]> {
    let mut line = Vec::new();
    describe(server.table, client, crate::util::time::now_ms(), &mut line);
    line.trim_ascii_end().into()
}

/// Notes that somebody has tried to authenticate in vain, by a command of this name.
pub(in crate::server) fn deny_login(ctx: &mut Ctx, command: &[u8], name: &[u8]) {
    let context = if ctx.session().multi.is_some() { Context::Multi } else { Context::Toplevel };
    let client = line_of(ctx.server, &ctx.session().client);
    let (reason, object, user) = (Reason::Auth, command.into(), name.into());
    ctx.deny(Denial { reason, context, object, user, client });
}

/// A connection that has just begun to hear channels may have been allowed to before, but be no longer: who took that away has
/// not seen it among those who hear them.
///
/// # Errors
/// If it may not hear them any more.
pub(in crate::server) fn permit_hearing(ctx: &mut Ctx, args: Args<'_>) -> Result {
    if ctx.session().is_up_to_date(ctx.server) {
        return Ok(());
    }
    let Some((_, row)) = ctx.server.table.find(&args[0]) else { return Ok(()) };
    match permit_within(ctx, Context::Toplevel, row, args)? {
        Ok(()) => Ok(()),
        Err((denied, user)) => Err(denied.error(&user, ctx.server.table, &Asked::new(ctx.server.table, row, args))),
    }
}
