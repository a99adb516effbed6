//! Where the server's log goes, and how much of it: a subscriber whose level may change at any time.

use std::fs::OpenOptions;
use std::io;
use std::path::Path;
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
            let file = OpenOptions::new().create(true).append(true).open(path)?;
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
