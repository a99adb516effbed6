//! A flush taken step by step, so that a test can do other things between any two holds of a shard's lock.

use super::world::World;
use crate::log::sim::SimIo;
use crate::shard::Engine;
use crate::shard::background::steps::Flush;
use crate::shard::router::ShardId;

/// The engine's own flush.
pub(super) struct Stepper {
    flush: Flush,
    /// The ingestion of this shard fails once the log is synced.
    fail: Option<ShardId>,
    sim: SimIo,
    ended: bool,
}

impl World {
    /// Begins a flush; one of its ingestions fails, if so wanted, and with it the flush.
    pub(super) fn begin_flush(&self, fail: Option<ShardId>) -> Stepper {
        let flush = Flush::begin(self.engine()).unwrap();
        Stepper { flush, fail, sim: self.sim.clone(), ended: false }
    }

    pub(super) fn step(&self, stepper: &mut Stepper, steps: usize) {
        for _ in 0..steps {
            assert!(stepper.step(self.engine()));
        }
    }

    pub(super) fn finish(&self, stepper: &mut Stepper) {
        while stepper.step(self.engine()) {}
    }
}

impl Stepper {
    /// The next step; false once all is done.
    pub(super) fn step(&mut self, engine: &Engine) -> bool {
        if self.ended {
            return false;
        }
        let shard = self.flush.shard();
        let fails = self.fail == Some(shard);
        self.sim.fail_step(fails.then_some(("flush.synced", libc::EIO)));
        let result = self.flush.step(engine);
        self.sim.fail_step(None);
        if let Some(shard) = engine.shards.get(shard) {
            shard.core().check();
        }
        self.ended = !*result.as_ref().unwrap_or(&false);
        if let Err(error) = result {
            assert!(fails, "{error}");
            engine.mend_store();
        }
        !self.ended
    }
}
