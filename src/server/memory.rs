//! MEMORY: what keys and the server hold in memory.
//!
//! `MEMORY USAGE` answers what a key takes in its shard's table now, and about what of it lies on disk only.

use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{help, unknown_subcommand};
use crate::handler::{Args, Command, Ctx, Error, Found, Group, KeySpec, Reply, Result, flags, key};
use crate::latency::{self, Event};
use crate::shard::Engine;
use crate::shard::memory::object::Kind;
use crate::shard::txn::slices::Slices;
use crate::util::num::parse_i64;
use crate::util::{alloc, sys};

fn usage(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let (mut options, mut samples) = (args.cursor(3), SAMPLES);
    while !options.is_empty() {
        if !options.next_is(b"SAMPLES") || options.is_empty() {
            return Err(Error::Syntax);
        }
        let asked = parse_i64(options.arg()?).ok_or(Error::NotInteger)?;
        samples = match u64::try_from(asked).map_err(|_| Error::Syntax)? {
            0 => u64::MAX,
            samples => samples,
        };
    }
    ctx.txn.count_hits = false;
    match ctx.peek(&args[2])? {
        None => out.nil(),
        Some(found) => {
            let stored = stored_bytes(ctx, found, samples)?;
            out.int((ctx.object(found).mem_bytes() as u64).saturating_add(stored) as i64);
        }
    }
    Ok(())
}

/// Elements that are looked at to tell what those take that lie on disk, if it is not said how many.
const SAMPLES: u64 = 5;

/// About what those elements take that lie on disk only: as many as there are, of the size of some.
fn stored_bytes(ctx: &mut Ctx, found: Found, samples: u64) -> Result<u64> {
    let object = ctx.object(found);
    let Some(body) = &object.body else { return Ok(0) };
    // A member of a sorted set is two elements.
    let (all, here) = match object.kind {
        Kind::String => return Ok(body.size.saturating_sub(body.overlay.bytes() as u64)),
        Kind::Zset if body.encoding == 0 => (body.size.saturating_mul(2), body.overlay.len() as u64),
        _ => (body.size, body.overlay.len() as u64),
    };
    if body.overlay.complete || all <= here {
        return Ok(0);
    }
    let (mut bytes, mut looked) = (0, 0);
    let slices = Slices::new(found, Bound::Unbounded, Bound::Unbounded, false).at_most(samples);
    ctx.txn.pass_in_slices(ctx.ns(), slices, |(key, value)| {
        bytes += (key.len() + value.len()) as u64;
        looked += 1;
        Ok(true)
    })?;
    Ok(bytes.checked_div(looked).unwrap_or(0).saturating_mul(all - here))
}

/// One line of MEMORY STATS.
enum Value {
    Bytes(u64),
    Ratio(f64),
}

/// Memory by part, read at one moment.
struct Parts {
    used: u64,
    resident: u64,
    peak: u64,
    startup: u64,
    clients: u64,
    clients_limit: u64,
    log_buffer: u64,
    scripts: u64,
    functions: u64,
    machines: u64,
    tables: u64,
    tables_limit: u64,
    dirty: u64,
    dirty_limit: u64,
    metadata_cache: u64,
    block_cache: u64,
    budget: u64,
    machine: u64,
    keys: u64,
    /// Commands that have waited for memory, and writers for room for what is dirty.
    waits: [u64; 2],
}

impl Parts {
    fn read(ctx: &Ctx) -> Parts {
        let (server, load) = (ctx.server, |size: &AtomicU64| size.load(Ordering::Relaxed));
        let engine = &server.engine;
        let used = alloc::used_bytes() as u64;
        let names = ctx.session().names.clone();
        let first = ctx.lease.first();
        let peak = server.rates.lock().memory_peak.0;
        let budget = server.budget.lock().total_bytes;
        Parts {
            used,
            resident: sys::resident_bytes(),
            peak: peak.max(used),
            startup: load(&server.startup_bytes),
            clients: server.client_bytes(),
            clients_limit: server.buffers.limit(),
            log_buffer: engine.log.status().buffered_bytes,
            scripts: server.scripts.counts().1 as u64,
            functions: first.map_or(0, |core| core.libraries.bytes()) as u64,
            machines: server.scripts.machine_bytes().iter().sum(),
            tables: ctx.lease.iter().map(|core| core.table_bytes as u64).sum(),
            tables_limit: load(&engine.table_limit),
            dirty: engine.dirty_bytes() as u64,
            dirty_limit: load(&engine.dirty_budget),
            metadata_cache: ctx.lease.iter().map(|core| core.cold.bytes()).sum(),
            block_cache: engine.store.cache_used_bytes(),
            budget,
            machine: sys::machine_memory_bytes(),
            keys: names.map().iter().map(|(_, ns)| Engine::count(&ctx.txn, ns)).sum(),
            waits: [Event::MemoryWait, Event::FlushWait].map(|event| latency::waits(event)[0]),
        }
    }
}

fn stats(ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    use Value::{Bytes, Ratio};
    let parts = Parts::read(ctx);
    let of = |part: u64, whole: u64| part as f64 * 100.0 / whole.max(1) as f64;
    let ratio = parts.resident as f64 / parts.used.max(1) as f64;
    let unused = parts.resident.saturating_sub(parts.used);
    let lines = [
        ("peak.allocated", Bytes(parts.peak)),
        ("total.allocated", Bytes(parts.used)),
        ("startup.allocated", Bytes(parts.startup)),
        ("replication.backlog", Bytes(0)),
        ("replica.fullsync.buffer", Bytes(0)),
        ("clients.slaves", Bytes(0)),
        ("clients.normal", Bytes(parts.clients)),
        ("cluster.links", Bytes(0)),
        ("aof.buffer", Bytes(parts.log_buffer)),
        ("lua.caches", Bytes(parts.scripts)),
        ("functions.caches", Bytes(parts.functions)),
        ("script.VMs", Bytes(parts.machines)),
        ("overhead.total", Bytes(parts.used.saturating_sub(parts.tables))),
        ("keys.count", Bytes(parts.keys)),
        ("keys.bytes-per-key", Bytes(parts.tables.checked_div(parts.keys).unwrap_or(0))),
        ("dataset.bytes", Bytes(parts.tables)),
        ("dataset.percentage", Ratio(of(parts.tables, parts.used.saturating_sub(parts.startup).max(parts.tables)))),
        ("peak.percentage", Ratio(of(parts.used, parts.peak))),
        ("allocator.allocated", Bytes(parts.used)),
        ("allocator.active", Bytes(parts.resident)),
        ("allocator.resident", Bytes(parts.resident)),
        ("allocator-fragmentation.ratio", Ratio(ratio)),
        ("allocator-fragmentation.bytes", Bytes(unused)),
        ("fragmentation", Ratio(ratio)),
        ("fragmentation.bytes", Bytes(unused)),
        ("tarn.budget", Bytes(parts.budget)),
        ("tarn.tables", Bytes(parts.tables)),
        ("tarn.dirty", Bytes(parts.dirty)),
        ("tarn.metadata-cache", Bytes(parts.metadata_cache)),
        ("tarn.block-cache", Bytes(parts.block_cache)),
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

/// What there is to say of memory.
fn advice(parts: &Parts) -> String {
    const MUCH: u64 = 64 << 20;
    let unused = parts.resident.saturating_sub(parts.used);
    let cases = [
        (
            parts.budget > parts.machine / 10 * 9 && parts.machine > 0,
            "maxmemory is more than nine tenths of the machine's memory: the system needs some, and the page cache, which \
             reads of the store go through, even more. Lower it.",
        ),
        (
            parts.resident > parts.budget + parts.budget / 4,
            "More is resident than maxmemory allows, by a quarter: MEMORY PURGE gives back what is free; if it stays, tell \
             the developers what INFO says.",
        ),
        (
            unused > MUCH && unused > parts.used / 2,
            "Much is resident and not in use, as after big collections went: MEMORY PURGE gives it back to the system, which \
             the server does by itself in time.",
        ),
        (
            parts.clients > parts.clients_limit / 2,
            "Clients' buffers take more than half of what they may (maxmemory-clients); the largest are closed beyond it. \
             CLIENT LIST shows them (tot-mem): clients that do not read, or huge pipelines.",
        ),
        (
            parts.dirty > parts.dirty_limit / 4 * 3 || parts.waits[1] > 0,
            "Writers are slowed, or were, as changes reach the store more slowly than they come: raise dirty-budget or \
             maxmemory, or use a faster disk.",
        ),
        (
            parts.waits[0] > 0,
            "Commands have waited for memory that others had: they gather much. Fewer of them at once, or more maxmemory, help.",
        ),
        (
            parts.tables > parts.tables_limit / 10 * 9,
            "Memory for objects is full, which is as it should be if the data is larger: what is used less lies on disk. If \
             disk-wait of LATENCY, or tarn_memory_hit_perc of INFO, is bad, raise maxmemory.",
        ),
    ];
    let told: String = cases.iter().filter(|(is_so, _)| *is_so).map(|(_, text)| format!("- {text}\n")).collect();
    if told.is_empty() { "Nothing to worry about was found.\n".to_owned() } else { told }
}

fn doctor(ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    out.verbatim(advice(&Parts::read(ctx)).as_bytes(), b"txt");
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
        "    Bytes that a key takes in memory, and about those on disk only, by so many of its elements: 5, or all with 0.",
    ];
    help(out, "MEMORY", &lines);
    Ok(())
}

/// The rows of this file.
pub const COMMANDS: &[Command] = &[Command::new("memory", unknown_subcommand, -2, flags::UNQUEUED, Group::Server)
    .help("4.0.0", "Commands about memory.")
    .syntax("", "Depends on the subcommand")
    .subcommands(&[
        Command::new("doctor", doctor, 2, flags::ALL_SHARDS, Group::Server)
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
            .help("4.0.0", "Returns how many bytes a key takes in memory and on disk.")
            .syntax("key [SAMPLES count]", "O(1)"),
    ])];

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// Of a set whose first members are short: those on disk are told of by some, or all.
    #[test]
    fn elements_on_disk_are_told_of_by_as_many_as_are_looked_at() {
        use crate::codec::element::Group::SetMember;
        use crate::config::{Config, Source};
        use crate::handler::{Effects, OwnedArgs, Server, Session, Table};
        use crate::shard::keyspace::walk::tests::engine;
        use crate::shard::txn::{Txn, WriteSet};
        static TABLE: std::sync::LazyLock<Table> = std::sync::LazyLock::new(|| Table::new(&[COMMANDS]));
        let dir = crate::util::scratch::tempdir().unwrap();
        let before = engine(dir.path(), 1);
        let ns = before.first_names().id(b"0").unwrap();
        let made = before.transact(&[0], 1, |txn| {
            let at = txn.create(ns, b"k", Kind::Set, 0)?;
            txn.add_size(at, 100);
            (0..100).try_for_each(|n| {
                let element = [vec![SetMember.tag()], vec![n; if n < 10 { 1 } else { 50 }]].concat();
                txn.put_element(at, &element, b"").map(drop)
            })
        });
        made.unwrap();
        before.flush().unwrap();
        before.close(false).unwrap();
        drop(before);
        let server = Server::new(engine(dir.path(), 1), Config::load(Source::Defaults, &[]).unwrap(), &TABLE);
        let told = [&[][..], &["SAMPLES", "5"], &["SAMPLES", "0"]].map(|options| {
            let mut session = Session::new(std::sync::Arc::default(), server.engine.first_names(), &server.acl);
            let (mut set, mut effects) = (WriteSet::default(), Effects::default());
            let mut lease = server.engine.lease(&[0]);
            let txn = Txn::new(&mut lease, &server.engine.router, &mut set, 1, true);
            let mut ctx = Ctx::new(txn, &mut session, &mut effects, &server);
            let words = ["MEMORY", "USAGE", "k"].iter().chain(options).map(|word| word.as_bytes());
            let (args, mut out): (OwnedArgs, _) = (words.collect(), Reply::new(2));
            usage(&mut ctx, args.as_args(), &mut out).unwrap();
            let text = std::str::from_utf8(out.as_slice()).unwrap();
            text.strip_prefix(':').unwrap().trim_end().parse::<i64>().unwrap()
        });
        assert_eq!(told[0], told[1], "five are looked at");
        // With the tag of each: 2 bytes on average, and 46.
        assert_eq!(told[2] - told[1], 100 * (46 - 2));
    }

    #[test]
    fn advice_fits_what_is_seen() {
        let calm = || Parts {
            used: 100 << 20,
            resident: 120 << 20,
            peak: 100 << 20,
            startup: 0,
            clients: 0,
            clients_limit: 16 << 20,
            log_buffer: 0,
            scripts: 0,
            functions: 0,
            machines: 0,
            tables: 10 << 20,
            tables_limit: 100 << 20,
            dirty: 0,
            dirty_limit: 64 << 20,
            metadata_cache: 0,
            block_cache: 0,
            budget: 256 << 20,
            machine: 1 << 30,
            keys: 0,
            waits: [0, 0],
        };
        assert_eq!(advice(&calm()), "Nothing to worry about was found.\n");
        for (parts, word) in [
            (Parts { machine: 260 << 20, ..calm() }, "nine tenths"),
            (Parts { resident: 400 << 20, used: 390 << 20, ..calm() }, "by a quarter"),
            (Parts { resident: 250 << 20, ..calm() }, "MEMORY PURGE"),
            (Parts { clients: 9 << 20, ..calm() }, "CLIENT LIST"),
            (Parts { dirty: 60 << 20, ..calm() }, "dirty-budget"),
            (Parts { waits: [1, 0], ..calm() }, "gather much"),
            (Parts { tables: 95 << 20, ..calm() }, "lies on disk"),
        ] {
            let text = advice(&parts);
            assert!(text.contains(word) && text.lines().count() == 1, "{word}: {text}");
        }
    }
}
