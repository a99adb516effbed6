//! Strings.
//!
//! | file | owns |
//! |---|---|
//! | [`value`] | the bytes of a string, whatever form they are stored in |
//! | [`condition`] | NX, XX, IFEQ and their kin; the commands that delete on a condition |
//! | [`set`] | SET and what is short for it |
//! | [`get`] | reading whole values; GETEX, GETDEL |
//! | [`many`] | MGET, MSET and their kin |
//! | [`edit`] | parts of a value: APPEND, GETRANGE, SETRANGE |
//! | [`number`] | INCR and its kin |
//! | [`lcs`] | LCS |
//!
//! A value of up to 64 KiB stands behind its key in the object; a longer one is kept in chunks of 16 KiB, of which absent
//! ones read as zeros. Commands that touch a part of a value cost what they touch; those that write it keep its expiry,
//! those that replace it drop it.

pub mod condition;
pub mod edit;
pub mod get;
pub mod lcs;
pub mod many;
pub mod number;
pub mod set;
pub mod value;
