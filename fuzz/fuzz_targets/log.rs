//! Any bytes as a segment of the redo log: reading, cutting and reading again neither panics nor allocates by what a
//! length prefix says, and a repaired log holds what was read before the damage.
#![no_main]

use std::path::Path;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use tarn::log::sim::{SimIo, segment_of};
use tarn::log::{Fsync, Io, Log, Options, Origin, repair, scan};

fn check(segment: &[u8]) {
    let (sim, dir) = (SimIo::new(), Path::new("log"));
    sim.put(&dir.join("0000000000000001.log"), segment);
    let io: Arc<dyn Io> = Arc::new(sim);
    let Ok(before) = scan(&io, dir, Origin::default()) else { return };
    repair(&io, dir, Origin::default()).expect("a disk that does not fail");
    let after = scan(&io, dir, Origin::default()).expect("the format was known before");
    assert!(after.damage.is_none());
    assert_eq!((after.last, after.synced), (before.last, before.synced));

    let (_log, mut replay) = Log::open(io, &Options::new(dir, Fsync::No)).expect("it was scanned");
    let mut last = 0;
    while let Some((lsn, record)) = replay.next_record().expect("it was repaired") {
        assert_eq!(lsn, last + 1);
        assert!(record.len() <= segment.len());
        last = lsn;
    }
    assert_eq!(last, before.last);
}

fuzz_target!(|data: &[u8]| {
    check(data);
    let Some((&count, payload)) = data.split_first() else { return };
    if let Some(whole) = segment_of(payload, u32::from(count)) {
        check(&whole);
    }
    if let Some(mut begun) = segment_of(&[], 0) {
        begun.extend_from_slice(payload);
        check(&begun);
    }
});
