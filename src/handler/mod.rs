//! The contract between those who run commands and the functions that do the work.
//!
//! | file | owns |
//! |---|---|
//! | [`acl`] | users, and what they may do |
//! | [`buffers`] | what all connections' buffers take |
//! | [`row`] | a command's row: arity, flags, key specs, help |
//! | [`table`] | rows by name, slots |
//! | [`keys`] | keys among the arguments, their shards |
//! | [`ctx`] | what a function gets: transaction, session, server |
//! | [`effects`] | what a command does beside records |
//! | [`once`] | what a transaction that is run again does not do again |
//! | [`feed`] | what a connection is sent piece by piece |
//! | [`limits`] | what one command may take |
//! | [`container`] | what all containers of subcommands answer alike |
//! | [`session`] | what a connection carries from command to command |
//! | [`server`] | what all connections share |
//!
//! A command is one function `fn(&mut Ctx, Args, &mut Reply) -> Result` and one row in the `COMMANDS` array at the end
//! of its file. It runs with the shards of its keys under lease; it may be run again from the start, so it changes
//! nothing but through `Ctx`, or its row has the flag `ONCE`. On `Err` everything it wrote is taken back and its reply replaced by the error.

pub mod acl;
pub mod buffers;
pub mod container;
pub mod ctx;
pub mod effects;
pub mod events;
pub mod feed;
pub mod keys;
pub mod limits;
pub mod monitor;
pub mod observe;
pub mod once;
pub mod pubsub;
pub mod row;
pub mod scripts;
pub mod server;
pub mod session;
pub mod table;
pub mod tracking;

pub use crate::error::{Error, Result};
pub use crate::resp::{Args, OwnedArgs, Reply};
pub use crate::shard::txn::Found;
pub use ctx::Ctx;
pub use effects::{Effect, Effects};
pub use row::{Begin, Command, Find, Group, KeySpec, KeysAt, Route, Run, flags, key};
pub use server::Server;
pub use session::{After, Session};
pub use table::Table;
