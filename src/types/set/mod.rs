//! Sets: one record per member, in the order of the members' bytes.
//!
//! | file | owns |
//! |---|---|
//! | this one | what the commands share: look-up, creation, removal, cardinality |
//! | [`form`] | what OBJECT ENCODING says |
//! | [`member`] | SADD, SREM, SISMEMBER, SMISMEMBER, SMEMBERS, SCARD, SMOVE, SSCAN |
//! | [`pick`] | SPOP, SRANDMEMBER |
//! | [`combine`] | union, intersection and difference of elements, as streams |
//! | [`algebra`] | SINTER, SUNION, SDIFF, their STORE and CARD forms |
//!
//! | element | value |
//! |---|---|
//! | set member, `member text` | –; of a long member, its text |
//!
//! | encode-version | `size` | SADD | SCARD |
//! |---|---|---|---|
//! | 0 exact | members | reads before it writes, answers how many are new | the size |
//! | 1 blind | says nothing | writes, answers how many it was given | counts |
//!
//! Invariants: a set without members does not exist; an exact set's size is the number of its members; the encode-version
//! of a set never changes.

pub mod algebra;
pub mod combine;
pub mod form;
pub mod member;
pub mod pick;

pub use form::encoding;

use smallvec::SmallVec;

use crate::codec::element::{Group, set_member, split_text, with_text};
use crate::handler::limits::may_touch;
use crate::handler::{Ctx, Found, Result};
use crate::shard::memory::core::unreadable;
use crate::shard::memory::object::{Body, Kind};

/// Encode-version of sets that are written without a read.
const BLIND: u8 = 1;

/// A member's element, without an allocation where it is short.
type Key = SmallVec<[u8; 64]>;

fn key_of(member: &[u8]) -> Key {
    let mut key = Key::new();
    set_member(member, &mut key);
    key
}

/// The member whose element and value these are; a sorted set's that has its score as well.
#[inline]
pub(super) fn text<'a>(element: &'a [u8], value: &'a [u8]) -> Result<&'a [u8]> {
    split_text(element.get(1..).unwrap_or_default(), value).map(|(text, _)| text).map_err(unreadable)
}

fn is_blind(ctx: &Ctx, at: Found) -> bool {
    ctx.body(at).encoding == BLIND
}

/// Has a command that goes through a set run where it holds nobody up. Nobody knows how many members a blind set has,
/// unless they are all in memory.
fn may_walk(ctx: &Ctx, at: Found) -> Result {
    let body = ctx.body(at);
    match (body.encoding, body.overlay.complete) {
        (BLIND, false) => may_touch(u64::MAX),
        (BLIND, true) => may_touch(body.overlay.sums().live),
        _ => may_touch(body.size),
    }
}

/// Number of members; of a blind set they are counted.
pub fn cardinality(ctx: &Ctx, at: Found) -> Result<u64> {
    if !is_blind(ctx, at) {
        return Ok(ctx.size(at));
    }
    if !ctx.body(at).overlay.complete {
        may_walk(ctx, at)?;
    }
    ctx.rank(at, Group::SetMember, &[Group::SetMember.tag() + 1])
}

fn contains(ctx: &mut Ctx, at: Found, member: &[u8]) -> Result<bool> {
    Ok(ctx.element(at, &key_of(member))?.is_some())
}

/// Makes a key hold an empty set that is about to get members: so many at most, this one first.
fn create(ctx: &mut Ctx, key: &[u8], first: &[u8], hint: usize) -> Result<Found> {
    let settings = ctx.settings();
    let encoding = settings.set_encode_version;
    let form = if encoding == BLIND { form::HASHTABLE } else { form::initial(first, hint, &settings.encodings) };
    let ns = ctx.ns();
    ctx.txn.put_body(ns, key, Kind::Set, Body { encoding, form, ..Body::new() }, 0)
}

/// Adds members to a set; how many are new, or of a blind set how many there are.
fn insert<'m>(ctx: &mut Ctx, at: Found, members: impl ExactSizeIterator<Item = &'m [u8]>) -> Result<usize> {
    let given = members.len();
    let body = ctx.body(at);
    let (size, before) = (body.size, body.form);
    let blind = body.encoding == BLIND;
    let mut form = before;
    let limits = ctx.settings().encodings;
    if !blind {
        form = form::hinted(before, given, &limits);
    }
    let mut added = 0;
    for member in members {
        let (key, value) = (key_of(member), with_text(member, b""));
        if blind {
            ctx.txn.put_element_blind(at, &key, &value);
        } else if !ctx.txn.add_element(at, &key, &value)? {
            form = form::grown(form, size + added, member, &limits);
            added += 1;
        }
    }
    if blind {
        return Ok(given);
    }
    ctx.txn.add_size(at, added as i64);
    ctx.txn.set_form(at, form);
    Ok(added as usize)
}

/// Removes the set if it has no members left; whether it did.
fn remove_if_empty(ctx: &mut Ctx, at: Found) -> Result<bool> {
    if !is_blind(ctx, at) {
        return Ok(ctx.txn.remove_if_empty(at));
    }
    let empty = ctx.group(at, Group::SetMember)?.next().transpose()?.is_none();
    if empty {
        ctx.txn.delete_found(at);
    }
    Ok(empty)
}
