//! What is done to a data directory that no server has open.
//!
//! | file | owns |
//! |---|---|
//! | [`check`] | `tarn check`: whether everything is there, whole, and agrees |
//! | [`remote`] | `tarn backup`: asks a server for what the BACKUP command does |
//! | [`restore`] | `tarn restore`: a backup becomes a data directory |
//! | `shadow` | the directory as the next start would make it |

pub mod check;
pub mod remote;
pub mod restore;

mod shadow;

/// Why something cannot be done, in the operator's words.
type Failure = Box<dyn std::error::Error>;
