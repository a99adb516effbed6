//! Where blocks are, by what is held of the tables' indexes.

use super::*;
use crate::util::splitmix;

/// Keys of all lengths, many of which begin alike, of which every third has no record.
fn keys() -> Vec<Vec<u8>> {
    let mut random = 11;
    let mut next = |below: u64| splitmix::next(&mut random) % below;
    let mut keys: Vec<Vec<u8>> = (0..9000)
        .map(|n: u32| {
            let tail = (0..next(12)).map(|_| next(3) as u8 * 100).collect::<Vec<_>>();
            [
                &b"M"[..],
                [&b"user:"[..], b"", b"user:00000000"][n as usize % 3],
                &n.to_be_bytes()[..next(5) as usize],
                &tail,
            ]
            .concat()
        })
        .collect();
    keys.sort();
    keys.dedup();
    keys
}

fn likely(partition: &Partition, key: &[u8], aims: bool) -> Option<UserValue> {
    let aim = if aims { partition.aim(key, true) } else { None };
    partition.get_of_some(key, Odds::Likely, aim.as_ref(), &mut Watch::default()).unwrap()
}

fn find(partition: &Partition, key: &[u8], aims: bool) -> Option<UserValue> {
    let found = likely(partition, key, aims);
    assert_eq!(found, partition.get(key).unwrap(), "{key:?} as if nothing were known");
    assert_eq!(found, partition.get_newest(key).unwrap(), "{key:?} as fjall has it");
    found
}

/// As fjall itself, whether there is room for all of the index, for some pieces or for none, and no more is held than there is
/// room for, but for a piece.
#[test]
fn what_is_held_of_an_index_leads_to_what_fjall_finds() {
    let keys = keys();
    let is_there = |n: usize| n % 3 != 1;
    for (cache_bytes, aims) in [(8 << 20, false), (8 << 20, true), (16 << 10, false), (16 << 10, true), (0, false)] {
        let dir = tempdir().unwrap();
        let store = Store::open(dir.path(), StoreOptions { cache_bytes, ..options() }).unwrap();
        let partition = store.partition(0);
        let there = keys.iter().enumerate().filter(|(n, _)| is_there(*n));
        partition.ingest(there.map(|(n, key)| (key.clone(), (n % 7 > 0).then(|| vec![n as u8; 100])))).unwrap();
        for _ in 0..2 {
            for (n, key) in keys.iter().enumerate() {
                let expected = (is_there(n) && n % 7 > 0).then(|| vec![n as u8; 100]);
                assert_eq!(find(partition, key, aims).as_deref(), expected.as_deref(), "{key:?}");
            }
            for key in [&b""[..], b"A", b"M", b"Mzzz", b"z"] {
                assert_eq!(find(partition, key, aims), partition.get_newest(key).unwrap(), "{key:?}");
            }
        }
        let (held, room) = (store.ways.index_bytes() as u64, cache_bytes / 8);
        assert!(held <= room + (4 << 10) && (held > 0) == (room > 0), "{held} of {room}");
        assert_eq!(held > room - room / 2, room < 1 << 20 && room > 0, "{held} of {room}");
    }
}

/// What is held goes with its table, and with the store.
#[test]
fn what_is_held_of_an_index_goes_with_its_table() {
    let dir = tempdir().unwrap();
    let store = open(&dir);
    let partition = store.partition(0);
    let ingest = |from: u32| partition.ingest((from..3000).map(|n| (key_of(n), Some(vec![b'v'; 100])))).unwrap();
    let mut held = Vec::new();
    for round in 0..5 {
        ingest(round);
        partition.major_compact().unwrap();
        partition.follow();
        (0..3000).for_each(|n| assert!(find(partition, &key_of(n), false).is_some()));
        held.push(store.ways.index_bytes());
    }
    assert!(held[0] > 1000 && held.iter().all(|bytes| bytes.abs_diff(held[0]) < held[0] / 10), "{held:?}");
    let ways = store.ways.clone();
    drop(store);
    assert_eq!(ways.index_bytes(), 0);
}

/// A piece of which something was asked is not asked for again, of the cache or the file.
#[test]
fn a_piece_of_an_index_is_read_once() {
    let dir = tempdir().unwrap();
    open(&dir).partition(0).ingest((0..3000).map(|n| (key_of(n), Some(vec![b'v'; 100])))).unwrap();
    let store = open(&dir);
    let partition = store.partition(0);
    let blocks = || store.cache_used_bytes() - store.ways.index_bytes() as u64;
    assert!(partition.aim(&key_of(70), true).is_none(), "the piece is to be read first");
    let before = blocks();
    likely(partition, &key_of(70), false).unwrap();
    // A block, and no piece.
    assert!((1..5000).contains(&(blocks() - before)), "{}", blocks() - before);
    let held = store.ways.index_bytes();
    assert!((1..4000).contains(&held), "{held}");
    assert!(partition.aim(&key_of(70), true).is_some());
    likely(partition, &key_of(70), false).unwrap();
    assert_eq!(store.ways.index_bytes(), held);
}

/// Of what nobody knows whether it is there, fjall's filter is asked before a block is read.
#[test]
fn what_is_not_there_reads_no_blocks() {
    let dir = tempdir().unwrap();
    open(&dir).partition(0).ingest((0..3000).map(|n| (key_of(2 * n), Some(vec![b'v'; 100])))).unwrap();
    let store = open(&dir);
    for n in 0..2999 {
        assert!(store.partition(0).get(&key_of(2 * n + 1)).unwrap().is_none());
    }
    // The filter, and a block for one in a hundred.
    let used = store.cache_used_bytes();
    assert!((3000..150_000).contains(&used), "{used} bytes of 350,000");
    assert!(store.ways.index_bytes() > 0, "fjall has read them");
}
