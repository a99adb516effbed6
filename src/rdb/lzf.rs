//! LZF, the compression of long strings in RDB; reading only.
//!
//! | control byte | then | means |
//! |---|---|---|
//! | `000nnnnn` | n+1 bytes | these bytes |
//! | `lllooooo`, l in 1…6 | `o:1` | l+2 bytes again, from offset+1 bytes back (13 bits, high ones in the control byte) |
//! | `111ooooo` | `l:1` `o:1` | l+9 bytes again |
//!
//! Invariant: three bytes give 264 at most, so an output longer than 88 times the input is refused unseen.

use super::RdbError;

const CORRUPT: RdbError = RdbError::Corrupt("compressed string");

/// The most that a byte of input can become.
const EXPANSION_MAX: usize = 88;

/// Refuses a length that no `input` like this can give.
pub(super) const fn check(input: &[u8], len: usize) -> Result<(), RdbError> {
    if len > input.len().saturating_mul(EXPANSION_MAX) { Err(CORRUPT) } else { Ok(()) }
}

/// What comes back from further behind than this never comes again.
pub(super) const WINDOW: usize = 1 << 13;

/// How many bytes stand behind a control byte.
pub(super) const fn behind(control: u8) -> usize {
    match control >> 5 {
        0 => control as usize + 1,
        7 => 2,
        _ => 1,
    }
}

/// Appends what a control byte and the bytes behind it stand for; of what was decompressed before the last [`WINDOW`] bytes
/// have to be there.
pub(super) fn step(control: u8, rest: &[u8], out: &mut Vec<u8>) -> Result<(), RdbError> {
    let control = usize::from(control);
    if control < 32 {
        out.extend_from_slice(rest);
        return Ok(());
    }
    let (copied_len, offset_low) = match (control >> 5, rest) {
        (7, [more, low]) => (usize::from(*more) + 9, *low),
        (short @ 1..7, [low]) => (short + 2, *low),
        _ => return Err(CORRUPT),
    };
    let back = ((control & 0x1f) << 8 | usize::from(offset_low)) + 1;
    let from = out.len().checked_sub(back).ok_or(CORRUPT)?;
    repeat(out, from, copied_len);
    Ok(())
}

/// Decompresses `input`, which must give `len` bytes exactly.
pub(super) fn decompress(input: &[u8], len: usize) -> Result<Vec<u8>, RdbError> {
    check(input, len)?;
    let mut out = Vec::with_capacity(len);
    let mut input = input;
    while let [control, rest @ ..] = input {
        let (these, rest) = rest.split_at_checked(behind(*control)).ok_or(CORRUPT)?;
        step(*control, these, &mut out)?;
        input = rest;
        if out.len() > len {
            return Err(CORRUPT);
        }
    }
    if out.len() == len { Ok(out) } else { Err(CORRUPT) }
}

/// Appends `len` bytes that begin at `from`, some of which may be among those that it appends.
fn repeat(out: &mut Vec<u8>, from: usize, len: usize) {
    let mut missing = len;
    while missing > 0 {
        let step = missing.min(out.len() - from);
        out.extend_from_within(from..from + step);
        missing -= step;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_and_references() {
        assert_eq!(decompress(b"\x02abc", 3), Ok(b"abc".to_vec()));
        // One byte, then seven copies of what was just written.
        assert_eq!(decompress(b"\x00a\xa0\x00", 8), Ok(b"aaaaaaaa".to_vec()));
        assert_eq!(decompress(b"\x01ab\xe0\x01\x01", 12), Ok(b"abababababab".to_vec()));
        assert_eq!(decompress(b"", 0), Ok(Vec::new()));
    }

    #[test]
    fn long_offset() {
        let mut input = Vec::new();
        for chunk in 0..10u8 {
            input.push(31);
            input.extend_from_slice(&[chunk; 32]);
        }
        input.extend_from_slice(&[1 << 5 | 1, 63]);
        let out = decompress(&input, 323).unwrap_or_default();
        assert_eq!(out.get(320..), Some(&[0, 0, 0][..]));
    }

    #[test]
    fn damage_is_refused() {
        let cases: [(&[u8], usize); 8] = [
            (b"\x02ab", 3),
            (b"\x02abc", 2),
            (b"\x02abc", 4),
            (b"\x00a\xa0", 8),
            (b"\x00a\xa0\x01", 8),
            (b"\x00a\xe0\x00", 10),
            (b"\x00a", usize::MAX),
            (b"", 1),
        ];
        for (input, len) in cases {
            assert_eq!(decompress(input, len), Err(CORRUPT), "{input:?}");
        }
    }
}
