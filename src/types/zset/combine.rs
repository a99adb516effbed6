//! ZUNION, ZINTER, ZDIFF, their STORE forms, ZINTERCARD.
//!
//! | way | reads | taken for |
//! |---|---|---|
//! | merge | all sources in step, in the order of their members | unions; sources of about one size |
//! | probe | one source, and of the others single members | where one source is small; where members are not in order |
//!
//! Sources are sorted sets and sets, whose members score 1. Neither way gathers what it reads; a STORE form writes as it
//! reads, so its memory is bounded. Members in encode-version 1 are not kept in their order, so such sources are probed.
//! A command that may rest does so between slices of what it reads, and joins scores, writes and sorts without the cores.
//!
//! Scores are added in the order of the sources' sizes, as Redis does: sums of floats depend on it.

use std::ops::Bound::Included;
use std::ops::ControlFlow;

use smallvec::SmallVec;

use super::store::Builder;
use super::value::{Key, peek_score, read_score, read_sort, reply_header, reply_member, score_key};
use crate::codec::Score;
use crate::codec::element::{self, Group as Elements};
use crate::error::NEGATIVE_LIMIT;
use crate::handler::events;
use crate::handler::limits::may_touch;
use crate::handler::{Args, Command, Ctx, Error, Found, Group, KeySpec, Reply, Result, flags, key};
use crate::meter;
use crate::resp::args::Cursor;
use crate::shard::memory::object::Kind;
use crate::shard::txn::elements::Elements as Walk;
use crate::shard::txn::slices::{Element, Slices};
use crate::types::merge::{Head, Merge, Operation, UNCOUNTED, is_probed, merge_in_slices};
use crate::types::set::text;
use crate::util::num::{parse_double, parse_natural};

/// How the scores of a member in several sources become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Aggregate {
    Sum,
    Min,
    Max,
}

impl Aggregate {
    /// A score so far and another; the sum of two infinities is 0 if they differ.
    fn join(self, score: f64, other: f64) -> f64 {
        match self {
            Aggregate::Sum => number(score + other),
            Aggregate::Min if other < score => other,
            Aggregate::Max if other > score => other,
            Aggregate::Min | Aggregate::Max => score,
        }
    }
}

/// 0 instead of NaN.
fn number(score: f64) -> f64 {
    if score.is_nan() { 0.0 } else { score }
}

/// One of the sources that are there.
#[derive(Debug, Clone, Copy)]
struct Source {
    at: Found,
    kind: Kind,
    weight: f64,
    /// Members; of a set that does not count them, [`UNCOUNTED`].
    size: u64,
}

impl Source {
    /// Whether its members can be had in their order.
    fn is_ordered(&self, ctx: &Ctx) -> bool {
        self.kind == Kind::Set || ctx.body(self.at).encoding == 0
    }

    /// Where its members are in order.
    fn in_order(&self) -> (Found, Elements) {
        (self.at, if self.kind == Kind::Set { Elements::SetMember } else { Elements::ZsetScore })
    }

    /// Where its members are, in any order.
    fn in_any_order(&self) -> (Found, Elements) {
        (self.at, if self.kind == Kind::Set { Elements::SetMember } else { Elements::ZsetSort })
    }

    /// A member of [`Source::in_any_order`].
    fn member<'a>(&self, key: &'a [u8], value: &'a [u8]) -> Result<(&'a [u8], f64)> {
        if self.kind == Kind::Set {
            return Ok((text(key, value)?, 1.0));
        }
        let (score, member) = read_sort(key, value)?;
        Ok((member, score.get()))
    }

    /// The score of a member, if it has it.
    fn score(&self, ctx: &Ctx, member: &[u8]) -> Result<Option<f64>> {
        if self.kind == Kind::Zset {
            return Ok(peek_score(&ctx.txn, self.at, member)?.map(Score::get));
        }
        let key = self.key(ctx, member);
        let found = ctx.txn.elements(self.at, Included(&key), Included(&key), false)?.next().transpose()?;
        Ok(found.map(|_| 1.0))
    }

    /// The key of the element that has a member's score.
    fn key(&self, ctx: &Ctx, member: &[u8]) -> Key {
        if self.kind == Kind::Zset {
            return score_key(ctx.body(self.at).encoding, member);
        }
        let mut key = Key::new();
        element::set_member(member, &mut key);
        key
    }

    /// The score in that element.
    fn read(&self, key: &[u8], value: &[u8]) -> Result<f64> {
        if self.kind == Kind::Zset { Ok(read_score(key, value)?.get()) } else { Ok(1.0) }
    }
}

/// A member's scores, with the places of the sources that they come from, ascending.
type Scores = SmallVec<[(usize, f64); 8]>;

/// What is done with each member of a result and its score; whether to go on.
type Emit<'f> = &'f mut dyn FnMut(&[u8], f64) -> Result<ControlFlow<()>>;

/// A call, read.
struct Query {
    operation: Operation,
    aggregate: Aggregate,
    with_scores: bool,
    /// Most members that ZINTERCARD counts.
    limit: u64,
    /// In the order in which scores are joined; for a difference, the first source first.
    sources: Vec<Source>,
    /// The result is empty whatever the sources hold: an intersection with nothing, a difference from nothing.
    is_void: bool,
}

/// What a command's options may be besides those of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Output {
    Reply,
    Store,
    Count,
}

impl Query {
    fn parse(ctx: &mut Ctx, mut args: Cursor<'_>, operation: Operation, output: Output, name: &str) -> Result<Query> {
        let keys = args.int()?;
        if keys < 1 {
            return Err(Error::Text(format!("ERR at least 1 input key is needed for '{name}' command").into()));
        }
        if keys as u64 > args.remaining() as u64 {
            return Err(Error::Syntax);
        }
        let keys = args.by_ref().take(keys as usize);
        let mut sources: SmallVec<[Option<Source>; 8]> = SmallVec::new();
        for key in keys {
            sources.push(source(ctx, key)?);
        }
        let mut query = Query {
            operation,
            aggregate: Aggregate::Sum,
            with_scores: false,
            limit: u64::MAX,
            sources: Vec::new(),
            is_void: match operation {
                Operation::Union => false,
                Operation::Inter => sources.iter().any(Option::is_none),
                Operation::Diff => sources[0].is_none(),
            },
        };
        query.options(&mut sources, args, output)?;
        query.sources = sources.into_iter().flatten().collect();
        if operation != Operation::Diff {
            query.sources.sort_by_key(|source| source.size);
        }
        Ok(query)
    }

    fn options(&mut self, sources: &mut [Option<Source>], mut args: Cursor<'_>, output: Output) -> Result {
        let joins = self.operation != Operation::Diff && output != Output::Count;
        while !args.is_empty() {
            if joins && args.remaining() > sources.len() && args.next_is(b"WEIGHTS") {
                for source in &mut *sources {
                    let weight = args.next().and_then(parse_double);
                    let weight = weight.ok_or(Error::err("ERR weight value is not a float"))?;
                    if let Some(source) = source {
                        source.weight = weight;
                    }
                }
            } else if joins && args.remaining() > 1 && args.next_is(b"AGGREGATE") {
                self.aggregate = match () {
                    () if args.next_is(b"SUM") => Aggregate::Sum,
                    () if args.next_is(b"MIN") => Aggregate::Min,
                    () if args.next_is(b"MAX") => Aggregate::Max,
                    () => return Err(Error::Syntax),
                };
            } else if output == Output::Reply && args.next_is(b"WITHSCORES") {
                self.with_scores = true;
            } else if output == Output::Count && args.remaining() > 1 && args.next_is(b"LIMIT") {
                let limit = args.next().and_then(parse_natural).ok_or(NEGATIVE_LIMIT)?;
                self.limit = if limit == 0 { u64::MAX } else { limit };
            } else {
                return Err(Error::Syntax);
            }
        }
        Ok(())
    }

    /// The score of a member of the result.
    fn score(&self, scores: &[(usize, f64)]) -> f64 {
        let weighted = |&(place, score): &(usize, f64)| score * self.sources[place].weight;
        let first = scores.first().map_or(0.0, weighted);
        if self.operation == Operation::Diff {
            return first;
        }
        // What is not a number counts as 0 in a union; in an intersection it spoils a sum, which then is 0.
        let other = |score| if self.operation == Operation::Union { number(weighted(score)) } else { weighted(score) };
        scores.iter().skip(1).fold(number(first), |sum, score| self.aggregate.join(sum, other(score)))
    }

    /// Hands out the members of the result with their scores, in any order.
    fn run(&self, ctx: &mut Ctx, emit: Emit<'_>) -> Result {
        if self.is_void {
            return Ok(());
        }
        let sizes: u64 = self.sources.iter().map(|source| source.size).sum();
        let first = self.sources.first().map_or(0, |source| source.size);
        let looked_up = is_probed(first, sizes) && self.operation != Operation::Union;
        if looked_up || self.sources.iter().any(|source| !source.is_ordered(ctx)) {
            let probed = if self.operation == Operation::Union { sizes } else { first };
            let steps = probed.saturating_mul(self.sources.len() as u64);
            may_touch(steps)?;
            return if ctx.goes_in_slices(steps)? { self.probe_in_slices(ctx, emit) } else { self.probe(ctx, emit) };
        }
        may_touch(sizes)?;
        if ctx.goes_in_slices(sizes)? {
            let (ns, sources) = (ctx.ns(), self.sources.iter().map(Source::in_order));
            let give = |heads: &[Head<'_>]| Ok(self.give(heads, emit)?.is_continue());
            return merge_in_slices(&mut ctx.txn, ns, self.operation, sources, give);
        }
        self.merge(ctx, emit)
    }

    /// Sources whose members are looked up in the others.
    fn bases(&self) -> impl Iterator<Item = (usize, &Source)> {
        let bases = if self.operation == Operation::Union { self.sources.len() } else { 1 };
        self.sources.iter().enumerate().take(bases)
    }

    fn probe(&self, ctx: &Ctx, emit: Emit<'_>) -> Result {
        for (place, base) in self.bases() {
            let (at, group) = base.in_any_order();
            for record in ctx.txn.group(at, group)? {
                let (key, value) = record?;
                let (member, score) = base.member(&key, &value)?;
                if let Some(scores) = self.scores(ctx, place, member, score)?
                    && emit(member, self.score(&scores))?.is_break()
                {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// The same, with rests, in which the result is worked on.
    fn probe_in_slices(&self, ctx: &mut Ctx, emit: Emit<'_>) -> Result {
        let ns = ctx.ns();
        for (place, base) in self.bases() {
            let (at, group) = base.in_any_order();
            let mut walk = Slices::of_group(at, group);
            while walk.has_more() {
                walk.fill(&ctx.txn)?;
                let mut slice: Vec<(Element, Scores)> = Vec::new();
                for element in walk.by_ref() {
                    let (_, score) = base.member(&element.0, &element.1)?;
                    slice.push((element, Scores::from_slice(&[(place, score)])));
                }
                self.look_up(ctx, place, &mut slice)?;
                let mut pass = || {
                    for ((key, value), scores) in &slice {
                        if emit(base.member(key, value)?.0, self.score(scores))?.is_break() {
                            return Ok(false);
                        }
                    }
                    Ok(true)
                };
                let goes_on = if walk.has_more() { ctx.txn.rest(ns, pass)? } else { pass()? };
                if !goes_on {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Adds the scores that the other sources have of members of the one at this place, and drops members that do not
    /// belong to the result or that a source before has brought.
    fn look_up(&self, ctx: &mut Ctx, place: usize, slice: &mut Vec<(Element, Scores)>) -> Result {
        let base = &self.sources[place];
        for (other, source) in self.sources.iter().enumerate().filter(|&(other, _)| other != place) {
            let mut keys = Vec::with_capacity(slice.len());
            for ((key, value), _) in &*slice {
                keys.push(source.key(ctx, base.member(key, value)?.0));
            }
            let mut found = vec![None; keys.len()];
            ctx.txn.look_up_in_slices(source.at, keys.iter().map(|key| &key[..]), |n, value| {
                found[n] = value.map(|value| source.read(&keys[n], value)).transpose()?;
                Ok(())
            })?;
            let mut found = found.into_iter();
            slice.retain_mut(|(_, scores)| self.joins(scores, place, (other, found.next().flatten())));
        }
        Ok(())
    }

    /// The scores of a member that the source at this place has, if the member belongs to the result and no source before
    /// has brought it.
    fn scores(&self, ctx: &Ctx, place: usize, member: &[u8], score: f64) -> Result<Option<Scores>> {
        let mut scores = Scores::from_slice(&[(place, score)]);
        for (other, source) in self.sources.iter().enumerate().filter(|&(other, _)| other != place) {
            if !self.joins(&mut scores, place, (other, source.score(ctx, member)?)) {
                return Ok(None);
            }
        }
        Ok(Some(scores))
    }

    /// Adds what another source has of a member; whether that may belong to the result.
    fn joins(&self, scores: &mut Scores, place: usize, (other, score): (usize, Option<f64>)) -> bool {
        match (self.operation, score) {
            (Operation::Union, Some(_)) if other < place => return false,
            (Operation::Union | Operation::Inter, Some(score)) => scores.push((other, score)),
            (Operation::Inter, None) | (Operation::Diff, Some(_)) => return false,
            (Operation::Union | Operation::Diff, None) => {}
        }
        true
    }

    fn merge(&self, ctx: &Ctx, emit: Emit<'_>) -> Result {
        Merge::<Walk<'_>>::hold(self.sources.len())?;
        let walk = |source: &Source| {
            let (at, group) = source.in_order();
            ctx.txn.group(at, group)
        };
        let walks: Result<Vec<_>> = self.sources.iter().map(walk).collect();
        let mut merge = Merge::new(self.operation, walks?)?;
        while let Some(heads) = merge.step()? {
            if self.give(heads, emit)?.is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Hands out a member of the result, of which these are all.
    fn give(&self, heads: &[Head<'_>], emit: Emit<'_>) -> Result<ControlFlow<()>> {
        let read = |head: &Head<'_>| Ok((head.place, self.sources[head.place].read(&head.key, &head.value)?));
        let scores: Result<Scores> = heads.iter().map(read).collect();
        let Head { key, value, .. } = &heads[0];
        emit(text(key, value)?, self.score(&scores?))
    }
}

fn source(ctx: &mut Ctx, key: &[u8]) -> Result<Option<Source>> {
    let Some(at) = ctx.to_read(|ctx| ctx.lookup(key))? else { return Ok(None) };
    let kind = ctx.object(at).kind;
    if !matches!(kind, Kind::Zset | Kind::Set) {
        return Err(Error::WrongType);
    }
    let counted = kind == Kind::Zset || ctx.body(at).encoding == 0;
    Ok(Some(Source { at, kind, weight: 1.0, size: if counted { ctx.size(at) } else { UNCOUNTED } }))
}

/// Members gathered for a reply, in one allocation of texts.
#[derive(Default)]
struct Gathered {
    texts: Vec<u8>,
    /// Score, and where the text stands.
    members: Vec<(Score, usize, usize)>,
}

impl Gathered {
    fn push(&mut self, member: &[u8], score: f64) -> Result {
        meter::hold(member.len() + size_of::<(Score, usize, usize)>())?;
        let from = self.texts.len();
        self.texts.extend_from_slice(member);
        self.members.push((Score::new(score)?, from, self.texts.len()));
        Ok(())
    }

    /// Replies in the order of scores, then of members.
    fn reply(mut self, with_scores: bool, out: &mut Reply) {
        let text = |from: usize, to: usize| &self.texts[from..to];
        self.members.sort_unstable_by(|a, b| a.0.cmp(&b.0).then_with(|| text(a.1, a.2).cmp(text(b.1, b.2))));
        reply_header(out, self.members.len(), with_scores);
        for (score, from, to) in self.members {
            reply_member(out, &self.texts[from..to], score, with_scores);
        }
    }
}

fn reply(ctx: &mut Ctx, args: Args<'_>, operation: Operation, name: &str, out: &mut Reply) -> Result {
    let query = Query::parse(ctx, args.cursor(1), operation, Output::Reply, name)?;
    let mut gathered = Gathered::default();
    query.run(ctx, &mut |member, score| {
        gathered.push(member, score)?;
        Ok(ControlFlow::Continue(()))
    })?;
    let (ns, members) = (ctx.ns(), gathered.members.len());
    ctx.txn.rest_for(ns, members, || {
        gathered.reply(query.with_scores, out);
        Ok(())
    })
}

fn store(ctx: &mut Ctx, args: Args<'_>, operation: Operation, name: &str, out: &mut Reply) -> Result {
    let query = Query::parse(ctx, args.cursor(2), operation, Output::Store, name)?;
    let mut stored = Builder::new(ctx, &args[1])?;
    query.run(ctx, &mut |member, score| {
        stored.put(member, Score::new(score)?)?;
        Ok(ControlFlow::Continue(()))
    })?;
    out.int(stored.finish(ctx)? as i64);
    Ok(())
}

fn zunion(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    reply(ctx, args, Operation::Union, "zunion", out)
}

fn zinter(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    reply(ctx, args, Operation::Inter, "zinter", out)
}

fn zdiff(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    reply(ctx, args, Operation::Diff, "zdiff", out)
}

fn zunionstore(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    store(ctx, args, Operation::Union, "zunionstore", out)
}

fn zinterstore(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    store(ctx, args, Operation::Inter, "zinterstore", out)
}

fn zdiffstore(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    store(ctx, args, Operation::Diff, "zdiffstore", out)
}

fn zintercard(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let query = Query::parse(ctx, args.cursor(1), Operation::Inter, Output::Count, "zintercard")?;
    let mut count = 0;
    query.run(ctx, &mut |_, _| {
        count += 1;
        Ok(if count == query.limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    out.int(count as i64);
    Ok(())
}

const READS: u32 = flags::READONLY | flags::MOVABLEKEYS;
const STORES: u32 = flags::WRITE | flags::DENYOOM | flags::MOVABLEKEYS;
const SOURCES: &[KeySpec] = &[KeySpec::counted(1, 1, key::RO | key::ACCESS)];
const STORED: &[KeySpec] = &[KeySpec::one(1, key::OW | key::UPDATE), KeySpec::counted(2, 1, key::RO | key::ACCESS)];
const UNION_COST: &str = "O(N)+O(M*log(M)) where N is the size of all sources and M that of the result.";
const INTER_COST: &str = "O(N*K)+O(M*log(M)) where N is the size of the smallest source, K the number of sources and M the size of \
                          the result.";
const DIFF_COST: &str =
    "O(N)+O(M*log(M)) where N is the size of all sources and M that of the result; less if the first is small.";

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("zunion", zunion, -3, READS, Group::SortedSet)
        .keys(SOURCES)
        .help("6.2.0", "Returns what any of several sorted sets has.")
        .syntax(
            "numkeys key [key ...] [WEIGHTS weight [weight ...]] [AGGREGATE <SUM | MIN | MAX>] [WITHSCORES]",
            UNION_COST,
        ),
    Command::new("zinter", zinter, -3, READS, Group::SortedSet)
        .keys(SOURCES)
        .help("6.2.0", "Returns what all of several sorted sets have.")
        .syntax(
            "numkeys key [key ...] [WEIGHTS weight [weight ...]] [AGGREGATE <SUM | MIN | MAX>] [WITHSCORES]",
            INTER_COST,
        ),
    Command::new("zdiff", zdiff, -3, READS, Group::SortedSet)
        .keys(SOURCES)
        .help("6.2.0", "Returns what the first of several sorted sets has and no other.")
        .syntax("numkeys key [key ...] [WITHSCORES]", DIFF_COST),
    Command::new("zunionstore", zunionstore, -4, STORES, Group::SortedSet)
        .tells(&events::ZUNIONSTORE)
        .keys(STORED)
        .help("2.0.0", "Stores what any of several sorted sets has.")
        .syntax(
            "destination numkeys key [key ...] [WEIGHTS weight [weight ...]] [AGGREGATE <SUM | MIN | MAX>]",
            UNION_COST,
        ),
    Command::new("zinterstore", zinterstore, -4, STORES, Group::SortedSet)
        .tells(&events::ZINTERSTORE)
        .keys(STORED)
        .help("2.0.0", "Stores what all of several sorted sets have.")
        .syntax(
            "destination numkeys key [key ...] [WEIGHTS weight [weight ...]] [AGGREGATE <SUM | MIN | MAX>]",
            INTER_COST,
        ),
    Command::new("zdiffstore", zdiffstore, -4, STORES, Group::SortedSet)
        .tells(&events::ZDIFFSTORE)
        .keys(STORED)
        .help("6.2.0", "Stores what the first of several sorted sets has and no other.")
        .syntax("destination numkeys key [key ...]", DIFF_COST),
    Command::new("zintercard", zintercard, -3, READS, Group::SortedSet)
        .keys(SOURCES)
        .help("7.0.0", "Counts what all of several sorted sets have.")
        .syntax(
            "numkeys key [key ...] [LIMIT limit]",
            "O(N*K) where N is the size of the smallest source and K the number of sources.",
        ),
];
