//! XDEL, XDELEX, XACKDEL.

use crate::codec::order::StreamId;
use crate::handler::{Args, Command, Ctx, Error, Group, KeySpec, Reply, Result, events, flags, key};
use crate::util::num::parse_i64;

use super::group::Ledger;
use super::handle::Stream;
use super::id;
use super::trim::{References, Removal, remove_referenced};

/// Ids of a call.
pub type Ids = smallvec::SmallVec<[StreamId; 4]>;

/// Reads ids without `-`, `+` and `$`.
pub fn parse_ids(args: Args<'_>) -> Result<Ids> {
    args.iter().map(|arg| id::parse(arg, 0)).collect()
}

fn xdel(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let Some(mut stream) = Stream::find(ctx, &args[1])? else {
        out.int(0);
        return Ok(());
    };
    let ids = parse_ids(args.slice(2))?;
    let mut removed = Removed::default();
    let before = stream.len;
    for id in ids {
        if stream.remove(ctx, id)? {
            removed.note(&mut stream, id);
        }
    }
    out.int((before - stream.len) as i64);
    removed.finish(ctx, &mut stream)
}

/// What single removals change of a stream.
#[derive(Default)]
struct Removed {
    any: bool,
    first: bool,
}

impl Removed {
    fn note(&mut self, stream: &mut Stream, id: StreamId) {
        self.any = true;
        self.first |= id == stream.first;
        stream.max_deleted = stream.max_deleted.max(id);
    }

    fn finish(self, ctx: &mut Ctx, stream: &mut Stream) -> Result {
        if self.first {
            stream.settle(ctx)?;
        }
        if self.any {
            stream.save(ctx);
        }
        Ok(())
    }
}

/// `[KEEPREF | DELREF | ACKED] IDS numids id…`, in any order; of several lists of ids the last one counts.
fn parse_list<'a>(args: Args<'a>, from: usize) -> Result<(References, Args<'a>)> {
    let (mut references, mut ids) = (None, None);
    let mut options = args.cursor(from);
    while !options.is_empty() {
        if options.remaining() >= 2 && options.next_is(b"IDS") {
            let count = parse_i64(options.arg()?).filter(|count| *count > 0);
            let count = count.ok_or(Error::err("ERR Number of IDs must be a positive integer"))? as usize;
            if count > options.remaining() {
                return Err(Error::err("ERR The `numids` parameter must match the number of arguments"));
            }
            ids = Some(options.rest().take(count));
            options.nth(count - 1);
        } else if references.is_none() {
            references = Some(References::take(&mut options).ok_or(Error::Syntax)?);
        } else {
            return Err(Error::Syntax);
        }
    }
    Ok((references.unwrap_or_default(), ids.ok_or(Error::Syntax)?))
}

const NOT_FOUND: i64 = -1;
const DONE: i64 = 1;
const KEPT: i64 = 2;

fn reply_none(count: usize, out: &mut Reply) {
    out.array(count);
    (0..count).for_each(|_| out.int(NOT_FOUND));
}

/// The groups that removals have to look at.
fn groups_for(ctx: &Ctx, stream: &Stream, references: References) -> Result<Vec<Ledger>> {
    if references == References::Keep { Ok(Vec::new()) } else { Ledger::all(ctx, stream.at) }
}

fn xdelex(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let stream = Stream::find(ctx, &args[1])?;
    let (references, ids) = parse_list(args, 2)?;
    let Some(mut stream) = stream else {
        reply_none(ids.len(), out);
        return Ok(());
    };
    let ids = parse_ids(ids)?;
    let mut groups = groups_for(ctx, &stream, references)?;
    let mut removed = Removed::default();
    // References to what has gone before may go alone.
    ctx.happens(&[]);
    out.array(ids.len());
    for id in ids {
        out.int(match remove_referenced(ctx, &mut stream, &mut groups, id, references)? {
            Removal::Absent => NOT_FOUND,
            Removal::Kept => KEPT,
            Removal::Done => {
                removed.note(&mut stream, id);
                ctx.happens(&[events::XDEL]);
                DONE
            }
        });
    }
    for group in &mut groups {
        group.save(ctx)?;
    }
    removed.finish(ctx, &mut stream)
}

fn xackdel(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let stream = Stream::find(ctx, &args[1])?;
    let (references, ids) = parse_list(args, 3)?;
    let group = match &stream {
        Some(stream) => Ledger::find(ctx, stream.at, &args[2])?,
        None => None,
    };
    let (Some(mut stream), Some(group)) = (stream, group) else {
        reply_none(ids.len(), out);
        return Ok(());
    };
    let ids = parse_ids(ids)?;
    let mut groups = groups_for(ctx, &stream, references)?;
    let own = groups.iter().position(|other| other.name() == group.name()).unwrap_or_else(|| {
        groups.push(group);
        groups.len() - 1
    });
    let mut removed = Removed::default();
    // What is acknowledged alone is no `xdel`.
    ctx.happens(&[]);
    out.array(ids.len());
    for id in ids {
        if groups[own].take(ctx, id)?.is_none() {
            out.int(NOT_FOUND);
            continue;
        }
        let removal = remove_referenced(ctx, &mut stream, &mut groups, id, references)?;
        if removal == Removal::Done {
            removed.note(&mut stream, id);
            ctx.happens(&[events::XDEL]);
        }
        out.int(if removal == Removal::Kept { KEPT } else { DONE });
    }
    for group in &mut groups {
        group.save(ctx)?;
    }
    removed.finish(ctx, &mut stream)
}

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("xdel", xdel, -3, flags::WRITE | flags::FAST, Group::Stream)
        .tells(&events::XDEL)
        .keys(&[KeySpec::one(1, key::RW | key::DELETE)])
        .help("5.0.0", "Removes entries from a stream.")
        .syntax("key id [id ...]", "O(1) for each entry"),
    Command::new("xdelex", xdelex, -5, flags::WRITE | flags::FAST, Group::Stream)
        .tells(&events::XDEL)
        .keys(&[KeySpec::one(1, key::RW | key::DELETE)])
        .help("8.2.0", "Removes entries from a stream, as far as references of consumer groups let them go.")
        .syntax("key [KEEPREF | DELREF | ACKED] IDS numids id [id ...]", "O(1) for each entry and consumer group"),
    Command::new("xackdel", xackdel, -6, flags::WRITE | flags::FAST, Group::Stream)
        .tells(&events::XDEL)
        .keys(&[KeySpec::one(1, key::RW | key::DELETE | key::UPDATE)])
        .help("8.2.0", "Acknowledges entries and removes them, as far as references of consumer groups let them go.")
        .syntax(
            "key group [KEEPREF | DELREF | ACKED] IDS numids id [id ...]",
            "O(1) for each entry and consumer group",
        ),
];
