//! Tarn: a Redis-compatible server that keeps its data on disk.
//!
//! A guided tour, from the socket down. Each folder imports only from those below it.
//!
//! | folder | owns |
//! |---|---|
//! | [`boot`] | the assembly: settings → engine → listeners → signals |
//! | [`cli`] | the command line of the binary |
//! | [`migrate`] | files of Redis and Valkey, to and from data directories |
//! | [`net`] | listeners, threads, the connection task |
//! | [`web`] | metrics and the status page, over HTTP |
//! | [`command`] | all rows; a command's way: checks, lease, run, commit |
//! | [`server`] | commands without a type: connection, keyspace, transactions, administration |
//! | [`types`] | one file a data type: command functions and their rows |
//! | [`handler`] | the contract between those who run commands and the functions: row, table, keys, context, session |
//! | [`tls`] | what TLS is spoken with: certificates, authorities, ciphers, sessions; no I/O but of files |
//! | [`config`] | directives, their file, `CONFIG GET/SET/REWRITE` |
//! | [`resp`] | requests in (an incremental parser), replies out in RESP2 and RESP3 |
//! | [`shard`] | the actor: mailbox, lease, transaction, table of hot and dirty objects, expiry, flush |
//! | [`log`] | the redo log: segments, group commit, fsync policies, replay |
//! | [`store`] | fjall: open, ingestion, range reads, compaction filter |
//! | [`rdb`] | values in Redis's RDB format, DUMP payloads, dump.rdb |
//! | [`codec`] | the bytes of keys, values and log records; no I/O |
//! | [`lua`] | Lua 5.1 as Redis has it; knows nothing of the server |
//! | [`latency`] | what takes long and is no command's own work: events, waits |
//! | [`meter`] | what the command that a thread runs may still do: steps, bytes |
//! | [`error`] | what clients are told when a command fails |
//! | [`util`] | numbers, globs and time as Redis reads and prints them |

pub mod boot;
pub mod cli;
pub mod codec;
pub mod command;
pub mod config;
pub mod error;
pub mod handler;
pub mod latency;
pub mod log;
pub mod lua;
pub mod meter;
pub mod migrate;
pub mod net;
pub mod rdb;
pub mod resp;
pub mod server;
pub mod shard;
pub mod store;
pub mod tls;
pub mod types;
pub mod util;
pub mod web;

pub use error::{Error, Result};

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::path::Path;

    /// Comments and tests included. The order is that of the table at the head of this file.
    #[test]
    fn folders_import_only_from_those_below() {
        let name = |line: &'static str| line.strip_prefix("//! | [`")?.split('`').next();
        let order: Vec<&str> = include_str!("lib.rs").lines().filter_map(name).collect();
        let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut paths = vec![src.clone()];
        while let Some(path) = paths.pop() {
            if path.is_dir() {
                paths.extend(path.read_dir().unwrap().map(|entry| entry.unwrap().path()));
                continue;
            }
            let folder = path.strip_prefix(&src).unwrap().iter().next().unwrap().to_str().unwrap();
            let folder = folder.trim_end_matches(".rs");
            if ["lib", "main"].contains(&folder) {
                continue;
            }
            let at = order.iter().position(|name| *name == folder).unwrap();
            let text = std::fs::read_to_string(&path).unwrap();
            for used in text.split("crate::").skip(1) {
                let from = used.split(|c: char| c != '_' && !c.is_ascii_lowercase()).next().unwrap();
                assert!(!order[..at].contains(&from), "{} names {from}", path.display());
            }
        }
    }
}
