//! The `tarn` binary.

fn main() {}
