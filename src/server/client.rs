//! CLIENT: what a connection says of itself, what is known of the others, and what can be done to them.
//!
//! Other connections are seen through the registry, [`Server::every_client`](crate::handler::Server::every_client): its
//! lock is held to copy it, never while connections are looked at, however many there are and whatever is asked of them.

mod filter;
mod tracking;

use std::cmp::Reverse;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{help, unknown_subcommand};
use tracking::{caching, getredir, redirect_of, trackinginfo};

use crate::handler::session::{Client, ReplyMode, bits};
use crate::handler::{After, Args, Command, Ctx, Effect, Error, Group, Reply, Result, Server, Session, Table, flags};
use crate::meter;
use crate::shard::memory::blocked::End;
use crate::types::timeout::timeout_ms;
use crate::util::num::parse_i64;
use crate::util::words::c_string;
use filter::Filter;

/// Names, library names and versions: no byte that would break a line of CLIENT LIST.
pub(super) fn check_label(label: &[u8], what: &str) -> Result {
    if c_string(label).iter().all(u8::is_ascii_graphic) {
        return Ok(());
    }
    Err(Error::Text(format!("ERR {what} cannot contain spaces, newlines or special characters.").into()))
}

/// Names the connection; an empty name is none.
pub(super) fn set_name(session: &mut Session, name: &[u8]) {
    session.client.labels.lock().name = name.to_vec();
}

/// The letters of CLIENT LIST's `flags`, in Redis's order.
fn letters(client: &Client) -> String {
    let set = client.bits.load(Ordering::Relaxed);
    let mut letters = String::new();
    for (on, letter) in [
        (set & bits::MONITOR != 0, 'O'),
        (client.subscribes(), 'P'),
        (client.multi.load(Ordering::Relaxed) >= 0, 'x'),
        (set & (bits::BLOCKED | bits::POSTPONED) != 0, 'b'),
        (set & bits::TRACKING != 0, 't'),
        (set & bits::BROKEN_REDIRECT != 0, 'R'),
        (set & bits::BROADCAST != 0, 'B'),
        (set & bits::UNIX != 0, 'U'),
        (set & bits::NO_EVICT != 0, 'e'),
        (set & bits::NO_TOUCH != 0, 'T'),
    ] {
        if on {
            letters.push(letter);
        }
    }
    if letters.is_empty() { "N".to_owned() } else { letters }
}

/// One line of CLIENT LIST.
pub(super) fn describe(table: &Table, client: &Client, now_ms: u64, line: &mut Vec<u8>) {
    let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let seconds = |since_ms: u64| now_ms.saturating_sub(since_ms) / 1000;
    let labels = client.labels.lock().clone();
    let command = table.slot_name(client.command.load(Ordering::Relaxed));
    let (query, output) = (load(&client.query_bytes), load(&client.output_bytes));
    let [commands, bytes_in, bytes_out] = [0, 1, 2].map(|at| load(&client.totals[at]));
    let mut text = String::new();
    let _ = write!(text, "id={} addr={} laddr={} fd={} name=", client.id, client.addr, client.laddr, client.fd);
    line.extend_from_slice(text.as_bytes());
    line.extend_from_slice(c_string(&labels.name));
    text.clear();
    let _ = write!(
        text,
        " age={} idle={} flags={} db={} sub={} psub={} ssub={} multi={} watch={} qbuf={query} qbuf-free={} argv-mem=0 \
         multi-mem={} rbs=0 rbp=0 obl={output} oll=0 omem={output} tot-mem={} events={} cmd={} user=",
        seconds(client.since_ms),
        seconds(load(&client.active_ms)),
        letters(client),
        client.db.load(Ordering::Relaxed),
        client.subscribed[0].load(Ordering::Relaxed),
        client.subscribed[1].load(Ordering::Relaxed),
        client.subscribed[2].load(Ordering::Relaxed),
        client.multi.load(Ordering::Relaxed),
        load(&client.watched),
        load(&client.query_free),
        load(&client.multi_bytes),
        client.memory_bytes(),
        if output > 0 { "rw" } else { "r" },
        command.as_deref().unwrap_or("NULL"),
    );
    line.extend_from_slice(text.as_bytes());
    line.extend_from_slice(&labels.user);
    text.clear();
    let _ = write!(text, " redir={} resp={} lib-name=", redirect_of(client), client.proto.load(Ordering::Relaxed));
    line.extend_from_slice(text.as_bytes());
    line.extend_from_slice(c_string(&labels.lib_name));
    line.extend_from_slice(b" lib-ver=");
    line.extend_from_slice(c_string(&labels.lib_ver));
    text.clear();
    let _ = writeln!(text, " io-thread=0 tot-net-in={bytes_in} tot-net-out={bytes_out} tot-cmds={commands}");
    line.extend_from_slice(text.as_bytes());
}

/// Closes the connections whose buffers take most until those of the others are within the limit. CLIENT NO-EVICT spares
/// a connection.
#[cold]
pub fn evict(server: &Server) {
    let Some(_one) = server.buffers.begin_eviction() else { return };
    let has = |client: &Client, bit: u32| client.bits.load(Ordering::Relaxed) & bit != 0;
    let mut clients = server.every_client();
    // What belongs to those that were killed is about to be given back.
    clients.retain(|client| !has(client, bits::CLOSING));
    let mut sum: u64 = clients.iter().map(|client| client.held_bytes()).sum();
    clients.retain(|client| !has(client, bits::NO_EVICT));
    clients.sort_by_cached_key(|client| Reverse(client.held_bytes()));
    for client in clients {
        if sum <= server.buffers.limit() {
            break;
        }
        let mut line = Vec::new();
        describe(server.table, &client, crate::util::time::now_ms(), &mut line);
        tracing::info!("Evicting client: {}", String::from_utf8_lossy(line.trim_ascii_end()));
        client.kill();
        server.buffers.evicted.fetch_add(1, Ordering::Relaxed);
        sum -= client.held_bytes().min(sum);
    }
}

fn id(ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    out.int(ctx.session().id as i64);
    Ok(())
}

fn info(ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    let mut text = Vec::new();
    describe(ctx.server.table, &ctx.session().client, ctx.now_ms, &mut text);
    out.verbatim(&text, b"txt");
    Ok(())
}

fn list(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let filter = Filter::parse(args.cursor(2), filter::Use::List, ctx.server)?;
    let mut text = Vec::new();
    for client in ctx.server.every_client() {
        meter::step(STEPS_OF_A_CLIENT)?;
        if filter.admits(&client, ctx.session().id, ctx.now_ms) {
            describe(ctx.server.table, &client, ctx.now_ms, &mut text);
        }
    }
    out.verbatim(&text, b"txt");
    Ok(())
}

/// What describing a connection takes, beside a visit of an element.
const STEPS_OF_A_CLIENT: usize = 16;

fn kill(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let old_form = args.len() == 3;
    let filter = if old_form {
        Filter::of_address(&args[2])
    } else {
        Filter::parse(args.cursor(2), filter::Use::Kill, ctx.server)?
    };
    let mut killed = Vec::new();
    for client in ctx.server.every_client() {
        if !ctx.kills(client.id) && filter.admits(&client, ctx.session().id, ctx.now_ms) {
            killed.push(client);
        }
    }
    let count = killed.len() as i64;
    killed.into_iter().for_each(|client| kill_one(ctx, client));
    match (old_form, count) {
        (true, 0) => return Err(Error::err("ERR No such client")),
        (true, _) => out.ok(),
        (false, _) => out.int(count),
    }
    Ok(())
}

/// Killing oneself waits for the reply.
fn kill_one(ctx: &mut Ctx, client: Arc<Client>) {
    if client.id == ctx.session().id {
        ctx.alter().after = After::Close;
    } else {
        ctx.note(Effect::Kill(client));
    }
}

fn setname(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    check_label(&args[2], "Client names")?;
    set_name(ctx.alter(), &args[2]);
    out.ok();
    Ok(())
}

fn getname(ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    let name = &ctx.session().client.labels.lock().name;
    if name.is_empty() {
        out.nil()
    } else {
        out.bulk(name)
    }
    Ok(())
}

fn setinfo(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let attribute = c_string(&args[2]);
    let is_name = match attribute.to_ascii_lowercase().as_slice() {
        b"lib-name" => true,
        b"lib-ver" => false,
        _ => return Err(Error::quoting("ERR Unrecognized option '", attribute, usize::MAX, "'")),
    };
    check_label(&args[3], &String::from_utf8_lossy(attribute))?;
    let mut labels = ctx.alter().client.labels.lock();
    *(if is_name { &mut labels.lib_name } else { &mut labels.lib_ver }) = args[3].to_vec();
    out.ok();
    Ok(())
}

fn pause(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let all = match args.get(3) {
        _ if args.len() > 4 => return Err(super::wrong_subcommand(args)),
        None => true,
        Some(mode) if mode.eq_ignore_ascii_case(b"all") => true,
        Some(mode) if mode.eq_ignore_ascii_case(b"write") => false,
        Some(_) => return Err(Error::err("ERR CLIENT PAUSE mode must be WRITE or ALL")),
    };
    let timeout = timeout_ms(ctx.now_ms, &args[2])?;
    ctx.server.hold_back(ctx.now_ms, ctx.now_ms + timeout, all);
    out.ok();
    Ok(())
}

fn unpause(ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    ctx.server.end_pause(u64::MAX);
    out.ok();
    Ok(())
}

fn reply(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let session = ctx.alter();
    match args[2].to_ascii_lowercase().as_slice() {
        b"on" => {
            session.reply_mode = ReplyMode::On;
            out.ok();
        }
        b"off" => session.reply_mode = ReplyMode::Off,
        b"skip" if session.reply_mode == ReplyMode::Off => {}
        b"skip" => session.reply_mode = ReplyMode::SkipNext,
        _ => return Err(Error::Syntax),
    }
    session.show();
    Ok(())
}

fn on_or_off(word: &[u8]) -> Result<bool> {
    if word.eq_ignore_ascii_case(b"on") {
        Ok(true)
    } else if word.eq_ignore_ascii_case(b"off") {
        Ok(false)
    } else {
        Err(Error::Syntax)
    }
}

fn no_evict(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let on = on_or_off(&args[2])?;
    let session = ctx.alter();
    session.no_evict = on;
    session.show();
    out.ok();
    Ok(())
}

fn no_touch(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let on = on_or_off(&args[2])?;
    let session = ctx.alter();
    session.no_touch = on;
    session.show();
    out.ok();
    Ok(())
}

fn unblock(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    if args.len() > 4 {
        return Err(super::wrong_subcommand(args));
    }
    let end = match args.get(3) {
        None => End::Timeout,
        Some(reason) if reason.eq_ignore_ascii_case(b"timeout") => End::Timeout,
        Some(reason) if reason.eq_ignore_ascii_case(b"error") => End::Unblocked,
        Some(_) => return Err(Error::err("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR")),
    };
    let id = parse_i64(&args[2]).ok_or(Error::NotInteger)?;
    let client = u64::try_from(id).ok().and_then(|id| ctx.server.clients.lock().get(&id).cloned());
    // What of it EXEC has done already is seen, as if it had happened.
    let client = client.filter(|client| !ctx.kills(client.id));
    let waiter = client.as_ref().and_then(|client| client.waits_for());
    let waiter = waiter.filter(|waiter| waiter.can_end() && !ctx.unblocks(waiter));
    out.int(waiter.is_some().into());
    if let (Some(client), Some(waiter)) = (client, waiter) {
        ctx.note(Effect::Unblock(client, waiter, end));
    }
    Ok(())
}

/// What a client can do that this server has no use for.
fn capa(_ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    out.ok();
    Ok(())
}

fn client_help(_ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    help(
        out,
        "CLIENT",
        &[
            "CACHING (YES|NO)",
            "    With OPTIN or OPTOUT: whether the next command's keys are tracked.",
            "CAPA <option> [<option> ...]",
            "    Accepted without effect.",
            "GETNAME",
            "    The name of this connection.",
            "GETREDIR",
            "    The id of who is told instead of this connection.",
            "ID",
            "    The id of this connection.",
            "INFO",
            "    What is known of this connection.",
            "KILL <ip:port>",
            "    Closes the connection from this address.",
            "KILL <filter> <value> [<filter> <value> ...]",
            "    Closes all connections that every filter admits, this one only with SKIPME NO.",
            "LIST [<filter> <value> ...]",
            "    What is known of the connections that every filter admits.",
            "    Filters of KILL and LIST, all but SKIPME and MAXAGE also with NOT- before them:",
            "    * ID <id> [<id> ...]",
            "    * TYPE (NORMAL|MASTER|REPLICA|PUBSUB)",
            "    * USER <name>",
            "    * ADDR <ip:port>, LADDR <ip:port>, IP <ip>",
            "    * NAME <name>, LIB-NAME <name>, LIB-VER <version>",
            "    * DB <number>, FLAGS <letters>, CAPA <letters>",
            "    * IDLE <seconds>, MAXAGE <seconds>: at least so long",
            "    * SKIPME (YES|NO)",
            "NO-EVICT (ON|OFF)",
            "    Whether this connection stays when those with the largest buffers are closed.",
            "NO-TOUCH (ON|OFF)",
            "    Whether reads of this connection leave access times alone.",
            "PAUSE <milliseconds> [WRITE|ALL]",
            "    Holds back all commands, or those that write.",
            "REPLY (ON|OFF|SKIP)",
            "    Whether this connection gets replies; SKIP leaves out the next one.",
            "SETINFO (LIB-NAME|LIB-VER) <value>",
            "    Name or version of the client's library.",
            "SETNAME <name>",
            "    Names this connection.",
            "TRACKING (ON|OFF) [<option> ...]",
            "    Whether the connection is told when keys change that it has read: [REDIRECT id] [PREFIX prefix]...",
            "    [BCAST] [OPTIN] [OPTOUT] [NOLOOP].",
            "TRACKINGINFO",
            "    The state of client tracking.",
            "UNBLOCK <id> [TIMEOUT|ERROR]",
            "    Ends the wait of a blocked connection.",
            "UNPAUSE",
            "    Ends a pause.",
        ],
    );
    Ok(())
}

const fn sub(name: &'static str, run: crate::handler::Run, arity: i32, more: u32) -> Command {
    let flags = flags::LOADING | flags::STALE | flags::NOSCRIPT | flags::KEEPS_CACHING | more;
    Command::new(name, run, arity, flags, Group::Connection)
}

const SUBCOMMANDS: &[Command] = &[
    sub("caching", caching, 3, 0)
        .help("6.0.0", "Says whether the keys of the next command are tracked.")
        .syntax("<YES | NO>", "O(1)"),
    sub("capa", capa, -3, flags::ALLOW_BUSY)
        .help("8.0.0", "Says what the client is able to do.")
        .syntax("capability [capability ...]", "O(1)"),
    sub("getname", getname, 2, 0).help("2.6.9", "Returns the name of the connection.").syntax("", "O(1)"),
    sub("getredir", getredir, 2, flags::ONCE)
        .help("6.0.0", "Returns the id of the connection that gets this one's tracking messages.")
        .syntax("", "O(1)"),
    Command::new("help", client_help, 2, flags::LOADING | flags::STALE, Group::Connection)
        .help("5.0.0", "Describes the subcommands of CLIENT.")
        .syntax("", "O(1)"),
    sub("id", id, 2, 0).help("5.0.0", "Returns the id of the connection.").syntax("", "O(1)"),
    sub("info", info, 2, 0).help("6.2.0", "Describes the connection.").syntax("", "O(1)"),
    sub("kill", kill, -3, flags::ADMIN)
        .help("2.4.0", "Closes connections.")
        .syntax(filter::KILL_SYNTAX, "O(N) where N is the number of connections"),
    sub("list", list, -2, flags::ADMIN)
        .help("2.4.0", "Describes the open connections.")
        .syntax(filter::LIST_SYNTAX, "O(N) where N is the number of connections"),
    sub("no-evict", no_evict, 3, flags::ADMIN)
        .help("7.0.0", "Says whether the connection may be evicted.")
        .syntax("<ON | OFF>", "O(1)"),
    sub("no-touch", no_touch, 3, 0)
        .help("7.2.0", "Says whether the connection's commands change access times.")
        .syntax("<ON | OFF>", "O(1)"),
    sub("pause", pause, -3, flags::ADMIN)
        .help("3.0.0", "Holds commands back for a time.")
        .syntax("timeout [WRITE | ALL]", "O(1)"),
    sub("reply", reply, 3, 0)
        .help("3.2.0", "Says whether the connection gets replies.")
        .syntax("<ON | OFF | SKIP>", "O(1)"),
    sub("setinfo", setinfo, 4, 0)
        .help("7.2.0", "Says which library the client uses.")
        .syntax("<LIB-NAME libname | LIB-VER libver>", "O(1)"),
    sub("setname", setname, 3, 0).help("2.6.9", "Names the connection.").syntax("connection-name", "O(1)"),
    sub("tracking", tracking::tracking, -3, flags::ONCE)
        .help("6.0.0", "Turns tracking of read keys on or off.")
        .syntax(
            "<ON | OFF> [REDIRECT client-id] [PREFIX prefix [PREFIX prefix ...]] [BCAST] [OPTIN] [OPTOUT] [NOLOOP]",
            "O(1)",
        ),
    sub("trackinginfo", trackinginfo, 2, flags::ONCE)
        .help("6.2.0", "Describes the connection's tracking of keys.")
        .syntax("", "O(1)"),
    sub("unblock", unblock, -3, flags::ADMIN)
        .help("5.0.0", "Ends the wait of a blocked connection.")
        .syntax("client-id [TIMEOUT | ERROR]", "O(log N) where N is the number of connections"),
    sub("unpause", unpause, 2, flags::ADMIN)
        .help("6.2.0", "Ends a pause.")
        .syntax("", "O(N) where N is the number of paused connections"),
];

/// The rows of this file.
pub const COMMANDS: &[Command] = &[Command::new("client", unknown_subcommand, -2, flags::UNQUEUED, Group::Connection)
    .help("2.4.0", "Commands about connections.")
    .syntax("", "Depends on the subcommand")
    .subcommands(SUBCOMMANDS)];

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use crate::config::{Config, Source};
    use crate::handler::buffers::{Away, SLACK};
    use crate::shard::keyspace::walk::tests::engine;

    static TABLE: LazyLock<Table> = LazyLock::new(|| Table::new(&[COMMANDS]));

    #[test]
    fn what_is_on_another_thread_is_counted_until_it_is_back() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let server = Arc::new(Server::new(engine(dir.path(), 1), Config::load(Source::Defaults, &[]).unwrap(), &TABLE));
        server.buffers.set_limit(5 * SLACK);
        let clients = [3, 2, 1].map(|id| Arc::new(Client { id, ..Client::default() }));
        server.clients.lock().extend(clients.iter().map(|client| (client.id, client.clone())));
        // No descriptor of a test is a client's.
        clients.iter().for_each(|client| client.leave());
        let away = clients.each_ref().map(|client| Away::new(&server, client, client.id as usize * SLACK as usize));
        assert!(server.buffers.are_full() && server.buffers.bytes() == 6 * SLACK);
        evict(&server);
        let killed = clients.each_ref().map(|client| client.bits.load(Ordering::Relaxed) != 0);
        assert_eq!(killed, [true, false, false], "the largest");
        // What that one has is about to be given back: nobody else has to go for it.
        evict(&server);
        assert_eq!(server.buffers.evicted.load(Ordering::Relaxed), 1);
        drop(away);
        assert_eq!((server.buffers.bytes(), clients[0].held_bytes()), (0, 0));
    }

    #[test]
    fn a_pause_of_all_is_not_loosened_by_one_of_writes() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let server = Server::new(engine(dir.path(), 1), Config::load(Source::Defaults, &[]).unwrap(), &TABLE);
        let paused = || (server.pause.borrow().until_ms, server.pause.borrow().all);
        for (now_ms, until_ms, all, expected) in [
            (1, 500, true, (500, true)),
            (2, 10, false, (500, true)),
            (3, 900, false, (900, true)),
            // The one before is over.
            (900, 1000, false, (1000, false)),
            (901, 950, true, (1000, true)),
        ] {
            server.hold_back(now_ms, until_ms, all);
            assert_eq!(paused(), expected, "at {now_ms}");
        }
    }
}
