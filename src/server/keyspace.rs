//! Keys of any type: DEL, EXISTS, TYPE, RENAME, COPY, MOVE, OBJECT and their kin; WAIT and WAITAOF.
//!
//! RENAME, COPY and MOVE put the value anew and remove the old one, all in one transaction; where both keys are one
//! they follow Redis case by case.

use std::ops::Bound;

use crate::codec::element::list_element;
use crate::codec::field::FieldTimes;
use crate::codec::{Extra, NsId};
use crate::handler::{After, Args, Command, Ctx, Error, Found, Group, KeySpec, Reply, Result, events, flags, key};
use crate::shard::memory::object::{Kind, Object, state};
use crate::shard::memory::uses::idle_s;
use crate::shard::txn::build::{Build, Shape};
use crate::util::num::parse_i64;

use super::database::other_namespace;
use super::{help, unknown_subcommand};
use crate::types::timeout::timeout_ms;
use crate::util::scale::Scaled;

const SAME_OBJECT: Error = Error::err("ERR source and destination objects are the same");

fn count_keys(
    ctx: &mut Ctx,
    args: Args<'_>,
    out: &mut Reply,
    mut counts: impl FnMut(&mut Ctx, &[u8]) -> Result<bool>,
) -> Result {
    let mut count = 0;
    for key in args.slice(1).iter() {
        count += i64::from(counts(ctx, key)?);
    }
    out.int(count);
    Ok(())
}

fn del(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    count_keys(ctx, args, out, |ctx, key| ctx.remove(key))
}

fn exists(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    count_keys(ctx, args, out, |ctx, key| Ok(ctx.peek(key)?.is_some()))
}

fn touch(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    // TOUCH is an access even for a client that asked for none to count.
    let no_touch = std::mem::replace(&mut ctx.txn.no_touch, false);
    let result = count_keys(ctx, args, out, |ctx, key| Ok(ctx.lookup(key)?.is_some()));
    ctx.txn.no_touch = no_touch;
    result
}

fn type_(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let kind = ctx.peek(&args[1])?.map_or(Kind::Absent, |found| ctx.object(found).kind);
    out.status(kind.name());
    Ok(())
}

/// Puts what a key holds, its time included, under another key, whatever that held before. False if there is none.
fn copy_to(ctx: &mut Ctx, from: &[u8], ns: NsId, to: &[u8]) -> Result<bool> {
    let Some(found) = ctx.lookup(from)? else { return Ok(false) };
    let object = ctx.object(found);
    let Some(body) = &object.body else {
        let (value, expire_ms, encoding) = (object.value().to_vec(), object.expire_ms, object.state);
        let copy = ctx.txn.put_string(ns, to, &value, expire_ms)?;
        ctx.txn.mark_encoding(copy, encoding);
        return Ok(true);
    };
    if body.size > MOST_AT_ONCE.get() && !ctx.may_block() {
        return Err(Error::Cold);
    }
    let shape = Shape {
        kind: object.kind,
        encoding: body.encoding,
        form: body.form,
        size: body.size,
        extra: FieldTimes::of_copy(body.extra),
        expire_ms: object.expire_ms,
    };
    let mut copy = Build::new(&ctx.txn, ns, to)?;
    // In front of a queue's head stand only the tombstones of what has left it.
    let mut first = Vec::new();
    if let Extra::List { head, .. } = shape.extra {
        list_element(head, &mut first);
    }
    let put = |element: &[u8], value: &[u8]| copy.put(element, value);
    ctx.txn.each_in_slices(found, Bound::Included(&first), Bound::Unbounded, put)?;
    copy.finish(&mut ctx.txn, shape)?;
    Ok(true)
}

/// Elements, or bytes of a string in chunks, that are copied on the thread that reads requests.
const MOST_AT_ONCE: Scaled<u64> = Scaled::new(10_000);

/// RENAME and RENAMENX; whether the key was renamed.
fn move_to(ctx: &mut Ctx, args: Args<'_>, replace: bool) -> Result<bool> {
    ctx.lookup(&args[1])?.ok_or(Error::NoSuchKey)?;
    if args[1] == args[2] {
        return Ok(replace);
    }
    if !replace && ctx.lookup(&args[2])?.is_some() {
        return Ok(false);
    }
    let (ns, db) = (ctx.ns(), ctx.session().db.clone());
    copy_to(ctx, &args[1], ns, &args[2])?;
    let moved = ctx.remove(&args[1])?;
    ctx.tell_put(&db, ns, &args[2], &[(&events::RENAME_FROM, &db, &args[1]), (&events::RENAME_TO, &db, &args[2])]);
    Ok(moved)
}

fn rename(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    move_to(ctx, args, true)?;
    out.ok();
    Ok(())
}

fn renamenx(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    out.int(i64::from(move_to(ctx, args, false)?));
    Ok(())
}

fn copy(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let (mut ns, mut db, mut replace) = (ctx.ns(), ctx.session().db.clone(), false);
    let mut options = args.cursor(3);
    while !options.is_empty() {
        if options.next_is(b"REPLACE") {
            replace = true;
        } else if options.remaining() >= 2 && options.next_is(b"DB") {
            let name = options.arg()?;
            (ns, db) = (other_namespace(ctx, name)?, name.into());
        } else {
            return Err(Error::Syntax);
        }
    }
    if ns == ctx.ns() && args[1] == args[2] {
        return Err(SAME_OBJECT);
    }
    let may = ctx.to_read(|ctx| ctx.lookup(&args[1]))?.is_some() && (replace || ctx.txn.find(ns, &args[2])?.is_none());
    let copied = may && copy_to(ctx, &args[1], ns, &args[2])?;
    if copied {
        ctx.tell_put(&db, ns, &args[2], &[(&events::COPY_TO, &db, &args[2])]);
    }
    out.int(i64::from(copied));
    Ok(())
}

fn move_(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let ns = other_namespace(ctx, &args[2])?;
    if ns == ctx.ns() {
        return Err(SAME_OBJECT);
    }
    let free = ctx.txn.find(ns, &args[1])?.is_none();
    let moved = free && copy_to(ctx, &args[1], ns, &args[1])? && ctx.remove(&args[1])?;
    if moved {
        let (from, to) = (ctx.session().db.clone(), &args[2]);
        let events = [(&events::MOVE_FROM, &from[..], &args[1]), (&events::MOVE_TO, to, &args[1])];
        ctx.tell_put(to, ns, &args[1], &events);
    }
    out.int(i64::from(moved));
    Ok(())
}

/// Bytes of key and value that Redis 8.2 keeps together in one allocation of 64 bytes: `embstr`. A time takes 8 of them.
const EMBEDDED: usize = 41;

/// The key that OBJECT is asked about: it counts as looked up, but is not used by that, and no `keymiss` is told.
fn look_at(ctx: &mut Ctx, key: &[u8]) -> Result<Option<Found>> {
    ctx.txn.count_hits = false;
    let found = ctx.peek(key)?;
    ctx.txn.count_quietly(found.is_some());
    Ok(found)
}

fn object_encoding(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let Some(found) = look_at(ctx, &args[2])? else {
        out.nil();
        return Ok(());
    };
    out.bulk(encoding(ctx.object(found)).as_bytes());
    Ok(())
}

/// The name that OBJECT ENCODING has for how a live object is kept.
pub(super) fn encoding(object: &Object) -> &'static str {
    match object.kind {
        Kind::String => string_encoding(object),
        Kind::Hash => crate::types::hash::encoding(object),
        Kind::Set => crate::types::set::form::encoding(object),
        Kind::List => crate::types::list::form::encoding(object),
        Kind::Zset => crate::types::zset::value::encoding(object),
        Kind::Stream => "stream",
        Kind::Absent => unreachable!("a found key is there"),
    }
}

fn string_encoding(string: &Object) -> &'static str {
    let room = if string.expire_ms == 0 { EMBEDDED } else { EMBEDDED - 8 };
    if string.body.is_some() || string.state & state::RAW != 0 {
        "raw"
    } else if string.state & state::TEXT == 0 && parse_i64(string.value()).is_some() {
        "int"
    } else if string.bytes.len() > room {
        "raw"
    } else {
        "embstr"
    }
}

fn object_idletime(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let Some(found) = look_at(ctx, &args[2])? else {
        out.nil();
        return Ok(());
    };
    if ctx.server.engine.uses.frequency().is_some() {
        return Err(Error::err(
            "ERR An LFU maxmemory policy is selected, idle time not tracked. Please note that when switching between \
             policies at runtime LRU and LFU data will take some time to adjust.",
        ));
    }
    out.int(idle_s(ctx.object(found).used, ctx.now_ms).into());
    Ok(())
}

fn object_refcount(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    match look_at(ctx, &args[2])? {
        Some(_) => out.int(1),
        None => out.nil(),
    }
    Ok(())
}

fn object_freq(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let Some(found) = look_at(ctx, &args[2])? else {
        out.nil();
        return Ok(());
    };
    let frequency = ctx.server.engine.uses.frequency().ok_or(Error::err(
        "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when switching \
         between policies at runtime LRU and LFU data will take some time to adjust.",
    ))?;
    out.int(frequency.count(ctx.object(found).used, ctx.now_ms).into());
    Ok(())
}

const OBJECT_HELP: &[&str] = &[
    "ENCODING <key>",
    "    Return the kind of internal representation used in order to store the value",
    "    associated with a <key>.",
    "FREQ <key>",
    "    Return the access frequency index of the <key>. The returned integer is",
    "    proportional to the logarithm of the recent access frequency of the key.",
    "IDLETIME <key>",
    "    Return the idle time of the <key>, that is the approximated number of",
    "    seconds elapsed since the last access to the key.",
    "REFCOUNT <key>",
    "    Return the number of references of the value associated with the specified",
    "    <key>.",
];

fn object_help(_ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    help(out, "OBJECT", OBJECT_HELP);
    Ok(())
}

/// Has the reply wait for replicas that will not come. Within a transaction nothing waits. Without a timeout Redis
/// would wait for ever; as no replica can appear, the answer is told at once instead.
fn wait_in_vain(ctx: &mut Ctx, replicas: i64, timeout_ms: u64) {
    if replicas > 0 && timeout_ms > 0 && ctx.session().multi.is_none() {
        ctx.alter().after = After::HoldMs(timeout_ms);
    }
}

fn wait(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let replicas = parse_i64(&args[1]).ok_or(Error::NotInteger)?;
    let timeout_ms = timeout_ms(ctx.now_ms, &args[2])?;
    wait_in_vain(ctx, replicas, timeout_ms);
    out.int(0);
    Ok(())
}

fn waitaof(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let local = parse_i64(&args[1]).ok_or(Error::NotInteger)?;
    if !(0..=1).contains(&local) {
        return Err(Error::err("ERR value is out of range, value must between 0 and 1"));
    }
    let replicas = parse_i64(&args[2]).ok_or(Error::NotInteger)?;
    if replicas < 0 {
        return Err(crate::error::NOT_POSITIVE);
    }
    let timeout_ms = timeout_ms(ctx.now_ms, &args[3])?;
    let log = &ctx.server.engine.log;
    let last = log.last();
    if local > 0 && ctx.session().multi.is_none() {
        log.sync_to(last).map_err(|error| Error::Misconf(error.to_string().into()))?;
    }
    let synced = log.synced() >= last;
    wait_in_vain(ctx, replicas, timeout_ms);
    out.array(2);
    out.int(i64::from(synced));
    out.int(0);
    Ok(())
}

const ALL_REMOVED: &[KeySpec] = &[KeySpec::range(1, -1, 1, key::RM | key::DELETE)];
const ALL_READ: &[KeySpec] = &[KeySpec::range(1, -1, 1, key::RO)];
const OBJECT_READ: &[KeySpec] = &[KeySpec::one(2, key::RO)];
const READS: u32 = flags::READONLY | flags::KEYSPACE;
const WRITES: u32 = flags::WRITE | flags::KEYSPACE;

const OBJECT: &[Command] = &[
    Command::new("encoding", object_encoding, 3, READS, Group::Generic)
        .keys(OBJECT_READ)
        .help("2.2.3", "Names the way in which a value is kept.")
        .syntax("key", "O(1)"),
    Command::new("freq", object_freq, 3, READS, Group::Generic)
        .keys(OBJECT_READ)
        .help("4.0.0", "Tells how often a key is used, where that is counted.")
        .syntax("key", "O(1)"),
    Command::new("help", object_help, 2, flags::LOADING | flags::STALE | flags::KEYSPACE, Group::Generic)
        .help("6.2.0", "Lists the subcommands.")
        .syntax("", "O(1)"),
    Command::new("idletime", object_idletime, 3, READS, Group::Generic)
        .keys(OBJECT_READ)
        .help("2.2.3", "Tells how many seconds ago a key was last used.")
        .syntax("key", "O(1)"),
    Command::new("refcount", object_refcount, 3, READS, Group::Generic)
        .keys(OBJECT_READ)
        .help("2.2.3", "Tells how many references a value has.")
        .syntax("key", "O(1)"),
];

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("del", del, -2, WRITES, Group::Generic)
        .tells(&events::DEL)
        .keys(ALL_REMOVED)
        .help("1.0.0", "Removes keys.")
        .syntax("key [key ...]", "O(N) where N is the number of keys, whatever they hold"),
    Command::new("unlink", del, -2, WRITES | flags::FAST, Group::Generic)
        .tells(&events::DEL)
        .keys(ALL_REMOVED)
        .help("4.0.0", "Removes keys; what they held is reclaimed in the background.")
        .syntax("key [key ...]", "O(N) where N is the number of keys, whatever they hold"),
    Command::new("exists", exists, -2, READS | flags::FAST, Group::Generic)
        .keys(ALL_READ)
        .help("1.0.0", "Counts which of the named keys are there.")
        .syntax("key [key ...]", "O(N) where N is the number of keys"),
    Command::new("touch", touch, -2, READS | flags::FAST, Group::Generic)
        .keys(ALL_READ)
        .help("3.2.1", "Counts which of the named keys are there and marks them as used.")
        .syntax("key [key ...]", "O(N) where N is the number of keys"),
    Command::new("type", type_, 2, READS | flags::FAST, Group::Generic)
        .keys(&[KeySpec::one(1, key::RO)])
        .help("1.0.0", "Names the type of what a key holds.")
        .syntax("key", "O(1)"),
    Command::new("rename", rename, 3, WRITES, Group::Generic)
        .keys(&[KeySpec::one(1, key::RW | key::ACCESS | key::DELETE), KeySpec::one(2, key::OW | key::UPDATE)])
        .help("1.0.0", "Gives a key another name, replacing what is there.")
        .syntax("key newkey", "O(N) where N is the size of the value"),
    Command::new("renamenx", renamenx, 3, WRITES | flags::FAST, Group::Generic)
        .keys(&[KeySpec::one(1, key::RW | key::ACCESS | key::DELETE), KeySpec::one(2, key::OW | key::INSERT)])
        .help("1.0.0", "Gives a key another name unless that is taken.")
        .syntax("key newkey", "O(N) where N is the size of the value"),
    Command::new("copy", copy, -3, WRITES | flags::DENYOOM, Group::Generic)
        .keys(&[KeySpec::one(1, key::RO | key::ACCESS), KeySpec::one(2, key::OW | key::UPDATE)])
        .help("6.2.0", "Copies what a key holds to another key.")
        .syntax("source destination [DB destination-db] [REPLACE]", "O(N) where N is the size of the value"),
    Command::new("move", move_, 3, WRITES | flags::FAST, Group::Generic)
        .keys(&[KeySpec::one(1, key::RW | key::ACCESS | key::UPDATE)])
        .help("1.0.0", "Moves a key to another database.")
        .syntax("key db", "O(N) where N is the size of the value"),
    Command::new("object", unknown_subcommand, -2, flags::UNQUEUED, Group::Generic)
        .help("2.2.3", "Looks at how a value is kept.")
        .syntax("", "Depends on the subcommand")
        .subcommands(OBJECT),
    Command::new("wait", wait, 3, flags::BLOCKING | flags::CONNECTION, Group::Generic)
        .help("3.0.0", "Waits until replicas have this connection's writes.")
        .syntax("numreplicas timeout", "O(1)"),
    Command::new("waitaof", waitaof, 4, flags::BLOCKING | flags::CONNECTION | flags::THREAD, Group::Generic)
        .help("7.2.0", "Waits until this connection's writes are on disk, here or on replicas.")
        .syntax("numlocal numreplicas timeout", "O(1)"),
];
