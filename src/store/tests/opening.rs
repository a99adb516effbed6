//! Data directories as they are found: whole, made by halves, or with something missing.

use super::*;

#[test]
fn records_survive_and_the_directory_is_free_after_close() {
    let dir = tempdir().unwrap();
    let store = open(&dir);
    let partition = Arc::clone(store.partition(1));
    for round in 0..12 {
        partition.ingest((0..50).map(|n| put(&format!("k{n:02}"), &format!("{round}")))).unwrap();
    }
    let error = Store::open(dir.path(), options()).err().unwrap();
    assert!(matches!(error, StoreError::InUse { .. }), "{error}");
    let superblock = *store.superblock();
    drop(store);
    // A partition that somebody still has does not keep the directory.
    assert!(matches!(partition.get(b"k00"), Err(StoreError::Closed)));
    assert_eq!((partition.l0_runs(), partition.pinned_bytes()), (0, 0));
    let store = open(&dir);
    assert_eq!(*store.superblock(), superblock);
    assert_eq!(store.partition(1).range(b"k", b"l").unwrap().count(), 50);
    assert_eq!(store.partition(1).get(b"k49").unwrap().as_deref(), Some(b"11".as_slice()));
    assert!(store.partition(1).disk_bytes() > 0);
}

#[test]
fn other_options_open_an_old_directory() {
    let dir = tempdir().unwrap();
    open(&dir).partition(0).ingest([put("a", "1")]).unwrap();
    let other = StoreOptions {
        shards: None,
        cache_bytes: 8 << 20,
        compaction_threads: 3,
        compression: Compression::None,
        table_bytes: 16 << 10,
        nice: Some(10),
        table_files: 0,
    };
    let store = Store::open(dir.path(), other).unwrap();
    assert_eq!(store.partitions().len(), 2);
    assert!(store.partition(0).get(b"a").unwrap().is_some());
    drop(store);
    let error = Store::open(dir.path(), StoreOptions { shards: Some(4), ..options() }).err().unwrap();
    assert!(matches!(error, StoreError::ShardCount { found: 2, configured: 4, .. }));
}

#[test]
fn a_lost_store_is_refused_where_nothing_is_to_be_made() {
    let dir = tempdir().unwrap();
    let look = || Store::open_in(DataDir::open(dir.path(), Some(2)).unwrap(), options(), Create::Nothing);
    let error = look().err().unwrap();
    assert!(matches!(error, StoreError::NoStore { .. }), "{error}");
    assert!(!dir.path().join("store").exists());
}

#[test]
fn a_lost_partition_is_refused_and_not_made_anew() {
    let dir = tempdir().unwrap();
    drop(open(&dir));
    std::fs::remove_dir_all(dir.path().join("store/keyspaces/2")).unwrap();
    let error = Store::open(dir.path(), options()).err().unwrap();
    assert!(matches!(error, StoreError::NoPartition { shard: 1 }), "{error}");
}

/// Whatever file is missing: what is refused is whole again with it, and nothing that opens lacks anything.
#[test]
fn what_is_refused_for_a_missing_file_opens_when_that_is_put_back() {
    let dir = tempdir().unwrap();
    let store = open(&dir);
    (0..2).for_each(|shard| _ = store.partition(shard).ingest([put("a", "1")]).unwrap());
    drop(store);
    let (mut folders, mut files) = (vec![dir.path().join("store")], Vec::new());
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    assert!(files.len() > 8, "{files:?}");
    // Its name is no number, on which fjall would stumble.
    let stray = dir.path().join("store/keyspaces/copy");
    std::fs::create_dir(&stray).unwrap();
    let error = Store::open(dir.path(), options()).err().unwrap();
    assert!(error.to_string().contains("no folder of the store is called so"), "{error}");
    std::fs::remove_dir(&stray).unwrap();
    for file in files {
        let Ok(bytes) = std::fs::read(&file) else { continue };
        std::fs::remove_file(&file).unwrap();
        let refused = Store::open(dir.path(), options()).err();
        if refused.is_some() {
            std::fs::write(&file, &bytes).unwrap();
        }
        let store = Store::open(dir.path(), options()).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        for shard in 0..2 {
            let value = store.partition(shard).get(b"a").unwrap();
            assert_eq!(value.as_deref(), Some(&b"1"[..]), "{} {refused:?}", file.display());
        }
    }
}

#[test]
fn a_crash_while_the_database_is_made_starts_over() {
    let dir = tempdir().unwrap();
    Superblock::open(dir.path(), Some(2), 2).unwrap();
    // As a process leaves it that is killed before fjall has marked its database: fjall does not open this again.
    std::fs::create_dir_all(dir.path().join("store.new/keyspaces")).unwrap();
    std::fs::write(dir.path().join("store.new/0.jnl"), b"").unwrap();
    let store = open(&dir);
    store.partition(0).ingest([put("a", "1")]).unwrap();
    assert!(!dir.path().join("store.new").exists());
}

#[test]
fn what_others_have_left_in_a_data_directory_goes_at_its_opening() {
    let dir = tempdir().unwrap();
    let left = [SHADOW_FOLDER, STAGE_FOLDER, staged::BEING_MADE].map(|name| dir.path().join(name));
    left.iter().for_each(|left| std::fs::create_dir_all(left.join("tables")).unwrap());
    open(&dir);
    assert!(left.iter().all(|left| !left.exists()));
}
