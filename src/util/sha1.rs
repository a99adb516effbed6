//! The SHA-1 by which scripts are known.

use sha1::{Digest as _, Sha1};

/// The SHA-1 of a text, as 40 hexadecimal digits in lower case.
pub fn sha1_hex(text: &[u8]) -> [u8; 40] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut hex = [0; 40];
    for (pair, byte) in hex.chunks_exact_mut(2).zip(Sha1::digest(text)) {
        (pair[0], pair[1]) = (DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]);
    }
    hex
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_redis_has_it() {
        assert_eq!(&sha1_hex(b"return 1"), b"e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
    }
}
