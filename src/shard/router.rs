//! Keys to shards.

use siphasher::sip::SipHasher13;

/// Identifies a shard of the engine.
pub type ShardId = u16;

/// Hashes keys and names their shards.
#[derive(Debug, Clone)]
pub struct Router {
    hasher: SipHasher13,
    shards: u64,
}

impl Router {
    /// A router for this hash key and number of shards, both from the superblock.
    pub fn new(key: [u64; 2], shards: u16) -> Self {
        Router { hasher: SipHasher13::new_with_keys(key[0], key[1]), shards: u64::from(shards) }
    }

    /// Hash of the whole key.
    #[inline]
    pub fn hash(&self, key: &[u8]) -> u64 {
        self.hasher.hash(key)
    }

    /// The shard of a key whose hash is known: that of its `{tag}` where it has one.
    #[inline]
    pub fn shard(&self, hash: u64, key: &[u8]) -> ShardId {
        let hash = match hash_tag(key) {
            Some(tag) => self.hasher.hash(tag),
            None => hash,
        };
        (((hash >> 32) * self.shards) >> 32) as ShardId
    }

    /// The shard of a key.
    pub fn shard_of(&self, key: &[u8]) -> ShardId {
        self.shard(self.hash(key), key)
    }

    /// The one shard of all keys that begin so: those with a `{tag}` in what they share.
    pub fn shard_of_prefix(&self, prefix: &[u8]) -> Option<ShardId> {
        hash_tag(prefix).map(|_| self.shard_of(prefix))
    }

    /// Number of shards.
    pub fn shards(&self) -> usize {
        self.shards as usize
    }
}

/// Longer keys are looked through by who takes longer to begin.
const USUAL_KEY: usize = 64;

/// What stands between the first `{` and the next `}`, unless that is nothing.
#[inline]
fn hash_tag(key: &[u8]) -> Option<&[u8]> {
    if key.len() <= USUAL_KEY && !has_brace(key) { None } else { find_tag(key) }
}

/// Whether there is a `{`, eight bytes at a time.
#[inline]
fn has_brace(key: &[u8]) -> bool {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const BRACES: u64 = ONES * b'{' as u64;
    let (words, rest) = key.as_chunks::<8>();
    // What is zero now was a brace; only then, or above such, a subtraction sets a byte's highest bit that was not set.
    let has = |word: &[u8; 8]| {
        let word = u64::from_ne_bytes(*word) ^ BRACES;
        word.wrapping_sub(ONES) & !word & (ONES << 7) != 0
    };
    words.iter().any(has) || rest.contains(&b'{')
}

fn find_tag(key: &[u8]) -> Option<&[u8]> {
    let open = memchr::memchr(b'{', key)?;
    let rest = &key[open + 1..];
    let close = memchr::memchr(b'}', rest)?;
    (close > 0).then(|| &rest[..close])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::util::splitmix;

    /// A key of any length, with braces anywhere, has the tag that a search byte by byte finds.
    #[test]
    fn a_tag_is_found_wherever_it_stands() {
        let mut state = 1;
        for round in 0..200_000u32 {
            let len = (splitmix::next(&mut state) % 80) as usize;
            let byte = |_| match splitmix::next(&mut state) % (3 + u64::from(round % 40)) {
                0 => b'{',
                1 => b'}',
                other => (other as u8).wrapping_mul(37) ^ b'{' ^ 0x80,
            };
            let key: Vec<u8> = (0..len).map(byte).collect();
            let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
                let rest = &key[open + 1..];
                let close = rest.iter().position(|byte| *byte == b'}')?;
                (close > 0).then(|| &rest[..close])
            });
            assert_eq!(hash_tag(&key), tag, "{}", key.escape_ascii());
        }
    }
}
