//! FCALL, FCALL_RO, FUNCTION.
//!
//! A function is run as a script is ([`super::run`]), with its keys and the other arguments handed to it. It is found in the list
//! of libraries that every core holds ([`crate::shard::memory::libraries`]); FUNCTION's subcommands that change it hold all cores.
//! A library is compiled and loaded before that, in slices, with nobody waiting where it takes long.

use std::collections::HashSet;
use std::sync::Arc;

use super::library::{FLAGS, MOST_BYTES, Making, NO_WRITES, name_of, told};
use super::run::{self, Code};
use super::{COMPILED_BYTES_A_STEP, COST, EVALS, KEYS, MAY_WRITE, READ_KEYS, keys_and_rest, killed};
use crate::handler::keys::keys_of;
use crate::handler::limits::Bounds;
use crate::handler::{Args, Command, Ctx, Error, Group, Reply, Result, Server, Session, flags};
use crate::meter;
use crate::rdb::{FunctionsError, decode_functions, encode_functions};
use crate::resp::args::Cursor;
use crate::server::{help, unknown_subcommand, wrong_subcommand};
use crate::shard::actor::ShardSet;
use crate::shard::memory::libraries::{Function, Libraries, Library};
use crate::util::glob::matches_nocase;

const ENGINE: &[u8] = b"LUA";

fn call_with(ctx: &mut Ctx, args: Args<'_>, ro: bool, out: &mut Reply) -> Result {
    let libraries = ctx.txn.libraries()?;
    let (library, at) = libraries.function(&args[1]).ok_or(Error::err("ERR Function not found"))?;
    let given = keys_and_rest(args, Error::err("ERR Bad number of keys provided"))?;
    let writes_nothing = library.functions.get(at).is_some_and(|function| function.flags & NO_WRITES != 0);
    if ro && !writes_nothing {
        return Err(MAY_WRITE);
    }
    let code = Code::Function { libraries: &libraries, function: (&library, at), command: args };
    run::run(ctx, code, given, writes_nothing, out)
}

fn fcall(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    call_with(ctx, args, false, out)
}

fn fcall_ro(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    call_with(ctx, args, true, out)
}

/// One shard, any: all know the libraries. Not the same for all clients.
fn any_shard(server: &Server, session: &Session, _args: Args<'_>) -> Option<ShardSet> {
    let shards = server.engine.shards.count() as u64;
    Some([(session.client.id % shards) as u16].into_iter().collect())
}

/// The shards of the keys.
fn shards_of_call(server: &Server, session: &Session, args: Args<'_>) -> Option<ShardSet> {
    let keys = keys_of(&COMMANDS[0], args).unwrap_or_default();
    if keys.is_empty() {
        return any_shard(server, session, args);
    }
    Some(keys.iter().map(|(at, _)| server.engine.router.shard_of(&args[*at])).collect())
}

/// What replacing a library of the same name answers.
fn exists(name: &[u8], quote: &[u8]) -> Error {
    told(&[b"ERR Library ", quote, name, quote, b" already exists"])
}

fn function_exists(name: Box<[u8]>) -> Error {
    told(&[b"ERR Function ", &name, b" already exists"])
}

/// Steps that the machine costs which a library is loaded on.
const STEPS_OF_MACHINE: usize = 512;

/// Compiles and loads a library, one of several or the only one.
fn make(ctx: &mut Ctx, name: Box<[u8]>, code: &[u8], one_of_several: bool) -> Result<Arc<Library>> {
    // What takes long is compiled where nobody waits.
    let steps = code.len() / COMPILED_BYTES_A_STEP;
    meter::foresee(steps as u64)?;
    meter::hold(2 * code.len())?;
    let ns = ctx.ns();
    let mut making = match one_of_several {
        true => ctx.txn.rest(ns, || Making::of(name, code))?,
        false => ctx.txn.rest_for(ns, steps, || Making::of(name, code))?,
    };
    meter::step(STEPS_OF_MACHINE + steps)?;
    let mut through = making.advance()?;
    making.charge()?;
    while !through {
        through = ctx.txn.rest(ns, || making.advance())?;
        making.charge()?;
    }
    Ok(Arc::new(making.library(code)?))
}

/// Refuses libraries that take too much together.
fn check_bytes(ctx: &mut Ctx, bytes: usize) -> Result {
    let most_bytes = MOST_BYTES.get().min(Bounds::of(ctx.settings()).command);
    if bytes <= most_bytes {
        return Ok(());
    }
    Err(Error::Text(format!("ERR libraries of functions may take {most_bytes} bytes together").into()))
}

/// Replaces the list. What takes less than before is never refused.
fn replace(ctx: &mut Ctx, libraries: Libraries) -> Result {
    if libraries.bytes() > ctx.txn.libraries()?.bytes() {
        check_bytes(ctx, libraries.bytes())?;
    }
    ctx.txn.replace_libraries(libraries)
}

fn load(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let (options, code) = (2..args.len() - 1, &args[args.len() - 1]);
    for at in options.clone() {
        if !args[at].eq_ignore_ascii_case(b"REPLACE") {
            return Err(told(&[b"ERR Unknown option given: ", &args[at]]));
        }
    }
    let replaces = !options.is_empty();
    let name = name_of(code)?;
    let check = |ctx: &mut Ctx| match ctx.txn.libraries()?.get(&name) {
        Some(_) if !replaces => Err(exists(&name, b"'")),
        _ => Ok(()),
    };
    check(ctx)?;
    let library = make(ctx, name.clone(), code, false)?;
    // Somebody else may have been faster.
    check(ctx)?;
    let libraries = ctx.txn.libraries()?.with(vec![library]).map_err(function_exists)?;
    replace(ctx, libraries)?;
    out.bulk(&name);
    Ok(())
}

fn delete(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let libraries = ctx.txn.libraries()?;
    if libraries.get(&args[2]).is_none() {
        return Err(Error::err("ERR Library not found"));
    }
    replace(ctx, libraries.without(&args[2]))?;
    out.ok();
    Ok(())
}

fn flush(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    if args.len() > 3 {
        return Err(wrong_subcommand(args));
    }
    let is_known = |word: &[u8]| word.eq_ignore_ascii_case(b"SYNC") || word.eq_ignore_ascii_case(b"ASYNC");
    if args.get(2).is_some_and(|word| !is_known(word)) {
        return Err(Error::err("ERR FUNCTION FLUSH only supports SYNC|ASYNC option"));
    }
    replace(ctx, Libraries::default())?;
    out.ok();
    Ok(())
}

/// The options of LIST.
#[derive(Default)]
struct Listing<'a> {
    pattern: Option<&'a [u8]>,
    with_code: bool,
}

impl<'a> Listing<'a> {
    fn parse(mut words: Cursor<'a>) -> Result<Self> {
        let mut listing = Listing::default();
        while !words.is_empty() {
            let word = words.arg()?;
            if !listing.with_code && word.eq_ignore_ascii_case(b"WITHCODE") {
                listing.with_code = true;
            } else if listing.pattern.is_none() && word.eq_ignore_ascii_case(b"LIBRARYNAME") {
                const NOT_GIVEN: Error = Error::err("ERR library name argument was not given");
                listing.pattern = Some(words.arg().map_err(|_| NOT_GIVEN)?);
            } else {
                return Err(told(&[b"ERR Unknown argument ", word]));
            }
        }
        Ok(listing)
    }
}

fn list(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let listing = Listing::parse(args.cursor(2))?;
    let libraries = ctx.txn.libraries()?;
    meter::step(libraries.counts().0 + libraries.counts().1)?;
    let mark = out.defer_array();
    let mut count = 0;
    for library in libraries.iter() {
        if listing.pattern.is_some_and(|pattern| !matches_nocase(pattern, &library.name)) {
            continue;
        }
        count += 1;
        out.map(if listing.with_code { 4 } else { 3 });
        out.bulk(b"library_name");
        out.bulk(&library.name);
        out.bulk(b"engine");
        out.bulk(ENGINE);
        out.bulk(b"functions");
        out.array(library.functions.len());
        library.functions.iter().for_each(|function| list_function(function, out));
        if listing.with_code {
            meter::hold(library.code.len())?;
            out.bulk(b"library_code");
            out.bulk(&library.code);
        }
    }
    out.set_len(mark, count);
    Ok(())
}

fn list_function(function: &Function, out: &mut Reply) {
    out.map(3);
    out.bulk(b"name");
    out.bulk(&function.name);
    out.bulk(b"description");
    match &function.description {
        Some(text) => out.bulk(text),
        None => out.nil(),
    }
    out.bulk(b"flags");
    let set = FLAGS.iter().enumerate().filter(|(bit, _)| function.flags & 1 << bit != 0);
    out.set(set.clone().count());
    set.for_each(|(_, flag)| out.status(flag));
}

fn stats(ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    let (libraries, functions) = ctx.txn.libraries()?.counts();
    out.map(2);
    out.bulk(b"running_script");
    let running = ctx.server.scripts.running_function();
    match running.as_ref().and_then(|running| Some((running.called.as_ref()?, running.since))) {
        None => out.nil(),
        Some((called, since)) => {
            out.map(3);
            out.bulk(b"name");
            out.bulk(&called.name);
            out.bulk(b"command");
            out.array(called.command.len());
            called.command.iter().for_each(|arg| out.bulk(arg));
            out.bulk(b"duration_ms");
            out.int(since.elapsed().as_millis() as i64);
        }
    }
    out.bulk(b"engines");
    out.map(1);
    out.bulk(ENGINE);
    out.map(2);
    out.bulk(b"libraries_count");
    out.int(libraries as i64);
    out.bulk(b"functions_count");
    out.int(functions as i64);
    Ok(())
}

fn kill(ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    killed(ctx, true, out)
}

fn dump(ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    let libraries = ctx.txn.libraries()?;
    let bytes = libraries.iter().map(|library| library.code.len()).sum::<usize>();
    meter::hold(2 * bytes)?;
    meter::step(bytes / meter::STEP_BYTES)?;
    out.bulk(&encode_functions(libraries.iter().map(|library| &*library.code)));
    Ok(())
}

/// What RESTORE does with what is there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Policy {
    Flush,
    Append,
    Replace,
}

fn restore(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    if args.len() > 4 {
        return Err(wrong_subcommand(args));
    }
    let policy = match args.get(3).map(<[u8]>::to_ascii_lowercase).as_deref() {
        None | Some(b"append") => Policy::Append,
        Some(b"flush") => Policy::Flush,
        Some(b"replace") => Policy::Replace,
        Some(_) => {
            return Err(Error::err("ERR Wrong restore policy given, value should be either FLUSH, APPEND or REPLACE."));
        }
    };
    meter::foresee((args[2].len() / COMPILED_BYTES_A_STEP) as u64)?;
    let codes = decode_functions(&args[2], MOST_BYTES.get()).map_err(|error| match error {
        FunctionsError::Frame => Error::err("ERR DUMP payload version or checksum are wrong"),
        FunctionsError::OtherType => Error::err("ERR given type is not a function"),
        FunctionsError::PreGa => Error::err("ERR Pre-GA function format not supported"),
        FunctionsError::Corrupt => Error::err("ERR Failed loading library payload"),
        FunctionsError::TooLarge => Error::TooMuch,
    })?;
    let (mut new, mut names, mut bytes) = (Vec::new(), HashSet::new(), 0);
    for code in &codes {
        let name = name_of(code)?;
        if !names.insert(name.clone()) {
            return Err(exists(&name, b"'"));
        }
        let library = make(ctx, name, code, codes.len() > 1)?;
        bytes += library.bytes;
        check_bytes(ctx, bytes)?;
        new.push(library);
    }
    let before = ctx.txn.libraries()?;
    if policy == Policy::Append
        && let Some(taken) = new.iter().find(|library| before.get(&library.name).is_some())
    {
        return Err(exists(&taken.name, b""));
    }
    let libraries = match policy {
        Policy::Flush => Libraries::default().with(new),
        Policy::Append | Policy::Replace => before.with(new),
    };
    replace(ctx, libraries.map_err(function_exists)?)?;
    out.ok();
    Ok(())
}

fn function_help(_ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    help(
        out,
        "FUNCTION",
        &[
            "DELETE <library-name>",
            "    Removes a library and its functions.",
            "DUMP",
            "    Returns all libraries as a payload for RESTORE.",
            "FLUSH [ASYNC|SYNC]",
            "    Removes all libraries.",
            "KILL",
            "    Ends the functions that run for long and have written nothing.",
            "LIST [LIBRARYNAME <pattern>] [WITHCODE]",
            "    Lists libraries and their functions.",
            "LOAD [REPLACE] <code>",
            "    Makes a library of its code.",
            "RESTORE <payload> [FLUSH|APPEND|REPLACE]",
            "    Adds the libraries of a payload, in place of all others (FLUSH), if none of them is there (APPEND, the default),",
            "    or in place of those with the same names (REPLACE).",
            "STATS",
            "    Tells which function has been running longest, and how many libraries and functions there are.",
        ],
    );
    Ok(())
}

const SYNTAX: &str = "function numkeys [key [key ...]] [arg [arg ...]]";
const CHANGES: u32 = flags::NOSCRIPT | flags::WRITE | flags::ALL_SHARDS;

const SUBCOMMANDS: &[Command] = &[
    Command::new("delete", delete, 3, CHANGES, Group::Scripting)
        .help("7.0.0", "Removes a library and its functions.")
        .syntax("library-name", "O(N) with N being the number of libraries"),
    Command::new("dump", dump, 2, flags::NOSCRIPT, Group::Scripting)
        .route_by(any_shard)
        .help("7.0.0", "Returns all libraries as a payload, in Redis's format.")
        .syntax("", "O(N) with N being the length of all libraries"),
    Command::new("flush", flush, -2, CHANGES, Group::Scripting)
        .help("7.0.0", "Removes all libraries.")
        .syntax("[ASYNC | SYNC]", "O(N) with N being the number of libraries"),
    Command::new("help", function_help, 2, flags::LOADING | flags::STALE, Group::Scripting)
        .help("7.0.0", "Lists the subcommands.")
        .syntax("", "O(1)"),
    Command::new("kill", kill, 2, flags::NOSCRIPT | flags::ALLOW_BUSY, Group::Scripting)
        .help("7.0.0", "Ends the functions that run for long and have written nothing.")
        .syntax("", "O(1)"),
    Command::new("list", list, -2, flags::NOSCRIPT, Group::Scripting)
        .route_by(any_shard)
        .help("7.0.0", "Lists libraries and their functions.")
        .syntax("[LIBRARYNAME library-name-pattern] [WITHCODE]", "O(N) with N being the number of functions"),
    Command::new("load", load, -3, CHANGES | flags::DENYOOM, Group::Scripting)
        .help("7.0.0", "Makes a library of its code.")
        .syntax("[REPLACE] function-code", "O(N) with N being the length of the code, and the number of libraries"),
    Command::new("restore", restore, -3, CHANGES | flags::DENYOOM, Group::Scripting)
        .help("7.0.0", "Adds the libraries of a payload.")
        .syntax("serialized-value [FLUSH | APPEND | REPLACE]", "O(N) with N being the length of the payload"),
    Command::new("stats", stats, 2, flags::NOSCRIPT | flags::ALLOW_BUSY, Group::Scripting)
        .route_by(any_shard)
        .help("7.0.0", "Tells which function runs, and how many there are.")
        .syntax("", "O(1)"),
];

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("fcall", fcall, -3, EVALS | flags::MAY_WRITE, Group::Scripting)
        .route_by(shards_of_call)
        .keys(KEYS)
        .help("7.0.0", "Runs a function.")
        .syntax(SYNTAX, COST),
    Command::new("fcall_ro", fcall_ro, -3, EVALS | flags::READONLY, Group::Scripting)
        .route_by(shards_of_call)
        .keys(READ_KEYS)
        .help("7.0.0", "Runs a function that writes nothing.")
        .syntax(SYNTAX, COST),
    Command::new("function", unknown_subcommand, -2, flags::UNQUEUED, Group::Scripting)
        .help("7.0.0", "Manages libraries of functions.")
        .syntax("", "Depends on the subcommand")
        .subcommands(SUBCOMMANDS),
];
