//! Servers to measure: each on a free port of the loopback, in a directory of its own, ended by its process id.

use std::fs::{self, File, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::Options;
use crate::common::resp::{Client, Value};
use crate::common::script::split;
use crate::common::server::{Kind, free_port};

/// How long a server may take to answer its first command, or to end.
const LIMIT: Duration = Duration::from_secs(120);
/// How long it is awaited that files stay as they are.
const QUIET_LIMIT: Duration = Duration::from_secs(20);

/// A server's name and the command line that starts it, with `{port}` and `{dir}`.
#[derive(Clone)]
pub(crate) struct Program {
    pub(crate) name: String,
    pub(crate) words: Vec<String>,
    /// It is Tarn, whose directory holds `store/`.
    pub(crate) tarn: bool,
}

impl Program {
    /// The same with more arguments.
    pub(crate) fn with(&self, more: &[&str]) -> Program {
        let mut program = self.clone();
        program.words.extend(more.iter().map(|word| (*word).to_owned()));
        program
    }
}

/// Tarn, unless left out.
pub(crate) fn tarn(options: &Options) -> Option<Program> {
    if options.no_tarn {
        return None;
    }
    let binary = options.tarn.clone().unwrap_or_else(|| env!("CARGO_BIN_EXE_tarn").into());
    let mut words = vec![binary.display().to_string()];
    words.extend(blanks("--port {port} --bind 127.0.0.1 --dir {dir} --appendfsync everysec"));
    words.extend(options.tarn_arg.iter().cloned());
    Some(Program { name: "tarn".to_owned(), words, tarn: true })
}

/// The servers named by `--server`.
pub(crate) fn named(options: &Options) -> Result<Vec<Program>, String> {
    let one = |server: &String| {
        let (name, line) = server.split_once('=').ok_or_else(|| format!("--server {server}: NAME=COMMAND"))?;
        let line = split(line).ok_or_else(|| format!("--server {server}: unbalanced quotes"))?;
        let words = line.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        Ok(Program { name: name.to_owned(), words, tarn: false })
    };
    options.servers.iter().map(one).collect()
}

/// The servers named by `--server`; without any, `redis-server` and Valkey 9.1, where this machine has them.
pub(crate) fn rivals(options: &Options) -> Result<Vec<Program>, String> {
    if !options.servers.is_empty() {
        return named(options);
    }
    let debian = Some(PathBuf::from("redis-server")).filter(|_| version("redis-server").is_some());
    let mut out = Vec::new();
    for binary in [debian, Kind::Valkey.binary()].into_iter().flatten() {
        let Some(name) = version(&binary.display().to_string()) else { continue };
        let mut words = vec![binary.display().to_string()];
        words.extend(blanks("--port {port} --bind 127.0.0.1 --dir {dir} --appendonly yes --appendfsync everysec"));
        words.extend(["--save".to_owned(), String::new()]);
        out.push(Program { name, words, tarn: false });
    }
    Ok(out)
}

/// Tarn and its rivals, the first being the one the others are compared with.
pub(crate) fn all(options: &Options) -> Result<Vec<Program>, String> {
    let out: Vec<Program> = tarn(options).into_iter().chain(rivals(options)?).collect();
    if out.is_empty() { Err("no server to measure".into()) } else { Ok(out) }
}

fn blanks(text: &str) -> impl Iterator<Item = String> {
    text.split(' ').map(str::to_owned)
}

/// `redis 7.0.15`, from what `--version` prints.
fn version(binary: &str) -> Option<String> {
    let output = Command::new(binary).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let name = text.split(' ').next()?.to_lowercase();
    let number = text.split(' ').find_map(|word| word.strip_prefix("v="))?;
    Some(format!("{name} {number}"))
}

/// A server; dropping it kills the process and removes its directory.
pub(crate) struct Server {
    pub(crate) name: String,
    pub(crate) port: u16,
    pub(crate) tarn: bool,
    words: Vec<String>,
    child: Option<Child>,
    dir: tempfile::TempDir,
    /// How long files must stay as they are to count as settled.
    quiet: Duration,
}

impl Server {
    /// Starts a program in a new directory and waits until it answers.
    pub(crate) fn start(program: &Program, options: &Options) -> Result<Server, String> {
        let dir = match &options.dir {
            Some(parent) => tempfile::tempdir_in(parent),
            None => tempfile::tempdir(),
        }
        .map_err(|e| format!("a directory for {}: {e}", program.name))?;
        let port = free_port();
        let fill =
            |arg: &String| arg.replace("{port}", &port.to_string()).replace("{dir}", &dir.path().display().to_string());
        let words = program.words.iter().map(fill).collect();
        let quiet = Duration::from_millis(options.pick(1500, 300));
        let mut server =
            Server { name: program.name.clone(), port, tarn: program.tarn, words, child: None, dir, quiet };
        server.spawn()?;
        server.wait_until("DBSIZE", |reply| matches!(reply, Value::Int(_)), Duration::from_millis(20))?;
        Ok(server)
    }

    /// Starts the process, without waiting for it.
    pub(crate) fn spawn(&mut self) -> Result<(), String> {
        let (program, args) = self.words.split_first().ok_or_else(|| format!("{}: no command", self.name))?;
        let log = || -> Result<File, String> {
            let path = self.dir.path().join("output.log");
            OpenOptions::new().create(true).append(true).open(path).map_err(|e| format!("{}: {e}", self.name))
        };
        let child = Command::new(program)
            .args(args)
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .stdout(log()?)
            .stderr(log()?)
            .spawn()
            .map_err(|e| format!("{program}: {e}"))?;
        self.child = Some(child);
        Ok(())
    }

    /// Asks on new connections until the reply is the one awaited: while data is loaded, servers answer LOADING.
    pub(crate) fn wait_until(
        &mut self,
        command: &str,
        awaited: fn(&Value) -> bool,
        pause: Duration,
    ) -> Result<(), String> {
        let words: Vec<&str> = command.split(' ').collect();
        let start = Instant::now();
        loop {
            let reply = Client::connect(self.port).ok().and_then(|mut client| client.try_call(&words).ok());
            if reply.as_ref().is_some_and(awaited) {
                return Ok(());
            }
            let ended = self.child.as_mut().is_none_or(|child| child.try_wait().ok().flatten().is_some());
            if ended || start.elapsed() > LIMIT {
                let output = fs::read_to_string(self.dir.path().join("output.log")).unwrap_or_default();
                return Err(format!("{} does not answer {command} as awaited:\n{output}", self.name));
            }
            sleep(pause);
        }
    }

    /// Ends the process by SIGTERM and waits for it.
    pub(crate) fn stop(&mut self) -> Result<(), String> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        let _ = Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
        let start = Instant::now();
        while start.elapsed() < LIMIT {
            if let Ok(Some(_)) = child.try_wait() {
                return Ok(());
            }
            sleep(Duration::from_millis(5));
        }
        let _ = child.kill();
        let _ = child.wait();
        Err(format!("{} does not end on SIGTERM", self.name))
    }

    /// Ends the process at once, as a crash would.
    pub(crate) fn kill9(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    pub(crate) fn client(&self) -> Result<Client, String> {
        let mut client = Client::connect(self.port).map_err(|e| format!("{}: {e}", self.name))?;
        client.set_timeout(LIMIT);
        Ok(client)
    }

    /// One command; an error reply is an error here.
    pub(crate) fn call(&self, command: &str) -> Result<Value, String> {
        let words: Vec<&str> = command.split(' ').collect();
        let reply = self.client()?.try_call(&words).map_err(|gone| format!("{}: {command}: {gone:?}", self.name))?;
        if reply.is_error() { Err(format!("{}: {command}: {}", self.name, reply.text())) } else { Ok(reply) }
    }

    fn proc(&self, file: &str) -> String {
        let Some(child) = &self.child else { return String::new() };
        fs::read_to_string(format!("/proc/{}/{file}", child.id())).unwrap_or_default()
    }

    /// User and system time of all its threads so far, in microseconds (`proc_pid_stat(5)`).
    pub(crate) fn cpu_us(&self) -> f64 {
        let stat = self.proc("stat");
        // The second field is the name in brackets, which may hold blanks.
        let after_name = stat.rsplit(')').next().unwrap_or_default();
        let ticks: f64 =
            after_name.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
        ticks / ticks_per_second() * 1e6
    }

    /// Waits until it does next to nothing, a minute at most: what is left to do of earlier requests is not to be counted with
    /// those to come.
    pub(crate) fn rest(&self) {
        const LOOK: Duration = Duration::from_millis(500);
        let until = Instant::now() + Duration::from_secs(60);
        while Instant::now() < until {
            let cpu = self.cpu_us();
            sleep(LOOK);
            if (self.cpu_us() - cpu) / 1e6 < LOOK.as_secs_f64() / 20.0 {
                return;
            }
        }
        eprintln!("{} has not come to rest in a minute", self.name);
    }

    /// Resident memory in bytes.
    pub(crate) fn resident(&self) -> f64 {
        number_after(&self.proc("status"), "VmRSS:") * 1024.0
    }

    /// Bytes that the disk, not the page cache, has given it so far.
    pub(crate) fn disk_read(&self) -> f64 {
        number_after(&self.proc("io"), "read_bytes:")
    }

    /// How often the server has flushed, where its INFO says so.
    pub(crate) fn flushes(&self) -> Option<u64> {
        let mut client = Client::connect(self.port).ok()?;
        let text: String = ["persistence", "tarn"]
            .iter()
            .filter_map(|section| Some(client.try_call(&["INFO", section]).ok()?.text()))
            .collect();
        text.lines().find_map(|line| line.trim().strip_prefix("tarn_flushes:")?.parse().ok())
    }

    /// Where the data lies once it has been saved: Tarn's store, a rival's dump.
    pub(crate) fn saved(&self) -> PathBuf {
        self.dir.path().join(if self.tarn { "store" } else { "dump.rdb" })
    }

    /// SAVE, until what lies on disk changes no more: compaction goes on after it.
    pub(crate) fn save(&self) -> Result<(), String> {
        self.call("SAVE")?;
        let (start, mut size, mut since) = (Instant::now(), on_disk(&self.saved()), Instant::now());
        // A dump is whole when SAVE is answered.
        while self.tarn && since.elapsed() < self.quiet && start.elapsed() < QUIET_LIMIT {
            sleep(Duration::from_millis(100));
            let now = on_disk(&self.saved());
            if now != size {
                (size, since) = (now, Instant::now());
            }
        }
        Ok(())
    }

    /// Reads all that has been saved, so that the page cache holds it.
    pub(crate) fn warm(&self) {
        let mut buffer = vec![0; 1 << 20];
        for file in files(&self.saved()) {
            // A file may have gone since it was listed.
            if let Ok(mut file) = File::open(file) {
                while file.read(&mut buffer).is_ok_and(|n| n > 0) {}
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill9();
    }
}

fn ticks_per_second() -> f64 {
    static TICKS: OnceLock<f64> = OnceLock::new();
    *TICKS.get_or_init(|| {
        let output = Command::new("getconf").arg("CLK_TCK").output();
        let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        text.trim().parse().expect("getconf CLK_TCK prints a number")
    })
}

/// The number in the line of a `/proc` file that begins so.
pub(crate) fn number_after(text: &str, label: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(label)).unwrap_or_default();
    line.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0.0)
}

/// The files of a folder and those below it; of a file, itself.
fn files(path: &Path) -> Vec<PathBuf> {
    match fs::read_dir(path) {
        Ok(entries) => entries.flatten().flat_map(|entry| files(&entry.path())).collect(),
        Err(_) => vec![path.to_owned()],
    }
}

/// Bytes that files take on disk.
pub(crate) fn on_disk(path: &Path) -> f64 {
    files(path).iter().filter_map(|file| fs::metadata(file).ok()).map(|meta| (meta.blocks() * 512) as f64).sum()
}

/// Empties the page cache, if that is allowed: whether it was.
pub(crate) fn drop_caches(options: &Options) -> bool {
    if options.keep_caches {
        return false;
    }
    // Dirty pages stay in the cache otherwise.
    let _ = Command::new("sync").status();
    fs::write("/proc/sys/vm/drop_caches", "3").is_ok()
}
