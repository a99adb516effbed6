//! Every part of a data directory missing, cut, or from another time: refused with words, and opened once the loss is
//! accepted.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use crate::util::scratch::tempdir;
use tempfile::TempDir;
use xxhash_rust::xxh3::xxh3_64;

use super::*;
use crate::codec::element::Group;
use crate::codec::key::{tag, tag_range};
use crate::log::sim::SimIo;
use crate::shard::Engine;
use crate::shard::keyspace::walk::Stop;
use crate::shard::keyspace::walk::tests::{met, options};
use crate::shard::memory::object::Kind;
use crate::shard::txn::build::Build;
use crate::store::Partition;

const NS: u32 = 0;

/// Keys of a letter: so many that each of the two shards has some, whatever the hash key is.
const KEYS: usize = 30;

fn open_on(io: Arc<dyn Io>, dir: &Path) -> Result<Arc<Engine>, OpenError> {
    let engine = Engine::open(io, options(dir, 2))?;
    engine.replay()?;
    Ok(engine)
}

fn open(dir: &Path) -> Result<Arc<Engine>, OpenError> {
    open_on(Arc::new(RealIo), dir)
}

fn put(engine: &Engine, letter: char) {
    for n in 0..KEYS {
        let key = format!("{letter}{n}").into_bytes();
        engine.transact(&engine.all_shards(), 1, |txn| txn.put_string(NS, &key, b"v", 0)).unwrap();
    }
    engine.log.sync_to(engine.log.last()).unwrap();
}

/// The keys that a walk meets, which must be as many as are counted.
fn keys(engine: &Engine) -> BTreeSet<Vec<u8>> {
    engine.sight(&engine.all_shards());
    let (mut keys, mut counted) = (BTreeSet::new(), 0);
    for shard in engine.shards.iter() {
        let mut core = shard.core();
        counted += core.count(NS);
        keys.extend(met(&mut core, &engine.router, NS, b"", Stop::default(), 1).into_iter().map(|met| met.key));
    }
    assert_eq!(counted, keys.len() as u64, "DBSIZE is the number of keys that SCAN finds");
    keys
}

/// A directory as `kill -9` leaves it: keys `a` in the store, `b`, `c` and `d` in a segment each.
struct Made {
    dir: TempDir,
    last: Lsn,
    segments: Vec<PathBuf>,
    /// Copies from when only the keys `a` were there, and had been flushed.
    before: TempDir,
}

fn made() -> Made {
    let (dir, before) = (tempdir().unwrap(), tempdir().unwrap());
    let engine = open(dir.path()).unwrap();
    put(&engine, 'a');
    engine.flush().unwrap();
    // fjall's worker would replace files while they are copied.
    drop(engine);
    copy(dir.path(), before.path());
    let engine = open(dir.path()).unwrap();
    for letter in ['b', 'c', 'd'] {
        put(&engine, letter);
        if letter != 'd' {
            engine.rotate().unwrap();
        }
    }
    let last = engine.log.last();
    drop(engine);
    let mut segments: Vec<_> =
        fs::read_dir(dir.path().join("log")).unwrap().map(|entry| entry.unwrap().path()).collect();
    segments.sort();
    assert_eq!(segments.len(), 3);
    Made { dir, last, segments, before }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to.join(entry.file_name())),
            false => _ = fs::copy(entry.path(), to.join(entry.file_name())).unwrap(),
        }
    }
}

/// Puts a part of another directory in the place of this one's.
fn replace(from: &Path, to: &Path, part: &str) {
    let (from, to) = (from.join(part), to.join(part));
    if from.is_dir() {
        fs::remove_dir_all(&to).unwrap();
        copy(&from, &to);
    } else {
        fs::copy(from, to).unwrap();
    }
}

fn empty(folder: &Path) {
    fs::remove_dir_all(folder).unwrap();
    fs::create_dir(folder).unwrap();
}

fn checked(dir: &Path, repair: bool) -> (Result<bool, String>, String) {
    let mut said = String::new();
    let result = check(dir, repair, &mut |line| said += &format!("{line}\n"));
    (result.map_err(|error| error.to_string()), said)
}

/// Nothing opens the directory, and the words say why.
fn assert_refused(dir: &Path, words: &str) {
    for _ in 0..2 {
        let error = open(dir).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains(words), "said {error:?}, not {words:?}");
    }
}

/// Refused, named by the check, accepted by the repair; answers what is left.
fn accept(made: &Made, words: &str) -> BTreeSet<Vec<u8>> {
    let dir = made.dir.path();
    assert_refused(dir, words);
    let (whole, said) = checked(dir, false);
    assert!(whole == Ok(false) && said.contains(words), "{whole:?}, {said}");
    assert_eq!(checked(dir, true).0, Ok(true));
    assert_eq!(checked(dir, false).0, Ok(true));
    let engine = open(dir).unwrap();
    let left = keys(&engine);
    assert!(engine.log.last() >= made.last, "LSNs are versions, none is given twice");
    put(&engine, 'e');
    let all = keys(&engine);
    drop(engine);
    // Until a flush segments stand before the gap: that is no damage, behind which all would be cut.
    for repair in [false, true] {
        assert_eq!(checked(dir, repair).0, Ok(true));
    }
    let engine = open(dir).unwrap();
    assert_eq!(letters(&keys(&engine)), letters(&all));
    // Everything can be changed and flushed, and is there again.
    for key in &left {
        assert!(engine.transact(&engine.all_shards(), 1, |txn| txn.delete(NS, key)).unwrap());
    }
    put(&engine, 'e');
    engine.flush().unwrap();
    put(&engine, 'f');
    drop(engine);
    assert_eq!(checked(dir, false).0, Ok(true));
    assert_eq!(letters(&keys(&open(dir).unwrap())), "ef");
    left
}

/// The letters of which all keys are there, and those of which some are, in capitals.
fn letters(keys: &BTreeSet<Vec<u8>>) -> String {
    let of = |letter: &char| keys.iter().filter(|key| key[0] == *letter as u8).count();
    let there = ('a'..='f').filter(|letter| of(letter) > 0);
    there.map(|letter| if of(&letter) == KEYS { letter } else { letter.to_ascii_uppercase() }).collect()
}

#[test]
fn a_whole_directory_opens() {
    let made = made();
    assert_eq!(checked(made.dir.path(), false).0, Ok(true));
    assert_eq!(letters(&keys(&open(made.dir.path()).unwrap())), "abcd");
    assert_eq!(letters(&keys(&open(made.before.path()).unwrap())), "a");
}

#[test]
fn a_missing_log_is_refused() {
    let made = made();
    fs::remove_dir_all(made.dir.path().join("log")).unwrap();
    assert_eq!(letters(&accept(&made, "log/ is missing")), "a");
}

#[test]
fn an_emptied_log_is_refused() {
    let made = made();
    empty(&made.dir.path().join("log"));
    assert_eq!(letters(&accept(&made, "holds no segment")), "a");
}

#[test]
fn a_log_that_was_never_flushed_is_missed_too() {
    let dir = tempdir().unwrap();
    let engine = open(dir.path()).unwrap();
    put(&engine, 'a');
    drop(engine);
    fs::remove_dir_all(dir.path().join("log")).unwrap();
    assert_refused(dir.path(), "log/ is missing");
}

#[test]
fn a_missing_oldest_segment_is_refused() {
    let made = made();
    fs::remove_file(&made.segments[0]).unwrap();
    assert_eq!(letters(&accept(&made, "a segment is missing")), "acd");
}

#[test]
fn a_missing_middle_segment_is_refused() {
    let made = made();
    fs::remove_file(&made.segments[1]).unwrap();
    assert_eq!(letters(&accept(&made, "records are missing before it")), "ab");
}

#[test]
fn a_missing_newest_segment_is_refused() {
    let made = made();
    fs::remove_file(&made.segments[2]).unwrap();
    assert_eq!(letters(&accept(&made, "newest segment")), "abc");
}

#[test]
fn a_cut_segment_is_refused() {
    let made = made();
    let file = fs::OpenOptions::new().write(true).open(&made.segments[1]).unwrap();
    file.set_len(file.metadata().unwrap().len() - 3).unwrap();
    assert_eq!(letters(&accept(&made, "is damaged at offset")), "abC");
}

/// Nothing but a later record tells of it, and that goes with the cut.
#[test]
fn a_damaged_end_is_refused() {
    let mut made = made();
    let engine = open(made.dir.path()).unwrap();
    let whole_bytes = fs::metadata(&made.segments[2]).unwrap().len() as usize;
    put(&engine, 'e');
    put(&engine, 'f');
    made.last = engine.log.last();
    drop(engine);
    let mut bytes = fs::read(&made.segments[2]).unwrap();
    bytes[whole_bytes] ^= 1;
    fs::write(&made.segments[2], bytes).unwrap();
    assert_eq!(letters(&accept(&made, "is damaged at offset")), "abcd");
}

#[test]
fn an_end_cut_after_a_clean_stop_is_refused() {
    let made = made();
    open(made.dir.path()).unwrap().close(false).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&made.segments[2]).unwrap();
    file.set_len(file.metadata().unwrap().len() - 100).unwrap();
    assert_eq!(letters(&accept(&made, "its end is missing")), "abcD");
}

/// Waits until it is noted that all has been synced; then the process is killed.
fn kill_when_noted(dir: &Path, engine: Arc<Engine>) {
    let owner = Superblock::load(dir).unwrap().unwrap().id();
    let began = std::time::Instant::now();
    while log::noted(&RealIo, &dir.join(store::SYNCED_FILE), owner).unwrap() < engine.log.last() {
        assert!(began.elapsed().as_secs() < 30, "it is noted once a second");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    drop(engine);
}

/// As a crash may leave it, but for what was synced.
#[test]
fn an_end_cut_after_a_crash_is_refused() {
    let made = made();
    kill_when_noted(made.dir.path(), open(made.dir.path()).unwrap());
    let file = fs::OpenOptions::new().write(true).open(&made.segments[2]).unwrap();
    file.set_len(file.metadata().unwrap().len() / 2).unwrap();
    assert_eq!(letters(&accept(&made, "its end is missing")), "abcD");
}

#[test]
fn an_older_log_of_the_same_segments_is_refused() {
    let made = made();
    let older = tempdir().unwrap();
    copy(&made.dir.path().join("log"), &older.path().join("log"));
    let engine = open(made.dir.path()).unwrap();
    put(&engine, 'e');
    kill_when_noted(made.dir.path(), engine);
    replace(older.path(), made.dir.path(), "log");
    assert_refused(made.dir.path(), "its end is missing");
}

/// Nothing is known then but what the log says itself.
#[test]
fn a_note_that_is_damaged_old_or_missing_says_nothing() {
    let made = made();
    let note = made.dir.path().join(store::SYNCED_FILE);
    kill_when_noted(made.dir.path(), open(made.dir.path()).unwrap());
    let whole = fs::read(&note).unwrap();
    // Of a later record than there is: torn as it was written, and of another directory.
    let [torn, foreign] = [16, 8].map(|at| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        bytes[22] = 1;
        bytes
    });
    let foreign = [&foreign[..24], &xxh3_64(&foreign[..24]).to_le_bytes()].concat();
    for bytes in [&whole[..whole.len() - 1], b"", b"something else, as long as it is", &torn, &foreign] {
        fs::write(&note, bytes).unwrap();
        assert_eq!(letters(&keys(&open(made.dir.path()).unwrap())), "abcd");
    }
    fs::remove_file(&note).unwrap();
    assert_eq!(letters(&keys(&open(made.dir.path()).unwrap())), "abcd");
}

/// The store has none of it, and where the log begins nothing tells of it.
#[test]
fn what_was_written_before_a_clean_stop_is_missed() {
    let made = made();
    let engine = open(made.dir.path()).unwrap();
    let before = fs::read(&made.segments[2]).unwrap();
    put(&engine, 'e');
    engine.close(false).unwrap();
    drop(engine);
    fs::write(&made.segments[2], before).unwrap();
    assert_refused(made.dir.path(), "its end is missing");
}

#[test]
fn a_missing_store_is_refused() {
    let made = made();
    fs::remove_dir_all(made.dir.path().join("store")).unwrap();
    assert_eq!(letters(&accept(&made, "the store is lost")), "bcd");
}

/// All files in a folder and those below.
fn files_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files_in(&path) } else { vec![path] }).collect()
}

#[test]
fn a_file_of_the_store_that_is_missing_or_cut_is_named() {
    let made = made();
    flush_all(&made);
    let mut refused = 0;
    for file in files_in(&made.dir.path().join("store")) {
        let name = file.strip_prefix(made.dir.path()).unwrap();
        let len = fs::metadata(&file).unwrap().len();
        for left in [None, Some(0), Some(len / 2), Some(len.saturating_sub(1))] {
            let dir = tempdir().unwrap();
            copy(made.dir.path(), dir.path());
            match left {
                None => fs::remove_file(dir.path().join(name)).unwrap(),
                Some(left) => {
                    let file = fs::OpenOptions::new().write(true).open(dir.path().join(name)).unwrap();
                    file.set_len(left).unwrap();
                }
            }
            match open(dir.path()) {
                Ok(engine) => assert_eq!(letters(&keys(&engine)), "abcd", "{name:?} of {left:?} bytes"),
                Err(error) => {
                    let said = error.to_string();
                    let file = name.strip_prefix("store").unwrap().to_str().unwrap();
                    assert!(said.contains(file) && said.contains("Put the right "), "{name:?}, {left:?}: {said}");
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 20, "{refused} times");
}

#[test]
fn an_emptied_store_is_refused() {
    let made = made();
    empty(&made.dir.path().join("store"));
    assert_eq!(letters(&accept(&made, "the store is lost")), "bcd");
}

#[test]
fn a_missing_partition_is_refused() {
    let made = made();
    fs::remove_dir_all(made.dir.path().join("store/keyspaces/2")).unwrap();
    assert_eq!(letters(&accept(&made, "partition of shard 1 is gone")), "Abcd");
}

/// Flushes everything, so that store and log go on from where the copies are.
fn flush_all(made: &Made) {
    let engine = open(made.dir.path()).unwrap();
    engine.flush().unwrap();
    drop(engine);
}

#[test]
fn an_older_store_is_refused() {
    let made = made();
    flush_all(&made);
    replace(made.before.path(), made.dir.path(), "store");
    assert_eq!(letters(&accept(&made, "store/ is from an earlier time")), "a");
}

#[test]
fn an_older_partition_is_refused() {
    let made = made();
    flush_all(&made);
    replace(made.before.path(), made.dir.path(), "store/keyspaces/2");
    assert_eq!(letters(&accept(&made, "partition of shard 1 is from an earlier time")), "aBCD");
}

#[test]
fn an_older_log_is_refused() {
    let made = made();
    flush_all(&made);
    replace(made.before.path(), made.dir.path(), "log");
    assert_eq!(letters(&accept(&made, "newest segment")), "abcd");
}

#[test]
fn a_missing_checkpoint_is_refused() {
    let made = made();
    fs::remove_file(made.dir.path().join("CHECKPOINT")).unwrap();
    assert_eq!(letters(&accept(&made, "CHECKPOINT is missing")), "abcd");
}

#[test]
fn a_damaged_checkpoint_is_refused() {
    let made = made();
    let path = made.dir.path().join("CHECKPOINT");
    let mut bytes = fs::read(&path).unwrap();
    bytes[20] ^= 1;
    fs::write(&path, bytes).unwrap();
    assert_eq!(letters(&accept(&made, "CHECKPOINT is damaged")), "abcd");
}

#[test]
fn an_older_checkpoint_is_refused() {
    let made = made();
    flush_all(&made);
    replace(made.before.path(), made.dir.path(), "CHECKPOINT");
    assert_eq!(letters(&accept(&made, "a segment is missing")), "abcd");
}

#[test]
fn a_missing_superblock_is_refused_and_never_made_anew() {
    let made = made();
    fs::remove_file(made.dir.path().join("SUPERBLOCK")).unwrap();
    assert_refused(made.dir.path(), "holds data but no SUPERBLOCK");
    assert!(checked(made.dir.path(), true).0.is_err());
}

/// What another directory wrote cannot be read with this one's hash key: no repair takes it.
#[test]
fn a_part_of_another_directory_is_refused_and_not_repaired() {
    for part in ["SUPERBLOCK", "CHECKPOINT", "log", "store"] {
        let (one, other) = (made(), made());
        replace(other.dir.path(), one.dir.path(), part);
        let words =
            if matches!(part, "log") { "belongs to another data directory" } else { "of another data directory" };
        assert_refused(one.dir.path(), words);
        let error = checked(one.dir.path(), true).0.unwrap_err();
        assert!(error.contains(words), "{part}: {error}");
        replace(one.before.path(), one.dir.path(), part);
    }
}

/// A key acknowledged, the count of its namespace only in the log that is lost: DEL found fewer keys than there are, and
/// the process ended.
#[test]
fn keys_are_counted_anew_after_a_cut() {
    let made = made();
    flush_all(&made);
    let engine = open(made.dir.path()).unwrap();
    for n in 0..9 {
        let key = format!("a{n}").into_bytes();
        engine.transact(&engine.all_shards(), 1, |txn| txn.delete(NS, &key)).unwrap();
    }
    engine.rotate().unwrap();
    put(&engine, 'e');
    engine.sight(&engine.all_shards());
    engine.store_tables().unwrap();
    drop(engine);
    let mut segments: Vec<_> =
        fs::read_dir(made.dir.path().join("log")).unwrap().map(|entry| entry.unwrap().path()).collect();
    segments.sort();
    fs::remove_file(segments.last().unwrap()).unwrap();
    assert_eq!(letters(&accept(&made, "newest segment")), "Abcde");
}

/// As a repair leaves it that ends behind the acceptance.
fn accepted(dir: &Path) {
    let superblock = Superblock::load(dir).unwrap().unwrap();
    let noted = Checkpoint::load(&RealIo, dir, superblock.id(), superblock.shards).unwrap();
    Checkpoint { trust: Trust::Accepted, ..noted.unwrap() }.write(&RealIo, dir).unwrap();
}

/// What was in the log before the loss is there after every start, not only the first.
#[test]
fn what_a_loss_has_left_of_the_log_outlives_the_start_that_goes_on_without_the_rest() {
    let made = made();
    fs::remove_file(made.segments.last().unwrap()).unwrap();
    accepted(made.dir.path());
    for _ in 0..3 {
        assert_eq!(letters(&keys(&open(made.dir.path()).unwrap())), "abc");
    }
}

/// The log that has given a collection its version need not be there: the store says how far it went.
#[test]
fn no_version_of_the_store_is_too_high_for_a_log_that_is_lost() {
    let dir = tempdir().unwrap();
    let engine = open(dir.path()).unwrap();
    put(&engine, 'a');
    let add = |txn: &mut crate::shard::Txn<'_, '_>| {
        let at = txn.create(NS, b"set", Kind::Set, 0)?;
        txn.put_element(at, &[&[Group::SetMember.tag()], &b"member"[..]].concat(), b"")?;
        txn.add_size(at, 1);
        Ok(())
    };
    engine.transact(&engine.all_shards(), 1, add).unwrap();
    engine.flush().unwrap();
    drop(engine);
    empty(&dir.path().join("log"));
    accepted(dir.path());
    let (whole, said) = checked(dir.path(), false);
    assert_eq!(whole, Ok(true), "{said}");
}

/// Whatever point a process ends at, and whatever a power loss leaves: the next one starts.
#[test]
fn no_crash_is_taken_for_a_loss() {
    let life = |io: SimIo, dir: &Path| -> Result<(), Failure> {
        let engine = open_on(Arc::new(io), dir)?;
        for letter in ['a', 'b'] {
            let key = [letter as u8; 5];
            let write = |txn: &mut crate::shard::Txn<'_, '_>| txn.put_string(NS, &key, b"v", 0);
            engine.transact(&engine.all_shards(), 1, write)?;
            engine.flush()?;
        }
        engine.close(false)?;
        Ok(())
    };
    for n in 0.. {
        let dir = tempdir().unwrap();
        let sim = SimIo::new();
        sim.crash_at(n);
        let ended = life(sim.clone(), dir.path()).is_ok();
        let mut next = if n % 3 == 0 { sim.process_crash() } else { sim.power_loss(n) };
        // Again, and a crash in that start, too.
        next.crash_at(n % 17);
        let _ = life(next.clone(), dir.path());
        next = next.power_loss(n + 1);
        let engine = open_on(Arc::new(next), dir.path());
        assert!(engine.is_ok(), "operation {n}: {}", engine.err().map(|error| error.to_string()).unwrap_or_default());
        keys(&engine.unwrap());
        if ended {
            assert!(n > 40, "{n} operations");
            return;
        }
    }
}

/// What was made of a big result when the server ended has no metadata yet. The next start clears it away: it is no damage.
#[test]
fn a_big_result_that_was_being_made_is_no_damage() {
    let dir = tempdir().unwrap();
    let engine = open(dir.path()).unwrap();
    put(&engine, 'a');
    let under_way = engine.transact(&engine.all_shards(), 1, |txn| {
        let mut build = Build::new(txn, NS, b"key")?;
        let element = |n: u64| [&[Group::SetMember.tag()], format!("member {n:06}").as_bytes()].concat();
        (0..1000).try_for_each(|n| build.put(&element(n), b""))?;
        Ok(build)
    });
    // It leaves nothing in the log.
    engine.flush().unwrap();
    let range = tag_range(tag::ELEMENT);
    let stored = |partition: &Arc<Partition>| partition.range(&range.lower, &range.upper).unwrap().count();
    assert!(engine.store.partitions().iter().map(stored).sum::<usize>() > 0, "a part of it is in the store");
    drop((under_way, engine));
    let (whole, said) = checked(dir.path(), false);
    assert_eq!(whole, Ok(true), "{said}");
    assert_eq!(letters(&keys(&open(dir.path()).unwrap())), "a");
}

/// No repair mends a record of the store: whoever asks for one must not be told that all is well.
#[test]
fn a_damaged_record_of_the_store_fails_check_and_repair() {
    let made = made();
    flush_all(&made);
    // The first table, as the newest says how far the store has come.
    let tables = fs::read_dir(made.dir.path().join("store/keyspaces/1/tables")).unwrap();
    let number = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().parse::<u64>().unwrap();
    let first = tables.map(|table| table.unwrap().path()).min_by_key(number).unwrap();
    let mut bytes = fs::read(&first).unwrap();
    bytes[..64].iter_mut().for_each(|byte| *byte ^= 0xff);
    fs::write(&first, bytes).unwrap();
    for repair in [false, true] {
        let (whole, said) = checked(made.dir.path(), repair);
        assert_eq!(whole, Ok(false), "{said}");
        assert!(said.contains(" is damaged: "), "{said}");
    }
}
