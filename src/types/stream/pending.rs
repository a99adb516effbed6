//! XACK and XPENDING.

use crate::codec::order::StreamId;
use crate::handler::{Args, Command, Ctx, Error, Group, KeySpec, Reply, Result, flags, key};
use crate::meter;

use super::group::{Consumer, Ledger, no_key_or_group, stored};
use super::handle::Stream;
use super::id::{self, MAX};
use super::record::Nack;
use super::remove::parse_ids;

/// Stream and group, where both are there.
pub fn find(ctx: &mut Ctx, key: &[u8], group: &[u8]) -> Result<Option<(Stream, Ledger)>> {
    let Some(stream) = ctx.to_read(|ctx| Stream::find(ctx, key))? else { return Ok(None) };
    Ok(Ledger::find(ctx, stream.at, group)?.map(|group| (stream, group)))
}

fn xack(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let Some((_, mut group)) = find(ctx, &args[1], &args[2])? else {
        out.int(0);
        return Ok(());
    };
    let mut acknowledged = 0;
    for id in parse_ids(args.slice(3))? {
        acknowledged += i64::from(group.take(ctx, id)?.is_some());
    }
    group.save(ctx)?;
    out.int(acknowledged);
    Ok(())
}

/// What XPENDING with a range is asked for.
struct Query<'a> {
    min_idle_ms: i64,
    start: StreamId,
    end: StreamId,
    most: usize,
    consumer: Option<&'a [u8]>,
}

impl<'a> Query<'a> {
    /// Without a range: `None`.
    fn parse(args: Args<'a>) -> Result<Option<Query<'a>>> {
        match args.len() {
            3 => return Ok(None),
            6..=9 => {}
            _ => return Err(Error::Syntax),
        }
        let mut options = args.cursor(3);
        let mut min_idle_ms = 0;
        if options.next_is(b"IDLE") {
            min_idle_ms = options.int()?;
            if args.len() < 8 {
                return Err(Error::Syntax);
            }
        }
        let (start, end) = (options.arg()?, options.arg()?);
        let most = options.int()?.max(0) as usize;
        let (start, end) = (id::parse_start(start)?, id::parse_end(end)?);
        Ok(Some(Query { min_idle_ms, start, end, most, consumer: options.peek() }))
    }
}

fn xpending(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let query = Query::parse(args)?;
    let Some((_, mut group)) = find(ctx, &args[1], &args[2])? else {
        return Err(no_key_or_group(&args[1], &args[2]));
    };
    match query {
        None => summary(ctx, &group, out),
        Some(query) => list(ctx, &mut group, &query, out),
    }
}

fn summary(ctx: &mut Ctx, group: &Ledger, out: &mut Reply) -> Result {
    out.array(4);
    out.int(group.record.pending as i64);
    if group.record.pending == 0 {
        out.nil();
        out.nil();
        out.nil_array();
        return Ok(());
    }
    id::reply(group.record.oldest, out);
    match group.pending(ctx, group.record.oldest, MAX, true)?.next().transpose()? {
        Some((last, _)) => id::reply(last, out),
        None => out.nil(),
    }
    let mut consumers = group.read_consumers(ctx)?;
    consumers.retain(|consumer| consumer.record.pending > 0);
    out.array(consumers.len());
    for consumer in &consumers {
        out.array(2);
        out.bulk(consumer.name());
        // A string, not an integer.
        out.bulk_int(consumer.record.pending as i64);
    }
    Ok(())
}

fn list(ctx: &mut Ctx, group: &mut Ledger, query: &Query<'_>, out: &mut Reply) -> Result {
    let now_ms = ctx.txn.now_ms;
    let only = match query.consumer {
        None => None,
        Some(name) => match group.consumer(ctx, &stored(name))? {
            Some(place) => Some(group.at_place(place).clone()),
            None => {
                out.array(0);
                return Ok(());
            }
        },
    };
    let mut found = Vec::new();
    // Of one consumer no more are there than it has, nor before its first.
    let (start, mut left) = match &only {
        Some(consumer) => (query.start.max(consumer.record.oldest), consumer.record.pending),
        None => (query.start, u64::MAX),
    };
    if query.most > 0 && left > 0 {
        group.pass_pending(ctx, [start, query.end], |id, nack| {
            if only.as_ref().is_none_or(|only| only.name == nack.consumer) {
                left -= 1;
                if idle_ms(&nack, now_ms) >= query.min_idle_ms {
                    meter::hold(size_of::<(StreamId, Nack)>())?;
                    found.push((id, nack));
                }
            }
            Ok(found.len() < query.most && left > 0)
        })?;
    }
    out.array(found.len());
    for (id, nack) in found {
        out.array(4);
        id::reply(id, out);
        reply_consumer(ctx, group, &nack, out)?;
        out.int(idle_ms(&nack, now_ms));
        out.int(nack.deliveries as i64);
    }
    Ok(())
}

/// Milliseconds since the last delivery; not below 0 in a reply, whatever the clock does.
pub fn idle_ms(nack: &Nack, now_ms: u64) -> i64 {
    now_ms.saturating_sub(nack.delivered_ms) as i64
}

/// Replies with the name of who has a pending entry.
pub fn reply_consumer(ctx: &mut Ctx, group: &mut Ledger, nack: &Nack, out: &mut Reply) -> Result {
    if super::record::is_name(&nack.consumer) {
        out.bulk(&nack.consumer);
        return Ok(());
    }
    let place = group.consumer(ctx, &nack.consumer)?;
    out.bulk(place.map_or(&nack.consumer[..], |place| Consumer::name(group.at_place(place))));
    Ok(())
}

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("xack", xack, -4, flags::WRITE | flags::FAST, Group::Stream)
        .keys(&[KeySpec::one(1, key::RW | key::UPDATE)])
        .help("5.0.0", "Acknowledges entries, which are no longer pending then.")
        .syntax("key group id [id ...]", "O(1) for each entry"),
    Command::new("xpending", xpending, -3, flags::READONLY, Group::Stream)
        .keys(&[KeySpec::one(1, key::RO | key::ACCESS)])
        .help("5.0.0", "Shows what is pending for a consumer group.")
        .syntax(
            "key group [[IDLE min-idle-time:integer] start:string end:string count [consumer]]",
            "O(C) with C consumers; with a range O(N) with N entries looked at",
        ),
];
