//! Bitmaps: strings seen as bits, the highest bit of the first byte being bit 0.
//!
//! | file | owns |
//! |---|---|
//! | [`bits`] | offsets; GETBIT, SETBIT |
//! | [`count`] | BITCOUNT, BITPOS |
//! | [`op`] | BITOP |
//! | [`field`] | BITFIELD |
//!
//! What a string does not hold reads as zero, so a bitmap grows only by writing. On strings in chunks each command costs
//! the chunks that it touches; a run of absent ones is passed over in one step.

pub mod bits;
pub mod count;
pub mod field;
pub mod op;
