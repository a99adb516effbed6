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

/// What stands between the first `{` and the next `}`, unless that is nothing.
fn hash_tag(key: &[u8]) -> Option<&[u8]> {
    let open = memchr::memchr(b'{', key)?;
    let rest = &key[open + 1..];
    let close = memchr::memchr(b'}', rest)?;
    (close > 0).then(|| &rest[..close])
}
