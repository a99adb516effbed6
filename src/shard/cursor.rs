//! Cursors of SCAN: a number for the client, and behind it where the walk stopped.
//!
//! A cursor names the shard (16 bits) and an entry of a bounded table that holds the last key met (48 bits). An entry
//! that has left the table, or a cursor from before a restart, begins its shard anew: keys may come twice, none that
//! was there all along is missed.

use std::collections::{HashMap, VecDeque};

use super::core::ShardId;

/// Entries kept; the oldest leave first.
const MOST: usize = 65_536;

/// All live cursors.
#[derive(Debug, Default)]
pub struct Cursors {
    inner: parking_lot::Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    last_keys: HashMap<u64, Box<[u8]>, foldhash::fast::RandomState>,
    order: VecDeque<u64>,
    next: u64,
}

impl Cursors {
    /// A cursor that takes up the walk of `shard` after `last`, or at its beginning.
    pub fn issue(&self, shard: ShardId, last: Option<&[u8]>) -> u64 {
        let Some(last) = last else { return u64::from(shard) << 48 | 1 };
        let mut inner = self.inner.lock();
        inner.next = (inner.next + 1) & ((1 << 47) - 1);
        // 0 and 1 stand for the beginning of a shard; 0 of shard 0 is the client's start.
        let number = inner.next + 1;
        let cursor = u64::from(shard) << 48 | number;
        inner.last_keys.insert(cursor, last.into());
        inner.order.push_back(cursor);
        if inner.order.len() > MOST
            && let Some(oldest) = inner.order.pop_front()
        {
            inner.last_keys.remove(&oldest);
        }
        cursor
    }

    /// Shard of a cursor, and the key after which to go on, if it is still known.
    pub fn resolve(&self, cursor: u64) -> (ShardId, Option<Box<[u8]>>) {
        let shard = (cursor >> 48) as ShardId;
        (shard, self.inner.lock().last_keys.get(&cursor).cloned())
    }
}
