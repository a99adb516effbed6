//! Values, as RDB holds them whatever their form; and why bytes are refused.

use bytes::Bytes;

use crate::codec::{CodecError, StreamId};

/// A value of any type.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A string.
    String(Vec<u8>),
    /// A list, its head first.
    List(Vec<Vec<u8>>),
    /// The members of a set, in no order.
    Set(Vec<Vec<u8>>),
    /// Members and scores of a sorted set, in no order; no score is NaN.
    Zset(Vec<(Vec<u8>, f64)>),
    /// The fields of a hash, in no order.
    Hash(Vec<Field>),
    /// A stream.
    Stream(Box<Stream>),
}

/// A field of a hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Name.
    pub name: Vec<u8>,
    /// Value.
    pub value: Vec<u8>,
    /// When it ends, in Unix milliseconds, below 2⁴⁸; 0 for never.
    pub expire_ms: u64,
}

/// A stream. Its length and first id are those of `entries`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stream {
    /// In ascending order of ids, none above `last_id`; may be empty.
    pub entries: Vec<Entry>,
    /// The highest id ever given.
    pub last_id: StreamId,
    /// The highest id that XDEL ever removed, 0-0 for none; not above `last_id`.
    pub max_deleted: StreamId,
    /// Entries ever added, at least as many as there are; below 2⁶³.
    pub entries_added: u64,
    /// Consumer groups, no two of one name.
    pub groups: Vec<Group>,
}

impl Stream {
    /// The first entry's id, 0-0 without entries.
    pub fn first_id(&self) -> StreamId {
        self.entries.first().map_or(StreamId { ms: 0, seq: 0 }, |entry| entry.id)
    }

    /// What is known of it beside entries and groups.
    pub const fn counters(&self) -> Counters {
        Counters { last_id: self.last_id, max_deleted: self.max_deleted, entries_added: self.entries_added }
    }
}

/// What is known of a stream beside its entries and groups; see [`Stream`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "as in Stream")]
pub struct Counters {
    pub last_id: StreamId,
    pub max_deleted: StreamId,
    pub entries_added: u64,
}

impl Counters {
    /// A stream with these entries, and without groups.
    pub fn with(self, entries: Vec<Entry>) -> Stream {
        let Counters { last_id, max_deleted, entries_added } = self;
        Stream { entries, last_id, max_deleted, entries_added, groups: Vec::new() }
    }
}

/// An entry of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its id.
    pub id: StreamId,
    /// Names and values of its fields, in order, not empty. Names are shared: a stream says once what they are for many
    /// entries, and copies of long names could take far more memory than the bytes they come from.
    pub fields: Vec<(Bytes, Vec<u8>)>,
}

/// A consumer group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Name.
    pub name: Vec<u8>,
    /// The last id delivered.
    pub last_id: StreamId,
    /// Entries read, -1 when it is not known.
    pub entries_read: i64,
    /// Entries delivered and not acknowledged, in ascending order of ids. They may have been deleted since.
    pub pending: Vec<Pending>,
    /// Consumers, no two of one name.
    pub consumers: Vec<Consumer>,
}

/// An entry delivered and not acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pending {
    /// The entry's id.
    pub id: StreamId,
    /// When it was last delivered, Unix milliseconds, below 2⁶³.
    pub delivery_ms: u64,
    /// How often it was delivered.
    pub delivery_count: u64,
    /// To whom: an index into the group's consumers.
    pub consumer: usize,
}

/// A consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Consumer {
    /// Name.
    pub name: Vec<u8>,
    /// When it last tried to read or claim, Unix milliseconds, below 2⁶³.
    pub seen_ms: u64,
    /// When it last read or claimed something, Unix milliseconds; -1 for never. RDB before 11 knows only one time, and
    /// both are that one then.
    pub active_ms: i64,
}

/// For whose servers bytes are, where their formats differ: in hashes with times of fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dialect {
    /// Redis 7.4 and later.
    #[default]
    Redis,
    /// Valkey 9.0 and later.
    Valkey,
}

/// Why bytes are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RdbError {
    /// A payload without room for version and checksum.
    #[error("payload is cut short")]
    Frame,
    /// A payload of a version above those known.
    #[error("RDB version {0} is unknown")]
    Version(u16),
    /// A payload whose checksum is not that of its bytes.
    #[error("checksum does not match")]
    Checksum,
    /// A type byte that no version has, or not the one given.
    #[error("unknown type {0}")]
    UnknownType(u8),
    /// A value that only a module reads, or that has parts which cannot be kept; what.
    #[error("{0} cannot be read")]
    Unsupported(&'static str),
    /// A value that takes more memory than it may.
    #[error("value is too large")]
    TooLarge,
    /// A collection without elements, which does not exist. Redis once wrote such: in a file it passes over them.
    #[error("collection without elements")]
    Empty,
    /// Bytes that contradict the format; in what part.
    #[error("{0}")]
    Corrupt(&'static str),
}

impl RdbError {
    /// Whether the payload as such is wrong, not the value in it: Redis has two texts.
    pub const fn is_of_frame(self) -> bool {
        matches!(self, RdbError::Frame | RdbError::Version(_) | RdbError::Checksum)
    }

    /// What RESTORE answers, code word included.
    pub const fn text(self) -> &'static str {
        match self {
            _ if self.is_of_frame() => "ERR DUMP payload version or checksum are wrong",
            RdbError::TooLarge => "ERR value in payload exceeds maximum allowed size (proto-max-bulk-len)",
            _ => "ERR Bad data format",
        }
    }
}

/// A cursor finds nothing wrong but that bytes are missing.
impl From<CodecError> for RdbError {
    fn from(_: CodecError) -> Self {
        RdbError::Corrupt("value is cut short")
    }
}
