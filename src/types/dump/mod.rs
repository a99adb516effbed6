//! DUMP and RESTORE: what a key of any type holds as a payload in Redis's RDB format, and back.
//!
//! | file | owns |
//! |---|---|
//! | [`command`] | DUMP, RESTORE |
//! | [`gather`] | the elements of a key → [`crate::rdb::Value`] |
//! | [`builder`] | the pieces of a value → the elements of a key |
//! | [`file`] | everything → dump.rdb |
//! | [`scatter`] | [`crate::rdb::Value`] → its pieces |
//! | `stream` | streams, both ways |
//!
//! A payload says nothing of how a value is kept: OBJECT ENCODING of what RESTORE made follows from size and content.
//!
//! Invariants: a value is gathered only up to what a request could bring back, and a payload unpacks to no more memory
//! than that, however small it is itself (`proto-max-bulk-len`).

pub mod builder;
pub mod command;
pub mod file;
pub mod gather;
pub mod scatter;
mod stream;
