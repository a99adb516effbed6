//! Tarn: a Redis-compatible server that keeps its data on disk.
//!
//! A guided tour, in the direction in which data flows:
//!
//! | folder | owns |
//! |---|---|
//! | [`boot`] | the assembly: settings → engine → listeners → signals |
//! | [`net`] | listeners, threads, the connection task |
//! | [`resp`] | requests in (an incremental parser), replies out in RESP2 and RESP3 |
//! | [`command`] | the table: one row per command, routing, dispatch |
//! | [`handler`] | the contract between table and functions: row, context, session |
//! | [`server`] | commands without a type: connection, keyspace, transactions, administration |
//! | [`types`] | one file a data type: command functions and their rows |
//! | [`shard`] | the actor: mailbox, lease, transaction, table of hot and dirty objects, expiry, flush |
//! | [`log`] | the redo log: segments, group commit, fsync policies, replay |
//! | [`store`] | fjall: open, ingestion, range reads, compaction filter |
//! | [`rdb`] | values in Redis's RDB format, DUMP payloads; no I/O |
//! | [`codec`] | the bytes of keys, values and log records; no I/O |
//! | [`config`] | directives, their file, `CONFIG GET/SET/REWRITE` |
//! | [`cli`] | the command line of the binary |
//! | [`meter`] | what the command that a thread runs may still do: steps, bytes |
//! | [`util`] | numbers, globs and time as Redis reads and prints them |

pub mod boot;
pub mod cli;
pub mod codec;
pub mod command;
pub mod config;
pub mod error;
pub mod handler;
pub mod log;
pub mod meter;
pub mod net;
pub mod rdb;
pub mod resp;
pub mod server;
pub mod shard;
pub mod store;
pub mod types;
pub mod util;

pub use error::{Error, Result};
