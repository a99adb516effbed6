//! Keys that come in order, as those of a load do: each run has records behind the last that is there, and those that come with
//! every flush.

use std::time::{Duration, Instant};

use super::*;

/// Keys of a run, which are far less than a table.
const KEYS: u32 = 6;

/// Run `n` of a load: keys behind those of all runs before it, with values that do not compress.
fn run(n: u32) -> Records {
    let mut records = Records::default().put(key::flushed_key, &key::flushed_value(u64::from(n), 1));
    records = records.put(|out| key::count_key(1, out), &key::count_value(u64::from(n)));
    (0..KEYS).fold(records, |records, key| {
        let value: Vec<u8> = (0..4u32)
            .flat_map(|part| super::space::text(u64::from((n * KEYS + key) * 4 + part)).into_bytes())
            .collect();
        records.put(|out| key::meta_key(1, &name(n, key), out), &value)
    })
}

fn name(run: u32, key: u32) -> Vec<u8> {
    format!("key:{run:04}{key:03}").into_bytes()
}

fn meta(name: &[u8]) -> Vec<u8> {
    let mut record = Vec::new();
    key::meta_key(1, name, &mut record);
    record
}

#[test]
fn a_key_behind_all_others_is_looked_for_in_no_table() {
    let dir = tempdir().unwrap();
    let store = open(&dir);
    let partition = store.partition(0);
    let check = |runs: u32| {
        let beyond = meta(&name(runs, 0));
        assert_eq!((partition.tables_asked(&beyond), partition.get(&beyond).unwrap()), (0, None));
        let last = meta(&name(runs - 1, KEYS - 1));
        assert!(partition.tables_asked(&last) == 1 && partition.get(&last).unwrap().is_some());
        // Those behind are found all the same.
        let mut flushed = Vec::new();
        key::flushed_key(&mut flushed);
        let value = partition.get(&flushed).unwrap().unwrap();
        assert_eq!(key::decode_flushed(&value).unwrap().0, u64::from(runs - 1));
        let mut count = Vec::new();
        key::count_key(1, &mut count);
        let value = partition.get(&count).unwrap().unwrap();
        assert_eq!(key::decode_count(&value).unwrap(), u64::from(runs - 1));
    };
    for n in 0..6 {
        run(n).ingest(partition);
        check(n + 1);
    }
    partition.major_compact().unwrap();
    check(6);
    // Those that have nothing else, too.
    Records::default().put(key::flushed_key, &key::flushed_value(6, 1)).ingest(partition);
    assert!(partition.get(&meta(&name(5, KEYS - 1))).unwrap().is_some());
}

/// How many tables compactions have written for each of so many runs; with a record in each that stands before all keys, or
/// without.
fn tables_written(runs: u32, before_all: bool) -> f64 {
    let dir = tempdir().unwrap();
    let store = open(&dir);
    let partition = store.partition(0);
    for n in 0..runs {
        let run = run(n);
        match before_all {
            true => run.put(|out| key::dead_ns_key(9, out), b"").ingest(partition),
            false => run.ingest(partition),
        }
        let began = Instant::now();
        while partition.l0_runs() > 4 {
            store.health().unwrap();
            assert!(began.elapsed().as_secs() < 60, "{:?}", partition.levels());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    for n in 0..runs {
        assert!(partition.get(&meta(&name(n, n % KEYS))).unwrap().is_some(), "run {n}");
    }
    partition.follow();
    let keyspaces = std::fs::read_dir(dir.path().join("store/keyspaces")).unwrap().map(|entry| entry.unwrap());
    let tables = keyspaces.filter(|entry| entry.file_name() != "0").map(|entry| entry.path().join("tables"));
    let files = tables.flat_map(|tables| std::fs::read_dir(tables).unwrap()).map(|entry| entry.unwrap().file_name());
    let numbers: Vec<u32> = files.map(|name| name.to_str().unwrap().parse().unwrap()).collect();
    f64::from(*numbers.iter().max().unwrap() - runs) / f64::from(runs)
}

/// Or each key would cost the more, the more there are.
#[test]
fn a_compaction_leaves_what_keys_in_order_have_passed_by() {
    let [without, with] = [false, true].map(|before_all| tables_written(400, before_all));
    assert!(without * 1.4 < with, "{without} tables were written for a run, {with} with a record before all keys");
}
