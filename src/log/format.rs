//! The bytes of segments and frames (drawn in the module above): encoding and decoding, no I/O.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::{Xxh3, xxh3_64, xxh3_64_with_seed};

use super::Lsn;

/// The format this binary writes and the only one it reads.
pub const FORMAT_VERSION: u32 = 3;

pub(super) const SEGMENT_MAGIC: [u8; 8] = *b"TARNLOG\n";
pub(super) const SEGMENT_HEADER: usize = 40;
pub(super) const FRAME_MAGIC: [u8; 4] = [0xf5, b'T', b'F', 0x1a];
pub(super) const FRAME_HEADER: usize = 48;

/// A frame takes no further record once its payload has this many bytes: replay then needs no more memory than
/// this and one record.
pub(super) const FRAME_TARGET: usize = 1 << 20;

/// The longest length prefix: a u64 in groups of seven bits.
const MAX_PREFIX: usize = 10;

/// What can be wrong with the head of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BadHeader {
    /// Too short, wrong magic or wrong checksum.
    Damaged,
    /// Whole, but written by another version.
    Version(u32),
    /// Whole, but of the log with this owner.
    Foreign(u64),
}

/// A number nobody outside can foresee. It seeds the checksums of one segment, so that neither a frame that a
/// client stored as a value, nor an old segment's block that the file system handed out again, passes for a frame.
pub(super) fn new_salt() -> u64 {
    RandomState::new().build_hasher().finish()
}

pub(super) fn encode_segment_header(owner: u64, salt: u64) -> [u8; SEGMENT_HEADER] {
    let mut bytes = [0; SEGMENT_HEADER];
    bytes[..8].copy_from_slice(&SEGMENT_MAGIC);
    bytes[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
    bytes[16..24].copy_from_slice(&owner.to_le_bytes());
    bytes[24..32].copy_from_slice(&salt.to_le_bytes());
    let check = xxh3_64(&bytes[..32]);
    bytes[32..].copy_from_slice(&check.to_le_bytes());
    bytes
}

/// The salt in the header of a segment of this owner.
pub(super) fn decode_segment_header(bytes: &[u8], owner: u64) -> Result<u64, BadHeader> {
    if bytes.len() < SEGMENT_HEADER || bytes[..8] != SEGMENT_MAGIC || u64_at(bytes, 32) != xxh3_64(&bytes[..32]) {
        return Err(BadHeader::Damaged);
    }
    match (u32_at(bytes, 8), u64_at(bytes, 16)) {
        (FORMAT_VERSION, found) if found == owner => Ok(u64_at(bytes, 24)),
        (FORMAT_VERSION, found) => Err(BadHeader::Foreign(found)),
        (other, _) => Err(BadHeader::Version(other)),
    }
}

/// The head of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameHeader {
    /// Records in the payload; 0 in a mark, which only tells `synced`.
    pub(super) count: u32,
    /// Length of the payload.
    pub(super) size_bytes: u64,
    /// LSN of the first record (of the next record, in a mark).
    pub(super) first: Lsn,
    /// Everything up to here was on disk before this frame was written.
    pub(super) synced: Lsn,
    /// Checksum of the payload, seeded with the salt.
    pub(super) check: u64,
}

impl FrameHeader {
    pub(super) fn encode(&self, salt: u64) -> [u8; FRAME_HEADER] {
        let mut bytes = [0; FRAME_HEADER];
        bytes[..4].copy_from_slice(&FRAME_MAGIC);
        bytes[4..8].copy_from_slice(&self.count.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.size_bytes.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.first.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.synced.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.check.to_le_bytes());
        let check = xxh3_64_with_seed(&bytes[..40], salt);
        bytes[40..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// `None` if these bytes head no frame of the segment with this salt.
    pub(super) fn decode(bytes: &[u8], salt: u64) -> Option<Self> {
        if bytes.len() < FRAME_HEADER
            || bytes[..4] != FRAME_MAGIC
            || u64_at(bytes, 40) != xxh3_64_with_seed(&bytes[..40], salt)
        {
            return None;
        }
        let header = FrameHeader {
            count: u32_at(bytes, 4),
            size_bytes: u64_at(bytes, 8),
            first: u64_at(bytes, 16),
            synced: u64_at(bytes, 24),
            check: u64_at(bytes, 32),
        };
        let ordered = header.synced < header.first && header.first.checked_add(u64::from(header.count)).is_some();
        // Each record has a prefix of a byte at least.
        let sized = u64::from(header.count) <= header.size_bytes && (header.count > 0 || header.size_bytes == 0);
        (ordered && sized).then_some(header)
    }

    /// The LSN after the frame's last record.
    pub(super) fn next(&self) -> Lsn {
        self.first + u64::from(self.count)
    }
}

/// The checksum of a frame's payload.
pub(super) fn payload_check(payload: &[u8], salt: u64) -> u64 {
    xxh3_64_with_seed(payload, salt)
}

/// The same of a payload in two parts.
pub(super) fn payload_check_of(parts: [&[u8]; 2], salt: u64) -> u64 {
    let mut check = Xxh3::with_seed(salt);
    parts.iter().for_each(|part| check.update(part));
    check.digest()
}

/// Whether a payload consists of exactly `count` records.
pub(super) fn is_well_formed(mut payload: &[u8], count: u32) -> bool {
    for _ in 0..count {
        match split_record(payload) {
            Some((_, rest)) => payload = rest,
            None => return false,
        }
    }
    payload.is_empty()
}

/// The first record of a payload and what follows it.
pub(super) fn split_record(payload: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut size_bytes = 0_u64;
    for (i, &byte) in payload.iter().take(MAX_PREFIX).enumerate() {
        let group = u64::from(byte & 0x7f);
        if i == MAX_PREFIX - 1 && group > 1 {
            return None;
        }
        size_bytes |= group << (7 * i);
        if byte & 0x80 == 0 {
            let size_bytes = usize::try_from(size_bytes).ok()?;
            return payload[i + 1..].split_at_checked(size_bytes);
        }
    }
    None
}

/// Appends one record: the length in groups of seven bits, at least two of them, then what `write` appends.
///
/// The length is known only afterwards. Two bytes are kept free for it, so that a record below 16 KiB is never moved.
///
/// # Panics
/// If `write` shortens the buffer.
pub(super) fn push_record(buf: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let start = buf.len();
    buf.extend_from_slice(&[0, 0]);
    write(buf);
    assert!(buf.len() >= start + 2, "a record's writer must only append");
    let size_bytes = buf.len() - start - 2;
    if size_bytes < 1 << 14 {
        buf[start] = (size_bytes & 0x7f) as u8 | 0x80;
        buf[start + 1] = (size_bytes >> 7) as u8;
    } else {
        widen_prefix(buf, start, size_bytes);
    }
}

#[cold]
fn widen_prefix(buf: &mut Vec<u8>, start: usize, size_bytes: usize) {
    let groups = groups_of(size_bytes);
    buf.resize(start + groups + size_bytes, 0);
    buf.copy_within(start + 2..start + 2 + size_bytes, start + groups);
    write_prefix(&mut buf[start..start + groups], size_bytes);
}

/// Bytes of a record's prefix.
fn groups_of(size_bytes: usize) -> usize {
    ((usize::BITS - size_bytes.leading_zeros()).div_ceil(7) as usize).max(2)
}

/// Appends the prefix of a record that stands elsewhere.
pub(super) fn push_prefix(buf: &mut Vec<u8>, size_bytes: usize) {
    let start = buf.len();
    buf.resize(start + groups_of(size_bytes), 0);
    write_prefix(&mut buf[start..], size_bytes);
}

fn write_prefix(prefix: &mut [u8], size_bytes: usize) {
    let groups = prefix.len();
    for (i, byte) in prefix.iter_mut().enumerate() {
        let more = if i + 1 < groups { 0x80 } else { 0 };
        *byte = ((size_bytes >> (7 * i)) & 0x7f) as u8 | more;
    }
}

/// The path of the segment that begins with `first`.
pub(super) fn segment_path(dir: &Path, first: Lsn) -> PathBuf {
    dir.join(format!("{first:016x}.log"))
}

/// The first LSN in a segment's file name; `None` for other files.
pub(super) fn parse_segment_name(name: &str) -> Option<Lsn> {
    let digits = name.strip_suffix(".log")?;
    let lower = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if digits.len() != 16 || !digits.bytes().all(lower) {
        return None;
    }
    Lsn::from_str_radix(digits, 16).ok().filter(|&first| first > 0)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut out = [0; 4];
    out.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(out)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut out = [0; 8];
    out.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(out)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bytes_are_pinned() {
        let header = encode_segment_header(9, 0x0102_0304_0506_0708);
        assert_eq!(header[..16], *b"TARNLOG\n\x03\0\0\0\0\0\0\0");
        assert_eq!(header[16..32], *b"\x09\0\0\0\0\0\0\0\x08\x07\x06\x05\x04\x03\x02\x01");
        assert_eq!(decode_segment_header(&header, 9), Ok(0x0102_0304_0506_0708));
        assert_eq!(decode_segment_header(&header, 8), Err(BadHeader::Foreign(9)));
        let frame = FrameHeader { count: 2, size_bytes: 9, first: 7, synced: 6, check: 5 }.encode(3);
        assert_eq!(
            frame[..40],
            *b"\xf5TF\x1a\x02\0\0\0\x09\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0"
        );
        let mut record = Vec::new();
        push_record(&mut record, |out| out.extend_from_slice(b"abc"));
        assert_eq!(record, b"\x83\0abc");
        assert_eq!(segment_path(Path::new("d"), 0x1f), Path::new("d/000000000000001f.log"));
    }

    #[test]
    fn a_frame_of_another_salt_or_of_a_later_sync_is_none() {
        let header = FrameHeader { count: 2, size_bytes: 9, first: 7, synced: 6, check: 5 };
        assert_eq!(FrameHeader::decode(&header.encode(3), 3), Some(header));
        assert_eq!(FrameHeader::decode(&header.encode(3), 4), None);
        assert_eq!(FrameHeader::decode(&FrameHeader { synced: 7, ..header }.encode(3), 3), None);
        assert_eq!(FrameHeader::decode(&FrameHeader { first: u64::MAX, ..header }.encode(3), 3), None);
        assert_eq!(FrameHeader::decode(&FrameHeader { count: 10, ..header }.encode(3), 3), None);
        assert_eq!(FrameHeader::decode(&FrameHeader { count: 0, ..header }.encode(3), 3), None);
    }

    #[test]
    fn what_is_cut_short_or_has_another_magic_heads_no_frame() {
        let bytes = FrameHeader { count: 2, size_bytes: 9, first: 7, synced: 6, check: 5 }.encode(3);
        for len in 0..FRAME_HEADER {
            assert_eq!(FrameHeader::decode(&bytes[..len], 3), None, "{len} bytes");
        }
        let mut other = bytes;
        other[0] ^= 1;
        let check = xxh3_64_with_seed(&other[..40], 3);
        other[40..].copy_from_slice(&check.to_le_bytes());
        assert_eq!(FrameHeader::decode(&other, 3), None, "whole, but of something else");
    }

    #[test]
    fn lengths_at_every_width_of_the_prefix_come_back() {
        for size_bytes in [0, 1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152] {
            let mut buf = b"before".to_vec();
            push_record(&mut buf, |out| out.resize(out.len() + size_bytes, 7));
            push_record(&mut buf, |out| out.push(9));
            let (record, rest) = split_record(&buf[6..]).unwrap();
            assert!(record.len() == size_bytes && record.iter().all(|&b| b == 7));
            let mut prefix = Vec::new();
            push_prefix(&mut prefix, size_bytes);
            assert!(buf[6..].starts_with(&prefix));
            assert_eq!(payload_check_of([&buf[..7], &buf[7..]], 5), payload_check(&buf, 5));
            assert_eq!(split_record(rest).unwrap(), (&[9][..], &[][..]));
        }
    }

    #[test]
    fn only_names_of_segments_are_parsed() {
        assert_eq!(parse_segment_name("000000000000001f.log"), Some(31));
        for name in
            ["000000000000001F.log", "1f.log", "000000000000001f.tmp", "0000000000000000.log", "+00000000000001f.log"]
        {
            assert_eq!(parse_segment_name(name), None, "{name}");
        }
    }

    proptest! {
        #[test]
        fn records_come_back(records in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..20)) {
            let mut buf = Vec::new();
            for record in &records {
                push_record(&mut buf, |out| out.extend_from_slice(record));
            }
            prop_assert!(is_well_formed(&buf, records.len() as u32));
            let mut rest = &buf[..];
            for record in &records {
                let (read, after) = split_record(rest).unwrap();
                prop_assert_eq!(read, &record[..]);
                rest = after;
            }
            prop_assert!(rest.is_empty());
        }

        #[test]
        fn any_bytes_are_split_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..64), count in 0_u32..9) {
            is_well_formed(&bytes, count);
        }
    }
}
