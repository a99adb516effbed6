//! `tarn export FILE --for SERVER`: a data directory that no server has open becomes dump.rdb.
//!
//! The file is made beside its place, as `FILE.new`, and moved there when all of it is on disk; what has that name already is
//! nobody's to remove. The directory is opened as a server would, so
//! that what only the log holds is brought to the store; then its partitions are read as they are at that moment.

use std::fs::File;
use std::io::{BufWriter, ErrorKind, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use super::{Failure, local, progress::Progress};
use crate::config::{Config, Source};
use crate::rdb::file::writer::For;
use crate::shard::Engine;
use crate::shard::background::moment::Moment;
use crate::store::DataDir;
use crate::types::dump::file::{Everything, Exported};

/// What is asked for.
#[derive(Debug)]
pub struct Export {
    /// The file that is made.
    pub file: PathBuf,
    /// Whose it will be.
    pub target: For,
    /// The data directory.
    pub dir: PathBuf,
    /// Directives, each the words of a line: `maxmemory`.
    pub directives: Vec<Vec<Vec<u8>>>,
}

/// Exports, and reports.
pub fn run(export: &Export) -> ExitCode {
    match go(export) {
        Ok(report) => {
            // A reader who has closed the pipe has read enough.
            let _ = write!(std::io::stdout(), "{report}");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("{failure}\nNothing was exported.");
            ExitCode::FAILURE
        }
    }
}

fn go(export: &Export) -> Result<String, Failure> {
    use std::os::unix::ffi::OsStrExt as _;
    // The file is put in the place of what has its name: not in that of a device, nor of what others read from a pipe.
    if export.file.metadata().is_ok_and(|what| !what.is_file()) {
        return Err(Failure(format!("{} is there and is no file that could be replaced", export.file.display())));
    }
    let (lock, superblock) = DataDir::claim_there(&export.dir)?;
    if superblock.is_none() {
        return Err(Failure(format!("{} holds no data of tarn", export.dir.display())));
    }
    drop(lock);
    let mut directives = export.directives.clone();
    directives.push(vec![b"dir".to_vec(), export.dir.as_os_str().as_bytes().to_vec()]);
    let server = local::open(Config::load(Source::Defaults, &directives)?)?;
    let written = write(export, &server.engine);
    server.engine.close(true)?;
    written
}

fn write(export: &Export, engine: &Arc<Engine>) -> Result<String, Failure> {
    let mut progress = Progress::new(0);
    let Moment { partitions, names, now_ms } = engine.moment()?;
    let everything = Everything { partitions, names, now_ms };
    let mut temp = export.file.clone().into_os_string();
    temp.push(".new");
    let temp = PathBuf::from(temp);
    let io = |error: std::io::Error| Failure(format!("cannot write {}: {error}", temp.display()));
    let file = File::create_new(&temp).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => {
            let path = temp.display();
            Failure(format!("{path} is in the way: another export makes it, or left it when it was interrupted"))
        }
        _ => io(error),
    })?;
    if let Err(error) = crate::util::path::take_after(&file, &export.file) {
        let _ = std::fs::remove_file(&temp);
        return Err(io(error));
    }
    let file = BufWriter::with_capacity(1 << 20, file);
    let written = everything.write(file, export.target, |keys| {
        if keys.is_multiple_of(256) {
            progress.tell(0, keys);
        }
        true
    });
    let (file, exported) = match written {
        Ok(written) => written,
        Err(error) => {
            // What is in its way stays, under a name that nobody takes for a whole file's.
            let _ = std::fs::remove_file(&temp);
            return Err(error.into());
        }
    };
    let file = file.into_inner().map_err(|error| io(error.into_error()))?;
    file.sync_all().map_err(io)?;
    std::fs::rename(&temp, &export.file).map_err(io)?;
    let mut report = report(export, &exported, progress.elapsed().as_secs_f64());
    let folder = crate::util::path::folder_of(&export.file);
    if let Err(error) = File::open(folder).and_then(|folder| folder.sync_all()) {
        report +=
            &format!("cannot sync {}: {error}: a crash of the machine may take the file away\n", folder.display());
    }
    Ok(report)
}

fn report(export: &Export, exported: &Exported, seconds: f64) -> String {
    let Exported { keys, functions, lost } = exported;
    let mut report = format!(
        "{keys} keys, {functions} libraries of functions written to {} in {seconds:.1} s\n",
        export.file.display()
    );
    for (what, (count, whose)) in lost {
        report += &format!("left out: {count} {what} (of '{whose}' first)\n");
    }
    report
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::codec::key;
    use crate::shard::keyspace::walk::tests::engine;

    /// The next export would find it in its way.
    #[test]
    fn an_export_that_fails_leaves_no_file() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let engine = engine(&dir.path().join("data"), 1);
        let mut record = Vec::new();
        key::meta_key(engine.first_names().id(b"0").unwrap(), b"key", &mut record);
        engine.store.partition(0).ingest([(record, Some(vec![0xff]))]).unwrap();
        let file = dir.path().join("dump.rdb");
        let export = Export { file, target: For::Redis82, dir: dir.path().join("data"), directives: Vec::new() };
        for _ in 0..2 {
            let Err(Failure(why)) = write(&export, &engine) else { panic!("the record can be read") };
            assert!(!why.contains("in the way"), "{why}");
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "the data alone");
    }
}
