//! Data types.
pub mod bitmap;
pub mod string;
