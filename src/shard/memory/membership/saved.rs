//! A filter of keys on disk, between a clean end and the next start.
//!
//! | bytes | part |
//! |---|---|
//! | 8 | keys in it when it was complete |
//! | 8 | layers |
//! | | then each layer, as large as its place among them has it: |
//! | 8 | keys in it |
//! | 64 a block | its bits, in words of eight bytes |
//! | | and at the end |
//! | 8 | XXH3-64 of all bytes before |
//!
//! Integers are little-endian. Whoever changes how a key's hash or its bits come about changes the file's first bytes
//! (`shard/open/filters.rs`): an old one would say of keys that they are not there.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use xxhash_rust::xxh3::Xxh3;

use super::{BLOCK_BYTES, FIRST_LAYER_BLOCKS, Filter, Layer, Membership};

/// Bytes that are read or written at once.
const CHUNK: usize = 64 << 10;
/// More layers than memory has room for.
const MOST_LAYERS: u64 = 32;

/// Where a filter lies that has the keys of all tables that its partition had when it was opened.
pub struct Saved {
    /// The file, which may have no name any more.
    pub file: Arc<File>,
    /// Where it begins.
    pub at: u64,
}

/// A filter that was complete when it was saved.
pub struct Restored {
    filter: Filter,
    complete_with: usize,
}

/// What goes through is summed up.
struct Summed<T> {
    inner: T,
    sum: Xxh3,
}

impl<T> Summed<T> {
    fn new(inner: T) -> Self {
        Summed { inner, sum: Xxh3::new() }
    }
}

impl<W: Write> Summed<W> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sum.update(bytes);
        self.inner.write_all(bytes)
    }
}

impl<R: Read> Summed<R> {
    fn take(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.inner.read_exact(bytes)?;
        self.sum.update(bytes);
        Ok(())
    }

    fn number(&mut self) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.take(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }
}

/// The rest of a file.
struct From<'a>(&'a Saved, u64);

impl Read for From<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let From(saved, done) = self;
        let read = saved.file.read_at(bytes, saved.at + *done)?;
        *done += read as u64;
        Ok(read)
    }
}

impl Layer {
    /// Its words, without what stands around them.
    fn used_words(&self) -> std::ops::Range<usize> {
        self.first..self.first + self.blocks * BLOCK_BYTES / size_of::<u64>()
    }
}

impl Membership {
    /// Bytes that the filter takes when it is saved; `None` if it is not complete.
    pub fn saved_bytes(&self) -> Option<u64> {
        let filter = self.filter.as_ref()?;
        Some((filter.bytes() + (3 + filter.layers.len()) * size_of::<u64>()) as u64)
    }

    /// Writes so many bytes; nothing if it is not complete.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn save(&self, out: &mut impl Write) -> io::Result<()> {
        let Some(filter) = &self.filter else { return Ok(()) };
        let mut out = Summed::new(out);
        for number in [self.complete_with, filter.layers.len()] {
            out.put(&(number as u64).to_le_bytes())?;
        }
        let mut chunk = Vec::with_capacity(CHUNK);
        for layer in &filter.layers {
            out.put(&(layer.used as u64).to_le_bytes())?;
            for words in layer.words[layer.used_words()].chunks(CHUNK / size_of::<u64>()) {
                chunk.clear();
                words.iter().for_each(|word| chunk.extend_from_slice(&word.to_le_bytes()));
                out.put(&chunk)?;
            }
        }
        out.inner.write_all(&out.sum.digest().to_le_bytes())
    }

    /// A start has found this one, which holds as long as no key is added.
    pub fn was_saved(&mut self, saved: Option<Saved>) {
        self.saved = saved;
    }

    /// What was found, once, and what a filter may take.
    pub fn take_saved(&mut self) -> Option<(Saved, usize)> {
        Some((self.saved.take()?, self.most_bytes))
    }

    /// It is complete with this one, unless it has become so in another way, or fjall has got keys since it was opened.
    pub(super) fn restore(&mut self, Restored { filter, complete_with }: Restored) {
        let bytes = filter.bytes();
        if self.untouched && self.filter.is_none() && self.filling.is_none() && bytes <= self.most_bytes {
            (self.filter, self.complete_with, self.bytes) = (Some(filter), complete_with, bytes);
        }
    }
}

impl Saved {
    /// Reads it; `None` if it would take more than `most_bytes`, is damaged, or cannot be read.
    pub fn load(&self, most_bytes: usize) -> Option<Restored> {
        let read = self.read(most_bytes);
        read.unwrap_or_else(|error| {
            tracing::warn!(%error, "a filter of keys is filled anew");
            None
        })
    }

    fn read(&self, most_bytes: usize) -> io::Result<Option<Restored>> {
        let mut input = Summed::new(BufReader::with_capacity(CHUNK, From(self, 0)));
        let (complete_with, layers) = (input.number()? as usize, input.number()?);
        let (mut filter, mut chunk, mut bytes) = (Filter::default(), vec![0; CHUNK], 0usize);
        for n in 0..layers.min(MOST_LAYERS) {
            let (blocks, used) = (FIRST_LAYER_BLOCKS << n, input.number()? as usize);
            bytes = bytes.saturating_add(blocks * BLOCK_BYTES);
            if bytes > most_bytes {
                return Ok(None);
            }
            let mut layer = Layer { used, ..Layer::new(blocks) };
            let words = layer.used_words();
            for words in layer.words[words].chunks_mut(CHUNK / size_of::<u64>()) {
                let chunk = &mut chunk[..size_of_val(words)];
                input.take(chunk)?;
                let read = chunk.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
                words.iter_mut().zip(read).for_each(|(word, read)| *word = read);
            }
            filter.layers.push(layer);
        }
        let sum = input.sum.digest();
        let is_whole = input.number()? == sum && layers <= MOST_LAYERS;
        Ok(is_whole.then_some(Restored { filter, complete_with }))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::shard::memory::table::table_hash;
    use crate::shard::router::Router;
    use crate::util::scratch::tempdir;

    /// Of a table that may take so much, opened with something.
    fn opened(limit_bytes: usize) -> Membership {
        let mut membership = Membership::of_table(limit_bytes);
        membership.opened_with(0, b"x");
        membership
    }

    fn filled(keys: u32) -> Membership {
        let mut membership = opened(64 << 20);
        membership.refill(Vec::new());
        membership.fill(&(0..keys).collect::<Vec<_>>());
        membership.filled_to(None);
        membership
    }

    fn saved(membership: &Membership) -> Vec<u8> {
        let mut bytes = Vec::new();
        membership.save(&mut bytes).unwrap();
        assert_eq!(bytes.len() as u64, membership.saved_bytes().unwrap_or_default());
        bytes
    }

    fn loaded(bytes: &[u8], most_bytes: usize) -> Option<Restored> {
        let dir = tempdir().unwrap();
        let path = dir.path().join("filter");
        std::fs::write(&path, [b"before", bytes, b"behind"].concat()).unwrap();
        Saved { file: Arc::new(File::open(path).unwrap()), at: 6 }.load(most_bytes)
    }

    /// Whether there is a filter, and what passes it.
    fn passes(membership: &Membership) -> (bool, Vec<u32>) {
        let keys = (0..20_000).filter(|&hash| membership.may_contain(hash, 0, b""));
        (membership.is_complete(), keys.collect())
    }

    #[test]
    fn what_was_saved_answers_as_before() {
        for keys in [0, 1, 5_000] {
            let before = filled(keys);
            let mut after = opened(64 << 20);
            after.restore(loaded(&saved(&before), 64 << 20).unwrap());
            assert!(passes(&after) == passes(&before) && passes(&after).1.len() >= keys as usize);
            assert_eq!((after.check_bytes(), after.complete_with), (before.check_bytes(), before.complete_with));
            after.insert(19_999, 0, b"");
            assert!(after.may_contain(19_999, 0, b""));
        }
    }

    #[test]
    fn one_that_is_not_complete_is_not_saved() {
        assert_eq!(saved(&opened(1 << 20)), b"");
    }

    #[test]
    fn one_that_does_not_hold_any_more_is_left() {
        let bytes = saved(&filled(5_000));
        let restored = || loaded(&bytes, 64 << 20).unwrap();
        type Change = fn(&mut Membership);
        let cases: [(&str, Change); 3] = [
            ("a key was added since", |membership| membership.insert(7, 0, b"7")),
            ("another one is being filled", |membership| membership.refill(Vec::new())),
            ("it has no room", |membership| membership.resize(1 << 10)),
        ];
        for (what, change) in cases {
            let mut membership = opened(64 << 20);
            change(&mut membership);
            membership.restore(restored());
            assert!(!membership.is_complete() && membership.check_bytes() == 0, "{what}");
        }
        let mut new = Membership::of_table(64 << 20);
        new.restore(restored());
        assert_eq!(passes(&new), (true, vec![]), "beside an empty fjall");
    }

    /// However it is damaged, and whatever its numbers say that they take.
    #[test]
    fn a_damaged_one_is_not_used() {
        let bytes = saved(&filled(500));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            assert!(loaded(&damaged, 1 << 20).is_none(), "byte {at}");
        }
        for len in (0..bytes.len()).step_by(7) {
            assert!(loaded(&[&bytes[..len], &[0; 8]].concat(), 1 << 20).is_none(), "{len} bytes");
        }
        assert!(loaded(&bytes, 1 << 10).is_none(), "it takes more than it may");
        assert!(loaded(&bytes, 1 << 20).is_some());
    }

    /// An old file must not be asked of hashes and bits that come about in another way: where these change, so do the file's first
    /// bytes.
    #[test]
    fn its_bytes_are_those_of_the_files_version() {
        let bytes = saved(&filled(3));
        let hash = table_hash(Router::new([1, 2], 1).hash(b"key"), 5);
        assert_eq!((hash, xxhash_rust::xxh3::xxh3_64(&bytes)), (1_366_895_808, 9_698_598_982_177_337_642));
    }
}
