//! Data on its way between Tarn and the files of Redis and Valkey, without a server.
//!
//! | file | owns |
//! |---|---|
//! | [`import`] | `tarn import`: dump.rdb, AOF → a data directory |
//! | [`local`] | the engine without connections: transactions, commands |
//! | [`progress`] | how far it is, for who waits |

pub mod import;
mod local;
mod progress;
