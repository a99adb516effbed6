//! Members with positions: GEOADD, GEODIST, GEOHASH, GEOPOS.

use super::distance::{Printed, Unit, metres};
use super::hash::{Position, text};
use super::options::{read_position, read_unit};
use crate::handler::{Args, Command, Ctx, Error, Found, Group, KeySpec, Reply, Result, events, flags, key};
use crate::shard::memory::object::Kind;
use crate::types::zset::value::{Rule, put_all, score};

fn geoadd(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let (mut rule, mut ch) = (Rule::default(), false);
    let mut words = args.cursor(2);
    loop {
        if words.next_is(b"NX") {
            rule.nx = true;
        } else if words.next_is(b"XX") {
            rule.xx = true;
        } else if words.next_is(b"CH") {
            ch = true;
        } else {
            break;
        }
    }
    if words.is_empty() || !words.remaining().is_multiple_of(3) || (rule.nx && rule.xx) {
        return Err(Error::Syntax);
    }
    let mut members = Vec::with_capacity(words.remaining() / 3);
    while !words.is_empty() {
        let position = read_position(&mut words)?;
        members.push((position.score(), words.arg()?));
    }
    let first = members[0].1;
    let members = members.iter().map(|&(score, member)| (member, score));
    let puts = put_all(ctx, &args[1], rule, first, members)?;
    out.int(puts.map_or(0, |puts| puts.added + if ch { puts.changed } else { 0 }) as i64);
    Ok(())
}

/// Where a member is.
fn position(ctx: &mut Ctx, at: Found, member: &[u8]) -> Result<Option<Position>> {
    Ok(score(&mut ctx.txn, at, member)?.map(|score| Position::from_score(score.get())))
}

fn geodist(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    let unit = match args.len() {
        4 => Unit::default(),
        5 => read_unit(&args[4])?,
        _ => return Err(Error::Syntax),
    };
    let ends = match ctx.lookup_kind(&args[1], Kind::Zset)? {
        Some(at) => position(ctx, at, &args[2])?.zip(position(ctx, at, &args[3])?),
        None => None,
    };
    match ends {
        Some((from, to)) => reply_distance(metres(from, to), unit, out),
        None => out.nil(),
    }
    Ok(())
}

/// Replies with a distance: in either protocol a string.
pub(super) fn reply_distance(distance_m: f64, unit: Unit, out: &mut Reply) {
    out.bulk(Printed(distance_m / unit.metres()).to_string().as_bytes());
}

/// Replies with a position: longitude and latitude.
pub(super) fn reply_position(position: Position, out: &mut Reply) {
    out.array(2);
    out.double(position.longitude);
    out.double(position.latitude);
}

fn geohash(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    each_member(ctx, args, out, |score, out| match score {
        Some(score) => out.bulk(&text(score)),
        None => out.nil(),
    })
}

fn geopos(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply) -> Result {
    each_member(ctx, args, out, |score, out| match score {
        Some(score) => reply_position(Position::from_score(score), out),
        None => out.nil_array(),
    })
}

/// Replies with something about each member that is named, by its score.
fn each_member(ctx: &mut Ctx, args: Args<'_>, out: &mut Reply, reply: fn(Option<f64>, &mut Reply)) -> Result {
    let at = ctx.lookup_kind(&args[1], Kind::Zset)?;
    let members = args.slice(2);
    out.array(members.len());
    for member in members.iter() {
        let score = match at {
            Some(at) => score(&mut ctx.txn, at, member)?,
            None => None,
        };
        reply(score.map(|score| score.get()), out);
    }
    Ok(())
}

const READ: &[KeySpec] = &[KeySpec::one(1, key::RO | key::ACCESS)];

/// The rows of this file.
pub const COMMANDS: &[Command] = &[
    Command::new("geoadd", geoadd, -5, flags::WRITE | flags::DENYOOM, Group::Geo)
        .tells(&events::ZADD)
        .keys(&[KeySpec::one(1, key::RW | key::UPDATE)])
        .help("3.2.0", "Gives members of a sorted set their positions; adds those that are not there.")
        .syntax(
            "key [NX | XX] [CH] longitude latitude member [longitude latitude member ...]",
            "O(log(N)) for each member, where N is the size of the sorted set.",
        ),
    Command::new("geodist", geodist, -4, flags::READONLY, Group::Geo)
        .keys(READ)
        .help("3.2.0", "Returns the distance between two members.")
        .syntax("key member1 member2 [M | KM | FT | MI]", "O(1)"),
    Command::new("geohash", geohash, -2, flags::READONLY, Group::Geo)
        .keys(READ)
        .help("3.2.0", "Returns the geohashes of members as text.")
        .syntax("key [member [member ...]]", "O(N) where N is the number of members named."),
    Command::new("geopos", geopos, -2, flags::READONLY, Group::Geo)
        .keys(READ)
        .help("3.2.0", "Returns the longitudes and latitudes of members.")
        .syntax("key [member [member ...]]", "O(N) where N is the number of members named."),
];
