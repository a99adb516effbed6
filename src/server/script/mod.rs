//! EVAL, EVALSHA, EVAL_RO, EVALSHA_RO, SCRIPT; in a file of their own FCALL, FCALL_RO, FUNCTION.
//!
//! | file | owns |
//! |---|---|
//! | this one | the commands of scripts; scripts compiled and found |
//! | [`function`] | the commands of functions |
//! | [`library`] | libraries of functions: read, loaded, kept loaded |
//! | [`run`] | the run of a script or a function, and the commands that it calls |
//! | [`host`] | the table `redis` |
//! | [`convert`] | replies as Lua values, and back |

mod convert;
pub mod function;
mod host;
pub mod library;
mod run;

use std::sync::Arc;

use run::Code;

use super::{help, unknown_subcommand};
use crate::handler::limits::Bounds;
use crate::handler::scripts::{Killed, Script, Sha};
use crate::handler::{Args, Command, Ctx, Error, Group, KeySpec, Reply, Result, flags, key};
use crate::lua::{Chunk, Limits};
use crate::meter;
use crate::util::num::parse_i64;
use crate::util::sha1::sha1_hex;

/// The texts of scripts whose first line says what they do begin with this.
const SHEBANG: &[u8] = b"#!";

/// What the first line says.
#[derive(Default)]
struct Flags {
    any: bool,
    no_writes: bool,
    allow_oom: bool,
}

/// Reads `#!lua flags=a,b`.
fn flags_of(body: &[u8]) -> Result<Flags> {
    if !body.starts_with(SHEBANG) {
        return Ok(Flags::default());
    }
    let Some(end) = memchr::memchr(b'\n', body) else { return Err(Error::err("ERR Invalid script shebang")) };
    let mut words = body[..end].split(|&c| c == b' ').filter(|word| !word.is_empty());
    let engine = words.next().unwrap_or_default();
    if engine != b"#!lua" {
        return Err(Error::quoting("ERR Unexpected engine in script shebang: ", engine, 128, ""));
    }
    let mut flags = Flags { any: true, ..Flags::default() };
    for word in words {
        let Some(list) = word.strip_prefix(b"flags=") else {
            return Err(Error::quoting("ERR Unknown lua shebang option: ", word, 128, ""));
        };
        for flag in list.split(|&c| c == b',').filter(|flag| !flag.is_empty()) {
            match flag {
                b"no-writes" => flags.no_writes = true,
                b"allow-oom" => flags.allow_oom = true,
                b"allow-stale" | b"no-cluster" | b"allow-cross-slot-keys" => {}
                _ => return Err(Error::quoting("ERR Unexpected flag in script shebang: ", flag, 128, "")),
            }
        }
    }
    Ok(flags)
}

/// Bytes of a text that are compiled in the time of a step.
const COMPILED_BYTES_A_STEP: usize = 8;

fn compile(body: &[u8], sha: Sha) -> Result<Arc<Script>> {
    let flags = flags_of(body)?;
    // What takes long is compiled where nobody waits.
    meter::foresee((body.len() / COMPILED_BYTES_A_STEP) as u64)?;
    meter::hold(2 * body.len())?;
    // Lines are counted from the shebang on.
    let source = if flags.any { &body[memchr::memchr(b'\n', body).unwrap_or(0)..] } else { body };
    let chunk = Chunk::compile(source, "@user_script", &Limits::default())
        .map_err(|text| Error::Quoted([b"ERR Error compiling script (new function): ", &text[..]].concat().into()))?;
    meter::step(body.len() / COMPILED_BYTES_A_STEP)?;
    let bytes = size_of::<Script>() + chunk.bytes();
    let Flags { any: has_flags, no_writes, allow_oom } = flags;
    Ok(Arc::new(Script { sha, chunk, no_writes, allow_oom, has_flags, bytes }))
}

/// The script of this text; it is known from now on.
fn script_of(ctx: &mut Ctx, body: &[u8], by_eval: bool) -> Result<Arc<Script>> {
    meter::step(1 + body.len() / meter::STEP_BYTES)?;
    let sha = sha1_hex(body);
    if let Some(script) = ctx.server.scripts.find(&sha).filter(|_| by_eval) {
        return Ok(script);
    }
    let script = compile(body, sha)?;
    let most_bytes = Bounds::of(ctx.settings()).command;
    if ctx.server.scripts.add(&script, by_eval, most_bytes) || by_eval { Ok(script) } else { Err(Error::TooMuch) }
}

/// The keys and what follows them in `script numkeys key… arg…`; `wrong`: there is no number.
fn keys_and_rest(args: Args<'_>, wrong: Error) -> Result<(Args<'_>, Args<'_>)> {
    let number = parse_i64(&args[2]).ok_or(wrong)?;
    if number > (args.len() - 3) as i64 {
        return Err(Error::err("ERR Number of keys can't be greater than number of args"));
    }
    let Ok(number) = usize::try_from(number) else {
        return Err(Error::err("ERR Number of keys can't be negative"));
    };
    Ok((args.slice(3).take(number), args.slice(3 + number)))
}

/// What is called with `_RO` has to say that it writes nothing.
const MAY_WRITE: Error = Error::err("ERR Can not execute a script with write flag using *_ro command.");

/// Runs a script with `numkeys key… arg…`.
fn run_with(
    ctx: &mut Ctx,
    args: Args<'_>,
    find: impl FnOnce(&mut Ctx) -> Result<Arc<Script>>,
    ro: bool,
    out: &mut Reply,
) -> Result {
    let (keys, argv) = keys_and_rest(args, Error::NotInteger)?;
    let script = find(ctx)?;
    if ro && script.has_flags && !script.no_writes {
        return Err(MAY_WRITE);
    }
    let read_only = ro || script.no_writes;
    run::run(ctx, Code::Script(&script), (keys, argv), read_only, out)
}

fn by_text(ctx: &mut Ctx, args: Args<'_>, ro: bool, out: &mut Reply) -> Result {
    run_with(ctx, args, |ctx| script_of(ctx, &args[1], true), ro, out)
}

fn by_sha(ctx: &mut Ctx, args: Args<'_>, ro: bool, out: &mut Reply) -> Result {
    let find = |ctx: &mut Ctx| {
        let sha = Sha::try_from(args[1].to_ascii_lowercase()).ok();
        let found = sha.and_then(|sha| ctx.server.scripts.find(&sha));
        found.ok_or(Error::err("NOSCRIPT No matching script. Please use EVAL."))
    };
    run_with(ctx, args, find, ro, out)
}

fn eval(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    by_text(ctx, args, false, out)
}

fn eval_ro(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    by_text(ctx, args, true, out)
}

fn evalsha(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    by_sha(ctx, args, false, out)
}

fn evalsha_ro(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    by_sha(ctx, args, true, out)
}

fn load(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    out.bulk(&script_of(ctx, &args[2], false)?.sha);
    Ok(())
}

fn exists(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    out.array(args.len() - 2);
    for sha in args.iter().skip(2) {
        let known = Sha::try_from(sha.to_ascii_lowercase()).is_ok_and(|sha| ctx.server.scripts.knows(&sha));
        out.int(known.into());
    }
    Ok(())
}

fn flush(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let is_known = |word: &[u8]| word.eq_ignore_ascii_case(b"SYNC") || word.eq_ignore_ascii_case(b"ASYNC");
    if args.len() > 3 || args.get(2).is_some_and(|word| !is_known(word)) {
        return Err(Error::err("ERR SCRIPT FLUSH only support SYNC|ASYNC option"));
    }
    ctx.server.scripts.flush();
    out.ok();
    Ok(())
}

fn kill(ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    killed(ctx, false, out)
}

/// SCRIPT KILL, or FUNCTION KILL.
fn killed(ctx: &Ctx, functions: bool, out: &mut Reply) -> Result {
    match ctx.server.scripts.kill(functions) {
        Killed::Some => out.ok(),
        Killed::Nothing => return Err(Error::err("NOTBUSY No scripts in execution right now.")),
        Killed::Others => {
            let other = if functions { "SCRIPT" } else { "FUNCTION" };
            let text =
                format!("BUSY Redis is busy running a script. You can only call {other} KILL or SHUTDOWN NOSAVE.");
            return Err(Error::Text(text.into()));
        }
        Killed::Writers => {
            return Err(Error::err(
                "UNKILLABLE Sorry the script already executed write commands against the dataset. You can either wait the \
                 script termination or kill the server in a hard way using the SHUTDOWN NOSAVE command.",
            ));
        }
    }
    Ok(())
}

fn debug(_ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    match args[2].to_ascii_lowercase().as_slice() {
        b"no" => out.ok(),
        b"yes" | b"sync" => return Err(Error::err("ERR the Lua debugger is not supported")),
        _ => return Err(Error::err("ERR Use SCRIPT DEBUG YES/SYNC/NO")),
    }
    Ok(())
}

fn script_help(_ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    help(
        out,
        "SCRIPT",
        &[
            "DEBUG (YES|SYNC|NO)",
            "    Only NO: there is no debugger.",
            "EXISTS <sha1> [<sha1> ...]",
            "    Says which scripts are known.",
            "FLUSH [ASYNC|SYNC]",
            "    Forgets all scripts.",
            "KILL",
            "    Ends the scripts that run for long and have written nothing.",
            "LOAD <script>",
            "    Makes a script known without running it.",
        ],
    );
    Ok(())
}

const EVALS: u32 = flags::NOSCRIPT | flags::STALE | flags::SKIP_MONITOR | flags::NO_MANDATORY_KEYS | flags::MOVABLEKEYS;
const WRITES: u32 = EVALS | flags::MAY_WRITE;
const READS: u32 = EVALS | flags::READONLY;
const KEYS: &[KeySpec] = &[KeySpec::counted(2, 1, key::RW | key::ACCESS | key::UPDATE)];
const READ_KEYS: &[KeySpec] = &[KeySpec::counted(2, 1, key::RO | key::ACCESS)];
const SYNTAX: &str = "script numkeys [key [key ...]] [arg [arg ...]]";
const SHA_SYNTAX: &str = "sha1 numkeys [key [key ...]] [arg [arg ...]]";
const COST: &str = "Depends on the script that is executed.";

const SUBCOMMANDS: &[Command] = &[
    Command::new("debug", debug, 3, flags::NOSCRIPT, Group::Scripting)
        .help("3.2.0", "Says that there is no debugger.")
        .syntax("<YES | SYNC | NO>", "O(1)"),
    Command::new("exists", exists, -3, flags::NOSCRIPT | flags::ONCE, Group::Scripting)
        .help("2.6.0", "Says which scripts are known.")
        .syntax("sha1 [sha1 ...]", "O(N) with N being the number of scripts to check"),
    Command::new("flush", flush, -2, flags::NOSCRIPT | flags::ONCE, Group::Scripting)
        .help("2.6.0", "Forgets all scripts.")
        .syntax("[ASYNC | SYNC]", "O(N) with N being the number of scripts known"),
    Command::new("help", script_help, 2, flags::LOADING | flags::STALE, Group::Scripting)
        .help("5.0.0", "Lists the subcommands.")
        .syntax("", "O(1)"),
    Command::new("kill", kill, 2, flags::NOSCRIPT | flags::ALLOW_BUSY, Group::Scripting)
        .help("2.6.0", "Ends the scripts that run for long and have written nothing.")
        .syntax("", "O(1)"),
    Command::new("load", load, 3, flags::NOSCRIPT | flags::STALE | flags::ONCE, Group::Scripting)
        .help("2.6.0", "Makes a script known without running it.")
        .syntax("script", "O(N) with N being the length of the script in bytes"),
];

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("eval", eval, -3, WRITES, Group::Scripting)
        .keys(KEYS)
        .help("2.6.0", "Runs a script.")
        .syntax(SYNTAX, COST),
    Command::new("eval_ro", eval_ro, -3, READS, Group::Scripting)
        .keys(READ_KEYS)
        .help("7.0.0", "Runs a script that writes nothing.")
        .syntax(SYNTAX, COST),
    Command::new("evalsha", evalsha, -3, WRITES, Group::Scripting)
        .keys(KEYS)
        .help("2.6.0", "Runs a script that is known, by the SHA-1 of its text.")
        .syntax(SHA_SYNTAX, COST),
    Command::new("evalsha_ro", evalsha_ro, -3, READS, Group::Scripting)
        .keys(READ_KEYS)
        .help("7.0.0", "Runs a script that is known and writes nothing, by the SHA-1 of its text.")
        .syntax(SHA_SYNTAX, COST),
    Command::new("script", unknown_subcommand, -2, flags::UNQUEUED, Group::Scripting)
        .help("2.6.0", "Manages the scripts that are known.")
        .syntax("", "Depends on the subcommand")
        .subcommands(SUBCOMMANDS),
];
