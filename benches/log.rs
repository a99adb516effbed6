//! The redo log on the disk under the temporary directory: what an append costs, and a commit of so many of them.

#![expect(missing_docs, clippy::unwrap_used, reason = "criterion's macros; a benchmark may fail loudly")]

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use tarn::log::{Fsync, Log, Options, RealIo};

/// Starts a new log once it has grown to this: the page cache is not what is measured.
const SIZE_MAX: u64 = 256 << 20;

fn open() -> (tempfile::TempDir, Log) {
    let dir = tempfile::tempdir().unwrap();
    let (log, mut replay) = Log::open(Arc::new(RealIo), &Options::new(dir.path(), Fsync::No)).unwrap();
    assert!(replay.next_record().unwrap().is_none());
    log.start(replay).unwrap();
    (dir, log)
}

fn append(c: &mut Criterion) {
    let record = [7; 120];
    let (_dir, log) = open();
    let mut group = c.benchmark_group("log");
    group.throughput(Throughput::Elements(1000));
    group.bench_function("append 1000", |b| {
        b.iter_batched(
            || log.commit(log.last()),
            |_| {
                for _ in 0..1000 {
                    black_box(log.append(|_, out| out.extend_from_slice(&record)));
                }
            },
            BatchSize::PerIteration,
        );
        let boundary = log.rotate().unwrap();
        log.delete_before(boundary).unwrap();
    });
}

fn commit(c: &mut Criterion) {
    let record = [7; 120];
    let mut group = c.benchmark_group("log");
    for n in [1, 16, 256] {
        let (_dir, log) = open();
        group.throughput(Throughput::Elements(n));
        group.bench_function(format!("append and commit {n}"), |b| {
            b.iter(|| {
                let last = (0..n).map(|_| log.append(|_, out| out.extend_from_slice(&record))).last();
                black_box(log.commit(last.unwrap_or(0)));
                if log.size_bytes() > SIZE_MAX {
                    let boundary = log.rotate().unwrap();
                    log.delete_before(boundary).unwrap();
                }
            });
        });
    }
}

criterion_group!(benches, append, commit);
criterion_main!(benches);
