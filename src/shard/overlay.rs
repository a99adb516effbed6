//! Stand-in of the overlay until the tree is there.
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::ops::Bound;

/// Short ones stand inline.
pub type Bytes = SmallVec<[u8; 24]>;

/// State bits of elements.
pub mod state {
    #![expect(missing_docs, reason = "stand-in")]
    pub const DIRTY: u8 = 1;
    pub const IN_FLIGHT: u8 = 4;
    pub const MAYBE_STORED: u8 = 8;
    pub const BASE: u8 = 16;
    pub const NEXT: u8 = 32;
}

/// Element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Element {
    /// value
    pub value: Option<Bytes>,
    /// state
    pub state: u8,
}

/// Sums.
#[derive(Default, Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "stand-in")]
pub struct Sums {
    pub entries: u64,
    pub live: u64,
    pub dirty: u64,
    pub base: u64,
    pub next: u64,
}

impl Sums {
    fn add(&mut self, e: &Element) {
        self.entries += 1;
        self.live += u64::from(e.value.is_some());
        self.dirty += u64::from(e.state & state::DIRTY != 0);
        self.base += u64::from(e.state & state::BASE != 0);
        self.next += u64::from(e.state & state::NEXT != 0);
    }
}

/// Overlay.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "stand-in")]
pub struct Overlay {
    map: BTreeMap<Bytes, Element>,
    pub complete: bool,
    bytes: usize,
}
impl Default for Overlay {
    fn default() -> Self {
        Self::new()
    }
}
fn cost(k: &[u8], e: &Element) -> usize {
    72 + k.len() + e.value.as_ref().map_or(0, |v| v.len())
}
#[expect(missing_docs, reason = "stand-in")]
impl Overlay {
    pub fn new() -> Self {
        Overlay { map: BTreeMap::new(), complete: true, bytes: 0 }
    }
    pub fn len(&self) -> usize {
        self.map.len()
    }
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }
    pub fn sums(&self) -> Sums {
        let mut s = Sums::default();
        self.map.values().for_each(|e| s.add(e));
        s
    }
    pub fn bytes(&self) -> usize {
        self.bytes
    }
    pub fn get(&self, key: &[u8]) -> Option<&Element> {
        self.map.get(&Bytes::from_slice(key))
    }
    pub fn insert(&mut self, key: &[u8], element: Element) -> Option<Element> {
        self.bytes += cost(key, &element);
        let old = self.map.insert(Bytes::from_slice(key), element);
        self.bytes -= old.as_ref().map_or(0, |o| cost(key, o));
        old
    }
    pub fn remove(&mut self, key: &[u8]) -> Option<Element> {
        let old = self.map.remove(&Bytes::from_slice(key));
        self.bytes -= old.as_ref().map_or(0, |o| cost(key, o));
        old
    }
    pub fn update<R>(&mut self, key: &[u8], f: impl FnOnce(&mut Element) -> R) -> Option<R> {
        let e = self.map.get_mut(&Bytes::from_slice(key))?;
        self.bytes -= cost(key, e);
        let r = f(e);
        self.bytes += cost(key, e);
        Some(r)
    }
    pub fn before(&self, key: &[u8]) -> Sums {
        let mut s = Sums::default();
        self.range(Bound::Unbounded, Bound::Excluded(key)).for_each(|(_, e)| s.add(e));
        s
    }
    pub fn select_live(&self, n: u64) -> Option<(&[u8], &Element)> {
        self.iter().filter(|(_, e)| e.value.is_some()).nth(n as usize)
    }
    pub fn range(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> Range<'_> {
        let (l, u) = (lower.map(Bytes::from_slice), upper.map(Bytes::from_slice));
        let empty = match (&l, &u) {
            (Bound::Included(a), Bound::Excluded(b)) | (Bound::Excluded(a), Bound::Included(b)) => a >= b,
            (Bound::Included(a), Bound::Included(b)) => a > b,
            (Bound::Excluded(a), Bound::Excluded(b)) => a >= b,
            _ => false,
        };
        let r = if empty { (Bound::Included(Bytes::new()), Bound::Excluded(Bytes::new())) } else { (l, u) };
        Range(self.map.range(r))
    }
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&[u8], &Element)> {
        self.map.iter().map(|(k, e)| (&k[..], e))
    }
    pub fn visit_dirty(&mut self, from: &[u8], most: usize, mut f: impl FnMut(&[u8], &mut Element)) -> Option<Bytes> {
        let mut n = 0;
        for (k, e) in self.map.range_mut(Bytes::from_slice(from)..) {
            if e.state & state::DIRTY == 0 {
                continue;
            }
            if n == most {
                return Some(k.clone());
            }
            f(k, e);
            n += 1;
        }
        None
    }
    pub fn evict_clean(&mut self, from: &[u8], leaves: usize) -> Option<Bytes> {
        let keys: Vec<Bytes> =
            self.map.range(Bytes::from_slice(from)..).take(leaves * 4 + 1).map(|(k, _)| k.clone()).collect();
        for k in keys.iter().take(leaves * 4) {
            if self.map.get(k).is_some_and(|e| e.state & (state::DIRTY | state::IN_FLIGHT) == 0) {
                self.remove(k);
                self.complete = false;
            }
        }
        keys.get(leaves * 4).cloned()
    }
}

/// Range.
pub struct Range<'a>(std::collections::btree_map::Range<'a, Bytes, Element>);
impl<'a> Iterator for Range<'a> {
    type Item = (&'a [u8], &'a Element);
    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(|(k, e)| (&k[..], e))
    }
}
impl DoubleEndedIterator for Range<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.0.next_back().map(|(k, e)| (&k[..], e))
    }
}
