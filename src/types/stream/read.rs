//! XREAD and XREADGROUP.
//!
//! Both read the streams in the order given, each by an id behind which entries are wanted. XREADGROUP with `>` (the
//! highest id stands for it) delivers what the group has not got and notes it as pending, unless NOACK; with another id
//! it shows the consumer what is pending for it. With BLOCK and nothing to read both wait, but within MULTI, where they answer
//! at once.

use smallvec::SmallVec;

use crate::codec::order::StreamId;
use crate::handler::effects::Wait;
use crate::handler::{Args, Begin, Command, Ctx, Error, Find, Group, KeySpec, OwnedArgs, Reply, Result, flags, key};
use crate::shard::memory::object::Kind;
use crate::types::timeout::timeout_ms;

use super::group::{Ledger, no_group};
use super::handle::{Stream, Window};
use super::id::{self, MAX, MIN};
use super::record::Nack;

/// What the options say.
struct Read<'a> {
    most: usize,
    /// Until when it waits if there is nothing: Unix ms, 0 for ever; `None` if it does not.
    block_until_ms: Option<u64>,
    group: Option<(&'a [u8], &'a [u8])>,
    no_ack: bool,
    /// Keys, then as many ids.
    streams: Args<'a>,
}

impl<'a> Read<'a> {
    fn parse(args: Args<'a>, grouped: bool, now_ms: u64) -> Result<Read<'a>> {
        let mut read = Read {
            most: usize::MAX,
            block_until_ms: None,
            group: None,
            no_ack: false,
            streams: args.slice(args.len()),
        };
        let mut options = args.cursor(1);
        while !options.is_empty() {
            let more = options.remaining() - 1;
            if more >= 1 && options.next_is(b"BLOCK") {
                let timeout = timeout_ms(now_ms, options.arg()?)?;
                read.block_until_ms = Some(if timeout == 0 { 0 } else { now_ms + timeout });
            } else if more >= 1 && options.next_is(b"COUNT") {
                // As none at all where it is not above 0.
                read.most = usize::try_from(options.int()?).ok().filter(|most| *most > 0).unwrap_or(usize::MAX);
            } else if more >= 1 && options.next_is(b"STREAMS") {
                read.streams = options.rest();
                break;
            } else if more >= 2 && options.next_is(b"GROUP") {
                read.group = Some((options.arg()?, options.arg()?));
                if !grouped {
                    return Err(Error::err(
                        "ERR The GROUP option is only supported by XREADGROUP. You called XREAD instead.",
                    ));
                }
            } else if options.next_is(b"NOACK") {
                read.no_ack = true;
                if !grouped {
                    return Err(Error::err(
                        "ERR The NOACK option is only supported by XREADGROUP. You called XREAD instead.",
                    ));
                }
            } else {
                return Err(Error::Syntax);
            }
        }
        if !read.streams.len().is_multiple_of(2) {
            return Err(unbalanced(grouped));
        }
        if read.streams.is_empty() {
            return Err(Error::Syntax);
        }
        if grouped && read.group.is_none() {
            return Err(Error::err("ERR Missing GROUP option for XREADGROUP"));
        }
        Ok(read)
    }

    /// Has the command wait, if it is to and may; whether it does. It is told, too, of streams that are gone if it reads for a
    /// group.
    fn wait(&self, ctx: &mut Ctx, args: Option<OwnedArgs>) -> bool {
        let Some(until_ms) = self.block_until_ms.filter(|_| ctx.may_wait()) else { return false };
        let keys = self.pairs().map(|(key, _)| key.into()).collect();
        let hears_all = self.group.is_some();
        ctx.wait(Wait { keys, kind: Kind::Stream, hears_all, until_ms, whole: false, args });
        true
    }

    /// Keys with their ids.
    fn pairs(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let half = self.streams.len() / 2;
        self.streams.take(half).iter().zip(self.streams.slice(half).iter())
    }
}

fn unbalanced(grouped: bool) -> Error {
    Error::err(if grouped {
        "ERR Unbalanced 'xreadgroup' list of streams: for each stream key an ID or '>' must be specified."
    } else {
        "ERR Unbalanced 'xread' list of streams: for each stream key an ID, '+', or '$' must be specified."
    })
}

/// The header of the reply, written once something is to be read.
struct Header {
    begin: usize,
    mark: Option<crate::resp::reply::Mark>,
    streams: usize,
}

impl Header {
    fn new(out: &Reply) -> Self {
        Header { begin: out.len(), mark: None, streams: 0 }
    }

    /// Begins what is read of one stream.
    fn stream(&mut self, key: &[u8], out: &mut Reply) {
        let is_map = out.proto() == 3;
        if self.mark.is_none() {
            self.mark = Some(if is_map { out.defer_map() } else { out.defer_array() });
        }
        if !is_map {
            out.array(2);
        }
        out.bulk(key);
        self.streams += 1;
    }

    /// Takes back a stream of which nothing was read.
    fn take_back(&mut self, at: usize, out: &mut Reply) {
        self.streams -= 1;
        if self.streams == 0 {
            self.mark = None;
            out.truncate(self.begin);
        } else {
            out.truncate(at);
        }
    }

    /// Ends the reply, if there is one; whether there is.
    fn finish(self, out: &mut Reply) -> bool {
        let any = self.mark.is_some();
        self.mark.into_iter().for_each(|mark| out.set_len(mark, self.streams));
        any
    }
}

fn xread(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let read = Read::parse(args, false, ctx.txn.now_ms)?;
    let mut wanted: SmallVec<[_; 2]> = SmallVec::new();
    // What `$` stands for stays the same while the command waits.
    let mut ids: SmallVec<[StreamId; 4]> = SmallVec::new();
    for (key, after) in read.pairs() {
        if ctx.is_elsewhere(key) {
            continue;
        }
        let stream = Stream::find(ctx, key)?;
        let after = match (after, &stream) {
            (LAST, stream) => stream.map_or(MIN, |stream| stream.last),
            (b"+", Some(stream)) => stream.last_entry(ctx)?.and_then(id::previous).unwrap_or(MIN),
            (b"+", None) => MIN,
            (b">", _) => {
                return Err(Error::err(
                    "ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> <consumer> option.",
                ));
            }
            (after, _) => id::parse(after, 0)?,
        };
        ids.push(after);
        wanted.extend(stream.map(|stream| (key, stream, after)));
    }
    let mut header = Header::new(out);
    for (key, stream, after) in wanted {
        if stream.len == 0 || after >= stream.last {
            continue;
        }
        let at = out.len();
        header.stream(key, out);
        let window = Window::from(id::next(after).unwrap_or(MAX), read.most);
        if stream.reply_entries(ctx, &window, out, |_| ())? == 0 {
            header.take_back(at, out);
        }
    }
    if !header.finish(out) {
        let last = read.pairs().any(|(_, after)| after == LAST).then(|| pinned(args, &ids));
        if !read.wait(ctx, last) {
            out.nil_array();
        }
    }
    Ok(())
}

/// The id that stands for the last one of a stream, as it is when the command begins to wait.
const LAST: &[u8] = b"$";

/// The arguments with what `$` stands for in its place; these are the ids at their end.
fn pinned(args: Args<'_>, ids: &[StreamId]) -> OwnedArgs {
    let ids: SmallVec<[_; 4]> = ids.iter().map(|id| id::IdText::new(*id)).collect();
    let (before, texts) = (args.len() - ids.len(), args.slice(args.len() - ids.len()));
    let ids = ids.iter().zip(texts.iter()).map(|(id, text)| if text == LAST { id.as_bytes() } else { text });
    args.iter().take(before).chain(ids).collect()
}

fn xreadgroup(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let read = Read::parse(args, true, ctx.txn.now_ms)?;
    let Some((group_name, consumer)) = read.group else { return Err(Error::Syntax) };
    let mut wanted: SmallVec<[_; 2]> = SmallVec::new();
    for (key, after) in read.pairs() {
        if ctx.is_elsewhere(key) {
            continue;
        }
        let found = match ctx.to_read(|ctx| Stream::find(ctx, key))? {
            Some(stream) => Ledger::find(ctx, stream.at, group_name)?.map(|group| (stream, group)),
            None => None,
        };
        let Some((stream, group)) = found else {
            return Err(no_group(
                "NOGROUP No such key '",
                key,
                "' or consumer group '",
                group_name,
                "' in XREADGROUP with GROUP option",
            ));
        };
        let after = match after {
            b">" => MAX,
            b"$" => return Err(meaningless("$")),
            b"+" => return Err(meaningless("+")),
            after => id::parse(after, 0)?,
        };
        wanted.push((key, stream, group, after));
    }
    let mut header = Header::new(out);
    for i in 0..wanted.len() {
        let (key, stream, _, after) = wanted[i];
        let group = &mut wanted[i].2;
        let (place, _) = group.consumer_or_new(ctx, consumer)?;
        group.change(place).seen_ms = ctx.txn.now_ms;
        if after != MAX {
            header.stream(key, out);
            show_history(ctx, &stream, group, place, after, read.most, out)?;
        } else if stream.len > 0 && group.record.last < stream.last {
            let at = out.len();
            header.stream(key, out);
            if deliver(ctx, &stream, group, place, &read, out)? == 0 {
                header.take_back(at, out);
            }
        }
        group.save(ctx)?;
        // The same stream may come again.
        let (done, rest) = wanted.split_at_mut(i + 1);
        for later in rest.iter_mut().filter(|later| later.1.at == stream.at) {
            later.2 = done[i].2.clone();
        }
    }
    if !header.finish(out) && !read.wait(ctx, None) {
        out.nil_array();
    }
    Ok(())
}

#[cold]
fn meaningless(id: &str) -> Error {
    Error::Text(
        format!(
            "ERR The {id} ID is meaningless in the context of XREADGROUP: you want to read the history of this consumer by \
             specifying a proper ID, or use the > ID to get new messages. The {id} ID would just return an empty result set."
        )
        .into(),
    )
}

/// Replies with what the group has not got yet; how many entries.
fn deliver(
    ctx: &mut Ctx,
    stream: &Stream,
    group: &mut Ledger,
    place: usize,
    read: &Read<'_>,
    out: &mut Reply,
) -> Result<usize> {
    let window = Window::from(id::next(group.record.last).unwrap_or(MAX), read.most);
    let mut ids: SmallVec<[StreamId; 16]> = SmallVec::new();
    let count = stream.reply_entries(ctx, &window, out, |id| ids.push(id))?;
    let now_ms = ctx.txn.now_ms;
    let mut nack = Nack { delivered_ms: now_ms, deliveries: 1, consumer: SmallVec::new() };
    for id in ids {
        group.deliver(stream, id);
        if !read.no_ack {
            // It is there already if the group was set back.
            let before = group.nack(ctx, id)?;
            group.give(ctx, id, place, &mut nack, before.as_ref())?;
        }
    }
    if count > 0 && !read.no_ack {
        group.change(place).active_ms = Some(now_ms);
    }
    Ok(count)
}

/// Replies with what is pending for the consumer behind an id. That counts as another delivery of entries still there.
fn show_history(
    ctx: &mut Ctx,
    stream: &Stream,
    group: &mut Ledger,
    place: usize,
    after: StreamId,
    most: usize,
    out: &mut Reply,
) -> Result {
    let start = id::next(after).unwrap_or(MAX);
    let consumer = group.at_place(place).clone();
    let pending = group.pending_of(ctx, &consumer, [start, MAX], most)?;
    let names = stream.names(ctx)?;
    out.array(pending.len());
    for (id, nack) in pending {
        if stream.reply_one(ctx, id, &names, out)? {
            let mut again = Nack { delivered_ms: ctx.txn.now_ms, deliveries: nack.deliveries + 1, ..nack.clone() };
            group.give(ctx, id, place, &mut again, Some(&nack))?;
        } else {
            out.array(2);
            id::reply(id, out);
            out.nil_array();
        }
    }
    Ok(())
}

const fn behind_streams(from: isize) -> KeySpec {
    KeySpec {
        flags: key::RO | key::ACCESS,
        begin: Begin::Keyword("STREAMS", from),
        find: Find::Range { last: -1, step: 1, limit: 2 },
    }
}

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("xread", xread, -4, flags::READONLY | flags::BLOCKING | flags::MOVABLEKEYS, Group::Stream)
        .keys(&[behind_streams(1)])
        .help("5.0.0", "Returns entries behind given ids from one or more streams.")
        .syntax(
            "[COUNT count] [BLOCK milliseconds] STREAMS key [key ...] id [id ...]",
            "O(M) with M the entries returned",
        ),
    Command::new("xreadgroup", xreadgroup, -7, flags::WRITE | flags::BLOCKING | flags::MOVABLEKEYS, Group::Stream)
        .keys(&[behind_streams(4)])
        .help(
            "5.0.0",
            "Delivers entries of one or more streams to a consumer of a group, or shows what is pending for it.",
        )
        .syntax(
            "GROUP group consumer [COUNT count] [BLOCK milliseconds] [NOACK] STREAMS key [key ...] id [id ...]",
            "O(M) with M the entries returned",
        ),
];
