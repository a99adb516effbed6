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

pub mod check;
pub mod compact;
pub mod remote;
pub mod reshard;
pub mod restore;

mod shadow;

/// Why something cannot be done, in the operator's words.
type Failure = Box<dyn std::error::Error>;
