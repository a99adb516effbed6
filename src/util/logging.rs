//! Where the server's log goes, and how much of it: a subscriber whose level may change at any time, a file that may be
//! moved away or cut short at any time, and the report of a panic.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber, span};

const LEVELS: [LevelFilter; 6] = [
    LevelFilter::OFF,
    LevelFilter::ERROR,
    LevelFilter::WARN,
    LevelFilter::INFO,
    LevelFilter::DEBUG,
    LevelFilter::TRACE,
];

/// Index in [`LEVELS`].
static LEVEL: AtomicUsize = AtomicUsize::new(3);

fn level() -> LevelFilter {
    LEVELS[LEVEL.load(Ordering::Relaxed)]
}

/// From now on shows this much.
pub fn set_level(level: LevelFilter) {
    let index = LEVELS.iter().position(|known| *known == level);
    LEVEL.store(index.unwrap_or(0), Ordering::Relaxed);
    tracing::callsite::rebuild_interest_cache();
}

/// Begins the log: in a file, which is appended to, or on standard output.
///
/// # Errors
/// If the file cannot be opened.
pub fn start(file: Option<&Path>, level: LevelFilter) -> io::Result<()> {
    set_level(level);
    let format = tracing_subscriber::fmt().with_max_level(LevelFilter::TRACE).with_target(false);
    let outcome = match file {
        Some(path) => {
            let file = LogFile::open(path)?;
            tracing::subscriber::set_global_default(Leveled(
                format.with_ansi(false).with_writer(Mutex::new(file)).finish(),
            ))
        }
        None => {
            let ansi = io::IsTerminal::is_terminal(&io::stdout());
            tracing::subscriber::set_global_default(Leveled(format.with_ansi(ansi).with_writer(io::stdout).finish()))
        }
    };
    outcome.map_err(io::Error::other)
}

/// The log's file, found again at each line: logrotate may have moved it away. If it cut it short instead, the file is
/// appended to all the same.
struct LogFile {
    path: PathBuf,
    file: File,
}

impl LogFile {
    fn open(path: &Path) -> io::Result<Self> {
        Ok(LogFile { path: path.to_owned(), file: append(path)? })
    }

    /// Whether the path still names the open file.
    fn is_there(&self) -> bool {
        let place = |meta: std::fs::Metadata| (meta.dev(), meta.ino());
        match (std::fs::metadata(&self.path), self.file.metadata()) {
            (Ok(named), Ok(open)) => place(named) == place(open),
            _ => false,
        }
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

impl Write for LogFile {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // Where none can be opened, as when descriptors have run out, the old one is better than none.
        if !self.is_there()
            && let Ok(file) = append(&self.path)
        {
            self.file = file;
        }
        self.file.write(line)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// From now on a panic is logged with its thread and backtrace, then ends the process.
pub fn report_panics() {
    let to_stderr = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if tracing::enabled!(tracing::Level::ERROR) {
            let thread = std::thread::current();
            let backtrace = std::backtrace::Backtrace::force_capture();
            tracing::error!(thread = thread.name().unwrap_or("?"), "{panic}\n{backtrace}");
        } else {
            to_stderr(panic);
        }
        std::process::abort();
    }));
}

/// A subscriber behind the level, which may change at any time.
struct Leveled<S>(S);

impl<S: Subscriber> Subscriber for Leveled<S> {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.enabled(metadata) { Interest::always() } else { Interest::never() }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(level())
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= level() && self.0.enabled(metadata)
    }

    fn new_span(&self, span: &span::Attributes<'_>) -> span::Id {
        self.0.new_span(span)
    }

    fn record(&self, span: &span::Id, values: &span::Record<'_>) {
        self.0.record(span, values);
    }

    fn record_follows_from(&self, span: &span::Id, follows: &span::Id) {
        self.0.record_follows_from(span, follows);
    }

    fn event(&self, event: &Event<'_>) {
        self.0.event(event);
    }

    fn enter(&self, span: &span::Id) {
        self.0.enter(span);
    }

    fn exit(&self, span: &span::Id) {
        self.0.exit(span);
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn the_log_goes_on_when_logrotate_has_moved_or_cut_its_file() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let (path, moved) = (dir.path().join("log"), dir.path().join("log.1"));
        let read = |path: &Path| std::fs::read_to_string(path).unwrap();
        let mut log = LogFile::open(&path).unwrap();
        log.write_all(b"one\n").unwrap();
        std::fs::rename(&path, &moved).unwrap();
        log.write_all(b"two\n").unwrap();
        assert_eq!((read(&moved), read(&path)), ("one\n".into(), "two\n".into()));
        File::create(&path).unwrap();
        log.write_all(b"three\n").unwrap();
        assert_eq!(read(&path), "three\n");
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        log.write_all(b"nowhere to be seen\n").unwrap();
        std::fs::remove_dir(&path).unwrap();
        log.write_all(b"four\n").unwrap();
        assert_eq!(read(&path), "four\n");
    }
}
