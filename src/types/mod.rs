//! Data types: one file or folder each, with the commands' functions and their rows.

pub mod bitmap;
pub mod expire_options;
pub mod geo;
pub mod hyperloglog;
pub mod stream;
pub mod string;
pub mod timeout;
