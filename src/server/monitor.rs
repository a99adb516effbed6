//! MONITOR; and SLOWLOG and LATENCY, for clients that ask.
//!
//! Commands are not timed one by one, as a look at the clock would cost as much as a tenth of a GET. Both therefore
//! answer as Redis does when nothing was ever slow.

use super::{help, unknown_subcommand, wrong_subcommand};
use crate::handler::{Args, Command, Ctx, Error, Group, Reply, Result, flags};
use crate::util::num::parse_i64;

fn monitor(ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    // Whoever is shown them already gets no reply, as from Redis.
    if ctx.monitor()? {
        out.ok();
    }
    Ok(())
}

fn slowlog_get(_ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    if args.len() > 3 {
        return Err(wrong_subcommand(args));
    }
    if args.get(2).is_some_and(|count| parse_i64(count).is_none_or(|count| count < -1)) {
        return Err(Error::err("ERR count should be greater than or equal to -1"));
    }
    out.array(0);
    Ok(())
}

fn slowlog_len(_ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    out.int(0);
    Ok(())
}

fn slowlog_reset(_ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    out.ok();
    Ok(())
}

fn slowlog_help(_ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    let lines = [
        "GET [<count>]",
        "    Entries of the slow log, 10 unless told otherwise: none, as commands are not timed.",
        "LEN",
        "    Number of entries.",
        "RESET",
        "    Removes all entries.",
    ];
    help(out, "SLOWLOG", &lines);
    Ok(())
}

fn latency_none(_ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    out.array(0);
    Ok(())
}

fn latency_histogram(_ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    out.map(0);
    Ok(())
}

fn latency_reset(_ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    out.int(0);
    Ok(())
}

fn latency_graph(_ctx: &mut Ctx, args: Args<'_>, _out: &mut Reply) -> Result {
    let event = String::from_utf8_lossy(&args[2]);
    Err(Error::Text(format!("ERR No samples available for event '{event}'").into()))
}

fn latency_doctor(_ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    out.verbatim(b"Latency is not monitored by this server: there is nothing to report.\n", "txt");
    Ok(())
}

fn latency_help(_ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    let lines = [
        "DOCTOR",
        "    A report for people.",
        "GRAPH <event>",
        "    The samples of an event, drawn.",
        "HISTOGRAM [<command> ...]",
        "    How long commands took.",
        "HISTORY <event>",
        "    The samples of an event.",
        "LATEST",
        "    The latest sample of every event.",
        "RESET [<event> ...]",
        "    Removes samples.",
        "    Latency is not monitored by this server: there are no events.",
    ];
    help(out, "LATENCY", &lines);
    Ok(())
}

const QUIET: u32 = flags::LOADING | flags::STALE;
const ADMIN: u32 = flags::ADMIN | QUIET;

const fn latency(name: &'static str, run: crate::handler::Run, arity: i32) -> Command {
    Command::new(name, run, arity, ADMIN | flags::NOSCRIPT, Group::Server)
}

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("monitor", monitor, 1, flags::ADMIN | flags::LOADING | flags::NOSCRIPT | flags::STALE, Group::Server)
        .help("1.0.0", "Shows the connection every command that the server runs.")
        .syntax("", ""),
    Command::new("slowlog", unknown_subcommand, -2, flags::UNQUEUED, Group::Server)
        .help("2.2.12", "Commands about commands that took long.")
        .syntax("", "Depends on the subcommand")
        .subcommands(&[
            Command::new("get", slowlog_get, -2, ADMIN, Group::Server)
                .help("2.2.12", "Returns entries of the slow log.")
                .syntax("[count]", "O(N) where N is the number of entries returned"),
            Command::new("help", slowlog_help, 2, QUIET, Group::Server)
                .help("6.2.0", "Describes the subcommands of SLOWLOG.")
                .syntax("", "O(1)"),
            Command::new("len", slowlog_len, 2, ADMIN, Group::Server)
                .help("2.2.12", "Returns the number of entries of the slow log.")
                .syntax("", "O(1)"),
            Command::new("reset", slowlog_reset, 2, ADMIN, Group::Server)
                .help("2.2.12", "Removes all entries of the slow log.")
                .syntax("", "O(N) where N is the number of entries"),
        ]),
    Command::new("latency", unknown_subcommand, -2, flags::UNQUEUED, Group::Server)
        .help("2.8.13", "Commands about latency.")
        .syntax("", "Depends on the subcommand")
        .subcommands(&[
            latency("doctor", latency_doctor, 2).help("2.8.13", "Returns a report for people.").syntax("", "O(1)"),
            latency("graph", latency_graph, 3).help("2.8.13", "Draws an event's samples.").syntax("event", "O(1)"),
            Command::new("help", latency_help, 2, QUIET, Group::Server)
                .help("2.8.13", "Describes the subcommands of LATENCY.")
                .syntax("", "O(1)"),
            latency("histogram", latency_histogram, -2)
                .help("7.0.0", "Returns how the times of commands are distributed.")
                .syntax("[command [command ...]]", "O(N) where N is the number of commands"),
            latency("history", latency_none, 3).help("2.8.13", "Returns an event's samples.").syntax("event", "O(1)"),
            latency("latest", latency_none, 2).help("2.8.13", "Returns the latest samples.").syntax("", "O(1)"),
            latency("reset", latency_reset, -2)
                .help("2.8.13", "Removes the samples of events.")
                .syntax("[event [event ...]]", "O(1)"),
        ]),
];
