//! What is changed under a shard's lock.
//!
//! | file | owns |
//! |---|---|
//! | [`core`] | all of it |
//! | [`table`], [`object`] | hot and dirty objects |
//! | [`overlay`] | a collection's hot and dirty elements, in order and counted |
//! | [`blind`] | keys overwritten without a look at what fjall holds of them, and why that is sound |
//! | [`blocked`] | clients that wait for keys |
//! | [`busy`] | keys that commands in slices hold |
//! | [`cold`] | moka: metadata that left the table |
//! | [`uses`] | how lately or how often an object was used |
//! | [`stats`] | what INFO tells of a shard, and its pace |
//! | [`door`] | who comes by once does not get in |
//! | [`reads`] | reads of the store that hold no lock, and why they are sound |
//! | [`packed`] | small collections that fjall has in one record |
//! | [`next`] | what is read right behind a key's metadata |
//! | [`missing`] | what memory lacks of a collection, and where the store has it |
//! | [`membership`] | a filter of the keys that fjall may hold |
//! | [`order`] | an index of the table's keys in order, for walks |
//! | [`fields`] | which hashes have fields that expire, and when |
//! | [`records`] | records on their way to fjall, encoded and sorted |
//! | [`straight`] | new keys that go to fjall past the table, while data is imported |
//! | `raw` | what a flush brings besides objects |
//! | [`names`] | namespaces |
//! | [`libraries`] | libraries of functions |
//! | [`reap`] | where objects of dead namespaces are |
//! | [`garbage`] | records of what is dead, and how they are worked off |
//! | [`ahead`] | a pipeline's look-ahead within collections |

pub mod ahead;
pub mod blind;
pub mod blocked;
pub mod busy;
#[cfg(test)]
mod check;
pub mod cold;
pub mod core;
pub mod door;
pub mod fields;
pub mod garbage;
pub mod libraries;
pub mod membership;
pub mod missing;
pub mod names;
mod next;
pub mod object;
pub mod order;
pub mod overlay;
pub mod packed;
mod raw;
pub mod reads;
pub mod reap;
pub(in crate::shard) mod records;
pub mod stats;
pub(in crate::shard) mod straight;
pub mod table;
pub mod tracked;
pub mod uses;
pub mod watched;
