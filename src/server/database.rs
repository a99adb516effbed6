//! Databases and namespaces: SELECT, SWAPDB, FLUSHDB, FLUSHALL, DBSIZE.
//!
//! A database is a namespace whose name is its number. With the directive `namespaces yes` SELECT takes any other name
//! too and creates the namespace at its first use, up to `max-namespaces` of them; nothing removes a namespace.
//!
//! Flushing gives a name a new id and swapping exchanges two ids, both without touching a record of a key, however
//! many there are: ASYNC and SYNC are the same here.

use crate::codec::NsId;
use crate::handler::{Args, Command, Ctx, Error, Group, Reply, Result, Server, Session, flags};
use crate::shard::actor::ShardSet;
use crate::shard::engine::Engine;
use crate::util::num::parse_i64;

/// Longest name of a namespace, bytes.
const LONGEST_NAME: usize = 255;

const NO_SUCH_DATABASE: Error = Error::err("ERR DB index is out of range");

/// The name of the namespace that an argument selects; whether it is there is another question.
fn name_of<'a>(server: &Server, arg: &'a [u8]) -> Result<&'a [u8]> {
    let settings = server.config.settings();
    match parse_i64(arg) {
        Some(number) if i32::try_from(number).is_err() => {
            Err(Error::err("ERR value is out of range, value must between -2147483648 and 2147483647"))
        }
        Some(number) if (0..i64::from(settings.databases)).contains(&number) => Ok(arg),
        Some(_) => Err(NO_SUCH_DATABASE),
        None if !settings.namespaces => Err(Error::NotInteger),
        None if arg.is_empty() || arg.len() > LONGEST_NAME => Err(Error::err("ERR invalid namespace name")),
        None => Ok(arg),
    }
}

/// The id of the existing namespace that an argument names, for commands with a second database.
pub(super) fn other_namespace(ctx: &Ctx, arg: &[u8]) -> Result<NsId> {
    let name = name_of(ctx.server, arg)?;
    ctx.session().names.id(name).ok_or(NO_SUCH_DATABASE)
}

fn select(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let name = name_of(ctx.server, &args[1])?;
    if ctx.session().names.id(name).is_none() {
        create(ctx, name)?;
    }
    ctx.alter().select(name);
    out.ok();
    Ok(())
}

fn create(ctx: &mut Ctx, name: &[u8]) -> Result {
    let named = ctx.session().names.map().iter().filter(|(name, _)| parse_i64(name).is_none()).count();
    let most = ctx.server.config.settings().max_namespaces;
    if named >= most {
        return Err(Error::Text(format!("ERR too many namespaces, max-namespaces is {most}").into()));
    }
    renew(ctx, &[name])
}

/// Gives names, new or not, fresh ids; what the old ones held is gone.
fn renew(ctx: &mut Ctx, names: &[&[u8]]) -> Result {
    let Some((renewed, dead)) = ctx.session().names.renewed(names) else {
        return Err(Error::err("ERR no namespace id is left"));
    };
    ctx.txn.replace_names(renewed.clone(), &dead);
    ctx.alter().follow(&renewed);
    Ok(())
}

/// No shard for a namespace that is there, all to create one.
fn select_shards(server: &Server, session: &Session, args: Args<'_>) -> Option<ShardSet> {
    match name_of(server, &args[1]) {
        Ok(name) if session.names.id(name).is_none() => None,
        _ => Some(ShardSet::new()),
    }
}

fn swapdb(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let (first, second) = (name_of(ctx.server, &args[1]), name_of(ctx.server, &args[2]));
    // Redis reads both numbers before it looks whether the databases are there.
    for (name, invalid) in [(&first, "ERR invalid first DB index"), (&second, "ERR invalid second DB index")] {
        if name.as_ref().is_err_and(|error| *error != NO_SUCH_DATABASE) {
            return Err(Error::err(invalid));
        }
    }
    let (first, second) = (first?, second?);
    let swapped = ctx.session().names.swapped(first, second).ok_or(NO_SUCH_DATABASE)?;
    ctx.txn.replace_names(swapped.clone(), &[]);
    ctx.alter().follow(&swapped);
    out.ok();
    Ok(())
}

fn check_mode(args: Args<'_>) -> Result {
    let known = |mode: &[u8]| mode.eq_ignore_ascii_case(b"sync") || mode.eq_ignore_ascii_case(b"async");
    match args.len() {
        1 => Ok(()),
        2 if known(&args[1]) => Ok(()),
        _ => Err(Error::Syntax),
    }
}

fn flushdb(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    check_mode(args)?;
    let name = ctx.session().db.clone();
    flush(ctx, &[&name])?;
    out.ok();
    Ok(())
}

fn flushall(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    check_mode(args)?;
    let names = ctx.session().names.clone();
    let names: Vec<&[u8]> = names.map().iter().map(|(name, _)| name).collect();
    flush(ctx, &names)?;
    out.ok();
    Ok(())
}

/// Empties namespaces. Those without keys stay as they are: a new id costs a record in every shard.
fn flush(ctx: &mut Ctx, names: &[&[u8]]) -> Result {
    ctx.txn.saw_all();
    let has_keys = |name: &&&[u8]| {
        let id = ctx.session().names.id(name);
        id.is_some_and(|id| Engine::count(&ctx.txn, id) > 0)
    };
    let names: Vec<&[u8]> = names.iter().filter(has_keys).copied().collect();
    if names.is_empty() {
        // Who keeps copies hears of it all the same, as from Redis.
        ctx.txn.forget_copies(ctx.txn.need);
        return Ok(());
    }
    renew(ctx, &names)
}

fn dbsize(ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    ctx.txn.saw_all();
    out.int(Engine::exact_count(&ctx.txn, ctx.ns())? as i64);
    Ok(())
}

const FLUSHES: u32 = flags::WRITE | flags::ALL_SHARDS | flags::KEYSPACE | flags::DANGEROUS;

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("select", select, 2, flags::FAST | flags::LOADING | flags::STALE, Group::Connection)
        .route_by(select_shards)
        .help("1.0.0", "Turns the connection to another database.")
        .syntax("index", "O(1)"),
    Command::new("swapdb", swapdb, 3, FLUSHES | flags::FAST, Group::Server)
        .help("4.0.0", "Exchanges two databases for all connections.")
        .syntax("index1 index2", "O(1)"),
    Command::new("flushdb", flushdb, -1, FLUSHES, Group::Server)
        .help("1.0.0", "Removes all keys of the current database.")
        .syntax("[ASYNC | SYNC]", "O(1)"),
    Command::new("flushall", flushall, -1, FLUSHES, Group::Server)
        .help("1.0.0", "Removes all keys of all databases.")
        .syntax("[ASYNC | SYNC]", "O(1)"),
    Command::new(
        "dbsize",
        dbsize,
        1,
        flags::READONLY | flags::FAST | flags::KEYSPACE | flags::ALL_SHARDS,
        Group::Server,
    )
    .help("1.0.0", "Tells how many keys the current database holds.")
    .syntax("", "O(1)"),
];
