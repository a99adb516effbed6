//! Real applications, unmodified, each in a program of its own in `tests/applications/`.
//!
//! They need packages from PyPI (`pip install -r tests/applications/requirements.txt`) and from npm (`npm install --prefix DIR`
//! with `tests/applications/package.json` there, and `TARN_TEST_NODE_MODULES=DIR/node_modules`). What is not there is skipped
//! and says so; with `TARN_TEST_APPLICATIONS=all` it is a failure.
//!
//! And redis-py's own tests, of the source package of the version that requirements.txt names (`pip download --no-binary redis`),
//! unpacked where `TARN_TEST_REDIS_PY` says. `applications/redis_py/excused.txt` lists those that are not run, and why. With
//! `TARN_TEST_REDIS_PY_ON_REDIS` in the environment they run on Redis 8.2, the gaps among them, which proves the list.

mod common;

use std::path::Path;
use std::process::{Command, Stdio};

use common::server::{Kind, Server, notice};

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

/// Whether tests of redis-py's source package pass, by this protocol, of the client in this folder.
fn redis_py(protocol: &str, folder: &str, files: &[&str]) {
    let package = std::env::var_os("TARN_TEST_REDIS_PY").unwrap_or_default();
    let needs = "import sys, pytest, pytest_asyncio, pytest_timeout; sys.exit(not __import__('os').path.isdir(sys.argv[1] + '/tests'))";
    if !has("redis-py's tests", Command::new("python3").args(["-c", needs]).arg(&package)) {
        return;
    }
    let on_redis = std::env::var_os("TARN_TEST_REDIS_PY_ON_REDIS").is_some();
    let kind = if on_redis { Kind::Redis82 } else { Kind::Tarn };
    let server = Server::built(kind, &["--enable-debug-command", "yes"]);
    let url = format!("redis://127.0.0.1:{}/0", server.port());
    let mut command = Command::new("python3");
    command.args(["-B", "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", "-p", "excuses"]);
    command.args(["-m", "not onlycluster and not ssl and not redismod and not replica", "-o", "filterwarnings=ignore"]);
    command.args(["--redis-url", &url, "--redis-mod-url", &url, "--protocol", protocol]);
    command.args(files.iter().map(|file| format!("{folder}/test_{file}.py"))).current_dir(&package);
    command.env("PYTHONPATH", Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/applications/redis_py"));
    if on_redis {
        command.env("TARN_REDIS_PY_GAPS", "run");
    }
    let output = command.output().unwrap_or_else(|e| panic!("pytest: {e}"));
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{url}: {told}\n{}", String::from_utf8_lossy(&output.stderr));
    notice(&format!("redis-py, {folder}, RESP{protocol}: {}", told.lines().last().unwrap_or_default()));
}

const ALL_BUT_COMMANDS: [&str; 7] =
    ["pipeline", "pubsub", "lock", "scripting", "encoding", "monitor", "keyspace_notifications"];

/// redis-py's clients: the one that waits, and that of asyncio.
const SYNC: &str = "tests";
const ASYNC: &str = "tests/test_asyncio";
/// What the latter has no tests of.
const SYNC_ALONE: [&str; 2] = ["function", "cache"];

#[test]
fn redis_py_commands_in_resp2() {
    redis_py("2", SYNC, &["commands"]);
}

#[test]
fn redis_py_commands_in_resp3() {
    redis_py("3", SYNC, &["commands"]);
}

#[test]
fn redis_py_in_resp2() {
    redis_py("2", SYNC, &[&ALL_BUT_COMMANDS[..], &SYNC_ALONE].concat());
}

#[test]
fn redis_py_in_resp3() {
    redis_py("3", SYNC, &[&ALL_BUT_COMMANDS[..], &SYNC_ALONE].concat());
}

#[test]
fn redis_py_asyncio_commands_in_resp2() {
    redis_py("2", ASYNC, &["commands"]);
}

#[test]
fn redis_py_asyncio_commands_in_resp3() {
    redis_py("3", ASYNC, &["commands"]);
}

#[test]
fn redis_py_asyncio_in_resp2() {
    redis_py("2", ASYNC, &ALL_BUT_COMMANDS);
}

#[test]
fn redis_py_asyncio_in_resp3() {
    redis_py("3", ASYNC, &ALL_BUT_COMMANDS);
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
