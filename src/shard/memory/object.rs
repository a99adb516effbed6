//! An object in a shard's table: one key with its metadata and what of its content is in memory.
//!
//! An [`Object`] fills one cache line. A small string's value follows the key in the same allocation; everything
//! else lives in a [`Body`]: version, size and the *overlay*, an ordered map of the elements that are hot or dirty.
//!
//! | flag | meaning |
//! |---|---|
//! | `DIRTY` | changed since it was last gathered for a flush |
//! | `QUEUED` | stands in the shard's list of dirty objects |
//! | `IN_FLIGHT` | gathered by a flush that has not finished |
//! | `MAYBE_STORED` | fjall may hold its metadata: removing it leaves a tombstone |
//! | `STORED` | fjall holds its metadata for certain: key-space walks find it there |
//! | `REFERENCED` | read or written since the clock's hand last passed |
//! | `RAW` | a string changed in place: `OBJECT ENCODING` calls it so until it is set anew, or leaves the table |
//! | `TEXT` | a string that is no `int` to `OBJECT ENCODING` even if it reads as one; as long as `RAW` |
//!
//! Invariants: an object with `DIRTY` or `IN_FLIGHT` is never evicted; [`Kind::Absent`] is a removal that waits for the
//! next flush, with a tombstone if `MAYBE_STORED`; elements of a body are dirty only if their object is.

use crate::codec::element::Group;
use crate::codec::{Extra, Kind as StoredKind, Meta, NsId};
use crate::log::Lsn;

use super::overlay::{Key, Overlay};

/// What a key holds; `Absent` stands for a removal that no flush has seen yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of Redis's types")]
pub enum Kind {
    Absent,
    String,
    Hash,
    List,
    Set,
    Zset,
    Stream,
}

impl Kind {
    /// The name `TYPE` answers.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Absent => "none",
            Kind::String => "string",
            Kind::Hash => "hash",
            Kind::List => "list",
            Kind::Set => "set",
            Kind::Zset => "zset",
            Kind::Stream => "stream",
        }
    }

    /// The group of elements that a counted index orders and counts.
    pub const fn counted_group(self) -> Option<Group> {
        match self {
            Kind::Hash => Some(Group::HashField),
            Kind::Set => Some(Group::SetMember),
            Kind::Zset => Some(Group::ZsetSort),
            Kind::Absent | Kind::String | Kind::List | Kind::Stream => None,
        }
    }

    /// The tag on disk; `None` for a removal, which has no metadata.
    pub const fn stored(self) -> Option<StoredKind> {
        Some(match self {
            Kind::Absent => return None,
            Kind::String => StoredKind::String,
            Kind::Hash => StoredKind::Hash,
            Kind::List => StoredKind::List,
            Kind::Set => StoredKind::Set,
            Kind::Zset => StoredKind::Zset,
            Kind::Stream => StoredKind::Stream,
        })
    }
}

impl From<StoredKind> for Kind {
    fn from(kind: StoredKind) -> Self {
        match kind {
            StoredKind::String => Kind::String,
            StoredKind::Hash => Kind::Hash,
            StoredKind::List => Kind::List,
            StoredKind::Set => Kind::Set,
            StoredKind::Zset => Kind::Zset,
            StoredKind::Stream => Kind::Stream,
        }
    }
}

/// State bits of objects and elements; see the table above.
pub mod state {
    #![expect(missing_docs, reason = "the module's table says what each means")]
    pub const DIRTY: u8 = 1;
    pub const QUEUED: u8 = 2;
    pub const IN_FLIGHT: u8 = 4;
    pub const MAYBE_STORED: u8 = 8;
    pub const STORED: u8 = 16;
    pub const REFERENCED: u8 = 32;
    pub const RAW: u8 = 64;
    pub const TEXT: u8 = 128;
    /// What `OBJECT ENCODING` goes by besides the value.
    pub const ENCODING: u8 = RAW | TEXT;
}

/// Memory a record costs beside its bytes, in the overlay or among the records without an object.
pub const ELEMENT_OVERHEAD: usize = 72;

/// Memory that a time costs in the index of times and in the map of stored times.
pub const EXPIRY_OVERHEAD: usize = 64;

/// What a collection or a big string keeps beside its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Body {
    /// Stands in every element key; 0 until the commit that creates the object has its LSN.
    pub version: u64,
    /// Encode-version: 0 exact, 1 blind (hash, set) or index (sorted set).
    pub encoding: u8,
    /// What `OBJECT ENCODING` goes by besides the size; see [`Meta::form`].
    pub form: u8,
    /// Some element of this version may be in fjall as a record of its own: dropping the body needs a garbage record. See
    /// [`super::packed`].
    pub maybe_stored: bool,
    /// Size, form or extra changed in the transaction under way: its commit logs the metadata.
    pub pending: bool,
    /// Elements; for a big string, bytes.
    pub size: u64,
    /// What only one type needs.
    pub extra: Extra,
    /// The elements in memory.
    pub overlay: Overlay,
    /// Where the next eviction of single elements begins.
    pub hand: Key,
}

impl Body {
    /// A new, empty and therefore complete body.
    pub fn new() -> Self {
        Body {
            version: 0,
            encoding: 0,
            form: 0,
            maybe_stored: false,
            pending: false,
            size: 0,
            extra: Extra::None,
            overlay: Overlay::new(),
            hand: Key::new(),
        }
    }

    /// A body of which fjall holds everything, in records of its elements, and memory nothing.
    pub fn stored(meta: &Meta) -> Self {
        let mut body = Body {
            version: meta.version,
            encoding: meta.encoding,
            form: meta.form,
            maybe_stored: true,
            size: meta.size,
            extra: meta.extra,
            ..Body::new()
        };
        body.overlay.complete = false;
        body
    }
}

impl Default for Body {
    fn default() -> Self {
        Self::new()
    }
}

/// One key of a shard's table.
#[derive(Debug)]
#[repr(align(64))]
pub struct Object {
    /// The user key, then the value of a small string.
    pub bytes: Vec<u8>,
    /// Everything that is no small string.
    pub body: Option<Box<Body>>,
    /// LSN of the commit that last changed it.
    pub lsn: Lsn,
    /// Absolute time of expiry, 0 for none.
    pub expire_ms: u64,
    /// 32 bits of the key's hash, for the table.
    pub hash: u32,
    /// Length of the user key in `bytes`.
    pub key_len: u32,
    /// Namespace id.
    pub ns: NsId,
    /// Type.
    pub kind: Kind,
    /// See [`state`].
    pub state: u8,
    /// How lately or how often it was used: see [`super::uses`].
    pub used: u16,
}

const _: () = assert!(size_of::<Object>() == 64, "an object fills one cache line");

/// What a record without an object counts for in the dirty bytes.
pub(in crate::shard) fn raw_bytes(key: &[u8], value: Option<&[u8]>) -> usize {
    key.len() + value.map_or(0, <[u8]>::len) + ELEMENT_OVERHEAD
}

impl Object {
    /// The user key.
    #[inline]
    pub fn key(&self) -> &[u8] {
        &self.bytes[..self.key_len as usize]
    }

    /// The value of a small string.
    #[inline]
    pub fn value(&self) -> &[u8] {
        &self.bytes[self.key_len as usize..]
    }

    /// Whether the object is there at `now_ms`.
    #[inline]
    pub fn is_live(&self, now_ms: u64) -> bool {
        self.kind != Kind::Absent && !self.is_expired(now_ms)
    }

    /// Whether its time is past, or that of the last of its fields.
    #[inline]
    pub fn is_expired(&self, now_ms: u64) -> bool {
        self.expire_ms != 0 && self.expire_ms <= now_ms
            || self.kind == Kind::Hash && self.body.as_ref().is_some_and(|body| body.extra.fields_are_past(now_ms))
    }

    /// When the sweep is to look at its fields, ms; 0 for never.
    #[inline]
    pub fn fields_due_ms(&self) -> u64 {
        match (&self.body, self.kind) {
            (Some(body), Kind::Hash) => body.extra.fields_due_ms(),
            _ => 0,
        }
    }

    /// Whether it may leave memory.
    #[inline]
    pub const fn is_clean(&self) -> bool {
        self.state & (state::DIRTY | state::IN_FLIGHT) == 0
    }

    /// Whether it is a string of so many bytes at most, without chunks.
    #[inline]
    pub fn is_string_up_to(&self, most: usize) -> bool {
        self.kind == Kind::String && self.body.is_none() && self.value().len() <= most
    }

    /// Whether nothing of it is on disk only.
    pub fn is_in_memory(&self) -> bool {
        self.body.as_ref().is_none_or(|body| body.overlay.complete)
    }

    /// Its metadata; `None` for a removal.
    pub fn meta(&self) -> Option<Meta> {
        let mut meta = Meta { expire_ms: self.expire_ms, ..Meta::new(self.kind.stored()?) };
        if let Some(body) = &self.body {
            meta.version = body.version;
            meta.encoding = body.encoding;
            meta.form = body.form;
            meta.size = body.size;
            meta.extra = body.extra;
        }
        Some(meta)
    }

    /// The group whose elements are counted exactly, so that a counted index can follow them.
    pub fn counted_group(&self) -> Option<Group> {
        let exact = self.body.as_ref()?.encoding == 0 || self.kind == Kind::Zset;
        self.kind.counted_group().filter(|_| exact)
    }

    /// What it counts for, without its elements, among what waits for a flush.
    pub fn dirty_bytes(&self) -> usize {
        if self.state & state::DIRTY == 0 { 0 } else { size_of::<Object>() + self.bytes.len() }
    }

    /// Memory it holds, its table slot included.
    #[inline]
    pub fn mem_bytes(&self) -> usize {
        let body = self.body.as_ref().map_or(0, |b| size_of::<Body>() + b.overlay.bytes());
        let expiry = if self.expire_ms == 0 { 0 } else { EXPIRY_OVERHEAD };
        size_of::<Object>() + 16 + self.bytes.capacity() + 16 + body + expiry
    }
}
