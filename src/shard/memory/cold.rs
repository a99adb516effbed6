//! The second-level cache: metadata records of clean objects that left the table, and keys known to be absent.
//!
//! Wide and budgeted, behind the shard's own table: a moka hit costs microseconds, as much as a block that fjall holds
//! in memory, but an entry takes a hundred bytes where the block cache takes a block. An entry costs as much to make as the
//! read that it spares: a doorkeeper lets in only what leaves the table for the second time within a while, so that who
//! passes by once, or is only written, costs nothing here.
//!
//! Invariant: a key stands in the table or here, never in both; [`ColdCache::take`] removes what it finds.

use crate::codec::NsId;

/// What is known of a key that is not in the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cold {
    /// fjall holds no such key.
    Absent,
    /// The metadata record, as fjall holds it.
    Meta(bytes::Bytes),
}

/// moka with byte budget; keys are namespace id and user key.
pub struct ColdCache {
    cache: moka::sync::Cache<Box<[u8]>, Cold, foldhash::fast::RandomState>,
    /// Entries put and not taken; an upper bound that spares the look-up while the cache is empty.
    entries: usize,
    /// Entries ever put.
    puts: u64,
    door: Doorkeeper,
}

/// Keys that the doorkeeper has seen at least when it forgets them all.
const DOOR_KEYS: usize = 4096;
/// What it has of bits for each.
const DOOR_BITS: usize = 8;
/// Bytes of an entry of which the budget has room for as many as the doorkeeper sees.
const USUAL_ENTRY: usize = 400;

/// Remembers, about, which keys came by of late.
struct Doorkeeper {
    bits: Box<[u64]>,
    seen: usize,
}

impl Doorkeeper {
    fn new(keys: usize) -> Self {
        let keys = keys.max(DOOR_KEYS).next_power_of_two();
        Doorkeeper { bits: vec![0; keys * DOOR_BITS / 64].into(), seen: 0 }
    }

    /// Whether a key of this hash has come by before; it has from now on.
    fn knows(&mut self, hash: u32) -> bool {
        let bit = crate::util::splitmix::next(&mut u64::from(hash)) as usize % (self.bits.len() * 64);
        let word = &mut self.bits[bit / 64];
        let known = *word >> (bit % 64) & 1 == 1;
        *word |= 1 << (bit % 64);
        self.seen += usize::from(!known);
        if self.seen * DOOR_BITS == self.bits.len() * 64 {
            self.bits.fill(0);
            self.seen = 0;
        }
        known
    }
}

#[expect(clippy::borrowed_box, reason = "moka hands out its own key type")]
fn weigh(key: &Box<[u8]>, value: &Cold) -> u32 {
    let value = if let Cold::Meta(v) = value { v.len() } else { 0 };
    ENTRY_OVERHEAD + (key.len() + value) as u32
}

/// Bytes moka spends on an entry beside key and value, as measured.
const ENTRY_OVERHEAD: u32 = 280;

impl ColdCache {
    /// A cache of `budget` bytes.
    pub fn new(budget: usize) -> Self {
        let cache = moka::sync::Cache::builder()
            .max_capacity(budget as u64)
            .weigher(weigh)
            .build_with_hasher(foldhash::fast::RandomState::default());
        ColdCache { cache, entries: 0, puts: 0, door: Doorkeeper::new(budget / USUAL_ENTRY) }
    }

    /// An empty one of another size.
    pub fn successor(&self, budget: usize) -> Self {
        ColdCache { puts: self.puts, ..ColdCache::new(budget) }
    }

    /// Bytes it may hold.
    pub fn budget(&self) -> usize {
        self.cache.policy().max_capacity().map_or(usize::MAX, |bytes| bytes as usize)
    }

    fn key(ns: NsId, key: &[u8]) -> Box<[u8]> {
        [&ns.to_be_bytes(), key].concat().into()
    }

    /// Removes and returns what is known of a key.
    pub fn take(&mut self, ns: NsId, key: &[u8]) -> Option<Cold> {
        if self.entries == 0 {
            return None;
        }
        self.cache.remove(&Self::key(ns, key))
    }

    /// Whether something is known of a key.
    pub fn contains(&self, ns: NsId, key: &[u8]) -> bool {
        self.entries > 0 && self.cache.contains_key(&Self::key(ns, key))
    }

    /// Whether a record is to be remembered whose key, of this hash, leaves the table.
    pub fn lets_in(&mut self, hash: u32) -> bool {
        self.door.knows(hash)
    }

    /// Entries ever put: as long as it is the same, what was not known is not.
    pub fn puts(&self) -> u64 {
        self.puts
    }

    /// Remembers a metadata record.
    pub fn put(&mut self, ns: NsId, key: &[u8], meta: Vec<u8>) {
        self.entries += 1;
        self.puts += 1;
        self.cache.insert(Self::key(ns, key), Cold::Meta(meta.into()));
    }

    /// Remembers that fjall has no such key; whoever creates it must [`ColdCache::take`] it first.
    pub fn put_absent(&mut self, ns: NsId, key: &[u8]) {
        self.entries += 1;
        self.puts += 1;
        self.cache.insert(Self::key(ns, key), Cold::Absent);
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.cache.weighted_size()
    }

    /// Number of entries.
    pub fn len(&self) -> u64 {
        self.cache.entry_count()
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.entries = 0;
        self.cache.invalidate_all();
    }
}
