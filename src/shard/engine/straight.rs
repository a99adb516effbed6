//! Keys that go straight to fjall ([`crate::shard::memory::straight`]): when they do, and how they land.

use super::Engine;
use crate::shard::router::ShardId;
use crate::store::StoreError;

impl Engine {
    /// From now on, new keys go straight to fjall, or no longer. Who has put some has them land before anybody looks at them.
    pub fn go_straight(&self, on: bool) {
        for shard in self.shards.iter() {
            shard.core().straight = on.then(Box::default);
        }
    }

    /// Bytes of memory that what a shard has gathered takes.
    pub fn gathered_bytes(&self, shard: ShardId) -> usize {
        self.shards.at(shard).core().straight.as_ref().map_or(0, |straight| straight.records.memory_bytes())
    }

    /// Has that land which a shard has gathered.
    ///
    /// # Errors
    /// fjall's, and of a key that has come twice.
    pub fn land(&self, shard: ShardId) -> Result<(), LandError> {
        let taken = {
            let mut core = self.shards.at(shard).core();
            let some = core.straight.as_mut().filter(|straight| straight.records.len() > 0);
            some.map(|straight| (std::mem::take(&mut straight.records), std::mem::take(&mut straight.keys)))
        };
        let Some((mut records, keys)) = taken else { return Ok(()) };
        if let Some(key) = records.sort_distinct() {
            return Err(LandError::Twice(key.to_vec()));
        }
        // The log has nothing of it.
        self.store.partition(shard).ingest_with(records.iter(), || std::io::Result::Ok(()))?;
        records.clear();
        if let Some(straight) = self.shards.at(shard).core().straight.as_mut().filter(|on| on.records.len() == 0) {
            // If none have come meanwhile, the next ones have room without a copy for each time that they outgrow it.
            straight.records = records;
        }
        self.count_runs();
        let counted = self.transact(&[shard], 0, |txn| {
            keys.iter().for_each(|(&ns, &more)| txn.add_count(0, ns, more));
            Ok(())
        });
        counted.map_err(|error| LandError::Count(error.text().into_owned()))
    }
}

/// Why it cannot land.
#[derive(Debug, thiserror::Error)]
pub enum LandError {
    /// A record that there may be once.
    #[error("a key comes twice (record '{}')", .0.escape_ascii())]
    Twice(Vec<u8>),
    /// fjall.
    #[error("store: {0}")]
    Store(#[from] StoreError),
    /// The keys cannot be counted.
    #[error("{0}")]
    Count(String),
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use crate::shard::keyspace::walk::tests::engine;

    /// A shard holds the room of one landing, however many there are, and none when all is read.
    #[test]
    fn what_has_landed_leaves_its_room_to_the_next() {
        const KEYS: u32 = 500;
        let dir = crate::util::scratch::tempdir().unwrap();
        let engine = engine(dir.path(), 1);
        engine.go_straight(true);
        let mut rooms = Vec::new();
        for round in 0..4_u32 {
            let put = engine.transact(&[0], 1, |txn| {
                (0..KEYS).try_for_each(|n| {
                    assert!(txn.put_string_straight(0, &(round * KEYS + n).to_be_bytes(), b"value", 0)?);
                    Ok(())
                })
            });
            put.unwrap();
            engine.land(0).unwrap();
            let core = engine.shards.at(0).core();
            let records = &core.straight.as_ref().unwrap().records;
            assert_eq!((records.len(), records.memory_bytes()), (0, 0));
            rooms.push(records.room_bytes());
        }
        assert!(rooms[0] > 0 && rooms.iter().all(|room| *room == rooms[0]), "{rooms:?}");
        engine.go_straight(false);
        assert!(engine.shards.at(0).core().straight.is_none());
    }
}
