//! Threads that read for commands which wait for the store: whom they serve, when they are called, and how they end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;
use std::time::Duration;

use super::reads::string;
use super::world::{DB, World, wait_for, world};
use crate::Error;
use crate::log::Fsync;
use crate::shard::engine::Engine;
use crate::shard::engine::readers::{AT_ONCE, Errand};
use crate::shard::memory::reads::{Reads, Wanted};
use crate::store::{FILTERS_FILE, Odds};

/// Two that read until they are ended.
fn two_readers(engine: &Arc<Engine>) -> [JoinHandle<()>; 2] {
    [(); 2].map(|()| {
        let engine = engine.clone();
        std::thread::spawn(move || engine.readers.run())
    })
}

/// Short strings that are on disk only.
fn at_rest(count: usize) -> (World, Vec<Vec<u8>>) {
    let mut world = world(Fsync::No);
    let keys: Vec<Vec<u8>> = (0..count).map(|n| format!("key:{n}").into_bytes()).collect();
    keys.iter().for_each(|key| world.put(DB, key, b"1", 0));
    world.rest();
    (world, keys)
}

/// Until the shard's filter is complete nobody knows whether a key is there, and fjall's own is asked.
#[test]
fn what_is_likely_is_known_once_the_filter_is_complete() {
    for crashes in [false, true] {
        let (mut world, keys) = at_rest(1);
        let odds = |world: &mut World| {
            assert_eq!(world.get_ahead(&keys[0]), Err(Error::Cold));
            world.reads.take_wanted().iter().map(Wanted::odds).collect::<Vec<_>>()
        };
        // It is filled, or found as a clean end has left it.
        if crashes {
            world.crash(None)
        } else {
            world.reopen(false)
        }
        assert!(!world.options.dir.join(FILTERS_FILE).exists());
        assert_eq!(odds(&mut world), [Odds::Even]);
        world.turn();
        assert_eq!(odds(&mut world), [Odds::Likely]);
        assert!(world.engine().shards.at(0).core().membership.take_saved().is_none(), "no file is held");
    }
}

#[test]
fn readers_bring_what_is_wanted_and_leave_nothing_when_they_end() {
    let (mut world, keys) = at_rest(20);
    keys.iter().for_each(|key| assert_eq!(world.get_ahead(key), Err(Error::Cold)));
    let engine = world.engine().clone();
    let (done, brought) = std::sync::mpsc::channel();
    let late = done.clone();
    engine.readers.bring(std::mem::take(&mut world.reads), Box::new(move |reads| done.send(reads).unwrap()));
    assert_eq!(engine.readers.pending(), keys.len());
    let threads = two_readers(&engine);
    world.reads = brought.recv_timeout(Duration::from_secs(30)).unwrap();
    assert_eq!(engine.readers.pending(), 0);
    keys.iter().for_each(|key| assert_eq!(world.get_ahead(key), string(b"1")));
    engine.readers.end(2);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    engine.readers.close();
    // Nobody reads any more: who comes now is told by the end of the channel.
    world.reads = Reads::default();
    world.rest();
    assert_eq!(world.get_ahead(&keys[0]), Err(Error::Cold));
    engine.readers.bring(std::mem::take(&mut world.reads), Box::new(move |reads| late.send(reads).unwrap()));
    assert!(brought.recv_timeout(Duration::from_secs(30)).is_err());
    // Who asks again and again gets nothing, once.
    let (told, is_told) = std::sync::mpsc::channel();
    let mut errand = Errand::of(Arc::new(move |reads: Reads| told.send(reads.memory_bytes()).unwrap()));
    for _ in 0..2 {
        assert_eq!(world.get_ahead(&keys[0]), Err(Error::Cold));
        assert_eq!(world.get_ahead(&keys[1]), Err(Error::Cold));
        engine.readers.bring_again(&mut errand, std::mem::take(&mut world.reads), false);
        assert_eq!(is_told.try_iter().collect::<Vec<_>>(), [0]);
    }
    assert_eq!(engine.readers.pending(), 0);
}

/// Where several wait for the disk, a reader has it begin with a few; those which it need not be waited for, or of which nobody
/// knows whether they are there, are read one after the other. What the first look at the index cannot find is left to others.
#[test]
fn a_reader_has_the_disk_begin_with_several() {
    let aimed = |count: usize, slow: bool, known: bool, ways: bool| {
        let (mut world, keys) = at_rest(count);
        world.reopen(false);
        if known {
            world.turn();
        }
        let engine = world.engine().clone();
        if slow {
            engine.store.partitions().iter().for_each(|partition| partition.note_slow());
        }
        if !ways {
            engine.store.partitions().iter().for_each(|partition| partition.close_ways());
        }
        let (done, brought) = std::sync::mpsc::channel();
        let threads = two_readers(&engine);
        // Twice, as the pieces of the index are in the cache then.
        for _ in 0..2 {
            let done = done.clone();
            world.reads = Reads::default();
            keys.iter().for_each(|key| assert_eq!(world.get_ahead(key), Err(Error::Cold)));
            engine.readers.bring(std::mem::take(&mut world.reads), Box::new(move |reads| done.send(reads).unwrap()));
            world.reads = brought.recv_timeout(Duration::from_secs(30)).unwrap();
        }
        keys.iter().for_each(|key| assert_eq!(world.get_ahead(key), string(b"1")));
        engine.readers.end(2);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!((engine.readers.awake(), engine.readers.pending()), (0, 0));
        engine.readers.aimed()
    };
    assert!(aimed(20, true, true, true) >= 15);
    assert_eq!([aimed(1, true, true, true), aimed(20, false, true, true), aimed(20, true, false, true)], [0; 3]);
    assert_eq!(aimed(20, true, true, false), 0, "without a file of a table's own");
}

/// Two readers that have nothing to do.
fn two_asleep(engine: &Arc<Engine>) -> [JoinHandle<()>; 2] {
    let readers = two_readers(engine);
    let met = Arc::new(Barrier::new(3));
    for _ in 0..2 {
        let met = met.clone();
        engine.readers.work(Box::new(move || _ = met.wait()));
    }
    met.wait();
    wait_for(&|| engine.readers.pending() == 0 && engine.readers.awake() == 0);
    readers
}

/// Nobody is called for what comes back at once, as who asks helps. If it no longer does, nobody else comes to it.
#[test]
fn who_helps_calls_the_readers_once_the_disk_is_slow() {
    let (mut world, keys) = at_rest(12);
    let engine = world.engine().clone();
    let readers = two_asleep(&engine);
    keys.iter().for_each(|key| assert_eq!(world.get_ahead(key), Err(Error::Cold)));
    let (done, is_done) = std::sync::mpsc::channel();
    let mut errand = Errand::of(Arc::new(move |_| done.send(()).unwrap()));
    engine.readers.bring_again(&mut errand, std::mem::take(&mut world.reads), true);
    assert_eq!((engine.readers.awake(), engine.readers.pending()), (0, keys.len()));
    engine.store.partition(0).note_slow();
    assert!(!engine.readers.help(), "it is the readers'");
    is_done.recv_timeout(Duration::from_secs(30)).unwrap();
    engine.readers.end(2);
    readers.into_iter().for_each(|reader| reader.join().unwrap());
}

/// Where the disk is slow, a reader is called once there is enough for it, or who asks says that this is all.
#[test]
fn a_reader_is_called_for_several_who_wait_for_the_disk() {
    let (mut world, keys) = at_rest(20);
    let engine = world.engine().clone();
    let readers = two_asleep(&engine);
    let (done, is_done) = std::sync::mpsc::channel();
    let mut asked = Vec::new();
    let mut ask = |key: &[u8], helps| {
        engine.store.partition(0).note_slow();
        assert_eq!(world.get_ahead(key), Err(Error::Cold));
        let done = done.clone();
        let mut errand = Errand::of(Arc::new(move |_| done.send(()).unwrap()));
        engine.readers.bring_again(&mut errand, std::mem::take(&mut world.reads), helps);
        asked.push(errand);
        engine.readers.awake()
    };
    let come = |count| (0..count).for_each(|_| is_done.recv_timeout(Duration::from_secs(30)).unwrap());
    assert_eq!(keys[..AT_ONCE - 1].iter().map(|key| ask(key, true)).max(), Some(0), "more may come");
    ask(&keys[AT_ONCE - 1], true);
    come(AT_ONCE);
    wait_for(&|| engine.readers.awake() == 0);
    assert_eq!(keys[AT_ONCE..AT_ONCE + 3].iter().map(|key| ask(key, true)).max(), Some(0));
    engine.readers.call_waiting();
    come(3);
    // Who says nothing more is not waited for.
    wait_for(&|| engine.readers.awake() == 0);
    ask(&keys[19], false);
    come(1);
    engine.readers.end(2);
    readers.into_iter().for_each(|reader| reader.join().unwrap());
}

/// What is asked when a read was quick may be answered when it no longer is: nobody is counted twice, and nothing is left.
#[test]
fn readers_of_a_disk_that_is_quick_and_slow_in_turn_lose_nothing() {
    const ERRANDS: usize = 300;
    let (mut world, keys) = at_rest(12);
    let engine = world.engine().clone();
    let readers = two_readers(&engine);
    let (ended, toggled) = (Arc::new(AtomicBool::new(false)), engine.clone());
    let is_over = ended.clone();
    let toggler = std::thread::spawn(move || {
        while !is_over.load(Ordering::Relaxed) {
            toggled.store.partitions().iter().for_each(|partition| partition.note_slow());
            std::thread::yield_now();
            toggled.store.partitions().iter().for_each(|partition| partition.note_quick());
        }
    });
    let (done, is_done) = std::sync::mpsc::channel();
    for n in 0..ERRANDS {
        world.reads = Reads::default();
        keys.iter().for_each(|key| assert_eq!(world.get_ahead(key), Err(Error::Cold)));
        let done = done.clone();
        engine.readers.bring(std::mem::take(&mut world.reads), Box::new(move |_| done.send(()).unwrap()));
        if n % 3 == 0 {
            engine.readers.help();
        }
    }
    (0..ERRANDS).for_each(|_| is_done.recv_timeout(Duration::from_secs(30)).unwrap());
    ended.store(true, Ordering::Relaxed);
    toggler.join().unwrap();
    engine.readers.end(2);
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    assert_eq!((engine.readers.awake(), engine.readers.pending()), (0, 0));
}
