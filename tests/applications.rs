//! Real applications, unmodified, each in a program of its own in `tests/applications/`.
//!
//! They need packages from PyPI (`pip install -r tests/applications/requirements.txt`) and from npm (`npm install --prefix DIR`
//! with `tests/applications/package.json` there, and `TARN_TEST_NODE_MODULES=DIR/node_modules`). What is not there is skipped
//! and says so; with `TARN_TEST_APPLICATIONS=all` it is a failure.

mod common;

use std::path::Path;
use std::process::{Command, Stdio};

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

fn run(mut command: Command, program: &str) {
    let server = Server::tarn(&[]);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/applications");
    command.arg(folder.join(program)).arg(server.port().to_string()).current_dir(server.dir());
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    let output = command.output().unwrap_or_else(|e| panic!("{program}: {e}"));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program}: {}\n{told}", String::from_utf8_lossy(&output.stdout));
}

fn python(program: &str, packages: &str) {
    if has(&format!("Python packages {packages}"), Command::new("python3").args(["-c", &format!("import {packages}")]))
    {
        run(Command::new("python3"), program);
    }
}

fn node(program: &str, package: &str) {
    let node = || {
        let mut node = Command::new("node");
        if let Some(modules) = std::env::var_os("TARN_TEST_NODE_MODULES") {
            node.env("NODE_PATH", modules);
        }
        node
    };
    if has(&format!("npm package {package}"), node().args(["-e", &format!("require('{package}')")])) {
        run(node(), program);
    }
}

#[test]
fn rq() {
    python("rq_queue.py", "rq");
}

#[test]
fn celery() {
    python("celery_tasks.py", "celery, packaging");
}

#[test]
fn locks() {
    python("locks.py", "redis, redlock");
}

#[test]
fn django_caches_and_channels() {
    python("django_caches.py", "django, django_redis, channels_redis");
}

#[test]
fn bullmq() {
    node("bullmq.js", "bullmq");
}

#[test]
fn socket_io() {
    node("socket_io.js", "@socket.io/redis-adapter");
}
