//! XGROUP: consumer groups and consumers are made, moved, removed.

use crate::codec::order::StreamId;
use crate::handler::container::{help, unknown_subcommand, wrong_subcommand};
use crate::handler::{Args, Command, Ctx, Error, Group, KeySpec, Reply, Result, events, flags, key};

use super::group::{Ledger, no_such_group};
use super::handle::Stream;
use super::id::{self, MIN};
use super::record::GroupRecord;

const KEY_REQUIRED: Error = Error::err(
    "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the MKSTREAM option to \
     create an empty stream automatically.",
);

/// The options of CREATE and SETID.
struct Options {
    make: bool,
    entries_read: i64,
}

impl Options {
    fn parse(args: Args<'_>, creates: bool) -> Result<Options> {
        let mut parsed = Options { make: false, entries_read: -1 };
        let mut options = args.cursor(5);
        while !options.is_empty() {
            if creates && options.next_is(b"MKSTREAM") {
                parsed.make = true;
            } else if options.remaining() >= 2 && options.next_is(b"ENTRIESREAD") {
                parsed.entries_read = options.int()?;
                if parsed.entries_read < -1 {
                    return Err(Error::err("ERR value for ENTRIESREAD must be positive or -1"));
                }
            } else {
                return Err(wrong_subcommand(args));
            }
        }
        Ok(parsed)
    }

    /// No more can have been read than was added.
    fn entries_read(&self, stream: &Stream) -> i64 {
        self.entries_read.min(i64::try_from(stream.added).unwrap_or(i64::MAX))
    }
}

/// The stream and the group, both of which must be there.
fn find(ctx: &mut Ctx, args: Args<'_>) -> Result<(Stream, Ledger)> {
    let stream = Stream::find(ctx, &args[2])?.ok_or(KEY_REQUIRED)?;
    let group = Ledger::find(ctx, stream.at, &args[3])?.ok_or_else(|| no_such_group(&args[2], &args[3]))?;
    Ok((stream, group))
}

fn create(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let options = Options::parse(args, true)?;
    let stream = Stream::find(ctx, &args[2])?;
    if stream.is_none() && !options.make {
        return Err(KEY_REQUIRED);
    }
    // Redis reads the options, however many, and counts them only then.
    if args.len() > 8 {
        return Err(wrong_subcommand(args));
    }
    let last = match &args[4] {
        b"$" => stream.map_or(MIN, |stream| stream.last),
        arg => id::parse(arg, 0)?,
    };
    let stream = match stream {
        Some(stream) => stream,
        None => {
            let stream = Stream::create(ctx, &args[2])?;
            stream.save(ctx);
            stream
        }
    };
    if Ledger::find(ctx, stream.at, &args[3])?.is_some() {
        return Err(Error::err("BUSYGROUP Consumer Group name already exists"));
    }
    let entries_read = options.entries_read(&stream);
    Ledger::new(stream.at, &args[3], GroupRecord { last, entries_read, ..GroupRecord::default() }).save(ctx)?;
    out.ok();
    Ok(())
}

fn setid(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let options = Options::parse(args, false)?;
    let (stream, mut group) = find(ctx, args)?;
    if args.len() > 7 {
        return Err(wrong_subcommand(args));
    }
    let last: StreamId = match &args[4] {
        b"$" => stream.last,
        arg => id::parse_lax(arg, 0)?,
    };
    group.set_last(last, options.entries_read(&stream));
    group.save(ctx)?;
    out.ok();
    Ok(())
}

fn destroy(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let stream = Stream::find(ctx, &args[2])?.ok_or(KEY_REQUIRED)?;
    let group = Ledger::find(ctx, stream.at, &args[3])?;
    out.int(group.is_some().into());
    if let Some(group) = group {
        group.destroy(ctx)?;
        // Who waits for what it gets is told.
        ctx.txn.rouse(stream.at);
    }
    Ok(())
}

fn createconsumer(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let (_, mut group) = find(ctx, args)?;
    let (_, made) = group.consumer_or_new(ctx, &args[4])?;
    group.save(ctx)?;
    out.int(made.into());
    Ok(())
}

fn delconsumer(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let (_, mut group) = find(ctx, args)?;
    let pending = group.remove_consumer(ctx, &args[4])?;
    group.save(ctx)?;
    out.int(pending as i64);
    Ok(())
}

const HELP: &[&str] = &[
    "CREATE <key> <groupname> <id|$> [option]",
    "    Create a new consumer group. Options are:",
    "    * MKSTREAM",
    "      Create the empty stream if it does not exist.",
    "    * ENTRIESREAD entries_read",
    "      Set the group's entries_read counter (internal use).",
    "CREATECONSUMER <key> <groupname> <consumer>",
    "    Create a new consumer in the specified group.",
    "DELCONSUMER <key> <groupname> <consumer>",
    "    Remove the specified consumer.",
    "DESTROY <key> <groupname>",
    "    Remove the specified group.",
    "SETID <key> <groupname> <id|$> [ENTRIESREAD entries_read]",
    "    Set the current group ID and entries_read counter.",
];

fn xgroup_help(_ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    help(out, "XGROUP", HELP);
    Ok(())
}

const INSERTS: &[KeySpec] = &[KeySpec::one(2, key::RW | key::INSERT)];
const UPDATES: &[KeySpec] = &[KeySpec::one(2, key::RW | key::UPDATE)];
const DELETES: &[KeySpec] = &[KeySpec::one(2, key::RW | key::DELETE)];

const SUBCOMMANDS: &[Command] = &[
    Command::new("create", create, -5, flags::WRITE | flags::DENYOOM, Group::Stream)
        .tells(&events::XGROUP_CREATE)
        .keys(INSERTS)
        .help("5.0.0", "Makes a consumer group.")
        .syntax("key group <id | $> [MKSTREAM] [ENTRIESREAD entriesread]", "O(1)"),
    Command::new("createconsumer", createconsumer, 5, flags::WRITE | flags::DENYOOM, Group::Stream)
        .keys(INSERTS)
        .help("6.2.0", "Makes a consumer of a consumer group.")
        .syntax("key group consumer", "O(1)"),
    Command::new("delconsumer", delconsumer, 5, flags::WRITE, Group::Stream)
        .tells(&events::XGROUP_DELCONSUMER)
        .keys(DELETES)
        .help("5.0.0", "Removes a consumer and what is pending for it.")
        .syntax("key group consumer", "O(N) with N the group's pending entries from the consumer's first to its last"),
    Command::new("destroy", destroy, 4, flags::WRITE, Group::Stream)
        .tells(&events::XGROUP_DESTROY)
        .keys(DELETES)
        .help("5.0.0", "Removes a consumer group.")
        .syntax("key group", "O(N) with N the group's pending entries"),
    Command::new("help", xgroup_help, 2, flags::LOADING | flags::STALE, Group::Stream)
        .help("5.0.0", "Lists the subcommands.")
        .syntax("", "O(1)"),
    Command::new("setid", setid, -5, flags::WRITE, Group::Stream)
        .tells(&events::XGROUP_SETID)
        .keys(UPDATES)
        .help("5.0.0", "Sets the id behind which a consumer group goes on.")
        .syntax("key group <id | $> [ENTRIESREAD entriesread]", "O(1)"),
];

/// The rows of this file.
pub const COMMANDS: &[Command] = &[Command::new("xgroup", unknown_subcommand, -2, flags::UNQUEUED, Group::Stream)
    .help("5.0.0", "Manages consumer groups.")
    .syntax("", "Depends on the subcommand")
    .subcommands(SUBCOMMANDS)];
