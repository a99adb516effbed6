//! Many threads on the same shards, in every way that there is to get one, while flushes and timers run: no job is
//! lost for good, nothing waits for ever, and sums stay what they are, also after the next start. That nothing waits for a timer
//! is held by `shard/tests/actor.rs`.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use tarn::log::{Fsync, RealIo};
use tarn::shard::Engine;
use tarn::shard::actor::{Job, Lease, ShardSet};
use tarn::shard::engine::EngineOptions;
use tarn::shard::txn::{Mark, Txn, WriteSet};

const THREADS: usize = 4;
const OPERATIONS: usize = 30_000;
const ACCOUNTS: u64 = 24;
const COUNTERS: u64 = 5;
const START: i64 = 1000;
/// Longer than any machine needs; what hangs, hangs for ever.
const PATIENCE: Duration = Duration::from_secs(60);

fn open(dir: &std::path::Path, background: bool) -> Arc<Engine> {
    let options = EngineOptions {
        dir: dir.to_owned(),
        shards: Some(3),
        databases: 1,
        fsync: Fsync::No,
        table_budget: 2 << 10,
        dirty_budget: 32 << 10,
        cold_budget: 64 << 10,
        block_cache: 1 << 20,
        table_files: 384,
        log_limit: 256 << 10,
        flush_threads: 2,
        nice: 0,
        background,
    };
    let engine = Engine::open(Arc::new(RealIo), options).unwrap();
    engine.replay().unwrap();
    engine
}

/// In memory if the system has such a directory: a flush syncs.
fn temp_dir() -> tempfile::TempDir {
    let memory = std::path::Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory).unwrap() } else { tempfile::tempdir().unwrap() }
}

fn account(i: u64) -> Vec<u8> {
    format!("account:{i}").into_bytes()
}

fn counter(i: u64) -> Vec<u8> {
    format!("counter:{i}").into_bytes()
}

/// Shards of some keys, ascending.
fn shards_of(engine: &Engine, keys: &[&[u8]]) -> ShardSet {
    let mut shards: ShardSet = keys.iter().map(|key| engine.router.shard_of(key)).collect();
    shards.sort_unstable();
    shards.dedup();
    shards
}

fn number(txn: &mut Txn<'_, '_>, key: &[u8]) -> i64 {
    match txn.find(0, key).unwrap() {
        None => 0,
        Some(found) => std::str::from_utf8(txn.object(found).value()).unwrap().parse().unwrap(),
    }
}

fn add(txn: &mut Txn<'_, '_>, key: &[u8], by: i64) {
    let sum = number(txn, key) + by;
    txn.put_string(0, key, sum.to_string().as_bytes(), 0).unwrap();
}

/// Runs a transaction under a lease and gives the lease back.
fn run<'e>(engine: &Engine, mut lease: Lease<'e>, change: impl FnOnce(&mut Txn<'_, 'e>)) -> Lease<'e> {
    let mut set = WriteSet::default();
    let mut txn = Txn::new(&mut lease, &engine.router, &mut set, tarn::util::time::now_ms(), true);
    change(&mut txn);
    let need = txn.commit(&engine.log);
    engine.write_out(need);
    lease
}

/// A small generator, the same numbers in every run.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// What one operation does: a counter goes up, and two accounts pass something on or take it back.
struct Change {
    counter: Vec<u8>,
    transfer: Option<(Vec<u8>, Vec<u8>, i64)>,
    rolled_back: bool,
}

impl Change {
    fn new(rng: &mut Rng) -> Change {
        let transfer = (account(rng.below(ACCOUNTS)), account(rng.below(ACCOUNTS)), rng.below(20) as i64);
        let transfer = (rng.below(2) == 0).then_some(transfer);
        Change { counter: counter(rng.below(COUNTERS)), transfer, rolled_back: rng.below(10) == 0 }
    }

    fn shards(&self, engine: &Engine) -> ShardSet {
        match &self.transfer {
            Some((from, to, _)) => shards_of(engine, &[&self.counter, from, to]),
            None => shards_of(engine, &[&self.counter]),
        }
    }

    fn apply(&self, txn: &mut Txn<'_, '_>) {
        if let Some((from, to, amount)) = &self.transfer {
            add(txn, from, -amount);
            if self.rolled_back {
                txn.rollback_to(Mark::default());
            } else {
                add(txn, to, *amount);
            }
        }
        add(txn, &self.counter, 1);
    }
}

/// One operation; its end is told to `done`, by whoever runs it.
fn operate(engine: &Arc<Engine>, rng: &mut Rng, done: mpsc::Sender<()>) {
    let change = Change::new(rng);
    let shards = change.shards(engine);
    let way = rng.below(5);
    let lease = match way {
        0 => engine.try_lease(&shards),
        1 => Some(engine.lease(&shards)),
        _ => None,
    };
    if let Some(lease) = lease {
        drop(run(engine, lease, |txn| change.apply(txn)));
        done.send(()).unwrap();
        return;
    }
    let held = engine.clone();
    let job: Job = Box::new(move |lease| {
        let lease = run(&held, lease, |txn| change.apply(txn));
        // Nobody listens any more once the test has failed.
        let _ = done.send(());
        lease
    });
    match way {
        2 => engine.post_blocking(shards, job),
        3 => {
            // Work that leads to more work, on whatever thread runs it.
            let (held, first) = (engine.clone(), shards_of(engine, &[b"first"]));
            let first_job: Job = Box::new(move |lease| {
                held.post(shards, job);
                lease
            });
            engine.post(first, first_job);
        }
        _ => engine.post(shards, job),
    }
}

/// Sums of all counters and of all accounts.
fn sums(engine: &Engine) -> (i64, i64) {
    let (mut counters, mut accounts) = (0, 0);
    let lease = run(engine, engine.lease(&engine.all_shards()), |txn| {
        counters = (0..COUNTERS).map(|i| number(txn, &counter(i))).sum();
        accounts = (0..ACCOUNTS).map(|i| number(txn, &account(i))).sum();
    });
    drop(lease);
    (counters, accounts)
}

#[test]
fn no_job_is_lost_and_sums_stay() {
    let dir = temp_dir();
    let engine = open(dir.path(), true);
    let fill = |txn: &mut Txn<'_, '_>| (0..ACCOUNTS).for_each(|i| add(txn, &account(i), START));
    drop(run(&engine, engine.lease(&engine.all_shards()), fill));

    let (done, finished) = mpsc::channel();
    let stop = Arc::new(AtomicBool::new(false));
    let flusher = std::thread::spawn({
        let (engine, stop) = (engine.clone(), stop.clone());
        move || {
            while !stop.load(Ordering::Relaxed) {
                engine.flush().unwrap();
            }
        }
    });
    let start_worker = |id: usize| {
        let (engine, done) = (engine.clone(), done.clone());
        std::thread::spawn(move || {
            let mut rng = Rng(id as u64 + 1);
            (0..OPERATIONS).for_each(|_| operate(&engine, &mut rng, done.clone()));
        })
    };
    let workers: Vec<_> = (0..THREADS).map(start_worker).collect();
    for left in (1..=THREADS * OPERATIONS).rev() {
        assert!(finished.recv_timeout(PATIENCE).is_ok(), "{left} operations are stranded");
    }
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    stop.store(true, Ordering::Relaxed);
    flusher.join().unwrap();

    let expected = ((THREADS * OPERATIONS) as i64, ACCOUNTS as i64 * START);
    assert_eq!(sums(&engine), expected);
    assert!(engine.stats.flushes.load(Ordering::Relaxed) > 1);
    assert!(engine.close(false).is_ok(), "the log closes");
    assert_eq!(Arc::strong_count(&engine), 1, "the threads have ended");
    drop(engine);
    let engine = open(dir.path(), false);
    assert_eq!(sums(&engine), expected);
}
