//! Trimming: MAXLEN and MINID, exact or nearly, and what becomes of references to entries that go.
//!
//! | references | KEEPREF | DELREF | ACKED |
//! |---|---|---|---|
//! | pending entries of any group | stay, of an entry that is no more | go with the entry | keep the entry |
//! | a group that has not got the entry | – | – | keeps the entry |
//!
//! Redis keeps entries in nodes of up to 100 and trims whole nodes where `~` allows it. Here an entry's node is told by
//! its number among all that were ever added. Nodes are only ever removed whole under KEEPREF, as in Redis.

use crate::codec::order::StreamId;
use crate::handler::limits::{fit_one_by_one, may_touch};
use crate::handler::{Ctx, Error, Result};
use crate::resp::args::Cursor;
use crate::util::num::parse_i64;
use crate::util::scale::Scaled;

use super::group::Ledger;
use super::handle::{Stream, Window};
use super::id;

/// Entries of one of Redis's nodes.
pub const NODE: u64 = 100;
/// What `~` removes at most where LIMIT does not say.
const DEFAULT_LIMIT: u64 = 100 * NODE;
/// Entries gathered at a time.
const SLICE: Scaled<usize> = Scaled::new(4096);
/// Fewer go one by one even if they are more than those that stay, if the command may hold that.
const FEW: Scaled<u64> = Scaled::new(1000).in_unit_tests(20);
/// Entries from which on, if they are not few beside those that stay, these are written anew instead; so they are if the command
/// could not hold what goes.
const BULK: Scaled<u64> = Scaled::new(100_000);

/// What becomes of references to an entry that is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum References {
    /// They stay.
    #[default]
    Keep,
    /// They are removed.
    Delete,
    /// An entry that has some stays.
    Acked,
}

impl References {
    /// Takes the next word if it is one of KEEPREF, DELREF, ACKED.
    pub fn take(options: &mut Cursor<'_>) -> Option<References> {
        if options.next_is(b"KEEPREF") {
            Some(References::Keep)
        } else if options.next_is(b"DELREF") {
            Some(References::Delete)
        } else if options.next_is(b"ACKED") {
            Some(References::Acked)
        } else {
            None
        }
    }
}

/// Which entries are too many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Threshold {
    /// Those before the last so many.
    MaxLen(u64),
    /// Those before an id.
    MinId(StreamId),
}

/// The options of XADD and XTRIM.
#[derive(Debug, Clone, Copy, Default)]
pub struct Trim {
    threshold: Option<Threshold>,
    nearly: bool,
    limit: Option<u64>,
    references: Option<References>,
}

impl Trim {
    /// Takes the next option, if it is one of these.
    pub fn take(&mut self, options: &mut Cursor<'_>) -> Result<bool> {
        let more = options.remaining() >= 2;
        if more && options.next_is(b"MAXLEN") {
            self.begin(options)?;
            let most = parse_i64(options.arg()?).ok_or(Error::NotInteger)?;
            let most = u64::try_from(most).map_err(|_| Error::err("ERR The MAXLEN argument must be >= 0."))?;
            self.threshold = Some(Threshold::MaxLen(most));
        } else if more && options.next_is(b"MINID") {
            self.begin(options)?;
            self.threshold = Some(Threshold::MinId(id::parse(options.arg()?, 0)?));
        } else if more && options.next_is(b"LIMIT") {
            let limit = parse_i64(options.arg()?).ok_or(Error::NotInteger)?;
            self.limit = Some(u64::try_from(limit).map_err(|_| Error::err("ERR The LIMIT argument must be >= 0."))?);
        } else if self.references.is_none() {
            self.references = References::take(options);
            return Ok(self.references.is_some());
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// What stands between the word and its threshold.
    fn begin(&mut self, options: &mut Cursor<'_>) -> Result {
        if self.threshold.is_some() {
            return Err(Error::err("ERR syntax error, MAXLEN and MINID options at the same time are not compatible"));
        }
        let more = options.remaining() >= 2;
        self.nearly = more && options.next_is(b"~");
        if more && !self.nearly {
            options.next_is(b"=");
        }
        Ok(())
    }

    /// Judges the options as a whole.
    pub fn check(&self, needs_threshold: bool) -> Result {
        if self.limit.is_some_and(|limit| limit > 0) && self.threshold.is_none() {
            return Err(Error::err("ERR syntax error, LIMIT cannot be used without specifying a trimming strategy"));
        }
        if needs_threshold && self.threshold.is_none() {
            return Err(Error::err("ERR syntax error, XTRIM must be called with a trimming strategy"));
        }
        if self.limit.is_some() && !self.nearly {
            return Err(Error::err("ERR syntax error, LIMIT cannot be used without the special ~ option"));
        }
        Ok(())
    }

    /// Trims; how many entries went. The caller saves the stream.
    pub fn apply(&self, ctx: &mut Ctx, stream: &mut Stream) -> Result<u64> {
        let Some(threshold) = self.threshold else { return Ok(0) };
        let references = self.references.unwrap_or_default();
        match (self.nearly, references) {
            (true, References::Keep) => trim_nodes(ctx, stream, threshold, self.limit.unwrap_or(DEFAULT_LIMIT)),
            (true, _) => Ok(0),
            (false, References::Keep) => trim_all(ctx, stream, threshold),
            (false, references) => trim_referenced(ctx, stream, threshold, references),
        }
    }
}

/// The ids of up to `most` entries from the first on that a threshold lets go.
fn surplus(ctx: &Ctx, stream: &Stream, threshold: Threshold, most: u64) -> Result<Vec<StreamId>> {
    let (end, most) = match threshold {
        Threshold::MaxLen(len) => (id::MAX, most.min(stream.len.saturating_sub(len))),
        Threshold::MinId(least) => match id::previous(least) {
            Some(end) => (end, most),
            None => return Ok(Vec::new()),
        },
    };
    let entries = stream.entries(ctx, stream.first, end, false)?.take(most as usize);
    entries.map(|entry| entry.map(|(id, _)| id)).collect()
}

/// Whether the first entry is surplus: the answer for most XADDs with a limit.
fn is_within(stream: &Stream, threshold: Threshold) -> bool {
    match threshold {
        Threshold::MaxLen(most) => stream.len <= most,
        Threshold::MinId(least) => stream.len == 0 || stream.first >= least,
    }
}

fn remove_all(ctx: &mut Ctx, stream: &mut Stream, ids: &[StreamId]) -> Result {
    for &id in ids {
        stream.remove(ctx, id)?;
    }
    if let Some(&last) = ids.last() {
        stream.first = id::next(last).unwrap_or(id::MAX);
        stream.settle(ctx)?;
    }
    Ok(())
}

fn trim_all(ctx: &mut Ctx, stream: &mut Stream, threshold: Threshold) -> Result<u64> {
    let before = stream.len;
    if before > FEW.get() && !is_within(stream, threshold) {
        let gone = count_surplus(ctx, stream, threshold, usize::MAX)?;
        if is_bulk(gone, before - gone) {
            let first = match threshold {
                Threshold::MinId(least) => stream.each_id(ctx, &Window::from(least, 1))?.1,
                Threshold::MaxLen(_) => first_kept(ctx, stream, gone)?,
            };
            stream.keep_from(ctx, first, before - gone)?;
            return Ok(gone);
        }
    }
    while !is_within(stream, threshold) {
        let ids = surplus(ctx, stream, threshold, SLICE.get() as u64)?;
        remove_all(ctx, stream, &ids)?;
        may_touch(before - stream.len)?;
    }
    Ok(before - stream.len)
}

/// Whether what stays is written anew: entries that go, and that stay.
fn is_bulk(gone: u64, kept: u64) -> bool {
    gone > kept.max(FEW.get()) || gone > BULK.get() && gone >= kept / 8 || !fit_one_by_one(gone, 0)
}

/// How many entries a threshold lets go, `most` of them.
fn count_surplus(ctx: &mut Ctx, stream: &Stream, threshold: Threshold, most: usize) -> Result<u64> {
    match threshold {
        Threshold::MaxLen(len) => Ok(stream.len.saturating_sub(len).min(most as u64)),
        Threshold::MinId(least) => match id::previous(least) {
            Some(end) => Ok(stream.each_id(ctx, &Window { end, ..Window::from(stream.first, most) })?.0),
            None => Ok(0),
        },
    }
}

/// The first entry that stays when so many are gone; none if all go.
fn first_kept(ctx: &mut Ctx, stream: &Stream, gone: u64) -> Result<Option<StreamId>> {
    may_touch(stream.len)?;
    let kept = stream.len - gone;
    // The walk ends at the entry that is wanted.
    let (_, first) = match kept {
        0 => return Ok(None),
        _ if kept < gone => stream.each_id(ctx, &Window { most: kept as usize, reverse: true, ..Window::ALL })?,
        _ => stream.each_id(ctx, &Window { most: gone as usize + 1, ..Window::ALL })?,
    };
    Ok(first)
}

/// Removes whole nodes only.
fn trim_nodes(ctx: &mut Ctx, stream: &mut Stream, threshold: Threshold, limit: u64) -> Result<u64> {
    let before = stream.len;
    if before > FEW.get() && !is_within(stream, threshold) {
        let gone = count_nodes(ctx, stream, threshold, limit)?;
        if is_bulk(gone, before - gone) {
            let first = first_kept(ctx, stream, gone)?;
            stream.keep_from(ctx, first, before - gone)?;
            return Ok(gone);
        }
        if gone == 0 {
            return Ok(0);
        }
    }
    while !is_within(stream, threshold) {
        let gone = before - stream.len;
        let node = first_node(stream, gone, before);
        if limit > 0 && gone + node > limit {
            break;
        }
        if let Threshold::MaxLen(most) = threshold
            && stream.len - node < most
        {
            break;
        }
        let ids = surplus(ctx, stream, threshold, node)?;
        if (ids.len() as u64) < node {
            break;
        }
        remove_all(ctx, stream, &ids)?;
        may_touch(gone + node)?;
    }
    Ok(before - stream.len)
}

/// Entries of the first node of a stream that had so many, when so many are gone: up to the next whole number of nodes.
fn first_node(stream: &Stream, gone: u64, before: u64) -> u64 {
    let left = before - gone;
    (NODE - stream.added.saturating_sub(left) % NODE).min(left)
}

/// How many entries go with the nodes that a threshold lets go.
fn count_nodes(ctx: &mut Ctx, stream: &Stream, threshold: Threshold, limit: u64) -> Result<u64> {
    let most = if limit > 0 { limit } else { u64::MAX };
    let surplus = count_surplus(ctx, stream, threshold, usize::try_from(most).unwrap_or(usize::MAX))?;
    let mut gone = 0;
    while gone < stream.len {
        let node = first_node(stream, gone, stream.len);
        if gone + node > surplus {
            break;
        }
        gone += node;
    }
    Ok(gone)
}

/// Removes entry by entry, with a look at who refers to it. As in Redis, a node that could not go whole is the last one
/// looked at, even if entries in it that stay leave the stream longer than it should be.
fn trim_referenced(ctx: &mut Ctx, stream: &mut Stream, threshold: Threshold, references: References) -> Result<u64> {
    let mut groups = Ledger::all(ctx, stream.at)?;
    let before = stream.len;
    let mut from = Some(stream.first);
    let mut number = stream.added.saturating_sub(stream.len);
    while let Some(start) = from.filter(|_| !is_done(stream, threshold)) {
        let ids = node_from(ctx, stream, start, NODE - number % NODE)?;
        let Some(&last) = ids.last() else { break };
        let goes_whole = match threshold {
            Threshold::MaxLen(most) => stream.len - ids.len() as u64 >= most,
            Threshold::MinId(least) => last < least,
        };
        for &id in &ids {
            if is_done(stream, threshold) || matches!(threshold, Threshold::MinId(least) if id >= least) {
                break;
            }
            remove_referenced(ctx, stream, &mut groups, id, references)?;
        }
        may_touch(before - stream.len)?;
        number += ids.len() as u64;
        from = id::next(last).filter(|_| goes_whole);
    }
    stream.settle(ctx)?;
    for group in &mut groups {
        group.save(ctx)?;
    }
    Ok(before - stream.len)
}

/// Whether nothing more is to go by length.
fn is_done(stream: &Stream, threshold: Threshold) -> bool {
    matches!(threshold, Threshold::MaxLen(most) if stream.len <= most)
}

/// The ids of the next entries from an id on.
fn node_from(ctx: &Ctx, stream: &Stream, from: StreamId, most: u64) -> Result<Vec<StreamId>> {
    let entries = stream.entries(ctx, from, id::MAX, false)?.take(most as usize);
    entries.map(|entry| entry.map(|(id, _)| id)).collect()
}

/// Whether any group refers to an entry, or has not got it yet.
fn is_referenced(ctx: &mut Ctx, groups: &[Ledger], id: StreamId) -> Result<bool> {
    for group in groups {
        if id > group.record.last || group.nack(ctx, id)?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What became of an entry that was to be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// It was not there.
    Absent,
    /// It went.
    Done,
    /// References keep it.
    Kept,
}

/// Removes an entry if its references let it go. The caller settles and saves the stream, and saves the groups.
pub fn remove_referenced(
    ctx: &mut Ctx,
    stream: &mut Stream,
    groups: &mut [Ledger],
    id: StreamId,
    references: References,
) -> Result<Removal> {
    match references {
        References::Keep => {}
        References::Delete => {
            for group in &mut *groups {
                group.take(ctx, id)?;
            }
        }
        References::Acked if is_referenced(ctx, groups, id)? => return Ok(Removal::Kept),
        References::Acked => {}
    }
    Ok(if stream.remove(ctx, id)? { Removal::Done } else { Removal::Absent })
}
