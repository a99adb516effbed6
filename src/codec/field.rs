//! Hashes whose fields may expire: the value of a field, and what the metadata knows of the fields' times.
//!
//! | mode | a field's value proper |
//! |---|---|
//! | none ([`Extra::None`]) | `value` |
//! | 1 ([`Extra::Hash`]) | `expire_ms:8` (little-endian, 0: none) `value` |
//!
//! [`FieldTimes`] is kept up by whoever adds or removes a field. Invariants, with `size` physical fields, expired ones
//! included: `persist ≤ size`; no field expires → `lower = upper = indexed = 0`; otherwise every time lies between `lower`
//! and `upper`, which may be too wide; and `indexed` is never 0, and never behind `upper` where all fields expire.

use super::cursor::Cursor;
use super::element::split_text;
use super::{Buf, CodecError, Extra};

/// Mode byte of a hash whose fields carry times.
const EXPIRING: u8 = 1;

/// What the metadata knows of the times of a hash's fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FieldTimes {
    /// Fields without a time.
    pub persist: u64,
    /// No field expires before, ms.
    pub lower: u64,
    /// No field expires after, ms.
    pub upper: u64,
    /// When the sweep looks at the hash next, ms: what the expiry index holds.
    pub indexed: u64,
}

impl FieldTimes {
    /// What metadata says; `None` for a hash whose fields carry no times.
    #[inline]
    pub const fn of(extra: &Extra) -> Option<Self> {
        match *extra {
            Extra::Hash { mode: EXPIRING, persist, lower, upper, indexed } => {
                Some(FieldTimes { persist, lower, upper, indexed })
            }
            _ => None,
        }
    }

    /// The same as metadata keeps it.
    pub const fn extra(self) -> Extra {
        let FieldTimes { persist, lower, upper, indexed } = self;
        Extra::Hash { mode: EXPIRING, persist, lower, upper, indexed }
    }

    /// The same of a copy: no sweep is at it that would look at it again.
    pub fn of_copy(extra: Extra) -> Extra {
        match FieldTimes::of(&extra) {
            Some(times) => FieldTimes { indexed: times.lower, ..times }.extra(),
            None => extra,
        }
    }

    /// A field came, or got this time; 0 for none.
    pub fn add(&mut self, expire_ms: u64) {
        if expire_ms == 0 {
            self.persist += 1;
            return;
        }
        let earlier = |time: u64| if time == 0 { expire_ms } else { time.min(expire_ms) };
        self.lower = earlier(self.lower);
        self.indexed = earlier(self.indexed);
        self.upper = self.upper.max(expire_ms);
    }

    /// A field with this time went, or lost it.
    pub fn remove(&mut self, expire_ms: u64) {
        if expire_ms == 0 {
            debug_assert!(self.persist > 0, "a field without a time was counted");
            self.persist = self.persist.saturating_sub(1);
        }
    }

    /// Ends a change after which there are `size` fields.
    pub fn settle(&mut self, size: u64) {
        if self.persist == size {
            (self.lower, self.upper, self.indexed) = (0, 0, 0);
        } else if self.persist == 0 {
            self.indexed = self.indexed.min(self.upper);
        }
    }

    /// Whether all fields have expired.
    #[inline]
    pub const fn are_past(&self, now_ms: u64) -> bool {
        self.persist == 0 && self.upper != 0 && self.upper <= now_ms
    }

    /// Whether none of `size` fields can have expired.
    #[inline]
    pub const fn none_past(&self, size: u64, now_ms: u64) -> bool {
        self.persist == size || now_ms < self.lower
    }
}

impl Extra {
    /// Whether this is a hash whose fields have all expired.
    #[inline]
    pub const fn fields_are_past(&self, now_ms: u64) -> bool {
        match FieldTimes::of(self) {
            Some(times) => times.are_past(now_ms),
            None => false,
        }
    }

    /// When the sweep is to look at a hash's fields, ms; 0 for never.
    #[inline]
    pub const fn fields_due_ms(&self) -> u64 {
        match FieldTimes::of(self) {
            Some(times) => times.indexed,
            None => 0,
        }
    }
}

/// Appends the value proper of a field that carries a time.
#[inline]
pub fn push_timed(expire_ms: u64, value: &[u8], out: &mut impl Buf) {
    out.extend_from_slice(&expire_ms.to_le_bytes());
    out.extend_from_slice(value);
}

/// Splits the value proper of a field that carries a time.
#[inline]
pub fn split_timed(value: &[u8]) -> Result<(u64, &[u8]), CodecError> {
    let mut cursor = Cursor::new(value);
    Ok((cursor.u64_le()?, cursor.rest()))
}

/// A field as it is stored, taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field<'a> {
    /// The field's name.
    pub name: &'a [u8],
    /// Its time, 0 for none.
    pub expire_ms: u64,
    /// Its value.
    pub value: &'a [u8],
}

impl<'a> Field<'a> {
    /// Takes apart what is stored: the stored form of the name, and the value; `timed` in mode 1.
    #[inline]
    pub fn split(stored: &'a [u8], value: &'a [u8], timed: bool) -> Result<Self, CodecError> {
        let (name, value) = split_text(stored, value)?;
        let (expire_ms, value) = if timed { split_timed(value)? } else { (0, value) };
        Ok(Field { name, expire_ms, value })
    }

    /// Whether it is there at `now_ms`.
    #[inline]
    pub const fn is_live(&self, now_ms: u64) -> bool {
        self.expire_ms == 0 || self.expire_ms > now_ms
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::codec::element::with_text;
    use crate::codec::push_stored;
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[test]
    fn a_timed_value_is_pinned() {
        let mut out = Vec::new();
        push_timed(258, b"v", &mut out);
        assert_eq!(out, b"\x02\x01\0\0\0\0\0\0v");
        assert_eq!(split_timed(&out).unwrap(), (258, &b"v"[..]));
        assert_eq!(split_timed(&out[..7]), Err(CodecError::Truncated));
    }

    #[test]
    fn bounds_widen_and_go_with_the_last_time() {
        let mut times = FieldTimes { persist: 1, ..FieldTimes::default() };
        times.add(20);
        times.settle(2);
        times.add(10);
        times.settle(3);
        assert_eq!(times, FieldTimes { persist: 1, lower: 10, upper: 20, indexed: 10 });
        assert!(times.none_past(3, 9) && !times.none_past(3, 10) && !times.are_past(20));
        times.remove(0);
        times.settle(2);
        assert!(!times.are_past(19) && times.are_past(20));
        times.remove(20);
        times.remove(10);
        times.add(0);
        times.settle(1);
        assert_eq!(times, FieldTimes { persist: 1, ..FieldTimes::default() });
        assert!(!times.are_past(u64::MAX) && times.none_past(1, u64::MAX));
        assert_eq!(FieldTimes::of(&times.extra()), Some(times));
        assert_eq!(FieldTimes::of(&Extra::None), None);
    }

    #[test]
    fn the_sweep_comes_by_when_the_last_field_expires() {
        let mut times = FieldTimes { persist: 1, lower: 10, upper: 20, indexed: 50 };
        times.remove(0);
        times.settle(2);
        assert_eq!((times.indexed, times.extra().fields_due_ms()), (20, 20));
    }

    /// Where a sweep has put a hash off, as it is at it, it does not come back to the copy.
    #[test]
    fn a_copy_is_looked_at_in_time() {
        let times = FieldTimes { persist: 1, lower: 10, upper: 20, indexed: 50 };
        assert_eq!(FieldTimes::of_copy(times.extra()), FieldTimes { indexed: 10, ..times }.extra());
        assert_eq!(FieldTimes::of_copy(Extra::None), Extra::None);
    }

    proptest! {
        #[test]
        fn fields_return(name in prop_oneof![vec(any::<u8>(), 0..9), Just(vec![b'x'; 1500])], time: u64, value in vec(any::<u8>(), 0..9)) {
            let (mut stored, mut timed) = (Vec::new(), Vec::new());
            push_stored(&name, &mut stored);
            push_timed(time, &value, &mut timed);
            let field = Field { name: &name, expire_ms: time, value: &value };
            let whole = with_text(&name, &timed);
            prop_assert_eq!(Field::split(&stored, &whole, true).unwrap(), field);
            let plain = Field { expire_ms: 0, ..field };
            let whole = with_text(&name, &value);
            prop_assert_eq!(Field::split(&stored, &whole, false).unwrap(), plain);
        }
    }
}
