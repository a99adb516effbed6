//! A flush taken apart, so that a test can do other things between any two holds of a shard's lock.

use crate::log::SegmentBoundary;
use crate::shard::Engine;
use crate::shard::flush::{Flight, Gather};

/// Where a flush stands.
enum At {
    Begin,
    Gather(Gather),
    Gathered(Flight),
    Ingested(Flight, bool),
}

/// The same steps as [`Engine::flush`], one at a time.
pub(super) struct Stepper {
    boundary: SegmentBoundary,
    shard: usize,
    at: At,
    /// The ingestion of this shard is given up.
    fail: Option<usize>,
    failed: bool,
}

impl Stepper {
    pub(super) fn begin(engine: &Engine, fail: Option<usize>) -> Stepper {
        let boundary = engine.rotate().unwrap();
        Stepper { boundary, shard: 0, at: At::Begin, fail, failed: false }
    }

    /// The next step; false once all is done.
    pub(super) fn step(&mut self, engine: &Engine) -> bool {
        let Some(shard) = engine.shards.get(self.shard) else {
            if !self.failed {
                engine.delete_before(self.boundary).unwrap();
            }
            return false;
        };
        let mut core = shard.core();
        self.at = match std::mem::replace(&mut self.at, At::Begin) {
            At::Begin => At::Gather(Gather::begin(&mut core)),
            At::Gather(mut gather) => {
                if gather.slice(&mut core) {
                    At::Gather(gather)
                } else {
                    At::Gathered(gather.end(&mut core))
                }
            }
            At::Gathered(flight) => {
                let partition = core.partition.clone();
                drop(core);
                let ok = self.ingest(engine, &partition, flight);
                core = shard.core();
                ok
            }
            At::Ingested(mut flight, ok) => {
                if flight.settle(&mut core, ok) {
                    At::Ingested(flight, ok)
                } else {
                    self.shard += 1;
                    At::Begin
                }
            }
        };
        core.check();
        true
    }

    fn ingest(&mut self, engine: &Engine, partition: &crate::store::Partition, mut flight: Flight) -> At {
        flight.prepare(partition).unwrap();
        let fail = self.fail == Some(self.shard);
        let highest = flight.highest;
        let result = partition.ingest_with(flight.records(), || {
            engine.log.sync_to(highest)?;
            if fail { Err(std::io::Error::other("given up by the test")) } else { Ok(()) }
        });
        flight.forget_records();
        let ok = result.is_ok();
        assert!(ok || fail, "{result:?}");
        if !ok {
            self.failed = true;
            engine.store.reopen().unwrap();
        }
        At::Ingested(flight, ok)
    }
}
