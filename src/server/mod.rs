//! Commands without a type.
//!
//! | file | owns |
//! |---|---|
//! | [`connection`], [`client`] | the session: handshake, authentication, CLIENT |
//! | [`keyspace`], [`expire`], [`scan`], [`database`] | keys of any type, databases |
//! | [`transaction`] | MULTI, EXEC, DISCARD |
//! | [`info`], [`config`] | INFO, CONFIG |
//! | [`acl`] | users: ACL, and the check of each call |
//! | [`admin`] | saving, shutdown, time, and what Tarn answers for features it does not have |
//! | [`backup`] | BACKUP |
//! | [`script`] | EVAL and SCRIPT, FCALL and FUNCTION |
//! | [`pubsub`] | SUBSCRIBE, PUBLISH and their kin |
//! | [`monitor`], [`slowlog`], [`latency`] | MONITOR; SLOWLOG and COMMANDLOG; LATENCY |
//! | [`memory`], [`debug`] | MEMORY, DEBUG |
//! | [`introspect`] | COMMAND |

pub mod acl;
pub mod admin;
pub mod backup;
pub mod client;
pub mod config;
pub mod connection;
pub mod database;
pub mod debug;
pub mod expire;
pub mod info;
pub mod introspect;
pub mod keyspace;
pub mod latency;
pub mod memory;
pub mod migrate;
pub mod monitor;
pub mod pubsub;
pub mod replicate;
pub mod scan;
pub mod script;
pub mod slowlog;
pub mod transaction;

pub use crate::handler::container::{help, unknown_subcommand, wrong_subcommand};

pub use crate::util::REDIS_VERSION;
