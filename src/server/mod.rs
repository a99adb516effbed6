//! Commands without a type.
//!
//! | file | owns |
//! |---|---|
//! | [`connection`], [`client`] | the session: handshake, authentication, CLIENT |
//! | [`keyspace`], [`expire`], [`scan`], [`database`] | keys of any type, databases |
//! | [`transaction`] | MULTI, EXEC, DISCARD |
//! | [`info`], [`config`] | INFO, CONFIG |
//! | [`admin`] | saving, shutdown, time, and what Tarn answers for features it does not have |
//! | [`script`] | EVAL and SCRIPT, FCALL and FUNCTION |
//! | [`pubsub`] | SUBSCRIBE, PUBLISH and their kin |
//! | [`monitor`] | SLOWLOG, LATENCY |
//! | [`memory`], [`debug`] | MEMORY, DEBUG |
//! | [`introspect`] | COMMAND |

pub mod admin;
pub mod client;
pub mod config;
pub mod connection;
pub mod database;
pub mod debug;
pub mod expire;
pub mod info;
pub mod introspect;
pub mod keyspace;
pub mod memory;
pub mod migrate;
pub mod monitor;
pub mod pubsub;
pub mod replicate;
pub mod scan;
pub mod script;
pub mod transaction;

pub use crate::handler::container::{help, unknown_subcommand, wrong_subcommand};

pub use crate::util::REDIS_VERSION;
