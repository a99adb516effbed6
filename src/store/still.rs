//! The partitions as they are at one moment, to be read for as long as that takes while others go on writing.
//!
//! It is a snapshot of fjall's, with the versions of the tables that it was taken of. These are forgotten at other times as soon
//! as a newer one is there ([`super::space`]); as long as a [`Still`] lives they are not, and what compactions replace stays on
//! disk. The store cannot be opened again meanwhile: whoever reads for long looks now and then whether that is
//! wanted ([`super::Store::health`]).

use std::sync::Arc;

use fjall::{Keyspace, Readable, Snapshot};

use super::error::{Result, StoreError};
use super::partition::{Partition, Range, Record};

/// A partition at one moment.
pub struct Still {
    snapshot: Snapshot,
    keyspace: Keyspace,
    partition: Arc<Partition>,
}

impl Still {
    /// Of an open partition, whose versions are kept from now on. The snapshot was taken after that began.
    pub(super) fn new(partition: &Arc<Partition>, snapshot: Snapshot) -> Result<Still> {
        let keyspace = partition.slot().with(|keyspace| Ok(keyspace.clone()))?;
        Ok(Still { snapshot, keyspace, partition: partition.clone() })
    }

    /// The value of a key.
    pub fn get(&self, key: &[u8]) -> Result<Option<super::UserValue>> {
        self.snapshot.get(&self.keyspace, key).map_err(StoreError::fjall("read a record"))
    }

    /// The records from `lower` on, below `upper`.
    pub fn range(&self, lower: &[u8], upper: &[u8]) -> impl Iterator<Item = Result<Record>> + use<> {
        Range::of((lower < upper).then(|| self.snapshot.range(&self.keyspace, lower..upper)), &self.keyspace)
    }
}

impl Drop for Still {
    fn drop(&mut self) {
        *self.partition.stills.lock() -= 1;
    }
}
