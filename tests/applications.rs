//! Real applications, unmodified, each in a program of its own in `tests/applications/`.
//!
//! They need packages from PyPI (`pip install -r tests/applications/requirements.txt`) and from npm (`npm install --prefix DIR`
//! with `tests/applications/package.json` there, and `TARN_TEST_NODE_MODULES=DIR/node_modules`). What is not there is skipped
//! and says so; with `TARN_TEST_APPLICATIONS=all` it is a failure.

#![expect(clippy::expect_used, reason = "tests")]

mod applications {
    pub(crate) mod rate;
    mod redis_py;
}
mod common;

use std::path::Path;
use std::process::{Command, Stdio};

use applications::rate::{Application, at_full_rate};
use common::server::{Server, notice};

/// Whether a command succeeds that asks for a package; says so if not.
fn has(what: &str, ask: &mut Command) -> bool {
    let has = ask.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success());
    if !has {
        let all = std::env::var_os("TARN_TEST_APPLICATIONS").is_some_and(|which| which == "all");
        assert!(!all, "TARN_TEST_APPLICATIONS=all, and this machine has no {what}");
        notice(&format!("skipped: no {what} on this machine"));
    }
    has
}

/// Runs a program, unless there is nothing to run it with.
fn run(with: Option<impl Fn() -> Command>, program: &str) {
    let Some(mut command) = with.map(|with| with()) else { return };
    let server = Server::tarn(&[]);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/applications");
    command.arg(folder.join(program)).arg(server.port().to_string()).current_dir(server.dir());
    let output = command.output().unwrap_or_else(|e| panic!("{program}: {e}"));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program}: {}\n{told}", String::from_utf8_lossy(&output.stdout));
}

/// Python, if it has these packages.
fn python(packages: &str) -> Option<impl Fn() -> Command> {
    let python = || {
        let mut python = Command::new("python3");
        python.env("PYTHONDONTWRITEBYTECODE", "1");
        python
    };
    let ask = format!("import {packages}");
    has(&format!("Python packages {packages}"), python().args(["-c", &ask])).then_some(python)
}

/// Node, if it has this package.
fn node(package: &str) -> Option<impl Fn() -> Command> {
    let node = || {
        let mut node = Command::new("node");
        if let Some(modules) = std::env::var_os("TARN_TEST_NODE_MODULES") {
            node.env("NODE_PATH", modules);
        }
        node
    };
    has(&format!("npm package {package}"), node().args(["-e", &format!("require('{package}')")])).then_some(node)
}

#[test]
fn rq() {
    run(python("rq"), "rq_queue.py");
}

#[test]
fn celery() {
    run(python("celery, packaging"), "celery_tasks.py");
}

#[test]
fn locks() {
    run(python("redis, redlock"), "locks.py");
}

#[test]
fn django_caches_and_channels() {
    run(python("django, django_redis, channels_redis"), "django_caches.py");
}

#[test]
fn bullmq() {
    run(node("bullmq"), "bullmq.js");
}

#[test]
fn socket_io() {
    run(node("@socket.io/redis-adapter"), "socket_io.js");
}

fn celery_at_full_rate(killed: bool) {
    let application = Application {
        name: "Celery",
        program: "rate_celery.py",
        database: 1,
        pending: &["celery", "unacked", "unacked_index"],
        done: (2, "DBSIZE"),
        lost_by_kill: 1,
    };
    if let Some(python) = python("celery, packaging") {
        at_full_rate(&application, python, killed);
    }
}

fn bullmq_at_full_rate(killed: bool) {
    let pending =
        ["wait", "active", "delayed", "prioritized", "paused", "failed"].map(|list| format!("bull:rate:{list}"));
    let application = Application {
        name: "BullMQ",
        program: "rate_bullmq.js",
        database: 0,
        pending: &pending.each_ref().map(String::as_str),
        done: (0, "ZCARD bull:rate:completed"),
        lost_by_kill: 0,
    };
    if let Some(node) = node("bullmq") {
        at_full_rate(&application, node, killed);
    }
}

#[test]
fn full_rate_of_celery() {
    celery_at_full_rate(false);
}

#[test]
fn full_rate_of_celery_on_a_server_that_is_killed() {
    celery_at_full_rate(true);
}

#[test]
fn full_rate_of_bullmq() {
    bullmq_at_full_rate(false);
}

#[test]
fn full_rate_of_bullmq_on_a_server_that_is_killed() {
    bullmq_at_full_rate(true);
}
