//! `tarn check [--repair] DIR`: looks at a data directory that no server has open.
//!
//! | part | what is looked at | repair |
//! |---|---|---|
//! | superblock | magic, version, checksum | none |
//! | checkpoint | checksum, whose it is | written anew |
//! | log | every frame's checksum, the sequence of LSNs, whose it is | cut before the first damage |
//! | files of the store | which there must be, the checksum of each ([`crate::store::files`]) | none |
//! | all together | whether log and store hold what the checkpoint says ([`crate::shard::engine::checkpoint`]) | the loss is accepted |
//! | records | every record, and what records say of each other ([`partition`]), as it will be once the log is replayed | [`mend`] |
//!
//! Records are looked at where the log has left nothing to do, else in a shadow of the directory ([`super::shadow`]): what the
//! log will bring about at the next start is no damage.
//!
//! An accepted loss stands in the checkpoint until the next start has made of log and store what can be made of them: a
//! store or a partition that is gone is made anew, empty, keys are counted, LSNs go on above all there were.
//!
//! Exit code 0: all is well, or was repaired; 1: it is not; the report stands on standard output.

mod body;
mod mend;
mod partition;
mod rebuild;
mod records;
mod stream;

use std::fmt::Arguments;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use super::Failure;
use crate::log::{self, Io, Lsn, Origin, RealIo};
use crate::shard::engine::OpenError;
use crate::shard::engine::checkpoint::{self, Checkpoint, Trust};
use crate::store::files::{self, BadFile};
use crate::store::{self, Create, DataDir, Store, StoreError, StoreOptions, Superblock};

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests;

/// Takes the lines of the report.
type Say<'a> = &'a mut dyn FnMut(Arguments<'_>);

/// Checks a data directory and reports.
pub fn run(dir: &Path, repair: bool) -> ExitCode {
    let mut say = |line: Arguments<'_>| {
        // A reader who has closed the pipe has read enough.
        let _ = writeln!(std::io::stdout(), "{line}");
    };
    match check(dir, repair, &mut say) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether all of a directory is well; says what is not.
pub(super) fn is_whole(dir: &Path) -> Result<bool, Failure> {
    let mut said = String::new();
    let whole = check(dir, false, &mut |line| said += &format!("{line}\n"))?;
    if !whole {
        let _ = write!(std::io::stderr(), "{said}");
    }
    Ok(whole)
}

/// Whether all is well now. Where nothing is to be repaired, no part of the directory is made.
fn check(dir: &Path, repair: bool, say: Say<'_>) -> Result<bool, Failure> {
    let log = dir.join(store::LOG_FOLDER);
    let lacks_log = !log.exists();
    let whole = look(dir, repair, say);
    if lacks_log && !repair {
        // Those who read it have it made; another could not be removed so.
        let _ = std::fs::remove_dir(&log);
    }
    whole
}

fn look(dir: &Path, repair: bool, say: Say<'_>) -> Result<bool, Failure> {
    let Some(superblock) = Superblock::load(dir)? else {
        return Err(format!("{} holds no data of tarn", dir.display()).into());
    };
    say(format_args!("superblock: format {}, {} shards", store::superblock::FORMAT_VERSION, superblock.shards));
    let data = DataDir::open(dir, None)?;
    let io: Arc<dyn Io> = Arc::new(RealIo);
    let mut missing = Vec::new();
    let noted = match Checkpoint::load(&*io, dir, superblock.id(), superblock.shards) {
        Err(OpenError::Lost { what, .. }) => {
            missing.push(what);
            None
        }
        noted => noted?,
    };
    let origin = noted.as_ref().map_or(Origin { owner: superblock.id(), needed_from: 0 }, Checkpoint::origin);
    let report = check_log(dir, &io, origin, say)?;
    if noted.is_none() && missing.is_empty() && report.last == 0 && !dir.join(store::STORE_FOLDER).exists() {
        say(format_args!("nothing has been written yet"));
        return Ok(true);
    }
    let was_accepted = noted.as_ref().is_some_and(|noted| noted.trust == Trust::Accepted);
    let bad_files = check_files(dir, say)?;
    if bad_files.iter().any(|bad| bad.fatal) {
        return Ok(false);
    }
    let (store, stored) = match Store::open_in(data, store_options(), Create::Nothing) {
        Ok(store) => {
            let stored = checkpoint::stored(&store, dir)?;
            (Some(store), stored)
        }
        Err(
            error @ (StoreError::NoStore { .. }
            | StoreError::NoPartition { .. }
            | StoreError::Lacks { of_partition: true, .. }),
        ) => {
            missing.extend((!was_accepted).then(|| error.to_string()));
            (None, vec![Lsn::MAX; usize::from(superblock.shards)])
        }
        Err(error) => return Err(error.into()),
    };
    missing.extend(mismatch(noted.as_ref(), &report, &stored));
    for what in &missing {
        say(format_args!("not whole: {what}"));
    }
    let damaged = report.damage.as_ref().is_some_and(|damage| damage.proven);
    let is_complete = !damaged && missing.is_empty() && bad_files.is_empty();
    // What is read of another may not be what the next start makes of it.
    let sound = match store.filter(|_| is_complete) {
        Some(store) => records::check(dir, store, &report, was_accepted, say)?,
        None => bad_files.is_empty(),
    };
    // Its store is closed by now.
    let lock = DataDir::open(dir, None)?;
    if repair && (damaged || !missing.is_empty()) {
        // Before the cut: who is interrupted between the two is to find it accepted, not the end missing.
        let noted = noted.clone().unwrap_or_else(|| Checkpoint::fresh(superblock.id(), superblock.shards));
        Checkpoint { trust: Trust::Accepted, ..noted }.write(&*io, dir)?;
    }
    if repair && log::repair(&io, &dir.join(store::LOG_FOLDER), origin)?.is_some() {
        say(format_args!("log: cut there"));
    }
    drop(lock);
    if !repair || !bad_files.is_empty() {
        if was_accepted {
            say(format_args!("a loss was accepted before: the next start goes on with what is left"));
        }
        return Ok(sound && is_complete);
    }
    if is_complete && sound && !was_accepted {
        return Ok(true);
    }
    say(format_args!("what is missing is given up; what is left is made to agree"));
    records::repair(dir, say)
}

/// Of a store that is looked at.
fn store_options() -> StoreOptions {
    StoreOptions { nice: None, ..StoreOptions::default() }
}

/// Proves the checksums of the store's files; those that are wrong or missing.
fn check_files(dir: &Path, say: Say<'_>) -> Result<Vec<BadFile>, Failure> {
    let (folder, mut all, mut bytes) = (dir.join(store::STORE_FOLDER), Vec::new(), 0);
    if !folder.join("keyspaces").is_dir() {
        return Ok(all);
    }
    files::verify(&folder, &mut |bad| all.push(bad), &mut |more| bytes += more)?;
    for BadFile { path, what, .. } in &all {
        say(format_args!("store: {} is damaged: {what}", path.display()));
    }
    say(format_args!("store: {bytes} bytes of tables read, {}", if all.is_empty() { "whole" } else { "damaged" }));
    Ok(all)
}

/// What log and store lack of what the checkpoint says, if anything; the checkpoint itself, where there was more.
fn mismatch(noted: Option<&Checkpoint>, report: &log::Report, stored: &[Lsn]) -> Vec<String> {
    let ends = |segments: &[log::SegmentReport]| Some((segments.first()?.first, segments.last()?.first));
    let Some(noted) = noted else {
        let blank = report.last == 0 && stored.iter().all(|&lsn| lsn == 0);
        return if blank { Vec::new() } else { vec![format!("{} is missing", store::CHECKPOINT_FILE)] };
    };
    // A store that is not there reaches nothing, which has been told.
    let stored_end: Vec<_> = stored.iter().map(|&lsn| if lsn == Lsn::MAX { 0 } else { lsn }).collect();
    let begins = noted.missing(ends(&report.segments), stored);
    begins.into_iter().chain(noted.missing_end(report.last, &stored_end)).collect()
}

fn check_log(dir: &Path, io: &Arc<dyn Io>, origin: Origin, say: Say<'_>) -> Result<log::Report, Failure> {
    let folder = dir.join(store::LOG_FOLDER);
    io.create_dir(&folder)?;
    let report = log::scan(io, &folder, origin)?;
    for segment in &report.segments {
        let path = segment.path.display();
        say(format_args!("log: {path}: {} bytes, {} records", segment.size_bytes, segment.records));
    }
    say(format_args!("log: last record {}, synced up to {}", report.last, report.synced));
    let Some(damage) = &report.damage else { return Ok(report) };
    let path = damage.path.display();
    say(format_args!("log: {path} is damaged at offset {}, record {}: {}", damage.offset, damage.lsn, damage.what));
    if !damage.proven {
        say(format_args!("log: this is the torn end that a crash leaves; the next start cuts it"));
    }
    let lost = &damage.lost;
    say(format_args!(
        "log: a cut there takes away {} bytes, {} whole segments, {} readable records",
        lost.size_bytes, lost.segments, lost.records
    ));
    Ok(report)
}
