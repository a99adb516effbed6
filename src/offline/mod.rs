//! What is done to a data directory that no server has open.
//!
//! | file | owns |
//! |---|---|
//! | [`check`] | `tarn check`: whether everything is there, whole, and agrees |
//! | `shadow` | the directory as the next start would make it |

pub mod check;

mod shadow;
