//! `tarn import FILE…`: what files of Redis and Valkey hold becomes a data directory.
//!
//! | file | owns |
//! |---|---|
//! | this one | the data directory that is made, and the report |
//! | [`rdb`] | dump.rdb |
//! | [`aof`] | AOF: folders, manifests, single files |
//! | [`lanes`] | commands of an AOF, side by side |
//! | [`files`] | which of these a path names |
//!
//! **All or nothing.** The data directory is made in a folder of its own within that which it is for, and takes the place of
//! what was there in one step when all of it is on disk ([`crate::store::staged`]). Interrupted or failed anywhere, nothing has
//! changed; the next import removes what was left. The directory is locked meanwhile.
//!
//! **Fast, in bounded memory.** One thread goes through the file and finds where values end; what it passes on in batches, one
//! shard's each, is decoded and put by twice as many others as there are cores, as what lands waits for the disk: a batch is one transaction. Keys of the file that
//! is read first go straight to the store ([`crate::shard::Engine::go_straight`]); else writers wait for the flush as clients do. Values that are big come piece by piece, and go to the store so (rule 10). Commands of an AOF are run by as many threads as there are cores, each for shards of its own.

mod aof;
mod files;
mod lanes;
mod rdb;

use std::collections::BTreeMap;
use std::fmt;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::Failure;
use super::local::{self, Local};
use super::progress::Progress;
use crate::config::{Config, Source};
use crate::handler::Server;
use crate::shard::engine::Engine;
use crate::store::{DataDir, StoreError, staged};
use crate::util::time::now_ms;

/// What is asked for.
#[derive(Debug)]
pub struct Import {
    /// In the order in which they are read.
    pub files: Vec<PathBuf>,
    /// Where what they hold is to be.
    pub dir: PathBuf,
    /// What is there is to go.
    pub replace: bool,
    /// Keys with values of modules are left out.
    pub skip_modules: bool,
    /// Directives, each the words of a line: `shards`, `databases`, `maxmemory`.
    pub directives: Vec<Vec<Vec<u8>>>,
}

/// Where something stands that was found in a file.
struct Place<'a> {
    path: &'a Path,
    offset: u64,
    db: &'a [u8],
    key: Option<&'a [u8]>,
}

impl Place<'_> {
    fn failure(&self, what: impl fmt::Display) -> Failure {
        let path = self.path.display();
        let db = String::from_utf8_lossy(self.db);
        match self.key {
            Some(key) => Failure(format!(
                "{path}: key '{}' of database {db}, at offset {}: {what}",
                key[..key.len().min(MOST_SHOWN)].escape_ascii(),
                self.offset
            )),
            None => Failure(format!("{path}: at offset {}: {what}", self.offset)),
        }
    }
}

/// Bytes of a key that are shown.
const MOST_SHOWN: usize = 200;

/// What was read, and what was left out.
#[derive(Debug, Default)]
struct Tally {
    /// Keys of RDB files that were put.
    keys: u64,
    /// Their time had passed.
    expired: u64,
    /// Commands of AOF files.
    commands: u64,
    functions: u64,
    /// What was left out, or is to be known, and how often.
    notes: BTreeMap<String, u64>,
}

impl Tally {
    /// Lines of the report besides those of the numbers.
    const MOST_NOTES: usize = 100;

    fn note(&mut self, what: String, count: u64) {
        let what = if self.notes.len() < Self::MOST_NOTES || self.notes.contains_key(&what) {
            what
        } else {
            "more".to_owned()
        };
        *self.notes.entry(what).or_default() += count;
    }
}

/// What went wrong first of what threads do side by side; the others stop then.
#[derive(Default)]
struct FirstFailure {
    happened: AtomicBool,
    failure: Mutex<Option<Failure>>,
}

impl FirstFailure {
    fn set(&self, failure: Failure) {
        self.failure.lock().get_or_insert(failure);
        self.happened.store(true, Ordering::Release);
    }

    fn has_happened(&self) -> bool {
        self.happened.load(Ordering::Acquire)
    }

    fn take(&self) -> Option<Failure> {
        self.failure.lock().take()
    }
}

/// An import under way.
struct Session {
    server: Arc<Server>,
    local: Local,
    skip_modules: bool,
    tally: Tally,
    progress: Progress,
    /// Bytes of files that have been read to their ends.
    done_bytes: u64,
    /// The time of the commands that are run.
    clock_ms: u64,
    /// Nothing has been read yet.
    is_empty: bool,
}

/// Imports, and reports.
pub fn run(import: &Import) -> ExitCode {
    match go(import) {
        Ok(report) => {
            // A reader who has closed the pipe has read enough.
            let _ = write!(std::io::stdout(), "{report}");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("{failure}\nNothing was imported: {} is as it was.", import.dir.display());
            ExitCode::FAILURE
        }
    }
}

/// Imports; the report.
pub(super) fn go(import: &Import) -> Result<String, Failure> {
    let files = files::all(&import.files)?;
    let (_lock, superblock) = DataDir::claim(&import.dir)?;
    if superblock.is_some() && !import.replace {
        return Err(Failure(format!(
            "{} holds data: --replace has it replaced by what is imported, or choose another --dir",
            import.dir.display()
        )));
    }
    let staging = staged::begin(&import.dir)?;
    match fill(import, &staging, &files) {
        Ok(report) => {
            let committed = staged::commit(&import.dir);
            let report = with_end(report, committed, staged::is_made(&import.dir))?;
            Ok(match staged::settle(&import.dir) {
                Ok(()) => report,
                Err(error) => format!(
                    "{report}{error}: it is imported, and moved to its place by whoever opens the directory next\n"
                ),
            })
        }
        Err(failure) => {
            // What is in its way stays; the next import, or a server, removes it.
            let _ = staged::abandon(&import.dir);
            Err(failure)
        }
    }
}

/// The report, with what went wrong in the last step: where all of it `is_made` all the same, it counts.
fn with_end(report: String, committed: Result<(), StoreError>, is_made: bool) -> Result<String, Failure> {
    match committed {
        Ok(()) => Ok(report),
        Err(error) if is_made => Ok(format!(
            "{report}{error}: it is imported, but a crash of the machine may bring back what was there before\n"
        )),
        Err(error) => Err(error.into()),
    }
}

fn fill(import: &Import, staging: &Path, files: &[files::Part]) -> Result<String, Failure> {
    use std::os::unix::ffi::OsStrExt as _;
    let mut directives = import.directives.clone();
    // A script of an AOF keeps nobody waiting: what Redis has run whole is taken back after a minute of processor time only.
    directives.push(vec![b"script-hold-limit".to_vec(), b"60000".to_vec()]);
    directives.push(vec![b"dir".to_vec(), staging.as_os_str().as_bytes().to_vec()]);
    let server = local::open(Config::load(Source::Defaults, &directives)?)?;
    let total = files.iter().map(|part| part.bytes).sum();
    let mut session = Session {
        local: Local::new(&server),
        server,
        skip_modules: import.skip_modules,
        tally: Tally::default(),
        progress: Progress::new(total),
        done_bytes: 0,
        clock_ms: now_ms(),
        is_empty: true,
    };
    let read = files.iter().try_for_each(|part| session.read(part));
    let engine = session.server.engine.clone();
    if let Err(failure) = read {
        // What it has written is of no use any more.
        let _ = engine.close(false);
        return Err(failure);
    }
    session.progress.say("everything is read, the rest is brought to disk");
    engine.close(true)?;
    // The last flush has looked at what was overwritten blindly.
    let counted = count(&engine);
    engine.leave_objects();
    let failed = engine.flush_fails();
    if failed {
        return Err(Failure("not everything could be brought to disk".to_owned()));
    }
    Ok(session.report(counted, &import.dir))
}

/// Keys of all databases.
fn count(engine: &Engine) -> u64 {
    let lease = engine.lease(&engine.all_shards());
    lease.iter().map(|core| core.names.map().iter().map(|(_, ns)| core.count(ns)).sum::<u64>()).sum()
}

impl Session {
    fn read(&mut self, part: &files::Part) -> Result<(), Failure> {
        match part.kind {
            files::Kind::Rdb => self.read_rdb(part)?,
            files::Kind::Aof => self.read_aof(part)?,
        }
        self.is_empty = false;
        self.done_bytes += part.bytes;
        Ok(())
    }

    fn report(&self, counted: u64, dir: &Path) -> String {
        let Tally { keys, expired, commands, functions, notes } = &self.tally;
        let seconds = self.progress.elapsed().as_secs_f64().max(0.001);
        let mut report = format!("{keys} keys");
        let mut also = |count: &u64, what: &str| {
            if *count > 0 {
                report += &format!(", {count} {what}");
            }
        };
        also(expired, "whose time has passed and that were left out");
        also(functions, "libraries of functions");
        also(commands, "commands");
        report += &format!(" read in {seconds:.1} s; {} holds {counted} keys\n", dir.display());
        for (what, count) in notes {
            report += &format!("{count} × {what}\n");
        }
        report
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::shard::keyspace::walk::tests::engine;

    /// One with four shards.
    pub(super) fn server(dir: &Path) -> Arc<Server> {
        let config = Config::load(Source::Defaults, &[]).unwrap();
        Arc::new(Server::new(engine(dir, 4), config, crate::command::table()))
    }

    /// An import into this server that has read nothing yet.
    pub(super) fn session(server: &Arc<Server>) -> Session {
        Session {
            local: Local::new(server),
            server: server.clone(),
            skip_modules: false,
            tally: Tally::default(),
            progress: Progress::new(0),
            done_bytes: 0,
            clock_ms: 1,
            is_empty: true,
        }
    }

    #[test]
    fn of_notes_so_many_are_told_apart() {
        let mut tally = Tally::default();
        (0..Tally::MOST_NOTES + 2).for_each(|n| tally.note(n.to_string(), 1));
        tally.note("0".to_owned(), 1);
        assert_eq!((tally.notes.len(), tally.notes["0"], tally.notes["more"]), (Tally::MOST_NOTES + 1, 2, 2));
    }

    /// What is freed one by one takes as long as a flush: of no shard anything is left to be.
    #[test]
    fn objects_are_left_to_the_end_of_the_process() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let server = server(dir.path());
        let engine = &server.engine;
        let ns = engine.shards.at(0).core().names.id(b"0").unwrap();
        for n in 0..100u8 {
            let shard = engine.router.shard_of(&[n]);
            engine.transact(&[shard], 1, |txn| txn.put_string(ns, &[n], b"value", 0)).unwrap();
        }
        let objects = || -> Vec<usize> { engine.shards.iter().map(|shard| shard.core().table.len()).collect() };
        engine.close(true).unwrap();
        assert!(objects().iter().all(|count| *count > 0), "{:?}", objects());
        engine.leave_objects();
        assert_eq!(objects(), [0; 4]);
    }

    #[test]
    fn what_the_last_step_leaves_is_told_as_it_is() {
        let failed = || Err(StoreError::NeedsReopen("the disk"));
        assert_eq!(with_end("all\n".to_owned(), Ok(()), true).unwrap(), "all\n");
        let told = with_end("all\n".to_owned(), failed(), true).unwrap();
        assert!(told.starts_with("all\n") && told.contains("it is imported, but a crash"), "{told}");
        assert!(with_end("all\n".to_owned(), failed(), false).is_err());
    }
}
