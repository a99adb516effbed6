//! The model test at the level of commands, `tests/diff/torture.py`: the same random commands of all types on Tarn with hardly any
//! memory and on Redis 8.2, with flushes, eviction, restarts and `kill -9` between, and looks at every key by several
//! ways. With odd seeds Tarn is scaled (see `common::server`).
//!
//! `TARN_MODEL_SECONDS` sets the length (15 s), or `TARN_MODEL_ROUNDS` the batches of commands; `TARN_MODEL_SEED` the seed (the clock).
//! What a machine without Python or Redis 8.2 does: see `common::server`.

mod common;

use std::path::Path;
use std::process::Command;

use common::rng::seed_from;
use common::server::{Kind, SCALE, has_python, notice};

#[test]
fn tarn_holds_what_the_model_holds() {
    if !has_python("the model test") {
        return;
    }
    let Some(model) = Kind::Redis82.binary() else {
        notice("skipped: no redis 8.2 on this machine to be the model");
        return;
    };
    let tarn = Kind::Tarn.binary().unwrap_or_else(|| panic!("cargo builds tarn before its tests"));
    let seed = seed_from("TARN_MODEL_SEED").to_string();
    let mut command = Command::new("python3");
    command.arg("-B").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/diff/torture.py"));
    command.arg("--tarn").arg(tarn).arg("--redis").arg(model).args(["--seed", &seed]);
    if seed.ends_with(['1', '3', '5', '7', '9']) {
        command.env(SCALE.0, SCALE.1);
    }
    match std::env::var("TARN_MODEL_ROUNDS") {
        Ok(rounds) => command.args(["--rounds", &rounds]),
        Err(_) => command.args(["--seconds", &std::env::var("TARN_MODEL_SECONDS").unwrap_or_else(|_| "15".to_owned())]),
    };
    let output = command.output().unwrap_or_else(|e| panic!("python3: {e}"));
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "TARN_MODEL_SEED={seed}: {}\n{text}\n{errors}", output.status);
    eprintln!("{text}");
}
