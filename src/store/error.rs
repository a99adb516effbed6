//! What can go wrong between the server and the disk.

use std::path::{Path, PathBuf};

/// Result of everything in the store.
pub type Result<T = (), E = StoreError> = std::result::Result<T, E>;

/// Why the store refuses.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The operating system refuses.
    #[error("cannot {doing} {path}: {source}")]
    Io {
        /// What was tried.
        doing: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// Another server runs on the data directory.
    #[error("data directory {dir} is in use by another server{}", pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default())]
    InUse {
        /// The data directory.
        dir: PathBuf,
        /// Process id of the other server, where it has left one.
        pid: Option<u32>,
    },
    /// The superblock cannot be believed.
    #[error("{path} is damaged: {why}. Put the right one back, the data cannot be read without it")]
    Superblock {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A newer binary, or none that this one descends from, wrote the data directory.
    #[error("{path} has format version {found}, this server knows version {known}")]
    Format {
        /// The superblock.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The version of this binary.
        known: u32,
    },
    /// The configuration names another number of shards than the data directory was created with.
    #[error(
        "{dir} was created with {found} shards and cannot be opened with {configured}: leave the number out, or change it by `tarn reshard`"
    )]
    ShardCount {
        /// The data directory.
        dir: PathBuf,
        /// Shards that it has.
        found: u16,
        /// Shards that were asked for.
        configured: u16,
    },
    /// The number of shards is not one that a data directory can have.
    #[error("number of shards must be between 1 and {max}, not {found}", max = super::MAX_SHARDS)]
    ShardRange {
        /// What was asked for.
        found: u16,
    },
    /// There are data, but the superblock that says how to read them is gone.
    #[error("{dir} holds data but no {name}: restore that file, the data cannot be read without it", name = super::superblock::FILE_NAME)]
    NoSuperblock {
        /// The data directory.
        dir: PathBuf,
    },
    /// The directory has lost its store.
    #[error("{folder} is missing or empty: the store is lost")]
    NoStore {
        /// The store's folder.
        folder: PathBuf,
    },
    /// The database has lost a partition.
    #[error("partition of shard {shard} is gone from the store")]
    NoPartition {
        /// Its shard.
        shard: u16,
    },
    /// A file of the database is gone without which fjall would take away what it is about.
    #[error("the store has lost {}", file.display())]
    Lacks {
        /// The file, in the store's folder.
        file: PathBuf,
        /// It is a partition's, so that the loss of that may be accepted.
        of_partition: bool,
    },
    /// A file without which fjall does not open is damaged or missing.
    #[error(
        "the store cannot be opened: {file}: {what}. Put the right file back, or restore a backup; tarn check {dir} names all that is damaged"
    )]
    Damaged {
        /// The data directory.
        dir: PathBuf,
        /// The file, or the store's folder where it is not known.
        file: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// An ingestion got a key that fjall cannot take; it was given up as a whole.
    #[error("key of {0} bytes cannot be stored")]
    KeyLength(usize),
    /// An ingestion's keys do not strictly ascend; it was given up as a whole.
    #[error("keys of an ingestion do not ascend at {0:02x?}")]
    Unsorted(Vec<u8>),
    /// What had to happen before an ingestion became visible failed; it was given up as a whole.
    #[error("ingestion given up: {0}")]
    BeforeFinish(Box<dyn std::error::Error + Send + Sync>),
    /// An ingestion or a background worker failed; nothing is written until [`super::Store::reopen`] succeeds.
    #[error("store takes no writes until it is reopened: {0}")]
    NeedsReopen(&'static str),
    /// The store is closed, or could not be reopened.
    #[error("store is closed")]
    Closed,
    /// Ranges are still being read, so that the store cannot be reopened.
    #[error("store cannot be reopened while it is being read")]
    Busy,
    /// fjall refuses.
    #[error("cannot {doing}: {source}")]
    Fjall {
        /// What was tried.
        doing: &'static str,
        /// Why it failed.
        source: fjall::Error,
    },
    /// A record on disk cannot be decoded.
    #[error("damaged record: {0}")]
    Codec(#[from] crate::codec::CodecError),
}

impl StoreError {
    pub(super) fn io(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> StoreError {
        move |source| StoreError::Io { doing, path: path.to_owned(), source }
    }

    pub(super) fn fjall(doing: &'static str) -> impl FnOnce(fjall::Error) -> StoreError {
        move |source| StoreError::Fjall { doing, source }
    }
}

impl From<StoreError> for crate::Error {
    fn from(error: StoreError) -> Self {
        crate::Error::Storage(error.to_string().into())
    }
}
