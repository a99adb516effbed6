//! XADD, XTRIM, XSETID.

use crate::codec::order::StreamId;
use crate::handler::{Args, Command, Ctx, Error, Group, KeySpec, Reply, Result, events, flags, key};

use super::handle::Stream;
use super::id::{self, MAX, MIN, NewId};
use super::trim::Trim;

/// What XADD's arguments say.
struct Add<'a> {
    trim: Trim,
    make: bool,
    id: NewId,
    fields: Args<'a>,
}

impl<'a> Add<'a> {
    fn parse(args: Args<'a>) -> Result<Add<'a>> {
        let arity = || Error::Arity("xadd".into());
        let mut options = args.cursor(2);
        let (mut trim, mut make) = (Trim::default(), true);
        let new_id = loop {
            match options.peek() {
                None => break None,
                Some(b"*") => break Some(NewId::Any),
                Some(_) if trim.take(&mut options)? => {}
                Some(_) if options.next_is(b"NOMKSTREAM") => make = false,
                Some(word) => break Some(id::parse_new(word)?),
            }
        };
        trim.check(false)?;
        options.next();
        let fields = options.rest();
        let new_id = new_id.filter(|_| fields.len() >= 2 && fields.len().is_multiple_of(2)).ok_or_else(arity)?;
        if new_id == NewId::Exactly(MIN) {
            return Err(Error::err("ERR The ID specified in XADD must be greater than 0-0"));
        }
        Ok(Add { trim, make, id: new_id, fields })
    }
}

/// The id of a new entry behind `last`.
fn choose(new_id: NewId, last: StreamId, now_ms: u64) -> Option<StreamId> {
    match new_id {
        NewId::Exactly(id) => Some(id).filter(|id| *id > last),
        NewId::Any if now_ms > last.ms => Some(StreamId { ms: now_ms, seq: 0 }),
        NewId::Any => id::next(last),
        NewId::At(ms) if ms > last.ms => Some(StreamId { ms, seq: 0 }),
        NewId::At(ms) if ms == last.ms => Some(StreamId { ms, seq: last.seq.checked_add(1)? }),
        NewId::At(_) => None,
    }
}

fn xadd(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let add = Add::parse(args)?;
    let mut stream = match Stream::find(ctx, &args[1])? {
        Some(stream) => stream,
        None if !add.make => {
            out.nil();
            return Ok(());
        }
        None => Stream::create(ctx, &args[1])?,
    };
    if stream.last == MAX {
        return Err(Error::err("ERR The stream has exhausted the last possible ID, unable to add more items"));
    }
    let id = choose(add.id, stream.last, ctx.txn.now_ms)
        .ok_or(Error::err("ERR The ID specified in XADD is equal or smaller than the target stream top item"))?;
    stream.push(ctx, id, add.fields)?;
    if add.trim.apply(ctx, &mut stream)? > 0 {
        ctx.happens(&[events::XADD, events::XTRIM]);
    }
    stream.save(ctx);
    id::reply(id, out);
    Ok(())
}

fn xtrim(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let mut trim = Trim::default();
    let mut options = args.cursor(2);
    while !options.is_empty() {
        if !trim.take(&mut options)? {
            return Err(Error::Syntax);
        }
    }
    trim.check(true)?;
    let Some(mut stream) = Stream::find(ctx, &args[1])? else {
        out.int(0);
        return Ok(());
    };
    let gone = trim.apply(ctx, &mut stream)?;
    if gone > 0 {
        stream.save(ctx);
    }
    out.int(gone as i64);
    Ok(())
}

fn xsetid(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let last = id::parse(&args[2], 0)?;
    let (mut added, mut max_deleted) = (None, None);
    let mut options = args.cursor(3);
    while !options.is_empty() {
        if options.remaining() >= 2 && options.next_is(b"ENTRIESADDED") {
            let number = options.int()?;
            added = Some(u64::try_from(number).map_err(|_| Error::err("ERR entries_added must be positive"))?);
        } else if options.remaining() >= 2 && options.next_is(b"MAXDELETEDID") {
            let id = id::parse(options.arg()?, 0)?;
            if last < id {
                return Err(Error::err(
                    "ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id",
                ));
            }
            max_deleted = Some(id);
        } else {
            return Err(Error::Syntax);
        }
    }
    let mut stream = Stream::find(ctx, &args[1])?.ok_or(Error::NoSuchKey)?;
    if last < stream.max_deleted {
        return Err(Error::err("ERR The ID specified in XSETID is smaller than current max_deleted_entry_id"));
    }
    if stream.last_entry(ctx)?.is_some_and(|top| last < top) {
        return Err(Error::err("ERR The ID specified in XSETID is smaller than the target stream top item"));
    }
    if added.is_some_and(|added| added < stream.len) {
        return Err(Error::err("ERR The entries_added specified in XSETID is smaller than the target stream length"));
    }
    stream.last = last;
    stream.added = added.unwrap_or(stream.added);
    // 0-0 says nothing.
    stream.max_deleted = max_deleted.filter(|id| *id != MIN).unwrap_or(stream.max_deleted);
    stream.save(ctx);
    // Also where all of it was so before.
    ctx.tell(&events::XSETID, &args[1]);
    out.ok();
    Ok(())
}

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("xadd", xadd, -5, flags::WRITE | flags::DENYOOM | flags::FAST, Group::Stream).tells(&events::XADD)
        .keys(&[KeySpec::one(1, key::RW | key::UPDATE)])
        .help("5.0.0", "Appends an entry to a stream, which is made if there is none, and may trim it.")
        .syntax(
            "key [NOMKSTREAM] [KEEPREF | DELREF | ACKED] [<MAXLEN | MINID> [= | ~] threshold [LIMIT count]] <* | id> field value \
             [field value ...]",
            "O(1), and O(N) for trimming N entries",
        ),
    Command::new("xsetid", xsetid, -3, flags::WRITE | flags::DENYOOM | flags::FAST, Group::Stream)
        .keys(&[KeySpec::one(1, key::RW | key::UPDATE)])
        .help("5.0.0", "Sets the last id of a stream.")
        .syntax("key last-id [ENTRIESADDED entries-added] [MAXDELETEDID max-deleted-id]", "O(1)"),
    Command::new("xtrim", xtrim, -4, flags::WRITE, Group::Stream).tells(&events::XTRIM)
        .keys(&[KeySpec::one(1, key::RW | key::DELETE)])
        .help("5.0.0", "Removes entries from the front of a stream.")
        .syntax(
            "key <MAXLEN | MINID> [= | ~] threshold [LIMIT count] [KEEPREF | DELREF | ACKED]",
            "O(N) with N the number of entries removed",
        ),
];
