//! What is read of a collection that is not in memory.

use crate::codec::element::{self, Group};
use crate::codec::order::StreamId;
use crate::shard::engine::Engine;
use crate::shard::object::Kind;
use crate::shard::walk::tests::engine;

/// Everything clean leaves the table.
fn evict(engine: &Engine) {
    let mut core = engine.shards[0].core();
    let limit = std::mem::replace(&mut core.table_limit, 0);
    while core.table.len() > 0 {
        core.make_room();
    }
    core.table_limit = limit;
}

fn pending(n: u64) -> Vec<u8> {
    let mut key = Vec::new();
    element::stream_pel(b"group", StreamId { ms: n, seq: 0 }, &mut key);
    key
}

/// Its size promises two elements, and there are far more records: what one read takes is bounded, what is asked for is found.
#[test]
fn a_stream_of_few_entries_and_many_pending_ones_has_them_all() {
    const PENDING: u64 = 100;
    let dir = tempfile::tempdir().unwrap();
    let engine = engine(dir.path(), 1);
    engine
        .transact(&[0], 1, |txn| {
            let at = txn.create(0, b"stream", Kind::Stream, 0)?;
            for n in 0..PENDING {
                txn.put_element(at, &pending(n), &n.to_be_bytes())?;
            }
            txn.add_size(at, 2);
            Ok(())
        })
        .unwrap();
    for n in (0..PENDING).rev() {
        engine.flush().unwrap();
        evict(&engine);
        engine
            .transact(&[0], 1, |txn| {
                let at = txn.find(0, b"stream")?.unwrap();
                for n in [n, (n + 1) % PENDING, 0] {
                    assert_eq!(txn.element(at, &pending(n))?, Some(&n.to_be_bytes()[..]), "{n}");
                }
                assert_eq!(txn.element(at, &pending(PENDING))?, None);
                assert_eq!(txn.group(at, Group::StreamPel)?.count() as u64, PENDING);
                // What is dirty afterwards must not pass for the whole.
                txn.put_element(at, &pending(n), &n.to_be_bytes())?;
                Ok(())
            })
            .unwrap();
    }
}
