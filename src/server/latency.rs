//! LATENCY: the events that [`crate::latency`] keeps, and how the times of commands are distributed.

mod doctor;
mod graph;

use super::{help, unknown_subcommand};
use crate::handler::{Args, Command, Ctx, Error, Group, Reply, Result, flags};
use crate::latency;
use crate::meter;
use crate::util::histogram::Counts;

fn history(_ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let series = latency::of(&args[2]);
    out.array(series.samples.len());
    for (second, ms) in series.samples {
        out.array(2);
        out.int(second as i64);
        out.int(ms as i64);
    }
    Ok(())
}

fn latest(_ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    let all = latency::all();
    out.array(all.len());
    for (name, series) in all {
        let (second, ms) = series.samples.back().copied().unwrap_or_default();
        out.array(4);
        out.bulk(name.as_bytes());
        [second, ms, series.most_ms].into_iter().for_each(|number| out.int(number as i64));
    }
    Ok(())
}

fn reset(_ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let named = args.slice(2);
    out.int(latency::reset(|event| named.is_empty() || named.iter().any(|name| name == event)) as i64);
    Ok(())
}

fn graph(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let series = latency::of(&args[2]);
    if series.samples.is_empty() {
        return Err(Error::quoting("ERR No samples available for event '", &args[2], usize::MAX, "'"));
    }
    let name = String::from_utf8_lossy(&args[2]);
    out.verbatim(graph::draw(&name, &series, ctx.now_ms / 1000).as_bytes(), b"txt");
    Ok(())
}

fn doctor(ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    let report = doctor::report(&latency::all(), &doctor::Seen::of(ctx.server));
    out.verbatim(report.as_bytes(), b"txt");
    Ok(())
}

/// What Redis calls a power of two of 1,024 ns: the highest number, in µs, of the bucket of its own histogram that begins there.
fn power_us(ns: u64) -> u64 {
    (ns + ns / 128 - 1) / 1000
}

/// What it costs to tell of one command: all its buckets are gone through.
const STEPS_OF_ONE: usize = 32;

fn histogram(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let times = ctx.server.times_since_reset();
    let table = ctx.server.table;
    let slots: Vec<u32> = if args.len() == 2 {
        (0..table.slots() as u32).collect()
    } else {
        args.slice(2).iter().flat_map(|name| table.slots_named(name)).collect()
    };
    let of_slot =
        |slot: u32| Some((table.slot_name(slot)?, times.get(slot as usize).filter(|times| times.total() > 0)?));
    let told: Vec<(String, &Counts)> = slots.into_iter().filter_map(of_slot).collect();
    out.map(told.len());
    for (name, times) in told {
        // A request has room for the same name very often.
        meter::step(STEPS_OF_ONE)?;
        let powers = times.by_powers();
        out.bulk(name.as_bytes());
        out.map(2);
        out.bulk(b"calls");
        out.int(times.total() as i64);
        out.bulk(b"histogram_usec");
        out.map(powers.len());
        for (ns, calls) in powers {
            out.int(power_us(ns) as i64);
            out.int(calls as i64);
        }
    }
    Ok(())
}

fn latency_help(_ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    let lines = [
        "DOCTOR",
        "    A report for people, with advice.",
        "GRAPH <event>",
        "    The samples of an event, drawn.",
        "HISTOGRAM [<command> ...]",
        "    How long commands ran: calls up to each power of two of microseconds.",
        "HISTORY <event>",
        "    The samples of an event: the longest of each second.",
        "LATEST",
        "    The latest sample of every event, and the longest ever.",
        "RESET [<event> ...]",
        "    Removes the samples of these events, or of all.",
    ];
    help(out, "LATENCY", &lines);
    Ok(())
}

const QUIET: u32 = flags::LOADING | flags::STALE;

const fn row(name: &'static str, run: crate::handler::Run, arity: i32) -> Command {
    Command::new(name, run, arity, flags::ADMIN | flags::ONCE | QUIET | flags::NOSCRIPT, Group::Server)
}

/// The rows of this file.
pub const COMMANDS: &[Command] = &[Command::new("latency", unknown_subcommand, -2, flags::UNQUEUED, Group::Server)
    .help("2.8.13", "Commands about latency.")
    .syntax("", "Depends on the subcommand")
    .subcommands(&[
        row("doctor", doctor, 2).help("2.8.13", "Returns a report for people.").syntax("", "O(1)"),
        row("graph", graph, 3).help("2.8.13", "Draws an event's samples.").syntax("event", "O(1)"),
        Command::new("help", latency_help, 2, QUIET, Group::Server)
            .help("2.8.13", "Describes the subcommands of LATENCY.")
            .syntax("", "O(1)"),
        row("histogram", histogram, -2)
            .help("7.0.0", "Returns how the times of commands are distributed.")
            .syntax("[command [command ...]]", "O(N) where N is the number of commands"),
        row("history", history, 3).help("2.8.13", "Returns an event's samples.").syntax("event", "O(1)"),
        row("latest", latest, 2).help("2.8.13", "Returns the latest samples.").syntax("", "O(1)"),
        row("reset", reset, -2).help("2.8.13", "Removes the samples of events.").syntax("[event [event ...]]", "O(1)"),
    ])];
