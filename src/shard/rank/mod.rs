//! The counted index: rank and offset in a collection of any size, in logarithmic time.
//!
//! The elements of one group of a body (a sorted set's scores, a set's members …) are cut into blocks of consecutive
//! elements. A counter says how many a block holds; a counter of the level above counts a run of blocks, and so on. All
//! counters are element records of the same body, group [`Rank`](crate::codec::element::Group::Rank):
//!
//! | record | key behind the body's prefix | value |
//! |---|---|---|
//! | counter | `11` `level:1` `block …` | `count`, a varint |
//! | root | `11` `255` | `generation` `revision` `levels` `total`, each a varint |
//!
//! `block` is the first element that belongs to the block, or would, without its group's tag. A block reaches as far as
//! the next of its level. `generation` is the number of the flight that wrote last, `revision` counts the writes: numbers
//! of flights begin anew with every start of the server.
//!
//! | file | owns |
//! |---|---|
//! | `record` | keys and values of the records, ranges over them |
//! | `read` | [`Counted`]: from element to rank, from offset to block |
//! | `update` | what a flight changes |
//! | `merge` | fjall with what a flight changes of it |
//! | `build` | the index of a body that has none |
//! | `verify` | whether an index agrees with its elements |
//!
//! # Invariants
//! - fjall's counters equal fjall's elements, because one ingestion brings both. What fjall does not show yet is the
//!   caller's to add.
//! - The first block of every level is the empty string. It alone may count nothing, and is never removed.
//! - Where a block begins there begins one at every level below.
//! - A block holds at most [`BLOCK`] elements twice, or [`FAN`] blocks of the level below twice; the highest level about
//!   [`FAN`].
//! - One thread writes: the flush. It finds what contradicts itself, and then counts anew.

mod build;
mod merge;
mod read;
mod record;
#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests;
mod update;
mod verify;

pub use build::build;
pub use read::{Block, Counted};
pub use update::update;
pub use verify::verify;

/// Up to as many elements a body without an index gets none: reading them all is as fast.
pub const SMALL: u64 = if cfg!(test) { 24 } else { 512 };

/// Elements of a block, when it is made.
pub const BLOCK: u64 = if cfg!(test) { 8 } else { 128 };

/// Blocks that a counter of a higher level counts, when it is made. A step of a range costs a seventh of its opening: with
/// 64, one level less in ten million elements, a search takes twice as long.
pub const FAN: u64 = if cfg!(test) { 4 } else { 16 };

/// Takes the records of an index on their way to an ingestion: key, and value or tombstone.
pub type Out<'a> = dyn FnMut(&[u8], Option<&[u8]>) + 'a;

/// The three numbers that shape an index: tests have small ones, so that few elements make many levels.
#[derive(Debug, Clone, Copy)]
struct Shape {
    block: u64,
    fan: u64,
    small: u64,
}

const SHAPE: Shape = Shape { block: BLOCK, fan: FAN, small: SMALL };

impl Shape {
    /// How many children a new block of a level has: elements at level 0, blocks above.
    const fn most(self, level: u8) -> u64 {
        if level == 0 { self.block } else { self.fan }
    }
}
