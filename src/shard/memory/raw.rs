//! Records without an object that the next flush brings: garbage queue, dead namespaces, libraries, tombstones.

use super::core::Core;
use super::object::raw_bytes;
use crate::codec;

impl Core {
    /// Has the next flush write a record without an object, or remove it; counts as dirty, a second time where it takes the
    /// place of another. Answers what the flush was to do before.
    pub fn put_raw(&mut self, key: Vec<u8>, value: Option<Vec<u8>>) -> Option<Option<Vec<u8>>> {
        self.dirty_bytes += raw_bytes(&key, value.as_deref());
        self.replace_raw(key, Some(value))
    }

    /// What the next flush is to do with a record without an object; `None` for nothing. Answers what it was to do before.
    pub fn replace_raw(&mut self, key: Vec<u8>, new: Option<Option<Vec<u8>>>) -> Option<Option<Vec<u8>>> {
        let tag = key.first().copied().unwrap_or_default();
        let puts = |change: &Option<Option<Vec<u8>>>| matches!(change, Some(Some(_)));
        let now = puts(&new);
        let old = match new {
            Some(value) => self.raw.insert(key, value),
            None => self.raw.remove(&key),
        };
        if now != puts(&old) {
            match tag {
                codec::key::tag::GARBAGE => self.garbage.note(now),
                codec::key::tag::DEAD_NS => self.dead_names.note(now),
                _ => {}
            }
        }
        old
    }
}
