//! Cursors of SCAN: a number for the client, and behind it where the walk stopped.
//!
//! A cursor names the shard (16 bits) and an entry of a bounded table that holds where to go on (48 bits): a stop of
//! the key space, the last element of a collection. An entry that has left the table, or a cursor from before a restart, begins its shard anew: keys may come twice, none that
//! was there all along is missed.

use std::collections::{HashMap, VecDeque};

use crate::shard::router::ShardId;

/// Entries kept; the oldest leave first.
const MOST: usize = 65_536;

/// All live cursors.
#[derive(Debug)]
pub struct Cursors<T> {
    inner: parking_lot::Mutex<Inner<T>>,
}

#[derive(Debug)]
struct Inner<T> {
    stops: HashMap<u64, T, foldhash::fast::RandomState>,
    order: VecDeque<u64>,
    next: u64,
}

impl<T> Default for Cursors<T> {
    fn default() -> Self {
        let inner = Inner { stops: HashMap::default(), order: VecDeque::new(), next: 0 };
        Cursors { inner: parking_lot::Mutex::new(inner) }
    }
}

impl<T: Clone> Cursors<T> {
    /// A cursor that takes up the walk of `shard` where it stopped, or at its beginning.
    pub fn issue(&self, shard: ShardId, stop: Option<T>) -> u64 {
        let Some(stop) = stop else { return u64::from(shard) << 48 | 1 };
        let mut inner = self.inner.lock();
        inner.next = (inner.next + 1) & ((1 << 47) - 1);
        // 0 and 1 stand for the beginning of a shard; 0 of shard 0 is the client's start.
        let number = inner.next + 1;
        let cursor = u64::from(shard) << 48 | number;
        inner.stops.insert(cursor, stop);
        inner.order.push_back(cursor);
        if inner.order.len() > MOST
            && let Some(oldest) = inner.order.pop_front()
        {
            inner.stops.remove(&oldest);
        }
        cursor
    }

    /// Shard of a cursor, and where to go on in it, if that is still known.
    pub fn resolve(&self, cursor: u64) -> (ShardId, Option<T>) {
        let shard = (cursor >> 48) as ShardId;
        (shard, self.inner.lock().stops.get(&cursor).cloned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first one included.
    #[test]
    fn no_cursor_stands_for_a_beginning_by_chance() {
        let cursors = Cursors::default();
        for stop in 0..3 {
            let cursor = cursors.issue(0, Some(stop));
            assert!(cursor > cursors.issue(0, None));
            assert_eq!(cursors.resolve(cursor), (0, Some(stop)));
        }
    }

    #[test]
    fn so_many_cursors_are_known_and_older_ones_begin_their_shard_anew() {
        let cursors = Cursors::default();
        assert_eq!(cursors.resolve(cursors.issue(3, None)), (3, None));
        let issued: Vec<u64> = (0..MOST + 10).map(|n| cursors.issue(7, Some(n))).collect();
        assert_eq!(
            [9, 10, MOST + 9].map(|n| cursors.resolve(issued[n])),
            [None, Some(10), Some(MOST + 9)].map(|at| (7, at))
        );
        let inner = cursors.inner.lock();
        assert_eq!((inner.stops.len(), inner.order.len()), (MOST, MOST));
    }
}
