//! Streams.
//!
//! | file | owns |
//! |---|---|
//! | [`id`] | ids as arguments and in replies |
//! | [`record`] | the bytes of entries, groups, consumers, pending entries |
//! | [`handle`] | a stream: its metadata and entries |
//! | [`group`] | a consumer group: its record, consumers and pending entries |
//! | [`trim`] | MAXLEN and MINID; what becomes of references to entries that go |
//! | [`add`] | XADD, XTRIM, XSETID |
//! | [`range`] | XLEN, XRANGE, XREVRANGE |
//! | [`read`] | XREAD, XREADGROUP |
//! | [`remove`] | XDEL, XDELEX, XACKDEL |
//! | [`pending`] | XACK, XPENDING |
//! | [`claim`] | XCLAIM, XAUTOCLAIM |
//! | [`xgroup`] | XGROUP |
//! | [`info`] | XINFO |
//!
//! One record per entry, its key the id, so that entries lie in order; most carry values only, as the field names that they
//! share are kept once. First and last id stand in the metadata: no command looks for an end by scanning, and a queue
//! (XADD + XDEL, or groups with XACK) stays as fast as it was at the start. Counts of pending entries are kept, never
//! counted. Unlike other collections an empty stream is one.

pub mod add;
pub mod claim;
pub mod group;
pub mod handle;
pub mod id;
pub mod info;
pub mod pending;
pub mod range;
pub mod read;
pub mod record;
pub mod remove;
pub mod trim;
pub mod xgroup;
