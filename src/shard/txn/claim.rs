//! Objects that are filled anew: what they held is put aside, what they will hold is noted.

use super::strings::BIG_STRING;
use super::undo::Undo;
use super::{Found, Txn, WriteSet, dirty_share};
use crate::codec::{NsId, redo};
use crate::error::Result;
use crate::meter;
use crate::shard::memory::core::Core;
use crate::shard::memory::object::{Kind, state};
use crate::shard::memory::table::Index;

/// Values up to this length are copied aside for undo; longer ones are moved.
pub(super) const COPY_LIMIT: usize = 1 << 10;

/// See [`Txn::find_to_overwrite`].
pub(super) type ToOverwrite = (u16, u64, Option<Option<Index>>);

impl Txn<'_, '_> {
    /// What there is of a key whose value does not matter: core, hash, and the object, if any. `None` where only fjall knows.
    #[inline]
    pub(super) fn find_to_overwrite(&mut self, ns: NsId, key: &[u8]) -> Result<ToOverwrite> {
        if self.looks {
            let (at, hash, index) = self.raw_find(ns, key)?;
            return Ok((at, hash, Some(index)));
        }
        meter::step(1)?;
        let (hash, at) = self.place(key)?;
        let known = self.lease[at as usize].fault_to_overwrite(hash, ns, key, &mut self.set.reads)?;
        Ok((at, hash, known))
    }

    /// An object to be filled anew, for a key of which this was found: if only fjall knows it, it becomes blind.
    #[inline]
    pub(super) fn claim_to_overwrite(
        &mut self,
        (at, hash, known): ToOverwrite,
        ns: NsId,
        key: &[u8],
        capacity: usize,
    ) -> Found {
        let found = self.claim(at, hash, known.flatten(), ns, key, capacity);
        if known.is_none() {
            let core = &mut *self.lease[at as usize];
            core.stats.blind_writes += 1;
            let number = core.set_blind(found.index);
            redo::encode_blind(ns, key, number, self.set.redo.out());
        }
        found
    }

    /// An object to be filled anew: the one there, stripped, or a new one.
    pub(super) fn claim(
        &mut self,
        at: u16,
        hash: u64,
        index: Option<Index>,
        ns: NsId,
        key: &[u8],
        capacity: usize,
    ) -> Found {
        match index {
            Some(index) => {
                let found = Found { at, index };
                let object = self.object(found);
                let (lsn, is_absent) = (object.lsn, object.kind == Kind::Absent);
                let is_newborn = object.body.as_ref().is_some_and(|body| body.version == 0);
                self.need = self.need.max(lsn);
                self.note_header(found);
                if is_newborn {
                    // Born in this very record, as its successor may be: only a removal between tells them apart when
                    // the record is replayed, else elements of the one would turn up in the other.
                    redo::encode_delete(ns, key, self.set.redo.out());
                }
                self.strip(found);
                if is_absent {
                    self.add_count(at, ns, 1);
                    // Its tombstone may be on its way: fjall cannot be relied on to show the key.
                    self.object_mut(found).state &= !state::STORED;
                    self.lease[at as usize].order_insert(index);
                }
                found
            }
            None => {
                let capacity = if capacity > BIG_STRING { 0 } else { capacity };
                let index = self.lease[at as usize].create(hash, ns, key, capacity);
                let found = Found { at, index };
                self.set.undo.push(Undo::Created { at: found });
                self.add_count(at, ns, 1);
                found
            }
        }
    }

    /// Takes value and body of an object aside, so that a rollback can bring them back; the body's elements become
    /// garbage if fjall may hold some.
    pub(super) fn strip(&mut self, at: Found) {
        let core = &mut *self.lease[at.at as usize];
        let object = core.table.at_mut(at.index);
        let before = object.mem_bytes();
        let key_len = object.key_len as usize;
        let len = object.bytes.len() - key_len;
        let dirty = object.state & state::DIRTY != 0;
        if len > COPY_LIMIT {
            let key = object.bytes[..key_len].to_vec();
            let bytes = std::mem::replace(&mut object.bytes, key);
            self.set.undo.push(Undo::Moved { at, bytes });
        } else {
            // Also of an empty value: a rollback must take away what comes in its place.
            let from = self.set.arena.len();
            self.set.arena.extend_from_slice(&object.bytes[key_len..]);
            object.bytes.truncate(key_len);
            self.set.undo.push(Undo::Value { at, from, len });
        }
        let body = object.body.take();
        let after = object.mem_bytes();
        core.table_bytes = core.table_bytes + after - before;
        if dirty {
            core.count_less(len);
        }
        if let Some(body) = body {
            // What would have been flushed of it will not be.
            let counted = core.dirty_bytes;
            core.count_less(dirty_share(&body));
            let dirty_bytes = counted - core.dirty_bytes;
            if body.maybe_stored {
                self.queue_garbage(at, body.version);
            }
            self.set.undo.push(Undo::Body { at, body: Some(body), dirty_bytes });
        }
    }
}

/// An object that was claimed holds a value of this kind from now on. `expire_ms` is absolute, 0 for none.
#[inline]
pub(super) fn fill_as(core: &mut Core, set: &mut WriteSet, at: Found, kind: Kind, (now_ms, expire_ms): (u64, u64)) {
    let object = core.table.at_mut(at.index);
    if let Some(before) = core.uses.note(object, now_ms, core.commands) {
        set.note_use(at, before);
    }
    object.kind = kind;
    object.state = (object.state | state::REFERENCED) & !state::ENCODING;
    core.set_expire(at.index, expire_ms);
}

/// Replaces what follows the first `start` bytes; keeps the allocation unless it is far too large.
#[inline]
pub(super) fn set_tail(bytes: &mut Vec<u8>, start: usize, tail: &[u8]) {
    bytes.truncate(start);
    let need = start + tail.len();
    if bytes.capacity() < need {
        bytes.reserve_exact(tail.len());
    } else if bytes.capacity() > 256 && bytes.capacity() > need * 2 {
        bytes.shrink_to(need);
    }
    bytes.extend_from_slice(tail);
}
