//! The records of a member.

use smallvec::SmallVec;

use crate::codec::{CodecError, Score, element};
use crate::handler::{Ctx, Error, Found, Reply, Result};
use crate::shard::memory::core::storage;
use crate::shard::memory::object::{Kind, Object};
use crate::shard::txn::Txn;

/// The bytes of an element's key; most fit without an allocation.
pub type Key = SmallVec<[u8; 64]>;

pub use crate::codec::element::ZSET_INDEX as INDEX;

/// Forms that OBJECT ENCODING tells apart.
pub mod form {
    /// Few and short members, ever since the key was made.
    pub const LISTPACK: u8 = 0;
    /// Everything else.
    pub const SKIPLIST: u8 = 1;
}

/// What a sum of infinities of both signs is answered with.
pub const NOT_A_NUMBER: Error = Error::err("ERR resulting score is not a number (NaN)");

/// The name that OBJECT ENCODING has for a sorted set.
pub fn encoding(object: &Object) -> &'static str {
    match &object.body {
        Some(body) if body.form == form::LISTPACK => "listpack",
        _ => "skiplist",
    }
}

/// The key of a member's score.
#[inline]
pub fn score_key(encoding: u8, member: &[u8]) -> Key {
    let mut key = Key::new();
    element::zset_score_of(encoding, member, &mut key);
    key
}

/// The key that sorts a member by its score.
#[inline]
pub fn sort_key(score: Score, member: &[u8]) -> Key {
    let mut key = Key::new();
    element::zset_sort(score, member, &mut key);
    key
}

/// The value of a member's score record, handed to `put`.
#[inline]
pub fn with_score<R>(encoding: u8, member: &[u8], score: Score, put: impl FnOnce(&[u8]) -> R) -> R {
    let bytes = score.to_bytes();
    if element::zset_is_digested(encoding, member) { put(&bytes) } else { put(&element::with_text(member, &bytes)) }
}

/// The score in a record of the score group.
#[inline]
pub fn read_score(key: &[u8], value: &[u8]) -> Result<Score> {
    let (_, score) = element::split_text(key.get(1..).unwrap_or_default(), value)?;
    Ok(Score::from_bytes(score.try_into().map_err(|_| CodecError::Truncated)?)?)
}

/// Score and member in a record of the sort group.
#[inline]
pub fn read_sort<'a>(key: &'a [u8], value: &'a [u8]) -> Result<(Score, &'a [u8])> {
    let (&[_, score @ ..], stored) = key.split_first_chunk::<9>().ok_or(CodecError::Truncated)?;
    let (member, _) = element::split_text(stored, value)?;
    Ok((Score::from_bytes(score)?, member))
}

/// The score of a member.
#[inline]
pub fn score(txn: &mut Txn<'_, '_>, at: Found, member: &[u8]) -> Result<Option<Score>> {
    let key = score_key(txn.body(at).encoding, member);
    txn.element(at, &key)?.map(|value| read_score(&key, value)).transpose()
}

/// The score of a member, read without taking it into memory: iterators over other keys may be alive.
pub fn peek_score(txn: &Txn<'_, '_>, at: Found, member: &[u8]) -> Result<Option<Score>> {
    use std::ops::Bound::Included;
    let key = score_key(txn.body(at).encoding, member);
    let record = txn.elements(at, Included(&key), Included(&key), false)?.next().transpose()?;
    record.map(|(key, value)| read_score(&key, &value)).transpose()
}

/// When a member takes the score it is given.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rule {
    /// Only if it is not there.
    pub nx: bool,
    /// Only if it is there.
    pub xx: bool,
    /// Only if its score grows; does not keep a new one from coming.
    pub gt: bool,
    /// Only if its score falls; does not keep a new one from coming.
    pub lt: bool,
    /// The number is added to the score it has.
    pub incr: bool,
}

impl Rule {
    /// Whether a member that is there keeps its score rather than take this one.
    fn keeps(self, old: Score, new: Score) -> bool {
        self.nx || (self.gt && new <= old) || (self.lt && new >= old)
    }
}

/// What became of a member; with the score it now has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Put {
    /// The rule kept it as it was.
    Kept,
    /// It was not there.
    Added(Score),
    /// It had another score.
    Changed(Score),
    /// It had this score.
    Same(Score),
}

/// Gives a member a score if the rule lets it. The size is the caller's to change: see [`grown`].
///
/// # Errors
/// [`NOT_A_NUMBER`], besides failed reads.
pub fn put(txn: &mut Txn<'_, '_>, at: Found, member: &[u8], number: f64, rule: Rule) -> Result<Put> {
    let encoding = txn.body(at).encoding;
    let key = score_key(encoding, member);
    let mut number = number;
    if rule.incr || rule.xx {
        match txn.element(at, &key)? {
            None if rule.xx => return Ok(Put::Kept),
            Some(_) if rule.nx => return Ok(Put::Kept),
            Some(value) if rule.incr => number += read_score(&key, value)?.get(),
            _ => {}
        }
    }
    let score = Score::new(number).map_err(|_| NOT_A_NUMBER)?;
    // One search for both: what was there, and the new score in its place.
    let mut old = None;
    let moves = |value: &[u8]| {
        let was = read_score(&key, value);
        let moves = was.as_ref().is_ok_and(|was| *was != score && !rule.keeps(*was, score));
        old = Some(was);
        moves
    };
    with_score(encoding, member, score, |value| txn.put_element_if(at, &key, value, moves))?;
    let old = old.transpose()?;
    match old {
        Some(old) if rule.keeps(old, score) => return Ok(Put::Kept),
        Some(old) if old == score => return Ok(Put::Same(score)),
        Some(old) => unsort(txn, at, old, member)?,
        None => {}
    }
    txn.put_new(at, &sort_key(score, member), &element::with_text(member, b""))?;
    Ok(if old.is_some() { Put::Changed(score) } else { Put::Added(score) })
}

/// Removes the record that sorts a member by the score it has. There is one for each score and for nothing else, so that
/// it is not looked for in the store.
fn unsort(txn: &mut Txn<'_, '_>, at: Found, score: Score, member: &[u8]) -> Result {
    txn.remove_known(at, &sort_key(score, member), &element::with_text(member, b""))
}

/// Removes a member that is known to have this score. The size is the caller's to change.
pub fn take_scored(txn: &mut Txn<'_, '_>, at: Found, score: Score, member: &[u8]) -> Result {
    let encoding = txn.body(at).encoding;
    with_score(encoding, member, score, |value| txn.remove_known(at, &score_key(encoding, member), value))?;
    unsort(txn, at, score, member)
}

/// Removes a member; whether it was there. The size is the caller's to change.
pub fn take(txn: &mut Txn<'_, '_>, at: Found, member: &[u8]) -> Result<bool> {
    let key = score_key(txn.body(at).encoding, member);
    let Some(score) = txn.element(at, &key)?.map(|value| read_score(&key, value)).transpose()? else {
        return Ok(false);
    };
    txn.remove_element(at, &key)?;
    unsort(txn, at, score, member)?;
    Ok(true)
}

/// A sorted set to add to, made if it is not there. `members` are about to be given, the first of `len` bytes: Redis judges
/// by that whether it begins as a listpack.
pub fn open(ctx: &mut Ctx, key: &[u8], found: Option<Found>, members: usize, len: usize) -> Result<Found> {
    if let Some(at) = found {
        if ctx.body(at).form == form::LISTPACK
            && members > 1
            && members > ctx.settings().encodings.zset_max_listpack_entries
        {
            ctx.txn.set_form(at, form::SKIPLIST);
        }
        return Ok(at);
    }
    let ns = ctx.ns();
    let encoding = ctx.settings().zset_encode_version;
    let at = ctx.txn.create(ns, key, Kind::Zset, encoding)?;
    let form = form_of(ctx, members as u64, len);
    ctx.txn.set_form(at, form);
    Ok(at)
}

/// What became of members that were put.
pub struct Puts {
    /// Members that came.
    pub added: u64,
    /// Members whose score changed.
    pub changed: u64,
    /// What became of the last one.
    pub last: Put,
}

/// Gives members their scores by the rule, in the sorted set of a key, which is made if it is not there; `None` if it is
/// not and the rule makes none. `first` is the first member.
pub fn put_all<'m>(
    ctx: &mut Ctx,
    key: &[u8],
    rule: Rule,
    first: &[u8],
    members: impl ExactSizeIterator<Item = (&'m [u8], f64)>,
) -> Result<Option<Puts>> {
    let found = ctx.lookup_kind(key, Kind::Zset)?;
    if found.is_none() && rule.xx {
        return Ok(None);
    }
    let at = open(ctx, key, found, members.len(), first.len())?;
    let (mut puts, mut longest) = (Puts { added: 0, changed: 0, last: Put::Kept }, 0);
    for (member, number) in members {
        puts.last = put(&mut ctx.txn, at, member, number, rule)?;
        match puts.last {
            Put::Added(_) => {
                puts.added += 1;
                longest = longest.max(member.len());
            }
            Put::Changed(_) => puts.changed += 1,
            Put::Kept | Put::Same(_) => {}
        }
    }
    grown(ctx, at, puts.added, longest);
    Ok(Some(puts))
}

/// Counts members that came, the longest of so many bytes.
pub fn grown(ctx: &mut Ctx, at: Found, added: u64, longest: usize) {
    if added == 0 {
        return;
    }
    ctx.txn.add_size(at, added as i64);
    if ctx.body(at).form == form::LISTPACK {
        let form = form_of(ctx, ctx.size(at), longest);
        ctx.txn.set_form(at, form);
    }
}

/// The form of a sorted set of this size, whose longest member has so many bytes.
pub fn form_of(ctx: &mut Ctx, size: u64, longest: usize) -> u8 {
    let limits = &ctx.settings().encodings;
    let fits = size <= limits.zset_max_listpack_entries as u64 && longest <= limits.zset_max_listpack_value;
    if fits { form::LISTPACK } else { form::SKIPLIST }
}

/// Counts members that went; a sorted set left empty goes too.
pub fn shrunk(ctx: &mut Ctx, at: Found, removed: u64) {
    if removed > 0 {
        ctx.txn.add_size(at, -(removed as i64));
        ctx.txn.remove_if_empty(at);
    }
}

/// What the store has is not what the metadata says.
#[cold]
pub fn wrong_size(ctx: &Ctx, at: Found) -> Error {
    storage(ctx.object(at).key(), "the size of the sorted set is not the number of its members")
}

/// Replies with a member and, if asked for, its score: a pair of its own in RESP3.
#[inline]
pub fn reply_member(out: &mut Reply, member: &[u8], score: Score, with_score: bool) {
    if with_score && out.proto() == 3 {
        out.array(2);
    }
    out.bulk(member);
    if with_score {
        out.double(score.get());
    }
}

/// The header of `members` answers of [`reply_member`].
pub fn reply_header(out: &mut Reply, members: usize, with_score: bool) {
    out.array(if with_score && out.proto() == 2 { 2 * members } else { members });
}
