//! Reading a byte string from front to back, and variable-length integers.
//!
//! A varint is LEB128: seven bits a byte, the lowest first, the top bit set on all but the last; at most ten bytes.

use super::CodecError;

/// What is left to read. Every method takes from the front or answers [`CodecError::Truncated`].
#[derive(Debug, Clone, Copy)]
pub struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    /// Starts at the front of `bytes`.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Cursor(bytes)
    }

    /// Whether everything has been read.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All that is left.
    pub const fn rest(self) -> &'a [u8] {
        self.0
    }

    /// Refuses bytes that are left over.
    pub const fn finish(self) -> Result<(), CodecError> {
        if self.0.is_empty() { Ok(()) } else { Err(CodecError::Trailing(self.0.len())) }
    }

    /// The next `len` bytes, borrowed: a length is never believed before it is compared with what is there.
    #[inline]
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], CodecError> {
        let (head, tail) = self.0.split_at_checked(len).ok_or(CodecError::Truncated)?;
        self.0 = tail;
        Ok(head)
    }

    /// The next `N` bytes as an array.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], CodecError> {
        let (head, tail) = self.0.split_first_chunk::<N>().ok_or(CodecError::Truncated)?;
        self.0 = tail;
        Ok(*head)
    }

    /// One byte.
    #[inline]
    pub fn u8(&mut self) -> Result<u8, CodecError> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// Two bytes, big-endian.
    pub fn u16_be(&mut self) -> Result<u16, CodecError> {
        self.array().map(u16::from_be_bytes)
    }

    /// Two bytes, little-endian.
    pub fn u16_le(&mut self) -> Result<u16, CodecError> {
        self.array().map(u16::from_le_bytes)
    }

    /// Four bytes, big-endian.
    pub fn u32_be(&mut self) -> Result<u32, CodecError> {
        self.array().map(u32::from_be_bytes)
    }

    /// Four bytes, little-endian.
    pub fn u32_le(&mut self) -> Result<u32, CodecError> {
        self.array().map(u32::from_le_bytes)
    }

    /// Eight bytes, big-endian.
    pub fn u64_be(&mut self) -> Result<u64, CodecError> {
        self.array().map(u64::from_be_bytes)
    }

    /// Eight bytes, little-endian.
    pub fn u64_le(&mut self) -> Result<u64, CodecError> {
        self.array().map(u64::from_le_bytes)
    }

    /// A signed integer of `N` bytes, little-endian; one to eight.
    pub fn int_le<const N: usize>(&mut self) -> Result<i64, CodecError> {
        let mut wide = [0; 8];
        wide[8 - N..].copy_from_slice(&self.array::<N>()?);
        Ok(i64::from_le_bytes(wide) >> (64 - 8 * N))
    }

    /// A varint.
    #[inline]
    pub fn varint(&mut self) -> Result<u64, CodecError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(CodecError::IntegerRange);
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(CodecError::IntegerRange)
    }

    /// A varint that fits 32 bits.
    pub fn varint_u32(&mut self) -> Result<u32, CodecError> {
        u32::try_from(self.varint()?).map_err(|_| CodecError::IntegerRange)
    }

    /// A varint that fits 16 bits.
    pub fn varint_u16(&mut self) -> Result<u16, CodecError> {
        u16::try_from(self.varint()?).map_err(|_| CodecError::IntegerRange)
    }

    /// A varint length and that many bytes.
    #[inline]
    pub fn slice(&mut self) -> Result<&'a [u8], CodecError> {
        let len = usize::try_from(self.varint()?).map_err(|_| CodecError::Truncated)?;
        self.bytes(len)
    }
}

/// Appends a varint.
#[inline]
pub fn push_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a varint length and the bytes.
#[inline]
pub fn push_slice(bytes: &[u8], out: &mut Vec<u8>) {
    push_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn varint_bytes_are_pinned() {
        let cases: [(u64, &[u8]); 5] = [
            (0, &[0]),
            (127, &[127]),
            (128, &[0x80, 1]),
            (300, &[0xac, 2]),
            (u64::MAX, &[255, 255, 255, 255, 255, 255, 255, 255, 255, 1]),
        ];
        for (value, bytes) in cases {
            let mut out = Vec::new();
            push_varint(value, &mut out);
            assert_eq!(out, bytes);
        }
    }

    #[test]
    fn signed_integers_of_any_width() {
        let bytes = [0xfe, 0xff, 0x7f, 0x80, 0, 0, 0, 0x80];
        assert_eq!(Cursor::new(&bytes).int_le::<1>(), Ok(-2));
        assert_eq!(Cursor::new(&bytes).int_le::<2>(), Ok(-2));
        assert_eq!(Cursor::new(&bytes).int_le::<3>(), Ok(0x7f_fffe));
        assert_eq!(Cursor::new(&bytes).int_le::<4>(), Ok(i64::from(0x807f_fffe_u32 as i32)));
        assert_eq!(Cursor::new(&bytes).int_le::<8>(), Ok(i64::from_le_bytes(bytes)));
        assert_eq!(Cursor::new(&bytes[..2]).int_le::<3>(), Err(CodecError::Truncated));
    }

    #[test]
    fn varint_beyond_64_bits_is_refused() {
        let eleven = [0x80; 11];
        assert_eq!(Cursor::new(&eleven).varint(), Err(CodecError::IntegerRange));
        let too_big = [255, 255, 255, 255, 255, 255, 255, 255, 255, 2];
        assert_eq!(Cursor::new(&too_big).varint(), Err(CodecError::IntegerRange));
        assert_eq!(Cursor::new(&[0x80]).varint(), Err(CodecError::Truncated));
    }

    #[test]
    fn a_length_is_not_believed() {
        let mut out = Vec::new();
        push_varint(u64::MAX, &mut out);
        out.extend_from_slice(b"abc");
        assert_eq!(Cursor::new(&out).slice(), Err(CodecError::Truncated));
    }

    proptest! {
        #[test]
        fn varint_round_trip(value: u64, shift in 0u32..64) {
            let value = value >> shift;
            let mut out = Vec::new();
            push_varint(value, &mut out);
            let mut cursor = Cursor::new(&out);
            prop_assert_eq!(cursor.varint().unwrap(), value);
            cursor.finish().unwrap();
        }
    }
}
