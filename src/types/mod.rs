//! Data types: one file or folder each, with the commands' functions and their rows.

pub mod bitmap;
pub mod dump;
pub mod expire_options;
pub mod front;
pub mod geo;
pub mod hash;
pub mod hyperloglog;
pub mod list;
pub mod merge;
pub mod mpop;
pub mod random;
pub mod scan;
pub mod set;
pub mod sort;
pub mod stream;
pub mod string;
pub mod timeout;
pub mod zset;
