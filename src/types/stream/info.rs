//! XINFO: what there is to know of a stream, its groups and their consumers.
//!
//! `radix-tree-keys` and `radix-tree-nodes` tell how Redis keeps a stream. Here they are what Redis would have for as many
//! entries in full nodes: one key a node, and a tree of one branching.

use crate::codec::order::StreamId;
use crate::handler::container::{help, unknown_subcommand, wrong_subcommand};
use crate::handler::{Args, Command, Ctx, Error, Group, KeySpec, Reply, Result, flags, key};
use crate::meter;

use super::group::{Consumer, Ledger, no_such_group};
use super::handle::{Stream, Window};
use super::id::{self, MAX, MIN};
use super::pending::reply_consumer;
use super::record::Nack;
use super::trim::NODE;

fn find(ctx: &mut Ctx, args: Args<'_>) -> Result<Stream> {
    Stream::find(ctx, &args[2])?.ok_or(Error::NoSuchKey)
}

fn field(name: &str, out: &mut Reply) {
    out.bulk(name.as_bytes());
}

fn number(name: &str, value: u64, out: &mut Reply) {
    field(name, out);
    out.int(value as i64);
}

/// A number that may be unknown.
fn number_or_nil(name: &str, value: Option<i64>, out: &mut Reply) {
    field(name, out);
    match value {
        Some(value) => out.int(value),
        None => out.nil(),
    }
}

fn known(entries_read: i64) -> Option<i64> {
    Some(entries_read).filter(|number| *number >= 0)
}

fn stream(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let stream = find(ctx, args)?;
    let mut options = args.cursor(3);
    let full = options.next_is(b"FULL");
    let mut most = 10;
    if !options.is_empty() {
        if !full || options.remaining() != 2 || !options.next_is(b"COUNT") {
            return Err(wrong_subcommand(args));
        }
        most = options.int()?;
    }
    out.map(if full { 9 } else { 10 });
    head(&stream, out);
    if !full {
        number("groups", Ledger::all(ctx, stream.at)?.len() as u64, out);
        return edges(ctx, &stream, out);
    }
    let most = match most {
        0 => usize::MAX,
        below if below < 0 => 10,
        most => most as usize,
    };
    field("entries", out);
    stream.reply_entries(ctx, &Window::from(MIN, most), out, |_| ())?;
    field("groups", out);
    let mut groups = Ledger::all(ctx, stream.at)?;
    out.array(groups.len());
    for group in &mut groups {
        full_group(ctx, &stream, group, most, out)?;
    }
    Ok(())
}

/// What the metadata tells.
fn head(stream: &Stream, out: &mut Reply) {
    let nodes = stream.len.div_ceil(NODE);
    number("length", stream.len, out);
    number("radix-tree-keys", nodes, out);
    let tree = match nodes {
        0 => 1,
        1 => 2,
        nodes => 2 * nodes + 2,
    };
    number("radix-tree-nodes", tree, out);
    field("last-generated-id", out);
    id::reply(stream.last, out);
    field("max-deleted-entry-id", out);
    id::reply(stream.max_deleted, out);
    number("entries-added", stream.added, out);
    field("recorded-first-entry-id", out);
    id::reply(stream.first, out);
}

/// First and last entry.
fn edges(ctx: &mut Ctx, stream: &Stream, out: &mut Reply) -> Result {
    let names = stream.names(ctx)?;
    let last = stream.last_entry(ctx)?;
    for (name, id) in [("first-entry", Some(stream.first)), ("last-entry", last)] {
        field(name, out);
        let replied = match id {
            Some(id) => stream.reply_one(ctx, id, &names, out)?,
            None => false,
        };
        if !replied {
            out.nil();
        }
    }
    Ok(())
}

fn full_group(ctx: &mut Ctx, stream: &Stream, group: &mut Ledger, most: usize, out: &mut Reply) -> Result {
    out.map(7);
    field("name", out);
    out.bulk(group.name());
    field("last-delivered-id", out);
    id::reply(group.record.last, out);
    number_or_nil("entries-read", known(group.record.entries_read), out);
    number_or_nil("lag", group.lag(stream), out);
    number("pel-count", group.record.pending, out);
    field("pending", out);
    let mut pending = Vec::new();
    group.pass_pending(ctx, [MIN, MAX], |id, nack| {
        meter::hold(size_of::<(StreamId, Nack)>())?;
        pending.push((id, nack));
        Ok(pending.len() < most)
    })?;
    out.array(pending.len());
    for (id, nack) in &pending {
        out.array(4);
        id::reply(*id, out);
        reply_consumer(ctx, group, nack, out)?;
        out.int(nack.delivered_ms as i64);
        out.int(nack.deliveries as i64);
    }
    field("consumers", out);
    let consumers = group.read_consumers(ctx)?;
    out.array(consumers.len());
    for consumer in &consumers {
        full_consumer(ctx, group, consumer, most, out)?;
    }
    Ok(())
}

fn full_consumer(ctx: &mut Ctx, group: &Ledger, consumer: &Consumer, most: usize, out: &mut Reply) -> Result {
    out.map(5);
    field("name", out);
    out.bulk(consumer.name());
    number("seen-time", consumer.record.seen_ms, out);
    number_or_nil("active-time", Some(consumer.record.active_ms.map_or(-1, |ms| ms as i64)), out);
    number("pel-count", consumer.record.pending, out);
    field("pending", out);
    let pending = group.pending_of(ctx, consumer, [MIN, MAX], most)?;
    out.array(pending.len());
    for (id, nack) in &pending {
        out.array(3);
        id::reply(*id, out);
        out.int(nack.delivered_ms as i64);
        out.int(nack.deliveries as i64);
    }
    Ok(())
}

fn groups(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let stream = find(ctx, args)?;
    let groups = Ledger::all(ctx, stream.at)?;
    out.array(groups.len());
    for group in &groups {
        out.map(6);
        field("name", out);
        out.bulk(group.name());
        number("consumers", group.record.consumers, out);
        number("pending", group.record.pending, out);
        field("last-delivered-id", out);
        id::reply(group.record.last, out);
        number_or_nil("entries-read", known(group.record.entries_read), out);
        number_or_nil("lag", group.lag(&stream), out);
    }
    Ok(())
}

fn consumers(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let stream = find(ctx, args)?;
    let group = Ledger::find(ctx, stream.at, &args[3])?.ok_or_else(|| no_such_group(&args[2], &args[3]))?;
    let now_ms = ctx.txn.now_ms;
    let consumers = group.read_consumers(ctx)?;
    out.array(consumers.len());
    for consumer in &consumers {
        out.map(4);
        field("name", out);
        out.bulk(consumer.name());
        number("pending", consumer.record.pending, out);
        number("idle", now_ms.saturating_sub(consumer.record.seen_ms), out);
        let inactive = consumer.record.active_ms.map_or(-1, |ms| now_ms.saturating_sub(ms) as i64);
        number_or_nil("inactive", Some(inactive), out);
    }
    Ok(())
}

const HELP: &[&str] = &[
    "CONSUMERS <key> <groupname>",
    "    Show consumers of <groupname>.",
    "GROUPS <key>",
    "    Show the stream consumer groups.",
    "STREAM <key> [FULL [COUNT <count>]",
    "    Show information about the stream.",
];

fn xinfo_help(_ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    help(out, "XINFO", HELP);
    Ok(())
}

const READS: &[KeySpec] = &[KeySpec::one(2, key::RO | key::ACCESS)];

const SUBCOMMANDS: &[Command] = &[
    Command::new("consumers", consumers, 4, flags::READONLY, Group::Stream)
        .keys(READS)
        .help("5.0.0", "Describes the consumers of a consumer group.")
        .syntax("key group", "O(N) with N consumers"),
    Command::new("groups", groups, 3, flags::READONLY, Group::Stream)
        .keys(READS)
        .help("5.0.0", "Describes the consumer groups of a stream.")
        .syntax("key", "O(N) with N consumer groups"),
    Command::new("help", xinfo_help, 2, flags::LOADING | flags::STALE, Group::Stream)
        .help("5.0.0", "Lists the subcommands.")
        .syntax("", "O(1)"),
    Command::new("stream", stream, -3, flags::READONLY, Group::Stream)
        .keys(READS)
        .help("5.0.0", "Describes a stream.")
        .syntax("key [FULL [COUNT count]]", "O(G) with G consumer groups; FULL: O(N) with N elements shown"),
];

/// The rows of this file.
pub const COMMANDS: &[Command] = &[Command::new("xinfo", unknown_subcommand, -2, flags::UNQUEUED, Group::Stream)
    .help("5.0.0", "Describes streams.")
    .syntax("", "Depends on the subcommand")
    .subcommands(SUBCOMMANDS)];
