//! Members within a shape: GEOSEARCH, GEORADIUS and their kin.

use std::cmp::Ordering;

use super::command::{reply_distance, reply_position};
use super::hash::{Cell, Position};
use super::options::{Form, Member, Order, Search, Store, parse};
use super::shape::Shape;
use crate::codec::Score;
use crate::handler::events;
use crate::handler::limits::may_touch;
use crate::handler::{Args, Begin, Command, Ctx, Found, Group, KeySpec, KeysAt, Reply, Result, flags, key};
use crate::shard::memory::core::unreadable;
use crate::shard::memory::object::Kind;
use crate::types::front::Front;
use crate::types::zset::bounds::Keys;
use crate::types::zset::span::Span;
use crate::types::zset::store::Builder;
use crate::types::zset::value::score;

/// A member that was found.
struct Hit {
    member: Vec<u8>,
    score: f64,
    distance_m: f64,
}

fn find(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply, form: Form) -> Result {
    let source = ctx.to_read(|ctx| ctx.lookup_kind(&args[form.source()], Kind::Zset))?;
    let search = parse(args, form, |member| {
        let Some(at) = source else { return Ok(Member::NoSource) };
        Ok(score(&mut ctx.txn, at, member)?.map_or(Member::Absent, |score| Member::Score(score.get())))
    })?;
    let hits = match source.zip(search.shape.as_ref()) {
        Some((at, shape)) => hits(ctx, at, shape, &search)?,
        None => Vec::new(),
    };
    match search.store {
        Some(destination) => store(ctx, destination, &search, hits, out),
        None => {
            let ns = ctx.ns();
            ctx.txn.rest_for(ns, hits.len(), || {
                reply(&search, hits, out);
                Ok(())
            })
        }
    }
}

/// The members that are asked for, in the order that is asked for.
fn hits(ctx: &mut Ctx, at: Found, shape: &Shape, search: &Search<'_>) -> Result<Vec<Hit>> {
    let count = search.count.map_or(usize::MAX, |count| usize::try_from(count).unwrap_or(usize::MAX));
    let enough = if search.any { count } else { usize::MAX };
    let order = search.order;
    let mut front = Front::new(count, |a: &Hit, b: &Hit| {
        let by_distance = || a.distance_m.partial_cmp(&b.distance_m).unwrap_or(Ordering::Equal);
        match order {
            Some(Order::Ascending) => by_distance(),
            Some(Order::Descending) => by_distance().reverse(),
            None => Ordering::Equal,
        }
    });
    // Whether more are to be looked at.
    let mut look = |score: Score, member: &[u8]| -> Result<bool> {
        let score = score.get();
        if let Some(distance_m) = shape.distance_m(Position::from_score(score)) {
            front.push(Hit { member: member.to_vec(), score, distance_m }, member.len())?;
        }
        Ok(front.seen() < enough)
    };
    let (mut visited, mut goes_on) = (0, true);
    for cell in shape.cells() {
        let span = Span::from(keys(cell)?);
        if ctx.reads_in_slices() {
            span.pass_in_slices(&mut ctx.txn, at, false, (0, u64::MAX), |score, member| {
                goes_on = look(score, member)?;
                Ok(goes_on)
            })?;
        } else {
            for entry in span.entries(&ctx.txn, at, false)? {
                visited += 1;
                may_touch(visited)?;
                let entry = entry?;
                let (score, member) = entry.get()?;
                goes_on = look(score, member)?;
                if !goes_on {
                    break;
                }
            }
        }
        if !goes_on {
            break;
        }
    }
    let ns = ctx.ns();
    ctx.txn.rest_for(ns, front.seen(), || Ok(front.into_sorted().collect()))
}

/// Where the members of a cell lie.
fn keys(cell: Cell) -> Result<Keys> {
    let scores = cell.scores();
    let score = |number: u64| Score::new(number as f64).map_err(unreadable);
    Ok(Keys::between(score(scores.start)?, score(scores.end)?))
}

fn reply(search: &Search<'_>, hits: Vec<Hit>, out: &mut Reply) {
    let with = [search.with_distance, search.with_hash, search.with_position];
    let parts = with.into_iter().filter(|&part| part).count();
    out.array(hits.len());
    for Hit { member, score, distance_m } in hits {
        if parts > 0 {
            out.array(1 + parts);
        }
        out.bulk(&member);
        if search.with_distance {
            reply_distance(distance_m, search.unit, out);
        }
        if search.with_hash {
            out.int(score as i64);
        }
        if search.with_position {
            reply_position(Position::from_score(score), out);
        }
    }
}

fn store(ctx: &mut Ctx, destination: Store<'_>, search: &Search<'_>, hits: Vec<Hit>, out: &mut Reply) -> Result {
    let mut result = Builder::new(ctx, destination.key)?;
    let ns = ctx.ns();
    ctx.txn.rest_for(ns, hits.len(), || {
        hits.into_iter().try_for_each(|Hit { member, score, distance_m }| {
            let number = if destination.distances { distance_m / search.unit.metres() } else { score };
            result.put(&member, Score::new(number).map_err(unreadable)?)
        })
    })?;
    let count = result.finish(ctx)?;
    out.int(count as i64);
    Ok(())
}

fn georadius(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    find(ctx, args, out, Form::Radius)
}

fn georadius_ro(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    find(ctx, args, out, Form::RadiusRo)
}

fn georadiusbymember(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    find(ctx, args, out, Form::RadiusByMember)
}

fn georadiusbymember_ro(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    find(ctx, args, out, Form::RadiusByMemberRo)
}

fn geosearch(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    find(ctx, args, out, Form::Search)
}

fn geosearchstore(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    find(ctx, args, out, Form::SearchStore)
}

/// The source and, of the destinations that are named, the last: the others are not looked at.
fn named(args: Args<'_>, options: usize) -> (KeysAt, bool) {
    let is_store = |at: &usize| [&b"STORE"[..], b"STOREDIST"].iter().any(|word| args[*at].eq_ignore_ascii_case(word));
    let (mut at, mut stored) = (options, None);
    while at + 1 < args.len() {
        if is_store(&at) {
            stored = Some((at + 1, key::OW | key::UPDATE));
            at += 1;
        }
        at += 1;
    }
    ([(1, key::RO | key::ACCESS)].into_iter().chain(stored).collect(), false)
}

fn named_radius(args: Args<'_>) -> (KeysAt, bool) {
    named(args, RADIUS_OPTIONS)
}

fn named_by_member(args: Args<'_>) -> (KeysAt, bool) {
    named(args, BY_MEMBER_OPTIONS)
}

/// Where the options begin.
const RADIUS_OPTIONS: usize = 6;
const BY_MEMBER_OPTIONS: usize = 5;

const READ: &[KeySpec] = &[SOURCE];
const SOURCE: KeySpec = KeySpec::one(1, key::RO | key::ACCESS);
const STORES: u32 = flags::WRITE | flags::DENYOOM;
const RADIUS: &str = "key longitude latitude radius <M | KM | FT | MI> [WITHCOORD] [WITHDIST] [WITHHASH] \
                      [COUNT count [ANY]] [ASC | DESC] [STORE storekey | STOREDIST storedistkey]";
const RADIUS_RO: &str = "key longitude latitude radius <M | KM | FT | MI> [WITHCOORD] [WITHDIST] [WITHHASH] \
                         [COUNT count [ANY]] [ASC | DESC]";
const BY_MEMBER: &str = "key member radius <M | KM | FT | MI> [WITHCOORD] [WITHDIST] [WITHHASH] [COUNT count [ANY]] \
                         [ASC | DESC] [STORE storekey | STOREDIST storedistkey]";
const BY_MEMBER_RO: &str = "key member radius <M | KM | FT | MI> [WITHCOORD] [WITHDIST] [WITHHASH] [COUNT count [ANY]] \
                            [ASC | DESC]";
const SEARCH: &str = "key [FROMMEMBER member | FROMLONLAT longitude latitude] <BYRADIUS radius <M | KM | FT | MI> | \
                      BYBOX width height <M | KM | FT | MI> | \
                      BYPOLYGON num-vertices longitude latitude [longitude latitude ...]> [ASC | DESC] \
                      [COUNT count [ANY]] [WITHCOORD] [WITHDIST] [WITHHASH]";
const SEARCH_STORE: &str = "destination source [FROMMEMBER member | FROMLONLAT longitude latitude] \
                            <BYRADIUS radius <M | KM | FT | MI> | BYBOX width height <M | KM | FT | MI> | \
                            BYPOLYGON num-vertices longitude latitude [longitude latitude ...]> [ASC | DESC] \
                            [COUNT count [ANY]] [STOREDIST]";
const COST: &str = "O(N+M*log(M)) where N is the number of members in and around the shape and M the number of those \
                    within.";

/// Keys of a form that may store, whose options begin at `options`.
const fn stored(options: isize) -> [KeySpec; 3] {
    [SOURCE, destination("STORE", options), destination("STOREDIST", options)]
}

const fn destination(word: &'static str, options: isize) -> KeySpec {
    KeySpec { begin: Begin::Keyword(word, options), ..KeySpec::range(0, 0, 1, key::OW | key::UPDATE) }
}

const RADIUS_KEYS: &[KeySpec] = &stored(RADIUS_OPTIONS as isize);
const BY_MEMBER_KEYS: &[KeySpec] = &stored(BY_MEMBER_OPTIONS as isize);

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("georadius", georadius, -6, STORES | flags::MOVABLEKEYS, Group::Geo)
        .tells(&events::GEORADIUSSTORE)
        .keys(RADIUS_KEYS)
        .named_by(named_radius)
        .help("3.2.0", "Finds the members within a radius of a position; stores them if so asked.")
        .syntax(RADIUS, COST),
    Command::new("georadius_ro", georadius_ro, -6, flags::READONLY, Group::Geo)
        .keys(READ)
        .help("3.2.10", "Finds the members within a radius of a position.")
        .syntax(RADIUS_RO, COST),
    Command::new("georadiusbymember", georadiusbymember, -5, STORES | flags::MOVABLEKEYS, Group::Geo)
        .tells(&events::GEORADIUSSTORE)
        .keys(BY_MEMBER_KEYS)
        .named_by(named_by_member)
        .help("3.2.0", "Finds the members within a radius of a member; stores them if so asked.")
        .syntax(BY_MEMBER, COST),
    Command::new("georadiusbymember_ro", georadiusbymember_ro, -5, flags::READONLY, Group::Geo)
        .keys(READ)
        .help("3.2.10", "Finds the members within a radius of a member.")
        .syntax(BY_MEMBER_RO, COST),
    Command::new("geosearch", geosearch, -7, flags::READONLY, Group::Geo)
        .keys(READ)
        .help("6.2.0", "Finds the members within a circle, a box or a polygon.")
        .syntax(SEARCH, COST),
    Command::new("geosearchstore", geosearchstore, -8, STORES, Group::Geo)
        .tells(&events::GEOSEARCHSTORE)
        .keys(&[KeySpec::one(1, key::OW | key::UPDATE), KeySpec::one(2, key::RO | key::ACCESS)])
        .help("6.2.0", "Stores the members within a circle, a box or a polygon.")
        .syntax(SEARCH_STORE, COST),
];
