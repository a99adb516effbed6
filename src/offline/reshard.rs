//! `tarn reshard DIR --shards N`: writes a data directory of another number of shards beside an old one, and puts it in its place.
//!
//! | step | an interruption leaves |
//! |---|---|
//! | a shadow of DIR ([`super::shadow`]), with all that the log holds | DIR |
//! | `DIR.resharding`: living records, each in the partition of its key; times, counts and names anew | DIR, and what the next call removes |
//! | a log that goes on above all LSNs there were, a checkpoint that says so, `tarn check` of all of it | the same |
//! | DIR becomes `DIR.before-reshard`, the new directory DIR | one of both names is DIR, or the next call makes it so |
//! | what is in the old one and no part of the data moves to DIR | some of it in the old one |
//!
//! The hash key stays, so that the keys of a partition go to neighbours: each piece that is ingested is large. Dead versions and
//! databases, and what is queued of them, stay behind.
//!
//! The new directory is whose the old one was, with its rights ([`rights`]).
//!
//! Memory: [`PIECE_BYTES`], and a count for each database and shard.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use crate::codec::key::{self, DiskKey, decode_key, element_owner, tag, tag_range};
use crate::codec::{ExpiryKind, Meta, NamespaceMap, NsId};
use crate::log::{self, Fsync, Io, Log, Lsn, Origin, RealIo};
use crate::shard::engine::checkpoint::{Checkpoint, Trust};
use crate::shard::router::Router;
use crate::store::superblock::sync_dir;
use crate::store::{self, Create, DataDir, Partition, Store, StoreOptions, Superblock, UserKey, UserValue, rights};
use crate::util::path::folder_of;
use crate::util::progress::Progress;

use super::shadow::Shadow;
use super::{Failure, check};

/// Bytes that wait to be ingested.
const PIECE_BYTES: usize = if cfg!(test) { 64 << 10 } else { 128 << 20 };
/// Runs that wait for compaction at which others wait for it.
const MOST_RUNS: usize = 16;

/// Reshards and reports.
pub fn run(dir: &Path, shards: u16) -> ExitCode {
    match reshard(dir, shards) {
        Ok(line) => {
            let _ = writeln!(std::io::stdout(), "{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn beside(dir: &Path, what: &str) -> Result<PathBuf, Failure> {
    let name = dir.file_name().ok_or_else(|| format!("{} has no name of its own", dir.display()))?;
    Ok(dir.with_file_name(format!("{}.{what}", name.to_string_lossy())))
}

fn reshard(dir: &Path, shards: u16) -> Result<String, Failure> {
    // What a symbolic link names is replaced where it is, and the link stays.
    let dir = &fs::canonicalize(dir).unwrap_or_else(|_| dir.to_owned());
    let (new, old) = (beside(dir, "resharding")?, beside(dir, "before-reshard")?);
    if !dir.exists() && old.exists() && new.join(store::CHECKPOINT_FILE).exists() {
        // The last one ended between two renamings.
        fs::rename(&new, dir)?;
        move_others(&old, dir)?;
        return Ok(format!("{} was whole already; the old directory is {}", dir.display(), old.display()));
    }
    let Some(superblock) = Superblock::load(dir)? else {
        return Err(format!("{} holds no data of tarn", dir.display()).into());
    };
    if old.exists() {
        return Err(
            format!("{} is in the way: it is what an earlier reshard has left, remove it", old.display()).into()
        );
    }
    let _lock = DataDir::open(dir, None)?;
    if new.exists() {
        fs::remove_dir_all(&new)?;
    }
    let records = copy(dir, &new, &superblock, shards)?;
    if !check::is_whole(&new)? {
        return Err(format!("{} is not whole, {} stays as it is", new.display(), dir.display()).into());
    }
    rights::take_after(&new, dir)?;
    sync_tree(&new)?;
    fs::rename(dir, &old)?;
    if let Err(error) = fs::rename(&new, dir) {
        fs::rename(&old, dir)?;
        return Err(format!("{} cannot be renamed: {error}", new.display()).into());
    }
    sync_dir(folder_of(dir))?;
    move_others(&old, dir)?;
    let (from, dir) = (superblock.shards, dir.display());
    Ok(format!("{dir}: {records} records in {shards} shards instead of {from}; the old directory is {}", old.display()))
}

/// Moves what is no part of the data, as a file of users or a folder of backups: whoever removes the old directory is to lose none.
fn move_others(from: &Path, to: &Path) -> Result<(), Failure> {
    for entry in fs::read_dir(from)? {
        let name = entry?.file_name();
        if !store::OWN_NAMES.iter().any(|own| name == *own) && !to.join(&name).exists() {
            fs::rename(from.join(&name), to.join(&name))?;
        }
    }
    sync_dir(to)?;
    Ok(())
}

/// Makes the new directory; how many records went there.
fn copy(dir: &Path, new: &Path, superblock: &Superblock, shards: u16) -> Result<u64, Failure> {
    let shadow = Shadow::of(dir)?;
    let from = shadow.store().ok_or("the log cannot be brought to the store")?;
    fs::create_dir_all(new)?;
    // Before there is anything in it to be looked at.
    rights::take_after(new, dir)?;
    let made = Superblock::create_with(new, shards, superblock.hash_key)?;
    let data = DataDir::open(new, None)?;
    let store = Store::open_in(data, StoreOptions { nice: None, ..StoreOptions::default() }, Create::Store)?;
    let (names, mut highest) = (names(from.partition(0))?, shadow.last());
    let mut writer = Writer::new(&store, &made);
    let mut progress = Progress::new("reshard", from.partitions().iter().map(|partition| partition.disk_bytes()).sum());
    for partition in from.partitions() {
        let mut source = Source { partition, names: &names, writer: &mut writer, highest };
        source.elements()?;
        source.metadata()?;
        highest = source.highest;
        progress.add(partition.disk_bytes());
    }
    for item in small(from.partition(0))? {
        let (key, value) = item?;
        writer.put(0, key, value)?;
    }
    let records = writer.end(highest, made.id())?;
    drop(store);
    start_log(new, &made, highest)?;
    Ok(records)
}

/// The records of the first partition that belong to no key.
fn small(first: &Partition) -> Result<impl Iterator<Item = store::Result<(UserKey, UserValue)>>, Failure> {
    let (names, libraries) = (tag_range(tag::NAMES), tag_range(tag::LIBRARY));
    Ok(first.range(&libraries.lower, &libraries.upper)?.chain(first.range(&names.lower, &names.upper)?))
}

fn names(first: &Partition) -> Result<NamespaceMap, Failure> {
    let mut record = Vec::new();
    key::names_key(&mut record);
    Ok(first.get(&record)?.map(|value| NamespaceMap::decode(&value)).transpose()?.unwrap_or_default())
}

/// A partition that is read.
struct Source<'a, 'w> {
    partition: &'a Partition,
    names: &'a NamespaceMap,
    writer: &'w mut Writer<'a>,
    highest: Lsn,
}

impl Source<'_, '_> {
    /// Elements of living versions, in their order.
    fn elements(&mut self) -> Result<(), Failure> {
        let range = tag_range(tag::ELEMENT);
        let (mut owner, mut shard) = (Vec::new(), None);
        for item in self.partition.range(&range.lower, &range.upper)? {
            let (record, value) = item?;
            let of = element_owner(&record).ok_or("an element's key cannot be read")?;
            if of != owner {
                owner = of.to_vec();
                shard = self.shard_of_owner(&record)?;
            }
            if let Some(shard) = shard {
                self.writer.put(shard, record, value)?;
            }
        }
        Ok(())
    }

    /// Where the elements of a version go; `None` if it is dead.
    fn shard_of_owner(&mut self, record: &[u8]) -> Result<Option<u16>, Failure> {
        let DiskKey::Element { ns, key, version, .. } = decode_key(record)? else { return Ok(None) };
        let mut meta_key = Vec::new();
        key::meta_key_of_stored(ns, key, &mut meta_key);
        let Some(value) = self.partition.get(&meta_key)?.filter(|_| !self.names.is_dead(ns)) else { return Ok(None) };
        let (meta, long_key, _) = Meta::decode(&value)?;
        Ok((meta.version == version).then(|| self.writer.router.shard_of(long_key.unwrap_or(key))))
    }

    fn metadata(&mut self) -> Result<(), Failure> {
        let range = tag_range(tag::META);
        for item in self.partition.range(&range.lower, &range.upper)? {
            let (record, value) = item?;
            let DiskKey::Meta { ns, key } = decode_key(&record)? else { continue };
            if self.names.is_dead(ns) {
                continue;
            }
            let (meta, long_key, _) = Meta::decode(&value)?;
            let key = long_key.unwrap_or(key);
            let shard = self.writer.router.shard_of(key);
            for (at_ms, kind) in [(meta.expire_ms, ExpiryKind::Key), (meta.extra.fields_due_ms(), ExpiryKind::Field)] {
                if at_ms != 0 {
                    let mut time = Vec::new();
                    key::expiry_key(at_ms, kind, ns, key, &mut time);
                    self.writer.put(shard, time.into(), UserValue::from(Vec::new()))?;
                }
            }
            self.highest = self.highest.max(meta.version);
            self.writer.count(shard, ns);
            self.writer.put(shard, record, value)?;
        }
        Ok(())
    }
}

/// The new partitions.
struct Writer<'a> {
    store: &'a Store,
    router: Router,
    /// What waits to be ingested, by shard.
    pieces: Vec<(BTreeMap<UserKey, UserValue>, usize)>,
    bytes: usize,
    counts: Vec<BTreeMap<NsId, u64>>,
    records: u64,
}

impl<'a> Writer<'a> {
    fn new(store: &'a Store, superblock: &Superblock) -> Self {
        let shards = usize::from(superblock.shards);
        Writer {
            store,
            router: Router::new(superblock.hash_key, superblock.shards),
            pieces: (0..shards).map(|_| Default::default()).collect(),
            bytes: 0,
            counts: vec![BTreeMap::new(); shards],
            records: 0,
        }
    }

    fn count(&mut self, shard: u16, ns: NsId) {
        *self.counts[usize::from(shard)].entry(ns).or_default() += 1;
    }

    fn put(&mut self, shard: u16, key: UserKey, value: UserValue) -> Result<(), Failure> {
        let bytes = key.len() + value.len() + 128;
        let (piece, size) = &mut self.pieces[usize::from(shard)];
        piece.insert(key, value);
        *size += bytes;
        (self.bytes, self.records) = (self.bytes + bytes, self.records + 1);
        if self.bytes < PIECE_BYTES {
            return Ok(());
        }
        // The largest is worth most.
        let largest = (0u16..).zip(&self.pieces).max_by_key(|(_, (_, size))| *size).map_or(shard, |(shard, _)| shard);
        self.ingest(largest)
    }

    fn ingest(&mut self, shard: u16) -> Result<(), Failure> {
        let partition = self.store.partition(shard);
        let (piece, size) = std::mem::take(&mut self.pieces[usize::from(shard)]);
        self.bytes -= size;
        while partition.l0_runs() >= MOST_RUNS && self.store.health().is_ok() {
            std::thread::sleep(Duration::from_millis(10));
        }
        partition.ingest(piece.into_iter().map(|(key, value)| (key, Some(value))))?;
        Ok(())
    }

    /// Counts, and how far each partition reaches.
    fn end(mut self, highest: Lsn, owner: u64) -> Result<u64, Failure> {
        for shard in 0..self.pieces.len() as u16 {
            for (ns, count) in std::mem::take(&mut self.counts[usize::from(shard)]) {
                let mut record = Vec::new();
                key::count_key(ns, &mut record);
                self.put(shard, record.into(), UserValue::from(&key::count_value(count)[..]))?;
            }
            let mut record = Vec::new();
            key::flushed_key(&mut record);
            self.put(shard, record.into(), UserValue::from(&key::flushed_value(highest, owner)[..]))?;
            self.ingest(shard)?;
        }
        Ok(self.records)
    }
}

/// A log without records, which goes on above an LSN, and the checkpoint that says so.
fn start_log(dir: &Path, superblock: &Superblock, highest: Lsn) -> Result<(), Failure> {
    let io: Arc<dyn Io> = Arc::new(RealIo);
    let origin = Origin { owner: superblock.id(), needed_from: 0 };
    let options = log::Options { origin, ..log::Options::new(dir.join(store::LOG_FOLDER), Fsync::No) };
    let (log, mut replay) = Log::open(io.clone(), &options)?;
    while replay.next_record()?.is_some() {}
    replay.go_on_above(highest);
    log.start(replay)?;
    log.close()?;
    let stored = vec![highest; usize::from(superblock.shards)];
    let (complete, segment) = (highest + 1, highest + 1);
    let owner = superblock.id();
    Checkpoint { owner, complete, segment, end: highest, trust: Trust::Whole, stored }.write(&*io, dir)?;
    Ok(())
}

/// Makes every name durable.
fn sync_tree(dir: &Path) -> Result<(), Failure> {
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            folders.extend(path.is_dir().then_some(path));
        }
        sync_dir(&folder)?;
    }
    Ok(())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::shard::keyspace::walk::tests::{engine, options};
    use crate::shard::memory::object::Kind;
    use crate::shard::{Engine, engine::EngineOptions};

    /// The elements of keys in the store.
    fn elements(engine: &Engine) -> usize {
        let range = tag_range(tag::ELEMENT);
        let of = |partition: &Arc<Partition>| partition.range(&range.lower, &range.upper).unwrap().count();
        engine.store.partitions().iter().map(of).sum()
    }

    /// Nobody would remove them from the new directory: it has no record of who is dead.
    #[test]
    fn what_is_left_of_a_dead_database_does_not_come_along() {
        let folder = crate::util::scratch::tempdir().unwrap();
        let dir = folder.path().join("data");
        let before = engine(&dir, 1);
        let names = before.first_names();
        for name in [b"0", b"1"] {
            let ns = names.id(name).unwrap();
            let made = before.transact(&[0], 1, |txn| {
                let at = txn.create(ns, b"hash", Kind::Hash, 0)?;
                for n in 0..10 {
                    txn.put_element(at, &[1, n], b"value")?;
                }
                txn.add_size(at, 10);
                Ok(())
            });
            made.unwrap();
        }
        before.flush().unwrap();
        let flushed = before.transact(&[0], 1, |txn| {
            let (new, dead) = txn.lease[0].names.renewed(&[b"1"]).unwrap();
            txn.replace_names(new, &dead);
            Ok(())
        });
        flushed.unwrap();
        assert_eq!(elements(&before), 20, "nobody has removed them yet");
        before.close(false).unwrap();
        drop(before);
        reshard(&dir, 2).unwrap();
        let after = Engine::open(Arc::new(RealIo), EngineOptions { shards: None, ..options(&dir, 2) }).unwrap();
        after.replay().unwrap();
        assert_eq!((after.shards.iter().count(), elements(&after)), (2, 10));
    }
}
