//! Tarn's tools, run to their end.

use std::process::Command;

/// Runs `tarn` with these arguments: whether it succeeds, and all that it says.
pub(crate) fn tarn(args: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_tarn")).args(args).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

/// The same where it succeeds: what it says.
pub(crate) fn done(args: &[&str]) -> String {
    let (ok, said) = tarn(args);
    assert!(ok, "tarn {args:?}: {said}");
    said
}
