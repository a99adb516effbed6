//! Commands without a type.
//!
//! | file | owns |
//! |---|---|
//! | [`connection`], [`client`] | the session: handshake, authentication, CLIENT |
//! | [`keyspace`], [`expire`], [`scan`], [`database`] | keys of any type, databases |
//! | [`transaction`] | MULTI, EXEC, DISCARD |
//! | [`info`], [`config`] | INFO, CONFIG |
//! | [`admin`] | saving, shutdown, time, and what Tarn answers for features it does not have |
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
pub mod monitor;
pub mod scan;
pub mod transaction;

use crate::handler::{Args, Ctx, Error, Reply, Result};

/// The version of Redis that Tarn follows, as INFO and HELLO name it. Clients decide by it what to send.
pub const REDIS_VERSION: &str = "8.2.3";

/// A container called with a word that is none of its subcommands. Its row is `UNQUEUED`: such a call is never queued, it
/// spoils the transaction.
pub fn unknown_subcommand(ctx: &mut Ctx, args: Args<'_>, _out: &mut Reply) -> Result {
    if let Some(multi) = &mut ctx.session.multi {
        multi.aborted = true;
    }
    let container = String::from_utf8_lossy(&args[0]).to_ascii_uppercase();
    Err(Error::quoting("ERR unknown subcommand '", &args[1], 128, &format!("'. Try {container} HELP.")))
}

/// The reply of a HELP subcommand: `lines` framed by what Redis puts around every one.
pub fn help(out: &mut Reply, container: &str, lines: &[&str]) {
    out.array(lines.len() + 3);
    out.status(&format!("{container} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"));
    lines.iter().for_each(|line| out.status(line));
    out.status("HELP");
    out.status("    Print this help.");
}

/// A subcommand with words that it does not take.
pub(crate) fn wrong_subcommand(args: Args<'_>) -> Error {
    let container = String::from_utf8_lossy(&args[0]).to_ascii_uppercase();
    let before = "ERR unknown subcommand or wrong number of arguments for '";
    Error::quoting(before, &args[1], 128, &format!("'. Try {container} HELP."))
}
