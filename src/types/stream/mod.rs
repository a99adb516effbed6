//! Streams.
pub mod add;
pub mod group;
pub mod handle;
pub mod id;
pub mod range;
pub mod record;
pub mod trim;
