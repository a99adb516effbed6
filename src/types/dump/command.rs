//! DUMP, RESTORE, RESTORE-ASKING.

use super::{gather::payload, scatter::scatter};
use crate::handler::events;
use crate::handler::limits::max_len;
use crate::handler::{Args, Command, Ctx, Error, Group, KeySpec, Reply, Result, flags, key};
use crate::meter;
use crate::rdb::{self, RdbError};
use crate::resp::args::Cursor;
use crate::util::num::parse_i64;
use crate::util::scale::Scaled;

/// Bytes to which a payload may unpack on the thread that reads requests.
const LIGHT: Scaled<u64> = Scaled::new(1 << 20);

fn dump(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    match payload(ctx, &args[1])? {
        Some(payload) => out.bulk(&payload),
        None => out.nil(),
    }
    Ok(())
}

/// The options of RESTORE.
#[derive(Debug, Default)]
struct Options {
    replace: bool,
    /// The time is a moment, not a duration.
    absolute: bool,
    idle_s: Option<u64>,
    /// FREQ, which excludes IDLETIME.
    frequency: Option<u8>,
}

impl Options {
    fn parse(mut words: Cursor<'_>) -> Result<Self> {
        let mut options = Options::default();
        while !words.is_empty() {
            let has_value = words.remaining() >= 2;
            if words.next_is(b"REPLACE") {
                options.replace = true;
            } else if words.next_is(b"ABSTTL") {
                options.absolute = true;
            } else if has_value && options.frequency.is_none() && words.next_is(b"IDLETIME") {
                let idle_s = u64::try_from(words.int()?);
                options.idle_s = Some(idle_s.map_err(|_| Error::err("ERR Invalid IDLETIME value, must be >= 0"))?);
            } else if has_value && options.idle_s.is_none() && words.next_is(b"FREQ") {
                let count = u8::try_from(words.int()?);
                let count = count.map_err(|_| Error::err("ERR Invalid FREQ value, must be >= 0 and <= 255"))?;
                options.frequency = Some(count);
            } else {
                return Err(Error::Syntax);
            }
        }
        Ok(options)
    }
}

fn restore(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let options = Options::parse(args.cursor(4))?;
    if !options.replace && ctx.lookup(&args[1])?.is_some() {
        return Err(Error::err("BUSYKEY Target key name already exists."));
    }
    let ttl_ms = parse_i64(&args[2]).ok_or(Error::NotInteger)?;
    if ttl_ms < 0 {
        return Err(Error::err("ERR Invalid TTL value, must be >= 0"));
    }
    let (ns, most, due_ms, may_block) = (ctx.ns(), max_len(ctx), ctx.due_ms, ctx.may_block());
    // What is long is unpacked once, where it may take its time.
    let steps = args[3].len() / meter::STEP_BYTES;
    let value = ctx.txn.rest_for(ns, steps, || unpack(&args[3], most, due_ms, may_block))?;
    // A time beyond what 63 bits hold is past, as in Redis.
    let expire_ms = if ttl_ms == 0 || options.absolute { ttl_ms } else { ttl_ms.wrapping_add(ctx.now_ms as i64) };
    if expire_ms != 0 && expire_ms <= ctx.due_ms as i64 {
        ctx.remove(&args[1])?;
        ctx.happens(&[events::DEL]);
    } else {
        let at = scatter(ctx, &args[1], value, expire_ms as u64)?;
        if let Some((at, idle_s)) = at.zip(options.idle_s) {
            ctx.txn.set_idle(at, idle_s);
        }
        if let Some((at, count)) = at.zip(options.frequency) {
            ctx.txn.set_frequency(at, count);
        }
        let db = ctx.session().db.clone();
        ctx.tell_put(&db, ns, &args[1], &[(&events::RESTORE, &db, &args[1])]);
    }
    out.ok();
    Ok(())
}

/// Reads a payload; one that unpacks to much does so where nobody waits.
fn unpack(payload: &[u8], most: u64, due_ms: u64, may_block: bool) -> Result<rdb::Value> {
    let room = if may_block { most } else { most.min(LIGHT.get()) };
    rdb::decode_within(payload, due_ms, room as usize).map_err(|error| match error {
        RdbError::TooLarge if !may_block => Error::Cold,
        error => Error::err(error.text()),
    })
}

const RESTORE: u32 = flags::WRITE | flags::DENYOOM | flags::KEYSPACE | flags::DANGEROUS;
const RESTORED: &[KeySpec] = &[KeySpec::one(1, key::OW | key::UPDATE)];
const RESTORE_SYNTAX: &str = "key ttl serialized-value [REPLACE] [ABSTTL] [IDLETIME seconds] [FREQ frequency]";
const RESTORE_COST: &str = "O(N) where N is the size of the value";

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("dump", dump, 2, flags::READONLY | flags::KEYSPACE, Group::Generic)
        .keys(&[KeySpec::one(1, key::RO | key::ACCESS)])
        .help("2.6.0", "Returns what a key holds as a payload for RESTORE, in Redis's format.")
        .syntax("key", "O(N) where N is the size of the value"),
    Command::new("restore", restore, -4, RESTORE, Group::Generic)
        .keys(RESTORED)
        .help("2.6.0", "Makes a key hold what a payload of DUMP says.")
        .syntax(RESTORE_SYNTAX, RESTORE_COST),
    Command::new("restore-asking", restore, -4, RESTORE | flags::ASKING, Group::Server)
        .keys(RESTORED)
        .help("3.0.0", "Makes a key hold what a payload of DUMP says, while its slot moves within a cluster.")
        .syntax(RESTORE_SYNTAX, RESTORE_COST),
];
