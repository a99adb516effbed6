//! SLOWLOG and COMMANDLOG: the logs of commands that [`crate::handler::observe`] keeps.

use super::{help, unknown_subcommand, wrong_subcommand};
use crate::handler::observe::Kind;
use crate::handler::{Args, Command, Ctx, Error, Group, Reply, Result, flags};
use crate::meter;
use crate::util::num::parse_i64;

/// Entries that SLOWLOG GET answers when it is not told how many.
const USUAL: usize = 10;

/// How many entries are asked for; −1 is all.
fn count_of(arg: &[u8]) -> Result<usize> {
    let count = parse_i64(arg).filter(|count| *count >= -1);
    let count = count.ok_or(Error::err("ERR count should be greater than or equal to -1"))?;
    Ok(usize::try_from(count).unwrap_or(usize::MAX))
}

fn kind_of(arg: &[u8]) -> Result<Kind> {
    const KINDS: [(&[u8], Kind); 3] =
        [(b"slow", Kind::Slow), (b"large-request", Kind::LargeRequest), (b"large-reply", Kind::LargeReply)];
    let found = KINDS.iter().find(|(name, _)| arg.eq_ignore_ascii_case(name));
    found
        .map(|(_, kind)| *kind)
        .ok_or(Error::err("ERR type should be one of the following: slow, large-request, large-reply"))
}

fn answer_entries(ctx: &Ctx, kind: Kind, most: usize, out: &mut Reply) -> Result {
    let entries = ctx.server.observer.latest(kind, most);
    out.array(entries.len());
    for entry in entries {
        meter::step_through(entry.what.bytes())?;
        out.array(6);
        out.int(entry.id as i64);
        out.int(entry.at_s as i64);
        out.int(entry.value as i64);
        out.array(entry.what.args.len());
        entry.what.args.iter().for_each(|arg| out.bulk(arg));
        out.bulk(entry.what.addr.as_bytes());
        out.bulk(&entry.what.name);
    }
    Ok(())
}

fn slowlog_get(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    if args.len() > 3 {
        return Err(wrong_subcommand(args));
    }
    let most = args.get(2).map_or(Ok(USUAL), count_of)?;
    answer_entries(ctx, Kind::Slow, most, out)
}

fn slowlog_len(ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    out.int(ctx.server.observer.len(Kind::Slow) as i64);
    Ok(())
}

fn slowlog_reset(ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    ctx.server.observer.reset(Kind::Slow);
    out.ok();
    Ok(())
}

fn commandlog_get(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let (most, kind) = (count_of(&args[2])?, kind_of(&args[3])?);
    answer_entries(ctx, kind, most, out)
}

fn commandlog_len(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    out.int(ctx.server.observer.len(kind_of(&args[2])?) as i64);
    Ok(())
}

fn commandlog_reset(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    ctx.server.observer.reset(kind_of(&args[2])?);
    out.ok();
    Ok(())
}

fn slowlog_help(_ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    let lines = [
        "GET [<count>]",
        "    The latest entries, 10 unless told otherwise, all with -1: number, time, microseconds that the",
        "    command ran, its arguments, the client's address and name.",
        "LEN",
        "    Number of entries.",
        "RESET",
        "    Removes all entries.",
    ];
    help(out, "SLOWLOG", &lines);
    Ok(())
}

fn commandlog_help(_ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    let lines = [
        "GET <count> (slow|large-request|large-reply)",
        "    The latest entries of a log, all with -1: number, time, microseconds that the command ran or bytes of",
        "    its request or reply, its arguments, the client's address and name.",
        "LEN (slow|large-request|large-reply)",
        "    Number of entries.",
        "RESET (slow|large-request|large-reply)",
        "    Removes all entries.",
    ];
    help(out, "COMMANDLOG", &lines);
    Ok(())
}

const QUIET: u32 = flags::LOADING | flags::STALE;
const ADMIN: u32 = flags::ADMIN | flags::ONCE | QUIET;
const TYPES: &str = "<slow | large-request | large-reply>";

const fn row(name: &'static str, run: crate::handler::Run, arity: i32) -> Command {
    Command::new(name, run, arity, ADMIN, Group::Server)
}

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("slowlog", unknown_subcommand, -2, flags::UNQUEUED, Group::Server)
        .help("2.2.12", "Commands about commands that took long.")
        .syntax("", "Depends on the subcommand")
        .subcommands(&[
            row("get", slowlog_get, -2)
                .help("2.2.12", "Returns entries of the slow log.")
                .syntax("[count]", "O(N) where N is the number of entries returned"),
            Command::new("help", slowlog_help, 2, QUIET, Group::Server)
                .help("6.2.0", "Describes the subcommands of SLOWLOG.")
                .syntax("", "O(1)"),
            row("len", slowlog_len, 2)
                .help("2.2.12", "Returns the number of entries of the slow log.")
                .syntax("", "O(1)"),
            row("reset", slowlog_reset, 2)
                .help("2.2.12", "Removes all entries of the slow log.")
                .syntax("", "O(N) where N is the number of entries"),
        ]),
    Command::new("commandlog", unknown_subcommand, -2, flags::UNQUEUED, Group::Server)
        .help("8.1.0", "Commands about commands that took long, were large, or had a large reply.")
        .syntax("", "Depends on the subcommand")
        .subcommands(&[
            row("get", commandlog_get, 4)
                .help("8.1.0", "Returns entries of a log of commands.")
                .syntax("count <slow | large-request | large-reply>", "O(N) where N is the number of entries returned"),
            Command::new("help", commandlog_help, 2, QUIET, Group::Server)
                .help("8.1.0", "Describes the subcommands of COMMANDLOG.")
                .syntax("", "O(1)"),
            row("len", commandlog_len, 3)
                .help("8.1.0", "Returns the number of entries of a log of commands.")
                .syntax(TYPES, "O(1)"),
            row("reset", commandlog_reset, 3)
                .help("8.1.0", "Removes all entries of a log of commands.")
                .syntax(TYPES, "O(N) where N is the number of entries"),
        ]),
];
