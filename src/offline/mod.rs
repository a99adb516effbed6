//! What is done to a data directory that no server has open.
//!
//! | file | owns |
//! |---|---|
//! | [`check`] | `tarn check`: whether everything is there, whole, and agrees |
//! | [`compact`] | `tarn compact`: partitions without what is dead in them |
//! | [`remote`] | `tarn backup`: asks a server for what the BACKUP command does |
//! | [`reshard`] | `tarn reshard`: another number of shards |
//! | [`restore`] | `tarn restore`: a backup becomes a data directory |
//! | `shadow` | the directory as the next start would make it |

use std::path::Path;
use std::process::ExitCode;

use crate::store::rights;

pub mod check;
pub mod compact;
pub mod remote;
pub mod reshard;
pub mod restore;

mod shadow;

/// Runs a tool on a data directory: what it makes there belongs to whom the data belong, whoever runs it.
pub fn on(dir: &Path, tool: impl FnOnce() -> ExitCode) -> ExitCode {
    let code = tool();
    match rights::hand_over(dir) {
        Err(error) if dir.exists() => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
        _ => code,
    }
}

/// Why something cannot be done, in the operator's words.
type Failure = Box<dyn std::error::Error>;
