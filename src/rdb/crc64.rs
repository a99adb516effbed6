//! The checksum of RDB: CRC-64 as Jones chose it (polynomial ad93d23594c935a9, both ends reflected, no inversions).

use crc_fast::{CrcAlgorithm, Digest};

/// The checksum of `bytes`.
pub(super) fn checksum(bytes: &[u8]) -> u64 {
    crc_fast::checksum(CrcAlgorithm::Crc64Redis, bytes)
}

/// The checksum of what comes piece by piece.
pub(super) fn begin() -> Digest {
    Digest::new(CrcAlgorithm::Crc64Redis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_value() {
        assert_eq!(checksum(b"123456789"), 0xe9c6_d914_c4b8_d9ca);
        assert_eq!(checksum(b""), 0);
        let mut sum = begin();
        sum.update(b"1234");
        sum.update(b"56789");
        assert_eq!(sum.finalize(), checksum(b"123456789"));
    }

    #[test]
    fn any_length_is_as_bit_by_bit() {
        let polynomial = 0xad93_d235_94c9_35a9_u64.reverse_bits();
        let bit = |crc: u64| if crc & 1 == 1 { crc >> 1 ^ polynomial } else { crc >> 1 };
        let bytes: Vec<u8> = (0..2000u32).map(|byte| (byte.wrapping_mul(167) >> 2) as u8).collect();
        let mut slow = 0;
        for (len, &byte) in bytes.iter().enumerate() {
            assert_eq!(checksum(&bytes[..len]), slow, "{len}");
            let mut sum = begin();
            bytes[..len].chunks(1 + len / 3).for_each(|piece| sum.update(piece));
            assert_eq!(sum.finalize(), slow, "{len} in pieces");
            slow = (0..8).fold(slow ^ u64::from(byte), |crc, _| bit(crc));
        }
    }
}
