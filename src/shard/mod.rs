//! Shards: the actors that own the keys.
//!
//! | file | owns |
//! |---|---|
//! | [`engine`] | all shards with log and store: open, lease, flush, close |
//! | [`ahead`] | a pipeline's look-ahead within collections |
//! | [`actor`] | mailbox and core: who runs what when |
//! | [`core`] | what is changed under a shard's lock |
//! | [`table`], [`object`] | hot and dirty objects |
//! | [`overlay`] | a collection's hot and dirty elements, in order and counted |
//! | [`txn`] | leased cores, the write set, commit and rollback |
//! | [`cold`] | moka: metadata that left the table |
//! | [`membership`] | a filter of the keys that fjall may hold |
//! | [`names`] | namespaces |
//! | [`flush`] | changed records on their way to fjall |
//! | [`replay`] | the log's records on their way back |
//! | [`checkpoint`] | what log and store must hold, and what to do if they do not |
//! | [`recount`] | counting keys anew |
//! | [`timer`], [`garbage`] | expiry sweep, dead elements, dead namespaces |
//! | [`walk`], [`order`], [`cursor`] | the key space in steps |
//! | [`draw`] | a key at random |
//! | [`rank`] | the counted index: rank and offset in big collections |

pub mod actor;
pub mod ahead;
pub mod build;
#[cfg(test)]
mod check;
pub mod checkpoint;
pub mod cold;
pub mod core;
pub mod cursor;
pub mod draw;
pub mod engine;
pub mod fields;
pub mod flush;
pub mod garbage;
pub mod membership;
pub mod names;
pub mod object;
pub mod order;
pub mod overlay;
pub mod rank;
pub mod recount;
pub mod replay;
pub mod table;
pub mod timer;
pub mod txn;
pub mod walk;

#[cfg(test)]
#[expect(clippy::unwrap_used, clippy::expect_used, reason = "tests")]
mod tests;

pub use engine::Engine;
pub use txn::{Found, Txn};
