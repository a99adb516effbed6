//! Records as fjall is to get them in one ingestion, encoded into one buffer. What else a flight knows of a record refers to
//! its bytes there: a second copy of a key would cost as much memory as the element that is being brought away.

/// A key within the buffer.
#[derive(Debug, Clone, Copy)]
pub(in crate::shard) struct Span {
    at: usize,
    len: u32,
}

#[derive(Debug, Clone, Copy)]
struct Record {
    /// Eight bytes of the key after what all keys of its group begin with: decides nearly every comparison.
    head: u64,
    at: usize,
    key_len: u32,
    /// [`TOMBSTONE`] for a removal.
    value_len: u32,
}

const TOMBSTONE: u32 = u32::MAX;

/// Encoded records, in order after [`Records::sort`].
#[derive(Debug, Default)]
pub(in crate::shard) struct Records {
    bytes: Vec<u8>,
    list: Vec<Record>,
}

impl Records {
    /// None yet, with room for so many bytes.
    pub(in crate::shard) fn with_capacity(bytes: usize) -> Self {
        Records { bytes: Vec::with_capacity(bytes), list: Vec::new() }
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
        self.bytes.len() + self.list.len() * size_of::<Record>()
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
        let Records { bytes, list } = self;
        let key = |r: &Record| &bytes[r.at..r.at + r.key_len as usize];
        list.dedup_by(|later, kept| later.head == kept.head && key(later) == key(kept));
    }

    /// Sorts records of which no two are to have the same key. One that two have.
    pub(in crate::shard) fn sort_distinct(&mut self) -> Option<&[u8]> {
        self.order(usize::MAX);
        let key = |r: &Record| &self.bytes[r.at..r.at + r.key_len as usize];
        let twice = self.list.windows(2).find(|two| two[0].head == two[1].head && key(&two[0]) == key(&two[1]));
        twice.map(|two| key(&two[0]))
    }

    fn order(&mut self, raw_from: usize) {
        let Records { bytes, list } = self;
        let raw = |r: &Record| r.at >= raw_from;
        let key = |r: &Record| &bytes[r.at..r.at + r.key_len as usize];
        let mut shared = [usize::MAX; 256];
        let mut first: [&[u8]; 256] = [&[]; 256];
        for record in list.iter() {
            let key = key(record);
            let tag = key[0] as usize;
            if shared[tag] == usize::MAX {
                (shared[tag], first[tag]) = (key.len(), key);
            }
            let most = shared[tag].min(key.len());
            let same = key[..most].iter().zip(first[tag]).position(|(a, b)| a != b);
            shared[tag] = same.unwrap_or(most);
        }
        for record in list.iter_mut() {
            let key = key(record);
            let rest = &key[shared[key[0] as usize]..];
            let mut head = [0; 8];
            let len = rest.len().min(8);
            head[..len].copy_from_slice(&rest[..len]);
            record.head = u64::from_be_bytes(head);
        }
        list.sort_unstable_by(|a, b| {
            let by_head = bytes[a.at].cmp(&bytes[b.at]).then(a.head.cmp(&b.head));
            by_head.then_with(|| key(a).cmp(key(b))).then(raw(a).cmp(&raw(b))).then(b.at.cmp(&a.at))
        });
    }

    /// Keys, and values or tombstones.
    pub(in crate::shard) fn iter(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        self.list.iter().map(|r| {
            let value = r.at + r.key_len as usize;
            let key = &self.bytes[r.at..value];
            (key, (r.value_len != TOMBSTONE).then(|| &self.bytes[value..value + r.value_len as usize]))
        })
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
