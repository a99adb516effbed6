//! The garbage queue: elements of dropped collections and big strings that fjall still holds.
//!
//! | step | state |
//! |---|---|
//! | the commit that drops the body puts a garbage record | `Queued` |
//! | the record is flushed | `Scanning`: the shard's thread reads the dead range in bounded steps and puts tombstones |
//! | the range is empty and its tombstones are flushed | `Removed`, then `Kept`: the record stays while the log holds anything from before |
//! | the log begins behind all that | the garbage record is removed |
//!
//! A crash at any point finds the garbage record and begins again; tombstones are harmless twice. The record outlives
//! the log's records of what died, because a replay that flushes midway brings elements back, which then only the
//! garbage record leads to.
//!
//! Dead namespaces go the same way: the record is flushed, a compaction drops what the filter finds dead, what is left
//! gets tombstones, and the record goes once the log has forgotten the namespace.

use std::collections::VecDeque;

use crate::codec::{self, KeyRange, NsId};
use crate::log::Lsn;

/// One dead version of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dead {
    /// Namespace.
    pub ns: NsId,
    /// What the keys of all its elements begin with.
    pub owner: Vec<u8>,
}

impl Dead {
    /// A version of a user's key.
    pub fn new(ns: NsId, key: &[u8], version: u64) -> Self {
        let mut owner = Vec::new();
        codec::key::element_prefix(ns, key, version, &mut owner);
        Dead { ns, owner }
    }

    /// From the key of a garbage record.
    pub fn from_record(ns: NsId, record_key: &[u8]) -> Self {
        let mut owner = record_key.to_vec();
        if let Some(tag) = owner.first_mut() {
            *tag = codec::key::tag::ELEMENT;
        }
        Dead { ns, owner }
    }

    /// The key of its garbage record.
    pub fn record_key(&self) -> Vec<u8> {
        let mut key = Vec::new();
        codec::key::garbage_of_owner(&self.owner, &mut key);
        key
    }

    /// Where its elements are.
    pub fn range(&self) -> KeyRange {
        KeyRange::of_prefix(self.owner.clone())
    }
}

/// Where the work on an entry stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stage {
    /// The garbage record waits for its flush, which is the one with this number or an earlier one.
    Queued(u64),
    /// Elements from this disk key on are still to be removed.
    Scanning(Vec<u8>),
    /// All tombstones are out with the flush of this number or an earlier one.
    Removed(u64),
    /// fjall holds no element; the log may, up to this LSN.
    Kept(Lsn),
}

/// Where the work on a dead namespace stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeadStage {
    /// Its record waits for its flush, which is the one with this number or an earlier one.
    Queued(u64),
    /// A compaction has dropped what it met; tombstones for the rest are out with the flush of this number.
    Sweeping(u64),
    /// fjall holds none of its records; the log may, up to this LSN.
    Kept(Lsn),
}

/// Record groups of which a dead namespace leaves records, by its id. The sweep looks after expiry records.
pub const GROUPS: [u8; 5] = [
    codec::key::tag::META,
    codec::key::tag::ELEMENT,
    codec::key::tag::COUNT,
    codec::key::tag::GARBAGE,
    codec::key::tag::PENDING,
];

/// The records of one group of a namespace.
pub fn group_of(tag: u8, ns: NsId) -> KeyRange {
    KeyRange::of_prefix([&[tag], &ns.to_be_bytes()[..]].concat())
}

/// Entries in the order in which they died.
pub type Queue = VecDeque<(Dead, Stage)>;
