//! New keys straight to fjall, past table and log: for an import, whose data directory counts only when it is whole.
//!
//! What a flush would bring of a key is encoded as it is put: elements, metadata, expiry record. Once enough has come together, or
//! all is read, it *lands*: sorted, in one ingestion; then the keys are counted, by a commit.
//!
//! | goes straight | goes by table and log |
//! |---|---|
//! | strings, lists, hashes, sets and sorted sets that need no counted index | streams, hashes with times of fields, what is big; what a command writes |
//!
//! Invariants: a key goes straight only where neither table nor fjall has it; it is in the filter of keys before it lands; nobody
//! looks for it before it has landed.

use std::collections::BTreeMap;

use super::packed;
use super::records::Records;
use crate::codec::{self, ExpiryKind, Meta, NsId, pack};

/// The version of bodies that go straight: no other body of their keys comes before them, and every later one has a greater.
pub(in crate::shard) const VERSION: u64 = 1;

/// What of a shard is on its way.
#[derive(Default)]
pub(in crate::shard) struct Straight {
    pub(in crate::shard) records: Records,
    /// Keys of each namespace.
    pub(in crate::shard) keys: BTreeMap<NsId, i64>,
    key: Vec<u8>,
}

impl Straight {
    /// Adds a key with its value, or its elements, which are sorted.
    pub(in crate::shard) fn put(&mut self, ns: NsId, key: &[u8], meta: &Meta, value: &[u8], elements: &Records) {
        let Straight { records, keys, key: disk_key } = self;
        disk_key.clear();
        codec::key::element_prefix(ns, key, meta.version, disk_key);
        let prefix = disk_key.len();
        let standing = || {
            let all = elements.iter().filter_map(|(element, value)| Some((element, value?)));
            all.filter(|(element, _)| pack::stands(element))
        };
        let packed = packed::is_small(meta, elements.len(), standing());
        if elements.len() > 0 && !packed {
            records.begin_run();
            for (element, value) in elements.iter() {
                disk_key.truncate(prefix);
                disk_key.extend_from_slice(element);
                records.push(disk_key, value);
            }
        }
        records.begin_run();
        disk_key.clear();
        codec::key::meta_key(ns, key, disk_key);
        let long_key = codec::is_long(key).then_some(key);
        records.push_with(disk_key, |out| {
            Meta { packed, ..*meta }.encode(long_key, value, out);
            if packed {
                standing().for_each(|(element, value)| pack::push(element, value, out));
            }
        });
        if meta.expire_ms != 0 {
            records.begin_run();
            disk_key.clear();
            codec::key::expiry_key(meta.expire_ms, ExpiryKind::Key, ns, key, disk_key);
            records.push(disk_key, Some(b""));
        }
        *keys.entry(ns).or_default() += 1;
    }
}
