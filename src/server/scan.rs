//! The key space: SCAN, KEYS, RANDOMKEY.
//!
//! SCAN goes through the shards one after the other, through each in the order of its keys; a cursor names shard and
//! last key, so whatever is there during the whole scan is met. COUNT bounds the keys that a call looks at, not those
//! that match, as in Redis. What a pattern begins with bounds the keys that are walked at all: the cost follows the
//! matches, not the database; where that part holds a `{tag}`, only the tag's shard is asked.
//!
//! A call leases the cursor's shard and, while those before it hold fewer than COUNT keys, the ones behind it. So a small
//! database comes in one page, and a large one is never held up as a whole.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::Range;

use crate::handler::{Args, Command, Ctx, Error, Group, Reply, Result, Server, Session, flags};
use crate::shard::actor::ShardSet;
use crate::shard::core::ShardId;
use crate::shard::draw::draw;
use crate::shard::engine::Router;
use crate::shard::walk::{Met, Span, must_wait, walk};
use crate::types::scan::{IN_PLACE, Options, parse_cursor};
use crate::util::glob;

/// Whether a key is answered.
fn accepts(options: &Options<'_>, met: &Met) -> bool {
    met.is_live()
        && options.accepts(&met.key)
        && options.kind.is_none_or(|kind| met.kind.name().as_bytes().eq_ignore_ascii_case(kind))
}

/// The shards in which matches may be: all, or the one of the tag in what every match begins with.
fn shards_of(options: &Options<'_>, router: &Router) -> Range<ShardId> {
    let home = options.pattern.and_then(|pattern| home(router, pattern));
    home.map_or(0..router.shards() as ShardId, |home| home..home + 1)
}

/// The only shard in which a match may be, if there is only one.
fn home(router: &Router, pattern: &[u8]) -> Option<ShardId> {
    let prefix = glob::literal_prefix(pattern);
    if glob::is_literal(pattern) { Some(router.shard_of(&prefix)) } else { router.shard_of_prefix(&prefix) }
}

fn scan(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let cursor = parse_cursor(&args[1])?;
    let options = Options::parse(args.cursor(2), None)?;
    ctx.txn.saw_all();
    if !ctx.txn.may_block && (options.count as u64 > IN_PLACE.get() || ctx.txn.lease.iter().any(|core| must_wait(core)))
    {
        return Err(Error::Cold);
    }
    let (next, keys) = scan_shards(ctx, cursor, &options)?;
    out.array(2);
    out.bulk(itoa::Buffer::new().format(next).as_bytes());
    out.array(keys.len());
    keys.iter().for_each(|key| out.bulk(key));
    Ok(())
}

/// The cursor that goes on, and the matches of this page.
fn scan_shards(ctx: &mut Ctx, cursor: u64, options: &Options<'_>) -> Result<(u64, Vec<Vec<u8>>)> {
    let (ns, router, now_ms) = (ctx.ns(), ctx.txn.router, ctx.now_ms);
    let cursors = &ctx.server.cursors;
    let shards = shards_of(options, router);
    let prefix = options.pattern.map(glob::literal_prefix).unwrap_or_default();
    let (from, mut after) = cursors.resolve(cursor);
    let mut keys = Vec::new();
    let mut left = options.count;
    for shard in from.max(shards.start)..shards.end {
        let Some(core) = ctx.txn.lease.iter_mut().find(|core| core.shard == shard) else {
            return Ok((cursors.issue(shard, None), keys));
        };
        let after = after.take().filter(|_| shard == from);
        let span = Span { ns, prefix: &prefix, after: after.as_deref() };
        let mut last = after.as_ref().map(|key| key.to_vec());
        let ended = walk(core, router, span, now_ms, |met| {
            if left == 0 {
                return false;
            }
            left -= 1;
            if accepts(options, &met) {
                keys.push(met.key);
            }
            last = Some(met.stored_key);
            true
        })?;
        if !ended {
            return Ok((cursors.issue(shard, last.as_deref()), keys));
        }
    }
    Ok((0, keys))
}

/// The cursor's shard, and those behind it while there are fewer than COUNT keys in those before.
fn shards_of_scan(server: &Server, session: &Session, args: Args<'_>) -> Option<ShardSet> {
    let mut leased = ShardSet::new();
    let (Ok(cursor), Ok(options)) = (parse_cursor(&args[1]), Options::parse(args.cursor(2), None)) else {
        return Some(leased);
    };
    let engine = &server.engine;
    let shards = shards_of(&options, &engine.router);
    let mut keys = 0;
    for shard in server.cursors.resolve(cursor).0.max(shards.start)..shards.end {
        leased.push(shard);
        // A shard that is busy now is not waited for just to be asked how large it is.
        let Some(core) = engine.shards[shard as usize].try_core() else { continue };
        keys += core.names.id(&session.db).map_or(0, |ns| core.count(ns));
        if keys >= options.count as u64 {
            break;
        }
    }
    Some(leased)
}

fn keys(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let options = Options::matching(&args[1]);
    let (ns, router, now_ms) = (ctx.ns(), ctx.txn.router, ctx.now_ms);
    ctx.txn.saw_all();
    let many = ctx.txn.lease.iter().map(|core| core.count(ns)).sum::<u64>() > IN_PLACE.get();
    if !ctx.txn.may_block && (many || ctx.txn.lease.iter().any(|core| must_wait(core))) {
        return Err(Error::Cold);
    }
    let prefix = options.pattern.map(glob::literal_prefix).unwrap_or_default();
    let mark = out.defer_array();
    let mut count = 0;
    for core in &mut ctx.txn.lease {
        walk(core, router, Span { ns, prefix: &prefix, after: None }, now_ms, |met| {
            if accepts(&options, &met) {
                out.bulk(&met.key);
                count += 1;
            }
            true
        })?;
    }
    out.set_len(mark, count);
    Ok(())
}

fn shards_of_keys(server: &Server, _session: &Session, args: Args<'_>) -> Option<ShardSet> {
    home(&server.engine.router, &args[1]).map(|home| [home].into_iter().collect())
}

/// A number below `n`, of chance.
fn dice(n: u64) -> u64 {
    RandomState::new().build_hasher().finish() % n.max(1)
}

fn randomkey(ctx: &mut Ctx, _args: Args<'_>, out: &mut Reply) -> Result {
    let (ns, router, now_ms) = (ctx.ns(), ctx.txn.router, ctx.now_ms);
    ctx.txn.saw_all();
    if !ctx.txn.may_block && ctx.txn.lease.iter().any(|core| must_wait(core)) {
        return Err(Error::Cold);
    }
    // A shard is as likely as its keys are many; if all of its keys have just expired, the next one is asked.
    let total: u64 = ctx.txn.lease.iter().map(|core| core.count(ns)).sum();
    let mut thrown = dice(total);
    let shards = ctx.txn.lease.len();
    let mut first = 0;
    while first + 1 < shards && thrown >= ctx.txn.lease[first].count(ns) {
        thrown -= ctx.txn.lease[first].count(ns);
        first += 1;
    }
    for at in (first..shards).chain(0..first) {
        if ctx.txn.lease[at].count(ns) == 0 {
            continue;
        }
        if let Some(key) = draw(&mut ctx.txn.lease[at], router, ns, now_ms, dice)? {
            out.bulk(&key);
            return Ok(());
        }
    }
    out.nil();
    Ok(())
}

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("scan", scan, -2, flags::READONLY | flags::KEYSPACE, Group::Generic)
        .route_by(shards_of_scan)
        .help("2.8.0", "Goes through the keys of the database page by page.")
        .syntax(
            "cursor [MATCH pattern] [COUNT count] [TYPE type]",
            "O(1) for a call, O(N) for a whole scan, where N is the number of keys that begin as the pattern does",
        ),
    Command::new("keys", keys, 2, flags::READONLY | flags::KEYSPACE | flags::DANGEROUS, Group::Generic)
        .route_by(shards_of_keys)
        .help("1.0.0", "Lists all keys that match a pattern.")
        .syntax("pattern", "O(N) where N is the number of keys that begin as the pattern does"),
    Command::new("randomkey", randomkey, 1, flags::READONLY | flags::KEYSPACE | flags::ALL_SHARDS, Group::Generic)
        .help("1.0.0", "Picks a key by chance.")
        .syntax("", "O(1)"),
];
