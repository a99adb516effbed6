//! Hashes.
//!
//! | file | owns |
//! |---|---|
//! | [`fields`] | a hash at hand: its fields, and what its metadata says of them |
//! | [`basic`] | HSET, HGET and their kin, whole hashes |
//! | [`number`] | fields that are numbers |
//! | [`pick`] | HRANDFIELD, HSCAN |
//! | [`expiry`] | times of fields: the families of HEXPIRE and HTTL, HPERSIST |
//! | [`options`] | words and numbers in front of a list of fields |
//! | [`getset`] | HGETEX, HSETEX, HGETDEL |
//!
//! A field is one element, keyed by its name, with its value. Once a field of a hash has got a time, every value of the
//! hash begins with one ([`crate::codec::field`]); expired fields are passed over by whoever reads, until the sweep removes
//! them. Fields come in the order of their bytes.

pub mod basic;
pub mod expiry;
pub mod fields;
pub mod getset;
pub mod number;
pub mod options;
pub mod pick;

pub use fields::encoding;
