//! A part of a sorted set: which members, from which end, how many.
//!
//! Whatever a client names (indexes, scores, members) becomes a range of keys of the sort group. Two cases need a look at
//! each member besides: a range of members with an end of more than 1024 bytes, near which members are ordered by digest; and one
//! over members of several scores, which Redis leaves open: Tarn answers as Redis's listpack, which goes through
//! the members as if they were in order.

use std::ops::Bound;

use crate::codec::Score;
use crate::codec::element::Group;
use crate::handler::limits::may_touch;
use crate::handler::{Ctx, Found, Result};
use crate::shard::txn::Txn;
use crate::shard::txn::elements::{Elements, Piece};
use crate::shard::txn::slices::Slices;

use super::bounds::{Keys, Lex};
use super::value::{Key, read_sort};

/// Members passed over one by one rather than by their rank.
const STEPS: u64 = 8;

/// A member and its score.
pub struct Entry<'a> {
    key: Piece<'a>,
    value: Piece<'a>,
}

impl Entry<'_> {
    /// The score, and the whole member.
    ///
    /// # Errors
    /// A corrupt record.
    #[inline]
    pub fn get(&self) -> Result<(Score, &[u8])> {
        read_sort(&self.key, &self.value)
    }

    /// A copy that outlives what it was read from.
    pub fn held(&self) -> Held {
        Held { key: Key::from_slice(&self.key), value: self.value.to_vec() }
    }
}

/// A member and its score, copied.
#[derive(Debug, Clone)]
pub struct Held {
    key: Key,
    /// The text of a long member, else empty.
    value: Vec<u8>,
}

impl Held {
    /// The score, and the whole member.
    ///
    /// # Errors
    /// A corrupt record.
    pub fn get(&self) -> Result<(Score, &[u8])> {
        read_sort(&self.key, &self.value)
    }

    /// The key in the sort group.
    pub fn key(&self) -> &Key {
        &self.key
    }
}

/// What is looked at besides the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Check<'a> {
    Nothing,
    /// Each member is in the range or not.
    Each(Lex<'a>),
    /// From the first member in the range to the first one beyond it.
    Run(Lex<'a>),
}

/// Which members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span<'a> {
    /// Where they lie.
    pub keys: Keys,
    check: Check<'a>,
}

impl<'a> Span<'a> {
    /// All members.
    pub fn whole() -> Self {
        Keys::whole().into()
    }

    /// The members of a range by member.
    pub fn of_members(ctx: &Ctx, at: Found, lex: Lex<'a>) -> Result<Self> {
        let (Some(first), Some(last)) = (end(&ctx.txn, at, false)?, end(&ctx.txn, at, true)?) else {
            return Ok(Keys::nothing().into());
        };
        let ((low, first), (high, last)) = (first.get()?, last.get()?);
        if lex.is_empty() {
            return Ok(Keys::nothing().into());
        }
        if low == high {
            let check = if lex.is_long() { Check::Each(lex) } else { Check::Nothing };
            return Ok(Span { keys: lex.keys(low), check });
        }
        if !lex.begins_before(last) || !lex.ends_behind(first) {
            return Ok(Keys::nothing().into());
        }
        Ok(Span { keys: Keys::whole(), check: Check::Run(lex) })
    }

    /// Whether the keys alone say what belongs to it.
    pub fn is_exact(&self) -> bool {
        self.check == Check::Nothing
    }

    /// Number of its members.
    pub fn count(&self, ctx: &Ctx, at: Found) -> Result<u64> {
        if self.keys.is_empty() {
            return Ok(0);
        }
        if self.is_exact() {
            let (from, to) = self.ranks(&ctx.txn, at)?;
            return Ok(to.saturating_sub(from));
        }
        may_touch(ctx.size(at))?;
        self.entries(&ctx.txn, at, false)?.try_fold(0, |count, entry| entry.map(|_| count + 1))
    }

    /// Ranks of its first member and of the first one behind it, if it is exact.
    pub fn ranks(&self, txn: &Txn<'_, '_>, at: Found) -> Result<(u64, u64)> {
        let whole = Keys::whole();
        let rank = |key: &Key| txn.rank(at, Group::ZsetSort, key);
        let from = if self.keys.lower == whole.lower { 0 } else { rank(&self.keys.lower)? };
        let to = if self.keys.upper == whole.upper { txn.size(at) } else { rank(&self.keys.upper)? };
        Ok((from, to))
    }

    /// Its members, from the first to the last or the other way round.
    pub fn entries<'t>(&self, txn: &'t Txn<'_, '_>, at: Found, reverse: bool) -> Result<Entries<'t, 'a>> {
        let gate = Gate { check: self.check, begun: false, reverse };
        if self.keys.is_empty() {
            return Ok(Entries { elements: None, gate });
        }
        let (lower, upper) = (Bound::Included(&self.keys.lower[..]), Bound::Excluded(&self.keys.upper[..]));
        Ok(Entries { elements: Some(txn.elements(at, lower, upper, reverse)?), gate })
    }

    /// The first `most` of its members behind the first `skip`.
    pub fn few_entries<'t>(
        &self,
        txn: &'t mut Txn<'_, '_>,
        at: Found,
        reverse: bool,
        (skip, most): (u64, u64),
    ) -> Result<Entries<'t, 'a>> {
        if !self.is_exact() || self.keys.is_empty() || skip > STEPS {
            return self.entries_from(txn, at, reverse, skip);
        }
        let bounds = (Bound::Included(&self.keys.lower[..]), Bound::Excluded(&self.keys.upper[..]));
        let mut elements = txn.few_elements(at, bounds, reverse, most.saturating_add(skip))?;
        elements.each(skip, |_, _| Ok(()))?;
        Ok(Entries { elements: Some(elements), gate: Gate { check: self.check, begun: false, reverse } })
    }

    /// Its members behind the first `skip`.
    pub fn entries_from<'t>(
        &self,
        txn: &'t Txn<'_, '_>,
        at: Found,
        reverse: bool,
        skip: u64,
    ) -> Result<Entries<'t, 'a>> {
        if skip > STEPS && self.is_exact() && !self.keys.is_empty() {
            return self.without(txn, at, reverse, skip)?.entries(txn, at, reverse);
        }
        let mut entries = self.entries(txn, at, reverse)?;
        for _ in 0..skip {
            if entries.next().transpose()?.is_none() {
                break;
            }
        }
        Ok(entries)
    }

    /// Hands the members behind the first `skip`, `most` at most, to `visit`; how many there were. Rests between slices of many.
    pub fn each(
        &self,
        txn: &mut Txn<'_, '_>,
        at: Found,
        reverse: bool,
        (skip, most): (u64, u64),
        mut visit: impl FnMut(Score, &[u8]) -> Result,
    ) -> Result<u64> {
        if !txn.reads_in_slices() {
            return self.few_entries(txn, at, reverse, (skip, most))?.each(most, visit);
        }
        let mut count = 0;
        self.pass_in_slices(txn, at, reverse, (skip, most), |score, member| {
            visit(score, member)?;
            count += 1;
            Ok(count < most)
        })?;
        Ok(count)
    }

    /// The same, in slices wherever the command runs, until `visit` says that they are enough. It counts them itself: of a span
    /// that is not exact there may be more than `most`.
    pub fn pass_in_slices(
        &self,
        txn: &mut Txn<'_, '_>,
        at: Found,
        reverse: bool,
        (mut skip, most): (u64, u64),
        mut visit: impl FnMut(Score, &[u8]) -> Result<bool>,
    ) -> Result {
        let exact = self.is_exact();
        let shorter = match exact && skip > STEPS && !self.keys.is_empty() {
            true => Some(self.without(txn, at, reverse, std::mem::take(&mut skip))?),
            false => None,
        };
        let keys = shorter.as_ref().map_or(&self.keys, |shorter| &shorter.keys);
        if keys.is_empty() || most == 0 {
            return Ok(());
        }
        let mut gate = Gate { check: self.check, begun: false, reverse };
        let (lower, upper) = (Bound::Included(&keys.lower[..]), Bound::Excluded(&keys.upper[..]));
        let slices = Slices::new(at, lower, upper, reverse);
        let slices = slices.at_most(if exact { most.saturating_add(skip) } else { u64::MAX });
        txn.pass_in_slices(txn.object(at).ns, slices, |(key, value)| {
            let (score, member) = read_sort(&key, &value)?;
            match gate.judge(member) {
                Verdict::Out => return Ok(true),
                Verdict::End => return Ok(false),
                Verdict::In => {}
            }
            if skip > 0 {
                skip -= 1;
                return Ok(true);
            }
            visit(score, member)
        })
    }

    /// What is left of an exact span without its first `skip` members.
    fn without(&self, txn: &Txn<'_, '_>, at: Found, reverse: bool, skip: u64) -> Result<Span<'static>> {
        let (from, to) = self.ranks(txn, at)?;
        if to.saturating_sub(from) <= skip {
            return Ok(Keys::nothing().into());
        }
        let mut keys = self.keys.clone();
        let place = if reverse { to - skip } else { from + skip };
        if let Some((key, _)) = txn.select(at, Group::ZsetSort, place)? {
            let edge = if reverse { &mut keys.upper } else { &mut keys.lower };
            *edge = Key::from_slice(&key);
        }
        Ok(keys.into())
    }

    /// The members from one rank on, below another.
    pub fn of_ranks(txn: &Txn<'_, '_>, at: Found, from: u64, to: u64) -> Result<Span<'static>> {
        let mut keys = Keys::whole();
        let key = |rank| -> Result<Option<Key>> {
            Ok(txn.select(at, Group::ZsetSort, rank)?.map(|(key, _)| Key::from_slice(&key)))
        };
        if from >= to {
            return Ok(Keys::nothing().into());
        }
        if from > 0 {
            let Some(lower) = key(from)? else { return Ok(Keys::nothing().into()) };
            keys.lower = lower;
        }
        if to < txn.size(at)
            && let Some(upper) = key(to)?
        {
            keys.upper = upper;
        }
        Ok(keys.into())
    }
}

impl From<Keys> for Span<'_> {
    fn from(keys: Keys) -> Self {
        Span { keys, check: Check::Nothing }
    }
}

/// The first or the last member.
pub fn end<'t>(txn: &'t Txn<'_, '_>, at: Found, last: bool) -> Result<Option<Entry<'t>>> {
    Span::whole().entries(txn, at, last)?.next().transpose()
}

/// What is said of a member.
enum Verdict {
    In,
    Out,
    /// It is beyond the range, as all that follow.
    End,
}

/// Looks at members in their order.
struct Gate<'a> {
    check: Check<'a>,
    begun: bool,
    reverse: bool,
}

impl Gate<'_> {
    #[inline]
    fn judge(&mut self, member: &[u8]) -> Verdict {
        match self.check {
            Check::Nothing => Verdict::In,
            Check::Each(lex) if lex.begins_before(member) && lex.ends_behind(member) => Verdict::In,
            Check::Each(_) => Verdict::Out,
            Check::Run(lex) => {
                let (entered, left) = match self.reverse {
                    false => (lex.begins_before(member), !lex.ends_behind(member)),
                    true => (lex.ends_behind(member), !lex.begins_before(member)),
                };
                self.begun |= entered;
                match (self.begun, left) {
                    (true, true) => Verdict::End,
                    (true, false) => Verdict::In,
                    (false, _) => Verdict::Out,
                }
            }
        }
    }
}

/// Members in order.
pub struct Entries<'t, 'a> {
    elements: Option<Elements<'t>>,
    gate: Gate<'a>,
}

impl<'t> Entries<'t, '_> {
    /// Visits the next `most` members at most, until `visit` fails; how many there were.
    #[inline]
    pub fn each(&mut self, most: u64, mut visit: impl FnMut(Score, &[u8]) -> Result) -> Result<u64> {
        if let (Check::Nothing, Some(elements)) = (self.gate.check, &mut self.elements) {
            return elements.each(most, |key, value| {
                let (score, member) = read_sort(key, value)?;
                visit(score, member)
            });
        }
        let mut count = 0;
        while count < most
            && let Some(entry) = self.next_checked()?
        {
            let (score, member) = entry.get()?;
            visit(score, member)?;
            count += 1;
        }
        Ok(count)
    }

    /// The next member that passes the check.
    fn next_checked(&mut self) -> Result<Option<Entry<'t>>> {
        loop {
            let Some((key, value)) = self.elements.as_mut().and_then(Iterator::next).transpose()? else {
                return Ok(None);
            };
            let entry = Entry { key, value };
            let (_, member) = entry.get()?;
            match self.gate.judge(member) {
                Verdict::In => return Ok(Some(entry)),
                Verdict::Out => {}
                Verdict::End => {
                    self.elements = None;
                    return Ok(None);
                }
            }
        }
    }
}

impl<'t> Iterator for Entries<'t, '_> {
    type Item = Result<Entry<'t>>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.gate.check == Check::Nothing {
            let next = self.elements.as_mut()?.next()?;
            return Some(next.map(|(key, value)| Entry { key, value }));
        }
        self.next_checked().transpose()
    }
}
