//! The way to a record in a table that is likely to have it: past fjall's filter, which costs as much as the index and says what
//! is known already, and with a file of its own, which need not be looked up.
//!
//! fjall's own read of a block that is not in memory looks up four things in caches that all threads share: the piece of the
//! filter, the piece of the index, the block, the open file. Here it is two of them. Blocks, cache and their format are fjall's.

use lsm_tree::table::block::BlockType;
use lsm_tree::table::{Block, BlockHandle, DataBlock, IndexBlock};
use lsm_tree::{CompressionType, GlobalTableId, InternalValue, SeqNo, Table, TreeId, UserValue};
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

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
    /// The index, or where its pieces are.
    top: IndexBlock,
    in_pieces: bool,
}

/// Files of tables that are open for this, of all partitions of a store.
pub(super) struct OpenFiles {
    now: AtomicUsize,
    most: usize,
}

/// Counted as long as it is open.
struct OpenFile {
    file: File,
    all: Arc<OpenFiles>,
}

impl OpenFiles {
    pub(super) fn new(most: usize) -> OpenFiles {
        OpenFiles { now: AtomicUsize::new(0), most }
    }

    /// How many there are.
    #[cfg(test)]
    pub(super) fn now(&self) -> usize {
        self.now.load(Ordering::Relaxed)
    }

    /// `None`: there are as many as may be, or it cannot be opened.
    fn open(self: &Arc<Self>, table: &Table) -> Option<OpenFile> {
        if self.now.fetch_add(1, Ordering::Relaxed) < self.most
            && let Ok(file) = File::open(&*table.path)
        {
            return Some(OpenFile { file, all: self.clone() });
        }
        self.now.fetch_sub(1, Ordering::Relaxed);
        None
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.all.now.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Way {
    /// To a table of this tree; `None` where there is none but fjall's.
    pub(super) fn to(tree: TreeId, table: &Table, files: &Arc<OpenFiles>) -> Option<Way> {
        let open = files.open(table)?;
        let compression = table.metadata.index_block_compression;
        let top = Block::from_file(&open.file, table.regions.tli, compression).ok()?;
        let in_pieces = table.regions.index.is_some();
        let is_index = top.header.block_type == BlockType::Index;
        is_index.then(|| Way { id: (tree, table.id()).into(), open, top: IndexBlock::new(top), in_pieces })
    }

    /// Bytes of memory that stay.
    pub(super) fn pinned_bytes(&self) -> usize {
        self.top.inner.size()
    }

    /// What the table has under a key, the newest; `None` after an error, which fjall's own read tells.
    pub(super) fn get(&self, table: &Table, key: &[u8]) -> Option<Held> {
        let Some(mut at) = seek(&self.top, key) else { return Some(Held::Nothing) };
        if self.in_pieces {
            let piece = self.block(table, at, BlockType::Index, table.metadata.index_block_compression)?;
            match seek(&IndexBlock::new(piece), key) {
                Some(block) => at = block,
                None => return Some(Held::Nothing),
            }
        }
        let block = self.block(table, at, BlockType::Data, table.metadata.data_block_compression)?;
        Some(DataBlock::new(block).point_read(key, NEWEST).into())
    }

    fn block(&self, table: &Table, at: BlockHandle, kind: BlockType, compression: CompressionType) -> Option<Block> {
        if let Some(block) = table.cache.get_block(self.id, at.offset()) {
            return Some(block);
        }
        let block = Block::from_file(&self.open.file, at, compression).ok()?;
        if block.header.block_type != kind {
            return None;
        }
        table.cache.insert_block(self.id, at.offset(), block.clone());
        Some(block)
    }
}

/// The first block whose last key is not below this one.
fn seek(index: &IndexBlock, key: &[u8]) -> Option<BlockHandle> {
    let mut blocks = index.iter();
    let found = blocks.seek(key, NEWEST).then(|| blocks.next()).flatten()?;
    Some(BlockHandle::new(found.offset, found.size))
}
