//! The garbage queue: elements of dropped collections and big strings that fjall still holds.
//!
//! | step | state |
//! |---|---|
//! | the commit that drops the body puts a garbage record | `Queued` |
//! | the record is flushed | `Scanning`: the shard's thread reads the dead range in bounded steps and puts tombstones |
//! | the range is empty and its tombstones are flushed | the garbage record is removed |
//!
//! A crash at any point finds the garbage record and begins again; tombstones are harmless twice.

use std::collections::VecDeque;

use crate::codec::NsId;

/// One dead version of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dead {
    /// Namespace.
    pub ns: NsId,
    /// The key as it stands in records (long keys by digest).
    pub stored_key: Vec<u8>,
    /// Version of the dead elements.
    pub version: u64,
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
}

/// Entries in the order in which they died.
pub type Queue = VecDeque<(Dead, Stage)>;
