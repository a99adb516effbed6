//! The way to a record in a table.
//!
//! fjall's own read of a block that is not in memory looks up four things in caches that all threads share: the piece of the
//! filter, the piece of the index, the block, the open file. Here it is the block alone as long as there is room for the index
//! (`index`), and the piece of the filter unless the record is likely to be there: then that costs as much as the block does and
//! says what is known already. Blocks, filters, cache and their format are fjall's.

use lsm_tree::table::block::BlockType;
use lsm_tree::table::filter::block::FilterBlock;
use lsm_tree::table::{Block, BlockHandle, DataBlock, IndexBlock};
use lsm_tree::{Cache, CompressionType, GlobalTableId, InternalValue, SeqNo, Table, TreeId, UserValue};
use std::fs::File;
use std::hash::BuildHasher as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use super::index::{Blocks, Index, Piece, Room};
use crate::util::sys::begin_read;

/// All versions of a record are below it.
const NEWEST: SeqNo = SeqNo::MAX;

/// What a table has under a key.
pub(super) enum Held {
    Nothing,
    Tombstone,
    Value(UserValue),
}

impl From<Option<InternalValue>> for Held {
    fn from(record: Option<InternalValue>) -> Held {
        match record {
            None => Held::Nothing,
            Some(record) if record.is_tombstone() => Held::Tombstone,
            Some(record) => Held::Value(record.value),
        }
    }
}

/// How to get at a table's blocks.
pub(super) struct Way {
    id: GlobalTableId,
    open: OpenFile,
    cache: Arc<Cache>,
    index_compression: CompressionType,
    data_compression: CompressionType,
    index: Index,
    /// The pieces of fjall's filter, where it is in such.
    filter: Option<Blocks>,
}

/// Where a record stands in a table, if it is there: found out before it is read, so that the disk can begin.
pub(super) struct Aim {
    way: Arc<Way>,
    at: BlockHandle,
    /// In memory.
    block: Option<Block>,
}

/// What the ways to the tables of all partitions of a store have together.
pub(super) struct Ways {
    /// Files that are open for them.
    open: AtomicUsize,
    most_open: usize,
    missed: Missed,
    /// For their indexes.
    room: Room,
}

/// Blocks that the cache was found to lack of late. Once it is full, one that is missed once does not get in: where all is asked
/// for alike, it would come in only to be thrown out, for another that was worth no less, and that costs as much as to unpack it.
/// The shards' doorkeepers do the same under their locks; here all threads read at once.
struct Missed {
    /// Each has the last of those whose hash leads there.
    places: Box<[AtomicU32]>,
    /// The cache has been full. Stays so, also when the store is opened again with an empty one.
    full: AtomicBool,
}

/// The cache's bytes for each of them: about a block.
const BYTES_OF_A_MISSED: u64 = 4096;

impl Missed {
    fn of_cache(cache_bytes: u64) -> Missed {
        let places = (cache_bytes / BYTES_OF_A_MISSED).max(1).next_power_of_two();
        Missed { places: (0..places).map(|_| AtomicU32::new(0)).collect(), full: AtomicBool::new(false) }
    }

    /// Whether a block that the cache lacks is to get in.
    fn gets_in(&self, id: GlobalTableId, at: BlockHandle, cache: &Cache) -> bool {
        if !self.full.load(Ordering::Relaxed) {
            let full = cache.size() >= cache.capacity() - cache.capacity() / 8;
            self.full.store(full, Ordering::Relaxed);
            return true;
        }
        let hash = foldhash::fast::FixedState::default().hash_one((id.tree_id(), id.table_id(), *at.offset()));
        let place = &self.places[hash as usize & (self.places.len() - 1)];
        let block = (hash >> 32) as u32;
        place.load(Ordering::Relaxed) == block || place.swap(block, Ordering::Relaxed) == block
    }
}

/// Counted as long as it is open.
struct OpenFile {
    file: File,
    all: Arc<Ways>,
}

impl Ways {
    /// So many files at most, beside a block cache of this size, and so many bytes for indexes.
    pub(super) fn new(most_open: usize, cache_bytes: u64, index_bytes: u64) -> Ways {
        Ways {
            open: AtomicUsize::new(0),
            most_open,
            missed: Missed::of_cache(cache_bytes),
            room: Room::new(index_bytes as usize),
        }
    }

    /// Bytes that indexes have of the room for them.
    pub(super) fn index_bytes(&self) -> usize {
        self.room.used()
    }

    /// How many files are open.
    #[cfg(test)]
    pub(super) fn open_files(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// `None`: there are as many as may be, or it cannot be opened.
    fn open(self: &Arc<Self>, table: &Table) -> Option<OpenFile> {
        if self.open.fetch_add(1, Ordering::Relaxed) < self.most_open
            && let Ok(file) = File::open(&*table.path)
        {
            return Some(OpenFile { file, all: self.clone() });
        }
        self.open.fetch_sub(1, Ordering::Relaxed);
        None
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        self.index.leave(&self.open.all.room);
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.all.open.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
impl Aim {
    /// Whether the disk was to begin with it.
    pub(super) fn is_begun(&self) -> bool {
        self.block.is_none()
    }
}

impl Way {
    /// To a table of this tree; `None` where there is none but fjall's.
    pub(super) fn to(tree: TreeId, table: &Table, ways: &Arc<Ways>) -> Option<Way> {
        let open = ways.open(table)?;
        let index_compression = table.metadata.index_block_compression;
        let index_at = |at| read(&open.file, at, BlockType::Index, index_compression).map(IndexBlock::new);
        let index = Index::new(&index_at(table.regions.tli)?, table.regions.index.is_some());
        let filter = table.regions.filter_tli.and_then(index_at).map(|pieces| Blocks::of(&pieces));
        Some(Way {
            id: (tree, table.id()).into(),
            open,
            cache: table.cache.clone(),
            index_compression,
            data_compression: table.metadata.data_block_compression,
            index,
            filter,
        })
    }

    /// Bytes of memory that stay, beside what takes up [room](Ways::index_bytes).
    pub(super) fn pinned_bytes(&self) -> usize {
        self.index.pinned_bytes() + self.filter.as_ref().map_or(0, Blocks::bytes)
    }

    /// Whether the table has a key of this hash, by fjall's filter; `None` where that is not in pieces, or after an error.
    pub(super) fn may_have(&self, key: &[u8], hash: u64) -> Option<bool> {
        let Some(at) = self.filter.as_ref()?.find(key) else { return Some(false) };
        let piece = match self.cache.get_block(self.id, at.offset()) {
            Some(piece) => piece,
            None => {
                let piece = self.read(at, BlockType::Filter, CompressionType::None)?;
                self.cache.insert_block(self.id, at.offset(), piece.clone());
                piece
            }
        };
        FilterBlock::new(piece).maybe_contains_hash(hash).ok()
    }

    /// What the table has under a key, the newest; `None` after an error, which fjall's own read tells.
    pub(super) fn get(&self, key: &[u8], aim: Option<&Aim>) -> Option<Held> {
        let (at, known) = match aim.filter(|aim| std::ptr::eq(&*aim.way, self)) {
            Some(aim) => (aim.at, aim.block.clone()),
            None => match self.find(key)? {
                Some(at) => (at, self.cache.get_block(self.id, at.offset())),
                None => return Some(Held::Nothing),
            },
        };
        if let Some(block) = known {
            return Some(DataBlock::new(block).point_read(key, NEWEST).into());
        }
        let block = self.read(at, BlockType::Data, self.data_compression)?;
        if self.open.all.missed.gets_in(self.id, at, &self.cache) {
            self.cache.insert_block(self.id, at.offset(), block.clone());
        }
        let size = block.size();
        let mut held = DataBlock::new(block).point_read(key, NEWEST).into();
        if let Held::Value(value) = &mut held
            && value.len() < size / 2
        {
            // A piece of a block keeps all of it, which nobody else would have.
            *value = UserValue::new(value);
        }
        Some(held)
    }

    /// Finds out where a record stands, and has the disk begin to read it if it must. `None` if the table does not have it, or
    /// the piece of the index that says where must be read first: the disk begins with that.
    pub(super) fn aim(self: &Arc<Self>, key: &[u8]) -> Option<Aim> {
        let at = match self.index.find(key) {
            Ok(at) => at?,
            Err(piece) => {
                let Some(index) = self.cache.get_block(self.id, piece.at.offset()) else {
                    self.begin(piece.at);
                    return None;
                };
                self.find_in(piece, index, true, key)?
            }
        };
        let block = self.cache.get_block(self.id, at.offset());
        if block.is_none() {
            self.begin(at);
        }
        Some(Aim { way: self.clone(), at, block })
    }

    fn begin(&self, at: BlockHandle) {
        begin_read(&self.open.file, *at.offset(), at.size().into());
    }

    /// The block that has a key, if any has; `None` after an error.
    fn find(&self, key: &[u8]) -> Option<Option<BlockHandle>> {
        let piece = match self.index.find(key) {
            Ok(at) => return Some(at),
            Err(piece) => piece,
        };
        Some(match self.cache.get_block(self.id, piece.at.offset()) {
            Some(index) => self.find_in(piece, index, true, key),
            None => self.find_in(piece, self.read(piece.at, BlockType::Index, self.index_compression)?, false, key),
        })
    }

    /// The same by a piece of the index, which is cached or not. It is held from now on, where much room is taken only once it is
    /// asked for again, or else cached.
    fn find_in(&self, piece: Piece, index: Block, is_cached: bool, key: &[u8]) -> Option<BlockHandle> {
        let index = IndexBlock::new(index);
        let Ways { room, missed, .. } = &*self.open.all;
        if (room.is_wide() || missed.gets_in(self.id, piece.at, &self.cache))
            && let Some(blocks) = self.index.hold(piece, &index, room)
        {
            return blocks.find(key);
        }
        let at = seek(&index, key);
        if !is_cached {
            self.cache.insert_block(self.id, piece.at.offset(), index.inner);
        }
        at
    }

    fn read(&self, at: BlockHandle, kind: BlockType, compression: CompressionType) -> Option<Block> {
        read(&self.open.file, at, kind, compression)
    }
}

fn read(file: &File, at: BlockHandle, kind: BlockType, compression: CompressionType) -> Option<Block> {
    let block = Block::from_file(file, at, compression).ok()?;
    (block.header.block_type == kind).then_some(block)
}

/// The first block whose last key is not below this one.
fn seek(index: &IndexBlock, key: &[u8]) -> Option<BlockHandle> {
    let mut blocks = index.iter();
    let found = blocks.seek(key, NEWEST).then(|| blocks.next()).flatten()?;
    Some(BlockHandle::new(found.offset, found.size))
}
