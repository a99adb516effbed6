//! One entry: key and value side by side, so that short ones take one cache line and no allocation.

use smallvec::SmallVec;

use super::keys::Keyed;
use super::{ALLOCATION_BYTES, ENTRY_BYTES, Sums, state};

/// Key, then value. Most elements of sets and sorted sets stand inline.
type Text = SmallVec<[u8; 48]>;

/// One element of a collection or one chunk of a big string.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    text: Text,
    key_len: u32,
    live: bool,
    /// Bits of [`state`].
    pub state: u8,
}

const _: () = assert!(size_of::<Entry>() == 64, "a cache line");

impl Entry {
    /// `value` is `None` for a removed element, which masks what the disk may still hold.
    #[inline]
    pub fn new(key: &[u8], value: Option<&[u8]>, state: u8) -> Entry {
        let text = value.unwrap_or_default();
        let mut both = Text::with_capacity(key.len() + text.len());
        both.extend_from_slice(key);
        both.extend_from_slice(text);
        Entry { text: both, key_len: key.len() as u32, live: value.is_some(), state }
    }

    /// The physical key.
    #[inline]
    pub fn key(&self) -> &[u8] {
        &self.text[..self.key_len as usize]
    }

    /// The value; `None` if it was removed.
    #[inline]
    pub fn value(&self) -> Option<&[u8]> {
        self.live.then(|| &self.text[self.key_len as usize..])
    }

    /// The value, to be changed in place.
    #[inline]
    pub fn value_mut(&mut self) -> Option<&mut [u8]> {
        self.live.then(|| &mut self.text[self.key_len as usize..])
    }

    /// Cuts a value that is there, or fills it up with zeros. What grows often does not grow by much: no doubling.
    pub fn resize_value(&mut self, len: usize) {
        if !self.live {
            return;
        }
        let len = self.key_len as usize + len;
        if len > self.text.capacity() {
            self.text.reserve_exact(len - self.text.len() + len / 4);
        }
        self.text.resize(len, 0);
    }

    /// Whether it has a value.
    #[inline]
    pub const fn is_live(&self) -> bool {
        self.live
    }

    /// Whether the element may leave memory.
    #[inline]
    pub const fn is_clean(&self) -> bool {
        self.state & (state::DIRTY | state::IN_FLIGHT) == 0
    }

    /// The bytes that do not stand inline.
    #[inline]
    pub(super) fn elsewhere(&self) -> &[u8] {
        if self.text.spilled() { &self.text } else { &[] }
    }

    /// What it adds to the sums of the nodes above it.
    pub(super) fn sums(&self) -> Sums {
        let has = |flag| u64::from(self.state & flag != 0);
        Sums {
            entries: 1,
            live: u64::from(self.live),
            dirty: has(state::DIRTY),
            base: has(state::BASE),
            next: has(state::NEXT),
        }
    }

    /// Memory held, estimated; what the entry adds to [`super::Overlay::bytes`].
    pub fn bytes(&self) -> usize {
        ENTRY_BYTES + self.heap_bytes()
    }

    /// What it counts for among what waits for a flush.
    pub fn dirty_bytes(&self) -> usize {
        if self.state & state::DIRTY == 0 { 0 } else { self.bytes() }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        if self.text.spilled() { self.text.capacity() + ALLOCATION_BYTES } else { 0 }
    }
}

impl Keyed for Entry {
    #[inline]
    fn key(&self) -> &[u8] {
        Entry::key(self)
    }
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let value = self.value().map(|value| value.escape_ascii().to_string());
        write!(f, "{}: {value:?} {:#b}", self.key().escape_ascii(), self.state)
    }
}
