//! DEBUG: what test suites need of it.
//!
//! Who may call it stands in the directive `enable-debug-command`. It runs on a shard's thread, as some of it waits.

use std::sync::atomic::Ordering;

use super::admin::flush;
use super::{help, wrong_subcommand};
use crate::config::settings::Access;
use crate::handler::session::bits::UNIX;
use crate::handler::{After, Args, Command, Ctx, Error, Group, Reply, Result, Server, Session, flags};
use crate::shard::actor::ShardSet;
use crate::shard::memory::uses::idle_s;
use crate::util::num::{parse_double, parse_i64, parse_natural};

const DENIED: Error = Error::err(
    "ERR DEBUG command not allowed. If the enable-debug-command option is set to \"local\", you can run it from a local \
     connection, otherwise you need to set this option in the configuration file, and then restart the server.",
);

fn is_local(session: &Session) -> bool {
    let client = &session.client;
    client.bits.load(Ordering::Relaxed) & UNIX != 0
        || client.addr.parse::<std::net::SocketAddr>().is_ok_and(|addr| addr.ip().to_canonical().is_loopback())
}

/// Who stands in `enable-debug-command`.
fn permitted(server: &Server, session: &Session) -> Result {
    match server.config.settings().enable_debug_command {
        Access::Yes => Ok(()),
        Access::Local if is_local(session) => Ok(()),
        _ => Err(DENIED),
    }
}

fn debug(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    match (args[1].to_ascii_lowercase().as_slice(), args.len()) {
        (b"help", 2) => debug_help(out),
        (b"sleep", 3) => sleep(ctx, &args[2], out),
        (b"object", 3..) => return object(ctx, &args[2], out),
        (b"set-active-expire", 3) => {
            let on = parse_i64(&args[2]).is_some_and(|on| on != 0);
            ctx.server.engine.active_expire.store(on, Ordering::Relaxed);
            out.ok();
        }
        (b"reload", _) => return reload(ctx, args, out),
        (b"loadaof", 2) => {
            flush(ctx)?;
            out.ok();
        }
        (b"change-repl-id", 2) => {
            *ctx.server.replication_id.lock() = crate::handler::server::random_hex();
            out.ok();
        }
        (b"populate", 3..=5) => return populate(ctx, args, out),
        (b"protocol", 3) => return protocol(&args[2], out),
        (b"error", 3) => out.error_text(&args[2]),
        (b"panic", 2) => panic!("DEBUG PANIC called at Unix time {}", ctx.now_ms / 1000),
        (b"log", 3) => {
            tracing::warn!("DEBUG LOG: {}", args[2].escape_ascii());
            out.ok();
        }
        // Knobs of structures that this server does not have.
        (
            b"quicklist-packed-threshold"
            | b"dict-resizing"
            | b"pause-cron"
            | b"set-disable-deny-scripts"
            | b"set-skip-checksum-validation",
            3,
        ) => out.ok(),
        (b"replybuffer", 4) => match args[2].to_ascii_lowercase().as_slice() {
            b"peak-reset-time" | b"resizing" => out.ok(),
            _ => return Err(wrong_subcommand(args)),
        },
        _ => return Err(wrong_subcommand(args)),
    }
    Ok(())
}

/// Only the caller waits; the server goes on serving others.
fn sleep(ctx: &mut Ctx, seconds: &[u8], out: &mut Reply) {
    let seconds = parse_double(seconds).unwrap_or(0.0).clamp(0.0, 1e9);
    if seconds > 0.0 {
        ctx.alter().after = After::HoldMs((seconds * 1000.0).ceil() as u64);
    }
    out.ok();
}

fn object(ctx: &mut Ctx, key: &[u8], out: &mut Reply) -> Result {
    ctx.txn.no_touch = true;
    let found = ctx.lookup(key)?.ok_or(Error::NoSuchKey)?;
    let object = ctx.object(found);
    let encoding = super::keyspace::encoding(object);
    let (now_s, idle_s) = (ctx.now_ms / 1000, idle_s(object.used, ctx.now_ms));
    out.status(&format!(
        "Value at:0x{:012x} refcount:1 encoding:{encoding} serializedlength:{} lru:{} lru_seconds_idle:{idle_s}",
        object.hash,
        object.value().len(),
        (now_s - u64::from(idle_s)) & 0xff_ffff,
    ));
    Ok(())
}

/// Everything goes to the store, as it would for a restart.
fn reload(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let known = |word: &[u8]| [&b"merge"[..], b"noflush", b"nosave"].iter().any(|w| word.eq_ignore_ascii_case(w));
    if !args.iter().skip(2).all(known) {
        return Err(Error::err("ERR DEBUG RELOAD only supports the MERGE, NOFLUSH and NOSAVE options."));
    }
    flush(ctx)?;
    out.ok();
    Ok(())
}

/// Makes strings `key:0` and so on, but for those that are there.
fn populate(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    use crate::error::NOT_POSITIVE;
    let count = parse_natural(&args[2]).ok_or(NOT_POSITIVE)?;
    let size = match args.get(4) {
        None => None,
        Some(size) => Some(parse_i64(size).and_then(|size| usize::try_from(size).ok()).ok_or(NOT_POSITIVE)?),
    };
    let prefix = args.get(3).unwrap_or(b"key");
    for number in 0..count {
        let key = [prefix, format!(":{number}").as_bytes()].concat();
        if ctx.lookup(&key)?.is_none() {
            let mut value = format!("value:{number}").into_bytes();
            if let Some(size) = size {
                value.resize(size, 0);
            }
            ctx.set_string(&key, &value, 0)?;
        }
    }
    out.ok();
    Ok(())
}

/// One reply of every type, for the tests of client libraries.
fn protocol(kind: &[u8], out: &mut Reply) -> Result {
    match kind.to_ascii_lowercase().as_slice() {
        b"string" => out.bulk(b"Hello World"),
        b"integer" => out.int(12345),
        b"double" => out.double(3141.0 / 1000.0),
        b"null" => out.nil(),
        b"array" => {
            out.array(3);
            (0..3).for_each(|n| out.int(n));
        }
        b"set" => {
            out.set(3);
            (0..3).for_each(|n| out.int(n));
        }
        b"map" => {
            out.map(3);
            for n in 0..3 {
                out.int(n);
                out.boolean(n == 1);
            }
        }
        b"attrib" => {
            if out.proto() == 3 {
                out.raw(b"|1\r\n$14\r\nkey-popularity\r\n*2\r\n$7\r\nkey:123\r\n:90\r\n");
            }
            out.bulk(b"Some real reply following the attribute");
        }
        b"push" if out.proto() == 2 => return Err(Error::err("ERR RESP2 is not supported by this command")),
        b"push" => {
            out.bulk(b"Some real reply following the push reply");
            out.push(2);
            out.bulk(b"server-cpu-usage");
            out.int(42);
        }
        b"true" => out.boolean(true),
        b"false" => out.boolean(false),
        b"verbatim" => out.verbatim(b"This is a verbatim\nstring", b"txt"),
        b"bignum" => out.big_number(b"1234567999999999999999999999999999999"),
        _ => {
            return Err(Error::err(
                "ERR Wrong protocol type name. Please use one of the following: \
                 string|integer|double|bignum|null|array|set|map|attrib|push|verbatim|true|false",
            ));
        }
    }
    Ok(())
}

fn debug_help(out: &mut Reply) {
    let lines = [
        "CHANGE-REPL-ID",
        "    Gives the server a new replication id.",
        "ERROR <text>",
        "    Answers this error.",
        "LOADAOF, RELOAD [MERGE] [NOFLUSH] [NOSAVE]",
        "    Brings everything to the store.",
        "LOG <text>",
        "    Writes the text to the server's log.",
        "OBJECT <key>",
        "    What is known of a key's value.",
        "PANIC",
        "    Ends the server as a broken invariant would.",
        "POPULATE <count> [<prefix>] [<size>]",
        "    Makes strings named <prefix>:<number>.",
        "PROTOCOL <type>",
        "    Answers a value of this type.",
        "QUICKLIST-PACKED-THRESHOLD, REPLYBUFFER, DICT-RESIZING, PAUSE-CRON",
        "    Accepted without effect.",
        "SET-ACTIVE-EXPIRE (0|1)",
        "    Whether expired keys are removed before somebody asks for them.",
        "SLEEP <seconds>",
        "    Answers this much later. Only this connection waits.",
    ];
    help(out, "DEBUG", &lines);
}

fn route(server: &Server, _session: &Session, args: Args<'_>) -> Option<ShardSet> {
    let is = |word: &[u8]| args.get(1).is_some_and(|arg| arg.eq_ignore_ascii_case(word));
    if is(b"populate") {
        return None;
    }
    let key = args.get(2).filter(|_| is(b"object"));
    Some(key.map(|key| server.engine.router.shard_of(key)).into_iter().collect())
}

/// The rows of this file.
pub const COMMANDS: &[Command] = &[Command::new(
    "debug",
    debug,
    -2,
    flags::ADMIN | flags::NOSCRIPT | flags::LOADING | flags::STALE | flags::THREAD,
    Group::Server,
)
.route_by(route)
.permitted_by(permitted)
.help("1.0.0", "Commands for tests.")
.syntax("subcommand [arg [arg ...]]", "Depends on the subcommand")];
