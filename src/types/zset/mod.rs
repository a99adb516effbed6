//! Sorted sets: members with scores, ordered by score, equal scores by member.
//!
//! | file | owns |
//! |---|---|
//! | [`value`] | the records of a member: reading, adding, removing; what OBJECT ENCODING says |
//! | [`store`] | results that are written whole |
//! | [`add`] | ZADD, ZINCRBY, ZREM |
//! | [`read`] | scores, ranks, counts |
//! | [`bounds`] | ends of ranges by score and by member |
//! | [`span`] | a part of a sorted set, read in either direction |
//! | [`range`] | ZRANGE and its kin |
//! | [`remove`] | ZREMRANGEBY…, pops |
//! | [`combine`] | unions, intersections, differences |
//! | [`pick`] | ZRANDMEMBER, ZSCAN |
//!
//! # Records
//! Each member has one record in each of two groups:
//!
//! | group | key | value |
//! |---|---|---|
//! | zset score | `member text`; in encode-version 1, of 15 bytes and more: `digest:16` | `score:8` |
//! | zset sort | `score:8` `member text` | – |
//!
//! A member longer than 1024 bytes stands in front of the value of its sort record, and of its score record where that is
//! not keyed by digest. So encode-version 0 keeps a member twice, and 1 once.
//!
//! # Invariants
//! - The two groups hold the same members with the same scores; the size in the metadata is their number.
//! - No score is NaN, and −0 is 0.
//! - Ranks, offsets and counts come from the order's sums; nothing is walked to be counted.

pub mod add;
pub mod bounds;
pub mod combine;
pub mod pick;
pub mod range;
pub mod read;
pub mod remove;
pub mod span;
pub mod store;
pub mod value;
