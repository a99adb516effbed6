//! Scalars whose bytes compare like their values.
//!
//! | scalar | bytes |
//! |---|---|
//! | score | 8: IEEE double, big-endian, sign bit flipped when positive, all bits when negative; −0 is 0; never NaN |
//! | list index | 8: big-endian, sign bit flipped: 0 is the middle of the range, indexes grow both ways |
//! | stream id | 16: milliseconds, sequence number, both big-endian |
//! | chunk number | 4: big-endian |

use super::CodecError;
use std::cmp::Ordering;

const SIGN: u64 = 1 << 63;

/// A sorted set's score: any double but NaN, with −0 made 0, so that equal scores have equal bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Score(f64);

impl Score {
    /// Refuses NaN.
    pub fn new(score: f64) -> Result<Score, CodecError> {
        if score.is_nan() {
            return Err(CodecError::NotANumber);
        }
        // −0 + 0 is 0; every other number stays.
        Ok(Score(score + 0.0))
    }

    /// The number.
    pub const fn get(self) -> f64 {
        self.0
    }

    /// Eight bytes that sort like the number.
    pub const fn to_bytes(self) -> [u8; 8] {
        let bits = self.0.to_bits();
        let ordered = if bits & SIGN == 0 { bits ^ SIGN } else { !bits };
        ordered.to_be_bytes()
    }

    /// Refuses the bytes of NaN and of −0, which are never written.
    pub fn from_bytes(bytes: [u8; 8]) -> Result<Score, CodecError> {
        let ordered = u64::from_be_bytes(bytes);
        let bits = if ordered & SIGN == 0 { !ordered } else { ordered ^ SIGN };
        if bits == SIGN {
            return Err(CodecError::NotANumber);
        }
        Score::new(f64::from_bits(bits))
    }
}

impl Eq for Score {}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Score {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// Eight bytes that sort like the index.
pub const fn index_to_bytes(index: i64) -> [u8; 8] {
    (index as u64 ^ SIGN).to_be_bytes()
}

/// The index of its bytes.
pub const fn index_from_bytes(bytes: [u8; 8]) -> i64 {
    (u64::from_be_bytes(bytes) ^ SIGN) as i64
}

/// Id of a stream entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct StreamId {
    /// Unix time, milliseconds.
    pub ms: u64,
    /// Number among the entries of that millisecond.
    pub seq: u64,
}

impl StreamId {
    /// Sixteen bytes that sort like the id.
    pub const fn to_bytes(self) -> [u8; 16] {
        ((self.ms as u128) << 64 | self.seq as u128).to_be_bytes()
    }

    /// The id of its bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> StreamId {
        let id = u128::from_be_bytes(bytes);
        StreamId { ms: (id >> 64) as u64, seq: id as u64 }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn score(value: f64) -> [u8; 8] {
        Score::new(value).unwrap().to_bytes()
    }

    #[test]
    fn score_bytes_are_pinned() {
        assert_eq!(score(0.0), [0x80, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(score(-0.0), score(0.0));
        assert_eq!(score(1.0), [0xbf, 0xf0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(score(-1.0), [0x40, 0x0f, 255, 255, 255, 255, 255, 255]);
        assert_eq!(score(f64::INFINITY), [0xff, 0xf0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(score(f64::NEG_INFINITY), [0x00, 0x0f, 255, 255, 255, 255, 255, 255]);
    }

    #[test]
    fn nan_and_minus_zero_are_refused() {
        assert_eq!(Score::new(f64::NAN), Err(CodecError::NotANumber));
        assert_eq!(Score::from_bytes([0x7f, 255, 255, 255, 255, 255, 255, 255]), Err(CodecError::NotANumber));
        assert_eq!(Score::from_bytes([0xff; 8]), Err(CodecError::NotANumber));
        assert_eq!(Score::from_bytes([0; 8]), Err(CodecError::NotANumber));
    }

    #[test]
    fn index_and_id_bytes_are_pinned() {
        assert_eq!(index_to_bytes(0), [0x80, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(index_to_bytes(-1), [0x7f, 255, 255, 255, 255, 255, 255, 255]);
        assert_eq!(index_to_bytes(i64::MIN), [0; 8]);
        assert_eq!(StreamId { ms: 1, seq: 2 }.to_bytes(), [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2]);
    }

    /// Doubles with the special ones often among them.
    fn doubles() -> impl Strategy<Value = f64> {
        let special = [0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::MIN, f64::MAX, f64::MIN_POSITIVE, 5e-324, 1.0];
        prop_oneof![
            any::<u64>().prop_map(f64::from_bits).prop_filter("NaN", |value| !value.is_nan()),
            (-1000i32..1000).prop_map(|value| f64::from(value) / 8.0),
            prop::sample::select(special.to_vec()),
        ]
    }

    proptest! {
        #[test]
        fn scores_sort_and_return(a in doubles(), b in doubles()) {
            prop_assert_eq!(a.partial_cmp(&b).unwrap(), score(a).cmp(&score(b)));
            prop_assert_eq!(Score::new(a).unwrap().cmp(&Score::new(b).unwrap()), a.partial_cmp(&b).unwrap());
            prop_assert_eq!(Score::from_bytes(score(a)).unwrap().get(), a);
        }

        #[test]
        fn any_bytes_that_decode_return(bytes: [u8; 8]) {
            if let Ok(score) = Score::from_bytes(bytes) {
                prop_assert_eq!(score.to_bytes(), bytes);
            }
        }

        #[test]
        fn indexes_and_ids_sort_and_return(a: i64, b: i64, c: (u64, u64), d: (u64, u64)) {
            prop_assert_eq!(a.cmp(&b), index_to_bytes(a).cmp(&index_to_bytes(b)));
            prop_assert_eq!(index_from_bytes(index_to_bytes(a)), a);
            let (c, d) = (StreamId { ms: c.0, seq: c.1 }, StreamId { ms: d.0, seq: d.1 });
            prop_assert_eq!(c.cmp(&d), c.to_bytes().cmp(&d.to_bytes()));
            prop_assert_eq!(StreamId::from_bytes(c.to_bytes()), c);
        }
    }
}
