//! Shards: the actors that own the keys. Each folder imports from those below it only.
//!
//! | folder | owns |
//! |---|---|
//! | [`open`] | a data directory's opening, replay and closing |
//! | [`background`] | flush, timer, sweep, garbage, recount; what watches over memory and store |
//! | [`engine`] | all shards with log and store: lease, post, what is refused; the checkpoint |
//! | [`keyspace`] | walks over the keys, in steps; a key at random |
//! | [`txn`] | leased cores, the write set, commit and rollback; results too big for memory |
//! | [`actor`] | mailbox and core: who runs what when |
//! | [`memory`] | what is changed under a shard's lock: table, objects, overlays, indexes, caches |
//! | [`rank`] | the counted index: rank and offset in big collections |
//! | [`router`] | key to shard |

pub mod actor;
pub mod background;
pub mod engine;
pub mod keyspace;
pub mod memory;
pub mod open;
pub mod rank;
pub mod router;
pub mod txn;

#[cfg(test)]
#[expect(clippy::unwrap_used, clippy::expect_used, reason = "tests")]
mod tests;

pub use engine::Engine;
pub use txn::{Found, Txn};
