//! Tests of the log on the simulated disk, named after the rules they hold.

mod check;
mod commit;
mod failures;
mod order;
mod rounds;
mod segments;
mod tail;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::format::segment_path;
use super::sim::SimIo;
use super::{Fsync, Log, Lsn, OpenError, Options, WaiterId};

type Records = Vec<(Lsn, Vec<u8>)>;

fn dir() -> &'static Path {
    Path::new("log")
}

fn path(first: Lsn) -> PathBuf {
    segment_path(dir(), first)
}

/// Opens and replays without a thread: the test itself takes the thread's turns.
fn reopen(sim: &SimIo, fsync: Fsync) -> Result<(Log, Records), OpenError> {
    reopen_with(sim, &Options::new(dir(), fsync))
}

fn reopen_with(sim: &SimIo, options: &Options) -> Result<(Log, Records), OpenError> {
    let (log, mut replay) = Log::open(Arc::new(sim.clone()), options)?;
    let mut records = Vec::new();
    while let Some((lsn, record)) = replay.next_record()? {
        records.push((lsn, record.to_vec()));
    }
    log.start_without_thread(&replay)?;
    Ok((log, records))
}

/// A log with the records 1 to `n`, a frame each, not synced.
fn with_records(sim: &SimIo, fsync: Fsync, n: u64) -> (Log, WaiterId) {
    let log = reopen(sim, fsync).unwrap().0;
    let waiter = log.register(Box::new(|| {}));
    for _ in 0..n {
        add(&log, waiter);
    }
    (log, waiter)
}

/// What the record with this LSN holds.
fn content(lsn: Lsn) -> Vec<u8> {
    let size_bytes = (lsn * 37 % 150) as usize;
    let mut bytes = lsn.to_le_bytes().to_vec();
    bytes.resize(8 + size_bytes, lsn as u8);
    bytes
}

fn append(log: &Log) -> Lsn {
    log.append(|lsn, out| out.extend_from_slice(&content(lsn)))
}

fn add(log: &Log, waiter: WaiterId) -> Lsn {
    let lsn = append(log);
    log.commit_for(lsn, waiter);
    lsn
}

/// Records from `first` on without gap, each with the content that belongs to its LSN; answers the last.
fn assert_sequence(records: &Records, first: Lsn) -> Lsn {
    for (i, (lsn, bytes)) in records.iter().enumerate() {
        assert_eq!(*lsn, first + i as u64);
        assert_eq!(*bytes, content(*lsn), "record {lsn}");
    }
    first + records.len() as u64 - 1
}

/// A waiter that counts how often it is woken.
fn counting(log: &Log) -> (WaiterId, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    (
        log.register(Box::new(move || {
            counted.fetch_add(1, Ordering::SeqCst);
        })),
        count,
    )
}
