//! Saving, shutdown, time, and the answers for features that this server does not have: replicas, modules, a cluster.
//!
//! Every acknowledged write is in the log, so that nothing is lost between saves. Saving here means a flush: the log
//! is synced and all that is dirty goes to the store.

use std::sync::atomic::Ordering;

use super::{help, unknown_subcommand};
use crate::handler::server::Shutdown;
use crate::handler::{Args, Command, Ctx, Error, Group, Reply, Result, flags};
use crate::util::num::parse_i64;

fn time(_ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    let now_us = crate::util::time::now_us();
    out.array(2);
    out.bulk_int((now_us / 1_000_000) as i64);
    out.bulk_int((now_us % 1_000_000) as i64);
    Ok(())
}

/// A mountain lake: a ridge, and its reflection in the water. `seed` chooses the ridge.
fn tarn(mut seed: u64) -> String {
    const WIDTH: usize = 48;
    const HEIGHT: usize = 6;
    let mut heights = [0usize; WIDTH];
    let mut height = 2;
    for place in &mut heights {
        // Xorshift, by G. Marsaglia, is random enough for mountains.
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        height = (height + (seed % 3) as usize).saturating_sub(1).clamp(1, HEIGHT);
        *place = height;
    }
    let row = |least: usize, land: char, sky: char| -> String {
        heights.iter().map(|height| if *height >= least { land } else { sky }).collect()
    };
    let mut picture = String::new();
    for least in (1..=HEIGHT).rev() {
        picture += &format!(" {}\n", row(least, '^', ' '));
    }
    picture += &format!(" {}\n", "~".repeat(WIDTH));
    for least in (1..=HEIGHT).step_by(2) {
        picture += &format!(" {}\n", row(least, '-', '~'));
    }
    picture
}

fn lolwut(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    if let Some(version) = args.get(2)
        && args[1].eq_ignore_ascii_case(b"version")
    {
        parse_i64(version).ok_or(Error::NotInteger)?;
    }
    let picture = tarn(ctx.now_ms | 1);
    let text = format!(
        "{picture}\nTarn {}, a small lake in the mountains. Redis ver. {}\n",
        env!("CARGO_PKG_VERSION"),
        super::REDIS_VERSION
    );
    out.verbatim(text.as_bytes(), b"txt");
    Ok(())
}

/// Unix time of the last flush, or of the start.
fn lastsave(ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    let flushed_ms = ctx.server.engine.stats.last_flush_ms.load(Ordering::Relaxed);
    out.int(ctx.server.last_save_s.load(Ordering::Relaxed).max(flushed_ms / 1000) as i64);
    Ok(())
}

/// Flushes on the calling thread, which must be one that may wait and must hold no shard.
pub(super) fn flush(ctx: &Ctx) -> Result {
    if !ctx.may_block() {
        return Err(Error::Cold);
    }
    if !ctx.lease.is_empty() {
        return Err(Error::err("ERR cannot save within a transaction that holds keys"));
    }
    ctx.server.engine.flush().map_err(|why| Error::Text(format!("ERR {why}").into()))
}

fn save(ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    flush(ctx)?;
    out.ok();
    Ok(())
}

fn bgsave(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let engine = &ctx.server.engine;
    let scheduled = match args.get(1) {
        // Redis forks no child before EXEC is over.
        None => !ctx.may_wait(),
        Some(word) if args.len() == 2 && word.eq_ignore_ascii_case(b"schedule") => {
            !ctx.may_wait() || engine.is_flushing()
        }
        Some(word) if args.len() == 2 && word.eq_ignore_ascii_case(b"cancel") => {
            return Err(Error::err("ERR Background saving is currently not in progress or scheduled"));
        }
        Some(_) => return Err(Error::Syntax),
    };
    engine.ask_flush();
    out.status(if scheduled { "Background saving scheduled" } else { "Background saving started" });
    Ok(())
}

fn bgrewriteaof(ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    ctx.server.engine.ask_flush();
    let begun = if ctx.may_wait() { "started" } else { "scheduled" };
    out.status(&format!("Background append only file rewriting {begun}"));
    Ok(())
}

/// Ends the server. There is no reply but for an error: the connection closes when the process ends.
fn shutdown(ctx: &mut Ctx, args: Args<'_>, _out: &mut Reply) -> Result {
    let (mut save, mut nosave, mut force, mut abort, mut now) = (false, false, false, false, false);
    for word in args.iter().skip(1) {
        match word.to_ascii_lowercase().as_slice() {
            b"save" => save = true,
            b"nosave" => nosave = true,
            b"force" => force = true,
            b"abort" => abort = true,
            b"now" => now = true,
            b"safe" => {}
            b"failover" => return Err(Error::err("ERR SHUTDOWN FAILOVER is only supported in cluster mode.")),
            _ => return Err(Error::Syntax),
        }
    }
    if save && nosave || abort && args.len() > 2 {
        return Err(Error::Syntax);
    }
    if abort {
        return Err(Error::err("ERR No shutdown in progress."));
    }
    let engine = &ctx.server.engine;
    if !(nosave || force) && engine.log.health().is_some() {
        return Err(Error::err("ERR Errors trying to SHUTDOWN. Check logs."));
    }
    tracing::info!(client = ctx.session().id, now, "shutdown requested by a client");
    ctx.server.shutdown.send_replace(Some(if nosave { Shutdown::NoSave } else { Shutdown::Save }));
    Ok(())
}

fn role(_ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    out.array(3);
    out.bulk(b"master");
    out.int(0);
    out.array(0);
    Ok(())
}

fn replicaof(_ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    if args[1].eq_ignore_ascii_case(b"no") && args[2].eq_ignore_ascii_case(b"one") {
        out.ok();
        return Ok(());
    }
    if !parse_i64(&args[2]).is_some_and(|port| (0..=65_535).contains(&port)) {
        return Err(Error::err("ERR Invalid master port"));
    }
    Err(Error::err("ERR replication is not supported yet"))
}

fn module_list(_ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    out.array(0);
    Ok(())
}

fn module_help(_ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    help(out, "MODULE", &["LIST", "    The loaded modules: none, as this server has no modules."]);
    Ok(())
}

fn no_cluster(_ctx: &mut Ctx, _args: Args<'_>, _out: &mut Reply) -> Result {
    Err(Error::err("ERR This instance has cluster support disabled"))
}

/// What a server without replicas answers, whatever it is asked for.
fn failover(_ctx: &mut Ctx, args: Args<'_>, _out: &mut Reply) -> Result {
    if args.len() == 2 && args[1].eq_ignore_ascii_case(b"abort") {
        return Err(Error::err("ERR No failover in progress."));
    }
    let (mut at, mut timeout, mut to, mut force) = (1, false, false, false);
    while at < args.len() {
        let left = args.len() - at - 1;
        match args[at].to_ascii_lowercase().as_slice() {
            b"timeout" if left > 0 && !timeout => {
                if parse_i64(&args[at + 1]).ok_or(Error::NotInteger)? <= 0 {
                    return Err(Error::err("ERR FAILOVER timeout must be greater than 0"));
                }
                (at, timeout) = (at + 2, true);
            }
            b"to" if left > 1 && !to => {
                parse_i64(&args[at + 2]).ok_or(Error::NotInteger)?;
                (at, to) = (at + 3, true);
            }
            b"force" if !force => (at, force) = (at + 1, true),
            _ => return Err(Error::Syntax),
        }
    }
    Err(Error::err("ERR FAILOVER requires connected replicas."))
}

fn cluster_help(_ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    help(
        out,
        "CLUSTER",
        &["INFO, KEYSLOT, MYID, NODES, SHARDS, SLOTS", "    Refused: this server is not in a cluster."],
    );
    Ok(())
}

const ADMIN: u32 = flags::ADMIN | flags::NOSCRIPT;
const SAVING: u32 = ADMIN | flags::NO_ASYNC_LOADING;
const QUIET: u32 = flags::LOADING | flags::STALE;

const fn row(name: &'static str, run: crate::handler::Run, arity: i32, flags: u32) -> Command {
    Command::new(name, run, arity, flags, Group::Server)
}

const fn cluster(name: &'static str, arity: i32, flags: u32) -> Command {
    Command::new(name, no_cluster, arity, flags, Group::Cluster)
}

/// What clients of a cluster say to its nodes.
const fn to_node(name: &'static str, flags: u32) -> Command {
    cluster(name, 1, flags | flags::FAST | flags::CONNECTION)
}

const CLUSTER: &[Command] = &[
    Command::new("help", cluster_help, 2, QUIET, Group::Cluster)
        .help("5.0.0", "Describes the subcommands of CLUSTER.")
        .syntax("", "O(1)"),
    cluster("info", 2, flags::STALE).help("3.0.0", "Describes the state of the cluster.").syntax("", "O(1)"),
    cluster("keyslot", 3, flags::STALE)
        .help("3.0.0", "Returns the slot of a key.")
        .syntax("key:string", "O(N) where N is the length of the key"),
    cluster("myid", 2, flags::STALE).help("3.0.0", "Returns the node's id.").syntax("", "O(1)"),
    cluster("nodes", 2, flags::STALE)
        .help("3.0.0", "Describes the nodes of the cluster.")
        .syntax("", "O(N) where N is the number of nodes"),
    cluster("shards", 2, QUIET)
        .help("7.0.0", "Returns which nodes have which slots, by shard.")
        .syntax("", "O(N) where N is the number of nodes"),
    cluster("slots", 2, QUIET)
        .help("3.0.0", "Returns which nodes have which slots.")
        .syntax("", "O(N) where N is the number of nodes"),
];

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    row("time", time, 1, QUIET | flags::FAST).help("2.6.0", "Returns the server's time.").syntax("", "O(1)"),
    row("lolwut", lolwut, -1, flags::READONLY | flags::FAST)
        .help("5.0.0", "Shows a picture and the version.")
        .syntax("[VERSION version]", "O(1)"),
    row("lastsave", lastsave, 1, QUIET | flags::FAST | flags::ADMINISTRATION)
        .help("1.0.0", "Returns the Unix time of the last successful save.")
        .syntax("", "O(1)"),
    row("save", save, 1, SAVING | flags::NO_MULTI | flags::THREAD)
        .help("1.0.0", "Brings everything to the store and waits for it.")
        .syntax("", "O(N) where N is the number of records changed since the last save"),
    row("bgsave", bgsave, -1, SAVING)
        .help("1.0.0", "Brings everything to the store in the background.")
        .syntax("[SCHEDULE | CANCEL]", "O(1)"),
    row("bgrewriteaof", bgrewriteaof, 1, SAVING)
        .help("1.0.0", "Brings everything to the store in the background, which empties the log.")
        .syntax("", "O(1)"),
    row("shutdown", shutdown, -1, ADMIN | QUIET | flags::NO_MULTI | flags::ALLOW_BUSY)
        .help("1.0.0", "Ends the server.")
        .syntax(
            "[[NOSAVE | SAVE] [NOW] [FORCE] [SAFE] [FAILOVER] | ABORT]",
            "O(N) where N is the number of records changed since the last save",
        ),
    row("role", role, 1, QUIET | flags::NOSCRIPT | flags::FAST | flags::ADMINISTRATION)
        .help("2.8.12", "Returns the server's role in replication.")
        .syntax("", "O(1)"),
    row("replicaof", replicaof, 3, SAVING | flags::STALE)
        .help("5.0.0", "Makes the server a replica of another, or ends that.")
        .syntax("<host port | NO ONE>", "O(1)"),
    row("slaveof", replicaof, 3, SAVING | flags::STALE)
        .help("1.0.0", "Makes the server a replica of another, or ends that.")
        .syntax("<host port | NO ONE>", "O(1)"),
    row("module", unknown_subcommand, -2, flags::UNQUEUED)
        .help("4.0.0", "Commands about modules.")
        .syntax("", "Depends on the subcommand")
        .subcommands(&[
            row("help", module_help, 2, QUIET).help("5.0.0", "Describes the subcommands of MODULE.").syntax("", "O(1)"),
            row("list", module_list, 2, ADMIN).help("4.0.0", "Returns the loaded modules.").syntax("", "O(1)"),
        ]),
    row("failover", failover, -1, ADMIN | flags::STALE)
        .help("6.2.0", "Makes a replica the master: refused, as there are none.")
        .syntax("[TO host port [FORCE]] [ABORT] [TIMEOUT milliseconds]", "O(1)"),
    to_node("asking", 0).help("3.0.0", "Refused: this server is not in a cluster.").syntax("", "O(1)"),
    to_node("readonly", QUIET).help("3.0.0", "Refused: this server is not in a cluster.").syntax("", "O(1)"),
    to_node("readwrite", QUIET).help("3.0.0", "Refused: this server is not in a cluster.").syntax("", "O(1)"),
    Command::new("cluster", unknown_subcommand, -2, flags::UNQUEUED, Group::Cluster)
        .help("3.0.0", "Commands about a cluster.")
        .syntax("", "Depends on the subcommand")
        .subcommands(CLUSTER),
];

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::sync::{Arc, LazyLock};

    use super::*;
    use crate::config::{Config, Source};
    use crate::handler::session::Client;
    use crate::handler::{Effects, OwnedArgs, Server, Session, Table};
    use crate::shard::keyspace::walk::tests::engine;
    use crate::shard::txn::{Txn, WriteSet};

    static TABLE: LazyLock<Table> = LazyLock::new(|| Table::new(&[COMMANDS]));

    #[test]
    fn the_picture_has_one_width() {
        for seed in [1, 7, u64::MAX] {
            let picture = tarn(seed);
            assert_eq!(picture.lines().count(), 10);
            assert!(picture.lines().all(|line| line.chars().count() == 49), "{picture}");
        }
    }

    #[test]
    fn the_last_save_is_the_last_flush_once_there_was_one() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let config = Config::load(Source::Defaults, &[]).unwrap();
        let server = Server::new(engine(dir.path(), 1), config, &TABLE);
        let mut session = Session::new(Arc::new(Client::default()), server.engine.first_names(), &server.acl);
        let mut ask = || {
            let (mut set, mut effects) = (WriteSet::default(), Effects::default());
            let mut lease = server.engine.lease(&[]);
            let txn = Txn::new(&mut lease, &server.engine.router, &mut set, 1, true);
            let mut ctx = Ctx::new(txn, &mut session, &mut effects, &server);
            let (args, mut out): (OwnedArgs, _) = ([&b"LASTSAVE"[..]].into_iter().collect(), Reply::new(2));
            lastsave(&mut ctx, args.as_args(), &mut out).unwrap();
            String::from_utf8_lossy(out.as_slice()).into_owned()
        };
        server.last_save_s.store(100, Ordering::Relaxed);
        assert_eq!(ask(), ":100\r\n");
        server.engine.stats.last_flush_ms.store(200_999, Ordering::Relaxed);
        assert_eq!(ask(), ":200\r\n");
    }
}
