//! MEMORY: what keys and the server hold in memory.
//!
//! `MEMORY USAGE` answers what a key takes in its shard's table now. What of it lies on disk only is not counted.

use super::{help, unknown_subcommand};
use crate::handler::{Args, Command, Ctx, Error, Group, KeySpec, Reply, Result, flags, key};
use crate::shard::Engine;
use crate::util::num::parse_i64;
use crate::util::{alloc, sys};

fn usage(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let mut options = args.cursor(3);
    while !options.is_empty() {
        if !options.next_is(b"SAMPLES") || options.is_empty() {
            return Err(Error::Syntax);
        }
        // Nothing is sampled, as every object knows its size.
        if parse_i64(options.arg()?).ok_or(Error::NotInteger)? < 0 {
            return Err(Error::Syntax);
        }
    }
    ctx.txn.no_touch = true;
    ctx.txn.count_hits = false;
    match ctx.lookup(&args[2])? {
        None => out.nil(),
        Some(found) => out.int(ctx.object(found).mem_bytes() as i64),
    }
    Ok(())
}

/// One line of MEMORY STATS.
enum Value {
    Bytes(u64),
    Ratio(f64),
}

fn stats(ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    use Value::{Bytes, Ratio};
    let server = ctx.server;
    let used = alloc::used_bytes() as u64;
    let rss = sys::resident_bytes();
    let peak = server.rates.lock().memory_peak.0.max(used);
    let tables: u64 = ctx.lease.iter().map(|core| core.table_bytes as u64).sum();
    let names = ctx.session().names.clone();
    let keys: u64 = names.map().iter().map(|(_, ns)| Engine::count(&ctx.txn, ns)).sum();
    let of = |part: u64, whole: u64| part as f64 * 100.0 / whole.max(1) as f64;
    let lines = [
        ("peak.allocated", Bytes(peak)),
        ("total.allocated", Bytes(used)),
        ("startup.allocated", Bytes(0)),
        ("replication.backlog", Bytes(0)),
        ("clients.slaves", Bytes(0)),
        ("clients.normal", Bytes(server.client_bytes())),
        ("cluster.links", Bytes(0)),
        ("aof.buffer", Bytes(0)),
        ("lua.caches", Bytes(0)),
        ("functions.caches", Bytes(0)),
        ("script.VMs", Bytes(0)),
        ("overhead.total", Bytes(used.saturating_sub(tables))),
        ("keys.count", Bytes(keys)),
        ("keys.bytes-per-key", Bytes(tables.checked_div(keys).unwrap_or(0))),
        ("dataset.bytes", Bytes(tables)),
        ("dataset.percentage", Ratio(of(tables, used))),
        ("peak.percentage", Ratio(of(used, peak))),
        ("allocator.allocated", Bytes(used)),
        ("allocator.active", Bytes(rss)),
        ("allocator.resident", Bytes(rss)),
        ("allocator-fragmentation.ratio", Ratio(rss as f64 / used.max(1) as f64)),
        ("allocator-fragmentation.bytes", Bytes(rss.saturating_sub(used))),
        ("fragmentation", Ratio(rss as f64 / used.max(1) as f64)),
        ("fragmentation.bytes", Bytes(rss.saturating_sub(used))),
    ];
    out.map(lines.len());
    for (name, value) in lines {
        out.bulk(name.as_bytes());
        match value {
            Bytes(bytes) => out.int(bytes as i64),
            Ratio(ratio) => out.double(ratio),
        }
    }
    Ok(())
}

fn doctor(_ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    out.verbatim(
        b"No issue is looked for here: see the section Tarn of INFO for the parts of the memory budget.\n",
        "txt",
    );
    Ok(())
}

fn malloc_stats(_ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    out.bulk(b"Stats not supported for the current allocator");
    Ok(())
}

fn purge(_ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    alloc::trim();
    out.ok();
    Ok(())
}

fn memory_help(_ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    let lines = [
        "DOCTOR",
        "    A report for people.",
        "MALLOC-STATS",
        "    What the allocator says of itself: nothing.",
        "PURGE",
        "    Gives free memory back to the system.",
        "STATS",
        "    The server's use of memory.",
        "USAGE <key> [SAMPLES <count>]",
        "    Bytes that a key takes in memory. The count has no effect.",
    ];
    help(out, "MEMORY", &lines);
    Ok(())
}

/// The rows of this file.
pub const COMMANDS: &[Command] = &[Command::new("memory", unknown_subcommand, -2, flags::UNQUEUED, Group::Server)
    .help("4.0.0", "Commands about memory.")
    .syntax("", "Depends on the subcommand")
    .subcommands(&[
        Command::new("doctor", doctor, 2, 0, Group::Server)
            .help("4.0.0", "Returns a report for people.")
            .syntax("", "O(1)"),
        Command::new("help", memory_help, 2, flags::LOADING | flags::STALE, Group::Server)
            .help("4.0.0", "Describes the subcommands of MEMORY.")
            .syntax("", "O(1)"),
        Command::new("malloc-stats", malloc_stats, 2, 0, Group::Server)
            .help("4.0.0", "Returns what the allocator says of itself.")
            .syntax("", "O(1)"),
        Command::new("purge", purge, 2, flags::THREAD, Group::Server)
            .help("4.0.0", "Gives free memory back to the system.")
            .syntax("", "Depends on how much memory is free"),
        Command::new("stats", stats, 2, flags::ALL_SHARDS, Group::Server)
            .help("4.0.0", "Describes the server's use of memory.")
            .syntax("", "O(1)"),
        Command::new("usage", usage, -3, flags::READONLY, Group::Server)
            .keys(&[KeySpec::one(2, key::RO)])
            .help("4.0.0", "Returns how many bytes a key takes in memory.")
            .syntax("key [SAMPLES count]", "O(1)"),
    ])];
