//! The map from namespace names to ids: one record, in shard 0.
//!
//! `next id: varint` `names: varint` then for each name, in byte order: `len: varint` `name` `id: varint`.
//!
//! Invariants: names strictly ascend, every id is below the next id and stands once. `next id` never goes down, so
//! that the id of a dead namespace never returns, however long its records linger.

use super::cursor::{Cursor, push_slice, push_varint};
use super::{CodecError, NsId};
use std::collections::BTreeMap;

/// Names of all namespaces and the id of each.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NamespaceMap {
    names: BTreeMap<Box<[u8]>, NsId>,
    next: NsId,
}

impl NamespaceMap {
    /// The id of a name.
    pub fn get(&self, name: &[u8]) -> Option<NsId> {
        self.names.get(name).copied()
    }

    /// Gives a name, new or not, an id never used before, and says which it had. `None` when all ids are used up.
    pub fn renew(&mut self, name: &[u8]) -> Option<(NsId, Option<NsId>)> {
        let id = self.next;
        self.next = id.checked_add(1)?;
        Some((id, self.names.insert(name.into(), id)))
    }

    /// Exchanges the ids of two names; false, and nothing done, unless both exist.
    pub fn swap(&mut self, a: &[u8], b: &[u8]) -> bool {
        let (Some(id_a), Some(id_b)) = (self.get(a), self.get(b)) else { return false };
        self.names.insert(a.into(), id_b);
        self.names.insert(b.into(), id_a);
        true
    }

    /// Takes a name out and says which id it had.
    pub fn remove(&mut self, name: &[u8]) -> Option<NsId> {
        self.names.remove(name)
    }

    /// Every name with its id, in byte order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], NsId)> {
        self.names.iter().map(|(name, &id)| (&**name, id))
    }

    /// Number of names.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether there is no name at all.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Whether records of `id` are dead: no name leads to them.
    pub fn is_dead(&self, id: NsId) -> bool {
        !self.names.values().any(|&live| live == id)
    }

    /// Whether an id was ever given to a name.
    pub const fn was_given(&self, id: NsId) -> bool {
        id < self.next
    }

    /// Appends the record's value.
    pub fn encode(&self, out: &mut Vec<u8>) {
        push_varint(u64::from(self.next), out);
        push_varint(self.names.len() as u64, out);
        for (name, &id) in &self.names {
            push_slice(name, out);
            push_varint(u64::from(id), out);
        }
    }

    /// Decodes the record's value and checks the invariants.
    pub fn decode(bytes: &[u8]) -> Result<NamespaceMap, CodecError> {
        let mut cursor = Cursor::new(bytes);
        let mut map = NamespaceMap { names: BTreeMap::new(), next: cursor.varint_u32()? };
        let mut ids = std::collections::HashSet::new();
        for _ in 0..cursor.varint()? {
            let name = cursor.slice()?;
            let id = cursor.varint_u32()?;
            if map.names.last_key_value().is_some_and(|(last, _)| **last >= *name) {
                return Err(CodecError::Namespaces("names out of order"));
            }
            if id >= map.next || !ids.insert(id) {
                return Err(CodecError::Namespaces("an id stands twice or was never given"));
            }
            map.names.insert(name.into(), id);
        }
        cursor.finish()?;
        Ok(map)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn encoded(map: &NamespaceMap) -> Vec<u8> {
        let mut out = Vec::new();
        map.encode(&mut out);
        out
    }

    #[test]
    fn map_bytes_are_pinned() {
        let mut map = NamespaceMap::default();
        map.renew(b"0").unwrap();
        map.renew(b"users").unwrap();
        map.renew(b"0").unwrap();
        assert_eq!(encoded(&map), b"\x03\x02\x010\x02\x05users\x01");
    }

    #[test]
    fn ids_are_never_given_again() {
        let mut map = NamespaceMap::default();
        assert_eq!(map.renew(b"0"), Some((0, None)));
        assert_eq!(map.renew(b"0"), Some((1, Some(0))));
        assert!(map.is_dead(0) && !map.is_dead(1));
        assert_eq!(map.remove(b"0"), Some(1));
        let mut map = NamespaceMap::decode(&encoded(&map)).unwrap();
        assert!(map.is_empty());
        assert_eq!(map.renew(b"0"), Some((2, None)));
        assert!(!map.swap(b"0", b"1"));
        map.renew(b"1").unwrap();
        assert!(map.swap(b"0", b"1"));
        assert_eq!((map.get(b"0"), map.get(b"1"), map.len()), (Some(3), Some(2), 2));
    }

    #[test]
    fn contradictions_are_refused() {
        let twice = Err(CodecError::Namespaces("an id stands twice or was never given"));
        assert_eq!(NamespaceMap::decode(b"\x01\x01\x010\x01"), twice);
        assert_eq!(NamespaceMap::decode(b"\x02\x02\x010\x01\x011\x01"), twice);
        let order = Err(CodecError::Namespaces("names out of order"));
        assert_eq!(NamespaceMap::decode(b"\x02\x02\x011\x00\x010\x01"), order);
        assert_eq!(NamespaceMap::decode(b"\x02\xff\xff\xff\xff\x0f"), Err(CodecError::Truncated));
        assert_eq!(NamespaceMap::decode(b"\x00\x00x"), Err(CodecError::Trailing(1)));
    }

    proptest! {
        #[test]
        fn map_returns(names in vec(vec(any::<u8>(), 0..4), 0..9), gone in vec(any::<u8>(), 0..2)) {
            let mut map = NamespaceMap::default();
            for name in &names {
                map.renew(name).unwrap();
            }
            map.remove(&gone);
            prop_assert_eq!(NamespaceMap::decode(&encoded(&map)).unwrap(), map);
        }

        #[test]
        fn random_bytes_never_panic(bytes in vec(any::<u8>(), 0..40)) {
            let _ = NamespaceMap::decode(&bytes);
        }
    }
}
