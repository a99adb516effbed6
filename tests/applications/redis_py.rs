//! redis-py's own tests, of the source package of the version that requirements.txt names (`pip download --no-binary redis`),
//! unpacked where `TARN_TEST_REDIS_PY` says; both its clients, in both protocols, over TCP and TLS.
//!
//! `redis_py/excused.txt` lists those that are not run, and why. With `TARN_TEST_REDIS_PY_ON_REDIS` in the environment they run on
//! Redis 8.2 (those of TLS do not: it is built without), which proves the list.

use std::collections::VecDeque;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

use crate::common::server::{Kind, Server, free_port, notice};
use crate::common::tls;
use crate::has;

/// The client that waits, and that of asyncio.
const CLIENTS: [&str; 2] = ["tests", "tests/test_asyncio"];
const AT_ONCE: usize = 3;
/// Files of tests that run on one server, one after the other; those that wait longest come first.
const PARTS: [&[&str]; 3] = [
    &["pubsub"],
    &["commands"],
    &["pipeline", "lock", "scripting", "encoding", "monitor", "keyspace_notifications", "function", "cache", "ssl"],
];
/// What runs on Redis 8.2 as on Tarn, but nowhere without a cluster, modules or a replica.
const MARKS: &str = "not onlycluster and not redismod and not replica";

/// Runs these files of tests; the last line of what is told.
fn run(package: &Path, protocol: &str, folder: &str, files: &[&str]) -> String {
    let on_redis = std::env::var_os("TARN_TEST_REDIS_PY_ON_REDIS").is_some();
    let tls_port = free_port().to_string();
    let [certificate, key, authority] = ["server.crt", "server.key", "ca.crt"].map(tls::file);
    let mut args = vec!["--enable-debug-command", "yes"];
    if !on_redis {
        args.extend(["--tls-port", &tls_port, "--tls-auth-clients", "optional", "--tls-ca-cert-file", &authority]);
        args.extend(["--tls-cert-file", &certificate, "--tls-key-file", &key]);
    }
    let server = Server::built(if on_redis { Kind::Redis82 } else { Kind::Tarn }, &args);
    let url = format!("redis://127.0.0.1:{}/0", server.port());
    let mut command = Command::new("python3");
    command.args(["-B", "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", "-p", "settings", "-m", MARKS]);
    command.args(["-o", "filterwarnings=ignore", "--redis-url", &url, "--redis-mod-url", &url, "--protocol", protocol]);
    command.args(["--redis-ssl-url", &format!("rediss://localhost:{tls_port}")]);
    let files = files.iter().map(|file| format!("{folder}/test_{file}.py"));
    command.args(files.filter(|file| package.join(file).exists())).current_dir(package);
    command.env("PYTHONPATH", Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/applications/redis_py"));
    command.env("TARN_TEST_TLS", Path::new(&authority).parent().expect("a folder"));
    if on_redis {
        command.args(["-k", "not SSL"]);
    }
    let output = command.output().unwrap_or_else(|e| panic!("pytest: {e}"));
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{url}: {told}\n{}", String::from_utf8_lossy(&output.stderr));
    told.lines().last().unwrap_or_default().to_owned()
}

/// Beside each other, as they wait most of the time; but some tests trust in the machine's being quick.
#[test]
fn redis_py() {
    let package = std::env::var_os("TARN_TEST_REDIS_PY").unwrap_or_default();
    let needs = "import sys, pytest, pytest_asyncio, pytest_timeout; sys.exit(not __import__('os').path.isdir(sys.argv[1] + '/tests'))";
    if !has("redis-py's tests", Command::new("python3").args(["-c", needs]).arg(&package)) {
        return;
    }
    let package = Path::new(&package);
    let runs = PARTS
        .iter()
        .flat_map(|part| CLIENTS.iter().flat_map(move |client| [("2", *client, *part), ("3", *client, *part)]));
    let runs = Mutex::new(runs.collect::<VecDeque<_>>());
    let next = || runs.lock().expect("no thread fails in this").pop_front();
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some((protocol, folder, files)) = next() {
                    let told = run(package, protocol, folder, files);
                    notice(&format!("redis-py, {folder}, {} and so on, RESP{protocol}: {told}", files[0]));
                }
            });
        }
    });
}
