//! XCLAIM and XAUTOCLAIM: pending entries change hands.

use smallvec::SmallVec;

use crate::codec::order::StreamId;
use crate::handler::limits::may_touch;
use crate::handler::{Args, Command, Ctx, Error, Group, KeySpec, Reply, Result, flags, key};
use crate::meter;
use crate::shard::memory::object::Kind;
use crate::util::num::parse_i64;
use crate::util::scale::Scaled;

use super::group::{Ledger, no_key_or_group};
use super::handle::Stream;
use super::id::{self, MAX, MIN};
use super::pending::{find, idle_ms};
use super::record::Nack;
use super::remove::Ids;

/// XCLAIM's options.
struct Claim {
    delivered_ms: u64,
    deliveries: Option<u64>,
    force: bool,
    just_id: bool,
    last: Option<StreamId>,
}

impl Claim {
    fn parse(args: Args<'_>, from: usize, now_ms: u64) -> Result<Claim> {
        let mut claim = Claim { delivered_ms: now_ms, deliveries: None, force: false, just_id: false, last: None };
        let mut delivered_ms = None;
        let mut options = args.cursor(from);
        while let Some(word) = options.peek() {
            let more = options.remaining() >= 2;
            if options.next_is(b"FORCE") {
                claim.force = true;
            } else if options.next_is(b"JUSTID") {
                claim.just_id = true;
            } else if more && options.next_is(b"IDLE") {
                let idle_ms = number(options.arg()?, "ERR Invalid IDLE option argument for XCLAIM")?;
                delivered_ms = Some((now_ms as i64).wrapping_sub(idle_ms));
            } else if more && options.next_is(b"TIME") {
                delivered_ms = Some(number(options.arg()?, "ERR Invalid TIME option argument for XCLAIM")?);
            } else if more && options.next_is(b"RETRYCOUNT") {
                let deliveries = number(options.arg()?, "ERR Invalid RETRYCOUNT option argument for XCLAIM")?;
                claim.deliveries = u64::try_from(deliveries).ok();
            } else if more && options.next_is(b"LASTID") {
                claim.last = Some(id::parse(options.arg()?, 0)?);
            } else {
                return Err(Error::quoting("ERR Unrecognized XCLAIM option '", word, usize::MAX, "'"));
            }
        }
        // Neither before the beginning of time nor in the future.
        let delivered_ms = delivered_ms.and_then(|ms| u64::try_from(ms).ok()).filter(|ms| *ms <= now_ms);
        claim.delivered_ms = delivered_ms.unwrap_or(now_ms);
        Ok(claim)
    }
}

fn number(arg: &[u8], error: &'static str) -> Result<i64> {
    parse_i64(arg).ok_or(Error::err(error))
}

fn xclaim(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let Some((stream, mut group)) = find(ctx, &args[1], &args[2])? else {
        return Err(no_key_or_group(&args[1], &args[2]));
    };
    let now_ms = ctx.txn.now_ms;
    let min_idle_ms = number(&args[4], "ERR Invalid min-idle-time argument for XCLAIM")?.max(0);
    let ids: Ids = args.slice(5).iter().map_while(|arg| id::parse(arg, 0).ok()).collect();
    let claim = Claim::parse(args, 5 + ids.len(), now_ms)?;
    if let Some(last) = claim.last.filter(|last| *last > group.record.last) {
        group.set_last(last, group.record.entries_read);
    }
    let (place, _) = group.consumer_or_new(ctx, &args[3])?;
    group.change(place).seen_ms = now_ms;
    let names = if claim.just_id { Vec::new() } else { stream.names(ctx)? };
    let mark = out.defer_array();
    let mut count = 0;
    for id in ids {
        if !stream.has(ctx, id)? {
            // What is no more is not pending either.
            group.take(ctx, id)?;
            continue;
        }
        let before = group.nack(ctx, id)?;
        let deliveries = match &before {
            Some(nack) if min_idle_ms > 0 && idle_ms(nack, now_ms) < min_idle_ms => continue,
            Some(nack) => nack.deliveries,
            None if claim.force => 1,
            None => continue,
        };
        let deliveries = claim.deliveries.unwrap_or(deliveries + u64::from(!claim.just_id));
        let mut nack = Nack { delivered_ms: claim.delivered_ms, deliveries, consumer: SmallVec::new() };
        group.give(ctx, id, place, &mut nack, before.as_ref())?;
        group.change(place).active_ms = Some(now_ms);
        if claim.just_id {
            id::reply(id, out);
        } else {
            stream.reply_one(ctx, id, &names, out)?;
        }
        count += 1;
    }
    out.set_len(mark, count);
    group.save(ctx)
}

/// XAUTOCLAIM's options.
struct Auto {
    min_idle_ms: i64,
    start: StreamId,
    most: usize,
    just_id: bool,
}

impl Auto {
    fn parse(args: Args<'_>) -> Result<Auto> {
        /// Redis has room for the ids of so many.
        const MOST: i64 = i64::MAX / 16;
        let min_idle_ms = number(&args[4], "ERR Invalid min-idle-time argument for XAUTOCLAIM")?.max(0);
        let mut auto = Auto { min_idle_ms, start: id::parse_start(&args[5])?, most: 100, just_id: false };
        let mut options = args.cursor(6);
        while !options.is_empty() {
            if options.remaining() >= 2 && options.next_is(b"COUNT") {
                let most = parse_i64(options.arg()?).filter(|most| (1..=MOST).contains(most));
                auto.most = most.ok_or(Error::err("ERR COUNT must be > 0"))? as usize;
            } else if options.next_is(b"JUSTID") {
                auto.just_id = true;
            } else {
                return Err(Error::Syntax);
            }
        }
        Ok(auto)
    }
}

fn xautoclaim(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let auto = Auto::parse(args)?;
    ctx.lookup_kind(&args[1], Kind::Stream)?;
    let Some((stream, mut group)) = find(ctx, &args[1], &args[2])? else {
        return Err(no_key_or_group(&args[1], &args[2]));
    };
    let now_ms = ctx.txn.now_ms;
    let (place, _) = group.consumer_or_new(ctx, &args[3])?;
    group.change(place).seen_ms = now_ms;
    let (looked_at, next) = look(ctx, &stream, &group, &auto)?;
    let names = if auto.just_id { Vec::new() } else { stream.names(ctx)? };
    out.array(3);
    id::reply(next, out);
    let mark = out.defer_array();
    let (mut count, mut gone) = (0, Ids::new());
    for (id, nack, there) in looked_at {
        if !there {
            group.take(ctx, id)?;
            gone.push(id);
            continue;
        }
        let deliveries = nack.deliveries + u64::from(!auto.just_id);
        let mut claimed = Nack { delivered_ms: now_ms, deliveries, consumer: SmallVec::new() };
        group.give(ctx, id, place, &mut claimed, Some(&nack))?;
        group.change(place).active_ms = Some(now_ms);
        if auto.just_id {
            id::reply(id, out);
        } else {
            stream.reply_one(ctx, id, &names, out)?;
        }
        count += 1;
    }
    out.set_len(mark, count);
    out.array(gone.len());
    gone.iter().for_each(|&id| id::reply(id, out));
    group.save(ctx)
}

/// A pending entry that is to be claimed, or, if its entry is no more, to be dropped.
type Candidate = (StreamId, Nack, bool);

/// What XAUTOCLAIM takes, and the id with which the next call goes on. Redis looks at no more than ten times COUNT.
fn look(ctx: &mut Ctx, stream: &Stream, group: &Ledger, auto: &Auto) -> Result<(Vec<Candidate>, StreamId)> {
    const ATTEMPTS: usize = 10;
    /// Pending entries gathered at a time.
    const SLICE: Scaled<usize> = Scaled::new(1000).in_unit_tests(16);
    let now_ms = ctx.txn.now_ms;
    let (mut taken, mut next) = (Vec::new(), Some(auto.start));
    let mut attempts = auto.most.saturating_mul(ATTEMPTS);
    let mut walked = 0;
    while let Some(start) = next {
        // One more than may be looked at: it is where the next call goes on.
        let slice: Result<Vec<_>> =
            group.pending(ctx, start, MAX, false)?.take(SLICE.get().min(attempts.saturating_add(1))).collect();
        let slice = slice?;
        walked += slice.len() as u64;
        may_touch(walked)?;
        let Some(&(last, _)) = slice.last() else { return Ok((taken, MIN)) };
        next = id::next(last);
        if walked > SLICE.get() as u64 {
            ctx.txn.rest(ctx.ns(), || Ok(()))?;
        }
        for (id, nack) in slice {
            if attempts == 0 || taken.len() == auto.most {
                return Ok((taken, id));
            }
            attempts -= 1;
            let there = stream.has(ctx, id)?;
            if !there || auto.min_idle_ms == 0 || idle_ms(&nack, now_ms) >= auto.min_idle_ms {
                meter::hold(size_of::<Candidate>())?;
                taken.push((id, nack, there));
            }
        }
    }
    Ok((taken, MIN))
}

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("xautoclaim", xautoclaim, -6, flags::WRITE | flags::FAST, Group::Stream)
        .keys(&[KeySpec::one(1, key::RW | key::DELETE)])
        .help("6.2.0", "Gives a consumer entries that have long been pending for others.")
        .syntax("key group consumer min-idle-time start:string [COUNT count] [JUSTID]", "O(1) if COUNT is small"),
    Command::new("xclaim", xclaim, -6, flags::WRITE | flags::FAST, Group::Stream)
        .keys(&[KeySpec::one(1, key::RW | key::UPDATE)])
        .help("5.0.0", "Gives a consumer entries that are pending for others.")
        .syntax(
            "key group consumer min-idle-time id [id ...] [IDLE ms] [TIME unix-time-milliseconds] [RETRYCOUNT count] [FORCE] \
             [JUSTID] [LASTID lastid]",
            "O(log N) for each entry with N pending",
        ),
];
