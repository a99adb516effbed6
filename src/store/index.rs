//! Where a table's blocks are, in a form of its own.
//!
//! fjall's index is in pieces of 4 KiB, which lie in the cache that all threads share: to find a block there takes two look-ups, and
//! a search that waits for memory at each of its steps. A piece that is asked for is made into arrays that need neither, and held
//! as long as its table is there, if there is room: that is taken from the cache's.

use lsm_tree::table::block::decoder::ParsedItem as _;
use lsm_tree::table::{BlockHandle, IndexBlock};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::fences::{FEW, Fences};
use crate::util::prefetch::prefetch_all;

/// Blocks of a file in the order of their keys, each with its last one.
pub(super) struct Blocks {
    lasts: Fences,
    at: Box<[BlockHandle]>,
}

/// A table's index.
pub(super) struct Index {
    /// Its blocks, or the pieces that tell of them.
    top: Blocks,
    in_pieces: bool,
    /// Made when the first is held.
    pieces: OnceLock<Box<[OnceLock<Blocks>]>>,
    /// Bytes of them, counted in a [`Room`].
    held: AtomicUsize,
}

/// A piece of an index that is not held.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    number: usize,
    pub(super) at: BlockHandle,
}

/// For the pieces of all indexes of a store that are held.
pub(super) struct Room {
    used: AtomicUsize,
    most: usize,
}

impl Blocks {
    pub(super) fn of(index: &IndexBlock) -> Blocks {
        let entries: Vec<_> = index.iter().map(|entry| entry.materialize(index.as_slice())).collect();
        let lasts: Vec<&[u8]> = entries.iter().map(|entry| &**entry.end_key()).collect();
        Blocks {
            lasts: Fences::of(&lasts),
            at: entries.iter().map(|entry| BlockHandle::new(entry.offset(), entry.size())).collect(),
        }
    }

    /// The first one whose last key is not below this one.
    pub(super) fn find(&self, key: &[u8]) -> Option<BlockHandle> {
        let soon = |few| prefetch_all(&self.at[few..self.at.len().min(few + FEW)]);
        self.at.get(self.lasts.find(key, soon)).copied()
    }

    /// Of memory, beside itself.
    pub(super) fn bytes(&self) -> usize {
        self.lasts.bytes() + size_of_val(&*self.at)
    }
}

impl Room {
    /// For so many bytes.
    pub(super) fn new(most: usize) -> Room {
        Room { used: AtomicUsize::new(0), most }
    }

    /// Bytes that are held.
    pub(super) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Whether less than half of it is taken.
    pub(super) fn is_wide(&self) -> bool {
        self.used() < self.most / 2
    }

    fn is_full(&self) -> bool {
        self.used() >= self.most
    }
}

impl Index {
    /// Of a table's blocks, or of the pieces that its index is in.
    pub(super) fn new(top: &IndexBlock, in_pieces: bool) -> Index {
        Index { top: Blocks::of(top), in_pieces, pieces: OnceLock::new(), held: AtomicUsize::new(0) }
    }

    /// The block that has a key, if one has; the piece that says which, if that is not held.
    pub(super) fn find(&self, key: &[u8]) -> Result<Option<BlockHandle>, Piece> {
        let number = self.top.lasts.find(key, |_| ());
        let Some(at) = self.top.at.get(number).copied() else { return Ok(None) };
        if !self.in_pieces {
            return Ok(Some(at));
        }
        let blocks = self.pieces.get().and_then(|pieces| pieces[number].get());
        blocks.map(|blocks| blocks.find(key)).ok_or(Piece { number, at })
    }

    /// Holds a piece, unless there is no more room.
    pub(super) fn hold(&self, piece: Piece, index: &IndexBlock, room: &Room) -> Option<&Blocks> {
        let count = |bytes| {
            self.held.fetch_add(bytes, Ordering::Relaxed);
            room.used.fetch_add(bytes, Ordering::Relaxed);
        };
        if room.is_full() {
            return self.pieces.get()?[piece.number].get();
        }
        let pieces = self.pieces.get_or_init(|| {
            let pieces: Box<[_]> = self.top.at.iter().map(|_| OnceLock::new()).collect();
            count(size_of_val(&*pieces));
            pieces
        });
        let blocks = Blocks::of(index);
        let bytes = blocks.bytes();
        // Or somebody else was quicker.
        if pieces[piece.number].set(blocks).is_ok() {
            count(bytes);
        }
        pieces[piece.number].get()
    }

    /// Gives back what is held, which goes with this.
    pub(super) fn leave(&mut self, room: &Room) {
        room.used.fetch_sub(std::mem::take(self.held.get_mut()), Ordering::Relaxed);
    }

    /// Bytes of memory that are not of a [`Room`].
    pub(super) fn pinned_bytes(&self) -> usize {
        self.top.bytes()
    }
}
