//! HyperLogLogs: how many different elements were added, within 0.81 %, in at most 12 KiB.
//!
//! | file | owns |
//! |---|---|
//! | [`hash`] | which register an element belongs to, and what it puts there |
//! | [`format`] | the header; what is a HyperLogLog at all |
//! | [`dense`] | 6 bits a register |
//! | [`sparse`] | runs of equal registers |
//! | [`estimate`] | registers → number of elements |
//! | [`value`] | one in memory, whatever its encoding |
//! | [`command`] | PFADD, PFCOUNT, PFMERGE |
//! | [`debug`] | PFDEBUG, PFSELFTEST |
//!
//! A HyperLogLog is a string in Redis's own format, so GET and SET carry it between servers:
//!
//! | bytes | what |
//! |---|---|
//! | 0–3 | `HYLL` |
//! | 4 | encoding: 0 dense, 1 sparse |
//! | 5–7 | unused, kept as they are |
//! | 8–15 | the last count, little-endian; its highest bit set: stale |
//! | 16– | the registers |
//!
//! There are 2¹⁴ registers of 6 bits. Each holds the highest rank seen of the elements that hash to it, 0 for none. New
//! ones are sparse; one turns dense, and stays so, when a rank passes what sparse can say or when its string would pass
//! `hll-sparse-max-bytes`. The same elements in the same order leave the same bytes as in Redis.

pub mod command;
pub mod debug;
pub mod dense;
pub mod estimate;
pub mod format;
pub mod hash;
pub mod sparse;
pub mod value;
