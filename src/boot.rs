//! The assembly of a server, from its settings to its end.
//!
//! | step | fails with |
//! |---|---|
//! | the way into the background, log, file limit | exit code 1 |
//! | the engine opens the data directory, which it then owns | exit code 1 |
//! | listeners, the pid file, network threads: clients are answered `-LOADING` | exit code 1 |
//! | replay, on a thread of its own | exit code 1 |
//! | ready: the log says so, systemd is told | |
//! | SIGTERM, SIGINT or SHUTDOWN: no more connections, no more commands, last replies, flush, sync | |
//!
//! A second SIGINT ends the process at once; so does whatever ends it during the replay, which changes nothing that the
//! next start would miss. A command that does not end keeps the shutdown waiting for `shutdown-timeout` at most: then there is
//! no flush, as the log holds every write.
//!
//! A panic, in whatever thread, is logged with its backtrace and ends the process: what is acknowledged is in the log.

mod warnings;

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

use crate::config::budget::{Budget, Machine};
use crate::config::settings::Supervised;
use crate::config::{Config, Settings};
use crate::handler::server::Shutdown;
use crate::handler::{Server, Table};
use crate::log::{Io, RealIo};
use crate::net::listen::Workers;
use crate::net::listeners::Listeners;
use crate::server::config::reserved_files;
use crate::shard::Engine;
use crate::shard::engine::{EngineOptions, gate};
use crate::store::LEAST_TABLE_FILES;
use crate::util::{alloc, logging, scale, sys, time};

/// Time between two samples of the rates that INFO shows.
const SAMPLE: Duration = Duration::from_millis(100);

/// A shutdown waits at least so long for commands that run.
const LEAST_WAIT: Duration = Duration::from_secs(1);

/// Why the server does not run, in the operator's words.
pub type Failure = Box<dyn std::error::Error>;

/// Where Redis leaves its process id in the background, if it is not told another place.
const DAEMONS_PID_FILE: &str = "/var/run/redis.pid";

/// Runs a server with these commands until it is told to end. The process has no other thread yet.
pub fn serve(config: Config, table: Table) -> ExitCode {
    let settings = config.settings();
    crate::command::install(table);
    if in_background(&settings)
        && let Err(error) = sys::to_daemon()
    {
        eprintln!("cannot run in the background: {error}");
        return ExitCode::FAILURE;
    }
    if let Err(error) = logging::start(settings.logfile.as_deref(), settings.loglevel.into()) {
        eprintln!("cannot open the log file: {error}");
        return ExitCode::FAILURE;
    }
    logging::report_panics();
    if scale::factor() > 1 {
        tracing::warn!(factor = scale::factor(), "a debug build with TARN_DEBUG_SCALE: for tests only");
    }
    let outcome = run(config, Arc::new(RealIo));
    if let Err(error) = &outcome {
        tracing::error!("{error}");
    }
    if outcome.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Whether the process leaves the terminal that started it. Who supervises it does so by the process that it started.
fn in_background(settings: &Settings) -> bool {
    settings.daemonize && notify_socket(settings).is_none()
}

/// Runs a server, whose log is on this disk, until it is told to end. Logging is the caller's.
///
/// # Errors
/// What the table above says.
pub fn run(config: Config, io: Arc<dyn Io>) -> Result<(), Failure> {
    let table_files = limit_files(&config)?;
    let settings = config.settings();
    let machine = Machine::read();
    let budget = Budget::new(&settings, &machine);
    // Two for each thread that serves connections, as shards' and background threads share them; no fewer than cores.
    alloc::settle((2 * budget.io_threads + 2).max(machine.cores));
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        pid = std::process::id(),
        memory_bytes = budget.total_bytes,
        dir = %settings.dir.display(),
        "tarn starts"
    );
    warnings::all(&settings).iter().for_each(|text| tracing::warn!("{text}"));
    let engine = Engine::open(io, EngineOptions { table_files, ..budget.engine_options(&settings) })?;
    engine.disk.limit(settings.maxdisk, settings.disk_reserve);
    crate::server::config::evict_by(&engine, &settings);
    let server = Arc::new(Server::new(engine, config, crate::command::table()));
    crate::server::acl::file::load_at_start(&server)?;
    _ = server.engine.make_library.set(crate::server::script::library::stored);
    server.buffers.set_limit(budget.clients_bytes);
    crate::command::run::blocked::serve_after_sweeps(&server);
    server.hear_sweeps();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(live(&server, &settings, budget.io_threads))
}

/// Table files that are open at most: each costs the kernel about a KiB.
const MOST_TABLE_FILES: usize = 16 << 10;

/// Raises the limit of open files, or else lowers `maxclients`; how many files of tables may be open.
fn limit_files(config: &Config) -> Result<usize, Failure> {
    let settings = config.settings();
    let asked = settings.maxclients as u64;
    let reserved = reserved_files(&settings, LEAST_TABLE_FILES);
    let limit = sys::raise_file_limit(asked + reserved + 2 * MOST_TABLE_FILES as u64);
    if let Some(left) = limit.checked_sub(asked + reserved) {
        return Ok(table_files(left));
    }
    let most = limit - reserved.min(limit / 2);
    if most < asked {
        tracing::warn!(limit, asked, maxclients = most, "maxclients lowered, as the limit of open files is too low");
        config.set(&[("maxclients", most.max(1).to_string())])?;
    }
    Ok(LEAST_TABLE_FILES)
}

/// Table files that may be open where the limit leaves so many beside all that is needed: half of these, as more clients may be
/// asked for.
fn table_files(left: u64) -> usize {
    (LEAST_TABLE_FILES as u64 + left / 2).min(MOST_TABLE_FILES as u64) as usize
}

/// The file with the process id. It is removed at the end, unless it has become that of another server.
struct PidFile<'a>(&'a Path);

impl PidFile<'_> {
    fn text() -> String {
        format!("{}\n", std::process::id())
    }

    /// Only for who has data directory and port, as a second server might be told of the same file. As in Redis a server that
    /// cannot write it runs without.
    fn write(path: &Path) -> Option<PidFile<'_>> {
        match std::fs::write(path, PidFile::text()) {
            Ok(()) => Some(PidFile(path)),
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "cannot write the pid file");
                None
            }
        }
    }
}

impl Drop for PidFile<'_> {
    fn drop(&mut self) {
        if std::fs::read_to_string(self.0).is_ok_and(|text| text == PidFile::text()) {
            let _ = std::fs::remove_file(self.0);
        }
    }
}

/// Listens, loads, serves, and ends.
async fn live(server: &Arc<Server>, settings: &Settings, threads: usize) -> Result<(), Failure> {
    let mut signals = Signals::new()?;
    let listeners = Listeners::start(server, Workers::start(server, threads), tokio::runtime::Handle::current())?;
    if listeners.is_empty() {
        return Err(
            "nothing to listen on: port and tls-port are 0, or bind is empty, and there is no unixsocket".into()
        );
    }
    let pid_file = settings.pidfile.as_deref();
    let _pid_file =
        pid_file.or(in_background(settings).then_some(Path::new(DAEMONS_PID_FILE))).and_then(PidFile::write);
    let sampling = tokio::spawn(sample(server.clone()));
    crate::web::serve(server)?;
    server.startup_bytes.store(alloc::used_bytes() as u64, Ordering::Relaxed);
    let ended = load_and_wait(server, settings, &mut signals, replay(server)).await;
    listeners.close();
    sampling.abort();
    if let Some(path) = &settings.unixsocket {
        let _ = std::fs::remove_file(path);
    }
    match ended? {
        End::NothingToSave => Ok(()),
        End::Asked(how) => shut_down(server, how, &mut signals).await,
    }
}

/// Why the server ends.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// No command has been served.
    NothingToSave,
    Asked(Shutdown),
}

async fn load_and_wait(
    server: &Server,
    settings: &Settings,
    signals: &mut Signals,
    mut replayed: oneshot::Receiver<Result<(), String>>,
) -> Result<End, Failure> {
    let mut asked = server.shutdown.subscribe();
    // By its value, as SHUTDOWN may have come before this was here to see it change.
    let mut asked =
        async || asked.wait_for(Option::is_some).await.map_or(Shutdown::Save, |how| how.unwrap_or(Shutdown::Save));
    let outcome = |ended: Result<Result<(), String>, oneshot::error::RecvError>| match ended {
        Ok(outcome) => outcome.map_err(Failure::from),
        Err(_) => Err(Failure::from("the replay of the log panicked")),
    };
    let early = tokio::select! {
        ended = &mut replayed => {
            outcome(ended)?;
            None
        }
        by = signals.next() => Some((by, Shutdown::Save)),
        how = asked() => Some(("SHUTDOWN", how)),
    };
    if let Some((by, how)) = early {
        if server.engine.set_gate(gate::STOPPING, true) & gate::LOADING != 0 {
            tracing::info!(by, "ends before the log is replayed");
            return Ok(End::NothingToSave);
        }
        // Clients were served before this task was told of it.
        outcome(replayed.await)?;
        return Ok(End::Asked(how));
    }
    announce(server, settings);
    tokio::select! {
        name = signals.next() => {
            tracing::info!(signal = name, "signal received, shutting down");
            Ok(End::Asked(Shutdown::Save))
        }
        how = asked() => Ok(End::Asked(how)),
    }
}

/// Replays the log on a thread of its own.
fn replay(server: &Arc<Server>) -> oneshot::Receiver<Result<(), String>> {
    let (done, outcome) = oneshot::channel();
    let engine = server.engine.clone();
    crate::shard::engine::spawn("replay".to_owned(), 0, move || {
        let began = Instant::now();
        let outcome = engine.replay().map_err(|error| error.to_string());
        let records = engine.stats.replayed_records.load(Ordering::Relaxed);
        tracing::info!(records, ms = began.elapsed().as_millis() as u64, "log replayed");
        // Nobody listens any more if the server was told to end meanwhile.
        let _ = done.send(outcome);
    });
    outcome
}

/// Tells whoever waits that the server serves, in Redis's words: tools look for them in the log.
fn announce(server: &Server, settings: &Settings) {
    for bind in settings.bind.iter().filter(|_| settings.port != 0) {
        tracing::info!(address = %bind.host, port = settings.port, "Ready to accept connections tcp");
    }
    for bind in settings.bind.iter().filter(|_| settings.tls.port != 0) {
        tracing::info!(address = %bind.host, port = settings.tls.port, "Ready to accept connections tls");
    }
    if let Some(path) = &settings.unixsocket {
        tracing::info!(path = %path.display(), "Ready to accept connections unix");
    }
    if !server.acl.asks_password() && !settings.protected_mode {
        tracing::warn!(
            "the default user has no password, and protected-mode is off: whoever reaches the port may do anything"
        );
    }
    tracing::debug!(shards = server.engine.shards.count(), run_id = server.run_id, "details");
    tell_manager(settings, b"READY=1\nSTATUS=Ready to accept connections\n");
}

/// Where the service manager hears of the server, if it is to be told.
fn notify_socket(settings: &Settings) -> Option<OsString> {
    let told = matches!(settings.supervised, Supervised::Systemd | Supervised::Auto);
    std::env::var_os("NOTIFY_SOCKET").filter(|_| told)
}

/// Tells the service manager, if it is to be told.
fn tell_manager(settings: &Settings, state: &[u8]) {
    if let Some(path) = notify_socket(settings)
        && let Err(error) = notify(Path::new(&path), state)
    {
        tracing::warn!(%error, "cannot notify the service manager");
    }
}

/// As `sd_notify(3)` describes it: a datagram to the socket named in the environment, `@` for an abstract one.
fn notify(path: &Path, state: &[u8]) -> io::Result<()> {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    let address = match path.as_os_str().as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(path)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state, &address)?;
    Ok(())
}

/// Feeds the rates and the peak of memory that INFO shows. Ends a pause whose time is over: keys are not evicted while there is
/// one, and it may be that no command comes that would look.
async fn sample(server: Arc<Server>) {
    let mut ticks = tokio::time::interval(SAMPLE);
    loop {
        ticks.tick().await;
        server.end_pause(time::now_ms());
        let used = alloc::used_bytes() as u64;
        let load = |counter: fn(&crate::handler::server::ThreadStats) -> &std::sync::atomic::AtomicU64| {
            server.total(|thread| counter(thread).load(Ordering::Relaxed))
        };
        let counters = [
            load(|t| &t.commands),
            load(|t| &t.bytes_in),
            load(|t| &t.bytes_out),
            load(|t| &t.turns[0]),
            load(|t| &t.turns[1]),
        ];
        server.engine.heard.store(counters[0], Ordering::Relaxed);
        let mut rates = server.rates.lock();
        rates.sample(time::monotonic_us(), counters);
        if used > rates.memory_peak.0 {
            rates.memory_peak = (used, time::now_ms() / 1000);
        }
    }
}

/// Ends in good order: what was acknowledged is on disk when this returns.
async fn shut_down(server: &Arc<Server>, how: Shutdown, signals: &mut Signals) -> Result<(), Failure> {
    // First of all: no command begins any more, and those that run long end.
    server.engine.set_gate(gate::STOPPING, true);
    // As they are by now.
    let settings = server.config.settings();
    tell_manager(&settings, b"STOPPING=1\n");
    let (done, closed) = oneshot::channel();
    let engine = server.engine.clone();
    let most = settings.shutdown_timeout;
    let last_replies = last_replies(server.clone(), most);
    let close = async move {
        last_replies.await;
        crate::shard::engine::spawn("shutdown".to_owned(), 0, move || {
            // Whoever came through the gate before it closed has its shards by now.
            let _ = done.send(if engine.wait_idle(most.max(LEAST_WAIT)) {
                engine.close(how == Shutdown::Save)
            } else {
                tracing::warn!("a command does not end: no flush, the next start reads the log");
                engine.log.sync_to(engine.log.last())
            });
        });
        closed.await
    };
    tokio::select! {
        closed = close => match closed {
            Ok(Ok(())) => {
                tracing::info!("bye");
                Ok(())
            }
            Ok(Err(error)) => Err(format!("the log could not be synced, its end may be lost: {error}").into()),
            Err(_) => Err("the shutdown panicked; the next start reads what the log holds".into()),
        },
        () = signals.interrupt() => Err("interrupted again: ends without a flush; the log holds every write".into()),
    }
}

/// Waits until clients have their replies, but no longer than this.
async fn last_replies(server: Arc<Server>, most: Duration) {
    let began = Instant::now();
    loop {
        // At least once: a command that runs now is to write its reply first.
        tokio::time::sleep(Duration::from_millis(20)).await;
        let pending = |client: &Arc<crate::handler::session::Client>| client.output_bytes.load(Ordering::Relaxed) > 0;
        let waiting = server.clients.lock().values().filter(|client| pending(client)).count();
        if waiting == 0 {
            return;
        }
        if began.elapsed() > most {
            tracing::warn!(clients = waiting, "some clients have not read their last replies");
            return;
        }
    }
}

/// The signals that end a server. SIGHUP does not, as the server may outlive its terminal.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// The next one to end by.
    async fn next(&mut self) -> &'static str {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return "SIGTERM",
                _ = self.interrupt.recv() => return "SIGINT",
                _ = self.hangup.recv() => {}
            }
        }
    }

    async fn interrupt(&mut self) {
        self.interrupt.recv().await;
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests;
