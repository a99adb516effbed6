//! Data on its way between Tarn and the files of Redis and Valkey, without a server.
//!
//! | file | owns |
//! |---|---|
//! | [`import`] | `tarn import`: dump.rdb, AOF → a data directory |
//! | [`export`] | `tarn export`: a data directory → dump.rdb |
//! | [`local`] | the engine without connections: transactions, commands |
//! | [`progress`] | how far it is, for who waits |

pub mod export;
pub mod import;
mod local;
mod progress;

use std::fmt;

/// Why it does not work, in the operator's words.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure(error.to_string())
    }
}
