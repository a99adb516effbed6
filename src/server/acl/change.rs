//! ACL SETUSER, DELUSER, LOAD and SAVE.
//!
//! As in Redis, the connections of a user that is removed are closed, and those of a narrowed one that hear what it may not hear
//! any more. Others go on, and are judged by what it may do now.

use std::sync::Arc;

use super::file;
use crate::handler::acl::rules::{Rules, is_name, merge, refusal};
use crate::handler::acl::user::{DEFAULT, User};
use crate::handler::pubsub::By;
use crate::handler::session::Client;
use crate::handler::{After, Args, Ctx, Effect, Error, Reply, Result};
use crate::meter;

pub(super) fn setuser(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let name = &args[2];
    if !is_name(name) {
        return Err(Error::err("ERR Usernames can't contain spaces or null characters"));
    }
    meter::hold(2 * args.iter().map(<[u8]>::len).sum::<usize>())?;
    let rules = merge(args.iter().skip(3)).map_err(|open| {
        Error::quoting("ERR Unmatched parenthesis in acl selector starting at '", &open, usize::MAX, "'.")
    })?;
    let table = ctx.server.table;
    let reader = Rules { table, all_channels: ctx.settings().acl_pubsub_default };
    let (old, new) = loop {
        let old = ctx.server.acl.user(name);
        let mut new = old.as_ref().map_or_else(|| User::new(table, name, reader.all_channels), |old| User::clone(old));
        for rule in &rules {
            reader.apply(&mut new, rule)?.map_err(|refused| refusal(rule, refused))?;
        }
        // Somebody else has changed it meanwhile: that comes first.
        if ctx.server.acl.put(old.as_ref(), new.clone()) {
            break (old, new);
        }
        meter::step(1)?;
    };
    if let Some(old) = old {
        cut(ctx, |client| loses(client, &old, &new));
    }
    out.ok();
    Ok(())
}

pub(super) fn deluser(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    if args.iter().skip(2).any(|name| name == DEFAULT) {
        return Err(Error::err("ERR The 'default' user cannot be removed"));
    }
    let mut removed = std::collections::HashSet::<Arc<[u8]>>::new();
    for name in args.iter().skip(2) {
        if ctx.server.acl.remove(name) {
            removed.insert(name.into());
        }
    }
    out.int(removed.len() as i64);
    if !removed.is_empty() {
        cut(ctx, |client| removed.contains(&client.labels.lock().user));
    }
    Ok(())
}

pub(super) fn load(ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    let path = file::path(ctx.server)?;
    let users = file::read(ctx.server, &path)?;
    let old = ctx.server.acl.replace(users);
    let new = ctx.server.acl.users();
    cut(ctx, |client| {
        let name = client.labels.lock().user.clone();
        match (old.get(&name), new.get(&name)) {
            (_, None) => true,
            (Some(old), Some(new)) => loses(client, old, new),
            (None, Some(_)) => false,
        }
    });
    out.ok();
    Ok(())
}

pub(super) fn save(ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    let path = file::path(ctx.server)?;
    file::write(ctx.server, &path)?;
    out.ok();
    Ok(())
}

/// Whether a connection of this user hears something that it may not hear as it is now.
fn loses(client: &Client, old: &User, new: &User) -> bool {
    if !client.subscribes() || client.labels.lock().user != old.name {
        return false;
    }
    let heard = client.heard.lock();
    By::ALL.iter().any(|by| heard[*by as usize].iter().any(|name| !new.allows_channel(name, *by == By::Pattern)))
}

/// Closes connections: the one that asks once it has its reply.
fn cut(ctx: &mut Ctx, is_cut: impl Fn(&Client) -> bool) {
    for client in ctx.server.every_client() {
        if !is_cut(&client) {
            continue;
        }
        if client.id == ctx.session().id {
            ctx.alter().after = After::Close;
        } else {
            ctx.note(Effect::Kill(client));
        }
    }
}
