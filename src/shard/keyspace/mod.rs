//! The key space in steps.
//!
//! | file | |
//! |---|---|
//! | [`walk`] | the keys of a shard in order, table and fjall merged |
//! | [`cursor`] | where a client's SCAN goes on |
//! | [`draw`] | a key at random |

pub mod cursor;
pub mod draw;
pub mod walk;
