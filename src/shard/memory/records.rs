//! Records as fjall is to get them in one ingestion, encoded into one buffer. What else a flight knows of a record refers to
//! its bytes there: a second copy of a key would cost as much memory as the element that is being brought away. The elements of
//! a collection that is being built gather in the same way.

use std::cmp::Ordering;

use crate::util::prefetch::prefetch_all;

/// A key within the buffer.
#[derive(Debug, Clone, Copy)]
pub(in crate::shard) struct Span {
    at: usize,
    len: u32,
}

#[derive(Debug, Clone, Copy)]
struct Record {
    /// The key's first byte, and seven after what all keys of its group begin with: decides nearly every comparison.
    head: u64,
    at: usize,
    key_len: u32,
    /// [`TOMBSTONE`] for a removal.
    value_len: u32,
}

/// Bytes of a record, about, as most are.
const SMALL_RECORD: usize = 32;

const TOMBSTONE: u32 = u32::MAX;

/// Records, and bytes of each, that are fetched into the cache before they are asked for.
const AHEAD: usize = 8;
const MOST_AHEAD: usize = 256;

/// So few are sorted by their keys alone: to look for what these begin with takes longer.
const FEW: usize = 16;

/// Of runs that are shorter in the mean there are too many.
const LEAST_A_RUN: usize = 2;

impl Record {
    fn key(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.at..self.at + self.key_len as usize]
    }

    /// By their keys, once they have their heads, or none of them has one.
    fn compare(&self, other: &Record, bytes: &[u8]) -> Ordering {
        self.head.cmp(&other.head).then_with(|| self.key(bytes).cmp(other.key(bytes)))
    }
}

/// Gives records their heads. A group are those whose keys have the same first byte.
fn set_heads<T>(bytes: &[u8], items: &mut [T], record: fn(&mut T) -> &mut Record) {
    let mut shared = [usize::MAX; 256];
    let mut first: [&[u8]; 256] = [&[]; 256];
    for item in items.iter_mut() {
        let key = record(item).key(bytes);
        let tag = key[0] as usize;
        if shared[tag] == usize::MAX {
            (shared[tag], first[tag]) = (key.len(), key);
        }
        let most = shared[tag].min(key.len());
        let same = key[..most].iter().zip(first[tag]).position(|(a, b)| a != b);
        shared[tag] = same.unwrap_or(most);
    }
    for item in items {
        let record = record(item);
        let key = record.key(bytes);
        let rest = &key[shared[key[0] as usize]..];
        let mut head = [key[0], 0, 0, 0, 0, 0, 0, 0];
        let len = rest.len().min(7);
        head[1..=len].copy_from_slice(&rest[..len]);
        record.head = u64::from_be_bytes(head);
    }
}

/// Encoded records, in order after [`Records::sort`].
#[derive(Debug, Default)]
pub(in crate::shard) struct Records {
    bytes: Vec<u8>,
    list: Vec<Record>,
    /// Where runs begin in the list, if it is all made of them: records that were added in order.
    runs: Vec<usize>,
}

impl Records {
    /// None yet, with room for so many bytes.
    pub(in crate::shard) fn with_capacity(bytes: usize) -> Self {
        Records { bytes: Vec::with_capacity(bytes), ..Records::default() }
    }

    /// Makes room for so many more records of small collections.
    pub(in crate::shard) fn reserve(&mut self, records: usize) {
        self.list.reserve(records);
        self.bytes.reserve(records * SMALL_RECORD);
    }

    /// The records that are added until the next call come in order, each with a key of its own.
    pub(in crate::shard) fn begin_run(&mut self) {
        self.runs.push(self.list.len());
    }

    /// Adds a record, or a tombstone. Answers where its key stands.
    #[inline]
    pub(in crate::shard) fn push(&mut self, key: &[u8], value: Option<&[u8]>) -> Span {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value.unwrap_or_default());
        let value_len = value.map_or(TOMBSTONE, |v| v.len() as u32);
        self.list.push(Record { head: 0, at, key_len: key.len() as u32, value_len });
        Span { at, len: key.len() as u32 }
    }

    /// Adds a record whose value `encode` appends. Answers where its key stands.
    pub(in crate::shard) fn push_with(&mut self, key: &[u8], encode: impl FnOnce(&mut Vec<u8>)) -> Span {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(key);
        encode(&mut self.bytes);
        let value_len = (self.bytes.len() - at - key.len()) as u32;
        self.list.push(Record { head: 0, at, key_len: key.len() as u32, value_len });
        Span { at, len: key.len() as u32 }
    }

    /// Adds all of `other`.
    pub(in crate::shard) fn append(&mut self, other: &Records) {
        let base = self.bytes.len();
        self.bytes.extend_from_slice(&other.bytes);
        self.list.extend(other.list.iter().map(|record| Record { at: base + record.at, ..*record }));
    }

    /// Bytes so far.
    pub(in crate::shard) fn size_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Memory that it takes.
    pub(in crate::shard) fn memory_bytes(&self) -> usize {
        self.bytes.len() + self.list.len() * size_of::<Record>() + self.runs.len() * size_of::<usize>()
    }

    /// What it has room for.
    #[cfg(test)]
    pub(in crate::shard) fn room_bytes(&self) -> usize {
        self.bytes.capacity() + self.list.capacity() * size_of::<Record>()
    }

    /// Number of records.
    pub(in crate::shard) fn len(&self) -> usize {
        self.list.len()
    }

    /// The bytes of a key.
    #[inline]
    pub(in crate::shard) fn key(&self, span: Span) -> &[u8] {
        &self.bytes[span.at..span.at + span.len as usize]
    }

    /// Sorts by key. Of records with the same key one stays: the last of those that begin before `raw_from`, if there is
    /// one, else the last of all.
    pub(in crate::shard) fn sort(&mut self, raw_from: usize) {
        self.order(raw_from);
        let Records { bytes, list, .. } = self;
        list.dedup_by(|later, kept| later.head == kept.head && later.key(bytes) == kept.key(bytes));
    }

    /// Sorts records of which no two are to have the same key. One that two have.
    pub(in crate::shard) fn sort_distinct(&mut self) -> Option<&[u8]> {
        if self.order_runs() {
            return None;
        }
        self.order(usize::MAX);
        let is_twice =
            |two: &&[Record]| two[0].head == two[1].head && two[0].key(&self.bytes) == two[1].key(&self.bytes);
        self.list.windows(2).find(is_twice).map(|two| two[0].key(&self.bytes))
    }

    /// Sorts the runs, as there are far fewer of them; false where they overlap, and nothing is sorted.
    fn order_runs(&mut self) -> bool {
        let runs = std::mem::take(&mut self.runs);
        if runs.first() != Some(&0) || runs.len() * LEAST_A_RUN > self.list.len() {
            return false;
        }
        let ends = runs[1..].iter().copied().chain([self.list.len()]);
        let ranges = runs.iter().copied().zip(ends).filter(|(from, to)| from < to);
        let mut firsts: Vec<(Record, (usize, usize))> = ranges.map(|range| (self.list[range.0], range)).collect();
        let Records { bytes, list, .. } = self;
        set_heads(bytes, &mut firsts, |(first, _)| first);
        firsts.sort_unstable_by(|(a, _), (b, _)| a.compare(b, bytes));
        let are_apart = |two: &[(Record, (usize, usize))]| list[two[0].1.1 - 1].key(bytes) < two[1].0.key(bytes);
        if !firsts.windows(2).all(are_apart) {
            return false;
        }
        *list = firsts.iter().flat_map(|&(_, (from, to))| &list[from..to]).copied().collect();
        debug_assert!(list.is_sorted_by(|a, b| a.key(bytes) < b.key(bytes)), "a run is in order");
        true
    }

    fn order(&mut self, raw_from: usize) {
        let Records { bytes, list, .. } = self;
        let raw = |r: &Record| r.at >= raw_from;
        if list.len() > FEW {
            set_heads(bytes, list, |record| record);
        } else {
            list.iter_mut().for_each(|record| record.head = 0);
        }
        list.sort_unstable_by(|a, b| a.compare(b, bytes).then(raw(a).cmp(&raw(b))).then(b.at.cmp(&a.at)));
    }

    /// Keys, and values or tombstones.
    pub(in crate::shard) fn iter(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        self.list.iter().enumerate().map(|(n, r)| {
            // In order of the keys they lie anywhere in the buffer.
            if let Some(later) = self.list.get(n + AHEAD) {
                let value_len = if later.value_len == TOMBSTONE { 0 } else { later.value_len };
                let most = MOST_AHEAD.min(later.key_len as usize + value_len as usize);
                prefetch_all(&self.bytes[later.at..self.bytes.len().min(later.at + most)]);
            }
            let value = r.at + r.key_len as usize;
            let key = &self.bytes[r.at..value];
            (key, (r.value_len != TOMBSTONE).then(|| &self.bytes[value..value + r.value_len as usize]))
        })
    }

    /// None again, with the room that they took.
    pub(in crate::shard) fn clear(&mut self) {
        self.bytes.clear();
        self.list.clear();
        self.runs.clear();
    }

    /// Forgets the records; what the spans refer to stays.
    pub(in crate::shard) fn forget(&mut self) {
        self.list = Vec::new();
    }
}

impl Span {
    /// The last `len` bytes of it.
    #[inline]
    pub(in crate::shard) fn tail(self, len: usize) -> Span {
        debug_assert!(len <= self.len as usize);
        Span { at: self.at + self.len as usize - len, len: len as u32 }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn sorted_without_duplicates() {
        let mut records = Records::with_capacity(0);
        records.push(b"m/b", Some(b"1"));
        records.push(b"e/2", None);
        records.push(b"m/b", Some(b"2"));
        records.push(b"m/a", Some(b""));
        let raw_from = records.size_bytes();
        records.push(b"m/a", None);
        let mut more = Records::default();
        more.push_with(b"e/1", |out| out.extend_from_slice(b"counter"));
        records.append(&more);
        assert_eq!(records.len(), 6);
        records.sort(raw_from);
        let sorted: Vec<_> = records.iter().collect();
        let some = |value: &'static str| Some(value.as_bytes());
        let expected: [(&[u8], _); 4] =
            [(b"e/1", some("counter")), (b"e/2", None), (b"m/a", some("")), (b"m/b", some("2"))];
        assert_eq!(sorted, expected);
    }

    /// Runs are put in order as wholes where that does it; else all records are sorted.
    #[test]
    fn runs_are_sorted_like_single_records() {
        let of = |runs: &[&[&'static str]]| {
            let mut records = Records::default();
            for run in runs {
                records.begin_run();
                run.iter().for_each(|key| _ = records.push(key.as_bytes(), Some(b"value")));
            }
            records
        };
        let sorted = |runs: &[&[&'static str]]| {
            let mut records = of(runs);
            let twice = records.sort_distinct().map(|key| String::from_utf8_lossy(key).into_owned());
            let keys: Vec<_> = records.iter().map(|(key, _)| String::from_utf8_lossy(key).into_owned()).collect();
            (keys.join(" "), twice)
        };
        let right = |keys: &str| (keys.to_owned(), None);
        let four = [&["e/c/1", "e/c/2", "e/c/3"][..], &["m/c"], &[], &["e/a/1", "e/a/2", "e/a/3", "e/a/4"]];
        assert_eq!(sorted(&four), right("e/a/1 e/a/2 e/a/3 e/a/4 e/c/1 e/c/2 e/c/3 m/c"));
        assert!(of(&four).order_runs() && !of(&[&["a"], &["b"]]).order_runs(), "too many runs for their records");
        assert_eq!(sorted(&[&["e/c", "m/a"], &["e/d", "f"]]), right("e/c e/d f m/a"), "runs that overlap");
        assert_eq!(sorted(&[&["a", "c"], &["b", "c"]]).1.as_deref(), Some("c"));
        assert_eq!(sorted(&[&["a", "b"], &["b", "c"]]).1.as_deref(), Some("b"), "where one ends the next begins");
    }

    #[test]
    fn no_run_is_left_of_records_that_were_cleared() {
        let mut records = Records::default();
        for key in [b"a", b"b", b"c"] {
            records.begin_run();
            records.push(key, None);
        }
        records.clear();
        let keys: Vec<[u8; 1]> = (b'a'..=b'z').rev().map(|key| [key]).collect();
        keys.iter().for_each(|key| _ = records.push(key, None));
        assert_eq!(records.sort_distinct(), None);
        assert!(records.iter().map(|(key, _)| key).eq(keys.iter().rev()));
    }

    /// Few or many, with what keys begin with in common or not, and more of them than a head has; sorted once or again with
    /// more, or with few left: as a map would have them.
    #[test]
    fn any_number_is_sorted_as_a_map_would() {
        let mut state = 7;
        let mut random = || crate::util::splitmix::next(&mut state);
        for most in 0..3 * FEW {
            for keys in [3, 2 * FEW] {
                let (mut records, mut model) = (Records::default(), BTreeMap::new());
                for count in [most, most % 4, most] {
                    for _ in 0..count {
                        let n = random() as usize % keys;
                        let shared = &b"shared"[..6 * (n % 3) / 2];
                        let same = &b"more than seven"[..[0, 8, 15][n % 5 % 3]];
                        let key = [&b"et"[n % 2..], shared, same, &b"\0\0"[..n % 3], &[n as u8]].concat();
                        let value = (!n.is_multiple_of(5)).then(|| random().to_be_bytes());
                        records.push(&key, value.as_ref().map(|value| &value[..]));
                        model.insert(key, value);
                    }
                    records.sort(usize::MAX);
                    let all = model.iter().map(|(key, value)| (&key[..], value.as_ref().map(|value| &value[..])));
                    assert!(records.iter().eq(all), "{most} of {keys}");
                }
            }
        }
    }

    #[test]
    fn spans_outlive_the_list() {
        let mut records = Records::default();
        let whole = records.push(b"prefix:element", Some(b"value"));
        records.push(b"another", None);
        records.sort(usize::MAX);
        records.forget();
        assert_eq!(records.len(), 0);
        assert_eq!(records.key(whole), b"prefix:element");
        assert_eq!(records.key(whole.tail(7)), b"element");
    }
}
