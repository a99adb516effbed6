//! Tests of the engine on the simulated disk of the log and a real store, stepped by hand.
//!
//! | file | |
//! |---|---|
//! | `world` | an engine, the model that it must equal, what crashes of both kinds do to them |
//! | `step` | a flush in slices, with other work between them |
//! | `audit` | what fjall may hold when nothing is left to be done |
//! | `backup` | a backup while the store becomes another one |
//! | `model` | random rounds; failures found stay as seeds |
//! | `fields` | the sweep of fields of hashes |
//! | `flusher` | what has the flusher's thread flush |
//! | `store` | the store under the engine: failing compactions, runs, counts |
//! | `garbage` | what is dead leaves fjall, without writes too |
//! | `packed` | small collections in one record |
//! | `rules` | the rules of log, table and flush, one by one |
//! | `found` | what was found wrong once beside them |
//! | `ahead` | the look-ahead within collections |
//! | `actor` | nothing that was posted is left behind, with no timer and no thread that would find it later |
//! | `blind` | keys that are overwritten without a look at what fjall holds of them |
//! | `compact` | space of what is dead, where it shares tables with what lives |
//! | `evict` | keys that go for the sake of their room |
//! | `reads` | what is read without the lock is used only where it is true |
//! | `rest` | commands in slices: what they hold, what others do meanwhile |
//! | `sizes` | memory follows budgets that change |

mod actor;
mod ahead;
mod audit;
mod backup;
mod big;
mod blind;
mod compact;
mod evict;
mod expire;
mod fields;
mod flusher;
mod found;
mod garbage;
mod model;
mod packed;
mod readers;
mod reads;
mod rest;
mod rules;
mod sizes;
mod step;
mod store;
mod world;
