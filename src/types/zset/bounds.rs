//! Ends of ranges by score and by member, as clients write them.

use crate::codec::element::Group;
use crate::codec::{MAX_INLINE, Score};
use crate::handler::{Error, Result};
use crate::util::num::parse_bound;

use super::value::Key;

/// A part of the sort group: from `lower` on, below `upper`, whole keys or beginnings of some.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keys {
    /// The first key that may belong to it.
    pub lower: Key,
    /// The first key behind it.
    pub upper: Key,
}

impl Keys {
    /// All of the group.
    pub fn whole() -> Self {
        let tag = Group::ZsetSort.tag();
        Keys { lower: Key::from_slice(&[tag]), upper: Key::from_slice(&[tag + 1]) }
    }

    /// Nothing.
    pub fn nothing() -> Self {
        let whole = Keys::whole();
        Keys { upper: whole.lower.clone(), lower: whole.lower }
    }

    /// The scores from one on, below another.
    pub fn between(min: Score, below: Score) -> Self {
        Keys { lower: beginning(min, false), upper: beginning(below, false) }
    }

    /// Whether no key can lie in it.
    pub fn is_empty(&self) -> bool {
        self.lower >= self.upper
    }

    /// The scores between two ends.
    ///
    /// # Errors
    /// `min or max is not a float`.
    pub fn of_scores(min: &[u8], max: &[u8]) -> Result<Self> {
        let (min, max) = (ScoreEnd::parse(min)?, ScoreEnd::parse(max)?);
        Ok(Keys { lower: beginning(min.score, min.exclusive), upper: beginning(max.score, !max.exclusive) })
    }
}

/// What the keys of a score, or of the next higher one, begin with.
fn beginning(score: Score, behind: bool) -> Key {
    let mut key = Key::from_slice(&[Group::ZsetSort.tag()]);
    // The highest bytes are those of infinity, far below 2⁶⁴.
    let bytes = u64::from_be_bytes(score.to_bytes()) + u64::from(behind);
    key.extend_from_slice(&bytes.to_be_bytes());
    key
}

struct ScoreEnd {
    score: Score,
    exclusive: bool,
}

impl ScoreEnd {
    fn parse(text: &[u8]) -> Result<Self> {
        let (exclusive, number) = match text {
            [b'(', number @ ..] => (true, number),
            number => (false, number),
        };
        let score = parse_bound(number).and_then(|number| Score::new(number).ok());
        let score = score.ok_or(Error::err("ERR min or max is not a float"))?;
        Ok(ScoreEnd { score, exclusive })
    }
}

/// An end of a range of members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LexEnd<'a> {
    /// `-`
    Lowest,
    /// `+`
    Highest,
    /// `[member` or `(member`
    Member { text: &'a [u8], exclusive: bool },
}

impl<'a> LexEnd<'a> {
    fn parse(text: &'a [u8]) -> Result<Self> {
        // Redis reads these as C strings: what follows a zero byte is not seen.
        match text {
            [b'-'] | [b'-', 0, ..] => Ok(LexEnd::Lowest),
            [b'+'] | [b'+', 0, ..] => Ok(LexEnd::Highest),
            [b'[', text @ ..] => Ok(LexEnd::Member { text, exclusive: false }),
            [b'(', text @ ..] => Ok(LexEnd::Member { text, exclusive: true }),
            _ => Err(Error::err("ERR min or max not valid string range item")),
        }
    }

    const fn is_long(self) -> bool {
        matches!(self, LexEnd::Member { text, .. } if text.len() > MAX_INLINE)
    }
}

/// A range of members, all of one score.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lex<'a> {
    min: LexEnd<'a>,
    max: LexEnd<'a>,
}

impl<'a> Lex<'a> {
    /// Reads both ends.
    ///
    /// # Errors
    /// `min or max not valid string range item`.
    pub fn parse(min: &'a [u8], max: &'a [u8]) -> Result<Self> {
        Ok(Lex { min: LexEnd::parse(min)?, max: LexEnd::parse(max)? })
    }

    /// Whether the ends leave room for any member.
    pub fn is_empty(self) -> bool {
        match (self.min, self.max) {
            (LexEnd::Highest, _) | (_, LexEnd::Lowest) => true,
            (LexEnd::Member { text: min, exclusive: a }, LexEnd::Member { text: max, exclusive: b }) => {
                min > max || (min == max && (a || b))
            }
            _ => false,
        }
    }

    /// Whether a member is not below the range.
    pub fn begins_before(self, member: &[u8]) -> bool {
        match self.min {
            LexEnd::Lowest => true,
            LexEnd::Highest => false,
            LexEnd::Member { text, exclusive: true } => member > text,
            LexEnd::Member { text, exclusive: false } => member >= text,
        }
    }

    /// Whether a member is not above the range.
    pub fn ends_behind(self, member: &[u8]) -> bool {
        match self.max {
            LexEnd::Lowest => false,
            LexEnd::Highest => true,
            LexEnd::Member { text, exclusive: true } => member < text,
            LexEnd::Member { text, exclusive: false } => member <= text,
        }
    }

    /// The keys of the range where all members have this score. They are exact unless an end [is long](Lex::is_long).
    pub fn keys(self, score: Score) -> Keys {
        let end = |text: &[u8], behind: bool| {
            let mut key = beginning(score, false);
            if text.len() > MAX_INLINE {
                // Members that begin like this are ordered by digest: they all lie within.
                key.extend_from_slice(&text[..MAX_INLINE]);
                key.extend_from_slice(if behind { &[0xff; 40] } else { &[] });
            } else {
                key.extend_from_slice(text);
                key.extend_from_slice(if behind { &[0] } else { &[] });
            }
            key
        };
        if self.is_empty() {
            return Keys::nothing();
        }
        let lower = match self.min {
            LexEnd::Member { text, exclusive } => end(text, exclusive && text.len() <= MAX_INLINE),
            _ => beginning(score, false),
        };
        let upper = match self.max {
            LexEnd::Member { text, exclusive } => end(text, !exclusive || text.len() > MAX_INLINE),
            _ => beginning(score, true),
        };
        Keys { lower, upper }
    }

    /// Whether an end is so long that members near it are not in the order of their texts.
    pub const fn is_long(self) -> bool {
        self.min.is_long() || self.max.is_long()
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::types::zset::value::sort_key;
    use proptest::prelude::*;

    fn contains(keys: &Keys, score: f64, member: &[u8]) -> bool {
        let key = sort_key(Score::new(score).unwrap(), member);
        keys.lower <= key && key < keys.upper
    }

    #[test]
    fn scores() {
        let inf = f64::INFINITY;
        for (min, max, inside, outside) in [
            ("1", "2", vec![1.0, 1.5, 2.0], vec![0.9, 2.1]),
            ("(1", "(2", vec![1.1, 1.9], vec![1.0, 2.0]),
            ("-inf", "+inf", vec![-inf, 0.0, inf], vec![]),
            ("(-inf", "(inf", vec![f64::MIN, f64::MAX], vec![-inf, inf]),
            ("(-0", "1", vec![5e-324], vec![0.0, -5e-324]),
            ("2", "1", vec![], vec![1.0, 1.5, 2.0]),
        ] {
            let keys = Keys::of_scores(min.as_bytes(), max.as_bytes()).unwrap();
            inside.iter().for_each(|&score| assert!(contains(&keys, score, b"m"), "{score} in {min} {max}"));
            outside.iter().for_each(|&score| assert!(!contains(&keys, score, b"m"), "{score} not in {min} {max}"));
        }
        let keys = Keys::between(Score::new(1.0).unwrap(), Score::new(2.0).unwrap());
        assert!(contains(&keys, 1.0, b"") && contains(&keys, 1.9, b"m") && !contains(&keys, 2.0, b""));
        for bad in ["a", "((1", "nan", "(", "1 "] {
            assert_eq!(Keys::of_scores(bad.as_bytes(), b"1").is_err(), bad != "(", "{bad}");
        }
    }

    #[test]
    fn ends_of_members() {
        for bad in ["", "a", "--", "++", "-a"] {
            assert!(Lex::parse(bad.as_bytes(), b"+").is_err(), "{bad}");
        }
        assert!(Lex::parse(b"-\0a", b"+\0").is_ok());
        for empty in [("+", "-"), ("-", "-"), ("+", "+"), ("[b", "[a"), ("(a", "[a"), ("[a", "(a")] {
            assert!(Lex::parse(empty.0.as_bytes(), empty.1.as_bytes()).unwrap().is_empty(), "{empty:?}");
        }
    }

    fn text() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            4 => prop::collection::vec(prop::sample::select(vec![0u8, b'a', 0xff]), 0..4),
            1 => (MAX_INLINE - 1..MAX_INLINE + 3, 0u8..3).prop_map(|(len, last)| {
                let mut text = vec![b'x'; len];
                text.push(last);
                text
            }),
        ]
    }

    proptest! {
        #[test]
        fn keys_are_exact_or_too_many(min in text(), max in text(), member in text(), ends in 0u8..4) {
            let mark = |exclusive: bool, text: &[u8]| [if exclusive { b"(" } else { b"[" }, text].concat();
            let (min, max) = (mark(ends & 1 != 0, &min), mark(ends & 2 != 0, &max));
            let lex = Lex::parse(&min, &max).unwrap();
            let keys = lex.keys(Score::new(1.0).unwrap());
            let inside = !lex.is_empty() && lex.begins_before(&member) && lex.ends_behind(&member);
            let found = contains(&keys, 1.0, &member);
            prop_assert!(found || !inside);
            prop_assert!(found == inside || lex.is_long());
            prop_assert!(!contains(&keys, 2.0, &member) && !contains(&keys, 0.5, &member));
        }
    }
}
