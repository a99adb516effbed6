//! Strings: small ones in the object itself, big ones in chunks.

use super::claim::{COPY_LIMIT, fill_as, set_tail};
use super::undo::Undo;
use super::{Found, Tells, Txn, WriteSet};
use crate::codec::{self, Meta, NsId, redo};
use crate::error::Result;
use crate::meter;
use crate::shard::memory::core::storage;
use crate::shard::memory::missing::{missing, read_element};
use crate::shard::memory::object::{Body, Kind, Object, state};
use crate::shard::memory::overlay::{self, Entry, Key};

/// A string longer than this is stored in chunks.
pub const BIG_STRING: usize = 64 << 10;
/// Bytes of a chunk.
pub const CHUNK: usize = 16 << 10;

/// Whether who goes through so many bytes of strings passes their chunks by: they would take much of what it may hold.
pub fn passes_by(bytes: usize) -> bool {
    bytes > meter::room() / 4
}

impl Txn<'_, '_> {
    /// Makes a key hold this string, whatever it held before. `expire_ms` is absolute, 0 for none.
    pub fn put_string(&mut self, ns: NsId, key: &[u8], value: &[u8], expire_ms: u64) -> Result<Found> {
        meter::foresee((value.len() / meter::STEP_BYTES) as u64)?;
        meter::step_through(value.len())?;
        let (at, hash, known) = self.find_to_overwrite(ns, key)?;
        if let Some(Some(index)) = known
            && value.len() <= COPY_LIMIT
            && self.lease[at as usize].table.at(index).is_string_up_to(COPY_LIMIT)
        {
            let at = Found { at, index };
            self.replace_short(at, value, expire_ms);
            return Ok(at);
        }
        let at = self.claim_to_overwrite((at, hash, known), ns, key, value.len());
        let core = &mut *self.lease[at.at as usize];
        fill_as(core, self.set, at, Kind::String, (self.now_ms, expire_ms));
        if value.len() > BIG_STRING {
            self.fill_big(at, value, value.len());
        } else {
            let object = core.table.at_mut(at.index);
            let before = object.mem_bytes();
            if object.state & state::DIRTY != 0 {
                core.dirty_bytes += value.len();
            }
            set_tail(&mut object.bytes, object.key_len as usize, value);
            core.table_bytes = core.table_bytes + object.mem_bytes() - before;
            let object = core.table.at(at.index);
            redo::encode_put_string(ns, object.key(), expire_ms, value, self.set.redo.out());
        }
        self.touch(at);
        Ok(at)
    }

    /// Puts a short string in the place of one, as most overwrites do: what [`Txn::claim`] and [`fill_as`] come to there, with one
    /// look at the object.
    fn replace_short(&mut self, at: Found, value: &[u8], expire_ms: u64) {
        let WriteSet { redo, arena, undo, .. } = &mut *self.set;
        let core = &mut *self.lease[at.at as usize];
        let object = core.table.at_mut(at.index);
        let Object { ns, lsn, kind, expire_ms: expired_ms, state, .. } = *object;
        let (key_len, capacity) = (object.key_len as usize, object.bytes.capacity());
        let len = object.bytes.len() - key_len;
        self.need = self.need.max(lsn);
        undo.push(Undo::Header { at, kind, expire_ms: expired_ms, state });
        undo.push(Undo::Value { at, from: arena.len(), len });
        arena.extend_from_slice(object.value());
        if len == value.len() {
            object.bytes[key_len..].copy_from_slice(value);
        } else {
            set_tail(&mut object.bytes, key_len, value);
            core.table_bytes = core.table_bytes + object.bytes.capacity() - capacity;
        }
        redo::encode_put_string(ns, object.key(), expire_ms, value, redo.out());
        object.state = (state | state::REFERENCED) & !state::ENCODING;
        if let Some(before) = core.uses.note(object, self.now_ms, core.commands) {
            self.set.note_use(at, before);
        }
        if state & state::DIRTY != 0 && len != value.len() {
            core.count_less(len);
            core.dirty_bytes += value.len();
        }
        if expired_ms != expire_ms {
            core.set_expire(at.index, expire_ms);
        }
        core.touch_dirty(at.index);
        self.note_touched(at, Tells::Everybody);
    }

    /// Gives an object without value a body of chunks. Its size stands in the first record already, as it tells a string
    /// in chunks from one without.
    fn fill_big(&mut self, at: Found, value: &[u8], size: usize) {
        let mut body = Box::new(Body::new());
        body.size = size as u64;
        let object = self.object(at);
        let ns = object.ns;
        let meta = Meta { expire_ms: object.expire_ms, size: body.size, ..Meta::new(codec::Kind::String) };
        let key = object.key().to_vec();
        self.set.push_put(ns, &key, &meta, b"");
        for (number, chunk) in value.chunks(CHUNK).enumerate() {
            let element = chunk_element(number as u32);
            redo::encode_elem_put(&element, chunk, self.set.redo.of_body(ns, &key, 0));
            body.overlay.insert(Entry::new(&element, Some(chunk), overlay::state::DIRTY));
        }
        let dirty = body.overlay.bytes();
        let core = &mut *self.lease[at.at as usize];
        let object = core.table.at_mut(at.index);
        core.table_bytes -= object.mem_bytes();
        object.body = Some(body);
        core.table_bytes += object.mem_bytes();
        core.dirty_bytes += dirty;
        self.set.undo.push(Undo::Body { at, body: None, dirty_bytes: 0 });
    }

    /// Marks a string just put with bits of [`state::ENCODING`], which only `OBJECT ENCODING` looks at.
    pub fn mark_encoding(&mut self, at: Found, bits: u8) {
        self.object_mut(at).state |= bits & state::ENCODING;
    }

    /// Length of a live string.
    pub fn string_len(&self, at: Found) -> usize {
        let object = self.object(at);
        object.body.as_ref().map_or(object.bytes.len() - object.key_len as usize, |b| b.size as usize)
    }

    /// Appends `start..end` of a live string to `out`; what lies beyond its end is left out. Rests between slices of what is long.
    pub fn string_range(&mut self, at: Found, start: usize, end: usize, out: &mut Vec<u8>) -> Result {
        self.copy_range(at, (start, end), passes_by(end.min(self.string_len(at)).saturating_sub(start)), out)
    }

    /// The same. Whether chunks are passed by: [`Txn::chunk_in_passing`].
    pub fn copy_range(&mut self, at: Found, (start, end): (usize, usize), passes: bool, out: &mut Vec<u8>) -> Result {
        let end = end.min(self.string_len(at));
        if start >= end {
            return Ok(());
        }
        meter::foresee(((end - start) / meter::STEP_BYTES) as u64)?;
        if self.object(at).body.is_none() {
            out.extend_from_slice(&self.object(at).value()[start..end]);
            return Ok(());
        }
        let (ns, first) = (self.object(at).ns, start / CHUNK);
        for number in first..=(end - 1) / CHUNK {
            self.rest_between_chunks(ns, number - first, || Ok(()))?;
            meter::step_through(CHUNK)?;
            let base = number * CHUNK;
            let (from, to) = (start.max(base) - base, end.min(base + CHUNK) - base);
            let behind = out.len() + to - from;
            self.chunk_in_passing(at, number as u32, passes, |chunk| {
                out.extend_from_slice(&chunk[from.min(chunk.len())..to.min(chunk.len())]);
            })?;
            out.resize(behind, 0);
        }
        Ok(())
    }

    /// The bytes of a chunk, empty if it is absent: absent chunks read as zeros.
    pub fn chunk(&mut self, at: Found, number: u32) -> Result<&[u8]> {
        Ok(self.element(at, &chunk_element(number))?.unwrap_or_default())
    }

    /// Hands the bytes of a chunk to `visit`. If it is passed by it is not taken into memory, where it would stay to the end of
    /// the command and be held.
    pub fn chunk_in_passing<R>(
        &mut self,
        at: Found,
        number: u32,
        passes: bool,
        visit: impl FnOnce(&[u8]) -> R,
    ) -> Result<R> {
        let key = chunk_element(number);
        if !passes || missing(self.object(at), &key).is_none() {
            return self.chunk(at, number).map(visit);
        }
        meter::step(1)?;
        let core = &self.lease[at.at as usize];
        let object = core.table.at(at.index);
        let value = read_element(core, object, &key, &mut self.set.reads)?.map_err(|e| storage(object.key(), e))?;
        Ok(visit(value.as_deref().unwrap_or_default()))
    }

    /// The first chunk from this one on that may hold bytes; `None` if all are absent from there.
    pub fn next_chunk(&self, at: Found, number: u32) -> Option<u32> {
        let overlay = &self.object(at).body.as_deref()?.overlay;
        if !overlay.complete {
            return Some(number);
        }
        let from = std::ops::Bound::Included(&chunk_element(number)[..]);
        let entry = overlay.range(from, std::ops::Bound::Unbounded).next()?;
        match *entry.key() {
            [_, a, b, c, d] => Some(u32::from_be_bytes([a, b, c, d])),
            _ => Some(number),
        }
    }

    /// Overwrites bytes of a live string from `offset` on; beyond its end it grows, zeros between.
    pub fn splice(&mut self, at: Found, offset: usize, bytes: &[u8]) -> Result {
        meter::step_through(bytes.len())?;
        let old_len = self.string_len(at);
        let new_len = old_len.max(offset + bytes.len());
        if bytes.is_empty() && new_len == old_len {
            return Ok(());
        }
        meter::foresee((bytes.len() / meter::STEP_BYTES) as u64)?;
        if self.object(at).body.is_none() {
            if new_len <= BIG_STRING {
                self.splice_small(at, offset, bytes, old_len, new_len);
                return Ok(());
            }
            self.make_big(at, new_len);
        }
        self.splice_big(at, offset, bytes, new_len)
    }

    fn splice_small(&mut self, at: Found, offset: usize, bytes: &[u8], old_len: usize, new_len: usize) {
        self.note_header(at);
        let core = &mut *self.lease[at.at as usize];
        let object = core.table.at_mut(at.index);
        redo::encode_patch(object.ns, object.key(), offset as u64, bytes, self.set.redo.out());
        let before = object.mem_bytes();
        let key_len = object.key_len as usize;
        let (from, covered) = cover(&mut self.set.arena, &object.bytes[key_len..], offset, bytes.len());
        self.set.undo.push(Undo::Splice { at, offset, from, len: covered, old_len });
        object.bytes.resize(key_len + new_len, 0);
        object.bytes[key_len + offset..key_len + offset + bytes.len()].copy_from_slice(bytes);
        object.state |= state::RAW;
        core.table_bytes = core.table_bytes + object.mem_bytes() - before;
        if object.state & state::DIRTY != 0 {
            core.dirty_bytes += new_len - old_len;
        }
        self.touch(at);
    }

    /// Turns a small string into one of chunks that is about to have this length.
    fn make_big(&mut self, at: Found, size: usize) {
        let value = self.object(at).value().to_vec();
        self.note_header(at);
        self.strip(at);
        self.fill_big(at, &value, size);
        self.touch(at);
    }

    fn splice_big(&mut self, at: Found, offset: usize, bytes: &[u8], new_len: usize) -> Result {
        self.note_header(at);
        if new_len as u64 != self.object(at).body.as_ref().map_or(0, |b| b.size) {
            self.resize_big(at, new_len as u64);
        }
        let mut done = 0;
        while done < bytes.len() {
            let position = offset + done;
            let within = position % CHUNK;
            let part = &bytes[done..bytes.len().min(done + CHUNK - within)];
            self.splice_chunk(at, (position / CHUNK) as u32, within, part)?;
            done += part.len();
        }
        self.touch(at);
        Ok(())
    }

    fn resize_big(&mut self, at: Found, size: u64) {
        self.change_body(at, |body| body.size = size);
    }

    fn splice_chunk(&mut self, at: Found, number: u32, offset: usize, bytes: &[u8]) -> Result {
        let key = chunk_element(number);
        if self.element(at, &key)?.is_none() {
            let mut value = vec![0; offset + bytes.len()];
            value[offset..].copy_from_slice(bytes);
            return self.put_element(at, &key, &value).map(drop);
        }
        let WriteSet { redo, arena, undo, .. } = &mut *self.set;
        let core = &mut *self.lease[at.at as usize];
        let object = core.table.at_mut(at.index);
        let key_len = object.key_len as usize;
        let Some(body) = &mut object.body else { return Ok(()) };
        let out = redo.of_body(object.ns, &object.bytes[..key_len], body.version);
        redo::encode_elem_patch(&key, offset as u64, bytes, out);
        let before = body.overlay.bytes();
        let done = body.overlay.update(&key, |element| {
            let before = element.dirty_bytes();
            let value = element.value()?;
            let old_len = value.len();
            let (from, len) = cover(arena, value, offset, bytes.len());
            element.resize_value(old_len.max(offset + bytes.len()));
            let value = element.value_mut()?;
            value[offset..offset + bytes.len()].copy_from_slice(bytes);
            let state = element.state;
            element.state |= overlay::state::DIRTY;
            let dirty = element.dirty_bytes() - before;
            Some((Undo::ElementSplice { at, key: Key::from_slice(&key), offset, from, len, old_len, state }, dirty))
        });
        core.table_bytes = core.table_bytes + body.overlay.bytes() - before;
        if let Some(Some((inverse, dirty))) = done {
            undo.push(inverse);
            core.dirty_bytes += dirty;
        }
        Ok(())
    }
}

/// The element of a big string's chunk.
pub fn chunk_element(number: u32) -> [u8; 5] {
    let [a, b, c, d] = number.to_be_bytes();
    [codec::element::Group::StringChunk.tag(), a, b, c, d]
}

/// Copies what a splice will cover to the arena; where it begins there, and how much it is.
fn cover(arena: &mut Vec<u8>, value: &[u8], offset: usize, len: usize) -> (usize, usize) {
    let from = arena.len();
    let covered = &value[offset.min(value.len())..(offset + len).min(value.len())];
    arena.extend_from_slice(covered);
    (from, covered.len())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::shard::keyspace::walk::tests::engine;

    /// A short string in the place of one is counted and taken back as any other: from every length to every other, with and
    /// without a time.
    #[test]
    fn a_short_string_in_the_place_of_one_is_counted_and_taken_back() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let engine = engine(dir.path(), 1);
        let ns = engine.first_names().id(b"0").unwrap();
        let long = vec![b'v'; 2 * COPY_LIMIT];
        let lens = [0, 1, 32, COPY_LIMIT, COPY_LIMIT + 1, 2 * COPY_LIMIT];
        let times = [0, 1 << 50, 1 << 51];
        let put = |len: usize, expire_ms: u64, fails: bool| {
            engine.transact(&[0], 1, |txn| {
                let at = txn.put_string(ns, b"key", &long[..len], expire_ms)?;
                assert_eq!((txn.object(at).value(), txn.object(at).expire_ms), (&long[..len], expire_ms));
                if fails { Err(crate::error::Error::Syntax) } else { Ok(()) }
            })
        };
        // What is dirty beside the object does not change.
        let seen = || {
            let core = engine.shards.at(0).core();
            core.check();
            let (_, object) = core.table.iter().next().unwrap();
            (core.dirty_bytes - core.dirty_again_bytes(), object.value().to_vec(), object.expire_ms, object.state)
        };
        put(0, 0, false).unwrap();
        let (beside, ..) = seen();
        for (before, then) in lens.into_iter().flat_map(|before| lens.map(|then| (before, then))) {
            for (was_ms, expire_ms) in times.into_iter().flat_map(|was| times.map(|then| (was, then))) {
                put(before, was_ms, false).unwrap();
                let known = seen();
                assert!(put(then, expire_ms, true).is_err());
                assert_eq!(seen(), known, "{before} bytes until {was_ms} over {then} until {expire_ms}");
                put(then, expire_ms, false).unwrap();
                let (counted, value, at_ms, _) = seen();
                assert_eq!((counted, value.len(), at_ms), (beside, then, expire_ms));
            }
        }
    }

    /// What OBJECT ENCODING goes by is forgotten, and a string whose time is past has expired; neither by who fails.
    #[test]
    fn a_short_string_in_the_place_of_one_is_of_its_own_encoding_and_time() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let engine = engine(dir.path(), 1);
        let ns = engine.first_names().id(b"0").unwrap();
        let put = |now_ms: u64, value: &[u8], expire_ms: u64, fails: bool| {
            engine.transact(&[0], now_ms, |txn| {
                txn.put_string(ns, b"key", value, expire_ms)?;
                if fails { Err(crate::error::Error::Syntax) } else { Ok(()) }
            })
        };
        let seen = || {
            let core = engine.shards.at(0).core();
            let (_, object) = core.table.iter().next().unwrap();
            (object.state & state::ENCODING, object.value().to_vec(), object.expire_ms, core.stats.expired_keys)
        };
        put(1, b"12", 5, false).unwrap();
        engine
            .transact(&[0], 1, |txn| {
                let at = txn.find(ns, b"key")?.unwrap();
                txn.splice(at, 1, b"3")
            })
            .unwrap();
        let changed = (state::RAW, b"13".to_vec(), 5, 0);
        assert_eq!(seen(), changed);
        assert!(put(9, b"14", 0, true).is_err());
        assert_eq!(seen(), changed);
        put(9, b"14", 0, false).unwrap();
        assert_eq!(seen(), (0, b"14".to_vec(), 0, 1));
    }
}
