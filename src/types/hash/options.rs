//! Words and numbers in front of a list of fields: times, `FIELDS n field …`.

use crate::handler::{Args, Error, Result};
use crate::types::expire_options::Word;
use crate::util::num::parse_i64;

/// Redis 8.2 keeps times of fields in 46 bits.
const MOST_MS: u64 = (1 << 46) - 1;

/// A time of a field as absolute ms; it may be past, even 0. `command` is named in the error.
///
/// # Errors
/// `NotInteger`, one for what is below zero, `InvalidExpire` for what is too far away.
pub fn field_time_ms(text: &[u8], word: Word, now_ms: u64, command: &'static str) -> Result<u64> {
    let time = parse_i64(text).ok_or(Error::NotInteger)?;
    let time = u64::try_from(time).map_err(|_| Error::err("ERR invalid expire time, must be >= 0"))?;
    let base_ms = if word.is_relative() { now_ms } else { 0 };
    let at_ms = time.checked_mul(word.unit_ms()).and_then(|ms| ms.checked_add(base_ms));
    at_ms.filter(|ms| *ms <= MOST_MS).ok_or(Error::InvalidExpire(command))
}

/// What is wrong with a number of fields that is no number, or none above zero.
pub const NOT_POSITIVE: Error = Error::err("ERR Number of fields must be a positive integer");
/// The same for the commands that set times.
pub const NOT_ABOVE_ZERO: Error = Error::err("ERR Parameter `numFields` should be greater than 0");

/// The fields of `FIELDS n field …`, which begins at this argument and ends with the last one.
///
/// # Errors
/// `bad_number`, or as Redis for a word missing and a number that does not agree.
pub fn fields_at(args: Args<'_>, at: usize, bad_number: Error) -> Result<Args<'_>> {
    if !args.get(at).is_some_and(|word| word.eq_ignore_ascii_case(b"FIELDS")) {
        return Err(Error::err("ERR Mandatory argument FIELDS is missing or not at the right position"));
    }
    let number = args.get(at + 1).and_then(parse_i64).filter(|number| *number > 0).ok_or(bad_number)?;
    let fields = args.slice(at + 2);
    if fields.len() as u64 != number.unsigned_abs() {
        return Err(Error::err("ERR The `numfields` parameter must match the number of arguments"));
    }
    Ok(fields)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::handler::OwnedArgs;

    #[test]
    fn times_end_at_46_bits() {
        let time = |text: &str, word| field_time_ms(text.as_bytes(), word, 5000, "hexpire");
        assert_eq!(time("10", Word::Ex), Ok(15_000));
        assert_eq!(time("10", Word::Px), Ok(5010));
        assert_eq!(time("10", Word::ExAt), Ok(10_000));
        assert_eq!(time("0", Word::PxAt), Ok(0));
        assert_eq!(time("70368744177663", Word::PxAt), Ok(MOST_MS));
        for (text, word) in
            [("70368744177664", Word::PxAt), ("70368744172664", Word::Px), ("9223372036854775807", Word::Ex)]
        {
            assert_eq!(time(text, word), Err(Error::InvalidExpire("hexpire")), "{text}");
        }
        assert_eq!(time("1.5", Word::Ex), Err(Error::NotInteger));
        assert!(time("-1", Word::Ex).is_err());
    }

    #[test]
    fn the_number_of_fields_must_agree() {
        let fields = |words: &[&str]| {
            let owned: OwnedArgs = words.iter().map(|word| word.as_bytes()).collect();
            fields_at(owned.as_args(), 0, NOT_POSITIVE).map(|fields| fields.len())
        };
        assert_eq!(fields(&["fields", "2", "a", "b"]).unwrap(), 2);
        assert!(fields(&["foo", "1", "a"]).unwrap_err().text().contains("Mandatory"));
        for number in ["0", "-1", "x", "9223372036854775808"] {
            assert_eq!(fields(&["FIELDS", number, "a"]), Err(NOT_POSITIVE), "{number}");
        }
        assert!(fields(&["FIELDS", "2", "a"]).unwrap_err().text().contains("match"));
    }
}
