//! The file `SUPERBLOCK`: what must be known before any record of a data directory can be read.
//!
//! | bytes | part |
//! |---|---|
//! | 8 | `TARNDATA` |
//! | 4 | format version |
//! | 2 | number of shards |
//! | 2 | zero |
//! | 16 | key of the hash that spreads keys over shards: two 8-byte numbers, random |
//! | 8 | time of creation, ms since 1970 |
//! | 8 | XXH3-64 of all bytes before |
//!
//! Integers are little-endian. Every later version begins with the same twelve bytes and ends with a checksum of the
//! whole, so that a newer format and damage can be told apart.
//!
//! Invariant (rule 14 of the log): the superblock is on disk, synced together with its directory, before the first
//! record of log or store is written. It is never changed after. A directory with data and no superblock is
//! therefore damaged, and is refused: a new hash key would lose every key in it.

use super::error::{Result, StoreError};
use super::{CHECKPOINT_FILE, LOG_FOLDER, MAX_SHARDS, STORE_FOLDER};
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::time::SystemTime;
use xxhash_rust::xxh3::xxh3_64;

/// Name of the file in the data directory.
pub const FILE_NAME: &str = "SUPERBLOCK";

/// Version of everything on disk: keys, values, log records.
pub const FORMAT_VERSION: u32 = 3;

const TEMP_NAME: &str = "SUPERBLOCK.new";
const MAGIC: [u8; 8] = *b"TARNDATA";
const LEN: usize = 48;

/// What the file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Superblock {
    /// Number of shards; fixed when the directory is created.
    pub shards: u16,
    /// Key of the siphash that chooses a key's shard.
    pub hash_key: [u64; 2],
    /// Time of creation, ms since 1970.
    pub created_ms: u64,
}

impl Superblock {
    /// Reads the superblock of `dir`; `None` if the directory is fresh.
    pub fn load(dir: &Path) -> Result<Option<Superblock>> {
        let path = dir.join(FILE_NAME);
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let has_data = [STORE_FOLDER, LOG_FOLDER, CHECKPOINT_FILE].iter().any(|name| dir.join(name).exists());
                return if has_data { Err(StoreError::NoSuperblock { dir: dir.to_owned() }) } else { Ok(None) };
            }
            Err(error) => return Err(StoreError::io("open", &path)(error)),
        };
        let mut bytes = Vec::new();
        // A newer format may be longer, but not without bound.
        Read::take(&mut file, 1 << 16).read_to_end(&mut bytes).map_err(StoreError::io("read", &path))?;
        decode(&bytes, &path).map(Some)
    }

    /// Writes the superblock of a fresh directory, durable when this returns.
    pub fn create(dir: &Path, shards: u16) -> Result<Superblock> {
        Superblock::create_with(dir, shards, random_key()?)
    }

    /// The same, of a directory whose keys are spread by this hash key.
    pub fn create_with(dir: &Path, shards: u16, hash_key: [u64; 2]) -> Result<Superblock> {
        if shards == 0 || shards > MAX_SHARDS {
            return Err(StoreError::ShardRange { found: shards });
        }
        let superblock = Superblock { shards, hash_key, created_ms: now_ms() };
        let temp = dir.join(TEMP_NAME);
        let write = || {
            let mut file = File::create(&temp)?;
            file.write_all(&superblock.encode())?;
            file.sync_all()
        };
        write().map_err(StoreError::io("write", &temp))?;
        std::fs::rename(&temp, dir.join(FILE_NAME)).map_err(StoreError::io("rename", &temp))?;
        sync_dir(dir)?;
        Ok(superblock)
    }

    /// Reads the superblock, or writes one for a fresh directory. `configured` is the number of shards that the
    /// configuration names; if it names none, a fresh directory gets `default`.
    pub fn open(dir: &Path, configured: Option<u16>, default: u16) -> Result<Superblock> {
        let Some(superblock) = Superblock::load(dir)? else {
            return Superblock::create(dir, configured.unwrap_or(default));
        };
        match configured {
            Some(configured) if configured != superblock.shards => {
                Err(StoreError::ShardCount { dir: dir.to_owned(), found: superblock.shards, configured })
            }
            _ => Ok(superblock),
        }
    }

    /// What tells this data directory from every other: stands in its log, its store and its checkpoint.
    pub fn id(&self) -> u64 {
        let bytes = self.encode();
        xxh3_64(&bytes[..LEN - 8])
    }

    fn encode(&self) -> [u8; LEN] {
        let mut bytes = Vec::with_capacity(LEN);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.shards.to_le_bytes());
        bytes.extend_from_slice(&[0; 2]);
        for half in self.hash_key {
            bytes.extend_from_slice(&half.to_le_bytes());
        }
        bytes.extend_from_slice(&self.created_ms.to_le_bytes());
        bytes.extend_from_slice(&xxh3_64(&bytes).to_le_bytes());
        let mut block = [0; LEN];
        block.copy_from_slice(&bytes);
        block
    }
}

fn decode(bytes: &[u8], path: &Path) -> Result<Superblock> {
    let damaged = |why| StoreError::Superblock { path: path.to_owned(), why };
    let Some((body, sum)) = bytes.split_last_chunk::<8>() else { return Err(damaged("it is too short")) };
    if !body.starts_with(&MAGIC) || body.len() < 12 {
        return Err(damaged("it does not begin as a superblock"));
    }
    if xxh3_64(body) != u64::from_le_bytes(*sum) {
        return Err(damaged("its checksum is wrong"));
    }
    let mut cursor = crate::codec::cursor::Cursor::new(&body[MAGIC.len()..]);
    let found = u32::from_le_bytes(cursor.array()?);
    if found != FORMAT_VERSION {
        return Err(StoreError::Format { path: path.to_owned(), found, known: FORMAT_VERSION });
    }
    let shards = u16::from_le_bytes(cursor.array()?);
    cursor.bytes(2)?;
    let superblock =
        Superblock { shards, hash_key: [cursor.u64_le()?, cursor.u64_le()?], created_ms: cursor.u64_le()? };
    cursor.finish()?;
    if shards == 0 || shards > MAX_SHARDS {
        return Err(damaged("its number of shards is out of range"));
    }
    Ok(superblock)
}

/// Makes a rename or a new file in `dir` durable.
pub fn sync_dir(dir: &Path) -> Result {
    File::open(dir).and_then(|file| file.sync_all()).map_err(StoreError::io("sync", dir))
}

fn random_key() -> Result<[u64; 2]> {
    const SOURCE: &str = "/dev/urandom";
    let mut bytes = [0; 16];
    let mut read = || File::open(SOURCE)?.read_exact(&mut bytes);
    read().map_err(StoreError::io("read", Path::new(SOURCE)))?;
    let both = u128::from_le_bytes(bytes);
    Ok([both as u64, (both >> 64) as u64])
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::util::scratch::tempdir;

    #[test]
    fn superblock_bytes_are_pinned() {
        let block = Superblock { shards: 258, hash_key: [1, 2], created_ms: 3 };
        let bytes = block.encode();
        assert_eq!(bytes[..16], *b"TARNDATA\x03\0\0\0\x02\x01\0\0");
        assert_eq!(bytes[16..40], *b"\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0");
        assert_eq!(bytes[40..], xxh3_64(&bytes[..40]).to_le_bytes());
        assert_eq!(bytes[40..], block.id().to_le_bytes());
    }

    #[test]
    fn rule_14_superblock_is_written_once_and_returns() {
        let dir = tempdir().unwrap();
        assert_eq!(Superblock::load(dir.path()).unwrap(), None);
        let before_ms = now_ms();
        let made = Superblock::open(dir.path(), None, 16).unwrap();
        assert_eq!(made.shards, 16);
        assert!(before_ms > 1_700_000_000_000 && (before_ms..=now_ms()).contains(&made.created_ms));
        assert!(!made.hash_key.contains(&0), "all of it is random: {:?}", made.hash_key);
        assert_eq!(Superblock::open(dir.path(), None, 64).unwrap(), made);
        assert_eq!(Superblock::open(dir.path(), Some(16), 64).unwrap(), made);
        assert!(!dir.path().join(TEMP_NAME).exists());
        let other = tempdir().unwrap();
        assert_ne!(Superblock::open(other.path(), None, 16).unwrap().hash_key, made.hash_key);
    }

    #[test]
    fn another_number_of_shards_is_refused() {
        let dir = tempdir().unwrap();
        Superblock::open(dir.path(), Some(4), 16).unwrap();
        let error = Superblock::open(dir.path(), Some(8), 16).unwrap_err();
        assert!(matches!(error, StoreError::ShardCount { found: 4, configured: 8, .. }), "{error}");
        assert!(error.to_string().contains("created with 4 shards"));
        for shards in [0, MAX_SHARDS + 1] {
            assert!(matches!(Superblock::create(dir.path(), shards), Err(StoreError::ShardRange { .. })));
        }
    }

    #[test]
    fn any_number_of_shards_in_range_returns_and_no_other() {
        let load = |shards| decode(&Superblock { shards, hash_key: [1, 2], created_ms: 3 }.encode(), Path::new("x"));
        for shards in [1, MAX_SHARDS] {
            assert_eq!(load(shards).unwrap().shards, shards);
        }
        for shards in [0, MAX_SHARDS + 1] {
            assert!(load(shards).unwrap_err().to_string().contains("its number of shards is out of range"));
        }
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_refused() {
        let bytes = Superblock { shards: 4, hash_key: [1, 2], created_ms: 3 }.encode();
        for bit in 0..LEN * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            let error = decode(&damaged, Path::new("x")).unwrap_err();
            assert!(matches!(error, StoreError::Superblock { .. }), "bit {bit}: {error}");
        }
        for len in 0..LEN {
            decode(&bytes[..len], Path::new("x")).unwrap_err();
        }
    }

    #[test]
    fn a_newer_format_is_named() {
        let mut bytes = Superblock { shards: 4, hash_key: [1, 2], created_ms: 3 }.encode().to_vec();
        bytes.truncate(LEN - 8);
        bytes[8] = 4;
        bytes.extend_from_slice(b"something new");
        bytes.extend_from_slice(&xxh3_64(&bytes).to_le_bytes());
        let error = decode(&bytes, Path::new("dir/SUPERBLOCK")).unwrap_err().to_string();
        assert_eq!(error, "dir/SUPERBLOCK has format version 4, this server knows version 3");
        // However little follows its version; without one it is none.
        for (len, named) in [(12, true), (11, false), (8, false)] {
            let mut short = bytes[..len].to_vec();
            short.extend_from_slice(&xxh3_64(&short).to_le_bytes());
            let error = decode(&short, Path::new("x")).unwrap_err();
            assert_eq!(matches!(error, StoreError::Format { found: 4, .. }), named, "{len} bytes: {error}");
            assert_eq!(matches!(error, StoreError::Superblock { .. }), !named, "{len} bytes: {error}");
        }
    }

    #[test]
    fn data_without_a_superblock_are_refused() {
        for part in [STORE_FOLDER, LOG_FOLDER, CHECKPOINT_FILE] {
            let dir = tempdir().unwrap();
            std::fs::create_dir(dir.path().join(part)).unwrap();
            let error = Superblock::open(dir.path(), None, 16).unwrap_err();
            assert!(matches!(error, StoreError::NoSuperblock { .. }), "{error}");
        }
    }

    #[test]
    fn a_crash_before_the_rename_leaves_a_fresh_directory() {
        let dir = tempdir().unwrap();
        std::fs::write(dir.path().join(TEMP_NAME), b"half").unwrap();
        Superblock::open(dir.path(), None, 16).unwrap();
    }
}
