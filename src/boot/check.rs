//! `tarn check [--repair] DIR`: looks at a data directory that no server has open.
//!
//! | part | what is looked at | repair |
//! |---|---|---|
//! | superblock | magic, version, checksum | none |
//! | store | every record of every partition is read and its key decoded; fjall proves the checksums of its blocks | none |
//! | log | every frame's checksum, the sequence of LSNs | cut before the first damage |
//!
//! Exit code 0: all is well, or was repaired; 1: it is not; the report stands on standard output.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use crate::log::{self, Io, RealIo};
use crate::store::{self, Store, StoreOptions, Superblock};

/// Why a check cannot be made, in the operator's words.
type Failure = Box<dyn std::error::Error>;

/// Checks a data directory and reports.
pub fn run(dir: &Path, repair: bool) -> ExitCode {
    match check(dir, repair) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn say(line: std::fmt::Arguments<'_>) {
    // A reader who has closed the pipe has read enough.
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Whether all is well now.
fn check(dir: &Path, repair: bool) -> Result<bool, Failure> {
    let Some(superblock) = Superblock::load(dir)? else {
        return Err(format!("{} holds no data of tarn", dir.display()).into());
    };
    say(format_args!("superblock: format {}, {} shards", store::superblock::FORMAT_VERSION, superblock.shards));
    // Also takes the directory's lock, for the log as well.
    let store = Store::open(dir, StoreOptions::default())?;
    let store_is_whole = check_store(&store);
    let log_is_whole = check_log(dir, repair)?;
    Ok(store_is_whole && log_is_whole)
}

fn check_store(store: &Store) -> bool {
    let (mut records, mut whole) = (0u64, true);
    for (shard, partition) in store.partitions().iter().enumerate() {
        match read_partition(partition) {
            Ok(count) => records += count,
            Err(error) => {
                say(format_args!("store: partition {shard} is damaged: {error}"));
                whole = false;
            }
        }
    }
    say(format_args!("store: {records} records read, {}", if whole { "whole" } else { "damaged" }));
    whole
}

/// Reads all records; how many.
fn read_partition(partition: &store::Partition) -> Result<u64, Failure> {
    let mut count = 0;
    // No key begins with so many of the highest byte.
    for item in partition.range(&[], &[0xff; 16])? {
        let (key, _) = item?;
        crate::codec::key::decode_key(&key).map_err(|why| format!("record {}: {why}", key.escape_ascii()))?;
        count += 1;
    }
    Ok(count)
}

fn check_log(dir: &Path, repair: bool) -> Result<bool, Failure> {
    let io: Arc<dyn Io> = Arc::new(RealIo);
    let folder = dir.join(store::LOG_FOLDER);
    if !folder.is_dir() {
        say(format_args!("log: none"));
        return Ok(true);
    }
    let report = log::scan(&io, &folder)?;
    for segment in &report.segments {
        let path = segment.path.display();
        say(format_args!("log: {path}: {} bytes, {} records", segment.size_bytes, segment.records));
    }
    say(format_args!("log: last record {}, synced up to {}", report.last, report.synced));
    let Some(damage) = report.damage else { return Ok(true) };
    let path = damage.path.display();
    say(format_args!("log: {path} is damaged at offset {}, record {}: {}", damage.offset, damage.lsn, damage.what));
    if !damage.proven {
        say(format_args!("log: this is the torn end that a crash leaves; the next start cuts it"));
    }
    let lost = &damage.lost;
    let what =
        format!("{} bytes, {} whole segments, {} readable records", lost.size_bytes, lost.segments, lost.records);
    if !repair {
        say(format_args!("log: a cut there would take away {what}"));
        return Ok(!damage.proven);
    }
    log::repair(&io, &folder)?;
    say(format_args!("log: cut there, which took away {what}"));
    Ok(true)
}
