//! The differential fuzzer, `tests/diff/difffuzz.py`: the same random commands on Redis 8.2 and on Tarn, replies and key spaces compared.
//!
//! `TARN_DIFF_COUNT` sets the commands per seed (10000), `TARN_DIFF_EVENTS_COUNT` those of which keyspace events are
//! compared, too (3000), `TARN_DIFF_WAITS_COUNT` the steps of several clients of which some wait (`tests/diff/waitfuzz.py`; 3000),
//! `TARN_DIFF_SEEDS` the seeds (`1,2`), of which every second one is for a
//! Tarn that does with few what it else does with many, `TARN_DIFF_GROUPS` the groups of commands. What a machine without Python
//! or Redis 8.2 does: see `common::server`.

#![expect(clippy::expect_used, reason = "tests")]

mod common;

use std::path::Path;
use std::process::Command;

use common::server::{Kind, Server, has_python, notice};

/// What Tarn has of the fuzzer's groups.
const GROUPS: &str = "string,bitmap,hyperloglog,hash,list,set,sorted_set,geo,stream,generic,transactions";
/// The same where what is kept of scripts and libraries is not scaled down.
const SCRIPTS: &str = ",scripting";

/// What COMPAT.md has a difference for that shows in other commands' replies: SORT_RO turns a sorted set into a skip list,
/// a destroyed group goes on to hold entries back.
const SKIP: &str = "SORT_RO,XGROUP DESTROY";

/// With its append-only file, as WAITAOF speaks of Tarn's log.
const REFERENCE_ARGS: &[&str] = &["--appendonly", "yes"];

fn setting(name: &str, default: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| default.to_owned())
}

/// Runs one of the fuzzers once for each seed, with these options besides, and checks what it prints.
fn run(fuzzer: &str, options: impl Fn(Kind) -> Vec<String>, check: impl Fn(&str) -> bool) {
    if !has_python("the differential fuzzer") {
        return;
    }
    let Some(reference) = Server::start(Kind::Redis82, REFERENCE_ARGS) else {
        notice("skipped: no redis 8.2 on this machine to compare with");
        return;
    };
    let targets =
        [Kind::Tarn, Kind::ScaledTarn].map(|kind| (kind, Server::start(kind, &[]).expect("cargo builds tarn")));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/diff").join(fuzzer);
    let address = |server: &Server| format!("127.0.0.1:{}", server.port());
    for (seed, (kind, target)) in setting("TARN_DIFF_SEEDS", "1,2").split(',').zip(targets.iter().cycle()) {
        let mut command = Command::new("python3");
        command.arg("-B").arg(&script).args(["--ref", &address(&reference), "--target", &address(target)]);
        command.args(["--seed", seed]).args(options(*kind));
        let output = command.output().unwrap_or_else(|e| panic!("python3: {e}"));
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && check(&text), "seed {seed}: {}\n{text}\n{errors}", output.status);
        eprintln!("{text}");
    }
}

/// Compares so many commands of each seed.
fn compare(count: &str, more: &[&str]) {
    let options = |kind| {
        let mut groups = setting("TARN_DIFF_GROUPS", GROUPS);
        if kind == Kind::Tarn {
            groups += SCRIPTS;
        }
        let fixed = ["--skip", SKIP, "--since", "8.2", "--resp", "both", "--hll-bytes", "--unsigned-zero"];
        ["--count", count, "--groups", &groups].iter().chain(&fixed).chain(more).map(ToString::to_string).collect()
    };
    // The exit status forgives another text after the same error code, and floats that are near; Tarn has neither, but its zeros
    // have no sign.
    run("difffuzz.py", options, |text| text.contains("error text only 0, near 0,"));
}

#[test]
fn tarn_answers_as_redis_does() {
    compare(&setting("TARN_DIFF_COUNT", "10000"), &[]);
}

#[test]
fn tarn_tells_of_keys_as_redis_does() {
    compare(&setting("TARN_DIFF_EVENTS_COUNT", "3000"), &["--events", "--multi-db"]);
}

#[test]
fn tarn_serves_who_waits_as_redis_does() {
    let count = setting("TARN_DIFF_WAITS_COUNT", "3000");
    for more in [&[][..], &["--spread"], &["--spread", "--track"]] {
        let options = ["--count", &count].into_iter().chain(more.iter().copied());
        run("waitfuzz.py", |_| options.clone().map(str::to_owned).collect(), |_| true);
    }
}
