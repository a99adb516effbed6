//! The checksum of RDB: CRC-64 as Jones chose it (polynomial ad93d23594c935a9, both ends reflected, no inversions).

/// The polynomial with its bits in reverse, as a reflected CRC shifts to the right.
const POLYNOMIAL: u64 = 0xad93_d235_94c9_35a9_u64.reverse_bits();

/// `TABLES[n][b]`: what byte `b` leaves behind once `n` more bytes have passed, so that eight bytes take one step.
const TABLES: [[u64; 256]; 8] = tables();

const fn tables() -> [[u64; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u64;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut later = 1;
    while later < 8 {
        let mut byte = 0;
        while byte < 256 {
            let crc = tables[later - 1][byte];
            tables[later][byte] = crc >> 8 ^ tables[0][(crc & 0xff) as usize];
            byte += 1;
        }
        later += 1;
    }
    tables
}

/// The checksum of `bytes`.
pub(super) fn checksum(bytes: &[u8]) -> u64 {
    update(0, bytes)
}

/// The checksum of bytes with that checksum, and of these behind them.
pub(super) fn update(sum: u64, bytes: &[u8]) -> u64 {
    let (chunks, rest) = bytes.as_chunks::<8>();
    let crc = chunks.iter().fold(sum, |crc, chunk| {
        let mixed = (crc ^ u64::from_le_bytes(*chunk)).to_le_bytes();
        mixed.iter().zip(TABLES.iter().rev()).fold(0, |crc, (&byte, table)| crc ^ table[usize::from(byte)])
    });
    rest.iter().fold(crc, |crc, &byte| crc >> 8 ^ TABLES[0][usize::from(crc as u8 ^ byte)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_value() {
        assert_eq!(checksum(b"123456789"), 0xe9c6_d914_c4b8_d9ca);
        assert_eq!(checksum(b""), 0);
        assert_eq!(update(checksum(b"1234"), b"56789"), checksum(b"123456789"));
    }

    #[test]
    fn eight_bytes_at_a_time_are_as_one_by_one() {
        let bytes: Vec<u8> = (0..100u8).map(|byte| byte.wrapping_mul(167)).collect();
        for len in 0..bytes.len() {
            let one_by_one =
                bytes[..len].iter().fold(0, |crc, &byte| crc >> 8 ^ TABLES[0][usize::from(crc as u8 ^ byte)]);
            assert_eq!(checksum(&bytes[..len]), one_by_one);
        }
    }
}
