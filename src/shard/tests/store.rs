//! The store under the engine: counts that are wrong.

use crate::shard::recount;
use crate::shard::timer::Timer;
use crate::shard::walk::tests::engine;

#[test]
fn a_count_below_zero_is_counted_anew_while_commands_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let engine = engine(dir.path(), 1);
    let put = |n: usize| {
        let key = format!("key:{n}").into_bytes();
        engine.transact(&[0], 1, |txn| txn.put_string(0, &key, b"v", 0)).unwrap();
    };
    let delete = |n: usize| {
        let key = format!("key:{n}").into_bytes();
        assert!(engine.transact(&[0], 1, |txn| txn.delete(0, &key)).unwrap());
    };
    let count = || engine.shards[0].core().count(0);
    let keys = 20 * recount::SLICE;
    (0..keys).for_each(put);
    engine.flush().unwrap();
    (keys..keys + 5).for_each(put);
    // As an older count comes back when fjall is ahead of the log.
    engine.shards[0].core().set_count(0, 2);
    (0..4).for_each(delete);
    assert_eq!(count(), 0);
    assert!(engine.shards[0].core().miscounted);
    let mut timer = Timer::new(&engine, 0);
    let (mut turns, mut there) = (0, keys + 1);
    while engine.shards[0].core().miscounted {
        timer.turn(1);
        // On both sides of where the count stands, and some not flushed.
        put(keys + 10 + turns);
        delete(10 + turns);
        put(1_000_000 + turns);
        there += 1;
        if turns % 7 == 3 {
            engine.flush().unwrap();
        }
        turns += 1;
    }
    assert!(turns > 10, "it goes in slices");
    assert_eq!(count(), there as u64);
    drop(timer);
    let log = engine.log.clone();
    log.sync_to(log.last()).unwrap();
    drop((log, engine));
    assert_eq!(self::engine(dir.path(), 1).shards[0].core().count(0), there as u64, "and it is in the log");
}
